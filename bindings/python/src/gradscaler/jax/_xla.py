# SPDX-License-Identifier: MIT
"""The library's calls as JAX operations: custom calls of XLA, handled by the compiled module.

Structs are arrays of uint32: a state has 96 words, its factor the first 8 of them; a report has 64, a histogram 34.
They are arguments of the compiled program, so a new scale or count needs no new compilation; policies, wants and limits
are compiled in. These operations cannot be differentiated: apply them after jax.grad. Under vmap they run one after
another.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _gradscaler as c
from .. import _policy, _structs
from .._arguments import _positive
from .._info import info
from .._policy import Policy
from ._words import FACTOR, REPORT, STATE

HISTOGRAM = 2 * c.GSC_HISTOGRAM_LENGTH
_TARGET = "gradscaler"
TENSORS = ("measure", "unscale", "scale", "unscale_accumulate")
_MERGE, _UPDATE, _CLIP, _MULTIPLY, _SET_RANK, _COMBINE = range(4, 10)
_WITH_FACTOR, _WITH_STATE, _WITH_EACH, _WITH_HISTOGRAM, _WITH_LOSS = 1, 2, 4, 8, 16


@dataclasses.dataclass(frozen=True)
class Call:
    """The static part of a call. Another value needs a new compilation; another scale does not."""

    operation: str
    policy: bytes | None = None
    dtypes: tuple | None = None
    want: int = 0
    max_norm: float | None = None
    clip_value: float | None = None
    per_tensor: bool = False
    histogram: bool = False
    addends: bool = False
    names: tuple[str, ...] = ()
    in_place: bool = False
    is_clipped: bool = False  # the factor clips by max_norm
    only_overflow: bool = False  # the report needs nothing else


policy_of = functools.lru_cache(maxsize=256)(_policy.policy_of)


class Result(NamedTuple):
    """The results of a call on gradients; None for results that were not requested."""

    leaves: list[jax.Array]  # empty for "measure"
    report: jax.Array
    per_tensor: jax.Array | None = None
    histogram: jax.Array | None = None
    state: jax.Array | None = None


# ---- platforms with a handler ----


def _ffi() -> Any:
    try:
        import jax.ffi as ffi
    except ImportError:  # before 0.5
        import jax.extend.ffi as ffi
    return ffi


def _cuda_or(platform: str) -> str:
    """Returns "cuda" for "gpu", JAX's name for the CUDA or ROCm backend; only CUDA has a handler."""
    return "cuda" if platform == "gpu" else platform


