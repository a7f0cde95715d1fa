#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""All that a machine with a GPU can tell, in one run: gpu.py PROGRAMS [--out FOLDER] [--short] [--only GROUP,...].

PROGRAMS is the folder with `gpu` and `gpu_bench`, built from tests/cuda/gpu.c and gpu_bench.c. Each group runs as a
process with a time limit, so a wrong bit, a crash or a stuck device hides no other group. The most important groups run
first. The report, a JSON and a text file named after the device, is replaced after each group. Nothing here changes the
clocks, the power or the modes of the device. --short is the rehearsal on an emulated device.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
RESULTS = TESTS / "bench/results"
CHECKS = ["memcheck: lists", "racecheck: lists", "synccheck: lists", "initcheck: lists"]  # few, as each takes long
CHECKS += ["memcheck: graph", "memcheck: small_calls"]
FAULTS = ["memory", "context", "stream"]
BREAKING_FAULTS = ["pointer"]  # the device's context is unusable afterwards
PYTHON = ["scaler", "torch", "train", "cupy", "jax"]
PROFILED = [f"GPT-2 {dtype}, unscale + norm" for dtype in ("f32", "f16", "bf16")]
METRICS = "dram__throughput.avg.pct_of_peak_sustained_elapsed,gpu__time_duration.sum"
NO_CACHE = {"CUDA_CACHE_DISABLE": "1"}
# How ncu and compute-sanitizer say that the machine does not let them work. What memcheck finds in a program, which may
# itself be "not permitted", begins with other words.
REFUSAL = re.compile(
    r"^(?:==ERROR==|=========\s+(?:Internal Sanitizer )?Error:)\s*"
    r"(.*(?:permission|not permitted|privilege|Device not supported|initialize the profiler).*)",
    re.MULTILINE | re.IGNORECASE,
)


def end_of(text, size=4000):
    return text if len(text) <= size else "..." + text[-size:]


def run(command, limit, environment=None):
    """The exit status, the output and the seconds of a command; None as status where it took too long."""
    start = time.monotonic()
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(list(map(str, command)), timeout=limit, env=os.environ | (environment or {}), **output)
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
    for line in re.findall(r"^\{.*", output, re.MULTILINE):
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def tool(name):
    """A tool of CUDA's, from the PATH or where it is installed."""
    at = shutil.which(name)
    places = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    return at or next((f"{place}/bin/{name}" for place in places if place and Path(place, "bin", name).exists()), None)


def plan(programs, cache, short=False, python=sys.executable, without_python=None, faults=False):
    """Yields (name, command, seconds, environment) for each group; a command that is a text says why it does not run.

    `cache` is an empty folder for the driver's cache of compiled kernels.
    """
    gpu, bench = programs / "gpu", programs / "gpu_bench"
    more = ["short"] if short else []
    status, output, _ = run([gpu, "--groups"], 60)
    if status:
        sys.exit(output)
    groups = output.split()
    for group in groups:
        if not short or group not in ("tensors", "conversions"):  # minutes on an emulated device; cuda.gpu runs them
            yield f"same bits: {group}", [gpu, group], 120, None
        if group == "policies":
            replay = [sys.executable, TESTS / "replay/replay.py", TESTS / "traces", f"CUDA={gpu} --replay"]
            yield "recordings", replay, 120, None
    yield "open, driver cache off", [bench, "open"], 120, NO_CACHE
    yield "open, first with the driver cache", [bench, "open"], 120, {"CUDA_CACHE_PATH": cache}
    yield "open, again", [bench, "open"], 60, {"CUDA_CACHE_PATH": cache}
    yield "rows", [bench, "rows", *more], 240, None
    doctor = [python, "-m", "gradscaler", "doctor", "--device", "cuda:0", "--json", "--seconds", "0" if short else "2"]
    yield "doctor", without_python or doctor, 120, None
    for kind in PYTHON:
        yield kind, without_python or [python, TESTS / "bench/gpu_python.py", kind, *more], 150, None
    checker, profiler = tool("compute-sanitizer"), tool("ncu")
    for row in PROFILED:
        command = [profiler, "--clock-control", "none", "--metrics", METRICS, "--csv", bench, "row", row]
        yield f"ncu: {row}", command if profiler else "ncu is not here", 60, None
    for check in CHECKS:
        name, group = check.split(": ")
        command = [checker, "--tool", name, "--error-exitcode", "9", gpu, group]
        yield check, command if checker else "compute-sanitizer is not here", 60, None
    for fault in FAULTS + BREAKING_FAULTS * faults:
        emulated = short and fault in ("pointer", "stream")
        yield f"fault: {fault}", [bench, "fault", fault] if not emulated else "an emulated device has none", 30, None


