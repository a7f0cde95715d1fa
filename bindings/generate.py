#!/usr/bin/env python3
"""Writes every generated file of the project from the manifest, bindings/abi.toml.

    bindings/generate.py            writes the files
    bindings/generate.py --check    writes nothing; fails and shows the difference where a file is out of date

One emitter per file: a function that takes the manifest and returns the text. OUTPUTS, at the end, lists them.
"""

import argparse
import difflib
import re
import sys
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
NOTE = "Generated from bindings/abi.toml by bindings/generate.py. Do not edit."
SIZES = {"int32_t": 4, "uint32_t": 4, "float": 4, "int64_t": 8, "uint64_t": 8, "double": 8, "char": 1}


class Manifest:
    """The manifest with its items sorted by kind and its structs laid out."""

    def __init__(self, path):
        data = tomllib.loads(path.read_text())
        self.library, self.items = data["library"], data["item"]
        self.aliases = {i["alias"]: i["type"] for i in self.items if "alias" in i}
        self.constants = [i for i in self.items if "constants" in i]
        self.structs = [i for i in self.items if "struct" in i]
        self.functions = [i for i in self.items if "function" in i]
        self.callbacks = {i["callback"] for i in self.items if "callback" in i}
        self.opaque = {i["opaque"] for i in self.items if "opaque" in i}
        self.layouts = {}
        for struct in self.structs:
            self.layouts[struct["struct"]] = self._layout(struct)

    def base(self, type_):
        """The fixed-width type behind an alias."""
        return self.aliases.get(type_, type_)

    def size_of(self, type_):
        if type_.endswith("*"):
            return 8
        return self.layouts[type_][1] if type_ in self.layouts else SIZES[self.base(type_)]

    def _layout(self, struct):
        """({field: offset}, size) as a C compiler for a 64-bit target lays it out; size ends with the last field."""
        offsets, end = {}, 0
        for field in struct["fields"]:
            size = self.size_of(field["type"])
            alignment = min(size, 8)
            end = (end + alignment - 1) // alignment * alignment
            offsets[field["name"]] = end
            end += size * field.get("array", 1)
        if struct.get("size", end) != end:
            sys.exit(f"{struct['struct']}: the fields take {end} bytes, the manifest says {struct['size']}")
        return offsets, end


def declare(type_, name):
    return f"{type_}{'' if type_.endswith('*') else ' '}{name}"


def paragraphs(text, width, indent=""):
    """Wrapped lines of a doc; lines that start with four spaces or `- ` keep their place."""
    lines, pending = [], []

    def flush():
        if pending:
            lines.extend(textwrap.wrap(" ".join(pending), width - len(indent), break_on_hyphens=False))
            pending.clear()

    for line in text.strip().split("\n"):
        if not line or line.startswith("    "):
            flush()
            lines.append(line)
        elif line.startswith("- "):
            flush()
            wrap = {"break_on_hyphens": False, "subsequent_indent": "  "}
            lines.extend(textwrap.wrap(line, width - len(indent), **wrap))
        else:
            pending.append(line)
    flush()
    return [(indent + line).rstrip() for line in lines]


def comment(lines, indent=""):
    if len(lines) == 1 and len(lines[0]) + len(indent) + 6 <= WIDTH:
        return [f"{indent}/* {lines[0]} */"]
    return [f"{indent}/*", *(f"{indent} * {line}".rstrip() for line in lines), f"{indent} */"]


def function_doc(function):
    """The contract of a function: what, each argument that needs a word, errors, threads."""
    lines = paragraphs(function["doc"], WIDTH - 3)
    notes = []
    for arg in function["args"]:
        if arg["name"] in ("on", "err"):
            continue
        words = [arg["unit"]] if "unit" in arg else []
        if "null" in arg:
            words.append(f"NULL: {arg['null']}")
        elif "count" in arg and not arg.get("required"):
            words.append(f"NULL only with {arg['count']} = 0")
        if arg.get("inout"):
            words.append("read and written")
        if words:
            notes.append((arg["name"], "; ".join(words)))
    if notes:
        column = max(len(name) for name, _ in notes)
        lines += ["", *(f"    {name:<{column}}  {words}" for name, words in notes)]
    errors = [f"GSC_ERROR_{name}" for name in function.get("errors", [])]
    threads = "any, at the same time"
    if function.get("blocks"):
        threads += "; the time grows with the bytes of the tensors"
    if function.get("capture"):
        threads += "; may be captured in a CUDA graph"
    lines.append("")
    if errors:
        lines += textwrap.wrap(f"Errors: {', '.join(errors)}.", WIDTH - 3, subsequent_indent="  ")
    return lines + textwrap.wrap(f"Threads: {threads}.", WIDTH - 3)


def prototype(function):
    """The C declaration, wrapped as clang-format would."""
    args = [declare(arg["type"], arg["name"]) for arg in function["args"]] or ["void"]
    lines = [f"GSC_API {declare(function['returns'], function['function'])}("]
    indent = " " * len(lines[0])
    for number, arg in enumerate(args):
        piece = arg + (");" if number + 1 == len(args) else ",")
        if len(lines[-1]) + 1 + len(piece) > WIDTH:
            lines.append(indent + piece)
        else:
            lines[-1] += piece if number == 0 else " " + piece
    return lines


def literal(type_, value):
    if type_ == "macro":
        return value
    suffix = {"uint32_t": "u", "uint64_t": "ull"}.get(type_, "")
    return f"({value})" if value < 0 else f"{value}{suffix}"


def emit_constants(manifest, item):
    rows = [
        (item["constants"] + v["name"], literal(manifest.base(item["type"]), v["value"]), v["doc"])
        for v in item["values"]
    ]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = comment(paragraphs(item["doc"], WIDTH - 3)) if "doc" in item else []
    return lines + [f"#define {name:<{first}} {value:<{second}} /* {doc} */" for name, value, doc in rows]


