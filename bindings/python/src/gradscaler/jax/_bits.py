# SPDX-License-Identifier: MIT
"""64-bit numbers as pairs of uint32 words, (high, low): JAX has none without x64, and no IEEE double at all on a TPU.

The structs of the library hold doubles and int64. What the policy step computes with them is done here in uint32
alone, elementwise and of any shape, so its bits are those of C on every platform that XLA compiles for. Doubles are
not NaN and, except where a name says signed, not negative, as scales, norms and magnitudes are.
"""

from __future__ import annotations

import struct
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Word = jnp.ndarray
Pair = tuple[Word, Word]


def u32(value: int) -> Word:
    return jnp.uint32(value)


def pair(value: int) -> Pair:
    """A 64-bit integer, or the bits of one, as constants."""
    return u32(value >> 32 & 0xFFFFFFFF), u32(value & 0xFFFFFFFF)


def double(value: float) -> Pair:
    return pair(struct.unpack("<Q", struct.pack("<d", value))[0])


def read(words: Word, index: int) -> Pair:
    """The pair that begins at word `index` of the last axis: memory has the low word first."""
    return words[..., index + 1], words[..., index]


def select(condition: Word, a: Pair, b: Pair) -> Pair:
    return jnp.where(condition, a[0], b[0]), jnp.where(condition, a[1], b[1])


# ---- types ----


def varying(results: Any, *operands: Any, over: frozenset = frozenset()) -> Any:
    """The results, of a type that says over which axes of a shard_map they vary: those of the operands, and `over`.

    What a custom call returns has lost them, and JAX would take it for the same on all devices.
    """
    if not hasattr(lax, "pcast") and not hasattr(lax, "pvary"):  # before 0.7: the type says nothing
        return results
    over = over & frozenset(jax.sharding.get_abstract_mesh().manual_axes)  # an axis of vmap is in no type
    axes = over.union(*(_axes(leaf) for leaf in jax.tree.leaves(operands)))

    def cast(leaf: Any) -> Any:
        missing = tuple(axes - _axes(leaf))
        if not missing:
            return leaf
        return lax.pcast(leaf, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(leaf, missing)

    return jax.tree.map(cast, results) if axes else results


def _axes(leaf: Any) -> frozenset:
    kind = jax.typeof(leaf)
    return kind.mat.varying if hasattr(kind, "mat") else getattr(kind, "vma", frozenset())  # before 0.10


# ---- integers ----


def add(a: Pair, b: Pair) -> Pair:
    low = a[1] + b[1]
    return a[0] + b[0] + (low < b[1]).astype(jnp.uint32), low


def subtract(a: Pair, b: Pair) -> Pair:
    return a[0] - b[0] - (a[1] < b[1]).astype(jnp.uint32), a[1] - b[1]


def less(a: Pair, b: Pair) -> Word:
    """Of unsigned integers, and so of doubles."""
    return (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))


def equal(a: Pair, b: Pair) -> Word:
    return (a[0] == b[0]) & (a[1] == b[1])


def is_zero(a: Pair) -> Word:
    return (a[0] | a[1]) == 0


def increment(a: Pair, by: Word) -> Pair:
    """`a` plus a truth value."""
    by = jnp.asarray(by).astype(jnp.uint32)
    return add(a, (jnp.zeros_like(by), by))


def total(counts: Word) -> Pair:
    """The sum of uint32 over the first axis, of at most 65,535 entries."""
    low = jnp.sum(counts & 0xFFFF, axis=0, dtype=jnp.uint32)
    high = jnp.sum(counts >> 16, axis=0, dtype=jnp.uint32)
    return add((high >> 16, high << 16), (jnp.zeros_like(low), low))


def remainder(a: Pair, divisor: int) -> Word:
    """a % divisor, which is below 2^31: as many bits at a time as fit beside a remainder."""
    digit = 32 - divisor.bit_length()
    rest, left = jnp.zeros_like(a[0]), 64
    while left > 0:
        digit = min(digit, left)
        left -= digit
        bits = _shift_right(a, u32(left))[0][1] & u32((1 << digit) - 1)
        rest = (rest << digit | bits) % u32(divisor)
    return rest


def _left(word: Word, by: Word) -> Word:
    return jnp.where(by < 32, word << jnp.minimum(by, 31), 0)


