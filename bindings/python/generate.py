# SPDX-License-Identifier: MIT
"""Generates from the manifest: the SWIG interface, its stub, and the structs and constants as ctypes."""

import keyword
import textwrap

from manifest import WIDTH, note, paragraphs, reword, run

NOTE = note(__file__)
# Structs and functions that objects.h and arrays.h handle: contexts, lists, and destructors; and gsc_struct_init, which
# ctypes replaces.
BY_HAND = (
    "gsc_exec",
    "gsc_tensor",
    "gsc_tensors_check_overlap",
    "gsc_context_destroy",
    "gsc_memory_destroy",
    "gsc_struct_init",
)
DICTS = ("gsc_cuda_options",)  # passed as dicts of fields, like structs with pointers
CTYPES = {"float": "c_float", "double": "c_double", "char": "c_char"}
NUMBERS = {"'f'": "PyFloat_FromDouble", "'i'": "PyLong_FromLongLong", "'u'": "PyLong_FromUnsignedLongLong"}
STUB = """\
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Buffer = Any
Arrays = Sequence[Any]
Pair = tuple[Arrays, Arrays]
Held = Any
Context = Any

class Memory:
    def __buffer__(self, flags: int, /) -> memoryview: ...

Place = Buffer | Memory | tuple[Memory, int]
On = Context | tuple[Context, int, Memory | None] | tuple[Context | None, int, Memory | None, int] | None

class Error(ValueError):
    status: int
    argument: int
    index: int
    other: int
    name: str
    field: str
    value: float | None
    low: float | None
    high: float | None
    subject_length: int
    why: str
    requirement: str
"""
STATE = '''\
    @classmethod
    def from_bytes(cls, data):
        """Makes a state from bytes(state). Longer bytes of a later version are accepted if the rest is zero."""
        data, size = bytes(data), c.sizeof(cls)
        if len(data) < size:
            raise ValueError(f"a state has {size} bytes, not {len(data)}")
        if any(data[size:]):
            raise ValueError("the bytes of the state set fields that this version does not know")
        state = cls.from_buffer_copy(data)
        try:
            _gradscaler.gsc_state_digest(None, state)
        except _gradscaler.Error as error:
            if error.status == Status.ERROR_VERSION:
                raise
        return state

    def __setstate__(self, attributes, data):
        super().__setstate__(attributes, bytes(self.from_bytes(data)))
'''
NATIVE = """\
def hold(tensors: Arrays, out: Arrays | None, device: int, stream: int | None, /) -> Held: ...
def summary(lists: Held, /) -> tuple[int, int]: ...
def kinds(arrays: list[Any], /) -> set[type]: ...
def metrics(policy: Any, state: Any, report: Any, /) -> dict[str, float]: ...
def with_subnormals(function: Callable[[], Any], /) -> Any: ...
def xla_handler(platform: str, /) -> Any: ...
def xla_workspace(device: int, tensors: bytes, /) -> int: ...
"""


def class_of(name):
    return name.removeprefix("gsc_").title().replace("_", "")


def words(manifest, text):
    """Rewrites a doc with Python's names: GSC_EVENT_STOPPED is Event.STOPPED, GSC_WANT_* is Want."""
    text = reword(manifest, text, lambda item, v: f"{class_of(item.name)}.{v.name}", lambda item: class_of(item.name))
    return text.replace("NULL", "None")


def groups(manifest):
    return [item for item in manifest.constants.values() if item.kind != "number"]


def pointers(item):
    """Returns whether a struct has pointers, so that Python cannot hold it as a value."""
    return item.name in DICTS or any(f.passing or f.kind in ("pointer", "callback", "opaque") for f in item.fields)


def of_values(manifest):
    """Returns the structs that Python code sees: without pointers, and not gsc_error, which is raised."""
    raised = {arg.type for f in manifest.functions.values() for arg in f.args if arg.name == "err"}
    return [item for item in manifest.structs.values() if not pointers(item) and item.name not in raised]


def with_fields(manifest):
    """Returns the structs that are passed as dicts of fields."""
    return [item for item in manifest.structs.values() if pointers(item) and item.name not in BY_HAND]


