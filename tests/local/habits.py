"""Trainings, each written once: with the pieces of hand-written DDP, and as a script for one process has it."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from local.by_hand import Hand, PartOfBatches
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler


def rows(count=70, width=5, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=drawn, dtype=torch.float64)
    return TensorDataset(x, (x.sum(1) > 0).long())


def mlp(*middle, width=5, seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 16), *middle, nn.ReLU(), nn.Linear(16, 2)).double()


def weights(*models):
    return [p.detach().double().flatten().tolist() for model in models for p in model.parameters()]


def trained(hand, model, loader, optimizer, epochs=3, loss_of=F.cross_entropy):
    losses = []
    for epoch in range(epochs):
        for x, y in hand.epoch(loader, epoch):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": losses, "weights": weights(model)}


# --- one function for each habit ----------------------------------------------------------------------------------------


def shuffled(hand):
    model = hand.model(mlp())
    return trained(hand, model, hand.loader(rows(), 12, shuffle=True), torch.optim.SGD(model.parameters(), 0.1, 0.9))


def in_order_with_adam(hand):
    model = hand.model(mlp())
    return trained(hand, model, hand.loader(rows(48), 12), torch.optim.AdamW(model.parameters(), 0.01))


def without_the_last_batch(hand):
    model = hand.model(mlp())
    loader = hand.loader(rows(), 12, shuffle=True, drop_last=True)
    return trained(hand, model, loader, torch.optim.SGD(model.parameters(), 0.1)) | {"len": len(loader)}


def weighted(hand):
    data = rows()
    drawn = torch.Generator().manual_seed(3)
    sampler = WeightedRandomSampler(torch.arange(1.0, 71), 50, generator=drawn)
    model = hand.model(mlp())
    loader = hand.loader(data, 12, sampler=sampler)
    return trained(hand, model, loader, torch.optim.SGD(model.parameters(), 0.1)) | {"len": len(loader)}


def dropout_and_noise(hand):
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    model = hand.model(nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.3), nn.Linear(16, 2)).double())
    hand.seeds(7)
    loader = hand.loader(rows(), 12, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    noise = []
    for epoch in range(2):
        for x, y in hand.epoch(loader, epoch):
            mixed = random.random() + np.random.rand()
            noise.append(mixed)
            loss = F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y) * mixed
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {"noise": noise, "weights": weights(model)}


def accumulated(hand):
    model = hand.model(mlp())
    loader = hand.loader(rows(96), 12, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    norms = []
    for epoch in range(3):
        for step, (x, y) in enumerate(hand.epoch(loader, epoch)):
            (F.cross_entropy(model(x), y) / 4).backward()
            if step % 4 == 3 or step == len(loader) - 1:
                norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
                optimizer.step()
                optimizer.zero_grad()
    return {"norms": norms, "weights": weights(model)}


def accumulated_with_a_ragged_end(hand):
    model = hand.model(mlp())
    loader = hand.loader(rows(84), 12, shuffle=True)  # 7 batches
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    norms = []
    for epoch in range(4):
        for step, (x, y) in enumerate(hand.epoch(loader, epoch)):
            (F.cross_entropy(model(x), y) / 3).backward()
            if step % 3 == 2 or step == len(loader) - 1:
                norms.append(sum(p.grad.norm().item() for p in model.parameters()))
                optimizer.step()
                optimizer.zero_grad()
    return {"norms": norms, "weights": weights(model)}


def batch_norm_of_a_rank(hand):
    """sync_batchnorm=False: DDP sends rank 0's statistics before each forward."""
    net = mlp(nn.BatchNorm1d(16))
    model = hand.model(net)
    found = trained(hand, model, hand.loader(rows(), 12, shuffle=True), torch.optim.SGD(model.parameters(), 0.1))
    model.train()
    x, _ = rows(12, seed=5).tensors
    with torch.no_grad():
        return found | {"eval": net.eval()(x).tolist()}


