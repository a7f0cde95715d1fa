# SPDX-License-Identifier: MIT
"""Collects the gradients of a torch optimizer by name, and scales torch's losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from ._report import Report


class Progress:
    """The stage of one optimizer since the last update, and its report."""

    stage = OptState.READY
    report: Report | None = None


def gradients(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Returns every gradient of `optimizer` that is not None, by name, each in contiguous memory.

    The names are the optimizer's, if it was made of named parameters, else group and position. A gradient with gaps in
    its memory is replaced by one without.
    """
    found: dict[str, torch.Tensor] = {}
    for g, group in enumerate(optimizer.param_groups):
        names = group.get("param_names")
        for i, parameter in enumerate(group["params"]):
            if parameter.grad is None:
                continue
            position = f"group {g}, parameter {i}"
            name = names[i] if names else position
            found[f"{name} ({position})" if name in found else name] = _contiguous(parameter)
    return found


def _contiguous(parameter: torch.nn.Parameter) -> torch.Tensor:
    grad = parameter.grad.detach()
    if grad.is_sparse:
        return grad._values()
    if grad.is_contiguous():
        return grad
    if not _is_dense(grad):
        parameter.grad = grad = grad.contiguous()
        return grad
    return grad.as_strided((grad.numel(),), (1,))  # permuted, as channels_last: the order does not matter


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def scale_outputs(outputs: Any, scale: torch.Tensor) -> Any:
    """Multiplies a tensor, or tensors in nested iterables, by `scale`, as torch.amp.GradScaler.scale does."""
    if isinstance(outputs, torch.Tensor):
        return outputs * scale.to(outputs.device, non_blocking=True)
    if isinstance(outputs, list | tuple):
        return type(outputs)(scale_outputs(each, scale) for each in outputs)
    if isinstance(outputs, Iterable) and not isinstance(outputs, str):
        return (scale_outputs(each, scale) for each in outputs)
    raise ValueError(f"outputs must be a tensor or an iterable of tensors, not {type(outputs).__name__}")
