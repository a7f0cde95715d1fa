# SPDX-License-Identifier: MIT
"""What gradscaler.torch.GradScaler has beside torch's class, and gradients of every kind.

That it does the same otherwise is in test_same_as_torch.py.
"""

import contextlib
import copy
import gc
import inspect
import math
import pickle
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradscaler
from gradscaler import LimitRule, NoteKind, OverflowReset, Policy, Want
from gradscaler._history import read
from gradscaler.torch import GradScaler, StallError, TensorScaler, _grads

INF, NAN = math.inf, math.nan


def scaler(init_scale=4.0, **options):
    """One whose scale is there already."""
    made = GradScaler("cpu", init_scale=init_scale, **options)
    made.scale(torch.ones(()))
    return made


def parameter(gradient, shape=None):
    made = torch.nn.Parameter(torch.zeros(shape or gradient.shape, dtype=gradient.dtype))
    made.grad = gradient
    return made


def sgd(*gradients):
    return torch.optim.SGD([parameter(torch.as_tensor(gradient)) for gradient in gradients], lr=0.5)


def parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def gradients(optimizer):
    return [p.grad for p in parameters(optimizer)]


# ---- gradients of every kind ----

KINDS = {
    "transposed": lambda: torch.arange(9.0).view(3, 3).t(),
    "channels last": lambda: torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "with gaps": lambda: torch.arange(12.0).view(3, 4)[:, ::2],
    "with gaps of one element": lambda: torch.stack([torch.arange(4.0)] * 2, 1)[:, 0],
    "empty": lambda: torch.ones(0, 3),
    "without dimensions": lambda: torch.tensor(5.0),
    "float64": lambda: torch.arange(5.0, dtype=torch.float64) + 0.1,
    "bfloat16": lambda: torch.arange(5.0).bfloat16(),
    "with a graph": lambda: torch.ones(3, requires_grad=True) * 2,
    "sparse": lambda: torch.sparse_coo_tensor([[0, 2]], [1.0, 3.0], (4,), check_invariants=True).coalesce(),
    "sparse with an index twice": lambda: torch.sparse_coo_tensor([[0, 0, 2]], [1.0, 2.0, 3.0], (4,)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [1.0, INF])
def test_a_gradient_of_any_kind_gets_the_bits_that_torch_gives_it(kind, first):
    found = []
    for cls in torch.amp.GradScaler, GradScaler:
        gradient = KINDS[kind]()
        optimizer = torch.optim.SGD([parameter(gradient), parameter(torch.tensor([1.0, first]))], lr=0.5)
        one = cls("cpu", init_scale=3.0)
        one.scale(torch.ones(()))
        one.unscale_(optimizer)
        assert optimizer.param_groups[0]["params"][0].grad is gradient
        one.step(optimizer)
        values = [gradient._values() if gradient.is_sparse else gradient, *parameters(optimizer)]
        found.append([value.detach().clone() for value in values])
        assert next(iter(one._found_inf_per_device(optimizer).values())).item() == math.isinf(first)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float8_e5m2, torch.float8_e4m3fn])
def test_dtypes_that_torch_refuses_are_unscaled(dtype):
    optimizer = sgd(torch.full((3,), 6.0).to(dtype))
    scaler().unscale_(optimizer)
    assert gradients(optimizer)[0].to(torch.complex64).tolist() == [1.5] * 3


def test_a_view_that_negates_lazily_is_unscaled():
    gradient = torch.tensor([1 + 8j, 2 - 4j]).conj().imag
    optimizer = torch.optim.SGD([parameter(gradient)], lr=0.5)
    scaler().unscale_(optimizer)
    assert gradient.tolist() == [-2.0, 1.0]


def test_a_sparse_gradient_in_float16_is_added_up_before_it_is_checked():
    gradient = torch.sparse_coo_tensor([[1, 1]], torch.tensor([60000.0, 60000.0]).half(), (4,))
    optimizer = torch.optim.SGD([parameter(gradient)], lr=0.5)
    one = scaler(allow_fp16=True)
    one.unscale_(optimizer)
    assert gradients(optimizer)[0].is_coalesced() and one.report.inf_count == 1


def test_what_is_no_optimizer_is_refused_as_torch_does_and_told_what_was_expected():
    one = scaler()
    for call in one.unscale_, one.step:
        for wrong in torch.nn.Linear(1, 1), None:
            theirs = f"'{type(wrong).__name__}' object has no attribute 'param_groups'"
            with pytest.raises(AttributeError, match=rf"^{theirs}: expected a torch\.optim\.Optimizer"):
                call(wrong)


@pytest.mark.parametrize("threads", [1, 2])
def test_sparse_gradients_are_clipped_by_the_norm_of_what_is_added_up(threads):
    norms, values = [], []
    for cls in torch.amp.GradScaler, GradScaler:
        table = torch.nn.Embedding(4, 2, sparse=True)
        optimizer, one = torch.optim.SGD(table.parameters(), lr=0.5), cls("cpu")
        torch.set_num_threads(threads)
        ours = cls is GradScaler
        one.scale(table(torch.tensor([1, 1])).sum()).backward()
        torch.set_num_threads(1)
        if ours:
            norms.append(one.unscale_(optimizer, max_norm=1.0))
        else:
            one.unscale_(optimizer)
            norms.append(torch.nn.utils.clip_grad_norm_(table.parameters(), 1.0))
        values.append(table.weight.grad.to_dense())
    torch.testing.assert_close(*norms)
    torch.testing.assert_close(*values)
    assert norms[1].item() == pytest.approx(8**0.5) and values[1].norm().item() == pytest.approx(1.0)


