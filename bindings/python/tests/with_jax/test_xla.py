# SPDX-License-Identifier: MIT
"""The handler for XLA: the bits of the library in compiled programs, in place, whatever XLA hands over."""

import functools
import pathlib
import re
import subprocess
import sys
import zipfile

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import gradscaler.jax
from gradscaler import Want, _gradscaler
from gradscaler.jax import _call, _xla

ROOT = pathlib.Path(__file__).parents[4]
DTYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"]
WIDE = ["float64", "complex128"]
ALL = Want.NORM | Want.AMAX | Want.UNDERFLOW


def of_name(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def any_bits(dtype, count, seed=0):
    """Numbers of all magnitudes: subnormal, zero, Inf and NaN, too."""
    dtype = of_name(dtype)
    return np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)


def good(dtype, count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(of_name(dtype))


def on_device(arrays):
    """As memory of JAX's own, which can be donated."""
    return jax.block_until_ready([jax.jit(jnp.copy)(array) for array in arrays])


def copied(array):
    """Not the array's own memory, which JAX may read after a test has changed it."""
    return jax.block_until_ready(jnp.array(array, copy=True))


def words(struct):
    return jnp.array(np.frombuffer(bytes(struct), np.uint32))


def same(array, expected):
    array = np.asarray(array)
    assert array.dtype == expected.dtype and array.shape == expected.shape
    assert array.tobytes() == expected.tobytes()


def same_words(array, struct):
    assert np.asarray(array).tobytes() == bytes(struct)


def pointers(arrays):
    return [array.unsafe_buffer_pointer() for array in arrays]


@pytest.fixture(params=["jit", "eager"])
def run(request):
    return jax.jit if request.param == "jit" else lambda function: function


@pytest.fixture
def wide():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


# ---- the bits ----


def check_all(run, dtypes, scale):
    scaler = gradscaler.Scaler("recommended", init_scale=scale)
    arrays = [any_bits(dtype, 5000, i).reshape(50, 100) for i, dtype in enumerate(dtypes)]
    arrays.append(np.zeros((0, 3), np.float32))

    @run
    def unscale(leaves, state):
        options = {"policy": scaler.policy, "want": int(ALL), "per_tensor": True, "histogram": True}
        return _xla.tensors("cpu", "unscale", leaves, None, state=state, **options)

    @run
    def check(leaves, factor):
        return _xla.tensors("cpu", "measure", leaves, factor, policy=scaler.policy, want=int(ALL))

    result = unscale([copied(array) for array in arrays], words(scaler.state))
    checked = check([copied(array) for array in arrays], words(scaler.factor))
    copies = [array.copy() for array in arrays]
    report = scaler.unscale(copies, want=ALL, per_tensor=True, histogram=True)
    scaler.update(report)
    for leaf, copy in zip(result.leaves, copies, strict=True):
        same(leaf, copy)
    same_words(result.report, report)
    same_words(result.state, scaler.state)
    same_words(checked.report, report)
    assert checked.leaves == []
    assert np.asarray(result.histogram).view(np.int64)[:16].tolist() == list(report.histogram)
    for row, each in zip(np.asarray(result.per_tensor), report.per_tensor.values(), strict=True):
        same_words(row, each)


def test_gradients_report_and_state_have_the_bits_of_the_library(run):
    check_all(run, DTYPES, 1024.0)


def test_doubles_have_the_bits_of_the_library(run, wide):
    check_all(run, WIDE + DTYPES, 3.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "float16"])
def test_results_of_other_dtypes_are_rounded_and_clamped_as_the_library_does(run, dtype):
    scaler, array = gradscaler.Scaler("torch"), any_bits("float16", 70000)
    expected = np.empty(array.shape, of_name(dtype))

    @run
    def unscale(leaf, state):
        return _xla.tensors("cpu", "unscale", [leaf], state, policy=scaler.policy, dtypes=dtype, clip_value=0.25)

    result = unscale(copied(array), words(scaler.state))
    report = scaler.unscale([array], [expected], clip_value=0.25)
    same(result.leaves[0], expected)
    same_words(result.report, report)


def test_scale_multiplies(run):
    scaler, array = gradscaler.Scaler(init_scale=1024.0), good("float32", 1000)
    scale = run(lambda leaf, state: _xla.tensors("cpu", "scale", [leaf], state, dtypes=["float16"]).leaves[0])
    same(scale(copied(array), words(scaler.state)), scaler.scale(array, dtype=np.float16))


