# SPDX-License-Identifier: MIT
"""A rank of jax.distributed on the CPU, whose collectives are those of gloo: one device in each process."""

import functools
import hashlib
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from problem import ROUNDS, SAMPLES, batch, start
from steps import BAD_RANK, BAD_STEP, GROWTH_INTERVAL, INIT_SCALE, STEPS, Log, cases, gradients

import gradscaler
from gradscaler import Want
from gradscaler.jax import Report, Scaler, _call, _xla

ALL, EACH = PartitionSpec(), PartitionSpec("ranks")
RANKS, RULES = 2, {"init_scale": 2.0**22, "growth_interval": 5}  # of the training


def join(rank, size, port, timeout=60):
    """A mesh of all ranks."""
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


def faults(rank, size, directory, port, fault, seconds, timeout):
    mesh = join(rank, size, port, timeout)

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
            if fault == "nan":
                weight[2] = np.nan
            elif fault == "fails":
                factor[:] = 0
            elif fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "late":
                time.sleep(seconds)
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


def reports(rank, size, directory, port, files):
    """Merges cases of as many ranks as each file has, which ranks 0, 1, ... gather."""
    join(rank, size, port)
    for ranks, path in files.items():
        if rank < ranks:
            mesh = Mesh(np.array(jax.devices()[:ranks]), ("ranks",))
            gather = jax.shard_map(gathered, mesh=mesh, in_specs=EACH, out_specs=ALL, check_vma=False)
            mine = np.stack([np.frombuffer(case[rank], np.uint32) for case in cases(path, ranks)])
            merged = jax.jit(gather)(spread(mesh, mine))
            with open(f"{directory}/{ranks}-{rank}", "wb") as out:
                out.write(np.asarray(merged.addressable_data(0)).tobytes())


def gathered(rows):
    """As the scaler gathers and merges; all cases at once."""
    return jax.vmap(functools.partial(Scaler("torch")._merged, "ranks"))(rows[0])


@jax.jit
def shard_gradients(scaler, parameters, images, targets):
    """Those of a shard of the batch, float16, as one row."""

    def loss(halves):
        outputs = jnp.tanh(images @ halves[0] + halves[1]) @ halves[2] + halves[3]
        return scaler.scale(jnp.square(outputs.astype(jnp.float32) - targets).sum() / SAMPLES)

    halves = [p.astype(jnp.float16) for p in parameters]
    return jnp.concatenate([g.ravel() for g in jax.grad(loss)(halves)])


def split(row, like):
    """A row of numbers as the parameters that it was made of."""
    ends = np.cumsum([p.size for p in like])
    return [part.reshape(p.shape) for part, p in zip(np.split(row, ends[:-1]), like, strict=True)]


def shard(arrays, number):
    images, targets = (np.split(array, RANKS)[number] for array in arrays)
    return images.astype(np.float16), targets


def line(norm, scaler, skipped, parameters):
    digest = hashlib.sha256(b"".join(p.tobytes() for p in parameters)).hexdigest()
    return f"{float(norm).hex()} {float(scaler.loss_scale)} {bool(skipped)} {digest}\n"


def train(rank, size, directory, port, has_handler=True):
    """One of two ranks: it has half of the batch and, of the sums of the gradients, half to unscale and clip."""
    mesh = join(rank, size, port)
    if not has_handler:
        _xla.why_not, _call._warn_once = lambda platform: "a test", lambda platform, why: None

    def step(scaler, row):
        own = jax.lax.psum_scatter(row[0].astype(jnp.float32), "ranks", tiled=True)
        own, report = scaler.unscale(own, max_norm=1.0, want=Want.NORM, axis_name="ranks")
        return scaler.update(report), jax.lax.all_gather(own, "ranks", tiled=True), report.words

    step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(ALL, EACH), out_specs=ALL, check_vma=False))
    scaler, parameters, arrays = Scaler("torch", **RULES), [p.astype(np.float32) for p in start()], batch()
    with open(f"{directory}/{rank}", "w") as log:
        for _ in range(ROUNDS):
            row = shard_gradients(scaler, parameters, *shard(arrays, rank))
            found = step(everywhere(mesh, scaler), spread(mesh, row))
            scaler, row, words = jax.tree.map(lambda a: np.asarray(a.addressable_data(0)), found)
            report = Report(words).to_host()
            if not report.overflow:
                parameters = [p - g for p, g in zip(parameters, split(row, parameters), strict=True)]
            log.write(line(report.norm, scaler, report.overflow, parameters))


def train_alone():
    """The same in one process, with NumPy and gradscaler.Scaler: lines as those of a rank."""
    scaler, parameters, arrays = gradscaler.Scaler("torch", **RULES), [p.astype(np.float32) for p in start()], batch()
    for _ in range(ROUNDS):
        traced = Scaler.from_host(scaler)
        rows = [shard_gradients(traced, parameters, *shard(arrays, rank)) for rank in range(RANKS)]
        with np.errstate(invalid="ignore"):  # Inf - Inf, before the scale is small enough
            sums = sum(np.asarray(row, np.float32) for row in rows)
        parts = np.split(sums, RANKS)
        report = scaler.measure(parts, want=Want.NORM)
        factor = scaler.factor if report.overflow else scaler.clip_factor(report, 1.0)
        parts = scaler.unscale(parts, factor=factor).grads
        scaler.update(report)
        if not report.overflow:
            row = np.concatenate(parts)
            parameters = [p - g for p, g in zip(parameters, split(row, parameters), strict=True)]
        yield line(report.norm, scaler, report.overflow, parameters)
