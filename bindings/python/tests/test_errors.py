# SPDX-License-Identifier: MIT
"""What is refused: the error names the argument, the field, the parameter or the key, and nothing has changed.

Every table has the bad input and the words that the message must contain.
"""

import copy
import ctypes
import decimal
import functools
import itertools
import math
import pickle
from array import array

import numpy as np
import pytest
from ml_dtypes import float8_e4m3b11fnuz
from support import F32, array_that_calls, refusal, scaler_of

from gradscaler import Arrays, Error, Factor, Policy, Report, ReportKind, Scaler, State, Want
from gradscaler import _gradscaler as c

SIZE = ctypes.sizeof(Report)
GOOD_REPORT = Report.of_flag(False)


CALLS = {
    "measure": Scaler.measure,
    "unscale": Scaler.unscale,
    "clip": functools.partial(Scaler.unscale, clip_value=1.0),
    "unscale_accumulate": lambda scaler, grads, **more: scaler.unscale_accumulate(grads, [np.zeros(3, F32)], **more),
}


def short(value):
    return repr(value)[:24]


def ones(*shape, dtype=F32, **kwargs):
    return np.ones(shape or 3, dtype, **kwargs)


def read_only(dense):
    dense.flags.writeable = False
    return dense


# ---- arrays ----

NO_GRADIENTS = {
    "int32": (ones(dtype=np.int32), "int32"),
    "bool": (ones(dtype=bool), "bool"),
    "uint16": (ones(dtype=np.uint16), "uint16"),
    "another f8": (ones(dtype=float8_e4m3b11fnuz), "float8_e4m3b11fnuz"),
    "clongdouble": (ones(dtype=np.clongdouble), np.dtype(np.clongdouble).name),
    "byte-swapped cb16": (np.zeros(3, [("cb16", ">u2")]), "cb16"),
    "byte-swapped": (ones(dtype=np.dtype(F32).newbyteorder()), "f4"),
    "object": (ones(dtype=object), "object"),
    "fields": (np.zeros(3, [("x", F32)]), "x"),
    "array of int": (array("i", [1]), "format i"),
    "bytearray": (bytearray(12), "format B"),
    "step": (ones(8)[::2], "is not contiguous: pass a contiguous copy"),
    "permuted": (ones(2, 3, 4).transpose(1, 0, 2), "is not contiguous: pass a contiguous copy"),
    "broadcast": (np.broadcast_to(ones(1), (4,)), "is not contiguous: pass a contiguous copy"),
    "list": ([1.0], "float"),
}
NOT_WRITABLE = {
    "read-only": read_only(ones()),
    "scalar": F32(1),
    "bytes": memoryview(bytes(12)).cast("f"),
    "broadcast to one": np.broadcast_to(ones(1), (1,)),
}
SHARED = ones()


@pytest.mark.parametrize(("bad", "reason"), NO_GRADIENTS.values(), ids=NO_GRADIENTS)
def test_what_is_no_gradient_or_result_is_refused_by_name(bad, reason):
    scaler, grads, good = scaler_of(), {"w": ones(), "bad": bad, "b": ones()}, {"w": ones(), "bad": ones(), "b": ones()}
    for call in (scaler.measure, scaler.unscale, Arrays):
        message = refusal(lambda call=call: call(grads), scaler, grads)
        assert message.startswith("grads['bad']") and reason in message
    assert refusal(lambda: scaler.unscale(good, out=grads), scaler, good, grads).startswith("out['bad'] ")


@pytest.mark.parametrize("bad", NOT_WRITABLE.values(), ids=NOT_WRITABLE)
def test_what_cannot_be_written_is_refused_in_place_and_as_out_but_measured(bad):
    scaler, grads, good = scaler_of(), [ones(), bad], [ones(), ones(*np.shape(bad))]
    in_place = refusal(lambda: scaler.unscale(grads), scaler, grads)
    as_out = refusal(lambda: scaler.unscale(good, out=grads), scaler, grads, good)
    assert (in_place, as_out.split(" ")[0]) == ("grads[1] is read-only: pass a writable copy", "out[1]")
    assert not scaler.measure(grads).overflow


