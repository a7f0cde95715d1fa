# SPDX-License-Identifier: MIT
"""Gradients on devices for which the core has no kernels: torch's operations measure and multiply, the core decides.

A call packs what it found into one tensor of float32, so the host waits once. After an overflow it waits twice more:
for the tensors that are not finite, and for their counts.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .. import _gradscaler as c
from .._policy import Policy
from .._report import LateReport, Report
from .._structs import Factor, Loss, MergeKind, ReportKind, State, Want
from .._structs import Report as Row
from . import _device
from ._device import CPU, SIZE
from ._memory import MOST, DeviceState, HostState
from ._torch import divide

_F16 = 1 << c.GSC_F16
_NORM, _AMAX, _UNDERFLOW = map(int, (Want.NORM, Want.AMAX, Want.UNDERFLOW))
_TENSORS, _SHARDS = int(ReportKind.TENSORS), int(MergeKind.SHARDS)
_F32 = ctypes.c_float  # rounds, to infinity at most
_LARGEST, _BEFORE = torch.finfo(torch.float32).max, 2.0**64  # an inverse above _LARGEST is _BEFORE times a smaller one
_HALF = 1 << 20  # a count is two numbers below it, which float32 has exactly
_CAPTURED = "torch's operations on gradients cannot be captured in a CUDA graph: the host decides after each step"


class Inverse(NamedTuple):
    """The factor of gradients, and the tensors that are read together with the results of the call."""

    value: Any  # a float, or a tensor of float32 without dimensions
    can_grow: bool  # whether it can be above 1, so that it makes infinities
    before: float = 1.0  # the gradients are multiplied by this first
    generation: int = 0
    seen: Sequence[torch.Tensor] = ()  # in float32
    tell: Callable[[Policy, list[float]], None] | None = None  # gets the values of `seen`


def start(state: State, scale: torch.Tensor, by_torch: bool) -> HostState | DeviceState:
    """Returns a state for the device of the scale. `by_torch`: torch's operations unscale on every device."""
    home, by_torch = scale.device, by_torch or not is_readable(scale)
    if by_torch or _device.uses_torch(home):
        return PlainState(state, home, by_torch)
    return HostState(state) if _device.ordinal(home) is None else DeviceState(state, home)


class PlainState(HostState):
    """The state on the host, for a device with gradients that only torch's operations reach."""

    def __init__(self, state: State, home: torch.device, by_torch: bool) -> None:
        super().__init__(state)
        self.home, self._by_torch, self._known, self._values = home, by_torch, (), ()

    def copy(self) -> PlainState:
        return PlainState(self.read(), self.home, self._by_torch)

    def uses_torch(self, device: torch.device) -> bool:
        return self._by_torch or super().uses_torch(device)

    def adopt(self, policy: Policy, scale: torch.Tensor | float, good: torch.Tensor | int) -> None:
        if not isinstance(scale, torch.Tensor):
            super().adopt(policy, scale, good)
        elif is_readable(scale) and not _is_same(self._known, _versions(scale, good)):
            super().adopt(policy, *torch.stack((scale.reshape(()).float(), good.reshape(()).float())).tolist())
            self._know(scale, good)

    def publish(self, scale: torch.Tensor, good: torch.Tensor) -> None:
        super().publish(scale, good)
        self._published = self.words.factor.scale_f32
        self._know(scale, good)

    def _know(self, scale: torch.Tensor, good: torch.Tensor) -> None:
        """Remembers torch's two tensors, and the values that they have in float32."""
        self._known = _versions(scale, good)
        self._values = [self._published, _F32(min(self.words.good_steps, MOST)).value]

    def _see(self, policy: Policy, known: tuple, values: list[float]) -> None:
        """Adopts the values with which the gradients were divided; other code can write them without a trace."""
        if known is self._known and values != self._values:
            scale, good = self._values = values
            super().adopt(policy, scale, int(good))

    def update(self, policy: Policy, report: Report) -> None:
        super().update(policy, self.read_report(report))

    @staticmethod
    def read_report(report: Report) -> Report:
        if isinstance(report, LateReport):
            report._wait()
        return report

    def factor(self, rounds: bool) -> Factor:
        made = super().factor(rounds)
        if self._known:
            made.tensors, made.state = self._known[:2], self
        return made

    @staticmethod
    def factor_of(inverse: torch.Tensor) -> Factor:
        made = Factor()
        made.given = inverse
        return made

    @staticmethod
    def factor_on(factor: Factor, device: torch.device) -> Any:
        given = getattr(factor, "given", None)
        return HostState.factor_on(factor if given is None else HostState.factor_of(given), device)

    @staticmethod
    def inverse(factor: Factor) -> float | torch.Tensor:
        return getattr(factor, "given", factor.inverse)

    @staticmethod
    def overflowed(report: Report) -> bool | None:
        return None if isinstance(report, LateReport) and report._later is not None else report.overflow

    def found_inf(self, report: Report) -> torch.Tensor:
        known = getattr(report, "found_on_device", None)
        if known is not None:
            return known
        return torch.full((), float(report.found_inf != 0), dtype=torch.float32, device=self.home)

    def norm(self, report: Report) -> torch.Tensor:
        return super().norm(self.read_report(report)).to(self.home, non_blocking=True)

    def clip(self, report: Report, max_norm: float, factor: Factor | None = None) -> Factor | None:
        return super().clip(self.read_report(report), max_norm, factor)


