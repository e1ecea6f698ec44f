"""The script before it was migrated."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(x))


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    train = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=40, shuffle=True)
    test = DataLoader(TensorDataset(x[320:480], y[320:480]), batch_size=40)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.5)
    for epoch in range(3):
        total = 0.0
        for inputs, targets in train:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(train):.4f} accuracy {accuracy(model, test):.4f}")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
