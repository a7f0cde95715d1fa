# SPDX-License-Identifier: MIT
"""What a training loop does with a Scaler, and the values it gets.

Values are compared bit by bit with NumPy: a float32 product, a double one for doubles, and one rounding.
"""

import copy
import importlib.metadata
import json
import math
import pickle

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2
from support import F32, contents, run_python, scaler_of

import gradscaler
from gradscaler import Arrays, Event, Guard, LimitRule, Policy, Report, Scaler, Want
from gradscaler import _gradscaler as c

F16, F64 = np.float16, np.float64
E4M3, E5M2, CB16 = float8_e4m3fn, float8_e5m2, gradscaler.cb16
C64, C128 = np.complex64, np.complex128


def values(dtype, shape=1000):
    """Values over the range of a dtype, with zeros and subnormals."""
    if dtype in (C64, C128):
        parts = values(F32 if dtype == C64 else F64, (*np.atleast_1d(shape), 2))
        return parts.view(dtype)[..., 0]
    limits = {F16: (-24, 15), bfloat16: (-130, 120), F32: (-145, 120), F64: (-1070, 1000), E4M3: (-9, 8)}
    limits[E5M2] = limits[F16]
    rng = np.random.default_rng(0)
    array = np.ldexp(rng.normal(size=shape), rng.integers(*limits[dtype], size=shape))
    array.flat[:3] = 0.0, -0.0, 1.0
    return array.astype(dtype)


def times(array, factor, dtype):
    """NumPy's product, computed in double where float32 has no normal number for the factor."""
    if np.iscomplexobj(array):
        parts = times(array.view(array.real.dtype), factor, np.dtype(dtype).type().real.dtype)
        return parts.view(dtype).reshape(array.shape)
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.float32(factor)
        is_normal = np.finfo(F32).tiny <= narrow <= np.finfo(F32).max
        if array.dtype == F64 or not is_normal:
            return (array.astype(F64) * factor).astype(dtype)
        return (array.astype(F32) * narrow).astype(dtype)


def bits(array):
    return array.dtype.name, array.shape, array.tobytes()


def found(overflow=1):
    """The report of gradients with an overflow, or without."""
    return Report.of_flag(overflow)


def used_scaler():
    """A scaler whose every part differs from a new one's."""
    scaler = Scaler("megatron", init_scale=2.0**20, growth_interval=3, hysteresis=3)
    for overflow in (0, 0, 0, 1, 0, 1, 0, 1, 0, 0):
        scaler.update(found(overflow))
    return scaler


# ---- the training step ----


def test_a_training_step_scales_the_loss_and_unscales_the_gradients():
    scaler = Scaler("torch")
    weights = np.array([1.0, 2.0], F32)
    gradient = weights.astype(F16) * scaler.scale(F16(2**-20))
    report = scaler.unscale({"weights": gradient}, dtype=F32)
    scaler.update(report)
    assert (report.overflow, report.grads["weights"].tolist()) == (False, [2**-20, 2**-19])


def test_a_step_with_an_overflow_names_the_parameter_and_halves_the_scale():
    scaler = Scaler("torch")
    report = scaler.unscale({"w": np.ones(2, F32), "b": np.array([1, np.inf], F32)})
    scaler.update(report)
    assert (report.overflow, report.bad, scaler.loss_scale, scaler.total_overflows) == (True, {"b": 1}, 2.0**15, 1)


# ---- the values ----


@pytest.mark.parametrize("scale", [3.0, 2.0**130])
@pytest.mark.parametrize(
    ("dtype", "result"),
    [(F16, F32), (bfloat16, F64), (F32, F16), (F32, bfloat16), (F64, F64), (E4M3, E5M2), (F32, E4M3), (C64, C128)],
)
def test_unscaled_gradients_have_the_bits_of_numpys_product(dtype, result, scale):
    gradients = values(dtype)
    report = scaler_of(scale).unscale([gradients], dtype=result)
    assert bits(report.grads[0]) == bits(times(gradients, 1 / scale, result))


# ---- containers and arrays ----


@pytest.mark.parametrize(
    "container",
    [
        lambda a, b: [a, b],
        lambda a, b: (a, b),
        lambda a, b: {"a": a, "b": b},
        lambda a, b: {1: a, ("b", 2): b},
    ],
    ids=["list", "tuple", "dict", "dict with keys of any kind"],
)
def test_a_container_is_unscaled_in_place(container):
    a, b = np.array([8, 16], F32), np.array([[24]], F16)
    grads = container(a, b)
    report = scaler_of(8.0).unscale(grads)
    assert (report.grads is grads, a.tolist(), b.tolist(), report.elements) == (True, [1, 2], [[3]], 3)


def test_one_array_is_unscaled_in_place():
    gradient = np.array([8, 16], F32)
    report = scaler_of(8.0).unscale(gradient)
    assert (report.grads is gradient, gradient.tolist()) == (True, [1, 2])


def test_one_array_with_a_dtype_gives_one_array():
    report = scaler_of(8.0).unscale(np.array([8, 16], F16), dtype=F32)
    assert bits(report.grads) == bits(np.array([1, 2], F32))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (4097,), (2, 3, 4), (1,) * 64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_of_any_shape_and_dense_order_is_unscaled(shape, order):
    gradient = np.arange(math.prod(shape), dtype=F32).reshape(shape, order=order)
    result, expected = np.empty(shape, F32, order=order), bits(gradient / F32(8))
    report = scaler_of(8.0).unscale([gradient], out=[result])
    made = scaler_of(8.0).unscale([gradient], dtype=F32).grads[0]
    scaler_of(8.0).unscale([gradient])
    assert (report.elements, bits(result), bits(made), bits(gradient)) == (gradient.size, *[expected] * 3)


