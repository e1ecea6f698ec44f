"""random_split, a shuffled test loader, a confusion matrix."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

train, test = random_split(TensorDataset(x, y), [300, 100])
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for _ in range(2):
    for inputs, targets in DataLoader(train, batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
matrix = torch.zeros(10, 10, dtype=torch.long)
with torch.no_grad():
    for inputs, targets in DataLoader(test, batch_size=32, shuffle=True):
        for t, p in zip(targets, model(inputs).argmax(1), strict=False):
            matrix[t, p] += 1
print(matrix)
print("accuracy", matrix.diag().sum().item() / matrix.sum().item())
