# SPDX-License-Identifier: MIT
"""Writes what Elixir needs of the manifest: a NIF with one function per C function, its stubs, and the structs."""

import re
import textwrap

from manifest import SIZES, WIDTH, is_pointer, note, reword, run

NOTE = note(__file__)
DOC_WIDTH = 98
KEY_SIZE = "sizeof((gsc_entry *)0)->key"  # the longest text that a call takes
# Structs that the binding itself fills or reads; Elixir code sees the others as structs of its own, or as maps if they
# have pointers.
FILLED = ("gsc_error", "gsc_exec", "gsc_tensor", "gsc_tensor_options", "gsc_cpu_options", "gsc_cuda_options")
# Structs that users make, send or read in full, and how their documentation begins: the manifest's sentences speak C.
ABOUT = {
    "gsc_policy": "The rules of a scaler. `GradScaler.new/2` takes the name of a preset and these fields.",
    "gsc_report": "The result of a pass over gradients, for `GradScaler.update/2`. `GradScaler.overflows/1`, "
    "`GradScaler.norm/1` and `GradScaler.per_tensor/1` read it.",
    "gsc_state": "The scale and its counts, as `GradScaler.state/1` returns them: all that a scaler remembers.",
    "gsc_evidence": "The facts about a step beside its report, as options of `GradScaler.reason/3`. 0 is unknown.",
    "gsc_reason": "The parts of the sentence that `GradScaler.reason/3` returns: why a step was taken or skipped.",
}
# How many elements lie behind what an option points to.
LENGTHS = {"per_tensor": "call->n", "histogram": "GSC_HISTOGRAM_LENGTH"}
# Members of the Elixir struct beside the fields: what options asked for.
EXTRA = {
    "gsc_report": {
        "per_tensor": "what `GradScaler.per_tensor/1` reads: a report of each tensor, or nil",
        "paths": "where those are in the tree, or nil; in a merged report the paths for first_tensor",
        "last_paths": "the paths for last_tensor, or nil",
        "histogram": "how many magnitudes are below 2^-44, in each step of a factor 16 above, and looked at: 17 words, "
        "or nil",
    }
}
# Fields that are booleans in Elixir: how each is decoded and encoded. Beside a bad loss, found_inf is no overflow.
BOOLEANS = {
    "gsc_report": {
        "found_inf": (
            "overflow != 0 or Fields.real(found_inf) != 0.0",
            'Fields.bit(s.overflow == true or s.found_inf, "report.found_inf")::little-float-32',
        ),
        "overflow": (
            "overflow != 0 or (Fields.real(found_inf) != 0.0 and loss != NOT_FINITE)",
            'Fields.bit(s.overflow, "report.overflow")::little-signed-32',
        ),
        "has_flag": ("has_flag != 0", 'Fields.bit(s.has_flag, "report.has_flag")::little-unsigned-32'),
    }
}
# A field that structs of candidates before 0.10 lack.
NEW_FIELD = {"gsc_policy": "bad_loss_rule", "gsc_report": "loss", "gsc_state": "bad_losses_in_a_row"}
# Fields in which -1 stands for nil.
OPTIONAL = {"gsc_reason": ("tensor", "tensor_before", "rank")}
# Functions that also read `out`.
SUMS = ("gsc_unscale_accumulate",)
# Functions of device.h in place of functions over pointers: types of the arguments by name, and result.
BY_HAND = {
    "context_create_cpu": ({"threads": "pos_integer"}, "{:ok, device}"),
    "context_create_cuda": ({"ordinal": "non_neg_integer"}, "{:ok, device}"),
    "memory_create": ({"device": "device", "bytes": "non_neg_integer"}, "{:ok, memory}"),
    "memory_destroy": ({"memory": "memory"}, ":ok"),
    "memory_write": ({"memory": "memory", "pieces": "[piece]"}, ":ok"),
    "memory_read": ({"memory": "memory", "parts": "[part]"}, "{:ok, [binary]}"),
}
# Functions for memory that the caller writes. In Elixir a skip keeps the old term.
WITHOUT_USE = ("memory_copy", "tensors_check_overlap", "copy_unless_skipped")
STUBS_HEAD = """\
defmodule GradScaler.Native do
  @moduledoc false
  # The C functions, one to one; the manifest and the header describe them.
  #
  # Structs are binaries of their exact size, which the modules of structs.ex encode and decode, lists of structs one
  # binary, names a list of binaries and nil, tensors {dtype, binary} with the dtype's number, and results new binaries.
  # A list that a call fills has as many structs as there are: the C function is called for their number first. What the
  # caller passes is never written. Options are the tuple that GradScaler.TensorOptions.encode/1 makes or nil; what they
  # ask for comes last in the results, nil if it was not asked for. A refusal is {:error, error} with the members of
  # gsc_error as a map; nothing here raises.
  #
  # `exec` is nil, `:dirty` for a call on host memory that moves itself to a dirty CPU scheduler, or a device. On a CUDA
  # device tensors are {dtype, memory, offset, bytes}, outputs are written in place and structs are binaries all the
  # same: each call waits for its results, on a dirty IO scheduler. A device is freed with the last term that names
  # it or its memory. Memory, which is not cleared, is freed with the last term that names it, or by memory_destroy.

  # Loaded by the first call, not by the compiler, which runs before the library is there.
  @compile {:autoload, false}
  @on_load :load
  @version VERSION

  @type dtype :: non_neg_integer
  @type device :: reference
  @type memory :: reference
  @type tensor ::
          {dtype, binary} | {dtype, memory, offset :: non_neg_integer, bytes :: non_neg_integer}
  @type part :: {offset :: non_neg_integer, bytes :: non_neg_integer}
  @type piece ::
          {offset :: non_neg_integer, binary}
          | {offset :: non_neg_integer, memory, from :: non_neg_integer, bytes :: non_neg_integer}
  @type real :: GradScaler.real()
  @type error :: {:error, map}

  # Without the library the functions below run, and raise this.
  @not_loaded %GradScaler.Error{
    status: :unavailable,
    message:
      "the library cannot be loaded, because an escript has no priv folder: use mix run or mix release"
  }

  def load do
    case :code.priv_dir(:gradscaler) do
      {:error, :bad_name} -> :ok
      priv -> :erlang.load_nif(:filename.join(priv, ~c"gradscaler_nif"), @version)
    end
  end"""
