# SPDX-License-Identifier: MIT
"""A fault of one rank, on every engine: nobody steps alone, each message names the rank, nothing hangs.

`--long` adds mpi4py, and ranks that are 8 s late where the engine waits.
"""

import re
import time

import engines
import pytest
import start
from steps import BAD_RANK, BAD_STEP, expected

# Seconds: an engine's time-out, which its start and compilations share; a rank that is later, and one that is in time.
PATIENCE, TOO_LATE, LATE = 15, 20, 1
WAITS = 60


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

    def messages(self):
        """What each rank but the bad one said last of a step that it did not take."""
        good = [lines for rank, lines in enumerate(self.lines) if rank != BAD_RANK]
        return [next((line for line in reversed(lines) if " stepped " not in line), "") for lines in good]

    def all_took(self, steps):
        assert None not in self.statuses, f"hangs: {self.statuses}"
        for rank in range(self.engine.ranks):
            assert self.taken(rank) == steps, rank

    def all_say(self, pattern):
        for message in self.messages():
            assert re.search(pattern, message), message

    def bad_one_says(self, pattern):
        assert any(re.search(pattern, line) for line in self.lines[BAD_RANK]), self.lines[BAD_RANK]


@pytest.fixture
def run(engine, tmp_path):
    return lambda *args, **options: Run(engines.of(engine), tmp_path, *args, **options)


def steps(run, fault):
    return expected(run.engine.ranks, fault)


def test_without_a_fault_all_take_all_steps(run):
    ran = run("none")
    ran.all_took(steps(ran, "none"))
    assert set(ran.statuses) == {0}


def test_a_nan_of_one_rank_makes_all_skip_the_step_and_name_the_rank_which_names_the_parameter(run):
    ran = run("nan")
    ran.all_took(steps(ran, "nan"))
    ran.all_say(f"^{BAD_STEP} skipped .*rank.{BAD_RANK}")
    ran.bad_one_says(f"^{BAD_STEP} skipped .*rank.{BAD_RANK}.*weight")


def test_a_rank_whose_call_fails_ends_the_step_of_all_and_all_name_it(run):
    ran = run("fails")
    ran.all_took(steps(ran, "fails"))
    ran.all_say(f"^{BAD_STEP} refused .*rank {BAD_RANK}")


def test_a_rank_that_started_from_another_checkpoint_is_named_before_the_first_step(run):
    ran = run("drift")
    ran.all_took([])
    ran.all_say(f"^0 refused .*rank {BAD_RANK}")


def test_a_rank_that_dies_ends_all_and_nobody_steps(run):
    ran = run("dies")
    ran.all_took(steps(ran, "dies"))
    assert 0 not in ran.statuses and ran.seconds < WAITS
    if ran.engine.gone:
        ran.all_say(f"^{BAD_STEP} refused .*({ran.engine.gone})")


def test_a_rank_that_is_later_than_the_engine_waits_ends_all_and_nobody_steps(run, engine):
    if not engines.of(engine).too_late:  # it waits for ever
        ran = run("late", LATE)
        return ran.all_took(steps(ran, "none"))
    ran = run("late", TOO_LATE, PATIENCE)
    ran.all_took(steps(ran, "too late"))
    assert 0 not in ran.statuses
    assert any(re.search(ran.engine.too_late, message) for message in ran.messages())


def test_a_rank_that_is_8_s_late_is_waited_for(run, request):
    if not request.config.getoption("--long"):
        pytest.skip("--long")
    ran = run("late", 8)
    ran.all_took(steps(ran, "none"))
    assert ran.seconds >= 8
