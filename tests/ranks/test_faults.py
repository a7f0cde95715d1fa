# SPDX-License-Identifier: MIT
"""A fault of one rank, on every engine: nobody steps alone, each message names the rank, nothing hangs."""

import re
import time

import pytest
import start
from steps import BAD_RANK, BAD_STEP, expected

WAITS = 60  # seconds: an engine's time-out
# One that passes, which the start and compilations share, and a rank that is later.
PATIENCE, TOO_LATE = 10, 13


def run(engine, directory, fault, late=0, timeout=WAITS):
    """All ranks end, with the expected steps: their statuses, the seconds, and the lines that they wrote."""
    start.imported()
    began = time.monotonic()
    statuses = engine.faults(directory, fault, late, timeout)
    seconds = time.monotonic() - began
    assert None not in statuses, f"hangs: {statuses}"
    lines = [(directory / str(rank)).read_text().splitlines() for rank in range(engine.ranks)]
    for rank, mine in enumerate(lines):
        rows = (line.split(" ", 4) for line in mine if " refused " not in line)
        taken = [(word == "stepped", float(norm), float(scale)) for _, word, norm, scale, *_ in rows]
        assert taken == expected(engine.ranks, fault), rank
    return statuses, seconds, lines


def others_say(lines, pattern, how=all):
    """Each rank but the bad one, of the last step that it did not take; or any of them."""
    good = [mine for rank, mine in enumerate(lines) if rank != BAD_RANK]
    messages = [next((line for line in reversed(mine) if " stepped " not in line), "") for mine in good]
    return how(re.search(pattern, message) for message in messages)


def test_a_nan_of_a_late_rank_makes_all_skip_the_step_and_name_the_rank_which_names_the_parameter(
    engine, tmp_path, request
):
    late = 8 if request.config.getoption("--long") else 1
    statuses, seconds, lines = run(engine, tmp_path, "nan", late)
    assert set(statuses) == {0} and seconds >= late
    skipped = f"^{BAD_STEP} skipped .*rank.{BAD_RANK}"
    assert others_say(lines, skipped), lines
    assert any(re.search(skipped, line) and "weight" in line for line in lines[BAD_RANK]), lines


def test_a_bad_loss_of_one_rank_makes_all_skip_the_step_and_keep_the_scale(engine, tmp_path):
    if not engine.takes_loss:
        pytest.skip("its program gives no loss")
    statuses, _, lines = run(engine, tmp_path, "loss")
    assert set(statuses) == {0} and others_say(lines, f"^{BAD_STEP} skipped .*NOT_FINITE"), lines


@pytest.mark.parametrize("fault, step", [("fails", BAD_STEP), ("drift", 0)])
def test_a_rank_with_a_failed_call_or_another_checkpoint_ends_the_step_of_all_and_all_name_it(
    engine, tmp_path, fault, step
):
    _, _, lines = run(engine, tmp_path, fault)
    assert others_say(lines, f"^{step} refused .*rank {BAD_RANK}"), lines


def test_a_rank_that_dies_ends_all_and_nobody_steps(engine, tmp_path):
    statuses, seconds, lines = run(engine, tmp_path, "dies")
    assert 0 not in statuses and seconds < WAITS
    assert not engine.gone or others_say(lines, f"^{BAD_STEP} refused .*({engine.gone})"), lines


def test_a_rank_that_is_later_than_the_engine_waits_ends_all_and_nobody_steps(engine, tmp_path):
    if not engine.too_late:
        pytest.skip("it waits for ever")
    statuses, _, lines = run(engine, tmp_path, "late", TOO_LATE, PATIENCE)
    assert 0 not in statuses
    assert others_say(lines, engine.too_late, how=any), lines