@functools.cache
def why_not(platform: str) -> str | None:
    """Returns a sentence on why the handler does not serve a JAX platform ("cpu", "cuda" or "gpu"), or None.

    The first call for a platform starts the platform and registers the handler.
    """
    platform = _cuda_or(platform)
    name = {"cpu": "cpu", "cuda": "CUDA"}.get(platform)
    if name is None:
        return f"gradscaler has no compiled handler for {platform}, only for cpu and cuda"
    try:
        ffi = _ffi()
        header = pathlib.Path(ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
        major = re.search(r"define XLA_FFI_API_MAJOR (\d+)", header)[1]
    except (ImportError, OSError, TypeError) as error:
        return f"JAX {jax.__version__} does not say which interface its XLA has: {error}"
    if major != "0":
        return f"XLA's interface has major version {major}, gradscaler's handler 0"
    try:  # the platform must start before the handler is registered: a refusal is then an error of this call only
        jax.devices(platform)
    except RuntimeError as error:
        return f"JAX has no {platform} here: {error}"
    if platform == "cuda" and (cuda := info().cuda) != "available":
        return cuda
    try:
        ffi.register_ffi_target(_TARGET, c.xla_handler(platform), platform=name)
    except Exception as error:  # jaxlib has its own exception type
        return f"this XLA refuses gradscaler's handler, which has its interface 0.1: {error}"
    return None


def choose(handled: Callable, plain: Callable | None, *operands: Any) -> Any:
    """Returns handled(platform, *operands) on platforms with the handler, else plain(*operands).

    JAX decides when it compiles a program for a platform. Both must return the same shapes. If `plain` is None, JAX
    refuses to compile for a platform without the handler.
    """
    served = {name: functools.partial(handled, name) for name in ("cpu", "cuda") if why_not(name) is None}
    return jax.lax.platform_dependent(*operands, **served, default=plain) if served else plain(*operands)


# ---- calls on gradients ----


def tensors(
    platform: str, call: Call, leaves: list[Any], factor: Any, out: Any = None, state: Any = None, loss: Any = None
) -> Result:
    """Runs `call.operation`, one of TENSORS, in one pass over all leaves, as in gradscaler.Scaler.

    leaves: float or complex arrays
    factor: uint32[8], or a state with the factor; None: the factor of `state`, without `state` 1
    out: the sums that "unscale_accumulate" adds to and returns
    state: uint32[96]; the call also updates it by the report, under the policy
    loss: float array, the loss before it was scaled, for the report; the same on all devices if leaves are spread
    call: `dtypes` are of the results of "unscale" and "scale". `max_norm` clips the results of "unscale" by the norm of
        all leaves, in two passes; the report is from before. `names` are the names of the leaves in errors. `in_place`:
        results use the memory of their operands; XLA first copies operands that are used elsewhere or not donated

    Wrong dtypes, policies and limits raise gradscaler.Error while tracing. A wrong factor, state or report fails the
    running program on the CPU, with the library's sentence; on CUDA it becomes the status of the report.
    """
    if call.operation not in TENSORS:
        raise ValueError(f"operation={call.operation!r}: expected one of {', '.join(TENSORS)}")
    if state is not None and call.policy is None:
        raise TypeError("state is updated by a policy: pass it")
    if (out is not None) != (call.operation == "unscale_accumulate"):
        raise TypeError("out: the sums that unscale_accumulate adds to, and no other operation has")
    if call.max_norm is not None and call.operation != "unscale":
        raise TypeError("max_norm: only unscale clips")
    limits = {"max_norm": call.max_norm, "clip_value": call.clip_value}
    limits = {name: np.float64(_positive(name, limit)) for name, limit in limits.items() if limit is not None}
    writes, sums = call.operation != "measure", out or []
    given = sums or _results(leaves, call.dtypes or [None] * len(leaves)) if writes else []
    _checked(call, leaves, given if writes else leaves, loss)
    flags, operands, aliases = 0, [*leaves, *sums], {}
    if factor is not None:
        flags |= _WITH_FACTOR
        operands.append(_words("factor", factor, (FACTOR,), (STATE,)))
    if state is not None:
        flags |= _WITH_STATE
        operands.append(_words("state", state, (STATE,)))
        of_state = len(operands) - 1
    if loss is not None:
        flags |= _WITH_LOSS
        operands.append(loss)
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given]
    results.append(_struct(REPORT))
    if call.per_tensor:
        flags |= _WITH_EACH
        results.append(_struct(len(leaves), REPORT))
    if call.histogram:
        flags |= _WITH_HISTOGRAM
        results.append(_struct(HISTOGRAM))
    if state is not None:
        results.append(_struct(STATE))
    if call.in_place:
        first = len(leaves) if sums else 0
        aliases = {first + i: i for i, x in enumerate(given) if operands[first + i].dtype == x.dtype}
        if state is not None:
            aliases[of_state] = len(results) - 1
    if _cuda_or(platform) == "cuda":
        results.append(jax.ShapeDtypeStruct((_workspace(leaves),), jnp.uint8))
    found = _call(
        platform,
        TENSORS.index(call.operation),
        operands,
        results,
        aliases,
        call.policy,
        {"with": np.int64(flags), "count": np.int64(len(leaves)), "want": np.int64(call.want)} | limits,
    )
    rest = iter(found[len(given) :])
    return Result(
        list(found[: len(given)]),
        next(rest),
        next(rest) if call.per_tensor else None,
        next(rest) if call.histogram else None,
        next(rest) if state is not None else None,
    )


