# SPDX-License-Identifier: MIT
"""The policy step inside jit: the bits of the core, errors of the core as a status, and policies that guard."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscaler.jax
from gradscaler import Guard
from gradscaler import _gradscaler as core
from gradscaler._structs import Event, Report, ReportKind, State, Status
from gradscaler.jax import PrecisionHandler, Scaler, _host
from gradscaler.jax._words import of_struct


def struct_of(kind, words):
    return kind.from_buffer_copy(np.asarray(words).tobytes())


def each_on_host(scaler, states, reports):
    """Makes every step by itself, from a batch of states and reports, in one call of the host."""
    return jax.jit(jax.vmap(lambda state, report: _host.update(state, report, policy=scaler.policy)))(states, reports)


def in_a_scan(scaler, states, reports):
    def step(scaler, words):
        scaler = scaler.update(gradscaler.jax.Report(words))
        return scaler, scaler.state

    return jax.jit(lambda scaler, reports: jax.lax.scan(step, scaler, reports)[1])(scaler, reports)


def report_of(norm):
    """Returns the report of a gradient with this norm; Inf is an overflow."""
    fields = {"overflow": norm == np.inf, "found_inf": norm == np.inf, "sum_squares": 0 if norm == np.inf else norm**2}
    return Report(kind=ReportKind.TENSORS, measured=7, amax=1.0, **fields)


GUARD = {"guard_ratio": 3.0, "guard_decay": 0.9, "guard_warmup": 5, "guard_max_in_a_row": 3}


@pytest.mark.parametrize("preset, fields", [("recommended", {}), ("torch", {"hysteresis": 2}), ("nemo", GUARD)])
def test_each_step_has_the_bits_of_the_core(way, preset, fields):
    scaler, draw = Scaler(preset, growth_interval=3, **fields), random.Random(preset)
    reports = [report_of(draw.choice([2.0, 3.0, draw.lognormvariate(0, 9), np.inf])) for _ in range(30)]
    states = [struct_of(State, scaler.state)]
    for report in reports:
        states.append(State())
        core.gsc_state_update(None, scaler.policy, states[-2], report, states[-1])
    before, rows = (np.stack([of_struct(struct) for struct in structs]) for structs in (states[:-1], reports))
    for found_of in [in_a_scan, each_on_host] if way == "jnp" else [in_a_scan]:
        for words, expected in zip(found_of(scaler, before, rows), states[1:], strict=True):
            assert repr(struct_of(State, words)) == repr(expected)
            assert np.asarray(words).tobytes() == bytes(expected)


@pytest.mark.parametrize("fields", [{"kind": ReportKind.TENSORS, "measured": 1, "sum_squares": 4.0}, {"kind": 5}])
def test_a_report_that_the_core_refuses_becomes_a_status_and_skips(fields):
    report, scaler = Report(**fields), gradscaler.Scaler("torch")
    words, state = jnp.asarray(of_struct(report)), jnp.asarray(of_struct(scaler.state))
    moved = struct_of(State, _host.update(state, words, policy=scaler.policy))
    ranked = struct_of(Report, _host.set_rank(words, state, policy=scaler.policy))
    merged = struct_of(Report, _host.merge(words[None]))
    if report.kind == ReportKind.TENSORS:
        core.gsc_report_set_rank(None, report, scaler.policy, scaler.state, 0, report)
        assert bytes(ranked) == bytes(report) and moved.status == merged.status == moved.skip == Status.OK
    else:
        assert moved.status == ranked.status == merged.status == Status.ERROR_REPORT
        assert (moved.skip, ranked.overflow, ranked.digest, merged.found_inf) == (1, 1, 0, 1.0)


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
    for number in 2**600, -(10**400):
        assert gradscaler.jax.Report.of_number(number).to_host().overflow
    assert [gradscaler.jax.Report.of(jnp.float32(found)).to_host().overflow for found in (0, 2.5)] == [False, True]


@pytest.mark.parametrize("max_norm, left", [(1.0, 1.0), (30.0, 20.0), (None, 20.0)])
def test_a_norm_that_is_clipped_to_max_norm_is_not_clipped_once_more(max_norm, left):
    scaler = Scaler("none", guard_norm=20.0, guard_flags=Guard.CLIP)
    assert float(norm_of(scaler.step(gradients(40.0), max_norm=max_norm)[0])) == pytest.approx(left)


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
    with pytest.warns(UserWarning, match="^nothing is guarded by the preset .* without a threshold") as told:
        Scaler("optax_skip")
        Scaler.from_state_dict({"loss_scale": 8.0, "counter": 0}, policy="megatron_skip")
    assert [each.filename for each in told] == [__file__] * 2