def test_an_unaligned_array_is_unscaled():
    gradient = np.frombuffer(bytearray(1 + 8 * 100), F64, offset=1)
    gradient[:] = 8
    scaler_of(8.0).unscale([gradient])
    assert gradient.tolist() == [1] * 100


def test_dtypes_mix_in_one_list():
    dtypes = (F16, bfloat16, F32, F64, E4M3, E5M2, C64, C128)
    grads = [np.array([8, 16], dtype) for dtype in dtypes] + [np.array([0x5A00, 0x5C00], np.uint16).view(CB16)]
    report = scaler_of(8.0).unscale(grads)
    assert [g.tolist() for g in grads] == [[1, 2]] * 8 + [[(0x5400,), (0x5600,)]] and report.elements == 18


@pytest.mark.parametrize("empty", [[], (), {}])
def test_an_empty_container_is_a_good_step(empty):
    report = Scaler().unscale(empty)
    assert (report.elements, report.overflow, report.grads) == (0, False, empty)


def test_out_of_a_dict_is_found_by_name():
    grads = {"w": np.array([8], F16), "b": np.array([16], F16)}
    out = {"b": np.zeros(1, F32), "w": np.zeros(1, F32), "not used": None}
    report = scaler_of(8.0).unscale(grads, out=out)
    assert (report.grads is out, out["w"][0], out["b"][0], grads["w"][0]) == (True, 1, 2, 8)


def test_out_of_a_list_is_found_by_position():
    out = [np.zeros(1, F32), np.zeros(1, F64)]
    scaler_of(8.0).unscale([np.array([8], F16), np.array([16], F16)], out=out)
    assert [array.tolist() for array in out] == [[1], [2]]


def test_dtype_makes_new_arrays_and_leaves_the_gradients():
    grads = {"w": np.array([8, 16], F16)}
    report = scaler_of(8.0).unscale(grads, dtype=F32)
    assert (bits(report.grads["w"]), grads["w"].tolist()) == (bits(np.array([1, 2], F32)), [8, 16])


def test_check_writes_nothing_and_reports_what_unscale_would():
    gradients = np.array([1, np.inf, 2.0**-24], F16)
    before, everything = bits(gradients), Want.NORM | Want.AMAX | Want.UNDERFLOW
    checked = scaler_of(1024.0).measure([gradients], want=everything)
    after = bits(gradients)
    unscaled = scaler_of(1024.0).unscale([gradients], want=everything)
    assert (after, bytes(checked), checked.bad) == (before, bytes(unscaled), unscaled.bad)


# ---- scale ----


@pytest.mark.parametrize(
    ("loss", "dtype", "expected"),
    [
        (1.5, None, 4.5),
        (2, None, 6.0),
        (F64(1.5), None, F64(4.5)),
        (F32(1.5), None, F32(4.5)),
        (F16(1.5), None, F32(4.5)),
        (F16(40000), None, F32(120000)),
        (bfloat16(1.5), None, F32(4.5)),
        (np.array(1.5, F16), None, np.array(4.5, F32)),
        (np.array([1.5], F16), None, np.array([4.5], F16)),
        (1.5, F32, F32(4.5)),
        (F32(1.5), F16, F16(4.5)),
        (F32(1.5), "float64", F64(4.5)),
        (np.array(1.5, F32), None, np.array(4.5, F32)),
        (np.array([1.5, 2], F32), None, np.array([4.5, 6], F32)),
        (np.array([1.5, 2], F32), F16, np.array([4.5, 6], F16)),
        (np.array([1.5, 2], bfloat16), F32, np.array([4.5, 6], F32)),
        (np.arange(8, dtype=F32)[::2], None, np.array([0, 6, 12, 18], F32)),
        (np.zeros((2, 0), F32), None, np.zeros((2, 0), F32)),
        (F32(40000), F16, F16(np.inf)),
        (F32(400), E5M2, E5M2(1280)),
        (F32(400), E4M3, E4M3(np.nan)),
        (1.5 + 2j, None, C128(4.5 + 6j)),
        (C64(1.5 + 2j), None, C64(4.5 + 6j)),
        (np.array([1.5 + 2j], C64), C128, np.array([4.5 + 6j])),
    ],
)
def test_a_scaled_loss_has_the_type_of_the_loss_or_the_dtype(loss, dtype, expected):
    before = bits(np.asarray(loss))
    result = scaler_of(3.0).scale(loss, dtype)
    assert (type(result), bits(np.asarray(result))) == (type(expected), bits(np.asarray(expected)))
    assert bits(np.asarray(loss)) == before


# ---- reports ----


