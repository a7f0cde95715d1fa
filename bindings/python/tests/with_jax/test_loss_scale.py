# SPDX-License-Identifier: MIT
"""The loss scales of jmp and eFormer, and flax's DynamicScale, beside ours on the same inputs; and where they fail."""

import dataclasses
import json
from pathlib import Path

import eformer.mpric
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import pytest
from flax.training.dynamic_scale import DynamicScale

import gradscaler.jax
from gradscaler.jax import (
    DtypePolicy,
    DynamicLossScale,
    LossScaleConfig,
    NoOpLossScale,
    PrecisionHandler,
    Scaler,
    StaticLossScale,
    all_finite,
    select_tree,
)

TRACES = Path(__file__).parents[4] / "tests" / "traces"
RECORDINGS = {name: json.loads((TRACES / f"{name}.json").read_text()) for name in ("jmp", "eformer")}


def of_recording(recording, trace):
    settings = recording["defaults"] | trace["overrides"]
    return DynamicLossScale(
        jnp.float32(settings["init_scale"]),
        period=settings["growth_interval"],
        factor=settings["growth_factor"],
        min_loss_scale=jnp.float32(settings["min_scale"]),
    )


@pytest.mark.parametrize("preset", RECORDINGS)
def test_recordings_are_replayed_eagerly_and_in_a_scan(preset):
    def step(loss_scale, overflow):
        return loss_scale.adjust(~overflow), loss_scale.loss_scale

    scan = jax.jit(lambda loss_scale, steps: jax.lax.scan(step, loss_scale, steps)[1])
    longest, replayed = max(len(trace["scale"]) for trace in RECORDINGS[preset]["traces"]), 0
    for trace in RECORDINGS[preset]["traces"]:
        steps = np.array([step == "1" for step in trace["overflow"]])
        expected = [float(scale) for scale in trace["scale"]]
        loss_scale = of_recording(RECORDINGS[preset], trace)
        scales = scan(loss_scale, np.resize(steps, longest))  # of one length: a program for each rule, not each trace
        assert np.asarray(scales)[: len(expected)].tolist() == expected, trace["name"]
        if len(steps) <= 60:
            eager = [float(loss_scale.loss_scale)]
            for overflow in steps:
                loss_scale = loss_scale.adjust(not overflow)
                eager.append(float(loss_scale.loss_scale))
            assert eager == expected, trace["name"]
            replayed += 1
    assert replayed > 0


def same_fields(ours, theirs):
    for field in dataclasses.fields(theirs):
        np.testing.assert_array_equal(getattr(ours, field.name), getattr(theirs, field.name))


@pytest.mark.parametrize("peer", [jmp, eformer.mpric])
def test_names_fields_positions_and_defaults_are_those_of_the_peer(peer):
    for kind in ("NoOpLossScale", "DynamicLossScale"):
        theirs = [field.name for field in dataclasses.fields(getattr(peer, kind))]
        ours = [field.name for field in dataclasses.fields(getattr(gradscaler.jax, kind))]
        assert ours[: len(theirs)] == theirs
    same_fields(DynamicLossScale(jnp.float32(8)), peer.DynamicLossScale(jnp.float32(8)))
    arguments = jnp.float32(8), jnp.int32(3), 5, 3, jnp.float32(2)
    same_fields(DynamicLossScale(*arguments), peer.DynamicLossScale(*arguments))
    assert NoOpLossScale() == NoOpLossScale() and peer.NoOpLossScale() == peer.NoOpLossScale()
    assert NoOpLossScale().loss_scale == peer.NoOpLossScale().loss_scale == 1
    for kind in (DynamicLossScale, peer.DynamicLossScale):
        assert kind(*arguments) == kind(*arguments) and kind(*arguments) != kind(jnp.float32(9), *arguments[1:])
        with pytest.raises(dataclasses.FrozenInstanceError):
            kind(*arguments).period = 3


