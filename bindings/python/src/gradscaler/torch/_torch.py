# SPDX-License-Identifier: MIT
"""The private parts of torch that this package uses. If torch lacks one, the import fails and names it."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.amp.grad_scaler import OptState

__all__ = [
    "Base",
    "OptState",
    "TorchGradScaler",
    "backward_id",
    "call_compiled",
    "divide",
    "eager",
    "is_torchs",
    "lacks_cuda",
]

_PARTS = (  # called by torch's class or read by programs, but not public
    "amp.GradScaler._unscale_grads_",
    "amp.GradScaler._check_inf_per_device",
    "amp.GradScaler._maybe_opt_step",
    "amp.GradScaler._check_scale_growth_tracker",
    "amp.GradScaler._lazy_init_scale_growth_tracker",
    "amp.GradScaler._get_scale_async",
    "amp.GradScaler._get_growth_tracker",
    "_amp_foreach_non_finite_check_and_unscale_",
    "_debug_has_internal_overlap",
    "cuda.amp.common.amp_definitely_not_available",
    "_C._dynamo.eval_frame.set_eval_frame",
    "_C._current_graph_task_id",
    "_C._group_tensors_by_device_and_dtype",
    "utils.weak.WeakIdKeyDictionary",
    "autograd.graph.Node._sequence_nr",
)


def _require(parts: tuple[str, ...]) -> None:
    for part in parts:
        try:
            operator.attrgetter(part)(torch)
        except AttributeError:
            raise ImportError(
                f"torch {torch.__version__} has no torch.{part}, which gradscaler.torch needs: it runs with torch "
                "2.6 to 2.15; with another, use torch.amp.GradScaler and tell us"
            ) from None


_require(_PARTS)
eval_frame = torch._C._dynamo.eval_frame
backward_id = torch._C._current_graph_task_id  # the number of the backward pass that runs, or -1
divide = torch._amp_foreach_non_finite_check_and_unscale_
lacks_cuda = torch.cuda.amp.common.amp_definitely_not_available
TorchGradScaler = torch.amp.GradScaler  # a program can put another class under this name later
# torch.cuda.amp.GradScaler is a subclass of torch.amp.GradScaler: isinstance() holds for both. Its constructor would
# warn, so it is not called.
Base = getattr(torch.cuda.amp, "GradScaler", TorchGradScaler)


def is_torchs(method: Any) -> bool:
    """Returns whether a method is torch's own, and not a replacement by the program."""
    return getattr(method, "__globals__", None) is _GLOBALS


_GLOBALS = vars(torch.amp.grad_scaler)
_Method = TypeVar("_Method", bound=Callable)
_WHY = (
    "a GradScaler's state is no part of a graph: compile without fullgraph=True, or use TensorScaler; if this is "
    "scale(), call scaler.scale(torch.zeros(())) once before"
)
_here = threading.local()  # the compiler that `eager` has switched off in this thread


def call_compiled(call: Callable, *args: Any, **named: Any) -> Any:
    """Calls a function that is compiled although it is called from an eager method, such as an optimizer's step."""
    compiler = getattr(_here, "compiler", None)
    if compiler is None:
        return call(*args, **named)
    eval_frame.set_eval_frame(compiler)
    try:
        return call(*args, **named)
    finally:
        eval_frame.set_eval_frame(None)


def eager(method: _Method) -> _Method:
    """Does what torch.compiler.disable does, but without importing the compiler, which takes seconds."""
    if not hasattr(eval_frame, "set_code_exec_strategy"):  # older or newer versions of torch
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
    for each in run, call_compiled:
        eval_frame.set_code_exec_strategy(each.__code__, strategy)
    run._torchdynamo_disable = True
    run._torchdynamo_disable_msg = _WHY
    return run
