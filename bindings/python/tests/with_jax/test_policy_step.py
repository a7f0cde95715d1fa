# SPDX-License-Identifier: MIT
"""The policy step inside jit has the bits of the core: for every preset, for policies at random, and at the limits."""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscaler
import gradscaler.jax
from gradscaler import _gradscaler as core
from gradscaler._structs import Report, ReportKind, State, Status
from gradscaler.jax import _host
from gradscaler.jax._words import REPORT

STEPS = 40


def words_of(**fields):
    return np.frombuffer(bytes(Report(**fields)), np.uint32)


def report_words(overflow, squares=0.0, amax=0.0):
    fields = {"overflow": overflow, "found_inf": overflow, "sum_squares": squares, "amax": amax}
    return words_of(kind=ReportKind.TENSORS, measured=7, **fields)


def in_core(policy, state, reports):
    """The states after each report."""
    states = []
    for words in reports:
        core.gsc_state_update(None, policy, state, Report.from_buffer_copy(words.tobytes()), state)
        states.append(bytes(state))
    return states


def in_scan(scaler, reports):
    def step(scaler, words):
        scaler = scaler.update(gradscaler.jax.Report(words))
        return scaler, scaler.state

    return jax.jit(lambda scaler, reports: jax.lax.scan(step, scaler, reports)[1])(scaler, reports)


def assert_same(scaler, reports, found_of):
    state = State.from_buffer_copy(np.asarray(scaler.state).tobytes())
    before = [bytes(state), *(expected := in_core(scaler.policy, state, reports))][:-1]
    before = jnp.asarray(np.stack([np.frombuffer(words, np.uint32) for words in before]))
    found = found_of(scaler, before, jnp.asarray(np.stack(reports)))
    for i, (a, b) in enumerate(zip(expected, np.asarray(found), strict=True)):
        assert repr(State.from_buffer_copy(b.tobytes())) == repr(State.from_buffer_copy(a)), (scaler.policy, i)
        assert b.tobytes() == a


def each_on_host(scaler, states, reports):
    """Every step by itself, of a batch of states and reports, in one call of the host."""
    return jax.jit(jax.vmap(lambda state, report: _host.update(state, report, policy=scaler.policy)))(states, reports)


def scanned(scaler, states, reports):
    return in_scan(scaler, reports)


def random_steps(rng, share):
    return [report_words(rng.random() < share, rng.choice([0.0, 1.0, 1e38, 1e39]), 1.0) for _ in range(STEPS)]


def of_preset(preset):
    return gradscaler.jax.Scaler(
        preset, **({"growth_interval": 3} if gradscaler.Policy(preset).growth_interval else {})
    )


@pytest.mark.parametrize("preset", gradscaler.presets())
def test_every_preset_steps_on_the_host_as_the_core(preset):
    assert_same(of_preset(preset), random_steps(random.Random(preset), 0.3), each_on_host)


@pytest.mark.parametrize("preset", gradscaler.presets())
def test_every_preset_steps_in_a_scan_as_the_core(way, preset):
    assert_same(of_preset(preset), random_steps(random.Random(preset), 0.3), scanned)


def test_a_bool_is_refused_by_a_policy_that_predicts():
    with pytest.raises(ValueError, match="judges by what a bool does not have"):
        gradscaler.jax.Scaler("openseq2seq_logmax").update(False)


def random_policy(rng):
    """Fields at random, as far as they are allowed together."""
    while True:
        fields = {
            "init_scale": rng.choice([1.0, 3.0, 2.0**16, 2.0**-140, 2.0**-149, 2.0**127, 1e300, 1e-300, 0.1]),
            "growth_factor": rng.choice([1.0, 2.0, 3.0, 2**0.001, 1e200, 2.0**40]),
            "backoff_factor": rng.choice([0.0, 0.5, 0.3, 2.0**-30, 1e-200]),
            "growth_interval": rng.choice([0, 1, 2, 3, 7, 2**40]),
            "growth_rule": rng.randrange(4),
            "growth_extra_steps": rng.randrange(3),
            "max_scale": rng.choice([0.0, 2.0**24, 1e10, 3.4e38, 1e305]),
            "min_scale": rng.choice([0.0, 1.0, 2.0**-14, 0.1, 2.0**-126]),
            "ceiling_rule": rng.randrange(5),
            "floor_rule": rng.randrange(5),
            "overflow_test": rng.randrange(2),
            "hysteresis": rng.randrange(4),
            "overflow_reset": rng.randrange(8),
            "apply_delay": rng.randrange(2),
            "overflow_tolerance": rng.choice([0.0, 0.05, 1 / 3, 0.5, 1.0]),
            "max_failed_backoffs": rng.choice([0, 1, 3]),
            "quirks": rng.randrange(4),
            "arithmetic": rng.randrange(4),
        }
        if fields["growth_rule"] == 2 and fields["growth_interval"] > 2**30:
            continue
        try:
            return gradscaler.jax.Scaler("none", **fields)
        except gradscaler.Error:
            continue


@pytest.mark.parametrize("seed", range(18))
def test_policies_at_random_step_as_the_core(way, seed):
    rng = random.Random(seed)
    assert_same(random_policy(rng), random_steps(rng, rng.choice([0.1, 0.5, 0.9])), scanned)


