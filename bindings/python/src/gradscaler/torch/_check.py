# SPDX-License-Identifier: MIT
"""One check of all gradients of an optimizer, and what the checks of a step found."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .. import _gradscaler as c
from .._policy import Policy
from .._report import Report
from .._structs import Status
from . import _memory, _place, _ranks
from ._grads import GradientGroup, Gradients, gradients, with_gradients
from ._names import Names, Owners, at, owners
from ._torch import OptState

_F16 = 1 << c.GSC_F16


class FoundInf(dict[torch.device, torch.Tensor]):
    """found_inf by device, as in torch's class: one tensor is kept, and any other device gets a copy of it."""

    def __missing__(self, device: torch.device) -> torch.Tensor:
        for tensor in self.values():
            return tensor.to(device)
        raise KeyError(device)


class Check:
    """What a check of the gradients of one optimizer found: a report where the scale is, and what reading it needs."""

    def __init__(self, report: Any, gradients: Gradients, memory: _memory.HostState | _memory.DeviceState) -> None:
        self.report, self.gradients, self._memory = report, gradients, memory
        self.found_inf = memory.found_inf(report)
        self._version = None if self.found_inf.is_inference() else self.found_inf._version
        self.scale: Any = memory.scale()  # on a device a tensor
        self.captured = memory.captures()  # in a graph, each replay of which finds anew
        self.verdict = FoundInf()  # which others may have written since
        self.norm: torch.Tensor | None = None  # before clipping
        self.clip: Any = None  # the factor of max_norm, if the gradients were multiplied by it
        self.alike = True  # whether other ranks have parameters of the same names
        self.seen: Report | None = None
        self.owners: Owners = []
        # Shares of the norm's square: of each gradient, and what is usual.
        self.shares: tuple[torch.Tensor, torch.Tensor] | None = None
        self.optimizer: Callable[[], Any] = lambda: None

    def keep(self, optimizer: torch.optim.Optimizer, guards: bool) -> None:
        """Keeps what reading the report needs of the optimizer; a report without an overflow is read at once."""
        self.optimizer = _weak(optimizer)
        overflow = self._memory.overflowed(self.report)
        if overflow is not False or guards:
            self.owners = owners(optimizer)  # before the last are gone, whose references are these
        if overflow is False:
            self.read(list)

    def rules(self, found_inf: list[torch.Tensor]) -> bool:
        """Whether this is found_inf, and nobody has written it since."""
        if len(found_inf) != 1 or found_inf[0] is not self.found_inf or self._version is None:
            return False
        return self.found_inf._version == self._version

    def read(self, names: Callable[[], list[str]]) -> Report:
        """The report with names, for which a device is waited for."""
        if self.seen is None or self.captured:
            report = self._memory.read_report(self.report)
            if report.overflow:
                known = dict(count for group in self.gradients.groups for count in group.counts())
                called = names()
                report._bad = {at(called, i): count for i, count in known.items() if count}
                report.names = called if self.alike or report.bad else ()
            report.scale = float(self.scale)
            self.seen = report
        return self.seen


class Checks:
    """The checks of the step that is under way, or else of the last, by the id of each optimizer."""

    def __init__(self) -> None:
        self.by_optimizer: dict[int, Check] = {}
        self.skipped: dict[int, bool | list[torch.Tensor]] = {}
        self.last: Check | None = None
        self.is_over = False  # whether the next check is of another step

    def begin(self) -> bool:
        """Whether a step begins: what was found in the one before it goes."""
        begins, self.is_over = self.is_over, False
        if begins:
            self.by_optimizer.clear()
            self.skipped.clear()
        return begins

    def add(self, optimizer: torch.optim.Optimizer, check: Check) -> None:
        self.last = self.by_optimizer[id(optimizer)] = check

    def of(self, optimizer: torch.optim.Optimizer) -> Check | None:
        for key, check in self.by_optimizer.items():
            known = check.optimizer()
            if known is optimizer or (known is None and key == id(optimizer)):
                return check
        return None

    def found_inf(self) -> list[torch.Tensor]:
        return [tensor for check in self.by_optimizer.values() for tensor in check.verdict.values()]

    def any_skipped(self) -> bool:
        """Whether a step() of an optimizer was skipped, for which fused ones are waited for."""
        for key, skipped in self.skipped.items():
            if not isinstance(skipped, bool):
                skipped = any(found.item() for found in skipped)
                if key not in self.by_optimizer or not self.by_optimizer[key].captured:
                    self.skipped[key] = skipped  # else each replay of a graph steps anew
            if skipped:
                return True
        return False

    def any_fused(self) -> bool:
        """Whether a step() left it to its optimizer to skip, and nobody has waited for it since."""
        return any(not isinstance(skipped, bool) for skipped in self.skipped.values())


