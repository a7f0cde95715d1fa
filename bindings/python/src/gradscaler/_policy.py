# SPDX-License-Identifier: MIT
"""The rules of a scaler, and the presets that they start from."""

from __future__ import annotations

import copy
import ctypes
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from . import _entries, _structs
from . import _gradscaler as c
from ._arguments import _html, _naming, _short
from ._entries import Note
from ._structs import Trait

_FIELDS = [name for name, *_ in _structs.Policy._fields_ if name not in ("struct_size", "reserved")]
_GUARD_FIELDS = [name for name in _FIELDS if name.startswith("guard_")]


def presets() -> dict[str, str]:
    """The names of all presets with a sentence each on what they do and where their rules come from."""
    return _entries.listed(c.gsc_preset_name, c.gsc_preset_summary)


class Policy(_structs.Policy):
    """The rules of a scaler: a preset by name, with fields replaced.

    >>> Policy("torch", growth_interval=100).growth_interval
    100

    A field that is set is checked at once: of fields that depend on each other, make a new policy.
    """

    preset: str = "none"  # where it started; of one that was made of bytes nobody knows
    notes: Sequence[Note] = ()  # of from_settings

    def __init__(self, preset: str = "recommended", **fields: float) -> None:
        if not isinstance(preset, str):
            raise TypeError(f"preset must be a name, not {_short(preset)}")
        vars(self)["preset"] = preset
        _structs.Policy.struct_size.__set__(self, ctypes.sizeof(_structs.Policy))
        with _naming(name="preset"):
            c.gsc_policy_preset(preset.encode(errors="replace").decode().replace("\0", "\\0"), self)
        self._replace(fields)

    @classmethod
    def from_settings(
        cls, format: str, settings: Any, *, preset: str | None = None, prefix: str | None = None, **fields: float
    ) -> Policy:
        """The rules that a framework's scaler follows with these settings: "my configuration, in gradscaler".

        >>> config = {"train_batch_size": 8, "fp16": {"enabled": True, "initial_scale_power": 12, "hysteresis": 3}}
        >>> policy = Policy.from_settings("deepspeed", config, prefix="fp16")
        >>> policy.init_scale, policy.hysteresis
        (4096.0, 3)

        `settings` are the arguments of its constructor or program, or its part of a configuration: a dict, a namespace
        of argparse, a dataclass. `format` is one of `formats()`, `prefix` the keys that they are under, joined by dots:
        in a nested configuration it is required, as settings are not searched for. What they leave out is that of the
        framework, or of `preset`; of DeepSpeed's bf16 the scale is 1 for good. `fields` are replaced afterwards.
        `policy.notes` tells in sentences which settings mean nothing to a scaler, and what became of those that mean
        something else here.
        """
        _entries.checked(format, prefix)
        if format is None:
            raise TypeError("format must be the name of one of gradscaler.formats(), not None")
        own = format if format in presets() else "recommended"
        policy = cls(own if preset is None else preset)
        vars(policy)["notes"] = _entries.settings(policy, settings, format, prefix, preset is not None)
        return policy._replace(fields)

    def _replace(self, fields: Mapping[str, float]) -> Policy:
        with _naming(policy=""):
            for name, value in fields.items():
                self._set(name, value)
            c.gsc_policy_check(self)
        return self

    def _set(self, name: str, value: float) -> None:
        if name not in _FIELDS:
            raise TypeError(f"a policy has no field {name!r}{_meant(name)}")
        if name == "init_scale" and value == 0:
            raise ValueError("init_scale is 0: it must be above 0")  # where 0 is the default of 1 in C
        try:
            super().__setattr__(name, value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f"{name}={_short(value)}: {error}") from None
        new = getattr(self, name)
        if new != value and (type(new) is not float or value != value):  # else the nearest double
            whole = f"a whole number from 0 to {2 ** (8 * getattr(_structs.Policy, name).size) - 1}"
            raise ValueError(f"{name} is {_short(value)}: it must be {'a number' if value != value else whole}")

    def replace(self, **fields: float) -> Policy:
        """These rules with fields replaced, which are checked together.

        >>> Policy("torch").replace(growth_interval=100).growth_interval
        100
        """
        policy = copy.copy(self)
        vars(policy).pop("is_copy", None)
        return policy._replace(fields)

    def __setattr__(self, name: str, value: float) -> None:
        if vars(self).get("is_copy"):
            raise AttributeError(
                f"{name}: this is a copy of the scaler's rules; scaler.replace({name}={value!r}) has others"
            )
        super().__setattr__(name, getattr(copy.copy(self)._replace({name: value}), name))

    @property
    def guards(self) -> bool:
        """Whether it judges the norm of finite gradients: guard_norm, guard_ratio or guard_sigmas is set."""
        return bool(traits(self) & Trait.GUARDS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _structs.Policy) and bytes(self) == bytes(other)

    __hash__ = None

    def differences(self, preset: str) -> dict[str, float]:
        """The fields in which this policy is not the preset."""
        base = Policy(preset)
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name) != getattr(base, name)}

    def __repr__(self) -> str:
        fields = self.differences(self.preset)
        told = [f"{name}={_entries.told(name, value)}" for name, value in fields.items()]
        return f"Policy({', '.join([repr(self.preset), *told])})"

    def _repr_html_(self) -> str:
        rules = {name: _entries.told(name, getattr(self, name)) for name in _FIELDS if getattr(self, name)}
        return _html(f"Policy {self.preset}", rules)


# help(Policy) tells the fields, too.
_, _, _about = (_structs.Policy.__doc__ or "").replace("    reserved: 0\n", "").partition("initialiser\n")
Policy.__doc__ = f"{(Policy.__doc__ or '').rstrip()}\n\n{_about}"


def _meant(name: str) -> str:
    if name in ("policy", "preset"):
        return ": a policy, or the name of a preset, is the first argument"
    import difflib

    near = difflib.get_close_matches(name, _FIELDS, 1)
    return f": did you mean {near[0]!r}?" if near else f"; it has {', '.join(_FIELDS)}"


def warn_if_idle(policy: Policy) -> None:
    """Says of a policy that looks as if it guarded, and has no rule to do so by, that it does not, where it is made."""
    given = ", ".join(name for name in _GUARD_FIELDS if getattr(policy, name))
    if "set guard_norm" in presets().get(policy.preset, ""):  # of a peer that has no threshold of its own
        given = f"the preset {policy.preset!r}"
    if given and not policy.guards:
        why = "without a threshold: set guard_norm, guard_ratio or guard_sigmas"
        frame, level = sys._getframe(1), 2
        while frame.f_back and frame.f_globals.get("__name__", "").startswith("gradscaler."):
            frame, level = frame.f_back, level + 1
        warnings.warn(f"nothing is guarded by {given} {why}", stacklevel=level)


def policy_of(data: bytes) -> Policy:
    """The policy of bytes that were pickled, by an earlier version, too, whose fewer fields are all there are."""
    policy = Policy.from_buffer_copy(data.ljust(ctypes.sizeof(Policy), b"\0"))
    _structs.Policy.struct_size.__set__(policy, ctypes.sizeof(Policy))
    return policy


def rules(policy: Policy) -> dict[str, float]:
    """The fields of a policy but its start, where 0 is no name of another number."""
    resolved = policy.replace()
    c.gsc_policy_resolve(policy, resolved)
    return {name: getattr(resolved, name) for name in _FIELDS if name != "init_scale"}


def is_fixed(policy: Policy) -> bool:
    """Whether the scale never moves."""
    return not traits(policy) & Trait.MOVES


def traits(policy: Policy) -> int:
    return c.gsc_policy_resolve(policy, None)
