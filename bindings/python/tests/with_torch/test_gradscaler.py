# SPDX-License-Identifier: MIT
"""gradscaler.torch.GradScaler has more than torch's class; what they have in common is in test_same_as_torch.py."""

import contextlib
import copy
import gc
import inspect
import json
import math
import operator
import pickle
import re
import weakref
from functools import partial

import pytest
import torch
from conftest import Operations, begun, gradients, make_step, parameter, parameters, scaler, sgd, steps
from saved_by_0_9 import SAVED as SAVED_BY_0_9

import gradscaler
from gradscaler import LimitRule, NoteKind, OverflowReset, Policy, Want
from gradscaler._lines import read
from gradscaler.torch import GradScaler, StallError, TensorScaler, _grads, _memory

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("kind", ["complex64", "complex128", "float8_e5m2", "float8_e4m3fn", "negated lazily"])
def test_gradients_that_torch_or_the_library_alone_cannot_unscale_are_unscaled(kind):
    lazy, dtype = torch.full((3,), 6 - 6j).conj().imag, getattr(torch, kind, None)
    optimizer = torch.optim.SGD([parameter(torch.full((3,), 6.0).to(dtype) if dtype else lazy)])
    scaler().unscale_(optimizer)
    assert gradients(optimizer)[0].to(torch.complex64).tolist() == [1.5] * 3


class Tagged(torch.Tensor):
    pass


@pytest.mark.parametrize("value", [8.0, NAN])
def test_a_gradient_of_a_subclass_of_tensor_is_checked_and_clipped(value):
    optimizer, one = sgd(torch.full((2,), value).as_subclass(Tagged)), scaler()
    norm = one.unscale_(optimizer, max_norm=1.0)
    one.step(optimizer)
    assert one.step_was_skipped is math.isnan(value)
    assert norm.item() == pytest.approx(INF if one.step_was_skipped else 8**0.5)
    assert one.step_was_skipped or gradients(optimizer)[0].norm().item() == pytest.approx(1.0)


SHARED = {"expanded": torch.ones(()).expand(3), "a subclass, expanded": torch.ones(()).expand(3).as_subclass(Tagged)}


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_gradient_that_cannot_be_written_is_named_and_no_other_is_changed(kind, max_norm):
    one, optimizer = scaler(), sgd(a=[8.0], b=SHARED[kind], c=torch.tensor([8.0]).as_subclass(Tagged))
    with pytest.raises((ValueError, RuntimeError), match=r"^the gradient of b .*clone\(\)"):
        one.unscale_(optimizer, max_norm)
    assert [each.tolist() for each in gradients(optimizer)] == [[8.0], [1.0] * 3, [8.0]]
    optimizer.param_groups[0]["params"][1].grad = SHARED[kind].clone()
    one.unscale_(optimizer)
    assert [each.tolist() for each in gradients(optimizer)] == [[2.0], [0.25] * 3, [2.0]]


def test_a_jagged_gradient_is_unscaled_and_measured():
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.full((3,), 2.0)], layout=torch.jagged)
    weight = torch.nn.Parameter(jagged)
    (weight * 4.0).values().sum().backward()
    norm = scaler().unscale_(torch.optim.SGD([weight], lr=0.1), max_norm=10.0)
    assert weight.grad.values().tolist() == [1.0] * 5 and norm.item() == pytest.approx(5**0.5)


def test_a_sparse_gradient_in_float16_is_added_up_before_it_is_checked():
    optimizer = sgd(torch.sparse_coo_tensor([[1, 1]], torch.tensor([60000.0, 60000.0]).half(), (4,)))
    one = scaler(allow_fp16=True)
    one.unscale_(optimizer)
    assert gradients(optimizer)[0].is_coalesced() and one.report.inf_count == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_sparse_gradients_are_clipped_by_the_norm_of_what_is_added_up(threads):
    table, one = torch.nn.Embedding(4, 2, sparse=True), scaler()
    torch.set_num_threads(threads)
    one.scale(table(torch.tensor([1, 1])).sum()).backward()
    torch.set_num_threads(1)
    assert one.unscale_(torch.optim.SGD(table.parameters()), max_norm=1.0).item() == pytest.approx(8**0.5)
    torch.testing.assert_close(table.weight.grad.to_dense()[1], torch.full((2,), 0.5**0.5))


def test_a_gradient_that_two_parameters_share_is_unscaled_once():
    shared = torch.full((3,), 8.0)
    scaler().unscale_(sgd(shared, shared))
    assert shared.tolist() == [2.0] * 3


WHOLE = torch.full((6,), 8.0)


@pytest.mark.parametrize(
    "first, second, message",
    [
        (WHOLE[:4], WHOLE[2:], "the gradient of second shares memory with the gradient of first"),
        (WHOLE, WHOLE.half(), r"^Attempting to unscale FP16 gradients\. The gradient of second .* allow_fp16=True"),
    ],
)
def test_gradients_that_cannot_be_unscaled_are_refused_by_name_and_left_alone(first, second, message):
    with pytest.raises(ValueError, match=message):
        scaler().unscale_(sgd(first=first, second=second))
    assert {*first.tolist(), *second.tolist()} == {8.0}


def test_the_scaler_keeps_no_gradient_and_no_parameter_alive_and_tells_what_was_bad():
    optimizer, one = sgd([2.0], [1.0, NAN]), scaler()
    alive = [weakref.ref(each) for each in gradients(optimizer)]
    one.unscale_(optimizer, max_norm=1.0)
    one.step(optimizer)
    optimizer.zero_grad()
    gc.collect()
    assert [each() for each in alive] == [None, None]
    alive = [weakref.ref(each) for each in parameters(optimizer)]
    del optimizer
    gc.collect()
    assert [each() for each in alive] == [None, None]
    assert one.report.bad == {"group 0, parameter 1, shape (2,)": 1}