def test_stamps_have_the_bits_of_the_core_along_a_training():
    rng = random.Random(11)
    for preset in "torch", "megatron", "fairseq", "guard":
        scaler = gradscaler.Scaler(preset)
        stamp = jax.jit(functools.partial(_host.stamp, policy=scaler.policy))
        for step in range(6):
            report, stamped = Report(kind=ReportKind.TENSORS, measured=7, sum_squares=3.0), Report()
            core.gsc_report_set_rank(None, report, scaler.policy, scaler.state, 0, stamped)
            words = [np.frombuffer(bytes(struct), np.uint32) for struct in (report, scaler.state)]
            found = stamp(*map(jnp.asarray, words))
            assert np.asarray(found).tobytes() == bytes(stamped), (preset, step)
            report.overflow = rng.random() < 0.3
            scaler.update(report)


LAWFUL = [
    {"kind": ReportKind.TENSORS, "measured": 1, "sum_squares": -0.0},
    {"kind": ReportKind.MERGED},
    {"kind": ReportKind.FLAG},
    {"overflow": 1, "found_inf": 1.0},
    {"kind": ReportKind.TENSORS, "nan_count": 1, "found_inf": 1.0},
]
UNLAWFUL = [
    {},
    {"kind": 5},
    {"kind": ReportKind.TENSORS, "flags": 1},
    {"kind": ReportKind.TENSORS, "measured": 8},
    {"kind": ReportKind.FLAG, "measured": 1},
    {"kind": ReportKind.TENSORS, "number": 1.0},
    {"kind": ReportKind.NUMBER, "number": np.inf},
    {"kind": ReportKind.TENSORS, "sum_squares": -1.0},
    {"kind": ReportKind.TENSORS, "elements": -1},
    {"kind": ReportKind.TENSORS, "inf_count": 1},
    {"kind": ReportKind.TENSORS, "reserved": (0, 1)},
]


@pytest.mark.parametrize("fields", LAWFUL + UNLAWFUL)
def test_the_host_refuses_the_reports_that_the_core_refuses(fields):
    words, scaler, found = jnp.asarray(words_of(**fields)), gradscaler.Scaler("torch"), []
    state = jnp.asarray(np.frombuffer(bytes(scaler.state), np.uint32))
    for call in (
        lambda: _host.update(state, words, policy=scaler.policy),
        lambda: _host.stamp(words, state, policy=scaler.policy),
        lambda: _host.merge(words[None]),
    ):
        made = np.asarray(call()).tobytes()
        found.append((State if len(made) == len(bytes(scaler.state)) else Report).from_buffer_copy(made))
    refused = fields in UNLAWFUL
    assert [each.status for each in found] == [Status.ERROR_REPORT if refused else Status.OK] * 3
    assert not refused or (found[0].skip, found[1].overflow, found[1].digest, found[2].found_inf) == (1, 1, 0, 1.0)
    for call in (
        lambda: scaler.update(Report(**fields)),
        lambda: scaler.set_rank(Report(**fields), 0),
        lambda: gradscaler.Report.merge([Report(**fields)]),
    ):
        if refused:
            with pytest.raises(core.Error, match="report"):
                call()
        else:
            call()


def test_merged_reports_of_ranks_have_the_bits_of_the_core():
    """Who overflowed, who failed, and whether all agree; of sums, exact ones."""
    rng = random.Random(13)
    refused, merges = 0, [jax.jit(functools.partial(_host.merge, addends=addends)) for addends in (False, True)]
    for _ in range(200):
        reports, addends = [], rng.randrange(2)
        for rank in range(rng.randrange(5)):
            kind, measured = rng.choice([ReportKind.TENSORS, ReportKind.MERGED]), rng.choice([7, 7, 1, 6])
            report = Report(kind=kind, measured=measured, sum_squares=rng.randrange(1 << 20))
            report.elements = rng.randrange(1 << 40)
            if rng.random() < 0.3:
                report.nan_count, report.first_tensor, report.overflow, report.found_inf = 1, rng.randrange(9), 1, 1
            elif rng.random() < 0.2:
                report.status, report.overflow, report.found_inf = rng.choice([-7, -9]), 1, 1
            elif rng.random() < 0.1:
                report.overflow = report.found_inf = 1
            report.digest = rng.choice([0, 5, 5, 5, 5 << 40 if rng.random() < 0.3 else 5])
            report.status_rank_plus_1 = report.first_rank_plus_1 = rng.choice([0, rank + 1])
            reports.append(report)
        rows = np.frombuffer(b"".join(map(bytes, reports)), np.uint32).reshape(len(reports), -1 if reports else REPORT)
        found, merged = Report.from_buffer_copy(np.asarray(merges[addends](jnp.asarray(rows))).tobytes()), Report()
        try:
            core.gsc_report_merge(None, rows.tobytes(), addends, None, merged)
        except core.Error as error:
            refused += 1
            assert (found.status, found.overflow) == (error.status, 1) == (Status.ERROR_MISMATCH, 1)
            assert found.status_rank_plus_1 == reports[error.index].status_rank_plus_1
        else:
            assert bytes(found) == bytes(merged)
    assert 20 < refused < 180