OBJECT = "must be a dict or an object with attributes"
TAKEN = "float32, float64, float16, bfloat16, float8_e4m3fn, float8_e5m2, gradscaler.cb16, complex64 or complex128"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: Policy("torch", min_scale=-1.0), "min_scale is -1: it must be above 0, finite and"),
        (lambda s: s.clip_factor(s.measure([ones()]), 1.0), "the report has no norm: pass want=gradscaler.Want.NORM"),
        (
            lambda s: Scaler("static", target_amax=1.0, growth_factor=2.0).update(s.measure([ones()])),
            "report.amax was not measured, and this policy judges by it: pass want=Want.AMAX to the call",
        ),
        (lambda s: s.measure([ones()], factor=Factor()), "factor.scale is 0: it must be finite and above 0: a state"),
        (lambda s: s.measure([ones(dtype=int)]), f"grads[0] has dtype int64, which is not supported: pass {TAKEN}"),
        (lambda s: Policy("pytorch"), 'preset is "pytorch", which is no preset: did you mean "torch"?'),
        (lambda s: s.set_scale(8.0, good_steps=-1), "good_steps is -1: it must be what a state can have"),
        (lambda s: s.set_scale(8.0, count=1), "a state has no count 'count'; it has good_steps, "),
        (lambda s: s.set_scale(8.0, good_steps="x"), "good_steps='x': "),
        (lambda s: s.unscale({"a": {"b": ones(dtype=int)}}), "grads['a']['b'] has dtype int64, which is not"),
        (lambda s: s.measure(ones(dtype=int)), "grads has dtype int64, which is not supported: pass"),
        (
            lambda s: s.unscale([ones()], [ones(dtype="c8")]),
            "out[0].dtype is complex64, but its input is float32: make",
        ),
        (lambda s: s.load_state_dict({"scale": 1.0}, prefix="\udcff"), "prefix is '\\udcff': it has characters"),
        (lambda s: s.state_dict("pytorch"), 'format is "pytorch", which is none: did you mean "torch"?'),
        (lambda s: s.state_dict("oneflow"), 'format is "oneflow", which saves no state'),
        (lambda s: s.state_dict(3), "format must be a text, not int"),
        (lambda s: s.state_dict(None), "format must be the name of one of gradscaler.formats(), not None"),
        (lambda s: s.state_dict("\udcff"), "format is '\\udcff': it has characters that UTF-8"),
        (lambda s: Policy.from_settings("xyz", {}), 'format is "xyz", which is none; gradscaler.formats() lists all'),
        (lambda s: Policy.from_settings(None, {}), "format must be the name of one of gradscaler.formats(), not None"),
        (
            lambda s: Policy.from_settings("torch", {"init_scale": [2.0]}),
            "settings['init_scale'] is a list: it must be",
        ),
        (lambda s: Policy.from_settings("torch", 3), f"settings {OBJECT}, not int"),
        (lambda s: Policy.from_settings("megatron", ["--hysteresis", "2"]), f"settings {OBJECT}, not a list of str"),
        (lambda s: Policy.from_settings("torch", {}, preset="no"), 'preset is "no", which is no preset'),
        (lambda s: Policy.from_settings("torch", {}, wrong=1), "a policy has no field 'wrong'"),
        (lambda s: Report.from_bytes(b"123"), "a report has 256 bytes, not 3"),
        (lambda s: State.from_bytes(b"123"), "a state has 384 bytes, not 3"),
        (lambda s: State.from_bytes(bytes(s.state) + b"\1"), "the bytes of the state set fields that this version"),
        (lambda s: Report.from_bytes(None), "expected the bytes of a report, not None"),
        (lambda s: Arrays({"w": SHARED, "b": SHARED}), "grads['b'] shares memory with grads['w']: it would be written"),
        (lambda s: Arrays(Arrays([ones()])), "grads: expected a list or dict of arrays, not Arrays"),
        (lambda s: Arrays([ones()], Arrays([ones()])), "out: expected a list or dict of arrays, not Arrays"),
        (lambda s: Scaler(guard_sigma=1), "a policy has no field 'guard_sigma': did you mean 'guard_sigmas'?"),
        (lambda s: Scaler(interval=1), "a policy has no field 'interval': did you mean 'growth_interval'?"),
        (lambda s: Scaler(Init_scale=1), "a policy has no field 'Init_scale': did you mean 'init_scale'?"),
        (lambda s: Scaler(struct_size=1), "a policy has no field 'struct_size'"),
        (lambda s: Scaler(zebra=1), "a policy has no field 'zebra'; it has arithmetic, init_scale, "),
        (lambda s: Policy(policy=1), "a policy has no field 'policy': a policy, or the name of a preset, is the first"),
        (lambda s: Report.merge([GOOD_REPORT], policy="torch"), "policy must be a gradscaler.Policy such as"),
        (lambda s: Report.merge([GOOD_REPORT], names="weight"), "names must be a list of names, not 'weight'"),
        (lambda s: Report.merge([bytes(SIZE)]), "expected the report of unscale, or several, not bytes: make a report"),
        (lambda s: Report.failed(0), "error is 0: expected an exception, or a"),
        (lambda s: s.clip_factor(None, 1.0), "report must not be None"),
        (lambda s: s.clip_factor(Factor(), 1.0), "report has 32 bytes"),
        (lambda s: Policy(None), "preset must be a name, not None"),
        (lambda s: Policy(b"torch"), "preset must be a name, not b'torch'"),
        (lambda s: Report(overflw=1), "a report has no field 'overflw'"),
        (lambda s: s.measure([ones()], factor=s.factor, unscaled=True), "pass factor or unscaled, not both"),
    ],
)
def test_a_message_names_what_was_passed(call, message):
    scaler = scaler_of()
    assert refusal(lambda: call(scaler), scaler).startswith(message)


