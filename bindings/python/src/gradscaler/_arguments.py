# SPDX-License-Identifier: MIT
"""Converts arguments to numbers, and makes errors name the argument of the caller."""

from __future__ import annotations

import contextlib
import math
import operator
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from . import _gradscaler as c
from ._structs import Status


@contextlib.contextmanager
def _argument_names(**names: str) -> Any:
    """Makes errors in its block name the caller's argument.

    `names` maps an argument of C to its Python name, "" for none.
    """
    try:
        yield
    except c.Error as error:
        _name_argument(error, names)
        raise


def _name_argument(error: c.Error, names: Mapping[str, str]) -> None:
    if error.subject_length:  # else the message is a whole sentence
        name = names.get(error.name, error.name) + (f"[{error.index}]" if error.index >= 0 else "")
        where = ".".join(filter(None, (name, error.field)))
        error.args = (f"{where} {'must not be None' if error.status == Status.ERROR_NULL else error.why}",)


def _warn_caller(text: str) -> None:
    """Warns the caller of gradscaler."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("gradscaler.", "torch.amp.")):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def _meant(name: str, known: Sequence[str]) -> str:
    """Returns which of the known names is meant by a wrong one, or else all."""
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    return f": did you mean {near[0]!r}?" if near else f"; it has {', '.join(known)}"


def _short_repr(value: Any) -> str:
    return repr(value)[:40]


def _number(name: str, value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, str | bytes):
        raise TypeError(f"{name}={_short_repr(value)}: expected a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        kind = next(kind for kind in (TypeError, OverflowError, ValueError) if isinstance(error, kind))
        why = str(error).partition("\n")[0]  # an error about a JAX tracer has many
        raise kind(f"{name}={_short_repr(value)}: {why}") from None


def _judged_number(name: str, value: Any) -> float:
    """Returns a number that a guard judges: infinity for one past the largest double, such as 10**400."""
    try:
        return _number(name, value)
    except OverflowError:
        return math.inf


def _index(value: Any) -> int:
    """Returns `value` if it is a whole number, else -1."""
    try:
        return -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return -1


def _power(scale: float) -> str:
    """Formats a scale: 2^16 for 65536."""
    mantissa, exponent = math.frexp(scale) if math.isfinite(scale) else (0, 0)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:g}"


def _positive(name: str, value: Any) -> float:
    number = _number(name, value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name}={number!r}: it must be finite and above 0")
    return number


def _html(title: str, rows: Mapping[str, Any]) -> str:
    """Returns a small table for notebooks, without colours of its own."""
    from html import escape

    cells = "".join(
        f"<tr><th style='text-align:left;font-weight:normal;opacity:.7'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption style='text-align:left;font-weight:bold'>{escape(title)}</caption>{cells}</table>"


def _whole_number(name: str, value: Any) -> int:
    number = _index(value)
    if not 0 <= number < 2**63:
        raise ValueError(f"{name}={_short_repr(value)}: expected a whole number from 0 on")
    return number
