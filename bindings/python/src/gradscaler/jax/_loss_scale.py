# SPDX-License-Identifier: MIT
"""The loss scales of jmp and eFormer, by their names, as pytrees."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _call
from . import _words as w
from ._call import Call
from ._checkpoint import register_with_flax, saved_by_flax
from ._scaler import Report, _Tree, is_float

T = TypeVar("T")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class NoOpLossScale:
    """A scale of 1 that never moves: scale and unscale return their argument."""

    def __post_init__(self) -> None:
        register_with_flax()

    @property
    def loss_scale(self) -> int:
        return 1

    def scale(self, tree: T) -> T:
        return tree

    def unscale(self, tree: T) -> T:
        return tree

    def adjust(self, grads_finite: Any) -> NoOpLossScale:
        return self


class _Scales:
    """The base of the next two classes: a `loss_scale` in float32, and the `dtype` that results are promoted with."""

    def _settle(self) -> None:
        register_with_flax()
        given = self.loss_scale
        if self.dtype is None:
            object.__setattr__(self, "dtype", _partner(given))
        if not isinstance(given, jax.Array) or given.dtype != jnp.float32:
            object.__setattr__(self, "loss_scale", jnp.asarray(given, jnp.float32))

    def scale(self, tree: T) -> T:
        """Multiplies each float leaf by the scale."""
        return self._times(tree, self.loss_scale)

    def unscale(self, tree: T) -> T:
        """Divides each float leaf by the scale."""
        return self._times(tree, 1 / self.loss_scale)

    def _times(self, tree: Any, number: jax.Array) -> Any:
        def product(leaf: Any) -> Any:
            if not is_float(leaf):
                return leaf
            leaf = jnp.asarray(leaf)
            dtype = leaf.dtype if self.dtype == "same" else _promoted(leaf.dtype, self.dtype)
            wide = _promoted(leaf.dtype, jnp.float32)  # the product is rounded once
            return (leaf.astype(wide) * number.astype(wide)).astype(dtype)

        return jax.tree.map(product, tree)

    def __repr__(self) -> str:
        fields = [f"{f.name}={w.shown(getattr(self, f.name))}" for f in dataclasses.fields(self)]
        return f"{type(self).__name__}({', '.join(fields)})"


def _promoted(a: Any, b: Any) -> Any:
    with jax.numpy_dtype_promotion("standard"):  # also if the program has set "strict"
        return jnp.promote_types(a, b)


def _check_rules(scale: Any, floor: Any, period: Any, factor: Any, names: tuple[str, str, str, str]) -> None:
    """Raises ValueError for bad rules; traced numbers, and leaves that are not numbers, pass."""
    for name, value, least in ((names[0], scale, "above 0"), (names[1], floor, "not below 0")):
        if isinstance(value, jax.core.Tracer | str) or not isinstance(
            value, int | float | jax.Array | np.ndarray | np.generic
        ):
            continue
        number = np.asarray(value).astype(np.float64)
        if not np.all(np.isfinite(number) & (number > 0 if least == "above 0" else number >= 0)):
            raise ValueError(f"{name}={value!r}: it must be finite and {least}")
    if isinstance(period, bool) or not isinstance(period, int | np.integer) or period < 1:
        raise ValueError(f"{names[2]}={period!r}: it must be a whole number of at least 1")
    if not isinstance(factor, int | float | np.number) or not 1 < factor < math.inf:
        raise ValueError(f"{names[3]}={factor!r}: it must be a finite number above 1")


def _partner(scale: Any) -> Any:
    """Returns "same" for a Python number: results keep their dtype; else the name of the array's dtype."""
    if type(scale) in (int, float):
        return "same"
    dtype = jnp.result_type(scale)
    return dtype.name if jnp.issubdtype(dtype, jnp.floating) else "float32"


def _warn_if_not_floating(value: Any, name: str) -> None:
    """Warns of an integer array, as jmp does, but not of a Python int: eFormer's default is 2**15."""
    if hasattr(value, "dtype") and not jnp.issubdtype(value.dtype, jnp.floating):
        warnings.warn(f"Expected floating type for {name}, got {value.dtype}", stacklevel=4)


def _pytree(data: tuple[str, ...], meta: tuple[str, ...]) -> Any:
    """Registers a dataclass; JAX does not call its constructor, because leaves can be anything, such as shardings."""

    def register(kind: type) -> type:
        def flatten(value: Any) -> Any:
            return [getattr(value, name) for name in data], tuple(getattr(value, name) for name in meta)

        def flatten_with_keys(value: Any) -> Any:
            leaves, static = flatten(value)
            return list(zip(map(jax.tree_util.GetAttrKey, data), leaves, strict=True)), static

        def unflatten(static: Any, leaves: Any) -> Any:
            register_with_flax()
            value = object.__new__(kind)
            vars(value).update(zip(data + meta, (*leaves, *static), strict=True))
            return value

        jax.tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)
        saved_by_flax[kind] = data
        return kind

    return register


