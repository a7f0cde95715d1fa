# SPDX-License-Identifier: MIT
"""Changes the manifest, each time in a scratch copy of the tree, and checks what follows.

    mutations.py SCRATCH LIBRARY    LIBRARY: the shared library of this tree, which is the older one here

A mistake is refused by one sentence that names the item and the key. Other words in a doc change no code. Fields of
each type, a constant, a group, a struct and a function work in the raw layers of C, Python, Rust and Elixir when only
the manifest and the core are touched; there clients of the older version run, and a newer one meets the older library.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = "include/gradscaler.toml"
SCALARS = ("int64_t", "uint64_t", "double", "int32_t", "uint32_t", "float", "int16_t", "uint16_t", "int8_t", "uint8_t")
VERSION = re.search(r'^version = "(.*)"$', (ROOT / MANIFEST).read_text(), re.M)[1]
MAJOR, MINOR, _ = VERSION.split(".")
LATER = f"{MAJOR}.{int(MINOR) + 1}"
FIRST = f"{MAJOR}.{MINOR}"
GROWS = 'kind = "grows"\n'
NEXT = (f'version = "{VERSION}"', f'version = "{LATER}.0"')
SINCE = f'since = "{LATER}"'
failed = []


def report(ok, what, detail=""):
    print(f"{'ok  ' if ok else 'FAIL'} {what}")
    if not ok:
        failed.append(what)
        print("".join(f"     {line}\n" for line in detail.splitlines()), end="")


def copy(scratch, name):
    """The tree, without what git ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    tree = scratch / name
    shutil.rmtree(tree, ignore_errors=True)
    for file in filter(None, files):
        if (ROOT / file).exists():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, tree / file)
    return tree


def edit(tree, *changes):
    """The manifest of this tree with its changes, each (old, new); a third entry is the item that has it."""
    text = (ROOT / MANIFEST).read_text()
    for old, new, *item in changes:
        start = text.index(f'"{item[0]}"\n') if item else 0
        at = text.find(old, start)
        if at < 0:
            raise AssertionError(f"the manifest has no {old!r} after {item or 'its start'}")
        text = text[:at] + new + text[at + len(old) :]
    (tree / MANIFEST).write_text(text)


def generate(tree, *arguments):
    return subprocess.run(["ci/generate", *arguments], cwd=tree, capture_output=True, text=True)


# ---- mistakes ----

POLICY_END = '"GSC_GUARD_* bits" },\n'
FIELD = '  { name = "guard_init_mean", type = "double"'
FUNCTION = f"""
[[item]]
function = "gsc_mutate"
returns = "gsc_status"
{SINCE}
doc = "A function."
blocks = "no"
capture = true
args = [{{ name = "%s", type = "%s"%s }}]
errors = []

[[item]]
section = "Policy: the rules"
"""


def described(name, type_, more=""):
    return f'  {{ name = "{name}", type = "{type_}"{more}, doc = "x" }},\n'


def field(name, type_, more=""):
    """A field more in the middle of the policy."""
    return (FIELD, described(name, type_, more) + FIELD)


def last(name, type_):
    """A field more at the end of the policy."""
    return (POLICY_END, POLICY_END + described(name, type_))


def function(name, type_, more=""):
    return ('[[item]]\nsection = "Policy: the rules"\n', (FUNCTION % (name, type_, more)).lstrip("\n"))


