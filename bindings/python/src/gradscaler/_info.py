# SPDX-License-Identifier: MIT
"""The library that runs, the instruction set that it uses, and whether there is CUDA."""

from __future__ import annotations

import ctypes

from . import _gradscaler as c
from . import _structs


class Info:
    """The library in use: `version`, `cpu` (instruction set in use), `cpu_available`, `cpu_note`.

    cuda: "available", or why CUDA is not, or the log of the driver's compiler if it refused the kernels
    """

    def __init__(self) -> None:
        raw = _structs.Info(struct_size=ctypes.sizeof(_structs.Info))
        c.gsc_info_get(raw)
        self.version = c.gsc_version_string()
        self.cpu = raw.cpu.decode()
        self.cpu_available = raw.cpu_available.decode().split()
        self.cpu_note = raw.cpu_note.decode()
        self.cuda = "available"
        try:
            c.gsc_cuda_start()
        except c.Error as error:
            self.cuda = str(error)
        self.cuda = c.gsc_cuda_log() or self.cuda

    def __repr__(self) -> str:
        return "Info(" + ", ".join(f"{name}={value!r}" for name, value in vars(self).items()) + ")"


def info() -> Info:
    """Returns the version, the instruction set in use, the available ones, and whether CUDA is available.

    This starts the CUDA driver: processes that are forked afterwards cannot use CUDA; spawned ones can.
    """
    return Info()
