# SPDX-License-Identifier: MIT
"""Every preset has a recording of its peer, which ci/replay replays in every language, and the defaults of its peer."""

import json
from pathlib import Path

import pytest

import gradscaler
from gradscaler import Policy

TRACES = Path(__file__).resolve().parents[3] / "tests/traces"
RECORDINGS = [json.loads(path.read_text()) for path in sorted(TRACES.glob("*.json"))]
DEFAULTS = {recording["preset"]: recording["defaults"] for recording in RECORDINGS if "preset" in recording}
OUR_OWN = {"recommended", "none", "guard", "static"}
LIKE = {"olmo_like"}  # near its peer, as its summary says


@pytest.mark.parametrize("preset", DEFAULTS)
def test_a_preset_has_the_defaults_of_its_peer(preset):
    assert (Policy.from_settings(preset, DEFAULTS[preset]), DEFAULTS[preset] != {}) == (Policy(preset), True)


def test_every_preset_but_our_own_has_a_recording():
    assert set(gradscaler.presets()) == set(DEFAULTS) | OUR_OWN | LIKE
