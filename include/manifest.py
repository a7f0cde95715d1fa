# SPDX-License-Identifier: MIT
"""Reads and checks the manifest, include/gradscaler.toml, and runs the generators.

An unknown or missing key is refused; the error names the item and the key. A loaded item has every key as an attribute;
an optional key that is missing is None or False. A member (a field or an argument) also has `kind` (scalar, char,
string, pointer, bytes, struct, opaque, callback), `base` (the type behind an alias) and `c` (its C type).
"""

import difflib
import re
import sys
import textwrap
import tomllib
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
PATH = Path("include/gradscaler.toml")
WIDTH = 100
SIZES = {f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"float": 4, "double": 8}
TYPES = (*SIZES, "char", "string", "pointer", "bytes")

# Key: the type of its value, or a tuple of the allowed values. A key that ends in ? is optional.
MEMBER = {"name": str, "type": str, "pass?": str, "takes?": str}
FIELD = MEMBER | {"doc": str, "array?": int, "since?": str}
ARGUMENT = MEMBER | {"null?": str, "count?": str, "counts?": str, "required?": bool, "unit?": str, "const?": bool}
VALUE = {"name": str, "value": int, "doc": str, "since?": str}
LIBRARY = {"name": str, "version": str, "first": str, "cuda_version": int, "shared_bytes?": int, "doc": str}
ITEMS = {
    "section": {"section": str, "header?": ("cuda",), "doc?": str},
    "constants": {
        "constants": str,
        "prefix": str,
        "kind": ("enum", "bits", "number"),
        "type": str,
        "since?": str,
        "doc": str,
        "values": list,
    },
    "alias": {"alias": str, "type": str, "since?": str, "doc": str},
    "opaque": {"opaque": str, "since?": str, "doc": str},
    "callback": {"callback": str, "returns": str, "args": list, "since?": str, "doc": str},
    "struct": {"struct": str, "kind": ("grows", "fixed"), "size?": int, "since?": str, "doc": str, "fields": list},
    "function": {
        "function": str,
        "returns": str,
        "args": list,
        "errors": list,
        "blocks": ("no", "by size", "yes"),
        "capture": bool,
        "since?": str,
        "doc": str,
    },
}
# Names that no member can have: keywords of a language with a raw layer.
KEYWORDS = """
    and as assert async auto await become bool box break case catch char class const continue crate def default del
    delete do double dyn elif else end enum except explicit export extern false final finally float fn for friend
    global goto if impl import in inline int is lambda let long loop macro match mod move mut mutable namespace new nil
    nonlocal not operator or override pass private protected pub public raise ref register rescue restrict return self
    short signed sizeof static struct super switch template this throw trait true try type typedef typename typeof
    union unsafe unsigned unsized use using virtual void volatile when where while with xor yield
"""
WORDS = {str: "text", int: "integer", bool: "boolean", list: "list", dict: "table"}
# How a member of each kind can be passed. None: by value.
ARGUMENT_PASSES = {
    "scalar": (None, "in", "out", "inout"),
    "char": (),
    "string": (None, "in"),
    "pointer": (None, "create", "destroy"),
    "bytes": ("in", "out", "inout"),
    "struct": ("in", "out", "inout"),
    "opaque": ("handle", "create", "destroy"),
    "callback": (None,),
}
FIELD_PASSES = ARGUMENT_PASSES | {
    "char": (None,),
    "string": (None,),
    "pointer": (None,),
    "bytes": (),
    "struct": (None, "in", "out", "inout"),
    "opaque": ("handle",),
}


class ManifestError(Exception):
    """An error in the manifest. Its text is a sentence."""


def version_of(text):
    """Returns (0, 3) for "0.3", or None if the text is no version."""
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+\.\d+", text) else None


def is_pointer(c):
    return c.endswith("*")


