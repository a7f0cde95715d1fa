# SPDX-License-Identifier: MIT
"""Processes of rank programs, which have to end by themselves."""

import contextlib
import functools
import multiprocessing
import os
import signal
import socket
import subprocess
import time

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch.distributed", "torch._dynamo", "gradscaler.torch", "jax", "gradscaler.jax"])
_reserved = []


@functools.cache
def imported():
    """The server of forks has imported its modules, which is not the time of any test."""
    process = _context.Process(target=int)
    process.start()
    process.join()


def free_port():
    """A port that only gRPC, which JAX's coordinator uses, can bind: like it, this process binds with SO_REUSEPORT."""
    _reserved.append(socket.socket())
    _reserved[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _reserved[-1].bind(("localhost", 0))
    return _reserved[-1].getsockname()[1]


def processes(function, size, directory, *args, limit=300):
    """Runs function(rank, size, directory, *args) in `size` processes; directory/port has a free port.

    Returns their exit statuses, None for one that had to be killed.
    """
    imported()
    (directory / "port").write_text(str(free_port()))
    started = [_context.Process(target=function, args=(rank, size, directory, *args)) for rank in range(size)]
    for process in started:
        process.start()
    end = time.monotonic() + limit
    for process in started:
        process.join(max(0, end - time.monotonic()))
    statuses = [process.exitcode for process in started]
    for process in started:
        process.kill()
    return statuses


def command(words, limit=300, **variables):
    """Runs a command that starts ranks of its own: its exit status, None if it had to be killed, and its output."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(words, env=os.environ | variables, **options) as process:
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
