# SPDX-License-Identifier: MIT
"""A scaler's state in host memory or on a device, and the operations on it.

Both classes have the same methods. On the host reports are gradscaler.Report and factors are Factor; on a device both
are tensors of bytes. Only read(), decided_state() and read_report() wait for a device.
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
from .._structs import Event, Factor, Loss, ReportKind, State
from . import _device, _ranks
from ._device import CPU, FACTOR

_SKIPPED, _STOPPED = int(Event.SKIPPED), int(Event.STOPPED)
MOST = 2**31 - 1
_FOUND_INF = tuple(torch.full((), value, dtype=torch.float32, device=CPU) for value in (0.0, 1.0))
_LOSS = Report.loss.offset // 4
_INVERSE, _INVERSE_F32 = Factor.inverse.offset // 8, Factor.inverse_f32.offset // 4
_GENERATION = Factor.generation.offset // 8


def initial_state(policy: Policy) -> State:
    state = State()
    c.gsc_state_init(None, policy, state)
    return state


def with_scale(policy: Policy, state: State, scale: float, good: int) -> State:
    """Returns the state with another scale and count."""
    state = State.from_buffer_copy(state)
    state.factor.scale, state.good_steps = scale, good
    with _arguments._argument_names(**{"from": ""}):
        c.gsc_state_init_from(None, policy, state, state)
    return state


def rounded(name: str, scale: Any, policy: Policy) -> float:
    """Returns a scale rounded to float32, as in torch, or unchanged if the policy computes in doubles."""
    scale = _arguments._number(name, scale)
    value = ctypes.c_float(scale).value if policy.arithmetic else scale
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {scale}: it must be finite and above 0 in float32")
    return value


def is_usable(state: State) -> bool:
    """Returns whether gradients can be divided by the scale."""
    return 0 < state.factor.scale < math.inf


class HostState:
    home = table = CPU  # `table`: where reports are rows of bytes

    def __init__(self, state: State) -> None:
        self.words, self._published = state, math.nan  # the scale that torch's tensor has

    def read(self) -> State:
        return State.from_buffer_copy(self.words)

    def copy(self) -> HostState:
        return HostState(self.read())

    def adopt(self, policy: Policy, scale: torch.Tensor | float, good: torch.Tensor | int) -> None:
        """Adopts the values in torch's two tensors, which other code can write to."""
        own, now, count = self.words, float(scale), int(good)
        self._published = now
        moved = ctypes.c_float(now).value != own.factor.scale_f32
        if moved or count != min(own.good_steps, MOST):
            self.words = with_scale(policy, own, now if moved else own.factor.scale, count)

    def set_scale(self, policy: Policy, scale: torch.Tensor | float, good: torch.Tensor) -> None:
        self.words = with_scale(policy, self.words, rounded("new_scale", scale, policy), self.words.good_steps)

    def publish(self, scale: torch.Tensor, good: torch.Tensor) -> None:
        """Writes torch's two tensors."""
        if self._published != self.words.factor.scale_f32:
            scale.fill_(self.words.factor.scale)
        good.fill_(min(self.words.good_steps, MOST))

    def update(self, policy: Policy, report: Report) -> None:
        c.gsc_state_update(None, policy, self.words, report, self.words)

    def is_usable(self) -> bool:
        """Returns whether gradients can be divided by the scale; True if that is not known without waiting."""
        return is_usable(self.words)

    def latest(self, fused: bool) -> State | None:
        """Returns the newest state after an update that is known without waiting, or None."""
        return self.words

    def decided_state(self) -> State | None:
        """Returns the state after a skipped step if the host has not seen it yet, else None."""
        return None

    @staticmethod
    def is_stuck(state: State) -> bool:
        """Returns whether training cannot go on after an update. The next check refuses a scale of 0."""
        return bool(state.events & _STOPPED)

    def captures(self) -> bool:
        """Returns whether calls are being captured in a CUDA graph."""
        return False

    def scale(self) -> float:
        return self.words.factor.scale

    def events(self) -> int | None:
        """Returns the events of the last update; None if they are not known without waiting."""
        return self.words.events

    def has_none_of(self, events: int) -> torch.Tensor:
        return torch.tensor(not self.words.events & events, device=CPU)

    def refusal(self) -> torch.Tensor:
        """Returns 1.0 if the last update refused the step, else 0.0, like found_inf."""
        return (~self.has_none_of(_SKIPPED)).float()

    def uses_torch(self, device: torch.device) -> bool:
        """Returns whether torch's operations unscale the gradients on a device."""
        return _device.uses_torch(device)

    def factor(self, rounds: bool) -> Factor:
        """Returns the factor to unscale by. `rounds`: with the inverse in float32, by which torch multiplies."""
        factor = Factor.from_buffer_copy(self.words)
        if rounds and 0 < factor.inverse_f32 < math.inf:
            factor.inverse = factor.inverse_f32
        return factor

    def date(self, factor: Factor) -> None:
        """Marks a factor as one of this state: an update of a later state then knows that its gradients are late."""
        factor.generation = self.words.factor.generation

    @staticmethod
    def factor_of(inverse: torch.Tensor) -> Factor:
        value = inverse.item()
        return Factor(1.0 / value, value, 1.0 / value, value)

    def guard_factor(self) -> Factor:
        factor = Factor()
        c.gsc_factor_clip_outlier(None, None, self.words, factor)
        return factor

    @staticmethod
    def factor_on(factor: Factor, device: torch.device) -> Any:
        """Returns the factor for a call on `device`."""
        on_host = _device.ordinal(device) is None
        return factor if on_host else torch.frombuffer(factor, dtype=torch.uint8).to(device)

    @staticmethod
    def inverse(factor: Factor) -> float | torch.Tensor:
        return factor.inverse

    @staticmethod
    def reduce(clip: Factor, other: Factor) -> None:
        """Divides `clip` by a clip that was applied already, so that only the rest is applied."""
        clip.inverse = min(1.0, clip.inverse / other.inverse)
        clip.inverse_f32 = clip.inverse

    @staticmethod
    def report(words: torch.Tensor) -> Report:
        """Returns a report from its bytes; raises if a rank failed."""
        report = Report.from_bytes(_device.data(words))
        if why := _ranks.refusal(report):
            raise RuntimeError(why)
        return report

    @staticmethod
    def read_report(report: Report) -> Report:
        return report

    @staticmethod
    def found_inf(report: Report) -> torch.Tensor:
        return _FOUND_INF[report.found_inf != 0].clone()

    @staticmethod
    def overflowed(report: Report) -> bool | None:
        """Returns whether the report is an overflow; None if that is not known without waiting."""
        return report.overflow

    @staticmethod
    def merged(reports: list[Report], policy: Policy) -> Report:
        return Report.merge(reports, policy=policy)

    @staticmethod
    def overruled(report: Report | None, found_inf: Iterable[torch.Tensor]) -> Report:
        """Returns the report with the verdict in `found_inf`, which other code has written."""
        overflow = any(tensor.item() for tensor in found_inf)
        if report is None:
            return Report.of_flag(overflow)
        if (report.found_inf != 0) == overflow:
            return report
        made = Report.from_bytes(bytes(report))
        made.overflow = overflow
        if not overflow:
            made.nan_count = made.inf_count = 0  # a count above 0 would still be an overflow
            made.loss = Loss.UNKNOWN  # and a bad loss would still be held
        return made

    @staticmethod
    def norm(report: Report) -> torch.Tensor:
        value = math.inf if report.overflow else math.sqrt(report.sum_squares)
        return torch.tensor(value, dtype=torch.float32, device=CPU)  # not torch's default dtype and device

    @staticmethod
    def clip(report: Report, max_norm: float, factor: Factor | None = None) -> Factor | None:
        """Returns `factor`, or 1, times the clip to `max_norm`; None if nothing is left to multiply by."""
        if report.overflow:
            return None
        if math.sqrt(report.sum_squares) <= max_norm:
            return factor
        clip = Factor()
        c.gsc_factor_clip_grad_norm(None, factor, report, max_norm, clip)
        return clip


