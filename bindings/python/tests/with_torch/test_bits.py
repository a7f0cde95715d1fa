# SPDX-License-Identifier: MIT
"""Unscaled gradients have torch's bits: every number of 16 bits, and many of 32 and 64, by scales of all kinds."""

import pytest
import torch
from conftest import begun, gradients, sgd

from gradscaler.torch import GradScaler

SCALES = (1.0, 2.0, 2.0**16, 2.0**24, 2.0**-14, 2.0**120, 2.0**-120, 3.0, 0.1, 65535.0, 1.0 + 2.0**-23, 1e30, 1e-30)


def patterns(dtype):
    """All bit patterns, or a sample: every exponent with both signs, Inf, NaN, subnormals among them."""
    bits = torch.finfo(dtype).bits
    if bits == 16:
        return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    integers = torch.int32 if bits == 32 else torch.int64
    limits, draw = torch.iinfo(integers), torch.Generator().manual_seed(0)
    return torch.randint(limits.min, limits.max, (100_000,), generator=draw, dtype=integers).view(dtype)


class Theirs(torch.amp.GradScaler):
    """torch's class, allowed to unscale float16."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


def unscaled(scaler, values):
    """What unscale_ makes of these gradients, with one NaN for all, and whether it found an overflow."""
    optimizer = sgd(values.clone())
    begun(scaler).unscale_(optimizer)
    (found,), (made,) = scaler._found_inf_per_device(optimizer).values(), gradients(optimizer)
    return made.masked_fill(made.isnan(), torch.nan), bool(found)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_gradients_divided_by_the_scale(dtype, scale):
    values = patterns(dtype)
    for part in values, values[values.isfinite()]:
        theirs, their_found = unscaled(Theirs("cpu", scale), part)
        ours, found = unscaled(GradScaler("cpu", scale, allow_fp16=True), part)
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        assert found == (their_found or not theirs.isfinite().all())
