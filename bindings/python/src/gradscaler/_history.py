# SPDX-License-Identifier: MIT
"""Writes a line of JSON for each step to a file. The core makes the lines; _lines.py reads them."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _gradscaler as c
from . import _lines, _structs
from ._arguments import _short_repr, _warn_caller, _whole_number
from ._entries import Note
from ._lines import diagnosed
from ._policy import Policy
from ._report import Report, texts_of
from ._structs import State

_MOST = 100  # lines that are kept in memory
_LOCKED_BYTE = 1 << 40  # on Windows a locked byte cannot be read: it is behind every end

# Facts about an update: the state after it, its report, its reason, and the reports and names of the arrays.
Facts = tuple[State, Report | None, Any, Any, Sequence[str | None] | None]


class _Row:
    """A line that is not in the file yet.

    line: the bytes, or a function of `wait` that returns them and the state after the update, or None until a device
        has them
    state: the bytes of the state after the line, b"" until they are known
    """

    def __init__(self, step: int, line: Any, state: bytes) -> None:
        self.step, self.line, self.state, self.keys = step, line, state, {}

    def text(self, wait: bool) -> bytes | None:
        """Returns the line; None if it is not known without waiting."""
        if callable(self.line):
            known = self.line(wait)
            if known is None:
                return None
            self.line, self.state = known
        if self.keys:
            more = json.dumps(self.keys, separators=(",", ":"))
            self.line, self.keys = self.line[:-2] + b"," + more[1:].encode() + b"\n", {}
        return self.line


class History:
    """A file that gets a line of JSON for each step while it is open: `with scaler.history("run.jsonl"):`.

    A line has the step, the time, the numbers of `scaler.metrics()`, the events, and after a skip the reason and the
    names of the first bad arrays. The file is only appended to. It begins with a line `start`, which has the rules and
    the state; load_state_dict, new rules and a resumed run add another one. A run that is killed loses at most the last
    100 lines, or the lines of the last `interval` seconds.

    step: the number of the first step. None: after the last line of the file; if the scaler has an earlier state of the
        same run, after the step of that state
    rank: the number of this rank. With a path such as "run-{rank}.jsonl" each rank writes a file, else only rank 0 does
    interval: lines are written after so many seconds, also if no update comes
    times, names: False leaves out the times, or the names of arrays

    If the disk is full or the folder is gone, there is a warning and the training goes on. The history goes on when
    there is room again: a line `missing` has the steps that are lost. If the file is renamed or removed, a new one
    begins. Without `with`, call `open()` and `close()`.
    """

    def __init__(
        self,
        scaler: Any,
        path: str | os.PathLike,
        *,
        step: int | None = None,
        rank: int = 0,
        interval: float = 5.0,
        times: bool = True,
        names: bool = True,
    ) -> None:
        text, self._rank = os.fsdecode(path), _whole_number("rank", rank)
        self.path = os.path.abspath(text.replace("{rank}", str(rank)))
        if self.path.endswith((".csv", ".gz")):
            raise ValueError(f"{text}: a history is lines of JSON; name it .jsonl")
        if not isinstance(interval, int | float) or not 0 < interval < math.inf:
            raise ValueError(f"interval={_short_repr(interval)}: expected seconds, above 0")
        self._interval, self._has_times, self._has_names = interval, times, names
        self._is_writer = self._rank == 0 or "{rank}" in text
        self._scaler, self._step = scaler, None if step is None else _whole_number("step", step)
        self._run = os.urandom(4).hex()
        self._lock, self._closing = threading.RLock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._file: _File | None = None
        self._rows: list[_Row] = []
        self._policy = self._state = b""  # of the last line `start`, and after the last row
        self._preset = ""
        self._written_state, self._tried_at = b"", 0.0  # after the last line in the file; when it was written to
        self._missing: list[int] = []  # the first and the last step that were lost
        self._needs_start = False
        self._evidence: tuple[Any, ...] = (None, None, None, None)  # of the last update: its Facts without the state
        self._problem, self._is_told = "", False  # why no line can be written, and whether a warning said so

    # ---- open and close ----

    def open(self) -> History:
        """Creates or continues the file; each update then adds a line."""
        if getattr(self._scaler, "_history", None) is not None:
            raise ValueError(f"the scaler has a history already, {self._scaler._history.path}")
        if not self._is_writer:
            return self
        policy, state = self._scaler._policy_and_state()
        self._step = self._first_step(state)
        self._policy, self._preset, self._state = bytes(policy), policy.preset, bytes(state)
        self._file = _File(self.path)
        _, error = self._file.append([self._start_line(self._step, self._state)])
        if error is not None:
            self._file.close()
            raise error
        self._written_state, self._tried_at = self._state, time.monotonic()
        if self._file.is_shared:
            _warn_caller(f"another process writes to {self.path}: `run` tells the lines of both apart")
        self._closing.clear()
        self._thread = threading.Thread(target=self._write_in_time, name="gradscaler history", daemon=True)
        self._thread.start()
        _open_histories.add(self)
        atexit.register(self.close)
        self._scaler._history = self
        return self

    def close(self) -> None:
        """Writes the lines in memory and ends the scaler's history."""
        atexit.unregister(self.close)
        _open_histories.discard(self)
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()
        self._forget()

    def __enter__(self) -> History:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self) -> None:
        """Ends the history without a write, as a forked process does: its parent goes on."""
        if getattr(self._scaler, "_history", None) is self:
            self._scaler._history = None
        self._lock, self._closing, self._thread, self._rows = threading.RLock(), threading.Event(), None, []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _first_step(self, state: State) -> int:
        last = _lines.last_step(self.path)
        return self._step if self._step is not None else 1 if last is None else _next_step(*last, state)

    # ---- lines ----

    def add(self, keys: Mapping[str, Any]) -> None:
        """Adds your own keys to the line of the last update: `history.add({"loss": 1.25})`."""
        for key in keys:
            if not isinstance(key, str) or key in _lines.OWN_KEYS:
                raise ValueError(f"{_short_repr(key)}: a key is a text, and none that a line has already")
        with self._lock:
            if self._file is None:
                return
            last = self._step - 1
            if not self._rows or self._rows[-1].step != last:  # the line is in the file: this one completes it
                line = json.dumps({"step": last, "run": self._run}, separators=(",", ":"))
                self._rows.append(_Row(last, line.encode() + b"\n", self._state))
            self._rows[-1].keys |= {key: _lines.as_json(value) for key, value in keys.items()}

    def record(self, scaler: Any, report: Any = None) -> None:
        """Adds the line of an update, if the scaler adds none itself: in gradscaler.jax, and in compiled steps."""
        self._add(*scaler._policy_and_facts(report))

    def restart(self, step: int | None = None, scaler: Any = None) -> None:
        """Adds a line `start` with the present rules and state; load_state_dict does so by itself.

        step: the number of the next step; None: if the scaler has an earlier state of this run, after its step
        scaler: a scaler of gradscaler.jax that was loaded
        """
        scaler = self._scaler if scaler is None else scaler
        with self._lock:
            if self._file is None:
                return
            policy, state = scaler._policy_and_state()
            updates = State.from_buffer_copy(self._state).total_updates
            self._step = _next_step(self._step - 1, updates, state) if step is None else _whole_number("step", step)
            self._policy, self._preset, self._state = bytes(policy), policy.preset, bytes(state)
            self._rows.append(_Row(self._step, self._start_line(self._step, self._state), self._state))

    def _add(self, policy: Policy, facts: Facts) -> None:
        """Adds the line of an update."""
        state, report, *more = facts
        self._evidence = (None if report is None else _structs.Report.from_buffer_copy(report), *more)
        with self._lock:
            if self._file is not None:
                self._append(policy, _Row(self._step, self._line(self._step, self._now(), facts), bytes(state)))

    def _decide_again(self, policy: Policy, state: State) -> None:
        """Adds a newer line of the last step: another scaler changed its decision."""
        self._step -= 1
        self._add(policy, (state, *self._evidence))

    def _add_later(self, policy: Policy, read: Callable[[bool], Facts | None]) -> None:
        """Adds the line of an update on a device; read(wait) returns None until the device has done it."""
        step, now = self._step, self._now()

        def line(wait: bool) -> tuple[bytes, bytes] | None:
            facts = read(wait)
            return None if facts is None else (self._line(step, now, facts), bytes(facts[0]))

        with self._lock:
            self._append(policy, _Row(step, line, b""))

    def _append(self, policy: Policy, row: _Row) -> None:
        if bytes(policy) != self._policy:
            self._policy, self._preset = bytes(policy), policy.preset
            self._rows.append(_Row(row.step, self._start_line(row.step, self._state), self._state))
        self._rows.append(row)
        self._step, self._state = row.step + 1, row.state or self._state
        if len(self._rows) >= _MOST and not self._problem:
            self._write(True)
        elif time.monotonic() - self._tried_at > self._interval:  # the thread did not: it waits for no device
            self._write(True, self._rows[:-1])
        self._drop()
        self._tell()

    def _line(self, step: int, now: float, facts: Facts) -> bytes:
        state, report, reason, each, names = facts
        if not self._has_names:
            names = reason = None
        return c.gsc_history_line(state, report, reason, each, names, step, now, self._run)

    def _start_line(self, step: int, state: bytes) -> bytes:
        where = step, self._rank, self._now(), self._run
        return c.gsc_history_start(self._policy, self._preset, state, None, *where)

    def _now(self) -> float:
        return time.time() if self._has_times else 0.0

    # ---- the file ----

    def flush(self) -> None:
        """Writes the lines in memory; waits for the devices that have not done their updates yet."""
        with self._lock:
            self._write(True)
            self._tell()

    def _write_in_time(self) -> None:
        while not self._closing.wait(self._interval):
            with self._lock:
                self._write(False)

    def _write(self, wait: bool, rows: list[_Row] | None = None) -> None:
        """Writes rows, by default all; the first that is not known without waiting ends them unless `wait`."""
        if self._file is None:
            return
        lines = []
        for row in self._rows if rows is None else rows:
            line = row.text(wait)
            if line is None:
                break
            lines.append(line)
        if not lines:
            return
        self._tried_at = time.monotonic()
        try:
            self._needs_start |= self._file.reopen()
        except OSError as error:
            self._fail(error)
            return
        first = []
        if self._needs_start and not lines[0].startswith(b'{"start"'):
            first.append(self._start_line(self._rows[0].step, self._written_state))
        if self._missing:
            words = {"missing": self._missing, "run": self._run, "why": self._problem}
            first.append(json.dumps(words, separators=(",", ":")).encode() + b"\n")
        taken, error = self._file.append(first + lines)
        if taken >= len(first):
            self._needs_start, self._missing, taken = False, [], taken - len(first)
            if taken:
                self._written_state = self._rows[taken - 1].state
                del self._rows[:taken]
        if error is None:
            self._problem = ""
        else:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._is_told &= bool(self._problem)
        self._problem = error.strerror or str(error)

    def _drop(self) -> None:
        """Drops the oldest rows if there are too many, and remembers their steps."""
        for row in self._rows[:-_MOST]:
            self._missing = [self._missing[0] if self._missing else row.step, row.step]
            self._written_state = row.state or self._written_state
            self._needs_start |= isinstance(row.line, bytes) and row.line.startswith(b'{"start"')
        del self._rows[:-_MOST]

    def _tell(self) -> None:
        """Warns once. The thread does not: a warning can be an exception."""
        if self._problem and not self._is_told:
            self._is_told = True
            step = self._missing[0] if self._missing else self._rows[0].step if self._rows else self._step
            what = "the training goes on, and so does the history when it can"
            _warn_caller(f"{self.path} has no line of step {step}: {self._problem}; {what}")


