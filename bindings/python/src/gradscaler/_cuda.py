# SPDX-License-Identifier: MIT
"""Runs calls on arrays in CUDA memory, on the current stream of their framework.

The device reads the factor from mapped host memory and writes its reports there, so nothing is copied. Reading a report
waits for the device. A call itself waits only if the arrays belong to several frameworks, or if their framework does
not say its stream: the framework's next work would not come after the call.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from . import _gradscaler as c
from . import _structs

CUDA, CUDA_MANAGED = 2, 13  # DLPack's device types
SAME_STREAM = -1  # for DLPack: use the producer's stream, do not synchronise
LEGACY_STREAM = 1  # the legacy default stream: DLPack's number and the driver's handle
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: a thread without a context captures nothing


def device_of(array: Any) -> int | None:
    """Returns the CUDA device of an array, or None for the host."""
    if not hasattr(array, "__dlpack_device__"):
        return None
    type_, device = array.__dlpack_device__()
    return device if type_ in (CUDA, CUDA_MANAGED) else None


@functools.cache
def can_be_on_device(kind: type) -> bool:
    """Returns whether arrays of this type can be outside of host memory."""
    return hasattr(kind, "__dlpack_device__") and not hasattr(kind, "__array_interface__")


@functools.cache
def needs_device_of(kind: type) -> bool:
    """Returns whether `device_of` must be called on each array; with DLPack's C exchange API the call itself checks."""
    return can_be_on_device(kind) and not hasattr(kind, "__dlpack_c_exchange_api__")


def groups(arrays: Sequence[Any]) -> dict[int | None, Sequence[int]]:
    """Returns the positions of the arrays on each device; the host has the key None and comes first."""
    found: dict[int | None, list[int]] = {}
    for i, array in enumerate(arrays):
        found.setdefault(device_of(array), []).append(i)
    return dict(sorted(found.items(), key=lambda group: group[0] is not None))


def current(examples: Sequence[Any], device: int) -> tuple[int, int, contextlib.AbstractContextManager[Any], bool]:
    """Returns (stream, DLPack's stream argument, context manager of the export, whether all examples use the stream).

    If all use it, their later work comes after the call. With several frameworks the stream is torch's, else the first
    that an array names, and DLPack makes it wait for the others. If none names its stream, it is the legacy stream.
    """
    torch = sys.modules.get("torch")
    tensors = [array for array in examples if hasattr(torch, "Tensor") and isinstance(array, torch.Tensor)]
    if any(device_of(array) is not None for array in tensors):  # torch exports tensors of its current device only
        stream, one_stream = torch.cuda.current_stream(device).cuda_stream, len(tensors) == len(examples)
        return stream, SAME_STREAM if one_stream else stream or LEGACY_STREAM, torch.cuda.device(device), one_stream
    streams = []
    for array in examples:
        with contextlib.suppress(Exception):  # some have the interface, but not for each dtype
            streams.append(array.__cuda_array_interface__.get("stream"))
    stream = next(filter(None, streams), None)
    one_stream = stream is not None and streams == [stream] * len(examples)
    stream = stream or LEGACY_STREAM
    return stream, stream, contextlib.nullcontext(), one_stream


@functools.cache
def _is_capturing() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuStreamIsCapturing


def captures(ordinal: int, stream: int, waits: bool = False) -> bool:
    """Returns whether a stream is being captured. A bad stream raises; if `waits`, a capture also raises."""
    context, status = device(ordinal).context, ctypes.c_int32()
    if not waits and _is_capturing()(ctypes.c_void_p(stream), ctypes.byref(status)) in (0, _NO_CONTEXT):
        return status.value != 0
    try:
        c.gsc_exec_wait((context, stream, None))
    except c.Error as error:
        error.args = (f"cuda:{ordinal}: {'the stream ' + error.why if error.field == 'stream' else error}",)
        error.subject_length = 0
        raise
    return False


