"""The friendly layer: a Scaler that owns a policy and a state, and reports that name parameters."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import _cuda, _structs
from . import _gradscaler as c
from ._structs import Event, Factor, Overflow, State, Want

Container = Mapping[str, Any] | Sequence[Any]
_FIELDS = [name for name, *_ in _structs.Policy._fields_ if name not in ("struct_size", "reserved")]
# Cost nothing while all gradients are finite, so they are always asked for.
_ALWAYS = int(Want.COUNTS | Want.FIRST_BAD)


def presets() -> dict[str, str]:
    """The names of all presets with a sentence each on what they do and where their rules come from."""
    return {c.gsc_preset_name(i): c.gsc_preset_summary(i) for i in range(c.gsc_preset_count())}


class Info:
    """What runs here: `version`, `cpu` (instruction set in use), `cpu_available`, `cpu_note`, `cuda`."""

    def __init__(self) -> None:
        raw = _structs.Info(struct_size=_structs.Info.cuda.offset + _structs.Info.cuda.size)
        c.gsc_get_info(raw)
        self.version = f"{raw.version >> 16}.{raw.version >> 8 & 255}.{raw.version & 255}"
        self.cpu = raw.cpu.decode()
        self.cpu_available = raw.cpu_available.decode().split()
        self.cpu_note = raw.cpu_note.decode()
        self.cuda = raw.cuda.decode()

    def __repr__(self) -> str:
        return "Info(" + ", ".join(f"{name}={value!r}" for name, value in vars(self).items()) + ")"


def info() -> Info:
    """What runs here: the instruction set in use, those available, and whether there is CUDA.

    To find out starts the CUDA driver: a process that is forked afterwards has no CUDA, one that is spawned has.
    """
    return Info()


class Policy(_structs.Policy):
    """The rules of a scaler: a preset by name, with fields replaced.

    >>> Policy("torch", growth_interval=100).growth_interval
    100
    """

    def __init__(self, preset: str = "recommended", **fields: float) -> None:
        if not isinstance(preset, str):
            raise TypeError(f"preset must be a name, not {_short(preset)}")
        _structs.Policy.struct_size.__set__(self, _structs.Policy.overflow_log2.offset + 8)
        c.gsc_policy_preset(preset.encode(errors="replace").decode().replace("\0", "\\0"), self)
        for name, value in fields.items():
            setattr(self, name, value)
        c.gsc_policy_check(self)

    def __setattr__(self, name: str, value: float) -> None:
        if name not in _FIELDS:
            raise TypeError(f"a policy has no field {name!r}; it has {', '.join(_FIELDS)}")
        old = getattr(self, name)
        try:
            super().__setattr__(name, value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f"{name}={value!r}: {error}") from None
        if getattr(self, name) != value:
            super().__setattr__(name, old)
            raise ValueError(f"{name}={value!r} does not fit into its field")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _structs.Policy) and bytes(self) == bytes(other)

    __hash__ = None

    def differences(self, preset: str) -> dict[str, float]:
        """The fields in which this policy is not the preset."""
        base = Policy(preset)
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name) != getattr(base, name)}


class Report(_structs.Report):
    """What the gradients of one call were like.

    found_inf: whether any element is Inf or NaN, or became so by unscaling
    first_bad: (name, element) of the first such element, or None; the array's index in a list or a merged report
    bad: names (of a dict) or indices (of a list) of the arrays in which such elements are
    grads: the container with the results
    scale: the loss scale that the gradients were divided by
    norm, amax, zeros_made, histogram, ...: where `want` asked for them
    histogram_edges: 17 magnitudes, those of bin k from [k] up to, not including, [k + 1]
    """

    histogram_edges = (0.0, *(2.0 ** (4 * k - 48) for k in range(1, 16)), math.inf)
    bad: tuple = ()
    names: Sequence = ()
    grads: Any = None
    scale: float = 1.0

    @property
    def found_inf(self) -> bool:
        return bool(self.overflow)

    @property
    def first_bad(self) -> tuple | None:
        key = _structs.Report.first_bad.__get__(self)
        if not key:
            return None
        tensor = key >> 40 & 0x7FFFFF
        return (self.names[tensor] if tensor < len(self.names) else tensor, key & 0xFFFFFFFFFF)

    @property
    def norm(self) -> float:
        """Global L2 norm of the finite elements after unscaling."""
        self._needs(Want.NORM)
        return math.sqrt(self.sum_squares)

    @property
    def histogram(self) -> list[int]:
        """How many finite elements after unscaling, but for zeros, have a magnitude in each of the 16 bins.

        Of a sample: of every 65,536 elements of an array the first 4,096; `histogram_elements` were looked at.
        """
        self._needs(Want.HISTOGRAM)
        return list(_structs.Report.histogram.__get__(self))

    def _needs(self, want: Want) -> None:
        if self.absent & want:
            raise ValueError(f"the report has no {want.name.lower()}: pass want=gradscaler.Want.{want.name}")

    def __repr__(self) -> str:
        parts = [f"found_inf={self.found_inf}", f"elements={self.elements}"]
        if self.found_inf:
            parts += [f"{name}={getattr(self, name)!r}" for name in ("bad", "first_bad", "nan_count", "inf_count")]
        for want, names in (
            (Want.NORM, ["norm"]),
            (Want.AMAX, ["amax"]),
            (Want.UNDERFLOW, ["zeros_made", "subnormals_made"]),
        ):
            if not self.absent & want:
                parts += [f"{name}={getattr(self, name)!r}" for name in names]
        if not self.absent & Want.HISTOGRAM:
            bins = [(f"2^{4 * k - 48}" if k else "<2^-44", n) for k, n in enumerate(self.histogram) if n]
            parts += [f"histogram={{{', '.join(f'{low}: {n}' for low, n in bins)}}} of {self.histogram_elements}"]
        return f"Report({', '.join(parts)})"


class Arrays:
    """Gradients, and the arrays for their results, read once: a call on many small ones costs little more than in C.

    arrays = Arrays(grads)           # in place; or Arrays(grads, out), Arrays(grads, dtype="float32"), as in `unscale`
    report = scaler.unscale(arrays)  # likewise check and accumulate; report.grads is arrays.out

    This is for arrays that stay where they are from step to step: what is written into them is seen, an array that
    takes the place of another is not. `grads` and `out` are containers of its own with the arrays, `names` their names
    or indices. The arrays live as long as this does. Meanwhile those that count who uses their memory, as a bytearray
    does, refuse to be resized; others must not be, neither by `resize_` of torch nor by NumPy's with refcheck=False.
    Any number of threads may use it, as they may use the arrays. It is not to be pickled.
    On a CUDA device each call runs on the stream that the framework of the arrays uses at that time, so it comes after
    what was enqueued there. If other streams write to the arrays, make that stream wait for them first.
    """

    def __init__(self, grads: Container, out: Container | None = None, *, dtype: Any = None) -> None:
        names, self._ins, self._outs, results = _paired(grads, out, dtype)
        self._held = _grouped(names, self._ins, self._outs, hold=True)
        self.names = tuple(names) if isinstance(grads, Mapping) else names
        self.grads = _like(grads, self._ins)
        self.out = self.grads if results is grads else _like(grads, self._outs)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<Arrays: {len(self)} {'in place' if self.out is self.grads else 'with results elsewhere'}>"

    def __reduce__(self) -> Any:
        raise TypeError("Arrays hold memory of this process: pickle or copy their grads and out instead")


class Scaler:
    """A loss scale and the rules by which it moves.

    Scaler("torch", growth_interval=100) follows a preset with some fields replaced; see `presets()` and `Policy`. The
    arrays may be of any kind that has a buffer: NumPy in float16, float32, float64, complex64 and complex128, through
    ml_dtypes bfloat16, float8_e4m3fn and float8_e5m2; Cerebras' 16 bits are uint16 arrays seen as
    `array.view(gradscaler.cb16)`. Or DLPack: torch, CuPy and others, in CUDA memory too, where a call runs on the
    stream that their framework uses and waits for it. A list may mix arrays of the host and of several devices, which
    work at a time; but `accumulate`, which adds all or nothing, takes arrays of one. A masked array is taken with its
    masked elements. `Arrays` read many small ones once.
    One thread at a time may update a scaler; large calls release the interpreter's lock. With `threads` above 1 they
    are shared among that many, this one included, where a list has 4 MiB or more; the bits are the same. The threads
    are this scaler's own, sleep between calls, end with it, and are made anew in a forked process; of several calls at
    a time one has them. They are no part of `state_dict`.
    What is refused raises Error, another ValueError, TypeError or KeyError that names it; then nothing has changed.
    """

    def __init__(self, preset: str = "recommended", *, threads: int = 1, **fields: float) -> None:
        self.preset = preset
        self.policy = Policy(preset, **fields)
        self.state = State()
        self.threads = threads
        c.gsc_state_init(None, self.policy, self.state)

    # ---- what it is ----

    @property
    def threads(self) -> int:
        """How many threads share a large call; another number may be set between calls."""
        return self._threads

    @threads.setter
    def threads(self, threads: int) -> None:
        if not isinstance(threads, int) or not 1 <= threads < 2**32:
            raise ValueError(f"threads={_short(threads)}: expected a whole number from 1 on")
        self._on = c.gsc_context_create_cpu(threads) if threads > 1 else None
        self._threads = threads

    @property
    def loss_scale(self) -> float:
        """The scale in force."""
        return self.state.factor.scale

    @property
    def factor(self) -> Factor:
        """A snapshot of the scale in force, to keep with gradients that are unscaled after a later update."""
        return Factor.from_buffer_copy(self.state.factor)

    @property
    def next_factor(self) -> Factor:
        """What the next loss is scaled by while the update of this one is still under way (apply_delay=1)."""
        return Factor.from_buffer_copy(self.state.next)

    @property
    def events(self) -> Event:
        """What the last update did."""
        return Event(self.state.events)

    @property
    def skipped(self) -> int:
        """Steps with an overflow since the start."""
        return self.state.skipped

    @property
    def growths(self) -> int:
        return self.state.growths

    @property
    def backoffs(self) -> int:
        return self.state.backoffs

    def __repr__(self) -> str:
        fields = self.policy.differences(self.preset)
        fields |= {"threads": self.threads} if self.threads > 1 else {}
        arguments = ", ".join([repr(self.preset), *(f"{name}={value:g}" for name, value in fields.items())])
        mantissa, exponent = math.frexp(self.loss_scale)
        scale = f"2^{exponent - 1}" if mantissa == 0.5 else f"{self.loss_scale:g}"
        interval = f" of {self.policy.growth_interval}" if self.policy.growth_interval else ""
        events = f"; last update: {self.events.name.lower()}" if self.events else ""
        return (
            f"<Scaler({arguments}): scale {scale}; good steps {self.state.good}{interval}, skipped {self.skipped}, "
            f"growths {self.growths}, backoffs {self.backoffs}{events}>"
        )

    # ---- the step ----

    def scale(self, loss: Any, dtype: Any = None) -> Any:
        """`loss` times the scale: a number, or an array of any shape as a new array, of `dtype` if given.

        A scaled float16 loss is easily infinite: keep it in float32 until it is scaled, then cast (dtype=numpy.float16
        does both). `dtype` is NumPy's or ml_dtypes', or "cb16"; a complex loss stays complex. A tensor of a framework
        is multiplied by the framework, which is to differentiate it.
        """
        if _cuda.elsewhere(type(loss)):
            if dtype is not None:
                raise TypeError(f"dtype={_short(dtype)}: cast the scaled {type(loss).__name__} instead")
            return loss * self.loss_scale
        if isinstance(loss, int | float) and dtype is None:
            value = ctypes.c_double(loss)
            c.gsc_scale(None, self.state.factor, ([value], [value]))
            return type(loss)(value.value) if isinstance(loss, float) else value.value
        import numpy as np

        array = np.asarray(loss, order="C")
        out = np.empty(array.shape, _dtype(dtype) or array.dtype)
        c.gsc_scale(self._on, self.state.factor, ([array], [out]))
        return out if isinstance(loss, np.ndarray) else out[()]

    def unscale(
        self,
        grads: Container | Arrays,
        out: Container | None = None,
        *,
        dtype: Any = None,
        clip_value: float | None = None,
        want: int = 0,
        factor: Factor | None = None,
    ) -> Report:
        """Divides gradients by the scale, checks them, and reports: one C call for a list or dict of arrays.

        In place by default. float16 gradients are better unscaled into float32, where what scaling saved survives:
        `out` takes arrays of the same shapes (by the same names), `dtype` makes new ones, as in `scale`; they are
        `report.grads`. Complex gradients go with complex results only.
        `clip_value`, a finite number above 0 in the unit of unscaled gradients, also clamps each to [-clip_value,
        clip_value], both parts of a complex one, before it is rounded to its result. The report is of the gradients
        before they are clamped, so that an overflow is found; but Inf that was clamped in place is gone, so that
        `report.bad` then has, of the arrays without NaN, only the first.
        `want` (a union of Want) asks for more in the report. `factor` is the snapshot that the loss was scaled by,
        where an update ran since. No array may stand in the list twice.
        """
        names, arrays, results, out, held = _taken(grads, out, dtype)
        factor = _factor(factor) or self.factor
        report = Report(grads=out, names=names, scale=factor.scale)
        if clip_value is None:
            judged = results
            self._run(names, "unscale", factor, arrays, results, self._want(want), report, held=held)
        else:
            judged = arrays  # no Inf is left in the results
            limit = _number("clip_value", clip_value)
            if not 0 < limit < math.inf:
                raise ValueError(f"clip_value={limit!r}: it must be finite and above 0")
            self._run(names, "clip_value", factor, arrays, results, self._want(want), report, limit, held=held)
        if report.overflow:
            _find_bad(report, lambda i, one: self._run(range(1), "check", None, [judged[i]], None, 0, one))
        return report

    def accumulate(
        self,
        grads: Container | Arrays,
        out: Container | None = None,
        *,
        want: int = 0,
        factor: Factor | None = None,
    ) -> Report:
        """Adds gradients divided by the scale to `out` if all of them are finite, else nothing: of micro-batches.

        `out` has arrays of the same shapes (by the same names) and other memory, of any dtypes, float32 at best;
        complex ones for complex gradients. `report.found_inf` tells that nothing was added; the report is of these
        gradients divided by the scale, in the dtypes of `out`. Give `update` the reports of all micro-batches. `want`
        and `factor` are as in `unscale`. An error adds nothing. Only `Arrays`, which have it, go without `out`.
        """
        names, arrays, results, out, held = _taken(grads, out)
        factor = _factor(factor) or self.factor
        report = Report(grads=out, names=names, scale=factor.scale)
        self._run(names, "accumulate", factor, arrays, results, self._want(want), report, held=held)
        if report.overflow:
            inf, none = ctypes.c_float(math.inf), ctypes.c_float()

            def judge(i: int, one: _structs.Report) -> None:
                """With an Inf behind it, an array is judged, but never added; one on a device by itself."""
                if _cuda.device_of(arrays[i]) is not None:
                    return self._run(range(1), "check", factor, [arrays[i]], None, 0, one)
                c.gsc_accumulate(self._on, factor, ([arrays[i], inf], [results[i], none]), Want.COUNTS, one)
                one.overflow = one.nan_count + one.inf_count > 1

            _find_bad(report, judge)
        return report

    def check(self, grads: Container | Arrays, *, want: int = 0, factor: Factor | None = None) -> Report:
        """Reports what `unscale` in place would, and writes nothing."""
        names, arrays, _, _, held = _taken(grads)
        factor = _factor(factor) or self.factor
        report = Report(grads=grads.grads if held else grads, names=names, scale=factor.scale)
        self._run(names, "check", factor, arrays, None, self._want(want), report, held=held)
        if report.overflow:
            _find_bad(report, lambda i, one: self._run(range(1), "check", factor, [arrays[i]], None, 0, one))
        return report

    def update(self, report: Report | Iterable[Report]) -> Event:
        """Moves the scale after an optimizer step, or one that was skipped because of `report.found_inf`.

        Several reports, of micro-batches or of optimizers that share this scale, count as one step.
        """
        if not isinstance(report, _structs.Report):
            report = _merged(report)
        c.gsc_update(None, self.policy, self.state, report, self.state)
        return self.events

    def set_scale(self, scale: float) -> None:
        """Puts another scale in force at once; the counts start anew."""
        c.gsc_set_scale(None, self.policy, self.state, _number("scale", scale), self.state)

    def clip_factor(self, report: Report, max_norm: float, *, unscaled: bool = False) -> Factor:
        """The factor that unscales and clips to a global norm in one pass: `unscale(grads, factor=...)`.

        `report` is of `check(grads, want=Want.NORM)`, or with `unscaled=True` of `unscale`; then multiply by
        `.inverse`. The coefficient is that of torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), at most 1.
        """
        out = Factor()
        factor = None if unscaled else self.state.factor
        c.gsc_clip_factor(None, report, factor, _number("max_norm", max_norm), out)
        return out

    def _run(
        self,
        names: Sequence[Any],
        function: str,
        factor: Factor | None,
        arrays: list[Any],
        results: list[Any] | None,
        want: int,
        report: _structs.Report,
        *limit: float,
        held: Any = None,
    ) -> None:
        """One C call for the host's arrays, and one for those of each device; `results` is None if nothing is written.

        What is refused of any is so before the first writes, and all devices work at a time.
        `held` is what `_grouped` made of both.
        """
        # Interned: of a new string, CPython's cache of attributes keeps each.
        indices, call = None, getattr(c, sys.intern(f"gsc_{function}"))
        groups = held or _grouped(names, arrays, results)
        try:
            if len(groups) == 1 and not isinstance(groups[0][1], _cuda.Lists):
                return call(self._on, factor, *limit, groups[0][1], want, report)
            if len(groups) > 1 and function == "accumulate":
                raise ValueError("accumulate, which adds all or nothing, takes arrays of one device")
            with contextlib.ExitStack() as ends:
                calls = []
                for indices, lists in groups:
                    if isinstance(lists, _cuda.Lists):
                        on_device = ends.enter_context(_cuda.Call(function, lists, want, *limit))
                        on_device.reserve()
                        calls.append((indices, on_device))
                for indices, lists in groups:
                    if not isinstance(lists, _cuda.Lists):  # checked only now
                        part = _structs.Report()
                        call(self._on, factor, *limit, lists, want, part)
                        _merge_part(report, part, indices)
                for _, on_device in calls:
                    on_device.enqueue(factor)
                for indices, on_device in calls:
                    _merge_part(report, on_device.report(), indices)
        except c.Error as error:
            _add_name(error, names, indices if len(groups) > 1 else None)
            raise

    def _want(self, want: int) -> int:
        if not isinstance(want, int) or not 0 <= want < 2**32:
            raise TypeError(f"want={want!r}: expected a union of gradscaler.Want")
        needed = _ALWAYS  # plain integers: a union of flags takes as long as 20 small arrays
        if self.policy.overflow_test == Overflow.NORM:
            needed |= c.GSC_WANT_NORM
        if self.policy.target_amax:
            needed |= c.GSC_WANT_AMAX
        return int(want) | needed

    # ---- to and from a checkpoint ----

    def state_dict(self) -> dict[str, Any]:
        """Policy and state, for JSON or a checkpoint; `saved` holds all, with a checksum, the rest is for reading."""
        saved = c.gsc_state_save(self.policy, self.state)
        return {"preset": self.preset, "loss_scale": self.loss_scale, "skipped": self.skipped, "saved": saved.hex()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, the policy included; nothing is changed on an error."""
        if not isinstance(state, Mapping):
            raise TypeError(f"expected what Scaler.state_dict returned, not {type(state).__name__}")
        for key in ("preset", "saved"):
            if not isinstance(state.get(key), str):
                raise KeyError(f"the state has no text {key!r}: it is not from Scaler.state_dict")
        try:
            saved = bytes.fromhex(state["saved"])
        except ValueError:
            raise ValueError("state['saved'] is damaged: it is not hexadecimal") from None
        policy, loaded = Policy(state["preset"]), State()
        c.gsc_state_load(saved, policy, loaded)
        self.preset, self.policy, self.state = state["preset"], policy, loaded

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"policy": None, "state": self.state_dict(), "_on": None}

    def __setstate__(self, attributes: Mapping[str, Any]) -> None:
        vars(self).update(attributes)
        self.threads = attributes["_threads"]
        self.load_state_dict(attributes["state"])