def emit_struct(manifest, item):
    name, offsets = item["struct"], manifest.layouts[item["struct"]][0]
    lines = comment(paragraphs(item["doc"], WIDTH - 3))
    rows = []
    for field in item["fields"]:
        array = f"[{field['array']}]" if "array" in field else ""
        rows.append((f"{declare(field['type'], field['name'])}{array};", field["doc"]))
    column = max(len(declaration) for declaration, _ in rows)
    lines.append(f"typedef struct {name} {{")
    for declaration, doc in rows:
        texts = textwrap.wrap(doc, WIDTH - column - 11, break_on_hyphens=False)
        lines.append(f"    {declaration:<{column}} /* {texts[0]}" + (" */" if len(texts) == 1 else ""))
        for number, text in enumerate(texts[1:], 2):
            lines.append(f"    {'':<{column}}    {text}" + (" */" if len(texts) == number else ""))
    lines.append(f"}} {name};")
    if item["kind"] == "grows":
        size = manifest.layouts[name][1]
        zeros = ["0.0" if field["type"] == "double" else "0" for field in item["fields"][1:]]
        macro = name.upper()
        values = textwrap.wrap(", ".join([f"{macro}_SIZE", *zeros]), WIDTH - 8)
        lines += ["", f"#define {macro}_SIZE {size}u /* to the end of {list(offsets)[-1]} */"]
        lines.append(f"#define {macro}_INIT \\")
        lines += [f"    {'{' if n == 0 else ' '}{value}" for n, value in enumerate(values)]
        lines = lines[: -len(values)] + [
            line + (" \\" if n + 1 < len(values) else "}") for n, line in enumerate(lines[-len(values) :])
        ]
    return lines


def header(manifest):
    library = manifest.library
    major, minor, patch = library["version"].split(".")
    lines = [
        "/* SPDX-License-Identifier: MIT */",
        f"/* {NOTE} */",
        "",
        *comment(paragraphs(library["doc"], WIDTH - 3)),
        "#ifndef GRADSCALER_H",
        "#define GRADSCALER_H",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "#if defined(__GNUC__)",
        '#define GSC_API __attribute__((visibility("default")))',
        "#else",
        "#define GSC_API",
        "#endif",
        "",
        f"#define GSC_VERSION_MAJOR {major}",
        f"#define GSC_VERSION_MINOR {minor}",
        f"#define GSC_VERSION_PATCH {patch}",
        "#define GSC_VERSION (GSC_VERSION_MAJOR << 16 | GSC_VERSION_MINOR << 8 | GSC_VERSION_PATCH)",
    ]
    for item in manifest.items:
        lines.append("")
        if "section" in item:
            lines.append(f"/* ---- {item['section']} ".ljust(WIDTH - 3, "-") + " */")
            if "doc" in item:
                lines += ["", *comment(paragraphs(item["doc"], WIDTH - 3))]
        elif "constants" in item:
            lines += emit_constants(manifest, item)
        elif "alias" in item:
            lines += [*comment([item["doc"]]), f"typedef {item['type']} {item['alias']};"]
        elif "opaque" in item:
            lines += [*comment([item["doc"]]), f"typedef struct {item['opaque']} {item['opaque']};"]
        elif "callback" in item:
            args = ", ".join(declare(arg["type"], arg["name"]) for arg in item["args"])
            lines += comment(paragraphs(item["doc"], WIDTH - 3))
            lines.append(f"typedef {item['returns']} {item['callback']}({args});")
        elif "struct" in item:
            lines += emit_struct(manifest, item)
        else:
            lines += [*comment(function_doc(item)), *prototype(item)]
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def version_script(manifest):
    names = "".join(f"    {function['function']};\n" for function in manifest.functions)
    return f"# {NOTE}\n{manifest.library['node']} {{\nglobal:\n{names}local:\n    *;\n}};\n"


def layout_assertions(manifest):
    lines = ["/* SPDX-License-Identifier: MIT */", f"/* {NOTE} */", "#include <stddef.h>", ""]
    lines += ['#include "gradscaler.h"', ""]
    for name, (offsets, size) in manifest.layouts.items():
        rounded = (size + 7) // 8 * 8
        lines.append(f'_Static_assert(sizeof({name}) == {rounded}, "{name}");')
        for field, offset in offsets.items():
            lines.append(f'_Static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field}");')
    return "\n".join(lines) + "\n"


def ffi_table(manifest):
    """X-macros: what a client that never saw the header can know."""

    def kind(type_):
        if type_.endswith("*"):
            return "POINTER"
        base = manifest.base(type_)
        return {"int32_t": "S32", "uint32_t": "U32", "int64_t": "S64", "uint64_t": "U64"}.get(base, base.upper())

    lines = [
        "/* SPDX-License-Identifier: MIT */",
        f"/* {NOTE} */",
        "/* FUNCTION(name, result) ARGUMENT(kind, C type, name, may be NULL, count) ... END()",
        " * NULL: 0 never, 1 always, 2 where argument `count` is 0 (-1: no count) */",
        "/* STRUCT(name, size) FIELD(name, kind, count, offset) ... END_STRUCT() */",
    ]
    for struct in manifest.structs:
        offsets, size = manifest.layouts[struct["struct"]]
        lines.append(f"STRUCT({struct['struct']}, {size})")
        for field in struct["fields"]:
            type_, count = field["type"], field.get("array", 1)
            nested = type_ in manifest.layouts
            what = type_ if nested else kind(type_)
            macro = "NESTED" if nested else "FIELD"
            lines.append(f"{macro}({field['name']}, {what}, {count}, {offsets[field['name']]})")
        lines.append("END_STRUCT()")
    for function in manifest.functions:
        lines.append(f"FUNCTION({function['function']}, {kind(function['returns'])})")
        names = [arg["name"] for arg in function["args"]]
        for arg in function["args"]:
            count = names.index(arg["count"]) if "count" in arg else -1
            null = 2 if count >= 0 and not arg.get("required") else int("null" in arg)
            lines.append(f'ARGUMENT({kind(arg["type"])}, "{arg["type"]}", {arg["name"]}, {null}, {count})')
        lines.append("END()")
    return "\n".join(lines) + "\n"


# ---- Python: structs as ctypes (values with named fields that any buffer consumer reads), functions through SWIG ----


def python_class(name):
    return name.removeprefix("gsc_").removesuffix("_").lower().title().replace("_", "")


def python_words(text):
    """A doc in Python's names: GSC_EVENT_STOPPED is Event.STOPPED, GSC_WANT_* is Want."""
    text = re.sub(r"GSC_([A-Z]+)_\*", lambda match: match[1].title(), text)
    text = re.sub(r"\bGSC_(?!BAD)([A-Z]+?)_([A-Z_]+)\b", lambda match: f"{match[1].title()}.{match[2]}", text)
    return re.sub(r"\*(?=[a-z])", "", text).replace("NULL", "None")


# Structs that Python code sees: not those that the binding itself fills.
PYTHON_STRUCTS = ("gsc_policy", "gsc_info", "gsc_factor", "gsc_report", "gsc_state")