CUDA_NEXT = ("cuda_version = 1", "cuda_version = 2")
CUDA_CHANGED = ('"size", type = "uint64_t"', '"size", type = "uint32_t"', "gsc_memory_create")
CUDA_NODE = ('returns = "gsc_status"\n', f'returns = "gsc_status"\n{SINCE}\n', "gsc_memory_create")
CUDA_GROUP = [NEXT, CUDA_NEXT, ('kind = "enum"\n', f'kind = "enum"\n{SINCE}\n', "memory_kind")]
ANOTHER = ('{ name = "UNDERFLOW"', '{ name = "MORE", value = 8, doc = "x" },\n  { name = "UNDERFLOW"')
GROWN = [('doc = "0" },\n', 'doc = "0" },\n' + described("x", "double"), "gsc_tensor")]
SWAPPED = [('"max_scale"', '"y"'), ('"min_scale"', '"max_scale"'), ('"y"', '"min_scale"')]
# The message must have all of the words.
MISTAKES = [
    ("a misspelt key of an item", [("blocks =", "block =", "gsc_measure")], ["gsc_measure", '"block"']),
    ("a misspelt key of a field", [("takes =", "take =", "gsc_policy")], ["gsc_policy.arithmetic", '"take"']),
    ("a misspelt key of an argument", [("null =", "nul =", "gsc_measure")], ["gsc_measure.exec", '"nul"']),
    ("a misspelt kind of item", [('opaque = "gsc_context"', 'opake = "gsc_context"')], ["item", "opake"]),
    ("a missing key of an item", [("capture = true\n", "", "gsc_measure")], ["gsc_measure", '"capture"', "missing"]),
    ("a missing key of a field", [(', doc = "GSC_GROWTH_*"', "")], ["gsc_policy.growth_rule", '"doc"', "missing"]),
    ("a missing size", [("size = 32\n", "", "gsc_factor")], ["gsc_factor", '"size"', "missing"]),
    ("a text where a number belongs", [("size = 32", 'size = "32"', "gsc_factor")], ["gsc_factor", "size", "'32'"]),
    ("an unknown kind", [('kind = "grows"', 'kind = "swells"', "gsc_policy")], ["gsc_policy", "kind", "'swells'"]),
    ("an unknown type", [field("x", "half")], ["gsc_policy.x", "type half"]),
    ("a keyword of Rust as a name", [field("type", "double")], ["gsc_policy.type", "keyword"]),
    ("a field that is no table", [(FIELD, f'  "x",\n{FIELD}')], ["gsc_policy.?", "'x'", "table"]),
    ("a function of another name", [('function = "gsc_measure"', 'function = "check"')], ["check", "function", "gsc_"]),
    ("a constant in lower case", [('"EXACT"', '"exact"')], ["growth.exact", "GSC_GROWTH_exact"]),
    ("an unknown pass", [('pass = "in"', 'pass = "into"', "gsc_measure")], ["gsc_measure.exec", "pass", "'into'"]),
    ("no way to pass", [('pass = "in", ', "", "gsc_measure")], ["gsc_measure.exec", "no pass", "gsc_exec"]),
    ("texts without number", [function("t", "string", ', pass = "in"'), NEXT], ["gsc_mutate.t", '"count"', "missing"]),
    ("bytes without length", [function("b", "bytes", ', pass = "in"'), NEXT], ["gsc_mutate.b", '"count"', "missing"]),
    ("a length that is none", [('count = "n"', 'count = "m"', "gsc_measure")], ["gsc_measure.tensors", "count", "'m'"]),
    ("NULL for a number", [function("x", "double", ', null = "none"'), NEXT], ["gsc_mutate.x", "null", "double"]),
    ("an unknown group", [('takes = "growth"', 'takes = "growths"')], ["gsc_policy.growth_rule", "takes", "'growths'"]),
    ("a group of another type", [field("x", "double", ', takes = "want"')], ["gsc_policy.x"]),
    ("a group further down", [field("x", "uint32_t", ', takes = "want"')], ["x", "further up"]),
    ("an unknown error", [('errors = ["NULL"', 'errors = ["NIL"', "gsc_measure")], ["gsc_measure", "'NIL'"]),
    ("4 bytes more in the policy", [field("x", "uint32_t")], ["padding", "reserved"]),
    ("4 bytes more at its end", [last("x", "uint32_t")], ["gsc_policy", "180 bytes", "reserved word of 4 bytes"]),
    ("a fixed struct of another size", [("size = 32", "size = 40", "gsc_factor")], ["gsc_factor", "size is 40", "32"]),
    ("two bits", [("value = 2", "value = 3", "overflow_reset")], ["overflow_reset.ON_GOOD_STEP", "3", "one bit"]),
    ("a number twice", [("value = 2", "value = 1", "growth")], ["growth", "value 1", "twice"]),
    ("a number that does not fit", [("value = 3", "value = 5000000000", "growth")], ["growth.ALL_STEPS", "5000000000"]),
    ("a name twice", [('name = "growth_extra_steps"', 'name = "growth_rule"')], ["gsc_policy.growth_rule", "twice"]),
    ("a version that is none", [(GROWS, f'{GROWS}since = "soon"\n', "gsc_policy")], ["gsc_policy", "since", "'soon'"]),
    ("a version of nine bits", [(NEXT[0], f'version = "{MAJOR}.256.0"')], ["library", "256.0", "below 256"]),
    ("a line that is too long", [("    gsc_state state;\n", f"    {'x' * 94}\n")], ["library", "98 characters", "xxx"]),
    (
        "an argument newer than its function",
        CUDA_GROUP,
        ["gsc_memory_create.kind", f"memory_kind is there since {LATER}"],
    ),
    ("a later version", [(GROWS, f"{GROWS}{SINCE}\n", "gsc_policy")], ["gsc_policy", f"since is {LATER}", VERSION]),
    # From here on what a release promised.
    ("a constant moved", [("value = 256", "value = 16384", "event")], ["GSC_EVENT_STALE", "16384", "released as 256"]),
    ("a constant gone", [('  { name = "UNDERFLOW"', '  # { name = "UNDERFLOW"')], ["GSC_WANT_UNDERFLOW", "missing"]),
    ("a constant more, of the same version", [ANOTHER], ["GSC_WANT_MORE", f"since is {FIRST}"]),
    ("a group of another prefix", [('"GSC_MERGE_"', '"GSC_MERGED_"')], ["merge", "GSC_MERGED_", "GSC_MERGE_"]),
    ("an argument of another type", [('"by", type = "double"', '"by", type = "float"')], ["gsc_factor_multiply.by"]),
    ("an argument gone", [('  { name = "by"', '  # { name = "by"')], ["gsc_factor_multiply", "arguments", "by"]),
    ("a pointer that is written", [('pass = "in"', 'pass = "inout"', "gsc_measure")], ["gsc_measure.exec", "inout"]),
    ("NULL that is refused now", [(', null = "1"', "", "gsc_measure")], ["gsc_measure.factor", "NULL"]),
    ("another result", [('returns = "uint32_t"', 'returns = "uint64_t"')], ["gsc_version", "returns", "uint64_t"]),
    ("a fixed struct grown", [("size = 40", "size = 48", "gsc_tensor"), *GROWN], ["gsc_tensor", "48 bytes", "40"]),
    ("fields swapped", SWAPPED, ["gsc_policy.max_scale", "byte"]),
    ("a field renamed", [('"growth_extra_steps"', '"lag"')], ["gsc_policy.growth_extra_steps", "missing"]),
    ("a field of another type", [('"max_scale", type = "double"', '"max_scale", type = "int64_t"')], ["max_scale"]),
    ("a field in the middle", [field("x", "double", f", {SINCE}"), NEXT], ["gsc_policy"]),
    ("a field more, of the same version", [last("x", "double")], ["gsc_policy.x", f"since is {FIRST}"]),
    ("a function gone", [('function = "gsc_dtype_size"', 'function = "gsc_size"')], ["gsc_dtype_size", "missing"]),
    ("a function that was there before", [function("x", "double"), (SINCE, f'since = "{FIRST}"')], ["gsc_mutate"]),
    ("CUDA's number lower", [("cuda_version = 1", "cuda_version = 0")], ["cuda_version is 0", "released as 1"]),
    ("a function of CUDA changed", [CUDA_CHANGED, CUDA_NODE, NEXT], ["gsc_memory_create", f"since is {LATER}"]),
    ("a function of CUDA without a new node", [CUDA_CHANGED, CUDA_NEXT, NEXT], ["gsc_memory_create.size", "uint32_t"]),
    ("a newer since", [NEXT, (GROWS, f"{GROWS}{SINCE}\n", "gsc_policy")], ["gsc_policy", "since"]),
]


