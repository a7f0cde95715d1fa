# SPDX-License-Identifier: MIT
"""Gradients that are unscaled after the update() that followed their loss, and steps that only make a state."""

import copy
import warnings

import pytest
import torch
from conftest import begun, gradients, make_step, parameters, sgd

from gradscaler import Event, Policy
from gradscaler.torch import GradScaler

BACKENDS = pytest.mark.parametrize("backend", [None, "torch"])
MAKES = {"plain": {}, "fused": {"fused": True}}


def adam(fused=None):
    weight = torch.nn.Parameter(torch.ones(3))
    return torch.optim.SGD([weight], lr=1.0, fused=fused)


def loop(one, first, second, between=lambda scaler: None):
    """As of GANs in accelerate, where each step of an optimizer ends with update()."""
    for optimizer in first, second:
        optimizer.zero_grad()
    one.scale(sum(p.sum() for optimizer in (first, second) for p in parameters(optimizer))).backward()
    make_step(one, first)
    between(one)
    make_step(one, second)


@BACKENDS
@pytest.mark.parametrize("form", MAKES)
def test_gradients_of_an_earlier_scale_are_divided_by_it_unless_the_rules_are_torchs(form, backend):
    grows = {"growth_interval": 1, "backend": backend}
    for policy, moved in (None, [0.5] * 3), (Policy("torch", max_scale=2.0**20), [0.0] * 3):
        one = begun(GradScaler("cpu", 4.0, policy=policy, **grows))
        optimizers = [adam(**MAKES[form]) for _ in "ab"]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loop(one, *optimizers)
            assert one.report.scale == (8.0 if policy is None else 4.0)
            late = one._state().events & Event.STALE
            loop(one, *optimizers)
        told = [each for each in told if "update() was called between" in str(each.message)]
        assert len(told) == (policy is None) and all(each.filename.endswith("conftest.py") for each in told)
        assert late and parameters(optimizers[0])[0].tolist() == [-1.0] * 3
        moved_twice = [2 * m - 1 for m in moved]
        assert parameters(optimizers[1])[0].tolist() == moved_twice, policy


@BACKENDS
@pytest.mark.filterwarnings("ignore:update.. was called between")
def test_torchs_division_of_late_gradients_has_torchs_bits(backend):
    found = []
    for kind in torch.amp.GradScaler, lambda *args, **named: GradScaler(*args, backend=backend, **named):
        one, optimizers = begun(kind("cpu", 3.0, growth_interval=1)), [adam() for _ in "ab"]
        for _ in range(3):
            loop(one, *optimizers)
        found.append([p.detach() for optimizer in optimizers for p in parameters(optimizer)])
    assert all(map(torch.equal, *found))


def test_all_gradients_of_step_all_are_divided_by_the_scale_of_their_loss():
    for max_norm in None, 100.0:
        one = begun(GradScaler("cpu", 4.0, policy=Policy("torch", max_scale=2.0**20), growth_interval=1))
        first, *others = adam(), adam(), adam(True)
        loss = sum(p.sum() for optimizer in (first, *others) for p in parameters(optimizer))
        one.scale(loss).backward()
        make_step(one, first)
        one.step_all(others, max_norm)
        one.update()
        assert all(parameters(each)[0].tolist() == [0.0] * 3 for each in (first, *others))


@pytest.mark.parametrize("policy", [None, "recommended"])
def test_gradients_of_the_present_scale_are_not_taken_for_late_ones(policy):
    """The program scales by what it reads, steps again after one loss, or has a rank that never scales a loss."""
    one = begun(GradScaler("cpu", 4.0, policy=policy, growth_interval=1))
    first, second = adam(), adam()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.scale(parameters(first)[0].sum()).backward()
        make_step(one, first)
        parameters(second)[0].grad = torch.full((3,), one.get_scale())
        make_step(one, second)
        for optimizer in first, second:
            parameters(optimizer)[0].grad = torch.full((3,), one.metrics()["loss_scale"])
            make_step(one, optimizer)
        one = begun(GradScaler("cpu", 4.0, policy=policy, growth_interval=1))
        for _ in range(3):
            parameters(first)[0].grad = torch.full((3,), one.metrics()["loss_scale"])
            make_step(one, first)
    assert parameters(first)[0].tolist() == [-4.0] * 3 and parameters(second)[0].tolist() == [-1.0] * 3
    assert not one._state().events & Event.STALE


