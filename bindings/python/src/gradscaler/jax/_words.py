# SPDX-License-Identifier: MIT
"""The library's structs as arrays of uint32, which every platform of JAX supports, and the doubles in them.

A double is a pair of words, (high, low), because JAX without x64 has no doubles.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import _structs

Pair = tuple[jax.Array, jax.Array]
FACTOR, STATE, REPORT = (ctypes.sizeof(kind) // 4 for kind in (_structs.Factor, _structs.State, _structs.Report))


def of_struct(struct: Any) -> np.ndarray:
    return np.frombuffer(bytes(struct), np.uint32)


def offset(kind: type, name: str) -> int:
    return getattr(kind, name).offset // 4


SCALE, INVERSE = (offset(_structs.Factor, name) for name in ("scale", "inverse"))


def word(kind: type, words: Any, name: str) -> jax.Array:
    return words[..., offset(kind, name)]


def pair(words: Any, index: int) -> Pair:
    """Returns the double at word `index` of the last axis; memory has the low word first."""
    return words[..., index + 1], words[..., index]


def report(fields: dict[str, Any]) -> jax.Array:
    """Returns the words of a report with these fields, pairs or single words of one shape; other fields are 0."""
    some = next(iter(fields.values()))
    shape = jnp.shape(some[0] if isinstance(some, tuple) else some)
    words = [jnp.zeros(shape, jnp.uint32)] * REPORT
    for name, value in fields.items():
        i = offset(_structs.Report, name)
        for k, part in enumerate(reversed(value) if isinstance(value, tuple) else [value]):
            words[i + k] = jnp.broadcast_to(jnp.asarray(part).astype(jnp.uint32), shape)
    return jnp.stack(words, axis=-1)


# ---- types ----


def varying(results: Any, *operands: Any, over: frozenset = frozenset()) -> Any:
    """Marks results as varying over the axes of a shard_map over which the operands vary, and `over`.

    The results of a custom call have lost this mark: JAX would think that they are the same on all devices.
    """
    if not hasattr(lax, "pcast") and not hasattr(lax, "pvary"):  # before 0.7 types have no such mark
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


# ---- doubles ----


def as_float(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def as_bits(value: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(value.astype(jnp.float32), jnp.uint32)


def _exponent(double: Pair) -> jax.Array:
    return (double[0] >> 20).astype(jnp.int32) - 1023


def _power(exponent: jax.Array) -> jax.Array:
    """Returns 2^exponent, which must be a normal float32. XLA's exp2 is not exact."""
    return as_float((exponent + 127).astype(jnp.uint32) << 23)


def magnitude(double: Pair) -> Pair:
    return double[0] & 0x7FFFFFFF, double[1]


def to_float(double: Pair) -> jax.Array:
    """Returns the float32 nearest to a double that is not negative."""
    high, low = double
    exponent = _exponent(double)
    bits = 1 << 30 | (high & 0xFFFFF) << 10 | low >> 22 | (low << 10 != 0).astype(jnp.uint32)
    drop = (7 + jnp.clip(-126 - exponent, 0, 24)).astype(jnp.uint32)  # a subnormal float has fewer bits
    kept, rest, half = bits >> drop, bits & ((jnp.uint32(1) << drop) - 1), jnp.uint32(1) << (drop - 1)
    up = (rest > half) | ((rest == half) & (kept & 1 == 1))
    kept = kept + up.astype(jnp.uint32) + (jnp.clip(exponent + 126, 0, 254).astype(jnp.uint32) << 23)
    return as_float(jnp.where(exponent < -150, 0, jnp.where(exponent > 127, 0x7F800000, kept)))


