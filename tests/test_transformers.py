"""What models of transformers do: decoders keep keys and values, masks are left out, hooks collect hidden states.

The names are those of transformers, in stand-ins: its models themselves are in ``tests/libraries``.
"""

import importlib
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import TESTS
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch

WORDS, WIDTH, HEADS = 20, 8, 2


@dataclass
class Output:
    loss: Any
    logits: Any
    past: Any


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.qkv, self.out = number, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None, past=None):
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        k, v = past.update(k, v, self.number)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None and q.shape[2] > 1)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(16, WIDTH)
        self.blocks, self.head = nn.ModuleList(map(Block, range(2))), nn.Linear(WIDTH, WORDS)

    def forward(self, text, padding=None, labels=None, past=None):
        past = sys.modules["transformers.cache_utils"].Cache() if past is None else past
        start = past.get_seq_length()
        x = self.words(text) + self.places(torch.arange(start, start + text.shape[1]))
        masks = sys.modules["transformers.masking_utils"]
        mask = masks.causal_mask(padding, text.shape[1]) if text.shape[1] > 1 else None
        for block in self.blocks:
            x = block(x, mask, past=past)
        logits = self.head(x)
        loss = None if labels is None else F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Output(loss, logits, past)


def begin():
    sys.path.insert(0, str(TESTS / "stand_ins"))
    for name in ("cache_utils", "masking_utils", "modeling_attn_mask_utils", "utils.output_capturing"):
        importlib.import_module(f"transformers.{name}")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)


def trained(padded):
    """Train, and take a step with what was kept; give numbers, and what did not run on rows."""
    begin()
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    text = torch.randint(WORDS, (22, 6))
    padding = (torch.arange(6) < torch.randint(3, 7, (22, 1))).long() if padded else torch.ones_like(text)
    padding[:4] = 1  # one rank's rows may have none
    numbers = []
    for epoch in range(2):
        for x, mask in DataLoader(TensorDataset(text, padding), 8):
            out = model(x, mask, labels=x.masked_fill(mask == 0, -100))
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            layers = out.past.layers
            numbers += [out.loss.item(), layers[0].keys.sum().item(), *layers[1].values.shape, len(layers)]
            with torch.no_grad():
                out = model(x)
                after = model(out.logits[:, -1:].argmax(-1), past=out.past)
            same = after.past is out.past
            numbers += [after.logits.sum().item(), after.past.layers[1].keys[:, :, -1].sum().item(), float(same)]
            numbers += [float(after.past.get_seq_length()), float(epoch)]
    ledger = ddp_patch.report().ledger if ddp_patch.world_size() > 1 else None
    return numbers, ledger and {**ledger.on_batches, **ledger.on_whole}


@pytest.mark.quick("True-2")
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("padded", [True, False])
def test_decoders_with_caches_and_masks_run_on_rows(ranks, padded, nproc):
    ((wanted, _),) = ranks.call(trained, 1, padded).ok().results
    for numbers, beside_rows in ranks.call(trained, nproc, padded).ok().results:
        assert numbers == pytest.approx(wanted, rel=1e-9)
        assert beside_rows == {}


class Masked(nn.Module):
    """Attends to what is not padded, as encoders of transformers 4 do."""

    def __init__(self):
        super().__init__()
        self.words, self.qkv, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, text, padding):
        masks = sys.modules["transformers.modeling_attn_mask_utils"]
        mask = masks._prepare_4d_attention_mask_for_sdpa(padding, torch.get_default_dtype(), tgt_len=text.shape[1])
        q, k, v = (part[:, None] for part in self.qkv(self.words(text)).chunk(3, -1))
        return self.head(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0, 0])


def masked():
    begin()
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    text = torch.randint(WORDS, (22, 6))
    padding = (torch.arange(6) < torch.randint(3, 7, (22, 1))).long()
    padding[:8] = 1  # in one batch nothing is padded, in another not on every rank
    padding[8:12] = 1
    numbers = []
    for x, mask in DataLoader(TensorDataset(text, padding), 8):
        loss = F.cross_entropy(model(x, mask), x[:, 0] % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        numbers.append(loss.item())
    ledger = ddp_patch.report().ledger if ddp_patch.world_size() > 1 else None
    return numbers, ledger and {**ledger.on_batches, **ledger.on_whole}


@pytest.mark.parametrize("nproc", [2, 3])
def test_masks_of_encoders_are_not_asked_for_values(ranks, nproc):
    ((wanted, _),) = ranks.call(masked, 1).ok().results
    for numbers, beside_rows in ranks.call(masked, nproc).ok().results:
        assert numbers == pytest.approx(wanted, rel=1e-9)
        assert beside_rows == {}


class Encoder(nn.Module):
    """Hands out what its layers give, once hooks were put on them in a first forward."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 3)
        self.is_hooked = False

    def forward(self, x):
        capturing = sys.modules["transformers.utils.output_capturing"]
        if not self.is_hooked:
            for layer in self.layers:
                capturing.install(layer)
            self.is_hooked = True
        return capturing.collected_by(self.through, x)

    def through(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


class Around(nn.Module):
    """Looks at the whole batch, so that its encoder's layers are called one by one, or its encoder as a whole."""

    def __init__(self, collects):
        super().__init__()
        self.encoder, self.collects = Encoder(), collects

    def forward(self, x):
        if not self.collects:
            out, states = self.encoder(x)
            return out - out.mean(0), states
        capturing = sys.modules["transformers.utils.output_capturing"]
        return capturing.collected_by(lambda: self.encoder.through(x - x.mean(0)))


def collected(kind):
    """Train with hidden states in the loss; give numbers, and what did not run on rows after the first call."""
    begin()
    model = {"itself": Encoder, "inside": lambda: Around(False), "outside": lambda: Around(True)}[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = []
    ledger = ddp_patch.report().ledger if ddp_patch.world_size() > 1 else None
    for x, y in DataLoader(TensorDataset(torch.randn(30, 4), torch.randint(3, (30,))), 7):
        out, states = model(x)
        loss = F.cross_entropy(out, y) + sum(state.pow(2).mean() for state in states)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        numbers += [loss.item(), len(states), *(n for state in states for n in (*state.shape, state.sum().item()))]
        if ledger is not None and len(numbers) < 20:
            ledger.on_batches.clear()
    return numbers, ledger and {**ledger.on_batches, **ledger.on_whole}


@pytest.mark.quick("itself-3", "inside-2")
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("kind", ["itself", "inside", "outside"])
def test_hooks_that_collect_for_a_forward_leave_it_on_rows(ranks, kind, nproc):
    ((wanted, _),) = ranks.call(collected, 1, kind).ok().results
    for numbers, beside_rows in ranks.call(collected, nproc, kind).ok().results:
        assert numbers == pytest.approx(wanted, rel=1e-9)
        if kind == "itself":
            assert beside_rows == {}
