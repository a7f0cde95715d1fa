# SPDX-License-Identifier: MIT
"""A scaler's state in the memory of the host or of a device, with what is done to it there.

Both classes have the same methods. Reports are gradscaler.Report on the host and tensors of bytes on a device, factors
Factor and tensors of bytes; nothing waits for a device but read().
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from typing import Any

import torch

from .. import _arguments as base
from .. import _gradscaler as c
from .._policy import Policy
from .._report import Report
from .._structs import Event, Factor, ReportKind, State
from . import _place
from ._place import CPU, FACTOR

_SKIPPED = int(Event.SKIPPED)
_MOST = 2**31 - 1


def start(state: State, home: torch.device) -> Host | Device:
    return Host(state) if _place.ordinal(home) is None else Device(state, home)


class Host:
    home = CPU

    def __init__(self, state: State) -> None:
        self.words = state

    def read(self) -> State:
        return State.from_buffer_copy(self.words)

    def copy(self) -> Host:
        return Host(self.read())

    def take(self, policy: Policy, scale: torch.Tensor, good: torch.Tensor) -> None:
        """Takes over what others wrote into torch's two tensors."""
        now, count = scale.item(), good.item()
        if now != self.words.factor.scale_f32 or count != min(self.words.good_steps, _MOST):
            state = self.read()
            if now != state.factor.scale_f32:
                state.factor.scale = now
            state.good_steps = count
            self.words = _valid(policy, state)

    def show(self, scale: torch.Tensor, good: torch.Tensor) -> None:
        """Writes torch's two tensors."""
        scale.fill_(self.words.factor.scale)
        good.fill_(min(self.words.good_steps, _MOST))

    def update(self, policy: Policy, report: Report) -> None:
        c.gsc_state_update(None, policy, self.words, report, self.words)

    def is_usable(self) -> bool:
        """Whether a division by the scale can give anything; on a device, as far as is known."""
        return 0 < self.words.factor.scale < math.inf

    def scale(self) -> float:
        return self.words.factor.scale

    def events(self) -> int:
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
    def report(words: torch.Tensor) -> Report:
        return Report.from_bytes(_place.data(words))

    @staticmethod
    def merged(reports: list[Report], policy: Policy) -> Report:
        return Report.merge(reports, policy=policy)

    @staticmethod
    def ruled(report: Report | None, found_inf: Iterable[torch.Tensor]) -> Report:
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


class Device:
    def __init__(self, state: State | torch.Tensor, home: torch.device) -> None:
        made = isinstance(state, torch.Tensor)
        self.home, self.words = home, state if made else torch.frombuffer(state, dtype=torch.uint8).to(home)

    def _float(self, field: Any) -> torch.Tensor:
        return self.words.view(torch.float32)[field.offset // 4]

    def _double(self, field: Any) -> torch.Tensor:
        return self.words.view(torch.float64)[field.offset // 8]

    def read(self) -> State:
        return State.from_buffer_copy(_place.data(self.words))

    def copy(self) -> Device:
        return Device(self.words.clone(), self.home)

    def take(self, policy: Policy, scale: torch.Tensor, good: torch.Tensor) -> None:
        own, now = self._double(Factor.scale), scale.reshape(())
        own.copy_(torch.where(now == self._float(Factor.scale_f32), own, now))  # what is equal keeps its double
        self.words.view(torch.int64)[State.good_steps.offset // 8].copy_(good.reshape(()))
        with base._naming(**{"from": ""}):
            c.gsc_state_init_from(_place.on(self.home), policy, self.words, self.words)

    def show(self, scale: torch.Tensor, good: torch.Tensor) -> None:
        scale.copy_(self._float(Factor.scale_f32))
        good.copy_(self.words.view(torch.int64)[State.good_steps.offset // 8].clamp(max=_MOST))

    def update(self, policy: Policy, report: torch.Tensor) -> None:
        c.gsc_state_update(_place.on(self.home), policy, self.words, report, self.words)

    def is_usable(self) -> bool:
        return True

    def scale(self) -> torch.Tensor:
        return self._double(Factor.scale).clone()  # an update writes the other

    def events(self) -> None:
        return None

    def has_none_of(self, events: int) -> torch.Tensor:
        return (self.words.view(torch.int32)[State.events.offset // 4] & events) == 0

    def refusal(self) -> torch.Tensor:
        return (~self.has_none_of(_SKIPPED)).float()

    def factor(self, rounds: bool) -> torch.Tensor:
        words = self.words[:FACTOR].clone()
        if rounds:
            inverse = words.view(torch.float64)[Factor.inverse.offset // 8]
            rounded = words.view(torch.float32)[Factor.inverse_f32.offset // 4]
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
    def report(words: torch.Tensor) -> torch.Tensor:
        return words

    @staticmethod
    def merged(reports: list[torch.Tensor], policy: Policy) -> torch.Tensor:
        return _place.merged(torch.cat(reports), policy)

    def ruled(self, report: torch.Tensor | None, found_inf: Iterable[torch.Tensor]) -> torch.Tensor:
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
        clip = torch.empty(ctypes.sizeof(Factor), dtype=torch.uint8, device=self.home)
        c.gsc_factor_clip_grad_norm(_place.on(self.home), None, report, max_norm, clip)
        return clip


def _valid(policy: Policy, state: State) -> State:
    with base._naming(**{"from": ""}):
        c.gsc_state_init_from(None, policy, state, state)
    return state
