import pytest
from test_habits import run_all, compare, alone, habits_of


@pytest.mark.parametrize("nproc", [2, 3])
def test_mine(ranks, nproc):
    names = habits_of("joined_habits")
    compare(
        ranks.call(run_all, nproc, "joined_habits", names),
        nproc,
        {n: alone("joined_habits", n) for n in names},
        rel=1e-9,
        abs=1e-11,
    )