KINDS = {
    "float64": lambda: torch.arange(5.0, dtype=torch.float64) + 0.1,
    "with gaps": lambda: torch.arange(12.0).view(3, 4)[:, ::2],
    "sparse": lambda: torch.sparse_coo_tensor([[0, 2]], [1.0, 3.0], (4,), check_invariants=True).coalesce(),
    "bfloat16": lambda: torch.arange(5.0).bfloat16(),
}


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
@pytest.mark.parametrize("kind", KINDS)
def test_unscale_clips_to_the_norm_and_returns_what_it_was(kind, max_norm):
    optimizer, other = (torch.optim.SGD([parameter(KINDS[kind]()), parameter(torch.arange(6.0))]) for _ in range(2))
    norm = scaler().unscale_(optimizer, max_norm=max_norm)
    values = [(g._values() if g.is_sparse else g).double() / 4 for g in gradients(other)]
    expected = torch.cat([value.flatten() for value in values]).norm().item()
    assert norm.dtype is torch.float32 and norm.shape == () and norm.item() == pytest.approx(expected, rel=1e-6)
    for gradient, value in zip(gradients(optimizer), values, strict=True):
        gradient = gradient._values() if gradient.is_sparse else gradient
        close = 1e-2 if gradient.dtype is torch.bfloat16 else 1e-6
        clipped = value * min(1.0, max_norm / (expected + 1e-6))
        torch.testing.assert_close(gradient.double(), clipped, rtol=close, atol=0)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, NAN, INF])
def test_a_norm_that_cannot_be_a_limit_is_refused_and_the_gradients_are_left_alone(max_norm):
    optimizer, one = sgd([8.0]), scaler()
    with pytest.raises(ValueError, match="max_norm.*report.norm give the norm alone"):
        one.unscale_(optimizer, max_norm=max_norm)
    assert gradients(optimizer)[0].item() == 8.0
    assert one.unscale_(optimizer, max_norm=1.0).item() == 2.0


def test_a_disabled_scaler_clips_too():
    optimizer = sgd([3.0, 4.0])
    assert GradScaler("cpu", enabled=False).unscale_(optimizer, max_norm=1.0).item() == 5.0
    assert gradients(optimizer)[0].norm().item() == pytest.approx(1.0)


def test_a_report_names_parameters_by_their_model_their_optimizer_or_their_place():
    model = torch.nn.Linear(2, 1)
    for optimizer, name in (
        (torch.optim.SGD(model.parameters()), "group 0, parameter 1, shape (1,)"),
        (torch.optim.SGD(model.named_parameters()), "bias"),
        (torch.optim.SGD(model.parameters()), "head.bias"),
    ):
        one = scaler()
        if name == "head.bias":
            one.name_parameters(torch.nn.ModuleDict({"head": model}))
        for weight in torch.ones(1, 2), None:  # also if only the second has a gradient
            model.weight.grad, model.bias.grad = weight, torch.tensor([NAN])
            make_step(one, optimizer)
            assert one.report.bad == {name: 1} and one.report.first_overflow == (name, 0)


def test_names_of_several_models_stay_apart_and_survive_a_copy_and_have_no_wrapper_in_them():
    models = [torch.nn.Linear(1, 1, bias=False) for _ in range(3)]
    one = scaler()
    for model in models:
        one.name_parameters(model)
        model.weight.grad = torch.full((1, 1), NAN)
    one.name_parameters([("_orig_mod.weight", models[0].weight)])
    for each in one, begun(copy.deepcopy(one)):
        each.step(torch.optim.SGD([model.weight for model in models]))
        assert each.report.bad == {"weight": 1, "Linear.weight": 1, "Linear 2.weight": 1}
    with pytest.raises(ValueError, match=r"no underflows_to_zero: pass want=gradscaler\.Want\.UNDERFLOW"):
        _ = one.report.underflows_to_zero


@pytest.mark.parametrize("given", [None, 4.0])
def test_a_fused_optimizer_that_failed_keeps_the_scale_that_it_was_given(given):
    """Which torch multiplies by the scaler's, and takes away after a step that is made."""
    optimizer, one = sgd([64.0], fused=True), scaler(8.0)
    if given:
        optimizer.grad_scale = torch.tensor(given)
    with pytest.raises(TypeError):
        one.step(optimizer, unknown=1)
    assert getattr(optimizer, "grad_scale", None) == given and not hasattr(optimizer, "found_inf")
    one.step(optimizer)
    assert parameters(optimizer)[0].item() == -64 / 8 / (given or 1) / 2


def test_rules_that_torchs_class_lacks_are_fields_of_its_policy():
    given = {"min_scale": 2.0, "max_scale": 8.0, "hysteresis": 2}
    implied = {"max_failed_backoffs": 10, "ceiling_rule": LimitRule.CLAMP, "overflow_reset": OverflowReset.ON_GOOD_STEP}
    assert scaler(**given)._policy == Policy("torch", init_scale=4.0, **given, **implied)


def test_a_policy_is_a_preset_by_name_or_a_policy_and_numbers_replace_its_fields_even_by_torchs():
    policy = Policy("torch", growth_interval=7, init_scale=8.0)
    for one, interval, scale in (
        (GradScaler("cpu", policy="megatron", init_scale=32.0), Policy("megatron").growth_interval, 32.0),
        (GradScaler("cpu", 32.0, policy=policy), 7, 32.0),
        (GradScaler("cpu", policy=policy), 7, 8.0),
        (GradScaler("cpu", 65536.0, growth_interval=2000, policy=policy), 2000, 65536.0),
    ):
        assert (one.get_growth_interval(), one.get_scale()) == (interval, scale)
    assert policy.init_scale == 8.0


