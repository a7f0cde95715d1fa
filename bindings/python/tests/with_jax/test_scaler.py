# SPDX-License-Identifier: MIT
"""The Scaler inside compiled programs: the same gradients, verdicts and states by the handler and in jax.numpy."""

import copy
import dataclasses
import pickle
from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import gradscaler
import gradscaler.jax
from gradscaler import Want
from gradscaler.jax import Report, Scaler, select_tree

NARROW = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def of_name(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def all_values(dtype):
    """Every number of a narrow dtype; of float32 a sample of all magnitudes."""
    dtype = of_name(dtype)
    if dtype.itemsize < 4:
        return np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
    return np.random.default_rng(1).integers(0, 2**32, 100_000, np.uint32).view(np.float32)


def as_word(array):
    return np.asarray(array).view(f"u{np.asarray(array).dtype.itemsize}")


def is_subnormal(array):
    array = np.asarray(array)
    wide = array.astype(np.float64)
    return (wide != 0) & (np.abs(wide) < float(ml_dtypes.finfo(array.dtype).smallest_normal))


def trees_equal(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


# ---- bits ----


@pytest.mark.parametrize("dtype", [*NARROW, "float32"])
@pytest.mark.parametrize("narrow", [False, True])
def test_gradients_in_jnp_have_the_bits_of_the_core_but_for_subnormals(in_jnp, dtype, narrow):
    values = all_values(dtype)
    target = dtype if narrow else "float32"
    for scale in [2.0**16, 3.0, 2.0**-3, 2.0**-130, 2.0**130, 2.0**200, 2.0**-250]:  # in one program
        scaler = Scaler("static").set_scale(scale)
        host = scaler.to_host()
        out = np.empty(values.shape, of_name(target))
        expected = host.unscale([values], [out])
        found, report = scaler.unscale([jnp.asarray(values)], dtype=of_name(target))
        # What XLA flushes: subnormal numbers in, out, or on the way.
        with np.errstate(all="ignore"):
            true = values.astype(np.float64) / scale
        flushed = is_subnormal(values) | is_subnormal(out) | (np.abs(true) < 2.0**-125) & (true != 0)
        nan = np.isnan(out.astype(np.float64))
        same = as_word(out) == as_word(found[0])
        assert np.all(same | flushed | nan)
        assert np.array_equal(nan[~flushed], np.isnan(np.asarray(found[0], np.float64))[~flushed])
        assert bool(report.overflow) == expected.overflow
        inside = report.to_host()
        assert (inside.nan_count, inside.inf_count) == (expected.nan_count, expected.inf_count)
        assert (inside.first_tensor, inside.first_element) == (expected.first_tensor, expected.first_element)


def test_subnormal_gradients_are_the_ones_that_jnp_flushes(in_jnp):
    tiny = jnp.asarray(np.array([2.0**-126, 2.0**-127, 2.0**-149], np.float32))
    found, _ = Scaler("none").unscale([tiny])
    assert np.asarray(found[0]).tolist() == [2.0**-126, 0.0, 0.0]


# ---- reports ----


def gradients(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        "layer": {"w": rng.normal(0, scale, (33, 70)).astype(np.float32), "b": rng.normal(0, 1, 70).astype(np.float16)},
        "head": [rng.normal(0, 1, 4099).astype(ml_dtypes.bfloat16), np.float32(3)],
        "complex": (rng.normal(0, 1, 9) + 1j * rng.normal(0, 1, 9)).astype(np.complex64),
        "empty": np.zeros((0, 3), np.float32),
    }


def test_a_report_is_that_of_the_host(way):
    grads = gradients()
    grads["layer"]["w"][2, 3] = np.inf
    grads["layer"]["w"][5, 0] = np.nan
    grads["complex"][4] = complex(1, np.nan)
    scaler = Scaler("recommended")
    leaves = [np.array(leaf) for leaf in jax.tree.leaves(grads)]
    expected = gradscaler.Scaler("recommended").unscale(leaves, want=Want.NORM | Want.AMAX, per_tensor=True)
    _, report = jax.jit(lambda s, g: s.unscale(g, want=Want.NORM | Want.AMAX, per_tensor=True))(scaler, grads)
    found = report.to_host()
    for name in (
        "overflow",
        "elements",
        "nan_count",
        "inf_count",
        "first_element",
        "generation",
        "measured",
        "kind",
        "status",
        "amax",
    ):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.norm == pytest.approx(expected.norm, rel=1e-6)
    assert found.first_overflow == ("['complex']", 4)
    assert report.bad == {"['complex']": 1, "['layer']['w']": 2}
    for name, one in expected.per_tensor.items():
        other = found.per_tensor[report.names[name]]
        assert (one.overflow, one.amax, one.elements) == (other.overflow, other.amax, other.elements)
        assert other.norm == pytest.approx(one.norm, rel=1e-6)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e-3, 1.0, 1e15, 1e30])
