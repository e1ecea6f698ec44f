"""Every rank does its share: operations per rank and step, which do not depend on the machine, and losses as ever."""

import functools

import pytest
from looks import looked
from share import KINDS, run_all
from share_kinds import BATCH, DRAWN

ALL_AT_ONCE = ["full batch regression", "physics informed"]
BY_LENGTH = ["gru over packed sequences"]  # rows cost what they are long
BUCKETS = {  # of one backward for each outermost module that it reaches; the small models have one bucket
    "gan": 3,  # the discriminator's, and both nets' of the generator's loss
    "time major": 3,
    "encoder and head": 2,
    "physics informed": 0,  # gradients of gradients
    "word vectors": 0,  # sparse gradients
    ("actor and critic", 4): 3,  # three environments are no batch for four ranks: its parts are found, one by one
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test of a number of ranks waits for all kinds


@pytest.fixture(scope="module")
def job(ranks):
    """Run all kinds of scripts in one job for each number of ranks."""
    return functools.cache(lambda nproc: ranks.call(run_all, nproc, [*KINDS], timeout=600).ok().results)


@pytest.mark.some("-2", "-3")
@pytest.mark.parametrize("nproc", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_computes_its_share(job, kind, nproc):
    (alone,), found = job(1), job(nproc)
    whole = alone[kind][0]
    busiest = [max(steps) for steps in zip(*(rank[kind][0] for rank in found), strict=True)]
    rows = 40 if kind in ALL_AT_ONCE else BATCH
    most = -(-rows // nproc) / rows  # where the rows cannot be dealt evenly, one rank has one more
    shares = [own / (count * most) for own, count in zip(busiest, whole, strict=True)]
    if kind in BY_LENGTH:
        together = [sum(steps) / count for *steps, count in zip(*(rank[kind][0] for rank in found), whole, strict=True)]
        assert max(together[2:]) < 1.02, together
        return
    assert max(shares[2:]) < 1.1, shares
    assert shares[-1] < 1.02, shares


@pytest.mark.some("-2", "-3")
@pytest.mark.parametrize("nproc", [2, 3, 4])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DRAWN])
def test_losses_are_those_of_one_process(job, kind, nproc):
    losses = job(1)[0][kind][1]
    for rank in job(nproc):
        assert rank[kind][1] == pytest.approx(losses, rel=1e-9)


@pytest.mark.some("-2", "-3")
@pytest.mark.parametrize("nproc", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_meet_once_for_gradients_and_exchange_no_decisions(job, kind, nproc):
    for rank in job(nproc):
        collectives = rank[kind][2]
        assert collectives.get("gradient bucket", 0) == BUCKETS.get((kind, nproc), BUCKETS.get(kind, 1))
        assert "all_gather_object" not in collectives


@pytest.mark.parametrize("kind", ["gpt with its loss", "gpt with its loss and dropout", "bert with labels"])
def test_a_loss_in_forward_costs_no_collective(job, kind):
    for rank in job(2):
        assert rank[kind][2] == {"gradient bucket": 1}


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("kind", ["get batch sequence first", "labelled and unlabelled"])
def test_joined_batches_are_not_gathered(job, kind, nproc):
    """``torch.cat`` and ``[T, B] -> [T*B]`` leave each rank's rows where they are, and cuts where they were joined."""
    for rank in job(nproc):
        assert not [name for name in rank[kind][2] if "gather" in name], rank[kind][2]


ON_THE_HOST = {  # lengths, the state of the host's generator, and how many rows of a table each rank has gradients of
    "gru over packed sequences": 2,
    "detection": 1,
    "detection in lists": 1,
    "detection in two stages": 1,
    "word vectors": 2,
    "batches of graphs": 6,  # copied there once: where graphs begin, and whether edges join none of them
    "experts by sorting": 3,  # whether nobody else holds what is put back, and the order that it is put back in
}
ASKED_ONCE = {
    "experts by sorting": 1,  # of what all ranks sort: whether it fits a byte, and lies in runs
    "a head without a loss": 1,  # which parameters have a gradient on no rank, as find_unused_parameters has DDP ask
}


@pytest.fixture(scope="module")
def looks(ranks):
    """Count in one job of each size how often steps look at values."""
    return functools.cache(lambda nproc: ranks.call(looked, nproc, [*KINDS], timeout=600).ok().results)


@pytest.mark.parametrize("kind", KINDS)
def test_a_steady_step_looks_at_no_value_that_one_process_does_not(looks, kind):
    """On an accelerator each look waits for it; what differs there from the CPU is as it is there."""
    ((alone, losses),) = [found[kind] for found in looks(1)]
    for own, found in [result[kind] for result in looks(2)]:
        assert own[-1] <= alone[-1] + ON_THE_HOST.get(kind, 0) + ASKED_ONCE.get(kind, 0)
        if kind not in DRAWN:
            assert found == pytest.approx(losses, rel=1e-9)
