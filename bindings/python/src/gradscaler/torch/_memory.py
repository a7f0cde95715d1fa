# SPDX-License-Identifier: MIT
"""A scaler's state in the memory of the host or of a device, with what is done to it there.

Both classes have the same methods. Reports are gradscaler.Report on the host and tensors of bytes on a device, factors
Factor and tensors of bytes; nothing waits for a device but read(), unseen() and read_report().
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from typing import Any

import torch

from .. import _arguments, _cuda
from .. import _gradscaler as c
from .._policy import Policy
from .._report import Report
from .._structs import Event, Factor, ReportKind, State
from . import _place, _ranks
from ._place import CPU, FACTOR

_SKIPPED, _STOPPED = int(Event.SKIPPED), int(Event.STOPPED)
_MOST = 2**31 - 1
_FOUND_INF = tuple(torch.full((), value, dtype=torch.float32, device=CPU) for value in (0.0, 1.0))
_INVERSE, _INVERSE_F32 = Factor.inverse.offset // 8, Factor.inverse_f32.offset // 4


def start(state: State, home: torch.device) -> HostState | DeviceState:
    return HostState(state) if _place.ordinal(home) is None else DeviceState(state, home)


def begun(policy: Policy) -> State:
    state = State()
    c.gsc_state_init(None, policy, state)
    return state


def revised(policy: Policy, state: State, scale: float, good: int) -> State:
    """The state with another scale and count."""
    state = State.from_buffer_copy(state)
    state.factor.scale, state.good_steps = scale, good
    with _arguments._naming(**{"from": ""}):
        c.gsc_state_init_from(None, policy, state, state)
    return state


def rounded(name: str, scale: Any, policy: Policy) -> float:
    """A scale as torch keeps it, in float32; in doubles where the policy computes so."""
    scale = _arguments._number(name, scale)
    value = ctypes.c_float(scale).value if policy.arithmetic else scale
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {scale}: it must be finite and above 0 in float32")
    return value


def is_usable(state: State) -> bool:
    """Whether a division by the scale can give anything."""
    return 0 < state.factor.scale < math.inf


class HostState:
    home = CPU

    def __init__(self, state: State) -> None:
        self.words, self._shown = state, math.nan  # the scale that torch's tensor has

    def read(self) -> State:
        return State.from_buffer_copy(self.words)

    def copy(self) -> HostState:
        return HostState(self.read())

    def take(self, policy: Policy, scale: torch.Tensor | float, good: torch.Tensor | int) -> None:
        """Takes over what others wrote where torch's class keeps its scale and its count."""
        own, now, count = self.words, float(scale), int(good)
        self._shown = now
        moved = ctypes.c_float(now).value != own.factor.scale_f32
        if moved or count != min(own.good_steps, _MOST):
            self.words = revised(policy, own, now if moved else own.factor.scale, count)

    def set_scale(self, policy: Policy, scale: torch.Tensor | float, good: torch.Tensor) -> None:
        self.words = revised(policy, self.words, rounded("new_scale", scale, policy), self.words.good_steps)

    def show(self, scale: torch.Tensor, good: torch.Tensor) -> None:
        """Writes torch's two tensors."""
        if self._shown != self.words.factor.scale_f32:
            scale.fill_(self.words.factor.scale)
        good.fill_(min(self.words.good_steps, _MOST))

    def update(self, policy: Policy, report: Report) -> None:
        c.gsc_state_update(None, policy, self.words, report, self.words)

    def is_usable(self) -> bool:
        """Whether a division by the scale can give anything, as far as is known without waiting."""
        return is_usable(self.words)

    def latest(self, fused: bool) -> State | None:
        """The state after an update, or after an earlier one, as far as is known without waiting."""
        return self.words

    def unseen(self) -> State | None:
        """The state, if a step was decided by it before anybody looked at it."""
        return None

    @staticmethod
    def is_stuck(state: State) -> bool:
        """Whether an update has to say that training cannot go on; a scale of 0 the next check refuses."""
        return bool(state.events & _STOPPED)

    def captures(self) -> bool:
        """Whether what is done now becomes a part of a CUDA graph."""
        return False

    def scale(self) -> float:
        return self.words.factor.scale

    def events(self) -> int | None:
        """Those of the last update; None if they are not known without waiting."""
        return self.words.events

    def has_none_of(self, events: int) -> torch.Tensor:
        return torch.tensor(not self.words.events & events, device=CPU)

    def refusal(self) -> torch.Tensor:
        """As found_inf: whether the last update refused the step."""
        return (~self.has_none_of(_SKIPPED)).float()

    def factor(self, rounds: bool) -> Factor:
        """What gradients are divided by. `rounds`: torch multiplies by the inverse that it rounded to float32."""
        factor = Factor.from_buffer_copy(self.words)
        if rounds and 0 < factor.inverse_f32 < math.inf:
            factor.inverse = factor.inverse_f32
        return factor

    @staticmethod
    def factor_of(inverse: torch.Tensor) -> Factor:
        value = inverse.item()
        return Factor(1.0 / value, value, 1.0 / value, value)

    def guard_factor(self) -> Factor:
        factor = Factor()
        c.gsc_factor_clip_outlier(None, None, self.words, factor)
        return factor

    @staticmethod
    def lent(factor: Factor, device: torch.device) -> Any:
        """The factor for a call on this device."""
        on_host = _place.ordinal(device) is None
        return factor if on_host else torch.frombuffer(factor, dtype=torch.uint8).to(device)

    @staticmethod
    def inverse(factor: Factor) -> float | torch.Tensor:
        return factor.inverse

    @staticmethod
    def reduce(clip: Factor, other: Factor) -> None:
        """Makes a factor of what it multiplies by beyond what another has multiplied by already."""
        clip.inverse = min(1.0, clip.inverse / other.inverse)
        clip.inverse_f32 = clip.inverse

    @staticmethod
    def report(words: torch.Tensor) -> Report:
        """The report in bytes; an error if a rank failed."""
        report = Report.from_bytes(_place.data(words))
        if why := _ranks.refusal(report):
            raise RuntimeError(why)
        return report

    @staticmethod
    def read_report(report: Report) -> Report:
        return report

    @staticmethod
    def found_inf(report: Report) -> torch.Tensor:
        return _FOUND_INF[report.overflow].clone()

    @staticmethod
    def overflowed(report: Report) -> bool | None:
        """Whether it is an overflow; None if that is not known without waiting."""
        return report.overflow

    @staticmethod
    def merged(reports: list[Report], policy: Policy) -> Report:
        return Report.merge(reports, policy=policy)

    @staticmethod
    def overruled(report: Report | None, found_inf: Iterable[torch.Tensor]) -> Report:
        """The report with the verdict of others."""
        overflow = any(tensor.item() for tensor in found_inf)
        if report is None:
            return Report.of_flag(overflow)
        if report.overflow == overflow:
            return report
        made = Report.from_bytes(bytes(report))
        made.overflow = overflow
        if not overflow:
            made.nan_count = made.inf_count = 0  # a report that counts some is of an overflow
        return made

    @staticmethod
    def norm(report: Report) -> torch.Tensor:
        value = math.inf if report.overflow else math.sqrt(report.sum_squares)
        return torch.tensor(value, dtype=torch.float32, device=CPU)  # whatever the defaults are

    @staticmethod
    def clip(report: Report, max_norm: float) -> Factor | None:
        """What the gradients are yet to be multiplied by; None if by nothing."""
        if report.overflow or math.sqrt(report.sum_squares) <= max_norm:
            return None
        clip = Factor()
        c.gsc_factor_clip_grad_norm(None, None, report, max_norm, clip)
        return clip


