"""What a careful engineer writes: torch's own pieces and nothing of ddp_patch's."""

import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler


class Hand:
    """The pieces, for a training that is written once with them and once without."""

    def __init__(self, is_used):
        self.is_used = is_used
        self.rank, self.size = 0, 1
        self.wrapped = []
        if is_used:
            # Not the launcher's store, where other tests' ranks may have been.
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            store = dist.PrefixStore("by hand", dist.TCPStore(host, port, is_master=False))
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size)

    def loader(self, dataset, batch_size, shuffle=False, sampler=None, drop_last=False, **options):
        if not self.is_used:
            return DataLoader(dataset, batch_size, shuffle=shuffle, sampler=sampler, drop_last=drop_last, **options)
        if sampler is None:
            dealt = DistributedSampler(dataset, shuffle=shuffle, drop_last=drop_last)
        else:
            dealt = Drawn(sampler, drop_last)
        return DataLoader(dataset, batch_size // self.size, sampler=dealt, drop_last=drop_last, **options)

    def epoch(self, loader, epoch):
        if self.is_used and isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        return loader

    def seeds(self, seed):
        """After the model was made."""
        if self.is_used:
            torch.manual_seed(seed + self.rank)
            random.seed(seed + self.rank)
            np.random.seed(seed + self.rank)

    def means(self, grads):
        """Over the ranks, in place: of what DDP does not reach."""
        if self.is_used:
            for grad in grads:
                dist.all_reduce(grad)
                grad /= self.size
        return grads

    def model(self, module, **options):
        if not self.is_used:
            return module
        self.wrapped.append(DistributedDataParallel(module, **options))
        return self.wrapped[-1]

    def end(self):
        if self.is_used:
            # A reducer that is the last to know its group waits, with the GIL, for the group's threads, of which one may
            # want the GIL to let go of the last collective (gloo, torch 2.13).
            for wrapped in self.wrapped:
                del wrapped.reducer, wrapped.logger
            dist.destroy_process_group()


class Drawn(DistributedSampler):
    """A sampler's indices, drawn alike on every rank."""

    def __init__(self, sampler, drop_last):
        super().__init__(sampler, shuffle=False, drop_last=drop_last)
        self.sampler_of_one = sampler

    def __iter__(self):
        order = list(self.sampler_of_one)  # from a generator of its own
        return iter([order[at] for at in super().__iter__()])


class PartOfBatches(BatchSampler):
    """A rank's part of the batches of another batch sampler."""

    def __init__(self, batches, rank, size):
        self.batches, self.rank, self.size = batches, rank, size

    def __iter__(self):
        for batch in self.batches:
            batch = list(batch)
            batch += batch[: -len(batch) % self.size]
            yield batch[self.rank :: self.size]

    def __len__(self):
        return len(self.batches)