def field_type(field):
    if field.kind == "struct":
        return class_of(field.type)
    kind = "c_char_p" if field.kind == "string" else CTYPES.get(field.base) or "c_" + field.base.removesuffix("_t")
    return f"c.{kind}" + (f" * {field.array}" if field.array else "")


def struct(manifest, item):
    doc, rows, apart = paragraphs(words(manifest, item.doc), WIDTH - 8), [], []
    for field in item.fields:
        if field.name != "struct_size":  # which Python sets
            row = f"{field.name}: {words(manifest, field.doc)}"
            rows += textwrap.wrap(row, WIDTH - 4, subsequent_indent="    ", break_on_hyphens=False)
    if item.name == "gsc_policy":  # gradscaler.Policy has the same fields and another first paragraph
        apart = [f'    _fields_doc_ = """{rows[0]}', *(f"    {row}" for row in rows[1:]), '    """', ""]
    else:
        doc += ["", *rows]
    lines = [f"class {class_of(item.name)}(Struct):", f'    """{doc[0]}']
    lines += [*(f"    {line}".rstrip() for line in doc[1:]), '    """', "", *apart, "    _fields_ = ["]
    lines += [*(f'        ("{f.name}", {field_type(f)}),' for f in item.fields), "    ]"]
    taken = [f'"{f.name}": {class_of(f.takes)}' for f in item.fields if f.takes]
    lines += [f"    _takes_ = {{{', '.join(taken)}}}"] if taken else []
    return lines + (["", *STATE.splitlines()] if item.name == "gsc_state" else [])


def constants(manifest, item):
    lines = [f"class {class_of(item.name)}(enum.{'IntFlag' if item.kind == 'bits' else 'IntEnum'}):"]
    doc = paragraphs(words(manifest, item.doc), WIDTH - 8)
    lines += [f'    """{doc[0]}', *(f"    {line}".rstrip() for line in doc[1:])]
    lines = [*lines[:-1], lines[-1] + '"""', ""]
    lines += [f"    {v.name} = {v.value}  # {words(manifest, v.doc)}" for v in item.values]
    return lines + (
        ["", "    __str__ = enum.Flag.__str__  # names, where IntFlag has a number"] if item.kind == "bits" else []
    )


def structs(manifest):
    """Generates _structs.py: ctypes structures and enumerations."""
    lines = [
        '"""The structs and constants of the library.',
        "",
        NOTE,
        '"""',
        "",
        "import contextlib",
        "import ctypes as c",
    ]
    lines += ["import enum", "", "from . import _gradscaler", ""]
    lines.append(f"SHARED_BYTES = {manifest.library.shared_bytes}  # the size from which threads share a list")
    for item in groups(manifest):
        lines += ["", "", *constants(manifest, item)]
    lines += ["", "", "class Struct(c.Structure):", '    """The base of all structs: repr shows the fields."""', ""]
    lines += ["    _takes_ = {}", "", "    def __repr__(self):"]
    lines += ["        values = {n: getattr(self, n) for n, *_ in self._fields_ if not n.startswith('reserved')}"]
    lines += ["        for name, takes in self._takes_.items():", "            with contextlib.suppress(ValueError):"]
    lines += ["                values[name] = takes(values[name])"]
    lines += ["        return f\"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in values.items())})\""]
    for item in of_values(manifest):
        lines += ["", "", *struct(manifest, item)]
    return "\n".join(lines) + "\n"


def functions(manifest):
    """Returns the functions that Python can call."""
    return [f for f in manifest.functions.values() if f.name not in BY_HAND]


