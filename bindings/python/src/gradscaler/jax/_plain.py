# SPDX-License-Identifier: MIT
"""The library's calls in jax.numpy, for the platforms that its compiled handler does not serve.

Arguments and results are those of `_xla`. Overflows, counts and scales are equal to those of C, bit for bit; gradients
too, except that XLA flushes subnormal numbers; norms and magnitudes are summed in another order. What C tells by an
error is told as on a CUDA device: by the status of the report or state, with `overflow` set.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import _gradscaler as c
from .. import _structs
from .._scaler import Policy, traits
from .._structs import (
    Arithmetic,
    Event,
    Growth,
    Guard,
    GuardSample,
    LimitRule,
    OverflowReset,
    OverflowTest,
    Quirk,
    ReportKind,
    Status,
    Trait,
    Want,
)
from . import _bits as b

STATE_WORDS, REPORT_WORDS, FACTOR_WORDS = (
    ctypes.sizeof(kind) // 4 for kind in (_structs.State, _structs.Report, _structs.Factor)
)
_MOST = float(np.finfo(np.float32).max)
_GUARD_MOST = 2.0**500
_NORM, _ALL = int(Want.NORM), int(Want.NORM | Want.AMAX | Want.UNDERFLOW)


class Result(NamedTuple):
    """What `tensors` returns, as `_xla.Result`."""

    leaves: list
    report: jax.Array
    per_tensor: jax.Array | None = None
    histogram: jax.Array | None = None
    state: jax.Array | None = None


def why_not(policy: Policy | None = None, want: int = 0, histogram: bool = False) -> str | None:
    """None, or what of this only the compiled handler can do."""
    if policy is not None and policy.target_amax != 0:
        return "a policy that predicts the scale (target_amax) computes logarithms in doubles"
    if policy is not None and policy.guards and policy.guard_flags & Guard.BIAS_CORRECTED:
        return "a guard whose mean is corrected (Guard.BIAS_CORRECTED) computes logarithms in doubles"
    if policy is not None and policy.growth_rule == Growth.EVERY and policy.growth_interval >= 2**31:
        return "a growth_interval of 2^31 or more with Growth.EVERY divides 64-bit numbers"
    if want & Want.UNDERFLOW:
        return "Want.UNDERFLOW counts subnormal numbers, which XLA flushes"
    return "a histogram is of the handler's pass" if histogram else None


# ---- structs as words ----


def _offset(kind: type, name: str) -> int:
    return getattr(kind, name).offset // 4


def _report(fields: dict[str, Any]) -> jax.Array:
    """The words of a report with these fields: pairs or single words, all of one shape; zeros elsewhere."""
    some = next(iter(fields.values()))
    shape = jnp.shape(some[0] if isinstance(some, tuple) else some)
    words = [jnp.zeros(shape, jnp.uint32)] * REPORT_WORDS
    for name, value in fields.items():
        i = _offset(_structs.Report, name)
        parts = (value[1], value[0]) if isinstance(value, tuple) else (value,)
        for k, part in enumerate(parts):
            words[i + k] = jnp.broadcast_to(jnp.asarray(part).astype(jnp.uint32), shape)
    return jnp.stack(words, axis=-1)


_WORDS_BEFORE_0_9 = {_structs.State: 64, _structs.Report: 48}


def current(kind: type, words: Any) -> Any:
    """The words of a state or a report, or of a batch; those of 0.2 to 0.5 were fewer.

    A state had no `skip`. A report said what was absent instead of what was measured, and had no kind.
    """
    count, before = ctypes.sizeof(kind) // 4, _WORDS_BEFORE_0_9[kind]
    if not isinstance(words, jax.Array | np.ndarray) or words.dtype != np.uint32:
        return words
    if words.shape[-1:] != (before,) or count in words.shape:  # the axis of a batch may be the last
        return words
    parts = [words, jnp.zeros((*words.shape[:-1], count - before), jnp.uint32)]
    if kind is _structs.State:
        events, skip = (_offset(kind, name) for name in ("events", "skip"))
        skips = words[..., events : events + 1] & np.uint32(Event.SKIPPED) != 0
        parts = [words[..., :skip], skips.astype(jnp.uint32), words[..., skip + 1 :], parts[1]]
    else:
        said, of = (_offset(kind, name) for name in ("measured", "kind"))
        tensors = jnp.full((*words.shape[:-1], 1), int(ReportKind.TENSORS), jnp.uint32)
        measured = words[..., said : said + 1] ^ np.uint32(_ALL)
        parts = [words[..., :said], measured, words[..., said + 1 : of], tensors, words[..., of + 1 :], parts[1]]
    return jnp.concatenate(parts, axis=-1)


def _pair(kind: type, words: jax.Array, name: str) -> b.Pair:
    return b.read(words, _offset(kind, name))


def _word(kind: type, words: jax.Array, name: str) -> jax.Array:
    return words[..., _offset(kind, name)]


def as_float(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def as_bits(value: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(value.astype(jnp.float32), jnp.uint32)


def _wide(value: jax.Array) -> b.Pair:
    """The double that an array of float32, or of float64, holds."""
    if value.dtype == jnp.float64:
        words = lax.bitcast_convert_type(value, jnp.uint32)
        return b.read(words, 0)
    return b.of_float(as_bits(value))


def root(squares: b.Pair) -> jax.Array:
    """The square root of a double as float32: of its mantissa, then half its exponent."""
    exponent = (squares[0] >> 20).astype(jnp.int32) - 1023
    half = exponent >> 1
    mantissa = squares[0] & 0xFFFFF | ((1023 + (exponent & 1)) << 20).astype(jnp.uint32), squares[1]
    result = jnp.sqrt(as_float(b.to_float(mantissa)))
    first = jnp.clip(half, -126, 127)  # a power of two each: XLA's exp2 is not exact
    for power in (first, jnp.clip(half - first, -126, 127)):
        result = result * as_float(_exponent(power, 23, 127))
    return jnp.where(b.is_zero(squares), 0.0, result)


# ---- factors ----

_SCALE, _INVERSE, _SCALE_F32, _INVERSE_F32, _GENERATION = (
    _offset(_structs.Factor, name) for name in ("scale", "inverse", "scale_f32", "inverse_f32", "generation")
)


def _positive(a: b.Pair) -> jax.Array:
    return ~b.is_zero(a) & b.less(a, b.double(float("inf")))


def _usable(factor: jax.Array) -> jax.Array:
    return _positive(b.read(factor, _SCALE)) & _positive(b.read(factor, _INVERSE))


def _factor(scale: b.Pair, inverse: b.Pair, generation: b.Pair) -> list:
    words = [
        scale[1],
        scale[0],
        inverse[1],
        inverse[0],
        b.to_float(scale),
        b.to_float(inverse),
        generation[1],
        generation[0],
    ]
    return [jnp.asarray(word, jnp.uint32) for word in words]


def _made(scale: b.Pair, generation: b.Pair) -> list:
    return _factor(scale, b.divided(b.double(1.0), scale), generation)


def _checked(factor: list, holds: jax.Array) -> jax.Array:
    """All zeros, which every call refuses, where it does not hold."""
    words = jnp.stack(factor)
    holds = holds & _usable(words)
    return jnp.where(holds, words, 0)


def multiply(factor: jax.Array, by: float) -> jax.Array:
    """As gsc_factor_multiply."""
    number = b.double(by)
    product = _factor(
        b.times(b.read(factor, _SCALE), number),
        b.divided(b.read(factor, _INVERSE), number),
        b.read(factor, _GENERATION),
    )
    return _checked(product, _usable(factor))


def clipping(norm: jax.Array, max_norm: float) -> jax.Array:
    """What gsc_factor_clip_grad_norm multiplies by, in float32."""
    return jnp.minimum(jnp.float32(max_norm) / (norm + jnp.float32(1e-6)), 1)


def clip(factor: jax.Array, report: jax.Array, *, max_norm: float) -> jax.Array:
    """As gsc_factor_clip_grad_norm."""
    squares = _pair(_structs.Report, report, "sum_squares")
    coefficient = clipping(root(squares), max_norm)
    inverse = b.read(factor, _INVERSE)
    inverse = b.select(coefficient < 1, b.times(inverse, _wide(coefficient)), inverse)
    words = [*(factor[i] for i in (0, 1)), inverse[1], inverse[0], factor[4], b.to_float(inverse), factor[6], factor[7]]
    known = _word(_structs.Report, report, "measured") & _NORM != 0
    good = _lawful(report) & known & (_word(_structs.Report, report, "status") == 0)
    return _checked(words, good & b.less(squares, b.double(float("inf"))) & _usable(factor))


class _Multiplier(NamedTuple):
    """A factor's number as the types that multiply take it: a float32 in three parts, each with an inverse that is
    normal, and a float64 where there is one."""

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


def _multiplier(number: b.Pair, good: jax.Array) -> _Multiplier:
    number = b.select(good, number, b.double(1.0))
    exponent = (number[0] >> 20).astype(jnp.int32) - 1023
    first = jnp.clip(exponent, -126, 127)
    mantissa = b.to_float((number[0] & 0xFFFFF | _exponent(first, 20, 1023), number[1]))
    rest, parts = exponent - first, [as_float(mantissa)]
    for _ in range(2):
        power = jnp.clip(rest, -126, 127)
        parts.append(as_float(_exponent(power, 23, 127)))
        rest = rest - power
    parts = lax.optimization_barrier(parts)  # of a scale that is constant, too: their product may be no float
    wide = None
    if jax.config.jax_enable_x64:
        wide = lax.bitcast_convert_type(jnp.stack([number[1], number[0]]), jnp.float64)
    return _Multiplier(tuple(parts), wide)


def _exponent(power: jax.Array, shift: int, bias: int) -> jax.Array:
    return (power + bias).astype(jnp.uint32) << shift


# ---- tensors ----


def _parts(x: jax.Array) -> list[jax.Array]:
    return [x.real, x.imag] if jnp.iscomplexobj(x) else [x]


def _sum(x: jax.Array) -> jax.Array:
    """The sum of many numbers, in blocks of 128: as exact as float32 allows."""
    x = x.reshape(-1)
    while x.size > 128:
        whole = x.size // 128 * 128
        blocks = jnp.sum(x[:whole].reshape(-1, 128), axis=1)
        x = blocks if whole == x.size else jnp.concatenate([blocks, x[whole:]])
    return jnp.sum(x)


# Squares of float32 leave its range: those of the small and the large are summed apart, as powers of two nearer to 1.
_SMALL, _LARGE, _POWERS = 2.0**-50, 2.0**40, (70, 0, -86)


def _squares(products: Sequence[jax.Array]) -> b.Pair:
    """Of each tensor the sum of squares of its finite elements, as a double: two words of shape [n]."""
    rows, wide = [], [jnp.zeros((), jnp.float32)] * len(products)
    for i, product in enumerate(products):
        row = [jnp.zeros((), jnp.float32)] * 3
        for part in _parts(product):
            part = jnp.where(jnp.isfinite(part), part, 0)
            if part.dtype == jnp.float64:
                wide[i] = wide[i] + jnp.sum(part * part)
                continue
            size = jnp.abs(part)
            masks = size < _SMALL, (size >= _SMALL) & (size <= _LARGE), size > _LARGE
            for k, (inside, power) in enumerate(zip(masks, _POWERS, strict=True)):
                # Not part * 2^power where inside: XLA would take the square of the power out, which is infinite.
                scaled = part * jnp.where(inside, jnp.float32(2.0**power), 0)
                row[k] = row[k] + _sum(scaled * scaled)
        rows.append(jnp.stack(row))
    sums = _wide(jnp.stack(rows))
    addends = [b.moved((sums[0][:, k], sums[1][:, k]), -2 * power) for k, power in enumerate(_POWERS)]
    if any(value.dtype == jnp.float64 for value in wide):
        addends.append(_column([_wide(value) for value in wide]))
    high, low = (jnp.stack([addend[k] for addend in addends]) for k in range(2))
    return lax.fori_loop(1, len(addends), lambda k, sums: b.plus(sums, (high[k], low[k])), (high[0], low[0]))


def _amax(products: Sequence[jax.Array]) -> b.Pair:
    largest = []
    for product in products:
        finite = [jnp.max(jnp.where(jnp.isfinite(x), jnp.abs(x), 0), initial=0) for x in _parts(product)]
        largest.append(jnp.max(jnp.stack(finite)))
    if any(x.dtype == jnp.float64 for x in largest):
        return _column([_wide(x) for x in largest])
    return _wide(jnp.stack(largest))


def _is_bad(x: jax.Array) -> jax.Array:
    bad = [~jnp.isfinite(part) for part in _parts(x)]
    return bad[0] | bad[-1]


def _located(judged: Sequence[jax.Array], probes: Sequence[jax.Array]) -> jax.Array:
    """Of each tensor: how many elements are NaN, how many others are bad, and the first of all; u32[n, 3]."""
    rows = []
    for result, probe in zip(judged, probes, strict=True):
        bad, nan = _is_bad(result).reshape(-1), jnp.isnan(probe).reshape(-1)
        if jnp.iscomplexobj(probe):  # the part of larger bits: a NaN, where there is one
            nan = (jnp.isnan(probe.real) | jnp.isnan(probe.imag)).reshape(-1)
        nan = nan & bad
        first = jnp.min(jnp.where(bad, jnp.arange(bad.size, dtype=jnp.uint32), bad.size), initial=bad.size)
        nans, all_bad = jnp.sum(nan, dtype=jnp.uint32), jnp.sum(bad, dtype=jnp.uint32)
        rows.append(jnp.stack([nans, all_bad - nans, jnp.where(all_bad > 0, first, 0).astype(jnp.uint32)]))
    return jnp.stack(rows)


def _clip_limit(clip_value: float, dtype: Any) -> float:
    """The largest value of `dtype` that is not above `clip_value`."""
    most = min(clip_value, float(jnp.finfo(dtype).max))
    nearest = np.asarray(most, dtype)
    bound = float(nearest if float(nearest) <= most else np.nextafter(nearest, np.zeros_like(nearest)))
    if bound == 0:
        raise ValueError(f"clip_value={clip_value!r}: nothing but 0 would be left of {np.dtype(dtype).name}")
    return bound


def _limited(product: jax.Array, clip_value: float, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """The product as `dtype`, limited where it is a number; which elements were beyond."""
    if jnp.iscomplexobj(product):
        parts = [_limited(part, clip_value, jnp.finfo(dtype).dtype) for part in _parts(product)]
        (real, real_beyond), (imag, imag_beyond) = parts
        return lax.complex(real, imag), real_beyond | imag_beyond
    wide = product.astype(dtype) if dtype == jnp.float64 else product
    bound = jnp.asarray(_clip_limit(clip_value, dtype), wide.dtype)
    return jnp.where(jnp.isnan(wide), wide, jnp.clip(wide, -bound, bound)).astype(dtype), jnp.abs(wide) > bound


def _column(values: Sequence[Any]) -> Any:
    if isinstance(values[0], tuple):
        return tuple(jnp.stack([jnp.asarray(value[k], jnp.uint32) for value in values]) for k in range(2))
    return jnp.stack([jnp.asarray(value, jnp.uint32) for value in values])


def tensors(
    operation: str,
    leaves: Sequence[jax.Array],
    factor: jax.Array | None,
    *,
    policy: Policy | None = None,
    out: Sequence[jax.Array] | None = None,
    dtypes: Sequence[Any] | None = None,
    state: jax.Array | None = None,
    want: int = 0,
    max_norm: float | None = None,
    clip_value: float | None = None,
    per_tensor: bool = False,
) -> Result:
    """`_xla.tensors`, in jax.numpy; `factor` may be a whole state, and None is 1."""
    if factor is None:
        factor = jnp.asarray(np.frombuffer(bytes(_ONE), np.uint32))
    asked = want | (Want.NORM if max_norm is not None or by_norm(policy) else 0)
    good = _usable(factor)
    number = _multiplier(b.read(factor, _SCALE if operation == "scale" else _INVERSE), good)
    targets = [o.dtype for o in out] if out is not None else dtypes or [leaf.dtype for leaf in leaves]
    if operation == "measure":
        targets = [leaf.dtype for leaf in leaves]
    products = [number(leaf) for leaf in leaves]
    rounded = [product.astype(dtype) for product, dtype in zip(products, targets, strict=True)]
    judged = products if clip_value is not None else rounded
    rows = _rows(leaves, judged, products, asked, factor)
    if clip_value is not None:
        limited = [_limited(product, clip_value, dtype) for product, dtype in zip(products, targets, strict=True)]
        rounded = [x for x, _ in limited]
        if leaves:
            i = _offset(_structs.Report, "clamped")
            rows = rows.at[:, i].set(jnp.stack([jnp.sum(beyond, dtype=jnp.uint32) for _, beyond in limited]))
    report = _totalled(rows, factor, asked, policy, len(leaves))
    failed = _failed(Status.ERROR_FACTOR)
    report = jnp.where(good, report, failed)
    rows = jnp.where(good, rows, failed) if leaves else rows
    if max_norm is not None:
        clipped = clip(factor[:FACTOR_WORDS], report, max_norm=max_norm)
        usable = _usable(clipped)  # not where the norm is that of an overflow
        clipped = _multiplier(b.select(usable, b.read(clipped, _INVERSE), b.read(factor, _INVERSE)), good)
        products = [clipped(leaf) for leaf in leaves]
        rounded = [product.astype(dtype) for product, dtype in zip(products, targets, strict=True)]
    if operation == "unscale_accumulate":
        step = _word(_structs.Report, report, "overflow") == 0
        rounded = [jnp.where(step, _added(o, product), o) for o, product in zip(out, products, strict=True)]
    elif operation == "measure":
        rounded = []
    new = None if state is None else update(state, report, policy=policy)
    return Result(rounded, report, rows if per_tensor else None, None, new)


_ONE = _structs.Factor(scale=1, inverse=1, scale_f32=1, inverse_f32=1)


def _added(out: jax.Array, product: jax.Array) -> jax.Array:
    wide = jnp.promote_types(out.dtype, product.dtype)
    return (out.astype(wide) + product.astype(wide)).astype(out.dtype)


def _rows(leaves: Any, judged: Any, products: Any, want: int, factor: jax.Array) -> jax.Array:
    """The report of each tensor; u32[n, 64]."""
    if not leaves:
        return jnp.zeros((0, REPORT_WORDS), jnp.uint32)
    # Where elements are bad is looked for only when some are: the step is skipped, so there is time.
    bad = jnp.stack([jnp.any(_is_bad(result)) for result in judged])
    probes = leaves if any(not _has_infinity(result.dtype) for result in judged) else judged
    none = b.varying(jnp.zeros((len(leaves), 3), jnp.uint32), bad)
    counts = lax.cond(jnp.any(bad), lambda: _located(judged, probes), lambda: none)
    zeros = jnp.zeros(len(leaves), jnp.uint32)
    sizes = [leaf.size for leaf in leaves]
    fields = {
        "found_inf": as_bits(bad),
        "overflow": bad,
        "measured": jnp.full(len(leaves), int(want), jnp.uint32),
        "kind": jnp.full(len(leaves), int(ReportKind.TENSORS), jnp.uint32),
        "generation": tuple(jnp.broadcast_to(word, zeros.shape) for word in b.read(factor, _GENERATION)),
        "elements": (
            jnp.asarray([n >> 32 for n in sizes], jnp.uint32),
            jnp.asarray([n & 0xFFFFFFFF for n in sizes], jnp.uint32),
        ),
        "nan_count": (zeros, counts[:, 0]),
        "inf_count": (zeros, counts[:, 1]),
        "first_tensor": (zeros, jnp.where(bad, jnp.arange(len(leaves), dtype=jnp.uint32), 0)),
        "first_element": (zeros, counts[:, 2]),
    }
    if want & Want.NORM:
        fields["sum_squares"] = _squares(products)
    if want & Want.AMAX:
        fields["amax"] = _amax(products)
    return _report(fields)


def _has_infinity(dtype: Any) -> bool:
    return bool(np.isinf(np.asarray(np.inf, dtype).astype(np.complex64)))


def _totalled(rows: jax.Array, factor: jax.Array, want: int, policy: Policy | None, count: int) -> jax.Array:
    fields = _gathered(rows, count)
    squares = [tuple(word[i] for word in _pair(_structs.Report, rows, "sum_squares")) for i in range(min(count, 1))]
    if count > 1:
        squares = [_tree(_pair(_structs.Report, rows, "sum_squares"))]
    fields["sum_squares"] = squares[0] if squares else b.pair(0)
    fields["measured"], fields["kind"] = b.u32(int(want)), b.u32(int(ReportKind.TENSORS))
    fields["generation"] = b.read(factor, _GENERATION)
    return _judged(fields, policy)


def _tree(addends: b.Pair) -> b.Pair:
    """The sum of doubles: every one takes its neighbour, then the one two places on, then four."""
    count = addends[0].shape[0]
    zeros = jnp.zeros(2 ** (count - 1).bit_length(), jnp.uint32)

    def level(k: jax.Array, sums: b.Pair) -> b.Pair:
        later = [lax.dynamic_slice(jnp.concatenate([word, zeros]), [1 << k], [count]) for word in sums]
        return b.plus(sums, (later[0], later[1]))

    sums = lax.fori_loop(0, (count - 1).bit_length(), level, addends)
    return sums[0][0], sums[1][0]


# ---- reports ----

_COUNTS = ("elements", "nan_count", "inf_count", "underflows_to_zero", "underflows_to_subnormal", "clamped")


def _total(pairs: b.Pair) -> b.Pair:
    high, low = pairs
    return b.add((jnp.sum(high, axis=0, dtype=jnp.uint32), jnp.zeros((), jnp.uint32)), b.total(low))


def _largest(pairs: b.Pair) -> b.Pair:
    high = jnp.max(pairs[0], axis=0)
    return high, jnp.max(jnp.where(pairs[0] == high, pairs[1], 0), axis=0)


def _gathered(rows: jax.Array, count: int) -> dict[str, Any]:
    """The fields of one report of many, except for sum_squares, measured, kind and generation."""
    kind = _structs.Report
    if count == 0:
        return {name: b.pair(0) for name in (*_COUNTS, "amax", "first_tensor", "first_element")} | {
            "overflow": jnp.bool_(False),
            "status": b.u32(0),
        }
    ranks = _word(kind, rows, "first_rank_plus_1")
    has_bad = ~(b.is_zero(_pair(kind, rows, "nan_count")) & b.is_zero(_pair(kind, rows, "inf_count")))
    status = _word(kind, rows, "status")
    says = _says_overflow(rows)
    first = jnp.argmax(has_bad)
    fields: dict[str, Any] = {name: _total(_pair(kind, rows, name)) for name in _COUNTS}
    for name in ("first_tensor", "first_element"):
        place = tuple(word[first] for word in _pair(kind, rows, name))
        fields[name] = b.select(jnp.any(has_bad), place, b.pair(0))
    return fields | {
        "amax": _largest(_pair(kind, rows, "amax")),
        "overflow": jnp.any(says),
        "status": status[jnp.argmax(status != 0)],
        "first_rank_plus_1": jnp.where(
            jnp.any(has_bad), ranks[first], jnp.where(jnp.any(says), ranks[jnp.argmax(says)], 0)
        ),
    }


def _failed(status: int) -> np.ndarray:
    """What stands in a report that nothing could be found out for."""
    return np.frombuffer(bytes(_structs.Report(status=status, overflow=1, found_inf=1)), np.uint32)


def _says_overflow(report: jax.Array) -> jax.Array:
    kind = _structs.Report
    said = _word(kind, report, "overflow") | _word(kind, report, "found_inf") << 1 | _word(kind, report, "status")
    return said != 0


_NOT_NEGATIVE = ("elements", "nan_count", "inf_count", "first_tensor", "first_element")
_NOT_NEGATIVE += ("underflows_to_zero", "underflows_to_subnormal", "clamped")


def _lawful(report: jax.Array) -> jax.Array:
    """Whether somebody filled it in, with values that a report can have: as gsc_report_values_status."""
    kind, says = _structs.Report, _says_overflow(report)
    what, measured, flags = (_word(kind, report, name) for name in ("kind", "measured", "flags"))
    number, squares = _pair(kind, report, "number"), _pair(kind, report, "sum_squares")
    bad = ~b.is_zero(_pair(kind, report, "nan_count")) | ~b.is_zero(_pair(kind, report, "inf_count"))
    zero, infinity, size = b.is_zero(b.magnitude(number)), b.double(float("inf")), b.magnitude(squares)
    holds = (what <= len(ReportKind) - 1) & ((what != int(ReportKind.NONE)) | says) & (flags == 0)
    holds &= (measured <= _ALL) & ((what != int(ReportKind.FLAG)) | (measured == 0)) & (says | ~bad)
    holds &= jnp.where(what == int(ReportKind.NUMBER), b.less(b.magnitude(number), infinity), zero)
    holds &= ~b.is_negative(squares) | b.is_zero(size) | b.less(infinity, size)  # 0 or above, or NaN
    for name in _NOT_NEGATIVE:
        holds &= _pair(kind, report, name)[0] >> 31 == 0
    return holds & jnp.all(report[..., _offset(kind, "reserved") :] == 0, axis=-1)


def by_norm(policy: Policy | None) -> bool:
    """Whether a policy asks for the norm."""
    return policy is not None and bool(traits(policy) & Trait.NEEDS_NORM)


def _too_large(policy: Policy, squares: b.Pair) -> jax.Array:
    most = _MOST if policy.overflow_test == OverflowTest.NORM else _GUARD_MOST**2
    return b.less(b.double(most), b.magnitude(squares))


def _judged(fields: dict[str, Any], policy: Policy | None) -> jax.Array:
    """The report, with the verdict of the policy."""
    overflow = fields["overflow"]
    if by_norm(policy):
        overflow = overflow | _too_large(policy, fields["sum_squares"])
    return _report(fields | {"overflow": overflow, "found_inf": as_bits(overflow)})


def merge(reports: jax.Array, *, policy: Policy | None = None, addends: bool = False) -> jax.Array:
    """As gsc_report_merge: one report of u32[n, 64], in their order."""
    kind, count = _structs.Report, reports.shape[0]
    fields = _gathered(reports, count)
    measured = lax.reduce(_word(kind, reports, "measured"), b.u32(_ALL), lax.bitwise_and, (0,))
    if addends and count:
        measured = measured & int(Want.UNDERFLOW)
    generation = _pair(kind, reports, "generation")
    unknown = b.is_zero(generation)
    generation = b.select(unknown, b.pair(2**64 - 1), generation)
    if count:
        high = jnp.min(generation[0])
        low = jnp.min(jnp.where(generation[0] == high, generation[1], b.u32(0xFFFFFFFF)))
        fields["generation"] = b.select(jnp.all(unknown), b.pair(0), (high, low))
    fields["sum_squares"] = _in_runs(_pair(kind, reports, "sum_squares"))
    for bit, names in ((Want.NORM, ["sum_squares"]), (Want.AMAX, ["amax"]), (Want.UNDERFLOW, _COUNTS[3:5])):
        for name in names:
            fields[name] = b.select(measured & int(bit) != 0, fields[name], b.pair(0))
    fields["measured"], fields["kind"] = measured, b.u32(int(ReportKind.MERGED))
    status, ranks, differs = _word(kind, reports, "status"), _word(kind, reports, "status_rank_plus_1"), None
    if count:
        digest = _pair(kind, reports, "digest")
        known = ~b.is_zero(digest)
        fields["digest"] = first = tuple(word[jnp.argmax(known)] for word in digest)
        differs = known & ~b.equal(digest, first)
        fields["status_rank_plus_1"] = jnp.where(jnp.any(status != 0), ranks[jnp.argmax(status != 0)], 0)
    numbers = _word(kind, reports, "kind") == int(ReportKind.NUMBER)
    refused = ~jnp.all(_lawful(reports) & ~numbers)
    if by_norm(policy):  # a report that lacks what the policy judges by
        refused = refused | ((measured & _NORM == 0) & ~fields["overflow"])
    report = jnp.where(refused, _failed(Status.ERROR_REPORT), _judged(fields, policy))
    if differs is not None:
        refused = jnp.asarray(_failed(Status.ERROR_MISMATCH)).at[_offset(kind, "status_rank_plus_1")]
        report = jnp.where(jnp.any(differs), refused.set(ranks[jnp.argmax(differs)]), report)
    return report


# ---- digest ----

_DIGEST_BY = 0x9E3779B97F4A7C15
_DIGEST_NUMBERS = ("log2_mean", "log2_slow_mean", "log2_mean_square", "log2_zero_weight", "log2_slow_zero_weight")


@functools.lru_cache(maxsize=256)
def _policy_digest(policy: bytes) -> int:
    """What the digest of a policy and a state is before the words of the state are mixed in.

    The library knows what of a policy counts. It gives the digest with a state, whose words are taken out again.
    """
    rules, state, report = Policy.from_buffer_copy(policy), _structs.State(), _structs.Report(kind=ReportKind.FLAG)
    c.gsc_state_init(None, rules, state)
    c.gsc_report_set_rank(None, report, rules, state, 0, report)
    digest, all_bits = report.digest, 2**64 - 1
    for word in reversed(_digest_words(np.frombuffer(bytes(state), np.uint32), rules.guards)):
        digest ^= digest >> 32
        digest = digest * pow(_DIGEST_BY, -1, 2**64) & all_bits
        digest ^= int(word[0]) << 32 | int(word[1])
    return digest


def _digest_words(state: Any, guards: bool) -> list[b.Pair]:
    """What of a state is in the digest, in its order."""
    kind = _structs.State
    scales = [b.read(state, _offset(kind, name) + at) for at in (_SCALE, _INVERSE) for name in ("factor", "next")]
    names = (*_DIGEST_NUMBERS, *_STEP_COUNTS, *(_GUARD[:4] if guards else ()))
    return [*scales, *(_pair(kind, state, name) for name in names)]


def stamp(report: jax.Array, state: jax.Array, *, policy: Policy) -> jax.Array:
    """As gsc_report_set_rank, of rank 0."""
    kind = _structs.Report

    def mix(digest: b.Pair, word: b.Pair) -> tuple[b.Pair, None]:
        high = jnp.where((word[0] << 1 | word[1]) == 0, 0, word[0])  # -0 is 0
        high, low = b.times_low((digest[0] ^ high, digest[1] ^ word[1]), _DIGEST_BY)
        return (high, low ^ high), None

    # A loop: XLA takes long over a chain of products.
    words = tuple(jnp.stack(part) for part in zip(*_digest_words(state, policy.guards), strict=True))
    digest, _ = lax.scan(mix, b.varying(b.pair(_policy_digest(bytes(policy))), words), words)
    digest, holds = b.select(b.is_zero(digest), b.pair(1), digest), _lawful(report)
    digest = b.select(holds, digest, b.pair(0))
    told = {"status_rank_plus_1": b.u32(1), "first_rank_plus_1": b.u32(1), "digest": digest[1]}
    failed = _structs.Report.from_buffer_copy(_failed(Status.ERROR_REPORT))
    for name in ("overflow", "status"):
        told[name] = jnp.where(holds, _word(kind, report, name), b.u32(getattr(failed, name) & 0xFFFFFFFF))
    told["found_inf"] = jnp.where(holds, _word(kind, report, "found_inf"), as_bits(jnp.float32(1)))
    for name, word in told.items():
        report = report.at[_offset(kind, name)].set(word)
    return report.at[_offset(kind, "digest") + 1].set(digest[0])


def _in_runs(addends: b.Pair) -> b.Pair:
    """Their sum, each run of 64 in order, then the runs in order."""
    zero = b.pair(0)

    def step(carry: Any, addend: b.Pair) -> Any:
        runs, run, n = carry
        run, n = b.plus(run, addend), n + 1
        full = n % 64 == 0
        return (b.select(full, b.plus(runs, run), runs), b.select(full, zero, run), n), None

    (runs, run, _), _ = lax.scan(step, (zero, zero, b.u32(0)), addends)
    return b.plus(runs, run)


# ---- the policy step ----


def _bound(policy: Policy, value: float, nothing: float, down: bool) -> float:
    """The number of the policy's format at the limit or inside of it."""
    if value == 0:
        return nothing
    if policy.arithmetic == Arithmetic.F64 or not np.isfinite(value):
        return value
    with np.errstate(over="ignore"):
        near = np.float32(value)
    if (near > value) if down else (near < value):
        near = np.nextafter(near, np.float32(-np.inf if down else np.inf))
    return _host_format(policy, float(near))


