# SPDX-License-Identifier: MIT
"""The device of a call, and reports as tensors of bytes on it."""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from .. import _cuda
from .. import _gradscaler as c
from .._policy import Policy
from .._report import Report
from .._structs import SHARED_BYTES, ExecFlag, Factor, MergeKind

SIZE, FACTOR = ctypes.sizeof(Report), ctypes.sizeof(Factor)
FOUND, OVERFLOW, STATUS, MEASURED, KIND = 0, 1, 2, 3, Report.kind.offset // 4  # words of a report
CPU = torch.device("cpu")
PLAIN = {torch.Tensor, torch.nn.Parameter}
_PARTS = int(MergeKind.SHARDS)


def ordinal(device: torch.device) -> int | None:
    """Returns the number of an NVIDIA device, or None for the host and for other devices."""
    if device == CPU or device.type == "cpu":  # the first is fast
        return None
    if device.type == "cuda" and torch.version.hip is None:
        return torch.cuda.current_device() if device.index is None else device.index
    return None


@functools.cache
def uses_torch(device: torch.device) -> bool:
    """Returns whether only torch's operations reach the gradients on a device: the core has no kernels for it."""
    if os.environ.get("GSC_TORCH_PATH") == "torch":
        return True
    number = ordinal(device)
    if number is None:
        return device.type != "cpu"
    try:
        _cuda.device(number)
    except c.Error as error:
        why = f"gradscaler's kernels cannot run on {device} ({error})"
        warnings.warn(f"{why}: torch's operations unscale the gradients there", stacklevel=2)
        return True
    return False


_WITH_ADDRESSES = {"cpu", "cuda"}


def storage(tensor: torch.Tensor) -> int:
    """Returns what tells storages apart if data_ptr() is not an address, as on mps, where it is an object's; else 0."""
    try:
        return 0 if tensor.device.type in _WITH_ADDRESSES else tensor.untyped_storage().data_ptr()
    except RuntimeError:  # the device does not tell
        return 0


def stream(number: int) -> int:
    return torch.cuda.current_stream(number).cuda_stream


def captures(device: torch.device) -> bool:
    """Returns whether the current stream of a device is being captured in a CUDA graph."""
    number = ordinal(device)
    return number is not None and _cuda.captures(number, stream(number))


def hold(tensors: list[torch.Tensor], device: torch.device) -> Any:
    number = ordinal(device)
    return c.hold(tensors, tensors, -1 if number is None else number, _cuda.SAME_STREAM)


_threads: tuple[int, Any] = (1, None)


def on(device: torch.device, size: int = 0, held: Any = None, options: Any = None) -> Any:
    """Returns context, stream and workspace of a call. On the host, large calls use torch's number of threads."""
    global _threads
    number = ordinal(device)
    if number is None:
        if size < SHARED_BYTES:
            return None
        threads = torch.get_num_threads()
        if threads != _threads[0]:
            _threads = threads, c.gsc_context_create_cpu({"threads": threads}) if threads > 1 else None
        return _threads[1]
    context, at, workspace = _cuda.device(number).context, stream(number), None
    if held is not None:
        room = c.gsc_workspace_size((context, at, None), held, options)
        workspace = torch.empty(room, dtype=torch.uint8, device=device) if room else None
    return context, at, workspace


def data(tensor: torch.Tensor) -> bytes:
    """Waits for the device and returns the bytes of a contiguous tensor."""
    tensor = tensor.cpu()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def writing_failures(device: torch.device) -> Any:
    """Returns where a call on structs runs that, on the host as on a device, writes an error to its result."""
    return on(device) or (None, 0, None, ExecFlag.WRITE_FAILURES)


def merged(reports: torch.Tensor, policy: Policy | None = None, writes: int | None = None) -> torch.Tensor:
    """Merges reports of shards on their device. Returns the report of a failure if its status is `writes`."""
    out, where = reports.new_empty(SIZE), writing_failures(reports.device)
    try:
        c.gsc_report_merge(where, reports.contiguous() if reports.numel() else None, _PARTS, policy, out)
    except c.Error as error:
        if error.status != writes:
            raise
    return out


def nothing(device: torch.device) -> torch.Tensor:
    """Returns the report of no gradients: merging it with another report changes nothing."""
    return merged(torch.empty(0, dtype=torch.uint8, device=device))


def index_tensor(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    """Returns a tensor of indices on a device. torch.tensor(numbers, device=device) would wait for the device."""
    if isinstance(numbers, range):
        return torch.arange(numbers.start, numbers.stop, device=device)
    made = torch.tensor(numbers, dtype=torch.int64, device=CPU)
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made.to(device)


def words(reports: torch.Tensor) -> torch.Tensor:
    return reports.view(torch.int32)


def flag(report: torch.Tensor, overflow: torch.Tensor, status: torch.Tensor | None = None) -> None:
    """Writes `overflow`, a tensor, and if given the status into a report."""
    words(report)[OVERFLOW] = overflow
    report.view(torch.float32)[FOUND] = overflow
    if status is not None:
        words(report)[STATUS] = status
