"""Random calls that scripts write less often: other dtypes, lazy conjugates, arguments by name."""

import numpy as np
import torch
from cases import Call, batch, generator


def half_sums(r):
    """Half precision adds up in float, beyond what a half holds, before it is narrowed."""
    dtype, form, dim = r.choice([torch.float16, torch.bfloat16]), r.randrange(7), r.randrange(2)
    shape = [r.randint(4, 9), r.randint(4, 9)]
    x = torch.randint(-30, 30, shape, generator=generator(r)) * 1024.0

    def function(x):
        z = x.to(dtype)
        if form == 0:
            return z.sum()
        if form == 1:
            return z.sum(dim)
        if form == 2:
            return torch.sum(z, (0, 1), keepdim=True), z.sum(dtype=torch.float64)
        if form == 3:
            return x.sum(dtype=dtype), x.mean(dtype=dtype)
        if form == 4:
            return z.mean(dim), (z > 0).sum(dtype=dtype)
        if form == 5:
            large = (x > 0) * 70000.0  # more than a half holds; their mean is less
            return large.mean(dtype=dtype), large.mean(dim, dtype=dtype)
        return z.sum() / 2 + z.mean()

    return Call(function, [(x, dim)], local=False, grads=False)


def conjugates(r):
    """A lazily conjugated batch is gathered as what it stands for."""
    x, dim = batch(r, dims=2, dim=r.randrange(2))
    form = r.randrange(6)

    def function(x):
        z = x + 1j * x.flip(1 - dim)
        if form == 0:
            found = [z @ z.conj().T]
        elif form == 1:
            found = [z @ z.mH, z.mH @ z]
        elif form == 2:
            found = [z.conj().cumsum(dim), z.conj()]
        elif form == 3:
            found = [z.conj().imag.cumsum(dim) * 1j, z.H]
        elif form == 4:
            found = [torch.tensor(z.conj().tolist()), z.conj().sum(), z.conj().mean(dim)]
        else:
            found = [z.conj()[: x.shape[0] - 1].imag * 2j, z.conj() @ z.T]
        return [torch.view_as_real(part.resolve_conj()) for part in found]

    return Call(function, [(x, dim)], local=False, grads=False)


def by_name(r):
    """Functions whose arguments are all named."""
    x, dim = batch(r, dims=2)
    y = torch.rand(x.shape, generator=generator(r))
    form = r.randrange(7)

    def function(x, y):
        if form == 0:
            return torch.where(condition=x > 0, input=x, other=y)
        if form == 1:
            return torch.where(x > y, input=x, other=0.5)
        if form == 2:
            return torch.where(condition=x > 0, input=y, other=x)
        if form == 3:
            return x.view_as(other=y), torch.relu(input=x)
        if form == 4:
            return x.reshape_as(other=y), torch.add(input=x, other=y)
        if form == 5:
            return x[:1].expand_as(other=y) if dim else x[:, :1].expand_as(other=y)
        return torch.reshape(input=x, shape=(-1,)), x.reshape(shape=(*x.shape, 1))

    return Call(function, [(x, dim), (y, dim)], local=False)


def sizes_and_arrays(r):
    """What is compared by size alone, and tensors that are taken as arrays."""
    x, dim = batch(r, dims=2)
    form = r.randrange(5)

    def function(x):
        y = x * 2
        if form == 0:
            return torch.tensor([x.is_same_size(y), x.is_same_size(y.t()), torch.is_same_size(x, y[:1])])
        if form == 1:
            return torch.asarray(y, dtype=torch.float64), torch.asarray(y.detach(), copy=True) + 1
        if form == 2:
            made = torch.asarray(y.detach(), requires_grad=True)
            (made * x.detach()).sum().backward()
            return made.grad, torch.tensor([made.requires_grad, torch.asarray(y).requires_grad])
        if form == 3:
            try:
                return torch.asarray(y, dtype=torch.float64, copy=False)
            except ValueError:
                return torch.ones(1)
        return torch.asarray(obj=y) * 3, torch.asarray(y.tolist())

    return Call(function, [(x, dim)], local=False, grads=False)


def hooks_of_leaves(r):
    """A hook after accumulation is given the leaf, with its gradient."""
    x, dim = batch(r, dims=2)

    def function(x):
        z, seen = x.detach().clone().requires_grad_(), []
        handle = z.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad * 2 + (1 if leaf is z else 0)))
        z.exp().sum().backward()
        handle.remove()
        (z * z).sum().backward()
        return *seen, z.grad

    return Call(function, [(x, dim)], grads=False)


def operands_of_numpy(r):
    """What an operator of torch's makes of an array, or refuses, and dimensions that are NumPy's numbers."""
    x, dim = batch(r, dims=2, dim=0)
    form = r.randrange(6)

    def function(x):
        y, array = x.detach() * 1, np.full(x.shape[1], 2.0)
        try:
            if form == 0:
                y **= array
            elif form == 1:
                y += array
            elif form == 2:
                y *= array[0]
            elif form == 3:
                y //= array
        except TypeError as error:
            return y, torch.tensor(len(str(error)))
        if form == 4:
            return y[:, :1].squeeze(np.int64(1)), torch.squeeze(y[:, None], np.int64(1))
        return torch.as_tensor(y), torch.tensor(isinstance(y, torch.Tensor))

    return Call(function, [(x, dim)], local=False, grads=False)


CASES = {
    "half_sums": half_sums,
    "conjugates": conjugates,
    "by_name": by_name,
    "sizes_and_arrays": sizes_and_arrays,
    "hooks_of_leaves": hooks_of_leaves,
    "operands_of_numpy": operands_of_numpy,
}
REPEATS = {
    "operands_of_numpy": 18,
    "half_sums": 40,
    "conjugates": 24,
    "by_name": 28,
    "sizes_and_arrays": 20,
}
