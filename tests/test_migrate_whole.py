"""Losses and metrics that need the whole batch get the rows of all ranks, with their gradients."""

import pytest

pytest.importorskip("libcst")

from test_migrate import TRAIN, changed, ddp
from test_migrate_runs import Launcher

from ddp_patch.migrate.rewrite import left, rewrite


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    started = Launcher(tmp_path_factory.mktemp("whole"))
    yield started
    started.end()


def test_an_evaluation_gathers_nothing():
    text = "from metrics import accuracy\n" + TRAIN
    after = ddp(text + "for x, y in test_loader:\n    print(accuracy(model(x), y))\n")
    assert "whole_batch" not in after


@pytest.mark.parametrize(
    "loss",
    [
        "triplet_loss(torch.stack([model(x), model(x)]), y)",  # rows in another dimension
        "triplet_loss(model(x).sum(1).mean(), y)",
        "model.compute_loss(x, y)",  # past DDP's forward
        "triplet_loss(model(x), y) * model(x).mean()",
    ],
)
def test_what_cannot_be_gathered_with_certainty_is_left(loss):
    assert left(ddp(changed("criterion(model(x), y)", loss))) != []


@pytest.mark.parametrize(
    ("loss", "written"),
    [
        ("triplet_loss(model(x), y)", "triplet_loss(*whole_batch(ddp_model(x), y))"),
        ("triplet_loss(0.2, model(x), y)", "triplet_loss(0.2, whole_batch(ddp_model(x))[0], whole_batch(y)[0])"),
        ("triplet_loss(model(x), labels=y)", "triplet_loss(*whole_batch(ddp_model(x)), labels=whole_batch(y)[0])"),
        ("triplet_loss(*model(x))", "triplet_loss(*whole_batch(*ddp_model(x)))"),
        ("torch.cdist(model(x), x).mean()", "torch.cdist(*whole_batch(ddp_model(x), x)).mean()"),
        ("nn.Softmax(dim=0)(model(x)).mean()", "nn.Softmax(dim=0)(*whole_batch(ddp_model(x))).mean()"),
        ("torch.std(model(x), dim=0).mean()", "torch.std(*whole_batch(ddp_model(x)), dim=0).mean()"),
        (
            "torch.einsum('nd,md->nm', model(x), x).mean()",
            "torch.einsum('nd,md->nm', whole_batch(ddp_model(x))[0], whole_batch(x)[0]).mean()",
        ),
        ("F.cross_entropy(model(x), y, weight=w)", "F.cross_entropy(*whole_batch(ddp_model(x), y), weight=w)"),
    ],
)
def test_a_loss_of_the_whole_batch_gets_all_its_rows(loss, written):
    after = ddp(changed("criterion(model(x), y)", loss))
    assert f"loss = {written}\n" in after
    assert left(after) == []
    assert "all_mean(" not in after
    assert ddp(after) == after
    assert loss in rewrite(after, "patch", "train.py")


def test_a_metric_of_another_file_gets_all_rows():
    text = changed(
        "        total +=", "        top1 = accuracy(model(x), y, topk=(1,))\n        print(top1)\n        total +="
    )
    after = ddp("from metrics import accuracy\n" + text)
    assert "top1 = accuracy(*whole_batch(ddp_model(x), y), topk=(1,))\n        print(top1)\n" in after
    kept = ddp(
        changed("        total +=", "        for metric in metrics:\n            metric(model(x), y)\n        total +=")
    )
    assert "metric(*whole_batch(ddp_model(x), y))\n" in kept


IN_BATCH = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(48, 4).double()
y = torch.arange(48) % 3
loader = DataLoader(TensorDataset(x, y), batch_size=12)
model = nn.Linear(4, 3).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def contrast(features, labels):
    alike = labels[:, None] == labels[None, :]
    near = torch.log_softmax(features @ features.T, 1)
    far = torch.relu(1 - features.std(dim=0)).mean() + torch.einsum("nd,md->nm", features, features).pow(2).mean()
    return far - (near * alike).sum(1).mean()


for epoch in range(3):
    for rows, labels in loader:
        loss = contrast(model(rows), labels) + nn.functional.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.10f}", [round(w, 10) for w in model.weight.flatten().tolist()])
