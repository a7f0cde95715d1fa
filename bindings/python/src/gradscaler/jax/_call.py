# SPDX-License-Identifier: MIT
"""Runs a call by the compiled handler if it serves the platform, else by jax.numpy and the host."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.backend import backends
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import _structs
from .._report import Report
from .._structs import Want
from . import _host, _plain, _xla
from . import _words as w
from ._partition import Partition
from ._xla import TENSORS, Call, policy_of

SCOPE = "gradscaler."  # begins the names of our calls in a jaxpr and in a profile


class Backend(str):
    """The code that does the work: "handler" or "jnp".

    platform: "cpu", "gpu", ...
    why: a sentence on why the handler is not used, or ""
    """

    platform: str
    why: str

    def __new__(cls, name: str, platform: str, why: str) -> Backend:
        self = super().__new__(cls, name)
        self.platform, self.why = platform, why
        return self

    def __repr__(self) -> str:
        return f"Backend({str(self)!r}, platform={self.platform!r}, why={self.why!r})"


def backend(platform: str | None = None) -> Backend:
    """Returns the code that does the work on a platform, by default JAX's default, and why.

    >>> gradscaler.jax.backend()
    Backend('handler', platform='cpu', why='')

    handler: the library's compiled code runs inside the program as a custom call and never calls Python
    jnp: jax.numpy multiplies and measures, and jax.pure_callback calls the library on the host once for each `step`,
        `unscale`, `update` or `combine_decisions`; `all_finite` never calls it

    Differences with "jnp":

    - From the same report every preset and guard decides as with the handler. Gradients have the same bits, except that
      XLA flushes subnormal numbers to zero. Norms and clip coefficients agree to 1e-6 of their value.
    - On a CPU of two cores an update takes 140 us instead of 10 us, a step of 8 gradients of 1,000 numbers 370 us
      instead of 22 us.
    - Devices that share gradients exchange 48 bytes for each gradient, not one report.
    - A scale of 0 or infinity sets `report.status` and `overflow`; in the handler on the CPU it raises.
    - Want.UNDERFLOW, histograms, shard_map over only some axes of a mesh, and platforms other than cpu, cuda, rocm and
      tpu raise NotImplementedError. JAX refuses to serialize such a program, and to lower it for several platforms.

    A program is traced for the platforms of this process. Lowered for another one on a machine with only a CPU, it has
    the CPU's custom call, which does not run there. jax.export serializes a custom call only if
    `jax.export.DisabledSafetyCheck.custom_call("gradscaler")` is among its `disabled_checks`; the process that loads
    the program must have imported gradscaler.jax and made one call.
    """
    platform = platform or jax.default_backend()
    why = _xla.why_not(platform)
    return Backend("jnp" if why else "handler", platform, why or "")


@functools.cache
def _warn_once(platform: str, why: str) -> None:
    warnings.warn(
        f"gradscaler.jax computes with jax.numpy on {platform!r}, and calls the host for reports and steps, which is "
        f"right and slower than its compiled handler: {why}",
        stacklevel=4,
    )


def run(call: Call, *operands: Any) -> Any:
    """Runs a call: traced into the caller's program, or compiled by itself."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(operands)):
        call = dataclasses.replace(call, in_place=True)
        with jax.named_scope(SCOPE + call.operation):
            return _differentiable(call, *operands) if call.operation in TENSORS else _run(call, *operands)
    return _compiled(call, _xla.why_not(jax.default_backend()), *operands)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(call: Call, why_not: str | None, *operands: Any) -> Any:
    return _run(call, *operands)


def _run(call: Call, *operands: Any) -> Any:
    platform = jax.default_backend()
    here = _xla.why_not(platform)
    lacks = _plain.why_not(call.want, call.histogram)
    if here is not None and lacks:
        raise NotImplementedError(f"{lacks}; on {platform!r} there is no compiled handler: {here}")
    if here is not None and platform not in _host.PLATFORMS:
        raise NotImplementedError(
            f"on {platform!r} there is no compiled handler, and JAX does not call the host, which gradscaler does "
            f"instead: {here}"
        )
    if here is not None:
        _warn_once(platform, here)
    handled = functools.partial(_by_handler, call)
    if here is None and set(backends()) == {"cpu"}:  # the only platform: _in_jnp need not be traced
        return handled(platform, *operands)
    return _xla.choose(handled, None if lacks else functools.partial(_in_jnp, call), *operands)


def _by_handler(call: Call, platform: str, *operands: Any) -> Any:
    do = functools.partial(_handled, platform)
    if call.operation not in TENSORS:
        return do(call, *operands)
    whole = PartitionSpec()
    others = whole, whole if call.per_tensor else None, None, None if operands[3] is None else whole
    part = Partition(functools.partial(_partition, functools.partial(_part, do, call)), f"{platform} {call!r}")
    return _spread(call, functools.partial(do, call), part, others, *operands)