@pytest.mark.filterwarnings("ignore:nothing is guarded")
@pytest.mark.parametrize("preset", gradscaler.presets())
def test_every_preset_moves_the_scale_as_the_librarys_scaler_does(preset):
    reference = gradscaler.Scaler(preset, init_scale=1024.0, **({"growth_interval": 2} if preset != "static" else {}))
    one = begun(GradScaler("cpu", policy=reference.policy, on_stall=lambda stalled: None))
    for bad in (0, 1, 0, 0, 0, 1, 1, 0, 0, 0):
        gradient = [NAN if bad else 0.5]
        make_step(one, sgd(gradient))
        reference.update(reference.unscale([torch.tensor(gradient)]))
        assert one.get_scale() == pytest.approx(reference.loss_scale, rel=1e-7)


def gradscaler_of(**options):
    return lambda: GradScaler("cpu", **options)


NO_NAMES = None, [("a", 3)], 3, torch.nn.Linear(2, 1).parameters()
WITHOUT = torch.optim.SGD([torch.ones(1)])  # gradients
NO_OPTIMIZER = r"object has no attribute 'param_groups': expected a torch\.optim\.Optimizer"


@pytest.mark.parametrize(
    "call, message",
    [
        (gradscaler_of(init_scale=INF), "init_scale"),
        (gradscaler_of(init_scale=NAN), "init_scale is nan: it must be a number"),
        (gradscaler_of(init_scale=1e-50), "init_scale"),
        (gradscaler_of(init_scale=-1), "init_scale is -1: it must be finite and above 0$"),
        (gradscaler_of(backoff_factor=0.0), "backoff_factor"),
        (gradscaler_of(growth_interval=-1), "growth_interval is -1: it must be a whole number from 0"),
        (gradscaler_of(grow_interval=3), "did you mean 'growth_interval'"),
        (gradscaler_of(max_scale=-1.0), "max_scale"),
        (gradscaler_of(policy="unknown"), "unknown"),
        (gradscaler_of(policy=3), "policy"),
        (gradscaler_of(unknown=3), "unknown"),
        (gradscaler_of(max_failed_backoffs=3), r"policy=gradscaler\.Policy\(\.\.\., max_failed_backoffs="),
        (gradscaler_of(want="norm"), r"want='norm': expected a union of gradscaler\.Want"),
        (gradscaler_of(on_stall=3), "on_stall=3: expected a function"),
        (gradscaler_of(process_group=3), "process_group=3: expected a torch.distributed group"),
        (gradscaler_of(hysteresis=0), "hysteresis=0: it must be a whole number from 1"),
        (lambda: GradScaler("guard"), "device is 'guard', which is a preset: GradScaler"),
        (lambda: GradScaler("cpu").set_growth_factor(0.0), "growth_factor is 0.0: it must be finite and at least 1$"),
        *((partial(scaler().name_parameters, model), "a model or .name, parameter. pairs") for model in NO_NAMES),
        (lambda: scaler().unscale_(torch.nn.Linear(1, 1)), f"^'Linear' {NO_OPTIMIZER}"),
        (lambda: scaler().step(None), f"^'NoneType' {NO_OPTIMIZER}"),
        (lambda: scaler().step(WITHOUT), r"^No inf checks were recorded for this optimizer\. None of its 1 param"),
        (lambda: scaler().update(), r"^No inf checks were recorded prior to update\. A loss was scaled"),
    ],
)
def test_what_no_scaler_can_follow_is_refused_with_what_to_do(call, message):
    with pytest.raises((ValueError, TypeError, AttributeError, AssertionError, NotImplementedError), match=message):
        call()


def test_a_scale_that_no_step_could_succeed_with_is_refused_and_the_old_one_stays():
    one = scaler()
    for value in 0.0, -1.0, INF, NAN:
        for given in value, torch.tensor(value):
            with pytest.raises(ValueError):
                one.update(given)
    assert one.get_scale() == 4.0


def test_a_scale_of_0_ends_training_and_says_why():
    weight = torch.nn.Parameter(torch.tensor([NAN]))
    optimizer, one = torch.optim.SGD([("weight", weight)]), GradScaler("cpu", init_scale=2.0**-148)
    for _ in range(2):
        loss = (weight * weight).sum()
        one.scale(loss).backward()
        make_step(one, optimizer)
    assert one.get_scale() == 0
    one.scale(loss)
    with pytest.raises(StallError, match=r"scale is 0 .*\. The parameters weight are not finite: go back") as raised:
        one.step(optimizer)
    assert raised.value.report.bad == {"weight": 1}
    written = scaler()
    written._scale.fill_(0.0)
    with pytest.raises(
        StallError, match=r"last gradients have Inf or NaN in w\. The scale is 0, .* min_scale to 2\^-14"
    ):
        written.step(sgd(w=[INF]))


def test_a_floor_brings_a_stop_with_it_and_on_stall_is_told_instead():
    with pytest.raises(StallError, match="after 11 skipped steps"):
        steps(scaler(min_scale=2.0), *[1] * 30)
    told = []
    one = scaler(init_scale=2.0, min_scale=1.0, on_stall=told.append)
    steps(one, *[1] * 11)
    assert [type(each) for each in told] == [StallError] and told[0].report.inf_count == 1
    assert steps(one, 0) == [1.0]
    policy = Policy("torch", max_failed_backoffs=3)
    assert GradScaler("cpu", policy=policy, min_scale=2.0)._policy.max_failed_backoffs == 3
    assert GradScaler("cpu", max_scale=2.0**20, min_scale=0.0)._policy.max_failed_backoffs == 0


class Bad(torch.autograd.Function):
    """Returns its input; its gradient is `value`."""

    @staticmethod
    def forward(context, x, value):
        context.value = value
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return torch.full_like(gradient, context.value), None


