# SPDX-License-Identifier: MIT
"""The command tells what runs here without importing frameworks, and reads files without running code from them."""

import csv
import ctypes
import importlib.metadata
import json
import math
import os
import pickle
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import folded, run_python

import gradscaler
from gradscaler import __main__ as report

# Word of fenv_t, and its bits: FTZ and DAZ of MXCSR; FZ of FPCR.
FLUSH_TO_ZERO = {"x86_64": [(7, 0x8000), (7, 0x0040)], "aarch64": [(0, 1 << 24)]}


def lines(text):
    return {line[:12].strip(): line[12:] for line in text.splitlines()}


def test_it_says_what_runs_here():
    done, info = run_python("-m", "gradscaler"), gradscaler.info()
    found = lines(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert found["gradscaler"] == f"{info.version}, ABI " + ".".join(info.version.split(".")[:2])
    assert Path(found["library"]).samefile(gradscaler._gradscaler.__file__)
    assert found["CPU"].startswith(info.cpu) and all(name in found["CPU"] for name in info.cpu_available)
    assert (found["CUDA"], found["works"]) == (info.cuda, "yes")
    assert (info.cpu in info.cpu_available, info.cpu_note) == (True, "")
    assert info.version == gradscaler.__version__ == importlib.metadata.version("gradscaler")


def test_it_says_why_the_instruction_set_that_was_asked_for_is_not_used():
    assert 'GSC_CPU="abacus" cannot run here' in lines(run_python("-m", "gradscaler", GSC_CPU="abacus").stdout)["CPU"]
    assert lines(run_python("-m", "gradscaler", GSC_CPU="scalar").stdout)["CPU"].startswith("scalar")


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in FLUSH_TO_ZERO, reason="another fenv_t")
def test_it_sees_that_the_thread_flushes_subnormal_numbers():
    libm, before = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
    libm.fegetenv(before)
    for word, bits in FLUSH_TO_ZERO[platform.machine()]:
        flushing = (ctypes.c_uint32 * 8)(*before)
        flushing[word] |= bits
        libm.fesetenv(flushing)
        rows = report.doctor_rows()
        libm.fesetenv(before)
        assert rows["subnormals"].startswith("FLUSHED to zero in this thread") and rows["works"] == "yes"
    assert report.doctor_rows()["subnormals"] == "kept"


def test_it_knows_the_versions_of_frameworks_without_importing_them():
    program = "import sys; from gradscaler import __main__; __main__.doctor_rows(); print(*sys.modules)"
    assert not report.PACKAGES.keys() & set(run_python("-c", program).stdout.split())
    assert report.installed("numpy") == importlib.metadata.version("numpy")


def test_a_framework_that_is_missing_is_told_with_what_it_is_for(monkeypatch):
    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    rows = report.doctor_rows()
    assert rows["torch"] == "not installed; it is for gradscaler.torch"
    assert all(rows[name].startswith("not installed") for name in ("jax", "jaxlib", "numpy", "ml_dtypes"))


def test_a_library_that_computes_nonsense_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(gradscaler, "Scaler", lambda *_, **more: gradscaler._scaler.Scaler("static", init_scale=2))
    monkeypatch.setattr(sys, "argv", ["gradscaler"])
    assert report.main() == 1
    assert "NO: 8, -4, inf at scale 4 became [4.0, -2.0, inf]" in capsys.readouterr().out


def test_help_has_no_markup_and_names_the_commands(capsys):
    with pytest.raises(SystemExit):
        report.main(["--help"])
    printed = capsys.readouterr().out
    assert "python -m gradscaler" in printed and "`" not in printed
    assert all(name in printed for name in ("doctor", "presets", "inspect", "plot", "diagnose", "watch"))


