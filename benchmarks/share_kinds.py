"""Kinds of training scripts, each a generator that yields its loss after every optimizer step.

They run in float64, in which recurrent layers are made of products that can be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao import quantization
from torch.distributions import Categorical
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

BATCH, STEPS = 8, 6
TOKENS = 24  # of a small vocabulary
Kind = Callable[[], Iterator[float]]
KINDS: dict[str, Kind] = {}
DRAWN = [  # a model that draws, by dropout or an action, draws otherwise on every number of ranks
    "classifier", "transformer encoder", "lstm with dropout", "gpt with its loss and dropout", "gpt by hand",
    "transformer sequence first", "bert with labels", "checkpointing", "actor and critic", "learned queries",
]  # fmt: skip


def kind(function: Kind) -> Kind:
    """List a kind of script under its name."""
    KINDS[function.__name__.replace("_", " ")] = function
    return function


def loader(*sample: int, classes: int = 4) -> DataLoader[Any]:
    """Make batches of noise, with a class for every row."""
    count = BATCH * STEPS
    return DataLoader(TensorDataset(torch.randn(count, *sample), torch.randint(0, classes, (count,))), BATCH)


def texts(length: int = 10) -> DataLoader[Any]:
    """Make batches of sequences of tokens."""
    return DataLoader(TensorDataset(torch.randint(0, TOKENS, (BATCH * STEPS, length))), BATCH)


def stepped(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    """Take a step down, and tell the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def classify(model: nn.Module, batches: DataLoader[Any], kind: str = "SGD") -> Iterator[float]:
    """Train a classifier."""
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    for x, y in batches:
        yield stepped(optimizer, F.cross_entropy(model(x), y))


def cnn() -> nn.Module:
    """Two convolutions with BatchNorm and a head."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4)),
    )


@kind
def classifier() -> Iterator[float]:
    """Three layers with dropout."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    return classify(model, loader(16), "Adam")


@kind
def dataparallel_cnn() -> Iterator[float]:
    """``nn.DataParallel`` around a CNN."""
    return classify(nn.DataParallel(cnn()), loader(3, 12, 12))


@kind
def gan() -> Iterator[float]:
    """Two models against each other, noise from the script."""
    made = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 16))
    judge = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid())
    of_made, of_judge = torch.optim.Adam(made.parameters()), torch.optim.Adam(judge.parameters())
    for x, _ in loader(16):
        ones, zeros = torch.ones(x.size(0)), torch.zeros(x.size(0))
        fake = made(torch.randn(x.size(0), 6))
        real = F.binary_cross_entropy(judge(x).view(-1), ones)
        stepped(of_judge, real + F.binary_cross_entropy(judge(fake.detach()).view(-1), zeros))
        yield stepped(of_made, F.binary_cross_entropy(judge(fake).view(-1), ones))


class UNet(nn.Module):
    """One way down, one way up, and one across."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 12, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(12, 6, 2, 2), nn.Conv2d(12, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Give a mask."""
        across = F.relu(self.down(x))
        up = self.up(F.relu(self.deep(F.max_pool2d(across, 2))))
        return torch.sigmoid(self.out(torch.cat([up, across], 1)))


@kind
def unet_with_dice() -> Iterator[float]:
    """A loss over all pixels of the batch."""
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters())
    for x, _ in loader(1, 12, 12):
        mask, wanted = model(x), (x > 0).double()
        dice = (2 * (mask * wanted).sum() + 1) / (mask.sum() + wanted.sum() + 1)
        yield stepped(optimizer, F.binary_cross_entropy(mask, wanted) + 1 - dice)


@kind
def triplets() -> Iterator[float]:
    """Three calls of one model for a loss."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, _ in loader(3, 16):
        yield stepped(optimizer, F.triplet_margin_loss(model(x[:, 0]), model(x[:, 1]), model(x[:, 2])))


@kind
def contrastive() -> Iterator[float]:
    """Every row against every other one."""
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, _ in loader(16):
        first, second = F.normalize(model(x), dim=1), F.normalize(model(x + 0.1), dim=1)
        yield stepped(optimizer, F.cross_entropy(first @ second.T / 0.1, torch.arange(x.size(0))))


@kind
def transformer_encoder() -> Iterator[float]:
    """``nn.TransformerEncoder`` with its default dropout."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(TOKENS, 16)
            self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
            self.head = nn.Linear(16, TOKENS)

        def forward(self, text: Tensor) -> Tensor:
            return self.head(self.body(self.words(text)))

    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters())
    for (text,) in texts():
        yield stepped(optimizer, F.cross_entropy(model(text).flatten(0, 1), text.flatten()))


