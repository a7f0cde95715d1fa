# SPDX-License-Identifier: MIT
"""The friendly layer: a Scaler that owns a policy and a state, and reports that name parameters."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import difflib
import functools
import itertools
import math
import operator
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import _checkpoints, _cuda, _structs
from . import _gradscaler as c
from ._checkpoints import Note
from ._structs import Event, Factor, MergeKind, NoteKind, ReportKind, State, Status, Trait, Want

Container = Mapping[str, Any] | Sequence[Any]
_FIELDS = [name for name, *_ in _structs.Policy._fields_ if name not in ("struct_size", "reserved")]
_COUNTS = (
    "good_steps",
    "steps_since_change",
    "overflows_since_reset",
    "failed_backoffs",
    "total_overflows",
    "total_growths",
    "total_backoffs",
)
_SIZE = ctypes.sizeof(_structs.Report)
_VERSION = 2  # of what Scaler.state_dict returns
_GUARD_FIELDS = [name for name in _FIELDS if name.startswith("guard_")]
_NEED_A_NORM = ("megatron_skip", "metaseq_skip", "optax_skip")  # presets of peers that have no threshold of their own
_event = functools.cache(Event)


def presets() -> dict[str, str]:
    """The names of all presets with a sentence each on what they do and where their rules come from."""
    found, name = {}, c.gsc_preset_name(0)
    while name is not None:
        found[name] = c.gsc_preset_summary(len(found))
        name = c.gsc_preset_name(len(found))
    return found


class Info:
    """What runs here: `version`, `cpu` (instruction set in use), `cpu_available`, `cpu_note`.

    cuda: "available", or why it is not, or the CUDA log: what the driver's compiler said when it refused the kernels
    """

    def __init__(self) -> None:
        raw = _structs.Info(struct_size=ctypes.sizeof(_structs.Info))
        c.gsc_info_get(raw)
        self.version = f"{raw.version >> 16}.{raw.version >> 8 & 255}.{raw.version & 255}"
        self.cpu = raw.cpu.decode()
        self.cpu_available = raw.cpu_available.decode().split()
        self.cpu_note = raw.cpu_note.decode()
        self.cuda = "available"
        try:
            c.gsc_cuda_start()
        except c.Error as error:
            self.cuda = str(error)
        self.cuda = c.gsc_cuda_log() or self.cuda

    def __repr__(self) -> str:
        return "Info(" + ", ".join(f"{name}={value!r}" for name, value in vars(self).items()) + ")"


def info() -> Info:
    """What runs here: the instruction set in use, those available, and whether there is CUDA.

    To find out starts the CUDA driver: a process that is forked afterwards has no CUDA, one that is spawned has.
    """
    return Info()


@contextlib.contextmanager
def _naming(**names: str) -> Any:
    """An error in here names what the caller passed: `names` has the Python name of each argument of C, "" for none."""
    try:
        yield
    except c.Error as error:
        _rename(error, names)
        raise


def _rename(error: c.Error, names: Mapping[str, str]) -> None:
    if error.subject_length:  # else the sentence stands by itself
        name = names.get(error.name, error.name) + (f"[{error.index}]" if error.index >= 0 else "")
        where = ".".join(filter(None, (name, error.field)))
        error.args = (f"{where} {'must not be None' if error.status == Status.ERROR_NULL else error.why}",)


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
        with _naming(name="preset", policy=""):
            c.gsc_policy_preset(preset.encode(errors="replace").decode().replace("\0", "\\0"), self)
            for name, value in fields.items():
                self._set(name, value)
            c.gsc_policy_check(self)

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
        _checkpoints._checked(format, prefix)
        if format is None:
            raise TypeError("format must be the name of one of gradscaler.formats(), not None")
        policy = cls(_preset_of(format) if preset is None else preset)
        vars(policy)["notes"] = _checkpoints.settings(policy, settings, format, prefix, preset is not None)
        with _naming(policy=""):
            for name, value in fields.items():
                policy._set(name, value)
            c.gsc_policy_check(policy)
        return policy

    def _set(self, name: str, value: float) -> None:
        if name not in _FIELDS:
            raise TypeError(f"a policy has no field {name!r}{_meant(name)}")
        if name == "init_scale" and value == 0:
            raise ValueError("init_scale is 0: it must be above 0")  # where 0 is the default of 1 in C
        old = getattr(self, name)
        try:
            super().__setattr__(name, value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f"{name}={_short(value)}: {error}") from None
        new = getattr(self, name)
        if new != value and (type(new) is not float or value != value):  # else the nearest double
            super().__setattr__(name, old)
            whole = f"a whole number from 0 to {2 ** (8 * getattr(_structs.Policy, name).size) - 1}"
            raise ValueError(f"{name} is {_short(value)}: it must be {'a number' if value != value else whole}")

    def replace(self, **fields: float) -> Policy:
        """These rules with fields replaced, which are checked together.

        >>> Policy("torch").replace(growth_interval=100).growth_interval
        100
        """
        policy = copy.copy(self)
        vars(policy).pop("is_copy", None)
        with _naming(policy=""):
            for name, value in fields.items():
                policy._set(name, value)
            c.gsc_policy_check(policy)
        return policy

    def __setattr__(self, name: str, value: float) -> None:
        if vars(self).get("is_copy"):
            raise AttributeError(
                f"{name}: this is a copy of the scaler's rules; scaler.replace({name}={value!r}) has others"
            )
        old = getattr(self, name, None)
        self._set(name, value)
        try:
            with _naming(policy=""):
                c.gsc_policy_check(self)
        except c.Error:
            super().__setattr__(name, old)
            raise

    @property
    def guards(self) -> bool:
        """Whether it judges the norm of finite gradients: guard_norm, guard_ratio or guard_sigmas is set."""
        return bool(self.guard_norm or self.guard_ratio or self.guard_sigmas)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _structs.Policy) and bytes(self) == bytes(other)

    __hash__ = None

    def differences(self, preset: str) -> dict[str, float]:
        """The fields in which this policy is not the preset."""
        base = Policy(preset)
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name) != getattr(base, name)}

    def __repr__(self) -> str:
        fields = self.differences(self.preset)
        told = [f"{name}={_checkpoints.told(name, value)}" for name, value in fields.items()]
        return f"Policy({', '.join([repr(self.preset), *told])})"


# help(Policy) tells the fields, too.
_, _, _about = (_structs.Policy.__doc__ or "").replace("    reserved: 0\n", "").partition("initialiser\n")
Policy.__doc__ = f"{(Policy.__doc__ or '').rstrip()}\n\n{_about}"


def _meant(name: str) -> str:
    if name in ("policy", "preset"):
        return ": a policy, or the name of a preset, is the first argument"
    near = difflib.get_close_matches(name, _FIELDS, 1)
    return f": did you mean {near[0]!r}?" if near else f"; it has {', '.join(_FIELDS)}"


def warn_if_idle(policy: Policy) -> None:
    """Says of a policy that looks as if it guarded, and has no rule to do so by, that it does not, where it is made."""
    given = [name for name in _GUARD_FIELDS if getattr(policy, name)]
    if not policy.guards and (given or policy.preset in _NEED_A_NORM):
        what = f"the preset {policy.preset!r}" if policy.preset in _NEED_A_NORM else ", ".join(given)
        why = "without a threshold: set guard_norm, guard_ratio or guard_sigmas"
        frame, level = sys._getframe(1), 2
        while frame.f_back and frame.f_globals.get("__name__", "").startswith("gradscaler."):
            frame, level = frame.f_back, level + 1
        warnings.warn(f"nothing is guarded by {what} {why}", stacklevel=level)


class Report(_structs.Report):
    """What the gradients of one call were like. `bytes(report)` has all but names and arrays; see from_bytes.

    overflow: True: do not step. An element is Inf or NaN, or became so by unscaling, or the policy says so
    found_inf: the same as the float that fused optimizers of torch read
    bad: the arrays in which such elements are, and how many: {name of a dict, or index of a list: count}; of a report
        that was merged or made of bytes, which has no counts of each array: ValueError
    first_overflow: (name, element) of the first such element, or None; the array's index in a report that was merged
        without names. The index is that of the rank's own list, so names are right if they are the same on all ranks
    rank, failed_rank: whose first_overflow it is, and whose call failed, where Scaler.set_rank was told; else None
    grads: the container with the results; None in a report that was merged, pickled or made of bytes
    scale: the loss scale that the gradients were divided by; 1.0 in one that was merged or made of bytes
    norm, amax, underflows_to_zero, ...: where `want` asked for them, else ValueError; histogram with histogram=True
    per_tensor: {name: Report}, of each array, with per_tensor=True
    clamped: how many elements clip_value changed
    kind: a ReportKind, what it is of. One that nobody filled in, Report(), is refused by whatever takes a report
    measured: a union of Want, which of the above were asked for
    grew: of an outlier that the guard found, in gradscaler.torch: the parameters whose part of the norm's square grew
        most, {name: (usual part, part now)}
    histogram_edges: 17 magnitudes, those of bin k from [k] up to, not including, [k + 1]
    """

    histogram_edges = (0.0, *(2.0 ** (4 * k - 48) for k in range(1, 16)), math.inf)
    names: Sequence = ()
    grads: Any = None
    scale: float = 1.0
    grew: Mapping[str, tuple[float, float]] = {}
    _addend = False
    _of_addends = False
    _bad: Any = None
    _each: Any = None
    _words: Any = None

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            if not hasattr(_structs.Report, name):
                raise TypeError(f"a report has no field {name!r}")
            setattr(self, name, value)

    @property
    def overflow(self) -> bool:
        return bool(_structs.Report.overflow.__get__(self))

    @overflow.setter
    def overflow(self, value: bool) -> None:
        _structs.Report.overflow.__set__(self, bool(value))
        self.found_inf = float(bool(value))

    @property
    def bad(self) -> dict[Any, int]:
        counts = self._counts_of_each()
        if counts is None and self.nan_count + self.inf_count:
            raise ValueError(
                "the report has no counts of each array: it was merged or made of bytes; that of the call has them"
            )
        return dict(counts or {})

    @property
    def first_overflow(self) -> tuple | None:
        if not self.nan_count + self.inf_count:
            return None
        tensor = self.first_tensor
        return (self.names[tensor] if tensor < len(self.names) else tensor, self.first_element)

    @property
    def rank(self) -> int | None:
        """The rank that the report, or its first overflow, is of; None: no rank was stamped, or none overflowed."""
        return self.first_rank_plus_1 - 1 if self.first_rank_plus_1 else None

    @property
    def failed_rank(self) -> int | None:
        """The rank whose call failed first; None: none did, or no rank was stamped."""
        return self.status_rank_plus_1 - 1 if self.status and self.status_rank_plus_1 else None

    @property
    def norm(self) -> float:
        """Global L2 norm of the finite elements after unscaling; of of_number the number itself."""
        self._demand("norm", Want.NORM)
        return _signal(self)

    @property
    def amax(self) -> float:
        """Largest finite magnitude after unscaling, before rounding; of a complex element its larger part."""
        self._demand("amax", Want.AMAX)
        return _structs.Report.amax.__get__(self)

    @amax.setter
    def amax(self, value: float) -> None:
        _structs.Report.amax.__set__(self, value)

    @property
    def underflows_to_zero(self) -> int:
        """How many outputs are zero while their input was not."""
        self._demand("underflows_to_zero", Want.UNDERFLOW)
        return _structs.Report.underflows_to_zero.__get__(self)

    @underflows_to_zero.setter
    def underflows_to_zero(self, value: int) -> None:
        _structs.Report.underflows_to_zero.__set__(self, value)

    @property
    def underflows_to_subnormal(self) -> int:
        """How many outputs are subnormal while their input was not."""
        self._demand("underflows_to_subnormal", Want.UNDERFLOW)
        return _structs.Report.underflows_to_subnormal.__get__(self)

    @underflows_to_subnormal.setter
    def underflows_to_subnormal(self, value: int) -> None:
        _structs.Report.underflows_to_subnormal.__set__(self, value)

    def _demand(self, name: str, want: Want) -> None:
        if not _has(self, want):
            of_a_sum = self._of_addends and want != Want.UNDERFLOW
            where = " to measure(sum, unscaled=True): it is of addends, and their sum has another" if of_a_sum else ""
            raise ValueError(f"the report has no {name}: pass want=gradscaler.Want.{want.name}{where}")

    @property
    def histogram(self) -> list[int]:
        """How many finite elements after unscaling, except for zeros, have a magnitude in each of the 16 bins.

        Of a sample: of every 65,536 elements of an array the first 4,096; `histogram_elements` were looked at.
        """
        return self._counts()[:-1]

    @property
    def histogram_elements(self) -> int:
        return self._counts()[-1]

    def _counts(self) -> list[int]:
        if self._words is None:
            raise ValueError("the report has no histogram: pass histogram=True")
        return memoryview(self._words).cast("q").tolist()

    @property
    def per_tensor(self) -> dict[Any, Report]:
        """A report of each array, by its name or index; where `overflow` is, its elements are the reason."""
        if self._each is None:
            raise ValueError("the report has none of each array: pass per_tensor=True")
        return {name: self._one(i) for i, name in enumerate(self.names)}

    def _one(self, index: int) -> Report:
        report = Report.from_buffer_copy(self._each, index * _SIZE)
        report.names, report.scale = self.names, self.scale
        count = report.nan_count + report.inf_count
        report._bad = {self.names[index]: count} if count else {}
        return report

    @classmethod
    def from_bytes(cls, data: bytes) -> Report:
        """A report from what bytes(report) made, in another process or on another machine, of the same version."""
        try:
            size = memoryview(data).nbytes
        except TypeError:
            raise TypeError(f"expected the bytes of a report, not {_short(data)}") from None
        if size != _SIZE:
            raise ValueError(f"a report has {_SIZE} bytes, not {size}")
        overflow, status, measured, amax, squares, *counts, kind, flags = _CHECKED.unpack_from(data)
        # all at a time, as thousands of ranks send reports; a NaN is for update to refuse, as in a report of this rank
        if not (
            0 <= overflow <= 1
            and status in _STATUSES
            and measured < 8
            and not (amax < 0 or squares < 0)
            and not any(map((0).__gt__, counts))
            and kind in _KINDS
            and flags == 0
        ):
            raw = _structs.Report.from_buffer_copy(data)
            name = next(name for name, holds in _HOLDS.items() if not holds(getattr(raw, name)))
            raise ValueError(f"the bytes are not those of a report: its {name} would be {getattr(raw, name)!r}")
        return cls.from_buffer_copy(data)

    @classmethod
    def of_number(cls, number: float) -> Report:
        """The report of a number, such as the loss, for a scaler of its own whose policy guards.

        `Scaler.combine_decisions` joins its decisions with those of the gradients' scaler. It counts with its sign;
        Inf, NaN and magnitudes above 2^500 are an overflow.
        """
        report = cls()
        c.gsc_report_from_number(_number("number", number), report)
        return report

    @classmethod
    def of_flag(cls, overflow: bool) -> Report:
        """The report of an overflow, or of none, that was found elsewhere; nothing else is measured."""
        report = cls()
        c.gsc_report_from_flag(bool(overflow), report)
        return report

    @classmethod
    def failed(cls, error: int | BaseException = Status.ERROR_DEVICE) -> Report:
        """The report of a rank whose call raised `error`: merged with those of the others, nobody steps.

        The others learn its Status: an exception that has none is Status.ERROR_MEMORY, if it is a MemoryError, else
        Status.ERROR_REPORT. Print the exception where it was raised: only there its words are known.
        """
        status = error
        if isinstance(error, BaseException):
            other = Status.ERROR_MEMORY if isinstance(error, MemoryError) else Status.ERROR_REPORT
            status = error.status if isinstance(error, c.Error) else other
        if not isinstance(status, int) or status not in map(int, Status) or status == Status.OK:
            raise ValueError(
                f"error is {_short(error)}: expected an exception, or a gradscaler.Status that is an error"
            )
        return cls(status=status, overflow=True)

    @staticmethod
    def merge(
        reports: Iterable[Report],
        *,
        addends: bool = False,
        policy: Policy | None = None,
        names: Sequence = (),
    ) -> Report:
        """One report of several, in order: of ranks that gathered theirs, optimizers, layers.

        addends=True where their gradients are added, as those of micro-batches and data-parallel ranks are: then the
        norm and amax of the sum are not known. With `policy`, overflow is its verdict. `names`, of the arrays that each
        was made of, such as `report.names`, make first_overflow a name: they are looked up by the index that the rank
        with the overflow has, so all reports must be of the same names in the same order. Reports of ranks that
        `Scaler.set_rank` found to differ raise gradscaler.Error with Status.ERROR_MISMATCH. That the ranks are all
        there, once each and in order, is not checked. Those of of_number are refused.
        """
        if not isinstance(policy, _structs.Policy | None):
            raise TypeError(f"policy must be a gradscaler.Policy such as scaler.policy, not {_short(policy)}")
        if isinstance(names, str | bytes) or not isinstance(names, Iterable):
            raise TypeError(f"names must be a list of names, not {_short(names)}")
        reports = list(reports) if isinstance(reports, Iterable) and not isinstance(reports, bytes) else [reports]
        for report in reports:
            if not isinstance(report, _structs.Report):
                why = ": make a report of them by Report.from_bytes" if isinstance(report, bytes) else ""
                raise TypeError(f"expected the report of unscale, or several, not {type(report).__name__}{why}")
        merged, kind = Report(), MergeKind.ADDENDS if addends else MergeKind.SHARDS
        with _naming():
            c.gsc_report_merge(None, b"".join(map(bytes, reports)), int(kind), policy, merged)
        merged.names, merged._of_addends = names if isinstance(names, Sequence) else list(names), addends
        return merged

    def _locate(self, names: Sequence, per_tensor: bytes | bytearray) -> None:
        """`per_tensor` has the reports of the arrays: a step that is skipped need not wait until they are read."""
        self._bad = (names, per_tensor)

    def _counts_of_each(self) -> dict[Any, int] | None:
        counts = self._bad
        if isinstance(counts, tuple):
            names, each = counts
            counts = {name: count for name, count in zip(names, _overflows(each, len(names)), strict=True) if count}
            self._bad = counts
        return counts

    def __reduce__(self) -> Any:
        here = ("grads", "_later", "_lock")
        extra = {name: value for name, value in vars(self).items() if name not in here}
        extra["_bad"] = self._counts_of_each()
        return _restored, (bytes(self), extra)

    def __repr__(self) -> str:
        parts = [f"overflow={self.overflow}", f"elements={self.elements}"]
        if self.status:
            parts += [f"status={self._takes_['status'](self.status)!r}"]
        parts += [
            f"{name}={getattr(self, name)}" for name in ("failed_rank", "rank") if getattr(self, name) is not None
        ]
        if self.nan_count + self.inf_count:
            parts += [f"bad={self.bad!r}"] if self._counts_of_each() else []  # a merged report does not know
            parts += [f"{name}={getattr(self, name)!r}" for name in ("first_overflow", "nan_count", "inf_count")]
        for want, names in (
            (Want.NORM, ["norm"]),
            (Want.AMAX, ["amax"]),
            (Want.UNDERFLOW, ["underflows_to_zero", "underflows_to_subnormal"]),
        ):
            if _has(self, want):
                parts += [f"{name}={getattr(self, name)!r}" for name in names]
        if self.clamped:
            parts += [f"clamped={self.clamped}"]
        if self._words is not None:
            bins = [(f"2^{4 * k - 48}" if k else "<2^-44", n) for k, n in enumerate(self.histogram) if n]
            parts += [f"histogram={{{', '.join(f'{low}: {n}' for low, n in bins)}}} of {self.histogram_elements}"]
        return f"Report({', '.join(parts)})"


def _has(report: _structs.Report, want: int) -> bool:
    """Whether this was measured; a number stands for a norm."""
    return bool((report.measured | (Want.NORM if report.kind == ReportKind.NUMBER else 0)) & want)


def _signal(report: _structs.Report) -> float:
    """What a guard judges: the norm, or the number of of_number."""
    return report.number if report.kind == ReportKind.NUMBER else math.sqrt(report.sum_squares)


def _not_negative(value: float) -> bool:
    return not value < 0


_STATUSES = frozenset(map(int, Status))
_KINDS = range(len(ReportKind))
_CHECKED = struct.Struct("=4x2iI8x2d8q16x2I")  # from overflow to flags, without generation, digest and ranks
_HOLDS: dict[str, Callable[[Any], bool]] = {  # what any report has, whatever made it
    "overflow": (0, 1).__contains__,
    "status": _STATUSES.__contains__,
    "measured": range(8).__contains__,
    **dict.fromkeys(("amax", "sum_squares", "elements", "nan_count", "inf_count", "first_tensor"), _not_negative),
    **dict.fromkeys(("first_element", "underflows_to_zero", "underflows_to_subnormal", "clamped"), _not_negative),
    "kind": _KINDS.__contains__,
    "flags": (0,).__contains__,
}


def _restored(data: bytes, extra: Mapping[str, Any]) -> Report:
    report = Report.from_bytes(data)
    vars(report).update(extra)
    return report


_AT_ONCE = {"names", "grads", "scale", "_addend", "__class__", "__dict__"}


class _Later(Report):
    """A report that a device may still be at: the first look at it waits, and it is a Report from then on.

    That of a call in a graph is of the last replay: each look waits.
    """

    def __getattribute__(self, name: str) -> Any:
        if name not in _AT_ONCE:
            _look(self)
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _AT_ONCE:
            _look(self)
        object.__setattr__(self, name, value)

    def __bytes__(self) -> bytes:
        _look(self)
        return bytes(memoryview(self))

    @staticmethod
    def make(report: Report, later: Callable[[], tuple[Report, bool]]) -> Report:
        """`later` returns a report with all that is not known yet, and whether it stays so."""
        vars(report).update(_later=later, _lock=threading.Lock())
        object.__setattr__(report, "__class__", _Later)
        return report


def _look(report: Report) -> None:
    held = vars(report)
    with held.get("_lock") or contextlib.nullcontext():
        if "_later" not in held:  # another thread has looked
            return
        try:
            whole, stays = held["_later"]()
        except c.Error as error:
            if error.status != Status.ERROR_UNAVAILABLE:  # else only now: the stream is being captured
                held["_later"] = functools.partial(_raise, error)
            raise
        ctypes.memmove(ctypes.byref(report), ctypes.byref(whole), _SIZE)
        held.update(vars(whole))
        if stays:
            object.__setattr__(report, "__class__", Report)
            del held["_later"], held["_lock"]


def _raise(error: BaseException) -> Any:
    raise error


class _Lists:
    """Gradients and results as a call takes them: names, arrays, and the containers that they came in."""

    groups: list | None = None  # of those that are read once

    def __init__(self, grads: Container, out: Container | None = None, dtype: Any = None) -> None:
        if type(grads) is not list and isinstance(grads, Iterator):
            grads = list(grads)
        self.names, self.ins, self.paths, self.kinds = _leaves(grads)
        if any(map(_is_parameter, self.kinds)):
            grads = _like(grads, lambda entry: entry.grad if _is_parameter(type(entry)) else entry)
            self.names, self.ins, self.paths, self.kinds = _leaves(grads)
        self.nested = self.names is self.paths
        self.grads = grads
        if dtype is not None:
            if out is not None:
                raise TypeError("pass out or dtype, not both")
            self.outs = [_empty_like(array, dtype) for array in self.ins]
            self.out = _filled(grads, self.outs)
        elif out is None or out is grads:
            self.outs, self.out = self.ins, grads
        else:
            self.out = list(out) if isinstance(out, Iterator) else out
            self.outs = self._matching(self.out)

    def _matching(self, out: Container) -> list[Any]:
        """The arrays of `out` in the order of the gradients."""
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
        """What the caller calls an array of the list."""
        label = "out" if name == "out" else "grads"
        if not isinstance(self.grads, Mapping) and _is_array(self.grads):
            return label
        found = self.names[index] if index < len(self.names) else index
        return label + "".join(f"[{key!r}]" for key in (found if self.nested else (found,)))

    def explain(self, error: c.Error, indices: Sequence[int] | None = None) -> None:
        """An error about an array names it; `indices` are those of the arrays of the call."""
        if error.index < 0:
            return _rename(error, {"options": ""} if error.field != "clamp" else {"options": "clip_value"})
        if indices is not None:  # the list that was refused is a part of the caller's
            error.index = indices[error.index]
            error.other = indices[error.other] if error.other >= 0 else -1
        where, why = self.where(error.name, error.index), error.why
        if error.other >= 0:
            other = self.where("grads" if self.outs is self.ins else "out", error.other)
            why = f"shares memory with {other}:{why.partition(':')[2]}"
        field = f".{error.field}" if error.field and error.field != "device" else ""
        error.args = (f"{where}{field} {why}",)

    def on_host(self, writes: bool) -> list[tuple[None, Any]] | None:
        """The lists as those of the host; None if their arrays have to be asked where they are."""
        if any(map(_cuda.asked, self.kinds)):
            return None
        return [(None, (self.ins, self.outs) if writes else self.ins)]

    def grouped(self, writes: bool, hold: bool = False) -> list[tuple[Sequence[int] | None, Any]]:
        """What a call takes of the host's arrays and of those of each device, with their positions."""
        groups = _cuda.groups(self.ins)
        several, results = len(groups) > 1, self.outs if writes else None
        if several and results is not None:
            if len(self.ins) != len(results):
                raise ValueError(f"{len(self.ins)} tensors and {len(results)} outputs")
            for i, (array, result) in enumerate(zip(self.ins, results, strict=True)):
                if _cuda.device_of(array) != _cuda.device_of(result):
                    raise ValueError(f"{self.where('out', i)} is on another device than its input")
        found = []
        for ordinal, indices in groups.items():
            indices = indices if several else None
            ins = [self.ins[i] for i in indices] if several else self.ins
            outs = [results[i] for i in indices] if several and results else results
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
    """Gradients, and the arrays for their results, read once: a call on many small ones costs little more than in C.

    arrays = Arrays(grads)           # in place; or Arrays(grads, out), Arrays(grads, dtype="float32"), as in `unscale`
    report = scaler.unscale(arrays)  # likewise measure and unscale_accumulate; report.grads is arrays.out

    This is for arrays that stay where they are from step to step: what is written into them is seen, an array that
    takes the place of another is not. So it is not for the gradients of torch, which are new ones after zero_grad();
    their list is read as fast anew. `grads` and `out` are containers of its own with the arrays, `names` their names
    or indices. The arrays live as long as this does. Meanwhile those that count who uses their memory, as a bytearray
    does, refuse to be resized; others must not be, neither by `resize_` of torch nor by NumPy's with refcheck=False.
    Any number of threads may use it, as they may use the arrays. It is not to be pickled.
    On a CUDA device each call runs on the stream that the framework of the arrays uses at that time, so it comes after
    what was enqueued there. If other streams write to the arrays, make that stream wait for them first.
    """

    def __init__(self, grads: Container, out: Container | None = None, *, dtype: Any = None) -> None:
        super().__init__(grads, out, dtype)
        for i, array in enumerate(self.ins):
            if _is_torchs(type(array)):
                why = "is a tensor of torch, whose gradients are new ones after zero_grad(): pass their list instead"
                raise TypeError(f"{self.where('tensors', i)} {why}")
        self.groups = self.grouped(True, hold=True)
        self.names = tuple(self.names) if isinstance(grads, Mapping) else self.names
        in_place, self.grads = self.out is grads, _filled(grads, self.ins)
        self.out = self.grads if in_place else _filled(grads, self.outs)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<Arrays: {len(self)} {'in place' if self.out is self.grads else 'with results elsewhere'}>"

    def __reduce__(self) -> Any:
        raise TypeError("Arrays hold memory of this process: pickle or copy their grads and out instead")