def run(capsys, *arguments):
    status = report.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_presets_are_listed_told_and_compared(capsys, tmp_path):
    status, out, _ = run(capsys, "presets")
    assert status == 0 and [line.split()[0] for line in out.splitlines()] == list(gradscaler.presets())
    rules = dict(line.split(maxsplit=1) for line in run(capsys, "presets", "torch")[1].splitlines())
    assert (rules["growth_interval"], rules["init_scale"]) == ("2000", "65536.0")
    assert "growth_interval  1000 (torch: 2000)\n" in run(capsys, "presets", "megatron", "torch")[1]
    assert json.loads(run(capsys, "presets", "megatron", "torch", "--json")[1])["growth_interval"] == [1000, 2000]
    assert run(capsys, "presets", "torch", "torch")[1] == "no  difference\n"
    status, out, why = run(capsys, "presets", "toch")
    assert (status, out) == (1, "")
    assert folded(why) == folded('gradscaler: preset is "toch", which is no preset: did you mean "torch"?\n')
    settings = tmp_path / "ds.json"
    settings.write_text(json.dumps({"fp16": {"enabled": True, "initial_scale_power": 12}}))
    _, out, _ = run(capsys, "presets", "deepspeed", "--from", settings, "--prefix", "fp16", "--json")
    assert json.loads(out)["init_scale"] == 4096.0
    assert "--from needs the NAME" in run(capsys, "presets", "--from", settings)[2]


TORCH = {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 100, "_growth_tracker": 3}


def as_msgpack(path):
    msgpack = pytest.importorskip("msgpack")
    scale = msgpack.ExtType(1, msgpack.packb(((), "float32", np.float32(1024).tobytes())))
    path.write_bytes(msgpack.packb({**TORCH, "scale": scale}))


def as_safetensors(path):
    head = {"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    head["scale"] = {"dtype": "F32", "shape": [], "data_offsets": [8, 12]}
    head["__metadata__"] = {name: str(value) for name, value in TORCH.items() if name != "scale"}
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + np.float32([3, 3, 1024]).tobytes())


SAVED = {"json": lambda path: path.write_text(json.dumps(TORCH)), "npz": lambda path: np.savez(path, **TORCH)}
SAVED |= {"msgpack": as_msgpack, "safetensors": as_safetensors}
SAVED |= {"pt": lambda path: pytest.importorskip("torch").save({"model": {}, "scaler": TORCH}, path)}


@pytest.mark.parametrize("kind", SAVED)
def test_a_checkpoint_is_inspected_and_what_another_format_would_lose_is_told(kind, capsys, tmp_path):
    path = tmp_path / f"checkpoint.{kind}"
    SAVED[kind](path)
    status, out, err = run(capsys, "inspect", path, "--json")
    found = json.loads(out)
    assert (status, err, found["policy"]) == (0, "", "Policy('torch', growth_interval=100)")
    assert (found["loss_scale"], found["steps_since_change"]) == (1024.0, 3)
    assert folded(found["notes"][0]["message"]).startswith(folded("read as torch"))
    lost = "- growth_rule is Growth.EXACT, which the format deepspeed cannot hold\n"
    assert folded(lost) in folded(run(capsys, "inspect", path, "--as", "deepspeed")[1])


@pytest.mark.parametrize("format", gradscaler.formats())
def test_what_a_checkpoint_does_not_have_is_not_shown(format, capsys, tmp_path):
    scaler, path = gradscaler.Scaler("recommended", guard_norm=9), tmp_path / "checkpoint.json"
    for number in 3, math.inf, 4, math.inf, 5:
        scaler.update(gradscaler.Report.of_number(number))
    try:
        path.write_text(json.dumps(scaler.state_dict(format)))
    except gradscaler.Error:  # a format that saves no state
        return
    shown = json.loads(run(capsys, "inspect", path, "--json", "--format", format)[1])
    found = {name: value for name, value in scaler.metrics().items() if name in shown}
    shown = {name: value for name, value in shown.items() if name not in ("policy", "notes")}
    assert shown == found | {"loss_scale": shown["loss_scale"]}
    assert ("total_backoffs" in shown) is (format == "gradscaler")
    assert ("total_overflows" in shown) is (format in ("gradscaler", "cerebras", "cerebras_cb16"))


