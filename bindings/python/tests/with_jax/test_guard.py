# SPDX-License-Identifier: MIT
"""A policy that guards, in JAX: each step has the bits of the core, and what it refuses is not stepped."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_policy_step import assert_same, each_on_host, report_words, scanned, words_of

import gradscaler
import gradscaler.jax
from gradscaler import Guard
from gradscaler import _gradscaler as core
from gradscaler._structs import Event, Report, ReportKind, State
from gradscaler.jax import Scaler, scaled, select_tree

POLICIES = {
    "guard": ("guard", {}),
    "ratio": ("recommended", {"guard_ratio": 3.0, "guard_decay": 0.9, "guard_warmup": 5, "guard_max_in_a_row": 3}),
    "sigmas": ("torch", {"guard_sigmas": 2.5, "guard_decay": 0.97, "guard_warmup": 5, "guard_flags": Guard.CLIP}),
    "further": ("none", {"guard_sigmas": 2.5, "guard_decay": 0.9, "guard_flags": Guard.CLIP | Guard.CLIP_PROGRESSIVE}),
    "mean": (
        "none",
        {"guard_sigmas": 3, "guard_flags": Guard.CLIP | Guard.CLIP_TO_MEAN, "guard_max_in_a_row": 4, "guard_sample": 2},
    ),
    "after": (
        "none",
        {"guard_sigmas": 3.0, "guard_decay": 0.9, "guard_flags": Guard.VARIANCE_AFTER_MEAN, "guard_init_mean": 1.0},
    ),
    "stop": ("torch", {"guard_norm": 8.0, "guard_max_in_a_row": 2, "guard_flags": Guard.STOP | Guard.SKIP_IS_GOOD}),
    "corrected": (
        "none",
        {"guard_ratio": 3.0, "guard_decay": 0.9, "guard_max_in_a_row": 3, "guard_flags": Guard.BIAS_CORRECTED},
    ),
    "at": ("torch", {"guard_norm": 4.0, "guard_flags": Guard.INCLUSIVE, "guard_sample": 1}),
}


def series(rng, count=25):
    """Reports of norms with spikes, shifts of level, overflows, and numbers below 0, as those of a loss."""
    level, reports = 2.0, []
    for _ in range(count):
        level *= 4 if rng.random() < 0.03 else 1
        spike = rng.choice([10, 1e10, 1e300, 1e-160]) if rng.random() < 0.15 else 1.0
        norm = rng.choice([4.0, 8.0, 0.0, level * (1 + rng.random())]) * spike
        if rng.random() < 0.1:
            reports.append(words_of(kind=ReportKind.NUMBER, measured=2, number=-norm))
        else:
            reports.append(report_words(rng.random() < 0.1, min(norm * norm, 1e308)))
    return reports


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("found_of", [each_on_host, scanned])
def test_each_step_has_the_bits_of_the_core(name, found_of):
    preset, fields = POLICIES[name]
    assert_same(Scaler(preset, **fields), series(random.Random(name)), found_of)


def gradients(scaler, norm):
    return {"w": jnp.array([0.6 * norm, 0, 0], jnp.float32), "b": jnp.array([0.8 * norm], jnp.float32)}


def trained(scaler, series):
    """Norms that an optimizer got (0: skipped) of a loop in one scan, and the scaler after it."""

    def step(carry, norm):
        scaler, seen = carry
        grads = scaler.scale(gradients(scaler, norm))
        grads, _, scaler = scaler.step(grads)
        taken = jnp.sqrt(sum(jnp.sum(g**2) for g in grads.values()))
        return (scaler, select_tree(scaler.skip, seen, taken)), jnp.where(scaler.skip, 0, taken)

    return jax.jit(lambda s, n: jax.lax.scan(step, (s, jnp.float32(0)), n))(scaler, jnp.asarray(series, jnp.float32))


@pytest.mark.parametrize("name", ["ratio", "sigmas", "stop"])
def test_a_scan_skips_and_clips_as_the_rule_says(way, name):
    preset, fields = POLICIES[name]
    rng = random.Random(name)
    norms = [30.0 if rng.random() < 0.2 else 2 + rng.random() for _ in range(30)]
    (scaler, _), taken = trained(Scaler(preset, **fields), norms)
    model, expected = gradscaler.Scaler(preset, **fields), []
    for norm in norms:
        report = Report(kind=ReportKind.TENSORS, measured=1, sum_squares=float(np.float32(norm)) ** 2)
        core.gsc_state_update(None, model.policy, model.state, report, model.state)
        expected.append(norm * model.state.guard_multiplier)
    np.testing.assert_allclose(taken, expected, rtol=1e-5)
    assert min(expected) < 3 and max(norms) == 30
    assert scaler.to_host().state.total_guard_skips == expected.count(0.0)


def test_the_loss_is_a_second_signal(way):
    watch = Scaler("none", guard_ratio=2.0, guard_warmup=2, guard_max_in_a_row=5)
    scaler = Scaler("torch")

    @jax.jit
    def step(scaler, watch, loss):
        watch = watch.update(gradscaler.jax.Report.of_number(loss))
        _, _, scaler = scaler.step(scaler.scale(gradients(scaler, 1.0)))
        return scaler, watch, scaler.combine_decisions(watch)

    said = []
    for loss in [1.0, 1.1, 0.9, 5.0, -1.0, jnp.nan, 1.0]:
        scaler, watch, both = step(scaler, watch, loss)
        host = [one.to_host().state for one in (scaler, watch)]
        joined = State()
        core.gsc_state_combine_decisions(None, *host, joined)
        assert np.asarray(both.state).tobytes() == bytes(joined)
        said.append(bool(both.skip))
    assert said == [False, False, False, True, False, True, False]
    assert not bool(scaler.skip) and int(watch.events) & Event.OUTLIER == 0
    with pytest.raises(ValueError, match=r"number has the shape \(2,\)"):
        gradscaler.jax.Report.of_number(jnp.ones(2))


def test_a_number_is_a_real_one_of_any_size():
    with pytest.raises(TypeError, match="number is of complex64: pass a real one"):
        gradscaler.jax.Report.of_number(jnp.complex64(3j))
    assert float(gradscaler.jax.Report.of_number(2**40).norm) == 2.0**40


@pytest.mark.parametrize("overflow", [False, True])
def test_a_truth_value_has_no_norm_for_a_guard(overflow):
    report = gradscaler.jax.Report.of(overflow)
    for update in (lambda scaler, report: scaler.update(report), jax.jit(lambda scaler, report: scaler.update(report))):
        with pytest.raises(ValueError, match="the policy guards by the norm, which the report lacks"):
            update(gradscaler.jax.Scaler("guard"), report)
    with pytest.raises(ValueError, match="the report has no norm"):
        _ = report.norm
    assert bool(gradscaler.jax.Scaler("torch").update(report).skip) == overflow


def test_any_truth_value_is_one():
    assert gradscaler.jax.Report.of(jnp.float32(2.5)).to_host().overflow


def test_reports_of_numbers_have_the_bits_of_the_core():
    for number in 0.0, -0.0, 1.5, -2.25, 1e-40, 3e38, np.inf, -np.inf, np.nan:
        expected = Report()
        core.gsc_report_from_number(float(np.float32(number)), expected)
        found = Report.from_buffer_copy(
            np.asarray(gradscaler.jax.Report.of_number(jnp.float32(number)).words).tobytes()
        )
        assert bytes(found) == bytes(expected), (number, repr(found), repr(expected))
    assert float(gradscaler.jax.Report.of_number(-3.0).norm) == -3


def test_optax_skips_what_the_guard_refuses(way):
    optax = pytest.importorskip("optax")
    optimizer = scaled(optax.adam(1e-1), Scaler("none", guard_norm=4.0))
    params = {"w": jnp.zeros(3), "b": jnp.zeros(1)}
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for norm in 1.0, 9.0, 2.0:
        grads = state.scaler.scale(gradients(state.scaler, norm))
        updates, after = update(grads, state, params)
        assert bool(after.scaler.skip) == (norm > 4)
        assert bool(updates["b"].any()) == (norm < 4)
        moments = jax.tree.leaves(after.inner), jax.tree.leaves(state.inner)
        assert all(np.array_equal(a, b) for a, b in zip(*moments, strict=True)) == (norm > 4)
        state = after


def test_a_norm_that_is_clipped_to_max_norm_is_not_clipped_once_more(way):
    for max_norm, left in (1.0, 1.0), (30.0, 20.0), (None, 20.0):
        scaler = Scaler("none", guard_norm=20.0, guard_flags=Guard.CLIP)
        grads, _, _ = scaler.step(gradients(scaler, 40.0), max_norm=max_norm)
        assert float(jnp.sqrt(sum(jnp.sum(g**2) for g in grads.values()))) == pytest.approx(left)


def test_a_bool_and_a_scaler_of_the_host_are_refused_by_a_sentence():
    scaler = Scaler("guard")
    with pytest.raises(ValueError, match="the policy judges by what a bool does not have: pass a report"):
        scaler.update(False)
    with pytest.raises(TypeError, match="expected a gradscaler.jax.Scaler, not gradscaler"):
        scaler.combine_decisions(gradscaler.Scaler("guard"))


def test_a_number_that_is_traced_is_refused_by_the_report_of_the_host():
    with pytest.raises(TypeError, match=r"^number=.*: Abstract tracer value .* float32"):
        jax.jit(lambda loss: gradscaler.Report.of_number(loss).norm)(2.0)


def test_flax_s_loop_is_told_not_to_step(way):
    scaler, params = Scaler("none", guard_norm=4.0), jnp.float32(1)
    found = []
    for factor in 1.0, 9.0:
        scaler, finite, _, _ = jax.jit(lambda s, p, f: s.value_and_grad(lambda p: p * f)(p))(scaler, params, factor)
        found.append(bool(finite))
    assert found == [True, False]


def test_a_guard_without_a_threshold_is_warned_of_where_it_is_made():
    for make in (
        lambda: Scaler("optax_skip"),
        lambda: Scaler.from_state_dict({"loss_scale": 8.0, "counter": 0}, policy="megatron_skip"),
    ):
        with pytest.warns(UserWarning, match="^nothing is guarded by the preset .* without a threshold") as told:
            make()
        assert told[0].filename == __file__
