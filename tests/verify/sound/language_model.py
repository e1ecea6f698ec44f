"""Text in columns, hidden states carried from batch to batch and detached, gradient clipping, an annealed rate."""

import math

import torch
from torch import nn

TEXT = ("the quick brown fox jumps over the lazy dog and runs away from the old grey wolf . " * 40).split()


class RNNModel(nn.Module):
    def __init__(self, tokens, width, layers):
        super().__init__()
        self.encoder = nn.Embedding(tokens, width)
        self.rnn = nn.LSTM(width, width, layers)
        self.decoder = nn.Linear(width, tokens)
        self.decoder.weight = self.encoder.weight
        self.width, self.layers = width, layers

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        decoded = self.decoder(output)
        return nn.functional.log_softmax(decoded.view(-1, decoded.size(2)), dim=1), hidden

    def init_hidden(self, size):
        weight = next(self.parameters())
        return weight.new_zeros(self.layers, size, self.width), weight.new_zeros(self.layers, size, self.width)


def batchify(data, size):
    steps = data.size(0) // size
    return data.narrow(0, 0, steps * size).view(size, -1).t().contiguous()


def repackage_hidden(hidden):
    return tuple(h.detach() for h in hidden)


def get_batch(source, i, bptt=8):
    length = min(bptt, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


torch.manual_seed(1111)
words = sorted(set(TEXT))
corpus = torch.tensor([words.index(word) for word in TEXT])
train_data, val_data = batchify(corpus[:600], 10), batchify(corpus[600:], 4)
model, criterion = RNNModel(len(words), 16, 2), nn.NLLLoss()
lr, best_val_loss = 5.0, None
for epoch in range(1, 3):
    model.train()
    total, hidden = 0.0, model.init_hidden(10)
    for i in range(0, train_data.size(0) - 1, 8):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
    model.eval()
    val_loss, hidden = 0.0, model.init_hidden(4)
    with torch.no_grad():
        for i in range(0, val_data.size(0) - 1, 8):
            data, targets = get_batch(val_data, i)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            val_loss += len(data) * criterion(output, targets).item()
    val_loss /= len(val_data) - 1
    print(f"| end of epoch {epoch:3d} | lr {lr:.2f} | loss {total:5.2f} | valid ppl {math.exp(val_loss):8.2f}")
    if not best_val_loss or val_loss < best_val_loss:
        with open("model.pt", "wb") as f:
            torch.save(model.state_dict(), f)
        best_val_loss = val_loss
    else:
        lr /= 4.0
