# SPDX-License-Identifier: MIT
"""Finds the module that makes the first Inf or NaN of a step, in the forward or the backward pass.

Hooks measure the inputs and outputs of all modules and their gradients. On a device the measurements stay there until
the first result is read. No full backward hook is used: it refuses modules that write in place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as _is_wrapper
from torch.utils.weak import WeakIdKeyDictionary

from ._names import unwrapped
from ._stall import StallError
from ._torch import backward_id

_SHOWN = 40  # the most rows of a printed table
_HOST = "cpu"  # where reading a number does not wait
_LAYOUTS = torch.strided, torch.sparse_coo
_FORWARD, _BACKWARD = "forward", "backward"


def trace(model: torch.nn.Module, *, operators: bool = False, underflow: bool = False) -> Trace:
    """Finds the module that makes the first Inf or NaN: `with trace(model) as t:` around one step, then `print(t)`.

    The step has the same results as without the trace. A compiled model runs without the compiler.
    operators: also names the operator that made the first Inf or NaN; the step takes about three times as long
    underflow: also counts zeros and subnormals
    """
    return Trace(model, operators, underflow)


@dataclasses.dataclass(slots=True, eq=False)
class Row:
    """The measurements of one tensor: an output of a module, an input that no module made, or a gradient.

    name: the module, "" for the model itself, or the parameter of a gradient
    call: 2 if it is from the second call of the module
    tensor: "output", "input", or "parameter"; with a number if the module has several
    direction: "forward", or "backward" for gradients
    largest: the largest magnitude, also if it is infinite
    headroom: how many times `largest` can be doubled before it is above the largest value of the dtype
    zeros, subnormals: None without underflow=True
    """

    name: str
    call: int
    tensor: str
    direction: str
    dtype: torch.dtype
    elements: int
    needs_grad: bool
    smallest: float = 0.0
    greatest: float = 0.0
    inf: int = 0
    nan: int = 0
    zeros: int | None = None
    subnormals: int | None = None
    _traced: _Tensor | None = dataclasses.field(default=None, repr=False)
    _operation: _Operation | None = dataclasses.field(default=None, repr=False)
    _backward: int = dataclasses.field(default=-1, repr=False)

    @property
    def largest(self) -> float:
        return math.nan if self.nan else max(abs(self.smallest), abs(self.greatest))

    @property
    def headroom(self) -> float:
        largest = self.largest
        return math.log2(torch.finfo(self.dtype).max / largest) if 0 < largest < math.inf else math.nan

    @property
    def is_finite(self) -> bool:
        return not self.inf + self.nan

    def is_mask(self) -> bool:
        """Returns whether -Inf is all that is not finite, as in a mask."""
        return self.smallest == -math.inf and not self.nan and self.greatest < math.inf

    def counts(self) -> str:
        """Returns the counts of Inf and NaN in words."""
        counts = [f"{count} {kind}" for count, kind in ((self.inf, "Inf"), (self.nan, "NaN")) if count]
        return f"{' and '.join(counts)} in {self.elements} elements of {_short(self.dtype)}"


@dataclasses.dataclass(slots=True, eq=False)
class _Call:
    """One call of a module. In a recomputation of checkpointing its number is 0."""

    name: str
    number: int
    parent: _Call | None
    position: int = 0  # among the calls of the parent
    calls: list[_Call] = dataclasses.field(default_factory=list)
    inputs: list[_Tensor] = dataclasses.field(default_factory=list)
    outputs: list[_Tensor] = dataclasses.field(default_factory=list)

    def chain(self) -> Iterator[_Call]:
        """Yields the call and those that it was made in."""
        call: _Call | None = self
        while call is not None:
            yield call
            call = call.parent

    def is_finite(self) -> bool:
        rows = [tensor.row for tensor in self.outputs if tensor.row is not None]
        return bool(rows) and all(row.is_finite for row in rows)


@dataclasses.dataclass(slots=True, eq=False)
class _Tensor:
    """One version of a tensor: where it was met first, and the calls that took it."""

    version: int
    call: _Call
    kind: str  # "input" or "output" of the call
    label: str
    takers: list[_Call] = dataclasses.field(default_factory=list)
    row: Row | None = None

    def leaves(self) -> list[_Call]:
        """Returns the calls that took it and called no other module."""
        return [call for call in self.takers if not call.calls]


@dataclasses.dataclass(slots=True, eq=False)
class _Operation:
    name: str
    sources: list[_Operation]
    row: Row

    def origin(self) -> _Operation:
        """Returns the operation that made Inf or NaN of finite inputs, and passed it on to this one."""
        operation = self
        while (bad := next((one for one in operation.sources if not one.row.is_finite), None)) is not None:
            operation = bad
        return operation


@dataclasses.dataclass(slots=True)
class _Cause:
    """Where the first Inf or NaN was made: `row` has it, `module` the code that made it."""

    row: Row
    module: str
    sentence: str


class _Thread(threading.local):
    """The state of one thread: a model can run in several."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.nn.Module, _Call]] = []  # those that have not returned yet
        self.is_measuring = False


