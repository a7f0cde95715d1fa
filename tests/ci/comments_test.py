#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""No sentence of a comment or a guide is torn: a small word stands twice, or an article has no noun."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SLASHES, STARS, HASH = r"\s*///?!?(?= |$)", r"\s*(?:/\*|\*/|\*)(?= |$)", r"\s*#(?= |$)"
MARKS = {"rs": SLASHES, "c": STARS, "h": STARS, "cu": STARS, "cpp": STARS, "toml": HASH, "txt": HASH, "yml": HASH}
MARKS |= {"py": HASH, "ex": HASH, "exs": HASH, "sh": HASH, "md": ""}
WORDS = r"also|is|are|was|of|and|or|to|in|for|by|with|that|which|it|then|but|from|on|at|has|have|can|the|a|an|if|so"
TORN = re.compile(rf"\b(?:the|an|its|every) (?:{WORDS})\b(?![`'\"-])|\b(?!on |that )({WORDS}) \1\b", re.I)
GENERATED = ("tests/abi/released/", "ci/locks/", "core/cuda/ptx.c")


def texts(path):
    """Returns the comments of a file, and what is between three quotes: its first line, and its words."""
    mark, lines = re.compile(MARKS[path.suffix[1:]]), path.read_text().splitlines()
    found, quoted = [], False
    for number, line in enumerate(lines, 1):
        quotes = path.suffix in (".py", ".ex", ".exs") and line.count('"""')
        is_text = quoted or quotes or mark.match(line)
        if is_text and (not found or found[-1][1] is None):
            found.append((number, []))
        if is_text:
            found[-1][1].append(mark.sub("", line, count=1).strip())
        elif found and found[-1][1] is not None:
            found.append((number, None))
        quoted ^= bool(quotes and quotes % 2)
    return [(number, " ".join(words)) for number, words in found if words]


def torn(text):
    code = re.compile(r"`[^`]*`|\b\w+\([^)]*\)")
    return [match[0] for match in TORN.finditer(code.sub("`", text))]


assert torn("in a release the also the checksums") and torn("of of") and not torn("the first of a list is the one")
wrong = []
for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
    path = ROOT / name
    if not name.startswith(GENERATED) and path.suffix[1:] in MARKS:
        wrong += [f"{name}:{number}: {found}" for number, text in texts(path) for found in torn(text)]
assert not wrong, "torn sentences:\n" + "\n".join(wrong)
