"""A small CNN with BatchNorm, evaluated after each epoch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

x = x.view(-1, 1, 8, 8)
train = DataLoader(TensorDataset(x[:300], y[:300]), batch_size=40, shuffle=True)
test = DataLoader(TensorDataset(x[300:], y[300:]), batch_size=50)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.bn(self.conv(x))), 2)
        return self.fc(x.flatten(1))


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for epoch in range(2):
    net.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), targets)
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        hits = sum((net(a).argmax(1) == b).sum().item() for a, b in test)
    print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {hits}/{len(test.dataset)}")
torch.save(net, "net.pt")