@pytest.mark.parametrize("bad", [False, True])
def test_accumulate_adds_all_or_nothing(run, bad):
    scaler, arrays = gradscaler.Scaler(init_scale=1024.0), [good("bfloat16", 1000), good("float16", 9)]
    if bad:
        arrays[1][3] = np.inf
    sums = [good("float32", 1000, 1), good("float32", 9, 2)]

    @run
    def accumulate(leaves, out, factor):
        return _xla.tensors("cpu", "unscale_accumulate", leaves, factor, out=out, want=int(Want.NORM))

    result = accumulate([copied(x) for x in arrays], [copied(x) for x in sums], words(scaler.factor))
    report = scaler.unscale_accumulate(arrays, sums, want=Want.NORM)
    assert report.overflow == bad
    for leaf, expected in zip(result.leaves, sums, strict=True):
        same(leaf, expected)
    same_words(result.report, report)


def test_clipping_in_the_same_call_is_check_clip_and_unscale(run):
    scaler, arrays = gradscaler.Scaler(init_scale=1024.0), [good("float32", 5000), good("float16", 70)]

    @run
    def in_one(leaves, state):
        return _xla.tensors("cpu", "unscale", leaves, state, policy=scaler.policy, max_norm=0.5)

    @run
    def in_three(leaves, state):
        report = _xla.tensors("cpu", "measure", leaves, state, policy=scaler.policy, want=int(Want.NORM)).report
        factor = _xla.clip("cpu", state, report, max_norm=0.5)
        return _xla.tensors("cpu", "unscale", leaves, factor).leaves, report, factor

    leaves, state = [copied(array) for array in arrays], words(scaler.state)
    result, (clipped, found, factor) = in_one(leaves, state), in_three(leaves, state)
    report = scaler.measure(arrays, want=Want.NORM)
    expected = gradscaler.Factor()
    _gradscaler.gsc_factor_clip_grad_norm(None, scaler.factor, report, 0.5, expected)
    scaler.unscale(arrays, factor=expected)
    same_words(factor, expected)
    same_words(found, report)
    same_words(result.report, report)
    for one, three, array in zip(result.leaves, clipped, arrays, strict=True):
        same(one, array)
        same(three, array)


@pytest.mark.parametrize("addends", [False, True])
def test_reports_are_merged_in_the_order_of_their_rows(run, addends):
    scaler = gradscaler.Scaler()
    reports = [scaler.measure([good("float32", 999, i)], want=ALL) for i in range(5)]
    merge = run(functools.partial(_xla.merge, "cpu", policy=scaler.policy, addends=addends))
    merged = merge(jnp.stack([words(report) for report in reports]))
    expected = gradscaler.Report()
    _gradscaler.gsc_report_merge(None, b"".join(map(bytes, reports)), int(addends), scaler.policy, expected)
    same_words(merged, expected)


def test_a_factor_times_a_number_of_micro_batches(run):
    scaler, expected = gradscaler.Scaler(), gradscaler.Factor()
    _gradscaler.gsc_factor_multiply(None, scaler.factor, 3.0, expected)
    same_words(run(lambda state: _xla.multiply("cpu", state, 3.0))(words(scaler.state)), expected)


def test_large_lists_use_the_threads_of_xla_and_keep_their_bits():
    scaler, array = gradscaler.Scaler(), any_bits("float32", 3_000_000)
    unscale = jax.jit(lambda leaf, state: _xla.tensors("cpu", "unscale", [leaf], state, want=int(ALL)))
    result = unscale(copied(array), words(scaler.state))
    report = scaler.unscale([array], want=ALL)
    same(result.leaves[0], array)
    same_words(result.report, report)


# ---- memory and compilations ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_donated_buffers_are_updated_in_place(dtype):
    scaler = gradscaler.Scaler()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(leaves, state):
        options = {"policy": scaler.policy, "want": int(Want.NORM), "max_norm": 1.0}
        result = _xla.tensors("cpu", "unscale", leaves, None, state=state, **options)
        return result.leaves, result.state, result.report

    *leaves, state = on_device([good(dtype, 1000), good(dtype, 33), np.asarray(words(scaler.state))])
    before = pointers([*leaves, state])
    leaves, state, _ = step(leaves, state)
    assert pointers([*leaves, state]) == before


