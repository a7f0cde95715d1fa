# SPDX-License-Identifier: MIT
"""Reads the lines of a history, and diagnoses its run."""

from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import gzip
import json
import math
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from . import _entries, _structs
from . import _gradscaler as c
from ._arguments import _short_repr, _warn_caller, _whole_number
from ._entries import Note
from ._policy import _FIELDS, Policy, presets
from ._report import Report, text_of
from ._structs import Event, Loss, Metric, NoteKind, ReportKind, State, Want

METRICS = tuple(metric.name.lower() for metric in Metric)
# The meaning of a metric that a line leaves out; others were not measured.
LEFT_OUT = {name: 0 for name in METRICS if name.startswith("total_") or name.endswith("_count")}
LEFT_OUT |= {"steps_since_change": 0, "skip": False, "overflow": False, "guard_multiplier": 1}
TEXTS = ("events", "outcome", "cause", "reason")
OWN_KEYS = frozenset((
    *METRICS, *TEXTS, "step", "time", "run", "start", "rank", "policy", "state", "report", "names", "tensors",
    "tensor_count", "zeros", "missing", "why",
))  # fmt: skip
_COUNTED_TYPES = (ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64)
_OF_EVENTS = ("events", "skip", "skip_f32")
_STATE_FIELDS = [
    name for name, kind in State._fields_ if issubclass(kind, ctypes._SimpleCData) and name not in _OF_EVENTS
]
_REPORT_FIELDS = [name for name, kind in _structs.Report._fields_ if issubclass(kind, ctypes._SimpleCData)]
_INTEGERS = {name for name, kind in [*State._fields_, *_structs.Report._fields_] if kind in _COUNTED_TYPES}
_MOST_TENSORS = 100_000  # of a list that is made from what a file says
_BLOCK = 1 << 16


def diagnosed(
    policy: Policy, state: State, report: Report | None, steps: int = 0, planned_steps: int = 0
) -> list[Note]:
    """Returns the findings of gsc_state_diagnose, with the names of arrays if the report has them."""
    steps, planned_steps = _whole_number("steps", steps), _whole_number("planned_steps", planned_steps)
    if report is not None and not isinstance(report, Report):
        raise TypeError(f"report={_short_repr(report)}: expected a Report")
    names, each = ([], None) if report is None else report._arrays()
    notes = _entries.filled(
        _structs.Note, c.gsc_state_diagnose, policy, state, report, each or b"", steps, planned_steps
    )
    return [_note_of(one, names) for one in notes]


def _note_of(raw: _structs.Note, names: Any) -> Note:
    kind, name = NoteKind(raw.kind), None
    if 0 <= raw.entry < len(names):
        name = names[raw.entry]
        name = name if isinstance(name, int) else text_of(name)
    where = "" if name is None else f"; look first at {name!r}"
    return _entries.note(_entries.sentence(raw) + where, kind, raw.field.decode(), raw.value)