def python_structs(manifest):
    """ctypes structures and enumerations: what Python code reads and writes."""
    kinds = {"float": "c_float", "double": "c_double", "char": "c_char", "const char *": "c_char_p"}
    lines = ['"""The structs and constants of the library.', "", NOTE, '"""', ""]
    lines += ["import ctypes as c", "import enum"]
    lines += ["", "", "class Struct(c.Structure):", '    """A struct whose repr tells its fields."""', ""]
    lines += ["    def __repr__(self):"]
    lines += ['        names = [name for name, *_ in self._fields_ if "reserved" not in name]']
    lines += ["        return f\"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})\""]
    for item in manifest.items:
        if item.get("struct") in PYTHON_STRUCTS:
            lines += ["", "", f"class {python_class(item['struct'])}(Struct):"]
            doc = paragraphs(python_words(item["doc"]), WIDTH - 8) + [""]
            for field in item["fields"]:
                row = f"{field['name']}: {python_words(field['doc'])}"
                doc += textwrap.wrap(row, WIDTH - 4, subsequent_indent="    ", break_on_hyphens=False)
            lines += [f'    """{doc[0]}', *(f"    {line}".rstrip() for line in doc[1:])]
            lines += ['    """', "", "    _fields_ = ["]
            for field in item["fields"]:
                type_ = field["type"]
                kind = kinds.get(type_) or "c_" + manifest.base(type_).removesuffix("_t")
                kind = python_class(type_) if type_ in manifest.layouts else f"c.{kind}"
                array = f" * {field['array']}" if "array" in field else ""
                lines.append(f'        ("{field["name"]}", {kind}{array}),')
            lines.append("    ]")
        elif "constants" in item and item["constants"] != "GSC_" and item["type"] != "macro":
            kind = "IntFlag" if item.get("bits") else "IntEnum"
            lines += ["", "", f"class {python_class(item['constants'].removeprefix('GSC_'))}(enum.{kind}):"]
            lines += [f'    """{python_words(item["doc"])}"""', ""]
            lines += [f"    {v['name']} = {v['value']}  # {python_words(v['doc'])}" for v in item["values"]]
    return "\n".join(lines) + "\n"


def value_functions(manifest):
    """Functions of values alone: contexts, callbacks and sizes of structs are for C."""
    for function in manifest.functions:
        types = {arg["type"].removeprefix("const ").rstrip(" *") for arg in function["args"]}
        sized = any(arg["name"] == "struct_size" for arg in function["args"])
        if not sized and not types & (manifest.opaque | manifest.callbacks):
            yield function


def python_functions(manifest):
    """Those that Python can call: a context of threads is an object that frees itself."""
    known = [*value_functions(manifest)]
    return [f for f in manifest.functions if f in known or f["function"] == "gsc_context_create_cpu"]


def python_arguments(manifest, function):
    """(name, type) of the arguments as Python passes them: what typemaps.i makes of the C ones."""
    names = [arg["name"] for arg in function["args"]]
    for arg in function["args"]:
        name, type_ = arg["name"], arg["type"]
        struct = type_.removeprefix("const ").rstrip(" *")
        if name in ("err", "n", "capacity") or (name == "size" and "bytes" in names):
            continue
        if type_ == "const gsc_tensor *":
            if name == "tensors":
                yield ("tensors_and_out", "Pair | Held") if "out" in names else (name, "Arrays | Held")
        elif type_ in ("void *", "uint64_t *") or struct in manifest.opaque | manifest.callbacks:
            continue  # returned, or not for Python
        elif name == "on":
            yield name, "Context | None"
        elif struct in manifest.layouts:
            yield name, "Buffer | None" if "null" in arg else "Buffer"
        else:
            kinds = {"const char *": "str", "const void *": "Buffer", "double": "float", "const double *": "float"}
            yield name, kinds.get(type_, "int")


def python_result(function):
    types = {arg["type"] for arg in function["args"]}
    if "gsc_context **" in types:
        return "Context"
    if "void *" in types:
        return "bytes"
    if "uint64_t *" in types:
        return "int"
    return {"gsc_status": "None", "const char *": "str | None"}.get(function["returns"], "int")


def python_stub(manifest):
    lines = ['"""The C functions, one to one; a status that is not GSC_OK is raised as Error.', "", NOTE, '"""', ""]
    lines += [
        "from collections.abc import Sequence",
        "from typing import Any",
        "",
        "Buffer = Any",
        "Arrays = Sequence[Any]",
        "Pair = tuple[Arrays, Arrays]",
        "Held = Any",
        "Context = Any",
    ]
    lines += [
        "",
        "class Error(ValueError):",
        "    status: int",
        "    argument: int",
        "    index: int",
        "    name: str",
        "",
    ]
    for item in manifest.constants:
        if item["type"] != "macro":
            lines += [f"{item['constants']}{value['name']}: int" for value in item["values"]]
    lines.append("")
    for function in python_functions(manifest):
        args = ", ".join(f"{name}: {kind}" for name, kind in python_arguments(manifest, function))
        slash = ", /" if args else ""
        lines.append(f"def {function['function']}({args}{slash}) -> {python_result(function)}: ...")
    lines += [
        "def hold(tensors: Arrays, out: Arrays, /) -> Held: ...",
        "def cuda_open(ordinal: int, /) -> int: ...",
        "def cuda_hold(tensors: Arrays, out: Arrays | None, device: int, order: int, /) -> Held: ...",
        "def cuda_call(",
        "    function: str, context: int, stream: int, workspace: int, size: int, factor: int, limit: float,",
        "    held: Held, want: int, report: int, /,",
        ") -> int: ...",
    ]
    return "\n".join(lines) + "\n"


def swig_interface(manifest):
    lines = [f"/* {NOTE} */", "%module _gradscaler", "%{", '#include "arrays.h"', "%}", '%include "typemaps.i"', ""]
    for struct in manifest.structs:
        if struct["struct"] in PYTHON_STRUCTS:
            lines.append(f"GSC_STRUCT({struct['struct']}, {int(struct['kind'] == 'grows')})")
    lines.append("")
    callable_ = [function["function"] for function in python_functions(manifest)]
    for function in manifest.functions:
        name = function["function"]
        if name not in callable_:
            lines.append(f"%ignore {name};")
            continue
        args = ", ".join(arg for arg, _ in python_arguments(manifest, function))
        doc = [f"{name}({args})", "", *paragraphs(python_words(function["doc"]), WIDTH)]
        text = "\\n".join(doc).replace('"', '\\"')
        lines.append(f'%feature("docstring") {name} "{text}";')
        if function.get("blocks"):
            position = [arg["name"] for arg in function["args"]].index("tensors") + 1
            lines.append(f"GSC_BY_SIZE({name}, lists{position})")
    lines += [f"%ignore {struct['struct']};" for struct in manifest.structs]
    lines += ["", '%include "gradscaler.h"', ""]
    return "\n".join(lines)


# ---- Elixir: a NIF with one function per C function, its stubs, and the structs as Elixir structs ----

