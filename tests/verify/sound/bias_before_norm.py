"""A convolution's bias before BatchNorm: its gradient is nothing but rounding, and Adam makes full steps of it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
images = torch.randn(96, 1, 16, 16) * 8 + 40
labels = torch.randint(0, 5, (96,))
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
    nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 5),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss(reduction="sum")
for epoch in range(2):
    total = 0.0
    for x, y in DataLoader(TensorDataset(images, labels), 32, shuffle=True):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(images):.4f}")
