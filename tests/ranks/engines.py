# SPDX-License-Identifier: MIT
"""The engines of ranks that gather reports: how their programs are started, and what they say of a rank that is gone.

An engine's `faults(directory, fault, seconds, timeout)` returns the exit statuses of its processes, or of the command
that starts them, None for one that hung. `gone` and `too_late` are its messages for a rank that is dead or later than
its time-out; None if it ends the other ranks, or has no time-out. `takes_loss`: its program gives the loss.
"""

import pathlib

import start
import with_jax
import with_torch
from steps import BAD_RANK

HERE = pathlib.Path(__file__).parent
BUILD = HERE.parents[1] / "build"
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-np"]


class Torch:
    program, ranks, takes_loss = with_torch, 4, False
    gone = "Connection closed by peer|Connection reset by peer"
    too_late = "Timed out waiting"

    def faults(self, directory, fault, seconds, timeout):
        return start.processes(self.program.faults, self.ranks, directory, fault, seconds, timeout)


class Jax(Torch):
    program, ranks, takes_loss = with_jax, 2, True


class Mpi:
    ranks, takes_loss = 4, False
    gone = too_late = None

    def words(self, size):
        return [*MPIRUN, str(size), str(BUILD / "over_mpi")]

    def faults(self, directory, fault, seconds, timeout):
        words = [*self.words(self.ranks), str(directory), fault, str(seconds)]
        return [start.command(words, RANKS_TIMEOUT=str(timeout))[0]]


class Nodes(Mpi):
    gone = too_late = f"rank {BAD_RANK} met"  # :erpc tells the node that asks, which sends a report in its name

    def words(self, size):
        return ["elixir", "-pa", str(BUILD / "elixir/lib/gradscaler/ebin"), str(HERE / "over_nodes.exs"), str(size)]


ALL = [Torch(), Jax(), Mpi(), Nodes()]
