# SPDX-License-Identifier: MIT
"""Groups the gradients of an optimizer: a list for one C call per device, and tensors that only torch can multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .. import _gradscaler as c
from .. import _report as base
from .._policy import Policy
from .._report import Report
from .._structs import ReportKind, Want
from . import _device, _ranks
from ._device import KIND, MEASURED, SIZE, flag, words
from ._memory import DeviceState, HostState
from ._plain import PlainGroup, fits, is_readable, widest
from ._torch import divide

_NORM = int(Want.NORM)
Memory = HostState | DeviceState


def gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    try:
        return [g for group in optimizer.param_groups for p in group["params"] if (g := p.grad) is not None]
    except AttributeError as error:
        if not hasattr(optimizer, "param_groups"):
            error.args = (f"{error.args[0]}: expected a torch.optim.Optimizer",)
            raise
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not isinstance(parameter, torch.Tensor):
                    kind = type(parameter).__name__
                    raise AssertionError(f"expected param to be torch.Tensor, got {kind}") from None
        raise


def with_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


class GradientGroup:
    """The gradients on one device, for one C call. `indices` are their positions among all gradients."""

    report: Any
    per_tensor: Any

    def __init__(self, device: torch.device, tensors: list[torch.Tensor], indices: Sequence[int]) -> None:
        self.device, self.indices, self.tensors, self.held = device, indices, tensors, _device.hold(tensors, device)
        self.dtypes, self.size = c.summary(self.held)

    def run(
        self, writes: bool, factor: Any, memory: Memory, policy: Policy, want: int, losses: torch.Tensor | None = None
    ) -> None:
        factor = memory.factor_on(factor, self.device)
        count, options = len(self.indices), {"policy": policy, "want": want}
        if losses is not None:
            options["loss"] = _device.hold([losses], self.device)
        if _device.ordinal(self.device) is None:
            self.report, self.per_tensor = Report.__new__(Report), base._take_buffer(count)
        else:
            room = torch.empty((count + 1) * SIZE, dtype=torch.uint8, device=self.device)
            self.report, self.per_tensor = room[:SIZE], room[SIZE:]
        options["per_tensor"] = self.per_tensor
        function = c.gsc_unscale if writes else c.gsc_measure
        function(_device.on(self.device, self.size, self.held, options), factor, self.held, options, self.report)

    def release(self, read: bool) -> None:
        """Drops the gradients; if their reports were read, returns the buffer for the next call."""
        self.held = self.tensors = None
        if read and isinstance(self.per_tensor, bytearray):
            base._spare_buffers.append(self.per_tensor)
            self.per_tensor = None

    def multiply(self, factor: Any, memory: Memory) -> None:
        factor = memory.factor_on(factor, self.device)
        c.gsc_unscale(_device.on(self.device, self.size, self.held, {}), factor, self.held, None, None)

    def reports(self, home: torch.device) -> torch.Tensor:
        """Returns the report of each gradient as a row of bytes on `home`; its tensors count among all gradients."""
        host = isinstance(self.per_tensor, bytearray)
        each = torch.frombuffer(self.per_tensor, dtype=torch.uint8) if host else self.per_tensor
        rows = each[: len(self.indices) * SIZE].view(-1, SIZE).to(home, copy=True)
        _set_tensors(rows, _device.index_tensor(self.indices, home))
        return rows

    def counts(self) -> Iterable[tuple[int, int]]:
        """Yields the position of each gradient and how many of its elements are not finite."""
        each = self.per_tensor if isinstance(self.per_tensor, bytearray) else bytearray(_device.data(self.per_tensor))
        return zip(self.indices, base._bad_per_array(each, len(self.indices)), strict=True)


def group_of(
    device: torch.device, tensors: list[torch.Tensor], indices: Sequence[int], memory: Memory
) -> GradientGroup | PlainGroup:
    """Makes a group; raises ValueError if a tensor is on another device, not dense, or shares memory."""
    return (PlainGroup if memory.uses_torch(device) else GradientGroup)(device, tensors, indices)


def _place(tensor: torch.Tensor) -> tuple:
    """Returns what only tensors on the same memory have in common."""
    try:
        address, base = (tensor.data_ptr(), _device.storage(tensor)) if is_readable(tensor) else (0, 0)
    except RuntimeError:  # the device does not tell
        address = base = 0
    return address or id(tensor), base, tensor.dtype, tensor.shape, tensor.stride()


def _set_tensors(rows: torch.Tensor, indices: Any) -> None:
    """Writes the positions of the gradients into the reports of those that are not finite."""
    counts = rows.view(torch.int64)
    bad = (counts[:, Report.nan_count.offset // 8] + counts[:, Report.inf_count.offset // 8]) != 0
    for field in Report.first_tensor, Report.last_tensor:
        counts[:, field.offset // 8] = bad * indices


class Gradients:
    """The gradients of an optimizer, sorted by device, mesh and kind of memory."""

    def __init__(self, groups: Iterable[GradientGroup | PlainGroup] = ()) -> None:
        self.groups = list(groups)
        # Tensors that are not dense: their positions, and dense copies.
        self.copies: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        self.others: list[tuple[int, torch.Tensor]] = []  # tensors that only torch can multiply, and their positions
        self.others_reports: list[tuple[int, torch.Tensor]] = []
        self.segments: dict[tuple[Any, bool], list[int]] = {}  # by (mesh or None, whether this rank's copy counts)

    @classmethod
    def of(
        cls,
        parameters: list[torch.Tensor],
        grads: list[torch.Tensor],
        name: Callable[[int], str],
        want: int,
        memory: Memory,
    ) -> Gradients:
        self = cls()
        by_device: dict[torch.device, tuple[list[torch.Tensor], list[int]]] = {}
        taken: set[tuple] = set()
        for i, grad in enumerate(grads):
            mesh, first, tensor = None, True, grad
            if _ranks.possible() and _ranks.is_spread((type(grad),)):
                (tensor, first), mesh = _ranks.part(grad, name(i)), grad.device_mesh
            if tensor.layout is torch.sparse_coo:
                if tensor.dtype is torch.float16 or want & _NORM:  # adds values with the same index, which can overflow
                    parameters[i].grad = tensor = tensor.coalesce()
                tensor = tensor._values()
            elif tensor.layout is torch.jagged:
                tensor = tensor.detach().values()
            tensor = self._dense(i, tensor, memory)
            if tensor is None:
                self.segments.setdefault((mesh, first), []).append(i)
                continue
            if tensor.numel():
                place = _place(tensor)
                if place in taken:
                    continue
                taken.add(place)
            self.segments.setdefault((mesh, first), []).append(i)
            tensors, indices = by_device.setdefault(tensor.device, ([], []))
            tensors.append(tensor)
            indices.append(i)
        for device, (tensors, indices) in by_device.items():
            try:
                self.groups.append(group_of(device, tensors, indices, memory))
            except c.Error as error:
                if error.index >= 0:
                    error.index = indices[error.index]
                    error.other = indices[error.other] if error.other >= 0 else -1
                raise
        return self

    def order(self) -> list[int]:
        """Returns the positions of the gradients, in the order of the groups, and then of the others."""
        return [i for group in self.groups for i in group.indices] + [i for i, _ in self.others_reports]

    def reports(self, home: torch.device) -> torch.Tensor:
        """Returns the report of each gradient, in their order, on `home`."""
        rows, order = [group.reports(home) for group in self.groups], self.order()
        rows += [report.view(1, SIZE).to(home) for _, report in self.others_reports]
        if not rows:
            return torch.empty((0, SIZE), dtype=torch.uint8, device=home)
        if len(rows) == 1:
            return rows[0]
        return torch.cat(rows)[_device.index_tensor(sorted(range(len(order)), key=order.__getitem__), home)]

    def counts(self) -> Iterable[tuple[int, int]]:
        """Yields the position of each gradient and how many of its elements are not finite."""
        for group in self.groups:
            yield from group.counts()
        for i, report in self.others_reports:
            read = Report.from_bytes(_device.data(report))
            yield i, read.nan_count + read.inf_count

    def multiply(self, factor: Any, memory: HostState | DeviceState) -> None:
        """Multiplies all gradients, also the tensors that only torch can multiply, by the inverse of a factor."""
        for group in self.groups:
            group.multiply(factor, memory)
        with torch.no_grad():
            for _, other in self.others:
                inverse = memory.inverse(factor)
                other.mul_(inverse.to(other.device) if isinstance(inverse, torch.Tensor) else inverse)

    def release(self, read: bool) -> None:
        """Drops the gradients, so that only their parameters keep them alive."""
        self.copies, self.others = [], []
        for group in self.groups:
            group.release(read)

    def _dense(self, index: int, tensor: torch.Tensor, memory: Memory) -> torch.Tensor | None:
        """Returns the tensor, or a dense copy for the call; None if only torch can multiply it."""
        if memory.uses_torch(tensor.device) and fits(tensor):
            return tensor
        if memory.uses_torch(tensor.device) and tensor.layout is torch.strided and tensor.is_neg():
            self.copies.append((index, tensor, tensor.detach().resolve_neg().resolve_conj()))
            return self.copies[-1][2]
        if type(tensor) not in _device.PLAIN or memory.uses_torch(tensor.device):
            self.others.append((index, tensor))
            return None
        try:
            _device.hold([tensor], tensor.device)
            return tensor
        except c.Error:
            pass
        try:
            copy = tensor.detach().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
            _device.hold([copy], copy.device)
        except (c.Error, RuntimeError):
            self.others.append((index, tensor))
            return None
        self.copies.append((index, tensor, copy))
        return copy

    @torch.no_grad()
    def refuse_shared(self, name: Callable[[int], str], writes: bool) -> None:
        """Raises if torch cannot multiply a tensor in place. Multiplies by 1, which changes nothing."""
        for i, tensor in self.others:
            try:
                bad = torch.zeros((), dtype=torch.float32, device=tensor.device)
                divide([tensor], bad, torch.ones_like(bad))
            except (RuntimeError, TypeError) as error:
                told = str(error).partition("\n")[0]
                raise RuntimeError(
                    f"the gradient of {name(i)} cannot be multiplied in place: give the parameter a plain tensor in "
                    f"memory of its own, such as parameter.grad.clone(). torch says of {type(tensor).__name__}: {told}"
                ) from None
        for i, tensor, _ in self.copies if writes else ():
            if torch._debug_has_internal_overlap(tensor) == 1:
                why = "several elements have the same memory. Give it its own: parameter.grad = parameter.grad.clone()"
                raise ValueError(f"the gradient of {name(i)} is expanded: {why}")

    def put_back(self) -> None:
        """Writes the dense copies back into their originals."""
        if self.copies:
            with torch.no_grad():
                for _, tensor, copy in self.copies:
                    tensor.copy_(copy)

    @torch.no_grad()
    def check_others(self, writes: bool, factor: Any, memory: HostState | DeviceState) -> None:
        """Reports on the tensors that only torch can multiply; if `writes`, multiplies them by the factor's inverse."""
        if not self.others:
            return
        inverse = torch.as_tensor(memory.inverse(factor), dtype=torch.float32, device=memory.table)
        scaled_by = 1.0 if writes else inverse
        inverse = inverse if writes else torch.ones_like(inverse)
        for i, tensor in self.others:
            bad = torch.zeros((), dtype=torch.float32, device=tensor.device)
            divide([tensor], bad, inverse.to(tensor.device))
            values = tensor.detach()
            finite = torch.where(torch.isfinite(values), values, 0).abs().to(widest(tensor.device)) * scaled_by
            report = torch.zeros(SIZE, dtype=torch.uint8, device=inverse.device)
            counts, doubles = report.view(torch.int64), report.view(torch.float64)
            counts[Report.elements.offset // 8] = values.numel()
            counts[Report.nan_count.offset // 8] = torch.isnan(values).sum().to(inverse.device)
            counts[Report.inf_count.offset // 8] = torch.isinf(values).sum().to(inverse.device)
            doubles[Report.sum_squares.offset // 8] = finite.square().sum().to(inverse.device)
            words(report)[MEASURED], words(report)[KIND] = _NORM, int(ReportKind.TENSORS)
            flag(report, (bad != 0).to(inverse.device))
            _set_tensors(report.view(1, SIZE), i)
            self.others_reports.append((i, report))
