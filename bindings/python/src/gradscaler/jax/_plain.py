# SPDX-License-Identifier: MIT
"""The library's calls on gradients in jax.numpy, for platforms without its compiled handler.

Arguments and results are as in `_xla`. Gradients are bit-exact with C, except that XLA flushes subnormal numbers; norms
are summed in another order. The measurements of each tensor go to the host, where the library makes the report and the
new state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import _structs
from .._structs import Loss, ReportKind, Want
from . import _host
from . import _words as w
from ._xla import Call, Result


def why_not(want: int = 0, histogram: bool = False) -> str | None:
    """Returns what only the compiled handler can do of this, or None."""
    if want & Want.UNDERFLOW:
        return "Want.UNDERFLOW counts subnormal numbers, which XLA flushes"
    return "a histogram is of the handler's pass" if histogram else None


def tensors(
    found_of: Callable,
    call: Call,
    leaves: Sequence[jax.Array],
    factor: jax.Array | None,
    out: Sequence[jax.Array] | None,
    state: jax.Array | None,
    loss: jax.Array | None,
) -> Result:
    """Does what `_xla.tensors` does, in jax.numpy; `factor` can be a whole state, and None is 1.

    `found_of(rows_of, judged, wide, leaves, factor)` calls rows_of(leaves, factor), on the part of each device.
    """
    if factor is None:
        factor = jnp.asarray(w.of_struct(_structs.Factor(1, 1, 1, 1)))
    max_norm, want = call.max_norm, call.want
    if max_norm is not None:
        want |= Want.NORM
    want = _host.measured(call.policy, int(want))
    if call.operation == "measure" or max_norm is not None:
        judged = [leaf.dtype for leaf in leaves]
    else:
        judged = _targets(call, leaves, out)

    def rows_of(leaves: Sequence[jax.Array], factor: jax.Array) -> jax.Array:
        return _rows(leaves, _multiplier(call, factor), judged, want, None if max_norm else call.clip_value)

    wide = [_is_wide(leaf) for leaf in leaves]
    rows = found_of(rows_of, judged, wide, leaves, factor)
    sizes = [leaf.size for leaf in leaves]
    report, each, clipped, new = _host.reported(call, rows, factor, state, _judged(loss), want, sizes, wide)
    good = w.word(_structs.Report, report, "overflow") == 0
    given = written(call, leaves, factor if clipped is None else clipped, out, good)
    return Result(given, report, each, None, new)


def _judged(loss: jax.Array | None) -> jax.Array:
    """Returns the Loss of a loss, as uint32."""
    if loss is None or loss.size == 0:
        return jnp.uint32(Loss.UNKNOWN)
    return jnp.where(jnp.all(jnp.isfinite(loss)), jnp.uint32(Loss.FINITE), jnp.uint32(Loss.NOT_FINITE))


def overflow(leaves: Sequence[jax.Array]) -> jax.Array:
    """Returns a report that only says whether a leaf has an Inf or NaN."""
    bad = jnp.any(jnp.stack([jnp.any(_is_bad(leaf)) for leaf in leaves]))
    return w.report({"overflow": bad, "found_inf": w.as_bits(bad), "kind": np.uint32(ReportKind.TENSORS)})


def _targets(call: Call, leaves: Sequence[jax.Array], out: Sequence[jax.Array] | None) -> Sequence[Any]:
    """Returns the dtypes of the results."""
    return call.dtypes or [array.dtype for array in (leaves if out is None else out)]


def written(
    call: Call, leaves: Sequence[jax.Array], factor: jax.Array, out: Sequence[jax.Array] | None, good: jax.Array
) -> list[jax.Array]:
    """Returns the arrays that the call writes; if not `good`, sums do not change. It can be differentiated."""
    if call.operation == "measure":
        return []
    number, targets = _multiplier(call, factor), _targets(call, leaves, out)
    products = [number(leaf) for leaf in leaves]
    if call.clip_value is not None:
        products = [_limited(x, call.clip_value, dtype)[0] for x, dtype in zip(products, targets, strict=True)]
    if call.operation == "unscale_accumulate":
        return [jnp.where(good, _added(o, product), o) for o, product in zip(out, products, strict=True)]
    return [product.astype(dtype) for product, dtype in zip(products, targets, strict=True)]


def _multiplier(call: Call, factor: jax.Array) -> w.Multiplier:
    return w.multiplier(w.pair(factor, w.SCALE if call.operation == "scale" else w.INVERSE), w.usable(factor))


def _clip_limit(clip_value: float, dtype: Any) -> float:
    """Returns the largest value of `dtype` that is not above `clip_value`."""
    most = min(clip_value, float(jnp.finfo(dtype).max))
    nearest = np.asarray(most, dtype)
    bound = float(nearest if float(nearest) <= most else np.nextafter(nearest, np.zeros_like(nearest)))
    if bound == 0:
        raise ValueError(f"clip_value={clip_value!r}: nothing but 0 would be left of {np.dtype(dtype).name}")
    return bound


def _limited(product: jax.Array, clip_value: float, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the product as `dtype` with all elements except NaN limited, and which elements exceeded the limit."""
    if jnp.iscomplexobj(product):
        parts = [_limited(part, clip_value, jnp.finfo(dtype).dtype) for part in _parts(product)]
        (real, real_beyond), (imag, imag_beyond) = parts
        return lax.complex(real, imag), real_beyond | imag_beyond
    wide = product.astype(dtype) if dtype == jnp.float64 else product
    bound = jnp.asarray(_clip_limit(clip_value, dtype), wide.dtype)
    return jnp.where(jnp.isnan(wide), wide, jnp.clip(wide, -bound, bound)).astype(dtype), jnp.abs(wide) > bound