def _spread(call: Call, alone: Callable, partition: Partition, others: Sequence[Any], *operands: Any) -> Any:
    """Returns alone(*operands), a list of gradients and other results, or what `partition` makes of it for each device.

    Each device works on its part if the program spreads gradients over devices, except for histograms. The other
    results are the same on all devices and have the specs `others`.
    """
    if jax.device_count() == 1 or call.histogram or not call.names or not hasattr(jax.sharding, "get_abstract_mesh"):
        return alone(*operands)
    here = jax.sharding.get_abstract_mesh()
    if here.manual_axes:
        return alone(*operands)
    spread = custom_partitioning(jax.jit(alone))  # jit carries traced values that `alone` closes over
    spread.def_partition(partition, lambda *known: partition(*known)[2], sharding_rule=functools.partial(_rule, call))
    spread = jax.custom_batching.sequential_vmap(spread)
    if not getattr(here, "explicit_axes", ()):
        return spread(*operands)
    written = [] if call.operation == "measure" else [jax.typeof(leaf).sharding.spec for leaf in _given(*operands)]
    return jax.sharding.auto_axes(spread, axes=here.explicit_axes, out_sharding=(written, *others))(*operands)


def _given(leaves: Any, factor: Any, out: Any = None, *_: Any) -> Any:
    """Returns the arrays that give the results their sharding."""
    return out or leaves


def _rule(call: Call, mesh: Any, operands: Sequence[Any], results: Sequence[Any]) -> str:
    """Returns the sharding rule: a result is spread as its gradient; structs are unrelated to gradients."""
    count = len(call.names)
    sums = range(count + 1, 2 * count + 1) if call.operation == "unscale_accumulate" else ()

    def dimensions(kind: Any, name: str) -> str:
        return " ".join(f"{name}_{k}" for k in range(len(kind.shape)))

    def given(i: int) -> str:
        return f"g{i}" if i < count else f"g{i - count - 1}" if i in sums else f"s{i}"

    def made(i: int) -> str:
        return f"g{i}" if i < count and call.operation != "measure" else f"r{i}"

    sides = (operands, given), (results, made)
    return "->".join(",".join(dimensions(kind, name(i)) for i, kind in enumerate(kinds)) for kinds, name in sides)


def _partition(part: Callable, mesh: Any, operands: Any, results: Any) -> Any:
    """Returns the function for each device's part, and shardings. Gathers dimensions that cannot be divided evenly.

    part(axes, spread, *operands) makes the results of a device.
    """
    named = not mesh.empty
    if not named:  # everything is gathered
        mesh = Mesh(sorted(operands[0][0].sharding.device_set, key=lambda device: device.id), "device")
    axes = [_even(mesh, leaf) if named else [()] * len(leaf.shape) for leaf in operands[0]]
    whole = NamedSharding(mesh, PartitionSpec())
    placed = [NamedSharding(mesh, PartitionSpec(*each)) for each in axes]

    def shardings(tree: Any) -> Any:
        return placed[: len(tree)] if isinstance(tree, list) else None if tree is None else whole

    return (
        mesh,
        functools.partial(part, mesh.axis_names, axes),
        tuple(map(shardings, results)),
        tuple(map(shardings, operands)),
    )


def _even(mesh: Any, leaf: Any) -> list[tuple[str, ...]]:
    """Returns the axes of the mesh over which each dimension is spread, empty if they do not divide it evenly."""
    spread = []
    for size, axes in zip(leaf.shape, leaf.sharding.spec, strict=True):
        axes = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
        spread.append(axes if size % math.prod(mesh.shape[axis] for axis in axes) == 0 else ())
    return spread


def _counts(axes: Sequence[str], spread: Sequence[Any]) -> jax.Array:
    """Returns a column: whether each gradient counts on this device. If several devices have copies, one counts."""
    first = {axis: lax.axis_index(axis) == 0 for axis in axes}
    counts = []
    for dimensions in spread:
        used = {axis for each in dimensions for axis in each}
        others = (first[axis] for axis in axes if axis not in used)
        counts.append(functools.reduce(operator.and_, others, jnp.bool_(True)))
    return jnp.stack(counts)[:, None]


def _part(
    do: Callable, call: Call, axes: Any, spread: Any, leaves: Any, factor: Any, out: Any, state: Any, loss: Any
) -> Any:
    """Runs the handler, do(call, *operands), on a device's part and merges the reports of all devices."""
    merge = functools.partial(do, Call("merge", policy=call.policy))
    counts = _counts(axes, spread)

    def merged(words: jax.Array, rows: jax.Array) -> tuple:
        rank = lax.axis_index(axes).astype(jnp.uint32) + 1
        rows = jnp.where(counts, rows, _NOTHING).at[:, _RANKS].set(rank)
        mine = merge(rows).at[_LOSS].set(words[_LOSS])
        words = merge(lax.all_gather(mine, axes))
        return words, lax.map(merge, lax.all_gather(rows, axes, axis=1)) if call.per_tensor else None

    alone = dataclasses.replace(call, per_tensor=True)
    leaves, words, rows, bins = over(do, alone, leaves, factor, out, loss, merged)
    if call.operation == "unscale_accumulate":  # an overflow on another device also leaves this part unchanged
        leaves = [jnp.where(words[_OVERFLOW] != 0, old, new) for old, new in zip(out, leaves, strict=True)]
    new = None if state is None else do(Call("update", policy=call.policy), state, words)
    return leaves, words, rows, bins, new


