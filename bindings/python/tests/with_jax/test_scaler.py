# SPDX-License-Identifier: MIT
"""The Scaler inside compiled programs: the same gradients, verdicts and states by the handler and in jax.numpy."""

import copy
import math
import pickle
from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import serialization
from flax.training.dynamic_scale import DynamicScale
from jax.experimental import sparse
from saved_by_0_9 import SAVED as SAVED_BY_0_9
from support import OBSERVED

import gradscaler
import gradscaler.jax
from gradscaler import Want, _lines
from gradscaler._structs import State
from gradscaler.jax import DynamicLossScale, Report, Scaler, scaled


def all_values(dtype):
    """Returns every number of a narrow dtype; of float32 a sample of all magnitudes."""
    if dtype.itemsize < 4:
        return np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
    return np.random.default_rng(1).integers(0, 2**32, 100_000, np.uint32).view(np.float32)


def is_subnormal(array):
    wide = array.astype(np.float64)
    return (wide != 0) & (np.abs(wide) < float(ml_dtypes.finfo(array.dtype).smallest_normal))


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32"])
def test_gradients_in_jnp_have_the_bits_of_the_core_except_subnormal_ones(in_jnp, name, narrow):
    values = all_values(np.dtype(getattr(ml_dtypes, name, name)))
    for scale in [2.0**16, 3.0, 2.0**-3, 2.0**-130, 2.0**130, 2.0**200, 2.0**-250]:  # in one program
        scaler = Scaler("static").set_scale(scale)
        out = np.empty(values.shape, values.dtype if narrow else np.float32)
        expected = scaler.to_host().unscale([values], [out])
        (found,), report = scaler.unscale([jnp.asarray(values)], dtype=out.dtype)
        found = np.asarray(found)
        with np.errstate(all="ignore"):  # XLA flushes subnormal numbers in, out, or on the way
            true = values.astype(np.float64) / scale
            flushed = is_subnormal(values) | is_subnormal(out) | (np.abs(true) < 2.0**-125) & (true != 0)
        nan = np.isnan(out.astype(np.float64))
        assert np.all((out.view(f"u{out.itemsize}") == found.view(f"u{out.itemsize}")) | flushed | nan)
        assert np.array_equal(nan[~flushed], np.isnan(found.astype(np.float64))[~flushed])
        report = report.to_host()
        for field in "overflow", "nan_count", "inf_count", "first_tensor", "first_element", "last_tensor":
            assert getattr(report, field) == getattr(expected, field), field


def test_a_report_is_that_of_the_host(way):
    rng = np.random.default_rng(0)
    grads = {
        "layer": {"w": rng.normal(0, 1, (33, 70)).astype(np.float32), "b": rng.normal(0, 1, 70).astype(np.float16)},
        "head": [rng.normal(0, 1, 4099).astype(ml_dtypes.bfloat16), np.float32(3)],
        "complex": (rng.normal(0, 1, 9) + 1j * rng.normal(0, 1, 9)).astype(np.complex64),
        "empty": np.zeros((0, 3), np.float32),
    }
    grads["layer"]["w"][2, 3] = np.inf
    grads["layer"]["w"][5, 0] = np.nan
    grads["complex"][4] = complex(1, np.nan)
    leaves = [np.array(leaf) for leaf in jax.tree.leaves(grads)]
    expected = gradscaler.Scaler("recommended").unscale(leaves, want=Want.NORM | Want.AMAX, per_tensor=True)
    unscale = jax.jit(lambda scaler, grads: scaler.unscale(grads, want=Want.NORM | Want.AMAX, per_tensor=True))
    _, report = unscale(Scaler("recommended"), grads)
    found = report.to_host()
    same = (
        "overflow elements nan_count inf_count first_tensor first_element last_tensor generation measured kind status"
    )
    for name in [*same.split(), "amax"]:
        assert getattr(found, name) == getattr(expected, name), name
    assert found.norm == pytest.approx(expected.norm, rel=1e-6)
    assert found.first_overflow == ("['complex']", 4) and found.last_overflow == "['layer']['w']"
    assert report.bad == {"['complex']": 1, "['layer']['w']": 2}
    for name, one in expected.per_tensor.items():
        other = found.per_tensor[report.names[name]]
        assert (one.overflow, one.amax, one.elements) == (other.overflow, other.amax, other.elements)
        assert other.norm == pytest.approx(one.norm, rel=1e-6)


