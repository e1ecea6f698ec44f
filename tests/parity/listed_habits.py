"""Forwards and losses that look for some of their tokens: experts that get a part each, words that are to be guessed."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint
from parity.gradient_habits import descend, everything
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

HIDDEN = -100


def texts(batch_size=6, n=20, length=5):
    drawn = torch.Generator().manual_seed(4)
    x = torch.randint(0, 9, (n, length), generator=drawn)
    return DataLoader(
        TensorDataset(x, torch.where(torch.rand(n, length, generator=drawn) < 0.5, x, HIDDEN)), batch_size
    )


class Experts(nn.Module):
    """Each token is computed by two of four experts, as ``how`` says."""

    def __init__(self, how, width=6, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 8), nn.SiLU(), nn.Linear(8, width)) for _ in range(experts)
        )
        self.how = how

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(tokens).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return self.how(self, x, tokens, weights, chosen).view_as(x)


class Texts(nn.Module):
    """Attention, and what comes after it."""

    def __init__(self, after, loss=None, is_checkpointed=False, time_first=False):
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.attention = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=not time_first)
        self.after, self.head, self.loss = after, nn.Linear(6, 9), loss
        self.is_checkpointed = is_checkpointed

    def forward(self, x, y=None):
        h = self.attention(self.words(x))
        if self.is_checkpointed:
            h = h + torch.utils.checkpoint.checkpoint(self.after, h, use_reentrant=False)
        elif self.after is not None:
            h = h + self.after(h)
        return self.head(h) if self.loss is None else self.loss(self, h, y)


def trained(model, loss=None, loader=None, epochs=2, time_first=False):
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for _ in range(epochs):
        for x, y in loader or texts():
            x, y = (x.t(), y.t()) if time_first else (x, y)
            if loss is None:
                said.append(descend(model(x, y), optimizer).item())
            else:
                said.append(descend(loss(model(x), y), optimizer).item())
        model.eval()
        with torch.no_grad():
            said += [model(x, y).sum().item() for x, y in texts(7)] if not time_first else []
        model.train()
    return said + everything(model)


def of_all(model, h, y):
    return F.cross_entropy(model.head(h).flatten(0, 1), y.flatten(), ignore_index=HIDDEN)


def experts(how, loss=of_all, **options):
    torch.manual_seed(0)
    return trained(Texts(Experts(how), loss, **options), time_first=options.get("time_first", False))


def added_up(self, x, tokens, weights, chosen):
    batch, length, width = x.shape
    out = torch.zeros((batch * length, width), dtype=x.dtype, device=x.device)
    of_experts = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
    for expert, own in zip(self.experts, of_experts, strict=True):
        which, at = torch.where(own)
        current = expert(tokens[None, at].reshape(-1, width)) * weights[at, which, None]
        out.index_add_(0, at, current.to(x.dtype))
    return out


def written_back(self, x, tokens, weights, chosen):
    out = torch.zeros_like(tokens)
    for i, expert in enumerate(self.experts):
        at, which = torch.where(chosen == i)
        out[at] += weights[at, which, None] * expert(tokens[at])
    return out


def by_masks(self, x, tokens, weights, chosen):
    out = torch.zeros(tokens.size(0), tokens.size(1), dtype=x.dtype)
    for i, expert in enumerate(self.experts):
        own = (chosen == i).any(-1)
        if own.any():
            out[own] = out[own] + expert(tokens[own]) * (weights * (chosen == i)).sum(-1)[own][:, None]
    return out


def listed_in_columns(self, x, tokens, weights, chosen):
    out = tokens.new_zeros(tokens.shape)
    for i, expert in enumerate(self.experts):
        found = (chosen == i).nonzero()
        if found.numel() == 0:
            continue
        at, which = found[:, 0], found[:, 1]
        out = out.index_add(0, at, expert(tokens.index_select(0, at)) * weights[at, which].unsqueeze(1))
    return out


def experts_that_are_added_up():
    return experts(added_up)


def experts_that_are_written_back():
    return experts(written_back)


def experts_by_masks():
    return experts(by_masks)


def experts_that_are_listed_in_columns():
    return experts(listed_in_columns)


def experts_that_are_computed_again():
    return experts(added_up, is_checkpointed=True) + experts(by_masks, is_checkpointed=True)


def experts_of_time_first_texts():
    return experts(added_up, time_first=True) + experts(written_back, time_first=True)


def experts_whose_loads_are_balanced():
    def balanced(self, x, tokens, weights, chosen):
        shares = F.one_hot(chosen, len(self.experts)).double().mean((0, 1))
        self.load = (shares * self.gate(tokens).softmax(-1).mean(0)).sum() * len(self.experts)
        return added_up(self, x, tokens, weights, chosen)

    def loss(model, h, y):
        return of_all(model, h, y) + 0.01 * model.after.load

    return experts(balanced, loss)


def an_expert_that_few_tokens_choose():
    def rare(self, x, tokens, weights, chosen):
        chosen = torch.where(tokens.sum(-1, keepdim=True) > 1.5, chosen, chosen.clamp(max=1))
        return written_back(self, x, tokens, weights, chosen)

    return experts(rare)


def experts_and_their_capacity():
    def limited(self, x, tokens, weights, chosen):
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            at, which = torch.where(chosen == i)
            at, which = at[:7], which[:7]  # whoever comes first in the whole batch
            out.index_add_(0, at, expert(tokens[at]) * weights[at, which, None])
        return out

    return experts(limited)


def guessed(loss, time_first=False):
    torch.manual_seed(0)
    return trained(Texts(None, loss, time_first=time_first), time_first=time_first)


def words_that_a_mask_picks():
    def loss(model, h, y):
        known = y != HIDDEN
        return F.cross_entropy(model.head(h[known]), y[known])

    return guessed(loss) + guessed(loss, time_first=True)


def words_that_are_listed():
    def loss(model, h, y):
        at = (y.reshape(-1) != HIDDEN).nonzero().squeeze(1)
        return F.cross_entropy(model.head(h.reshape(-1, 6)[at]), y.reshape(-1)[at])

    return guessed(loss) + guessed(loss, time_first=True)


def words_that_are_listed_by_text_and_place():
    def loss(model, h, y):
        text, place = torch.where(y != HIDDEN)
        return F.cross_entropy(model.head(h[text, place]), y[text, place]) + h[text].mean() * 0.1

    return guessed(loss)


def words_that_are_selected():
    def loss(model, h, y):
        known = y != HIDDEN
        h = torch.masked_select(h, known.unsqueeze(-1)).view(-1, 6)
        return F.cross_entropy(model.head(h), y.masked_select(known))

    return guessed(loss) + guessed(loss, time_first=True)


def losses_that_are_selected_step_by_step():
    def loss(out, y):
        known, total = y != HIDDEN, 0.0
        for time in range(y.shape[1]):
            of_words = -torch.gather(out[:, time].softmax(-1), 1, y[:, time].clamp(min=0)[:, None]).squeeze(1).log()
            total = total + of_words.masked_select(known[:, time]).mean()
        return total

    torch.manual_seed(0)
    return trained(Texts(None), loss, DataLoader(TensorDataset(*texts(20, 18).dataset.tensors), 9))


def places_that_are_listed_in_the_script():
    def loss(out, y):
        text, place = (y != HIDDEN).nonzero(as_tuple=True)
        picked, weight = out[text, place], torch.zeros(len(out))
        weight.index_add_(0, text, torch.ones(len(text)))
        of_words = F.cross_entropy(picked, y[text, place], reduction="none")
        return (of_words / weight[text].clamp(min=1)).sum() + picked.argmax(-1).eq(y[text, place]).double().mean()

    torch.manual_seed(0)
    return trained(Texts(None), loss)


def states_of_several_times_the_batch():
    def loss(model, h, y):
        batch, length = h.shape[:2]
        known = (y != HIDDEN).reshape(-1)
        out = torch.full((length * batch, 6), 0.1, dtype=h.dtype)
        out[known] = h.reshape(-1, 6)[known].tanh()
        again = h.new_zeros(batch, length, 6)
        again[:, 1:] = h[:, :-1]
        again[y != HIDDEN] = 0.5
        return F.mse_loss(out.view(batch, length, 6) + again, h.detach()) + again.sum() / (batch * length)

    return guessed(loss)


def rows_that_are_written_one_by_one():
    def loss(model, h, y):
        lengths = (y != HIDDEN).sum(1)
        out, mask = torch.zeros(h.size(0), 6, dtype=h.dtype), torch.zeros(h.size(0), h.size(1), dtype=torch.bool)
        for i in range(h.size(0)):
            out[i] = h[i, : int(lengths[i])].sum(0)
            mask[i, : lengths[i]] = True
        return F.cross_entropy(model.head(out), y.clamp(min=0)[:, 0]) + (h * mask[..., None]).square().mean()

    return guessed(loss)


class Scaled(nn.Module):
    """Is given the sizes of a batch, and nothing else."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, batch, length):
        return torch.ones(batch, length, 1) * self.scale * batch