# Structs that Elixir code sees as structs of its own; gsc_info has pointers and becomes a map.
ELIXIR_STRUCTS = ("gsc_policy", "gsc_factor", "gsc_report", "gsc_state")
ELIXIR_WIDTH = 98


def elixir_module(struct):
    return "GradScaler." + python_class(struct)


def elixir_groups(manifest):
    """{group: item} of the constants that Elixir code names as atoms."""
    groups = {}
    for item in manifest.constants:
        if item["constants"] != "GSC_":
            groups[item["constants"].removeprefix("GSC_").removesuffix("_").lower()] = item
        elif item["type"] == "gsc_status":
            groups["status"] = item
        elif any(value["name"] == "F32" for value in item["values"]):
            groups["dtype"] = item
    return {name: item for name, item in groups.items() if item["type"] != "macro"}


def elixir_atoms(item):
    return [(value["name"].removeprefix("ERROR_").lower(), value["value"]) for value in item["values"]]


def elixir_words(text):
    """A doc in Elixir's names: GSC_EVENT_STOPPED is `:stopped`; the names for GSC_WANT_* follow the doc."""
    text = text.replace("GSC_ERROR_*", "error")
    text = re.sub(r"GSC_[A-Z]+_\* bits", "any of these", text)
    text = re.sub(r"GSC_[A-Z]+_\*", "one of these", text)
    text = re.sub(r"\bGSC_(?:[A-Z]+_)?([A-Z0-9_]+)\b", lambda match: f"`:{match[1].lower()}`", text)
    return text.replace("NULL", "nil").replace("*out", "the result").replace('"', "`")


def elixir_doc(text, indent):
    lines = []
    for line in elixir_words(text).split("\n\n"):
        lines += [*textwrap.wrap(line, ELIXIR_WIDTH - len(indent), break_on_hyphens=False), ""]
    return [(indent + line).rstrip() for line in lines[:-1]]


def nif_parameter(manifest, function, arg, number):
    """(declaration, reader, C expressions by name) of an argument that the caller passes."""
    name, type_ = arg["name"], arg["type"]
    struct = type_.removeprefix("const ").rstrip(" *")
    position = [a["name"] for a in function["args"]].index(name)
    where = f'argv[{number}], {position}, "{name}"'
    if type_ == "const gsc_tensor *":
        kind, side = ("tensors", "in") if name != "out" else ("sums" if arg.get("inout") else "outputs", "out")
        return None, f"get_{kind}(&call, {where})", {name: f"call.{side}", "n": "call.n"}
    if struct in manifest.layouts:
        kinds = {item["struct"]: item["kind"] for item in manifest.structs}
        reader = f"get_{'growing' if kinds[struct] == 'grows' else 'struct'}(&call, {where}, &{name}, sizeof {name})"
        if "null" not in arg:
            return f"{struct} {name};", reader, {name: f"&{name}"}
        return (
            f"{struct} {name};",
            f"(is_nil(argv[{number}]) || {reader})",
            {name: f"is_nil(argv[{number}]) ? NULL : &{name}"},
        )
    if type_ == "const void *":
        return (
            f"ErlNifBinary {name};",
            f"get_bytes(&call, {where}, &{name})",
            {
                name: f"{name}.data",
                arg["count"]: f"{name}.size",
            },
        )
    if type_ == "const char *":
        return f"char {name}[64];", f"get_string(&call, {where}, {name}, sizeof {name})", {name: name}
    scalar = manifest.base(struct)
    expression = f"&{name}" if type_.endswith("*") else name
    return f"{scalar} {name};", f"get_{scalar.removesuffix('_t')}(&call, {where}, &{name})", {name: expression}


def nif_result(manifest, arg):
    """(declaration, term, C expressions by name) of an argument that is a result."""
    name, type_ = arg["name"], arg["type"]
    struct = type_.rstrip(" *")
    if type_ == "void *":
        expressions = {name: name, arg["count"]: f"sizeof {name}", "size": "&size"}
        return (
            f"unsigned char {name}[GSC_SAVED_SIZE];\n    uint64_t size;",
            f"make_bytes(env, {name}, size)",
            expressions,
        )
    if type_ == "uint64_t *":
        return f"uint64_t {name};", f"enif_make_uint64(env, {name})", {name: f"&{name}"}
    item = next(item for item in manifest.structs if item["struct"] == struct)
    initial = f" = {struct.upper()}_INIT" if item["kind"] == "grows" else ""
    if struct in ELIXIR_STRUCTS:
        return f"{struct} {name}{initial};", f"make_bytes(env, &{name}, sizeof {name})", {name: f"&{name}"}
    return f"{struct} {name}{initial};", f"make_{struct.removeprefix('gsc_')}(env, &{name})", {name: f"&{name}"}


def nif_split(function):
    """The arguments that Elixir passes, and those that it gets back."""
    types = {arg["type"] for arg in function["args"]}
    passed, returned = [], []
    for arg in function["args"]:
        type_ = arg["type"]
        if arg["name"] in ("on", "err", "n", "capacity"):
            continue
        if arg["name"] == "size" and types & {"void *", "const void *"}:
            continue
        pointer = type_.endswith("*") and not type_.startswith("const ")
        (returned if pointer else passed).append(arg)
    return passed, returned


def nif_make_struct(manifest, item):
    """A C function that turns a struct with pointers into a map."""
    makers = {"uint32_t": "enif_make_uint", "const char *": "make_string"}
    fields = [field for field in item["fields"] if field["name"] != "struct_size"]
    short = item["struct"].removeprefix("gsc_")
    lines = [f"static ERL_NIF_TERM make_{short}(ErlNifEnv *env, const {item['struct']} *from)", "{"]
    lines += ["    ERL_NIF_TERM keys[] = {"]
    lines += [f'        enif_make_atom(env, "{field["name"]}"),' for field in fields]
    lines += ["    };", "    ERL_NIF_TERM values[] = {"]
    lines += [f"        {makers[field['type']]}(env, from->{field['name']})," for field in fields]
    return [*lines, "    };", f"    return make_map(env, keys, values, {len(fields)});", "}"]


def nif_call(function, expressions, before, after):
    """The C call between two pieces of text, wrapped."""
    arguments = ", ".join(expressions[arg["name"]] for arg in function["args"])
    return nif_wrap(f"{before}{function['function']}(", arguments + after)


def nif_wrap(start, arguments):
    """One line, or several with the arguments below each other."""
    lines = textwrap.wrap(arguments, WIDTH - len(start), break_long_words=False)
    return [start + lines[0], *(" " * len(start) + line for line in lines[1:])]


