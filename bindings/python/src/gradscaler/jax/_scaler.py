# SPDX-License-Identifier: MIT
"""The scaler as a pytree: its state of 96 words is data, its policy is compiled in."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import _scaler as host
from .. import _structs
from .._arguments import _judged_number, _positive
from .._policy import Policy, policy_of, traits, warn_of_no_gradients
from .._structs import Event, Guard, ReportKind, Trait, Want
from . import _call, _host, _order, _sparse
from . import _words as w
from ._call import Call
from ._checkpoint import Checkpoints, register_with_flax, saved_by_flax


def is_float(leaf: Any) -> bool:
    """Returns whether a leaf is scaled: real and complex numbers are; integers, keys and float0 are not."""
    if not hasattr(leaf, "dtype"):
        return isinstance(leaf, float | complex) and not isinstance(leaf, bool)
    return leaf.dtype != jax.dtypes.float0 and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _may_be_a_leaf(leaf: Any) -> bool:
    """Returns whether a leaf is allowed: a number of any kind, or a key."""
    if hasattr(leaf, "dtype"):
        return not isinstance(leaf.dtype, np.dtype) or leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, int | float | complex)


def _is_one(array: Any, words: int) -> bool:
    """Returns whether the array has the bytes of one struct and can be read now."""
    if not w.is_concrete(array) or array.shape != (words,) or array.dtype != np.uint32:
        return False
    if isinstance(array, np.ndarray):
        return True
    return not array.is_deleted() and (array.is_fully_addressable or array.is_fully_replicated)


def _word_at(words: Any, i: int) -> jax.Array:
    # Not words[..., i]: eager indexing sends i to the device, which jax.transfer_guard may disallow.
    return lax.index_in_dim(jnp.asarray(words), i, -1, keepdims=False)


@functools.partial(jax.jit, static_argnums=1)
def _has_bits(word: jax.Array, bits: int) -> jax.Array:
    return word & np.uint32(bits) != 0


def _limit(name: str, limit: Any) -> float | None:
    if limit is None:
        return None
    if isinstance(limit, jax.core.Tracer):
        raise TypeError(f"{name} must be a Python number: it is compiled in")
    return _positive(name, limit)


def _loss_array(loss: Any) -> jax.Array | None:
    if loss is None:
        return None
    loss = jnp.asarray(float(loss) if isinstance(loss, int) else loss)
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise TypeError(f"loss is of {loss.dtype}: pass the loss before it was scaled, as floating-point numbers")
    return loss


_DTYPES = "float32, float64, float16, bfloat16, float8_e4m3fn or float8_e5m2"


def _float_dtype(dtype: Any) -> Any:
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype={dtype!r} is no dtype: pass {_DTYPES}") from None
    if not jnp.issubdtype(found, jnp.inexact):
        raise TypeError(f"dtype={found.name!r} has no fractions: pass {_DTYPES}")
    return found


class _Static(bytes):
    """The bytes of a policy, printed as a policy: JAX prints tree structures that differ."""

    def __repr__(self) -> str:
        return repr(Policy.from_buffer_copy(self))


class _Tree:
    """The leaves of a tree that are scaled, and their names; `filled` replaces them."""

    def __init__(self, tree: Any, what: str) -> None:
        paths, self.structure = jax.tree_util.tree_flatten_with_path(tree)
        paths = _sparse.checked(paths, tree, what)
        self.all = [leaf for _, leaf in paths]
        for path, leaf in paths:
            if not _may_be_a_leaf(leaf):
                name = f"{what}{jax.tree_util.keystr(path)}"
                raise TypeError(f"{name} is {type(leaf).__name__} {repr(leaf)[:60]}: expected an array or a number")
        self.indices = [i for i, leaf in enumerate(self.all) if is_float(leaf)]
        self.names = _call.names_of([paths[i][0] for i in self.indices])
        self.leaves = [jnp.asarray(self.all[i]) for i in self.indices]
        self.what = what

    def filled(self, leaves: Sequence[Any]) -> Any:
        new = list(self.all)
        for i, leaf in zip(self.indices, leaves, strict=True):
            new[i] = leaf
        return jax.tree_util.tree_unflatten(self.structure, new)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["words", "words_per_tensor", "bins", "last_rows"],
    meta_fields=["names", "want"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """A report on the gradients of one call: a pytree. Its properties are scalar arrays, also inside jit.

    words: uint32[64], the bytes of the library's report
    words_per_tensor: uint32[n, 64] with per_tensor=True
    bins: uint32[34] with histogram=True
    last_rows: uint32[n] with per_tensor=True, for Scaler.reason: the last bad row of leaves that can be stacked layers
    names: the paths of the n leaves, as jax.tree_util.keystr writes them
    want: a union of gradscaler.Want: the measured values; None if only `words` has it
    """

    _is_empty = False  # True of a call outside of jit without gradients
    words: jax.Array
    words_per_tensor: jax.Array | None = None
    bins: jax.Array | None = None
    names: tuple[str, ...] = ()
    want: int | None = None
    last_rows: jax.Array | None = None

    def _word(self, name: str) -> jax.Array:
        return _word_at(self.words, getattr(_structs.Report, name).offset // 4)

    def _measured(self, name: str, want: Want) -> Any:
        known = self.want
        if known is None and not isinstance(self.words, jax.core.Tracer):
            is_number = np.asarray(self._word("kind")) == int(ReportKind.NUMBER)  # a number counts as a norm
            known = np.asarray(self._word("measured")) | np.where(is_number, np.uint32(Want.NORM), np.uint32(0))
        if known is not None and not np.all(known & int(want)):
            raise ValueError(f"the report has no {name}: pass want=gradscaler.Want.{want.name}")
        field = getattr(_structs.Report, "sum_squares" if name == "norm" else name)
        return w.pair(self.words, field.offset // 4)

    def __bool__(self) -> bool:
        raise TypeError("a report is neither true nor false: report.overflow is")

    @property
    def overflow(self) -> jax.Array:
        """bool: do not step. An element is or became Inf or NaN, or the policy counts it as an overflow."""
        return _has_bits(self._word("overflow"), 0xFFFFFFFF)

    @property
    def found_inf(self) -> jax.Array:
        """float32: 1.0 if `overflow`, or if the loss was bad and the policy has BadLoss.HOLD; else 0.0."""
        return w.as_float(self._word("found_inf"))

    @property
    def status(self) -> jax.Array:
        """int32: a gradscaler.Status; not 0 if the factor or report that was passed cannot be used."""
        return lax.bitcast_convert_type(self._word("status"), jnp.int32)

    @property
    def loss(self) -> jax.Array:
        """uint32, gradscaler.Loss: whether the loss was finite before it was scaled, if the call had it."""
        return self._word("loss")

    @property
    def nan_count(self) -> jax.Array:
        """uint32: the number of NaN elements (the low word; to_host() has 64 bits)."""
        return self._word("nan_count")

    @property
    def inf_count(self) -> jax.Array:
        """uint32: the number of elements that are Inf or became Inf by unscaling (the low word)."""
        return self._word("inf_count")

    @property
    def norm(self) -> jax.Array:
        """float32: global L2 norm of the finite elements after unscaling, with want=Want.NORM or max_norm.

        In a report from of_number it is the number itself.
        """
        norm = w.root(self._measured("norm", Want.NORM))
        number = w.pair(self.words, _structs.Report.number.offset // 4)
        size = w.to_float(w.magnitude(number))
        signed = jnp.where(number[0] >> 31 != 0, -size, size)
        return jnp.where(self._word("kind") == np.uint32(ReportKind.NUMBER), signed, norm)

    @property
    def amax(self) -> jax.Array:
        """float32: largest finite magnitude after unscaling, with want=Want.AMAX."""
        return w.to_float(self._measured("amax", Want.AMAX))

    @property
    def per_tensor(self) -> dict[str, Report]:
        """The report of each leaf, by name, with per_tensor=True."""
        if self.words_per_tensor is None:
            raise ValueError("the report has none of each leaf: pass per_tensor=True")
        w.refuse_batch(self.words)
        return {name: Report(self.words_per_tensor[i], want=self.want) for i, name in enumerate(self.names)}

    @property
    def bad(self) -> dict[str, int]:
        """The leaves with Inf or NaN, and their number of such elements; outside of jit.

        Without per_tensor=True it is empty. With axis_name, this and `per_tensor` are about the device's own part.
        """
        w.outside(self.words, "bad", "report")
        return {} if self.words_per_tensor is None else self.to_host().bad

    def to_host(self) -> host.Report:
        """Returns a gradscaler.Report, which has all fields as Python numbers; outside of jit."""
        w.outside(self.words, "to_host()", "report")
        report = host.Report.from_bytes(np.asarray(self.words, np.uint32).tobytes())
        report.names = self.names
        if self.words_per_tensor is not None:
            report._each = np.asarray(self.words_per_tensor, np.uint32).tobytes()
            report._keep_bad_reports(report.names, report._each)
        if self.bins is not None:
            report._words = bytearray(np.asarray(self.bins, np.uint32).tobytes())
        return report

    @classmethod
    def of(cls, overflow: Any) -> Report:
        """Makes a report from a bool, traced or not: whether there was an overflow."""
        overflow = jnp.asarray(overflow).astype(bool)
        kind = np.uint32(ReportKind.FLAG)
        return cls(w.report({"overflow": overflow, "found_inf": w.as_bits(overflow), "kind": kind}), want=0)

    @classmethod
    def of_number(cls, number: Any) -> Report:
        """Makes a report of a float32 number, for a policy that guards another signal than gradients, such as the loss.

        The number counts with its sign; Inf and NaN are an overflow. If a step has several, pass their mean or maximum.
        """
        number = jnp.asarray(_judged_number("number", number) if isinstance(number, int) else number)
        if jnp.issubdtype(number.dtype, jnp.complexfloating):
            raise TypeError(f"number is of {number.dtype}: pass a real one, such as its magnitude")
        if number.shape:
            raise ValueError(f"number has the shape {number.shape}: pass one number, such as loss.mean()")
        bits, wide = w.as_bits(number), w.of_float(number)
        bad, nan = wide[0] >= 0x7FF00000, bits & 0x7FFFFFFF > 0x7F800000
        size = tuple(jnp.where(bad, 0, part) for part in wide)
        fields = {
            "overflow": bad,
            "found_inf": w.as_bits(bad),
            "measured": np.uint32(Want.AMAX),
            "kind": np.uint32(ReportKind.NUMBER),
            "amax": size,
            "number": (jnp.where(bad, 0, size[0] | bits & np.uint32(1 << 31)), size[1]),
            "elements": np.uint32(1),  # the low word
            "nan_count": nan,
            "inf_count": bad & ~nan,
        }
        return cls(w.report(fields), want=int(Want.NORM | Want.AMAX))

    @staticmethod
    def merge(reports: Iterable[Report], *, addends: bool = False, policy: Policy | None = None) -> Report:
        """Merges reports in order; addends=True if their gradients are added, as with micro-batches."""
        reports = list(reports)
        for report in reports:
            if not isinstance(report, Report):
                raise TypeError(f"expected the report of unscale, or several, not {type(report).__name__}")
        words = jnp.stack([r.words for r in reports]) if reports else jnp.zeros((0, w.REPORT), jnp.uint32)
        call = Call("merge", policy=None if policy is None else bytes(policy), addends=addends)
        want = None
        if reports and all(report.want is not None for report in reports):
            want = functools.reduce(int.__and__, (report.want for report in reports))
            want &= ~int(Want.NORM | Want.AMAX) if addends else 7
        merged = Report(_call.run(call, words), want=want)
        vars(merged)["_is_empty"] = bool(reports) and all(report._is_empty for report in reports)
        return merged

    def __repr__(self) -> str:
        with contextlib.suppress(ValueError):  # a report of another version
            if _is_one(self.words, w.REPORT):
                text = repr(self.to_host())
                return text if self.words_per_tensor is not None else text.replace("bad={}, ", "")
        return f"Report({w.shown(self.words)})"


class _ValueAndGrad(NamedTuple):
    scaler: Scaler
    finite: jax.Array
    aux: Any
    grad: Any


@jax.tree_util.register_pytree_with_keys_class
class ValueAndGrad(_ValueAndGrad):
    """The result of a function made by Scaler.value_and_grad, in the order of flax's DynamicScaleResult.

    It unpacks into (scaler, finite, aux, grad), and also has `report`, the Report on the gradients.
    """

    report: Report | None = None

    def tree_flatten_with_keys(self) -> Any:
        leaves = (*self, self.report)
        return [(jax.tree_util.GetAttrKey(k), v) for k, v in zip((*self._fields, "report"), leaves, strict=True)], None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Any) -> ValueAndGrad:
        *given, report = leaves
        self = cls(*given)
        self.report = report
        return self


@jax.tree_util.register_pytree_with_keys_class
class Scaler(Checkpoints):
    """A loss scale and the rules by which it moves: an immutable pytree.

    Scaler("torch", growth_interval=100) follows a preset of gradscaler.presets() with fields replaced. Its only leaf is
    `state`, uint32[96]: the bytes of the library's state. The policy is static: a program is compiled once for it; a
    new scale or count needs no new compilation.

    Call scale(loss) inside the function that is differentiated; then

        grads, report = scaler.unscale(grads, dtype=jnp.float32)
        scaler = scaler.update(report)
        params = gradscaler.jax.select_tree(scaler.skip, params, new_params)   # or lax.cond

    If the loss is Inf or NaN before it is scaled, no scale helps. If a call has the loss, as `loss=`, a policy with
    BadLoss.HOLD, such as "recommended", then skips the step and keeps the scale. Without the loss the gradients alone
    decide.

    All methods work in jit, lax.scan, lax.cond, shard_map and pmap, and eagerly, unless they say otherwise. Leaves of
    floating-point and complex numbers are scaled; other leaves, and None, do not change. Two scalers are equal if they
    have the same policy and, outside of jit, the same state.
    """

    preset: str
    state: jax.Array

    def __init__(self, preset: str = "recommended", **fields: float) -> None:
        self._take(host.Scaler(preset, **fields))

    def _take(self, scaler: host.Scaler) -> None:
        state = jnp.array(w.of_struct(scaler.state))
        register_with_flax()
        vars(self).update(preset=scaler.preset, _policy=_Static(bytes(scaler.policy)), state=state)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} cannot be assigned to: use set_scale, which returns another scaler")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} cannot be deleted")

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, Scaler):
            return NotImplemented
        if (self.preset, self._policy) != (other.preset, other._policy):
            return False
        if self.state is other.state:
            return True
        return w.is_concrete(self.state) and w.is_concrete(other.state) and np.array_equal(self.state, other.state)

    def __hash__(self) -> int:
        return hash((self.preset, self._policy))

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("state"), self.state),), (self.preset, self._policy)

    def tree_flatten(self) -> Any:
        return (self.state,), (self.preset, self._policy)

    @classmethod
    def tree_unflatten(cls, static: Any, leaves: Any) -> Scaler:
        scaler = object.__new__(cls)
        register_with_flax()
        (state,), (preset, policy) = leaves, static
        vars(scaler).update(preset=preset, _policy=policy, state=state)
        return scaler

    def __setstate__(self, attributes: Mapping[str, Any]) -> None:
        policy_of(attributes["_policy"])  # refuses what another version pickled
        vars(self).update(attributes)

    def _with(self, state: jax.Array) -> Scaler:
        scaler = self.tree_unflatten((self.preset, self._policy), (state,))
        if "_has_warned" in vars(self):
            vars(scaler)["_has_warned"] = True
        return scaler

    # ---- properties ----

    @property
    def policy(self) -> Policy:
        """A read-only copy of the rules; `replace` makes a scaler with other rules."""
        policy = Policy.from_buffer_copy(self._policy)
        vars(policy).update(preset=self.preset, is_copy=True)
        return policy

    def replace(self, **fields: float) -> Scaler:
        """Returns a scaler with fields of the policy replaced; scale and counts stay. Programs are compiled anew."""
        scaler = self._with(self.state)
        vars(scaler)["_policy"] = _Static(bytes(self.policy.replace(**fields)))
        return scaler

    @property
    def loss_scale(self) -> jax.Array:
        """float32: the scale in force; to_host() has it as a double."""
        return w.as_float(_word_at(self.state, 4))

    @property
    def factor(self) -> jax.Array:
        """uint32[8]: a snapshot of the scale, to keep with gradients that are unscaled after a later update."""
        return self.state[..., : w.FACTOR]

    def _count(self, name: str) -> jax.Array:
        return _word_at(self.state, getattr(_structs.State, name).offset // 4)

    @property
    def good_steps(self) -> jax.Array:
        """uint32: good steps since the last overflow or growth."""
        return self._count("good_steps")

    @property
    def total_overflows(self) -> jax.Array:
        """uint32: overflows since the start."""
        return self._count("total_overflows")

    @property
    def bad_losses_in_a_row(self) -> jax.Array:
        """uint32: bad losses in a row: a finite loss sets this to 0, and so does a good step with an unknown loss."""
        return self._count("bad_losses_in_a_row")

    @property
    def total_bad_losses(self) -> jax.Array:
        """uint32: steps since the start with a loss that was Inf or NaN before it was scaled."""
        return self._count("total_bad_losses")

    @property
    def total_growths(self) -> jax.Array:
        return self._count("total_growths")

    @property
    def total_backoffs(self) -> jax.Array:
        return self._count("total_backoffs")

    @property
    def events(self) -> jax.Array:
        """uint32, gradscaler.Event: what the last update did."""
        return self._count("events")

    @property
    def skip(self) -> jax.Array:
        """bool: the last update says not to step: an overflow, a bad loss, or a norm that the guard refuses."""
        return _has_bits(self.events, int(Event.SKIPPED))

    @property
    def stopped(self) -> jax.Array:
        """bool: the policy gives up, because further steps would only be skipped."""
        return _has_bits(self.events, int(Event.STOPPED))

    def __repr__(self) -> str:
        with contextlib.suppress(ValueError):  # a state of another version
            if _is_one(self.state, w.STATE):
                return repr(self.to_host())
        return f"Scaler({self.preset!r}, state={w.shown(self.state)})"

    # ---- the step ----

    def scale(self, tree: Any, dtype: Any = None) -> Any:
        """Multiplies the loss, or every leaf of a tree, by the scale; it can be differentiated.

        A scaled loss easily overflows float16, so a leaf that is a single number of less than 32 bits becomes float32.
        Other leaves keep their dtype, or get `dtype`; the product is rounded once.
        """
        w.refuse_batch(self.state)
        dtype = None if dtype is None else _float_dtype(dtype)
        number = w.multiplier(w.pair(self.state, w.SCALE), w.usable(self.state))

        @jax.named_scope(f"{_call.SCOPE}scale")
        def scaled(leaf: Any) -> Any:
            if not is_float(leaf):
                return leaf
            leaf = jnp.asarray(leaf)
            narrow = leaf.ndim == 0 and leaf.dtype.itemsize < 4
            return number(leaf).astype(dtype or (jnp.float32 if narrow else leaf.dtype))

        return jax.tree.map(scaled, tree)

    def unscale(
        self,
        grads: Any,
        *,
        loss: Any = None,
        dtype: Any = None,
        max_norm: float | None = None,
        clip_value: float | None = None,
        want: int = 0,
        per_tensor: bool = False,
        histogram: bool = False,
        factor: jax.Array | None = None,
        axis_name: Any = None,
    ) -> tuple[Any, Report]:
        """Divides a tree of gradients by the scale and checks it, in one pass: (gradients, report).

        loss: the loss before it was scaled, one or more numbers, for `report.loss` and a policy with BadLoss.HOLD. If
            only the loss is bad, `report.overflow` is False: read `skip` after the update
        dtype: the dtype of the results; None keeps the dtypes of the leaves. Unscale float16 gradients into float32
        max_norm: clips by the global norm, as torch.nn.utils.clip_grad_norm_; the report is from before clipping
        clip_value: clamps each element to [-clip_value, clip_value]; the report is from before clamping
        want, per_tensor, histogram: measure more: a union of gradscaler.Want; a report of each leaf; a histogram
        factor: the snapshot of the scale that the loss was scaled by, if an update ran since
        axis_name: needed in shard_map or pmap if each device has a part of the gradients: the reports of all devices
            are merged in rank order, so that overflow, norm and loss agree. If all have the same gradients, leave it
            out, and give all the same loss
        """
        call = Call("unscale", self._policy, dtype, want, max_norm, clip_value, per_tensor, histogram)
        return self._run(call, grads, None, loss, factor, axis_name)[:2]

    def step(
        self,
        grads: Any,
        *,
        loss: Any = None,
        dtype: Any = None,
        max_norm: float | None = None,
        clip_value: float | None = None,
        want: int = 0,
        per_tensor: bool = False,
        axis_name: Any = None,
    ) -> tuple[Any, Report, Scaler]:
        """Does `unscale` and `update`, and applies the guard's clip: (gradients, report, scaler).

        Skip the optimizer step if `scaler.skip`. If the policy guards, only the update knows that.
        """
        call = Call("unscale", self._policy, dtype, want, max_norm, clip_value, per_tensor)
        grads, report, state = self._run(call, grads, None, loss, None, axis_name, update=True)
        scaler = self._updated(state, report)
        return scaler._clipped(grads, report, max_norm), report, scaler

    def clip(self, grads: Any) -> Any:
        """Multiplies unscaled gradients by the guard's multiplier if the last update clips; `step` already does so."""
        return self._clipped(grads, None, None)

    def _clipped(self, grads: Any, report: Report | None, max_norm: float | None) -> Any:
        """Applies the guard's clip; if the gradients were clipped to `max_norm`, only the rest of it."""
        if not (self.policy.guards and self.policy.guard_flags & Guard.CLIP):
            return grads
        tree, share = _Tree(grads, "grads"), w.pair(self.state, _structs.State.guard_multiplier.offset // 4)
        number = w.multiplier(share)
        if max_norm is not None:
            by_norm = jnp.minimum(jnp.float32(max_norm) / (report.norm + jnp.float32(1e-6)), 1)
            left = jnp.minimum(w.to_float(share) / by_norm, 1)
            number = w.Multiplier((left,), left.astype(jnp.float64) if jax.config.jax_enable_x64 else None)

        def clipped(leaves: Sequence[Any]) -> list[Any]:
            return [number(leaf).astype(leaf.dtype) for leaf in leaves]

        return tree.filled(lax.cond(_has_bits(self.events, int(Event.CLIPPED)), clipped, list, tree.leaves))

    def combine_decisions(self, *others: Scaler) -> Scaler:
        """Returns this scaler with the decisions of others to skip, clip or stop: they judge signals such as the loss.

        watch = watch.update(Report.of_number(loss))     # a scaler with its own policy
        grads, report, scaler = scaler.step(grads)
        params = select_tree(scaler.combine_decisions(watch).skip, params, new_params)
        """
        state = self.state
        for other in others:
            if not isinstance(other, Scaler):
                raise TypeError(
                    f"expected a gradscaler.jax.Scaler, not {type(other).__module__}.{type(other).__name__}"
                )
            state = _call.run(Call("combine"), state, other.state)
        return self._with(state)

    def reason(self, report: Report | None = None, step: Callable | None = None, *args: Any, **kwargs: Any) -> str:
        """Returns why the last update skipped or clipped its step, or let an outlier through; else ""; outside of jit.

            scaler, params, report = train_step(scaler, params, x, y)
            print(scaler.reason(report, train_step, scaler, params, x, y))

        report: the report of the update
        step: the function that made the gradients and the report with per_tensor=True, best made by jax.jit. Its jaxpr
            tells which gradient of an overflow was made bad first, and of gradients that a lax.scan over layers makes,
            the layer, if the layers are the first axis, at most 256, and one of the gradients with it has three axes.
            It is traced and not run, and only after an overflow. If a lax.scan or pmap stacks the reports, pass the
            whole function, and self and the report of one step: jax.tree.map(lambda a: a[i], report)
        args, kwargs: its arguments in this step; of those that were donated only the shapes are read. If they have the
            parameters, by the same names as the gradients, these are checked for Inf and NaN

        Without `step` the last bad gradient is named; without a report only the guard's decisions are explained.
        """
        return _order.reason(self, report, step, args, kwargs)

    def measure(
        self,
        grads: Any,
        *,
        loss: Any = None,
        want: int = 0,
        per_tensor: bool = False,
        histogram: bool = False,
        factor: jax.Array | None = None,
        axis_name: Any = None,
    ) -> Report:
        """Returns the report of `unscale`, but writes nothing."""
        call = Call("measure", self._policy, want=want, per_tensor=per_tensor, histogram=histogram)
        return self._run(call, grads, None, loss, factor, axis_name)[1]

    def unscale_accumulate(
        self,
        grads: Any,
        sums: Any,
        *,
        loss: Any = None,
        want: int = 0,
        per_tensor: bool = False,
        factor: jax.Array | None = None,
    ) -> tuple[Any, Report]:
        """Adds gradients, divided by the scale, to `sums`, a tree of the same shapes, if all are finite, else nothing.

        It is for micro-batches: merge their reports with addends=True, and skip the step if one has an overflow.
        """
        call = Call("unscale_accumulate", self._policy, want=want, per_tensor=per_tensor)
        return self._run(call, grads, sums, loss, factor, None)[:2]

    def _run(
        self, call: Call, grads: Any, sums: Any, loss: Any, factor: Any, axis_name: Any, update: bool = False
    ) -> tuple[Any, Report, jax.Array | None]:
        """Checks the caller's arguments and runs the call; its `dtypes` is one dtype for all leaves."""
        dtype, want = call.dtypes, call.want
        if not isinstance(want, int) or not 0 <= want < 8:
            raise TypeError(f"want={want!r}: expected a union of gradscaler.Want")
        limits = {name: _limit(name, getattr(call, name)) for name in ("max_norm", "clip_value")}
        w.refuse_batch(self.state)
        if dtype is not None and dtype is not _AT_LEAST_FLOAT32:
            dtype = _float_dtype(dtype)
        if factor is not None and (jnp.shape(factor) != (8,) or jnp.result_type(factor) != jnp.uint32):
            raise TypeError("factor must be a snapshot such as scaler.factor: uint32[8]")
        factor, loss = self.factor if factor is None else factor, _loss_array(loss)
        tree, out = _Tree(grads, "grads"), None
        if sums is not None:
            held = _Tree(sums, "sums")
            if held.structure != tree.structure or held.indices != tree.indices:
                raise ValueError(f"sums is {held.structure}, which is not the tree of grads, {tree.structure}")
            for name, leaf, one in zip(tree.names, tree.leaves, held.leaves, strict=True):
                if leaf.shape != one.shape:
                    raise ValueError(f"sums{name} has the shape {one.shape}, its gradient {leaf.shape}")
            out, tree_out = held.leaves, held
        else:
            tree_out = tree
        dtypes = None if dtype is None else tuple(_target(leaf.dtype, dtype) for leaf in tree.leaves)
        call = dataclasses.replace(call, dtypes=dtypes, want=int(want), names=tree.names, **limits)
        if axis_name is None:
            state = self.state if update else None
            leaves, words, rows, bins, new = _call.run(call, tree.leaves, factor, out, state, loss)
        else:
            leaves, words, rows, bins = self._over(axis_name, call, tree.leaves, factor, out, loss)
            new = self.update(Report(words)).state if update else None
        if call.max_norm is not None or _judges_by_norm(self.policy):
            want |= Want.NORM
        judged = leaves if call.operation == "unscale" and call.clip_value is None else tree.leaves
        last_rows = _order.last_rows(judged, words) if call.per_tensor else None
        report = Report(words, rows, bins, tree.names if call.per_tensor else (), int(want), last_rows)
        is_eager = w.is_concrete(self.state) and w.is_concrete(words)
        vars(report)["_is_empty"] = is_eager and not any(leaf.size for leaf in tree.leaves)
        return tree_out.filled(leaves) if call.operation != "measure" else None, report, new

    def _over(self, axis_name: Any, call: Call, leaves: Any, factor: Any, out: Any, loss: Any) -> tuple:
        """Runs a call on each device's part and merges the reports.

        A bad factor becomes the status of the report. On the CPU it would end the program of one device, and the others
        would wait forever.
        """
        usable = w.usable(factor)

        def merged(words: jax.Array, rows: jax.Array) -> tuple:
            return self._gathered(axis_name, words, usable), rows

        return _call.over(_call.run, call, leaves, jnp.where(usable, factor, _ONE), out, loss, merged)

    def _gathered(self, axis_name: Any, words: jax.Array, usable: jax.Array) -> jax.Array:
        """Merges the reports of all devices in rank order, if their states agree."""
        words = _call.run(Call("set_rank", policy=self._policy), jnp.where(usable, words, _UNUSABLE), self.state)
        words = words.at[_RANKS].set(lax.axis_index(axis_name).astype(jnp.uint32) + 1)
        return self._merged(axis_name, words)

    def _merged(self, axis_name: Any, words: jax.Array) -> jax.Array:
        """Merges by a sum of rows, each filled by one device: JAX then knows that all devices have the same result."""
        mine = jnp.zeros((lax.psum(1, axis_name), words.size), jnp.uint32).at[lax.axis_index(axis_name)].set(words)
        return _call.run(Call("merge", policy=self._policy), lax.psum(mine, axis_name))

    def update(self, report: Report | Iterable[Report] | Any) -> Scaler:
        """Returns the scaler after an optimizer step, also if the step was skipped because of `report.overflow`.

        Several reports, of optimizers that share this scale, count as one step. A bool, whether there was an overflow,
        can replace the report.
        """
        w.refuse_batch(self.state)
        if isinstance(report, list | tuple):
            reports = [isinstance(one, Report) for one in report]
            if any(reports) and not all(reports):
                raise TypeError("pass the report, the second part of what unscale returned")
            report = Report.merge(report) if all(reports) and reports else report
        if not isinstance(report, Report):
            if isinstance(report, host.Report):
                report = Report(jnp.asarray(np.frombuffer(bytes(report), np.uint32)))
            elif isinstance(report, bool) or (getattr(report, "shape", None) == () and report.dtype == np.bool_):
                if _judges_by_norm(self.policy):
                    raise ValueError("update: the policy judges by what a bool does not have: pass a report")
                report = Report.of(report)
            else:
                raise TypeError(f"expected the report of unscale, or several, or a bool, not {type(report).__name__}")
        if self.policy.guards and report.want is not None and not report.want & Want.NORM:
            raise ValueError(
                "update: the policy guards by the norm, which the report lacks: measure it, want=Want.NORM"
            )
        return self._updated(_call.run(Call("update", self._policy), self.state, report.words), report)

    def _updated(self, state: jax.Array, report: Report) -> Scaler:
        if report._is_empty:
            warn_of_no_gradients(self)
        return self._with(state)

    def value_and_grad(
        self,
        fun: Callable,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        axis_name: Any = None,
        *,
        dtype: Any = None,
        max_norm: float | None = None,
        per_tensor: bool = False,
    ) -> Callable[..., ValueAndGrad]:
        """Does what jax.value_and_grad does, with a scaled loss: returns a function -> (scaler, finite, aux, grad).

        It works as flax's DynamicScale.value_and_grad. `aux` is the unscaled loss, or with has_aux (loss, the second
        result of `fun`). The gradients are unscaled, in `dtype`, by default at least float32. If `finite` is False,
        skip the step. The result also has the `report`, with `per_tensor` of each leaf. With an `axis_name` the
        gradients are the mean over that axis, the same on each device, and the loss is bad if any device's loss is.
        """

        @functools.wraps(fun)
        def scaled(*args: Any, **kwargs: Any) -> Any:
            value = fun(*args, **kwargs)
            loss, aux = value if has_aux else (value, None)
            return self.scale(loss), (loss, aux)

        @functools.wraps(fun)
        def wrapped(*args: Any, **kwargs: Any) -> ValueAndGrad:
            if axis_name is not None:
                # If JAX knows that parameters are the same on all devices, it already sums their gradients over the
                # devices, in the parameters' dtype.
                axes = frozenset(axis_name if isinstance(axis_name, list | tuple) else [axis_name])
                numbers = {i % len(args) for i in ([argnums] if isinstance(argnums, int) else argnums)} if args else ()
                args = [w.varying(arg, over=axes) if i in numbers else arg for i, arg in enumerate(args)]
            (_, (loss, aux)), grads = jax.value_and_grad(scaled, argnums, has_aux=True)(*args, **kwargs)
            wanted = _AT_LEAST_FLOAT32 if dtype is None else dtype
            if axis_name is not None:  # cast first, so that the sum does not overflow
                grads = jax.tree.map(lambda g: g.astype(_target(g.dtype, wanted)) if is_float(g) else g, grads)
                grads = lax.pmean(grads, axis_name)
            judged = loss
            if axis_name is not None:  # not the mean, which can be Inf although all losses are finite
                judged = lax.pmax(jnp.where(jnp.isfinite(loss), 0.0, jnp.inf), axis_name)
            grads, report, scaler = self.step(
                grads, loss=judged, dtype=wanted, max_norm=max_norm, per_tensor=per_tensor
            )
            value = (loss, aux) if has_aux else loss
            return ValueAndGrad.tree_unflatten(None, (scaler, ~scaler.skip, value, grads, report))

        return wrapped


def _judges_by_norm(policy: Policy) -> bool:
    return bool(traits(policy) & Trait.NEEDS_NORM)


_RANKS = np.array([w.offset(_structs.Report, f"{name}_rank_plus_1") for name in ("status", "first", "last", "loss")])
_ONE = w.of_struct(_structs.Factor(1.0, 1.0, 1.0, 1.0, 0))
_UNUSABLE = _host.measured_by(np.zeros(w.FACTOR, np.uint32))
saved_by_flax |= {Scaler: ("state",), Report: ("words", "words_per_tensor", "bins", "last_rows")}


_AT_LEAST_FLOAT32 = "at least float32"


def _target(dtype: Any, wanted: Any) -> Any:
    """Returns the dtype of a result: a complex gradient stays complex."""
    if wanted is _AT_LEAST_FLOAT32:
        return jnp.dtype(jnp.float32) if dtype.itemsize < 4 else dtype
    wanted = jnp.dtype(wanted)
    if jnp.issubdtype(dtype, jnp.complexfloating) and not jnp.issubdtype(wanted, jnp.complexfloating):
        return jnp.dtype(jnp.complex128 if wanted == jnp.float64 else jnp.complex64)
    return wanted