def test_the_norm_is_right_to_a_millionth_at_every_magnitude(way):
    normal = np.random.default_rng(0).standard_normal(300_001)
    for size in 1e-30, 1e-20, 1e-3, 1.0, 1e15, 1e30:
        values = (normal * size).astype(np.float32)
        _, report = Scaler("none").unscale([values], want=Want.NORM)
        assert float(report.norm) == pytest.approx(np.linalg.norm(values.astype(np.float64)), rel=1e-6, abs=0)


@pytest.mark.parametrize("kind, remedy", [("BCOO", "sum_duplicates"), ("BCSR", "todense"), ("CSR", "todense")])
def test_a_sparse_array_with_indices_that_can_repeat_is_refused_with_the_remedy(kind, remedy):
    made = getattr(sparse, kind).fromdense(jnp.array([[0.0, 3.0], [4.0, jnp.nan]]))
    parts = jax.tree.leaves(made)
    scaler, unsure = Scaler("torch", init_scale=1.0), made
    if kind == "BCOO":
        unsure = sparse.BCOO(tuple(parts), shape=made.shape)
        assert unsure.sum_duplicates().unique_indices
    with pytest.raises(ValueError, match=rf"grads\['w'\] is a {kind} that can have an index twice.* pass its {remedy}"):
        scaler.unscale({"w": unsure})
    if kind != "CSR":
        sure = getattr(sparse, kind)(tuple(parts), shape=made.shape, unique_indices=True)
        grads, report = jax.jit(lambda grads: scaler.unscale(grads, per_tensor=True))({"w": sure})
        assert report.to_host().bad == {"['w'].data": 1} and type(grads["w"]) is type(sure)


def test_other_leaves_than_floats_are_left_alone():
    others = {"count": 3, "flag": True, "nothing": None, "key": jax.random.key(0), "steps": np.int32(2)}
    others |= {"step": jnp.arange(3), "zero": np.zeros(2, jax.dtypes.float0)}
    found, report = Scaler("static", init_scale=4.0).unscale(others | {"w": jnp.ones(2)})
    assert found.pop("w").tolist() == [0.25, 0.25] and report.to_host().elements == 2
    assert all(found[name] is other for name, other in others.items()) and len(found) == len(others)
    assert gradscaler.jax.all_finite(others)


def test_an_empty_tree_has_no_overflow(way):
    found, report = Scaler().unscale({})
    assert found == {} and not report.overflow
    assert np.asarray(Report.merge([]).words).tobytes() == bytes(gradscaler.Report.merge([]))


def test_clip_value_clamps_and_counts(way):
    grads = [jnp.array([1.0, -9.0, jnp.inf, jnp.nan])]
    found, report = Scaler("static", init_scale=2.0).unscale(grads, clip_value=2.0)
    assert np.array_equal(found[0], [0.5, -2.0, 2.0, np.nan], equal_nan=True)
    assert report.to_host().clamped == 2 and report.overflow
    rounded = [("float16", 70000.0, 1e5, 65504.0), ("bfloat16", 1.0, 0.1, 0.099609375)]
    for dtype, value, limit, expected in [*rounded, ("float8_e4m3fn", 470.0, 500.0, 448.0)]:
        found, report = Scaler("none").unscale([jnp.array([value, -value])], dtype=dtype, clip_value=limit)
        assert found[0].astype(float).tolist() == [expected, -expected], dtype
        assert not report.overflow and report.to_host().clamped == 2
    with pytest.raises(ValueError, match="clip_value.*float16"):
        Scaler("none").unscale([jnp.ones(2, jnp.float16)], clip_value=1e-9)


def test_a_micro_batch_that_overflowed_is_left_out_of_the_sums(way):
    scaler = Scaler("static", init_scale=2.0)
    accumulate = jax.jit(lambda g, s: scaler.unscale_accumulate(g, s, want=Want.NORM))
    sums, good = accumulate({"w": jnp.full(3, 4.0, jnp.float16)}, {"w": jnp.ones(3, jnp.float32)})
    sums, bad = accumulate({"w": jnp.array([1, jnp.inf, 1], jnp.float16)}, sums)
    assert sums["w"].tolist() == [3.0, 3.0, 3.0]
    assert not good.overflow
    for addends in False, True:
        merged = Report.merge([good, bad], addends=addends)
        expected = gradscaler.Report.merge([good.to_host(), bad.to_host()], addends=addends)
        assert np.asarray(merged.words).tobytes() == bytes(expected)


