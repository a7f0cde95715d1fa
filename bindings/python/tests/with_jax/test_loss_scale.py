# SPDX-License-Identifier: MIT
"""The loss scales of jmp and eFormer, and flax's DynamicScale, beside ours on the same inputs; and where they fail."""

import dataclasses
import re

import eformer.mpric
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import pytest
from flax import serialization
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


def of_rules(kind, scale, period, factor, floor):
    return kind(jnp.float32(scale), jnp.int32(0), period, factor, jnp.float32(floor))


@pytest.mark.parametrize("peer", [jmp, eformer.mpric])
def test_scales_and_counters_move_as_the_peers_eagerly_and_in_a_scan(peer):
    def step(loss_scale, finite):
        loss_scale = loss_scale.adjust(finite)
        return loss_scale, (loss_scale.loss_scale, loss_scale.counter)

    steps = np.random.default_rng(0).random(40) < 0.7
    for rules in (2.0**15, 3, 2, 1), (8, 1, 4, 2), (3, 2, 3, 0.5), (2.0**120, 1, 2**4, 2.0**100):
        ours, theirs = (of_rules(module.DynamicLossScale, *rules) for module in (gradscaler.jax, peer))
        scanned = jax.lax.scan(step, ours, steps)[1]
        for finite, *found in zip(steps, *scanned, strict=True):
            ours, theirs = ours.adjust(bool(finite)), theirs.adjust(jnp.bool_(finite))
            assert [ours.loss_scale, ours.counter] == [theirs.loss_scale, theirs.counter] == found


def same_fields(ours, theirs):
    for field in dataclasses.fields(theirs):
        np.testing.assert_array_equal(getattr(ours, field.name), getattr(theirs, field.name))


@pytest.mark.parametrize("peer", [jmp, eformer.mpric])
def test_names_fields_positions_and_defaults_are_those_of_the_peer(peer):
    arguments = jnp.float32(8), jnp.int32(3), 5, 3, jnp.float32(2)
    for few in arguments[:1], arguments:
        same_fields(DynamicLossScale(*few), peer.DynamicLossScale(*few))
    names = [[field.name for field in dataclasses.fields(module.DynamicLossScale)] for module in (gradscaler.jax, peer)]
    assert names[0][: len(names[1])] == names[1]
    for kind in (DynamicLossScale, peer.DynamicLossScale):
        assert kind(*arguments) == kind(*arguments) and kind(*arguments) != kind(jnp.float32(9), *arguments[1:])
        with pytest.raises(dataclasses.FrozenInstanceError):
            kind(*arguments).period = 3
    assert NoOpLossScale() == NoOpLossScale() and NoOpLossScale().loss_scale == peer.NoOpLossScale().loss_scale == 1


def test_the_configuration_is_eformers():
    assert dataclasses.asdict(LossScaleConfig()) == dataclasses.asdict(eformer.mpric.LossScaleConfig())
    assert LossScaleConfig(8, 3) == LossScaleConfig(8, 3) != LossScaleConfig(8, 4)
    theirs = eformer.mpric.DynamicLossScale(8.0, np.int32(0), 3, 4, 2.0)
    same_fields(LossScaleConfig(8, 3, 4, 2.0).create(), theirs)
    assert LossScaleConfig().create(use_dynamic_scale=False) == NoOpLossScale()


@pytest.mark.parametrize("given", [jnp.float32, jnp.float16, jnp.bfloat16, float])
@pytest.mark.parametrize("name, peer", [("Dynamic", jmp), ("Dynamic", eformer.mpric), ("Static", jmp)])
def test_scaled_and_unscaled_gradients_are_those_of_the_peer(name, peer, given):
    rng = np.random.default_rng(0)
    tree = {dtype: jnp.asarray(rng.standard_normal(50), dtype) for dtype in ("float32", "float16", "bfloat16")}
    ours, theirs = (getattr(module, f"{name}LossScale")(given(2.0**10)) for module in (gradscaler.jax, peer))
    if name == "Dynamic" and given is float:  # the peers give float32 only after the first adjust
        ours, theirs = ours.adjust(jnp.array(True)), theirs.adjust(jnp.array(True))
    for function in ("scale", "unscale"):
        a, b = getattr(ours, function)(tree), getattr(theirs, function)(tree)
        for dtype in tree:
            assert a[dtype].dtype == b[dtype].dtype, (function, dtype)
            np.testing.assert_array_equal(a[dtype], b[dtype])
    assert name == "Dynamic" or ours.adjust(jnp.array(False)) is ours


def test_all_finite_and_select_tree_are_jmps(way):
    a, b = {"x": jnp.zeros(2), "i": jnp.arange(3)}, {"x": jnp.array([1, jnp.inf]), "i": jnp.arange(3) + 5}
    for tree in {}, a, b, [jnp.array([jnp.nan], jnp.float16)]:
        assert all_finite(tree) == jax.jit(lambda tree: all_finite(tree))(tree) == jmp.all_finite(tree)
    for pred in jnp.array(True), jnp.array(False):
        jax.tree.map(np.testing.assert_array_equal, select_tree(pred, a, b), jmp.select_tree(pred, a, b))


