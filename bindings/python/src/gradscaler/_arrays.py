# SPDX-License-Identifier: MIT
"""Turns lists and dicts of arrays into the arguments of calls, by name and by device."""

from __future__ import annotations

import ctypes
import functools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import _cuda
from . import _gradscaler as c
from ._arguments import _name_argument, _number, _short_repr

Container = Mapping[str, Any] | Sequence[Any]


class _Lists:
    """The gradients and results of a call: names, arrays, and the containers that they came in."""

    groups: list | None = None  # only `Arrays` keep them
    label = "grads"  # the caller's name of the inputs

    def __init__(self, grads: Container, out: Container | None = None, dtype: Any = None) -> None:
        if type(grads) is not list and isinstance(grads, Iterator):
            grads = list(grads)
        self.names, self.ins, self.paths, self.kinds = _leaves(grads)
        if any(map(_is_parameter, self.kinds)):
            grads = _map_leaves(grads, lambda entry: entry.grad if _is_parameter(type(entry)) else entry)
            self.names, self.ins, self.paths, self.kinds = _leaves(grads)
        self.nested = self.names is self.paths
        self.grads = grads
        self._refuse_masked("tensors", self.ins, self.kinds)
        if dtype is not None:
            if out is not None:
                raise TypeError("pass out or dtype, not both")
            self.outs = [_empty_like(array, dtype) for array in self.ins]
            self.out = _refill(grads, self.outs)
        elif out is None or out is grads:
            self.outs, self.out = self.ins, grads
        else:
            self.out = list(out) if isinstance(out, Iterator) else out
            self.outs = self._matching(self.out)
            self._refuse_masked("out", self.outs, c.kinds(self.outs))

    def _refuse_masked(self, name: str, arrays: list[Any], kinds: set[type]) -> None:
        if any(map(_is_masked, kinds)):
            index = next(i for i, array in enumerate(arrays) if _is_masked(type(array)))
            why = "is a masked array, and its mask would be ignored: pass an array without a mask, as of filled(0)"
            raise TypeError(f"{self.where(name, index)} {why}")

    def _matching(self, out: Container) -> list[Any]:
        """Returns the arrays of `out` in the order of the gradients."""
        if isinstance(out, Mapping) != isinstance(self.grads, Mapping):
            raise TypeError("grads and out must both be dicts, or both lists")
        if self.paths is None and not isinstance(out, Mapping):
            if not isinstance(out, Iterable) or isinstance(out, Arrays):
                raise TypeError(f"out: expected a list or dict of arrays, not {type(out).__name__}")
            return [out] if _is_array(out) else list(out)
        try:
            if self.paths is None:
                return [out[name] for name in self.names]
            return [functools.reduce(operator.getitem, name := path, out) for path in self.paths]
        except (KeyError, IndexError, TypeError) as error:
            name = error.args[0] if self.paths is None else name if self.nested else name[0]
            raise KeyError(f"out has no array {name!r}") from None

    def where(self, name: str, index: int) -> str:
        """Returns the caller's expression for an array of the list, such as grads['weight']."""
        label = "out" if name == "out" else self.label
        if not isinstance(self.grads, Mapping) and _is_array(self.grads):
            return label
        found = self.names[index] if index < len(self.names) else index
        return label + "".join(f"[{key!r}]" for key in (found if self.nested else (found,)))

    def explain(self, error: c.Error, indices: Sequence[int] | None = None) -> None:
        """Makes an error about an array name it; `indices` are the positions of the call's arrays in the whole list."""
        if error.index < 0 and error.field == "device" and error.name == "loss":
            error.args = (f"loss {error.why}",)
            return None
        if error.index < 0:
            return _name_argument(error, {"options": ""} if error.field != "clamp" else {"options": "clip_value"})
        if indices is not None:
            error.index = indices[error.index]
            error.other = indices[error.other] if error.other >= 0 else -1
        where, why = self.where(error.name, error.index), error.why
        if error.other >= 0:
            other = self.where("grads" if self.outs is self.ins else "out", error.other)
            when = "twice" if error.name == "out" or self.outs is self.ins else "before it is read"
            why = f"shares memory with {other}: it would be written {when}"
        field = f".{error.field}" if error.field and error.field != "device" else ""
        error.args = (f"{where}{field} {why}",)

    def on_host(self, writes: bool) -> list[tuple[None, Any]] | None:
        """Returns the lists as arrays of the host; None if `device_of` must be called on each array."""
        if any(map(_cuda.needs_device_of, self.kinds)):
            return None
        return [(None, (self.ins, self.outs) if writes else self.ins)]

    def grouped(self, writes: bool, hold: bool = False) -> list[tuple[Sequence[int] | None, Any]]:
        """Returns the arguments of one call per device, with the positions of their arrays; the host comes first."""
        groups = _cuda.groups(self.ins)
        is_split, results = len(groups) > 1, self.outs if writes else None
        if is_split and results is not None:
            if len(self.ins) != len(results):
                raise ValueError(f"{len(self.ins)} tensors and {len(results)} outputs")
            for i, (array, result) in enumerate(zip(self.ins, results, strict=True)):
                if _cuda.device_of(array) != _cuda.device_of(result):
                    raise ValueError(f"{self.where('out', i)} is on another device than its input")
        found = []
        for ordinal, indices in groups.items():
            indices = indices if is_split else None
            ins = [self.ins[i] for i in indices] if is_split else self.ins
            outs = [results[i] for i in indices] if is_split and results else results
            outs = ins if results is self.ins else outs
            try:
                if ordinal is not None:
                    lists = _cuda.Lists(ordinal, ins, outs)
                    if hold:
                        lists.stream()
                else:
                    lists = c.hold(ins, outs, -1, None) if hold else (ins if outs is None else (ins, outs))
            except c.Error as error:
                self.explain(error, indices)
                raise
            found.append((indices, lists))
        return found