@dataclasses.dataclass
class Call:
    """A check of all gradients of an optimizer, which are multiplied by the inverse of a factor if it writes."""

    optimizer: torch.optim.Optimizer
    torchs: dict[str, Any]  # what torch's class keeps of this optimizer
    writes: bool
    allow_fp16: bool
    want: int
    policy: Policy
    memory: _memory.HostState | _memory.DeviceState
    factor: Any
    names: Names

    def run(self, ranks: Any, sharded: bool) -> tuple[Check, bool]:
        """What it found, and whether there were any gradients, here or on other ranks of a group of torch's."""
        optimizer, home, meshes = self.optimizer, self.memory.home, ()
        grads = gradients(optimizer)
        if _ranks.possible():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if _ranks.is_spread(c.kinds(parameters) | c.kinds(grads)):
                meshes = _ranks.meshes(parameters + grads)
        if meshes or ranks is not None:
            return self._agreed(grads, meshes, ranks, sharded), True
        if c.kinds(grads) <= _place.PLAIN:
            try:
                group = GradientGroup(home, grads, range(len(grads)))
            except c.Error:
                group = None  # some are elsewhere, or not dense
            if group is not None:
                self._run([group])
                return Check(group.report, Gradients([group]), self.memory), bool(grads)
        found = sorted_gradients(optimizer, grads, self.want, self.names)
        self._run(found.groups)
        others = found.others_reports(self.writes, self.factor, self.memory)
        if len(found.groups) == 1 and found.groups[0].device == home and not others:
            return Check(found.groups[0].report, found, self.memory), True
        report = _place.merged(torch.cat([found.reports(home).view(-1), *others]), self.policy)
        return Check(self.memory.report(report), found, self.memory), True

    def _run(self, groups: Iterable[GradientGroup]) -> None:
        for group in groups:
            if group.dtypes & _F16 and not self.allow_fp16:
                self._refuse_fp16()
        for group in groups:
            try:
                group.run(self.writes, self.memory.lent(self.factor, group.device), self.policy, self.want)
            except c.Error as error:
                _explain(error, self.optimizer, self.names, group.indices)
                raise
            if self.writes and self.torchs["stage"] is OptState.READY:
                self.torchs["stage"] = OptState.UNSCALED

    def _refuse_fp16(self) -> None:
        index = next(i for i, grad in enumerate(gradients(self.optimizer)) if grad.dtype == torch.float16)
        raise ValueError(
            f"Attempting to unscale FP16 gradients. That of {self.names.of(owners(self.optimizer))[index]} is in "
            "float16: keep the parameters in float32 and run the model under torch.autocast, or pass allow_fp16=True "
            "to GradScaler, though in place most of what scaling saved is lost again."
        )

    def _agreed(self, grads: list[torch.Tensor], meshes: list, ranks: Any, sharded: bool) -> Check:
        """As one of several ranks: also one whose own part was refused tells the others, so that none waits for it."""
        memory, home, found, failed, parts = self.memory, self.memory.home, None, None, {}
        try:
            found = sorted_gradients(self.optimizer, grads, self.want, self.names)
            self._run(found.groups)
            others = found.others_reports(self.writes, self.factor, memory)
            each = found.reports(home)
            at = {i: place for place, i in enumerate(sorted(found.order()))}
            parts = {
                key: _place.merged(each[_place.places([at[i] for i in indices], home)])
                for key, indices in found.segments.items()
            }
            if others:
                plain = [parts.pop((None, True))] if (None, True) in parts else []
                parts[None, True] = _place.merged(torch.cat([*plain, *others]))
        except Exception as error:
            failed = error
            status = getattr(error, "status", None) or Status.ERROR_VALUE
            bad = torch.frombuffer(Report.failed(status), dtype=torch.uint8).to(home)
            parts = {(None, False): bad}
        report = _ranks.agreed(parts, meshes, ranks, sharded, self.policy, memory.words, home)
        if failed is not None:
            raise failed
        check = Check(memory.report(report), found, memory)
        check.alike = not sharded
        return check


def sorted_gradients(optimizer: torch.optim.Optimizer, grads: list[torch.Tensor], want: int, names: Names) -> Gradients:
    try:
        return Gradients.of(with_gradients(optimizer), grads, lambda i: names.of(owners(optimizer))[i], want)
    except c.Error as error:
        _explain(error, optimizer, names, range(2**31))
        raise


def _explain(error: c.Error, optimizer: torch.optim.Optimizer, known: Names, places: Sequence[int]) -> None:
    """Names the parameters whose gradients were refused; `places` are those of the list that the error counts in."""
    if error.index < 0:
        return
    names, why = known.of(owners(optimizer)), error.why
    if error.other >= 0:
        other = at(names, places[error.other])
        why = f"shares memory with that of {other}: it would be unscaled twice; give each its own"
    error.args = (f"the gradient of {at(names, places[error.index])} {why}",)


def _weak(optimizer: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(optimizer)
    except TypeError:  # a wrapper with slots
        return lambda: None