def test_jmp_loses_a_floor_in_jit_a_scale_in_checkpoints_and_integers_and_ours_does_not():
    for module, floor, leaves, dtype in (jmp, 1, 0, jnp.float32), (gradscaler.jax, 4, 1, jnp.int32):
        dynamic = module.DynamicLossScale(jnp.float32(4), jnp.int32(0), 10, 2, jnp.float32(4))
        assert jax.jit(lambda s: s)(dynamic).min_loss_scale == floor
        assert len(jax.tree.leaves(module.StaticLossScale(jnp.float32(8)))) == leaves  # 0: compiled anew for each value
        assert dynamic.scale({"i": jnp.arange(2)})["i"].dtype == dtype


def test_a_float16_scale_grows_beyond_float16s_range_and_eformers_default_steps():
    ours = DynamicLossScale(jnp.float16(2**15), period=1)
    for _ in range(3):
        ours = ours.adjust(jnp.array(True))
    assert ours.loss_scale == 2.0**18 and ours.unscale(jnp.float16(1)).dtype == jnp.float16
    assert jax.jit(lambda s: s.adjust(True))(LossScaleConfig().create()).counter == 1


def test_one_bool_and_a_floating_scale_are_expected():
    with pytest.raises(TypeError, match="one bool"):
        DynamicLossScale(jnp.float32(2)).adjust(jnp.ones(2, bool))
    with pytest.raises(TypeError, match="one bool"):
        select_tree(jnp.zeros(2, bool), {}, {})
    with pytest.warns(UserWarning, match="Expected floating type for loss_scale"):
        DynamicLossScale(jnp.int32(8))


@pytest.mark.parametrize(
    "value", [DynamicLossScale(2.0**15, period=7, min_loss_scale=4.0), StaticLossScale(3.0), NoOpLossScale()]
)
def test_nothing_is_lost_through_flatten_jit_scan_and_pmap(value):
    leaves, structure = jax.tree.flatten(value)
    assert jax.tree.unflatten(structure, leaves) == value
    assert jax.jit(lambda v: v)(value) == value
    scanned, _ = jax.lax.scan(lambda v, _: (v.adjust(True), None), value, None, 4)
    assert scanned.loss_scale == value.loss_scale
    stacked = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 2), value)
    assert jax.tree.map(lambda x: x[0], jax.pmap(lambda v, _: v)(stacked, jnp.zeros(2))) == value
    assert jax.tree.map(lambda _: None, value) is not None  # any leaves fit


def loss_fn(params, x):
    return jnp.mean((x @ params["w"]) ** 2)


PARAMS, X = {"w": jnp.full((4, 3), 0.5)}, jnp.arange(8.0).reshape(2, 4) / 8


@pytest.mark.parametrize("text", ["p=f32,c=f16,o=f32", "c=f16", "p=f16,c=bf16", "half", "params=f32,compute=bfloat16"])
def test_the_dtype_policy_is_jmps(text):
    ours, theirs, tree = DtypePolicy.from_string(text), jmp.get_policy(text), {"a": jnp.ones(2), "i": jnp.arange(2)}
    for kind in "param", "compute", "output":
        assert getattr(ours, f"{kind}_dtype") == jnp.dtype(getattr(theirs, f"{kind}_dtype"))
        a, b = (getattr(policy, f"cast_to_{kind}")(tree) for policy in (ours, theirs))
        assert [x.dtype for x in a.values()] == [x.dtype for x in b.values()]


@pytest.mark.parametrize("text, name", [("f12", "'f12'"), ("c=nothing", "'nothing'"), ("x=f32", "'x'")])
def test_a_text_that_is_no_dtype_policy_is_refused_with_each_dtype_once(text, name):
    with pytest.raises(ValueError, match=name) as error:
        DtypePolicy.from_string(text)
    dtypes = str(error.value).partition("there are half, f16, ")[2].split(", ")
    assert len(dtypes) == len(set(dtypes)) and (len(dtypes) > 5 or text == "x=f32")


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


def test_the_wrapper_keeps_the_scale_and_says_that_jit_needs_step():
    handler = PrecisionHandler("p=f32,c=f16,o=f32", loss_scale_config=LossScaleConfig(growth_interval=2))
    step = handler.training_step_wrapper(loss_fn)
    for _ in range(2):
        _, grads, finite = step(PARAMS, X)
        assert finite
        np.testing.assert_allclose(grads["w"], jax.grad(loss_fn)(PARAMS, X)["w"], rtol=2e-3)
    assert handler.loss_scaler.loss_scale == 2.0**16
    with pytest.raises(TypeError, match="use step"):
        jax.jit(step)(PARAMS, X)
    assert handler.inference_wrapper(lambda p, x: x @ p["w"])(PARAMS, X).dtype == jnp.float32


