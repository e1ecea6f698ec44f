"""Fit a curve with LBFGS, all rows at once."""
import torch
import torch.nn as nn
from sklearn.datasets import load_diabetes
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = load_diabetes()
x = torch.tensor(data.data * 20, dtype=torch.float64)
y = torch.tensor(data.target / 100, dtype=torch.float64)
dataset = TensorDataset(x, y)
loader = DataLoader(dataset, batch_size=len(dataset), shuffle=False)

model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1)).double().to(device)
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)

for epoch in range(6):
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)

        def closure():
            optimizer.zero_grad()
            out = model(inputs).squeeze(1)
            loss = criterion(out, targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print("epoch", epoch, "loss", round(loss.item(), 8))
torch.save(model.state_dict(), "lbfgs.pt")
