# SPDX-License-Identifier: MIT
"""Reports that ranks gather and merge have the same bits on all of them, on every engine, as merged in one place."""

import math
import random

import engines
import pytest
import steps

from gradscaler import Report, ReportKind
from gradscaler._structs import Status

CASES = 500  # for each of 2, 3, 4 and 5 ranks


def number(random):
    """Any magnitude, in which sums depend on their order, and now and then what no sum should have in it."""
    return random.choice([0.0, math.inf, math.nan, *[random.uniform(0, 1) * 2.0 ** random.randrange(-60, 60)] * 30])


def report(random):
    def count():
        return random.choice([0, 0, random.randrange(1 << 40)])

    bad, failed = random.random() < 0.2, random.random() < 0.05
    fields = {
        "sum_squares": number(random),
        "amax": abs(number(random)),
        "kind": random.choice([ReportKind.TENSORS, ReportKind.MERGED]),
        "measured": random.choice([7, 7, 7, random.randrange(8)]),
        "generation": random.choice([0, random.randrange(1 << 60)]),
        "elements": count(),
        "underflows_to_zero": count(),
        "underflows_to_subnormal": count(),
        "clamped": count(),
    }
    if bad:
        fields |= {"overflow": True, "nan_count": count(), "inf_count": 1 + count()}
        fields |= {"first_tensor": random.randrange(200), "first_element": count()}
    if failed:
        fields |= {"overflow": True, "status": random.choice([s for s in Status if s != Status.OK])}
    return Report(**fields)


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    """A file of cases for each number of ranks, and what they are merged to."""
    folder, generator, found = tmp_path_factory.mktemp("cases"), random.Random(21), {}
    for ranks in range(2, 6):
        reports = [[report(generator) for _ in range(ranks)] for _ in range(CASES)]
        path = folder / str(ranks)
        path.write_bytes(b"".join(bytes(one) for case in reports for one in case))
        found[ranks] = path, b"".join(bytes(Report.merge(case)) for case in reports)
    return found


def test_2000_cases_have_the_same_bits_on_every_rank_as_merged_serially(engine, cases, tmp_path):
    engines.of(engine).merge({ranks: path for ranks, (path, _) in cases.items()}, tmp_path)
    for ranks, (_, serially) in cases.items():
        for rank in range(ranks):
            assert (tmp_path / f"{ranks}-{rank}").read_bytes() == serially, (ranks, rank)


def test_the_order_of_the_reports_matters_to_the_bits(cases):
    """Else the test above could not fail, for any number of ranks."""
    for ranks, (path, serially) in cases.items():
        merged = [serially[at : at + steps.REPORT_SIZE] for at in range(0, len(serially), steps.REPORT_SIZE)]
        backwards = (
            bytes(Report.merge([Report.from_bytes(one) for one in row[::-1]])) for row in steps.cases(path, ranks)
        )
        assert any(a != b for a, b in zip(merged, backwards, strict=True)), ranks


def test_groups_of_64_ranks_merge_to_the_bits_of_all_others_to_the_same_verdict():
    """Ranks of a node merge first, then the nodes."""
    generator = random.Random(64)
    reports = [report(generator) for _ in range(512)]
    for one in reports:
        one.sum_squares, one.status, one.measured = generator.uniform(0, 1) * 2.0 ** generator.randrange(-60, 60), 0, 7
    flat = Report.merge(reports)
    for size in 8, 64:
        nodes = [Report.merge(reports[at : at + size]) for at in range(0, len(reports), size)]
        by_nodes = Report.merge(nodes)
        assert size != 64 or bytes(by_nodes) == bytes(flat)
        assert by_nodes.sum_squares == pytest.approx(flat.sum_squares, rel=1e-12)
        by_nodes.sum_squares = flat.sum_squares
        assert bytes(by_nodes) == bytes(flat)