def test_results_and_norms_that_become_too_large_are_an_overflow(way):
    _, report = Scaler("static", init_scale=0.5).unscale([jnp.array([400.0], jnp.float8_e4m3fn)])
    assert report.overflow and report.to_host().inf_count == 1
    report = Scaler("fairseq").measure([jnp.full(100, 3e38)])
    assert report.overflow and not report.inf_count
    assert not Scaler("torch").measure([jnp.full(100, 3e38)]).overflow


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
    values = np.random.default_rng(0).standard_normal(1000)
    out = np.empty_like(values)
    expected = gradscaler.Scaler("static", init_scale=3.0).unscale([values], [out], want=Want.NORM)
    with jax.enable_x64(True):
        found, report = Scaler("static", init_scale=3.0).unscale([jnp.asarray(values)], want=Want.NORM)
        assert found[0].dtype == jnp.float64 and np.array_equal(found[0], out)
        assert report.to_host().norm == pytest.approx(expected.norm, rel=1e-12)


def test_underflow_and_histograms_are_the_handlers_alone(way):
    def unscale(**options):
        return Scaler().unscale([jnp.array([2.0**-140, 1.0])], dtype=jnp.float16, **options)[1].to_host()

    if way == "handler":
        report = unscale(want=Want.UNDERFLOW, histogram=True)
        assert report.underflows_to_zero == report.underflows_to_subnormal == sum(report.histogram) == 1
        assert report.histogram_elements == 2
        return
    for options, match in ({"want": Want.UNDERFLOW}, "UNDERFLOW"), ({"histogram": True}, "histogram"):
        with pytest.raises(NotImplementedError, match=match):
            unscale(**options)


def test_only_a_program_without_the_handler_calls_the_host(way):
    text = jax.jit(lambda s, g: s.step(g)).lower(Scaler(), [jnp.ones(3)]).compile().as_text()
    assert "outfeed" not in text and text.count('custom_call_target="xla_ffi_python') == (way == "jnp")
    assert ('custom_call_target="gradscaler"' in text) == (way == "handler")


def test_a_batch_of_steps_is_its_steps(way):
    scalers = [Scaler("torch").set_scale(2.0**k, good_steps=k) for k in range(3)]
    grads = jnp.array([[1.0, 2.0], [np.inf, 3.0], [4.0, np.nan]])
    batch = jax.tree.map(lambda *x: jnp.stack(x), *scalers)
    step = jax.jit(lambda scaler, grad: scaler.step(grad, max_norm=1.0, per_tensor=True))
    _, reports, after = jax.vmap(step)(batch, grads)
    for i, (scaler, grad) in enumerate(zip(scalers, grads, strict=True)):
        _, report, one = step(scaler, grad)
        assert np.array_equal(after.state[i], one.state) and np.array_equal(reports.words[i], report.words)
        assert np.array_equal(reports.words_per_tensor[i], report.words_per_tensor)
    assert reports.overflow.tolist() == [False, True, True]
    twice = jax.vmap(jax.vmap(lambda scaler: scaler.update(True).loss_scale))
    assert twice(jax.tree.map(lambda a: a[None], batch)).tolist() == [[0.5, 1.0, 2.0]]


def test_value_and_grad_unscales_loss_aux_and_gradients_and_narrows_nothing():
    def loss(params, x):
        value = sum(jnp.sum(leaf * x) for leaf in params.values()).astype(jnp.float16)
        return value, {"value": value}

    with jax.enable_x64(True):
        params = {"float64": jnp.ones(3, jnp.float64), "float32": jnp.ones(3, jnp.float16)}
        step = jax.jit(lambda scaler, params, x: scaler.value_and_grad(loss, has_aux=True)(params, x))
        scaler, finite, (value, aux), grads = step(Scaler("torch", init_scale=2.0**10), params, jnp.arange(3.0))
        assert finite and value == aux["value"] == 6 and scaler.good_steps == 1
        assert all(grad.dtype == name and grad.tolist() == [0, 1, 2] for name, grad in grads.items())


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