def test_no_message_has_a_name_of_c():
    calls = [lambda f=f, v=v: Policy("recommended", **{f: v}) for f, v in OUT_OF_RANGE]
    bad = [*(bad for bad, _ in NO_GRADIENTS.values()), *NOT_WRITABLE.values()]
    calls += [lambda each=each: scaler_of().unscale([each]) for each in bad]
    calls += [lambda: scaler_of().update(Report(status=-3)), lambda: scaler_of().measure([ones()], want=64)]
    calls += [lambda: scaler_of().measure([ones()], factor=Factor())]
    calls += [lambda: scaler_of().load_state_dict({"saved": "00"})]
    texts = map(refusal, calls)
    assert [text for text in texts if "gsc" in text.lower() or "NULL" in text or "tensors[" in text] == []


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ({"w": ones(2, 3)}, "out has no array 'b'"),
        ({"w": ones(2, 3), "b": ones(4)}, "out['b'] has another shape"),
        ({"w": ones(3, 2), "b": ones(3)}, "out['w'] has another shape"),
        ({"w": ones(6), "b": ones(3)}, "out['w'] has another shape"),
        ({"w": ones(2, 3, order="F"), "b": ones(3)}, "out['w'] has another shape or memory order"),
        ({"w": ones(2, 3), "b": None}, "out['b'] is no array but <class 'NoneType'>"),
        ([ones(2, 3), ones(3)], "grads and out must both be dicts"),
        (3, "grads and out must both be dicts"),
    ],
)
def test_an_out_that_does_not_match_is_refused(out, words):
    scaler, grads = scaler_of(), {"w": ones(2, 3), "b": ones(3)}
    for call in (scaler.unscale, scaler.unscale_accumulate, Arrays):
        assert words in refusal(lambda call=call: call(grads, out), scaler, grads, out)


@pytest.mark.parametrize("thing", [None, 3, 1.5, object()])
def test_what_is_no_container_is_refused(thing):
    named = f": expected a list or dict of arrays, not {type(thing).__name__}"
    assert refusal(lambda: scaler_of().unscale(thing)) == f"grads{named}"
    if thing is not None:
        assert refusal(lambda: scaler_of().unscale([ones()], thing)) == f"out{named}"


@pytest.mark.parametrize("dtype", ["int32", bool, np.clongdouble, ">f4", "no dtype"])
@pytest.mark.parametrize("call", [lambda s, d: s.scale(ones(), d), lambda s, d: s.unscale([ones()], dtype=d)])
def test_a_dtype_that_is_not_supported_is_named(dtype, call):
    message = refusal(lambda: call(scaler_of(), dtype))
    assert (dtype if isinstance(dtype, str) else np.dtype(dtype).name) in message


@pytest.mark.parametrize("loss", ["1", None, b"1", [[1.0], ["x"]], np.int64(3), object(), {}])
def test_a_loss_that_is_no_float_is_refused(loss):
    scaler = scaler_of()
    assert "not supported" in refusal(lambda: scaler.scale(loss), scaler)


def test_an_array_whose_dtype_is_not_that_of_its_buffer_is_refused():
    inside_a_larger_one = np.zeros(64, np.int8)[:8]
    liar = array_that_calls(lambda: None, inside_a_larger_one)
    assert "dtype" in refusal(lambda: scaler_of().measure([liar]))