def test_a_gradient_that_two_parameters_share_is_unscaled_once():
    shared = torch.full((3,), 8.0)
    optimizer = torch.optim.SGD([parameter(shared), parameter(shared)], lr=0.5)
    scaler().unscale_(optimizer)
    assert shared.tolist() == [2.0] * 3


def test_gradients_that_share_a_part_of_their_memory_are_refused_by_name_and_left_alone():
    whole = torch.full((6,), 8.0)
    optimizer = torch.optim.SGD([("first", parameter(whole[:4])), ("second", parameter(whole[2:]))], lr=0.5)
    with pytest.raises(ValueError, match="the gradient of second shares memory with that of first"):
        scaler().unscale_(optimizer)
    assert whole.tolist() == [8.0] * 6


def test_a_gradient_in_float16_is_refused_by_name_with_what_to_do_and_left_alone():
    optimizer = torch.optim.SGD([("weight", parameter(torch.ones(2))), ("half", parameter(torch.ones(2).half()))])
    with pytest.raises(ValueError, match=r"^Attempting to unscale FP16 gradients\. That of half .* allow_fp16=True"):
        scaler().unscale_(optimizer)
    assert [g.tolist() for g in gradients(optimizer)] == [[1.0, 1.0]] * 2


def test_a_gradient_in_float16_is_unscaled_where_that_is_allowed():
    optimizer = sgd(torch.ones(2).half())
    one = scaler(allow_fp16=True)
    one.step(optimizer)
    assert parameters(optimizer)[0].tolist() == [-0.125] * 2 and not one.step_was_skipped


def test_a_fused_optimizer_takes_gradients_in_float16_as_in_torch():
    optimizer = sgd(torch.ones(2).half())
    one = scaler()
    assert next(iter(one._check_inf_per_device(optimizer).values())).item() == 0
    assert gradients(optimizer)[0].tolist() == [1.0, 1.0]


def test_the_scaler_keeps_no_gradient_alive():
    optimizer = sgd([1.0, NAN], [2.0])
    one = scaler()
    alive = [weakref.ref(gradient) for gradient in gradients(optimizer)]
    one.unscale_(optimizer, max_norm=1.0)
    one.step(optimizer)
    optimizer.zero_grad()
    gc.collect()
    assert [each() for each in alive] == [None, None]
    assert one.report.nan_count == 1


# ---- clipping ----


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
@pytest.mark.parametrize("kind", ["float64", "with gaps", "sparse", "bfloat16"])
def test_unscale_clips_to_the_norm_and_returns_what_it_was(kind, max_norm):
    optimizer, other = (
        torch.optim.SGD([parameter(KINDS[kind]()), parameter(torch.arange(6.0))], lr=0.5) for _ in range(2)
    )
    norm = scaler().unscale_(optimizer, max_norm=max_norm)
    values = [(g._values() if g.is_sparse else g).double() / 4 for g in gradients(other)]
    expected = torch.cat([value.flatten() for value in values]).norm()
    assert norm.dtype is torch.float32 and norm.shape == () and norm.item() == pytest.approx(expected.item(), rel=1e-6)
    coefficient = min(1.0, max_norm / (expected.item() + 1e-6))
    for gradient, value in zip(gradients(optimizer), values, strict=True):
        gradient = gradient._values() if gradient.is_sparse else gradient
        close = 1e-2 if gradient.dtype is torch.bfloat16 else 1e-6
        torch.testing.assert_close(gradient.double(), value * coefficient, rtol=close, atol=0)


def test_after_an_overflow_the_norm_is_infinite_and_nothing_is_clipped():
    optimizer = sgd([8.0, NAN], [80.0])
    assert scaler().unscale_(optimizer, max_norm=0.1).item() == INF
    assert gradients(optimizer)[1].item() == 20.0


@pytest.mark.parametrize("max_norm", [0.0, -1.0, NAN, INF])
def test_a_norm_that_cannot_be_a_limit_is_refused_and_the_gradients_are_left_alone(max_norm):
    optimizer = sgd([8.0])
    one = scaler()
    with pytest.raises(ValueError, match="max_norm"):
        one.unscale_(optimizer, max_norm=max_norm)
    assert gradients(optimizer)[0].item() == 8.0
    assert one.unscale_(optimizer, max_norm=1.0).item() == 2.0


def test_a_disabled_scaler_clips_too():
    optimizer = sgd([3.0, 4.0])
    assert GradScaler("cpu", enabled=False).unscale_(optimizer, max_norm=1.0).item() == 5.0
    assert gradients(optimizer)[0].norm().item() == pytest.approx(1.0)


# ---- what it says ----


