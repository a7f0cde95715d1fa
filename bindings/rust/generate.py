# SPDX-License-Identifier: MIT
"""Writes what Rust needs of the manifest: the sys crate; of the safe crate the constants and the fields of a policy."""

import re

from manifest import WIDTH, ManifestError, note, paragraphs, reword, run

NOTE = note(__file__)
SCALARS = {f"{sign}int{bits}_t": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
SCALARS |= {"float": "f32", "double": "f64"}

# For every struct. The old compilers that this crate supports can neither zero nor subtract pointers in a constant.
LAYOUT = """
/// Compares a struct with the layout that the manifest states, and makes it of zeros: what every field may be.
macro_rules! layout {
    ($name:ident, $size:literal, $($field:ident $offset:literal,)*) => {
        impl $name {
            // SAFETY: as large; integers, floats, pointers and optional functions may all be zero.
            const ZERO: Self = unsafe { core::mem::transmute([0u8; $size]) };
        }

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

/// A type of a group of constants, or another name of a number.
macro_rules! newtype {
    ($(#[$more:meta])* $name:ident: $number:ty) => {
        $(#[$more])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
        pub struct $name(pub $number);
    };
}
"""


def doc_comment(lines, mark="///"):
    """A doc comment; an indented block of the manifest is C code."""
    fenced = []
    for line in lines:
        if line.startswith("    ") and not (fenced and fenced[-1].startswith("    ")):
            fenced.append("```c")
        elif fenced and fenced[-1].startswith("    ") and not line.startswith("    "):
            fenced.append("```")
        fenced.append(line)
    fenced += ["```"] if fenced and fenced[-1].startswith("    ") else []
    escaped = [re.sub(r"\[([\w, -]+)\]", r"\\[\1\\]", line.removeprefix("    ")) for line in fenced]  # no link
    return [f"{mark} {line}".rstrip() for line in escaped]


def doc_of(it, usual, indent="", words=str):
    """The doc of an item, member or constant, with its version where that is not the usual one."""
    lines = paragraphs(words(it.doc), WIDTH - 4 - len(indent))
    lines += ["", f"Since {it.since}."] if it.since != usual else []
    # Only raw docs are free of links.
    comment = doc_comment(lines) if words is str else [f"/// {line}".rstrip() for line in lines]
    return [indent + line for line in comment]


# ---- gradscaler-sys: everything, one to one ----


def group_type(manifest, group):
    """The type of the constants of a group: a newtype, except of numbers; an alias is one already."""
    if group.kind == "number":
        return group.type if group.type in manifest.aliases else SCALARS[group.type]
    name = group.type if group.type in manifest.aliases else f"gsc_{group.name}"
    taken = {item.name for item in manifest.items if item.what not in ("section", "constants", "alias")}
    if name in taken:
        raise ManifestError(f"{group.name}: its type in Rust would be {name}, which is there already")
    return name


def value_type(manifest, member):
    """A member without its pointers."""
    if member.takes:
        return group_type(manifest, manifest.constants[member.takes])
    names = {"char": "c_char", "string": "*const c_char", "pointer": "c_void", "bytes": "c_void"}
    return names.get(member.kind) or (SCALARS.get(member.type, member.type))


def member_type(manifest, member, optional):
    name = value_type(manifest, member)
    if member.kind == "callback":
        return f"Option<{name}>" if optional else name
    if getattr(member, "array", None):
        return f"[{name}; {member.array}]"
    if not member.passing and member.kind != "pointer":
        return name
    constant = member.passing == "in" or getattr(member, "const", None)
    stars = 2 if member.passing == "create" else 1
    return ("*const " if constant else "*mut ") * stars + name


def result_type(manifest, item):
    names = {"string": "*const c_char"} | SCALARS
    return "" if item.returns == "void" else f" -> {names.get(item.returns, item.returns)}"


def arguments(manifest, item):
    return [f"{arg.name}: {member_type(manifest, arg, arg.null)}" for arg in item.args]


def sys_section(manifest, item):
    return [f"// ---- {item.name} ".ljust(WIDTH, "-")]


def sys_constants(manifest, item):
    type_ = group_type(manifest, item)
    if item.kind == "number" or item.type in manifest.aliases:
        lines = doc_comment(paragraphs(item.doc, WIDTH - 3), "//")
    else:
        lines = newtype(manifest, item, type_)
    wrapped = item.kind != "number" or item.type in manifest.aliases
    for value in item.values:
        number = f"{type_}({value.value})" if wrapped else value.value
        lines += ["", *doc_of(value, item.since), f"pub const {value.c}: {type_} = {number};"]
    return lines


def newtype(manifest, item, name):
    lines = ["newtype! {", *doc_of(item, manifest.first, "    ")]
    if item.type not in ("float", "double"):
        lines.append("    #[derive(Eq, Hash)]")
    return [*lines, f"    {name}: {SCALARS[item.type]}", "}"]


def sys_alias(manifest, item):
    return newtype(manifest, item, item.name)


def sys_opaque(manifest, item):
    lines = [*doc_of(item, manifest.first), "#[repr(C)]", f"pub struct {item.name} {{", "    _opaque: [u8; 0],"]
    return [*lines, "    _not_send: core::marker::PhantomData<*mut u8>,", "}"]


def sys_callback(manifest, item):
    signature = f"fn({', '.join(arguments(manifest, item))}){result_type(manifest, item)}"
    line = f'pub type {item.name} = unsafe extern "C" {signature};'
    line = line if len(line) <= WIDTH else line.replace(" = ", " =\n    ", 1)
    return [*doc_of(item, manifest.first), line]


def sys_struct(manifest, item):
    lines = doc_of(item, manifest.first)
    equal = "" if any(field.kind == "callback" for field in item.fields) else ", PartialEq"  # not of functions
    lines += ["#[repr(C)]", f"#[derive(Clone, Copy, Debug{equal})]", f"pub struct {item.name} {{"]
    for field in item.fields:
        lines += [*doc_of(field, item.since, "    "), f"    pub {field.name}: {member_type(manifest, field, True)},"]
    lines += ["}", "", f"layout! {{ {item.name}, {item.size},"]
    lines += [f"    {field.name} {field.offset}," for field in item.fields] + ["}"]
    start = f"{item.name}::ZERO"
    if item.kind == "grows":
        macro = item.name.upper()
        start = f"{macro}_INIT"
        lines += ["", f"/// Bytes of [`{item.name}`].", f"pub const {macro}_SIZE: u32 = {item.size};"]
        lines += ["", f"/// Zeros, and the size: where every [`{item.name}`] starts."]
        lines.append(f"pub const {macro}_INIT: {item.name} = {item.name} {{")
        lines += [f"    struct_size: {macro}_SIZE,", f"    ..{item.name}::ZERO", "};"]
    lines += ["", f"impl Default for {item.name} {{", "    fn default() -> Self {"]
    return [*lines, f"        {start}", "    }", "}"]


def sys_notes(function):
    """A list of what the arguments are, where their names do not say it."""
    notes = []
    for arg in function.args:
        words = [arg.unit] if arg.unit else []
        words += [f"NULL: {arg.null}"] if arg.null and arg.name != "err" else []
        words += ["read and written"] if arg.passing == "inout" else []
        if words:
            notes += paragraphs(f"- `{arg.name}`: {'; '.join(words)}", WIDTH - 8)
    return ["", *notes] if notes else []


def sys_function(manifest, item):
    doc = [*paragraphs(item.doc, WIDTH - 8), *sys_notes(item)]
    if item.errors:
        doc += ["", *paragraphs("Errors: " + ", ".join(f"GSC_ERROR_{e}" for e in item.errors) + ".", WIDTH - 8)]
    doc += ["", f"Since {item.since}."] if item.since != manifest.first else []
    lines = ["    " + line for line in doc_comment(doc)]
    args, result = arguments(manifest, item), result_type(manifest, item)
    line = f"    pub fn {item.name}({', '.join(args)}){result};"
    if len(line) <= WIDTH:
        return [*lines, line]
    return [*lines, f"    pub fn {item.name}(", *(f"        {arg}," for arg in args), f"    ){result};"]


def sys_crate(manifest):
    major, minor, patch = manifest.version
    lines = ["// SPDX-License-Identifier: MIT", f"// {NOTE}"]
    lines += doc_comment(paragraphs(manifest.library.doc, WIDTH - 4), "//!")
    lines += ["#![no_std]", "#![allow(non_camel_case_types, non_snake_case)]", "", "use core::ffi::c_void;", ""]
    arches = ("aarch64", "arm", "powerpc", "powerpc64", "riscv32", "riscv64", "s390x")
    unsigned = ["    any(", ",\n".join(f'        target_arch = "{arch}"' for arch in arches), "    ),"]
    unsigned += ['    not(any(windows, target_vendor = "apple"))']
    for begin, end, kind in ("all(", ")", "u8"), ("not(all(", "))", "i8"):
        lines += ["/// C's `char`; core has it only since Rust 1.64.", f"#[cfg({begin}"]
        lines += [*unsigned, f"{end})]", f"pub type c_char = {kind};"]
    lines += LAYOUT.rstrip().split("\n")
    lines += ["", "/// Version of the C interface that this crate declares: major, minor and patch, a byte each."]
    lines.append(f"pub const GSC_VERSION: u32 = {major << 16 | minor << 8 | patch:#08x};")
    for item in manifest.items:
        if item.what != "function":
            lines += ["", *globals()[f"sys_{item.what}"](manifest, item)]
    lines += ["", "// ---- Functions ".ljust(WIDTH, "-"), "", 'extern "C" {']
    for number, function in enumerate(manifest.functions.values()):
        lines += ([""] if number else []) + sys_function(manifest, function)
    return "\n".join(lines) + "\n}\n"


# ---- gradscaler: the constants as types of its own, the fields of a policy ----


def safe_name(value):
    return value.name.removeprefix("ERROR_")


def title(group):
    return group.title().replace("_", "")


def safe_words(manifest):
    """Makes of a doc a sentence in the names of the safe crate."""

    def constant(item, value):
        return value.c if item.kind == "number" else f"[`{title(item.name)}::{safe_name(value)}`]"

    def words(text):
        text = reword(manifest, text.strip(), constant, lambda item: f"[`{title(item.name)}`]")
        text = re.sub(r"^[a-z]+(_\w+)+", r"`\g<0>`", text)
        return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")

    return words


def safe_constants(manifest, item, words):
    """A group of constants as a type: any of `choice!`, a union of `flags!`."""
    lines = ["", f"{'flags' if item.kind == 'bits' else 'choice'}! {{", *doc_of(item, manifest.first, "    ", words)]
    raw = f"sys::{group_type(manifest, item)}({SCALARS[manifest.base(item.type)]})"
    lines.append(f"    {title(item.name)}: {raw} {{")
    for value in item.values:
        lines += [*doc_of(value, item.since, "        ", words), f"        {safe_name(value)} = sys::{value.c};"]
    return [*lines, "    }", "}"]


def safe_fields(manifest):
    lines = ["// SPDX-License-Identifier: MIT", f"// {NOTE}"]
    lines += ["//! The fields of a policy; `macros.rs` says what becomes of them.", ""]
    lines += ["use crate::generated::*;", "use crate::policy::{Policy, PolicyBuilder};", "", "fields! {"]
    words, struct = safe_words(manifest), manifest.structs["gsc_policy"]
    for field in struct.fields:
        of_policy = not field.name.startswith(("struct_size", "reserved"))
        if of_policy and field.kind == "scalar" and not (field.array or field.passing):
            type_ = title(field.takes) if field.takes else SCALARS[field.base]
            lines += [*doc_of(field, struct.since, "    ", words), f"    {field.name}: {type_};"]
    return "\n".join(lines) + "\n}\n"


def safe_crate(manifest):
    lines = ["// SPDX-License-Identifier: MIT", f"// {NOTE}"]
    lines += ["//! The constants as types; `macros.rs` says what becomes of them.", "", "use crate::sys;"]
    words = safe_words(manifest)
    for item in manifest.constants.values():
        if item.kind != "number":
            lines += safe_constants(manifest, item, words)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run({
        "bindings/rust/gradscaler-sys/src/lib.rs": sys_crate,
        "bindings/rust/gradscaler/src/generated.rs": safe_crate,
        "bindings/rust/gradscaler/src/fields.rs": safe_fields,
    })  # fmt: skip
