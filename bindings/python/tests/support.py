# SPDX-License-Identifier: MIT
"""The helpers of several test files."""

import ctypes
import multiprocessing
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from gradscaler import Scaler
from gradscaler._history import Observed

F32 = np.float32
IS_SCRAMBLED = bool(os.environ.get("GRADSCALER_SCRAMBLED"))
REFUSALS = (TypeError, ValueError, KeyError, OverflowError)
CUDA = 2  # DLPack's number
OBSERVED = {"reason", *(name for name in vars(Observed) if name[0] != "_")}  # names that every scaler has
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def scaler_of(scale=8.0):
    """Returns a scaler with a scale that stays."""
    return Scaler("static", init_scale=scale)


def used_scaler():
    """Returns a scaler that differs from a new one in all its parts."""
    scaler = Scaler("megatron", init_scale=2.0**20, growth_interval=3, hysteresis=3)
    for overflow in (0, 0, 0, 1, 0, 1, 0, 1, 0, 0):
        scaler.update(bool(overflow))
    return scaler


def array_that_calls(action, array):
    """Returns a view of an array of float32 that calls `action` whenever its dtype is read."""

    class Calling(np.ndarray):
        @property
        def dtype(self):
            action()
            return np.dtype(F32)

    return array.view(Calling)


def read_only(array):
    array.flags.writeable = False
    return array


def contents(thing):
    """Returns the bytes of scalers, structs and containers of arrays, to see whether one has changed."""
    match thing:
        case Scaler():
            return thing.preset, bytes(thing.policy), bytes(thing.state)
        case dict():
            return [contents(item) for item in thing.values()]
        case list() | tuple():
            return [contents(item) for item in thing]
        case np.ndarray() if thing.dtype != object:
            return thing.tobytes()
        case ctypes.Structure():
            return bytes(thing)
        case _:
            return repr(thing)


def folded(text):
    """Returns a text to compare sentences by; without its words if the extension has scrambled sentences.

    A binding that makes its texts of data makes texts of the same shape from nonsense.
    """
    return re.sub(r"[!-~]", "x", text) if IS_SCRAMBLED else text


def refusal(action, *watched, of=REFUSALS):
    """Returns the message of a call that must fail and leave what it was given as it was."""
    before = contents(watched)
    with pytest.raises(of) as refused:
        action()
    assert contents(watched) == before
    return str(refused.value)


def run_python(*arguments, **environment):
    """Runs Python with these arguments and variables in a process of its own."""
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, text=True, capture_output=True, timeout=300
    )


def in_a_forked_child(action):
    """Returns the result of an action in a forked child, which has neither the threads nor the locks of its parent."""
    reading, writing = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=lambda: writing.send(action()), daemon=True)
    child.start()
    writing.close()
    assert reading.poll(60), "the child waits for something of its parent"
    return reading.recv()


def standin():
    """Returns the stand-in for the CUDA driver, if it is what the library has loaded."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        library.standin_devices(2)
        library.standin_stream.restype = ctypes.c_uint64
    except (OSError, AttributeError):
        return None
    return library


def move(capsule, place, versioned=True):
    """Makes a DLPack capsule of the host say that it is elsewhere: place is (kind, device)."""
    at = capsule_pointer(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    (ctypes.c_int32 * 2).from_address(at + (40 if versioned else 8))[:] = place
    return capsule
