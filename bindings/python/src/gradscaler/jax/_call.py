# SPDX-License-Identifier: MIT
"""Which code does the work: the compiled handler where it serves the platform, jax.numpy elsewhere."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.backend import backends

from .._scaler import Policy
from . import _plain, _xla


class Backend(str):
    """ "handler" or "jnp", with `platform` ("cpu", "gpu", ...) and `why`, a sentence, empty for the handler."""

    platform: str
    why: str

    def __new__(cls, name: str, platform: str, why: str) -> Backend:
        self = super().__new__(cls, name)
        self.platform, self.why = platform, why
        return self

    def __repr__(self) -> str:
        return f"Backend({str(self)!r}, platform={self.platform!r}, why={self.why!r})"


def backend(platform: str | None = None) -> Backend:
    """What does the work on a platform, by default JAX's own: the compiled handler, or jax.numpy, and why.

    >>> gradscaler.jax.backend()
    Backend('handler', platform='cpu', why='')
    """
    platform = platform or jax.default_backend()
    why = _xla.why_not(platform)
    return Backend("jnp" if why else "handler", platform, why or "")


@functools.cache
def _warn_once(platform: str, why: str) -> None:
    warnings.warn(
        f"gradscaler.jax computes with jax.numpy on {platform!r}, which is right and slower than its compiled handler: "
        f"{why}",
        stacklevel=4,
    )


@dataclasses.dataclass(frozen=True)
class Call:
    """What of a call is static: it is compiled anew for another one, never for another scale."""

    operation: str
    policy: bytes | None = None
    dtypes: tuple | None = None
    want: int = 0
    max_norm: float | None = None
    clip_value: float | None = None
    each: bool = False
    histogram: bool = False
    summands: bool = False
    names: tuple[str, ...] = ()
    in_place: bool = False
    is_clipped: bool = False  # by max_norm, which is in the factor


@functools.lru_cache(maxsize=256)
def policy_of(data: bytes) -> Policy:
    return Policy.from_buffer_copy(data)


def run(call: Call, *operands: Any) -> Any:
    """The results of a call on arrays: traced into the caller's program, or compiled by itself."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(operands)):
        call = dataclasses.replace(call, in_place=True)
        return _differentiable(call, *operands) if call.operation in _ON_TENSORS else _run(call, *operands)
    return _compiled(call, _xla.why_not(jax.default_backend()), *operands)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(call: Call, why_not: str | None, *operands: Any) -> Any:
    return _run(call, *operands)


def _run(call: Call, *operands: Any) -> Any:
    policy = None if call.policy is None else policy_of(call.policy)
    platform = jax.default_backend()
    here = _xla.why_not(platform)
    lacks = _plain.why_not(policy, call.want, call.histogram)

    def handled(platform: str, *operands: Any) -> Any:
        return _plain.b.varying(_handled(call, policy, platform, *operands), operands)

    def in_jnp(*operands: Any) -> Any:
        return _plain.b.varying(_in_jnp(call, policy, *operands), operands)

    if lacks and here is not None:
        raise NotImplementedError(f"{lacks}; on {platform!r} there is no compiled handler: {here}")
    if here is not None:
        _warn_once(platform, here)
    if here is None and set(backends()) == {
        "cpu"
    }:  # no program here is for another platform: the other way is not traced
        return handled(platform, *operands)
    return _xla.choose(handled, None if lacks else in_jnp, *operands)


_ON_TENSORS = ("unscale", "scale", "accumulate", "check")
_differentiable = jax.custom_jvp(_run, nondiff_argnums=(0,))


@_differentiable.defjvp
def _tangents(call: Call, primals: Any, tangents: Any) -> Any:
    """How gradients move with those that went in, by jax.numpy; reports and states are whole numbers, which do not."""
    leaves, factor, out, _ = primals
    if call.max_norm is not None or call.is_clipped:
        raise NotImplementedError("max_norm is not differentiated: clip what unscale returns, as optax's functions do")
    results = _differentiable(call, *primals)
    written = dataclasses.replace(call, policy=None, want=0, each=False, histogram=False)
    _, moved = jax.jvp(
        lambda leaves, out: _in_jnp(written, None, leaves, factor, out, None)[0],
        (leaves, out),
        (tangents[0], tangents[2]),
    )
    still = jax.tree.map(lambda words: np.zeros(words.shape, jax.dtypes.float0), results[1:])
    return results, (jax.tree.unflatten(jax.tree.structure(results[0]), jax.tree.leaves(moved)), *still)


def _handled(call: Call, policy: Policy | None, platform: str, *operands: Any) -> Any:
    if call.operation == "update":
        state, report = operands
        return _xla.update(platform, state, report, policy=policy)
    if call.operation == "stamp":
        return _xla.stamp(platform, *operands, policy=policy)
    if call.operation == "merge":
        return _xla.merge(platform, *operands, policy=policy, summands=call.summands)
    if call.operation == "clip":
        return _xla.clip(platform, *operands, max_norm=call.max_norm)
    leaves, factor, out, state = operands
    options = {"histogram": call.histogram, "names": call.names, "in_place": call.in_place}
    return tuple(
        _xla.tensors(platform, call.operation, leaves, factor, **_options(call, policy, out, state), **options)
    )


def _in_jnp(call: Call, policy: Policy | None, *operands: Any) -> Any:
    if call.operation == "update":
        state, report = operands
        return _plain.update(state, report, policy=policy)
    if call.operation == "stamp":
        return _plain.stamp(*operands, policy=policy)
    if call.operation == "merge":
        return _plain.merge(*operands, policy=policy, summands=call.summands)
    if call.operation == "clip":
        return _plain.clip(*operands, max_norm=call.max_norm)
    leaves, factor, out, state = operands
    return tuple(_plain.tensors(call.operation, leaves, factor, **_options(call, policy, out, state)))


def _options(call: Call, policy: Policy | None, out: Any, state: Any) -> dict[str, Any]:
    names = ("dtypes", "want", "max_norm", "clip_value", "each")
    return {"policy": policy, "out": out, "state": state} | {name: getattr(call, name) for name in names}


def words_of(struct: Any) -> np.ndarray:
    return np.frombuffer(bytes(struct), np.uint32)


def struct_of(kind: type, words: Any) -> Any:
    return kind.from_buffer_copy(np.asarray(words, np.uint32).tobytes())


def names_of(paths: Sequence[Any]) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr(path) for path in paths)