# Illness: what is done to (weight, loss, optimizer) in each step, and the sentence with the advice.
ILLNESSES = {
    "a bad parameter": (
        lambda step, weight, optimizer: weight.data.fill_(NAN) is None or (weight * weight).sum(),
        r"The parameters weight are not finite: go back to a checkpoint from before that\.",
    ),
    "a bad loss": (
        lambda step, weight, optimizer: optimizer.zero_grad() or (weight * NAN).sum(),
        r"The loss is not finite before it is scaled: look at the input and at what the model makes of it\.",
    ),
    "no zero_grad after an overflow": (
        lambda step, weight, optimizer: (Bad.apply(weight, INF) if step == 0 else weight).sum(),
        r"The gradients of weight had Inf before the last backward pass, which adds to them: call "
        r"optimizer\.zero_grad\(\) in each step, also after a skipped step\.",
    ),
    "NaN made by the backward pass": (
        lambda step, weight, optimizer: optimizer.zero_grad() or Bad.apply(weight, NAN).sum(),
        r"The loss and the parameters are finite, and the backward pass made NaN in weight: "
        r"GradScaler\.trace_next\(model\) finds the module\.",
    ),
    "the smallest scale": (
        lambda step, weight, optimizer: optimizer.zero_grad(set_to_none=False) or Bad.apply(weight, INF).sum(),
        r"The last gradients have Inf in weight\. 3 overflows in a row could not lower the scale, 4: lower min_scale, "
        r"or look at the input and the loss; look first at 'weight'\.",
    ),
}


@pytest.mark.wording
@pytest.mark.parametrize("illness", ILLNESSES)
@pytest.mark.parametrize("form", ["alone", "list"])
def test_each_illness_of_a_stalled_training_has_its_own_advice(illness, form):
    make_loss, sentence = ILLNESSES[illness]
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([("weight", weight)], lr=0.1)
    one = scaler(policy=Policy("torch", min_scale=4.0, max_failed_backoffs=3))
    with pytest.raises(StallError) as raised:
        for step in range(9):
            loss = make_loss(step, weight, optimizer)
            (one.scale([loss])[0] if form == "list" else one.scale(loss)).backward()
            make_step(one, optimizer)
    start = r"The loss scale is 4 after \d skipped steps, and no further step can succeed\. "
    assert re.fullmatch(start + sentence, str(raised.value)), str(raised.value)


@pytest.mark.parametrize("form", ["alone", "list", "micro-batches"])
def test_a_loss_that_was_nowhere_kept_is_diagnosed(form):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer, one = torch.optim.SGD([weight], lr=0.1), scaler(policy=Policy("guard", max_failed_backoffs=2))
    with pytest.raises(StallError, match="The loss is not finite before it is scaled"):
        for _ in range(2):
            optimizer.zero_grad()
            for value in (NAN, 1.0) if form == "micro-batches" else (NAN,):
                loss = (weight * value).sum()
                scaled = one.scale([loss])[0] if form == "list" else one.scale(loss)
                scaled.backward()
                del loss, scaled
            make_step(one, optimizer)


def test_of_a_loss_its_graph_is_not_kept_nor_is_a_large_one_nor_one_of_an_earlier_step():
    one, x = scaler(), torch.ones(4, requires_grad=True)
    product = x * 2
    one.scale(product.sum())
    alive = weakref.ref(product)
    del product
    one.scale(x.repeat(10_000))
    assert alive() is None and [value is None for value in one._losses.step.values()] == [False, True]
    steps(one, 0)
    one.scale(0 * x.sum())
    assert [value.item() for value in one._losses.step.values()] == [0.0]


def test_of_several_optimizers_each_is_known_and_the_bad_one_is_in_the_message():
    one, first, second = scaler(policy=Policy("guard", max_failed_backoffs=2)), sgd(generator=[1.0]), sgd(critic=[1.0])
    for step in range(2):
        for optimizer, value in (first, NAN), (second, 1.0):
            gradients(optimizer)[0].fill_(value)
            one.step(optimizer)
        assert one.step_was_skipped and not one.report_of(second).overflow
        assert one.report_of(first).bad == one.report.bad == {"generator": 1} and one.report.cause == "generator"
        with pytest.raises(StallError, match="generator") if step else contextlib.nullcontext() as raised:
            one.update()
        assert one.step_was_skipped and one.report_of(first).overflow
    assert raised.value.report is one.report_of(first)
    gradients(second)[0].fill_(1.0)
    one.step(second)
    assert not one.step_was_skipped and one.report_of(first) is None


def test_the_reason_of_an_overflow_without_inf_or_nan_has_the_norm():
    one = scaler(65536.0, policy="fairseq")  # its norm overflows above the largest float
    one.step(sgd([1e25, 1e25]))
    assert one.step_was_skipped and not one.report.bad
    assert one.reason == "skipped: overflow of the norm"


REASONS = [
    (
        [{"a": [1.0], "b": [NAN, INF], "c": [NAN], "d": [1.0]}],
        "2 NaN and 1 Inf in 2 of 4 tensors; the last, nearest to",
    ),
    ([{"c": [1.0, INF]}], '1 Inf in "c" alone'),
    ([{"a": [NAN]}, {"b": [1.0], "c": [INF]}], "1 NaN and 1 Inf in 2 of 3 tensors; the last, nearest to the cause, is"),
    ([{"c": [NAN]}, {"b": [1.0]}], '1 NaN in "c" alone'),
    ([{"a": [NAN], "c": [INF]}], "1 NaN and 1 Inf in all 2 tensors: look at the last layer"),
]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("optimizers, reason", REASONS)
def test_the_reason_of_an_overflow_names_the_last_parameter_until_the_next_step(optimizers, reason, fused):
    one, optimizers = scaler(), [sgd(**each, fused=fused) for each in optimizers]
    for optimizer in optimizers:
        one.step(optimizer)
    said = one.reason
    assert said.startswith(f"skipped: {reason}") and '"c"' in said and one.report_of(optimizers[0]).last_overflow
    one.update()
    assert one.reason == said and one.get_scale() == 2.0
    one.set_growth_factor(3.0)
    assert one.reason == said
    make_step(one, sgd([1.0]))
    assert one.reason == ""
    for optimizer in optimizers:
        one.unscale_(optimizer)
        one.step(optimizer)
    one.update(8.0)  # without a step of the policy
    assert one.reason == said


