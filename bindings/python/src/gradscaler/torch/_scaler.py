# SPDX-License-Identifier: MIT
"""torch's GradScaler with one C call for all gradients of an optimizer."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import difflib
import functools
import math
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from .. import _checkpoints, _cuda
from .. import _gradscaler as c
from .. import _scaler as base
from .._entries import Note
from .._policy import Policy, is_fixed, policy_of, presets, rules, warn_if_idle
from .._report import Report
from .._structs import Event, Factor, Guard, LimitRule, OverflowReset, OverflowTest, State, Status, Want
from . import _grads, _memory, _place, _ranks
from ._found import Found, FoundInf
from ._grads import Lot, Sorted
from ._names import Names, at, owners, some
from ._stall import Losses, StallError, stalled
from ._torch import Base, OptState, TorchGradScaler, eager, is_torchs, lacks_cuda, seen


class _Float(float):
    """A number of torch's that stands where none was given: it leaves that of a policy alone."""


class _Int(int):
    """Likewise."""


_NUMBERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
_ENTRIES = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")  # of a checkpoint
_F16 = 1 << c.GSC_F16
_NORM, _STOPPED = int(Want.NORM), int(Event.STOPPED)
_STALL_LIMIT = 10
_ALIKE = 10  # norms in a row
_SKIPPED, _OUTLIER, _CLIPPED = int(Event.SKIPPED), int(Event.OUTLIER), int(Event.CLIPPED)
_MEMORY = 0.1  # weight of a step in the usual shares of the norm
_NOT_SAVED = ("_names", "_memory", "_last", "_looks", "_skipped", "_losses", "_looks_over", "_arrival", "_expected")
_NOT_SAVED += ("_judged", "_said", "_usual")
_NO_BACKOFF = "backoff_factor is 0: it must be above 0"  # where 0 stands for 1 / growth_factor in C
_NO_NORM = (
    "_unscale_grads_ was replaced, or called with another inverse, so nobody has taken the norm that the guard of the "
    "policy judges by: call GradScaler's with the arguments that it was called with, or take a policy without a guard"
)
_Init = TypeVar("_Init", bound=Callable)


@dataclasses.dataclass
class _Look:
    """What one look at the gradients of an optimizer is told."""

    optimizer: torch.optim.Optimizer
    state: dict[str, Any]  # torch's, of this optimizer
    writes: bool
    fp16: bool
    want: int
    memory: _memory.Host | _memory.Device
    factor: Any


def _older_form(init: _Init) -> _Init:
    """Where the scale is given first, by its place, "cuda" goes before it: names and places are as ever from there."""

    @functools.wraps(init)
    def either(self: GradScaler, *args: Any, **named: Any) -> None:
        older = args and isinstance(args[0], int | float)
        init(self, *(("cuda", *args) if older else args), **named)

    return either