def as_json(value: Any) -> Any:
    """Returns a value as JSON has it: a number that is not finite, and what JSON does not know, as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    number = getattr(value, "item", None)
    return as_json(number()) if callable(number) and getattr(value, "size", 1) != 0 else str(value)


# ---- a line as structs: the only place that reads the numbers that the core wrote ----


def _number(fields: Mapping[str, Any], name: str, otherwise: float = 0) -> Any:
    value = fields.get(name, otherwise)
    number = float(value) if isinstance(value, str) else value  # "inf"
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{name} is {_short_repr(value)}")
    return int(number) if name in _INTEGERS else number


def policy_of(start: Mapping[str, Any]) -> Policy:
    """Returns the policy in a line `start`; fields of a later version are left out."""
    fields = start["policy"]
    preset = fields.get("preset")
    rules = {name: fields[name] for name in _FIELDS if name in fields and (name != "init_scale" or fields[name])}
    return Policy(preset if preset in presets() else "none").replace(**rules)


def state_of(policy: Policy, line: Mapping[str, Any]) -> State:
    """Returns the state in the line of an update, or in a line `start`."""
    own, state = line["state"], State()
    fields = {**({} if "start" in line else LEFT_OUT), **own, **line}
    for name in _STATE_FIELDS:
        if fields.get(name) is not None:
            setattr(state, name, _number(fields, name))
    scale = _number(own, "scale") if "scale" in own else _number(line, "loss_scale")
    state.factor, state.next = _factor_of(policy, scale), _factor_of(policy, _number(own, "next_scale", scale))
    names = str(own.get("events", line.get("events", ""))).split("|")
    state.events = sum(Event[name] for name in names if name in Event.__members__)
    state.skip = state.skip_f32 = bool(state.events & Event.SKIPPED)
    return state


def _factor_of(policy: Policy, scale: float) -> _structs.Factor:
    """Returns the factor of a scale, which can also be 0 or infinite."""
    state = State()
    state.factor.scale = scale
    c.gsc_state_init_from(None, policy, state, state)
    return _structs.Factor.from_buffer_copy(state.factor)


def report_of(line: Mapping[str, Any]) -> Report | None:
    """Returns the report in the line of an update, with the names and reports of the arrays that are listed."""
    if "report" not in line:
        return None
    fields = dict(line["report"])
    for name in ("amax", "nan_count", "inf_count"):
        if line.get(name) is not None:
            fields[name] = line[name]
    report = _filled(fields)
    norm = line.get("norm")
    if norm is not None and "sum_squares" not in fields and report.measured & Want.NORM:
        _structs.Report.sum_squares.__set__(report, _number(line, "norm") ** 2)
    if line.get("bad_loss") is not None:
        report.loss = Loss.NOT_FINITE if line["bad_loss"] else Loss.FINITE
    listed = [one for one in line.get("tensors", ()) if 0 <= one["tensor"] < _MOST_TENSORS]
    count = line.get("tensor_count", 0)
    if 0 < count <= _MOST_TENSORS:
        each = [Report(kind=ReportKind.TENSORS)] * count
        for index in line.get("zeros", ()):
            each[index] = Report(kind=ReportKind.TENSORS, elements=1, measured=Want.AMAX)
        for one in listed:
            each[one["tensor"]] = _filled(one)
        report._each = b"".join(map(bytes, each))
    names: list[Any] = list(range(max([count if report._each else 0, *(one["tensor"] + 1 for one in listed)])))
    for one in listed:
        names[one["tensor"]] = one.get("name", one["tensor"])
    report.names = names
    return report


def _filled(fields: Mapping[str, Any]) -> Report:
    report = Report()
    for name in _REPORT_FIELDS:
        if name in fields:
            getattr(_structs.Report, name).__set__(report, _number(fields, name))
    return report


# ---- files ----


def _opened(path: str | os.PathLike) -> Any:
    """Opens a history, which can be compressed by gzip; the error of what is no file is a sentence."""
    name = os.fspath(path)
    try:
        mode = os.stat(name).st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory: name the file in it" if stat.S_ISDIR(mode) else "no regular file"
            raise ValueError(f"{name} is {kind}")
        with open(name, "rb") as file:
            is_compressed = file.read(2) == b"\x1f\x8b"
        return gzip.open(name, "rb") if is_compressed else open(name, "rb")
    except OSError as error:
        advice = "pass the path of the file that scaler.history(...) writes"
        raise type(error)(f"{name} cannot be read: {error.strerror}; {advice}") from None


def _lines_of(path: str | os.PathLike) -> Iterator[bytes]:
    """Yields the complete lines of a file."""
    with _opened(path) as file:
        yield from _complete(file)


def _complete(file: Any) -> Iterator[bytes]:
    """Yields the lines of an open file up to one without its end, or to where a compressed file is damaged."""
    with contextlib.suppress(EOFError, gzip.BadGzipFile, zlib.error):
        yield from (line for line in file if line.endswith(b"\n"))


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Returns a line of a history, or None if it is damaged or another file's."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_own = isinstance(found, dict) and ("step" in found or "missing" in found)
    return found if is_own else None


def is_history(path: str) -> bool:
    """Returns whether a file is a history: by its name, or by its first bytes."""
    if path.endswith((".jsonl", ".jsonl.gz")):
        return True
    try:
        with _opened(path) as file:
            return file.read(9).startswith((b'{"start":', b'{"step":'))
    except (OSError, ValueError, EOFError, zlib.error):
        return False


def _no_history(path: str | os.PathLike) -> ValueError:
    name = os.fspath(path)
    if os.path.getsize(name) == 0:
        return ValueError(f"{name} is empty: the run has not begun; `gradscaler watch` waits for its first line")
    return ValueError(
        f"{name} is not a history of gradscaler: no line of it is one of scaler.history(...); pass its path, or "
        "name another file to write to"
    )


def last_step(path: str) -> tuple[int, int] | None:
    """Returns the last step in a file that a history continues, and its total_updates; None if there is none.

    Reads only the end of the file. Raises ValueError if the file is no history.
    """
    if not os.path.lexists(path) or (os.path.exists(path) and os.path.getsize(path) == 0):
        return None
    with _opened(path) as file:
        if isinstance(file, gzip.GzipFile):
            raise ValueError(f"{path} is compressed: name another file, or decompress it")
        size, block = os.path.getsize(path), _BLOCK
        while True:
            file.seek(max(0, size - block))
            *lines, _ = file.read(block).split(b"\n")
            for line in reversed(lines[1:] if block < size else lines):
                found = _parsed(line)
                if found is not None and isinstance(found.get("state"), dict) and isinstance(found["step"], int):
                    updates = found["state"].get("total_updates", 0)
                    return found["step"] - ("start" in found), updates if isinstance(updates, int) else 0
            if block >= size:
                break
            block *= 16
    with open(path, "rb") as file:
        if file.read(9) == b'{"start":':  # its first line was cut off
            return None
    raise _no_history(path)


class Run:
    """A history as it is read: the newest `start`, the newest line, and what is wrong with the file."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path, self.number = os.fspath(path), 0
        self.start: dict[str, Any] | None = None
        self.damaged: list[int] = []  # the numbers of the lines
        self.others = 0  # lines that another process wrote after the newest start
        self.missing = 0  # steps without a line
        self._newest: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=100)
        self._run, self._run_text = None, b""

    def take(self, line: bytes, parse: bool = True) -> dict[str, Any] | None:
        """Takes the next line. Returns it if it has keys of a step of the newest run.

        parse: False only keeps the lines of updates; a damaged one is found if it is the last
        """
        self.number += 1
        is_plain = line.startswith(b'{"step":') and line.endswith(b"}\n") and b'"loss_scale":' in line
        if is_plain and not parse and self._run_text in line:
            self._newest.append((self.number, line))
            return None
        found = _parsed(line)
        if found is None:
            self.damaged.append(self.number)
        elif "start" in found:
            if isinstance(found.get("policy"), dict) and isinstance(found.get("state"), dict):
                self.start = found
                self._run = found.get("run")
                self._run_text = b"" if self._run is None else f'"run":{json.dumps(self._run)}'.encode()
                self._newest.clear()
            else:
                self.damaged.append(self.number)
        elif "missing" in found:
            steps = found["missing"]
            self.missing += steps[1] - steps[0] + 1 if isinstance(steps, list) and len(steps) == 2 else 0
        elif found.get("run", self._run) != self._run:
            self.others += 1
        else:
            if "loss_scale" in found:
                self._newest.append((self.number, line))
            return found
        return None

    def read(self) -> Run:
        """Reads all lines; parses only starts and the last line."""
        for line in _lines_of(self.path):
            self.take(line, parse=False)
        return self.checked()

    def checked(self) -> Run:
        """Raises ValueError if there is no start."""
        if self.start is None:
            raise _no_history(self.path)
        return self

    def last(self) -> dict[str, Any]:
        """Returns the newest line of an update that is not damaged; without one, the start."""
        while self._newest:
            number, line = self._newest[-1]
            found = _parsed(line)
            if found is not None:
                return found
            self.damaged.append(number)
            self._newest.pop()
        return self.start

    def problem(self) -> str:
        """Returns a sentence on what is wrong with the file, or an empty text."""
        parts = []
        if self.damaged:
            numbers = ", ".join(map(str, sorted(self.damaged)[:5])) + ", ..." * (len(self.damaged) > 5)
            lines = "damaged line" if len(self.damaged) == 1 else "damaged lines"
            parts.append(f"{len(self.damaged)} {lines} left out: {numbers}")
        if self.others:
            parts.append(f"{self.others} lines of another process that wrote to it are left out")
        if self.missing:
            parts.append(f"{self.missing} steps have no line, because the file could not be written")
        return f"{self.path}: {'; '.join(parts)}" if parts else ""

    def diagnose(self, planned_steps: int = 0) -> list[Note]:
        """Returns what gsc_state_diagnose finds in the last line."""
        line = self.last()
        try:
            policy = policy_of(self.start)
            return diagnosed(policy, state_of(policy, line), report_of(line), 0, planned_steps)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
            raise ValueError(f"{self.path} is damaged: the line of step {line.get('step')} has {error}") from None


