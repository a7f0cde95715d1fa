# SPDX-License-Identifier: MIT
"""The policy step inside jit has the bits of the core, and an error of the core becomes a status."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscaler.jax
from gradscaler import _gradscaler as core
from gradscaler._structs import Report, ReportKind, State, Status
from gradscaler.jax import Scaler, _host


def words_of(struct):
    return np.frombuffer(bytes(struct), np.uint32)


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


@pytest.mark.parametrize("preset, fields", [("openseq2seq_logmax", {}), ("torch", {"hysteresis": 2}), ("nemo", GUARD)])
def test_each_step_has_the_bits_of_the_core(way, preset, fields):
    scaler, draw = Scaler(preset, growth_interval=3, **fields), random.Random(preset)
    reports = [report_of(draw.choice([2.0, 3.0, draw.lognormvariate(0, 9), np.inf])) for _ in range(30)]
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
