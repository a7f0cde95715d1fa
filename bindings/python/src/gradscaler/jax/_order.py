# SPDX-License-Identifier: MIT
"""Why a step was skipped: reads from its jaxpr in which order it makes the gradients; the first bad one is the cause.

JAX keeps the jaxpr of a jitted step, so this costs milliseconds after an overflow, and nothing in a good step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from .. import _gradscaler as c
from .. import _structs
from .._report import explained
from .._structs import Event, Loss
from . import _call
from . import _words as w
from ._call import SCOPE, Call

# Where a value is made: in each scope from the outermost the number of the equation, and the turn if it is a loop.
Position = tuple[tuple[int, int], ...]
_BY_ROW = -1  # the turn of a loop that makes one row in each turn, the last row first
_LAST = 1

NO_ROW = 2**32 - 1


@jax.jit
def last_rows(leaves: Sequence[jax.Array], words: jax.Array) -> jax.Array:
    """Returns after an overflow, of each leaf that can be stacked layers, the last row with a bad element; else NO_ROW.

    These are leaves of three axes or more, and all with the same first axis; others would make compilation slow.
    """
    layers = {leaf.shape[0] for leaf in leaves if leaf.ndim > 2 and 1 < leaf.shape[0] <= 256}

    def last(leaf: jax.Array) -> jax.Array:
        if leaf.ndim == 0 or leaf.shape[0] not in layers:
            return jnp.uint32(NO_ROW)
        bad = jnp.any(~jnp.isfinite(leaf), axis=range(1, leaf.ndim))
        row = jnp.max(jnp.where(bad, jnp.arange(bad.size, dtype=jnp.uint32), 0))
        return jnp.where(bad.any(), row, jnp.uint32(NO_ROW))

    none = w.varying(jnp.full(len(leaves), NO_ROW, jnp.uint32), leaves)
    if not layers:
        return none
    overflow = w.word(_structs.Report, words, "overflow") != 0
    return lax.cond(overflow, lambda: w.varying(jnp.stack([last(leaf) for leaf in leaves]), leaves), lambda: none)


class _Scope:
    """A jaxpr, and the equation of an outer scope that runs it."""

    def __init__(self, jaxpr: Any, outer: _Scope | None = None, index: int = 0, turn: int = 0) -> None:
        self.jaxpr, self.outer, self.index = jaxpr, outer, index
        self.position: Position = () if outer is None else (*outer.position, (index, turn))

    @functools.cached_property
    def producers(self) -> dict[Any, int]:
        return {var: i for i, equation in enumerate(self.jaxpr.eqns) for var in equation.outvars}

    def outside(self, var: Any) -> Any:
        """Returns the outer scope's value for an argument, or None. The last operands of an equation are these."""
        if self.outer is None or var not in self.jaxpr.invars:
            return None
        operands = self.outer.jaxpr.eqns[self.index].invars
        return operands[self.jaxpr.invars.index(var) - len(self.jaxpr.invars)]


def _inner(equation: Any) -> list[Any]:
    """Returns the jaxprs in the parameters of an equation."""
    values = [part for value in equation.params.values() for part in (value if isinstance(value, tuple) else [value])]
    return [jaxpr for jaxpr in (getattr(value, "jaxpr", value) for value in values) if hasattr(jaxpr, "eqns")]


def _calls(scope: _Scope) -> Iterator[tuple[_Scope, Any]]:
    """Yields the equations that are our calls on gradients."""
    for i, equation in enumerate(scope.jaxpr.eqns):
        if SCOPE in str(equation.source_info.name_stack) and equation.primitive.name == "custom_jvp_call":
            yield scope, equation
        else:
            for jaxpr in _inner(equation):
                yield from _calls(_Scope(jaxpr, scope, i))


def _made(scope: _Scope, var: Any) -> Position | None:
    """Returns where a gradient is made: () for a constant, None for an argument of the step."""
    has_rows = True
    while not isinstance(var, Literal):
        index = scope.producers.get(var)
        if index is None:
            if (var := scope.outside(var)) is None:
                return None
            scope = scope.outer
            continue
        equation = scope.jaxpr.eqns[index]
        output = equation.outvars.index(var)
        inner = [jaxpr for jaxpr in _inner(equation) if len(jaxpr.outvars) == len(equation.outvars)]
        if inner:
            jaxpr, turn = max(inner, key=lambda jaxpr: len(jaxpr.eqns)), 0  # of a condition, not the branch of zeros
            if equation.primitive.name == "scan":
                turn = _LAST
                if has_rows and output >= equation.params["num_carry"] and equation.params["reverse"]:
                    has_rows, turn = False, _BY_ROW
            scope = _Scope(jaxpr, scope, index, turn)
            var = jaxpr.outvars[output]
            continue
        operands = _carried(equation, output)
        if len(operands) == 1:
            has_rows = has_rows and operands[0].aval.shape == var.aval.shape
            (var,) = operands
        elif operands:
            made = [_made(scope, operand) for operand in operands]
            return max((position for position in made if position is not None), default=None)
        else:
            return (*scope.position, (index, 0)) if equation.invars else ()
    return ()


def _carried(equation: Any, output: int) -> Sequence[Any]:
    """Returns the operands if an equation only converts, moves, sums over devices, multiplies by a number or adds."""
    operands, name, shape = equation.invars, equation.primitive.name, equation.outvars[output].aval.shape
    if len(operands) == len(equation.outvars) > 1 and operands[output].aval.shape == shape:  # psum of all gradients
        return [operands[output]]
    if name in ("reshape", "transpose", "reduce_scatter"):
        return operands[:1]
    if name == "select_n":
        operands = operands[1:]
    same = [operand for operand in operands if operand.aval.shape == shape and not isinstance(operand, Literal)]
    if name in ("add", "select_n"):
        return same
    return same if len(same) == 1 and all(operand.aval.shape in ((), shape) for operand in operands) else []


