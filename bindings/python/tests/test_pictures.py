# SPDX-License-Identifier: MIT
"""The pictures and printed texts of docs/runs.md show the runs that the core computes."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradscaler import _lines

pytest.importorskip("matplotlib")
pictures = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "examples/pictures.py")))


def words(svg):
    return re.findall(r">([^<>]+)</(?:text|tspan)>", svg)


def numbers(svg):
    paths = re.findall(r'(?: d|x|y)="([^"]*)"', svg)
    return [float(number) for path in paths for number in re.findall(r"-?\d+\.?\d*", path)]


@pytest.mark.parametrize("name", [*pictures.RUNS, "bad-losses"])
def test_a_picture_shows_the_run_that_the_core_computes(name, tmp_path):
    committed = (pictures.DOCS / f"run-{name}.svg").read_text()
    if name in pictures.RUNS:
        pictures.draw(pictures.record(name, tmp_path), tmp_path / "run.svg")
    else:
        pictures.draw_bad_losses(tmp_path / "run.svg")
    drawn = (tmp_path / "run.svg").read_text()
    assert words(drawn) == words(committed), "run ci/pictures"
    assert numbers(drawn) == pytest.approx(numbers(committed), abs=0.1), "run ci/pictures"


def test_pictures_are_small_and_have_dark_colours():
    for path in pictures.DOCS.glob("*.svg"):
        assert path.stat().st_size <= 60_000 and "prefers-color-scheme" in path.read_text(), path.name


@pytest.mark.wording
def test_the_guide_has_what_the_command_prints(tmp_path):
    histories = {name: pictures.record(name, tmp_path) for name in pictures.RUNS}
    assert pictures.guide(histories) == pictures.GUIDE.read_text(), "run ci/pictures"
    for command in "diagnose good.jsonl", "watch --once good.jsonl", "diagnose spikes.jsonl", "diagnose stalled.jsonl":
        assert f"{command} -->\n```text\n" in pictures.GUIDE.read_text()


def test_the_runs_are_what_the_guide_says_of_them(tmp_path):
    good, spikes, stalled = (_lines.table(pictures.record(n, tmp_path))[1] for n in pictures.RUNS)
    assert good[-1]["loss_scale"] == 2.0**23 and good[-1]["total_overflows"] == 4
    skipped = [row["step"] for row in spikes if row["skip"]]
    assert skipped == list(pictures.SPIKES) and spikes[-1]["total_overflows"] == 0
    assert stalled[-1]["loss_scale"] == 2.0**-14 and [row["overflow"] for row in stalled[499:]] == [True] * 101
