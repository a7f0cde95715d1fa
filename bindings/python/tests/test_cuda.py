# SPDX-License-Identifier: MIT
"""Arrays in CUDA memory, as any DLPack producer has them, on a stand-in for the driver whose devices are host memory.

`ci/test cuda` puts the stand-in where the driver is looked for; elsewhere these tests are skipped.
"""

import contextlib
import copy
import ctypes
import functools
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import pytest
from support import CUDA, F32, move, scaler_of, standin

import gradscaler
from gradscaler import Arrays, Error, Factor, Report, Scaler, Want
from gradscaler import _gradscaler as c

DRIVER = standin()
pytestmark = pytest.mark.skipif(DRIVER is None, reason="no stand-in for the driver: ci/test cuda")


class Tensor:
    """An array that says it is on a device: NumPy's capsule with another device in it."""

    dtype = property(lambda self: self.array.dtype)
    shape = property(lambda self: self.array.shape)

    def __init__(self, values, device=0, dtype=F32, kind=CUDA):
        self.array = np.array(values, dtype)
        self.place = (kind, device)
        self.streams = []

    def __dlpack_device__(self):
        return self.place

    def __dlpack__(self, *, stream=None, max_version=None):
        if stream is not None and self.place[0] != CUDA:
            raise RuntimeError("no streams here")
        self.streams.append(stream)
        return move(self.array.__dlpack__(max_version=max_version), self.place, max_version is not None)


class OldTensor(Tensor):
    """Of a producer that knows the older capsule only."""

    def __dlpack__(self, stream=None):
        return super().__dlpack__(stream=stream)


class StreamTensor(Tensor):
    """Of a framework that says which stream it uses."""

    __cuda_array_interface__ = property(lambda self: {"stream": 2})


class Buffered(Tensor, bytearray):
    """Of a framework whose type has a buffer, on a device too, as that of JAX."""


KINDS = [Tensor, OldTensor, StreamTensor, Buffered]

# This module is the framework of its tensors: it makes others.
float32 = F32


def new_stream():
    gradscaler._cuda.device(0)  # starts the driver
    stream = ctypes.c_void_p()
    assert DRIVER.cuStreamCreate(ctypes.byref(stream), 0) == 0
    return stream.value


def framework_on(stream):
    """A framework that says which stream it uses."""
    interface = property(lambda self: {"stream": stream})
    return type("Framework", (Tensor,), {"__cuda_array_interface__": interface})


def torch_on(monkeypatch, *streams):
    """A torch whose devices use these streams: its tensors, and a stack of its current devices."""
    at = [0]

    class Torch(Tensor):
        def __dlpack__(self, **keywords):
            if at[-1] != self.place[1]:
                raise BufferError("not the current device")
            return super().__dlpack__(**keywords)

    @contextlib.contextmanager
    def current_device(device):
        at.append(device)
        yield
        at.pop()

    uses = [SimpleNamespace(cuda_stream=stream) for stream in streams]
    cuda = SimpleNamespace(current_stream=uses.__getitem__, device=current_device)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Torch, cuda=cuda))
    return Torch, at


def empty_like(tensor, dtype):
    return type(tensor)(np.empty_like(tensor.array, dtype=dtype), tensor.place[1], dtype)


def named(arrays):
    return {f"p{i}": array for i, array in enumerate(arrays)}


@pytest.mark.parametrize("kind", KINDS)
def test_unscaling_is_that_of_the_host(kind):
    arrays = [np.linspace(-3, 3, n, dtype=F32) for n in (1, 5, 70_000)]
    host, device = {str(a.size): a.copy() for a in arrays}, {str(a.size): kind(a) for a in arrays}
    want = Want.NORM | Want.AMAX
    expected, report = scaler_of().unscale(host, want=want), scaler_of().unscale(device, want=want)
    assert bytes(report) == bytes(expected)
    assert all(np.array_equal(device[name].array, host[name]) for name in host)
    assert not report.overflow and report.norm > 0


def test_a_framework_makes_the_results():
    grads = {"a": Tensor([1, 2], 1, np.float16), "b": np.ones(3, np.float16)}
    report = scaler_of().unscale(grads, dtype="float32")
    assert report.grads["a"].array.tolist() == [0.125, 0.25] and report.grads["a"].place == (CUDA, 1)
    assert report.grads["a"].dtype == F32 and report.grads["b"].tolist() == [0.125] * 3


@pytest.mark.parametrize("devices", [(0, 0, 0), (0, 1, 0), (None, 1, 0)])
def test_only_the_bad_are_called_bad(devices):
    def grads():
        values = zip((np.inf, 1, 2), devices, strict=True)
        return [np.array([x], F32) if at is None else Tensor([x], at) for x, at in values]

    assert scaler_of().measure(grads()).bad == scaler_of().unscale(grads()).bad == {0: 1}
    assert scaler_of().measure(Arrays(grads())).bad == {0: 1}


def test_check_writes_nothing():
    tensor = Tensor([8, 16])
    assert scaler_of().measure([tensor], want=Want.AMAX).amax == 2
    assert tensor.array.tolist() == [8, 16]


