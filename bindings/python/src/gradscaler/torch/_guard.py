# SPDX-License-Identifier: MIT
"""The guard's decision on a step, and the parameters that contribute more to the norm than usual."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from .._policy import Policy
from .._report import Reason, Report, explained
from .._structs import Event, Guard, State
from . import _device
from ._check import Check, sorted_gradients
from ._grads import gradients, with_gradients
from ._memory import DeviceState, HostState
from ._names import Names, at
from ._torch import OptState

_SKIPPED, OUTLIER, _CLIPPED = int(Event.SKIPPED), int(Event.OUTLIER), int(Event.CLIPPED)
_ALIKE = 10  # equal norms in a row before the warning
_WEIGHT = 0.1  # the weight of one step in the usual shares of the squared norm
_MOST_KNOWN = 64  # the most optimizers with known usual shares: a program can make a new one in each step


class Judge:
    def __init__(self) -> None:
        self.decision: HostState | DeviceState | None = None  # the state after the update of the current step
        self.host_decision: State | None = None  # the same, read from the device
        # The states before and after the update of the last judged step.
        self.last: tuple[HostState | DeviceState, HostState | DeviceState] | None = None
        # By the id of an optimizer: its parameters with gradients, and their usual shares of the squared norm.
        self._usual: dict[int, tuple[tuple, torch.Tensor]] = {}

    def judge(self, memory: HostState | DeviceState, policy: Policy, report: Any) -> None:
        before, self.decision = memory.copy(), memory.copy()
        self.decision.update(policy, report)
        self.last = before, self.decision

    def skips(self) -> bool:
        """Waits for the device and returns whether the guard skips the step."""
        if self.decision is None:
            return False
        self.host_decision = self.decision.read()
        return self.host_decision.events & _SKIPPED != 0

    def end_step(self) -> None:
        self.decision = self.host_decision = None

    def clip(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any], policy: Policy, names: Names, events: int | None
    ) -> None:
        """Clips if the guard decided so. `events` None: the decision is on a device, which is not waited for."""
        if not policy.guard_flags & Guard.CLIP or (events is not None and not events & _CLIPPED):
            return
        if "guarded" in state:  # clipped already, by a step() that then failed
            return
        clip, check = self.decision.guard_factor(), state.get("check")
        if check is not None and check.clip is not None:
            self.decision.reduce(clip, check.clip)
        clipped = sorted_gradients(optimizer, gradients(optimizer), 0, names, True, self.decision)
        if state["stage"] is OptState.UNSCALED:  # otherwise the next step() checks them again
            state["guarded"] = True
        clipped.multiply(clip, self.decision)
        clipped.put_back()

    @torch.inference_mode(False)  # later steps write to these tensors
    def share(self, optimizer: torch.optim.Optimizer, check: Check, home: torch.device) -> None:
        """Keeps each gradient's share of the squared norm, and its usual share in the steps before."""
        indices = sorted(check.gradients.order())
        squares = check.gradients.reports(home).view(torch.float64)[:, Report.sum_squares.offset // 8]
        if indices != list(range(len(indices))):  # some are of other meshes, or share their memory
            squares = squares.new_zeros(indices[-1] + 1).index_copy_(0, _device.index_tensor(indices, home), squares)
        share = squares / squares.sum().clamp_min(torch.finfo(torch.float64).tiny)
        parameters = tuple(map(id, with_gradients(optimizer)))
        known, usual = self._usual.pop(id(optimizer), (None, None))
        if known != parameters or usual.shape != share.shape or usual.device != share.device:
            usual = share.clone()
        self._usual[id(optimizer)] = parameters, usual
        if len(self._usual) > _MOST_KNOWN:
            del self._usual[next(iter(self._usual))]
        check.shares = share, usual.clone()

    def remember(self, checks: dict[int, Check], memory: HostState | DeviceState) -> None:
        """Updates the usual shares, unless the step was skipped or an outlier."""
        for key, check in checks.items():
            _, usual = self._usual.get(key, (None, None))
            if check.shares is not None and usual is not None and usual.shape == check.shares[0].shape:
                good = memory.has_none_of(OUTLIER | _SKIPPED)
                usual.copy_(torch.where(good, usual.lerp(check.shares[0], _WEIGHT), usual))

    def grew(self, check: Check, names: Names) -> dict[str, tuple[float, float]]:
        """Returns (usual share, share now) of up to three parameters with a larger share, the largest growth first."""
        if check.shares is None or self.last is None or not self.last[1].read().events & OUTLIER:
            return {}
        called, (shares, usual) = names.of(check.members), (shares.tolist() for shares in check.shares)
        order = sorted(range(len(shares)), key=lambda i: usual[i] - shares[i])[:3]
        return {at(called, i): (usual[i], shares[i]) for i in order if shares[i] > usual[i]}

    def reason(self, reports: Iterable[Report]) -> tuple[Reason, str]:
        """Returns why the last step was skipped, clipped or let through as an outlier, and the whole sentence."""
        if self.last is None:
            return Reason(), ""
        before, state = (memory.read() for memory in self.last)
        reason = explained(state)
        why = reason.message
        if not state.events & OUTLIER:
            return reason, why
        steps = "1 step" if before.guard_count == 1 else f"{before.guard_count} steps"
        usual = f"; the mean of {steps} is {before.guard_mean:.4g}" if before.guard_count else ""
        return reason, why + usual + grown_words(reports)


def grown_words(reports: Iterable[Report]) -> str:
    pairs = sorted((was - now, was, now, name) for report in reports for name, (was, now) in report.grew.items())
    words = ", ".join(f"{name} makes up {now:.0%} of its square, usually {was:.0%}" for _, was, now, name in pairs[:3])
    return f"; {words}" if words else ""


def warn_of_equal_norms(state: State, level: int) -> None:
    """Warns if all norms are equal, as after clip_grad_norm_(): the guard then finds nothing."""
    if state.guard_count == _ALIKE and state.guard_variance <= (1e-5 * state.guard_mean) ** 2:
        warnings.warn(
            f"the norm of the gradients was {state.guard_mean:.6g} in each of {_ALIKE} steps: if they were clipped "
            "before GradScaler saw them, the guard finds no outlier; call scaler.unscale_(optimizer) before, or "
            "clip with scaler.unscale_(optimizer, max_norm=...)",
            stacklevel=level,
        )
