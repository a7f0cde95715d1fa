# SPDX-License-Identifier: MIT
"""A loss that is Inf or NaN before it is scaled: it skips the step and keeps the scale, if the policy holds."""

import array
import math
import pickle

import numpy as np
import pytest
from support import F32, contents, folded

import gradscaler
from gradscaler import BadLoss, Event, Loss, Policy, Report, Scaler, Want
from gradscaler._lines import read, table
from gradscaler._plot import headline, sketch

BAD = Event.BAD_LOSS | Event.SKIPPED


def ones(count=2):
    return [np.ones(count, F32)]


LOSSES = [
    (2, math.inf),
    (F32(1), F32(math.nan)),
    (np.float16(1), np.float16(math.inf)),
    (np.array(1.0), np.array(-math.inf)),
    (np.ones((2, 3)), np.array([[1, 2], [3, math.nan]], F32)),
    (array.array("d", [1, 2]), array.array("d", [1, math.nan])),
    ([1, 2.0, F32(3)], [1.0, math.inf]),
    ((1.0,), (math.nan, 1.0)),
]


@pytest.mark.parametrize(("good", "bad"), LOSSES, ids=str)
def test_a_loss_is_a_number_or_an_array_of_any_real_dtype(good, bad):
    scaler = Scaler("recommended", init_scale=1.0)
    for loss, expected in (good, Loss.FINITE), (bad, Loss.NOT_FINITE), (None, Loss.UNKNOWN), ([], Loss.UNKNOWN):
        total = [np.zeros(2, F32)]
        reports = [scaler.measure(ones(), loss=loss), scaler.unscale(ones(), loss=loss)]
        reports += [scaler.unscale_accumulate(ones(), total, loss=loss)]
        assert [report.loss for report in reports] == [expected] * 3
        assert not any(report.overflow for report in reports)
        assert total[0].tolist() == [0 if expected == Loss.NOT_FINITE else 1] * 2
        skips = expected == Loss.NOT_FINITE  # unscale_accumulate asks no policy
        assert [report.found_inf for report in reports] == [skips, skips, False]


def test_a_loss_of_a_framework_may_need_a_gradient():
    torch = pytest.importorskip("torch")
    for kind in torch.float32, torch.bfloat16:
        loss = torch.ones(3, dtype=kind, requires_grad=True).sum()
        assert Scaler().measure(ones(), loss=loss).loss == Loss.FINITE
        assert Scaler().measure(ones(), loss=loss * math.inf).loss == Loss.NOT_FINITE


@pytest.mark.parametrize("preset", ["recommended", "guard"])
def test_a_bad_loss_holds_the_scale_until_ten_in_a_row_stop(preset):
    scaler = Scaler(preset)
    scaler.update(scaler.measure(ones(), loss=1.0))
    before = scaler.loss_scale, scaler.state.good_steps, scaler.state.steps_since_change, scaler.state.guard_count
    for count in range(1, 11):
        report = scaler.unscale(ones() if count % 2 else [np.full(2, math.nan, F32)], loss=math.nan)
        assert report.overflow == (count % 2 == 0) and report.found_inf == 1
        assert scaler.update(report) == (BAD if count < 10 else BAD | Event.STOPPED)
        assert scaler.skip and scaler.multiplier == 0
        assert (scaler.total_bad_losses, scaler.total_overflows) == (count, 0)
        metrics = scaler.metrics(report)
        assert (metrics["bad_loss"], metrics["overflow"], metrics["skip"]) == (True, False, True)
        outcome = "stopped" if count == 10 else "skipped"
        reason = f"{outcome}: the loss was not finite before it was scaled" + (
            f", {count} in a row" if count > 1 else ""
        )
        assert folded(scaler.reason).startswith(folded(reason))
    state = scaler.state
    assert before == (scaler.loss_scale, state.good_steps, state.steps_since_change, state.guard_count)
    assert "bad losses 10, " in repr(scaler) and "bad losses" not in repr(Scaler(preset))
    scaler.update(scaler.measure(ones(), loss=1.0))
    assert (state.bad_losses_in_a_row, scaler.total_bad_losses, scaler.reason) == (0, 10, "")


