#!/usr/bin/env python3
"""Replays recordings of real loss scalers through one or more clients of the library.

    replay.py DIR NAME=COMMAND [NAME=COMMAND ...]

A recording (tests/traces/README.md) holds settings, overflows and the scales that the peer gave; one of
checkpoints.json also the state that was loaded before. Each client is a program that reads one line per recording,

    <preset> <setting=value,setting=value,... or -> <step,step,...> [<key=value,key=value,...>]

where the settings, and the keys of the state, are those of the recording, a value is a hex float, a whole number,
`null` or a text, and a step is 0 (good), 1 (overflow) or a<hex float> (good, with this amax). What they mean to the
preset the library knows: gsc_policy_import and gsc_state_import. The client answers with one line: for each step the
scale in force as a hex float, `/` and the events of its update, then the scale afterwards; or `error` and a reason.
Scales are compared with ==, unless the recording states a tolerance.
"""

import json
import math
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SKIPPED, STOPPED = 4, 128  # GSC_EVENT_*
CHECKPOINTS = "checkpoints.json"
# Their own loaders lose what the state and the settings hold; with both, a run goes on as without the stop.
LOSE_AT_LOADING = {("jmp", "floor-lost"), ("nemo", "hysteresis-partly-used")}


def word(value):
    """A number, None or a text as a client reads it."""
    if value is None:
        return "null"
    if isinstance(value, bool | int):
        return str(int(value))
    return value.hex() if isinstance(value, float) else value


def pairs(mapping):
    return ",".join(f"{key}={word(value)}" for key, value in mapping.items()) or "-"


def request(preset, trace):
    """The line that asks a client to replay a trace."""
    amax = trace.get("amax", [None] * len(trace["overflow"]))
    steps = [
        "1" if bit == "1" else "0" if value is None else f"a{float(value).hex()}"
        for bit, value in zip(trace["overflow"], amax, strict=True)
    ]
    state = [pairs(trace["state"])] if "state" in trace else []
    return " ".join([preset, pairs(trace["overrides"]), ",".join(steps), *state])


def recordings_of(folder):
    """Those of every peer: {preset, tolerance, traces}."""
    recordings = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json")) if path.name != CHECKPOINTS]
    if (folder / CHECKPOINTS).exists():
        recordings += resumed(json.loads((folder / CHECKPOINTS).read_text())["checkpoints"])
    return recordings


def resumed(checkpoints):
    """What followed the loading of each checkpoint, as a trace that starts with its state."""
    found = {}
    for each in checkpoints:
        preset, name = each["preset"], each["name"]
        expected = "uninterrupted_scale" if (preset, name) in LOSE_AT_LOADING else "resume_scale"
        trace = {"name": name, "overrides": each["resume_overrides"], "overflow": each["resume_overflow"]}
        trace |= {"scale": each[expected], "stop": None, "state": each["state"]}
        found.setdefault(preset, {"preset": preset, "kind": "checkpoints", "traces": []})["traces"].append(trace)
    return found.values()


def difference(trace, answer, tolerance):
    """None where the answer is as recorded, else what differs first."""
    if answer.startswith("error"):
        return answer
    items = [item.split("/") for item in answer.split()]
    stop, expected = trace["stop"], [float(scale) for scale in trace["scale"]]
    if len(items) != len(trace["overflow"]) + 1:
        return f"{len(items)} scales for {len(trace['overflow'])} steps"
    for step, recorded in enumerate(expected):
        scale = float.fromhex(items[step][0])
        if scale != recorded and not (tolerance and math.isclose(scale, recorded, rel_tol=tolerance)):
            return f"step {step}: scale {scale!r}, recorded {recorded!r}"
        if step == len(trace["overflow"]):
            break
        events = int(items[step][1])
        if "skipped" in trace and bool(events & SKIPPED) != (trace["skipped"][step] == "1"):
            return f"step {step}: skipped is {bool(events & SKIPPED)}, recorded {trace['skipped'][step]}"
        if bool(events & STOPPED) != (step == stop):
            return f"step {step}: stopped is {bool(events & STOPPED)}, recorded stop {stop}"
    return None


def replay(folder, clients):
    """Prints a line per preset and client; returns (passed, failed) recordings."""
    recordings = recordings_of(folder)
    if not recordings:
        sys.exit(f"no recordings (*.json) in {folder}")
    requests = [request(r["preset"], trace) for r in recordings for trace in r["traces"]]

    def run(command):
        text = "\n".join(requests) + "\n"
        return subprocess.run(shlex.split(command), input=text, text=True, stdout=subprocess.PIPE, check=False)

    answers = {}
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, clients.values()))
    for (name, command), result in zip(clients.items(), results, strict=True):
        lines = result.stdout.splitlines()
        if result.returncode != 0 or len(lines) != len(requests):
            lines = [f"error {command} answered {len(lines)} of {len(requests)} lines, exit {result.returncode}"]
            lines *= len(requests)
        answers[name] = iter(lines)
    passed = failed = 0
    for recording in recordings:
        preset, tolerance = recording["preset"], recording.get("tolerance", 0)
        for name, lines in answers.items():
            differences = [
                f"{trace['name']}: {reason}"
                for trace in recording["traces"]
                if (reason := difference(trace, next(lines), tolerance))
            ]
            count = len(recording["traces"])
            passed, failed = passed + count - len(differences), failed + len(differences)
            exact = f"within {tolerance:g}" if tolerance else "exact"
            kind = recording.get("kind", "recordings")
            print(f"{preset:<20} {name:<8} {count - len(differences):>3} of {count} {kind} {exact}")
            for line in differences:
                print(f"    {line}")
    return passed, failed


def main():
    folder, *rest = sys.argv[1:]
    passed, failed = replay(Path(folder), dict(argument.split("=", 1) for argument in rest))
    print(f"{passed} passed, {failed} failed")
    sys.exit(min(failed, 255))


if __name__ == "__main__":
    main()
