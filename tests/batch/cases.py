"""Random calls of every function that has a rule, as one process would write them.

A case draws a function and its inputs from a ``random.Random``; an input is a tensor with its batch dimension, or None
for a tensor that every rank has whole.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ddp_patch.batch.world import World


@dataclass
class Call:
    function: Any  # called with the inputs' tensors
    inputs: list  # (tensor, batch dim or None)
    local: bool = True  # no gather of the batch is expected
    grads: bool = True


def sizes(r, dims):
    return [r.randint(1, 4) for _ in range(dims)]


def batch(r, dims=None, dim=None, rows=None, low=-2.0, high=2.0):
    """A random float tensor with its batch dimension; rows are uneven for most world sizes."""
    dims = r.randint(1, 4) if dims is None else dims
    dim = r.randrange(dims) if dim is None else dim
    shape = sizes(r, dims)
    shape[dim] = rows or r.randint(4, 11)
    values = torch.rand(shape, generator=generator(r)) * (high - low) + low
    return values, dim


def generator(r):
    return torch.Generator().manual_seed(r.randrange(2**40))


def other(r, x, dim, kind=None, low=-2.0, high=2.0):
    """A second operand that broadcasts against ``x``."""
    kind = kind or r.choice(["batch", "global", "row", "fewer", "ones", "scalar"])
    shape = list(x.shape)
    if kind in ("row", "ones"):
        shape[dim] = 1
    if kind == "fewer":
        shape = shape[dim + 1 :]
    if kind == "ones":
        shape = [1 if r.random() < 0.5 else s for s in shape]
    if kind == "scalar":
        shape = []
    y = torch.rand(shape, generator=generator(r)) * (high - low) + low
    return y, dim if kind == "batch" else None


UNARY = """abs neg exp log1p sqrt rsqrt square sin cos tan atan tanh sigmoid relu erf reciprocal sign floor ceil round trunc
frac expm1 exp2 log log2 log10 digamma lgamma logit erfinv isnan isfinite sinh cosh asinh positive""".split()
POSITIVE = {"sqrt", "rsqrt", "log", "log2", "log10", "reciprocal", "digamma", "lgamma", "log1p", "tan"}
UNIT = {"logit", "erfinv"}
FUNCTIONAL = "relu relu6 gelu elu selu celu silu mish leaky_relu softplus softsign tanhshrink hardtanh hardsigmoid hardswish hardshrink softshrink logsigmoid".split()
BINARY = "add sub mul div maximum minimum atan2 hypot fmax fmin remainder fmod logaddexp copysign".split()
COMPARE = "eq ne lt le gt ge".split()
OPERATORS = [
    "__add__",
    "__sub__",
    "__mul__",
    "__truediv__",
    "__pow__",
    "__radd__",
    "__rsub__",
    "__rmul__",
    "__rtruediv__",
]


def bounds(name):
    return (0.2, 2.0) if name in POSITIVE else (0.05, 0.95) if name in UNIT else (-2.0, 2.0)


def unary(name):
    def case(r):
        low, high = bounds(name)
        owner = r.choice([torch, torch.Tensor])
        return Call(getattr(owner, name), [batch(r, low=low, high=high)])

    return case


def functional(name):
    def case(r):
        if name in (
            "hardsigmoid",
            "hardswish",
            "mish",
            "silu",
            "gelu",
            "softsign",
            "tanhshrink",
            "logsigmoid",
            "softplus",
            "hardshrink",
            "softshrink",
        ):
            return Call(getattr(F, name), [batch(r)])
        return (
            Call(lambda x: getattr(F, name)(x * 1.5, inplace=r_inplace), [batch(r)])
            if (r_inplace := r.random() < 0.5)
            else Call(getattr(F, name), [batch(r)])
        )

    return case


def binary(name):
    def case(r):
        x, dim = batch(r, low=0.3, high=2.0)
        y, at = other(r, x, dim, low=0.3, high=2.0)
        function = getattr(r.choice([torch, torch.Tensor]), name)
        if r.random() < 0.3 and at is None and y.dim() > 0:
            return Call(function, [(y, at), (x, dim)])
        return Call(function, [(x, dim), (y, at)])

    return case


def operator(name):
    def case(r):
        x, dim = batch(r, low=0.3, high=2.0)
        if r.random() < 0.3:
            number = r.uniform(0.5, 2)
            return Call(lambda x: getattr(x, name)(number), [(x, dim)])
        return Call(lambda x, y: getattr(x, name)(y), [(x, dim), other(r, x, dim, low=0.3, high=2.0)])

    return case


def in_place(name):
    def case(r):
        x, dim = batch(r, low=0.3, high=2.0)
        y, at = other(r, x, dim, low=0.3, high=2.0)

        def function(x, y):
            z = x * 1.0
            alias = z[..., None]
            getattr(z, name)(y)
            return z + alias.squeeze(-1)

        return Call(function, [(x, dim), (y, at)])

    return case


def ternary(r):
    x, dim = batch(r, low=0.3, high=2.0)
    (y, a), (z, b) = other(r, x, dim), other(r, x, dim, low=0.5)
    form = r.randrange(6)
    forms = [
        lambda x, y, z: torch.where(x > 1, y + x, z),
        lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
        lambda x, y, z: torch.addcdiv(x, y, z),
        lambda x, y, z: torch.lerp(x, y + x, z + 0 * x),
        lambda x, y, z: x.clamp(0.5, 1.5) + y * z,
        lambda x, y, z: x.masked_fill(x > y, 3.0) * z,
    ]
    return Call(forms[form], [(x, dim), (y, a), (z, b)])


def logic(r):
    x, dim = batch(r)
    y, at = other(r, x, dim)
    forms = [
        lambda x, y: (x > y) & (x < 1) | ~(y == x),
        lambda x, y: torch.logical_xor(x > 0, y > 0),
        lambda x, y: (x.ge(y) ^ x.ne(0)).double(),
        lambda x, y: torch.isclose(x, y),
    ]
    return Call(r.choice(forms), [(x, dim), (y, at)], grads=False)


def compare(name):
    def case(r):
        x, dim = batch(r)
        return Call(getattr(torch, name), [(x, dim), other(r, x, dim)], grads=False)

    return case


def casts(r):
    forms = [
        lambda x: x.detach().to(torch.float32).to(torch.float64) * x,
        lambda x: x.double().clone(),
        lambda x: x.detach() * x,
        lambda x: x.contiguous().cpu(),
        lambda x: x.detach().float().type_as(x) + x,
        lambda x: x.long().to(x.dtype) + x,
        lambda x: x.to("cpu", torch.float64) + x.to(x),
        lambda x: x.data + x,
        lambda x: x.bool().int() + x.half().double() * 0 + x,
        lambda x: x.type(torch.DoubleTensor),
    ]
    return Call(r.choice(forms), [batch(r)])


def along(name, keeps, **limits):
    def case(r):
        x, dim = batch(r, dims=r.randint(2, 4))
        d = r.choice([i for i in range(x.dim()) if i != dim])
        signed = d - x.dim() if r.random() < 0.5 else d
        kwargs = {"keepdim": True} if not keeps and r.random() < 0.4 else {}
        owner = r.choice([torch, torch.Tensor]) if hasattr(torch, name) else F
        function = getattr(owner, name)
        grads = name not in ("argmax", "argmin", "argsort", "all", "any", "count_nonzero")
        if name in ("topk", "kthvalue"):
            k = r.randint(1, x.shape[d])
            return Call(lambda x: function(x, k, dim=signed), [(x, dim)])
        if name in ("all", "any"):
            return Call(lambda x: function(x > 0, dim=signed, **kwargs), [(x, dim)], grads=False)
        if name == "count_nonzero":
            return Call(lambda x: function(x > 0, dim=signed), [(x, dim)], grads=False)
        if name in ("std", "var") and x.shape[d] == 1:
            return Call(lambda x: function(x, dim=signed, correction=0) * 0, [(x, dim)], grads=False)
        return Call(lambda x: function(x, dim=signed, **kwargs), [(x, dim)], grads=grads)

    return case


def compared(r):
    """``equal`` and ``allclose`` of batches that differ in one entry or in none; a part may be plain."""
    x, dim = batch(r, dims=r.randint(1, 3))
    form, where, off = r.randrange(6), r.randrange(x.numel()), r.choice([0.0, 1e-7, 1.0])
    shift = torch.zeros(x.shape).flatten()
    shift[where] = off
    shift = shift.view(x.shape)
    forms = [
        lambda x, y: torch.equal(x, y),
        lambda x, y: x.equal(y),
        lambda x, y: torch.allclose(x, y),
        lambda x, y: x.allclose(y, rtol=0, atol=1e-3),
        lambda x, y: torch.allclose(x / 0, y / 0, equal_nan=True),
        lambda x, y: torch.equal(x, y[None]),
    ]
    return Call(
        lambda x, y: torch.tensor(float(forms[form](x, y))), [(x, dim), (x + shift, dim)], form < 5, grads=False
    )


def norms(r):
    x, dim = batch(r, dims=r.randint(2, 4))
    d = r.choice([i for i in range(x.dim()) if i != dim])
    forms = [
        lambda x: x.norm(dim=d),
        lambda x: x.norm(2, d, True),
        lambda x: torch.norm(x, dim=d, p=1),
        lambda x: torch.linalg.vector_norm(x, dim=d),
        lambda x: F.normalize(x, dim=d),
        lambda x: F.softmax(x, dim=d).log(),
        lambda x: F.log_softmax(x, d),
        lambda x: getattr(F, r_name)(x) if dim != (0 if x.dim() == 3 else 1) else x * 1,
        lambda x: x.std(d, unbiased=False) if x.shape[d] > 1 else x.sum(d),
        lambda x: F.cosine_similarity(x, x * 2 + 1, dim=d),
        lambda x: torch.sum(x, axis=d, keepdims=True),
    ]
    r_name = r.choice(["softmax", "log_softmax", "softmin"])
    return Call(r.choice(forms), [(x, dim)])


def reduction(r):
    x, dim = batch(r)
    dims = sorted({dim, *(d for d in range(x.dim()) if r.random() < 0.5)})
    forms = [
        lambda x: x.sum(),
        lambda x: x.mean(),
        lambda x: torch.sum(x, dims),
        lambda x: x.mean(tuple(dims), keepdim=True),
        lambda x: x.sum(dim),
        lambda x: torch.mean(x, dim=dim - x.dim()),
        lambda x: (x > 0).sum(),
        lambda x: (x > 0).float().mean(),
        lambda x: x.sum(dtype=torch.float64),
        lambda x: torch.mean(input=x),
        lambda x: torch.sum(input=x, dim=dims),
        lambda x: torch.exp(1j * x).mean().abs(),
        lambda x: torch.exp(1j * x).sum().real,
    ]
    return Call(r.choice(forms), [(x, dim)])


def reshapes(r):
    x, _ = batch(r, dims=3, dim=0)
    b, s, t = x.shape
    forms = [
        lambda x: x.view(b, -1),
        lambda x: x.reshape(b * s, t),
        lambda x: x.view(-1, t).view(b, s, t),
        lambda x: x.reshape(b, s * t, 1).squeeze(-1),
        lambda x: x.flatten(1),
        lambda x: x.flatten(0, 1).unflatten(0, (b, s)),
        lambda x: torch.flatten(x).view(b, s, t),
        lambda x: x.view_as(x * 2),
        lambda x: x.reshape((-1,)) * 2,
        lambda x: x.view(1, b, s, t).squeeze(0),
        lambda x: x.view(x.size(0), 1, s * t).expand(-1, 3, -1),
        lambda x: x.unsqueeze(1).expand(b, 2, s, t),
    ]
    return Call(r.choice(forms), [(x, 0)])


def moves(r):
    x, dim = batch(r, dims=3)
    order = r.sample(range(3), 3)
    at = r.randint(-4, 3)
    forms = [
        lambda x: x.transpose(0, 2),
        lambda x: x.permute(*order),
        lambda x: torch.permute(x, tuple(order)),
        lambda x: x.movedim(0, -1),
        lambda x: x.unsqueeze(at),
        lambda x: x.unsqueeze(at).squeeze(),
        lambda x: x.unsqueeze(axis=at).squeeze(axis=at),
        lambda x: x.mT,
        lambda x: x.swapaxes(1, 2).contiguous().view(*x.swapaxes(1, 2).shape),
        lambda x: x.squeeze(),
        lambda x: x.transpose(0, 1).reshape(-1, x.shape[2]) if dim == 1 else x * 1,
    ]
    return Call(r.choice(forms), [(x, dim)])


def columns(r):
    x, dim = batch(r, dims=3)
    free = [d for d in range(3) if d != dim]
    d = r.choice(free)
    i = r.randrange(x.shape[d])
    index = [slice(None)] * 3
    index[d] = r.choice([i, slice(None, None), slice(i, None), slice(None, i + 1), i - x.shape[d]])
    picked = torch.tensor([r.randrange(x.shape[d]) for _ in range(3)])
    forms = [
        lambda x: x[tuple(index)],
        lambda x: x[..., None],
        lambda x: x[None],
        lambda x: x[:, None] * 2,
        lambda x: x.select(d, i),
        lambda x: x.narrow(d, 0, i + 1),
        lambda x: x.index_select(d, picked),
        lambda x: x.flip(d),
        lambda x: x.roll(1, d),
        lambda x: torch.cat(x.split(1, d), dim=d),
        lambda x: torch.stack(x.unbind(d), dim=0),
        lambda x: x.chunk(2, dim=d)[0],
        lambda x: torch.cat([x, x * 2], dim=d),
        lambda x: torch.stack([x, x + 1], dim=r_at),
        lambda x: torch.stack([x, x + 1], axis=r_at),
        lambda x: torch.cat([x, x * 2], axis=d),
        lambda x: torch.stack([x.detach().cpu(), x.detach()], dim=-1).sum(-1) * x,
        lambda x: x.gather(d, x.argsort(d)),
    ]
    r_at = r.randint(0, 3)
    return Call(r.choice(forms), [(x, dim)])


def scatters(r):
    x, dim = batch(r, dims=3)
    d = r.choice([i for i in range(3) if i != dim])
    shape = list(x.shape)
    shape[d] = r.randint(1, x.shape[d])
    index = torch.rand(shape, generator=generator(r)).argsort(d)
    more = torch.rand(shape, generator=generator(r))
    forms = [
        lambda x, i, y: x.scatter(d, i, 2.0),
        lambda x, i, y: x.scatter(dim=d, index=i, src=y),
        lambda x, i, y: torch.zeros_like(x).scatter_(d, i, 1) * x,
        lambda x, i, y: (x * 1).scatter_(d, i, y),
        lambda x, i, y: (x * 1).scatter_(d - 3, i, value=0.5).exp(),
        lambda x, i, y: (x * 1).scatter_add_(d, i, y),
        lambda x, i, y: torch.scatter_add(x, d, i, y),
        lambda x, i, y: torch.scatter_reduce(x, d, i, y, "amax", include_self=False),
        lambda x, i, y: (x * 1).scatter_reduce_(d, i, y, reduce="sum"),
        lambda x, i, y: x.gather(dim=d, index=i) * y,
        lambda x, i, y: torch.gather(x, d, index=i) * y,
    ]
    whole = [
        lambda x, i, y: x.scatter(dim, i * 0, 2.0),
        lambda x, i, y: torch.zeros(x.shape).scatter_(d, i, y),
    ]
    local = r.random() < 0.8
    return Call(r.choice(forms if local else whole), [(x, dim), (index, dim), (more, dim)], local)


def places(r):
    """At places of another dimension, which are the same in every row."""
    x, dim = batch(r, dims=3)
    d = r.choice([i for i in range(3) if i != dim])
    shape = list(x.shape)
    shape[d] = r.randint(1, x.shape[d])
    index, more = (
        torch.randperm(x.shape[d], generator=generator(r))[: shape[d]],
        torch.rand(shape, generator=generator(r)),
    )
    forms = [
        lambda x, i, y: x.index_add(d, i, y),
        lambda x, i, y: (x * 1).index_add_(d - 3, i, y, alpha=0.5).exp(),
        lambda x, i, y: torch.index_add(x, d, index=i, source=y),
        lambda x, i, y: torch.zeros_like(x).index_copy_(d, i, y) * x,
        lambda x, i, y: x.index_copy(d, i, y),
        lambda x, i, y: x.index_fill(d, i, 2.0),
        lambda x, i, y: (x * 1).index_fill_(d, i, value=0.5),
        lambda x, i, y: x.index_reduce(d, i, y, "amax", include_self=False),
        lambda x, i, y: x[(slice(None),) * d + (i.tolist(),)] * y,
    ]
    whole = [lambda x, i, y: x.index_fill(dim, i * 0, 2.0), lambda x, i, y: torch.zeros(x.shape).index_add(d, i, y)]
    local = r.random() < 0.8
    return Call(r.choice(forms if local else whole), [(x, dim), (index, None), (more, dim)], local)


def kernels(r):
    """A kernel for each image, which lie side by side as channels."""
    rows, c, o = r.randint(4, 11), r.randint(1, 3), r.randint(1, 3)
    x, w = (torch.rand(rows, n, 5, 5, generator=generator(r)) for n in (c, o * c))
    bias = torch.rand(rows, o, generator=generator(r))

    def side_by_side(x):
        return x.reshape(1, -1, *x.shape[2:])

    forms = [
        lambda x, w, b: F.conv2d(side_by_side(x), w.reshape(-1, c, 5, 5), groups=rows).view(rows, o),
        lambda x, w, b: torch.conv2d(side_by_side(x), w.reshape(-1, c, 5, 5), b.reshape(-1), 1, 1, 1, rows).sum((2, 3)),
        lambda x, w, b: F.conv_transpose2d(side_by_side(x), w.reshape(-1, o, 5, 5), groups=rows).view(rows, o, 9, 9),
        lambda x, w, b: F.conv2d(side_by_side(x), x[..., :2, :2].reshape(-1, 1, 2, 2), groups=rows * c) * 2,
        lambda x, w, b: F.batch_norm(side_by_side(x), None, None, None, None, True),
        lambda x, w, b: F.batch_norm(side_by_side(x), None, None, x.mean((2, 3)).reshape(-1), training=True),
    ]
    whole = [
        lambda x, w, b: F.conv2d(side_by_side(x), torch.ones(rows * c, 1, 2, 2), groups=rows * c),
        lambda x, w, b: F.conv2d(side_by_side(x), w[:1].reshape(-1, c, 5, 5).repeat(1, rows, 1, 1)),
    ]
    local = r.random() < 0.8
    return Call(r.choice(forms if local else whole), [(x, 0), (w, 0), (bias, 0)], local)


def lookups(r):
    """Of tables that every rank has whole, by indices that are a batch."""
    k, d = r.randint(2, 6), r.randint(1, 4)
    shape = sizes(r, r.randint(1, 3))
    dim = r.randrange(len(shape))
    shape[dim] = r.randint(4, 11)
    index = torch.randint(-k, k, shape, generator=generator(r))
    many, one = index % k, torch.randint(0, k, (r.randint(4, 11),), generator=generator(r))
    table, flat = torch.rand(k, d, generator=generator(r)), torch.rand(k, generator=generator(r))
    wide = torch.rand([k if at == dim else s for at, s in enumerate(shape)], generator=generator(r))
    same, other = torch.rand(shape, generator=generator(r)), (dim + 1) % len(shape)
    forms = [
        Call(lambda i, t: t.gather(other, i % shape[other]), [(many, dim), (same, None)]),
        Call(lambda i, t: t[i], [(index, dim), (table, None)]),
        Call(lambda i, t: t[i, :] * t[i], [(index, dim), (table, None)]),
        Call(lambda i, t: t[i, None, None], [(index, dim), (flat, None)]),
        Call(lambda i, t: t[i][..., None].expand(*i.shape, 3), [(index, dim), (flat, None)]),
        Call(lambda i, t: t[i.int(), ..., None], [(index, dim), (table, None)]),
        Call(lambda i, t: t.gather(-1, i).reshape(len(i), 1, 1), [(one, 0), (flat, None)]),
        Call(lambda i, t: torch.gather(t, dim, i), [(many, dim), (wide, None)]),
        Call(lambda i, t: t.index_select(0, i), [(one, 0), (table, None)]),
        Call(lambda i, t: torch.index_select(t.t(), -1, i), [(one, 0), (table, None)]),
        Call(lambda i, t: t.take(i), [(index, dim), (table, None)]),
        Call(
            lambda i, t: t[i > 2].sum() + t[i == 0].sum(),
            [(one, 0), (table[:1].repeat(len(one), 1), None)],
            local=False,
        ),
        Call(lambda i, t: t.detach().to_sparse().index_select(0, i).to_dense(), [(one, 0), (table, None)], local=False),
        Call(lambda i, t: t[:, i % d], [(one, 0), (table, None)], local=False),
        Call(lambda i, t: t[i, i % d], [(index, dim), (table, None)]),
        Call(lambda i, t: t[i, 0] + t[0, i % d], [(index, dim), (table, None)]),
        Call(lambda i, t: t[i[0], i % d], [(one, 0), (table, None)], local=False),
        Call(lambda i, t: t.t().gather(1, i[None].expand(d, -1)), [(one, 0), (table, None)]),
    ]
    return r.choice(forms)


def permutations(r):
    x, dim = batch(r, dims=r.randint(1, 3), dim=0)
    b = len(x)
    index = torch.randperm(b, generator=generator(r))
    some = index[: r.randint(1, b)]
    cut = r.randint(1, b)
    y, _ = batch(r, dims=1, dim=0, rows=b)
    forms = [
        lambda x, y: x[index] * 2,
        lambda x, y: x[some.tolist()],
        lambda x, y: torch.cat([x, x * 3]),
        lambda x, y: x.flip(0) + x,
        lambda x, y: x.roll(1, 0) * x,
        lambda x, y: torch.cat([part * (i + 1) for i, part in enumerate(x.split(cut))]),
        lambda x, y: torch.cat(x.chunk(3)[::-1]),
        lambda x, y: x[:cut] ** 2,
        lambda x, y: x[-1] * x[0],
        lambda x, y: x[y > 0].sum() + x.sum(),
        lambda x, y: x.index_select(0, some),
        lambda x, y: torch.stack(list(x)).sum(0),
        lambda x, y: x[::2].mean(),
        lambda x, y: x[y.argsort()],
        lambda x, y: x.unsqueeze(1) + x.unsqueeze(0),
        lambda x, y: x.cumsum(0) + x.max(),
        lambda x, y: x.std() * x.softmax(0) if b > 1 else x,
        lambda x, y: x.sort(0).values,
    ]
    return Call(r.choice(forms), [(x, dim), (y, 0)], local=False)


def products(r):
    x, _ = batch(r, dims=2, dim=0)
    w = torch.rand(x.shape[1], 3, generator=generator(r))
    z, _ = batch(r, dims=3, dim=0)
    forms = [
        Call(lambda x, w: x @ w, [(x, 0), (w, None)]),
        Call(lambda x, w: torch.matmul(x, w[:, 0]), [(x, 0), (w, None)]),
        Call(lambda x, w: x.mm(w).relu(), [(x, 0), (w, None)]),
        Call(lambda v: torch.ones(len(v)) @ v, [(x[:, 0], 0)], local=False),
        Call(lambda v: torch.mv(torch.ones(3, len(v)), v), [(x[:, 0], 0)], local=False),
        Call(lambda v, w: v[:, None] @ w[:1], [(x[:, 0], 0), (w, None)]),
        Call(lambda z: torch.bmm(z, z.transpose(1, 2)), [(z, 0)]),
        Call(lambda z: z @ z.mT, [(z, 0)]),
        Call(lambda x, w: F.linear(x, w.t()), [(x, 0), (w, None)]),
        Call(lambda x: x @ x.t(), [(x, 0)], local=False),
        Call(lambda x: torch.cdist(x, x), [(x * 3, 0)], local=False),
        Call(lambda x: torch.einsum("bi,ci->bc", x, x), [(x, 0)], local=False),
    ]
    return r.choice(forms)


def unknown(r):
    x, dim = batch(r, dims=2)
    forms = [
        lambda x: torch.kron(x, x),
        lambda x: torch.nan_to_num(x).fliplr(),
        lambda x: x.repeat(2, 1),
        lambda x: torch.ones(x.shape[1]).expand_as(other=x) * x,
        lambda x: torch.outer(x.flatten(), x.flatten()),
        lambda x: x.diagonal(),
        lambda x: torch.flatten(input=x, start_dim=1),
        lambda x: torch.unsqueeze(input=x, dim=1),
        lambda x: torch.transpose(input=x, dim0=0, dim1=1),
        lambda x: torch.flip(input=x, dims=[1]),
        lambda x: F.pad(x, (1, 1)),
        lambda x: torch.stack([torch.as_tensor(v) for v in x.reshape(-1)[:2].tolist()]).sum() + x.prod(),
        lambda x: F.layer_norm(x, x.shape[1:]),
        lambda x: x.median() + x.amax(),
        lambda x: torch.tril(x),
    ]
    return Call(r.choice(forms), [(x, dim)], local=False)


def shapes_like(r):
    x, dim = batch(r, dims=2)
    if r.random() < 0.3:
        w = torch.rand(*([x.shape[0], 1], [1, x.shape[1]])[1 - dim], generator=generator(r))
        return Call(lambda x, w: (w.expand_as(x) * x, w.expand_as(x).exp()), [(x, dim), (w, None)])
    forms = [
        lambda x: torch.zeros_like(x) + x,
        lambda x: torch.arange(1.0, x.shape[1] + 1).expand_as(x) * x,
        lambda x: torch.ones_like(x, dtype=torch.float64) * x,
        lambda x: torch.full_like(x, 2.0) * x,
        lambda x: x.new_zeros(3, 2) + 1,
        lambda x: x.new_ones(x.size(0)),
        lambda x: x.new(x.size(0), 2).zero_(),
        lambda x: x.data.new(2, 3).fill_(4),
        lambda x: x.new([2.0, 3.0]),
    ]
    return Call(r.choice(forms), [(x, dim)])


def draws(r):
    """Random numbers that the script draws for a batch are those of one process."""
    x, dim = batch(r, dims=2)
    seed = r.randrange(2**30)

    def function(x, form=r.randrange(5)):
        torch.manual_seed(seed)
        if form == 0:
            return x + torch.randn_like(x)
        if form == 1:
            return x * torch.rand(x.shape, dtype=x.dtype)
        if form == 2:
            return F.dropout(x, 0.5)
        if form == 3:
            return x * torch.bernoulli(torch.full_like(x, 0.5))
        y = x.clone()
        y.detach().normal_()
        return y + torch.empty_like(x).uniform_()

    return Call(function, [(x, dim)], local=False)


def draws_into_batches(r):
    """Draws in place, in whatever order the memory is, and those by the values of a batch."""
    x, dim = batch(r, low=0.05, high=0.95)
    name = r.choice(["normal_", "uniform_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_"])
    options = {"bernoulli_": (0.3,), "geometric_": (0.4,), "normal_": (1.0, 0.5)}.get(name, ())
    form, seed = r.randrange(9), r.randrange(2**30)
    if r.random() < 0.5 and x.dim() > 1:
        x, dim = x.transpose(dim, (dim + 1) % x.dim()), (dim + 1) % x.dim()
    if form == 8:
        x, dim = torch.rand(r.randint(4, 9), 5, generator=generator(r)) + 0.1, 0

    def function(x):
        torch.manual_seed(seed)
        if form == 0:
            return getattr(x * 2, name)(*options) + x
        if form == 1:
            y = x.clone()
            return getattr(y[..., :1], name)(*options).sum(-1), y
        if form == 2:
            return getattr(torch.empty_like(x), name)(*options), torch.rand(3)
        if form == 3:
            return torch.bernoulli(x) - x.detach() + x
        if form == 4:
            return torch.normal(x.detach(), 0.5), torch.normal(0.0, x.detach()), torch.rand(2)
        if form == 5:
            return torch.normal(x.detach(), x.detach().exp()) * x
        if form == 6:
            return torch.poisson(x.detach() * 5) + torch.binomial(torch.full_like(x, 7.0), x.detach())
        if form == 7:
            return (x * 0).detach().random_(0, 7) + x.detach().clone().bernoulli(0.5)
        noise = torch._standard_gamma(x + 0.5) * x
        return torch.multinomial(x.detach(), 3, True) + x.detach().multinomial(1), noise

    return Call(function, [(x, dim)], local=False)


def picks_by_number(r):
    """Entries at plain indices of rows and of other dimensions, and writes to them."""
    x, dim = batch(r, dims=4, dim=0)
    g, (b, c, h, w) = generator(r), x.shape
    n = r.choice([0, 1, 2, 3, 5])
    rows = torch.randint(-b, b, (n,), generator=g)
    first, second, third = (torch.randint(-size, size, (n,), generator=g) for size in (c, h, w))
    indices = [
        (rows, first),
        (rows, first, second, third),
        (rows, slice(None), second),
        (rows, r.randrange(c), Ellipsis, third),
        (rows, slice(0, 1)),
        (rows[:, None], first[None]),
        (rows, Ellipsis, -1),
        (rows, torch.tensor([0])),
    ]
    index, form = r.choice(indices), r.randrange(4)
    values = torch.rand(x[index].shape, generator=g)

    def function(x):
        if form == 0:
            return x[index] * 2, (x * 0).sum()
        if form == 1:
            return 1 / x.mul(0).sub(0)[index].neg(), x.sum()  # infinite, of the sign of a zero
        z = x * 1
        before = z[index] if form == 3 else None
        z[index] = 2.0 if n == 0 else values if len({*(rows % b).tolist()}) == n else 3.0
        return (z,) if before is None else (z, before)

    return Call(function, [(x, dim)], local=False)


def variances(r):
    """Of rows, of all entries, in each form that torch takes; of equal ones, too."""
    x, dim = batch(r)
    if r.random() < 0.3:
        x = x * 0 + 1.5
    name = r.choice(["var", "std"])
    others = [d for d in range(x.dim()) if r.random() < 0.5]
    forms = [
        lambda x: getattr(x, name)(dim),
        lambda x: getattr(x, name)(dim=dim, keepdim=True),
        lambda x: getattr(torch, name)(x, dim, False),
        lambda x: getattr(torch, name)(x, [*{dim, *others}], True, True),
        lambda x: getattr(torch, name)(x, dim=sorted({dim, *others}), correction=r_correction),
        lambda x: getattr(x, name)(),
        lambda x: getattr(x, name)(unbiased=False),
        lambda x: getattr(x, name)(False),
        lambda x: getattr(torch, f"{name}_mean")(x, dim),
        lambda x: getattr(torch, f"{name}_mean")(x, axis=dim, keepdim=True, unbiased=True),
        lambda x: getattr(torch, f"{name}_mean")(x),
        lambda x: ((x - x.mean(dim, keepdim=True)) / (x.std(dim, keepdim=True) + 1e-3),),
    ]
    r_correction, form = r.choice([0, 1, 2, 1.5]), r.choice(forms)
    return Call(form, [(x, dim)])


def picks_by_batch(r):
    """Rows at indices that are dealt themselves: of points among the neighbours of their cloud, or of any other."""
    x, _ = batch(r, dims=3, dim=0, rows=r.randint(4, 9))
    g, (b, c, h) = generator(r), x.shape
    near = torch.randint(-1 if r.random() < 0.2 else 0, c, (b, c, 2), generator=g)
    far = torch.randint(-b, b, (b,), generator=g)
    form = r.randrange(13)

    def function(x, near, far):
        points = (x * 2).reshape(b * c, h)
        own = near % c + torch.arange(0, b).view(-1, 1, 1) * c
        if form == 0:
            return points[own.view(-1), :].view(b, c, 2, h) - x[:, :, None]
        if form == 1:
            return points[own], own
        if form == 2:
            return points.index_select(0, own.view(-1)).view(b, c * 2, h).amax(1)
        if form == 3:
            return x[far], x[far].sum()
        if form == 4:
            return x[far, 0], x[far, :, :1], x[far, None]
        if form == 5:
            return points[near.reshape(-1)].view(b, c, 2, h)
        if form == 6:
            return torch.index_select(x, 0, far % b), points[:, 0][own]
        if form == 7:
            return x[far.abs() * 0 + torch.arange(b)], x[far[:1]]
        if form in (8, 9):
            numbers = torch.arange(b).view(b, 1).repeat(1, c) if form == 8 else torch.arange(b)[:, None].expand(b, c)
            return x[numbers, near[..., 0] % c, :], x[numbers, near[:, :1, 0] % c], x[numbers, near[..., 0]]
        if form == 10:
            return x[far, near[:, 0, 0]], x[far.abs() * 0 + torch.arange(b), near[:, 0, 0], 0]
        if form == 11:
            return points[own, near % h], points[own, :1], points[own[..., 0], 0]
        return points[own.permute(2, 0, 1)].mean(0), points.detach()[own].sum(2)

    return Call(function, [(x, 0), (near, 0), (far, 0)], local=False)


def lists_entries(r):
    """Numbers of what a mask has, whoever's rows it has, and what is picked, added and written at them."""
    dim = r.choice([0, 0, 1])
    x, _ = batch(r, dims=3, dim=dim, rows=r.randint(6, 11))
    g, form = generator(r), r.randrange(16)
    y = torch.rand(x.shape[:2], generator=g)
    weights = torch.rand(x.shape[-1], 3, generator=g)
    threshold = r.choice([0.2, 0.5, 0.9])

    def function(x, y):
        z, mask = x * 2, y > threshold
        first = mask.nonzero(as_tuple=True)
        if form == 0:
            return mask.nonzero(), (y * mask).nonzero(), torch.argwhere(mask)
        if form == 1:
            return torch.where(mask)
        if form == 2:
            return z[first], z[torch.where(mask)] @ weights
        if form == 3:
            at = mask.nonzero()
            return z[at[:, 0], at[:, 1]], y[at[:, 0], at[:, 1]] * 2
        if form == 4:
            rows = mask.any(1).nonzero().squeeze(1) if dim == 0 else mask.any(0).nonzero().squeeze(1)
            return (z if dim == 0 else z.transpose(0, 1))[rows].tanh()
        if form == 5:
            flat = z.flatten(0, 1) if dim == 0 else z.transpose(0, 1).flatten(0, 1)
            numbers = (mask if dim == 0 else mask.t()).flatten().nonzero().view(-1)
            return flat[numbers], flat.index_select(0, numbers), numbers + 1, flat[None, numbers], flat.t()[:, numbers]
        if form == 6:
            its = z if dim == 0 else z.transpose(0, 1)
            rows, columns = torch.where(mask if dim == 0 else mask.t())
            out = torch.zeros_like(its[:, 0])
            out.index_add_(0, rows, its[rows, columns] * y.sum())
            return out, out.index_add(0, rows, its[rows, columns], alpha=0.5)
        if form == 7:
            columns, rows = torch.where(mask.t() if dim == 0 else mask)
            its = z if dim == 0 else z.transpose(0, 1)
            out = torch.zeros_like(its[:, 0])
            out.index_add_(0, rows, its[rows, columns] @ weights @ weights.t())
            return out, its[rows], its[rows, columns, None]
        if form == 8:
            z[first] = x[first].sin()
        elif form == 9:
            z[first] = 3.0
        elif form == 10:
            z[first] = torch.arange(float(x.shape[-1]))
        elif form == 11:
            rows = first[dim]
            out = torch.zeros_like(z if dim == 0 else z.transpose(0, 1))
            out[rows, first[1 - dim]] = z[first] * 2
            out.index_fill_(0, rows[:1], 5.0)
            return out, first[0].float().mean()
        elif form == 12:
            return z.masked_select(mask[..., None]), torch.masked_select(y, mask), z.masked_select(x > 0).mean()
        elif form == 13:
            return torch.masked_select(z[..., 0], mask) + y[mask], y.masked_select(y > 2)
        elif form == 14:
            return z[mask] - z[mask].mean(0), y[mask].cumsum(0), z[mask][:1]
        else:
            z[mask] = z[mask] * y[mask][:, None]
        return (z,)

    return Call(function, [(x, dim), (y, dim)], local=False)