def test_the_norm_is_right_to_a_millionth_at_every_magnitude(way, size):
    values = (np.random.default_rng(0).standard_normal(300_001) * size).astype(np.float32)
    _, report = Scaler("none").unscale([values], want=Want.NORM)
    assert float(report.norm) == pytest.approx(np.linalg.norm(values.astype(np.float64)), rel=1e-6)


def test_integers_none_and_float0_are_left(way):
    grads = {
        "step": jnp.arange(3),
        "none": None,
        "zero": np.zeros(2, jax.dtypes.float0),
        "w": jnp.ones(2),
        "flag": True,
    }
    found, report = Scaler("static", init_scale=4.0).unscale(grads)
    assert found["step"] is grads["step"] and found["none"] is None and found["zero"] is grads["zero"]
    assert found["w"].tolist() == [0.25, 0.25] and found["flag"] is True and report.to_host().elements == 2


def test_an_empty_tree_has_no_overflow(way):
    found, report = Scaler().unscale({})
    assert found == {} and not report.overflow


def test_max_norm_clips_and_reports_what_was_before(way):
    grads = [jnp.full(4, 32.0), jnp.full(12, 32.0)]
    found, report = jax.jit(lambda s, g: s.unscale(g, max_norm=1.0))(Scaler("static", init_scale=8.0), grads)
    assert float(report.norm) == 16.0
    np.testing.assert_allclose(np.concatenate(found), 0.25, rtol=1e-6)


def test_clip_value_clamps_and_counts(way):
    found, report = Scaler("static", init_scale=2.0).unscale([jnp.array([1.0, -9.0, jnp.inf, jnp.nan])], clip_value=2.0)
    assert np.array_equal(found[0], [0.5, -2.0, 2.0, np.nan], equal_nan=True)
    assert report.to_host().clamped == 2 and report.overflow


def test_clip_value_is_rounded_down_to_the_result(way):
    to_16 = [("float16", 70000.0, 1e5, 65504.0), ("bfloat16", 1.0, 0.1, 0.099609375)]
    for dtype, value, limit, expected in [*to_16, ("float8_e4m3fn", 470.0, 500.0, 448.0)]:
        found, report = Scaler("none").unscale([jnp.array([value, -value])], dtype=dtype, clip_value=limit)
        assert found[0].astype(float).tolist() == [expected, -expected], dtype
        assert not report.overflow and report.to_host().clamped == 2
    with pytest.raises(ValueError, match="clip_value.*float16"):
        Scaler("none").unscale([jnp.ones(2, jnp.float16)], clip_value=1e-9)


def test_a_micro_batch_that_overflowed_is_left_out_of_the_sums(way):
    scaler = Scaler("static", init_scale=2.0)
    sums = {"w": jnp.ones(3, jnp.float32)}
    accumulate = jax.jit(lambda g, s: scaler.unscale_accumulate(g, s))
    sums, good = accumulate({"w": jnp.full(3, 4.0, jnp.float16)}, sums)
    sums, bad = accumulate({"w": jnp.array([1, jnp.inf, 1], jnp.float16)}, sums)
    assert sums["w"].tolist() == [3.0, 3.0, 3.0]
    assert Report.merge([good, bad], addends=True).overflow and not good.overflow