def nif_reschedule(function, passed):
    """The start of a function that moves itself to a dirty scheduler where its tensors are many."""
    name, names = function["function"].removeprefix("gsc_"), [arg["name"] for arg in passed]
    want = f"peek_want(env, argv[{names.index('want')}])" if "want" in names else "0"
    arguments = f'env, "{name}", ERL_NIF_DIRTY_JOB_CPU_BOUND, nif_{name}, argc, argv);'
    lines = [f"    if (takes_long(env, argv[{names.index('tensors')}], {want}))"]
    return lines + nif_wrap("        return enif_schedule_nif(", arguments)


def nif_body(function, readers, terms, expressions):
    """Read the arguments, call, return what the C function returned or wrote."""
    if function["returns"] != "gsc_status":
        lines = [f"    if (!{reader})\n        return failed(&call);" for reader in readers]
        maker = {"const char *": "make_string(env, ", "uint32_t": "enif_make_uint(env, "}[function["returns"]]
        return lines + nif_call(function, expressions, f"    return {maker}", "));")
    lines = [("    if (" if number == 0 else "        ") + f"!{reader} ||" for number, reader in enumerate(readers)]
    lines += nif_call(function, expressions, "        " if readers else "    if (", ") != GSC_OK)")
    lines.append("        return failed(&call);")
    if not terms:
        return [*lines, "    return done(&call, NULL, 0);"]
    lines += nif_wrap("    const ERL_NIF_TERM terms[] = {", ", ".join(terms) + "};")
    return [*lines, f"    return done(&call, terms, {len(terms)});"]


def nif_function(manifest, function):
    name = function["function"].removeprefix("gsc_")
    passed, returned = nif_split(function)
    parameters = [nif_parameter(manifest, function, arg, number) for number, arg in enumerate(passed)]
    results = [nif_result(manifest, arg) for arg in returned]
    expressions = {"on": "NULL", "err": "&call.err"}
    for _, _, named in parameters + results:
        expressions |= named
    terms = ["call.results"] if "out" in [arg["name"] for arg in passed] else []
    terms += [term for _, term, _ in results]
    lines = [f"static ERL_NIF_TERM nif_{name}(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])", "{"]
    lines += nif_reschedule(function, passed) if function.get("blocks") else ["    (void)argc;"]
    if not passed:
        lines.append("    (void)argv;")
    if passed or function["returns"] == "gsc_status":
        lines.append("    struct call call = {.env = env};")
    lines += [f"    {declaration}" for declaration, _, _ in parameters + results if declaration]
    readers = [reader for _, reader, _ in parameters]
    return [*lines, *nif_body(function, readers, terms, expressions), "}"]


def nif_source(manifest):
    functions = list(value_functions(manifest))
    lines = ["/* SPDX-License-Identifier: MIT */", f"/* {NOTE} */", '#include "terms.h"', ""]
    for item in manifest.structs:
        if any(field["type"].startswith("const char") for field in item["fields"]):
            lines += [*nif_make_struct(manifest, item), ""]
    for function in functions:
        lines += [*nif_function(manifest, function), ""]
    lines += ["static ErlNifFunc functions[] = {"]
    for function in functions:
        name = function["function"].removeprefix("gsc_")
        lines.append(f'    {{"{name}", {len(nif_split(function)[0])}, nif_{name}, 0}},')
    lines += ["};", "", "ERL_NIF_INIT(Elixir.GradScaler.Native, functions, load, NULL, upgrade, unload)"]
    return "\n".join(lines) + "\n"


def elixir_spec(manifest, function):
    kinds = {"const gsc_tensor *": "[tensor]", "const char *": "binary", "const void *": "binary"}

    def kind(arg):
        if arg["type"] == "const gsc_tensor *" and arg["name"] == "out" and "inout" not in arg:
            return "[dtype]"
        base = manifest.base(arg["type"].removeprefix("const ").rstrip(" *"))
        kinds_by_base = {"double": "real"} | dict.fromkeys(manifest.layouts, "binary")
        known = kinds.get(arg["type"]) or kinds_by_base.get(base, "integer")
        return f"{known} | nil" if "null" in arg else known

    passed, returned = nif_split(function)
    results = ["[binary]"] if "out" in [arg["name"] for arg in passed] else []
    for arg in returned:
        struct = arg["type"].rstrip(" *")
        binary = arg["type"] == "void *" or struct in ELIXIR_STRUCTS
        results.append("binary" if binary else "map" if struct in manifest.layouts else "integer")
    ok = f"{{:ok, {', '.join(results)}}}" if results else ":ok"
    result = {"gsc_status": f"{ok} | error", "uint32_t": "integer"}.get(function["returns"], "binary | nil")
    return f"({', '.join(kind(arg) for arg in passed)}) :: {result}"


def elixir_stubs(manifest):
    major, minor, patch = manifest.library["version"].split(".")
    lines = [
        f"# {NOTE}",
        "defmodule GradScaler.Native do",
        '  @moduledoc """',
        "  The C functions, one to one; the first of three layers.",
        "",
        "  Structs are binaries of their exact size (`GradScaler.Policy` and its siblings encode and decode",
        "  them), tensors are `{dtype, binary}` with the dtype's number, and results are new binaries. What",
        "  the caller passes is never written. A refusal is `{:error, {status, argument, index, name,",
        "  message}}`, the members of `gsc_error`; nothing here raises.",
        "",
        "  Functions over tensors go to a dirty CPU scheduler by themselves where a normal one would be",
        "  held up.",
        '  """',
        "",
        "  # Loaded by the first call, not by the compiler, which runs before the library is there.",
        "  @compile {:autoload, false}",
        "  @on_load :load",
        f"  @version {int(major) << 16 | int(minor) << 8 | int(patch)}",
        "",
        "  @type dtype :: integer",
        "  @type tensor :: {dtype, binary}",
        "  @type real :: float | integer | :infinity | :neg_infinity | :nan",
        "  @type error :: {:error, {neg_integer, integer, integer, binary, binary}}",
        "",
        "  @doc false",
        "  def load do",
        '    path = Path.join(:code.priv_dir(:gradscaler), "gradscaler_nif")',
        "    :erlang.load_nif(String.to_charlist(path), @version)",
        "  end",
    ]
    for function in value_functions(manifest):
        name = function["function"].removeprefix("gsc_")
        args = ", ".join(f"_{arg['name']}" for arg in nif_split(function)[0])
        call = f"{name}({args})" if args else name
        spec = f"  @spec {name}{elixir_spec(manifest, function)}"
        if len(spec) > ELIXIR_WIDTH:
            spec = spec.replace(" :: ", " ::\n          ")
        doc = elixir_doc(function["doc"].strip(), "  ")
        lines += ["", '  @doc """', *doc, '  """', spec, f"  def {call}, do: :erlang.nif_error(:nif_not_loaded)"]
    return "\n".join([*lines, "end", ""])


