# SPDX-License-Identifier: MIT
"""Writes the manifest's version into the files of packages that must state it. The rest of them is written by hand."""

import re
import sys

from manifest import ROOT, run

NUMBER = r'"\d+\.\d+\.\d+"'
# The text before the version; in the crates also before the versions of crates that they depend on.
LINE = [r"^version = "]
CRATE = [r"^version = ", r'path = "[^"]*", version = ']
LOCKED = [r'^name = "gradscaler[a-z-]*"\nversion = ']
PLACES = {
    "bindings/python/pyproject.toml": LINE,
    "bindings/python/src/gradscaler/__init__.py": [r"^__version__ = "],
    "bindings/elixir/mix.exs": [r"^      version: "],
    "bindings/elixir/lib/grad_scaler.ex": [r"^      iex> GradScaler\.info\(\)\.version\n      "],
}
for folder in ("", "*/", "*/*/"):
    for name, places in (("Cargo.toml", CRATE), ("Cargo.lock", LOCKED)):
        for path in sorted((ROOT / "bindings/rust").glob(folder + name)):
            PLACES[str(path.relative_to(ROOT))] = places


def stamp(name, places):
    def emit(manifest):
        version = "{}.{}.{}".format(*manifest.version)
        before = "|".join(places)
        text, count = re.subn(f"({before}){NUMBER}", rf'\g<1>"{version}"', (ROOT / name).read_text(), flags=re.M)
        if places is not CRATE and not count:
            sys.exit(f"{name}: has no version where packaging/generate.py looks for it")
        return text

    return emit


run({name: stamp(name, places) for name, places in PLACES.items()})