def arguments(manifest, function):
    """Yields (name, type) of the Python arguments, as typemaps.i converts them."""
    names = [arg.name for arg in function.args]
    counts = {arg.count for arg in function.args if arg.kind != "pointer"}  # a Python list knows its length
    dicts = [item.name for item in with_fields(manifest)]
    for arg in function.args:
        if arg.name == "err" or arg.name in counts:
            continue
        none = " | None" if arg.null or (arg.count and arg.passing == "out" and not arg.required) else ""
        if arg.passing == "create" or (arg.passing == "out" and arg.kind in ("scalar", "bytes")):
            continue  # returned
        if arg.type == "gsc_tensor":
            if arg.name == "tensors":
                yield ("tensors_and_out", "Pair | Held") if "out" in names else (arg.name, "Arrays | Held")
        elif arg.name == "exec":
            yield arg.name, "On"
        elif arg.kind == "opaque":
            yield arg.name, f"Context{none}"
        elif arg.type in dicts:
            yield arg.name, f"Mapping[str, Any]{none}"
        elif arg.kind in ("struct", "pointer") or (arg.kind == "scalar" and arg.count):
            yield arg.name, f"Place{none}"
        elif arg.kind == "string" and arg.passing:
            yield arg.name, f"Sequence[str | None]{none}"
        else:
            kinds = {"string": "str", "bytes": "Buffer", "double": "float", "float": "float"}
            yield arg.name, kinds.get(arg.base, "int") + none


def result(function):
    found = []
    for arg in function.args:
        if arg.passing == "create":
            return "Memory" if arg.kind == "pointer" else "Context"
        if arg.passing == "out" and arg.kind == "bytes":
            return "bytes"
        if arg.passing in ("out", "inout") and arg.kind == "scalar":
            found.append("float" if arg.base in ("float", "double") else "int")
    if found:
        return found[0] if len(found) == 1 else f"tuple[{', '.join(found)}]"
    kinds = {"gsc_status": "None", "string": "str | None", "float": "float", "double": "float", "void": "None"}
    return kinds.get(function.returns, "int")


def stub(manifest):
    lines = ['"""The C functions, one to one; a status that is not GSC_OK is raised as Error.', "", NOTE, '"""', ""]
    lines += STUB.split("\n")
    for item in manifest.constants.values():
        lines += [f"{value.c}: int" for value in item.values]
    lines.append("")
    for function in functions(manifest):
        args = ", ".join(f"{n}{'_' * keyword.iskeyword(n)}: {kind}" for n, kind in arguments(manifest, function))
        lines.append(f"def {function.name}({args}{', /' if args else ''}) -> {result(function)}: ...")
    return "\n".join(lines) + "\n" + NATIVE


def number_kind(base):
    return "'f'" if base in ("float", "double") else "'u'" if base.startswith("u") else "'i'"


def field_row(manifest, item, field):
    """Returns the row of gsc_py_field for a field of a struct with pointers, or None."""
    size, grows = f"sizeof(({item.name} *)0)->{field.name}", "false"
    if field.kind in ("callback", "opaque", "string"):
        return None  # not from Python
    if field.type == "gsc_tensor":
        kind, size = "'t'", "sizeof(gsc_tensor)"
    elif field.passing == "in" and field.kind == "struct":
        kind, size = "'s'", f"sizeof({field.type})"
        grows = str(manifest.structs[field.type].kind == "grows").lower()
    elif field.passing or field.kind == "pointer":
        kind, size = "'o'", f"sizeof({field.type})" if field.passing else "0"
    else:
        kind = "'b'" if field.array or field.kind != "scalar" else number_kind(field.base)
    return f'  {{"{field.name}", offsetof({item.name}, {field.name}), {size}, {kind}, {grows}}},'


def field_table(manifest, item):
    rows = [row for field in item.fields if field.name != "struct_size" and (row := field_row(manifest, item, field))]
    init = f"{item.name.upper()}_INIT" if item.kind == "grows" else "{0}"
    return [
        "%{",
        f"static const gsc_py_field {item.name}_fields[] = {{",
        *rows,
        "  {NULL, 0, 0, 0, false},",
        "};",
        "%}",
        f"GSC_FIELDS({item.name}, {item.name}_fields, {init})",
    ]


def counted(function):
    """Returns the lists that share a count, by the count."""
    found = {}
    for arg in function.args:
        if arg.count and arg.kind in ("struct", "string", "scalar") and arg.type not in BY_HAND:
            found.setdefault(arg.count, []).append(arg)
    return found


def list_rows(function):
    """Yields the typemaps of lists. The last list before a count sets the count."""
    for count, (*others, last) in counted(function).items():
        for arg in others:
            is_names = arg.kind == "string"
            yield f"GSC_NAMES_BESIDE({arg.name})" if is_names else f"GSC_STRUCTS_BESIDE({arg.type}, {arg.name})"
        if last.kind == "string":
            yield f"GSC_NAMES({last.name}, {count})"
        else:
            yield f"GSC_STRUCTS{'_OUT' * (last.passing == 'out')}({last.type}, {last.name}, {count})"


