# SPDX-License-Identifier: MIT
"""Arrays in CUDA memory, as any DLPack producer has them, on a stand-in for the driver with host memory as devices.

`ci/test cuda` puts the stand-in where the driver is looked for; elsewhere these tests are skipped.
"""

import contextlib
import copy
import ctypes
import functools
import gc
import itertools
import json
import os
import pickle
import re
import sys
import weakref
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import pytest
from support import CUDA, F32, folded, in_a_forked_child, move, read_only, refusal, run_python, scaler_of, standin

import gradscaler
from gradscaler import Arrays, Error, Event, Factor, Loss, Report, Scaler, Want
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
    """An array of a producer that knows only the older capsule."""

    def __dlpack__(self, stream=None):
        return super().__dlpack__(stream=stream)


class Buffered(Tensor, bytearray):
    """An array of a type that has a buffer even on a device, as JAX's has."""


# This module is the framework of its tensors: it makes others.
float32 = F32


def new_stream():
    gradscaler._cuda.device(0)  # starts the driver
    stream = ctypes.c_void_p()
    assert DRIVER.cuStreamCreate(ctypes.byref(stream), 0) == 0
    return stream.value


def framework(name="Framework", **attributes):
    """Returns a framework; its tensors also have these attributes."""
    return type(name, (Tensor,), attributes)


def framework_on(stream):
    """A framework that says which stream it uses."""
    return framework(__cuda_array_interface__=property(lambda self: {"stream": stream}))


StreamTensor = framework_on(2)


def torch_on(monkeypatch, stream):
    """Returns the tensors of a torch that uses a stream on device 1, and a stack of its current devices."""
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

    uses = {1: SimpleNamespace(cuda_stream=stream)}
    cuda = SimpleNamespace(current_stream=uses.__getitem__, device=current_device)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Torch, cuda=cuda))
    return Torch, at


def empty_like(tensor, dtype):
    return type(tensor)(np.empty_like(tensor.array, dtype=dtype), tensor.place[1], dtype)


def named(arrays):
    return {f"p{i}": array for i, array in enumerate(arrays)}


ON_DEVICES = [(kind, [0]) for kind in (Tensor, OldTensor, StreamTensor, Buffered)]
ON_DEVICES += [(Tensor, [0, 0]), (Tensor, [0, 1, 0, 1]), (Tensor, [None, 1]), (Tensor, [1, None, 0, 1])]


@pytest.mark.parametrize(("kind", "places"), ON_DEVICES)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["in place", "out"])
def test_reports_and_results_are_those_of_the_host_also_of_held_arrays(kind, places, elsewhere):
    def outcome(call, places, hold=False):
        def arrays(*values):
            rows = [[*values, (np.inf, i, 3e38, np.nan)[i]] for i in range(len(places))]
            rows = zip(rows, places, strict=True)
            return named(np.array(row, F32) if at is None else kind(row, at) for row, at in rows)

        grads, outs = arrays(8, 80), (arrays(1, 1),) if elsewhere else ()
        given = (Arrays(grads, *outs),) if hold else (grads, *outs)
        report = call(scaler_of(), *given, want=sum(Want), histogram=True, per_tensor=True)
        written = [getattr(array, "array", array).tobytes() for each in (grads, *outs) for array in each.values()]
        return bytes(report), report._each, report.histogram, report.bad, report.last_overflow, written

    calls = [Scaler.unscale, functools.partial(Scaler.unscale, clip_value=2.0)]
    calls += [Scaler.unscale_accumulate] if elsewhere and set(places) == {0} else []
    calls += [] if elsewhere else [Scaler.measure]
    for call in calls:
        expected = outcome(call, [None] * len(places))
        assert outcome(call, places) == outcome(call, places, hold=True) == expected


# ---- the loss before it is scaled ----