def _is_array(grads: Any) -> bool:
    """Whether this is one array, not a list of them."""
    if hasattr(grads, "dtype"):
        return True
    try:
        memoryview(grads)
    except TypeError:
        return False
    return True


def _named(grads: Container, argument: str = "grads") -> tuple[Sequence[Any], list[Any]]:
    """Names and arrays of a dict, indices and arrays of a list, or of one array."""
    if isinstance(grads, Mapping):
        return list(grads), list(grads.values())
    if _is_array(grads):
        return range(1), [grads]
    if not isinstance(grads, Iterable):
        raise TypeError(f"{argument}: expected a list or dict of arrays, not {type(grads).__name__}")
    arrays = list(grads)
    return range(len(arrays)), arrays


def _paired(grads: Container, out: Container | None, dtype: Any) -> tuple[Sequence[Any], list[Any], list[Any], Any]:
    """Names, gradients, results, which are the same list in place, and the container of the results."""
    names, arrays = _named(grads)
    if dtype is not None:
        if out is not None:
            raise TypeError("pass out or dtype, not both")
        out = _like(grads, [_empty_like(array, dtype) for array in arrays])
    elif out is None:
        out = grads
    return names, arrays, arrays if out is grads else _matching(out, grads, names), out


def _taken(
    grads: Container | Arrays, out: Container | None = None, dtype: Any = None
) -> tuple[Sequence[Any], list[Any], list[Any], Any, Any]:
    """As `_paired`, and what C holds of them, if anything."""
    if not isinstance(grads, Arrays):
        return *_paired(grads, out, dtype), None
    if out is not None or dtype is not None:
        raise TypeError("out or dtype: pass it to gradscaler.Arrays, which hold gradients and results")
    return grads.names, grads._ins, grads._outs, grads.out, grads._held