def test_the_configuration_is_eformers():
    theirs = eformer.mpric.LossScaleConfig()
    assert dataclasses.asdict(LossScaleConfig()) == dataclasses.asdict(theirs)
    assert LossScaleConfig(8, 3) == LossScaleConfig(8, 3) != LossScaleConfig(8, 4)
    loss_scale = LossScaleConfig(8, 3, 4, 2.0).create()
    same_fields(loss_scale, eformer.mpric.DynamicLossScale(8.0, np.int32(0), 3, 4, 2.0))
    assert LossScaleConfig().create(use_dynamic_scale=False) == NoOpLossScale()


@pytest.mark.parametrize("given", [jnp.float32, jnp.float16, jnp.bfloat16, float])
@pytest.mark.parametrize("peer", [jmp, eformer.mpric])
def test_scaled_and_unscaled_gradients_are_those_of_the_peer(peer, given):
    rng = np.random.default_rng(0)
    tree = {name: jnp.asarray(rng.standard_normal(50), name) for name in ("float32", "float16", "bfloat16")}
    pairs = [(kind(given(2.0**10))) for kind in (DynamicLossScale, peer.DynamicLossScale)]
    ours, theirs = pairs
    for function in ("scale", "unscale"):
        a, b = getattr(ours, function)(tree), getattr(theirs, function)(tree)
        for name in tree:
            assert a[name].dtype == b[name].dtype, (function, name)
            np.testing.assert_array_equal(a[name], b[name])


def test_a_static_scale_is_jmps():
    tree = {"a": jnp.arange(4.0), "b": jnp.ones(2, jnp.float16)}
    ours, theirs = StaticLossScale(jnp.float32(8)), jmp.StaticLossScale(jnp.float32(8))
    for function in ("scale", "unscale"):
        jax.tree.map(np.testing.assert_array_equal, getattr(ours, function)(tree), getattr(theirs, function)(tree))
    assert ours.adjust(jnp.array(False)) is ours


def test_all_finite_is_jmps(way):
    for tree in (
        {},
        {"a": jnp.ones(3), "i": jnp.arange(2)},
        [jnp.array([1, jnp.inf])],
        [jnp.array([jnp.nan], jnp.float16)],
    ):
        assert bool(all_finite(tree)) == bool(jmp.all_finite(tree))
        assert bool(jax.jit(lambda t: all_finite(t))(tree)) == bool(jmp.all_finite(tree))


def test_select_tree_is_jmps():
    a, b = {"x": jnp.zeros(2), "i": jnp.arange(3)}, {"x": jnp.ones(2), "i": jnp.arange(3) + 5}
    for pred in (jnp.array(True), jnp.array(False)):
        jax.tree.map(np.testing.assert_array_equal, select_tree(pred, a, b), jmp.select_tree(pred, a, b))


# ---- where they fail ----


def test_jmp_loses_its_floor_in_jit_and_ours_does_not():
    arguments = jnp.float32(4), jnp.int32(0), 10, 2, jnp.float32(4)
    through = jax.jit(lambda s: s)
    assert through(jmp.DynamicLossScale(*arguments)).min_loss_scale == 1
    assert through(DynamicLossScale(*arguments)).min_loss_scale == 4
    lowered = through(DynamicLossScale(*arguments)).adjust(False)
    assert lowered.loss_scale == 4


def test_jmps_static_scale_is_compiled_anew_for_each_value_and_ours_is_not():
    for kind, programs in ((jmp.StaticLossScale, 2), (StaticLossScale, 1)):
        scale = jax.jit(lambda s, x: s.scale(x))
        assert [scale(kind(jnp.float32(value)), jnp.ones(2)).tolist() for value in (8, 16)] == [[8, 8], [16, 16]]
        assert scale._cache_size() == programs
        assert len(jax.tree.leaves(kind(jnp.float32(8)))) == 2 - programs  # a checkpoint of jmp's has nothing in it


def test_a_float16_scale_of_jmps_fails_or_stops_at_float16s_range_and_ours_grows():
    with pytest.raises(TypeError, match="same dtypes"):
        jmp.DynamicLossScale(jnp.float16(2**15)).adjust(jnp.array(True))
    theirs = jmp.DynamicLossScale(jnp.float16(2**15), period=1, min_loss_scale=jnp.float16(1))
    ours = DynamicLossScale(jnp.float16(2**15), period=1)
    for _ in range(3):
        ours, theirs = ours.adjust(jnp.array(True)), theirs.adjust(jnp.array(True))
    assert (ours.loss_scale, theirs.loss_scale) == (2.0**18, 2.0**15)
    assert ours.unscale(jnp.float16(1)).dtype == theirs.unscale(jnp.float16(1)).dtype == jnp.float16