class DeviceState:
    def __init__(self, state: State | torch.Tensor, home: torch.device) -> None:
        made = isinstance(state, torch.Tensor)
        self.home = self.table = home
        self.words = state if made else torch.frombuffer(state, dtype=torch.uint8).to(home)
        self._state_copy: _cuda.HostCopy | None = None  # the state after an earlier update
        self._is_copy_current = False  # False after set_scale: the copy has the old scale

    def _float(self, field: Any) -> torch.Tensor:
        return self.words.view(torch.float32)[field.offset // 4]

    def _double(self, field: Any) -> torch.Tensor:
        return self.words.view(torch.float64)[field.offset // 8]

    def read(self) -> State:
        return State.from_buffer_copy(_device.data(self.words))

    def copy(self) -> DeviceState:
        return DeviceState(self.words.clone(), self.home)

    def adopt(self, policy: Policy, scale: torch.Tensor, good: torch.Tensor) -> None:
        before, now = self.words.clone(), scale.reshape(())
        is_equal = now == self._float(Factor.scale_f32)
        self._double(Factor.scale).copy_(now)
        with _arguments._argument_names(**{"from": ""}):
            c.gsc_state_init_from(_device.on(self.home), policy, self.words, self.words)
        self.words.copy_(torch.where(is_equal, before, self.words))  # only another scale makes another state
        self.words.view(torch.int64)[State.good_steps.offset // 8].copy_(good.reshape(()))

    def set_scale(self, policy: Policy, scale: torch.Tensor | float, good: torch.Tensor) -> None:
        self._is_copy_current = False
        if isinstance(scale, torch.Tensor):
            self.adopt(policy, scale, good)
        else:
            state, scale = self.read(), rounded("new_scale", scale, policy)
            self.words.copy_(torch.frombuffer(with_scale(policy, state, scale, state.good_steps), dtype=torch.uint8))

    def publish(self, scale: torch.Tensor, good: torch.Tensor) -> None:
        scale.copy_(self._float(Factor.scale_f32))
        good.copy_(self.words.view(torch.int64)[State.good_steps.offset // 8].clamp(max=MOST))

    def update(self, policy: Policy, report: torch.Tensor) -> None:
        c.gsc_state_update(_device.on(self.home), policy, self.words, report, self.words)

    def is_usable(self) -> bool:
        return True

    def latest(self, fused: bool) -> State | None:
        """Copies the state to the host without waiting, and returns an earlier copy that is complete.

        Only fused optimizers need this: with others step() waits for the device.
        """
        if not fused or self.captures():
            return None
        context, stream, _ = _device.on(self.home)
        if self._state_copy is None or self._state_copy.context is not context:
            self._state_copy, self._is_copy_current = _cuda.HostCopy(context, ctypes.sizeof(State)), False
        if not self._state_copy.is_complete():
            return None
        state = State.from_buffer_copy(self._state_copy.data()) if self._is_copy_current else None
        self._state_copy.send(stream, self.words, ctypes.sizeof(State))
        self._is_copy_current = True
        return state

    def decided_state(self) -> State | None:
        return self.read()

    @staticmethod
    def is_stuck(state: State) -> bool:
        return not is_usable(state) or bool(state.events & _STOPPED)

    def captures(self) -> bool:
        return _device.captures(self.home)

    def scale(self) -> torch.Tensor:
        return self._double(Factor.scale).clone()  # an update overwrites the original

    def events(self) -> int | None:
        return None

    def has_none_of(self, events: int) -> torch.Tensor:
        return (self.words.view(torch.int32)[State.events.offset // 4] & events) == 0

    def refusal(self) -> torch.Tensor:
        return (~self.has_none_of(_SKIPPED)).float()

    def uses_torch(self, device: torch.device) -> bool:
        return _device.uses_torch(device)

    def factor(self, rounds: bool) -> torch.Tensor:
        words = self.words[:FACTOR].clone()
        if rounds:
            inverse, rounded = self.inverse(words), words.view(torch.float32)[_INVERSE_F32]
            inverse.copy_(torch.where(torch.isfinite(rounded) & (rounded > 0), rounded, inverse))
        return words

    def date(self, factor: torch.Tensor) -> None:
        factor.view(torch.int64)[_GENERATION] = self.words.view(torch.int64)[_GENERATION]

    @staticmethod
    def factor_of(inverse: torch.Tensor) -> torch.Tensor:
        value = inverse.reshape(1).double()
        pair = torch.cat([value.reciprocal(), value])
        rounded = torch.cat([pair.float(), pair.new_zeros(2, dtype=torch.float32)])  # zeros: no generation
        return torch.cat([pair.view(torch.uint8), rounded.view(torch.uint8)])

    def guard_factor(self) -> torch.Tensor:
        factor = torch.empty(FACTOR, dtype=torch.uint8, device=self.home)
        c.gsc_factor_clip_outlier(_device.on(self.home), None, self.words, factor)
        return factor

    @staticmethod
    def factor_on(factor: torch.Tensor, device: torch.device) -> Any:
        on_host = _device.ordinal(device) is None
        return Factor.from_buffer_copy(_device.data(factor)) if on_host else factor.to(device, non_blocking=True)

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
        return Report.from_bytes(_device.data(report))

    @staticmethod
    def found_inf(report: torch.Tensor) -> torch.Tensor:
        return report.view(torch.float32)[0]

    @staticmethod
    def overflowed(report: torch.Tensor) -> bool | None:
        return None

    @staticmethod
    def merged(reports: list[torch.Tensor], policy: Policy) -> torch.Tensor:
        return _device.merged(torch.cat(reports), policy)

    def overruled(self, report: torch.Tensor | None, found_inf: Iterable[torch.Tensor]) -> torch.Tensor:
        if report is None:
            report = torch.zeros(_device.SIZE, dtype=torch.uint8, device=self.home)
            _device.words(report)[_device.KIND] = int(ReportKind.FLAG)
        else:
            report = report.clone()
        overflow = sum(tensor.to(self.home, non_blocking=True) for tensor in found_inf).reshape(()) != 0
        _device.flag(report, overflow)
        at = Report.nan_count.offset // 8
        report.view(torch.int64)[at : at + 2].mul_(overflow)  # nan_count and inf_count, as on the host
        _device.words(report)[_LOSS].mul_(overflow)
        return report

    def norm(self, report: torch.Tensor) -> torch.Tensor:
        squares = report.view(torch.float64)[Report.sum_squares.offset // 8]
        return torch.where(_device.words(report)[_device.OVERFLOW] != 0, math.inf, squares.sqrt()).float()

    def clip(self, report: torch.Tensor, max_norm: float, factor: torch.Tensor | None = None) -> torch.Tensor:
        clip = torch.empty(FACTOR, dtype=torch.uint8, device=self.home)
        c.gsc_factor_clip_grad_norm(_device.on(self.home), factor, report, max_norm, clip)
        return clip


class LateCopy:
    """A copy of bytes of a device that is enqueued behind the calls that write them."""

    _spare: dict[tuple[int, int], list[_cuda.HostCopy]] = {}  # by context and size

    def __init__(self, parts: list[torch.Tensor], home: torch.device) -> None:
        self._bytes, self._copy = torch.cat(parts), None
        if _device.ordinal(home) is not None:
            context, stream, _ = _device.on(home)
            self._spares = self._spare.setdefault((id(context), len(self._bytes)), [])
            self._copy = self._spares.pop() if self._spares else _cuda.HostCopy(context, len(self._bytes))
            self._copy.send(stream, self._bytes, len(self._bytes))

    def read(self, wait: bool) -> bytes | None:
        """Returns the bytes; or None if the device is not done; without `wait` it asks only the host."""
        if self._copy is not None and self._copy.is_complete():
            data = self._copy.data()
            self._spares.append(self._copy)
            self._copy = None
            return data
        return _device.data(self._bytes) if wait else None
