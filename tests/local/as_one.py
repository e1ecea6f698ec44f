"""Trainings in order and with even shares, where the mean of the ranks' gradients is that of the whole batch."""

import itertools

import torch
import torch.nn.functional as F
from local.habits import Uneven, mlp, rows, weights
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Subset

import ddp_patch


def steps(loader, optimizer, loss_of, epochs=2, models=(), weigh=False):
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(x, y)
            loss.backward()
            optimizer.step()
            losses.append(float(ddp_patch.mean(loss)))
    return {"losses": [] if weigh else losses, "weights": weights(*models)}


def batch_norm():
    model = mlp(nn.BatchNorm1d(16))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = steps(DataLoader(rows(48), 12), optimizer, lambda x, y: F.cross_entropy(model(x), y), models=[model])
    return found | {"mean": model[1].running_mean.tolist(), "var": model[1].running_var.tolist()}


def batch_norm_computed_again(use_reentrant):
    """In a backward, past the model's own call."""
    first, norm, last = mlp(nn.BatchNorm1d(16)), nn.BatchNorm1d(2).double(), nn.Linear(2, 2).double()
    model = nn.Sequential(first, norm, last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return last(norm(checkpoint(first, x.requires_grad_(), use_reentrant=use_reentrant)))

    net = Net()
    found = steps(DataLoader(rows(48), 12), optimizer, lambda x, y: F.cross_entropy(net(x), y), models=[net])
    return found | {"mean": first[1].running_mean.tolist(), "var": first[1].running_var.tolist()}


def batch_norm_past_forward():
    """In a method of the model's beside ``forward``, and without affine parameters."""
    model = Coder(nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(x, y):
        return F.cross_entropy(model(x), y) + (model.encode(x) - 0.3).square().mean()

    first = steps(DataLoader(rows(48), 12), optimizer, loss_of, models=[model])
    model.float().double()  # whose buffers are others from here on
    second = steps(DataLoader(rows(48), 12), optimizer, loss_of, models=[model])
    return [first, second, *(norm.running_var.tolist() for norm in model.norms)]


class Coder(nn.Module):
    def __init__(self, *norms):
        super().__init__()
        torch.manual_seed(2)
        self.codes, self.head = nn.Linear(5, 8), nn.Linear(8, 2)
        self.norms = nn.ModuleList(norms)

    def encode(self, x):
        x = self.codes(x)
        for norm in self.norms:
            x = norm(x)
        return x.relu()

    def forward(self, x):
        return self.head(self.encode(x))


def a_method_beside_forward():
    model = Coder().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)

    def loss_of(x, y):
        return F.cross_entropy(model(x), y) + model.encode(x).square().mean()

    return steps(DataLoader(rows(48), 12), optimizer, loss_of, models=[model])


def a_method_alone():
    """DDP's forward is never called."""
    model = Coder().double()
    optimizer = torch.optim.SGD(model.codes.parameters(), 0.1)
    return steps(DataLoader(rows(48), 12), optimizer, lambda x, y: model.encode(x).square().mean(), models=[model])


def forward_then_a_method():
    """A backward of DDP's forward, then one past it."""
    model = Coder().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for x, y in DataLoader(rows(48), 12):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        model.encode(x).square().mean().backward()
        losses.append(sum(p.grad.norm().item() for p in model.parameters()))
        optimizer.step()
    return {"norms": losses, "weights": weights(model)}


def evaluated_with_gradients_before_a_method():
    """A forward that no backward follows, then a backward that reaches a part of the model past DDP."""
    model = Coder().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(rows(48), 12):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        model(x)
        optimizer.zero_grad()
        (model.head.weight.square().sum() * x.square().mean()).backward()
        optimizer.step()
    return weights(model)


def a_graph_kept():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(rows(48), 12):
        out = model(x)
        optimizer.zero_grad()
        F.cross_entropy(out, y).backward(retain_graph=True)
        out.square().mean().backward()
        optimizer.step()
    return weights(model)


def a_parameter_beside():
    model = mlp()
    temperature = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = torch.optim.Adam([*model.parameters(), temperature], 0.01)
    found = steps(
        DataLoader(rows(48), 12), optimizer, lambda x, y: F.cross_entropy(model(x) * temperature, y), models=[model]
    )
    return found | {"temperature": temperature.item()}


def unfrozen_between_epochs():
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(rows(48), 12)
    first = steps(loader, optimizer, lambda x, y: F.cross_entropy(model(x), y), models=[model])
    model[0].requires_grad_(True)
    return [first, steps(loader, optimizer, lambda x, y: F.cross_entropy(model(x), y), models=[model])]


def unfrozen_in_an_epoch():
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    norms = []
    for step, (x, y) in enumerate(DataLoader(rows(48), 12)):
        if step == 2:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
        optimizer.step()
    return norms, weights(model)


class Sometimes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.always, self.seldom = nn.Linear(5, 2), nn.Linear(5, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.always(x) + (self.seldom(x) if self.calls % 2 else 0)


def unused_parameters():
    model = Sometimes().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return steps(DataLoader(rows(48), 12), optimizer, lambda x, y: F.cross_entropy(model(x), y), models=[model])


def steps_by_hand():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(rows(48), 12):
        loss = F.cross_entropy(model(x), y)
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True):
            p.data -= 0.1 * g
    assert optimizer
    return weights(model)


def computed_again():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(x, y):
        return F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)

    return steps(DataLoader(rows(48), 12), optimizer, loss_of, models=[model])


