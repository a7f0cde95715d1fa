# SPDX-License-Identifier: MIT
"""The scales, skips and stops that real loss scalers were recorded to give, replayed through the package.

Requests and comparisons are those of tests/replay/replay.py, the driver of all languages; replay.py is its client here.
"""

import importlib.util
import json
from pathlib import Path

import pytest
import replay

import gradscaler
from gradscaler import Policy

TESTS = Path(__file__).resolve().parents[3] / "tests"
RECORDINGS = {
    recording["preset"]: recording
    for path in sorted((TESTS / "traces").glob("*.json"))
    if "preset" in (recording := json.loads(path.read_text()))
}
OUR_OWN = {"recommended", "none", "guard", "static"}
LIKE = {"olmo_like"}  # near its peer, as its summary says


def load_driver():
    spec = importlib.util.spec_from_file_location("replay_driver", TESTS / "replay" / "replay.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


driver = load_driver()
CHECKPOINTS = list(driver.resumed(json.loads((TESTS / "traces" / driver.CHECKPOINTS).read_text())["checkpoints"]))


def differences(recording):
    return {
        trace["name"]: driver.difference(
            trace, replay.answer(driver.request(recording["preset"], trace)), recording.get("tolerance", 0)
        )
        for trace in recording["traces"]
    }


@pytest.mark.parametrize("preset", RECORDINGS)
def test_a_scaler_moves_as_its_peer_was_recorded(preset):
    assert differences(RECORDINGS[preset]) == {trace["name"]: None for trace in RECORDINGS[preset]["traces"]} != {}


@pytest.mark.parametrize("recording", CHECKPOINTS, ids=lambda recording: recording["preset"])
def test_a_checkpoint_of_a_peer_goes_on_as_it_was_recorded(recording):
    assert differences(recording) == {trace["name"]: None for trace in recording["traces"]} != {}


@pytest.mark.parametrize("preset", RECORDINGS)
def test_a_preset_has_the_defaults_of_its_peer(preset):
    defaults = RECORDINGS[preset]["defaults"]
    assert (Policy.from_settings(preset, defaults), defaults != {}) == (Policy(preset), True)


def test_every_preset_but_our_own_has_a_recording():
    assert set(gradscaler.presets()) == set(RECORDINGS) | OUR_OWN | LIKE