def test_clipping_and_accumulating():
    tensor, total = Tensor([80, -8]), Tensor([1, 1])
    scaler_of().unscale([tensor], clip_value=2.0)
    assert tensor.array.tolist() == [2, -1]
    assert not scaler_of().unscale_accumulate({"a": Tensor([8, 16])}, {"a": total}).overflow
    report = scaler_of().unscale_accumulate({"a": Tensor([8, np.inf])}, {"a": total})
    assert report.bad == {"a": 1} and total.array.tolist() == [2, 3]
    with pytest.raises(ValueError, match="arrays of one device"):
        scaler_of().unscale_accumulate([Tensor([1]), Tensor([1], 1)], [Tensor([1]), Tensor([1], 1)])
    with pytest.raises(ValueError, match="arrays of one device"):
        scaler_of().unscale_accumulate(Arrays([Tensor([1]), np.ones(1, F32)], [Tensor([1]), np.ones(1, F32)]))


def test_the_framework_multiplies_its_loss():
    class Loss(Tensor):
        def __mul__(self, scale):
            return ("multiplied", scale)

    assert scaler_of().scale(Loss(1.0)) == ("multiplied", 8.0)
    with pytest.raises(TypeError, match="cast the scaled Loss"):
        scaler_of().scale(Loss(1.0), dtype=np.float16)


@pytest.mark.parametrize(("kind", "stream"), [(Tensor, 1), (OldTensor, 1), (StreamTensor, 2)])
def test_the_stream_is_that_of_the_framework(kind, stream):
    tensor = kind([1])
    scaler_of().measure([tensor])
    assert set(tensor.streams) == {stream}
    assert DRIVER.standin_stream() == stream


def test_a_stream_may_be_any_pointer():
    stream = new_stream()
    assert stream >= 2**32
    tensor = framework_on(stream)([8])
    scaler_of().unscale([tensor])
    assert tensor.streams == [stream] and DRIVER.standin_stream() == stream and tensor.array.tolist() == [1]


def test_a_framework_that_cannot_say_its_stream():
    class Silent(Tensor):
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("not for bfloat16")

    tensor = Silent([1])
    scaler_of().measure([tensor])
    assert tensor.streams == [1]


def test_torch_keeps_its_stream_and_exports_from_its_current_device(monkeypatch):
    for stream in new_stream(), 0:
        torch, at = torch_on(monkeypatch, None, stream)
        tensor = torch([1], 1)
        scaler_of().measure([tensor])
        assert set(tensor.streams) == {-1} and DRIVER.standin_stream() == stream and at == [0]


def test_of_several_frameworks_each_is_told_the_stream(monkeypatch):
    for stream, told in (handle := new_stream(), handle), (0, 1):
        torch, at = torch_on(monkeypatch, None, stream)
        for tensors in ([Tensor([1], 1), torch([1], 1)], [torch([1], 1), StreamTensor([1], 1)]):
            scaler_of().measure(tensors)
            assert [tensor.streams for tensor in tensors] == [[told]] * 2 and DRIVER.standin_stream() == stream
    tensors = [Tensor([1]), StreamTensor([1])]
    scaler_of().measure(tensors)
    assert [tensor.streams for tensor in tensors] == [[2]] * 2 and at == [0]


@contextlib.contextmanager
def captured(stream):
    """Yields a list that then has what replays the graph of what was enqueued."""
    stream, graph, executable, replays = ctypes.c_void_p(stream), ctypes.c_void_p(), ctypes.c_void_p(), []
    assert DRIVER.cuStreamBeginCapture_v2(stream, 0) == 0
    try:
        yield replays
    finally:
        ended = DRIVER.cuStreamEndCapture(stream, ctypes.byref(graph))
    assert ended == 0 and DRIVER.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_uint64(0)) == 0
    assert DRIVER.cuGraphDestroy(graph) == 0
    replays.append(lambda: DRIVER.cuGraphLaunch(executable, stream))


def test_a_graph_divides_by_the_scale_in_force_and_its_report_is_of_the_last_replay():
    stream = new_stream()
    tensor, sums, scaler = framework_on(stream)([8]), framework_on(stream)([1]), Scaler(init_scale=8.0)
    with captured(stream) as replays:
        report = scaler.unscale({"a": tensor}, want=Want.NORM, per_tensor=True, histogram=True)
        adding = scaler.unscale_accumulate(
            [tensor], [sums], factor=Factor(scale=0.5, inverse=2, inverse_f32=2, scale_f32=0.5)
        )
        with pytest.raises(Error, match="cuda:0: the stream is being captured"):
            _ = report.overflow
        with pytest.raises(Error, match="cuda:0: the stream is being captured"):
            scaler.update(report)
        with pytest.raises(Error, match="cuda:0: the stream is being captured"):
            scaler.set_rank(report, 3)
    assert tensor.array.tolist() == [8]
    for value, overflow in (16, False), (np.inf, True), (16, False):
        scale = scaler.loss_scale
        tensor.array[:] = value
        assert replays[0]() == 0
        assert (report.overflow, report.scale, bool(report.bad)) == (overflow, scale, overflow)
        assert report.per_tensor["a"].overflow == overflow and sum(report.histogram) == (not overflow)
        assert overflow or (report.norm == 16 / scale and tensor.array.tolist() == [16 / scale])
        assert adding.overflow == overflow and adding.scale == 0.5
        stamped = scaler.set_rank(report, 3)
        assert (stamped.overflow, stamped.scale, bool(stamped.bad)) == (overflow, scale, overflow)
        assert stamped.digest and stamped.rank == 3 and not report.digest
        scaler.update(report)
    assert scaler.loss_scale == 4 and scaler.total_overflows == 1 and sums.array.tolist() == [1 + 4 + 8]
    assert not pickle.loads(pickle.dumps(report)).overflow and copy.copy(scaler).loss_scale == 4
    scaler.set_scale(2.0)
    tensor.array[:] = 16
    assert replays[0]() == 0 and tensor.array.tolist() == [8]


