# SPDX-License-Identifier: MIT
"""A policy that guards: norms that are finite but absurd are skipped or clipped, by the rule of gradscaler.Scaler."""

import math
import random
import warnings

import pytest
import torch
from conftest import begun, make_step, sgd

import gradscaler
from gradscaler import Guard, GuardSample, Policy
from gradscaler.torch import GradScaler, StallError, TensorScaler

RULES = {
    "skip": {"guard_ratio": 3.0, "guard_decay": 0.9, "guard_warmup": 5, "guard_max_in_a_row": 4},
    "clip": {"guard_sigmas": 3.0, "guard_decay": 0.9, "guard_warmup": 5, "guard_flags": Guard.CLIP},
    "none": {},
    "norm": {"guard_norm": 20.0, "guard_flags": Guard.CLIP | Guard.INCLUSIVE, "guard_sample": GuardSample.NONE},
}


def guarded(rule, **fields):
    return Policy("recommended", **{**RULES[rule], **fields})


def norms(seed, count=60):
    draw = random.Random(seed)
    return [draw.choice([40.0, 400.0, math.inf]) if draw.random() < 0.2 else 2 + draw.random() for _ in range(count)]


class Model:
    """Parameters `a` and `b`, or `a` alone, with an optimizer, and gradients of a given norm."""

    def __init__(self, count=2, optimizer=torch.optim.SGD, lr=1.0, **options):
        self.named = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(4)) for name in "ab"[:count]})
        self.parameters = list(self.named.values())
        self.optimizer = optimizer(self.parameters, lr=lr, **options)

    def give(self, norm, scale, share=0.5):
        """Sets gradients of this norm; `share` of its square is the share of `b`."""
        parts = (math.sqrt(1 - share), math.sqrt(share)) if len(self.parameters) > 1 else (1.0,)
        for part, parameter in zip(parts, self.parameters, strict=True):
            parameter.grad = torch.tensor([norm * part * scale, 0, 0, 0])

    def gradients(self):
        return [parameter.grad.clone() for parameter in self.parameters]

    def has_moved(self):
        return any(parameter.any() for parameter in self.parameters)


def norm_of(gradients):
    return torch.cat(gradients).double().norm().item()


def equal(ones, others):
    return all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def world(policy, kind=GradScaler, **options):
    """Returns a model, its optimizer and a scaler that has made its scale."""
    model = Model(**options)
    return model, model.optimizer, begun(kind("cpu", policy=policy))


def by_the_library(policy, series):
    """Returns the answer of gradscaler's own step to each norm: (multiplier, scale after it)."""
    scaler, model, said = gradscaler.Scaler(policy), Model(), []
    for norm in series:
        model.give(norm, scaler.loss_scale)
        scaler.update(scaler.measure(model.gradients()))
        said.append((scaler.multiplier, scaler.loss_scale))
    return said


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_a_loop_and_a_tensor_scaler_do_what_the_library_says_of_the_norms(rule, fused):
    policy, series, acted = guarded(rule), norms(rule), set()
    adam = {"optimizer": torch.optim.Adam, "fused": fused, "betas": (0.0, 0.0), "eps": 1e9}  # lr * grad / eps
    (model, optimizer, scaler), tensors = world(policy, **adam), TensorScaler(policy)
    for norm, (multiplier, scale) in zip(series, by_the_library(policy, series), strict=True):
        model.give(norm, scaler.get_scale())
        before, copies, skips = [p.detach().clone() for p in model.parameters], model.gradients(), multiplier == 0
        scaler.step(optimizer)
        assert scaler.step_was_skipped is bool(tensors.unscale_(copies)[0]) is skips, scaler.reason
        assert [torch.equal(*pair) for pair in zip(model.parameters, before, strict=True)] == [skips] * 2
        for gradients in model.gradients(), copies:
            assert skips or norm_of(gradients) == pytest.approx(norm * multiplier, rel=1e-6)
        acted.add("skipped" if skips else "clipped" if multiplier < 1 else "taken")
        reason = scaler.reason
        assert (not reason) == (multiplier == 1) or "let through" in reason
        scaler.update()
        tensors.update()
        assert scaler.get_scale() == tensors.loss_scale == scale
        assert scaler.step_was_skipped is skips and scaler.reason == reason
    assert acted == {"skipped", "taken"} | ({"clipped"} if rule in ("clip", "norm") else set())