class Recurrent(nn.Module):
    """A recurrent layer over words, and a head on its last state."""

    def __init__(self, body: nn.Module, packed: bool = False) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(TOKENS, 12), body, nn.Linear(16, 4)
        self.packed = packed

    def forward(self, text: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Give scores of classes."""
        words = self.words(text)
        if lengths is None:
            return self.head(self.body(words)[0][:, -1])
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.body(packed)[0], batch_first=True)
        return self.head(out[torch.arange(len(out)), lengths - 1])


@kind
def lstm_with_dropout() -> Iterator[float]:
    """Dropout between two recurrent layers."""
    model = Recurrent(nn.LSTM(12, 16, 2, batch_first=True, dropout=0.3))
    optimizer = torch.optim.Adam(model.parameters())
    for (text,) in texts():
        yield stepped(optimizer, F.cross_entropy(model(text), text[:, 0] % 4))


@kind
def gru_over_packed_sequences() -> Iterator[float]:
    """``pack_padded_sequence`` in and out."""
    model = Recurrent(nn.GRU(12, 16, batch_first=True))
    optimizer = torch.optim.Adam(model.parameters())
    for (text,) in texts():
        lengths = text[:, 1] % 9 + 1
        yield stepped(optimizer, F.cross_entropy(model(text, lengths), text[:, 0] % 4))


@kind
def time_major() -> Iterator[float]:
    """The script turns its batches round: ``[time, batch, ...]``."""
    words, body, head = nn.Embedding(TOKENS, 12), nn.LSTM(12, 16), nn.Linear(16, 4)
    model = nn.ModuleDict({"words": words, "body": body, "head": head})
    optimizer = torch.optim.Adam(model.parameters())
    for (text,) in texts():
        out, _ = body(words(text.t().contiguous()))
        yield stepped(optimizer, F.cross_entropy(head(out[-1]), text[:, 0] % 4))


class Block(nn.Module):
    """Attention and a network, as in nanoGPT."""

    def __init__(self, width: int, heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.net = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.heads, self.dropout, self.fused = heads, dropout, fused
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to what came before."""
        rows, time, width = x.size()
        q, k, v = (
            part.view(rows, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).split(width, dim=2)
        )
        if self.fused:
            p = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            shares = (q @ k.transpose(-2, -1)) * k.size(-1) ** -0.5
            mask = torch.tril(torch.ones(time, time)).view(1, 1, time, time)
            y = self.drop(F.softmax(shares.masked_fill(mask[:, :, :time, :time] == 0, float("-inf")), dim=-1)) @ v
        x = x + self.out(y.transpose(1, 2).contiguous().view(rows, time, width))
        return x + self.net(self.norms[1](x))


class GPT(nn.Module):
    """Computes its loss in forward."""

    def __init__(self, dropout: float, fused: bool = True) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(TOKENS, 16), nn.Embedding(16, 16)
        self.drop, self.norm = nn.Dropout(dropout), nn.LayerNorm(16)
        self.blocks = nn.ModuleList([Block(16, 2, dropout, fused) for _ in range(2)])
        self.head = nn.Linear(16, TOKENS, bias=False)
        self.words.weight = self.head.weight

    def forward(self, text: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Give scores of the next words, and the loss."""
        places = torch.arange(text.size(1))
        x = self.drop(self.words(text) + self.places(places))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        if wanted is None:
            return scores, None
        return scores, F.cross_entropy(scores.view(-1, scores.size(-1)), wanted.reshape(-1), ignore_index=-1)


def next_words(model: nn.Module) -> Iterator[float]:
    """Train a GPT on the loss that its forward gives."""
    optimizer = torch.optim.AdamW(model.parameters())
    for (text,) in texts():
        _, loss = model(text[:, :-1], text[:, 1:])
        yield stepped(optimizer, loss)


@kind
def gpt_with_its_loss() -> Iterator[float]:
    """Without dropout."""
    return next_words(GPT(0.0))


@kind
def gpt_with_its_loss_and_dropout() -> Iterator[float]:
    """Dropout everywhere, inside attention too."""
    return next_words(GPT(0.1))


@kind
def gpt_by_hand() -> Iterator[float]:
    """Attention written out; the loss outside."""
    model = GPT(0.1, fused=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for (text,) in texts():
        scores, _ = model(text[:, :-1])
        yield stepped(optimizer, F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()))


@kind
def transformer_sequence_first() -> Iterator[float]:
    """``nn.Transformer`` as it comes: ``[time, batch, ...]``."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(TOKENS, 16)
            self.body = nn.Transformer(16, 2, 1, 1, 32)
            self.head = nn.Linear(16, TOKENS)

        def forward(self, given: Tensor, wanted: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(wanted.size(0))
            return self.head(self.body(self.words(given), self.words(wanted), tgt_mask=mask))

    model = Translator()
    optimizer = torch.optim.Adam(model.parameters())
    for (text,) in texts():
        turned = text.t()
        scores = model(turned, turned[:-1])
        yield stepped(optimizer, F.cross_entropy(scores.flatten(0, 1), turned[1:].flatten()))


@kind
def old_weight_norm() -> Iterator[float]:
    """``torch.nn.utils.weight_norm``, whose weight is no parameter."""
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(16, 64)), nn.ReLU(), nn.utils.weight_norm(nn.Linear(64, 4)))
    return classify(model, loader(16))


@kind
def old_spectral_norm() -> Iterator[float]:
    """``torch.nn.utils.spectral_norm``, as in GANs."""
    model = nn.Sequential(
        nn.utils.spectral_norm(nn.Conv2d(3, 8, 3)), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(800, 4)
    )
    return classify(model, loader(3, 12, 12))


@kind
def parametrizations() -> Iterator[float]:
    """``weight_norm`` and ``spectral_norm`` as parametrizations."""
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(16, 64)),
        nn.ReLU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(64, 4)),
    )
    return classify(model, loader(16))