def _right(word: Word, by: Word) -> Word:
    return jnp.where(by < 32, word >> jnp.minimum(by, 31), 0)


def _shift_left(a: Pair, by: Word) -> Pair:
    """By less than 64."""
    low_bits = jnp.where(by < 32, _right(a[1], 32 - by), _left(a[1], by - 32))
    return jnp.where(by < 32, _left(a[0], by), 0) | low_bits, _left(a[1], by)


def _shift_right(a: Pair, by: Word) -> tuple[Pair, Word]:
    """By any number; and whether a bit was lost."""
    by = jnp.minimum(by, 64)
    high_bits = jnp.where(by < 32, _left(a[0], 32 - by), _right(a[0], by - 32))
    shifted = _right(a[0], by), _right(a[1], by) | high_bits
    return shifted, ~equal(_shift_left_whole(shifted, by), a)


def _shift_left_whole(a: Pair, by: Word) -> Pair:
    return select(by < 64, _shift_left(a, jnp.minimum(by, 63)), (jnp.zeros_like(a[0]), jnp.zeros_like(a[1])))


def _multiply_words(a: Word, b: Word) -> Pair:
    """The 64 bits of a product."""
    a1, a0, b1, b0 = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    zero = jnp.zeros_like(a0 * b0)
    outer = (a1 * b1 + zero, a0 * b0 + zero)
    for cross in (a1 * b0, a0 * b1):
        outer = add(outer, (cross >> 16, cross << 16))
    return outer


def times_low(a: Pair, factor: int) -> Pair:
    """The low 64 bits of a product with a constant."""
    high, low = pair(factor)
    product = _multiply_words(a[1], low)
    return product[0] + a[0] * low + a[1] * high, product[1]


# ---- doubles ----

_INFINITY = 0x7FF << 52


def _round(mantissa: Pair, exponent: Word, sticky: Word) -> Pair:
    """The double nearest to mantissa * 2^exponent, a bit more with `sticky`; a tie goes to the even one.

    `exponent` is an int32, the mantissa is not 0.
    """
    zeros = _leading_zeros(mantissa)
    mantissa = _shift_left(mantissa, zeros)
    biased = exponent - zeros.astype(jnp.int32) + (63 + 1023)
    drop = 9 + jnp.clip(1 - biased, 0, 54)
    kept, lost = _shift_right(mantissa, drop.astype(jnp.uint32))
    rest = (kept[1] & 3) << 1 | (sticky | lost).astype(jnp.uint32)
    kept = kept[0] >> 2, kept[1] >> 2 | kept[0] << 30
    up = (rest > 4) | ((rest == 4) & (kept[1] & 1 == 1))
    raised = jnp.clip(biased - 1, 0, 2046).astype(jnp.uint32) << 20
    rounded = increment((kept[0] + raised, kept[1]), up)
    return select(less(pair(_INFINITY), rounded) | (biased > 2046), pair(_INFINITY), rounded)


def _leading_zeros(a: Pair) -> Word:
    """At most 63."""
    return jnp.minimum(jnp.where(a[0] != 0, lax.clz(a[0]), 32 + lax.clz(a[1])), 63)


def _open(a: Pair) -> tuple[Pair, Word]:
    """A double above 0 as mantissa, whose highest bit is bit 63, and exponent."""
    exponent = (a[0] >> 20).astype(jnp.int32)
    normal = exponent > 0
    mantissa = (a[0] & 0xFFFFF) | jnp.where(normal, u32(1 << 20), u32(0)), a[1]
    zeros = _leading_zeros(mantissa)
    return _shift_left(mantissa, zeros), jnp.maximum(exponent, 1) - 1075 - zeros.astype(jnp.int32)


def _special(a: Pair, b: Pair) -> tuple[Word, Word]:
    return is_zero(a) | is_zero(b), ~less(a, pair(_INFINITY)) | ~less(b, pair(_INFINITY))