def test_jmp_makes_floats_of_integers_and_ours_leaves_them():
    assert jmp.DynamicLossScale(jnp.float32(2)).scale({"i": jnp.arange(2)})["i"].dtype == jnp.float32
    assert DynamicLossScale(jnp.float32(2)).scale({"i": jnp.arange(2)})["i"].dtype == jnp.int32


def test_eformers_default_fails_at_its_first_update_and_ours_steps():
    theirs = eformer.mpric.PrecisionHandler("p=f32,c=f16,o=f32").loss_scaler
    with pytest.raises(TypeError):
        theirs.adjust(jnp.array(True))
    with pytest.raises(TypeError):  # and is no pytree
        jax.jit(lambda s: s)(theirs)
    ours = LossScaleConfig().create()
    assert jax.jit(lambda s: s.adjust(True))(ours).counter == 1


def test_a_scale_is_one_bool_away_from_the_next():
    with pytest.raises(TypeError, match="one bool"):
        DynamicLossScale(jnp.float32(2)).adjust(jnp.ones(2, bool))
    with pytest.warns(UserWarning, match="Expected floating type for loss_scale"):
        DynamicLossScale(jnp.int32(8))


# ---- through transformations ----


@pytest.mark.parametrize(
    "value", [DynamicLossScale(2.0**15, period=7, min_loss_scale=4.0), StaticLossScale(3.0), NoOpLossScale()]
)
def test_nothing_is_lost_through_flatten_jit_scan_and_pmap(value):
    leaves, structure = jax.tree.flatten(value)
    assert jax.tree.unflatten(structure, leaves) == value
    assert jax.jit(lambda v: v)(value) == value
    assert (
        jax.lax.scan(lambda v, _: (v.adjust(True), None), value, None, 3)[0].adjust(True).loss_scale == value.loss_scale
    )
    stacked = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 2), value)
    back = jax.tree.map(lambda x: x[0], jax.pmap(lambda v, _: v)(stacked, jnp.zeros(2)))
    assert back == value
    assert jax.tree.map(lambda _: None, value) is not None  # any leaves fit


# ---- PrecisionHandler ----


def loss_fn(params, x):
    return jnp.mean((x @ params["w"]) ** 2)


PARAMS, X = {"w": jnp.full((4, 3), 0.5)}, jnp.arange(8.0).reshape(2, 4) / 8


def test_the_dtype_policy_is_jmps():
    for text in (
        "p=f32,c=f16,o=f32",
        "c=f16",
        "p=f16,c=bf16",
        "bf16",
        "half",
        "full",
        "params=float32,compute=bfloat16",
    ):
        ours, theirs = DtypePolicy.from_string(text), jmp.get_policy(text)
        for name in ("param_dtype", "compute_dtype", "output_dtype"):
            assert getattr(ours, name) == jnp.dtype(getattr(theirs, name)), text
        tree = {"a": jnp.ones(2), "i": jnp.arange(2)}
        for function in ("cast_to_param", "cast_to_compute", "cast_to_output"):
            a, b = getattr(ours, function)(tree), getattr(theirs, function)(tree)
            assert [x.dtype for x in a.values()] == [x.dtype for x in b.values()]
    for text in ("f12", "c=nothing", "x=f32"):
        with pytest.raises(ValueError, match=r"f12|nothing|'x'"):
            DtypePolicy.from_string(text)