def _results(calls: list) -> list[tuple]:
    """What the devices found, as _assemble takes it."""
    found = []
    for indices, on_device in calls:
        part, each, words = on_device.results()
        found.append((indices, part, bytes(each), bytes(words)))
    return found


def _finished(report: Report, lists: _Lists, options: Mapping[str, Any], per_tensor: bool, over: bool = True) -> Report:
    """The report with what is known of each array; if the call is over, another may take its buffer."""
    buffer = options["per_tensor"]
    if report.nan_count + report.inf_count:
        report._locate(lists.names, buffer[: len(lists.ins) * _SIZE])
    if per_tensor:
        report._each = bytes(buffer)
    elif over and len(buffer) <= 1 << 20:
        _spare.append(buffer)
    return report


class Scaler:
    """A loss scale and the rules by which it moves.

    Scaler("torch", growth_interval=100) follows a preset with some fields replaced; see `presets()` and `Policy`. The
    arrays may be of any kind that has a buffer: NumPy in float16, float32, float64, complex64 and complex128, through
    ml_dtypes bfloat16, float8_e4m3fn and float8_e5m2; Cerebras' 16 bits are uint16 arrays seen as
    `array.view(gradscaler.cb16)`. Or DLPack: torch, CuPy and others, in CUDA memory too, where a call runs on the
    stream that their framework uses, and nothing waits for the device until somebody looks at the report; only arrays
    of several frameworks, or of one that does not say its stream, are waited for at once. A call that is captured in a
    CUDA graph divides by the scale in force at each replay, and its report is that of the last one, read anew at each
    look. A list may mix arrays of the host and of several devices, which
    work at a time; but `unscale_accumulate`, which adds all or nothing, takes arrays of one. A masked array is taken
    with its masked elements. `Arrays` read many small ones once.
    Lists and dicts may be nested: names are then tuples, such as ("layer", "weight"). None is passed over, and a
    Parameter of torch stands for its gradient: unscale(dict(model.named_parameters())).
    One thread at a time may update a scaler; large calls release the interpreter's lock. With `threads` above 1 they
    are shared among that many, this one included, where a list has 4 MiB or more; the bits are the same. The threads
    are this scaler's own, sleep between calls, end with it, and are made anew in a forked process; of several calls at
    a time one has them. They are no part of `state_dict`.
    What is refused raises Error, another ValueError, TypeError or KeyError that names it; then nothing has changed.
    """

    notes: Sequence[Note] = ()
    _pinned: Any = None
    _combined: str | None = None  # the reasons of the last update, with those of the scalers it was combined with

    def __init__(self, preset: str | Policy = "recommended", *, threads: int = 1, **fields: float) -> None:
        self.policy = Policy(preset, **fields) if not isinstance(preset, Policy) else preset.replace(**fields)
        self.preset = self.policy.preset
        warn_if_idle(self.policy)
        self._state = State()
        self.threads = threads
        c.gsc_state_init(None, self.policy, self.state)

    # ---- what it is ----

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._combined = None
        if self._pinned is None:
            self._state = state
        else:
            ctypes.memmove(ctypes.byref(self._state), ctypes.byref(state), ctypes.sizeof(State))

    def _pin(self, device: _cuda.Device) -> Any:
        """Where graphs read the factor in force: the state moves into memory that all devices see."""
        if self._pinned is None:
            self._pinned = c.gsc_memory_create(device.context, c.GSC_MEMORY_HOST, ctypes.sizeof(State))
            pinned = State.from_buffer(memoryview(self._pinned))
            ctypes.memmove(ctypes.byref(pinned), ctypes.byref(self._state), ctypes.sizeof(State))
            self._state = pinned
            device.graphs.append(self._pinned)
        return self._pinned, State.factor.offset

    @property
    def threads(self) -> int:
        """How many threads share a large call; another number may be set between calls."""
        return self._threads

    @threads.setter
    def threads(self, threads: int) -> None:
        if not isinstance(threads, int) or not 1 <= threads < 2**32:
            raise ValueError(f"threads={_short(threads)}: expected a whole number from 1 on")
        self._on = c.gsc_context_create_cpu({"threads": threads}) if threads > 1 else None
        self._threads = threads

    @property
    def loss_scale(self) -> float:
        """The scale in force."""
        return self.state.factor.scale

    @property
    def factor(self) -> Factor:
        """A snapshot of the scale in force, to keep with gradients that are unscaled after a later update."""
        return Factor.from_buffer_copy(self.state, State.factor.offset)

    @property
    def next_factor(self) -> Factor:
        """What the next loss is scaled by while the update of this one is still under way (apply_delay=1)."""
        return Factor.from_buffer_copy(self.state.next)

    @property
    def events(self) -> Event:
        """What the last update did. Event.STALE: its report was of another scale, late or used before."""
        return _event(self.state.events)

    @property
    def skip(self) -> bool:
        """The last update says to leave the parameters alone: an overflow, or a norm that the guard refuses."""
        return bool(self.state.skip)

    @property
    def total_overflows(self) -> int:
        """Steps with an overflow since the start; `total_guard_skips` are not among them."""
        return self.state.total_overflows

    @property
    def total_guard_skips(self) -> int:
        """Steps that the guard skipped since the start."""
        return self.state.total_guard_skips

    @property
    def multiplier(self) -> float:
        """What the gradients of the last update are to be multiplied by: 1, less where the guard clips, 0 to skip."""
        if self.state.events & Event.SKIPPED:
            return 0.0
        return self.state.guard_multiplier if self.state.events & Event.CLIPPED else 1.0

    @property
    def reason(self) -> str:
        """Why the last update skipped or clipped its step, or let an outlier through; empty where it did not.

        >>> scaler = Scaler("none", guard_norm=2)
        >>> scaler.update(Report.of_number(3))
        <Event.SKIPPED|OUTLIER: 516>
        >>> scaler.reason
        'skipped: the norm, 3, is above 2, 1 in a row'

        After `combine_decisions` it has the reasons of both, first that of `multiplier`.
        """
        if self._combined is not None:
            return self._combined
        reason = _structs.Reason()
        c.gsc_state_reason(self.state, reason)
        return reason.message.decode()

    @property
    def total_growths(self) -> int:
        return self.state.total_growths

    @property
    def total_backoffs(self) -> int:
        return self.state.total_backoffs

    def __repr__(self) -> str:
        fields = self.policy.differences(self.preset)
        fields |= {"threads": self.threads} if self.threads > 1 else {}
        arguments = ", ".join([repr(self.preset), *(f"{name}={value:g}" for name, value in fields.items())])
        mantissa, exponent = math.frexp(self.loss_scale)
        scale = f"2^{exponent - 1}" if mantissa == 0.5 else f"{self.loss_scale:g}"
        interval = f" of {self.policy.growth_interval}" if self.policy.growth_interval else ""
        events = f"; last update: {self.events.name.lower()}" if self.events else ""
        outliers = f"outliers skipped {self.total_guard_skips}, " if self.policy.guards else ""
        return (
            f"<Scaler({arguments}): scale {scale}; good steps {self.state.good_steps}{interval}, "
            f"overflows {self.total_overflows}, {outliers}growths {self.total_growths}, "
            f"backoffs {self.total_backoffs}{events}>"
        )

    # ---- the step ----

    def scale(self, loss: Any, dtype: Any = None) -> Any:
        """`loss` times the scale: a number, or an array of any shape as a new array, of `dtype` if given.

        A scaled float16 loss is easily infinite: a loss that is one number of a narrow type becomes float32. Keep
        arrays in float32 until they are scaled, then cast (dtype=numpy.float16 does both). `dtype` is NumPy's or
        ml_dtypes', or "cb16"; a complex loss stays complex. A tensor of a framework is multiplied by the framework,
        which is to differentiate it.
        """
        if _multiplies(type(loss)):
            if dtype is not None:
                raise TypeError(f"dtype={_short(dtype)}: cast the scaled {type(loss).__name__} instead")
            if not getattr(loss, "shape", (1,)) and str(getattr(loss, "dtype", "")).endswith("float16"):
                loss = loss.float() if hasattr(loss, "float") else loss.astype("float32")
            return loss * self.loss_scale
        if isinstance(loss, int | float) and dtype is None:
            value = ctypes.c_double(loss)
            self._scaled([value], [value])
            return type(loss)(value.value) if isinstance(loss, float) else value.value
        import numpy as np

        array = np.asarray(loss, order="C")
        narrow = dtype is None and array.ndim == 0 and array.dtype.itemsize < 4
        out = np.empty(array.shape, _dtype(dtype) or (np.float32 if narrow else array.dtype))
        self._scaled([array], [out])
        return out if isinstance(loss, np.ndarray) else out[()]

    def _scaled(self, ins: list[Any], outs: list[Any]) -> None:
        try:
            c.gsc_scale(self._on, self.state.factor, (ins, outs), None, None)
        except c.Error as error:
            if error.index >= 0:
                error.args = (f"{'dtype' if error.name == 'out' else 'loss'} {error.why}",)
            else:
                _rename(error, {})
            raise

    def unscale(
        self,
        grads: Container | Arrays,
        out: Container | None = None,
        *,
        dtype: Any = None,
        clip_value: float | None = None,
        want: int = 0,
        histogram: bool = False,
        per_tensor: bool = False,
        factor: Factor | None = None,
    ) -> Report:
        """Divides gradients by the scale, checks them, and reports: one C call for a list or dict of arrays.

        In place by default. float16 gradients are better unscaled into float32, where what scaling saved survives:
        `out` takes arrays of the same shapes (by the same names), `dtype` makes new ones, as in `scale`; they are
        `report.grads`. Complex gradients go with complex results only.
        `report.overflow` is the verdict of this scaler's policy: step if it is False, and update in any case. Where the
        policy guards, update first: only that knows outliers.
        `clip_value`, a finite number above 0 in the unit of unscaled gradients, also clamps each to [-clip_value,
        clip_value], both parts of a complex one, before it is rounded to its result. The report is of the gradients
        before they are clamped, so that an overflow is found.
        `want` (a union of Want), `histogram` and `per_tensor` (a report of each array) ask for more in the report.
        `factor` is the snapshot that the loss was scaled by, where an update ran since. No two arrays may share memory.
        """
        lists, options = _taken(grads, out, dtype), {"policy": self.policy}
        if clip_value is not None:
            limit = _number("clip_value", clip_value)
            if not 0 < limit < math.inf:
                raise ValueError(f"clip_value={limit!r}: it must be finite and above 0")
            options["clamp"] = limit
        return self._run("gsc_unscale", lists, factor, want, histogram, per_tensor, options)

    def unscale_accumulate(
        self,
        grads: Container | Arrays,
        out: Container | None = None,
        *,
        want: int = 0,
        histogram: bool = False,
        per_tensor: bool = False,
        factor: Factor | None = None,
    ) -> Report:
        """Adds gradients divided by the scale to `out` if all of them are finite, else nothing: of micro-batches.

        `out` has arrays of the same shapes (by the same names) and other memory, of any dtypes, float32 at best;
        complex ones for complex gradients. `report.overflow` tells that nothing was added; the report is of these
        gradients divided by the scale, in the dtypes of `out`. Give `update` the reports of all micro-batches; if one
        has an overflow, the sum lacks it: skip the step. The norm of a sum is not that of its parts: for a policy that
        judges by it, `measure` the sum with unscaled=True and give update that report. `want`, `histogram`,
        `per_tensor` and `factor` are as in `unscale`. An error adds nothing. Only `Arrays`, which have it, go without
        `out`.
        """
        report = self._run("gsc_unscale_accumulate", _taken(grads, out), factor, want, histogram, per_tensor, {})
        report._addend = True
        return report

    def measure(
        self,
        grads: Container | Arrays,
        *,
        want: int = 0,
        histogram: bool = False,
        per_tensor: bool = False,
        factor: Factor | None = None,
        unscaled: bool = False,
    ) -> Report:
        """Reports what `unscale` in place would, and writes nothing. With unscaled=True the scale of them is 1."""
        if unscaled and factor is not None:
            raise TypeError("pass factor or unscaled, not both")
        options = {"policy": self.policy}
        return self._run("gsc_measure", _taken(grads), factor, want, histogram, per_tensor, options, unscaled)

    def update(self, report: Report | Iterable[Report] | bool) -> Event:
        """Moves the scale after an optimizer step, or one that was skipped because of `report.overflow`.

        Several reports, of micro-batches or of optimizers that share this scale, count as one step. A bool that says
        whether there was an overflow is a report, too, for policies that judge by no more. A policy that guards knows
        outliers only here: update first, step unless Event.SKIPPED is in what it returns, and multiply the gradients by
        `multiplier` where Event.CLIPPED is.
        """
        if not isinstance(report, _structs.Report):
            report = _report_of(report)
        if isinstance(report, _Later):
            _look(report)
        try:
            c.gsc_state_update(None, self.policy, self.state, report, self.state)
        except c.Error as error:
            _rename(error, {})
            if error.field == "status":
                error.args = (f"{error}; what the call that failed raised says more",)
            for field, name, want in (("sum_squares", "norm", Want.NORM), ("amax", "amax", Want.AMAX)):
                if error.field == field and not _has(report, want):
                    advice = f"pass want=Want.{want.name} to what made it, or check the sum of several"
                    error.args = (f"report.{name} was not measured, and this policy judges by it: {advice}",)
            raise
        self._combined = None
        return self.events

    def set_rank(self, report: Report, rank: int) -> Report:
        """Notes in the report, before ranks gather theirs, whose it is, and a digest of this scaler's policy and state.

        >>> scalers = Scaler("torch"), Scaler("megatron")
        >>> reports = [scaler.set_rank(Report.of_flag(False), rank) for rank, scaler in enumerate(scalers)]
        >>> Report.merge(reports)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gradscaler.Error: reports[1].digest differs: rank 1 has another policy or state than rank 0: ...

        So a rank that loaded another checkpoint, missed a step or has other rules is found before anybody steps. Stamp
        `Report.failed(error)`, too: then all know which rank it was. Returns the report, for which a device is waited
        for; that of a call in a graph stays as it is, and what is returned is a stamped copy, of the last replay.
        """
        if not isinstance(report, _structs.Report):
            raise TypeError(f"expected the report of unscale, not {_short(report)}")
        try:
            number = -1 if isinstance(rank, bool) else operator.index(rank)
        except TypeError:
            number = -1
        if not 0 <= number < 2**32 - 1:
            raise ValueError(f"rank is {_short(rank)}: it must be a whole number from 0 to {2**32 - 2}")
        if isinstance(report, _Later):
            _look(report)  # what is written before the device is done would be lost
        if isinstance(report, _Later):
            report = copy.copy(report)  # the next look writes over it
        with _naming():
            c.gsc_report_set_rank(None, report, self.policy, self.state, number, report)
        return report

    def set_scale(self, scale: float, **counts: int) -> None:
        """Puts another scale in force at once. The counts stay, or become these: good_steps, steps_since_change,
        overflows_since_reset, failed_backoffs, total_overflows, total_growths, total_backoffs, as stateless frameworks
        keep them.
        """
        state = State.from_buffer_copy(self.state)
        state.factor.scale = _number("scale", scale)
        for name, count in counts.items():
            if name not in _COUNTS:
                raise TypeError(f"a state has no count {name!r}; it has {', '.join(_COUNTS)}")
            try:
                setattr(state, name, count)
            except TypeError as error:
                raise TypeError(f"{name}={_short(count)}: {error}") from None
            if getattr(state, name) != count:
                raise ValueError(f"{name}={_short(count)} does not fit into its field")
        try:
            c.gsc_state_init_from(None, self.policy, state, state)
        except c.Error as error:
            _rename(error, {"from": ""})
            error.args = (str(error).removeprefix("factor."),)
            raise
        self.state = state

    def combine_decisions(self, other: Scaler) -> Event:
        """Skips, clips or stops also where `other` did in its last update, which judged another signal of this step.

        >>> scaler, losses = Scaler("recommended"), Scaler("none", guard_norm=4)
        >>> _ = scaler.update(False), losses.update(Report.of_number(9.5))
        >>> scaler.combine_decisions(losses)
        <Event.SKIPPED|OUTLIER: 516>
        >>> scaler.reason
        'skipped: the norm, 9.5, is above 4, 1 in a row'

        Scale, counts and samples stay those of this scaler. Returns its events.
        """
        if not isinstance(other, Scaler):
            raise TypeError(f"other must be a gradscaler.Scaler, not {_short(other)}")
        deciding_first = sorted((self, other), key=lambda scaler: scaler.multiplier)
        reasons = [scaler.reason for scaler in deciding_first if scaler.reason]
        with _naming():
            c.gsc_state_combine_decisions(None, self.state, other.state, self.state)
        self._combined = "; ".join(reasons)
        return self.events

    def guard_factor(self, factor: Factor | None = None) -> Factor:
        """`factor` with the clip of the last update: `unscale(grads, factor=...)` unscales and clips in one pass.

        `factor` is `scaler.factor` of before the update, None where the gradients are unscaled already; then multiply
        by `.inverse`, or use `multiplier`. Where nothing was clipped it is as it was.
        """
        out = Factor()
        with _naming():
            c.gsc_factor_clip_outlier(None, _factor(factor), self.state, out)
        return out

    def clip_factor(self, report: Report, max_norm: float, *, unscaled: bool = False) -> Factor:
        """The factor that unscales and clips to a global norm in one pass: `unscale(grads, factor=...)`.

        `report` is of `measure(grads, want=Want.NORM)`, or with `unscaled=True` of `unscale`; then multiply by
        `.inverse`. The coefficient is that of torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), at most 1.
        """
        out = Factor()
        factor = None if unscaled else self.state.factor
        if isinstance(report, Report) and not _has(report, Want.NORM) and not report.status:
            report._demand("norm", Want.NORM)
        try:
            c.gsc_factor_clip_grad_norm(None, factor, report, _number("max_norm", max_norm), out)
        except c.Error as error:
            _rename(error, {})
            raise
        return out

    def _run(
        self,
        function: str,
        lists: _Lists,
        factor: Factor | None,
        want: int,
        histogram: bool,
        per_tensor: bool,
        options: dict[str, Any],
        unscaled: bool = False,
    ) -> Report:
        """One C call for the host's arrays, and one for those of each device."""
        if not isinstance(want, int) or not 0 <= want < 2**32:
            raise TypeError(f"want={want!r}: expected a union of gradscaler.Want")
        snapshot = factor
        factor = None if unscaled else _factor(factor) or self.factor
        count, writes = len(lists.ins), function != "gsc_measure"
        report = Report.__new__(Report)
        report.names, report.scale = lists.names, factor.scale if factor else 1.0
        report.grads = lists.out if writes else lists.grads
        options["want"] = want
        if histogram:
            options["histogram"] = report._words = bytearray(8 * c.GSC_HISTOGRAM_LENGTH)
        options["per_tensor"] = bytearray(max(count, 1) * _SIZE) if per_tensor else _borrow(count)
        groups = lists.groups or lists.on_host(writes) or lists.grouped(writes)
        if not self._on_host(function, groups, factor, options, report, lists):
            live = snapshot is None and not unscaled
            groups = lists.groups or lists.grouped(writes)
            later = self._on_devices(function, groups, factor, live, options, report, lists)
            if later:
                return _Later.make(report, functools.partial(later, per_tensor))
        return _finished(report, lists, options, per_tensor)

    def _on_host(self, function: str, groups: list, factor: Any, options: dict, report: Report, lists: _Lists) -> bool:
        """Whether all arrays are there: then the call is done."""
        if len(groups) > 1 or isinstance(groups[0][1], _cuda.Lists):
            return False
        try:
            getattr(c, function)(self._on, factor, groups[0][1], options, report)
        except c.Error as error:
            late = error.field == "device" and lists.groups is None  # some tell only now where they are
            if late and any(_cuda.device_of(array) is not None for array in lists.ins):
                return False
            lists.explain(error)
            raise
        return True

    def _on_devices(
        self, function: str, groups: list, factor: Any, live: bool, options: dict, report: Report, lists: _Lists
    ) -> Callable | None:
        """What is refused of any is so before the first writes, and all devices work at a time.

        Returned is what completes the report, or one of a later replay, or None where this has waited. `live`: in a
        graph the factor is that in force at each replay.
        """
        if len(groups) > 1 and function == "gsc_unscale_accumulate":
            raise ValueError("unscale_accumulate, which adds all or nothing, takes arrays of one device")
        call, indices, parts, calls = getattr(c, function), None, [], []
        try:
            if factor is not None:  # which a device would refuse only later
                c.gsc_measure(None, factor, [], None, _structs.Report())
            with contextlib.ExitStack() as ends:
                for indices, group in groups:
                    if isinstance(group, _cuda.Lists):
                        on_device = ends.enter_context(_cuda.Call(call, group, options))
                        if on_device.captured and len(groups) > 1:
                            raise ValueError("a call that is captured in a graph takes arrays of one device")
                        on_device.reserve()
                        calls.append((indices, on_device))
                for indices, group in groups:
                    if not isinstance(group, _cuda.Lists):  # checked only now
                        own = options | {"per_tensor": bytearray(len(indices) * _SIZE)}
                        own |= {"histogram": bytearray(8 * c.GSC_HISTOGRAM_LENGTH)} if "histogram" in options else {}
                        part = _structs.Report()
                        call(self._on, factor, group, own, part)
                        parts.append((indices, part, own["per_tensor"], own.get("histogram", b"")))
                for _, on_device in calls:
                    place = self._pin(on_device.device) if on_device.captured and live else None
                    on_device.enqueue(factor, place)
                if all(on_device.alone for _, on_device in calls):
                    whole = Report.__new__(Report)  # nothing that is kept until then refers to the other
                    whole.names, whole.scale = report.names, report.scale
                    ends.pop_all()
                    return functools.partial(self._completed, calls, parts, options, whole, lists, live)
                parts += _results(calls)
        except c.Error as error:
            lists.explain(error, indices)
            raise
        self._assemble(parts, options, report)
        return None

    def _completed(
        self,
        calls: list,
        parts: list,
        options: dict,
        report: Report,
        lists: _Lists,
        live: bool,
        per_tensor: bool,
    ) -> tuple[Report, bool]:
        """The report of what was enqueued, for which its devices are waited for; and whether it stays as it is."""
        captured, report._bad = calls[0][1].captured, None
        if captured and live:
            report.scale = self.loss_scale
        self._assemble(parts + _results(calls), options, report)
        for _, on_device in calls:
            on_device.end()
        return _finished(report, lists, options, per_tensor, not captured), not captured

    def _assemble(
        self, parts: list[tuple[Sequence[int] | None, Any, bytes, bytes]], options: Any, report: Report
    ) -> None:
        """The report of all of them, in the order of the list, so that its bits are those of one device."""
        buffer, words = options["per_tensor"], [0] * c.GSC_HISTOGRAM_LENGTH
        for indices, part, each, counts in parts:
            if "histogram" in options:
                words = [a + b for a, b in zip(words, memoryview(counts).cast("q"), strict=True)]
            if indices is None:
                buffer[: len(each)] = each
                ctypes.memmove(ctypes.byref(report), ctypes.byref(part), _SIZE)
                continue
            for position, i in enumerate(indices):
                one = _structs.Report.from_buffer_copy(each, position * _SIZE)
                one.first_tensor = i if one.nan_count + one.inf_count else 0
                buffer[i * _SIZE : (i + 1) * _SIZE] = bytes(one)
        if parts[0][0] is not None:
            count = sum(len(indices) for indices, *_ in parts)
            all_of_them = bytes(memoryview(buffer)[: count * _SIZE])
            c.gsc_report_merge(None, all_of_them, int(MergeKind.SHARDS), options.get("policy"), report)
            report.kind = ReportKind.TENSORS
        if "histogram" in options:
            options["histogram"][:] = b"".join(word.to_bytes(8, sys.byteorder) for word in words)

    # ---- to and from a checkpoint ----

    def state_dict(self, format: str = "gradscaler", *, prefix: str | None = None) -> dict[str, Any]:
        """Policy and state as numbers by name, for JSON or a checkpoint; every later version reads them.

        With another `format`, one of `formats()`, a dict as that framework saves it: its own scaler goes on from it.
        `notes` are then sentences on what its keys cannot hold. The keys begin with `prefix`, where one is given: "" is
        nothing, None what the framework has, such as {"loss_scaler0": {...}} of apex.
        """
        first = {"format": format, "version": _VERSION, "preset": self.preset} if format == "gradscaler" else {}
        found, self.notes = _checkpoints.write(self.policy, self.state, format, prefix, first)
        return found

    def load_state_dict(self, state: Any, format: str | None = None, *, prefix: str | None = None) -> Sequence[Note]:
        """Goes on from what `state_dict` returned, here or of any framework in `formats()`.

        `state` is a dict, nested or not, of numbers, arrays or tensors of one element, as torch.load and others return
        it; or an object with attributes, such as the scaler that DeepSpeed pickles. Its scale and most of its keys, at
        the top or below one or two names, tell the format. If several formats fit, the error names them, and `format`
        decides. If there are several scalers, or one stands deeper, the error names the `prefix` to give: the path from
        the top, joined by dots, such as "amp.loss_scaler1". A key of more than 159 bytes is not read. What is no number
        where the scaler has one raises gradscaler.Error with its key.
        What `state_dict` returned, found wherever it lies, has a policy, which becomes this scaler's. A checkpoint of a
        framework changes the settings that are in it, and no others: Scaler("torch") goes on as torch would,
        Scaler("recommended") by its own rules from that scale and those counts. Returns, and keeps as `notes`,
        sentences on what the checkpoint lacks, what in it was ignored, and what means something else to this policy.
        The first are on what it replaced: a guard, fields other than the preset's, a scale that never moved.
        Nothing is changed on an error.
        """
        if isinstance(state, Mapping) and "saved" in state and "scale" not in state:  # RoundPipe's has both
            return self._load_saved(state)
        _checkpoints._checked(format, prefix)
        rows = _checkpoints.rows_of(state)
        if format in (None, "gradscaler"):
            place = _checkpoints.place_of_ours(rows, prefix)
            if place is not None:
                return self._load_ours(rows, place)
        torchs = _checkpoints.of_our_torchs(rows, prefix) if format in (None, "torch") else None
        if torchs is not None:
            return self._load_torchs(torchs)
        policy, loaded = self.policy.replace(), State()
        notes = _checkpoints.read(rows, policy, loaded, format, prefix)
        return self._loaded(self.preset, policy, loaded, notes, is_fixed(self.policy) and not is_fixed(policy))

    def _loaded(self, preset: str, policy: Policy, state: State, notes: Sequence[Note], moves: bool = False) -> Any:
        """Takes what was loaded; first of the notes is what of the rules that this scaler was given it replaces."""
        replaced = [] if self.policy is None else _replaced(self.policy, policy)
        if moves:
            why = f"the checkpoint has rules that move the scale, which those of {self.preset!r} never do"
            replaced.append(_checkpoints.note(why, NoteKind.CHANGED, "growth_interval", policy.growth_interval))
        self.preset, self.policy, self.state, self.notes = preset, policy, state, replaced + list(notes)
        return self.notes

    def _load_ours(self, rows: Mapping[tuple, Any], place: tuple) -> Sequence[Note]:
        """What state_dict returned, at a place in a checkpoint."""
        head = {key: rows.get((*place, key)) for key in ("format", "version", "preset")}
        where = "state" + "".join(f"[{key!r}]" for key in place)
        if head["version"] != _VERSION:
            version = _short(head["version"]) if (*place, "version") in rows else "absent"
            raise ValueError(f"{where}['version'] is {version}: gradscaler {info().version} reads {_VERSION}")
        if type(head["preset"]) is not str:
            raise KeyError(f"{where} has no text 'preset'" if place else "the state has no text 'preset'")
        # New fields are the last ones: what an earlier version did not know was off, whatever the preset has by now.
        unknown = itertools.takewhile(lambda name: (*place, name) not in rows, reversed(_FIELDS))
        policy, loaded = Policy(head["preset"], **dict.fromkeys(unknown, 0)), State()
        numbers = {path: value for path, value in rows.items() if path[:-1] != place or path[-1] not in head}
        notes = _checkpoints.read(numbers, policy, loaded, "gradscaler", _checkpoints._joined(place))
        for note in notes:  # of a later version, which does nothing where it is 0
            if note.kind == NoteKind.IGNORED and note.value:
                (*_, key), value = note.key, rows[note.key]
                raise ValueError(f"{where}[{key!r}] is {_short(value)}: gradscaler {info().version} does not know it")
        return self._loaded(head["preset"], policy, loaded, notes)

    def _load_saved(self, state: Mapping[str, Any]) -> Sequence[Note]:
        """What state_dict returned before 0.3, bytes in hexadecimal, or that of TensorScaler, which has no preset."""
        state = {"preset": "none", **state}
        for key in ("preset", "saved"):
            if not isinstance(state[key], str):
                raise KeyError(f"the state has no text {key!r}")
        policy, loaded = _unhex(state["saved"], "state['saved']", state["preset"])
        return self._loaded(state["preset"], policy, loaded, [])

    def _load_torchs(self, state: Mapping[str, Any]) -> Sequence[Note]:
        """Of gradscaler.torch.GradScaler: torch's entries, and all rules and counts in one more."""
        policy, whole = _unhex(state["gradscaler"], "state['gradscaler']")
        loaded, entries = State(), {key: value for key, value in state.items() if key != "gradscaler"}
        notes = _checkpoints.read(_checkpoints.rows_of(entries), policy, loaded, "torch", None)
        if (whole.factor.scale_f32, whole.good_steps) == (loaded.factor.scale_f32, loaded.good_steps):
            loaded = whole
            notes = [note for note in notes if note.kind != NoteKind.MISSING]  # which the sixth entry has
        return self._loaded(policy.preset, policy, loaded, notes)

    def __getstate__(self) -> dict[str, Any]:
        left_out = {"policy": None, "_state": None, "_pinned": None, "_on": None}
        return vars(self) | left_out | {"state": self.state_dict()}

    def __setstate__(self, attributes: Mapping[str, Any]) -> None:
        vars(self).update(attributes)
        self.threads = attributes["_threads"]
        self.load_state_dict(vars(self).pop("state"))


