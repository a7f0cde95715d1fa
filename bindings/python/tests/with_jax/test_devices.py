# SPDX-License-Identifier: MIT
"""Several devices: each has a part of the gradients, and all agree on overflow, norm and scale."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


def expected(parts, **options):
    return gradscaler.Scaler("torch").measure(list(parts), **options)


def sharded(mesh, function, out_specs):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(P(), P("data")), out_specs=out_specs, check_vma=False))


def test_shards_agree_on_overflow_and_norm(way, mesh):
    def step(scaler, part):
        grads, report, scaler = scaler.step([part[0]], want=Want.NORM, axis_name="data")
        return grads[0][None], jax.tree.map(lambda x: x[None], (report, scaler))

    step = sharded(mesh, step, P("data"))
    for bad in (False, True):
        parts = PARTS.copy()
        if bad:
            parts[1, 7] = np.inf
        grads, (reports, scalers) = step(Scaler("torch"), parts)
        report = expected(parts, want=Want.NORM)
        assert np.array_equal(reports.words[0], reports.words[1])
        assert np.array_equal(scalers.state[0], scalers.state[1])
        first = jax.tree.map(lambda x: x[0], reports).to_host()
        assert first.overflow == report.overflow == bad and first.elements == report.elements == 600
        assert first.norm == pytest.approx(report.norm, rel=1e-6)
        assert jax.tree.map(lambda x: x[0], scalers).loss_scale == (2.0**15 if bad else 2.0**16)
        np.testing.assert_array_equal(np.asarray(grads)[0], parts[0] / 2**16)


def test_the_handlers_reports_merge_in_rank_order_to_the_bits_of_the_host(mesh):
    def check(scaler, part):
        return scaler.measure([part[0]], want=Want.NORM, axis_name="data").words[None]

    words = sharded(mesh, check, P("data"))(Scaler("torch"), PARTS)
    host = gradscaler.Scaler("torch")
    reports = [host.measure([part], want=Want.NORM) for part in PARTS]
    for rank, report in enumerate(reports):
        core.gsc_report_set_rank(None, report, host.policy, host.state, rank, report)
    merged = gradscaler.Report.merge(reports, policy=host.policy)
    assert np.asarray(words[0]).tobytes() == np.asarray(words[1]).tobytes() == bytes(merged)


def drifted(mesh, change):
    """A step of two devices, the second with the state that `change` makes of its own."""

    def step(state, part):
        scaler = Scaler("torch")._with(state[0])
        scaler, report = (found := scaler.step([part[0]], axis_name="data"))[2], found[1]
        return scaler.state[None], report.words[None]

    states = np.stack([np.asarray(scaler.state) for scaler in (Scaler("torch"), change(Scaler("torch")))])
    call = jax.shard_map(step, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
    return [np.asarray(found) for found in jax.jit(call)(states, PARTS)]


def without_a_scale(scaler):
    return scaler._with(scaler.state.at[:8].set(0))


@pytest.mark.parametrize("change", [lambda scaler: scaler.set_scale(2.0**10), without_a_scale])
def test_devices_whose_states_drifted_apart_are_told_by_their_number(mesh, change):
    why = "that rank 1 met" if change is without_a_scale else "rank 1 has another policy or state than rank 0"
    with pytest.raises(Exception, match=why):  # of one of two kinds
        drifted(mesh, change)


def test_where_no_error_is_raised_their_report_and_state_tell_it(in_jnp, mesh):
    states, reports = drifted(mesh, lambda scaler: scaler.set_scale(2.0**16, good_steps=1))
    assert reports[0].tobytes() == reports[1].tobytes()
    report = gradscaler.Report.from_bytes(reports[0].tobytes())
    assert report.overflow and report.status == Status.ERROR_MISMATCH and report.failed_rank == 1
    for state in states:
        assert State.from_buffer_copy(state.tobytes()).status == Status.ERROR_REPORT


def test_a_state_that_only_counted_otherwise_is_no_drift(mesh):
    changed = drifted(mesh, lambda s: s._with(s.state.at[State.total_overflows.offset // 4].set(3)))
    assert gradscaler.Report.from_bytes(changed[1][0].tobytes()).status == 0


def test_a_factor_that_one_device_cannot_use_ends_the_step_of_all(mesh, in_jnp):
    def unscale(scaler, part, factor):
        return scaler.unscale([part[0]], axis_name="data", factor=factor[0])[1].words[None]

    factors = np.stack([np.asarray(Scaler("torch").factor), np.zeros(8, np.uint32)])
    call = jax.shard_map(unscale, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P("data"), check_vma=False)
    for words in np.asarray(jax.jit(call)(Scaler("torch"), PARTS, factors)):
        report = gradscaler.Report.from_bytes(words.tobytes())
        assert report.overflow and report.status == Status.ERROR_FACTOR and report.failed_rank == 1


def test_shards_are_clipped_by_the_norm_of_all(way, mesh):
    def clipped(scaler, part):
        grads, report = scaler.unscale([part[0]], max_norm=0.5, axis_name="data")
        return grads[0][None], report.norm[None]

    grads, norms = sharded(mesh, clipped, (P("data"), P("data")))(Scaler("static", init_scale=2.0), PARTS)
    np.testing.assert_allclose(norms, np.linalg.norm(PARTS.astype(np.float64)) / 2, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(grads, np.float64)), 0.5, rtol=1e-5)


def test_replicas_average_their_gradients_as_flaxs_do(way):
    from flax.training.dynamic_scale import DynamicScale

    def loss(params, x):
        return jnp.sum((params.astype(jnp.float16) * x) ** 2)

    params, xs = jnp.linspace(-1, 1, 20), jnp.asarray([0.25, 0.5], jnp.float16)

    @functools.partial(jax.pmap, axis_name="data", in_axes=(None, None, 0))
    def ours(scaler, params, x):
        return scaler.value_and_grad(loss, axis_name="data")(params, x)

    @functools.partial(jax.pmap, axis_name="data", in_axes=(None, None, 0))
    def flaxs(scale, params, x):
        return scale.value_and_grad(loss, axis_name="data")(params, x)

    a, b = ours(Scaler("flax"), params, xs), flaxs(DynamicScale(), params, xs)
    np.testing.assert_array_equal(a.grad, b.grad)
    np.testing.assert_array_equal(a.finite, b.finite)
    assert np.array_equal(a.scaler.state[0], a.scaler.state[1])
    bad = ours(Scaler("flax"), params, xs.at[1].set(jnp.inf))
    assert bad.finite.tolist() == [False, False]


def test_an_axis_of_vmap_averages_too(way):
    scaler, xs = Scaler("torch"), jnp.arange(8.0).reshape(4, 2)
    step = functools.partial(lambda p, x: scaler.value_and_grad(lambda p: p @ x, axis_name="batch")(p), jnp.ones(2))
    for batched in jax.vmap(step, axis_name="batch"), jax.jit(jax.vmap(step, axis_name="batch")):
        found = batched(xs)
        assert found.grad.tolist() == [[3, 4]] * 4 and found.finite.all()


def checked(mesh, function, *specs):
    """By shard_map's default, which follows what varies from device to device."""
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs[:-1], out_specs=specs[-1]))


