"""Printed tensors say what one process says, down to the node that they were computed by."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch

pytestmark = pytest.mark.slow


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        return hidden, self.head(hidden), hidden.mean(1)


SHOWN = {  # of outputs z (12, 3), classes y (12,), the model's other outputs h (12, 6) and m (12,)
    "outputs": lambda z, y, h, m: (z, h, m),
    "what became of them": lambda z, y, h, m: (z * 2, z.softmax(1), z.sum(1), z.argmax(1), z.detach()),
    "cross entropy": lambda z, y, h, m: (F.cross_entropy(z, y), F.cross_entropy(z, y, reduction="sum")),
    "smoothed": lambda z, y, h, m: F.cross_entropy(z, y, label_smoothing=0.1),
    "smoothed sum": lambda z, y, h, m: F.cross_entropy(z, y, label_smoothing=0.1, reduction="sum"),
    "weighted classes": lambda z, y, h, m: F.cross_entropy(z, y, weight=torch.tensor([1.0, 2, 3]).to(z.dtype)),
    "probabilities": lambda z, y, h, m: F.cross_entropy(z, h[:, :3].detach().softmax(1)),
    "log-likelihood": lambda z, y, h, m: F.nll_loss(z.log_softmax(1), y, ignore_index=1),
    "by rows": lambda z, y, h, m: F.cross_entropy(z, y, reduction="none"),
    "distances": lambda z, y, h, m: [
        f(m, y.to(m.dtype)) for f in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
    ],
    "two classes": lambda z, y, h, m: F.binary_cross_entropy_with_logits(m, (y > 0).to(m.dtype)),
    "two classes' probabilities": lambda z, y, h, m: F.binary_cross_entropy(m.sigmoid(), (y > 0).to(m.dtype)),
    "divergence": lambda z, y, h, m: [
        F.kl_div(z.log_softmax(1), h[:, :3].detach().softmax(1), reduction=r) for r in ("sum", "batchmean", "none")
    ],
    "counts": lambda z, y, h, m: F.poisson_nll_loss(m, y.to(m.dtype)),
    "margins": lambda z, y, h, m: [F.soft_margin_loss(m, 2.0 * (y > 0).to(m.dtype) - 1), F.multi_margin_loss(z, y)],
    "sums": lambda z, y, h, m: (z.sum(), z.mean(), z.sum(0), z.mean(0), z.mean((0, 1)), z.mean(0, keepdim=True)),
    "extremes": lambda z, y, h, m: (z.max(), z.min(), z.amax(0)),
    "spread": lambda z, y, h, m: (z.std(), z.var(0), *torch.std_mean(z, 0), *torch.var_mean(z), z.norm()),
    "of a loss": lambda z, y, h, m: (F.cross_entropy(z, y) / 2, z.mean() + 0.1 * z.pow(2).mean(), -z.mean()),
    "by number": lambda z, y, h, m: (z[0], z[2:5], z[y > 0], z.t(), z.view(4, 9)),
    "together": lambda z, y, h, m: (torch.cat([z, z]), torch.stack([z, z]), z @ z.t()),
}
HALF = {"outputs", "sums", "distances", "cross entropy", "of a loss"}


def printed(dtype):
    """What a script prints of its tensors."""
    dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    ddp_patch.disable()
    ddp_patch.enable()
    split, whole = TwoHeads().to(dtype), nn.Linear(4, 3).to(dtype)
    found = {}
    for x, y in DataLoader(TensorDataset(torch.randn(12, 4, dtype=dtype), torch.randint(0, 3, (12,))), 12):
        h, z, m = split(x)
        for name, shown in SHOWN.items():
            if dtype == torch.float64 or name in HALF:
                found[name] = [repr(t) for t in _listed(shown(z, y, h, m))]
        loss = F.cross_entropy(z, y)
        names = [loss.grad_fn.name(), type(z.grad_fn).__name__]
        loss.backward()
        found["after backward"] = [repr(loss), *names]
        leaf = x.clone().requires_grad_()
        found["a leaf"] = [repr(leaf), repr(leaf.detach())]
    found["of one row"] = [repr(whole(torch.ones(1, 4, dtype=dtype)))]
    found["of no batch"] = [repr(t) for t in TwoHeads().to(dtype)(torch.ones(1, 4, dtype=dtype))]
    return found


def _listed(value):
    return value if isinstance(value, (list, tuple)) else [value]


@pytest.mark.parametrize("nproc", [2, 3])
def test_every_rank_prints_what_one_process_prints(ranks, nproc):
    (wanted,) = ranks.call(printed, 1, "float64").ok().results
    assert "NllLossBackward0" in wanted["cross entropy"][0]
    for found in ranks.call(printed, nproc, "float64").ok().results:
        assert found == wanted


def test_in_half_precision(ranks):
    (wanted,) = ranks.call(printed, 1, "bfloat16").ok().results
    for found in ranks.call(printed, 2, "bfloat16").ok().results:
        assert {name: list(map(_node, texts)) for name, texts in found.items()} == {
            name: list(map(_node, texts)) for name, texts in wanted.items()
        }


def _node(text):
    return text[text.find("]") + 1 :].partition("grad_fn")[2] or text.partition("dtype")[2]
