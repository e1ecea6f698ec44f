"""Every kind of loader that scripts have: the rows, their order, and what the script draws afterwards."""

import collections
import dataclasses
import itertools
import os
import queue
import random
import threading

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from parity import held_generators
from parity.gradient_habits import descend, everything
from torch.nn.utils.rnn import pad_sequence
from torch.optim import SGD
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)
from torch.utils.data._utils.collate import default_collate_fn_map
from tqdm import tqdm

import ddp_patch


class Rows(Dataset):
    """Row i is ``[i, i * i]``, its class ``i % 3``, its length ``1 + i % 5``."""

    def __init__(self, n=23):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.tensor([i, i * i], dtype=torch.float64), i % 3


class Sentences(Rows):
    def __getitem__(self, i):
        return {"text": f"row {i}", "ids": torch.arange(1 + i % 5) + i, "i": i}


class Noisy(Rows):
    """Augmented: draws from every generator."""

    def __getitem__(self, i):
        noise = torch.tensor([torch.rand(()).item(), random.random(), np.random.rand()], dtype=torch.float64)
        return torch.cat([super().__getitem__(i)[0], noise]), i % 3


class Stream(IterableDataset):
    def __init__(self, n=23, sharded=False):
        self.n, self.sharded = n, sharded

    def __iter__(self):
        worker = get_worker_info() if self.sharded else None
        for i in range(self.n):
            if worker is None or i % worker.num_workers == worker.id:
                yield torch.tensor([i, i * i], dtype=torch.float64)


class NumpyOrder(Sampler):
    def __init__(self, n, draw=np.random.permutation):
        self.n, self.draw = n, draw

    def __iter__(self):
        return iter([int(i) for i in self.draw(self.n)])

    def __len__(self):
        return self.n


