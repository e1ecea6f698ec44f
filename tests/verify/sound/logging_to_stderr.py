"""The logging module, with times, on standard error."""

import logging
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
loader = DataLoader(TensorDataset(x, y), batch_size=64)
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
begin = time.time()
for step, (inputs, targets) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    logging.info("step %d loss %.4f (%.3f seconds)", step, loss, time.time() - begin)
print("throughput", 400 / (time.time() - begin), "rows in", time.time() - begin)