class GradScaler(Base):
    """torch.amp.GradScaler, faster and with more to say; for gradients on the CPU and on CUDA devices.

    GradScaler(device="cuda", init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000,
               enabled=True, *, ...) as in torch; the older form, whose first argument is init_scale, is taken, too.

    policy: a preset of gradscaler.presets() by name, or a gradscaler.Policy; numbers that are given replace its fields.
        Without it the rules are torch's, "torch"
    min_scale, max_scale: floor and ceiling of the scale; 0 is none. With a floor ten overflows in a row that could not
        lower the scale stop training, if the policy has no other max_failed_backoffs
    hysteresis: the scale is lowered by this overflow in a row and those after it; by the first, if it is 1
    allow_fp16: gradients in float16 are unscaled in place, where torch refuses them: most of what scaling saved is lost
        again, so keep parameters in float32 where you can
    want: a union of gradscaler.Want that `report` has beside its counts
    on_stall: called with a StallError, which is raised otherwise, when no further step can succeed: the scale is 0, or
        the policy stops (with on_stall or min_scale and no limit of the policy's: ten overflows in a row that could not
        lower it).
        What found it then goes on
    process_group: ranks that agree on whether a gradient overflowed, and on the norm. It is for plain tensors: those of
        DDP are equal on all ranks after backward and need none; DTensors agree over their meshes without being told
    sharded: the ranks of process_group have different gradients, as in pipelines and sharded optimizers, so that their
        squares are added; otherwise they have copies, of which those of the first rank count

    Beside torch's methods: unscale_(optimizer, max_norm=...) clips and returns the norm; `report` is what the last
    gradients were like, `report.bad` names the parameters that overflowed (see name_parameters); `step_was_skipped`
    answers for every optimizer, fused ones, too.

    help(gradscaler.torch) lists where it differs from torch's class, and why.
    On a CUDA device nothing waits but step() with an optimizer that is not fused, as in torch, get_scale() and what
    reads `report` or `step_was_skipped`; so with a fused optimizer a StallError comes from an update() some steps late,
    and not at all in a CUDA graph. The bits are those of the CPU. One thread at a time may use a scaler.
    """

    notes: Sequence[Note] = ()

    @_older_form
    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = _Float(2.0**16),
        growth_factor: float = _Float(2.0),
        backoff_factor: float = _Float(0.5),
        growth_interval: int = _Int(2000),
        enabled: bool = True,
        *,
        policy: str | Policy | None = None,
        min_scale: float | None = None,
        max_scale: float | None = None,
        hysteresis: int | None = None,
        allow_fp16: bool = False,
        want: int = 0,
        on_stall: Callable[[StallError], Any] | None = None,
        process_group: Any = None,
        sharded: bool = False,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise TypeError(f"GradScaler: the argument {name!r} {_unknown(name)}")
        pairs = zip(_NUMBERS, (init_scale, growth_factor, backoff_factor, growth_interval), strict=True)
        fields = {name: number for name, number in pairs if not isinstance(number, _Float | _Int)}
        if isinstance(device, str) and device in presets():
            raise ValueError(f"device is {device!r}, which is a preset: GradScaler(policy={device!r})")
        if not isinstance(want, int):
            raise TypeError(f"want={want!r}: expected a union of gradscaler.Want, such as Want.NORM | Want.AMAX")
        if on_stall is not None and not callable(on_stall):
            raise TypeError(f"on_stall={on_stall!r}: expected a function that takes a StallError")
        if isinstance(process_group, int | str):
            raise TypeError(f"process_group={process_group!r}: expected a torch.distributed group that has this rank")
        if hysteresis is not None and not hysteresis >= 1:
            raise ValueError(f"hysteresis={hysteresis!r}: it must be a whole number from 1 on")
        self._policy, self._allow_fp16, self._want, self._on_stall = Policy("torch"), allow_fp16, int(want), on_stall
        self._group, self._sharded = process_group, sharded
        given = {"policy": policy, "min_scale": min_scale, "max_scale": max_scale, "hysteresis": hysteresis}
        self._given = tuple(name for name, value in given.items() if value is not None)
        self._saved: State | None = None  # counts that torch's class has no place for, until there is a _scale
        self._names = Names()
        self._forget()
        if device == "cuda" and enabled and lacks_cuda():
            why = "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling."
            warnings.warn(f"{why} GradScaler('cpu') scales for gradients on the CPU.", stacklevel=3)
            enabled = False
        TorchGradScaler.__init__(self, device, enabled=enabled)
        if not self._enabled:
            return
        if fields.get("growth_factor", 2.0) <= 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if fields.get("backoff_factor", 0.5) >= 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        if fields.get("backoff_factor") == 0:
            raise ValueError(_NO_BACKOFF)
        options = {"min_scale": min_scale, "max_scale": max_scale, "hysteresis": hysteresis}
        fields |= {name: value for name, value in options.items() if value is not None}
        if policy is None and (hysteresis or 1) > 1:
            fields["overflow_reset"] = OverflowReset.ON_GOOD_STEP
        if policy is None and max_scale:
            fields["ceiling_rule"] = LimitRule.CLAMP  # torch drops a growth that would reach infinity, its only limit
        if "init_scale" in fields and base._number("init_scale", fields["init_scale"]) <= 0:
            raise ValueError(f"init_scale is {fields['init_scale']}: it must be finite and above 0")
        self._policy = _policy(policy, fields)
        warn_if_idle(self._policy)
        if (on_stall is not None or min_scale) and not self._policy.max_failed_backoffs:  # a floor hides stalls
            self._policy.max_failed_backoffs = _STALL_LIMIT
        self._init_scale = self._policy.init_scale or 1.0
        _rounded("init_scale", self._init_scale, self._policy)

    def _forget(self) -> None:
        """What is not saved."""
        self._memory: _memory.Host | _memory.Device | None = None  # of the state
        self._last: Found | None = None
        # of the step that is under way, or else the last: by the id of each optimizer
        self._looks: dict[int, Found] = {}
        self._skipped: dict[int, bool | list[torch.Tensor]] = {}
        self._losses = Losses()
        self._looks_over = False  # whether the next one is of another step
        self._arrival: _cuda.Arrival | None = None  # the state of a device after an update before the last
        self._expected = False  # whether it is of the scale in force, and not of one from before
        self._judged: Any = None  # a policy that guards: the state after the update of the step that is under way
        self._said: tuple[Any, Any] | None = None  # and what the state was before it, of the last step that was judged
        # By the id of an optimizer: those of its parameters that had gradients, and their usual shares in the norm.
        self._usual: dict[int, tuple[tuple, torch.Tensor]] = {}

    # ---- the rules: torch's own methods read and write these three ----

    @property
    def _growth_factor(self) -> float:
        return self._policy.growth_factor or 1.0

    @_growth_factor.setter
    def _growth_factor(self, value: float) -> None:
        if value < 1:
            raise ValueError(f"growth_factor is {value}: it must be finite and at least 1")
        self._policy.growth_factor = value

    @property
    def _backoff_factor(self) -> float:
        return self._policy.backoff_factor or 1.0 / self._growth_factor

    @_backoff_factor.setter
    def _backoff_factor(self, value: float) -> None:
        if value == 0:
            raise ValueError(_NO_BACKOFF)
        self._policy.backoff_factor = value

    @property
    def _growth_interval(self) -> int:
        return self._policy.growth_interval

    @_growth_interval.setter
    def _growth_interval(self, value: int) -> None:
        self._policy.growth_interval = value

    # ---- the state: torch's two tensors show its scale and its count, and what others write there counts ----

    @eager
    @torch.inference_mode(False)  # whose tensors could not be trained with
    def _lazy_init_scale_growth_tracker(self, dev: torch.device | str) -> None:
        if self._growth_tracker is not None:
            raise AssertionError("_growth_tracker initialized before _scale")
        dev = torch.device(dev)
        if dev.type != "meta":
            _place.ordinal(dev)  # refuses what is neither the host nor CUDA's
        state = self._start()
        self._scale = torch.full((), state.factor.scale, dtype=torch.float32, device=dev)
        self._growth_tracker = torch.full((), state.good_steps, dtype=torch.int32, device=dev)
        self._memory = None

    def _start(self) -> State:
        return _resumed(self._policy, self._init_scale, self._init_growth_tracker, self._saved)

    def _current(self, function: str) -> _memory.Host | _memory.Device:
        """The state, with what others have written into torch's two tensors."""
        scale, good = self._check_scale_growth_tracker(function)
        memory = self._memory
        if memory is None or memory.home != scale.device:
            state = self._start() if memory is None else memory.read()
            with torch.inference_mode(False):
                self._memory = memory = _memory.start(state, scale.device)
        memory.take(self._policy, scale, good)
        return memory

    def _put(self, state: State) -> None:
        """Puts another state in force."""
        self._memory = _memory.start(state, self._scale.device)
        self._expected = False
        self._memory.show(self._scale, self._growth_tracker)

    # ---- the step ----

    def scale(self, outputs: Any) -> Any:
        compiling = torch.compiler.is_compiling()
        if compiling and self._enabled and isinstance(outputs, torch.Tensor):
            if self._scale is None:
                self._lazy_init_scale_growth_tracker(outputs.device)
            return outputs * self._scale.to(device=outputs.device, non_blocking=True)  # torch's own is never traced
        if self._enabled and not compiling:
            self._losses.add(outputs)
        return super().scale(outputs)

    scale.__doc__ = torch.amp.GradScaler.scale.__doc__

    @eager
    def unscale_(self, optimizer: torch.optim.Optimizer, max_norm: float | None = None) -> torch.Tensor | None:
        """Divides the gradients of the optimizer by the scale and checks them, once between two updates, as in torch.

        With `max_norm`, finite and above 0, gradients whose global L2 norm is above it are multiplied by
        max_norm / (norm + 1e-6), as torch.nn.utils.clip_grad_norm_ does. Returned is the norm before that, a float32
        tensor of no dimensions on the device of the scale. It is infinite after an overflow, when the gradients are to
        be dropped: those of the host are not clipped then, those of a device, which is not waited for, may be.
        """
        if max_norm is not None and not 0 < base._number("max_norm", max_norm) < math.inf:
            why = "GradScaler(want=gradscaler.Want.NORM) and report.norm give the norm alone"
            raise ValueError(f"max_norm={max_norm!r}: it must be finite and above 0; {why}")
        if not self._enabled:
            return None if max_norm is None else torch.nn.utils.clip_grad_norm_(_with_gradients(optimizer), max_norm)
        self._current("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        norm = self._looked_at(optimizer, state, True, max_norm)
        state["stage"] = OptState.UNSCALED
        return norm

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[Any, torch.Tensor]:
        self._current("_check_inf_per_device")
        state = self._per_optimizer_states[id(optimizer)]
        if self._judged is None or not state["found_inf_per_device"]:  # else the guard has looked
            self._looked_at(optimizer, state, False)
        return state["found_inf_per_device"]

    def _looked_at(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any], writes: bool, max_norm: float | None = None
    ) -> torch.Tensor | None:
        """The look itself, or what a program has put in the place of the method that torch does it with."""
        try:
            method = getattr(self._unscale_grads_, "__func__", None)
            if getattr(method, "__globals__", None) is globals() and is_torchs(super()._unscale_grads_):
                found = self._look(optimizer, state, writes, self._allow_fp16 or not writes, max_norm)
                state["found_inf_per_device"] = found.verdict
                return found.norm
            inverse, found_inf = self._inverse(writes), torch.zeros((), dtype=torch.float32, device=self._scale.device)
            inverse.asked = state, writes, max_norm  # beside what torch's method has arguments for
            state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, found_inf, not writes)
            found = state.get("found")
            if self._policy.guards and found is None:
                state["no_norm"] = True
                if writes:  # they are divided by now, so that another step() must not divide them again
                    state["stage"] = OptState.UNSCALED
                raise RuntimeError(_NO_NORM)
            if max_norm is None or found is not None:
                return None if found is None else found.norm
            return torch.nn.utils.clip_grad_norm_(_with_gradients(optimizer), max_norm).float()
        except BaseException:
            if state["stage"] is OptState.UNSCALED:  # some are divided: no step may be made with them
                state["found_inf_per_device"] = {_place.CPU: torch.ones((), device=_place.CPU)}
                state.pop("found", None)
            raise

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        """What programs override, mostly to allow float16, and call with what it was called with."""
        if not is_torchs(super()._unscale_grads_):
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        fp16, asked = allow_fp16 or self._allow_fp16, getattr(inv_scale, "asked", None)
        if asked is not None:
            state, writes, max_norm = asked
            return self._look(optimizer, state, writes, fp16, max_norm).verdict
        if self._policy.guards:
            raise RuntimeError(_NO_NORM)
        found = self._look(optimizer, {"stage": None}, True, fp16, None, inv_scale)
        verdict = found.verdict.items()
        return FoundInf({device: torch.maximum(found_inf.to(device), tensor) for device, tensor in verdict})

    def _look(
        self,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        writes: bool,
        fp16: bool,
        max_norm: float | None = None,
        inverse: torch.Tensor | None = None,
    ) -> Found:
        """The one look at all gradients, which are multiplied by `inverse`, or else by the inverse of the scale."""
        home, memory = (self._scale if inverse is None else inverse).device, self._memory
        if memory is None or memory.home != home:  # of a call with an inverse of its own
            memory = _memory.start(self._start(), home)
        if inverse is None and not memory.is_usable():
            self._stall(memory.read(), optimizer)
            found, any_there = Found(Report.of_flag(True), []), True
        else:
            by_norm = max_norm is not None or self._policy.guards or self._policy.overflow_test == OverflowTest.NORM
            factor = memory.factor(bool(self._policy.arithmetic)) if inverse is None else memory.factor_of(inverse)
            look = _Look(optimizer, state, writes, fp16, self._want | _NORM if by_norm else self._want, memory, factor)
            found, any_there = self._looked(look)
        if max_norm is not None:
            found.norm, found.clip = memory.norm(found.report), memory.clip(found.report, float(max_norm))
            if found.clip is not None:
                _multiply(found.lots, found.rest, found.clip)
        if writes and found.rest:
            found.rest.put_back()
        found.verdict = FoundInf({found.found_inf.device: found.found_inf} if any_there else {})
        if self._looks_over:
            self._looks_over, self._said = False, None
            self._looks.clear()
            self._skipped.clear()
        found.optimizer = _weak(optimizer)
        on_host = isinstance(memory, _memory.Host)
        if not on_host or found.report.overflow or self._policy.guards:
            found.owners = owners(optimizer)  # before the last are gone, whose references are these
        state["found"] = self._last = self._looks[id(optimizer)] = found
        found.scale = memory.scale()
        if not on_host:
            found.captured = _place.captures(memory.home)
        elif not found.report.overflow:
            found.read(list)
        if self._policy.guards and found.lots:
            self._share(optimizer, found)
        found.release()
        return found

    @torch.inference_mode(False)  # later steps write what is usual
    def _share(self, optimizer: torch.optim.Optimizer, found: Found) -> None:
        """Keeps which part of the square of the norm each gradient has; what is usual is of the steps before."""
        order = [i for lot in found.lots for i in lot.indices]
        rows = [lot.reports(self._scale.device).view(torch.float64) for lot in found.lots]
        squares = torch.cat(rows)[:, Report.sum_squares.offset // 8]
        if order != list(range(len(order))):  # of several devices or meshes; none has another place
            places = _place.places(order, squares.device)
            squares = squares.new_zeros(max(order) + 1).index_copy_(0, places, squares)
        share = squares / squares.sum().clamp_min(torch.finfo(torch.float64).tiny)
        whose = tuple(map(id, _with_gradients(optimizer)))
        known, usual = self._usual.get(id(optimizer), (None, None))
        if known != whose or usual.shape != share.shape or usual.device != share.device:
            usual = share.clone()
            self._usual[id(optimizer)] = whose, usual
        found.shares = share, usual.clone()

    def _looked(self, look: _Look) -> tuple[Found, bool]:
        optimizer, home, meshes = look.optimizer, look.memory.home, ()
        grads = _grads.gradients(optimizer)
        if _ranks.possible():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if _ranks.is_spread(c.kinds(parameters) | c.kinds(grads)):
                meshes = _ranks.meshes(parameters + grads)
        if meshes or self._group is not None:
            return self._agreed(look, grads, meshes), True
        if c.kinds(grads) <= _place.PLAIN:
            try:
                lot = Lot(home, grads, range(len(grads)))
            except c.Error:
                lot = None  # some are elsewhere, or not dense
            if lot is not None:
                self._run([lot], look)
                return Found(lot.report, [lot]), bool(grads)
        rest = self._sorted(optimizer, grads, look.want)
        self._run(rest.lots, look)
        others = rest.others_reports(look.writes, look.factor)
        if len(rest.lots) == 1 and rest.lots[0].device == home and not others:
            return Found(rest.lots[0].report, rest.lots, rest), True
        report = _place.merged(torch.cat([self._each(rest, home).view(-1), *others]), self._policy)
        return Found(look.memory.report(report), rest.lots, rest), True

    def _sorted(self, optimizer: torch.optim.Optimizer, grads: list[torch.Tensor], want: int) -> Sorted:
        try:
            return Sorted(_with_gradients(optimizer), grads, lambda i: self._names.of(owners(optimizer))[i], want)
        except c.Error as error:
            self._explain(error, optimizer, None)
            raise

    def _explain(self, error: c.Error, optimizer: torch.optim.Optimizer, lot: Lot | None) -> None:
        """Names the parameters whose gradients were refused; `lot` is the list that the error counts in."""
        if error.index < 0:
            return
        names, places = self._names.of(owners(optimizer)), lot.indices if lot else range(2**31)
        why = error.why
        if error.other >= 0:
            other = at(names, places[error.other])
            why = f"shares memory with that of {other}: it would be unscaled twice; give each its own"
        error.args = (f"the gradient of {at(names, places[error.index])} {why}",)

    def _run(self, lots: list[Lot], look: _Look) -> None:
        if not look.fp16 and any(lot.dtypes & _F16 for lot in lots):
            self._refuse_fp16(look.optimizer)
        for lot in lots:
            try:
                lot.run(look.writes, _there(look.factor, lot.device), self._policy, look.want)
            except c.Error as error:
                self._explain(error, look.optimizer, lot)
                raise
            if look.writes and look.state["stage"] is OptState.READY:
                look.state["stage"] = OptState.UNSCALED

    def _refuse_fp16(self, optimizer: torch.optim.Optimizer) -> None:
        grads = _grads.gradients(optimizer)
        index = next(i for i, grad in enumerate(grads) if grad.dtype == torch.float16)
        name = self._names.of(owners(optimizer))[index]
        raise ValueError(
            f"Attempting to unscale FP16 gradients. That of {name} is in float16: keep the "
            "parameters in float32 and run the model under torch.autocast, or pass allow_fp16=True to GradScaler, "
            "though in place most of what scaling saved is lost again."
        )

    def _inverse(self, writes: bool) -> torch.Tensor:
        """What torch's own calls multiply by."""
        if not writes:
            return torch.ones((), dtype=torch.float32, device=self._scale.device)
        return self._scale.double().reciprocal().float()

    def _each(self, rest: Sorted, home: torch.device) -> torch.Tensor:
        """The reports of each gradient in their order, where the scale is."""
        rows = [lot.reports(home) for lot in rest.lots]
        order = [i for lot in rest.lots for i in lot.indices]
        if not rows:
            return torch.empty((0, _place.SIZE), dtype=torch.uint8, device=home)
        if len(rows) == 1:
            return rows[0]
        ranks = _place.places(sorted(range(len(order)), key=order.__getitem__), home)
        return torch.cat(rows)[ranks]

    def _agreed(self, look: _Look, grads: list[torch.Tensor], meshes: list) -> Found:
        """As one of several ranks: also one whose own part was refused tells the others, so that none waits for it."""
        memory, home, rest, failed, parts = look.memory, look.memory.home, None, None, {}
        try:
            rest = self._sorted(look.optimizer, grads, look.want)
            self._run(rest.lots, look)
            others = rest.others_reports(look.writes, look.factor)
            each = self._each(rest, home)
            order = sorted(i for lot in rest.lots for i in lot.indices)
            at = {i: place for place, i in enumerate(order)}
            parts = {
                key: _place.merged(each[_place.places([at[i] for i in indices], home)])
                for key, indices in rest.segments.items()
            }
            if others:
                plain = [parts.pop((None, True))] if (None, True) in parts else []
                parts[None, True] = _place.merged(torch.cat([*plain, *others]))
        except Exception as error:
            failed = error
            status = getattr(error, "status", None) or Status.ERROR_VALUE
            bad = torch.frombuffer(Report.failed(status), dtype=torch.uint8).to(home)
            parts = {(None, False): bad}
        report = _ranks.agreed(parts, meshes, self._group, self._sharded, self._policy, memory.words, home)
        if failed is not None:
            raise failed
        report = memory.report(report)
        if isinstance(report, Report) and (why := _ranks.refusal(report)):
            raise RuntimeError(why)
        found = Found(report, rest.lots, rest)
        found.alike = not self._sharded
        return found

    def _judge(self, optimizer: torch.optim.Optimizer, fused: bool) -> None:
        """Asks the guard about the gradients of the step that is under way, as far as they have been looked at."""
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.READY and fused:
            self._judged = None
            self._check_inf_per_device(optimizer)  # it divides by itself
        elif state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        report = self._step_report()
        if report is not None:
            before, judged = self._memory.copy(), self._memory.copy()
            judged.update(self._policy, report)
            self._judged, self._said = judged, (before, judged)

    def _guarded(self, optimizer: torch.optim.Optimizer, events: int | None) -> None:
        """Clips as the verdict says; `events` None: what it says is on a device, which is not waited for."""
        if not self._policy.guard_flags & Guard.CLIP or (events is not None and not events & _CLIPPED):
            return
        state = self._per_optimizer_states[id(optimizer)]
        if "guarded" in state:  # by a step() of the optimizer that then failed
            return
        clip, found = self._judged.guard_factor(), state.get("found")
        if found is not None and found.clip is not None:
            _beyond(clip, found.clip)
        rest = self._sorted(optimizer, _grads.gradients(optimizer), 0)
        if state["stage"] is OptState.UNSCALED:  # otherwise the next step() looks at them anew
            state["guarded"] = True
        _multiply(rest.lots, rest, clip)
        rest.put_back()

    def _step_fused(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """An optimizer that looks at found_inf itself: where the guard skips it is told the same."""
        state = self._per_optimizer_states[id(optimizer)]
        found, refused, home = state["found_inf_per_device"], self._judged.refusal(), self._memory.home
        self._guarded(optimizer, self._judged.events())
        refused = sum((one.to(home, non_blocking=True) for one in found.values()), refused)
        refused = FoundInf({home: refused.clamp(max=1.0)})  # kernels skip where it is 1, not where it is 2
        state["found_inf_per_device"] = refused
        try:
            return super().step(optimizer, *args, **kwargs)
        finally:
            self._skipped[id(optimizer)] = list(state["found_inf_per_device"].values())
            state["found_inf_per_device"] = found

    @eager
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        if not self._enabled:
            return super().step(optimizer, *args, **kwargs)
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        # What torch's class refuses it is left to refuse, before anything is written.
        judges = self._policy.guards and self._scale is not None and "closure" not in kwargs
        judges = judges and self._per_optimizer_states[id(optimizer)]["stage"] is not OptState.STEPPED
        if judges:
            self._judge(optimizer, fused)
        given = getattr(optimizer, "grad_scale", None)
        try:
            if fused and judges and self._judged is not None:
                return self._step_fused(optimizer, *args, **kwargs)
            result = super().step(optimizer, *args, **kwargs)
        except BaseException as error:
            if fused:
                _without_scale(optimizer, given)
            state = self._per_optimizer_states.get(id(optimizer))
            if isinstance(error, AssertionError) and state and not state["found_inf_per_device"]:
                error.args = (f"{error.args[0]} {_without_gradients(optimizer)}",)
            raise
        if fused:
            tensors = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
            self._skipped[id(optimizer)] = list(tensors)
        return result

    step.__doc__ = torch.amp.GradScaler.step.__doc__

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        skipped = any(found.item() for found in optimizer_state["found_inf_per_device"].values())
        if not skipped and self._judged is not None:
            judged = self._judged.read()
            if isinstance(self._judged, _memory.Device):
                self._check_norms(judged, 6)
            skipped = judged.events & _SKIPPED != 0
            self._guarded(optimizer, judged.events)
        self._skipped[id(optimizer)] = skipped
        if not skipped:
            return seen(optimizer.step, *args, **kwargs)
        if isinstance(self._memory, _memory.Device):  # which has been waited for
            report = self.report_of(optimizer)
            if report is not None and report.status and report.status != Status.ERROR_FACTOR:
                why = f"the gradients could not be unscaled: {c.gsc_status_string(report.status)}"
                raise RuntimeError(_ranks.refusal(report) if report.status_rank_plus_1 else why)
            state = self._memory.read()
            if not 0 < state.factor.scale < math.inf or state.events & _STOPPED:
                self._stall(state, optimizer)
        return None

    @property
    def step_was_skipped(self) -> bool:
        """Whether step() left the parameters of any optimizer alone since the update() before the last; see report_of.

        This is the answer about steps, whoever asked for the skip: a guard, found_inf, a disagreement of ranks.
        report.overflow is about the gradients alone. In a subclass with a step() of its own it is what was found.
        With a fused optimizer on a device this waits for it. After a step in a CUDA graph it is of the last replay.
        """
        answers = []
        if type(self).step is not GradScaler.step:
            answers = [tensor.item() != 0 for found in self._looks.values() for tensor in found.verdict.values()]
        for key, skipped in self._skipped.items():
            if not isinstance(skipped, bool):
                skipped = any(found.item() for found in skipped)
                if key not in self._looks or not self._looks[key].captured:  # else each replay of a graph steps anew
                    self._skipped[key] = skipped
            answers.append(skipped)
        return any(answers)

    @property
    def total_guard_skips(self) -> int:
        """Steps that the guard skipped since the start, as of the last update(). A device is waited for."""
        if not self._enabled:
            return 0
        if self._scale is None:
            return self._saved.total_guard_skips if self._saved is not None else 0
        return self._current("total_guard_skips").read().total_guard_skips

    @property
    def report(self) -> Report | None:
        """What the gradients of the last unscale_() or step() were like; None before. A device is waited for.

        Names and counts in `bad` are of this rank; other numbers are of all ranks that agree, or, where they have
        copies (a process_group without sharded=True), of its first rank. So if the copy of another rank alone is not
        finite, `overflow` and `rank` say so on all ranks, `bad` on that rank, and `first_overflow` is None.
        """
        return None if self._last is None else self._seen(self._last)

    def report_of(self, optimizer: torch.optim.Optimizer) -> Report | None:
        """As `report`, of one of several optimizers: its gradients in the step under way, or else the last; else None.

        Where its `overflow` is, step(optimizer) leaves the parameters alone.
        """
        for key, found in self._looks.items():
            known = found.optimizer()
            if known is optimizer or (known is None and key == id(optimizer)):
                return self._seen(found)
        return None

    def _seen(self, found: Found) -> Report:
        names = functools.partial(self._names.of, found.owners)
        report = found.read(names)
        if found.shares is not None and self._said is not None and self._said[1].read().events & _OUTLIER:
            report.grew = _grown(*(shares.tolist() for shares in found.shares), names())
        return report

    def __repr__(self) -> str:
        if not self._enabled:
            return f"<GradScaler({self._device!r}, enabled=False)>"
        scale, good = self.get_scale(), self._get_growth_tracker()
        return f"<GradScaler({self._device!r}, policy={self._policy!r}): scale {scale:g}, good steps {good}>"

    @property
    def reason(self) -> str:
        """Why the last step() skipped, clipped or let an outlier through, or empty. A device is waited for.

        Of a norm that the policy's guard found too large it tells the threshold, what is usual, and the parameters
        whose part of the norm's square grew most: those of report.grew, on several ranks of this one's own.
        """
        reports = [self._seen(found) for found in self._looks.values()]
        if any(tensor.item() for found in self._looks.values() for tensor in found.verdict.values()):
            if not any(report.overflow for report in reports):
                return "skipped: found_inf is not 0, though the gradients are finite: others wrote it"
            bad = [name for report in reports for name in report.bad]
            return f"skipped: Inf or NaN in the gradients of {some(bad)}" if bad else "skipped: overflow"
        if self._said is None:
            return ""
        before, state = (memory.read() for memory in self._said)
        if not state.events & _OUTLIER:
            return ""
        norm = _norm_of(reports)
        done = "skipped" if state.events & _SKIPPED else "let through"
        done = f"clipped: multiplied by {state.guard_multiplier:.3g}" if state.events & _CLIPPED else done
        steps = "1 step" if before.guard_count == 1 else f"{before.guard_count} steps"
        usual = f"; the mean of {steps} is {before.guard_mean:.4g}" if before.guard_count else ""
        told = f"{done}: the norm of the gradients is {norm:.4g}, above {state.guard_threshold:.4g}{usual}"
        return told + _grown_words(reports)

    @eager
    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        if not self._enabled:
            return
        memory = self._current("update")
        if new_scale is not None:
            self._set_scale(new_scale)
        else:
            report = self._step_report()
            if report is None:
                why = "Call scale(), and step() or unscale_() with each optimizer, before update()."
                raise AssertionError(f"No inf checks were recorded prior to update. {why}")
            memory.update(self._policy, report)
            if self._judged is not None and isinstance(memory, _memory.Host):
                self._check_norms(memory.words, 4)
        self._per_optimizer_states.clear()
        self._judged, self._looks_over = None, True
        self._losses.end_step()
        if new_scale is not None:
            return
        memory.show(self._scale, self._growth_tracker)
        if self._policy.guards:
            self._remember()
        if isinstance(memory, _memory.Host):
            if memory.words.events & _STOPPED:
                self._stall(memory.read())
        elif any(not isinstance(skipped, bool) for skipped in self._skipped.values()):
            self._watch()

    update.__doc__ = torch.amp.GradScaler.update.__doc__

    def _step_report(self) -> Any:
        """The report on all gradients of the step that is under way; None where none were looked at."""
        reports = [self._report_of(state) for state in self._per_optimizer_states.values()]
        reports = [report for report in reports if report is not None]
        if len(reports) < 2:
            return reports[0] if reports else None
        return self._memory.merged(reports, self._policy)

    def _remember(self) -> None:
        """What parts of the norm the gradients had in a step that was as usual."""
        for key, found in self._looks.items():
            _, usual = self._usual.get(key, (None, None))
            if found.shares is not None and usual is not None and usual.shape == found.shares[0].shape:
                good = self._memory.has_none_of(_OUTLIER | _SKIPPED)
                usual.copy_(torch.where(good, usual.lerp(found.shares[0], _MEMORY), usual))

    def _watch(self) -> None:
        """Whether training is stuck on a device: with a fused optimizer nobody looks, so the state is sent to the host
        behind an update, and what has come is looked at in a later one. Nothing waits.
        """
        home = self._memory.home
        if _place.captures(home):
            return
        context, stream, _ = _place.on(home)
        if self._arrival is None or self._arrival.context is not context:
            self._arrival, self._expected = _cuda.Arrival(context, ctypes.sizeof(State)), False
        if not self._arrival.is_there():
            return
        state = State.from_buffer_copy(self._arrival.data()) if self._expected else None
        self._arrival.send(stream, self._memory.words, ctypes.sizeof(State))
        self._expected = True
        if state is not None:
            self._check_norms(state, 5)
        if state is not None and (not 0 < state.factor.scale < math.inf or state.events & _STOPPED):
            self._stall(state)

    def _check_norms(self, state: State, level: int) -> None:
        """A guard is of no use where each norm is that of the steps before, as after a clip_grad_norm_() of others."""
        if state.guard_count == _ALIKE and state.guard_variance <= (1e-5 * state.guard_mean) ** 2:
            warnings.warn(
                f"the norm of the gradients was {state.guard_mean:.6g} in each of {_ALIKE} steps: if they were clipped "
                "before GradScaler saw them, the guard finds no outlier; call scaler.unscale_(optimizer) before, or "
                "clip with scaler.unscale_(optimizer, max_norm=...)",
                stacklevel=level,
            )

    def _report_of(self, state: Mapping[str, Any]) -> Any:
        """The report of an optimizer, where the scale is; found_inf rules, if others wrote it or brought theirs."""
        found, tensors = state.get("found"), list(state["found_inf_per_device"].values())
        if not tensors:
            return None
        if "no_norm" in state:
            raise RuntimeError(_NO_NORM)
        if found is not None and found.rules(tensors):
            return found.report
        return self._memory.ruled(None if found is None else found.report, tensors)

    def _set_scale(self, new_scale: float | torch.Tensor) -> None:
        if isinstance(new_scale, torch.Tensor):
            reason = (
                "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor with "
                "requires_grad=False."
            )
            if new_scale.device.type != self._device or new_scale.numel() != 1 or new_scale.requires_grad:
                raise AssertionError(reason)
            if isinstance(self._memory, _memory.Device):
                self._memory.take(self._policy, new_scale, self._growth_tracker)
                self._expected = False
                self._memory.show(self._scale, self._growth_tracker)
                return
            new_scale = new_scale.item()
        state = self._memory.read()
        self._put(_started(self._policy, _rounded("new_scale", new_scale, self._policy), state.good_steps, state))

    # ---- names and stalls ----

    def name_parameters(self, model: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable) -> None:
        """Reports and messages call the parameters of this model, or of these (name, parameter) pairs, by their names.

        Without it they have the names of an optimizer that was made of model.named_parameters(), else their places.
        Where another model has such names already, these begin with the class of this one.
        """
        self._names.add(model)

    def _stall(self, state: State, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Ends training, or tells who wants to know, with what there is to say; `optimizer` is the one at hand."""
        reports = [self._seen(found) for found in self._looks.values()]
        report = next((each for each in reversed(reports) if each.bad or each.overflow), self.report)
        optimizers = [found.optimizer() for found in self._looks.values()]
        optimizers = {id(each): each for each in [*optimizers, optimizer] if each is not None}
        if state.events & _OUTLIER:
            error = StallError(
                f"{state.guard_in_a_row} steps in a row had a norm above what the guard allows, the last "
                f"{_norm_of(reports):.4g}, above {state.guard_threshold:.4g}{_grown_words(reports)}. Look at the data "
                "and the learning rate, or raise guard_max_in_a_row or the threshold."
            )
        else:
            error = stalled(state, report, self._names, self._losses, optimizers.values())
        error.report = report
        if self._on_stall is None:
            raise error
        self._on_stall(error)

    # ---- to and from a checkpoint ----

    def state_dict(self, format: str | None = None, *, prefix: str | None = None) -> dict[str, Any]:
        """The five entries of torch's; with other rules than its own, a sixth of theirs, which torch passes over.

        With `format`, one of gradscaler.formats(), what that framework saves and goes on from, under keys that begin
        with `prefix`, where one is given; `notes` are then sentences on what these cannot hold.
        """
        state = super().state_dict()
        current = (
            (self._current("state_dict").read() if self._scale is not None else self._start())
            if self._enabled
            else None
        )
        if format is not None and self._enabled:
            other = base.Scaler(self._policy)
            other.state = current
            state = other.state_dict(format, prefix=prefix)
            self.notes = other.notes
        elif self._enabled and self._policy.differences("torch").keys() - set(_NUMBERS):
            state["gradscaler"] = f"{self._policy.preset}:{c.gsc_state_save(self._policy, current).hex()}"
        return state

    def load_state_dict(
        self, state_dict: Any, format: str | None = None, prefix: str | None = None
    ) -> list[Note] | None:
        """Loads what state_dict() of this class returned, or of torch's; nothing is changed by an error.

        Without torch's keys it is recognised: as that of gradscaler.Scaler or TensorScaler, or of a framework, at the
        top or below one or two names; `format`, one of gradscaler.formats(), says which, `prefix` names one of several
        scalers in it, or a deeper one. Rules that it does not set stay. Then what it lacked, or had in vain, is
        returned.
        As in torch, the rules of a checkpoint replace those of the constructor; where it was given others by name, a
        warning names them. A policy whose scale never moves, as "guard", stays if it was given, with its scale.
        """
        if not self._enabled:
            return None
        policy, state, notes = Policy.from_buffer_copy(self._policy), State(), None
        own = format is None and prefix is None
        if own and not isinstance(state_dict, Mapping):
            kind = type(state_dict).__name__
            why = "pass what its state_dict() returned; an object of another framework needs format="
            raise TypeError(f"state_dict must be a dict, not {kind}: {why}")
        if own and len(state_dict) == 0:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        missing = [key for key in _ENTRIES if key not in state_dict] if own else ()
        if own and (not missing or state_dict.keys() <= {*_ENTRIES, "gradscaler"}):
            if missing:
                raise KeyError(missing[0])
            policy, state = _of_torch(state_dict, policy)
        elif own and (state_dict.get("format") == "gradscaler" or ("saved" in state_dict and "scale" in missing)):
            other = base.Scaler("none")
            notes = list(other.load_state_dict(state_dict))
            policy, state = Policy.from_buffer_copy(other.policy), other.state
        else:
            try:
                rows = _checkpoints.rows_of(state_dict)
                whole = _checkpoints.of_our_torchs(rows, prefix) if format in (None, "torch") else None
                if whole is not None:
                    (policy, state), notes = _of_torch(whole, policy), []
                else:
                    notes = _checkpoints.read(rows, policy, state, format, prefix)
            except c.Error as error:
                if own:
                    raise KeyError(f"state_dict has no {missing[0]!r}, and is of no other format: {error}") from None
                raise
        stays = "policy" in self._given and is_fixed(self._policy)
        if stays and (not is_fixed(policy) or format is not None):
            why = "the policy that GradScaler was given never moves it"
            warnings.warn(f"the loss scale {state.factor.scale:g} of the checkpoint is not taken: {why}", stacklevel=2)
            return notes
        self._warn(policy)
        self._said = None
        self._policy, self._init_growth_tracker = policy, state.good_steps
        self._init_scale = state.factor.scale if missing or not own else state_dict["scale"]  # torch's, not rounded yet
        if self._scale is None:
            self._saved = state
        else:
            self._put(state)
        return notes

    def _warn(self, policy: Policy) -> None:
        """Of rules that a checkpoint replaces, though the constructor was given them."""
        old, new = rules(self._policy), rules(policy)
        fields = [field for field in old if field in self._given or "policy" in self._given]
        changed = [f"{field} {old[field]:g} by {new[field]:g}" for field in fields if old[field] != new[field]]
        if changed:
            why = "the checkpoint replaces what GradScaler was given"
            warnings.warn(f"{why}: {', '.join(changed)}", stacklevel=3)
        elif is_fixed(policy) and not is_fixed(self._policy):
            why = "by the rules of the checkpoint the loss scale never moves"
            warnings.warn(f"{why}, and they replace those of GradScaler", stacklevel=3)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        saved = self._current("pickling").read() if self._enabled and self._scale is not None else self._saved
        state |= {"_policy": bytes(self._policy), "_saved": saved and bytes(saved)}
        for name in _NOT_SAVED:
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._policy = policy_of(state["_policy"])
        self._saved = state["_saved"] and State.from_bytes(state["_saved"])
        self._names = Names()
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> GradScaler:
        """Names go with it, to the copies of parameters that were copied before it."""
        made = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        made._names = self._names.copied(memo)
        return made


def _of_torch(state_dict: Mapping[str, Any], policy: Policy) -> tuple[Policy, State]:
    """Rules and state of torch's five entries, and of the sixth; `policy` has the other rules, and is written to."""
    state, saved = None, state_dict.get("gradscaler")
    if saved is not None:
        policy, state = _checkpoints.unhex(saved, "state_dict['gradscaler']")
    for field in _NUMBERS[1:]:
        try:
            if state_dict[field] == 0 and field != "growth_interval":
                raise ValueError(f"{field} is 0: it must be above 0")
            setattr(policy, field, state_dict[field])
        except (TypeError, ValueError) as error:
            error.args = (f"state_dict[{field!r}]: {error}",)
            raise
    scale, good = _rounded("state_dict['scale']", state_dict["scale"], policy), state_dict["_growth_tracker"]
    try:
        whole = isinstance(good, float) and good.is_integer()
        good = operator.index(int(good) if whole else None if isinstance(good, bool) else good)
    except TypeError:
        raise TypeError(
            f"state_dict['_growth_tracker'] is {state_dict['_growth_tracker']!r}: it must be a whole number"
        ) from None
    if not 0 <= good < 2**31:
        raise ValueError(f"state_dict['_growth_tracker'] is {good}: it counts steps, from 0 to {2**31 - 1}")
    return policy, _resumed(policy, scale, good, state)


def _unknown(name: str) -> str:
    """What to do about an argument that is none."""
    if name in rules(Policy("torch")):
        return f"is a field of the policy: policy=gradscaler.Policy(..., {name}=...)"
    options = (*_NUMBERS, "enabled", *GradScaler.__init__.__wrapped__.__kwdefaults__)
    near = difflib.get_close_matches(name, options, 1)
    return f"is unknown: {f'did you mean {near[0]}?' if near else f'it takes {options}'}"


def _grown(shares: list[float], usual: list[float], names: list[str]) -> dict[str, tuple[float, float]]:
    """Of at most three parameters, the first grew most: their part of the norm's square, what is usual and now."""
    order = sorted(range(len(shares)), key=lambda i: usual[i] - shares[i])[:3]
    return {at(names, i): (usual[i], shares[i]) for i in order if shares[i] > usual[i]}


def _norm_of(reports: Iterable[Report]) -> float:
    return math.sqrt(sum(report.sum_squares for report in reports))


def _grown_words(reports: Iterable[Report]) -> str:
    pairs = sorted((was - now, was, now, name) for report in reports for name, (was, now) in report.grew.items())
    words = ", ".join(f"{name} makes up {now:.0%} of its square, usually {was:.0%}" for _, was, now, name in pairs[:3])
    return f"; {words}" if words else ""


def _multiply(lots: Iterable[Lot], rest: Sorted | None, factor: Any) -> None:
    """What is in memory of calls by a factor's inverse, and with it what only torch can multiply."""
    for lot in lots:
        lot.multiply(_there(factor, lot.device))
    with torch.no_grad():
        for other in rest.others if rest else ():
            other.mul_(factor.inverse if isinstance(factor, Factor) else factor.view(torch.float64)[1].to(other.device))


def _beyond(clip: Any, other: Any) -> None:
    """Makes a factor of what it multiplies by beyond what another has multiplied by already."""
    if isinstance(clip, Factor):
        clip.inverse = min(1.0, clip.inverse / other.inverse)
        clip.inverse_f32 = clip.inverse
        return
    inverse, done = (words.view(torch.float64)[Factor.inverse.offset // 8] for words in (clip, other))
    inverse.copy_((inverse / done).clamp_max(1.0))
    clip.view(torch.float32)[Factor.inverse_f32.offset // 4].copy_(inverse)


def _weak(optimizer: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(optimizer)
    except TypeError:  # a wrapper with slots
        return lambda: None


def _with_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _there(factor: Any, device: torch.device) -> Any:
    """A factor, of the host or of a device, for a call on another."""
    on_host, is_host = _place.ordinal(device) is None, isinstance(factor, Factor)
    if is_host:
        return factor if on_host else torch.frombuffer(factor, dtype=torch.uint8).to(device)
    return Factor.from_buffer_copy(_place.data(factor)) if on_host else factor.to(device, non_blocking=True)


def _policy(policy: str | Policy | None, fields: Mapping[str, Any]) -> Policy:
    if policy is None or isinstance(policy, str):
        return Policy(policy or "torch", **fields)
    if not isinstance(policy, Policy):
        raise TypeError(f"policy={policy!r}: expected the name of a preset or a gradscaler.Policy")
    return policy.replace(**fields)


def _rounded(name: str, scale: Any, policy: Policy) -> float:
    """A scale as torch keeps it, in float32; in doubles where the policy computes so."""
    scale = base._number(name, scale)
    value = ctypes.c_float(scale).value if policy.arithmetic else scale
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {scale}: it must be finite and above 0 in float32")
    return value


def _started(policy: Policy, scale: float, good: int, rest: State | None) -> State:
    """A state with this scale and count, and what else `rest` has."""
    state = State() if rest is None else State.from_buffer_copy(rest)
    if rest is None:
        c.gsc_state_init(None, policy, state)
    state.factor.scale, state.good_steps = ctypes.c_float(scale).value if policy.arithmetic else scale, good
    with base._naming(**{"from": ""}):
        c.gsc_state_init_from(None, policy, state, state)
    return state


def _resumed(policy: Policy, scale: float, good: int, saved: State | None) -> State:
    """The state that was saved, unless another scale or count was put beside it."""
    if saved is not None and (saved.factor.scale, saved.good_steps) == (scale, good):
        return State.from_buffer_copy(saved)
    return _started(policy, scale, good, saved)


def _without_scale(optimizer: torch.optim.Optimizer, given: Any) -> None:
    """Of a fused optimizer that failed: torch leaves its scale there, and the next step() would divide by both."""
    for name, value in {"grad_scale": given, "found_inf": None}.items():
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
