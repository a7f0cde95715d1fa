# SPDX-License-Identifier: MIT
"""How a program uses the scale between two updates: late gradients, and steps that only make an optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import _ranks
from ._grads import gradients
from ._plain import is_readable


class Uses:
    """Knows if the scale was used since the last update(), and by which scale the last loss was multiplied."""

    def __init__(self) -> None:
        self.is_touched = False  # scale() was called or the scale was read since the last update()
        self.had_dummy = False  # a dummy step was made since the last update()
        self.scaled = 0  # calls of scale() since the last update()
        self._has_loss = False
        self._kept: Any = None  # a copy of the state before the first update() after the last loss
        self._stepped: set[int] = set()  # the optimizers that have stepped since the last loss

    def add_loss(self) -> None:
        self._has_loss, self._kept = True, None
        self._stepped.clear()

    def add_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepped.add(id(optimizer))

    def before_update(self, memory: Any) -> None:
        if self._has_loss and self._kept is None and not memory.captures():
            self._kept = memory.copy()
        self.is_touched, self.had_dummy, self.scaled = False, False, 0

    def of_loss(self, optimizers: Iterable[torch.optim.Optimizer], home: torch.device) -> Any:
        """Returns the state by which the loss of these gradients was scaled, if update() was called since; else None.

        A program that scales by what it read, or that steps once more after the same loss, uses the present scale.
        """
        is_late = self._kept is not None and not self.is_touched and self._kept.home == home
        return self._kept if is_late and self._stepped.isdisjoint(map(id, optimizers)) else None


def is_dummy(optimizer: torch.optim.Optimizer, is_touched: bool) -> bool:
    """Returns whether a step only makes an optimizer's state: each gradient is 0, and each learning rate.

    torch.distributed.checkpoint makes such a step before it loads. The ranks of DTensors agree on it: one of them can
    have touched the scale, such as to print it.
    """
    if not _rates_are_zero(optimizer):
        return False
    found = gradients(optimizer)
    meshes = (
        _ranks.meshes([p for group in optimizer.param_groups for p in group["params"]]) if _ranks.possible() else ()
    )
    return _ranks.all_agree(not is_touched and bool(found) and all(map(_is_zero, found)), meshes)


def _rates_are_zero(optimizer: torch.optim.Optimizer) -> bool:
    rates = [group.get("lr") for group in getattr(optimizer, "param_groups", ())]
    on_host = (rate is not None and getattr(rate, "is_cpu", True) for rate in rates)  # asking a device would wait
    return bool(rates) and all(on_host) and all(rate == 0 for rate in rates)


def _is_zero(gradient: torch.Tensor) -> bool:
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient.detach()
    if not is_readable(local):
        return False
    if local.layout is not torch.strided:
        local = local._values() if local.layout is torch.sparse_coo else local.values()
    return not (local if local.element_size() > 1 else local.float()).any()
