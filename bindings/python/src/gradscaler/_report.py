# SPDX-License-Identifier: MIT
"""Reports on gradients, with the names of their arrays, also of calls that still run on a device."""

from __future__ import annotations

import array
import ctypes
import functools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import _gradscaler as c
from . import _structs
from ._arguments import _argument_names, _html, _judged_number, _short_repr
from ._policy import Policy, refuse_candidate
from ._structs import Loss, MergeKind, ReportKind, Status, Want

_SIZE = ctypes.sizeof(_structs.Report)
BINS = ("<2^-44", *(f"2^{4 * k - 48}" for k in range(1, 16)))  # of a histogram, by their lower ends


class _MeasuredField:
    """A field of the struct that is measured only if `want` asks for it."""

    def __init__(self, name: str, want: int) -> None:
        self.name, self.want, self.field = name, want, getattr(_structs.Report, name)

    def __get__(self, report: Report | None, kind: type) -> Any:
        if report is None:
            return self.field  # Report.amax.offset works as on the struct
        report._require_measured(self.name, self.want)
        return self.field.__get__(report)

    def __set__(self, report: Report, value: Any) -> None:
        self.field.__set__(report, value)


class _LossField:
    """report.loss as a Loss."""

    def __get__(self, report: Report | None, kind: type) -> Any:
        field = _structs.Report.loss
        return field if report is None else Loss(field.__get__(report))

    def __set__(self, report: Report, value: int) -> None:
        _structs.Report.loss.__set__(report, value)


