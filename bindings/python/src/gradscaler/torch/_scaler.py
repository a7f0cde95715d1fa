# SPDX-License-Identifier: MIT
"""torch's GradScaler with one C call for all gradients of an optimizer."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import difflib
import functools
import math
import operator
import warnings
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state
from torch.utils.weak import WeakIdKeyDictionary

from .. import _checkpoints, _cuda
from .. import _gradscaler as c
from .. import _scaler as base
from .._checkpoints import Note
from .._scaler import Policy, Report
from .._structs import Event, Factor, Guard, Limit, Reset, State, Status, Test, Want
from . import _grads, _place, _ranks
from ._eager import eager, seen
from ._grads import Lot, Sorted


class _Float(float):
    """A number of torch's that stands where none was given: it leaves that of a policy alone."""


class _Int(int):
    """Likewise."""


_NUMBERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
_ENTRIES = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")  # of a checkpoint
_F16 = 1 << c.GSC_F16
_NORM, _STOPPED = int(Want.NORM), int(Event.STOPPED)
_STALL_LIMIT = 10
_SKIPPED, _OUTLIER, _CLIPPED = int(Event.SKIPPED), int(Event.OUTLIER), int(Event.CLIPPED)
_MEMORY = 0.1  # weight of a step in the usual shares of the norm
_LOSSES = 64  # of a step that are kept, for the message of a StallError, ...
_SMALL = 1 << 12  # ... if they have no more bytes
_NOT_SAVED = ("_names", "_state", "_words", "_shown", "_exact", "_asked", "_last", "_looks", "_skipped", "_losses")
_NOT_SAVED += ("_looks_over", "_losses_over", "_arrival", "_expected", "_judged", "_said", "_usual")
_THEIRS = torch.amp.GradScaler._unscale_grads_
_NO_BACKOFF = "backoff_factor is 0: it must be above 0"  # where 0 stands for 1 / growth_factor in C
_NO_NORM = (
    "_unscale_grads_ was replaced, or called with another inverse, so nobody has taken the norm that the guard of the "
    "policy judges by: call GradScaler's with the arguments that it was called with, or take a policy without a guard"
)
_CPU = _place.CPU
_Init = TypeVar("_Init", bound=Callable)


class StallError(RuntimeError):
    """Training on would only skip steps. The message says what is known of the reason.

    report: what the last gradients were like, or None
    """

    report: Report | None = None


class _Found:
    """What a look at the gradients of one optimizer found: a report, on a device its bytes."""

    def __init__(self, report: Any, lots: list[Lot], rest: Sorted | None = None) -> None:
        self.report, self.lots, self.rest = report, lots, rest
        words = report if isinstance(report, torch.Tensor) else torch.frombuffer(report, dtype=torch.float32, count=1)
        self.found = words.view(()) if words is not report else report.view(torch.float32)[0]
        self.version = self.found._version
        self.ruling: Mapping[Any, torch.Tensor] = {}  # found_inf by device, which others may have written since
        self.scale: Any = 1.0  # on a device a tensor
        self.captured = False  # in a graph, each replay of which finds anew
        self.alike = True  # whether other ranks have parameters of the same names
        self.seen: Report | None = None
        self.clip: Any = None  # by which max_norm has multiplied them
        self.whose: list = []  # as _whose() has it, if names may be asked for
        # Shares of the norm's square: of each gradient, and what is usual.
        self.shares: tuple[torch.Tensor, torch.Tensor] | None = None
        self.optimizer: Callable[[], Any] = _nothing

    def read(self, names: Callable[[], list[str]]) -> Report:
        """The report with names, for which a device is waited for."""
        if self.seen is None or self.captured:
            report = self.report
            if isinstance(report, torch.Tensor):
                report = Report.from_bytes(_place.data(report))
            if report.overflow:
                known = dict(count for lot in self.lots for count in lot.counts())
                called = names()
                report._bad = {_at(called, i): count for i, count in known.items() if count}
                report.names = called if self.alike or report.bad else ()
            report.scale = float(self.scale)
            self.seen = report
        return self.seen

    def let_go(self) -> None:
        """Of the gradients, which live as long as their parameters have them."""
        self.rest = None
        for lot in self.lots:
            lot.let_go(self.seen is not None)


