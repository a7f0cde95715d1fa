# SPDX-License-Identifier: MIT
"""Shared by the tests of the drop-ins: recordings, and an optimizer with gradients that a test sets."""

import contextlib
import json
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_map_only

ROOT = Path(__file__).resolve().parents[4]
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sequences(request):
    """How many random call sequences are compared."""
    return 20_000 if request.config.getoption("--long") else 800


def traces(*names):
    """(settings, recording) of these of tests/traces, as pytest parameters."""
    recordings = [(name, json.loads((ROOT / "tests" / "traces" / f"{name}.json").read_text())) for name in names]
    return [
        pytest.param(recording["defaults"] | trace["overrides"], trace, id=f"{name}-{trace['name']}")
        for name, recording in recordings
        for trace in recording["traces"]
    ]


@contextlib.contextmanager
def stubs(root, modules):
    """Within it these modules, all below the package `root`, have only these attributes; then none of them is left."""
    try:
        for name, attributes in modules.items():
            sys.modules[name] = module = types.ModuleType(name)
            vars(module).update({"__path__": []} | attributes)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, module)
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == root]:
            del sys.modules[name]


def sgd(values=(1.0, 2.0, 3.0), **options):
    """Returns an optimizer of one parameter; its learning rate of 1 makes a step visible."""
    parameter = torch.nn.Parameter(torch.tensor(values))
    return torch.optim.SGD([parameter], lr=1.0, **options)


def parameter_of(optimizer):
    return optimizer.param_groups[0]["params"][0]


def call(scaler, optimizers, action, *arguments):
    """Makes a call of a sequence, in which an optimizer is its number; returns its result, or the kind of its error."""
    try:
        if action == "gradient":
            which, value, bad = arguments
            set_gradient(optimizers[which], value * float(scaler.get_scale()), bad)
        elif action == "zero_grad":
            optimizers[arguments[0]].zero_grad()
        elif action in ("unscale_", "step"):
            getattr(scaler, action)(optimizers[arguments[0]])
        else:
            return tree_map_only(torch.Tensor, torch.Tensor.tolist, getattr(scaler, action)(*arguments))
    except Exception as error:
        return type(error)
    return None


def set_gradient(optimizer, scale, bad=None):
    """The gradient 0.25, 0.5, ... of a loss times `scale`; `bad` stands in its middle."""
    parameter = parameter_of(optimizer)
    gradient = torch.arange(1, parameter.numel() + 1) * 0.25 * scale
    if bad is not None:
        gradient[parameter.numel() // 2] = bad
    parameter.grad = gradient


def in_a_step(scaler):
    """Returns the scaler after it has unscaled gradients."""
    set_gradient(optimizer := sgd(), 1.0)
    scaler.unscale_(optimizer)
    return scaler


def run(scaler, overflows, **options):
    """Makes a step for each digit, an overflow for each 1; returns the scales of the losses."""
    scales = []
    for bad in overflows:
        optimizer = sgd()
        scales.append(float(scaler.get_scale()))
        set_gradient(optimizer, scales[-1], torch.inf if bad == "1" else None)
        scaler.step(optimizer)
        assert torch.equal(parameter_of(optimizer), parameter_of(sgd())) == (bad == "1")
        scaler.update(**options)
    return scales