def test_sums_are_added_to_in_place():
    accumulate = jax.jit(
        lambda leaf, out: _xla.tensors("cpu", "unscale_accumulate", [leaf], None, out=[out]).leaves[0], donate_argnums=1
    )
    leaf, out = on_device([good("float16", 100), good("float32", 100)])
    before = pointers([out])
    assert pointers([accumulate(leaf, out)]) == before


def test_what_was_not_donated_is_left_alone(run):
    array = good("float32", 1000)
    leaf = jnp.array(array)
    unscale = run(lambda leaf, factor: _xla.tensors("cpu", "unscale", [leaf], factor).leaves[0])
    assert not np.array_equal(unscale(leaf, words(gradscaler.Scaler().factor)), array)
    same(leaf, array)


def test_a_training_step_copies_no_gradient_and_calls_nothing_in_python():
    scaler = gradscaler.jax.Scaler()

    def step(scaler, params, x):
        def loss(params):
            return jnp.mean(functools.reduce(lambda x, w: jnp.tanh(x @ w), params, x) ** 2)

        grads, report = scaler.unscale(jax.grad(lambda params: scaler.scale(loss(params)))(params), max_norm=1.0)
        params = jax.tree.map(lambda w, g: jnp.where(report.overflow, w, w - 0.1 * g), params, grads)
        return scaler.update(report), params

    params = [jnp.ones((40, 40)) for _ in range(3)]
    text = jax.jit(step, donate_argnums=(0, 1)).lower(scaler, params, jnp.ones((8, 40))).compile().as_text()
    assert text.count('custom_call_target="gradscaler"') == 2  # the gradients and the update
    assert not re.findall(r"f32\[40,40\]\S* copy\(|callback", text)


# ---- inside of what JAX has ----


def steps_of_library(scaler, arrays):
    for array in arrays:
        scaler.update(scaler.unscale([array.copy()]))
    return scaler


def train_state(policy, leaf, state):
    return _xla.tensors("cpu", "unscale", [leaf], None, policy=policy, state=state).state


@pytest.mark.parametrize("loop", ["scan", "while_loop", "remat"])
def test_loops_carry_the_state(loop):
    scaler = gradscaler.Scaler("recommended", growth_interval=2)
    arrays = np.stack([good("float16", 40, i) for i in range(7)])
    arrays[3, 5] = np.nan
    step = functools.partial(train_state, scaler.policy)

    @jax.jit
    def run_steps(arrays, state):
        if loop == "while_loop":
            body = lambda carry: (carry[0] + 1, step(arrays[carry[0]], carry[1]))  # noqa: E731
            return jax.lax.while_loop(lambda carry: carry[0] < len(arrays), body, (0, state))[1]
        body = (lambda f: jax.checkpoint(f)) if loop == "remat" else (lambda f: f)
        return jax.lax.scan(body(lambda state, array: (step(array, state), None)), state, arrays)[0]

    same_words(run_steps(copied(arrays), words(scaler.state)), steps_of_library(scaler, arrays).state)


def test_vmap_runs_one_after_another():
    scaler, arrays = gradscaler.Scaler(), np.stack([good("float16", 40, i) for i in range(3)])
    factor = words(scaler.factor)

    def unscale(leaf):
        result = _xla.tensors("cpu", "unscale", [leaf], factor)
        return result.leaves[0], result.report

    leaves, reports = jax.jit(jax.vmap(unscale))(copied(arrays))
    for leaf, found, array in zip(leaves, reports, arrays, strict=True):
        same_words(found, scaler.unscale([array]))
        same(leaf, array)


def test_after_grad_it_is_a_part_of_the_step_and_through_it_an_error():
    scaler, x = gradscaler.Scaler(init_scale=8.0), jnp.arange(4.0)
    unscale = lambda leaf, state: _xla.tensors("cpu", "unscale", [leaf], state).leaves[0]  # noqa: E731
    loss = lambda x: jnp.sum(x * x) * 8.0  # noqa: E731
    state = words(scaler.state)
    assert jax.jit(lambda x: unscale(jax.grad(loss)(x), state))(x).tolist() == [0, 2, 4, 6]
    with pytest.raises(ValueError, match="differentiat"):
        jax.grad(lambda x: jnp.sum(unscale(x, state)))(x)