def of_float(value: jax.Array) -> Pair:
    """Returns the magnitude of a float32 as a double; NaN becomes infinite."""
    bits = as_bits(value) & 0x7FFFFFFF
    shift = jnp.where(bits < 1 << 23, lax.clz(bits) - 8, 0)  # a subnormal one becomes normal
    exponent = jnp.where(shift > 0, 1 - shift.astype(jnp.int32), (bits >> 23).astype(jnp.int32)) + (1023 - 127)
    mantissa = bits << jnp.minimum(shift, 31) & 0x7FFFFF
    high = jnp.where(bits == 0, 0, exponent.astype(jnp.uint32) << 20 | mantissa >> 3)
    infinite = bits >= 0x7F800000
    return jnp.where(infinite, 0x7FF00000, high), jnp.where(infinite, 0, mantissa << 29)


def root(squares: Pair) -> jax.Array:
    """Returns the square root of a double as float32: the root of its mantissa, with half its exponent."""
    exponent = _exponent(squares)
    half = exponent >> 1
    mantissa = squares[0] & 0xFFFFF | ((1023 + (exponent & 1)) << 20).astype(jnp.uint32), squares[1]
    result = jnp.sqrt(to_float(mantissa))
    first = jnp.clip(half, -126, 127)
    for power in (first, jnp.clip(half - first, -126, 127)):
        result = result * _power(power)
    return jnp.where((squares[0] | squares[1]) == 0, 0.0, result)


# ---- structs outside of jit ----


def is_concrete(array: Any) -> bool:
    return isinstance(array, jax.Array | np.ndarray) and not isinstance(array, jax.core.Tracer)


def shown(array: Any) -> str:
    """Returns repr(array), also of an array that was donated."""
    is_gone = isinstance(array, jax.Array) and is_concrete(array) and array.is_deleted()
    return "<donated>" if is_gone else repr(array)


def refuse_batch(array: Any) -> None:
    if (shape := jnp.shape(array))[1:]:
        raise ValueError(f"a batch of {shape[0]}: take one with jax.tree.map(lambda a: a[0], ...)")


def outside(array: Any, what: str, kind: str) -> None:
    """Raises inside jit, and for a batch; `what` names the method that needs the values of one struct."""
    if not is_concrete(array):
        raise TypeError(f"{what} only outside of jit: return the {kind}")
    refuse_batch(array)


# ---- factors ----


def usable(factor: jax.Array) -> jax.Array:
    """Returns whether scale and inverse of a factor, or of a state's factor in force, are finite and above 0."""
    holds = [((high | low) != 0) & (high < 0x7FF00000) for high, low in (pair(factor, SCALE), pair(factor, INVERSE))]
    return holds[0] & holds[1]


class Multiplier(NamedTuple):
    """A number to multiply by: as three float32 parts that all have normal inverses, and with x64 as a float64."""

    parts: tuple
    wide: Any

    def __call__(self, x: jax.Array) -> jax.Array:
        if jnp.iscomplexobj(x):
            return lax.complex(self(x.real), self(x.imag))
        if x.dtype == jnp.float64:
            return x * self.wide
        x = x.astype(jnp.float32)
        for part in self.parts:
            x = x * part
        return x


def multiplier(number: Pair, good: Any = True) -> Multiplier:
    """Returns a Multiplier for a double, or for 1 if it is not `good`."""
    number = jnp.where(good, number[0], 1023 << 20), jnp.where(good, number[1], 0)
    exponent = _exponent(number)
    first = jnp.clip(exponent, -126, 127)
    parts = [to_float((number[0] & 0xFFFFF | (first + 1023).astype(jnp.uint32) << 20, number[1]))]
    rest = exponent - first
    for _ in range(2):
        power = jnp.clip(rest, -126, 127)
        parts.append(_power(power))
        rest = rest - power
    parts = lax.optimization_barrier(parts)  # XLA must not fold constant parts: their product can be out of range
    wide = None
    if jax.config.jax_enable_x64:
        wide = lax.bitcast_convert_type(jnp.stack([number[1], number[0]]), jnp.float64)
    return Multiplier(tuple(parts), wide)
