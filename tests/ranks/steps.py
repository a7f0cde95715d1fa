# SPDX-License-Identifier: MIT
"""What every rank program does, whatever its engine: six steps, of which rank 1 has a fault in one, or is late.

Element i of rank r's gradients in step s is (1 + (s + r + i) % 7) * scale, so that all sums are exact, and norms and
scales are known beforehand. A rank writes a line a step to its file:

    STEP stepped NORM SCALE
    STEP skipped NORM SCALE MESSAGE
    STEP refused MESSAGE            and it leaves with status 1
"""

import math
import sys

STEPS, BAD_STEP, BAD_RANK = 6, 3, 1
INIT_SCALE, GROWTH_INTERVAL = 4.0, 2
SIZES = {"weight": 8, "bias": 4}


def gradients(step, rank):
    """The values of weight and bias, unscaled."""
    return [[1.0 + (step + rank + i) % 7 for i in range(size)] for size in SIZES.values()]


def expected(size, fault):
    """(stepped, norm, scale after the update) of each step that is not refused."""
    scale, good, found = INIT_SCALE, 0, []
    for step in range(STEPS):
        if (fault, step) in [("drift", 0), ("fails", BAD_STEP), ("dies", BAD_STEP), ("late", BAD_STEP)]:
            break
        squares = sum(g * g for rank in range(size) for values in gradients(step, rank) for g in values)
        bad = fault == "nan" and step == BAD_STEP
        if bad:
            squares -= gradients(step, BAD_RANK)[0][2] ** 2
        good = 0 if bad else good + 1
        scale = scale / 2 if bad else scale * 2 if good == GROWTH_INTERVAL else scale
        good %= GROWTH_INTERVAL
        found.append((not bad, math.sqrt(squares), scale))
    return found


class Log:
    """The file of a rank."""

    def __init__(self, directory, rank):
        self.file = open(f"{directory}/{rank}", "w", buffering=1)  # noqa: SIM115, as long as the process

    def stepped(self, step, stepped, norm, scale, message=""):
        word = "stepped" if stepped else "skipped"
        self.file.write(f"{step} {word} {norm!r} {scale!r} {'' if stepped else message}".rstrip() + "\n")

    def refused(self, step, error):
        text = " ".join(str(error).split())
        self.file.write(f"{step} refused {type(error).__name__}: {text}\n")
        self.file.close()
        sys.exit(1)