def test_shards_report_for_themselves_and_agree_by_merging():
    if len(jax.devices()) < 2:
        pytest.fail("this test needs two devices: conftest.py asks for them")
    scaler, array = gradscaler.Scaler(init_scale=4.0), good("float32", 2000)
    array[1500] = np.inf
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), "d")
    spread, whole = jax.sharding.PartitionSpec("d"), jax.sharding.PartitionSpec()
    unchecked = {"check_vma": False}
    try:
        from jax import shard_map
    except ImportError:  # before 0.6
        from jax.experimental.shard_map import shard_map

        unchecked = {"check_rep": False}

    @jax.jit
    @functools.partial(shard_map, mesh=mesh, in_specs=(spread, whole), out_specs=(spread, whole, spread), **unchecked)
    def unscale(leaf, state):
        result = _xla.tensors("cpu", "unscale", [leaf], state, want=int(Want.NORM))
        reports = jax.lax.all_gather(result.report, "d")
        return result.leaves[0], _xla.merge("cpu", reports), result.report

    leaf, merged, each = unscale(copied(array), words(scaler.state))
    halves = [array[:1000].copy(), array[1000:].copy()]
    reports = [scaler.unscale([half], want=Want.NORM) for half in halves]
    same(leaf, np.concatenate(halves))
    same_words(merged, gradscaler.Report.merge(reports))
    for row, report in zip(np.asarray(each).reshape(2, -1), reports, strict=True):
        same_words(row, report)


@pytest.mark.skipif(jax.__version_info__ < (0, 5), reason="it lowers all branches, and XLA drops those of others")
def test_other_platforms_take_the_plain_path():
    handled = lambda platform, leaf: _xla.tensors(platform, "unscale", [leaf], None).leaves[0]  # noqa: E731
    step = jax.jit(lambda leaf: _xla.choose(handled, lambda leaf: leaf * 1.0, leaf))
    lowered = {platform: step.trace(jnp.ones(3)).lower(lowering_platforms=(platform,)) for platform in ("cpu", "tpu")}
    text = {platform: program.as_text() for platform, program in lowered.items()}
    assert "custom_call @gradscaler" in text["cpu"] and "custom_call @gradscaler" not in text["tpu"]
    assert "multiply" in text["tpu"]


def test_choosing_keeps_donated_buffers_in_place():
    def handled(platform, leaf, state):
        return _xla.tensors(platform, "unscale", [leaf], state).leaves[0]

    step = jax.jit(lambda *args: _xla.choose(handled, lambda leaf, state: leaf * 1.0, *args), donate_argnums=0)
    leaf, state = on_device([good("float32", 1000), np.asarray(words(gradscaler.Scaler().state))])
    before = pointers([leaf])
    assert pointers([step(leaf, state)]) == before


# ---- what is wrong ----


def test_errors_of_a_trace_name_the_leaf():
    leaves = [jnp.ones(3), jnp.ones(3, jnp.int32)]
    with pytest.raises(gradscaler.Error, match=r"^grads\['b'\] has dtype int32, which is not supported: pass float32"):
        _xla.tensors("cpu", "unscale", leaves, None, names=["['a']", "['b']"])
    with pytest.raises(gradscaler.Error, match=r"^out\[0\] .*complex"):
        _xla.tensors("cpu", "unscale", [jnp.ones(3)], None, dtypes="complex64")
    with pytest.raises(ValueError, match=r"^out\[0\] has shape \(2,\), its gradient \(3,\)"):
        _xla.tensors("cpu", "unscale_accumulate", [jnp.ones(3)], None, out=[jnp.ones(2)])
    with pytest.raises(ValueError, match="float64 needs jax_enable_x64"):
        _xla.tensors("cpu", "unscale", [jnp.ones(3)], None, dtypes="float64")