CONSTANTS_TAIL = """\
  @doc "The number of a name, of a list of names (their union), or a number as it is."
  def number(_group, number, _label) when is_integer(number), do: number
  def number(_group, [], _label), do: 0

  def number(group, [name | names], label) do
    Bitwise.bor(number(group, name, label), number(group, names, label))
  end

  def number(group, name, label) do
    (is_atom(name) && all(group)[name]) ||
      raise ArgumentError,
            "#{label} is #{inspect(name)}, not one of #{inspect(Keyword.keys(all(group)))}"
  end

  @doc "The name of a number; the number itself where it has none."
  def name(group, number) do
    case List.keyfind(all(group), number, 1) do
      {name, _} -> name
      nil -> number
    end
  end

  @doc "The names of the bits that are set, and what has no name as a number."
  def names(_group, 0), do: []

  def names(group, bits) do
    named = for {name, bit} <- all(group), Bitwise.band(bits, bit) != 0, do: name

    case Bitwise.bxor(bits, number(group, named, "")) do
      0 -> named
      unnamed -> named ++ [unnamed]
    end
  end
end"""
OTHER_POLICY = """
  def decode(other), do: GradScaler.Error.check!(GradScaler.Native.policy_check(other))"""
OTHER_BYTES = """
  def decode(other) do
    Fields.refuse("STRUCT", other, "SIZE bytes, the reserved ones 0")
  end"""
OLDER_STRUCT = """
  # An older version: the fields that it lacks are 0.
  def decode(older) when is_binary(older) and byte_size(older) in FIRST..(@size - 1) do
    decode(older <> <<0::size((@size - byte_size(older)) * 8)>>)
  end"""
CANDIDATE_STRUCT = """
  def encode(%__MODULE__{}), do: Fields.refuse_candidate("STRUCT")"""
CANDIDATE_STATE = """\
  # A candidate before 0.10 kept two weights up to 1.0, as doubles, where these two counts are.
  def decode(<<_::binary-size(AT), a::little-signed-64, b::little-signed-64, _::binary>>)
      when a >= 0x1FFFFFFFFFFFFFFF and b >= 0x1FFFFFFFFFFFFFFF do
    Fields.refuse_candidate("state")
  end
"""


def module_of(struct):
    return "GradScaler." + struct.removeprefix("gsc_").title().replace("_", "")


def groups(manifest):
    """The groups of constants that Elixir code names as atoms."""
    return [item for item in manifest.constants.values() if item.kind != "number"]


def atom(value):
    return value.name.removeprefix("ERROR_").lower()


def words(manifest, text):
    """A doc in Elixir's names: GSC_EVENT_STOPPED is `:stopped`; the names for GSC_WANT_* follow the doc."""

    def group(item):
        return "error" if item.name == "status" else "any of these" if item.kind == "bits" else "one of these"

    text = text.replace("GSC_ERROR_*", "error")
    text = reword(manifest, text, lambda item, value: f"`:{atom(value)}`", group)
    text = re.sub(r"\bgsc_(\w+)", lambda match: f"`{match[1]}`" if match[0] in manifest.functions else match[1], text)
    text = text.replace("NULL", "nil").replace("*out", "the result")
    return text.replace('\\"', "'").replace('"', "`")