@pytest.mark.parametrize(
    ("grads", "expected"),
    [
        (
            [[1, 2], [3]],
            {"overflow": False, "found_inf": 0.0, "bad": {}, "elements": 3, "nan_count": 0, "inf_count": 0},
        ),
        (
            [[1], [np.inf]],
            {"overflow": True, "found_inf": 1.0, "bad": {1: 1}, "elements": 2, "nan_count": 0, "inf_count": 1},
        ),
        ([[np.nan, -np.inf, 1], [np.nan]], {"overflow": True, "bad": {0: 2, 1: 1}, "nan_count": 2, "inf_count": 1}),
        ([[np.nan], [], [1], [np.inf]], {"overflow": True, "bad": {0: 1, 3: 1}, "nan_count": 1, "inf_count": 1}),
    ],
)
@pytest.mark.parametrize("dtype", [F16, bfloat16, F32, F64, E5M2, C64, C128])
def test_a_report_counts_and_names_what_is_not_finite(grads, expected, dtype):
    report = scaler_of(2.0).unscale([np.array(elements, dtype) for elements in grads])
    assert {name: getattr(report, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("want", "name", "expected"),
    [
        (Want.NORM, "norm", 5.0),
        (Want.NORM, "sum_squares", 25.0),
        (Want.AMAX, "amax", 4.0),
        (Want.UNDERFLOW, "underflows_to_zero", 1),
        (Want.UNDERFLOW, "underflows_to_subnormal", 1),
    ],
)
def test_a_report_holds_what_was_wanted(want, name, expected):
    tiny = np.finfo(F32).smallest_subnormal, np.finfo(F32).tiny
    report = scaler_of(2.0).unscale({"w": np.array([6, np.nan], F32), "b": np.array([-8, *tiny], F32)}, want=want)
    assert getattr(report, name) == expected


def test_the_edges_of_a_histogram_are_those_of_its_bins():
    edges = Report.histogram_edges
    inside = [np.array([low or 2.0**-60, np.nextafter(high, 0)]) for low, high in zip(edges, edges[1:], strict=False)]
    counts = [scaler_of(1.0).measure([both], histogram=True).histogram for both in inside]
    assert counts == (2 * np.eye(16, dtype=int)).tolist()


@pytest.mark.parametrize(
    ("name", "wanted", "advice"),
    [
        ("norm", {"histogram": True}, "no norm: pass want=gradscaler.Want.NORM"),
        ("histogram", {"want": Want.NORM}, "no histogram: pass histogram=True"),
        ("histogram_elements", {"per_tensor": True}, "no histogram: pass histogram=True"),
        ("per_tensor", {"want": Want.NORM}, "none of each array: pass per_tensor=True"),
    ],
)
def test_what_was_not_wanted_is_refused_by_name(name, wanted, advice):
    report = scaler_of(2.0).measure([np.ones(3, F32)], **wanted)
    with pytest.raises(ValueError, match=advice):
        getattr(report, name)


# ---- cb16 ----


@pytest.mark.parametrize("dtype", ["cb16", CB16])
def test_unscaled_cb16_gradients_are_unscaled_again(dtype):
    grads = scaler_of(8.0).unscale({"w": np.array([96, 192], F32)}, dtype=dtype).grads
    again = scaler_of(2.0).unscale(pickle.loads(pickle.dumps(grads)), dtype=F32).grads
    assert again["w"].tolist() == [6, 12]


def test_cb16_is_known_by_its_buffer():
    gradient = np.array([0x5A00], np.uint16)
    scaler_of(8.0).unscale([memoryview(gradient.view(CB16))])
    assert gradient[0] == 0x5400


@pytest.mark.parametrize("dtype", [C64, C128])
def test_complex_is_known_by_its_buffer(dtype):
    gradient = np.array([8 + 16j], dtype)
    scaler_of(8.0).unscale([memoryview(gradient)])
    assert gradient[0] == 1 + 2j


# ---- clipping by value ----


@pytest.mark.parametrize("number", [2, F32(2), F64(2)])
def test_a_clip_value_is_any_number(number):
    assert scaler_of(8.0).unscale([np.array([8, 64], F32)], clip_value=number).grads[0].tolist() == [1, 2]


def test_what_was_bad_in_a_call_is_told_after_others():
    scaler, names = scaler_of(1.0), ["a", "b", "c"]
    arrays = [np.array(values, F32) for values in ([1, 2], [np.nan, np.inf], [np.nan, 1])]
    reports = [scaler.measure(dict(zip(names, arrays[i:] + arrays[:i], strict=True))) for i in range(3)]
    assert [report.bad for report in reports] == [{"b": 2, "c": 1}, {"a": 2, "b": 1}, {"a": 1, "c": 2}]
    assert "bad={'b': 2, 'c': 1}" in repr(reports[0])


def test_in_place_all_bad_arrays_are_named_though_their_infs_were_clamped():
    grads = {
        "a": np.ones(1, F32),
        "b": np.array([1, np.inf], F32),
        "c": np.array([np.nan], F32),
        "d": np.array([-np.inf]),
    }
    report = scaler_of(1.0).unscale(grads, clip_value=2.0)
    assert (report.bad, grads["b"].tolist(), report.inf_count, report.nan_count) == (
        {"b": 1, "c": 1, "d": 1},
        [1, 2],
        2,
        1,
    )


def test_a_report_counts_what_clipping_changed():
    grads = [np.array([1, 3, -4, np.inf, np.nan], F32), np.array([2 + 3j, 1 + 1j], C64)]
    report = scaler_of(1.0).unscale(grads, clip_value=2.0)
    assert (report.clamped, scaler_of(1.0).unscale(grads, clip_value=2.0).clamped) == (4, 0)
    assert "clamped=4" in repr(report)


# ---- micro-batches ----


def test_complex_gradients_are_accumulated():
    out = np.array([1 + 1j], C128)
    scaler_of(2.0).unscale_accumulate(np.array([2 + 4j], C64), out)
    assert out[0] == 2 + 3j


@pytest.mark.parametrize("container", [list, lambda arrays: dict(zip("abc", arrays, strict=True))])
def test_a_micro_batch_with_an_overflow_adds_nothing(container):
    grads = container([np.ones(3, F16), np.array([1, np.inf], F16), np.array([np.nan], F16)])
    out = container([np.ones(3, F32), np.ones(2, F32), np.ones(1, F32)])
    report = scaler_of(8.0).unscale_accumulate(grads, out, want=Want.AMAX)
    totals = list(out.values()) if isinstance(out, dict) else out
    assert (list(report.bad), report.inf_count, report.nan_count) == (list(report.names)[1:], 1, 1)
    assert (report.grads is out, report.amax, [total.tolist() for total in totals]) == (
        True,
        1 / 8,
        [[1, 1, 1], [1, 1], [1]],
    )


def test_what_a_narrower_sum_cannot_hold_is_an_overflow_of_its_array_alone():
    out = {"a": np.zeros(1, F32), "b": np.zeros(1, F16), "c": np.zeros(1, F16)}
    report = scaler_of(1.0).unscale_accumulate({name: np.array([1e5 if name < "c" else 1], F32) for name in "abc"}, out)
    assert (report.bad, [total[0] for total in out.values()]) == ({"b": 1}, [0, 0, 0])


def test_micro_batches_with_one_overflow_are_one_skipped_step():
    scaler, total = Scaler("torch", init_scale=8.0), {"w": np.zeros(2, F32)}
    batches = [np.array([8, 16], F16), np.array([np.inf, 8], F16), np.array([24, 32], F16)]
    reports = [scaler.unscale_accumulate({"w": batch}, total) for batch in batches]
    scaler.update(reports)
    assert (total["w"].tolist(), scaler.total_overflows, scaler.loss_scale) == ([4, 6], 1, 4.0)


def test_gradients_of_an_older_loss_are_accumulated_by_their_factor():
    scaler, out = scaler_of(8.0), np.zeros(1, F32)
    factor = scaler.factor
    scaler.set_scale(2.0)
    report = scaler.unscale_accumulate(np.array([8], F32), out, factor=factor)
    assert (out[0], report.scale) == (1, 8.0)


# ---- arrays that are held ----

CONTAINERS = {
    "list": list,
    "dict": lambda arrays: dict(zip("abc", arrays, strict=True)),
    "one array": lambda arrays: arrays[0],
}


def flat(grads):
    """The arrays of a container as a list."""
    return [grads] if isinstance(grads, np.ndarray) else list(grads.values() if isinstance(grads, dict) else grads)


@pytest.mark.parametrize("last", [24.0, np.inf])
@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
@pytest.mark.parametrize(
    ("method", "result", "keywords"),
    [
        (Scaler.unscale, None, {"want": Want.NORM}),
        (Scaler.unscale, F64, {"clip_value": 0.5}),
        (Scaler.unscale, None, {"factor": scaler_of(3.0).factor}),
        (Scaler.measure, None, {"want": Want.AMAX}),
        (Scaler.unscale_accumulate, F32, {"histogram": True, "per_tensor": True}),
    ],
    ids=["in place", "clip_value and out", "factor", "measure", "unscale_accumulate"],
)
def test_held_arrays_give_the_bits_and_the_report_of_their_container(method, result, keywords, container, last):
    def outcome(hold):
        grads = container([np.array([8, last], F16), np.array([[16]], F32), np.array([last], F32)])
        out = (container([np.ones(2, result), np.ones((1, 1), result), np.ones(1, result)]),) if result else ()
        arguments = (Arrays(grads, *out),) if hold else (grads, *out)
        report = method(scaler_of(8.0), *arguments, **keywords)
        return (
            (bytes(report), report.bad, report.first_overflow, report.scale, type(report.grads)),
            [bits(array) for each in (grads, *out, report.grads) for array in flat(each)],
        )

    assert outcome(hold=True) == outcome(hold=False)


def test_held_arrays_see_what_is_written_into_them():
    gradient, out = np.zeros(2, F16), np.zeros(2, F32)
    arrays, reports = Arrays({"w": gradient}, {"w": out}), []
    for step in ([8, 16], [np.nan, 8], [24, 32]):
        gradient[:] = step
        reports.append((scaler_of(8.0).unscale(arrays).bad, out.tolist()))
    assert reports[::2] == [({}, [1, 2]), ({}, [3, 4])] and reports[1][0] == {"w": 1}


def test_held_arrays_are_read_once():
    class Counting(np.ndarray):
        @property
        def dtype(self):
            read.append(1)
            return np.dtype(F32)

    read, gradient = [], np.full(3, 64, F32)
    arrays = Arrays([gradient.view(Counting)])
    before = len(read)
    scaler_of(8.0).unscale(arrays)
    scaler_of(8.0).measure(arrays)
    assert (before > 0, len(read) - before, gradient.tolist()) == (True, 0, [8, 8, 8])


def test_held_arrays_are_those_of_the_container_as_it_was():
    gradient, other = np.full(1, 8, F32), np.full(1, 8, F32)
    grads = {"w": gradient}
    arrays = Arrays(grads)
    grads["w"] = grads["more"] = other
    report = scaler_of(8.0).unscale(arrays)
    assert (report.grads, report.grads["w"] is gradient, gradient[0], other[0]) == ({"w": [1]}, True, 1, 8)


def test_held_arrays_have_results_of_a_dtype():
    arrays = Arrays([np.array([8, 16], F16)], dtype=F32)
    first = scaler_of(8.0).unscale(arrays).grads[0]
    assert scaler_of(4.0).unscale(arrays).grads[0] is first
    assert bits(first) == bits(np.array([2, 4], F32))


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        (Arrays([]), "<Arrays: 0 in place>"),
        (Arrays(np.ones(3)), "<Arrays: 1 in place>"),
        (Arrays({"a": np.ones(3), "b": np.ones(4)}, dtype=F32), "<Arrays: 2 with results elsewhere>"),
    ],
)
def test_held_arrays_say_how_many_they_are(arrays, expected):
    assert (repr(arrays), str(len(arrays))) == (expected, expected.split()[1])