def test_a_report_names_parameters_by_their_model_their_optimizer_or_their_place():
    model = torch.nn.Linear(2, 1)
    for optimizer, name in (
        (torch.optim.SGD(model.parameters()), "group 0, parameter 1, shape (1,)"),
        (torch.optim.SGD(model.named_parameters()), "bias"),
        (torch.optim.SGD(torch.nn.ModuleDict({"head": model}).parameters()), "head.bias"),
    ):
        one = scaler()
        if name == "head.bias":
            one.name_parameters(torch.nn.ModuleDict({"head": model}))
        model.weight.grad, model.bias.grad = torch.ones(1, 2), torch.tensor([NAN])
        one.step(optimizer)
        assert one.report.bad == {name: 1} and one.report.first_overflow == (name, 0)


def test_a_report_counts_what_was_asked_for():
    optimizer = sgd(torch.tensor([6e-8, 1.0, INF]).half())
    one = scaler(allow_fp16=True, want=Want.NORM | Want.UNDERFLOW | Want.AMAX)
    one.step(optimizer)
    report = one.report
    assert (report.elements, report.inf_count, report.underflows_to_zero, report.amax) == (3, 1, 1, 0.25)
    assert report.norm == pytest.approx(0.25) and report.scale == 4.0
    one.update()
    assert one.report is report


def test_what_was_bad_is_told_when_its_optimizer_and_parameters_are_gone():
    one, model = scaler(), torch.nn.Linear(2, 1)
    model.weight.grad, model.bias.grad = torch.ones(1, 2), torch.tensor([NAN])
    weak = weakref.ref(model.bias)
    one.step(torch.optim.SGD(model.parameters()))
    del model
    gc.collect()
    assert weak() is None and one.report.bad == {"group 0, parameter 1": 1}


def test_of_parameters_without_gradients_the_others_are_named():
    optimizer = torch.optim.SGD([("a", parameter(torch.ones(1))), ("b", parameter(torch.tensor([INF])))])
    parameters(optimizer)[0].grad = None
    one = scaler()
    one.step(optimizer)
    assert one.report.bad == {"b": 1}


@pytest.mark.parametrize("fused", [False, True])
def test_step_was_skipped_answers_for_every_optimizer(fused):
    optimizer = torch.optim.AdamW([parameter(torch.ones(3))], lr=0.5, fused=fused)
    one = scaler()
    for bad in (False, True, True, False):
        before = parameters(optimizer)[0].detach().clone()
        parameters(optimizer)[0].grad = torch.tensor([1.0, NAN if bad else 1.0, 1.0])
        one.step(optimizer)
        assert one.step_was_skipped is bad
        one.update()
        assert one.step_was_skipped is bad
        assert torch.equal(parameters(optimizer)[0], before) is bad


@pytest.mark.parametrize("given", [None, 4.0])
def test_a_fused_optimizer_that_failed_keeps_the_scale_that_it_was_given(given):
    """Which torch multiplies by the scaler's, and takes away after a step that is made."""
    one = torch.optim.SGD([parameter(torch.tensor([64.0]))], lr=1.0, fused=True)
    scaling = scaler(8.0)
    if given:
        one.grad_scale = torch.tensor(given)
    with pytest.raises(TypeError):
        scaling.step(one, unknown=1)
    assert getattr(one, "grad_scale", None) == given and not hasattr(one, "found_inf")
    scaling.step(one)
    assert parameters(one)[0].item() == -64 / 8 / (given or 1)


def test_step_says_why_no_gradient_was_checked():
    optimizer = sgd([1.0], [1.0])
    optimizer.zero_grad()
    one = scaler()
    with pytest.raises(AssertionError, match=r"^No inf checks were recorded for this optimizer\. None of its 2 param"):
        one.step(optimizer)
    with pytest.raises(AssertionError, match=r"^No inf checks were recorded prior to update\. Call scale"):
        scaler().update()


# ---- rules ----


def steps(one, *overflows):
    """The scales after steps with and without an overflow."""
    found = []
    for bad in overflows:
        one.step(sgd([INF if bad else 1.0]))
        one.update()
        found.append(one.get_scale())
    return found


def test_rules_that_torchs_class_lacks_are_fields_of_its_policy():
    given = {"min_scale": 2.0, "max_scale": 8.0, "hysteresis": 2}
    implied = {"max_failed_backoffs": 10, "ceiling_rule": LimitRule.CLAMP, "overflow_reset": OverflowReset.ON_GOOD_STEP}
    assert scaler(**given)._policy == Policy("torch", init_scale=4.0, **given, **implied)


def test_a_policy_is_a_preset_by_name_or_a_policy_and_numbers_replace_its_fields():
    policy = Policy("megatron", hysteresis=1)
    for one in (
        GradScaler("cpu", policy="megatron", hysteresis=1, init_scale=32.0),
        GradScaler("cpu", 32.0, policy=policy),
    ):
        assert one.get_scale() == 32.0 and one.get_growth_interval() == policy.growth_interval
    assert policy.init_scale != 32.0