class Report(_structs.Report):
    """A report on the gradients of one call. `bytes(report)` has all except names and arrays; see from_bytes.

    overflow: True: do not step. An element is or became Inf or NaN, or the policy counts the report as an overflow
    found_inf: the same as 0.0 or 1.0, for fused optimizers of torch; also 1.0 with a bad loss if the policy holds
    loss: Loss.FINITE or Loss.NOT_FINITE if the call got the loss, else Loss.UNKNOWN
    bad: how many elements of each array are Inf or NaN: {name in a dict, or index in a list: count}. A report that was
        merged or made from bytes does not know: ValueError
    first_overflow: (name, element) of the first such element, or None; if the report was merged without names, (index,
        element). The index is a position in the rank's own list: all ranks must have the same names in the same order
    last_overflow: the name of the last array with such an element, or None. If the arrays are in the model's order, it
        is the one nearest to the cause. `last_tensor` is its index
    rank, last_rank: the ranks of first_overflow and last_overflow; None without Scaler.set_rank
    loss_rank, failed_rank: the first ranks with a bad loss and with a failure; None without Scaler.set_rank
    grads: the container with the results; None in a report that was merged, pickled or made from bytes
    scale: the loss scale that the gradients were divided by; 1.0 in a report that was merged or made from bytes
    norm, amax, underflows_to_zero, ...: measured if `want` asks for them, else ValueError; histogram: histogram=True
    per_tensor: {name: Report} with per_tensor=True
    clamped: how many elements clip_value changed
    kind: a ReportKind. An empty report, Report(), is refused wherever a report is expected
    measured: a union of Want: the measured values
    cause: in gradscaler.torch, the name of the parameter with the first bad gradient that the backward pass made. `bad`
        is sorted from it on. If the order of the backward pass is not known, it is the last of them
    grew: in gradscaler.torch, if the guard found an outlier: the parameters that contribute more to the square of the
        norm than usual, {name: (usual share, share now)}
    histogram_edges: 17 magnitudes; bin k goes from [k] up to, not including, [k + 1]
    """

    histogram_edges = (0.0, *(2.0 ** (4 * k - 48) for k in range(1, 16)), math.inf)
    names: Sequence = ()
    grads: Any = None
    scale: float = 1.0
    grew: Mapping[str, tuple[float, float]] = {}
    cause: Any = None
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

    def __bytes__(self) -> bytes:
        return bytes(memoryview(self))

    @property
    def overflow(self) -> bool:
        return bool(_structs.Report.overflow.__get__(self))

    @overflow.setter
    def overflow(self, value: bool) -> None:
        _structs.Report.overflow.__set__(self, bool(value))
        self.found_inf = float(bool(value))

    @property
    def bad(self) -> dict[Any, int]:
        counts = self._bad_counts()
        if counts is None and self.nan_count + self.inf_count:
            raise ValueError(
                "the report has no counts of each array: it was merged or made from bytes; ask the report of the call"
            )
        return dict(counts or {})

    @property
    def first_overflow(self) -> tuple | None:
        if not self.nan_count + self.inf_count:
            return None
        return self._name(self.first_tensor), self.first_element

    @property
    def last_overflow(self) -> Any:
        return self._name(self.last_tensor) if self.nan_count + self.inf_count else None

    def _name(self, tensor: int) -> Any:
        return self.names[tensor] if tensor < len(self.names) else tensor

    @property
    def rank(self) -> int | None:
        """The rank; in a merged report, the rank of the first overflow. None: the rank was not set, or no overflow."""
        return self.first_rank_plus_1 - 1 if self.first_rank_plus_1 else None

    @property
    def last_rank(self) -> int | None:
        """As `rank`, but of the last overflow."""
        return self.last_rank_plus_1 - 1 if self.last_rank_plus_1 else None

    @property
    def loss_rank(self) -> int | None:
        """The first rank with a bad loss; None if there was none, or if its rank was not set."""
        return self.loss_rank_plus_1 - 1 if self.loss == Loss.NOT_FINITE and self.loss_rank_plus_1 else None

    @property
    def failed_rank(self) -> int | None:
        """The rank that failed first; None if no rank failed, or if its rank was not set."""
        return self.status_rank_plus_1 - 1 if self.status and self.status_rank_plus_1 else None

    @property
    def norm(self) -> float:
        """Global L2 norm of the finite elements after unscaling; in a report from of_number, the number itself."""
        self._require_measured("norm", Want.NORM)
        return self.number if self.kind == ReportKind.NUMBER else math.sqrt(self.sum_squares)

    loss: Loss = _LossField()
    amax: float = _MeasuredField("amax", Want.AMAX)
    """Largest finite magnitude after unscaling, before rounding; a complex element counts by its larger part."""
    underflows_to_zero: int = _MeasuredField("underflows_to_zero", Want.UNDERFLOW)
    """How many outputs are zero while their input was not."""
    underflows_to_subnormal: int = _MeasuredField("underflows_to_subnormal", Want.UNDERFLOW)
    """How many outputs are subnormal while their input was not."""

    def _require_measured(self, name: str, want: Want) -> None:
        if not _has(self, want):
            of_a_sum = self._of_addends and want != Want.UNDERFLOW
            where = " to measure(sum, unscaled=True): it is of addends, and their sum has another" if of_a_sum else ""
            raise ValueError(f"the report has no {name}: pass want=gradscaler.Want.{want.name}{where}")

    @property
    def histogram(self) -> list[int]:
        """How many elements have a magnitude in each of the 16 bins: finite after unscaling, and not zero.

        It is a sample: the first 4,096 of every 65,536 elements of an array. `histogram_elements` is its size.
        """
        return self._histogram_words()[:-1]

    @property
    def histogram_elements(self) -> int:
        return self._histogram_words()[-1]

    def _histogram_words(self) -> list[int]:
        if self._words is None:
            raise ValueError("the report has no histogram: pass histogram=True")
        return memoryview(self._words).cast("q").tolist()

    @property
    def per_tensor(self) -> dict[Any, Report]:
        """A report of each array, by its name or index; its `overflow` is about its own elements."""
        if self._each is None:
            raise ValueError("the report has none of each array: pass per_tensor=True")
        return {name: self._report_of_array(i) for i, name in enumerate(self.names)}

    def _report_of_array(self, index: int) -> Report:
        report = Report.from_buffer_copy(self._each, index * _SIZE)
        report.names, report.scale = self.names, self.scale
        count = report.nan_count + report.inf_count
        report._bad = {self.names[index]: count} if count else {}
        return report

    @classmethod
    def from_bytes(cls, data: bytes) -> Report:
        """Makes a report from bytes(report), also from another process or machine with the same version."""
        try:
            size = memoryview(data).nbytes
        except TypeError:
            raise TypeError(f"expected the bytes of a report, not {_short_repr(data)}") from None
        if size != _SIZE:
            raise ValueError(f"a report has {_SIZE} bytes, not {size}")
        raw = _structs.Report.from_buffer_copy(data)
        is_blank = raw.kind == ReportKind.NONE and raw.status == Status.OK
        if is_blank and raw.status_rank_plus_1 != raw.first_rank_plus_1:  # 0.9 had its kind there
            refuse_candidate("the report")
        wrong = [name for name, values in _VALID_VALUES.items() if getattr(raw, name) not in values]
        wrong += [name for name in _NOT_NEGATIVE if getattr(raw, name) < 0]  # update refuses a NaN
        if wrong:
            value = getattr(raw, wrong[0])
            raise ValueError(f"the bytes are no report: its {wrong[0]} would be {value!r}")
        return cls.from_buffer_copy(data)

    @classmethod
    def of_number(cls, number: float) -> Report:
        """Makes a report of a number, such as the loss, for a second scaler with a policy that guards.

        `Scaler.combine_decisions` combines the decisions of both scalers. The number counts with its sign; Inf, NaN and
        magnitudes above 2^500 are an overflow.
        """
        report = cls()
        c.gsc_report_from_number(_judged_number("number", number), report)
        return report

    @classmethod
    def of_flag(cls, overflow: bool) -> Report:
        """Makes a report from a bool: whether there was an overflow. Nothing else is measured."""
        report = cls()
        c.gsc_report_from_flag(bool(overflow), report)
        return report

    @classmethod
    def failed(cls, error: int | BaseException = Status.ERROR_DEVICE) -> Report:
        """Makes the report of a rank that got an error: when it is merged with other ranks' reports, no rank steps.

        The other ranks see only a Status: of a gradscaler.Error its own, of a MemoryError Status.ERROR_MEMORY, of any
        other exception Status.ERROR_REPORT. So print the exception on the rank that raised it.
        """
        status = error
        if isinstance(error, BaseException):
            other = Status.ERROR_MEMORY if isinstance(error, MemoryError) else Status.ERROR_REPORT
            status = error.status if isinstance(error, c.Error) else other
        if not isinstance(status, int) or status not in map(int, Status) or status == Status.OK:
            raise ValueError(
                f"error is {_short_repr(error)}: expected an exception, or a gradscaler.Status that is an error"
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
        """Merges the reports of ranks, optimizers or layers, in order.

        addends: True if the gradients are added, as with micro-batches and data-parallel ranks; the norm and amax of
            the sum are then not known
        policy: decides whether the merged report is an overflow
        names: the names of the arrays, such as `report.names`, for first_overflow and last_overflow. They are looked up
            by the index on the rank with the overflow, so all reports must have the same names in the same order

        Raises gradscaler.Error with Status.ERROR_MISMATCH if the digests of `Scaler.set_rank` differ: a
        rank has another policy or state than the others.
        Does not check that each rank is there once and in order. Refuses reports from of_number.
        """
        if not isinstance(policy, _structs.Policy | None):
            raise TypeError(f"policy must be a gradscaler.Policy such as scaler.policy, not {_short_repr(policy)}")
        if isinstance(names, str | bytes) or not isinstance(names, Iterable):
            raise TypeError(f"names must be a list of names, not {_short_repr(names)}")
        reports = list(reports) if isinstance(reports, Iterable) and not isinstance(reports, bytes) else [reports]
        for report in reports:
            if not isinstance(report, _structs.Report):
                why = ": make a report of them by Report.from_bytes" if isinstance(report, bytes) else ""
                raise TypeError(f"expected the report of unscale, or several, not {type(report).__name__}{why}")
        merged, kind = Report(), MergeKind.ADDENDS if addends else MergeKind.SHARDS
        with _argument_names():
            c.gsc_report_merge(None, b"".join(map(bytes, reports)), int(kind), policy, merged)
        merged.names, merged._of_addends = names if isinstance(names, Sequence) else list(names), addends
        return merged

    def _keep_bad_reports(self, names: Sequence, per_tensor: bytes | bytearray) -> None:
        """Keeps the reports of the arrays for `bad`: they are read only on demand, because a skipped step is urgent."""
        self._bad = (names, per_tensor)

    def _keep_per_tensor(self, buffer: bytearray, per_tensor: bool, over: bool = True) -> Report:
        """Keeps what is needed of the arrays' reports; if the call is over, another call can use their buffer."""
        if self.nan_count + self.inf_count:
            self._keep_bad_reports(self.names, buffer[: len(self.names) * _SIZE])
        if per_tensor:
            self._each = bytes(buffer)
        elif over and len(buffer) <= 1 << 20:
            _spare_buffers.append(buffer)
        return self

    def _bad_counts(self) -> dict[Any, int] | None:
        if not isinstance(self._bad, tuple):
            return self._bad
        names, each = self._bad
        counts = zip(names, _bad_per_array(each, len(names)), strict=True)
        return {name: count for name, count in counts if count}

    def _arrays(self) -> tuple[Sequence, bytes | memoryview | None]:
        """Returns the names of the arrays, and their reports as far as they are known."""
        names, each = self._bad if isinstance(self._bad, tuple) else (self.names, None)
        if self._each is not None:
            names, each = self.names, self._each
        return names, None if each is None else memoryview(each)[: len(names) * _SIZE]

    def _without_arrays(self) -> Report:
        """Returns a copy for `explained`, which keeps no gradients alive."""
        kept = Report.from_buffer_copy(self)
        kept.names, kept._bad = self.names, self._bad
        return kept

    def __reduce__(self) -> Any:
        data, here = bytes(self), ("grads", "_later", "_lock", "found_on_device")
        extra = {name: value for name, value in vars(self).items() if name not in here}
        return _restored, (data, extra | {"_bad": self._bad_counts()})

    def _known_values(self) -> dict[str, str]:
        """Returns the known values by name."""
        names = ["overflow", "elements"]
        names += [name for name in ("failed_rank", "rank") if getattr(self, name) is not None]
        if self.nan_count + self.inf_count:
            names += ["bad"] if self._bad_counts() else []  # a merged report does not know
            names += ["first_overflow"] + ["last_overflow"] * (self.first_tensor != self.last_tensor)
            names += ["nan_count", "inf_count"]
        names += ["norm"] if _has(self, Want.NORM) else []
        names += ["amax"] if _has(self, Want.AMAX) else []
        names += ["underflows_to_zero", "underflows_to_subnormal"] if _has(self, Want.UNDERFLOW) else []
        names += ["clamped"] if self.clamped else []
        texts = {name: repr(getattr(self, name)) for name in names}
        if self.status:
            texts["status"] = repr(Status(self.status))
        if self.loss:
            texts["loss"] = repr(self.loss)
        if self._words is not None:
            bins = [(low, n) for low, n in zip(BINS, self.histogram, strict=True) if n]
            texts["histogram"] = f"{{{', '.join(f'{low}: {n}' for low, n in bins)}}} of {self.histogram_elements}"
        return texts

    def __repr__(self) -> str:
        return f"Report({', '.join(f'{name}={text}' for name, text in self._known_values().items())})"

    def _repr_html_(self) -> str:
        return _html("Report", self._known_values())


def _has(report: _structs.Report, want: int) -> bool:
    """Returns whether `want` was measured; a report from of_number has a norm."""
    return bool(report.measured & int(want)) or (want == Want.NORM and report.kind == ReportKind.NUMBER)


class LateReport(Report):
    """The report of a call that runs on devices. The first access to a result waits for them.

    `later` waits, and returns the results and whether they are final. After a call in a CUDA graph they are not: each
    access waits and returns the results of the last replay.
    """

    def __init__(self, known: Report, later: Callable[[], tuple[Report, bool]]) -> None:
        vars(self).update(vars(known), _later=later, _lock=threading.Lock())

    def __getattribute__(self, name: str) -> Any:
        if name in _RESULTS:
            self._wait()
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _RESULTS:
            self._wait()
        super().__setattr__(name, value)

    def __bytes__(self) -> bytes:
        self._wait()
        return super().__bytes__()

    def _wait(self) -> bool:
        """Waits for the devices. Returns whether the results can change later."""
        with self._lock:
            if self._later is None:
                return False
            try:
                final, is_final = self._later()
            except c.Error as error:
                if error.status != Status.ERROR_UNAVAILABLE:  # unavailable only while the stream is captured
                    self._later = functools.partial(_raise_error, error)
                raise
            ctypes.memmove(ctypes.byref(self), ctypes.byref(final), _SIZE)
            vars(self).update(scale=final.scale, _bad=final._bad, _each=final._each)
            if is_final:
                self._later = None
            return not is_final


_RESULTS = {"_bad", "_each", "_words", *(name for name, _ in _structs.Report._fields_)}

# Values that every valid report has.
_VALID_VALUES = {
    "overflow": (0, 1),
    "status": list(Status),
    "measured": range(8),
    "kind": list(ReportKind),
    "has_flag": (0, 1),
    "loss": list(Loss),
}
_NOT_NEGATIVE = ["amax", "sum_squares", *(name for name, kind in _structs.Report._fields_ if kind is ctypes.c_int64)]


def _restored(data: bytes, extra: Mapping[str, Any]) -> Report:
    report = Report.from_bytes(data)
    for name, value in extra.items():
        setattr(report, name, value)
    return report


class Reason(_structs.Reason):
    __doc__ = _structs.Reason.__doc__

    @property
    def outcome(self) -> _structs.Outcome:
        return _structs.Outcome(_structs.Reason.outcome.__get__(self))

    @property
    def cause(self) -> _structs.Cause:
        return _structs.Cause(_structs.Reason.cause.__get__(self))

    @property
    def message(self) -> str:
        return _structs.Reason.message.__get__(self).decode(errors="replace")

    @message.setter
    def message(self, text: str) -> None:
        whole, room = text.encode(), _structs.Reason.message.size
        cut = whole[: room - 4].decode(errors="ignore").encode() + b"..."
        _structs.Reason.message.__set__(self, whole if len(whole) < room else cut)


def explained(
    state: _structs.State,
    report: Report | None = None,
    evidence: _structs.Evidence | None = None,
    order: Iterable[int] | None = None,
) -> Reason:
    """Returns why the update with this report decided as it did; the sentence names an array if the report knows it.

    order: the indices of the arrays, in the order in which the backward pass made their gradients
    """
    reason, each, names = Reason(), None, None
    if order is not None:
        order = array.array("Q", order)
    if report is not None:
        names = texts_of(report.names)
        if isinstance(report._bad, tuple):
            each = report._bad[1]
    c.gsc_state_reason(state, report, evidence, each, names, order, reason)
    return reason


def texts_of(names: Sequence) -> list[str | None] | None:
    """Returns names of arrays for sentences, or None without names."""
    return None if isinstance(names, range) else [text_of(name) for name in names] or None


def text_of(name: Any) -> str | None:
    """Returns the name of an array for a sentence, or None for an index."""
    if isinstance(name, int):
        return None
    text = ".".join(map(str, name)) if isinstance(name, tuple) else str(name)
    return text.encode(errors="replace").decode().replace("\0", "\\0")


def _raise_error(error: BaseException) -> Any:
    raise error


# ---- buffers for the reports of each array ----

_spare_buffers: list[bytearray] = []  # buffers of finished calls; append and pop are atomic


def _take_buffer(count: int) -> bytearray:
    """Returns a buffer for the reports of `count` arrays."""
    try:
        buffer = _spare_buffers.pop()
    except IndexError:
        buffer = b""
    return buffer if len(buffer) >= max(count, 1) * _SIZE else bytearray(max(count, 64) * _SIZE)


def _bad_per_array(each: bytes | bytearray, count: int) -> Iterable[int]:
    """Returns how many elements of each array are Inf or NaN."""
    words, step = memoryview(each)[: count * _SIZE].cast("q"), _SIZE // 8
    nans, infs = (words[field.offset // 8 :: step] for field in (_structs.Report.nan_count, _structs.Report.inf_count))
    return map(int.__add__, nans.tolist(), infs.tolist())
