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


class Run:
    """What the ranks wrote, and how they ended."""

    def __init__(self, engine, directory, fault, seconds=0, timeout=WAITS):
        start.imported()
        began = time.monotonic()
        self.engine, self.fault = engine, fault
        self.statuses = engine.faults(directory, fault, seconds, timeout)
        self.seconds = time.monotonic() - began
        self.lines = [(directory / str(rank)).read_text().splitlines() for rank in range(engine.ranks)]

    def taken(self, rank):
        """(stepped, norm, scale) of each step that this rank was not refused."""
        rows = (line.split(" ", 4) for line in self.lines[rank])
        return [(row[1] == "stepped", float(row[2]), float(row[3])) for row in rows if row[1] != "refused"]

    def all_took_the_expected_steps(self):
        assert None not in self.statuses, f"hangs: {self.statuses}"
        for rank in range(self.engine.ranks):
            assert self.taken(rank) == expected(self.engine.ranks, self.fault), rank

    def messages(self):
        """What each rank but the bad one said last of a step that it did not take."""
        good = [lines for rank, lines in enumerate(self.lines) if rank != BAD_RANK]
        return [next((line for line in reversed(lines) if " stepped " not in line), "") for lines in good]

    def all_say(self, pattern):
        for message in self.messages():
            assert re.search(pattern, message), message


def test_a_nan_of_a_late_rank_makes_all_skip_the_step_and_name_the_rank_which_names_the_parameter(
    engine, tmp_path, request
):
    late = 8 if request.config.getoption("--long") else 1
    ran = Run(engine, tmp_path, "nan", late)
    ran.all_took_the_expected_steps()
    assert set(ran.statuses) == {0} and ran.seconds >= late
    ran.all_say(f"^{BAD_STEP} skipped .*rank.{BAD_RANK}")
    bad = ran.lines[BAD_RANK]
    assert any(re.search(f"^{BAD_STEP} skipped .*rank.{BAD_RANK}.*weight", line) for line in bad), bad


@pytest.mark.parametrize("fault, step", [("fails", BAD_STEP), ("drift", 0)])
def test_a_rank_with_a_failed_call_or_another_checkpoint_ends_the_step_of_all_and_all_name_it(
    engine, tmp_path, fault, step
):
    ran = Run(engine, tmp_path, fault)
    ran.all_took_the_expected_steps()
    ran.all_say(f"^{step} refused .*rank {BAD_RANK}")


def test_a_rank_that_dies_ends_all_and_nobody_steps(engine, tmp_path):
    ran = Run(engine, tmp_path, "dies")
    ran.all_took_the_expected_steps()
    assert 0 not in ran.statuses and ran.seconds < WAITS
    if engine.gone:
        ran.all_say(f"^{BAD_STEP} refused .*({engine.gone})")


def test_a_rank_that_is_later_than_the_engine_waits_ends_all_and_nobody_steps(engine, tmp_path):
    if not engine.too_late:
        pytest.skip("it waits for ever")
    ran = Run(engine, tmp_path, "late", TOO_LATE, PATIENCE)
    ran.all_took_the_expected_steps()
    assert 0 not in ran.statuses
    assert any(re.search(engine.too_late, message) for message in ran.messages())
