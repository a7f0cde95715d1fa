# SPDX-License-Identifier: MIT
"""A policy that guards, in JAX: a step that it refuses is not taken, and one that it clips is clipped once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscaler
import gradscaler.jax
from gradscaler import Guard
from gradscaler import _gradscaler as core
from gradscaler._structs import Event, Report, State
from gradscaler.jax import PrecisionHandler, Scaler


def gradients(norm):
    return {"w": jnp.array([0.6 * norm, 0, 0], jnp.float32), "b": jnp.array([0.8 * norm], jnp.float32)}


def norm_of(grads):
    return jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))


def test_the_loss_is_a_second_signal(way):
    watch = Scaler("none", guard_ratio=2.0, guard_warmup=2, guard_max_in_a_row=5)
    scaler = Scaler("torch")

    @jax.jit
    def step(scaler, watch, loss):
        watch = watch.update(gradscaler.jax.Report.of_number(loss))
        _, _, scaler = scaler.step(scaler.scale(gradients(1.0)))
        return scaler, watch, scaler.combine_decisions(watch)

    skips = []
    for loss in [1.0, 1.1, 0.9, 5.0, -1.0, jnp.nan, 1.0]:
        scaler, watch, both = step(scaler, watch, loss)
        joined = State()
        core.gsc_state_combine_decisions(None, scaler.to_host().state, watch.to_host().state, joined)
        assert np.asarray(both.state).tobytes() == bytes(joined)
        skips.append(bool(both.skip))
    assert skips == [False, False, False, True, False, True, False]
    assert not bool(scaler.skip) and int(watch.events) & Event.OUTLIER == 0


def test_reports_of_numbers_have_the_bits_of_the_core():
    for number in 0.0, -0.0, 1.5, -2.25, 1e-40, 3e38, np.inf, -np.inf, np.nan:
        expected = Report()
        core.gsc_report_from_number(float(np.float32(number)), expected)
        words = gradscaler.jax.Report.of_number(jnp.float32(number)).words
        assert np.asarray(words).tobytes() == bytes(expected), number
    assert float(gradscaler.jax.Report.of_number(-3.0).norm) == -3
    assert float(gradscaler.jax.Report.of_number(2**40).norm) == 2.0**40
    assert [gradscaler.jax.Report.of(jnp.float32(found)).to_host().overflow for found in (0, 2.5)] == [False, True]


@pytest.mark.parametrize("max_norm, left", [(1.0, 1.0), (30.0, 20.0), (None, 20.0)])
def test_a_norm_that_is_clipped_to_max_norm_is_not_clipped_once_more(max_norm, left):
    scaler = Scaler("none", guard_norm=20.0, guard_flags=Guard.CLIP)
    assert float(norm_of(scaler.step(gradients(40.0), max_norm=max_norm)[0])) == pytest.approx(left)


def of_traced(number):
    return jax.jit(lambda loss: gradscaler.Report.of_number(loss).norm)(number)


@pytest.mark.parametrize(
    "call, argument, kind, match",
    [
        (Scaler("guard").update, False, ValueError, "judges by what a bool does not have: pass a report"),
        (Scaler("openseq2seq_logmax").update, False, ValueError, "judges by what a bool does not have"),
        (Scaler("guard").update, gradscaler.jax.Report.of(True), ValueError, "guards by the norm, which the report la"),
        (jax.jit(Scaler("guard").update), gradscaler.jax.Report.of(False), ValueError, "which the report lacks"),
        (lambda report: report.norm, gradscaler.jax.Report.of(True), ValueError, "the report has no norm"),
        (Scaler("guard").combine_decisions, gradscaler.Scaler("guard"), TypeError, "a gradscaler.jax.Scaler, not gra"),
        (gradscaler.jax.Report.of_number, np.ones(2), ValueError, r"number has the shape \(2,\)"),
        (gradscaler.jax.Report.of_number, np.complex64(3j), TypeError, "number is of complex64: pass a real one"),
        (of_traced, 2.0, TypeError, r"^number=.*: Abstract tracer value .* float32"),
    ],
)
def test_a_signal_that_a_guard_cannot_judge_is_refused_by_a_sentence(call, argument, kind, match):
    with pytest.raises(kind, match=match):
        call(argument)


def test_loops_of_flax_and_eformer_are_told_not_to_step():
    guard = Scaler("none", guard_norm=4.0)
    step = PrecisionHandler("f32", loss_scaler=guard).step(lambda p, factor: p * factor)
    for factor, expected in (1.0, True), (9.0, False):
        params, factor = jnp.float32(1), jnp.float32(factor)
        flaxs = guard.value_and_grad(lambda p: p * factor)(params)  # noqa: B023, called at once
        eformers = step(guard, params, factor)
        assert bool(flaxs.finite) == bool(eformers.grads_finite) == expected
        assert bool(flaxs.scaler.skip) == bool(eformers.loss_scaler.skip) != expected


def test_a_guard_without_a_threshold_is_warned_of_where_it_is_made():
    for make in (
        lambda: Scaler("optax_skip"),
        lambda: Scaler.from_state_dict({"loss_scale": 8.0, "counter": 0}, policy="megatron_skip"),
    ):
        with pytest.warns(UserWarning, match="^nothing is guarded by the preset .* without a threshold") as told:
            make()
        assert told[0].filename == __file__