def test_a_capture_refuses_what_would_wait_and_goes_on():
    stream = new_stream()
    tensor, silent, host = framework_on(stream)([8]), Tensor([8]), np.ones(1, F32)
    with captured(stream):
        for grads in [silent], [tensor, silent]:  # on the legacy stream, which would wait for the captured one
            with pytest.raises(Error, match="cuda:0: the stream is being captured") as refused:
                scaler_of().measure(grads)
            assert refused.value.status == c.GSC_ERROR_UNAVAILABLE
        with pytest.raises(ValueError, match="captured in a graph takes arrays of one device"):
            scaler_of().unscale([tensor, host])
    assert silent.streams == [] and tensor.array.tolist() == [8] and host.tolist() == [1]


def test_a_capture_of_another_thread_neither_forbids_a_call_nor_is_broken_by_it():
    captured, graph = ctypes.c_void_p(new_stream()), ctypes.c_void_p()
    tensor = framework_on(new_stream())([8])

    def first_calls():
        reports.append(scaler_of().measure([tensor]))
        reports.append(scaler_of().measure([tensor] * 1024, want=Want.NORM))  # in a larger workspace
        mode = ctypes.c_int(0)  # asks for the mode of this thread by setting it
        assert DRIVER.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
        modes.append(mode.value)

    reports, modes = [], []
    other = threading.Thread(target=first_calls)
    assert DRIVER.cuStreamBeginCapture_v2(captured, 0) == 0
    other.start()
    other.join()
    assert DRIVER.cuStreamEndCapture(captured, ctypes.byref(graph)) == 0 and DRIVER.cuGraphDestroy(graph) == 0
    assert reports[1].norm == 32 and modes == [0]


def watch(monkeypatch, before_wait):
    """Calls it before a call waits for what it enqueued, with which the device is not done until then."""
    wait = c.gsc_exec_wait
    monkeypatch.setattr(gradscaler._cuda.HostCopy, "is_complete", lambda self: False)

    def watched(on):
        if sys._getframe(1).f_code is gradscaler._cuda.Call._wait.__code__:
            before_wait()
        return wait(on)

    monkeypatch.setattr(c, "gsc_exec_wait", watched)


@pytest.fixture
def behind(monkeypatch):
    """A device that is never done with what was enqueued, unless it is waited for; the waits."""
    waits = []
    watch(monkeypatch, lambda: waits.append(1))
    return waits


def test_nothing_waits_until_the_report_is_looked_at(behind):
    looks = [
        lambda report: report.overflow,
        bytes,
        repr,
        copy.copy,
        pickle.dumps,
        lambda report: scaler_of().update(report),
        lambda report: gradscaler.Report.merge([report]),
        lambda report: report.bad,
        lambda report: setattr(report, "overflow", True),
        lambda report: scaler_of().set_rank(report, 0),
    ]
    for look in looks:
        tensor = framework_on(new_stream())([8, np.inf])
        report = scaler_of().unscale({"a": tensor})
        assert isinstance(report, gradscaler.Report) and report.grads == {"a": tensor} and report.scale == 8
        assert behind == []
        look(report)
        assert behind == [1]
        assert report.bad == {"a": 1} and report.overflow
        assert behind == [1]
        behind.clear()


def test_a_report_of_a_device_is_stamped_as_one_of_the_host_is(behind):
    kind = framework_on(new_stream())

    def stamped(array, rank, scaler):
        return bytes(scaler.set_rank(scaler.unscale([array]), rank))

    on_host = stamped(np.array([8, np.inf], F32), 3, scaler_of())
    assert stamped(kind([8, np.inf]), 3, scaler_of()) == on_host
    assert gradscaler.Report.from_bytes(on_host).rank == 3 and gradscaler.Report.from_bytes(on_host).digest
    gathered = [stamped(kind([8]), rank, Scaler("static", init_scale=8.0 + 8 * rank)) for rank in range(2)]
    with pytest.raises(Error, match="rank 1 has another policy or state than rank 0"):
        gradscaler.Report.merge(map(gradscaler.Report.from_bytes, gathered))


def test_what_follows_an_unread_report_does_not_change_it(behind):
    scaler, kind = Scaler(init_scale=8.0), framework_on(new_stream())
    reports = [scaler.unscale([kind([8 * value])], want=Want.AMAX) for value in (1, 2, 3)]
    scaler.update(True)
    reports.append(scaler.unscale([kind([8])], want=Want.AMAX))
    assert behind == []
    assert [report.amax for report in reports] == [1, 2, 3, 2] and len(behind) == 4


def test_threads_look_at_one_report():
    kind = framework_on(new_stream())
    with futures.ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            report = scaler_of().unscale([kind([8] * 100)])
            assert list(pool.map(lambda _, it=report: it.elements, range(4))) == [100] * 4


def test_a_report_that_nobody_reads_gives_its_memory_back_when_the_device_is_done(monkeypatch):
    device, kind = gradscaler._cuda.device(0), framework_on(new_stream())
    scaler_of().unscale([kind([8])])
    gc.disable()  # nothing has to be collected
    try:
        with monkeypatch.context() as patch:
            patch.setattr(gradscaler._cuda.HostCopy, "is_complete", lambda self: False)
            for _ in range(3):
                scaler_of().unscale([kind([8])])
            assert len(device.unread) >= 3 and all(held is not None for _, held in device.unread)
        before = DRIVER.standin_allocated()
        for _ in range(10):
            scaler_of().unscale([kind([8])])
        assert DRIVER.standin_allocated() == before and len(device.unread) <= 1
    finally:
        gc.enable()