@pytest.mark.parametrize("scaler", [None, Scaler("torch", init_scale=2.0**10)])
def test_gradients_come_out_divided_once_and_the_loss_unscaled(scaler):
    handler = PrecisionHandler("p=f32,c=f16,o=f32", loss_scaler=scaler)
    step = jax.jit(handler.step(loss_fn))
    after, loss, grads, finite, _ = step(handler.loss_scaler, PARAMS, X)
    expected, expected_grads = jax.value_and_grad(loss_fn)(PARAMS, X)
    assert finite and loss.dtype == grads["w"].dtype == jnp.float32
    np.testing.assert_allclose(loss, expected, rtol=2e-3)
    np.testing.assert_allclose(grads["w"], expected_grads["w"], rtol=2e-3)
    after, _, _, finite, _ = step(after, PARAMS, X * 1e30)
    assert not finite and after.loss_scale == handler.loss_scaler.loss_scale / 2


def test_eformers_handler_divides_gradients_that_nobody_scaled_and_ours_scales_the_loss():
    config = eformer.mpric.LossScaleConfig(initial_scale=2.0**15)
    theirs = eformer.mpric.PrecisionHandler("p=f32,c=f32,o=f32", loss_scale_config=config)
    _, grads, _ = theirs.training_step_wrapper(lambda p, x: jax.value_and_grad(loss_fn)(p, x))(PARAMS, X)
    _, ours, _ = PrecisionHandler("f32").training_step_wrapper(loss_fn)(PARAMS, X)
    true = jax.grad(loss_fn)(PARAMS, X)["w"]
    np.testing.assert_allclose(grads["w"], true / 2**15, rtol=1e-6)
    np.testing.assert_allclose(ours["w"], true, rtol=1e-6)


def test_the_wrapper_keeps_the_scale_and_says_that_jit_needs_step():
    handler = PrecisionHandler("p=f32,c=f16,o=f32", loss_scale_config=LossScaleConfig(growth_interval=2))
    step = handler.training_step_wrapper(loss_fn)
    for _ in range(2):
        assert step(PARAMS, X)[2]
    assert handler.loss_scaler.loss_scale == 2.0**16
    with pytest.raises(TypeError, match="use step"):
        jax.jit(step)(PARAMS, X)
    with pytest.raises(TypeError, match="computes the loss"):
        handler.training_step_wrapper(jax.value_and_grad(loss_fn))(PARAMS, X)
    assert handler.inference_wrapper(lambda p, x: x @ p["w"])(PARAMS, X).dtype == jnp.float32


def test_an_unknown_dtype_is_answered_with_each_name_once():
    with pytest.raises(ValueError, match="'f17' is no dtype; there are half, f16, ") as error:
        PrecisionHandler("p=f32,c=f17")
    names = str(error.value).split("there are ")[1].split(", ")
    assert len(names) == len(set(names))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), 0.0, float("inf")])
def test_a_scale_that_scales_nothing_is_refused(bad):
    with pytest.raises(ValueError, match="loss_scale=.*finite and above 0"):
        DynamicLossScale(jnp.float32(bad))
    with pytest.raises(ValueError, match="initial_scale=.*finite and above 0"):
        LossScaleConfig(initial_scale=bad)


def test_rules_that_never_move_or_move_the_wrong_way_are_refused():
    for fields, match in [
        ({"period": -1}, "period=-1"),
        ({"period": 3.5}, "period=3.5"),
        ({"factor": 1}, "factor=1"),
        ({"factor": 0.5}, "factor=0.5"),
        ({"min_loss_scale": jnp.float32(-1)}, "min_loss_scale="),
    ]:
        with pytest.raises(ValueError, match=match):
            DynamicLossScale(jnp.float32(8), **fields)
    assert DynamicLossScale(jnp.float32(1e-45), min_loss_scale=jnp.float32(0)).adjust(False).loss_scale == 0
    assert jax.jit(lambda s: DynamicLossScale(s).loss_scale)(jnp.float32(-1)) == -1


def test_strict_promotion_is_no_hindrance():
    with jax.numpy_dtype_promotion("strict"):
        scale = DynamicLossScale(jnp.float32(8), period=1)
        assert scale.adjust(True).loss_scale == 16 and scale.adjust(False).loss_scale == 4
        assert scale.scale(jnp.float16(2)) == 16
        handler = PrecisionHandler("p=f32,c=f16,o=f32")
        assert handler.training_step_wrapper(lambda p, x: jnp.sum(p * x))(jnp.ones(2), jnp.ones(2))[2]