class Boxes(Dataset[Any]):
    """Pictures, each with its own number of boxes."""

    def __len__(self) -> int:
        """All batches."""
        return BATCH * STEPS

    def __getitem__(self, index: int) -> Any:
        """A picture, and its boxes."""
        return torch.full((3, 12, 12), index / 10), torch.full((1 + index % 3, 4), index / 10)


@kind
def detection() -> Iterator[float]:
    """A tensor of pictures and a list of boxes per picture."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def collate(items: list[Any]) -> Any:
        return torch.stack([picture for picture, _ in items]), [boxes for _, boxes in items]

    for pictures, boxes in DataLoader(Boxes(), BATCH, collate_fn=collate):
        found = model(pictures)
        yield stepped(optimizer, torch.stack([F.l1_loss(found[i], own.mean(0)) for i, own in enumerate(boxes)]).mean())


class Detector(nn.Module):
    """Given lists: pads pictures to the largest, and goes through their boxes one by one."""

    def __init__(self) -> None:
        """Make a body and two heads."""
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        self.boxes, self.scores = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

    def features(self, pictures: list[Tensor]) -> Tensor:
        """What the body makes of the pictures, beside each other."""
        height, width = (max(picture.shape[dim] for picture in pictures) for dim in (1, 2))
        batch = pictures[0].new_zeros(len(pictures), 3, height, width)
        for i, picture in enumerate(pictures):
            batch[i, :, : picture.shape[1], : picture.shape[2]].copy_(picture)
        return self.body(batch)

    def forward(self, pictures: list[Tensor], targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Give losses."""
        return self.losses(self.features(pictures), targets)

    def losses(self, x: Tensor, targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Give a loss over all boxes, and one over all pictures."""
        found, scores = self.boxes(x).flatten(2).transpose(1, 2), self.scores(x).flatten(2).transpose(1, 2)
        pairs = list(zip(found, targets, strict=True))
        off = sum(F.l1_loss(own[: len(its["boxes"])], its["boxes"], reduction="sum") for own, its in pairs)
        classes = [
            F.cross_entropy(own[: len(its["boxes"])], its["labels"]) for own, its in zip(scores, targets, strict=True)
        ]
        return {"boxes": off / sum(len(its["boxes"]) for its in targets), "classes": torch.stack(classes).mean()}


class Sized(Boxes):
    """Pictures of several sizes."""

    def __getitem__(self, index: int) -> Any:
        """A picture, its boxes and what is in them."""
        picture, boxes = super().__getitem__(index)
        return picture[:, : 10 + index % 3], {"boxes": boxes, "labels": torch.arange(len(boxes))}


def detect(model: nn.Module) -> Iterator[float]:
    """Train as the reference scripts do."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for pictures, targets in DataLoader(Sized(), BATCH, collate_fn=lambda samples: tuple(zip(*samples, strict=True))):
        pictures = [picture.to("cpu") for picture in pictures]
        losses = model(pictures, [{key: value.to("cpu") for key, value in its.items()} for its in targets])
        yield stepped(optimizer, sum(losses.values()))


@kind
def detection_in_lists() -> Iterator[float]:
    """Lists of pictures and of their boxes, and losses in forward."""
    return detect(Detector())


class TwoStages(Detector):
    """Has a second head for a few places of each picture: as many rows as there are boxes in the batch."""

    def __init__(self) -> None:
        """Make another head."""
        super().__init__()
        self.regions = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))

    def losses(self, x: Tensor, targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Give one loss more."""
        places = [own[:, : 4 + len(its["boxes"])].t() for own, its in zip(x.flatten(2), targets, strict=True)]
        scores = self.regions(torch.cat(places))
        return {**super().losses(x, targets), "regions": F.cross_entropy(scores, torch.arange(len(scores)) % 4)}


@kind
def detection_in_two_stages() -> Iterator[float]:
    """As before, and a head that is given regions of all pictures."""
    return detect(TwoStages())


@kind
def instance_norm_that_tracks() -> Iterator[float]:
    """InstanceNorm with running statistics."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, track_running_stats=True), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)),
    )
    return classify(model, loader(3, 12, 12))


