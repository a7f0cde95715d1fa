# SPDX-License-Identifier: MIT
"""Arrays as frameworks have them: by stand-ins, and by torch and JAX where they are installed.

torch lends its tensors through DLPack's C exchange API. JAX has a buffer of some dtypes and DLPack for the others.
"""

import ctypes
import importlib
import mmap
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from support import F32, capsule_pointer, move, scaler_of

from gradscaler import Arrays, Error, Event, Scaler, Want

# ---- a stand-in for a framework ----


class Exchange(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p)]
    _fields_ += [("unused", ctypes.c_void_p * 3), ("lend", ctypes.c_void_p), ("stream", ctypes.c_void_p)]


LEND = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
SIZE, OFFSET = 48, 32  # of the DLTensor in a versioned capsule
# ctypes swallows what a callback raises. This calls tensor.fileno() and returns -1 if that does.
RAISES = ctypes.pythonapi.PyObject_AsFileDescriptor


@LEND
def lend(tensor, out):
    """Copies the DLTensor of the array's capsule, which the Tensor keeps."""
    tensor.lent += 1
    if tensor.silent:
        return -1
    tensor.capsule = move(tensor.array.__dlpack__(max_version=(1, 0)), tensor.place)
    ctypes.memmove(out, capsule_pointer(tensor.capsule, b"dltensor_versioned") + OFFSET, SIZE)
    if tensor.address is not None:
        ctypes.c_void_p.from_address(out).value = tensor.address
    return 0


def exchange_of(version, *previous, function=lend):
    """An API of a version, with a chain of others, each the previous of the one before."""
    before = ctypes.addressof(exchange_of(*previous)) if previous else None
    api = Exchange(version, 3, before, lend=ctypes.cast(function, ctypes.c_void_p))
    ALIVE.append(api)
    return api


ALIVE = []
NAME = b"dlpack_exchange_api"
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def framework(api, name=NAME):
    class Tensor:
        __dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(api), name, None)
        silent, is_conj, is_neg = False, staticmethod(lambda: False), staticmethod(lambda: False)
        dtype = property(lambda self: self.array.dtype)

        def __init__(self, values, dtype=F32, place=(1, 0), address=None, **marks):
            self.array, self.place, self.address = np.asarray(values, dtype), place, address
            self.lent = self.exported = 0
            vars(self).update(marks)

        def __dlpack_device__(self):
            return self.place

        def __dlpack__(self, **keywords):
            self.exported += 1
            return self.array.__dlpack__(**keywords)

    return Tensor


def raising(error):
    class Raising(framework(exchange_of(1, function=RAISES))):
        def fileno(self):
            raise error

    return Raising([1.0])


CPP = "Cannot access data pointer of Tensor that doesn't have storage\nException raised from somewhere\nframe #0"
ONES = np.ones((4, 4), F32)
Tensor = framework(exchange_of(1))


@pytest.mark.parametrize("dtype", [np.float16, F32, np.float64, np.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 3)])
def test_a_tensor_is_lent_and_unscaled(dtype, shape):
    gradient, out = Tensor(np.full(shape, 8), dtype), Tensor(np.zeros(shape), dtype)
    scaler_of(4.0).unscale({"w": gradient}, out={"w": out})
    report = scaler_of().unscale({"w": gradient, "a": np.full(1, 8, F32), "b": None, "c": Tensor([np.inf])})
    assert (report.elements, report.bad) == (2 + gradient.array.size, {"c": 1})
    assert (gradient.array.tolist(), out.array.tolist()) == (np.ones(shape).tolist(), np.full(shape, 2).tolist())
    assert (gradient.lent, out.lent, gradient.exported, out.exported) == (2, 1, 0, 0)


CHAINS = [([2, 1], 1), ([1], 1), ([2], 0), ([2, 3], 0)]
KINDS = [(framework(exchange_of(*versions)), lent) for versions, lent in CHAINS]
KINDS += [(framework(exchange_of(1, function=0)), 0), (framework(exchange_of(1), b"another"), 0)]


@pytest.mark.parametrize(("kind", "lent"), KINDS)
def test_the_exchange_api_of_version_1_is_used_if_it_is_one(kind, lent):
    tensor = kind([8.0])
    scaler_of().unscale([tensor])
    assert (tensor.lent, tensor.exported, tensor.array[0]) == (lent, 1 - lent, 1)