def test_weights_beside_a_scaler_are_not_read(capsys, tmp_path):
    path = tmp_path / "checkpoint.npz"
    np.savez(path, **TORCH, weight=np.zeros(20_000, np.float32))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\0" * 40_000, b"\1" * 40_000))  # zipfile would find it damaged
    assert path.read_bytes() != data and run(capsys, "inspect", path)[0] == 0


@pytest.mark.parametrize("kind", SAVED)
def test_a_checkpoint_that_was_cut_off_is_said_to_be(kind, capsys, tmp_path):
    path = tmp_path / f"checkpoint.{kind}"
    SAVED[kind](path)
    path.write_bytes(path.read_bytes()[:-3])
    status, _, err = run(capsys, "inspect", path)
    assert status == 1 and f"{path} is damaged or cut off: " in err and "Errno" not in err


class Evil:
    def __reduce__(self):
        return open, (os.environ["EVIL"], "w")


HOSTILE = {
    "a.json": [b"", b"{", b"[" * 100000, b'{"scale": 1e999}', b'{"scale": "\\ud800"}', b"null"],
    "a.npz": [b"", b"PK\3\4", b"PK\3\4" + b"\0" * 99, b"x" * 99],
    "a.msgpack": [b"", b"\xdf\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\1", b"\x81\xa5scale\xc7\1\1x"],
    "a.safetensors": [
        b"",
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"[]",
        (90).to_bytes(8, "little") + b'{"scale":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}'.ljust(90),
        (60).to_bytes(8, "little") + b'{"scale":{"dtype":"F32","data_offsets":[-9,-5]}}'.ljust(60),
        (60).to_bytes(8, "little") + b'{"scale":{"dtype":[],"data_offsets":"no"}}'.ljust(60),
    ],
    "a.pt": [b"", b"PK\3\4", b"\x80\2.", pickle.dumps({"scale": 1.0})[:-3]],
    "a.txt": [b"", b"scale 1", pickle.dumps(1, 4), b"\x93NUMPY"],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_a_sentence_and_run_nothing(name, capsys, tmp_path, monkeypatch):
    if name in ("a.pt", "a.msgpack"):
        pytest.importorskip({"a.pt": "torch", "a.msgpack": "msgpack"}[name])
    monkeypatch.setenv("EVIL", str(tmp_path / "evil"))
    for data in [*HOSTILE[name], pickle.dumps({"scale": Evil()}, 2)]:
        (tmp_path / name).write_bytes(data)
        status, out, err = run(capsys, "inspect", tmp_path / name)
        assert (status, out) == (1, ""), data[:40]
        assert err.startswith("gradscaler: ") and len(err) < 600, err
    assert not (tmp_path / "evil").exists()


def test_what_is_no_file_is_a_sentence(capsys, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path, "is a directory: name the file in it that has the scaler"),
        (tmp_path / "pipe", "is no regular file"),
        (tmp_path / "none", "cannot be read: No such file or directory"),
    ):
        assert run(capsys, "inspect", path) == (1, "", f"gradscaler: {path} {why}\n")


def test_a_plain_pickle_is_read_without_running_code_from_it(capsys, tmp_path, monkeypatch):
    from collections import OrderedDict

    monkeypatch.setenv("EVIL", str(tmp_path / "evil"))
    for protocol in 2, 4, 5:
        (tmp_path / "a.pt").write_bytes(pickle.dumps({"scaler": OrderedDict(TORCH)}, protocol))
        status, out, _ = run(capsys, "inspect", tmp_path / "a.pt", "--json")
        assert status == 0 and json.loads(out)["loss_scale"] == 1024.0
    for evil in os.getcwd, Evil(), np.float32(3):
        (tmp_path / "a.pt").write_bytes(pickle.dumps({**TORCH, "scale": evil}, 4))
        assert "only code from it could make" in run(capsys, "inspect", tmp_path / "a.pt")[2]
    assert not (tmp_path / "evil").exists()


