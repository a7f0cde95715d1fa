# SPDX-License-Identifier: MIT
"""The program of a guide's section "A whole loop" prints what the guide says, and resumes with the same bits.

python loops.py GUIDE PROGRAM...
"""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check(guide, run, folder):
    """Trains 300 steps at once and in two parts. run(steps, where) runs the program in a folder and returns its output.

    Returns the folders of both. Numbers that the guide shows can be others on another machine.
    """
    whole, parts = folder / "whole", folder / "parts"
    whole.mkdir()
    parts.mkdir()
    printed = run(300, whole)
    first, second = run(150, parts), run(150, parts)
    (shown,) = re.findall(r"^## A whole loop\n.*?^```text\n(.*?)^```$", (ROOT / guide).read_text(), re.M | re.S)
    assert without_numbers(first + second) == without_numbers(shown), first + second
    assert skipped(first + second) == skipped(printed), printed
    assert printed.endswith(second.removeprefix("".join(skipped(second)))), printed
    return whole, parts


def skipped(printed):
    return [line for line in printed.splitlines(True) if " skipped: " in line]


def without_numbers(text):
    return re.sub(r"\d[\d.e-]*", "0", text)


def same_files(whole, parts):
    """The checkpoints of both folders have the same bytes."""
    names = sorted(path.name for path in whole.iterdir() if path.suffix != ".jsonl")
    assert names
    for name in names:
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name


def command(*words, **environment):
    def run(steps, where):
        ran = subprocess.run(
            [*words, str(steps)], capture_output=True, text=True, env=os.environ | environment, cwd=where, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return run


def script(path):
    """Runs a program in Python in this process, which has imported its packages."""

    def run(steps, where):
        printed, before = io.StringIO(), sys.argv
        sys.argv = [path, str(steps)]
        try:
            with contextlib.chdir(where), contextlib.redirect_stdout(printed):
                runpy.run_path(path, run_name="__main__")
        finally:
            sys.argv = before
        return printed.getvalue()

    return run


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        same_files(*check(sys.argv[1], command(*sys.argv[2:]), Path(folder)))
