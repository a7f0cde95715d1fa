# SPDX-License-Identifier: MIT
"""A Scaler in a training loop: its calls and their results."""

import copy
import gc
import json
import math
import pickle
import weakref

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2
from support import F32, array_that_calls, contents, folded, scaler_of, used_scaler

import gradscaler
from gradscaler import Arrays, Event, Growth, Guard, LimitRule, Policy, Report, Scaler, Want
from gradscaler import _gradscaler as c
from gradscaler._report import explained
from gradscaler._structs import Cause, Dtype, Evidence

F16, F64 = np.float16, np.float64
E4M3, E5M2, CB16 = float8_e4m3fn, float8_e5m2, gradscaler.cb16
C64, C128 = np.complex64, np.complex128


def bits(array):
    return array.dtype.name, array.shape, array.tobytes()


# ---- containers and arrays ----


def named(arrays):
    """A dict with keys of any kind."""
    return dict(zip([0, ("b", 2), "c"], arrays, strict=False))


@pytest.mark.parametrize("container", [list, tuple, named])
def test_a_container_is_unscaled_in_place(container):
    a, b = np.array([8, 16], F32), np.array([[24]], F16)
    grads = container([a, b])
    report = scaler_of(8.0).unscale(grads)
    assert (report.grads is grads, a.tolist(), b.tolist(), report.elements) == (True, [1, 2], [[3]], 3)


def test_one_array_gives_one_array():
    gradient = np.array([8, 16], F16)
    made = scaler_of(8.0).unscale(gradient, dtype=F32)
    report = scaler_of(8.0).unscale(gradient)
    assert bits(made.grads) == bits(np.array([1, 2], F32))
    assert (report.grads is gradient, gradient.tolist()) == (True, [1, 2])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (4097,), (2, 3, 4), (1,) * 64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_of_any_shape_and_dense_order_is_unscaled(shape, order):
    gradient = np.arange(math.prod(shape), dtype=F32).reshape(shape, order=order)
    result, expected = np.empty(shape, F32, order=order), bits(gradient / F32(8))
    report = scaler_of(8.0).unscale([gradient], out=[result])
    made = scaler_of(8.0).unscale([gradient], dtype=F32).grads[0]
    scaler_of(8.0).unscale([gradient])
    assert (report.elements, bits(result), bits(made), bits(gradient)) == (gradient.size, *[expected] * 3)


def test_dtypes_mix_in_one_list():
    dtypes = (F16, bfloat16, F32, F64, E4M3, E5M2, C64, C128)
    grads = [np.array([8, 16], dtype) for dtype in dtypes] + [np.array([0x5A00, 0x5C00], np.uint16).view(CB16)]
    report = scaler_of(8.0).unscale(grads)
    assert [g.tolist() for g in grads] == [[1, 2]] * 8 + [[(0x5400,), (0x5600,)]] and report.elements == 18


@pytest.mark.parametrize("dtype", [F16, bfloat16, F64, E4M3, E5M2, C64, C128])
def test_results_have_the_dtype_that_was_asked_for(dtype):
    gradient = np.array([0.3, -5], C64 if dtype in (C64, C128) else F32)
    assert bits(scaler_of(2.0).unscale([gradient], dtype=dtype).grads[0]) == bits((gradient / 2).astype(dtype))


def test_out_of_a_dict_is_found_by_name():
    grads = {"w": np.array([8], F16), "b": np.array([16], F16)}
    out = {"b": np.zeros(1, F32), "w": np.zeros(1, F32), "not used": None}
    report = scaler_of(8.0).unscale(grads, out=out)
    assert (report.grads is out, out["w"][0], out["b"][0], grads["w"][0]) == (True, 1, 2, 8)


def test_none_is_passed_over():
    grads = {"a": None, "b": np.array([8, np.nan], F32), "c": None}
    report = scaler_of(8.0).unscale(grads)
    assert (report.grads is grads, report.bad, report.first_overflow, grads["b"][0]) == (True, {"b": 1}, ("b", 1), 1)
    report = scaler_of(8.0).unscale([None, np.array([np.inf], F32), None], dtype=F64)
    assert (report.bad, [type(g) for g in report.grads]) == ({1: 1}, [type(None), np.ndarray, type(None)])
    assert scaler_of(8.0).unscale([None]).elements == 0


