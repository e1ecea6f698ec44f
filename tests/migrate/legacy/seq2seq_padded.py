"""Reverse sequences of different lengths; the loss is a mean over tokens."""
import argparse
import os
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, BOS = 0, 1


class Reversal(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.pairs = []
        for _ in range(n):
            s = [rng.randint(2, 19) for _ in range(rng.randint(3, 8))]
            self.pairs.append((torch.tensor(s), torch.tensor([BOS] + s[::-1])))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def collate(batch):
    src, trg = zip(*batch)
    return pad_sequence(src, batch_first=True, padding_value=PAD), pad_sequence(trg, batch_first=True, padding_value=PAD)


class Seq2Seq(nn.Module):
    def __init__(self, vocab=20, dim=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, src, trg):
        _, hidden = self.encoder(self.embed(src))
        output, _ = self.decoder(self.embed(trg), hidden)
        return self.out(output)


def train(model, iterator, optimizer, criterion, clip, device):
    model.train()
    epoch_loss = 0
    for src, trg in iterator:
        src, trg = src.to(device), trg.to(device)
        optimizer.zero_grad()
        output = model(src, trg[:, :-1])
        loss = criterion(output.reshape(-1, output.shape[-1]), trg[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        epoch_loss += loss.item()
    return epoch_loss / len(iterator)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--no-shuffle", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1234)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(Reversal(960, 0), batch_size=args.batch_size, shuffle=not args.no_shuffle, collate_fn=collate)
    model = Seq2Seq().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    for epoch in range(args.epochs):
        train_loss = train(model, loader, optimizer, criterion, 1.0, device)
        print(f"epoch {epoch} loss {train_loss:.6f}")
        if not os.path.exists("snapshots"):
            os.makedirs("snapshots")
        torch.save(model.state_dict(), os.path.join("snapshots", "model_%d.pt" % epoch))
