# SPDX-License-Identifier: MIT
"""Bad input is refused: the error names the argument, the field, the parameter or the key, and nothing has changed."""

import copy
import ctypes
import decimal
import functools
import itertools
import math
import pickle
import shutil
import subprocess
from array import array

import numpy as np
import pytest
from ml_dtypes import float8_e4m3b11fnuz
from support import F32, array_that_calls, folded, read_only, refusal, run_python, scaler_of

import gradscaler
from gradscaler import Arrays, Error, Factor, Policy, Report, ReportKind, Scaler, State, Status, Want
from gradscaler import _gradscaler as c
from gradscaler._structs import ExecFlag

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


def strange(describe):
    """Returns an array; a function describes its dtype."""
    dtype = type("Dtype", (), {"__str__": lambda self: describe()})()
    return ones().view(type("Strange", (np.ndarray,), {"dtype": dtype}))


DENSE = "is not contiguous: pass a contiguous copy"
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
    "step": (ones(8)[::2], DENSE),
    "permuted": (ones(2, 3, 4).transpose(1, 0, 2), DENSE),
    "broadcast": (np.broadcast_to(ones(1), (4,)), DENSE),
    "list": ([1.0], "float"),
    "float32 by name, bytes in its buffer": (array_that_calls(lambda: None, np.zeros(64, np.int8)[:8]), "dtype"),
    "dtype of a surrogate": (strange(lambda: "\ud800"), ""),
    "bfloat16 as NumPy loads it": (np.zeros(3, "V2"), "has dtype |V2, which NumPy makes of bfloat16: pass its view"),
    "masked": (np.ma.array(ones(), mask=[True, False, True]), "is a masked array, and its mask would be ignored"),
    "dtype that is long and not ASCII": (strange(lambda: "é" * 200), ""),
    "long dtype": (strange(lambda: "x" * 10_000), ""),
    "empty dtype": (strange(lambda: ""), ""),
    "dtype that raises": (strange(lambda: 1 // 0), ""),
    "dtype without a string": (strange(lambda: 3), ""),
}
NOT_WRITABLE = {
    "read-only": read_only(ones()),
    "scalar": F32(1),
    "bytes": memoryview(bytes(12)).cast("f"),
    "broadcast to one": np.broadcast_to(ones(1), (1,)),
}


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
    is_scalar = isinstance(bad, F32)
    why = (
        "a scalar of NumPy, which is read-only: pass np.array of it" if is_scalar else "read-only: pass a writable copy"
    )
    assert (in_place, as_out.split(" ")[0]) == (f"grads[1] is {why}", "out[1]")
    assert not scaler.measure(grads * 2).overflow  # which may share memory


X, V, REPORT, GRADS = [ones()], np.full(20, 8, F32), Report(), {"w": ones(2, 3), "b": ones(3)}
HELD, MEMORY = Arrays(GRADS), c.gsc_memory_create(None, c.GSC_MEMORY_HOST, 2 * SIZE)
HELD_C, READ_C = HELD.groups[0][1], c.hold(X, None, -1, None)
ITSELF = []
ITSELF.append(ITSELF)
OBJECT = "must be a dict or an object with attributes"
HOLDS = "out or dtype: pass it to gradscaler.Arrays, which hold gradients and results"
TAKEN = "float32, float64, float16, bfloat16, float8_e4m3fn, float8_e5m2, gradscaler.cb16, complex64 or complex128"
SHARED = "shares memory with out[0]: it would be written"
NAME = "format must be the name of one of gradscaler.formats(), not None"
NOT_MEASURED = "report.%s was not measured, and this policy judges by it: pass want=Want.%s to the call"


def of_c(options=None, on=None, report=REPORT):
    return lambda _: c.gsc_measure(on, None, [ones(), ones()], options, report)


def of_names(names, per_tensor=None, order=None):
    return lambda s: c.gsc_state_reason(s.state, None, None, per_tensor, names, order, gradscaler._structs.Reason())


MESSAGES = [
    (lambda s: Policy("torch", min_scale=-1.0), "min_scale is -1: it must be above 0, finite and"),
    (lambda s: s.clip_factor(s.measure(X), 1.0), "the report has no norm: pass want=gradscaler.Want.NORM"),
    (lambda s: s.measure(X, factor=Factor()), "factor.scale is 0: it must be finite and above 0: a state"),
    (lambda s: s.measure([ones(dtype=int)]), f"grads[0] has dtype int64, which is not supported: pass {TAKEN}"),
    (lambda s: Policy("pytorch"), 'preset is "pytorch", which is no preset: did you mean "torch"?'),
    (lambda s: s.set_scale(8.0, good_steps=-1), "good_steps is -1: it must be what a state can have"),
    (lambda s: s.set_scale(-1.0), "scale is -1: it must be 0 or above"),
    (lambda s: s.set_scale(8.0, count=1), "a state has no count 'count'; it has good_steps, "),
    (lambda s: s.set_scale(8.0, good_steps="x"), "good_steps='x': "),
    (lambda s: s.unscale({"a": {"b": ones(dtype=int)}}), "grads['a']['b'] has dtype int64, which is not"),
    (lambda s: s.measure(ones(dtype=int)), "grads has dtype int64, which is not supported: pass"),
    (lambda s: s.unscale(X, [ones(dtype="c8")]), "out[0].dtype is complex64, but its input is float32: make"),
    (lambda s: s.load_state_dict({"scale": 1.0}, prefix="\udcff"), "prefix is '\\udcff': it has characters"),
    (lambda s: s.state_dict("pytorch"), 'format is "pytorch", which is none: did you mean "torch"?'),
    (lambda s: s.state_dict("oneflow"), 'format is "oneflow", which saves no state'),
    (lambda s: s.state_dict(3), "format must be a text, not int"),
    (lambda s: s.state_dict(None), NAME),
    (lambda s: s.state_dict("\udcff"), "format is '\\udcff': it has characters that UTF-8"),
    (lambda s: Policy.from_settings("xyz", {}), 'format is "xyz", which is none; gradscaler.formats() lists all'),
    (lambda s: Policy.from_settings(None, {}), NAME),
    (lambda s: Policy.from_settings("torch", {"init_scale": [2.0]}), "settings['init_scale'] is a list: it must be"),
    (lambda s: Policy.from_settings("torch", 3), f"settings {OBJECT}, not int"),
    (lambda s: Policy.from_settings("megatron", ["--hysteresis", "2"]), f"settings {OBJECT}, not a list of str"),
    (lambda s: Policy.from_settings("torch", {}, preset="no"), 'preset is "no", which is no preset'),
    (lambda s: Policy.from_settings("torch", {}, wrong=1), "a policy has no field 'wrong'"),
    (lambda s: Report.from_bytes(b"123"), "a report has 256 bytes, not 3"),
    (lambda s: State.from_bytes(b"123"), "a state has 384 bytes, not 3"),
    (lambda s: State.from_bytes(bytes(s.state) + b"\1"), "the bytes of the state set fields that this version"),
    (lambda s: Report.from_bytes(None), "expected the bytes of a report, not None"),
    (lambda s: Arrays({"w": X[0], "b": X[0]}), "grads['b'] shares memory with grads['w']: it would be written twice"),
    (lambda s: s.unscale([V[:5], V[4:9]]), "grads[1] shares memory with grads[0]: "),
    (lambda s: s.unscale_accumulate([V[:4]], [V[:4]]), "out[0].data overlaps its input"),
    (lambda s: s.unscale([V[6:8], V[:4]], [V[3:5], V[16:]]), f"grads[1] {SHARED} before it is read"),
    (lambda s: Arrays(Arrays(X)), "grads: expected a list or dict of arrays, not Arrays"),
    (lambda s: Arrays(X, Arrays(X)), "out: expected a list or dict of arrays, not Arrays"),
    (lambda s: s.measure(ITSELF), "grads[0][0][0]... is nested without end"),
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
    (lambda s: s.measure(X, factor=s.factor, unscaled=True), "pass factor or unscaled, not both"),
    (lambda s: Scaler("guard").update(False), NOT_MEASURED % ("norm", "NORM")),
    (lambda _: Policy("recommended").replace(max_scale=1e-6), f"min_scale is {2**-14}: it must be at most max_scale"),
    (lambda s: Report.of_number("x"), "number='x': expected a number"),
    (lambda s: s.combine_decisions(3), "other must be a gradscaler.Scaler, not 3"),
    (lambda s: s.set_rank(True, 0), "expected the report of unscale, not True"),
    # of arrays that are held
    (lambda s: s.unscale(HELD, X), HOLDS),
    (lambda s: s.unscale(HELD, dtype="float16"), HOLDS),
    (lambda s: s.unscale_accumulate(HELD, X), HOLDS),
    (lambda s: s.unscale({"w": ones()}, HELD), "grads and out must both be dicts"),
    (lambda s: s.unscale_accumulate(HELD), "out['w'].data overlaps its input"),
    (lambda s: s.measure(HELD, want=64), "want is 64"),
    (lambda s: s.scale(HELD), "loss has dtype object"),
    (lambda s: pickle.dumps(HELD), "Arrays hold memory of this process: pickle or copy their grads and out"),
    (lambda s: copy.copy(HELD), "Arrays hold memory of this process: pickle or copy their grads and out"),
    (lambda s: c.gsc_unscale(None, None, (HELD_C, HELD_C), None, None), "tensors must be a list of arrays, not <"),
    (lambda s: c.gsc_unscale(None, None, c.gsc_context_create_cpu({"threads": 2}), None, None), "expected a tuple"),
    (lambda s: c.gsc_unscale(None, None, READ_C, None, None), "these lists are held for calls that only read"),
    (lambda s: c.hold(HELD_C, None, 0, 1), "tensors must be a list of arrays, not <class 'PyCapsule'>"),
    (lambda s: c.gsc_exec_wait(HELD_C), "exec must be a context or None, not <class 'PyCapsule'>"),
    # of C's functions: options, and memory of the host
    (of_c({"per_tensor": bytearray(SIZE - 1)}), "per_tensor has 255 bytes"),
    (of_c({"per_tensor": bytearray(SIZE)}), "per_tensor has 256 bytes, 512 are needed"),
    (of_c({"per_tensor": bytes(2 * SIZE)}), "per_tensor must be a buffer that can be written"),
    (of_c({"histogram": bytearray(135)}), "histogram has 135 bytes, 136 are needed"),
    (of_c({"histogram": memoryview(bytearray(200))[1:]}), "histogram is not aligned"),
    (of_c({"policy": bytes(3)}), "policy has 3 bytes"),
    (of_c({"want": 2**32}), "want is 4294967296: it does not fit"),
    (of_c({"want": -1}), ""),
    (of_c({"want": "x"}), ""),
    (of_c({"clamp": "x"}), ""),
    (of_c({"policy": Policy("torch"), "clip": 1.0}), "options: there is no field 'clip'"),
    (of_c({3: 1.0}), "options: there is no field 3"),
    (of_c(3), "options must be a dict or None"),
    (of_c([("want", 1)]), "options must be a dict or None"),
    (of_c({"loss": c.hold(X * 2, None, -1, None)}), "loss: expected one held array, not 2"),
    (of_c({"loss": "x"}), "loss is no array but <class 'str'>"),
    # the names of arrays
    (of_names("abc"), "names must be a list of texts, not <class 'str'>"),
    (of_names(b"abc"), "names must be a list of texts, not <class 'bytes'>"),
    (of_names(3), "names must be a list of texts, not <class 'int'>"),
    (of_names(["a", 3]), "names[1] must be a text or None, not <class 'int'>"),
    (of_names([None, b"a"]), "names[1] must be a text or None, not <class 'bytes'>"),
    (of_names(["a\0b"]), "names[0]: embedded null character"),
    (of_names(["\ud800"]), "'utf-8' codec can't encode character"),
    (of_names(["a"], bytes(2 * SIZE)), "per_tensor has 2 entries, and names 1"),
    (of_names(["a"], b""), "per_tensor has 0 entries, and names 1"),
    (of_names(["a", "b"], None, bytes(8)), "names has 2 entries, and order 1"),
    (of_names(None, None, bytes(15)), "order has 15 bytes, not a multiple of 8"),
    (of_names(None, None, array("Q", [0, 1, 3])), "order[2] is 3: it must be below the number of tensors"),
    (of_names(None, bytes(SIZE - 1)), "per_tensor has 255 bytes, not a multiple of 256"),
    (of_c(report=(MEMORY, SIZE + 1)), "report has 255 bytes"),
    (of_c(report=(MEMORY, 600)), "report: the offset is 600"),
    (of_c(on=(None, 0, 3)), "the workspace must be Memory"),
    (lambda _: c.gsc_memory_copy(None, MEMORY, bytes(3), 4), "from has 3 bytes"),
    (lambda _: c.gsc_memory_copy(None, MEMORY, bytes(600), 513), "to has 512 bytes"),
    (lambda _: c.gsc_policy_check(MEMORY), "policy has 512 bytes"),
    (lambda _: c.Memory(), "gsc_memory_create makes memory"),
    (lambda _: c.gsc_memory_create(None, 7, 1), "kind is 7"),
    (lambda _: c.gsc_status_string(1.5), ""),
    (lambda _: c.gsc_unscale(None, None, HELD_C, None, bytes(3)), "report"),
]
OUTS = [
    ({"w": ones(2, 3)}, "\"out has no array 'b'"),
    ({"w": ones(2, 3), "b": ones(4)}, "out['b'] has another shape"),
    ({"w": ones(3, 2), "b": ones(3)}, "out['w'] has another shape"),
    ({"w": ones(6), "b": ones(3)}, "out['w'] has another shape"),
    ({"w": ones(2, 3, order="F"), "b": ones(3)}, "out['w'] has another shape or memory order"),
    ({"w": ones(2, 3), "b": None}, "out['b'] is no array but <class 'NoneType'>"),
    ([ones(2, 3), ones(3)], "grads and out must both be dicts"),
    (3, "grads and out must both be dicts"),
]
for out, message in OUTS:
    MESSAGES += [(lambda s, out=out: s.unscale(GRADS, out), message), (lambda _, out=out: Arrays(GRADS, out), message)]
    MESSAGES += [(lambda s, out=out: s.unscale_accumulate(GRADS, out), message)]
FIELDS = {"overflow": 2, "status": 5, "measured": 8, "kind": 5, "has_flag": 2, "loss": 3, "nan_count": -1}
FIELDS |= {"amax": -1.0, "sum_squares": -1.0}
for name, it in FIELDS.items():
    setattr(raw := gradscaler._structs.Report(), name, it)
    message = f"the bytes are no report: its {name} would be {it}"
    MESSAGES += [(lambda _, data=bytes(raw): Report.from_bytes(data), message)]
for it in -1, 2**32 - 1, 1.0, None, True, "1":
    MESSAGES += [(lambda s, it=it: s.set_rank(GOOD_REPORT, it), f"rank is {it!r}: it must be a whole number from 0")]
for name, it in itertools.product(["step", "rank"], [1.5, True, -1, "a", math.nan]):
    message = f"{name}={it!r}: expected a whole number from 0 on"
    MESSAGES += [(lambda s, given={name: it}: s.history("/dev/null/none.jsonl", **given), message)]
for it in "transformers", "huggingface", "accelerate", "lightning":
    message = f"format is \"{it}\", which is none; its scaler is torch's: format='torch'"
    MESSAGES += [(lambda s, it=it: s.load_state_dict({"scale": 1.0}, it), message)]
for it in "", "torch ", "torch\0", "a" + "é" * 9:
    name = it.replace("\0", "\\0")
    MESSAGES += [(lambda s, it=it: Scaler(it), f'preset is "{name}", which is no preset')]
MESSAGES += [(lambda s: Scaler("a" + "é" * 100), f'preset is "a{"é" * 19}')]
NO_REPORTS = [None, 3, 1.0, "no", [True], np.ones(1), Factor(), [GOOD_REPORT, None], [3], {"a": GOOD_REPORT}, object()]
MESSAGES += [(lambda s, it=it: s.update(it), "expected the report of unscale, or several, not ") for it in NO_REPORTS]
LOSSES = "1", None, b"1", [[1.0], ["x"]], np.int64(3), object(), {}
MESSAGES += [(lambda s, it=it: s.scale(it), "loss has dtype ") for it in LOSSES]
NO_LOSSES = [
    ("1", "loss='1': expected a number"),
    (1j, "loss=1j: float() argument must be"),
    ({"a": 1.0}, "loss={'a': 1.0}: "),
    ([1.0, "x"], "loss[1]='x': "),
    ([[1.0]], "loss[0]=[1.0]: "),
    (10**400, "loss=1000"),
    (b"1", "loss has format B, which is not supported"),
    (ones(dtype=int), f"loss has dtype int64, which is not supported: pass {TAKEN}"),
    (np.array(1j), "loss is complex128: a loss is real, so give its real part"),
    (ones(4, 4)[:, 1], "loss is not contiguous: pass a contiguous copy"),
]
for call in Scaler.measure, Scaler.unscale, lambda s, grads, loss: s.unscale_accumulate(grads, [ones()], loss=loss):
    MESSAGES += [(lambda s, it=it, call=call: call(s, X, loss=it), message) for it, message in NO_LOSSES]
MESSAGES += [(of_c(on=it), "exec must be a context or None") for it in (3, "cpu", ones(), Scaler(), c.gsc_version)]
CONTAINERS = "expected a list or dict of arrays, not"
NO_CONTAINERS = (None, "NoneType"), (3, "int"), (1.5, "float"), (object(), "object")
MESSAGES += [(lambda s, it=it: s.unscale(it), f"grads: {CONTAINERS} {kind}") for it, kind in NO_CONTAINERS]
MESSAGES += [(lambda s, it=it: s.unscale(X, it), f"out: {CONTAINERS} {kind}") for it, kind in NO_CONTAINERS[1:]]
MESSAGES += [(lambda s: s.scale(X[0], "no dtype"), "data type 'no dtype' not understood")]
MESSAGES += [(lambda s: s.unscale(X, dtype="no dtype"), "data type 'no dtype' not understood")]
for dtype in "int32", bool, np.clongdouble, ">f4":
    text = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    MESSAGES += [(lambda s, it=dtype: s.scale(ones(), it), f"dtype has dtype {text}, which is not supported")]
    MESSAGES += [(lambda s, it=dtype: s.unscale(X, dtype=it), f"out[0] has dtype {text}, which is not supported")]


GIVEN = X, V, GRADS, REPORT, [out for out, _ in OUTS]


@pytest.mark.parametrize(("call", "message"), MESSAGES)
def test_a_message_names_what_was_passed(call, message):
    scaler = Scaler("torch")
    assert folded(refusal(lambda: call(scaler), scaler, GIVEN)).startswith(folded(message))


def test_no_message_has_a_name_of_c():
    calls = [lambda f=f, v=v: Policy("recommended", **{f: v}) for f, v in OUT_OF_RANGE]
    bad = [*(bad for bad, _ in NO_GRADIENTS.values()), *NOT_WRITABLE.values()]
    calls += [lambda each=each: scaler_of().unscale([each]) for each in bad]
    calls += [lambda: scaler_of().update(Report(status=-3)), lambda: scaler_of().measure(X, want=64)]
    calls += [lambda: scaler_of().measure(X, factor=Factor()), lambda: scaler_of().load_state_dict({"saved": "00"})]
    texts = map(refusal, calls)
    assert [text for text in texts if "gsc" in text.lower() or "NULL" in text or "tensors[" in text] == []


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_while_arrays_are_read_is_not_swallowed(interrupt):
    def interrupted():
        raise interrupt

    for grads in [array_that_calls(interrupted, ones())], (interrupted() if i else ones() for i in range(2)):
        with pytest.raises(interrupt):
            scaler_of().measure(grads)


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


KINDS_OF_FIELDS = {name: kind for name, kind in Policy._fields_ if name != "struct_size"}
NO_NUMBERS = [
    (name, value)
    for name, kind in KINDS_OF_FIELDS.items()
    for value in (["1", None, math.nan] if kind is ctypes.c_double else ["1", None, 1.5, -1, 2**64])
]
OUT_OF_RANGE = [*NO_NUMBERS, ("growth_factor", 0.5), ("guard_norm", math.inf), ("guard_flags", 256), ("quirks", 2**32)]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE, ids=short)
def test_a_field_out_of_range_is_named(field, value):
    assert field in refusal(lambda: Scaler("recommended", **{field: value}))