def test_an_f8_gradient_that_becomes_too_large_is_an_overflow(way):
    values = jnp.array([400.0], jnp.float8_e4m3fn)
    _, report = Scaler("static", init_scale=0.5).unscale([values])
    assert report.overflow and report.to_host().inf_count == 1


def test_policies_that_judge_by_the_norm_find_one_that_is_too_large(way):
    report = Scaler("fairseq").measure([jnp.full(100, 3e38)])
    assert report.overflow and not report.inf_count
    assert not Scaler("torch").measure([jnp.full(100, 3e38)]).overflow


# ---- programs ----


def test_no_other_scale_or_count_compiles_anew(way):
    @jax.jit
    def step(scaler, grads):
        grads, report, scaler = scaler.step(grads, want=Want.NORM)
        return scaler, report.overflow

    scaler = Scaler("torch", growth_interval=2)
    for i in range(7):
        scaler, _ = step(scaler, [jnp.full(3, jnp.inf if i == 3 else 1.0)])
    assert step._cache_size() == 1
    assert (scaler.total_growths, scaler.total_overflows, scaler.loss_scale) == (2, 1, 2.0**17)


def test_only_a_program_without_the_handler_calls_the_host(way):
    compiled = jax.jit(lambda s, g: s.step(g)).lower(Scaler(), [jnp.ones(3)]).compile()
    text = compiled.as_text()
    assert "outfeed" not in text and text.count('custom_call_target="xla_ffi_python') == (way == "jnp")
    assert ('custom_call_target="gradscaler"' in text) == (way == "handler")


def test_eager_calls_leave_their_arguments(way):
    grads = [jnp.full(3, 2.0)]
    scaler = Scaler("static", init_scale=2.0)
    found, _, _ = scaler.step(grads)
    assert grads[0].tolist() == [2.0] * 3 and found[0].tolist() == [1.0] * 3 and scaler.loss_scale == 2.0


def test_a_scan_with_a_skipped_step_is_a_loop_with_it(way):
    batches = jnp.array([1.0, jnp.inf, 2.0, 3.0])

    def step(carry, batch):
        scaler, params = carry
        grads = jax.grad(lambda p: scaler.scale(jnp.sum(p * batch)))(params)
        grads, report = scaler.unscale(grads)
        params = jax.lax.cond(report.overflow, lambda p: p, lambda p: p - 0.1 * grads, params)
        return (scaler.update(report), params), report.overflow

    start = Scaler("torch", growth_interval=2), jnp.zeros(3)
    (scanned, params), overflows = jax.jit(lambda c, b: jax.lax.scan(step, c, b))(start, batches)
    looped = start
    for batch in batches:
        looped, _ = step(looped, batch)
    assert overflows.tolist() == [False, True, False, False]
    trees_equal(looped, (scanned, params))
    np.testing.assert_allclose(params, -0.6, rtol=1e-6)
    assert scanned.loss_scale == 2.0**16 and scanned.total_growths == scanned.total_backoffs == 1


def test_select_skips_as_cond_does(way):
    kept = select_tree(jnp.array(True), {"a": jnp.zeros(2)}, {"a": jnp.ones(2)})
    assert kept["a"].tolist() == [0, 0]
    with pytest.raises(TypeError, match="one bool"):
        select_tree(jnp.zeros(2, bool), {}, {})


def test_many_scalers_step_under_vmap():
    scalers = jax.tree.map(lambda *x: jnp.stack(x), Scaler("torch"), Scaler("torch", init_scale=2.0**16))
    grads = jnp.array([[1.0, 2.0], [1.0, jnp.inf]])
    _, report, after = jax.vmap(lambda s, g: s.step([g]))(scalers, grads)
    assert report.overflow.tolist() == [False, True]
    assert jax.vmap(lambda s: s.loss_scale)(after).tolist() == [2.0**16, 2.0**15]