@pytest.mark.parametrize(
    "describe",
    [lambda: "\ud800", lambda: "é" * 200, lambda: "x" * 10_000, lambda: "", lambda: 1 // 0, lambda: 3],
    ids=["surrogate", "long and not ASCII", "long", "empty", "raises", "no string"],
)
def test_a_dtype_with_a_strange_name_or_none_is_refused(describe):
    class Strange(np.ndarray):
        dtype = type("Dtype", (), {"__str__": lambda self: describe()})()

    strange = np.zeros(3, F32).view(Strange)
    assert refusal(lambda: scaler_of().measure([strange])).startswith("grads[0] ")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_while_arrays_are_read_is_not_swallowed(interrupt):
    def interrupted():
        raise interrupt

    def gradients():
        yield np.ones(3)
        raise interrupt

    for grads in [array_that_calls(interrupted, ones())], gradients():
        with pytest.raises(interrupt):
            scaler_of().measure(grads)


# ---- numbers of a policy ----


def test_a_number_of_any_kind_becomes_the_nearest_double_and_a_count_stays_whole():
    policy = Policy("torch", init_scale=2**53 + 1, backoff_factor=decimal.Decimal("0.1"))
    assert (policy.init_scale, policy.backoff_factor) == (2.0**53, 0.1)
    for name, value, why in (
        ("growth_interval", 10**400, "it must be a whole number from 0 to 18446744073709551615"),
        ("init_scale", 10**400, "int too large to convert to float"),
        ("init_scale", decimal.Decimal("nan"), "it must be a number"),
    ):
        message = refusal(lambda name=name, value=value: setattr(policy, name, value), policy)
        assert message.startswith(name) and message.endswith(why) and len(message) < 120


# ---- arrays that are held ----


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s, held: s.unscale(held, [ones()]), ["gradscaler.Arrays"]),
        (lambda s, held: s.unscale(held, dtype="float16"), ["gradscaler.Arrays"]),
        (lambda s, held: s.unscale_accumulate(held, [ones()]), ["gradscaler.Arrays"]),
        (lambda s, held: s.unscale({"w": ones()}, held), ["out", "dict"]),
        (lambda s, held: s.unscale_accumulate(held), ["out['w']", "overlap"]),
        (lambda s, held: s.measure(held, want=64), ["want"]),
        (lambda s, held: s.scale(held), ["dtype"]),
        (lambda s, held: pickle.dumps(held), ["pickle", "grads"]),
        (lambda s, held: copy.copy(held), ["copy", "grads"]),
        (lambda s, held: c.gsc_unscale(None, None, 2 * (held.groups[0][1],), None, None), ["tensors", "PyCapsule"]),
        (lambda s, held: c.gsc_unscale(None, None, c.gsc_context_create_cpu({"threads": 2}), None, None), ["tuple"]),
        (lambda s, held: c.gsc_unscale(None, None, c.hold([ones()], None, -1, None), None, None), ["only read"]),
        (lambda s, held: c.hold(held.groups[0][1], None, 0, 1), ["tensors", "PyCapsule"]),
        (lambda s, held: c.gsc_exec_wait(held.groups[0][1]), ["PyCapsule"]),
    ],
)
def test_what_held_arrays_cannot_do_is_refused(call, words):
    scaler, grads = scaler_of(), {"w": ones(), "b": ones()}
    message = refusal(lambda: call(scaler, Arrays(grads)), scaler, grads)
    assert [word for word in words if word not in message] == []


# ---- policies ----

KINDS_OF_FIELDS = {name: kind for name, kind in Policy._fields_ if name not in ("struct_size", "reserved")}
NO_NUMBERS = [
    (name, value)
    for name, kind in KINDS_OF_FIELDS.items()
    for value in (["1", None, math.nan] if kind is ctypes.c_double else ["1", None, 1.5, -1, 2**64])
]
OUT_OF_RANGE = [*NO_NUMBERS, ("growth_factor", 0.5), ("guard_norm", math.inf), ("guard_flags", 256), ("quirks", 2**32)]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE, ids=short)
def test_a_field_out_of_range_is_named(field, value):
    assert field in refusal(lambda: Scaler("recommended", **{field: value}))


