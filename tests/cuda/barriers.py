# SPDX-License-Identifier: MIT
"""Removes each barrier of the kernels in turn; a test must see it: barriers.py CUDA_PTX KERNELS.C"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = "lists of many tensors*,more chunks and tensors*,*every operation, pair and size"


def failure(program, barrier):
    """Returns the last words of the tests without the barrier, or None if they pass."""
    command = [program, TESTS, "--abort", "--order", "rand", "--rng-seed", "2"]
    environment = {**os.environ, "GSC_REMOVED_BARRIER": barrier}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    test = re.search(r"^-+\n(.+)\n(?:  .*\n)*-+$", done.stdout, re.M)
    reason = done.stderr.strip().splitlines() or ["other bits than the CPU's"]
    return None if done.returncode == 0 else f"{reason[-1]} ({test[1] if test else 'no test'})"


def main():
    program, kernels = sys.argv[1:]
    barriers = re.findall(r'is_kept\("(\w+ \d+)"\)', Path(kernels).read_text())
    with ThreadPoolExecutor(2) as pool:
        failures = list(pool.map(lambda barrier: failure(program, barrier), barriers))
    for barrier, seen in zip(barriers, failures, strict=True):
        print(f"{barrier:<12}{seen or 'NOT SEEN'}")
    if not barriers or None in failures:
        sys.exit("a barrier is not needed, or not tested")


if __name__ == "__main__":
    main()
