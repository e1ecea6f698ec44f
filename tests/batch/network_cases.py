"""Random calls of the functions that networks are made of. Weights are global, and their gradients are compared too."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from cases import Call, batch, generator, sizes


def rand(r, *shape):
    return torch.rand(shape, generator=generator(r)) * 2 - 1


def rows(r):
    return r.randint(3, 9)


def samples(r, *shape):
    return rand(r, rows(r), *shape), 0


def linear(r):
    x, dim = batch(r, dims=r.randint(2, 4))
    if dim == x.dim() - 1:
        x, dim = x.transpose(0, -1).contiguous(), 0
    w, b = rand(r, 3, x.shape[-1]), rand(r, 3)
    forms = [
        Call(F.linear, [(x, dim), (w, None), (b, None)]),
        Call(lambda x, w: F.linear(x, w), [(x, dim), (w, None)]),
        Call(lambda x, w, b: F.linear(x, weight=w, bias=b).relu(), [(x, dim), (w, None), (b, None)]),
        Call(lambda x, w: F.linear(x, w[0]), [(x, dim), (w, None)]),
        Call(lambda x, w: F.linear(w, x), [(rand(r, 5, 4), 0), (rand(r, 2, 4), None)], local=False),
        Call(lambda x, w: F.linear(x, w), [(rand(r, 3, 6), 1), (rand(r, 2, 6), None)], local=False),
        Call(lambda x: F.linear(x, x), [(rand(r, 5, 4), 0)], local=False),
    ]
    return r.choice(forms)


def matmul(r):
    b, h, t, s, d = rows(r), *(r.randint(1, 4) for _ in range(4))
    x, y = rand(r, b, t, d), rand(r, b, d, s)
    function = r.choice([torch.matmul, torch.Tensor.matmul, lambda x, y: x @ y, torch.linalg.matmul])
    forms = [
        [(x, 0), (y, 0)],
        [(x, 0), (y, None)],
        [(x, None), (y, 0)],
        [(x, 0), (rand(r, d, s), None)],
        [(x, 0), (rand(r, 1, d, s), None)],
        [(x, 0), (rand(r, h, 1, d, s), None)],
        [(x, 0), (rand(r, d), None)],
        [(rand(r, s, t), None), (x, 0)],
        [(rand(r, t), None), (x, 0)],
        [(rand(r, h, s, t), None), (x[:, None], 0)],
        [(rand(r, b, d), 0), (rand(r, d, s), None)],
        [(rand(r, b, d), 0), (rand(r, h, d, s), None)],
        [(rand(r, b, b), 0), (rand(r, b, b), None)],
        [(rand(r, s, d), None), (rand(r, d, b), 1)],
        [(rand(r, d), None), (rand(r, d, b), 1)],
        [(rand(r, h, s, d), None), (rand(r, d, b), 1)],
        [(rand(r, t, b, d), 1), (rand(r, d, s), None)],
        [(rand(r, h, b, t, d), 1), (y, 0)],
        [(x, 0), (rand(r, h, b, d, s), 1)],
        [(rand(r, b, h, t, d), 0), (rand(r, b, h, d, s), 0)],
        [(rand(r, b, h, t, d), 0), (rand(r, h, d, s), None)],
    ]
    return Call(function, r.choice(forms))


def crossed_matmul(r):
    """Products that sum over the rows, or in which rows meet other rows."""
    b, d = rows(r), r.randint(1, 4)
    x = rand(r, b, d)
    forms = [
        Call(lambda x, y: x @ y.t(), [(x, 0), (rand(r, b, d), 0)]),
        Call(lambda x, y: x.t() @ y, [(x, 0), (rand(r, b, 3), 0)]),
        Call(lambda x, y: y @ x, [(x, 0), (rand(r, 2, b), None)]),
        Call(lambda x, y: x.t() @ y, [(x, 0), (rand(r, b, 2), None)]),
        Call(lambda x, y: x[:, 0] @ y, [(x, 0), (rand(r, b), None)]),
        Call(lambda x, y: x[:, None] @ y[None], [(rand(r, b, 2, d), 0), (rand(r, b, d, 2), 0)]),
        Call(lambda x, y: x @ y, [(rand(r, b, b, d), 1), (rand(r, b, d, 2), 0)]),
        Call(lambda x: x @ x.t(), [(x, 0)]),
    ]
    call = r.choice(forms)
    call.local = False
    return call


def other_products(r):
    b, t, s, d = rows(r), *(r.randint(1, 4) for _ in range(3))
    x, w, stack, pile = rand(r, b, d), rand(r, d, s), rand(r, b, t, d), rand(r, b, d, s)
    bias = r.choice([rand(r, s), rand(r, 1), rand(r, b, 1), rand(r, b, s), rand(r, 1, s)])
    at = 0 if bias.dim() == 2 and bias.shape[0] == b and r.random() < 0.5 else None
    piled = r.choice([rand(r, b, t, s), rand(r, t, s), rand(r, 1, 1, s), rand(r, b, 1, 1)])
    on = 0 if piled.shape[0] == b and piled.dim() == 3 and r.random() < 0.5 else None
    vectors = r.choice([rand(r, b), rand(r, 1)])
    forms = [
        Call(torch.mm, [(x, 0), (w, None)]),
        Call(torch.Tensor.mm, [(w.t().contiguous(), None), (x.t().contiguous(), 1)]),
        Call(torch.Tensor.mv, [(x, 0), (rand(r, d), None)]),
        Call(torch.bmm, [(stack, 0), (pile, 0)]),
        Call(torch.bmm, [(stack, r.choice([0, None])), (pile, 0)]),
        Call(torch.Tensor.bmm, [(stack, 0), (pile, None)]),
        Call(torch.addmm, [(bias, at), (x, 0), (w, None)]),
        Call(lambda c, x, w: c.addmm(x, w, beta=0.5, alpha=2), [(bias, at), (x, 0), (w, None)]),
        Call(torch.addmv, [(vectors, None), (x, 0), (rand(r, d), None)]),
        Call(torch.baddbmm, [(piled, on), (stack, 0), (pile, 0)]),
        Call(lambda c, x, y: c.baddbmm(batch1=x, batch2=y, alpha=0.5), [(piled, on), (stack, 0), (pile, 0)]),
        Call(lambda c, x, y: torch.baddbmm(c, x, y, beta=2), [(piled, on), (stack, 0), (pile, None)]),
        Call(torch.addmm, [(rand(r, 2, 3), None), (rand(r, 2, b), 1), (rand(r, b, 3), 0)], local=False),
        Call(torch.addbmm, [(rand(r, t, s), None), (stack, 0), (pile, 0)], local=False),
        Call(F.bilinear, [(x, 0), (rand(r, b, s), r.choice([0, None])), (rand(r, 2, d, s), None), (rand(r, 2), None)]),
        Call(
            lambda x, y, w: F.bilinear(x, y, w),
            [(rand(r, t, b, d), 1), (rand(r, t, b, s), 1), (rand(r, 2, d, s), None)],
        ),
    ]
    return r.choice(forms)


def convolution(n, transposed):
    def case(r):
        name = f"conv_transpose{n}d" if transposed else f"conv{n}d"
        function = getattr(r.choice([torch, F]), name)
        groups = r.choice([1, 2])
        c, out, k = 2 * r.randint(1, 2), 2 * r.randint(1, 2), r.randint(1, 3)
        x = rand(r, rows(r), c, *[r.randint(4, 6) for _ in range(n)])
        w = rand(r, c, out // groups, *[k] * n) if transposed else rand(r, out, c // groups, *[k] * n)
        kwargs = {"stride": r.randint(1, 2), "groups": groups}
        kwargs["padding"] = r.choice([0, 1] if transposed else [0, 1, "valid"])
        inputs = [(x, 0), (w, None)]
        if r.random() < 0.7:
            bias = rand(r, out)
            return Call(lambda x, w, b: function(x, w, b, **kwargs), [*inputs, (bias, None)])
        if r.random() < 0.2:
            return Call(lambda x, w: function(x, w, **kwargs), [(x[0], r.randrange(1, n + 1)), (w, None)], local=False)
        return Call(lambda x, w: function(x, weight=w, **kwargs), inputs)

    return case


def pools(n):
    def case(r):
        x = rand(r, rows(r), r.randint(1, 3), *[r.randint(4, 7) for _ in range(n)])
        size, stride = r.randint(1, 3), r.choice([None, 1, 2])
        out = r.randint(1, 3)
        forms = [
            lambda x: getattr(F, f"max_pool{n}d")(x, size, stride),
            lambda x: getattr(F, f"max_pool{n}d")(x, size, stride, ceil_mode=True, return_indices=True),
            lambda x: getattr(torch, f"max_pool{n}d")(x, size),
            lambda x: getattr(nn, f"MaxPool{n}d")(size, return_indices=True)(x),
            lambda x: getattr(F, f"avg_pool{n}d")(x, size, stride=stride, ceil_mode=True),
            lambda x: getattr(nn, f"AvgPool{n}d")(size)(x),
            lambda x: getattr(F, f"adaptive_avg_pool{n}d")(x, out),
            lambda x: getattr(F, f"adaptive_max_pool{n}d")(x, out),
            lambda x: getattr(nn, f"AdaptiveMaxPool{n}d")(out, return_indices=True)(x),
            lambda x: getattr(F, f"lp_pool{n}d")(x + 2, 2.0, size),
            lambda x: getattr(F, f"max_unpool{n}d")(
                *getattr(F, f"max_pool{n}d")(x, 2, return_indices=True), 2, output_size=x.shape[2:]
            ),
        ]
        if r.random() < 0.15:
            return Call(forms[r.choice([0, 4])], [(x.movedim(0, -1)[0].contiguous(), n)], local=False)
        return Call(r.choice(forms), [(x, 0)])

    return case


def norms(r):
    x, dim = batch(r, dims=r.randint(2, 4), rows=rows(r))
    if dim == x.dim() - 1:
        x, dim = x.transpose(0, -1).contiguous(), 0
    last = r.randint(1, x.dim() - 1 - dim)
    shape = x.shape[x.dim() - last :]
    w, b = rand(r, *shape), rand(r, *shape)
    forms = [
        Call(lambda x, w, b: F.layer_norm(x, shape, w, b), [(x, dim), (w, None), (b, None)]),
        Call(lambda x, w: F.layer_norm(x, list(shape), w, eps=0.1), [(x, dim), (w, None)]),
        Call(lambda x: torch.layer_norm(x, shape, eps=0.1), [(x, dim)]),
        Call(lambda x, w: F.rms_norm(x, tuple(shape), w), [(x, dim), (w, None)]),
        Call(lambda x: torch.rms_norm(x, shape), [(x, dim)]),
        Call(lambda x: F.layer_norm(x, x.shape), [(x, dim)], local=False),
        Call(lambda x: nn.LayerNorm(shape, elementwise_affine=False)(x), [(x, dim)]),
    ]
    return r.choice(forms)


def sample_norms(r):
    c = 2 * r.randint(1, 2)
    x = rand(r, rows(r), c, *[r.randint(2, 4) for _ in range(r.randint(1, 3))])
    w, b = rand(r, c), rand(r, c)
    mean, var = rand(r, c), rand(r, c).abs() + 0.5
    thin = rand(r, rows(r), c)
    one = [(w, None), (b, None)]
    forms = [
        Call(lambda x, w, b: F.group_norm(x, 2, w, b), [(x, 0), *one]),
        Call(lambda x, w: F.group_norm(x, 1, weight=w), [(thin, 0), (w, None)]),
        Call(lambda x: F.group_norm(x, c) * 1, [(thin, 0)], local=False),
        Call(lambda x: F.group_norm(x, 2), [(rand(r, 3, 4, rows(r)), 2)], local=False),
        Call(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [(x, 0), *one]),
        Call(
            lambda x, m, v: F.instance_norm(x, m.detach(), v.detach(), use_input_stats=False),
            [(x, 0), (mean, None), (var, None)],
        ),
        Call(
            lambda x, m, v: F.instance_norm(x, m := m.detach(), v := v.detach()) * m.sum() * v.sum(),
            [(x, 0), (mean, None), (var, None)],
            local=False,
        ),
        Call(
            lambda x, m, v, w, b: F.batch_norm(x, m.detach(), v.detach(), w, b),
            [(x, 0), (mean, None), (var, None), *one],
        ),
        Call(
            lambda x, m, v: F.batch_norm(x, m.detach(), v.detach(), training=False),
            [(rand(r, 2, c, rows(r)), 2), (mean, None), (var, None)],
        ),
        Call(
            lambda x, m, v: F.batch_norm(x, m := m.detach(), v := v.detach(), training=True) * m.sum() * v.sum(),
            [(x, 0), (mean, None), (var, None)],
            local=False,
        ),
        Call(lambda x: F.local_response_norm(x, 2), [(x, 0)]),
    ]
    return r.choice(forms)


def embeddings(r):
    k, d = r.randint(2, 6), r.randint(1, 4)
    shape = sizes(r, r.randint(1, 3))
    dim = r.randrange(len(shape))
    shape[dim] = rows(r)
    index = torch.randint(0, k, shape, generator=generator(r))
    bags = torch.randint(0, k, (rows(r), r.randint(1, 4)), generator=generator(r))
    w, per_sample = rand(r, k, d), rand(r, *bags.shape)
    mode = r.choice(["mean", "sum", "max"])
    flat = bags.flatten()
    offsets = torch.arange(0, len(flat), bags.shape[1])
    forms = [
        Call(F.embedding, [(index, dim), (w, None)]),
        Call(lambda i, w: F.embedding(i, w, padding_idx=-1), [(index, dim), (w, None)]),
        Call(lambda i, w: F.embedding(i, w, 0), [(index, dim), (w, None)]),
        Call(lambda i, w: F.embedding(i, w, scale_grad_by_freq=True), [(index, dim), (w, None)], local=False),
        Call(lambda i, w: F.embedding(i, w.detach(), max_norm=0.5), [(index, dim), (w, None)], local=False),
        Call(F.embedding, [(torch.randint(0, 5, (4,), generator=generator(r)), None), (rand(r, 5, d), 0)], local=False),
        Call(lambda i, w: F.embedding_bag(i, w, mode=mode), [(bags, 0), (w, None)]),
        Call(lambda i, w: F.embedding_bag(i, w, mode="mean", padding_idx=1), [(bags, 0), (w, None)]),
        Call(
            lambda i, w, p: F.embedding_bag(i, w, mode="sum", per_sample_weights=p),
            [(bags, 0), (w, None), (per_sample, r.choice([0, None]))],
        ),
        Call(lambda i, w: F.embedding_bag(i, w, offsets, mode=mode), [(flat, 0), (w, None)], local=False),
        Call(lambda i: F.one_hot(i, k) * 2.0, [(index, dim)]),
        Call(lambda i: F.one_hot(i, num_classes=k + 1), [(index, dim)]),
        Call(lambda i: F.one_hot(i), [(index, dim)], local=False),
    ]
    return r.choice(forms)


def images(r):
    c, h, w = 4 * r.randint(1, 2), 2 * r.randint(2, 3), 2 * r.randint(2, 3)
    x = rand(r, rows(r), c, h, w)
    mode = r.choice(["constant", "reflect", "replicate", "circular"])
    grid, theta = rand(r, len(x), 3, 2, 2), rand(r, len(x), 2, 3)
    at, on = r.choice([(0, 0), (0, None), (None, 0)])
    prelu = r.choice([rand(r, 1), rand(r, c)])
    forms = [
        Call(lambda x: F.pad(x, (1, 0, 1, 1), mode=mode), [(x, 0)]),
        Call(lambda x: F.pad(x, (1, 2), value=3.0), [(x, r.randrange(3))]),
        Call(lambda x: nn.ReflectionPad2d(1)(x), [(x, 0)]),
        Call(lambda x: F.pad(x, (0, 0, 1, 1)), [(x, 2)], local=False),
        Call(lambda x: F.pad(x, (0, 1, 0, 0, 2, 0, 0, 0)), [(x, r.randrange(3) // 2 * 2)]),
        Call(lambda x: F.interpolate(x, scale_factor=2), [(x, 0)]),
        Call(lambda x: F.interpolate(x, size=(3, 5), mode="bilinear", align_corners=False), [(x, 0)]),
        Call(lambda x: F.interpolate(x, scale_factor=0.5, mode="area"), [(x, 0)]),
        Call(lambda x: F.interpolate(x, size=(4, 4), mode="bicubic", antialias=True), [(x, 0)]),
        Call(lambda x: F.interpolate(x, scale_factor=2), [(x, 3)], local=False),
        Call(lambda x: nn.Upsample(scale_factor=2)(x.flatten(2)), [(x, 0)]),
        Call(lambda x: F.pixel_shuffle(x, 2), [(x, 0)]),
        Call(lambda x: F.pixel_unshuffle(x, 2), [(x, 0)]),
        Call(lambda x: F.pixel_unshuffle(x[:, None], 2), [(x, 0)]),
        Call(lambda x: F.channel_shuffle(x, 2), [(x, 0)]),
        Call(lambda x: F.unfold(x, 2, padding=1), [(x, 0)]),
        Call(lambda x: F.fold(x.flatten(2).flatten(1)[..., None], (2, 2), 2), [(x, 0)]),
        Call(lambda x: x.unfold(2, 2, 2).unfold(-2, 2, 2), [(x, 0)]),
        Call(lambda x: x.unfold(1, 2, 1), [(x, 0)]),
        Call(lambda x: x.unfold(0, 2, 1), [(x, 0)], local=False),
        Call(lambda x, g: F.grid_sample(x, g, align_corners=False), [(x, at), (grid, on)]),
        Call(lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=True), [(x, 0), (grid, 0)]),
        Call(lambda t: F.affine_grid(t, (len(t), c, h, w), align_corners=False), [(theta, 0)]),
        Call(
            lambda x, t: F.grid_sample(x, F.affine_grid(t, x.size(), align_corners=True), align_corners=True),
            [(x, 0), (theta, 0)],
        ),
        Call(F.prelu, [(x, 0), (prelu, None)]),
        Call(F.prelu, [(x, 2), (prelu, None)]),
        Call(F.prelu, [(x, 1), (rand(r, 1), None)]),
        Call(F.prelu, [(x, 1), (rand(r, c), None)], local=False),
    ]
    return r.choice(forms)


def distances(r):
    b, k, d = rows(r), r.randint(1, 4), r.randint(1, 4)
    x, y, centres = rand(r, b, d), rand(r, b, d), rand(r, k, d)
    forms = [
        Call(F.cosine_similarity, [(x, 0), (y, r.choice([0, None]))]),
        Call(lambda x, y: F.cosine_similarity(x, y, dim=-1), [(y, None), (x, 0)]),
        Call(lambda x, c: F.cosine_similarity(x[:, None], c[None], dim=-1), [(x, 0), (centres, None)]),
        Call(lambda x, c: F.cosine_similarity(c[:, None], x[None], dim=2), [(x, 0), (centres, None)]),
        Call(lambda x, c: F.cosine_similarity(x, c, dim=0), [(rand(r, d, b), 1), (rand(r, d, 1), None)]),
        Call(lambda x, y: F.cosine_similarity(x, y, dim=0), [(x, 0), (y, 0)], local=False),
        Call(lambda x: F.cosine_similarity(x[:, None], x[None], dim=-1), [(x, 0)], local=False),
        Call(F.pairwise_distance, [(x, 0), (y, r.choice([0, None]))]),
        Call(lambda x, y: nn.PairwiseDistance(p=1, keepdim=True)(x, y), [(x, 0), (y, 0)]),
        Call(F.pairwise_distance, [(x, 0), (rand(r, d), None)]),
        Call(lambda x, c: F.pairwise_distance(x[:, None], c), [(x, 0), (centres, None)]),
        Call(F.pairwise_distance, [(rand(r, 2, b), 1), (rand(r, 2, b), 1)], local=False),
    ]
    return r.choice(forms)


def attention(r):
    b, h, t, s, d = rows(r), *(r.randint(1, 4) for _ in range(4))
    heads = r.random() < 0.5
    shape = (b, h) if heads else (b,)
    q, k, v = rand(r, *shape, t, d), rand(r, *shape, s, d), rand(r, *shape, s, 2)
    masks = [rand(r, t, s), rand(r, b, *([1] if heads else []), t, s), rand(r, *[1] * len(shape), 1, s)]
    mask = r.choice(masks)
    on = 0 if mask is masks[1] and r.random() < 0.7 else None
    three = [(q, 0), (k, 0), (v, 0)]
    f = F.scaled_dot_product_attention
    forms = [
        Call(f, three),
        Call(f, [(q, 0), (k, 0), (v, None)]),
        Call(f, [(q, None), (k, 0), (v, 0)]),
        Call(lambda q, k, v: f(q, k, v, is_causal=True, scale=0.3), three),
        Call(f, [*three, (mask, on)]),
        Call(lambda q, k, v, m: f(q, k, v, attn_mask=m > -0.9), [*three, (mask, on)]),
        Call(lambda q, k, v: (q @ k.transpose(-2, -1)).softmax(-1) @ v, three),
        Call(lambda q, k, v: torch.bmm(torch.bmm(q.flatten(1, -2), k.flatten(1, -2).mT), v.flatten(1, -2)), three),
        Call(
            lambda q, k, v: f(q, k, v, enable_gqa=True),
            [(rand(r, b, 4, t, d), 0), (rand(r, b, 2, s, d), 0), (rand(r, b, 2, s, d), 0)],
        ),
        Call(lambda x: f(x, x, x), [(rand(r, 2, b, d), 1)], local=False),
        Call(lambda x: f(x, x, x, dropout_p=0.0) if x.dim() == 4 else x, [(rand(r, 2, b, t, d), 1)]),
    ]
    return r.choice(forms)


def multi_head(r):
    """``nn.MultiheadAttention``, its weights as inputs of the call."""
    b, t, s, h = rows(r), r.randint(1, 4), r.randint(2, 4), r.randint(1, 2)
    e = h * r.randint(1, 3)
    first, same, wide = r.random() < 0.5, r.random() < 0.4, r.random() < 0.3
    kwargs = {"bias": r.random() < 0.7, "add_bias_kv": r.random() < 0.3, "add_zero_attn": r.random() < 0.3}
    if wide and not same:
        kwargs.update(kdim=3, vdim=2)
    module = nn.MultiheadAttention(e, h, batch_first=first, dropout=r.choice([0.0, 0.5]), **kwargs)
    module.train(module.dropout == 0)
    q = rand(r, b, t, e)
    k, v = rand(r, b, s, 3 if "kdim" in kwargs else e), rand(r, b, s, 2 if "vdim" in kwargs else e)
    s = t if same else s
    padding = torch.zeros(b, s, dtype=torch.bool)
    padding[r.randrange(b), r.randrange(s)] = s > 1
    mask = r.choice([rand(r, t, s), rand(r, b, h, t, s)])
    use = r.choice(["nothing", "padding", "mask"])
    call = {"need_weights": r.random() < 0.6, "average_attn_weights": r.random() < 0.5}
    names = [name for name, _ in module.named_parameters()]
    weights = [(rand(r, *p.shape), None) for p in module.parameters()]
    dim = 0 if first else 1
    inputs = [(x if first else x.transpose(0, 1).contiguous(), dim) for x in ([q] if same else [q, k, v])]
    on = r.choice([0, None])
    if use == "padding":
        inputs.append((padding, on))
    if use == "mask":
        inputs.append((mask, on if mask.dim() == 4 else None))

    def function(*given):
        count = 1 if same else 3
        x = given[:1] * 3 if same else given[:3]
        if use == "padding":
            call["key_padding_mask"] = given[count]
        if use == "mask":
            call["attn_mask"] = given[count].flatten(0, -3) if given[count].dim() == 4 else given[count]
        output = torch.func.functional_call(module, dict(zip(names, given[-len(names) :], strict=True)), x, call)
        return [value for value in output if value is not None]

    return Call(function, [*inputs, *weights])


def recurrent(r):
    """``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``, as the modules call them."""
    b, t, d, h, layers = rows(r), r.randint(1, 3), r.randint(1, 3), r.randint(1, 3), r.randint(1, 2)
    first, both, biased = r.random() < 0.5, r.random() < 0.4, r.random() < 0.7
    kind = r.choice(["LSTM", "GRU", "RNN"])
    module = getattr(nn, kind)(d, h, layers, bias=biased, bidirectional=both)
    x = rand(r, b, t, d) if first else rand(r, t, b, d)
    function = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}[kind]
    states = [rand(r, layers * (1 + both), b, h) for _ in range(2 if kind == "LSTM" else 1)]
    drop = r.random() < 0.2  # at rest: in training each rank draws for its own rows

    def run(x, *rest):
        hx = rest[: len(states)] if kind == "LSTM" else rest[0]
        return function(x, hx, list(rest[len(states) :]), biased, layers, 0.5 * drop, not drop, both, first)

    weights = [(rand(r, *p.shape), None) for p in module.parameters()]
    held = [(state, r.choice([1, None])) for state in states]
    return Call(run, [(x, 0 if first else 1), *held, *weights])


def recurrent_modules(r):
    b, d, h = rows(r), r.randint(1, 3), r.randint(1, 3)
    form = r.randrange(6)
    module = [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell][form](d, h)
    shape = (b, d) if form > 2 else (2, b, d)
    weights = [rand(r, *p.shape) for p in module.parameters()]

    def function(x):
        for parameter, weight in zip(module.parameters(), weights, strict=True):
            parameter.data = weight
        if form > 2:
            state = module(x)
            return module(x, state)
        output, state = module(x)
        return module(x, state)[0] + output

    return Call(function, [(rand(r, *shape), 0 if form > 2 else 1)])


def cells(r):
    b, d, h = rows(r), r.randint(1, 3), r.randint(1, 3)
    kind, gates = r.choice([(torch.lstm_cell, 4), (torch.gru_cell, 3), (torch.rnn_tanh_cell, 1)])
    x, w, u = rand(r, b, d), rand(r, gates * h, d), rand(r, gates * h, h)
    states = [(rand(r, b, h), r.choice([0, None])) for _ in range(2 if gates == 4 else 1)]
    biases = [(rand(r, gates * h), None)] * 2 if r.random() < 0.7 else []

    def function(x, *rest):
        hx = rest[: len(states)] if gates == 4 else rest[0]
        return kind(x, hx, *rest[len(states) :])

    return Call(function, [(x, 0), *states, (w, None), (u, None), *biases])


def dropout(r):
    """The mask is that of one process."""
    x, dim = batch(r, dims=r.randint(3, 4), rows=rows(r))
    if r.random() < 0.3:
        x, dim = x.transpose(dim, (dim + 1) % x.dim()), (dim + 1) % x.dim()  # drawn in the order of memory
    elif r.random() < 0.3 and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    spaces = x.dim() - 2
    p, seed = r.choice([0.3, 0.5, 0.0, 1.0]), r.randrange(2**30)
    training = r.random() < 0.7
    form = r.randrange(8)
    forms = [
        lambda x: F.dropout(x, p, training),
        lambda x: F.dropout(x, p, training, True),
        lambda x: torch.dropout(x, p, training),
        lambda x: getattr(F, f"dropout{spaces}d")(x, p, training),
        lambda x: getattr(F, f"dropout{spaces}d")(x, p=p, training=training, inplace=True),
        lambda x: getattr(nn, f"Dropout{spaces}d")(p).train(training)(x),
        lambda x: F.alpha_dropout(x, p, training),
        lambda x: F.feature_alpha_dropout(x, p, training),
    ]

    def function(x):
        torch.manual_seed(seed)
        return forms[form](x * 1.0) + torch.rand(())

    return Call(function, [(x, dim)], local=form < 6 or not training)


def matrices(r):
    """Batches of matrices, of which each is computed by itself, beside those that every rank has."""
    b, n, leading = rows(r), r.choice([2, 3]), r.random() < 0.3
    shape, dim = ((2, b) if leading else (b,)), int(leading)
    a, other, x = rand(r, *shape, n, n), rand(r, *shape, n, n), rand(r, *shape, n, 2)
    one = torch.eye(n, dtype=a.dtype)
    shared = r.random() < 0.3
    linalg, form, seed = torch.linalg, r.randrange(32), r.randrange(2)

    def function(a, other, x):
        m, u = a + 3 * one, 2 * one if shared else other.tril() + 3 * one
        p = a @ a.mT + one
        forms = [
            lambda: linalg.cholesky(p),
            lambda: linalg.inv(m) + m.inverse(),
            lambda: linalg.det(a) * torch.slogdet(m)[1],
            lambda: linalg.slogdet(m),
            lambda: linalg.solve(m, x),
            lambda: linalg.solve(m, other),
            lambda: linalg.solve_triangular(u, x, upper=False),
            lambda: linalg.solve_triangular(u.mT, x, upper=True, unitriangular=bool(seed)),
            lambda: torch.cholesky_solve(x, linalg.cholesky(p)),
            lambda: linalg.qr(m),
            lambda: linalg.svdvals(m),
            lambda: torch.svd(m)[1] + linalg.svd(m)[1],
            lambda: linalg.eigvalsh(p) + linalg.eigh(p)[0],
            lambda: linalg.pinv(m) @ x,
            lambda: torch.matrix_exp(a / 4),
            lambda: linalg.matrix_power(a, 2),
            lambda: torch.logdet(p),
            lambda: linalg.matrix_norm(a) + linalg.matrix_norm(a, "nuc") if seed else linalg.matrix_norm(a, 1),
            lambda: linalg.norm(a, dim=(-2, -1)),
            lambda: torch.triangular_solve(x, u, upper=False)[0],
            lambda: linalg.cross(rand3(a), rand3(other), dim=-1),
            lambda: linalg.vecdot(a, other, dim=-1 - seed),
            lambda: torch.diag_embed(x.mT, seed) + torch.diag_embed(x.mT, offset=seed),
            lambda: a.diagonal(dim1=-2, dim2=-1) * torch.diagonal(other, 0, -1, -2),
            lambda: a.tril(-seed) + torch.triu(other, diagonal=seed),
            lambda: linalg.lu(m),
            lambda: linalg.lu_factor(m)[0],
            lambda: torch.cholesky_inverse(linalg.cholesky(p)),
            lambda: linalg.cholesky_ex(p)[0] + linalg.inv_ex(m)[0],
            lambda: torch.linalg.matrix_rank(a.detach()) + linalg.cond(m.detach()),
            lambda: torch.distributions.MultivariateNormal(x[..., 0], scale_tril=linalg.cholesky(p)).log_prob(
                x[..., 1]
            ),
            lambda: torch.cross(rand3(a), rand3(other)) if b % 3 else torch.cross(rand3(a), rand3(other), dim=-1),
        ]
        return forms[form]()

    def rand3(value):
        return torch.cat([value, value[..., :1] * 2], -1)[..., :3] if n == 2 else value

    return Call(function, [(a, dim), (other, dim), (x, dim)], local=True)


def matrices_beside_others(r):
    """What fewer dimensions mean is told by the whole: vectors, pivots."""
    n = r.choice([2, 3, 4])
    b = r.choice([max(n, 4), 2 * n, rows(r)])
    a, x = rand(r, b, n, n), rand(r, b, n, n)
    one, vectors = torch.eye(n, dtype=a.dtype), rand(r, b, n)
    form, linalg = r.randrange(11), torch.linalg

    def function(a, x):
        m = a + 3 * one
        forms = [
            lambda: linalg.solve(m, one),
            lambda: linalg.solve(m, vectors),
            lambda: linalg.solve(A=m, B=x[..., 0]),
            lambda: linalg.solve(one * 2, x, left=False),
            lambda: linalg.lu_solve(*linalg.lu_factor(one.expand(b, n, n) * 2), x),
            lambda: linalg.lu_solve(*linalg.lu_factor(m.detach()), x),
            lambda: linalg.diagonal(a, dim1=-1, dim2=-2) + linalg.diagonal(a, offset=0),
            lambda: linalg.diagonal(A=a),
            lambda: a.permute(1, 2, 0).diagonal() * 2,
            lambda: linalg.lstsq(m.detach(), x.detach())[0],
            lambda: torch.diagonal(input=a, dim1=1, dim2=2),
        ]
        return forms[form]()

    return Call(function, [(a, 0), (x, 0)], local=False)


def encoder(r):
    """A transformer's layer, a convolutional block: whole modules stay on rows."""
    b, t, e = rows(r), r.randint(1, 4), 4
    first = r.random() < 0.5
    modules = [
        (
            nn.TransformerEncoderLayer(e, 2, 8, 0.0, batch_first=first),
            rand(r, *((b, t) if first else (t, b)), e),
            first,
        ),
        (nn.TransformerEncoderLayer(e, 2, 8, 0.5, batch_first=first).eval(), rand(r, b, t, e), first),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)), rand(r, b, 2, 6, 6), True),
        (nn.Sequential(nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular"), nn.GELU()), rand(r, b, 2, 6), True),
        (nn.Sequential(nn.Linear(e, 3), nn.LayerNorm(3), nn.PReLU(), nn.Linear(3, 2)), rand(r, t, b, e), False),
        (nn.Sequential(nn.Linear(e, 6), nn.Dropout(0.5), nn.Linear(6, 2)).eval(), rand(r, b, e), True),
        (nn.Sequential(nn.ConvTranspose2d(2, 1, 2, 2), nn.BatchNorm2d(1)).eval(), rand(r, b, 2, 3, 3), True),
    ]
    module, x, first = r.choice(modules)
    names = [name for name, _ in module.named_parameters()]
    weights = [(rand(r, *p.shape), None) for p in module.parameters()]
    if isinstance(module, nn.TransformerEncoderLayer) and not module.training and not first:
        x = x.transpose(0, 1).contiguous()

    def function(x, *weights):
        return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,))

    return Call(function, [(x, 0 if first else 1), *weights])


