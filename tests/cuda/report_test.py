#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The report of a GPU hides nothing: tests/bench/gpu.py with programs that fail, crash, hang, and have no GPU."""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import gpu

INFO = '{"device": "A Device", "driver": "12.4", "gradscaler": "0.4.0"}'
ROW = {"name": "GPT-2 f32, unscale", "calls_ms": 1, "graph_ms": 1, "host_us": 2, "gb_s": 3, "copy_gb_s": 6}
ROW |= {"read_gb_s": 6, "of_ceiling": 0.5, "launches_ms": [0.25]}
BENCH = f"""case $1 in
  info) echo '{INFO}' ;;
  open) echo '{{"kernels_ms": 7}}' ;;
  rows) echo '{json.dumps(ROW)}'; echo '{{"name": "7B f32", "why_not": "out of memory"}}'; kill -SEGV $$ ;;
  fault) [ $2 != pointer ] || echo "check failed: no words"; [ $2 = memory ] ;;
esac"""
GPU = """case $1 in
  --groups) echo tensors graph streams ;;
  tensors) echo "wrong bit in tensor 3"; exit 1 ;;
  graph) sleep 60 ;;
  *) echo fine ;;
esac"""


def reported(bench, program, arguments=(), **changed):
    """The report of these programs, as JSON and as text, and the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        for name, script in (("gpu_bench", bench), ("gpu", program)):
            (Path(folder) / name).write_text(f"#!/bin/sh\n{script}\n")
            (Path(folder) / name).chmod(0o755)
        for name, value in changed.items():
            setattr(gpu, name, value)
        status = gpu.main([folder, "--out", f"{folder}/out/deep", "--without-python", "no wheel", *arguments])
        found = [Path(folder) / "out/deep" / f"a-device{suffix}" for suffix in (".json", ".txt")]
        if not found[0].exists():
            return None, None, status
        return json.loads(found[0].read_text()), found[1].read_text(), status


plan = gpu.plan


def quicker(*arguments):
    for name, command, limit, environment in plan(*arguments):
        yield name, command, 1 if name == "same bits: graph" else limit, environment


report, text, status = reported(BENCH, GPU, plan=quicker, tool=lambda name: None)
verdicts = {name: group["verdict"] for name, group in report["groups"].items()}
assert status == 1
assert verdicts["same bits: tensors"] == "FAILED (1)" and "wrong bit in tensor 3" in text
assert verdicts["same bits: graph"] == "TOO LONG"
assert verdicts["same bits: streams"] == verdicts["open, again"] == verdicts["fault: memory"] == "ok"
assert verdicts["rows"] == "FAILED (-11)" and report["groups"]["rows"]["results"][0] == ROW
assert "GPT-2 f32, unscale" in text and "7B f32" in text and "not measured: out of memory" in text
assert verdicts["fault: pointer"] == "FAILED (1)" and "no words" in text
assert verdicts["torch"] == "not run" and "no wheel" in text
assert verdicts["memcheck: graph"] == "not run" and "compute-sanitizer is not here" in text
assert report["groups"]["memcheck: graph"]["seconds"] == 0

report, text, status = reported(BENCH, GPU, plan=plan, arguments=["--seconds", "4"])
assert status == 0 and {group["verdict"] for group in report["groups"].values()} == {"not run"}
assert "there was no time left" in text

assert reported("echo 'NOT RUN: no CUDA driver'", GPU) == (None, None, 0)