def is_value(function):
    """Returns whether Elixir can call it: its arguments are values, or nothing where they may be."""
    return all(
        arg.kind not in ("opaque", "pointer", "callback") or (arg.null and arg.passing is None) for arg in function.args
    )


def functions(manifest):
    """Returns the functions over values. Functions over pointers alone, such as memory, are in device.h."""
    return [
        function
        for function in manifest.functions.values()
        if function.returns != "void" and is_value(function) and short(function) not in (*BY_HAND, *WITHOUT_USE)
    ]


def short(item):
    return item.name.removeprefix("gsc_")


def visible(manifest, struct):
    """Returns whether Elixir code has the struct as one of its own."""
    item = manifest.structs[struct]
    return item.name not in FILLED and not has_pointers(item)


def has_pointers(item):
    return any(is_pointer(field.c) for field in item.fields)


# ---- the NIF ----


def fills(arg):
    """Returns whether it is a list that the call fills: its count is room, another argument counts it."""
    return arg.count and arg.kind in ("struct", "bytes") and arg.passing == "out"


def told(function, arg):
    return next(other.name for other in function.args if other.counts == arg.name)


def split(function):
    """The arguments that Elixir passes, and those that it gets back."""
    passed, returned = [], []
    lengths = {arg.count for arg in function.args} | {told(function, arg) for arg in function.args if fills(arg)}
    for arg in function.args:
        if arg.name == "err" or arg.name in lengths:
            continue
        if arg.passing in ("out", "inout"):
            returned.append(arg)
        if arg.passing != "out" and not (arg.passing == "inout" and arg.kind == "struct"):
            passed.append(arg)
    return passed, returned


def has(function, name):
    return any(arg.name == name for arg in function.args)


def later_fields(manifest, struct):
    """Returns the fields that the struct did not have in its first version."""
    item = manifest.structs[struct]
    return [field for field in item.fields if field.since != item.since]


def get_growing(manifest, member, arguments):
    """The reader of a struct that grows, with its sizes in this version and in the first."""
    later = later_fields(manifest, member.type)
    size = f"sizeof({member.type})"
    first = f"offsetof({member.type}, {later[0].name})" if later else size
    return f"get_growing({arguments}, {size}, {first})"


def parameter(manifest, function, arg, number):
    """(declaration, reader, C expressions by name) of an argument that the caller passes."""
    name, term = arg.name, f"argv[{number}]"
    where = f'{term}, {function.args.index(arg)}, "{name}"'
    if arg.type == "gsc_exec":
        return None, f"get_exec(&call, {where})", {name: "call.exec"}
    if arg.type == "gsc_tensor" and name == "out":
        read = "true" if function.name in SUMS else "false"
        return None, f"get_outputs(&call, {where}, {read})", {name: "call.out"}
    if arg.type == "gsc_tensor":
        return None, f"get_tensors(&call, {where})", {name: "call.in", arg.count: "call.n"}
    if arg.type in FILLED:
        declaration = f"struct {short(manifest.structs[arg.type])} {name};"
        return declaration, f"get_{short(manifest.structs[arg.type])}(&call, {where}, &{name})", {name: f"{name}.given"}
    if arg.count and arg.kind in ("struct", "scalar", "string"):
        declaration = f"{arg.c if arg.kind == 'string' else f'const {arg.type} *'}{name} = NULL;"
        size = "" if arg.kind == "string" else f"sizeof *{name}, "
        function_name = "get_names" if arg.kind == "string" else "get_values"
        reader = f"({name} = {function_name}(&call, {where}, {size}&{arg.count}))"
        named = {name: name, arg.count: f"counted({arg.count})"}
        declaration += f"\n    uint64_t {arg.count} = NOT_COUNTED;"
        return declaration, f"(is_nil({term}) || {reader})" if arg.null else reader, named
    if arg.kind == "struct":
        reader = f"({name} = get_values(&call, {where}, sizeof *{name}, NULL))"
        declaration, given = f"const {arg.type} *{name} = NULL;", name
        if manifest.structs[arg.type].kind == "grows":
            reader = get_growing(manifest, arg, f"&call, {where}, &{name}")
            declaration, given = f"{arg.type} {name};", f"is_nil({term}) ? NULL : &{name}" if arg.null else f"&{name}"
        return declaration, f"(is_nil({term}) || {reader})" if arg.null else reader, {name: given}
    if arg.kind == "bytes":
        expressions = {name: f"{name}.data", arg.count: f"{name}.size"}
        return f"ErlNifBinary {name};", f"get_bytes(&call, {where}, &{name})", expressions
    if arg.kind == "string":
        reader = f"get_string(&call, {where}, {name}, sizeof {name})"
        if arg.null:
            given = f"is_nil({term}) ? NULL : {name}"
            return f"char {name}[{KEY_SIZE}];", f"(is_nil({term}) || {reader})", {name: given}
        return f"char {name}[{KEY_SIZE}];", reader, {name: name}
    expression = f"&{name}" if arg.passing else name
    return f"{arg.base} {name};", f"get_{arg.base}(&call, {where}, &{name})", {name: expression}