def test_the_reason_of_a_scale_of_0_and_of_a_stop():
    told = []
    one = scaler(policy="recommended", init_scale=1.0, min_scale=1.0, on_stall=told.append)
    for i in range(10):
        one.step(sgd(a=[NAN]))
        reason = one.reason
        one.update()
        assert one.reason == reason and reason.startswith("stopped: 1 NaN in" if i == 9 else "skipped: 1 NaN in")
    assert len(told) == 1 and ", at a scale of 1: look at the input" in one.reason
    one = scaler(2.0**-149, on_stall=told.append)
    for reason in 'skipped: 1 NaN in "a" alone', "skipped: overflow":
        make_step(one, sgd(a=[NAN]))
        assert one.reason == reason


@pytest.mark.parametrize("gradients", [
    {"a": torch.ones(2), "b": torch.tensor([NAN]).as_subclass(Tagged), "c": torch.ones(2)},
    {"a": WHOLE, "b": WHOLE, "c": torch.ones(2), "d": torch.tensor([NAN])},
])  # fmt: skip
def test_a_gradient_is_named_beside_others_that_are_not_in_the_librarys_list(gradients):
    """Only torch multiplies a subclass; of two parameters with one gradient only the first is in the list."""
    one, bad = scaler(), next(name for name, gradient in gradients.items() if gradient.isnan().any())
    one.step(sgd(**{name: gradient.clone() for name, gradient in gradients.items()} | {"b": gradients["b"]}))
    assert one.report.first_overflow == (bad, 0) and one.report.last_overflow == bad
    assert one.report.bad == {bad: 1} and one.reason == f'skipped: 1 NaN in "{bad}" alone'


def test_a_disabled_scaler_knows_nothing_and_says_so():
    one, model = GradScaler("cpu", enabled=False), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for each in one, copy.deepcopy(one), pickle.loads(pickle.dumps(one)):
        each.name_parameters(model)
        each.scale(model(torch.ones(1))).backward()
        make_step(each, optimizer)
        assert each.report is None and each.report_of(optimizer) is None and each.step_was_skipped is False
        assert each.total_guard_skips == 0 and each.reason == "" and each.metrics() == {}
        for name in [name for name in dir(GradScaler) if isinstance(getattr(GradScaler, name), property)]:
            if name != "_scale":  # torch's class has none either
                getattr(each, name)
        assert not hasattr(each, "_scale")


def by_a_state_that_torchs_class_reads(one):
    state, other, theirs = one.state_dict(), GradScaler("cpu"), torch.amp.GradScaler("cpu")
    other.load_state_dict(state | {"_growth_tracker": 3.0})
    assert other._get_growth_tracker() == 3
    for each in other, theirs:
        each.load_state_dict(state)
    assert other.state_dict() == state and theirs.get_scale() == state["scale"]
    return other