def test_every_preset_moves_the_scale_as_the_librarys_scaler_does():
    for preset in gradscaler.presets():
        reference = gradscaler.Scaler(
            preset, init_scale=1024.0, **({"growth_interval": 2} if preset != "static" else {})
        )
        one = GradScaler("cpu", policy=reference.policy, on_stall=lambda stalled: None)
        one.scale(torch.ones(()))
        for bad in (0, 1, 0, 0, 0, 1, 1, 0, 0, 0):
            one.step(sgd([NAN if bad else 0.5]))
            one.update()
            report = reference.unscale([torch.tensor([NAN if bad else 0.5])])
            reference.update(report)
            assert one.get_scale() == pytest.approx(reference.loss_scale, rel=1e-7), preset


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"init_scale": INF}, "init_scale"),
        ({"init_scale": NAN}, "init_scale is nan: it must be a number"),
        ({"init_scale": 1e-50}, "init_scale"),
        ({"backoff_factor": 0.0}, "backoff_factor"),
        ({"growth_interval": -1}, "growth_interval is -1: it must be a whole number from 0"),
        ({"max_scale": -1.0}, "max_scale"),
        ({"policy": "unknown"}, "unknown"),
        ({"policy": 3}, "policy"),
        ({"unknown": 3}, "unknown"),
        ({"init_scale": -1}, "init_scale is -1: it must be finite and above 0$"),
        ({"grow_interval": 3}, "did you mean growth_interval"),
        ({"max_failed_backoffs": 3}, r"policy=gradscaler\.Policy\(\.\.\., max_failed_backoffs="),
        ({"want": "norm"}, r"want='norm': expected a union of gradscaler\.Want"),
        ({"on_stall": 3}, "on_stall=3: expected a function"),
        ({"process_group": 3}, "process_group=3: expected a torch.distributed group"),
        ({"hysteresis": 0}, "hysteresis=0: it must be a whole number from 1"),
    ],
)
def test_an_argument_that_no_scaler_can_follow_is_refused_by_name_with_what_to_pass(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        GradScaler("cpu", **arguments)


def test_a_growth_factor_of_0_and_a_norm_without_limit_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match="growth_factor is 0.0: it must be finite and at least 1$"):
        GradScaler("cpu").set_growth_factor(0.0)
    with pytest.raises(ValueError, match="report.norm give the norm alone"):
        scaler().unscale_(sgd([1.0]), max_norm=INF)


@pytest.mark.parametrize("model", [None, [("a", 3)], 3, torch.nn.Linear(2, 1).parameters()])
def test_what_has_no_names_cannot_name_parameters(model):
    with pytest.raises(TypeError, match="a model or .name, parameter. pairs"):
        GradScaler("cpu").name_parameters(model)


def test_names_of_several_models_stay_apart_and_survive_a_copy_and_have_no_wrapper_in_them():
    models = [torch.nn.Linear(1, 1, bias=False) for _ in range(3)]
    one = scaler()
    for model in models:
        one.name_parameters(model)
    one.name_parameters([("_orig_mod.weight", models[0].weight)])
    for model in models:
        model.weight.grad = torch.full((1, 1), NAN)
    for each in one, scaled(copy.deepcopy(one)):
        each.step(torch.optim.SGD([model.weight for model in models]))
        assert each.report.bad == {"weight": 1, "Linear.weight": 1, "Linear 2.weight": 1}
    with pytest.raises(ValueError, match=r"no underflows_to_zero: pass want=gradscaler\.Want\.UNDERFLOW"):
        _ = one.report.underflows_to_zero


@pytest.mark.parametrize("value", [0.0, -1.0, INF, NAN])
def test_a_scale_that_no_step_could_succeed_with_is_refused_and_the_old_one_stays(value):
    one = scaler()
    with pytest.raises(ValueError):
        one.update(value)
    with pytest.raises(ValueError):
        one.update(torch.tensor(value))
    assert one.get_scale() == 4.0
    one.update(8)
    assert one.get_scale() == 8.0


# ---- the tensors that others read and write ----


def test_what_others_write_into_the_tensors_becomes_the_scale_and_its_count():
    one = scaler(growth_interval=3)
    one._scale.fill_(64.0)
    one._growth_tracker.fill_(2)
    assert steps(one, 0) == [128.0]
    one._scale, one._growth_tracker = torch.tensor(16.0), torch.tensor(2, dtype=torch.int32)
    assert steps(one, 0, 1) == [32.0, 16.0]


# ---- stalls ----


def test_a_scale_of_0_ends_training_and_says_why():
    weight = torch.nn.Parameter(torch.tensor([NAN]))
    optimizer = torch.optim.SGD([("weight", weight)])
    one = GradScaler("cpu", init_scale=2.0**-148)
    for _ in range(2):
        loss = (weight * weight).sum()
        one.scale(loss).backward()
        one.step(optimizer)
        one.update()
    assert one.get_scale() == 0
    one.scale(loss)
    with pytest.raises(
        StallError, match=r"scale is 0 .* parameters weight: .* the loss is not finite .* min_scale"
    ) as e:
        one.step(optimizer)
    assert e.value.report.bad == {"weight": 1}