def times(a: Pair, b: Pair) -> Pair:
    """a * b as a double; 0 times infinity is not asked for."""
    zero, infinite = _special(a, b)
    (a1, a0), ea = _open(a)
    (b1, b0), eb = _open(b)
    low, high = _multiply_words(a0, b0), _multiply_words(a1, b1)
    nothing = jnp.zeros_like(low[0])
    middle = nothing, low[0]
    for cross in (_multiply_words(a1, b0), _multiply_words(a0, b1)):
        middle = add(middle, (nothing, cross[1]))
        high = add(high, (nothing, cross[0]))
    high = add(high, (nothing, middle[0]))
    product = _round(high, ea + eb + 64, (middle[1] | low[1]) != 0)
    product = select(zero, (nothing, nothing), product)
    return select(infinite, pair(_INFINITY), product)


def divided(a: Pair, b: Pair) -> Pair:
    """a / b as a double, by 11 bits at a time; 0 / 0 and infinity by itself are not asked for."""
    words = jnp.broadcast_arrays(*a, *b)
    words = varying(words, words)
    a, b = tuple(words[:2]), tuple(words[2:])
    (m, ea), (d, eb) = _open(a), _open(b)
    m, d = _shift_right(m, u32(11))[0], _shift_right(d, u32(11))[0]
    below = less(m, d)
    rest = select(below, m, subtract(m, d))
    quotient = jnp.zeros_like(m[0]), (~below).astype(jnp.uint32)

    def next_digit(_: int, carry: tuple[Pair, Pair]) -> tuple[Pair, Pair]:
        rest, quotient = carry
        rest = rest[0] << 11 | rest[1] >> 21, rest[1] << 11
        digit = rest[0] // (d[0] + 1)  # at most 2 too small
        rest = subtract(rest, add((digit * d[0], jnp.zeros_like(digit)), _multiply_words(digit, d[1])))
        for _ in range(2):
            more = ~less(rest, d)
            rest, digit = select(more, subtract(rest, d), rest), digit + more.astype(jnp.uint32)
        return rest, (quotient[0] << 11 | quotient[1] >> 21, quotient[1] << 11 | digit)

    rest, quotient = lax.fori_loop(0, 5, next_digit, (rest, quotient))
    result = _round(quotient, ea - eb - 55, ~is_zero(rest))
    nothing = jnp.zeros_like(result[0])
    result = select(is_zero(a) | ~less(b, pair(_INFINITY)), (nothing, nothing), result)
    return select(is_zero(b) | ~less(a, pair(_INFINITY)), pair(_INFINITY), result)


def plus(a: Pair, b: Pair) -> Pair:
    """a + b as a double."""
    a, b = select(less(a, b), b, a), select(less(a, b), a, b)
    (ma, ea), (mb, eb) = _open(a), _open(b)
    ma, _ = _shift_right(ma, u32(1))  # 53 bits: room below them, and now above
    mb, lost = _shift_right(mb, 1 + jnp.maximum(ea - eb, 0).astype(jnp.uint32))
    result = select(is_zero(b), a, _round(add(ma, mb), ea + 1, lost))
    return select(~less(a, pair(_INFINITY)), pair(_INFINITY), result)


def minus(a: Pair, b: Pair) -> Pair:
    """a - b as a double, where b is not above a; infinity less itself is not asked for."""
    (ma, ea), (mb, eb) = _open(a), _open(b)
    mb, lost = _shift_right(mb, jnp.maximum(ea - eb, 0).astype(jnp.uint32))
    rest = subtract(subtract(ma, mb), (jnp.zeros_like(ma[0]), lost.astype(jnp.uint32)))  # and a bit, if one was lost
    result = select(is_zero(b), a, _round(rest, ea, lost))
    return select(equal(a, b), (jnp.zeros_like(result[0]), jnp.zeros_like(result[1])), result)


_SIGN = 1 << 31


def negated(a: Pair) -> Pair:
    return a[0] ^ u32(_SIGN), a[1]


def magnitude(a: Pair) -> Pair:
    return a[0] & u32(_SIGN - 1), a[1]


def signed(a: Pair, negative: Word) -> Pair:
    """A double that is not negative, or its opposite."""
    return a[0] | jnp.where(negative, u32(_SIGN), u32(0)), a[1]


def is_negative(a: Pair) -> Word:
    return a[0] >> 31 != 0


def signed_plus(a: Pair, b: Pair) -> Pair:
    """a + b of doubles of either sign; infinity less itself is not asked for."""
    ma, mb = magnitude(a), magnitude(b)
    swaps = less(ma, mb)
    large, small = select(swaps, mb, ma), select(swaps, ma, mb)
    same = is_negative(a) == is_negative(b)
    result = select(same, plus(large, small), minus(large, small))
    return signed(result, is_negative(select(swaps, b, a)) & ~is_zero(result))


