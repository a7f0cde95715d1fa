# SPDX-License-Identifier: MIT
"""Checks all gradients of an optimizer in one call, and keeps the checks of a step."""

from __future__ import annotations

import array
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .. import _gradscaler as c
from .._policy import Policy
from .._report import Report
from .._structs import Evidence, ReportKind, Status
from . import _device, _memory, _ranks
from ._grads import GradientGroup, Gradients, gradients, group_of, with_gradients
from ._losses import StepLosses, is_bad
from ._names import Members, Names, at, distinct, weak
from ._torch import OptState, eager

_F16 = 1 << c.GSC_F16
_NOTHING = Report(kind=ReportKind.TENSORS)


class Joint:
    """Several optimizers as one, for a check of all their gradients. It keeps none of them alive."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._members = [weak(optimizer) for optimizer in optimizers]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [optimizer for member in self._members if (optimizer := member()) is not None]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]


def members(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Returns the optimizers that a check is of."""
    return optimizer.optimizers if isinstance(optimizer, Joint) else [optimizer]


class FoundInf(dict[torch.device, torch.Tensor]):
    """found_inf by device, as in torch's class: it keeps one tensor and copies it to other devices on demand."""

    def __missing__(self, device: torch.device) -> torch.Tensor:
        for tensor in self.values():
            return tensor.to(device)
        raise KeyError(device)


class Check:
    """A finished check of one optimizer's gradients: the report, on the device of the scale, and how to read it."""

    def __init__(self, report: Any, gradients: Gradients, memory: _memory.HostState | _memory.DeviceState) -> None:
        self.report, self.gradients, self._memory = report, gradients, memory
        self.found_inf = memory.found_inf(report)
        self._version = None if self.found_inf.is_inference() else self.found_inf._version
        self.scale: Any = memory.scale()  # on a device a tensor; if the gradients are late, the scale of their loss
        self.captured = memory.captures()  # in a CUDA graph: each replay makes a new report
        self.found_inf_by_device = FoundInf()  # other code can write to it
        self.norm: torch.Tensor | None = None  # before clipping
        self.clip: Any = None  # the factor of max_norm, if the gradients were multiplied by it
        self.alike = True  # whether other ranks have parameters of the same names
        self.host_report: Report | None = None  # `report`, read from the device
        self.members: Members | None = None  # the parameters of the gradients
        self.losses: StepLosses | None = None  # the losses of the step
        # Each gradient's share of the squared norm: now, and usually.
        self.shares: tuple[torch.Tensor, torch.Tensor] | None = None
        self.optimizer: Callable[[], Any] = lambda: None

    def keep(self, optimizer: torch.optim.Optimizer, losses: StepLosses, names: Names, guards: bool) -> None:
        """Keeps what `read` needs of the optimizer; on the host reads the report."""
        self.optimizer, self.losses = weak(optimizer), losses
        overflow = self._memory.overflowed(self.report)
        if overflow is not False or guards:
            self.members = Members(optimizer)
        if overflow is not None:
            self.read(names)

    def is_unchanged(self, found_inf: list[torch.Tensor]) -> bool:
        """Returns whether `found_inf` is this check's tensor and was not written since."""
        if len(found_inf) != 1 or found_inf[0] is not self.found_inf or self._version is None:
            return False
        return self.found_inf._version == self._version

    def read(self, names: Names) -> Report:
        """Waits for the device and returns the report with names."""
        if self.host_report is None or self.captured:
            report = self._memory.read_report(self.report)
            if report.overflow:
                Overflow({"": self}, names).describe(report)
            report.scale = float(self.scale)
            self.host_report = report
        return self.host_report

    def is_capturing(self) -> bool:
        return self._memory.captures()

    def rows(self, count: int) -> bytes:
        """Returns the reports of `count` gradients."""
        rows = torch.frombuffer(bytearray(bytes(_NOTHING) * count), dtype=torch.uint8).view(count, _device.SIZE)
        rows[sorted(self.gradients.order())] = self.gradients.reports(_device.CPU)
        return _device.data(rows)