def test_on_stall_is_told_and_training_goes_on():
    told = []
    one = scaler(init_scale=2.0, min_scale=1.0, on_stall=told.append)
    steps(one, *[1] * 11)
    assert [type(each) for each in told] == [StallError] and told[0].report.nan_count + told[0].report.inf_count == 1
    assert steps(one, 0) == [1.0]


def test_a_floor_brings_a_stop_with_it():
    one = scaler(min_scale=2.0)
    with pytest.raises(StallError, match="after 11 skipped steps"):
        steps(one, *[1] * 30)
    assert (
        GradScaler("cpu", policy=Policy("torch", max_failed_backoffs=3), min_scale=2.0)._policy.max_failed_backoffs == 3
    )
    assert GradScaler("cpu", max_scale=2.0**20, min_scale=0.0)._policy.max_failed_backoffs == 0


def test_the_message_at_scale_0_names_the_field_that_prevents_it():
    one = scaler()
    one._scale.fill_(0.0)
    with pytest.raises(StallError, match=r"the scale is 0, .* min_scale to 2\^-14"):
        one.step(sgd([1.0]))


@pytest.mark.parametrize("form", ["alone", "list", "micro-batches"])
def test_a_loss_that_was_nowhere_kept_is_diagnosed(form):
    def losses(value):
        return [(weight * value).sum()] if form == "list" else (weight * value).sum()

    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    one = scaler(policy=Policy("guard", max_failed_backoffs=2))
    for step in range(2):
        optimizer.zero_grad()
        for value in (NAN, 1.0) if form == "micro-batches" else (NAN,):
            scaled = one.scale(losses(value))
            (scaled[0] if form == "list" else scaled).backward()
            del scaled
        one.step(optimizer)
        if step == 0:
            one.update()
    with pytest.raises(StallError, match="the loss is not finite before it is scaled"):
        one.update()


def test_of_a_loss_its_graph_is_not_kept_nor_is_a_large_one_nor_one_of_an_earlier_step():
    one, x = scaler(), torch.ones(4, requires_grad=True)
    product = x * 2
    one.scale(product.sum())
    alive = weakref.ref(product)
    del product
    one.scale(torch.ones(100_000))
    assert alive() is None and [get() is None for get in one._losses._kept] == [False, False, True]
    steps(one, 0)
    one.scale(torch.zeros(()))
    assert [get().item() for get in one._losses._kept] == [0.0]


# ---- several optimizers ----


def test_of_several_optimizers_each_is_known_and_the_bad_one_is_in_the_message():
    one = scaler(policy=Policy("guard", max_failed_backoffs=2))
    first = torch.optim.SGD([("generator.weight", parameter(torch.ones(1)))], lr=0.1)
    second = torch.optim.SGD([("critic.weight", parameter(torch.ones(1)))], lr=0.1)
    for step in range(2):
        for optimizer, value in (first, NAN), (second, 1.0):
            parameters(optimizer)[0].grad.fill_(value)
            one.step(optimizer)
        assert one.step_was_skipped and not one.report.overflow
        assert one.report_of(first).bad == {"generator.weight": 1} and one.report_of(second) is one.report
        with pytest.raises(StallError) if step else contextlib.nullcontext() as raised:
            one.update()
        assert one.step_was_skipped and one.report_of(first).overflow
    assert "generator.weight" in str(raised.value) and raised.value.report is one.report_of(first)
    parameters(second)[0].grad.fill_(1.0)
    one.step(second)
    assert not one.step_was_skipped and one.report_of(first) is None


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_the_reason_is_of_what_others_wrote_into_found_inf(found, fused):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], lr=0.1, fused=fused)
    one = GradScaler("cpu")
    one.scale(torch.ones(()))
    parameter.grad = torch.tensor([1.0, 1.0 if found else math.inf])
    one.unscale_(optimizer)
    (tensor,) = one._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
    tensor.fill_(found)
    one.step(optimizer)
    said = "skipped: found_inf is not 0, though the gradients are finite: others wrote it" if found else ""
    assert one.reason == said and one.step_was_skipped == bool(found)
    one.update()
    assert one.reason == said and one.get_scale() == 65536 / (1 + found)


def test_the_reason_of_an_overflow_without_inf_or_nan_has_the_norm():
    parameter = torch.nn.Parameter(torch.ones(2))
    one = GradScaler("cpu", policy="fairseq")  # whose norm overflows above the largest float
    one.scale(torch.ones(()))
    parameter.grad = torch.full((2,), 1e25)
    one.step(torch.optim.SGD([parameter], lr=0.1))
    assert one.step_was_skipped and not one.report.bad
    said = "skipped: the policy takes the norm, 4.31584e+20, for an overflow; no gradient is Inf or NaN"
    assert one.reason == said


def test_a_disabled_scaler_knows_nothing_and_says_so():
    one, model = GradScaler("cpu", enabled=False), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for each in one, copy.deepcopy(one), pickle.loads(pickle.dumps(one)):
        each.name_parameters(model)
        each.scale(model(torch.ones(1))).backward()
        each.step(optimizer)
        each.update()
        assert each.report is None and each.report_of(optimizer) is None and each.step_was_skipped is False
        assert each.total_guard_skips == 0 and each.reason == ""
        for name in [name for name, value in vars(GradScaler).items() if isinstance(value, property)]:
            getattr(each, name)


