# SPDX-License-Identifier: MIT
"""Removes barriers, fences and steps of arithmetic from the kernels; tests must see each: barriers.py GPU KERNELS.C"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ARITHMETIC = ["rounding", "count"]


def run(program, group, removed, check="0"):
    environment = {**os.environ, "GSC_REMOVED": removed, "GSC_CUDA_CHECK": check}
    return subprocess.run([program, group], capture_output=True, text=True, env=environment)


def failures(program, removed):
    """Returns who sees it: the tests of lists, the comparisons (the name of one), the check at the first use."""
    groups = () if removed in ARITHMETIC else ("lists", "tensors")
    tests = any(run(program, group, removed).returncode for group in groups) or not groups
    doctor = run(program, "comparisons", removed)
    before = re.split(r"(?:gpu|ptx)\.c:", doctor.stdout + doctor.stderr)[0]
    comparison = re.findall(r"(.+), round", before)[-1] if doctor.returncode else None
    return tests, comparison, run(program, "streams", removed, check="1").returncode != 0


def main():
    program, kernels = sys.argv[1:]
    barriers = re.findall(r'is_kept\("([\w ]+)"\)', Path(kernels).read_text())
    removals = [*barriers, *ARITHMETIC]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda removed: failures(program, removed), removals))
    for removed, (tests, comparison, first_use) in zip(removals, found, strict=True):
        words = "seen" if tests else "NOT SEEN", comparison or "NOT SEEN", "seen" if first_use else "not seen"
        print("{:<16}tests: {:<10}doctor: {:<15}first use: {}".format(removed, *words))
    if not barriers or not all(tests and comparison for tests, comparison, _ in found):
        sys.exit("a barrier or a fence is not needed, or not tested")
    if not all(first_use for *_, first_use in found[-len(ARITHMETIC) :]):
        sys.exit("the check at the first use lets wrong bits through")


if __name__ == "__main__":
    main()
