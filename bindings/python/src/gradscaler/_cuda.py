# SPDX-License-Identifier: MIT
"""Calls on arrays in CUDA memory, on the stream that their framework uses at the moment.

The device reads the factor and writes its reports in host memory that it sees, so nothing is copied. Who looks at a
report waits for it; a call waits only where the results are not in the order of a stream that their framework knows:
of several frameworks, and of one that does not say its stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from . import _gradscaler as c
from . import _structs

CUDA, CUDA_MANAGED = 2, 13  # DLPack's types of devices
SAME_STREAM = -1  # for DLPack: the producer's own, there is nothing to wait for
LEGACY_STREAM = 1  # DLPack's number, and the driver's handle, of the stream that others wait for
_NO_CONTEXT = 201  # the driver's result in a thread that has none: it captures nothing


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


@functools.cache
def asked(kind: type) -> bool:
    """Whether they have to be asked where they are: those that lend their memory say so within a call, and fast."""
    return elsewhere(kind) and not hasattr(kind, "__dlpack_c_exchange_api__")


def groups(arrays: Sequence[Any]) -> dict[int | None, Sequence[int]]:
    """The positions of the arrays of each device; those of the host are at None, which is first."""
    found: dict[int | None, list[int]] = {}
    for i, array in enumerate(arrays):
        found.setdefault(device_of(array), []).append(i)
    return dict(sorted(found.items(), key=lambda group: group[0] is not None))


def current(examples: Sequence[Any], device: int) -> tuple[int, int, contextlib.AbstractContextManager[Any], bool]:
    """The stream that the frameworks of these use now, what DLPack is told of it, what must hold during an export, and
    whether all of them use it, so that what they enqueue later comes after a call.

    Of several frameworks torch's, else that of the first which says its own; DLPack then makes it wait for the others.
    The legacy stream where none says.
    """
    torch = sys.modules.get("torch")
    tensors = [array for array in examples if hasattr(torch, "Tensor") and isinstance(array, torch.Tensor)]
    if any(device_of(array) is not None for array in tensors):  # torch exports tensors of its current device only
        stream, alone = torch.cuda.current_stream(device).cuda_stream, len(tensors) == len(examples)
        return stream, SAME_STREAM if alone else stream or LEGACY_STREAM, torch.cuda.device(device), alone
    said = []
    for array in examples:
        with contextlib.suppress(Exception):  # some have the interface, but not for each dtype
            said.append(array.__cuda_array_interface__.get("stream"))
    stream = next(filter(None, said), None)
    alone = stream is not None and said == [stream] * len(examples)
    stream = stream or LEGACY_STREAM
    return stream, stream, contextlib.nullcontext(), alone


@functools.cache
def _is_capturing() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuStreamIsCapturing


def captures(ordinal: int, stream: int, waits: bool = False) -> bool:
    """Whether a stream is being captured. What else is wrong with it is an error, and if `waits` a capture is, too."""
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
    """JAX's arrays, whose DLPack does not say so."""
    jax = sys.modules.get("jax")
    for i, array in enumerate(outs if hasattr(jax, "Array") else ()):
        if isinstance(array, jax.Array):
            why = "is read-only, as all of JAX are: pass out with arrays of another framework"
            raise _error(f"{name}[{i}] {why}", c.GSC_ERROR_VALUE, name, "", i, 1, why)


def _error(text: str, status: int, name: str, field: str, index: int, subject_length: int, why: str) -> c.Error:
    error = c.Error(text)
    error.status, error.argument, error.index, error.other = status, -1, index, -1
    error.name, error.field, error.subject_length, error.why = name, field, subject_length, why
    return error


_opening = threading.Lock()
_devices: dict[int, Device] = {}


