# SPDX-License-Identifier: MIT
"""The six steps of every rank program, for each engine: in one of them rank 1 has a fault, or is late.

Element i of rank r's gradients in step s is (1 + (s + r + i) % 7) * scale, so that all sums are exact, and norms and
scales are known beforehand. A rank writes a line a step to its file:

    STEP stepped NORM SCALE
    STEP skipped NORM SCALE MESSAGE
    STEP refused MESSAGE            and it leaves with status 1
"""

import math
import os
import signal
import sys
import time

STEPS, BAD_STEP, BAD_RANK = 6, 3, 1
INIT_SCALE, GROWTH_INTERVAL = 4.0, 2
SIZES = {"weight": 8, "bias": 4}


def gradients(step, rank):
    """The values of weight and bias, unscaled."""
    return [[1.0 + (step + rank + i) % 7 for i in range(size)] for size in SIZES.values()]


def init_scale(rank, fault):
    return INIT_SCALE / 2 if (fault, rank) == ("drift", BAD_RANK) else INIT_SCALE


def expected(size, fault):
    """(stepped, norm, scale after the update) of each step that is not refused."""
    scale, good, found = INIT_SCALE, 0, []
    for step in range(STEPS):
        if step == {"drift": 0, "nan": STEPS, "loss": STEPS}.get(fault, BAD_STEP):
            break
        squares = sum(g * g for rank in range(size) for values in gradients(step, rank) for g in values)
        bad, held = (fault == name and step == BAD_STEP for name in ("nan", "loss"))
        if bad:
            squares -= gradients(step, BAD_RANK)[0][2] ** 2
        if not held:
            good = 0 if bad else good + 1
            scale = scale / 2 if bad else scale * 2 if good == GROWTH_INTERVAL else scale
            good %= GROWTH_INTERVAL
        found.append((not (bad or held), math.sqrt(squares), scale))
    return found


def take(rank, directory, fault, seconds, step):
    """Writes the file; step(number, this rank's fault in it) returns (stepped, norm, scale, report)."""
    with open(directory / str(rank), "w", buffering=1) as log:
        for number in range(STEPS):
            mine = fault if (number, rank) == (BAD_STEP, BAD_RANK) else None
            if mine:
                time.sleep(seconds)
            if mine == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                stepped, norm, scale, report = step(number, mine)
            except Exception as error:
                print(number, "refused", type(error).__name__, *str(error).split(), file=log)
                sys.exit(1)
            words = ("stepped", norm, scale) if stepped else ("skipped", norm, scale, report)
            print(number, *words, file=log)
