# SPDX-License-Identifier: MIT
"""Several devices: gradients that jit spreads, as FSDP has them, stay there; parts in shard_map and pmap agree."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.training.dynamic_scale import DynamicScale
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from saved_by_0_9 import SAVED as SAVED_BY_0_9

import gradscaler
from gradscaler import Want
from gradscaler import _gradscaler as core
from gradscaler._structs import State, Status
from gradscaler.jax import Scaler, all_finite

P = PartitionSpec
SPECS = {"bias": P(), "columns": P(None, "model"), "rows": P("data"), "whole": P(("data", "model"), None)}
SHAPES = {"bias": (3,), "columns": (5, 64), "rows": (256, 16), "whole": (512, 33)}
RNG = np.random.default_rng(0)
GRADS = {name: (1024 * RNG.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}
TRUE = {name: grad / 1024 for name, grad in GRADS.items()}
WANT = Want.NORM | Want.AMAX


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def mesh(request):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(request.param,) * 2)
    with jax.set_mesh(mesh):
        yield mesh


on_auto_axes = pytest.mark.parametrize("mesh", [AxisType.Auto], indirect=True, ids=["auto"])


def spread(mesh, grads):
    return {name: jax.device_put(grad, NamedSharding(mesh, SPECS[name])) for name, grad in grads.items()}


def scaler(preset="static"):
    return Scaler(preset, init_scale=1024.0)


def assert_placed(array, other):
    assert array.sharding.is_equivalent_to(other.sharding, other.ndim)


def assert_same(ours, theirs):
    ours = ours.to_host()
    for name in ("overflow", "nan_count", "inf_count", "elements", "amax"):
        assert getattr(ours, name) == getattr(theirs, name), name
    np.testing.assert_allclose(ours.norm, theirs.norm, 1e-6)  # summed in another order


def of_host(grads):
    host = gradscaler.Scaler("static", init_scale=1024.0)
    return host.measure(list(grads.values()), want=WANT, per_tensor=True)


def moves_reports_only(compiled):
    """Returns whether no result of a collective is larger than the reports of all devices."""
    results = re.findall(r"= (.*?) (?:all-\w+|collective-\w+|reduce-scatter)\(", compiled.as_text())
    shapes = re.findall(r"[a-z](\d*)\[([\d,]*)\]", " ".join(results))
    sizes = [int(bits or 8) // 8 * int(np.prod([int(n) for n in dims.split(",") if n])) for bits, dims in shapes]
    return 0 < max(sizes) <= 4 * len(bytes(gradscaler.Report()))


@on_auto_axes
@pytest.mark.parametrize("options", [{}, {"max_norm": 0.5, "clip_value": 0.004}], ids=["plain", "clipped"])
def test_gradients_stay_where_they_are(way, mesh, options):
    grads = spread(mesh, GRADS)
    step = jax.jit(lambda scaler, grads: scaler.step(grads, want=WANT, **options)).lower(scaler(), grads).compile()
    results, report, after = step(scaler(), grads)
    norm = np.sqrt(sum((grad.astype(np.float64) ** 2).sum() for grad in TRUE.values()))
    for name, result in results.items():
        expected = (TRUE[name] * 0.5 / norm).clip(-0.004, 0.004) if options else TRUE[name]
        np.testing.assert_allclose(result, expected, 1e-5)
        assert_placed(result, grads[name])
    assert_same(report, of_host(GRADS))
    assert after.to_host().state.steps_since_change == 1
    assert moves_reports_only(step)


def test_an_element_that_is_not_finite_is_counted_once(way, mesh):
    step = jax.jit(lambda scaler, grads: scaler.step(grads, want=WANT, per_tensor=True))
    for name in SPECS:
        poisoned = {key: grad.copy() for key, grad in GRADS.items()}
        poisoned[name].flat[-1] = np.nan
        poisoned[name].flat[-2] = -np.inf
        grads = spread(mesh, poisoned)
        results, report, after = step(scaler("torch"), grads)
        expected = of_host(poisoned)
        assert_same(report, expected)
        assert (float(after.loss_scale), bool(after.skip)) == (512.0, True)
        for one, other in zip(report.per_tensor.values(), expected.per_tensor.values(), strict=True):
            assert_same(one, other)
        assert f"['{name}']" in str(report.to_host())
        for key, result in results.items():
            assert_placed(result, grads[key])


# The bad elements, as (gradient, device): the first and the last (gradient, rank), in the order of the devices.
PLACES = [
    ([(0, 1), (0, 3), (1, 2)], (0, 1), (0, 3)),  # the last device has only gradient 0
    ([(2, 0), (1, 0), (2, 1)], (1, 0), (2, 1)),
    ([(1, 2)], (1, 2), (1, 2)),
    ([(0, 3), (2, 3)], (0, 3), (2, 3)),
]


@pytest.mark.parametrize("bad, first, last", PLACES)
def test_the_first_and_the_last_gradient_that_is_not_finite_and_their_devices(way, bad, first, last):
    with jax.set_mesh(jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))):
        grads = np.ones((3, 4, 8), np.float32)  # a row for each device
        for gradient, device in bad:
            grads[gradient, device, 5] = np.nan
        grads = [jax.device_put(grad, NamedSharding(jax.sharding.get_mesh(), P("data"))) for grad in grads]
        _, report = jax.jit(lambda grads: scaler().unscale(grads, per_tensor=True))(grads)
        report = report.to_host()
    assert ((report.first_tensor, report.rank), (report.last_tensor, report.last_rank)) == (first, last)
    for i, each in enumerate(report.per_tensor.values()):
        devices = [device for gradient, device in bad if gradient == i]
        expected = (i, i, min(devices), max(devices)) if devices else (0, 0, None, None)
        assert (each.first_tensor, each.last_tensor, each.rank, each.last_rank) == expected


def test_sums_stay_where_they_are(mesh):
    add = jax.jit(lambda scaler, grads, sums: scaler.unscale_accumulate(grads, sums, want=WANT))
    sums = spread(mesh, TRUE)
    poisoned = GRADS | {"whole": np.where(np.arange(512)[:, None] == 500, np.inf, GRADS["whole"])}  # on one device
    for grads, times in (GRADS, 2), (poisoned, 1):
        results, report = add(scaler(), spread(mesh, grads), sums)
        assert_same(report, of_host(grads))
        for name, result in results.items():
            np.testing.assert_array_equal(result, times * TRUE[name])
            assert_placed(result, sums[name])


def test_a_check_moves_reports_only(mesh):
    grads = spread(mesh, GRADS)
    finite = jax.jit(all_finite)
    assert finite(grads) and not finite(grads | {"bias": jnp.array([1.0, jnp.nan, 1.0])})
    assert moves_reports_only(finite.lower(grads).compile())


@on_auto_axes
def test_spread_gradients_in_a_loop_and_under_vmap(mesh):
    grads = spread(mesh, GRADS)

    def many(scaler, grads):
        return jax.lax.scan(lambda scaler, _: (scaler.step(grads)[2], None), scaler, None, length=5)[0]

    assert jax.jit(many)(scaler(), grads).to_host().state.steps_since_change == 5
    twice = jax.jit(jax.vmap(lambda grad: scaler().unscale(grad)[0]))(jnp.stack([GRADS["rows"]] * 2))
    np.testing.assert_array_equal(twice[1], TRUE["rows"])


def test_a_dimension_that_does_not_divide_is_right(mesh):
    grads = {"odd": jax.device_put(np.full((7, 2), 1024.0, np.float32), NamedSharding(mesh, P(None, "data")))}
    results, report = jax.jit(lambda scaler, grads: scaler.unscale(grads, want=WANT))(scaler(), grads)
    np.testing.assert_array_equal(results["odd"], np.ones((7, 2)))
    assert report.to_host().elements == 14


@on_auto_axes
def test_a_loss_of_sharded_parameters_is_differentiated(mesh):
    weights = spread(mesh, {"rows": TRUE["rows"]})
    step = jax.jit(lambda s, w: s.value_and_grad(lambda w: (w["rows"] ** 2).sum())(w))
    _, finite, _, grads = step(scaler("torch"), weights)
    assert bool(finite)
    np.testing.assert_allclose(grads["rows"], 2 * TRUE["rows"], 1e-6)
    assert_placed(grads["rows"], weights["rows"])


def test_gradients_stay_without_a_mesh_that_is_set():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    grads = {"rows": jax.device_put(GRADS["rows"], NamedSharding(mesh, P("data")))}
    for step in (scaler().unscale, jax.jit(lambda grads: scaler().unscale(grads))):  # also eagerly
        results, report = step(grads)
        assert_placed(results["rows"], grads["rows"])
        assert report.to_host().elements == GRADS["rows"].size


# ---- each device has a part, and all agree on overflow, norm and scale ----

PARTS = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)
PAIR = Mesh(np.array(jax.devices()[:2]), ("data",))


def sharded(function, *specs, check=False):
    """Compiles a function of the devices; `check`: shard_map follows what varies from device to device, its default."""
    return jax.jit(jax.shard_map(function, mesh=PAIR, in_specs=specs[:-1], out_specs=specs[-1], check_vma=check))


def test_shards_agree_on_overflow_and_norm_and_the_handlers_reports_have_the_bits_of_the_host(way):
    def step(scaler, part):
        grads, report, scaler = scaler.step([part[0]], want=Want.NORM, axis_name="data")
        return grads[0][None], report.words[None], scaler.state[None]

    step, host = sharded(step, P(), P("data"), P("data")), gradscaler.Scaler("torch")
    for bad in (False, True):
        parts = PARTS.copy()
        if bad:
            parts[1, 7] = np.inf
        grads, words, states = step(Scaler("torch"), parts)
        reports = [host.measure([part], want=Want.NORM) for part in parts]
        for rank, report in enumerate(reports):
            core.gsc_report_set_rank(None, report, host.policy, host.state, rank, report)
        expected = gradscaler.Report.merge(reports, policy=host.policy)
        assert np.array_equal(words[0], words[1]) and np.array_equal(states[0], states[1])
        report = gradscaler.Report.from_bytes(np.asarray(words[0]).tobytes())
        assert way == "jnp" or bytes(report) == bytes(expected)
        assert report.overflow == expected.overflow == bad and report.elements == expected.elements == 600
        assert report.norm == pytest.approx(expected.norm, rel=1e-6)
        assert Scaler("torch")._with(states[0]).loss_scale == (2.0**15 if bad else 2.0**16)
        np.testing.assert_array_equal(grads[0], parts[0] / 2**16)


def drifted(change):
    """Makes a step of two devices, the second with the state that `change` makes of its own: (states, reports)."""

    def step(state, part):
        _, report, scaler = Scaler("torch")._with(state[0]).step([part[0]], axis_name="data")
        return scaler.state[None], report.words[None]

    states = np.stack([scaler.state for scaler in (Scaler("torch"), change(Scaler("torch")))])
    states, reports = map(np.asarray, sharded(step, P("data"), P("data"), P("data"))(states, PARTS))
    assert reports[0].tobytes() == reports[1].tobytes()
    states = [State.from_buffer_copy(state.tobytes()) for state in states]
    return states, gradscaler.Report.from_bytes(reports[0].tobytes())


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda scaler: scaler.set_scale(2.0**10), "rank 1 has another policy or state than rank 0"),
        (lambda scaler: scaler._with(scaler.state.at[:8].set(0)), "that rank 1 met"),
        (
            lambda scaler: scaler._with(np.frombuffer(SAVED_BY_0_9["state"], np.uint32)),
            "that rank 1 met: saved by a newer",
        ),
    ],
)
def test_devices_with_states_that_drifted_apart_are_told_by_their_number(change, why):
    with pytest.raises(Exception, match=why):  # of one of two kinds
        drifted(change)


def test_without_the_handler_report_and_state_tell_of_a_drift(in_jnp):
    states, report = drifted(lambda scaler: scaler.set_scale(2.0**16, good_steps=1))
    assert report.overflow and report.status == Status.ERROR_MISMATCH and report.failed_rank == 1
    assert [state.status for state in states] == [Status.ERROR_REPORT] * 2


def test_a_state_that_only_counted_otherwise_is_no_drift():
    _, report = drifted(lambda s: s._with(s.state.at[State.total_overflows.offset // 4].set(3)))
    assert report.status == 0


def test_a_factor_that_one_device_cannot_use_ends_the_step_of_all(in_jnp):
    def unscale(scaler, part, factor):
        return scaler.unscale([part[0]], axis_name="data", factor=factor[0])[1].words[None]

    factors = np.stack([Scaler("torch").factor, np.zeros(8, np.uint32)])
    unscale = sharded(unscale, P(), P("data"), P("data"), P("data"))
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


def test_replicas_average_over_an_axis_of_vmap_and_in_a_checked_shard_map(way):
    def grads(name, scaler, params, x):
        return scaler.value_and_grad(lambda p, x: jnp.mean(x @ p), axis_name=name)(params, x).grad

    operands = Scaler("torch"), jnp.ones(2), jnp.arange(8.0).reshape(4, 2)
    batched = jax.vmap(functools.partial(grads, "data"), (None, None, 0), axis_name="data")
    for function in batched, jax.jit(batched):
        assert function(*operands).tolist() == [[3, 4]] * 4
    for name in "data", ("data",):
        average = sharded(functools.partial(grads, name), P(), P(), P("data"), P(), check=True)
        assert average(*operands).tolist() == [3, 4]


def test_a_checked_shard_map_takes_every_call_and_refuses_a_forgotten_axis_name(way):
    scaler, parts = Scaler("static", init_scale=2.0), jnp.asarray(PARTS)

    def run(function, out_specs):
        return sharded(function, P(), P("data"), out_specs, check=True)(scaler, parts)

    def clip(scaler, part):
        grads, report = scaler.unscale(part, max_norm=0.5, axis_name="data")
        return grads, report.norm

    clipped, norm = run(clip, (P("data"), P()))
    np.testing.assert_allclose(norm, np.linalg.norm(PARTS.astype(np.float64)) / 2, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(clipped, np.float64)), 0.5, rtol=1e-5)
    np.testing.assert_array_equal(run(lambda s, g: s.unscale_accumulate(g, g)[0], P("data")), PARTS * np.float32(1.5))
    each = run(lambda s, g: s.unscale([g], per_tensor=True)[1].words_per_tensor, P("data"))
    assert each.shape == (2, 64)
    assert sharded(lambda s: s.update(False).loss_scale, P(), P(), check=True)(scaler) == 2.0
    assert run(lambda s, g: s.step(g, axis_name="data")[2].loss_scale, P()) == 2.0
    with pytest.raises(ValueError, match="out_specs"):
        run(lambda s, g: s.step(g)[2].loss_scale, P())
