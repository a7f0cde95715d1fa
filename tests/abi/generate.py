# SPDX-License-Identifier: MIT
"""Writes the signature table of the foreign client, which is all that it knows of the library: of the manifest, or of a
release. generate.py FILE [DIGEST]"""

import sys
from pathlib import Path

from manifest import SIZES, is_pointer, load, note
from released import read

NOTE = note(__file__)


def scalar(base):
    letter = {"i": "S", "u": "U"}.get(base[0])
    return base.upper() if letter is None else f"{letter}{8 * SIZES[base]}"


def kind(member):
    return "POINTER" if is_pointer(member.c) else scalar(member.base)


def signatures(items):
    """The arrays of foreign.h in C."""
    results = {"void": "VOID", "string": "POINTER"} | {base: scalar(base) for base in SIZES}
    results |= {item.name: scalar(item.type) for item in items if item.what == "alias"}
    lines = ["/* SPDX-License-Identifier: MIT */", f"/* {NOTE} */", "const structure structures[] = {"]
    for item in (each for each in items if each.what == "struct"):
        lines.append(f'{{"{item.name}", {item.size}, {int(item.kind == "grows")}, (const field[]){{')
        for field in item.fields:
            what = "NESTED" if field.kind == "struct" and not field.passing else kind(field)
            lines.append(f'{{"{field.name}", {what}, {field.array or 1}, {field.offset}}},')
        lines.append("{0}}},")
    lines += ["{0}};", "const function functions[] = {"]
    for function in (each for each in items if each.what == "function"):
        lines.append(f'{{"{function.name}", {results[function.returns]}, (const argument[]){{')
        names = [arg.name for arg in function.args]
        for arg in function.args:
            count = names.index(arg.count) if arg.count else -1
            null = "NEVER" if arg.null is None else "ALWAYS"
            if arg.count and not arg.required and not arg.null:
                null = "WITHOUT_COUNT"
            passing = (arg.passing or ("in" if arg.const else "out" if arg.count else "value")).upper()
            lines.append(f'{{{kind(arg)}, "{arg.type}", {passing}, "{arg.name}", {null}, {count}}},')
        lines.append("{0}}},")
    return "\n".join([*lines, "{0}};", ""])


if __name__ == "__main__":
    manifest = read(Path(sys.argv[2])) if sys.argv[2:] else load()
    Path(sys.argv[1]).write_text(signatures(manifest.items))
