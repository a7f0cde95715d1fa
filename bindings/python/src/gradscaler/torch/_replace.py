# SPDX-License-Identifier: MIT
"""Puts GradScaler under every name that torch's class has."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import torch

from ._scaler import GradScaler


class _CpuGradScaler(GradScaler):
    """torch.cpu.amp's class; its constructor takes no device."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__("cpu", *args, **named)


_KINDS = {"amp": GradScaler, "cuda.amp": GradScaler, "cpu.amp": _CpuGradScaler}


def replace_torch() -> contextlib.ExitStack:
    """Puts GradScaler under each name that torch has for its class, for trainers that make their scaler themselves.

        with gradscaler.torch.replace_torch():
            import trainer
            trainer.fit()

    The names are GradScaler of torch, torch.amp, torch.cuda.amp, torch.cpu.amp and of their modules `grad_scaler`.
    Without `with` they stay replaced; close() of the result puts torch's classes back. Call it before you import code
    that has `from torch.amp import GradScaler`: a name that such code has already is not replaced.
    """
    undo = contextlib.ExitStack()
    places = [(torch, GradScaler)]
    for path, kind in _KINDS.items():
        for module in path, f"{path}.grad_scaler":
            with contextlib.suppress(ImportError):
                places.append((importlib.import_module(f"torch.{module}"), kind))
    for module, kind in places:
        if hasattr(module, "GradScaler"):
            undo.callback(setattr, module, "GradScaler", module.GradScaler)
            module.GradScaler = kind
    return undo