COPIES = [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
LIMITS = {"hysteresis": 3, "min_scale": 0.5, "max_scale": 8.0}


@pytest.mark.parametrize("copied", [*COPIES, by_a_state_that_torchs_class_reads])
@pytest.mark.parametrize("options", [{"policy": "nemo", "hysteresis": 2}, {"policy": "recommended"}, LIMITS])
def test_copies_pickles_and_states_go_on_from_where_it_is_by_its_rules(options, copied):
    one = scaler(growth_interval=4, **options)
    steps(one, 0, 1, 1, 0, 0, 1)
    other = copied(one)
    assert other.report is None
    assert steps(begun(other), 1, 1, 1, 0, 0, 0, 0, 0) == steps(one, 1, 1, 1, 0, 0, 0, 0, 0)


def test_what_0_9_saved_is_refused_by_one_sentence_and_changes_nothing():
    one, saved = scaler(8.0, policy="recommended"), SAVED_BY_0_9["bytes"].hex()
    pickled, before = one.__getstate__(), one.state_dict()
    for load in (
        lambda: GradScaler("cpu").__setstate__(pickled | {"_saved": SAVED_BY_0_9["state"]}),
        lambda: one.load_state_dict(before | {"gradscaler": f"recommended:{saved}"}),
        lambda: one.load_state_dict(json.loads(SAVED_BY_0_9["dict"])),
    ):
        with pytest.raises(gradscaler.Error, match=r"cannot be read by this version \(.*\): 0.9 or an") as refused:
            load()
        assert refused.value.status == gradscaler.Status.ERROR_VERSION and one.state_dict() == before


@pytest.mark.parametrize("format", ["deepspeed", "megatron", "nemo", "flax", "gradscaler"])
def test_a_checkpoint_of_another_framework_is_recognised_nested_or_not_and_written(format):
    one, reference = scaler(init_scale=128.0), gradscaler.Scaler("none")
    state = one.state_dict(format=format)
    for each in state, {"optimizer": {"scaler": state}} if format != "gradscaler" else state:
        other = GradScaler("cpu")
        other.load_state_dict(each, format=format if each is state else None)
        assert other.get_scale() == 128.0
    reference.load_state_dict(state)
    assert reference.loss_scale == 128.0
    if format == "megatron":
        assert one.notes and state.keys() == {"scale", "growth_tracker", "hysteresis_tracker"}


@pytest.mark.parametrize("options", [{}, {"policy": "recommended"}])
def test_totals_survive_in_a_dict_that_torch_and_a_safe_loader_read(options, tmp_path):
    one, path = scaler(**options), tmp_path / "scaler.pt"
    steps(one, 0, 1, 1, 0)
    torch.save(one.state_dict(), path)
    saved = torch.load(path, weights_only=True)
    assert json.loads(json.dumps(saved)) == one.state_dict()
    for each in GradScaler("cpu", **options), gradscaler.Scaler(), TensorScaler():
        each.load_state_dict(saved)
        assert contents(each)[2] == bytes(one._state())
    torch.amp.GradScaler("cpu").load_state_dict(saved)


OTHER_RULES = {"policy": "recommended", "min_scale": 0.25}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.filterwarnings("ignore:the checkpoint replaces")
@pytest.mark.parametrize("form", ["object", "dict"])
@pytest.mark.parametrize(("saver", "receiver"), [
    (lambda: torch.amp.GradScaler("cpu", 512.0), {}),
    (lambda: torch.amp.GradScaler("cpu", 512.0), OTHER_RULES),
    (lambda: scaler(512.0), {}),
    (lambda: scaler(512.0), OTHER_RULES),
    (lambda: scaler(512.0, **OTHER_RULES), {}),
    (lambda: scaler(512.0, **OTHER_RULES), OTHER_RULES),
])  # fmt: skip
def test_a_loader_that_plans_by_the_receivers_dict_loads_what_load_state_dict_does(saver, receiver, form, tmp_path):
    import torch.distributed.checkpoint as dcp

    one, direct, planned = saver(), scaler(**receiver), scaler(**receiver)
    begun(one)
    if isinstance(one, GradScaler):
        steps(one, 1, 0)
    steps(planned, 1)
    direct.load_state_dict(one.state_dict())
    nested = {"app": {"scaler": one.state_dict()}, "step": torch.ones(())}
    dcp.save(nested if form == "dict" else {"scaler": one}, checkpoint_id=tmp_path)
    if form == "object":
        dcp.load({"scaler": planned}, checkpoint_id=tmp_path)
    else:
        app = {"app": {"scaler": planned.state_dict()}, "step": torch.zeros(())}
        dcp.load(app, checkpoint_id=tmp_path)
        planned.load_state_dict(app["app"]["scaler"])
    assert contents(planned) == contents(direct) and direct.get_scale() == one.get_scale()


CLASSES = {"GradScaler": lambda: GradScaler("cpu"), "Scaler": gradscaler.Scaler, "TensorScaler": TensorScaler}


def contents(scaler):
    """Returns preset, rules and state of a scaler of any class."""
    policy = scaler._policy if isinstance(scaler, GradScaler) else scaler.policy
    state = scaler._state() if isinstance(scaler, GradScaler) else scaler.state
    return policy.preset, bytes(policy), bytes(state.numpy() if isinstance(state, torch.Tensor) else state)


@pytest.mark.parametrize("first", CLASSES)
def test_the_librarys_own_classes_read_each_other_with_all_rules_and_counts(first):
    one, moved = CLASSES[first](), gradscaler.Scaler("megatron", init_scale=8.0, guard_ratio=3.0)
    for value in 1.0, NAN, NAN:
        moved.update(moved.unscale([torch.tensor([value])]))
    one.load_state_dict(moved.state_dict())
    assert contents(one) == contents(moved)
    for make in CLASSES.values():
        other = make()
        other.load_state_dict(one.state_dict())
        assert contents(other) == contents(moved)


def test_tensor_scaler_says_what_a_checkpoint_replaces_and_keeps_its_tensors():
    scaler = TensorScaler("recommended", guard_norm=5)
    before = scaler.state.data_ptr()
    notes = scaler.load_state_dict(GradScaler("cpu", policy=Policy("recommended", guard_ratio=3)).state_dict())
    assert notes[0] == "guard_norm is 0.0 in the checkpoint, which replaces 5.0 of this scaler"
    scaler.load_state_dict(gradscaler.Scaler("torch", init_scale=8.0).state_dict(format="megatron"))
    with pytest.raises(gradscaler.Error, match="keys of no format"):
        scaler.load_state_dict({"weights": 1.0})
    assert scaler.loss_scale == 8.0 and scaler.state.data_ptr() == before


def test_a_checkpoint_that_replaces_rules_that_were_asked_for_says_so():
    torchs, guard = torch.amp.GradScaler("cpu").state_dict(), GradScaler("cpu", policy="guard")
    with pytest.warns(UserWarning, match="scale 65536 of the checkpoint is not taken") as told:
        guard.load_state_dict(torchs)
    assert len(told) == 1 and told[0].filename == __file__
    assert guard.get_scale() == 1 and steps(begun(guard), 1, 0) == [1.0, 1.0]
    for one, state, message in (
        (GradScaler("cpu", min_scale=0.5), GradScaler("cpu", policy="recommended").state_dict(),
         r"given: min_scale 0\.5 by 6\.10352e-05$"),
        (GradScaler("cpu", policy="megatron"), torchs, "growth_interval 1000 by 2000"),
        (GradScaler("cpu"), guard.state_dict(), "never moves"),
    ):  # fmt: skip
        with pytest.warns(UserWarning, match=message):
            one.load_state_dict(state)


@pytest.mark.filterwarnings("error")
def test_a_checkpoint_of_the_same_rules_or_of_torchs_own_warns_of_nothing():
    for options in {"policy": "guard"}, {"policy": "recommended"}, {"min_scale": 0.5}, {}:
        GradScaler("cpu", **options).load_state_dict(GradScaler("cpu", **options).state_dict())
    for options in {"policy": "recommended"}, {"growth_interval": 7, "min_scale": 0.5}:
        GradScaler("cpu", **options).load_state_dict(torch.amp.GradScaler("cpu").state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_growth_tracker": -3}, r"state_dict\['_growth_tracker'\] is -3: it counts"),
        ({"_growth_tracker": "3"}, r"state_dict\['_growth_tracker'\] is '3': it must be a whole"),
        ({"_growth_tracker": True}, r"state_dict\['_growth_tracker'\] is True: it must be a whole number"),
        ({"scale": NAN}, r"state_dict\['scale'\] is nan"),
        ({"scale": INF}, r"state_dict\['scale'\] is inf: it must be finite and above 0 in float32"),
        ({"scale": 0.0}, r"state_dict\['scale'\] is 0.0: it must be finite and above 0 in float32"),
        ({"scale": "2"}, r"state_dict\['scale'\]='2': expected a number"),
        ({"growth_interval": 2.5}, r"state_dict\['growth_interval'\]: "),
        ({"growth_factor": 0.0}, r"state_dict\['growth_factor'\]: growth_factor is 0"),
        ({"backoff_factor": 0.0}, "backoff_factor"),
        ({"gradscaler": "zz"}, r"state_dict\['gradscaler'\] is damaged"),
        ({"gradscaler": "00" * 50}, r"state_dict\['gradscaler'\]"),
        ({"gradscaler": None}, r"state_dict\['gradscaler'\] is damaged"),
        ({"scale": ...}, r"state_dict has no 'scale': pass all of a scaler's state_dict\(\): scale, growth_factor"),
        (None, "must be a dict, not NoneType: pass what its state_dict"),
        (GradScaler, "must be a dict, not type"),
        ({"unknown": 3}, "has no 'scale', and is of no other format"),
    ],
)
@pytest.mark.parametrize("used", [False, True])
def test_a_checkpoint_that_is_refused_says_which_entry_and_changes_nothing(changes, message, used):
    one = scaler(policy="recommended") if used else GradScaler("cpu", policy="recommended")
    before, state = one.state_dict(), changes
    if isinstance(changes, dict) and "unknown" not in changes:
        state = {key: value for key, value in (before | {"scale": 99.0} | changes).items() if value is not ...}
    with pytest.raises((ValueError, TypeError, KeyError), match=message):
        one.load_state_dict(state)
    assert one.state_dict() == before