def returned_value(manifest, function, arg):
    """(declaration, reader, term, C expressions by name) of an argument that is a result."""
    name = arg.name
    if arg.kind == "scalar":
        declaration = None if arg.passing == "inout" else f"{arg.base} {name};"
        return declaration, None, f"make_{arg.base}(env, {name})", {name: f"&{name}"}
    if fills(arg):
        count = told(function, arg)
        named = {name: f"{name}.data", arg.count: count, count: f"&{count}"}
        return f"struct result {name};\n    uint64_t {count};", None, f"make_result(&call, &{name})", named
    if manifest.structs[arg.type].kind == "fixed":
        reader = f"make_room(&call, sizeof({arg.type}), &{name})"
        return f"struct result {name};", reader, f"make_result(&call, &{name})", {name: f"{name}.data"}
    term = f"make_bytes(env, &{name}, sizeof {name})"
    if not visible(manifest, arg.type):
        term = f"make_{short(manifest.structs[arg.type])}(env, &{name})"
    return f"{arg.type} {name} = {arg.type.upper()}_INIT;", None, term, {name: f"&{name}"}


def make_struct(item):
    """A C function that turns a struct into a map."""
    fields = [field for field in item.fields if field.name != "struct_size" and "reserved" not in field.name]
    lines = [f"static ERL_NIF_TERM make_{short(item)}(ErlNifEnv *env, const {item.name} *from)"]
    lines += ["{", "    ERL_NIF_TERM keys[] = {"]
    lines += [f'        enif_make_atom(env, "{field.name}"),' for field in fields]
    lines += ["    };", "    ERL_NIF_TERM values[] = {"]
    makers = ["string" if field.kind in ("string", "char") else field.base for field in fields]
    lines += [f"        make_{make}(env, from->{field.name})," for make, field in zip(makers, fields, strict=True)]
    return [*lines, "    };", f"    return make_map(env, keys, values, {len(fields)});", "}"]


def option_fields(manifest, item):
    """(field, declaration, reader, what happens then) of each field that Elixir gives."""
    for number, field in enumerate(field for field in item.fields[1:] if "reserved" not in field.name):
        where = f'fields[{number}], argument, "options.{field.name}"'
        if field.kind == "struct" and field.passing == "in":
            reader = get_growing(manifest, field, f"call, {where}, &to->{field.name}")
            if field.type == "gsc_tensor":
                reader = f"get_tensor(call, {where}, -1, &to->{field.name})"
            given = f"    if (!is_nil(fields[{number}]))\n        to->c.{field.name} = &to->{field.name};"
            yield field, f"{field.type} {field.name};", f"(is_nil(fields[{number}]) || {reader})", given
        elif field.passing == "out":
            size = f"{LENGTHS[field.name]} * sizeof({field.type})"
            reader = f"get_result(call, {where}, {size}, &to->{field.name})"
            yield field, f"struct result {field.name};", reader, f"    to->c.{field.name} = to->{field.name}.data;"
        else:
            yield field, None, f"get_{field.base}(call, {where}, &to->c.{field.name})", None


def get_options(manifest, item):
    """A C function that reads a tuple of the struct's fields, or nil."""
    fields = list(option_fields(manifest, item))
    lines = [f"/* {{{', '.join(field.name for field, *_ in fields)}}}, or nil */", f"struct {short(item)} {{"]
    lines += [f"    const {item.name} *given; /* NULL for nil */", f"    {item.name} c;"]
    lines += [f"    {declaration}" for _, declaration, _, _ in fields if declaration] + ["};", ""]
    start = f"static bool get_{short(item)}("
    lines.append(f"{start}struct call *call, ERL_NIF_TERM term, int argument,")
    lines.append(f"{' ' * len(start)}const char *name, struct {short(item)} *to)")
    lines += [
        "{",
        "    const ERL_NIF_TERM *fields;",
        f"    *to = (struct {short(item)}){{.c = {item.name.upper()}_INIT}};",
    ]
    lines += ["    if (is_nil(term))", "        return true;"]
    lines += [f"    if (!(fields = get_fields(call, term, argument, name, {len(fields)})) ||"]
    lines += [f"        !{reader} ||" for _, _, reader, _ in fields]
    lines[-1] = lines[-1].removesuffix(" ||") + ")"
    lines += ["        return false;", *(then for *_, then in fields if then)]
    return [*lines, "    to->given = &to->c;", "    return true;", "}"]