def test_containers_may_be_nested():
    grads = {"layer": {"w": np.array([8], F16), "b": None}, "heads": [np.array([16], F16), (np.array([np.inf], F16),)]}
    report = scaler_of(8.0).unscale(grads, dtype=F32, per_tensor=True)
    assert report.bad == {("heads", 1, 0): 1} and report.first_overflow == (("heads", 1, 0), 0)
    assert list(report.per_tensor) == [("layer", "w"), ("heads", 0), ("heads", 1, 0)]
    assert (report.grads["layer"]["w"][0], report.grads["layer"]["b"], report.grads["heads"][0][0]) == (1, None, 2)
    total = {"heads": [np.zeros(1, F32), [np.zeros(1, F32)]], "layer": {"w": np.zeros(1, F32)}}
    grads["heads"][1][0][0] = 24
    assert not scaler_of(8.0).unscale_accumulate(grads, total).overflow
    assert (total["layer"]["w"][0], total["heads"][1][0][0]) == (1, 3)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_step_makes_is_copied_unless_it_is_skipped(threads, held):
    nan = np.array([0x7FA01234, 0xFF800001, 0x3F800000], "u4").view(F32)  # signalling NaN with a payload
    kinds = (F16, bfloat16, E4M3, E5M2, CB16, F32, F64, C64, C128)
    many = np.arange(3 << 20, dtype=F32)  # for threads
    unaligned = np.zeros(13, "u1")[1:].view(F32)
    new = [nan, many, unaligned + 3, *(np.frombuffer(bytes(range(200, 232)), kind) for kind in kinds)]
    old = [np.zeros_like(nan), np.zeros_like(many), unaligned, *(np.zeros_like(array) for array in new[3:])]
    before = [bits(array) for array in old]
    scaler = Scaler("torch", threads=threads)
    arguments = (Arrays(named(new[:3]), named(old[:3])),) if held else (new, old)
    for overflow in True, False:
        scaler.update(overflow)
        scaler.copy_unless_skipped(*arguments)
        expected = before if overflow else [bits(array) for array in new]
        assert [bits(array) for array in old][: 3 if held else None] == expected[: 3 if held else None]


def test_a_copy_names_the_caller_s_arrays():
    scaler, rounded = scaler_of(), [np.zeros(2, F16)]
    scaler.copy_unless_skipped([np.array([1 + 2**-12, 7], F32)], rounded)
    assert rounded[0].tolist() == [1, 7]
    with pytest.raises(gradscaler.Error, match=r"out\['w'\] has another shape"):
        scaler.copy_unless_skipped({"w": np.zeros(3, F32)}, {"w": np.zeros(2, F32)})
    with pytest.raises(gradscaler.Error, match=r"arrays\['w'\]"):
        scaler.copy_unless_skipped({"w": np.zeros(3, np.int64)}, {"w": np.zeros(3, F32)})


def test_a_generator_of_arrays_is_read():
    report = scaler_of(8.0).unscale(np.full(1, 8, F32) for _ in range(3))
    assert [g[0] for g in report.grads] == [1, 1, 1]
    report = scaler_of(8.0).unscale([np.full(1, 8, F32)], (np.zeros(1) for _ in range(1)))
    assert [g[0] for g in report.grads] == [1]


@pytest.mark.parametrize(
    ("loss", "dtype", "expected"),
    [
        (1.5, None, 4.5),
        (2, None, 6.0),
        (F32(1.5), None, F32(4.5)),
        (F16(1.5), None, F32(4.5)),
        (bfloat16(1.5), None, F32(4.5)),
        (np.array(1.5, F16), None, np.array(4.5, F32)),
        (np.array([1.5], F16), None, np.array([4.5], F16)),
        (1.5, F32, F32(4.5)),
        (F32(1.5), F16, F16(4.5)),
        (F32(1.5), "float64", F64(4.5)),
        (np.array([1.5, 2], F32), F16, np.array([4.5, 6], F16)),
        (np.arange(8, dtype=F32)[::2], None, np.array([0, 6, 12, 18], F32)),
        (np.zeros((2, 0), F32), None, np.zeros((2, 0), F32)),
        (1.5 + 2j, None, C128(4.5 + 6j)),
        (np.array([1.5 + 2j], C64), C128, np.array([4.5 + 6j])),
    ],
)
def test_a_scaled_loss_has_the_type_of_the_loss_or_the_dtype(loss, dtype, expected):
    before = bits(np.asarray(loss))
    result = scaler_of(3.0).scale(loss, dtype)
    assert (type(result), bits(np.asarray(result))) == (type(expected), bits(np.asarray(expected)))
    assert bits(np.asarray(loss)) == before


# ---- what a call tells ----


def test_the_edges_of_a_histogram_are_those_of_its_bins():
    edges = Report.histogram_edges
    inside = [np.array([low or 2.0**-60, np.nextafter(high, 0)]) for low, high in zip(edges, edges[1:], strict=False)]
    counts = [scaler_of(1.0).measure([both], histogram=True).histogram for both in inside]
    assert counts == (2 * np.eye(16, dtype=int)).tolist()


