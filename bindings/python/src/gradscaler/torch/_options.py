# SPDX-License-Identifier: MIT
"""The arguments of GradScaler: torch's two signatures, and the rules and options that they give."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from .. import _gradscaler as c
from .._arguments import _meant, _number
from .._policy import Policy, presets, rules, warn_if_idle
from .._structs import BadLoss, LimitRule, OverflowReset

NUMBERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
NO_BACKOFF = "backoff_factor is 0: it must be above 0"  # in C, 0 means 1 / growth_factor
_STALL_LIMIT = 10
_FIELD_OF = {"hold_bad_loss": "bad_loss_rule"}
_Init = TypeVar("_Init", bound=Callable)


@dataclasses.dataclass
class Options:
    """The constructor's arguments other than rules; `given` has the names of all arguments that were passed.

    Their names in pickles have an underscore before them.
    """

    given: Sequence[str] = ()
    allow_fp16: bool = False
    want: int = 0
    on_stall: Callable[[Any], Any] | None = None
    on_skip: Callable[[Any], Any] | None = None
    group: Any = None
    sharded: bool = False
    backend: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.want, int):
            raise TypeError(f"want={self.want!r}: expected a union of gradscaler.Want, such as Want.NORM | Want.AMAX")
        if self.on_stall is not None and not callable(self.on_stall):
            raise TypeError(f"on_stall={self.on_stall!r}: expected a function that takes a StallError")
        if self.on_skip is not None and not callable(self.on_skip):
            raise TypeError(f"on_skip={self.on_skip!r}: expected a function that takes a gradscaler.Reason")
        if isinstance(self.group, int | str):
            raise TypeError(f"process_group={self.group!r}: expected a torch.distributed group that has this rank")
        if self.backend not in (None, "torch"):
            raise ValueError(
                f"backend={self.backend!r}: it must be 'torch', or None for the core's kernels where it has them"
            )
        self.want = int(self.want)


def accept_legacy_signature(init: _Init) -> _Init:
    """Accepts torch.cuda.amp's signature, in which init_scale comes first, and keeps the names of passed arguments."""

    @functools.wraps(init)
    def accept(self: Any, *args: Any, **named: Any) -> None:
        if args and isinstance(args[0], int | float):
            args = ("cuda", *args)
        by_name = (_FIELD_OF.get(name, name) for name, value in named.items() if value is not None)
        self._options = Options((*("device", *NUMBERS)[: len(args)], *by_name))
        init(self, *args, **named)

    return accept


def refuse(device: Any, hysteresis: Any, unknown: Mapping[str, Any], options: Iterable[str]) -> None:
    """Raises if an argument is unknown, a preset in the place of a device, or no count; `options` are GradScaler's."""
    for name in unknown:
        why = f"is unknown{_meant(name, (*NUMBERS, 'enabled', *options))}"
        if name in rules(Policy("torch")):
            why = f"is a field of the policy: policy=gradscaler.Policy(..., {name}=...)"
        raise TypeError(f"GradScaler: the argument {name!r} {why}")
    if isinstance(device, str) and device in presets():
        raise ValueError(f"device is {device!r}, which is a preset: GradScaler(policy={device!r})")
    if hysteresis is not None and not hysteresis >= 1:
        raise ValueError(f"hysteresis={hysteresis!r}: it must be a whole number from 1 on")


def rules_of(policy: str | Policy | None, fields: dict[str, Any], stops: bool, holds: bool | None) -> Policy:
    """Returns the policy with the numbers that were passed; if it `stops` or `holds`, with a limit on failed steps."""
    for name in NUMBERS:
        if isinstance(fields.get(name), bool):
            why = "enabled is the sixth argument; write enabled=" + repr(fields[name])
            raise TypeError(f"{name} is {fields[name]}: it must be a number; {why}")
    if fields.get("growth_factor", 2.0) <= 1.0:
        raise AssertionError("The growth factor must be > 1.0.")
    if fields.get("backoff_factor", 0.5) >= 1.0:
        raise AssertionError("The backoff factor must be < 1.0.")
    if fields.get("backoff_factor") == 0:
        raise ValueError(NO_BACKOFF)
    if policy is None and fields.get("hysteresis", 1) > 1:
        fields["overflow_reset"] = OverflowReset.ON_GOOD_STEP
    if policy is None and fields.get("max_scale"):
        fields["ceiling_rule"] = LimitRule.CLAMP  # torch's only limit: it drops a growth that would reach infinity
    if "init_scale" in fields and _number("init_scale", fields["init_scale"]) <= 0:
        raise ValueError(f"init_scale is {fields['init_scale']}: it must be finite and above 0")
    found = with_fields(policy, fields)
    if holds is not None:
        rule = {"bad_loss_rule": BadLoss.HOLD if holds else BadLoss.OVERFLOW}
        found = found.replace(**rule, max_failed_backoffs=found.max_failed_backoffs or (_STALL_LIMIT if holds else 0))
    warn_if_idle(found)
    if (stops or fields.get("min_scale")) and not found.max_failed_backoffs:  # a floor hides stalls
        found.max_failed_backoffs = _STALL_LIMIT
    return found


def with_fields(policy: str | Policy | None, fields: Mapping[str, Any]) -> Policy:
    if policy is None or isinstance(policy, str):
        return Policy(policy or "torch", **fields)
    if not isinstance(policy, Policy):
        raise TypeError(f"policy={policy!r}: expected the name of a preset or a gradscaler.Policy")
    return policy.replace(**fields)


def resolved(policy: Policy) -> Policy:
    """Returns the rules; each 0 that means a default is replaced by the default."""
    resolved = policy.replace()
    c.gsc_policy_resolve(policy, resolved)
    return resolved
