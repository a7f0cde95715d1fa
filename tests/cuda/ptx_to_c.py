# SPDX-License-Identifier: MIT
"""Translates the PTX of the kernels to C that runs on the emulated device: ptx_to_c.py PTX.C|NAME.PTX OUTPUT.C

Strictly by PTX's manual; what is not known here is an error, and so is what may round otherwise than the CPU: .approx,
.ftz, and add, sub and mul without .rn, which ptxas may contract. Registers are bits, unsigned and as wide as declared;
ptx.h is the machine around them. A line of C has the number of the line that it is made from.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

UNSIGNED, SIGNED, FLOATS = "u16 u32 u64", "s16 s32 s64", "f32 f64"
BITS, INTEGERS = "b16 b32 b64", f"{UNSIGNED} {SIGNED}"
ORDERS = (("lt", "<", ">="), ("le", "<=", ">"), ("gt", ">", "<="), ("ge", ">=", "<"))
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
# Opcodes; types T; types of the result and of the operands; the value in C, of operands a to d. N is the width of T; B,
# U and W are the types of bits, unsigned, and twice as wide.
OPERATIONS = [
    ("mov.T", f"{BITS} {INTEGERS} {FLOATS} pred", "B: B", "a"),
    ("selp.T", f"{BITS} {INTEGERS} {FLOATS}", "B: B B pred", "c ? a : b"),
    ("and.T", f"{BITS} pred", "T: T T", "a & b"),
    ("or.T", f"{BITS} pred", "T: T T", "a | b"),
    ("xor.T", f"{BITS} pred", "T: T T", "a ^ b"),
    ("not.T", BITS, "T: T", "~a"),
    ("not.T", "pred", "T: T", "!a"),
    ("shl.T", BITS, "T: T u32", "b < N ? a << b : 0"),
    ("shr.T", f"{BITS} {UNSIGNED}", "T: T u32", "b < N ? a >> b : 0"),
    ("shr.T", SIGNED, "T: T u32", "a >> (b < N ? b : N - 1)"),
    ("bfe.T", "u32 u64", "T: T u32 u32", "extract(a, b & 255, c & 255)"),
    ("bfi.T", "b32 b64", "T: T T u32 u32", "insert(a, b, c & 255, d & 255)"),
    ("shf.l.wrap.T", "b32", "T: T T u32", "(b32)(((u64)b << 32 | a) << (c & 31) >> 32)"),
    ("prmt.T", "b32", "T: T T u32", "permuted(a, b, c)"),
    ("add.T", INTEGERS, "U: U U", "a + b"),
    ("sub.T", INTEGERS, "U: U U", "a - b"),
    ("mul.lo.T", INTEGERS, "U: U U", "a * b"),
    ("mad.lo.T", INTEGERS, "U: U U U", "a * b + c"),
    ("mul.wide.T", "u16 u32 s16 s32", "W: T T", "(W)a * b"),
    ("mad.wide.T", "u16 u32 s16 s32", "W: T T W", "(W)a * b + c"),
    ("div.T", UNSIGNED, "T: T T", "a / b"),
    ("rem.T", UNSIGNED, "T: T T", "a % b"),
    ("min.T", INTEGERS, "T: T T", "a < b ? a : b"),
    ("max.T", INTEGERS, "T: T T", "a > b ? a : b"),
    ("cvt.T.{}", INTEGERS, "T: {}", "a"),
    ("cvt.rn.T.{}", FLOATS, "T: {}", "a"),
    ("cvt.rzi.s32.f64", "s32", "s32: f64", "truncated(a)"),
    ("cvt.f64.f32", "f32", "f64: f32", "a"),
    ("cvt.rn.f32.f64", "f32", "f32: f64", "rounded(a)"),
    ("cvt.f32.f16", "f32", "f32: f16", "a"),
    ("cvt.rn.f16.f32", "f32", "f16: f32", "a"),
    ("setp.eq.T", f"{BITS} {INTEGERS} {FLOATS}", "pred: T T", "a == b"),
    ("setp.ne.T", f"{BITS} {INTEGERS}", "pred: T T", "a != b"),
    ("setp.ne.T", FLOATS, "pred: T T", "a < b || a > b"),
    *((f"setp.{name}.T", f"{INTEGERS} {FLOATS}", "pred: T T", f"a {sign} b") for name, sign, _ in ORDERS),
    *((f"setp.{name}u.T", FLOATS, "pred: T T", f"!(a {opposite} b)") for name, _, opposite in ORDERS),
    ("setp.equ.T", FLOATS, "pred: T T", "!(a < b || a > b)"),
    ("setp.neu.T", FLOATS, "pred: T T", "!(a == b)"),
    ("setp.num.T", FLOATS, "pred: T T", "a == a && b == b"),
    ("setp.nan.T", FLOATS, "pred: T T", "a != a || b != b"),
    *((f"{name}.rn.T", FLOATS, "T: T T", f"a {sign} b") for name, sign in SIGNS.items()),
    ("rcp.rn.T", FLOATS, "T: T", "1 / a"),
    ("sqrt.rn.T", FLOATS, "T: T", "T_sqrt(a)"),
    ("fma.rn.T", FLOATS, "T: T T T", "T_fma(a, b, c)"),
    ("abs.T", FLOATS, "T: T", "T_abs(a)"),
    ("copysign.f64", "f64", "b64: b64 b64", "a >> 63 << 63 | (b & ~0ull >> 1)"),
    ("neg.T", FLOATS, "T: T", "-a"),
    ("neg.T", SIGNED, "U: U", "0 - a"),
    ("min.T", FLOATS, "T: T T", "T_min(a, b)"),
    ("max.T", FLOATS, "T: T T", "-T_min(-a, -b)"),
]
SPECIAL = {"%tid.x": "self->index", "%ntid.x": "emulated.thread_count"}
SPECIAL |= {"%ctaid.x": "emulated.block", "%nctaid.x": "emulated.block_count"}
ADDRESS = r"\[([%\w$]+?)(?:\+(-?\d+))?\]"
SPACE = r"(?:\.(global|local|shared|const|param))?"
MEMORY = re.compile(rf"(ld|st)(?:\.(volatile))?{SPACE}(?:\.v([24]))?\.([busf])(8|16|32|64)")
CAST = re.compile(r"cvta(\.to)?\.(global|shared|local)\.u64")
VARIABLE = r"(?:\.align (\d+) )?\.[busf](\d+) ([\w$]+)(?:\[(\d+)\])?"
HEADER = re.compile(
    rf"(?:\.visible )?\.(entry|func) (?:\(\.param {VARIABLE}\) )?([\w$]+) ?\((.*?)\) ?([^()]*?) ?([;{{])"
)
FIRST = 64  # where shared and local memory begin, so that 0 is no address of theirs


def width_of(kind):
    return 1 if kind == "pred" else int(kind[1:])


def expanded(operations):
    """Returns types of the result and of the operands, and the value, by opcode."""
    found = {}
    for opcode, types, shape, value in operations:
        for t in types.split():
            width = width_of(t)
            names = {"T": t, "N": width, "B": t if t == "pred" else f"b{width}", "U": f"u{width}"}
            names["W"] = f"{t[0]}{2 * width}"
            row = "|".join((opcode, shape, value))
            row = re.sub(r"(?<![a-z])[TNBUW](?=\b|_)", lambda m, names=names: str(names[m[0]]), row)
            for source in ("u8", "s8", *INTEGERS.split()) if "{}" in row else ("",):
                name, shape_of_it, value_of_it = row.replace("{}", source).split("|", 2)
                result, operands = shape_of_it.split(": ")
                found[name] = result, operands.split(), value_of_it
    return found


class Function:
    """A function, or an entry, which leaves at a barrier and is entered there again: its registers are the thread's."""

    def __init__(self, header):
        kind, _, width, self.result, _, self.name, parameters, directives, self.end = header.groups()
        self.entry = kind == "entry"
        self.registers = {}  # their types
        self.symbols = {}  # space and address, or the width of what is passed to a function
        self.barriers, self.fences, self.depth = 0, 0, 1
        parameters = re.findall(rf"\.param {VARIABLE}", parameters)
        if self.entry:
            ((_, size, name, count),) = parameters
            self.symbols[name] = "param", 0
            self.parameter_bytes = int(size) // 8 * int(count or 1)
            self.threads = re.search(r"\.maxntid (\d+), 1, 1", directives)[1]
            return
        values = [(name, width) for _, width, name, count in parameters if not count]
        if len(values) < len(parameters):
            raise ValueError("only numbers are passed")
        arguments = ", ".join(f"u{width} {name}" for name, width in values)
        self.head = f"static {f'u{width}' if width else 'void'} {self.name}({arguments})"
        self.body = f" {{ u{width} {self.result};" if width else " {"
        self.symbols = {name: int(width) for name, width in [*values, (self.result, width or 0)]}

    def register(self, name, width, exact=True):
        kind = self.registers[name]
        if width_of(kind) < width or (exact and width_of(kind) != width):
            raise ValueError(f"{name} is .{kind}, not of {width} bits")
        return ("r->" if self.entry else "") + name.removeprefix("%")

    def frame(self, shared):
        """The lines around the body, when all registers are known; where shared memory ends."""
        groups = defaultdict(list)
        for name, kind in self.registers.items():
            groups["u8" if kind == "pred" else f"u{width_of(kind)}"].append(name.removeprefix("%"))
        if not self.entry:
            garbage = "0xa5a5a5a5a5a5a5a5"
            fields = (f"{t} {', '.join(f'{name} = ({t}){garbage}' for name in names)};" for t, names in groups.items())
            return f"{self.head}{self.body} {' '.join(fields)}", "}"
        fields = " ".join(f"{t} {', '.join(names)};" for t, names in groups.items())
        return (
            f"static int {self.name}(int barrier) {{ struct {{ {fields} }} *r = (void *)self->registers;"
            ' _Static_assert(sizeof *r <= REGISTER_BYTES, ""); switch (barrier) { case 0:;',
            f"}} }} KERNEL({self.name.removeprefix('gsc_cuda_')}) {{"
            f' _Static_assert(sizeof p == {self.parameter_bytes}, "");'
            f" run({self.name}, &p, sizeof p, {shared}, {self.threads}); }}",
        )