def _forked() -> None:
    """In a child, where CUDA does not work: each call must reach the error that says so, and no lock of the parent."""
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
    """A device's context, and the spaces of calls that are over."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.context = c.gsc_context_create_cuda({"device": ordinal})
        self.spare: list[Space] = []
        self.left: deque[tuple[Space, Any]] = deque()  # of reports that nobody read, with the arrays of the call
        self.graphs: list[Any] = []  # what graphs use, which may be replayed as long as the process lives

    def space(self) -> Space:
        for _ in range(min(len(self.left), 8)):
            with contextlib.suppress(IndexError):  # another thread took it
                left = self.left.popleft()
                self.spare.append(left[0]) if left[0].arrival.is_there() else self.left.append(left)
        try:
            return self.spare.pop()
        except IndexError:
            return Space(self.context)


_unfinished: list[Any] = []


class Arrival:
    """Bytes of a device that come to the host in the order of a stream: nobody waits for them, but one can look.

    A word is copied behind them that says so.
    """

    THERE, ONE, DATA = 0, 8, 64  # offsets
    words: Any = (1,)  # of one that got no memory

    def __init__(self, context: Any, size: int = 0) -> None:
        self.context = context
        self.shared = c.gsc_memory_create(context, c.GSC_MEMORY_HOST, self.DATA + size)
        self.one = c.gsc_memory_create(context, c.GSC_MEMORY_DEVICE, 8)
        self.words = memoryview(self.shared)[: self.DATA].cast("Q")
        self.words[0] = self.words[1] = 1
        self.first = True

    def __del__(self, unfinished: list[Any] = _unfinished) -> None:
        if not self.is_there():  # the device writes to it yet
            unfinished.append((self.shared, self.one))

    def is_there(self) -> bool:
        """Whether all that was sent has come."""
        return self.words[0] == 1

    def send(self, stream: int, memory: Any = None, size: int = 0) -> None:
        """What was sent before must be there: its word would be taken for that of this."""
        on, self.words[0] = (self.context, stream, None), 0
        if self.first:  # from memory of the host to memory of the host would wait
            c.gsc_memory_copy(on, self.one, (self.shared, self.ONE), 8)
        self.first = False
        if size:
            c.gsc_memory_copy(on, (self.shared, self.DATA), memory, size)
        c.gsc_memory_copy(on, (self.shared, self.THERE), self.one, 8)

    def data(self) -> bytes:
        return bytes(memoryview(self.shared)[self.DATA :])


class Space:
    """What one call at a time has: factor, report, histogram and a report of each array, where host and device see
    them, and a workspace of the device.

    It is of no stream: the call that had it before is done.
    """

    REPORT, FACTOR, HISTOGRAM, EACH = 0, 256, 512, 1024  # offsets

    def __init__(self, context: Any) -> None:
        self.context, self.workspace, self.size, self.room = context, None, 0, 0
        self.arrival = Arrival(context)
        self.reserve(0, 64)

    def reserve(self, size: int, arrays: int) -> None:
        """At least so many bytes of workspace, and reports of so many arrays."""
        if self.size < size:
            self.workspace = c.gsc_memory_create(self.context, c.GSC_MEMORY_DEVICE, 2 * size)
            self.size = 2 * size
        if self.room < arrays:
            self.room = 2 * arrays
            size = self.EACH + self.room * ctypes.sizeof(_structs.Report)
            self.shared = c.gsc_memory_create(self.context, c.GSC_MEMORY_HOST, size)


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

    def stream(self) -> tuple[int, bool, bool]:
        """The stream of a call now, which comes after what the frameworks enqueued; first the arrays are exported.

        And whether the frameworks go on in its order, and whether it is captured.
        """
        stream, order, guard, alone = current(self.examples, self.ordinal)
        captured = captures(self.ordinal, stream, not alone)
        with guard:
            if self.held is None:
                self.held = c.hold(*self.arrays, self.ordinal, order)
            elif order != SAME_STREAM:
                for array in self.examples:
                    array.__dlpack__(stream=order)
        return stream, alone, captured


class Call:
    """A function on the arrays of one device, in steps, so that several devices may work at a time.

    A context, at whose end the device is done, on an error, too. One that never ends leaves its space to the device.
    """

    busy = False

    def __init__(self, function: Any, lists: Lists, options: Mapping[str, Any]) -> None:
        self.function, (self.stream, self.alone, self.captured) = function, lists.stream()
        self.lists, self.arrays, self.held = lists, len(lists.arrays[0]), lists.held  # until the device is done
        self.device = device(lists.ordinal)
        self.space = self.device.space()
        self.options = dict(options)

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            self.end()
        except c.Error:
            if kind is None:  # else what went wrong first is the error
                raise

    def __del__(self) -> None:
        if self.busy and not self.captured:
            self.device.left.append((self.space, self.held))

    def end(self) -> None:
        self._wait()
        if self.space and not self.captured:
            self.device.spare.append(self.space)
            self.space = self.held = None

    def _wait(self) -> None:
        if not self.busy:
            return
        if self.captured:  # for where the graph is launched now: the call is over when the graph is
            captures(self.device.ordinal, current(self.lists.examples, self.device.ordinal)[0], True)
        elif not self.space.arrival.is_there():
            try:
                c.gsc_exec_wait((self.device.context, self.stream, None))
            except c.Error as error:
                if error.status != c.GSC_ERROR_UNAVAILABLE:  # of a device that failed, which may write to it yet
                    self.space, self.busy = None, False
                raise
            self.space.arrival.words[0] = 1  # a call that failed half way sent nothing that says so
        self.busy = self.captured

    def _call(self, workspace: Any, factor: Any) -> None:
        on, shared = (self.device.context, self.stream, workspace), self.space.shared
        self.function(on, factor, self.held, self.options, (shared, Space.REPORT))

    def reserve(self) -> None:
        """Checks all that can be before the device works, and gets the memory that it needs."""
        space = self.space
        space.reserve(0, self.arrays)
        self.options["per_tensor"] = (space.shared, Space.EACH)
        if "histogram" in self.options:
            self.options["histogram"] = (space.shared, Space.HISTOGRAM)
        size = c.gsc_workspace_size((self.device.context, self.stream, None), self.held, self.options)
        try:
            if size:
                self._call(None, None)
        except c.Error as error:
            if error.status != c.GSC_ERROR_CAPACITY:  # which is said when all else is right
                raise
        space.reserve(size, self.arrays)
        if self.captured:
            self.device.graphs.append(space)

    def enqueue(self, factor: Any, place: Any) -> None:
        """`place` is where the device reads the factor, if not a copy of what it is now."""
        space = self.space
        if factor is not None and place is None:
            place = space.shared, Space.FACTOR
            memoryview(space.shared)[Space.FACTOR :][: ctypes.sizeof(factor)] = bytes(factor)
        self.factor, self.busy = factor, True
        if not self.captured:
            space.arrival.words[0] = 0  # before the first launch: a later one may fail
        self._call(space.workspace, place)
        if not self.captured:
            space.arrival.send(self.stream)

    def results(self) -> tuple[_structs.Report, memoryview, memoryview]:
        """The report, that of each array, and the histogram; until the call ends."""
        self._wait()
        shared = memoryview(self.space.shared)
        report = _structs.Report.from_buffer_copy(shared, Space.REPORT)
        if report.status:
            c.gsc_measure(None, self.factor, [], None, _structs.Report())  # says how to mend a factor
            text = f"cuda:{self.device.ordinal}: {c.gsc_status_string(report.status)}"
            raise _error(text, report.status, "report", "status", -1, 0, text)
        size = self.arrays * ctypes.sizeof(_structs.Report)
        each = shared[Space.EACH : Space.EACH + size]
        return report, each, shared[Space.HISTOGRAM : Space.HISTOGRAM + 8 * c.GSC_HISTOGRAM_LENGTH]