def _host_format(policy: Policy, value: float) -> float:
    if policy.arithmetic == Arithmetic.F64:
        return value
    with np.errstate(over="ignore", under="ignore"):
        value = float(np.float32(value))
    return 0.0 if policy.arithmetic == Arithmetic.F32_FLUSH and abs(value) < 2.0**-126 else value


def _format(policy: Policy, scale: b.Pair) -> b.Pair:
    if policy.arithmetic == Arithmetic.F64:
        return scale
    scale = b.nearest_float(scale)
    if policy.arithmetic == Arithmetic.F32_FLUSH:
        scale = b.select(b.less(scale, b.double(2.0**-126)), b.pair(0), scale)
    return scale


class _Step:
    """One step of a policy on a state: core/policy.h, whose branches become selects."""

    def __init__(self, policy: Policy, state: jax.Array, overflow: jax.Array) -> None:
        self.policy, self.overflow = policy, overflow
        self.before = {name: _pair(_structs.State, state, name) for name in (*_STEP_COUNTS, *_STEP_TOTALS)}
        vars(self).update(self.before)
        self.events = jnp.where(overflow, b.u32(Event.SKIPPED), b.u32(0))
        self.old = b.read(state, _offset(_structs.State, "next") + _SCALE)

    def changed(self, scale: b.Pair, name: str, divide: bool = False) -> b.Pair:
        """The scale times, or divided by, a factor of the policy, in its format."""
        policy, value = self.policy, getattr(self.policy, name) or 1.0
        value = _host_format(policy, value) if policy.arithmetic >= Arithmetic.F32 else value
        mantissa, exponent = math.frexp(value)
        if mantissa == 0.5 and policy.arithmetic != Arithmetic.F64 and abs(exponent) < 512:
            powers = exponent - 1  # of a float: as a double it is far from any limit
            return _format(policy, b.moved(scale, -powers if divide else powers))
        return _format(policy, (b.divided if divide else b.times)(scale, b.double(value)))

    def held(self, guard: _Guard, newest: b.Pair) -> b.Pair:
        """The newest scale where the guard has its say: a step that it skips may leave the scale and its counts."""
        stays = guard.skips & jnp.bool_(not self.policy.guard_flags & Guard.SKIP_IS_GOOD)
        for name in (*_STEP_COUNTS, *_STEP_TOTALS):
            setattr(self, name, b.select(stays, self.before[name], getattr(self, name)))
        self.events = jnp.where(stays, b.u32(0), self.events) | guard.events
        return b.select(stays, self.old, newest)

    def event(self, when: jax.Array, event: Event) -> None:
        self.events = self.events | jnp.where(when, b.u32(event), b.u32(0))

    def clear(self, name: str, when: jax.Array) -> None:
        setattr(self, name, b.select(when, b.pair(0), getattr(self, name)))

    def limited(self, when: jax.Array, rule: int, old: b.Pair, moved: b.Pair, bound: b.Pair, floor: bool) -> b.Pair:
        """`moved`, or what the limit makes of a change to it."""
        reaches = ~b.less(bound, moved) if floor else ~b.less(moved, bound)
        event = Event.AT_FLOOR if floor else Event.AT_CEILING
        self.event(when & reaches, event | (Event.STOPPED if rule == LimitRule.STOP else 0))
        stays = jnp.bool_(rule in (LimitRule.REJECT, LimitRule.STOP))
        if rule == LimitRule.CLAMP_UNLESS_PAST:
            stays = b.less(old, bound) if floor else b.less(bound, old)
        return b.select(reaches, b.select(stays, old, bound), moved)

    def absorbed(self) -> jax.Array:
        policy = self.policy
        few = b.less(self.overflows_since_reset, b.pair(policy.hysteresis))
        if policy.overflow_tolerance == 0:
            return few
        share = b.divided(b.of_integer(self.overflows_since_reset), b.of_integer(self.steps_since_change))
        tolerance = b.double(policy.overflow_tolerance)
        below = b.less(share, tolerance)
        return few | (below if policy.quirks & Quirk.TOLERANCE_EXCLUSIVE else below | b.equal(share, tolerance))

    def due(self) -> jax.Array:
        policy = self.policy
        if policy.growth_interval == 0:
            return jnp.bool_(False)
        count = self.steps_since_change if policy.growth_rule == Growth.ALL_STEPS else self.good_steps
        lag, interval = b.pair(policy.growth_extra_steps), b.pair(policy.growth_interval)
        beyond, n = b.less(lag, count), b.subtract(count, lag)
        if policy.growth_rule == Growth.EXACT:
            return beyond & b.equal(n, interval)
        if policy.growth_rule == Growth.EVERY:
            return beyond & (b.remainder(n, policy.growth_interval) == 0)
        return beyond & ~b.less(n, interval)

    def scale(self) -> b.Pair:
        """The newest scale; counts and events are then those of the state after the step."""
        policy, overflow, scale = self.policy, self.overflow, self.old
        ceiling = b.double(_bound(policy, policy.max_scale, float("inf"), True))
        floor = b.double(_bound(policy, policy.min_scale, 0.0, False))
        self.total_overflows = b.increment(self.total_overflows, overflow)
        self.good_steps, self.steps_since_change = (
            b.increment(self.good_steps, True),
            b.increment(self.steps_since_change, True),
        )

        self.clear("good_steps", overflow)
        self.overflows_since_reset = b.increment(self.overflows_since_reset, overflow)
        absorbed = overflow & self.absorbed()
        self.event(absorbed, Event.ABSORBED)
        backs_off = overflow & ~absorbed
        divides = policy.backoff_factor == 0
        moved = self.changed(scale, "growth_factor" if divides else "backoff_factor", divides)
        self.clear("steps_since_change", backs_off)
        if policy.overflow_reset & OverflowReset.ON_BACKOFF:
            self.clear("overflows_since_reset", backs_off)
        moved = self.limited(backs_off, policy.floor_rule, scale, moved, floor, True)
        scale = b.select(backs_off, moved, scale)
        if policy.quirks & Quirk.OVERFLOW_IS_GOOD:
            self.good_steps, self.steps_since_change = (
                b.increment(self.good_steps, overflow),
                b.increment(self.steps_since_change, overflow),
            )
        if policy.overflow_reset & OverflowReset.ON_GOOD_STEP:
            self.clear("overflows_since_reset", ~overflow)

        grows = self.due()
        self.clear("steps_since_change", grows)
        if policy.growth_rule != Growth.EVERY:
            self.clear("good_steps", grows)
        if policy.overflow_reset & OverflowReset.ON_GROWTH:
            self.clear("overflows_since_reset", grows)
        moved = self.changed(scale, "growth_factor")
        moved = self.limited(grows, policy.ceiling_rule, scale, moved, ceiling, False)
        scale = b.select(grows, moved, scale)

        if policy.ceiling_rule == LimitRule.ENFORCE:
            scale = b.select(b.less(ceiling, scale), ceiling, scale)
        if policy.floor_rule == LimitRule.ENFORCE:
            scale = b.select(b.less(scale, floor), floor, scale)
        # It is in the policy's format, as the start, the limits and every change are.
        larger, smaller = b.less(self.old, scale), b.less(scale, self.old)
        self.event(larger, Event.GREW)
        self.event(smaller, Event.BACKED_OFF)
        self.total_growths, self.total_backoffs = (
            b.increment(self.total_growths, larger),
            b.increment(self.total_backoffs, smaller),
        )

        stalls = overflow & b.equal(scale, self.old)
        failed = b.select(stalls, b.increment(self.failed_backoffs, True), b.pair(0))
        self.failed_backoffs = b.select(absorbed, self.failed_backoffs, failed)
        self.event(~absorbed & stalls, Event.BACKOFF_FAILED)
        if policy.max_failed_backoffs:
            self.event(~b.less(self.failed_backoffs, b.pair(policy.max_failed_backoffs)), Event.STOPPED)
        return scale