PLACES = [([0], None), ([0], 0), ([0, 1], None), ([0, 1], 1), ([None, 1], None), ([None, 1], 1), ([1, None, 0], 0)]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(("places", "at"), PLACES)
@pytest.mark.parametrize("kind", [Tensor, OldTensor, StreamTensor])
def test_a_loss_is_on_the_host_or_on_a_device_of_the_gradients(kind, places, at, bad):
    def report_of(call, loss, hold=False):
        grads = [np.ones(1, F32) if place is None else kind([1], place) for place in places]
        return call(Scaler("recommended"), Arrays(grads) if hold else grads, loss=loss)

    for call in Scaler.unscale, Scaler.measure:
        for value, expected in (1, Loss.FINITE), (bad, Loss.NOT_FINITE):
            losses = [value, [1.0, value], np.full(3, value, np.float16)] if at is None else []
            losses += [kind([1, value], at), kind(value, at, np.float64)] if at is not None else []
            for loss, hold in itertools.product(losses, [False, True]):
                report = report_of(call, loss, hold)
                assert (report.loss, report.overflow) == (expected, False)
                assert report.found_inf == (expected == Loss.NOT_FINITE)
        assert report_of(call, None).loss == Loss.UNKNOWN


@pytest.mark.parametrize("at", [None, 1])
def test_a_micro_batch_with_a_bad_loss_is_not_added_on_a_device(at):
    total = Tensor([0], 1)
    for value, expected in (np.nan, [0]), (1, [1]), (np.inf, [1]):
        loss = value if at is None else Tensor(value, at)
        report = scaler_of(1.0).unscale_accumulate([Tensor([1], 1)], [total], loss=loss)
        assert (total.array.tolist(), report.overflow) == (expected, False)
        assert report.loss == (Loss.FINITE if value == 1 else Loss.NOT_FINITE)


def test_a_loss_that_no_device_of_the_gradients_has_is_refused():
    first, host = Tensor([8]), np.ones(1, F32)
    for grads in [first], [first, host]:
        message = refusal(lambda grads=grads: scaler_of().unscale(grads, loss=Tensor(1, 1)))
        assert message == "loss is on cuda:1, where no gradient is: pass it on a device of the gradients"
    message = refusal(lambda: scaler_of().unscale([host], loss=Tensor(1, 1)), of=Error)
    assert message == "loss is on cuda:1: this call is for arrays in host memory"
    for loss, why in (
        (Tensor(1, 0, np.int32), "has dtype int32"),
        (Tensor(1, 0, np.complex64), "is complex64: a loss is real"),
        (np.ones(1, int), "has dtype int64"),
    ):
        message = refusal(lambda loss=loss: scaler_of().unscale([first], loss=loss), of=Error)
        assert folded(message).startswith(folded(f"loss {why}"))
    assert (first.array.tolist(), host.tolist()) == ([8], [1])


def test_the_loss_of_the_same_stream_waits_for_nothing_and_of_another_the_call_waits(behind):
    stream = new_stream()
    ours, other = framework_on(stream), framework_on(new_stream())
    for kind, waits in (ours, []), (other, [1]), (Tensor, [1, 1]):
        loss = kind([np.nan])
        report = Scaler("recommended").measure([ours([1])], loss=loss)
        assert behind == waits and loss.streams == [stream]
        assert report.loss == Loss.NOT_FINITE
        behind[:] = waits


def test_torch_exports_its_loss_from_its_device(monkeypatch):
    torch, at = torch_on(monkeypatch, handle := new_stream())
    torch.detach = lambda self: self
    tensor, loss = torch([1], 1), torch([np.inf], 1)
    assert scaler_of().measure([tensor], loss=loss).loss == Loss.NOT_FINITE
    assert (tensor.streams, loss.streams, at) == ([-1], [handle], [0])


