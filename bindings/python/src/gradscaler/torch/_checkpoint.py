# SPDX-License-Identifier: MIT
"""Loads rules and state from a checkpoint."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from .. import _checkpoints
from .. import _gradscaler as c
from .._entries import Note
from .._policy import Policy
from .._structs import State, Status
from ._memory import initial_state, rounded, with_scale

_RULES = ("growth_factor", "backoff_factor", "growth_interval")
_ENTRIES = ("scale", *_RULES, "_growth_tracker")
_OURS = "gradscaler"  # a sixth entry, present if the rules are not torch's


def load(
    state_dict: Any, policy: Policy, format: str | None, prefix: str | None
) -> tuple[Policy, State, list[Note] | None]:
    """Returns policy, state and notes (None for torch's format); `policy` has the rules that the checkpoint lacks."""
    own = format is None and prefix is None
    if own and not isinstance(state_dict, Mapping):
        kind = type(state_dict).__name__
        why = "pass what its state_dict() returned; an object of another framework needs format="
        raise TypeError(f"state_dict must be a dict, not {kind}: {why}")
    if own and len(state_dict) == 0:
        raise RuntimeError(
            "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
        )
    missing = [key for key in _ENTRIES if key not in state_dict] if own else ()
    if own and (not missing or state_dict.keys() <= {*_ENTRIES, _OURS}):
        if missing:
            raise KeyError(missing[0])
        return (*_of_torch(state_dict, policy), None)
    try:
        return _checkpoints.load(state_dict, policy, format, prefix)
    except c.Error as error:
        if own and error.status != Status.ERROR_VERSION:
            raise KeyError(f"state_dict has no {missing[0]!r}, and is of no other format: {error}") from None
        raise


def _of_torch(state_dict: Mapping[str, Any], policy: Policy) -> tuple[Policy, State]:
    """Returns the rules and state in torch's five entries and our sixth; `policy` has the rules that they lack."""
    saved, state = state_dict.get(_OURS), None
    if saved is not None:
        policy, state = _checkpoints.from_hex(saved, f"state_dict[{_OURS!r}]")
    else:
        policy = policy.replace()
    for field in _RULES:
        try:
            if state_dict[field] == 0 and field != "growth_interval":
                raise ValueError(f"{field} is 0: it must be above 0")
            setattr(policy, field, state_dict[field])
        except (TypeError, ValueError) as error:
            error.args = (f"state_dict[{field!r}]: {error}",)
            raise
    scale, good = rounded("state_dict['scale']", state_dict["scale"], policy), state_dict["_growth_tracker"]
    try:
        whole = isinstance(good, float) and good.is_integer()
        good = operator.index(int(good) if whole else None if isinstance(good, bool) else good)
    except TypeError:
        raise TypeError(
            f"state_dict['_growth_tracker'] is {state_dict['_growth_tracker']!r}: it must be a whole number"
        ) from None
    if not 0 <= good < 2**31:
        raise ValueError(f"state_dict['_growth_tracker'] is {good}: it counts steps, from 0 to {2**31 - 1}")
    if state is None or (state.factor.scale, state.good_steps) != (scale, good):
        state = with_scale(policy, initial_state(policy) if state is None else state, scale, good)
    return policy, state
