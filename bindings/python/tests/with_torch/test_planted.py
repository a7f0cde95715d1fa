# SPDX-License-Identifier: MIT
"""The cause in a report names the module where an overflow of the backward pass happened."""

import math
import random

import planted
import pytest
import torch
from conftest import scaler


def caused(case, pairs=None):
    """Returns the report on the gradients of a case; `pairs` are its parameters in another order than the model's."""
    optimizer = torch.optim.SGD(list(case.model.named_parameters()) if pairs is None else pairs)
    one = scaler(1.0)
    one.scale(case.loss)
    one.unscale_(optimizer)
    return one.report


def bad_names(case):
    return {name for name, gradient in case.gradients if not gradient.isfinite().all()}


@pytest.mark.parametrize(
    ("cases", "right", "count"), [(planted.plants, 322, 325), (planted.overflows, 201, 204)], ids=["planted", "float16"]
)
def test_the_cause_is_in_the_module_of_the_overflow(cases, right, count, request):
    is_long = request.config.getoption("--long")
    named = []
    for case in cases(every=1 if is_long else 10):
        report = caused(case)
        assert report.bad.keys() == bad_names(case) and next(iter(report.bad)) == report.cause, case[:3]
        named.append(planted.is_right(case, report.cause))
    assert len(named) == (count if is_long else math.ceil(count / 10))
    assert sum(named) >= len(named) * right // count


def test_the_cause_does_not_depend_on_the_order_of_registration():
    draw = random.Random(0)
    for case in list(planted.plants(every=20))[:16]:
        pairs = list(case.model.named_parameters())
        draw.shuffle(pairs)
        assert planted.is_right(case, caused(case, pairs).cause), case[:3]