def test_a_graph_judges_the_loss_of_each_replay():
    kind, scaler = framework_on(stream := new_stream()), Scaler("recommended", init_scale=8.0)
    tensor, loss = kind([8]), kind([1])
    with captured(stream) as replays:
        report = scaler.unscale([tensor], loss=loss)
        with pytest.raises(ValueError, match="a loss of the host would be the same at each replay"):
            scaler.unscale([tensor], loss=1.0)
        with pytest.raises(Error, match="cuda:0: the stream is being captured"):
            scaler.unscale([tensor], loss=Tensor([1]))
    for value, event in (1, Event(0)), (np.nan, Event.BAD_LOSS | Event.SKIPPED), (2, Event(0)):
        loss.array[:] = value
        assert replays[0]() == 0
        assert report.loss == (Loss.NOT_FINITE if event else Loss.FINITE) and report.found_inf == bool(event)
        assert scaler.update(report) == event
    assert scaler.loss_scale == 8


def test_a_framework_makes_the_results():
    grads = {"a": Tensor([1, 2], 1, np.float16), "b": np.ones(3, np.float16)}
    report = scaler_of().unscale(grads, dtype="float32")
    assert report.grads["a"].array.tolist() == [0.125, 0.25] and report.grads["a"].place == (CUDA, 1)
    assert report.grads["a"].dtype == F32 and report.grads["b"].tolist() == [0.125] * 3


def test_what_is_accumulated_is_on_one_device():
    total = Tensor([1, 1])
    assert not scaler_of().unscale_accumulate([Tensor([8, 16])], [total]).overflow and total.array.tolist() == [2, 3]
    for others in [Tensor([1], 1)], [np.ones(1, F32)]:
        for given in ([Tensor([1]), *others], [Tensor([1]), *others]), (Arrays([Tensor([1]), *others]),):
            with pytest.raises(ValueError, match="arrays of one device"):
                scaler_of().unscale_accumulate(*given)


def test_what_a_step_makes_is_copied_there_unless_it_is_skipped():
    new, old = (
        [Tensor([np.nan, 2]), Tensor([3], 1), np.ones(1, F32)],
        [Tensor([0, 0]), Tensor([0], 1), np.zeros(1, F32)],
    )
    scaler = Scaler("torch")
    for overflow in True, False:
        scaler.update(overflow)
        for some in slice(3), slice(1):
            scaler.copy_unless_skipped(new[some], old[some])
        assert old[0].array.tobytes() == (np.zeros(2, F32) if overflow else new[0].array).tobytes()
        assert (old[1].array[0], old[2][0]) == ((0, 0) if overflow else (3, 1))


def test_the_framework_multiplies_its_loss():
    loss = framework("Loss", __mul__=lambda self, scale: ("multiplied", scale))(1.0)
    assert scaler_of().scale(loss) == ("multiplied", 8.0)
    with pytest.raises(TypeError, match="cast the scaled Loss"):
        scaler_of().scale(loss, dtype=np.float16)


SilentTensor = framework(__cuda_array_interface__=property(lambda self: 1 / 0))  # it cannot say its stream


def test_the_stream_is_that_of_the_framework():
    assert (stream := new_stream()) >= 2**32  # any pointer
    kinds = {Tensor: 1, OldTensor: 1, SilentTensor: 1, StreamTensor: 2, framework_on(stream): stream}
    for kind, expected in kinds.items():
        tensor = kind([8])
        scaler_of().unscale([tensor])
        assert (set(tensor.streams), DRIVER.standin_stream(), tensor.array.tolist()) == ({expected}, expected, [1])