def _added(out: jax.Array, product: jax.Array) -> jax.Array:
    wide = jnp.promote_types(out.dtype, product.dtype)
    return (out.astype(wide) + product.astype(wide)).astype(out.dtype)


# ---- measurements ----


def _parts(x: jax.Array) -> list[jax.Array]:
    return [x.real, x.imag] if jnp.iscomplexobj(x) else [x]


def _sum(x: jax.Array) -> jax.Array:
    """Returns the sum of many numbers, in blocks of 128: as exact as float32 allows."""
    x = x.reshape(-1)
    while x.size > 128:
        whole = x.size // 128 * 128
        blocks = jnp.sum(x[:whole].reshape(-1, 128), axis=1)
        x = blocks if whole == x.size else jnp.concatenate([blocks, x[whole:]])
    return jnp.sum(x)


# Squares of float32 leave its range: small and large elements are summed separately, scaled towards 1 by powers of two.
_SMALL, _LARGE = 2.0**-50, 2.0**40


def _words(values: Sequence[jax.Array], count: int) -> jax.Array:
    """Returns float32 numbers, or one float64, as `count` words."""
    words = [lax.bitcast_convert_type(value, jnp.uint32).reshape(-1) for value in values]
    return jnp.concatenate([*words, jnp.zeros(count - sum(word.size for word in words), jnp.uint32)])


def _squares(product: jax.Array) -> jax.Array:
    """Returns the sums of squares of finite elements, as in a row of _host.ROW."""
    sums = [jnp.zeros((), jnp.finfo(product.dtype).dtype)] * (1 if _is_wide(product) else 3)
    for part in _parts(product):
        part = jnp.where(jnp.isfinite(part), part, 0)
        if part.dtype == jnp.float64:
            sums[0] = sums[0] + jnp.sum(part * part)
            continue
        size = jnp.abs(part)
        masks = size < _SMALL, (size >= _SMALL) & (size <= _LARGE), size > _LARGE
        for k, (inside, power) in enumerate(zip(masks, _host.POWERS, strict=True)):
            # Not jnp.where(inside, part * 2^power, 0): XLA would factor out the square of the power, which is infinite.
            scaled = part * jnp.where(inside, jnp.float32(2.0**power), 0)
            sums[k] = sums[k] + _sum(scaled * scaled)
    return _words(sums, 4)


def _is_wide(product: jax.Array) -> bool:
    return jnp.finfo(product.dtype).dtype == jnp.float64


def _amax(product: jax.Array) -> jax.Array:
    finite = [jnp.max(jnp.where(jnp.isfinite(x), jnp.abs(x), 0), initial=0) for x in _parts(product)]
    return _words([jnp.max(jnp.stack(finite))], 2)


def _is_bad(x: jax.Array) -> jax.Array:
    bad = [~jnp.isfinite(part) for part in _parts(x)]
    return bad[0] | bad[-1]