@_pytree(("loss_scale",), ("dtype",))
@dataclasses.dataclass(frozen=True, repr=False)
class StaticLossScale(_Scales):
    """A scale that never moves.

    loss_scale: a number or array, kept in float32
    dtype: results are promoted with it. By default it is the dtype of the loss_scale that was passed, as in jmp: with a
        float32 array, float16 leaves become float32; with a float16 array or a Python number they stay float16
    """

    loss_scale: Any
    dtype: Any = None

    def __post_init__(self) -> None:
        self._settle()

    def adjust(self, grads_finite: Any) -> StaticLossScale:
        return self


@_pytree(("loss_scale", "counter", "min_loss_scale"), ("period", "factor", "dtype"))
@dataclasses.dataclass(frozen=True, repr=False)
class DynamicLossScale(_Scales):
    """jmp's and eFormer's DynamicLossScale: one factor for growth and backoff.

    After `period` finite steps in a row the scale is multiplied by `factor`, unless the product is infinite. After a
    step that is not finite it is divided by `factor`, down to `min_loss_scale`.

        loss_scale = DynamicLossScale(jnp.float32(2**15))
        grads = jax.grad(lambda p: loss_scale.scale(loss(p)))(params)
        grads = loss_scale.unscale(grads)
        finite = all_finite(grads)
        loss_scale = loss_scale.adjust(finite)
        params = select_tree(finite, step(params, grads), params)

    Scale and floor are always kept in float32. So a float16 scale, which jmp's users pass to keep float16 gradients in
    float16, can grow beyond 65504 here. `dtype` is as in StaticLossScale, but a loss_scale that is a Python number has
    the dtype of min_loss_scale, as in jmp after the first adjust: by default float16 leaves become float32, and small
    gradients survive. Integer leaves do not change; jmp makes them floats. `Scaler("jmp")` has the same rule, and needs
    one pass for a whole step.
    """

    loss_scale: Any
    counter: Any = dataclasses.field(default_factory=lambda: np.zeros([], np.int32))
    period: int = 2000
    factor: int = 2
    min_loss_scale: Any = dataclasses.field(default_factory=lambda: np.ones([], np.float32))
    dtype: Any = None

    def __post_init__(self) -> None:
        _warn_if_not_floating(self.loss_scale, "loss_scale")
        _warn_if_not_floating(self.min_loss_scale, "min_loss_scale")
        names = ("loss_scale", "min_loss_scale", "period", "factor")
        _check_rules(self.loss_scale, self.min_loss_scale, self.period, self.factor, names)
        if self.dtype is None and type(self.loss_scale) in (int, float):
            object.__setattr__(self, "dtype", _partner(self.min_loss_scale))
        self._settle()

    def adjust(self, grads_finite: Any) -> DynamicLossScale:
        """Returns the loss scale for the next step. grads_finite: a bool, traced or not."""
        finite = jnp.asarray(grads_finite)
        if finite.ndim or finite.dtype != jnp.bool_:
            raise TypeError(
                f"grads_finite must be one bool, such as all_finite(grads), not {finite.dtype}{list(finite.shape)}"
            )
        grown = self.loss_scale * self.factor
        grown = jnp.where((self.counter == self.period - 1) & jnp.isfinite(grown), grown, self.loss_scale)
        floor = jnp.asarray(self.min_loss_scale, jnp.float32)
        lowered = jnp.maximum(floor, self.loss_scale / lax.optimization_barrier(jnp.float32(self.factor)))
        counter = jnp.where(finite, (self.counter + 1) % self.period, 0)
        new = object.__new__(type(self))  # the constructor would refuse a scale that has fallen to 0
        vars(new).update(vars(self), loss_scale=jnp.where(finite, grown, lowered), counter=counter)
        return new


saved_by_flax[NoOpLossScale] = ()


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class LossScaleConfig:
    """eFormer's settings of a DynamicLossScale. `create()` makes one, or a NoOpLossScale."""

    initial_scale: float = 2**15
    growth_interval: int = 2000
    scale_factor: int = 2
    min_scale: float = 1.0

    def __post_init__(self) -> None:
        names = ("initial_scale", "min_scale", "growth_interval", "scale_factor")
        _check_rules(self.initial_scale, self.min_scale, self.growth_interval, self.scale_factor, names)

    def create(self, use_dynamic_scale: bool = True) -> DynamicLossScale | NoOpLossScale:
        if not use_dynamic_scale:
            return NoOpLossScale()
        scale, floor = jnp.float32(self.initial_scale), jnp.float32(self.min_scale)
        return DynamicLossScale(scale, period=self.growth_interval, factor=self.scale_factor, min_loss_scale=floor)


def all_finite(tree: Any) -> jax.Array:
    """Returns whether no leaf has an Inf or NaN: a bool array, in one pass over all leaves."""
    found = _Tree(tree, "tree")
    if not found.leaves:
        return jnp.array(True)
    call = Call("measure", names=found.names, only_overflow=True)
    return ~Report(_call.run(call, found.leaves, None, None, None, None)[1]).overflow


def select_tree(pred: Any, a: T, b: T) -> T:
    """Returns `a` if the bool `pred` is true, else `b`: trees of the same structure, shapes and dtypes."""
    pred = jnp.asarray(pred)
    if pred.ndim or pred.dtype != jnp.bool_:
        raise TypeError(f"pred must be one bool, not {pred.dtype}{list(pred.shape)}")
    return jax.tree.map(lambda x, y: lax.select(pred, jnp.asarray(x), jnp.asarray(y)), a, b)