def release(scratch):
    """A copy of the tree in which the present version is a release."""
    tree = copy(scratch, "tree")
    for digest in (tree / "tests/abi/released").glob("*/abi.json"):
        digest.unlink()
    done = generate(tree, "--release")
    report(done.returncode == 0, "the version is released", done.stdout + done.stderr)
    return tree


def check_mistakes(scratch):
    tree = release(scratch)
    for what, changes, words in MISTAKES:
        edit(tree, *changes)
        done = generate(tree)
        said = (done.stdout + done.stderr).strip()
        right = done.returncode == 1 and "\n" not in said and all(word in said for word in words)
        report(right, f"{what}: {said.splitlines()[-1] if said else 'nothing is said'}", said)
    changed = [name for name in generated(tree) if (tree / name).read_bytes() != (ROOT / name).read_bytes()]
    report(not changed, "no mistake wrote anything", "\n".join(changed))
    edit(tree, CUDA_CHANGED, CUDA_NODE, CUDA_NEXT, NEXT)
    done = generate(tree)
    node = f"GRADSCALER_CUDA_{LATER} {{\nglobal:\n    gsc_memory_create;\n}} GRADSCALER_CUDA_{FIRST};"
    moved = node in (tree / "core/gradscaler.map").read_text()
    report(moved, "a function of CUDA that changed has a new node", done.stdout + done.stderr)


