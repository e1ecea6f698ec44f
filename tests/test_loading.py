"""Who reads what: each row once where rows can be loaded apart, once per host where they cannot, and never a hang."""

import gc
import multiprocessing
import os
import queue
import random
import signal
import tempfile
import threading
import time
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import THOROUGH
from parity.loader_habits import DrawingItems, Stored
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, Subset, TensorDataset, get_worker_info

import ddp_patch


class Counted(Dataset):
    """Notes which rows this process loads."""

    def __init__(self, n=23):
        self.n = n
        self.loaded = []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.loaded.append(i)
        worker = get_worker_info()
        return torch.tensor([i, worker.num_workers if worker else 0])


class CountedStream(IterableDataset):
    def __init__(self):
        self.loaded = []

    def __iter__(self):
        for i in range(23):
            self.loaded.append(i)
            yield torch.tensor([i, 0])


def collate(samples):
    return torch.stack(samples)


def what_is_read(kind):
    data = CountedStream() if kind == "stream" else Counted()
    if kind == "default":
        loader = DataLoader(data, 6)
    elif kind == "read_once":
        loader = ddp_patch.read_once(DataLoader(data, 6))
    elif kind == "shard_batch":
        loader = ddp_patch.shard_batch(DataLoader(data, 6, collate_fn=collate))
    else:
        loader = DataLoader(data, 6, collate_fn=collate)
    kinds = {type(batch).__qualname__ for batch in loader}
    return [data.loaded, sorted(kinds), list(ddp_patch.report().ledger.loaders.values())]


# --- who reads --------------------------------------------------------------------------------------------------------


@pytest.mark.quick("default")
@pytest.mark.parametrize("kind", ["default", "shard_batch"])
def test_each_rank_reads_its_own_rows(ranks, kind):
    results = ranks.call(what_is_read, 3, kind).ok().results
    assert sorted(i for loaded, _, _ in results for i in loaded) == list(range(23))
    assert min(len(loaded) for loaded, _, _ in results) >= 7
    for _, kinds, how in results:
        assert kinds == ["BatchTensor"]
        assert how[0].startswith("rows dealt")


@pytest.mark.quick("stream")
@pytest.mark.parametrize("kind", ["collate", "read_once", "stream"])
def test_one_rank_of_a_host_reads_what_cannot_be_loaded_apart(ranks, kind):
    results = ranks.call(what_is_read, 3, kind).ok().results
    assert [loaded for loaded, _, _ in results] == [list(range(23)), [], []]
    for _, kinds, how in results:
        assert kinds == ["BatchTensor"]  # and computed apart
        assert how[0].startswith("read by one rank of each host")
    assert ("ddp_patch.shard_batch(loader)" in results[0][2][0]) == (kind == "collate")


def workers_seen(collated):
    loader = DataLoader(Counted(), 6, num_workers=3, collate_fn=collate if collated else None)
    if not collated:
        loader = ddp_patch.shard_batch(loader)  # though it asks which worker it is
    return sorted({int(row[1]) for batch in loader for row in batch.tolist()})


@pytest.mark.slow
def test_the_reader_has_all_workers_and_dealt_loaders_their_share(ranks):
    assert ranks.call(workers_seen, 2, True).ok().results == [[3], [3]]
    assert ranks.call(workers_seen, 2, False).ok().results == [[2], [2]]


def settled(kind):
    try:
        if kind == "stream":
            ddp_patch.shard_batch(DataLoader(CountedStream(), 6))
        elif kind == "no batches":
            ddp_patch.shard_batch(DataLoader(Counted(), None))
        elif kind == "running":
            loader = DataLoader(Counted(), 6, collate_fn=collate, num_workers=1, persistent_workers=True)
            list(loader)
            ddp_patch.shard_batch(loader)
        else:
            ddp_patch.read_once([1, 2])
    except ddp_patch.DdpPatchError as error:
        return str(error)
    return ""


@pytest.mark.quick("running", "list")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("stream", "an iterable dataset"),
        ("no batches", "batch_size=None"),
        ("running", "Move the line to where the loader is made"),
        ("list", "Pass a torch.utils.data.DataLoader"),
    ],
)
def test_what_cannot_be_settled_is_refused(ranks, kind, words):
    assert words in settled(kind) or kind == "running"  # which makes no difference to one process
    assert words in ranks.call(settled, 2, kind).ok().results[1]