def verdict(name, status, output):
    """Returns whether a group is as it has to be, in a word or two, and why not if it did not run."""
    if output.startswith("NOT RUN: "):
        return "not run", output.removeprefix("NOT RUN: ").strip()
    if name.startswith("ncu") or name in CHECKS:
        refused = REFUSAL.search(output)
        if refused:
            return "not run", f"refused by this machine: {refused[1].strip()}"
    if status is None:
        return "TOO LONG", None
    if name == "fault: stream" and status < 0:
        return "crashed", None  # the driver, with a handle that is none any more
    return "ok" if status == 0 else f"FAILED ({status})", None


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
    lines.append("of it: bytes that have to be moved in a second, as a share of what a copy of the same list moves;")
    lines.append("for a check, which only reads, as a share of what a kernel that only reads moves")
    return lines


def line_of(name, group):
    if "why" in group:
        return f"{name:44}not run: {group['why']}"
    last = "" if group["verdict"] == "ok" else f"  {group['output'].strip().splitlines()[-1:]}"
    return f"{name:44}{group['verdict']:14}{group['seconds']:7.1f} s{last}"


def text_of(report):
    groups = report["groups"]

    def results_of(*names):
        """Returns the results of groups that begin so."""
        for name, group in groups.items():
            for result in group["results"] if name.startswith(names) else ():
                yield f"{name}: " + ", ".join(f"{key} {value}" for key, value in result.items())

    lines = [f"gradscaler {report['gradscaler']} on {report['device']}, driver for CUDA {report['driver']}", ""]
    lines += [*(line_of(*group) for group in groups.items()), *results_of("open", "fault")]
    if groups.get("rows", {}).get("results"):
        lines += ["", *table_of(groups["rows"]["results"])]
    lines += results_of("doctor", *PYTHON)
    for name, group in groups.items():
        if name.startswith("ncu") and group["verdict"] == "ok":
            lines += ["", name, *(line for line in group["output"].splitlines() if "dram__" in line or "time_" in line)]
    return "\n".join(lines) + "\n"


def write(report, folder):
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", report["device"].lower()).strip("-")
    for suffix, text in ((".json", json.dumps(report, indent=1) + "\n"), (".txt", text_of(report))):
        part = folder / f"{name}{suffix}.part"
        part.write_text(text)
        part.replace(folder / f"{name}{suffix}")  # so that a report cut short keeps what there was


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or RESULTS))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has gradscaler")
    parser.add_argument("--without-python", metavar="WHY", help="there is no gradscaler for Python")
    parser.add_argument("--faults", action="store_true", help="also those that break the device's context, last")
    parser.add_argument("--seconds", type=float, required=True, help="no group begins, and none goes on, after that")
    parser.add_argument("--only", help="only groups that begin with one of these words, comma-separated", default="")
    given, start = parser.parse_args(arguments), time.monotonic()
    # Without the driver's cache, as an open group measures the first load.
    status, output, _ = run([given.programs / "gpu_bench", "info"], 120, NO_CACHE)
    if status or output.startswith("NOT RUN"):
        print(output, end="")
        return status or 0
    report = json.loads(output) | {"groups": {}}
    if report["device"] == "stand-in" and not given.short:
        sys.exit("a stand-in for the driver has no speed to report: --short rehearses")
    failed = 0
    with tempfile.TemporaryDirectory() as cache:
        plans = plan(given.programs, cache, given.short, given.python, given.without_python, given.faults)
        for name, command, limit, environment in plans:
            if not name.startswith(tuple(given.only.split(","))):
                continue
            group = {"verdict": "not run", "seconds": 0.0, "output": "", "results": []}
            left = start + given.seconds - time.monotonic()
            if isinstance(command, str) or left < 5:
                group["why"] = command if isinstance(command, str) else "there was no time left"
            else:
                status, output, seconds = run(command, min(limit, left), environment)
                word, why = verdict(name, status, output)
                if word == "TOO LONG" and left < limit:
                    word, why = "not run", f"there was no time left after {seconds:.0f} s of it"
                group |= {"verdict": word, "seconds": round(seconds, 2), "status": status}
                group |= {"results": lines_of(output), "output": end_of(output)} | ({"why": why} if why else {})
            report["groups"][name] = group
            failed += group["verdict"].startswith(("FAILED", "TOO LONG"))
            print(line_of(name, group), flush=True)
            write(report, given.out)
    print(text_of(report), end="")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
