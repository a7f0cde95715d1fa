# SPDX-License-Identifier: MIT
"""The library that runs, the instruction set that it uses, and whether there is CUDA."""

from __future__ import annotations

import ctypes

from . import _gradscaler as c
from . import _structs


class Info:
    """What runs here: `version`, `cpu` (instruction set in use), `cpu_available`, `cpu_note`.

    cuda: "available", or why it is not, or the CUDA log: what the driver's compiler said when it refused the kernels
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
    """What runs here: the instruction set in use, those available, and whether there is CUDA.

    To find out starts the CUDA driver: a process that is forked afterwards has no CUDA, one that is spawned has.
    """
    return Info()
