# SPDX-License-Identifier: MIT
"""The rules of a scaler, and the presets that they start from."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from . import _entries, _structs
from . import _gradscaler as c
from ._arguments import _argument_names, _html, _meant, _short_repr, _warn_caller
from ._entries import Note
from ._structs import Trait

_FIELDS = [name for name, *_ in _structs.Policy._fields_ if name != "struct_size"]
_SIZE_IN_0_9 = 216
_GUARD_FIELDS = [name for name in _FIELDS if name.startswith("guard_")]


def presets() -> dict[str, str]:
    """Returns the names of all presets, each with a sentence on what it does and where its rules come from."""
    return _entries.listed(c.gsc_preset_name, c.gsc_preset_summary)


class Policy(_structs.Policy):
    """The rules of a scaler: a preset by name, with fields replaced.

    >>> Policy("torch", growth_interval=100).growth_interval
    100

    Setting a field checks it at once. To change several fields that depend on each other, use `replace`.
    """

    preset: str = "none"  # the preset that it was made from; "none" if it was made from bytes
    notes: Sequence[Note] = ()  # made by from_settings

    def __init__(self, preset: str = "recommended", **fields: float) -> None:
        if not isinstance(preset, str):
            raise TypeError(f"preset must be a name, not {_short_repr(preset)}")
        vars(self)["preset"] = preset
        _structs.Policy.struct_size.__set__(self, ctypes.sizeof(_structs.Policy))
        with _argument_names(name="preset"):
            c.gsc_policy_preset(preset.encode(errors="replace").decode().replace("\0", "\\0"), self)
        self._replace(fields)

    @classmethod
    def from_settings(
        cls, format: str, settings: Any, *, preset: str | None = None, prefix: str | None = None, **fields: float
    ) -> Policy:
        """Returns the rules of a framework's scaler with these settings.

        >>> config = {"train_batch_size": 8, "fp16": {"enabled": True, "initial_scale_power": 12, "hysteresis": 3}}
        >>> policy = Policy.from_settings("deepspeed", config, prefix="fp16")
        >>> policy.init_scale, policy.hysteresis
        (4096.0, 3)

        format: one of `formats()`
        settings: the arguments of the framework's constructor or program, or its section of a configuration: a dict, a
            namespace of argparse, or a dataclass
        preset: gives the rules that the settings leave out; None: the framework's defaults do. With DeepSpeed's bf16
            the scale is always 1
        prefix: the keys above the settings, joined by dots; required in a nested configuration
        fields: replace fields afterwards

        `policy.notes` has a sentence on each setting that a scaler does not use, or that means something else here.
        """
        _entries.check_names(format, prefix)
        if format is None:
            raise TypeError("format must be the name of one of gradscaler.formats(), not None")
        own = format if format in presets() else "recommended"
        policy = cls(own if preset is None else preset)
        vars(policy)["notes"] = _entries.settings(policy, settings, format, prefix, preset is not None)
        return policy._replace(fields)

    def _replace(self, fields: Mapping[str, float]) -> Policy:
        with _argument_names(policy=""):
            for name, value in fields.items():
                self._set(name, value)
            c.gsc_policy_check(self)
        return self

    def _set(self, name: str, value: float) -> None:
        if name not in _FIELDS:
            is_policy = ": a policy, or the name of a preset, is the first argument"
            why = is_policy if name in ("policy", "preset") else _meant(name, _FIELDS)
            raise TypeError(f"a policy has no field {name!r}{why}")
        if name == "init_scale" and value == 0:
            raise ValueError("init_scale is 0: it must be above 0")  # in C, 0 means the default, 1
        try:
            super().__setattr__(name, value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f"{name}={_short_repr(value)}: {error}") from None
        new = getattr(self, name)
        if new != value and (type(new) is not float or value != value):  # a float becomes the nearest double
            whole = f"a whole number from 0 to {2 ** (8 * getattr(_structs.Policy, name).size) - 1}"
            raise ValueError(f"{name} is {_short_repr(value)}: it must be {'a number' if value != value else whole}")

    def replace(self, **fields: float) -> Policy:
        """Returns a copy with fields replaced; checks the result as a whole.

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
        """True if the policy judges the norm of finite gradients: guard_norm, guard_ratio or guard_sigmas is set."""
        return bool(traits(self) & Trait.GUARDS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _structs.Policy) and bytes(self) == bytes(other)

    __hash__ = None

    def __setstate__(self, attributes: Mapping[str, Any], data: bytes) -> None:
        super().__setstate__(attributes, bytes(policy_of(data)))

    def differences(self, preset: str) -> dict[str, float]:
        """Returns the fields that differ from the preset."""
        base = Policy(preset)
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name) != getattr(base, name)}

    def __repr__(self) -> str:
        fields = self.differences(self.preset)
        texts = [f"{name}={_entries.field_text(name, value)}" for name, value in fields.items()]
        return f"Policy({', '.join([repr(self.preset), *texts])})"

    def _repr_html_(self) -> str:
        rules = {name: _entries.field_text(name, getattr(self, name)) for name in _FIELDS if getattr(self, name)}
        return _html(f"Policy {self.preset}", rules)


# help(Policy) also describes the fields.
Policy.__doc__ = f"{(Policy.__doc__ or '').rstrip()}\n\n    {_structs.Policy._fields_doc_}"


def warn_if_idle(policy: Policy) -> None:
    """Warns the caller of gradscaler if a policy sets guard fields but no threshold: it guards nothing."""
    given = [name for name in _GUARD_FIELDS if getattr(policy, name)]
    if given and not policy.guards:
        is_as_preset = policy.differences(policy.preset).keys().isdisjoint(given)
        what = f"the preset {policy.preset!r}" if is_as_preset else ", ".join(given)
        why = "without a threshold: set guard_norm, guard_ratio or guard_sigmas"
        _warn_caller(f"nothing is guarded by {what} {why}")


def warn_of_no_gradients(scaler: Any) -> None:
    """Warns the caller of gradscaler of a step without gradients, once for each scaler."""
    if "_has_warned" not in vars(scaler):
        vars(scaler)["_has_warned"] = True
        _warn_caller(
            "this step had no gradients: all are None or empty, or none were passed. It counts as a good step, so the "
            "scale can grow. Check that the backward pass ran before, and that its parameters are the ones passed"
        )


def policy_of(data: bytes) -> Policy:
    """Returns the policy from pickled bytes; an earlier version wrote fewer fields, and the missing ones become 0."""
    policy = Policy.from_buffer_copy(data.ljust(ctypes.sizeof(Policy), b"\0"))
    if policy.struct_size == _SIZE_IN_0_9:
        refuse_candidate("the policy")
    _structs.Policy.struct_size.__set__(policy, ctypes.sizeof(Policy))
    return policy


def refuse_candidate(where: str) -> None:
    """Raises the library's error for what 0.9 or an earlier candidate saved."""
    one = 0x3FF << 52  # as a double 1.0, which a state of 0.9 had in these places
    with _argument_names(state=where):
        c.gsc_state_digest(None, _structs.State(failed_backoffs=one, bad_losses_in_a_row=one))


def rules(policy: Policy) -> dict[str, float]:
    """Returns the fields except init_scale; each 0 that means a default is replaced by the default."""
    resolved = policy.replace()
    c.gsc_policy_resolve(policy, resolved)
    return {name: getattr(resolved, name) for name in _FIELDS if name != "init_scale"}


def is_fixed(policy: Policy) -> bool:
    """Returns whether the scale never moves."""
    return not traits(policy) & Trait.MOVES


def traits(policy: Policy) -> int:
    return c.gsc_policy_resolve(policy, None)
