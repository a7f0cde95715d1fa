# SPDX-License-Identifier: MIT
"""Reports, metrics, history, the reason of a skip, and stalls of a GradScaler."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .. import _gradscaler as c
from .. import _history
from .._entries import Note
from .._policy import Policy
from .._report import Reason, Report, explained
from .._structs import Event, Loss, State
from . import _device
from ._check import Check, Checks, Overflow, joint_report, overflowed
from ._losses import Losses
from ._memory import HostState, LateCopy
from ._names import Names
from ._stall import stalled

_SKIPPED = int(Event.SKIPPED)


class Observed:
    """The reports, metrics, history and errors of a GradScaler."""

    _history: _history.History | None = None

    @property
    def total_guard_skips(self) -> int:
        """Steps that the guard skipped since the start, as of the last update(). Reading it waits for the device."""
        return self._state().total_guard_skips if self._enabled else 0

    @property
    def report(self) -> Report | None:
        """The report on the gradients of the last unscale_() or step(), or None. Reading it waits for the device.

        `bad` has the names and counts of this rank. Other numbers are of all ranks of the group; if the ranks have
        copies (a process_group without sharded=True), of its first rank. If only another rank's copy is not finite,
        `overflow` and `rank` say so on all ranks, `bad` only on that rank, and `first_overflow` is None.
        """
        reports = self._reports()
        return joint_report(reports, overflowed(self._checks.by_optimizer.values()), self._names)

    def report_of(self, optimizer: torch.optim.Optimizer) -> Report | None:
        """Returns the report on one optimizer's gradients in the current step, else in the last step, else None.

        If it has an overflow, step(optimizer) skips.
        """
        check = self._checks.of(optimizer)
        return None if check is None else self._named_report(check)

    def _reports(self) -> list[Report]:
        return [self._named_report(check) for check in self._checks.by_optimizer.values()]

    def _named_report(self, check: Check) -> Report:
        report = check.read(self._names)
        report.grew = self._guard.grew(check, self._names) or report.grew
        return report

    @property
    def loss_is_finite(self) -> bool | None:
        """True if this rank's losses of the current step were finite when they were scaled; after update() of the last.

        None if the policy does not hold, or no loss was scaled. Losses after gradients with create_graph do not count.
        Reading it waits for the device of the losses.
        """
        return self._losses.are_finite()

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of gradscaler.Scaler.metrics for loggers, all of one step. Waits for the device.

        loss_scale is the scale for the next loss; all others describe the step before. Between step() and update()
        they are what they will be after update().
        """
        return c.metrics(self._policy, self._state_of_reports(), _whole(self._reports())) if self._enabled else {}

    def diagnose(self, steps: int = 0, planned_steps: int = 0) -> list[Note]:
        """Returns what is wrong with this run and what to do, the most important first. Waits for the device.

        steps: the updates so far; 0: the updates that the scaler counted
        planned_steps: the updates of the whole run; 0 if not known
        """
        if not self._enabled:
            return []
        state, report = self._state_of_reports(), self._report_with_loss()
        return _history.diagnosed(self._policy, state, report, steps, planned_steps)

    def _report_with_loss(self) -> Report | None:
        return None if self.report is None else self._with_loss(self.report)

    def _with_loss(self, report: Report) -> Report:
        """Returns the report; after an overflow it has a bad loss also if the policy judges no losses."""
        if report.overflow and self._losses.step.first_bad():
            report = report._without_arrays()
            report.loss = Loss.NOT_FINITE
        return report

    def history(self, path: str | os.PathLike, **options: Any) -> _history.History:
        """Returns a file that gets a line for each update(): `with scaler.history("run.jsonl"):`.

        See gradscaler.History for the options. It does not wait for the device, unless 100 lines wait for their
        numbers. A step in a CUDA graph has no line.
        """
        return _history.History(self, path, **options)

    def _policy_and_state(self) -> tuple[Policy, State]:
        return self._policy, self._state()

    def _add_line(self, history: _history.History) -> None:
        """Adds the line of the last update; if the host did not wait for its step, when the device has done it."""
        memory = self._memory
        if isinstance(memory, HostState) or True in self._checks.skipped.values():
            history._add(self._policy, self._facts())
            return
        reports = [check.report for check in self._checks.by_optimizer.values()]
        copy, size = LateCopy([memory.words, *reports], memory.home), ctypes.sizeof(State)

        def read(wait: bool) -> _history.Facts | None:
            data = copy.read(wait)
            if data is None:
                return None
            rows = [data[at : at + _device.SIZE] for at in range(size, len(data), _device.SIZE)]
            return State.from_buffer_copy(data), _whole([Report.from_bytes(row) for row in rows]), None, None, None

        history._add_later(self._policy, read)

    def _facts(self) -> _history.Facts:
        """Returns the state and the report of the last update, and why its step was skipped."""
        state, report = self._memory.read(), self._report_with_loss()
        checks = overflowed(self._checks.by_optimizer.values())
        if not state.events & _SKIPPED or not checks:
            return state, report, None, None, None
        evidence, each, names, order = Overflow(checks, self._names).evidence(report, judges_parameters=False)
        reason = Reason()
        c.gsc_state_reason(state, report, evidence, each, names, order, reason)
        return state, report, reason, each, names

    @property
    def reason(self) -> str:
        """Why the last step() skipped, clipped or let an outlier through; empty if it was taken. Waits for the device.

        After an overflow the text has the first of these causes: a parameter is not finite; a loss was not finite
        before it was scaled; the scale is too large for the dtype of the loss; a gradient, `report.cause`, and the
        finite one that the backward pass made before it. If the policy's guard found the norm too large, the text has
        the threshold, the usual norm, and the parameters in report.grew, which contribute more to the norm than usual;
        on several ranks, only this rank's parameters.
        """
        return self._explained()[1]

    def _explained(self) -> tuple[Reason, str]:
        """Returns the reason and its whole sentence; `message` has the first 511 bytes."""
        reports = self._reports()
        if not any(tensor.item() for tensor in self._checks.found_inf()):
            return _said(*self._guard.reason(reports))
        checks, reason = overflowed(self._checks.by_optimizer.values()), Reason()
        if not checks and not any(report.found_inf for report in reports):
            reason = explained(self._skipped_state())
            why = f"{reason.message}; the gradients are finite, so other code has written found_inf"
            return _said(reason, why)
        state, report = self._skipped_state(), joint_report(reports, checks, self._names)
        state.status = next((each.status for each in reports if each.status), state.status)
        known = Overflow(checks, self._names).evidence(report) if checks else (None, None, None, None)
        c.gsc_state_reason(state, report, *known, reason)
        return reason, reason.message

    def _state_of_reports(self) -> State:
        """Returns the state after the update with the present reports, also before that update."""
        state, report = self._state(), None if self._checks.is_over else self._step_report()
        if report is None:
            return state
        memory = self._memory.copy()
        memory.update(self._policy, report)
        return memory.read()

    def _skipped_state(self) -> State:
        """Returns the state after the update of a step that was skipped, also before that update."""
        last = self._guard.last
        state = self._memory.read() if last is None else last[1].read()
        if not state.events & _SKIPPED or (last is None and not self._checks.is_over):
            report = Report.merge([Report.of_flag(True)])
            report.loss = max((each.loss for each in self._reports()), default=Loss.UNKNOWN)
            c.gsc_state_update(None, self._policy, state, report, state)
        return state

    def name_parameters(self, model: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable) -> None:
        """Names the parameters of a model, or of (name, parameter) pairs, in reports and messages.

        Without this call parameters are named by an optimizer that was made from model.named_parameters(), else by
        position. If another model already has one of these names, the new names begin with the class of this model.
        """
        self._names.add(model)

    def forget(self) -> None:
        """Drops the names of parameters, the losses and the last reports; a step that has begun can be ended."""
        self._names, self._losses, self._checks, self._guard.last = Names(), Losses(), Checks(), None

    def _stall(self, state: State, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Raises a StallError, or passes it to on_stall; `optimizer` is the optimizer of the current step."""
        optimizers = [check.optimizer() for check in self._checks.by_optimizer.values()]
        if optimizer is not None and self._checks.of(optimizer) is None:
            optimizers.append(optimizer)
        optimizers = {id(each): each for each in optimizers if each is not None}
        facts = self._names, self._losses.step, self._checks.are_stale
        error = stalled(self._policy, state, self._reports(), *facts, optimizers.values())
        if self._options.on_stall is None:
            raise error
        self._options.on_stall(error)


def _said(reason: Reason, sentence: str) -> tuple[Reason, str]:
    reason.message = sentence
    return reason, sentence


def _whole(reports: list[Report]) -> Report | None:
    """Returns one report on the gradients of all optimizers, or None."""
    return Report.merge(reports) if len(reports) > 1 else reports[0] if reports else None
