# SPDX-License-Identifier: MIT
"""Takes a scaler to the host and back, for checkpoints and metrics; registers the classes with flax."""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import _scaler as host
from .._entries import Note, field_text
from .._history import History
from .._policy import Policy, policy_of, rules
from .._structs import State
from . import _words as w


class Checkpoints:
    """The calls of a Scaler outside of jit: a gradscaler.Scaler does them."""

    def to_host(self) -> host.Scaler:
        """Returns a gradscaler.Scaler with the same policy and state; outside of jit."""
        w.outside(self.state, "to_host()", "scaler")
        scaler = host.Scaler("none")
        scaler.policy = self.policy
        scaler.state = State.from_bytes(np.asarray(self.state, np.uint32).tobytes())
        return scaler

    def metrics(self, report: Any = None) -> dict[str, float]:
        """Returns the metrics of gradscaler.Scaler.metrics after the last update, for loggers; outside of jit.

        report: the report of the update
        """
        return self.to_host().metrics(report if report is None else report.to_host())

    def diagnose(self, report: Any = None, steps: int = 0, planned_steps: int = 0) -> list[Note]:
        """Returns what is wrong with this run, as gradscaler.Scaler.diagnose does; outside of jit."""
        return self.to_host().diagnose(report if report is None else report.to_host(), steps, planned_steps)

    def history(self, path: str | os.PathLike, **options: Any) -> History:
        """Returns a gradscaler.History, which gets a line by `history.record(scaler, report)`; outside of jit.

        `with scaler.history("run.jsonl") as history:` closes it. No update adds a line by itself.
        """
        return self.to_host().history(path, **options)

    def _policy_and_state(self) -> Any:
        return self.to_host()._policy_and_state()

    def _policy_and_facts(self, report: Any) -> Any:
        return self.to_host()._policy_and_facts(report if report is None else report.to_host())

    @classmethod
    def from_host(cls, scaler: host.Scaler) -> Any:
        """Makes a scaler from a gradscaler.Scaler, with its state."""
        new = object.__new__(cls)
        new._take(scaler)
        return new

    def state_dict(self) -> dict[str, Any]:
        """Returns gradscaler.Scaler.state_dict(), for a checkpoint. The scaler can also be saved as a pytree."""
        w.outside(self.state, "state_dict()", "scaler")
        return self.to_host().state_dict()

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], policy: str | Policy | None = None) -> Any:
        """Makes a scaler from a state_dict, also of gradscaler.Scaler, or with `policy` from a framework's checkpoint.

        For notes on a framework's checkpoint, load it by gradscaler.Scaler and pass that to from_host.
        """
        ours = isinstance(state, Mapping) and (state.get("format") == "gradscaler" or "saved" in state)
        if ours and policy is not None:
            raise ValueError("policy: the state has its own")
        if not ours and policy is None:
            raise ValueError(
                "a checkpoint of another framework has no whole policy: pass one, such as policy='torch', or load it "
                "by gradscaler.Scaler('torch').load_state_dict, which has notes, and take that by from_host"
            )
        both = [state[name] for name in ("scale", "next_scale") if ours and name in state]
        if both and both[0] != both[-1] and not state.get("apply_delay"):
            raise ValueError(
                f"the state has scale={both[0]!r} and next_scale={both[1]!r}, which differ only with apply_delay: use "
                "set_scale"
            )
        scaler = host.Scaler() if policy is None else host.Scaler(policy)
        scaler.load_state_dict(state)
        return cls.from_host(scaler)

    def set_scale(self, scale: float, **counts: int) -> Any:
        """Returns a scaler with another scale, and counts if given, as gradscaler.Scaler.set_scale; outside of jit."""
        w.outside(self.state, "set_scale()", "scaler")
        changed = self.to_host()
        changed.set_scale(scale, **counts)
        return self.from_host(changed)


# The fields of each class that flax.serialization saves; a load keeps the target's other fields.
saved_by_flax: dict[type, tuple[str, ...]] = {}
_is_registered = False


def register_with_flax() -> None:
    """Registers the classes with flax.serialization, if it is imported: each is saved as a dict of arrays."""
    global _is_registered
    flax = sys.modules.get("flax.serialization")
    if _is_registered or not hasattr(flax, "register_serialization_state"):
        return
    _is_registered = True

    def to_dict(value: Any) -> dict[str, Any]:
        policy = {"policy": np.frombuffer(value._policy, np.uint8)} if isinstance(value, Checkpoints) else {}
        return {name: getattr(value, name) for name in saved_by_flax[type(value)]} | policy

    def from_dict(target: Any, state: Mapping[str, Any]) -> Any:
        names = saved_by_flax[type(target)]
        keys = (*names, "policy") if isinstance(target, Checkpoints) else names
        if not isinstance(state, Mapping):
            raise TypeError(f"the checkpoint of a {type(target).__name__} must be a dict, not {type(state).__name__}")
        if isinstance(target, Checkpoints) and not state.keys() & set(keys):  # of flax, or of another framework
            return target.from_state_dict(state, policy=target.policy)
        if set(state) != set(keys):
            expected = ", ".join(keys) or "nothing"
            raise ValueError(f"a {type(target).__name__} has {expected}, the checkpoint {', '.join(state)}")
        if isinstance(target, Checkpoints):
            _warn_of_other_rules(target.policy, policy_of(np.asarray(state["policy"]).tobytes()))
        new = copy.copy(target)
        for name in names:
            here, saved = getattr(target, name), state[name]
            if getattr(saved, "shape", ()) != getattr(here, "shape", ()):
                raise ValueError(f"{name} has the shape {jnp.shape(saved)} in the checkpoint")
            vars(new)[name] = saved if saved is None else jnp.asarray(saved, getattr(here, "dtype", None))
        return new

    for kind in saved_by_flax:
        flax.register_serialization_state(kind, to_dict, from_dict)


def _warn_of_other_rules(policy: Policy, saved: Policy) -> None:
    here, there = rules(policy), rules(saved)
    others = [
        f"{name} was {field_text(name, there[name])} and is {field_text(name, here[name])}"
        for name in here
        if here[name] != there[name]
    ]
    if others:
        warnings.warn(f"the checkpoint's scaler had other rules than this one: {'; '.join(others)}", stacklevel=5)