def _older_form(init: _Init) -> _Init:
    """Where the scale is given first, by its place, "cuda" goes before it: names and places are as ever from there."""

    @functools.wraps(init)
    def either(self: GradScaler, *args: Any, **named: Any) -> None:
        older = args and isinstance(args[0], int | float)
        init(self, *(("cuda", *args) if older else args), **named)

    return either


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler, faster and with more to say; for gradients on the CPU and on CUDA devices.

    GradScaler(device="cuda", init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000,
               enabled=True, *, ...) as in torch; the older form, whose first argument is init_scale, is taken, too.

    policy: a preset of gradscaler.presets() by name, or a gradscaler.Policy; numbers that are given replace its fields.
        Without it the rules are torch's, "torch"
    min_scale, max_scale: floor and ceiling of the scale; 0 is none. With a floor ten overflows in a row that could not
        lower the scale stop training, if the policy has no other stall_limit
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
        if isinstance(device, str) and device in base.presets():
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
        self._names = WeakIdKeyDictionary()
        self._forget()
        super().__init__(device, enabled=enabled)
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
            fields["overflow_reset"] = Reset.ON_GOOD_STEP
        if policy is None and max_scale:
            fields["ceiling_rule"] = Limit.CLAMP  # torch drops a growth that would reach infinity, its only limit
        if "init_scale" in fields and base._number("init_scale", fields["init_scale"]) <= 0:
            raise ValueError(f"init_scale is {fields['init_scale']}: it must be finite and above 0")
        self._policy = _policy(policy, fields)
        base.warn_if_idle(self._policy)
        if (on_stall is not None or min_scale) and not self._policy.stall_limit:  # a floor hides stalls
            self._policy.stall_limit = _STALL_LIMIT
        self._init_scale = self._policy.init_scale or 1.0
        _rounded("init_scale", self._init_scale, self._policy)

    def _forget(self) -> None:
        """What is not saved."""
        self._state: State | None = None  # of a scale on the CPU
        self._words: torch.Tensor | None = None  # its bytes, or those on a device
        self._shown: Any = None
        self._exact = False  # whether the scale is known to be a power of two, whose inverse needs no rounding
        self._asked: Any = None
        self._last: _Found | None = None
        # of the step that is under way, or else the last: by the id of each optimizer
        self._looks: dict[int, _Found] = {}
        self._skipped: dict[int, bool | list[torch.Tensor]] = {}
        self._losses: deque[Callable[[], Any]] = deque(maxlen=_LOSSES)
        self._looks_over = self._losses_over = False  # whether the next ones are of another step
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

    # ---- the state: its scale and its count are tensors, as in torch, the rest is behind them ----

    @eager
    @torch.inference_mode(False)  # whose tensors could not be trained with
    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        if self._growth_tracker is not None:
            raise AssertionError("_growth_tracker initialized before _scale")
        state = self._start()
        words = torch.frombuffer(state, dtype=torch.uint8)
        self._state = state if _place.ordinal(dev) is None else None
        self._words = words if self._state is not None else words.to(dev)
        self._scale = self._words.view(torch.float32)[Factor.scale_f32.offset // 4]  # the factor comes first
        self._growth_tracker = self._words.view(torch.int32)[State.good.offset // 4]
        self._exact = _is_power(state.factor.scale)
        self._written()

    def _start(self) -> State:
        return _resumed(self._policy, self._init_scale, self._init_growth_tracker, self._saved)

    @property
    def _place(self) -> Any:
        """The state as a call takes it."""
        return self._words if self._state is None else self._state

    def _written(self, by_update: bool = False) -> None:
        """Tells autograd, which may have saved the scale for a backward pass that is yet to come."""
        self._expected = self._expected and by_update
        torch.autograd.graph.increment_version(self._scale)
        self._shown = self._scale, self._growth_tracker, self._scale._version

    def _check_scale_growth_tracker(self, funcname: str) -> tuple[torch.Tensor, torch.Tensor]:
        if self._scale is None or self._growth_tracker is None:
            return super()._check_scale_growth_tracker(funcname)
        scale, tracker, version = self._shown
        if self._scale is not scale or self._growth_tracker is not tracker or scale._version != version:
            self._adopt(scale, tracker)
        return scale, tracker

    @torch.no_grad()
    def _adopt(self, scale: torch.Tensor, tracker: torch.Tensor) -> None:
        """Takes over what others wrote into the two tensors, or put in their place."""
        if self._scale is not scale:
            scale.copy_(self._scale)
        if self._growth_tracker is not tracker:
            tracker.copy_(self._growth_tracker)
        self._scale, self._growth_tracker, self._exact = scale, tracker, False
        self._words.view(torch.float64)[Factor.scale.offset // 8].copy_(scale.double())
        self._words.view(torch.int64)[State.good.offset // 8].copy_(tracker.long())
        with base._naming(**{"from": ""}):
            c.gsc_state_init(_place.on(scale.device), self._policy, self._place, self._place)
        self._written()

    def _assign(self, state: State) -> None:
        """Puts another state in force."""
        self._words.copy_(torch.frombuffer(state, dtype=torch.uint8))
        self._scale, self._growth_tracker, _ = self._shown
        self._exact = _is_power(state.factor.scale)
        self._written()

    def _read(self, state: Any = None) -> State:
        """A copy of the state, or of another that is where it is; a device is waited for."""
        if state is None:
            self._check_scale_growth_tracker("reading the state")
            state = self._place
        return State.from_buffer_copy(_place.data(state) if isinstance(state, torch.Tensor) else state)

    def _factor(self, device: torch.device = _CPU) -> Any:
        """What gradients are divided by, where they are: torch multiplies by the inverse that it rounded to float32."""
        on_host = _place.ordinal(device) is None
        if self._state is not None and on_host:
            factor = Factor.from_buffer_copy(self._state)
            if self._policy.arithmetic and 0 < factor.inverse_f32 < math.inf:
                factor.inverse = factor.inverse_f32
            return factor
        words = self._words[: ctypes.sizeof(Factor)]
        if not (self._exact and _is_power(self._growth_factor) and _is_power(self._backoff_factor)):
            words = words.clone()
            inverse = words.view(torch.float64)[Factor.inverse.offset // 8]
            rounded = words.view(torch.float32)[Factor.inverse_f32.offset // 4].double()
            inverse.copy_(torch.where(torch.isfinite(rounded) & (rounded > 0), rounded, inverse))
        if on_host:
            return Factor.from_buffer_copy(_place.data(words))
        return words.to(device, non_blocking=True)

    # ---- the step ----

    def scale(self, outputs: Any) -> Any:
        compiling = torch.compiler.is_compiling()
        if compiling and self._enabled and isinstance(outputs, torch.Tensor):
            if self._scale is None:
                self._lazy_init_scale_growth_tracker(outputs.device)
            return outputs * self._scale.to(device=outputs.device, non_blocking=True)  # torch's own is never traced
        if self._enabled and not compiling:
            if self._losses_over:
                self._losses_over = False
                self._losses.clear()
            self._keep(outputs)
        return super().scale(outputs)

    scale.__doc__ = torch.amp.GradScaler.scale.__doc__

    def _keep(self, losses: Any) -> None:
        """For the message of a StallError: the values of losses, without their graphs; large ones while others do."""
        if isinstance(losses, list | tuple):
            for loss in losses:
                self._keep(loss)
        elif isinstance(losses, torch.Tensor):
            small = False
            with contextlib.suppress(RuntimeError):  # of what has no memory of its own, as in torch.func
                small = type(losses) is torch.Tensor and losses.untyped_storage().nbytes() <= _SMALL
            self._losses.append(functools.partial(_itself, losses.detach()) if small else weakref.ref(losses))

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
            parameters = (p for group in optimizer.param_groups for p in group["params"])
            return None if max_norm is None else torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        self._check_scale_growth_tracker("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        norm = self._unscaled(optimizer, state, True, max_norm)
        state["stage"] = OptState.UNSCALED
        return norm

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[Any, torch.Tensor]:
        self._check_scale_growth_tracker("_check_inf_per_device")
        state = self._per_optimizer_states[id(optimizer)]
        if self._judged is not None and state["found_inf_per_device"]:
            return state["found_inf_per_device"]  # the guard has looked
        self._unscaled(optimizer, state, False)
        return state["found_inf_per_device"]

    def _unscaled(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any], writes: bool, max_norm: float | None = None
    ) -> torch.Tensor | None:
        """The look itself, or what a program has put in the place of the method that torch does it with."""
        method = getattr(self._unscale_grads_, "__func__", None)
        if method is GradScaler._unscale_grads_ and torch.amp.GradScaler._unscale_grads_ is _THEIRS:
            return self._look(optimizer, state, writes, self._allow_fp16 or not writes, max_norm)
        inverse, found_inf = self._inverse(writes), torch.zeros((), dtype=torch.float32, device=self._scale.device)
        self._asked, state["norm"] = (state, writes, inverse, max_norm), None
        state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, found_inf, not writes)
        if self._policy.guards and "found" not in state:
            state["no_norm"] = True
            if writes:  # they are divided by now, so that another step() must not divide them again
                state["stage"] = OptState.UNSCALED
            raise RuntimeError(_NO_NORM)
        if max_norm is None or state["norm"] is not None:
            return state["norm"]
        return torch.nn.utils.clip_grad_norm_(_with_gradients(optimizer), max_norm).float()

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        """What programs override, mostly to allow float16, and call with what it was called with."""
        state, writes, inverse, max_norm = self._asked
        if inv_scale is not inverse or torch.amp.GradScaler._unscale_grads_ is not _THEIRS:
            if self._policy.guards:
                raise RuntimeError(_NO_NORM)
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        state["norm"] = self._look(optimizer, state, writes, allow_fp16 or self._allow_fp16, max_norm)
        return state["found_inf_per_device"]

    def _look(
        self,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        writes: bool,
        fp16: bool,
        max_norm: float | None = None,
    ) -> torch.Tensor | None:
        """The one look at all gradients: `state` gets what was found, and found_inf, its first float."""
        if self._state is not None and not 0 < self._state.factor.scale < math.inf:
            self._stall(self._state, optimizer)
            found, any_there = _Found(Report(overflow=True), []), True
        else:
            by_norm = max_norm is not None or self._policy.guards or self._policy.overflow_test == Test.NORM
            want = self._want | _NORM if by_norm else self._want
            found, any_there = self._looked(optimizer, writes, fp16, want)
        norm = None if max_norm is None else self._clipped(found, float(max_norm))
        if writes and found.rest:
            found.rest.put_back()
        state["found_inf_per_device"] = found.ruling = {found.found.device: found.found} if any_there else {}
        if self._looks_over:
            self._looks_over, self._said = False, None
            self._looks.clear()
            self._skipped.clear()
        with contextlib.suppress(TypeError):  # of a wrapper with slots
            found.optimizer = weakref.ref(optimizer)
        if self._state is None or found.report.overflow or self._policy.guards:
            found.whose = _whose(optimizer)  # before the last are gone, whose references are these
        state["found"] = self._last = self._looks[id(optimizer)] = found
        if self._state is not None:
            found.scale = self._state.factor.scale
            if not found.report.overflow:
                found.read(list)
        else:
            found.scale = self._scale.clone()  # update() writes the other
            found.captured = _place.captures(self._scale.device)
        if self._policy.guards and found.lots:
            self._share(optimizer, found)
        found.let_go()
        return norm

    def _share(self, optimizer: torch.optim.Optimizer, found: _Found) -> None:
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

    def _looked(self, optimizer: torch.optim.Optimizer, writes: bool, fp16: bool, want: int) -> tuple[_Found, bool]:
        grads, home, meshes = _grads.gradients(optimizer), self._scale.device, ()
        if _ranks.possible():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if _ranks.is_spread(c.kinds(parameters) | c.kinds(grads)):
                meshes = _ranks.meshes(parameters + grads)
        if meshes or self._group is not None:
            return self._agreed(optimizer, grads, writes, fp16, want, meshes), True
        if c.kinds(grads) <= _place.PLAIN:
            try:
                lot = Lot(home, grads, range(len(grads)))
            except c.Error:
                lot = None  # some are elsewhere, or not dense
            if lot is not None:
                self._run([lot], optimizer, writes, fp16, want)
                return _Found(lot.report, [lot]), bool(grads)
        rest = self._sorted(optimizer, grads, want)
        self._run(rest.lots, optimizer, writes, fp16, want)
        others = self._others(rest, writes)
        if len(rest.lots) == 1 and rest.lots[0].device == home and not others:
            return _Found(rest.lots[0].report, rest.lots, rest), True
        report = _place.merged(torch.cat([self._each(rest, home).view(-1), *others]), self._policy)
        return _Found(self._at_home(report), rest.lots, rest), True

    def _sorted(self, optimizer: torch.optim.Optimizer, grads: list[torch.Tensor], want: int) -> Sorted:
        try:
            return Sorted(_with_gradients(optimizer), grads, lambda i: self._names_of(optimizer)[i], want)
        except c.Error as error:
            self._explain(error, optimizer, None)
            raise

    def _explain(self, error: c.Error, optimizer: torch.optim.Optimizer, lot: Lot | None) -> None:
        """Names the parameters whose gradients were refused; `lot` is the list that the error counts in."""
        if error.index < 0:
            return
        names, places = self._names_of(optimizer), lot.indices if lot else range(2**31)
        why = error.why
        if error.other >= 0:
            other = _at(names, places[error.other])
            why = f"shares memory with that of {other}: it would be unscaled twice; give each its own"
        error.args = (f"the gradient of {_at(names, places[error.index])} {why}",)

    def _run(self, lots: list[Lot], optimizer: torch.optim.Optimizer, writes: bool, fp16: bool, want: int) -> None:
        if not fp16 and any(lot.dtypes & _F16 for lot in lots):
            self._refuse_fp16(optimizer)
        for lot in lots:
            try:
                lot.run(writes, self._factor(lot.device), self._policy, want)
            except c.Error as error:
                self._explain(error, optimizer, lot)
                raise

    def _refuse_fp16(self, optimizer: torch.optim.Optimizer) -> None:
        grads = _grads.gradients(optimizer)
        index = next(i for i, grad in enumerate(grads) if grad.dtype == torch.float16)
        raise ValueError(
            f"Attempting to unscale FP16 gradients. That of {self._names_of(optimizer)[index]} is in float16: keep the "
            "parameters in float32 and run the model under torch.autocast, or pass allow_fp16=True to GradScaler, "
            "though in place most of what scaling saved is lost again."
        )

    def _inverse(self, writes: bool) -> torch.Tensor:
        """What torch's own calls multiply by."""
        if not writes:
            return torch.ones((), dtype=torch.float32, device=self._scale.device)
        return self._scale.double().reciprocal().float()

    def _others(self, rest: Sorted, writes: bool) -> list[torch.Tensor]:
        with torch.no_grad():
            return rest.others_reports(self._inverse(writes), 1.0 if writes else self._inverse(True))

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

    def _at_home(self, report: torch.Tensor) -> Any:
        return report if self._state is None else Report.from_bytes(_place.data(report))

    def _agreed(
        self,
        optimizer: torch.optim.Optimizer,
        grads: list[torch.Tensor],
        writes: bool,
        fp16: bool,
        want: int,
        meshes: list,
    ) -> _Found:
        """As one of several ranks: also one whose own part was refused tells the others, so that none waits for it."""
        home, rest, failed, parts = self._scale.device, None, None, {}
        try:
            rest = self._sorted(optimizer, grads, want)
            self._run(rest.lots, optimizer, writes, fp16, want)
            others = self._others(rest, writes)
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
        report = _ranks.agreed(parts, meshes, self._group, self._sharded, self._policy, self._place, home)
        if failed is not None:
            raise failed
        report = self._at_home(report)
        if self._state is not None and (why := _ranks.refusal(report)):
            raise RuntimeError(why)
        found = _Found(report, rest.lots, rest)
        found.alike = not self._sharded
        return found

    def _clipped(self, found: _Found, max_norm: float) -> torch.Tensor:
        """Multiplies what is in memory of calls; returns the norm before that."""
        report, home = found.report, self._scale.device
        if self._state is None:
            squares = report.view(torch.float64)[Report.sum_squares.offset // 8]
            norm = torch.where(found.found != 0, math.inf, squares.sqrt()).float()
            clip = torch.empty(ctypes.sizeof(Factor), dtype=torch.uint8, device=home)
            c.gsc_factor_clip(_place.on(home), None, report, max_norm, clip)
        else:
            value = math.inf if report.overflow else math.sqrt(report.sum_squares)
            norm = torch.tensor(value, dtype=torch.float32, device=home)  # whatever the defaults are
            if report.overflow or value <= max_norm:
                return norm
            clip = Factor()
            c.gsc_factor_clip(None, None, report, max_norm, clip)
        found.clip = clip
        _multiply(found.lots, found.rest, clip)
        return norm

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
            on_host = self._state is not None
            before = State.from_buffer_copy(self._state) if on_host else self._words.clone()
            judged = State() if on_host else torch.empty_like(before)
            c.gsc_state_update(_place.on(self._scale.device), self._policy, before, report, judged)
            self._judged, self._said = judged, (before, judged)

    def _guarded(self, optimizer: torch.optim.Optimizer, events: int | None) -> None:
        """Clips as the verdict says; `events` None: what it says is on a device, which is not waited for."""
        if not self._policy.guard_flags & Guard.CLIP or (events is not None and not events & _CLIPPED):
            return
        state, home = self._per_optimizer_states[id(optimizer)], self._scale.device
        if "guarded" in state:  # by a step() of the optimizer that then failed
            return
        clip = Factor() if self._state is not None else torch.empty(_place.FACTOR, dtype=torch.uint8, device=home)
        c.gsc_factor_guard(_place.on(home), None, self._judged, clip)
        found = state.get("found")
        if found is not None and found.clip is not None:
            _beyond(clip, found.clip)
        rest = self._sorted(optimizer, _grads.gradients(optimizer), 0)
        _multiply(rest.lots, rest, clip)
        rest.put_back()
        if state["stage"] is OptState.UNSCALED:  # otherwise the next step() looks at them anew
            state["guarded"] = True

    def _step_fused(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """An optimizer that looks at found_inf itself: where the guard skips it is told the same."""
        state = self._per_optimizer_states[id(optimizer)]
        found = state["found_inf_per_device"]
        if self._state is not None:
            refused = torch.tensor(float(self._judged.events & _SKIPPED != 0))
            self._guarded(optimizer, self._judged.events)
        else:
            events = self._judged.view(torch.int32)[State.events.offset // 4]
            refused = ((events & _SKIPPED) != 0).float()
            self._guarded(optimizer, None)
        home = self._scale.device
        refused = sum((one.to(home, non_blocking=True) for one in found.values()), refused.to(home))
        state["found_inf_per_device"] = {home: refused.clamp(max=1.0)}  # kernels skip where it is 1, not where it is 2
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
            if error.args == ("No inf checks were recorded for this optimizer.",):
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
            events = self._read(self._judged).events
            skipped = events & _SKIPPED != 0
            self._guarded(optimizer, events)
        self._skipped[id(optimizer)] = skipped
        if not skipped:
            return seen(optimizer.step, *args, **kwargs)
        if self._state is None:  # the device has been waited for
            report = self.report_of(optimizer)
            if report is not None and report.status and report.status != Status.ERROR_FACTOR:
                why = f"the gradients could not be unscaled: {c.gsc_status_string(report.status)}"
                raise RuntimeError(_ranks.refusal(report) if report.status_rank else why)
            state = self._read()
            if not 0 < state.factor.scale < math.inf or state.events & _STOPPED:
                self._stall(state, optimizer)
        return None

    @property
    def step_was_skipped(self) -> bool:
        """Whether step() left the parameters of any optimizer alone since the update() before the last; see report_of.

        With a fused optimizer on a device this waits for it. After a step in a CUDA graph it is of the last replay.
        """
        answers = []
        for key, skipped in self._skipped.items():
            if not isinstance(skipped, bool):
                skipped = any(found.item() for found in skipped)
                if key not in self._looks or not self._looks[key].captured:  # else each replay of a graph steps anew
                    self._skipped[key] = skipped
            answers.append(skipped)
        return any(answers)

    @property
    def outliers_skipped(self) -> int:
        """Steps that the guard skipped since the start, as of the last update(). A device is waited for."""
        if not self._enabled:
            return 0
        if self._scale is None:
            return self._saved.guard_skips if self._saved is not None else 0
        return self._read().guard_skips

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

    def _seen(self, found: _Found) -> Report:
        names = functools.partial(self._named, found.whose)
        report = found.read(names)
        if found.shares is not None and self._said is not None and self._read(self._said[1]).events & _OUTLIER:
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
        if any(tensor.item() for found in self._looks.values() for tensor in found.ruling.values()):
            if not any(report.overflow for report in reports):
                return "skipped: found_inf is not 0, though the gradients are finite: others wrote it"
            bad = [name for report in reports for name in report.bad]
            return f"skipped: Inf or NaN in the gradients of {_some(bad)}" if bad else "skipped: overflow"
        if self._said is None:
            return ""
        before, state = map(self._read, self._said)
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
        self._check_scale_growth_tracker("update")
        if new_scale is not None:
            self._put(new_scale)
        else:
            report = self._step_report()
            if report is None:
                why = "Call scale(), and step() or unscale_() with each optimizer, before update()."
                raise AssertionError(f"No inf checks were recorded prior to update. {why}")
            c.gsc_state_update(_place.on(self._scale.device), self._policy, self._place, report, self._place)
            self._written(by_update=True)
            if self._policy.guards:
                self._remember()
        self._per_optimizer_states, self._judged = defaultdict(_refresh_per_optimizer_state), None
        self._looks_over = self._losses_over = True
        if self._state is None and any(not isinstance(skipped, bool) for skipped in self._skipped.values()):
            self._watch()
        if self._state is not None and self._state.events & _STOPPED and new_scale is None:
            self._stall(self._state)

    update.__doc__ = torch.amp.GradScaler.update.__doc__

    def _step_report(self) -> Any:
        """The report on all gradients of the step that is under way; None where none were looked at."""
        reports = [self._report_of(state) for state in self._per_optimizer_states.values()]
        reports = [report for report in reports if report is not None]
        if len(reports) < 2:
            return reports[0] if reports else None
        if self._state is not None:
            return Report.merge(reports, policy=self._policy)
        return _place.merged(torch.cat(reports), self._policy)

    def _remember(self) -> None:
        """What parts of the norm the gradients had in a step that was as usual."""
        for key, found in self._looks.items():
            _, usual = self._usual.get(key, (None, None))
            if found.shares is not None and usual is not None and usual.shape == found.shares[0].shape:
                events = self._words.view(torch.int32)[State.events.offset // 4]
                good = (events & (_OUTLIER | _SKIPPED)) == 0
                usual.copy_(torch.where(good, usual.lerp(found.shares[0], _MEMORY), usual))

    def _watch(self) -> None:
        """Whether training is stuck on a device: with a fused optimizer nobody looks, so the state is sent to the host
        behind an update, and what has come is looked at in a later one. Nothing waits.
        """
        home = self._scale.device
        if _place.captures(home):
            return
        context, stream, _ = _place.on(home)
        if self._arrival is None or self._arrival.context is not context:
            self._arrival, self._expected = _cuda.Arrival(context, ctypes.sizeof(State)), False
        if not self._arrival.is_there():
            return
        state = State.from_buffer_copy(self._arrival.data()) if self._expected else None
        self._arrival.send(stream, self._words, ctypes.sizeof(State))
        self._expected = True
        if state is not None and (not 0 < state.factor.scale < math.inf or state.events & _STOPPED):
            self._stall(state)

    def _report_of(self, state: Mapping[str, Any]) -> Any:
        """The report of an optimizer, where the scale is; found_inf rules, if others wrote it or brought theirs."""
        found, tensors = state.get("found"), list(state["found_inf_per_device"].values())
        if not tensors:
            return None
        if "no_norm" in state:
            raise RuntimeError(_NO_NORM)
        if found and len(tensors) == 1 and tensors[0] is found.found and tensors[0]._version == found.version:
            return found.report
        home = self._scale.device
        if self._state is not None:
            overflow = any(tensor.item() for tensor in tensors)
            if found is None:
                return Report(overflow=overflow, absent=int(Want.NORM | Want.AMAX | Want.UNDERFLOW))
            report = Report.from_bytes(bytes(found.report))
            report.overflow = overflow
            return report
        report = torch.zeros(_place.SIZE, dtype=torch.uint8, device=home) if found is None else found.report.clone()
        if found is None:
            _place.words(report)[_place.ABSENT] = int(Want.NORM | Want.AMAX | Want.UNDERFLOW)
        overflow = sum(tensor.to(home, non_blocking=True) for tensor in tensors) != 0
        _place.flag(report, overflow)
        return report

    def _put(self, new_scale: float | torch.Tensor) -> None:
        if isinstance(new_scale, torch.Tensor):
            reason = (
                "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor with "
                "requires_grad=False."
            )
            if new_scale.device.type != self._device or new_scale.numel() != 1 or new_scale.requires_grad:
                raise AssertionError(reason)
            if self._state is None:
                self._scale.copy_(new_scale.view(()))
                self._adopt(self._scale, self._growth_tracker)
                return
            new_scale = new_scale.item()
        scale = _rounded("new_scale", new_scale, self._policy)
        if self._state is None:
            self._scale.fill_(scale)
            self._adopt(self._scale, self._growth_tracker)
        else:
            self._assign(_started(self._policy, scale, self._state.good, self._state))

    # ---- names and stalls ----

    def name_parameters(self, model: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable) -> None:
        """Reports and messages call the parameters of this model, or of these (name, parameter) pairs, by their names.

        Without it they have the names of an optimizer that was made of model.named_parameters(), else their places.
        Where another model has such names already, these begin with the class of this one.
        """
        pairs = model.named_parameters() if isinstance(model, torch.nn.Module) else model
        try:
            pairs = [(n, p) for n, p in (pairs.items() if isinstance(pairs, Mapping) else pairs)]
            if not all(isinstance(n, str) and isinstance(p, torch.Tensor) for n, p in pairs):
                raise TypeError
        except (TypeError, ValueError, RuntimeError):
            raise TypeError("name_parameters takes a model or (name, parameter) pairs") from None
        pairs = [(name.replace("_orig_mod.", ""), parameter) for name, parameter in pairs]  # of torch.compile
        others = {id(parameter) for _, parameter in pairs}
        taken = {name for parameter, name in self._names.items() if id(parameter) not in others}
        prefix, count = "", 1
        while any(prefix + name in taken for name, _ in pairs):
            prefix, count = f"{type(model).__name__}{f' {count}' if count > 1 else ''}.", count + 1
        for name, parameter in pairs:
            self._names[parameter] = prefix + name

    def _names_of(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """The names of the parameters that have gradients, in their order."""
        return self._named(_whose(optimizer))

    def _named(self, whose: list) -> list[str]:
        found = []
        for i, (names, parameters) in enumerate(whose):
            for j, weak in parameters.items():
                parameter = weak()
                shape = "" if parameter is None else f", shape {tuple(parameter.shape)}"
                place = names[j] if j < len(names) else f"group {i}, parameter {j}{shape}"
                found.append(place if parameter is None else self._names.get(parameter, place))
        return found

    def _stall(self, state: State, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Ends training, or tells who wants to know, with what there is to say; `optimizer` is the one at hand."""
        reports = [self._seen(found) for found in self._looks.values()]
        report = next((each for each in reversed(reports) if each.bad or each.overflow), self.report)
        optimizers = [found.optimizer() for found in self._looks.values()]
        optimizers = {id(each): each for each in [*optimizers, optimizer] if each is not None}
        skipped = f"after {state.skipped} skipped steps" if state.skipped else "from the start"
        limit = ""
        if not state.factor.scale:
            limit = (
                ' min_scale=2**-14 or policy="recommended" would keep it where float16 needs no less, and stop sooner.'
            )
        if state.events & _OUTLIER:
            stalled = StallError(
                f"{state.guard_run} steps in a row had a norm above what the guard allows, the last "
                f"{_norm_of(reports):.4g}, above {state.guard_threshold:.4g}{_grown_words(reports)}. Look at the data "
                "and the learning rate, or raise guard_limit or the threshold."
            )
        else:
            stalled = StallError(
                f"The loss scale is {state.factor.scale:g} {skipped}, and no other would help: "
                f"{'; '.join(self._diagnosis(report, optimizers.values()))}.{limit}"
            )
        stalled.report = report
        if self._on_stall is None:
            raise stalled
        self._on_stall(stalled)

    def _diagnosis(self, report: Report | None, optimizers: Iterable[torch.optim.Optimizer]) -> Iterable[str]:
        """What is not finite, the first cause first."""
        bad, infinite = [], []
        for i, group in ((i, group) for optimizer in optimizers for i, group in enumerate(optimizer.param_groups)):
            names = group.get("param_names") or ()
            for j, parameter in enumerate(group["params"]):
                name = self._names.get(parameter, names[j] if j < len(names) else f"group {i}, parameter {j}")
                if _is_bad(parameter):
                    bad.append(name)
                if parameter.grad is not None and _is_bad(parameter.grad):
                    infinite.append(name)
        if bad:
            yield f"not finite are the parameters {_some(bad)}: go back to a checkpoint from before that"
        if any(map(_is_bad, (get() for get in self._losses))):
            yield "the loss is not finite before it is scaled: look at the input and at what the model makes of it"
        infinite = list(report.bad) if report is not None and report.bad else infinite
        if infinite:
            yield f"Inf or NaN were in the last gradients of {_some(infinite)}"
        elif not bad:
            yield "nothing is known of the last gradients"

    # ---- to and from a checkpoint ----

    def state_dict(self, format: str | None = None, *, prefix: str | None = None) -> dict[str, Any]:
        """The five entries of torch's; with other rules than its own, a sixth of theirs, which torch passes over.

        With `format`, one of gradscaler.formats(), what that framework saves and goes on from, under keys that begin
        with `prefix`, where one is given; `notes` are then sentences on what these cannot hold.
        """
        state = super().state_dict()
        current = (self._read() if self._scale is not None else self._start()) if self._enabled else None
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

        Without torch's keys it is recognised: as that of gradscaler.Scaler or TensorScaler, or of a framework, nested
        or not; `format`, one of gradscaler.formats(), says which, `prefix` names one of several scalers in it. Rules
        that it does not set stay. Then what it lacked, or had in vain, is returned.
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
        stays = "policy" in self._given and base.is_fixed(self._policy)
        if stays and (not base.is_fixed(policy) or format is not None):
            why = "the policy that GradScaler was given never moves it"
            warnings.warn(f"the loss scale {state.factor.scale:g} of the checkpoint is not taken: {why}", stacklevel=2)
            return notes
        self._warn(policy)
        self._said = None
        self._policy, self._init_growth_tracker = policy, state.good
        self._init_scale = state.factor.scale if missing or not own else state_dict["scale"]  # torch's, not rounded yet
        if self._scale is None:
            self._saved = state
        else:
            self._assign(state)
        return notes

    def _warn(self, policy: Policy) -> None:
        """Of rules that a checkpoint replaces, though the constructor was given them."""
        old, new = base.rules(self._policy), base.rules(policy)
        fields = [field for field in old if field in self._given or "policy" in self._given]
        changed = [f"{field} {old[field]:g} by {new[field]:g}" for field in fields if old[field] != new[field]]
        if changed:
            why = "the checkpoint replaces what GradScaler was given"
            warnings.warn(f"{why}: {', '.join(changed)}", stacklevel=3)
        elif base.is_fixed(policy) and not base.is_fixed(self._policy):
            why = "by the rules of the checkpoint the loss scale never moves"
            warnings.warn(f"{why}, and they replace those of GradScaler", stacklevel=3)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        saved = self._read() if self._enabled and self._scale is not None else self._saved
        state |= {"_policy": bytes(self._policy), "_saved": saved and bytes(saved)}
        for name in _NOT_SAVED:
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._policy = base.policy_of(state["_policy"])
        self._saved = state["_saved"] and State.from_buffer_copy(state["_saved"])
        self._names = WeakIdKeyDictionary()
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> GradScaler:
        """Names go with it, to the copies of parameters that were copied before it."""
        made = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        for parameter, name in self._names.items():
            made._names[memo.get(id(parameter), parameter)] = name
        return made


def _of_torch(state_dict: Mapping[str, Any], policy: Policy) -> tuple[Policy, State]:
    """Rules and state of torch's five entries, and of the sixth; `policy` has the other rules, and is written to."""
    state, saved = None, state_dict.get("gradscaler")
    if saved is not None:
        policy, state = base._unhex(saved, "state_dict['gradscaler']")
    for field in _NUMBERS[1:]:
        try:
            if state_dict[field] == 0 and field != "growth_interval":
                raise ValueError(f"{field} is 0: it must be above 0")
            setattr(policy, field, state_dict[field])
        except (TypeError, ValueError) as error:
            error.args = (f"state_dict[{field!r}]: {error}",)
            raise
    scale, good = base._number("state_dict['scale']", state_dict["scale"]), state_dict["_growth_tracker"]
    if not scale >= 0:
        raise ValueError(f"state_dict['scale'] is {scale}: a loss scale is a number from 0 on")
    try:
        good = operator.index(None if isinstance(good, bool) else good)
    except TypeError:
        raise TypeError(
            f"state_dict['_growth_tracker'] is {state_dict['_growth_tracker']!r}: it must be a whole number"
        ) from None
    if not 0 <= good < 2**31:
        raise ValueError(f"state_dict['_growth_tracker'] is {good}: it counts steps, from 0 to {2**31 - 1}")
    return policy, _resumed(policy, scale, good, state)


def _some(names: list) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(str, names[:3])) + rest


def _unknown(name: str) -> str:
    """What to do about an argument that is none."""
    if name in base.rules(Policy("torch")):
        return f"is a field of the policy: policy=gradscaler.Policy(..., {name}=...)"
    options = (*_NUMBERS, "enabled", *GradScaler.__init__.__wrapped__.__kwdefaults__)
    near = difflib.get_close_matches(name, options, 1)
    return f"is unknown: {f'did you mean {near[0]}?' if near else f'it takes {options}'}"


def _nothing() -> None:
    return None


def _is_bad(loss: torch.Tensor | None) -> bool:
    with contextlib.suppress(RuntimeError):  # where a later run of a CUDA graph took its memory
        return loss is not None and not torch.isfinite(loss.detach()).all()
    return False


def _itself(value: Any) -> Any:
    return value


def _grown(shares: list[float], usual: list[float], names: list[str]) -> dict[str, tuple[float, float]]:
    """Of at most three parameters, the first grew most: their part of the norm's square, what is usual and now."""
    order = sorted(range(len(shares)), key=lambda i: usual[i] - shares[i])[:3]
    return {_at(names, i): (usual[i], shares[i]) for i in order if shares[i] > usual[i]}


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


def _with_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _whose(optimizer: torch.optim.Optimizer) -> list[tuple[Sequence[str], dict[int, Callable]]]:
    """What names the parameters that have gradients, for later: it keeps none of them, nor needs the optimizer."""
    return [
        (
            group.get("param_names") or (),
            {j: weakref.ref(parameter) for j, parameter in enumerate(group["params"]) if parameter.grad is not None},
        )
        for group in optimizer.param_groups
    ]


def _at(names: list[str], index: int) -> Any:
    return names[index] if index < len(names) else index


def _is_power(value: float) -> bool:
    return abs(math.frexp(value)[0]) == 0.5


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
        c.gsc_state_init(None, policy, None, state)
    state.factor.scale, state.good = ctypes.c_float(scale).value if policy.arithmetic else scale, good
    with base._naming(**{"from": ""}):
        c.gsc_state_init(None, policy, state, state)
    return state


def _resumed(policy: Policy, scale: float, good: int, saved: State | None) -> State:
    """The state that was saved, unless another scale or count was put beside it."""
    if saved is not None and (saved.factor.scale, saved.good) == (scale, good):
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