@pytest.mark.parametrize("preset", [name for name in gradscaler.presets() if name not in ("recommended", "guard")])
def test_by_the_rules_of_a_framework_the_gradients_alone_decide(preset):
    rules = {"guard_norm": 9.0} if preset.endswith("_skip") else {}
    told, untold = Scaler(preset, **rules), Scaler(preset, **rules)
    assert told.policy.bad_loss_rule == BadLoss.OVERFLOW
    for value in 1, math.inf, 1:
        for scaler, given in (told, {"loss": math.nan}), (untold, {}):
            report = scaler.measure([np.full(1, value, F32)], **given)
            assert report.found_inf == report.overflow == (value != 1)
            scaler.update(report)
        assert (told.events, told.loss_scale) == (untold.events, untold.loss_scale)
    assert (told.total_bad_losses, told.state.bad_losses_in_a_row, untold.total_bad_losses) == (3, 3, 0)


def test_the_rule_is_a_field_that_needs_a_stop():
    policy = Policy("torch", bad_loss_rule=BadLoss.HOLD, max_failed_backoffs=3)
    assert repr(policy) == "Policy('torch', max_failed_backoffs=3, bad_loss_rule=BadLoss.HOLD)"
    with pytest.raises(gradscaler.Error, match="max_failed_backoffs is 0: it must be above 0 if bad_loss_rule is HOLD"):
        Policy("torch", bad_loss_rule=BadLoss.HOLD)
    scaler = Scaler(policy)
    scaler.update(scaler.measure(ones(), loss=math.inf))
    restored = Scaler("none")
    restored.load_state_dict(scaler.state_dict())
    assert contents(restored) == contents(scaler) == contents(pickle.loads(pickle.dumps(scaler)))
    assert restored.state.bad_losses_in_a_row == 1


def test_a_loss_changes_nothing_else_of_a_report():
    grads = {"a": np.float32([1, 2, math.inf]), "b": np.float32([2.0**-149])}
    options = {"want": sum(Want), "histogram": True, "per_tensor": True, "clip_value": 1.5}
    told = Scaler("torch").unscale({name: each.copy() for name, each in grads.items()}, loss=math.nan, **options)
    untold = Scaler("torch").unscale(grads, **options)
    assert {each.loss for each in told.per_tensor.values()} == {Loss.UNKNOWN}
    assert (told.histogram, told.bad, told._each) == (untold.histogram, untold.bad, untold._each)
    told.loss = Loss.UNKNOWN
    assert bytes(told) == bytes(untold)


def test_a_report_says_its_loss_and_is_saved_with_it():
    report = Scaler().measure(ones(), loss=math.nan)
    assert repr(report) == "Report(overflow=False, elements=2, loss=<Loss.NOT_FINITE: 2>)"
    for other in Report.from_bytes(bytes(report)), pickle.loads(pickle.dumps(report)):
        assert (bytes(other), other.loss) == (bytes(report), Loss.NOT_FINITE)


def test_the_loss_can_be_an_array_that_the_call_overwrites():
    grads = [np.float32([math.nan])]
    assert Scaler("none").unscale([np.float32([4])], out=grads, loss=grads[0]).loss == Loss.NOT_FINITE
    assert grads[0].tolist() == [4]


def test_a_history_has_bad_losses_and_does_not_count_them_as_skips_of_the_guard(tmp_path):
    scaler = Scaler("guard", guard_warmup=2)
    with scaler.history(tmp_path / "run.jsonl"):
        for norm, loss in (1, 1.0), (1, math.nan), (1, None), (99, 2.0), (1, math.inf), (math.nan, None):
            scaler.update(scaler.measure([np.float32([norm])], loss=loss))
    columns, rows = read(tmp_path / "run.jsonl"), table(tmp_path / "run.jsonl")[1]
    assert [cell == 1 for cell in columns["bad_loss"]] == [0, 1, 0, 0, 1, 0] and math.isnan(columns["bad_loss"][2])
    assert [row["total_bad_losses"] for row in rows] == [0, 1, 1, 1, 2, 2]
    assert list(columns["overflow"]) == [0, 0, 0, 0, 0, 1]
    assert headline(columns) == "step 6, scale 2^0, 1 overflow, 2 bad losses, 1 skipped by the guard"
    assert sketch(columns).splitlines()[-3] == " " * 8 + "x xxv"
    pytest.importorskip("matplotlib")
    lines = gradscaler.plot(tmp_path / "run.jsonl").axes[0].lines
    assert [line.get_label() for line in lines[1:]] == ["overflow (1)", "bad loss (2)"]
