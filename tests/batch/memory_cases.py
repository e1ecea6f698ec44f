"""Random calls whose results look into a batch's memory, or hold a copy, as those of one process do."""

import torch
import torch.nn.functional as F
from cases import Call, batch


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
    b, form, looks, late = x.shape[dim], r.randrange(10), r.randrange(4), r.random() < 0.5

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
            else:
                column[0] = 7.0
            if late:
                seen += [view.argmax(), z.argmax()]
                column += 1
                view *= 2
            return z, view, column, z.argmin(), view.sum(), *seen

    return Call(function, [(x, dim)], local=False, grads=False)


CASES = {
    "copies_or_views": copies_or_views,
    "writes_in_inference": writes_in_inference,
}
REPEATS = {
    "copies_or_views": 80,
    "writes_in_inference": 120,
}