@kind
def bert_with_labels() -> Iterator[float]:
    """A mask of its own, dropout, and a loss in forward."""

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.norm, self.drop = nn.Embedding(TOKENS, 16), nn.LayerNorm(16), nn.Dropout(0.1)
            self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, text: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
            x = self.drop(self.norm(self.words(text)))
            shut = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
            shape = (*x.shape[:2], 2, 8)
            q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=shut, dropout_p=0.1)
            x = self.norm(x + self.out(y.transpose(1, 2).reshape(x.shape)))
            scores = self.head(self.drop(x[:, 0]))
            return {"loss": F.cross_entropy(scores.view(-1, 4), labels.view(-1)), "scores": scores}

    model = Bert()
    optimizer = torch.optim.AdamW(model.parameters())
    for (text,) in texts():
        yield stepped(optimizer, model(text, (text > 0).long(), text[:, 0] % 4)["loss"])


@kind
def get_batch() -> Iterator[float]:
    """No loader: nanoGPT's way of drawing batches."""
    data, model = torch.randint(0, TOKENS, (400,)), GPT(0.0)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        starts = torch.randint(len(data) - 11, (BATCH,))
        text = torch.stack([data[i : i + 10] for i in starts])
        wanted = torch.stack([data[i + 1 : i + 11] for i in starts])
        _, loss = model(text, wanted)
        yield stepped(optimizer, loss)


class WordModel(nn.Module):
    """A language model as they were: time in dimension 0, all tokens in one list of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.head = nn.Embedding(TOKENS, 32), nn.GRU(32, 64, 2), nn.Linear(64, TOKENS)

    def forward(self, text: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the next tokens, and the state that the next piece of text begins with."""
        out, state = self.rnn(self.words(text), state)
        return self.head(out).view(-1, TOKENS), state


@kind
def get_batch_sequence_first() -> Iterator[float]:
    """No loader, [T, B]: the word language model of torch's examples, whose state is carried from piece to piece."""
    data, model = torch.randint(0, TOKENS, (STEPS * 10 + 1, BATCH)), WordModel()
    optimizer, state = torch.optim.AdamW(model.parameters()), torch.zeros(2, BATCH, 64)
    for start in range(0, STEPS * 10, 10):
        logits, state = model(data[start : start + 10], state.detach())
        yield stepped(optimizer, F.cross_entropy(logits, data[start + 1 : start + 11].view(-1)))