def length(arg, number):
    """Returns the gsc_py_length of a list."""
    if arg.kind == "string":
        return f'{{"{arg.name}", strings{number}.list ? (int64_t)strings{number}.n : -1}}'
    return f'{{"{arg.name}", gsc_py_length_of(&array{number}.place, sizeof({arg.type}))}}'


def exception(manifest, function):
    """Returns the macro around the call: it checks the lists and releases the lock."""
    at = {arg.name: i for i, arg in enumerate(function.args, 1)}
    if "tensors" in at:
        options = f"&held{at['options']}" if "options" in at else "NULL"
        return [f"GSC_ON_LISTS({function.name}, on1, lists{at['tensors']}, {options})"]
    for count, lists in counted(function).items():
        lengths = ", ".join(length(arg, at[arg.name]) for arg in lists)
        if any(arg.kind == "bytes" and arg.passing == "out" for arg in function.args):
            room = ", ".join(f"arg{at[name]}" for name in ("bytes", "capacity"))
            place = ", ".join(f"{name}{at['bytes']}" for name in ("saved_size", "longer"))
            return [f"GSC_GROWS({function.name}, arg{at[count]}, {room}, {place}, {lengths})"]
        if len(lists) > 1:
            return [f"GSC_SAME_COUNT({function.name}, arg{at[count]}, {lengths})"]
    blocks = function.blocks == "yes" and function.name != "gsc_memory_copy"  # which has its own %exception
    return [f"GSC_BLOCKS({function.name})"] if blocks else []


def swig_interface(manifest):
    lines = [f"/* {NOTE} */", "%module _gradscaler", "%{", '#include "arrays.h"', "%}", '%include "typemaps.i"', ""]
    for item in of_values(manifest):
        lines.append(f"GSC_STRUCT({item.name}, {'true' if item.kind == 'grows' else 'false'})")
    for item in with_fields(manifest):
        lines += field_table(manifest, item)
    lines.append("")
    callable_ = functions(manifest)
    for function in manifest.functions.values():
        name = function.name
        if function not in callable_:
            lines.append(f"%ignore {name};")
            continue
        saved = any(arg.kind == "bytes" for arg in function.args)
        for arg in function.args:
            if arg.kind == "scalar" and arg.passing and not arg.count and not saved:
                const = "const " if arg.passing == "in" else ""
                kind = number_kind(arg.base)
                if arg.passing == "out":
                    lines.append(f"GSC_ONLY_OUT({arg.c.split()[0]}, {arg.name}, {NUMBERS[kind]})")
                else:
                    lines.append(f"GSC_IN({const}{arg.type}, {arg.name}, {kind})")
                if arg.passing == "inout":
                    lines.append(f"GSC_OUT({arg.type}, {arg.name}, {NUMBERS[kind]})")
        lines += list_rows(function)
        doc = [f"{name}({', '.join(arg for arg, _ in arguments(manifest, function))})", ""]
        doc += paragraphs(words(manifest, function.doc), WIDTH)
        text = "\\n".join(doc).replace('"', '\\"')
        lines.append(f'%feature("docstring") {name} "{text}";')
        lines += exception(manifest, function)
        if any(arg.kind == "scalar" and arg.count for arg in function.args):
            # SWIG's own call casts a list of numbers to what uint64_t is on other systems.
            call = ", ".join(f"({arg.c})arg{number}" for number, arg in enumerate(function.args, 1))
            lines.append(f'%feature("action") {name} "result = {name}({call});"')
    lines += [f"%ignore {name};" for name in manifest.structs]
    return "\n".join([*lines, "", '%include "gradscaler.h"', '%include "gradscaler_cuda.h"', ""])


if __name__ == "__main__":
    run({
        "bindings/python/gradscaler.i": swig_interface,
        "bindings/python/src/gradscaler/_structs.py": structs,
        "bindings/python/src/gradscaler/_gradscaler.pyi": stub,
    })  # fmt: skip