# ---- checkpoints ----


@pytest.mark.parametrize(
    "make", [lambda: scaler(policy="recommended"), lambda: scaler(hysteresis=3, min_scale=0.5, max_scale=8.0)]
)
def test_a_state_of_other_rules_comes_back_with_them_and_torchs_class_reads_it(make):
    one = make()
    steps(one, 0, 1, 0)
    state = one.state_dict()
    other = GradScaler("cpu")
    other.load_state_dict(state)
    assert other.state_dict() == state
    other.scale(torch.ones(()))
    assert steps(other, 1, 1, 1, 0, 1) == steps(one, 1, 1, 1, 0, 1)
    theirs = torch.amp.GradScaler("cpu")
    theirs.load_state_dict(state)
    assert theirs.get_scale() == state["scale"]
    other.load_state_dict(state | {"_growth_tracker": 3.0})
    assert other._get_growth_tracker() == 3


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_go_on_from_where_it_is(copied):
    one = scaler(policy="nemo", growth_interval=4, hysteresis=2)
    steps(one, 0, 1, 0, 0)
    other = copied(one)
    other.scale(torch.ones(()))
    assert other.report is None
    assert steps(other, 1, 1, 0, 0, 0, 0, 0) == steps(one, 1, 1, 0, 0, 0, 0, 0)


def test_a_pickle_of_before_0_9_is_read():
    one = scaler(policy="nemo", growth_interval=4, hysteresis=2)
    steps(one, 0, 1, 1)
    state, other = one.__getstate__(), GradScaler("cpu")
    other.__setstate__(state | {"_saved": state["_saved"][:172] + bytes(4) + state["_saved"][176:256]})
    assert other.__getstate__() == state
    other.scale(torch.ones(()))
    assert steps(other, 1, 1, 0, 0, 0, 0, 0) == steps(one, 1, 1, 0, 0, 0, 0, 0)


# ---- programs that override what torch's class does it with ----


class AllowsHalf(GradScaler):
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


class Halves(GradScaler):
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale / 2, found_inf, True)


def test_a_program_that_overrides_how_gradients_are_unscaled_gets_its_way():
    for cls, expected in (AllowsHalf, 2.0), (Halves, 1.0):
        optimizer = sgd(torch.full((2,), 8.0).half())
        one = cls("cpu", init_scale=4.0)
        one.scale(torch.ones(()))
        assert one.unscale_(optimizer, max_norm=100.0).item() == pytest.approx(expected * math.sqrt(2), rel=1e-3)
        assert gradients(optimizer)[0].tolist() == [expected] * 2
        one.step(optimizer)
        one.update()
        assert not one.step_was_skipped


def test_a_gradient_of_a_subclass_of_tensor_is_unscaled():
    class Tagged(torch.Tensor):
        pass

    for value in 8.0, NAN:
        optimizer = sgd(torch.full((2,), value).as_subclass(Tagged))
        one = scaler()
        norm = one.unscale_(optimizer, max_norm=1.0)
        one.step(optimizer)
        assert one.step_was_skipped is math.isnan(value)
        if value == 8.0:
            assert gradients(optimizer)[0].norm().item() == pytest.approx(1.0) and norm.item() > 1


def test_a_program_that_patches_torchs_class_is_followed(monkeypatch):
    theirs = torch.amp.GradScaler._unscale_grads_

    def patched(self, optimizer, inv_scale, found_inf, allow_fp16):
        return theirs(self, optimizer, inv_scale, found_inf, True)

    monkeypatch.setattr(torch.amp.GradScaler, "_unscale_grads_", patched)
    optimizer = sgd(torch.full((2,), 8.0).half())
    scaler().step(optimizer)
    assert parameters(optimizer)[0].tolist() == [-1.0] * 2


def test_a_checkpoint_of_another_framework_is_read_by_its_name():
    megatron = {"optimizer": {"grad_scaler": {"scale": 64.0, "growth_tracker": 3, "hysteresis_tracker": 2}}}
    for used in False, True:
        one = (
            scaler(policy="megatron", growth_interval=4)
            if used
            else GradScaler("cpu", policy="megatron", growth_interval=4)
        )
        one.load_state_dict(megatron, format="megatron")
        one.scale(torch.ones(()))
        assert one.get_scale() == 64.0 and one._get_growth_tracker() == 3
        assert steps(one, 0) == [128.0]
        with pytest.raises(ValueError):
            one.load_state_dict({"scale": "none"}, format="megatron")
        assert one.get_scale() == 128.0


@pytest.mark.parametrize("format", ["deepspeed", "megatron", "nemo", "flax", "gradscaler"])
def test_a_checkpoint_of_another_framework_is_recognised_nested_or_not_and_written(format):
    one = scaler(init_scale=128.0)
    state = one.state_dict(format=format)
    for each in state, {"optimizer": {"scaler": state}} if format != "gradscaler" else state:
        other = GradScaler("cpu")
        other.load_state_dict(each)
        assert other.get_scale() == 128.0
    reference = gradscaler.Scaler("none")
    reference.load_state_dict(state)
    assert reference.loss_scale == 128.0
    if format == "megatron":
        assert one.notes and state.keys() == {"scale", "growth_tracker", "hysteresis_tracker"}