class Buckets(Sampler):
    """Batches of one length, of varying size, drawn one at a time from a generator that the script draws from too."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for _ in range(6):
            length = np.random.randint(5)
            yield [i for i in range(self.n) if i % 5 == length][: np.random.randint(1, 6)]

    def __len__(self):
        return 6


def said(value):
    """All numbers and texts in a batch, in order."""
    if isinstance(value, torch.Tensor):
        return [float(v) for v in value.flatten().tolist()]
    if isinstance(value, np.ndarray):
        return [float(v) for v in value.ravel()]
    if isinstance(value, str):
        return [float(ord(letter)) for letter in value]
    if isinstance(value, dict):
        return [v for item in value.values() for v in said(item)]
    if isinstance(value, (list, tuple)):
        return [v for item in value for v in said(item)]
    if hasattr(value, "__dict__"):
        return said(vars(value))
    return [float(value)] if isinstance(value, (bool, int, float, np.number)) else []


def epochs(loader, count=2, between=True):
    """What a script sees of a loader, with draws of its own between the batches."""
    seen = []
    for _ in range(count):
        for batch in loader:
            seen += said(batch)
            if between:
                seen += draws()
        seen.append(-1.0)
    return seen + draws()


def draws():
    """Of every generator, one number and one of the normal numbers, which they make in pairs and keep one of."""
    uniform = torch.rand(()).item(), float(np.random.rand()), random.random()
    return [*uniform, torch.randn(()).item(), np.random.randn(), random.gauss(0, 1)]


# --- samplers ---------------------------------------------------------------------------------------------------------


def shuffled():
    return epochs(DataLoader(Rows(), 6, shuffle=True)) + epochs(
        DataLoader(Rows(), 6, shuffle=True, generator=torch.Generator().manual_seed(7))
    )


def weighted_subset_and_replaced():
    return (
        epochs(DataLoader(Rows(), 5, sampler=WeightedRandomSampler(torch.arange(1.0, 24), 17)))
        + epochs(DataLoader(Rows(), 5, sampler=SubsetRandomSampler(range(3, 20))))
        + epochs(DataLoader(Rows(), 5, sampler=RandomSampler(range(23), replacement=True, num_samples=11)))
    )


def ten_thousand_million_draws():
    loader = DataLoader(Rows(), 5, sampler=RandomSampler(range(23), replacement=True, num_samples=10**10))
    return [v for batch in itertools.islice(loader, 4) for v in said(batch)] + [float(len(loader))]


def samplers_of_ones_own():
    return (
        epochs(DataLoader(Rows(), 6, sampler=NumpyOrder(23)))
        + epochs(DataLoader(Rows(), 6, sampler=NumpyOrder(23, torch.randperm)))
        + epochs(DataLoader(Rows(), 6, sampler=NumpyOrder(23, lambda n: random.sample(range(n), n))))
    )


def batch_samplers():
    return (
        epochs(DataLoader(Rows(), batch_sampler=Buckets(23)))
        + epochs(DataLoader(Rows(), batch_sampler=BatchSampler(NumpyOrder(23), 7, True)))
        + epochs(DataLoader(Rows(), batch_sampler=[[1, 2, 3, 4], (5,), range(7, 12)]))
    )


def drawn_ahead_for_workers():
    """Samplers that draw for each batch from generators that the script draws from as well."""
    return (
        epochs(DataLoader(Rows(), batch_sampler=Buckets(23), num_workers=3))
        + epochs(DataLoader(Rows(), batch_sampler=Buckets(23), num_workers=2, prefetch_factor=1))
        + epochs(DataLoader(Rows(), batch_sampler=Buckets(23), num_workers=2, collate_fn=padded_rows))
    )


class Eager(Sampler):
    """Draws as soon as it is asked for an iterator."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        order = np.random.permutation(self.n).tolist()
        return iter([order[i : i + 4] for i in range(0, self.n, 4)])

    def __len__(self):
        return -(-self.n // 4)


def samplers_that_draw_at_once():
    return (
        epochs(DataLoader(Rows(), batch_sampler=Eager(23)))
        + epochs(DataLoader(Rows(), batch_sampler=Eager(23), num_workers=2))
        + epochs(DataLoader(Rows(), batch_sampler=Eager(23), num_workers=2, collate_fn=padded_rows))
        + epochs(DataLoader(Rows(), batch_sampler=Eager(23), collate_fn=padded_rows))
        + epochs(
            DataLoader(Rows(), batch_sampler=Eager(23), num_workers=1, persistent_workers=True, collate_fn=padded_rows),
            3,
        )
    )


def padded_rows(samples):
    return torch.stack([row for row, _ in samples])


def an_endless_sampler():
    class Endless(Sampler):
        def __iter__(self):
            while True:
                yield int(torch.randint(23, ()))

    return [v for batch in itertools.islice(DataLoader(Rows(), 4, sampler=Endless()), 7) for v in said(batch)]


def splits_without_a_seed():
    first, second = random_split(Rows(), [15, 8])
    order = np.random.permutation(23)
    return epochs(DataLoader(first, 4)) + epochs(DataLoader(second, 4)) + epochs(DataLoader(Subset(Rows(), order), 9))


# --- batches ----------------------------------------------------------------------------------------------------------


def sizes():
    return (
        epochs(DataLoader(Rows(), batch_size=1))
        + epochs(DataLoader(Rows(2), batch_size=8))
        + epochs(DataLoader(Rows(9), batch_size=4, drop_last=True))
        + epochs(DataLoader(Rows(), batch_size=None))
        + epochs(DataLoader(Rows(3), batch_size=1, num_workers=1))
        + epochs(DataLoader(Rows(), batch_sampler=[[0, 1, 2], [3]], num_workers=2))
    )


def texts_and_objects():
    Pair = collections.namedtuple("Pair", "x about")

    class Described(Rows):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return {"pair": Pair(x, {"text": f"row {i}", "y": [y, float(y)]}), "bytes": bytes([i])}

    batches = list(DataLoader(Described(), 7))
    assert type(batches[0]["pair"]).__name__ == "Pair"
    return [v for batch in batches for v in said({"pair": batch["pair"], "bytes": [b[0] for b in batch["bytes"]]})]


# --- collate functions ------------------------------------------------------------------------------------------------


def padded(samples):
    ids = torch.nn.utils.rnn.pad_sequence([sample["ids"] for sample in samples], batch_first=True)
    return {"ids": ids, "mask": ids > 0, "text": [sample["text"] for sample in samples]}


def padding_to_the_longest():
    said = []
    for workers, choose in (
        (0, None),
        (2, None),
        (0, ddp_patch.shard_batch),
        (2, ddp_patch.shard_batch),
        (0, ddp_patch.read_once),
    ):
        loader = DataLoader(Sentences(), 6, shuffle=True, collate_fn=padded, num_workers=workers)
        said += epochs(choose(loader) if choose else loader)
    return said


def several_small_batches():
    def halves(samples):
        rows = padded_rows(samples)
        return [rows[: len(rows) // 2], rows[len(rows) // 2 :]]

    return epochs(DataLoader(Rows(), 6, collate_fn=halves)) + epochs(DataLoader(Rows(), 2, collate_fn=halves))


def mixing_while_collating():
    def mixed(samples):
        rows = padded_rows(samples)
        share = np.random.beta(0.4, 0.4)
        return share * rows + (1 - share) * rows[torch.randperm(len(rows))], random.random()

    dealt = ddp_patch.shard_batch(DataLoader(Rows(), 6, shuffle=True, collate_fn=mixed))
    return epochs(DataLoader(Rows(), 6, shuffle=True, collate_fn=mixed)) + epochs(dealt)


def augmented_where_one_rank_reads():
    plain = ddp_patch.read_once(DataLoader(Noisy(), 6, shuffle=True))
    workers = ddp_patch.read_once(DataLoader(Noisy(), 6, shuffle=True, num_workers=2))
    return epochs(plain) + epochs(workers) + epochs(DataLoader(Noisy(), 6, collate_fn=padded_rows, num_workers=1))


class Several(Rows):
    """Gives all samples of a batch at once, and looks at all of them."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def __getitems__(self, indices):
        return self.change([self[i][0] for i in indices])


def centred(rows):
    return [row - sum(rows) / len(rows) for row in rows]


def doubled(rows):
    return [row * factor for row in rows for factor in (1, -0.5)]


def filtered(rows):
    return [row for row in rows if row.sum() % 2 < 1] or rows


def datasets_that_give_several_samples_at_once():
    seen = []
    for change in (centred, doubled, filtered):
        seen += epochs(DataLoader(Several(change), 6, shuffle=True))
        seen += epochs(DataLoader(Subset(Several(change), range(1, 20)), 5, shuffle=True))
    return seen + epochs(DataLoader(StackDataset(Several(centred), Rows()), 6))


@dataclasses.dataclass
class Graphs:
    nodes: torch.Tensor
    edges: torch.Tensor
    sizes: np.ndarray


class Held:
    def __init__(self, rows):
        self.rows, self.count, self.flat = rows, len(rows), rows.numpy().ravel()


def objects_of_ones_own():
    def graphs(samples):
        rows = padded_rows(samples)
        return Graphs(rows, torch.arange(2 * len(rows)).view(2, -1), np.full(len(rows), 2))

    def held(samples):
        return Held(padded_rows(samples)), "text", None, {"empty": torch.zeros(0, 3), "number": torch.tensor(2.5)}

    return epochs(DataLoader(Rows(), 6, collate_fn=graphs)) + epochs(DataLoader(Rows(), 6, collate_fn=held))


def batches_that_cannot_be_pickled():
    def unportable(samples):
        return padded_rows(samples), lambda x: x + 1

    loader = DataLoader(Rows(), 6, shuffle=True, collate_fn=unportable)
    return [v for _ in range(2) for rows, call in loader for v in [*said(call(rows)), random.random()]]


def kinds_of_tensors():
    def kinds(samples):
        rows = padded_rows(samples)
        return {
            "half": rows.half(),
            "bool": rows > 3,
            "complex": torch.complex(rows, -rows).conj().imag,
            "view": rows.t(),
            "scalar": rows.sum(),
            "parameter": torch.nn.Parameter(rows),
            "sparse": rows.to_sparse().to_dense(),
        }

    return epochs(DataLoader(Rows(), 6, collate_fn=kinds))


def a_collate_that_fails_and_is_skipped():
    def failing(samples):
        if any(int(row[0]) == 9 for row, _ in samples):
            raise KeyError("bad row")
        return padded_rows(samples)

    seen = []
    for loader in (DataLoader(Rows(), 4, collate_fn=failing), DataLoader(Rows(), 4, collate_fn=failing, num_workers=2)):
        batches = iter(loader)
        while True:
            try:
                seen += said(next(batches))
            except StopIteration:
                break
            except KeyError as error:
                seen.append(float("bad row" in str(error)))
    return seen


def generators_shared_with_the_script():
    rng, noise = np.random.default_rng(3), torch.Generator().manual_seed(5)

    class Drawing(Rows):
        def __init__(self):
            super().__init__()
            self.rng = rng

        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return x + self.rng.random(), y

    def drawn(samples):
        return padded_rows(samples) + torch.rand((), generator=noise)

    seen = []
    for loader in (DataLoader(Drawing(), 6), DataLoader(Rows(), 6, collate_fn=drawn), DataLoader(Rows(), 6)):
        for batch in loader:
            seen += [*said(batch), float(rng.random()), torch.rand((), generator=noise).item()]
    return seen


def tensors_that_share_memory():
    def twice(samples):
        rows = padded_rows(samples)
        return rows, rows, rows.clone()

    def views(samples):
        rows = padded_rows(samples)
        return rows[:, :1], rows[:, 0:], rows.t().clone().t()

    seen = []
    for collate in (twice, views):
        for first, second, third in DataLoader(Rows(), 6, collate_fn=collate):
            first.mul_(2)
            seen += said([first, second, third])
    return seen


def sparse_tensors():
    return [
        v
        for rows, tail in DataLoader(Rows(), 6, collate_fn=lambda s: (padded_rows(s).to_sparse(), padded_rows(s)))
        for v in said([rows.to_dense(), tail])
    ]


class DataError(Exception):
    def __init__(self, path, why):
        super().__init__(f"{path}: {why}")
        self.path = path


def errors_of_ones_own():
    def failing(samples):
        if any(int(row[0]) == 9 for row, _ in samples):
            raise DataError("a file", "broken")
        return padded_rows(samples)

    batches, seen = iter(DataLoader(Rows(), 4, collate_fn=failing)), []
    while True:
        try:
            seen += said(next(batches))
        except StopIteration:
            return seen
        except Exception as error:
            seen += said(str(error)) + said(type(error).__name__)


def kept_workers_and_a_generator():
    generator = torch.Generator().manual_seed(2)
    loader = DataLoader(
        Rows(), 6, shuffle=True, generator=generator, num_workers=1, persistent_workers=True, collate_fn=padded_rows
    )
    return [*epochs(loader, 3), torch.rand((), generator=generator).item()]


# --- streams ----------------------------------------------------------------------------------------------------------


def streams():
    return (
        epochs(DataLoader(Stream(), 6))
        + epochs(DataLoader(Stream(), 6, drop_last=True))
        + epochs(DataLoader(Stream(), batch_size=None))
        + epochs(DataLoader(Stream(1), 6))
        + epochs(DataLoader(Stream(0), 6))
    )


def streams_with_workers():
    return epochs(DataLoader(Stream(sharded=True), 6, num_workers=2)) + epochs(DataLoader(Stream(), 5, num_workers=1))


def a_stream_that_draws():
    class Drawing(IterableDataset):
        def __iter__(self):
            for _ in range(14):
                yield torch.tensor([torch.rand(()).item(), random.random(), np.random.rand()])

    return epochs(DataLoader(Drawing(), 4))


# --- ways of iterating ------------------------------------------------------------------------------------------------


def peeking_and_breaking():
    loader = DataLoader(Rows(), 6, shuffle=True)
    stream = DataLoader(Stream(), 6)
    seen = said(next(iter(loader))) + said(next(iter(stream)))
    for batch in stream:
        seen += said(batch)
        break
    return seen + epochs(loader) + epochs(stream)


def cycling_and_zipping():
    loader, stream = DataLoader(Rows(), 6, shuffle=True), DataLoader(Stream(), 5)
    seen = [v for batch in itertools.islice(itertools.cycle(loader), 9) for v in said(batch)]
    return seen + [v for pair in zip(loader, stream, loader, strict=False) for v in said(pair)]


def nested_loops():
    loader = DataLoader(Rows(9), 4, shuffle=True, collate_fn=padded_rows)
    return [v for outer in loader for inner in loader for v in said([outer, inner])]


def loaders_of_ones_own():
    class Device(DataLoader):
        def __iter__(self):
            for rows, labels in super().__iter__():
                yield rows * 2, labels

        def __len__(self):
            return super().__len__() + 100

    class ByClass(DataLoader):
        def __iter__(self):
            yield from DataLoader.__iter__(self)

    loader = Device(Rows(), 6, shuffle=True)
    by_class = ByClass(Rows(), 6, shuffle=True)
    found = [*epochs(loader), float(len(loader)), float(type(loader) is Device), *epochs(by_class)]
    return [*found, *said(next(DataLoader.__iter__(DataLoader(Rows(), 6)))), *said(next(iter(by_class)))]


def workers_kept_over_epochs():
    loader = DataLoader(Rows(), 6, shuffle=True, num_workers=2, persistent_workers=True)
    whole = DataLoader(Rows(), 6, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=padded_rows)
    return epochs(loader, 3) + epochs(whole, 3)


class DealsItself(IterableDataset):
    """As webdataset and others do: by torch.distributed, or by the launcher's variables, and by worker."""

    def __init__(self, by):
        self.by = by

    def __iter__(self):
        rank, size = 0, 1
        if self.by == "group" and torch.distributed.is_initialized():
            rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        elif self.by == "variables":
            rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for i in range(rank * step + first, 24, size * step):
            yield torch.tensor([i, i + 1], dtype=torch.float64), i % 3


def datasets_that_deal_themselves():
    return [
        value
        for by in ("group", "variables")
        for workers in (0, 2)
        for value in epochs(DataLoader(DealsItself(by), 4, num_workers=workers))
    ]


class Noted(Sampler):
    """Asks the system for a seed, and writes down what it draws."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        np.random.default_rng().random()
        with open("order.log", "a") as log:
            log.write("x")
        return iter(range(self.n))

    def __len__(self):
        return self.n


def samplers_that_write():
    for collate in (None, padded_rows):
        loader = DataLoader(Rows(), 6, sampler=Noted(23), collate_fn=collate)
        seen = epochs(loader)
    written = open("order.log").read()
    os.remove("order.log")
    return [*seen, float(len(written))]


def data_pipes():
    from torch.utils.data.datapipes.iter import IterableWrapper

    def pipe():
        rows = [(torch.tensor([i, -i], dtype=torch.float64), i) for i in range(20)]
        return IterableWrapper(rows).shuffle().sharding_filter()

    generator = torch.Generator().manual_seed(1)
    return (
        epochs(DataLoader(pipe(), 4, shuffle=True))
        + epochs(DataLoader(pipe(), 4, num_workers=2, shuffle=True))
        + epochs(DataLoader(pipe(), 4, num_workers=1, persistent_workers=True, generator=generator), 3)
    )


def other_ways_to_start_workers():
    spawned = DataLoader(Rows(8), 4, num_workers=1, multiprocessing_context="spawn")
    forked = DataLoader(Rows(8), 4, num_workers=1, multiprocessing_context="forkserver", collate_fn=padded_rows)
    return epochs(spawned, 1) + epochs(forked, 1)


def a_loader_that_keeps_its_position():
    from torchdata.stateful_dataloader import StatefulDataLoader

    def fresh():
        return StatefulDataLoader(Rows(), 6, shuffle=True, generator=torch.Generator().manual_seed(3))

    loader, seen = fresh(), []
    for batch in loader:
        seen += said(batch)
        if len(seen) > 30:
            break
    again = fresh()
    again.load_state_dict(loader.state_dict())
    return seen + epochs(again) + epochs(StatefulDataLoader(Stream(), 6, num_workers=1))


def a_new_loader_every_epoch():
    return [v for epoch in range(3) for v in epochs(DataLoader(Rows(9 + epoch), 4, shuffle=True), 1)]


class Sorted:
    """An iterator that works on what another one gives, in this process."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return self

    def __next__(self):
        rows, classes = next(self.batches)
        if rows is None:
            raise TypeError("no rows")
        return rows.flip(0), classes

    def __len__(self):
        return len(self.batches)


class Flipping(DataLoader):
    """Whose iterator is wrapped, as those of graph libraries are."""

    def __init__(self, dataset, size, **options):
        super().__init__(dataset, size, collate_fn=self.collate, **options)

    def collate(self, samples):
        return padded_rows(samples), torch.tensor([label for _, label in samples])

    def _get_iterator(self):
        return Sorted(super()._get_iterator())


def iterators_that_work_on_batches():
    return epochs(Flipping(Rows(), 6, shuffle=True)) + epochs(Flipping(Rows(), 6, num_workers=2))


class Jitter:
    def __init__(self):
        self.rng = np.random.default_rng(5)

    def __call__(self, row):
        return row + self.rng.normal()


class Compose:
    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, row):
        for step in self.steps:
            row = step(row)
        return row


class JitterModule(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rng = random.Random(5)

    def forward(self, row):
        return row + self.rng.random()


class Changed(Rows):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def __getitem__(self, i):
        row, label = super().__getitem__(i)
        return self.change(row), label


class ClassWide(Rows):
    noise = np.random.default_rng(7)

    def __getitem__(self, i):
        row, label = super().__getitem__(i)
        return row + self.noise.normal(), label


_rng = random.Random(9)


class InAComprehension(Rows):
    def __getitem__(self, i):
        row, label = super().__getitem__(i)
        return row + sum([_rng.random() for _ in range(2)]) + sum(_rng.random() for _ in range(2)), label


class InAModule(Rows):
    def __getitem__(self, i):
        row, label = super().__getitem__(i)
        return row + held_generators.rng.random(), label


class AsDefault(Rows):
    def __getitem__(self, i, rng=random.Random(11)):
        row, label = super().__getitem__(i)
        return row + rng.random(), label


def generators_that_are_deep_in_a_dataset():
    ClassWide.noise = np.random.default_rng(7)  # each is drawn from again by the next run of this process
    _rng.seed(9)
    held_generators.rng.seed(3)
    AsDefault.__getitem__.__defaults__[0].seed(11)
    folds = random_split(Changed(Compose(Jitter())), [12, 11], generator=torch.Generator().manual_seed(0))
    joined = torch.utils.data.ConcatDataset([Changed(Compose(Compose(Jitter()))), Rows(2)])
    return [
        *epochs(DataLoader(folds[0], 5)),
        *epochs(DataLoader(Subset(joined, range(11)), 4)),
        *epochs(DataLoader(Changed(JitterModule()), 6)),
        *epochs(DataLoader(ClassWide(), 6)),
        *epochs(DataLoader(InAComprehension(), 6)),
        *epochs(DataLoader(InAModule(), 6)),
        *epochs(DataLoader(AsDefault(), 6)),
    ]


class Counting(IterableDataset):
    """Whose length is found by reading it, which draws."""

    def __len__(self):
        return len(list(iter(self)))

    def __iter__(self):
        order = list(range(17))
        random.shuffle(order)
        return iter([torch.tensor([float(i)]) for i in order])


class OneShot(IterableDataset):
    def __init__(self):
        self.left = iter(range(17))

    def __len__(self):
        return sum(1 for _ in self.left)

    def __iter__(self):
        return (torch.tensor([float(i)]) for i in self.left)


class CountedByDrawing(Sampler):
    def __init__(self):
        self.calls = 0

    def __len__(self):
        self.calls += 100
        return sum(1 for _ in self)

    def __iter__(self):
        self.calls += 1
        order = torch.randperm(23).tolist()
        return iter([order[at : at + 6] for at in range(0, 23, 6)])


class NoLength(IterableDataset):
    def __len__(self):
        return self.found  # set while it is read

    def __iter__(self):
        self.found = 9
        return iter(torch.arange(9.0).split(1))


def lengths_that_one_process_does_not_ask():
    batches = CountedByDrawing()
    found = epochs(DataLoader(Counting(), 4)) + epochs(DataLoader(OneShot(), 4), 1)
    found += [*epochs(DataLoader(Rows(), batch_sampler=batches)), float(batches.calls)]
    return found + epochs(DataLoader(NoLength(), 2))


def loaders_over_batches():
    """What another loader gave, kept in a list."""
    kept = list(DataLoader(Rows(80), 2))
    found = epochs(DataLoader(kept, batch_size=None, shuffle=True))
    found += epochs(DataLoader(kept[:6], batch_size=None))
    found += epochs(DataLoader(kept, batch_size=1, shuffle=True, collate_fn=lambda batches: batches[0]))
    found += epochs(DataLoader(kept[:8], batch_size=3)) + epochs(DataLoader(Subset(kept, [3, 1, 2]), batch_size=2))
    return found + epochs(ddp_patch.read_once(DataLoader(Stored(kept), batch_size=2)))


def features_of_a_first_pass():
    """Kept as batches, and read by workers."""
    rows = torch.cat([rows for rows, _ in DataLoader(Rows(), 6)])
    labels = torch.cat([label for _, label in DataLoader(Rows(), 6)])
    found = epochs(DataLoader(torch.utils.data.TensorDataset(rows * 2, labels), 5, shuffle=True))
    return found + epochs(DataLoader(torch.utils.data.TensorDataset(rows * 2, labels), 5, shuffle=True, num_workers=2))


class Stored(Dataset):
    def __init__(self, kept):
        self.kept = kept

    def __len__(self):
        return len(self.kept)

    def __getitem__(self, i):
        return self.kept[i]


class Flat(IterableDataset):
    """Reads another loader."""

    def __iter__(self):
        for rows, _ in DataLoader(Rows(), 4, shuffle=True):
            yield from rows


class Bags(Dataset):
    """Each item is read by a loader of its own: slides of tiles, documents of pages."""

    def __len__(self):
        return 7

    def __getitem__(self, i):
        bag = [rows.sum(0) for rows, _ in DataLoader(Rows(4 + i), 2)]
        return torch.stack(bag).mean(0), i


def loaders_within_datasets():
    found = epochs(DataLoader(Flat(), 5))
    bags = [said(batch) for workers in (0, 2) for batch in DataLoader(Bags(), 3, num_workers=workers)]
    return [*found, *itertools.chain(*bags)]


class ShufflesItself(Sampler):
    """Draws from a generator of its own, and counts."""

    def __init__(self, count):
        self.count, self.rng, self.epoch = count, random.Random(4), 0

    def __len__(self):
        return self.count

    def __iter__(self):
        self.epoch += 1
        order = list(range(self.count))
        for _ in range(self.epoch):
            self.rng.shuffle(order)
        return iter(order)


def batches_that_cannot_be_pickled_from_generators():
    def unportable(samples):
        return padded_rows(samples), lambda x: x + 1

    def noisy(samples, rng=np.random.default_rng(8)):
        return padded_rows(samples) + rng.normal(), lambda x: x + 1

    found = []
    for options in (
        {"shuffle": True, "generator": torch.Generator().manual_seed(0), "collate_fn": unportable},
        {"sampler": ShufflesItself(23), "collate_fn": unportable},
        {"shuffle": True, "collate_fn": noisy},
    ):
        noisy.__defaults__ = (np.random.default_rng(8),)
        loader = DataLoader(Noisy(), 6, **options)
        found += [v for _ in range(2) for rows, call in loader for v in [*said(call(rows)), random.random()]]
    return found


class Closing(DataLoader):
    """Closes what it reads when it goes."""

    is_open = True

    def __del__(self):
        self.dataset.is_open = False


class Open(Rows):
    is_open = True

    def __getitem__(self, i):
        if not self.is_open:
            raise OSError("closed")
        return super().__getitem__(i)


def loaders_that_close_what_they_read():
    return epochs(Closing(Open(), 6)) + epochs(Closing(Open(), 6, collate_fn=lambda rows: padded_rows(rows)))


def batches_of_fewer_rows_than_ranks():
    return epochs(DataLoader(Noisy(5), 1, num_workers=2, shuffle=True))


class Barred(Rows):
    """Shows a bar, whose lock all bars of a process share, while it is made."""

    def __init__(self):
        super().__init__()
        self.items = [super(Barred, self).__getitem__(i) for i in tqdm(range(self.n), disable=True)]

    def __getitem__(self, i):
        return self.items[i]


def datasets_that_show_bars():
    loader = DataLoader(Barred(), 6, shuffle=True, num_workers=1, persistent_workers=True)
    found = epochs(loader, 1)
    if ddp_patch.is_main():
        tqdm([], disable=True)
    return found + epochs(loader, 2) + epochs(DataLoader(Barred(), 6))


class Drawing(IterableDataset):
    """Makes its generator as it is read, as some do for each of their workers."""

    def __iter__(self):
        self.drawn = random.Random(0)
        for _ in range(8):
            yield torch.tensor([self.drawn.random()], dtype=torch.float64)


class DrawingItems(Dataset):
    """Likewise, with the first item."""

    def __init__(self, seed=3):
        self.drawn, self.seed = None, seed

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if self.drawn is None:
            self.drawn = np.random.default_rng(self.seed)
        return torch.tensor([i + self.drawn.random()], dtype=torch.float64)


def generators_made_by_reading():
    return epochs(DataLoader(Drawing(), 4), 3) + epochs(DataLoader(DrawingItems(), 4, collate_fn=torch.stack), 3)


class Box:
    def __init__(self, number):
        self.number = number


def types_that_default_collate_was_told_of():
    default_collate_fn_map[Box] = lambda boxes, *, collate_fn_map=None: list(boxes)
    try:
        rows = [{"x": torch.full((2,), float(i)), "box": Box(i)} for i in range(10)]
        found = []
        for batch in DataLoader(rows, 4):
            found += [batch["x"].sum().item(), *(box.number for box in batch["box"])]
    finally:
        del default_collate_fn_map[Box]
    return found


def tells_default_collate(samples):
    """As MONAI's ``list_data_collate`` does, wherever it runs."""
    default_collate_fn_map[Box] = lambda boxes, *, collate_fn_map=None: list(boxes)
    return default_collate(samples)


def types_that_another_loader_tells_default_collate_of():
    before = DataLoader(Rows(), 6, shuffle=True)
    found = epochs(before, 1)
    try:
        found += epochs(DataLoader(Rows(), 6, collate_fn=tells_default_collate), 1)
        return found + epochs(before) + epochs(DataLoader(Rows(), 6, shuffle=True), 3)
    finally:
        default_collate_fn_map.pop(Box, None)


class Scored(Rows):
    """Scores what it reads by the model that is trained: hard examples, retrieval, bags of tiles."""

    def __init__(self, net, **options):
        super().__init__(8)
        self.net, self.options = net, options

    def __getitem__(self, i):
        window = torch.stack([super(Scored, self).__getitem__(i + j)[0] for j in range(8)])
        with torch.no_grad():
            return i, self.net(window).sum().item()


def datasets_that_call_the_model():
    """Each rank for its own rows, one for all, and in workers."""
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    for rows, _ in DataLoader(Rows(), 8):
        net(rows).sum().backward()
        optimizer.step()
    in_bags = Scored(torch.nn.DataParallel(net))
    kinds = ({}, {"collate_fn": lambda samples: default_collate(samples[::-1])}, {"num_workers": 2}, {"batch_size": 3})
    found = epochs(DataLoader(in_bags, 4))
    for kind in kinds:
        found += epochs(DataLoader(Scored(net), **{"batch_size": 4, **kind}))
    return found


class Both(Rows):
    def __init__(self, first, second):
        super().__init__(16)
        self.first, self.second = first, second

    def __getitem__(self, i):
        return self.first[i] if i < 8 else self.second[i - 8]


def datasets_over_several_batches():
    """Ranks come to other ones of them first."""
    (rows, _) = next(iter(DataLoader(Rows(), 8)))
    found = epochs(DataLoader(Both(rows[:, 0] * 1, rows[:, 1] + 100), 16))
    return found + epochs(DataLoader(torch.utils.data.ConcatDataset([Stored(rows * 2), Stored(rows * 3)]), 16))


def threads_that_read_first():
    """Beside threads that rank 0 alone has, as those of tensorboard."""
    if ddp_patch.rank() == 0:
        threading.Thread(target=int).start()
    ahead = queue.Queue()
    loader = DataLoader(Rows(), 4)

    def read():
        for rows, _ in loader:
            ahead.put(rows)
        ahead.put(None)

    threading.Thread(target=read, daemon=True).start()
    return [float(value) for rows in iter(ahead.get, None) for value in said(rows)]


def workers_that_start_anew():
    """``loader._iterator = None`` gives kept workers up, for some that see what has changed."""
    found = []
    for options in ({}, {"collate_fn": lambda samples: default_collate(samples)}):
        dataset = Scaled()
        loader = DataLoader(dataset, 4, num_workers=2, persistent_workers=True, **options)
        for epoch in range(4):
            found += epochs(loader, 1)
            dataset.scale *= 10
            if epoch % 2:
                loader._iterator = None
    return found


class Scaled(Rows):
    scale = 1

    def __getitem__(self, i):
        rows, label = super().__getitem__(i)
        return rows * self.scale, label


class FlippingCollated(DataLoader):
    def _get_iterator(self):
        return (said(batch)[::-1] for batch in super()._get_iterator())


def iterators_that_change_collated_batches():
    return [value for batch in FlippingCollated(Rows(), 4) for value in batch]


class Encoding(collections.UserDict):
    """What tokenizers give: a dict by another name, which can be moved."""

    def to(self, device):
        self.data = {name: value.to(device) for name, value in self.items()}
        return self


class Encoded(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 3), 0

    def forward(self, batch):
        self.seen += 1
        return self.layer(batch["x"]) * batch["scale"][:, None]


def batches_in_a_dict_by_another_name():
    rows = [(torch.linspace(-1, 1, 4) * (i % 5), 1.0 + i % 2, i % 3) for i in range(22)]

    def collate(items):
        x, scale, y = zip(*items, strict=True)
        return Encoding(x=torch.stack(x), scale=torch.tensor(scale), y=torch.tensor(y))

    torch.manual_seed(0)
    model = Encoded()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for batch in DataLoader(rows, 8, shuffle=True, collate_fn=collate):
        batch = batch.to("cpu")
        said += [*batch["x"].shape, batch["x"].sum().item(), type(batch).__name__ == "Encoding"]
        said.append(descend(F.cross_entropy(model(batch), batch["y"]), optimizer).item())
    return [*said, model.seen]


def texts_of_columns(lengths=(3, 8), classes=False, n=36, seed=5):
    """Pairs of words, or words with a class, that differ in length."""
    drawn = torch.Generator().manual_seed(seed)

    def words():
        return torch.randint(2, 12, (int(torch.randint(*lengths, (), generator=drawn)),), generator=drawn)

    return [(words(), torch.randint(0, 3, (), generator=drawn) if classes else words()) for _ in range(n)]


def columns(samples):
    """Texts as [T, B], as pad_sequence makes them."""
    return tuple(
        pad_sequence(list(part), padding_value=1) if part[0].dim() else torch.stack(part)
        for part in zip(*samples, strict=True)
    )


class ColumnTranslator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 12, 0.0)
        self.last = nn.Linear(8, 12)

    def forward(self, source, target, mask, source_padding, target_padding):
        s, t = self.words(source), self.words(target)
        return self.last(self.transformer(s, t, None, mask, None, source_padding, target_padding, source_padding))


def translated(batch_size, lengths=(3, 8), **options):
    torch.manual_seed(1)
    model = ColumnTranslator()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for _ in range(2):
        for s, t in DataLoader(texts_of_columns(lengths), batch_size, collate_fn=columns, **options):
            given = t[:-1]
            mask = torch.triu(torch.ones(len(given), len(given)), 1).bool()
            out = model(s, given, mask, (s == 1).T, (given == 1).T)
            loss = F.cross_entropy(out.reshape(-1, 12), t[1:].reshape(-1), ignore_index=1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said += [loss.item(), float(s.shape[0]), float(s.shape[1]), s[0].double().mean().item()]
    return said + everything(model)


def columns_of_texts():
    return translated(9)


def columns_as_long_as_the_batch_is_large():
    return translated(6) + translated(5, (4, 7))


def columns_of_texts_that_workers_read():
    return translated(8, num_workers=2)


class ColumnReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.last = nn.Embedding(12, 6), nn.GRU(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.rnn(self.words(x))[0].mean(0))


def columns_with_a_class_for_each():
    torch.manual_seed(1)
    model = ColumnReader()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for lengths, size in (((3, 8), 7), ((5, 6), 5), ((4, 9), 5)):
        for x, y in DataLoader(texts_of_columns(lengths, classes=True), size, collate_fn=columns):
            out = model(x)
            loss = F.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said += [loss.item(), (out.argmax(1) == y).double().mean().item(), x.double().std().item()]
    return said + everything(model)


class NestedTexts(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(12, 6), nn.Linear(6, 3)

    def forward(self, x, weights=None):
        summed = torch.nested.to_padded_tensor(torch.relu(self.words(x)), 0.0).sum(1)
        return self.last(summed if weights is None else summed * weights)


def nested_texts(rows):
    return (
        torch.nested.nested_tensor([text for text, _ in rows], layout=torch.jagged),
        torch.tensor([label for _, label in rows]),
    )


def nested_tensors():
    torch.manual_seed(1)
    model = NestedTexts()
    optimizer = SGD(model.parameters(), 0.1)
    data = [(torch.randint(12, (3 + number % 4,)), number % 3) for number in range(20)]
    said = []
    for number, (x, y) in enumerate(DataLoader(data, 8, collate_fn=nested_texts)):
        weights = None if number % 2 else y.double()[:, None] + 1  # a batch beside it
        loss = F.cross_entropy(model(x, weights), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said + everything(model)


class Patches(Dataset):
    """Gives pieces of texts that it keeps, whichever is asked for, and fetches the next text when there are none."""

    def __init__(self, texts, by_queue):
        self.texts, self.kept, self.waiting = iter(texts * 20), [], queue.Queue() if by_queue else None

    def __len__(self):
        return 22

    def fetch(self):
        text, label = next(self.texts)
        pieces = [(text[at : at + 4], label) for at in range(3)]
        if self.waiting is None:
            self.kept += pieces
        else:
            [self.waiting.put(piece) for piece in pieces]

    def __getitem__(self, number):
        if self.waiting is not None:
            if self.waiting.empty():
                self.fetch()
            return self.waiting.get()
        if not self.kept:
            self.fetch()
        return self.kept.pop()


def a_dataset_that_gives_what_comes_next():
    said = []
    for by_queue in (False, True):
        torch.manual_seed(1)
        model = nn.Linear(4, 3)
        optimizer = SGD(model.parameters(), 0.1)
        texts = [(torch.randn(6), number % 3) for number in range(8)]
        dataset = Patches(texts, by_queue)
        for _ in range(2):
            for x, y in DataLoader(dataset, 8, shuffle=True):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                said += [loss.item(), x.sum().item()]
        said += everything(model)
    return said
