# SPDX-License-Identifier: MIT
"""The losses of a step, and whether they were finite before they were scaled."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

_KEPT = 64  # the most losses that are kept of a step
_SMALL = 1 << 12  # losses of at most this many bytes are kept alive, larger ones by weak references


class Losses:
    """The losses of a step, without their graphs; large ones only as long as other code keeps them alive."""

    def __init__(self) -> None:
        self._kept: deque[Callable[[], Any]] = deque(maxlen=_KEPT)
        self._over = False  # the next loss begins another step

    def end_step(self) -> None:
        self._over = True

    def add(self, losses: Any) -> None:
        if self._over:
            self._over = False
            self._kept.clear()
        if isinstance(losses, torch.Tensor):
            try:
                small = type(losses) is torch.Tensor and losses.untyped_storage().nbytes() <= _SMALL
            except RuntimeError:  # the tensor has no memory of its own, as in torch.func
                small = False
            self._kept.append(functools.partial(_itself, losses.detach()) if small else weakref.ref(losses))
        elif isinstance(losses, list | tuple):
            for loss in losses:
                self.add(loss)

    def are_bad(self) -> bool:
        return any(is_bad(get()) for get in self._kept)


def is_bad(value: torch.Tensor | None) -> bool:
    with contextlib.suppress(RuntimeError):  # a later run of a CUDA graph can have taken its memory
        return value is not None and not torch.isfinite(value.detach()).all()
    return False


def _itself(value: Any) -> Any:
    return value
