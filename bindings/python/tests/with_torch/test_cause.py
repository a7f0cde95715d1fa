# SPDX-License-Identifier: MIT
"""The cause of an overflow that a scaler names. It keeps no reference to a parameter."""

import contextlib
import copy
import gc
import math
import sys
import weakref

import pytest
import torch
from conftest import make_step, parameters, scaler, sgd
from planted import WIDTH, Net, Overflow
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradscaler import Policy
from gradscaler.torch import GradScaler

INF, NAN = math.inf, math.nan


def step(model, one, optimizer, bad, keeps_loss=True, count=1):
    """Makes a step of micro-batches; in the last one the output of block `bad` gets Inf as its gradient."""
    for i in range(count):
        model.bad = bad if i == count - 1 else None
        loss = model(torch.ones(2, WIDTH, requires_grad=True)).mean()
        scaled = one.scale(loss if keeps_loss else loss / count)
        if not keeps_loss:
            del loss
        scaled.backward()
    make_step(one, optimizer)
    optimizer.zero_grad()


class Checkpointed(Net):
    def run(self, block, x):
        return checkpoint(block, x, use_reentrant=False)


def compiled():
    model = Net()
    model.forward = torch.compile(model.forward, backend="aot_eager")
    return model


KINDS = {"plain": Net, "compiled": compiled, "checkpointed": Checkpointed}


@pytest.mark.parametrize("kind", KINDS)
def test_the_cause_is_the_layer_that_overflowed(kind):
    for bad in 1, 3, 5:
        model, one = KINDS[kind](), scaler()
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
        for planted in None, bad:
            step(model, one, optimizer, planted)
        assert one.report.cause.startswith(f"blocks.{bad}.outer"), one.reason
        assert [*one.report.bad][-1].startswith("blocks.0.inner")


def test_parameters_in_a_reentrant_checkpoint_follow_the_one_that_is_registered_after_them():
    """The graph does not have them: here they are in the model's order."""
    first, rest = nn.Linear(WIDTH, WIDTH), nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    last = nn.Linear(WIDTH, WIDTH)
    model = nn.ModuleList([first, rest, last])
    one, optimizer = scaler(), torch.optim.SGD(model.named_parameters(), lr=0.1)
    x = Overflow.apply(checkpoint(rest, first(torch.ones(1, WIDTH)), use_reentrant=True))
    loss = last(x).sum()
    one.scale(loss).backward()
    make_step(one, optimizer)
    assert [*one.report.bad] == [f"{name}.{kind}" for name in ("1.2", "1.1", "1.0", "0") for kind in ("bias", "weight")]
    assert 'made "1.2.bias" bad first; "2.weight", made just before, is finite' in one.reason


@pytest.mark.parametrize("count", [1, 4])
def test_if_the_loss_is_gone_the_order_of_an_earlier_step_is_taken(count):
    model, one = Net(), scaler()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    for bad in None, 4, None, None, 2:
        step(model, one, optimizer, bad, keeps_loss=False, count=count)
        assert bad is None or one.report.cause.startswith(f"blocks.{bad}.outer"), one.reason


def test_an_order_that_lacks_a_bad_parameter_is_not_taken():
    one, model = scaler(), nn.ModuleList(nn.Linear(1, 1) for _ in range(2))
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    for layer in model:
        one.scale(layer(torch.ones(1)).sum()).backward()
        layer.weight.grad.fill_(INF if layer is model[1] else 1.0)
        make_step(one, optimizer)
    assert one.report.cause == "1.weight" and one.reason.endswith('in "1.weight" alone')


class Tagged(torch.Tensor):
    """A gradient that is not in the list of the library's call."""


def test_without_an_order_the_last_bad_parameter_is_the_cause():
    one = scaler()
    one.step(sgd(a=[NAN], b=torch.tensor([NAN]).as_subclass(Tagged), c=[INF, 1.0], d=[1.0]))
    assert one.report.cause == "c" and [*one.report.bad.items()] == [("c", 1), ("b", 1), ("a", 1)]
    assert (one.report.first_overflow, one.report.last_overflow) == (("a", 0), "c")


