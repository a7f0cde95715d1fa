"""Calls on arrays in CUDA memory, on the stream that their framework uses at the moment.

The device reads the factor and writes the report in page-locked host memory, so nothing is copied; a call waits for its
stream, as its caller is about to look at the report.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from . import _gradscaler as c
from . import _structs

CUDA, CUDA_MANAGED = 2, 13  # DLPack's types of devices
SAME_STREAM = -1  # for DLPack: the producer's own, there is nothing to wait for
LEGACY_STREAM = 1  # DLPack's number, and the driver's handle, of the stream that others wait for
PORTABLE_MAPPED = 3
CAPTURE_RELAXED = 2
CAPTURE_IMPLICIT = 906  # the driver's result: what is asked would make a captured stream wait


def device_of(array: Any) -> int | None:
    """The CUDA device that an array is on; None for the host."""
    if not hasattr(array, "__dlpack_device__"):
        return None
    type_, device = array.__dlpack_device__()
    return device if type_ in (CUDA, CUDA_MANAGED) else None


@functools.cache
def elsewhere(kind: type) -> bool:
    """Whether arrays of this kind may be outside of host memory."""
    return hasattr(kind, "__dlpack_device__") and not hasattr(kind, "__array_interface__")


def groups(arrays: Sequence[Any]) -> dict[int | None, Sequence[int]]:
    """The positions of the arrays of each device; those of the host are at None, which is first."""
    if not any(map(elsewhere, set(map(type, arrays)))):
        return {None: range(len(arrays))}
    found: dict[int | None, list[int]] = {}
    for i, array in enumerate(arrays):
        found.setdefault(device_of(array), []).append(i)
    return dict(sorted(found.items(), key=lambda group: group[0] is not None))


def current(examples: Sequence[Any], device: int) -> tuple[int, int, contextlib.AbstractContextManager]:
    """The stream that the frameworks of these use now, what DLPack is told of it, and what must hold during an export.

    Of several frameworks torch's, else that of the first which says its own; DLPack then makes it wait for the others.
    The legacy stream where none says.
    """
    torch = sys.modules.get("torch")
    tensors = [array for array in examples if torch is not None and isinstance(array, torch.Tensor)]
    if any(device_of(array) is not None for array in tensors):  # torch exports tensors of its current device only
        stream = torch.cuda.current_stream(device).cuda_stream
        order = SAME_STREAM if len(tensors) == len(examples) else stream or LEGACY_STREAM
        return stream, order, torch.cuda.device(device)
    stream = None
    for array in examples:
        with contextlib.suppress(Exception):  # some have the interface, but not for each dtype
            stream = stream or array.__cuda_array_interface__.get("stream")
    stream = stream or LEGACY_STREAM
    return stream, stream, contextlib.nullcontext()


def _error(status: int, text: str, index: int = -1, name: str = "") -> c.Error:
    error = c.Error(text)
    error.status, error.argument, error.index, error.name = status, -1, index, name
    return error


def _refuse_immutable(outs: Sequence[Any], name: str) -> None:
    """JAX's arrays, whose DLPack does not say so."""
    jax = sys.modules.get("jax")
    for i, array in enumerate(outs if hasattr(jax, "Array") else ()):
        if isinstance(array, jax.Array):
            where = f"{name}[{i}]"
            text = "the array is read-only, as all of JAX are; pass out with arrays of another framework"
            raise _error(c.GSC_ERROR_VALUE, f"{where}: {text}", i, where)


_opening = threading.Lock()
_devices: dict[int, Device] = {}


def _forked() -> None:
    """In a child, where CUDA does not work: each call must reach the error that says so, and no lock of the parent."""
    global _opening
    _opening = threading.Lock()
    _devices.clear()


os.register_at_fork(after_in_child=_forked)


def device(ordinal: int) -> Device:
    with _opening:
        if ordinal not in _devices:
            _devices[ordinal] = Device(ordinal)
        return _devices[ordinal]


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _driver(name: str, *arguments: Any, expected: int = 0) -> int:
    """A call that succeeds, or returns the `expected` result."""
    result = getattr(_library(), name)(*arguments)
    if result not in (0, expected):
        text = ctypes.c_char_p()
        _library().cuGetErrorString(result, ctypes.byref(text))
        raise _error(c.GSC_ERROR_DEVICE, f"{name}: {(text.value or b'unknown error').decode()}", name=name)
    return result