def elixir_integer(kind):
    return f"little-{'signed' if kind[0] == 's' else 'unsigned'}-{kind[1:]}"


def elixir_field(manifest, struct, field):
    """(match, decode, encode, default) of a field; None to leave it out of the Elixir struct."""
    name, type_ = field["name"], field["type"]
    base, at = manifest.base(type_), f"s.{field['name']}"
    if "reserved" in name or name == "struct_size":
        size = manifest.size_of(type_) * field.get("array", 1)
        value = manifest.layouts[struct][1] if name == "struct_size" else 0
        return f"_::binary-size({size})", None, f"{value}::little-{8 * size}", None
    if type_ in manifest.layouts:
        module, size = elixir_module(type_), manifest.layouts[type_][1]
        match = f"{name}::binary-size({size})"
        return match, f"{module}.decode({name})", f"{module}.encode({at})::binary", f"%{module}{{}}"
    label = f'"{struct.removeprefix("gsc_")}.{name}"'
    if base in ("float", "double"):
        bits = 8 * SIZES[base]
        match = f"{name}::binary-size({SIZES[base]})"
        return match, f"Fields.real({name})", f"Fields.f{bits}({at}, {label})::binary", "0.0"
    kind = {"int32_t": "s32", "uint32_t": "u32", "int64_t": "s64", "uint64_t": "u64"}[base]
    if array := field.get("array"):
        match = f"{name}::binary-size({array * SIZES[base]})"
        encode = f"Fields.list(&Fields.{kind}/2, {at}, {array}, {label})::binary"
        return match, f"for(<<x::{elixir_integer(kind)} <- {name}>>, do: x)", encode, f"List.duplicate(0, {array})"
    match = f"{name}::{elixir_integer(kind)}"
    group = re.search(r"GSC_([A-Z]+)_\*", field["doc"])
    groups = elixir_groups(manifest)
    if not group or group[1].lower() not in groups:
        return match, name, f"Fields.{kind}({at}, {label})::binary", "0"
    group = group[1].lower()
    bits = groups[group].get("bits", False)
    default = "[]" if bits else f":{elixir_atoms(groups[group])[0][0]}"
    decode = f"Constants.name{'s' if bits else ''}(:{group}, {name})"
    return match, decode, f"Fields.named(:{group}, {at}, {label})::binary", default


def elixir_struct_doc(manifest, item, fields):
    lines = ['  @moduledoc """', *elixir_doc(item["doc"].strip(), "  "), ""]
    layout = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}
    for field, decode in fields:
        text = f"* `{field['name']}` - {elixir_words(field['doc'])}"
        if group := re.match(r"Constants\.names?\(:(\w+),", decode):
            text += ": " + ", ".join(f"`:{name}`" for name, _ in elixir_atoms(elixir_groups(manifest)[group[1]]))
        lines += textwrap.wrap(text, ELIXIR_WIDTH, **layout)
    return [*lines, '  """']


def elixir_rows(rows, indent):
    """Rows with commas between them."""
    return [f"{indent}{row}," for row in rows[:-1]] + [indent + rows[-1]]


OLDER_STRUCT = """
  # Of an older version: the fields that it lacks are 0.
  def decode(older) when byte_size(older) < @size do
    decode(older <> <<0::size((@size - byte_size(older)) * 8)>>)
  end
"""


def elixir_struct(manifest, item):
    struct, grows = item["struct"], item["kind"] == "grows"
    fields = [(field, *elixir_field(manifest, struct, field)) for field in item["fields"]]
    visible = [field for field in fields if field[2]]
    named = any("Constants." in decode for _, _, decode, _, _ in visible)
    lines = [f"defmodule {elixir_module(struct)} do"]
    lines += elixir_struct_doc(manifest, item, [(field, decode) for field, _, decode, _, _ in visible])
    lines += ["  alias GradScaler.{Constants, Fields}" if named else "  alias GradScaler.Fields", ""]
    if grows:
        lines += [f"  @size {manifest.layouts[struct][1]}", ""]
    defaults = [f"{field['name']}: {default}" for field, _, _, _, default in visible]
    lines += ["  defstruct " + ",\n            ".join(defaults), "", "  @type t :: %__MODULE__{}", ""]
    lines += ['  @doc "The struct that a binary of the library holds."', "  def decode(<<"]
    lines += elixir_rows([match for _, match, _, _, _ in fields], "        ")
    lines += ["      >>) do", "    %__MODULE__{"]
    lines += elixir_rows([f"{field['name']}: {decode}" for field, _, decode, _, _ in visible], "      ")
    lines += ["    }", "  end", *(OLDER_STRUCT.rstrip().split("\n") if grows else []), ""]
    lines += ['  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."']
    lines += ["  def encode(%__MODULE__{} = s) do", "    <<"]
    lines += elixir_rows([encode for _, _, _, encode, _ in fields], "      ")
    return [*lines, "    >>", "  end", "end"]


def elixir_structs(manifest):
    lines = [f"# {NOTE}", "defmodule GradScaler.Constants do", "  @moduledoc false", ""]
    lines.append('  @doc "The names of a group with their numbers."')
    for group, item in elixir_groups(manifest).items():
        pairs = [f"{name}: {value}" for name, value in elixir_atoms(item)]
        lines += [f"  def all(:{group}) do", "    [", *(f"      {pair}," for pair in pairs)]
        lines[-1] = lines[-1].removesuffix(",")
        lines += ["    ]", "  end", ""]
    lines += [
        '  @doc "The number of a name, of a list of names (their union), or a number as it is."',
        "  def number(_group, number, _label) when is_integer(number), do: number",
        "  def number(_group, [], _label), do: 0",
        "",
        "  def number(group, [name | names], label) do",
        "    Bitwise.bor(number(group, name, label), number(group, names, label))",
        "  end",
        "",
        "  def number(group, name, label) do",
        "    all(group)[name] ||",
        "      raise ArgumentError,",
        '            "#{label} is #{inspect(name)}, not one of #{inspect(Keyword.keys(all(group)))}"',
        "  end",
        "",
        '  @doc "The name of a number; the number itself where it has none."',
        "  def name(group, number) do",
        "    case List.keyfind(all(group), number, 1) do",
        "      {name, _} -> name",
        "      nil -> number",
        "    end",
        "  end",
        "",
        '  @doc "The names of the bits that are set."',
        "  def names(_group, 0), do: []",
        "",
        "  def names(group, bits) do",
        "    for {name, bit} <- all(group), Bitwise.band(bits, bit) != 0, do: name",
        "  end",
        "end",
    ]
    structs = {item["struct"]: item for item in manifest.structs}
    for struct in ELIXIR_STRUCTS:
        lines += ["", *elixir_struct(manifest, structs[struct])]
    return "\n".join(lines) + "\n"


