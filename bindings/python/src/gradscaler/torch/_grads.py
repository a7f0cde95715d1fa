# SPDX-License-Identifier: MIT
"""The gradients of an optimizer as lists of C calls: one of each device, and what only torch itself can multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .. import _gradscaler as c
from .. import _report as base
from .._policy import Policy
from .._report import Report
from .._structs import ReportKind, Want
from . import _place, _ranks
from ._memory import DeviceState, HostState
from ._place import KIND, MEASURED, SIZE, flag, words
from ._torch import divide

_NORM = int(Want.NORM)


def gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    try:
        return [g for group in optimizer.param_groups for p in group["params"] if (g := p.grad) is not None]
    except AttributeError as error:
        if not hasattr(optimizer, "param_groups"):
            error.args = (f"{error.args[0]}: expected a torch.optim.Optimizer, whose gradients are to be unscaled",)
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
    """The gradients on one device: one C call. `indices` are their positions among all."""

    report: Any
    per_tensor: Any

    def __init__(self, device: torch.device, tensors: list[torch.Tensor], indices: Sequence[int]) -> None:
        self.device, self.indices, self.tensors, self.held = device, indices, tensors, _place.hold(tensors, device)
        self.dtypes, self.size = c.summary(self.held)

    def run(self, writes: bool, factor: Any, policy: Policy, want: int) -> None:
        count, options = len(self.indices), {"policy": policy, "want": want}
        if _place.ordinal(self.device) is None:
            self.report, self.per_tensor = Report.__new__(Report), base._borrow(count)
        else:
            room = torch.empty((count + 1) * SIZE, dtype=torch.uint8, device=self.device)
            self.report, self.per_tensor = room[:SIZE], room[SIZE:]
        options["per_tensor"] = self.per_tensor
        function = c.gsc_unscale if writes else c.gsc_measure
        function(_place.on(self.device, self.size, self.held, options), factor, self.held, options, self.report)

    def release(self, read: bool) -> None:
        """Lets go of the gradients and, where it was read, of the reports of each, which the next call takes."""
        self.held = self.tensors = None
        if read and isinstance(self.per_tensor, bytearray):
            base._spare.append(self.per_tensor)
            self.per_tensor = None

    def multiply(self, factor: Any) -> None:
        c.gsc_unscale(_place.on(self.device, self.size, self.held, {}), factor, self.held, None, None)

    def reports(self, home: torch.device) -> torch.Tensor:
        """Those of each gradient, a row of bytes each, on another device; the place of a bad element is among all."""
        host = isinstance(self.per_tensor, bytearray)
        each = torch.frombuffer(self.per_tensor, dtype=torch.uint8) if host else self.per_tensor
        rows = each[: len(self.indices) * SIZE].view(-1, SIZE).to(home, copy=True)
        words = rows.view(torch.int64)
        bad = (words[:, Report.nan_count.offset // 8] + words[:, Report.inf_count.offset // 8]) != 0
        words[:, Report.first_tensor.offset // 8] = bad * _place.places(self.indices, home)
        return rows

    def counts(self) -> Iterable[tuple[int, int]]:
        """How many elements of which gradient are not finite."""
        each = self.per_tensor if isinstance(self.per_tensor, bytearray) else bytearray(_place.data(self.per_tensor))
        return zip(self.indices, base._overflows(each, len(self.indices)), strict=True)


class Gradients:
    """The gradients of an optimizer, each where its device, its mesh and its memory put it."""

    def __init__(self, groups: Iterable[GradientGroup] = ()) -> None:
        self.groups = list(groups)
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # of what is not dense, and its dense copy
        self.others: list[torch.Tensor] = []  # what only torch can multiply
        self.segments: dict[tuple[Any, bool], list[int]] = {}  # of (mesh or None, whether it counts)

    @classmethod
    def of(
        cls, parameters: list[torch.Tensor], grads: list[torch.Tensor], name: Callable[[int], str], want: int
    ) -> Gradients:
        self = cls()
        places: dict[torch.device, tuple[list[torch.Tensor], list[int]]] = {}
        taken: set[tuple] = set()
        for i, grad in enumerate(grads):
            mesh, first, tensor = None, True, grad
            if _ranks.possible() and _ranks.is_spread((type(grad),)):
                (tensor, first), mesh = _ranks.part(grad, name(i)), grad.device_mesh
            if tensor.layout is torch.sparse_coo:
                if tensor.dtype is torch.float16 or want & _NORM:  # of sums at one index: they may overflow
                    parameters[i].grad = tensor = tensor.coalesce()
                tensor = tensor._values()
            tensor = self._dense(tensor)
            if tensor is None:
                continue
            if tensor.numel():
                memory = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
                if memory in taken:
                    continue
                taken.add(memory)
            self.segments.setdefault((mesh, first), []).append(i)
            tensors, indices = places.setdefault(tensor.device, ([], []))
            tensors.append(tensor)
            indices.append(i)
        for device, (tensors, indices) in places.items():
            try:
                self.groups.append(GradientGroup(device, tensors, indices))
            except c.Error as error:
                if error.index >= 0:
                    error.index = indices[error.index]
                    error.other = indices[error.other] if error.other >= 0 else -1
                raise
        return self

    def order(self) -> list[int]:
        """The positions of the gradients, in the order of the groups."""
        return [i for group in self.groups for i in group.indices]

    def reports(self, home: torch.device) -> torch.Tensor:
        """The reports of each gradient in their order, on another device."""
        if not self.groups:
            return torch.empty((0, SIZE), dtype=torch.uint8, device=home)
        rows, order = [group.reports(home) for group in self.groups], self.order()
        if len(rows) == 1:
            return rows[0]
        return torch.cat(rows)[_place.places(sorted(range(len(order)), key=order.__getitem__), home)]

    def multiply(self, factor: Any, memory: HostState | DeviceState) -> None:
        """By the inverse of a factor, what is in memory of calls and what only torch can multiply."""
        for group in self.groups:
            group.multiply(memory.lent(factor, group.device))
        with torch.no_grad():
            for other in self.others:
                inverse = memory.inverse(factor)
                other.mul_(inverse.to(other.device) if isinstance(inverse, torch.Tensor) else inverse)

    def release(self, read: bool) -> None:
        """Lets go of the gradients, which live as long as their parameters have them."""
        self.copies, self.others = [], []
        for group in self.groups:
            group.release(read)

    def _dense(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor itself, or a copy that a call can take; None if torch has to multiply it."""
        if type(tensor) not in _place.PLAIN or tensor.device.type not in ("cpu", "cuda"):
            self.others.append(tensor)
            return None
        try:
            _place.hold([tensor], tensor.device)
            return tensor
        except c.Error:
            pass
        try:
            copy = tensor.detach().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
            _place.hold([copy], copy.device)
        except (c.Error, RuntimeError):
            self.others.append(tensor)
            return None
        self.copies.append((tensor, copy))
        return copy

    @torch.no_grad()
    def put_back(self) -> None:
        """What calls made of the copies, into what they are copies of."""
        for tensor, copy in self.copies:
            tensor.copy_(copy)

    @torch.no_grad()
    def others_reports(self, writes: bool, factor: Any, memory: HostState | DeviceState) -> list[torch.Tensor]:
        """Multiplies the others, if it writes, by the factor's inverse, as torch's class does, and reports on them."""
        if not self.others:
            return []
        inverse = torch.as_tensor(memory.inverse(factor), dtype=torch.float32, device=memory.home)
        scaled_by = 1.0 if writes else inverse
        inverse = inverse if writes else torch.ones_like(inverse)
        found = []
        for tensor in self.others:
            bad = torch.zeros((), dtype=torch.float32, device=tensor.device)
            divide([tensor], bad, inverse.to(tensor.device))
            values = tensor.detach()
            finite = torch.where(torch.isfinite(values), values, 0).abs().double() * scaled_by
            report = torch.zeros(SIZE, dtype=torch.uint8, device=inverse.device)
            counts, doubles = report.view(torch.int64), report.view(torch.float64)
            counts[Report.elements.offset // 8] = values.numel()
            counts[Report.nan_count.offset // 8] = torch.isnan(values).sum().to(inverse.device)
            counts[Report.inf_count.offset // 8] = torch.isinf(values).sum().to(inverse.device)
            doubles[Report.sum_squares.offset // 8] = finite.square().sum().to(inverse.device)
            words(report)[MEASURED], words(report)[KIND] = _NORM, int(ReportKind.TENSORS)
            flag(report, (bad != 0).to(inverse.device))
            found.append(report)
        return found
