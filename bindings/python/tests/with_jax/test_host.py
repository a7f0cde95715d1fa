# SPDX-License-Identifier: MIT
"""Without the compiled handler the core is asked on the host: in transforms, on several devices; what is refused."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, PartitionSpec
from support import run_python

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


def test_more_words_than_an_operand_may_have_are_split():
    reports = [gradscaler.Report(kind=1, measured=1, sum_squares=i % 7, elements=i) for i in range(300)]
    rows = jnp.stack([_words.of_struct(report) for report in reports])
    (call,) = [line for line in jax.make_jaxpr(_host.merge)(rows).jaxpr.eqns if "callback" in line.primitive.name]
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
spread = NamedSharding(mesh, P("data"))
def on_all(function, *specs):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs[:-1], out_specs=specs[-1], check_vma=False))
def by_part(scaler, grads):
    return scaler.step(grads, want=1, max_norm=1e9, axis_name="data")
def loop(scaler):
    step = lambda scaler, _: (scaler.update(scaler.measure(jnp.ones(3), axis_name="data")), None)
    return jax.lax.scan(step, scaler, None, length=50)[0]
def twice(rows):
    overflows = jax.lax.psum(_host.merge(rows[0])[:2], "data")  # 0, for which the others wait
    return _host.merge(rows[0].at[:, :2].add(overflows))[None]
grads = jax.device_put([jnp.full((4, 2), 2.0**16)] * 2, spread)
whole = jax.jit(lambda scaler, grads: scaler.step(grads, want=1))
for step in whole, on_all(by_part, P(), P("data"), (P("data"), P(), P())):
    scaler = Scaler("torch")
    for _ in range(10):
        _, report, scaler = jax.block_until_ready(step(scaler, grads))
    assert float(report.norm) == 4.0 and scaler.good_steps == 10, report
assert jax.block_until_ready(on_all(loop, P(), P())(Scaler("torch"))).good_steps == 50
many = np.tile(np.frombuffer(bytes(gradscaler.Report(kind=1, elements=1)), np.uint32), (4, 1000, 1))  # 4 of 256 KB
merge, many = on_all(twice, P("data"), P("data")), jax.device_put(many, spread)
for _ in range(50):
    merged = jax.block_until_ready(merge(many))
assert gradscaler.Report.from_bytes(np.asarray(merged[3]).tobytes()).elements == 1000
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are not bound to a core here")
def test_four_devices_on_one_core_do_not_wait_for_each_other():
    found = run_python("-c", ON_ONE_CORE, JAX_PLATFORMS="cpu")
    assert found.stdout == "done\n", found.stderr[-2000:]


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