def compiled():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = torch.compile(model, backend="eager")
    return steps(DataLoader(rows(48), 12), optimizer, lambda x, y: F.cross_entropy(run(x), y), models=[model])


def in_data_parallel():
    model = nn.DataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = steps(DataLoader(rows(48), 12), optimizer, lambda x, y: F.cross_entropy(model(x), y), models=[model])
    return found | {"keys": list(model.state_dict())}


def parts_apart():
    """Parts are called before the whole is."""
    model = Coder().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(rows(48), 12)
    first = steps(loader, optimizer, lambda x, y: model.head(model.codes(x)).square().mean(), models=[model])
    return [first, steps(loader, optimizer, lambda x, y: F.cross_entropy(model(x), y), models=[model])]


def closures():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4)
    losses = []
    for x, y in DataLoader(rows(48), 24):
        for _ in range(2):

            def again(x=x, y=y):
                optimizer.zero_grad()
                # LBFGS decides by it, so that it has to be that of all rows.
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return ddp_patch.mean(loss)

            losses.append(float(optimizer.step(again)))
    return {"losses": losses, "weights": weights(model)}


def scaled():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for step, (x, y) in enumerate(DataLoader(rows(48), 12)):
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=False):
            loss = F.cross_entropy(model(x), y)
        if step == 2 and ddp_patch.rank() == 0:
            loss = loss * float("inf")  # overflows on one rank
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return {"scale": scaler.get_scale(), "weights": weights(model)}


def exact_tail(count):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    loader = DataLoader(rows(count), 12)
    found = steps(loader, optimizer, lambda x, y: F.cross_entropy(model(x), y), 3, [model], weigh=True)
    with torch.no_grad():
        seen = [y for x, y in loader]
    return found | {
        "rows": ddp_patch.sum(sum(len(y) for y in seen)),
        "ones": ddp_patch.sum(sum(map(torch.sum, seen))).item(),
    }


def exact_tail_of_batches():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    loader = DataLoader(rows(47), batch_sampler=Uneven(47))
    return steps(loader, optimizer, lambda x, y: F.cross_entropy(model(x), y), 3, [model], weigh=True)


def empty_group():
    """An optimizer may begin with a group of nothing."""
    model = mlp()
    optimizer = torch.optim.SGD([{"params": []}, {"params": model.parameters()}], 0.1)
    return steps(DataLoader(rows(48), 12), optimizer, lambda x, y: F.cross_entropy(model(x), y), 2, [model])


def exact_tail_of_small_batches():
    """Some have fewer rows than there are ranks."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(rows(24), batch_sampler=[[*range(7)], [7], [8, 9], [*range(10, 24)]])
    return steps(loader, optimizer, lambda x, y: F.cross_entropy(model(x), y), 2, [model], weigh=True)


def exact_tail_without_a_loader():
    """Batches of any size, after a loader's, around a validation, and in turn with those of a loader."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)

    def step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    loader = DataLoader(rows(25), 12)
    for batch in loader:
        step(*batch)
    for count in (12, 13, 1, 6, 11):
        batch = ddp_patch.shard_batch(rows(count).tensors)
        with torch.no_grad():
            for x, _ in loader:
                model(x)
        step(*batch)
    for batch in loader:
        step(*batch)
        step(*ddp_patch.shard_batch(rows(7).tensors))
    return weights(model)


