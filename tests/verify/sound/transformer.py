"""A transformer encoder with attention dropout."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
model = nn.ModuleDict({"embed": nn.Linear(8, 16), "encoder": nn.TransformerEncoder(layer, 1), "out": nn.Linear(16, 10)})


class Net(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        return self.parts["out"](self.parts["encoder"](self.parts["embed"](x)).mean(1))


net = Net(model)
loader = DataLoader(TensorDataset(x.view(-1, 8, 8), y), batch_size=50, shuffle=True)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for inputs, targets in loader:
    loss = nn.functional.cross_entropy(net(inputs), targets, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.4f}")