def test_a_scaled_list_may_be_held():
    arrays = c.hold([np.array([1, 2], F32)], [out := np.zeros(2, F16)], -1, None)
    c.gsc_scale(None, scaler_of(8.0).factor, arrays, None, None)
    assert (out.tolist(), c.gsc_workspace_size(None, arrays, None)) == ([8, 16], 0)


# ---- update ----


@pytest.mark.parametrize(
    ("overflows", "skipped", "scale"), [([0, 0], 0, 4.0), ([0, 1, 0], 1, 2.0), ([1, 1], 1, 2.0), ([1], 1, 2.0)]
)
@pytest.mark.parametrize("container", [list, tuple, iter])
def test_reports_of_one_step_count_as_one(overflows, skipped, scale, container):
    scaler = Scaler("torch", init_scale=4.0)
    scaler.update(container([found(overflow) for overflow in overflows]))
    assert (scaler.total_overflows, scaler.loss_scale, scaler.factor.generation) == (skipped, scale, 2)


def test_reports_of_one_step_add_up_for_a_policy_that_judges_by_the_norm():
    scaler = Scaler("cerebras", overflow_tolerance=0.0)
    half = np.full(1, 1.5e19, F32)
    reports = [scaler_of(1.0).measure([half], want=Want.NORM) for _ in range(2)]
    one = [scaler.update(report) & Event.SKIPPED for report in reports]
    assert (one, scaler.update(reports) & ~Event.STALE) == ([0, 0], Event.SKIPPED | Event.BACKED_OFF)


