# SPDX-License-Identifier: MIT
"""The losses of a step, and whether they were finite before they were scaled."""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from . import _device, _ranks

_KEPT = 64  # the most losses that are kept of a step
_SMALL = 1 << 12  # losses of at most this many bytes are kept alive, larger ones by weak references


class Losses:
    """The losses of a step, without their graphs; large ones only as long as other code keeps them alive.

    For a policy that holds, the losses of a step are also judged, until gradients of this step were made with
    create_graph: of such gradients a program makes a penalty, and the scale can be the reason why that is not finite.
    """

    def __init__(self) -> None:
        self._kept: deque[Callable[[], Any]] = deque(maxlen=_KEPT)
        self._judged = _Judged()
        self._over = False  # the next loss begins another step

    def end_step(self) -> None:
        self._over = True

    def add(self, losses: Any, scaled: Any = None, judges: bool = False) -> None:
        """Keeps the losses of a call of scale(). If it `judges`, `scaled` has what scale() returns for them."""
        if self._over:
            self._over, self._judged = False, _Judged()
            self._kept.clear()
        if isinstance(losses, torch.Tensor):
            try:
                size = losses.untyped_storage().nbytes()
            except RuntimeError:  # the tensor has no memory of its own, as in torch.func
                self._kept.append(weakref.ref(losses))
                return
            small = type(losses) is torch.Tensor and size <= _SMALL
            self._kept.append(functools.partial(_itself, losses.detach()) if small else weakref.ref(losses))
            if judges:
                self._judged.add(losses, scaled)
        elif isinstance(losses, list | tuple):
            for loss, each in zip(losses, scaled if judges else losses, strict=True):
                self.add(loss, each, judges)

    def are_bad(self) -> bool:
        return any(is_bad(get()) for get in self._kept)

    def are_finite(self) -> bool | None:
        """Returns whether the judged losses are finite; None if there is none. Waits for their device."""
        values = self._judged.magnitudes
        return all(math.isfinite(value.item()) for value in values) if values else None

    def judged(self, home: torch.device) -> torch.Tensor | None:
        """Returns the magnitudes of the judged losses of the current step as one tensor, or None."""
        values = [] if self._over else [value.to(home) for value in self._judged.magnitudes]
        if len(values) < 2:
            return values[0] if values else None
        return torch.stack(values)


class _Judged:
    """The largest magnitude in each judged loss of a step, and whether the next loss can be one that the scale made."""

    def __init__(self) -> None:
        self.magnitudes: list[torch.Tensor] = []
        self._made_graph = False

    def add(self, loss: torch.Tensor, scaled: torch.Tensor) -> None:
        if self._made_graph:
            return
        if scaled.requires_grad:
            scaled.register_hook(self._see)
        loss = loss.detach()
        if _ranks.possible() and _ranks.is_spread((type(loss),)):
            loss = loss.to_local()
        if type(loss) in _device.PLAIN and loss.numel() and loss.is_floating_point() and not loss.is_meta:
            # Not the loss itself: other code can write to it, and another run of a CUDA graph can take its memory.
            self.magnitudes.append(torch.linalg.vector_norm(loss, math.inf))
        if len(self.magnitudes) > _KEPT:
            self.magnitudes = [torch.stack([each.to(loss.device) for each in self.magnitudes]).max()]

    def _see(self, _: torch.Tensor) -> None:
        self._made_graph |= torch.is_grad_enabled()  # in a hook it is True only with create_graph


def is_bad(value: torch.Tensor | None) -> bool:
    with contextlib.suppress(RuntimeError):  # a later run of a CUDA graph can have taken its memory
        return value is not None and not torch.isfinite(value.detach()).all()
    return False


def _itself(value: Any) -> Any:
    return value
