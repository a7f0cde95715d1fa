# SPDX-License-Identifier: MIT
"""The guard in Python: outliers are skipped or clipped, two signals joined, and it is said why."""

import array
import copy
import math
import pickle
import warnings
from fractions import Fraction

import pytest
from support import folded

import gradscaler
from gradscaler import Event, Guard, NoteKind, Policy, Report, Scaler, Want


def fed(scaler, *norms):
    """Returns the result of each update."""
    return [scaler.update(Report.of_number(norm)) for norm in norms]


def test_an_outlier_is_skipped_and_said():
    scaler = Scaler("none", guard_ratio=2, guard_warmup=3)
    assert fed(scaler, 1, 1, 1, 2) == [Event(0)] * 4
    assert (scaler.multiplier, scaler.reason) == (1.0, "")
    assert fed(scaler, 9) == [Event.SKIPPED | Event.OUTLIER]
    assert (scaler.multiplier, scaler.total_guard_skips, scaler.total_overflows) == (0.0, 1, 0)
    assert folded(scaler.reason) == folded("skipped: the norm, 9, is above 2.5")
    assert "outliers skipped 1, " in repr(scaler) and "outliers" not in repr(Scaler("torch"))
    fed(scaler, math.nan)
    assert folded(scaler.reason) == folded("skipped: 1 NaN")


def test_unscale_measures_what_a_guard_judges_by_and_clips_by_its_factor():
    scaler = Scaler("static", init_scale=4.0, guard_norm=1.0, guard_flags=Guard.CLIP)
    grads, before = {"a": array.array("f", [12.0]), "b": array.array("f", [16.0])}, scaler.factor
    report = scaler.measure(grads)
    assert (report.norm, report.overflow) == (5.0, False)
    assert scaler.update(report) == Event.OUTLIER | Event.CLIPPED
    assert folded(scaler.reason) == folded("clipped: multiplied by 0.2: the norm, 5, is above 1")
    assert scaler.guard_factor().inverse == scaler.multiplier == 0.2
    clipping = scaler.guard_factor(before)
    assert (clipping.scale, clipping.inverse) == (4.0, 0.25 * 0.2)
    assert scaler.unscale(grads, factor=clipping, want=Want.NORM).norm == pytest.approx(1.0)


def test_decisions_of_two_signals_are_joined():
    scaler, losses = Scaler("torch"), Scaler("none", guard_norm=4)
    scaler.update(False)
    fed(losses, 2.5)
    assert scaler.combine_decisions(losses) == Event(0)
    assert scaler.multiplier == scaler.guard_factor().inverse == 1.0
    fed(losses, 9.5)
    before = scaler.loss_scale, scaler.state.good_steps
    assert scaler.combine_decisions(losses) == Event.SKIPPED | Event.OUTLIER
    assert (scaler.loss_scale, scaler.state.good_steps, scaler.skip) == (*before, True)
    assert scaler.reason == losses.reason
    assert folded(scaler.reason) == folded("skipped: the norm, 9.5, is above 4")
    scaler.update(False)
    assert scaler.reason == ""


HALF, QUARTER = (f"clipped: multiplied by {4 / n:g}: the norm, {n}, is above 4" for n in (8, 16))


def test_the_reason_that_decided_is_the_first_of_those_that_were_joined():
    for norm, loss, reasons in (2, 8, [HALF]), (8, 16, [QUARTER, HALF]), (math.inf, 8, ["skipped: 1 Inf", HALF]):
        norms, losses = (Scaler("none", guard_norm=4, guard_flags=Guard.CLIP) for _ in range(2))
        fed(norms, norm)
        fed(losses, loss)
        norms.combine_decisions(losses)
        assert folded(norms.reason) == folded("; ".join(reasons))


def test_the_report_of_a_number_is_a_value():
    for number in 2.5, -3.0, 0.0:
        report = Report.of_number(number)
        for other in report, copy.copy(report), pickle.loads(pickle.dumps(report)), Report.from_bytes(bytes(report)):
            assert (bytes(other), other.norm, other.overflow) == (bytes(report), number, False)
    assert Report.of_number(math.inf).overflow and Report.of_number(math.nan).overflow