@pytest.mark.parametrize("options", [{}, {"clip_value": 5.0}, {"dtype": jnp.float16}], ids=["plain", "clip", "narrow"])
def test_unscaled_gradients_are_differentiated_once_more(way, options):
    def loss(p):
        return (2 * p**3).sum()

    def penalty(p, scaler):
        grads, report = scaler.unscale(jax.grad(lambda p: scaler.scale(loss(p)))(p), **options)
        return (grads.astype(jnp.float32) ** 2).sum(), scaler.update(report)

    def expected(p):
        grads = jax.grad(loss)(p)
        return (jnp.clip(grads, -5, 5) ** 2 if "clip_value" in options else grads**2).sum()

    second, p = jax.grad(penalty, has_aux=True), jnp.array([0.5, 2.0])
    for function in second, jax.jit(second):
        found, moved = function(p, Scaler("static", init_scale=4.0))
        assert found.tolist() == jax.grad(expected)(p).tolist() and float(moved.loss_scale) == 4.0


def test_a_step_of_a_scaler_may_be_an_inner_one():
    """As in MAML: the outer gradient goes through the inner step's parameters."""

    def adapted(p):
        result = Scaler("static", init_scale=4.0).value_and_grad(lambda q: (q**2).sum())(p)
        return ((p - 0.25 * result.grad) ** 2).sum()

    assert jax.grad(adapted)(jnp.array([1.0, -2.0])).tolist() == [0.5, -1.0]
    with pytest.raises(NotImplementedError, match="max_norm is not differentiated"):
        jax.grad(lambda p: Scaler("static").unscale(p, max_norm=1.0)[0].sum())(jnp.ones(2))


def test_nothing_is_lost_through_flatten_and_checkpoints(tmp_path):
    scaler = Scaler("megatron", growth_interval=5).update(True).update(False)
    leaves, structure = jax.tree.flatten(scaler)
    np.savez(tmp_path / "checkpoint.npz", *leaves)
    restored = jax.tree.unflatten(structure, [jnp.asarray(a) for a in np.load(tmp_path / "checkpoint.npz").values()])
    host = gradscaler.Scaler()
    host.load_state_dict(scaler.state_dict())
    for one in restored, Scaler.from_state_dict(scaler.state_dict()), Scaler.from_host(host):
        assert one == scaler and repr(one) == repr(scaler)
    assert repr(gradscaler.Scaler(scaler.policy)) == repr(gradscaler.Scaler("megatron", growth_interval=5))


def words_of_0_9(name):
    return jnp.asarray(np.frombuffer(SAVED_BY_0_9[name], np.uint32))


def test_what_0_9_saved_is_refused_by_one_sentence():
    scaler, report = Scaler("torch"), Report(words_of_0_9("report"))
    leaf, old = words_of_0_9("state"), scaler._with(words_of_0_9("state"))
    assert jax.tree.unflatten(jax.tree.structure(scaler), [np.asarray(leaf)]).state.shape == (96,)  # read later
    pickled, policy = copy.copy(scaler), np.array([216] + [0] * 53, np.uint32)  # its size in 0.9, and 212 bytes
    vars(pickled)["_policy"] = policy.tobytes()
    saved = serialization.msgpack_serialize({"state": np.asarray(leaf), "policy": policy.view(np.uint8)})
    for read in [
        old.to_host,
        old.state_dict,
        old.metrics,
        lambda: old.set_scale(8.0),
        lambda: copy.copy(pickled),
        lambda: pickle.loads(pickle.dumps(pickled)),
        lambda: serialization.from_bytes(scaler, saved),
        lambda: Scaler.from_state_dict({"preset": "torch", "saved": SAVED_BY_0_9["bytes"].hex()}),
        report.to_host,
    ]:
        with pytest.raises(
            gradscaler.Error, match=r"cannot be read by this version \(.*\): 0.9 or an earlier"
        ) as refused:
            read()
        assert refused.value.status == gradscaler.Status.ERROR_VERSION
    assert "state=Array" in repr(old) and "Report(Array" in repr(report)