def test_a_history_is_drawn_watched_and_diagnosed(capsys, tmp_path):
    path, checkpoint, scaler = tmp_path / "run.jsonl", tmp_path / "good.json", gradscaler.Scaler("recommended")
    with scaler.history(path):
        for _ in range(60):
            scaler.update(True)
    for command in ("plot", path), ("watch", path, "--once"):
        status, drawn, _ = run(capsys, *command)
        assert (status, drawn.splitlines()[-1]) == (0, "step 60, scale 2^-14, 60 overflows")
    status, out, _ = run(capsys, "diagnose", path)
    assert status == 1 and out == "".join(f"- {note}\n" for note in scaler.diagnose())
    status, out, _ = run(capsys, "diagnose", path, "--steps", "100000", "--json")
    assert [note["message"] for note in json.loads(out)["notes"]] == scaler.diagnose(planned_steps=100000)
    SAVED["json"](checkpoint)
    assert run(capsys, "diagnose", checkpoint) == (0, "nothing was found\n", "")
    pytest.importorskip("matplotlib")
    assert run(capsys, "plot", path, "-o", tmp_path / "run.png")[0] == 0
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_history_is_written_as_a_table(capsys, tmp_path):
    path, scaler = tmp_path / "run.jsonl", gradscaler.Scaler("recommended")
    with scaler.history(path) as history:
        for i in range(3):
            scaler.update(i == 1)
            history.add({"loss": i / 2, "\33[2J": "=1"})
    _, out, _ = run(capsys, "csv", path)
    table = list(csv.DictReader(out.splitlines()))
    assert [row["loss"] for row in table] == ["0.0", "0.5", "1.0"] and list(table[0])[-1] == r"\x1b[2J"
    assert [(row["skip"], row["total_overflows"], row["norm"]) for row in table] == [
        ("False", "0", ""), ("True", "1", ""), ("False", "1", ""),
    ]  # fmt: skip


NO_HISTORIES = {
    "none.jsonl": (None, "cannot be read: No such file or directory; pass the path of the file"),
    "empty.jsonl": (b"", "is empty: the run has not begun"),
    "rules.jsonl": (b"[]", "is not a history of gradscaler"),
    "old.csv": (b"step,loss_scale\n1,65536\n", "is not a history of gradscaler"),
    "zeros.jsonl": (b"\0" * 5000 + b"\n", "is not a history of gradscaler"),
    "deep.jsonl": (b"[" * 10**6 + b"\n", "is not a history of gradscaler"),
    "cut.jsonl.gz": (b"\x1f\x8b\x08\0", "is not a history of gradscaler"),
}
START = b'{"start":"0.10.0","step":1,"policy":{"preset":"torch"},"state":{"scale":65536}}\n'
LINE = b'{"step":1,"loss_scale":SCALE,"state":{"total_updates":UPDATES},"report":{"kind":KIND}}\n'


@pytest.mark.parametrize("name", NO_HISTORIES)
def test_what_is_no_history_is_one_sentence_with_its_path(name, capsys, tmp_path):
    data, why = NO_HISTORIES[name]
    if data is not None:
        (tmp_path / name).write_bytes(data)
    for command in ("plot",), ("watch", "--once"), ("diagnose",), ("csv",):
        is_checkpoint = name == "old.csv" and command == ("diagnose",)
        begins = f"gradscaler: {tmp_path / name} {'is of no kind that is read' if is_checkpoint else why}"
        status, out, err = run(capsys, command[0], tmp_path / name, *command[1:])
        assert (status, out) == (2 if command == ("diagnose",) else 1, ""), command
        assert folded(err).startswith(folded(begins)) and err.count("\n") == 1, err


