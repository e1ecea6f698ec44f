"""Habits of real scripts that look at gradients, state or rows in ways that a rank-local view gets wrong."""

import pytest
from parity.habits import HABITS, run


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_habit_gives_what_one_process_gives(ranks, habit, nproc):
    wanted = run(habit.__name__)
    for result in ranks.call(run, nproc, habit.__name__, timeout=40).ok().results:
        assert result == pytest.approx(wanted, rel=1e-9, abs=1e-11)
