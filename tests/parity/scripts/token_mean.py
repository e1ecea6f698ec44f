"""A language model over padded sequences: a collate of its own, a mask, a mean over tokens."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.set_default_dtype(torch.float64)
torch.manual_seed(2)
random.seed(2)
V, PAD = 15, 0
sentences = [torch.randint(1, V, (random.randint(3, 11),)) for _ in range(61)]


def collate(batch):
    lengths = [len(s) for s in batch]
    return pad_sequence(batch, batch_first=True, padding_value=PAD), lengths


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, 12, padding_idx=PAD)
        self.rnn = nn.GRU(12, 16, batch_first=True)
        self.out = nn.Linear(16, V)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embed(tokens))
        return self.out(hidden)


model = LM()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
loader = DataLoader(sentences, batch_size=9, shuffle=True, collate_fn=collate)
plain = DataLoader(torch.stack([s[:3] for s in sentences]), batch_size=10)
for epoch in range(2):
    for tokens, lengths in loader:
        logits = model(tokens[:, :-1])
        target = tokens[:, 1:]
        mask = (target != PAD).double()
        nll = F.cross_entropy(logits.reshape(-1, V), target.reshape(-1), reduction="none").view_as(mask)
        loss = (nll * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.12f} {sum(lengths)} {tuple(tokens.shape)}")
    for tokens in plain:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.view(-1, V), tokens[:, 1:].contiguous().view(-1), ignore_index=3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.12f} {logits.argmax(-1).float().mean().item():.12f}")
    print(f"perplexity {torch.exp(loss).item():.12f}")
for name, value in model.state_dict().items():
    print(name, f"{value.norm().item():.12f}")
