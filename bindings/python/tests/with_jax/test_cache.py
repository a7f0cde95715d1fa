# SPDX-License-Identifier: MIT
"""JAX's persistent compilation cache: another process finds the programs that partition gradients over devices."""

import gc
import json
import os

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import run_python

from gradscaler.jax import Scaler

PROGRAM = """
import json, sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from gradscaler.jax import Scaler, all_finite

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
scaler, results = Scaler("torch", init_scale=8.0), []
for spec in PartitionSpec("data"), PartitionSpec():
    grads = {"w": jax.device_put(np.full((8, 4), 16, np.float32), NamedSharding(mesh, spec))}
    for options in {}, {"clip_value": 0.5}, {"clip_value": 1.0}, {"max_norm": 1.0}:  # of one signature
        step = jax.jit(lambda scaler, grads: scaler.step(grads, **options))
        (found, report, after) = step(scaler, grads)
        results.append([np.asarray(found["w"])[0, 0].item(), float(after.loss_scale), bool(report.overflow)])
    results.append(bool(jax.jit(all_finite)(grads)))
    results.append(float(jax.jit(lambda scaler, report: scaler.update(report))(scaler, report).loss_scale))
print(json.dumps([results, events.count("cache_hits"), events.count("cache_misses")]))
"""


def test_the_second_process_finds_all_programs_of_the_first(tmp_path):
    entries, found = [], []
    for _ in range(3):
        done = run_python("-c", PROGRAM, str(tmp_path))
        found.append(json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr)
        entries.append(sorted(os.listdir(tmp_path)))
    values = [2.0, 0.5, 1.0, pytest.approx(2 / np.sqrt(128), rel=1e-5)]
    assert found[0][0] == 2 * [*([value, 8.0, False] for value in values), True, 8.0]
    assert found[1] == found[2] and found[1][0] == found[0][0]
    assert found[1][2] == 0 < found[0][2] and found[1][1] > 0
    assert entries[0] == entries[1] == entries[2] != []


def test_a_program_is_compiled_although_a_later_one_of_its_name_is_gone():
    for devices in jax.devices(), jax.devices()[:2]:
        mesh = jax.sharding.Mesh(devices, "data", axis_types=(AxisType.Auto,))
        grads = {"w": jax.device_put(np.full((8, 4), 16, np.float32), NamedSharding(mesh, PartitionSpec("data")))}
        scaler = Scaler("torch", init_scale=8.0)
        first, second = (jax.jit(lambda s, g, k=k: (s.step(g), k)).lower(scaler, grads) for k in range(2))
        del second
        gc.collect()
        (found, _, _), _ = first.compile()(scaler, grads)
        assert found["w"].sharding.device_set == set(devices) and np.asarray(found["w"])[0, 0] == 2