def test_what_was_not_wanted_is_refused_by_name():
    for name, wanted, advice in (
        ("norm", {"histogram": True}, "no norm: pass want=gradscaler.Want.NORM"),
        ("amax", {"want": Want.NORM}, "no amax: pass want=gradscaler.Want.AMAX"),
        ("underflows_to_zero", {}, "no underflows_to_zero: pass want=gradscaler.Want.UNDERFLOW"),
        ("histogram", {"want": Want.NORM}, "no histogram: pass histogram=True"),
        ("histogram_elements", {"per_tensor": True}, "no histogram: pass histogram=True"),
        ("per_tensor", {"want": Want.NORM}, "none of each array: pass per_tensor=True"),
    ):
        report = scaler_of(2.0).measure([np.ones(3, F32)], **wanted)
        with pytest.raises(ValueError, match=f"^the report has {advice}$"):
            getattr(report, name)


def test_what_was_bad_in_a_call_is_told_after_others():
    scaler, names = scaler_of(1.0), ["a", "b", "c"]
    arrays = [np.array(values, F32) for values in ([1, 2], [np.nan, np.inf], [np.nan, 1])]
    reports = [scaler.measure(dict(zip(names, arrays[i:] + arrays[:i], strict=True))) for i in range(3)]
    assert [report.bad for report in reports] == [{"b": 2, "c": 1}, {"a": 2, "b": 1}, {"a": 1, "c": 2}]
    assert "bad={'b': 2, 'c': 1}" in repr(reports[0])


def test_clipping_in_place_counts_and_names_what_it_changed():
    grads = {"a": np.array([1, 3, -4, np.nan], F32), "b": np.array([2 + 3j, 1 + 1j], C64), "c": np.array([-np.inf])}
    report = scaler_of(1.0).unscale(grads, clip_value=2.0)
    assert (report.bad, report.inf_count, report.nan_count, report.clamped) == ({"a": 1, "c": 1}, 1, 1, 4)
    assert (grads["a"][:3].tolist(), grads["b"].tolist(), grads["c"].tolist()) == ([1, 2, -2], [2 + 2j, 1 + 1j], [-2])
    assert scaler_of(1.0).unscale(grads, clip_value=F32(2)).clamped == 0 and "clamped=4" in repr(report)


def test_micro_batches_with_one_overflow_are_one_skipped_step():
    scaler, total = Scaler("torch", init_scale=8.0), {"w": np.zeros(2, F32)}
    batches = [np.array([8, 16], F16), np.array([np.inf, 8], F16), np.array([24, 32], F16)]
    reports = [scaler.unscale_accumulate({"w": batch}, total) for batch in batches]
    scaler.update(iter(reports))
    assert (total["w"].tolist(), scaler.total_overflows, scaler.loss_scale) == ([4, 6], 1, 4.0)
    assert scaler.factor.generation == 2


# ---- arrays that are held ----


@pytest.mark.parametrize("last", [24.0, np.inf])
@pytest.mark.parametrize("container", [list, named, lambda arrays: arrays[0]])
@pytest.mark.parametrize(
    ("method", "result", "keywords"),
    [
        (Scaler.unscale, None, {"want": Want.NORM}),
        (Scaler.unscale, F64, {"clip_value": 0.5}),
        (Scaler.unscale, None, {"factor": scaler_of(3.0).factor}),
        (Scaler.measure, None, {"want": Want.AMAX}),
        (Scaler.unscale_accumulate, F32, {"histogram": True, "per_tensor": True}),
    ],
)
def test_held_arrays_give_the_bits_and_the_report_of_their_container(method, result, keywords, container, last):
    def outcome(hold):
        grads = container([np.array([8, last], F16), np.array([[16]], F32), np.array([last], F32)])
        out = (container([np.ones(2, result), np.ones((1, 1), result), np.ones(1, result)]),) if result else ()
        arguments = (Arrays(grads, *out),) if hold else (grads, *out)
        report = method(scaler_of(8.0), *arguments, **keywords)
        known = bytes(report), report.bad, report.first_overflow, report.scale, type(report.grads)
        return known, contents([grads, out, report.grads])

    assert outcome(hold=True) == outcome(hold=False)


def test_held_arrays_see_what_is_written_into_them():
    gradient, out = np.zeros(2, F16), np.zeros(2, F32)
    arrays, reports = Arrays({"w": gradient}, {"w": out}), []
    for step in ([8, 16], [np.nan, 8], [24, 32]):
        gradient[:] = step
        reports.append((scaler_of(8.0).unscale(arrays).bad, out.tolist()))
    assert reports[::2] == [({}, [1, 2]), ({}, [3, 4])] and reports[1][0] == {"w": 1}