def read(where, table, schema):
    """Checks a table against a schema and returns it with all keys as attributes."""
    if type(table) is not dict:
        raise ManifestError(f"{where}: {table!r} is no table")
    known = {key.removesuffix("?"): wanted for key, wanted in schema.items()}
    for key, value in table.items():
        if key not in known:
            raise ManifestError(f'{where}: unknown key "{key}"; there are {", ".join(known)}')
        wanted = known[key]
        if isinstance(wanted, tuple):
            if value not in wanted:
                raise ManifestError(f"{where}: {key} is {value!r}, not one of {', '.join(map(repr, wanted))}")
        elif type(value) is not wanted:
            raise ManifestError(f"{where}: {key} is {value!r}, which is no {WORDS[wanted]}")
    for key in schema:
        if not key.endswith("?") and key not in table:
            raise ManifestError(f'{where}: the key "{key}" is missing')
    return SimpleNamespace(**dict.fromkeys(known) | table)


def place(owner, table):
    """Returns the position of a table in an item, by name if it has one."""
    return f"{owner.name}.{table.get('name', '?') if type(table) is dict else '?'}"


class Manifest:
    """The items of a manifest, in order and by kind and name. Structs have their layout."""

    def __init__(self, text):
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ManifestError(f"no TOML: {error}") from None
        top = read("the manifest", data, {"library": dict, "item": list})
        self.library = read("library", top.library, LIBRARY)
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", self.library.version)
        if not match:
            raise ManifestError(f"library: version is {self.library.version!r}, not MAJOR.MINOR.PATCH")
        self.version, self.first = tuple(map(int, match.groups())), self.library.first
        if max(self.version[1:]) > 255:  # GSC_VERSION has 8 bits for each
            raise ManifestError(f"library: version is {self.library.version}, but minor and patch must be below 256")
        self._lines("library", self.library.doc)
        self.items = []
        for number, table in enumerate(top.item, 1):
            self.items.append(self._item(number, table, self.items[-1].name if self.items else "library"))
        for what in ITEMS:
            setattr(self, PLURALS.get(what, what + "s"), {i.name: i for i in self.items if i.what == what})
        self._unique(i.name for i in self.items if i.what != "section")
        for item in self.aliases.values():
            self._alias(item)
        for item in self.constants.values():
            self._constants(item)
        self._unique(value.c for item in self.constants.values() for value in item.values)
        for item in self.structs.values():
            self._struct(item)
        for item in [*self.callbacks.values(), *self.functions.values()]:
            self._callable(item)

    def _item(self, number, table, after):
        kinds = [key for key in ITEMS if key in table]
        if len(kinds) != 1:
            keys = f"{', '.join(sorted(table))}; exactly one of {', '.join(ITEMS)} must be there"
            raise ManifestError(f"item {number}, after {after}: has the keys {keys}")
        what, name = kinds[0], table[kinds[0]]
        item = read(name, table, ITEMS[what])
        if what not in ("section", "constants") and not re.fullmatch(r"gsc_[a-z0-9_]+", name):
            raise ManifestError(f"{name}: {what} is no name that starts with gsc_")
        item.what, item.name = what, name
        self._lines(name, item.doc or "")
        if what != "section":
            item.header = next((i.header for i in self.items[::-1] if i.what == "section"), None)
            self._since(item.name, item)
        return item

    @staticmethod
    def _lines(where, doc):
        """Checks the lines of a doc that are not wrapped: in the header " * " stands before them."""
        for line in doc.split("\n"):
            if line.startswith("    ") and len(line) + 3 > WIDTH:
                raise ManifestError(
                    f"{where}: doc has a line of {len(line)} characters, more than {WIDTH - 3}: {line.strip()}"
                )

    def _since(self, where, it, item=None):
        if it.since is None:
            it.since = item.since if item else self.first
        since = version_of(it.since)
        if since is None:
            raise ManifestError(f"{where}: since is {it.since!r}, not MAJOR.MINOR")
        if since > self.version[:2]:
            raise ManifestError(
                f"{where}: since is {it.since}, but the version of the library is {self.library.version}"
            )
        if item and since < version_of(item.since):
            raise ManifestError(f"{where}: since is {it.since}, but {item.name} is there since {item.since}")

    @staticmethod
    def _unique(names, where=""):
        seen = set()
        for name in names:
            if name in seen:
                raise ManifestError(f"{where}{name} is there twice")
            seen.add(name)

    # ---- types ----

    def base(self, type_):
        """Returns the type behind an alias."""
        return self.aliases[type_].type if type_ in self.aliases else type_

    def kind_of(self, where, type_):
        if self.base(type_) in SIZES:
            return "scalar"
        if type_ in TYPES:
            return type_
        for kind in ("struct", "opaque", "callback"):
            if type_ in getattr(self, PLURALS.get(kind, kind + "s")):
                return kind
        raise ManifestError(f"{where}: type {type_} is not one of {', '.join(TYPES)}, nor a name from the manifest")

    def c_type(self, member):
        if member.kind == "string":
            return "const char *const *" if member.passing else "const char *"
        name = "void" if member.kind in ("pointer", "bytes") else member.type
        stars = {"create": "**", "callback": "*"}.get(member.passing, "*")
        pointed = member.passing or member.kind in ("pointer", "callback")
        const = "const " if member.passing == "in" or getattr(member, "const", None) else ""
        return f"{const}{name} {stars}" if pointed else name

    def _member(self, owner, table, schema, passes):
        where = place(owner, table)
        member = read(where, table, schema)
        if not re.fullmatch(r"[a-z][a-z0-9_]*", member.name):
            raise ManifestError(f"{where}: name is not in lower case")
        if member.name in KEYWORDS.split():
            raise ManifestError(f"{where}: name is a keyword of a language")
        member.passing, member.where = vars(member).pop("pass"), where
        member.kind, member.base = self.kind_of(where, member.type), self.base(member.type)
        if member.passing not in passes[member.kind]:
            ways = [f'"{way}"' if way else "left out" for way in passes[member.kind]]
            given = f"pass = {member.passing!r}" if member.passing else "no pass"
            can = f"can be {' or '.join(ways)}" if ways else "cannot be here"
            raise ManifestError(f"{where}: {given}, but with type {member.type} pass {can}")
        if member.takes is not None:
            group = self.constants.get(member.takes)
            if group is None or group.kind == "number":
                groups = ", ".join(name for name, g in self.constants.items() if g.kind != "number")
                raise ManifestError(
                    f"{where}: takes {member.takes!r}, which is no group of constants; there are {groups}"
                )
            if member.base != self.base(group.type):
                raise ManifestError(
                    f"{where}: type {member.type}, but the constants of {member.takes} are {group.type}"
                )
            if self.items.index(group) > self.items.index(owner):  # in C the type of the group comes first
                raise ManifestError(f"{where}: takes {member.takes!r}, which must stand further up")
        if getattr(member, "const", None) and (member.kind != "pointer" or member.passing):
            raise ManifestError(f"{where}: const is for a pointer that is passed by value")
        member.c = self.c_type(member)
        if member.takes:
            member.c = member.c.replace(member.type, f"gsc_{member.takes}")
        return member

    # ---- items ----

    def _alias(self, item):
        if item.type not in SIZES:
            raise ManifestError(f"{item.name}: type {item.type} is not one of {', '.join(SIZES)}")

    def _constants(self, item):
        base = self.base(item.type)
        if base not in SIZES or base in ("float", "double"):
            raise ManifestError(f"{item.name}: type {item.type} is no integer type")
        item.values = [read(place(item, table), table, VALUE) for table in item.values]
        bits = 8 * SIZES[base]
        low, high = (0, 2**bits) if base[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        for value in item.values:
            where = f"{item.name}.{value.name}"
            value.c = item.prefix + value.name
            if not re.fullmatch(r"GSC_[A-Z0-9_]+", value.c):
                raise ManifestError(f"{where}: name makes {value.c}, which is no name of a constant")
            self._since(where, value, item)
            if not low <= value.value < high:
                raise ManifestError(f"{where}: value {value.value} does not fit in {item.type}")
            if item.kind == "bits" and (value.value <= 0 or value.value & (value.value - 1)):
                raise ManifestError(f"{where}: value {value.value} is not one bit")
        if item.kind != "number":
            self._unique((f"value {value.value}" for value in item.values), f"{item.name}: ")

    def _struct(self, item):
        item.fields = [self._member(item, table, FIELD, FIELD_PASSES) for table in item.fields]
        self._unique((field.name for field in item.fields), f"{item.name}.")
        item.offsets, end, widest = {}, 0, 1
        for field in item.fields:
            self._since(field.where, field, item)
            if field.array is not None and (field.kind not in ("scalar", "char") or field.passing or field.array < 1):
                raise ManifestError(f"{field.where}: array is for one or more scalars or char")
            if field.kind == "char" and field.array is None:
                raise ManifestError(f"{field.where}: type char needs array")
            size, alignment = self.extent(field)
            if end % alignment:
                raise ManifestError(
                    f"{field.where}: {alignment - end % alignment} bytes of padding would lie before it; "
                    "add a reserved field there"
                )
            item.offsets[field.name], field.offset = end, end
            field.bytes, field.reserved = size * (field.array or 1), field.name.startswith("reserved")
            end, widest = end + field.bytes, max(widest, alignment)
        if item.kind == "grows":
            first = item.fields[0] if item.fields else None
            if not first or (first.name, first.base, first.array) != ("struct_size", "uint32_t", None):
                raise ManifestError(f"{item.name}: a struct that grows starts with struct_size, a uint32_t")
            if "size" in vars(item) and item.size is not None:
                raise ManifestError(f"{item.name}: size is for fixed structs; this one grows")
            widest = 8
        elif item.size is None:
            raise ManifestError(f'{item.name}: the key "size" is missing, which a fixed struct needs')
        if end % widest or not end:
            spare = widest - end % widest
            raise ManifestError(
                f"{item.name}: {end} bytes, not a multiple of {widest}; add a reserved word of {spare} bytes"
            )
        if item.kind == "fixed" and item.size != end:
            raise ManifestError(f"{item.name}: size is {item.size}, but its fields take {end} bytes")
        item.size, item.alignment = end, widest

    def extent(self, field):
        """Returns (size, alignment) of one element of a field, on a 64-bit target."""
        if field.kind == "char":
            return 1, 1
        if field.kind == "scalar" and not field.passing:
            return SIZES[field.base], SIZES[field.base]
        if field.kind == "struct" and not field.passing:
            inner = self.structs[field.type]
            if not hasattr(inner, "alignment") or inner.kind == "grows":
                raise ManifestError(f"{field.where}: type {field.type} by value must be a fixed struct further up")
            return inner.size, inner.alignment
        return 8, 8

    def _callable(self, item):
        item.args = [self._member(item, table, ARGUMENT, ARGUMENT_PASSES) for table in item.args]
        self._unique((arg.name for arg in item.args), f"{item.name}.")
        since = {i.name: i.since for i in self.items if i.what != "section"}
        for arg in item.args:
            for name in {arg.type, arg.takes} & since.keys():
                if version_of(since[name]) > version_of(item.since):
                    raise ManifestError(
                        f"{arg.where}: {name} is there since {since[name]}, but {item.name} since {item.since}"
                    )
        if item.returns not in ("void", "string") and self.base(item.returns) not in SIZES:
            raise ManifestError(f"{item.name}: returns {item.returns}, which is not void, string, a scalar or an alias")
        args = {arg.name: arg for arg in item.args}
        for arg in item.args:
            if arg.null is not None and not is_pointer(arg.c):
                raise ManifestError(f"{arg.where}: null is for pointers, but the type is {arg.c}")
            if arg.count is not None:
                count = args.get(arg.count)
                if not is_pointer(arg.c):
                    raise ManifestError(f"{arg.where}: count is for pointers, but the type is {arg.c}")
                if count is None or count.c not in ("uint64_t", "uint32_t"):
                    raise ManifestError(
                        f"{arg.where}: count is {arg.count!r}, which is no argument of an unsigned type"
                    )
            elif arg.kind == "bytes" or (arg.kind == "string" and arg.passing):
                raise ManifestError(f'{arg.where}: the key "count" is missing, which {arg.type} needs here')
            elif arg.required is not None:
                raise ManifestError(f"{arg.where}: required is for what has a count")
        for arg in item.args:
            if arg.counts is not None and (arg.counts not in args or not args[arg.counts].count):
                raise ManifestError(f"{arg.where}: counts is {arg.counts!r}, which is no list among the arguments")
        known = {value.c for group in self.constants.values() for value in group.values}
        for error in getattr(item, "errors", []):
            if f"GSC_ERROR_{error}" not in known:
                raise ManifestError(f"{item.name}: errors has {error!r}, but there is no GSC_ERROR_{error}")


PLURALS = {"constants": "constants", "alias": "aliases", "opaque": "opaques"}


# ---- what the generators share ----


def declare(c, name):
    return f"{c}{'' if is_pointer(c) else ' '}{name}"


def paragraphs(text, width):
    """Returns the wrapped lines of a doc. Lines that start with four spaces stay as they are; `- ` begins an entry."""
    lines, pending = [], []

    def flush():
        if pending:
            bullet = "  " if pending[0].startswith("- ") else ""
            wrap = {"break_on_hyphens": False, "break_long_words": False, "subsequent_indent": bullet}
            lines.extend(textwrap.wrap(" ".join(pending), width, **wrap))
            pending.clear()

    for line in text.strip("\n").split("\n"):
        if not line or line.startswith("    "):
            flush()
            lines.append(line)
            continue
        if line.startswith("- "):
            flush()
        pending.append(line.strip())
    flush()
    return lines


def reword(manifest, text, value, group):
    """Returns a doc with value(item, value) for each name of a constant and group(item) for each group, GSC_X_*."""
    values = {v.c: (item, v) for item in manifest.constants.values() for v in item.values}
    groups = {item.prefix: item for item in manifest.constants.values() if item.kind != "number"}

    def name(match):
        if match[1]:
            return group(groups[match[1]]) if match[1] in groups else match[0]
        return value(*values[match[0]]) if match[0] in values else match[0]

    return re.sub(r"\b(GSC_[A-Z0-9_]*)\*(?: bits)?|\bGSC_[A-Z0-9_]+\b", name, text)


def note(path):
    """Returns the line that names the source of a generated file."""
    return f"Generated from include/gradscaler.toml by {Path(path).resolve().relative_to(ROOT)}. Do not edit."


def load(path=ROOT / PATH):
    try:
        return Manifest(path.read_text())
    except ManifestError as error:
        raise ManifestError(f"{path.relative_to(ROOT)}: {error}") from None


def run(outputs):
    """Writes the output of each function of {path: function}; --check only compares."""
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(f"usage: {sys.argv[0]} [--check]")
    try:
        manifest = load()
    except ManifestError as error:
        sys.exit(str(error))
    stale = 0
    for name, emit in outputs.items():
        path, text = ROOT / name, emit(manifest)
        old = path.read_text() if path.exists() else ""
        if old == text:
            continue
        stale += 1
        if check:
            texts = old.splitlines(True), text.splitlines(True)
            sys.stdout.writelines(difflib.unified_diff(*texts, name, f"{name} (from the manifest)"))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {name}")
    if check and stale:
        sys.exit(f"{stale} of {len(outputs)} files differ from what the manifest says: run ci/generate")