@pytest.mark.parametrize("preset", ["pytorch", "", "torch ", "torch\0", "a" + "é" * 100], ids=short)
def test_an_unknown_preset_is_refused_by_name(preset):
    message = refusal(lambda: Scaler(preset), of=Error)
    shown = preset.replace("\0", "\\0")[:20]
    assert message.startswith(f'preset is "{shown}') and "which is no preset" in message


SAVED = c.gsc_state_save(scaler_of().policy, scaler_of().state)


@pytest.mark.parametrize("size", [0, 153, 4097, 2**32 - 1])
@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.update(False),
        lambda s: s.set_scale(2.0),
        lambda s: c.gsc_policy_check(s.policy),
        lambda s: c.gsc_state_init(None, s.policy, s.state),
        lambda s: c.gsc_state_load(SAVED, s.policy, s.state),
    ],
)
def test_a_struct_size_that_is_none_is_refused(size, call):
    scaler = Scaler("torch")
    ctypes.c_uint32.from_buffer(scaler.policy).value = size
    refusal(lambda: call(scaler), scaler, of=ValueError)


def test_a_struct_size_that_changes_during_the_call_is_refused():
    class Changing:
        def __float__(self):
            ctypes.c_uint32.from_buffer(scaler.policy).value = 4096
            return 2.0

    scaler = Scaler("torch")
    assert "struct_size" in refusal(lambda: scaler.set_scale(Changing()), scaler.state, of=ValueError)
    assert ctypes.c_uint32.from_buffer(scaler.policy).value == 4096


def test_a_policy_that_became_invalid_is_refused_by_every_call_that_uses_it():
    scaler = Scaler("torch")
    type(scaler.policy).backoff_factor.__set__(scaler.policy, 2.0)
    for call in (lambda: scaler.update(False), lambda: scaler.set_scale(2.0), lambda: scaler.state_dict()):
        assert refusal(call, scaler, of=Error).startswith("policy.backoff_factor ")


# ---- scales and factors ----


TAKE_NUMBERS = {
    "scale": lambda scaler, number: scaler.set_scale(number),
    "max_norm": lambda scaler, number: scaler.clip_factor(scaler.measure([ones()], want=Want.NORM), number),
    "clip_value": lambda scaler, number: scaler.unscale([ones()], clip_value=number),
    "threads": lambda scaler, number: setattr(scaler, "threads", number),
    "threads=": lambda _, number: Scaler("torch", threads=number),
}
NUMBERS = [*itertools.product(TAKE_NUMBERS, [-1.0, math.nan, "1", b"1", [1.0], 1j, 10**400])]
NUMBERS += [("scale", None), ("scale", -math.inf), ("max_norm", None), ("max_norm", 0), ("max_norm", math.inf)]
NUMBERS += [("clip_value", 0), ("clip_value", math.inf)]
NUMBERS += itertools.product(["threads", "threads="], [0, 2**32, 1.5, None])


@pytest.mark.parametrize(("name", "number"), NUMBERS, ids=short)
def test_a_number_that_is_none_is_refused_by_name(name, number):
    scaler = Scaler("torch", threads=2)
    assert name.strip("=") in refusal(lambda: TAKE_NUMBERS[name](scaler, number), scaler)
    assert scaler.threads == 2


@pytest.mark.parametrize("factor", [Factor(), Factor(scale=2.0), Factor(scale=-1.0, inverse=-1.0), 2.0, "x", Report()])
@pytest.mark.parametrize("method", CALLS.values(), ids=CALLS)
def test_a_factor_that_is_none_is_refused(factor, method):
    scaler, grads = scaler_of(), [ones()]
    message = refusal(lambda: method(scaler, grads, factor=factor), scaler, grads)
    assert "factor" in message


@pytest.mark.parametrize("want", [64, 2**31, 2**32, 2**64, None, "norm", 1.5])
@pytest.mark.parametrize("method", CALLS.values(), ids=CALLS)
def test_a_want_that_is_none_is_refused(want, method):
    scaler, grads = scaler_of(), [ones()]
    message = refusal(lambda: method(scaler, grads, want=want), scaler, grads)
    is_union = want in (64, 2**31)  # of bits that mean nothing
    assert message.startswith(f"want is {want}: it must be" if is_union else f"want={want!r}: expected a union")


@pytest.mark.parametrize("context", [3, "cpu", ones(), Scaler(), c.gsc_version], ids=short)
def test_a_context_that_is_none_is_refused(context):
    report = Report()
    message = refusal(lambda: c.gsc_measure(context, None, [ones()], None, report), report)
    assert message.startswith("exec must be")


