# SPDX-License-Identifier: MIT
"""The error of a training that can only skip steps, and the reasons in its message."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .._entries import Note
from .._history import diagnosed
from .._policy import Policy
from .._report import Report
from .._structs import State
from ._guard import OUTLIER, grown_words
from ._names import Names, some

_KEPT = 64  # the most losses that are kept of a step
_SMALL = 1 << 12  # losses of at most this many bytes are kept alive, larger ones by weak references


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
    findings = diagnosed(policy, state, report)
    why = [f"The loss scale is {state.factor.scale:g}{after}, and no further step can succeed", known, *findings]
    error = StallError(". ".join(str(each) for each in why if each) + ".")
    error.report, error.findings = report, findings
    return error


class Losses:
    """The losses of a step, without their graphs; large ones only as long as other code keeps them alive."""

    def __init__(self) -> None:
        self._kept: deque[Callable[[], Any]] = deque(maxlen=_KEPT)
        self._over = False  # the next loss begins another step

    def end_step(self) -> None:
        self._over = True

    def add(self, losses: Any) -> None:
        if self._over:
            self._over = False
            self._kept.clear()
        if isinstance(losses, torch.Tensor):
            try:
                small = type(losses) is torch.Tensor and losses.untyped_storage().nbytes() <= _SMALL
            except RuntimeError:  # the tensor has no memory of its own, as in torch.func
                small = False
            self._kept.append(functools.partial(_itself, losses.detach()) if small else weakref.ref(losses))
        elif isinstance(losses, list | tuple):
            for loss in losses:
                self.add(loss)

    def are_bad(self) -> bool:
        return any(_is_bad(get()) for get in self._kept)


def stalled(
    policy: Policy,
    state: State,
    reports: list[Report],
    names: Names,
    losses: Losses,
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
    report: Report | None, names: Names, losses: Losses, optimizers: Iterable[torch.optim.Optimizer]
) -> Iterable[str]:
    """Yields sentences on parameters, losses and gradients that are not finite, the first cause first."""
    bad, infinite = [], []
    for i, group in ((i, group) for optimizer in optimizers for i, group in enumerate(optimizer.param_groups)):
        for j, parameter in enumerate(group["params"]):
            name = names.one(parameter, i, j, group.get("param_names") or ())
            if _is_bad(parameter):
                bad.append(name)
            if _is_bad(parameter.grad):
                infinite.append(name)
    if bad:
        yield f"Not finite are the parameters {some(bad)}: go back to a checkpoint from before that"
    if losses.are_bad():
        yield "the loss is not finite before it is scaled: look at the input and at what the model makes of it"
    infinite = list(report.bad) if report is not None and report.bad else infinite
    if infinite:
        yield f"Inf or NaN were in the last gradients of {some(infinite)}"
    elif not bad:
        yield "nothing is known of the last gradients"


def _is_bad(value: torch.Tensor | None) -> bool:
    with contextlib.suppress(RuntimeError):  # a later run of a CUDA graph can have taken its memory
        return value is not None and not torch.isfinite(value.detach()).all()
    return False


def _itself(value: Any) -> Any:
    return value