class Arrays(_Lists):
    """Gradients and the arrays for their results, read once: calls on many small arrays cost little more than in C.

    arrays = Arrays(grads)           # in place; or Arrays(grads, out), Arrays(grads, dtype="float32"), as in `unscale`
    report = scaler.unscale(arrays)  # likewise measure and unscale_accumulate; report.grads is arrays.out

    Use it for arrays that stay in the same memory from step to step. Calls see new values in these arrays, but not an
    array that replaces another. It refuses torch tensors: zero_grad() makes new ones, and a list of them is as fast.
    `grads` and `out` are new containers with the arrays, `names` their names or indices.
    The arrays live as long as this object. Do not resize them meanwhile, by torch's `resize_` or by NumPy's with
    refcheck=False; arrays that count the users of their memory, such as a bytearray, refuse it.
    Several threads may use it if they may use the arrays. It cannot be pickled.
    On a CUDA device each call runs on the current stream of the arrays' framework, after the work already enqueued
    there. If other streams write to the arrays, make that stream wait for them first.
    """

    def __init__(self, grads: Container, out: Container | None = None, *, dtype: Any = None) -> None:
        super().__init__(grads, out, dtype)
        for i, array in enumerate(self.ins):
            if _is_torch_tensor(type(array)):
                why = "is a tensor of torch, and zero_grad() makes new gradients: pass their list instead"
                raise TypeError(f"{self.where('tensors', i)} {why}")
        self.groups = self.grouped(True, hold=True)
        self.names = tuple(self.names) if isinstance(grads, Mapping) else self.names
        in_place, self.grads = self.out is grads, _refill(grads, self.ins)
        self.out = self.grads if in_place else _refill(grads, self.outs)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<Arrays: {len(self)} {'in place' if self.out is self.grads else 'with results elsewhere'}>"

    def __reduce__(self) -> Any:
        raise TypeError("Arrays hold memory of this process: pickle or copy their grads and out instead")


def _lists_of(grads: Container | Arrays, out: Container | None = None, dtype: Any = None) -> _Lists:
    if type(grads) is list or not isinstance(grads, Arrays):
        return _Lists(grads, out, dtype)
    if out is not None or dtype is not None:
        raise TypeError("out or dtype: pass it to gradscaler.Arrays, which hold gradients and results")
    return grads


def _loss(loss: Any) -> Any:
    """Returns a loss as one array: a number and a list of numbers as doubles."""
    if isinstance(loss, list | tuple):
        return (ctypes.c_double * len(loss))(*(_number(f"loss[{i}]", each) for i, each in enumerate(loss)))
    if isinstance(loss, int | float) or not (_is_array(loss) or hasattr(loss, "__dlpack__")):
        return ctypes.c_double(_number("loss", loss))
    return loss.detach() if _is_torch_tensor(type(loss)) else loss


def _is_array(grads: Any) -> bool:
    """Returns whether `grads` is one array, not a list of arrays."""
    if hasattr(grads, "dtype"):
        return True
    try:
        memoryview(grads)
    except TypeError:
        return False
    return True


