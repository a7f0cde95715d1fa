#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The Python client of tests/replay/replay.py, which says what is read and written: one line per recording.

It uses the package as a training loop does: a Scaler, and a Report for each step.
"""

import sys

import gradscaler


def policy_fields(settings):
    """The fields of "name=value,name=value"; "-" is none."""
    items = [] if settings == "-" else [item.split("=") for item in settings.split(",")]
    return {name: int(value) if value.isdecimal() else float.fromhex(value) for name, value in items}


def report_of(step):
    """What gradients give that are good ("0"), have an overflow ("1"), or are good with this amax ("a0x1p3")."""
    report = gradscaler.Report()
    report.overflow = step == "1"
    if step.startswith("a"):
        report.amax = float.fromhex(step[1:])
    return report


def answer(line):
    """The scale before each step with the events of its update, then the scale afterwards."""
    preset, settings, steps = line.split()
    scaler = gradscaler.Scaler(preset, **policy_fields(settings))
    items = []
    for step in steps.split(","):
        scale = scaler.loss_scale
        events = scaler.update(report_of(step))
        items.append(f"{scale.hex()}/{int(events)}")
    return " ".join([*items, scaler.loss_scale.hex()])


def main():
    for line in sys.stdin:
        try:
            print(answer(line))
        except (TypeError, ValueError) as error:
            print("error", error)


if __name__ == "__main__":
    main()
