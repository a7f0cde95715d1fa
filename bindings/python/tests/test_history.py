# SPDX-License-Identifier: MIT
"""The file of a run: what happened is in it, whatever happens to the file, and it says what was wrong."""

import gzip
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from array import array
from html import escape

import pytest
from support import folded, in_a_forked_child, run_python

import gradscaler
from gradscaler import BadLoss, Loss, Metric, NoteKind, Policy, Report, ReportKind, Scaler, Want
from gradscaler._lines import LEFT_OUT, Run, read
from gradscaler._plot import sketch

posix = pytest.mark.skipif(os.name != "posix", reason="signals, limits and forks of POSIX")


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


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path):
    """The steps of the lines of updates, in the order of the file."""
    return [line["step"] for line in lines(path) if "loss_scale" in line]


def starts(path):
    return [line for line in lines(path) if "start" in line]


def wait_for(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- lines ----


def test_metrics_have_the_names_of_the_core_and_what_is_not_known_is_absent():
    scaler, names = Scaler("torch", guard_norm=100), [metric.name.lower() for metric in Metric]
    metrics = json.loads(json.dumps(scaler.metrics(step(scaler, 3.0, 4.0))))
    assert list(metrics) == [name for name in names if name not in ("zero_share", "bad_loss")]
    assert (metrics["norm"], metrics["skip"], "nan_count" in scaler.metrics()) == (5.0, False, False)


def test_a_history_has_a_start_and_a_line_for_each_step_with_its_metrics(tmp_path):
    path, scaler, known = tmp_path / "run.jsonl", Scaler("torch", growth_interval=4), []
    with scaler.history(path):
        for i in range(30):
            report = step(scaler, 3.0, math.inf if i % 10 == 9 else 4.0)
            known.append(scaler.metrics(report))
    start, *updates = lines(path)
    assert (start["start"], start["step"], start["rank"]) == (gradscaler.__version__, 1, 0)
    assert Policy("none").replace(**{k: v for k, v in start["policy"].items() if k != "preset"}) == scaler.policy
    assert (start["policy"]["preset"], start["state"]["scale"]) == ("torch", 65536)
    assert [line["step"] for line in updates] == list(range(1, 31)) and scaler._history is None
    assert [{**LEFT_OUT, **{k: v for k, v in line.items() if k in known[0] or k in LEFT_OUT}} for line in updates] == [
        {**LEFT_OUT, **metrics} for metrics in known
    ]
    assert {line["run"] for line in lines(path)} == {start["run"]} and abs(updates[-1]["time"] - time.time()) < 60


def test_a_line_of_a_skipped_step_has_events_reason_and_the_names_of_the_bad_arrays(tmp_path):
    path, scaler = tmp_path / "run.jsonl", Scaler("torch")
    grads = {"a": array("f", [1.0]), ("b", "c\n"): array("f", [math.nan, math.inf]), "d": array("f", [2.0])}
    with scaler.history(path):
        scaler.update(scaler.unscale(grads))
    _, line = lines(path)
    assert (line["events"], line["outcome"], line["cause"]) == ("BACKED_OFF|SKIPPED", "SKIPPED", "OVERFLOW")
    assert line["reason"] == scaler.reason
    (tensor,) = line["tensors"]
    assert (tensor["tensor"], tensor["name"], tensor["nan_count"], tensor["inf_count"]) == (1, "b.c\n", 1, 1)
    assert line["tensor_count"] == 3


def test_times_and_names_can_be_left_out(tmp_path):
    path, scaler = tmp_path / "run.jsonl", Scaler("torch")
    with scaler.history(path, times=False, names=False):
        scaler.update(scaler.unscale({"secret": array("f", [math.nan])}))
    assert "secret" not in path.read_text() and "time" not in path.read_text()
    assert lines(path)[-1]["tensors"][0]["tensor"] == 0


def test_your_own_keys_are_in_the_line_of_the_step_also_if_it_is_in_the_file_already(tmp_path):
    path, scaler = tmp_path / "run.jsonl", Scaler("torch")
    with scaler.history(path) as history:
        for loss in 1.25, math.nan:
            step(scaler, 1.0)
            history.add({"loss": loss})
        history.flush()
        history.add({"note": "sp\u00e9cial", "rate": 2})
        with pytest.raises(ValueError, match="'loss_scale': a key is a text, and none that a line has"):
            history.add({"loss_scale": 1})
    assert [line.get("loss") for line in lines(path)] == [None, 1.25, "nan", None]
    names, rows = gradscaler._lines.table(path)
    assert names[-3:] == ["loss", "note", "rate"] and [row.get("rate") for row in rows] == [None, 2]


def test_a_usual_line_has_at_most_400_bytes(tmp_path):
    scaler = Scaler("torch", growth_interval=2000)
    scaler.set_scale(2.0**16, total_updates=12345678, total_growths=123, good_steps=1234, steps_since_change=1234)
    with scaler.history(tmp_path / "run.jsonl"):
        step(scaler, 0.1234567, 1 / 3, want=Want.NORM | Want.AMAX | Want.UNDERFLOW)
    assert len((tmp_path / "run.jsonl").read_bytes().splitlines()[-1]) < 400


def test_a_later_decision_is_a_newer_line_of_the_step(tmp_path):
    path, scaler, other = tmp_path / "run.jsonl", Scaler("recommended"), Scaler("none", guard_norm=4)
    with scaler.history(path):
        step(scaler, 1.0)
        other.update(Report.of_number(9.5))
        scaler.combine_decisions(other)
    assert steps(path) == [1, 1] and lines(path)[-1]["skip"] and list(read(path)["skip"]) == [1]
    assert gradscaler.diagnose(path) == scaler.diagnose()


def test_a_table_of_pandas_is_made_of_the_lines(tmp_path):
    pandas = pytest.importorskip("pandas", reason="NOT TESTED: pandas is not installed")
    run_of(tmp_path / "run.jsonl")
    table = pandas.read_json(tmp_path / "run.jsonl", lines=True)
    table = table[table.loss_scale.notna()]
    assert list(table.step) == list(range(1, 31)) and list(table.loss_scale) == list(
        read(tmp_path / "run.jsonl")["loss_scale"]
    )
    assert list(table.index[table.overflow == True]) == [10, 20, 30]  # noqa: E712


# ---- starts, resumes and rollbacks ----


def test_a_run_that_goes_on_appends_after_the_last_step(tmp_path):
    path = tmp_path / "run.jsonl"
    run_of(path, 10)
    before = path.read_text()
    run_of(path, 5)
    assert path.read_text().startswith(before) and steps(path) == list(range(1, 16))
    assert [start["step"] for start in starts(path)] == [1, 11]
    scaler = Scaler("none")
    with scaler.history(path, step=8):
        step(scaler, 1.0)
    assert steps(path) == [*range(1, 16), 8] and list(read(path)["step"]) == list(range(1, 9))
    assert starts(path)[-1]["policy"]["preset"] == "none"


def test_a_resumed_run_goes_on_after_the_step_of_its_checkpoint(tmp_path):
    path, scaler = tmp_path / "run.jsonl", Scaler("torch")
    with scaler.history(path, step=1000):
        for _ in range(20):
            step(scaler, 1.0)
        saved = scaler.state_dict()
        for _ in range(10):
            step(scaler, 1.0)
        scaler.load_state_dict(saved)
        step(scaler, 2.0)
        assert [start["step"] for start in starts(path)] == [1000]
    assert steps(path)[-2:] == [1029, 1020] and starts(path)[-1]["step"] == 1020
    resumed = Scaler("recommended")
    resumed.load_state_dict(saved)
    with resumed.history(path):
        step(resumed, 3.0)
    assert steps(path)[-1] == 1020 and starts(path)[-1]["state"]["total_updates"] == 20
    assert list(read(path)["step"]) == list(range(1000, 1021)) and read(path)["norm"][-1] == 3.0


def test_new_rules_and_a_new_scale_are_a_start(tmp_path):
    path, scaler = tmp_path / "run.jsonl", Scaler("torch")
    with scaler.history(path) as history:
        step(scaler, 1.0)
        scaler.policy.growth_interval = 7
        step(scaler, 1.0)
        scaler.set_scale(8.0)
        step(scaler, 1.0)
        history.restart(step=1)
        step(scaler, 1.0)
    found = [(start["step"], start["policy"]["growth_interval"], start["state"]["scale"]) for start in starts(path)]
    assert found == [(1, 2000, 65536), (2, 7, 65536), (3, 7, 8), (1, 7, 8)] and steps(path) == [1, 2, 3, 1]


def test_opening_to_continue_reads_only_the_end_of_the_file(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    run_of(path, 10)
    line, read_bytes = path.read_bytes().splitlines(True)[-1], 0
    with path.open("ab") as file:
        file.write(line * 10_000)

    class Counting:
        def __init__(self, file):
            self.file = file

        def read(self, size):
            nonlocal read_bytes
            read_bytes += size
            return self.file.read(size)

        def seek(self, *where):
            return self.file.seek(*where)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

    opened = gradscaler._lines._opened
    monkeypatch.setattr(gradscaler._lines, "_opened", lambda path: Counting(opened(path)))
    assert gradscaler._lines.last_step(str(path)) == (10, 10) and 0 < read_bytes < 100_000


def test_ranks_write_one_file_each_or_rank_0_alone(tmp_path):
    for rank in range(2):
        for name in "all.jsonl", "run-{rank}.jsonl":
            scaler = Scaler("torch")
            with scaler.history(tmp_path / name, rank=rank):
                step(scaler, 1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl", "run-0.jsonl", "run-1.jsonl"]
    assert [starts(tmp_path / f"run-{rank}.jsonl")[0]["rank"] for rank in range(2)] == [0, 1]


# ---- what happens to files and processes ----

KILLED = """
import os, signal, sys, time
from gradscaler import Scaler
scaler, count = Scaler("torch"), int(sys.argv[2])
history = scaler.history(sys.argv[1], interval=0.05).open()
for i in range(10**9):
    scaler.update(i % 50 == 49)
    if i == count:
        print(i, flush=True)
        if len(sys.argv) > 3:
            time.sleep(100)
"""


@posix
def test_a_run_that_is_killed_loses_at_most_100_lines(tmp_path, request):
    """Without an update it loses the lines of the last interval: after one second none."""
    for number in range(40 if request.config.getoption("--long") else 4):
        path, waits = tmp_path / f"{number}.jsonl", number % 2
        count = random.Random(number).randrange(50, 3000)
        program = [sys.executable, "-c", KILLED, str(path), str(count), *["wait"] * waits]
        with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            if waits:
                wait_for(lambda path=path, count=count: steps(path)[-1:] == [count + 1])
            process.send_signal(signal.SIGKILL)
        text = path.read_bytes()
        known = [json.loads(line) for line in text[: text.rindex(b"\n")].splitlines()]
        found = [line["step"] for line in known if "loss_scale" in line]
        assert found == list(range(1, len(found) + 1)) and found[-1] >= count - 100
        with path.open("ab") as file:
            file.write(b'{"step":601,"loss_sc')  # what a system that stops writes last
        assert list(read(path)["step"]) == found
        scaler = Scaler("torch")
        with scaler.history(path):
            step(scaler, 1.0)
        run = Run(path).read()
        assert run.last()["step"] == found[-1] + 1 and len(run.damaged) in (1, 2)
        assert f"left out: {run.damaged[0]}" in run.problem()


def test_a_line_is_written_in_time_without_another_update(tmp_path):
    path, scaler = tmp_path / "run.jsonl", Scaler("torch")
    with scaler.history(path, interval=0.05):
        step(scaler, 1.0)
        wait_for(lambda: steps(path) == [1])


@posix
def test_no_thread_is_left_and_a_forked_child_writes_nothing(tmp_path):
    path, scaler, before = tmp_path / "run.jsonl", Scaler("torch"), threading.active_count()
    with scaler.history(path, interval=0.05) as history:
        step(scaler, 1.0)

        def child():
            step(scaler, 2.0)
            history.add({"loss": 1})
            history.flush()
            history.close()
            return threading.active_count(), scaler._history

        assert in_a_forked_child(child) == (1, None)
        step(scaler, 3.0)
    assert threading.active_count() == before
    assert [line["norm"] for line in lines(path)[1:]] == [1.0, 3.0]
    program = f"""
import threading
from gradscaler import Scaler
scaler = Scaler("torch")
scaler.history({str(path)!r}, interval=0.05).open()
for _ in range(350):
    scaler.update(False)
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (0, "") and steps(path) == list(range(1, 353))


FULL = """
import resource, sys, warnings
from gradscaler import Scaler
path, scaler = sys.argv[1], Scaler("torch")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught, scaler.history(path, interval=100) as history:
    warnings.simplefilter("always")
    for i in range(500):
        scaler.update(i % 50 == 49)
        if i == int(sys.argv[3]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            history.flush()
print(*(warning.message for warning in caught), sep="\\n")
"""


@posix
@pytest.mark.parametrize(("size", "room_at"), [(5_000, 300), (25_001, 250), (25_002, 400), (10**9, 0)])
def test_if_the_disk_is_full_the_training_goes_on_and_the_history_when_there_is_room_again(size, room_at, tmp_path):
    path = tmp_path / "run.jsonl"
    done = run_python("-c", FULL, str(path), str(size), str(room_at))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("has no line of step") == (size < 10**9), done.stdout
    run, known = Run(path).read(), lines(path)
    missing = [line["missing"] for line in known if "missing" in line]
    lost = {step for first, last in missing for step in range(first, last + 1)}
    assert run.damaged == [] and run.missing == len(lost)
    assert sorted({*steps(path), *lost}) == list(range(1, 501)) and not lost & set(steps(path))
    assert run.last()["state"]["total_updates"] == 500 and (run.problem() == "") == (not lost)


@posix
def test_a_file_that_is_renamed_removed_or_has_no_folder_begins_anew(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    path, scaler = folder / "run.jsonl", Scaler("torch")
    with scaler.history(path, interval=100) as history:
        step(scaler, 1.0)
        history.flush()
        path.rename(folder / "old.jsonl")
        step(scaler, 1.0)
        history.flush()
        path.unlink()
        step(scaler, 1.0)
        step(scaler, 1.0)
        history.flush()
        assert (steps(folder / "old.jsonl"), steps(path)) == ([1], [3, 4])
        assert (starts(path)[0]["step"], starts(path)[0]["state"]["total_updates"]) == (3, 2)
        folder.rename(tmp_path / "gone")
        with pytest.warns(UserWarning, match="no line of step 5: No such file or directory; the training") as caught:
            for _ in range(150):
                step(scaler, 1.0)
        assert len(caught) == 1
        folder.mkdir()
    assert lines(path)[1]["missing"] == [5, 54] and steps(path) == list(range(55, 155))
    assert starts(path)[0]["state"]["total_updates"] == 54
    with pytest.warns(UserWarning, match="50 steps have no line, because the file could not be written"):
        assert gradscaler.diagnose(path) == scaler.diagnose()


@posix
def test_two_writers_are_told_apart_and_the_later_one_warns(tmp_path):
    path, one, other = tmp_path / "run.jsonl", Scaler("torch"), Scaler("megatron")
    with one.history(path) as history:
        with pytest.warns(UserWarning, match="another process writes to .*run.jsonl: `run` tells"):
            later = other.history(path).open()
        for _ in range(3):
            step(one, 1.0)
            step(other, 2.0)
            later.flush()
            history.flush()
        later.close()
    assert len(steps(path)) == 6 and len({line["run"] for line in lines(path)}) == 2
    run = Run(path).read()
    assert run.others == 3 and "3 lines of another process" in run.problem() and run.last()["norm"] == 2.0
    assert list(read(path)["norm"]) == [2.0] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Scaler("torch").history(path).open().close()


def test_a_torn_line_inside_is_counted_and_named_and_a_torn_last_line_ignored(tmp_path):
    path, scaler = tmp_path / "run.jsonl", run_of(tmp_path / "run.jsonl", 9)
    whole = path.read_bytes().splitlines(True)
    path.write_bytes(
        b"".join([*whole[:4], whole[4][:50] + b"\n", *whole[5:8], b"x" + whole[8], *whole[9:], whole[9][:99]])
    )
    with pytest.warns(UserWarning, match=r"run.jsonl: 2 damaged lines left out: 5, 9$"):
        assert gradscaler.diagnose(path) == scaler.diagnose()
    assert list(read(path)["step"]) == [1, 2, 3, 5, 6, 7, 9]
    path.write_bytes(b"".join(whole).replace(b'"state":{"good_steps":3', b'"state":["good_steps":3'))  # ends as a line
    assert len(read(path)["step"]) == 7
    path.write_bytes(b"".join(whole[:-1]) + whole[-1].replace(b'"state":{', b'"state":['))
    with pytest.warns(UserWarning, match="1 damaged line left out: 10"):
        gradscaler.diagnose(path)


def test_what_is_no_history_is_refused_and_kept(tmp_path):
    path, scaler = tmp_path / "run.jsonl", Scaler("torch")
    for text in ("a,b\n1,2\n", '{"model": 1}\n', "[1]\n", '{"step": 1}\n', "\0" * 99):
        path.write_text(text)
        with pytest.raises(ValueError, match="run.jsonl is not a history of gradscaler"):
            scaler.history(path).open()
        with pytest.raises(ValueError, match="run.jsonl is not a history of gradscaler"):
            gradscaler.diagnose(path)
        assert path.read_text() == text and scaler._history is None
    for name in "run.csv", "run.jsonl.gz":
        with pytest.raises(ValueError, match="name it .jsonl"):
            scaler.history(tmp_path / name)


def test_a_history_keeps_what_its_path_is(tmp_path):
    scaler = Scaler("torch")
    for path in (tmp_path, "/dev/full", tmp_path / "none" / "run.jsonl"):
        with pytest.raises((ValueError, OSError)):
            scaler.history(path).open()
        assert scaler._history is None
    assert not os.path.isfile("/dev/full")
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    real.touch(mode=0o600)
    link.symlink_to(real)
    history = scaler.history(link).open()
    step(scaler, 1.0)
    history.close()
    assert link.is_symlink() and steps(real) == [1]
    assert real.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="a history already, .*link.jsonl"), scaler.history(link):
        scaler.history(tmp_path / "b.jsonl").open()


def test_a_compressed_file_is_read_also_if_its_end_is_missing(tmp_path):
    run_of(tmp_path / "run.jsonl")
    data = gzip.compress((tmp_path / "run.jsonl").read_bytes())
    for name, packed in ("run.jsonl.gz", data), ("cut.jsonl.gz", data[:-20]):
        (tmp_path / name).write_bytes(packed)
        found = list(read(tmp_path / name)["step"])
        assert found == list(range(1, len(found) + 1)) and len(found) > (29 if packed is data else 5)
    assert gradscaler.diagnose(tmp_path / "run.jsonl.gz") == gradscaler.diagnose(tmp_path / "run.jsonl")


def test_files_of_later_and_earlier_versions_are_read(tmp_path):
    path, scaler = tmp_path / "run.jsonl", Scaler("torch")
    with scaler.history(path):
        for _ in range(20):
            step(scaler, math.inf)
    start, *updates = lines(path)
    start |= {"start": "9.0", "later": [1]}
    start["policy"] |= {"later_rule": 3}
    del start["policy"]["guard_flags"], start["state"]["guard_multiplier"]
    for line in updates:
        line["later"] = line["state"]["later"] = line["report"]["later"] = {"a": 1}
        line.pop("report") if line["step"] < 20 else None
    path.write_text("".join(json.dumps(line) + "\n" for line in [start, *updates]))  # with spaces
    assert gradscaler.diagnose(path) == scaler.diagnose(step_report(scaler)) and len(read(path)["step"]) == 20


def step_report(scaler):
    return scaler.measure([array("f", [math.inf])], want=Want.NORM | Want.AMAX)


# ---- the diagnosis ----

WANTS = [0, Want.NORM, Want.NORM | Want.AMAX, Want.NORM | Want.UNDERFLOW, Want.NORM | Want.AMAX | Want.UNDERFLOW]


def random_policy(r):
    fields = {"growth_interval": r.choice([1, 2, 5, 50]), "init_scale": 2.0 ** r.randrange(-4, 30)}
    if r.random() < 0.5:
        fields["max_failed_backoffs"] = r.choice([2, 8])
        fields["bad_loss_rule"] = BadLoss.HOLD if r.random() < 0.5 else 0
    if r.random() < 0.3:
        fields["min_scale"] = 2.0 ** r.randrange(-3, 4)
    if r.random() < 0.5:
        fields |= {
            "guard_warmup": r.choice([0, 3]),
            "guard_ratio": r.choice([0, 2.0]),
            "guard_norm": r.choice([0, 3.0]),
        }
        fields["guard_norm"] = fields["guard_norm"] or (0 if fields["guard_ratio"] else 4.0)
    if r.random() < 0.2:
        fields["apply_delay"] = 1
    for preset in r.sample(sorted(gradscaler.presets()), 20):
        try:
            return Policy(preset, **fields)
        except ValueError:
            continue
    return Policy("torch")


def random_report(r, scaler):
    kind, loss = r.random(), r.choice([None, 1.0, 1.0, math.nan] if r.random() < 0.5 else [None])
    if kind < 0.1 and not scaler.policy.guards:
        return Report.of_flag(r.random() < 0.3)

    def one():
        values = [r.choice([0.0, 1e-44, 0.5, 2.0, 9.0] + [math.inf, math.nan] * (r.random() < 0.15)) for _ in range(3)]
        names = ["a", "b\u00e9", "c"][: r.randrange(1, 4)]
        grads = {name: array("f", [value * r.choice([1, scaler.loss_scale]) for value in values]) for name in names}
        if r.random() < 0.05:
            grads = {}
        more = {"per_tensor": r.random() < 0.3, "loss": loss}
        return scaler.measure(grads, want=Want.NORM | r.choice(WANTS), **more)

    return [one(), one()] if kind > 0.8 and not scaler.policy.guards else one()


@pytest.mark.filterwarnings("ignore")
def test_a_history_has_the_diagnosis_of_its_scaler(tmp_path, request):
    """Random runs of random policies, with merges, guards, resumes and rollbacks."""
    seen = set()
    for seed in range(1000 if request.config.getoption("--long") else 100):
        r, path = random.Random(seed), tmp_path / f"{seed}.jsonl"
        scaler = Scaler(random_policy(r))
        saved, history = scaler.state_dict(), scaler.history(path).open()
        for i in range(r.randrange(1, 60)):
            report = random_report(r, scaler)
            if isinstance(report, list):
                report = gradscaler._scaler._report_of(report)
            try:
                scaler.update(report)
                planned = r.choice([0, 10, 10**5])
                if r.random() < 0.2 or i > 55:
                    history.flush()
                    found, live = gradscaler.diagnose(path, planned), scaler.diagnose(report, planned_steps=planned)
                    assert [*map(str, found)] == [*map(str, live)], (seed, i)
                    assert [(n.kind, n.field, n.value) for n in found] == [(n.kind, n.field, n.value) for n in live]
                    seen |= {note.kind for note in found}
            except gradscaler.Error:  # a scale of 0 or infinity, or a report that this policy refuses
                scaler = Scaler(random_policy(r))
                history.close()
                history = scaler.history(path).open()
            match r.randrange(20):
                case 0:
                    saved = scaler.state_dict()
                case 1:
                    scaler.load_state_dict(saved)
                case 2:
                    history.close()
                    history = scaler.history(path, step=r.choice([None, 5])).open()
                case 3:
                    scaler.set_scale(2.0 ** r.randrange(0, 20))
        history.close()
    assert len(seen) > 5, seen


def diagnosed_after(tmp_path, scaler, reports, planned_steps=0):
    with scaler.history(tmp_path / "run.jsonl"):
        for report in reports:
            scaler.update(report)
    return gradscaler.diagnose(tmp_path / "run.jsonl", planned_steps)


def test_a_diagnosis_of_a_history_knows_its_guard(tmp_path):
    scaler = Scaler("none", guard_norm=4)
    (found,) = diagnosed_after(tmp_path, scaler, [Report.of_number(9.5)] * 39)
    start = "the guard skipped 39 of 39 steps; the last 39 norms were above the threshold, 4: raise guard_norm, or set"
    assert folded(found).startswith(folded(start))
    assert found == scaler.diagnose(steps=39)[0]


@pytest.mark.parametrize(("preset", "scale", "overflow"), [("keras", 2.0**126, False), ("oneflow", 2.0**-120, True)])
def test_scales_of_0_and_infinity_are_drawn_and_an_empty_history(preset, scale, overflow, tmp_path):
    rules = {} if overflow else {"growth_interval": 1}
    assert diagnosed_after(tmp_path, scaler := Scaler(preset, init_scale=scale, **rules), []) == scaler.diagnose()
    assert sketch(read(tmp_path / "run.jsonl")) == "no steps yet"
    diagnosed_after(tmp_path, scaler, [overflow] * 40)
    assert sketch(read(tmp_path / "run.jsonl")).splitlines()[-1].startswith("step 40, scale ")


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
    scaler = run_of(tmp_path / "run.jsonl", guard_norm=100)
    columns, figure = read(tmp_path / "run.jsonl"), gradscaler.plot(tmp_path / "run.jsonl")
    scale, norm = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in [*scale.lines, *norm.lines]}
    assert list(scale.lines[0].get_ydata()) == list(columns["loss_scale"])
    assert drawn["overflow (3)"] == [columns["loss_scale"][i - 1] for i in (9, 19, 29)]
    assert drawn["guard threshold"][0] == 100
    assert figure.get_suptitle() == "step 30, scale 2^19, 3 overflows, 6 growths"
    assert gradscaler.plot(tmp_path / "run.jsonl", ax=scale) is scale
    report = scaler.measure([array("f", [2.0, 2.0, 2.0**40, 2.0**-46])], histogram=True, unscaled=True)
    bars = gradscaler.plot(tmp_path / "run.jsonl", report=report).axes[-1].patches
    assert {i: bar.get_height() for i, bar in enumerate(bars) if bar.get_height()} == {0: 25, 12: 50, 15: 25}
    with pytest.raises(ValueError, match="histogram=True"):
        gradscaler.plot(tmp_path / "run.jsonl", report=scaler.measure([array("f", [2.0])]))


def test_without_matplotlib_a_plot_is_text(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    run_of(path)
    for name in "matplotlib", "matplotlib.figure":
        monkeypatch.setitem(sys.modules, name, None)
    text = gradscaler.plot(path)
    *blocks, marks, steps, headline = text.splitlines()
    assert text == sketch(read(path)) and set("".join(blocks)) <= set(" ▁▂▃▄▅▆▇█2^0123456789")
    assert [i - 7 for i, mark in enumerate(marks) if mark == "v"] == [9, 19, 29]
    assert (steps.split(), headline) == (["1", "30"], "step 30, scale 2^19, 3 overflows, 6 growths")