class Checks:
    """The checks of the current step, or between steps of the last one, by the id of the optimizer."""

    def __init__(self) -> None:
        self.by_optimizer: dict[int, Check] = {}
        self.skipped: dict[int, bool | list[torch.Tensor]] = {}
        self.is_over = False  # the next check begins another step
        self.are_stale = False  # whether the backward pass began with the bad gradients of a skipped step

    def begin(self) -> bool:
        """Returns whether a step begins; then drops the checks of the step before."""
        begins, self.is_over = self.is_over, False
        if begins:
            self.by_optimizer.clear()
            self.skipped.clear()
        return begins

    def watch(self, scaled: Any) -> None:
        """After a skipped step, looks for bad gradients when the backward pass of the next loss begins."""
        self.are_stale = False
        first = scaled[0] if isinstance(scaled, list | tuple) and scaled else scaled
        if True in self.skipped.values() and getattr(first, "requires_grad", False):
            first.register_hook(self._find_stale)

    @eager
    def _find_stale(self, _: torch.Tensor) -> None:
        checks = [check for check in self.by_optimizer.values() if not check.is_capturing()]
        optimizers = [optimizer for check in checks if (optimizer := check.optimizer()) is not None]
        self.are_stale = any(is_bad(gradient) for optimizer in optimizers for gradient in gradients(optimizer))

    def add(self, optimizer: torch.optim.Optimizer, check: Check) -> None:
        self.by_optimizer[id(optimizer)] = check

    def of(self, optimizer: torch.optim.Optimizer) -> Check | None:
        for key, check in self.by_optimizer.items():
            known = check.optimizer()
            if any(each is optimizer for each in members(known)) or (known is None and key == id(optimizer)):
                return check
        return None

    def found_inf(self) -> list[torch.Tensor]:
        return [tensor for check in self.by_optimizer.values() for tensor in check.found_inf_by_device.values()]

    def any_skipped(self) -> bool:
        """Returns whether a step() was skipped; waits for fused optimizers."""
        for key, skipped in self.skipped.items():
            if not isinstance(skipped, bool):
                skipped = any(found.item() for found in skipped)
                if not any(check.captured for check in self.by_optimizer.values()):
                    self.skipped[key] = skipped  # each replay of a CUDA graph steps again
            if skipped:
                return True
        return False

    def decisions(self, optimizer: torch.optim.Optimizer | None) -> list[bool | torch.Tensor]:
        """Returns what each step(), or one optimizer's, decided: not 0 if it was skipped. Tensors are of fused ones."""
        found = self.skipped.values() if optimizer is None else [self.skipped.get(id(optimizer), False)]
        return [one for each in found for one in ([each] if isinstance(each, bool) else each)]

    def are_empty(self) -> bool:
        """Returns whether this rank has no gradient, and no fused optimizer, which would not be waited for."""
        return not self.any_fused() and not any(check.gradients.order() for check in self.by_optimizer.values())

    def any_fused(self) -> bool:
        """Returns whether a fused optimizer decided about its step and nobody has waited for the decision."""
        return any(not isinstance(skipped, bool) for skipped in self.skipped.values())


