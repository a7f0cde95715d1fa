# SPDX-License-Identifier: MIT
"""Assembles the kernels of the library, and shows what they need: ptxas.py PTXAS ARCHITECTURE..."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CUDA = Path(__file__).parents[2] / "core/cuda"


def modules():
    """What the library hands to drivers before CUDA 12.1, and since."""
    versions = re.findall(r'define GSC_CUDA_PTX_VERSION\w* +"(.*)\\n"', (CUDA / "launch.h").read_text())
    texts = re.findall(r"^const char \w+\[\] =\n(.*?);$", (CUDA / "ptx.c").read_text(), re.M | re.S)
    texts = ["".join(json.loads(line) for line in text.splitlines()) for text in texts]
    return ["\n".join([version, *texts[: i + 1]]) for i, version in enumerate(versions)]


def assemble(ptxas, architecture, ptx):
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [ptxas, "-v", f"-arch={architecture}", "-o", "/dev/null", file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{architecture}: {done.stderr}")
    kernels = re.findall(
        r"entry function 'gsc_cuda_(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", done.stderr, re.S
    )
    if not kernels:
        sys.exit(f"{architecture}: no kernel in the words of ptxas: {done.stderr}")
    return kernels


def main():
    old, new = modules()
    print(f"{'':<8}{'kernel':<10}{'registers':>10}{'spilled':>14}")
    for architecture in sys.argv[2:]:
        assemble(sys.argv[1], architecture, old)
        kernels = assemble(sys.argv[1], architecture, new)
        for kernel, spilled, registers in kernels:
            print(f"{architecture:<8}{kernel:<10}{registers:>10}{spilled:>8} bytes")


if __name__ == "__main__":
    main()
