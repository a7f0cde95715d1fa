# SPDX-License-Identifier: MIT
"""Loss scaling inside torch.compile(fullgraph=True): operators on tensors that hold the whole state.

Only the operators read values, and the scale is a tensor, so a new scale needs no new compilation.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from .. import _checkpoints, _history
from .. import _gradscaler as c
from .._entries import Note
from .._policy import Policy, warn_if_idle, warn_of_no_gradients
from .._report import Report, explained
from .._structs import Event, Factor, Guard, State, Status, Want
from . import _device
from ._device import FACTOR, FOUND, OVERFLOW, data, merged, nothing, on, words
from ._grads import group_of
from ._memory import DeviceState
from ._options import with_fields
from ._plain import PlainState
from ._stall import StallError, stall_error

_NORM = int(Want.NORM)
_SCALE, _SQUARES = Factor.scale_f32.offset // 4, Report.sum_squares.offset // 8
_EVENTS, _SKIP = State.events.offset // 4, State.skip_f32.offset // 4


@functools.cache
def _policy(saved: str) -> Policy:
    return Policy.from_buffer_copy(bytes.fromhex(saved))


def _check(gradients: Sequence[torch.Tensor], state: torch.Tensor) -> None:
    for i, gradient in enumerate(gradients):
        if gradient.dtype == torch.float16:
            raise ValueError(
                f"gradients[{i}] is in float16, where in place most of what scaling saved is lost again: keep the "
                "parameters in float32 and run the model under torch.autocast"
            )
        if gradient.device != state.device:
            raise ValueError(
                f"gradients[{i}] is on {gradient.device}, the scaler on {state.device}: pass TensorScaler its device"
            )


# torch 2.6 cannot infer this schema from list[torch.Tensor].
_UNSCALE = (
    "(Tensor(a0!)[] gradients, Tensor state, Tensor(a2!) report, Tensor(a3!) pending, str policy, SymInt want, "
    "float max_norm, Tensor? loss_finite) -> (Tensor, Tensor)"
)


@torch.library.custom_op("gradscaler::unscale_", mutates_args=("gradients", "report", "pending"), schema=_UNSCALE)
def _unscale_(
    gradients: list[torch.Tensor],
    state: torch.Tensor,
    report: torch.Tensor,
    pending: torch.Tensor,
    policy: str,
    want: int,
    max_norm: float,
    loss_finite: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check(gradients, state)
    device, given = state.device, (report, pending)
    rules, by_torch = _policy(policy), _device.uses_torch(device)
    if by_torch:  # then the core decides on the host
        state, report, pending = (each.to(_device.CPU) for each in (state, report, pending))
    memory = PlainState(State.from_bytes(data(state)), device, False) if by_torch else DeviceState(state, device)
    group = group_of(device, gradients, range(len(gradients)), memory)
    losses = None  # 1 / False is Inf
    if loss_finite is not None:
        losses = loss_finite.to(device).float().reciprocal()
    if by_torch and not memory.is_usable():
        raise _stalled(rules, state, report)
    try:
        group.run(True, memory.factor(False) if by_torch else state[:FACTOR], memory, rules, want | _NORM, losses)
    except c.Error as error:
        if error.status != Status.ERROR_FACTOR:
            raise
        raise _stalled(rules, state, report) from None
    own = torch.frombuffer(group.report, dtype=torch.uint8) if isinstance(group.report, Report) else group.report
    norm = torch.where(words(own)[OVERFLOW] != 0, math.inf, own.view(torch.float64)[_SQUARES].sqrt()).float()
    before = torch.where(pending, report, nothing(state.device))
    report.copy_(merged(torch.cat([before, own]), rules))
    pending.fill_(True)
    found = report.view(torch.float32)[FOUND].clone()
    guard = None
    if rules.guards:
        judged = torch.empty_like(state)
        c.gsc_state_update(on(state.device), rules, state, report, judged)
        found.copy_(judged.view(torch.float32)[_SKIP])
        if rules.guard_flags & Guard.CLIP:
            guard = torch.empty(FACTOR, dtype=torch.uint8, device=state.device)
            c.gsc_factor_clip_outlier(on(state.device), None, judged, guard)
            group.multiply(guard, memory)
    reached = max_norm and (state.device.type != "cpu" or max_norm < norm < math.inf)  # a device is not waited for
    if reached:
        clip = torch.empty(FACTOR, dtype=torch.uint8, device=state.device)
        c.gsc_factor_clip_grad_norm(on(state.device), None, own, max_norm, clip)
        if guard is not None:
            DeviceState.reduce(clip, guard)
        group.multiply(clip, memory)
    if by_torch:
        given[0].copy_(report)
        given[1].copy_(pending)
    return found.to(device), norm.to(device)


def _stalled(policy: Policy, state: torch.Tensor, report: torch.Tensor) -> StallError:
    return stall_error(policy, State.from_buffer_copy(data(state)), Report.from_bytes(data(report)))


@_unscale_.register_fake
def _(
    gradients: list[torch.Tensor],
    state: torch.Tensor,
    report: torch.Tensor,
    pending: torch.Tensor,
    policy: str,
    want: int,
    max_norm: float,
    loss_finite: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check(gradients, state)
    return state.new_empty((), dtype=torch.float32), state.new_empty((), dtype=torch.float32)


@torch.library.custom_op("gradscaler::update_", mutates_args=("state", "scale", "pending"))
def _update_(
    state: torch.Tensor, scale: torch.Tensor, report: torch.Tensor, pending: torch.Tensor, policy: str
) -> None:
    by_torch = _device.uses_torch(state.device)
    before, report = (each.to(_device.CPU) if by_torch else each for each in (state, report))
    updated = torch.empty_like(before)
    c.gsc_state_update(on(before.device), _policy(policy), before, report, updated)
    updated = updated.to(state.device)
    state.copy_(torch.where(pending, updated, state))
    pending.fill_(False)
    scale.copy_(state.view(torch.float32)[_SCALE])


@_update_.register_fake
def _(state: torch.Tensor, scale: torch.Tensor, report: torch.Tensor, pending: torch.Tensor, policy: str) -> None:
    return None


class TensorScaler:
    """A scaler for a whole step in torch.compile(fullgraph=True), which cannot trace GradScaler.

        scaler = TensorScaler("torch")  # a preset or a gradscaler.Policy; fields by keyword

        @torch.compile(fullgraph=True)
        def step(x, y):
            loss = loss_function(model(x), y)
            gradients = torch.autograd.grad(scaler.scale(loss), parameters)
            found_inf, norm = scaler.unscale_(gradients, max_norm=1.0)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients):
                    parameter.copy_(torch.where(found_inf == 0, parameter - 0.1 * gradient, parameter))
            scaler.update()
            return loss.detach(), norm

    Tracing a call of torch.autograd.grad or of backward() needs torch._dynamo.config.trace_autograd_ops = True.
    All that changes is in tensors: `state` (uint8, 384 bytes), `report_tensor` (uint8, 256 bytes), `loss_scale`
    (float32, no dimensions) and `pending` (bool, no dimensions; whether there is a report for the next update).
    So one compilation serves all steps, and the results are bit-exact with GradScaler.
    Gradients are plain tensors on the scaler's device, in any dtype except float16. On a CUDA device a step waits for
    nothing, so a CUDA graph can capture it after one run that loads the kernels. Only one thread at a time can use a
    scaler.
    """

    def __init__(
        self, policy: str | Policy = "torch", device: str | torch.device = "cpu", *, want: int = 0, **fields: float
    ) -> None:
        self.policy, self.want, state = with_fields(policy, fields), int(want), State()
        warn_if_idle(self.policy)
        self._saved = bytes(self.policy).hex()
        c.gsc_state_init(None, self.policy, state)
        self.state = torch.frombuffer(state, dtype=torch.uint8).to(device, copy=True)
        self.report_tensor = torch.frombuffer(Report.merge([]), dtype=torch.uint8).to(device, copy=True)
        self.pending = torch.zeros((), dtype=torch.bool, device=device)
        self.loss_scale = self.state.view(torch.float32)[_SCALE].clone()

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        State.from_bytes(data(attributes["state"]))  # refuses a state of another version
        vars(self).update(attributes)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Multiplies `loss`, of any shape, by the scale; the product can be differentiated."""
        return loss * self.loss_scale

    def unscale_(
        self,
        gradients: Sequence[torch.Tensor | None],
        max_norm: float | None = None,
        loss_finite: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Divides gradients by the scale, in place, and returns (found_inf, norm), float32 tensors of no dimensions.

        found_inf is 1 if an element is infinite or NaN, here or in another call since the last update, if the policy's
        guard refuses the norm of all these calls, or if the policy holds and loss_finite is False; else 0. norm is the
        global L2 norm of these gradients, infinite after an overflow in them.
        max_norm, above 0: gradients with a larger norm are multiplied by max_norm / (norm + 1e-6)
        loss_finite: torch.isfinite(loss).all(), of the loss before it is scaled; counts if the policy holds
        If the policy's guard clips, it clips here: pass all gradients of a step in one call. None is skipped.
        On the CPU a scale of 0 or infinity raises StallError; on a device it is an overflow.
        """
        if isinstance(gradients, torch.Tensor) or not isinstance(gradients, Iterable):
            raise TypeError(
                f"gradients is of type {type(gradients).__name__}: expected a sequence of tensors, as "
                "torch.autograd.grad returns it, or [parameter.grad for parameter in model.parameters()]"
            )
        gradients = [gradient for gradient in gradients if gradient is not None]
        if max_norm is not None and not 0 < max_norm < math.inf:
            raise ValueError(f"max_norm={max_norm!r}: it must be finite and above 0")
        if loss_finite is not None and getattr(loss_finite, "dtype", None) is not torch.bool:
            raise TypeError("loss_finite must be a tensor of torch.bool, such as torch.isfinite(loss).all()")
        return _unscale_(
            gradients,
            self.state,
            self.report_tensor,
            self.pending,
            self._saved,
            self.want,
            max_norm or 0.0,
            loss_finite,
        )

    def update(self) -> None:
        """Moves the scale by the result of unscale_ since the last update; without such a call nothing changes.

        Call it once per step, also if the step was skipped.
        """
        _update_(self.state, self.loss_scale, self.report_tensor, self.pending, self._saved)
        if not torch.compiler.is_compiling() and self.state.device.type == "cpu" and self._has(Event.EMPTY):
            warn_of_no_gradients(self)

    def _has(self, event: Event) -> bool:
        """Returns whether the last update had this event. Waits for the device."""
        return bool(self.state.view(torch.int32)[_EVENTS].item() & event)

    @property
    def stopped(self) -> bool:
        """True if the policy gave up in the last update: all further steps would be skipped (max_failed_backoffs).

        Reading it waits for the device: do so now and then, outside of a compiled step.
        """
        return self._has(Event.STOPPED)

    @property
    def report(self) -> Report:
        """The report on the gradients of a step; `first_overflow` has the position of the tensor, not counting None.

        `bad` is empty: the elements of each tensor are not counted. Calls of unscale_ without an update between them
        are one step. Reading it waits for the device.
        """
        report = Report.from_bytes(data(self.report_tensor))
        report._bad = {}
        return report

    def _after_update(self) -> tuple[State, Report | None]:
        """Returns the state after the update with the last report, also before that update, and the report if any."""
        state, report = State.from_buffer_copy(data(self.state)), self.report
        if self.pending:
            c.gsc_state_update(None, self.policy, state, report, state)
        return state, report if report.elements else None

    @property
    def reason(self) -> str:
        """Why the last step was to be skipped, was clipped or let an outlier through; else empty. Waits for the device.

        Tensors are named by their positions, as in `report`.
        """
        return explained(*self._after_update()).message

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of gradscaler.Scaler.metrics for loggers, all of one step. Waits for the device."""
        return c.metrics(self.policy, *self._after_update())

    def diagnose(self, steps: int = 0, planned_steps: int = 0) -> list[Note]:
        """Returns what is wrong with this run, as gradscaler.Scaler.diagnose does. Waits for the device."""
        return _history.diagnosed(self.policy, *self._after_update(), steps, planned_steps)

    def history(self, path: str | os.PathLike, **options: Any) -> _history.History:
        """Returns a gradscaler.History, which gets a line by `history.record(scaler)` after a compiled step.

        `with scaler.history("run.jsonl") as history:` closes it. No update adds a line by itself.
        """
        source = SimpleNamespace(_history=None, _policy_and_state=self._policy_and_state)
        return _history.History(source, path, **options)

    def _policy_and_state(self) -> tuple[Policy, State]:
        return self.policy, self._after_update()[0]

    def _policy_and_facts(self, _: Any) -> tuple[Policy, _history.Facts]:
        return self.policy, (*self._after_update(), None, None, None)

    def state_dict(self) -> dict[str, Any]:
        """Returns policy and state for a checkpoint."""
        saved = c.gsc_state_save(self.policy, State.from_buffer_copy(data(self.state)))
        return {"preset": self.policy.preset, "saved": saved.hex()}

    def load_state_dict(self, state: Any) -> Sequence[Note]:
        """Loads a state_dict into the same tensors; an error changes nothing.

        It also loads checkpoints of GradScaler, gradscaler.Scaler and frameworks, as Scaler.load_state_dict does, and
        returns its notes, for example on a guard that the checkpoint replaces.
        """
        self.policy, loaded, notes = _checkpoints.load(state, self.policy)
        self._saved = bytes(self.policy).hex()
        self.state.copy_(torch.frombuffer(loaded, dtype=torch.uint8))
        self.loss_scale.fill_(loaded.factor.scale_f32)
        self.report_tensor.copy_(torch.frombuffer(Report.merge([]), dtype=torch.uint8))
        self.pending.fill_(False)
        return notes
