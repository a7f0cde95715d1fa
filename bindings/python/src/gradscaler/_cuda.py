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
from collections.abc import Callable, Sequence
from typing import Any

from . import _gradscaler as c
from . import _structs

CUDA, CUDA_MANAGED = 2, 13  # DLPack's types of devices
SAME_STREAM = -1  # for DLPack: the producer's own, there is nothing to wait for
LEGACY_STREAM = 1  # DLPack's number, and the driver's handle, of the stream that others wait for
PORTABLE_MAPPED = 3


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


def current(arrays: Sequence[Any], device: int) -> tuple[int, int, contextlib.AbstractContextManager]:
    """The stream that the arrays' framework uses now, what DLPack is told of it, and what must hold during the export.

    Of several frameworks torch's, else that of the first which says its own; DLPack then makes it wait for the others.
    The legacy stream where none says.
    """
    examples: dict[type, Any] = {}
    for array in arrays:
        examples.setdefault(type(array), array)
    torch = sys.modules.get("torch")
    tensors = [array for array in examples.values() if torch is not None and isinstance(array, torch.Tensor)]
    if any(device_of(array) is not None for array in tensors):  # torch exports tensors of its current device only
        stream = torch.cuda.current_stream(device).cuda_stream
        order = SAME_STREAM if len(tensors) == len(examples) else stream or LEGACY_STREAM
        return stream, order, torch.cuda.device(device)
    stream = None
    for array in examples.values():
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
            raise _error(c.GSC_ERROR_VALUE, f"{where}: the array is read-only, as all of JAX are", i, where)


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


def _driver(name: str, *arguments: Any) -> None:
    result = getattr(_library(), name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        _library().cuGetErrorString(result, ctypes.byref(text))
        raise _error(c.GSC_ERROR_DEVICE, f"{name}: {(text.value or b'unknown error').decode()}", name=name)


class Device:
    """A device's context, and its streams as far as they are known."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.context = c.cuda_open(ordinal)
        self.primary = ctypes.c_void_p()
        number = ctypes.c_int()
        _driver("cuDeviceGet", ctypes.byref(number), ordinal)
        _driver("cuDevicePrimaryCtxRetain", ctypes.byref(self.primary), number)
        self.lock = threading.Lock()
        self.streams: dict[int, Stream] = {}

    def inside(self, function: Callable[..., None], *arguments: Any) -> None:
        """A driver function with this device's context current; the caller's is the same afterwards."""
        _driver("cuCtxPushCurrent_v2", self.primary)
        try:
            function(*arguments)
        finally:
            _driver("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def pinned(self, size: int) -> int:
        """Host memory that the device sees at the same address."""
        address = ctypes.c_void_p()
        self.inside(_driver, "cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), PORTABLE_MAPPED)
        return address.value

    def stream(self, handle: int) -> Stream:
        capturing = ctypes.c_int()
        self.inside(_driver, "cuStreamIsCapturing", ctypes.c_void_p(handle), ctypes.byref(capturing))
        if capturing.value:  # to wait would break the capture
            text = "its stream is captured, and Scaler waits for the device: use the C calls in a graph"
            raise _error(c.GSC_ERROR_UNAVAILABLE, f"cuda:{self.ordinal}: {text}", name="stream")
        with self.lock:
            if handle not in self.streams:
                self.streams[handle] = Stream(self, handle)
            return self.streams[handle]


class Stream:
    """A stream's workspace, factor and report, for one call at a time."""

    def __init__(self, owner: Device, handle: int) -> None:
        self.owner = owner
        self.handle = handle
        self.lock = threading.Lock()
        self.report = owner.pinned(ctypes.sizeof(_structs.Report) + ctypes.sizeof(_structs.Factor))
        self.factor = self.report + ctypes.sizeof(_structs.Report)
        self.workspace = ctypes.c_uint64()
        self.size = 0

    def reserve(self, size: int) -> None:
        with self.lock:
            if self.size >= size:
                return
            old, new = self.workspace, ctypes.c_uint64()
            self.owner.inside(_driver, "cuMemAlloc_v2", ctypes.byref(new), ctypes.c_size_t(2 * size))
            self.workspace, self.size = new, 2 * size
            if old:
                self.owner.inside(_driver, "cuMemFree_v2", old)


class Call:
    """gsc_<function> on the arrays of one device, checked and with all that it needs, so that several may then run."""

    def __init__(
        self, function: str, ordinal: int, ins: Sequence[Any], outs: Sequence[Any] | None, want: int, limit: float = 0.0
    ) -> None:
        if outs is not None:
            _refuse_immutable(outs, "tensors" if outs is ins else "out")
        stream, order, guard = current(ins if outs is None or outs is ins else [*ins, *outs], ordinal)
        self.function, self.limit, self.want = function, limit, want
        self.stream = device(ordinal).stream(stream)
        with guard:
            self.held = c.cuda_hold(ins, outs, ordinal, order)  # until the stream has been waited for
        self.stream.reserve(self._enqueue(0, 0, 0))

    def _enqueue(self, workspace: int, size: int, factor: int) -> int:
        stream = self.stream
        place = (stream.owner.context, stream.handle, workspace, size)
        return c.cuda_call(self.function, *place, factor, self.limit, self.held, self.want, stream.report)

    def run(self, factor: Any, report: Any) -> None:
        stream = self.stream
        with stream.lock:
            if factor is not None:
                ctypes.memmove(stream.factor, ctypes.byref(factor), ctypes.sizeof(_structs.Factor))
            self._enqueue(stream.workspace.value, stream.size, stream.factor if factor is not None else 0)
            stream.owner.inside(_driver, "cuStreamSynchronize", ctypes.c_void_p(stream.handle))
            ctypes.memmove(ctypes.byref(report), stream.report, ctypes.sizeof(_structs.Report))
        if report.status:
            text = f"cuda:{stream.owner.ordinal}: {c.gsc_status_string(report.status)}"
            raise _error(report.status, text, name="report.status")
