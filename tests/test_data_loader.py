"""Each global batch holds the rows of one process, in its order, and each rank loads only its own."""

import random
import sys
from collections import OrderedDict, UserDict, UserList
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import ddp_patch

sys.path.insert(0, str(Path(__file__).parent))


class Squares(Dataset):
    """Counts what this process loads, and draws from every generator, as augmentation does."""

    def __init__(self, n):
        self.n = n
        self.loaded = []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.loaded.append(i)
        drawn = torch.tensor([torch.rand(()).item(), random.random(), np.random.rand()])
        return {"i": i, "square": torch.tensor([i * i]), "name": f"row {i}", "drawn": drawn}


def batches_of(**options):
    """One epoch of a loader: indices, names, rows of this rank, draws."""
    from ddp_patch.batch.tensor import BatchTensor

    torch.manual_seed(4)
    dataset = Squares(options.pop("n", 23))
    loader = DataLoader(dataset, **options)
    seen, kinds, draws = [], [], []
    for _ in range(2):
        for batch in loader:
            seen.append([batch["i"].tolist(), batch["square"].flatten().tolist(), list(batch["name"])])
            kinds.append(type(batch["i"]).__qualname__)
            draws.append(batch["drawn"].tolist())
            assert isinstance(batch["i"], BatchTensor) or len(batch["i"]) < 3
    after = [torch.rand(()).item(), random.random(), float(np.random.rand())]
    return {"seen": seen, "loaded": dataset.loaded, "kinds": kinds, "draws": draws, "len": len(loader), "after": after}


def alone(**options):
    torch.manual_seed(4)
    options = dict(options)
    dataset = Squares(options.pop("n", 23))
    loader = DataLoader(dataset, **options)
    return [
        [batch["i"].tolist(), batch["square"].flatten().tolist(), list(batch["name"])]
        for _ in range(2)
        for batch in loader
    ]


def call_batches(options):
    return batches_of(**options)


CONFIGS = [
    {"batch_size": 8},
    {"batch_size": 8, "drop_last": True, "num_workers": 2},
    {"batch_size": 11, "num_workers": 3, "persistent_workers": True},
    {"batch_size": 7, "n": 16},  # a last batch of two rows
    {"batch_size": 7, "n": 16, "num_workers": 1},
]


@pytest.mark.quick(
    "{'batch_size': 7, 'n': 16, 'num_workers': 1}-2", "{'batch_size': 8}-3", "'persistent_workers': True}-3"
)
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("options", CONFIGS, ids=str)
def test_batches_are_those_of_one_process(ranks, options, nproc):
    wanted = alone(**options)
    outcome = ranks.call(call_batches, nproc, options).ok()
    for result in outcome.results:
        assert result["seen"][: len(wanted)] == wanted
        assert result["len"] == len(result["seen"]) // 2
        assert result["draws"] == outcome.results[0]["draws"], "ranks see different values"
        assert result["after"] == outcome.results[0]["after"], "the script's generator differs between ranks"
    drawn = [tuple(row) for batch in outcome.results[0]["draws"] for row in batch]
    assert len({value for row in drawn for value in row}) == 3 * len(drawn), "two rows drew the same number"


def test_each_rank_loads_only_its_rows(ranks):
    outcome = ranks.call(call_batches, 3, {"batch_size": 8, "n": 22}).ok()
    loaded = [set(result["loaded"]) for result in outcome.results]
    assert set.union(*loaded) == set(range(22))
    assert sum(len(result["loaded"]) for result in outcome.results) == 44


def epoch_lines(kind):
    """Rows of every batch of a loader that cannot be dealt, or is iterated in an unusual way."""
    torch.manual_seed(1)
    data = torch.arange(20.0).view(20, 1)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data)

    def collate(rows):
        return torch.stack(rows).flip(0), [len(rows)] * len(rows)

    if kind == "iterable":
        return [batch.flatten().tolist() for batch in DataLoader(Stream(), batch_size=6)]
    if kind == "collate":
        return [
            [x.flatten().tolist(), n] for x, n in DataLoader(list(data), batch_size=6, shuffle=True, collate_fn=collate)
        ]
    if kind == "no batching":
        return [x.tolist() for x in DataLoader(list(data), batch_size=None)]
    loader = DataLoader(TensorDataset(data), batch_size=6, shuffle=True)
    other = DataLoader(TensorDataset(-data), batch_size=5, shuffle=True)
    if kind == "zip":
        return [
            (a[0] + 0).flatten().tolist() + (b[0] * 2).flatten().tolist() for a, b in zip(loader, other, strict=False)
        ]
    if kind == "peek":
        peeked = next(iter(loader))[0].flatten().tolist()
        return [peeked, *([x.flatten().tolist() for (x,) in loader])]
    if kind == "break":
        first = [x.flatten().tolist() for (x,) in loader][:2]
        for (x,) in loader:
            first.append(x.flatten().tolist())
            break
        return first + [x.flatten().tolist() for (x,) in loader]
    if kind == "batch_sampler":
        return [
            x.flatten().tolist()
            for (x,) in DataLoader(TensorDataset(data), batch_sampler=[[1, 2, 3, 4], [5], [19, 0, 7], []][:3])
        ]
    if kind == "tuple":
        batch = next(iter(DataLoader([(data[i], i, str(i)) for i in range(20)], batch_size=9)))
        return [type(batch).__name__, batch[0].flatten().tolist(), batch[1].tolist(), list(batch[2])]
    raise ValueError(kind)