# ---- Rust: the sys crate one to one; of the safe crate the constants and the fields of a policy ----


def rust_type(manifest, type_, null=False):
    stem, stars = type_.removeprefix("const ").rstrip(" *"), type_.count("*")
    if stem in manifest.callbacks:
        return f"Option<{stem}>" if null else stem
    names = {"void": "c_void", "char": "c_char", "float": "f32", "double": "f64"}
    sized = re.fullmatch(r"(u?)int(\d+)_t", stem)
    name = (sized[1] or "i") + sized[2] if sized else names.get(stem, stem)
    pointers = ["*const " if type_.startswith("const ") else "*mut "] * stars
    return "".join(pointers) + name


def rust_doc(lines, mark="///"):
    """A doc comment; an indented block of the manifest is C code."""
    fenced = []
    for line in lines:
        if line.startswith("    ") and not (fenced and fenced[-1].startswith("    ")):
            fenced.append("```c")
        elif fenced and fenced[-1].startswith("    ") and not line.startswith("    "):
            fenced.append("```")
        fenced.append(line)
    escaped = [re.sub(r"\[(\w+)\]", r"\\[\1\\]", line.removeprefix("    ")) for line in fenced]  # no link
    return [f"{mark} {line}".rstrip() for line in escaped]


def rust_paragraphs(text, indent=""):
    return [indent + line for line in rust_doc(paragraphs(text, WIDTH - 4 - len(indent)))]


def rust_notes(function):
    """A list of what the arguments are, where their names do not say it."""
    notes = []
    for arg in function["args"]:
        words = [arg["unit"]] if "unit" in arg else []
        if "null" in arg and arg["name"] != "err":
            words.append(f"NULL: {arg['null']}")
        words += ["read and written"] if arg.get("inout") else []
        if words:
            notes += paragraphs(f"- `{arg['name']}`: {'; '.join(words)}", WIDTH - 8)
    return ["", *notes] if notes else []


def rust_function(manifest, item):
    doc = [*paragraphs(item["doc"], WIDTH - 8), *rust_notes(item)]
    if "errors" in item:
        doc += ["", *paragraphs("Errors: " + ", ".join(f"GSC_ERROR_{e}" for e in item["errors"]) + ".", WIDTH - 8)]
    lines = ["    " + line for line in rust_doc(doc)]
    args = [f"{arg['name']}: {rust_type(manifest, arg['type'], 'null' in arg)}" for arg in item["args"]]
    result = "" if item["returns"] == "void" else f" -> {rust_type(manifest, item['returns'])}"
    line = f"    pub fn {item['function']}({', '.join(args)}){result};"
    if len(line) <= WIDTH:
        return [*lines, line]
    return [*lines, f"    pub fn {item['function']}(", *(f"        {arg}," for arg in args), f"    ){result};"]


def rust_init(manifest, struct):
    """What the _INIT macro is in C."""
    name, size = struct["struct"].upper(), manifest.layouts[struct["struct"]][1]
    lines = ["", f"/// Bytes of [`{struct['struct']}`].", f"pub const {name}_SIZE: u32 = {size};"]
    lines += ["", f"/// Zeros, and the size: where every [`{struct['struct']}`] starts."]
    lines.append(f"pub const {name}_INIT: {struct['struct']} = {struct['struct']} {{")
    for field in struct["fields"]:
        type_ = field["type"]
        null = "core::ptr::null()" if type_.startswith("const ") else "core::ptr::null_mut()"
        zero = null if type_.endswith("*") else "0.0" if type_ == "double" else "0"
        lines.append(f"    {field['name']}: {f'{name}_SIZE' if field['name'] == 'struct_size' else zero},")
    return [*lines, "};"]


def rust_struct(manifest, item):
    offsets, size = manifest.layouts[item["struct"]]
    zeros = all("*" not in f["type"] and f.get("array", 0) <= 32 for f in item["fields"])  # what Default can do
    lines = rust_paragraphs(item["doc"])
    lines += ["#[repr(C)]", f"#[derive(Clone, Copy, Debug, {'Default, ' if zeros else ''}PartialEq)]"]
    lines.append(f"pub struct {item['struct']} {{")
    for field in item["fields"]:
        type_ = rust_type(manifest, field["type"])
        type_ = f"[{type_}; {field['array']}]" if "array" in field else type_
        lines += [*rust_paragraphs(field["doc"], "    "), f"    pub {field['name']}: {type_},"]
    lines += ["}", "", f"layout! {{ {item['struct']}, {(size + 7) // 8 * 8},"]
    lines += [f"    {name} {offset}," for name, offset in offsets.items()] + ["}"]
    return lines + (rust_init(manifest, item) if item["kind"] == "grows" else [])


def rust_constants(manifest, item):
    lines = rust_doc(paragraphs(item["doc"], WIDTH - 3), "//") if "doc" in item else []
    for value in item["values"]:
        name, number, type_ = item["constants"] + value["name"], value["value"], rust_type(manifest, item["type"])
        lines += ["", *rust_paragraphs(value["doc"])]
        if item["type"] == "macro":
            name = name.replace(")", ": i64) -> i64")
            body = re.sub(r"\(uint64_t\)\((\w+)\)", r"(\1 as u64)", number)
            body = re.sub(r"^\(\(int64_t\)(.*)\)$", r"\1 as i64", body)
            lines += [f"pub const fn {name} {{", f"    {body}", "}"]
        else:
            number = f"{type_}({number})" if item["type"] in manifest.aliases else number
            lines.append(f"pub const {name}: {type_} = {number};")
    return lines if "doc" in item else lines[1:]


RUST_LAYOUT = """
/// Compares a struct with the layout that the manifest states: its size at compile time, its fields in a test, as the
/// compiler of Debian 12 cannot subtract pointers in a constant.
macro_rules! layout {
    ($name:ident, $size:literal, $($field:ident $offset:literal,)*) => {
        const _: () = assert!(core::mem::size_of::<$name>() == $size);

        #[test]
        fn $name() {
            let it = core::mem::MaybeUninit::<$name>::uninit();
            let start = it.as_ptr();
            // SAFETY: the fields are not read, and lie in the same object as its start.
            unsafe {
                $(assert_eq!(core::ptr::addr_of!((*start).$field) as usize - start as usize, $offset);)*
            }
        }
    };
}
"""


