# SPDX-License-Identifier: MIT
"""The Scaler: a policy, a state, and the calls on gradients that use them."""

from __future__ import annotations

import copy
import ctypes
import functools
from collections.abc import Iterable
from typing import Any

from . import _call, _cuda, _structs
from . import _gradscaler as c
from ._arguments import _argument_names, _html, _index, _meant, _name_argument, _number, _positive, _power, _short_repr
from ._arrays import Arrays, Container, _dtype, _is_framework_tensor, _Lists, _lists_of
from ._checkpoints import Checkpoints
from ._history import Observed
from ._policy import Policy, warn_if_idle, warn_of_no_gradients
from ._report import LateReport, Report, _has, _restored, explained  # noqa: F401
from ._structs import Event, Factor, Growth, State, Want

_COUNTS = [name for name, kind in State._fields_ if kind is ctypes.c_int64 and "guard" not in name]
_EMPTY = int(Event.EMPTY)
_event = functools.cache(Event)


class Scaler(Observed, Checkpoints):
    """A loss scale and the rules by which it moves.

    Scaler("torch", growth_interval=100) follows a preset with some fields replaced; see `presets()` and `Policy`.

    Arrays: anything with a buffer, such as NumPy arrays in float16, float32, float64, complex64 and complex128, and in
    bfloat16, float8_e4m3fn and float8_e5m2 of ml_dtypes; or with DLPack, such as torch and CuPy, also in CUDA memory.
    Pass Cerebras' 16-bit floats as `uint16_array.view(gradscaler.cb16)`. Masked arrays are refused.
    Lists and dicts can be nested: names are then tuples, such as ("layer", "weight"). None is skipped, and a torch
    Parameter stands for its gradient: unscale(dict(model.named_parameters())). `Arrays` prepares many small arrays
    once, for all calls.

    CUDA: a call runs on the current stream of the arrays' framework, and reading the report waits for the device. The
    call itself waits if the arrays are of several frameworks, or of one that does not say its stream. A call in a CUDA
    graph divides by the scale in force at each replay; its report always has the results of the last replay.
    A list can mix arrays of the host and of several devices, which work in parallel, except in `unscale_accumulate`,
    which adds all or nothing.

    Threads: only one thread at a time can update a scaler; large calls release the interpreter's lock. With threads=N,
    N threads including the caller share each call on 4 MiB or more; the result is bit-exact. The threads belong to this
    scaler: they sleep between calls, end with it, and are made again in a forked process. If several calls run at the
    same time, one of them gets the threads. `state_dict` does not save them.

    A bad argument raises Error, ValueError, TypeError or KeyError; the error names it, and nothing changes.
    """

    _pinned: Any = None
    _combined_reasons: str | None = None  # the reasons of both scalers after combine_decisions
    _skipped_report: Report | None = None  # of the last update, if it skipped its step

    def __init__(self, preset: str | Policy = "recommended", *, threads: int = 1, **fields: float) -> None:
        self.policy = Policy(preset, **fields) if not isinstance(preset, Policy) else preset.replace(**fields)
        warn_if_idle(self.policy)
        self._state = State()
        self.threads = threads
        c.gsc_state_init(None, self.policy, self.state)

    # ---- properties ----

    @property
    def preset(self) -> str:
        """The preset that the policy was made from."""
        return self.policy.preset

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._combined_reasons = self._skipped_report = None
        if self._pinned is None:
            self._state = state
        else:
            ctypes.memmove(ctypes.byref(self._state), ctypes.byref(state), ctypes.sizeof(State))
        if self._history is not None:
            self._history.restart()

    def _pin(self, device: _cuda.Device) -> Any:
        """Moves the state into memory that all devices see, and returns the memory."""
        if self._pinned is None:
            self._pinned, self._state = device.copy_for_graphs(self._state)
        return self._pinned

    @property
    def threads(self) -> int:
        """How many threads share a large call; set it only between calls."""
        return self._threads

    @threads.setter
    def threads(self, threads: int) -> None:
        if not isinstance(threads, int) or not 1 <= threads < 2**32:
            raise ValueError(f"threads={_short_repr(threads)}: expected a whole number from 1 on")
        self._context = c.gsc_context_create_cpu({"threads": threads}) if threads > 1 else None
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
        """The factor to scale the next loss by, if the update for this loss is still running (apply_delay=1)."""
        return Factor.from_buffer_copy(self.state.next)

    @property
    def events(self) -> Event:
        """The events of the last update. Event.STALE: its report had another scale, because it was late or reused."""
        return _event(self.state.events)

    @property
    def skip(self) -> bool:
        """True if the last update says to skip the step: an overflow, a bad loss, or a norm that the guard refuses."""
        return bool(self.state.skip)

    @property
    def total_overflows(self) -> int:
        """Steps with an overflow since the start, without `total_guard_skips` and without bad losses that were held."""
        return self.state.total_overflows

    @property
    def total_bad_losses(self) -> int:
        """Steps since the start with a loss that was not finite before it was scaled."""
        return self.state.total_bad_losses

    @property
    def total_guard_skips(self) -> int:
        """Steps that the guard skipped since the start."""
        return self.state.total_guard_skips

    @property
    def multiplier(self) -> float:
        """The number to multiply the gradients of the last update by: 1; less if the guard clips; 0 to skip."""
        return explained(self.state).multiplier

    @property
    def reason(self) -> str:
        """Why the last update skipped or clipped its step, or let an outlier through; else empty.

        >>> scaler = Scaler("none", guard_norm=2)
        >>> scaler.update(Report.of_number(3))
        <Event.SKIPPED|OUTLIER: 516>
        >>> scaler.reason
        'skipped: the norm, 3, is above 2'

        After an overflow it names the array that is nearest to the cause, if the arrays are in the model's order.
        After `combine_decisions` it has the reasons of both scalers; the one that decides `multiplier` comes first.
        """
        if self._combined_reasons is not None:
            return self._combined_reasons
        return explained(self.state, self._skipped_report).message

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
        events = f"; last update: {self.events.name.lower()}" if self.events else ""
        outliers = f"outliers skipped {self.total_guard_skips}, " if self.policy.guards else ""
        losses = f"bad losses {self.total_bad_losses}, " if self.total_bad_losses else ""
        return (
            f"<Scaler({arguments}): scale {_power(self.loss_scale)}; {self._progress()}, "
            f"overflows {self.total_overflows}, {losses}{outliers}growths {self.total_growths}, "
            f"backoffs {self.total_backoffs}{events}>"
        )

    def _progress(self) -> str:
        """Returns how many steps of a growth are done: "good steps 2 of 3"."""
        policy, interval = self.policy, self.policy.growth_interval
        counts_all = policy.growth_rule == Growth.ALL_STEPS
        name, count = ("steps", self.state.steps_since_change) if counts_all else ("good steps", self.state.good_steps)
        if not interval:
            return f"{name} {count}"
        if policy.growth_rule == Growth.EVERY:
            return f"{name} {max(count - policy.growth_extra_steps, 0) % interval} of {interval}"
        return f"{name} {count} of {interval + policy.growth_extra_steps}"

    def _repr_html_(self) -> str:
        metrics = {name: value for name, value in self.metrics().items() if value not in (0, 1)}
        last = {"last update": self.reason or str(self.events.name or "taken").lower()}
        return _html(repr(self.policy).replace("Policy", "Scaler", 1), metrics | last)

    # ---- the step ----

    def scale(self, loss: Any, dtype: Any = None) -> Any:
        """Returns `loss` times the scale: a number, or a new array of the same shape, of `dtype` if given.

        A scaled loss easily overflows float16, so a single number of less than 32 bits becomes float32. Keep arrays in
        float32 until they are scaled, then cast; dtype=numpy.float16 does both. `dtype` is a dtype of NumPy or
        ml_dtypes, or "cb16"; a complex loss stays complex. A framework's tensor is multiplied by the framework, so that
        it can be differentiated.
        """
        if _is_framework_tensor(type(loss)):
            if dtype is not None:
                raise TypeError(f"dtype={_short_repr(dtype)}: cast the scaled {type(loss).__name__} instead")
            if not getattr(loss, "shape", (1,)) and str(getattr(loss, "dtype", "")).endswith("float16"):
                loss = loss.float() if hasattr(loss, "float") else loss.astype("float32")
            return loss * self.loss_scale
        if isinstance(loss, int | float) and dtype is None:
            value = ctypes.c_double(loss)
            self._scale_into([value], [value])
            return type(loss)(value.value) if isinstance(loss, float) else value.value
        import numpy as np

        array = np.asarray(loss, order="C")
        narrow = dtype is None and array.ndim == 0 and array.dtype.itemsize < 4
        out = np.empty(array.shape, _dtype(dtype) or (np.float32 if narrow else array.dtype))
        self._scale_into([array], [out])
        return out if isinstance(loss, np.ndarray) else out[()]

    def _scale_into(self, ins: list[Any], outs: list[Any]) -> None:
        try:
            c.gsc_scale(self._context, self.state.factor, (ins, outs), None, None)
        except c.Error as error:
            if error.index >= 0:
                error.args = (f"{'dtype' if error.name == 'out' else 'loss'} {error.why}",)
            else:
                _name_argument(error, {})
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
        loss: Any = None,
    ) -> Report:
        """Divides gradients by the scale, checks them, and reports: one C call for a list or dict of arrays.

        It works in place by default. Unscale float16 gradients into float32, so that small values survive: `out` takes
        arrays of the same shapes (by the same names), `dtype` makes new arrays as in `scale`. The results are in
        `report.grads`. Complex gradients need complex results.
        `report.overflow` is the verdict of this scaler's policy. Step if it is False, and update in any case. If the
        policy guards, or if you pass the loss, update first and step unless `skip` is True: only the update judges the
        norm and the loss.
        clip_value: clamps each unscaled element to [-clip_value, clip_value] before it is rounded; finite and above 0.
            Both parts of a complex element are clamped. The report ignores the clamp, so it finds overflows
        want, histogram, per_tensor: measure more: a union of Want; a histogram; a report of each array
        factor: the snapshot of the scale that the loss was scaled by, if an update ran since
        loss: the loss before it was scaled: a number, a list of numbers, or an array on the host or on a device of the
            gradients. No scale is the cause if it has an Inf or NaN: Policy.bad_loss_rule says what happens then. Pass
            only a loss that the scale did not make
        No two arrays may share memory.
        """
        options = {"policy": self.policy, "want": want, "histogram": histogram, "per_tensor": per_tensor, "loss": loss}
        lists = _lists_of(grads, out, dtype)
        if clip_value is not None:
            options["clamp"] = _positive("clip_value", clip_value)
        return self._call("gsc_unscale", lists, factor, options)

    def unscale_accumulate(
        self,
        grads: Container | Arrays,
        out: Container | None = None,
        *,
        want: int = 0,
        histogram: bool = False,
        per_tensor: bool = False,
        factor: Factor | None = None,
        loss: Any = None,
    ) -> Report:
        """Adds a micro-batch's gradients, divided by the scale, to `out` if all and the loss are finite; else nothing.

        out: arrays of the same shapes (by the same names) in other memory, of any dtypes, best float32; complex arrays
            for complex gradients. `Arrays` have their own `out`
        want, histogram, per_tensor, factor, loss: as in `unscale`; the loss is of this micro-batch

        If `report.overflow` is True or `report.loss` is Loss.NOT_FINITE, nothing was added. The report is of these
        gradients divided by the scale, in the dtypes of `out`. Pass the reports of all micro-batches to `update`. If
        one was not added, skip the step, or divide the sum by the number of micro-batches that were added. The norm of
        the sum is not known from the reports: if the policy judges by the norm, `measure` the sum with unscaled=True
        and pass that report to `update`. An error adds nothing.
        """
        options = {"want": want, "histogram": histogram, "per_tensor": per_tensor, "loss": loss}
        report = self._call("gsc_unscale_accumulate", _lists_of(grads, out), factor, options)
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
        loss: Any = None,
    ) -> Report:
        """Returns the report that `unscale` would, but writes nothing. unscaled=True: the gradients are unscaled."""
        if unscaled and factor is not None:
            raise TypeError("pass factor or unscaled, not both")
        options = {"policy": self.policy, "want": want, "histogram": histogram, "per_tensor": per_tensor, "loss": loss}
        return self._call("gsc_measure", _lists_of(grads), factor, options, unscaled)

    def update(self, report: Report | Iterable[Report] | bool) -> Event:
        """Moves the scale after an optimizer step, also if the step was skipped because of `report.overflow`.

        Several reports, of micro-batches or of optimizers that share this scale, count as one step. A bool, whether
        there was an overflow, can replace the report if the policy needs no more. Returns the events.
        If the policy guards, update before the step: skip the step if the events have Event.SKIPPED; multiply the
        gradients by `multiplier` if they have Event.CLIPPED. The first step without any gradient is warned of.
        """
        if not isinstance(report, _structs.Report):
            report = _report_of(report)
        if isinstance(report, LateReport):
            report._wait()
        try:
            c.gsc_state_update(None, self.policy, self.state, report, self.state)
        except c.Error as error:
            _name_argument(error, {})
            if error.field == "status":
                error.args = (f"{error}; see the error that the failed call raised",)
            if error.field == "sum_squares" and not _has(report, Want.NORM):
                advice = "pass want=Want.NORM to the call that made it, or measure the sum"
                error.args = (f"report.norm was not measured, and this policy judges by it: {advice}",)
            raise
        self._combined_reasons = None
        is_explained = self._state.skip and isinstance(report, Report)
        self._skipped_report = report._without_arrays() if is_explained else None
        if self._history is not None:
            self._history._add(*self._policy_and_facts(report))
        if self._state.events & _EMPTY:
            warn_of_no_gradients(self)
        return self.events

    def copy_unless_skipped(self, arrays: Container | Arrays, out: Container | None = None) -> None:
        """Copies arrays to `out`, unless the last update skipped its step; all in one C call on the host.

        >>> from array import array
        >>> scaler, new, weights = Scaler("torch"), array("f", [2.0]), array("f", [1.0])
        >>> for overflow in True, False:
        ...     _ = scaler.update(overflow)
        ...     scaler.copy_unless_skipped([new], [weights])
        ...     print(weights[0])
        1.0
        2.0

        So an optimizer that always runs can write new parameters, and its new state, to other arrays: after the update
        they replace the old ones, or nothing does. Bits are copied, NaN included; if the dtypes differ, values are
        rounded. Pass integers as a view of float32 or float64.
        out: arrays of the same shapes (by the same names). `Arrays` have their own `out`
        """
        lists = _lists_of(arrays, out)
        lists.label = "arrays"
        if not _call.copy_on_host(self._context, self.state, lists) and not self.skip:
            options = {"want": 0, "histogram": False, "per_tensor": False, "loss": None}
            self._call("gsc_unscale", lists, None, options, unscaled=True)

    def set_rank(self, report: Report, rank: int) -> Report:
        """Sets the rank of a report, and a digest of policy and state, before ranks gather their reports.

        >>> scalers = Scaler("torch"), Scaler("megatron")
        >>> reports = [scaler.set_rank(Report.of_flag(False), rank) for rank, scaler in enumerate(scalers)]
        >>> Report.merge(reports)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gradscaler.Error: reports[1].digest differs: rank 1 has another policy or state than rank 0: ...

        So if a rank loaded another checkpoint, missed a step or has other rules, the merge fails before any rank steps.
        Also set the rank of `Report.failed(error)`, to tell which rank failed. Waits for the device and returns the
        report; after a call in a CUDA graph it returns a copy of the last replay's report.
        """
        if not isinstance(report, _structs.Report):
            raise TypeError(f"expected the report of unscale, not {_short_repr(report)}")
        number = _index(rank)
        if not 0 <= number < 2**32 - 1:
            raise ValueError(f"rank is {_short_repr(rank)}: it must be a whole number from 0 to {2**32 - 2}")
        if isinstance(report, LateReport) and report._wait():
            report = copy.copy(report)  # the next access overwrites it
        with _argument_names():
            c.gsc_report_set_rank(None, report, self.policy, self.state, number, report)
        return report

    def set_scale(self, scale: float, **counts: int) -> None:
        """Sets the scale at once, and the counts that are passed, such as good_steps. Other counts do not change.

        The scale can be outside of max_scale and min_scale; `diagnose` then says so.
        """
        state = State.from_buffer_copy(self.state)
        state.factor.scale = _number("scale", scale)
        for name, count in counts.items():
            if name not in _COUNTS:
                raise TypeError(f"a state has no count {name!r}{_meant(name, _COUNTS)}")
            try:
                setattr(state, name, count)
            except TypeError as error:
                raise TypeError(f"{name}={_short_repr(count)}: {error}") from None
            if getattr(state, name) != count:
                raise ValueError(f"{name}={_short_repr(count)} does not fit into its field")
        try:
            c.gsc_state_init_from(None, self.policy, state, state)
        except c.Error as error:
            _name_argument(error, {"from": "state"})
            if error.name == "from" and error.field:  # factor.scale is the caller's scale
                error.args = (f"{error.field.rpartition('.')[2]} {error.why}",)
            raise
        self.state = state

    def combine_decisions(self, other: Scaler) -> Event:
        """Adopts the decision of `other` to skip, clip or stop: `other` judged another signal of the same step.

        >>> scaler, losses = Scaler("recommended"), Scaler("none", guard_norm=4)
        >>> _ = scaler.update(False), losses.update(Report.of_number(9.5))
        >>> scaler.combine_decisions(losses)
        <Event.SKIPPED|OUTLIER: 516>
        >>> scaler.reason
        'skipped: the norm, 9.5, is above 4'

        Scale, counts and samples of this scaler do not change. Returns its events.
        """
        if not isinstance(other, Scaler):
            raise TypeError(f"other must be a gradscaler.Scaler, not {_short_repr(other)}")
        deciding_first = sorted((self, other), key=lambda scaler: scaler.multiplier)
        reasons = [scaler.reason for scaler in deciding_first if scaler.reason]
        with _argument_names():
            c.gsc_state_combine_decisions(None, self.state, other.state, self.state)
        self._combined_reasons = "; ".join(reasons)
        if self._history is not None:
            self._history._decide_again(self.policy, self.state)
        return self.events

    def guard_factor(self, factor: Factor | None = None) -> Factor:
        """Returns a factor with the clip of the last update; `unscale(grads, factor=...)` then also clips, in one pass.

        factor: `scaler.factor` from before the update. If the gradients are unscaled already, pass None and multiply
            them by the result's `.inverse`, or use `multiplier`

        If the update did not clip, the factor is returned unchanged.
        """
        out = Factor()
        with _argument_names():
            c.gsc_factor_clip_outlier(None, _factor(factor), self.state, out)
        return out

    def clip_factor(self, report: Report, max_norm: float, *, unscaled: bool = False) -> Factor:
        """Returns a factor that unscales and clips to a global norm in one pass: `unscale(grads, factor=...)`.

        report: from `measure(grads, want=Want.NORM)`; or from `unscale` with `unscaled=True`: then multiply the
            gradients by the result's `.inverse`

        It clips as torch.nn.utils.clip_grad_norm_ does, by max_norm / (norm + 1e-6), at most 1.
        """
        out = Factor()
        factor = None if unscaled else self.state.factor
        if isinstance(report, Report) and not report.status:
            report._require_measured("norm", Want.NORM)
        with _argument_names():
            c.gsc_factor_clip_grad_norm(None, factor, report, _number("max_norm", max_norm), out)
        return out

    def _call(
        self, function: str, lists: _Lists, factor: Factor | None, options: dict[str, Any], unscaled: bool = False
    ) -> Report:
        pin = self._pin if factor is None and not unscaled else None
        factor = None if unscaled else _factor(factor) or self.factor
        return _call.run(self._context, function, lists, factor, pin, options)


def _report_of(value: Any) -> Report:
    """Makes one report from a bool or several reports."""
    dtype = str(getattr(value, "dtype", ""))
    if isinstance(value, bool) or (dtype in ("bool", "torch.bool") and not value.shape):
        return Report.of_flag(bool(value))
    reports = list(value) if isinstance(value, Iterable) else [value]
    if not reports:
        raise ValueError("update takes at least one report")
    merged = Report.merge(reports, addends=any(getattr(each, "_addend", False) for each in reports))
    bad = [each for each in reports if isinstance(each, Report) and each.nan_count + each.inf_count]
    if bad:  # last_tensor is an index in the last of their lists
        merged.names, merged._bad = bad[-1].names, bad[0]._bad if len(bad) == 1 else None
    return merged


def _factor(factor: Any) -> Factor | None:
    if factor is not None and not isinstance(factor, Factor):
        raise TypeError(f"factor must be a gradscaler.Factor such as scaler.factor, not {type(factor).__name__}")
    return factor