def _refuse_immutable(outs: Sequence[Any], name: str) -> None:
    """Refuses JAX's arrays: they are read-only, but their DLPack export does not say so."""
    jax = sys.modules.get("jax")
    for i, array in enumerate(outs if hasattr(jax, "Array") else ()):
        if isinstance(array, jax.Array):
            why = "is read-only, as all of JAX are: pass out with arrays of another framework"
            raise _error(f"{name}[{i}] {why}", c.GSC_ERROR_VALUE, name, "", i, 1, why)


def _error(text: str, status: int, name: str, field: str, index: int, subject_length: int, why: str) -> c.Error:
    error = c.Error(text)
    error.status, error.argument, error.index, error.other = status, -1, index, -1
    error.name, error.field, error.subject_length, error.why = name, field, subject_length, why
    error.value = error.low = error.high = None
    error.requirement = ""
    return error


_opening = threading.Lock()
_devices: dict[int, Device] = {}


def _forked() -> None:
    """Forgets the devices and the lock in a forked child. CUDA does not work there; the next call raises that error."""
    global _opening
    _opening = threading.Lock()
    _devices.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)


def device(ordinal: int) -> Device:
    with _opening:
        if ordinal not in _devices:
            _devices[ordinal] = Device(ordinal)
        return _devices[ordinal]


