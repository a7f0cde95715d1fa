# SPDX-License-Identifier: MIT
"""Ranks that train together take the steps of one process: the same norms, scales, skips and parameters, to the bit."""

import engines
import start
import with_jax
import with_torch


def lines(directory, rank=0):
    return (directory / str(rank)).read_text().splitlines(keepends=True)


def is_a_training(found):
    """Both kinds of steps, and scales that went down and up; else there would be little to compare."""
    scales = [float(line.split()[1]) for line in found]
    moves = list(zip(scales, scales[1:], strict=False))
    return any(a > b for a, b in moves) and any(a < b for a, b in moves) and len(set(found)) == len(found)


def test_four_ranks_of_torch_train_as_one_process(tmp_path):
    together, alone = tmp_path / "4", tmp_path / "1"
    together.mkdir(), alone.mkdir()
    assert start.processes(with_torch.train, 4, together) == [0] * 4
    assert start.processes(with_torch.train, 1, alone) == [0]
    assert is_a_training(lines(alone))
    for rank in range(4):
        assert lines(together, rank) == lines(alone)


def test_two_processes_of_jax_train_as_one_with_numpy(tmp_path):
    assert start.processes(with_jax.train, 2, tmp_path, engines.free_port()) == [0, 0]
    alone = list(with_jax.train_alone())
    assert is_a_training(alone)
    for rank in range(2):
        assert lines(tmp_path, rank) == alone


def test_two_processes_of_jax_that_call_the_host_step_alike(tmp_path):
    assert start.processes(with_jax.train, 2, tmp_path, engines.free_port(), False) == [0, 0]
    assert lines(tmp_path, 0) == lines(tmp_path, 1)
    scales = [[line.split()[1:3] for line in each] for each in (lines(tmp_path, 0), with_jax.train_alone())]
    assert scales[0] == scales[1]  # norms are summed in another order
