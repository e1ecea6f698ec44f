"""In-batch negatives: a loss over the whole batch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for epoch in range(2):
    for inputs, _ in loader:
        a = nn.functional.normalize(encoder(inputs + 0.1 * torch.randn_like(inputs)), dim=1)
        b = nn.functional.normalize(encoder(inputs), dim=1)
        logits = a @ b.t() / 0.1
        loss = nn.functional.cross_entropy(logits, torch.arange(len(inputs)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{epoch} {loss.item():.5f}")
