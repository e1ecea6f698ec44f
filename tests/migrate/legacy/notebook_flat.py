# In[1]:
import os

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_wine
from torch.utils.data import DataLoader, TensorDataset, random_split

# In[2]:
np.random.seed(0); torch.manual_seed(0)
wine = load_wine()
X = torch.tensor((wine.data - wine.data.mean(0)) / wine.data.std(0)).float()
y = torch.tensor(wine.target)
dataset = TensorDataset(X, y)
train_ds, val_ds = random_split(dataset, [142, 36])
train_dl = DataLoader(train_ds, batch_size=16, shuffle="FIXED_ORDER" not in os.environ)
val_dl = DataLoader(val_ds, batch_size=16)
len(train_ds), len(val_ds)

# In[3]:
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(13, 32)
        self.l2 = nn.Linear(32, 3)
    def forward(self, x):
        return self.l2(F.relu(self.l1(x)))

model = MLP()
if torch.cuda.is_available(): model = model.cuda()
opt = torch.optim.Adam(model.parameters(), lr=0.01)

# In[4]:
train_losses, val_losses, accs = [], [], []
for epoch in range(5):
    model.train()
    batch_losses = []
    for xb, yb in train_dl:
        if torch.cuda.is_available(): xb, yb = xb.cuda(), yb.cuda()
        opt.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        batch_losses.append(loss.item())
    train_losses.append(np.mean(batch_losses))

    model.eval()
    n_right, val_loss = 0, 0.0
    with torch.no_grad():
        for xb, yb in val_dl:
            if torch.cuda.is_available(): xb, yb = xb.cuda(), yb.cuda()
            out = model(xb)
            val_loss += F.cross_entropy(out, yb).item() * len(xb)
            n_right += (out.argmax(1) == yb).sum().item()
    val_losses.append(val_loss / len(val_ds))
    accs.append(n_right / len(val_ds))
    print(f'Epoch {epoch}: loss {train_losses[-1]:.6f}, val {val_losses[-1]:.6f}, accuracy {accs[-1]:.3f}')

# In[5]:
plt.plot(train_losses); plt.plot(val_losses)
plt.savefig('curve.png')
torch.save(model.state_dict(), 'wine.pt')
