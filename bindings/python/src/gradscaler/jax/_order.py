# SPDX-License-Identifier: MIT
"""The order in which a step makes its gradients, read from its jaxpr: the first bad one is nearest to the cause.

JAX keeps the jaxpr of a jitted step, so this costs milliseconds after an overflow, and nothing in a good step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from .. import _structs

SCOPE = "gradscaler."  # begins the name of the scope of each call of the library in a jaxpr, and in a profile
SCALE = SCOPE + "scale"

# Where a value is made: in each scope from the outermost the number of the equation, and the turn if it is a loop.
Position = tuple[tuple[int, int], ...]
_BY_ROW = -1  # the turn of a loop that makes one row in each turn, the last row first
_LAST = 1


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
    if len(operands) == len(equation.outvars) > 1:  # a collective call on all gradients
        return [operands[output]]
    if name in ("reshape", "transpose", "reduce_scatter"):
        return operands[:1]
    if name == "select_n":
        operands = operands[1:]
    same = [operand for operand in operands if operand.aval.shape == shape and not isinstance(operand, Literal)]
    if name in ("add", "select_n"):
        return same
    return same if len(same) == 1 and all(operand.aval.shape in ((), shape) for operand in operands) else []


def _positions(jaxpr: Any, sizes: Sequence[int]) -> list[Position] | None:
    """Returns where a step makes each gradient of a call on gradients of these sizes; None if it does not tell."""
    for scope, equation in _calls(_Scope(jaxpr)):
        leaves = equation.invars[equation.params["num_consts"] :][: len(sizes)]
        if [leaf.aval.size for leaf in leaves] == sizes:
            made = [_made(scope, leaf) for leaf in leaves]
            return None if None in made else made
    return None


def backward_order(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any], report: Any) -> Any:
    """Returns (order, rows): the numbers of a report's leaves in the order in which the step makes them, or None; and
    of each leaf the row that was the first bad one, or None.
    """
    each = np.asarray(report.words_per_tensor, np.uint32).view(np.dtype(_structs.Report))[:, 0]
    jaxpr = step.trace(*args, **kwargs).jaxpr if hasattr(step, "trace") else jax.make_jaxpr(step)(*args, **kwargs)
    made = _positions(jaxpr.jaxpr, each["elements"].tolist())
    if made is None:
        return None, [None] * len(each)
    bad, last = each["overflow"].tolist(), np.asarray(report.last_rows).tolist()
    loops = [next((k for k, (_, turn) in enumerate(position) if turn == _BY_ROW), None) for position in made]
    turns: dict[Position, int] = {}  # of a loop, the turn of its first bad row
    for i, k in enumerate(loops):
        if k is not None and bad[i]:
            turns[made[i][: k + 1]] = min(_BY_ROW - last[i], turns.get(made[i][: k + 1], 0))

    def key(i: int) -> Position:
        """Returns the position, with the turn that made the row; a finite leaf is beside the first bad row."""
        k, position = loops[i], made[i]
        if k is None:
            return position
        turn = _BY_ROW - last[i] if bad[i] else turns.get(position[: k + 1], 0)
        return (*position[:k], (position[k][0], turn), *position[k + 1 :])

    rows = [last[i] if k is not None and bad[i] else None for i, k in enumerate(loops)]
    return sorted(range(len(made)), key=key), rows
