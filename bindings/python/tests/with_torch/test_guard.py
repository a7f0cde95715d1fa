# SPDX-License-Identifier: MIT
"""A policy that guards: norms that are finite but absurd are skipped or clipped, by the rule of gradscaler.Scaler."""

import math
import random
import warnings

import pytest
import torch

import gradscaler
from gradscaler import Event, Guard, GuardSample, Policy
from gradscaler import _gradscaler as c
from gradscaler._structs import Report, State
from gradscaler.torch import GradScaler, StallError, TensorScaler

RULES = {
    "skip": {"guard_ratio": 3.0, "guard_decay": 0.9, "guard_warmup": 5, "guard_max_in_a_row": 4},
    "clip": {"guard_sigmas": 3.0, "guard_decay": 0.9, "guard_warmup": 5, "guard_flags": Guard.CLIP},
    "norm": {"guard_norm": 20.0, "guard_flags": Guard.CLIP | Guard.INCLUSIVE, "guard_sample": GuardSample.NONE},
}


def guarded(rule, preset="recommended", **fields):
    return Policy(preset, **{**RULES[rule], **fields})


def norms(seed, count=60):
    chance = random.Random(seed)
    return [
        chance.choice([40.0, 400.0, math.inf]) if chance.random() < 0.2 else 2 + chance.random() for _ in range(count)
    ]


def model_of(count=2):
    model = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(4)) for name in "ab"[:count]})
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def give(model, norm, scale, share=0.5):
    """Gradients of this norm, of whose square `a` has the larger part."""
    parts = (math.sqrt(1 - share), math.sqrt(share)) if len(model) > 1 else (1.0,)
    for part, parameter in zip(parts, model.values(), strict=True):
        parameter.grad = torch.tensor([norm * part * scale, 0, 0, 0])


def by_the_library(policy, series):
    """What gradscaler's own step says of each norm: (multiplier, scale after it)."""
    state, said = State(), []
    c.gsc_state_init(None, policy, state)
    for norm in series:
        model, _ = model_of()
        give(model, norm, state.factor.scale)
        report = Report()
        grads = [p.grad for p in model.values()]
        options = {"policy": policy}
        c.gsc_measure(None, state.factor, c.hold(grads, grads, -1, 0), options, report)
        c.gsc_state_update(None, policy, state, report, state)
        overflow = state.events & Event.SKIPPED and not state.events & Event.OUTLIER
        said.append((0.0 if overflow else state.guard_multiplier, state.factor.scale))
    return said


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_a_loop_does_what_the_library_says_of_its_norms(rule, fused):
    policy, series = guarded(rule), norms(rule)
    model, _ = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, fused=fused, betas=(0.0, 0.0), eps=1e9)  # lr * grad / eps
    scaler, expected = GradScaler("cpu", policy=policy), by_the_library(policy, series)
    scaler.scale(torch.ones(()))
    acted = set()
    for i, (norm, (multiplier, scale)) in enumerate(zip(series, expected, strict=True)):
        give(model, norm, scaler.get_scale())
        before = [p.detach().clone() for p in model.values()]
        scaler.step(optimizer)
        assert scaler.step_was_skipped == (multiplier == 0), (i, scaler.reason)
        for parameter, old in zip(model.values(), before, strict=True):
            assert torch.equal(parameter, old) == (multiplier == 0)
        if multiplier:
            taken = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.values()))
            assert taken == pytest.approx(norm * multiplier, rel=1e-6)
        acted.add("skipped" if multiplier == 0 else "clipped" if multiplier < 1 else "taken")
        reason = scaler.reason
        assert (not reason) == (multiplier == 1) or "let through" in reason
        scaler.update()
        assert scaler.get_scale() == scale
        assert scaler.reason == reason
    assert acted == {"skipped", "taken"} | ({"clipped"} if rule != "skip" else set())


def test_the_reason_names_what_grew():
    model, optimizer = model_of()
    scaler = GradScaler("cpu", policy=guarded("skip"))
    scaler.name_parameters(model)
    scaler.scale(torch.ones(()))
    for _ in range(8):
        give(model, 2.0, scaler.get_scale(), share=0.25)
        scaler.step(optimizer)
        assert not scaler.reason
        scaler.update()
    give(model, 100.0, scaler.get_scale(), share=0.81)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    said = "skipped: the norm, 100, is above 6, 1 in a row; the mean of 8 steps is 2"
    assert scaler.reason == f"{said}; b makes up 81% of its square, usually 25%"
    assert scaler.report.grew == {"b": (pytest.approx(0.25), pytest.approx(0.81))}
    assert scaler.step_was_skipped and not scaler.report.overflow
    scaler.update()
    give(model, math.nan, scaler.get_scale())
    scaler.step(optimizer)
    assert scaler.reason == "skipped: Inf or NaN in the gradients of a, b"


