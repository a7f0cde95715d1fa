# SPDX-License-Identifier: MIT
"""A rank of jax.distributed on the CPU, whose collectives are those of gloo: one device in each process."""

import os
import signal
import time

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from steps import BAD_RANK, BAD_STEP, GROWTH_INTERVAL, INIT_SCALE, STEPS, Log, gradients

from gradscaler import Want
from gradscaler.jax import Report, Scaler

ALL, EACH = PartitionSpec(), PartitionSpec("ranks")


def join(rank, size, directory, timeout=60):
    """A mesh of all ranks."""
    port = (directory / "port").read_text()
    os.environ["XLA_FLAGS"] = f"--xla_cpu_collective_timeout_seconds={timeout:.0f}"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", num_processes=size, process_id=rank)
    return Mesh(np.array(jax.devices()), ("ranks",))


def spread(mesh, part):
    """An array of all ranks of which this rank has `part`."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, EACH), np.asarray(part)[None])


def everywhere(mesh, tree):
    """Arrays that all ranks have."""
    place = NamedSharding(mesh, ALL)
    return jax.tree.map(lambda a: jax.make_array_from_process_local_data(place, np.asarray(a)), tree)


def faults(rank, size, directory, fault, seconds, timeout):
    mesh = join(rank, size, directory, timeout)

    def step(scaler, grads, factor):
        grads = jax.tree.map(lambda g: g[0], grads)
        grads, report = scaler.unscale(grads, want=Want.NORM, per_tensor=True, axis_name="ranks", factor=factor[0])
        each = report.words_per_tensor
        return scaler.update(report), report.words, each[None], ~report.overflow

    step = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=(ALL, EACH, EACH), out_specs=(ALL, ALL, EACH, ALL), check_vma=False)
    )
    scale = INIT_SCALE / 2 if fault == "drift" and rank == BAD_RANK else INIT_SCALE
    scaler = everywhere(mesh, Scaler("torch", init_scale=scale, growth_interval=GROWTH_INTERVAL))
    log = Log(directory, rank)
    for number in range(STEPS):
        mine = jax.tree.map(lambda a: a.addressable_data(0), scaler)
        weight, bias = (np.float32(values) * np.float32(mine.loss_scale) for values in gradients(number, rank))
        factor = np.array(mine.factor)
        if number == BAD_STEP and rank == BAD_RANK:
            time.sleep(seconds)
            if fault == "nan":
                weight[2] = np.nan
            elif fault == "fails":
                factor[:] = 0
            elif fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
        parts = spread(mesh, weight), spread(mesh, bias)
        try:
            scaler, *result = step(scaler, {"weight": parts[0], "bias": parts[1]}, spread(mesh, factor))
            words, each, stepped = (np.asarray(a.addressable_data(0)) for a in result)
            report = Report(words, each[0], names=("['bias']", "['weight']")).to_host()
        except Exception as error:
            log.refused(number, error)
        after = jax.tree.map(lambda a: a.addressable_data(0), scaler)
        assert repr(scaler) == repr(after)
        log.stepped(number, bool(stepped), report.norm, float(after.loss_scale), report)