def test_the_librarys_own_classes_read_each_other_with_all_rules_and_counts():
    one = scaler(min_scale=0.5, hysteresis=3)
    steps(one, 0, 1, 1)
    plain = gradscaler.Scaler()
    plain.load_state_dict(one.state_dict())
    assert bytes(plain.policy) == bytes(one._policy) and bytes(plain.state) == bytes(one._current("").read())
    plain.load_state_dict(one.state_dict() | {"scale": 64.0})
    assert plain.loss_scale == 64.0 and plain.policy.min_scale == 0.5
    tensors = TensorScaler("recommended", init_scale=32.0)
    for state in plain.state_dict(), tensors.state_dict():
        other = GradScaler("cpu")
        other.load_state_dict(state)
        reference = plain if "scale" in state else tensors
        assert other.get_scale() == float(reference.loss_scale) and bytes(other._policy) == bytes(reference.policy)


def test_a_checkpoint_that_replaces_rules_that_were_asked_for_says_so():
    torchs = torch.amp.GradScaler("cpu").state_dict()
    with pytest.warns(UserWarning, match="scale 65536 of the checkpoint is not taken") as told:
        guard = GradScaler("cpu", policy="guard")
        guard.load_state_dict(torchs)
    assert len(told) == 1 and told[0].filename == __file__
    assert guard.get_scale() == 1 and steps(scaled(guard), 1, 0) == [1.0, 1.0]
    with pytest.warns(UserWarning, match=r"given: min_scale 0\.5 by 6\.10352e-05$"):
        GradScaler("cpu", min_scale=0.5).load_state_dict(GradScaler("cpu", policy="recommended").state_dict())
    with pytest.warns(UserWarning, match="growth_interval 1000 by 2000"):
        GradScaler("cpu", policy="megatron").load_state_dict(torchs)
    with pytest.warns(UserWarning, match="never moves"):
        GradScaler("cpu").load_state_dict(guard.state_dict())


def scaled(one):
    one.scale(torch.ones(()))
    return one


@pytest.mark.filterwarnings("error")
def test_a_checkpoint_of_the_same_rules_or_of_torchs_own_warns_of_nothing():
    for options in {"policy": "guard"}, {"policy": "recommended"}, {"min_scale": 0.5}, {}:
        GradScaler("cpu", **options).load_state_dict(GradScaler("cpu", **options).state_dict())
    GradScaler("cpu", policy="recommended").load_state_dict(torch.amp.GradScaler("cpu").state_dict())
    GradScaler("cpu", growth_interval=7, min_scale=0.5).load_state_dict(torch.amp.GradScaler("cpu").state_dict())


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
        state = before | {"scale": 99.0} | changes
    with pytest.raises((ValueError, TypeError, KeyError), match=message):
        one.load_state_dict(state)
    assert one.state_dict() == before


# ---- around it ----


def test_defaults_of_torch_and_inference_mode_do_not_reach_the_state():
    optimizer = sgd([3.0, 4.0], [12.0])
    with torch.inference_mode():
        one = scaler(init_scale=1.0)
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        norm = one.unscale_(optimizer, max_norm=1.0)
        one.step(optimizer)
        one.update()
        one.update(4.0)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert (norm.item(), norm.dtype, one.get_scale()) == (13.0, torch.float32, 4.0)
    x = torch.ones(2, requires_grad=True)
    one.scale(x.sum()).backward()
    assert x.grad.tolist() == [4.0, 4.0]


def test_large_gradients_have_the_same_bits_with_as_many_threads_as_torch_has():
    found = []
    for threads in 1, 3:
        torch.set_num_threads(threads)
        try:
            generator = torch.Generator().manual_seed(0)
            optimizer = sgd(*(torch.randn(300_000, generator=generator) for _ in range(12)))
            one = scaler(init_scale=3.0, want=Want.AMAX)
            norm = one.unscale_(optimizer, max_norm=0.1)
        finally:
            torch.set_num_threads(1)
        found.append((norm.item(), bytes(one.report), [gradient.clone() for gradient in gradients(optimizer)]))
    assert found[0][:2] == found[1][:2]
    assert all(torch.equal(a, b) for a, b in zip(found[0][2], found[1][2], strict=True))


def test_what_stands_for_an_optimizer_needs_groups_and_a_step_only():
    class Wrapper:
        __slots__ = ("param_groups",)

        def step(self):
            return "stepped"

    wrapper, one = Wrapper(), scaler()
    wrapper.param_groups = sgd([4.0]).param_groups
    assert one.step(wrapper) == "stepped"
    assert wrapper.param_groups[0]["params"][0].grad.tolist() == [1.0]


def test_a_scale_where_the_library_does_not_run_is_refused_with_what_to_use_instead():
    one = GradScaler("cpu")
    with pytest.raises(NotImplementedError, match=r"not on xpu: use torch\.amp\.GradScaler there"):
        one._lazy_init_scale_growth_tracker("xpu")
    assert one.scale(torch.ones((), device="meta")).is_meta