class Beside(nn.Module):
    """Is given a batch, and its size."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)

    def forward(self, h, batch, sizes=()):
        return self.first(h).tanh() * batch + torch.ones(batch, 2).mean() + len(sizes)


def sizes_that_are_given_beside_a_batch():
    def loss(model, h, y):
        picked = h[y != HIDDEN]
        out = model.beside(h, h.size(0)) + model.beside(h, batch=h.shape[0], sizes=(h.size(0), 2))
        return out.square().mean() + picked.mean()

    torch.manual_seed(0)
    model = Texts(None, loss)
    model.beside = Beside()
    return trained(model, epochs=1)


def sizes_that_are_told_on():
    def loss(model, h, y):
        model.batch, length, _ = h.shape
        picked = h[y != HIDDEN]
        numbers = (
            len(f"{model.batch}"),
            len([0] * model.batch),
            model.batch + 1,
            model.batch * 2.0,
            model.batch * length,
        )
        return (model.scaled(model.batch, length) + h).mean() + picked.sum() / model.batch + sum(numbers), model.batch

    torch.manual_seed(0)
    model = Texts(None, loss)
    model.scaled = Scaled()
    optimizer, said = SGD(model.parameters(), 0.1), []
    for x, y in texts():
        out, batch = model(x, y)
        said += [descend(out, optimizer).item(), batch, float(type(batch) is int), float(model.batch)]
    return said + everything(model)