def test_the_reason_is_of_the_last_step_and_names_what_grew():
    model, optimizer, scaler = world(guarded("skip"))
    scaler.name_parameters(model.named)
    for _ in range(8):
        model.give(2.0, scaler.get_scale(), share=0.25)
        make_step(scaler, optimizer)
        assert not scaler.reason
    model.give(100.0, scaler.get_scale(), share=0.81)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    said = "skipped: the norm, 100, is above 6; the mean of 8 steps is 2"
    assert scaler.reason == f"{said}; b makes up 81% of its square, usually 25%"
    assert scaler.report.grew == {"b": (pytest.approx(0.25), pytest.approx(0.81))}
    assert scaler.step_was_skipped and not scaler.report.overflow
    scaler.update()
    model.give(2.0, scaler.get_scale())
    scaler.unscale_(optimizer)
    assert scaler.reason == ""
    make_step(scaler, optimizer)
    model.give(math.nan, scaler.get_scale())
    scaler.step(optimizer)
    assert scaler.reason == 'skipped: 2 NaN in all 2 tensors: look at the last layer, "b", and the loss'


@pytest.mark.parametrize(
    "flags, norms, unscaled, moved",
    [
        (0, (15.0, 15.0), True, [False, False]),  # 21.2 of both
        (0, (15.0, 15.0), False, [True, False]),  # looked at one by one, each is judged with those before it
        (Guard.CLIP, (math.inf, 1e6), False, [False, False]),
    ],
)
def test_several_optimizers_are_judged_by_the_norm_of_all(flags, norms, unscaled, moved):
    models, scaler = [Model(1), Model(1)], begun(GradScaler("cpu", policy=guarded("norm", guard_flags=flags)))
    for model, norm in zip(models, norms, strict=True):
        model.give(norm, scaler.get_scale())
    for model in models if unscaled else ():
        scaler.unscale_(model.optimizer)
    make_step(scaler, *(model.optimizer for model in models))
    assert scaler.step_was_skipped and [model.has_moved() for model in models] == moved
    assert flags or scaler.reason.startswith("skipped: the norm, 21.2132, is above 20")


def test_too_many_outliers_in_a_row_stop():
    policy = guarded("skip", guard_max_in_a_row=3, guard_flags=Guard.STOP, guard_sample=GuardSample.NONE)
    model, optimizer, scaler = world(policy)
    scaler.name_parameters(model.named)
    told = r"The last norm was 50; b makes up 81% of its square.* the last 3 norms were above the threshold, 6"
    with pytest.raises(StallError, match=told):
        for i in range(20):
            model.give(2.0 if i < 6 else 50.0, scaler.get_scale(), share=0.5 if i < 6 else 0.81)
            make_step(scaler, optimizer)
    assert i == 8


def test_a_loop_that_clips_by_itself_is_judged_by_what_it_was_before():
    model, optimizer, scaler = world(guarded("norm", guard_flags=0))
    model.give(30.0, scaler.get_scale())
    assert scaler.unscale_(optimizer, max_norm=1.0) == pytest.approx(30)
    scaler.step(optimizer)
    assert scaler.step_was_skipped


@pytest.mark.parametrize("max_norm, left", [(1.0, 1.0), (30.0, 20.0), (100.0, 20.0)])
def test_a_norm_that_the_loop_clips_to_is_not_clipped_once_more(max_norm, left):
    model, optimizer, scaler = world(guarded("norm"))  # to 20
    model.give(40.0, scaler.get_scale())
    copies = model.gradients()
    scaler.unscale_(optimizer, max_norm=max_norm)
    scaler.step(optimizer)
    TensorScaler(guarded("norm")).unscale_(copies, max_norm=max_norm)
    for gradients in model.gradients(), copies:
        assert norm_of(gradients) == pytest.approx(left)