# ---- a step that is none ----


def dummy(step, optimizer):
    """Makes the step that torch.distributed.checkpoint makes before it loads, by its function, through a wrapper."""
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    class Wrapper:
        def __getattr__(self, name):
            return getattr(optimizer, name)

        def step(self, closure=None):
            step(optimizer, closure)

    optimizer.state.clear()
    for p in parameters(optimizer):
        p.grad = None
    _init_optim_state(Wrapper())


def momentum(fused=None, lr=0.5):
    return torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))], lr=lr, fused=fused)


@BACKENDS
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("form", MAKES)
@pytest.mark.parametrize("policy", [Policy("torch", growth_interval=1), Policy("guard", guard_warmup=1)], ids=str)
def test_a_dummy_step_makes_the_optimizers_state_and_leaves_the_scaler_alone(policy, form, begins, backend):
    one, optimizer = GradScaler("cpu", policy=policy, backend=backend), momentum(**MAKES[form])
    if begins:
        make_step(begun(one), sgd([4.0]))
    schedule, before = one.follow(torch.optim.lr_scheduler.StepLR(optimizer, 1)), bytes(one._state())
    for tensor_rate in False, True:
        if tensor_rate:
            optimizer.param_groups[0]["lr"] = torch.tensor(0.5)

        def step(*arguments):
            one.step(*arguments)
            one.update()

        dummy(step, optimizer)
        schedule.step()
        assert optimizer.state and bytes(one._state()) == before
        assert schedule.held == 1 + tensor_rate and not one.step_was_skipped
    assert "gradscaler" in one.state_dict() and bytes(one._state()) == before
    scaler = copy.deepcopy(one)
    loss = parameters(optimizer)[0].sum()
    one.scale(loss).backward()
    make_step(one, optimizer)
    assert one._state().total_updates == begins + 1 and scaler._state().total_updates == begins


def unlike_a_dummy(one, optimizer, how):
    """One of the steps that are like a dummy step in all but one."""
    optimizer.param_groups[0]["lr"] = 0.0
    parameters(optimizer)[0].grad = torch.zeros(3)
    if how == "a loss was scaled":
        one.scale(torch.ones(()))
    elif how == "the scale was asked for":
        parameters(optimizer)[0].grad = (one.get_scale() * parameters(optimizer)[0].detach()) * 0
    elif how == "the scale was read":
        parameters(optimizer)[0].grad = (one._scale * parameters(optimizer)[0].detach()) * 0
    elif how == "it was unscaled":
        one.unscale_(optimizer)
    elif how == "a learning rate is above 0":
        optimizer.param_groups[0]["lr"] = 0.5
    elif how == "a gradient is not 0":
        parameters(optimizer)[0].grad[1] = 2.0**-149
    elif how == "a gradient is NaN":
        parameters(optimizer)[0].grad[1] = torch.nan
    elif how == "another optimizer has stepped":
        one.step(sgd([1.0]))
    one.step(optimizer)
    one.update()
    return one.get_scale(), one._get_growth_tracker(), parameters(optimizer)[0].tolist()


HOW = (
    "a loss was scaled", "the scale was asked for", "the scale was read", "it was unscaled", "a gradient is NaN",
    "a learning rate is above 0", "a gradient is not 0", "another optimizer has stepped",
)  # fmt: skip


@BACKENDS
@pytest.mark.parametrize("form", MAKES)
@pytest.mark.parametrize("how", HOW)
def test_every_other_step_counts_as_with_torchs_class(how, form, backend):
    """Such as of a rank of a pipeline that scales no loss, and of frozen layers with gradients of 0."""
    found = []
    for kind in torch.amp.GradScaler, lambda *args, **named: GradScaler(*args, backend=backend, **named):
        one, optimizer = begun(kind("cpu", 1024.0, growth_interval=2)), momentum(**MAKES[form])
        make_step(one, sgd([1.0]))
        found.append([unlike_a_dummy(one, optimizer, how) for _ in range(2)])
    assert found[0] == found[1] and found[0][0][0] == (512.0 if "NaN" in how else 2048.0)


def test_a_program_without_gradients_is_told_so_also_at_a_learning_rate_of_0():
    optimizer = momentum(lr=0.0)
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        begun(GradScaler("cpu")).step(optimizer)
    assert gradients(optimizer) == [None]
