# SPDX-License-Identifier: MIT
"""The guard in Python: outliers are skipped or clipped, two signals joined, and it is said why."""

import array
import copy
import json
import math
import pickle

import pytest

from gradscaler import Error, Event, Guard, Policy, Report, Sample, Scaler, Want


def fed(scaler, *norms):
    """What each update returned."""
    return [scaler.update(Report.of_number(norm)) for norm in norms]


def test_an_outlier_is_skipped_and_said():
    scaler = Scaler("none", guard_ratio=2, guard_warmup=3)
    assert fed(scaler, 1, 1, 1, 2) == [Event(0)] * 4
    assert (scaler.multiplier, scaler.reason) == (1.0, "")
    assert fed(scaler, 9) == [Event.SKIPPED | Event.OUTLIER]
    assert (scaler.multiplier, scaler.outliers_skipped, scaler.skipped) == (0.0, 1, 0)
    assert scaler.reason == "skipped: the norm is above 2.5, 1 in a row"
    assert scaler.state.guard_threshold == 2.5
    assert fed(scaler, math.nan) == [Event.SKIPPED | Event.STALLED]
    assert scaler.reason == "skipped: overflow"
    assert "outliers skipped 1, " in repr(scaler)
    assert "outliers" not in repr(Scaler("torch"))


def test_unscale_measures_what_a_guard_judges_by():
    scaler = Scaler("static", init_scale=4.0, guard_norm=1.0, guard_flags=Guard.CLIP)
    grads = {"a": array.array("f", [12.0]), "b": array.array("f", [16.0])}
    before = scaler.factor
    report = scaler.check(grads)
    assert (report.norm, report.overflow) == (5.0, False)
    assert scaler.update(report) == Event.OUTLIER | Event.CLIPPED
    assert scaler.reason == "clipped to 0.2 of it: the norm is above 1, 1 in a row"
    clipping = scaler.guard_factor(before)
    assert (clipping.scale, clipping.inverse) == (4.0, 0.25 * 0.2)
    assert scaler.guard_factor().inverse == scaler.multiplier == 0.2
    assert scaler.unscale(grads, factor=clipping, want=Want.NORM).norm == pytest.approx(1.0)
    assert list(grads["a"]) == pytest.approx([0.6])


def test_what_is_let_through_is_said():
    scaler = Scaler("none", guard_ratio=2, guard_limit=2, guard_sample=Sample.NONE)
    assert fed(scaler, 1, 1, 9, 9)[-1] == Event.OUTLIER
    assert scaler.reason == "let through: the norm is above 2, 2 in a row"
    assert scaler.multiplier == 1.0


def test_a_bool_has_no_norm_to_be_judged_by():
    scaler = Scaler("guard")
    with pytest.raises(Error, match="^report.norm is absent, which this policy judges by"):
        scaler.update(False)
    assert scaler.update(True) == Event.SKIPPED | Event.STALLED
    assert scaler.state.guard_count == 0


def test_decisions_of_two_signals_are_joined():
    scaler = Scaler("torch")
    losses = Scaler("none", guard_norm=4)
    scaler.update(Report())
    losses.update(Report.of_number(2.5))
    assert scaler.join(losses) == Event(0)
    losses.update(Report.of_number(9.5))
    scale, good = scaler.loss_scale, scaler.state.good
    assert scaler.join(losses) == Event.SKIPPED | Event.OUTLIER
    assert (scaler.loss_scale, scaler.state.good, scaler.state.skip_f32) == (scale, good, 1.0)
    with pytest.raises(TypeError, match="^other must be a gradscaler.Scaler, not 3$"):
        scaler.join(3)


@pytest.mark.parametrize("number", [2.5, -3.0, 0.0, 1e-100])
def test_the_report_of_a_number_is_a_value(number):
    report = Report.of_number(number)
    assert report.norm == number and not report.overflow
    for other in copy.copy(report), pickle.loads(pickle.dumps(report)), Report.from_bytes(bytes(report)):
        assert bytes(other) == bytes(report) and other.norm == number
    assert Report.of_number(math.inf).overflow and Report.of_number(math.nan).overflow
    with pytest.raises(TypeError, match="^number='x': expected a number"):
        Report.of_number("x")


def test_guards_and_what_is_refused():
    assert Policy("guard").guards and not Policy("recommended").guards
    assert Policy("torch", guard_sigmas=3).guards
    with pytest.raises(Error, match="^guard_limit is 0: it must be above 0: guard_sample keeps outliers out"):
        Policy("none", guard_ratio=2, guard_sample=Sample.NONE)
    with pytest.raises(Error, match="^guard_ratio is 1: it must be above 1"):
        Policy("none", guard_ratio=1)


def test_a_state_dict_holds_the_statistic():
    scaler = Scaler("none", guard_sigmas=2, guard_decay=0.5)
    fed(scaler, 1, 2, 3)
    saved = json.loads(json.dumps(scaler.state_dict()))
    other = Scaler("none")
    other.load_state_dict(saved)
    assert other.policy == scaler.policy
    assert fed(other, 2, 90, 2) == fed(scaler, 2, 90, 2)
    for name in "mean", "variance", "count", "run", "skips":
        assert getattr(other.state, f"guard_{name}") == getattr(scaler.state, f"guard_{name}")