@kind
def full_batch_regression() -> Iterator[float]:
    """No loader: all data in every step."""
    x, y = torch.randn(40, 6), torch.randn(40, 1)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        yield stepped(optimizer, F.mse_loss(model(x), y))


@kind
def minibatches_by_randperm() -> Iterator[float]:
    """No loader: indexing with a permutation."""
    x, y = torch.randn(48, 6), torch.randint(0, 4, (48,))
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for chosen in torch.randperm(48).split(BATCH):
        yield stepped(optimizer, F.cross_entropy(model(x[chosen]), y[chosen]))


@kind
def physics_informed() -> Iterator[float]:
    """``autograd.grad`` of the inputs, twice."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x = torch.rand(40, 1, requires_grad=True)
        u = model(x)
        slope = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
        yield stepped(optimizer, (bend + torch.sin(x)).pow(2).mean() + model(torch.zeros(1, 1)).pow(2).mean())


@kind
def mixup() -> Iterator[float]:
    """Batches that the script mixes with themselves."""
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(3, 12, 12):
        other, share = torch.randperm(x.size(0)), 0.7
        out = model(share * x + (1 - share) * x[other])
        yield stepped(optimizer, share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[other]))


@kind
def attention_by_hand() -> Iterator[float]:
    """Idioms that look at shapes alone: ``expand_as``, ``Softmax()`` without a dimension, ``zeros_like``."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.score, self.head = nn.Linear(16, 32), nn.Linear(32, 6), nn.Linear(32, 4)
            self.weight = nn.Parameter(torch.ones(32))

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.first(x))
            h = h * self.weight.expand_as(h) + torch.zeros_like(h)
            gate = F.softmax(self.score(h), dim=1)
            return self.head(h * gate.sum(1, keepdim=True).expand_as(h))

    return classify(Attending(), loader(16))


