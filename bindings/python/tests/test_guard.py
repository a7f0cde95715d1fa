# SPDX-License-Identifier: MIT
"""The guard in Python: outliers are skipped or clipped, two signals joined, and it is said why."""

import array
import copy
import json
import math
import pickle
import warnings

import pytest

import gradscaler
from gradscaler import Error, Event, Guard, GuardSample, NoteKind, Policy, Report, Scaler, Want


def fed(scaler, *norms):
    """What each update returned."""
    return [scaler.update(Report.of_number(norm)) for norm in norms]


def test_an_outlier_is_skipped_and_said():
    scaler = Scaler("none", guard_ratio=2, guard_warmup=3)
    assert fed(scaler, 1, 1, 1, 2) == [Event(0)] * 4
    assert (scaler.multiplier, scaler.reason) == (1.0, "")
    assert fed(scaler, 9) == [Event.SKIPPED | Event.OUTLIER]
    assert (scaler.multiplier, scaler.total_guard_skips, scaler.total_overflows) == (0.0, 1, 0)
    assert scaler.reason == "skipped: the norm, 9, is above 2.5, 1 in a row"
    assert scaler.state.guard_threshold == 2.5
    assert fed(scaler, math.nan) == [Event.SKIPPED | Event.BACKOFF_FAILED]
    assert scaler.reason == "skipped: overflow"
    assert "outliers skipped 1, " in repr(scaler)
    assert "outliers" not in repr(Scaler("torch"))


def test_unscale_measures_what_a_guard_judges_by():
    scaler = Scaler("static", init_scale=4.0, guard_norm=1.0, guard_flags=Guard.CLIP)
    grads = {"a": array.array("f", [12.0]), "b": array.array("f", [16.0])}
    before = scaler.factor
    report = scaler.measure(grads)
    assert (report.norm, report.overflow) == (5.0, False)
    assert scaler.update(report) == Event.OUTLIER | Event.CLIPPED
    assert scaler.reason == "clipped: multiplied by 0.2: the norm, 5, is above 1, 1 in a row"
    clipping = scaler.guard_factor(before)
    assert (clipping.scale, clipping.inverse) == (4.0, 0.25 * 0.2)
    assert scaler.guard_factor().inverse == scaler.multiplier == 0.2
    assert scaler.unscale(grads, factor=clipping, want=Want.NORM).norm == pytest.approx(1.0)
    assert list(grads["a"]) == pytest.approx([0.6])


def test_what_is_let_through_is_said():
    scaler = Scaler("none", guard_ratio=2, guard_max_in_a_row=2, guard_sample=GuardSample.NONE)
    assert fed(scaler, 1, 1, 9, 9)[-1] == Event.OUTLIER
    assert scaler.reason == "let through: the norm, 9, is above 2, 2 in a row"
    assert scaler.multiplier == 1.0
    other = Scaler("none")
    other.load_state_dict(scaler.state_dict())
    other.state = scaler.state
    assert other.reason == scaler.reason


def test_a_bool_has_no_norm_to_be_judged_by():
    scaler = Scaler("guard")
    with pytest.raises(Error, match="^report.norm was not measured, and this policy judges by it: pass want=Want.NORM"):
        scaler.update(False)
    assert scaler.update(True) == Event.SKIPPED | Event.BACKOFF_FAILED
    assert scaler.state.guard_count == 0


def test_decisions_of_two_signals_are_joined():
    scaler = Scaler("torch")
    losses = Scaler("none", guard_norm=4)
    scaler.update(False)
    losses.update(Report.of_number(2.5))
    assert scaler.combine_decisions(losses) == Event(0)
    assert scaler.multiplier == scaler.guard_factor().inverse == 1.0
    losses.update(Report.of_number(9.5))
    scale, good = scaler.loss_scale, scaler.state.good_steps
    assert scaler.combine_decisions(losses) == Event.SKIPPED | Event.OUTLIER
    assert (scaler.loss_scale, scaler.state.good_steps, scaler.state.skip_f32) == (scale, good, 1.0)
    assert scaler.reason == losses.reason == "skipped: the norm, 9.5, is above 4, 1 in a row"
    scaler.update(False)
    assert scaler.reason == ""
    with pytest.raises(TypeError, match="^other must be a gradscaler.Scaler, not 3$"):
        scaler.combine_decisions(3)


def test_joined_reasons_are_those_of_the_signals_that_had_one():
    scaler, losses = Scaler("none", guard_norm=10), Scaler("none", guard_norm=4, guard_flags=Guard.CLIP)
    loss = "clipped: multiplied by 0.5: the norm, 8, is above 4, 1 in a row"
    outlier = "skipped: the norm, 20, is above 10, 1 in a row; "
    for norm, own in (3.0, ""), (20.0, outlier), (math.inf, "skipped: overflow; "):
        fed(scaler, norm)
        fed(losses, 2.0, 8.0)
        scaler.combine_decisions(losses)
        assert scaler.reason == own + loss