def _set_skip(state: jax.Array, skips: jax.Array) -> jax.Array:
    """Says in all words of a state whether the last update skipped the step, as gsc_set_skip."""
    at = _offset(_structs.State, "guard_multiplier")
    for name, word in {"skip_f32": as_bits(skips), "skip": skips.astype(jnp.uint32)}.items():
        state = state.at[_offset(_structs.State, name)].set(word)
    return state.at[at : at + 2].set(jnp.where(skips, b.u32(0), state[at : at + 2]))


def update(state: jax.Array, report: jax.Array, *, policy: Policy) -> jax.Array:
    """As gsc_state_update."""
    kind, overflow = _structs.Report, _says_overflow(report)
    amax, is_number = _pair(kind, report, "amax"), _word(kind, report, "kind") == int(ReportKind.NUMBER)
    refused = ~_lawful(report) | (_word(kind, report, "status") != 0)
    refused |= ~(b.less(amax, b.double(float("inf"))) | b.is_zero(b.magnitude(amax)))
    number = _pair(kind, report, "number")
    squares = b.select(is_number, b.pair(0), _pair(kind, report, "sum_squares"))
    if by_norm(policy):
        refused |= ~overflow & ~is_number & (_word(kind, report, "measured") & _NORM == 0)
        size = b.magnitude(number)
        overflow |= _too_large(policy, b.select(is_number, b.times(size, size), squares))
    step = _Step(policy, state, overflow)
    newest = step.scale()
    guard = _Guard(policy, state, overflow, number, squares) if policy.guards else None
    if guard is not None:
        newest = step.held(guard, newest)
    generation = _pair(kind, report, "generation")
    step.event(~b.is_zero(generation) & ~b.equal(generation, b.read(state, _GENERATION)), Event.STALE)
    at = _offset(_structs.State, "next")
    new = jnp.stack(_made(newest, b.increment(b.read(state, at + _GENERATION), True)))
    in_force = state[at : at + FACTOR_WORDS] if policy.apply_delay else new
    counts = [word for name in _STEP_COUNTS for word in reversed(getattr(step, name))]
    totals = [word for name in _STEP_TOTALS for word in reversed(getattr(step, name))]
    first, last = _offset(_structs.State, "good_steps"), _offset(_structs.State, "skip_f32")
    moved = [in_force, new, state[at + FACTOR_WORDS : first], jnp.stack(counts), state[first + 8 : first + 10]]
    moved = jnp.concatenate([*moved, jnp.stack(totals), state[last:]])
    for name, word in (_unjudged() if guard is None else guard.words).items():
        at = _offset(_structs.State, name)
        moved = moved.at[at : at + 2].set(jnp.stack([word[1], word[0]]))
    told = {
        "events": jnp.where(refused, b.u32(Event.SKIPPED), step.events),
        "status": jnp.where(refused, b.u32(Status.ERROR_REPORT & 0xFFFFFFFF), b.u32(0)),
    }
    moved = jnp.where(refused, state, moved)
    for name, word in told.items():
        moved = moved.at[_offset(_structs.State, name)].set(word)
    return _set_skip(moved, refused | (step.events & int(Event.SKIPPED) != 0))