@kind
def losses_by_name() -> Iterator[float]:
    """A forward that returns a dictionary of losses, one of them on a weight."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 4), nn.Linear(64, 16)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            h = torch.relu(self.body(x))
            return {
                "class": F.cross_entropy(self.a(h), y, label_smoothing=0.1),
                "same": F.mse_loss(self.b(h), x),
                "small": 0.01 * self.body.weight.pow(2).sum(),
            }

    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(16):
        yield stepped(optimizer, torch.stack(list(model(x, y).values())).sum())


@kind
def checkpointing() -> Iterator[float]:
    """A part that backward computes again."""

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(16, 64), nn.Linear(64, 4)
            self.part = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.utils.checkpoint.checkpoint(self.part, self.first(x), use_reentrant=False))

    return classify(Again(), loader(16))


@kind
def encoder_and_head() -> Iterator[float]:
    """Two models that the script puts together."""
    encoder, head = nn.Sequential(nn.Linear(16, 64), nn.ReLU()), nn.Linear(64, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.01)
    for x, y in loader(16):
        yield stepped(optimizer, F.cross_entropy(head(encoder(x)), y))


@kind
def annealed() -> Iterator[float]:
    """An attribute that the script sets in every step, in a part of the model."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.temperature = nn.Linear(64, 64), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.linear(x) / self.temperature, 1)

    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), Gated(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(16):
        model[2].temperature *= 0.9
        yield stepped(optimizer, F.cross_entropy(model(x), y))


@kind
def argument_that_grows() -> Iterator[float]:
    """A number that is another one in every call, as a schedule has it."""

    class Adversary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.label, self.domain = nn.Linear(64, 4), nn.Linear(64, 4)

        def forward(self, x: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
            h = self.body(x)
            return self.label(h), self.domain(h * alpha)

    model = Adversary()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader(16)):
        label, domain = model(x, alpha=step / STEPS)
        yield stepped(optimizer, F.cross_entropy(label, y) + F.cross_entropy(domain, y))


@kind
def calls_that_are_counted() -> Iterator[float]:
    """A forward that counts how often it ran."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.calls = nn.Linear(16, 64), nn.Linear(64, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.head(torch.relu(self.body(x)) * (2.0 if self.calls > 4 else 1.0))

    return classify(Counting(), loader(16))


class WordVectors(nn.Module):
    """Words near a word, against words drawn for it; with sparse gradients."""

    def __init__(self) -> None:
        """Make two tables."""
        super().__init__()
        self.inner = nn.Embedding(TOKENS, 6, sparse=True)
        self.outer = nn.EmbeddingBag(TOKENS, 6, mode="sum", sparse=True)

    def forward(self, words: Tensor, near: Tensor) -> Tensor:
        """Give one score for each row."""
        return torch.bmm(self.inner(words)[:, None], self.outer(near)[:, :, None]).flatten()


@kind
def word_vectors() -> Iterator[float]:
    """Sparse gradients, and a loss with an argument from before torch 1.0."""
    model = WordVectors()
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    count = BATCH * STEPS
    words, near = torch.randint(0, TOKENS, (count,)), torch.randint(0, TOKENS, (count, 5))
    targets = torch.randint(0, 2, (count,)).double()
    for x, y, z in DataLoader(TensorDataset(words, near, targets), BATCH):
        yield stepped(optimizer, F.binary_cross_entropy_with_logits(model(x, y), z, size_average=True))


class TwoHeads(nn.Module):
    """Has a head that no loss is computed of, as an auxiliary one in the first epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head, self.other = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Classify twice."""
        x = self.body(x)
        return self.head(x), self.other(x)


@kind
def a_head_without_a_loss() -> Iterator[float]:
    """Parameters that get no gradient, which hand-written DDP takes with ``find_unused_parameters=True``."""
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader(6):
        yield stepped(optimizer, F.cross_entropy(model(x)[0], y))


@kind
def implicit_softmax() -> Iterator[float]:
    """A softmax without ``dim``, and labels that are scattered, with an optimizer for each of two layers."""
    first, last = nn.Linear(6, 8), nn.Linear(8, 4)
    model = nn.Sequential(first, nn.Tanh(), last, nn.Softmax())
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (first, last)]
    for x, y in loader(6):
        z = model(x)
        wanted = torch.zeros_like(z.detach()).scatter_(1, y[:, None], 1.0)
        loss = (z - wanted).square().mean()
        optimizers[0].zero_grad()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[0].step()
        optimizers[1].step()
        yield loss.item()


@kind
def labelled_and_unlabelled() -> Iterator[float]:
    """Three batches in one call, as FixMatch has them, and their logits apart."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader(16):
        logits = model(torch.cat([x, x * 0.9, x.flip(1)]))
        weak, strong = logits[len(x) :].chunk(2)
        sure, guessed = weak.detach().softmax(1).max(1)
        unlabelled = (F.cross_entropy(strong, guessed, reduction="none") * (sure > 0.3)).mean()
        yield stepped(optimizer, F.cross_entropy(logits[: len(x)], y) + unlabelled)


@kind
def learned_queries() -> Iterator[float]:
    """A decoder with dropout, asked by learned queries that are repeated for each row, as DETR has it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.queries = nn.Embedding(TOKENS, 32), nn.Parameter(torch.randn(6, 32))
            self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2)
            self.head = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            queries = self.queries.unsqueeze(0).repeat(x.size(0), 1, 1)
            return self.head(self.decoder(queries, self.words(x)).mean(1))

    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    for (x,) in texts():
        yield stepped(optimizer, F.cross_entropy(model(x), x[:, 0] % 4))


@kind
def quantization_aware() -> Iterator[float]:
    """A CNN whose activations and weights are rounded while it is trained, by ``torch.ao.quantization``."""
    model: nn.Module = nn.Sequential(
        quantization.QuantStub(), nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 16, 4), quantization.DeQuantStub(),
    )  # fmt: skip
    quantization.fuse_modules_qat(model.train(), [["1", "2", "3"], ["4", "5"]], inplace=True)
    rounds = quantization.FakeQuantize.with_args(
        observer=quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255
    )  # the fused one knows float32 alone
    model.qconfig = quantization.QConfig(rounds, quantization.default_per_channel_weight_fake_quant)
    quantization.prepare_qat(model, inplace=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader(3, 8, 8):
        yield stepped(optimizer, F.cross_entropy(model(x), y))


class Recomputed(torch.autograd.Function):
    """A checkpoint by hand, as guided-diffusion has it: its backward calls the block again."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
        """Keep the input alone."""
        ctx.run, ctx.x, ctx.parameters = run, x, parameters
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Compute the block again, and go back through it."""
        x = ctx.x.detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.run(x)
        return None, *torch.autograd.grad(out, (x, *ctx.parameters), grads[0])


@kind
def checkpointing_by_hand() -> Iterator[float]:
    """A block that a function of the script's own computes again in its backward."""

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block, self.last = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(Recomputed.apply(self.block, torch.relu(self.first(x)), *self.block.parameters()))

    return classify(Blocks(), loader(16))


@kind
def actor_and_critic() -> Iterator[float]:
    """No loader: a policy that acts in three environments, one step at a time, and then learns from a minibatch."""

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh())
            self.actor, self.critic = nn.Linear(64, 4), nn.Linear(64, 1)

        def of(self, seen: Tensor) -> tuple[Categorical, Tensor]:
            hidden = self.body(seen)
            return Categorical(logits=self.actor(hidden)), self.critic(hidden).flatten()

        def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
            """Draw what to do, and say what is expected of it."""
            actions, value = self.of(seen)
            return actions.sample(), value

    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters())
    with torch.no_grad():
        for _ in range(5):
            policy(torch.randn(3, 6))
    for _ in range(STEPS):
        seen, done, gained = torch.randn(BATCH, 6), torch.randint(4, (BATCH,)), torch.randn(BATCH)
        actions, value = policy.of(seen)
        better = (gained - value).detach()
        loss = -(actions.log_prob(done) * better).mean() + (value - gained).pow(2).mean()
        yield stepped(optimizer, loss - 0.01 * actions.entropy().mean())


