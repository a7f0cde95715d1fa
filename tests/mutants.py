#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes small mistakes in the code, one at a time, and says which tests see them.

    tests/mutants.py [--seed N] [--count N] [--after N] [core | python | torch | jax | dropins | rust | elixir]

A mutant has another constant, comparison, sign or order of two arguments, or lacks a line. Each processor builds and
tests mutants in a copy of what is committed, in build/mutants. The table has a line for each: its number, what saw it,
seconds, file, line, mutant. A seed gives the same mutants again; --after N goes on behind number N. A mutant that
nobody saw is the same program, or shows that a test is missing. Exit code 1: some were not seen.
"""

import argparse
import itertools
import os
import random
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREES = [ROOT / f"build/mutants/tree{number}" for number in range(len(os.sched_getaffinity(0)))]
HAS_AVX512 = "avx512bw" in Path("/proc/cpuinfo").read_text()

CORE = "build/release/tests/core/core_tests"
PYTHON = ROOT / "build/venv/bin/python"
EMULATED = ROOT / "build/release/tests/cuda/emulated"  # the stand-in for the driver, if it is built
PYTEST = f"PYTHONPATH=build/python OMP_NUM_THREADS=1 {PYTHON} -m pytest -q -x -p no:cacheprovider bindings/python/tests"
PACKAGE = "bindings/python/src/gradscaler"
WHEEL = f"cp -r {PACKAGE} build/python && {PYTHON} -m compileall -q build/python"
LIBRARY = f"GRADSCALER_LIB_DIR={ROOT}/build/library"
CARGO = f"cd bindings/rust && CARGO_TARGET_DIR=$OLDPWD/build/rust CARGO_NET_OFFLINE=true {LIBRARY} cargo test --quiet"
MIX = f"cd bindings/elixir && MIX_ENV=test MIX_BUILD_PATH=$OLDPWD/build/elixir {LIBRARY} mix"
# For each part: its files, the files that are left out, how to build, and the tests, which run until one fails.
PARTS = {
    "core": (
        "core/*.[ch] core/cpu/*.[ch] core/formats/*.[ch]",
        "neon.c layout.h",
        "cmake --build build/release --target core_tests replay abi_ffi -- --quiet",
        {
            "core": f"{CORE} --abort '~[long]~[.]~[arithmetic]'",
            "abi": r"ctest --test-dir build/release --stop-on-failure -R '^(replay|abi\.ffi)$'",
            "long": f"{CORE} --abort '[long],[arithmetic]'",
        },
    ),
    "python": (
        f"{PACKAGE}/*.py",
        "_structs.py cerebras.py roundpipe.py",
        WHEEL,
        {
            "quick": f"{PYTEST} -k 'not leaks and not TestTorch'",
            "cuda": f"LD_LIBRARY_PATH={EMULATED} {PYTEST}/test_cuda.py",
            "slow": f"{PYTEST} -k 'leaks or TestTorch'",
        },
    ),
    "torch": (
        f"{PACKAGE}/torch/*.py",
        "",
        WHEEL,
        {
            "torch": f"{PYTEST}/with_torch --ignore bindings/python/tests/with_torch/test_programs.py",
            "device": f"LD_LIBRARY_PATH={EMULATED} {PYTEST}/with_torch/test_device.py",
        },
    ),
    "jax": (f"{PACKAGE}/jax/*.py", "", WHEEL, {"jax": f"JAX_PLATFORMS=cpu {PYTEST}/with_jax"}),
    "dropins": (f"{PACKAGE}/cerebras.py {PACKAGE}/roundpipe.py", "", WHEEL, {"dropins": f"{PYTEST}/dropins"}),
    "rust": (
        "bindings/rust/gradscaler/src/*.rs",
        "fields.rs generated.rs",
        f"{CARGO} --no-run",
        {"rust": f"{CARGO} --tests", "docs": f"{CARGO} --doc"},
    ),
    "elixir": (
        "bindings/elixir/lib/*.ex bindings/elixir/lib/*/*.ex",
        "native.ex structs.ex",
        f"{MIX} compile",
        {"elixir": f"{MIX} test --max-failures 1"},
    ),
}

# Patterns and their replacements. A name before the bracket keeps declarations out of the swaps.
MISTAKES = [
    (r"(?<![\w.])(\d+)(?![\w.])", lambda m: str(int(m[1]) + 1)),
    (r" (<|>)=? ", lambda m: f" {m[1]} " if "=" in m[0] else f" {m[1]}= "),
    (r" ([!=])= ", lambda m: " != " if m[1] == "=" else " == "),
    (r" ([+-]) ", lambda m: " - " if m[1] == "+" else " + "),
    (r" (&&|\|\||and|or) ", lambda m: {"&&": " || ", "||": " && ", "and": " or ", "or": " and "}[m[1]]),
    (r"(\w\()([\w.>-]+), ([\w.>-]+)(?=[,)])", lambda m: f"{m[1]}{m[3]}, {m[2]}"),
]
DOCUMENTATION = re.compile(r'""".*?"""', re.DOTALL)
COMMENT = re.compile(r"^\s*(#|//|/?\*|@|\"\"\"|import |from |use |mod |typedef |enum |extern )")


def mutants(files, generator):
    """Yields (file, number of the line, the line, its mutant) without an end."""
    lines = []
    for file in files:
        code = DOCUMENTATION.sub(lambda match: "\n" * match[0].count("\n"), file.read_text())
        for number, line in enumerate(code.splitlines(), 1):
            if line.strip() and not COMMENT.match(line) and not line.rstrip().endswith("\\"):
                lines.append((file, number, line))
    made = set()
    while True:
        file, number, line = generator.choice(lines)
        code = re.split(r"\s(?:/\*|//|#) |\s--\s", line)[0]
        if re.search(r'"[^"]*"', code):
            continue
        kind = generator.randrange(len(MISTAKES) + 1)
        if kind == len(MISTAKES):
            if not re.match(r"^\s+[\w.>*()\[\]-]+ ?([-+|&*]?= |\().*[;)\w\]]$", code) or "return" in code:
                continue
            indent = re.match(r"\s*", line)[0]
            new = indent + {".py": "pass", ".ex": "nil"}.get(file.suffix, ";")
        else:
            found = list(re.finditer(MISTAKES[kind][0], code))
            if not found:
                continue
            match = generator.choice(found)
            new = line[: match.start()] + MISTAKES[kind][1](match) + line[match.end() :]
        if new != line and (file, number, new) not in made:
            made.add((file, number, new))
            yield file, number, line, new


def run(tree, command, limit=None):
    """Returns the seconds of a command, or None if it fails or takes longer than the limit."""
    limited = ["timeout", "--signal=KILL", str(limit or 3600), "bash", "-c", command]  # with all that it starts
    began = time.monotonic()
    succeeded = subprocess.run(limited, cwd=tree, capture_output=True, check=False).returncode == 0
    return time.monotonic() - began if succeeded else None


def prepare(tree, build, tests):
    """Builds all of a tree without a mutant. Returns the limit in seconds of each test: a mutant may be endless."""
    tree.mkdir(parents=True, exist_ok=True)
    subprocess.run(f"git archive HEAD | tar -xm -C {tree}", shell=True, cwd=ROOT, check=True)
    if "build/release" in build:
        subprocess.run("cmake --preset release", shell=True, cwd=tree, check=True, stdout=subprocess.DEVNULL)
    if build == WHEEL:  # what is compiled comes from the installed package
        installed = f"{ROOT}/build/venv/lib/python3*/site-packages/gradscaler"
        subprocess.run(f"mkdir -p build/python; cp -r {installed} build/python", shell=True, cwd=tree, check=True)
    limits = {}
    for name, command in {"the build": build, **tests}.items():
        seconds = run(tree, command)
        if seconds is None:
            raise SystemExit(f"{name} fails without a mutant: {command}")
        limits[name] = 5 * seconds + 10
    return limits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="core", choices=PARTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="default: 300 of the core, 100 of a binding")
    parser.add_argument("--after", type=int, default=0, help="number of the last mutant that was tested")
    options = parser.parse_args()
    globs, without, build, tests = PARTS[options.part]
    count = options.count or (300 if options.part == "core" else 100)
    with ThreadPoolExecutor() as pool:
        limits = list(pool.map(lambda tree: prepare(tree, build, tests), TREES))

    first = TREES[0]
    files = [file for glob in globs.split() for file in sorted(first.glob(glob)) if file.name not in without.split()]
    numbered = itertools.islice(enumerate(mutants(files, random.Random(options.seed)), 1), options.after, None)
    lock, seen, unseen = threading.Lock(), [], []

    def work(tree, limit):
        while True:
            with lock:
                if len(seen) + len(unseen) >= count:
                    return
                number, (file, at, line, new) = next(numbered)
            if file.name == "avx512.c" and not HAS_AVX512:  # nobody sees it here
                continue
            path, began = file.relative_to(first), time.monotonic()
            text = (tree / path).read_text()
            lines = text.splitlines(keepends=True)
            lines[at - 1] = new + "\n"
            (tree / path).write_text("".join(lines))
            by = None
            if run(tree, build):
                by = next((name for name in tests if not run(tree, tests[name], limit[name])), "NOBODY")
            (tree / path).write_text(text)
            if by:
                row = f"{path}:{at}  {line.strip()}  ->  {new.strip() or ';'}"
                with lock:
                    (unseen if by == "NOBODY" else seen).append(row)
                    print(f"{number:4} {by:8}{time.monotonic() - began:5.0f} s  {row}", flush=True)

    workers = [threading.Thread(target=work, args=each, daemon=True) for each in zip(TREES, limits, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(
        f"\n{len(seen)} of {len(seen + unseen)} were seen, seed {options.seed}",
        *(f"not: {row}" for row in unseen),
        sep="\n  ",
    )
    return bool(unseen)


if __name__ == "__main__":
    sys.exit(main())