class _Guard:
    """What the guard of a policy says of a step's norm, or of a number: core/policy.h, whose branches become picks."""

    def __init__(self, policy: Policy, state: jax.Array, overflow: jax.Array, number: b.Pair, squares: b.Pair) -> None:
        before = {name: _pair(_structs.State, state, name) for name in _GUARD}
        flags, sheet, infinity = policy.guard_flags, b.Sheet(), float("inf")
        start = b.is_zero(before["guard_count"]) & b.is_zero(b.magnitude(before["guard_mean"]))
        mean = sheet.number(b.select(start, b.double(policy.guard_init_mean), before["guard_mean"]))
        variance = sheet.number(before["guard_variance"])
        count, run = (sheet.number(b.of_integer(before[name])) for name in ("guard_count", "guard_in_a_row"))
        number, squares = (b.select(overflow, b.pair(0), each) for each in (number, b.magnitude(squares)))
        x = sheet.number(number) + sheet.number(squares).root()  # one of them is 0

        threshold = sheet.number(policy.guard_norm or infinity)
        if policy.guard_ratio:
            limit = mean * policy.guard_ratio
            threshold = sheet.pick((sheet.number(0) < mean) * (limit < threshold), limit, threshold)
        if policy.guard_sigmas:
            limit = mean + variance.root() * policy.guard_sigmas
            known = sheet.number(1) if policy.guard_init_mean else sheet.number(0) < variance
            threshold = sheet.pick(known * (limit < threshold), limit, threshold)
        if policy.guard_warmup:
            threshold = sheet.pick(count < policy.guard_warmup, infinity, threshold)
        out = sheet.number(1) - (x < threshold) if flags & Guard.INCLUSIVE else threshold < x
        last = sheet.number(0)
        if policy.guard_max_in_a_row:
            last = out * (sheet.number(policy.guard_max_in_a_row - 1) < run + 1)
        stays = out if flags & Guard.STOP else out - last  # is skipped or clipped, not let through

        target = threshold
        if flags & Guard.CLIP_TO_MEAN:
            target = sheet.pick(mean < threshold, mean, threshold)
        elif flags & Guard.CLIP_PROGRESSIVE:
            excess = threshold - mean
            target = sheet.pick(mean < threshold, mean + excess * (excess / (x - mean)), threshold)
        share, clips = sheet.number(0), sheet.number(0)
        if flags & Guard.CLIP:
            share = target / x
            share = sheet.pick(sheet.number(1) < share, 1, share)  # by a rounding
            clips = stays * ((sheet.number(0) < target) * (sheet.number(0) < share))
        sample = x if policy.guard_sample == GuardSample.AS_IS else sheet.pick(stays, target, x)

        number = count + 1
        weight = sheet.number(1) / number
        if policy.guard_decay:
            even = sheet.number(1) - (sheet.number(policy.guard_warmup) < number)
            if not policy.guard_init_mean:
                even = sheet.pick(sheet.number(1) < number, even, 1)
            weight = sheet.pick(even, weight, 1.0 - policy.guard_decay)
        rest, distance = sheet.number(1) - weight, sample - mean
        step = weight * distance
        moved = mean + step
        spread = rest * (variance + distance * step)
        if flags & Guard.VARIANCE_AFTER_MEAN and policy.guard_decay:
            after = sample - moved
            spread = sheet.pick(even, spread, rest * variance + weight * (after * after))

        found = sheet.of(mean, threshold, out, last, stays, share, clips, moved, spread, x)
        mean, threshold, share, moved, spread, value = (found[i] for i in (0, 1, 5, 7, 8, 9))
        out, last, stays, clips = (~b.is_zero(found[i]) for i in (2, 3, 4, 6))
        skips = stays & ~clips & ~overflow
        enters = ~stays | jnp.bool_(policy.guard_sample != GuardSample.NONE)
        after = {
            "guard_mean": b.select(enters, moved, mean),
            "guard_variance": b.select(enters, spread, before["guard_variance"]),
            "guard_count": b.increment(before["guard_count"], enters),
            "guard_in_a_row": b.select(out, b.increment(before["guard_in_a_row"], True), b.pair(0)),
            "total_guard_skips": b.increment(before["total_guard_skips"], skips),
            "guard_multiplier": b.select(clips, share, b.double(1.0)),
            "guard_threshold": b.select(b.less(b.magnitude(threshold), b.double(infinity)), threshold, b.pair(0)),
            "guard_value": value,
        }
        before |= _unjudged()
        self.words = {name: b.select(overflow, before[name], after[name]) for name in _GUARD}
        self.skips, self.events = skips, b.u32(0)
        told = {Event.OUTLIER: out, Event.CLIPPED: clips, Event.SKIPPED: skips, Event.STOPPED: stays & last}
        for event, when in told.items():
            self.events = self.events | jnp.where(when & ~overflow, b.u32(event), b.u32(0))