def test_the_scaler_is_not_moved_by_scale_check_and_unscale():
    scaler = used_scaler()
    before = contents(scaler)
    scaler.scale(1.0)
    scaler.measure([np.array([np.inf], F32)])
    scaler.unscale([np.ones(3, F32)])
    assert contents(scaler) == before


def test_a_state_is_made_from_a_scale_and_counts():
    """As stateless frameworks keep them: the next good step is the one that grows."""
    scaler = Scaler("torch", growth_interval=3)
    scaler.set_scale(3.0, good_steps=2, total_overflows=5)
    scaler.set_scale(8.0)
    assert (scaler.loss_scale, scaler.scale(2.0), scaler.state.good_steps) == (8.0, 16.0, 2)
    assert scaler.update(found(0)) == scaler.events == Event.GREW
    assert (scaler.loss_scale, scaler.total_overflows, scaler.total_growths) == (16.0, 5, 1)


@pytest.mark.parametrize("overflow", [True, False, np.True_, np.bool_(False)])
def test_a_bool_is_a_report(overflow):
    scaler = Scaler("torch")
    assert bool(scaler.update(overflow) & Event.SKIPPED) == bool(overflow)


@pytest.mark.parametrize("preset", ["fairseq", "fairscale", "cerebras"])
def test_the_verdict_of_a_policy_that_judges_by_the_norm_stands_before_the_step(preset):
    scaler = Scaler(preset, init_scale=1.0, hysteresis=1, overflow_tolerance=0.0, min_scale=0.0)
    huge, fine = {"w": np.full(4, 3e19, F32)}, {"w": np.full(4, 3e5, F32)}
    for grads, overflow in (huge, True), (fine, False):
        for report in (scaler.unscale(grads, dtype=np.float64), scaler.measure(grads)):
            assert (report.overflow, report.found_inf, report.bad) == (overflow, float(overflow), {})
        assert bool(scaler.update(report) & Event.SKIPPED) == overflow


# ---- factors ----


def test_a_factor_unscales_by_the_scale_of_its_loss_after_an_update():
    scaler = Scaler("torch", init_scale=8.0)
    factor = scaler.factor
    scaler.update(found())
    gradient = np.array([8], F32)
    report = scaler.unscale([gradient], factor=factor)
    assert (gradient[0], report.scale, factor.scale, scaler.loss_scale) == (1, 8.0, 8.0, 4.0)


def test_an_overflow_is_found_by_the_factor_of_its_loss():
    scaler = Scaler("torch", init_scale=0.25)
    factor = scaler.factor
    scaler.set_scale(8.0)
    report = scaler.measure({"w": np.array([40000], F16)}, factor=factor)
    assert (report.overflow, report.bad) == (True, {"w": 1})


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_clip_factor_clips_to_the_norm_as_torch_does(unscaled):
    scaler, grads = scaler_of(1024.0), [np.array([3 * 1024], F32), np.array([4 * 1024], F32)]
    report = (scaler.unscale if unscaled else scaler.measure)(grads, want=Want.NORM)
    factor = scaler.clip_factor(report, 1.0, unscaled=unscaled)
    assert factor.inverse == 1.0 / (5.0 + 1e-6) / (1.0 if unscaled else 1024.0)
    clipped = scaler.unscale(grads, factor=factor)
    assert (clipped.scale, [float(g[0]) for g in grads]) == (factor.scale, pytest.approx([0.6, 0.8]))


# ---- policies and presets ----


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"init_scale": 8}, 8.0),
        ({"init_scale": np.float32(8)}, 8.0),
        ({"growth_interval": np.int64(8)}, 8),
        ({"growth_rule": gradscaler.Growth.EVERY}, 2),
        ({"overflow_reset": gradscaler.OverflowReset.ON_GROWTH | gradscaler.OverflowReset.ON_BACKOFF}, 5),
        ({"max_scale": math.inf}, math.inf),
        ({"apply_delay": True}, 1),
    ],
)
def test_a_field_replaces_that_of_the_preset(fields, expected):
    policy = Policy("torch", **fields)
    assert [getattr(policy, name) for name in fields] == [expected]


def test_the_differences_of_a_policy_are_the_fields_that_were_replaced():
    policy = Policy("torch", growth_interval=100, init_scale=2.0**16)
    assert policy.differences("torch") == {"growth_interval": 100}