def test_words_of_0_9_are_no_step(way):
    """The factor has not changed; a state is refused by the status, or on the CPU as an error of the program."""
    old, grads = Scaler("torch")._with(words_of_0_9("state")), [jnp.ones(2)]
    for step in old.update, jax.jit(lambda report: old.update(report)):
        if way == "jnp":
            state = State.from_buffer_copy(np.asarray(step(False).state).tobytes())
            assert (state.status, state.skip) == (gradscaler.Status.ERROR_VERSION, 1)
        else:
            with pytest.raises(
                Exception, match="0.9 or an earlier candidate saved this; start anew, and set the old scale"
            ):
                jax.block_until_ready(step(False).state)
    assert old.unscale(grads)[0][0].tolist() == [1 / float(old.loss_scale)] * 2


def test_flax_saves_a_scaler_and_restores_it_as_one():
    scaler = Scaler("torch", growth_interval=5).update(True)
    saved = serialization.to_bytes({"ds": scaler, "report": scaler.measure([jnp.ones(2)])})
    target = {"ds": Scaler("torch", growth_interval=5), "report": Report.of(True)}
    restored = serialization.from_bytes(target, saved)
    assert restored["ds"] == scaler and not restored["report"].overflow
    with pytest.warns(UserWarning, match="backoff_factor was 0.5 and is 0.25; growth_interval was 5 and is 2000"):
        changed = serialization.from_bytes(target | {"ds": Scaler("torch", backoff_factor=0.25)}, saved)
    assert (changed["ds"].policy.growth_interval, changed["ds"].loss_scale) == (2000, scaler.loss_scale)
    with pytest.raises(ValueError, match="a Scaler has state, policy, the checkpoint state"):
        serialization.from_state_dict(scaler, {"state": np.asarray(scaler.state)})
    with pytest.raises(TypeError, match="the checkpoint of a Scaler must be a dict, not NoneType"):
        serialization.from_state_dict(scaler, None)
    saved = serialization.to_state_dict(DynamicScale(fin_steps=7, scale=1024.0))
    restored = serialization.from_state_dict(Scaler("flax"), saved)
    assert (restored.preset, float(restored.loss_scale), int(restored.good_steps)) == ("flax", 1024.0, 7)


def test_a_foreign_checkpoint_wants_a_policy_and_an_edited_one_set_scale():
    foreign = gradscaler.Scaler("torch", init_scale=8.0).state_dict(format="torch")
    assert Scaler.from_state_dict(foreign, policy="torch").loss_scale == 8.0
    with pytest.raises(ValueError, match="pass one, such as policy='torch'"):
        Scaler.from_state_dict(foreign)
    with pytest.raises(ValueError, match="use set_scale"):
        Scaler.from_state_dict(Scaler("torch").state_dict() | {"scale": 8.0})


def test_a_batch_of_scalers_is_read_by_its_members():
    one = Scaler("torch", growth_interval=5).update(False)
    two = jax.tree.map(lambda a, b: jnp.stack([a, b]), one, one.update(True))
    assert two.loss_scale.tolist() == [2.0**16, 2.0**15]
    assert two.good_steps.tolist() == [1, 0] and two.total_overflows.tolist() == [0, 1]
    assert two.events.shape == two.stopped.shape == (2,) and two.factor.shape == (2, 8)
    reports = jax.vmap(lambda s: s.measure([jnp.ones(2)], per_tensor=True))(two)
    calls = [(two.to_host,), (two.state_dict,), (two.set_scale, 2.0), (two.scale, 1.0), (two.update, True)]
    calls += [(two.unscale, [jnp.ones(2)]), (reports.to_host,)]
    calls += [(getattr, reports, name) for name in ("per_tensor", "bad")]
    for call, *arguments in calls:
        with pytest.raises(ValueError, match=r"a batch of 2: take one with jax.tree.map\(lambda a: a\[0\], ...\)"):
            call(*arguments)
    assert "Scaler('torch'" in repr(two) and "Report(" in repr(reports)
    assert jax.tree.map(lambda a: a[1], two) == one.update(True)


def test_a_repr_never_raises():
    scaler = Scaler("torch")
    report = scaler.measure([jnp.array([jnp.inf])])
    assert "bad" not in repr(report) and "inf_count=1" in repr(report)
    assert "bad=" in repr(scaler.measure([jnp.array([jnp.inf])], per_tensor=True))
    assert "ShapeDtypeStruct" in repr(jax.eval_shape(lambda: (scaler, report)))
    traced = []
    jax.eval_shape(lambda *values: traced.append(repr(values)), scaler, report)
    assert "Scaler('torch', state=" in traced[0]
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
    scaler = Scaler("torch")
    report = scaler.measure([jnp.ones(2)])
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