def _grouped(
    names: Sequence[Any], arrays: list[Any], results: list[Any] | None, hold: bool = False
) -> list[tuple[Sequence[int], Any]]:
    """What a call takes of the host's arrays and of those of each device, with their positions; held for many calls."""
    groups = _cuda.groups(arrays)
    several = len(groups) > 1
    if several and results is not None:
        if len(arrays) != len(results):
            raise ValueError(f"{len(arrays)} tensors and {len(results)} outputs")
        for name, array, result in zip(names, arrays, results, strict=True):
            if _cuda.device_of(array) != _cuda.device_of(result):
                raise ValueError(f"{name!r}: its output is on another device than its input")
    found = []
    for ordinal, indices in groups.items():
        ins = [arrays[i] for i in indices] if several else arrays
        outs = ins if results is arrays else [results[i] for i in indices] if several and results else results
        try:
            if ordinal is not None:
                lists = _cuda.Lists(ordinal, ins, outs)
                if hold:
                    lists.stream()
            elif hold:
                lists = c.hold(ins, outs)
            else:
                lists = ins if outs is None else (ins, outs)
        except c.Error as error:
            _add_name(error, names, indices if several else None)
            raise
        found.append((indices, lists))
    return found


def _merge_part(report: Report, part: _structs.Report, indices: Sequence[int]) -> None:
    """`part` is of these tensors of the list."""
    if part.first_bad:
        tensor = part.first_bad >> 40 & 0x7FFFFF
        part.first_bad += indices[tensor] - tensor << 40
    c.gsc_merge(None, report, part, report)