def test_of_several_frameworks_a_call_waits(behind):
    scaler_of().measure([framework_on(stream := new_stream())([1]), framework_on(stream)([1])])
    assert behind == []
    scaler_of().measure([framework_on(new_stream())([1]), framework_on(new_stream())([1])])
    assert behind == [1]
    scaler_of().measure([Tensor([1])])
    assert behind == [1, 1]


def test_a_device_that_fails_is_an_error_at_each_look(behind):
    report = scaler_of().unscale([framework_on(new_stream())([8])])
    failing("cuStreamSynchronize", 719, 0)
    for _ in range(2):
        with pytest.raises(Error, match="unspecified launch failure"):
            _ = report.overflow
        failing(None, 0, 0)


def test_a_thread_without_a_context_calls_and_looks():
    def call(stream):
        report = scaler_of().unscale([tensor := framework_on(stream)([8])])
        return report.elements, tensor.array.tolist(), DRIVER.standin_depth()

    scaler_of().measure([Tensor([1])])
    for stream in new_stream(), 1:
        with futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(call, stream).result() == (1, [1], 0)


def launched(monkeypatch, before_launch):
    """Calls it with the context before a check launches, but not when it asks whether all is right."""
    call = c.gsc_measure

    def watched(on, *rest):
        if on and on[2] is not None:
            before_launch(on[0])
        return call(on, *rest)

    monkeypatch.setattr(c, "gsc_measure", watched)


def failure(text):
    error = Error(text)
    error.status, error.index, error.field, error.subject_length = c.GSC_ERROR_DEVICE, -1, "", 0
    return error


def test_exports_are_held_until_the_device_is_done(monkeypatch):
    alive = []

    class Owner(Tensor):
        def __dlpack__(self, **keywords):
            self.array = self.array.copy()  # nobody else's, except for the capsule
            self.exported = weakref.ref(self.array)
            capsule = super().__dlpack__(**keywords)
            self.array = None
            return capsule

    watch(monkeypatch, lambda: alive.append([tensor.exported() is not None for tensor in tensors]))
    tensors = [Owner([1]), Owner([2])]
    scaler_of().unscale(tensors[:1], out=tensors[1:])
    assert alive == [[True, True]] and [tensor.exported() for tensor in tensors] == [None, None]


def test_a_call_in_the_middle_of_another_on_its_own_stream(monkeypatch):
    def meanwhile():
        monkeypatch.undo()
        scaler = scaler_of(2.0)
        inner.append(scaler.unscale([other := framework_on(new_stream())([8, np.inf])]))
        inner.append(other.array.tolist())

    scaler, tensor, inner = scaler_of(), Tensor([8, 16, 24]), []
    watch(monkeypatch, meanwhile)
    report = scaler.unscale([tensor], want=Want.NORM)
    assert tensor.array.tolist() == [1, 2, 3] and report.norm == 14**0.5 and not report.overflow
    assert inner[0].first_overflow == (0, 1) and inner[1] == [4, np.inf]


def test_threads_share_a_scaler():
    scaler = scaler_of()

    def unscale(thread):
        for i in range(20):
            grads = {"a": Tensor(np.arange(1000 + i) + thread), "b": Tensor([thread], device=1)}
            report = scaler.unscale(grads)
            assert (report.elements, report.overflow) == (1001 + i, False)
            assert (grads["a"].array == (np.arange(1000 + i) + thread) / 8).all()
            assert grads["b"].array == thread / 8

    with futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(unscale, range(4)))


def test_memory_is_that_of_the_calls_at_a_time_not_of_the_streams():
    assert gradscaler.info().cuda == "available"
    scaler_of().measure([Tensor([1])])
    gc.collect()  # what tests before this one left
    before = DRIVER.standin_allocated()
    for _ in range(3):
        scaler_of().measure([framework_on(new_stream())([1])])
    for count in (10, 100, 1000):  # workspaces grow
        scaler_of().measure([Tensor([k]) for k in range(count)], want=Want.NORM)
    assert DRIVER.standin_allocated() == before