SAVED = c.gsc_state_save(scaler_of().policy, scaler_of().state)


USES = [lambda s: s.update(False), lambda s: s.set_scale(2.0), lambda s: c.gsc_policy_check(s.policy)]
USES += [lambda s: c.gsc_state_init(None, s.policy, s.state), lambda s: c.gsc_state_load(SAVED, s.policy, s.state)]


@pytest.mark.parametrize("size", [0, 153, 4097, 2**32 - 1])
@pytest.mark.parametrize("call", USES)
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


OPTIONS = [("factor", factor, "factor.") for factor in (Factor(), Factor(scale=2.0), Factor(scale=-1.0, inverse=-1.0))]
OPTIONS += [("factor", factor, "factor must be a gradscaler.Factor") for factor in (2.0, "x", Report())]
OPTIONS += [("want", want, f"want is {want}: it must be") for want in (64, 2**31)]  # bits that mean nothing
OPTIONS += [("want", want, f"want={want!r}: expected a union") for want in (2**32, 2**64, None, "norm", 1.5)]


@pytest.mark.parametrize(("name", "value", "message"), OPTIONS)
@pytest.mark.parametrize("method", CALLS.values(), ids=CALLS)
def test_a_factor_or_a_want_that_is_none_is_refused(name, value, message, method):
    scaler, grads = scaler_of(), [ones()]
    refused = refusal(lambda: method(scaler, grads, **{name: value}), scaler, grads)
    assert folded(refused).startswith(folded(message))


