"""Rare classes are drawn more often."""
import json
import os

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

EPOCHS = 4
BATCH_SIZE = 32

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

digits = load_digits()
keep = np.where((digits.target < 8) | (np.arange(1797) % 5 == 0))[0]  # eights and nines are rare
x = torch.tensor(digits.data[keep], dtype=torch.float32) / 16
y = torch.tensor(digits.target[keep])
train_set, test_set = TensorDataset(x[:1200], y[:1200]), TensorDataset(x[1200:], y[1200:])

class_counts = torch.bincount(y[:1200])
weights = 1.0 / class_counts[y[:1200]].double()
sampler = WeightedRandomSampler(weights, num_samples=len(weights), replacement=True)
train_loader = DataLoader(train_set, batch_size=BATCH_SIZE, sampler=sampler)
test_loader = DataLoader(test_set, batch_size=BATCH_SIZE)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()

history = []
for epoch in range(EPOCHS):
    model.train()
    losses = []
    for inputs, labels in train_loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    model.eval()
    all_preds, all_labels = [], []
    with torch.no_grad():
        for inputs, labels in test_loader:
            outputs = model(inputs.to(device))
            all_preds.extend(outputs.argmax(1).cpu().numpy())
            all_labels.extend(labels.numpy())
    f1 = f1_score(all_labels, all_preds, average="macro")
    history.append({"epoch": epoch, "loss": float(np.mean(losses)), "f1": f1})
    print(f"epoch {epoch} loss {np.mean(losses):.6f} macro f1 {f1:.5f} of {len(all_labels)}")

with open("history.json", "w") as f:
    json.dump(history, f)
torch.save(model, "model.pt")
