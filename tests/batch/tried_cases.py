"""Random calls of functions that have no rule, again and again: they are tried once, and then compute rows."""

import numpy as np
import torch
import torch.nn.functional as F
from cases import Call, batch, generator
from memory_cases import gathers


def apart(r):
    """What keeps rows apart gathers nothing once it was seen to; numbers of Python may be others each time."""
    x, dim = batch(r, dims=3, dim=0)
    weight = torch.rand(x.shape[1], 3, generator=generator(r))
    form = r.randrange(16)

    def function(x, weight):
        def tried(x):
            if form == 0:
                return torch.einsum("bij,ik->bkj", x, weight)
            if form == 1:
                return torch.view_as_real(torch.fft.rfft(x, dim=1))
            if form == 2:
                return x.repeat(1, 2, 1)
            if form == 3:
                return torch.tile(x, (1, 3)), torch.diff(x, dim=1), torch.rot90(x, 1, (1, 2))
            if form == 4:
                return torch.cdist(x, x + 1), torch.tril(x), torch.triu(x, 1)
            if form == 5:
                return torch.hstack([x, x * 2]), torch.dstack([x, -x]), torch.column_stack([x, x.exp()])
            if form == 6:
                return torch.quantile(x, 0.3, dim=2), torch.nanmean(x, dim=1)
            if form == 7:
                return torch.linalg.vecdot(x, x + 1), torch.linalg.matrix_norm(x), x.diagonal(dim1=1, dim2=2)
            if form == 8:
                return torch.searchsorted(weight.flatten().sort()[0].detach(), x.detach().contiguous())
            if form == 9:
                return torch.repeat_interleave(x, 2, dim=0), torch.repeat_interleave(x, 3, dim=2)
            if form == 10:
                return torch.take_along_dim(x, x.argsort(1), 1), torch.polar(x.abs(), x).abs()
            if form == 11:
                return torch.trapezoid(x, dim=1), torch.special.i1(x), torch.aminmax(x, dim=1)
            if form == 12:
                return x.mT.index_add(2, torch.arange(x.shape[1]), x.mT * 2)
            if form == 13:
                return torch.einsum("bij,bik->bjk", x, weight[None].repeat(len(x), 1, 1))  # a row for each of the batch
            if form == 14:
                each = torch.arange(len(x) * 3, dtype=x.dtype).view(len(x), 1, 3) * weight.sum()
                return torch.einsum("bik,bij->bj", each, x), torch.kron(x, weight[0])
            return F.cosine_embedding_loss(x[:, :, 0], x[:, :, 0] + 1, torch.ones(1), reduction="none")

        for number in range(9):  # what is made of results is known later
            tried(x.detach() * (number + 1))
        before = gathers()
        found = tried(x)
        return torch.tensor(gathers() - before), found

    return Call(function, [(x, dim), (weight, None)], local=False)


def together(r):
    """What ties rows together, now or with other values, sees all of them in every call."""
    x, dim = batch(r, dims=2, dim=0, low=0.1, high=0.3)
    form = r.randrange(14)
    means, spreads = torch.zeros(2), torch.ones(2)

    def function(x):
        def tried(x, number):
            if form == 0:
                return torch.einsum("bi,ci->bc", x, x)
            if form == 1:
                return x.repeat(2, 1), torch.tile(x, (2, 1)), torch.rot90(x)
            if form == 2:
                return x.renorm(2, 1, 2.0)  # leaves small values as they are
            if form == 3:
                return torch.view_as_real(torch.fft.fft(x, dim=0))
            if form == 4:
                times = torch.full((len(x),), 2, dtype=torch.long) + (x[:, 0] > 0.2 * number).long()
                return x.repeat_interleave(times, dim=0)
            if form == 5:
                return torch.diff(x, dim=0), torch.cov(x), torch.tril(x)
            if form == 6:
                return x.index_add(0, torch.arange(len(x)) % 2, x)
            if form == 7:
                return torch.quantile(x, 0.5, dim=0), torch.nanmean(x, 0), torch.vstack([x, x])
            if form == 8:
                return F.one_hot((x[:, 0] * 10 * number).long()).double()
            if form == 9:
                return x.masked_scatter(x > 0.2 * number, torch.arange(x.numel(), dtype=x.dtype))
            if form == 10:
                return torch.trapezoid(x, dim=0), torch.kron(torch.eye(2), x), torch.outer(x[:, 0], x[:, 0])
            if form == 11:
                image = torch.stack([x, x * 2], 1)
                torch.instance_norm(image, None, None, means, spreads, True, 0.1, 1e-5, False)
                return means * 1, spreads * 1
            if form == 12:
                return x.masked_scatter(torch.tensor(number != 1), torch.arange(x.numel() + 9, dtype=x.dtype))
            return torch.histc(x.detach(), 4), torch.bincount((x.detach()[:, 0] * 10).long()), F.pdist(x)

        means.zero_()
        spreads.fill_(1)
        return [tried(x * number, number) for number in (1, 1, 2, 9, 9, 1)]

    return Call(function, [(x, dim)], local=False, grads=form not in (8, 11, 12))