def guarded(state: jax.Array) -> jax.Array:
    """As gsc_factor_clip_outlier, of a factor of 1."""
    clips = _word(_structs.State, state, "events") & int(Event.CLIPPED) != 0
    inverse = b.select(clips, _pair(_structs.State, state, "guard_multiplier"), b.double(1.0))
    return jnp.stack([jnp.asarray(w, jnp.uint32) for w in _factor(b.double(1.0), inverse, b.pair(0))])


_OF_STEP = int(Event.SKIPPED | Event.STOPPED | Event.OUTLIER | Event.CLIPPED)


def joined(state: jax.Array, other: jax.Array) -> jax.Array:
    """As gsc_state_combine_decisions."""
    kind = _structs.State
    ours, theirs = (_word(kind, words, "events") for words in (state, other))
    multipliers = [_pair(kind, words, "guard_multiplier") for words in (state, other)]
    events, clipped = ours | theirs & _OF_STEP, int(Event.CLIPPED)
    skips = events & int(Event.SKIPPED) != 0
    takes = (theirs & clipped != 0) & ((ours & clipped == 0) | ~b.less(*multipliers))
    multiplier = b.select(takes, multipliers[1], multipliers[0])
    status = _word(kind, state, "status")
    told = {
        "events": jnp.where(skips, events & ~np.uint32(clipped), events),
        "status": jnp.where(status != 0, status, _word(kind, other, "status")),
    }
    for name, word in told.items():
        state = state.at[_offset(kind, name)].set(word)
    at = _offset(kind, "guard_multiplier")
    return _set_skip(state.at[at : at + 2].set(jnp.stack([multiplier[1], multiplier[0]])), skips)


def _unjudged() -> dict[str, b.Pair]:
    """Not a constant: an import makes no array, as jax.distributed.initialize() has to come before the first one."""
    return {"guard_multiplier": b.double(1.0), "guard_threshold": b.pair(0), "guard_value": b.pair(0)}


_GUARD = (
    "guard_mean",
    "guard_variance",
    "guard_count",
    "guard_in_a_row",
    "total_guard_skips",
    "guard_multiplier",
    "guard_threshold",
    "guard_value",
)
_STEP_COUNTS = ("good_steps", "steps_since_change", "overflows_since_reset", "failed_backoffs")
_STEP_TOTALS = ("total_overflows", "total_growths", "total_backoffs")