def test_torch_keeps_its_stream_and_exports_from_its_device_and_of_several_frameworks_each_is_told(monkeypatch):
    for stream, told in (handle := new_stream(), handle), (0, 1):
        torch, at = torch_on(monkeypatch, stream)
        of_two = [Tensor([1], 1), torch([1], 1)], [torch([1], 1), StreamTensor([1], 1)]
        for tensors, expected in ([torch([1], 1)], -1), *((two, told) for two in of_two):
            scaler_of().measure(tensors)
            assert [tensor.streams for tensor in tensors] == [[expected]] * len(tensors)
            assert DRIVER.standin_stream() == stream and at == [0]
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
    kind, scaler = framework_on(stream := new_stream()), Scaler(init_scale=8.0)
    tensor, sums, half = kind([8]), kind([1]), Factor(scale=0.5, inverse=2, inverse_f32=2, scale_f32=0.5)
    held = Arrays([tensor], [sums])
    with captured(stream) as replays:
        report = scaler.unscale({"a": tensor}, want=Want.NORM, per_tensor=True, histogram=True)
        adding = scaler.unscale_accumulate(held, factor=half)
        for look in (lambda: report.overflow, lambda: scaler.update(report), lambda: scaler.set_rank(report, 3)):
            with pytest.raises(Error, match="cuda:0: the stream is being captured"):
                look()
    assert tensor.array.tolist() == [8]
    for value, overflow in (16, False), (np.inf, True), (16, False):
        scale = scaler.loss_scale
        tensor.array[:] = value
        assert replays[0]() == 0
        ranked = scaler.set_rank(report, 3)
        for each in report, ranked:
            assert (each.overflow, each.scale, bool(each.bad)) == (overflow, scale, overflow)
        assert report.per_tensor["a"].overflow == overflow and sum(report.histogram) == (not overflow)
        assert overflow or (report.norm == 16 / scale and tensor.array.tolist() == [16 / scale])
        assert adding.overflow == overflow and adding.scale == 0.5
        assert ranked.digest and ranked.rank == 3 and not report.digest
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
            for call in scaler_of().measure, Arrays:
                with pytest.raises(Error, match="cuda:0: the stream is being captured") as refused:
                    call(grads)
                assert refused.value.status == c.GSC_ERROR_UNAVAILABLE
        with pytest.raises(ValueError, match="captured in a graph takes arrays of one device"):
            scaler_of().unscale([tensor, host])
    assert silent.streams == [] and tensor.array.tolist() == [8] and host.tolist() == [1]


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


LOOKS = [lambda report: report.overflow, lambda report: report.bad, bytes, repr, copy.copy, pickle.dumps]
LOOKS += [lambda report: scaler_of().update(report), lambda report: Report.merge([report])]
LOOKS += [lambda report: setattr(report, "overflow", True), lambda report: scaler_of().set_rank(report, 0)]


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_waits_until_the_report_is_looked_at(behind, look):
    tensor = framework_on(new_stream())([8, np.inf])
    report = scaler_of().unscale({"a": tensor})
    assert isinstance(report, Report) and report.grads == {"a": tensor} and report.scale == 8
    assert behind == []
    look(report)
    assert behind == [1]
    assert report.bad == {"a": 1} and report.overflow
    assert behind == [1]


def test_what_follows_an_unread_report_does_not_change_it(behind):
    scaler, kind = Scaler(init_scale=8.0), framework_on(new_stream())
    reports = [scaler.unscale([kind([8 * value])], want=Want.AMAX) for value in (1, 2, 3)]
    scaler.update(True)
    reports.append(scaler.unscale([kind([8])], want=Want.AMAX))
    assert behind == []
    assert [report.amax for report in reports] == [1, 2, 3, 2] and len(behind) == 4


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
    streams = new_stream(), new_stream()
    ours, same, other = map(framework_on, (streams[0], *streams))
    for kinds, waits in ([ours, same], []), ([ours, other], [1]), ([Tensor], [1, 1]):
        scaler_of().measure([kind([1]) for kind in kinds])
        assert behind == waits


def test_a_thread_without_a_context_calls_and_looks():
    def call(stream):
        report = scaler_of().unscale([tensor := framework_on(stream)([8])])
        return report.elements, tensor.array.tolist(), DRIVER.standin_depth()

    scaler_of().measure([Tensor([1])])
    with futures.ThreadPoolExecutor(1) as pool:
        assert list(pool.map(call, [new_stream(), 1])) == [(1, [1], 0)] * 2