def exact_tail_of_two_models(count):
    """One reads what the other makes, and a penalty looks at the gradient of what goes in."""
    torch.manual_seed(4)
    makes = nn.Linear(5, 5).double()
    tells = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    temperature = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = torch.optim.SGD([*makes.parameters(), *tells.parameters(), temperature], 0.1)

    def loss_of(x, y):
        made = makes(x)
        seen = made.detach().requires_grad_()
        (slope,) = torch.autograd.grad(tells(seen).sum(), seen, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return F.cross_entropy(tells(made) * temperature, y) + penalty + 0.01 * tells[0].weight.square().sum()

    return steps(DataLoader(rows(count), 12), optimizer, loss_of, 2, [makes, tells], weigh=True) | {
        "temperature": temperature.item()
    }


def exact_tail_past_forward(count):
    """A method beside forward, and a model whose gradients are all sparse."""
    model = Coder().double()
    torch.manual_seed(3)
    table = nn.Embedding(2, 2, sparse=True).double()
    optimizer = torch.optim.SGD([*model.parameters(), *table.parameters()], 0.1)

    def loss_of(x, y):
        return F.cross_entropy(model(x) + table(y), y) + model.encode(x).square().mean()

    return steps(DataLoader(rows(count), 12), optimizer, loss_of, 2, [model, table], weigh=True)


def exact_tail_accumulated(count):
    """The last batches step by themselves, counted by the loader's length."""
    model = mlp(nn.BatchNorm1d(16))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader, norms = DataLoader(rows(count), 12), []
    model[1].eval()  # a rank without a row would show it the batch before
    for _ in range(3):
        for step, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y) / 3).backward()
            if step % 3 == 2 or step == len(loader) - 1:
                norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
                optimizer.step()
                optimizer.zero_grad()
    return {"norms": norms, "weights": weights(model), "len": len(loader)}


def converted_and_back():
    """To save it, and later in every step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    turn = itertools.count()

    def loss_of(x, y):
        if next(turn) in (3, 5, 6, 7, 8):
            model.float().double()
        return F.cross_entropy(model(x), y)

    return steps(DataLoader(rows(48), 12), optimizer, loss_of, 3, [model])


def a_step_within_the_loss():
    """Second derivatives, of losses of the ranks' own rows (MAML)."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(x, y):
        before = dict(model.named_parameters())
        inner = F.cross_entropy(model(x), y)
        slopes = torch.autograd.grad(inner, before.values(), create_graph=True)
        after = {name: value - 0.3 * slope for (name, value), slope in zip(before.items(), slopes, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, after, (x + 0.1,)), y)

    return steps(DataLoader(rows(48), 12), optimizer, loss_of, models=[model])


def evaluated_before_training():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.inference_mode():
        before = [float(ddp_patch.mean(F.cross_entropy(model(x), y))) for x, y in DataLoader(rows(48), 12)]
    found = steps(DataLoader(rows(48), 12), optimizer, lambda x, y: F.cross_entropy(model(x), y), models=[model])
    return found | {"before": before}


def statistics_of_a_copy():
    model = mlp(nn.BatchNorm1d(16))
    optimizer, mean_of = torch.optim.SGD(model.parameters(), 0.1), AveragedModel(model)
    loader = DataLoader(rows(48), 12)
    found = steps(loader, optimizer, lambda x, y: F.cross_entropy(model(x), y), models=[model])
    mean_of.update_parameters(model)
    update_bn(loader, mean_of)
    norm = mean_of.module[1]
    return found | {"mean": norm.running_mean.tolist(), "var": norm.running_var.tolist()}


def in_groups(how, size=None):
    """What one rank trains on at a time, and ``size`` of these together as one process has them."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    parts = [[0, 1, 2], [3, 4], [5, 6, 7], [8], [9, 10, 11]] if how == "batches" else [[i] for i in range(7)]
    if size is not None:
        parts = [[*itertools.chain(*parts[at : at + size])] for at in range(0, len(parts), size)]
    if how == "batches" or size is not None:
        loader = DataLoader(rows(12), batch_sampler=parts)
    else:
        loader = DataLoader(Subset(rows(12), range(7)), batch_size=None)

    def loss_of(x, y):
        return F.cross_entropy(model(x.reshape(-1, 5)), y.reshape(-1))

    return steps(loader, optimizer, loss_of, 2, [model], weigh=True) | {"len": len(loader)}


def run(name, *args):
    return globals()[name](*args)
