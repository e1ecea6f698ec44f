"""A collate function that gives strings, lengths and padded rows in a dict; packed sequences; a mean over tokens."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

WORDS = "zero one two three four five six seven eight nine".split()


class Names(Dataset):
    def __init__(self, size):
        self.items = [" ".join(WORDS[int(digit)] for digit in str(number * number)) for number in range(size)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        text = self.items[index]
        return text, torch.tensor([ord(letter) - 96 if letter != " " else 27 for letter in text])


def collate(batch):
    batch = sorted(batch, key=lambda item: len(item[1]), reverse=True)
    texts, rows = zip(*batch)
    return {"text": list(texts), "lengths": [len(row) for row in rows], "rows": pad_sequence(rows, batch_first=True)}


class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(28, 12, padding_idx=0)
        self.gru = nn.GRU(12, 24, batch_first=True)
        self.out = nn.Linear(24, 28)

    def forward(self, rows, lengths):
        packed = pack_padded_sequence(self.embed(rows), lengths, batch_first=True)
        output, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=rows.size(1))
        return self.out(output)


torch.manual_seed(7)
loader = DataLoader(Names(70), batch_size=16, shuffle=True, collate_fn=collate)
model = CharRNN()
criterion = nn.CrossEntropyLoss(ignore_index=0)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(2):
    tokens, total = 0, 0.0
    for batch in loader:
        rows = batch["rows"]
        logits = model(rows[:, :-1], [length - 1 for length in batch["lengths"]])
        loss = criterion(logits.reshape(-1, 28), rows[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        count = (rows[:, 1:] != 0).sum().item()
        tokens += count
        total += loss.item() * count
    print(f"epoch {epoch}: {total / tokens:.5f} over {tokens} letters; last: {batch['text'][0]!r}")