def call(function, expressions, before, after):
    """The C call between two pieces of text, wrapped."""
    arguments = ", ".join(expressions[arg.name] for arg in function.args)
    return wrap(f"{before}{function.name}(", arguments + after)


def wrap(start, arguments):
    """One line, or several with the arguments below each other."""
    lines = textwrap.wrap(arguments, WIDTH - len(start), break_long_words=False)
    return [start + lines[0], *(" " * len(start) + line for line in lines[1:])]


def reschedule(function, passed):
    """The start of a function that moves itself to the scheduler that `exec` asks for."""
    names = [arg.name for arg in passed]
    if "exec" not in names:
        return ["    (void)argc;"]
    lines = [f"    const int flags = leaves(argv[{names.index('exec')}]);", "    if (flags)"]
    arguments = f'env, "{short(function)}", flags, nif_{short(function)}, argc, argv);'
    return lines + wrap("        return enif_schedule_nif(", arguments)


def body(manifest, function, readers, terms, expressions):
    """Read the arguments, call, return what the C function returned or wrote."""
    if function.returns != "gsc_status":
        lines = [f"    if (!{reader})\n        return failed(&call);" for reader in readers]
        return lines + call(function, expressions, f"    return make_{manifest.base(function.returns)}(env, ", "));")
    if function.blocks == "by size":
        readers = [*readers, f"get_workspace(&call, {expressions.get('options', 'NULL')})"]
    lines = [("    if (" if number == 0 else "        ") + f"!{reader} ||" for number, reader in enumerate(readers)]
    lists = [arg for arg in function.args if fills(arg)]
    if lists:
        none = {arg.name: "NULL" for arg in lists} | {arg.count: "0" for arg in lists}
        lines += call(function, expressions | none, "        ", ") != GSC_OK ||")
        size = {arg.name: "" if arg.kind == "bytes" else f" * sizeof({arg.type})" for arg in lists}
        lines += [f"        !make_room(&call, {told(function, arg)}{size[arg.name]}, &{arg.name}) ||" for arg in lists]
    after = ") != GSC_OK || !finish(&call))" if has(function, "exec") else ") != GSC_OK)"
    lines += call(function, expressions, "        " if readers else "    if (", after)
    lines.append("        return failed(&call);")
    if not terms:
        return [*lines, "    return done(&call, NULL, 0);"]
    lines += wrap("    const ERL_NIF_TERM terms[] = {", ", ".join(terms) + "};")
    return [*lines, f"    return done(&call, terms, {len(terms)});"]


def nif_function(manifest, function):
    passed, returned = split(function)
    parameters = [parameter(manifest, function, arg, number) for number, arg in enumerate(passed)]
    results = [returned_value(manifest, function, arg) for arg in returned]
    expressions = {arg.name: "NULL" for arg in function.args} | {"err": "&call.err"}
    for *_, named in parameters + results:
        expressions |= named
    terms = ["make_results(&call)"] if any(arg.type == "gsc_tensor" and arg.name == "out" for arg in passed) else []
    terms += [term for _, _, term, _ in results]
    for arg in passed:
        if arg.type == "gsc_tensor_options" and function.blocks == "by size":
            wanted = [
                field for field, *_ in option_fields(manifest, manifest.structs[arg.type]) if field.passing == "out"
            ]
            terms += [f"make_result(&call, &{arg.name}.{field.name})" for field in wanted]
    lines = [f"static ERL_NIF_TERM nif_{short(function)}(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])", "{"]
    lines += reschedule(function, passed)
    if not passed:
        lines.append("    (void)argv;")
    if passed or function.returns == "gsc_status":
        lines.append("    struct call call = {.env = env};")
    declarations = "\n".join(f"    {declaration}" for declaration, *_ in parameters + results if declaration)
    lines += dict.fromkeys(declarations.split("\n") if declarations else [])  # lists can share a count
    readers = [reader for _, reader, *_ in parameters + results if reader]
    return [*lines, *body(manifest, function, readers, terms, expressions), "}"]


def nif_source(manifest):
    lines = ["/* SPDX-License-Identifier: MIT */", f"/* {NOTE} */", '#include "device.h"', ""]
    for item in manifest.structs.values():
        if item.name == "gsc_error" or (item.name not in FILLED and has_pointers(item)):
            lines += [*make_struct(item), ""]
    lines += [*get_options(manifest, manifest.structs["gsc_tensor_options"]), ""]
    for function in functions(manifest):
        lines += [*nif_function(manifest, function), ""]
    lines += ["static ErlNifFunc functions[] = {"]
    lines += [
        f'    {{"{name}", {len(args)}, nif_{name}, ERL_NIF_DIRTY_JOB_IO_BOUND}},' for name, (args, _) in BY_HAND.items()
    ]
    for function in functions(manifest):
        name, arity = short(function), len(split(function)[0])
        dirty = "ERL_NIF_DIRTY_JOB_IO_BOUND" if function.blocks == "yes" else "0"
        lines.append(f'    {{"{name}", {arity}, nif_{name}, {dirty}}},')
    lines += ["};", "", "ERL_NIF_INIT(Elixir.GradScaler.Native, functions, load, NULL, upgrade, unload)"]
    return "\n".join(lines) + "\n"


