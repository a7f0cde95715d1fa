# SPDX-License-Identifier: MIT
"""Writes the headers, the version script and the assertions of every layout from the manifest."""

import textwrap

from manifest import WIDTH, declare, is_pointer, note, paragraphs, run, version_of

NOTE = note(__file__)
# Common meanings of NULL: the header says them once.
USUAL = ("this thread, host memory", "no details")
# The attributes of functions.
EXPORT = """#if (defined(UINTPTR_MAX) && UINTPTR_MAX != 0xffffffffffffffff) || \\
    (defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
#error "gradscaler is for 64-bit little-endian machines: the layout of its structs is for those"
#endif

/*
 * The attributes of functions. Define GSC_STATIC to link a static copy and keep its symbols inside
 * your own library or program, or define GSC_API yourself.
 */
#ifndef GSC_API
#if defined(_WIN32) && defined(GSC_STATIC)
#define GSC_API
#elif defined(_WIN32) && defined(GSC_BUILD)
#define GSC_API __declspec(dllexport)
#elif defined(_WIN32)
#define GSC_API __declspec(dllimport)
#elif defined(__GNUC__) && defined(GSC_STATIC)
#define GSC_API __attribute__((visibility("hidden")))
#elif defined(__GNUC__)
#define GSC_API __attribute__((visibility("default")))
#else
#define GSC_API
#endif
#endif
"""


def comment(lines):
    if len(lines) == 1 and len(lines[0]) + 6 <= WIDTH:
        return [f"/* {lines[0]} */"]
    return ["/*", *(f" * {line}".rstrip() for line in lines), " */"]


def beside(left, doc, column):
    """Returns code and its comment, which starts at the column; further lines go below it."""
    texts = textwrap.wrap(doc, WIDTH - column - 7, break_on_hyphens=False, break_long_words=False)
    lines = [f"{left:<{column}} /* {texts[0]}", *(f"{'':<{column}}    {text}" for text in texts[1:])]
    return [*lines[:-1], lines[-1] + " */"]


def later(doc, it, usual):
    """Returns the doc, with a version if the member is newer than its item."""
    return doc if it.since == usual else f"{doc}; since {it.since}"


def item_doc(manifest, item, doc=None):
    lines = paragraphs(doc or item.doc, WIDTH - 3)
    return lines if item.since == manifest.first else [*lines, "", f"Since {item.since}."]


def literal(base, value):
    if base == "int64_t" and value == -(2**63):
        return "(-9223372036854775807ll - 1)"
    suffix = {"uint64_t": "ull", "int64_t": "ll"}.get(base, "u" if base.startswith("u") else "")
    return f"{value}{suffix}"  # without parentheses, which cffi does not read


def typedef(manifest, group):
    """Returns the typedef for a group of constants; numbers have none, and an alias needs none."""
    has_type = group.kind != "number" and group.type not in manifest.aliases
    return [f"typedef {group.type} gsc_{group.name};"] if has_type else []


def constants(manifest, item):
    base = manifest.base(item.type)
    rows = [(v.c, literal(base, v.value), later(v.doc, v, item.since)) for v in item.values]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [*comment(item_doc(manifest, item)), *typedef(manifest, item)]
    for name, value, doc in rows:
        lines += beside(f"#define {name:<{first}} {value:<{second}}", doc, first + second + 9)
    return lines


def zeros(manifest, struct):
    """Returns the initialiser of a struct of zeros, as a list of values."""
    values = []
    for field in struct.fields:
        if field.kind == "struct" and not field.passing:
            values.append("{" + ", ".join(zeros(manifest, manifest.structs[field.type])) + "}")
        elif field.array:
            values.append("{0}")
        else:
            null = is_pointer(field.c) or field.kind == "callback"
            values.append("NULL" if null else {"float": "0.0f", "double": "0.0"}.get(field.c, "0"))
    return values


def struct(manifest, item):
    lines = [*comment(item_doc(manifest, item)), f"typedef struct {item.name} {{"]
    rows = []
    for field in item.fields:
        array = f"[{field.array}]" if field.array else ""
        rows.append((f"    {declare(field.c, field.name)}{array};", later(field.doc, field, item.since)))
    column = max(len(declaration) for declaration, _ in rows)
    for declaration, doc in rows:
        lines += beside(declaration, doc, column)
    lines.append(f"}} {item.name};")
    if item.kind == "grows":
        macro = item.name.upper()
        values = ", ".join([f"{macro}_SIZE", *zeros(manifest, item)[1:]])
        lines += ["", f"#define {macro}_SIZE {item.size}u"]
        line = f"#define {macro}_INIT {{{values}}}"
        if len(line) <= WIDTH:
            lines.append(line)
        else:
            wrapped = textwrap.wrap(f"{{{values}}}", WIDTH - 7, subsequent_indent=" ")
            lines += [f"#define {macro}_INIT \\", *(f"    {text} \\" for text in wrapped)]
            lines[-1] = lines[-1].removesuffix(" \\")
    return lines