@pytest.mark.parametrize(("overflow", "advice"), [(True, "policy.min_scale"), (False, "policy.max_scale")])
def test_a_scale_that_ran_to_zero_or_infinity_is_refused_with_advice(overflow, advice):
    scaler, report = Scaler("keras", growth_interval=1), Report(kind=ReportKind.TENSORS, measured=Want.NORM)
    for _ in range(300):
        scaler.update(overflow)
    calls = [lambda call=call: call(ones()) for call in (scaler.scale, scaler.unscale, scaler.measure)]
    for call in [*calls, lambda: scaler.scale(1.0), lambda: scaler.clip_factor(report, 1.0)]:
        assert folded(advice) in folded(refusal(call, scaler))


ANYTHING = [None, 0, -1, 2**70, 1.5, math.nan, "torch", "\ud800", b"", bytes(Report()), bytearray(3)]
ANYTHING += [bytearray(State()), memoryview(bytearray(512))[::2], [], [None], ([], []), ([None], [np.ones(2)])]
ANYTHING += [((), (), ()), np.ones(4), object()]
FUNCTIONS = [name for name in dir(c) if name.startswith("gsc_")]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("count", range(7))
def test_a_function_of_c_refuses_wrong_arguments_with_an_exception(name, count):
    unexpected = []
    for arguments in itertools.product(ANYTHING[:: max(1, count - 1)], repeat=count):
        try:
            getattr(c, name)(*arguments)
        except (TypeError, ValueError, OverflowError, BufferError):
            pass
        except BaseException as error:
            unexpected.append((arguments, error))
    assert unexpected == []