def policy_of(data: bytes) -> Policy:
    """The policy of bytes that were pickled, by an earlier version, too, whose fewer fields are all there are."""
    policy = Policy.from_buffer_copy(data.ljust(ctypes.sizeof(Policy), b"\0"))
    _structs.Policy.struct_size.__set__(policy, ctypes.sizeof(Policy))
    return policy


def _unhex(saved: Any, where: str, preset: str = "none") -> tuple[Policy, State]:
    """Policy and state of "preset:hexadecimal"; `preset` is where the policy started if the text does not say it."""
    try:
        named, _, digits = saved.rpartition(":")
        data = bytes.fromhex(digits)
    except (AttributeError, ValueError):
        raise ValueError(f"{where} is damaged: it is not hexadecimal") from None
    policy, state = Policy(named or preset), State()
    with _naming(bytes=where, size=f"the size of {where}"):
        c.gsc_state_load(data, policy, state)
    return policy, state


def rules(policy: Policy) -> dict[str, float]:
    """The fields of a policy but its start, where 0 is no name of another number."""
    resolved = policy.replace()
    c.gsc_policy_resolve(policy, resolved)
    return {name: getattr(resolved, name) for name in _FIELDS if name != "init_scale"}


def is_fixed(policy: Policy) -> bool:
    """Whether the scale never moves."""
    return not traits(policy) & Trait.MOVES


