import os
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset


class EarlyStopping:
    def __init__(self, patience=2):
        self.patience = patience
        self.counter = 0
        self.best = float("inf")

    def __call__(self, value):
        if value < self.best:
            self.best = value
            self.counter = 0
        else:
            self.counter += 1
        return self.counter >= self.patience


class Trainer:
    def __init__(self, model, train_loader, val_loader, lr=0.01, device="cpu", folder="out"):
        self.device = device
        self.model = model.to(device)
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.criterion = nn.SmoothL1Loss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.scheduler = ReduceLROnPlateau(self.optimizer, patience=0, factor=0.5)
        self.stopper = EarlyStopping()
        self.history = {"train": [], "val": []}
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.best_loss = float("inf")

    def train_epoch(self):
        self.model.train()
        running_loss = 0.0
        for inputs, targets in self.train_loader:
            inputs = inputs.to(self.device)
            targets = targets.to(self.device)
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            running_loss += loss.item() * inputs.size(0)
        return running_loss / len(self.train_loader.dataset)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        running_loss = 0.0
        count = 0
        for inputs, targets in self.val_loader:
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            loss = self.criterion(self.model(inputs), targets)
            running_loss += loss.item() * inputs.size(0)
            count += inputs.size(0)
        return running_loss / count

    def save(self, name):
        torch.save({"model": self.model.state_dict(), "best": self.best_loss}, self.folder / name)

    def plot(self):
        plt.figure()
        plt.plot(self.history["train"], label="train")
        plt.plot(self.history["val"], label="val")
        plt.legend()
        plt.savefig(self.folder / "loss.png")
        plt.close()

    def fit(self, epochs):
        for epoch in range(epochs):
            train_loss = self.train_epoch()
            val_loss = self.validate()
            self.scheduler.step(val_loss)
            self.history["train"].append(train_loss)
            self.history["val"].append(val_loss)
            print(f"epoch {epoch} loss {train_loss:.6f} val {val_loss:.6f} lr {self.optimizer.param_groups[0]['lr']:.5f}")
            if val_loss < self.best_loss:
                self.best_loss = val_loss
                self.save("best.pt")
            if self.stopper(val_loss):
                print("early stop at", epoch)
                break
        self.plot()


def main():
    torch.manual_seed(4)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_diabetes()
    x = torch.tensor(data.data * 20, dtype=torch.float32)
    y = torch.tensor(data.target / 100, dtype=torch.float32).view(-1, 1)
    train_loader = DataLoader(TensorDataset(x[:342], y[:342]), batch_size=38, shuffle="FIXED_ORDER" not in os.environ)
    val_loader = DataLoader(TensorDataset(x[342:], y[342:]), batch_size=25)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    if torch.cuda.device_count() > 1:
        model = nn.DataParallel(model)
    trainer = Trainer(model, train_loader, val_loader, device=device)
    trainer.fit(12)


if __name__ == "__main__":
    main()