def _located(judged: Sequence[jax.Array], probes: Sequence[jax.Array]) -> jax.Array:
    """Returns uint32[n, 3]: for each tensor the count of NaN, the count of other bad elements, the first bad one."""
    rows = []
    for result, probe in zip(judged, probes, strict=True):
        bad, nan = _is_bad(result).reshape(-1), jnp.isnan(probe).reshape(-1)
        if jnp.iscomplexobj(probe):  # an element with a NaN in either part counts as NaN
            nan = (jnp.isnan(probe.real) | jnp.isnan(probe.imag)).reshape(-1)
        nan = nan & bad
        first = jnp.min(jnp.where(bad, jnp.arange(bad.size, dtype=jnp.uint32), bad.size), initial=bad.size)
        nans, all_bad = jnp.sum(nan, dtype=jnp.uint32), jnp.sum(bad, dtype=jnp.uint32)
        rows.append(jnp.stack([nans, all_bad - nans, jnp.where(all_bad > 0, first, 0).astype(jnp.uint32)]))
    return jnp.stack(rows)


def _has_infinity(dtype: Any) -> bool:
    return bool(np.isinf(np.asarray(np.inf, dtype).astype(np.complex64)))


def _rows(leaves: Any, number: w.Multiplier, dtypes: Any, want: int, clip_value: float | None) -> jax.Array:
    """Returns uint32[n, ROW_WORDS]: a row of _host.ROW for each tensor."""
    if not leaves:
        return jnp.zeros((0, _host.ROW_WORDS), jnp.uint32)
    products = [number(leaf) for leaf in leaves]
    judged = products
    if clip_value is None:
        judged = [product.astype(dtype) for product, dtype in zip(products, dtypes, strict=True)]
    # Bad elements are located only if there are any: the step is then skipped, so there is time.
    bad = jnp.stack([jnp.any(_is_bad(result)) for result in judged])
    probes = leaves if any(not _has_infinity(result.dtype) for result in judged) else judged
    none = w.varying(jnp.zeros((len(leaves), 3), jnp.uint32), bad)
    counts = lax.cond(jnp.any(bad), lambda: _located(judged, probes), lambda: none)
    rows = []
    for i, (product, dtype) in enumerate(zip(products, dtypes, strict=True)):
        clamped = jnp.uint32(0)
        if clip_value is not None:
            clamped = jnp.sum(_limited(product, clip_value, dtype)[1], dtype=jnp.uint32)
        found = [bad[i].astype(jnp.uint32), *counts[i], clamped, jnp.uint32(0), jnp.uint32(0)]
        amax = _amax(product) if want & Want.AMAX else jnp.zeros(2, jnp.uint32)
        squares = _squares(product) if want & Want.NORM else jnp.zeros(4, jnp.uint32)
        rows.append(jnp.concatenate([jnp.stack(found), amax, squares]))
    return jnp.stack(rows)


def over_devices(rows: jax.Array, wide: Sequence[bool], axes: Any) -> jax.Array:
    """Merges the rows of all devices of a mesh; the ranks of a row without a bad element are 1 and 0."""
    at = {name: offset // 4 for name, (_, offset) in _host.ROW.fields.items()}
    bad, rank = rows[:, at["bad"]] != 0, lax.axis_index(axes).astype(jnp.uint32) + 1
    first = lax.pmin(jnp.where(bad, rank, np.uint32(2**32 - 1)), axes)
    rows = rows.at[:, at["first"]].set(jnp.where(rank == first, rows[:, at["first"]], 0))
    counts = lax.psum(rows[:, : at["amax"]], axes)
    ranks = jnp.where(counts[:, at["bad"]] != 0, first, 1)
    counts = counts.at[:, at["rank"]].set(ranks).at[:, at["bad"]].min(1)
    counts = counts.at[:, at["last_rank"]].set(lax.pmax(jnp.where(bad, rank, 0), axes))

    def numbers(kind: Any) -> jax.Array:
        words = rows[:, at["amax"] :]
        words = words.reshape(len(rows), -1, 2) if kind == jnp.float64 else words
        found = lax.bitcast_convert_type(words, kind)
        squares = at["squares"] - at["amax"] if kind == jnp.float32 else 1
        found = [lax.pmax(found[:, :squares], axes), lax.psum(found[:, squares:], axes)]
        return lax.bitcast_convert_type(jnp.concatenate(found, axis=1), jnp.uint32).reshape(len(rows), -1)

    found = numbers(jnp.float32)
    if any(wide):
        found = jnp.where(np.array(wide)[:, None], numbers(jnp.float64), found)
    return jnp.concatenate([counts, found], axis=1)