# ---- other words ----

COMMENTS = {
    ".h": r"/\*.*?\*/",
    ".c": r"/\*.*?\*/",
    ".rs": r"//[^\n]*",
    ".i": r'/\*.*?\*/|%feature\("docstring"\)[^\n]*',
    ".ex": r'@(?:module)?doc """.*?"""|#[^\n{]*',
    ".cdef": r"//[^\n]*",
    ".map": "",
    ".pyi": "",
}


def code_of(path):
    """Returns a file's code as a compiler reads it."""
    text = path.read_text()
    if path.suffix == ".py":
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.Module) and ast.get_docstring(node):
                del node.body[0]
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "_fields_doc_":
                node.value = ast.Constant("")
        return ast.dump(tree)
    return "".join(re.sub(COMMENTS[path.suffix], "", text, flags=re.S).split())


def generated(tree):
    command = ["grep", "-rlE", "--exclude-dir=released", f"^.{{0,3}}Generated from {MANIFEST}", "."]
    found = subprocess.run(command, cwd=tree, capture_output=True, text=True).stdout.split()
    return sorted(name.removeprefix("./") for name in found)


def check_words(scratch):
    tree = copy(scratch, "tree")
    text = (tree / MANIFEST).read_text()
    text = re.sub(r'doc = """.*?"""', 'doc = "GSC_WANT_* bits: any, \\\\"not\\\\" the rest."', text, flags=re.S)
    text = re.sub(r'doc = "(?:[^"\\]|\\.)*"', 'doc = "GSC_WANT_* bits: any, \\\\"not\\\\" the rest."', text)
    (tree / MANIFEST).write_text(text)
    done = generate(tree)
    report(done.returncode == 0, "all docs are replaced", done.stdout + done.stderr)
    files = generated(tree)
    report(len(files) >= 12, f"{len(files)} files are generated")
    for path in files:
        report(code_of(tree / path) == code_of(ROOT / path), f"{path}: the same code")


# ---- additions ----

RANGES = {"int64_t": -(2**63), "uint64_t": 2**64 - 1, "double": 0.1, "int32_t": -(2**31), "uint32_t": 2**32 - 1}
RANGES |= {"float": 0.5, "int16_t": -(2**15), "uint16_t": 2**16 - 1, "int8_t": -(2**7), "uint8_t": 2**8 - 1}


def short(type_):
    name = re.sub(r"^(u?)int(\d+)_t$", lambda m: (m[1] or "i") + m[2], type_)
    return {"float": "f32", "double": "f64"}.get(name, name)


def fields_of_each_type(since=""):
    return [f'{{ name = "{short(t)}", type = "{t}"{since}, doc = "A {t}." }}' for t in SCALARS]