class _Operators(TorchDispatchMode):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self._run = run

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._run(operator, args, kwargs or {})


class Trace:
    """The trace of one step; see gradscaler.torch.trace. Reading a result waits for the device.

    reason: where the first Inf or NaN was made, as a sentence; empty if there is none
    module: the name of the module that made it, "" for the model itself; None if there is none
    direction: "forward", "backward", or None
    operator: with operators=True the operator that made it, such as "aten.exp.default"; None if it is not known
    first: the Row with the first Inf or NaN, or None
    rows: a Row for each tensor, in the order of the step

    Inf that has no effect is no cause, such as -Inf in masks: all gradients are then finite.
    """

    def __init__(self, model: torch.nn.Module, operators: bool = False, underflow: bool = False) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"trace takes a torch.nn.Module, not {type(model).__name__}")
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        self._model, self._operators, self._underflow = model, operators, underflow
        self._title = type(getattr(model, "_orig_mod", model)).__name__
        self._hooks, self._thread, self._is_open = contextlib.ExitStack(), _Thread(), False
        self._found: tuple[int, _Cause | None] = 0, None  # the cause among so many rows
        self._rows: list[Row] = []
        self._parameters: list[Row] = []
        self._outermost: list[_Call] = []
        self._unread: list[tuple[Row, torch.Tensor]] = []
        self._calls: defaultdict[str, list[_Call]] = defaultdict(list)
        self._seen, self._writers = WeakIdKeyDictionary(), {}

    # ---- the hooks ----

    def __enter__(self) -> Trace:
        model, hooks = self._model, self._hooks
        self._is_open = True
        try:
            if "torch._dynamo" in sys.modules:  # else nothing is compiled, and the import takes seconds
                hooks.enter_context(torch.compiler.set_stance("force_eager"))
            for name, module in model.named_modules():
                if isinstance(module, torch.jit.ScriptModule):  # refuses hooks
                    continue
                before, after = functools.partial(self._before, unwrapped(name)), self._after
                hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                # Also called if the module raises: checkpointing ends its recomputation by an exception.
                hooks.callback(module.register_forward_hook(after, with_kwargs=True, always_call=True).remove)
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    hook = functools.partial(self._parameter_gradient, unwrapped(name))
                    hooks.callback(parameter.register_hook(hook).remove)
            if self._operators:
                hooks.enter_context(_Operators(self._operate))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        self._hooks.close()
        self._seen, self._writers = WeakIdKeyDictionary(), {}

    def _before(self, name: str, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        calls, is_recomputed = self._thread.calls, backward_id() != -1
        if not calls and not is_recomputed:
            self._measure_parameters()
        number = 0 if is_recomputed else 1 + len(self._calls[name])
        call = _Call(name, number, calls[-1][1] if calls else None)
        if not is_recomputed:
            self._calls[name].append(call)
        if call.parent is not None:
            call.position = len(call.parent.calls)
            call.parent.calls.append(call)
        elif not is_recomputed:
            self._outermost.append(call)
        call.inputs = self._traced(call, "input", (args, kwargs))
        for tensor in call.inputs:
            tensor.takers.append(call)
        calls.append((module, call))

    def _after(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls = self._thread.calls
        while calls:
            ended, call = calls.pop()
            if ended is module:
                call.outputs = self._traced(call, "output", output)
                return

    def _traced(self, call: _Call, kind: str, values: Any) -> list[_Tensor]:
        """Measures the tensors that are new or were written since, and asks for their gradients."""
        found, tensors = [], list(_tensors(values))
        for i, x in enumerate(tensors):
            version = 0 if x.is_inference() else x._version
            tensor = self._seen.get(x)
            if tensor is None or tensor.version != version:
                tensor = self._seen[x] = _Tensor(version, call, kind, f"{kind} {i}" if len(tensors) > 1 else kind)
                if call.number:
                    row = self._row(x, call.name, call.number, tensor.label, _FORWARD)
                    tensor.row, row._traced = row, tensor
                    self._rows.append(row)
                if x.requires_grad:
                    self._hooks.callback(x.register_hook(functools.partial(self._gradient, tensor)).remove)
            found.append(tensor)
        return found

    def _gradient(self, tensor: _Tensor, gradient: torch.Tensor) -> None:
        self._add_gradient(tensor.call.name, tensor.call.number, tensor.label, gradient, tensor)

    def _parameter_gradient(self, name: str, gradient: torch.Tensor) -> None:
        self._add_gradient(name, 1, "parameter", gradient, None)

    def _add_gradient(self, name: str, call: int, label: str, gradient: Any, tensor: _Tensor | None) -> None:
        for x in _tensors(gradient):
            row = self._row(x, name, call, label, _BACKWARD)
            row._traced, row._backward = tensor, backward_id()
            self._rows.append(row)

    def _measure_parameters(self) -> None:
        """Measures the parameters before the first call: a step can change them."""
        if not self._parameters:
            pairs = self._model.named_parameters()
            self._parameters = [
                self._row(x, unwrapped(name), 1, "parameter", _FORWARD) for name, p in pairs for x in _tensors(p)
            ]

    # ---- the measurements ----

    def _row(self, x: torch.Tensor, name: str, call: int, label: str, direction: str) -> Row:
        thread = self._thread
        thread.is_measuring, nested = True, thread.is_measuring
        try:
            row = Row(name, call, label, direction, x.dtype, x.numel(), x.requires_grad)
            if self._operators:
                row._operation = self._writers.get(_memory_of(x))
            with torch._C.DisableTorchFunctionSubclass():
                values = _measured(x, self._underflow)
            if isinstance(values, torch.Tensor):
                self._unread.append((row, values))
            else:
                _fill(row, values)
            return row
        finally:
            thread.is_measuring = nested

    def _operate(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator, and measures its outputs unless they are views."""
        if self._thread.is_measuring or operator.is_view:
            return operator(*args, **kwargs)
        writers = map(self._writers.get, map(_memory_of, _tensors((args, kwargs))))
        sources = [writer for writer in writers if writer is not None]
        result = operator(*args, **kwargs)
        for x in _tensors(result):
            direction = _FORWARD if backward_id() == -1 else _BACKWARD
            module = self._thread.calls[-1][1].name if self._thread.calls else ""
            row = self._row(x, module, 1, "output", direction)
            self._writers[_memory_of(x)] = _Operation(str(operator), sources, row)
        return result

    def _read(self) -> None:
        """Reads what was measured, once for each device and dtype."""
        unread, self._unread = self._unread, []
        groups = defaultdict(list)
        for row, values in unread:
            groups[values.device, values.dtype].append((row, values))
        for pairs in groups.values():
            rows, values = zip(*pairs, strict=True)
            for row, numbers in zip(rows, torch.stack(values).tolist(), strict=True):
                _fill(row, numbers)

    # ---- the cause ----

    @property
    def rows(self) -> Sequence[Row]:
        self._read()
        return self._rows

    @property
    def reason(self) -> str:
        cause = self._cause()
        if cause is None:
            return ""
        operation = None if cause.row._operation is None else cause.row._operation.origin()
        if operation is None:
            return cause.sentence
        where = f" in the {operation.row.direction} pass" if operation.row.direction != cause.row.direction else ""
        where += f" of {operation.row.name}" if where and operation.row.name else ""
        return f"{cause.sentence} The operator is {operation.name}{where}."

    @property
    def module(self) -> str | None:
        cause = self._cause()
        return None if cause is None else cause.module

    @property
    def direction(self) -> str | None:
        return None if self.first is None else self.first.direction

    @property
    def operator(self) -> str | None:
        operation = None if self.first is None else self.first._operation
        return None if operation is None else operation.origin().name

    @property
    def first(self) -> Row | None:
        cause = self._cause()
        return None if cause is None else cause.row

    def _cause(self) -> _Cause | None:
        if self._found[0] != len(self.rows):
            self._found = len(self._rows), self._find()
        return self._found[1]

    def _find(self) -> _Cause | None:
        gradients = [row for row in self.rows if row.direction == _BACKWARD]
        bad = next((row for row in gradients if not row.is_finite), None)
        ends = [tensor.row for call in self._outermost for tensor in call.outputs if tensor.row is not None]
        ends = [row for row in ends if not row.is_finite and (row.elements == 1 or not row.is_mask())]
        if gradients and bad is None and not any(row.elements == 1 for row in ends):
            return None  # the loss and its gradients are finite
        forward = [row for row in self.rows if row.direction == _FORWARD]
        if ends:
            wrong = next((row for row in self._parameters if not row.is_finite), None)
            if wrong is not None:
                sentence = f"The parameter {wrong.name} is not finite before the step: {wrong.counts()}."
                return _Cause(wrong, wrong.name.rpartition(".")[0], sentence)
            return self._forward_cause(next(row for row in forward if row in ends or _is_cause(row)))
        if bad is None:
            return None
        tensor = bad._traced
        calls = self._calls[bad.name.rpartition(".")[0]] if tensor is None else self._blamed(bad)
        used = [*sum((call.inputs for call in calls), []), *([tensor] if tensor else [])]
        wrong = [row for row in forward if not row.is_finite and not row.is_mask()]
        if any(row._traced in used for row in wrong):  # 0 times Inf is NaN, in the gradient alone
            return self._forward_cause(wrong[0])
        return self._backward_cause(bad)

    def _before_row(self, row: Row) -> list[_Tensor]:
        """Returns the tensors with gradients that the same backward pass made before this one."""
        rows = self._rows[: self._rows.index(row)]
        return [each._traced for each in rows if each._traced is not None and each._backward == row._backward]

    def _blamed(self, row: Row) -> list[_Call]:
        """Returns the calls that made a bad gradient of good ones, the last in the backward pass first."""
        before, leaves = self._before_row(row), row._traced.leaves()
        order = {id(call): max((_last_index(before, one) for one in call.outputs), default=-1) for call in leaves}
        known = [call for call in leaves if order[id(call)] >= 0]
        return sorted(known, key=lambda call: -order[id(call)]) or leaves[-1:]

    def _forward_cause(self, row: Row) -> _Cause:
        tensor, call = row._traced, row._traced.call
        what = f"made the first Inf or NaN: {row.counts()}."
        if tensor.kind == "output":
            where = self._called(call) if not call.calls else f"code in {self._called(call)}, after the last module,"
            return _Cause(row, call.name, f"In the forward pass, {where} {what}")
        if call.parent is None and not row.needs_grad:
            where = self._called(call)
            return _Cause(row, call.name, f"The input of {where} is not finite: {row.counts()}. Look at the data.")
        earlier = self._outermost if call.parent is None else call.parent.calls[: call.position]
        earlier = [each for each in earlier if each is not call]
        module = "" if call.parent is None else call.parent.name
        where = self._between(earlier[-1] if earlier else None, call, module)
        return _Cause(row, module, f"In the forward pass, code {where} {what}")

    def _backward_cause(self, row: Row) -> _Cause:
        what = "made the first Inf or NaN, in the gradient of"
        if row._traced is None:
            module = row.name.rpartition(".")[0]
            sentence = f"In the backward pass, {module or self._title} {what} {row.name}: {row.counts()}."
            return _Cause(row, module, sentence)
        tensor, before, blamed = row._traced, self._before_row(row), self._blamed(row)
        if blamed:
            names = " or ".join(dict.fromkeys(map(self._called, blamed)))
            sentence = f"In the backward pass, {names} {what} its input: {row.counts()}."
            return _Cause(row, blamed[0].name, sentence)
        maker = tensor.call
        if not before:
            sentence = f"The gradient of the output of {self._called(maker)} is not finite: {row.counts()}."
            return _Cause(row, maker.name, f"{sentence} Look at the loss, and at its scale.")
        after = before[-1]
        module = after.call.parent if after.kind == "input" else after.call
        end = after.call if after.kind == "input" else None
        module = "" if module is None else module.name
        where = self._between(maker if tensor.kind == "output" else None, end, module)
        sentence = f"In the backward pass, code {where} {what} the output of {self._called(maker)}: {row.counts()}."
        return _Cause(row, module, sentence)

    def _called(self, call: _Call) -> str:
        return (call.name or self._title) + (f" (call {call.number})" if call.number > 1 else "")

    def _between(self, first: _Call | None, last: _Call | None, module: str) -> str:
        if first is None and last is None:
            return f"in {module or self._title}"
        if first is None or last is None:
            side, call = ("before", last) if first is None else ("after", first)
            return f"in {module or self._title}, {side} {self._called(call)},"
        return f"between {self._called(first)} and {self._called(last)}"

    # ---- the table and the picture ----

    def _shown(self) -> list[Row]:
        """Returns the rows around the first Inf or NaN, else those with the least headroom."""
        rows, first = list(self.rows), self.first
        if len(rows) <= _SHOWN:
            return rows
        if first in rows:
            start = max(0, min(rows.index(first) - _SHOWN // 2, len(rows) - _SHOWN))
            return rows[start : start + _SHOWN]
        least = sorted(rows, key=lambda row: math.inf if math.isnan(row.headroom) else row.headroom)
        kept = set(map(id, least[:_SHOWN]))
        return [row for row in rows if id(row) in kept]

    def _summary(self) -> str:
        if not self.rows:
            return f"No module of {self._title} was called."
        return self.reason or "No Inf or NaN reached the loss or a gradient."

    def _lines(self) -> list[tuple[str, ...]]:
        small = ("zeros", "subnormals") * self._underflow
        lines = [("pass", "tensor", "dtype", "largest", "headroom", *small, "Inf", "NaN", "")]
        for row in self._shown():
            name = (row.name or self._title) + (f" (call {row.call})" if row.call > 1 else "")
            name += "" if row.tensor in ("output", "parameter") else f", {row.tensor}"
            headroom = "" if math.isnan(row.headroom) else f"2^{row.headroom:.1f}"
            counts = map(str, ((row.zeros, row.subnormals) if self._underflow else ()) + (row.inf, row.nan))
            dtype, mark = _short(row.dtype), "<- first" if row is self.first else ""
            lines.append((row.direction, name, dtype, f"{row.largest:.3g}", headroom, *counts, mark))
        return lines

    def __str__(self) -> str:
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [
            "  ".join(
                cell.ljust(width) if i < 3 or i == len(line) - 1 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        hidden = len(self._rows) - len(lines) + 1
        more = [f"{hidden} more in rows"] if hidden else []
        return "\n".join([self._summary(), "", *texts, *more] if self._rows else [self._summary()])

    def __repr__(self) -> str:
        return f"<Trace of {self._title}, {len(self._rows)} rows: {self._summary()}>"

    def _repr_html_(self) -> str:
        from html import escape

        head, *lines = [[escape(cell) for cell in line] for line in self._lines()]
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
        titles = "".join(f"<th>{cell}</th>" for cell in head)
        caption = f"<caption style='text-align:left;font-weight:bold'>{escape(self._summary())}</caption>"
        return f"<table>{caption}<tr>{titles}</tr>{body}</table>"

    def plot(self, ax: Any = None) -> Any:
        """Draws the largest magnitude of each row, with the largest value of its dtype, by matplotlib.

        ax: None for a new Figure, which is returned; or one matplotlib Axes
        Without matplotlib it returns the table.
        """
        from .._plot import LIMIT, OVERFLOW, SCALE

        figure = None
        if ax is None:
            try:
                from matplotlib.figure import Figure
            except ImportError:
                return str(self)
            figure = Figure(figsize=(10, 4), layout="constrained")
            ax = figure.subplots()
        rows = list(self.rows)
        limits = [torch.finfo(row.dtype).max for row in rows]
        good = [i for i, row in enumerate(rows) if 0 < row.largest < math.inf]
        bad = [i for i, row in enumerate(rows) if not row.is_finite]
        ax.step(range(len(rows)), limits, where="mid", color=LIMIT, label="largest value of the dtype")
        ax.plot(good, [rows[i].largest for i in good], ".", color=SCALE, label="largest magnitude")
        ax.plot(bad, [limits[i] for i in bad], "v", color=OVERFLOW, label=f"Inf or NaN ({len(bad)})")
        turn = next((i for i, row in enumerate(rows) if row.direction == _BACKWARD), None)
        if turn is not None:
            ax.axvline(turn - 0.5, color="gray", linewidth=0.8)
            ax.text(turn, 1, " backward", transform=ax.get_xaxis_transform(), va="top")
        ax.set_yscale("log", base=2)
        ax.set(xlabel="tensors in the order of the step", ylabel="largest magnitude", title=self._summary())
        ax.title.set(wrap=True, fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=9)
        return figure or ax


class Traced:
    """The traces of a GradScaler."""

    _trace: Trace | None = None

    def trace_next(self, model: torch.nn.Module, *, operators: bool = False, underflow: bool = False) -> Trace:
        """Traces the next step of the model, from its forward pass to update(), and returns the Trace; see trace.

        Call it after a StallError or an overflow. After the step `reason` also has the sentence of the trace. If a
        history is open, its folder gets the table in a file: run.trace.txt beside run.jsonl.
        """
        if not self._enabled:
            raise RuntimeError("the scaler is disabled, so no update() ends the trace: use gradscaler.torch.trace")
        if self._trace is not None:
            self._trace.__exit__()
        self._trace = Trace(model, operators, underflow).__enter__()
        return self._trace

    def _end_trace(self) -> None:
        """Ends the trace if its step has begun; after the step that follows, drops it."""
        trace = self._trace
        if trace is not None and not trace._is_open:
            self._trace = None
        elif trace is not None and trace._rows:
            trace.__exit__()
            if self._history is not None:
                path = f"{os.path.splitext(self._history.path)[0]}.trace.txt"
                with open(path, "a", encoding="utf-8") as file:
                    file.write(f"step {self._history._step}: {trace}\n\n")

    def _stall(self, *args: Any) -> None:
        try:
            super()._stall(*args)
        except StallError as error:
            if self._trace is not None and self._trace._is_open:  # no update() follows
                self._end_trace()
            if self._trace is not None and self._trace.reason:
                error.add_note(self._trace.reason)
            raise

    @property
    def reason(self) -> str:
        words = super().reason
        found = "" if self._trace is None else self._trace.reason
        return f"{words}. {found}" if words and found else words or found


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors that can be measured."""
    if isinstance(values, torch.Tensor):
        if values.is_floating_point() or values.is_complex():
            is_plain = values.layout in _LAYOUTS and values.device.type != "meta"
            is_known = type(values) is torch.Tensor or hasattr(values, "to_local") or not _is_wrapper(values)
            if is_plain and is_known and not is_functorch_wrapped_tensor(values):
                yield values
    elif isinstance(values, list | tuple | Mapping):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _tensors(value)


def _measured(x: torch.Tensor, underflow: bool) -> Sequence[float] | torch.Tensor:
    """Returns smallest, greatest, the counts of Inf and NaN and, if asked for, of zeros and subnormals."""
    x = x.detach()
    x = x.to_local() if hasattr(x, "to_local") else x
    x = x._values() if x.is_sparse else x
    if not x.numel():
        return [0.0] * (6 if underflow else 4)
    dtype = x.dtype
    x = torch.view_as_real(x) if x.is_complex() else x.float() if x.dtype.itemsize == 1 else x
    values, on_host = [*x.aminmax()], x.device.type == _HOST
    values = [value.item() for value in values] if on_host else values
    if on_host and all(map(math.isfinite, values)):
        values += [0, 0]
    else:
        values += [x.isinf().sum(), x.isnan().sum()]
    if underflow:
        zeros = x.numel() - x.count_nonzero()
        values += [zeros, (x.abs() < torch.finfo(dtype).tiny).sum() - zeros]
    if on_host:
        return [float(value) for value in values]
    return torch.stack([value.to(torch.promote_types(x.dtype, torch.float32)) for value in values])


def _fill(row: Row, values: Sequence[float]) -> None:
    row.smallest, row.greatest = values[:2]
    row.inf, row.nan = map(int, values[2:4])
    if len(values) > 4:
        row.zeros, row.subnormals = map(int, values[4:])


def _is_cause(row: Row) -> bool:
    """Returns whether a row of the forward pass is not finite, and no module made finite outputs of it."""
    if row.is_finite or (row.is_mask() and not row.needs_grad):
        return False
    tensor = row._traced
    around = tensor.call if tensor.kind == "input" else tensor.call.parent
    if around is not None and any(call.is_finite() for call in around.chain()):
        return False
    return not (row.is_mask() and any(call.is_finite() for call in tensor.takers))


def _last_index(tensors: list[_Tensor], tensor: _Tensor) -> int:
    return max((i for i, each in enumerate(tensors) if each is tensor), default=-1)


def _memory_of(x: torch.Tensor) -> int:
    return (x._values() if x.is_sparse else x).untyped_storage().data_ptr()


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
