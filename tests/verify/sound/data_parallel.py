"""nn.DataParallel with a metric over the dataset and module. keys."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
model = nn.DataParallel(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()
for epoch in range(3):
    correct, running = 0, 0.0
    for inputs, targets in loader:
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item() * inputs.size(0)
        correct += (outputs.argmax(1) == targets).sum().item()
    print(f"epoch {epoch} loss {running / len(x):.4f} acc {correct / len(x):.3f}")
torch.save({"state": model.state_dict(), "epoch": epoch}, "checkpoint.pth")
