#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How far the norm of unscaled gradients is from the exact one: a table, with --page into docs/measured.md.

Gradients of GPT-2's 148 shapes with magnitudes over many octaves, multiplied by 2^16 and rounded to the dtype; each
library divides them by the scale and takes the norm as its users do. The exact norm is summed in long double.
"""

import platform
from importlib.metadata import version

import jax
import ml_dtypes
import numpy as np
import optax
import torch
from models import GPT2, counts_of_gpt
from page_table import run

import gradscaler

SCALE = 2.0**16
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def gradients(dtype):
    random = np.random.default_rng(0)
    for n in counts_of_gpt(*GPT2):
        sizes = np.exp2(random.standard_normal(n, np.float32) * 3 - 14) * random.standard_normal(n, np.float32)
        yield (sizes * np.float32(2.0**-6) * np.float32(SCALE)).astype(dtype)


def exact(arrays):
    total = sum(np.sum(np.square(a.astype(np.float64)), dtype=np.longdouble) for a in arrays)
    return np.sqrt(total) / np.longdouble(SCALE)


def ours(arrays):
    scaler = gradscaler.Scaler(init_scale=SCALE)
    return scaler.unscale([a.copy() for a in arrays], want=gradscaler.Want.NORM).norm


def torchs(arrays):
    parameters = []
    for array in arrays:
        bits = array.view(np.int16) if array.dtype.itemsize == 2 else array
        dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(array.dtype.name, torch.float32)
        parameters.append(torch.nn.Parameter(torch.from_numpy(bits.copy()).view(dtype)))
        parameters[-1].grad = parameters[-1].detach().clone()
    grads = [p.grad for p in parameters]
    torch._amp_foreach_non_finite_check_and_unscale_(grads, torch.zeros(1), torch.full((1,), 1 / SCALE))
    return float(torch.nn.utils.clip_grad_norm_(parameters, 1e9))


def optaxs(arrays):
    unscale = jax.jit(lambda a: (a * jax.numpy.float32(1 / SCALE)).astype(a.dtype))  # as jmp does it
    grads = [unscale(jax.numpy.asarray(a)) for a in arrays]
    return float(optax.global_norm(grads))


def table():
    versions = [f"torch {version('torch').split('+')[0]}", f"optax {version('optax')}"]
    lines = [
        f"| relative error of the norm of 124 million gradients | gradscaler | {' | '.join(versions)} |",
        "|---|---|---|---|",
    ]
    for name, dtype in DTYPES.items():
        arrays = list(gradients(dtype))
        true = exact(arrays)
        cells = [f"{abs(float(who(arrays) / true - 1)):.0e}" for who in (ours, torchs, optaxs)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    about = f"gradscaler {gradscaler.__version__}, {platform.machine()}: GPT-2's shapes, divided by 2^16 in place."
    return "\n".join([*lines, "", about, ""])


if __name__ == "__main__":
    run(__doc__, "tests/bench/errors.py --page", "docs/measured.md", table)
