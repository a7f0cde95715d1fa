# SPDX-License-Identifier: MIT
"""The last bad gradient, in the model's order, names the module where an overflow of the backward pass happened."""

import math

import planted
import pytest

from gradscaler import Scaler


def bad_indices(gradients):
    return [index for index, gradient in enumerate(gradients) if not gradient.isfinite().all()]


@pytest.mark.parametrize(
    ("cases", "right", "count"), [(planted.plants, 290, 325), (planted.overflows, 188, 204)], ids=["planted", "float16"]
)
def test_the_last_bad_gradient_names_the_module(cases, right, count, request):
    is_long = request.config.getoption("--long")
    named, scaler = [], Scaler("static", init_scale=1.0)
    for case in cases(every=1 if is_long else 10):
        names, gradients = zip(*case.gradients, strict=True)
        report, bad = scaler.measure(gradients), bad_indices(gradients)
        assert (report.first_tensor, report.last_tensor) == (bad[0], bad[-1]), case[:3]
        named.append(planted.is_right(case, names[report.last_tensor]))
    assert len(named) == (count if is_long else math.ceil(count / 10))
    assert sum(named) >= len(named) * right // count
