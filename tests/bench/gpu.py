#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The report of a GPU: gpu.py PROGRAM, which is tests/cuda/gpu.c. Where torch has CUDA, it is measured beside."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
RESULTS = TESTS / "bench/results"
D = 768
BLOCK = [D, D, 3 * D * D, 3 * D, D * D, D, D, D, 4 * D * D, 4 * D, 4 * D * D, D]
GPT2 = [50257 * D, 1024 * D, *BLOCK * 12, D, D]
TINY = [32] * 1000


def run(*command):
    """The output of a command, which must succeed."""
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        sys.exit(f"{result.stdout}{' '.join(map(str, command))}: exit status {result.returncode}")
    return result.stdout


def torch_milliseconds(torch, grads, norm):
    """Device time of what torch's GradScaler calls to unscale, and of its norm, median of batches as gpu.c takes it."""
    inverse, found = torch.full((), 0.8, device="cuda"), torch.zeros((), device="cuda")
    times = []
    for _ in range(8):
        torch._foreach_zero_(grads)
        torch._foreach_add_(grads, 0.01)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(20):
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
            if norm:
                torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 20)
    return statistics.median(times[1:])


def torch_rows():
    """Of torch: version and rows, with a sentence for each that failed; or why there are none."""
    try:
        import torch
    except ImportError as error:
        return {"version": None, "why_not": str(error), "milliseconds": {}}
    if not torch.cuda.is_available():
        return {"version": None, "why_not": f"torch {torch.__version__} has no CUDA here", "milliseconds": {}}
    rows, failed = {}, []

    def measure(name, counts, dtype, norm):
        try:  # a version may lack the kernel of a dtype, or the memory for it
            grads = [torch.empty(n, dtype=dtype, device="cuda") for n in counts]
            rows[name] = torch_milliseconds(torch, grads, norm)
        except RuntimeError as error:
            failed.append(f"{name}: {str(error).splitlines()[0]}")

    for name, dtype in {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}.items():
        measure(f"GPT-2 {name}, unscale + check", GPT2, dtype, False)
        measure(f"GPT-2 {name}, unscale + check + norm", GPT2, dtype, True)
    measure("1000 tensors of 32, f32, unscale + check", TINY, torch.float32, False)
    return {"version": torch.__version__, "why_not": "; ".join(failed) or None, "milliseconds": rows}


def text_of(report):
    torch = report["torch"]
    lines = [
        f"gradscaler {report['gradscaler']} on {report['device']}, driver for CUDA {report['driver']}",
        f"{report['compared']} comparisons with the CPU and the recordings: the same bits",
        f"recordings: {report['recordings']}",
        f"torch: {', '.join(filter(None, (torch['version'], torch['why_not'])))}",
        "",
        f"{'milliseconds by events, median':44}{'calls':>10}{'in a graph':>12}{'of copy':>9}{'torch':>10}",
    ]
    for row in report["bench"]:
        theirs = torch["milliseconds"].get(row["name"])
        lines.append(
            f"{row['name']:44}{row['calls_ms']:10.4f}{row['graph_ms']:12.4f}{row['of_copy_bandwidth']:9.2f}"
            + (f"{theirs:10.4f}" if theirs else f"{'-':>10}")
        )
    lines.append("\nof copy: bytes read and written in a second, against a copy on the device of the same list")
    return "\n".join(lines) + "\n"


def write(report):
    RESULTS.mkdir(exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", report["device"].lower()).strip("-")
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / f"{name}.txt").write_text(text_of(report))


def main(program):
    output = run(program, "--json")
    if output.startswith("NOT RUN"):
        print(output, end="")
        return
    report = json.loads(output)
    if report["device"] == "stand-in":
        sys.exit("a stand-in for the driver has no speed to report")
    replayed = run(sys.executable, TESTS / "replay/replay.py", TESTS / "traces", f"CUDA={program} --replay")
    report["recordings"] = replayed.strip().splitlines()[-1]
    report["torch"] = {"version": None, "why_not": "it ended the measurement", "milliseconds": {}}
    write(report)  # whatever torch does now, ours is not lost
    report["torch"] = torch_rows()
    write(report)
    print(text_of(report), end="")


if __name__ == "__main__":
    main(sys.argv[1])
