# SPDX-License-Identifier: MIT
"""Reports that ranks of torch and JAX gather and merge have the same bits on all of them as merged in one place."""

import random

import pytest
import start
import with_jax
import with_torch
from steps import CASES_OF

from gradscaler import Report, ReportKind


def report(generator):
    """A report with a sum of squares of any magnitude: a merge depends on the order."""
    fields = {
        "sum_squares": generator.uniform(0, 1) * 2.0 ** generator.randrange(-60, 60),
        "amax": generator.random(),
        "kind": generator.choice([ReportKind.TENSORS, ReportKind.MERGED]),
        "measured": generator.choice([7, 7, 7, generator.randrange(8)]),
        "generation": generator.randrange(1 << 60),
        "elements": generator.randrange(1 << 40),
    }
    if generator.random() < 0.2:
        fields |= {"overflow": True, "inf_count": 1, "first_tensor": generator.randrange(200), "first_element": 1 << 39}
    return Report(**fields)


@pytest.fixture(scope="session")
def cases():
    generator = random.Random(21)
    return [[report(generator) for _ in range(CASES_OF)] for _ in range(500)]


def merged(cases):
    return b"".join(bytes(Report.merge(case)) for case in cases)


@pytest.mark.parametrize("program", [with_torch, with_jax])
def test_500_cases_have_the_same_bits_on_every_rank_as_merged_serially(program, cases, tmp_path):
    (tmp_path / "cases").write_bytes(b"".join(bytes(one) for case in cases for one in case))
    assert start.processes(program.reports, CASES_OF, tmp_path) == [0] * CASES_OF
    for rank in range(CASES_OF):
        assert (tmp_path / str(rank)).read_bytes() == merged(cases), rank


def test_the_order_of_the_reports_matters_to_the_bits(cases):
    """Else the test above could not fail."""
    assert merged(cases) != merged(case[::-1] for case in cases)