def test_a_loss_may_be_a_python_number_and_a_tuple_is_refused_by_a_remedy():
    handler = PrecisionHandler("p=f32,c=f32,o=f32")
    assert handler.training_step_wrapper(lambda p: 2.0)(jnp.float32(1)) == (2, 0, True)
    with pytest.raises(TypeError, match=r"the function that computes the loss, .* make step\(loss_fn, True\)"):
        handler.training_step_wrapper(lambda p: (p, p))(jnp.float32(1))
    assert handler.step(lambda p: (p, p), True)(handler.loss_scaler, jnp.float32(1)).aux == 1


WRONG = {"loss_scale": (-1.0, np.nan, 0.0, np.inf), "period": (-1, 3.5), "factor": (1, 0.5)}
WRONG["min_loss_scale"] = (np.float32(-1),)


@pytest.mark.parametrize("field, value", [(field, value) for field, values in WRONG.items() for value in values])
def test_rules_that_scale_nothing_never_move_or_move_the_wrong_way_are_refused(field, value):
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}")):
        DynamicLossScale(**{"loss_scale": jnp.float32(8)} | {field: value})
    names = {"loss_scale": "initial_scale", "period": "growth_interval", "factor": "scale_factor"}
    name = names.get(field, "min_scale")
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}")):
        LossScaleConfig(**{name: value})


def test_scales_that_fell_to_0_or_are_traced_are_not_refused():
    assert DynamicLossScale(jnp.float32(1e-45), min_loss_scale=jnp.float32(0)).adjust(False).loss_scale == 0
    assert jax.jit(lambda s: DynamicLossScale(s).loss_scale)(jnp.float32(-1)) == -1


def test_strict_promotion_is_no_hindrance():
    with jax.numpy_dtype_promotion("strict"):
        scale = DynamicLossScale(jnp.float32(8), period=1)
        assert scale.adjust(True).loss_scale == 16 and scale.adjust(False).loss_scale == 4
        assert scale.scale(jnp.float16(2)) == 16
        handler = PrecisionHandler("p=f32,c=f16,o=f32")
        assert handler.training_step_wrapper(lambda p, x: jnp.sum(p * x))(jnp.ones(2), jnp.ones(2))[2]


def test_flax_saves_loss_scales_and_restores_them_as_they_were():
    dynamic = DynamicLossScale(jnp.float16(2**15), period=2).adjust(True).adjust(True).adjust(True)
    assert float(dynamic.loss_scale) == 2**16  # more than float16 holds
    fresh = DynamicLossScale(jnp.float16(1.0), period=2)
    tree = {"moves": dynamic, "stays": StaticLossScale(8.0), "none": NoOpLossScale()}
    target = {"moves": fresh, "stays": StaticLossScale(1.0), "none": NoOpLossScale()}
    as_dict = serialization.to_state_dict(tree)
    assert sorted(as_dict["moves"]) == ["counter", "loss_scale", "min_loss_scale"] and as_dict["none"] == {}
    from_bytes = serialization.from_bytes(target, serialization.to_bytes(tree))
    for restored in serialization.from_state_dict(target, as_dict), from_bytes:
        assert jax.tree.structure(restored) == jax.tree.structure(tree)
        for leaf, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(tree), strict=True):
            assert leaf.dtype == expected.dtype and leaf == expected
        assert restored["moves"].scale(jnp.ones(1, jnp.float16)).dtype == jnp.float16
        assert restored["moves"].adjust(True).loss_scale == 2**17
    for one, saved, match in (
        (dynamic, {"loss_scale": 1.0}, "a DynamicLossScale has loss_scale, counter, min_loss_scale, the checkpoint l"),
        (dynamic, as_dict["moves"] | {"counter": np.zeros(3, np.int32)}, r"counter has the shape \(3,\)"),
        (NoOpLossScale(), {"a": 1}, "a NoOpLossScale has nothing, the checkpoint a"),
    ):
        with pytest.raises(ValueError, match=match):
            serialization.from_state_dict(one, saved)


def test_value_and_grad_gives_what_flaxs_dynamic_scale_gives():
    step = jax.jit(lambda s, p, x: s.value_and_grad(lambda p: jnp.sum((p.astype(jnp.float16) * x) ** 2))(p))
    ours, theirs = Scaler("flax", growth_interval=3), DynamicScale(growth_interval=3)
    for x in [0.25] * 4 + [jnp.inf] * 2 + [0.25] * 4:
        a, b = (step(scaler, jnp.linspace(-1, 1, 20), jnp.float16(x)) for scaler in (ours, theirs))
        ours, theirs = a.scaler, b.dynamic_scale
        assert (a.finite, ours.loss_scale, ours.good_steps) == (b.finite, theirs.scale, theirs.fin_steps)
        if b.finite:
            np.testing.assert_array_equal(a.grad, b.grad)
            np.testing.assert_array_equal(a.aux, jnp.float16(b.aux))