def traits(policy: Policy) -> int:
    return c.gsc_policy_resolve(policy, policy.replace())


def _replaced(old: Policy, new: Policy) -> list[Note]:
    """Of a guard, and of fields in which the old policy is not its preset: those that the new one has otherwise."""
    given = {*old.differences(old.preset), *(_GUARD_FIELDS if old.guards else ())}
    was, now = rules(old), rules(new)
    return [
        _checkpoints.note(
            f"{name} is {_checkpoints.told(name, now[name])} in the checkpoint, which replaces "
            f"{_checkpoints.told(name, was[name])} of this scaler",
            NoteKind.CHANGED,
            name,
            now[name],
        )
        for name in was
        if name in given and was[name] != now[name]
    ]


def _preset_of(format: str) -> str:
    """The preset that has the name of a format."""
    return format if format in presets() else "recommended"


def _report_of(value: Any) -> Report:
    """The report of one step that a bool, or several reports, stand for."""
    dtype = str(getattr(value, "dtype", ""))
    if isinstance(value, bool) or (dtype in ("bool", "torch.bool") and not value.shape):
        return Report.of_flag(bool(value))
    reports = list(value) if isinstance(value, Iterable) else [value]
    if not reports:
        raise ValueError("update takes at least one report")
    return Report.merge(reports, addends=any(getattr(each, "_addend", False) for each in reports))


