# SPDX-License-Identifier: MIT
"""Assembles the kernels of the library for every architecture, and shows what each needs: ptxas.py PTXAS"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
SOURCE = Path(__file__).parents[2] / "core/cuda/ptx.c"


def main():
    text = "".join(json.loads(line.rstrip(";")) for line in SOURCE.read_text().splitlines() if line.startswith('"'))
    print(f"{'':<8}{'kernel':<10}{'registers':>10}{'spilled':>14}")
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as ptx:
        ptx.write(text)
        ptx.flush()
        for architecture in ARCHITECTURES:
            command = [sys.argv[1], "-v", f"-arch={architecture}", "-o", "/dev/null", ptx.name]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{architecture}: {done.stderr}")
            kernels = re.findall(
                r"entry function 'gsc_cuda_(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", done.stderr, re.S
            )
            if not kernels:
                sys.exit(f"{architecture}: no kernel in the words of ptxas: {done.stderr}")
            for kernel, spilled, registers in kernels:
                print(f"{architecture:<8}{kernel:<10}{registers:>10}{spilled:>8} bytes")


main()
