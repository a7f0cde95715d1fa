# SPDX-License-Identifier: MIT
"""Shared by the tests with torch: scalers with a scale, optimizers with given gradients, and torch's operations."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradscaler.torch import GradScaler

torch.set_num_threads(1)


def scaler(init_scale=4.0, kind=GradScaler, **options):
    """Returns a scaler that has made its scale."""
    return begun(kind("cpu", init_scale, **options))


def begun(scaler):
    scaler.scale(torch.ones(()))
    return scaler


def parameter(gradient):
    made = torch.nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype))
    made.grad = gradient
    return made


def sgd(*gradients, fused=None, **named):
    """Returns an optimizer of parameters that are 0 and have these gradients, by position or by name."""
    pairs = [(name, parameter(torch.as_tensor(gradient))) for name, gradient in named.items()]
    return torch.optim.SGD(pairs or [parameter(torch.as_tensor(each)) for each in gradients], lr=0.5, fused=fused)


def parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def gradients(optimizer):
    return [p.grad for p in parameters(optimizer)]


def make_step(scaler, *optimizers):
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def steps(scaler, *overflows):
    """Returns the scales after steps with and without an overflow."""
    scales = []
    for bad in overflows:
        make_step(scaler, sgd([torch.inf if bad else 1.0]))
        scales.append(scaler.get_scale())
    return scales


class Operations(TorchDispatchMode):
    """Within it the names of all operations, and the types of devices that their tensors are on, are kept."""

    def __init__(self):
        super().__init__()
        self.devices, self.names = set(), set()

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        result = operation(*arguments, **(options or {}))
        leaves = tree_leaves((arguments, options, result))
        self.devices |= {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}
        self.names.add(str(operation))
        return result
