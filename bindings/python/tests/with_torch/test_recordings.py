# SPDX-License-Identifier: MIT
"""Trains on the recordings of real scalers by the core's kernels and by torch's operations: each step is the same."""

import importlib.util
import itertools
import math
from ctypes import c_float
from pathlib import Path

import pytest
import torch
from conftest import begun, make_step, parameters, sgd

from gradscaler import Policy
from gradscaler.torch import GradScaler, StallError

ROOT = Path(__file__).resolve().parents[4]
spec = importlib.util.spec_from_file_location("replay_of_all_clients", ROOT / "tests" / "replay" / "replay.py")
replay = importlib.util.module_from_spec(spec)
spec.loader.exec_module(replay)

RECORDINGS = [
    pytest.param(recording, trace, id=f"{recording['preset']}-{trace['name']}")
    for recording in replay.recordings_of(ROOT / "tests" / "traces")
    if recording.get("kind") != "checkpoints"
    for trace in recording["traces"]
]
# Each bad step has the next of these: the last values of some parameters, by number.
BAD = {1: [math.inf]}, {2: [math.nan]}, {0: [-math.inf], 2: [math.nan, math.inf]}, {0: [math.nan], 1: [math.nan]}


def pytest_generate_tests(metafunc):
    every = metafunc.config.getoption("--long")
    metafunc.parametrize(("recording", "trace"), RECORDINGS if every else RECORDINGS[3::10])


def gradients_of(step, scale, bad):
    """Returns the gradients of a step, multiplied by the scale; a good step without a norm has the norm 1 / 16."""
    made = [torch.zeros(3), torch.zeros(()), torch.zeros(2, 2)]
    made[2][0, 1] = (float(step[1:]) if step.startswith("n") else 0.0625) * scale
    for i, values in next(bad).items() if step == "1" else ():
        made[i].view(-1)[-len(values) :] = torch.tensor(values)
    return dict(zip(("weight", "bias", "head"), made, strict=True))


def numbers_of(struct):
    """Returns the fields of a struct, also those of structs in it."""
    values = [getattr(struct, name) for name, _ in struct._fields_]
    return [each for value in values for each in (numbers_of(value) if hasattr(value, "_fields_") else [value])]


def train(policy, steps, backend):
    """Returns the scales, and after each step the numbers of the state, the answers, and the parameters."""
    scaler, bad = begun(GradScaler("cpu", policy=policy, backend=backend)), itertools.cycle(BAD)
    scales, found = [scaler.get_scale()], []
    for step in steps:
        optimizer = sgd(**gradients_of(step, scales[-1], bad))
        try:
            make_step(scaler, optimizer)
        except (StallError, RuntimeError) as error:  # it stops, or float32 cannot hold the scale
            return scales, [*found, ([], str(error), [])]
        report = scaler.report
        answers = scaler.step_was_skipped, report.bad, report.first_overflow, report.last_overflow
        answers += report.nan_count, report.inf_count, scaler.step_was_skipped and scaler.reason
        numbers = [value for value in numbers_of(scaler._state()) if isinstance(value, (int, float))]
        found.append((numbers, answers, [x for p in parameters(optimizer) for x in p.detach().view(-1).tolist()]))
        scales.append(scaler.get_scale())
    return scales, found


def are_close(one, other):
    """Returns whether numbers are equal; norms, what a guard makes of them, and inverses in double, within 2e-7."""
    pairs = zip(one, other, strict=True)
    return all(a == b or (type(a) is float and math.isclose(a, b, rel_tol=2e-7)) for a, b in pairs)


def test_a_step_is_the_same_by_torchs_operations(recording, trace):
    policy, steps = Policy.from_settings(recording["preset"], trace["overrides"]), replay.steps_of(trace)
    (scales, theirs), (own_scales, ours) = (train(policy, steps, backend) for backend in (None, "torch"))
    assert own_scales == scales
    for step, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        assert one[1] == other[1], step
        assert are_close(one[0], other[0]), step
        assert one[2] == other[2] or ((policy.guards or not policy.arithmetic) and are_close(one[2], other[2])), step
    recorded = [c_float(float(scale)).value for scale in trace.get("scale", [])]
    assert recorded[: len(scales)] == pytest.approx(scales[: len(recorded)], rel=recording.get("tolerance", 0), abs=0)