def test_a_tensor_that_cannot_be_taken_is_refused_by_name():
    for bad, words in (
        (Tensor(ONES[:, :2]), "is not contiguous: pass a contiguous copy"),
        (Tensor(np.broadcast_to(np.ones(1, F32), (4,))), "is not contiguous"),
        (Tensor(ONES[0, ::-1]), "is not contiguous"),
        (Tensor([1, 2], address=0), "has no memory of its own"),
        (Tensor([1], np.int32), "has dtype int32, which is not supported: pass float32"),
        (raising(RuntimeError(CPP)), "cannot be used: Cannot access data pointer of Tensor that doesn't have storage"),
        (raising(NotImplementedError()), "cannot be used"),
        (Tensor([1.0], silent=True), "cannot be used"),
        (Tensor([1j], np.complex64, is_conj=lambda: True), "is a view that negates or conjugates: pass a copy"),
        (Tensor([1j, 2], np.complex128, is_neg=lambda: True), "is a view that negates"),
        (Tensor(1.0, is_neg=lambda: True), "is a view that negates"),
        (Tensor([1], place=(10, 0)), "is on a device of DLPack type 10"),
    ):
        good = Tensor([8.0])
        for method in scaler_of().measure, scaler_of().unscale:
            with pytest.raises(Error) as refused:
                method({"good": good, "bad": bad})
            assert str(refused.value).startswith(f"grads['bad'] {words}") and "\n" not in str(refused.value)
            assert (refused.value.index, good.array[0]) == (1, 8)


def test_a_dense_tensor_of_any_order_is_taken_with_a_result_of_its_order():
    values = np.arange(24, dtype=F32).reshape(2, 3, 1, 4)
    for axes in (0, 3, 1, 2), (3, 2, 1, 0):
        tensor, result = (Tensor(array.transpose(axes)) for array in (values.copy(), np.zeros_like(values)))
        with pytest.raises(Error, match="has another shape or memory order"):
            scaler_of().unscale([tensor], out=[Tensor(np.zeros(tensor.array.shape))])
        scaler_of().unscale([tensor], out=[result])
        scaler_of().unscale([tensor])
        for array in tensor.array, result.array:
            assert np.array_equal(array, values.transpose(axes) / 8)


def test_no_tensor_is_held_after_a_call_and_an_interrupt_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        scaler_of().measure([raising(KeyboardInterrupt())])
    grads = [Tensor([8.0]) for _ in range(3)]
    before = [sys.getrefcount(t) for t in grads]
    for _ in range(10):
        scaler_of().unscale(grads)
    assert [sys.getrefcount(t) for t in grads] == before


def test_arrays_of_torch_are_refused_as_their_gradients_change(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    with pytest.raises(TypeError, match=r"grads\['w'\] is a tensor of torch, .* pass their list instead"):
        Arrays({"w": Tensor([1.0])})


class Narrow(mmap.mmap):
    """An array without a buffer, of a type that has one."""

    array, __dlpack_device__ = np.array([8, np.inf], F32), lambda _: (1, 0)

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)


def test_an_array_that_has_no_buffer_is_exported_but_not_written():
    grads, out = {"w": Narrow(-1, 8)}, {"w": np.zeros(2, F32)}
    grads["w"].close()
    assert scaler_of().measure(grads).bad == scaler_of().unscale(grads, out=out).bad == {"w": 1}
    assert out["w"][0] == 1
    # Its DLPack capsule need not say that it is immutable.
    with pytest.raises(Error, match=r"grads\['w'\] is read-only: pass out with arrays that can be written"):
        scaler_of().unscale(grads)
    assert grads["w"].array[0] == 8


# ---- torch and JAX ----


torch, jax = (importlib.import_module(name) if find_spec(name) else None for name in ("torch", "jax"))
needs_jax = pytest.mark.skipif(jax is None, reason="JAX is not installed")
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