@kind
def trained_without_an_optimizer() -> Iterator[float]:
    """Neither a loader nor an optimizer, as in torch's example of a language model."""
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
    for _ in range(STEPS):
        loss = F.cross_entropy(model(torch.randn(BATCH, 6)), torch.randint(4, (BATCH,)))
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
        yield loss.item()


@kind
def decoder_step_by_step() -> Iterator[float]:
    """A translation's decoder, which writes each word's logits into a tensor that it has made before."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.cell, self.head = nn.GRU(6, 64), nn.GRUCell(TOKENS, 64), nn.Linear(64, TOKENS)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.encoder(x.transpose(0, 1))[1][0]
            outputs, word = torch.zeros(4, x.size(0), TOKENS), torch.zeros(x.size(0), TOKENS)
            for step in range(4):
                hidden = self.cell(word, hidden)
                outputs[step] = self.head(hidden)
                word = outputs[step].softmax(1)
            return outputs.view(-1, TOKENS)

    model = Decoder()
    optimizer = torch.optim.Adam(model.parameters())
    pairs = TensorDataset(torch.randn(BATCH * STEPS, 5, 6), torch.randint(0, TOKENS, (BATCH * STEPS, 4)))
    for x, y in DataLoader(pairs, BATCH):
        yield stepped(optimizer, F.cross_entropy(model(x), y.t().reshape(-1)))


class Spike(torch.autograd.Function):
    """A step whose gradient is that of a smooth one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Fire where the potential is above its threshold."""
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Surrogate gradient of a fast sigmoid (Zenke and Ganguli 2018)."""
        return grads[0] / (1 + 10 * ctx.saved_tensors[0].abs()) ** 2


