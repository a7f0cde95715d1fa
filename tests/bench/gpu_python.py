#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks of the Python binding that need a device: gpu_python.py KIND [short]; gpu.py runs each kind as a process.

    scaler    Scaler on arrays of the driver: a stream, a thread without a context, a graph, the host's microseconds
    torch     torch's kernels and its scaler beside ours, streams, a graph of a whole step, a stalled fused optimizer
    train     GPT-2 124M in float16, 50 steps: torch's scaler beside ours, the same losses, what each adds to a step
    cupy      Scaler on CuPy's arrays and streams, and in its graphs
    jax       gradscaler.jax inside of jit

A JSON is printed for each result; what is wrong is an exception, what is not there NOT RUN. With `short`, which
rehearses, `train` and `torch` do on the CPU what can be done there.
"""

import ctypes
import gc
import importlib
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import models

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for the same bits each time

SHORT = "short" in sys.argv[2:]
MODEL = (16, 2, 100, 32) if SHORT else models.GPT2
GPT2 = models.counts_of_gpt(*MODEL)


def say(**result):
    print(json.dumps(result), flush=True)


def not_run(why):
    print(f"NOT RUN: {why}")
    sys.exit(0)


def imported(*names):
    """These modules, or none of the kind runs."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        not_run(str(error))


def microseconds(call, repeats=20, rounds=5):
    """Returns the host's microseconds for one call; the median of rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - start) / repeats * 1e6)
    return round(statistics.median(times), 2)


def replays(scaler, report, fill, launch, values):
    """A graph that unscales by 8 at first divides by the scale in force, and its report is of the last replay."""
    for value in (16.0, float("inf"), 16.0):
        scale = scaler.loss_scale
        fill(value)
        launch()
        assert (report.overflow, report.scale) == (value > 16, scale)
        assert report.overflow or set(values()) == {16 / scale}
        scaler.update(report)
    assert scaler.loss_scale == 4.0


def gradients(np):
    return [np.linspace(-3, 3, min(n, 100_000), dtype=np.float32) for n in GPT2]


def unscaled_as_on_the_host(np, kind):
    """Arrays of this kind, which have the bits of NumPy's, and so has their report."""
    from gradscaler import Scaler, Want

    host = gradients(np)
    arrays = [kind(each) for each in host]
    expected, report = (bytes(Scaler(init_scale=8.0).unscale(each, want=Want.NORM)) for each in (host, arrays))
    assert report == expected and all(np.array_equal(a.get(), b) for a, b in zip(arrays, host, strict=True))
    return arrays


# ---- arrays of the driver itself ----


class Driver:
    """The calls of the driver that the arrays need; the primary context of device 0 is current in this thread."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxPushCurrent_v2", context)

    def __call__(self, function, *arguments):
        result = getattr(self.library, function)(*arguments)
        assert result == 0, f"{function}: {result}"

    def stream(self):
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), 1)
        return stream.value


def array_kind(driver, np):
    class Array:
        """float32 in memory of the device, of a framework that uses `stream`."""

        stream = 0

        def __init__(self, values):
            self.host, self.at = np.array(values, np.float32), ctypes.c_uint64()
            driver("cuMemAlloc_v2", ctypes.byref(self.at), ctypes.c_uint64(max(self.host.nbytes, 1)))
            self.set(self.host)

        def copied(self, to, source):
            driver("cuMemcpyAsync", *map(ctypes.c_uint64, (to, source, self.host.nbytes)), ctypes.c_void_p(self.stream))
            driver("cuStreamSynchronize", ctypes.c_void_p(self.stream))

        def set(self, values):
            values = np.ascontiguousarray(values, np.float32)
            self.copied(self.at.value, values.ctypes.data)

        def get(self):
            values = np.empty_like(self.host)
            self.copied(values.ctypes.data, self.at.value)
            return values

        @property
        def __cuda_array_interface__(self):
            return {"stream": self.stream}

        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, stream=None):
            """NumPy's capsule with another address and device in it."""
            capsule, pointer = self.host.__dlpack__(), ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            tensor = pointer(capsule, b"dltensor")
            ctypes.c_uint64.from_address(tensor).value = self.at.value
            (ctypes.c_int32 * 2).from_address(tensor + 8)[:] = (2, 0)
            return capsule

    return Array


