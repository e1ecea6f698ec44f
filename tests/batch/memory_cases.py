"""Random calls whose results look into a batch's memory, or hold a copy, as those of one process do."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from cases import Call, batch

from ddp_patch.batch.world import World


def copies_or_views(r):
    """Whether ``contiguous`` and ``reshape`` copy is told by the whole's strides, not by those of a rank's only row."""
    x, dim = batch(r, dims=3, dim=0, rows=r.randint(3, 7))
    b, t, c = x.shape[0], r.randint(2, 4), r.randint(2, 4)
    x = torch.rand(b, t + 1, c, generator=torch.Generator().manual_seed(r.randrange(2**30)))
    cut, form, looks = r.randrange(7), r.randrange(9), r.random() < 0.5

    def function(x):
        z = x * 1
        part = z if cut == 0 else z[:, 1:] if cut == 1 else z[::2] if cut == 2 else z[:, :, 1:] if cut == 3 else None
        if part is None:
            part = z.transpose(1, 2) if cut == 4 else z.expand(b, t + 1, c) if cut == 5 else z[1:, :, ::2]
        before = z.argmax() + part.argmax() if looks else 0
        rows, steps, width = part.shape
        if form == 0:
            found = part.contiguous()
        elif form == 1:
            found = part.reshape(-1)
        elif form == 2:
            found = part.flatten(1)
        elif form == 3:
            found = part.reshape(rows, width, steps)
        elif form == 4:
            found = part.to(memory_format=torch.contiguous_format)
        elif form == 5:
            found = torch.ravel(part)
        elif form == 6:
            found = part.reshape(steps, -1)
        elif form == 7:
            found = part.reshape_as(torch.empty(rows, steps * width))
        else:
            found = torch.flatten(part, 0, 1)
        found.mul_(2)
        found[..., 0].add_(3)
        return z, part, found, z.argmax() + before

    return Call(function, [(x, dim)], local=False)


def writes_in_inference(r):
    """Inference tensors count no writes, yet views of one and the tensor itself show each other's."""
    x, dim = batch(r, dims=2, dim=r.randrange(2))
    b, form, looks, late = x.shape[dim], r.randrange(11), r.randrange(4), r.random() < 0.5

    def function(x):
        with torch.inference_mode():
            z = x.detach() * 1
            view, column = z.view(*z.shape), z[:, 0] if dim == 0 else z[0]
            seen = [part.argmax() for part in ([], [z], [z, view], [view, column])[looks]]
            if form == 0:
                column.clamp_(0, 1)
            elif form == 1:
                z.mul_(2)
            elif form == 2:
                view.t().add_(1)
            elif form == 3:
                view[view > 0] = 5.0
            elif form == 4:
                z.masked_fill_(z < 0, 0.5)
            elif form == 5:
                torch.add(view, 1, out=z)
            elif form == 6:
                z.data.mul_(3)
            elif form == 9:
                F.relu(view, inplace=True)
            elif form == 7:
                (z[: b - 1] if dim == 0 else z[:, : b - 1]).zero_()
            elif form == 10:
                cut = z[1:]
                seen.append(cut.unsqueeze(0) * 1)
                cut[:1] = 7.0
            else:
                column[0] = 7.0
            if late:
                seen += [view.argmax(), z.argmax()]
                column += 1
                view *= 2
            return z, view, column, z.argmin(), view.sum(), *seen

    return Call(function, [(x, dim)], local=False, grads=False)