def notes(function):
    """Returns lines on the arguments that have a unit or a meaning of NULL."""
    rows = []
    for arg in function.args:
        words = [arg.unit] if arg.unit else []
        if arg.null and arg.null not in USUAL:
            words.append(f"NULL: {arg.null}")
        elif arg.count and not arg.required and not arg.null:
            words.append(f"NULL only with {arg.count} = 0")
        if words:
            rows.append((arg.name, "; ".join(words)))
    column = max((len(name) for name, _ in rows), default=0)
    lines = [""] if rows else []
    for name, words in rows:
        indent = " " * (column + 6)
        start = f"    {name:<{column}}  "
        lines += textwrap.wrap(words, WIDTH - 3, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)
    return lines


def prototype(start, args, end):
    """Returns a C declaration, wrapped as clang-format does."""
    pieces = [arg + ("," if number + 1 < len(args) else end) for number, arg in enumerate(args)] or ["void" + end]
    lines = [start]
    for number, piece in enumerate(pieces):
        if len(lines[-1]) + 1 + len(piece) > WIDTH:
            lines.append(" " * len(start) + piece)
        else:
            lines[-1] += piece if number == 0 else " " + piece
    return lines


def c_result(type_):
    return "const char *" if type_ == "string" else type_


def arguments(item):
    return [declare(arg.c, arg.name) for arg in item.args]


def function(manifest, item):
    doc = [*paragraphs(item.doc, WIDTH - 3), *notes(item)]
    doc += [] if item.since == manifest.first else ["", f"Since {item.since}."]
    return [*comment(doc), *prototype(f"GSC_API {declare(c_result(item.returns), item.name)}(", arguments(item), ");")]


def callback(manifest, item):
    start = f"typedef {declare(c_result(item.returns), item.name)}("
    return [*comment(item_doc(manifest, item)), *prototype(start, arguments(item), ");")]


def alias(manifest, item):
    return [*comment(item_doc(manifest, item)), f"typedef {item.type} {item.name};"]


def opaque(manifest, item):
    return [*comment(item_doc(manifest, item)), f"typedef struct {item.name} {item.name};"]


def section(manifest, item):
    lines = [f"/* ---- {item.name} ".ljust(WIDTH - 3, "-") + " */"]
    return [*lines, "", *comment(paragraphs(item.doc, WIDTH - 3))] if item.doc else lines


def header(manifest):
    lines = [*comment(paragraphs(manifest.library.doc, WIDTH - 3)), "#ifndef GRADSCALER_H", "#define GRADSCALER_H", ""]
    lines += ["#include <stddef.h>", "#include <stdint.h>", "", *EXPORT.split("\n")]
    for part, number in zip(("MAJOR", "MINOR", "PATCH"), manifest.version, strict=True):
        lines.append(f"#define GSC_VERSION_{part} {number}")
    lines.append("#define GSC_VERSION (GSC_VERSION_MAJOR << 16 | GSC_VERSION_MINOR << 8 | GSC_VERSION_PATCH)")
    return declarations(manifest, lines, None)


def cuda_header(manifest):
    guard = ["#ifndef GRADSCALER_CUDA_H", "#define GRADSCALER_CUDA_H", "", '#include "gradscaler.h"', ""]
    return declarations(manifest, [*guard, f"#define GSC_CUDA_VERSION {manifest.library.cuda_version}"], "cuda")


