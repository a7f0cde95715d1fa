# SPDX-License-Identifier: MIT
"""`gradscaler doctor`: compares a CUDA device with the host bit for bit, and says what each device of torch gets."""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import math
import os
import pickle
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import _cuda, _structs
from . import _gradscaler as c
from ._policy import presets
from ._scaler import Scaler

LEAST_ROUNDS, MOST_ROUNDS = 3, 20
PER_THREAD_STREAM = 2  # the driver's handle of the default stream of each thread


def comparison_names() -> list[str]:
    names = []
    while name := c.gsc_comparison_name(len(names)):
        names.append(name)
    return names


def compare(on: Any, seconds: float, index: int) -> str:
    """Makes rounds of a comparison for about so many seconds; returns how many, and of how many bytes."""
    start, rounds, size = time.perf_counter(), 0, 0
    while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() - start < seconds):
        size += c.gsc_exec_compare(on, index, rounds)
        rounds += 1
    return f"{rounds} rounds, {size / 2**20:.1f} MiB"


def two_streams(context: Any, seconds: float) -> str:
    """Makes comparisons in two threads at a time, in the stream of each."""
    with ThreadPoolExecutor(2) as pool:
        return "; ".join(pool.map(functools.partial(compare, (context, PER_THREAD_STREAM, None), seconds), (1, 2)))


def saved_states(context: Any) -> str:
    """Copies states of all presets to the device and back, and saves and loads them."""
    memory, on = c.gsc_memory_create(context, c.GSC_MEMORY_DEVICE, ctypes.sizeof(_structs.State)), (context, 0, None)
    for name in presets():
        scaler, back = Scaler(name), bytearray(ctypes.sizeof(_structs.State))
        for value in (8.0, math.inf, 8.0, 8.0):
            scaler.update(scaler.measure([array.array("f", [value])]))
        c.gsc_memory_copy(on, memory, bytearray(bytes(scaler.state)), len(back))
        c.gsc_memory_copy(on, back, memory, len(back))
        c.gsc_exec_wait(on)
        loaded = pickle.loads(pickle.dumps(scaler))
        if bytes(scaler.state) != bytes(back) or bytes(loaded.state) != bytes(back):
            raise ValueError(f"the state of the preset {name} came back with other bits")
    return f"{len(presets())} presets"


def graph(torch: Any, ordinal: int) -> str:
    """Captures a call in a CUDA graph, and replays it on other gradients."""
    with torch.cuda.device(ordinal):
        grads = [torch.zeros(n, device="cuda") for n in (1, 1000, 70_001)]
        scaler, once = Scaler("static", init_scale=3.0), torch.cuda.CUDAGraph()
        scaler.unscale(grads)
        with torch.cuda.graph(once):
            report = scaler.unscale(grads)
        for round in range(4):
            host = [torch.randn(grad.numel(), generator=torch.Generator().manual_seed(round)) for grad in grads]
            host[1][round] = float("inf") if round % 2 else 0.0
            for grad, values in zip(grads, host, strict=True):
                grad.copy_(values)
            once.replay()
            expected = Scaler("static", init_scale=3.0).unscale(host)
            if bytes(report) != bytes(expected) or any(map(lambda a, b: not a.cpu().equal(b), grads, host)):
                raise ValueError("a replay of a CUDA graph gives other bits than the host's")
    return "4 replays"


