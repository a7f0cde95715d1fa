# SPDX-License-Identifier: MIT
"""Methods that torch.compile calls instead of tracing, as it does those of torch's class."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame

_Method = TypeVar("_Method", bound=Callable)


_WHY = (
    "a GradScaler's state is no part of a graph: compile without fullgraph=True, or use TensorScaler; if this is "
    "scale(), call scaler.scale(torch.zeros(())) once before"
)
_here = threading.local()  # the compiler that does not see what runs now


def seen(call: Callable, *args: Any, **named: Any) -> Any:
    """A call in an eager method that is compiled all the same: a step of an optimizer."""
    compiler = getattr(_here, "compiler", None)
    if compiler is None:
        return call(*args, **named)
    eval_frame.set_eval_frame(compiler)
    try:
        return call(*args, **named)
    finally:
        eval_frame.set_eval_frame(None)


def eager(method: _Method) -> _Method:
    """The method as torch.compiler.disable makes it, which would import the compiler: that takes seconds."""
    if not hasattr(eval_frame, "set_code_exec_strategy"):  # another torch
        return torch.compiler.disable(method)

    @functools.wraps(method)
    def run(self: Any, *args: Any, **named: Any) -> Any:
        compiler = eval_frame.set_eval_frame(None)
        if compiler is None:
            return method(self, *args, **named)
        before, _here.compiler = getattr(_here, "compiler", None), compiler
        try:
            return method(self, *args, **named)
        finally:
            _here.compiler = before
            eval_frame.set_eval_frame(compiler)

    action = eval_frame._FrameAction
    strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
    for each in run, seen:
        eval_frame.set_code_exec_strategy(each.__code__, strategy)
    run._torchdynamo_disable = True
    run._torchdynamo_disable_msg = _WHY
    return run
