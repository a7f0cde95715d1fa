#!/usr/bin/env python3
"""Replays recordings of real loss scalers through one or more clients of the library.

    replay.py DIR NAME=COMMAND [NAME=COMMAND ...]

A recording (tests/traces/README.md) holds settings, overflows and the scales that the peer gave. Each client is a
program that reads one line per recording,

    <preset> <field=value,field=value,... or -> <step,step,...>

where a step is 0 (good), 1 (overflow) or a<hex float> (good, with this amax), and answers with one line: for each step
the scale in force as a hex float, `/` and the events of its update, then the scale afterwards; or `error` and a reason.
Scales are compared with ==, unless the recording states a tolerance.
"""

import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

SKIPPED, STOPPED = 4, 128  # GSC_EVENT_*
ON_GROWTH, ON_GOOD_STEP = 1, 2  # GSC_RESET_*
LIMIT_CLAMP = 0

# The peers' own names for settings, where they differ from the fields of gsc_policy.
RENAMED = {
    "beta1": "mean_decay",
    "beta2": "variance_decay",
    "overflow_std_dev": "margin_sigmas",
}
AS_POWER_OF_TWO = {
    "initial_lg_scale": "init_scale",
    "lg_growth": "growth_factor",
    "log_max": "overflow_log2",
}
INTEGERS = {"growth_interval", "hysteresis", "apply_delay"}


def policy_fields(settings):
    """The fields of gsc_policy that a peer's settings stand for."""
    fields = {}
    for key, value in settings.items():
        if key == "hysteresis_refill":
            fields["overflow_reset"] = {"growth": ON_GROWTH, "good_step": ON_GOOD_STEP}[value]
        elif key == "raise_at_min":
            fields["stall_limit"] = int(value)
        elif key == "threshold":
            if value is not None:
                fields |= {"min_scale": float(value), "floor_rule": LIMIT_CLAMP}
        elif key in AS_POWER_OF_TWO:
            fields[AS_POWER_OF_TWO[key]] = 2.0**value
        elif key in INTEGERS:
            fields[key] = int(value)
        else:
            fields[RENAMED.get(key, key)] = float(value or 0)
    return fields


def request(preset, trace):
    """The line that asks a client to replay a trace."""
    fields = policy_fields(trace["overrides"]).items()
    settings = ",".join(f"{k}={v if isinstance(v, int) else v.hex()}" for k, v in fields)
    amax = trace.get("amax", [None] * len(trace["overflow"]))
    steps = [
        "1" if bit == "1" else "0" if value is None else f"a{float(value).hex()}"
        for bit, value in zip(trace["overflow"], amax, strict=True)
    ]
    return f"{preset} {settings or '-'} {','.join(steps)}"


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
    files = [path for path in sorted(folder.glob("*.json")) if path.name != "checkpoints.json"]
    if not files:
        sys.exit(f"no recordings (*.json) in {folder}")
    recordings = [json.loads(path.read_text()) for path in files]
    requests = [request(r["preset"], trace) for r in recordings for trace in r["traces"]]
    answers = {}
    for name, command in clients.items():
        result = subprocess.run(
            shlex.split(command), input="\n".join(requests) + "\n", text=True, stdout=subprocess.PIPE, check=False
        )
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
            print(f"{preset:<20} {name:<8} {count - len(differences):>3} of {count} recordings {exact}")
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