def test_value_and_grad_unscales_loss_aux_and_gradients(way):
    def loss(params, x):
        value = jnp.sum(params["w"] * x).astype(jnp.float16)
        return value, {"value": value}

    scaler, finite, (value, aux), grads = jax.jit(lambda s, p, x: s.value_and_grad(loss, has_aux=True)(p, x))(
        Scaler("torch", init_scale=2.0**10), {"w": jnp.ones(3, jnp.float16)}, jnp.arange(3.0)
    )
    assert finite and value == aux["value"] == 3 and scaler.good_steps == 1
    assert grads["w"].dtype == jnp.float32 and grads["w"].tolist() == [0, 1, 2]


def test_gradients_that_arrive_late_are_divided_by_the_scale_of_their_loss():
    scaler = Scaler("torch", growth_interval=1)
    factor, later = scaler.factor, scaler.update(False)
    grads, report = later.unscale([jnp.array([2.0**16])], factor=factor)
    assert grads[0].tolist() == [1.0]
    assert gradscaler.Event.STALE & int(later.update(report).events)


def test_a_scalar_loss_in_float16_is_scaled_in_float32():
    assert Scaler().scale(jnp.float16(3)).dtype == jnp.float32
    assert Scaler().scale(jnp.ones(2, jnp.float16)).dtype == jnp.float16
    assert Scaler().scale({"loss": 1.0, "n": 3})["n"] == 3


def test_a_scale_beyond_float32_still_scales(way):
    scaler = Scaler("static", init_scale=2.0**200)
    assert scaler.scale(jnp.float32(2.0**-100)) == 2.0**100
    assert scaler.unscale([jnp.float32(2.0**100)])[0][0] == 2.0**-100


def test_a_scale_of_zero_divides_nothing(way):
    scaler = Scaler("torch", init_scale=2.0**-149).update(True)
    assert scaler.loss_scale == 0
    if way == "handler":
        with pytest.raises(Exception, match="above 0: overflows lowered it without a floor"):
            jax.block_until_ready(scaler.unscale([jnp.ones(2)])[1].words)
    else:
        grads, report = scaler.unscale([jnp.ones(2)])
        assert report.overflow and report.status == gradscaler.Status.ERROR_FACTOR and grads[0].tolist() == [1, 1]
        assert scaler.update(report).to_host().state.status == gradscaler.Status.ERROR_REPORT


def test_doubles_are_unscaled_as_doubles(way):
    with jax.enable_x64(True):
        values = np.random.default_rng(0).standard_normal(1000)
        out = np.empty_like(values)
        expected = gradscaler.Scaler("static", init_scale=3.0).unscale([values], [out], want=Want.NORM)
        found, report = Scaler("static", init_scale=3.0).unscale([jnp.asarray(values)], want=Want.NORM)
        assert found[0].dtype == jnp.float64 and np.array_equal(found[0], out)
        assert report.to_host().norm == pytest.approx(expected.norm, rel=1e-12)


def test_value_and_grad_keeps_doubles_and_widens_what_is_narrow():
    with jax.enable_x64(True):
        loss = lambda p: sum(jnp.sum(leaf**2) for leaf in p.values()).astype(jnp.float32)  # noqa: E731
        params = {"wide": jnp.ones(2, jnp.float64), "narrow": jnp.ones(2, jnp.float16)}
        grads = Scaler("torch").value_and_grad(loss)(params).grad
        assert {name: str(grad.dtype) for name, grad in grads.items()} == {"wide": "float64", "narrow": "float32"}


def test_what_only_the_handler_can_do_is_refused_in_jnp_by_name(in_jnp):
    scaler = Scaler()
    with pytest.raises(NotImplementedError, match="UNDERFLOW"):
        scaler.unscale([jnp.ones(2)], want=Want.UNDERFLOW)
    with pytest.raises(NotImplementedError, match="histogram"):
        scaler.unscale([jnp.ones(2)], histogram=True)


def test_the_handler_measures_underflow_and_a_histogram():
    _, report = Scaler().unscale([jnp.array([2.0**-140, 1.0])], dtype=jnp.float16, want=Want.UNDERFLOW, histogram=True)
    report = report.to_host()
    assert (
        report.underflows_to_zero == report.underflows_to_subnormal == sum(report.histogram) == 1
        and report.histogram_elements == 2
    )