def test_several_optimizers_are_judged_by_the_norm_of_all():
    models, optimizers = zip(*(model_of(1) for _ in range(2)), strict=True)
    scaler = GradScaler("cpu", policy=guarded("norm", guard_flags=0))
    scaler.scale(torch.ones(()))

    def gradients(first, second):
        for model, norm in zip(models, (first, second), strict=True):
            give(model, norm, scaler.get_scale())

    gradients(15.0, 15.0)  # 21 together
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    for optimizer in optimizers:
        scaler.step(optimizer)
    assert scaler.step_was_skipped
    assert all(not p.any() for model in models for p in model.values())
    assert scaler.reason.startswith("skipped: the norm, 21.2132, is above 20, 1 in a row")
    scaler.update()
    gradients(15.0, 15.0)  # looked at one by one, each is judged with those before it
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert models[0]["a"].any() and not models[1]["a"].any()


def test_a_loop_that_clips_by_itself_is_judged_by_what_it_was_before():
    model, optimizer = model_of()
    scaler = GradScaler("cpu", policy=guarded("norm", guard_flags=0))
    scaler.scale(torch.ones(()))
    give(model, 30.0, scaler.get_scale())
    assert scaler.unscale_(optimizer, max_norm=1.0) == pytest.approx(30)
    scaler.step(optimizer)
    assert scaler.step_was_skipped


def test_too_many_outliers_in_a_row_stop():
    model, optimizer = model_of()
    policy = guarded("skip", guard_max_in_a_row=3, guard_flags=Guard.STOP, guard_sample=GuardSample.NONE)
    scaler = GradScaler("cpu", policy=policy)
    scaler.name_parameters(model)
    scaler.scale(torch.ones(()))
    told = r"The last norm was 50; b makes up 81% of its square.* the last 3 norms were above the threshold, 6"
    with pytest.raises(StallError, match=told):
        for i in range(20):
            give(model, 2.0 if i < 6 else 50.0, scaler.get_scale(), share=0.5 if i < 6 else 0.81)
            scaler.step(optimizer)
            scaler.update()
    assert i == 8


def test_a_checkpoint_goes_on_where_it_was():
    policy, series = guarded("clip"), norms(3)
    expected = by_the_library(policy, series)
    model, optimizer = model_of()
    scaler = GradScaler("cpu", policy=policy)
    for norm, (multiplier, scale) in zip(series, expected, strict=True):
        other = GradScaler("cpu")
        other.load_state_dict(scaler.state_dict())
        scaler = other
        scaler.scale(torch.ones(()))
        give(model, norm, scaler.get_scale())
        scaler.step(optimizer)
        assert scaler.step_was_skipped == (multiplier == 0)
        scaler.update()
        assert scaler.get_scale() == scale


@pytest.mark.parametrize("rule", RULES)
def test_a_tensor_scaler_skips_and_clips_as_the_library_says(rule):
    policy, series = guarded(rule), norms(5)
    scaler = TensorScaler(policy)
    for norm, (multiplier, scale) in zip(series, by_the_library(policy, series), strict=True):
        model, _ = model_of()
        give(model, norm, float(scaler.loss_scale))
        gradients = [p.grad for p in model.values()]
        found, _ = scaler.unscale_(gradients)
        assert bool(found) == (multiplier == 0)
        if multiplier:
            assert math.sqrt(sum(float(g.double().square().sum()) for g in gradients)) == pytest.approx(
                norm * multiplier
            )
        scaler.update()
        assert float(scaler.loss_scale) == scale


def test_a_norm_that_the_loop_clips_to_is_not_clipped_once_more():
    clip = guarded("norm")  # to 20
    for max_norm, left in (1.0, 1.0), (30.0, 20.0), (100.0, 20.0):
        model, optimizer = model_of()
        scaler, tensors = GradScaler("cpu", policy=clip), TensorScaler(clip)
        scaler.scale(torch.ones(()))
        give(model, 40.0, scaler.get_scale())
        copies = [p.grad.clone() for p in model.values()]
        scaler.unscale_(optimizer, max_norm=max_norm)
        scaler.step(optimizer)
        tensors.unscale_(copies, max_norm=max_norm)
        for gradients in [p.grad for p in model.values()], copies:
            assert math.sqrt(sum(float(g.square().sum()) for g in gradients)) == pytest.approx(left)


