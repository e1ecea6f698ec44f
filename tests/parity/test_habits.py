"""Habits of real scripts that look at gradients, state or rows in ways that a rank-local view gets wrong.

Several habits share one job, each in a session of its own: starting ranks costs more than most habits.
"""

import functools
import json
from pathlib import Path

import pytest
from conftest import THOROUGH
from parity.together import MODULES, habits_of, run, run_all

CHUNK = 6
CASES = [  # the first two of each module are quick
    (module, names)
    for module in MODULES
    for names in (
        habits_of(module)[:2],
        *(habits_of(module)[first : first + CHUNK] for first in range(2, len(habits_of(module)), CHUNK)),
    )
]


@functools.cache
def alone(module, name):
    return run(module, name)


def compare(outcome, nproc, wanted, **precision):
    """Compare what each rank noted of habits with what one process gives."""
    wrong = []
    for rank in range(nproc):
        noted = outcome.cwd / f"habits.{rank}"
        given = dict(map(json.loads, noted.read_text().splitlines())) if noted.exists() else {}
        for name, numbers in wanted.items():
            if name not in given:
                wrong.append(f"rank {rank}: {name} did not end\n{outcome.said()}")
                break
            if given[name] != pytest.approx(numbers, **precision):
                wrong.append(f"rank {rank}: {name} gave {given[name]} instead of {numbers}")
    assert not wrong, "\n".join(wrong)
    outcome.ok()


def test_every_module_of_habits_is_run():
    there = {path.stem for path in Path(__file__).parent.glob("*habits.py")} - {"test_habits", "data_parallel_habits"}
    assert set(MODULES) == there
    assert all(len(habits_of(module)) > 15 for module in MODULES)


FIRST = {names[0] for module, names in CASES if names[0] == habits_of(module)[0]}  # of each module
RUNS = [  # in part, the number of ranks changes from case to case
    pytest.param(*case, nproc, marks=() if case[1][0] in FIRST else pytest.mark.slow)
    for i, case in enumerate(CASES)
    for nproc in ([2, 3, 4] if THOROUGH else [2 + i % 2])
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "names", "nproc"), RUNS, ids=lambda part: part[0] if isinstance(part, list) else str(part)
)
def test_habits_give_what_one_process_gives(ranks, module, names, nproc):
    outcome = ranks.call(run_all, nproc, module, names)
    compare(outcome, nproc, {name: alone(module, name) for name in names}, rel=1e-9, abs=1e-11)