# ---- the stubs ----


def spec(manifest, function):
    def kind(arg):
        if arg.type == "gsc_exec":
            return "device | :dirty | nil" if function.blocks == "by size" else "device | nil"
        if arg.type == "gsc_tensor":
            return "[dtype | tensor]" if arg.name == "out" and function.name not in SUMS else "[tensor]"
        if arg.kind == "string" and arg.count:
            return "[binary | nil] | nil"
        binary = arg.kind in ("struct", "string", "bytes") or arg.count
        known = "binary" if binary else "real" if arg.base in ("float", "double") else "integer"
        known = "tuple" if arg.type in FILLED else known
        return f"{known} | nil" if arg.null else known

    passed, returned = split(function)
    results = ["[binary]"] if any(arg.type == "gsc_tensor" and arg.name == "out" for arg in passed) else []
    for arg in returned:
        binary = arg.kind == "bytes" or (arg.kind == "struct" and visible(manifest, arg.type))
        results.append("binary" if binary else "map" if arg.kind == "struct" else kind(arg))
    for arg in passed:
        if arg.type == "gsc_tensor_options" and function.blocks == "by size":
            results += ["binary | nil" for field in manifest.structs[arg.type].fields if field.passing == "out"]
    ok = f"{{:ok, {', '.join(results)}}}" if results else ":ok"
    kinds = {"gsc_status": f"{ok} | error", "string": "binary | nil", "float": "real", "double": "real"}
    result = kinds.get(function.returns, "integer")
    if function.returns != "gsc_status" and passed:
        result += " | error"
    return f"({', '.join(kind(arg) for arg in passed)}) :: {result}"


def broken(line, at, parts):
    """The line, in two parts where it is too long."""
    return line if len(line) <= DOC_WIDTH else line.replace(at, parts, 1)


def stub(name, args, signature):
    """A function that the library replaces."""
    args = ", ".join(f"_{arg}" for arg in args)
    line = f"  def {name}({args}), do: :erlang.nif_error(@not_loaded)".replace("()", "")
    spec = broken(f"  @spec {name}{signature}", " :: ", " ::\n          ")
    if len(spec.split(" ::\n")[0]) > DOC_WIDTH:
        passed, returned = signature.removeprefix("(").split(") :: ")
        rows = passed.replace(", ", ",\n          ")
        spec = f"  @spec {name}(\n          {rows}\n        ) ::\n          {returned}"
    return ["", spec, broken(line, ", do:", ",\n    do:")]


def stubs(manifest):
    major, minor, patch = manifest.version
    lines = [f"# {NOTE}", *STUBS_HEAD.replace("VERSION", str(major << 16 | minor << 8 | patch)).split("\n")]
    for name, (args, result) in BY_HAND.items():
        lines += stub(name, args, f"({', '.join(args.values())}) :: {result} | error")
    for function in functions(manifest):
        args = [arg.name for arg in split(function)[0]]
        lines += stub(short(function), args, spec(manifest, function))
    return "\n".join([*lines, "end", ""])


# ---- the structs ----


def integer(base):
    return f"little-{'signed' if base[0] == 'i' else 'unsigned'}-{8 * SIZES[base]}"


def kind_of(base):
    return ("u" if base[0] == "u" else "f" if base in ("float", "double") else "s") + str(8 * SIZES[base])


def not_finite(manifest):
    return next(str(value.value) for value in manifest.constants["loss"].values if value.name == "NOT_FINITE")