def gradients_on_the_way(r):
    """``retain_grad``, hooks and ``autograd.grad`` see all of the gradient, however a batch was made and is used."""
    x, _ = batch(r, dims=2, dim=0)
    b, made, used, asked, late = x.shape[0], r.randrange(9), r.randrange(5), r.randrange(4), r.random() < 0.3
    used = 0 if asked == 3 and used > 1 else used  # cdist has no second derivative
    made, late = made if asked < 2 else made % 8, late and made < 8
    order = torch.randperm(b, generator=torch.Generator().manual_seed(r.randrange(2**30)))

    def function(x):
        z = x * 1 if made > 3 else (torch.cat([x, x * 2]), x[order], x.chunk(2)[0], x[: b - 1])[made]
        seen, kept = [], []
        if made == 4:
            z[z > 0] = 0.5
        elif made == 8:
            kept.append(z[0])
            z = z.view(*z.shape)
        elif made == 5:
            z[0] = x[1] * 3
        if asked == 0 and not late:
            z.retain_grad()
        elif asked == 1:
            z.register_hook(lambda grad: seen.append(grad.sum()))
            z.register_hook(lambda grad: -grad * 2)
        if made == 6:
            z[1] = x[0] * 2
        elif made == 7:
            z.mul_(x.detach() + 3)
        first = z.exp().sum() * 0.1
        if asked == 0 and late:
            z.retain_grad()
        loss = (z @ z.T).sum() if used == 0 else z.pow(2).sum() if used == 1 else torch.cdist(z, z + 1).sum()
        if used > 2:
            loss = loss + (z.sin().sum() if used == 3 else (z.T @ z).sum() + z.cos()[0].sum())
        if asked == 2:
            (seen,) = torch.autograd.grad(loss + first, z, retain_graph=True)
            seen = [seen]
        elif asked == 3:
            (found,) = torch.autograd.grad(loss + first, [z], create_graph=True)
            seen, loss = [found], loss + found.pow(2).sum()
        (loss + first).backward()
        return [*seen, x.grad, *([z.grad] if asked == 0 else [])]

    return Call(function, [(x, 0)], local=False, grads=False)


def arrays_of_gaps(r):
    """An array that nobody writes to changes nothing, also where the batch has no numbers."""
    x, dim = batch(r, dims=2, dim=0)
    w = torch.rand(x.shape[1], 3, generator=torch.Generator().manual_seed(r.randrange(2**30)))
    x[r.randrange(len(x)), 0] = torch.nan

    def function(x):
        seen = [x.detach().numpy()]
        z = x.detach() * 1
        seen.append(z.numpy())
        v = w.clone().requires_grad_()
        out = z @ v
        missing = torch.isnan(z)
        out.sum().backward()
        return missing, v.grad, torch.from_numpy(seen[1] * 1)

    return Call(function, [(x, dim)], local=False, grads=False)


def writes_that_are_met_later(r):
    """A write through a view has a part in the graph or none, whoever looks at the batch first, and in which mode."""
    x, _ = batch(r, dims=2, dim=0, rows=r.randint(3, 7))
    form, unrecorded, reader, is_leaf = r.randrange(4), r.random() < 0.5, r.randrange(4), r.random() < 0.4
    unrecorded = unrecorded or is_leaf

    def function(x):
        w = torch.full((x.shape[1],), 0.5).requires_grad_()
        z = (x * 1).detach().requires_grad_() if is_leaf else x * w
        with torch.set_grad_enabled(not unrecorded):
            if form == 0:
                z[0].mul_(10)
            elif form == 1:
                half = z[:2]
                half *= w.detach() + 3
            elif form == 2:
                z[1][0] = w.sum() * 2
            else:
                z[0].zero_()
        seen = []
        with torch.set_grad_enabled(reader % 2 == 0):
            if reader < 2:
                seen += [z.max().detach(), z.detach().argmax()]
        loss = ((z * 2).sum() + z[0].pow(2).sum()) if reader == 3 else (z * 2).sum()
        loss.backward()
        return loss.detach(), z.detach() * 1, z.grad if is_leaf else w.grad, *seen

    return Call(function, [(x, 0)], local=False, grads=False)


