# SPDX-License-Identifier: MIT
"""Gradients that plain jit spreads over devices, as FSDP has them: they stay there, and the report is of them all."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradscaler
from gradscaler import Want
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
