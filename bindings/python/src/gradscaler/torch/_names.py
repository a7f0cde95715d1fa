# SPDX-License-Identifier: MIT
"""The names of parameters, for reports and messages."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

# For each group of an optimizer: its names, if it has any, and its parameters with gradients by position.
Owners = list[tuple[Sequence[str], dict[int, Callable[[], Any]]]]


def owners(optimizer: torch.optim.Optimizer) -> Owners:
    """Returns weak references to the parameters with gradients."""
    return [
        (
            group.get("param_names") or (),
            {j: weakref.ref(parameter) for j, parameter in enumerate(group["params"]) if parameter.grad is not None},
        )
        for group in optimizer.param_groups
    ]


class Names:
    def __init__(self) -> None:
        self._known = WeakIdKeyDictionary()

    def add(self, model: Any) -> None:
        pairs = model.named_parameters() if isinstance(model, torch.nn.Module) else model
        try:
            pairs = [(n, p) for n, p in (pairs.items() if isinstance(pairs, Mapping) else pairs)]
            if not all(isinstance(n, str) and isinstance(p, torch.Tensor) for n, p in pairs):
                raise TypeError
        except (TypeError, ValueError, RuntimeError):
            raise TypeError("name_parameters takes a model or (name, parameter) pairs") from None
        pairs = [(name.replace("_orig_mod.", ""), parameter) for name, parameter in pairs]  # a prefix of torch.compile
        others = {id(parameter) for _, parameter in pairs}
        taken = {name for parameter, name in self._known.items() if id(parameter) not in others}
        prefix, count = "", 1
        while any(prefix + name in taken for name, _ in pairs):
            prefix, count = f"{type(model).__name__}{f' {count}' if count > 1 else ''}.", count + 1
        for name, parameter in pairs:
            self._known[parameter] = prefix + name

    def copied(self, memo: Mapping[int, Any]) -> Names:
        """Returns the names for deep copies of the parameters."""
        made = Names()
        for parameter, name in self._known.items():
            made._known[memo.get(id(parameter), parameter)] = name
        return made

    def one(self, parameter: torch.Tensor | None, group: int, index: int, names: Sequence[str]) -> str:
        shape = "" if parameter is None else f", shape {tuple(parameter.shape)}"
        known = names[index] if index < len(names) else f"group {group}, parameter {index}{shape}"
        flat = getattr(parameter, "_fqns", None)  # the names in a flat parameter of FSDP
        if parameter is not None and index >= len(names) and flat:
            known = flat[0] if len(flat) == 1 else f"{flat[0]} to {flat[-1]}"
        return known if parameter is None else self._known.get(parameter, known)

    def of(self, owners: Owners) -> list[str]:
        return [
            self.one(weak(), i, j, names)
            for i, (names, parameters) in enumerate(owners)
            for j, weak in parameters.items()
        ]


def at(names: Sequence[str], index: int) -> Any:
    return names[index] if index < len(names) else index


def some(names: Iterable) -> str:
    names = list(names)
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(str, names[:3])) + rest