@pytest.mark.parametrize(
    ("error", "text", "options"),
    [
        (
            ValueError,
            "operation='add': expected one of measure, unscale, scale, unscale_accumulate",
            {"operation": "add"},
        ),
        (TypeError, "state is updated by a policy: pass it", {"state": jnp.zeros(_xla.STATE, jnp.uint32)}),
        (TypeError, "only unscale clips", {"operation": "measure", "max_norm": 1.0}),
        (TypeError, "factor must be uint32[8] or uint32[96], not float32[]", {"factor": jnp.float32(1)}),
        (ValueError, "max_norm=0.0: it must be finite and above 0", {"max_norm": 0}),
        (ValueError, "clip_value=-1.0: it must be finite and above 0", {"clip_value": -1.0}),
        (ValueError, "clip_value=nan", {"clip_value": float("nan")}),
        (ValueError, "clip_value", {"operation": "measure", "clip_value": 1.0}),
        (ValueError, "2 dtypes for 1 leaves", {"dtypes": ["float32", "float32"]}),
        (ValueError, "want", {"want": 64}),
        (TypeError, "unscale_accumulate adds to", {"operation": "unscale_accumulate"}),
    ],
)
def test_errors_of_a_trace_say_what_is_wrong(error, text, options):
    options = {"operation": "unscale", "factor": None} | options
    with pytest.raises(error) as caught:
        _xla.tensors("cpu", leaves=[jnp.ones(3)], **options)
    assert text in str(caught.value)


def test_errors_of_a_run_are_sentences_of_the_library(run):
    unscale = run(lambda state: _xla.tensors("cpu", "unscale", [jnp.ones(3)], state).leaves[0])
    with pytest.raises(RuntimeError, match=r"gradscaler: factor.scale is 0: it must be finite and above 0"):
        jax.block_until_ready(unscale(jnp.zeros(_xla.STATE, jnp.uint32)))
    update = run(functools.partial(_xla.update, "cpu", policy=gradscaler.Policy("recommended")))
    with pytest.raises(RuntimeError, match=r"gradscaler: state"):
        jax.block_until_ready(update(jnp.full(_xla.STATE, 7, jnp.uint32), jnp.zeros(_xla.REPORT, jnp.uint32)))


RIGHT = {"call": np.int64(1), "with": np.int64(0), "count": np.int64(1), "want": np.int64(0)}
ARRAY, STATE, REPORT = np.ones(3, np.float32), ((_xla.STATE,), np.uint32), ((_xla.REPORT,), np.uint32)


@pytest.mark.parametrize(
    ("text", "operands", "results", "attributes"),
    [
        ("no such call", [ARRAY], [((3,), np.float32), REPORT], RIGHT | {"call": np.int64(10)}),
        ("no such call", [ARRAY], [((3,), np.float32), REPORT], RIGHT | {"call": np.int64(-1)}),
        ("too few operands", [ARRAY], [((3,), np.float32), REPORT], RIGHT | {"count": np.int64(2**40)}),
        ("too few operands", [ARRAY], [((3,), np.float32), REPORT], RIGHT | {"count": np.int64(-1)}),
        ("too few operands", [ARRAY], [((3,), np.float32), REPORT], RIGHT | {"with": np.int64(1)}),
        ("too few results", [ARRAY], [((3,), np.float32)], RIGHT),
        ("not uint32 of its size", [ARRAY], [((3,), np.float32), ((_xla.REPORT - 1,), np.uint32)], RIGHT),
        ("not uint32 of its size", [ARRAY], [((3,), np.float32), ((_xla.REPORT,), np.int32)], RIGHT),
        ("too few operands", [], [REPORT], {"call": np.int64(4)}),
        ("too few operands", [np.zeros(_xla.STATE, np.uint32)], [STATE], {"call": np.int64(9)}),
        ("tensors[0].dtype", [np.ones(3, np.int32)], [((3,), np.float32), REPORT], RIGHT),
        ("out[0].count", [ARRAY], [((4,), np.float32), REPORT], RIGHT),
        (
            "the policy has another size",
            [ARRAY],
            [((3,), np.float32), REPORT],
            RIGHT | {"policy": np.zeros(9, np.uint8)},
        ),
        ("policy", [np.zeros(n, np.uint32) for n in (_xla.STATE, _xla.REPORT)], [STATE], {"call": np.int64(5)}),
        ("sums and results differ", [ARRAY, ARRAY], [((4,), np.float32), REPORT], RIGHT | {"call": np.int64(3)}),
    ],
)
def test_a_call_that_is_no_call_is_an_error_and_no_crash(text, operands, results, attributes):
    assert _xla.why_not("cpu") is None
    call = _xla._ffi().ffi_call("gradscaler", [jax.ShapeDtypeStruct(*result) for result in results])
    with pytest.raises(RuntimeError) as caught:
        jax.block_until_ready(call(*map(copied, operands), **attributes))
    assert "gradscaler: " in str(caught.value) and text in str(caught.value)