def diagnose(path: str | os.PathLike, planned_steps: int = 0) -> list[Note]:
    """Returns what is wrong with the run of a history, the most important first.

    planned_steps: the steps of the whole run, 0 if not known
    """
    run = Run(path).read()
    found = run.diagnose(planned_steps)
    if problem := run.problem():
        _warn_caller(problem)
    return found


# ---- columns ----

DRAWN = ("loss_scale", "norm", "guard_threshold", "overflow", "skip", "bad_loss", "total_growths")


class Columns(dict[str, array.array]):
    """The metrics that are drawn, by step; a metric that is not known is NaN. The newest line of a step counts."""

    def __init__(self) -> None:
        super().__init__({name: array.array("d") for name in ("step", *DRAWN)})

    def take(self, line: Mapping[str, Any] | None) -> None:
        if line is None or "loss_scale" not in line:
            return
        step = _number_or_nan(line["step"])
        steps = self["step"]
        while steps and steps[-1] >= step:  # the run went back to an earlier step
            for column in self.values():
                column.pop()
        values = {name: _number_or_nan(line.get(name, LEFT_OUT.get(name))) for name in DRAWN}
        for name, value in {"step": step, **values}.items():
            self[name].append(value)


def _number_or_nan(value: Any) -> float:
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def read(path: str | os.PathLike) -> Columns:
    """Reads the columns of a history that are drawn."""
    run, columns = Run(path), Columns()
    for line in _lines_of(path):
        columns.take(run.take(line))
    run.checked()
    return columns