def test_a_forgotten_axis_name_is_refused_by_shard_map(way, mesh):
    parts = jnp.asarray(PARTS).at[1, 7].set(jnp.nan)
    with pytest.raises(ValueError, match="out_specs"):
        checked(mesh, lambda s, g: s.step(g)[2].loss_scale, P(), P("data"), P())(Scaler("torch"), parts)
    agreed = checked(mesh, lambda s, g: s.step(g, axis_name="data")[2].loss_scale, P(), P("data"), P())
    assert agreed(Scaler("torch"), parts) == 2.0**15


def test_a_checked_shard_map_takes_every_call(way, mesh):
    scaler, parts, spread = Scaler("static", init_scale=2.0), jnp.asarray(PARTS), P("data")
    clip = checked(mesh, lambda s, g: s.unscale(g, max_norm=0.5, axis_name="data")[0], P(), spread, spread)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(clip(scaler, parts), np.float64)), 0.5, rtol=1e-5)
    summed = checked(mesh, lambda s, g: s.unscale_accumulate(g, g)[0], P(), spread, spread)
    np.testing.assert_array_equal(summed(scaler, parts), PARTS * np.float32(1.5))
    each = checked(mesh, lambda s, g: s.unscale([g], per_tensor=True)[1].words_per_tensor, P(), spread, spread)
    assert each(scaler, parts).shape == (2, 64)
    assert checked(mesh, lambda s: s.update(False).loss_scale, P(), P())(scaler) == 2.0


@pytest.mark.parametrize("named", ["data", ("data",)])
def test_replicas_average_in_a_checked_shard_map_too(way, mesh, named):
    def grads(scaler, params, x):
        return scaler.value_and_grad(lambda p, x: jnp.mean(x @ p), axis_name=named)(params, x).grad

    average = checked(mesh, grads, P(), P(), P("data"), P())
    assert average(Scaler("torch"), jnp.ones(2), jnp.arange(8.0).reshape(4, 2)).tolist() == [3, 4]