class Floats:
    """float32 in memory of a device, as DLPack has it."""

    class Managed(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("device", ctypes.c_int32)]
        _fields_ += [("ndim", ctypes.c_int32), ("dtype", ctypes.c_uint8 * 4), ("shape", ctypes.c_void_p)]
        _fields_ += [(name, ctypes.c_void_p) for name in ("strides", "byte_offset", "manager", "deleter")]

    def __init__(self, context: Any, ordinal: int, count: int) -> None:
        self.memory = c.gsc_memory_create(context, c.GSC_MEMORY_DEVICE, 4 * count)
        self.shape, self.place = ctypes.c_int64(count), (2, ordinal)
        code_bits_lanes = (ctypes.c_uint8 * 4)(2, 32, 1, 0)
        shape = ctypes.addressof(self.shape)
        self.managed = self.Managed(self.memory.address, *self.place, 1, code_bits_lanes, shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


def speed(context: Any, ordinal: int) -> str:
    """Times unscaling in place beside a copy of the same bytes; both read and write each byte once."""
    on, scaler, count = (context, 0, None), Scaler("static", init_scale=2.0), 1 << 16
    while True:
        grads, copy, size = Floats(context, ordinal, count), Floats(context, ordinal, count), 4 * count
        c.gsc_memory_copy(on, grads.memory, bytes(size), size)
        times: list[list[float]] = [[], []]
        for _ in range(6):  # the first round warms up
            start = time.perf_counter()
            reports = [scaler.unscale([grads]) for _ in range(10)]
            _ = reports[-1].overflow  # waits
            middle = time.perf_counter()
            for _ in range(10):
                c.gsc_memory_copy(on, copy.memory, grads.memory, size)
            c.gsc_exec_wait(on)
            times[0].append((middle - start) / 10)
            times[1].append((time.perf_counter() - middle) / 10)
        ours, copying = (statistics.median(each[1:]) for each in times)
        if count >= 1 << 26 or ours > 2e-3:
            speeds = (2 * size / ours / 1e9, 2 * size / copying / 1e9)
            return "{:.4g} MiB: {:.3g} GB/s, a copy {:.3g} GB/s; {:.2f} of its time".format(
                size / 2**20, *speeds, ours / copying
            )
        count *= 32


def described(ordinal: int) -> str:
    """Returns the name of a CUDA device and the version of the driver."""
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    device, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    driver.cuDeviceGetName(name, 128, device)
    return f"{name.value.decode()}, driver for CUDA {version.value // 1000}.{version.value // 10 % 100}"


def tests(device: str, seconds: float) -> tuple[str, dict[str, Callable[[], str]]]:
    """Returns the name of a device and its tests by their names. A test returns what it did, or raises an exception."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise ValueError(f'--device is "{device}": only NVIDIA\'s devices are compared, such as "cuda:0"')
    ordinal, before = int(number or 0), os.environ.get("GSC_CUDA_CHECK", "1")
    os.environ["GSC_CUDA_CHECK"] = "0"  # else a device with wrong bits would have no context, and no tests
    try:
        context = _cuda.device(ordinal).context
    finally:
        os.environ["GSC_CUDA_CHECK"] = before
    found: dict[str, Callable[[], str]] = {}
    for index, name in enumerate(comparison_names()):
        found[name] = functools.partial(compare, (context, 0, None), seconds, index)
    found["two streams"] = lambda: two_streams(context, seconds)
    found["saved states"] = lambda: saved_states(context)
    torch = imported_torch()
    if torch and torch.cuda.is_available() and not torch.version.hip:
        found["CUDA graph"] = lambda: graph(torch, ordinal)
    found["speed"] = lambda: speed(context, ordinal)
    return f"{device}, {described(ordinal)}", found


def imported_torch() -> Any:
    with contextlib.suppress(ImportError):
        import torch

        return torch
    return None


def torch_paths() -> dict[str, str]:
    """Returns for each device of torch which path gradscaler.torch takes there, and why."""
    torch = imported_torch()
    if not torch:
        return {}
    from .torch._device import uses_torch

    accelerator = getattr(torch, "accelerator", None)  # since 2.6
    kind = accelerator.current_accelerator() if accelerator and accelerator.is_available() else None
    found = {}
    for name in ["cpu", *(f"{kind.type}:{i}" for i in range(accelerator.device_count() if kind else 0))]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            operations = uses_torch(torch.device(name))
        if os.environ.get("GSC_TORCH_PATH") == "torch":
            why = "GSC_TORCH_PATH chooses them"
        else:
            why = str(said[0].message) if said else "gradscaler has no kernels for it"
        found[f"torch {name}"] = f"torch's operations: {why}" if operations else "kernels"
    return found
