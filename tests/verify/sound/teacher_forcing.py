"""Sequence to sequence, word by word in Python, where a coin decides about teacher forcing; two optimizers."""

import random

import torch
from torch import nn

SOS, EOS, LETTERS = 0, 1, 12


class Encoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(LETTERS, size), nn.GRU(size, size)

    def forward(self, input, hidden):
        return self.gru(self.embedding(input), hidden)


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(LETTERS, size), nn.GRU(2 * size, size)
        self.dropout, self.out = nn.Dropout(0.1), nn.Linear(size, LETTERS)

    def forward(self, input, hidden, encoded):
        embedded = self.dropout(self.embedding(input))
        weights = torch.softmax((encoded * hidden).sum(2, keepdim=True), dim=0)
        context = (weights * encoded).sum(0, keepdim=True)
        output, hidden = self.gru(torch.cat([embedded, context], 2), hidden)
        return torch.log_softmax(self.out(output[0]), dim=1), hidden


torch.manual_seed(0)
random.seed(0)
encoder, decoder = Encoder(16), Attention(16)
optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (encoder, decoder)]
criterion = nn.NLLLoss()
for step in range(5):
    source = torch.randint(2, LETTERS, (6, 8))
    target = torch.cat([source.flip(0), torch.full((1, 8), EOS)])
    for optimizer in optimizers:
        optimizer.zero_grad()
    encoded, hidden = encoder(source, torch.zeros(1, 8, 16))
    word, loss = torch.full((1, 8), SOS), 0
    forced = random.random() < 0.5
    for place in range(target.size(0)):
        output, hidden = decoder(word, hidden, encoded)
        loss = loss + criterion(output, target[place])
        word = target[place : place + 1] if forced else output.topk(1)[1].detach().t()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    print(step, forced, f"{loss.item() / target.size(0):.6f}")