def test_where_one_optimizer_overflows_none_steps():
    models, optimizers = zip(*(model_of(1) for _ in range(2)), strict=True)
    scaler = GradScaler("cpu", policy=guarded("norm"))
    scaler.scale(torch.ones(()))
    for model, norm in zip(models, (math.inf, 1e6), strict=True):
        give(model, norm, scaler.get_scale())
    for optimizer in optimizers:
        scaler.step(optimizer)
    assert all(not p.any() for model in models for p in model.values())


@pytest.mark.parametrize("fused", [False, True])
def test_what_torch_refuses_leaves_the_gradients_alone(fused):
    model, _ = model_of()
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    scaler = GradScaler("cpu", policy=guarded("norm"))
    scaler.scale(torch.ones(()))
    give(model, 40.0, scaler.get_scale())
    before = [p.grad.clone() for p in model.values()]
    if not fused:
        with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
            scaler.step(optimizer, closure=lambda: None)
        assert all(torch.equal(p.grad, old) for p, old in zip(model.values(), before, strict=True))
    scaler.step(optimizer)
    before = [p.grad.clone() for p in model.values()]
    with pytest.raises(RuntimeError, match="step\\(\\) has already been called"):
        scaler.step(optimizer)
    assert all(torch.equal(p.grad, old) for p, old in zip(model.values(), before, strict=True))


