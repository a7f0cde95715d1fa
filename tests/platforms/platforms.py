#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds the library for other platforms, and runs it where an emulator of one is at hand.

    platforms.py [--long | --only WORD] [--page]

Run it as `ci/test platforms` or `ci/test --long platforms`, which make what it needs: zig, a compiler for all of them,
in the Python that runs this; what tests/parity/record.py recorded; this machine's own client of the parity test. A
platform passes if that client, built for it, prints the same digest, with the instruction set that is chosen there and
in plain C. What can only be built is said to be so. Targets that the library is not for must be refused by the header's
own sentence.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/platforms"
ZIG = [sys.executable, "-m", "ziglang"]
FILE = ROOT / "build/parity/steps.bin"
NATIVE = ROOT / "build/release/tests/parity/parity"
ARM = "" if os.uname().machine == "aarch64" else "qemu-aarch64-static -L /usr/aarch64-linux-gnu"
BEGIN, END = "<!-- written by tests/platforms/platforms.py --page -->\n", "<!-- to here -->"
SOURCES = sorted(ROOT.glob("core/**/*.c")) + [ROOT / "tests/parity/parity.c"]
FLAGS = ["-std=c11", "-O2", "-ffp-contract=off", "-D_POSIX_C_SOURCE=200809L", "-DGSC_STATIC", "-Wall", "-Werror"]
REFUSAL = "gradscaler is for 64-bit little-endian machines"
REFUSED = "x86-linux-musl", "arm-linux-musleabihf", "wasm32-wasi", "powerpc64-linux-musl"


@dataclass
class Platform:
    words: str  # as a user says it
    target: str  # as the compiler says it
    runner: str | None = None  # the command that runs its programs here; "": this machine does; None: nothing
    is_short: bool = False  # also runs without --long

    def program(self):
        return BUILD / self.target / ("parity.exe" if "windows" in self.target else "parity")


PLATFORMS = [
    Platform("Linux x86-64, glibc 2.17", "x86_64-linux-gnu.2.17", ""),
    Platform("Linux x86-64, musl", "x86_64-linux-musl", ""),
    Platform("Linux arm64, glibc 2.17", "aarch64-linux-gnu.2.17", ARM, True),
    Platform("Linux arm64, musl", "aarch64-linux-musl", ARM),
    Platform("Linux riscv64, musl", "riscv64-linux-musl", "qemu-riscv64-static"),
    Platform("Linux ppc64le, musl", "powerpc64le-linux-musl", "qemu-ppc64le-static"),
    Platform("Windows x64", "x86_64-windows-gnu", "wine", True),
    Platform("Windows arm64", "aarch64-windows-gnu"),
    Platform("macOS arm64", "aarch64-macos"),
    Platform("macOS x64", "x86_64-macos"),
    Platform("FreeBSD x64", "x86_64-freebsd"),
]


def run(command, **more):
    try:
        return subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=1800, **more)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", "not done after half an hour")


def compile_for(platform):
    """None, or why it cannot be built."""
    folder = BUILD / platform.target
    folder.mkdir(parents=True, exist_ok=True)
    target = ["-target", platform.target]

    def compile_one(source):
        compiled = folder / f"{source.parent.name}-{source.stem}.o"
        include = [f"-I{ROOT / name}" for name in ("core", "include")]
        return compiled, run([*ZIG, "cc", *target, *FLAGS, *include, "-c", source, "-o", compiled])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compile_one, SOURCES))
    for _, result in results:
        if result.returncode != 0:
            return result.stderr
    objects = [compiled for compiled, _ in results]
    linked = run([*ZIG, "cc", *target, *objects, "-lm", "-lpthread", "-o", platform.program()])
    return linked.stderr if linked.returncode != 0 else None


def digest(command, name):
    """Returns what the client prints, or the end of its errors."""
    environment = os.environ | {"WINEDEBUG": "-all", "WINEPREFIX": str(BUILD / "wine"), "GSC_CPU": name}
    result = run([*command, FILE], env=environment)
    return result.stdout.strip() if result.returncode == 0 else (result.stderr or result.stdout).strip()[-300:]


def try_platform(platform, expected):
    """A row: the platform, whether it was built, run, and gave the same bits; and what went wrong."""
    row = {"platform": platform.words, "run": "no emulator", "digest": "", "wrong": ""}
    row["wrong"] = compile_for(platform) or ""
    if row["wrong"]:
        return row | {"run": ""}
    if platform.runner is None:
        return row
    runner = shlex.split(platform.runner)
    if runner and not shutil.which(runner[0]):
        return row | {"run": f"{runner[0]} is not installed", "wrong": f"install {runner[0]}"}
    row["run"] = runner[0].removesuffix("-static") if runner else "here"
    found = {name: digest([*runner, platform.program()], name) for name in ("", "scalar")}
    wrong = [f"GSC_CPU={name}: {text}" for name, text in found.items() if text != expected]
    return row | {"digest": "different" if wrong else "equal", "wrong": "; ".join(wrong)}


def check_refused(target):
    """None, or what the compiler says instead of the header's sentence."""
    result = run([*ZIG, "cc", "-target", target, "-c", "-o", os.devnull, "-x", "c", ROOT / "include/gradscaler_cuda.h"])
    return None if result.returncode != 0 and REFUSAL in result.stderr else result.stderr or "it compiles"


def write_table(rows):
    """Writes these rows, in the order of PLATFORMS; others stay as they were."""
    page = ROOT / "docs/measured.md"
    before, rest = page.read_text().split(BEGIN)
    block, after = rest.split(END, 1)
    lines = {line.split("|")[1].strip(): line for line in block.splitlines()}
    for name, row in rows.items():
        ran = f"by {row['run']}" if row["run"] != "here" else "here"
        lines[name] = f"| {name} | yes | {ran} | {row['digest']} |" if row["digest"] else f"| {name} | yes | no | |"
    names = [platform.words for platform in PLATFORMS if platform.words in lines]
    table = ["| platform | built | run | digest |", "|---|---|---|---|", *(lines[name] for name in names)]
    page.write_text(before + BEGIN + "\n".join(table) + "\n" + END + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="all platforms instead of two")
    parser.add_argument("--only", default="", metavar="WORD", help="platforms with this in their name")
    parser.add_argument("--page", action="store_true", help="also write their rows into docs/measured.md")
    options = parser.parse_args()
    expected = digest([NATIVE], "")
    if len(expected.partition(" ")[0]) != 8:
        sys.exit(f"{NATIVE} {FILE}: {expected}")
    print(f"this machine: {expected}\n", flush=True)
    rows, failed = [], 0
    for platform in PLATFORMS:
        if not (platform.is_short or options.long or options.only) or options.only not in platform.words:
            continue
        start = time.monotonic()
        row = try_platform(platform, expected)
        rows.append(row)
        failed += bool(row["wrong"])
        word = row["wrong"] and "FAILED" or row["digest"] and "same bits" or "builds; not run"
        print(f"{row['platform']:<28}{row['run']:<18}{word:<16}{time.monotonic() - start:5.0f} s", flush=True)
        if row["wrong"]:
            print(f"  {row['wrong']}", flush=True)
    for target in REFUSED:
        wrong = check_refused(target)
        failed += bool(wrong)
        print(f"{target:<46}{'FAILED: ' + wrong if wrong else 'refused in one sentence'}", flush=True)
    print(f"{len(rows) + len(REFUSED) - failed} passed, {failed} failed")
    if options.page:
        write_table({row["platform"]: row for row in rows if not row["wrong"]})
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