def _add_name(error: c.Error, names: Sequence[Any], indices: Sequence[int] | None = None) -> None:
    """An error about a tensor tells its name, too; `indices` are those of the tensors if they are not all."""
    if error.index < 0:
        return
    if indices:  # the list that was refused is a part of the caller's
        error.index = indices[error.index]
        error.args = (_renumbered(str(error), indices),)
        error.name = _renumbered(error.name, indices)
    if not isinstance(names, range):
        error.args = (f"{names[error.index]!r}: {error}",)


def _renumbered(text: str, indices: Sequence[int]) -> str:
    """With the caller's index of each tensor that a message is about: tensors[0], out[0], tensor 0."""

    def index(found: re.Match) -> str:
        i = int(found[2])
        return f"{found[1]}{indices[i] if i < len(indices) else i}"

    return re.sub(r"\b(tensors\[|out\[|tensor )(\d+)", index, text)


def _matching(out: Container, grads: Container, names: Sequence[Any]) -> list[Any]:
    """The arrays of `out` in the order of `grads`."""
    if isinstance(out, Mapping) != isinstance(grads, Mapping):
        raise TypeError("grads and out must both be dicts, or both lists")
    if not isinstance(out, Mapping):
        return _named(out, "out")[1]
    for name in names:
        if name not in out:
            raise KeyError(f"out has no array {name!r}")
    return [out[name] for name in names]


