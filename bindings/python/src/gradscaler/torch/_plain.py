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
from . import _device
from ._device import CPU, SIZE
from ._memory import DeviceState, HostState
from ._torch import divide

_F16 = 1 << c.GSC_F16
_NORM, _AMAX, _UNDERFLOW = map(int, (Want.NORM, Want.AMAX, Want.UNDERFLOW))
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
    seen: tuple[torch.Tensor, ...] = ()
    tell: Callable[[Policy, Sequence[float]], None] | None = None  # gets the values of `seen`


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
        self.home, self._by_torch, self._known = home, by_torch, ()

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
        self._known = _versions(scale, good)

    def _see(self, policy: Policy, known: tuple, values: Sequence[float]) -> None:
        """Adopts the values with which the gradients were divided; other code can write them without a trace."""
        if known is self._known:
            scale, good = values
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
        if isinstance(report, LateReport):
            return report.found_on_device
        return torch.full((), float(report.found_inf != 0), dtype=torch.float32, device=self.home)

    def norm(self, report: Report) -> torch.Tensor:
        return super().norm(self.read_report(report)).to(self.home, non_blocking=True)

    def clip(self, report: Report, max_norm: float) -> Factor | None:
        return super().clip(self.read_report(report), max_norm)


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
        return Inverse(DeviceState.inverse(factor).float().to(device), True)
    given, state = getattr(factor, "given", None), getattr(factor, "state", None)
    if given is not None:
        return Inverse(given.to(device), True)
    before = _BEFORE if factor.inverse > _LARGEST else 1.0
    if state is None or device != state.home:
        return Inverse(factor.inverse / before, factor.inverse > 1.0, before, factor.generation)
    scale, known = factor.tensors[0], state._known  # by the tensor, as torch does
    wide = scale.to(widest(device))
    inverse = (wide if before == 1.0 else wide * before).reciprocal().float()
    tell = lambda policy, values: state._see(policy, known, values)  # noqa: E731
    return Inverse(inverse.reshape(()), factor.inverse > 1.0, before, factor.generation, factor.tensors, tell)


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


def _are_dense(tensors: list[torch.Tensor]) -> bool:
    try:
        return all(map(torch.Tensor.is_contiguous, tensors)) and not any(map(torch.Tensor.is_neg, tensors))
    except RuntimeError:  # it is sparse
        return False


class Found:
    """The findings of a call about one tensor."""

    __slots__ = ("amax", "first", "infs", "nans", "square", "subnormals", "zeros")

    def __init__(self) -> None:
        self.nans = self.infs = self.first = self.zeros = self.subnormals = 0
        self.square = self.amax = 0.0


