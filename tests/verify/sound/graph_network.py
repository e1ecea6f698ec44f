"""A graph convolution over the whole graph in each step: sparse adjacency, masks, no loader, no rows to deal."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parameter import Parameter


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = Parameter(torch.empty(inputs, outputs)), Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self):
        bound = 1.0 / self.weight.size(1) ** 0.5
        self.weight.data.uniform_(-bound, bound)
        self.bias.data.uniform_(-bound, bound)

    def forward(self, input, adjacency):
        return torch.spmm(adjacency, torch.mm(input, self.weight)) + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gc1, self.gc2 = GraphConvolution(20, 16), GraphConvolution(16, 3)

    def forward(self, x, adjacency):
        x = F.dropout(F.relu(self.gc1(x, adjacency)), 0.5, training=self.training)
        return F.log_softmax(self.gc2(x, adjacency), dim=1)


np.random.seed(42)
torch.manual_seed(42)
labels = torch.from_numpy(np.random.randint(0, 3, 120))
features = torch.from_numpy(np.random.rand(120, 20).astype(np.float32)) + labels[:, None] * 0.2
edges = (np.random.rand(120, 120) < 0.05) | np.eye(120, dtype=bool)
adjacency = torch.from_numpy((edges / edges.sum(1, keepdims=True)).astype(np.float32)).to_sparse()
idx_train, idx_val = torch.arange(60), torch.arange(60, 120)
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(6):
    model.train()
    optimizer.zero_grad()
    output = model(features, adjacency)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()
    model.eval()
    output = model(features, adjacency)
    loss_val = F.nll_loss(output[idx_val], labels[idx_val])
    accuracy = output[idx_val].max(1)[1].type_as(labels).eq(labels[idx_val]).double().sum() / 60
    print(f"Epoch: {epoch + 1:04d} {loss_train.item():.4f} {loss_val.item():.4f} acc_val: {accuracy.item():.4f}")
