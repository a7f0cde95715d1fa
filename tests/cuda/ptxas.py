# SPDX-License-Identifier: MIT
"""Assembles the kernels of the library, and shows what they need: ptxas.py PTXAS ARCHITECTURE..."""

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
        raise SystemExit(f"{architecture}: {done.stderr}")
    kernels = re.findall(
        r"entry function 'gsc_cuda_(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", done.stderr, re.S
    )
    if not kernels:
        raise SystemExit(f"{architecture}: no kernel in the words of ptxas: {done.stderr}")
    return kernels


def main():
    ptxas, *architectures = sys.argv[1:]
    old, new = modules()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # Drivers before CUDA 12.1 know no processor that is newer than sm_90.
        done = [pool.submit(assemble, ptxas, name, old) for name in architectures if int(name[3:]) <= 90]
        of_new = pool.map(lambda name: assemble(ptxas, name, new), architectures)
        print(f"{'':<8}{'kernel':<10}{'registers':>10}{'spilled':>14}")
        for architecture, kernels in zip(architectures, of_new, strict=True):
            for kernel, spilled, registers in kernels:
                print(f"{architecture:<8}{kernel:<10}{registers:>10}{spilled:>8} bytes")
        for old_module in done:
            old_module.result()


if __name__ == "__main__":
    main()
