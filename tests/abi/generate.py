# SPDX-License-Identifier: MIT
"""Writes the signature table of the foreign client, which is all that it knows of the library: generate.py FILE"""

import sys
from pathlib import Path

from manifest import SIZES, is_pointer, load, note

NOTE = note(__file__)
HEAD = """\
/* FUNCTION(name, result) ARGUMENT(kind, type, pass, name, may be NULL, count) ... END()
 * NULL: 0 never, 1 always, 2 where argument `count` is 0 (-1: no count)
 * STRUCT(name, size, grows) FIELD(name, kind, count, offset) NESTED(name, struct, count, offset) END_STRUCT() */
"""


def scalar(base):
    letter = {"i": "S", "u": "U"}.get(base[0])
    return base.upper() if letter is None else f"{letter}{8 * SIZES[base]}"


def kind(member):
    return "POINTER" if is_pointer(member.c) else scalar(member.base)


def result(manifest, returns):
    fixed = {"void": "VOID", "string": "POINTER"}
    return fixed.get(returns) or scalar(manifest.base(returns))


def signatures(manifest):
    lines = ["/* SPDX-License-Identifier: MIT */", f"/* {NOTE} */", HEAD.rstrip()]
    for item in manifest.structs.values():
        lines.append(f"STRUCT({item.name}, {item.size}, {int(item.kind == 'grows')})")
        for field in item.fields:
            nested = field.kind == "struct" and not field.passing
            what = field.type if nested else kind(field)
            macro = "NESTED" if nested else "FIELD"
            lines.append(f"{macro}({field.name}, {what}, {field.array or 1}, {field.offset})")
        lines.append("END_STRUCT()")
    for function in manifest.functions.values():
        lines.append(f"FUNCTION({function.name}, {result(manifest, function.returns)})")
        names = [arg.name for arg in function.args]
        for arg in function.args:
            count = names.index(arg.count) if arg.count else -1
            null = 2 if arg.count and not arg.required and not arg.null else int(arg.null is not None)
            passing = (arg.passing or ("in" if arg.const else "out" if arg.count else "value")).upper()
            lines.append(f"ARGUMENT({kind(arg)}, {arg.type}, {passing}, {arg.name}, {null}, {count})")
        lines.append("END()")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(signatures(load()))
