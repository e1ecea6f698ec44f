"""Who draws which random numbers: the script alike on every rank, rows apart, both by the seed."""

import copy
import os
import pickle
import random
import secrets
import sys
import time
import uuid

import numpy as np
import pytest
import torch
from accelerate.utils import set_seed as accelerate_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def all_three():
    return [torch.rand(()).item(), float(np.random.rand()), random.random(), torch.randperm(5).tolist()]


def seeded():
    drawn = []
    set_seed(3)
    drawn.append(all_three())
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    drawn.append(all_three())
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])
    drawn.append(all_three())
    with torch.random.fork_rng():
        torch.manual_seed(5)
        drawn.append(all_three())
    drawn.append(all_three())
    generators = torch.Generator().manual_seed(1), np.random.default_rng(2), random.Random(4), np.random.RandomState(6)
    drawn.append([torch.rand((), generator=generators[0]).item(), generators[1].random(), generators[2].random()])
    drawn.append(float(generators[3].rand()))
    model, rows = nn.Sequential(nn.Linear(2, 4), nn.Tanh()), DataLoader(TensorDataset(torch.randn(9, 2)), 5, True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in rows:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        drawn.append(all_three())
    drawn.append([str(value) for value in sorted({"a", "b", "c"}, key=hash)])
    return drawn


def unseeded():
    drawn = [all_three()]
    np.random.seed()
    random.seed()
    drawn.append(torch.seed())
    drawn.append(all_three())
    drawn.append([np.random.default_rng().random(), random.Random().random(), np.random.default_rng(None).random()])
    drawn.append([uuid.uuid4().hex, secrets.token_hex(4), os.urandom(3).hex(), secrets.randbelow(10**9)])
    seed = random.randint(1, 10**6)
    set_seed(seed)
    drawn += [seed, all_three(), list({"x", "y", "zz", "w"})]
    return drawn


def seeded_by_the_clock():
    drawn = []
    for seed in (torch.manual_seed, torch.cuda.manual_seed_all, np.random.seed, random.seed, set_seed, accelerate_seed):
        seed(time.time_ns() % 2**31)
        drawn.append(all_three())
    drawn.append([random.Random(time.time()).random(), np.random.RandomState(time.time_ns() % 2**31).rand()])
    drawn.append([np.random.RandomState().rand(), np.random.Generator(np.random.PCG64()).random()])
    drawn.append(
        [np.random.default_rng(time.time_ns()).random(), np.random.default_rng(np.random.SeedSequence()).random()]
    )
    random.seed(version=2)
    drawn.append([random.random(), isinstance(np.random.RandomState(3), np.random.RandomState)])
    same = pickle.loads(pickle.dumps(np.random.RandomState(3))), copy.deepcopy(np.random.default_rng(3))
    return [*drawn, [same[0].rand(), same[1].random(), random.Random(3).random(), np.random.RandomState(seed=3).rand()]]


def test_seeds_by_the_clock_are_rank_0s(ranks):
    results = ranks.call(seeded_by_the_clock, 3).ok().results
    assert results == [results[0]] * 3
    assert results[0][-1] == ranks.call(seeded_by_the_clock, 1).ok().results[0][-1]


class Own(random.Random):
    """As a game's or a sampler's."""

    def seed(self, a=None, version=2):
        super().seed(a, version)
        self.seeds = [*getattr(self, "seeds", []), a is None]


def seeded_later():
    """By a method of a generator that is there already."""
    made, own, drawn = random.Random(0), Own(0), []
    for generator in (made, own):
        for seed in ((), (time.time_ns(),), (7,), (None,)):
            generator.seed(*seed)
            drawn.append(generator.random())
        generator.seed(a=os.getpid(), version=1)
        drawn.append(generator.random())
    again = pickle.loads(pickle.dumps(made)), copy.deepcopy(made)
    return [drawn, own.seeds, [each.random() == made.random() for each in again[:1]]]


def test_a_generator_that_is_seeded_later_is_rank_0s(ranks):
    results = ranks.call(seeded_later, 3).ok().results
    assert results == [results[0]] * 3
    drawn, seeds, same = results[0]
    assert drawn[2] == drawn[7] == random.Random(7).random()
    assert drawn[4] == drawn[9]
    assert len({*drawn}) == len(drawn) - 2
    assert (seeds, same) == ([False, True, False, False, True, False], [True])


@pytest.mark.slow
def test_a_seeded_script_draws_what_one_process_draws(ranks):
    (wanted,) = ranks.call(seeded, 1).ok().results
    for nproc in (2, 3):
        assert ranks.call(seeded, nproc).ok().results == [wanted] * nproc


@pytest.mark.slow
def test_an_unseeded_script_draws_alike_on_every_rank_and_anew_in_every_run(ranks):
    runs = []
    for _ in range(2):
        results = ranks.call(unseeded, 3).ok().results
        assert results == [results[0]] * 3
        runs.append(results[0])
    for first, second in zip(runs[0][1:5], runs[1][1:5], strict=True):
        assert first != second


def drawn_by_a_library(folder):
    sys.path.insert(0, folder)
    import drawer

    return drawer.draw()


@pytest.mark.slow
def test_generators_that_a_library_makes_without_a_seed_draw_alike_on_every_rank(ranks, tmp_path):
    """Optuna's and Hyperopt's samplers and Gymnasium's environments do."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    folder.joinpath("drawer.py").write_text(
        "import random\nimport numpy as np\n\n\ndef draw():\n"
        "    made = np.random.RandomState(), np.random.default_rng(), random.Random(), np.random.PCG64()\n"
        "    made = [*made, np.random.Generator(np.random.PCG64(np.random.SeedSequence()))]\n"
        "    return [str(each.random_raw() if hasattr(each, 'random_raw') else each.random()) for each in made]\n"
    )
    first, second = (ranks.call(drawn_by_a_library, 2, str(folder)).ok().results for _ in range(2))
    assert first[0] == first[1]
    assert not set(first[0]) & set(second[0])


def masks(rows, extra):
    """The dropout masks of all rows, the last rank's behind ``extra`` rows of others."""
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5))
    nn.init.constant_(model[0].weight, 1.0)
    nn.init.constant_(model[0].bias, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    data = TensorDataset(torch.ones(rows + extra, 2))
    seen = []
    for _ in range(3):
        for (x,) in DataLoader(data, rows + extra):
            out = model(x)
            out.sum().backward()
            optimizer.step()
            seen.append((out.detach() != 0).long().tolist())
    return seen[1:]  # in its first call a model is observed, on batches


@pytest.mark.slow
def test_no_two_rows_have_a_mask_and_a_rank_draws_by_its_seed_alone(ranks):
    (six, *_) = ranks.call(masks, 2, 6, 0).ok().results
    (again, *_) = ranks.call(masks, 2, 6, 0).ok().results
    (seven, *_) = ranks.call(masks, 2, 6, 1).ok().results
    assert six == again
    assert len({tuple(mask) for batch in six for mask in batch}) == 12
    # The first rank has 3 rows of 6 and 4 of 7, the second 3 of both, with masks that do not depend on the first.
    assert [batch[4:] for batch in seven] == [batch[3:] for batch in six]


def drawn_again():
    """What dropout does to the rows after a script comes back to where it was: each entry is True on one process."""
    dropout = nn.DataParallel(nn.Dropout(0.5))
    (x,) = next(iter(DataLoader(TensorDataset(torch.ones(12, 20)), 12)))

    def mask():
        return dropout(x).clone()

    def same(one, other):
        return torch.equal(one, other)

    mask()  # decides how it is split
    torch.manual_seed(5)
    first, second = mask(), mask()
    torch.manual_seed(5)
    found = [same(mask(), first), same(mask(), second), not same(first, second)]
    state = torch.get_rng_state()
    first, second = mask(), mask()
    torch.set_rng_state(state)
    found += [same(mask(), first), same(mask(), second)]
    torch.set_rng_state(state)
    with torch.random.fork_rng():
        torch.manual_seed(6)
        inside = mask()
    found += [not same(inside, first), same(mask(), first)]
    torch.cuda.manual_seed(7)  # which says nothing about what is drawn on the host
    if not torch.cuda.is_available():
        found.append(same(mask(), second))
    return [found, (first != 0).sum().item()]


def test_rows_are_drawn_again_where_the_script_comes_back_to_a_seed_or_a_state(ranks):
    alone = ranks.call(drawn_again, 1).ok().results[0]
    assert all(alone[0])
    for found in ranks.call(drawn_again, 3).ok().results:
        assert found[0] == alone[0]
        assert found[1] != 0


class Drawing(torch.utils.data.Dataset):
    """An item that draws from every generator, and one that draws from a seed of its own and comes back."""

    def __init__(self, comes_back):
        self.comes_back = comes_back

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.comes_back:
            before = torch.get_rng_state()
            torch.manual_seed(index)
            torch.rand(3)
            torch.set_rng_state(before)
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])