class Device:
    """The context of a device, and the memory of finished calls, which later calls use again."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.context = c.gsc_context_create_cuda({"device": ordinal})
        self.spare: list[CallMemory] = []
        self.unread: deque[tuple[CallMemory, Any]] = deque()  # calls with unread reports, and their arrays
        self.graphs: list[Any] = []  # memory of CUDA graphs: they can be replayed until the process ends

    def take_memory(self) -> CallMemory:
        for _ in range(min(len(self.unread), 8)):
            with contextlib.suppress(IndexError):  # another thread took it
                oldest = self.unread.popleft()
                self.spare.append(oldest[0]) if oldest[0].host_copy.is_complete() else self.unread.append(oldest)
        try:
            return self.spare.pop()
        except IndexError:
            return CallMemory(self.context)

    def copy_for_graphs(self, struct: Any) -> tuple[Any, Any]:
        """Copies a struct to memory that all devices see; returns the memory and the copy."""
        memory = c.gsc_memory_create(self.context, c.GSC_MEMORY_HOST, ctypes.sizeof(struct))
        memoryview(memory)[: ctypes.sizeof(struct)] = bytes(struct)
        self.graphs.append(memory)
        return memory, type(struct).from_buffer(memoryview(memory))


_unfinished: list[Any] = []


class HostCopy:
    """A copy from device to host, enqueued on a stream. Nobody waits for it: `is_complete` tells its end.

    A flag is copied behind the data.
    """

    DONE, ONE, DATA = 0, 8, 64  # offsets
    words: Any = (1,)  # for __del__, if the memory could not be allocated

    def __init__(self, context: Any, size: int = 0) -> None:
        self.context = context
        self.shared = c.gsc_memory_create(context, c.GSC_MEMORY_HOST, self.DATA + size)
        self.one = c.gsc_memory_create(context, c.GSC_MEMORY_DEVICE, 8)
        self.words = memoryview(self.shared)[: self.DATA].cast("Q")
        self.words[0] = self.words[1] = 1
        self.first = True

    def __del__(self, unfinished: list[Any] = _unfinished) -> None:
        if not self.is_complete():  # the device still writes to it
            unfinished.append((self.shared, self.one))

    def is_complete(self) -> bool:
        """Returns whether the last copy is complete."""
        return self.words[0] == 1

    def send(self, stream: int, memory: Any = None, size: int = 0) -> None:
        """Enqueues a copy. The copy before must be complete: its flag would be taken for the flag of this one."""
        on, self.words[0] = (self.context, stream, None), 0
        if self.first:  # the 1 must be in device memory: a copy from host to host would wait
            c.gsc_memory_copy(on, self.one, (self.shared, self.ONE), 8)
        self.first = False
        if size:
            c.gsc_memory_copy(on, (self.shared, self.DATA), memory, size)
        c.gsc_memory_copy(on, (self.shared, self.DONE), self.one, 8)

    def data(self) -> bytes:
        return bytes(memoryview(self.shared)[self.DATA :])


class CallMemory:
    """The memory of one call: factor, report, histogram, a loss of the host and the report of each array in mapped host
    memory, and a workspace on the device.

    It belongs to no stream, because the call that used it before is complete.
    """

    REPORT, FACTOR, HISTOGRAM, LOSS, EACH = 0, 256, 512, 768, 1024  # offsets

    def __init__(self, context: Any) -> None:
        self.context, self.workspace, self.size, self.report_capacity = context, None, 0, 0
        self.host_copy = HostCopy(context)
        self.reserve(0, 64)

    def reserve(self, size: int, arrays: int) -> None:
        """Allocates at least `size` bytes of workspace, and memory for the reports of `arrays` arrays."""
        if self.size < size:
            self.workspace = c.gsc_memory_create(self.context, c.GSC_MEMORY_DEVICE, 2 * size)
            self.size = 2 * size
        if self.report_capacity < arrays:
            self.report_capacity = 2 * arrays
            size = self.EACH + self.report_capacity * ctypes.sizeof(_structs.Report)
            self.shared = c.gsc_memory_create(self.context, c.GSC_MEMORY_HOST, size)


class Lists:
    """The gradients and results on one device; results are None for a call that only reads."""

    def __init__(self, ordinal: int, ins: Sequence[Any], outs: Sequence[Any] | None) -> None:
        if outs is not None:
            _refuse_immutable(outs, "tensors" if outs is ins else "out")
        examples: dict[type, Any] = {}
        for array in ins if outs is None or outs is ins else [*ins, *outs]:
            examples.setdefault(type(array), array)
        self.arrays = (ins, outs)
        self.examples = list(examples.values())
        self.ordinal = ordinal
        self.exported = None

    def stream(self) -> tuple[int, bool, bool]:
        """Exports the arrays and returns (stream, whether all arrays use it, whether it is being captured).

        Work on this stream comes after the work that the frameworks have enqueued.
        """
        stream, order, guard, one_stream = current(self.examples, self.ordinal)
        captured = captures(self.ordinal, stream, not one_stream)
        with guard:
            if self.exported is None:
                self.exported = c.hold(*self.arrays, self.ordinal, order)
            elif order != SAME_STREAM:
                for array in self.examples:
                    array.__dlpack__(stream=order)
        return stream, one_stream, captured


class Call:
    """A call on the arrays of one device, in several methods, so that several devices work in parallel.

    It is a context manager, which waits for the device at its end, also after an error. The memory of a call that never
    ends is not used again.
    """

    busy = False

    def __init__(self, function: Any, lists: Lists, options: Mapping[str, Any], loss: Any = None) -> None:
        self.function, (self.stream, self.one_stream, self.captured) = function, lists.stream()
        self.lists, self.arrays = lists, len(lists.arrays[0])
        self.exported = lists.exported  # alive until the device is done
        self.options = dict(options)
        self.host_loss = loss if isinstance(loss, _structs.Loss) else _structs.Loss.UNKNOWN
        if self.captured and self.host_loss:
            raise ValueError("a loss of the host would be the same at each replay: pass it on the device")
        if loss is not None and not isinstance(loss, _structs.Loss):
            self.options["loss"] = self._hold(loss)
        self.device = device(lists.ordinal)
        self.memory = self.device.take_memory()

    def _hold(self, loss: Any) -> Any:
        """Exports the loss, which can be of another framework than the gradients."""
        stream, _, guard, has_stream = current([loss], self.lists.ordinal)
        self.one_stream &= has_stream and stream == self.stream
        if self.captured and not self.one_stream:
            captures(self.lists.ordinal, self.stream, True)  # raises: the call would wait
        try:
            with guard:
                return c.hold([loss], None, self.lists.ordinal, self.stream or LEGACY_STREAM)
        except c.Error as error:
            raise _error(f"loss {error.why}", error.status, "loss", "", -1, 0, error.why) from None

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            self.end()
        except c.Error:
            if kind is None:  # else the first error is raised
                raise

    def __del__(self) -> None:
        if self.busy and not self.captured:
            self.device.unread.append((self.memory, (self.exported, self.options)))

    def end(self) -> None:
        self._wait()
        if self.memory and not self.captured:
            self.device.spare.append(self.memory)
            self.memory = self.exported = None

    def _wait(self) -> None:
        if not self.busy:
            return
        if self.captured:  # waits for the current stream: the graph is launched there
            captures(self.device.ordinal, current(self.lists.examples, self.device.ordinal)[0], True)
        elif not self.memory.host_copy.is_complete():
            try:
                c.gsc_exec_wait((self.device.context, self.stream, None))
            except c.Error as error:
                if error.status != c.GSC_ERROR_UNAVAILABLE:  # the device failed and may still write
                    self.memory, self.busy = None, False
                raise
            self.memory.host_copy.words[0] = 1  # a call that failed half way has sent no flag
        self.busy = self.captured

    def _call(self, workspace: Any, factor: Any) -> None:
        on, shared = (self.device.context, self.stream, workspace), self.memory.shared
        self.function(on, factor, self.exported, self.options, (shared, CallMemory.REPORT))

    def reserve(self) -> None:
        """Checks the arguments before the device works, and allocates the memory of the call."""
        memory = self.memory
        memory.reserve(0, self.arrays)
        self.options["per_tensor"] = (memory.shared, CallMemory.EACH)
        if "histogram" in self.options:
            self.options["histogram"] = (memory.shared, CallMemory.HISTOGRAM)
        if self.host_loss:
            self.options["loss"] = (memory.shared, CallMemory.LOSS)
            bad = self.host_loss == _structs.Loss.NOT_FINITE
            memoryview(memory.shared)[CallMemory.LOSS :][:8].cast("d")[0] = math.nan if bad else 0.0
        size = c.gsc_workspace_size((self.device.context, self.stream, None), self.exported, self.options)
        try:
            if size:
                self._call(None, None)
        except c.Error as error:
            if error.status != c.GSC_ERROR_CAPACITY:  # this error means that all other arguments are right
                raise
        memory.reserve(size, self.arrays)
        if self.captured:
            self.device.graphs.append(memory)

    def enqueue(self, factor: Any, factor_memory: Any) -> None:
        """Starts the call. The device reads the factor from `factor_memory`; None: from a copy of `factor`."""
        memory = self.memory
        if factor is not None and factor_memory is None:
            factor_memory = memory.shared, CallMemory.FACTOR
            memoryview(memory.shared)[CallMemory.FACTOR :][: ctypes.sizeof(factor)] = bytes(factor)
        self.factor, self.busy = factor, True
        if not self.captured:
            memory.host_copy.words[0] = 0  # before the first launch: a later one may fail
        self._call(memory.workspace, factor_memory)
        if not self.captured:
            memory.host_copy.send(self.stream)

    def results(self) -> tuple[_structs.Report, memoryview, memoryview]:
        """Waits, and returns the report, the reports of each array, and the histogram. They are valid until `end`."""
        self._wait()
        shared = memoryview(self.memory.shared)
        report = _structs.Report.from_buffer_copy(shared, CallMemory.REPORT)
        if report.status:
            c.gsc_measure(None, self.factor, [], None, _structs.Report())  # its error says how to mend a factor
            text = f"cuda:{self.device.ordinal}: {c.gsc_status_string(report.status)}"
            raise _error(text, report.status, "report", "status", -1, 0, text)
        size = self.arrays * ctypes.sizeof(_structs.Report)
        each = shared[CallMemory.EACH : CallMemory.EACH + size]
        return report, each, shared[CallMemory.HISTOGRAM : CallMemory.HISTOGRAM + 8 * c.GSC_HISTOGRAM_LENGTH]
