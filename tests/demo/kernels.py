#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the demos with the matrix kernels of several processors: kernels.py [--threads N ...] [--seeds N]

Kernels of OpenBLAS differ in the last bits of a product, and a training can amplify the difference. The demos have to
keep their promises with every kernel that this processor can execute, and with NumPy's loops reduced to its baseline.
Prints the accuracies that the demos judge. The exit status is 1 if a demo fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[2] / "bindings/python/examples"
AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
FLAGS = {  # of /proc/cpuinfo, by the kernel that needs them
    "Prescott": {"pni"},
    "Nehalem": {"sse4_2"},
    "Sandybridge": {"avx"},
    "Haswell": {"avx2", "fma"},
    "Zen": {"avx2", "fma"},
    "SkylakeX": AVX512,
}
ALIASES = {"Katmai": "Prescott"}  # the name that OpenBLAS gives its oldest kernel
PROBE = """
import numpy, threadpoolctl
for library in threadpoolctl.threadpool_info():
    if library["internal_api"] == "openblas":
        print(library["architecture"])
"""


def cpu_flags():
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def python(*arguments, **environment):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)


def obstacle(kernel):
    """Says why a kernel cannot run here, or returns an empty string."""
    if missing := FLAGS[kernel] - cpu_flags():
        return "the processor lacks " + ", ".join(sorted(missing))
    used = python("-c", PROBE, OPENBLAS_CORETYPE=kernel).stdout.strip()
    if ALIASES.get(used, used) != kernel:
        return f"OpenBLAS uses {used} instead" if used else "NumPy uses no OpenBLAS, or threadpoolctl is missing"
    return ""


def figures(script, folder):
    facts = json.loads((folder / f"{script}.json").read_text())
    if script != "guard":
        return ", ".join(f"{run['name']} {run['accuracy']:.1%}" for run in facts["runs"])
    percents = "; ".join(
        " ".join(f"{rule[fact]['median']:.0%}" for fact in ("worst accuracy", "final accuracy")) for rule in facts
    )
    return f"worst and final of each rule: {percents}"


def run(job):
    script, options, kernel, threads, environment = job
    with tempfile.TemporaryDirectory() as folder:
        result = python(EXAMPLES / f"{script}.py", "--out", folder, *options, **environment)
        done = (Path(folder) / f"{script}.json").exists()
        verdict = "ok" if result.returncode == 0 else (result.stderr.strip() or "no message").splitlines()[-1]
        text = figures(script, Path(folder)) if done else "no figures"
    print(f"{kernel:<16} {threads} threads  {script + '.py':<10}  {text}: {verdict}", flush=True)
    return result.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="of OpenBLAS (1 2)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="of guard.py (%(default)s)")
    arguments = parser.parse_args()
    environments = {}
    for kernel in FLAGS:
        if reason := obstacle(kernel):
            print(f"{kernel:<16} not run: {reason}")
        else:
            environments[kernel] = {"OPENBLAS_CORETYPE": kernel}
    dispatched = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    environments["NumPy's baseline"] = {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched)}
    scripts = ("demo", []), ("float16", []), ("guard", ["--seeds", arguments.seeds])
    passed = []
    for threads in arguments.threads:
        jobs = [
            (script, options, kernel, threads, environment | {"OPENBLAS_NUM_THREADS": str(threads)})
            for kernel, environment in environments.items()
            if threads == arguments.threads[0] or "OPENBLAS_CORETYPE" in environment
            for script, options in scripts
        ]
        with ThreadPoolExecutor(max(1, min(2, (os.cpu_count() or 1) // threads))) as pool:
            passed += pool.map(run, jobs)
    print(f"{sum(passed)} of {len(passed)} runs kept their promises")
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