@kind
def spiking() -> Iterator[float]:
    """A spiking network that keeps its potentials in buffers, as snntorch's layers do."""

    class Spiking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 4)
            self.register_buffer("potential", torch.zeros(1), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.potential = 0.9 * self.potential + self.first(x)
            spikes = Spike.apply(self.potential - 1)
            self.potential = self.potential - spikes.detach()
            return self.last(spikes)

    model = Spiking()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in loader(16):
        model.potential = torch.zeros(1)
        yield stepped(optimizer, F.cross_entropy(sum(model(x) for _ in range(4)), y))


@kind
def diffusion() -> Iterator[float]:
    """A denoiser inside of a model that noises pictures, and weighs and averages the errors itself."""

    class Diffusion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 1, 3, padding=1))
            self.register_buffer("kept", torch.linspace(0.99, 0.01, 100))

        def forward(self, x: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
            kept = self.kept[steps].view(-1, 1, 1, 1)
            noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
            predicted = self.net(torch.cat([noisy, kept.expand_as(x)], 1))
            errors = F.mse_loss(predicted, noise, reduction="none").flatten(1).mean(1)
            return (errors / (1 + kept.flatten())).mean()

    model = Diffusion()
    optimizer = torch.optim.Adam(model.parameters())
    for x, _ in loader(1, 12, 12):
        yield stepped(optimizer, model(x, torch.randint(0, 100, (len(x),)), torch.randn(x.shape)))


@kind
def norm_by_hand() -> Iterator[float]:
    """An encoder that normalises codes over the batch by hand, and wants all of them used on average."""

    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(16, 64), nn.Linear(64, 16)
            self.scale = nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.encoder(x)
            mean = hidden.mean(0)
            var = (hidden - mean).square().mean(0)
            codes = ((hidden - mean) / (var + 1e-5).sqrt() * self.scale).softmax(1)
            used = codes.mean(0)
            return (self.decoder(codes) - x).square().mean() + 0.1 * (used * used.log()).sum()

    model = Codes()
    optimizer = torch.optim.Adam(model.parameters())
    for x, _ in loader(16):
        yield stepped(optimizer, model(x))


@kind
def experts_by_sorting() -> Iterator[float]:
    """Two of four experts for each token: tokens are sorted by them, as transformers does, and put back."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(32, 4, bias=False)
            self.up, self.down = nn.Parameter(torch.randn(4, 32, 64) / 6), nn.Parameter(torch.randn(4, 64, 32) / 8)

        def forward(self, tokens: Tensor) -> Tensor:
            weights, chosen = self.gate(tokens).softmax(-1).topk(2, dim=-1)
            numbers, order = chosen.flatten().sort()
            hidden = torch.bmm(tokens[order // 2].unsqueeze(1), self.up[numbers])
            hidden = torch.bmm(F.silu(hidden), self.down[numbers]).squeeze(1) * weights.flatten()[order].unsqueeze(1)
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order))
            return hidden[back].view(len(tokens), 2, -1).sum(1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.experts, self.head = nn.Embedding(TOKENS, 32), Experts(), nn.Linear(32, TOKENS)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.words(x)
            hidden = hidden + self.experts(hidden.flatten(0, 1)).view_as(hidden)
            scores = self.head(hidden)
            return scores, F.cross_entropy(scores.flatten(0, 1), y.flatten())

    return next_words(Model())


def graphs_as_one(graphs: list[Any]) -> tuple[Tensor, ...]:
    """Make a batch of graphs, which nothing joins, as torch_geometric's loader does."""
    counts = torch.tensor([len(x) for x, _, _ in graphs])
    starts = counts.cumsum(0) - counts
    edge_index = torch.cat([edges + start for (_, edges, _), start in zip(graphs, starts, strict=True)], 1)
    x, y = torch.cat([x for x, _, _ in graphs]), torch.stack([y for _, _, y in graphs])
    return x, edge_index, torch.repeat_interleave(torch.arange(len(graphs)), counts), y


@kind
def batches_of_graphs() -> Iterator[float]:
    """Attention over the edges of small graphs, as torch_geometric has it, and a mean over the nodes of each."""

    class Attention(nn.Module):
        def __init__(self, features: int) -> None:
            super().__init__()
            self.nodes, self.score = nn.Linear(features, 32), nn.Linear(64, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            hidden, (source, target) = self.nodes(x), edge_index
            score = self.score(torch.cat([hidden[source], hidden[target]], 1)).squeeze(1).exp()
            total = score.new_zeros(x.size(0)).scatter_add_(0, target, score)
            messages = hidden[source] * (score / total[target])[:, None]
            return torch.zeros_like(hidden).index_add_(0, target, messages)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.norm = Attention(16), Attention(32), nn.BatchNorm1d(32)
            self.head = nn.Linear(32, 4)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            hidden = self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)
            count = int(batch.max()) + 1
            sums = hidden.new_zeros(count, 32).index_add_(0, batch, hidden)
            return self.head(sums / torch.bincount(batch, minlength=count)[:, None])

    graphs = [(torch.randn(6, 16), torch.randint(0, 6, (2, 12)), torch.randint(0, 4, ())) for _ in range(BATCH * STEPS)]
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    for x, edge_index, batch, y in DataLoader(graphs, BATCH, collate_fn=graphs_as_one):
        yield stepped(optimizer, F.cross_entropy(model(x, edge_index, batch), y))