def test_the_norm_of_sparse_gradients_is_of_their_sums():
    table = torch.nn.Embedding(2, 1, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    scaler = GradScaler("cpu", policy=guarded("norm", guard_norm=10.0, guard_flags=0))
    scaler.scale(6 * table(torch.tensor([1, 1])).sum()).backward()
    scaler.step(optimizer)
    assert scaler.report.norm == 12 and scaler.step_was_skipped


def test_the_reason_is_of_the_last_step():
    model, optimizer = model_of()
    scaler = GradScaler("cpu", policy=guarded("norm", guard_flags=0))
    scaler.scale(torch.ones(()))
    give(model, 40.0, scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    assert scaler.reason.startswith("skipped")
    give(model, 2.0, scaler.get_scale())
    scaler.unscale_(optimizer)
    assert scaler.reason == ""


def test_a_scaler_that_an_earlier_version_pickled_goes_on():
    scaler = GradScaler("cpu", policy=guarded("skip"))
    state = scaler.__getstate__()
    state["_policy"] = state["_policy"][:152]
    scaler.__setstate__(state)
    assert not scaler._policy.guards and scaler._policy.max_failed_backoffs == 10


class HalfAgain(GradScaler):
    """A program's own class: its gradients are divided by twice the scale."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale / 2, found_inf, allow_fp16)


class Own(GradScaler):
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return {found_inf.device: found_inf}


@pytest.mark.parametrize("kind", [HalfAgain, Own])
@pytest.mark.parametrize("fused", [False, True])
def test_gradients_that_others_unscale_have_no_norm_for_a_guard(kind, fused):
    model, _ = model_of()
    optimizer = torch.optim.Adam(model.values(), fused=fused)
    scaler = kind("cpu", policy=guarded("norm"))
    scaler.scale(torch.ones(()))
    give(model, 3.0, scaler.get_scale())
    before = [p.grad.clone() for p in model.values()]
    with pytest.raises(RuntimeError, match="^_unscale_grads_ was replaced, or called with another inverse, so nobody"):
        scaler.step(optimizer)
    assert all(torch.equal(p.grad, grad) and not p.any() for p, grad in zip(model.values(), before, strict=True))
    kind("cpu").scale(torch.ones(()))


class Divides(GradScaler):
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(inv_scale)
        return {found_inf.device: found_inf}


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_that_others_have_divided_are_not_divided_again(fused):
    model, _ = model_of(1)
    optimizer = torch.optim.Adam(model.values(), fused=fused)
    scaler = Divides("cpu", policy=guarded("norm"))
    scaler.scale(torch.ones(()))
    give(model, 1.0, scaler.get_scale())
    once = model["a"].grad / (1.0 if fused else scaler.get_scale())
    for call in scaler.step, scaler.step, lambda _: scaler.update():
        with pytest.raises(RuntimeError, match="^_unscale_grads_ was replaced"):
            call(optimizer)
        assert torch.equal(model["a"].grad, once) and not model["a"].any()
    scaler.update(8.0)
    give(model, 1.0, 8.0)
    with pytest.raises(RuntimeError, match="^_unscale_grads_ was replaced"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    assert model["a"].grad[0] == 1.0


@pytest.mark.parametrize("found, norm, skipped", [(1.0, 3.0, True), (0.0, math.inf, False), (0.0, 90.0, True)])
def test_found_inf_that_others_wrote_rules_beside_the_guard(found, norm, skipped):
    model, optimizer = model_of()
    scaler = GradScaler("cpu", policy=guarded("norm", guard_flags=0))
    scaler.scale(torch.ones(()))
    give(model, 1.0 if norm == math.inf else norm, scaler.get_scale())
    if norm == math.inf:
        model["a"].grad[0] = math.inf
    scaler.unscale_(optimizer)
    (tensor,) = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
    tensor.fill_(found)
    scaler.step(optimizer)
    assert scaler.step_was_skipped == skipped
    reason = scaler.reason
    assert reason.startswith("skipped") == skipped and ("others wrote it" in reason) == (found != 0)
    scaler.update()
    assert scaler.reason == reason


def test_a_guard_without_a_threshold_is_warned_of():
    for make in (
        lambda: GradScaler("cpu", policy="optax_skip"),
        lambda: GradScaler("cpu", policy=Policy("metaseq_skip")),
        lambda: TensorScaler("megatron_skip"),
    ):
        with pytest.warns(UserWarning, match="^nothing is guarded by the preset .* without a threshold") as told:
            make()
        assert told[0].filename == __file__
    saved = GradScaler("cpu", policy=Policy("recommended", guard_ratio=3)).state_dict()
    with pytest.warns(UserWarning) as told:
        scaler = TensorScaler("megatron_skip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler.load_state_dict(saved)
    with pytest.raises(ValueError, match="device is 'guard', which is a preset: GradScaler"):
        GradScaler("guard")


def test_tensor_scaler_reads_what_the_others_saved():
    other = GradScaler("cpu", policy=Policy("recommended", guard_ratio=3))
    other.scale(torch.ones(()))
    scaler = TensorScaler("recommended", guard_norm=5)
    notes = scaler.load_state_dict(other.state_dict())
    assert notes[0] == "guard_norm is 0.0 in the checkpoint, which replaces 5.0 of this scaler"
    assert scaler.policy.guard_ratio == 3 and scaler.loss_scale == 2.0**16
    for saved in (
        GradScaler("cpu", init_scale=8.0).state_dict(),
        gradscaler.Scaler("torch", init_scale=8.0).state_dict(),
        TensorScaler("torch", init_scale=8.0).state_dict(),
        gradscaler.Scaler("torch", init_scale=8.0).state_dict(format="megatron"),
    ):
        scaler = TensorScaler("torch")
        before = scaler.state.data_ptr()
        scaler.load_state_dict(saved)
        assert scaler.loss_scale == 8.0 and scaler.state.data_ptr() == before
    with pytest.raises(gradscaler.Error, match="keys of no format"):
        scaler.load_state_dict({"weights": 1.0})
    assert scaler.loss_scale == 8.0


def test_what_tensor_scaler_saved_is_read_by_the_others():
    kept = TensorScaler("megatron", init_scale=8.0, guard_ratio=3).state_dict()
    for saved in kept, {"saved": kept["saved"]}:  # of before it had a preset
        for make in gradscaler.Scaler, lambda: GradScaler("cpu"), TensorScaler:
            scaler = make()
            scaler.load_state_dict(saved)
            other = gradscaler.Scaler("none")
            other.load_state_dict(scaler.state_dict())
            assert (other.loss_scale, other.policy.guard_ratio, other.policy.hysteresis) == (8.0, 3.0, 2)
    scaler = TensorScaler()
    scaler.load_state_dict(kept)
    assert repr(scaler.policy) == "Policy('megatron', init_scale=8.0, guard_ratio=3.0)"


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_fails_may_be_made_again_and_clips_once(fused):
    model, _ = model_of(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=fused)
    scaler, failures = GradScaler("cpu", policy=guarded("norm", init_scale=8.0)), [RuntimeError("out of memory")]

    def fails_once(*_):
        if failures:
            raise failures.pop()

    optimizer.register_step_pre_hook(fails_once)
    scaler.scale(torch.ones(()))
    give(model, 80.0, scaler.get_scale())
    with pytest.raises(RuntimeError, match="out of memory"):
        scaler.step(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert model["a"][0].item() == -20.0
    assert not hasattr(optimizer, "grad_scale") and not hasattr(optimizer, "found_inf")