def drawn_by_rows(keeps_state, comes_back, collated):
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    if keeps_state:
        torch.get_rng_state()
    loader = DataLoader(Drawing(comes_back), 4, shuffle=True, collate_fn=torch.stack if collated else None)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for _ in range(2):
        for x in loader:
            model(x).mean().backward()
            optimizer.step()
            seen += x.tolist()
    return seen


@pytest.mark.quick("keeps the state-comes back-collated", "--dealt")
@pytest.mark.parametrize("collated", [False, True], ids=["dealt", "collated"])
@pytest.mark.parametrize("comes_back", [False, True], ids=["", "comes back"])
@pytest.mark.parametrize("keeps_state", [False, True], ids=["", "keeps the state"])
def test_every_row_has_numbers_of_its_own_from_every_generator(ranks, keeps_state, comes_back, collated):
    seen = ranks.call(drawn_by_rows, 3, keeps_state, comes_back, collated).ok().results[0]
    for name, numbers in zip(("random", "numpy", "torch"), zip(*seen, strict=True), strict=True):
        assert len(set(numbers)) == 16, name


def test_the_accelerators_generator_stands_with_the_others(monkeypatch):
    from types import SimpleNamespace

    from ddp_patch import generators

    device = torch.Generator().manual_seed(5)
    module = SimpleNamespace(
        is_initialized=lambda: True, get_rng_state=device.get_state, set_rng_state=lambda state: device.set_state(state)
    )
    monkeypatch.setattr(generators, "_accelerator", lambda: module)
    before = generators.states()
    assert generators.same(before, generators.states())
    drawn = torch.rand(3, generator=device)
    assert not generators.same(before, generators.states())
    generators.set_states(before)
    assert generators.same(before, generators.states())
    with generators.same_draws() as draw_again:
        assert torch.equal(torch.rand(3, generator=device), drawn)
        draw_again()
        assert torch.equal(torch.rand(3, generator=device), drawn)
    module.is_initialized = lambda: False  # on another rank, say
    assert not generators.same(before, generators.states())
    generators.set_states(generators.states())
