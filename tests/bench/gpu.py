#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""All that a machine with a GPU can tell, in one run: gpu.py PROGRAMS [--out FOLDER] [--short] [--only GROUP,...].

PROGRAMS is the folder with `gpu` and `gpu_bench`, of tests/cuda/gpu.c and gpu_bench.c. Each group is a process with a
limit of time, so that a wrong bit, a crash or a device that is stuck in an error hides nothing else; the important come
first. The report, a JSON and a text of the name of the device, is written anew after each. --short is the rehearsal on
an emulated device.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
RESULTS = TESTS / "bench/results"
CHECKS = ["memcheck: lists", "racecheck: lists", "synccheck: lists", "initcheck: lists"]  # few, as each takes long
CHECKS += ["memcheck: graph", "memcheck: small_calls"]
FAULTS = ["memory", "context", "pointer", "stream"]
PROFILED = [f"GPT-2 {dtype}, unscale + norm" for dtype in ("f32", "f16", "bf16")]
METRICS = "dram__throughput.avg.pct_of_peak_sustained_elapsed,gpu__time_duration.sum"
NO_CACHE = {"CUDA_CACHE_DISABLE": "1"}


def end_of(text, size=4000):
    return text if len(text) <= size else "..." + text[-size:]


def run(command, limit, environment=None):
    """The exit status, the output and the seconds of a command; None as status where it took too long."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit,
            env=os.environ | (environment or {}),
        )
        return done.returncode, done.stdout, time.monotonic() - start
    except subprocess.TimeoutExpired as late:
        output = late.stdout or ""
        output = output.decode(errors="replace") if isinstance(output, bytes) else output
        return None, output, time.monotonic() - start
    except OSError as error:
        return 127, str(error), time.monotonic() - start


def lines_of(output):
    """The JSON of the lines that are JSON."""
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def tool(name):
    """A tool of CUDA's, from the PATH or where it is installed."""
    at = shutil.which(name)
    places = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    return at or next((f"{place}/bin/{name}" for place in places if place and Path(place, "bin", name).exists()), None)


def plan(programs, short, python, without_python=None):
    """(name, command, seconds, environment) of each group; a command that is a text is why it does not run.

    What there may be no time for is last.
    """
    gpu, bench = programs / "gpu", programs / "gpu_bench"
    scripts = [sys.executable if python is None else python, TESTS / "bench/gpu_python.py"]
    status, output, _ = run([gpu, "--groups"], 60)
    if status:
        sys.exit(output)
    groups = output.split()
    yield "open, driver cache off", [bench, "open"], 120, NO_CACHE
    yield "open, first with the driver cache", [bench, "open"], 120, None
    yield "open, again", [bench, "open"], 60, None
    for group in groups:
        if not short or group not in ("tensors", "conversions"):  # minutes on an emulated device; cuda.gpu runs them
            yield f"same bits: {group}", [gpu, group], 120, None
    replay = [sys.executable, TESTS / "replay/replay.py", TESTS / "traces", f"CUDA={gpu} --replay"]
    yield "recordings", replay, 120, None
    yield "rows", [bench, "rows", *(["short"] if short else [])], 240, None
    for kind in ("scaler", "torch", "train", "cupy", "jax"):
        yield kind, without_python or [*scripts, kind, *(["short"] if short else [])], 150, None
    checker, profiler = tool("compute-sanitizer"), tool("ncu")
    for row in PROFILED:
        command = [profiler, "--metrics", METRICS, "--csv", bench, "row", row]
        yield f"ncu: {row}", command if profiler else "ncu is not here", 60, None
    for fault in FAULTS:
        emulated = short and fault in ("pointer", "stream")
        yield f"fault: {fault}", [bench, "fault", fault] if not emulated else "an emulated device has none", 30, None
    for check in CHECKS:
        name, group = check.split(": ")
        command = [checker, "--tool", name, "--error-exitcode", "9", gpu, group]
        yield check, command if checker else "compute-sanitizer is not here", 60, None


def verdict(name, status, output):
    """Whether a group is as it has to be, in a word or two."""
    if status is None:
        return "TOO LONG"
    if output.startswith("NOT RUN"):
        return "not run"
    if name == "fault: stream" and status < 0:
        return "crashed"  # the driver, with a handle that is none any more
    return "ok" if status == 0 else f"FAILED ({status})"


