# SPDX-License-Identifier: MIT
"""The error of a training that can only skip steps, and the reasons in its message."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import torch

from .._entries import Note
from .._history import diagnosed
from .._policy import Policy
from .._report import Report
from .._structs import Event, NoteKind, State
from ._guard import OUTLIER, grown_words
from ._losses import StepLosses, is_bad
from ._memory import is_usable
from ._names import Member, Names, some

# The findings with advice on the scale, which helps against none of the causes that are not of the scale.
_TOLD = NoteKind.NOT_FINITE, NoteKind.BACKOFF_FAILED, NoteKind.UNUSABLE, NoteKind.BAD_LOSSES


class StallError(RuntimeError):
    """The error when no further step can succeed. The message says why, if known, and what to do.

    report: the report on the last gradients, or None
    findings: the result of GradScaler.diagnose()
    """

    report: Report | None = None
    findings: Sequence[Note] = ()


def stall_error(
    policy: Policy, state: State, report: Report | None, known: str = "", told: Container[NoteKind] = ()
) -> StallError:
    """Makes the error; `known` is added to the findings in its message, without those that are `told` by it."""
    after = f" after {state.total_overflows} skipped steps" if state.total_overflows else ""
    if state.events & Event.BAD_LOSS:
        after = f" after {state.bad_losses_in_a_row} losses in a row that were not finite before scaling"
    findings = diagnosed(policy, state, report)
    why = [f"The loss scale is {state.factor.scale:g}{after}, and no further step can succeed", known]
    why += [each for each in findings if each.kind not in told]
    error = StallError(". ".join(each[:1].upper() + each[1:] for each in why if each) + ".")
    error.report, error.findings = report, findings
    return error


def stalled(
    policy: Policy,
    state: State,
    reports: list[Report],
    names: Names,
    losses: StepLosses,
    are_stale: bool,
    optimizers: Iterable[torch.optim.Optimizer],
) -> StallError:
    """Makes the error of an unusable scale or of too many outliers; `reports` are from the last step.

    are_stale: whether the last backward pass began with bad gradients
    """
    report = next((each for each in reversed(reports) if each.bad or each.overflow), reports[-1] if reports else None)
    if state.events & OUTLIER:
        return stall_error(policy, state, report, f"The last norm was {state.guard_value:.4g}{grown_words(reports)}")
    bad, infinite = _not_finite(names, optimizers)
    infinite = list(report.bad) if report is not None and report.bad else infinite
    evidence = losses.evidence(state.factor.scale)
    kinds = "Inf or NaN"
    if report is not None and report.nan_count + report.inf_count:
        kinds = " and ".join(kind for kind, n in (("NaN", report.nan_count), ("Inf", report.inf_count)) if n)
    if bad:
        known = f"The parameters {some(bad)} are not finite: go back to a checkpoint from before that"
    elif evidence.bad_loss:
        known = "The loss is not finite before it is scaled: look at the input and at what the model makes of it"
    elif infinite and are_stale:
        known = (
            f"The gradients of {some(infinite)} had {kinds} before the last backward pass, which adds to them: call "
            "optimizer.zero_grad() in each step, also after a skipped step"
        )
    elif infinite and evidence.losses and (state.factor.scale <= 1 or "NaN" in kinds) and is_usable(state):
        known = (
            f"The loss and the parameters are finite, and the backward pass made {kinds} in {some(infinite)}: "
            "GradScaler.trace_next(model) finds the module"
        )
    else:
        known = f"The last gradients have {kinds} in {some(infinite)}" if infinite else ""
        return stall_error(policy, state, report, known or "Nothing is known of the last gradients")
    return stall_error(policy, state, report, known, _TOLD)


def _not_finite(names: Names, optimizers: Iterable[torch.optim.Optimizer]) -> tuple[list[str], list[str]]:
    """Returns the names of the parameters that are not finite, and those with gradients that are not."""
    bad, infinite = [], []
    for i, group in ((i, group) for optimizer in optimizers for i, group in enumerate(optimizer.param_groups)):
        for j, parameter in enumerate(group["params"]):
            name = names.one(Member(i, j, id(parameter), parameter), group.get("param_names") or ())
            if is_bad(parameter):
                bad.append(name)
            if is_bad(parameter.grad):
                infinite.append(name)
    return bad, infinite