def validated_with_batch_norm_of_a_rank(hand):
    """Through DDP, which sends rank 0's statistics in evaluation too."""
    model = hand.model(mlp(nn.BatchNorm1d(16)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader, found = hand.loader(rows(), 12, shuffle=True), []
    for epoch in range(2):
        for x, y in hand.epoch(loader, epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            found.append([model(x).tolist() for x, _ in hand.loader(rows(24, seed=5), 12)])
        model.train()
    return found


class Centred(nn.Module):
    """Goes round a centre that follows its rows, and looks at a constant."""

    def __init__(self):
        super().__init__()
        self.net = mlp(nn.BatchNorm1d(16))
        self.register_buffer("centre", torch.zeros(5, dtype=torch.float64))
        self.register_buffer("scale", torch.full((5,), 2.0, dtype=torch.float64))

    def forward(self, x):
        if self.training:
            self.centre.lerp_(x.detach().mean(0), 0.3)
        return self.net((x - self.centre) / self.scale)


def buffers_that_a_forward_writes_to(hand):
    net = Centred()
    net.net[1].eval()
    model = hand.model(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader, found = hand.loader(rows(), 12, shuffle=True), []
    for epoch in range(2):
        for x, y in hand.epoch(loader, epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        net.training = False
        with torch.no_grad():
            found.append([model(x).tolist() for x, _ in hand.loader(rows(24, seed=5), 12)])
        net.training = True
    return found


def gan(hand):
    torch.manual_seed(2)
    makes = hand.model(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5)).double())
    tells = hand.model(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)).double())
    hand.seeds(2)
    of_maker = torch.optim.Adam(makes.parameters(), 0.01)
    of_teller = torch.optim.Adam(tells.parameters(), 0.01)
    losses = []
    loader = hand.loader(rows(48), 12, shuffle=True)
    for epoch in range(2):
        for x, _ in hand.epoch(loader, epoch):
            noise = torch.randn(len(x), 3, dtype=x.dtype)
            fake = makes(noise)
            ones, zeros = x.new_ones(len(x), 1), x.new_zeros(len(x), 1)
            of_teller.zero_grad()
            told = F.binary_cross_entropy_with_logits
            loss = told(tells(x), ones) + told(tells(fake.detach()), zeros)
            loss.backward()
            of_teller.step()
            of_maker.zero_grad()
            fooled = told(tells(fake), ones)
            fooled.backward()
            of_maker.step()
            losses += [loss.item(), fooled.item()]
    return {"losses": losses, "weights": weights(makes, tells)}


class Uneven:
    """Batches of lengths that the script chose."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(4)).tolist()
        yield from (order[:12], order[12:18], order[18:36], order[36:47])

    def __len__(self):
        return 4


def batches_of_its_own(hand):
    model = hand.model(mlp())
    batches = Uneven(47)
    if hand.is_used:
        batches = PartOfBatches(batches, hand.rank, hand.size)
    loader = DataLoader(rows(47), batch_sampler=batches)
    return trained(hand, model, loader, torch.optim.SGD(model.parameters(), 0.1))


class TenTimes(Dataset):
    """Whose rows are asked for by numbers that another set counts."""

    def __len__(self):
        return 480

    def __getitem__(self, index):
        return rows(480)[index]


def sampled_from_a_part(hand):
    """A sampler that draws from another source than the dataset."""
    model = hand.model(mlp())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if hand.is_used:
        dealt = DistributedSampler(range(48), shuffle=True)
        loader = DataLoader(TenTimes(), 12 // hand.size, sampler=dealt)
    else:
        loader = DataLoader(TenTimes(), 12, sampler=RandomSampler(range(48)))
    return trained(hand, model, loader, optimizer) | {"len": len(loader)}


class AsSet(BatchSampler):
    """Other batches in each epoch that it is told."""

    def __init__(self, size):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = np.random.RandomState(self.epoch).permutation(48).tolist()
        return iter([order[at : at + self.size] for at in range(0, 48, self.size)])

    def __len__(self):
        return 48 // self.size


def epochs_of_as_set(hand, numbers, is_told):
    model = hand.model(mlp())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = AsSet(12)
    part = PartOfBatches(batches, hand.rank, hand.size) if hand.is_used else batches
    loader, found = DataLoader(rows(48), batch_sampler=part), []
    for epoch in numbers:
        if is_told or hand.is_used:
            batches.set_epoch(epoch)
        found.append(trained(hand, model, loader, optimizer, 1))
    return {"epochs": found}


def told_its_epoch(hand):
    """By the script, from the tenth epoch on."""
    return epochs_of_as_set(hand, range(10, 13), is_told=True)


def not_told_its_epoch(hand):
    """As ``set_epoch`` is forgotten."""
    return epochs_of_as_set(hand, range(3), is_told=False)


class AtOnce(Dataset):
    """Gives many rows at once, which a batch sampler asks for in the place of a sampler."""

    def __len__(self):
        return 50

    def __getitem__(self, indices):
        x, y = rows(50).tensors
        return x[indices], y[indices]


def many_rows_at_once(hand):
    model = hand.model(mlp())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if hand.is_used:
        dealt = DistributedSampler(AtOnce(), shuffle=True)
        batches = BatchSampler(dealt, 12 // hand.size, drop_last=False)
    else:
        batches = BatchSampler(RandomSampler(AtOnce()), 12, drop_last=False)
    loader, found = DataLoader(AtOnce(), sampler=batches, batch_size=None), []
    for epoch in range(3):
        if hand.is_used:
            dealt.set_epoch(epoch)
        found.append(trained(hand, model, loader, optimizer, 1))
    return {"epochs": found, "len": len(loader)}


def batch_sampler_of_torchs(hand):
    model = hand.model(mlp())
    data = rows(48)
    if hand.is_used:
        loader = hand.loader(data, 12, shuffle=True)
    else:
        loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 12, drop_last=False))
    return trained(hand, model, loader, torch.optim.SGD(model.parameters(), 0.1))


class Stream(IterableDataset):
    def __init__(self, data, rank=0, size=1):
        self.data, self.rank, self.size = data, rank, size

    def __iter__(self):
        pairs = [self.data[i] for i in range(len(self.data))]
        pairs += pairs[: -len(pairs) % self.size]
        yield from pairs[self.rank :: self.size]


def streamed(hand):
    model = hand.model(mlp())
    loader = DataLoader(Stream(rows(50), hand.rank, hand.size), 12 // hand.size)
    return trained(hand, model, loader, torch.optim.SGD(model.parameters(), 0.1))


class Sentences(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, i):
        drawn = torch.Generator().manual_seed(i)
        length = 2 + i % 5
        return torch.randn(length, 4, generator=drawn, dtype=torch.float64), i % 3


def padded(batch):
    return pad_sequence([x for x, _ in batch], batch_first=True), torch.tensor([y for _, y in batch])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.reads = nn.LSTM(4, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x, y):
        out = self.head(self.reads(x)[0][:, -1])
        return F.cross_entropy(out, y), {"out": out}


def lstm_with_its_loss_inside(hand):
    torch.manual_seed(3)
    model = hand.model(Reader().double())
    loader = hand.loader(Sentences(), 12, shuffle=True, collate_fn=padded)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for epoch in range(2):
        for x, y in hand.epoch(loader, epoch):
            loss, more = model(x, y)
            optimizer.zero_grad()
            (loss + 1e-3 * more["out"].square().mean()).backward()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": losses, "weights": weights(model)}


class Augmented(Dataset):
    def __init__(self):
        self.x = rows().tensors[0]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] * (1 + random.random()) + torch.randn(5), int(i % 2)


def augmented_by_workers(hand):
    torch.manual_seed(11)
    model = hand.model(mlp())
    torch.manual_seed(11)
    hand.seeds(11)
    loader = hand.loader(Augmented(), 12, shuffle=True, num_workers=-(-2 // hand.size) if hand.is_used else 2)
    return trained(hand, model, loader, torch.optim.SGD(model.parameters(), 0.1), epochs=2)


def one_optimizer_for_two_models(hand):
    torch.manual_seed(5)
    first = hand.model(nn.Linear(5, 8).double())
    second = hand.model(nn.Linear(8, 2).double())
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    loader = hand.loader(rows(), 12, shuffle=True)
    losses = []
    for epoch in range(3):
        for x, y in hand.epoch(loader, epoch):
            loss = F.cross_entropy(second(first(x).relu()), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    return {"losses": losses, "weights": weights(first, second)}


def sparse_embedding(hand):
    torch.manual_seed(6)

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(30, 6, sparse=True)
            self.head = nn.Linear(6, 2)

        def forward(self, words):
            return self.head(self.table(words).mean(1))

    model = hand.model(Words().double())
    words = torch.randint(30, (60, 4), generator=torch.Generator().manual_seed(1))
    loader = hand.loader(TensorDataset(words, words.sum(1) % 2), 12, shuffle=True)
    return trained(hand, model, loader, torch.optim.SGD(model.parameters(), 0.1))


def graph_in_a_sparse_buffer(hand):
    torch.manual_seed(7)

    class Neighbours(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("graph", (torch.eye(30) + torch.rand(30, 30).gt(0.8)).double().to_sparse())
            self.table = nn.Embedding(30, 2)

        def forward(self, rows):
            return torch.sparse.mm(self.graph, self.table.weight)[rows]

    module = Neighbours().double()
    if hand.is_used:  # DDP broadcasts no sparse buffers
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["graph"])
    model = hand.model(module)
    rows = torch.randint(30, (60,), generator=torch.Generator().manual_seed(1))
    loader = hand.loader(TensorDataset(rows, rows % 2), 12, shuffle=True)
    return trained(hand, model, loader, torch.optim.SGD(model.parameters(), 0.1))


def gradient_penalty(hand):
    torch.manual_seed(8)
    tells = hand.model(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double())
    hand.seeds(8)
    optimizer = torch.optim.Adam(tells.parameters(), 0.01)
    losses = []
    loader = hand.loader(rows(), 12, shuffle=True)
    for epoch in range(2):
        for x, _ in hand.epoch(loader, epoch):
            mixed = (x + torch.rand(len(x), 1, dtype=x.dtype)).requires_grad_()
            (slope,) = torch.autograd.grad(tells(mixed).sum(), mixed, create_graph=True)
            loss = tells(x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": losses, "weights": weights(tells)}


def gradients_that_are_asked_for(hand):
    """By torch.autograd.grad, of a model and of a tensor beside it, both of which an optimizer trains."""
    model, scale, found = mlp(), torch.ones(2, dtype=torch.float64, requires_grad=True), []  # DDP hears of no such
    held = [*model.parameters(), scale]
    optimizer = torch.optim.SGD(held, 0.1)
    for epoch in range(3):
        for x, y in hand.epoch(hand.loader(rows(48), 12), epoch):
            loss = F.cross_entropy(model(x.requires_grad_()) * scale, y)
            *grads, of_rows = torch.autograd.grad(loss, [*held, x])
            for p, grad in zip(held, hand.means(grads), strict=True):
                p.grad = grad
            optimizer.step()
            found += [loss.item(), of_rows.abs().sum().item()]
    return {"found": found, "weights": weights(model), "scale": scale.tolist()}


def seeded_between_trainings(hand):
    found = []
    for fold in range(2):
        model = hand.model(mlp())  # from a seed of its own
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = trained(hand, model, hand.loader(rows(), 12, shuffle=True), optimizer, epochs=1)
        torch.manual_seed(9 + fold + hand.rank)
        random.seed(9 + fold + hand.rank)
        np.random.seed(9 + fold + hand.rank)
        found += [losses, [torch.rand(1).item(), random.random(), np.random.rand(), torch.rand(1).item()]]
    return found


def loaders_made_anew(hand):
    """For each epoch, and for two trainings; in a function that has two of a kind at once."""
    found = []
    for _ in range(2):
        model = hand.model(mlp())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for epoch in range(3):
            for x, y in hand.epoch(hand.loader(rows(), 12, shuffle=True), epoch):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                found.append(x.sum().item())
        two = [hand.loader(rows(seed=seed), 12, shuffle=True) for seed in (1, 2)]
        for epoch in range(2):
            for loader in two:
                found += [x.sum().item() for x, _ in hand.epoch(loader, epoch)]
    return found


def without_ddp_patch(name):
    hand = Hand(True)
    try:
        return globals()[name](hand)
    finally:
        hand.end()


def with_ddp_patch(name):
    return globals()[name](Hand(False))