def _versions(scale: torch.Tensor, good: torch.Tensor) -> tuple:
    if scale.is_inference() or good.is_inference():
        return ()
    return scale, good, scale._version, good._version


def _is_same(a: tuple, b: tuple) -> bool:
    return len(a) == len(b) == 4 and a[0] is b[0] and a[1] is b[1] and a[2:] == b[2:]


def is_readable(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has values: in FakeTensorMode and on the meta device it has none."""
    return not tensor.is_meta and type(tensor).__name__ != "FakeTensor"


def _inverse(factor: Any, memory: HostState | DeviceState, device: torch.device) -> Inverse:
    """Returns the inverse of a factor for gradients on a device."""
    if not isinstance(factor, Factor):
        return Inverse(DeviceState.inverse(factor).float().to(device).reshape(()), True)
    given, state = getattr(factor, "given", None), getattr(factor, "state", None)
    if given is not None:
        return Inverse(given.to(device).reshape(()), True)
    before = _BEFORE if factor.inverse > _LARGEST else 1.0
    if state is None or device != state.home:
        return Inverse(factor.inverse / before, factor.inverse > 1.0, before, factor.generation)
    known, seen = state._known, [each.reshape(()).float() if each.dim() else each.float() for each in factor.tensors]
    wide = seen[0].double() if widest(device) is torch.float64 else seen[0]  # by the tensor, as torch does
    inverse = (wide if before == 1.0 else wide * before).reciprocal().float()
    tell = lambda policy, values: state._see(policy, known, values)  # noqa: E731
    return Inverse(inverse, factor.inverse > 1.0, before, factor.generation, seen, tell)


@functools.cache
def widest(device: torch.device) -> torch.dtype:
    """Returns float64, or float32 on a device that has none."""
    try:
        torch.ones((), dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return torch.float32
    return torch.float64


def fits(tensor: torch.Tensor) -> bool:
    """Returns whether PlainGroup takes a tensor."""
    known = type(tensor) in _device.PLAIN or not is_readable(tensor)
    if not known or tensor.layout is not torch.strided or tensor.is_neg():
        return False
    return 0 not in tensor.stride() or all(s or n < 2 for s, n in zip(tensor.stride(), tensor.shape, strict=True))


def _are_dense(tensors: list[torch.Tensor], elements: list[int], dtypes: list[torch.dtype]) -> bool:
    try:
        if not all(map(torch.Tensor.is_contiguous, tensors)):
            return False
    except RuntimeError:  # it is sparse
        return False
    # A lazily negated tensor is complex, or the imaginary part of one: that is dense only if it has one element.
    can_be_negated = 1 in elements or any(dtype.is_complex for dtype in dtypes)
    return not (can_be_negated and any(map(torch.Tensor.is_neg, tensors)))


class PlainGroup:
    """The gradients on one device that torch's operations measure and multiply; else as GradientGroup."""

    def __init__(self, device: torch.device, tensors: list[torch.Tensor], indices: Sequence[int]) -> None:
        self.device, self.indices, self.tensors = device, indices, tensors
        by_kind = torch._C._group_tensors_by_device_and_dtype([tensors], False) if tensors else {}
        self._dtypes = sorted({dtype for _, dtype in by_kind}, key=str)
        self._elements = list(map(torch.Tensor.numel, tensors))
        dense = _are_dense(tensors, self._elements, self._dtypes)
        if any(at != device for at, _ in by_kind) or not (dense or all(map(fits, tensors))):
            raise ValueError("the gradients are of several devices, or not dense")
        self.dtypes = _F16 if torch.float16 in self._dtypes else 0
        _check_apart(tensors, dense, self._elements, self._dtypes)
        self.report: Any = None
        self._rows: ctypes.Array[Row] | None = None  # a report of each gradient
        self._is_released = False

    def _lists(self) -> list[tuple[torch.dtype, list[torch.Tensor]]]:
        if len(self._dtypes) == 1:
            return [(self._dtypes[0], self.tensors)]
        return [(dtype, [each for each in self.tensors if each.dtype == dtype]) for dtype in self._dtypes]

    @torch.no_grad()
    def run(
        self,
        writes: bool,
        factor: Any,
        memory: HostState | DeviceState,
        policy: Policy,
        want: int,
        losses: torch.Tensor | None = None,
    ) -> None:
        """Measures the gradients, and multiplies them if it `writes`; otherwise the host may read the results later."""
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(_CAPTURED)
        inverse = _inverse(factor, memory, self.device)
        self._want, self._policy, self._inverse, self._writes = want, policy, inverse, writes
        if inverse.before > 1.0 and writes:
            self._scale_by(inverse.before)
        elif inverse.before > 1.0:
            self.tensors = [_product(each, inverse.before) for each in self.tensors]
        factor = inverse.value
        if not isinstance(factor, torch.Tensor):
            factor = torch.full((), _F32(factor).value, dtype=torch.float32, device=self.device)
        found = torch.zeros_like(factor)
        small = [_underflows(each, factor) for each in self.tensors] if self._want & _UNDERFLOW else []
        one = None if writes and not inverse.can_grow else torch.ones_like(factor)
        for _, tensors in self._lists():
            _multiply(tensors, factor if writes else one, found)
            if inverse.can_grow:
                again = tensors if writes else [_product(each, factor) for each in tensors]
                _multiply(again, one, found)
        values = [found, *inverse.seen]
        if losses is not None:
            values.append((~torch.isfinite(losses)).any().float())
            if policy.bad_loss_rule:
                found = torch.maximum(found, values[-1])
        self._outer = len(values)
        if self._want & _NORM:
            values += self._measured(2, factor)
        if self._want & _AMAX:
            values += self._measured(math.inf, factor)
        values += [half for pair in small for count in pair for half in _exactly(count)]
        packed, count = torch.stack(values), len(values)
        self._losses = losses is not None

        def later() -> tuple[Report, bool]:
            return self._read(packed.tolist() if is_readable(packed) else [0.0] * count), True

        if writes or want & _NORM or not is_readable(packed):
            self.report = later()[0]
            if losses is None and not self.report.overflow:
                self.report.found_on_device = found
        else:
            self.report = LateReport(Report(), later)
            self.report.found_on_device = found

    def _measured(self, order: float, factor: torch.Tensor) -> list[torch.Tensor]:
        """Returns the norm of each gradient after unscaling, in the order of the gradients."""
        norms = _norms(self.tensors, order)
        return norms if self._writes else [norm * factor for norm in norms]

    def _read(self, values: list[float]) -> Report:
        """Makes the report of what a call found."""
        inverse, overflow = self._inverse, values[0] != 0
        if inverse.tell is not None and any(values):
            inverse.tell(self._policy, values[1 : 1 + len(inverse.seen)])
        report = Report(kind=_TENSORS, generation=inverse.generation)
        if overflow or self._want:
            self._measure(overflow, iter(values[self._outer :]))
        else:
            report.elements = sum(self._elements)
        self.tensors = None if self._is_released else self.tensors
        if not (overflow or self._want or self._losses):
            return report
        report.measured, report.overflow = self._want, overflow
        if self._losses:
            report.loss = Loss.NOT_FINITE if values[self._outer - 1] else Loss.FINITE
        made = Report.__new__(Report)
        c.gsc_report_merge(None, bytes(report) + bytes(self._rows or b""), _SHARDS, self._policy, made)
        made.kind = ReportKind.TENSORS
        return made

    def _blank_rows(self) -> ctypes.Array[Row]:
        """Returns a report of each gradient, in which only its elements are counted."""
        n, row = len(self._elements), Row(kind=_TENSORS, measured=self._want, generation=self._inverse.generation)
        rows = (Row * n).from_buffer_copy(bytes(row) * n)
        for each, count in zip(rows, self._elements, strict=True):
            each.elements = count
        return rows

    def _measure(self, overflow: bool, values: Iterator[float]) -> None:
        """Writes the reports of the gradients, and asks for more of those that are not finite."""
        self._rows, want = self._blank_rows(), self._want
        if want & _NORM:
            for row, norm in zip(self._rows, values, strict=False):
                row.sum_squares = norm * norm
        if want & _AMAX:
            for row, amax in zip(self._rows, values, strict=False):
                row.amax = amax
        if want & _UNDERFLOW:
            for row in self._rows:
                row.underflows_to_zero, row.underflows_to_subnormal = _whole(values), _whole(values)
        odd: Sequence[int] = [i for i, row in enumerate(self._rows) if not math.isfinite(row.sum_squares + row.amax)]
        if overflow and not want & (_NORM | _AMAX):
            odd = range(len(self._rows))
        if odd:
            self._describe(odd)

    @torch.no_grad()
    def _describe(self, odd: Iterable[int]) -> None:
        """Counts what is not finite; measures gradients again if float32 cannot hold their squares."""
        factor = None if self._writes else self._inverse.value
        tensors = {i: self.tensors[i] for i in odd if self._elements[i]}
        try:
            self._count(tensors, factor)
        except (RuntimeError, TypeError):  # the device lacks an operation, and an overflow is no time for that
            factor = factor.to(CPU) if isinstance(factor, torch.Tensor) else factor
            self._count({i: tensor.to(CPU) for i, tensor in tensors.items()}, factor)

    def _count(self, tensors: dict[int, torch.Tensor], factor: Any) -> None:
        if len(tensors) > 1:  # most of them are finite
            largest = torch.stack([each.float() for each in _norms(list(tensors.values()), math.inf)])
            largest = (largest if factor is None else largest * factor).tolist()
            measured = self._want & (_NORM | _AMAX)
            tensors = {
                i: t for (i, t), m in zip(tensors.items(), largest, strict=True) if measured or not math.isfinite(m)
            }
        if not tensors:
            return
        parts = []
        for tensor in tensors.values():
            tensor = tensor.detach() if factor is None else _product(tensor, factor)
            tensor = _flat(tensor)
            tensor = tensor if tensor.element_size() > 1 else tensor.float()
            is_bad, nans = ~torch.isfinite(tensor), torch.isnan(tensor).sum()
            finite = torch.where(is_bad, 0, tensor)
            finite = torch.view_as_real(finite) if finite.is_complex() else finite
            finite = finite if finite.dtype in (torch.float32, torch.float64) else finite.float()
            largest = torch.linalg.vector_norm(finite, math.inf)
            norm = torch.linalg.vector_norm(finite / largest.clamp_min(torch.finfo(torch.float32).tiny))
            counts = (nans, is_bad.sum(), is_bad.to(torch.uint8).argmax())
            parts += [half for count in counts for half in _exactly(count)] + [largest.float(), norm.float()]
        values = iter(torch.stack(parts).tolist())
        for i in tensors:
            row = self._rows[i]
            row.nan_count, bad, first, largest = _whole(values), _whole(values), _whole(values), next(values)
            row.amax, row.sum_squares = largest, (largest * next(values)) ** 2
            if bad:
                row.inf_count, row.first_element, row.overflow, row.found_inf = bad - row.nan_count, first, 1, 1.0
                row.first_tensor = row.last_tensor = self.indices[i]

    def multiply(self, factor: Any, memory: HostState | DeviceState) -> None:
        with torch.no_grad():
            self._scale_by(_inverse(factor, memory, self.device).value)

    def _scale_by(self, value: Any) -> None:
        for dtype, tensors in self._lists():
            if dtype.itemsize > 1:
                torch._foreach_mul_(tensors, value)
            else:
                for each in tensors:
                    each.copy_(each.float() * value)

    def release(self, read: bool) -> None:
        """Drops the gradients; if the report still has to be read, after that."""
        self._is_released = True
        if not isinstance(self.report, LateReport) or self.report._later is None:
            self.tensors = None

    def reports(self, home: torch.device) -> torch.Tensor:
        """Returns the report of each gradient as a row of bytes on `home`; its tensors count among all gradients."""
        bytes(self.report)  # waits
        if not self._elements:
            return torch.empty((0, SIZE), dtype=torch.uint8, device=home)
        return torch.frombuffer(self._rows or self._blank_rows(), dtype=torch.uint8).view(-1, SIZE).to(home)

    def counts(self) -> Iterable[tuple[int, int]]:
        """Yields the position of each gradient and how many of its elements are not finite."""
        bytes(self.report)  # waits
        for i, row in zip(self.indices, self._rows or (), strict=False):
            yield i, row.nan_count + row.inf_count


_apart: tuple | None = None  # addresses, counts and dtypes that were checked last


def _check_apart(tensors: list[torch.Tensor], dense: bool, elements: list[int], dtypes: list[torch.dtype]) -> None:
    """Refuses tensors that share memory, where the device tells addresses."""
    global _apart
    if not all(map(is_readable, tensors[:1])):
        return
    try:
        addresses = list(map(torch.Tensor.data_ptr, tensors))
    except RuntimeError:
        return
    known = (addresses, elements, dtypes) if dense and len(dtypes) == 1 else None
    if known is not None and known == _apart:
        return
    sizes = [each.nbytes for each in tensors] if dense else map(_extent, tensors)
    bases = map(_device.storage, tensors)
    order = sorted(place for place in zip(bases, addresses, sizes, range(len(tensors)), strict=True) if place[2])
    if 0 in (start for _, start, _, _ in order):
        return
    for (base, start, size, i), (other, after, _, j) in itertools.pairwise(order):
        if base == other and after < start + size:
            error = c.Error("shares memory with another gradient")
            error.index, error.other, error.why = max(i, j), min(i, j), error.args[0]
            raise error
    if known is not None:
        _apart = known


def _extent(tensor: torch.Tensor) -> int:
    """Returns the bytes from the first to behind the last element."""
    if not tensor.numel():
        return 0
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (span + 1) * tensor.element_size()


def _multiply(tensors: list[torch.Tensor], factor: torch.Tensor, found: torch.Tensor) -> None:
    """Multiplies tensors of one dtype in place, and sets `found` to 1 if an element was Inf or NaN."""
    try:
        divide(tensors, found, factor)
    except NotImplementedError:  # this dtype, or this device
        for tensor in tensors:
            wide = tensor if tensor.element_size() > 1 else tensor.float()
            found.copy_(torch.maximum(found, (~torch.isfinite(wide)).any().float()))
            tensor.copy_(wide * factor)


def _product(tensor: torch.Tensor, factor: Any) -> torch.Tensor:
    """Returns the product in the dtype of the tensor, computed in float32 or a wider type."""
    wide = tensor if tensor.dtype in (torch.float32, torch.float64) or tensor.is_complex() else tensor.float()
    return (wide * factor).to(tensor.dtype)


def _norms(tensors: list[torch.Tensor], order: float) -> list[torch.Tensor]:
    """Returns the norm of each tensor, of `order` 2 or inf, in float32."""
    made: dict[int, torch.Tensor] = {}
    for dtype in {each.dtype for each in tensors}:
        at = [i for i, each in enumerate(tensors) if each.dtype == dtype and each.numel()]
        own = [tensors[i] for i in at]
        if dtype.is_complex:
            own = [torch.view_as_real(each.resolve_conj()) for each in own]
        elif dtype.itemsize == 1:
            own = [each.float() for each in own]
        if own:
            wide = {"dtype": torch.float32} if dtype in (torch.float16, torch.bfloat16) else {}
            made.update(zip(at, torch._foreach_norm(own, order, **wide), strict=True))
    nothing = torch.zeros((), dtype=torch.float32, device=tensors[0].device) if len(made) < len(tensors) else None
    return [made[i].float() if i in made else nothing for i in range(len(tensors))]


def _underflows(tensor: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns how many elements become zero, and subnormal, if they are multiplied."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    made = _product(tensor, factor)
    tiny = torch.finfo(made.dtype).tiny
    before, after = (each.float().abs() if each.element_size() == 1 else each.abs() for each in (tensor, made))
    zeros = (after == 0) & (before != 0)
    return zeros.sum(), ((after != 0) & (after < tiny) & (before >= tiny)).sum()


def _whole(values: Iterator[float]) -> int:
    """Returns the next count, which _exactly has packed."""
    return int(next(values) * _HALF + next(values))


def _exactly(count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a count as two numbers that float32 has exactly."""
    return (count // _HALF).float(), (count % _HALF).float()


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of one dimension, in the order of the memory if that is dense, as the core counts."""
    if not tensor.is_contiguous():
        order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)
        permuted = tensor.permute(order)
        tensor = permuted if permuted.is_contiguous() else tensor
    return tensor.reshape(-1)