def test_a_forked_child_says_that_cuda_ended():
    scaler_of().measure([Tensor([1])])
    with gradscaler._cuda._opening:
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # rather than wait for a lock of the parent
            try:
                scaler_of().measure([Tensor([1])])
            except Error as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_the_interpreter_ends_while_a_thread_is_in_a_call():
    program = """
import threading, time
from test_cuda import Arrays, Tensor, scaler_of
arrays = Arrays([Tensor([1]), Tensor([1], 1)])
threading.Thread(target=lambda: [scaler_of().measure(arrays) for _ in iter(int, 1)], daemon=True).start()
time.sleep(0.05)
"""
    here = os.path.dirname(__file__)
    ended = subprocess.run([sys.executable, "-c", program], cwd=here, text=True, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


# ---- several devices ----


def test_a_list_over_devices_is_grouped():
    places = [0, 1, None, 1, 0]
    grads = named(np.ones(4, F32) if at is None else Tensor(np.ones(4), at) for at in places)
    report = scaler_of().unscale(grads, want=Want.NORM)
    assert report.elements == 20 and report.sum_squares == 20 / 64
    for name, at in zip(grads, places, strict=True):
        array = grads[name] if at is None else grads[name].array
        assert array.tolist() == [0.125] * 4, name


def test_a_bad_element_of_a_group_is_found_in_the_whole_list():
    grads = [Tensor([1]), Tensor([1], 1), np.ones(1, F32), Tensor([1, 2, np.nan], 1), Tensor([np.inf])]
    report = scaler_of().unscale(grads)
    assert report.first_overflow == (3, 2) and report.bad == {3: 1, 4: 1}
    assert (report.inf_count, report.nan_count) == (1, 1)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("device", [0, 1])
def test_an_out_of_another_length_is_refused(count, device):
    grads, outs = [Tensor([1]), Tensor([1], device)], [Tensor([0]) for _ in range(count)]
    for action in scaler_of().unscale, Arrays:
        with pytest.raises(ValueError, match=f"2 tensors and {count} outputs"):
            action(grads, outs)
    with pytest.raises((Error, ValueError), match=r"out\[2\] |2 tensors and 3 outputs"):
        scaler_of().unscale(grads, [*outs[:1], Tensor([0]), None])


def test_several_devices_work_at_a_time(monkeypatch):
    done = []
    launched(monkeypatch, lambda context: done.append("launch"))
    watch(monkeypatch, lambda: done.append("wait"))
    scaler_of().measure([Tensor([1]), np.ones(1, F32), Tensor([1], 1)])
    assert done == ["launch", "launch", "wait", "wait"]


def test_a_launch_that_fails_is_waited_for_as_are_those_before(monkeypatch):
    def fail_second(_):
        done.append("launch")
        if len(done) == 2:
            raise MemoryError

    done = []
    launched(monkeypatch, fail_second)
    watch(monkeypatch, lambda: done.append("wait"))
    with pytest.raises(MemoryError):
        scaler_of().measure([Tensor([1]), Tensor([1], 1)])
    assert done == ["launch", "launch", "wait", "wait"]


def test_a_wait_that_fails_hides_no_other_error_and_lends_its_memory_to_nobody(monkeypatch):
    def fail(error):
        raise error

    spare = gradscaler._cuda.device(0).spare
    spare.clear()
    scaler_of().measure([Tensor([1])])
    assert len(spare) == 1
    with monkeypatch.context() as patch:
        watch(patch, lambda: fail(failure("it does not wait")))
        with pytest.raises(Error, match="it does not wait"):
            scaler_of().measure([Tensor([1])])
        launched(patch, lambda _: fail(MemoryError()))
        with pytest.raises(MemoryError):
            scaler_of().measure([Tensor([1])])
    assert spare == []  # `space` is lost, and that of the second call


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (Tensor([0], 1), ["out['b'] ", "on cuda:1", "on cuda:0"]),
        (np.zeros(1, F32), ["out['b'] ", "in host memory", "on cuda:0"]),
        (Tensor([0], kind=1), ["out['b'] ", "in host memory", "on cuda:0"]),
        (bytearray(4), ["out['b'] ", "in host memory", "on cuda:0"]),
        (Buffered([0], kind=1), ["out['b'] ", "in host memory", "on cuda:0"]),
        (Tensor([0], 0, kind=10), ["out['b'] ", "DLPack type 10", "on cuda:0"]),
    ],
    ids=["other device", "host", "host without a buffer", "no dlpack", "host with both", "other kind"],
)
def test_a_wrong_device_names_the_tensor(out, words):
    with pytest.raises(Error) as refused:
        scaler_of().unscale({"a": Tensor([1]), "b": Tensor([1])}, out={"a": Tensor([0]), "b": out})
    assert all(word in str(refused.value) for word in words), refused.value
    assert refused.value.index == 1


@pytest.mark.parametrize("places", [[0, 0], [0, 1], [None, 1], [1, None, 0, 1]])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["in place", "out"])
def test_held_arrays_give_the_report_and_the_results_of_their_container(places, elsewhere):
    def outcome(hold, call):
        def arrays(*values):
            values = [[*values, i] for i, _ in enumerate(places)]
            return named(
                np.array(v, F32) if at is None else Tensor(v, at) for v, at in zip(values, places, strict=True)
            )

        grads, outs = arrays(8, np.inf), (arrays(1, 1),) if elsewhere else ()
        given = (Arrays(grads, *outs),) if hold else (grads, *outs)
        report = call(scaler_of(), *given, want=Want.NORM, histogram=True, per_tensor=True)
        contents = [getattr(array, "array", array).tolist() for each in (grads, *outs) for array in each.values()]
        return bytes(report), report._each, report.histogram, report.bad, report.first_overflow, contents

    calls = [Scaler.unscale, functools.partial(Scaler.unscale, clip_value=1.0)]
    calls += [Scaler.unscale_accumulate] if elsewhere and places == [0, 0] else []
    calls += [] if elsewhere else [Scaler.measure]
    for call in calls:
        assert outcome(True, call) == outcome(False, call)


def test_held_arrays_on_a_device_are_exported_once():
    tensors = [framework_on(stream := new_stream())([8.0], 1) for _ in range(1)]
    tensors += [type(tensors[0])([8.0], 1) for _ in range(2)]
    arrays = Arrays(tensors)
    exported = [len(tensor.streams) for tensor in tensors]
    assert [scaler_of().unscale(arrays).elements for _ in range(3)] == [3] * 3
    assert exported == [1] * 3 and [tensor.streams for tensor in tensors[1:]] == [[stream]] * 2
    assert tensors[0].streams == [stream] * 4  # is asked to let the stream wait for its framework
    assert [tensor.array.tolist() for tensor in tensors] == [[8 / 512]] * 3


