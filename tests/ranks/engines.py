# SPDX-License-Identifier: MIT
"""The engines whose ranks gather reports: how their programs are started, and what they say of a rank that is gone.

An engine has `faults(directory, fault, seconds, timeout)`: the exit statuses of its processes, or that of what started
them, None of one that hung; and `merge(files, directory)`: see with_torch.reports. `gone` and `too_late` are what it
says where a rank is dead or later than its time-out; None where it ends the other ranks, or has no time-out.
"""

import pathlib
import socket
import sys

import start
import with_jax
import with_torch
from steps import BAD_RANK

CASES_FOR = 5  # ranks at most
HERE = pathlib.Path(__file__).parent
BUILD = HERE.parents[1] / "build"
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-np"]


_reserved = []


def free_port():
    """A port that only gRPC, which JAX's coordinator uses, can bind: like it, this process binds with SO_REUSEPORT."""
    _reserved.append(socket.socket())
    _reserved[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _reserved[-1].bind(("localhost", 0))
    return _reserved[-1].getsockname()[1]


class Torch:
    ranks = 4
    gone = "Connection closed by peer|Connection reset by peer"
    too_late = "Timed out waiting"

    def faults(self, directory, fault, seconds, timeout):
        return start.processes(with_torch.faults, self.ranks, directory, fault, seconds, timeout)

    def merge(self, files, directory):
        assert start.processes(with_torch.reports, CASES_FOR, directory, files) == [0] * CASES_FOR


class Jax:
    ranks = 2
    gone = "Connection closed by peer|Connection reset by peer"
    too_late = "Timed out waiting"

    def faults(self, directory, fault, seconds, timeout):
        return start.processes(with_jax.faults, self.ranks, directory, free_port(), fault, seconds, timeout)

    def merge(self, files, directory):
        assert start.processes(with_jax.reports, CASES_FOR, directory, free_port(), files) == [0] * CASES_FOR


class Commands:
    """Ranks that a command starts; `words(size)` are those before the arguments of the rank program."""

    ranks = 4
    gone = too_late = None

    def faults(self, directory, fault, seconds, timeout):
        words = [*self.words(self.ranks), "faults", str(directory), fault, str(seconds)]
        return [start.command(words, RANKS_TIMEOUT=str(timeout))[0]]

    def merge(self, files, directory):
        for ranks, path in files.items():
            status, output = start.command([*self.words(ranks), "reports", str(path), str(directory)])
            assert status == 0, output


class Mpi4py(Commands):
    def words(self, size):
        return [*MPIRUN, str(size), sys.executable, str(HERE / "with_mpi.py")]


class Mpi(Commands):
    def words(self, size):
        return [*MPIRUN, str(size), str(BUILD / "over_mpi")]


class Nodes(Commands):
    gone = too_late = f"rank {BAD_RANK} met"  # :erpc tells the node that asks, which sends a report in its name

    def words(self, size):
        return ["elixir", "-pa", str(BUILD / "elixir/lib/gradscaler/ebin"), str(HERE / "over_nodes.exs"), str(size)]


_KINDS = {"torch": Torch, "jax": Jax, "mpi4py": Mpi4py, "mpi": Mpi, "nodes": Nodes}
ALL = list(_KINDS)
IN_CI = ["torch", "jax", "mpi", "nodes"]  # mpi4py is of the same MPI as C


def of(name):
    return _KINDS[name]()