def _results(leaves: Sequence[jax.Array], dtypes: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    if len(dtypes) != len(leaves):
        raise ValueError(f"{len(dtypes)} dtypes for {len(leaves)} leaves")
    kinds = [jnp.dtype(leaf.dtype if kind is None else kind) for leaf, kind in zip(leaves, dtypes, strict=True)]
    for kind in set(kinds):
        if jax.dtypes.canonicalize_dtype(kind) != kind:
            raise ValueError(f"dtypes: {kind} needs jax_enable_x64")
    return [jax.ShapeDtypeStruct(leaf.shape, kind) for leaf, kind in zip(leaves, kinds, strict=True)]


def _checked(call: Call, leaves: Sequence[Any], given: Sequence[Any], loss: Any) -> None:
    """Makes the same call on empty arrays, so that the library raises its errors."""
    names = call.names or [f"[{i}]" for i in range(len(leaves))]
    for name, leaf, result in zip(names, leaves, given, strict=True):
        if leaf.shape != result.shape:
            raise ValueError(f"out{name} has shape {result.shape}, its gradient {leaf.shape}")
    ins = [np.empty(0, leaf.dtype) for leaf in leaves]
    lists = ins if given is leaves else (ins, [np.empty(0, result.dtype) for result in given])
    policy = None if call.policy is None else policy_of(call.policy)
    options = {"want": call.want, "policy": policy, "clamp": call.clip_value or 0}
    options |= {} if loss is None else {"loss": np.empty(0, loss.dtype)}
    try:
        getattr(c, f"gsc_{call.operation}")(None, None, lists, options, _structs.Report())
    except c.Error as error:
        if error.index >= 0:
            error.args = (f"{'out' if error.name == 'out' else 'grads'}{names[error.index]} {error.why}",)
        elif error.field == "clamp":
            error.args = (f"clip_value {error.why}",)
        raise


def _workspace(leaves: Sequence[jax.Array]) -> int:
    """Returns the workspace size for any device of this process. It makes their contexts now: a capture could not."""
    of = {c.gsc_dtype_name(dtype): dtype for dtype in _structs.Dtype}
    packed = b"".join(struct.pack("QQII16x", 256, leaf.size, of[leaf.dtype.name], 0) for leaf in leaves)
    return max(c.xla_workspace(device.local_hardware_id, packed) for device in jax.local_devices(backend="cuda"))


# ---- calls on structs ----


def merge(platform: str, reports: jax.Array, *, policy: Policy | None = None, addends: bool = False) -> jax.Array:
    """Merges reports uint32[n, 64] in the order of the rows; `addends` as in Report.merge."""
    reports = _words("reports", reports, (reports.shape[0] if reports.ndim == 2 else None, REPORT))
    kind = c.GSC_MERGE_ADDENDS if addends else c.GSC_MERGE_SHARDS
    return _call(platform, _MERGE, [reports], [_struct(REPORT)], {}, policy, {"kind": np.int64(kind)})[0]


def update(platform: str, state: jax.Array, report: jax.Array, *, policy: Policy) -> jax.Array:
    """Returns the state after a step with this report."""
    operands = [_words("state", state, (STATE,)), _words("report", report, (REPORT,))]
    return _call(platform, _UPDATE, operands, [_struct(STATE)], {}, policy, {})[0]


def set_rank(platform: str, report: jax.Array, state: jax.Array, *, policy: Policy) -> jax.Array:
    """Sets rank 0 and a digest of policy and state: on CUDA the library takes a rank from the host."""
    operands = [_words("report", report, (REPORT,)), _words("state", state, (STATE,))]
    return _call(platform, _SET_RANK, operands, [_struct(REPORT)], {}, policy, {})[0]


def combine(platform: str, state: jax.Array, other: jax.Array) -> jax.Array:
    """Returns the state with the decision of `other` to skip, clip or stop."""
    operands = [_words("state", state, (STATE,)), _words("other", other, (STATE,))]
    return _call(platform, _COMBINE, operands, [_struct(STATE)], {}, None, {})[0]


def clip(platform: str, factor: jax.Array, report: jax.Array, *, max_norm: float) -> jax.Array:
    """Returns a factor with which "unscale" also clips to `max_norm`; the report needs Want.NORM."""
    operands = [_words("factor", factor, (FACTOR,), (STATE,)), _words("report", report, (REPORT,))]
    limit = {"max_norm": np.float64(_positive("max_norm", max_norm))}
    return _call(platform, _CLIP, operands, [_struct(FACTOR)], {}, None, limit)[0]


def multiply(platform: str, factor: jax.Array, by: float) -> jax.Array:
    """Multiplies a factor by `by`: unscaling a sum of so many gradients then gives their mean."""
    operands = [_words("factor", factor, (FACTOR,), (STATE,))]
    return _call(platform, _MULTIPLY, operands, [_struct(FACTOR)], {}, None, {"by": np.float64(_positive("by", by))})[0]


# ---- the custom call ----


def _struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.uint32)


def _words(name: str, array: Any, *shapes: tuple[int, ...]) -> Any:
    if array.dtype != jnp.uint32 or array.shape not in shapes:
        expected = " or ".join(f"uint32{list(shape)}" for shape in shapes)
        raise TypeError(f"{name} must be {expected}, not {array.dtype}{list(array.shape)}")
    return array


def _call(
    platform: str,
    call: int,
    operands: Sequence[Any],
    results: Sequence[jax.ShapeDtypeStruct],
    aliases: dict[int, int],
    policy: Policy | bytes | None,
    attributes: dict[str, Any],
) -> Sequence[jax.Array]:
    if (reason := why_not(platform)) is not None:
        raise NotImplementedError(reason)
    if policy is not None:
        attributes["policy"] = np.frombuffer(bytes(policy), np.uint8)
    run = _ffi().ffi_call(_TARGET, results, vmap_method="sequential", input_output_aliases=aliases)
    return run(*operands, call=np.int64(call), **attributes)
