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
ALL = Want.NORM | Want.AMAX | Want.UNDERFLOW


def tensors(operation, leaves, factor, out=None, state=None, loss=None, policy=None, **options):
    """Calls the handler as gradscaler.jax does."""
    traced = any(isinstance(operand, jax.core.Tracer) for operand in jax.tree.leaves((leaves, factor, out, state)))
    call = _xla.Call(operation, policy and bytes(policy), in_place=traced, **options)
    return _xla.tensors("cpu", call, list(leaves), factor, out, state, loss)


def of_name(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def any_bits(dtype, count, seed=0):
    """Returns numbers of all magnitudes, including subnormal ones, zero, Inf and NaN."""
    dtype = of_name(dtype)
    return np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)


def good(dtype, count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(of_name(dtype))


def copied(tree):
    """Returns arrays with memory of JAX's own, which can be donated, and which a test cannot change."""
    return jax.block_until_ready(jax.tree.map(lambda array: jax.jit(jnp.copy)(jnp.array(array, copy=True)), tree))


def words(struct):
    return jnp.array(np.frombuffer(bytes(struct), np.uint32))


def same(found, expected):
    for array, other in zip(found, expected, strict=True):
        array = np.asarray(array)
        assert array.dtype == other.dtype and array.shape == other.shape
        assert array.tobytes() == other.tobytes()


def same_words(array, struct):
    assert np.asarray(array).tobytes() == bytes(struct)


def pointers(arrays):
    return [array.unsafe_buffer_pointer() for array in arrays]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_report_and_state_have_the_bits_of_the_library(compiled, wide):
    jax.config.update("jax_enable_x64", wide)
    scaler = gradscaler.Scaler("recommended", init_scale=3.0 if wide else 1024.0)
    dtypes = [*DTYPES, "float64", "complex128"] if wide else DTYPES
    arrays = [any_bits(dtype, 5000, i).reshape(50, 100) for i, dtype in enumerate(dtypes)]
    arrays.append(np.zeros((0, 3), np.float32))
    run = jax.jit if compiled else lambda function: function

    @run
    def unscale(leaves, state):
        options = {"policy": scaler.policy, "want": int(ALL), "per_tensor": True, "histogram": True}
        return tensors("unscale", leaves, None, state=state, **options)

    @run
    def check(leaves, factor):
        return tensors("measure", leaves, factor, policy=scaler.policy, want=int(ALL))

    try:
        result = unscale(copied(arrays), words(scaler.state))
        checked = check(copied(arrays), words(scaler.factor))
    finally:
        jax.config.update("jax_enable_x64", False)
    report = scaler.unscale(arrays, want=ALL, per_tensor=True, histogram=True)
    scaler.update(report)
    same(result.leaves, arrays)
    same_words(result.report, report)
    same_words(result.state, scaler.state)
    same_words(checked.report, report)
    assert checked.leaves == []
    assert np.asarray(result.histogram).view(np.int64)[:16].tolist() == list(report.histogram)
    for row, each in zip(np.asarray(result.per_tensor), report.per_tensor.values(), strict=True):
        same_words(row, each)


def test_clipping_in_the_same_call_is_check_clip_and_unscale():
    scaler, arrays = gradscaler.Scaler(init_scale=1024.0), [good("float32", 5000), good("float16", 70)]

    @jax.jit
    def both(leaves, state):
        in_one = tensors("unscale", leaves, state, policy=scaler.policy, max_norm=0.5)
        report = tensors("measure", leaves, state, policy=scaler.policy, want=int(Want.NORM)).report
        factor = _xla.clip("cpu", state, report, max_norm=0.5)
        return in_one.leaves, tensors("unscale", leaves, factor).leaves, in_one.report, report, factor

    *clipped, in_one, measured, factor = both(copied(arrays), words(scaler.state))
    report = scaler.measure(arrays, want=Want.NORM)
    scaler.unscale(arrays, factor=scaler.clip_factor(report, 0.5))
    for leaves in clipped:
        same(leaves, arrays)
    for found, expected in (factor, scaler.clip_factor(report, 0.5)), (in_one, report), (measured, report):
        same_words(found, expected)


def test_reports_are_merged_in_the_order_of_their_rows():
    scaler, arrays = gradscaler.Scaler(), [good("float32", 999, i) for i in range(5)]
    arrays[2][5] = arrays[3][7] = np.inf
    reports = [scaler.measure([array], want=ALL) for array in arrays]
    merge = jax.jit(functools.partial(_xla.merge, "cpu", policy=scaler.policy))
    same_words(merge(jnp.stack([words(report) for report in reports])), gradscaler.Report.merge(reports))


def test_scale_multiplies_a_gradient_and_multiply_a_factor():
    scaler, expected, array = gradscaler.Scaler(init_scale=1024.0), gradscaler.Factor(), good("float32", 1000)
    scale = jax.jit(functools.partial(tensors, "scale", dtypes=["float16"]))
    same(scale(copied([array]), words(scaler.state)).leaves, [scaler.scale(array, dtype=np.float16)])
    _gradscaler.gsc_factor_multiply(None, scaler.factor, 3.0, expected)
    same_words(jax.jit(lambda state: _xla.multiply("cpu", state, 3.0))(words(scaler.state)), expected)


def test_large_lists_use_the_threads_of_xla_and_keep_their_bits():
    scaler, array = gradscaler.Scaler(), any_bits("float32", 3_000_000)
    result = jax.jit(functools.partial(tensors, "unscale", want=int(ALL)))(copied([array]), words(scaler.state))
    same_words(result.report, scaler.unscale([array], want=ALL))
    same(result.leaves, [array])


def in_place(program, *operands):
    """Runs a program that has donated operands; returns whether its results have their memory, without a copy."""
    operands = copied([np.asarray(operand) for operand in operands])
    before, compiled = pointers(operands), program.lower(*operands).compile()
    return pointers(compiled(*operands)) == before and " copy(" not in compiled.as_text()


def test_donated_buffers_are_updated_in_place():
    state, leaves = words(gradscaler.Scaler().state), [good(dtype, 33) for dtype in DTYPES]

    @functools.partial(jax.jit, donate_argnums=range(len(leaves) + 1))
    def step(state, *leaves):
        options = {"policy": gradscaler.Policy("recommended"), "want": int(Want.NORM), "max_norm": 1.0}
        result = tensors("unscale", leaves, None, state=state, **options)
        return result.state, *result.leaves

    @functools.partial(jax.jit, donate_argnums=0)
    def accumulate(out):
        return tensors("unscale_accumulate", [jnp.ones(100, jnp.float16)], None, out=[out]).leaves

    @functools.partial(jax.jit, donate_argnums=0)
    def chosen(leaf):
        return _xla.choose(lambda *args: tensors("unscale", args[1:], None).leaves, lambda leaf: [leaf * 1.0], leaf)

    assert in_place(step, state, *leaves)
    assert in_place(accumulate, good("float32", 100))
    assert in_place(chosen, good("float32", 1000))


def test_memory_that_was_not_donated_is_left_alone():
    array = good("float32", 1000)
    leaf = jnp.array(array)
    unscale = jax.jit(lambda leaf, factor: tensors("unscale", [leaf], factor).leaves[0])
    assert not np.array_equal(unscale(leaf, words(gradscaler.Scaler().factor)), array)
    same([leaf], [array])


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
    assert text.count("output_to_operand_aliasing") == 1  # of the gradients
    assert not re.findall(r"f32\[40,40\]\S* copy\(|callback", text)


def test_loops_carry_the_state():
    scaler = gradscaler.Scaler("recommended", growth_interval=2)
    arrays = np.stack([good("float16", 40, i) for i in range(7)])
    arrays[3, 5] = np.nan

    @jax.checkpoint
    def step(state, array):
        return tensors("unscale", [array], None, policy=scaler.policy, state=state).state

    @jax.jit
    def loops(state, arrays, count):
        counted = jax.lax.fori_loop(0, count, lambda i, state: step(state, arrays[i]), state)  # a while_loop
        return counted, jax.lax.scan(lambda state, array: (step(state, array), None), state, arrays)[0]

    states = loops(words(scaler.state), copied(arrays), len(arrays))
    for array in arrays:
        scaler.update(scaler.unscale([array]))
    for state in states:
        same_words(state, scaler.state)


HALF_INT = {"leaves": [jnp.ones(3), jnp.ones(3, jnp.int32)], "names": ["['a']", "['b']"]}
SUM_OF_2 = {"operation": "unscale_accumulate", "out": [jnp.ones(2)]}


@pytest.mark.parametrize(
    ("error", "text", "options"),
    [
        (ValueError, r"operation='add': expected one of measure, unscale, scale, unsc", {"operation": "add"}),
        (TypeError, "state is updated by a policy: pass it", {"state": jnp.zeros(_xla.STATE, jnp.uint32)}),
        (TypeError, "only unscale clips", {"operation": "measure", "max_norm": 1.0}),
        (TypeError, r"factor must be uint32\[8\] or uint32\[96\], not float32\[\]", {"factor": jnp.float32(1)}),
        (ValueError, "max_norm=0.0: it must be finite and above 0", {"max_norm": 0}),
        (ValueError, "clip_value=-1.0: it must be finite and above 0", {"clip_value": -1.0}),
        (ValueError, "clip_value=nan", {"clip_value": float("nan")}),
        (ValueError, "clip_value", {"operation": "measure", "clip_value": 1.0}),
        (ValueError, "2 dtypes for 1 leaves", {"dtypes": ["float32", "float32"]}),
        (ValueError, "want", {"want": 64}),
        (gradscaler.Error, "^loss has dtype int32, which is not supported", {"loss": jnp.ones(2, jnp.int32)}),
        (TypeError, "unscale_accumulate adds to", {"operation": "unscale_accumulate"}),
        (gradscaler.Error, r"^grads\['b'\] has dtype int32, which is not supported: pass float32", HALF_INT),
        (gradscaler.Error, r"^out\[0\] .*complex", {"dtypes": ["complex64"]}),
        (ValueError, r"^out\[0\] has shape \(2,\), its gradient \(3,\)", SUM_OF_2),
        (ValueError, "float64 needs jax_enable_x64", {"dtypes": ["float64"]}),
    ],
)
def test_errors_of_a_trace_say_what_is_wrong_and_name_the_leaf(error, text, options):
    with pytest.raises(error, match=text):
        tensors(**{"operation": "unscale", "factor": None, "leaves": [jnp.ones(3)]} | options)


ARRAY, STATE, REPORT = np.ones(3, np.float32), ((_xla.STATE,), np.uint32), ((_xla.REPORT,), np.uint32)
LEAF = ((3,), np.float32)


@pytest.mark.parametrize(
    ("text", "operands", "results", "attributes"),
    [
        ("no such call", [ARRAY], [LEAF, REPORT], {"call": 10}),
        ("no such call", [ARRAY], [LEAF, REPORT], {"call": -1}),
        ("too few operands", [ARRAY], [LEAF, REPORT], {"count": 2**40}),
        ("too few operands", [ARRAY], [LEAF, REPORT], {"count": -1}),
        ("too few operands", [ARRAY], [LEAF, REPORT], {"with": 1}),
        ("too few operands", [ARRAY], [LEAF, REPORT], {"with": 16}),
        ("options.loss is not usable: its dtype", [ARRAY, np.ones(1, np.int32)], [LEAF, REPORT], {"with": 16}),
        ("too few results", [ARRAY], [LEAF], {}),
        ("not uint32 of its size", [ARRAY], [LEAF, ((_xla.REPORT - 1,), np.uint32)], {}),
        ("not uint32 of its size", [ARRAY], [LEAF, ((_xla.REPORT,), np.int32)], {}),
        ("too few operands", [], [REPORT], {"call": 4}),
        ("too few operands", [np.zeros(_xla.STATE, np.uint32)], [STATE], {"call": 9}),
        ("tensors[0].dtype", [np.ones(3, np.int32)], [LEAF, REPORT], {}),
        ("out[0].count", [ARRAY], [((4,), np.float32), REPORT], {}),
        ("the policy has another size", [ARRAY], [LEAF, REPORT], {"policy": np.zeros(9, np.uint8)}),
        ("policy", [np.zeros(n, np.uint32) for n in (_xla.STATE, _xla.REPORT)], [STATE], {"call": 5}),
        ("sums and results differ", [ARRAY, ARRAY], [((4,), np.float32), REPORT], {"call": 3}),
    ],
)
def test_a_call_that_is_no_call_is_an_error_and_no_crash(text, operands, results, attributes):
    assert _xla.why_not("cpu") is None
    call = _xla._ffi().ffi_call("gradscaler", [jax.ShapeDtypeStruct(*result) for result in results])
    attributes = {"call": 1, "with": 0, "count": 1, "want": 0} | attributes
    numbers = {name: np.int64(value) if isinstance(value, int) else value for name, value in attributes.items()}
    with pytest.raises(RuntimeError, match=f"gradscaler: .*{re.escape(text)}"):
        jax.block_until_ready(call(*map(copied, operands), **numbers))


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


# Ours, the last member that is used, XLA's name, and its names of our members if it has others; "others" is unused.
STRUCTS = """
extension next Extension_Base
version minor Api_Version major=major_version minor=minor_version
metadata traits Metadata version=api_version
metadata_extension metadata Metadata_Extension base=extension_base
buffer dims Buffer
list items Args items=args
list items Rets items=rets
name size ByteSpan text=ptr size=len
scalar value Scalar
array data Array
attributes items Attrs items=attrs
error_create code Error_Create_Args code=errc
error_destroy error Error_Destroy_Args
stream_get stream Stream_Get_Args context=ctx
schedule data ThreadPool_Schedule_Args context=ctx
threads threads ThreadPool_NumThreads_Args context=ctx threads=num_threads
api threads Api version=api_version internal=internal_api error_create=Error_Create error_message=Error_GetMessage \
    error_destroy=Error_Destroy handler_register=Handler_Register stream_get=Stream_Get others= \
    schedule=ThreadPool_Schedule threads=ThreadPool_NumThreads
frame attributes CallFrame context=ctx operands=args results=rets attributes=attrs
"""
CONSTANTS = """
MAJOR=API_MAJOR METADATA=Extension_Metadata BUFFER=ArgType_BUFFER BUFFER=RetType_BUFFER ARRAY=AttrType_ARRAY
SCALAR=AttrType_SCALAR EXECUTE=ExecutionStage_EXECUTE GRAPHS=HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE
INVALID_ARGUMENT=Error_Code_INVALID_ARGUMENT RESOURCE_EXHAUSTED=Error_Code_RESOURCE_EXHAUSTED
INTERNAL=Error_Code_INTERNAL
"""
DTYPES_OF_XLA = "S32 S64 U8 U32 F16 F32 F64 C64 BF16 C128 F8E5M2 F8E4M3FN"
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
    for pair in [*CONSTANTS.split(), *(f"{name}=DataType_{name}" for name in DTYPES_OF_XLA.split())]:
        yield "static_assert((int)XLA_{} == (int)XLA_FFI_{});".format(*pair.split("="))
    yield "static_assert(XLA_MINOR <= XLA_FFI_API_MINOR);"
    for line in STRUCTS.strip().splitlines():
        ours, last, theirs, *renamed = line.split()
        renamed = {"extension": "extension_start"} | dict(pair.split("=") for pair in renamed)
        names = members(ours)
        assert names[-1] == last
        for name in names:
            if match := renamed.get(name, name):
                match = f"XLA_FFI_{match}" if match[0].isupper() else match
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
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", f"-I{include}", f"-I{ROOT / 'include'}", program]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("version", ["0.4.38", "installed"])  # with --long 0.6.2 also runs this
def test_our_declarations_are_those_of_jaxlib(version, tmp_path):
    include = _xla._ffi().include_dir() if version == "installed" else header_of(version)
    claimed = list(claims())
    assert len(claimed) > 150
    found = compare(include, tmp_path, claimed)
    assert found.returncode == 0, found.stderr
    wrong = "static_assert(offsetof(xla_frame, stage) == offsetof(XLA_FFI_CallFrame, ctx));"
    assert "static assertion failed" in compare(include, tmp_path, [wrong]).stderr


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


def test_a_program_is_compiled_with_the_handler_for_its_platforms_alone(monkeypatch):
    monkeypatch.setattr(_call, "backends", lambda: {"cpu": None, "tpu": None})  # not JAX's default alone
    scaler = gradscaler.jax.Scaler("torch")

    def lowered(platform, function):
        return jax.jit(function).trace([jnp.ones(3)]).lower(lowering_platforms=(platform,)).as_text()

    assert "@gradscaler(" in lowered("cpu", gradscaler.jax.all_finite)
    if jax.__version_info__ >= (0, 5):  # before, JAX lowers all branches, and XLA drops the other platforms'
        assert "@gradscaler(" not in lowered("tpu", gradscaler.jax.all_finite)
    assert "@gradscaler(" in lowered("cpu", lambda grads: scaler.measure(grads, want=Want.UNDERFLOW))
    with pytest.raises(NotImplementedError, match="tpu"):  # only the handler can do this
        lowered("tpu", lambda grads: scaler.measure(grads, want=Want.UNDERFLOW))