POLICY_FIELDS = [
    *fields_of_each_type(f", {SINCE}"),
    f'{{ name = "shape", type = "uint8_t", takes = "shape", {SINCE}, doc = "What shape it has." }}',
    f'{{ name = "reserved_u8", type = "uint8_t", array = 5, {SINCE}, doc = "0" }}',
]
OPTIONS_END = '" },\n]\n\n[[item]]\nsection = "Calls on tensors"\n'
OPTIONS_FIELDS = [
    *fields_of_each_type(f", {SINCE}"),
    f'{{ name = "reserved_u8", type = "uint8_t", array = 6, {SINCE}, doc = "0" }}',
]
EVENT = f'  {{ name = "MUTATED", value = 8192, {SINCE}, doc = "it mutated" }},\n'
POLICY_START = '[[item]]\nstruct = "gsc_policy"\n'
SHAPE = """\
[[item]]
constants = "shape"
prefix = "GSC_SHAPE_"
kind = "enum"
type = "uint8_t"
SINCE
doc = "policy.shape."
values = [{ name = "ROUND", value = 0, doc = "no corner" }, { name = "SQUARE", value = 200, doc = "four corners" }]

""".replace("SINCE", SINCE)
ITEMS = """\
[[item]]
constants = "habit"
prefix = "GSC_HABIT_"
kind = "bits"
type = "uint16_t"
SINCE
doc = "Bits of mutant.habits."
values = [{ name = "FAST", value = 1, doc = "is fast" }, { name = "TALL", value = 32768, doc = "is tall" }]

[[item]]
struct = "gsc_mutant"
kind = "fixed"
size = 104
SINCE
doc = "A struct with everything."
fields = [
  %s,
  { name = "habits", type = "uint16_t", takes = "habit", doc = "GSC_HABIT_* bits" },
  { name = "label", type = "char", array = 8, doc = "a text" },
  { name = "weights", type = "float", array = 3, doc = "three numbers" },
  { name = "steps", type = "int16_t", array = 4, doc = "four numbers" },
  { name = "factor", type = "gsc_factor", doc = "a factor" },
]

[[item]]
function = "gsc_mutate"
returns = "gsc_status"
SINCE
doc = "*out is *from with these numbers, *total the sum of what the policy got of it."
blocks = "no"
capture = true
args = [
  %s,
  { name = "name", type = "string" },
  { name = "from", type = "gsc_mutant", pass = "in" },
  { name = "policy", type = "gsc_policy", pass = "in", null = "a total of 0" },
  { name = "out", type = "gsc_mutant", pass = "out" },
  { name = "total", type = "double", pass = "out" },
  { name = "err", type = "gsc_error", pass = "out", null = "no details" },
]
errors = ["NULL", "STRUCT_SIZE"]
""".replace("SINCE", SINCE)
CORE = """
gsc_status gsc_mutate(%(parameters)s, const char *name, const gsc_mutant *from,
                      const gsc_policy *policy, gsc_mutant *out, double *total, gsc_error *err)
{
    gsc_begin(err);
    gsc_policy p = GSC_POLICY_INIT;
    GSC_REQUIRE(name, 10);
    GSC_REQUIRE(from, 11);
    GSC_REQUIRE(out, 13);
    GSC_REQUIRE(total, 14);
    if (policy)
        GSC_TRY(gsc_policy_read(policy, &p, 12, err));
    *out = *from;
%(copies)s
    memcpy(out->label, name, 3);
    *total = %(sum)s + p.shape;
    return GSC_OK;
}
"""


def additions():
    names = [short(type_) for type_ in SCALARS]
    args = [f'{{ name = "{short(t)}", type = "{t}" }}' for t in SCALARS]
    items = ITEMS % (",\n  ".join(fields_of_each_type()), ",\n  ".join(args))
    fields, options = ("".join(f"  {text},\n" for text in texts) for texts in (POLICY_FIELDS, OPTIONS_FIELDS))
    end, tail = OPTIONS_END.split("]", 1)
    changes = [NEXT, (NEXT_EVENT, EVENT + NEXT_EVENT), (POLICY_START, SHAPE + POLICY_START)]
    changes.append((OPTIONS_END, f"{end}{options}]\n\n{items}{tail}"))
    code = CORE % {
        "parameters": ", ".join(f"{type_} {short(type_)}" for type_ in SCALARS),
        "copies": "".join(f"    out->{name} = {name};\n" for name in names).rstrip(),
        "sum": " + ".join(f"(double)p.{name}" for name in names),
    }
    return changes, (POLICY_END, POLICY_END + fields), code


NEXT_EVENT = '  { name = "OUTLIER", value = 512'
# The numbers that every language gives to each scalar, and the sum that must come back.
SMALL = {type_: 3 if "int" in type_ else 0.25 for type_ in SCALARS}
TOTAL = sum(SMALL.values()) + 200

