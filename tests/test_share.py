"""Every rank does its share: operations per rank and step, which do not depend on the machine, and losses as ever."""

import functools

import pytest
from share import KINDS, run_all
from share_kinds import BATCH, DRAWN

ALL_AT_ONCE = ["full batch regression", "physics informed"]
WHOLE = ["gru over packed sequences"]  # not split yet
pytestmark = pytest.mark.timeout(900)  # the first test of a number of ranks waits for all kinds


@pytest.fixture(scope="module")
def job(ranks):
    """Run all kinds of scripts in one job for each number of ranks."""
    return functools.cache(lambda nproc: ranks.call(run_all, nproc, [*KINDS], timeout=600).ok().results)


@pytest.mark.parametrize("nproc", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_computes_its_share(job, kind, nproc):
    (alone,), found = job(1), job(nproc)
    whole = alone[kind][0]
    busiest = [max(steps) for steps in zip(*(rank[kind][0] for rank in found), strict=True)]
    rows = 40 if kind in ALL_AT_ONCE else BATCH
    most = -(-rows // nproc) / rows  # where the rows cannot be dealt evenly, one rank has one more
    shares = [own / (count * most) for own, count in zip(busiest, whole, strict=True)]
    if kind in WHOLE:
        assert shares[-1] > 1.2  # take it off the list
        return
    assert max(shares[2:]) < 1.1, shares
    assert shares[-1] < 1.02, shares


@pytest.mark.parametrize("nproc", [2, 3, 4])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DRAWN])
def test_losses_are_those_of_one_process(job, kind, nproc):
    ((_, losses),) = [alone[kind] for alone in job(1)]
    for rank in job(nproc):
        assert rank[kind][1] == pytest.approx(losses, rel=1e-9)