def test_a_policy_is_a_copy_and_replace_makes_another_scaler():
    scaler = Scaler("torch").set_scale(8.0)
    with pytest.raises(AttributeError, match=r"scaler.replace\(growth_interval=3\)"):
        scaler.policy.growth_interval = 3
    changed = scaler.replace(growth_interval=3)
    assert (changed.policy.growth_interval, float(changed.loss_scale), changed.preset) == (3, 8.0, "torch")
    assert scaler.policy.growth_interval == 2000
    host = gradscaler.Scaler(scaler.policy)  # which has rules of its own
    host.policy.growth_interval = 3
    assert host.policy.growth_interval == 3


def test_metrics_are_those_of_the_host_with_the_report():
    scaler = Scaler("torch", guard_norm=2)
    _, report = scaler.unscale([jnp.full(4, 65536.0)], want=Want.NORM)
    scaler = scaler.update(report)
    metrics = scaler.metrics(report)
    assert (metrics["norm"], metrics["loss_scale"], metrics["guard_threshold"]) == (2.0, 65536.0, 2.0)
    assert "nan_count" not in scaler.metrics()


def test_a_scaler_and_its_report_answer_outside_of_jit_with_the_names_that_all_scalers_have(tmp_path):
    scaler = Scaler("torch")
    assert set(dir(scaler)) >= OBSERVED
    with scaler.history(tmp_path / "run.jsonl") as history:
        for bad in 1.0, math.nan:
            _, report, scaler = jax.jit(lambda s, g: s.step(g)[:3])(scaler, {"w": jnp.array([1.0, bad])})
            history.record(scaler, report)
            assert (report.bad, bool(report.overflow)) == ({}, bad != 1)  # the names need per_tensor=True
    assert [row["nan_count"] for row in _lines.table(tmp_path / "run.jsonl")[1]] == [0, 1]
    assert scaler.reason(report) == "skipped: 1 NaN, the last in tensor 0"
    low = Scaler("torch", init_scale=8.0)
    assert [note.kind for note in low.diagnose(planned_steps=9)] == [gradscaler.NoteKind.NEVER_GROWS]


def test_what_was_donated_can_be_printed():
    scaler, scale = Scaler("torch"), DynamicLossScale(8.0)
    report = scaler.unscale([jnp.ones(2)])[1]
    for array in scaler.state, report.words, scale.loss_scale:
        array.delete()
    assert repr(scaler) == "Scaler('torch', state=<donated>)" and repr(report) == "Report(<donated>)"
    assert "loss_scale=<donated>" in repr(scale)


def of_number(loss):
    return gradscaler.Report.of_number(loss).norm


