# SPDX-License-Identifier: MIT
"""docs/ranks.md: its Python runs on two ranks, and its time-outs are true."""

import inspect
import pathlib
import re
import sys

import engines
import jax
import start
import torch

ROOT = pathlib.Path(__file__).parents[2]
GUIDE = (ROOT / "docs/ranks.md").read_text()
BLOCKS = re.findall(r"^```(\w+(?: \w+)?)\n(.*?)^```", GUIDE, re.M | re.S)


def codes(kind):
    found = [code for name, code in BLOCKS if name == kind]
    assert found
    return found


def run_jax(rank, size, directory):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    names = {"coordinator": f"localhost:{(directory / 'port').read_text()}", "ranks": size, "rank": rank}
    for code in codes("python jax"):
        exec(compile(code, "docs/ranks.md", "exec"), names)
    assert not names["overflow"].addressable_data(0) and float(names["scaler"].state.addressable_data(0)[0]) >= 0


def test_the_examples_for_jax_run_in_two_processes(tmp_path):
    assert start.processes(run_jax, 2, tmp_path) == [0, 0]


IN_GROUPS = """
assert not step_in_groups(scaler, grads).overflow
try:
    step_in_groups(Scaler("torch", init_scale=4.0 if comm.rank == 3 else 2.0), grads)
except Exception as error:
    print(f"rank {comm.rank} stops: {error}")
"""


def test_the_examples_for_mpi_run_on_four_ranks_and_a_group_that_is_refused_stops_the_others(tmp_path):
    program = tmp_path / "example.py"
    code = "\n".join(codes("python mpi"))
    assert "size = 64 " in code
    program.write_text(code.replace("size = 64 ", "size = 2 ") + IN_GROUPS)
    status, output = start.command([*engines.MPIRUN, "4", sys.executable, "-m", "mpi4py", str(program)])
    assert status == 0, output
    assert output.count("rank 3 has another policy or state than rank 2") == 2, output
    assert all(re.search(f"rank {rank} stops: .*rank 2", output) for rank in range(4)), output


def test_the_time_outs_are_those_of_the_engines():
    half_an_hour = torch.distributed.constants.default_pg_timeout.total_seconds()
    heartbeat = inspect.signature(jax.distributed.initialize).parameters["heartbeat_timeout_seconds"].default
    assert re.search(rf"\| torch, gloo \| {half_an_hour / 60:.0f} minutes ", GUIDE)
    assert f"| {heartbeat} s without a heartbeat" in GUIDE