class _File:
    """A file that is appended to; if it was renamed or removed, a new one begins."""

    def __init__(self, path: str) -> None:
        self.path, self.number, self.is_shared = path, -1, False
        self._size, self._rest = 0, b""  # after the last append, and what a full disk cut off of the last line
        self.reopen()

    def reopen(self) -> bool:
        """Opens the file if it is not open, or no longer the one of its path; returns whether it did."""
        if self.number >= 0:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.path), os.fstat(self.number)):
                    return False
        self.close()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self.number = os.open(self.path, flags, 0o666)
        self.is_shared = not _lock(self.number)
        self._size, self._rest = -1, b""
        return True

    def append(self, lines: list[bytes]) -> tuple[int, OSError | None]:
        """Appends lines. Returns how many are in the file, and why the others are not.

        A line that a full disk cuts off counts, because the next call writes its rest.
        """
        size = os.lseek(self.number, 0, os.SEEK_END)
        if size != self._size:  # others wrote to it: a line that was cut off stays so
            self._rest = b"" if size == 0 or _last_byte(self.number) == b"\n" else b"\n"
        parts, error = [self._rest, *lines], None
        data, written = memoryview(b"".join(parts)), 0
        try:
            while written < len(data):
                written += os.write(self.number, data[written:])
        except OSError as failure:
            error = failure
        self._size, taken = size + written, -1
        for part in parts:
            if written <= 0 and part:
                break
            taken, self._rest, written = taken + 1, part[written:], written - len(part)
        return max(0, taken), error

    def close(self) -> None:
        if self.number >= 0:
            os.close(self.number)
            self.number = -1


