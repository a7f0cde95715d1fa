# SPDX-License-Identifier: MIT
"""Several devices: each has a part of the gradients, and all agree on overflow, norm and scale."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.training.dynamic_scale import DynamicScale
from jax.sharding import Mesh, PartitionSpec

import gradscaler
from gradscaler import Want
from gradscaler import _gradscaler as core
from gradscaler._structs import State, Status
from gradscaler.jax import Scaler

P = PartitionSpec
PARTS = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:2]), ("data",))


def sharded(mesh, function, *specs, check=False):
    """Compiles a function of the devices; `check`: shard_map follows what varies from device to device, its default."""
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs[:-1], out_specs=specs[-1], check_vma=check))


def test_shards_agree_on_overflow_and_norm(way, mesh):
    def step(scaler, part):
        grads, report, scaler = scaler.step([part[0]], want=Want.NORM, axis_name="data")
        return grads[0][None], report.words[None], scaler.state[None]

    step = sharded(mesh, step, P(), P("data"), P("data"))
    for bad in (False, True):
        parts = PARTS.copy()
        if bad:
            parts[1, 7] = np.inf
        grads, words, states = step(Scaler("torch"), parts)
        expected = gradscaler.Scaler("torch").measure(list(parts), want=Want.NORM)
        assert np.array_equal(words[0], words[1]) and np.array_equal(states[0], states[1])
        report = gradscaler.Report.from_bytes(np.asarray(words[0]).tobytes())
        assert report.overflow == expected.overflow == bad and report.elements == expected.elements == 600
        assert report.norm == pytest.approx(expected.norm, rel=1e-6)
        assert Scaler("torch")._with(states[0]).loss_scale == (2.0**15 if bad else 2.0**16)
        np.testing.assert_array_equal(grads[0], parts[0] / 2**16)


def test_the_handlers_reports_merge_in_rank_order_to_the_bits_of_the_host(mesh):
    def check(scaler, part):
        return scaler.measure([part[0]], want=Want.NORM, axis_name="data").words[None]

    words = sharded(mesh, check, P(), P("data"), P("data"))(Scaler("torch"), PARTS)
    host = gradscaler.Scaler("torch")
    reports = [host.measure([part], want=Want.NORM) for part in PARTS]
    for rank, report in enumerate(reports):
        core.gsc_report_set_rank(None, report, host.policy, host.state, rank, report)
    merged = gradscaler.Report.merge(reports, policy=host.policy)
    assert np.asarray(words[0]).tobytes() == np.asarray(words[1]).tobytes() == bytes(merged)


def drifted(mesh, change):
    """Makes a step of two devices, the second with the state that `change` makes of its own: (states, reports)."""

    def step(state, part):
        _, report, scaler = Scaler("torch")._with(state[0]).step([part[0]], axis_name="data")
        return scaler.state[None], report.words[None]

    states = np.stack([scaler.state for scaler in (Scaler("torch"), change(Scaler("torch")))])
    states, reports = map(np.asarray, sharded(mesh, step, P("data"), P("data"), P("data"))(states, PARTS))
    assert reports[0].tobytes() == reports[1].tobytes()
    states = [State.from_buffer_copy(state.tobytes()) for state in states]
    return states, gradscaler.Report.from_bytes(reports[0].tobytes())


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda scaler: scaler.set_scale(2.0**10), "rank 1 has another policy or state than rank 0"),
        (lambda scaler: scaler._with(scaler.state.at[:8].set(0)), "that rank 1 met"),
    ],
)
def test_devices_with_states_that_drifted_apart_are_told_by_their_number(mesh, change, why):
    with pytest.raises(Exception, match=why):  # of one of two kinds
        drifted(mesh, change)


def test_without_the_handler_report_and_state_tell_of_a_drift(in_jnp, mesh):
    states, report = drifted(mesh, lambda scaler: scaler.set_scale(2.0**16, good_steps=1))
    assert report.overflow and report.status == Status.ERROR_MISMATCH and report.failed_rank == 1
    assert [state.status for state in states] == [Status.ERROR_REPORT] * 2


def test_a_state_that_only_counted_otherwise_is_no_drift(mesh):
    _, report = drifted(mesh, lambda s: s._with(s.state.at[State.total_overflows.offset // 4].set(3)))
    assert report.status == 0


def test_a_factor_that_one_device_cannot_use_ends_the_step_of_all(mesh, in_jnp):
    def unscale(scaler, part, factor):
        return scaler.unscale([part[0]], axis_name="data", factor=factor[0])[1].words[None]

    factors = np.stack([Scaler("torch").factor, np.zeros(8, np.uint32)])
    unscale = sharded(mesh, unscale, P(), P("data"), P("data"), P("data"))
    for words in np.asarray(unscale(Scaler("torch"), PARTS, factors)):
        report = gradscaler.Report.from_bytes(words.tobytes())
        assert report.overflow and report.status == Status.ERROR_FACTOR and report.failed_rank == 1


def test_replicas_average_their_gradients_as_flaxs_do():
    params, xs = jnp.linspace(-1, 1, 20), jnp.asarray([0.25, 0.5], jnp.float16)

    @functools.partial(jax.pmap, axis_name="data", in_axes=(None, None, 0))
    def step(scaler, params, x):
        return scaler.value_and_grad(lambda p: jnp.sum((p.astype(jnp.float16) * x) ** 2), axis_name="data")(params)

    ours, flaxs = step(Scaler("flax"), params, xs), step(DynamicScale(), params, xs)
    np.testing.assert_array_equal(ours.grad, flaxs.grad)
    np.testing.assert_array_equal(ours.finite, flaxs.finite)
    assert np.array_equal(ours.scaler.state[0], ours.scaler.state[1])
    assert step(Scaler("flax"), params, xs.at[1].set(jnp.inf)).finite.tolist() == [False, False]


def test_replicas_average_over_an_axis_of_vmap_and_in_a_checked_shard_map(way, mesh):
    def grads(name, scaler, params, x):
        return scaler.value_and_grad(lambda p, x: jnp.mean(x @ p), axis_name=name)(params, x).grad

    operands = Scaler("torch"), jnp.ones(2), jnp.arange(8.0).reshape(4, 2)
    batched = jax.vmap(functools.partial(grads, "data"), (None, None, 0), axis_name="data")
    for function in batched, jax.jit(batched):
        assert function(*operands).tolist() == [[3, 4]] * 4
    for name in "data", ("data",):
        average = sharded(mesh, functools.partial(grads, name), P(), P(), P("data"), P(), check=True)
        assert average(*operands).tolist() == [3, 4]


def test_a_checked_shard_map_takes_every_call_and_refuses_a_forgotten_axis_name(way, mesh):
    scaler, parts = Scaler("static", init_scale=2.0), jnp.asarray(PARTS)

    def run(function, out_specs):
        return sharded(mesh, function, P(), P("data"), out_specs, check=True)(scaler, parts)

    def clip(scaler, part):
        grads, report = scaler.unscale(part, max_norm=0.5, axis_name="data")
        return grads, report.norm

    clipped, norm = run(clip, (P("data"), P()))
    np.testing.assert_allclose(norm, np.linalg.norm(PARTS.astype(np.float64)) / 2, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(clipped, np.float64)), 0.5, rtol=1e-5)
    np.testing.assert_array_equal(run(lambda s, g: s.unscale_accumulate(g, g)[0], P("data")), PARTS * np.float32(1.5))
    each = run(lambda s, g: s.unscale([g], per_tensor=True)[1].words_per_tensor, P("data"))
    assert each.shape == (2, 64)
    assert sharded(mesh, lambda s: s.update(False).loss_scale, P(), P(), check=True)(scaler) == 2.0
    assert run(lambda s, g: s.step(g, axis_name="data")[2].loss_scale, P()) == 2.0
    with pytest.raises(ValueError, match="out_specs"):
        run(lambda s, g: s.step(g)[2].loss_scale, P())