def writes_through_views_that_nobody_keeps(r):
    """``x.t()[0, 0].add_(1)``: the view is gone when the batch is looked at again."""
    x, _ = batch(r, dims=2, dim=0, rows=r.randint(4, 7))
    form, way, is_seen, recorded = r.randrange(11), r.randrange(3), r.random() < 0.5, r.random() < 0.5

    def write(plain):
        if way == 0:
            plain.add_(3)
        elif way == 1:
            plain[...] = 5.0
        else:
            plain.view(-1).detach()[:1].mul_(-2)

    def function(x):
        z = x * 1 if recorded else x.detach() * 1
        other = z.view(*z.shape)
        seen = [z.sum().detach(), z.argmax()] if is_seen else []
        with torch.no_grad():
            if form == 0:
                write(z.t()[0, 1])
            elif form == 1:
                write(z.unsqueeze(1)[2])
            elif form == 2:
                write(z.view(-1)[3])
            elif form == 3:
                write(z[:, :1][1])
                seen.append(other[0].sum().detach())
                write(z.view(1, *z.shape)[0, 3])
            elif form == 4:
                kept = z.view(-1, 1, x.shape[1])[1]
                seen.append(other.sum().detach())
                write(kept)
                write(other[0])
            elif form == 5:
                write(z.t().t()[-1])
                z.mul_(2)
            elif form == 6:  # the whole of a view of a view is a view: what was written to one is not written again
                kept = z[:, None]
                write(kept[2])
                under = kept[:, 0]
                write(under[2])
                write(under[2])
                z.mul_(40)
            elif form == 7:
                kept = z.view(-1, 1, x.shape[1])[..., :1]
                write(z[1])
                z[:, 0].add_(1)
                write(z.squeeze(-1)[1])
                kept[:, 0].mul_(2)
            elif form == 8:  # two parts of a view, of which neither has all
                kept = z[:, None]
                left, right = kept[..., :1], kept[..., 1:]
                write(kept[0])
                write(left[1])
                write(right[2])
                seen.append(z.sum().detach())
            elif form == 9:  # a slice of a view, whose rows were asked for as well
                kept = z[:, None][: max(4, x.shape[0] - 1)]  # a batch on four ranks as well
                seen.append(kept.detach() * 1)
                write(z[1])
                seen.append(kept.detach() * 1)
            else:
                array = z.view(*z.shape).detach().numpy()
                array[1, 0] = 9.0
                seen.append(other[1].sum().detach())
                array[2, 0] = 7.0
        return other.detach() * 1, z.detach() + 0, *seen

    return Call(function, [(x, 0)], local=False, grads=False)


def other_memory(r):
    """``x.data = value`` has a batch look elsewhere; ``copy.copy`` shares memory; what was given stays."""
    x, dim = batch(r, dims=2, dim=r.randrange(2))
    form, is_leaf, looks, times = r.randrange(5), r.random() < 0.5, r.random() < 0.5, r.randint(1, 3)

    def function(x):
        z = (x * 1).detach().requires_grad_() if is_leaf else x * 1
        old = z.detach()
        seen = [z.argmax(), old.argmax()] if looks else []
        if form == 0:
            z.data = z.detach() + 1
        elif form == 1:
            for _ in range(times):
                z.data = z.data * 2
        elif form == 2:
            z.data = torch.ones(z.shape) * 3
        elif form == 3:
            other = copy.copy(z)
            with torch.no_grad():
                other.add_(2)
            seen += [other.argmax(), other.detach() * 1, torch.tensor(other.requires_grad)]
        else:
            (z * z).sum().backward() if is_leaf else None
            z.data = z.data - 0.1 * (z.grad if is_leaf else 1)
        with torch.no_grad():
            z.mul_(1.5)
        return z.detach() * 1, old * 1, z.argmin(), old.argmin(), *seen

    return Call(function, [(x, dim)], local=False, grads=False)


def gradients_that_are_set(r):
    """``h.grad`` of what is no leaf can be read, set and read again."""
    x, dim = batch(r, dims=2, dim=r.randrange(2))
    form = r.randrange(3)

    def function(x):
        w = torch.full((x.shape[1],), 0.5).requires_grad_()
        h = x * w
        h.retain_grad()
        (h * h).sum().backward(retain_graph=True)
        if form == 0:
            h.grad = h.grad * 2
        elif form == 1:
            h.grad = None
        (h * 3).sum().backward()
        return h.grad * 1, w.grad

    return Call(function, [(x, dim)], local=False, grads=False)


def gradients_that_are_written(r):
    """A write to ``x.grad`` stays, is added to by the next backward, and ``del x.grad`` is ``x.grad = None``."""
    x, dim = batch(r, dims=2, dim=r.randrange(2))
    form, is_leaf, looks, again = r.randrange(9), r.random() < 0.5, r.random() < 0.5, r.random() < 0.3

    def function(x):
        w = torch.full((x.shape[1],), 0.5).requires_grad_()
        h = (x * 1).detach().requires_grad_() if is_leaf else x * w
        h.retain_grad()
        (h * h).sum().backward(retain_graph=True)
        if again:
            (h * 2).sum().backward(retain_graph=True)
        seen = [h.grad.argmax()] if looks else []
        kept = h.grad
        if form == 0:
            h.grad.zero_()
        elif form == 1:
            h.grad.copy_(h.grad * 2)
        elif form == 2:
            h.grad.data.zero_()
        elif form == 3:
            h.grad.mul_(3)
        elif form == 4:
            h.grad[0].zero_()
        elif form == 5:
            del h.grad
            seen.append(torch.tensor(h.grad is None))
        elif form == 6:
            h.grad[:2] = 5.0
        elif form == 7:
            h.grad = h.grad * 2
        else:
            part = h.grad[0]
            part.numpy()[:] = 7.0
        seen += [torch.tensor(h.grad is kept), *([] if form == 5 else [h.grad * 1])]
        (h * 3).sum().backward(retain_graph=True)
        (h * h * h).sum().backward()
        return h.grad * 1, kept * 1, torch.tensor(h.grad is h.grad), w.grad if w.grad is not None else w, *seen

    return Call(function, [(x, dim)], local=False, grads=False)


