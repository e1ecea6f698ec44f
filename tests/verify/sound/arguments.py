# verify: --nproc 3
"""argparse, and a config written as JSON."""

import argparse
import json

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
print(args)
with open("config.json", "w") as f:
    json.dump(vars(args), f)
torch.manual_seed(3)
x = torch.randn(100, 5)
y = x @ torch.randn(5, 1) + 0.1 * torch.randn(100, 1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Linear(5, 1)
optimizer = torch.optim.RMSprop(model.parameters(), lr=args.lr)
for epoch in range(args.epochs):
    losses = []
    for a, b in data:
        loss = nn.MSELoss()(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"Epoch: {epoch:03d} MSE: {sum(losses) / len(losses):.6f}")
