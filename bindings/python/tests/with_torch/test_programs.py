# SPDX-License-Identifier: MIT
"""Real programs train the same, to the bit, with torch's class and with ours in its place: alone and as two ranks."""

import programs
import pytest
import torch
import torch.multiprocessing as mp

from gradscaler.torch import GradScaler

KINDS = (torch.amp.GradScaler, GradScaler)


def assert_same(theirs, ours):
    for a, b in zip(theirs[:2], ours[:2], strict=True):
        assert list(map(str, b)) == list(map(str, a))  # as text, because some losses are NaN
    assert all(map(torch.equal, ours[2], theirs[2]))


@pytest.mark.parametrize("program", programs.SINGLE, ids=lambda program: program.__name__)
def test_loops_and_frameworks(program):
    programs.quiet()
    theirs, ours = (programs.train(program, kind) for kind in KINDS)
    assert_same(theirs, ours)
    assert ours[1][-1] < 2.0**20


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Returns the result of each program on each of two ranks."""
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(programs.ranks_worker, (tmp_path_factory.mktemp("ranks"), KINDS, results), nprocs=2)
        return dict(results)


@pytest.mark.parametrize("program", [program.__name__ for program in programs.OF_TWO])
def test_frameworks_of_two_ranks(program, ranks):
    for rank in range(2):
        assert_same(*(ranks[rank, program, kind] for kind in KINDS))
    first, second = (ranks[rank, program, GradScaler] for rank in range(2))
    assert first[1] == second[1]  # one scale
    assert all(map(torch.equal, first[2], second[2]))
    assert first[1][-1] < 2.0**20
