# SPDX-License-Identifier: MIT
"""Saves rules and state to a checkpoint, and loads them."""

from __future__ import annotations

import copy
import operator
import sys
import warnings
from collections import OrderedDict
from collections.abc import ItemsView, Mapping, Sequence
from typing import Any

from .. import _checkpoints
from .. import _gradscaler as c
from .._entries import Note
from .._policy import Policy, is_fixed, policy_of, rules
from .._structs import State, Status
from ._memory import HostState, initial_state, rounded, with_scale
from ._options import NUMBERS, Options

_RULES = NUMBERS[1:]
_NOT_SAVED = (
    *("_options", "_is_guarded", "_holds", "_wants", "_divides_as_torch"),
    *("_memory", "_checks", "_guard", "_names", "_losses", "_steps", "_joint", "_uses", "_last_skip", "_scale_tensor"),
)
_ENTRIES = ("scale", *_RULES, "_growth_tracker")
_OURS = "gradscaler"  # a sixth entry, with all rules and counts


class _Saved(dict):
    """A state_dict() that a loader can plan by although the checkpoint is torch's and has no sixth entry.

    torch.distributed.checkpoint reads the keys that the receiver's dict has, and fails if one is not there. Nothing
    else tells the receiver what a checkpoint has, so this dict looks at the loader's metadata when it gives its items.
    """

    def items(self) -> ItemsView:
        frame = sys._getframe(1) if "torch.distributed.checkpoint" in sys.modules else None
        while frame is not None and frame.f_code.co_name != "set_up_planner":
            frame = frame.f_back
        keys = getattr(frame and frame.f_locals.get("metadata"), "state_dict_metadata", None)
        if keys and not any(key.rpartition(".")[2] == _OURS for key in keys):
            self.pop(_OURS, None)
        return super().items()

    def __reduce__(self) -> tuple:
        return OrderedDict, (), None, None, iter(super().items())  # torch.load refuses to make other classes


class Checkpoints:
    """The checkpoints, pickles and copies of a GradScaler."""

    notes: Sequence[Note] = ()
    _undone_skips = 0  # of steps that a loaded checkpoint undid, since the start of the process

    def state_dict(self, format: str | None = None, *, prefix: str | None = None) -> dict[str, Any]:
        """Returns torch's five entries, and a sixth with all rules and counts, which torch ignores.

        format: one of gradscaler.formats(): that framework can continue from the dict, and `notes` has sentences on
            what the format cannot hold
        prefix: the start of the keys
        """
        if not self._enabled:
            return super().state_dict()
        with self._untouched():
            state = super().state_dict()
        current = self._state()
        if format is not None:
            state, self.notes = _checkpoints.save(self._policy, current, format, prefix)
        else:
            state = _Saved(state)
            state[_OURS] = f"{self._policy.preset}:{c.gsc_state_save(self._policy, current).hex()}"
        return state

    def load_state_dict(
        self, state_dict: Any, format: str | None = None, prefix: str | None = None
    ) -> list[Note] | None:
        """Loads a state_dict() of this class or of torch; an error changes nothing.

        It also loads checkpoints of gradscaler.Scaler, TensorScaler and other frameworks, and then returns notes on
        missing and ignored entries. Rules that such a checkpoint does not set stay.
        format: one of gradscaler.formats(); by default found by the keys, at the top or below one or two names
        prefix: the path of the scaler, if there are several or it is deeper
        As in torch, the rules of a checkpoint replace the constructor's; a warning names those that were passed.
        A policy with a fixed scale, such as "guard", stays with its scale if it was passed to the constructor.
        """
        if not self._enabled:
            return None
        policy, state, notes = load(state_dict, self._policy, format, prefix)
        stays = "policy" in self._options.given and is_fixed(self._policy)
        if stays and (not is_fixed(policy) or format is not None):
            why = "the policy that GradScaler was given never moves it"
            warnings.warn(f"the loss scale {state.factor.scale:g} of the checkpoint is not taken: {why}", stacklevel=2)
            return notes
        self._warn(policy)
        self._undone_skips += _skips(self._memory.read()) - _skips(state)
        self._guard.last = None
        self._follow(policy)
        self._init_growth_tracker = state.good_steps
        self._init_scale = state_dict["scale"] if notes is None else state.factor.scale  # torch's, unrounded
        if self._scale_tensor is None:
            self._memory = HostState(state)
        else:
            self._memory = self._start(state, self._scale_tensor)
            self._memory.publish(self._scale_tensor, self._growth_tracker)
        if self._history is not None:
            self._history.restart()
        return notes

    def _warn(self, policy: Policy) -> None:
        """Warns of rules that the checkpoint replaces although they were passed to the constructor."""
        old, new = rules(self._policy), rules(policy)
        given = self._options.given
        fields = [field for field in old if "policy" in given or (field in given and field not in NUMBERS)]
        changed = [f"{field} {old[field]:g} by {new[field]:g}" for field in fields if old[field] != new[field]]
        if changed:
            why = "the checkpoint replaces what GradScaler was given"
            warnings.warn(f"{why}: {', '.join(changed)}", stacklevel=3)
        elif is_fixed(policy) and not is_fixed(self._policy):
            why = "by the rules of the checkpoint the loss scale never moves"
            warnings.warn(f"{why}, and they replace GradScaler's", stacklevel=3)

    def __getstate__(self) -> dict[str, Any]:
        with self._untouched():
            state = super().__getstate__()
        for name in _NOT_SAVED:
            del state[name]
        for name in ("_history", "_trace"):
            state.pop(name, None)
        saved = self._state() if self._enabled else self._memory.read()
        options = {f"_{name}": value for name, value in vars(self._options).items()}
        return state | options | {"_policy": bytes(self._policy), "_saved": bytes(saved)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self._options = Options(**{name: state.pop(f"_{name}") for name in vars(Options())})
        saved = State.from_bytes(state.pop("_saved"))
        policy = policy_of(state.pop("_policy"))
        super().__setstate__(state)
        self._follow(policy)
        self._begin(saved)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copies the scaler. Parameters that were copied before, with the same memo, keep their names."""
        made = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        made._names = self._names.copied(memo)
        return made


def _skips(state: State) -> int:
    return state.total_overflows + state.total_guard_skips + state.total_bad_losses


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
            raise KeyError(
                f"state_dict has no {missing[0]!r}: pass all of a scaler's state_dict(): {', '.join(_ENTRIES)}"
            )
        return (*_of_torch(state_dict, policy), None)
    try:
        return _checkpoints.load(state_dict, policy, format, prefix)
    except c.Error as error:
        if own and error.status != Status.ERROR_VERSION:
            raise KeyError(f"state_dict has no {missing[0]!r}, and is of no other format: {error}") from None
        raise


def _of_torch(state_dict: Mapping[str, Any], policy: Policy) -> tuple[Policy, State]:
    """Returns the rules and state in torch's five entries and our sixth; `policy` has the rules that they lack."""
    state, policy = None, policy.replace()
    if _OURS in state_dict:
        saved, state = _checkpoints.from_hex(state_dict[_OURS], f"state_dict[{_OURS!r}]")
        if saved.differences("torch").keys() - set(NUMBERS):  # else they are in torch's entries
            policy = saved
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