# ---- values ----


def test_nothing_is_lost_through_flatten_and_checkpoints(tmp_path):
    scaler = Scaler("megatron", growth_interval=5).update(True).update(False)
    leaves, structure = jax.tree.flatten(scaler)
    np.savez(tmp_path / "checkpoint.npz", *leaves)
    restored = jax.tree.unflatten(structure, [jnp.asarray(a) for a in np.load(tmp_path / "checkpoint.npz").values()])
    assert repr(restored) == repr(scaler) and bytes(restored.policy) == bytes(scaler.policy)
    by_dict = Scaler.from_state_dict(scaler.state_dict())
    assert np.array_equal(by_dict.state, scaler.state) and repr(by_dict) == repr(scaler)
    host = gradscaler.Scaler()
    host.load_state_dict(scaler.state_dict())
    assert repr(Scaler.from_host(host)) == repr(scaler)


def in_0_5(scaler):
    """The scaler with the words that 0.2 to 0.5 had."""
    old = copy.copy(scaler)
    vars(old)["state"] = scaler.state.at[43].set(0)[:64]
    return old


def report_in_0_5(words):
    """It said what was absent, and had no kind."""
    words = np.array(words[..., :48])
    words[..., 3] ^= 7
    words[..., 30] = 0
    return words


@pytest.mark.parametrize("overflow", [False, True])
def test_words_of_before_0_9_are_read(overflow):
    from flax import serialization

    scaler = Scaler("megatron", growth_interval=5).update(overflow)
    old = in_0_5(scaler)
    assert old.state.shape == (64,)
    leaves, structure = jax.tree.flatten(old)
    assert jax.tree.unflatten(structure, leaves) == jax.tree.unflatten(structure, map(np.asarray, leaves)) == scaler
    assert np.array_equal(jax.jit(lambda s: s.update(False))(old).state, scaler.update(False).state)
    assert jax.vmap(lambda s: s.skip)(jax.tree.unflatten(structure, [jnp.stack([old.state] * 3)])).tolist() == 3 * [
        overflow
    ]
    assert pickle.loads(pickle.dumps(old)) == copy.copy(old) == scaler
    report = scaler.measure({"a": jnp.full(3, jnp.inf)}, per_tensor=True)
    whole = {"scaler": scaler, "report": report}
    words = {
        "words": report_in_0_5(report.words),
        "words_per_tensor": report_in_0_5(report.words_per_tensor),
        "bins": None,
    }
    saved = serialization.msgpack_serialize(
        serialization.to_state_dict({"scaler": {"state": old.state}, "report": words})
    )
    restored = serialization.from_bytes(whole, saved)
    assert restored["scaler"] == scaler and np.array_equal(restored["report"].words, report.words)
    assert restored["report"].bad == report.bad == {"['a']": 3}
    assert np.array_equal(dataclasses.replace(report, words=words["words"]).words, report.words)


def test_flax_saves_a_scaler_and_restores_it_as_one():
    from flax import serialization

    scaler = Scaler("torch", growth_interval=5).update(True)
    saved = serialization.to_bytes({"ds": scaler, "report": scaler.measure([jnp.ones(2)])})
    target = {"ds": Scaler("torch", growth_interval=5), "report": Report.of(True)}
    restored = serialization.from_bytes(target, saved)
    assert restored["ds"] == scaler and not restored["report"].overflow
    with pytest.warns(UserWarning, match="backoff_factor was 0.5 and is 0.25; growth_interval was 5 and is 2000"):
        changed = serialization.from_bytes(target | {"ds": Scaler("torch", backoff_factor=0.25)}, saved)
    assert (changed["ds"].policy.growth_interval, changed["ds"].loss_scale) == (2000, scaler.loss_scale)
    before = {"state": scaler.state}  # what 0.4 saved
    assert serialization.from_state_dict(target["ds"], before) == scaler
    with pytest.raises(ValueError, match="a Scaler has state"):
        serialization.from_state_dict(scaler, {"scale": 1.0})