def test_settled_loaders_stay_themselves():
    loader = DataLoader(Counted(), 6)
    assert ddp_patch.shard_batch(loader) is loader
    assert ddp_patch.read_once(loader) is loader
    assert len(list(loader)) == 4


# --- random loaders ---------------------------------------------------------------------------------------------------


class Drawing(Sampler):
    def __init__(self, n, kind):
        self.n, self.kind = n, kind

    def __iter__(self):
        for _ in range(self.n):
            yield {
                "torch": lambda: int(torch.randint(self.n, ())),
                "numpy": lambda: int(np.random.randint(self.n)),
                "random": lambda: random.randrange(self.n),
            }[self.kind]()

    def __len__(self):
        return self.n


def random_loader(draw):
    """A loader with everything drawn: sizes, sampler, workers, collate function, stream."""
    n, size = draw.randint(1, 40), draw.randint(1, 12)
    data = TensorDataset(
        torch.arange(float(n)).view(n, 1).expand(n, 3) * torch.tensor([1.0, 2.0, 3.0]), torch.arange(n)
    )
    options = {"batch_size": size, "drop_last": draw.random() < 0.3}
    kind = draw.choice(["plain", "shuffle", "torch", "numpy", "random", "weighted", "batches"])
    if kind == "shuffle":
        options["shuffle"] = True
    elif kind == "weighted":
        options["sampler"] = torch.utils.data.WeightedRandomSampler(torch.arange(1.0, n + 1), draw.randint(1, 30))
    elif kind == "batches":
        del options["batch_size"], options["drop_last"]
        options["batch_sampler"] = [
            [draw.randrange(n) for _ in range(draw.randint(0 if i else 1, 9))] for i in range(draw.randint(1, 5))
        ]
        options["batch_sampler"] = [batch for batch in options["batch_sampler"] if batch]
    elif kind != "plain":
        options["sampler"] = Drawing(n, kind)
    if draw.random() < 0.15:
        options["num_workers"] = draw.randint(1, 3)
    choice = draw.choice(["default", "collate", "shard_batch", "read_once"])
    if choice in ("collate", "shard_batch"):
        options["collate_fn"] = two
    loader = DataLoader(data, **options)
    return {"shard_batch": ddp_patch.shard_batch, "read_once": ddp_patch.read_once}.get(choice, lambda loader: loader)(
        loader
    )


def two(samples):
    return [torch.stack([row for row, _ in samples]), torch.stack([label for _, label in samples])]


def random_loaders(first, count):
    seen = []
    for seed in range(first, first + count):
        draw = random.Random(seed)
        for generator in (torch.manual_seed, np.random.seed, random.seed):
            generator(seed)
        loader = random_loader(draw)
        rows = [
            [rows.tolist(), labels.tolist(), torch.rand((), dtype=torch.float64).item(), random.random()]
            for _ in range(2)
            for rows, labels in loader
        ]
        seen.append([rows, float(np.random.rand())])
    return seen


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("nproc", [2, 3, 4])
def test_random_loaders_give_the_batches_of_one_process_in_its_order(ranks, nproc):
    first, count = 100 * nproc, 100 if THOROUGH else 15
    wanted = random_loaders(first, count)
    for given in ranks.call(random_loaders, nproc, first, count).ok().results:
        for index, (ours, theirs) in enumerate(zip(given, wanted, strict=True)):
            assert ours == theirs, f"seed {first + index}"


# --- augmentation -----------------------------------------------------------------------------------------------------


class Augmented(Dataset):
    def __len__(self):
        return 500

    def __getitem__(self, i):
        return torch.tensor([torch.rand((), dtype=torch.float64).item(), np.random.rand(), random.random()]).double()


def a_thousand_draws(workers):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    loader = DataLoader(Augmented(), 50, num_workers=workers)
    draws, script = [], []
    for _ in range(2):
        for batch in loader:
            draws += batch.tolist()
            script += [torch.rand(()).item(), float(np.random.rand()), random.random()]
    return [draws, script]


@pytest.mark.quick("4")
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_no_two_rows_draw_alike_and_the_script_draws_alike_on_all_ranks(ranks, workers):
    results = ranks.call(a_thousand_draws, 2, workers).ok().results
    assert results[0] == results[1]
    draws, script = results[0]
    assert len(draws) == 1000
    for column in zip(*draws, strict=True):
        # Workers of one rank draw alike from numpy unless torch seeds them; torch >= 1.9 does.
        assert len(set(column)) == 1000
    assert not {value for row in draws for value in row} & set(script)