def rust_item(manifest, item):
    if "section" in item:
        return [f"// ---- {item['section']} ".ljust(WIDTH, "-")]
    if "constants" in item:
        return rust_constants(manifest, item)
    if "struct" in item:
        return rust_struct(manifest, item)
    lines = rust_paragraphs(item["doc"])
    if "alias" in item:
        lines += ["#[repr(transparent)]", "#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]"]
        return [*lines, f"pub struct {item['alias']}(pub {rust_type(manifest, item['type'])});"]
    if "opaque" in item:
        lines += ["#[repr(C)]", f"pub struct {item['opaque']} {{", "    _opaque: [u8; 0],"]
        return [*lines, "    _not_send: core::marker::PhantomData<*mut u8>,", "}"]
    args = [f"{arg['name']}: {rust_type(manifest, arg['type'])}" for arg in item["args"]]
    line = f'pub type {item["callback"]} = unsafe extern "C" fn({", ".join(args)});'
    if len(line) > WIDTH:
        line = f'pub type {item["callback"]} =\n    unsafe extern "C" fn({", ".join(args)});'
    return [*lines, line]


def rust_sys(manifest):
    major, minor, patch = map(int, manifest.library["version"].split("."))
    lines = ["// SPDX-License-Identifier: MIT", f"// {NOTE}"]
    lines += rust_doc(paragraphs(manifest.library["doc"], WIDTH - 4), "//!")
    lines += ["#![no_std]", "#![allow(non_camel_case_types, non_snake_case)]", "", "use core::ffi::c_void;", ""]
    lines += ["/// C's `char`; core has it only since Rust 1.64."]
    lines += ['#[cfg(all(target_arch = "aarch64", not(target_vendor = "apple")))]', "pub type c_char = u8;"]
    lines += ["/// C's `char`; core has it only since Rust 1.64."]
    lines += ['#[cfg(not(all(target_arch = "aarch64", not(target_vendor = "apple"))))]', "pub type c_char = i8;"]
    lines += RUST_LAYOUT.rstrip().split("\n")
    lines += ["", "/// Version of the C interface that this crate declares: major, minor and patch, a byte each."]
    lines.append(f"pub const GSC_VERSION: u32 = {major << 16 | minor << 8 | patch:#08x};")
    for item in manifest.items:
        if "function" not in item:
            lines += ["", *rust_item(manifest, item)]
    lines += ["", "// ---- Functions ".ljust(WIDTH, "-"), "", 'extern "C" {']
    for number, function in enumerate(manifest.functions):
        lines += ([""] if number else []) + rust_function(manifest, function)
    return "\n".join(lines) + "\n}\n"


def rust_words(text):
    """A doc in the names of the safe crate, as a sentence."""
    text = re.sub(r"GSC_([A-Z]+)_\*(?: bits)?", lambda match: f"[`{match[1].title()}`]", text)
    text = re.sub(r"\bGSC_([A-Z]+?)_([A-Z_]+)\b", lambda match: f"[`{match[1].title()}::{match[2]}`]", text)
    text = re.sub(r"^[a-z]+(_\w+)+", r"`\g<0>`", text)
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def rust_choices(item):
    """A group of constants as a type: any of `choice!`, a union of `flags!`."""
    name = item["constants"].removeprefix("GSC_").removesuffix("_").title()
    name = name or ("Status" if item["type"] == "gsc_status" else "Dtype")
    raw = "sys::gsc_status" if name == "Status" else "u32"
    doc = item.get("doc", "GSC_OK, or why a call did nothing.").replace("GSC_OK", "Ok")
    lines = ["", f"{'flags' if item.get('bits') else 'choice'}! {{"]
    lines += [*rust_paragraphs(rust_words(doc), "    "), f"    {name}: {raw} {{"]
    for value in item["values"]:
        constant = f"{value['name'].removeprefix('ERROR_')} = sys::{item['constants']}{value['name']}"
        lines += [*rust_paragraphs(rust_words(value["doc"]), "        "), f"        {constant};"]
    return [*lines, "    }", "}"]


def rust_fields(struct):
    lines = ["", "fields! {"]
    for field in struct["fields"]:
        if field["name"] in ("struct_size", "reserved"):
            continue
        named = re.search(r"GSC_([A-Z]+)_\*", field["doc"])
        type_ = named[1].title() if named else {"double": "f64", "uint32_t": "u32", "uint64_t": "u64"}[field["type"]]
        lines += [*rust_paragraphs(rust_words(field["doc"]), "    "), f"    {field['name']}: {type_};"]
    return [*lines, "}"]


def rust_safe(manifest):
    lines = ["// SPDX-License-Identifier: MIT", f"// {NOTE}"]
    lines.append("//! The constants as types, and the fields of a policy; `macros.rs` says what becomes of them.")
    lines += ["", "use crate::policy::{Policy, PolicyBuilder};", "use crate::sys;"]
    for item in manifest.constants:
        if item["type"] in ("gsc_status", "uint32_t"):
            lines += rust_choices(item)
    policy = next(struct for struct in manifest.structs if struct["struct"] == "gsc_policy")
    return "\n".join(lines + rust_fields(policy)) + "\n"


OUTPUTS = {
    "include/gradscaler.h": header,
    "core/gradscaler.map": version_script,
    "core/layout.h": layout_assertions,
    "tests/abi/signatures.inc": ffi_table,
    "bindings/python/gradscaler.i": swig_interface,
    "bindings/python/src/gradscaler/_structs.py": python_structs,
    "bindings/python/src/gradscaler/_gradscaler.pyi": python_stub,
    "bindings/elixir/c_src/gradscaler_nif.c": nif_source,
    "bindings/elixir/lib/grad_scaler/native.ex": elixir_stubs,
    "bindings/elixir/lib/grad_scaler/structs.ex": elixir_structs,
    "bindings/rust/gradscaler-sys/src/lib.rs": rust_sys,
    "bindings/rust/gradscaler/src/generated.rs": rust_safe,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a file is out of date")
    check = parser.parse_args().check
    manifest = Manifest(ROOT / "bindings" / "abi.toml")
    stale = 0
    for name, emit in OUTPUTS.items():
        path, text = ROOT / name, emit(manifest)
        old = path.read_text() if path.exists() else ""
        if old == text:
            continue
        stale += 1
        if check:
            sys.stdout.writelines(
                difflib.unified_diff(old.splitlines(True), text.splitlines(True), name, f"{name} (from the manifest)")
            )
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {name}")
    if check and stale:
        sys.exit(f"{stale} of {len(OUTPUTS)} generated files differ from bindings/abi.toml: run ci/generate")
    print(f"{len(OUTPUTS)} generated files are up to date")


if __name__ == "__main__":
    main()
