# SPDX-License-Identifier: MIT
"""The losses of a step, and whether they were finite before they were scaled."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch

from .._structs import Dtype, Evidence
from . import _device, _ranks
from ._order import Orders, appended, backward_order, positions, settled

_KEPT = 64  # the most losses that are kept of a step
_DTYPES = {torch.float16: Dtype.F16, torch.bfloat16: Dtype.BF16, torch.float32: Dtype.F32, torch.float64: Dtype.F64}
_SMALL = 1 << 12  # losses of at most this many bytes are kept alive, larger ones by weak references


class StepLosses:
    """The losses of one step, without their graphs; large ones only as long as other code keeps them alive."""

    def __init__(self, orders: Orders) -> None:
        self.count = 0
        self._kept: deque[tuple[torch.Tensor | None, Callable[[], Any]]] = deque(maxlen=_KEPT)
        self._orders, self._order = orders, []
        self.judged = Judged()

    def add(self, loss: torch.Tensor, size: int | None) -> None:
        """Keeps a loss of `size` bytes; None: it has no memory of its own."""
        self.count += 1
        kind = type(loss)
        value = loss.detach() if kind is torch.Tensor and size is not None and size <= _SMALL else None
        # A parameter must have no weak reference.
        self._kept.append((value, weakref.ref(loss) if kind is not torch.nn.Parameter else _nothing))

    def values(self) -> list[torch.Tensor | None]:
        """Returns the losses before they were scaled, or None for each that is gone."""
        return [get() if value is None else value for value, get in self._kept]

    def first_bad(self) -> int:
        """Returns the number, from 1, of the first loss that was not finite before it was scaled, or 0."""
        first = self.count - len(self._kept) + 1
        return next((i for i, value in enumerate(self.values(), first) if is_bad(value)), 0)

    def evidence(self, scale: float) -> Evidence:
        """Returns what is known of the losses, for gsc_state_reason; `scale` is what they were multiplied by."""
        known, bad = [value for value in self.values() if value is not None], self.first_bad()
        dtypes = {value.dtype for value in known} & _DTYPES.keys()
        smallest = min(dtypes, key=lambda dtype: torch.finfo(dtype).max, default=None)
        is_known = bad or len(known) == self.count
        return Evidence(
            scale=scale, loss_dtype=_DTYPES.get(smallest, 0), losses=self.count if is_known else 0, bad_loss=bad
        )

    def order(self, parameters: Sequence[int], bad: Set[int]) -> list[int] | None:
        """Returns positions of parameters in the order of their gradients in the backward pass, or None if unknown.

        parameters: the ids of the parameters; `bad` has the ids with a bad gradient
        """
        self._orders.is_stale = True
        if not bad <= set(self._order):
            roots = [loss.grad_fn for _, get in self._kept if (loss := get()) is not None]
            self._order = appended(self._order, backward_order([root for root in roots if root is not None]))
        own = set(parameters)
        order = [each for each in self._orders.best(self._order, bad) if each in own]
        return positions(parameters, settled(order, bad)) if order else None


class Judged:
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


class Losses:
    """The losses of the current step, or between steps of the last one.

    For a policy that holds, the losses of a step are also judged, until gradients of this step were made with
    create_graph: of such gradients a program makes a penalty, and the scale can be the reason why that is not finite.
    """

    def __init__(self) -> None:
        self._orders = Orders()
        self.step, self.is_over = StepLosses(self._orders), True

    def end_step(self) -> None:
        self.is_over = True

    def begin_step(self) -> StepLosses:
        """Returns the losses of the current step; there are none before its first call of scale()."""
        if self.is_over:
            self.step, self.is_over = StepLosses(self._orders), False
            self._orders.begin_step()
        return self.step

    def add(self, losses: Any, scaled: Any = None, judges: bool = False) -> bool:
        """Keeps the losses of a call of scale(), and returns whether one has a graph.

        If it `judges`, `scaled` has what scale() returns for them.
        """
        if isinstance(losses, torch.Tensor):
            step = self.begin_step()
            try:
                size = losses.untyped_storage().nbytes()
            except RuntimeError:  # as in torch.func
                size = None
            if losses.requires_grad:  # else it only makes torch's two tensors
                step.add(losses, size)
                if self._orders.is_learning:
                    self._orders.learn(losses.grad_fn)
            if judges and size is not None:
                step.judged.add(losses, scaled)
            return losses.requires_grad
        if not isinstance(losses, list | tuple):
            return False
        pairs = zip(losses, scaled if judges else losses, strict=True)
        found = [self.add(loss, each, judges) for loss, each in pairs]
        return any(found)

    def are_finite(self) -> bool | None:
        """Returns whether the judged losses are finite; None if there is none. Waits for their device."""
        values = self.step.judged.magnitudes
        return all(math.isfinite(value.item()) for value in values) if values else None

    def judged(self, home: torch.device) -> torch.Tensor | None:
        """Returns the magnitudes of the judged losses of the current step as one tensor, or None."""
        values = [] if self.is_over else [value.to(home) for value in self.step.judged.magnitudes]
        if len(values) < 2:
            return values[0] if values else None
        return torch.stack(values)


def is_bad(value: torch.Tensor | None) -> bool:
    """Returns whether a tensor has Inf or NaN; of a DTensor, this rank's part, so that no rank waits for another."""
    with contextlib.suppress(RuntimeError):  # a later run of a CUDA graph can have taken its memory
        if value is not None:
            local = value.to_local() if hasattr(value, "to_local") else value
            return not torch.isfinite(local.detach()).all()
    return False


def _nothing() -> None:
    return None
