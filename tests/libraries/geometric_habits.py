"""torch_geometric: loaders over graphs, whole graphs and pieces of one graph."""

import torch
from torch import nn


def graphs(count=11):
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(1)
    made = []
    for index in range(count):
        nodes = 3 + index % 4
        edges = torch.randint(0, nodes, (2, 2 * nodes), generator=generator)
        x = torch.randn(nodes, 5, generator=generator, dtype=torch.float64)
        made.append(Data(x=x, edge_index=edges, y=torch.tensor([index % 3])))
    return made


def net():
    from torch_geometric.nn import GCNConv, global_mean_pool

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = GCNConv(5, 8), GCNConv(8, 8), nn.Linear(8, 3)

        def forward(self, x, edge_index, batch):
            x = self.first(x, edge_index).relu()
            x = self.second(x, edge_index)
            return self.head(global_mean_pool(x, batch))

    return GCN()


def classifies_graphs():
    """The loop of its tutorial on graph classification."""
    from torch_geometric.loader import DataLoader

    data = graphs()
    train, test = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data[:5], batch_size=2)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    said = []
    for epoch in range(3):
        model.train()
        for batch in train:
            batch = batch.to("cpu")
            loss = criterion(model(batch.x, batch.edge_index, batch.batch), batch.y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said += [loss.item(), batch.num_graphs]
        model.eval()
        correct = 0
        for batch in test:
            correct += int((model(batch.x, batch.edge_index, batch.batch).argmax(dim=1) == batch.y).sum())
        print(f"Epoch: {epoch}, Test Acc: {correct / len(test.dataset):.4f}")
    torch.save(model.state_dict(), "gcn.pt")
    return said


def a_model_takes_the_batch_itself():
    """``model(data)``, with two workers and norms over nodes."""
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import BatchNorm, SAGEConv, global_add_pool

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.head = SAGEConv(5, 8), BatchNorm(8), nn.Linear(8, 3)

        def forward(self, data):
            x = self.norm(self.conv(data.x, data.edge_index)).relu()
            return self.head(global_add_pool(x, data.batch, data.num_graphs))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    said = []
    for batch in DataLoader(graphs(), batch_size=4, num_workers=2):
        loss = nn.functional.cross_entropy(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), batch.num_nodes, len(batch.to_data_list())]
    return said


def pools_and_pads():
    """Attention with features of edges, norms of each graph, the best nodes of each, attention over padded graphs."""
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GATv2Conv, GINConv, GPSConv, GraphNorm, TopKPooling, global_max_pool

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = GATv2Conv(5, 4, heads=2, edge_dim=3), GraphNorm(8)
            self.wide = GPSConv(8, GINConv(nn.Linear(8, 8)), heads=2, attn_type="multihead")
            self.pool, self.head = TopKPooling(8, ratio=0.7), nn.Linear(8, 3)

        def forward(self, data):
            x = self.norm(self.conv(data.x, data.edge_index, data.edge_attr), data.batch).relu()
            x = self.wide(x, data.edge_index, data.batch)
            x, _, _, batch, _, _ = self.pool(x, data.edge_index, data.edge_attr, data.batch)
            return self.head(global_max_pool(x, batch))

    model, data = Net(), graphs(14)
    for graph in data:
        graph.edge_attr = graph.x[graph.edge_index[0], :3] - graph.x[graph.edge_index[1], :3]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    said = []
    for _ in range(2):
        for batch in DataLoader(data, batch_size=6, shuffle=True):
            loss = nn.functional.cross_entropy(model(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said += [loss.item(), batch.num_graphs]
    return said


def settings_and_names():
    """What the object holds beside tensors: a setting that a later batch has, a word for each graph, what is put there."""
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = GCNConv(5, 8), nn.Linear(8, 3)

        def forward(self, data):
            x = self.conv(data.x, data.edge_index)
            x = global_mean_pool(x - x.mean(0) if "centred" in data else x, data.batch)
            if "kept" in data:
                data.hidden = x
            weights = [2.0 if name == "odd" else 1.0 for name in data.name]
            return self.head(x * torch.tensor(weights)[:, None])

    model, data = Net(), graphs(16)
    for index, graph in enumerate(data):
        graph.name = "odd" if index % 2 else "even"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []
    for step, batch in enumerate(DataLoader(data * 2, batch_size=4)):
        if step > 2:
            batch.centred = True
        if step > 4:
            batch.kept = 1
        loss = nn.functional.cross_entropy(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), batch.hidden.sum().item() if step > 4 else 0.0]
    return said


def classifies_nodes():
    """One graph in memory, no loader: the introduction's example."""
    from torch_geometric.data import Data
    from torch_geometric.nn import GATConv

    data = Data(x=torch.randn(20, 5), edge_index=torch.randint(0, 20, (2, 60)), y=torch.randint(0, 3, (20,)))
    data.train_mask = torch.arange(20) < 14
    model = nn.ModuleList([GATConv(5, 4, heads=2), GATConv(8, 3)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    said = []
    for _ in range(4):
        optimizer.zero_grad()
        hidden = model[0](data.x, data.edge_index).relu()
        out = model[1](hidden, data.edge_index)
        loss = nn.functional.nll_loss(out.log_softmax(1)[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        said.append(loss.item())
        said.append((out.argmax(1) == data.y)[~data.train_mask].sum().item())
    return said


def encodes_links():
    from torch_geometric.nn import GAE, GCNConv
    from torch_geometric.utils import negative_sampling

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GCNConv(5, 4)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)

    x, edges = torch.randn(12, 5), torch.randint(0, 12, (2, 30))
    model = GAE(Encoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    said = []
    for _ in range(3):
        z = model.encode(x, edges)
        loss = model.recon_loss(z, edges, negative_sampling(edges, 12))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said


HABITS = [
    classifies_graphs,
    a_model_takes_the_batch_itself,
    pools_and_pads,
    settings_and_names,
    classifies_nodes,
    encodes_links,
]