def test_every_refusal_says_what_to_do():
    scaler, guard, grads, optimizer = Scaler(), Scaler("guard"), [jnp.ones(3)], optax.sgd(1.0)
    parts = {"a": scaled(optimizer), "b": optimizer}
    for call, kind, match in [
        (lambda: scaler.unscale(grads, max_norm=-1), ValueError, "max_norm=-1.0: it must be finite and above 0"),
        (lambda: scaler.unscale(grads, want="norm"), TypeError, "a union of gradscaler.Want"),
        (lambda: scaler.unscale(grads, factor=2.0), TypeError, "scaler.factor"),
        (lambda: scaler.unscale_accumulate(grads, [jnp.ones(4)]), ValueError, r"sums\[0\] has the shape \(4,\)"),
        (lambda: scaler.unscale_accumulate(grads, {"a": 1.0}), ValueError, "not the tree of grads"),
        (lambda: scaler.unscale(grads)[1].norm, ValueError, "want=gradscaler.Want.NORM"),
        (lambda: scaler.unscale(grads)[1].per_tensor, ValueError, "per_tensor=True"),
        (lambda: bool(scaler.unscale(grads)[1]), TypeError, "report.overflow"),
        (lambda: scaler.unscale(grads, dtype="fp16"), TypeError, "dtype='fp16' is no dtype: pass float32, float64"),
        (lambda: scaler.unscale(grads, dtype=jnp.int32), TypeError, "dtype='int32' has no fractions"),
        (lambda: scaler.update(scaler.unscale(grads)), TypeError, "the second part of what unscale returned"),
        (lambda: scaler.update(scaler), TypeError, "the report of unscale, .*not Scaler"),
        (lambda: scaler.update(3.0), TypeError, "the report of unscale, .*not float"),
        (lambda: scaler.update([]), TypeError, "the report of unscale, .*not list"),
        (lambda: setattr(scaler, "state", scaler.state), AttributeError, "use set_scale"),
        (lambda: scaler.replace(growth_factor=0.5), gradscaler.Error, "growth_factor"),
        (lambda: Scaler("nothing"), gradscaler.Error, "no preset"),
        # A guard cannot judge these.
        (lambda: guard.update(False), ValueError, "judges by what a bool does not have: pass a report"),
        (lambda: guard.update(Report.of(True)), ValueError, "guards by the norm, which the report la"),
        (lambda: jax.jit(guard.update)(Report.of(False)), ValueError, "which the report lacks"),
        (lambda: Report.of(True).norm, ValueError, "the report has no norm"),
        (lambda: guard.combine_decisions(gradscaler.Scaler("guard")), TypeError, "a gradscaler.jax.Scaler, not gra"),
        (lambda: Report.of_number(np.ones(2)), ValueError, r"number has the shape \(2,\)"),
        (lambda: Report.of_number(np.complex64(3j)), TypeError, "number is of complex64: pass a real one"),
        (lambda: jax.jit(of_number)(2.0), TypeError, r"^number=.*: Abstract tracer value .* float32"),
        # Optimizers that are scaled.
        (lambda: scaled(optimizer, max_norm=-1), ValueError, "max_norm=-1.0"),
        (lambda: scaled("adam"), TypeError, "optimizer must be one of optax, .*not str"),
        (lambda: scaled(optimizer, dtype="fp16"), TypeError, "dtype='fp16' is no dtype"),
        (lambda: scaled(optimizer).update([jnp.ones(2)], ()), TypeError, "ScaledState, not tuple"),
        (lambda: scaled(optimizer, 3.0), TypeError, "name of a preset"),
        (lambda: optax.masked(scaled(optimizer), [True, False]).init(grads * 2), ValueError, "make it the outermost"),
        (lambda: optax.multi_transform(parts, ["a", "b"]).init(grads * 2), ValueError, "make it the outermost"),
    ]:
        with pytest.raises(kind, match=match):
            call()


@pytest.mark.parametrize("bad", ["x", object(), Fraction(1, 2), np.array(["x"]), np.array([object()])], ids=range(5))
def test_a_leaf_that_is_no_number_is_refused_by_its_path(bad):
    for call in (Scaler().unscale, gradscaler.jax.all_finite):
        with pytest.raises(TypeError, match=r"\['bad'\].*expected an array or a number"):
            call({"good": jnp.ones(2), "bad": bad})


def test_a_call_that_needs_the_host_or_a_python_number_says_so_in_jit():
    for use, match in [
        (lambda s, r: s.to_host(), r"to_host\(\) only outside of jit: return the scaler"),
        (lambda s, r: s.state_dict(), r"state_dict\(\) only outside of jit: return the scaler"),
        (lambda s, r: s.set_scale(2.0), r"set_scale\(\) only outside of jit: return the scaler"),
        (lambda s, r: s.metrics(), "outside of jit"),
        (lambda s, r: r.bad, "bad only outside of jit: return the report"),
        (lambda s, r: s.unscale([jnp.ones(2)], max_norm=s.loss_scale), "max_norm must be a Python number: it is comp"),
        (lambda s, r: s.unscale([jnp.ones(2)], clip_value=s.loss_scale), "clip_value must be a Python number: it is"),
    ]:
        with pytest.raises(TypeError, match=match):
            jax.eval_shape(lambda s, use=use: use(s, s.measure([jnp.ones(2)], per_tensor=True)), Scaler())


@pytest.mark.parametrize("name", ["norm", "amax"])
def test_a_value_that_was_not_measured_is_also_refused_in_jit(name):
    with pytest.raises(ValueError, match=f"no {name}: pass want=gradscaler.Want.{name.upper()}"):
        jax.eval_shape(lambda s: getattr(s.measure([jnp.ones(2)], want=Want(3 & ~Want[name.upper()])), name), Scaler())
    merged = lambda s: Report.merge([s.measure([jnp.ones(2)], want=3)] * 2)  # noqa: E731
    assert jax.jit(lambda s: getattr(merged(s), name))(Scaler()).shape == ()