@pytest.mark.parametrize(("overflow", "advice"), [(True, "policy.min_scale"), (False, "policy.max_scale")])
def test_a_scale_that_ran_to_zero_or_infinity_is_refused_with_advice(overflow, advice):
    scaler, report = Scaler("keras", growth_interval=1), Report(kind=ReportKind.TENSORS, measured=Want.NORM)
    for _ in range(300):
        scaler.update(overflow)
    for call in scaler.scale, scaler.unscale, scaler.measure:
        assert advice in refusal(lambda call=call: call(ones()), scaler)
    assert advice in refusal(lambda: scaler.scale(1.0), scaler)
    assert advice in refusal(lambda: scaler.clip_factor(report, 1.0), scaler)


# ---- reports and updates ----


NO_REPORTS = [None, 3, 1.0, "no", [True], np.ones(1), Factor(), [GOOD_REPORT, None], [3], {"a": GOOD_REPORT}, object()]


@pytest.mark.parametrize("report", NO_REPORTS)
def test_what_is_no_report_is_refused(report):
    scaler = Scaler("torch")
    assert "report" in refusal(lambda: scaler.update(report), scaler).lower()


# ---- the functions of C ----

ANYTHING = [None, 0, -1, 2**70, 1.5, math.nan, "torch", "\ud800", b"", bytes(Report()), bytearray(3)]
ANYTHING += [bytearray(State()), memoryview(bytearray(512))[::2], [], [None], ([], []), ([None], [np.ones(2)])]
ANYTHING += [((), (), ()), np.ones(4), object()]
FUNCTIONS = [name for name in dir(c) if name.startswith("gsc_")]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("count", range(7))
def test_a_function_of_c_refuses_wrong_arguments_with_an_exception(name, count):
    things = ANYTHING[:: max(1, count - 1)]
    unexpected = []
    for arguments in itertools.product(things, repeat=count):
        try:
            getattr(c, name)(*arguments)
        except (TypeError, ValueError, OverflowError, BufferError):
            pass
        except BaseException as error:
            unexpected.append((arguments, error))
    assert unexpected == []


GOOD = {"policy": Policy("torch"), "state": Scaler("torch").state, "factor": scaler_of().factor}
GOOD |= {"report": Report(kind=ReportKind.TENSORS, measured=Want.NORM), "max_norm": 1.0, "out": bytearray(State())}


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (c.gsc_policy_check, ["policy"]),
        (c.gsc_state_save, ["policy", "state"]),
        (functools.partial(c.gsc_state_update, None), ["policy", "state", "report", "out"]),
        (functools.partial(c.gsc_factor_clip_grad_norm, None, None), ["report", "max_norm", "out"]),
    ],
)
@pytest.mark.parametrize("bad", [None, bytearray(), bytearray(7), bytearray(383), bytearray(385), 3, "x"])
def test_a_struct_of_the_wrong_size_or_type_is_named(function, arguments, bad):
    for position, argument in enumerate(arguments):
        if argument == "max_norm":
            continue
        good = [copy.copy(GOOD[each]) for each in arguments]
        good[-1] = bytearray(32) if "max_norm" in arguments else good[-1]
        good[position] = bad
        message = refusal(lambda good=good: function(*good), good)
        assert message.startswith(argument)


@pytest.mark.parametrize(
    ("call", "attributes"),
    [
        (lambda: Policy("x"), (c.GSC_ERROR_PRESET, -1, "name", "", None)),
        (lambda: Policy("torch", init_scale=-1), (c.GSC_ERROR_POLICY, -1, "policy", "init_scale", -1.0)),
        (lambda: Policy("torch", overflow_tolerance=2), (c.GSC_ERROR_POLICY, -1, "policy", "overflow_tolerance", 2.0)),
        (lambda: scaler_of().measure([ones(), 3.0]), (c.GSC_ERROR_VALUE, 1, "tensors", "", None)),
        (lambda: scaler_of().measure([ones(), ones(dtype=int)]), (c.GSC_ERROR_DTYPE, 1, "tensors", "", None)),
        (lambda: scaler_of().unscale([ones()], out=[ones(4)]), (c.GSC_ERROR_COUNT, 0, "out", "", None)),
        (lambda: scaler_of().measure([ones()], want=64), (c.GSC_ERROR_VALUE, -1, "options", "want", 64.0)),
        (lambda: c.gsc_policy_check(None), (c.GSC_ERROR_NULL, -1, "policy", "", None)),
    ],
)
def test_an_error_is_data(call, attributes):
    with pytest.raises(Error) as refused:
        call()
    error = refused.value
    assert (type(error.status), error.status, error.index, error.name, error.field, error.value) == (int, *attributes)
    assert error.field != "overflow_tolerance" or (error.low, error.high) == (0.0, 1.0)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.status, again.why) == (str(error), error.status, error.why)


