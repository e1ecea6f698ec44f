"""Prints tensors, batches and predictions."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

loader = DataLoader(TensorDataset(x, y), batch_size=6)
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (inputs, targets) in enumerate(loader):
    out = model(inputs)
    loss = nn.functional.nll_loss(torch.log_softmax(out, 1), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("targets", targets.tolist(), "predicted", out.argmax(1).numpy(), loss)
    if step == 3:
        break
print(out.shape, out.detach().softmax(1).max(1))