def test_held_arrays_are_read_once_of_the_container_as_it_was():
    read, gradient, other = [], np.full(1, 64, F32), np.full(1, 8, F32)
    grads = {"w": (held := array_that_calls(lambda: read.append(1), gradient))}
    arrays = Arrays(grads)
    grads["w"] = grads["more"] = other
    before = len(read)
    report = scaler_of(8.0).unscale(arrays)
    scaler_of(8.0).measure(arrays)
    assert (before > 0, len(read) - before, gradient[0], other[0]) == (True, 0, 8, 8)
    assert list(report.grads) == ["w"] and report.grads["w"] is held


def test_held_arrays_have_results_of_a_dtype():
    arrays = Arrays([np.array([8, 16], F16)], dtype=F32)
    first = scaler_of(8.0).unscale(arrays).grads[0]
    assert scaler_of(4.0).unscale(arrays).grads[0] is first
    assert bits(first) == bits(np.array([2, 4], F32))


def test_a_scaled_list_may_be_held():
    arrays = c.hold([np.array([1, 2], F32)], [out := np.zeros(2, F16)], -1, None)
    c.gsc_scale(None, scaler_of(8.0).factor, arrays, None, None)
    assert (out.tolist(), c.gsc_workspace_size(None, arrays, None)) == ([8, 16], 0)


# ---- updates and factors ----


def test_a_state_is_made_from_a_scale_and_counts():
    """As stateless frameworks keep them: the next good step is the one that grows."""
    scaler = Scaler("torch", growth_interval=3)
    scaler.set_scale(3.0, good_steps=2, total_overflows=5)
    scaler.set_scale(8.0)
    assert (scaler.loss_scale, scaler.scale(2.0), scaler.state.good_steps) == (8.0, 16.0, 2)
    assert scaler.update(False) == scaler.events == Event.GREW
    assert (scaler.loss_scale, scaler.total_overflows, scaler.total_growths) == (16.0, 5, 1)


@pytest.mark.parametrize("overflow", [True, False, np.True_, np.bool_(False)])
def test_a_bool_is_a_report(overflow):
    assert bool(Scaler("torch").update(overflow) & Event.SKIPPED) == bool(overflow)
    assert Scaler("guard").update(np.True_) == Event.SKIPPED | Event.BACKOFF_FAILED  # which judges by a norm


def test_the_verdict_of_a_policy_that_judges_by_the_norm_stands_before_the_step():
    scaler = Scaler("fairseq", init_scale=1.0)
    for value, overflow in (3e19, True), (3e5, False):
        for report in (scaler.unscale([np.full(4, value, F32)]), scaler.measure([np.full(4, value, F32)])):
            assert (report.overflow, report.found_inf, report.bad) == (overflow, float(overflow), {})
        assert bool(scaler.update(report) & Event.SKIPPED) == overflow


def accumulate(scaler, grads, **keywords):
    return scaler.unscale_accumulate(grads, {name: np.zeros_like(grad) for name, grad in grads.items()}, **keywords)


@pytest.mark.parametrize("method", [Scaler.unscale, Scaler.measure, accumulate])
def test_a_factor_is_the_scale_of_its_loss_after_an_update(method):
    scaler = Scaler("torch", init_scale=0.25)
    factor = scaler.factor
    scaler.set_scale(8.0)
    assert method(scaler, {"w": np.array([40000], F16)}).overflow is False
    report = method(scaler, {"w": np.array([40000], F16)}, factor=factor)
    assert (report.overflow, report.bad, report.scale, factor.scale) == (True, {"w": 1}, 0.25, 0.25)


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_clip_factor_clips_to_the_norm_as_torch_does(unscaled):
    scaler, grads = scaler_of(1024.0), [np.array([3 * 1024], F32), np.array([4 * 1024], F32)]
    report = (scaler.unscale if unscaled else scaler.measure)(grads, want=Want.NORM)
    factor = scaler.clip_factor(report, 1.0, unscaled=unscaled)
    assert factor.inverse == 1.0 / (5.0 + 1e-6) / (1.0 if unscaled else 1024.0)
    clipped = scaler.unscale(grads, factor=factor)
    assert (clipped.scale, [float(g[0]) for g in grads]) == (factor.scale, pytest.approx([0.6, 0.8]))


# ---- policies, copies and what they say ----


def test_a_field_replaces_that_of_the_preset():
    for name, value, expected in (
        ("init_scale", np.float32(8), 8.0),
        ("growth_interval", np.int64(8), 8),
        ("overflow_reset", gradscaler.OverflowReset.ON_GROWTH | gradscaler.OverflowReset.ON_BACKOFF, 5),
        ("max_scale", math.inf, math.inf),
        ("apply_delay", True, 1),
    ):
        policy = Policy("torch", **{name: value})
        assert (getattr(policy, name), policy.differences("torch")) == (expected, {name: expected})
        assert policy != Policy("torch") == Policy("torch")


