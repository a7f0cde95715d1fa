# SPDX-License-Identifier: MIT
"""Schedules, averages and other code that go on only if an optimizer has stepped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


@torch.no_grad()
def copy_unless(
    decisions: Sequence[bool | torch.Tensor], tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor]
) -> None:
    """Copies tensors to `out` unless a decision is not 0. A decision on a device is read there."""
    if any(each is True for each in decisions):
        return
    unread = [each for each in decisions if isinstance(each, torch.Tensor)]
    skips: dict[torch.device, torch.Tensor] = {}
    for new, old in zip(tensors, out, strict=True):
        if not unread:
            old.copy_(new)
            continue
        if old.device not in skips:
            skips[old.device] = sum(each.to(old.device, non_blocking=True) for each in unread) != 0
        torch.where(skips[old.device], old, new.to(old), out=old)


class Steps:
    """How many steps each optimizer has taken since the first follower was made."""

    def __init__(self) -> None:
        self._taken: dict[int, int] = {}
        self._unread: list[tuple[int, list[torch.Tensor]]] = []  # by fused optimizers: nobody has waited for them

    def add(self, optimizer: torch.optim.Optimizer, skipped: bool | list[torch.Tensor]) -> None:
        if isinstance(skipped, bool):
            self._taken[id(optimizer)] = self._taken.get(id(optimizer), 0) + (not skipped)
        else:
            self._unread.append((id(optimizer), skipped))

    def taken(self, optimizer: torch.optim.Optimizer | None) -> int:
        """Waits for fused optimizers, and returns how many steps one optimizer, or all, have taken."""
        for key, found in self._unread:
            self._taken[key] = self._taken.get(key, 0) + (not any(map(torch.Tensor.item, found)))
        self._unread.clear()
        return sum(self._taken.values()) if optimizer is None else self._taken.get(id(optimizer), 0)


class Follower:
    """The result of GradScaler.follow. A call calls the method, unless no step was taken since the last call.

    target: the object that follows; other attributes of the follower, such as state_dict, are the target's
    held: how many calls did nothing
    """

    def __init__(self, scaler: Any, target: Any, method: str, optimizer: torch.optim.Optimizer | None) -> None:
        self.target, self.held = target, 0
        self._scaler, self._method, self._optimizer = scaler, method, optimizer
        self._seen = self._taken()

    def __call__(self, *args: Any, **named: Any) -> Any:
        taken = self._taken()
        if taken == self._seen and self._scaler.is_enabled():
            self.held += 1
            return None
        self._seen = taken
        return getattr(self.target, self._method, self.target)(*args, **named)

    def _taken(self) -> int:
        return self._scaler._steps_taken().taken(self._optimizer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "target":  # while it is unpickled
            raise AttributeError(name)
        return self if name == self._method else getattr(self.target, name)

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        vars(self).update(attributes)
        self._seen = self._taken()

    def __repr__(self) -> str:
        calls = "1 call" if self.held == 1 else f"{self.held} calls"
        return f"<Follower of {type(self.target).__name__}, {calls} held back>"