def scaler():
    (np,) = imported("numpy")
    from gradscaler import Scaler, Want, info

    if info().cuda != "available":
        not_run(info().cuda)
    driver = Driver()
    kind = array_kind(driver, np)
    kind.stream = driver.stream()
    arrays = unscaled_as_on_the_host(np, kind)

    arrays[-1].set(np.full_like(arrays[-1].host, 16.0))
    with ThreadPoolExecutor(1) as thread:  # without a context
        amax = thread.submit(lambda: Scaler(init_scale=8.0).unscale([arrays[-1]], want=Want.AMAX).amax).result()
    assert amax == 2.0, amax

    scaler, stream = Scaler(init_scale=8.0), ctypes.c_void_p(kind.stream)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    driver("cuStreamBeginCapture_v2", stream, 0)
    report = scaler.unscale(arrays[-2:], want=Want.NORM)
    driver("cuStreamEndCapture", stream, ctypes.byref(graph))
    driver("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))

    def fill(value):
        for array in arrays[-2:]:
            array.set(np.full_like(array.host, value))

    replays(scaler, report, fill, lambda: driver("cuGraphLaunch", executable, stream), arrays[-1].get)

    lazy = Scaler(init_scale=1.0)
    say(
        claims="bits of the host, a thread without a context, a graph",
        arrays=len(arrays),
        unread_us=microseconds(lambda: lazy.unscale(arrays)),
        read_us=microseconds(lambda: lazy.unscale(arrays).overflow),
    )


# ---- torch ----


def torch_and_device():
    (torch,) = imported("torch")
    if not (torch.cuda.is_available() or SHORT):
        not_run(f"torch {torch.__version__} has no CUDA here")
    return torch, "cuda" if torch.cuda.is_available() else "cpu"


def timed(torch, device, call, repeats, rounds=7):
    """Milliseconds of the device for one call, and microseconds of the host; medians of rounds."""
    if device == "cpu":
        return {"ms": None, "host_us": microseconds(call, 1, 1)}
    call()
    milliseconds, host = [], []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        began = time.perf_counter()
        for _ in range(repeats):
            call()
        host.append((time.perf_counter() - began) / repeats * 1e6)
        end.record()
        end.synchronize()
        milliseconds.append(start.elapsed_time(end) / repeats)
    return {"ms": round(statistics.median(milliseconds), 5), "host_us": round(statistics.median(host), 2)}


def beside_torch(torch, device):
    """Kernels, and a whole unscale_ with update, of torch and of ours."""
    from gradscaler import Policy, Want
    from gradscaler.torch import GradScaler, _grads

    one, policy = torch.ones((), device=device), Policy("torch")

    def measure(dtype):
        grads = [torch.randn(n, device=device).to(dtype) for n in GPT2]
        parameters = [torch.nn.Parameter(torch.empty_like(grad)) for grad in grads]
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        found = torch.zeros((), device=device)
        scaler = GradScaler(device, 1.0, growth_interval=2**30, allow_fp16=True)
        reference = torch.amp.GradScaler(device, 1.0, growth_interval=2**30)
        for each in scaler, reference:
            each.scale(one)
        lot = _grads.GradientGroup(grads[0].device, grads, range(len(grads)))
        memory = scaler._current("measure")
        factor = memory.factor(True)

        def check_of_torch(norm=False):
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, one)
            return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))) if norm else None

        def unscale_of_torch(clip=None):
            reference.unscale_(optimizer)
            if clip:
                torch.nn.utils.clip_grad_norm_(parameters, clip)
            reference.update()

        def unscale_of_ours(clip=None):
            scaler.unscale_(optimizer, max_norm=clip)
            scaler.update()

        calls = {
            "torch, check + unscale": check_of_torch,
            "ours, check + unscale": lambda: lot.run(True, factor, memory, policy, 0),
            "torch, check + unscale, norm": lambda: check_of_torch(True),
            "ours, check + unscale + norm": lambda: lot.run(True, factor, memory, policy, int(Want.NORM)),
            "torch's scaler, unscale_ + update": unscale_of_torch,
            "our scaler, unscale_ + update": unscale_of_ours,
            "torch's scaler, unscale_ + clip + update": lambda: unscale_of_torch(1e9),
            "our scaler, unscale_ + clip + update": lambda: unscale_of_ours(1e9),
        }
        for name, call in calls.items():
            try:  # a version may lack the kernel of a dtype; torch's scaler refuses float16
                measured = timed(torch, device, call, 1 if SHORT else 20)
            except (RuntimeError, ValueError) as error:
                measured = {"why_not": str(error).splitlines()[0]}
            say(name=name, dtype=str(dtype).removeprefix("torch."), **measured)

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        measure(dtype)