def launched(monkeypatch, before_launch):
    """Calls it before a check launches, but not when it asks whether all is right."""
    call = c.gsc_measure

    def watched(on, *rest):
        if on and on[2] is not None:
            before_launch()
        return call(on, *rest)

    monkeypatch.setattr(c, "gsc_measure", watched)


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


def test_threads_share_a_scaler_and_look_at_one_report():
    def unscale(thread):
        for size in range(1000, 1010):
            grads = [Tensor(np.arange(size) + thread), Tensor([thread], device=1)]
            assert scaler.unscale(grads).elements == size + 1
            assert (grads[0].array == (np.arange(size) + thread) / 8).all() and grads[1].array == thread / 8

    scaler, kind = scaler_of(), framework_on(new_stream())
    with futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(unscale, range(4)))
        for _ in range(50):
            report = scaler.unscale([kind([8] * 100)])
            assert list(pool.map(lambda _, it=report: it.elements, range(4))) == [100] * 4


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
    def refused_in_a_child(grads):
        return in_a_forked_child(lambda: refusal(lambda: scaler_of().measure(grads), of=Error))

    scaler_of().measure([Tensor([1])])
    with gradscaler._cuda._opening:
        assert folded("forked") in folded(refused_in_a_child([Tensor([1])]))
    assert folded("forked") in folded(refused_in_a_child(Arrays([Tensor([1])])))


def test_the_interpreter_ends_while_a_thread_is_in_a_call():
    program = f"""
import sys, threading, time
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_cuda import Arrays, Tensor, scaler_of
arrays = Arrays([Tensor([1]), Tensor([1], 1)])
threading.Thread(target=lambda: [scaler_of().measure(arrays) for _ in iter(int, 1)], daemon=True).start()
time.sleep(0.05)
"""
    ended = run_python("-c", program)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_out_of_another_length_is_refused():
    for call, count, device in itertools.product([scaler_of().unscale, Arrays], [1, 3], [0, 1]):
        with pytest.raises(ValueError, match=f"2 tensors and {count} outputs"):
            call([Tensor([1]), Tensor([1], device)], [Tensor([0]) for _ in range(count)])


@pytest.mark.parametrize("fails", [False, True])
def test_several_devices_work_at_a_time_and_each_is_waited_for_if_a_launch_fails(monkeypatch, fails):
    def launch():
        done.append("launch")
        if fails and len(done) == 2:
            raise MemoryError

    done = []
    launched(monkeypatch, launch)
    watch(monkeypatch, lambda: done.append("wait"))
    with pytest.raises(MemoryError) if fails else contextlib.nullcontext():
        scaler_of().measure([Tensor([1]), np.ones(1, F32), Tensor([1], 1)])
    assert done == ["launch", "launch", "wait", "wait"]


def test_a_wait_that_fails_hides_no_other_error_and_lends_its_memory_to_nobody(monkeypatch):
    def fail(error):
        raise error

    no_wait, spare = Error("it does not wait"), gradscaler._cuda.device(0).spare
    no_wait.status, no_wait.index, no_wait.field, no_wait.subject_length = c.GSC_ERROR_DEVICE, -1, "", 0
    spare.clear()
    scaler_of().measure([Tensor([1])])
    assert len(spare) == 1
    with monkeypatch.context() as patch:
        watch(patch, lambda: fail(no_wait))
        with pytest.raises(Error, match="it does not wait"):
            scaler_of().measure([Tensor([1])])
        launched(patch, lambda: fail(MemoryError()))
        with pytest.raises(MemoryError):
            scaler_of().measure([Tensor([1])])
    assert spare == []  # `space` is lost, also the second call's


def test_a_wrong_device_names_the_tensor():
    on_host = np.zeros(1, F32), Tensor([0], kind=1), bytearray(4), Buffered([0], kind=1)
    wrong = [(Tensor([0], 1), "on cuda:1"), (Tensor([0], 0, kind=10), "DLPack type 10")]
    for out, where in [*wrong, *((out, "in host memory") for out in on_host)]:
        with pytest.raises(Error, match=rf"^out\['b'\] .*{where}.*on cuda:0") as refused:
            scaler_of().unscale({"a": Tensor([1]), "b": Tensor([1])}, out={"a": Tensor([0]), "b": out})
        assert refused.value.index == 1