def test_policies_are_equal_by_their_fields():
    assert (Policy("jmp") == Policy("eformer"), Policy("jmp") == Policy("axon")) == (True, False)


@pytest.mark.parametrize("preset", gradscaler.presets())
def test_every_preset_has_a_sentence_and_makes_a_scaler(preset):
    scaler = Scaler(preset)
    sentence = gradscaler.presets()[preset]
    assert (scaler.loss_scale >= 1, sentence.endswith("."), len(sentence) > 20) == (True, True, True)


def test_recommended_is_the_default():
    assert contents(Scaler()) == contents(Scaler("recommended"))


# ---- to and from a checkpoint ----


def through_state_dict(scaler, encode=lambda state: state):
    restored = Scaler("none")
    restored.load_state_dict(encode(scaler.state_dict()))
    return restored


@pytest.mark.parametrize(
    "restore",
    [
        through_state_dict,
        lambda scaler: through_state_dict(scaler, lambda state: json.loads(json.dumps(state))),
        lambda scaler: pickle.loads(pickle.dumps(scaler)),
        copy.copy,
        copy.deepcopy,
    ],
    ids=["state_dict", "json", "pickle", "copy", "deepcopy"],
)
def test_a_copy_has_the_policy_and_the_state_and_moves_alone(restore):
    scaler = used_scaler()
    before = contents(scaler)
    copied = restore(scaler)
    assert contents(copied) == before
    copied.update(found())
    copied.policy.growth_interval = 77
    assert (contents(scaler), contents(copied) == before) == (before, False)


@pytest.mark.parametrize("overflow", [0, 1])
def test_a_scale_of_zero_or_infinity_is_restored(overflow):
    scaler = Scaler("keras", growth_interval=1)
    for _ in range(300):
        scaler.update(found(overflow))
    assert (through_state_dict(scaler).loss_scale, contents(through_state_dict(scaler))) == (
        0.0 if overflow else math.inf,
        contents(scaler),
    )


@pytest.mark.parametrize(
    ("original", "name"),
    [
        (Policy("torch", growth_interval=7), "growth_interval"),
        (used_scaler().factor, "generation"),
        (found(), "overflow"),
    ],
)
def test_policies_factors_and_reports_are_pickled(original, name):
    copied = pickle.loads(pickle.dumps(original))
    assert (type(copied), getattr(copied, name)) == (type(original), getattr(original, name))


# ---- what a person reads ----


@pytest.mark.parametrize(
    ("scaler", "expected"),
    [
        (Scaler("torch"), "<Scaler('torch'): scale 2^16; good steps 0 of 2000, overflows 0, growths 0, backoffs 0>"),
        (
            Scaler("static", init_scale=1000.0),
            "<Scaler('static', init_scale=1000): scale 1000; good steps 0, overflows 0, growths 0, backoffs 0>",
        ),
        (
            used_scaler(),
            "<Scaler('megatron', init_scale=1.04858e+06, growth_interval=3, hysteresis=3): scale 2^20; "
            "good steps 2 of 3, overflows 3, growths 1, backoffs 1>",
        ),
        (
            Scaler("torch", threads=2),
            "<Scaler('torch', threads=2): scale 2^16; good steps 0 of 2000, overflows 0, growths 0, backoffs 0>",
        ),
    ],
    ids=["torch", "static", "used", "threads"],
)
def test_a_scaler_says_what_it_is_and_where_it_stands(scaler, expected):
    assert repr(scaler) == expected


@pytest.mark.parametrize(
    "policy, expected",
    [
        (Policy("guard"), "Policy('guard')"),
        (
            Policy(
                "none",
                guard_norm=2,
                guard_max_in_a_row=4,
                guard_flags=Guard.CLIP | Guard.STOP,
                ceiling_rule=LimitRule.CLAMP_UNLESS_PAST,
            ),
            "Policy('none', ceiling_rule=LimitRule.CLAMP_UNLESS_PAST, guard_norm=2.0, guard_max_in_a_row=4, "
            "guard_flags=Guard.CLIP|Guard.STOP)",
        ),
        (Policy("jmp", overflow_reset=0, growth_interval=3), "Policy('jmp', growth_interval=3)"),
        (Policy("nemo", overflow_reset=0), "Policy('nemo', overflow_reset=0)"),
    ],
    ids=["preset", "fields", "number", "no bits"],
)
def test_a_policy_says_in_what_it_is_not_its_preset(policy, expected):
    assert repr(policy) == expected
    assert eval(expected) == policy


def test_a_policy_of_bytes_says_all_that_is_not_0():
    for preset in gradscaler.presets():
        policy = Policy.from_buffer_copy(bytes(Policy(preset)))
        assert eval(repr(policy), vars(gradscaler)) == policy


def test_a_scaler_says_what_the_last_update_did():
    scaler = Scaler("torch")
    scaler.update(found())
    assert repr(scaler).endswith("overflows 1, growths 0, backoffs 1; last update: backed_off|skipped>")


@pytest.mark.parametrize(
    ("grads", "wanted", "expected"),
    [
        ({"w": [1, 2]}, {}, "Report(overflow=False, elements=2)"),
        (
            {"w": [1, np.inf]},
            {},
            "Report(overflow=True, elements=2, bad={'w': 1}, first_overflow=('w', 1), nan_count=0, inf_count=1)",
        ),
        ({"w": [3, 4]}, {"want": Want.NORM | Want.AMAX}, "Report(overflow=False, elements=2, norm=5.0, amax=4.0)"),
        (
            {"w": [0]},
            {"want": Want.UNDERFLOW},
            "Report(overflow=False, elements=1, underflows_to_zero=0, underflows_to_subnormal=0)",
        ),
        (
            {"w": [0, 1e-20, 1, -1.5, 20, 1e9]},
            {"histogram": True},
            "Report(overflow=False, elements=6, histogram={<2^-44: 1, 2^0: 2, 2^4: 1, 2^12: 1} of 6)",
        ),
    ],
)
def test_a_report_says_what_was_found_and_wanted(grads, wanted, expected):
    grads = {name: np.array(elements, F32) for name, elements in grads.items()}
    assert repr(scaler_of(1.0).measure(grads, **wanted)) == expected