NEEDS_NEW = """\
#include "gradscaler.h"

int main(void)
{
    return gsc_mutate(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) == GSC_OK;
}
"""
PYTHON = """\
import array, ctypes, sys
sys.path.insert(0, sys.argv[1])
from raw import _gradscaler as g
from raw import _structs as s

policy = s.Policy(struct_size=ctypes.sizeof(s.Policy))
g.gsc_policy_preset("torch", policy)
for name, value in {small}.items():
    setattr(policy, name, value)
policy.shape = s.Shape.SQUARE
policy_bytes = bytes(policy)
mutant, out = s.Mutant(habits=s.Habit.FAST | s.Habit.TALL, weights=(1, 2, 3), steps=(1, -2, 3, -4)), s.Mutant()
mutant.factor.scale = 8
total = g.gsc_mutate(*{large}.values(), "tom", mutant, policy, out)
assert total == {total}, total
for name, value in {large}.items():
    assert getattr(out, name) == value, (name, getattr(out, name))
assert out.label == b"tom" and list(out.weights) == [1, 2, 3] and list(out.steps) == [1, -2, 3, -4], out
assert out.habits == s.Habit(32769) and out.factor.scale == 8 and s.Event.MUTATED == g.GSC_EVENT_MUTATED == 8192
assert g.GSC_HABIT_TALL == 32768
try:
    g.gsc_mutate(*{large}.values(), "tom", None, policy, out)
except g.Error as error:
    assert error.argument == 11, error.argument
else:
    raise AssertionError("None was taken")
options, report, list_ = {large}, s.Report(), [array.array("f", [1, 2])]
g.gsc_measure(None, None, list_, options, report)
assert report.elements == 2
for name in ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"):
    values = dict({large})
    values[name] = 2**64 if name[0] == "u" else -(2**63) - 1
    for call in (
        lambda: g.gsc_mutate(*values.values(), "tom", mutant, policy, out),
        lambda: g.gsc_measure(None, None, list_, values, report),
    ):
        try:
            call()
        except OverflowError:
            continue
        raise AssertionError(name + " took what does not fit")
"""
RUST = """\
use gradscaler_sys::*;

fn main() {{
    let mut policy = GSC_POLICY_INIT;
    let mut mutant: gsc_mutant = unsafe {{ std::mem::zeroed() }};
    let (mut out, mut total) = (mutant, 0.0);
    {small}
    policy.shape = GSC_SHAPE_SQUARE;
    mutant.habits = gsc_habit(GSC_HABIT_FAST.0 | GSC_HABIT_TALL.0);
    mutant.weights = [1.0, 2.0, 3.0];
    mutant.factor.scale = 8.0;
    let name = b"tom\\0".as_ptr().cast();
    let status = unsafe {{
        gsc_mutate({large}, name, &mutant, &policy, &mut out, &mut total, std::ptr::null_mut())
    }};
    assert_eq!((status, total), (GSC_OK, {total}));
    {compare}
    assert_eq!((out.habits, out.weights, out.factor.scale), (mutant.habits, [1.0, 2.0, 3.0], 8.0));
    let _ = GSC_EVENT_MUTATED;
}}
"""
ELIXIR = """\
alias GradScaler.{{Constants, Mutant, Native, Policy}}
{{:ok, preset}} = Native.policy_preset("torch")
policy = struct(Policy.decode(preset), {small} ++ [shape: :square])
mutant = %Mutant{{habits: [:fast, :tall], weights: [1.0, 2.0, 3.0], steps: [1, -2, 3, -4], label: "none"}}
mutant = put_in(mutant.factor.scale, 8.0)
numbers = {large}
call = fn numbers, from ->
  apply(Native, :mutate, numbers ++ ["tom", from, Policy.encode(policy)])
end
{{:ok, out, total}} = call.(Keyword.values(numbers), Mutant.encode(mutant))
true = total == {total}
out = Mutant.decode(out)
^numbers = for {{name, _}} <- numbers, do: {{name, Map.fetch!(out, name)}}
%{{habits: [:fast, :tall], weights: [1.0, 2.0, 3.0], steps: [1, -2, 3, -4], label: "tome"}} = out
true = out.factor.scale == 8.0 and Constants.all(:event)[:mutated] == 8192
for index <- 0..9, number = if(index in [2, 5], do: :none, else: 0x1_0000_0000_0000_0000) do
  {{:error, refused}} = call.(List.replace_at(Keyword.values(numbers), index, number), Mutant.encode(mutant))
  ^index = refused.argument
end
"""


