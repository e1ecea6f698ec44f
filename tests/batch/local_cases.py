"""Random calls that need no gather of a batch, though a look at the whole would do."""

import torch
from cases import Call, batch, generator


def picks_by_plain_index(r):
    """``q.gather(1, actions)``, where every rank has the actions whole."""
    x, dim = batch(r, dims=2, dim=r.randrange(2))
    at = 1 - dim
    shape = [x.shape[0], x.shape[1]]
    shape[at] = r.randint(1, x.shape[at])
    index = torch.randint(x.shape[at], shape, generator=generator(r))
    form = r.randrange(3)

    def function(x, index):
        if form == 0:
            return x.gather(at, index)
        return torch.gather(x, at, index=index) * 2 if form == 1 else x.gather(dim=at - 2, index=index).sum()

    return Call(function, [(x, dim), (index, None)])


def looks_at_all(r):
    """``any``, ``all``, ``max`` and their like of a whole batch: one value of each rank is enough."""
    x, dim = batch(r)
    if r.random() < 0.3:
        x[(0,) * x.dim()] = r.choice([torch.nan, torch.inf, -torch.inf, -0.0])
    forms = [
        lambda x: (torch.isnan(x).any(), torch.isfinite(x).all()),
        lambda x: (x > 1.9).any(),
        lambda x: (torch.any(x > 0), torch.all(x < 3), (x > -3).all()),
        lambda x: (x.max(), x.min()),
        lambda x: (torch.amax(x), x.amin()),
        lambda x: (x.float().max(), x.half().min(), x.bfloat16().amax()),
        lambda x: (x.nan_to_num(0, 1, -1).long().max(), (x > 0).byte().any(), (x > 0).max()),
        lambda x: (x.count_nonzero(), torch.count_nonzero(x > 0)),
        lambda x: (torch.max(input=x), 1 / (x.abs() * -0.0).max()),
    ]
    function = r.choice(forms)
    return Call(lambda x: function(x.detach()), [(x, dim)], grads=False)


def broadcasts(r):
    """``torch.broadcast_tensors``, as distributions use it."""
    x, dim = batch(r, dims=2, dim=r.randrange(2))
    row = torch.rand(1 if dim == 0 else x.shape[0], x.shape[1] if dim == 0 else 1, generator=generator(r))
    labels = torch.randint(x.shape[1], [x.shape[0]], generator=generator(r))
    form = r.randrange(4 if dim == 0 else 3)

    def function(x, row, labels):
        if form == 0:
            return [part.exp() for part in torch.broadcast_tensors(x, row)]
        if form == 1:
            return [part * 2 for part in torch.broadcast_tensors(row.sum(), x, x * 2)]
        if form == 2:
            return torch.distributions.Normal(x, row.exp()).log_prob(x.sin())
        found = torch.distributions.Categorical(logits=x)
        return found.log_prob(labels), found.entropy()

    return Call(function, [(x, dim), (row, None), (labels, 0 if dim == 0 else None)])


def entries_written(r):
    """``x[:, i] = v`` and ``labels[labels == 0] = -100``."""
    x, dim = batch(r, dims=3, dim=r.randrange(2))
    other, i, form = 1 - dim, r.randrange(x.shape[2]), r.randrange(9)
    v = torch.rand(x.shape[:2], generator=generator(r))

    def function(x, v):
        z = x * 1
        old = z.view(*z.shape)
        if form == 0:
            z[..., i] = 0.5
        elif form == 1:
            z[z > 0] = -3
        elif form == 2:
            z[:, :, i] = v
        elif form == 3:
            z[:, :, i:] = v[:, :, None]
        elif form == 4:
            z[z.detach().sum((other, 2)) > 0 if dim == 0 else z.detach().sum(2) > 0] = 2
        elif form == 5:
            z[:, :, i] = v.detach()[:1] if dim == 1 else v.detach()[:, :1]
        elif form == 6:
            z[..., i : i + 1] = torch.tensor(4.0)
        elif form == 7:
            labels = (z.detach() > 0).long()
            labels[labels == 0] = -100
            return labels, labels.sum()
        else:
            with torch.inference_mode():
                z = x.detach() * 1
                old = z.view(*z.shape)
                z[:, :, i] = 7
                return z.sum(), old.sum()
        return z, old, z.sum()

    return Call(function, [(x, dim), (v, dim)], grads=form < 7)


CASES = {
    "picks_by_plain_index": picks_by_plain_index,
    "looks_at_all": looks_at_all,
    "broadcasts": broadcasts,
    "entries_written": entries_written,
}
REPEATS = {
    "picks_by_plain_index": 20,
    "looks_at_all": 60,
    "broadcasts": 30,
    "entries_written": 80,
}
