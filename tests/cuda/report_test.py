#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The report of a GPU hides nothing, and its run leaves the device as it was: tests/bench/gpu.py with programs that
fail, crash, hang, print what they were given, and have no GPU; with tools that a machine refuses."""

import json
import re
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "bench"))
import gpu  # noqa: E402

INFO = '{"device": "A Device", "driver": "12.4", "gradscaler": "0.4.0"}'
ROW = {"name": "GPT-2 f32, unscale", "calls_ms": 1, "graph_ms": 1, "host_us": 2, "gb_s": 3, "copy_gb_s": 6}
ROW |= {"read_gb_s": 6, "of_ceiling": 0.5, "launches_ms": [0.25]}
BENCH = f"""case $1 in
  info) [ "$CUDA_CACHE_DISABLE" = 1 ] && echo '{INFO}' ;;
  open) echo '{{"cache": "'$CUDA_CACHE_PATH'", "files": '$(ls $CUDA_CACHE_PATH | wc -l)'}}'
    [ -z "$CUDA_CACHE_PATH" ] || touch $CUDA_CACHE_PATH/kernel ;;
  rows) echo '{json.dumps(ROW)}'; echo '{{"name": "7B f32", "why_not": "out of memory"}}'; kill -SEGV $$ ;;
  fault) [ $2 != pointer ] || echo "check failed: no words"; [ $2 = memory ] ;;
esac"""
GPU = """case $1 in
  --groups) echo lists tensors policies graph streams ;;
  tensors) echo "wrong bit in tensor 3"; exit 1 ;;
  graph) sleep 60 ;;
  streams) grep -o "wrong bit" "${0%/*}"/out/deep/a-device.json | head -n 1 ;;
  *) echo fine ;;
esac"""
# The output of the tools on a machine that forbids them, and about a program with a fault.
REFUSED = {
    "ncu": "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
    "compute-sanitizer": "========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer to",
}
FAULTY = {
    "ncu": "a program without permission\n==ERROR== The application returned an error code (11).",
    "compute-sanitizer": '========= Program hit error 800 due to "operation not permitted" on CUDA API call',
}


def reported(bench, program, arguments=(), tools=None, quick=None):
    """The report of these programs, as JSON and as text, and the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        for name, script in {"gpu_bench": bench, "gpu": program, **(tools or {})}.items():
            (Path(folder) / name).write_text(f"#!/bin/sh\n{script}\n")
            (Path(folder) / name).chmod(0o755)
        gpu.tool = lambda name: f"{folder}/{name}" if tools else None
        gpu.plan = quick or plan
        more = ["--seconds", "300", "--without-python", "no wheel", *arguments]
        status = gpu.main([folder, "--out", f"{folder}/out/deep", *more])
        found = [Path(folder) / "out/deep" / f"a-device{suffix}" for suffix in (".json", ".txt")]
        if not found[0].exists():
            return None, None, status
        return json.loads(found[0].read_text()), found[1].read_text(), status


plan = gpu.plan


def quicker(*arguments):
    for name, command, limit, environment in plan(*arguments):
        yield name, command, 1 if name == "same bits: graph" else limit, environment


report, text, status = reported(BENCH, GPU, ["--faults"], quick=quicker)
groups = report["groups"]
verdicts = {name: group["verdict"] for name, group in groups.items()}
assert status == 1
assert verdicts["same bits: tensors"] == "FAILED (1)" and "wrong bit in tensor 3" in text
assert verdicts["same bits: graph"] == "TOO LONG"
assert verdicts["same bits: streams"] == verdicts["open, again"] == verdicts["fault: memory"] == "ok"
assert groups["same bits: streams"]["output"] == "wrong bit\n"  # an earlier result is on disk before the next group
assert verdicts["rows"] == "FAILED (-11)" and groups["rows"]["results"][0] == ROW
assert "GPT-2 f32, unscale" in text and "7B f32" in text and "not measured: out of memory" in text
assert verdicts["fault: pointer"] == "FAILED (1)" and "no words" in text
assert verdicts["torch"] == "not run" and "no wheel" in text
assert verdicts["memcheck: graph"] == "not run" and "compute-sanitizer is not here" in text
assert groups["memcheck: graph"]["seconds"] == 0
opened = [groups[f"open, {which}"]["results"][0] for which in ("first with the driver cache", "again")]
assert opened[0]["cache"] == opened[1]["cache"] != "" and [each["files"] for each in opened] == [0, 1]

# The order of what a short time has to serve; the context of the device is broken last, and only when asked.
order = ["same bits: lists", "same bits: tensors", "recordings", "same bits: graph", "same bits: streams"]
order += ["open, driver cache off", "rows", "scaler", "ncu: " + gpu.PROFILED[0], gpu.CHECKS[0], "fault: memory"]
order += ["fault: pointer"]
names = list(groups)
assert [name for name in names if name in order] == order and names[-1] == "fault: pointer"

report, text, status = reported(BENCH, GPU, ["--seconds", "4"])
assert status == 0 and {group["verdict"] for group in report["groups"].values()} == {"not run"}
assert "there was no time left" in text and "fault: pointer" not in report["groups"]

report, text, status = reported(BENCH, GPU, ["--seconds", "6", "--only", "same bits: graph"])
assert status == 0 and "there was no time left after" in text

assert reported("echo 'NOT RUN: no CUDA driver'", GPU) == (None, None, 0)

# Nine groups that the machine refuses are no failures; nine with an exit status of the tool's are.
for printed, refused in ((REFUSED, True), (FAULTY, False)):
    tools = {name: f"cat <<'END'\n{said}\nEND\nexit 9" for name, said in printed.items()}
    report, text, status = reported(BENCH, GPU, ["--only", "ncu,memcheck,racecheck,synccheck,initcheck"], tools)
    assert status == (not refused) and len(report["groups"]) == 9
    for name, group in report["groups"].items():
        words = "ERR_NVGPUCTRPERM - The user" if name.startswith("ncu") else "Device not supported."
        assert group["verdict"] == ("not run" if refused else "FAILED (9)"), name
        assert not refused or f"{name:44}not run: refused by this machine: {words}" in text

# No command changes the clocks, the power or the modes of the device; ncu sets the clocks unless it is told not to.
gpu.tool = lambda name: name
with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "gpu").write_text("#!/bin/sh\necho lists policies")
    (Path(folder) / "gpu").chmod(0o755)
    commands = [list(map(str, command)) for _, command, _, _ in plan(Path(folder), folder, faults=True)]
assert len([command for command in commands if command[0] == "ncu"]) == 3
assert all(command[1:3] == ["--clock-control", "none"] for command in commands if command[0] == "ncu")
sources = [TESTS / "../ci/gpu", *(TESTS / "bench" / name for name in ("gpu.py", "gpu_python.py"))]
sources += [TESTS / "cuda" / name for name in ("gpu.c", "gpu_bench.c", "gpu.h", "device.def")]
settings = re.compile(r"nvidia.smi|nvml|clock-control(?!\W+none)|persistence|power.?limit", re.IGNORECASE)
for source in sources:
    assert not settings.search(source.read_text()), f"{source} may change the settings of the device"