@pytest.mark.parametrize(
    "values",
    [("1e400", "1", "1"), ('"x"', "1", "1"), ("8", "1e30", "1"), ("8", "1", "77"), ("8", "[]", "1"), ("8", "-9", "1")],
)
def test_a_history_with_damaged_numbers_is_a_sentence_or_a_finding(values, capsys, tmp_path):
    line = LINE
    for name, value in zip((b"SCALE", b"UPDATES", b"KIND"), values, strict=True):
        line = line.replace(name, value.encode())
    (tmp_path / "run.jsonl").write_bytes(START + line)
    for command in ("plot",), ("watch", "--once"), ("diagnose",), ("diagnose", "--json"), ("csv",):
        status, out, err = run(capsys, command[0], tmp_path / "run.jsonl", *command[1:])
        assert status in (0, 1, 2) and "Traceback" not in err and err.count("\n") <= 1
        assert "--json" not in command or status == 2 or json.loads(out, parse_constant=pytest.fail)


def test_what_a_file_says_does_not_reach_the_terminal_raw(capsys, tmp_path):
    evil = "\33]0;evil\7\u202e\x9b2J"
    scaler, path = gradscaler.Scaler("torch", init_scale=1), tmp_path / f"{evil}.jsonl"
    with scaler.history(path) as history:
        scaler.update(scaler.unscale({evil: np.float32([math.nan])}))
        history.add({evil: evil})
    with path.open("a") as file:
        file.write(f"{evil}\n")
    (tmp_path / "a.json").write_text(json.dumps({**TORCH, evil: 1}))
    commands = [("plot", path), ("watch", path, "--once"), ("diagnose", path), ("csv", path), ("plot", tmp_path / evil)]
    for command in [*commands, ("inspect", tmp_path / "a.json"), ("diagnose", tmp_path / evil)]:
        _, out, err = run(capsys, *command)
        assert not set(out + err) & set("\33\7\u202e\x9b"), command


def test_infinity_is_text_in_json(capsys, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({**TORCH, "scale": math.inf}))
    out = run(capsys, "inspect", tmp_path / "a.json", "--json")[1]
    assert json.loads(out, parse_constant=pytest.fail)["loss_scale"] == "inf"


def test_watch_waits_for_its_file_and_shows_lines_as_they_come(tmp_path):
    path, scaler = tmp_path / "run.jsonl", gradscaler.Scaler("torch")
    command = [sys.executable, "-u", "-m", "gradscaler", "watch", str(path), "--seconds", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stderr.readline() == f"waiting for {path}\n"
            for folder in range(2):  # the second time the file is a new one
                with scaler.history(path, interval=0.05, step=1):
                    for i in range(1, 4):
                        scaler.update(False)
                        while not (line := watcher.stdout.readline()).startswith(f"step {i}, "):
                            assert line
                path.rename(tmp_path / f"{folder}.jsonl")
        finally:
            watcher.kill()


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as done:
        report.main(["--version"])
    assert (done.value.code, capsys.readouterr().out) == (0, f"gradscaler {gradscaler.__version__}\n")


def test_the_doctor_says_what_each_device_of_torch_gets():
    pytest.importorskip("torch")
    assert lines(run_python("-m", "gradscaler").stdout)["torch cpu"] == "kernels"
    rows = json.loads(run_python("-m", "gradscaler", "doctor", "--json", GSC_TORCH_PATH="torch").stdout)
    assert rows["torch cpu"] == "torch's operations: GSC_TORCH_PATH chooses them" and rows["works"] == "yes"


def test_the_doctor_compares_only_devices_of_nvidia():
    done = run_python("-m", "gradscaler", "doctor", "--device", "mps")
    assert done.returncode == 1 and folded('--device is "mps"') in folded(done.stderr)