# ---- what a call writes beside its report ----

_spare: list[bytearray] = []  # of calls that are over; appending and taking are atomic


def _borrow(count: int) -> bytearray:
    """Room for the reports of so many arrays."""
    try:
        buffer = _spare.pop()
    except IndexError:
        buffer = b""
    return buffer if len(buffer) >= max(count, 1) * _SIZE else bytearray(max(count, 64) * _SIZE)


def _overflows(each: bytes | bytearray, count: int) -> Iterable[int]:
    """How many elements of each array are Inf or NaN."""
    words, step = memoryview(each)[: count * _SIZE].cast("q"), _SIZE // 8
    nans, infs = (words[field.offset // 8 :: step] for field in (_structs.Report.nan_count, _structs.Report.inf_count))
    return map(int.__add__, nans.tolist(), infs.tolist())


# ---- containers ----


def _taken(grads: Container | Arrays, out: Container | None = None, dtype: Any = None) -> _Lists:
    if type(grads) is list or not isinstance(grads, Arrays):
        return _Lists(grads, out, dtype)
    if out is not None or dtype is not None:
        raise TypeError("out or dtype: pass it to gradscaler.Arrays, which hold gradients and results")
    return grads


def _is_array(grads: Any) -> bool:
    """Whether this is one array, not a list of them."""
    if hasattr(grads, "dtype"):
        return True
    try:
        memoryview(grads)
    except TypeError:
        return False
    return True


def _is_torchs(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return hasattr(torch, "Tensor") and issubclass(kind, torch.Tensor)


@functools.cache
def _is_parameter(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return hasattr(torch, "nn") and issubclass(kind, torch.nn.Parameter)


@functools.cache
def _role(kind: type) -> str:
    """What an entry of this kind stands for."""
    if issubclass(kind, Mapping | list | tuple):
        return "container"
    return "none" if issubclass(kind, type(None)) else "array"


def _leaves(grads: Container) -> tuple[Sequence[Any], list[Any], list[tuple] | None, set[type]]:
    """Names and arrays of a dict, indices and arrays of a list, or of one array; their paths if some are not plain."""
    if type(grads) is list:  # what is asked most
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
    """The arrays of a tree of dicts and lists, without None."""
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


def _like(grads: Container, leaf: Callable[[Any], Any]) -> Any:
    """Containers of the same kinds, with what `leaf` makes of each entry."""
    return _branch(grads if isinstance(grads, Mapping) or _is_array(grads) else list(grads), leaf)


def _branch(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _branch(entry, leaf) for key, entry in tree.items()}
    if isinstance(tree, list | tuple):
        return [_branch(entry, leaf) for entry in tree]
    return leaf(tree)


def _filled(grads: Container, arrays: list[Any]) -> Any:
    """`arrays` in the same kinds of containers, where those of `grads` are."""
    rest = iter(arrays)
    return _like(grads, lambda entry: None if entry is None else next(rest))


def _empty_like(array: Any, dtype: Any) -> Any:
    """A new array of another dtype in the same memory order."""
    if _cuda.elsewhere(type(array)):  # its framework makes another, where it is
        framework = sys.modules[type(array).__module__.partition(".")[0]]
        if hasattr(framework, "empty_like"):
            return framework.empty_like(array, dtype=getattr(framework, dtype) if isinstance(dtype, str) else dtype)
        if _cuda.device_of(array) is not None:
            raise TypeError(f"dtype={_short(dtype)}: {framework.__name__} has no empty_like; pass out instead")
    import numpy as np

    return np.empty_like(np.asarray(array), dtype=_dtype(dtype), subok=False)


# ---- arguments ----


@functools.cache
def _multiplies(kind: type) -> bool:
    """Whether this is a framework's tensor, or what stands for one while it is traced."""
    return hasattr(kind, "dtype") and hasattr(kind, "__mul__") and not hasattr(kind, "__array_interface__")


@functools.cache
def cb16() -> Any:
    """Cerebras' 16 bits as a dtype that NumPy can carry, though not compute with."""
    import numpy as np

    return np.dtype([("cb16", "<u2")])


def _dtype(dtype: Any) -> Any:
    return cb16() if isinstance(dtype, str) and dtype == "cb16" else dtype


def _factor(factor: Any) -> Factor | None:
    if factor is not None and not isinstance(factor, Factor):
        raise TypeError(f"factor must be a gradscaler.Factor such as scaler.factor, not {type(factor).__name__}")
    return factor


def _short(value: Any) -> str:
    return repr(value)[:40]


def _number(name: str, value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, str | bytes):
        raise TypeError(f"{name}={_short(value)}: expected a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        kind = next(kind for kind in (TypeError, OverflowError, ValueError) if isinstance(error, kind))
        why = str(error).partition("\n")[0]  # of JAX's own kind, which is made of a tracer, the first line
        raise kind(f"{name}={_short(value)}: {why}") from None