def test_a_number_that_a_guard_cannot_hold_counts_as_infinite():
    for number in 10**400, -(10**400), Fraction(10**400), 2.0**501, -(2.0**501), -math.inf:
        assert bytes(Report.of_number(number)) == bytes(Report.of_number(math.inf)), number
    assert Report.of_number(2**500).norm == 2.0**500


@pytest.mark.parametrize("preset", gradscaler.presets())
def test_a_guard_without_a_threshold_is_warned_of(preset):
    fields = {"guard_max_in_a_row": 5, "guard_flags": Guard.CLIP} if preset == "none" else {}
    what = {name: f"the preset '{name}'" for name in ("megatron_skip", "metaseq_skip", "optax_skip")}
    what["none"] = "guard_max_in_a_row, guard_flags"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Scaler(preset, **fields)
        Scaler(preset, guard_norm=2.0, **fields)  # is not warned of
    assert len(told) == (preset in what) and all(each.filename == __file__ for each in told)
    for each in told:
        start = f"nothing is guarded by {what[preset]} without a threshold: set guard_norm"
        assert str(each.message).startswith(start)


OF_GUARD = {"guard_ratio": "0.0", "guard_decay": "0.0", "guard_warmup": "0", "guard_max_in_a_row": "0"}
OF_GUARD |= {"guard_sample": "GuardSample.AS_IS in the checkpoint, which replaces GuardSample.THRESHOLD"}


def test_a_guard_that_a_checkpoint_replaces_is_in_the_notes():
    for mine, saved, expected in (
        (Policy("torch", guard_norm=5), Policy("torch"), {"guard_norm": "0.0 in the checkpoint, which replaces 5.0"}),
        (Policy("torch", guard_ratio=7), Policy("torch", guard_ratio=5), {"guard_ratio": "5.0"}),
        (Policy("guard"), Policy("none"), OF_GUARD),
        (Policy("recommended"), Policy("guard"), {}),
        (Policy("torch", growth_interval=9), Policy("torch"), {"growth_interval": "2000"}),
    ):
        scaler = Scaler(mine)
        notes = scaler.load_state_dict(Scaler(saved).state_dict())
        assert scaler.notes == notes and scaler.policy == saved
        assert {note.field for note in notes} == expected.keys()
        for note in notes:
            assert note.startswith(f"{note.field} is {expected[note.field]}") and note.kind == NoteKind.CHANGED
            assert note.value == getattr(saved, note.field)
        assert Scaler(mine).load_state_dict(Scaler(mine).state_dict()) == []


def test_a_checkpoint_that_moves_the_scale_of_a_guard_says_so_and_keeps_the_rules_that_it_does_not_say():
    torchs = {"scale": 2048.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 7, "_growth_tracker": 3}
    scaler = Scaler("guard", max_scale=2.0**20)
    rules = {"max_scale": 2.0**20, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 7}
    first, *_ = scaler.load_state_dict(torchs)
    assert first == "the rules of the checkpoint move the scale; the rules of 'guard' never do"
    assert (scaler.preset, scaler.policy) == ("guard", Policy("guard", **rules))
    assert not any("never do" in note for note in Scaler("torch").load_state_dict(torchs))


def test_bits_are_printed_by_their_names():
    assert str(Event.SKIPPED | Event.STOPPED) == "Event.SKIPPED|STOPPED" == f"{Event.SKIPPED | Event.STOPPED!s}"
    assert str(Want.NORM) == "Want.NORM"


def test_a_policy_is_replaced_with_fields_that_are_checked_together():
    changed = Policy("recommended").replace(max_scale=2.0**-20, min_scale=2.0**-30, init_scale=2.0**-22)
    assert (changed.preset, changed.max_scale, changed.hysteresis) == ("recommended", 2.0**-20, 0)