class PlainGroup:
    """The gradients on one device that torch's operations measure and multiply; else as GradientGroup."""

    def __init__(self, device: torch.device, tensors: list[torch.Tensor], indices: Sequence[int]) -> None:
        self.device, self.indices, self.tensors = device, indices, tensors
        by_kind = torch._C._group_tensors_by_device_and_dtype([tensors], False) if tensors else {}
        dense = _are_dense(tensors)
        if {kind[0] for kind in by_kind} - {device} or not (dense or all(map(fits, tensors))):
            raise ValueError("the gradients are of several devices, or not dense")
        self._dtypes = sorted({kind[1] for kind in by_kind}, key=str)
        self.dtypes = _F16 if torch.float16 in self._dtypes else 0
        self._found: list[Found] | None = None
        self._is_released = False
        self._elements = list(map(torch.Tensor.numel, tensors))
        _check_apart(tensors, dense, self._elements, self._dtypes)
        self.report: Any = None

    def _lists(self) -> Iterator[tuple[torch.dtype, list[torch.Tensor]]]:
        for dtype in self._dtypes:
            alone = len(self._dtypes) == 1
            yield dtype, self.tensors if alone else [each for each in self.tensors if each.dtype == dtype]

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
        found = torch.zeros((), dtype=torch.float32, device=self.device)
        factor = inverse.value
        if not isinstance(factor, torch.Tensor):
            factor = torch.full((), _F32(factor).value, dtype=torch.float32, device=self.device)
        small = [_underflows(each, factor) for each in self.tensors] if self._want & _UNDERFLOW else []
        one = None if writes and not inverse.can_grow else torch.ones_like(factor)
        for _, tensors in self._lists():
            _multiply(tensors, factor if writes else one, found)
            if inverse.can_grow:
                again = tensors if writes else [_product(each, factor) for each in tensors]
                _multiply(again, one, found)
        values = [found, *(each.float() for each in inverse.seen)]
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
        else:
            self.report = LateReport(Report(), later)
            self.report.found_on_device = found

    def _measured(self, order: float, factor: torch.Tensor) -> list[torch.Tensor]:
        """Returns the norm of each gradient after unscaling, in the order of the gradients."""
        norms = _norms(self.tensors, order)
        return norms if self._writes else [norm * factor for norm in norms]

    def _read(self, values: list[float]) -> Report:
        """Makes the report of what a call found, and asks for more of gradients that are not finite."""
        n, want, inverse = len(self.tensors), self._want, self._inverse
        if inverse.tell is not None and any(values):
            inverse.tell(self._policy, values[1 : 1 + len(inverse.seen)])
        overflow, rest = values[0] != 0, iter(values[self._outer :])
        report = Report(
            kind=ReportKind.TENSORS, measured=want, generation=inverse.generation, elements=sum(self._elements)
        )
        if self._losses:
            report.loss = Loss.NOT_FINITE if values[self._outer - 1] else Loss.FINITE
        if overflow or want:
            self._found = [Found() for _ in self.tensors]
            if want & _NORM:
                for each in self._found:
                    each.square = next(rest) ** 2
            if want & _AMAX:
                for each in self._found:
                    each.amax = next(rest)
            if want & _UNDERFLOW:
                for each in self._found:
                    each.zeros = int(next(rest) * _HALF + next(rest))
                    each.subnormals = int(next(rest) * _HALF + next(rest))
            odd = [i for i, each in enumerate(self._found) if not math.isfinite(each.square + each.amax)]
            if overflow and not want & (_NORM | _AMAX):
                odd = range(n)
            if odd:
                self._describe(odd)
            bad = [i for i, each in enumerate(self._found) if each.nans + each.infs]
            if bad:
                report.first_tensor, report.last_tensor = bad[0], bad[-1]
                report.first_element = self._found[bad[0]].first
            report.nan_count = sum(each.nans for each in self._found)
            report.inf_count = sum(each.infs for each in self._found)
            report.sum_squares = math.fsum(each.square for each in self._found)
            report.amax = max((each.amax for each in self._found), default=0.0)
            report.underflows_to_zero = sum(each.zeros for each in self._found)
            report.underflows_to_subnormal = sum(each.subnormals for each in self._found)
            overflow = overflow or bool(bad)
        report.overflow = overflow
        self.tensors = None if self._is_released else self.tensors
        if not (overflow or want or self._losses):
            return report
        made = Report.__new__(Report)
        c.gsc_report_merge(None, bytes(report), int(MergeKind.SHARDS), self._policy, made)
        made.kind = ReportKind.TENSORS
        return made

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
            found = self._found[i]
            found.nans, bad, found.first = (int(next(values) * _HALF + next(values)) for _ in range(3))
            found.infs, largest = bad - found.nans, next(values)
            found.first = found.first if bad else 0
            found.amax, found.square = largest, (largest * next(values)) ** 2

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
        rows = torch.zeros((len(self.indices), SIZE), dtype=torch.uint8, device=CPU)
        whole, doubles, words = rows.view(torch.int64), rows.view(torch.float64), rows.view(torch.int32)
        words[:, _device.MEASURED], words[:, _device.KIND] = self._want, int(ReportKind.TENSORS)
        _put(whole, Report.generation, [self._inverse.generation] * len(rows))
        _put(whole, Report.elements, self._elements)
        for i, each in enumerate(self._found or ()):
            for field, value in (
                (Report.nan_count, each.nans),
                (Report.inf_count, each.infs),
                (Report.underflows_to_zero, each.zeros),
                (Report.underflows_to_subnormal, each.subnormals),
            ):
                if value:
                    whole[i, field.offset // 8] = value
            if each.nans + each.infs:
                whole[i, Report.first_element.offset // 8] = each.first
                whole[i, Report.first_tensor.offset // 8] = whole[i, Report.last_tensor.offset // 8] = self.indices[i]
                _device.flag(rows[i], torch.tensor(True, device=CPU))
        if self._found is not None:
            _put(doubles, Report.sum_squares, [each.square for each in self._found])
            _put(doubles, Report.amax, [each.amax for each in self._found])
        return rows.to(home)

    def counts(self) -> Iterable[tuple[int, int]]:
        """Yields the position of each gradient and how many of its elements are not finite."""
        bytes(self.report)  # waits
        for i, each in zip(self.indices, self._found or (), strict=False):
            yield i, each.nans + each.infs


def _put(table: torch.Tensor, field: Any, values: list) -> None:
    table[:, field.offset // 8] = torch.tensor(values, dtype=table.dtype, device=CPU)


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
    order = sorted(place for place in zip(addresses, sizes, range(len(tensors)), strict=True) if place[1])
    if order and order[0][0] == 0:
        return
    for (start, size, i), (after, _, j) in itertools.pairwise(order):
        if after < start + size:
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