def _like(grads: Container, arrays: list[Any]) -> Any:
    """Arrays in the same kind of container as `grads`."""
    if isinstance(grads, Mapping):
        return dict(zip(grads, arrays, strict=True))
    return arrays[0] if _is_array(grads) else list(arrays)


def _empty_like(array: Any, dtype: Any) -> Any:
    """A new array of another dtype in the same memory order."""
    if _cuda.elsewhere(type(array)):  # its framework makes another, where it is
        framework = sys.modules[type(array).__module__.partition(".")[0]]
        if not hasattr(framework, "empty_like"):
            raise TypeError(f"dtype={_short(dtype)}: {framework.__name__} has no empty_like; pass out instead")
        return framework.empty_like(array, dtype=getattr(framework, dtype) if isinstance(dtype, str) else dtype)
    import numpy as np

    return np.empty_like(np.asarray(array), dtype=_dtype(dtype), subok=False)


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
    if isinstance(value, str | bytes):
        raise TypeError(f"{name}={_short(value)}: expected a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise type(error)(f"{name}={_short(value)}: {error}") from None


def _merged(reports: Any) -> Report:
    reports = list(reports) if isinstance(reports, Iterable) else [reports]
    if not reports:
        raise ValueError("update takes at least one report")
    merged = Report()
    for report in reports:
        if not isinstance(report, _structs.Report):
            raise TypeError(f"update takes the report of unscale, or several, not {type(report).__name__}")
        c.gsc_merge(None, merged, report, merged)
    return merged


def _find_bad(report: Report, judge: Callable[[int, _structs.Report], None]) -> None:
    """Looks which arrays hold the bad elements: `judge` reports on one of them."""
    bad = {report.first_bad[0]}
    for i, name in enumerate(report.names):
        one = _structs.Report()
        judge(i, one)
        if one.overflow:
            bad.add(name)
    report.bad = tuple(name for name in report.names if name in bad)
