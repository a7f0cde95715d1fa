# SPDX-License-Identifier: MIT
"""The library's calls on structs without a compiled handler: XLA's program calls the host, which calls the library.

An error becomes the status of the report or state, with `overflow` or `skip` set, as on a CUDA device. An exception
would end the program of one device while the other devices wait for it.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _gradscaler as c
from .. import _structs
from .._policy import Policy
from .._structs import ExecFlag, Report
from ._words import FACTOR, REPORT, STATE, of_struct
from ._xla import Call, policy_of

PLATFORMS = ("cpu", "gpu", "cuda", "rocm", "tpu")  # JAX can call the host from these
# JAX copies an operand of 100 KB in one of XLA's threads. If all threads wait for this call, it never ends.
_WORDS_OF_AN_OPERAND = 16384
_ON_HOST = (None, 0, None, ExecFlag.WRITE_FAILURES)


def ask(answer: Callable, shapes: Sequence[tuple[int, ...]], *operands: jax.Array) -> list[jax.Array]:
    """Returns answer(*operands), computed on the host with arrays of uint32; under vmap, for each member of a batch."""
    if hasattr(jax.sharding, "get_abstract_mesh"):
        here = jax.sharding.get_abstract_mesh()
        manual = getattr(here, "manual_axes", ())
        if manual and set(manual) != set(here.axis_names):
            raise NotImplementedError(
                "gradscaler without its compiled handler calls the host, which JAX does only in a shard_map over all "
                f"axes of its mesh: {here.axis_names}, not {tuple(manual)}"
            )
    sizes = [operand.size for operand in operands]
    words = jnp.concatenate([jnp.asarray(operand, jnp.uint32).reshape(-1) for operand in operands])

    def on_host(*pieces: Any) -> list[np.ndarray]:
        return c.with_subnormals(functools.partial(answers, *pieces))

    def answers(*pieces: Any) -> list[np.ndarray]:
        words = np.concatenate([np.asarray(piece) for piece in pieces], axis=-1)
        batch = words.shape[:-1]
        words = words.reshape(math.prod(batch), -1)
        results = [np.empty((len(words), *shape), np.uint32) for shape in shapes]
        for i, one in enumerate(words):
            given = np.split(one, np.cumsum(sizes)[:-1])
            given = [part.reshape(operand) for part, operand in zip(given, operand_shapes, strict=True)]
            for result, found in zip(results, answer(*given), strict=True):
                result[i] = found
        return [result.reshape(*batch, *shape) for result, shape in zip(results, shapes, strict=True)]

    operand_shapes = [operand.shape for operand in operands]
    pieces = [words[i : i + _WORDS_OF_AN_OPERAND] for i in range(0, words.size, _WORDS_OF_AN_OPERAND)]
    kinds = [jax.ShapeDtypeStruct(shape, jnp.uint32) for shape in shapes]
    return jax.pure_callback(on_host, kinds, *pieces, vmap_method="broadcast_all")


# ---- structs ----


def update(state: jax.Array, report: jax.Array, *, policy: Policy) -> jax.Array:
    return ask(functools.partial(_update, policy), [(STATE,)], state, report)[0]


def set_rank(report: jax.Array, state: jax.Array, *, policy: Policy) -> jax.Array:
    """Sets rank 0 and a digest of policy and state; the caller then writes the rank."""
    return ask(functools.partial(_set_rank, policy), [(REPORT,)], report, state)[0]


def merge(reports: jax.Array, *, policy: Policy | None = None, addends: bool = False) -> jax.Array:
    kind = c.GSC_MERGE_ADDENDS if addends else c.GSC_MERGE_SHARDS
    if reports.shape[0] == 0:
        return jnp.asarray(_merge(policy, kind, np.empty((0, REPORT), np.uint32))[0])
    return ask(functools.partial(_merge, policy, kind), [(REPORT,)], reports)[0]


def clip(factor: jax.Array, report: jax.Array, *, max_norm: float) -> jax.Array:
    """Returns a factor that clips; zeros, which every call refuses, if the norm or the factor cannot be used."""
    return ask(functools.partial(_clip, max_norm), [(FACTOR,)], factor[:FACTOR], report)[0]


def combine(state: jax.Array, other: jax.Array) -> jax.Array:
    return ask(functools.partial(_written, STATE, c.gsc_state_combine_decisions), [(STATE,)], state, other)[0]


def _written(size: int, call: Callable, *arguments: Any) -> tuple:
    """Returns the words that a call writes; an error is in them, as on a device."""
    words = np.zeros(size, np.uint32)
    with contextlib.suppress(c.Error):
        call(_ON_HOST, *arguments, words)
    return (words,)


def _update(policy: Policy, state: Any, report: Any) -> tuple:
    return _written(STATE, c.gsc_state_update, policy, state, report)


def _set_rank(policy: Policy, report: Any, state: Any) -> tuple:
    return _written(REPORT, c.gsc_report_set_rank, report, policy, state, 0)


def _merge(policy: Policy | None, kind: int, reports: Any) -> tuple:
    return _written(REPORT, c.gsc_report_merge, reports, kind, policy)


def _clip(max_norm: float, factor: Any, report: Any) -> tuple:
    return _written(FACTOR, c.gsc_factor_clip_grad_norm, factor, report, max_norm)


def measured_by(factor: Any, options: dict[str, Any] | None = None) -> np.ndarray:
    """Returns the report of no gradients: of a failure if the factor is unusable."""
    return _written(REPORT, c.gsc_measure, factor, [], options)[0]


# ---- reports of gradients ----

# jax.numpy's measurements of one tensor. `squares` is one float64 sum or three float32 sums: small, medium and large
# elements, each multiplied by a power of two. `rank` and `last_rank` are 0 if one device has the whole tensor, else the
# first and the last device with a bad element, plus 1.
_COUNTS = ("bad", "nan", "inf", "first", "clamped", "rank", "last_rank")
ROW = np.dtype([*((name, "<u4") for name in _COUNTS), ("amax", "<u4", 2), ("squares", "<u4", 4)])
ROW_WORDS = ROW.itemsize // 4
POWERS = (70, 0, -86)
_LOSS = Report.loss.offset // 4
_LOSSES = (None, np.zeros(1, np.float32), np.full(1, np.inf, np.float32))  # a loss of each kind, by its Loss


@functools.lru_cache(maxsize=256)
def measured(policy: bytes | None, want: int) -> int:
    """Returns the union of `want` and the measurements that the policy needs."""
    report = Report()
    policy = None if policy is None else Policy.from_buffer_copy(policy)
    c.gsc_measure(None, None, [], {"want": want, "policy": policy}, report)
    return report.measured


def reported(
    call: Call,
    rows: jax.Array,
    factor: jax.Array,
    state: jax.Array | None,
    loss: jax.Array,
    want: int,
    sizes: Sequence[int],
    wide: Sequence[bool],
) -> list[jax.Array | None]:
    """Returns (report, reports of each tensor, factor that clips, new state) of rows uint32[tensors, ROW_WORDS].

    All but the report are None without per_tensor, max_norm and state. `loss` is a Loss.
    """
    policy = None if call.policy is None else policy_of(call.policy)
    options, wide = {"want": want, "policy": policy}, np.array(wide, bool)
    sizes = np.array(sizes, np.int64)

    def answer(rows: Any, factor: Any, loss: Any, *states: Any) -> tuple:
        judged = options | {"loss": _LOSSES[int(loss)]}
        report, each = _reported(rows.reshape(-1).view(ROW), factor, judged, sizes, wide)
        results = [report]
        if call.per_tensor:
            results.append(each)
        if call.max_norm is not None:
            clipped = _clip(call.max_norm, factor, report)[0]
            results.append(clipped if clipped.any() else factor)  # zeros after an overflow: no clip
        return (*results, *(_update(policy, state, report)[0] for state in states))

    shapes = {"report": (REPORT,), "each": (rows.shape[0], REPORT), "clipped": (FACTOR,), "state": (STATE,)}
    asked = {"report": True, "each": call.per_tensor, "clipped": call.max_norm is not None, "state": state is not None}
    operands = [rows, factor[:FACTOR], loss, *([] if state is None else [state])]
    found = iter(ask(answer, [shape for name, shape in shapes.items() if asked[name]], *operands))
    return [next(found) if asked[name] else None for name in shapes]


def _reported(rows: Any, factor: Any, options: dict[str, Any], sizes: Any, wide: Any) -> tuple:
    """Returns the merged report, and the report of each tensor."""
    words = measured_by(factor, options)
    blank = Report.from_buffer_copy(words)
    if blank.status or len(rows) == 0:
        return words, np.tile(words, (len(rows), 1))
    bad, is_merged = rows["bad"] != 0, rows["rank"].any()
    reports = np.zeros(len(rows), np.dtype(_structs.Report))
    for name in ("kind", "measured", "generation"):
        reports[name] = getattr(blank, name)
    reports["elements"], reports["clamped"], reports["first_element"] = sizes, rows["clamped"], rows["first"]
    reports["nan_count"], reports["inf_count"] = rows["nan"], rows["inf"]
    reports["overflow"] = reports["found_inf"] = bad
    for name, ranks in ("first", "rank"), ("last", "last_rank"):
        where = np.where(bad, [np.arange(len(rows)), rows[ranks]], 0)
        reports[f"{name}_tensor"], reports[f"{name}_rank_plus_1"] = where
    with np.errstate(all="ignore"):  # each row is read as float32 and as float64; only one of them is meant
        doubles, floats = (rows["squares"].view(kind).astype(np.float64) for kind in ("<f8", "<f4"))
        parts = [floats[:, i] * 2.0 ** (-2 * power) for i, power in enumerate(POWERS)]
        reports["sum_squares"] = np.where(wide, doubles[:, 0], parts[0] + parts[1] + parts[2])
        amax = (rows["amax"].view(kind)[:, 0].astype(np.float64) for kind in ("<f8", "<f4"))
        reports["amax"] = np.where(wide, *amax)
    words = reports.view(np.uint32).reshape(-1, REPORT)
    merge = functools.partial(_merge, options["policy"], c.GSC_MERGE_SHARDS)
    # In rank order, as devices with the handler do.
    order = np.argsort(np.where(bad, rows["rank"], 2**32), kind="stable") if is_merged else np.arange(len(rows))
    whole = words[order]
    whole[0, _LOSS] = blank.loss
    total = Report.from_buffer_copy(merge(whole)[0])
    if not is_merged:
        total.kind = total.kind and blank.kind
        return of_struct(total), words
    if total.kind and bad.any():
        last = max(np.flatnonzero(bad), key=lambda i: (rows["last_rank"][i], i))
        total.last_tensor, total.last_rank_plus_1 = last, rows["last_rank"][last]
    return of_struct(total), np.stack([merge(one[None])[0] for one in words])