GOOD = {"policy": Policy("torch"), "state": Scaler("torch").state, "factor": scaler_of().factor}
GOOD |= {"report": Report(kind=ReportKind.TENSORS, measured=Want.NORM), "max_norm": 1.0, "out": bytearray(State())}


TAKE_STRUCTS = [(c.gsc_policy_check, ["policy"]), (c.gsc_state_save, ["policy", "state"])]
TAKE_STRUCTS += [(functools.partial(c.gsc_state_update, None), ["policy", "state", "report", "out"])]
TAKE_STRUCTS += [(functools.partial(c.gsc_factor_clip_grad_norm, None, None), ["report", "max_norm", "out"])]


@pytest.mark.parametrize(("function", "arguments"), TAKE_STRUCTS)
@pytest.mark.parametrize("bad", [None, bytearray(), bytearray(7), bytearray(383), bytearray(385), 3, "x"])
def test_a_struct_of_the_wrong_size_or_type_is_named(function, arguments, bad):
    for argument in set(arguments) - {"max_norm"}:
        good = {each: copy.copy(GOOD[each]) for each in arguments}
        given = [*(good | ({"out": bytearray(32)} if "max_norm" in good else {}) | {argument: bad}).values()]
        assert refusal(lambda given=given: function(*given), given).startswith(argument)