def test_the_device_of_the_host_may_have_a_number():
    one = GradScaler("cpu", 4.0)
    one._lazy_init_scale_growth_tracker(torch.device("cpu", 0))
    assert steps(one, 1) == [2.0]


class Operators(TorchDispatchMode):
    """The names of what torch is asked for."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.add(function.name())
        return function(*args, **(kwargs or {}))


def test_the_places_in_reports_are_made_where_the_reports_are():
    lot = _grads.GradientGroup(torch.device("cpu"), [torch.ones(2), torch.full((2,), math.nan)], range(2))
    lot.run(True, None, Policy("torch"), 0)
    lot.per_tensor = torch.frombuffer(lot.per_tensor, dtype=torch.uint8)
    with Operators() as operators:
        rows = lot.reports(lot.device)
    assert rows.view(torch.int64)[:, gradscaler.Report.first_tensor.offset // 8].tolist() == [0, 1]
    assert "aten::lift_fresh" not in operators.seen  # torch.tensor(), which waits for a device


def test_the_constructor_has_the_signature_of_torchs_class():
    ours, theirs = (inspect.signature(kind).parameters for kind in (GradScaler, torch.amp.GradScaler))
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind), name
    assert list(ours)[: len(theirs)] == list(theirs)


def test_a_number_that_is_given_replaces_that_of_a_policy_even_if_it_is_torchs():
    policy = Policy("torch", growth_interval=7, init_scale=8.0)
    left = GradScaler("cpu", policy=policy)
    given = GradScaler("cpu", 65536.0, growth_interval=2000, policy=policy)
    assert (left.get_growth_interval(), left.get_scale()) == (7, 8.0)
    assert (given.get_growth_interval(), given.get_scale()) == (2000, 65536.0)


@pytest.mark.parametrize("count", range(1, 6))
def test_the_older_form_may_go_on_by_name(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    names, values = list(inspect.signature(GradScaler).parameters)[1:6], (1024.0, 4.0, 0.25, 100, True)
    one = GradScaler(*values[:count], **dict(list(zip(names, values, strict=True))[count:]))
    numbers = one.get_scale(), one.get_growth_factor(), one.get_backoff_factor(), one.get_growth_interval()
    assert numbers == values[:4] and one.is_enabled()
    assert not GradScaler(*values[:4], False).is_enabled()
    with pytest.raises(TypeError, match=f"multiple values for argument '{names[count - 1]}'"):
        GradScaler(*values[:count], **{names[count - 1]: values[count - 1]})


def test_repr_tells_scale_and_rules():
    assert repr(GradScaler("cpu", enabled=False)) == "<GradScaler('cpu', enabled=False)>"
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=7)
    shown = "<GradScaler('cpu', policy=Policy('torch', init_scale=8.0, growth_interval=7)): scale 8, good steps 0>"
    assert repr(scaler) == shown
    scaler.scale(torch.ones(()))
    assert repr(scaler) == shown


def test_a_checkpoint_of_ours_is_found_whole_wherever_it_lies():
    saved = GradScaler("cpu", policy="recommended", init_scale=1024.0, growth_interval=7)
    saved.scale(torch.ones(()))
    saved.update(2048.0)
    whole = {"model": {}, "scaler": saved.state_dict()}
    loaded = GradScaler("cpu")
    assert loaded.load_state_dict(whole) == []
    assert loaded.state_dict() == whole["scaler"]
    for checkpoint in whole, whole["scaler"]:
        host = gradscaler.Scaler("none")
        host.load_state_dict(checkpoint)
        assert not [note for note in host.notes if "not among" in note]
        assert (host.preset, host.policy.growth_interval, host.loss_scale) == ("recommended", 7, 2048.0)
    both = {"first": saved.state_dict(), "second": loaded.state_dict() | {"scale": 4.0}}
    with pytest.raises(ValueError, match="'first', 'second': say which by prefix"):
        GradScaler("cpu").load_state_dict(both)
    loaded.load_state_dict(both, prefix="second")
    assert loaded.get_scale() == 4.0 and loaded.state_dict()["growth_interval"] == 7


def test_metrics_a_diagnosis_and_a_history_as_those_of_the_librarys_scaler(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1.0, want=Want.NORM)
    scaler.name_parameters(model)
    with scaler.history(tmp_path / "run.csv"):
        for value in (1.0, math.inf):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 2), value)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    metrics = scaler.metrics()
    assert (metrics["loss_scale"], metrics["skip"], metrics["overflow"], metrics["inf_count"]) == (0.5, True, True, 2)
    columns = read(tmp_path / "run.csv")
    assert (columns["step"], columns["overflow"], columns["loss_scale"]) == ([1, 2], [0, 1], [1.0, 0.5])
    assert columns["norm"][0] == pytest.approx(3**0.5)
    found, *_ = scaler.diagnose()
    assert found.kind == NoteKind.NOT_FINITE and found.endswith("look first at 'weight'")
    pickle.loads(pickle.dumps(scaler))
    assert GradScaler("cpu", enabled=False).metrics() == {}