@pytest.mark.parametrize(
    ("method", "ins", "outs", "message"),
    [
        ("unscale", [(0, 5), (4, 9)], None, "grads[1] shares memory with grads[0]: "),
        ("unscale_accumulate", [(0, 4)], [(0, 4)], "out[0].data overlaps its input"),
        ("unscale", [(6, 8), (0, 4)], [(3, 5), (8, 12)], "grads[1] shares memory with out[0]: it would be written"),
        ("measure", [(0, 5), (4, 9)], None, None),
    ],
)
def test_memory_that_would_be_written_twice_or_before_it_is_read_is_refused(method, ins, outs, message):
    x = np.full(20, 8, F32)
    views = [[x[start:end] for start, end in places] for places in (ins, outs) if places]
    if message is None:
        assert getattr(scaler_of(), method)(*views).elements == sum(map(len, views[0]))
    else:
        assert refusal(lambda: getattr(scaler_of(), method)(*views), x).startswith(message)


# ---- options ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"per_tensor": bytearray(SIZE - 1)}, "per_tensor has 255 bytes"),
        ({"per_tensor": bytearray(SIZE)}, "per_tensor has 256 bytes, 512 are needed"),
        ({"per_tensor": bytes(2 * SIZE)}, "per_tensor must be a buffer that can be written"),
        ({"histogram": bytearray(135)}, "histogram has 135 bytes, 136 are needed"),
        ({"histogram": memoryview(bytearray(200))[1:]}, "histogram is not aligned"),
        ({"policy": bytes(3)}, "policy has 3 bytes"),
        ({"want": 2**32}, "want is 4294967296: it does not fit"),
        ({"want": -1}, ""),
        ({"want": "x"}, ""),
        ({"clamp": "x"}, ""),
        ({"clip": 1.0}, "options: there is no field 'clip'"),
        ({3: 1.0}, "options: there is no field 3"),
        (3, "options must be a dict or None"),
        ([("want", 1)], "options must be a dict or None"),
    ],
)
def test_options_that_are_none_are_refused(options, words):
    report = Report()
    assert words in refusal(lambda: c.gsc_measure(None, None, [ones(), ones()], options, report), report)


def test_memory_of_the_host_holds_structs():
    memory = c.gsc_memory_create(None, c.GSC_MEMORY_HOST, 2 * SIZE)
    view = memoryview(memory)
    view[:] = bytes(2 * SIZE)
    c.gsc_measure(None, None, [ones()], {"per_tensor": (memory, SIZE)}, memory)
    assert [Report.from_bytes(view[at : at + SIZE]).elements for at in (0, SIZE)] == [3, 3]
    c.gsc_memory_copy(None, memory, bytes(2 * SIZE), 2 * SIZE)
    assert view.tolist() == [0] * 2 * SIZE
    assert c.gsc_exec_wait(None) is None
    for call, words in [
        (lambda: c.gsc_measure(None, None, [ones()], None, (memory, SIZE + 1)), "255 bytes"),
        (lambda: c.gsc_measure(None, None, [ones()], None, (memory, 600)), "the offset is 600"),
        (lambda: c.gsc_memory_copy(None, memory, bytes(3), 4), "from has 3 bytes"),
        (lambda: c.gsc_memory_copy(None, memory, bytes(600), 513), "to has 512 bytes"),
        (lambda: c.gsc_policy_check(memory), "policy has 512 bytes"),
        (lambda: c.gsc_measure((None, 0, 3), None, [ones()], None, Report()), "workspace must be Memory"),
        (lambda: c.Memory(), "gsc_memory_create makes memory"),
        (lambda: c.gsc_memory_create(None, 7, 1), "kind is 7"),
        (lambda: c.gsc_status_string(1.5), ""),
    ]:
        assert words in refusal(call), words