def trained(torch, stream, captured=False):
    """Steps on this stream, or a graph of one: the scale and the overflow after each, and the parameters at the end."""
    from gradscaler.torch import GradScaler

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=True)
    scaler, once, answers = GradScaler("cuda", 1024.0, growth_interval=3), torch.cuda.CUDAGraph(), []
    x, factor = torch.randn(32, 64, device="cuda"), torch.ones((), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(model(x).square().mean() * factor).backward()
        scaler.unscale_(optimizer, max_norm=0.1)
        scaler.step(optimizer)
        scaler.update()

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
        if captured:
            with torch.cuda.graph(once):
                step()
        for value in (1.0, 1.0, float("inf"), 1.0, 1.0, 1.0):
            factor.fill_(value)
            once.replay() if captured else step()
            answers.append((scaler.get_scale(), scaler.report.overflow))
    stream.synchronize()
    return answers, [parameter.detach().clone() for parameter in model.parameters()]


def streams(torch):
    """On a side stream, and in a thread, the gradients and the scales of the default stream."""
    expected = trained(torch, torch.cuda.current_stream())
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(lambda: trained(torch, torch.cuda.Stream())).result()
    for answers, parameters in (trained(torch, torch.cuda.Stream()), found):
        assert answers == expected[0], (answers, expected[0])
        assert all(map(torch.equal, parameters, expected[1]))
    say(claim="a side stream and a thread have the bits of the default stream")


def graph(torch):
    """A whole step in a CUDA graph beside the same steps without."""
    (eager, expected), (replayed, parameters) = (trained(torch, torch.cuda.Stream(), how) for how in (False, True))
    assert eager == replayed, (eager, replayed)
    same = all(map(torch.equal, expected, parameters))
    say(claim="a graph of a whole step moves the scale as the steps do", answers=str(replayed), same_parameters=same)


def neutral(torch):
    """gradscaler.Scaler on torch's tensors: nothing waits, a graph reads the scale in force."""
    from gradscaler import Scaler

    grads, scaler = [torch.full((1 << 20,), 8.0, device="cuda") for _ in range(8)], Scaler(init_scale=8.0)
    scaler.unscale(grads)
    torch.cuda.synchronize()
    torch.cuda._sleep(10**9)  # half a second
    start = time.perf_counter()
    report = scaler.unscale(grads)
    enqueued = time.perf_counter() - start
    assert not report.overflow
    read = time.perf_counter() - start
    assert enqueued < read / 10, (enqueued, read)
    once = torch.cuda.CUDAGraph()
    with torch.cuda.graph(once):
        report = scaler.unscale(grads)
    replays(scaler, report, lambda x: [grad.fill_(x) for grad in grads], once.replay, grads[0].tolist)
    say(claim="an unread report waits for nothing", enqueued_us=round(enqueued * 1e6), read_us=round(read * 1e6))


def stalls(torch):
    from gradscaler.torch import GradScaler, StallError

    parameter = torch.nn.Parameter(torch.zeros(3, device="cuda"))
    optimizer = torch.optim.AdamW([("weight", parameter)], fused=True)
    scaler, steps = GradScaler("cuda", 2.0**-140), 0
    try:
        while steps < 1000:
            steps += 1
            scaler.scale(torch.ones((), device="cuda"))
            parameter.grad = torch.full((3,), float("nan"), device="cuda")
            scaler.step(optimizer)
            scaler.update()
    except StallError as error:
        assert "weight" in str(error), error
        say(claim="a fused optimizer's StallError comes", step=steps, scale_is_0_after=10)
    else:
        raise AssertionError("no StallError in 1000 steps")


def torch_kind():
    torch, device = torch_and_device()
    say(torch=torch.__version__, cuda=torch.version.cuda)
    failed = []
    beside_torch(torch, device)
    for claim in (streams, graph, neutral, stalls) if device == "cuda" else ():
        try:
            claim(torch)
        except Exception as error:
            failed.append(f"{claim.__name__}: {type(error).__name__}: {error}")
    assert not failed, failed


# ---- a training ----


def train():
    torch, device = torch_and_device()
    from gradscaler.torch import GradScaler

    steps, batch, length = (4, 2, 16) if SHORT else (50, 8, 512)
    narrow = torch.bfloat16 if device == "cpu" else torch.float16
    torch.manual_seed(6)
    tokens = torch.randint(MODEL[2], (8, batch, length + 1), device=device)

    def trained(kind, clip, fused, deterministic=False):
        """Losses of the steps, and milliseconds of one, warmed up."""
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        torch.manual_seed(5)
        with torch.device(device):
            model = models.gpt(torch, *MODEL)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
        made = {"torch": torch.amp.GradScaler, "ours": GradScaler}.get(kind)
        scaler = made(device, 65536.0, growth_interval=20) if made else None
        losses, warm, start = [], 2 if SHORT else 10, 0.0
        for step in range(steps + warm):
            if step == warm:
                torch.cuda.synchronize() if device == "cuda" else None
                start = time.perf_counter()
            with torch.autocast(device, dtype=narrow):
                loss = model(tokens[step % 8])
            (scaler.scale(loss) if scaler else loss).backward()
            if clip and scaler:
                scaler.unscale_(optimizer, **({"max_norm": clip} if kind == "ours" else {}))
            if clip and kind != "ours":
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer) if scaler else optimizer.step()
            if scaler:
                scaler.update()
            optimizer.zero_grad()
            losses.append(loss.detach())
        torch.cuda.synchronize() if device == "cuda" else None
        milliseconds = (time.perf_counter() - start) / steps * 1e3
        return torch.stack(losses).float().cpu(), milliseconds

    say(torch=torch.__version__, device=device, steps=steps, batch=batch, length=length)
    for fused in (False, True):
        reference, again, ours = (trained(kind, None, fused, True)[0] for kind in ("torch", "torch", "ours"))
        ends = {"first": round(reference[0].item(), 4), "last": round(reference[-1].item(), 4)}
        difference, of_torch = ((losses - reference).abs().max().item() for losses in (ours, again))
        say(claim="the same losses", fused=fused, **ends, largest_difference=difference, of_torch_with_itself=of_torch)
        if torch.equal(again, reference):
            assert torch.equal(ours, reference), "torch gives these losses each time, ours gives others"
    for clip in (1.0,) if SHORT else (None, 1.0):
        for fused in (True,) if SHORT else (False, True):
            kinds, found = ["none", "torch", "ours"], {}
            for kind in [*kinds, *reversed(kinds)]:
                found[kind] = min(found.get(kind, 1e9), trained(kind, clip, fused)[1])
                gc.collect()
            added = {f"{kind}_adds_ms": round(found[kind] - found["none"], 3) for kind in kinds[1:]}
            say(clip=clip, fused=fused, without_ms=round(found["none"], 3), **added)


