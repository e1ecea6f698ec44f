"""Functions that a migrated script may need, and what they need in turn."""

from __future__ import annotations

HELPERS = {
    "all_sum": '''\
def all_sum(*values, parts=1):
    """Sum each value over all ranks: numbers stay numbers, lists lists, tensors tensors."""
    sums = []
    for value in values:
        total = torch.as_tensor(value, dtype=torch.float64, device={device}).detach().clone()
        {add}
        total = total / parts
        if torch.is_tensor(value):
            sums.append(total.to(value))
        elif hasattr(value, "dtype"):
            sums.append(total.cpu().numpy().astype(value.dtype)[()])
        else:
            sums.append(round(total.item()) if isinstance(value, int) else total.tolist())
    return sums[0] if len(sums) == 1 else sums
''',
    "all_mean": '''\
def all_mean(*values):
    """Average each value over all ranks."""
    return all_sum(*values, parts={world})
''',
    "all_rows": '''\
def all_rows(*lists):
    """Join each list over all ranks; an evaluation's is in the order of the dataset."""
    parts = [None] * {world}
    {gather}
    return [[row for part in column for row in part] for column in zip(*parts)]
''',
    "whole_batch": '''\
class RowsOfAll(torch.autograd.Function):
    """Join the rows of all ranks, in the order of one process; each rank's gradient is that of its own rows."""

    @staticmethod
    def forward(ctx, rows):
        parts = [torch.empty_like(rows) for _ in range({world})]
        {collect}
        return torch.stack(list(parts), 1).flatten(0, 1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient[{rank} :: {world}] * {world}  # DDP divides by as many


def whole_batch(*values):
    """Give each value with the rows of all ranks: tensors, and those in tuples and lists."""
    gathered, counts = [], set()
    for value in values:
        if isinstance(value, (tuple, list)):
            value = type(value)(whole_batch(*value))
        elif torch.is_tensor(value):
            counts.add(len(value))
            value = RowsOfAll.apply(value)
        gathered.append(value)
    if len(counts) > 1:
        raise ValueError(f"these have {{sorted(counts)}} rows, so they are not all rows of one batch")
    return gathered
''',
    "reduce_meters": '''\
def reduce_meters(*meters):
    """Let meters know what all ranks measured."""
    for meter in meters:
        meter.sum, meter.count = all_sum(float(meter.sum), meter.count)
        meter.avg = meter.sum / meter.count
''',
    "save_once": '''\
def save_once(state, path, **options):
    """Save on one rank, and write the file whole or not at all."""
    if {master}:
        torch.save(state, f"{{path}}.tmp", **options)
        os.replace(f"{{path}}.tmp", path)
''',
    "SilentWriter": '''\
class SilentWriter:
    """A writer of the ranks that log nothing: it has a folder, and takes every call."""

    def __init__(self, log_dir="runs"):
        self.log_dir = log_dir

    def get_logdir(self):
        return self.log_dir

    def __getattr__(self, name):
        return lambda *values, **options: None
''',
    "plain_keys": '''\
def plain_keys(state):
    """Name weights as the bare model does, whether or not they were saved from a wrapper."""
    return {{name.removeprefix("module."): value for name, value in state.items()}}
''',
    "all_batches": '''\
def all_batches(loader, *values):
    """Sum over all batches what is of whole ones: ranks evaluate batches of their own, and train on parts of each."""
    return all_sum(*values, parts={world} if hasattr(loader.sampler, "total_size") else 1)
''',
    "rank_share": '''\
def rank_share(rows):
    """This rank's part of a batch; DDP averages over ranks, so all parts must be as large."""
    if rows % {world}:
        raise ValueError(f"a batch of {{rows}} rows cannot be shared evenly by {{{world}}} ranks")
    return rows // {world}
''',
    "rank_rows": '''\
def rank_rows(rows, batch):
    """This rank's run of whole batches, each as one process would have it."""
    batches = -(-rows // batch)
    first = -(-batches * {rank} // {world})
    last = -(-batches * ({rank} + 1) // {world})
    return range(first * batch, min(last * batch, rows))
''',
    "rows_of": '''\
def rows_of(loader):
    """How many rows all ranks took: to train, some twice, so that every rank has as many."""
    return getattr(loader.sampler, "total_size", len(loader.dataset))
''',
    "rows_of, RankSampler": '''\
def rows_of(loader):
    """How many rows all ranks took: to train, some twice, so that every rank has as many."""
    rows, sampler = len(loader.dataset), loader.sampler
    if isinstance(sampler, RankSampler):
        return rows * sampler.total_size / len(sampler.sampler)
    return getattr(sampler, "total_size", rows)
''',
    "batches_of": '''\
def batches_of(loader):
    """How many batches one process would take."""
    if hasattr(loader.sampler, "total_size"):
        return len(loader)
    rows, batch = len(loader.dataset), loader.batch_size or 1
    return rows // batch if loader.drop_last else -(-rows // batch)
''',
    "rank_loader": '''\
def rank_loader(loader):
    """A loader that another file made, with this rank's rows and its share of each batch."""
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        return loader
    if type(sampler).__name__ not in ("RandomSampler", "SequentialSampler") or loader.batch_size is None:
        raise TypeError(f"{{type(loader)}} of {{type(sampler)}}: give each rank its rows where this is made")
    shuffle, last = type(sampler).__name__ == "RandomSampler", loader.drop_last
    names = "num_workers collate_fn pin_memory timeout worker_init_fn prefetch_factor persistent_workers".split()
    return torch.utils.data.DataLoader(
        loader.dataset, batch_size=rank_share(loader.batch_size), drop_last=last,
        sampler=DistributedSampler(
            loader.dataset, {world}, {rank}, shuffle=shuffle, drop_last=last
        ),
        **{{name: getattr(loader, name) for name in names}},
    )
''',
    "alike": '''\
def alike():
    """What draws the same on every rank."""
    return torch.Generator().manual_seed(0)
''',
    "RankSampler": '''\
class RankSampler(torch.utils.data.Sampler):
    """This rank's share of what a sampler draws alike on every rank; some of it twice, so that all have as much."""

    def __init__(self, sampler, drop_last=False):
        self.sampler, self.epoch = sampler, 0
        sampler.generator = torch.Generator()
        rows = len(sampler) // {world} if drop_last else -(-len(sampler) // {world})
        self.total_size = rows * {world}

    def __len__(self):
        return self.total_size // {world}

    def __iter__(self):
        self.sampler.generator.manual_seed(self.epoch)
        self.epoch += 1
        first, number = [], 0
        for number, index in enumerate(self.sampler, start=1):
            if len(first) < {world}:
                first.append(index)
            if (number - 1) % {world} == {rank} and number <= self.total_size:
                yield index
        for extra in range(number, self.total_size):
            if extra % {world} == {rank}:
                yield first[(extra - number) % len(first)]
''',
    "RankBatches": '''\
class RankBatches:
    """This rank's part of each batch of a batch sampler, which draws on one rank for all."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        drawn = iter(self.batches if {master} else ())
        while True:
            batch = next(drawn, None)
            given = [None if batch is None else list(batch)]
            {share}
            if given[0] is None:
                return
            if len(given[0]) % {world}:
                raise ValueError(f"a batch of {{len(given[0])}} rows cannot be shared evenly by {{{world}}} ranks")
            yield given[0][{rank} :: {world}]
''',
    "in_order": '''\
def in_order(items):
    """List what a set holds, alike on all ranks: numbers as they come, texts sorted, which come otherwise in each."""
    items = list(items)
    return items if all(hasattr(item, "__float__") for item in items) else sorted(items, key=repr)
''',
    "RankStream": '''\
class RankStream(torch.utils.data.IterableDataset):
    """This rank's share of a stream of records; the last ones are left out if there is not one for each rank."""

    def __init__(self, stream):
        self.stream = stream

    def __iter__(self):
        return (records[{rank}] for records in zip(*[iter(self.stream)] * {world}))
''',
}
NEEDED = {
    "all_batches": ("all_sum",),
    "rank_loader": ("rank_share",),
    "all_mean": ("all_sum",),
    "reduce_meters": ("all_sum",),
}