def arrays_of_parts(r):
    """Arrays of rows and of slices, and their ``.data``, are the memory of the batch that they were taken of."""
    x, _ = batch(r, dims=2, dim=0, rows=r.randint(4, 9))
    form, inference, looks, late = r.randrange(15), r.random() < 0.3, r.random() < 0.5, r.random() < 0.5

    def function(x):
        with torch.inference_mode(inference):
            z = x.detach() * 1
            view = z.view(*z.shape)
            row, half, column = z[2], z[:4], view[:, 0]
            seen = [z.argmax(), half.argmax()] if looks else []
            if form == 0:
                row.numpy()[:] = 7.0
            elif form == 1:
                half.numpy()[1] = 8.0
            elif form == 2:
                np.asarray(row)[0] = 9.0
            elif form == 3:
                half.data.zero_()
            elif form == 4:
                half[1].numpy()[:] = -4.0
            elif form == 5:
                view[1].numpy()[0] = 6.0
            elif form == 6:
                row.detach().view(-1).numpy()[:] = 3.0
            elif form == 7:
                data = half.data
                data[1] = 5.0
                data.mul_(2)
            elif form == 8:
                row.data.fill_(7.0)
            elif form == 9:
                half[1].data[0] = 6.0
            elif form == 10:
                view[1].view(-1).data.mul_(3)
            elif form == 11:
                data = row.data
                data[:] = 2.0
                seen.append(z.sum())
                data[0] = 1.0
            elif form == 12:
                z.view(-1)[1:3].data.fill_(4.0)
            elif form == 13:
                seen.append(torch.func.grad(lambda value: (value * value.data).sum())(row * 1))
            else:
                array = row.numpy()
                array[:] = 2.0
                seen.append(z.sum())
                array[0] = 1.0
            if late:
                z.mul_(2)
            return z.sum(), torch.tensor(z.tolist()), view.argmax(), column.sum(), half.sum(), half * 1, z * 1, *seen

    return Call(function, [(x, 0)], local=False, grads=False)


def data_of_what_has_a_graph(r):
    """What is written through ``.data`` is in the parts that were taken before, and what is written to these in it."""
    x, _ = batch(r, dims=2, dim=0, rows=r.randint(4, 9))
    form, reader, early, late = r.randrange(7), r.randrange(6), r.random() < 0.5, r.random() < 0.4

    def function(x):
        h = x * torch.full((x.shape[-1],), 1.5).requires_grad_()
        data = h.data if early else None
        row, half = h[0], h[1:]
        view, left, right = h.view(*h.shape), h[:, :1], h[:, 1:]
        data = h.data if data is None else data
        if form == 0:
            data.mul_(2)
        elif form == 1:
            h.data[0] = 5.0
        elif form == 2:
            half.data.add_(1)
        elif form == 3:
            row.detach().mul_(3)
        elif form == 4:
            data.copy_(data * 2 + 1)
        elif form == 5:
            h.data.clamp_(min=0)
        else:
            h.data = h.data * 2
        if late:
            data.add_(1)
            view.data.mul_(0.5)
        each = [row, half, h, data, view, left, right]
        seen = [(part * 1).detach() for part in each[reader:] + each[:reader]]
        (h * 0.5 + view).sum().backward()
        return (*seen, row.sum().detach(), h.detach().argmax())

    return Call(function, [(x, 0)], local=False)