# ---- flax ----


def test_flax_saves_loss_scales_and_restores_them_as_they_were():
    from flax import serialization

    dynamic = DynamicLossScale(jnp.float16(2**15), period=2).adjust(True).adjust(True).adjust(True)
    assert float(dynamic.loss_scale) == 2**16  # more than float16 holds
    fresh = DynamicLossScale(jnp.float16(1.0), period=2)
    tree, target = (
        {"moves": moves, "stays": StaticLossScale(scale), "none": NoOpLossScale()}
        for moves, scale in ((dynamic, 8.0), (fresh, 1.0))
    )
    as_dict = serialization.to_state_dict(tree)
    assert sorted(as_dict["moves"]) == ["counter", "loss_scale", "min_loss_scale"] and as_dict["none"] == {}
    for restored in (
        serialization.from_state_dict(target, as_dict),
        serialization.from_bytes(target, serialization.to_bytes(tree)),
    ):
        assert jax.tree.structure(restored) == jax.tree.structure(tree)
        for leaf, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(tree), strict=True):
            assert leaf.dtype == expected.dtype and leaf == expected
        assert restored["moves"].scale(jnp.ones(1, jnp.float16)).dtype == jnp.float16
        assert restored["moves"].adjust(True).loss_scale == 2**17
    for saved, match in (
        ({"loss_scale": 1.0}, "a DynamicLossScale has loss_scale, counter, min_loss_scale, the checkpoint loss_scale"),
        (as_dict["moves"] | {"counter": np.zeros(3, np.int32)}, r"counter has the shape \(3,\)"),
    ):
        with pytest.raises(ValueError, match=match):
            serialization.from_state_dict(dynamic, saved)
    with pytest.raises(ValueError, match="a NoOpLossScale has nothing, the checkpoint a"):
        serialization.from_state_dict(NoOpLossScale(), {"a": 1})


def test_value_and_grad_gives_what_flaxs_dynamic_scale_gives(way):
    def loss(params, x):
        return jnp.sum((params.astype(jnp.float16) * x) ** 2)

    ours, theirs = Scaler("flax", growth_interval=3), DynamicScale(growth_interval=3)
    step = jax.jit(lambda s, p, x: s.value_and_grad(loss)(p, x))
    params = jnp.linspace(-1, 1, 20)
    for i in range(12):
        x = jnp.float16(jnp.inf if i in (4, 5) else 0.25)
        a, b = step(ours, params, x), step(theirs, params, x)
        ours, theirs = a.scaler, b.dynamic_scale
        assert bool(a.finite) == bool(b.finite) and float(ours.loss_scale) == float(theirs.scale)
        assert int(ours.good_steps) == int(theirs.fin_steps)
        if b.finite:
            np.testing.assert_array_equal(a.grad, b.grad)
            np.testing.assert_array_equal(a.aux, jnp.float16(b.aux))


def test_a_step_that_the_guard_skips_is_not_taken():
    handler = PrecisionHandler("p=f32,c=f32,o=f32", loss_scaler=gradscaler.jax.Scaler("none", guard_norm=2))
    step = handler.step(lambda p, x: p * x)
    _, _, _, finite, _ = step(handler.loss_scaler, jnp.float32(1), jnp.float32(1))
    assert finite
    scaler, _, _, finite, _ = step(handler.loss_scaler, jnp.float32(1), jnp.float32(3))
    assert scaler.skip and not finite


def test_a_loss_may_be_a_python_number_and_a_tuple_is_refused_by_what_helps():
    handler = PrecisionHandler("p=f32,c=f32,o=f32")
    loss, grads, finite = handler.training_step_wrapper(lambda p: 2.0)(jnp.float32(1))
    assert (loss, grads, finite) == (2, 0, True)
    with pytest.raises(TypeError, match=r"make step\(loss_fn, True\)"):
        handler.training_step_wrapper(lambda p: (p, p))(jnp.float32(1))
    assert handler.step(lambda p: (p, p), True)(handler.loss_scaler, jnp.float32(1)).aux == 1