@dataclasses.dataclass
class Call:
    """The arguments of a check of an optimizer. If `writes`, the gradients are multiplied by the factor's inverse.

    If it also `folds`, the caller multiplies them after the check, by the factor and a clip in one pass.
    """

    optimizer: torch.optim.Optimizer
    torchs: dict[str, Any]  # torch's entry in _per_optimizer_states
    writes: bool
    allow_fp16: bool
    want: int
    policy: Policy
    memory: _memory.HostState | _memory.DeviceState
    factor: Any
    names: Names
    losses: torch.Tensor | None = None  # of this step, on the device of the memory
    folds: bool = False

    def run(self, ranks: Any, sharded: bool) -> tuple[Check, bool]:
        """Returns the check, and whether this rank or another rank of its group has gradients."""
        optimizer, memory, meshes = self.optimizer, self.memory, ()
        grads = gradients(optimizer)
        if _ranks.possible():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if _ranks.is_spread(c.kinds(parameters) | c.kinds(grads)):
                meshes = _ranks.meshes(parameters + grads)
        if self.losses is not None and not _ranks.reach_all(ranks, meshes):
            self.losses = None  # ranks that do not learn of a bad loss would take it as an overflow
        if meshes or ranks is not None:
            return self._agreed(grads, meshes, ranks, sharded), True
        if c.kinds(grads) <= _device.PLAIN:
            try:
                group = group_of(memory.home, grads, range(len(grads)), memory)
            except ValueError:
                group = None  # some are on another device, or not dense
            if group is not None:
                self._run([group])
                return Check(group.report, Gradients([group]), self.memory), bool(grads)
        found = sorted_gradients(optimizer, grads, self.want, self.names, self.writes, memory)
        self._run(found.groups)
        found.check_others(self._writes_now(), self.factor, memory)
        if [(group.device, group.indices) for group in found.groups] == [(memory.home, list(range(len(grads))))]:
            return Check(found.groups[0].report, found, self.memory), True
        report = _device.merged(torch.cat([found.reports(memory.table), *self._report_of_losses()]), self.policy)
        return Check(self.memory.report(report), found, self.memory), True

    def _run(self, groups: Iterable[GradientGroup]) -> None:
        for group in groups:
            if group.dtypes & _F16 and not self.allow_fp16:
                self._refuse_fp16()
        for group in groups:
            try:
                losses = self.losses if group.device == self.memory.home else None
                group.run(self._writes_now(), self.factor, self.memory, self.policy, self.want, losses)
            except c.Error as error:
                _explain(error, self.optimizer, self.names, group.indices)
                raise
            if self._writes_now() and self.torchs["stage"] is OptState.READY:
                self.torchs["stage"] = OptState.UNSCALED

    def _writes_now(self) -> bool:
        return self.writes and not self.folds

    def _report_of_losses(self) -> list[torch.Tensor]:
        """Returns a row with the report of the losses, if they are given."""
        if self.losses is None:
            return []
        table = self.memory.table
        group = GradientGroup(table, [], ())
        group.run(False, self.factor, self.memory, self.policy, 0, self.losses.to(table))
        host = isinstance(group.report, Report)
        return [(torch.frombuffer(group.report, dtype=torch.uint8) if host else group.report).view(1, -1)]

    def _refuse_fp16(self) -> None:
        index = next(i for i, grad in enumerate(gradients(self.optimizer)) if grad.dtype == torch.float16)
        name = self.names.of(Members(self.optimizer))[index]
        error = ValueError(f"Attempting to unscale FP16 gradients. The gradient of {name} {_ranks.FP16_ADVICE}")
        error.status = _ranks.IN_FP16
        raise error

    def _agreed(self, grads: list[torch.Tensor], meshes: list, ranks: Any, sharded: bool) -> Check:
        """Checks as one of several ranks. A rank that fails still sends a report: no other rank waits for it."""
        memory, home, found, failed, parts = self.memory, self.memory.table, None, None, {}
        losses: list[torch.Tensor] = []
        try:
            losses = self._report_of_losses()
            found = sorted_gradients(self.optimizer, grads, self.want, self.names, self.writes, memory)
            self._run(found.groups)
            found.check_others(self._writes_now(), self.factor, memory)
            each = found.reports(home)
            at = {i: row for row, i in enumerate(sorted(found.order()))}
            parts = {
                key: _device.merged(each[_device.index_tensor([at[i] for i in indices], home)])
                for key, indices in found.segments.items()
            }
        except Exception as error:
            failed = error
            status = getattr(error, "status", None) or Status.ERROR_VALUE
            bad = torch.frombuffer(Report.failed(status), dtype=torch.uint8).to(home)
            parts = {(None, False): bad}
        report = _ranks.agreed(parts, meshes, ranks, sharded, self.policy, memory.words, home, losses)
        if failed is not None:
            raise failed
        check = Check(memory.report(report), found, memory)
        check.alike = not sharded
        return check


def sorted_gradients(
    optimizer: torch.optim.Optimizer,
    grads: list[torch.Tensor],
    want: int,
    names: Names,
    writes: bool,
    memory: _memory.HostState | _memory.DeviceState,
) -> Gradients:
    """Sorts the gradients; raises if one cannot be read or, if the call `writes`, written, before any is changed."""

    def name(i: int) -> str:
        return names.of(Members(optimizer))[i]

    try:
        found = Gradients.of(with_gradients(optimizer), grads, name, want, memory)
        found.refuse_shared(name, writes)
        return found
    except c.Error as error:
        _explain(error, optimizer, names, range(2**31))
        raise


