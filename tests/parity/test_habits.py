"""Habits of real scripts that look at gradients, state or rows in ways that a rank-local view gets wrong."""

import pytest
from parity import gradient_habits, habits, model_habits

CASES = [(module, habit) for module in (habits, gradient_habits, model_habits) for habit in module.HABITS]


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize(("module", "habit"), CASES, ids=lambda part: part.__name__.split(".")[-1])
def test_habit_gives_what_one_process_gives(ranks, module, habit, nproc):
    wanted = module.run(habit.__name__)
    for result in ranks.call(module.run, nproc, habit.__name__, timeout=40).ok().results:
        assert result == pytest.approx(wanted, rel=1e-9, abs=1e-11)