def test_arrays_of_torch_on_a_device_are_refused(monkeypatch):
    torch, _ = torch_on(monkeypatch, None, new_stream())
    with pytest.raises(TypeError, match="is a tensor of torch"):
        Arrays([torch([8.0], 1)])


def test_held_arrays_use_the_stream_of_each_call():
    kind = type("Framework", (Tensor,), {"__cuda_array_interface__": property(lambda self: {"stream": streams[-1]})})
    streams = [new_stream()]
    arrays = Arrays([kind([1], 1)])
    for _ in range(2):
        streams.append(new_stream())
        scaler_of().measure(arrays)
        assert DRIVER.standin_stream() == streams[-1]


def test_held_arrays_of_several_frameworks_wait_for_each_at_each_call():
    first = framework_on(stream := new_stream())
    tensors = [first([1], 1), StreamTensor([1], 1), StreamTensor([1], 1)]
    arrays = Arrays(tensors)
    assert [tensor.streams for tensor in tensors] == [[stream]] * 3
    scaler_of().measure(arrays)
    assert [tensor.streams for tensor in tensors] == [[stream] * 2, [stream] * 2, [stream]]


def test_held_arrays_during_a_capture_and_in_a_forked_child():
    tensor = framework_on(stream := new_stream())([8])
    arrays = Arrays([tensor])
    with captured(stream) as replays:
        report = scaler_of().unscale(arrays)
        with pytest.raises(Error, match="cuda:0: .* captured"):
            Arrays([Tensor([8])])
    assert tensor.array.tolist() == [8] and replays[0]() == 0
    assert tensor.array.tolist() == [1] and report.elements == 1
    child = os.fork()
    if child == 0:
        try:
            scaler_of().measure(arrays)
        except Error as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_what_cannot_be_held_is_refused_by_name():
    with pytest.raises(Error, match="grads\\['b'\\] has dtype int32, which is not supported") as refused:
        Arrays({"a": np.ones(1, F32), "b": Tensor([1], 1, np.int32)})
    assert refused.value.index == 1
    with pytest.raises(ValueError, match="out\\['b'\\] is on another device than its input"):
        Arrays({"a": np.ones(1, F32), "b": Tensor([1], 1)}, {"a": np.ones(1, F32), "b": Tensor([1])})
    with pytest.raises(Error, match="out\\['b'\\].data overlaps its input"):
        scaler_of().unscale_accumulate(Arrays({"a": Tensor([1]), "b": (b := Tensor([1]))}, {"a": Tensor([1]), "b": b}))
    tensor = Tensor([8, 16], kind=1)
    scaler_of().unscale(Arrays([tensor]))
    assert tensor.array.tolist() == [1, 2]


def test_over_several_devices_nothing_is_written_on_an_error():
    first, out = Tensor([1]), Tensor([0])
    with pytest.raises(ValueError, match="out\\['b'\\] is on another device than its input"):
        scaler_of().unscale({"a": first, "b": Tensor([1], 1)}, out={"a": out, "b": Tensor([0], 0)})
    assert out.array.tolist() == [0]
    with pytest.raises(Error) as refused:
        scaler_of().unscale({"a": np.ones(1, F32), "b": Tensor([1], 7)})
    assert "device is 7" in str(refused.value)


@pytest.mark.parametrize("order", [1, -1])
def test_over_several_devices_a_bad_array_anywhere_changes_nothing(order):
    def strided(device):
        tensor = Tensor(np.ones(6), device)
        tensor.array = tensor.array[::2]
        return tensor

    def refused(grads, out=None, words=""):
        arrays = list(grads.values()) + list((out or {}).values())
        before = [np.array(getattr(array, "array", array)) for array in arrays]
        turned = dict(list(grads.items())[::order])
        with pytest.raises(Error, match=words) as error:
            scaler_of().unscale(turned, out=out)
        assert error.value.index == list(turned).index("bad") and "['bad']" in str(error.value)
        for array, old in zip(arrays, before, strict=True):
            assert np.array_equal(getattr(array, "array", array), old)

    frozen = np.ones(2, F32)
    frozen.flags.writeable = False
    refused({"host": np.ones(2, F32), "bad": strided(0)}, words="contiguous")
    refused({"first": Tensor([1]), "bad": strided(1)}, words="contiguous")
    refused({"device": Tensor([1]), "bad": frozen}, words="read-only")
    refused({"host": np.ones(2, F32), "device": Tensor([1], 1), "bad": Tensor([1], 0, np.int32)}, words="not supported")
    results = {"host": np.zeros(2, F32), "bad": Tensor([0], dtype=np.complex64)}
    refused({"host": np.ones(2, F32), "bad": Tensor([1])}, results, "make both complex, or neither")


INTEGERS = np.ones(1, np.int32)


@pytest.mark.parametrize(
    ("bad", "out", "where", "words"),
    [
        ([Tensor(INTEGERS, 1, np.int32)], None, "grads[3]", " has dtype int32"),
        ([INTEGERS], None, "grads[3]", " has dtype int32"),
        ([Tensor([1], 1)], [Tensor([1, 2], 1)], "out[3]", " has another shape"),
        ([Tensor([1], 1)], [Tensor([1], 1, np.complex64)], "out[3]", ".dtype is complex64"),
        ([twice := Tensor([1], 1), twice], None, "grads[4]", " shares memory with grads[3]: "),
    ],
    ids=["device", "host", "out", "core", "twice"],
)
def test_over_several_devices_the_index_is_that_of_the_whole_list(bad, out, where, words):
    grads, results = ([np.ones(1, F32), Tensor([1]), Tensor([1], 1)] for _ in range(2))
    index = 4 if "4" in where else 3
    with pytest.raises(Error) as refused:
        scaler_of().unscale(grads + bad, out and results + out)
    assert (refused.value.index, refused.value.name) == (index, "out" if out else "tensors")
    assert str(refused.value).startswith(where + words)
    with pytest.raises(Error) as refused:
        scaler_of().unscale(named(grads + bad), out and named(results + out))
    where = where.replace(f"[{index}]", f"['p{index}']")
    assert str(refused.value).startswith(where + words.replace("[3]", "['p3']"))