def struct_field(manifest, struct, field):
    """(match, decode, encode, default) of a field; None to leave it out of the Elixir struct."""
    name, at = field.name, f"s.{field.name}"
    size = manifest.extent(field)[0] * (field.array or 1)
    if "reserved" in name or name == "struct_size":
        value = struct.size if name == "struct_size" else 0
        match = "_::binary-size(4)" if name == "struct_size" else f"0::{8 * size}"
        return match, None, f"{value}::little-{8 * size}", None
    label = f'"{short(struct)}.{name}"'
    match = f"{name}::binary-size({size})"
    if name in BOOLEANS.get(struct.name, ()):
        decode, encode = BOOLEANS[struct.name][name]
        match = match if field.base == "float" else f"{name}::{integer(field.base)}"
        return match, decode.replace("NOT_FINITE", not_finite(manifest)), encode, "false"
    if field.kind == "struct":
        module = module_of(field.type)
        return match, f"{module}.decode({name})", f"{module}.encode({at})::binary", f"%{module}{{}}"
    if field.kind == "char":
        return match, f"Fields.string({name})", f"Fields.chars({at}, {size}, {label})::binary", '""'
    real = field.base in ("float", "double")
    kind = kind_of(field.base)
    if field.array:
        element = f"binary-size({SIZES[field.base]})" if real else integer(field.base)
        decode = f"for(<<x::{element} <- {name}>>, do: {'Fields.real(x)' if real else 'x'})"
        encode = f"Fields.list(&Fields.{kind}/2, {at}, {field.array}, {label})::binary"
        return match, decode, encode, f"List.duplicate({'0.0' if real else 0}, {field.array})"
    if real:
        return match, f"Fields.real({name})", f"Fields.{kind}({at}, {label})::binary", "0.0"
    match = f"{name}::{integer(field.base)}"
    if name in OPTIONAL.get(struct.name, ()):
        return match, f"if({name} >= 0, do: {name})", f"Fields.{kind}({at} || -1, {label})::binary", "nil"
    if not field.takes:
        return match, name, f"Fields.{kind}({at}, {label})::binary", "0"
    group = manifest.constants[field.takes]
    bits = group.kind == "bits"
    zero = next((f":{atom(value)}" for value in group.values if value.value == 0), "0")
    decode = f"Constants.name{'s' if bits else ''}(:{group.name}, {name})"
    encode = f"Fields.named(:{group.name}, {at}, {label}, &Fields.{kind}/2)::binary"
    return match, decode, encode, "[]" if bits else zero


def struct_doc(manifest, item, fields, extra):
    if item.name not in ABOUT:
        return ["  @moduledoc false"]
    groups = [manifest.constants[field.takes] for field in fields if field.takes]
    short_names = {value.name for group in groups for value in group.values}

    def words_of(text):
        text = words(manifest, text).replace("options.policy", "the policy")
        text = re.sub(r"options\.(\w+)", r"`\1:`", text).replace("`report_set_rank`", "`GradScaler.set_rank/3`")
        return re.sub(r"\b[A-Z_]{3,}\b", lambda m: f"`:{m[0].lower()}`" if m[0] in short_names else m[0], text)

    layout = {"initial_indent": "  ", "subsequent_indent": "  ", "break_on_hyphens": False}
    lines = ['  @moduledoc """']
    lines += [*textwrap.wrap(ABOUT[item.name], DOC_WIDTH, **layout), ""]
    layout["subsequent_indent"] = "    "
    for field in fields:
        text = f"* `{field.name}` - {words_of(field.doc)}"
        if field.name in BOOLEANS.get(item.name, ()):
            text = re.sub(r"\b1( with|:)", r"true\1", text).split("; ")[0]
        if field.name in OPTIONAL.get(item.name, ()):
            text = text.replace("-1: ", "nil: ")
        if field.takes:
            text += ": " + ", ".join(f"`:{atom(value)}`" for value in manifest.constants[field.takes].values)
        lines += textwrap.wrap(text, DOC_WIDTH, **layout)
    for name, text in extra.items():
        lines += textwrap.wrap(f"* `{name}` - {text}", DOC_WIDTH, **layout)
    return [*lines, '  """']


def field_type(manifest, struct, field):
    if field.name in BOOLEANS.get(struct.name, ()):
        return "boolean"
    if field.name in OPTIONAL.get(struct.name, ()):
        return "integer | nil"
    if field.kind == "struct":
        return f"%{module_of(field.type)}{{}}"
    if field.kind == "char":
        return "binary"
    if field.takes:
        return "[atom | integer]" if manifest.constants[field.takes].kind == "bits" else "atom | integer"
    kind = "GradScaler.real()" if field.base in ("float", "double") else "integer"
    return f"[{kind}]" if field.array else kind


def rows(texts, indent):
    """Rows with commas between them."""
    return [f"{indent}{text}," for text in texts[:-1]] + [indent + texts[-1]]


def candidate_state(item):
    assert item.offsets["bad_losses_in_a_row"] == item.offsets["failed_backoffs"] + 8
    return CANDIDATE_STATE.replace("AT", str(item.offsets["failed_backoffs"])).split("\n")


