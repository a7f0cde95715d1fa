# SPDX-License-Identifier: MIT
"""Removes each barrier and each fence of the kernels in turn; a test must see it: barriers.py GPU KERNELS.C"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def failure(program, barrier):
    """Returns the last words of the lists of tensors without the barrier, or None if they pass."""
    environment = {**os.environ, "GSC_REMOVED_BARRIER": barrier}
    for group in ("lists", "tensors"):
        done = subprocess.run([program, group], capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            return (done.stderr.strip() or "other bits than the CPU's").splitlines()[-1]
    return None


def main():
    program, kernels = sys.argv[1:]
    barriers = re.findall(r'is_kept\("([\w ]+)"\)', Path(kernels).read_text())
    with ThreadPoolExecutor(2) as pool:
        failures = list(pool.map(lambda barrier: failure(program, barrier), barriers))
    for barrier, seen in zip(barriers, failures, strict=True):
        print(f"{barrier:<16}{seen or 'NOT SEEN'}")
    if not barriers or None in failures:
        sys.exit("a barrier or a fence is not needed, or not tested")


if __name__ == "__main__":
    main()
