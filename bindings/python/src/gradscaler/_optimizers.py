# SPDX-License-Identifier: MIT
"""The gradients of one of torch's optimizers, by name, as C calls take them; and what scales a loss of torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from ._report import Report


class Round:
    """What was done with one optimizer since the last update."""

    stage = OptState.READY
    report: Report | None = None


def gradients(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Every gradient of `optimizer` that is not None, its memory in one piece.

    Named as the optimizer names its parameters, if it was made of named ones, else by group and place. A gradient with
    gaps in its memory is replaced by one without.
    """
    found: dict[str, torch.Tensor] = {}
    for g, group in enumerate(optimizer.param_groups):
        names = group.get("param_names")
        for i, parameter in enumerate(group["params"]):
            if parameter.grad is None:
                continue
            place = f"group {g}, parameter {i}"
            name = names[i] if names else place
            found[f"{name} ({place})" if name in found else name] = _in_one_piece(parameter)
    return found


def _in_one_piece(parameter: torch.nn.Parameter) -> torch.Tensor:
    grad = parameter.grad.detach()
    if grad.is_sparse:
        return grad._values()
    if grad.is_contiguous():
        return grad
    if not _is_dense(grad):
        parameter.grad = grad = grad.contiguous()
        return grad
    return grad.as_strided((grad.numel(),), (1,))  # permuted, as channels_last is: any order does


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def times(outputs: Any, scale: torch.Tensor) -> Any:
    """Tensors, alone or in iterables of iterables, times `scale`, as torch.amp.GradScaler.scale multiplies them."""
    if isinstance(outputs, torch.Tensor):
        return outputs * scale.to(outputs.device, non_blocking=True)
    if isinstance(outputs, list | tuple):
        return type(outputs)(times(each, scale) for each in outputs)
    if isinstance(outputs, Iterable) and not isinstance(outputs, str):
        return (times(each, scale) for each in outputs)
    raise ValueError(f"outputs must be a tensor or an iterable of tensors, not {type(outputs).__name__}")