# ---- CuPy and JAX ----


def cupy():
    cupy, np = imported("cupy", "numpy")
    if cupy.cuda.runtime.getDeviceCount() == 0:
        not_run("CuPy has no device")
    from gradscaler import Scaler

    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            arrays = unscaled_as_on_the_host(np, cupy.asarray)
    scaler = Scaler(init_scale=8.0)
    with stream:
        one = [cupy.full(1000, 16.0, cupy.float32)]
        scaler.measure(one)
        stream.begin_capture()
        report = scaler.unscale(one)
        once = stream.end_capture()
        replays(scaler, report, one[0].fill, lambda: once.launch(stream), one[0].get)
        unread = microseconds(lambda: scaler.unscale(arrays))
    say(cupy=cupy.__version__, claims="bits of the host, two streams, a graph", arrays=len(arrays), unread_us=unread)


def jax():
    jax, jnp, np = imported("jax", "jax.numpy", "numpy")
    device = jax.devices()[0]
    if device.platform != "gpu":
        not_run(f"JAX {jax.__version__} has no GPU here, only {device.platform}")
    from gradscaler.jax import Scaler

    values = {f"p{i}": each for i, each in enumerate(gradients(np))}

    def step(scaler, grads):
        grads, report = scaler.unscale(grads)
        return scaler.update(report), grads, report.overflow

    def run(at):
        with jax.default_device(at):
            scaler, answers = Scaler("torch", init_scale=8.0, growth_interval=2), []
            compiled = jax.jit(step)
            for bad in (False, True, False, False):
                grads = {name: jnp.asarray(each) for name, each in values.items()}
                grads["p1"] = grads["p1"].at[3].set(jnp.inf if bad else 1.0)
                scaler, grads, overflow = compiled(scaler, grads)
                answers.append((float(scaler.scale(jnp.float32(1))), bool(overflow)))
            return answers, {name: np.asarray(each) for name, each in grads.items()}

    there, here = run(device), run(jax.devices("cpu")[0])
    assert there[0] == here[0], (there[0], here[0])
    assert all(np.array_equal(there[1][name], here[1][name]) for name in values)
    say(jax=jax.__version__, claim="in jit the scales and the bits of the CPU", answers=str(there[0]))


if __name__ == "__main__":
    {"scaler": scaler, "torch": torch_kind, "train": train, "cupy": cupy, "jax": jax}[sys.argv[1]]()