def struct(manifest, item):
    fields = [(field, *struct_field(manifest, item, field)) for field in item.fields]
    shown = [field for field in fields if field[2]]
    used = ["Constants"] if any("Constants." in f[2] + f[3] for f in shown) else []
    later = later_fields(manifest, item.name)
    used.append("Fields")
    lines = [f"defmodule {module_of(item.name)} do"]
    extra = EXTRA.get(item.name, {})
    lines += struct_doc(manifest, item, [field for field, *_ in shown], extra)
    lines += [f"  alias GradScaler.{used[0]}" if len(used) == 1 else f"  alias GradScaler.{{{', '.join(used)}}}", ""]
    if later:
        lines += [f"  @size {item.size}", ""]
    defaults = [f"{field.name}: {default}" for field, _, _, _, default in shown] + [f"{name}: nil" for name in extra]
    lines += [f"  @derive {{Inspect, except: {[':' + name for name in extra]}}}".replace("'", "")] if extra else []
    lines += ["  defstruct " + ",\n            ".join(defaults), "", "  @type t :: %__MODULE__{"]
    types = [f"{field.name}: {field_type(manifest, item, field)}" for field, *_ in shown] + [
        f"{name}: term" for name in extra
    ]
    lines += [*rows(types, "          "), "        }", ""]
    lines += [
        '  @doc "The struct that a binary of the library holds."',
        "  @spec decode(binary) :: t",
        *(candidate_state(item) if item.name == "gsc_state" else []),
        "  def decode(<<",
    ]
    lines += rows([match for _, match, _, _, _ in fields], "        ")
    lines += ["      >>) do", "    %__MODULE__{"]
    lines += rows([f"{field.name}: {decode}" for field, _, decode, _, _ in shown], "      ")
    lines += ["    }", "  end"]
    if later:
        lines += OLDER_STRUCT.replace("FIRST", str(later[0].offset)).split("\n")
    other_bytes = OTHER_POLICY if item.name == "gsc_policy" else OTHER_BYTES
    lines += other_bytes.replace("STRUCT", short(item)).replace("SIZE", str(item.size)).split("\n") + [""]
    lines += [
        '  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."',
        "  @spec encode(t) :: binary",
    ]
    new_field = f"{NEW_FIELD[item.name]}: _" if item.name in NEW_FIELD else ""
    lines += [f"  def encode(%__MODULE__{{{new_field}}} = s) do", "    <<"]
    lines += rows([encode for _, _, _, encode, _ in fields], "      ")
    lines += ["    >>", "  end", *(CANDIDATE_STRUCT.replace("STRUCT", short(item)).split("\n") if new_field else [])]
    texts = [field for field in item.fields if field.kind == "char"]
    if texts:
        lines += ["", '  @doc "The bytes of the longest text that a field holds."']
        lines += [f"  def longest(:{field.name}), do: {field.array - 1}" for field in texts]
    return [*lines, "end"]


def options(manifest, item):
    """The struct with what a call on tensors does beside its work: its fields become the tuple that the NIF reads."""
    fields = [field for field, *_ in option_fields(manifest, item)]
    defaults, values = [], []
    for field in fields:
        kind = "false" if field.passing == "out" else "nil" if field.kind == "struct" else None
        bits = field.takes and manifest.constants[field.takes].kind == "bits"
        zero = "0.0" if field.base in ("float", "double") else "0"
        defaults.append(f"{field.name}: {kind or ('[]' if bits else zero)}")
        named = f'Constants.number(:{field.takes}, o.{field.name}, "options.{field.name}")'
        values.append(named if field.takes else f"o.{field.name}")
    lines = [f"defmodule {module_of(item.name)} do", "  @moduledoc false"]
    if any(field.takes for field in fields):
        lines += ["  alias GradScaler.Constants", ""]
    lines += ["  defstruct " + ",\n            ".join(defaults), "", "  @type t :: %__MODULE__{}", ""]
    lines += ['  @doc "The tuple that `GradScaler.Native` takes."', "  @spec encode(t) :: tuple"]
    return [*lines, "  def encode(%__MODULE__{} = o) do", "    {", *rows(values, "      "), "    }", "  end", "end"]


def structs(manifest):
    lines = [f"# {NOTE}", "defmodule GradScaler.Constants do", "  @moduledoc false", ""]
    lines.append('  @doc "Returns the names of a group with their numbers."')
    for item in groups(manifest):
        lines += [f"  def all(:{item.name}) do", "    ["]
        lines += [*rows([f"{atom(value)}: {value.value}" for value in item.values], "      "), "    ]", "  end", ""]
    lines.append('  @doc "Returns the names of a value in a field of a policy; nil if the field takes a number."')
    for field in manifest.structs["gsc_policy"].fields:
        if field.takes:
            name = "names" if manifest.constants[field.takes].kind == "bits" else "name"
            lines.append(f'  def of_field("{field.name}", value), do: {name}(:{field.takes}, trunc(value))')
    lines += ["  def of_field(_other, _value), do: nil", "", *CONSTANTS_TAIL.split("\n")]
    for item in manifest.structs.values():
        if visible(manifest, item.name):
            lines += ["", *struct(manifest, item)]
    lines += ["", *options(manifest, manifest.structs["gsc_tensor_options"])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run({
        "bindings/elixir/c_src/gradscaler_nif.c": nif_source,
        "bindings/elixir/lib/grad_scaler/native.ex": stubs,
        "bindings/elixir/lib/grad_scaler/structs.ex": structs,
    })  # fmt: skip
