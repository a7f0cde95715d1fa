# SPDX-License-Identifier: MIT
"""Wraps an optax optimizer: it unscales gradients, skips overflows, and carries the scaler in its state."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._structs import Want
from ._scaler import Report, Scaler, _float_dtype, _judges_by_norm, _limit, is_float


class ScaledState(NamedTuple):
    """The state of an optimizer made by `scaled`: `scaler` scales the next loss; `report` is of the last gradients."""

    scaler: Scaler
    inner: Any
    report: Report


def scaled(
    optimizer: Any,
    scaler: Scaler | str = "recommended",
    *,
    dtype: Any = jnp.float32,
    max_norm: float | None = None,
    per_tensor: bool = False,
) -> Any:
    """Returns an optax optimizer that takes gradients of a scaled loss.

        optimizer = gradscaler.jax.scaled(optax.adam(1e-3))
        state = optimizer.init(params)
        grads = jax.grad(lambda p: state.scaler.scale(loss(p)))(params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)

    Gradients are unscaled in `dtype` and clipped to the global norm `max_norm`. After an overflow, or if the policy
    skips the step, the updates are zeros and the inner state does not change. If `update` gets the loss before it was
    scaled, as `loss=`, a policy with BadLoss.HOLD judges it. The inner optimizer's initial state, such as
    moments, also has `dtype`, so that the state keeps its dtypes. With `per_tensor`, the report also has one of each
    leaf. The optimizer can be the first part of optax.chain; its state is then a part of the chain's state. What stands
    before it gets scaled gradients. In optax.masked or optax.multi_transform the other gradients would stay scaled:
    wrap these by `scaled`, not it by them.
    """
    import optax

    scaler = Scaler(scaler) if isinstance(scaler, str) else scaler
    if not isinstance(scaler, Scaler):
        raise TypeError(f"scaler must be a gradscaler.jax.Scaler or the name of a preset, not {type(scaler).__name__}")
    if not hasattr(optimizer, "init") or not hasattr(optimizer, "update"):
        raise TypeError(f"optimizer must be one of optax, such as optax.adam(1e-3), not {type(optimizer).__name__}")
    max_norm, dtype = _limit("max_norm", max_norm), None if dtype is None else _float_dtype(dtype)
    measures_norm = max_norm is not None or _judges_by_norm(scaler.policy)
    inner = optax.with_extra_args_support(optimizer)

    def is_masked(node: Any) -> bool:
        return isinstance(node, optax.MaskedNode)

    def init(params: Any) -> ScaledState:
        if any(map(is_masked, jax.tree.leaves(params, is_leaf=is_masked))):
            why = "the gradients that do not reach it would stay multiplied by the scale"
            raise ValueError(f"scaled is inside of optax.masked or optax.multi_transform: {why}; make it the outermost")
        # A copy: states are donated, and the caller keeps its scaler.
        own = jax.tree.map(jnp.copy, scaler)
        # The same `want` as later reports, so that a loop carries a state of one structure.
        report = dataclasses.replace(Report.of(False), want=int(Want.NORM) if measures_norm else 0)
        if per_tensor:
            each = own.measure(jax.tree.map(jnp.zeros_like, params), per_tensor=True)
            report = dataclasses.replace(each, words=report.words, want=report.want)
        wide = jax.tree.map(lambda x: jnp.asarray(x, dtype) if dtype is not None and is_float(x) else x, params)
        return ScaledState(own, inner.init(wide), report)

    def update(
        grads: Any, state: ScaledState, params: Any = None, *, loss: Any = None, **extra: Any
    ) -> tuple[Any, ScaledState]:
        if not isinstance(state, ScaledState):
            raise TypeError(f"state must be what init or update returned, a ScaledState, not {type(state).__name__}")
        grads, report, scaler = state.scaler.step(
            grads, loss=loss, dtype=dtype, max_norm=max_norm, per_tensor=per_tensor
        )
        updates, after = jax.eval_shape(lambda: inner.update(grads, state.inner, params, **extra))

        def step() -> Any:
            return inner.update(grads, state.inner, params, **extra)

        def skip() -> Any:
            zeros = jax.tree.map(lambda update: jnp.zeros(update.shape, update.dtype), updates)
            return zeros, jax.tree.map(lambda old, new: jnp.asarray(old, new.dtype), state.inner, after)

        updates, after = lax.cond(scaler.skip, skip, step)
        return updates, ScaledState(scaler, after, report)

    return optax.GradientTransformationExtraArgs(init, update)