"""


@pytest.mark.slow
@pytest.mark.some("ddp-3")
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_gradients_of_the_whole_batch_are_those_of_one_process(launcher, target, nproc):
    after = rewrite(IN_BATCH, target, "contrast.py")
    assert left(after) == []
    wanted, _ = launcher.run(IN_BATCH, "contrast.py", 1)
    out, _ = launcher.run(after, "contrast.py", nproc)
    assert out[0] == wanted[0]


ATTENTION = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)).view(1, 1, 4, 4))

    def forward(self, x):
        B, T, C = SHAPE
        q, k, v = (t.view(B, T, 2, C // 2).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        weights = (q @ k.transpose(-2, -1)) / C**0.5
        weights = F.softmax(weights.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf")), dim=-1)
        return (weights @ v).transpose(1, 2).contiguous().view(B, T, C)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.block, self.out = nn.Embedding(5, 8), nn.Embedding(4, 8), Attention(), nn.Linear(8, 5)

    def forward(self, x, y):
        b, t = x.size()
        place = torch.arange(0, t, device=x.device).unsqueeze(0)
        logits = self.out(self.block(self.words(x) + self.places(place)))
        return logits, F.cross_entropy(logits.view(-1, 5), y.view(-1)IGNORED)
"""


def language_model(shape="x.size()", ignored=""):
    text = changed("model = nn.Linear(4, 2)", "model = Net()").replace("criterion(model(x), y)", "model(x, y)[1]")
    net = ATTENTION.replace("SHAPE", shape).replace("IGNORED", ignored)
    return text.replace("from torch.utils", f"import torch.nn.functional as F\n{net}\nfrom torch.utils", 1)


@pytest.mark.parametrize("shape", ["x.size()", "x.shape", "x.shape[0], x.shape[1], x.shape[2]"])
def test_a_model_with_attention_by_hand_gets_a_ranks_rows(shape):
    after = ddp(language_model(shape))
    assert "loss = ddp_model(x, y)[1]\n" in after
    assert left(after) == []


def test_a_loss_that_ignores_tokens_inside_of_a_model_is_left_for_that_reason():
    reasons = [reason for _, reason in left(ddp(language_model(ignored=", ignore_index=-1")))]
    assert len(reasons) == 1
    assert "tokens that are not ignored" in reasons[0]


@pytest.mark.parametrize("shape", ["y.shape", "y.size()"])
def test_a_sum_over_the_rows_of_an_unpacked_shape_is_a_mean(shape):
    after = ddp(
        changed("loss = criterion(model(x), y)", f"B, C = {shape}\n        loss = ((model(x) - y) ** 2).sum() / B")
    )
    assert "loss = ((ddp_model(x) - y) ** 2).sum() / B\n" in after
    assert left(after) == []


def test_a_model_that_compares_rows_is_left_and_not_given_the_whole():
    net = "class Net(nn.Module):\n    def forward(self, x):\n        return (x @ x.t()).mean()\n"
    text = changed("model = nn.Linear(4, 2)", f"{net}\nmodel = Net()").replace("criterion(model(x), y)", "model(x)")
    after = ddp(text)
    assert "whole_batch" not in after
    assert any("compares the rows" in reason for _, reason in left(after))


def test_a_loss_with_weights_of_its_own_gets_all_rows():
    net = "class CenterLoss(nn.Module):\n    def forward(self, x, y):\n        return (x @ x.t()).mean()\n"
    text = changed("criterion = nn.CrossEntropyLoss()", f"{net}\ncriterion = CenterLoss()")
    more = "optimizer_center = torch.optim.SGD(criterion.parameters(), lr=0.1)\n"
    after = ddp(changed("for epoch in range(3):\n", f"{more}for epoch in range(3):\n", text))
    assert "criterion(*whole_batch(ddp_model(x), y))" in after
    assert not any("compares" in reason for _, reason in left(after))


@pytest.mark.parametrize("made", ["torch.ones(y.size())", "torch.ones(y.shape)", "torch.ones_like(y)"])
def test_a_tensor_of_the_size_of_rows_is_one_of_rows(made):
    loss = f"weight = {made}\n        loss = (torch.sqrt((model(x) * weight).sum(1)) - 1).mean()"
    after = ddp(changed("loss = criterion(model(x), y)", loss))
    assert left(after) == []