def draws(r):
    """What draws random numbers draws those of all rows, and leaves the generator as one process does."""
    x, dim = batch(r, dims=2, dim=0, low=0.2, high=0.8)
    form = r.randrange(4)

    def function(x):
        torch.manual_seed(3)
        found = []
        for _ in range(4):
            if form == 0:
                found.append(torch.bernoulli(x.detach()))
            elif form == 1:
                found.append(torch.multinomial(x.detach(), 1))
            elif form == 2:
                found.append(torch.multinomial(x.detach()[:, :1], 1))  # always the same
            else:
                found.append(torch.poisson(x.detach() * 9))
        return [*found, torch.rand(3)]

    return Call(function, [(x, dim)], local=False, grads=False)


def failures(r):
    """What a script catches comes to it on every rank, whose rows may be the cause."""
    x, dim = batch(r, dims=3, dim=0)
    size = x.shape[1]
    square = torch.eye(size).expand(len(x), size, size).contiguous()
    bad = r.randrange(len(x))

    def function(square):
        found = []
        for number in range(5):
            matrix = square * 1
            if number == 4:
                matrix = matrix - matrix * (torch.arange(len(square)) == bad)[:, None, None]
            try:
                found.append(torch.linalg.inv(matrix))
            except torch.linalg.LinAlgError as error:
                found.append(torch.tensor([ord(letter) for letter in str(error)]))
        return found

    return Call(function, [(square, dim)], local=False, grads=False)


def written_views(r):
    """A view of rows that a tried function gave writes to the batch."""
    x, dim = batch(r, dims=3, dim=0)

    def function(x):
        found = []
        for number in range(4):
            z = x.detach() * 1
            view = torch.diagonal(z, dim1=1, dim2=2)
            view.mul_(number + 2)
            found += [z.sum((1, 2)), z * 1, view * 1]
        same = torch.atleast_2d(z)
        same.zero_()
        return [*found, z * 1]

    return Call(function, [(x, dim)], local=False, grads=False)


def states_of_rows(r):
    """Recurrent layers on sequences that every rank has whole, from states of rows, as a decoder's positions are."""
    x, dim = batch(r, dims=3, dim=1)
    layers, rows, size = x.shape
    kind, first = r.choice([torch.nn.GRU, torch.nn.RNN, torch.nn.LSTM]), r.random() < 0.5
    torch.manual_seed(r.randrange(1000))
    net = kind(3, size, layers, batch_first=first)
    positions = torch.rand(rows, 2, 3) if first else torch.rand(2, rows, 3)

    def function(x):
        states = (x, x * 2) if kind is torch.nn.LSTM else x
        return net(positions, states)

    return Call(function, [(x, dim)])


def by_name_and_size(r):
    """Arguments by name, and sizes that NumPy computed, stay on rows."""
    x, dim = batch(r, dims=3, dim=0)
    one, two, three = (np.int64(size) for size in x.shape)
    form = r.randrange(9)

    def function(x):
        if form == 0:
            return x.unfold(dimension=-1, size=1, step=1)
        if form == 1:
            return x.reshape(one, two * three), x.view(one * two, -1), x.reshape(shape=(len(x), -1))
        if form == 2:
            return x.transpose(dim0=1, dim1=2), x.swapaxes(axis0=0, axis1=1), torch.transpose(input=x, dim0=0, dim1=2)
        if form == 3:
            return x.unflatten(dim=1, sizes=(-1, 1)), x[:, :1].expand(size=(-1, 3, -1))
        if form == 4:
            return x[:, np.int64(0)], x[:, torch.tensor(0)], x[..., torch.tensor(-1, dtype=torch.int32)]
        if form == 5:
            return x.matmul(other=torch.ones(three, 2)), torch.bmm(input=x, mat2=x.mT)
        if form == 6:
            return x.sum(dim=np.int64(1)), x.flatten(np.int64(1)), x.unsqueeze(np.int64(0)), x.narrow(np.int64(1), 0, 1)
        if form == 7:
            return x.index_select(dim=1, index=torch.zeros(2, dtype=torch.long)), x.expand(np.int64(2), -1, -1, -1)
        return x.softmax(dim=np.int64(-1)), x.permute(dims=(0, 2, 1)), x.broadcast_to(size=(2, *x.shape))

    return Call(function, [(x, dim)])


