#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The Python client of tests/replay/replay.py, which says what is read and written: one line per recording.

It uses the package as a training loop does: a Scaler, and a Report for each step.
"""

import sys

import gradscaler


def value(text):
    """Returns the value of a word: a number, None, or a text."""
    if text == "null":
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


def mapping(words):
    """ "key=value,key=value" as a dict; "-" is an empty one."""
    items = [] if words == "-" else [item.split("=") for item in words.split(",")]
    return {key: value(text) for key, text in items}


def report_of(step):
    """Returns a step's report: good ("0"), an overflow ("1"), or good with a norm ("n8")."""
    report = gradscaler.Report(kind=gradscaler.ReportKind.TENSORS, measured=sum(gradscaler.Want), overflow=step == "1")
    if step.startswith("n"):
        report.sum_squares = float(step[1:]) ** 2
    return report


def scaler_of(line):
    """The scaler of a line, as it is before its steps, and these."""
    preset, settings, steps, *checkpoint = line.split()
    scaler = gradscaler.Scaler(gradscaler.Policy.from_settings(preset, mapping(settings)))
    for state in checkpoint:
        scaler.load_state_dict(mapping(state), preset)
    return scaler, steps.split(",")


def item(step, scale, state):
    """Returns the answer to a step that began with this scale and left this state."""
    guard = (state.guard_multiplier, state.guard_mean, state.guard_variance) if step.startswith("n") else ()
    return "/".join(map(str, [scale, int(state.events), *guard]))


def answer(line):
    """The scale before each step with the events of its update, then the scale afterwards."""
    scaler, steps = scaler_of(line)
    items = []
    for step in steps:
        scale = scaler.loss_scale
        scaler.update(report_of(step))
        items.append(item(step, scale, scaler.state))
    return " ".join([*items, str(scaler.loss_scale)])


def main(answer):
    for line in sys.stdin:
        try:
            print(answer(line))
        except (TypeError, ValueError) as error:
            print("error", error)


if __name__ == "__main__":
    main(answer)