def test_held_arrays_on_a_device_are_exported_once_and_use_the_stream_of_each_call():
    kind = framework(__cuda_array_interface__=property(lambda self: {"stream": streams[-1]}))
    streams = [new_stream()]
    tensors = [kind([64], 1) for _ in range(3)]
    arrays = Arrays(tensors)
    assert [tensor.streams for tensor in tensors] == [streams] * 3
    for _ in range(2):
        streams.append(new_stream())
        assert scaler_of().unscale(arrays).elements == 3
        assert DRIVER.standin_stream() == streams[-1]
    # The first is asked at each call to let the stream wait for its framework.
    assert [tensor.streams for tensor in tensors] == [streams, streams[:1], streams[:1]]
    assert [tensor.array.tolist() for tensor in tensors] == [[1]] * 3


def test_held_arrays_of_several_frameworks_wait_for_each_at_each_call():
    first = framework_on(stream := new_stream())
    tensors = [first([1], 1), StreamTensor([1], 1), StreamTensor([1], 1)]
    arrays = Arrays(tensors)
    assert [tensor.streams for tensor in tensors] == [[stream]] * 3
    scaler_of().measure(arrays)
    assert [tensor.streams for tensor in tensors] == [[stream] * 2, [stream] * 2, [stream]]


@pytest.mark.parametrize("call", [Arrays, lambda *given: scaler_of().unscale(*given)], ids=["held", "call"])
def test_over_several_devices_nothing_is_written_on_an_error(call):
    first, out = Tensor([1]), Tensor([0])
    with pytest.raises(ValueError, match=r"out\['b'\] is on another device than its input"):
        call({"a": first, "b": Tensor([1], 1)}, {"a": out, "b": Tensor([0], 0)})
    with pytest.raises(Error, match="device is 7: it must be 0 or above and below 2"):
        call([first, Tensor([1], 7)])
    assert (first.array.tolist(), out.array.tolist()) == ([1], [0])


def tensor_of(array, device=0):
    """A tensor with the strides and the flags of an array."""
    tensor = Tensor([1], device)
    tensor.array = array
    return tensor


def exporting(export):
    """A tensor that is exported by a function."""
    return framework(__dlpack__=lambda self, **_: export())([1])


def refuse_to_export():
    raise BufferError("requires a gradient")


TWICE, CUBE = Tensor([1], 1), np.ones((4, 3, 4), F32)
DENSE = " is not contiguous: pass a contiguous copy"
BAD = [
    ([tensor_of(CUBE[:, :2].transpose(2, 0, 1))], None, DENSE),
    ([tensor_of(np.lib.stride_tricks.as_strided(CUBE, (2, 2, 6), (4, 4, 8)))], None, DENSE),
    ([tensor_of(np.broadcast_to(CUBE[0], (4, 3, 4)))], None, DENSE),
    ([tensor_of(np.ones(6, F32)[::2], 1)], None, DENSE),
    ([tensor_of(read_only(np.ones(1, F32)))], None, " is read-only: pass a writable copy"),
    ([read_only(np.ones(2, F32))], None, " is read-only"),
    ([Tensor([1], 0, np.int32)], None, " has dtype int32, which is not supported: pass float32, .* or complex128$"),
    ([Tensor([1], 1, np.int32)], None, " has dtype int32"),
    ([framework(dtype=property())([1], dtype=np.int32)], None, " has .*code 0 and 32 bits, which is not supported"),
    ([exporting(lambda: "nothing")], None, " .*no DLPack tensor"),
    ([exporting(refuse_to_export)], None, " .*requires a gradient"),
    ([Tensor([1], 1)], [Tensor([1, 2], 1)], " has another shape"),
    ([Tensor([1], 1)], [Tensor([1], 1, np.complex64)], ".dtype is complex64"),
    ([TWICE, TWICE], None, " shares memory with "),
]