def test_info_tells_the_version_and_the_instruction_set():
    info = gradscaler.info()
    assert (info.version, info.cpu in info.cpu_available, info.cpu_note) == (gradscaler.__version__, True, "")


def test_the_version_is_that_of_the_package():
    assert gradscaler.__version__ == importlib.metadata.version("gradscaler")


def test_info_says_why_an_unknown_instruction_set_was_not_followed():
    program = "import gradscaler; print(gradscaler.info().cpu_note)"
    assert "abacus" in run_python("-c", program, GSC_CPU="abacus").stdout


# ---- reports of each array ----


def test_a_report_of_each_array_is_that_of_the_array_alone():
    grads = {"a": np.array([3, 4], F32), "b": np.array([[np.inf, 2, np.nan]], F16), "c": np.zeros(0, F64)}
    scaler, want = scaler_of(2.0), sum(Want)
    report = scaler.measure(grads, want=want, per_tensor=True)
    for i, name in enumerate(grads):
        alone, each = scaler.measure({name: grads[name]}, want=want), report.per_tensor[name]
        each.first_tensor = 0 if each.first_tensor == i or each.bad == {} else -1
        assert bytes(each) == bytes(alone), name
        assert (each.bad, each.norm) == (alone.bad, alone.norm)
    assert (list(report.per_tensor), report.bad, report.per_tensor["a"].norm, report.per_tensor["a"].amax) == (
        list("abc"),
        {"b": 2},
        2.5,
        2,
    )


def test_the_index_of_a_list_names_its_reports():
    report = scaler_of(1.0).measure([np.ones(1, F32), np.array([1, np.nan], F32)], per_tensor=True)
    assert (list(report.per_tensor), report.per_tensor[1].overflow, report.per_tensor[1].first_overflow) == (
        [0, 1],
        True,
        (1, 1),
    )


# ---- merged and failed reports ----


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


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (gradscaler.Status.ERROR_MEMORY, c.GSC_ERROR_MEMORY),
        (MemoryError(), c.GSC_ERROR_MEMORY),
        (c.GSC_ERROR_DEVICE, c.GSC_ERROR_DEVICE),
        (KeyError("weight"), c.GSC_ERROR_REPORT),  # none of these is of a driver
        (ValueError("mine"), c.GSC_ERROR_REPORT),
        (type("Theirs", (Exception,), {"status": "late"})(), c.GSC_ERROR_REPORT),
    ],
)
def test_a_rank_whose_call_failed_lets_nobody_step(error, status):
    failed = Report.failed(error)
    merged = Report.merge([scaler_of(1.0).measure([np.ones(3, F32)]), failed])
    assert (failed.overflow, failed.found_inf, merged.overflow, merged.status) == (True, 1.0, True, failed.status)
    assert failed.status == status
    assert "status=" in repr(failed)
    with pytest.raises(
        gradscaler.Error, match="report.status is an error: .*; see the error that the failed call raised"
    ):
        Scaler().update(merged)


def test_the_error_of_a_call_makes_its_report():
    try:
        Policy("no such")
    except gradscaler.Error as error:
        assert Report.failed(error).status == c.GSC_ERROR_PRESET


def test_a_report_goes_through_bytes():
    report = scaler_of(8.0).measure([np.array([1, np.nan], F32)], want=Want.NORM)
    again = Report.from_bytes(bytes(report))
    assert (bytes(again), again.norm, again.first_overflow) == (bytes(report), report.norm, (0, 1))


def test_a_report_without_the_counts_of_each_array_does_not_say_that_none_is_bad():
    report = scaler_of(8.0).measure([np.array([1, np.nan], F32)])
    for other in (Report.merge([report]), Report.from_bytes(bytes(report))):
        with pytest.raises(ValueError, match="no counts of each array: it was merged"):
            _ = other.bad
        assert "first_overflow=(0, 1)" in repr(other) and "bad" not in repr(other)
    assert (report.bad, pickle.loads(pickle.dumps(report)).bad, Report.merge([found(0)]).bad) == ({0: 1}, {0: 1}, {})


def test_what_is_not_known_of_a_sum_is_asked_of_the_sum():
    scaler, want = scaler_of(1.0), Want.NORM | Want.AMAX
    merged = Report.merge([scaler.measure([np.ones(2, F32)], want=want) for _ in range(2)], addends=True)
    for call in (lambda: merged.norm, lambda: merged.amax, lambda: scaler.clip_factor(merged, 1.0)):
        with pytest.raises(ValueError, match=r"to measure\(sum, unscaled=True\): it is of addends"):
            call()
    measured_without = scaler.measure([np.ones(2, F32)])
    with pytest.raises(ValueError, match="^the report has no amax: pass want=gradscaler.Want.AMAX$"):
        _ = measured_without.amax
    with pytest.raises(ValueError, match="^the report has no underflows_to_zero: pass want=gradscaler.Want.UNDERFLOW$"):
        _ = Report.merge([measured_without], addends=True).underflows_to_zero


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("overflow", 2),
        ("status", 5),
        ("status", -99),
        ("measured", 8),
        ("sum_squares", -1.0),
        ("kind", 5),
        ("flags", 1),
        ("amax", -1.0),
        ("elements", -1),
        ("nan_count", -(2**63)),
        ("first_tensor", -1),
        ("first_element", -1),
        ("underflows_to_zero", -1),
        ("clamped", -1),
    ],
)
def test_bytes_of_something_else_make_no_report(field, value):
    raw = gradscaler._structs.Report()
    setattr(raw, field, value)
    with pytest.raises(ValueError, match=f"the bytes are no report: its {field} would be {value}"):
        Report.from_bytes(bytes(raw))
    with pytest.raises(ValueError, match="the bytes are no report"):
        Report.from_bytes(b"\xff" * len(bytes(raw)))


