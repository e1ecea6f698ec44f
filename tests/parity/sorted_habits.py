"""Forwards that sort their tokens, compute them in groups, and put them back: experts, and texts of several lengths."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.listed_habits import Experts, Texts, experts, of_all, trained
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Matrices(Experts):
    """Experts as one tensor of matrices."""

    def __init__(self, how, width=6, experts=4):
        super().__init__(how, width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 8) / 3)
        self.down = nn.Parameter(torch.randn(experts, 8, width) / 3)


def in_matrices(how, loss=of_all, **options):
    torch.manual_seed(0)
    return trained(Texts(Matrices(how), loss, **options), time_first=options.get("time_first", False))


def grouped(x, matrices, ends):
    """``F.grouped_mm``, which computes no float64, as it stood in torch 2.8."""
    parts, start = [], 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        parts.append(x[start:end] @ matrix)
        start = end
    return torch.cat(parts)


def one_by_one(x, matrices, numbers):
    return torch.bmm(x.unsqueeze(1), matrices[numbers]).squeeze(1)


def put_back(self, x, tokens, weights, chosen, product=None):
    count, top = tokens.size(0), chosen.size(-1)
    numbers, order = torch.sort(chosen.reshape(-1))
    ends = torch.histc(numbers.float(), bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
    h = tokens[order // top]
    if product is None:
        h = grouped(F.silu(grouped(h, self.up, ends)), self.down, ends)
    else:
        h = product(F.silu(product(h, self.up, numbers)), self.down, numbers)
    h = h * weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0))
    return h[back].view(count, top, -1).sum(dim=1)


def put_back_one_by_one(self, x, tokens, weights, chosen):
    return put_back(self, x, tokens, weights, chosen, one_by_one)


def written_in_order(self, x, tokens, weights, chosen):
    numbers = chosen.view(-1)
    order = numbers.argsort()
    counts = torch.bincount(numbers, minlength=4)
    h, outputs, start = tokens[order // chosen.shape[1]], [], 0
    for expert, count in zip(self.experts, counts.tolist(), strict=True):
        if count == 0:
            continue
        outputs.append(expert(h[start : start + count]))
        start += count
    outs = torch.cat(outputs)
    back = torch.empty_like(outs)
    back[order] = outs
    return (back.view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


def sorted_twice(self, x, tokens, weights, chosen):
    numbers = chosen.flatten()
    order = torch.argsort(numbers, stable=True)
    h = tokens.repeat_interleave(2, dim=0)[order]
    parts = h.split(torch.bincount(numbers, minlength=4).tolist())
    h = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True) if len(part)])
    h = h[order.argsort()].view(-1, 2, tokens.shape[1])
    return torch.einsum("nkd,nk->nd", h, weights)


def added_in_order(self, x, tokens, weights, chosen):
    numbers, order = chosen.flatten().sort(descending=True)
    at = order.div(2, rounding_mode="floor")
    h = one_by_one(tokens[at], self.up, numbers).relu()
    h = one_by_one(h, self.down, numbers) * weights.view(-1, 1)[order]
    return torch.zeros_like(tokens).index_add_(0, at, h)


def scored(self, x, tokens, weights, chosen):
    """The tokens that are looked for come first, by how sure the gate is; a fourth of them is left out."""
    best = weights[:, 0]
    order = best.detach().argsort(descending=True)
    kept = order[: order.numel() - order.numel() // 4]
    h = self.experts[0](tokens[kept]) * best[kept, None]
    return torch.zeros_like(tokens).index_copy(0, kept, h)


def dispatched(self, x, tokens, weights, chosen):
    """As the sparsely-gated experts of Shazeer et al. (2017) are mostly written: gates are sorted, expert by expert."""
    gates = torch.zeros(len(tokens), 4).scatter(1, chosen, weights)
    by_expert, order = torch.nonzero(gates).sort(0)
    at = torch.nonzero(gates)[order[:, 1], 0]
    own = torch.gather(gates[at.flatten()], 1, by_expert[:, 1:])
    parts = torch.split(tokens[at], (gates > 0).sum(0).tolist(), dim=0)
    h = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)], 0) * own
    return torch.zeros(len(tokens), h.size(1), requires_grad=True).index_add(0, at, h)


def with_balance(self, x, tokens, weights, chosen):
    numbers = chosen.view(-1).sort()[0]
    share = torch.histc(numbers.double(), bins=4, min=0, max=3) / numbers.numel()
    self.balance = (share * self.gate(tokens).softmax(-1).mean(0)).sum()
    return put_back(self, x, tokens, weights, chosen, one_by_one)


def and_balance(model, h, y):
    return of_all(model, h, y) + 0.1 * model.after.balance


def sorted_experts_that_are_put_back():
    return in_matrices(put_back)


def sorted_experts_that_are_put_back_one_by_one():
    return in_matrices(put_back_one_by_one)


def sorted_experts_that_are_written_in_order():
    return experts(written_in_order)


def sorted_experts_that_are_sorted_twice():
    return experts(sorted_twice)


def sorted_experts_that_are_added_in_order():
    return in_matrices(added_in_order)


def sorted_experts_that_are_dispatched():
    return experts(dispatched)


def sorted_experts_that_are_computed_again():
    return in_matrices(put_back_one_by_one, is_checkpointed=True)


def sorted_experts_time_first():
    return in_matrices(put_back_one_by_one, time_first=True)


def sorted_experts_time_first_that_are_put_back():
    return in_matrices(put_back, time_first=True)


def sorted_experts_with_a_loss_of_balance():
    return in_matrices(with_balance, and_balance)


def sorted_experts_whose_loss_is_outside():
    torch.manual_seed(0)
    return trained(Texts(Matrices(put_back_one_by_one)), of_words)


def sorted_tokens_of_which_the_best_are_kept():
    return experts(scored)


class ByLength(nn.Module):
    """Sorts its texts by their lengths, as packing asked for before torch 1.1, and puts their states back."""

    def __init__(self, how):
        super().__init__()
        self.words, self.rnn, self.head = nn.Embedding(9, 6), nn.GRU(6, 5, batch_first=True), nn.Linear(5, 9)
        self.how = how

    def forward(self, x, y=None):
        lengths = 1 + (x[:, 1:] > 3).sum(1)
        lengths, order = lengths.sort(0, descending=True)
        h = self.words(x)[order]
        h = self.how(self, h, lengths)
        out = h[order.argsort()]
        return self.head(out)


def packed(model, h, lengths):
    states = model.rnn(pack_padded_sequence(h, lengths.cpu(), batch_first=True))[0]
    return pad_packed_sequence(states, batch_first=True, total_length=5)[0]


def in_place(model, h, lengths):
    states = model.rnn(h)[0]
    states[torch.arange(5) >= lengths[:, None]] = 0.0
    return states


def of_words(out, y):
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=-100)


def texts_that_are_sorted_and_packed():
    torch.manual_seed(0)
    return trained(ByLength(packed), of_words)


def texts_that_are_sorted_and_cut_off():
    torch.manual_seed(0)
    return trained(ByLength(in_place), of_words)


class Sorted(nn.Module):
    """What it gives is sorted."""

    def __init__(self, how):
        super().__init__()
        self.words, self.head, self.how = nn.Embedding(9, 6), nn.Linear(6, 3), how

    def forward(self, x, y=None):
        return self.how(self, x, self.head(self.words(x).mean(1)))


def in_order(model, x, out):
    return out[x[:, 0].argsort()]


def both(model, x, out):
    numbers, order = x[:, 0].sort(stable=True)
    return torch.cat([out[order] * numbers[:, None], out])[::2]


def neighbours(model, x, out):
    order = x.sum(1).argsort()
    near = out[order]
    return (near[1:] - near[:-1]).square().sum(1)


def places(model, x, out):
    order = (x[:, 0] * 5 + x[:, 1]).argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(x))
    return out * rank[:, None] / len(x)


def told(how):
    torch.manual_seed(0)
    return trained(Sorted(how), lambda out, y: out.square().mean() + (out.flatten() * 0.01).sum())


def shuffled(model, x, out):
    """As MoCo does, so that no GPU normalises what it is to be compared with."""
    order = torch.arange(len(x)).roll(len(x) // 2).flip(0)
    h = F.batch_norm(out[order], None, None, training=True).tanh()
    return h[torch.argsort(order)] + out


def mixed(model, x, out):
    order = torch.arange(len(x)).flip(0)
    return 0.7 * out + 0.3 * out[order]


def outputs_that_were_shuffled():
    return told(shuffled)


def outputs_that_are_mixed():
    return told(mixed)


def outputs_that_are_sorted():
    return told(in_order)


def outputs_that_are_sorted_and_joined():
    return told(both)


def outputs_of_sorted_neighbours():
    return told(neighbours)


def outputs_by_their_place():
    return told(places)