@pytest.mark.parametrize(("bad", "out", "words"), BAD)
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("good", [[Tensor([1])], [np.ones(1, F32), Tensor([1]), Tensor([1], 1)]])
def test_a_bad_array_anywhere_is_named_and_changes_nothing(bad, out, words, order, good):
    grads, results = [*good, *bad][::order], out and [*(copy.deepcopy(array) for array in good), *out][::order]
    index = max(i for i, array in enumerate(grads) if array is bad[0])
    list_name, argument = ("out", "out") if out else ("grads", "tensors")
    for call in scaler_of().unscale, Arrays:
        if call is Arrays and "complex64" in words:  # which the call finds out
            continue
        for given, key in ((grads, results), index), ((named(grads), out and named(results)), f"p{index}"):
            with pytest.raises(Error, match=rf"^{list_name}\[{key!r}\]{words}") as refused:
                call(*given)
            assert (refused.value.index, refused.value.name) == (index, argument)
    assert all((getattr(array, "array", array) == 1).all() for array in grads)


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


def test_arrays_of_jax_are_read_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Buffered))
    grads = {"good": Tensor([8]), "bad": Buffered([8])}
    for out, name in (None, "tensors"), ({"good": Tensor([0]), "bad": Buffered([0])}, "out"):
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


@contextlib.contextmanager
def failing(symbol, failure, good_calls):
    """The driver's function `symbol` fails after so many calls."""
    DRIVER.standin_state.restype = ctypes.POINTER(Standin)
    state = DRIVER.standin_state()[0]
    state.failing, state.failure, state.good_calls = symbol.encode(), failure, good_calls
    try:
        yield
    finally:
        state.failing = None


def test_a_device_that_fails_is_an_error_of_the_call_or_at_each_look(behind):
    scaler_of().measure([Tensor([1])])
    spare = len(gradscaler._cuda.device(0).spare)
    with failing("cuStreamSynchronize", 719, 1), pytest.raises(Error, match="unspecified launch failure") as failed:
        scaler_of().measure([Tensor([1])])
    assert len(gradscaler._cuda.device(0).spare) == spare - 1  # its memory may be written to yet
    assert failed.value.status == c.GSC_ERROR_DEVICE
    report = scaler_of().unscale([framework_on(new_stream())([8])])
    for good_calls in 0, 10:
        with failing("cuStreamSynchronize", 719, good_calls), pytest.raises(Error, match="unspecified launch failure"):
            _ = report.overflow
    assert scaler_of().measure([Tensor([1])]).elements == 1


def test_a_call_that_fails_after_its_first_launch_waits_before_others_get_its_memory(monkeypatch):
    waits, wait, spare = [], c.gsc_exec_wait, gradscaler._cuda.device(0).spare
    kind = framework_on(new_stream())
    assert scaler_of().measure([kind([1])]).elements == 1 and spare[-1].host_copy.is_complete()
    monkeypatch.setattr(c, "gsc_exec_wait", lambda on: waits.append(len(spare)) or wait(on))
    before = len(spare)
    with failing("cuLaunchKernel", 1, 1), pytest.raises(Error, match="invalid argument"):
        scaler_of().unscale([kind([8]) for _ in range(151)])  # a list that needs two launches
    assert waits == [before - 1] and len(spare) == before and spare[-1].host_copy.is_complete()
    assert scaler_of().measure([kind([1])]).elements == 1


def test_memory_that_a_driver_refuses_is_one_error(monkeypatch):
    context, ignored = gradscaler._cuda.device(0).context, []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: ignored.append(str(args.exc_value)))
    with failing("cuMemHostAlloc", 2, 0), pytest.raises(Error, match="out of memory"):
        gradscaler._cuda.HostCopy(context)
    gc.collect()
    assert ignored == []


