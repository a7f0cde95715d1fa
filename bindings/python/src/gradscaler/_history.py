# SPDX-License-Identifier: MIT
"""Writes the metrics of each step to a file, and diagnoses runs."""

from __future__ import annotations

import atexit
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import _entries, _structs
from . import _gradscaler as c
from ._arguments import _index, _short_repr
from ._entries import Note
from ._policy import Policy
from ._report import Report
from ._structs import Event, Metric, NoteKind, ReportKind, State, Want

COLUMNS = ("step", *(metric.name.lower() for metric in Metric))
_MAX_ROWS, _MAX_SECONDS = 100, 30  # the most lines that are kept in memory, and for how long


def diagnosed(
    policy: Policy, state: State, report: Report | None, steps: int = 0, planned_steps: int = 0
) -> list[Note]:
    """Returns the findings of gsc_state_diagnose, with the names of arrays if the report has them."""
    steps, planned_steps = _whole_number("steps", steps), _whole_number("planned_steps", planned_steps)
    if report is not None and not isinstance(report, Report):
        raise TypeError(f"report={_short_repr(report)}: expected a Report")
    each = report._each if report is not None and report._each is not None else b""
    notes = _entries.filled(_structs.Note, c.gsc_state_diagnose, policy, state, report, each, steps, planned_steps)
    return [_note_of(one, report) for one in notes]


def _note_of(raw: _structs.Note, report: Report | None) -> Note:
    kind, name = NoteKind(raw.kind), None
    if report is not None and 0 <= raw.entry < len(report.names):
        name = report.names[raw.entry]
    where = "" if name is None else f"; look first at {name!r}"
    return _entries.note(_entries.sentence(raw) + where, kind, raw.field.decode(), raw.value)