def by_name(r):
    """``torch.einsum``: rows that stay apart, and rows that are summed over."""
    b, t, d, h = rows(r), *(r.randint(2, 4) for _ in range(3))
    x, y, z = rand(r, b, t, d), rand(r, b, t, d), rand(r, t, b, d)
    forms = [
        ("bid,bjd->bij", [(x, 0), (y, 0)]),
        ("bid,bjd", [(x, 0), (y, 0)]),
        ("bid, de -> bie", [(x, 0), (rand(r, d, h), None)]),
        ("...id,...jd->...ij", [(x, 0), (y, 0)]),
        ("...d,de->...e", [(x, 0), (rand(r, d, h), None)]),
        ("i...d,jd->...ij", [(z, 1), (rand(r, h, d), None)]),
        ("tbd,btd->tb", [(z, 1), (y, 0)]),
        ("bij,bj,k->kbi", [(x, 0), (rand(r, b, d), None), (rand(r, h), None)]),
        ("bij,aj->abi", [(x, 0), (rand(r, 1, d), None)]),
        ("...ij,...ij->...i", [(x, 0), (rand(r, 1, t, d), None)]),
        ("bii->b", [(rand(r, b, d, d), 0)]),
        ("bij->jib", [(x, 0)]),
        ("bij->ij", [(x, 0)]),
        ("bij->", [(x, 0)]),
        ("bij,bkj->ik", [(x, 0), (y, 0)]),
        ("bij,b->ij", [(x, 0), (rand(r, b), None)]),
        ("...i,...i", [(x[:, 0], 0), (y[:, 0], 0)]),
        ("bi,bi->", [(x[:, 0], 0), (y[:, 0], None)]),
        ("nd,nc->dc", [(x[:, 0], 0), (F.one_hot(torch.arange(b) % 3, 3).double(), 0)]),
    ]
    equation, given = r.choice(forms)
    if r.random() < 0.2:
        return Call(lambda *operands: torch.einsum(equation, [*operands]), given)
    return Call(lambda *operands: torch.einsum(equation, *operands), given)