@pytest.mark.parametrize("axes", [(0, 3, 1, 2), (3, 2, 1, 0)])
@pytest.mark.parametrize(("kind", "place"), [(Tensor, CUDA), (OldTensor, CUDA), (Tensor, 1)])
def test_any_dense_order_of_dimensions(axes, kind, place):
    values = np.arange(2 * 3 * 1 * 5, dtype=F32).reshape(2, 3, 1, 5)
    gradient, into = kind(values, kind=place), kind(np.zeros((2, 3, 1, 5)), kind=place)
    for tensor in gradient, into:
        tensor.array = tensor.array.transpose(axes)
    scaler_of().unscale([gradient], out=[into])
    assert np.array_equal(into.array, values.transpose(axes) / 8)
    with pytest.raises(Error, match="has another shape or memory order"):
        scaler_of().unscale([gradient], out=[kind(np.zeros(gradient.shape), kind=place)])


def test_an_empty_tensor_and_an_empty_list():
    assert scaler_of().unscale([Tensor([])]).elements == scaler_of().unscale([]).elements == 0


def test_memory_of_a_device():
    on = context, _, _ = c.gsc_context_create_cuda({"device": 0}), 0, None
    device, shared = (c.gsc_memory_create(context, kind, 256) for kind in (c.GSC_MEMORY_DEVICE, c.GSC_MEMORY_HOST))
    with pytest.raises(BufferError, match="memory of the device"):
        memoryview(device)
    with pytest.raises(ValueError, match="the lists are of device -1, the call is on 0"):
        c.gsc_measure(on, None, [], None, shared)


DOCTOR = ("-m", "gradscaler", "doctor", "--device", "cuda:0", "--seconds", "0")


def rows_of_doctor(**environment):
    """Returns the rows that the doctor prints, and how the process ended: a fault of the emulated device ends it."""
    done = run_python(*DOCTOR, **environment)
    return dict(re.split(r"  +|$", line, maxsplit=1) for line in done.stdout.splitlines()), done


def test_the_doctor_finds_that_the_device_has_the_bits_of_the_host():
    done = run_python(*DOCTOR, "--json")
    rows = json.loads(done.stdout)
    tests = dict(list(rows.items())[list(rows).index("device") + 1 :])
    assert done.returncode == 0 and rows["device"].startswith("cuda:0, stand-in, driver for CUDA 12.4")
    assert [*tests][-3:] == ["two streams", "saved states", "speed"] and len(tests) == 12
    assert all(text.startswith("right: ") for text in tests.values()), tests
    assert "GB/s" in tests["speed"]


@pytest.mark.parametrize(
    ("removed", "row"),
    [("rounding", "dtypes"), ("count", "dtypes"), ("chunks 4", "short lists"), ("chunks 18", "long tensors")],
)
def test_the_doctor_names_the_row_of_a_mistake_of_the_device(removed, row):
    rows, done = rows_of_doctor(GSC_REMOVED=removed)
    assert done.returncode != 0
    if removed.startswith("chunks"):  # the emulated device aborts
        assert (list(rows)[-1], rows[row]) == (row, "") and "barrier" in done.stderr
    else:
        assert rows[row].startswith("WRONG: ") and rows["saved states"].startswith("right: ")


@pytest.mark.parametrize("removed", ["rounding", "count"])
def test_a_device_with_other_bits_has_no_context_unless_its_check_is_off(removed):
    program = "from gradscaler import _cuda; _cuda.device(0)"
    refused = run_python("-c", program, GSC_REMOVED=removed)
    assert refused.returncode == 1
    words = 'CUDA device 0 (stand-in, driver for CUDA 12.4) is not used, because the comparison "dtypes"'
    assert folded(words) in folded(refused.stderr)
    assert run_python("-c", program, GSC_REMOVED=removed, GSC_CUDA_CHECK="0").returncode == 0