def _explain(error: c.Error, optimizer: torch.optim.Optimizer, known: Names, indices: Sequence[int]) -> None:
    """Names the parameters of refused gradients; `indices` maps positions in the call to positions in the optimizer."""
    if error.index < 0:
        return
    names, why = known.of(Members(optimizer)), error.why
    if error.other >= 0:
        other = at(names, indices[error.other])
        why = f"shares memory with the gradient of {other}: it would be unscaled twice; give each its own"
    error.args = (f"the gradient of {at(names, indices[error.index])} {why}",)


class Overflow:
    """The gradients of the optimizers that overflowed in a step, as if they were of one."""

    def __init__(self, checks: Mapping[str, Check], names: Names) -> None:
        """`checks` are by the labels that tell apart two parameters of one name."""
        self.checks, self.counts = list(checks.values()), {}
        self.losses = self.checks[0].losses
        called, labels, ids = [], [], []
        for label, check in checks.items():
            self.counts |= {len(ids) + i: count for i, count in check.gradients.counts() if count}
            called += names.of(check.members)
            ids += names.in_graph(check.members)
            labels += [label] * (len(called) - len(labels))
        self.names = distinct(called, labels)
        # The gradients in the order in which backward made them, or None if it is not known.
        self.order = self.losses.order(ids, {ids[i] for i in self.counts})

    def describe(self, report: Report) -> None:
        """Writes names and counts into the report. Without an order the last gradients are nearest to the cause."""
        order = reversed(range(len(self.names))) if self.order is None else self.order
        report._bad = {self.names[i]: self.counts[i] for i in order if i in self.counts}
        report.cause = next(iter(report._bad), None)
        report.names = self.names if report.bad or self._are_alike() else ()

    def evidence(
        self, report: Report, judges_parameters: bool = True
    ) -> tuple[Evidence, bytes | None, Sequence[str] | None, array.array | None]:
        """Returns what is known beside the report of all ranks, for gsc_state_reason.

        judges_parameters: looks for parameters that are not finite, which reads all of them
        """
        members = [list(check.members) for check in self.checks]
        rows = b"".join(check.rows(len(each)) for check, each in zip(self.checks, members, strict=True))
        parameters = enumerate(itertools.chain(*members)) if judges_parameters else ()
        bad = [i for i, member in parameters if is_bad(member.parameter)]
        evidence = self.losses.evidence(float(self.checks[0].scale))
        evidence.bad_parameters, evidence.parameter_plus_1 = len(bad), bad[0] + 1 if bad else 0
        evidence.ranks = _ranks.count()
        order = None if self.order is None else array.array("Q", self.order)
        rank = report.last_rank_plus_1
        if not rank or (self.counts and order is not None and report.nan_count + report.inf_count):
            return evidence, rows, self.names, order
        # The report names a gradient of another rank.
        return evidence, None, self.names if self._are_alike() or rank == _ranks.own() + 1 else None, None

    def _are_alike(self) -> bool:
        return all(check.alike for check in self.checks)


def overflowed(checks: Iterable[Check]) -> dict[str, Check]:
    """Returns the checks with an overflow by a label for messages; the checks are read."""
    return {f"optimizer {i}, ": check for i, check in enumerate(checks) if check.host_report.overflow}


def joint_report(reports: Sequence[Report], checks: Mapping[str, Check], names: Names) -> Report | None:
    """Returns one report on the gradients of all optimizers, or None; `checks` are those with an overflow."""
    if len(reports) < 2:
        return reports[0] if reports else None
    parts, count = [], 0
    for report in reports:
        part = Report.from_bytes(bytes(report))
        if report.overflow:
            part.first_tensor, part.last_tensor = part.first_tensor + count, part.last_tensor + count
            count += len(report.names)
        parts.append(part)
    joint = Report.merge(parts)
    joint.scale = reports[0].scale
    grew = [(f"optimizer {i}, ", *item) for i, report in enumerate(reports) for item in report.grew.items()]
    called = distinct([name for _, name, _ in grew], [label for label, _, _ in grew])
    joint.grew = dict(zip(called, (shares for _, _, shares in grew), strict=True))
    if checks:
        Overflow(checks, names).describe(joint)
    return joint