def _positions(step: _Scope, sizes: Sequence[int]) -> list[Position] | None:
    """Returns where a step makes each gradient of a call on gradients of these sizes; None if it does not tell."""
    for scope, equation in _calls(step):
        leaves = equation.invars[equation.params["num_consts"] :][: len(sizes)]
        if [leaf.aval.size for leaf in leaves] == sizes:
            made = [_made(scope, leaf) for leaf in leaves]
            return None if None in made else made
    return None


def scope_of(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Scope:
    trace = step.trace(*args, **kwargs).jaxpr if hasattr(step, "trace") else jax.make_jaxpr(step)(*args, **kwargs)
    return _Scope(trace.jaxpr)


def _structs_of(words: Any) -> np.ndarray:
    return np.asarray(words, np.uint32).view(np.dtype(_structs.Report))[:, 0]


def backward_order(step: _Scope, report: Any) -> tuple[list[int] | None, list[int | None]]:
    """Returns (order, rows): the numbers of a report's leaves in the order in which the step makes them, or None; and
    of each leaf the first bad row, if the step makes one row after the other, or None.
    """
    each = _structs_of(report.words_per_tensor)
    made = _positions(step, each["elements"].tolist())
    if made is None:
        return None, [None] * len(each)
    last = np.asarray(report.last_rows).tolist()
    has_row = [bad and row != NO_ROW for bad, row in zip(each["overflow"].tolist(), last, strict=True)]
    loops = [next((k for k, (_, turn) in enumerate(position) if turn == _BY_ROW), None) for position in made]
    turns: dict[Position, int] = {}  # of a loop, the turn of its first bad row
    for i, k in enumerate(loops):
        if k is not None and has_row[i]:
            turns[made[i][: k + 1]] = min(_BY_ROW - last[i], turns.get(made[i][: k + 1], 0))

    def key(i: int) -> Position:
        """Returns the position, with the turn that made the row; one without is beside the first bad row."""
        k, position = loops[i], made[i]
        if k is None:
            return position
        turn = _BY_ROW - last[i] if has_row[i] else turns.get(position[: k + 1], 0)
        return (*position[:k], (position[k][0], turn), *position[k + 1 :])

    rows = [last[i] if k is not None and has_row[i] else None for i, k in enumerate(loops)]
    return sorted(range(len(made)), key=key), rows


def _narrow_losses(jaxpr: Any) -> Iterator[Any]:
    """Yields the dtypes of the numbers that `Scaler.scale` converts into a wider dtype."""
    for equation in jaxpr.eqns:
        if f"{SCOPE}scale" in str(equation.source_info.name_stack) and equation.invars:
            before, after = equation.invars[0].aval, equation.outvars[0].aval
            if equation.primitive.name == "convert_element_type" and after.shape == ():
                yield from [before.dtype] * (before.dtype.itemsize < after.dtype.itemsize)
        for inner in _inner(equation):
            yield from _narrow_losses(inner)


def _bad_parameters(names: Sequence[str], arguments: Any) -> list[int]:
    """Returns the numbers of the gradients with a parameter that is not finite: arguments with the same names."""
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]}
    name = names[0] if names else ""
    prefixes = [path.removesuffix(name) for path in leaves if name and path.endswith(name)]
    for prefix in sorted(prefixes, key=len):  # the parameters themselves before an optimizer's moments
        found = [leaves.get(prefix + name) for name in names]
        if all(w.is_concrete(leaf) for leaf in found):
            arrays = [leaf for leaf in found if isinstance(leaf, jax.Array)]
            if not any(array.is_deleted() or not array.is_fully_addressable for array in arrays):
                call = Call("measure", names=tuple(names), per_tensor=True)
                each = _call.run(call, [jnp.asarray(leaf) for leaf in found], None, None, None, None)[2]
                return np.flatnonzero(_structs_of(each)["overflow"]).tolist()
    return []


def reason(scaler: Any, report: Any, step: Callable | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Does what Scaler.reason says."""
    after, found = scaler.to_host(), None if report is None else report.to_host()
    if step is None or not after.state.skip:
        return explained(after.state, found).message
    if report is None or report.words_per_tensor is None:
        raise ValueError("the report has none of each leaf: pass per_tensor=True to the call on the gradients")
    scope = scope_of(step, args, kwargs)
    order, rows = backward_order(scope, report)
    found.names = [name if row is None else f"{name}[{row}]" for name, row in zip(report.names, rows, strict=True)]
    bad, state, evidence = _bad_parameters(report.names, (args, kwargs)), after.state, _structs.Evidence()
    evidence.bad_parameters, evidence.parameter_plus_1 = len(bad), bad[0] + 1 if bad else 0
    evidence.losses, evidence.bad_loss = found.loss != Loss.UNKNOWN, found.loss == Loss.NOT_FINITE
    narrow = min(_narrow_losses(scope.jaxpr), key=lambda dtype: float(jnp.finfo(dtype).max), default=None)
    scale = state.next.scale
    if state.events & Event.BACKED_OFF:
        scale /= after.policy.backoff_factor or 1 / after.policy.growth_factor
    if narrow is not None and math.isfinite(scale) and not state.events & Event.AT_FLOOR:
        numbers = {c.gsc_dtype_name(dtype): dtype for dtype in _structs.Dtype}
        evidence.scale, evidence.loss_dtype = scale, numbers.get(narrow.name, 0)
    return explained(state, found, evidence, order).message
