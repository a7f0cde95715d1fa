# SPDX-License-Identifier: MIT
"""eFormer's PrecisionHandler; it scales the loss before it is differentiated."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ._loss_scale import LossScaleConfig, all_finite
from ._scaler import Scaler

_NAMES = {
    "f16": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "fp32": "float32",
    "full": "float32",
    "f64": "float64",
    "fp64": "float64",
    "f8_e4m3": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn",  # as in eFormer; JAX also has a dtype of this name
    "f8_e5m2": "float8_e5m2",
}


def _dtype(name: str) -> Any:
    if name == "half":
        return jnp.dtype(jnp.bfloat16 if jax.default_backend() == "tpu" else jnp.float16)
    try:
        return jnp.dtype(_NAMES.get(name, name))
    except TypeError:
        names = dict.fromkeys(["half", *_NAMES, *_NAMES.values()])
        raise ValueError(f"{name!r} is no dtype; there are {', '.join(names)}") from None


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class DtypePolicy:
    """The dtypes of parameters, of computation and of results; jmp's and eFormer's Policy."""

    param_dtype: Any
    compute_dtype: Any
    output_dtype: Any

    @classmethod
    def from_string(cls, text: str) -> DtypePolicy:
        """Makes a policy from "p=f32,c=f16,o=f32", or from one dtype for all, such as "bf16" or "half".

        Keys are p, c, o or params, compute, output. Defaults: float32 for parameters, the dtype of parameters for
        computation, the dtype of computation for results.
        """
        if "=" not in text:
            dtype = _dtype(text.strip().lower())
            return cls(dtype, dtype, dtype)
        found: dict[str, Any] = {}
        for part in text.split(","):
            key, _, name = (item.strip() for item in part.partition("="))
            whole = {"p": "params", "c": "compute", "o": "output"}.get(key, key)
            if whole not in ("params", "compute", "output"):
                raise ValueError(f"{key!r} in {text!r} is none of p, c, o, params, compute, output")
            found[whole] = _dtype(name.lower())
        params = found.get("params", jnp.dtype(jnp.float32))
        compute = found.get("compute", params)
        return cls(params, compute, found.get("output", compute))

    def cast_to_param(self, tree: Any) -> Any:
        """Casts real floating-point leaves to param_dtype; other leaves do not change."""
        return _cast(tree, self.param_dtype)

    def cast_to_compute(self, tree: Any) -> Any:
        return _cast(tree, self.compute_dtype)

    def cast_to_output(self, tree: Any) -> Any:
        return _cast(tree, self.output_dtype)


def _cast(tree: Any, dtype: Any) -> Any:
    def cast(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)


class Step(NamedTuple):
    """The result of a function made by PrecisionHandler.step; `aux` is None without has_aux."""

    loss_scaler: Any
    loss: jax.Array
    grads: Any
    grads_finite: jax.Array
    aux: Any = None


class PrecisionHandler:
    """Casts and scales around a loss function.

    handler = PrecisionHandler("p=f32,c=f16,o=f32")
    step = jax.jit(handler.step(loss_fn))                            # loss_fn(params, *batch) -> loss
    loss_scaler = handler.loss_scaler
    loss_scaler, loss, grads, grads_finite, _ = step(loss_scaler, params, batch)

    `loss_scaler` is the result of LossScaleConfig.create(), or a gradscaler.jax.Scaler passed to the constructor. The
    caller carries it from step to step. `training_step_wrapper` keeps it in the handler, as eFormer does, and works
    only outside of jit.
    eFormer takes a function that returns (loss, grads); this takes the loss function, because the loss must be scaled
    before it is differentiated.
    """

    def __init__(
        self,
        policy: str | DtypePolicy,
        use_dynamic_scale: bool = True,
        loss_scale_config: LossScaleConfig | None = None,
        *,
        loss_scaler: Any = None,
    ) -> None:
        self.policy = DtypePolicy.from_string(policy) if isinstance(policy, str) else policy
        self.loss_scale_config = loss_scale_config or LossScaleConfig()
        self.loss_scaler = self.loss_scale_config.create(use_dynamic_scale) if loss_scaler is None else loss_scaler

    def cast_for_compute(self, tree: Any) -> Any:
        return _cast(tree, self.policy.compute_dtype)

    def cast_for_output(self, tree: Any) -> Any:
        return _cast(tree, self.policy.output_dtype)

    def cast_params(self, tree: Any) -> Any:
        return _cast(tree, self.policy.param_dtype)

    def step(self, loss_fn: Callable, has_aux: bool = False) -> Callable[..., Step]:
        """Returns a pure function (loss_scaler, params, *args, **kwargs) -> Step, for jit and scan.

        It casts parameters and arguments to compute_dtype, scales the loss, and differentiates it by the parameters. It
        returns unscaled gradients in the dtypes of the parameters, and the unscaled loss in output_dtype. Skip the
        optimizer step if grads_finite is False; it is also False if a Scaler skips because of its guard or the loss.
        """

        @functools.wraps(loss_fn)
        def step(loss_scaler: Any, params: Any, *args: Any, **kwargs: Any) -> Step:
            args, kwargs = self.cast_for_compute((args, kwargs))

            def scaled(params: Any) -> Any:
                value = loss_fn(self.cast_for_compute(params), *args, **kwargs)
                if isinstance(value, tuple) != has_aux:
                    raise TypeError(
                        "expected the function that computes the loss, which is scaled before it is differentiated, "
                        "not one that returns (loss, grads); of one that returns (loss, aux) make step(loss_fn, True)"
                    )
                loss, aux = value if has_aux else (value, None)
                return loss_scaler.scale(jnp.asarray(loss, jnp.float32)), (loss, aux)

            (_, (loss, aux)), grads = jax.value_and_grad(scaled, has_aux=True)(params)
            if isinstance(loss_scaler, Scaler):
                grads, _, loss_scaler = loss_scaler.step(grads, loss=loss)
                finite = ~loss_scaler.skip
            else:
                grads = loss_scaler.unscale(grads)
                finite = all_finite(grads)
                loss_scaler = loss_scaler.adjust(finite)
            return Step(loss_scaler, self.cast_for_output(loss), grads, finite, self.cast_for_output(aux))

        return step

    def training_step_wrapper(self, loss_fn: Callable) -> Callable:
        """Returns a function (params, *args, **kwargs) -> (loss, grads, grads_finite) that moves self.loss_scaler."""
        step = jax.jit(self.step(loss_fn))

        @functools.wraps(loss_fn)
        def wrapped(*args: Any, **kwargs: Any) -> tuple[jax.Array, Any, jax.Array]:
            if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
                raise TypeError(
                    "in jit the scale must go in and out: use step, which takes and returns the loss scaler"
                )
            self.loss_scaler, loss, grads, finite, _ = step(self.loss_scaler, *args, **kwargs)
            return loss, grads, finite

        return wrapped

    def inference_wrapper(self, inference_fn: Callable) -> Callable:
        """Returns a function that casts its arguments to compute_dtype and its results to output_dtype."""

        @functools.wraps(inference_fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.cast_for_compute((args, kwargs))
            return self.cast_for_output(inference_fn(*args, **kwargs))

        return wrapped
