# SPDX-License-Identifier: MIT
"""What people do around a GradScaler, beside the plain loop: each gives the same with torch's class and with ours.

A use takes a kind of scaler and returns values: a scale, parameters, what was raised. It says itself what must be true
of them, so that torch's class is held to that, too; that both give the same is compared of all of them.
"""

import contextlib
import copy
import pickle
import threading
import warnings
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradscaler.torch import GradScaler

KINDS = (torch.amp.GradScaler, GradScaler)
USES = []


def use(function):
    USES.append(function)
    return function


@pytest.mark.parametrize("each", USES, ids=lambda each: each.__name__)
def test_the_same_with_torchs_class(each):
    torch.manual_seed(0)
    theirs = each(torch.amp.GradScaler)
    torch.manual_seed(0)
    ours = each(GradScaler)
    assert len(theirs) == len(ours) > 0
    for a, b in zip(theirs, ours, strict=True):
        assert type(a) is type(b)
        same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        assert same, (a, b)


def network(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*(layers or (nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))))


def batch():
    return torch.linspace(-1, 1, 24).reshape(6, 4)


def loss_of(model):
    with torch.autocast("cpu", dtype=torch.float16):
        return model(batch()).float().square().mean()


def train(scaler, model, optimizer, steps=3, loss_of=loss_of):
    """The scale and the parameters after some steps; the second overflows."""
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale(loss_of(model) * (torch.inf if step == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    return [scaler.get_scale(), *map(torch.Tensor.detach, model.parameters())]


def raised(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


# ---- models ----


@use
def frozen_layers(kind):
    model = network()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    seen = train(kind("cpu"), model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(model[0].weight, before)
    return seen


@use
def lazy_modules(kind):
    model = network(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2))
    model(batch())
    return train(kind("cpu"), model, torch.optim.AdamW(model.parameters(), lr=0.1))


@use
def parameters_of_a_subclass(kind):
    class Weight(nn.Parameter):
        pass

    model = network()
    model[0].weight = Weight(model[0].weight.detach())
    return train(kind("cpu"), model, torch.optim.SGD(model.parameters(), lr=0.1))


@use
def tied_weights(kind):
    model = network(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return train(kind("cpu"), model, torch.optim.SGD(model.parameters(), lr=0.1))


@use
def checkpointed_activations(kind):
    model = network()

    def loss_of(model):
        with torch.autocast("cpu", dtype=torch.float16):
            return checkpoint(model, batch().requires_grad_(), use_reentrant=False).float().square().mean()

    return train(kind("cpu"), model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of=loss_of)


@use
def many_parameters(kind):
    model = nn.ParameterList(nn.Parameter(torch.full((2,), float(i))) for i in range(1000))
    return train(
        kind("cpu"), model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of=lambda m: sum(p.sum() for p in m)
    )


# ---- optimizers ----


@use
def a_group_added_later(kind):
    model = network()
    optimizer, scaler = torch.optim.SGD(model[0].parameters(), lr=0.1), kind("cpu")
    train(scaler, model, optimizer)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.01})
    return train(scaler, model, optimizer)


@use
def a_parameter_of_two_optimizers(kind):
    """Each divides the gradient, which torch does not prevent."""
    parameter = nn.Parameter(torch.ones(2))
    first, second = (torch.optim.SGD([parameter], lr=1.0) for _ in range(2))
    scaler = kind("cpu", 2.0)
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
def a_scale_that_the_optimizer_had_already(kind):
    """grad_scale of a fused optimizer is multiplied by the scale."""
    parameter = nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([parameter], lr=1.0, fused=True), kind("cpu", 4.0)
    scaler.scale(torch.ones(1))
    parameter.grad, optimizer.grad_scale = torch.full((2,), 16.0), torch.tensor(2.0)
    scaler.step(optimizer)
    assert parameter.tolist() == [-1.0, -1.0]
    assert not hasattr(optimizer, "grad_scale")
    return [parameter.detach()]


@use
def gradients_made_bad_between_unscale_and_step(kind):
    """The check is that of unscale_: what happens to the gradients later is not looked at again."""
    parameter = nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([parameter], lr=1.0), kind("cpu", 4.0)
    scaler.scale(parameter.sum()).backward()
    scaler.unscale_(optimizer)
    parameter.grad.fill_(torch.inf)
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [-torch.inf, -torch.inf]
    return [parameter.detach(), scaler.get_scale()]


@use
def learning_rates_that_follow_the_steps(kind):
    """A scheduler warns where the first step was skipped, and counts on."""
    model, scaler = network(), kind("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaler.scale(loss_of(model) * torch.inf).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    return [schedule.get_last_lr(), len(caught)]


@use
def the_scale_grows_not_past_the_largest_float(kind):
    scaler = kind("cpu", 2.0**126, growth_factor=4.0, growth_interval=1)
    parameter = nn.Parameter(torch.ones(1))
    optimizer, scales = torch.optim.SGD([parameter], lr=0.0), []
    for _ in range(3):
        scaler.scale(torch.ones(1))
        parameter.grad = torch.ones(1)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [2.0**126] * 3
    return [scales, scaler._get_growth_tracker()]


@use
def every_optimizer_in_every_form(kind):
    """Adam, AdamW, SGD, Adagrad: one by one, foreach and fused, with clipping between."""
    seen = []
    for make in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        for form in ({"foreach": False}, {"foreach": True}, {"fused": True}):
            model, scaler = network(), kind("cpu", 2.0**20, growth_interval=2)
            optimizer = make(model.parameters(), lr=0.01, **form)
            for _ in range(6):
                optimizer.zero_grad()
                scaler.scale(loss_of(model)).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
            seen += [scaler.get_scale(), *map(torch.Tensor.detach, model.parameters())]
    return seen


# ---- graphs ----


@use
def functional_gradients(kind):
    """torch.func: scale() works on what grad and vmap pass around."""
    scaler = kind("cpu", 8.0)
    x = torch.linspace(-1, 1, 4)
    one = torch.func.grad(lambda x: scaler.scale(x.square().sum()))(x)
    assert torch.equal(one, 16.0 * x)
    each = torch.func.vmap(torch.func.grad(lambda x: scaler.scale(x.square())))(x)
    second = torch.func.hessian(lambda x: scaler.scale((x**3).sum()))(x)
    return [one, each, second]


@use
def double_backward_through_the_scale(kind):
    x = torch.tensor([2.0], requires_grad=True)
    scaled = kind("cpu", 8.0).scale(x**3)
    (first,) = torch.autograd.grad(scaled, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (96.0, 96.0)
    return [first.detach(), second]


@use
def a_backward_pass_after_the_update(kind):
    """The graph holds the scale, which has changed: autograd must notice."""
    parameter, scaler = nn.Parameter(torch.ones(1)), kind("cpu", 8.0, growth_interval=1)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    late = scaler.scale(parameter.sum())
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    kind_of_error, message = raised(late.backward)
    assert "modified by an inplace operation" in message
    return [kind_of_error]


@use
def contexts(kind):
    """Where tensors are made otherwise than usual."""
    seen = []
    for context in (torch.no_grad, torch.inference_mode, lambda: torch.device("meta"), lambda: torch.autocast("cpu")):
        model, scaler = network(), kind("cpu", 2.0**16, growth_interval=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            with context() if context is not torch.inference_mode else contextlib.nullcontext():
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
        seen += [scaler.get_scale(), *map(torch.Tensor.detach, model.parameters())]
    return seen


@use
def another_default_dtype(kind):
    torch.set_default_dtype(torch.float64)
    try:
        scaler, parameter = kind("cpu"), nn.Parameter(torch.ones(2))
        scaled = scaler.scale(parameter.sum())
        scaled.backward()
        scaler.step(torch.optim.SGD([parameter], lr=0.1))
        scaler.update()
        return [scaled.detach(), scaler._scale, parameter.detach(), scaler.get_scale()]
    finally:
        torch.set_default_dtype(torch.float32)


# ---- copies and checkpoints ----


def used(kind):
    """A scaler after three steps, one of which overflowed."""
    model, scaler = network(), kind("cpu", 2.0**12, growth_interval=2)
    train(scaler, model, torch.optim.SGD(model.parameters(), lr=0.1))
    return scaler


@use
def copies(kind):
    """They have the scale and the count, go on alike, and share nothing."""
    seen = []
    for duplicate in (
        copy.copy,
        copy.deepcopy,
        lambda s: pickle.loads(pickle.dumps(s)),
        lambda s: pickle.loads(ForkingPickler.dumps(s)),  # as multiprocessing passes it on
    ):
        scaler = used(kind)
        twin = duplicate(scaler)
        assert twin.state_dict() == scaler.state_dict()
        model = network()
        seen += train(twin, model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert scaler.state_dict() == used(kind).state_dict()
    return seen


@use
def copies_in_the_middle_of_a_step(kind):
    model, scaler = network(), kind("cpu")
    scaler.scale(loss_of(model)).backward()
    scaler.unscale_(torch.optim.SGD(model.parameters(), lr=0.1))
    return [*raised(pickle.dumps, scaler), *raised(copy.deepcopy, scaler)]


# ---- programs ----


@use
def a_subclass_of_ones_own(kind):
    """With state, a method, and another constructor."""

    class Logging(kind):
        def __init__(self, log):
            super().__init__("cpu", init_scale=2.0**12)
            self.log = log

        def update(self, new_scale=None):
            super().update(new_scale)
            self.log.append(self.get_scale())

    model, log = network(), []
    train(Logging(log), model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert log == [2.0**12, 2.0**11, 2.0**11]
    return log


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