@pytest.mark.parametrize("fused", [False, True])
def test_what_torch_refuses_leaves_the_gradients_alone(fused):
    model, optimizer, scaler = world(guarded("norm"), optimizer=torch.optim.Adam, fused=fused)
    model.give(40.0, scaler.get_scale())
    before = model.gradients()
    if not fused:
        with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
            scaler.step(optimizer, closure=lambda: None)
        assert equal(model.gradients(), before)
    scaler.step(optimizer)
    before = model.gradients()
    with pytest.raises(RuntimeError, match="step\\(\\) has already been called"):
        scaler.step(optimizer)
    assert equal(model.gradients(), before)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_fails_may_be_made_again_and_clips_once(fused):
    model, optimizer, scaler = world(guarded("norm", init_scale=8.0), count=1, fused=fused)
    failures = [RuntimeError("out of memory")]

    def fails_once(*_):
        if failures:
            raise failures.pop()

    optimizer.register_step_pre_hook(fails_once)
    model.give(80.0, scaler.get_scale())
    with pytest.raises(RuntimeError, match="out of memory"):
        scaler.step(optimizer)
    make_step(scaler, optimizer)
    assert model.parameters[0][0].item() == -20.0
    assert not hasattr(optimizer, "grad_scale") and not hasattr(optimizer, "found_inf")


class HalfAgain(GradScaler):
    """A program's own class: its gradients are divided by twice the scale."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale / 2, found_inf, allow_fp16)


class Divides(GradScaler):
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(inv_scale)
        return {found_inf.device: found_inf}


@pytest.mark.parametrize("kind", [HalfAgain, Divides])
@pytest.mark.parametrize("fused", [False, True])
def test_gradients_that_others_unscale_have_no_norm_for_a_guard_and_are_divided_once(kind, fused):
    model = Model(1, torch.optim.Adam, fused=fused)
    scaler = begun(kind("cpu", policy=guarded("norm")))
    model.give(1.0, scaler.get_scale())
    left = [model.gradients()[0] / (scaler.get_scale() if kind is Divides and not fused else 1.0)]
    calls = (scaler.step, scaler.step, lambda _: scaler.update()) if kind is Divides else (scaler.step,)
    for call in calls:
        with pytest.raises(RuntimeError, match="^_unscale_grads_ was replaced, or called with another inverse, so"):
            call(model.optimizer)
        assert equal(model.gradients(), left) and not model.has_moved()
    begun(kind("cpu"))


def test_gradients_that_others_have_divided_are_not_divided_again_by_unscale():
    model, optimizer, scaler = world(guarded("norm"), Divides, count=1)
    scaler.update(8.0)
    model.give(1.0, 8.0)
    for message in "^_unscale_grads_ was replaced", "already been called":
        with pytest.raises(RuntimeError, match=message):
            scaler.unscale_(optimizer)
        assert model.gradients()[0][0] == 1.0


@pytest.mark.parametrize("found, value", [(1.0, 1.0), (0.0, math.inf), (0.0, 90.0)])
@pytest.mark.parametrize("guards", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_found_inf_that_others_wrote_rules_beside_the_guard(found, value, guards, fused):
    scaler = begun(GradScaler("cpu", 4.0, policy=guarded("norm", guard_flags=0) if guards else "torch"))
    optimizer = sgd([4 * value, 4.0], fused=fused)
    scaler.unscale_(optimizer)
    (tensor,) = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
    tensor.fill_(found)
    scaler.step(optimizer)
    skipped, reason = found == 1 or (guards and value == 90), scaler.reason
    assert scaler.step_was_skipped == skipped == reason.startswith("skipped")
    others = "skipped: overflow; the gradients are finite, so other code has written found_inf"
    assert (reason == others) == (found == 1)
    scaler.update()
    assert scaler.reason == reason and scaler.get_scale() == 4 / (1 + found)


def test_a_guard_without_a_threshold_is_warned_of_until_one_is_loaded():
    with pytest.warns(UserWarning, match="^nothing is guarded by the preset .* without a threshold") as told:
        GradScaler("cpu", policy=Policy("metaseq_skip"))
        scaler = TensorScaler("megatron_skip")
    assert [each.filename for each in told] == [__file__] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler.load_state_dict(GradScaler("cpu", policy=guarded("skip")).state_dict())


def test_what_is_usual_is_known_of_the_last_optimizers_alone():
    one = begun(GradScaler("cpu", policy="guard"))
    for _ in range(200):
        make_step(one, sgd([1.0]))
    assert len(one._guard._usual) <= 64
