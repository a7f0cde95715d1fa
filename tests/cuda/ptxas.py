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
    """Returns the PTX for drivers before CUDA 12.1, and since."""
    versions = re.findall(r'define GSC_CUDA_PTX_VERSION\w* +"(.*)\\n"', (CUDA / "launch.h").read_text())
    texts = re.findall(r"^const char \w+\[\] =\n(.*?);$", (CUDA / "ptx.c").read_text(), re.M | re.S)
    texts = ["".join(json.loads(line) for line in text.splitlines()) for text in texts]
    return ["\n".join([version, *texts[: i + 1]]) for i, version in enumerate(versions)]


NEEDS = {
    "registers": r"Used (\d+)",
    "spilled": r"(\d+) bytes spill s",
    "stack": r"(\d+) bytes stack",
    "shared": r"(\d+) bytes smem",
}


def assemble(ptxas, architecture, ptx, cubin="/dev/null"):
    """Assembles PTX. Returns what each kernel needs, by its name."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [ptxas, "-v", f"-arch={architecture}", "-o", cubin, file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{architecture}: {done.stderr}")
    kernels = {}
    for kernel in done.stderr.split("Compiling entry function 'gsc_cuda_")[1:]:
        found = {name: re.search(pattern, kernel) for name, pattern in NEEDS.items()}
        kernels[kernel.split("'")[0]] = {name: int(match[1]) if match else 0 for name, match in found.items()}
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
            for kernel, needs in kernels.items():
                print(f"{architecture:<8}{kernel:<10}{needs['registers']:>10}{needs['spilled']:>8} bytes")
        for old_module in done:
            old_module.result()


if __name__ == "__main__":
    main()
