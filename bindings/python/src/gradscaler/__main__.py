# SPDX-License-Identifier: MIT
"""`python -m gradscaler` says what runs here: the first thing to look at, and to show to others, when something is odd.

The version, the file of the library, its instruction set, whether there is CUDA and why not, and which frameworks are
installed, which it does not import. Last it unscales three numbers and says whether the overflow among them was found.
To ask for CUDA starts its driver, which takes a second where there is a GPU.
"""

import argparse
import array
import importlib.metadata
import math
import platform
import sys

import gradscaler

PACKAGES = {
    "torch": "for gradscaler.torch",
    "jax": "for gradscaler.jax",
    "jaxlib": "for gradscaler.jax",
    "numpy": "for NumPy arrays, of which only torch and JAX have no need",
    "ml_dtypes": "for bfloat16 and float8 in NumPy",
}


def installed(package: str) -> str:
    """The version that pip knows, without importing the package; or what one lacks without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed; it is {PACKAGES[package]}"


def works() -> str:
    """What came of three gradients, of which one is infinite."""
    out = array.array("f", [0, 0, 0])
    report = gradscaler.Scaler("static", init_scale=4).unscale([array.array("f", [8, -4, math.inf])], out=[out])
    good = report.overflow and list(report.bad.values()) == [1] and list(out) == [2, -1, math.inf]
    return "yes" if good else f"NO: 8, -4, inf at scale 4 became {list(out)}, {report}"


def lines() -> dict[str, str]:
    """What is printed: words, and what stands behind them."""
    info = gradscaler.info()
    others = [name for name in info.cpu_available if name != info.cpu]
    cpu = info.cpu + (f"; GSC_CPU in the environment chooses {' or '.join(others)}" if others else "")
    return {
        "gradscaler": f"{info.version}, ABI {info.version.rpartition('.')[0]}",
        "library": gradscaler._gradscaler.__file__,
        "Python": f"{platform.python_version()}, {platform.platform()}, {sys.executable}",
        "CPU": cpu + (f" ({info.cpu_note})" if info.cpu_note else ""),
        "CUDA": info.cuda,
        **{name: installed(name) for name in PACKAGES},
        "works": works(),
    }


def main() -> int:
    """Prints it; 1 where the library does not do what it should."""
    argparse.ArgumentParser("python -m gradscaler", description=__doc__.splitlines()[0].replace("`", "")).parse_args()
    said = lines()
    for word, text in said.items():
        print(f"{word:<12}{text}")
    return said["works"] != "yes"


if __name__ == "__main__":
    sys.exit(main())