class Translator:
    operations = expanded(OPERATIONS)

    def __init__(self):
        self.lines = defaultdict(list)
        self.function = None
        self.constants, self.symbols = [], {}
        self.local, self.shared, self.register_bytes = FIRST, FIRST, 0

    # ---- operands ----

    def symbol(self, name):
        symbol = self.function.symbols.get(name) or self.symbols[name]
        if isinstance(symbol, int):
            raise ValueError(f"{name} has no address")
        return symbol

    def share(self, name, *variable):
        """Places a variable in shared memory, for all kernels."""
        start, self.shared = self.place(self.shared, *variable)
        self.symbols[name] = "shared", start

    def value(self, text, kind, exact=True):
        """An operand as a value of its type."""
        if text in SPECIAL:
            bits = SPECIAL[text]
        elif text[0] == "%":
            bits = self.function.register(text, width_of(kind), exact)
        elif re.fullmatch(r"0[fd][0-9A-F]+", text) and 4 * len(text[2:]) == width_of(kind):
            bits = f"0x{text[2:]}u"
        elif re.fullmatch(r"-?\d+", text) and kind[0] != "f":
            bits = f"({text}ll)"
        elif kind in ("b64", "u64", "b32"):
            bits = f"{self.symbol(text)[1]}ull"
        else:
            raise ValueError(f"{text} is no .{kind}")
        return f"{kind}_value({bits})" if kind[0] == "f" else f"({kind}){bits}"

    def address(self, name, offset, space):
        if name[0] == "%":
            return f"{self.function.register(name, 32 if space == 'shared' else 64, False)} + {offset or 0}ll"
        of, start = self.symbol(name)
        if of != space:
            raise ValueError(f"{name} is in .{of}")
        return f"{start + int(offset or 0)}ull"

    # ---- statements ----

    def compute(self, opcode, operands):
        result, kinds, value = self.operations[opcode]
        exact = not opcode.startswith("cvt.")
        to = self.function.register(operands[0], width_of(result), exact)
        pairs = zip(operands[1:], kinds, strict=True)
        values = dict(zip("abcd", (self.value(text, kind, exact) for text, kind in pairs), strict=False))
        value = re.sub(r"\b[a-d]\b", lambda m: values[m[0]], value)
        return f"{to} = {result}_result({value});" if result[0] == "f" else f"{to} = ({result})({value});"

    def move(self, match, operands):
        what, atomic, space, vector, kind, width = match.groups()
        width, space = int(width), space or "generic"
        registers, address = operands if what == "ld" else reversed(operands)
        names = re.findall(r"[^{}, ]+", registers)
        if what == "st" and names[0][0] != "%":
            registers = [self.value(name, f"b{width}") for name in names]
        else:
            registers = [self.function.register(name, width, kind == "f") for name in names]
        if len(registers) != int(vector or 1):
            raise ValueError(f"{len(registers)} registers")
        name, offset = re.fullmatch(ADDRESS, address).groups()
        c_type = f"{'s' if kind == 's' else 'u'}{width}"
        passed = self.function.symbols.get(name)
        if isinstance(passed, int):
            if space != "param" or int(offset or 0) != 0 or vector or width > passed:
                raise ValueError(f"{name} is passed as a whole")
            return f"{registers[0]} = ({c_type}){name};" if what == "ld" else f"{name} = ({c_type}){registers[0]};"
        writes, how = what == "st", "ATOM" if atomic else "WRITE" if what == "st" else "READ"
        if writes and space in ("const", "param"):
            raise ValueError(f".{space} is not written")
        at = f"at_{space}({self.address(name, offset, space)}, {width // 8 * len(registers)}, {how})"
        moves = (f"at[{i}] = ({c_type}){r};" if writes else f"{r} = at[{i}];" for i, r in enumerate(registers))
        return f"{{ {c_type} *at = {at}; {' '.join(moves)} }}"

    def instruction(self, text):
        guard, opcode, rest = re.fullmatch(r"(?:@(!?%\w+) )?([\w.]+) ?(.*);", text).groups()
        operands = [o.strip() for o in re.split(r",(?![^{(]*[})])", rest)] if rest else []
        function = self.function
        if opcode in ("mov.b32", "mov.b64") and "{" in operands[1]:
            width = int(opcode[-2:])
            low, high = (self.value(o.strip(), f"b{width // 2}") for o in operands[1].strip("{}").split(","))
            c = f"{function.register(operands[0], width)} = (u{width}){low} | (u{width}){high} << {width // 2};"
        elif opcode in ("mov.b32", "mov.b64") and "{" in operands[0]:
            half = int(opcode[-2:]) // 2
            low, high = (function.register(o.strip(), half) for o in operands[0].strip("{}").split(","))
            word = self.value(operands[1], f"b{2 * half}")
            c = f"{low} = (u{half}){word}; {high} = (u{half})({word} >> {half});"
        elif opcode in self.operations:
            c = self.compute(opcode, operands)
        elif match := MEMORY.fullmatch(opcode):
            c = self.move(match, operands)
        elif match := CAST.fullmatch(opcode):
            name = f"to_{match[2]}" if match[1] else f"{match[2]}_to_generic"
            c = f"{function.register(operands[0], 64)} = {name}({self.value(operands[1], 'u64')});"
        elif match := re.fullmatch(r"red\.(global|shared)\.(add\.u(?:32|64)|(?:min|max)\.u32)", opcode):
            space, operation, width = match[1], match[2], match[2][-2:]
            at = f"at_{space}({function.register(operands[0].strip('[]'), 64)}, {int(width) // 8}, RED)"
            c = f"red_{operation.replace('.', '_')}({at}, {self.value(operands[1], 'u' + width)});"
        elif match := re.fullmatch(r"atom(?:\.(global))?\.(add\.u|cas\.b)64", opcode):
            to, at = function.register(operands[0], 64), function.register(operands[1].strip("[]"), 64)
            values = ", ".join(self.value(o, "u64") for o in operands[2:])
            at = f"at_{match[1] or 'generic'}({at}, 8, ATOM)"
            c = f"{to} = atom_{match[2][:3]}({at}, {values});"
        elif opcode == "membar.gl" and function.entry:
            function.fences += 1
            c = f'if (is_kept("{function.name.removeprefix("gsc_cuda_")} fence {function.fences}")) fence();'
        elif opcode == "prefetch.global.L2":
            c = f"at_global({self.address(*re.fullmatch(ADDRESS, operands[0]).groups(), 'global')}, 1, 0);"
        elif opcode == "shfl.sync.down.b32" and function.entry and not guard:
            word, by, clamp, lanes = (self.value(o, "b32") for o in operands[1:])
            to = function.register(operands[0].split("|")[0], 32)
            function.barriers += 1
            c = f"shuffle({word}); return -{function.barriers}; case -{function.barriers}:;"
            c += f" {to} = shuffled_down({by}, {clamp}, {lanes});"
        elif opcode in ("bra", "bra.uni"):
            c = f"goto {operands[0].replace('$', '_')};"
        elif opcode == "ret":
            c = f"return {0 if function.entry else function.result or ''};"
        elif opcode == "bar.sync" and operands == ["0"] and function.entry and not guard:
            function.barriers += 1
            name = function.name.removeprefix("gsc_cuda_")
            c = f'if (is_kept("{name} {function.barriers}")) return {function.barriers}; case {function.barriers}:;'
        elif opcode == "call.uni":
            result, name, arguments = re.fullmatch(r"(?:\((\w+)\), )?([\w$]+), \( ?(.*?) ?\) ?", rest).groups()
            c = f"{f'{result} = ' if result else ''}{name}({arguments});"
        else:
            raise ValueError("unknown instruction")
        if not guard:
            return c
        return f"if ({'!' if guard[0] == '!' else ''}{function.register(guard.lstrip('!'), 1)}) {{ {c} }}"

    def place(self, end, alignment, width, count):
        """Where a variable begins that comes next, and where it ends."""
        start = -(-end // int(alignment)) * int(alignment)
        return start, start + int(width) // 8 * int(count or 1)

    def declaration(self, text):
        function = self.function
        if match := re.fullmatch(r"\.reg \.(\w+) (%?\w+)(?:<(\d+)>)?;", text):
            kind, name, count = match.groups()
            for one in [f"{name}{i}" for i in range(int(count))] if count else [name]:
                if function.registers.setdefault(one, kind) != kind:
                    raise ValueError(f"{one} is .{function.registers[one]} in another scope")
        elif match := re.fullmatch(rf"\.shared {VARIABLE};", text):
            self.share(match[3], *match.group(1, 2, 4))
        elif match := re.fullmatch(rf"\.local {VARIABLE};", text):  # for good, as no function calls itself
            start, self.local = self.place(self.local, match[1], match[2], match[4])
            function.symbols[match[3]] = "local", start
        elif (match := re.fullmatch(rf"\.param {VARIABLE};", text)) and not match[4]:
            function.symbols[match[3]] = int(match[2])
            return f"u{match[2]} {match[3]};"
        elif not text.startswith(".pragma"):
            raise ValueError("unknown declaration")
        return ""

    def outside(self, text, number):
        if match := re.fullmatch(rf"\.const {VARIABLE} = \{{(.*)\}};", text):
            start, end = self.place(len(self.constants), *match.group(1, 2, 4))
            self.symbols[match[3]] = "const", start
            self.constants += ["0"] * (start - len(self.constants)) + match[5].split(", ")
            if len(self.constants) > end:
                raise ValueError("not so many bytes")
            self.constants += ["0"] * (end - len(self.constants))
        elif match := re.fullmatch(rf"\.shared {VARIABLE};", text):
            self.share(match[3], *match.group(1, 2, 4))
        elif match := HEADER.fullmatch(text):
            function = Function(match)
            if function.end == ";":
                self.lines[number].append(f"{function.head};")
            else:
                self.function, self.start = function, number
        else:
            raise ValueError("unknown directive")

    def inside(self, text, number):
        function = self.function
        function.depth += {"{": 1, "}": -1}.get(text, 0)
        if function.depth == 0:
            head, c = function.frame(self.shared)
            self.lines[self.start].insert(0, head)
            self.register_bytes = max(self.register_bytes, 8 * len(function.registers) + 8 if function.entry else 0)
            self.function = None
        elif text in "{}":
            c = text
        elif text[-1] == ":":
            c = f"{text.replace('$', '_')};"
        else:
            c = self.declaration(text) if text[0] == "." else self.instruction(text)
        self.lines[number].append(c)

    def translate(self, path):
        pending, number = "", 0
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if path.suffix == ".ptx":
                text = re.sub(r"\s+", " ", line.split("//")[0]).strip()
                text = text.replace("{ .reg", "{\n.reg").replace("; }", ";\n}")
            else:
                literals = re.findall(r'"((?:[^"\\]|\\.)*)"', "" if line.startswith("#") else line)
                text = "".join(literals).replace("\\n", "\n").replace('\\"', '"')
            for part in text.split("\n"):
                if re.match(r"\.(version|target|address_size)\b", part):
                    continue
                pending = f"{pending} {part.strip()}".strip()
                if pending and pending[-1] in ";{}:":
                    try:
                        (self.inside if self.function else self.outside)(pending, number)
                    except (ValueError, TypeError, AttributeError, LookupError) as error:
                        sys.exit(f"{path}:{number}: {pending}: {type(error).__name__}: {error}")
                    pending = ""
        if pending or self.function:
            sys.exit(f"{path}: ends within a function or a statement: {pending}")
        defined = {"FIRST": FIRST, "LOCAL_END": self.local, "REGISTER_BYTES": self.register_bytes}
        head = "".join(f"#define {name} {value}\n" for name, value in defined.items())
        head += f'#define CONSTANTS {", ".join(self.constants) or 0}\n#include "ptx.h"\n#line 1 "{path}"\n'
        return head + "".join(" ".join(self.lines[i]) + "\n" for i in range(1, number + 1))


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(Translator().translate(Path(sys.argv[1])))