# ---- which XLA ----


def test_the_handler_serves_the_cpu_and_says_why_not_elsewhere(monkeypatch, tmp_path):
    assert _xla.why_not("cpu") is None
    assert "no compiled handler for tpu" in _xla.why_not("tpu")
    assert _xla.why_not("gpu") == _xla.why_not("cuda")
    assert _xla.why_not("cuda") is None or "cuda" in _xla.why_not("cuda").lower()
    ffi = _xla._ffi()
    for text, expected in [("#define XLA_FFI_API_MAJOR 1\n", "major version 1"), ("", "does not say")]:
        header = tmp_path / "xla/ffi/api/c_api.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)
        monkeypatch.setattr(ffi, "include_dir", lambda: str(tmp_path))
        assert expected in _xla.why_not.__wrapped__("cpu")
    monkeypatch.undo()
    monkeypatch.setattr(_gradscaler, "xla_handler", lambda platform: "no handler")
    assert "refuses gradscaler's handler" in _xla.why_not.__wrapped__("cpu")


STRUCTS = {  # ours, with the last member that is used: XLA's name, and its members where they have others
    "extension next": ("Extension_Base", {}),
    "version minor": ("Api_Version", {"major": "major_version", "minor": "minor_version"}),
    "metadata traits": ("Metadata", {"version": "api_version"}),
    "metadata_extension metadata": ("Metadata_Extension", {"base": "extension_base"}),
    "buffer dims": ("Buffer", {}),
    "list items": ("Args", {"items": "args"}),
    "list  items": ("Rets", {"items": "rets"}),
    "name size": ("ByteSpan", {"text": "ptr", "size": "len"}),
    "scalar value": ("Scalar", {}),
    "array data": ("Array", {}),
    "attributes items": ("Attrs", {"items": "attrs"}),
    "error_create code": ("Error_Create_Args", {"code": "errc"}),
    "error_destroy error": ("Error_Destroy_Args", {}),
    "stream_get stream": ("Stream_Get_Args", {"context": "ctx"}),
    "schedule data": ("ThreadPool_Schedule_Args", {"context": "ctx"}),
    "threads threads": ("ThreadPool_NumThreads_Args", {"context": "ctx", "threads": "num_threads"}),
    "api threads": (
        "Api",
        {
            "version": "api_version",
            "internal": "internal_api",
            "error_create": "XLA_FFI_Error_Create",
            "error_message": "XLA_FFI_Error_GetMessage",
            "error_destroy": "XLA_FFI_Error_Destroy",
            "handler_register": "XLA_FFI_Handler_Register",
            "stream_get": "XLA_FFI_Stream_Get",
            "schedule": "XLA_FFI_ThreadPool_Schedule",
            "threads": "XLA_FFI_ThreadPool_NumThreads",
            "others": None,
        },
    ),
    "frame attributes": ("CallFrame", {"context": "ctx", "operands": "args", "results": "rets", "attributes": "attrs"}),
}
CONSTANTS = {
    "MAJOR": "XLA_FFI_API_MAJOR",
    "METADATA": "XLA_FFI_Extension_Metadata",
    "BUFFER": "XLA_FFI_ArgType_BUFFER",
    "ARRAY": "XLA_FFI_AttrType_ARRAY",
    "SCALAR": "XLA_FFI_AttrType_SCALAR",
    "EXECUTE": "XLA_FFI_ExecutionStage_EXECUTE",
    "GRAPHS": "XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE",
    "INVALID_ARGUMENT": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "RESOURCE_EXHAUSTED": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "INTERNAL": "XLA_FFI_Error_Code_INTERNAL",
}
NAMES = ["S32", "S64", "U8", "U32", "F16", "F32", "F64", "C64", "BF16", "C128", "F8E5M2", "F8E4M3FN"]
CONSTANTS |= {name: f"XLA_FFI_DataType_{name}" for name in NAMES}
OURS = ROOT / "bindings/xla/xla.h"


def members(struct):
    """The names of the members of one of our structs, in their order."""
    body = re.search(rf"struct xla_{struct} {{\n(.*?)\n}};", OURS.read_text(), re.S)[1]
    found = []
    for line in re.sub(r"/\*.*?\*/", "", body).split(";"):
        for part in line.split(",") if "(*" not in line else [line]:
            found += re.findall(r"\(\*(\w+)\)\(|(\w+)(?:\[\d+\])?\s*$", part.strip())[:1]
    return [a or b for a, b in found]