def _last_byte(number: int) -> bytes:
    os.lseek(number, -1, os.SEEK_END)
    return os.read(number, 1)


def _lock(number: int) -> bool:
    """Locks an open file for writers; returns False if another process has the lock. A closed file has none."""
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(number, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
    return True


_open_histories: weakref.WeakSet[History] = weakref.WeakSet()


def _forget_all() -> None:
    for history in list(_open_histories):
        history._forget()
    _open_histories.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


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

    def history(self, path: str | os.PathLike, **options: Any) -> History:
        """Returns a file that gets a line for each update: `with scaler.history("run.jsonl"):`; see `History`."""
        return History(self, path, **options)

    def _policy_and_state(self) -> tuple[Policy, State]:
        return self.policy, self.state

    def _policy_and_facts(self, report: Report | None) -> tuple[Policy, Facts]:
        names, each = ((), None) if report is None else report._arrays()
        has_bad = report is not None and (report.nan_count or report.inf_count)
        return self.policy, (self.state, report, None, each, texts_of(names) if has_bad or each is not None else None)


def _next_step(last: int, updates: int, state: State) -> int:
    """Returns the number of the step after a state; the last step of the run was `last`, after so many updates."""
    back = updates - state.total_updates if 0 < state.total_updates < updates else 0
    return max(1, last - back + 1)