@contextlib.contextmanager
def _relaxed() -> Iterator[None]:
    """Meanwhile a stream capture of another thread neither forbids a call of this one, nor is broken by it."""
    mode = ctypes.c_int(CAPTURE_RELAXED)
    _driver("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        _driver("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


class Device:
    """A device's context, and the spaces of calls that are over."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.context = c.cuda_open(ordinal)
        self.primary = ctypes.c_void_p()
        number = ctypes.c_int()
        _driver("cuDeviceGet", ctypes.byref(number), ordinal)
        with _relaxed():
            _driver("cuDevicePrimaryCtxRetain", ctypes.byref(self.primary), number)
        self.spare: list[Space] = []

    def inside(self, name: str, *arguments: Any, expected: int = 0) -> int:
        """A driver function with this device's context current; the caller's is the same afterwards."""
        _driver("cuCtxPushCurrent_v2", self.primary)
        try:
            with _relaxed():
                return _driver(name, *arguments, expected=expected)
        finally:
            _driver("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def refuse_capture(self, stream: int) -> None:
        """To wait for a stream that is captured would break the capture."""
        capturing, text = ctypes.c_int(), ""
        arguments = ctypes.c_void_p(stream), ctypes.byref(capturing)
        if self.inside("cuStreamIsCapturing", *arguments, expected=CAPTURE_IMPLICIT):
            text = "a stream is captured that the default one, which this call would run on, waits for: "
            text += "call it after the capture, or make another stream the current one"
        elif capturing.value:
            text = "its stream is captured, and Scaler waits for the device: use the C calls in a graph"
        if text:
            raise _error(c.GSC_ERROR_UNAVAILABLE, f"cuda:{self.ordinal}: {text}", name="stream")

    def space(self) -> Space:
        try:
            return self.spare.pop()
        except IndexError:
            return Space(self)


class Space:
    """What one call at a time has: factor and report in page-locked host memory, and a workspace.

    It is of no stream: the call that had it before has waited for its own.
    """

    def __init__(self, owner: Device) -> None:
        self.owner = owner
        address = ctypes.c_void_p()  # which the device sees at the same one
        size = ctypes.c_size_t(ctypes.sizeof(_structs.Report) + ctypes.sizeof(_structs.Factor))
        owner.inside("cuMemHostAlloc", ctypes.byref(address), size, PORTABLE_MAPPED)
        self.report = address.value
        self.factor = self.report + ctypes.sizeof(_structs.Report)
        self.workspace = ctypes.c_uint64()
        self.size = 0

    def reserve(self, size: int) -> None:
        if self.size >= size:
            return
        old, new = self.workspace, ctypes.c_uint64()
        self.owner.inside("cuMemAlloc_v2", ctypes.byref(new), ctypes.c_size_t(2 * size))
        self.workspace, self.size = new, 2 * size
        if old:
            self.owner.inside("cuMemFree_v2", old)


class Lists:
    """The arrays of one device: gradients, and results, which are None for a call that only reads."""

    def __init__(self, ordinal: int, ins: Sequence[Any], outs: Sequence[Any] | None) -> None:
        if outs is not None:
            _refuse_immutable(outs, "tensors" if outs is ins else "out")
        examples: dict[type, Any] = {}
        for array in ins if outs is None or outs is ins else [*ins, *outs]:
            examples.setdefault(type(array), array)
        self.arrays = (ins, outs)
        self.examples = list(examples.values())
        self.ordinal = ordinal
        self.held = None

    def stream(self) -> int:
        """The stream of a call now, which comes after what the frameworks enqueued; first the arrays are exported."""
        stream, order, guard = current(self.examples, self.ordinal)
        device(self.ordinal).refuse_capture(stream)
        with guard:
            if self.held is None:
                self.held = c.cuda_hold(*self.arrays, self.ordinal, order)
            elif order != SAME_STREAM:
                for array in self.examples:
                    array.__dlpack__(stream=order)
        return stream


class Call:
    """gsc_<function> on the arrays of one device, in steps, so that several devices may work at a time.

    A context, at whose end the device is done, on an error, too.
    """

    def __init__(self, function: str, lists: Lists, want: int, limit: float = 0.0) -> None:
        self.function, self.limit, self.want = function, limit, want
        self.stream = lists.stream()
        self.held = lists.held  # until the device is done
        self.device = device(lists.ordinal)
        self.space = self.device.space()
        self.busy = False

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            self._wait()
            if self.space:
                self.device.spare.append(self.space)
        except c.Error:
            if kind is None:  # else what went wrong first is the error
                raise

    def _wait(self) -> None:
        if not self.busy:
            return
        space, self.space, self.busy = self.space, None, False  # lost if the device fails, which may write to it yet
        self.device.inside("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        self.space = space

    def _call(self, workspace: int, size: int, factor: int) -> int:
        place = (self.device.context, self.stream, workspace, size)
        return c.cuda_call(self.function, *place, factor, self.limit, self.held, self.want, self.space.report)

    def reserve(self) -> None:
        """Checks all that can be before the device works, and gets the memory that it needs."""
        self.space.reserve(self._call(0, 0, 0))

    def enqueue(self, factor: Any) -> None:
        space = self.space
        if factor is not None:
            ctypes.memmove(space.factor, ctypes.byref(factor), ctypes.sizeof(_structs.Factor))
        self.factor, self.busy = factor, True
        self._call(space.workspace.value, space.size, space.factor if factor is not None else 0)

    def report(self) -> _structs.Report:
        self._wait()
        report = _structs.Report()
        ctypes.memmove(ctypes.byref(report), self.space.report, ctypes.sizeof(_structs.Report))
        if report.status:
            c.gsc_check(None, self.factor, [], 0, _structs.Report())  # says how to mend a factor
            text = f"cuda:{self.device.ordinal}: {c.gsc_status_string(report.status)}"
            raise _error(report.status, text, name="report.status")
        return report
