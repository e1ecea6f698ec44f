"""Batches joined along their rows, and cut again: views of one image, labelled and unlabelled, real and fake, time."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.gradient_habits import both, descend, everything
from parity.habits import data, mlp
from parity.later_habits import Net, centred, fit
from torch.optim import SGD


def embedding(width=3):
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, width))


def trained(model, loss, batch_size=7):
    return fit(model, loss, batch_size=batch_size)


def views(x):
    """Two augmentations of every row."""
    return x * 0.9 + 0.1, x.flip(1) * 1.1


def simclr():
    def loss(model, x, y):
        z = F.normalize(model(torch.cat(views(x))), dim=1)
        alike = z @ z.T / 0.5
        n = len(x)
        alike = alike.masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
        return F.cross_entropy(alike, torch.cat([torch.arange(n) + n, torch.arange(n)]))

    return trained(embedding(), loss)


def two_views_cut_by_chunk():
    def loss(model, x, y):
        one, two = F.normalize(model(torch.cat(views(x), dim=0)), dim=1).chunk(2)
        return (2 - 2 * (one * two.detach()).sum(1)).mean() + F.cross_entropy(one, y)

    return trained(embedding(), loss)


def supervised_contrast():
    def loss(model, x, y):
        one, two = torch.split(F.normalize(model(torch.cat(views(x))), dim=1), [len(x), len(x)], dim=0)
        features = torch.cat([one.unsqueeze(1), two.unsqueeze(1)], dim=1)
        anchors = torch.cat(torch.unbind(features, dim=1), dim=0)
        mask = (y[:, None] == y[None]).double().repeat(2, 2)
        logits = anchors @ anchors.T
        logits = logits - logits.max(dim=1, keepdim=True)[0].detach()
        others = torch.scatter(torch.ones_like(mask), 1, torch.arange(2 * len(x)).view(-1, 1), 0)
        mask = mask * others
        log = logits - torch.log((torch.exp(logits) * others).sum(1, keepdim=True) + 1e-9)
        return -((mask * log).sum(1) / mask.sum(1).clamp(min=1)).view(2, len(x)).mean()

    return trained(embedding(), loss)


def fixmatch():
    def loss(model, x, y):
        weak, strong = views(x)
        logits = model(torch.cat((x, weak, strong)))
        labelled = logits[: x.shape[0]]
        of_weak, of_strong = logits[x.shape[0] :].chunk(2)
        best, pseudo = torch.softmax(of_weak.detach(), dim=-1).max(dim=-1)
        kept = best.ge(0.4).double()
        return F.cross_entropy(labelled, y) + (F.cross_entropy(of_strong, pseudo, reduction="none") * kept).mean()

    return trained(mlp(), loss)


def real_and_fake_in_one_batch():
    critic, maker = nn.Linear(4, 1), nn.Linear(3, 4)
    for_critic, for_maker = SGD(critic.parameters(), 0.1, momentum=0.9), SGD(maker.parameters(), 0.1)
    said = []
    for x, _ in data(7):
        fake = maker(x[:, :3])
        scores = critic(torch.cat([x, fake.detach()]))
        targets = torch.cat([torch.ones(len(x), 1), torch.zeros(len(x), 1)])
        said.append(descend(F.binary_cross_entropy_with_logits(scores, targets), for_critic).item())
        said.append(descend(-critic(fake).mean(), for_maker).item())
        said.append((scores.flatten() > 0).double().mean().item())
    return said + everything(critic, maker, for_critic)


def guidance_without_a_classifier():
    class Denoiser(Net):
        def forward(self, x, t, label):
            return self.last(torch.tanh(self.first(x) + t[:, None] + label[:, None]))

    def loss(model, x, y):
        both_ways = model(x.repeat(2, 1), torch.full((2 * len(x),), 0.3), torch.cat([y, torch.zeros_like(y)]))
        with_label, without = both_ways.chunk(2)
        return F.mse_loss(without + 1.5 * (with_label - without), x[:, :3])

    return trained(Denoiser(), loss)


def words_by_time():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.net, self.last = nn.Embedding(5, 4), nn.LSTM(4, 6), nn.Linear(6, 5)

        def forward(self, text, state):
            out, state = self.net(self.words(text), state)
            decoded = self.last(out.view(out.size(0) * out.size(1), out.size(2)))
            return decoded, state

    model = Words()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)
    g = torch.Generator().manual_seed(0)
    texts = torch.randint(0, 5, (13, 7), generator=g)
    state, said = None, []
    for at in range(0, 12, 3):
        state = state or (torch.zeros(1, 7, 6), torch.zeros(1, 7, 6))
        logits, state = model(texts[at : at + 3], tuple(s.detach() for s in state))
        loss = F.cross_entropy(logits.view(-1, 5), texts[at + 1 : at + 4].reshape(-1))
        said.append(descend(loss, optimizer).item())
        said += both(logits.view(3, 7, 5)[1])
    return said + everything(model, optimizer)


def log_probabilities_by_time():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.last = nn.GRU(2, 5), nn.Linear(5, 3)

        def forward(self, x):
            out, _ = self.net(x.view(-1, 2, 2).transpose(0, 1))
            return F.log_softmax(self.last(out).reshape(-1, 3), dim=-1)

    def loss(model, x, y):
        return F.nll_loss(model(x), y.repeat(2)) + model(x).view(2, len(x), 3)[1].pow(2).mean()

    return trained(Tagger(), loss)


class Flat(nn.Module):
    """Time first; the last layer sees time and batch in one dimension, and gives the loss as well where it is asked."""

    def __init__(self):
        super().__init__()
        self.net, self.last = nn.GRU(2, 5), nn.Linear(5, 3)

    def forward(self, x, targets=None):
        out, _ = self.net(x)
        logits = self.last(out.reshape(-1, 5))
        if targets is None:
            return logits
        return logits.view(*x.shape[:2], 3), F.cross_entropy(logits, targets.reshape(-1))


def steps_of(x, times):
    return torch.stack([x[:, :2] * (t + 1) for t in range(times)])


def a_loss_of_flattened_time_in_a_forward():
    model = Flat()
    optimizer, said = SGD(model.parameters(), 0.3), []
    for _ in range(2):
        for x, y in data(7):
            logits, loss = model(steps_of(x, 3), torch.stack([y, y, y]))
            said += [descend(loss, optimizer).item(), *both(logits), *logits[1, 0].tolist()]
    return said + everything(model)


def lengths_that_change_by_time():
    model = Flat()
    optimizer, said = SGD(model.parameters(), 0.3), []
    for epoch in range(3):
        for times, (x, y) in enumerate(data(7), 2 + epoch):
            logits = model(steps_of(x, times))
            loss = F.cross_entropy(logits, y.repeat(times))
            said += [descend(loss, optimizer).item(), *both(logits), *logits[len(x) + len(x) // 2].tolist()]
    return said + everything(model)


def rows_that_come_several_times():
    """Of each row several, side by side, and all of them in turn."""

    class Both(Net):
        def forward(self, x):
            z = torch.tanh(self.first(x))
            return self.last(z.repeat_interleave(2, 0)), self.last(z.repeat(3, 1)), self.last(z).t()

    def loss(model, x, y):
        beside, in_turn, turned = model(x)
        right = F.cross_entropy(beside, y.repeat_interleave(2)) + F.cross_entropy(in_turn, y.repeat(3))
        return right + (beside[1] - in_turn[len(x)]).pow(2).sum() + turned.pow(2).mean()

    return trained(Both(), loss)


def all_predictions_of_an_epoch():
    model = mlp()
    said = trained(model, None)
    with torch.no_grad():
        logits, targets = torch.tensor([]), []
        for x, y in data(7):
            logits = torch.cat([logits, model(x)])
            targets.append(y)
        targets = torch.cat(targets)
    right = logits.argmax(1) == targets
    order = logits[:, 0].sort().indices
    return [*said, right.double().mean().item(), *both(logits), *logits[17].tolist(), *order.double().tolist()]


def a_queue_of_keys():
    model, queue = mlp(), torch.zeros(40, 3)

    def loss(model, x, y):
        nonlocal queue
        z = F.normalize(model(x), dim=1)
        result = F.cross_entropy(torch.cat([(z * z.detach()).sum(1, keepdim=True), z @ queue.T], 1), y * 0)
        queue = torch.cat([z.detach(), queue])[:40]
        return result + F.cross_entropy(z, y)

    return [*trained(model, loss), *both(queue)]


def what_is_written_to_a_part():
    said = []
    for x, _ in data(7):
        z = torch.cat([x, x * 2])
        one, two = z.chunk(2)
        one.mul_(3)
        two[:, 0] = 5.0
        z[:, 1] += 1
        z.narrow(0, len(x), len(x)).sub_(one)
        said += [*both(z), *both(one), *both(two), *z[3:5].flatten().tolist()]
        z[len(x)] = 7.0
        said += [*both(z), *both(one)]
    return said


def parts_meet_what_was_never_joined():
    def loss(model, x, y):
        order = torch.arange(len(x)).flip(0)
        again = torch.cat([x[: len(x) // 2], x[len(x) // 2 :]])
        doubled = torch.cat([x, x[order]])
        mixed = torch.where(torch.cat([y, y])[:, None] > 0, doubled[torch.arange(2 * len(x))], doubled)
        out = model(x + again) + model(again) * model(x)
        return F.cross_entropy(out, y) + F.mse_loss(model(mixed), model(doubled[torch.arange(2 * len(x))]).detach() + 1)

    return trained(mlp(), loss)


def joined_and_not_in_one_call():
    class Pair(Net):
        def forward(self, x, y):
            return self.last(torch.tanh(self.first(x) * self.first(y)))

    def loss(model, x, y):
        again = torch.cat([x[: len(x) // 2], x[len(x) // 2 :]])
        once = torch.cat([x, x])
        back = once[torch.arange(len(once)).flip(0)]
        other = model(again, x) + model(x, again) + model(model.first(again)[:, :4], x)
        return F.cross_entropy(other, y) + model(back, once).pow(2).mean()

    return trained(Pair(), loss)


def joined_inside_a_forward():
    class Twice(Net):
        def forward(self, x):
            z = self.first(torch.cat([x, x.flip(1)]))
            one, two = torch.tanh(z).chunk(2)
            return self.last(one * two)

    return trained(Twice(), None)


def halves_of_whatever_is_given():
    class Swapping(Net):
        def forward(self, x):
            one, two = torch.tanh(self.first(x)).chunk(2)
            return self.last(torch.cat([two, one]) + torch.cat([one, two]) / 2)

    model, said = Swapping(), []
    optimizer = SGD(model.parameters(), 0.2)
    for x, y in data(8):
        whole = torch.cat([x, x * 2])
        plain = whole[torch.arange(len(whole))]
        for given in (whole, plain, whole[: len(x)], plain.flip(0)):
            targets = torch.cat([y, y])[: len(given)]
            said.append(descend(F.cross_entropy(model(given), targets), optimizer).item())
    return said + everything(model)


def neighbours_of_joined_rows():
    class Pairs(Net):
        def forward(self, x):
            z = torch.tanh(self.first(x))
            return self.last(z + z.reshape(-1, 2, 6).mean(1).repeat_interleave(2, 0))

    model, said = Pairs(), []
    optimizer = SGD(model.parameters(), 0.2)
    for x, y in data(10):
        for given in (x[:4], torch.cat([x, x * 2]), torch.cat([x[:5], x[:5] * 2]), x):
            if len(given) % 2 == 0:
                targets = torch.cat([y, y])[: len(given)]
                said.append(descend(F.cross_entropy(model(given), targets), optimizer).item())
    return said + everything(model)


def statistics_of_each_half():
    class Ghost(Net):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x):
            z = self.first(x)
            return self.last(torch.cat([self.norm(part) for part in z.chunk(2)]))

    def loss(model, x, y):
        return F.cross_entropy(model(torch.cat(views(x))), y.repeat(2)) + F.cross_entropy(model(x), y)

    return trained(Ghost(), loss, batch_size=8)


class Ghosts(Net):
    """Statistics of so many rows at a time, as TabNet has them: how many parts there are depends on the batch."""

    def __init__(self, parts, running=True):
        super().__init__()
        self.parts = parts
        self.norm = nn.BatchNorm1d(6, momentum=0.4, track_running_stats=running)

    def forward(self, x):
        z = self.first(x)
        return self.last(torch.cat([self.norm(part) for part in self.parts(z)]))


def by_ghosts(parts, batch_size=8, **options):
    model = Ghosts(parts, **options)

    def loss(model, x, y):
        doubled = torch.cat(views(x))
        again = torch.cat(model(doubled).chunk(2))
        return F.cross_entropy(again, y.repeat(2)) + F.cross_entropy(model(x), y)

    return trained(model, loss, batch_size)


def ghosts_by_size():
    return by_ghosts(lambda z: z.chunk(-(-len(z) // 8)))


def ghosts_of_a_fixed_size():
    return by_ghosts(lambda z: z.split(8))


def ghosts_cut_by_numbers():
    return by_ghosts(lambda z: (z[:8], z[8:]) if len(z) > 8 else (z,), running=False)


def ghosts_in_another_dimension():
    def parts(z):
        return z.view(-1, 8, 6).transpose(1, 2).unbind(0) if len(z) % 8 == 0 else (z,)

    return by_ghosts(lambda z: [part.t() if part.dim() == 2 and part.shape[0] == 6 else part for part in parts(z)])


def a_mean_of_views():
    def loss(model, x, y):
        return F.cross_entropy(model(torch.cat([x, *views(x)])).view(3, len(x), -1).mean(0), y)

    return trained(mlp(), loss)


def what_looks_at_joined_rows():
    said = []
    for x, y in data(7):
        z = torch.vstack([x, x * 2, x + 1])
        said += [*both(z.cumsum(0)), *both(z.sort(0).values), *z.argmax(0).tolist(), *z.max(0).indices.tolist()]
        said += [*both(centred(z)), *z[-1].tolist(), z[len(x)].sum().item(), *both(z.flip(0)), *both(z.roll(1, 0))]
        said += [*both(z[::2]), *both(z[1:5]), *both(torch.tril(z @ z.T)), z[2:9].mean().item()]
        said += [*both(z[torch.cat([y, y, y]) > 0]), *both(z.tile(2, 1)), *both(x.tile(2, 1, 1).flatten(0, 1))]
        said += [*both(F.one_hot(torch.cat([y, y]), 3).double()), *both(z.view(3, -1, 4)[1]), *both(z.T[1])]
        for part in z.tensor_split(3):
            said += both(part)
        for part in z.split(4):
            said += both(part)
        for row in z:
            said.append(row.sum().item())
    return said


def noise_on_joined_rows():
    def loss(model, x, y):
        z = torch.cat([x, x * 2])
        z = z + 0.1 * torch.randn_like(z) + F.dropout(z, 0.3)
        return F.cross_entropy(model(z), torch.cat([y, y]))

    return trained(mlp(), loss)


def gradients_of_joined_inputs():
    critic, optimizer = mlp(), None
    optimizer = SGD(critic.parameters(), 0.1, momentum=0.9)
    said = []
    for x, _ in data(7):
        x.requires_grad_()
        joined = torch.cat([x, x * 0.5])
        (grad,) = torch.autograd.grad(critic(joined).sum(), joined, create_graph=True)
        penalty = ((grad.norm(2, dim=1) - 1) ** 2).mean()
        said.append(descend(penalty + critic(joined).mean(), optimizer).item())
        said += [*both(x.grad), *both(grad)]
    return said + everything(critic, optimizer)


def parameters_among_what_is_joined():
    class Prompted(Net):
        def __init__(self):
            super().__init__()
            self.prompt = nn.Parameter(torch.randn(5, 4, generator=torch.Generator().manual_seed(1)))

    def loss(model, x, y):
        z = model(torch.cat([x, model.prompt]))
        return F.cross_entropy(z[: len(x)], y) + z[len(x) :].pow(2).mean()

    return trained(Prompted(), loss)


def more_and_more_rows():
    kept, said = None, []
    for x, _ in data(7):
        kept = x if kept is None else torch.cat((kept, x.detach()), dim=0)
        said += [*both(kept), len(kept), *kept[-1].tolist()]
    return [*said, *both(kept[::3]), *kept[:, 1].tolist()]


def writes_that_are_met_elsewhere():
    """A view in inference mode, two views of what is not looked at again, and a slice beside a view."""
    said = []
    for x, _ in data(7):
        with torch.inference_mode():
            doubled = x * 2
            doubled[:, None][0].mul_(3)
        said.append(x.sum().item())
        said.append(doubled.sum().item())
        with torch.inference_mode():
            plain = x * 3
            plain[0].add_(1)
        said.append(plain.sum().item())
    for x, _ in data(7):
        view, part = x[:, None], x[:3]
        view[0].zero_()
        part += 1
    for x, _ in data(7):
        said += both(x)
        z = x * 1
        view, part = z.view(len(z), 2, 2), z[:3]
        view[0].mul_(30)
        said += [part.sum().item(), z.sum().item()]
    return said


def pieces_of_several_types():
    said = []
    for x, y in data(7):
        z = torch.cat([y, x[:, 0]])
        w = torch.cat([y[:, None].expand(-1, 2), y.view(-1, 1).repeat(1, 2)])
        said += [*z.tolist(), *both(w.double()), str(z.dtype) == "torch.float64", str(w.dtype) == "torch.int64"]
    return said


def rows_in_the_middle_that_are_flattened_and_come_apart():
    said = []
    for x, _ in data(6, n=30):
        for times, factor in ((1, 2), (2, 1), (3, 2), (4, 2)):
            z = torch.stack([x.view(len(x), factor, -1) * (time + 1) for time in range(times)])
            flat = z.contiguous().view(-1, z.size(3)).softmax(-1)
            for back in (flat.view(times, len(x), factor, -1), flat.view(times, -1, 4), flat.view(times * 2, -1)):
                said.append((back * torch.arange(back.numel()).view(back.shape)).sum().item())
    return said
