# SPDX-License-Identifier: MIT
"""A rank of jax.distributed on the CPU with gloo's collectives: one device in each process."""

import os

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from steps import GROWTH_INTERVAL, gradients, init_scale, take

from gradscaler import BadLoss, Want
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
    """Returns an array of all ranks; this rank has `part`."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, EACH), np.asarray(part)[None])


def everywhere(mesh, tree):
    """Arrays that all ranks have."""
    place = NamedSharding(mesh, ALL)
    return jax.tree.map(lambda a: jax.make_array_from_process_local_data(place, np.asarray(a)), tree)


def faults(rank, size, directory, fault, seconds, timeout):
    mesh = join(rank, size, directory, timeout)

    def compiled(scaler, grads, loss, factor):
        grads, options = jax.tree.map(lambda g: g[0], grads), {"want": Want.NORM, "per_tensor": True}
        grads, report = scaler.unscale(grads, loss=loss[0], axis_name="ranks", factor=factor[0], **options)
        scaler = scaler.update(report)
        return scaler, report.words, report.words_per_tensor[None], ~scaler.skip

    specs = {"in_specs": (ALL, EACH, EACH, EACH), "out_specs": (ALL, ALL, EACH, ALL)}
    compiled = jax.jit(jax.shard_map(compiled, mesh=mesh, check_vma=False, **specs))
    holds = {"bad_loss_rule": BadLoss.HOLD, "max_failed_backoffs": 10}
    scaler = Scaler("torch", init_scale=init_scale(rank, fault), growth_interval=GROWTH_INTERVAL, **holds)
    scaler = everywhere(mesh, scaler)

    def local(tree):
        return jax.tree.map(lambda a: a.addressable_data(0), tree)

    def step(number, fault):
        nonlocal scaler
        mine = local(scaler)
        weight, bias = (np.float32(values) * np.float32(mine.loss_scale) for values in gradients(number, rank))
        weight[2] = np.nan if fault == "nan" else weight[2]
        factor = np.array(mine.factor) * (fault != "fails")
        loss = np.float32(np.nan if fault == "loss" else 1)
        grads = {"weight": spread(mesh, weight), "bias": spread(mesh, bias)}
        scaler, *result = compiled(scaler, grads, spread(mesh, loss), spread(mesh, factor))
        words, each, stepped = map(np.asarray, local(result))
        report = Report(words, each[0], names=("['bias']", "['weight']")).to_host()
        after = local(scaler)
        assert repr(scaler) == repr(after)
        return bool(stepped), report.norm, float(after.loss_scale), report

    take(rank, directory, fault, seconds, step)