class History:
    """A CSV file that gets one line per step while it is open: `with scaler.history("run.csv"):`.

    The columns are `step` and the names of `scaler.metrics()`; unknown values are empty. A run that is killed loses at
    most 100 lines, or 30 seconds, which are still in memory. The rules are in run.json beside run.csv.
    step: the first step of this run; lines of an earlier run from this step on are dropped. None: after its last line
    rank: the number of this rank. With a path such as "run-{rank}.csv" each rank writes a file, else only rank 0 does
    If the disk is full, the history ends with a warning and the training goes on.
    Without `with`, call `open()` and `close()`.
    """

    def __init__(
        self, scaler: Any, policy: Policy, path: str | os.PathLike, *, step: int | None = None, rank: int = 0
    ) -> None:
        text, rank = os.fsdecode(path), _whole_number("rank", rank)
        self.path = os.path.abspath(text.replace("{rank}", str(rank)))
        if self.path.endswith(".json"):
            raise ValueError(f"{text}: that is where the rules of a history go; name it .csv")
        self._is_writer = rank == 0 or "{rank}" in text
        self._scaler, self._policy, self._step = scaler, policy, None if step is None else _whole_number("step", step)
        self._rows, self._file_size, self._flushed, self._process = [], 0, 0.0, os.getpid()

    def open(self) -> History:
        """Creates or continues the file; each update then adds a line."""
        if getattr(self._scaler, "_history", None) is not None:
            raise ValueError(f"the scaler has a history already, {self._scaler._history.path}")
        if self._is_writer:
            self._begin()
            self._scaler._history = self
            atexit.register(self.close)
        return self

    def close(self) -> None:
        """Writes the lines in memory and ends the scaler's history."""
        if self._scaler._history is self:
            self._scaler._history = None
        atexit.unregister(self.close)
        self.flush()

    def __enter__(self) -> History:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        import json

        kept = 0
        if os.path.lexists(self.path):
            columns = read(self.path) if os.path.getsize(self.path) else dict.fromkeys(COLUMNS, [])
            if tuple(columns) != COLUMNS:
                raise ValueError(f"{self.path} is of a version with other columns: name another file")
            steps = columns["step"]
            self._step = int(steps[-1] if steps else 0) + 1 if self._step is None else self._step
            with open(self.path, "rb") as file:
                for step in [-1, *steps] if os.path.getsize(self.path) else ():
                    line = file.readline()
                    if step >= self._step:
                        break
                    kept += len(line)
        self._step = 1 if self._step is None else self._step
        starts = [one for one in _read_starts(self.path) if one["step"] < self._step]
        rules = {"preset": self._policy.preset, **self._policy.differences(self._policy.preset)}
        starts += [{"step": self._step, "gradscaler": c.gsc_version_string(), "policy": rules}]
        text = json.dumps({"starts": starts}, indent=1)
        with open(rules_path(self.path), "w", encoding="utf-8") as file:
            file.write(text)
        with open(self.path, "ab") as file:
            file.truncate(kept)  # drops lines from this step on, and a line that was cut off
            if kept == 0:
                file.write(",".join(COLUMNS).encode() + b"\n")
            self._file_size = file.seek(0, os.SEEK_END)
        self._flushed = time.monotonic()

    def add(self, metrics: Mapping[str, float] | Callable[[], Mapping[str, float]]) -> None:
        """Adds a line of metrics, or of a function that returns them and is called when lines are written."""
        self._rows.append(metrics)
        self._step += 1
        if len(self._rows) >= _MAX_ROWS or time.monotonic() - self._flushed > _MAX_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes the lines in memory."""
        rows, self._rows, self._flushed = self._rows, [], time.monotonic()
        if not rows or not self._is_writer or os.getpid() != self._process:  # the parent of a fork also has them
            return
        first = self._step - len(rows)
        lines = [_line(step, row() if callable(row) else row) for step, row in enumerate(rows, first)]
        try:
            with open(self.path, "ab") as file:
                if file.tell() > self._file_size:
                    raise OSError("another program writes to it")
                file.write("".join(lines).encode())
                self._file_size = file.tell()
        except OSError as error:
            self._is_writer = False
            self._scaler._history = None
            warnings.warn(f"{self.path} ends before step {first}: {error}", stacklevel=3)


class Observed:
    """The metrics, the diagnosis and the history of a scaler with `policy` and `state` on the host."""

    _history: History | None = None

    def metrics(self, report: Report | None = None) -> dict[str, float]:
        """Returns the metrics after the last update, the most important first, for `wandb.log` and other loggers.

        >>> scaler = Scaler("torch")
        >>> scaler.update(True)
        <Event.BACKED_OFF|SKIPPED: 6>
        >>> metrics = scaler.metrics()
        >>> metrics["loss_scale"], metrics["skip"], metrics["total_overflows"]
        (32768.0, True, 1)

        The names are `Metric` in lower case. The `report` of the update adds norm, amax, zero_share, the counts of NaN
        and Inf, and bad_loss.
        """
        return c.metrics(self.policy, self.state, report)

    def diagnose(self, report: Report | None = None, steps: int = 0, planned_steps: int = 0) -> list[Note]:
        """Returns what is wrong with this run and what to do, the most important first; an empty list if nothing is.

        report: the last one
        steps: the updates so far; 0: the updates that the scaler counted
        planned_steps: the updates of the whole run; 0 if not known
        """
        return diagnosed(self.policy, self.state, report, steps, planned_steps)

    def history(self, path: str | os.PathLike, *, step: int | None = None, rank: int = 0) -> History:
        """Returns a writer of each update's metrics to a CSV file: `with scaler.history("run.csv"):`; see `History`."""
        return History(self, self.policy, path, step=step, rank=rank)


def _line(step: int, metrics: Mapping[str, float]) -> str:
    cells = map(metrics.get, COLUMNS[1:])
    return f"{step},{','.join(['' if x is None else repr(+x) for x in cells])}\n"


def _whole_number(name: str, value: Any) -> int:
    number = _index(value)
    if not 0 <= number < 2**63:
        raise ValueError(f"{name}={_short_repr(value)}: expected a whole number from 0 on")
    return number


def rules_path(path: str) -> str:
    """Returns the path of a history's rules."""
    return os.path.splitext(path)[0] + ".json"


