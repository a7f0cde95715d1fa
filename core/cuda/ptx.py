#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles kernels.cu to PTX and writes it as ptx.c, which any C compiler puts into the library.

    core/cuda/ptx.py            writes ptx.c where its sources have changed
    core/cuda/ptx.py --check    writes nothing; fails where ptx.c is not of these sources

Compilers differ in the PTX that they make of the same source, so ptx.c says which one made it, and names its sources
by a hash. The check compiles again where the same compiler is at hand, and elsewhere trusts the hash.
"""

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORE = HERE.parent
INCLUDE = CORE.parent / "include"
SOURCES = [HERE / "kernels.cu", HERE / "launch.h", HERE / "ptx.py"]
SOURCES += [CORE / f"{name}.h" for name in ("bits", "convert", "log2", "policy", "step")]
HEADER = INCLUDE / "gradscaler.h"
# sm_70 is the first with matrix units for fp16; code for it runs on all later ones. Only small functions are inlined if
# they are not always_inline: the kernel of one thread, `step`, would have a copy of its functions for each call.
COMPILE = (
    "clang -x cuda -std=c++17 -nostdinc++ --cuda-device-only -nocudainc -nocudalib"
    " --cuda-gpu-arch=sm_70 -Xclang -target-feature -Xclang +ptx60 -O3 -ffp-contract=off -Wall -S"
    " -mllvm -inline-threshold=60 -mllvm -inlinehint-threshold=60"
)
HEAD = """/* SPDX-License-Identifier: MIT */
/*
 * Generated from kernels.cu by ptx.py. Do not edit.
 * compiler: {compiler}
 * sources: {sources}
 */
#include "launch.h"

#pragma GCC diagnostic ignored "-Woverlength-strings"

/* clang-format off */
"""
# The version that launch.h gives the module, and the kernel that needs a later one.
VERSION, MANY = ".version 6.0\n", "gsc_cuda_many"
DECLARATION = r"^\.func [^{;]*\n;\n"
DEFINITION = r"^\.(?:func|visible \.entry) (?:[^\n]* )?(\w+)\(\n.*?^}\n"


def bare(text):
    """Without comments."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)


def trimmed(declaration, names):
    """A struct that grows ends, for the kernels, with the last field that they name."""
    if "struct_size;" not in declaration:
        return declaration
    *fields, _ = declaration.split(";")
    while not names.intersection(re.findall(r"\w+", fields[-1])[1:]):
        fields.pop()
    return "".join(fields)


def used(code):
    """Returns the header's macros and types that the code names, and what these name: anything else that is new there
    changes no kernel."""
    patterns = (
        r"^#define (\w+)(?:[^\n]*\\\n)*[^\n]*$",
        r"^typedef struct (\w+) \{.*?^\} \w+;$",
        r"^typedef \w+ (\w+);$",
    )
    header = bare(HEADER.read_text())
    known = {m[1]: m[0] for pattern in patterns for m in re.finditer(pattern, header, re.M | re.S)}
    named = names = set(re.findall(r"\w+", code))
    used_names = set()
    while new := names & known.keys() - used_names:
        used_names |= new
        names = {word for name in new for word in re.findall(r"\w+", known[name])}
    return "".join(trimmed(known[name], named) for name in sorted(used_names))


def sources_hash():
    """Returns the hash of the code alone: a comment or a line break changes nothing."""
    code = "".join(bare(path.read_text()) for path in SOURCES)
    return hashlib.sha256("".join((code + used(code)).split()).encode()).hexdigest()


def compiler():
    try:
        version = subprocess.run(["clang", "--version"], capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return version.splitlines()[0]


def compile_ptx():
    command = [*COMPILE.split(), f"-I{CORE}", f"-I{INCLUDE}", "-o", "-", HERE / "kernels.cu"]
    ptx = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    version = re.search(r"^\.version .*\n", ptx, re.M)[0]
    if version != VERSION:
        sys.exit(f"clang wrote {version!r} instead of {VERSION!r}, which launch.h promises to drivers")
    ptx = re.sub(DECLARATION, "", ptx.replace(version, ""), flags=re.M)
    definitions = {m[1]: m[0] for m in re.finditer(DEFINITION, ptx, re.M | re.S)}
    for definition in definitions.values():
        ptx = ptx.replace(definition, "")
    many = definitions.pop(MANY)
    return string("gsc_cuda_ptx", ptx + callees_first(definitions)) + string("gsc_cuda_ptx_many", many)


def callees_first(definitions):
    """Returns the definitions, each function before its callers: none needs a declaration."""
    ordered = {}

    def add(name):
        for callee in re.findall(r"\bcall\.uni .*\n\t(\w+), ", definitions[name]):
            add(callee)
        ordered.setdefault(name, definitions[name])

    for name in definitions:
        add(name)
    return "".join(ordered.values())


def string(name, ptx):
    lines = (re.sub(r"\s+", " ", line.split("//")[0]).strip() for line in ptx.splitlines())
    text = "\n".join('"{}\\n"'.format(line.replace('"', '\\"')) for line in lines if line)
    return f"const char {name}[] =\n{text};\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail where ptx.c is out of date")
    check = parser.parse_args().check
    path = HERE / "ptx.c"
    old = path.read_text() if path.exists() else ""
    recorded = dict(re.findall(r"^ \* (compiler|sources): (.*)$", old, flags=re.M))
    here, sources = compiler(), sources_hash()
    fresh = recorded.get("sources") == sources
    if check and not fresh:
        sys.exit(f"{path.name} is not of these sources: run ci/generate")
    if fresh and (not check or here != recorded["compiler"]):
        print(f"{path.name} is of these sources")
        return
    if not here:
        sys.exit(f"{path.name} is not of these sources: install clang, and run ci/generate again")
    text = HEAD.format(compiler=here, sources=sources) + compile_ptx()
    if check and text != old:
        sys.exit(f"{path.name} is not what {here} makes of these sources: run ci/generate")
    if not check:
        path.write_text(text)
    print(f"{path.name} is what {here} makes of these sources")


if __name__ == "__main__":
    main()