def signed_less(a: Pair, b: Pair) -> Word:
    """Of doubles of either sign; 0 is not less than -0, nor it than 0."""
    both = (a[0] << 1 | a[1] | b[0] << 1 | b[1]) != 0
    down, up = is_negative(a), less(magnitude(a), magnitude(b))
    down_up = less(magnitude(b), magnitude(a))
    return both & jnp.where(down == is_negative(b), jnp.where(down, down_up, up), down)


def root(a: Pair) -> Pair:
    """The square root of a double that is not negative, a bit at a time."""
    mantissa, exponent = _open(a)
    odd = (exponent & 1) != 0
    rest = select(odd, _shift_right(mantissa, u32(1))[0], mantissa)  # its low bits are 0
    exponent = exponent + odd.astype(jnp.int32)
    nothing = jnp.zeros_like(rest[0])

    def next_bit(_: int, carry: tuple[Pair, Pair, Pair]) -> tuple[Pair, Pair, Pair]:
        digits, rest, result = carry
        rest = rest[0] << 2 | rest[1] >> 30, rest[1] << 2 | digits[0] >> 30
        digits = digits[0] << 2 | digits[1] >> 30, digits[1] << 2
        trial = result[0] << 2 | result[1] >> 30, result[1] << 2 | 1
        fits = ~less(rest, trial)
        rest = select(fits, subtract(rest, trial), rest)
        return digits, rest, (result[0] << 1 | result[1] >> 31, result[1] << 1 | fits.astype(jnp.uint32))

    zero = nothing, nothing
    _, rest, result = lax.fori_loop(0, 56, next_bit, varying((rest, zero, zero), rest))
    result = _round(result, (exponent >> 1) - 24, ~is_zero(rest))
    return select(is_zero(a) | ~less(a, pair(_INFINITY)), a, result)


def of_integer(a: Pair) -> Pair:
    """The double nearest to a 64-bit integer."""
    return select(is_zero(a), a, _round(a, jnp.int32(0), jnp.bool_(False)))


def nearest_float(a: Pair) -> Pair:
    """The float nearest to a double, as a double."""
    exponent = (a[0] >> 20).astype(jnp.int32) - 1023
    drop = 29 + jnp.clip(-126 - exponent, 0, 25).astype(jnp.uint32)  # bits below the last one of the float
    # The last bit of the smallest float is not in the mantissa: it is the one that is not written.
    odd = jnp.where(drop < 52, _shift_right(a, drop)[0][1] & 1, 1)
    one = jnp.ones_like(a[1])
    half = _shift_left((one * 0, one), drop - 1)
    rounded = add(a, add(subtract(half, (one * 0, one)), (one * 0, odd)))
    rounded = _shift_left(_shift_right(rounded, drop)[0], drop)
    tiny = pair((1023 - 149) << 52)
    half_of_tiny = pair((1023 - 150) << 52)
    rounded = select(drop < 53, rounded, select(less(half_of_tiny, a), tiny, pair(0)))
    return select(less(rounded, pair((1023 + 128) << 52)), rounded, pair(_INFINITY))


def to_float(a: Pair) -> Word:
    """The bits of the float nearest to a double."""
    high, low = nearest_float(a)
    exponent = (high >> 20).astype(jnp.int32) - 1023
    normal = (exponent + 127).astype(jnp.uint32) << 23 | (high & 0xFFFFF) << 3 | low >> 29
    small = _right(1 << 23 | (high & 0xFFFFF) << 3 | low >> 29, (-126 - exponent).astype(jnp.uint32))
    bits = jnp.where(exponent < -126, jnp.where(exponent < -149, 0, small), normal)
    return jnp.where(exponent > 127, u32(0x7F800000), bits)


def of_float(bits: Word) -> Pair:
    """The double that a float is, of its bits; its sign is dropped."""
    bits = bits & 0x7FFFFFFF
    shift = jnp.where(bits < 1 << 23, lax.clz(bits) - 8, 0)  # a subnormal one becomes normal
    exponent = jnp.where(shift > 0, 1 - shift.astype(jnp.int32), (bits >> 23).astype(jnp.int32)) + (1023 - 127)
    mantissa = bits << jnp.minimum(shift, 31) & 0x7FFFFF
    wide = exponent.astype(jnp.uint32) << 20 | mantissa >> 3, mantissa << 29
    wide = select(bits == 0, pair(0), wide)
    return select(bits >= 0x7F800000, pair(_INFINITY), wide)