def table(path: str | os.PathLike) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the names of the columns and a row for each step; what a line leaves out has its meaning."""
    run, rows, names = Run(path), {}, ["step", "time", *METRICS, *TEXTS]
    for line in _lines_of(path):
        found = run.take(line)
        if found is None:
            continue
        step = _number_or_nan(found["step"])
        if "loss_scale" in found:
            while rows and next(reversed(rows)) >= step:
                rows.popitem()
            rows[step] = LEFT_OUT.copy()
        if step in rows:
            rows[step] |= {name: value for name, value in found.items() if not isinstance(value, dict | list)}
            names += [name for name in rows[step] if name not in OWN_KEYS and name not in names]
    run.checked()
    return names, list(rows.values())


class Follower:
    """Reads a history that is still written: each call reads the lines that came since the last."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        self._begin(None)

    def _begin(self, which: os.stat_result | None) -> None:
        self.run, self.columns, self._which, self._end = Run(self.path), Columns(), which, 0

    def read(self) -> bool:
        """Returns whether there were new lines. If the file was renamed, removed or cut, begins with the new one."""
        with _opened(self.path) as file:
            which = os.stat(self.path)
            if self._which is None or not os.path.samestat(which, self._which) or which.st_size < self._which.st_size:
                self._begin(which)
            self._which, before = which, self._end
            with contextlib.suppress(EOFError, gzip.BadGzipFile, zlib.error):
                file.seek(self._end)
            for line in _complete(file):
                self._end += len(line)
                self.columns.take(self.run.take(line))
        if self._end and self.run.start is None:
            self.run.checked()
        return self._end > before