def run(what, command, env=None, wanted=0, says=""):
    command = [str(word) for word in command]
    done = subprocess.run(command, env=env and os.environ | env, capture_output=True, text=True)
    said = done.stdout + done.stderr
    ok = (done.returncode == 0) == (wanted == 0) and says in said
    report(ok, f"{what}{': ' + said.strip().splitlines()[-1] if ok and says else ''}", said[-3000:])
    return ok


def make(what, *commands, **more):
    """Commands that build something; only a failure is reported."""
    for command in commands:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
        if done.returncode:
            report(False, f"{what} is built", (done.stdout + done.stderr)[-3000:])
            return False
    return True


def literals(values):
    """{name: value} by language: as a dictionary, as a keyword list."""
    named = {short(type_): value for type_, value in values.items()}
    return repr(named), "[" + ", ".join(f"{name}: {value!r}" for name, value in named.items()) + "]"


def check_python(tree, build, out):
    folder, swig = tree / "bindings/python", Path(sys.executable).with_name("swig")
    flags = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-shared", "-fPIC", "-O0", "-DSWIG_TYPE_TABLE=gradscaler"]
    flags += ["-DPy_LIMITED_API=0x030b0000", "-DGSC_STATIC", f"-I{folder}", f"-I{tree}/bindings/xla"]
    flags += [f"-I{tree}/include", f"-isystem{sysconfig.get_paths()['include']}"]
    link = [build / "libgradscaler.a", "-lm", "-pthread", "-ldl"]
    package = out / "raw"
    package.mkdir()
    wrapper, module = out / "wrap.c", package / "_gradscaler.abi3.so"
    built = make(
        "the Python module",
        [swig, "-python", "-noproxy", "-Wall", "-Werror", f"-I{tree}/include", f"-I{folder}", "-o", wrapper]
        + [folder / "gradscaler.i"],
        ["gcc", *flags, wrapper, tree / "bindings/xla/xla_handler.c", *link, "-o", module],
    )
    if built:
        shutil.copy(folder / "src/gradscaler/_structs.py", package)
        (small, _), (large, _) = literals(SMALL), literals(RANGES)
        (out / "mutate.py").write_text(PYTHON.format(small=small, large=large, total=TOTAL))
        run("Python's raw layer takes them", [sys.executable, "-B", out / "mutate.py", out])


def rust_number(type_, value):
    return repr(float(value)) if type_ in ("float", "double") else str(value)


def check_rust(tree, build, out):
    crates = tree / "bindings/rust"
    sys_crate = ["rustc", "--edition", "2021", "-D", "warnings", crates / "gradscaler-sys/src/lib.rs"]
    libraries = ["-L", build, "-l", "static=gradscaler", "-l", "m", "-l", "pthread", "-l", "dl"]
    rlib = out / "libgradscaler_sys.rlib"
    extern = ["--extern", f"gradscaler_sys={rlib}"]
    (out / "mutate.rs").write_text(
        RUST.format(
            small=" ".join(f"policy.{short(t)} = {rust_number(t, v)};" for t, v in SMALL.items()),
            large=", ".join(rust_number(t, v) for t, v in RANGES.items()),
            compare=" ".join(f"assert_eq!(out.{short(t)}, {rust_number(t, v)});" for t, v in RANGES.items()),
            total=float(TOTAL),
        )
    )
    built = make(
        "the Rust crate",
        [*sys_crate, "--crate-type", "rlib", "--crate-name", "gradscaler_sys", "-o", rlib],
        [*sys_crate, "--test", "-o", out / "layouts", *libraries],
        ["rustc", "--edition", "2021", out / "mutate.rs", *extern, "-o", out / "mutate", *libraries],
    )
    if built:
        run("Rust's layouts hold", [out / "layouts", "--quiet"])
        run("Rust's raw layer takes them", [out / "mutate"])
    safe = ["rustc", "--edition", "2021", "--crate-type", "lib", "--emit", "metadata", "--crate-name", "gradscaler"]
    run("Rust's safe crate compiles", [*safe, "-o", out / "safe.rmeta", *extern, crates / "gradscaler/src/lib.rs"])