def through_state_dict(scaler):
    restored = Scaler("none")
    restored.load_state_dict(json.loads(json.dumps(scaler.state_dict())))
    return restored


def through_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


def run_to_the_end(overflow):
    """A scaler of scale 0 or infinity."""
    scaler = Scaler("keras", growth_interval=1)
    for _ in range(300):
        scaler.update(overflow)
    assert scaler.loss_scale == (0.0 if overflow else math.inf)
    return scaler


@pytest.mark.parametrize(
    "scaler", [used_scaler(), run_to_the_end(False), run_to_the_end(True)], ids=["used", "inf", "zero"]
)
@pytest.mark.parametrize("restore", [through_state_dict, through_pickle, copy.copy, copy.deepcopy])
def test_a_copy_has_the_policy_and_the_state_and_moves_alone(restore, scaler):
    before = contents(scaler)
    copied = restore(scaler)
    assert contents(copied) == before
    copied.update(True)
    copied.policy.growth_interval = 77
    assert (contents(scaler), contents(copied) == before) == (before, False)


@pytest.mark.parametrize("original", [Policy("torch", growth_interval=7), used_scaler().factor, Report.of_flag(True)])
def test_policies_factors_and_reports_are_pickled(original):
    copied = through_pickle(original)
    assert (type(copied), bytes(copied)) == (type(original), bytes(original))


def grown(preset, steps, **fields):
    """Returns a scaler after good steps, with a growth_interval of 3."""
    scaler = Scaler(preset, growth_interval=3, **fields)
    for _ in range(steps):
        scaler.update(False)
    return scaler


EVERY, ALL = (f"'{preset}', growth_interval=3, growth_rule={rule}" for preset, rule in (("apex", 2), ("torch", 3)))
GREW = "overflows 0, growths 2, backoffs 0"
UPDATED = Scaler("torch", threads=2)
UPDATED.update(True)
OF_UPDATED = "0 of 2000, overflows 1, growths 0, backoffs 1; last update: backed_off|skipped"
OF_USED = "2 of 3, overflows 3, growths 1, backoffs 1"
USED = "'megatron', init_scale=1.04858e+06, growth_interval=3, hysteresis=3"
NO_COUNTS = "overflows 0, growths 0, backoffs 0"
SAYS = [
    (Scaler("torch"), f"<Scaler('torch'): scale 2^16; good steps 0 of 2000, {NO_COUNTS}>"),
    (scaler_of(1000.0), f"<Scaler('static', init_scale=1000): scale 1000; good steps 0, {NO_COUNTS}>"),
    (used_scaler(), f"<Scaler({USED}): scale 2^20; good steps {OF_USED}>"),
    (UPDATED, f"<Scaler('torch', threads=2): scale 2^15; good steps {OF_UPDATED}>"),
    (grown("flax", 3), f"<Scaler('flax', growth_interval=3): scale 2^16; good steps 3 of 4, {NO_COUNTS}>"),
    (grown("apex", 7, growth_rule=Growth.EVERY), f"<Scaler({EVERY}): scale 2^18; good steps 1 of 3, {GREW}>"),
    (grown("torch", 2, growth_rule=Growth.ALL_STEPS), f"<Scaler({ALL}): scale 2^16; steps 2 of 3, {NO_COUNTS}>"),
    (Policy("guard"), "Policy('guard')"),
    (Policy("none", guard_flags=Guard.CLIP | Guard.STOP), "Policy('none', guard_flags=Guard.CLIP|Guard.STOP)"),
    (Policy("none", ceiling_rule=LimitRule.STOP), "Policy('none', ceiling_rule=LimitRule.STOP)"),
    (Policy("jmp", overflow_reset=0, growth_interval=3), "Policy('jmp', growth_interval=3)"),
    (Policy("nemo", overflow_reset=0), "Policy('nemo', overflow_reset=0)"),
    (Arrays([]), "<Arrays: 0 in place>"),
    (Arrays([np.ones(3), np.ones(4)], dtype=F32), "<Arrays: 2 with results elsewhere>"),
]
OF_BAD = "bad={0: 1}, first_overflow=(0, 1), nan_count=0, inf_count=1"
OF_REPORTS = [
    ([1, 2], {}, "overflow=False, elements=2"),
    ([1, np.inf], {}, f"overflow=True, elements=2, {OF_BAD}"),
    ([3, 4], {"want": Want.NORM | Want.AMAX}, "overflow=False, elements=2, norm=5.0, amax=4.0"),
    ([0], {"want": Want.UNDERFLOW}, "overflow=False, elements=1, underflows_to_zero=0, underflows_to_subnormal=0"),
    ([0, 1e-20, 1, 1.5], {"histogram": True}, "overflow=False, elements=4, histogram={<2^-44: 1, 2^0: 2} of 4"),
]
SAYS += [(scaler_of(1.0).measure([np.array(x, F32)], **wanted), f"Report({text})") for x, wanted, text in OF_REPORTS]


