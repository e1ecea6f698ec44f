"""Model calls that cannot be followed: an error on every rank that names module and argument."""

import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def hidden():  # where nobody looks
    return "ONLY_FIRST_ROWS" in os.environ


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        out = self.layer(x)
        return out[:1] if hidden() else out


def hook_on_a_sparse_gradient():
    words = nn.EmbeddingBag(10, 3, sparse=True)
    words.weight.register_hook(lambda gradient: gradient * 2)
    optimizer = torch.optim.SparseAdam(list(words.parameters()), 0.1)
    for (index,) in DataLoader(TensorDataset(torch.arange(16).view(8, 2) % 10), 4):
        words(index).sum().backward()
        optimizer.step()


def said(kind):
    torch.manual_seed(0)
    if kind == "sparse hook":
        try:
            hook_on_a_sparse_gradient()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.randn(24, 4)), 8)
    steps = 0
    try:
        for (x,) in loader:
            model(x).sum().backward()
            optimizer.step()
            if steps:
                os.environ["ONLY_FIRST_ROWS"] = "1"
            steps += 1
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sparse hook", ["A hook on a parameter of shape (10, 3)", "sparse gradient", "sparse=False"]),
        ("not followed", ["Net returned a tensor of shape (1, 3)", "cannot be told which rows"]),
    ],
)
def test_a_call_that_cannot_be_followed_is_refused_on_every_rank(ranks, kind, words):
    for result in ranks.call(said, 2, kind).ok().results:
        assert result.startswith("BatchError: ")
        for word in words:
            assert word in result


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, mask):
        return nn.functional.scaled_dot_product_attention(self.layer(x), x, x, attn_mask=mask.squeeze(1))


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(4, 3)

    def forward(self, x, labels):
        lengths = torch.tensor([1 + label % x.shape[1] for label in labels.tolist()])
        mask = (torch.arange(x.shape[1]) < lengths[:, None])[:, None, None].expand(-1, 1, x.shape[1], -1)
        return nn.functional.cross_entropy(self.head(self.encoder(x, mask)).mean(1), labels)


def texts_of_every_length(checkpoints):
    torch.manual_seed(0)
    model = WithLoss().double()
    if checkpoints:
        encoder = model.encoder.forward
        model.encoder.forward = lambda *args: torch.utils.checkpoint.checkpoint(encoder, *args, use_reentrant=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = []
    for length in (8, 6, 8, 5, 8):  # batches of 8
        x, labels = torch.randn(16, length, 4).double(), torch.randint(0, 3, (16,))
        for batch in DataLoader(TensorDataset(x, labels), 8):
            loss = model(*batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            given.append(loss.item())
    return given


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_mask_that_the_model_makes_may_have_the_batch_size_in_several_dimensions(ranks, checkpoints):
    alone = ranks.call(texts_of_every_length, 1, checkpoints).ok().results[0]
    for nproc in (2, 3):
        for given in ranks.call(texts_of_every_length, nproc, checkpoints).ok().results:
            assert given == pytest.approx(alone, rel=1e-9)