def _read_starts(path: str) -> list[dict[str, Any]]:
    import json

    try:
        with open(rules_path(path), encoding="utf-8") as file:
            return json.load(file)["starts"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{rules_path(path)} is not the rules of a history: move it away") from None


def read(path: str | os.PathLike) -> dict[str, list[float]]:
    """Reads the columns of a history; empty cells are NaN. A last line that was cut off is ignored."""
    if not os.path.isfile(path):
        os.stat(path)  # its error says why
        raise ValueError(f"{os.fspath(path)} is no regular file")
    with open(path, encoding="ascii", errors="replace", newline="") as file:
        lines = (line[:-1].split(",") for line in file if line.endswith("\n"))
        names = next(lines, [])
        if names[:2] != list(COLUMNS[:2]):
            raise ValueError(f"{os.fspath(path)} is not a history of gradscaler: its first line is {names!r:.60}")
        try:
            rows = [[float(cell) if cell else math.nan for cell in row] for row in lines]
            columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
            return {name: list(column) for name, column in zip(names, columns, strict=True)}
        except ValueError:
            raise ValueError(
                f"{os.fspath(path)} is not a history of gradscaler: its lines are not all numbers in its columns"
            ) from None


def diagnose(path: str | os.PathLike, planned_steps: int = 0) -> list[Note]:
    """Returns what is wrong with the run of a history, the most important first.

    planned_steps: the steps of the whole run, 0 if not known
    """
    columns, starts = read(path), _read_starts(os.fspath(path))
    if not starts:
        raise FileNotFoundError(f"{rules_path(os.fspath(path))}, with the rules of this run, is not there")
    policy = Policy(**starts[-1]["policy"])
    count = len(columns["step"])
    if count == 0:
        return []
    last = {name: column[-1] for name, column in columns.items()}
    state = State()
    c.gsc_state_init(None, policy, state)
    for name in ("total_overflows", "total_guard_skips", "total_growths", "total_backoffs", "total_bad_losses"):
        setattr(state, name, int(last.get(name, 0)))
    state.factor.scale = last["loss_scale"]
    state.total_updates = count
    c.gsc_state_init_from(None, policy, state, state)
    scales, bad = columns["loss_scale"], columns["overflow"]
    state.updates_at_growth = next((i for i, o in enumerate(bad, 1) if not o), 0)
    for i in range(1, count):
        state.updates_at_growth = i + 1 if scales[i] > scales[i - 1] else state.updates_at_growth
    state.overflows_at_growth = int(columns["total_overflows"][state.updates_at_growth - 1]) * bool(
        state.updates_at_growth
    )
    state.nans_in_a_row = _length_at_end(nans > 0 for nans in columns["nan_count"])
    state.failed_backoffs = max(
        0, _length_at_end(o and scale == scales[-1] for o, scale in zip(bad, scales, strict=True)) - 1
    )
    bounds = [bound for bound in columns["guard_threshold"] if not math.isnan(bound)]
    if bounds:
        state.guard_threshold = bounds[-1]
        state.guard_in_a_row = _length_at_end(map(guard_skipped, columns["skip"], bad, known_bad_losses(columns)))
        state.events = Event.SKIPPED | Event.OUTLIER if state.guard_in_a_row else 0
    shares = [share for share in columns["zero_share"] if not math.isnan(share)]
    report = Report(
        kind=ReportKind.TENSORS,
        elements=10**6,
        nan_count=_count(last["nan_count"]),
        inf_count=_count(last["inf_count"]),
    )
    report.overflow = bool(last["overflow"]) or report.nan_count + report.inf_count > 0  # 0 of a held bad loss
    if shares:
        report.measured = Want.UNDERFLOW
        _structs.Report.underflows_to_zero.__set__(report, round(1e6 * sum(shares) / len(shares)))
    return diagnosed(policy, state, report, count, planned_steps)


def known_bad_losses(columns: Mapping[str, Sequence[float]]) -> list[bool]:
    """Returns for each step whether the loss is known as bad; earlier versions wrote no such column."""
    return [cell == 1 for cell in columns.get("bad_loss", [0] * len(columns["step"]))]


def guard_skipped(skip: float, overflow: float, bad_loss: float) -> bool:
    return skip == 1 and overflow != 1 and not bad_loss


def _count(cell: float) -> int:
    return 0 if math.isnan(cell) else int(cell)


def _length_at_end(holds: Iterable[Any]) -> int:
    count = 0
    for one in holds:
        count = count + 1 if one else 0
    return count