@pytest.mark.parametrize(("thing", "expected"), SAYS)
def test_each_says_what_it_is_and_where_it_stands(thing, expected):
    assert repr(thing) == expected


def test_a_policy_is_what_it_says_and_one_of_bytes_says_all_that_is_not_0():
    policies = [Policy.from_buffer_copy(bytes(Policy(preset))) for preset in gradscaler.presets()]
    for policy in [*policies, *(thing for thing, _ in SAYS if isinstance(thing, Policy))]:
        assert eval(repr(policy), vars(gradscaler)) == policy


# ---- the array that is nearest to the cause ----


def with_bad(*bad, count=5):
    """Returns gradients by name, NaN in the layers with these numbers."""
    return {f"layer{i}": np.full(2, np.nan if i in bad else 1, F32) for i in range(count)}


NEAREST = "the last, nearest to the cause, is"


def test_the_last_array_with_an_overflow_is_named_and_kept_with_the_report():
    report = Scaler("torch").unscale(with_bad(1, 3), per_tensor=True)
    for each in report, copy.copy(report), through_pickle(report):
        assert (each.last_overflow, each.last_tensor, each.first_overflow) == ("layer3", 3, ("layer1", 0))
        assert "first_overflow=('layer1', 0), last_overflow='layer3'" in repr(each)
    assert [each.last_tensor for each in report.per_tensor.values()] == [0, 1, 0, 3, 0]
    bare = Report.from_bytes(bytes(report))
    assert (bare.last_overflow, bare.last_rank) == (3, None)
    assert "last_overflow" not in repr(Scaler("torch").measure(with_bad(2)))
    assert Scaler("torch").measure(with_bad()).last_overflow is None


def test_of_ranks_the_last_overflow_is_kept_with_its_rank():
    scaler = Scaler("torch")
    reports = [scaler.set_rank(scaler.measure(with_bad(*bad)), rank) for rank, bad in enumerate([(), (1,), (0, 2), ()])]
    merged = Report.merge(map(Report.from_bytes, map(bytes, reports)), names=reports[0].names)
    assert (merged.first_overflow, merged.rank) == (("layer1", 0), 1)
    assert (merged.last_overflow, merged.last_rank) == ("layer2", 2)
    scaler.update(merged)
    assert folded(scaler.reason) == folded('skipped: 6 NaN, the last in "layer2" on rank 2')


def test_of_ranks_the_first_bad_loss_is_kept_with_its_rank():
    scaler, losses = Scaler("recommended"), [1.0, np.nan, np.inf]
    reports = [scaler.set_rank(scaler.measure(with_bad(), loss=loss), rank) for rank, loss in enumerate(losses)]
    merged = Report.merge(reports)
    assert (merged.loss_rank, merged.rank, reports[0].loss_rank) == (1, None, None)
    scaler.update(merged)
    reason = "skipped: the loss was not finite before it was scaled on rank 1"
    assert folded(scaler.reason) == folded(reason)


def test_a_reason_names_the_array_that_is_nearest_to_the_cause():
    scaler = Scaler("torch")
    for grads, reason in (
        (with_bad(3), '2 NaN in "layer3" alone'),
        (with_bad(1, 3), f'4 NaN in 2 of 5 tensors; {NEAREST} "layer3"'),
        ({"a": with_bad(), "b": [np.float32([np.inf])]}, '1 Inf in "b.0" alone'),
        ([np.float32([1]), np.float32([np.nan, np.inf])], "1 NaN and 1 Inf in tensor 1 alone"),
        ({"é\0\ud800": np.float32([np.nan])}, '1 NaN in "é\\0?" alone'),
        ({"": np.float32([np.nan])}, '1 NaN in "" alone'),
        ({3: np.float32([np.nan]), "x" * 400: np.float32([1])}, "1 NaN in tensor 0 alone"),
    ):
        report = scaler.unscale(grads)
        scaler.update(report)
        _ = report.bad
        assert folded(scaler.reason) == folded(f"skipped: {reason}") and scaler.multiplier == 0
    scaler.update(scaler.unscale({"x" * 400: np.float32([np.nan])}))
    start, end = 'skipped: 1 NaN in "xxx', '..." alone'
    assert folded(scaler.reason).startswith(folded(start)) and folded(scaler.reason).endswith(folded(end))
    scaler.update(False)
    assert scaler.reason == ""