def test_a_foreign_checkpoint_wants_a_policy_and_an_edited_one_set_scale():
    foreign = gradscaler.Scaler("torch", init_scale=8.0).state_dict(format="torch")
    assert Scaler.from_state_dict(foreign, policy="torch").loss_scale == 8.0
    with pytest.raises(ValueError, match="pass one, such as policy='torch'"):
        Scaler.from_state_dict(foreign)
    with pytest.raises(ValueError, match="use set_scale"):
        Scaler.from_state_dict(Scaler("torch").state_dict() | {"scale": 8.0})


def test_what_is_refused_says_what_to_do():
    scaler, grads = Scaler(), [jnp.ones(3)]
    for call, kind, match in [
        (lambda: scaler.update(3.0), TypeError, "the report of unscale"),
        (lambda: scaler.unscale(grads, max_norm=-1), ValueError, "max_norm=-1.0: it must be finite and above 0"),
        (lambda: scaler.unscale(grads, want="norm"), TypeError, "a union of gradscaler.Want"),
        (lambda: scaler.unscale(grads, factor=2.0), TypeError, "scaler.factor"),
        (lambda: scaler.unscale_accumulate(grads, [jnp.ones(4)]), ValueError, r"sums\[0\] has the shape \(4,\)"),
        (lambda: scaler.unscale_accumulate(grads, {"a": 1.0}), ValueError, "not the tree of grads"),
        (lambda: scaler.unscale(grads)[1].norm, ValueError, "want=gradscaler.Want.NORM"),
        (lambda: scaler.unscale(grads)[1].per_tensor, ValueError, "per_tensor=True"),
        (lambda: scaler.unscale(grads)[1].bad, ValueError, "per_tensor=True"),
        (lambda: scaler.update(scaler.unscale(grads)), TypeError, "the second part of what unscale returned"),
        (lambda: scaler.update(scaler), TypeError, "the report of unscale, .*not Scaler"),
        (lambda: scaler.update("x"), TypeError, "the report of unscale, .*not str"),
        (lambda: scaler.update([]), TypeError, "the report of unscale, .*not list"),
        (lambda: scaler.unscale(grads, dtype="fp16"), TypeError, "dtype='fp16' is no dtype: pass float32, float64"),
        (lambda: scaler.unscale(grads, dtype=jnp.int32), TypeError, "dtype='int32' has no fractions"),
        (lambda: setattr(scaler, "state", scaler.state), AttributeError, "use set_scale"),
        (lambda: Scaler("nothing"), gradscaler.Error, "no preset"),
    ]:
        with pytest.raises(kind, match=match):
            call()


@pytest.mark.parametrize("name", ["max_norm", "clip_value"])
def test_limits_are_compiled_in(name):
    with pytest.raises(TypeError, match=f"{name} must be a Python number: it is compiled in"):
        jax.jit(lambda limit: Scaler().unscale([jnp.ones(2)], **{name: limit})[0])(1.0)


def test_what_needs_the_host_says_so_in_jit():
    for use, match in [
        (lambda s, r: s.to_host(), r"to_host\(\) only outside of jit: return the scaler"),
        (lambda s, r: s.state_dict(), r"state_dict\(\) only outside of jit: return the scaler"),
        (lambda s, r: s.set_scale(2.0), r"set_scale\(\) only outside of jit: return the scaler"),
        (lambda s, r: r.bad, "bad only outside of jit: return the report"),
    ]:
        with pytest.raises(TypeError, match=match):
            jax.eval_shape(lambda s, use=use: use(s, s.measure([jnp.ones(2)], per_tensor=True)), Scaler())


@pytest.mark.parametrize("name", ["norm", "amax"])
def test_what_was_not_measured_is_refused_in_jit_too(name):
    with pytest.raises(ValueError, match=f"no {name}: pass want=gradscaler.Want.{name.upper()}"):
        jax.eval_shape(lambda s: getattr(s.measure([jnp.ones(2)], want=Want(3 & ~Want[name.upper()])), name), Scaler())
    merged = lambda s: Report.merge([s.measure([jnp.ones(2)], want=3)] * 2)  # noqa: E731
    assert jax.jit(lambda s: getattr(merged(s), name))(Scaler()).shape == ()