# --- failures ---------------------------------------------------------------------------------------------------------


class Dying(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        if i == 3 and multiprocessing.current_process().daemon:  # a worker, while the script waits for it
            os._exit(3)
        return torch.tensor([i])


def a_worker_dies(collated):
    try:
        for batch in DataLoader(Dying(), 4, num_workers=2, collate_fn=collate if collated else None):
            batch.tolist()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.slow
@pytest.mark.parametrize("collated", [False, True])
def test_a_worker_that_dies_is_an_error_on_every_rank_that_names_the_dataset(ranks, collated):
    outcome = ranks.call(a_worker_dies, 2, collated)
    assert not outcome.late
    if collated:
        for said in outcome.results:
            assert "exited unexpectedly" in said
            assert "Dying" in said
    else:  # only one rank's worker died: the ranks cannot go on together
        said = "".join(outcome.stderr) + "".join(result or "" for result in outcome.results)
        assert "LockstepError" in said
        assert "Dying" in said
        assert any(outcome.codes)


def the_reader_is_killed():
    loader = DataLoader(Counted(), 4, collate_fn=collate)
    for step, batch in enumerate(loader):
        if step == 2 and ddp_patch.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        batch.tolist()


def what_a_reader_gives(folder):
    tempfile.tempdir = folder
    return [batch.tolist() for batch in DataLoader(torch.arange(5.0), 2, collate_fn=torch.stack)]


def test_a_reader_finds_a_place_for_its_socket_where_that_for_temporary_files_is_far_down(ranks, tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    outcome = ranks.call(what_a_reader_gives, 2, str(deep)).ok()
    assert outcome.results == [[[0, 1], [2, 3], [4]]] * 2
    assert list(deep.rglob("*")) == []


def test_a_reader_that_is_gone_is_an_error_at_once_and_leaves_nothing_behind(ranks):
    with tempfile.TemporaryDirectory() as folder:  # a socket's path has to be short
        outcome = ranks.call(the_reader_is_killed, 3, env={"TMPDIR": folder})
        assert not outcome.ended, outcome.said()
        assert outcome.codes[0] == -signal.SIGKILL
        assert all(outcome.codes)
        assert os.listdir(folder) == []


def a_generator_is_used_on_one_rank():
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(Counted(), 4, shuffle=True, generator=generator)
    list(loader)
    if ddp_patch.rank() == 1:
        torch.rand(3, generator=generator)
    try:
        list(loader)
    except ddp_patch.LockstepError as error:
        return str(error)
    return ""


def test_a_generator_used_by_hand_on_one_rank_is_an_error_on_every_rank(ranks):
    for said in ranks.call(a_generator_is_used_on_one_rank, 3).ok().results:
        assert "the ranks' samplers drew different batches, beginning with" in said
        assert "on rank 0" in said
        assert "on rank 1" in said


# --- hosts --------------------------------------------------------------------------------------------------------


def read_on_two_hosts(kind):
    data = CountedStream() if kind == "stream" else Counted()
    torch.manual_seed(0)
    loader = DataLoader(data, 6, **({} if kind == "stream" else {"shuffle": True, "collate_fn": collate}))
    batches = [batch[:, 0].tolist() for _ in range(2) for batch in loader]
    return [data.loaded, batches, torch.rand(1).item()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["collate", "stream"])
def test_each_host_reads_once(ranks, kind):
    results = ranks.call(read_on_two_hosts, 4, kind, hosts=["a", "a", "b", "b"]).ok().results
    read = [row for batch in results[0][1] for row in batch]
    assert [loaded for loaded, _, _ in results] == [read, [], read, []]
    assert all(batches == results[0][1] for _, batches, _ in results)
    assert sorted(read) == sorted([*range(23), *range(23)])
    assert len({drawn for _, _, drawn in results}) == 1


# --- threads ----------------------------------------------------------------------------------------------------------


def read_ahead_in_a_thread():
    """A prefetcher of the script's own, while the main thread reads another loader and sums batches."""
    ahead, other = DataLoader(Counted(), 3, collate_fn=collate), DataLoader(TensorDataset(torch.arange(23.0)), 3)
    read = []
    rank = ddp_patch.rank()

    def prefetch():
        for batch in ahead:
            read.append(batch)
            time.sleep(0.004 * ((rank + len(read)) % 3))  # the ranks are elsewhere at every batch

    thread = threading.Thread(target=prefetch)
    thread.start()
    sums = [rows.sum().item() for _ in range(5) for (rows,) in other]
    thread.join()
    return [[batch.tolist() for batch in read], sums]


class Background:
    """A generator that is read ahead in a thread, as many scripts have it."""

    def __init__(self, batches):
        self.queue = queue.Queue(2)
        threading.Thread(target=self.read, args=(batches,), daemon=True).start()

    def read(self, batches):
        for batch in batches:
            self.queue.put(batch)
        self.queue.put(None)

    def __iter__(self):
        while (batch := self.queue.get()) is not None:
            yield batch


class Named(TensorDataset):
    def __getitem__(self, i):
        return *super().__getitem__(i), f"row {i}"


def train_with_a_background_generator(kind):
    def background(data, batch_size):
        loader = DataLoader(data, batch_size, **options)
        return Background(ddp_patch.shard_batch(loader) if kind == "shard_batch" else loader)

    torch.manual_seed(0)
    options = {
        "rows": {},
        "rows of workers": {"num_workers": 2},
        "collate": {"collate_fn": stacked},
        "shard_batch": {"collate_fn": stacked},
    }[kind]
    data = Named(torch.arange(38.0).view(19, 2).double())
    model = torch.nn.Linear(2, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    said = []
    for _ in range(3):
        for rows, names in background(data, 6):
            said.extend(int(name.split()[1]) for name in names)
            noise = torch.randn(len(rows), 2, dtype=torch.float64)
            loss = (model(rows) + model(noise)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
        for (rows, _), (others, _) in zip(background(data, 3), DataLoader(data, 5, **options), strict=False):
            said.append((rows[0] * others.sum()).sum().item())
    return said


def stacked(samples):
    return torch.stack([row for row, _ in samples]), [name for _, name in samples]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "rows of workers", "collate", "shard_batch"])
def test_a_background_generator_changes_nothing(ranks, kind):
    wanted = train_with_a_background_generator(kind)
    for given in ranks.call(train_with_a_background_generator, 2, kind).ok().results:
        assert given == pytest.approx(wanted, rel=1e-9)


def a_collate_that_calls_the_model():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (rows,) in DataLoader(TensorDataset(torch.randn(8, 2, dtype=torch.float64)), 4):
        model(rows).sum().backward()
        optimizer.step()

    def labelled(samples):
        rows = torch.stack([row for (row,) in samples])
        return rows, model(rows).detach()

    noisy = torch.nn.Sequential(torch.nn.BatchNorm1d(2, dtype=torch.float64), model)
    optimizer.add_param_group({"params": noisy[0].parameters()})
    found = []
    for rows, labels in DataLoader(TensorDataset(torch.randn(8, 2, dtype=torch.float64)), 4, collate_fn=labelled):
        noisy(rows).sum().backward()
        optimizer.step()
        found += [labels.sum().item(), model.weight.sum().item()]

    def changing(samples):
        noisy(torch.stack([row for (row,) in samples]))
        return labelled(samples)

    try:
        next(iter(DataLoader(TensorDataset(torch.randn(8, 2, dtype=torch.float64)), 4, collate_fn=changing)))
    except ddp_patch.BatchError as error:
        return [found, str(error)]
    return [found, ""]


def test_a_collate_calls_the_model_but_not_where_that_changes_it(ranks):
    wanted, said = a_collate_that_calls_the_model()
    assert not said
    for given, said in ranks.call(a_collate_that_calls_the_model, 2).ok().results:
        assert given == pytest.approx(wanted)
        assert "Write model.eval() before" in said


def samples_of_what_is_trained():
    scale = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([scale], 0.1)
    grid = torch.linspace(0, 1, 8).requires_grad_()  # of what is not trained: as those of equations are

    def collate(samples):
        return torch.stack(samples)

    found = []
    for options in ({}, {"collate_fn": collate}):
        with pytest.raises(ddp_patch.BatchError, match="parameters that are trained"):
            next(iter(DataLoader([row * scale for row in torch.ones(8, 2)], 4, **options)))
        found += [x.sum().item() for x in DataLoader(grid, 4, **options)]
    assert optimizer.param_groups
    return found


def test_samples_that_would_train_a_parameter_by_one_ranks_rows_are_refused(ranks):
    for given in ranks.call(samples_of_what_is_trained, 2).ok().results:
        assert given == pytest.approx([6 / 7, 22 / 7] * 2)


def rows_of_two_shapes():
    order = [0, 1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 0, 1, 2, 3]
    batches, seen = iter(DataLoader([torch.ones(2 + i // 4) for i in range(8)], 4, sampler=order)), []
    for _ in range(4):
        try:
            seen.append(next(batches).sum().item())
        except RuntimeError:
            seen.append("refused")
    return seen


def test_a_batch_of_rows_of_two_shapes_is_refused_though_each_was_seen(ranks):
    for seen in ranks.call(rows_of_two_shapes, 2).ok().results:
        assert seen == [8, 12, "refused", 8]


class Drawn(list):
    def __getitem__(self, i):
        return random.randrange(len(self))


def indices_that_draw():
    random.seed(0)
    for _ in DataLoader(Subset(TensorDataset(torch.ones(13, 1)), Drawn(range(13))), 13):
        pass
    return random.random()


def test_indices_that_are_drawn_move_no_generator_of_the_script(ranks):
    assert len(set(ranks.call(indices_that_draw, 2).ok().results)) == 1


def a_stream_that_cannot_be_opened():
    class Files(IterableDataset):
        def __iter__(self):
            raise FileNotFoundError("shard-0.tar")

    seen = []
    for workers in (0, 2):
        try:
            next(iter(DataLoader(Files(), 4, num_workers=workers)))
        except FileNotFoundError as error:
            seen.append("shard-0.tar" in str(error))
    unpicklable = DataLoader(Stateless(lambda: 1), 4, num_workers=1, multiprocessing_context="spawn")
    try:
        next(iter(unpicklable))
    except Exception as error:
        seen.append("lambda" in str(error))
    return [*seen, *(batch.tolist() for batch in DataLoader(CountedStream(), 8))]


class Stateless(IterableDataset):
    def __init__(self, what):
        self.what = what

    def __iter__(self):
        yield self.what()


@pytest.mark.slow
def test_a_stream_that_cannot_be_opened_raises_what_it_raises_on_one_process(ranks):
    wanted = a_stream_that_cannot_be_opened()
    assert wanted[:3] == [True, True, True]
    assert ranks.call(a_stream_that_cannot_be_opened, 3).ok().results == [wanted] * 3


def an_item_stops_the_iteration():
    class Stopping(Counted):
        def __getitem__(self, i):
            if i == 9:
                raise StopIteration
            return super().__getitem__(i)

    for batch in DataLoader(Stopping(), 4):
        batch.tolist()


@pytest.mark.slow
def test_an_item_that_stops_the_iteration_on_one_rank_is_an_error(ranks):
    outcome = ranks.call(an_item_stops_the_iteration, 2)
    assert not outcome.late
    assert "LockstepError" in "".join(outcome.stderr)


def test_a_thread_may_read_ahead(ranks):
    wanted = read_ahead_in_a_thread()
    assert ranks.call(read_ahead_in_a_thread, 3).ok().results == [wanted] * 3


# --- iterators as torch's ------------------------------------------------------------------------------------------


class SlowFirst(Dataset):
    """Says who loaded a row; the worker that is to load the first one is held up until others are done."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def __len__(self):
        return 10

    def __getitem__(self, index):
        worker = torch.utils.data.get_worker_info().id
        if index == 9:
            (self.folder / f"done{worker}").touch()
        while index == 0 and not any(self.folder.glob("done*")):
            time.sleep(0.01)
        return worker, index


def out_of_order(folder):
    os.makedirs(folder, exist_ok=True)
    loader = DataLoader(SlowFirst(os.path.abspath(folder)), num_workers=2, prefetch_factor=2, in_order=False)
    return [[part.item() for part in item] for item in loader]


@pytest.mark.slow
def test_batches_out_of_order_come_as_on_one_process(ranks):
    (alone,) = ranks.call(out_of_order, 1, "marks").ok().results
    assert alone != sorted(alone, key=lambda item: item[1])
    assert ranks.call(out_of_order, 2, "marks").ok().results == [alone] * 2
    assert ranks.call(out_of_order, 3, "marks").ok().results == [alone] * 3


class Together(Dataset):
    """Its workers count what they have loaded in common, and none goes on before all have begun."""

    def __init__(self, workers):
        self.workers = workers
        self.begun, self.loaded = multiprocessing.Semaphore(0), multiprocessing.Value("i", 0)
        self.has_begun = False

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if not self.has_begun:
            self.begun.release()
            while self.begun.get_value() < self.workers:
                time.sleep(0.01)
            self.has_begun = True
        with self.loaded:
            self.loaded.value += 1
        return index


def workers_that_meet():
    data = Together(4)
    rows = [batch.tolist() for batch in DataLoader(data, 4, num_workers=4)]
    return rows, data.loaded.value


@pytest.mark.slow
def test_workers_that_share_locks_and_counters_are_those_of_one_process(ranks):
    wanted = [*workers_that_meet()]
    outcome = ranks.call(workers_that_meet, 2)
    assert not outcome.late
    assert outcome.ok().results == [wanted, [wanted[0], 0]]  # as for all that a dataset keeps: where it was read


class SaysWho(Dataset):
    def __init__(self):
        self.worker = None

    def begin(self, worker):
        self.worker = worker

    def __len__(self):
        return 13

    def __getitem__(self, index):
        return self.worker, torch.utils.data.get_worker_info().num_workers, index


class SaysWhoItIs(SaysWho):
    def __getitem__(self, index):
        return self.worker, 0, index


def who_loads():
    said = []
    for data in (SaysWho(), SaysWhoItIs()):
        for batch in DataLoader(data, 3, num_workers=2, worker_init_fn=data.begin):
            said.append([part.tolist() for part in batch])
    return said


@pytest.mark.slow
def test_a_dataset_that_tells_its_workers_apart_sees_those_of_one_process(ranks):
    wanted = who_loads()
    assert ranks.call(who_loads, 2).ok().results == [wanted] * 2


class Augments:
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, torch.rand(()).item(), random.random(), np.random.rand()


def seeded_by_their_numbers(worker):
    torch.manual_seed(5 + worker)
    random.seed(5 + worker)
    np.random.seed(5 + worker)


def augmented_by_seeded_workers(workers):
    batches = DataLoader(Augments(), 6, num_workers=workers, worker_init_fn=seeded_by_their_numbers)
    return [torch.stack(batch[1:], 1).tolist() for batch in batches]


@pytest.mark.quick("3")
@pytest.mark.parametrize("workers", [2, 3])
def test_ranks_whose_workers_are_seeded_by_their_numbers_draw_apart(ranks, workers):
    found = ranks.call(augmented_by_seeded_workers, 3, workers).ok().results[0]
    drawn = [number for batch in found for row in batch for number in row]
    alone = [number for batch in augmented_by_seeded_workers(workers) for row in batch for number in row]
    assert len(set(alone)) == len(alone) == len(drawn)
    assert len(set(drawn)) == len(drawn)


class HoldsGenerators(Augments):
    def __init__(self):
        self.numbers, self.old = np.random.default_rng(1), np.random.RandomState(2)
        self.python, self.torchs = random.Random(3), torch.Generator().manual_seed(4)

    def __getitem__(self, index):
        drawn = torch.rand((), generator=self.torchs).item()
        return index, self.numbers.random(), self.old.rand(), self.python.random(), drawn


def reseeds(worker):
    get_worker_info().dataset.numbers = np.random.default_rng(worker)


def drawn_from_generators_held(how):
    held = HoldsGenerators()
    # torch.Generator cannot be sent to workers that are not forked (torch 2.13).
    options = {"num_workers": 1, "worker_init_fn": reseeds if how == "reseeded" else None}
    loader = DataLoader(held, 6, multiprocessing_context="fork", **options)
    epochs = []
    for epoch in range(3):
        if "shard_batch" in how and (epoch == 0 or "anew" in how):
            loader = ddp_patch.shard_batch(DataLoader(held, 6))
        if epoch == 2 and how == "shard_batch, replaced":
            held.numbers, held.python = np.random.default_rng(9), random.Random(9)
            held.old.seed(9)
            held.torchs.manual_seed(9)
        epochs.append([torch.stack(batch[1:], 1).tolist() for batch in loader])
    scripts = [held.numbers.random(), held.old.rand(), held.python.random()]
    return epochs, [*scripts, torch.rand((), generator=held.torchs).item()]


@pytest.mark.quick("workers", "shard_batch, anew")
@pytest.mark.parametrize("how", ["workers", "reseeded", "shard_batch", "shard_batch, anew", "shard_batch, replaced"])
def test_ranks_draw_apart_from_generators_that_a_dataset_holds(ranks, how):
    results = ranks.call(drawn_from_generators_held, 3, how).ok().results
    assert results == results[:1] * 3
    epochs, scripts = results[0]
    for column in range(4):
        drawn = [[row[column] for batch in epoch for row in batch] for epoch in epochs]
        assert [len(set(each)) for each in drawn] == [24] * 3
        # A worker begins with what the script's generator is at, in each epoch.
        every = {number for each in drawn for number in each}
        assert len(every) == (72 if "shard_batch" in how else 24)
        assert "shard_batch" not in how or scripts[column] not in every


class Odd:
    """Something without a length, which asks for one."""

    def __init__(self):
        self.nested = torch.nested.nested_tensor([torch.arange(3.0), torch.arange(2.0)])


def nested_tensors():
    rows = torch.arange(12.0)
    nested = DataLoader(
        TensorDataset(rows), 4, collate_fn=lambda items: torch.nested.nested_tensor([i[0] for i in items])
    )
    beside = DataLoader(TensorDataset(rows), 4, collate_fn=lambda items: (torch.stack([i[0] for i in items]), Odd()))
    said = [[part.tolist() for part in batch.unbind()] for batch in nested]
    return said + [[x.sum().item(), [part.tolist() for part in odd.nested.unbind()]] for x, odd in beside]


def test_nested_tensors_come_as_they_are(ranks):
    wanted = nested_tensors()
    outcome = ranks.call(nested_tensors, 2)
    assert not outcome.late
    assert outcome.ok().results == [wanted] * 2


class SaysFewer(IterableDataset):
    def __len__(self):
        return 4

    def __iter__(self):
        return iter(range(6))


def more_than_it_said(workers, persistent=False):
    loader = DataLoader(SaysFewer(), batch_size=1, num_workers=workers, persistent_workers=persistent)
    found = [len(list(loader)) if persistent else 0, len(loader)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        iterator = iter(loader)
        for batch in iterator:
            found.append([len(batch), len([*filter(_is_heard, said)])])
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()
    return [found, [str(warning.message).partition("<")[0] for warning in said if _is_heard(warning)]]


def _is_heard(warning):
    return warning.category is not DeprecationWarning  # Python 3.12 warns of forks beside threads


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
def test_a_stream_longer_than_its_length_warns_on_every_rank_as_on_one_process(ranks, workers, persistent):
    (alone,) = ranks.call(more_than_it_said, 1, workers, persistent).ok().results
    assert len(alone[1]) == 2
    assert ranks.call(more_than_it_said, 2, workers, persistent).ok().results == [alone] * 2


def small_batches(is_settled):
    """Batches of fewer rows than ranks, which workers augment; what was exchanged for each."""
    seen, loader = [], DataLoader(Noisy(), batch_size=1, num_workers=1)
    for (x,) in ddp_patch.shard_batch(loader) if is_settled else loader:
        seen.append(x.item())
    sent = ddp_patch.report().ledger.collectives
    return [seen, sent["broadcast_object"], sent["all_gather"]]


class Noisy(Dataset):
    """Rows with noise of the worker's own."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return (torch.rand(()) + index,)


@pytest.mark.quick("True")
@pytest.mark.parametrize(("is_settled", "broadcasts"), [(False, 0), (True, 3)])
def test_batches_that_are_not_split_are_those_of_rank_0(ranks, is_settled, broadcasts):
    results = ranks.call(small_batches, 3, is_settled).ok().results
    assert results[0] == results[1] == results[2]
    assert results[0][1:] == [broadcasts, 0]


def given_by_rank_0():
    """What cannot be pickled, on rank 0 alone, and what can."""
    from ddp_patch.batch.world import World

    world, said = World.get(), []
    for value in ((lambda: 0) if world.rank == 0 else 1, world.rank):
        try:
            said.append(world.leaders(value))
        except Exception as error:
            said.append(type(error).__name__)
    return said


def test_what_rank_0_cannot_give_is_an_error_on_every_rank(ranks):
    results = ranks.call(given_by_rank_0, 3).ok().results
    assert results[0][0] in ("PicklingError", "AttributeError")
    assert results == [[results[0][0], 0]] * 3


class Bound(DataLoader):
    """Whose collate function belongs to it, and whose workers go on."""

    def __init__(self, dataset):
        super().__init__(dataset, 4, collate_fn=self.collate, num_workers=1, persistent_workers=True)

    def collate(self, samples):
        return torch.utils.data.default_collate(samples)


def forgotten_loaders():
    left = []
    for _ in range(3):
        loader = Bound(TensorDataset(torch.arange(8.0)))
        assert len([x for epoch in range(2) for (x,) in loader]) == 4
        left.append(weakref.ref(loader))
        del loader
        gc.collect()
    return [kept() is None for kept in left], len(multiprocessing.active_children())


@pytest.mark.slow
@pytest.mark.parametrize("view", ["global", "local"])
def test_loaders_whose_workers_go_on_go_with_the_script_s_last_reference(ranks, view):
    for gone, children in ranks.call(forgotten_loaders, 2, enable={"view": view}).ok().results:
        assert all(gone)
        assert children == 0


def reads_batches_again(how):
    kept = list(DataLoader(TensorDataset(torch.arange(400.0)), 4))
    try:
        if how == "in workers":
            list(DataLoader(kept, batch_size=None, num_workers=1))
        elif how == "a few at once":
            list(DataLoader(Stored(kept), batch_size=3))
        else:
            list(DataLoader(Stored(kept), batch_size=3, num_workers=1))
    except ddp_patch.BatchError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("in workers", "the workers of a loader cannot read batches of another loader"),
        ("a few at once", "is made of batches of another loader, of which every rank holds its rows"),
        ("a few in workers", "computes on a batch, in which all ranks take part"),
    ],
)
def test_batches_that_cannot_be_read_again_are_an_error_on_every_rank(ranks, how, words):
    for said in ranks.call(reads_batches_again, 2, how, timeout=60).ok().results:
        assert words in said


def stateful_out_of_order():
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(Slow(ddp_patch.rank() == 1), 4, num_workers=2, in_order=False)
    return [x.tolist() for x in loader], loader.in_order


class Slow(Dataset):
    """Whose first worker is late, on one rank."""

    def __init__(self, is_late):
        self.is_late = is_late

    def __len__(self):
        return 16

    def __getitem__(self, i):
        if self.is_late and i // 4 % 2 == 0:
            time.sleep(0.2)
        return float(i)


@pytest.mark.slow
def test_a_loader_that_keeps_its_position_gives_all_ranks_one_order(ranks):
    for batches, in_order in ranks.call(stateful_out_of_order, 2).ok().results:
        assert batches == [[4.0 * at + i for i in range(4)] for at in range(4)]
        assert in_order is False


class Seeded(Dataset):
    """Each item has a generator by its own number."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 8

    def __getitem__(self, i):
        self.drawn = self.make(i)
        return torch.tensor([i + self.drawn.uniform(0, 1)])


def draws_by_item():
    settled = DrawingItems(3)
    settled.drawn = np.random.default_rng(3)
    list(ddp_patch.shard_batch(DataLoader(settled, 4)))
    kinds = [random.Random, np.random.RandomState, np.random.default_rng, lambda i: np.random.default_rng([1, i])]
    return [sum(batch.sum().item() for batch in DataLoader(Seeded(kind), 4)) for kind in kinds]


def draws_as_it_is_read(seed):
    try:
        list(DataLoader(DrawingItems(seed), 4))
    except ddp_patch.BatchError as error:
        return str(error)
    return "drawn"


@pytest.mark.slow
def test_a_generator_that_is_made_while_rows_are_dealt_is_refused(ranks):
    for said in ranks.call(draws_as_it_is_read, 2, 3).ok().results:
        assert "made a generator while it was read (Generator 3), so that each rank drew for its own rows" in said
    alone = draws_by_item()
    for found in ranks.call(draws_by_item, 2).ok().results:
        assert found == pytest.approx(alone)
    # Of the system's seeds no two are alike: one process draws something else in every run, too.
    assert ranks.call(draws_as_it_is_read, 2, None).ok().results == ["drawn", "drawn"]


def test_small_parts_of_memory_on_an_accelerator_are_told_apart(monkeypatch):
    """Its storages are copied to the host, and what is copied may lie where another part lay before."""
    import mmap

    from ddp_patch.loading.pickling import pickled, placed, unpickled

    monkeypatch.setattr(torch.UntypedStorage, "cpu", lambda storage: storage.clone())
    floats, numbers = torch.arange(10_000.0), torch.arange(20_000, 30_000)
    given = [(floats[i : i + 8], numbers[i : i + 8]) for i in range(0, 400, 8)]
    text, blocks = pickled(given, lambda _: None)
    places, end = placed(blocks)
    with mmap.mmap(-1, end) as memory:
        for block, at in zip(blocks, places, strict=True):
            memory[at : at + block.numel()] = block.numpy().tobytes()
        found = unpickled(text, memory, lambda tensor, dim: tensor)
        for pair, wanted in zip(found, given, strict=True):
            assert all(map(torch.equal, pair, wanted))
        del found, pair