def test_an_error_is_data():
    for call, *attributes in (
        (lambda: Policy("x"), c.GSC_ERROR_PRESET, -1, "name", "", None),
        (lambda: Policy("torch", init_scale=-1), c.GSC_ERROR_POLICY, -1, "policy", "init_scale", -1.0),
        (lambda: Policy("torch", overflow_tolerance=2), c.GSC_ERROR_POLICY, -1, "policy", "overflow_tolerance", 2.0),
        (lambda: scaler_of().measure([ones(), 3.0]), c.GSC_ERROR_VALUE, 1, "tensors", "", None),
        (lambda: scaler_of().measure([ones(), ones(dtype=int)]), c.GSC_ERROR_DTYPE, 1, "tensors", "", None),
        (lambda: scaler_of().unscale(X, out=[ones(4)]), c.GSC_ERROR_COUNT, 0, "out", "", None),
        (lambda: scaler_of().measure(X, want=64), c.GSC_ERROR_VALUE, -1, "options", "want", 64.0),
        (lambda: c.gsc_policy_check(None), c.GSC_ERROR_NULL, -1, "policy", "", None),
    ):
        with pytest.raises(Error) as refused:
            call()
        error = refused.value
        assert [error.status, error.index, error.name, error.field, error.value] == attributes
        assert type(error.status) is int
        assert error.field != "overflow_tolerance" or (error.low, error.high) == (0.0, 1.0)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.status, again.why) == (str(error), error.status, error.why)