def test_a_batch_of_scalers_is_read_by_its_members():
    one = Scaler("torch", growth_interval=5).update(False)
    two = jax.tree.map(lambda a, b: jnp.stack([a, b]), one, one.update(True))
    assert two.loss_scale.tolist() == [2.0**16, 2.0**15]
    assert two.good_steps.tolist() == [1, 0] and two.total_overflows.tolist() == [0, 1]
    assert two.events.shape == two.stopped.shape == (2,) and two.factor.shape == (2, 8)
    reports = jax.vmap(lambda s: s.measure([jnp.ones(2)], per_tensor=True))(two)
    for use in (
        lambda: two.to_host(),
        lambda: two.state_dict(),
        lambda: two.set_scale(2.0),
        lambda: two.scale(1.0),
        lambda: two.update(True),
        lambda: two.unscale([jnp.ones(2)]),
        lambda: reports.per_tensor,
        lambda: reports.bad,
        lambda: reports.to_host(),
    ):
        with pytest.raises(ValueError, match=r"a batch of 2: take one with jax.tree.map\(lambda a: a\[0\], ...\)"):
            use()
    assert "Scaler('torch'" in repr(two) and "Report(" in repr(reports)
    assert jax.tree.map(lambda a: a[1], two) == one.update(True)


def test_a_repr_never_raises():
    scaler = Scaler("torch")
    report = scaler.measure([jnp.array([jnp.inf])])
    assert "bad" not in repr(report) and "inf_count=1" in repr(report)
    assert "bad=" in repr(scaler.measure([jnp.array([jnp.inf])], per_tensor=True))
    assert "ShapeDtypeStruct" in repr(jax.eval_shape(lambda: (scaler, report)))
    told = []
    jax.eval_shape(lambda *values: told.append(repr(values)), scaler, report)
    assert "Scaler('torch', state=" in told[0]
    assert "None" in repr(jax.tree.map(lambda _: None, scaler))
    with pytest.raises(TypeError, match="growth_interval=5"):
        jax.lax.cond(True, lambda: scaler, lambda: Scaler("torch", growth_interval=5))


def test_equal_scalers_have_one_policy_and_one_state():
    traces = []
    step = jax.jit(lambda scaler: traces.append(0) or scaler.loss_scale, static_argnums=0)
    assert step(Scaler("torch")) == step(Scaler("torch")) and len(traces) == 1
    assert Scaler("torch") == Scaler("torch") and Scaler("torch") != Scaler("torch").update(True)
    assert Scaler("torch") != Scaler("torch", growth_interval=5) and Scaler() != 3


def test_a_scale_is_read_where_transfers_are_disallowed():
    scaler, grads = Scaler("torch"), [jnp.ones(2)]
    report = scaler.measure(grads)
    with jax.transfer_guard("disallow"):
        assert float(scaler.loss_scale) == 2.0**16
        assert not bool(scaler.stopped) and not bool(report.overflow)


def test_the_backend_is_told_and_a_slower_one_warned_of_once(monkeypatch, recwarn):
    assert gradscaler.jax.backend() == "handler" and gradscaler.jax.backend().why == ""
    other = gradscaler.jax.backend("tpu")
    assert other == "jnp" and "no compiled handler for tpu" in other.why
    monkeypatch.setattr(gradscaler.jax._xla, "why_not", lambda platform: "of a test")
    gradscaler.jax._call._warn_once.cache_clear()
    for _ in range(2):
        jax.jit(lambda g: Scaler().measure(g))([jnp.ones(2)])
    told = [str(warning.message) for warning in recwarn if "jax.numpy" in str(warning.message)]
    assert len(told) == 1 and "of a test" in told[0]


def test_the_policy_of_a_scaler_makes_a_scaler_of_the_host():
    scaler = Scaler("torch", growth_interval=5)
    assert repr(gradscaler.Scaler(scaler.policy)) == repr(scaler)