@needs_torch
class TestTorch:
    def test_gradients_are_unscaled_in_place(self):
        dtypes = torch.float16, torch.bfloat16, torch.float32, torch.float64
        tensors = [torch.full((3,), 8.0, dtype=dtype) for dtype in dtypes] + [torch.tensor(8.0), torch.ones(0)]
        tensors += [torch.full((2, 3, 4, 5), 8.0).to(memory_format=torch.channels_last)]
        report = scaler_of().unscale(tensors, want=Want.NORM)
        assert all((t == 1).all() for t in tensors) and report.elements == 12 + 120 + 1

    def test_parameters_stand_for_their_gradients(self):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        model[0](torch.ones(1, 2)).sum().backward()
        report = scaler_of().unscale(dict(model.named_parameters()))
        assert list(report.names) == ["0.weight", "0.bias"] and model[0].weight.grad.tolist() == [[1 / 8] * 2] * 2
        model[0].bias.grad[1] = float("nan")
        assert scaler_of().unscale(model.parameters()).bad == {1: 1}
        model.zero_grad()
        assert scaler_of().measure(model.parameters()).elements == 0

    def test_the_results_of_parameters_are_their_gradients(self):
        model = torch.nn.Linear(2, 1, bias=False)
        before = model.weight.detach().clone()
        for call in (
            lambda: scaler_of().unscale(model.weight).grads,
            lambda: scaler_of().unscale(dict(model.named_parameters()).values()).grads[0],
            lambda: scaler_of().unscale({"m": {"w": model.weight, "none": None}}).grads["m"]["w"],
            lambda: scaler_of().unscale(model.parameters(), dtype="float64").grads[0],
        ):
            model.weight.grad = torch.full((1, 2), 8.0)
            assert call().tolist() == [[1, 1]]
        assert torch.equal(model.weight, before)

    def test_the_overflow_after_zero_grad_is_found(self):
        weight = torch.nn.Parameter(torch.ones(2))
        for value, overflow in (1.0, False), (float("inf"), True):
            (weight * value).sum().backward()
            assert scaler_of().unscale([weight.grad]).overflow == overflow
            weight.grad = None

    def test_what_is_no_dense_gradient_is_refused_by_name(self):
        for bad, words in (
            (torch.ones(1).expand(4), "is not contiguous"),
            (torch.ones(3).to_sparse(), "cannot be used: "),
            (torch.ones(3, device="meta"), ""),
            (torch.ones(3, dtype=torch.complex64).conj(), "is a view that negates or conjugates"),
        ):
            with pytest.raises(Error) as refused:
                scaler_of().measure({"good": torch.ones(1), "bad": bad})
            assert str(refused.value).startswith(f"grads['bad'] {words}") and "\n" not in str(refused.value)

    def test_a_loss_is_multiplied_and_differentiated_in_float32_if_it_is_narrow(self):
        x = torch.ones(1, requires_grad=True)
        scaler_of().scale((3 * x).sum()).backward()
        assert x.grad.tolist() == [24]
        for dtype in torch.float16, torch.bfloat16:
            loss = scaler_of(2.0**16).scale(torch.tensor(8.0, dtype=dtype))
            assert (loss.dtype, loss.item()) == (torch.float32, 2.0**19)

    def test_results_of_a_dtype_and_sums(self):
        grads, total = {"w": torch.full((3,), 8.0, dtype=torch.float16)}, {"w": torch.zeros(3)}
        result = scaler_of().unscale(grads, dtype="float32").grads["w"]
        assert not scaler_of().unscale_accumulate(grads, total).overflow
        assert (result.dtype, result.tolist(), total["w"].tolist()) == (torch.float32, [1, 1, 1], [1, 1, 1])

    def test_a_bool_tensor_is_a_report(self):
        assert Scaler("torch").update(torch.tensor(True)) & Event.SKIPPED


@needs_jax
class TestJax:
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
    def test_gradients_are_checked_and_unscaled_into_numpys(self, dtype):
        grads = {"w": jax.numpy.full((3,), 8, dtype=dtype)}
        assert scaler_of().measure(grads, want=Want.AMAX).amax == 1
        report = scaler_of().unscale(grads, dtype="float32")
        assert type(report.grads["w"]) is np.ndarray and report.grads["w"].tolist() == [1, 1, 1]
        with pytest.raises(Error, match="is read-only"):
            scaler_of().unscale(grads)
        assert grads["w"].tolist() == [8, 8, 8]

    def test_a_loss_is_differentiated_and_traced_in_float32_if_it_is_narrow(self):
        gradient = jax.grad(lambda x: scaler_of().scale(jax.numpy.sum(3 * x)))(jax.numpy.ones(2))
        assert gradient.tolist() == [24, 24]
        assert jax.jit(scaler_of(2.0**16).scale)(jax.numpy.float16(8)) == 2.0**19