def claims():
    yield from (f"static_assert(XLA_{ours} == {theirs});" for ours, theirs in CONSTANTS.items())
    yield "static_assert((int)XLA_BUFFER == (int)XLA_FFI_RetType_BUFFER);"
    yield "static_assert(XLA_MINOR <= XLA_FFI_API_MINOR);"
    for both, (theirs, other) in STRUCTS.items():
        ours, last = both.split()
        names = members(ours)
        assert names[-1] == last
        for name in names:
            match = other.get(name, "extension_start" if name == "extension" else name)
            if match:
                yield f"static_assert(offsetof(xla_{ours}, {name}) == offsetof(XLA_FFI_{theirs}, {match}));"
                yield f"static_assert(sizeof(xla_{ours}::{name}) == sizeof(XLA_FFI_{theirs}::{match}));"
        yield f"static_assert(sizeof(xla_{ours}) <= sizeof(XLA_FFI_{theirs}));"


def lock_of(version):
    return ROOT / f"ci/locks/jax-{version}.txt"


def header_of(version):
    """The folder of the header in this jaxlib, which is downloaded the first time."""
    folder = ROOT / "build" / "jaxlibs" / version
    name = "jaxlib/include/xla/ffi/api/c_api.h"
    if not (folder / name).exists():
        locked = re.search(r"^jaxlib==.*\n(    .*\n)+", lock_of(version).read_text(), re.MULTILINE)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock.txt").write_text(locked[0])
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.11", "--require-hashes"]
        pip = [sys.executable, "-m", "pip", "download", *options, "-r", folder / "lock.txt", "-d", folder]
        subprocess.run(pip, check=True)
        for wheel in folder.glob("*.whl"):
            zipfile.ZipFile(wheel).extract(name, folder)
            wheel.unlink()
    return folder / "jaxlib/include"


def compare(include, tmp_path, source):
    program = tmp_path / "compare.cpp"
    program.write_text(f'#include <xla/ffi/api/c_api.h>\n#include "{OURS}"\n' + "\n".join(source) + "\n")
    includes = [f"-I{include}", f"-I{ROOT / 'include'}"]
    return subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-w", *includes, str(program)], capture_output=True, text=True
    )


@pytest.mark.parametrize("version", ["0.4.38", "0.6.2", "installed"])
def test_our_declarations_are_those_of_jaxlib(version, tmp_path):
    include = _xla._ffi().include_dir() if version == "installed" else header_of(version)
    claimed = list(claims())
    assert len(claimed) > 150
    found = compare(include, tmp_path, claimed)
    assert found.returncode == 0, found.stderr
    wrong = compare(
        include, tmp_path, ["static_assert(offsetof(xla_frame, stage) == offsetof(XLA_FFI_CallFrame, ctx));"]
    )
    assert "static assertion failed" in wrong.stderr


@pytest.mark.parametrize("version", ["0.4.38", "0.6.2"])
def test_older_versions_of_jax_pass_these_tests(version, request):
    if not request.config.getoption("--long"):
        pytest.skip("installs JAX: with --long")
    folder = ROOT / "build" / "jaxlibs" / f"venv-{version}"
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes"]
    subprocess.run([*pip, "-r", lock_of(version)], check=True)
    here = next(folder.glob("lib/python*/site-packages")) / "gradscaler"
    if not here.exists():
        here.symlink_to(pathlib.Path(gradscaler.__file__).parent)
    found = subprocess.run([str(python), "-m", "pytest", "-q", __file__], capture_output=True, text=True)
    assert found.returncode == 0 and " failed" not in found.stdout, found.stdout


def test_what_only_the_handler_can_do_is_compiled_for_the_platform_of_the_program(monkeypatch):
    monkeypatch.setattr(_call, "backends", lambda: {"cpu": None, "tpu": None})  # not JAX's default alone
    scaler = gradscaler.jax.Scaler("torch")
    traced = jax.jit(lambda grads: scaler.measure(grads, want=Want.UNDERFLOW)).trace([jnp.ones(3)])
    assert "@gradscaler(" in traced.lower(lowering_platforms=("cpu",)).as_text()
    with pytest.raises(NotImplementedError, match="tpu"):
        traced.lower(lowering_platforms=("tpu",))
