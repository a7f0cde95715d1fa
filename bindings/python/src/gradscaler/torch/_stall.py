# SPDX-License-Identifier: MIT
"""The error of a training that can only skip steps, and the reasons in its message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .._entries import Note
from .._history import diagnosed
from .._policy import Policy
from .._report import Report
from .._structs import Event, State
from ._guard import OUTLIER, grown_words
from ._losses import StepLosses, is_bad
from ._names import Member, Names, some


class StallError(RuntimeError):
    """The error when no further step can succeed. The message says why, if known, and what to do.

    report: the report on the last gradients, or None
    findings: the result of GradScaler.diagnose()
    """

    report: Report | None = None
    findings: Sequence[Note] = ()


def stall_error(policy: Policy, state: State, report: Report | None, known: str = "") -> StallError:
    """Makes the error; `known` is added to the findings in its message."""
    after = f" after {state.total_overflows} skipped steps" if state.total_overflows else ""
    if state.events & Event.BAD_LOSS:
        after = f" after {state.bad_losses_in_a_row} losses in a row that were not finite before scaling"
    findings = diagnosed(policy, state, report)
    why = [f"The loss scale is {state.factor.scale:g}{after}, and no further step can succeed", known, *findings]
    error = StallError(". ".join(str(each) for each in why if each) + ".")
    error.report, error.findings = report, findings
    return error


def stalled(
    policy: Policy,
    state: State,
    reports: list[Report],
    names: Names,
    losses: StepLosses,
    optimizers: Iterable[torch.optim.Optimizer],
) -> StallError:
    """Makes the error of an unusable scale or of too many outliers; `reports` are from the last step."""
    report = next((each for each in reversed(reports) if each.bad or each.overflow), reports[-1] if reports else None)
    if state.events & OUTLIER:
        known = f"The last norm was {state.guard_value:.4g}{grown_words(reports)}"
    else:
        known = "; ".join(_diagnosis(report, names, losses, optimizers))
    return stall_error(policy, state, report, known)


def _diagnosis(
    report: Report | None, names: Names, losses: StepLosses, optimizers: Iterable[torch.optim.Optimizer]
) -> Iterable[str]:
    """Yields sentences on parameters, losses and gradients that are not finite, the first cause first."""
    bad, infinite = [], []
    for i, group in ((i, group) for optimizer in optimizers for i, group in enumerate(optimizer.param_groups)):
        for j, parameter in enumerate(group["params"]):
            name = names.one(Member(i, j, id(parameter), parameter), group.get("param_names") or ())
            if is_bad(parameter):
                bad.append(name)
            if is_bad(parameter.grad):
                infinite.append(name)
    if bad:
        yield f"Not finite are the parameters {some(bad)}: go back to a checkpoint from before that"
    has_bad_loss = losses.first_bad() > 0
    if has_bad_loss:
        yield "the loss is not finite before it is scaled: look at the input and at what the model makes of it"
    infinite = list(report.bad) if report is not None and report.bad else infinite
    if infinite:
        counts = () if report is None else (("NaN", report.nan_count), ("Inf", report.inf_count))
        kinds = " and ".join(kind for kind, count in counts if count) or "Inf or NaN"
        yield f"the last gradients have {kinds} in {some(infinite)}"
    elif not bad and not has_bad_loss:
        yield "nothing is known of the last gradients"