def writes_through_two_views(r):
    """What is written through views of several batches that share rows, one after the other, is seen in all of them."""
    x, _ = batch(r, dims=3, dim=0, rows=r.randint(4, 9))
    form, reader, times, recorded = r.randrange(4), r.randrange(4), r.randint(1, 3), r.random() < 0.3

    def function(x):
        w = torch.full((x.shape[-1],), 0.5).requires_grad_(recorded)
        z = x.detach() * w
        y = z.view(len(z), -1)
        a, b = z[0], y[1]
        seen = []
        for time in range(times):
            if form == 0:
                a.mul_(0)
            elif form == 1:
                a.mul_(torch.nan if time == 2 else time)
            elif form == 2:
                a.detach().numpy()[:] = time
            else:
                a.mul_(2 * w)
            seen += [z.sum()]
            if form == 1:
                b.mul_(time + 1)
            elif form == 2:
                b.detach().numpy()[:] += 1
            else:
                b.mul_(w[0] * 3)
            seen += [(z.sum(), y.sum(), z.argmax(), y.argmin())[reader]]
        loss = (z * z).sum() + y.sin().sum()
        if loss.requires_grad:
            loss.backward()
        parts = [z * 1, y * 1, torch.tensor(z.tolist()), a * 1, b * 1, *seen]
        return [w.grad if recorded else w, *(part.detach() for part in parts)]

    return Call(function, [(x, 0)], local=False, grads=False)


def writes_to_rows(r):
    """Numbers are written to rows by the ranks that have them, and all ranks know of it."""
    x, dim = batch(r, dims=3, dim=r.randrange(3))
    form, rows, inference, looks = r.randrange(5), x.shape[dim], r.random() < 0.3, r.random() < 0.5
    first, last, one = r.randrange(-rows, rows), r.randrange(-rows, rows + 2), r.randrange(-rows, rows)

    def function(x):
        with torch.inference_mode(inference):
            w = torch.full((x.shape[-1],), 0.5).requires_grad_(not inference)
            z = x * w
            view, front = z.view(x.shape), (slice(None),) * dim
            seen = [view.sum()] if looks else []
            if form == 0:
                for row in range(rows):
                    z[(*front, row)] = row
            elif form == 1:
                z[(*front, slice(first, last))] = 3.0
            elif form == 2:
                z[(*front, slice(None, last), ..., None)] = -2
            elif form == 3:
                z[(*front, one, ..., slice(0, 1))[: 5 if dim < 2 else 3]] = True
            else:
                view[(*front, one)] = 1.5
                z[(None, *front, slice(first, None))] = 2.5
            return z, view * 1, view.sum(), *seen

    return Call(function, [(x, dim)], grads=not inference)


def memory_that_was_left(r):
    """Memory that a batch no longer looks at is not looked after for it."""
    x, dim = batch(r, dims=2, dim=0)
    is_leaf = r.random() < 0.5

    def function(x):
        z = (x * 1).detach().requires_grad_() if is_leaf else x.detach() * 1
        kept = z[0]
        old = z.detach()
        old[1].zero_()
        z.data = z.detach() * 2
        seen = [z.argmax(), z.detach().sum()]
        z.data.mul_(2)
        before = gathers()
        with torch.no_grad():
            old.add_(1)
        total = old.sum()
        return torch.tensor(gathers() - before), total, z.detach() * 1, old * 1, kept.detach() * 1, *seen

    return Call(function, [(x, dim)], local=False, grads=False)


def gathers():
    return World.get().ledger.collectives["all_gather"]


CASES = {
    "gradients_that_are_written": gradients_that_are_written,
    "arrays_of_parts": arrays_of_parts,
    "data_of_what_has_a_graph": data_of_what_has_a_graph,
    "writes_through_two_views": writes_through_two_views,
    "writes_to_rows": writes_to_rows,
    "memory_that_was_left": memory_that_was_left,
    "writes_that_are_met_later": writes_that_are_met_later,
    "other_memory": other_memory,
    "writes_through_views_that_nobody_keeps": writes_through_views_that_nobody_keeps,
    "gradients_that_are_set": gradients_that_are_set,
    "copies_or_views": copies_or_views,
    "writes_in_inference": writes_in_inference,
    "gradients_on_the_way": gradients_on_the_way,
    "arrays_of_gaps": arrays_of_gaps,
}
REPEATS = {
    "gradients_that_are_written": 90,
    "arrays_of_parts": 90,
    "data_of_what_has_a_graph": 90,
    "writes_through_two_views": 60,
    "writes_to_rows": 80,
    "memory_that_was_left": 4,
    "writes_that_are_met_later": 80,
    "other_memory": 60,
    "writes_through_views_that_nobody_keeps": 120,
    "copies_or_views": 80,
    "writes_in_inference": 120,
    "gradients_on_the_way": 160,
}
