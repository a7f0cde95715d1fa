#!/usr/bin/env python3
"""Replays recordings of real loss scalers through one or more clients of the library.

    replay.py DIR NAME=COMMAND [NAME=COMMAND ...]

A recording (tests/traces/README.md) holds settings, overflows and the scales that the peer gave; one of
checkpoints.json also the state that was loaded before. Each client is a program that reads one line per recording,

    <preset> <setting=value,setting=value,... or -> <step,step,...> [<key=value,key=value,...>]

where the settings, and the keys of the state, are as recorded, a value is a number, `null` or a text, and a step is 0
(good), 1 (overflow) or n<number> (good, with this norm). What they mean to the preset the library knows:
gsc_policy_import and gsc_state_import. The client answers with one line: for each step the scale in force and the
events of its update, with a norm also the guard's multiplier, mean and variance, all separated by `/`; then the scale
afterwards; or `error` and a reason. A number has the digits by which it is read as the same double.
Numbers are compared with ==, unless the recording states a tolerance.
"""

import json
import math
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SKIPPED, STOPPED, CLIPPED = 4, 128, 1024  # GSC_EVENT_*
CHECKPOINTS = "checkpoints.json"
# Their own loaders lose what the state and the settings hold; with both, a run goes on as without the stop.
LOSE_AT_LOADING = {("jmp", "floor-lost"), ("nemo", "hysteresis-partly-used")}


def word(value):
    """A number, None or a text as a client reads it."""
    if value is None:
        return "null"
    if isinstance(value, bool | int):
        return str(int(value))
    return str(value)


def pairs(mapping):
    return ",".join(f"{key}={word(value)}" for key, value in mapping.items()) or "-"


def norms_of(trace):
    """The norm of each step of a guard; NaN or infinity is an overflow."""
    return [float(norm) if isinstance(norm, str) else norm * trace["unit"] for norm in trace["norm"]]


def steps_of(trace):
    """The steps of a trace, as a client reads them."""
    if "norm" in trace:
        return [f"n{norm}" if math.isfinite(norm) else "1" for norm in norms_of(trace)]
    return list(trace["overflow"])


def request(preset, trace):
    """The line that asks a client to replay a trace."""
    state = [pairs(trace["state"])] if "state" in trace else []
    return " ".join([preset, pairs(trace["overrides"]), ",".join(steps_of(trace)), *state])


def recordings_of(folder):
    """Returns the recordings of every peer: {preset, tolerance, traces}."""
    recordings = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json")) if path.name != CHECKPOINTS]
    if (folder / CHECKPOINTS).exists():
        recordings += resumed(json.loads((folder / CHECKPOINTS).read_text())["checkpoints"])
    return recordings


def resumed(checkpoints):
    """Returns the steps after the loading of each checkpoint, as a trace that starts with its state."""
    found = {}
    for each in checkpoints:
        preset, name = each["preset"], each["name"]
        expected = "uninterrupted_scale" if (preset, name) in LOSE_AT_LOADING else "resume_scale"
        trace = {"name": name, "overrides": each["resume_overrides"], "overflow": each["resume_overflow"]}
        trace |= {"scale": each[expected], "stop": None, "state": each["state"]}
        found.setdefault(preset, {"preset": preset, "kind": "checkpoints", "traces": []})["traces"].append(trace)
    return found.values()


def expected_of(trace):
    """{what: {step: what the peer gave}}; a step that is missing is not compared."""
    expected = {"scale": dict(enumerate(map(float, trace.get("scale", []))))}
    expected["skipped"] = {step: bit == "1" for step, bit in enumerate(trace.get("skipped", ""))}
    expected["stopped"] = {step: step == trace["stop"] for step in range(len(steps_of(trace)))}
    if "norm" in trace:
        clipped = {int(step): norm for step, norm in trace.get("clipped", {}).items()}
        finite = [step for step, norm in enumerate(norms_of(trace)) if math.isfinite(norm)]
        expected["clipped"] = {step: step in clipped for step in finite}
        expected["clipped to"] = clipped
        for name in ("mean", "variance"):
            expected[name] = {int(step): value for step, value in trace.get(name, {}).items()}
    return expected


def answered(answer, trace):
    """The same of a client's answer."""
    items = [item.split("/") for item in answer.split()]
    events = [int(item[1]) for item in items[:-1]]
    found = {"scale": dict(enumerate(float(item[0]) for item in items))}
    for name, bit in (("skipped", SKIPPED), ("stopped", STOPPED), ("clipped", CLIPPED)):
        found[name] = {step: bool(each & bit) for step, each in enumerate(events)}
    if "norm" in trace:
        guard = {step: map(float, item[2:]) for step, item in enumerate(items) if len(item) == 5}
        multiplier, found["mean"], found["variance"] = ({}, {}, {})
        for step, numbers in guard.items():
            multiplier[step], found["mean"][step], found["variance"][step] = numbers
        norms = norms_of(trace)
        found["clipped to"] = {step: by * norms[step] for step, by in multiplier.items()}
    return found


def difference(trace, answer, tolerance):
    """None where the answer is as recorded, else what differs first."""
    if answer.startswith("error"):
        return answer
    steps = len(steps_of(trace))
    if len(answer.split()) != steps + 1:
        return f"{len(answer.split())} scales for {steps} steps"
    found = answered(answer, trace)
    different = []
    for what, expected in expected_of(trace).items():
        for step, recorded in expected.items():
            value = found[what].get(step)
            if value != recorded and not (tolerance and value and math.isclose(value, recorded, rel_tol=tolerance)):
                different.append((step, f"step {step}: {what} is {value!r}, recorded {recorded!r}"))
    return min(different)[1] if different else None


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