def test_a_device_that_is_not_there():
    with pytest.raises(Error, match="device is 5: it must be 0 or above and below 2"):
        scaler_of().unscale([Tensor([1], 5)])


@pytest.mark.parametrize(("scale", "generation", "words"), [(0, 0, "a scale makes"), (0, 3, "set policy.min_scale")])
def test_a_factor_that_the_device_refuses_is_said_as_on_the_host(scale, generation, words):
    tensor = Tensor([1])
    for array in tensor, np.ones(1, F32):
        with pytest.raises(Error, match=f"factor.scale is 0: .*{words}") as refused:
            scaler_of().unscale([array], factor=Factor(scale=scale, generation=generation))
        assert refused.value.status == c.GSC_ERROR_FACTOR
    assert tensor.array.tolist() == [1]


def test_what_only_the_device_finds_out_is_an_error(monkeypatch):
    call, at = c.gsc_measure, gradscaler._structs.Report.status.offset

    def failing(on, factor, lists, options, report):
        call(on, factor, lists, options, report)
        if on:
            memoryview(report[0])[report[1] + at :][:4] = int(c.GSC_ERROR_VALUE).to_bytes(4, "little", signed=True)

    monkeypatch.setattr(c, "gsc_measure", failing)
    with pytest.raises(Error, match="cuda:0: value out of range") as refused:
        scaler_of().measure([Tensor([1])])
    assert (refused.value.status, refused.value.name) == (c.GSC_ERROR_VALUE, "report")


# ---- what an array may be ----


def test_arrays_of_the_host_without_a_buffer():
    tensor = Tensor([8, 16], kind=1)
    scaler_of().unscale([tensor])
    assert tensor.array.tolist() == [1, 2] and set(tensor.streams) == {None}


def test_what_is_refused():
    class Strided(Tensor):
        def __init__(self):
            super().__init__(np.ones(6))
            self.array = self.array[::2]

    class Nothing(Tensor):
        def __dlpack__(self, **_):
            return "nothing"

    class Differentiated(Tensor):
        def __dlpack__(self, **_):
            raise BufferError("requires a gradient")

    frozen = Tensor([1])
    frozen.array.flags.writeable = False

    class Typeless(Tensor):
        dtype = property()

    rows = [
        (Strided(), "is not contiguous: pass a contiguous copy"),
        (Tensor([1], dtype=np.int32), "has dtype int32, which is not supported: pass float32, .* or complex128$"),
        (Typeless([1], dtype=np.int32), "code 0 and 32 bits, which is not supported"),
        (Nothing([1]), "no DLPack tensor"),
        (Differentiated([1]), "requires a gradient"),
        (frozen, "is read-only: pass a writable copy"),
    ]
    for tensor, words in rows:
        with pytest.raises(Error, match=words) as refused:
            scaler_of().unscale({"good": Tensor([1]), "bad": tensor})
        assert refused.value.index == 1 and "grads['bad'] " in str(refused.value)


def test_arrays_of_jax_are_read_only(monkeypatch):
    class Array(Buffered):
        pass

    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Array))
    grads = {"good": Tensor([8]), "bad": Array([8])}
    for out, name in (None, "tensors"), ({"good": Tensor([0]), "bad": Array([0])}, "out"):
        words = r"\['bad'\] is read-only, .* pass out with arrays of another framework"
        with pytest.raises(Error, match=words) as refused:
            scaler_of().unscale(grads, out=out)
        assert (refused.value.index, refused.value.name) == (1, name)
    assert [tensor.array.tolist() for tensor in grads.values()] == [[8], [8]]
    results = {"good": Tensor([0]), "bad": Tensor([0])}
    assert not scaler_of().unscale(grads, out=results).overflow and not scaler_of().measure(grads).overflow
    assert results["bad"].array.tolist() == [1]


class Standin(ctypes.Structure):
    """The beginning of tests/cuda/standin.h's struct."""

    _fields_ = [("numbers", ctypes.c_int32 * 4), ("failing", ctypes.c_char_p), ("failure", ctypes.c_int32)]
    _fields_ += [("good_calls", ctypes.c_int32)]


def failing(symbol, failure, good_calls, names={}):  # noqa: B006 -- what the driver points to
    """The driver's function `symbol` fails after so many calls; None: none does."""
    DRIVER.standin_state.restype = ctypes.POINTER(Standin)
    state, name = DRIVER.standin_state()[0], symbol and names.setdefault(symbol, symbol.encode())
    state.failing, state.failure, state.good_calls = name, failure, good_calls


def test_a_driver_that_fails_is_an_error():
    scaler_of().measure([Tensor([1])])
    spare = len(gradscaler._cuda.device(0).spare)
    failing("cuStreamSynchronize", 719, 1)
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(Error, match="unspecified launch failure") as failed,
        ):
            patch.setattr(gradscaler._cuda.HostCopy, "is_complete", lambda self: False)
            scaler_of().measure([Tensor([1])])
    finally:
        failing(None, 0, 0)
    assert len(gradscaler._cuda.device(0).spare) == spare - 1  # its memory may be written to yet
    assert failed.value.status == c.GSC_ERROR_DEVICE
    assert scaler_of().measure([Tensor([1])]).elements == 1