def _is_torch_tensor(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return hasattr(torch, "Tensor") and issubclass(kind, torch.Tensor)


@functools.cache
def _is_parameter(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return hasattr(torch, "nn") and issubclass(kind, torch.nn.Parameter)


@functools.cache
def _is_masked(kind: type) -> bool:
    masked = sys.modules.get("numpy.ma")
    return masked is not None and issubclass(kind, masked.MaskedArray)


@functools.cache
def _role(kind: type) -> str:
    """Returns "container", "none" or "array" for the type of an entry."""
    if issubclass(kind, Mapping | list | tuple):
        return "container"
    return "none" if issubclass(kind, type(None)) else "array"


def _leaves(grads: Container) -> tuple[Sequence[Any], list[Any], list[tuple] | None, set[type]]:
    """Returns the names (indices in a list), arrays, paths and types of `grads`, which can also be one array.

    The paths are None if no entry is None or a container.
    """
    if type(grads) is list:  # the most frequent case
        names, arrays = range(len(grads)), grads[:]
    elif isinstance(grads, Mapping):
        names, arrays = list(grads), list(grads.values())
    elif _is_array(grads):
        names, arrays = range(1), [grads]
    elif isinstance(grads, Iterable) and not isinstance(grads, Arrays):
        arrays = list(grads)
        names = range(len(arrays))
    else:
        raise TypeError(f"grads: expected a list or dict of arrays, not {type(grads).__name__}")
    kinds = c.kinds(arrays)
    roles = set(map(_role, kinds))
    if roles == {"array"} or not roles:
        return names, arrays, None, kinds
    if "container" in roles:
        paths: list[tuple] = []
        found: list[Any] = []
        _walk(dict(zip(names, arrays, strict=True)), (), paths, found)
        return paths, found, paths, c.kinds(found)
    names = [name for name, array in zip(names, arrays, strict=True) if array is not None]
    arrays = [array for array in arrays if array is not None]
    return names, arrays, [(name,) for name in names], c.kinds(arrays)


def _walk(tree: Any, path: tuple, paths: list[tuple], found: list[Any]) -> None:
    """Appends the arrays of a tree of dicts and lists to `found` and their paths to `paths`; skips None."""
    if len(path) > 32:
        raise ValueError(f"grads{''.join(f'[{key!r}]' for key in path[:3])}... is nested without end")
    if isinstance(tree, Mapping):
        for key, branch in tree.items():
            _walk(branch, (*path, key), paths, found)
    elif isinstance(tree, list | tuple):
        for key, branch in enumerate(tree):
            _walk(branch, (*path, key), paths, found)
    elif tree is not None:
        paths.append(path)
        found.append(tree)


def _map_leaves(grads: Container, leaf: Callable[[Any], Any]) -> Any:
    """Returns the same nested containers with `leaf(entry)` in place of each entry."""
    return _map_branch(grads if isinstance(grads, Mapping) or _is_array(grads) else list(grads), leaf)


def _map_branch(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _map_branch(entry, leaf) for key, entry in tree.items()}
    if isinstance(tree, list | tuple):
        return [_map_branch(entry, leaf) for entry in tree]
    return leaf(tree)


def _refill(grads: Container, arrays: list[Any]) -> Any:
    """Returns `arrays` in the same nested containers as the arrays of `grads`."""
    rest = iter(arrays)
    return _map_leaves(grads, lambda entry: None if entry is None else next(rest))


def _empty_like(array: Any, dtype: Any) -> Any:
    """Returns a new array of another dtype in the same memory order, on the same device."""
    if _cuda.can_be_on_device(type(array)):
        framework = sys.modules[type(array).__module__.partition(".")[0]]
        if hasattr(framework, "empty_like"):
            return framework.empty_like(array, dtype=getattr(framework, dtype) if isinstance(dtype, str) else dtype)
        if _cuda.device_of(array) is not None:
            raise TypeError(f"dtype={_short_repr(dtype)}: {framework.__name__} has no empty_like; pass out instead")
    import numpy as np

    return np.empty_like(np.asarray(array), dtype=_dtype(dtype), subok=False)


@functools.cache
def _is_framework_tensor(kind: type) -> bool:
    """Returns whether this is the type of a framework's tensor or of its tracer."""
    return hasattr(kind, "dtype") and hasattr(kind, "__mul__") and not hasattr(kind, "__array_interface__")


@functools.cache
def cb16() -> Any:
    """Returns a NumPy dtype for Cerebras' 16 bits. NumPy cannot compute with it."""
    import numpy as np

    return np.dtype([("cb16", "<u2")])


def _dtype(dtype: Any) -> Any:
    return cb16() if isinstance(dtype, str) and dtype == "cb16" else dtype
