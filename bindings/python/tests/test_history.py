# SPDX-License-Identifier: MIT
"""The file of a run: every step is in it, also after a crash, and the file says what was wrong."""

import json
import math
import os
import sys
from array import array
from html import escape

import pytest
from support import folded, run_python

import gradscaler
from gradscaler import Loss, Metric, NoteKind, Report, ReportKind, Scaler, Want
from gradscaler._history import COLUMNS, read
from gradscaler._plot import sketch


def step(scaler, *values, want=Want.NORM | Want.AMAX):
    """One step with gradients that are the values times the scale."""
    grads = array("f", [value * scaler.loss_scale for value in values])
    report = scaler.unscale([grads], want=want)
    scaler.update(report)
    return report


def run_of(path, steps=30, **options):
    scaler = Scaler("torch", growth_interval=4, **options)
    with scaler.history(path):
        for i in range(steps):
            step(scaler, 3.0, math.inf if i % 10 == 9 else 4.0)
    return scaler


def test_metrics_have_the_names_of_the_core_and_what_is_not_known_is_absent():
    scaler, names = Scaler("torch", guard_norm=100), [metric.name.lower() for metric in Metric]
    metrics = json.loads(json.dumps(scaler.metrics(step(scaler, 3.0, 4.0))))
    assert list(metrics) == [name for name in names if name not in ("zero_share", "bad_loss")]
    assert (metrics["norm"], metrics["skip"], "nan_count" in scaler.metrics()) == (5.0, False, False)


def test_a_history_has_a_line_for_each_step(tmp_path):
    path = tmp_path / "run.csv"
    scaler = run_of(path)
    columns = read(path)
    assert (tuple(columns), columns["step"]) == (COLUMNS, list(range(1, 31)))
    assert [i + 1 for i, bad in enumerate(columns["overflow"]) if bad] == [10, 20, 30]
    assert columns["loss_scale"][-1] == scaler.loss_scale and columns["total_growths"][-1] == scaler.total_growths
    assert math.isnan(columns["zero_share"][0]) and scaler._history is None
    rules = {"preset": "torch", "growth_interval": 4}
    (start,) = json.loads((tmp_path / "run.json").read_text())["starts"]
    assert start == {"step": 1, "gradscaler": gradscaler.__version__, "policy": rules}


def test_a_run_that_goes_on_appends(tmp_path):
    path = tmp_path / "run.csv"
    run_of(path, 10)
    before = path.read_text()
    run_of(path, 5)
    assert path.read_text().startswith(before) and read(path)["step"] == list(range(1, 16))
    scaler = Scaler("none")
    with scaler.history(path, step=8):
        step(scaler, 1.0)
    assert path.read_text().splitlines()[:8] == before.splitlines()[:8] and read(path)["step"] == list(range(1, 9))
    starts = json.loads((tmp_path / "run.json").read_text())["starts"]
    assert [(one["step"], one["policy"]["preset"]) for one in starts] == [(1, "torch"), (8, "none")]


@pytest.mark.parametrize(("end", "lines"), [("os.kill(os.getpid(), signal.SIGKILL)", 300), ("", 350)])
def test_a_run_that_was_killed_has_all_lines_up_to_the_last_flush_and_one_that_ended_has_all(end, lines, tmp_path):
    path = tmp_path / "run.csv"
    program = f"""
import os, signal
from gradscaler import Scaler
scaler = Scaler("torch")
history = scaler.history({str(path)!r}).open()
for step in range(350):
    scaler.update(step % 50 == 49)
{end}
"""
    run_python("-c", program)
    assert read(path)["step"] == list(range(1, lines + 1)) and "step" in sketch(read(path))
    path.write_text(path.read_text() + "601,3276")  # a line that was cut off
    scaler = Scaler("torch")
    with scaler.history(path):
        step(scaler, 1.0)
    assert read(path)["step"] == list(range(1, lines + 2))


def test_ranks_write_one_file_each_or_rank_0_alone(tmp_path):
    for rank in range(2):
        for name in "all.csv", "run-{rank}.csv":
            scaler = Scaler("torch")
            with scaler.history(tmp_path / name, rank=rank):
                step(scaler, 1.0)
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["all.csv", "run-0.csv", "run-1.csv"]
    assert read(tmp_path / "all.csv")["step"] == [1]