def test_two_losses_of_a_step_are_one_backward_pass_after_another():
    """The last gradient of the trunk, which both have, counts."""
    model, one = nn.ModuleDict({name: nn.Linear(1, 1) for name in ("trunk", "first", "second")}), scaler()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    for bad in None, "first", "second":
        optimizer.zero_grad()
        x = model["trunk"](torch.ones(1, 1))
        outputs = {name: model[name](x) for name in ("first", "second")}
        outputs = {name: Overflow.apply(y) if name == bad else y for name, y in outputs.items()}
        losses = [y.sum() for y in outputs.values()]
        sum(one.scale(losses)).backward()
        make_step(one, optimizer)
        assert bad is None or [*one.report.bad][0].startswith(bad)


# ---- the questions ----


def model_and_step(**options):
    weight = nn.Parameter(torch.ones(2))
    return (
        weight,
        torch.optim.SGD([("weight", weight), ("other", nn.Parameter(torch.ones(2)))], lr=0.1),
        scaler(**options),
    )


def weight_is_nan(weight, one):
    weight.data[0] = NAN
    one.scale((weight * weight).sum()).backward()


def only_loss_is_nan(weight, one):
    one.scale(weight.sum() * NAN).backward()


def second_loss_is_inf(weight, one):
    one.scale(weight.sum()).backward()
    one.scale(weight.sum() * INF).backward()


def loss_in_float16(weight, one):
    one.scale(weight.sum().half()).backward()


def backward_makes_inf(weight, one):
    one.scale(Overflow.apply(weight).sum()).backward()


QUESTIONS = {
    weight_is_nan: '1 of 1 parameters has NaN or Inf, "weight": go back',
    only_loss_is_nan: "the loss was not finite before it was scaled",
    second_loss_is_inf: "loss 2 of 2 was not finite before it was scaled; the first was finite",
    loss_in_float16: "the scale, 65536, is above the largest float16, 65504",
    backward_makes_inf: '2 Inf in "weight" alone, the first gradient of all: look at this layer',
}


@pytest.mark.wording
@pytest.mark.parametrize("happens", QUESTIONS)
@pytest.mark.parametrize("is_updated", [False, True])
def test_the_reason_asks_for_the_parameters_then_the_losses_then_their_dtype_then_backward(happens, is_updated):
    weight, optimizer, one = model_and_step(init_scale=65536.0)
    happens(weight, one)
    one.step(optimizer)
    if is_updated:
        one.update()
    assert one.reason.startswith(f"skipped: {QUESTIONS[happens]}")


def test_a_step_without_a_loss_knows_nothing_of_the_losses_of_an_earlier_one():
    weight, optimizer, one = model_and_step()
    only_loss_is_nan(weight, one)
    make_step(one, optimizer)
    weight.grad.fill_(INF)
    make_step(one, optimizer)
    assert one.reason.startswith('skipped: 2 Inf in "weight" alone')


# ---- names, and references to parameters ----


def calls(one, model, optimizer):
    """Yields after each public call that sees parameters; True if no graph of a loss is alive."""
    one.name_parameters(model)
    yield True
    for value in 1.0, INF, 1.0:
        loss = model(torch.ones(1, WIDTH)).sum() * value
        scaled = one.scale(loss)
        yield False
        scaled.backward()
        for call in one.unscale_, one.step, lambda _: one.update(), one.report_of:
            call(optimizer)
            yield False
        _ = one.report, one.reason, one.metrics(), one.diagnose(), repr(one), copy.deepcopy(one)
        optimizer.zero_grad()
        del loss, scaled
        yield True
    one.forget()
    yield True