@pytest.mark.parametrize("bad", ["x", object(), Fraction(1, 2), np.array(["x"]), np.array([object()])], ids=range(5))
def test_what_is_no_gradient_is_refused_by_its_place(bad):
    for call in (Scaler().unscale, gradscaler.jax.all_finite):
        with pytest.raises(TypeError, match=r"\['bad'\].*expected an array or a number"):
            call({"good": jnp.ones(2), "bad": bad})


def test_what_is_no_float_is_left_alone():
    tree = {"count": 3, "flag": True, "nothing": None, "key": jax.random.key(0), "steps": np.int32(2)}
    assert Scaler().unscale(tree)[0] == tree and gradscaler.jax.all_finite(tree)


def test_the_copy_of_a_policy_is_not_assigned_to():
    scaler = Scaler("torch").set_scale(8.0)
    with pytest.raises(AttributeError, match=r"scaler.replace\(growth_interval=3\)"):
        scaler.policy.growth_interval = 3
    changed = scaler.replace(growth_interval=3)
    assert (changed.policy.growth_interval, float(changed.loss_scale), changed.preset) == (3, 8.0, "torch")
    assert scaler.policy.growth_interval == 2000
    host = gradscaler.Scaler(scaler.policy)  # which has rules of its own
    host.policy.growth_interval = 3
    assert host.policy.growth_interval == 3
    with pytest.raises(gradscaler.Error, match="growth_factor"):
        scaler.replace(growth_factor=0.5)


def test_a_report_is_neither_true_nor_false():
    with pytest.raises(TypeError, match="report.overflow"):
        bool(Scaler().unscale([jnp.ones(2)])[1])


@pytest.mark.parametrize("options", [{}, {"clip_value": 5.0}, {"dtype": jnp.float16}], ids=["plain", "clip", "narrow"])
@pytest.mark.parametrize("compiled", [False, True])
def test_unscaled_gradients_are_differentiated_once_more(way, options, compiled):
    scaler = Scaler("static", init_scale=4.0)

    def loss(p):
        return (2 * p**3).sum()

    def penalty(p, scaler):
        grads, report = scaler.unscale(jax.grad(lambda p: scaler.scale(loss(p)))(p), **options)
        return (grads.astype(jnp.float32) ** 2).sum(), scaler.update(report)

    def expected(p):
        grads = jax.grad(loss)(p)
        return (jnp.clip(grads, -5, 5) ** 2 if "clip_value" in options else grads**2).sum()

    second = jax.jit(jax.grad(penalty, has_aux=True)) if compiled else jax.grad(penalty, has_aux=True)
    found, moved = second(jnp.array([0.5, 2.0]), scaler)
    assert found.tolist() == jax.grad(expected)(jnp.array([0.5, 2.0])).tolist()
    assert float(moved.loss_scale) == 4.0


def test_a_step_of_a_scaler_may_be_an_inner_one(way):
    """As in MAML: the outer gradient goes through what the inner step made of parameters."""

    def adapted(p):
        result = Scaler("static", init_scale=4.0).value_and_grad(lambda q: (q**2).sum())(p)
        return ((p - 0.25 * result.grad) ** 2).sum()

    assert jax.grad(adapted)(jnp.array([1.0, -2.0])).tolist() == [0.5, -1.0]


def test_max_norm_is_refused_where_it_is_differentiated(way):
    def clipped(p):
        return Scaler("static").unscale(p, max_norm=1.0)[0].sum()

    with pytest.raises(NotImplementedError, match="max_norm is not differentiated"):
        jax.grad(clipped)(jnp.ones(2))


def test_metrics_are_those_of_the_host_with_the_report():
    scaler = Scaler("torch", guard_norm=2)
    _, report = scaler.unscale([jnp.full(4, 65536.0)], want=Want.NORM)
    scaler = scaler.update(report)
    metrics = scaler.metrics(report)
    assert (metrics["norm"], metrics["loss_scale"], metrics["guard_threshold"]) == (2.0, 65536.0, 2.0)
    assert "nan_count" not in scaler.metrics()
    with pytest.raises(TypeError, match="outside of jit"):
        jax.jit(lambda scaler: scaler.metrics())(scaler)