def test_what_is_no_history_is_refused_and_kept(tmp_path):
    path = tmp_path / "run.csv"
    scaler = Scaler("torch")
    for text in ("a,b\n1,2\n", ",".join(COLUMNS) + "\n1,2\n", ",".join(COLUMNS) + "\n" + "x," * 15 + "x\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match="run.csv is not a history"):
            scaler.history(path).__enter__()
        assert path.read_text() == text
    path.unlink()
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(ValueError, match="run.json is not the rules of a history: move it away"):
        scaler.history(path).__enter__()
    assert scaler._history is None


def test_a_history_keeps_what_its_path_is(tmp_path):
    scaler = Scaler("torch")
    for path in (tmp_path, "/dev/full", tmp_path / "run.json"):
        with pytest.raises((ValueError, OSError)):
            scaler.history(path).open()
    assert not os.path.isfile("/dev/full")
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.touch(mode=0o600)
    link.symlink_to(real)
    history = scaler.history(link).open()
    step(scaler, 1.0)
    history.close()
    assert link.is_symlink() and read(real)["step"] == [1]
    assert real.stat().st_mode & 0o777 == 0o600


def diagnosed_after(tmp_path, scaler, reports, planned_steps=0):
    with scaler.history(tmp_path / "run.csv"):
        for report in reports:
            scaler.update(report)
    return gradscaler.diagnose(tmp_path / "run.csv", planned_steps)


def test_a_diagnosis_of_a_history_knows_its_guard(tmp_path):
    scaler = Scaler("none", guard_norm=4)
    (found,) = diagnosed_after(tmp_path, scaler, [Report.of_number(9.5)] * 39)
    start = "the guard skipped 39 of 39 steps; the last 39 norms were above the threshold, 4: raise guard_norm, or set"
    assert folded(found).startswith(folded(start))
    assert found == scaler.diagnose(steps=39)[0]


@pytest.mark.parametrize(("preset", "scale", "overflow"), [("keras", 2.0**126, False), ("oneflow", 2.0**-120, True)])
def test_scales_of_0_and_infinity_are_drawn_and_an_empty_history(preset, scale, overflow, tmp_path):
    rules = {} if overflow else {"growth_interval": 1}
    assert diagnosed_after(tmp_path, scaler := Scaler(preset, init_scale=scale, **rules), []) == []
    assert sketch(read(tmp_path / "run.csv")) == "no steps yet"
    diagnosed_after(tmp_path, scaler, [overflow] * 40)
    assert sketch(read(tmp_path / "run.csv")).splitlines()[-1].startswith("step 40, scale ")


def test_a_full_disk_ends_the_history_and_not_the_training(tmp_path):
    scaler = Scaler("torch")
    with scaler.history(tmp_path / "run.csv") as history:
        step(scaler, 1.0)
        history.flush()
        history.path = "/dev/full"
        step(scaler, 1.0)
        with pytest.warns(UserWarning, match="/dev/full ends before step 2: .*No space left"):
            history.flush()
        step(scaler, 1.0)
    assert read(tmp_path / "run.csv")["step"] == [1]


def test_a_scaler_has_one_history_at_a_time_and_a_second_program_that_writes_to_it_is_found(tmp_path):
    scaler = Scaler("torch")
    with scaler.history(tmp_path / "run.csv") as history:
        with open(history.path, "a") as other:
            other.write("1,65536.0\n")
        step(scaler, 1.0)
        with pytest.raises(ValueError, match="a history already, .*run.csv"):
            scaler.history(tmp_path / "b.csv").open()
        with pytest.warns(UserWarning, match="ends before step 1: another program writes to it"):
            history.flush()


def test_a_diagnosis_names_the_array_and_says_what_to_do():
    scaler = Scaler("torch", init_scale=1)
    assert scaler.diagnose() == []
    for _ in range(3):
        report = scaler.unscale({"a": array("f", [1.0]), "b": array("f", [math.nan])}, per_tensor=True)
        scaler.update(report)
    (found,) = scaler.diagnose(report)
    assert found.kind == NoteKind.NOT_FINITE
    assert folded(found).startswith(folded("NaN, not Inf, in the gradients of the last 3 steps: no scale makes a NaN"))
    assert folded(found).endswith(folded("the parameters; see docs/skipped.md; look first at 'b'"))


NAN = Report(kind=ReportKind.TENSORS, measured=Want.NORM, elements=1, nan_count=1, overflow=True)
HELD = Report(kind=ReportKind.TENSORS, elements=1, nan_count=1, overflow=True, loss=Loss.NOT_FINITE)
SMALL = Scaler("torch").measure([array("f", [2.0**-149] + [1.0] * 49)], want=Want.UNDERFLOW)
RUNS = [
    ("torch", ([False] * 9 + [True]) * 10, 0, {NoteKind.OVERFLOWS_OFTEN: 0.1}),
    ("torch", [SMALL] * 20, 0, {NoteKind.UNDERFLOWS: 0.02}),
    ("recommended", [NAN] * 60, 100, {NoteKind.NOT_FINITE: 1.0}),
    ("recommended", [False] * 5 + [HELD], 0, {NoteKind.BAD_LOSSES: 1 / 6}),  # its metrics have NaN and no overflow
]


@pytest.mark.parametrize(("preset", "reports", "planned_steps", "notes"), RUNS)
def test_a_diagnosis_of_a_history_finds_what_was_wrong(preset, reports, planned_steps, notes, tmp_path):
    found = diagnosed_after(tmp_path, Scaler(preset, growth_interval=1000), reports, planned_steps)
    assert [note.kind for note in found] == list(notes)
    assert [note.value for note in found] == pytest.approx(list(notes.values()))
    (tmp_path / "run.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"run.json, with the rules of this run, is not there"):
        gradscaler.diagnose(tmp_path / "run.csv")


def test_a_notebook_shows_what_matters_in_its_own_colours():
    scaler = Scaler("torch", guard_norm=2)
    report = step(scaler, 3.0)
    assert scaler.reason
    of_scaler = [
        "Scaler(&#x27;torch&#x27;, guard_norm=2.0)",
        "loss_scale",
        "65536.0",
        escape(scaler.reason),
    ]
    for shown, texts in (
        (scaler, of_scaler),
        (report, ["Report", "overflow", "False", "norm", "3.0"]),
        (scaler.policy, ["Policy torch", "growth_interval", "2000", "guard_norm"]),
        (scaler.measure({"<script>": array("f", [math.nan])}), ["&lt;script&gt;"]),
    ):
        html = shown._repr_html_()
        assert html.startswith("<table>") and html.endswith("</table>")
        assert all(text in html for text in texts), html
        assert "color" not in html and "<script" not in html


def test_a_plot_shows_the_scale_the_norm_and_the_histogram_of_a_report(tmp_path):
    pytest.importorskip("matplotlib")
    scaler = run_of(tmp_path / "run.csv", guard_norm=100)
    columns, figure = read(tmp_path / "run.csv"), gradscaler.plot(tmp_path / "run.csv")
    scale, norm = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in [*scale.lines, *norm.lines]}
    assert list(scale.lines[0].get_ydata()) == columns["loss_scale"]
    assert drawn["overflow (3)"] == [columns["loss_scale"][i - 1] for i in (9, 19, 29)]
    assert drawn["guard threshold"][0] == 100
    assert figure.get_suptitle() == "step 30, scale 2^19, 3 overflows, 6 growths"
    assert gradscaler.plot(tmp_path / "run.csv", ax=scale) is scale
    report = scaler.measure([array("f", [2.0, 2.0, 2.0**40, 2.0**-46])], histogram=True, unscaled=True)
    bars = gradscaler.plot(tmp_path / "run.csv", report=report).axes[-1].patches
    assert {i: bar.get_height() for i, bar in enumerate(bars) if bar.get_height()} == {0: 25, 12: 50, 15: 25}
    with pytest.raises(ValueError, match="histogram=True"):
        gradscaler.plot(tmp_path / "run.csv", report=scaler.measure([array("f", [2.0])]))


def test_without_matplotlib_a_plot_is_text(tmp_path, monkeypatch):
    path = tmp_path / "run.csv"
    run_of(path)
    for name in "matplotlib", "matplotlib.figure":
        monkeypatch.setitem(sys.modules, name, None)
    text = gradscaler.plot(path)
    *blocks, marks, steps, headline = text.splitlines()
    assert text == sketch(read(path)) and set("".join(blocks)) <= set(" ▁▂▃▄▅▆▇█2^0123456789")
    assert [i - 7 for i, mark in enumerate(marks) if mark == "v"] == [9, 19, 29]
    assert (steps.split(), headline) == (["1", "30"], "step 30, scale 2^19, 3 overflows, 6 growths")
