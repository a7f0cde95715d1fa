# SPDX-License-Identifier: MIT
"""Processes of rank programs, which have to end by themselves."""

import contextlib
import functools
import multiprocessing
import os
import signal
import subprocess
import time

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch.distributed", "torch._dynamo", "gradscaler.torch", "jax", "gradscaler.jax"])


@functools.cache
def imported():
    """The server of forks has imported its modules, which is not the time of any test."""
    process = _context.Process(target=int)
    process.start()
    process.join()


def processes(function, size, *args, limit=300):
    """Runs function(rank, size, *args) in `size` processes: their exit statuses, None of one that had to be killed."""
    imported()
    started = [_context.Process(target=function, args=(rank, size, *args)) for rank in range(size)]
    for process in started:
        process.start()
    end = time.monotonic() + limit
    for process in started:
        process.join(max(0, end - time.monotonic()))
    found = [process.exitcode for process in started]
    for process in started:
        process.kill()
    return found


def command(words, limit=300, **variables):
    """Runs a command that starts ranks of its own: its exit status, None if it had to be killed, and its output."""
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | variables,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