LONG_NAMES = {"1 byte each": "k" * 139, "2 bytes": "é" * 69, "3 bytes": "漢字" * 23}


@pytest.mark.parametrize("name", LONG_NAMES.values(), ids=LONG_NAMES)
def test_a_long_name_is_quoted_whole_and_counted_in_characters(name):
    scaler, state = Scaler("torch"), Scaler("torch").state_dict("torch") | {"scale": -1.0}
    kind, key = gradscaler._structs.EntryKind.NUMBER, f"{name}.scale"
    entries = (gradscaler._structs.Entry * 1)((key.encode(), kind, 0, -1.0))
    with pytest.raises(Error) as refused:
        c.gsc_state_import("torch", name, entries, None, scaler.policy, State(), None)
    error, subject = refused.value, f'entries[0].value of "{key}" '
    assert (error.subject_length, str(error)) == (len(subject), subject + error.why)
    assert folded(error.why) == folded("is -1: it must be a scale: 0 or above")
    assert error.requirement == error.why[len("is -1: it must be ") :]
    message = refusal(lambda: scaler.load_state_dict({name: state}), scaler, of=Error)
    assert message == f"state['{name}']['scale'] {error.why}"
    message = refusal(lambda: scaler.load_state_dict({name: state, "b": state}), scaler, of=Error)
    why = f'hold several scalers, "{name}" and "b": say which by prefix'
    assert folded(message) == folded(f"the entries of state {why}")
    message = refusal(lambda: Policy(name * 9), of=Error)
    assert folded(f'preset is "{name}') in folded(message) and folded('..."') in folded(message)
    assert "\ufffd" not in message