def declarations(manifest, start, part):
    lines = ["/* SPDX-License-Identifier: MIT */", f"/* {NOTE} */", *start]
    lines += ["", "#ifdef __cplusplus", 'extern "C" {', "#endif"]
    for item in manifest.items:
        if item.header == part:
            lines += ["", *globals()[item.what](manifest, item)]
    return "\n".join([*lines, "", "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


def cffi(manifest):
    """Returns declarations without macros and comments, for the ffi.cdef of cffi and LuaJIT."""
    lines = [f"// {NOTE}", "// For ffi.cdef of cffi and LuaJIT. Structs that grow: set struct_size to ffi.sizeof(...)."]
    for item in manifest.items:
        if item.what == "constants":
            values = ", ".join(f"{value.c} = {value.value}" for value in item.values)
            lines += [*typedef(manifest, item), f"enum {{ {values} }};"]
        elif item.what == "struct":
            arrays = {f.name: f"[{f.array}]" if f.array else "" for f in item.fields}
            fields = " ".join(f"{declare(f.c, f.name)}{arrays[f.name]};" for f in item.fields)
            lines.append(f"typedef struct {{ {fields} }} {item.name};")
        elif item.what == "callback":
            lines.append(f"typedef {declare(c_result(item.returns), item.name)}({', '.join(arguments(item))});")
        elif item.what == "function":
            args = ", ".join(arguments(item)) or "void"
            lines.append(f"{declare(c_result(item.returns), item.name)}({args});")
        elif item.what != "section":
            lines.append(globals()[item.what](manifest, item)[-1])
    return "\n".join(lines) + "\n"


def version_script(manifest):
    """Returns a node for each minor version that added functions; a node inherits the one before.

    gradscaler_cuda.h has nodes of its own. A function that changed there moves to the node of its new `since`, so that
    a program of an older header does not start, instead of calling what has changed.
    """
    nodes = {}
    for item in manifest.functions.values():
        nodes.setdefault((item.header or "", version_of(item.since)), []).append(item.name)
    lines, below = [f"# {NOTE}"], {}
    for part, since in sorted(nodes):
        node = "_".join(filter(None, [manifest.library.name.upper(), part.upper(), ".".join(map(str, since))]))
        lines += [f"{node} {{", "global:", *(f"    {name};" for name in nodes[part, since])]
        lines += [f"}} {below[part]};"] if part in below else ["};"] if below else ["local:", "    *;", "};"]
        below[part] = node
    return "\n".join(lines) + "\n"


def layout_assertions(manifest):
    lines = ["/* SPDX-License-Identifier: MIT */", f"/* {NOTE} */", "#include <stddef.h>", ""]
    lines += ['#include "gradscaler_cuda.h"', "", f"#define GSC_SHARED_BYTES {manifest.library.shared_bytes}", ""]
    for item in manifest.structs.values():
        lines.append(f'_Static_assert(sizeof({item.name}) == {item.size}, "{item.name}");')
        for field in item.fields:
            place = f"offsetof({item.name}, {field.name}) == {field.offset}"
            lines.append(f'_Static_assert({place}, "{item.name}.{field.name}");')
    names = ", ".join(f'"{value.name.lower()}"' for value in manifest.constants["metric"].values)
    lines += ["", "#define GSC_METRIC_NAMES " + names, "", "/* field, value, whether it is a bit, name */"]
    rows = [
        f'    {{"{field.name}", {value.value}, {str(group.kind == "bits").lower()}, "{value.name}"}}'
        for field in named_fields(manifest)
        for group in [manifest.constants[field.takes]]
        for value in group.values
    ]
    lines += macro("GSC_VALUE_NAMES", rows)
    lines += ["", "/* name, offset, bytes, kind (i: signed, u: unsigned, f: real), whether a metric has the name */"]
    for name in ("policy", "state", "report"):
        lines += macro(f"GSC_{name.upper()}_FIELDS", field_rows(manifest, manifest.structs[f"gsc_{name}"]))
    return "\n".join(lines) + "\n"


def macro(name, rows):
    return [f"#define {name} \\", *(f"{row}, \\" for row in rows[:-1]), rows[-1]]


def named_fields(manifest):
    """Returns the fields with values that have names: rules and flags of a policy, and what a history names."""
    own = [field for field in manifest.structs["gsc_policy"].fields if field.takes]
    others = {"gsc_state": ("events",), "gsc_reason": ("outcome", "cause")}
    return own + [f for struct, names in others.items() for f in manifest.structs[struct].fields if f.name in names]


def field_rows(manifest, struct):
    """Returns a row for each number in a struct."""
    metrics = {value.name.lower() for value in manifest.constants["metric"].values}
    return [
        f'    {{"{field.name}", offsetof({struct.name}, {field.name}), {field.bytes}, '
        f"'{'f' if field.base in ('float', 'double') else field.base[0]}', {str(field.name in metrics).lower()}}}"
        for field in struct.fields
        if field.kind == "scalar" and not field.array and field.name != "struct_size"
    ]


if __name__ == "__main__":
    run({
        "include/gradscaler.h": header,
        "include/gradscaler_cuda.h": cuda_header,
        "include/gradscaler.cdef": cffi,
        "core/gradscaler.map": version_script,
        "core/layout.h": layout_assertions,
    })  # fmt: skip
