# SPDX-License-Identifier: MIT
"""The loss before it is scaled: a bad loss is reported, and BadLoss.HOLD keeps the scale, in every kind of program."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gradscaler import BadLoss, Loss, Want
from gradscaler import _gradscaler as core
from gradscaler._structs import Event, Report, State
from gradscaler.jax import PrecisionHandler, Scaler, scaled

P = PartitionSpec
GOOD, BAD = [jnp.array([1.0, -2.0]), jnp.ones((3, 2), jnp.float16)], [jnp.array([1.0, jnp.nan]), jnp.ones((3, 2))]
LOSSES = [None, 1.5, np.inf, -np.inf, np.nan]
HOLDS = {"bad_loss_rule": BadLoss.HOLD, "max_failed_backoffs": 10}


def struct_of(kind, words):
    return kind.from_buffer_copy(np.asarray(words).tobytes())


def by_the_core(policy, state, grads, loss, function=core.gsc_measure, **options):
    """Returns the report of the library, and the state after it."""
    report, after = Report(), State()
    loss = None if loss is None else np.asarray(loss)
    options |= {"policy": policy, "loss": loss}
    function(None, state.factor, [np.asarray(grad) for grad in grads], options, report)
    core.gsc_state_update(None, policy, state, report, after)
    return report, after


@pytest.mark.parametrize("preset, fields", [("recommended", {}), ("torch", {}), ("guard", {}), ("nemo", HOLDS)])
def test_each_step_has_the_bits_of_the_core(way, preset, fields):
    scaler, draw = Scaler(preset, **fields), np.random.default_rng(3)
    step = jax.jit(lambda scaler, grads, loss: scaler.step(grads, loss=loss, want=Want.NORM, per_tensor=True)[1:])
    state, held, found = struct_of(State, scaler.state), 0, set()
    for _ in range(40):
        grads = [np.float32([2.0 ** draw.integers(-3, 3)]), np.float32([np.inf if draw.random() < 0.2 else 0])]
        loss = LOSSES[draw.integers(5)]
        loss = None if loss is None else np.float32(loss)
        expected, state = by_the_core(scaler.policy, state, grads, loss, want=Want.NORM)
        report, scaler = step(scaler, grads, loss)
        assert repr(struct_of(Report, report.words)) == repr(expected)
        assert np.asarray(report.words).tobytes() == bytes(expected)
        assert np.asarray(scaler.state).tobytes() == bytes(state)
        assert int(report.loss) == (Loss.UNKNOWN if loss is None else 1 + (not np.isfinite(loss)))
        assert all(int(each.loss) == Loss.UNKNOWN for each in report.per_tensor.values())
        assert bool(scaler.skip) == (float(report.found_inf) != 0) or scaler.policy.guards
        held += bool(scaler.events & Event.BAD_LOSS)
        found |= {int(report.loss), bool(report.overflow)}
    assert found == {0, 1, 2} and bool(held) == (scaler.policy.bad_loss_rule == BadLoss.HOLD)
    assert int(scaler.total_bad_losses) == state.total_bad_losses > 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float64"])
def test_the_loss_has_any_real_dtype_and_any_shape(way, dtype):
    scaler = Scaler("recommended")
    with jax.enable_x64(True):
        for shape in (), (1,), (3, 5):
            for value, expected in (2.0, Loss.FINITE), (np.nan, Loss.NOT_FINITE):
                loss = jnp.ones(shape, dtype).at[(-1,) * len(shape)].set(value)
                calls = [lambda: scaler.unscale(GOOD, loss=loss)[1], lambda: scaler.measure(GOOD, loss=loss)]  # noqa: B023
                calls += [lambda: scaler.unscale_accumulate(GOOD, GOOD, loss=loss)[1]]  # noqa: B023
                calls += [lambda: scaler.unscale(GOOD, loss=loss, max_norm=1.0)[1]]  # noqa: B023
                calls += [lambda: scaler.unscale({}, loss=loss)[1]]  # noqa: B023
                assert {int(call().loss) for call in calls} == {expected}
        assert int(scaler.measure(GOOD, loss=jnp.ones(0, dtype)).loss) == Loss.UNKNOWN


def test_a_loss_that_is_no_real_number_is_refused():
    for loss, name in (jnp.int32(3), "int32"), (jnp.complex64(1), "complex64"), (jnp.bool_(True), "bool"):
        with pytest.raises(TypeError, match=f"loss is of {name}: pass the loss before it was scaled"):
            Scaler().unscale(GOOD, loss=loss)
    assert int(Scaler().measure(GOOD, loss=3).loss) == Loss.FINITE


def test_a_batch_of_losses_is_judged_one_by_one(way):
    losses = jnp.array([1.0, jnp.inf, 2.0])
    each = jax.vmap(lambda loss: Scaler("recommended").step(GOOD, loss=loss)[2].skip)
    assert jax.jit(each)(losses).tolist() == [False, True, False]


def bad_at_2(p, x):
    """Returns a loss that is Inf at x == 2, while its gradient is 1."""
    return p + jnp.where(x == 2, jnp.inf, 0.0)


def test_value_and_grad_gives_the_loss(way):
    for preset, skips in ("recommended", True), ("torch", False):
        step = jax.jit(lambda scaler, p, x: scaler.value_and_grad(bad_at_2)(p, x))
        scaler, finite, loss, grad = step(Scaler(preset), jnp.float32(1), jnp.float32(2))
        assert (bool(finite), float(loss), float(grad)) == (not skips, np.inf, 1)
        assert scaler.total_bad_losses == 1 and bool(scaler.events & Event.BAD_LOSS) == skips
        assert step(scaler, jnp.float32(1), jnp.float32(3)).finite
    eformers = PrecisionHandler("f32", loss_scaler=Scaler()).step(bad_at_2)
    assert not eformers(Scaler(), jnp.float32(1), jnp.float32(2)).grads_finite


@pytest.mark.parametrize("check", [False, True])
def test_replicas_hold_if_the_loss_of_one_is_bad(way, check):
    def step(scaler, p, x):
        scaler, finite, _, _ = scaler.value_and_grad(bad_at_2, axis_name="data")(p, x[0])
        return scaler.loss_scale[None], finite[None], scaler.bad_losses_in_a_row[None]

    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    specs = {"in_specs": (P(), P(), P("data")), "out_specs": P("data")}
    step = jax.jit(jax.shard_map(step, mesh=mesh, check_vma=check, **specs))
    for losses, bad in ([1.0, 2.0], True), ([2.0, 2.0], True), ([1.0, 1.0], False), ([3e38, 3e38], False):
        scales, finite, held = step(Scaler(), jnp.float32(3e38), jnp.float32(losses))
        assert (scales.tolist(), finite.tolist(), held.tolist()) == ([2.0**16] * 2, [not bad] * 2, [bad] * 2)


def test_devices_with_a_loss_each_hold_together(way):
    def step(scaler, part, loss):
        _, report, scaler = scaler.step([part[0]], loss=loss[0], axis_name="data")
        return report.words[None], scaler.state[None]

    mesh = Mesh(np.array(jax.devices()[:3]), ("data",))
    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": P("data")}
    step = jax.jit(jax.shard_map(step, mesh=mesh, check_vma=False, **specs))
    for losses, expected in ([1, np.nan, 2], Loss.NOT_FINITE), ([1, 2, 3], Loss.FINITE):
        words, states = map(np.asarray, step(Scaler(), np.ones((3, 4), np.float32), np.float32(losses)))
        assert len({row.tobytes() for row in words}) == len({row.tobytes() for row in states}) == 1
        report, state = struct_of(Report, words[0]), struct_of(State, states[0])
        assert (report.loss, report.overflow) == (expected, 0) and report.found_inf == state.skip == (expected == 2)
        assert report.loss_rank_plus_1 == (2 if state.skip else 0)


@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0, "per_tensor": True}], ids=["plain", "clipped"])
def test_a_loss_beside_gradients_that_are_spread(way, options):
    with jax.set_mesh(jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))):
        spread = NamedSharding(jax.sharding.get_mesh(), P("data"))
        grads = [jax.device_put(np.ones((8, 2), np.float32), spread)]
        step = jax.jit(lambda scaler, grads, loss: scaler.step(grads, loss=loss, **options))
        for values, expected in ([1, 2, np.inf, 3], Loss.NOT_FINITE), ([1, 2, 3, 4], Loss.FINITE):
            _, report, scaler = step(Scaler(), grads, jax.device_put(np.float32(values), spread))
            assert int(report.loss) == expected and not report.overflow and report.to_host().elements == 16
            assert bool(scaler.skip) == (report.found_inf == 1) == (expected == Loss.NOT_FINITE)
            assert not options or int(report.per_tensor["[0]"].loss) == Loss.UNKNOWN


def test_gradients_beside_a_loss_are_differentiated(way):
    def penalty(p):
        loss, grads = jax.value_and_grad(lambda p: (p**3).sum())(p)
        return (Scaler("static", init_scale=4.0).unscale(4 * grads, loss=loss)[0] ** 2).sum()

    assert jax.jit(jax.grad(penalty))(jnp.array([1.0, 2.0])).tolist() == [36.0, 288.0]


def test_a_scaled_optimizer_takes_the_loss(way):
    optimizer, params = optax.chain(scaled(optax.sgd(1.0)), optax.identity()), {"w": jnp.zeros(2)}
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for loss, bad in (1.0, False), (np.nan, True):
        grads = state[0].scaler.scale({"w": jnp.ones(2)})
        updates, state = update(grads, state, params, loss=np.float32(loss))
        assert bool(updates["w"].any()) != bad and bool(state[0].scaler.skip) == bad
    assert state[0].scaler.loss_scale == 2.0**16 and state[0].report.to_host().loss == Loss.NOT_FINITE


def test_a_program_with_the_loss_has_no_further_call():
    def calls(**options):
        text = jax.jit(lambda s, g: s.step(g, **options)[2]).lower(Scaler(), GOOD).compile().as_text()
        return text.count('custom_call_target="gradscaler"')

    assert calls() == calls(loss=np.float32(1)) == 1


def test_only_an_empty_list_is_empty(way):
    step = jax.jit(lambda scaler, grads: scaler.step(grads)[2].events)
    for grads, empty in ({}, True), ({"a": jnp.ones((0, 3))}, True), ({"a": jnp.ones(1)}, False):
        assert bool(step(Scaler("torch"), grads) & Event.EMPTY) == empty
    for overflow in False, True:
        assert not Scaler("torch").update(overflow).events & Event.EMPTY
    reports = [Scaler("torch").measure(grads) for grads in ({}, [jnp.ones(1)])]
    assert not Scaler("torch").update(reports).events & Event.EMPTY


def test_a_step_without_gradients_is_warned_of_once_outside_of_jit(way):
    scaler = Scaler("torch")
    with pytest.warns(UserWarning, match="this step had no gradients") as told:
        for grads in {}, {"a": None}, {"a": jnp.ones((0, 3))}:
            scaler = scaler.step(grads)[2]
            scaler = scaler.update([scaler.unscale(grads)[1]] * 2)
            jax.jit(lambda scaler, grads: scaler.step(grads)[2])(Scaler("torch"), grads)
        Scaler("torch").update([Scaler("torch").measure(tree) for tree in ({}, [jnp.ones(1)])])
    assert [each.filename for each in told] == [__file__]