LOCALE = """
import locale, gradscaler
locale.setlocale(locale.LC_NUMERIC, "comma")
print(locale.str(1.5))
try: gradscaler.Policy("torch", backoff_factor=2.25)
except gradscaler.Error as error: print(error)
scaler = gradscaler.Scaler("none", guard_norm=2.5)
scaler.update(gradscaler.Report.of_number(3.75))
print(scaler.reason)
scaler.state_dict("torch")
print(*(note for note in scaler.notes if note.field == "guard_norm"))
"""


@pytest.mark.skipif(shutil.which("localedef") is None, reason="localedef, of glibc, is not here")
def test_numbers_have_a_point_where_the_locale_has_a_comma(tmp_path):
    characters = "\n".join(f"<U{code:04X}> /x{code:02x}" for code in range(128))
    head = "<code_set_name> ASCII\n<comment_char> %\n<escape_char> /\nCHARMAP"
    (tmp_path / "ascii").write_text(f"{head}\n{characters}\nEND CHARMAP\n")
    (tmp_path / "german").write_text('LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\nEND LC_NUMERIC\n')
    command = ["localedef", "-c", "-f", tmp_path / "ascii", "-i", tmp_path / "german", tmp_path / "comma"]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=False)  # it warns of what the locale lacks
    done = run_python("-c", LOCALE, LOCPATH=str(tmp_path))
    assert (done.stderr, done.stdout.splitlines()[0]) == ("", "1,5")
    assert [*map(folded, done.stdout.splitlines()[1:])] == [
        folded("backoff_factor is 2.25: it must be from 0 to 1"),
        folded("skipped: the norm, 3.75, is above 2.5"),
        folded("guard_norm is 2.5, which the format torch cannot hold"),
    ]