def test_a_call_that_fails_after_its_first_launch_waits_before_others_get_its_memory(monkeypatch):
    waits, wait, spare = [], c.gsc_exec_wait, gradscaler._cuda.device(0).spare
    kind = framework_on(new_stream())
    assert scaler_of().measure([kind([1])]).elements == 1 and spare[-1].host_copy.is_complete()
    monkeypatch.setattr(c, "gsc_exec_wait", lambda on: waits.append(len(spare)) or wait(on))
    before = len(spare)
    failing("cuLaunchKernel", 1, 1)
    try:
        with pytest.raises(Error, match="invalid argument"):
            scaler_of().unscale([kind([8])])
    finally:
        failing(None, 0, 0)
    assert waits == [before - 1] and len(spare) == before and spare[-1].host_copy.is_complete()
    assert scaler_of().measure([kind([1])]).elements == 1


def test_memory_that_a_driver_refuses_is_one_error(monkeypatch):
    context, ignored = gradscaler._cuda.device(0).context, []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: ignored.append(str(args.exc_value)))
    failing("cuMemHostAlloc", 2, 0)
    try:
        with pytest.raises(Error, match="out of memory"):
            gradscaler._cuda.HostCopy(context)
    finally:
        failing(None, 0, 0)
    gc.collect()
    assert ignored == []


@pytest.mark.parametrize("axes", [(0, 3, 1, 2), (1, 2, 0, 3), (3, 2, 1, 0)])
@pytest.mark.parametrize("kind", [Tensor, OldTensor])
@pytest.mark.parametrize("place", [CUDA, 1])
def test_any_dense_order_of_dimensions(axes, kind, place):
    values = np.arange(2 * 3 * 1 * 5, dtype=F32).reshape(2, 3, 1, 5)
    gradient, into = kind(values, kind=place), kind(np.zeros((2, 3, 1, 5)), kind=place)
    for tensor in gradient, into:
        tensor.array = tensor.array.transpose(axes)
    scaler_of().unscale([gradient], out=[into])
    assert np.array_equal(into.array, values.transpose(axes) / 8)
    scaler_of().unscale([gradient])
    assert np.array_equal(gradient.array, into.array)
    with pytest.raises(Error, match="has another shape or memory order"):
        scaler_of().unscale([gradient], out=[kind(np.zeros(gradient.shape), kind=place)])


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[:, :2].transpose(2, 0, 1),
        lambda array: array[::2].transpose(2, 0, 1),
        lambda array: array[:, :, ::-1],
        lambda array: np.lib.stride_tricks.as_strided(array, (2, 2, 6), (4, 4, 8)),
        lambda array: np.broadcast_to(array[0], (4, 3, 4)),
    ],
    ids=["gap", "step", "backwards", "overlap", "broadcast"],
)
def test_what_is_not_dense_is_refused(view):
    tensor = Tensor(np.ones((4, 3, 4)))
    tensor.array = view(tensor.array)
    with pytest.raises(Error, match="not contiguous"):
        scaler_of().measure([tensor])


def test_an_empty_tensor_and_an_empty_list():
    assert scaler_of().unscale([Tensor([])]).elements == 0
    assert scaler_of().unscale([]).elements == 0


@pytest.mark.parametrize("places", [[0], [0, 1], [None, 0, 1, 0]])
def test_a_report_of_each_array_is_that_of_the_host(places):
    values = [np.array(v, F32) for v in ([8, 16], [np.inf, 1, np.nan], [3e38], [0.5])][: len(places)]
    grads = [v.copy() if at is None else Tensor(v, at) for v, at in zip(values, places, strict=True)]
    everything = {"want": sum(Want), "histogram": True, "per_tensor": True}
    expected, report = (scaler_of(0.5).measure(g, **everything) for g in (values, grads))
    assert (bytes(report), report._each, report.histogram) == (bytes(expected), expected._each, expected.histogram)
    assert report.bad == expected.bad and report.first_overflow == expected.first_overflow


@pytest.mark.parametrize("places", [[0, 0], [0, 1]])
def test_the_verdict_of_a_policy_is_that_of_the_host(places):
    scaler = Scaler("fairseq", init_scale=1.0)
    report = scaler.unscale([Tensor([1.5e19], at) for at in places])
    assert report.overflow and report.bad == {}
    assert not scaler.measure([Tensor([1.5e19], places[1])]).overflow


def test_memory_of_a_device():
    context = c.gsc_context_create_cuda({"device": 0})
    device, shared = (c.gsc_memory_create(context, kind, 64) for kind in (c.GSC_MEMORY_DEVICE, c.GSC_MEMORY_HOST))
    with pytest.raises(BufferError, match="memory of the device"):
        memoryview(device)
    on = (context, 0, None)
    c.gsc_memory_copy(on, device, bytes(range(64)), 64)
    c.gsc_memory_copy(on, shared, (device, 32), 32)
    c.gsc_exec_wait(on)
    assert bytes(memoryview(shared)[:32]) == bytes(range(32, 64))
    with pytest.raises(ValueError, match="the lists are of device -1, the call is on 0"):
        c.gsc_measure(on, None, [], None, c.gsc_memory_create(context, c.GSC_MEMORY_HOST, len(bytes(Report()))))