def test_the_first_of_joined_reasons_is_the_one_that_decided():
    norms, losses = (Scaler("none", guard_norm=4, guard_flags=Guard.CLIP) for _ in range(2))
    half, quarter = (f"clipped: multiplied by {4 / n:g}: the norm, {n}, is above 4, 1 in a row" for n in (8, 16))
    for first, second, said in (
        (8.0, 16.0, f"{quarter}; {half}"),
        (16.0, 8.0, f"{quarter}; {half}"),
        (8.0, math.inf, f"skipped: overflow; {half}"),
    ):
        fed(norms, 2.0, first)
        fed(losses, 2.0, second)
        norms.combine_decisions(losses)
        assert norms.reason == said


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
    with pytest.raises(Error, match="^guard_max_in_a_row is 0: it must be above 0: guard_sample keeps outliers out"):
        Policy("none", guard_ratio=2, guard_sample=GuardSample.NONE)
    for alone in Guard.CLIP_TO_MEAN, Guard.CLIP_PROGRESSIVE | Guard.STOP:
        with pytest.raises(
            Error, match=rf"^guard_flags is {int(alone)}: it must be with CLIP \(1\), where CLIP_PROGRESSIVE"
        ):
            Policy("zclip", guard_flags=alone)
        Policy("zclip", guard_flags=alone | Guard.CLIP)
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
    for name in "guard_mean", "guard_variance", "guard_count", "guard_in_a_row", "total_guard_skips":
        assert getattr(other.state, name) == getattr(scaler.state, name)


@pytest.mark.parametrize(
    "preset, fields, what",
    [
        *((name, {}, f"the preset '{name}'") for name in ("megatron_skip", "metaseq_skip", "optax_skip")),
        ("none", {"guard_max_in_a_row": 5, "guard_flags": Guard.CLIP}, "guard_max_in_a_row, guard_flags"),
    ],
)
def test_a_guard_without_a_threshold_is_warned_of(preset, fields, what):
    with pytest.warns(UserWarning, match=f"^nothing is guarded by {what} without a threshold: set guard_norm") as told:
        Scaler(preset, **fields)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Scaler(preset, guard_norm=2.0, **fields)


def test_all_presets_that_ask_for_a_threshold_are_warned_of():
    warned = []
    for name in gradscaler.presets():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            Scaler(name)
        warned += [name] if told else []
    assert warned == ["megatron_skip", "metaseq_skip", "optax_skip"]


@pytest.mark.parametrize(
    "mine, saved, expected",
    [
        (
            Policy("recommended", guard_norm=5, guard_max_in_a_row=10),
            Policy("recommended"),
            {"guard_norm": "0.0 in the checkpoint, which replaces 5.0", "guard_max_in_a_row": "0 in"},
        ),
        (Policy("torch", guard_ratio=7), Policy("torch", guard_ratio=5), {"guard_ratio": "5.0 in"}),
        (
            Policy("guard"),
            Policy("none"),
            {
                "guard_ratio": "0.0 in",
                "guard_decay": "0.0 in",
                "guard_warmup": "0 in",
                "guard_max_in_a_row": "0 in",
                "guard_sample": "GuardSample.AS_IS in the checkpoint, which replaces GuardSample.THRESHOLD",
            },
        ),
        (Policy("recommended"), Policy("guard"), {}),
        (Policy("torch", growth_interval=9), Policy("torch"), {"growth_interval": "2000 in"}),
    ],
)
def test_a_guard_that_a_checkpoint_replaces_is_in_the_notes(mine, saved, expected):
    state = Scaler(saved).state_dict()
    scaler = Scaler(mine)
    notes = scaler.load_state_dict(state)
    assert scaler.notes == notes and scaler.policy == saved
    assert {note.field: note for note in notes}.keys() == expected.keys()
    for note in notes:
        assert note.startswith(f"{note.field} is {expected[note.field]}") and note.kind == NoteKind.CHANGED
        assert note.value == getattr(saved, note.field)
    assert Scaler(mine).load_state_dict(Scaler(mine).state_dict()) == []


def test_a_checkpoint_that_moves_the_scale_of_a_guard_says_so():
    torchs = {"scale": 2048.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 7, "_growth_tracker": 3}
    scaler = Scaler("guard")
    first, *_ = scaler.load_state_dict(torchs)
    assert first == "the rules of the checkpoint move the scale; the rules of 'guard' never do"
    assert scaler.policy.guard_ratio == 10  # torch's keys say nothing of a guard
    assert not any("never do" in note for note in Scaler("torch").load_state_dict(torchs))


def test_a_policy_that_has_stopped_says_so_and_what_to_do():
    scaler = Scaler("deepspeed", init_scale=1)
    scaler.update(True)
    assert scaler.reason == "skipped: overflow"
    scaler.update(True)
    assert scaler.reason.startswith("stopped: overflow at a loss scale of 1: look for Inf or NaN")
    guarded = Scaler("none", guard_norm=2, guard_max_in_a_row=2, guard_flags=Guard.STOP)
    for outcome in "skipped", "stopped":
        guarded.update(Report.of_number(9))
        assert guarded.reason.startswith(outcome) and "the norm, 9, is above 2" in guarded.reason


def test_bits_are_printed_by_their_names():
    assert str(Event.SKIPPED | Event.STOPPED) == "Event.SKIPPED|STOPPED" == f"{Event.SKIPPED | Event.STOPPED!s}"
    assert str(Want.NORM) == "Want.NORM"


def test_a_policy_is_replaced_with_fields_that_are_checked_together():
    changed = Policy("recommended").replace(max_scale=2.0**-20, min_scale=2.0**-30)
    assert (changed.preset, changed.max_scale, changed.hysteresis) == ("recommended", 2.0**-20, 0)
    with pytest.raises(Error, match="min_scale"):
        Policy("recommended").replace(max_scale=2.0**-20)
