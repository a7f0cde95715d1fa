# SPDX-License-Identifier: MIT
"""Time of gradscaler against the memory, torch, NumPy and JAX.

All run in one process, in alternating rounds and, except JAX, on the same memory. Only times of one round are divided,
so that a busy machine slows both, and a short time is the least of several, so that an interruption is no part of it.
The table shows gradscaler's time, and the time of the others over it: the median, and in brackets the lower and the
upper quartile. Above 1, gradscaler is faster.

--bounds also compares with limits and with what the project asks of each row. A limit is a plain loop that checks and
sums nothing. In place it is the slower of two: one multiplies the same bytes ("memory"), one does no more than the
conversions without which the dtype cannot be multiplied ("conversions"). Into other memory it widens, or copies,
without arithmetic ("copy"). A bound is compared with the lower quartile.
"""

import argparse
import ctypes
import json
import mmap
import os
import sys
import time
from functools import cache, cached_property, lru_cache, partial
from itertools import groupby, product
from pathlib import Path

# One thread everywhere but where a row says two.
os.environ |= {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import page_table  # noqa: E402
from models import GPT2, SMALL_GPT, counts_of_gpt, gpt  # noqa: E402
from page_table import ORDER, number  # noqa: E402

import gradscaler  # noqa: E402
from gradscaler import Want  # noqa: E402
from gradscaler import _gradscaler as core  # noqa: E402

try:
    import torch
except ImportError:
    torch = None
try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = None


def resnet50():
    counts, inputs = [64 * 3 * 49, 64, 64], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            outputs = 4 * width
            counts += [inputs * width, width, width, 9 * width * width, width, width, outputs * width, outputs, outputs]
            if block == 0:
                counts += [inputs * outputs, outputs, outputs]
            inputs = outputs
    return [*counts, 2048 * 1000, 1000]


LISTS = {  # name: elements of each tensor
    "GPT-2": counts_of_gpt(*GPT2),
    "ResNet-50": resnet50(),
    "256 Ki": [256 << 10],  # stays in a large L2 cache
    "32 Ki": [32 << 10],  # in any L2
    "4 Ki": [4 << 10],  # in L1
    "1,000 of 32": [32] * 1000,
    "1,000 of 64": [64] * 1000,
    "1,000 of 768": [768] * 1000,
    "161 of 4,096": [4096] * 161,
    "161 of 64": [64] * 161,
    "161 of 256": [256] * 161,
    "MLP of 6": [64 * 64, 64, 64 * 64, 64, 64 * 10, 10],
    "small GPT": counts_of_gpt(*SMALL_GPT),
    "one value": [1],
}
DTYPES = {  # name: GSC_*, the type in NumPy
    "f32": (core.GSC_F32, np.float32),
    "f16": (core.GSC_F16, np.float16),
    "bf16": (core.GSC_BF16, ml_dtypes.bfloat16),
    "f8_e4m3fn": (core.GSC_F8_E4M3FN, ml_dtypes.float8_e4m3fn),
    "f8_e5m2": (core.GSC_F8_E5M2, ml_dtypes.float8_e5m2),
    "f64": (core.GSC_F64, np.float64),
    "cb16": (core.GSC_CB16, np.uint16),
    "complex64": (core.GSC_COMPLEX64, np.complex64),
}
REPORT_BYTES = 256
START = time.monotonic()
MIXED = ("f32", "f16", "bf16")
BACK = (0.25, 4.0)  # unscaling by one, then by the other, leaves the values as they were
# Unscaling always makes the norm four times as large, and clipping brings it back.
REACHED = {"clip": 1, "scales": (0.25, 0.25)}

build = Path(__file__).parents[2] / "build/release"
library, limits = ctypes.CDLL(build / "libgradscaler.so"), ctypes.CDLL(build / "tests/bench/liblimits.so")
TYPES = {"P": ctypes.c_void_p, "Q": ctypes.c_uint64, "I": ctypes.c_uint32, "i": ctypes.c_int32, "d": ctypes.c_double}
SIGNATURES = {"multiply": "PQQ", "convert": "IPQQ", "widen": "IPPQQ", "unscale": "PPPQIPPdddiQ"}
SIGNATURES |= {"copy": "PPQQ", "copy_unless_skipped": "PPQQ"}
for name, arguments in SIGNATURES.items():
    function = getattr(limits, f"{name}_seconds")
    function.argtypes, function.restype = [TYPES[letter] for letter in arguments], ctypes.c_double
library.gsc_status_string.restype = ctypes.c_char_p
# Private pages as malloc gives them; NumPy's own would be huge ones.
memory = np.frombuffer(mmap.mmap(-1, 8 * sum(LISTS["GPT-2"]) + (1 << 20), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), "u1")


class NotRunError(Exception):
    """Why a competitor has no time."""


class Gradients:
    """A list of tensors at the start of `memory`, with normal values."""

    def __init__(self, counts, dtype):
        self.code, self.type = DTYPES[dtype]
        size = np.dtype(self.type).itemsize
        # At multiples of 32 bytes, as allocators do at least, and where the limit sees them as one.
        starts = np.cumsum([0, *(-(-count * size // 32) * 32 for count in counts)]).tolist()
        self.bytes = starts[-1]
        self.arrays = [memory[a : a + n * size].view(self.type) for a, n in zip(starts, counts, strict=False)]
        self.tensors = self.described(self.arrays, self.code)
        self.elements = sum(counts)
        random = np.random.default_rng(0)
        values = (random.uniform(1, 2, 1 << 18) * 2.0 ** random.integers(-6, 1, 1 << 18)).astype(np.float32)
        values *= random.choice([-1, 1], values.size)
        if dtype == "complex64":
            values = values.view(self.type)
        elif dtype == "cb16":  # float16 has one bit of exponent less and one of mantissa more
            half = values.astype(np.float16).view(np.uint16)
            values = (half & 0x8000) | ((half & 0x7FFF) >> 1) + ((42 - 15) << 9)
        else:
            values = values.astype(self.type)
        tile = values.view(np.uint8)
        for start in range(0, self.bytes, tile.size):
            memory[start : min(start + tile.size, self.bytes)] = tile[: self.bytes - start]

    @staticmethod
    def described(arrays, code):
        """gsc_tensor[]"""
        rows = [(array.ctypes.data, array.size, code, 0, 0, 0) for array in arrays]
        return np.array(rows, dtype="u8,u8,u4,u4,u8,u8")

    @cached_property
    def widened(self):
        return self.outputs(np.float32, core.GSC_F32)

    @cached_property
    def copied(self):
        return self.outputs(self.type, self.code)

    def outputs(self, kind, code):
        """Outputs behind the list."""
        at, out, size = self.bytes, [], np.dtype(kind).itemsize
        for array in self.arrays:
            out.append(memory[at : at + size * array.size].view(kind))
            at += -(-size * array.size // 32) * 32
        memory[self.bytes : at] = 0
        return self.described(out, code)

    @cached_property
    def torch(self):
        """Returns parameters that have these arrays as gradients."""
        if torch is None:
            raise NotRunError("torch is not installed")
        if self.type is ml_dtypes.bfloat16:
            views = [torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in self.arrays]
        elif self.type in (np.float32, np.float16, np.float64, np.complex64):
            views = [torch.from_numpy(array) for array in self.arrays]
        else:
            raise NotRunError("torch does not unscale this dtype")
        parameters = [torch.nn.Parameter(view) for view in views]
        for parameter, view in zip(parameters, views, strict=True):
            parameter.grad = view
        return parameters

    @property
    def max_norm(self):
        """About the norm that the values have."""
        return 0.5 * self.elements**0.5


# ---- competitors: each takes Gradients and returns a function of `pairs` that returns seconds ----


def repeated(call, clock=time.perf_counter):
    """The loop for what is called from Python: call(0), call(1), call(0) ..."""

    def run(pairs):
        start = clock()
        for _ in range(pairs):
            call(0)
            call(1)
        return clock() - start

    return run


@lru_cache(maxsize=2)
def slower_loop(grads, exact):
    """Over the bytes in place: its name and a function of `pairs`. `exact`: all factors are powers of two."""
    at = memory.ctypes.data
    loops = {"memory": partial(limits.multiply_seconds, at, grads.bytes)}
    # bf16 by a power of two is an addition, which is as fast as the memory.
    if limits.convert_seconds(grads.code, None, 0, 0) >= 0 and not (exact and grads.code == core.GSC_BF16):
        loops["conversions"] = partial(limits.convert_seconds, grads.code, at, grads.bytes)
    pairs = 1 + (1 << 22) // grads.bytes
    least = {name: min(run(pairs) for _ in range(5)) for name, run in loops.items()}
    return max(loops.items(), key=lambda loop: least[loop[0]])


def limit(grads, exact=True):
    return slower_loop(grads, exact)[1]


def limit_widening(grads):
    at, size = memory.ctypes.data, np.dtype(grads.type).itemsize
    return partial(limits.widen_seconds, size, at, at + grads.bytes, grads.elements)


@cache
def context(threads):
    made = ctypes.c_void_p()
    status = library.gsc_context_create_cpu((ctypes.c_uint32 * 6)(24, threads), ctypes.byref(made), None)
    if status < 0:
        raise NotRunError(library.gsc_status_string(status).decode())
    return made


def ours(
    grads, want=0, per_tensor=False, histogram=False, scales=BACK, clip=None, applied=False, threads=1, widening=False
):
    """From C. `clip`: the norm to clip to, as a multiple of grads.max_norm."""
    tensors = grads.tensors.ctypes.data
    out = grads.widened.ctypes.data if widening else tensors
    where = context(threads) if threads > 1 else None
    max_norm = clip * grads.max_norm if clip else 0
    n = len(grads.tensors)
    reports = np.zeros((n, REPORT_BYTES), np.uint8) if per_tensor else None
    words = np.zeros(core.GSC_HISTOGRAM_LENGTH, np.int64) if histogram else None

    def run(pairs):
        measured = [array if array is None else array.ctypes.data for array in (reports, words)]
        seconds = limits.unscale_seconds(where, tensors, out, n, want, *measured, *scales, max_norm, applied, pairs)
        if seconds < 0:
            raise NotRunError(library.gsc_status_string(int(seconds)).decode())
        return seconds

    return run


def copied(loop, grads):
    arguments = grads.tensors.ctypes.data, grads.copied.ctypes.data, len(grads.tensors)
    return partial(loop, *arguments)


def of_torch(grads, norm=False, scales=BACK, clip=None):
    parameters = grads.torch
    views = [parameter.grad for parameter in parameters]
    found, inverses = torch.zeros(1), [torch.full((1,), 1 / scale) for scale in scales]
    max_norm = clip and clip * grads.max_norm

    def call(i):
        torch._amp_foreach_non_finite_check_and_unscale_(views, found, inverses[i])
        if norm:
            torch.nn.utils.get_total_norm(views)
        elif clip:
            torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        found.item()

    return repeated(call)


def of_numpy(grads, norm=False, scales=BACK, clip=None):
    inverses = [grads.type(1 / scale) for scale in scales]

    def call(i):
        finite, total = True, 0.0
        for x in grads.arrays:
            x *= inverses[i]
            finite &= bool(np.isfinite(x).all())
            if norm or clip:
                wide = x.astype(np.float32, copy=False)
                total += float(np.vdot(wide, wide))
        if clip and total**0.5 > clip * grads.max_norm:
            for x in grads.arrays:
                x *= grads.type(clip * grads.max_norm / (total**0.5 + 1e-6))

    return repeated(call)


def in_jax(grads, step, inputs):
    """A compiled step(input, arrays), to which copies of the arrays are donated, as these have to be of JAX's memory;
    what it returns beside them a training loop waits for."""
    if jax is None:
        raise NotRunError("JAX is not installed")
    step = jax.jit(step, donate_argnums=1)
    arrays = [[jax.jit(jnp.copy)(x) for x in grads.arrays]]

    def call(i):
        arrays[0], result = step(inputs[i], arrays[0])
        jax.block_until_ready(result)

    return repeated(call)


def of_jax(grads, norm=False, scales=BACK, clip=None):
    def step(inverse, arrays):
        arrays = [(x.astype(jnp.float32) * inverse).astype(x.dtype) for x in arrays]
        finite = jnp.all(jnp.array([jnp.isfinite(x).all() for x in arrays]))
        total = 0.0
        if norm or clip:
            total = jnp.sqrt(sum(jnp.square(x.astype(jnp.float32)).sum() for x in arrays))
        if clip:
            coefficient = jnp.minimum(1.0, clip * grads.max_norm / (total + 1e-6))
            arrays = [(x * coefficient).astype(x.dtype) for x in arrays]
        return arrays, (finite, total)

    return in_jax(grads, step, [np.float32(1 / scale) for scale in scales])


def in_jit(grads):
    """The handler in a compiled program: unscale, check and norm."""
    if jax is None:
        raise NotRunError("JAX is not installed")
    import gradscaler.jax

    if reason := gradscaler.jax.backend().why:
        raise NotRunError(reason)

    def step(scaler, arrays):
        arrays, report = scaler.unscale(arrays, want=Want.NORM)
        return arrays, report.words

    return in_jax(grads, step, [gradscaler.jax.Scaler("torch", init_scale=scale) for scale in BACK])


def handed_through(grads):
    """Returns a step that JAX takes for a program with these arrays as arguments and results, and changes none."""

    def step(number, arrays):
        return jax.lax.optimization_barrier(arrays), number + 1

    return in_jax(grads, step, [np.float32(scale) for scale in BACK])


def scalers(kind=gradscaler.Scaler, of="torch"):
    """Two with the scales of BACK, which never grow."""
    return [kind(of, init_scale=scale, growth_interval=10**9) for scale in BACK]


def check_unchanged(report, clip_inverse=1.0):
    if report.overflow or clip_inverse < 1:
        raise NotRunError("the gradients are not what they were")


def python_step(grads, held=False):
    """A whole step: unscale, clip to a norm that is not reached, skip or step, update."""
    arrays, max_norm = gradscaler.Arrays(grads.arrays) if held else grads.arrays, 1e9 * grads.max_norm
    both = scalers()

    def call(i):
        report = both[i].unscale(arrays, want=Want.NORM)
        check_unchanged(report, both[i].clip_factor(report, max_norm, unscaled=True).inverse)
        both[i].update(report)

    return repeated(call)


def an_update(then):
    """Returns what makes an update, with what comes after it: "", "metrics" or "history"."""

    def made(grads):
        scaler = gradscaler.Scaler("torch", growth_interval=10**9)
        report = scaler.measure(grads.arrays, want=Want.NORM)
        if then == "history":
            Path("build/bench-history.jsonl").unlink(missing_ok=True)
            scaler.history("build/bench-history.jsonl").open()

        def call(_):
            scaler.update(report)
            if then == "metrics":
                scaler.metrics(report)

        return repeated(call)

    return made


def raw_step(grads):
    """The same by the functions of C, as a framework has it that keeps a list and a report."""
    both = scalers()
    factors = [scaler.factor for scaler in both]
    held, max_norm = core.hold(grads.arrays, grads.arrays, -1, None), 1e9 * grads.max_norm
    report, clip, options = gradscaler.Report(), gradscaler.Factor(), {"want": core.GSC_WANT_NORM}

    def call(i):
        core.gsc_unscale(None, factors[i], held, options, report)
        core.gsc_factor_clip_grad_norm(None, None, report, max_norm, clip)
        check_unchanged(report, clip.inverse)
        core.gsc_state_update(None, both[i].policy, both[i].state, report, both[i].state)

    return repeated(call)


def torchs_gradients(grads):
    """Unscale and update for a list of torch's tensors, which a training loop collects anew in each step."""
    parameters, both = grads.torch, scalers()

    def call(i):
        report = both[i].unscale([parameter.grad for parameter in parameters])
        check_unchanged(report)
        both[i].update(report)

    return repeated(call)


def torchs_own(parameters, drop_in=False):
    """An optimizer that does nothing, and two scalers."""
    from gradscaler.torch import GradScaler

    class Nothing(torch.optim.Optimizer):
        def step(self):
            pass

    both = scalers(GradScaler if drop_in else torch.amp.GradScaler, "cpu")
    for scaler in both:
        scaler.scale(torch.zeros(()))
    return Nothing(parameters, {}), both


def torch_unscale(grads):
    optimizer, both = torchs_own(grads.torch)

    def call(i):
        both[i].unscale_(optimizer)
        both[i].update()

    return repeated(call)


def torch_scale(drop_in=False):
    """scale() in a step after the first, which learns the order of the backward pass."""

    def made(grads):
        _, both = torchs_own(grads.torch, drop_in)
        loss = torch.ones((), requires_grad=True) * 2
        for scaler in both:
            scaler.scale(loss)
            if drop_in:
                scaler._losses.end_step()
        return repeated(lambda i: both[i].scale(loss))

    return made


def step_with_torch(scaler, optimizer, parameters, max_norm):
    """Unscale, clip, step or not, update; gradscaler.torch clips where it unscales."""
    if type(scaler) is torch.amp.GradScaler:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    else:
        scaler.unscale_(optimizer, max_norm=max_norm)
    scaler.step(optimizer)
    scaler.update()


def torch_step(grads, drop_in=False):
    parameters, max_norm = grads.torch, 1e9 * grads.max_norm
    optimizer, both = torchs_own(parameters, drop_in)
    return repeated(lambda i: step_with_torch(both[i], optimizer, parameters, max_norm))


@cache
def trained():
    """The parameters of the small GPT, and the loss of a batch of one sequence."""
    torch.manual_seed(0)
    model = gpt(torch, *SMALL_GPT)
    parameters, tokens = list(model.parameters()), torch.randint(SMALL_GPT[2], (1, 65))
    assert [parameter.numel() for parameter in parameters] == LISTS["small GPT"]
    return parameters, lambda: model(tokens)


def training(how):
    """A training step without its optimizer; `how` the gradients are unscaled and clipped."""

    def competitor(grads):
        if torch is None:
            raise NotRunError("torch is not installed")
        parameters, loss = trained()
        optimizer, (scaler, _) = torchs_own(parameters, how != "torch")

        def call(i):
            for parameter in parameters:
                parameter.grad = None
            scaler.scale(loss()).backward()
            if how:
                step_with_torch(scaler, optimizer, parameters, 1e9)

        return repeated(call, time.thread_time)  # of long times the interruptions would be more than what is added

    return competitor


any_scale, NORM = partial(limit, exact=False), {"want": Want.NORM}


def against(options, limit=limit, **peers):
    return {"ours": partial(ours, **options), **({"limit": limit} if limit else {}), **peers}


def peers(**options):
    return {who: partial(run, **options) for who, run in {"torch": of_torch, "NumPy": of_numpy, "JAX": of_jax}.items()}


def cost(**options):
    """Times one more measure in a report."""
    return against(options, plain=partial(ours, want=options.get("want", 0) if "per_tensor" in options else 0))


OPERATIONS = {  # name: competitors; ours first
    "check": against({}, **peers()),
    "check + norm": against(NORM, **peers(norm=True)),
    "alone": against({}),
    "alone, + norm": against(NORM),
    "by 1.25": against({"scales": (1.25, 0.8)}, any_scale, torch=partial(of_torch, scales=(1.25, 0.8))),
    "by 1.25, + norm": against({**NORM, "scales": (1.25, 0.8)}, any_scale),
    "clip, not reached": against({**NORM, "clip": 1e9, "applied": True}, **peers(clip=1e9)),
    "clip, reached": against({**NORM, "applied": True, **REACHED}, **peers(**REACHED)),
    # Not multiplied, so the way back is by the scale; what torch does is the same.
    "clip, as a factor": against({**NORM, "clip": 1e-3}, torch=partial(of_torch, **REACHED)),
    "into f32": against({"widening": True}, limit_widening),
    "into f32, + norm": against({"widening": True, **NORM}, limit_widening),
    "copy unless skipped": {
        "ours": partial(copied, limits.copy_unless_skipped_seconds),
        "limit": partial(copied, limits.copy_seconds),
    },
    "amax": cost(want=Want.AMAX),
    "underflow": cost(want=Want.UNDERFLOW),
    "histogram": cost(histogram=True),
    "each": cost(per_tensor=True),
    "each, + norm": cost(per_tensor=True, want=Want.NORM),
    "check, 2 threads": against({"threads": 2}, None, torch=of_torch, one=ours),
    "norm, 2 threads": against(
        {"threads": 2, **NORM}, None, torch=partial(of_torch, norm=True), one=partial(ours, **NORM)
    ),
    "in jit": {"ours": in_jit, "limit": limit},
    "in jit, over jnp": {"ours": in_jit, "jnp": partial(of_jax, norm=True)},
    "in jit, small": {"ours": in_jit, "handed": handed_through, "jnp": partial(of_jax, norm=True)},
    "friendly": {"ours": python_step, "torch": torch_step},
    "friendly, held": {"ours": partial(python_step, held=True), "torch": torch_step},
    "list built": {"ours": raw_step, "torch": torch_step},
    "torch's gradients": {"ours": torchs_gradients, "torch": torch_unscale},
    "GradScaler": {"ours": partial(torch_step, drop_in=True), "torch": torch_step},
    "metrics": {"ours": an_update("metrics"), "nothing": an_update("")},
    "a line of history": {"ours": an_update("history"), "nothing": an_update("")},
    "scale()": {"ours": torch_scale(drop_in=True), "torch": torch_scale()},
    "in one call": {"ours": training("call"), "added": training("torch"), "nothing": training("")},
}
CLIPS = ("clip, not reached", "clip, reached", "clip, as a factor")
MANY = ("161 of 4,096", "1,000 of 768", "1,000 of 64")
SMALL, TWO = ("161 of 64", "MLP of 6"), ("check, 2 threads", "norm, 2 threads")
CASES = [  # title, lists, dtypes, operations
    ("Unscale in place", list(LISTS)[:5], (*MIXED, "f8_e4m3fn"), ("check", "check + norm")),
    ("Tiny tensors", ("1,000 of 32",), (*MIXED, "f8_e4m3fn"), ("check", "check + norm")),
    ("By a scale that is no power of two", ("GPT-2", "256 Ki"), (*MIXED, "f8_e4m3fn"), ("by 1.25", "by 1.25, + norm")),
    ("Unscale and clip", ("GPT-2", "256 Ki", "32 Ki"), MIXED, CLIPS),
    ("Other dtypes", ("GPT-2", "256 Ki"), ("f64", "complex64", "cb16", "f8_e5m2"), ("alone", "alone, + norm")),
    ("Into float32", ("GPT-2", "256 Ki"), ("f16", "bf16", "f8_e4m3fn", "f8_e5m2"), ("into f32", "into f32, + norm")),
    ("Keep a step's results", ("GPT-2", "256 Ki"), MIXED, ("copy unless skipped",)),
    ("What more of a report costs", ("256 Ki",), MIXED, ("amax", "underflow", "histogram")),
    ("Reports of tensors", (*MANY, "GPT-2"), ("f32", "f16"), ("each", "each, + norm")),
    ("Two threads", ("GPT-2", "ResNet-50"), MIXED, TWO),
    ("In a compiled program of JAX", ("GPT-2",), MIXED, ("in jit", "in jit, over jnp")),
    ("Small arrays in a compiled program of JAX", ("161 of 256",), MIXED, ("in jit, small",)),
    ("A whole step from Python", (*SMALL, "GPT-2"), ("f32",), ("friendly", "friendly, held", "list built")),
    ("A whole step with torch's optimizers", ("161 of 64", "GPT-2"), ("f32",), ("GradScaler",)),
    ("Added to a training step with torch", ("small GPT",), ("f32",), ("in one call",)),
    ("Beside an update, from Python", ("one value",), ("f32",), ("metrics", "a line of history")),
    ("Multiply a loss, from Python", ("one value",), ("f32",), ("scale()",)),
    ("Unscale and update, from Python", (*SMALL, "1,000 of 64"), ("f32",), ("torch's gradients",)),
]
ASKED = {  # list, operation: against whom, and the bounds of the lower quartile, of dtypes as in ORDER
    ("GPT-2", "check"): ("limit", 1.05, 1.10, 1.10, 1.1),
    ("GPT-2", "check + norm"): ("limit", 1.08, 1.12, 1.15),
    ("GPT-2", "alone"): ("limit", None, None, None, None, 1.1, 1.1),
    ("GPT-2", "into f32"): ("limit", None, None, None, 1.1, 1.1),
    ("GPT-2", "copy unless skipped"): ("limit", 1.05, 1.05, 1.05),
    ("256 Ki", "check"): ("limit", 1.10, 1.1, 1.2, 2),
    ("256 Ki", "alone"): ("limit", None, None, None, None, 2, 3),
    ("256 Ki", "check + norm"): ("limit", 1.2, 2.5, 2.2),
    ("256 Ki", "by 1.25"): ("limit", None, 1.1, 1.1, 2),
    ("256 Ki", "by 1.25, + norm"): ("limit", None, None, 3.0),
    ("GPT-2", "clip, not reached"): ("torch", 2.8, 10, 4.5),
    ("32 Ki", "clip, not reached"): ("torch", 20, 20, 20),
    ("1,000 of 32", "check"): ("ns", 6, 6, 6, 6),
    ("one value", "metrics"): ("ns", 3000),
    ("one value", "a line of history"): ("ns", 10_000),
    ("one value", "scale()"): ("ns", 10_000),
    ("GPT-2", "in jit"): ("limit", 1.1, None, None),
    ("GPT-2", "in jit, over jnp"): ("jnp", 8, 12, 12),
    ("161 of 256", "in jit, small"): ("jnp", 2, 2, 2),
    **dict.fromkeys(product(("161 of 4,096", "GPT-2"), ["each"]), ("plain", 1.05, 1.05)),
    **dict.fromkeys(product(MANY[1:], ["each"]), ("more", 3, 3)),
    **dict.fromkeys(product(SMALL, ["friendly"]), ("torch", 20)),
    **dict.fromkeys(product(SMALL, ["list built"]), ("torch", 50)),
    **dict.fromkeys(product((*SMALL, "1,000 of 64"), ["torch's gradients"]), ("torch", 2)),
    ("161 of 64", "GradScaler"): ("torch", 10, None, None),
    ("GPT-2", "GradScaler"): ("torch", 2.8, None, None),
    ("small GPT", "in one call"): ("added", 0.4, None, None),
    **dict.fromkeys(product(("GPT-2", "ResNet-50"), TWO), ("one", 1.6, 1.6, 1.6)),
}
QUICK = {  # lists that --quick uses for these operations only
    "GPT-2": ("check", "check + norm", "each"),
    "ResNet-50": ("check, 2 threads",),
    "4 Ki": (),
}
AT_MOST = ("limit", "handed", "plain", "ns", "more", "added")  # less is better
HEADINGS = {
    "limit": "ours over the limit",
    "handed": "ours over no work",
    "plain": "ours over plain call",
    "more": "ns more per tensor",
    "torch": "torch over ours",
    "added": "ours over torch + clip",
    "jnp": "jax.numpy over ours",
    "one": "one thread over two",
    "ns": "ns per tensor",
    "NumPy": "NumPy",
    "JAX": "JAX",
}
FOR_BOUNDS = ("limit", "handed", "plain", "more")  # columns that --bounds adds


# ---- measuring ----


@lru_cache(maxsize=1)
def gradients(name, dtype):
    """The list of the last row again, or another one in its memory."""
    return Gradients(LISTS[name], dtype)


def progress(text=None):
    """On a terminal only, in one line, which goes without a text."""
    if sys.stderr.isatty():
        text = f"{time.monotonic() - START:4.0f} s  {text}" if text else ""
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def measure(label, name, dtype, operation, quick):
    """One row: the samples of all competitors, alternating, and their ratios."""
    grads = gradients(name, dtype)
    if torch:
        torch.set_num_threads(2 if "2 threads" in operation else 1)
    runs, not_run = {}, {}
    for who, competitor in OPERATIONS[operation].items():
        if quick and who in ("NumPy", "JAX") and (dtype != "f32" or len(grads.arrays) > 1):
            continue
        progress(f"{label}: {who}, for the first time")
        try:
            run = competitor(grads)
            run(1)  # warms up, compiles
            once = min(run(1), run(1))
            pairs = max(1, int(0.001 / once))
            tries = 1 if once > 0.005 else 3 if quick else 7
            runs[who] = run, pairs, tries, tries * once * pairs
        except NotRunError as reason:
            not_run[who] = str(reason)
    row = {"list": name, "dtype": dtype, "operation": operation, "not_run": not_run, "ratios": {}}
    loop = OPERATIONS[operation].get("limit")
    is_loop = loop in (limit, any_scale)
    row["limit"] = slower_loop(grads, loop is limit)[0] if is_loop else loop and "copy"
    if "ours" not in runs:
        return row
    budget, least, most = (0.1, 3, 7) if quick else (2.0, 3, 31)
    if "nothing" in runs:  # differences of long times
        budget, least = (0, 7) if quick else (0, 21)
    quickly = [who for who in runs if runs[who][3] < 0.5]  # the slow ones run in the first rounds only
    rounds = min(max(least, int(budget / (sum(runs[who][3] for who in quickly) or 1))), most)
    times = {who: [] for who in runs}
    for i in range(rounds):
        for who in list(runs)[:: 1 - 2 * (i % 2)]:
            if i < least or who in quickly:
                progress(f"{label}: round {i + 1} of {rounds}, {who}")
                if "2 threads" in operation:
                    time.sleep(0.02)  # OpenMP's threads, which wait busily for more work, have then given up
                run, pairs, tries, _ = runs[who]
                times[who].append(min(run(pairs) for _ in range(tries)) / (2 * pairs))
    if "nothing" in times:  # a step without any of it
        step = np.array(times.pop("nothing"))
        times = {who: np.array(values) - step for who, values in times.items()}
    row |= {"bytes": grads.bytes, "seconds": {who: float(np.median(values)) for who, values in times.items()}}
    mine = np.array(times.pop("ours"))
    ratios = {"ns": 1e9 * mine / len(grads.arrays)} if name in ("1,000 of 32", "one value") else {}
    if operation.startswith("each"):
        ratios["more"] = 1e9 * (mine - np.array(times["plain"])[: len(mine)]) / len(grads.arrays)
    for who, values in times.items():
        ratio = mine[: len(values)] / values
        ratios[who] = ratio if who in AT_MOST else 1 / ratio
    row["ratios"] = {who: np.quantile(values, (0.25, 0.5, 0.75)).tolist() for who, values in ratios.items()}
    return row


def machine():
    with open("/proc/cpuinfo") as file:
        words = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in file)}
    model = words.get("model name", "unknown CPU")
    if "cpu family" in words:  # virtual machines hide the name
        model += f", family {words['cpu family']}, model {words['model']}"
    info, cores = gradscaler.info(), len(os.sched_getaffinity(0))
    about = {"cpu": model, "cores": cores, "instructions": info.cpu, "note": info.cpu_note, "numpy": np.__version__}
    about |= {"torch": torch and torch.__version__.split("+")[0], "jax": jax and jax.__version__}
    return about | {"gradscaler": gradscaler.__version__, "date": time.strftime("%Y-%m-%d")}


# ---- showing ----


def asked(row):
    """Against whom what was asked, and whether that is met; None, None, None: nothing."""
    who, *bounds = ASKED.get((row["list"], row["operation"]), (None,))
    bound = dict(zip(ORDER, bounds, strict=False)).get(row["dtype"])
    if bound is None:
        return None, None, None
    lower = row["ratios"].get(who, [float("nan")])[0]
    return who, bound, lower <= bound if who in AT_MOST else lower >= bound


def cell(row, who, width, bounds):
    if who not in row["ratios"]:
        return f"{'NOT RUN' if who in row['not_run'] else '':>{width}}"
    lower, median, upper = map(number, row["ratios"][who])
    if who in ("NumPy", "JAX"):
        return f"{median:>{width}}"
    text = f"{median:>6} [{lower}, {upper}]"
    whom, bound, met = asked(row)
    if whom == who and bounds:
        text += f" {'<=' if who in AT_MOST else '>='} {bound:<4g} {'met' if met else 'NOT MET'}"
    return f"{text:<{width}}"


def print_section(title, rows, bounds):
    columns = [who for who in HEADINGS if any(who in row["ratios"] or who in row["not_run"] for row in rows)]
    columns = [who for who in columns if bounds or who not in FOR_BOUNDS]
    widths = {who: 8 if who in ("NumPy", "JAX") else 44 if bounds else 26 for who in columns}
    headings = (f"{HEADINGS[who]:>{8}}" if w == 8 else f"  {HEADINGS[who]:<{w - 2}}" for who, w in widths.items())
    print(f"\n{title}\n{'ours':>66}{''.join(headings)}")
    reasons = set()
    for row in rows:
        text = "   NOT RUN"
        if "seconds" in row:
            seconds = row["seconds"]["ours"]
            text = f"{1e6 * seconds:9.1f} us {row['bytes'] / seconds / 1e9:5.1f} GB/s"
            text += "".join(cell(row, who, widths[who], bounds) for who in columns)
            text += f"  {row['limit']}" if bounds and row["limit"] else ""
        print(f"{row['list']:<12} {row['dtype']:<10} {row['operation']:<20}{text}")
        reasons |= {f"  {who}, {row['dtype']}: NOT RUN, {reason}" for who, reason in row["not_run"].items()}
    for reason in sorted(reasons):
        print(reason)
    sys.stdout.flush()


def picture(rows, path):
    """Bytes per second against the size of the list, of every competitor."""
    from matplotlib.figure import Figure

    lines = [  # in the colours of Okabe and Ito, and by their markers
        ("limit: multiply in place", "check", "limit", "#000000", "--", ""),
        ("gradscaler: check", "check", "ours", "#0072B2", "-", "o"),
        ("gradscaler: check + norm", "check + norm", "ours", "#56B4E9", "-", "s"),
        ("torch: check", "check", "torch", "#D55E00", "-", "^"),
        ("torch: check + norm", "check + norm", "torch", "#E69F00", "-", "v"),
        ("JAX: check", "check", "JAX", "#009E73", "-", "D"),
        ("NumPy: check", "check", "NumPy", "#CC79A7", "-", "P"),
    ]
    rows = [row for row in rows if row["operation"] in ("check", "check + norm") and "seconds" in row]
    names = sorted({row["list"] for row in rows}, key=lambda name: sum(LISTS[name]))
    dtypes = [dtype for dtype in DTYPES if any(row["dtype"] == dtype for row in rows)]
    if not rows:
        return
    figure = Figure(figsize=(4 * len(dtypes), 5), layout="constrained")
    axes = figure.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
    for axis, dtype in zip(axes, dtypes, strict=True):
        for label, operation, who, colour, style, marker in lines:
            mine = [row for row in rows if (row["dtype"], row["operation"]) == (dtype, operation)]
            speed = {row["list"]: row["bytes"] / row["seconds"][who] / 1e9 for row in mine if who in row["seconds"]}
            heights = [speed.get(name, np.nan) for name in names]
            axis.plot(names, heights, color=colour, linestyle=style, marker=marker, label=label)
        axis.set(title=dtype, yscale="log", xlabel="list of gradients, from small to large")
        axis.tick_params(axis="x", rotation=30)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("gradients unscaled, GB/s (more is better)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle("Unscaling a list of gradients in place, one thread")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser("ci/bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds, under a minute")
    parser.add_argument("--only", default="", metavar="WORD", help="rows with this in title, list, dtype, operation")
    parser.add_argument("--json", type=Path, default="build/bench.json", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--picture", type=Path, default="build/bench.png", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--bounds", action="store_true", help="also show limits, and what the project asks of the rows")
    of_page = "only write this processor's table in docs/measured.md, from JSON files of it; tables of older kernels go"
    parser.add_argument("--page", type=Path, metavar="FILE", nargs="+", help=of_page)
    options = parser.parse_args()
    if options.page:
        parts = [json.loads(path.read_text()) for path in options.page]
        about, rows = parts[-1]["machine"], [row for part in parts for row in part["rows"]]
        page, block = Path(__file__).parents[2] / "docs/measured.md", page_table.block(about, rows)
        page.write_text(page_table.with_block(page.read_text(), block, about["gradscaler"]))
        return 0

    cases = [
        (title, name, dtype, operation)
        for title, names, dtypes, operations in CASES
        for name, dtype, operation in product(names, dtypes, operations)
        if options.only in f"{title}, {name}, {dtype}, {operation}"
        if not options.quick or operation in QUICK.get(name, [operation])
    ]
    if not cases:
        parser.error(f"no row has {options.only!r}")
    about, rows = machine(), []
    print(", ".join(f"{key} {value}" for key, value in about.items() if value))
    minutes = len(cases) * (0.5 if options.quick else 5) / 60  # as rows in DRAM and caches take, measured
    print(f"{len(cases)} rows, about {max(1, minutes):.0f} min where nothing else runs", flush=True)
    for title, group in groupby(enumerate(cases), lambda case: case[1][0]):
        section = []
        for i, (_, *case) in group:
            section.append(measure(f"row {i + 1} of {len(cases)}, {', '.join(case)}", *case, options.quick))
        progress()
        print_section(title, section, options.bounds)
        rows += section
    for row in rows:
        row["asked"], row["bound"], row["met"] = asked(row)
    bounds = [row for row in rows if row["asked"]]
    print(f"\n{time.monotonic() - START:.0f} s")
    if options.bounds:
        print(f"of {len(bounds)} bounds met: {sum(row['met'] for row in bounds)}")
        for row in bounds:
            if not row["met"]:
                print(f"  NOT MET: {row['list']}, {row['dtype']}, {row['operation']}: {HEADINGS[row['asked']]}")
    options.json.write_text(json.dumps({"machine": about, "quick": options.quick, "rows": rows}, indent=1) + "\n")
    picture(rows, options.picture)
    print(f"{options.json} {options.picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