def in_autocast(x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x, y = x.detach(), y.detach()
        return (x.float().T @ y.float()).double() + torch.einsum("bi,bj->ij", x.float(), y.float()).double()


def crossed_by_name(r):
    b, d = rows(r), r.randint(2, 4)
    x, y = rand(r, b, d), rand(r, b, d)
    forms = [
        Call(lambda x, y: torch.einsum("id,jd->ij", x, y), [(x, 0), (y, 0)], local=False),
        Call(lambda x: torch.einsum("id,jd->ij", x, x), [(x, 0)], local=False),
        Call(lambda x, y: torch.einsum("ij,jk->ik", x, y), [(rand(r, b, b), 0), (y, 0)], local=False),
        Call(lambda x, y: torch.einsum(x, [0, 1], y, [0, 2], [1, 2]), [(x, 0), (y, 0)], local=False),
        Call(lambda x: torch.einsum("ii->i", x), [(rand(r, b, b), 0)], local=False),
        Call(
            lambda x, y: torch.einsum("bi,bj->ij", x.detach().bfloat16(), y.detach().bfloat16()).double(),
            [(x, 0), (y, 0)],
            local=False,
        ),
        Call(lambda x, y: (x.detach().half().T @ y.detach().half()).double(), [(x, 0), (y, 0)], local=False),
        Call(lambda x, y: torch.eye(5, b).double().to_sparse() @ x + y.sum(), [(x, 0), (y, 0)], local=False),
        Call(in_autocast, [(x, 0), (y, 0)], local=False),
    ]
    return r.choice(forms)


CASES = {
    "by name": by_name,
    "crossed by name": crossed_by_name,
    "linear": linear,
    "matmul": matmul,
    "crossed matmul": crossed_matmul,
    "other products": other_products,
    **{f"conv{n}d": convolution(n, False) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": convolution(n, True) for n in (1, 2, 3)},
    **{f"pools {n}d": pools(n) for n in (1, 2, 3)},
    "layer norms": norms,
    "sample norms": sample_norms,
    "embeddings": embeddings,
    "images": images,
    "distances": distances,
    "attention": attention,
    "multi head attention": multi_head,
    "recurrent": recurrent,
    "recurrent modules": recurrent_modules,
    "recurrent cells": cells,
    "dropout": dropout,
    "matrices": matrices,
    "matrices_beside_others": matrices_beside_others,
    "encoder": encoder,
}
REPEATS = {
    "by name": 60,
    "crossed by name": 15,
    "linear": 20,
    "matmul": 60,
    "crossed matmul": 15,
    "other products": 50,
    **{f"pools {n}d": 30 for n in (1, 2, 3)},
    "layer norms": 25,
    "sample norms": 40,
    "embeddings": 40,
    "images": 80,
    "distances": 40,
    "attention": 40,
    "multi head attention": 30,
    "recurrent": 15,
    "recurrent modules": 12,
    "recurrent cells": 10,
    "dropout": 30,
    "matrices": 100,
    "matrices_beside_others": 30,
    "encoder": 20,
}
