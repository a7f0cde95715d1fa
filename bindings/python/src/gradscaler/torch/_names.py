# SPDX-License-Identifier: MIT
"""The names of parameters, for reports and messages.

No reference to a parameter is kept, weak or strong: torch refuses to swap a tensor that has one, as model.to() does for
some models. A parameter is known by its id, and found again in its optimizer.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ._torch import eager

_WRAPPERS = "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"


class Member(NamedTuple):
    """A parameter of an optimizer by its position; `parameter` is None if it is gone."""

    group: int
    index: int
    id: int
    parameter: torch.Tensor | None


class Members:
    """The parameters of an optimizer that had gradients, without references to them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = weak(optimizer)
        self.given: list[Sequence[str]] = []  # the names in each group
        self._ids: list[dict[int, int]] = []
        for group in optimizer.param_groups:
            self.given.append(group.get("param_names") or ())
            self._ids.append({j: id(p) for j, p in enumerate(group["params"]) if p.grad is not None})

    def __iter__(self) -> Iterable[Member]:
        groups = getattr(self.optimizer(), "param_groups", ())
        for i, ids in enumerate(self._ids):
            parameters = groups[i]["params"] if i < len(groups) else ()
            for j, key in ids.items():
                known = parameters[j] if j < len(parameters) and id(parameters[j]) == key else None
                yield Member(i, j, key, known)


class Known(NamedTuple):
    """The name of a parameter, and a check that no other parameter has its id by now."""

    name: str
    shape: tuple[int, ...] | None
    owner: Callable[[], Any]  # a weak reference to the model


class Names:
    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._unsharded: dict[int, int] = {}  # the ids of FSDP2's parameters in the graph, by those in the optimizer

    def add(self, model: Any) -> None:
        is_model = isinstance(model, torch.nn.Module)
        pairs = model.named_parameters() if is_model else model
        try:
            pairs = [(n, p) for n, p in (pairs.items() if isinstance(pairs, Mapping) else pairs)]
            if not all(isinstance(n, str) and isinstance(p, torch.Tensor) for n, p in pairs):
                raise TypeError
        except (TypeError, ValueError, RuntimeError):
            raise TypeError("name_parameters takes a model or (name, parameter) pairs") from None
        names, ids = without_wrappers([name for name, _ in pairs]), {id(parameter) for _, parameter in pairs}
        taken = {known.name for key, known in self._known.items() if key not in ids and known.owner() is not None}
        prefix, count = "", 1
        while any(prefix + name in taken for name in names):
            prefix, count = f"{type(model).__name__}{f' {count}' if count > 1 else ''}.", count + 1
        owner = weakref.ref(model) if is_model else object
        for name, (_, parameter) in zip(names, pairs, strict=True):
            self._known[id(parameter)] = Known(prefix + name, _shape(parameter), owner)
        if is_model:
            for module in model.modules():
                if isinstance(module, getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())):
                    Unsharded(module, self._unsharded)

    def copied(self, memo: Mapping[int, Any]) -> Names:
        """Returns the names for deep copies of the parameters."""
        made = Names()
        made._known = {id(memo[key]) if key in memo else key: known for key, known in self._known.items()}
        return made

    def in_graph(self, members: Iterable[Member]) -> list[int]:
        """Returns the ids that the parameters have in the graph of a loss."""
        return [self._unsharded.get(member.id, member.id) for member in members]

    def one(self, member: Member, given: Sequence[str]) -> str:
        """Returns a parameter's name; `given` has the names in its group of the optimizer."""
        group, index, key, parameter = member
        known = self._known.get(key)
        if known is not None and (parameter is None or known.shape in (None, _shape(parameter))):
            return known.name
        flat = getattr(parameter, "_fqns", None)  # the names in a flat parameter of FSDP
        if index < len(given):
            return given[index]
        if flat:
            return flat[0] if len(flat) == 1 else f"{flat[0]} to {flat[-1]}"
        return f"group {group}, parameter {index}{'' if parameter is None else f', shape {tuple(parameter.shape)}'}"

    def of(self, members: Members) -> list[str]:
        sizes = [len(names) for names in members.given]
        flat = iter(without_wrappers([name for names in members.given for name in names]))
        given = [[next(flat) for _ in range(size)] for size in sizes]
        found = list(members)
        names = [self.one(member, given[member.group]) for member in found]
        names = distinct(names, [f"group {member.group}, " for member in found])
        return distinct(names, [f"parameter {member.index}, " for member in found])


class Unsharded:
    """A hook that learns, in the first forward pass of a module of FSDP2, the ids of its parameters there."""

    def __init__(self, module: torch.nn.Module, learned: dict[int, int]) -> None:
        self._ids, self._learned = {name: id(p) for name, p in module.named_parameters()}, learned
        self._handle = module.register_forward_pre_hook(self)

    @eager
    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        self._handle.remove()
        for name, parameter in module.named_parameters():
            if name in self._ids and self._ids[name] != id(parameter):
                self._learned[self._ids[name]] = id(parameter)


def unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def without_wrappers(names: Iterable[str]) -> list[str]:
    """Returns the names without what compiled, checkpointed and distributed models add to them."""
    names = list(map(unwrapped, names))
    while names and all(name.startswith("module.") for name in names):
        names = [name.removeprefix("module.") for name in names]
    return names


def distinct(names: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Returns the names; those that are there several times have their labels before them."""
    count = Counter(names)
    return [name if count[name] == 1 else label + name for name, label in zip(names, labels, strict=True)]


def _shape(parameter: torch.Tensor) -> tuple[int, ...] | None:
    return None if torch.nn.parameter.is_lazy(parameter) else tuple(parameter.shape)


def at(names: Sequence[str], index: int) -> Any:
    return names[index] if index < len(names) else index


def some(names: Iterable) -> str:
    names = list(names)
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(str, names[:3])) + rest


def weak(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # a wrapper with slots
        return lambda: None
