# SPDX-License-Identifier: MIT
"""A Scaler: a policy, a state, and the calls on gradients by them."""

from __future__ import annotations

import copy
import ctypes
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import _checkpoints, _cuda, _devices, _history, _structs
from . import _gradscaler as c
from ._arguments import _html, _index, _naming, _number, _positive, _power, _rename, _short
from ._arrays import Arrays, Container, _dtype, _Lists, _multiplies, _taken
from ._checkpoints import Note
from ._policy import Policy, warn_if_idle
from ._report import _SIZE, LateReport, Report, _borrow, _has, _restored, _spare  # noqa: F401
from ._structs import Event, Factor, State, Want

_COUNTS = [name for name, kind in State._fields_ if kind is ctypes.c_int64 and "guard" not in name]
_event = functools.cache(Event)


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
    _history: _history.History | None = None
    _combined: str | None = None  # the reasons of the last update, with those of the scalers it was combined with

    def __init__(self, preset: str | Policy = "recommended", *, threads: int = 1, **fields: float) -> None:
        self.policy = Policy(preset, **fields) if not isinstance(preset, Policy) else preset.replace(**fields)
        warn_if_idle(self.policy)
        self._state = State()
        self.threads = threads
        c.gsc_state_init(None, self.policy, self.state)

    # ---- what it is ----

    @property
    def preset(self) -> str:
        """Where the policy started."""
        return self.policy.preset

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
        return self._reason().multiplier

    def _reason(self) -> _structs.Reason:
        reason = _structs.Reason()
        c.gsc_state_reason(self.state, reason)
        return reason

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
        return self._reason().message.decode() if self._combined is None else self._combined

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
        interval = f" of {self.policy.growth_interval}" if self.policy.growth_interval else ""
        events = f"; last update: {self.events.name.lower()}" if self.events else ""
        outliers = f"outliers skipped {self.total_guard_skips}, " if self.policy.guards else ""
        return (
            f"<Scaler({arguments}): scale {_power(self.loss_scale)}; good steps {self.state.good_steps}{interval}, "
            f"overflows {self.total_overflows}, {outliers}growths {self.total_growths}, "
            f"backoffs {self.total_backoffs}{events}>"
        )

    def _repr_html_(self) -> str:
        metrics = {name: value for name, value in self.metrics().items() if value not in (0, 1)}
        last = {"last update": self.reason or str(self.events.name or "taken").lower()}
        return _html(repr(self.policy).replace("Policy", "Scaler", 1), metrics | last)

    # ---- what it did ----

    def metrics(self, report: Report | None = None) -> dict[str, float]:
        """What is known after the last update, the most important first, for `wandb.log` and other loggers.

        >>> scaler = Scaler("torch")
        >>> scaler.update(True)
        <Event.BACKED_OFF|SKIPPED: 6>
        >>> metrics = scaler.metrics()
        >>> metrics["loss_scale"], metrics["skip"], metrics["total_overflows"]
        (32768.0, True, 1)

        The names are those of `Metric`, in lower case; `report`, the one of the update, adds norm, amax, zero_share and
        the counts of NaN and Inf.
        """
        return c.metrics(self.policy, self.state, report)

    def diagnose(self, report: Report | None = None, steps: int = 0, planned_steps: int = 0) -> list[Note]:
        """What is wrong with this run, with what to do about it, the most important first; empty: nothing was found.

        `report` is the last one. `steps` are the updates so far, `planned_steps` those of the whole run; 0: not known.
        """
        return _history.diagnosed(self.policy, self.state, report, steps, planned_steps)

    def history(self, path: str | os.PathLike, *, step: int | None = None, rank: int = 0) -> _history.History:
        """A CSV file that gets the metrics of each update: `with scaler.history("run.csv"):`, see `History`."""
        return _history.History(self, self.policy, path, step=step, rank=rank)

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
            options["clamp"] = _positive("clip_value", clip_value)
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
        if isinstance(report, LateReport):
            report._wait()
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
        if self._history is not None:
            self._history.add(self.metrics(report))
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
        number = _index(rank)
        if not 0 <= number < 2**32 - 1:
            raise ValueError(f"rank is {_short(rank)}: it must be a whole number from 0 to {2**32 - 2}")
        if isinstance(report, LateReport) and report._wait():
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
        if isinstance(report, Report) and not report.status:
            report._demand("norm", Want.NORM)
        with _naming():
            c.gsc_factor_clip_grad_norm(None, factor, report, _number("max_norm", max_norm), out)
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
        if self._on_host(function, groups, factor, options, report, lists):
            return report._keep(options["per_tensor"], per_tensor)
        live = snapshot is None and not unscaled
        return _devices.run(self, function, lists, factor, live, options, per_tensor, report)

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

    # ---- to and from a checkpoint ----

    def state_dict(self, format: str = "gradscaler", *, prefix: str | None = None) -> dict[str, Any]:
        """Policy and state as numbers by name, for JSON or a checkpoint; every later version reads them.

        With another `format`, one of `formats()`, a dict as that framework saves it: its own scaler goes on from it.
        `notes` are then sentences on what its keys cannot hold. The keys begin with `prefix`, where one is given: "" is
        nothing, None what the framework has, such as {"loss_scaler0": {...}} of apex.
        """
        found, self.notes = _checkpoints.save(self.policy, self.state, format, prefix)
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
        self.policy, self.state, self.notes = _checkpoints.load(state, self.policy, format, prefix)
        return self.notes

    def __getstate__(self) -> dict[str, Any]:
        left_out = {"policy": None, "_state": None, "_pinned": None, "_on": None, "_history": None}
        return vars(self) | left_out | {"state": _checkpoints.save(self.policy, self.state, "gradscaler", None)[0]}

    def __setstate__(self, attributes: Mapping[str, Any]) -> None:
        vars(self).update(attributes)
        self.threads = attributes["_threads"]
        self.policy, self.state, _ = _checkpoints.load(vars(self).pop("state"), Policy("none"))


def _report_of(value: Any) -> Report:
    """The report of one step that a bool, or several reports, stand for."""
    dtype = str(getattr(value, "dtype", ""))
    if isinstance(value, bool) or (dtype in ("bool", "torch.bool") and not value.shape):
        return Report.of_flag(bool(value))
    reports = list(value) if isinstance(value, Iterable) else [value]
    if not reports:
        raise ValueError("update takes at least one report")
    return Report.merge(reports, addends=any(getattr(each, "_addend", False) for each in reports))


def _factor(factor: Any) -> Factor | None:
    if factor is not None and not isinstance(factor, Factor):
        raise TypeError(f"factor must be a gradscaler.Factor such as scaler.factor, not {type(factor).__name__}")
    return factor
