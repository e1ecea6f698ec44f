"""A small classifier as people write it, in one process."""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
wine = load_wine()
x = torch.tensor((wine.data - wine.data.mean(0)) / wine.data.std(0)).float()
y = torch.tensor(wine.target)
rows = torch.randperm(len(x))
train_set = TensorDataset(x[rows[:128]], y[rows[:128]])
test_x, test_y = x[rows[128:]], y[rows[128:]]
loader = DataLoader(train_set, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(13, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
best = 0.0
for epoch in range(3):
    model.train()
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    print(f"epoch {epoch} accuracy {accuracy:.4f}")
    if accuracy >= best:
        best = accuracy
        torch.save({"epoch": epoch, "model": model.state_dict(), "best": best}, "best.pt")