def moved(a: Pair, powers: int) -> Pair:
    """a * 2^powers, where neither is out of the range of normal doubles; 0 and infinity stay."""
    stays = is_zero(a) | ~less(a, pair(_INFINITY))
    return select(stays, a, (a[0] + u32(powers % 4096 << 20), a[1]))


# ---- programs ----


class Sheet:
    """Arithmetic of doubles of either sign, a line after the other in one loop, whose body has each operation once.

    XLA takes long over a chain of them: minutes, where a rule has fifty. Numbers of a sheet are added, subtracted,
    multiplied, divided and compared by <, which gives 1 or 0; `of` has what some of them are.
    """

    def __init__(self) -> None:
        self._inputs: list[Pair] = []
        self._lines: list[tuple[int, tuple[int, ...]]] = []

    def number(self, value: Any) -> Number:
        """A number that is known, or a pair."""
        self._inputs.append(value if isinstance(value, tuple) else double(float(value)))
        return Number(self, -len(self._inputs))

    def line(self, operation: str, *operands: Any) -> Number:
        places = [x._at if isinstance(x, Number) else self.number(x)._at for x in operands]
        self._lines.append((list(_OPERATIONS).index(operation), tuple((places * 3)[:3])))
        return Number(self, len(self._lines) - 1)

    def pick(self, condition: Number, a: Any, b: Any) -> Number:
        return self.line("pick", condition, a, b)

    def of(self, *numbers: Number) -> list[Pair]:
        """What they are: a program of all lines."""
        first = len(self._inputs)

        def place(at: int) -> int:
            return -1 - at if at < 0 else first + at

        given = jnp.broadcast_arrays(*(word for value in self._inputs for word in value))
        highs, lows = given[0::2], given[1::2]
        blank = [jnp.zeros_like(highs[0])] * len(self._lines)
        registers = varying((jnp.stack([*highs, *blank]), jnp.stack([*lows, *blank])), given)
        lines = [(code, first + i, *map(place, at)) for i, (code, at) in enumerate(self._lines)]

        def next_line(registers: Pair, line: Any) -> tuple[Pair, None]:
            operands = [tuple(word[line[k]] for word in registers) for k in range(2, 5)]
            result = lax.switch(line[0], list(_OPERATIONS.values()), *operands)
            return tuple(word.at[line[1]].set(one) for word, one in zip(registers, result, strict=True)), None

        registers, _ = lax.scan(next_line, registers, np.array(lines, np.int32))
        return [(registers[0][place(x._at)], registers[1][place(x._at)]) for x in numbers]


class Number:
    """One of a sheet."""

    def __init__(self, sheet: Sheet, at: int) -> None:
        self._sheet, self._at = sheet, at

    def __add__(self, other: Any) -> Number:
        return self._sheet.line("plus", self, other)

    def __sub__(self, other: Any) -> Number:
        return self._sheet.line("less by", self, other)

    def __mul__(self, other: Any) -> Number:
        return self._sheet.line("times", self, other)

    def __truediv__(self, other: Any) -> Number:
        return self._sheet.line("over", self, other)

    def __lt__(self, other: Any) -> Number:
        return self._sheet.line("is below", self, other)

    def root(self) -> Number:
        return self._sheet.line("root", self)


def _of_signed(operation: Any) -> Any:
    def result(a: Pair, b: Pair, _: Pair) -> Pair:
        return signed(operation(magnitude(a), magnitude(b)), is_negative(a) != is_negative(b))

    return result


_OPERATIONS = {
    "plus": lambda a, b, _: signed_plus(a, b),
    "less by": lambda a, b, _: signed_plus(a, negated(b)),
    "times": _of_signed(lambda a, b: times(a, b)),
    "over": _of_signed(lambda a, b: divided(a, b)),
    "is below": lambda a, b, _: select(signed_less(a, b), double(1.0), pair(0)),
    "root": lambda a, _, __: root(a),
    "pick": lambda condition, a, b: select(is_zero(condition), b, a),
}
