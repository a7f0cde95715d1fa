# SPDX-License-Identifier: MIT
"""The helpers of several test files."""

import ctypes
import os
import subprocess
import sys

import numpy as np

from gradscaler import Scaler

F32 = np.float32
REFUSALS = (TypeError, ValueError, KeyError, OverflowError)
CUDA = 2  # DLPack's number
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def scaler_of(scale=8.0):
    """Returns a scaler with a scale that stays."""
    return Scaler("static", init_scale=scale)


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


def run_python(*arguments, **environment):
    """Runs Python with these arguments and variables in a process of its own."""
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, text=True, capture_output=True, timeout=300
    )


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