_RANKS = np.array([w.offset(_structs.Report, name) for name in ("first_rank_plus_1", "last_rank_plus_1")])
_OVERFLOW, _LOSS = (w.offset(_structs.Report, name) for name in ("overflow", "loss"))


def over(do: Callable, call: Call, leaves: Any, factor: Any, out: Any, loss: Any, merged: Callable) -> tuple:
    """Runs a call on one device's part and merges reports by `merged`. Returns (leaves, report, each, histogram)."""
    if call.max_norm is None:
        leaves, words, rows, bins, _ = do(call, leaves, factor, out, None, loss)
        return leaves, *merged(words, rows), bins
    # The norm of all parts is needed before any part can be divided.
    seen = dataclasses.replace(
        call, operation="measure", want=call.want | int(Want.NORM), max_norm=None, clip_value=None
    )
    _, words, rows, bins, _ = do(seen, leaves, factor, None, None, loss)
    words, rows = merged(words, rows)
    clipped = do(Call("clip", max_norm=call.max_norm), factor, words)
    factor = jnp.where(clipped.any(), clipped, factor)  # zeros after an overflow: no clip
    write = dataclasses.replace(call, want=0, max_norm=None, per_tensor=False, histogram=False, is_clipped=True)
    return do(write, leaves, factor, out, None, None)[0], words, rows, bins


def _rows_over_devices(
    call: Call, rows_of: Callable, judged: Sequence[Any], wide: Sequence[bool], leaves: Any, factor: Any
) -> jax.Array:
    """Returns jax.numpy's measurements of each gradient, over all devices that have a part of it."""

    def alone(leaves: Any, factor: Any) -> tuple:
        return [], rows_of(leaves, factor)

    def part(axes: Any, spread: Any, leaves: Any, factor: Any) -> tuple:
        rows = jnp.where(_counts(axes, spread), rows_of(leaves, factor), 0)
        return [], _plain.over_devices(rows, wide, axes)

    seen = dataclasses.replace(call, operation="measure")
    partition = Partition(functools.partial(_partition, part), f"jnp {call!r} {list(map(str, judged))}")
    return _spread(seen, alone, partition, (PartitionSpec(),), leaves, factor)[1]


_differentiable = jax.custom_jvp(_run, nondiff_argnums=(0,))


@_differentiable.defjvp
def _tangents(call: Call, primals: Any, tangents: Any) -> Any:
    """Differentiates the results by the gradients, in jax.numpy; reports and states are integers without tangents."""
    leaves, factor, out, *_ = primals
    if call.max_norm is not None or call.is_clipped:
        raise NotImplementedError("max_norm is not differentiated: clip what unscale returns, as optax's functions do")
    results = _differentiable(call, *primals)
    good = results[1][_OVERFLOW] == 0
    _, moved = jax.jvp(
        lambda leaves, out: _plain.written(call, leaves, factor, out, good), (leaves, out), (tangents[0], tangents[2])
    )
    still = jax.tree.map(lambda words: np.zeros(words.shape, jax.dtypes.float0), results[1:])
    return results, (jax.tree.unflatten(jax.tree.structure(results[0]), jax.tree.leaves(moved)), *still)


def _handled(platform: str, call: Call, *operands: Any) -> Any:
    if call.operation in TENSORS:
        results = tuple(_xla.tensors(platform, call, *operands))
    else:
        results = getattr(_xla, call.operation)(platform, *operands, **_options(call))
    return w.varying(results, operands)


def _in_jnp(call: Call, *operands: Any) -> Any:
    if call.only_overflow and operands[0]:
        results = [], _plain.overflow(operands[0]), None, None, None
    elif call.operation in TENSORS:
        results = tuple(_plain.tensors(functools.partial(_rows_over_devices, call), call, *operands))
    else:
        results = getattr(_host, call.operation)(*operands, **_options(call))
    return w.varying(results, operands)


_OPTIONS = {"update": ["policy"], "set_rank": ["policy"], "merge": ["policy", "addends"], "clip": ["max_norm"]}


def _options(call: Call) -> dict[str, Any]:
    options = {name: getattr(call, name) for name in _OPTIONS.get(call.operation, [])}
    if options.get("policy") is not None:
        options["policy"] = policy_of(call.policy)
    return options


_NOTHING = w.of_struct(Report.merge([]))  # merging it with another report changes nothing


def names_of(paths: Sequence[Any]) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr(path) for path in paths)