def test_a_checkpoint_of_ours_is_found_whole_wherever_it_lies():
    saved, loaded = scaler(1024.0, policy="recommended", growth_interval=7), GradScaler("cpu")
    saved.update(2048.0)
    whole = {"model": {}, "scaler": saved.state_dict()}
    assert loaded.load_state_dict(whole) == []
    assert loaded.state_dict() == whole["scaler"]
    for checkpoint in whole, whole["scaler"]:
        host = gradscaler.Scaler("none")
        host.load_state_dict(checkpoint)
        assert not [note for note in host.notes if "not among" in note]
        assert (host.preset, host.policy.growth_interval, host.loss_scale) == ("recommended", 7, 2048.0)
    host.load_state_dict(whole["scaler"] | {"scale": 64.0})
    assert (host.preset, host.loss_scale) == ("recommended", 64.0)
    both = {"first": saved.state_dict(), "second": loaded.state_dict() | {"scale": 4.0}}
    with pytest.raises(ValueError, match="'first', 'second': say which by prefix"):
        GradScaler("cpu").load_state_dict(both)
    loaded.load_state_dict(both, prefix="second")
    assert loaded.get_scale() == 4.0 and loaded.state_dict()["growth_interval"] == 7


class Multiplies(GradScaler):
    """A program's own class, which overrides how gradients are unscaled."""

    by = 1.0

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale * self.by if self.by != 1 else inv_scale, found_inf, True)


@pytest.mark.parametrize("by, expected", [(1.0, 2.0), (0.5, 1.0)])
def test_a_program_that_overrides_how_gradients_are_unscaled_gets_its_way(by, expected):
    optimizer, one = sgd(torch.full((2,), 8.0).half()), scaler(kind=Multiplies)
    one.by = by
    assert one.unscale_(optimizer, max_norm=100.0).item() == pytest.approx(expected * math.sqrt(2), rel=1e-3)
    assert gradients(optimizer)[0].tolist() == [expected] * 2
    make_step(one, optimizer)
    assert not one.step_was_skipped


def test_defaults_of_torch_and_inference_mode_do_not_reach_the_state():
    optimizer = sgd([3.0, 4.0], [12.0])
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            one = scaler(init_scale=1.0)
        with torch.device("meta"):  # the default device
            norm = one.unscale_(optimizer, max_norm=1.0)
            make_step(one, optimizer)
            one.update(4.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (norm.item(), norm.dtype, one._scale.dtype, one.get_scale()) == (13.0, torch.float32, torch.float32, 4.0)
    x = torch.ones(2, requires_grad=True)
    one.scale(x.sum()).backward()
    assert x.grad.tolist() == [4.0, 4.0]


def test_what_stands_for_an_optimizer_needs_groups_and_a_step_only():
    class Wrapper:
        __slots__ = ("param_groups",)

        def step(self):
            return "stepped"

    wrapper = Wrapper()
    wrapper.param_groups = sgd([4.0]).param_groups
    assert scaler().step(wrapper) == "stepped"
    assert wrapper.param_groups[0]["params"][0].grad.tolist() == [1.0]


def test_the_device_of_the_host_may_have_a_number():
    one = GradScaler("cpu", 4.0)
    one._lazy_init_scale_growth_tracker(torch.device("cpu", 0))
    assert steps(one, 1) == [2.0]


def test_the_places_in_reports_are_made_where_the_reports_are():
    group = _grads.GradientGroup(torch.device("cpu"), [torch.ones(2), torch.full((2,), math.nan)], range(2))
    group.run(True, None, _memory.HostState, Policy("torch"), 0)
    group.per_tensor = torch.frombuffer(group.per_tensor, dtype=torch.uint8)
    with Operations() as operations:
        rows = group.reports(group.device)
    assert rows.view(torch.int64)[:, gradscaler.Report.first_tensor.offset // 8].tolist() == [0, 1]
    assert not any("lift_fresh" in name for name in operations.names)  # torch.tensor(), which waits for a device


def test_the_constructor_has_the_signature_of_torchs_class():
    ours, theirs = (inspect.signature(kind).parameters for kind in (GradScaler, torch.amp.GradScaler))
    assert [str(each) for each in ours.values()][: len(theirs)] == [str(each) for each in theirs.values()]
    assert all(ours[name].kind == each.kind for name, each in theirs.items())


def test_repr_tells_scale_and_rules():
    assert repr(GradScaler("cpu", enabled=False)) == "<GradScaler('cpu', enabled=False)>"
    one = GradScaler("cpu", init_scale=8.0, growth_interval=7)
    for each in one, begun(one):
        assert repr(each) == (
            "<GradScaler('cpu', policy=Policy('torch', init_scale=8.0, growth_interval=7)): scale 8, good steps 0>"
        )


def test_metrics_and_a_diagnosis_before_update_are_those_after_it():
    one, optimizer = scaler(1.0), sgd(weight=[1.0, 1.0])
    for value, skips in (INF, True), (1.0, False), (NAN, True):
        gradients(optimizer)[0].fill_(value)
        one.step(optimizer)
        before, state = (one.metrics(), one.diagnose()), one.state_dict()
        assert before[0]["skip"] == skips and one.state_dict() == state
        one.update()
        assert (one.metrics(), one.diagnose()) == before


def test_metrics_a_diagnosis_and_a_history_as_those_of_the_librarys_scaler(tmp_path):
    one, optimizer = scaler(1.0, want=Want.NORM), sgd(weight=[1.0, 1.0])
    with one.history(tmp_path / "run.jsonl"):
        for value in (1.0, NAN, NAN, NAN):
            gradients(optimizer)[0].fill_(value)
            make_step(one, optimizer)
    metrics = one.metrics()
    assert (metrics["loss_scale"], metrics["skip"], metrics["overflow"], metrics["nan_count"]) == (0.125, True, True, 2)
    columns = read(tmp_path / "run.jsonl")
    assert [list(columns[name]) for name in ("step", "overflow")] == [[1, 2, 3, 4], [0, 1, 1, 1]]
    assert list(columns["loss_scale"]) == [1.0, 0.5, 0.25, 0.125]
    assert columns["norm"][0] == pytest.approx(2**0.5)
    found, *_ = one.diagnose()
    assert found.kind == NoteKind.NOT_FINITE and found.endswith("look first at 'weight'")
    assert gradscaler.diagnose(tmp_path / "run.jsonl") == one.diagnose()
    line = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])
    assert (line["reason"], line["tensors"][0]["name"], line["tensors"][0]["nan_count"]) == (one.reason, "weight", 2)


