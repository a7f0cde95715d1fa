# SPDX-License-Identifier: MIT
"""A device "toy" without hardware, on which torch's operations run in host memory. It cannot be switched off again.

`waits` has the operations that made the host wait for the device. `missing` has names of operations that the device
lacks. Tensors of float64 are refused if `lacks_float64` is set. It needs an interface of torch that is not public.
"""

import ctypes

import torch

waits, missing = [], set()
lacks_float64 = False
_CPU, _TOY = 1, 12  # DLPack's device types
_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_capsule.restype, _capsule.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def install():
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend("toy")
    library = torch.library.Library("_", "IMPL")
    library.fallback(_run, "PrivateUse1")
    return library  # must stay alive


def _as(tensor, kind):
    """Returns a tensor on the same memory with another type of device."""
    capsule = torch._C._to_dlpack(tensor)
    at = _capsule(capsule, b"dltensor")
    ctypes.c_int32.from_address(at + 8).value = kind
    return torch._C._from_dlpack(capsule)


def on_host(tensor):
    return _as(tensor.detach(), _CPU) if tensor.device.type == "toy" else tensor


def _map(value, of_tensor):
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "toy" else value
    if isinstance(value, list | tuple):
        return type(value)(_map(each, of_tensor) for each in value)
    return value


def _run(operation, *args, **named):
    name = str(operation)
    if any(each in name for each in missing):
        raise NotImplementedError(f"{name} is missing on the device toy")
    if "_local_scalar_dense" in name:
        waits.append(name)
    if name.startswith("aten._copy_from"):
        source, target = args[:2]
        if target.device.type == "cpu":
            waits.append(name)
        on_host(target).copy_(on_host(source))
        return target
    given, outputs = {}, [each for key, each in named.items() if key.startswith("out") and not each.numel()]

    def lower(tensor):
        if tensor.device.type != "toy":
            return tensor
        host = on_host(tensor)
        if any(tensor is each for each in outputs):  # an operation gives an empty output its size
            host = torch.empty(0, dtype=tensor.dtype)
        given[id(host)] = host, tensor
        return host

    kinds = [str(argument.type) for argument in operation._schema.arguments]
    pairs = zip(args, kinds, strict=False)  # a number arrives as a number where a tensor is wanted
    args = [torch.tensor(each) if kind == "Tensor" and isinstance(each, int | float) else each for each, kind in pairs]
    result = operation(*_map(args, lower), **{key: _map(value, lower) for key, value in named.items()})

    for host, tensor in list(given.values()):
        if any(tensor is each for each in outputs):
            tensor.data = _as(host, _TOY)

    def lift(tensor):
        if id(tensor) in given:
            return given[id(tensor)][1]
        if tensor.device.type != "cpu":
            return tensor
        if lacks_float64 and tensor.dtype == torch.float64:
            raise TypeError("the device toy has no float64")
        return _as(tensor, _TOY)

    return _map(result, lift)