def refused_field(call, *arguments):
    with pytest.raises(Error) as refused:
        call(*arguments)
    return f"{refused.value.name}.{refused.value.field}"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_with_a_flag_raises_an_error_and_writes_it(threads):
    scaler, bad, reports = Scaler("torch"), Report(kind=5), np.zeros((2, SIZE), np.uint8)
    context, state = c.gsc_context_create_cpu({"threads": threads}), State.from_buffer_copy(scaler.state)
    for on in context, None, (context, 0, None, 0):
        assert refused_field(c.gsc_state_update, on, scaler.policy, state, bad, state) == "report.kind"
        assert bytes(state) == bytes(scaler.state)
    for on in (context, 0, None, c.GSC_EXEC_WRITE_FAILURES), (None, 0, None, ExecFlag.WRITE_FAILURES):
        state, report = State.from_buffer_copy(scaler.state), Report()
        assert refused_field(c.gsc_state_update, on, scaler.policy, state, bad, state) == "report.kind"
        assert (state.status, state.skip, state.factor.scale) == (Status.ERROR_REPORT, 1, 2**16)
        lists = ([ones(), ones()],) * 2
        assert refused_field(c.gsc_unscale, on, Factor(), lists, {"per_tensor": reports}, report) == "factor.scale"
        assert report.status == Status.ERROR_FACTOR and report.overflow and bytes(report) * 2 == reports.tobytes()
    assert refused_field(c.gsc_measure, (None, 0, None, 2), None, [], None, bad) == "exec.flags"


def test_memory_of_the_host_holds_structs():
    memory = c.gsc_memory_create(None, c.GSC_MEMORY_HOST, 2 * SIZE)
    view = memoryview(memory)
    view[:] = bytes(2 * SIZE)
    c.gsc_measure(None, None, [ones()], {"per_tensor": (memory, SIZE)}, memory)
    assert [Report.from_bytes(view[at : at + SIZE]).elements for at in (0, SIZE)] == [3, 3]
    c.gsc_memory_copy(None, memory, bytes(2 * SIZE), 2 * SIZE)
    assert view.tolist() == [0] * 2 * SIZE
    assert c.gsc_exec_wait(None) is None
