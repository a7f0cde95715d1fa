# SPDX-License-Identifier: MIT
"""The policy step inside jit has the bits of the core, and an error of the core becomes a status."""

import functools
import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscaler.jax
from gradscaler import Guard
from gradscaler import _gradscaler as core
from gradscaler._structs import Report, ReportKind, State, Status
from gradscaler.jax import Scaler, _host
from gradscaler.jax._words import REPORT

GUARD = {"guard_ratio": 3.0, "guard_decay": 0.9, "guard_warmup": 5, "guard_max_in_a_row": 3}
MEAN = {"guard_sigmas": 3, "guard_flags": Guard.CLIP | Guard.CLIP_TO_MEAN, "guard_max_in_a_row": 4, "guard_sample": 2}
SMALL = {"init_scale": 2.0**-140, "growth_factor": 1.5, "backoff_factor": 0.3, "growth_interval": 2, "arithmetic": 1}
LARGE = {"init_scale": 1e300, "growth_factor": 1e3, "backoff_factor": 1e-200, "growth_interval": 3, "max_scale": 1e305}
POLICIES = {
    "whole": ("torch", {"growth_interval": 3, "hysteresis": 2, "apply_delay": 1}),
    "logmax": ("openseq2seq_logmax", {}),
    "subnormal": ("none", SMALL),
    "beyond float32": ("none", LARGE),
    "guard": ("recommended", GUARD),
    "guard by the mean": ("none", MEAN),
}


def words_of(struct):
    return np.frombuffer(bytes(struct), np.uint32)


def struct_of(kind, words):
    return kind.from_buffer_copy(np.asarray(words).tobytes())


def report_of(norm):
    """Returns the report of a gradient with this norm; Inf is an overflow, and a negative one is a loss."""
    if norm < 0:
        return Report(kind=ReportKind.NUMBER, measured=2, number=norm)
    overflow = math.isinf(norm)
    squares = 0.0 if overflow else min(norm * norm, 1e308)
    fields = {"overflow": overflow, "found_inf": overflow, "sum_squares": squares, "amax": 1.0}
    return Report(kind=ReportKind.TENSORS, measured=7, **fields)


def norms(rng, count=30):
    """Yields norms with spikes, shifts of level and overflows, and losses below 0."""
    level = 2.0
    for _ in range(count):
        level *= 4 if rng.random() < 0.03 else 1
        spike = rng.choice([10, 1e10, 1e300, 1e-160]) if rng.random() < 0.15 else 1.0
        norm = rng.choice([4.0, 8.0, 0.0, level * (1 + rng.random())]) * spike
        kind = rng.random()
        yield math.inf if kind < 0.2 else -norm if kind > 0.9 else norm


def each_on_host(scaler, states, reports):
    """Makes every step by itself, from a batch of states and reports, in one call of the host."""
    return jax.jit(jax.vmap(lambda state, report: _host.update(state, report, policy=scaler.policy)))(states, reports)


def in_a_scan(scaler, states, reports):
    def step(scaler, words):
        scaler = scaler.update(gradscaler.jax.Report(words))
        return scaler, scaler.state

    return jax.jit(lambda scaler, reports: jax.lax.scan(step, scaler, reports)[1])(scaler, reports)


@pytest.mark.parametrize("name", POLICIES)
def test_each_step_has_the_bits_of_the_core(way, name):
    preset, fields = POLICIES[name]
    scaler, reports = Scaler(preset, **fields), [report_of(norm) for norm in norms(random.Random(name))]
    states = [struct_of(State, scaler.state)]
    for report in reports:
        states.append(State())
        core.gsc_state_update(None, scaler.policy, states[-2], report, states[-1])
    before, rows = (np.stack([words_of(struct) for struct in structs]) for structs in (states[:-1], reports))
    for found_of in [in_a_scan, each_on_host] if way == "jnp" else [in_a_scan]:
        for words, expected in zip(found_of(scaler, before, rows), states[1:], strict=True):
            assert repr(struct_of(State, words)) == repr(expected)
            assert np.asarray(words).tobytes() == bytes(expected)


@pytest.mark.parametrize("fields", [{"kind": ReportKind.TENSORS, "measured": 1, "sum_squares": 4.0}, {"kind": 5}])
def test_a_report_that_the_core_refuses_becomes_a_status_and_skips(fields):
    report, scaler = Report(**fields), gradscaler.Scaler("torch")
    words, state = jnp.asarray(words_of(report)), jnp.asarray(words_of(scaler.state))
    moved = struct_of(State, _host.update(state, words, policy=scaler.policy))
    stamped = struct_of(Report, _host.stamp(words, state, policy=scaler.policy))
    merged = struct_of(Report, _host.merge(words[None]))
    if report.kind == ReportKind.TENSORS:
        core.gsc_report_set_rank(None, report, scaler.policy, scaler.state, 0, report)
        assert bytes(stamped) == bytes(report) and moved.status == merged.status == moved.skip == Status.OK
    else:
        assert moved.status == stamped.status == merged.status == Status.ERROR_REPORT
        assert (moved.skip, stamped.overflow, stamped.digest, merged.found_inf) == (1, 1, 0, 1.0)


GOOD = {"kind": ReportKind.TENSORS, "measured": 7, "sum_squares": 9.0, "elements": 1 << 33}
BAD = GOOD | {"nan_count": 1, "first_tensor": 8, "overflow": 1, "found_inf": 1.0, "first_rank_plus_1": 2}


@pytest.mark.parametrize("addends", [False, True])
@pytest.mark.parametrize("reports", [[], [GOOD], [GOOD, BAD, GOOD]], ids=len)
def test_reports_are_merged_to_the_bits_of_the_core(reports, addends):
    reports, expected = [Report(**fields) for fields in reports], Report()
    core.gsc_report_merge(None, b"".join(map(bytes, reports)), addends, None, expected)
    rows = np.array([words_of(report) for report in reports], np.uint32).reshape(-1, REPORT)
    merged = jax.jit(functools.partial(_host.merge, addends=addends))(rows)
    assert np.asarray(merged).tobytes() == bytes(expected)


def test_a_merge_tells_the_rank_with_another_state():
    reports = [Report(**GOOD, digest=digest, status_rank_plus_1=rank) for rank, digest in ((1, 5), (2, 5), (3, 6))]
    merged = struct_of(Report, _host.merge(jnp.stack([words_of(report) for report in reports])))
    assert (merged.status, merged.overflow, merged.status_rank_plus_1) == (Status.ERROR_MISMATCH, 1, 3)
