# SPDX-License-Identifier: MIT
"""What people do around a GradScaler, beside the plain loop: each gives the same with torch's class and with ours.

A use takes a kind of scaler and returns values: a scale, parameters, what was raised. It says itself what must be true
of them, so that torch's class is held to that, too; that both give the same is compared of all of them.
"""

import threading

import pytest
import torch
from torch import nn

from gradscaler.torch import GradScaler

USES = []


def use(function):
    USES.append(function)
    return function


@pytest.mark.parametrize("each", USES, ids=lambda each: each.__name__)
def test_the_same_with_torchs_class(each):
    found = []
    for kind in torch.amp.GradScaler, GradScaler:
        torch.manual_seed(0)
        found.append(each(kind))
    theirs, ours = found
    assert len(theirs) == len(ours) > 0
    for a, b in zip(theirs, ours, strict=True):
        assert type(a) is type(b)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(model):
    with torch.autocast("cpu", dtype=torch.float16):
        return model(torch.linspace(-1, 1, 24).reshape(6, 4)).float().square().mean()


@use
def a_parameter_of_two_optimizers(kind):
    """Each divides the gradient, which torch does not prevent."""
    parameter, scaler = nn.Parameter(torch.ones(2)), kind("cpu", 2.0)
    first, second = (torch.optim.SGD([parameter], lr=1.0) for _ in range(2))
    scaler.scale(parameter.sum()).backward()
    scaler.unscale_(first)
    scaler.unscale_(second)
    assert parameter.grad.tolist() == [0.5, 0.5]
    scaler.step(first)
    scaler.update()
    return [parameter.detach(), scaler.get_scale()]


@use
def lbfgs(kind):
    """Which calls its closure at once, and so works only by position, on gradients that are divided already."""
    model = network()
    optimizer, scaler = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3), kind("cpu")
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        losses.append(scaler.step(optimizer, lambda: loss_of(model)).item())
        scaler.update()
    return [*losses, *map(torch.Tensor.detach, model.parameters())]


@use
def gradients_made_bad_between_unscale_and_step(kind):
    """The check is that of unscale_: what happens to the gradients later is not looked at again."""
    parameter, scaler = nn.Parameter(torch.ones(2)), kind("cpu", 4.0)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler.scale(parameter.sum()).backward()
    scaler.unscale_(optimizer)
    parameter.grad.fill_(torch.inf)
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [-torch.inf, -torch.inf]
    return [parameter.detach(), scaler.get_scale()]


@use
def functional_gradients(kind):
    """torch.func: scale() works on what grad and vmap pass around."""
    scaler, x = kind("cpu", 8.0), torch.linspace(-1, 1, 4)
    one = torch.func.grad(lambda x: scaler.scale(x.square().sum()))(x)
    assert torch.equal(one, 16.0 * x)
    each = torch.func.vmap(torch.func.grad(lambda x: scaler.scale(x.square())))(x)
    return [one, each, torch.func.hessian(lambda x: scaler.scale((x**3).sum()))(x)]


@use
def a_backward_pass_after_the_update(kind):
    """The graph holds the scale, which has changed: autograd must notice."""
    parameter, scaler = nn.Parameter(torch.ones(1)), kind("cpu", 8.0, growth_interval=1)
    late = scaler.scale(parameter.sum())
    scaler.scale(parameter.sum()).backward()
    scaler.step(torch.optim.SGD([parameter], lr=0.0))
    scaler.update()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.backward()
    return [scaler.get_scale()]


@use
def scalers_of_several_threads(kind):
    found = {}

    def work(i):
        torch.set_num_threads(1)
        parameter, scaler = nn.Parameter(torch.full((100,), float(i))), kind("cpu", 2.0**i)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            scaler.scale(parameter.square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        found[i] = parameter.detach()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[i] for i in range(4)]


@use
def many_optimizers_one_after_another(kind):
    """Their ids are used again: what is known of one must not be taken for another's."""
    scaler, scales = kind("cpu", 1.0, growth_interval=5), []
    for _ in range(20):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        del optimizer, model
    assert scales[-1] == 16.0
    return scales
