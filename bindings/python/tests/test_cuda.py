"""Arrays in CUDA memory, as any DLPack producer has them, on a stand-in for the driver whose devices are host memory.

`ci/test cuda` puts the stand-in where the driver is looked for; elsewhere these tests are skipped.
"""

import contextlib
import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import gradscaler
from gradscaler import Arrays, Error, Factor, Scaler, Want
from gradscaler import _gradscaler as c

F32 = np.float32
CUDA = 2


def standin():
    """The stand-in, if it is what the library has loaded."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        library.standin_devices(2)
        library.standin_stream.restype = ctypes.c_uint64
    except (OSError, AttributeError):
        return None
    return library


DRIVER = standin()
pytestmark = pytest.mark.skipif(DRIVER is None, reason="no stand-in for the driver: ci/test cuda")
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


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
        capsule = self.array.__dlpack__(max_version=max_version)
        at = capsule_pointer(capsule, b"dltensor" if max_version is None else b"dltensor_versioned")
        (ctypes.c_int32 * 2).from_address(at + (8 if max_version is None else 40))[:] = self.place
        return capsule


class OldTensor(Tensor):
    """Of a producer that knows the older capsule only."""

    def __dlpack__(self, stream=None):
        return super().__dlpack__(stream=stream)


class StreamTensor(Tensor):
    """Of a framework that says which stream it uses."""

    __cuda_array_interface__ = property(lambda self: {"stream": 2})


KINDS = [Tensor, OldTensor, StreamTensor]

# This module is the framework of its tensors: it makes others.
float32 = F32


def empty_like(tensor, dtype):
    return type(tensor)(np.empty_like(tensor.array, dtype=dtype), tensor.place[1], dtype)


def scaler_of(scale=8.0):
    return Scaler("static", init_scale=scale)


@pytest.mark.parametrize("kind", KINDS)
def test_unscaling_is_that_of_the_host(kind):
    arrays = [np.linspace(-3, 3, n, dtype=F32) for n in (1, 5, 70_000)]
    host, device = {str(a.size): a.copy() for a in arrays}, {str(a.size): kind(a) for a in arrays}
    want = Want.NORM | Want.AMAX
    expected, report = scaler_of().unscale(host, want=want), scaler_of().unscale(device, want=want)
    assert bytes(report) == bytes(expected)
    assert all(np.array_equal(device[name].array, host[name]) for name in host)
    assert not report.found_inf and report.norm > 0


def test_into_another_dtype():
    half, full = Tensor([1, 2, 3], dtype=np.float16), Tensor([0, 0, 0])
    scaler_of().unscale([half], out=[full])
    assert full.array.tolist() == [0.125, 0.25, 0.375]


def test_a_framework_makes_the_results():
    grads = {"a": Tensor([1, 2], 1, np.float16), "b": np.ones(3, np.float16)}
    report = scaler_of().unscale(grads, dtype="float32")
    assert report.grads["a"].array.tolist() == [0.125, 0.25] and report.grads["a"].place == (CUDA, 1)
    assert report.grads["a"].dtype == F32 and report.grads["b"].tolist() == [0.125] * 3


def test_an_overflow_names_the_tensor():
    scaler, grads = Scaler(), {"a": Tensor([1, 2]), "b": Tensor([1, np.inf, np.nan])}
    report = scaler.unscale(grads)
    assert report.found_inf and report.bad == ("b",) and report.first_bad == ("b", 1)
    assert (report.inf_count, report.nan_count) == (1, 1)
    scaler.update(report)
    assert scaler.loss_scale == 32768


def test_check_writes_nothing():
    tensor = Tensor([8, 16])
    assert scaler_of().check([tensor], want=Want.AMAX).amax == 2
    assert tensor.array.tolist() == [8, 16]


def test_clipping_and_accumulating():
    tensor, total = Tensor([80, -8]), Tensor([1, 1])
    scaler_of().unscale([tensor], clip_value=2.0)
    assert tensor.array.tolist() == [2, -1]
    assert not scaler_of().accumulate({"a": Tensor([8, 16])}, {"a": total}).found_inf
    report = scaler_of().accumulate({"a": Tensor([8, np.inf])}, {"a": total})
    assert report.bad == ("a",) and total.array.tolist() == [2, 3]
    with pytest.raises(ValueError, match="arrays of one device"):
        scaler_of().accumulate([Tensor([1]), Tensor([1], 1)], [Tensor([1]), Tensor([1], 1)])


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
    scaler_of().check([tensor])
    assert set(tensor.streams) == {stream}
    assert DRIVER.standin_stream() == stream


def test_torch_keeps_its_stream_and_exports_from_its_current_device(monkeypatch):
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

    scaler_of().check([Tensor([1])])  # starts the driver
    stream = ctypes.c_void_p()
    assert DRIVER.cuStreamCreate(ctypes.byref(stream), 0) == 0
    for handle in stream.value, 0:
        streams = [None, SimpleNamespace(cuda_stream=handle)]
        cuda = SimpleNamespace(current_stream=streams.__getitem__, device=current_device)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Torch, cuda=cuda))
        tensor = Torch([1], 1)
        scaler_of().check([tensor])
        assert set(tensor.streams) == {-1} and DRIVER.standin_stream() == handle and at == [0]


# ---- several devices ----


def test_a_list_over_devices_is_grouped():
    places = [0, 1, None, 1, 0]
    grads = {f"p{i}": np.ones(4, F32) if at is None else Tensor(np.ones(4), at) for i, at in enumerate(places)}
    report = scaler_of().unscale(grads, want=Want.NORM)
    assert report.elements == 20 and report.sum_squares == 20 / 64
    for name, at in zip(grads, places, strict=True):
        array = grads[name] if at is None else grads[name].array
        assert array.tolist() == [0.125] * 4, name


def test_a_bad_element_of_a_group_is_found_in_the_whole_list():
    grads = [Tensor([1]), Tensor([1], 1), np.ones(1, F32), Tensor([1, 2, np.nan], 1), Tensor([np.inf])]
    report = scaler_of().unscale(grads)
    assert report.first_bad == (3, 2) and report.bad == (3, 4)
    assert (report.inf_count, report.nan_count) == (1, 1)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (Tensor([0], 1), ["'b'", "on cuda:1", "on cuda:0"]),
        (np.zeros(1, F32), ["'b'", "in host memory", "on cuda:0"]),
        (Tensor([0], kind=1), ["'b'", "in host memory", "on cuda:0"]),
        (bytearray(4), ["'b'", "in host memory", "on cuda:0"]),
        (Tensor([0], 0, kind=10), ["'b'", "DLPack type 10", "on cuda:0"]),
    ],
    ids=["other device", "host", "host without a buffer", "no dlpack", "other kind"],
)
def test_a_wrong_device_names_the_tensor(out, words):
    with pytest.raises(Error) as refused:
        scaler_of().unscale({"a": Tensor([1]), "b": Tensor([1])}, out={"a": Tensor([0]), "b": out})
    assert all(word in str(refused.value) for word in words), refused.value
    assert refused.value.index == 1


def test_only_arrays_of_the_host_are_held():
    with pytest.raises(Error, match="'b': tensors\\[1\\]: it is on cuda:1"):
        Arrays({"a": np.ones(1, F32), "b": Tensor([1], 1)})
    tensor = Tensor([8, 16], kind=1)
    scaler_of().unscale(Arrays([tensor]))
    assert tensor.array.tolist() == [1, 2]


def test_over_several_devices_nothing_is_written_on_an_error():
    first, out = Tensor([1]), Tensor([0])
    with pytest.raises(ValueError, match="'b': its output is on another device"):
        scaler_of().unscale({"a": first, "b": Tensor([1], 1)}, out={"a": out, "b": Tensor([0], 0)})
    assert out.array.tolist() == [0]
    with pytest.raises(Error) as refused:
        scaler_of().unscale({"a": np.ones(1, F32), "b": Tensor([1], 7)})
    assert "device is 7" in str(refused.value)


def test_a_device_that_is_not_there():
    with pytest.raises(Error, match="device is 5: CUDA has 2 here"):
        scaler_of().unscale([Tensor([1], 5)])


def test_what_only_the_device_finds_out_is_an_error():
    tensor = Tensor([1])
    with pytest.raises(Error, match="cuda:0: factor is zero") as refused:
        scaler_of().unscale([tensor], factor=Factor())
    assert refused.value.status == c.GSC_ERROR_FACTOR and tensor.array.tolist() == [1]


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
    rows = [
        (Strided(), "not contiguous"),
        (Tensor([1], dtype=np.int32), "code 0 and 32 bits is not supported"),
        (Nothing([1]), "no DLPack tensor"),
        (Differentiated([1]), "requires a gradient"),
        (frozen, "read-only"),
    ]
    for tensor, words in rows:
        with pytest.raises(Error, match=words) as refused:
            scaler_of().unscale({"good": Tensor([1]), "bad": tensor})
        assert refused.value.index == 1 and "'bad'" in str(refused.value)


def test_shapes_must_agree():
    with pytest.raises(Error, match="shape or memory order differs"):
        scaler_of().unscale([Tensor(np.ones((2, 3)))], out=[Tensor(np.ones((3, 2)))])


def test_an_empty_tensor_and_an_empty_list():
    assert scaler_of().unscale([Tensor([])]).elements == 0
    assert scaler_of().unscale([]).elements == 0


def test_nothing_is_held():
    tensor = Tensor(np.ones(100))
    for _ in range(50):
        scaler_of().unscale([tensor])
    before = DRIVER.standin_allocated()
    for _ in range(50):
        scaler_of().unscale([tensor])
    assert DRIVER.standin_allocated() == before
    assert gradscaler.info().cuda == "available"
