# SPDX-License-Identifier: MIT
"""Names in compiled programs for the functions that partition a call: the same ones in every process.

JAX names such a function by the address of an object. That name is a part of the program, so the persistent compilation
cache would find no program of another process. Here the name is a digest of what decides the parts of the program.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.interpreters import mlir

try:
    from jax._src import custom_partitioning as theirs
    from jax._src.lib.mlir import ir

    _lower, _functions = theirs._custom_partitioning_lowering_rule, theirs._sharding_callbacks
    _primitive, _target = theirs.custom_partitioning_p, theirs._CUSTOM_PARTITIONING_CALL_NAME
except (ImportError, AttributeError):  # another JAX: programs of other processes are compiled again
    theirs = None


class Partition:
    """A function that partitions a call. `identity`: text of this function alone, the same in all processes."""

    def __init__(self, function: Callable, identity: str) -> None:
        self.function, self.identity = function, identity

    def __call__(self, *known: Any) -> Any:
        return self.function(*known)


@functools.cache
def _sources() -> bytes:
    """Returns a digest of the code that makes the parts."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()


def _name(identity: str, info: Any) -> str:
    """Returns a name for the functions in `info`, which JAX has registered."""
    axes, mesh = info.module_context.axis_context, info.mesh
    devices = getattr(axes, "device_assignment", None) or axes.mesh.devices.flat
    where = [device.id for device in devices], () if mesh.empty else mesh.shape_tuple, info.module_context.platforms
    decides = identity, where, info.in_tree, info.out_tree, jax.config.jax_enable_x64
    return f"gradscaler {hashlib.sha256(_sources() + repr(decides).encode()).hexdigest()}"


def _lowering(context: Any, *values: Any, partition: Callable, **parameters: Any) -> Any:
    """Lowers the primitive as JAX does, then renames our functions."""
    results = _lower(context, *values, partition=partition, **parameters)
    operation = results[0].owner if results and isinstance(partition, Partition) else None
    attributes = getattr(operation, "attributes", {})
    if "backend_config" not in attributes or attributes["call_target_name"].value != _target:
        return results  # of another function, or lowered for one device
    info = _functions[attributes["backend_config"].value.encode()]
    name = _name(partition.identity, info)
    # Functions of one name are alike: programs share them, and each keeps them alive.
    context.module_context.add_keepalive(_functions.setdefault(name.encode(), info))
    attributes["backend_config"] = ir.StringAttr.get(name)
    return results


if theirs is not None:
    mlir.register_lowering(_primitive, _lowering)
