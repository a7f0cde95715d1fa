"""Calls on arrays in CUDA memory, on the stream that their framework uses at the moment.

The device reads the factor and writes the report in page-locked host memory, so nothing is copied; a call waits for its
stream, as its caller is about to look at the report.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
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
    """The positions of the arrays of each device; those of the host are at None."""
    if not any(map(elsewhere, set(map(type, arrays)))):
        return {None: range(len(arrays))}
    found: dict[int | None, list[int]] = {}
    for i, array in enumerate(arrays):
        found.setdefault(device_of(array), []).append(i)
    return found


def current(array: Any, device: int) -> tuple[int, int, contextlib.AbstractContextManager]:
    """The stream that the array's framework uses now, what DLPack is told of it, and what must hold meanwhile.

    The legacy stream where a framework does not say: DLPack then makes it wait for the framework.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):  # exports tensors of its current device only
        return torch.cuda.current_stream(device).cuda_stream, SAME_STREAM, torch.cuda.device(device)
    interface = getattr(array, "__cuda_array_interface__", None) or {}
    stream = interface.get("stream") or LEGACY_STREAM
    return stream, stream, contextlib.nullcontext()


_opening = threading.Lock()
_devices: dict[int, Device] = {}


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
        raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()}")


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

    def grow(self, size: int) -> None:
        if self.size:
            self.owner.inside(_driver, "cuMemFree_v2", self.workspace)
            self.size = 0
        self.owner.inside(_driver, "cuMemAlloc_v2", ctypes.byref(self.workspace), ctypes.c_size_t(2 * size))
        self.size = 2 * size

    def call(self, function: str, factor: Any, limit: float, order: int, tensors: Any, want: int, report: Any) -> None:
        owner = self.owner
        place = (owner.context, owner.ordinal, self.handle, order)
        with self.lock:
            if factor is not None:
                ctypes.memmove(self.factor, ctypes.byref(factor), ctypes.sizeof(_structs.Factor))
            at = self.factor if factor is not None else 0
            while needed := c.cuda_call(
                function, *place, self.workspace.value, self.size, at, limit, tensors, want, self.report
            ):
                self.grow(needed)
            owner.inside(_driver, "cuStreamSynchronize", ctypes.c_void_p(self.handle))
            ctypes.memmove(ctypes.byref(report), self.report, ctypes.sizeof(_structs.Report))


def call(function: str, factor: Any, limit: float, ordinal: int, tensors: Any, want: int, report: Any) -> None:
    """gsc_<function> on the arrays of one device; `tensors` is a list, or a pair of lists (in, out)."""
    first = tensors[0][0] if isinstance(tensors, tuple) else tensors[0]
    stream, order, guard = current(first, ordinal)
    with guard:
        device(ordinal).stream(stream).call(function, factor, limit, order, tensors, want, report)
    if report.status:
        error = c.Error(f"cuda:{ordinal}: {c.gsc_status_string(report.status)}")
        error.status, error.argument, error.index, error.name = report.status, -1, -1, "report.status"
        raise error
