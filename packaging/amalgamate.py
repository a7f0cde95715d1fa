#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the library as one C file and its headers: amalgamate.py FOLDER, from the tree that this file is in.

The headers of the core come first, in the order in which they need each other; then its C files. Names that are static
may occur in several of these: each file gets its own, with its folder and name in front. Macros end with their file.
"""

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "core"
INCLUDE = re.compile(r'^#include "(.*)"\n', re.M)
GUARD = re.compile(r"^#ifndef (GSC_\w+_H)\n#define \1\n", re.M)
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\.?\d[\w.]*|\w+|->|.', re.S)
# Names that a file defines beside macros: functions, objects, types, enumerators; beginnings of names for macros.
DEFINED = re.compile(
    r"^(?:static|GSC_INLINE)\b[^;={]*?\b(?!__attribute__)(?P<object>\w+)\s*(?:\((?!\()|\[|=|;)"
    r"|^typedef (?:[^;{]*\W|struct[^;]*?^\} )(?P<type>\w+);"
    r"|^(?:typedef |static const )?(?:struct|union|enum) (?P<tag>\w+) \{"
    r"|^\s*(?:typedef )?enum(?: \w+)? \{(?P<enumerators>[^}]*)\}"
    r"|\b(?P<stem>(?!gsc_)[a-z]\w*_)##"
    r"|^(?:GSC_KERNEL|MULTIPLY_GROUPS)\((?P<kernel>\w+),",
    re.M,
)
MEMBERS = re.compile(r"^(?:typedef |static )?(?:const )?(?:struct|union)(?: \w+)? \{(.*?)^\}", re.M | re.S)
# The numerics define the bits: no product and sum in one rounding unless the code says so. Aligned loops: a
# tight loop that crosses a cache line can run several times slower.
START = """\
/*
 * gradscaler VERSION in one file: compile it as C11 or later, with its headers beside it. Link with -pthread, -lm and,
 * on Linux, -ldl. GSC_NO_CUDA leaves CUDA out. On Windows define GSC_STATIC, here and where the header is used.
 *
LICENSE */
#if defined(__cplusplus)
#error "gradscaler.c is C: compile it with a C compiler, and link it; gradscaler.h is also for C++"
#endif
#if !defined(__SIZEOF_INT128__)
#error "gradscaler.c needs integers of 128 bits: compile it with gcc or clang, and link it with any C11"
#endif
#if defined(__FAST_MATH__)
#error "compile gradscaler.c without -ffast-math, which takes infinities and NaN for numbers that do not occur"
#endif
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wshadow" /* variables have names that other files define */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off", "align-functions=64", "align-loops=64")
#endif
"""
# Names that are not in the public header stay inside; names that the system declares do not.
PUBLIC = """\
#if defined(_WIN32) && !defined(GSC_STATIC) && !defined(GSC_BUILD)
#define GSC_STATIC
#endif
#include "gradscaler_cuda.h"
#if defined(_WIN32)
#define GSC_OURS
#define GSC_THEIRS
#else
#define GSC_OURS   _Pragma("GCC visibility push(hidden)")
#define GSC_THEIRS _Pragma("GCC visibility pop")
#endif
GSC_OURS
"""


def read(path):
    text = path.read_text().replace("/* SPDX-License-Identifier: MIT */\n", "")
    return re.sub(r"(?:^#include <.*>\n)+", r"GSC_THEIRS\n\g<0>GSC_OURS\n", text, flags=re.M)


def find(name, beside):
    """The header of the core that a file includes, or None: the public one stays an include."""
    candidates = [beside / name, CORE / name]
    return next((path for path in candidates if path.exists()), None)


def collect(path, headers):
    """The text of a file. Headers that are included once in a file go to `headers`, and the others into the text."""

    def include(match):
        header = find(match[1], path.parent)
        if header is None:
            return "" if match[1] == "gradscaler.h" else match[0]
        text = read(header)
        if not GUARD.search(text):
            return collect(header, headers)
        if header not in headers:
            text = collect(header, headers)
            headers[header] = text
        return ""

    return INCLUDE.sub(include, read(path))


def defined(text):
    names = set()
    for match in DEFINED.finditer(text):
        if match["enumerators"]:
            values = re.sub(r"/\*.*?\*/|^#[^\n]*\n", "", match["enumerators"], flags=re.S | re.M)
            names.update(re.findall(r"(?:^|,)\s*([A-Za-z]\w*)\s*(?=[=,]|$)", values))
        else:
            names.add(next(filter(None, match.groups())))
    return names


def rename(text, names, prefix):
    """The text with these names prefixed, where they are no strings, comments or members."""
    out, before = [], ""
    members = [range(*match.span(1)) for match in MEMBERS.finditer(text)]
    at = 0
    for token in TOKEN.findall(text):
        at += len(token)
        declared = text[at : at + 1] in (";", ",", "[") and any(at in span for span in members)
        is_member = declared or before in (".", "->")
        out.append(f"{prefix}_{token}" if token in names and not is_member else token)
        if not token.isspace():
            before = token
    return "".join(out)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    headers, files = {}, {}
    # The driver is last: on Windows it includes a header that has macros of many names.
    last = CORE / "cuda/driver.c"
    for path in [*sorted(p for p in CORE.glob("**/*.c") if p != last), last]:
        files[path] = collect(path, headers)
    shared = set().union(*map(defined, headers.values()))
    counts = Counter(name for text in files.values() for name in defined(text) | shared)
    public = {path.name: path.read_text() for path in sorted((ROOT / "include").glob("*.h"))}
    version = ".".join(re.findall(r"^#define GSC_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)", public["gradscaler.h"], re.M))
    licence = "".join(f" * {line}".rstrip() + "\n" for line in (ROOT / "LICENSE").read_text().splitlines())
    parts = [START.replace("VERSION", version).replace("LICENSE", licence)]
    parts.append(PUBLIC)
    for path, text in headers.items():
        parts.append(f"\n/* ==== {path.relative_to(ROOT)} ==== */\n{text}")
    for path, text in files.items():
        twice = {name for name in defined(text) if counts[name] > 1 and not name.startswith("gsc_")}
        text = rename(text, twice, f"{path.parent.name}_{path.stem}")
        macros = "".join(f"#undef {name}\n" for name in dict.fromkeys(re.findall(r"^\s*#\s*define (\w+)", text, re.M)))
        cuda = path.parent.name == "cuda"
        part = f"\n/* ==== {path.relative_to(ROOT)} ==== */\n{text}{macros}"
        parts.append(f"#if !defined(GSC_NO_CUDA)\n{part}#endif\n" if cuda else part)
    parts.append("GSC_THEIRS\n")
    (folder / "gradscaler.c").write_text("".join(parts))
    for name, text in public.items():
        (folder / name).write_text(text)


main()