@pytest.mark.parametrize(
    "options", [{}, {"policy": "guard"}, {"policy": Policy("torch", max_failed_backoffs=1)}], ids=str
)
@pytest.mark.parametrize("fused", [False, True])
def test_no_reference_to_a_parameter_outlives_a_call(options, fused):
    model, one = nn.Linear(WIDTH, 1), GradScaler("cpu", **options, on_stall=lambda error: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    counts = list(map(sys.getrefcount, model.parameters()))
    for is_alone in calls(one, model, optimizer):
        assert not is_alone or list(map(sys.getrefcount, model.parameters())) == counts
        assert [weakref.getweakrefs(each) for each in model.parameters()] == [[], []]


def test_a_tensor_can_be_swapped_after_an_overflow_and_keeps_its_name():
    model, one = nn.Linear(2, 1), scaler(policy="guard")
    one.name_parameters(nn.ModuleDict({"head": model}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        one.scale(model(torch.full((1, 2), 1.0)).sum()).backward()
        model.weight.grad[0, 0] = NAN
        make_step(one, optimizer)
        assert one.report.cause == "head.weight"
        torch.utils.swap_tensors(model.weight, nn.Parameter(torch.ones(1, 2)))
        model.double().float()


def named(*groups):
    return [{"params": [(name, nn.Parameter(torch.zeros(1))) for name in names]} for names in groups]


NAMES = {
    "two models": (named(["weight", "bias"], ["weight"]), ["bias", "group 0, weight", "group 1, weight"]),
    "one group": (named(["w", "v", "w"]), ["parameter 0, group 0, w", "parameter 2, group 0, w", "v"]),
    "DDP": (named(["module.0.weight"], ["module.1._orig_mod.bias"]), ["0.weight", "1.bias"]),
    "a part called module": (named(["module.w", "v"]), ["module.w", "v"]),
    "checkpointed": (named(["a._checkpoint_wrapped_module.w", "_orig_mod.module.b"]), ["a.w", "module.b"]),
}


@pytest.mark.parametrize("groups, names", NAMES.values(), ids=NAMES)
def test_parameters_of_one_name_are_told_apart_and_names_have_no_wrappers(groups, names):
    optimizer, one = torch.optim.SGD(groups, lr=0.1), scaler()
    for parameter in parameters(optimizer):
        parameter.grad = torch.full((1,), NAN)
    one.step(optimizer)
    assert sorted(one.report.bad) == sorted(names) and sum(one.report.bad.values()) == len(parameters(optimizer))


def test_a_report_is_about_all_optimizers():
    one, first, second, third = scaler(), sgd(w=[1.0, INF]), sgd(v=[1.0]), sgd(w=[NAN], u=[1.0])
    for optimizer in first, second, third:
        one.step(optimizer)
    report = one.report
    assert report.bad == {"optimizer 2, w": 1, "optimizer 0, w": 1} and report.cause == "optimizer 2, w"
    assert (report.elements, report.first_overflow) == (5, ("optimizer 0, w", 1))
    assert report.last_overflow == "optimizer 2, w" and '"optimizer 2, w"' in one.reason
    assert one.report_of(third).bad == {"w": 1}


def test_a_model_that_is_made_anew_gets_the_same_names_and_forget_drops_them():
    one = scaler()
    for _ in range(2):
        model = nn.Linear(1, 1)
        one.name_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name in "weight", "group 0, parameter 0, shape (1, 1)":
        model.weight.grad, model.bias.grad = torch.full((1, 1), NAN), torch.ones(1)
        make_step(one, optimizer)
        assert one.report.cause == name
        one.forget()
        assert one.report is None and one.reason == "" and not one.step_was_skipped


def test_an_optimizer_can_be_gone_when_its_report_is_read():
    one, optimizer = scaler(), sgd(w=[NAN])
    one.step(optimizer)
    del optimizer
    gc.collect()
    assert one.report.cause == "w" and 'in "w" alone' in one.reason


def test_the_reason_after_a_stall_at_a_scale_of_0():
    for optimizers in [sgd(w=[NAN])], [sgd(w=[NAN]), sgd(v=[1.0])]:
        one = scaler(2.0**-149)
        make_step(one, *optimizers)
        with contextlib.suppress(RuntimeError):
            make_step(one, *optimizers)
        assert one.get_scale() == 0 and one.reason.startswith("skipped: ")
