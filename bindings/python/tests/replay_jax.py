#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The client of tests/replay/replay.py for gradscaler.jax: each recording eagerly and in a compiled program."""

import os

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # which take longer than the steps

import jax
import numpy as np
import replay

import gradscaler.jax
from gradscaler._structs import State


def eager(scaler, report):
    return scaler.update(report)


def answer(line):
    host, steps = replay.scaler_of(line)
    ways = {}
    for update in (eager, jax.jit(eager)):
        scaler, states = gradscaler.jax.Scaler.from_host(host), [bytes(host.state)]
        for step in steps:
            words = np.frombuffer(bytes(replay.report_of(step)), np.uint32)
            scaler = update(scaler, gradscaler.jax.Report(words))
            states.append(np.asarray(scaler.state).tobytes())
        ways[update] = states
    for i, (one, other) in enumerate(zip(*ways.values(), strict=True)):
        if one != other:
            raise ValueError(f"after {i} steps the states differ, eagerly and in jit")
    states = [State.from_buffer_copy(state) for state in states]
    moves = zip(steps, states, states[1:], strict=False)
    items = [replay.item(step, before.factor.scale, after) for step, before, after in moves]
    return " ".join([*items, str(states[-1].factor.scale)])


if __name__ == "__main__":
    replay.main(answer)