def table_of(rows):
    lines = [
        f"{'milliseconds by events, median':50}{'calls':>9}{'graph':>9}{'GB/s':>8}{'copy':>8}{'read':>8}"
        f"{'of it':>7}{'host us':>9}  launches, each alone, us"
    ]
    for row in rows:
        if "why_not" in row:
            lines.append(f"{row['name']:50} not measured: {row['why_not']}")
            continue
        launches = " ".join(f"{1e3 * each:.1f}" for each in row["launches_ms"])
        lines.append(
            f"{row['name']:50}{row['calls_ms']:9.4f}{row['graph_ms']:9.4f}{row['gb_s']:8.0f}{row['copy_gb_s']:8.0f}"
            f"{row['read_gb_s']:8.0f}{row['of_ceiling']:7.2f}{row['host_us']:9.1f}  {launches}"
        )
    lines.append("of it: bytes that have to be moved in a second, of those of a copy on the device of the same list;")
    lines.append("of a check, which only reads, of those of a kernel that only reads")
    return lines


def text_of(report):
    lines = [f"gradscaler {report['gradscaler']} on {report['device']}, driver for CUDA {report['driver']}", ""]
    for name, group in report["groups"].items():
        said = "" if group["verdict"] in ("ok", "not run") else f"  {group['output'].strip().splitlines()[-1:]}"
        why = f"  {group['why']}" if "why" in group else said
        lines.append(f"{name:44}{group['verdict']:14}{group['seconds']:7.1f} s{why}")
    for name, group in report["groups"].items():
        for result in group["results"]:
            if name.startswith(("open", "fault")):
                lines.append(f"{name}: " + ", ".join(f"{key} {value}" for key, value in result.items()))
    rows = report["groups"].get("rows", {}).get("results", [])
    if rows:
        lines += ["", *table_of(rows)]
    for kind in ("scaler", "torch", "train", "cupy", "jax"):
        for result in report["groups"].get(kind, {}).get("results", []):
            lines.append(f"{kind}: " + ", ".join(f"{key} {value}" for key, value in result.items()))
    for name, group in report["groups"].items():
        if name.startswith("ncu") and group["verdict"] == "ok":
            lines += ["", name, *(line for line in group["output"].splitlines() if "dram__" in line or "time_" in line)]
    return "\n".join(lines) + "\n"


def write(report, folder):
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", report["device"].lower()).strip("-")
    for suffix, text in ((".json", json.dumps(report, indent=1) + "\n"), (".txt", text_of(report))):
        (folder / f"{name}{suffix}").write_text(text)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or RESULTS))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--python", help="the interpreter that has gradscaler; without it that of this program")
    parser.add_argument("--without-python", metavar="WHY", help="there is no gradscaler for Python")
    parser.add_argument("--seconds", type=float, default=585, help="after so many no group begins, and none goes on")
    parser.add_argument("--only", help="groups whose names begin so, with commas between", default="")
    given = parser.parse_args(arguments)
    status, output, _ = run([given.programs / "gpu_bench", "info"], 120)
    if status or output.startswith("NOT RUN"):
        print(output, end="")
        return status or 0
    report = json.loads(output) | {"groups": {}}
    if report["device"] == "stand-in" and not given.short:
        sys.exit("a stand-in for the driver has no speed to report: --short rehearses")
    only, failed, start = given.only.split(","), 0, time.monotonic()
    groups = plan(given.programs, given.short, given.python, given.without_python)
    for name, command, limit, environment in groups:
        if not name.startswith(tuple(only)):
            continue
        group = {"verdict": "not run", "seconds": 0.0, "output": "", "results": []}
        left = start + given.seconds - time.monotonic()
        if left < 5 and not isinstance(command, str):
            command = "there was no time left"
        if isinstance(command, str):
            group["why"] = command
        else:
            status, output, seconds = run(command, min(limit, left), environment)
            group |= {"verdict": verdict(name, status, output), "seconds": round(seconds, 2), "status": status}
            group |= {"results": lines_of(output), "output": end_of(output)}
            if group["verdict"] == "not run":
                group["why"] = output.strip()[len("NOT RUN: ") :]
        report["groups"][name] = group
        failed += group["verdict"].startswith(("FAILED", "TOO LONG"))
        print(f"{name:44}{group['verdict']}", flush=True)
        write(report, given.out)
    print(text_of(report), end="")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
