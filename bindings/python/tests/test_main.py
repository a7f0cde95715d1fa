# SPDX-License-Identifier: MIT
"""`python -m gradscaler` tells what runs here, without the frameworks that it tells of."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradscaler
from gradscaler import __main__ as report

FRAMEWORKS = "torch", "jax", "jaxlib", "numpy", "ml_dtypes"


def said(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, text=True, capture_output=True, timeout=60
    )


def lines(text):
    return {line[:12].strip(): line[12:] for line in text.splitlines()}


def test_it_says_what_runs_here():
    done = said("-m", "gradscaler")
    found, info = lines(done.stdout), gradscaler.info()
    assert (done.returncode, done.stderr) == (0, "")
    assert found["gradscaler"] == f"{info.version}, ABI " + ".".join(info.version.split(".")[:2])
    assert Path(found["library"]).samefile(gradscaler._gradscaler.__file__)
    assert found["CPU"].startswith(info.cpu) and all(name in found["CPU"] for name in info.cpu_available)
    assert (found["CUDA"], found["works"]) == (info.cuda, "yes")


def test_it_says_why_the_instruction_set_that_was_asked_for_is_not_used():
    assert "GSC_CPU=abacus cannot run here" in lines(said("-m", "gradscaler", GSC_CPU="abacus").stdout)["CPU"]
    assert lines(said("-m", "gradscaler", GSC_CPU="scalar").stdout)["CPU"].startswith("scalar")


def test_it_knows_the_versions_of_frameworks_without_importing_them():
    program = "import sys; from gradscaler import __main__; __main__.lines(); print(*sys.modules)"
    assert not set(FRAMEWORKS) & set(said("-c", program).stdout.split())
    assert report.installed("numpy") == importlib.metadata.version("numpy")


def test_a_framework_that_is_missing_is_told_with_what_it_is_for(monkeypatch):
    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    assert report.installed("torch") == "not installed; it is for gradscaler.torch"
    assert all(report.lines()[name].startswith("not installed") for name in FRAMEWORKS)


def test_a_library_that_computes_nonsense_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(gradscaler, "Scaler", lambda *_, **more: gradscaler._scaler.Scaler("static", init_scale=2))
    monkeypatch.setattr(sys, "argv", ["gradscaler"])
    assert report.main() == 1
    assert "NO: 8, -4, inf at scale 4 became [4.0, -2.0, inf]" in capsys.readouterr().out


def test_an_argument_is_refused():
    done = said("-m", "gradscaler", "--versoin")
    assert done.returncode == 2 and "--versoin" in done.stderr


def test_help_has_no_markup(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gradscaler", "--help"])
    with pytest.raises(SystemExit):
        report.main()
    printed = capsys.readouterr().out
    assert "python -m gradscaler says what runs here" in printed and "`" not in printed