def test_evidence_decides_the_cause_and_an_order_finds_the_first_bad_array():
    scaler = Scaler("torch")
    report = scaler.unscale(with_bad(1, 3))
    scaler.update(report)
    order, float16 = [4, 3, 2, 1, 0], {"scale": 65536, "loss_dtype": Dtype.F16}
    for evidence, cause, tensor, before in (
        ({}, Cause.OVERFLOW, 3, 4),
        (float16, Cause.LOSS_DTYPE, 3, 4),
        (float16 | {"losses": 2, "bad_loss": 2}, Cause.BAD_LOSS, 3, 4),
        (float16 | {"losses": 2, "bad_loss": 2, "bad_parameters": 1, "parameter_plus_1": 3}, Cause.PARAMETER, 2, -1),
    ):
        reason = explained(scaler.state, report, Evidence(**evidence), order)
        assert (reason.cause, reason.tensor, reason.tensor_before) == (cause, tensor, before)
    end = 'made "layer3" bad first; "layer4", made just before, is finite'
    assert folded(explained(scaler.state, report, order=order).message).endswith(folded(end))


def test_a_reason_is_of_the_last_update_and_keeps_no_gradients():
    scaler, grads = Scaler("torch"), with_bad(1)
    alive = weakref.ref(grads["layer1"])
    scaler.update(scaler.unscale(grads))
    del grads
    gc.collect()
    assert alive() is None and folded('"layer1"') in folded(scaler.reason)
    for restored in through_pickle(scaler), through_state_dict(scaler):
        assert folded(restored.reason) == folded("skipped: overflow") and restored.skip
    scaler.update(True)
    assert folded(scaler.reason) == folded("skipped: overflow")
    scaler.set_scale(8.0)
    assert scaler.reason == ""


def test_the_reason_of_several_reports_is_of_the_last_that_overflowed():
    scaler = Scaler("torch")
    good, one, other = (scaler.measure(with_bad(*bad)) for bad in ((), (1, 2), (0, 3)))
    scaler.update([good, one, good])
    assert folded(scaler.reason) == folded(f'skipped: 4 NaN in 2 of 5 tensors; {NEAREST} "layer2"')
    scaler.update([one, good, other])
    assert folded(scaler.reason) == folded('skipped: 8 NaN, the last in "layer3"')


def test_a_step_without_gradients_has_an_event_is_a_good_step_and_is_warned_of_once():
    scaler, other = Scaler("torch"), Scaler("torch")
    with pytest.warns(UserWarning, match="this step had no gradients.*Check that the backward pass ran") as told:
        for grads in [], {}, [np.empty(0, F32)], {"a": None}:
            assert scaler.update(scaler.unscale(grads)) == Event.EMPTY
        for overflow in False, True:
            other.update(overflow)
        other.update([other.unscale([]), other.unscale([np.ones(2, F32)])])  # another rank has the gradients
    assert [each.filename for each in told] == [__file__]
    assert (scaler.state.empty_in_a_row, scaler.state.good_steps, scaler.skip) == (4, 4, False)


# ---- merged and failed reports, and ranks ----


def test_a_merge_gives_the_verdict_of_a_policy():
    halves = [scaler_of(1.0).measure([np.full(1, 1.5e19, F32)], want=Want.NORM) for _ in range(2)]
    assert (Report.merge(halves).overflow, Report.merge(halves, policy=Policy("fairseq")).overflow) == (False, True)
    assert Report.merge([]).elements == 0


def test_micro_batches_for_a_policy_that_judges_by_the_norm_are_checked_as_their_sum():
    scaler, total = Scaler("fairseq", init_scale=8.0), [np.zeros(1, F32)]
    reports = [scaler.unscale_accumulate([np.full(1, 8, F32)], total, want=Want.NORM) for _ in range(2)]
    with pytest.raises(gradscaler.Error, match="norm was not measured, .* measure the sum"):
        scaler.update(reports)
    report = scaler.measure(total, unscaled=True, want=Want.NORM)
    assert (report.norm, report.scale, report.overflow, scaler.update(report)) == (2.0, 1.0, False, Event(0))


OF_A_PRESET = gradscaler.Error("no such preset")
OF_A_PRESET.status = c.GSC_ERROR_PRESET