def sorts(r):
    """Rows in the order of whole numbers, which tell what is computed of them, and back where they were."""
    count, values = r.randint(6, 14), r.choice([1, 2, 4, 9])
    x, _ = batch(r, dims=2, dim=0, rows=count)
    g, form = generator(r), r.randrange(18)
    kind = r.choice([torch.int64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool])
    keys = torch.randint(0, 2 if kind is torch.bool else values, (count,), generator=g).to(kind)
    if kind is torch.int64 and r.random() < 0.3:
        keys = keys * r.choice([-3, 1000]) - 5
    weights = (torch.rand(values, 4, 8, generator=g) * 4).round().float()
    times, descending, is_in_forward = r.choice([1, 2, 3]), r.random() < 0.3, r.random() < 0.8

    def function(x, keys):
        with World.get().telling_batch_sizes(is_in_forward):
            return in_order(x * 2, keys)

    def in_order(z, keys):
        if form == 0:
            return *keys.sort(), keys.argsort(stable=True), torch.sort(keys, 0, descending)[1]
        if form == 1:
            return z[keys.argsort(descending=descending)].tanh(), z.index_select(0, torch.argsort(keys, dim=-1))
        several = keys.repeat_interleave(times) if form % 2 else torch.cat([keys] * times)
        order = torch.sort(several, stable=True, descending=descending).indices
        every = z.repeat_interleave(times, 0) if form % 2 else torch.cat([z] * times)
        if form == 2:
            return every[order], order, several[order]
        if form == 3:
            return z[order // times], z[order // times] * every[order], (order // times).float().mean()
        moved = every[order].sin() * torch.arange(1.0, len(order) + 1)[:, None]
        if form in (4, 5):
            back = torch.empty_like(order)
            back[order] = torch.arange(order.size(0))
            return moved[back], back, moved[back].view(-1, times, z.shape[1]).sum(1) if form == 5 else back
        if form in (6, 7):
            back = order.argsort()
            return moved[back], back, order.sort()[0], back.argsort(), moved[back.flip(0)]
        if form in (8, 9):
            out = torch.empty_like(moved)
            out[order] = moved
            return out, out * every
        if form in (10, 11):
            out = torch.zeros_like(moved)
            seen = out.view(-1, z.shape[1], 1)
            out[order] = moved.detach() if form == 10 else 3.0
            return out, seen * 2
        if form in (12, 13):
            out = torch.zeros_like(every).index_add_(0, order, moved)
            return out, every.index_copy(0, order, moved)
        whole = several.long() - several.long().min()
        ends = torch.bincount(whole, minlength=values).cumsum(0)
        if form == 14:
            ends = torch.histc(several.float(), bins=values, min=0, max=values - 1)
            return ends, torch.bincount(whole), torch.bincount(whole, minlength=99), keys.float().histc(3, 0, 2).sum()
        sizes = torch.bincount(whole).tolist()
        if form == 15:
            parts = every[whole.argsort()].split(sizes)
            return torch.cat([part * i for i, part in enumerate(parts)]), *parts
        if form == 16 or keys.dtype is torch.bool:
            return order.view(-1, times)[:, 0], order.to(torch.int32), order + 1, order[:3], moved[order]
        whole = keys.long().clamp(0, values - 1)
        ends = torch.histc(whole.float(), bins=values, min=0, max=values - 1).cumsum(0, dtype=torch.int32)
        near = (z[whole.argsort()].detach().repeat(1, 4)[:, :4] * 4).round().float()  # sums of such are exact
        return F.grouped_mm(near, weights, offs=ends), ends

    return Call(function, [(x, 0), (keys, 0)], local=False)


def picks_in_order(r):
    """Rows in the order of an index that every rank has, and what is written back at it, in a forward and outside."""
    x, _ = batch(r, dims=r.choice([1, 2, 3]), dim=0, rows=r.randint(6, 14))
    g, form, count = generator(r), r.randrange(16), x.shape[0]
    shuffled = torch.randperm(count, generator=g)
    some = torch.randint(0, count, (r.randint(1, 2 * count),), generator=g)
    at = r.choice([shuffled, some, some - count, torch.arange(count), torch.arange(count).repeat(2), some.sort()[0]])
    times, is_in_forward = r.choice([1, 2, 3]), r.random() < 0.8
    weights = torch.rand(len(at), generator=g).view(-1, *[1] * (x.dim() - 1))

    def function(x):
        with World.get().telling_batch_sizes(is_in_forward):
            return in_order(x * 2)

    def in_order(z):
        if form == 0:
            return z[at].tanh(), z[at, ...] * weights, z.index_select(0, at % count)
        if form == 1:
            return z[at.tolist()] + z[at], z[at] * z[at.clone()]
        if form == 2:
            back = torch.empty_like(shuffled)
            back[shuffled] = torch.arange(count)
            return z[shuffled].sin()[back] * z, z[shuffled][shuffled.argsort()] + z
        if form == 3:
            return z[shuffled] + z, torch.cat([z[shuffled], z]), 0.3 * z + 0.7 * z[shuffled]
        if form == 4:
            h = z[at].repeat_interleave(times, 0)
            return h, h.view(len(at), times, *z.shape[1:]).sum(1) * weights, h.unflatten(0, (len(at), times))
        if form == 5:
            h = z[at].repeat(times, *[1] * (z.dim() - 1))
            return h.cos(), h.view(times, *z[at].shape)[-1], h.unflatten(0, (times, len(at))) * weights
        if form == 6:
            out = torch.zeros_like(z).index_add_(0, at % count, z[at] * weights)
            return out, z.index_add(0, at % count, z[at], alpha=0.5)
        if form == 7:
            out = torch.zeros_like(z)
            out[shuffled] = z[shuffled].sin()
            out[shuffled] += z[shuffled]
            return out, out * z
        if form == 8:
            h = z[at] * weights
            return *h.split(3), h[1:], h[: len(at) // 2] * 2, h[-2:].sum()
        if form == 9:
            h = z[at]
            parts = [part * i for i, part in enumerate(h.chunk(3))]
            return torch.cat(parts), torch.cat(parts) * h, torch.cat(parts[1:]), torch.cat([parts[-1], parts[0]])
        if form == 10:
            h = z[at] * 1
            h.mul_(2)
            h[: len(at) // 2] = 0.5
            return h, h.flip(0), h.roll(1, 0)
        if form == 11:
            first = z.flatten(1)[:, 0] if z.dim() > 1 else z
            return first.gather(0, at % count), first.take(at % count), first[at].cumsum(0)
        if form == 12:
            h = z[at].flatten(1) if z.dim() > 1 else z[at][:, None]
            return h[h[:, 0] > 0], h[:, 0].nonzero(), h @ h.t(), h.mean(0), h.std()
        if form == 13:
            h = z[at]
            return h[torch.arange(len(at)).flip(0)], h[at % len(at)], torch.stack([h, h * weights], 1)
        if form == 14:
            h = z[at].detach().requires_grad_()
            (h * weights).square().sum().backward()
            return h.grad, h.grad * h.detach()
        return torch.where(weights > 0.5, z[at], 0.0), F.dropout(z[at], 0.0), z[at].sum(), z[at].max()

    return Call(function, [(x, 0)], local=False)


def picks_by_mask(r):
    """Rows and entries at masks of a batch's own, of the script's, and of columns; and writes to them."""
    x, _ = batch(r, dims=3, dim=0, rows=r.randint(6, 11))
    g, (b, c, h) = generator(r), x.shape
    y = torch.rand(b, c, generator=g)
    labels = torch.randint(0, h, (b, c), generator=g)
    kept = torch.rand(b, generator=g) < r.choice([0.3, 0.7, 0.95])
    columns = torch.rand(c, generator=g) < 0.6
    cells = torch.rand(b, c, generator=g) < 0.6
    is_own, form = r.random() < 0.5, r.randrange(22)
    of_bytes = r.random() < 0.2 and form not in (10, 18, 19, 20, 21)  # one value is written by masks of bool alone
    if of_bytes:  # as before torch 1.2
        kept, columns, cells = kept.byte(), columns.byte() * 3, cells.byte()

    def function(x, y, labels):
        rows = y[:, 0] > 0.3 if is_own else kept
        entries = y > 0.4 if is_own else cells
        if of_bytes:
            rows, entries = rows.byte(), entries.byte()
        z = x * 2
        if form == 0:
            return z[rows], y[rows] * 3
        if form == 1:
            return z[entries].log_softmax(-1), labels[entries]
        if form == 2:
            return torch.nn.functional.cross_entropy(z[entries], labels[entries]) if bool(entries.any()) else z
        if form == 3:
            return (z[rows].mean() if bool(rows.any()) else z.mean()), z[rows].sum((1, 2))
        if form == 4:
            return z[entries, 0], z[rows, :, -1], z[rows, ..., None]
        if form == 5:
            return z[entries, labels[entries]], y[entries]
        if form == 6:
            return z[:, columns], z[..., columns, :], z[rows][:, columns]
        if form == 7:
            z[rows] = x[rows] * 3
        elif form == 8:
            z[entries] = x.flip(2)[entries]
        elif form == 9:
            z[rows] = torch.arange(float(h))
        elif form == 10:
            z[entries] = 0.5
        elif form == 11:
            z[:, columns] = 0.0
        elif form == 12:
            z[entries] = y[entries][:, None]
        elif form == 13:
            z[rows] = z[rows].detach()
            z = z[rows]
        elif form == 14:
            table = torch.arange(float(b * h)).view(b, h)
            return table[rows] * z[rows][:, 0], table[rows]
        elif form == 15:
            return z[y > 0.5] - z[y > 0.5].mean(0), z[y > 0.5].shape[0] * y
        elif form == 18:
            z[rows] = x.mean()
        elif form == 19:
            z[entries] = y.sum() * 2
        elif form == 20:
            z[entries] = x.mean((0, 1))
        elif form == 21:
            z[rows] = x[:, 0].sum(0, keepdim=True) * 2
        elif form == 16:
            return z[entries].view(-1, h).flatten(), torch.cat([y[entries], y[entries] * 2])
        else:
            return z[labels == 0].amax(0) if bool((labels == 0).all(1).any()) else z, z[~rows]
        return (z,)

    return Call(function, [(x, 0), (y, 0), (labels, 0)], local=False)


def writes(r):
    """In-place writes through every door change what the script sees."""
    x, dim = batch(r, dims=2, dim=r.randrange(2))
    b = x.shape[dim]
    i = r.randrange(b)

    def function(x, form=r.randrange(12)):
        z = x.clone() if form % 2 else x * 1
        row = [slice(None)] * 2
        row[dim] = i
        if form == 0:
            z[tuple(row)] = 0
        elif form == 1:
            z[z > 0] = 5.0
        elif form == 2:
            z.mul_(2).add_(z.detach().clone())
        elif form == 3:
            z[tuple(row)].mul_(3)
        elif form == 4:
            view = z.view(*z.shape)
            view.clamp_(-1, 1)
        elif form == 5:
            z.masked_fill_(z < 0, 0.5)
        elif form == 6:
            z += 1
            z *= z.detach().clone()
        elif form == 9:
            view = z.view(*z.shape)
            z[tuple(row)].zero_()  # through a view of the whole; the other batch shares its rows
            return view * 2
        elif form == 10:
            z = z.detach()
            view = z.transpose(0, 1)
            z.numpy()[...] = 7
            return view * 2 + x.t()
        elif form == 11:
            z = z.detach()
            half = z[: b // 2] if dim == 0 else z[:, : b // 2]
            F.relu(half, inplace=True)
            return z * 2 + x
        elif form == 7:
            z.index_fill_(dim, torch.tensor([i]), 2.0)
        else:
            z.copy_(x.flip(0) if dim == 0 else x.flip(1))
        return z * 2 + z.sum()

    return Call(function, [(x, dim)], local=False)


def writes_to_slices(r):
    """Slices of a batch, views of them and views of the batch itself are one memory."""
    x, dim = batch(r, dims=2, dim=r.randrange(2))
    b = x.shape[dim]
    k, form, looks = r.randint(3, b - 1), r.randrange(10), r.random() < 0.5

    def function(x):
        with torch.inference_mode(form == 8 or form == 9):
            return written(x)

    def written(x):
        z = x.detach().clone() if form > 5 else x * 1
        old = z.view(*z.shape)
        half = z[:k] if dim == 0 else z[:, :k]
        later = z[1:] if dim == 0 else z[:, 1:]
        column = (slice(None), 0) if dim == 0 else (0, slice(None))
        seen = [part.sum() for part in (half, later, z)] if looks else []
        if form == 0:
            half[column] *= 2
        elif form == 1:
            z[column] -= 0.5
        elif form == 2:
            (z[:k] if dim == 0 else z[:, :k]).t().mul_(3)
        elif form == 3:
            old.mul_(2)
        elif form == 4:
            half.t()[0 if dim == 0 else slice(None), 0].add_(1)
        elif form == 5:
            old[column] += 1
            later.mul_(2)
        elif form == 6:
            plain = z.select(dim, 0)
            old.mul_(2)
            return plain + 1, z * 1
        elif form == 7:
            half.view(*half.shape).t().normal_(generator=torch.Generator().manual_seed(1))
        elif form == 8:
            half.mul_(2)
            z.select(dim, 1).zero_()
        else:
            half[column] -= 1
            old.add_(1)
        return [*seen, half * 1, later + 0, z * 1, old * 1, z.sum()]

    return Call(function, [(x, dim)], local=False)


def memory_orders(r):
    """Random numbers are drawn in the order in which one process's memory lies."""
    b, t = r.randint(4, 11), r.randint(2, 4)  # a batch of one row per rank does not tell
    x, dim = torch.rand(b, t, 5, 2, generator=generator(r)), 0
    form, seed = r.randrange(8), r.randrange(2**30)
    if r.random() < 0.5:
        x = x.to(memory_format=torch.channels_last)
    elif r.random() < 0.5:
        x, dim = x.transpose(0, 1), 1

    def function(x):
        torch.manual_seed(seed)
        if form == 0:
            return torch.randn_like(x)
        if form == 1:
            return (x * 2).detach().normal_()
        if form == 2:
            return torch.bernoulli(x * 0.5)
        if form == 3:
            y = x.clone()
            y.detach().uniform_()
            return y + torch.rand_like(y)
        if form == 4:
            return torch.randn_like(x.transpose(1, 3).relu())
        if form == 5:
            return torch.randn_like(x.permute(2, 0, 3, 1)[1])
        if form == 6:
            return torch.rand_like(x[..., :1].exp()) + x[:, torch.arange(x.shape[1] - 1, -1, -1)]
        return torch.tensor([*x.stride(), x.is_contiguous(), x.is_contiguous(memory_format=torch.channels_last)])

    return Call(function, [(x, dim)], local=False)


def class_losses(r):
    c = r.randint(2, 5)
    extra = sizes(r, r.choice([0, 0, 1, 2]))
    b = r.randint(4, 11)
    logits = torch.rand(b, c, *extra, generator=generator(r)) * 4 - 2
    target = torch.randint(0, c, (b, *extra), generator=generator(r))
    weight = torch.rand(c, generator=generator(r)) + 0.1
    kwargs = {"reduction": r.choice(["mean", "sum", "none"])}
    if r.random() < 0.5:
        kwargs["ignore_index"] = r.randrange(c)
    at = r.choice([0, 0, None])
    name = r.choice(["cross_entropy", "cross_entropy", "nll_loss", "probabilities", "module", "flat"])
    weighted = r.random() < 0.5
    if name != "module" and r.random() < 0.3:
        kwargs.update(of_before_torch_1_0(r))
    if name == "cross_entropy" and r.random() < 0.2:  # of one sample
        kwargs.pop("ignore_index", None)
        one, chances = logits.flatten(1)[:, 0], torch.rand(b, generator=generator(r))
        return Call(lambda x, t: F.cross_entropy(x, t, **kwargs), [(one, 0), (chances, 0)], local=False)
    if name == "cross_entropy" or name == "module":
        kwargs["label_smoothing"] = r.choice([0.0, 0.1])
    if name == "probabilities":
        kwargs.pop("ignore_index", None)
        soft = torch.rand(b, c, *extra, generator=generator(r)).softmax(1)
        return Call(
            lambda x, t, w: F.cross_entropy(x, t, weight=w.detach() if weighted else None, **kwargs),
            [(logits, 0), (soft, at), (weight, None)],
        )
    if name == "nll_loss":
        return Call(
            lambda x, t, w: F.nll_loss(x.log_softmax(1), t, w.detach() if weighted else None, **kwargs),
            [(logits, 0), (target, at), (weight.detach(), None)],
        )
    if name == "flat":
        logits = torch.rand(b, 3, c, generator=generator(r))
        target = torch.randint(0, c, (b, 3), generator=generator(r))
        return Call(lambda x, t: F.cross_entropy(x.view(-1, c), t.view(-1), **kwargs), [(logits, 0), (target, 0)])
    if name == "module":
        return Call(
            lambda x, t, w: torch.nn.CrossEntropyLoss(w.detach() if weighted else None, **kwargs)(x, t),
            [(logits, 0), (target, at), (weight, None)],
        )
    return Call(
        lambda x, t, w: F.cross_entropy(x, t, w.detach() if weighted else None, **kwargs),
        [(logits, 0), (target, at), (weight, None)],
    )


def row_losses(r):
    """Losses of one term per row, and CTC with its targets in each of its forms."""
    b, d, g = r.randint(4, 9), r.randint(2, 5), generator(r)
    x, y, z = (torch.rand(b, d, generator=g) * 4 - 2 for _ in range(3))
    sign, label = torch.randint(0, 2, (b,), generator=g) * 2.0 - 1, torch.randint(0, d, (b,), generator=g)
    some = torch.stack([torch.randperm(d, generator=g) for _ in range(b)]).where(
        torch.rand(b, d, generator=g) < 0.7, -1
    )
    at, weight, kwargs = (
        r.choice([0, 0, None]),
        torch.rand(d, generator=g),
        {"reduction": r.choice(["mean", "sum", "none"])},
    )
    if r.random() < 0.1:
        kwargs.update(of_before_torch_1_0(r))
    of_old = len(kwargs) > 1
    pair = [(x, 0), (y, 0)]
    form = r.randrange(15)
    calls = [
        Call(lambda x, y: F.cosine_embedding_loss(x, y, sign[:1], 0.1, **kwargs), pair, not of_old),
        Call(lambda x, y, z: F.triplet_margin_loss(x, y, z, swap=d > 3, **kwargs), [*pair, (z, at)], not of_old),
        Call(lambda x, y, t: F.cosine_embedding_loss(x, y, t.detach(), 0.1, **kwargs), [*pair, (sign, at)], not of_old),
        Call(
            lambda x, y, t: F.margin_ranking_loss(x, y, t.detach()[:, None], 0.2, **kwargs), [*pair, (sign, 0)], not of_old
        ),
        Call(lambda x, t: F.hinge_embedding_loss(x, t.detach().sign(), **kwargs), [(x, 0), (z, at)], not of_old),
        Call(lambda x, y, v: F.gaussian_nll_loss(x, y, v.exp(), True, reduction=kwargs["reduction"]), [*pair, (z, at)]),
        Call(lambda x, y, v: F.gaussian_nll_loss(x, y, v.exp(), reduction=kwargs["reduction"]), [*pair, (sign, 0)]),
        Call(
            lambda x, t, w: F.multi_margin_loss(x, t, weight=w.detach() if d > 2 else None, **kwargs),
            [(x, 0), (label, at), (weight, None)], not of_old,
        ),
        Call(lambda x, t: F.multilabel_margin_loss(x, t, **kwargs), [(x, 0), (some, at)], not of_old),
        Call(
            lambda x, t, w: F.multilabel_soft_margin_loss(x, t.detach().sigmoid(), w.detach() if d > 2 else None, **kwargs),
            [(x, 0), (z, at), (weight, None)], not of_old,
        ),
        Call(lambda x, t: F.hinge_embedding_loss(x[:, :1], t.detach(), **kwargs), [(x, 0), (sign, at)], False),
        Call(lambda x, y: F.gaussian_nll_loss(x[:, :1], y[:, 0], torch.ones(b, 1)), pair, False),
        Call(
            lambda x, t: F.multilabel_soft_margin_loss(x @ torch.ones(d, b), t.detach(), **kwargs), [(x, 0), (sign, at)], False
        ),
        Call(
            lambda x, t, w: F.multilabel_soft_margin_loss(x, t.detach().sigmoid(), w.detach(), **kwargs),
            [(x, 0), (z, at), (y, None)], False,
        ),
        Call(lambda x, y: F.triplet_margin_loss(x[:, :, None] * y[:, None], x[:, None] + y[:, :, None], y[:, None] * 2), pair),
    ]  # fmt: skip
    return calls[form]


def ctc(r):
    t, b, c, s, g = 7, r.randint(4, 8), 5, 3, generator(r)
    x = torch.rand(t, b, c, generator=g) * 3
    targets, lengths = torch.randint(1, c, (b, s), generator=g), torch.randint(0, s + 1, (b,), generator=g)
    steps = torch.randint(s + 3, t + 1, (b,), generator=g)
    kwargs = {"reduction": r.choice(["mean", "mean", "sum", "none"]), "zero_infinity": r.random() < 0.3}
    at, form = r.choice([0, None]), r.randrange(4)
    inputs = [(x, 1), (targets, r.choice([at, at, 1])), (steps, at), (lengths, r.choice([at, None]))]

    def function(x, targets, steps, lengths):
        if form == 0:
            targets = torch.cat([row[:length] for row, length in zip(targets, lengths.tolist(), strict=True)])
        if form == 1:
            steps, lengths = (t,) * b, tuple(lengths.tolist())
        if form == 2:
            steps, lengths = steps.tolist(), tuple(lengths.tolist())
        return F.ctc_loss(x.log_softmax(2), targets, steps, lengths, **kwargs)

    return Call(function, inputs, local=False)


def of_before_torch_1_0(r):
    name = r.choice(["size_average", "reduce", "both"])
    return {each: r.choice([True, False, 0, 1]) for each in ("size_average", "reduce") if name in (each, "both")}


def element_losses(r):
    x, dim = batch(r, low=0.05, high=0.95)
    target, at = other(r, x, dim, kind=r.choice(["batch", "global"]), low=0.05, high=0.95)
    name = r.choice(
        "mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits".split()
    )
    kwargs = {"reduction": r.choice(["mean", "sum", "none"])}
    if name == "kl_div":
        kwargs["reduction"] = r.choice(["mean", "sum", "none", "batchmean"])
        kwargs["log_target"] = r.random() < 0.5
    if name == "smooth_l1_loss":
        kwargs["beta"] = 0.2
    if name == "mse_loss" and r.random() < 0.3:  # in half precision and another
        return Call(lambda x, t: F.mse_loss(x.half(), t, **kwargs), [(x, dim), (target, at)], grads=False)
    if name != "huber_loss" and r.random() < 0.3:
        kwargs.update(of_before_torch_1_0(r))
        if kwargs["reduction"] == "batchmean":  # torch divides by the batch once more
            return Call(lambda x, t: F.kl_div(x, t, **kwargs), [(x, dim), (target, at)], local=False)
    inputs = [(x, dim), (target, at)]
    if name.startswith("binary") and r.random() < 0.6:
        inputs.append(other(r, x, dim, kind=r.choice(["batch", "global", "row"]), low=0.1))
        inputs[-1] = (inputs[-1][0].abs(), inputs[-1][1])
        if name.endswith("logits") and r.random() < 0.5:
            return Call(
                lambda x, t, w: F.binary_cross_entropy_with_logits(x, t, pos_weight=w.detach(), **kwargs), inputs
            )
        return Call(lambda x, t, w: getattr(F, name)(x, t, weight=w.detach(), **kwargs), inputs)
    return Call(lambda x, t: getattr(F, name)(x, t, **kwargs), inputs)


def table(name):
    """Any name of the rule table, called in whichever way torch accepts on plain tensors."""

    def case(r):
        function = r.choice(functions_named(name))
        x, dim = batch(r, low=0.2, high=0.9)
        (y, a), (z, b) = other(r, x, dim, "batch", 0.2, 0.9), other(r, x, dim, low=0.2, high=0.9)
        i, j = ((t * 9).long() for t in (x, y))
        mask = y > 0.5
        ways = [
            [(x, dim)], [(x, dim), (y, a)], [(x, dim), (y, a), (z, b)], [(x, dim), (mask, a), (torch.tensor(0.3), None)],
            [(i, dim)], [(i, dim), (j, a)], [(mask, dim)],
        ]  # fmt: skip
        numbers = [(), (0.4,), (0.3, 0.7), (2,), (torch.float64,)]
        for inputs in ways:
            for rest in numbers:
                plain = [t.clone() for t, _ in inputs]
                try:
                    result = function(*plain, *rest)
                except (TypeError, RuntimeError, ValueError, NotImplementedError):
                    continue
                if not isinstance(result, torch.Tensor):
                    continue
                fresh = (lambda t: t * 1) if result is plain[0] and inputs[0][0] is x else (lambda t: t)
                call = Call(lambda *t, f=function, n=rest, first=fresh: f(first(t[0]), *t[1:], *n), inputs)
                call.grads = name not in NARROW and differentiable(call)
                return call
        raise AssertionError(f"no way found to call {function}")

    return case


NARROW = {"half", "bfloat16", "float", "cfloat", "cdouble"}  # gradients round, or are complex


def differentiable(call):
    """Tell whether one process can differentiate a call; some in-place functions overwrite what they saved."""
    inputs = [t.clone().requires_grad_(t.is_floating_point()) for t, _ in call.inputs]
    try:
        result = call.function(*inputs)
        if result.requires_grad:
            result.sum().backward()
    except RuntimeError:
        return False
    return True


def functions_named(name):
    owners = (torch.Tensor,) if name.startswith("__") or (hasattr(torch.Tensor, name) and not callable(
        getattr(torch, name, None)
    )) else (torch, torch.Tensor, F, torch.special)  # fmt: skip
    found = [getattr(owner, name, None) for owner in owners]
    return [function for function in found if callable(function) and not hasattr(function, "__path__")]


def table_names():
    from ddp_patch.batch.rules import table as rules

    names = dict.fromkeys([*rules.ELEMENTWISE, *rules.IN_PLACE, *rules.CASTS])
    # No accelerator here; a dtype or another tensor to cast to has cases of its own; imag needs complex numbers.
    without = {"cuda", "xpu", "pin_memory", "type_as", "to", "type", "real", "imag", "float_power_"}
    return [name for name in names if name not in without and functions_named(name)]


CASES = {
    **{f"table {name}": table(name) for name in table_names()},
    **{f"torch.{name}": unary(name) for name in UNARY},
    **{f"F.{name}": functional(name) for name in FUNCTIONAL},
    **{f"binary {name}": binary(name) for name in BINARY},
    **{f"compare {name}": compare(name) for name in COMPARE},
    **{f"operator {name}": operator(name) for name in OPERATORS},
    **{
        f"in place {name}": in_place(name)
        for name in ["add_", "sub_", "mul_", "div_", "__iadd__", "__imul__", "clamp_min_", "pow_", "copy_"]
    },
    **{
        f"along {name}": along(name, True)
        for name in "softmax log_softmax cumsum cumprod sort argsort topk logcumsumexp cummax".split()
    },
    **{
        f"along {name}": along(name, False)
        for name in "sum mean max min argmax argmin logsumexp prod amax amin all any std var median count_nonzero kthvalue".split()
    },
    "ternary": ternary,
    "logic": logic,
    "casts": casts,
    "norms": norms,
    "compared": compared,
    "reduction": reduction,
    "reshapes": reshapes,
    "moves": moves,
    "columns": columns,
    "scatters": scatters,
    "places": places,
    "kernels": kernels,
    "lookups": lookups,
    "permutations": permutations,
    "products": products,
    "unknown": unknown,
    "shapes_like": shapes_like,
    "draws": draws,
    "draws into batches": draws_into_batches,
    "picks_by_number": picks_by_number,
    "variances": variances,
    "picks_by_batch": picks_by_batch,
    "lists_entries": lists_entries,
    "sorts": sorts,
    "picks_in_order": picks_in_order,
    "picks_by_mask": picks_by_mask,
    "writes": writes,
    "writes_to_slices": writes_to_slices,
    "memory_orders": memory_orders,
    "class_losses": class_losses,
    "row losses": row_losses,
    "ctc": ctc,
    "element_losses": element_losses,
}
REPEATS = {
    "compared": 40,
    "scatters": 40,
    "places": 40,
    "kernels": 40,
    "lookups": 24,
    "ternary": 20,
    "casts": 20,
    "norms": 30,
    "reduction": 40,
    "reshapes": 40,
    "moves": 40,
    "columns": 60,
    "permutations": 60,
    "products": 30,
    "unknown": 40,
    "draws": 15,
    "draws into batches": 30,
    "picks_by_number": 60,
    "variances": 60,
    "picks_by_batch": 60,
    "lists_entries": 120,
    "sorts": 150,
    "picks_in_order": 120,
    "picks_by_mask": 120,
    "writes": 60,
    "writes_to_slices": 60,
    "memory_orders": 60,
    "class_losses": 80,
    "row losses": 80,
    "ctc": 30,
    "element_losses": 60,
    "shapes_like": 10,
    "logic": 15,
}
