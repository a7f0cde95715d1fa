# SPDX-License-Identifier: MIT
"""torch's GradScaler with one C call for all gradients of an optimizer."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import _gradscaler as c
from .._arguments import _number, _warn_caller
from .._policy import Policy, traits, warn_of_no_gradients
from .._report import Reason, Report
from .._structs import Event, State, Status, Trait, Want
from . import _device, _memory, _ranks
from ._check import Call, Check, Checks, FoundInf, Joint, members
from ._checkpoint import Checkpoints
from ._follow import Follower, Steps, copy_unless
from ._grads import Gradients, with_gradients
from ._guard import Judge, warn_of_equal_norms
from ._history import Observed
from ._losses import Losses
from ._names import Names
from ._options import NO_BACKOFF, NUMBERS, Options, accept_legacy_signature, refuse, resolved, rules_of
from ._plain import start
from ._stall import StallError
from ._torch import Base, OptState, TorchGradScaler, call_compiled, eager, is_torchs, lacks_cuda
from ._trace import Traced
from ._uses import Uses, is_dummy

_NORM, _GUARDS, _NEEDS_NORM, _HOLDS = map(int, (Want.NORM, Trait.GUARDS, Trait.NEEDS_NORM, Trait.HOLDS))
_EMPTY, _SKIPPED = int(Event.EMPTY), int(Event.SKIPPED)
_NO_NORM = (
    "_unscale_grads_ was replaced, or called with another inverse, so nobody has taken the norm that the guard of the "
    "policy judges by: call GradScaler's with the arguments that it was called with, or take a policy without a guard"
)

_LATE = (
    "update() was called between scale() and step(): the gradients are divided by the present scale, which may not be "
    "the scale of their loss. Call update() once in each step, after the last optimizer. Policies other than torch's "
    "divide by the scale of the loss"
)
_ANOTHER_STEP = (
    "A loss was scaled since then, so the step before has ended without update(), such as by `continue`: call update() "
    "at the end of each step, also if you skip step()."
)
_ANOTHER_CALLER = (
    "No loss was scaled since then, so two places unscale in one step, such as two clips, or your code and a trainer: "
    "leave one of them out. Also call update() if you skip step()."
)
_NOT_CHECKED = (
    "A loss was scaled, but nobody has checked its gradients, such as after `continue`: call step() or unscale_() with "
    "each optimizer before update(), or leave update() out with them."
)
_TWICE = (
    "No loss was scaled since the last update(): call it once in each step, after scale(), and step() or unscale_() "
    "with each optimizer. A trainer can have called it already, as the optimizers of accelerate do."
)


class GradScaler(Checkpoints, Traced, Observed, Base):
    """A faster torch.amp.GradScaler with reports, for gradients on every device that torch has.

    GradScaler(device="cuda", init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000,
               enabled=True, *, ...) as in torch, or with init_scale first, as in torch.cuda.amp.

    policy: the name of a preset in gradscaler.presets(), or a gradscaler.Policy; the numbers above replace its fields.
        Default: "torch"
    min_scale, max_scale: floor and ceiling of the scale; 0 means none. With a floor, training stops after ten overflows
        in a row that could not lower the scale, unless the policy sets max_failed_backoffs
    hysteresis: hysteresis=N lowers the scale at the Nth overflow in a row, and at each one after it
    allow_fp16: unscales float16 gradients in place, which torch refuses. Small values are lost again: keep parameters
        in float32 if you can
    want: a union of gradscaler.Want to measure for `report`
    on_stall: called with a StallError if no further step can succeed; training then goes on. Without it the error is
        raised. A step can no longer succeed if the scale is 0 or the policy stops. on_stall, like min_scale, makes the
        policy stop after ten overflows in a row that could not lower the scale, unless it sets max_failed_backoffs
    on_skip: called at the end of update() with a gradscaler.Reason if the step was skipped; its `cause` is a
        gradscaler.Cause, its `message` the sentence of `reason`, at most 511 bytes. An error in it leaves update(),
        which is finished by then. With a fused optimizer each update() then waits for the device
    process_group: ranks that agree on overflow and norm, for plain tensors. DDP needs none, because its gradients are
        equal on all ranks after backward; DTensors agree over their meshes by themselves
    sharded: True if the ranks of process_group have different gradients, as in pipelines and sharded optimizers; their
        squares are added. Otherwise they have copies, and the first rank's gradients count
    hold_bad_loss: True skips a step and keeps the scale if a loss was Inf or NaN before scale(), and stops after ten in
        a row; False takes it as an overflow. Default: as the policy says. Several ranks hold only if they agree over a
        process_group, or a mesh of DTensors, of all ranks
    backend: "torch" unscales with torch's operations also on the CPU and on NVIDIA's devices, as on all others

    Beyond torch: unscale_(optimizer, max_norm=...) clips and returns the norm; step_all(optimizers) steps with all of
    them or none; follow(schedule) holds a schedule back after a skipped step; `report` describes the last gradients,
    `report.bad` names the parameters that overflowed (see name_parameters), from the cause on, and `reason` says why a
    step was skipped; `step_was_skipped` also works with fused optimizers. help(gradscaler.torch) lists the differences
    from torch's class.

    On a CUDA device these wait: step() with an optimizer that is not fused, as in torch; get_scale(); reading `report`
    or `step_was_skipped`. So with a fused optimizer an update() some steps later raises the StallError; in a CUDA graph
    it is never raised. Results are bit-exact with the CPU. Only one thread at a time can use a scaler.
    """

    @accept_legacy_signature
    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        policy: str | Policy | None = None,
        min_scale: float | None = None,
        max_scale: float | None = None,
        hysteresis: int | None = None,
        allow_fp16: bool = False,
        want: int = 0,
        on_stall: Callable[[StallError], Any] | None = None,
        on_skip: Callable[[Reason], Any] | None = None,
        process_group: Any = None,
        sharded: bool = False,
        hold_bad_loss: bool | None = None,
        backend: str | None = None,
        **unknown: Any,
    ) -> None:
        refuse(device, hysteresis, unknown, GradScaler.__init__.__wrapped__.__kwdefaults__)
        given = self._options.given
        pairs = zip(NUMBERS, (init_scale, growth_factor, backoff_factor, growth_interval), strict=True)
        fields = {name: number for name, number in pairs if name in given}
        self._options = Options(given, allow_fp16, want, on_stall, on_skip, process_group, sharded, backend)
        self._follow(Policy("torch"))
        self._begin(_memory.initial_state(self._policy))
        if device == "cuda" and enabled and lacks_cuda():
            why = "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling."
            warnings.warn(f"{why} GradScaler('cpu') scales for gradients on the CPU.", stacklevel=3)
            enabled = False
        TorchGradScaler.__init__(self, device, enabled=enabled)
        if not self._enabled:
            return
        options = {"min_scale": min_scale, "max_scale": max_scale, "hysteresis": hysteresis}
        fields |= {name: value for name, value in options.items() if value is not None}
        self._follow(rules_of(policy, fields, on_stall is not None, hold_bad_loss))
        self._init_scale, state = resolved(self._policy).init_scale, _memory.initial_state(self._policy)
        if _memory.rounded("init_scale", self._init_scale, self._policy) != state.factor.scale:
            self._init_scale = state.factor.scale  # above a ceiling that acts at the start
        self._memory = _memory.HostState(state)

    def _follow(self, policy: Policy) -> None:
        known = int(traits(policy))
        self._policy, self._is_guarded, self._holds = policy, known & _GUARDS != 0, known & _HOLDS != 0
        self._wants = self._options.want | (_NORM if known & _NEEDS_NORM else 0)
        self._divides_as_torch = not policy.differences("torch").keys() - set(NUMBERS)

    def _begin(self, state: State) -> None:
        """Makes the attributes that are not pickled."""
        self._memory: _memory.HostState | _memory.DeviceState = _memory.HostState(state)
        self._checks, self._guard, self._names, self._losses = Checks(), Judge(), Names(), Losses()
        self._steps: Steps | None = None  # counted for followers
        self._joint = Joint(())  # the optimizers of the last step_all()
        self._uses, self._last_skip = Uses(), None  # if it is not None: why the last step that was skipped was
        self._scale_tensor: torch.Tensor | None = None

    # ---- the rules: torch's methods read and write these three ----

    @property
    def _growth_factor(self) -> float:
        return resolved(self._policy).growth_factor

    @_growth_factor.setter
    def _growth_factor(self, value: float) -> None:
        if value < 1:
            raise ValueError(f"growth_factor is {value}: it must be finite and at least 1")
        self._policy.growth_factor = value

    @property
    def _backoff_factor(self) -> float:
        return resolved(self._policy).backoff_factor

    @_backoff_factor.setter
    def _backoff_factor(self, value: float) -> None:
        if value == 0:
            raise ValueError(NO_BACKOFF)
        self._policy.backoff_factor = value

    @property
    def _growth_interval(self) -> int:
        return self._policy.growth_interval

    @_growth_interval.setter
    def _growth_interval(self, value: int) -> None:
        self._policy.growth_interval = value

    # ---- torch's name for the scale: a program that reads it can multiply a loss by it ----

    @property
    def _scale(self) -> torch.Tensor | None:
        if not self._enabled:  # as in torch's class
            raise AttributeError(f"{type(self).__name__!r} object has no attribute '_scale'")
        self._uses.is_touched = True
        return self._scale_tensor

    @_scale.setter
    def _scale(self, scale: torch.Tensor | None) -> None:
        self._scale_tensor = scale

    def _check_scale_growth_tracker(self, function: str) -> tuple[torch.Tensor, torch.Tensor]:
        scale = self._scale_tensor
        good = None if scale is None else self._growth_tracker
        return super()._check_scale_growth_tracker(function) if good is None else (scale, good)

    @contextlib.contextmanager
    def _untouched(self) -> Iterator[None]:
        """Reading the scale in it does not count as a use."""
        before = self._uses.is_touched
        try:
            yield
        finally:
            self._uses.is_touched = before

    # ---- the state: torch's two tensors publish scale and count, and values that other code writes there count ----

    @eager
    @torch.inference_mode(False)  # tensors made in inference mode cannot be used in training
    def _lazy_init_scale_growth_tracker(self, dev: torch.device | str) -> None:
        if self._growth_tracker is not None:
            raise AssertionError("_growth_tracker initialized before _scale")
        dev, state = torch.device(dev), self._state()
        self._scale = torch.full((), state.factor.scale, dtype=torch.float32, device=dev)
        self._growth_tracker = torch.full((), state.good_steps, dtype=torch.int32, device=dev)
        self._memory = self._start(state, self._scale_tensor)
        self._memory.publish(self._scale_tensor, self._growth_tracker)

    def _start(self, state: State, scale: torch.Tensor) -> _memory.HostState | _memory.DeviceState:
        return start(state, scale, self._options.backend == "torch")

    def _current(self, function: str) -> _memory.HostState | _memory.DeviceState:
        """Returns the state, with the values that other code has written into torch's two tensors."""
        scale, good = self._check_scale_growth_tracker(function)
        if self._memory.home != scale.device:
            with torch.inference_mode(False):
                self._memory = self._start(self._memory.read(), scale)
        self._memory.adopt(self._policy, scale, good)
        return self._memory

    def _state(self) -> State:
        """Returns the state, also before the first step."""
        if self._scale_tensor is not None:
            return self._current("reading the state").read()
        self._memory.adopt(self._policy, self._init_scale, self._init_growth_tracker)
        return self._memory.read()

    # ---- the step ----

    def scale(self, outputs: Any) -> Any:
        compiling = torch.compiler.is_compiling()
        if compiling and self._enabled and isinstance(outputs, torch.Tensor):
            if self._scale is None:
                self._lazy_init_scale_growth_tracker(outputs.device)
            scale = self._scale_tensor.to(device=outputs.device, non_blocking=True)
            return outputs * scale  # torch.compile cannot trace torch's own
        begins = self._losses.is_over
        scaled = super().scale(outputs)
        if self._enabled and not compiling:
            self._uses.scaled += 1
            if self._losses.add(outputs, scaled, self._holds):
                self._uses.add_loss()
            if begins:
                self._checks.watch(scaled)
        return scaled

    scale.__doc__ = torch.amp.GradScaler.scale.__doc__

    @eager
    def unscale_(self, optimizer: torch.optim.Optimizer, max_norm: float | None = None) -> torch.Tensor | None:
        """Divides the gradients of the optimizer by the scale and checks them, once between two updates, as in torch.

        With `max_norm`, finite and above 0, it also clips: if the global L2 norm is above it, the gradients are
        multiplied by max_norm / (norm + 1e-6), as by torch.nn.utils.clip_grad_norm_. It then returns the norm before
        clipping, a float32 tensor of no dimensions on the device of the scale. After an overflow the norm is infinite:
        drop the gradients. They are not clipped on the host; on a device, which is not waited for, they can be.
        """
        _refuse_norm(max_norm)
        if not self._enabled:
            return None if max_norm is None else torch.nn.utils.clip_grad_norm_(with_gradients(optimizer), max_norm)
        self._current("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            why = _ANOTHER_STEP if self._uses.scaled > state.get("scaled", 0) else _ANOTHER_CALLER
            raise RuntimeError(f"unscale_() has already been called on this optimizer since the last update(). {why}")
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step(). Call it before step(), or update() first.")
        norm = self._check(optimizer, state, True, max_norm)
        state["stage"], state["scaled"] = OptState.UNSCALED, self._uses.scaled
        return norm

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[Any, torch.Tensor]:
        self._current("_check_inf_per_device")
        state = self._per_optimizer_states[id(optimizer)]
        if self._guard.decision is None or not state["found_inf_per_device"]:  # else the guard has checked
            self._check(optimizer, state, False)
        return state["found_inf_per_device"]

    def _check(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any], writes: bool, max_norm: float | None = None
    ) -> torch.Tensor | None:
        """Checks the gradients; calls _unscale_grads_ if the program has replaced it."""
        try:
            method = getattr(self._unscale_grads_, "__func__", None)
            if getattr(method, "__globals__", None) is globals() and is_torchs(super()._unscale_grads_):
                check = self._check_all(optimizer, state, writes, self._options.allow_fp16 or not writes, max_norm)
                state["found_inf_per_device"] = check.found_inf_by_device
                return check.norm
            scale = self._scale_tensor
            inverse = scale.double().reciprocal().float() if writes else torch.ones_like(scale)
            found_inf = torch.zeros((), dtype=torch.float32, device=scale.device)
            inverse.check_arguments = state, writes, max_norm  # torch's method has no arguments for these
            state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, found_inf, not writes)
            check = state.get("check")
            if self._is_guarded and check is None:
                state["no_norm"] = True
                if writes:  # the gradients are divided: another step() must not divide them again
                    state["stage"] = OptState.UNSCALED
                raise RuntimeError(_NO_NORM)
            if max_norm is None or check is not None:
                return None if check is None else check.norm
            return torch.nn.utils.clip_grad_norm_(with_gradients(optimizer), max_norm).float()
        except BaseException:
            if state["stage"] is OptState.UNSCALED:  # some are divided: no step may use them
                state["found_inf_per_device"] = {_device.CPU: torch.ones((), device=_device.CPU)}
                state.pop("check", None)
            raise

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        """Checks the gradients. Programs override this method, mostly to allow float16, and call it from there."""
        if not is_torchs(super()._unscale_grads_):
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        fp16, arguments = allow_fp16 or self._options.allow_fp16, getattr(inv_scale, "check_arguments", None)
        if arguments is not None:
            state, writes, max_norm = arguments
            return self._check_all(optimizer, state, writes, fp16, max_norm).found_inf_by_device
        if self._is_guarded:
            raise RuntimeError(_NO_NORM)
        check = self._check_all(optimizer, {"stage": None}, True, fp16, None, inv_scale)
        tensors = check.found_inf_by_device.items()
        return FoundInf({device: torch.maximum(found_inf.to(device), tensor) for device, tensor in tensors})

    def _check_all(
        self,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        writes: bool,
        fp16: bool,
        max_norm: float | None = None,
        inverse: torch.Tensor | None = None,
    ) -> Check:
        """Checks all gradients; if it writes, multiplies them by `inverse`, by default the inverse of the scale."""
        memory, options, late = self._memory, self._options, None
        if inverse is not None and memory.home != inverse.device:
            memory = self._start(memory.read(), inverse)
        if inverse is None:
            late = self._uses.of_loss(members(optimizer), memory.home)
        if late is not None and self._divides_as_torch and "_told_of_late" not in vars(self):
            self._told_of_late = True
            _warn_caller(_LATE)
        if inverse is None and not memory.is_usable():
            self._stall(memory.read(), optimizer)
            check, has_gradients = Check(Report.of_flag(True), Gradients(), memory), True
        else:
            want = self._wants if max_norm is None else self._wants | _NORM
            factor = self._factor(memory, late) if inverse is None else memory.factor_of(inverse)
            call = Call(optimizer, state, writes, fp16, want, self._policy, memory, factor, self._names)
            call.folds = max_norm is not None and isinstance(optimizer, Joint)
            if self._holds and inverse is None:
                call.losses = self._losses.judged(memory.home)
            check, has_gradients = call.run(options.group, options.sharded)
        if max_norm is not None:
            check.norm, check.clip = memory.norm(check.report), memory.clip(check.report, float(max_norm))
            by = check.clip
            if isinstance(optimizer, Joint):
                state["stage"] = OptState.UNSCALED
                by = memory.clip(check.report, float(max_norm), self._factor(memory, late))
            if by is not None:
                check.gradients.multiply(by, memory)
        if writes:
            check.gradients.put_back()
        if late is not None and not self._divides_as_torch:
            check.scale = late.scale()
        check.found_inf_by_device = FoundInf({check.found_inf.device: check.found_inf} if has_gradients else {})
        if self._checks.begin():
            self._guard.last = None
        check.keep(optimizer, self._losses.begin_step(), self._names, self._is_guarded)
        state["check"] = check
        self._checks.add(optimizer, check)
        if self._is_guarded and check.gradients.groups:
            self._guard.share(optimizer, check, memory.table)
        check.gradients.release(check.host_report is not None and not check.host_report.overflow)
        return check

    def _divides_late(self, optimizers: list[torch.optim.Optimizer]) -> bool:
        """Returns whether gradients are divided by the scale that their loss had before an update()."""
        return not self._divides_as_torch and self._uses.of_loss(optimizers, self._memory.home) is not None

    def _factor(self, memory: Any, late: Any) -> Any:
        """Returns the factor of gradients; `late` is the state by which their loss was scaled, or None."""
        by = memory if late is None or self._divides_as_torch else late
        factor = by.factor(bool(self._policy.arithmetic))
        if late is not None:
            late.date(factor)
        return factor

    def _judge(self, optimizer: torch.optim.Optimizer, fused: bool) -> None:
        """Asks the guard about the gradients of the current step that have been checked so far."""
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.READY and fused:
            self._guard.decision = None
            self._check_inf_per_device(optimizer)  # the fused optimizer divides
        elif state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        report = self._step_report()
        if report is not None:
            self._guard.judge(self._memory, self._policy, report)

    def _step_fused(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Steps with a fused optimizer. It reads found_inf itself, so a skip of the guard is written there."""
        state = self._per_optimizer_states[id(optimizer)]
        found, decision, home = state["found_inf_per_device"], self._guard.decision, self._memory.home
        skip_flag = decision.refusal()
        self._guard.clip(optimizer, state, self._policy, self._names, decision.events())
        skip_flag = sum((one.to(home, non_blocking=True) for one in found.values()), skip_flag)
        skip_flag = FoundInf({home: skip_flag.clamp(max=1.0)})  # fused kernels skip at 1, not at 2
        state["found_inf_per_device"] = skip_flag
        try:
            return super().step(optimizer, *args, **kwargs)
        finally:
            self._checks.skipped[id(optimizer)] = list(state["found_inf_per_device"].values())
            state["found_inf_per_device"] = found

    @eager
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        if not self._enabled:
            return super().step(optimizer, *args, **kwargs)
        if self._is_dummy(optimizer, kwargs):
            self._uses.had_dummy = True
            return call_compiled(optimizer.step, *args, **kwargs)
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        # Calls that torch's class refuses must reach it before anything is written.
        begins = self._scale_tensor is not None and "closure" not in kwargs
        stage = self._per_optimizer_states[id(optimizer)]["stage"] if begins else None
        judges = self._is_guarded and begins and stage is not OptState.STEPPED
        if fused and begins and stage is OptState.READY and self._divides_late([optimizer]):
            self.unscale_(optimizer)  # the optimizer would divide by the present scale
        if judges:
            self._judge(optimizer, fused)
        grad_scale, is_touched = getattr(optimizer, "grad_scale", None), self._uses.is_touched
        try:
            if fused and judges and self._guard.decision is not None:
                result = self._step_fused(optimizer, *args, **kwargs)
                self._count_step(optimizer)
                return result
            result = super().step(optimizer, *args, **kwargs)
        except BaseException as error:
            if fused:
                _without_scale(optimizer, grad_scale)
            state = self._per_optimizer_states.get(id(optimizer))
            if isinstance(error, AssertionError) and state and not state["found_inf_per_device"]:
                error.args = (f"{error.args[0]} {_without_gradients(optimizer)}",)
            raise
        finally:
            self._uses.is_touched = is_touched  # torch's step() reads the scale
        if fused:
            tensors = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
            self._checks.skipped[id(optimizer)] = list(tensors)
        self._count_step(optimizer)
        return result

    step.__doc__ = torch.amp.GradScaler.step.__doc__

    @eager
    def step_all(
        self, optimizers: Iterable[torch.optim.Optimizer], max_norm: float | None = None
    ) -> torch.Tensor | None:
        """Steps with all optimizers or with none: one overflow, or one norm that a guard refuses, skips all of them.

            norm = scaler.step_all([muon, adamw], max_norm=1.0)
            scaler.update()

        It takes the place of unscale_(), clipping and step(). With `max_norm` all gradients are clipped by their common
        norm, and it returns the norm before clipping, as unscale_() does; the clip and the division by the scale are
        one multiplication. After an overflow the gradients may still be scaled: drop them. report_of() of each of these
        optimizers is the report on all gradients. All ranks decide as one if they have DTensors or a process_group.
        """
        _refuse_norm(max_norm)
        optimizers = list({id(each): each for each in optimizers}.values())
        if not self._enabled:
            parameters = [parameter for each in optimizers for parameter in with_gradients(each)]
            norm = None if max_norm is None else torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            for each in optimizers:
                each.step()
            return norm
        self._current("step_all")
        for each in optimizers:
            stage = self._per_optimizer_states[id(each)]["stage"]
            if stage is OptState.STEPPED:
                raise RuntimeError("step() has already been called since the last update().")
            if stage is OptState.UNSCALED:
                raise RuntimeError(
                    "unscale_() has already been called on one of these optimizers since the last update(). "
                    "step_all() unscales and clips: call it alone, and update() at the end of each step."
                )
        if list(map(id, self._joint.optimizers)) != list(map(id, optimizers)):
            self._joint = Joint(optimizers)
        state = {"stage": OptState.READY, "found_inf_per_device": {}}
        try:
            norm = self._check(self._joint, state, True, max_norm)
            state["stage"] = OptState.UNSCALED
        finally:
            for each in optimizers:
                self._per_optimizer_states[id(each)] = dict(state)
        for each in optimizers:
            self.step(each)
        return norm

    def _is_dummy(self, optimizer: torch.optim.Optimizer, named: Mapping[str, Any]) -> bool:
        """Returns whether a step leaves the scaler alone; see is_dummy."""
        is_touched = self._uses.is_touched
        if self._options.group is not None or "closure" in named or (is_touched and not _ranks.possible()):
            return False
        has_begun = any(state["found_inf_per_device"] for state in self._per_optimizer_states.values())
        return is_dummy(optimizer, is_touched or has_begun or self._memory.captures())

    def _count_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._uses.add_step(optimizer)
        if self._steps is not None and id(optimizer) in self._checks.skipped:
            self._steps.add(optimizer, self._checks.skipped[id(optimizer)])

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        check, found = optimizer_state.get("check"), list(optimizer_state["found_inf_per_device"].values())
        if check is not None and isinstance(check.report, Report) and check.is_unchanged(found):
            skipped = check.report.found_inf != 0  # without waiting for the device again
        else:
            skipped = any(map(torch.Tensor.item, found))
        if not skipped and self._guard.decision is not None:
            skipped = self._guard.skips()
            self._guard.clip(optimizer, optimizer_state, self._policy, self._names, self._guard.host_decision.events)
        self._checks.skipped[id(optimizer)] = skipped
        if not skipped:
            return call_compiled(optimizer.step, *args, **kwargs)
        state = self._memory.decided_state()
        if state is not None:
            report = self.report_of(optimizer)
            if report is not None and report.status and report.status != Status.ERROR_FACTOR:
                why = f"the gradients could not be unscaled: {c.gsc_status_string(report.status)}"
                raise RuntimeError(_ranks.refusal(report) if report.status_rank_plus_1 else why)
            if self._memory.is_stuck(state):
                self._stall(state, optimizer)
        return None

    @property
    def step_was_skipped(self) -> bool:
        """True if any optimizer skipped its step() in the current step, or, after update(), in the last step.

        It covers every reason for a skip: a guard, found_inf, ranks that differ; report.overflow is about the gradients
        alone, and report_of about one optimizer. In a subclass with its own step() it is True if gradients overflowed.
        With a fused optimizer, reading it waits for the device. After a CUDA graph it is about the last replay.
        """
        overridden = type(self).step is not GradScaler.step
        return self._checks.any_skipped() or (overridden and any(map(torch.Tensor.item, self._checks.found_inf())))

    def follow(self, target: Any, method: str = "step", optimizer: torch.optim.Optimizer | None = None) -> Follower:
        """Returns an object to call in place of `target`: it does nothing if no step was taken since its last call.

            schedule = scaler.follow(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000))
            average = scaler.follow(torch.optim.swa_utils.AveragedModel(model), "update_parameters")
            ...
            schedule.step()
            average.update_parameters(model)

        target: an object with the method, or a function
        optimizer: the optimizer of the steps; default: the target's own, if it has one, else any
        Other attributes of the result, such as state_dict, are the target's; `held` counts the calls that did nothing.
        A call after several steps, as at the end of an epoch, goes on if one of them was taken. With a fused optimizer
        on a device a call waits for the device. It does not know the steps of CUDA graphs that are replayed.
        """
        known = getattr(target, method, None if isinstance(target, torch.nn.Module) else target)
        if not callable(known):
            raise TypeError(f"target is of type {type(target).__name__}, which has no method {method!r}: pass its name")
        if optimizer is None:
            own = getattr(target, "optimizer", None)
            optimizer = own if isinstance(own, torch.optim.Optimizer) else None
        return Follower(self, target, method, optimizer)

    @eager
    def copy_unless_skipped(
        self,
        tensors: Sequence[torch.Tensor],
        out: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """Copies tensors to `out`, unless the last step() was skipped. The host never waits for the device.

            with torch.no_grad():
                new = [torch.lerp(old, weight, 0.01) for old, weight in zip(averages, weights)]
            scaler.copy_unless_skipped(new, averages)

        optimizer: the optimizer of the step; default: nothing is copied if any optimizer skipped its step
        All bits are copied, NaN included. Call it after step() or update().
        """
        if len(tensors) != len(out):
            raise ValueError(f"out has {len(out)} tensors, and tensors has {len(tensors)}: there must be as many")
        copy_unless(self._checks.decisions(optimizer), tensors, out)

    def _steps_taken(self) -> Steps:
        if self._steps is None:
            self._steps = Steps()
        return self._steps

    def __repr__(self) -> str:
        if not self._enabled:
            return f"<GradScaler({self._device!r}, enabled=False)>"
        with self._untouched():
            scale, good = self.get_scale(), self._get_growth_tracker()
        return f"<GradScaler({self._device!r}, policy={self._policy!r}): scale {scale:g}, good steps {good}>"

    @eager
    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        if self._uses.had_dummy and new_scale is None and not self._per_optimizer_states:
            self._uses.had_dummy = False
            return
        self._end_trace()
        if not self._enabled:
            return
        memory = self._current("update")
        if new_scale is not None:
            self._uses.before_update(memory)
            self._set_scale(new_scale)
        else:
            report = self._step_report()
            if report is None:
                why = _NOT_CHECKED if self._uses.scaled else _TWICE
                raise AssertionError(f"No inf checks were recorded prior to update. {why}")
            self._uses.before_update(memory)
            is_here = isinstance(memory, _memory.HostState) and self._scale_tensor.device.type == "cpu"
            # On a device the host would wait once more, and counts of ranks would differ.
            if is_here and report.overflow and not self._policy.bad_loss_rule and _ranks.count() == 1:
                report = self._with_loss(report)
            memory.update(self._policy, report)
        self._per_optimizer_states.clear()
        decided = self._guard.host_decision
        self._guard.end_step()
        self._losses.end_step()
        self._checks.is_over = True
        if self._history is not None and not memory.captures():
            self._add_line(self._history)
        if new_scale is not None:
            return
        memory.publish(self._scale_tensor, self._growth_tracker)
        latest = known = memory.latest(self._checks.any_fused())
        if latest is None and self._checks.are_empty() and not memory.captures():
            known = memory.read()  # waits for the device, which has no work on this rank
        if known is not None and known.events & _EMPTY:
            warn_of_no_gradients(self)
        if self._is_guarded:
            self._guard.remember(self._checks.by_optimizer, memory)
            if latest is not None or decided is not None:
                warn_of_equal_norms(latest or decided, 4)
        try:
            if self._options.on_skip is not None or self._last_skip is not None:
                self._tell_of_skip(memory)
        finally:
            if latest is not None and memory.is_stuck(latest):
                self._stall(latest)

    update.__doc__ = torch.amp.GradScaler.update.__doc__

    def _tell_of_skip(self, memory: _memory.HostState | _memory.DeviceState) -> None:
        """Passes the reason of a skip to on_skip, which waits for a fused optimizer; loggers do not."""
        events = memory.events()
        if events is None and self._options.on_skip is not None and not memory.captures():
            events = memory.read().events
        if True in self._checks.skipped.values() or (events or 0) & _SKIPPED:
            reason, sentence = self._explained()
            if self._last_skip is not None:
                self._last_skip = sentence
            if self._options.on_skip is not None:
                self._options.on_skip(reason)

    def _step_report(self) -> Any:
        """Returns the merged report of the current step, or None if no gradients were checked."""
        states = {id(state.get("check", state)): state for state in self._per_optimizer_states.values()}
        reports = [report for state in states.values() if (report := self._report_of(state)) is not None]
        if len(reports) < 2:
            return reports[0] if reports else None
        return self._memory.merged(reports, self._policy)

    def _report_of(self, state: Mapping[str, Any]) -> Any:
        """Returns the report of an optimizer. found_inf decides about overflow if other code wrote or replaced it."""
        check, tensors = state.get("check"), list(state["found_inf_per_device"].values())
        if not tensors:
            return None
        if "no_norm" in state:
            raise RuntimeError(_NO_NORM)
        if check is not None and check.is_unchanged(tensors):
            return check.report
        return self._memory.overruled(None if check is None else check.report, tensors)

    def _set_scale(self, new_scale: float | torch.Tensor) -> None:
        if isinstance(new_scale, torch.Tensor):
            reason = (
                "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor with "
                "requires_grad=False."
            )
            if new_scale.device.type != self._device or new_scale.numel() != 1 or new_scale.requires_grad:
                raise AssertionError(reason)
        self._memory.set_scale(self._policy, new_scale, self._growth_tracker)
        self._memory.publish(self._scale_tensor, self._growth_tracker)


def _refuse_norm(max_norm: float | None) -> None:
    if max_norm is not None and not 0 < _number("max_norm", max_norm) < math.inf:
        why = "GradScaler(want=gradscaler.Want.NORM) and report.norm give the norm alone"
        raise ValueError(f"max_norm={max_norm!r}: it must be finite and above 0; {why}")


def _without_scale(optimizer: torch.optim.Optimizer, grad_scale: Any) -> None:
    """Removes the scale that torch leaves in a fused optimizer that failed: the next step() would divide twice."""
    for name, value in {"grad_scale": grad_scale, "found_inf": None}.items():
        if value is not None:
            setattr(optimizer, name, value)
        elif hasattr(optimizer, name):
            delattr(optimizer, name)


def _without_gradients(optimizer: torch.optim.Optimizer) -> str:
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    return (
        f"None of its {count} parameters has a gradient: call scaler.scale(loss).backward() before step(), with a loss "
        "that depends on them, and zero_grad() only after it."
    )
