# SPDX-License-Identifier: MIT
"""Without the compiled handler the core is asked on the host: in transforms, on several devices; what is refused."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, PartitionSpec

import gradscaler
from gradscaler import Want
from gradscaler.jax import Report, Scaler, _host, _words

P = PartitionSpec


@pytest.fixture(autouse=True)
def without_the_handler(in_jnp):
    pass


def test_decisions_beside_a_gradient_are_constants():
    watch = Scaler("none", guard_norm=4.0)

    def loss(p, scaler):
        value = (p**2).sum()
        after = watch.update(Report.of_number(value))
        merged = Report.merge([scaler.measure(p, want=Want.NORM), scaler.measure(2 * p, want=Want.NORM)])
        both = scaler.update(merged).combine_decisions(after)
        return value * jnp.where(both.skip, 3.0, 1.0) + 0 * merged.norm, both.skip

    for p, factor in ([1.0, 1.0], 1.0), ([2.0, 3.0], 3.0):
        grads, skip = jax.jit(jax.grad(loss, has_aux=True))(jnp.array(p), Scaler("torch"))
        assert bool(skip) == (factor == 3.0)
        np.testing.assert_allclose(grads, factor * 2 * np.array(p))


def test_a_batch_of_steps_is_its_steps():
    scalers = [Scaler("torch").set_scale(2.0**k, good_steps=k) for k in range(5)]
    grads = jnp.stack([jnp.full(3, x) for x in (1.0, np.inf, 3.0, np.nan, 5.0)])
    batch = jax.tree.map(lambda *x: jnp.stack(x), *scalers)
    step = jax.jit(lambda scaler, grad: scaler.step(grad, max_norm=1.0, per_tensor=True))
    _, reports, after = jax.vmap(step)(batch, grads)
    for i, (scaler, grad) in enumerate(zip(scalers, grads, strict=True)):
        _, report, one = step(scaler, grad)
        assert np.array_equal(after.state[i], one.state) and np.array_equal(reports.words[i], report.words)
        assert np.array_equal(reports.words_per_tensor[i], report.words_per_tensor)
    twice = jax.vmap(jax.vmap(lambda scaler: scaler.update(True).loss_scale))
    assert twice(jax.tree.map(lambda a: a[None], batch)).shape == (1, 5)


@pytest.mark.parametrize("preset", ["openseq2seq_logmax", "fairseq", "guard", "torch"])
def test_a_step_of_gradients_has_the_state_of_the_host(preset):
    scaler, host = Scaler(preset), gradscaler.Scaler(preset)
    step = jax.jit(lambda scaler, grads: scaler.step(grads)[2])
    for size in 1.0, 2.0**40, np.inf, 0.5:
        grads = [np.full(4, size, np.float32), np.full(4, size / 2, np.float32)]  # of exact sums
        host.update(host.unscale(grads, [np.empty_like(grad) for grad in grads]))
        scaler = step(scaler, grads)
        assert np.asarray(scaler.state).tobytes() == bytes(host.state), size


@pytest.mark.parametrize("count", [_host._WORDS_OF_AN_OPERAND // 64 + 1, 1000])
def test_more_words_than_an_operand_may_have_are_split(count):
    reports = [gradscaler.Report(kind=1, measured=1, sum_squares=i % 7, elements=i) for i in range(count)]
    rows = jnp.stack([_words.of_struct(report) for report in reports])
    traced = jax.make_jaxpr(_host.merge)(rows)
    (call,) = [line for line in traced.jaxpr.eqns if "callback" in line.primitive.name]
    assert len(call.invars) > 1 and max(v.aval.size for v in call.invars) * 4 < 100_000
    assert np.asarray(jax.jit(_host.merge)(rows)).tobytes() == bytes(gradscaler.Report.merge(reports))


# A deadlock would end it by XLA's or the test's timeout.
ON_ONE_CORE = """
import os
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import gradscaler
from gradscaler.jax import Scaler, _call, _host, _xla
_xla.why_not, _call._warn_once = lambda platform: "a test", lambda platform, why: None
mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
grads = [jnp.full((4, 2), 2.0**16)] * 5
grads = jax.device_put(grads, NamedSharding(mesh, P("data")))
step = lambda scaler, grads: scaler.step(grads, want=1, axis_name=AXIS)
AXIS = None
plain = jax.jit(step)
by_part = jax.jit(jax.shard_map(
    lambda scaler, grads: scaler.step(grads, want=1, max_norm=1e9, axis_name="data"),
    mesh=mesh, in_specs=(P(), P("data")), out_specs=(P("data"), P(), P()), check_vma=False))
loop = jax.jit(jax.shard_map(
    lambda scaler: jax.lax.scan(lambda s, _: (s.update(s.measure(jnp.ones(3), axis_name="data")), None),
                                scaler, None, length=50)[0],
    mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))
many = jnp.tile(np.frombuffer(bytes(gradscaler.Report(kind=1, elements=1)), np.uint32), (1000, 1))  # 256 KB
def twice(rows):
    overflows = jax.lax.psum(_host.merge(rows[0])[:2], "data")  # 0, for which the others wait
    return _host.merge(rows[0].at[:, :2].add(overflows))[None]
merge = jax.jit(jax.shard_map(twice, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False))
many = jax.device_put(jnp.tile(many, (4, 1, 1)), NamedSharding(mesh, P("data")))
for way in plain, by_part:
    scaler = Scaler("torch")
    for _ in range(10):
        results, report, scaler = jax.block_until_ready(way(scaler, grads))
    assert float(report.norm) == np.sqrt(40).astype(np.float32) and scaler.good_steps == 10, (way, report)
assert jax.block_until_ready(loop(Scaler("torch"))).good_steps == 50
for _ in range(200):
    merged = jax.block_until_ready(merge(many))
assert gradscaler.Report.from_bytes(np.asarray(merged[3]).tobytes()).elements == 1000
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are not bound to a core here")
def test_four_devices_on_one_core_do_not_wait_for_each_other():
    found = subprocess.run(
        [sys.executable, "-c", ON_ONE_CORE],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert found.stdout == "done\n", found.stderr[-2000:]


# ---- what is refused ----


def test_a_platform_that_cannot_call_the_host_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "METAL")
    with pytest.raises(NotImplementedError, match="on 'METAL' there is no compiled handler, and JAX does not call the"):
        jax.jit(lambda scaler: scaler.update(False))(Scaler("torch"))


def test_a_shard_map_over_some_axes_is_refused_by_name():
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    options = {"mesh": mesh, "in_specs": P(), "out_specs": P(), "axis_names": {"data"}, "check_vma": False}
    with pytest.raises(NotImplementedError, match=r"over all axes of its mesh: \('data', 'model'\), not \('data',\)"):
        jax.jit(jax.shard_map(lambda scaler: scaler.update(False), **options))(Scaler("torch"))


def test_jax_does_not_save_a_program_that_calls_the_host():
    state = Scaler("torch").state
    with pytest.raises(NotImplementedError, match="host_callbacks"):
        export.export(jax.jit(lambda state: Scaler("torch")._with(state).update(False).state))(state).serialize()