def sizes_in_place(r):
    """``x.unsqueeze_(1)`` and its like: the same tensor, of other sizes."""
    x, dim = batch(r, dims=3, dim=r.randrange(2))
    form = r.randrange(9)

    def function(x):
        z = x * 1
        before = z
        if form == 0:
            z.unsqueeze_(-1 if len(x) % 2 else 0)
        elif form == 1:
            z = z[:, :1] * 2 if dim == 0 else z[:1] * 2
            before = z.squeeze_(1 - dim)
        elif form == 2:
            z.transpose_(0, 1)
        elif form == 3:
            z.swapaxes_(axis0=0, axis1=-1)
        elif form == 4:
            z = z[..., 0] + 1
            before = z.t_()
        elif form == 5:
            z.unsqueeze_(dim=1).mul_(3)
            z.squeeze_()
        elif form == 6:
            leaf = z.detach().requires_grad_()
            try:
                leaf.unsqueeze_(1)
            except RuntimeError as error:
                return z, torch.tensor([ord(letter) for letter in str(error)])
        elif form == 7:
            other = z.view(z.shape)
            z.unsqueeze_(0)
            other.mul_(2)
            return z, other, x
        else:
            whole = z.sum(dim)
            z.unsqueeze_(1)
            return z, z.sum(dim + dim), whole, torch.as_tensor(z.detach().numpy().sum()), z.squeeze(1) * 2
        return z, torch.tensor(before is z), z.sum(0), z * 2, torch.tensor(len(z)), x

    return Call(function, [(x, dim)], local=form not in (8,))


def several_indices(r):
    """Index tensors along other dimensions, side by side or apart."""
    x, dim = batch(r, dims=4, dim=r.randrange(4))
    form = r.randrange(6)
    rest = [place for place in range(4) if place != dim]
    first, second = (torch.randint(x.shape[place], (2, 3), generator=generator(r)) for place in rest[:2])

    def function(x):
        index = [slice(None)] * 4
        index[rest[0]], index[rest[1]] = first, second
        if form == 1:
            index[rest[1]] = second[:1]
        elif form == 2:
            index[rest[1]] = 0
        elif form == 3:
            index[rest[2]] = first[:, :1] * 0
        elif form == 4:
            index.insert(rest[1], None)
        elif form == 5:
            index[rest[0]] = first[0].tolist()
        return x[tuple(index)]

    return Call(function, [(x, dim)])


def of_each_row(r):
    """``x[torch.arange(B)[:, None], ...]``, read and written."""
    x, dim = batch(r, dims=3, dim=0)
    rows, columns, last = x.shape
    i = torch.randint(columns, (rows, 2), generator=generator(r))
    j = torch.randint(last, (rows, 2), generator=generator(r))
    form = r.randrange(11)

    def function(x, i, j):
        every, heads = torch.arange(rows), torch.arange(last)
        if form == 0:
            return x[every[:, None], i]
        if form == 1:
            return x[every[:, None], i, j], x[every[:, None], i, 0], x[every, i[:, 0]]
        if form == 2:
            return x[every[:, None, None], i[:, :, None], heads]
        if form == 3:
            return x[every[:, None], i, :1], x[every.view(-1, 1), heads % columns]
        z = x * 1
        if form == 4:
            z[every[:, None], i, j] = 7.0
        elif form == 5:
            z[every, i[:, 0]] = torch.ones(rows, last)
        elif form == 6:
            z[every[:, None], i] = x[every[:, None], i] * 3
        elif form == 10:
            grid = torch.meshgrid(torch.arange(rows), torch.arange(2), torch.arange(last), indexing="ij")
            return z[grid[0], i[:, :, None].expand(-1, -1, last), grid[2]]
        elif form == 8:
            z[:, [0, columns - 1]] = 0
        elif form == 9:
            z[:, torch.tensor([0]), :] = x[:, :1] * 2
            z[..., torch.tensor([[0, 0]]), 0] = -1.0
        else:
            z[every[:, None, None], i[:, :, None], heads] = x[:, :1, :] + 1
        return z

    return Call(function, [(x, dim), (i, 0), (j, 0 if r.random() < 0.7 else None)], grads=form < 4)


CASES = {
    "tried_apart": apart,
    "tried_together": together,
    "tried_draws": draws,
    "tried_failures": failures,
    "tried_views": written_views,
    "states_of_rows": states_of_rows,
    "by_name_and_size": by_name_and_size,
    "sizes_in_place": sizes_in_place,
    "several_indices": several_indices,
    "of_each_row": of_each_row,
}
REPEATS = {
    "tried_apart": 48,
    "tried_together": 42,
    "tried_draws": 8,
    "by_name_and_size": 27,
    "sizes_in_place": 36,
    "several_indices": 30,
    "of_each_row": 44,
}