class DeviceState:
    def __init__(self, state: State | torch.Tensor, home: torch.device) -> None:
        made = isinstance(state, torch.Tensor)
        self.home, self.words = home, state if made else torch.frombuffer(state, dtype=torch.uint8).to(home)
        self._sent: _cuda.Arrival | None = None  # the state after an earlier update
        self._is_sent = False  # whether it is of the scale in force, and not of one from before

    def _float(self, field: Any) -> torch.Tensor:
        return self.words.view(torch.float32)[field.offset // 4]

    def _double(self, field: Any) -> torch.Tensor:
        return self.words.view(torch.float64)[field.offset // 8]

    def read(self) -> State:
        return State.from_buffer_copy(_place.data(self.words))

    def copy(self) -> DeviceState:
        return DeviceState(self.words.clone(), self.home)

    def take(self, policy: Policy, scale: torch.Tensor, good: torch.Tensor) -> None:
        own, now = self._double(Factor.scale), scale.reshape(())
        own.copy_(torch.where(now == self._float(Factor.scale_f32), own, now))  # what is equal keeps its double
        self.words.view(torch.int64)[State.good_steps.offset // 8].copy_(good.reshape(()))
        with _arguments._naming(**{"from": ""}):
            c.gsc_state_init_from(_place.on(self.home), policy, self.words, self.words)

    def set_scale(self, policy: Policy, scale: torch.Tensor | float, good: torch.Tensor) -> None:
        self._is_sent = False
        if isinstance(scale, torch.Tensor):
            self.take(policy, scale, good)
        else:
            state, scale = self.read(), rounded("new_scale", scale, policy)
            self.words.copy_(torch.frombuffer(revised(policy, state, scale, state.good_steps), dtype=torch.uint8))

    def show(self, scale: torch.Tensor, good: torch.Tensor) -> None:
        scale.copy_(self._float(Factor.scale_f32))
        good.copy_(self.words.view(torch.int64)[State.good_steps.offset // 8].clamp(max=_MOST))

    def update(self, policy: Policy, report: torch.Tensor) -> None:
        c.gsc_state_update(_place.on(self.home), policy, self.words, report, self.words)

    def is_usable(self) -> bool:
        return True

    def latest(self, fused: bool) -> State | None:
        """With a fused optimizer nobody looks at a device, so the state is sent to the host behind an update, and what
        has come is looked at in a later one.
        """
        if not fused or self.captures():
            return None
        context, stream, _ = _place.on(self.home)
        if self._sent is None or self._sent.context is not context:
            self._sent, self._is_sent = _cuda.Arrival(context, ctypes.sizeof(State)), False
        if not self._sent.is_there():
            return None
        state = State.from_buffer_copy(self._sent.data()) if self._is_sent else None
        self._sent.send(stream, self.words, ctypes.sizeof(State))
        self._is_sent = True
        return state

    def unseen(self) -> State | None:
        return self.read()

    @staticmethod
    def is_stuck(state: State) -> bool:
        return not is_usable(state) or bool(state.events & _STOPPED)

    def captures(self) -> bool:
        return _place.captures(self.home)

    def scale(self) -> torch.Tensor:
        return self._double(Factor.scale).clone()  # an update writes the other

    def events(self) -> int | None:
        return None

    def has_none_of(self, events: int) -> torch.Tensor:
        return (self.words.view(torch.int32)[State.events.offset // 4] & events) == 0

    def refusal(self) -> torch.Tensor:
        return (~self.has_none_of(_SKIPPED)).float()

    def factor(self, rounds: bool) -> torch.Tensor:
        words = self.words[:FACTOR].clone()
        if rounds:
            inverse, rounded = self.inverse(words), words.view(torch.float32)[_INVERSE_F32]
            inverse.copy_(torch.where(torch.isfinite(rounded) & (rounded > 0), rounded, inverse))
        return words

    @staticmethod
    def factor_of(inverse: torch.Tensor) -> torch.Tensor:
        value = inverse.reshape(1).double()
        pair = torch.cat([value.reciprocal(), value])
        rounded = torch.cat([pair.float(), pair.new_zeros(2, dtype=torch.float32)])  # and no generation
        return torch.cat([pair.view(torch.uint8), rounded.view(torch.uint8)])

    def guard_factor(self) -> torch.Tensor:
        factor = torch.empty(FACTOR, dtype=torch.uint8, device=self.home)
        c.gsc_factor_clip_outlier(_place.on(self.home), None, self.words, factor)
        return factor

    @staticmethod
    def lent(factor: torch.Tensor, device: torch.device) -> Any:
        on_host = _place.ordinal(device) is None
        return Factor.from_buffer_copy(_place.data(factor)) if on_host else factor.to(device, non_blocking=True)

    @staticmethod
    def inverse(factor: torch.Tensor) -> float | torch.Tensor:
        return factor.view(torch.float64)[_INVERSE]

    @classmethod
    def reduce(cls, clip: torch.Tensor, other: torch.Tensor) -> None:
        inverse = cls.inverse(clip)
        inverse.copy_((inverse / cls.inverse(other)).clamp_max(1.0))
        clip.view(torch.float32)[_INVERSE_F32].copy_(inverse)

    @staticmethod
    def report(words: torch.Tensor) -> torch.Tensor:
        return words

    @staticmethod
    def read_report(report: torch.Tensor) -> Report:
        return Report.from_bytes(_place.data(report))

    @staticmethod
    def found_inf(report: torch.Tensor) -> torch.Tensor:
        return report.view(torch.float32)[0]

    @staticmethod
    def overflowed(report: torch.Tensor) -> bool | None:
        return None

    @staticmethod
    def merged(reports: list[torch.Tensor], policy: Policy) -> torch.Tensor:
        return _place.merged(torch.cat(reports), policy)

    def overruled(self, report: torch.Tensor | None, found_inf: Iterable[torch.Tensor]) -> torch.Tensor:
        if report is None:
            report = torch.zeros(_place.SIZE, dtype=torch.uint8, device=self.home)
            _place.words(report)[_place.KIND] = int(ReportKind.FLAG)
        else:
            report = report.clone()
        overflow = sum(tensor.to(self.home, non_blocking=True) for tensor in found_inf).reshape(()) != 0
        _place.flag(report, overflow)
        at = Report.nan_count.offset // 8
        report.view(torch.int64)[at : at + 2].mul_(overflow)  # nan_count and inf_count, as on the host
        return report

    def norm(self, report: torch.Tensor) -> torch.Tensor:
        squares = report.view(torch.float64)[Report.sum_squares.offset // 8]
        return torch.where(report.view(torch.float32)[0] != 0, math.inf, squares.sqrt()).float()

    def clip(self, report: torch.Tensor, max_norm: float) -> torch.Tensor:
        clip = torch.empty(FACTOR, dtype=torch.uint8, device=self.home)
        c.gsc_factor_clip_grad_norm(_place.on(self.home), None, report, max_norm, clip)
        return clip