def test_a_checkpoint_that_is_loaded_is_a_start_of_the_history(tmp_path):
    one, optimizer, path = scaler(1.0), sgd(weight=[1.0, 1.0]), tmp_path / "run.jsonl"
    with one.history(path):
        for i in range(6):
            gradients(optimizer)[0].fill_(1.0)
            make_step(one, optimizer)
            if i == 2:
                saved = one.state_dict()
        one.load_state_dict(saved)
        gradients(optimizer)[0].fill_(INF)
        make_step(one, optimizer)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 1, 2, 3, 4, 5, 6, 4, 4] and "start" in lines[-2]
    assert list(read(path)["overflow"]) == [0, 0, 0, 1] and gradscaler.diagnose(path) == one.diagnose()
    pickle.loads(pickle.dumps(one))


def test_a_diagnosis_of_several_optimizers_names_the_parameter():
    one, first, second = scaler(), sgd(generator=[1.0]), sgd(critic=[1.0])
    for _ in range(3):
        gradients(second)[0].fill_(NAN)
        make_step(one, first, second)
    (found,) = one.diagnose()
    assert found.kind == NoteKind.NOT_FINITE and found.endswith("look first at 'critic'")


def stepped(one, optimizer):
    one.step(optimizer)
    return one.unscale_


def left_by_continue(one, optimizer):
    one.unscale_(optimizer)
    one.scale(torch.ones(()))
    return one.unscale_


def unscaled_by_a_trainer(one, optimizer):
    one.unscale_(optimizer)
    return one.unscale_


def not_checked(one, optimizer):
    one.scale(torch.ones(()))
    return lambda _: one.update()


def updated_by_a_trainer(one, optimizer):
    make_step(one, optimizer)
    return lambda _: one.update()


CAUSES = {
    stepped: r"update\(\) first",
    left_by_continue: "since the last update.*A loss was scaled since then, .*by `continue`.*also if you skip step",
    unscaled_by_a_trainer: "since the last update.*No loss was scaled since then, so two places unscale.*trainer",
    not_checked: "^No inf checks were recorded prior to update.*A loss was scaled, but nobody has checked",
    updated_by_a_trainer: "^No inf checks were recorded prior.*No loss was scaled.*trainer can have called it",
}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
def test_a_call_too_many_or_too_few_is_told_its_cause(cause):
    one, optimizer = scaler(), sgd([1.0])
    make_step(one, optimizer)
    call = cause(one, optimizer)
    with pytest.raises((RuntimeError, AssertionError), match=CAUSES[cause]):
        call(optimizer)


NAMES = [
    f"{module}.GradScaler" for module in
    ("torch", *(f"torch.{path}" for each in ("amp", "cuda.amp", "cpu.amp") for path in (each, f"{each}.grad_scaler")))
]  # fmt: skip


def test_every_name_of_torchs_class_is_replaced_and_put_back():
    before = [operator.attrgetter(name[6:])(torch) for name in NAMES]
    with gradscaler.torch.replace_torch():
        for name in NAMES:
            kind = operator.attrgetter(name[6:])(torch)
            one = kind(8.0, enabled=True) if name.startswith("torch.cpu") else kind("cpu", 8.0)
            assert isinstance(one, GradScaler) and begun(one).get_scale() == 8.0, name
        lacks_cuda = not torch.cuda.is_available()
        with pytest.warns(UserWarning, match="CUDA is not available") if lacks_cuda else contextlib.nullcontext():
            one = torch.cuda.amp.GradScaler(8.0, 4.0)
        assert one._device == "cuda"
    assert [operator.attrgetter(name[6:])(torch) for name in NAMES] == before
    undo = gradscaler.torch.replace_torch()
    assert torch.GradScaler is GradScaler
    undo.close()
    assert [operator.attrgetter(name[6:])(torch) for name in NAMES] == before


def test_a_bool_is_no_number():
    for place in range(1, 5):
        with pytest.raises(TypeError, match=r"^\w+ is False: it must be a number; .* write enabled=False"):
            GradScaler("cpu", *(8.0, 2.0, 0.5, 100)[: place - 1], False)
