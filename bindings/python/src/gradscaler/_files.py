# SPDX-License-Identifier: MIT
"""Reads numbers, texts and small arrays from checkpoint files without running code from them."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from typing import Any

MOST_JSON, MOST_HEAD = 1 << 27, 100 << 20  # bytes; the second is safetensors' own limit
_MOST_NPY = 1 << 16  # bytes of an array in an npz; a scaler's have one element
_TORCH = b"\x80\2\x8a\nl\xfc\x9cF\xf9"  # how files of torch before 1.6 begin
_SAFETENSORS = {"F64": "d", "F32": "f", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "?"}


class UnreadableError(ValueError):
    """The error of a file that cannot be read; its message says what to do instead."""


def load(path: str | os.PathLike) -> Any:
    """Returns the contents of a checkpoint: JSON, safetensors, msgpack of flax, npz, torch.save, or a pickle."""
    name = os.fspath(path)
    try:
        mode = os.stat(name).st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory: name the file in it that has the scaler" if stat.S_ISDIR(mode) else "no regular file"
            raise UnreadableError(f"{name} is {kind}")
        with open(name, "rb") as file:
            head = file.read(16)
    except OSError as error:
        raise UnreadableError(f"{name} cannot be read: {error.strerror}") from None
    try:
        return _reader(name, head)(name)
    except UnreadableError:
        raise
    except ImportError as error:
        raise UnreadableError(f"{name} needs the package {error.name}: pip install {error.name}") from None
    except Exception as error:  # readers of other packages raise anything on hostile bytes
        text = "its end is missing" if getattr(error, "errno", None) == errno.EINVAL else str(error)[:200]
        raise UnreadableError(f"{name} is damaged or cut off: {type(error).__name__}: {text}") from None


def _reader(name: str, head: bytes) -> Callable[[str], Any]:
    end = os.path.splitext(name)[1].lower()
    if end == ".safetensors":
        return _safetensors
    if end == ".npz":
        return _npz
    if end == ".msgpack":
        return _msgpack
    if end in (".pt", ".pth", ".ckpt", ".bin") or head.startswith((b"PK\3\4", b"\x80\2")):
        return _pickle if head.startswith(b"\x80") and not head.startswith(_TORCH) else _torch
    if end == ".json" or head.lstrip()[:1] in (b"{", b"["):
        return _json
    raise UnreadableError(
        f"{name} is of no kind that is read without running code from it (JSON, safetensors, msgpack, npz, torch): "
        "load it yourself and pass its dict to Scaler.load_state_dict"
    )


def _json(name: str) -> Any:
    if os.path.getsize(name) > MOST_JSON:
        raise UnreadableError(f"{name} has more than {MOST_JSON >> 20} MiB: too much for a scaler's JSON")
    try:
        with open(name, encoding="utf-8") as file:
            return json.load(file)
    except RecursionError:
        raise UnreadableError(f"{name} is nested too deeply") from None


def _safetensors(name: str) -> Any:
    """Returns the metadata and the tensors of one number, by the names in the header."""
    import struct

    with open(name, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > min(MOST_HEAD, os.path.getsize(name)):
            raise ValueError(f"its head has {size} bytes")
        head = json.loads(file.read(size))
        found = dict(head.pop("__metadata__", {}))
        for key, tensor in head.items():
            begin, end = tensor["data_offsets"]
            form = _SAFETENSORS.get(tensor["dtype"])
            if form is None or end - begin != struct.calcsize(form):
                continue
            file.seek(8 + size + begin)
            (found[key],) = struct.unpack("<" + form, file.read(end - begin))
    return {key: _number_in(value) for key, value in found.items()}


def _number_in(value: Any) -> Any:
    """Parses a text as JSON if possible: metadata has texts only."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _npz(name: str) -> Any:
    import numpy as np

    with np.load(name, allow_pickle=False) as file:
        sizes = {info.filename.removesuffix(".npy"): info.file_size for info in file.zip.infolist()}
        return {key: file[key] for key in file.files if not key.endswith("/") and sizes[key] <= _MOST_NPY}


def _msgpack(name: str) -> Any:
    import msgpack

    def array(code: int, data: bytes) -> Any:
        if code not in (1, 3):  # flax's codes of an array and of a NumPy scalar
            return msgpack.ExtType(code, data)
        import numpy as np

        shape, dtype, raw = msgpack.unpackb(data, raw=False)
        return np.frombuffer(raw, np.dtype(dtype)).reshape(shape)

    with open(name, "rb") as file:
        return msgpack.unpackb(file.read(), ext_hook=array, raw=False, strict_map_key=False)


def _torch(name: str) -> Any:
    import pickle

    import torch

    try:
        return torch.load(name, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise _needs_code(name) from None


def _pickle(name: str) -> Any:
    """Returns the numbers, texts and containers of a pickle that torch.save did not write."""
    import pickle

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, called: str) -> Any:
            if (module, called) == ("collections", "OrderedDict"):
                return dict
            raise _needs_code(name)

        def persistent_load(self, _: Any) -> Any:
            raise _needs_code(name)

    with open(name, "rb") as file:
        return Reader(file).load()


def _needs_code(name: str) -> UnreadableError:
    return UnreadableError(
        f"{name} has objects that only code from it could make, which is not run: if you trust it, "
        "load it yourself and pass its dict to Scaler.load_state_dict"
    )