@pytest.mark.quick("iterable", "peek", "batch_sampler")
@pytest.mark.parametrize(
    "kind", ["iterable", "collate", "no batching", "zip", "peek", "break", "batch_sampler", "tuple"]
)
def test_unusual_loaders_give_what_one_process_sees(ranks, kind):
    wanted = epoch_lines(kind)
    outcome = ranks.call(epoch_lines, 3, kind).ok()
    assert outcome.results == [wanted] * 3


def workers_used(asked):
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=4, num_workers=asked)
    iterator = iter(loader)
    list(iterator)
    return [loader.num_workers, iterator._num_workers, loader.batch_size, len(loader), type(loader.sampler).__name__]


def test_workers_are_divided_among_the_ranks_of_a_host(ranks):
    outcome = ranks.call(workers_used, 2, 3).ok()
    assert outcome.results == [[3, 2, 4, 2, "SequentialSampler"]] * 2


class Row(UserDict):
    """As tokenizers give them."""


def rows_of_every_kind():
    """Batches of what ``default_collate`` puts together."""
    kinds = [
        [Row(x=torch.tensor(float(i)), name=f"row {i}") for i in range(7)],
        [UserList([float(i), i]) for i in range(7)],
        [OrderedDict(x=float(i), name=f"row {i}") for i in range(7)],
        [(float(i), [i, "text"]) for i in range(7)],
        [[1] * (2 if i < 4 else 3) for i in range(7)],  # as long as the others of their batch
        [{"x": i} if i < 4 else {"y": float(i)} for i in range(7)],  # tasks in turn
    ]
    said = []
    for data in kinds:
        for batch in DataLoader(data, 4):
            items = batch.values() if isinstance(batch, (dict, UserDict)) else batch
            said.append([type(batch).__name__, *(plain(item) for item in items)])
    return said


def plain(item):
    if isinstance(item, str):
        return item
    return item.tolist() if isinstance(item, torch.Tensor) else [plain(each) for each in item]


@pytest.mark.quick("3")
@pytest.mark.parametrize("nproc", [2, 3])
def test_batches_of_every_kind_hold_all_rows(ranks, nproc):
    (wanted,) = ranks.call(rows_of_every_kind, 1).ok().results
    assert ranks.call(rows_of_every_kind, nproc).ok().results == [wanted] * nproc


MIXED = {
    "numbers": (
        [1, 2, 0.5, 1.5],
        ("this rank make int64, those of rank 1 make float64", "this rank make float64, those of rank 0 make int64"),
    ),
    "numbers that come later": ([1.0] * 4 + [1, 2, 0.5, 1.5], ("LockstepError",)),
    "shapes": (
        [torch.ones(3)] * 2 + [torch.ones(4)] * 2,
        ("make float32[3], those of rank 1", "make float32[4], those"),
    ),
    "lengths of lists": ([[1] * 2] * 2 + [[1] * 3] * 2, ("make [2: int64], those of rank 1", "make [3: int64], those")),
    "keys": ([{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"b": 3, "a": 4}, {"b": 3, "a": 4}], ("{'a': int64, 'b': int64}",)),
}


def read(kind):
    return [batch.sum().item() if isinstance(batch, torch.Tensor) else 0 for batch in DataLoader(MIXED[kind][0], 4)]


@pytest.mark.quick("keys")
@pytest.mark.parametrize("kind", MIXED)
def test_rows_whose_type_differs_from_rank_to_rank_are_an_error(ranks, kind):
    outcome = ranks.call(read, 2, kind)
    assert not outcome.late
    assert all(outcome.codes)
    said = "".join(outcome.stderr)
    assert any(words in said for words in MIXED[kind][1])  # the first rank that fails ends the job
    assert "an exchange of objects" in said or "Give all rows the same: float(value) in the dataset" in said


class Fails(Dataset):
    """Its first rows cannot be read."""

    def __len__(self):
        return 7

    def __getitem__(self, i):
        if i < 4:
            raise OSError("a disk that is away for a moment")
        return float(i)


def goes_on():
    batches, read = iter(DataLoader(Fails(), 4)), []
    for _ in range(2):
        try:
            batch = next(batches)
            read.append([batch.tolist(), batch.mean().item()])
        except OSError as error:
            read.append(str(error))
    return read


def test_a_script_that_catches_what_a_batch_raises_goes_on_with_the_next(ranks):
    assert ranks.call(goes_on, 2).ok().results == ranks.call(goes_on, 1).ok().results * 2


class Captioned(Dataset):
    """Rows beside texts, as pictures have captions."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.tensor([float(i)]), f"path {i}", [f"caption {i}.{j}" for j in range(5)], {"id": str(i)}


def captions():
    seen, before = [], 0
    for at, batch in enumerate(DataLoader(Captioned(), 4)):
        seen.append([batch[0].tolist(), batch[1], batch[2], batch[3]])
        if at == 0:  # in which ranks agree on the kind of batches
            before = _exchanges()
    return seen, _exchanges() - before


def _exchanges():
    report = ddp_patch.report()
    return 0 if report is None else report.ledger.collectives["all_gather_object"]


def test_all_texts_of_a_batch_travel_at_once(ranks):
    ((wanted, _),) = ranks.call(captions, 1).ok().results
    for seen, exchanges in ranks.call(captions, 3).ok().results:
        assert seen == wanted
        assert exchanges == 2  # of two further batches