def check_elixir(tree, build, out):
    folder, app = tree / "bindings/elixir", out / "lib/gradscaler"
    (app / "ebin").mkdir(parents=True)
    (app / "priv").mkdir()
    root = subprocess.run(
        ["erl", "-noshell", "-eval", "io:put_chars(code:root_dir()), halt()."], capture_output=True, text=True
    ).stdout
    flags = ["-std=c11", "-O0", "-shared", "-fPIC", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-DGSC_STATIC"]
    flags += ["-D_POSIX_C_SOURCE=200809L", f"-I{tree}/include"]
    flags += ["-isystem", f"{root}/usr/include"]
    link = [build / "libgradscaler.a", "-lm", "-pthread", "-ldl"]
    nif, modules = app / "priv/gradscaler_nif.so", folder / "lib/grad_scaler"
    env = os.environ | {"ELIXIR_ERL_OPTIONS": "+fnu"}
    built = make(
        "the NIF",
        ["gcc", *flags, folder / "c_src/gradscaler_nif.c", *link, "-o", nif],
        ["elixirc", "-o", app / "ebin", *(modules / f"{name}.ex" for name in ("error", "native", "structs", "fields"))],
        env=env,
    )
    if built:
        (_, small), (_, large) = literals(SMALL), literals(RANGES)
        (out / "mutate.exs").write_text(ELIXIR.format(small=small, large=large, total=float(TOTAL)))
        run("Elixir's raw layer takes them", ["elixir", "-pa", app / "ebin", out / "mutate.exs"], env=env)


def check_c(tree, build, out, older):
    abi = tree / "tests/abi"
    sources = [abi / f"{name}.c" for name in ("ffi", "foreign", "arguments")]
    strict = ["gcc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    if make("the foreign client", [*strict, f"-I{build.parent}", *sources, "-lffi", "-lm", "-o", out / "ffi"]):
        run("libffi calls them", [out / "ffi", build / "libgradscaler.so"], says=" 0 failed")
    run(
        "the version script has them",
        [abi / "symbols.sh", build / "libgradscaler.so", build.parent / "signatures.inc"],
        says="0 failed",
    )
    for folder in sorted((abi / "released").iterdir()):
        client = out / f"client-{folder.name}"
        link = [folder / "client.c", f"-L{build}", "-lgradscaler", "-lm", "-o", client]
        if make(f"the client of {folder.name}", [*strict, f"-I{folder}", *link]):
            run(f"the client of {folder.name} runs", [client], env={"LD_LIBRARY_PATH": str(build)})
    (out / "needs.c").write_text(NEEDS_NEW)
    link = [out / "needs.c", f"-L{build}", "-lgradscaler", "-o", out / "needs"]
    make("the client of the newer version", [*strict, f"-I{tree}/include", *link])
    path = {"LD_LIBRARY_PATH": str(older.parent), "LD_BIND_NOW": "1"}
    run("an older library refuses a new function", [out / "needs"], env=path, wanted=1, says=f"GRADSCALER_{LATER}")


def check_additions(scratch, older):
    changes, policy, code = additions()
    tree = release(scratch)
    edit(tree, *changes)
    done = generate(tree)
    fresh = "ptx.c is of these sources" in done.stdout
    report(fresh, "what the kernels do not use needs no compiler of theirs", done.stderr)
    edit(tree, *changes, policy)
    build, out = scratch / "build", scratch / "out"
    for folder in ("include", "bindings/python", "bindings/elixir", "bindings/rust", "tests/abi"):
        generator = [sys.executable, "-B", tree / folder / "generate.py"]
        generator += [scratch / "signatures.inc"] if folder == "tests/abi" else []
        make(f"what {folder} generates", generator, env=os.environ | {"PYTHONPATH": str(tree / "include")})
    with (tree / "core/error.c").open("a") as file:
        file.write(code)
    header = (tree / "include/gradscaler.h").read_text()
    report(
        header.count(f"; since {LATER} */") == 24 and header.count(f"* Since {LATER}.") == 4,
        "the header says since when",
    )
    shutil.rmtree(build, ignore_errors=True)
    cmake = ["cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=None"]
    if not make("the library", cmake, ["ninja", "-C", build, "-j2", "gradscaler_shared", "gradscaler_static"]):
        return
    for check in (check_c, check_python, check_rust, check_elixir):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        check(tree, build, out, *([older] if check is check_c else []))


def main():
    scratch, library = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    check_mistakes(scratch)
    check_words(scratch)
    check_additions(scratch, library)
    print(f"{len(failed)} failed")
    sys.exit(len(failed) > 0)


if __name__ == "__main__":
    main()
