"""A script that warns in every way; run with the filters that its first argument names."""

import sys
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

if sys.argv[1:] == ["always"]:
    warnings.simplefilter("always")
    warnings.simplefilter("ignore", ResourceWarning)  # of standard input, at the end


class Noisy(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if sys.argv[1:] != ["always"]:  # each rank reads its own rows
            warnings.warn("an item is read", stacklevel=2)
        return torch.full((4,), float(index)), torch.tensor(index % 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.soft = nn.Softmax()

    def forward(self, x):
        warnings.warn("forward was called", stacklevel=1)
        warnings.warn("for whoever calls the forward", stacklevel=4)
        return self.last(self.soft(torch.tanh(self.first(x))))


def helper():
    warnings.warn("for the caller", DeprecationWarning, stacklevel=2)
    warnings.warn("for the caller's caller", FutureWarning, stacklevel=3)


def calls_helper():
    helper()


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
nn.init.zeros_(torch.empty(0))
nn.init.kaiming_uniform_(torch.empty(0, 3))
nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 8), 1)
frozen = np.arange(3.0)
frozen.setflags(write=False)
torch.from_numpy(frozen)
torch.tensor(torch.ones(2))
torch.as_tensor(frozen)
for epoch in range(2):
    schedule.step()
    for x, y in DataLoader(Noisy(), 4):
        calls_helper()
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        float(loss)
        int(loss)
        loss.item()
        np.asarray(x)
        torch.tensor(loss)
        F.mse_loss(logits[:, :1], y.float())
        F.l1_loss(logits[:, :1], y.float())
        F.softmax(logits)
        F.kl_div(F.log_softmax(logits, 1), logits.softmax(1))
        F.dropout2d(logits)
        _ = logits.grad
        _ = loss.grad
        torch.nn.utils.clip_grad_norm(net.parameters(), 1.0)
        checkpoint(torch.sin, x)
        checkpoint(torch.sin, logits)
        _ = x.T.T
        _ = x[0].T
        _ = torch.arange(6).reshape(2, 3, 1).T
        torch.floor_divide(torch.ones(2), 2)
        torch.cross(torch.ones(3, 2), torch.ones(3, 2))
        torch.meshgrid(torch.ones(2), torch.ones(2))
        optimizer.zero_grad()
        loss.backward(create_graph=epoch == 1)
        optimizer.step()
torch.cuda.amp.autocast(enabled=False)
torch.cuda.amp.GradScaler(enabled=False)
DataLoader(Noisy(), 4, num_workers=100)
nn.DataParallel(nn.Linear(2, 2))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.tensor(torch.ones(1))
    torch.meshgrid(torch.ones(2), torch.ones(2))
    calls_helper()
print([(str(w.message)[:40], w.category.__name__, w.filename == __file__, w.lineno) for w in caught])
for filters in ({"category": UserWarning}, {"module": "__main__"}, {"module": "torch"}, {"module": "ddp_patch"}):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", **filters)
        for action in (lambda: torch.tensor(torch.ones(3)), lambda: torch.as_tensor(frozen), calls_helper):
            try:
                action()
                print("passed")
            except Warning as error:
                print(type(error).__name__, str(error)[:40])
print(len(warnings.filters), sorted(str(key[0])[:30] for key in __warningregistry__ if key != "version"))