def test_if_the_call_of_one_rank_fails_no_rank_steps():
    for error, status in (
        (gradscaler.Status.ERROR_MEMORY, c.GSC_ERROR_MEMORY),
        (MemoryError(), c.GSC_ERROR_MEMORY),
        (c.GSC_ERROR_DEVICE, c.GSC_ERROR_DEVICE),
        (OF_A_PRESET, c.GSC_ERROR_PRESET),
        (KeyError("weight"), c.GSC_ERROR_REPORT),  # not of this library
        (type("Theirs", (Exception,), {"status": "late"})(), c.GSC_ERROR_REPORT),
    ):
        failed = Report.failed(error)
        merged = Report.merge([scaler_of(1.0).measure([np.ones(3, F32)]), failed])
        assert (failed.overflow, failed.found_inf, merged.overflow) == (True, 1.0, True)
        assert failed.status == merged.status == status and "status=" in repr(failed)
        why = "report.status is an error: .*; see the error that the failed call raised"
        with pytest.raises(gradscaler.Error, match=why):
            Scaler().update(merged)


def test_a_report_without_the_counts_of_each_array_does_not_say_that_none_is_bad():
    report = scaler_of(8.0).measure([np.array([1, np.nan], F32)], want=Want.NORM)
    for other in (Report.merge([report]), Report.from_bytes(bytes(report))):
        with pytest.raises(ValueError, match="no counts of each array: it was merged"):
            _ = other.bad
        assert other.norm == 1 / 8 and "first_overflow=(0, 1)" in repr(other) and "bad" not in repr(other)
    assert bytes(Report.from_bytes(bytes(report))) == bytes(report)
    assert (report.bad, through_pickle(report).bad, Report.merge([Report.of_flag(False)]).bad) == ({0: 1}, {0: 1}, {})


def test_what_is_not_known_of_a_sum_is_asked_of_the_sum():
    scaler, want = scaler_of(1.0), Want.NORM | Want.AMAX
    merged = Report.merge([scaler.measure([np.ones(2, F32)], want=want) for _ in range(2)], addends=True)
    for call in (lambda: merged.norm, lambda: merged.amax, lambda: scaler.clip_factor(merged, 1.0)):
        with pytest.raises(ValueError, match=r"to measure\(sum, unscaled=True\): it is of addends"):
            call()
    with pytest.raises(ValueError, match="^the report has no underflows_to_zero: pass want=gradscaler.Want.UNDERFLOW$"):
        _ = merged.underflows_to_zero


def of_ranks(scalers, *grads):
    """Returns the reports that each rank receives, from bytes."""
    reports = (s.measure(g) if isinstance(g, dict) else Report.failed(g) for s, g in zip(scalers, grads, strict=True))
    ranked = (s.set_rank(report, rank) for rank, (s, report) in enumerate(zip(scalers, reports, strict=True)))
    return [Report.from_bytes(bytes(report)) for report in ranked]


def test_a_merged_report_names_the_rank_and_the_parameter():
    good, bad = ({"w": np.ones(2, F32), "b": np.array([1, x], F32)} for x in (2, np.nan))
    scalers = [Scaler("torch") for _ in range(4)]
    for names in good, iter("wb"), ("w", "b"):
        merged = Report.merge(of_ranks(scalers, good, good, bad, bad), names=names)
        assert (merged.overflow, merged.rank, merged.first_overflow, merged.failed_rank) == (True, 2, ("b", 1), None)
        assert "rank=2, first_overflow=('b', 1)" in repr(merged)
    assert Report.merge(of_ranks(scalers, good, good, good, good)).rank is None
    ranks = np.int64(3), np.uint8(4), np.array(5)
    assert [Scaler().set_rank(Report.of_flag(False), rank).rank for rank in ranks] == [3, 4, 5]
    failed = Report.merge(of_ranks(scalers, good, good, MemoryError(), good))
    assert (failed.rank, failed.failed_rank) == (2, 2)
    with pytest.raises(gradscaler.Error, match=r"^report.status is an error that rank 2 met: "):
        scalers[0].update(failed)
    assert scalers[0].state_dict() == Scaler("torch").state_dict()
    scalers[2].update(False)  # a step that the others did not take
    with pytest.raises(gradscaler.Error, match=r"^reports\[2\].digest differs: rank 2 has another policy or state"):
        Report.merge(of_ranks(scalers, good, good, good, good))


def test_a_pickled_report_also_of_0_9_has_its_names_but_not_its_gradients():
    grads = {"good": np.ones(3, F32), "w": np.array([1, np.nan, np.inf] * 1000, F32)}
    report = scaler_of(8.0).unscale(grads, histogram=True, per_tensor=True)
    data = pickle.dumps(report, 0)
    in_0_9 = data.replace(b"gradscaler._report\n_restored", b"gradscaler._scaler\n_restored")
    for again in through_pickle(report), pickle.loads(in_0_9):
        assert (again.bad, again.first_overflow, again.scale, again.grads) == ({"w": 2000}, ("w", 1), 8.0, None)
        assert [each.bad for each in again.per_tensor.values()] == [{}, {"w": 2000}]
        assert again.histogram == report.histogram
    assert in_0_9 != data and len(pickle.dumps(report)) < 2000