# ---- ranks ----


def of_ranks(scalers, *grads):
    """What each rank receives, as bytes."""
    reports = [
        scaler.set_rank(scaler.measure(g) if isinstance(g, dict) else Report.failed(g), rank)
        for rank, (scaler, g) in enumerate(zip(scalers, grads, strict=True))
    ]
    return [Report.from_bytes(bytes(report)) for report in reports]


def test_a_merged_report_names_the_rank_and_the_parameter():
    good, bad = ({"w": np.ones(2, F32), "b": np.array([1, x], F32)} for x in (2, np.nan))
    scalers = [Scaler("torch") for _ in range(4)]
    merged = Report.merge(of_ranks(scalers, good, good, bad, bad), names=list(good))
    assert (merged.overflow, merged.rank, merged.first_overflow, merged.failed_rank) == (True, 2, ("b", 1), None)
    assert "rank=2, first_overflow=('b', 1)" in repr(merged)
    assert Report.merge(of_ranks(scalers, good, good, good, good)).rank is None
    assert scalers[3].set_rank(scalers[3].measure(bad), 3).rank == 3


def test_a_rank_that_failed_is_named():
    scaler, good = Scaler("torch"), {"w": np.ones(2, F32)}
    merged = Report.merge(of_ranks([scaler] * 3, good, good, MemoryError()))
    assert (merged.rank, merged.failed_rank) == (2, 2)
    with pytest.raises(gradscaler.Error, match=r"^report.status is an error that rank 2 met: "):
        scaler.update(merged)
    assert scaler.state_dict() == Scaler("torch").state_dict()


def test_ranks_that_drifted_apart_are_refused_by_name():
    scalers, good = [Scaler("torch") for _ in range(3)], {"w": np.ones(2, F32)}
    scalers[2].update(False)  # a step that the others did not take
    with pytest.raises(
        gradscaler.Error, match="rank 2 has another policy or state than rank 0: load the same"
    ) as raised:
        Report.merge(of_ranks(scalers, good, good, good))
    assert (raised.value.status, raised.value.index) == (gradscaler.Status.ERROR_MISMATCH, 2)
    assert str(raised.value).startswith("reports[2].digest differs: rank 2 ")
    for scaler in scalers[:2]:
        scaler.update(False)
    assert Report.merge(of_ranks(scalers, good, good, good)).digest != 0


def test_a_rank_may_be_any_whole_number():
    assert [Scaler().set_rank(found(0), rank).rank for rank in (np.int64(3), np.uint8(4), np.array(5))] == [3, 4, 5]


def test_names_are_those_of_any_container_of_them():
    grads = {"w": np.ones(2, F32), "b": np.array([1, np.nan], F32)}
    reports = [Scaler().measure(grads)]
    assert [Report.merge(reports, names=names).first_overflow for names in (grads, iter(grads), ("w", "b"))] == [
        ("b", 1)
    ] * 3


@pytest.mark.parametrize("rank", [-1, 2**32 - 1, 1.0, None, True, "1", np.float32(1)])
def test_what_is_no_rank_is_refused(rank):
    with pytest.raises(ValueError, match="rank is .*: it must be a whole number from 0"):
        Scaler().set_rank(found(0), rank)


def test_only_a_report_is_stamped():
    with pytest.raises(TypeError, match="expected the report of unscale, not True"):
        Scaler().set_rank(True, 0)


def test_a_pickled_report_has_its_names_but_not_its_gradients():
    grads = {"w": np.array([1, np.nan] * 1000, F32)}
    report = scaler_of(8.0).unscale(grads, histogram=True, per_tensor=True)
    data = pickle.dumps(report)
    again = pickle.loads(data)
    assert (again.bad, again.first_overflow, again.scale, again.grads) == ({"w": 1000}, ("w", 1), 8.0, None)
    assert (again.histogram, again.per_tensor["w"].nan_count, len(data) < 2000) == (report.histogram, 1000, True)


def test_a_report_that_0_9_pickled_is_read():
    data = pickle.dumps(scaler_of(8.0).measure({"w": np.array([1, np.nan], F32)}), 0)
    before = data.replace(b"gradscaler._report\n_restored", b"gradscaler._scaler\n_restored")
    assert before != data and pickle.loads(before).bad == {"w": 1}


# ---- None, and containers in containers ----


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


def test_a_generator_of_arrays_is_read():
    report = scaler_of(8.0).unscale(np.full(1, 8, F32) for _ in range(3))
    assert [g[0] for g in report.grads] == [1, 1, 1]
    report = scaler_of(8.0).unscale([np.full(1, 8, F32)], (np.zeros(1) for _ in range(1)))
    assert [g[0] for g in report.grads] == [1]


def test_only_what_is_meant_to_be_used_is_exported():
    code = "import gradscaler; print(*(name for name in dir(gradscaler) if name[0] != '_'))"
    # In a process of its own, as other tests import gradscaler.torch and gradscaler.jax.
    assert set(run_python("-c", code).stdout.split()) == set(gradscaler.__all__)
