"""Batches of graphs, many small ones as a large one: nodes, edges that join them, and of which graph each node is."""

import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.gradient_habits import descend, everything
from torch.optim import SGD
from torch.utils.data import DataLoader


def graphs(count=22, edges_each=2, constant=False, alike=0):
    """Make some, of 3 to 6 nodes; the first of them of 4, if those are to be alike."""
    drawn = torch.Generator().manual_seed(5)
    made = []
    for index in range(count):
        nodes = 4 if index < alike else 3 + index % 4
        edges = torch.randint(0, nodes, (2, edges_each * nodes + index % 3 * (index >= alike)), generator=drawn)
        x = torch.ones(nodes, 4) if constant else torch.randn(nodes, 4, generator=drawn)
        weight = torch.rand(edges.shape[1], generator=drawn)
        made.append((x, edges, weight, torch.randn(1, 2, generator=drawn), torch.tensor([index % 3])))
    return made


def collate(some):
    """What torch_geometric's loader does."""
    sizes = [len(x) for x, *_ in some]
    starts = [sum(sizes[:index]) for index in range(len(some))]
    x, weight, u, y = (torch.cat([graph[place] for graph in some]) for place in (0, 2, 3, 4))
    edge_index = torch.cat([graph[1] + start for graph, start in zip(some, starts, strict=True)], 1)
    return x, edge_index, torch.repeat_interleave(torch.tensor(sizes)), weight, u, y


def summed(x, index, count):
    return x.new_zeros(count, *x.shape[1:]).index_add_(0, index, x)


def averaged(x, index, count):
    counts = summed(torch.ones(len(x)), index, count).clamp(min=1)
    return summed(x, index, count) / counts[:, None]


class Convolution(nn.Module):
    """Adds up what comes over edges, by the degrees of both ends, with a loop at each node (Kipf and Welling 2017)."""

    def __init__(self, size, out):
        super().__init__()
        self.linear = nn.Linear(size, out)

    def forward(self, x, edge_index, weight=None):
        loops = torch.arange(len(x)).expand(2, -1)
        source, target = torch.cat([edge_index, loops], 1)
        weight = torch.ones(edge_index.shape[1]) if weight is None else weight
        weight = torch.cat([weight, torch.ones(len(x))])
        degrees = summed(weight, target, len(x)).rsqrt()
        return summed(self.linear(x)[source] * (degrees[source] * weight * degrees[target])[:, None], target, len(x))


class Attention(nn.Module):
    """A softmax over the edges that come to a node (Velickovic et al. 2018)."""

    def __init__(self, size, out):
        super().__init__()
        self.linear, self.score = nn.Linear(size, out), nn.Parameter(torch.linspace(-1, 1, 2 * out))

    def forward(self, x, edge_index):
        h, (source, target) = self.linear(x), edge_index
        scores = F.leaky_relu(torch.cat([h[source], h[target]], 1) @ self.score)
        most = scores.new_full((len(x),), -torch.inf).scatter_reduce(0, target, scores.detach(), "amax")
        parts = (scores - most[target]).exp()
        return summed(h[source] * (parts / summed(parts, target, len(x))[target])[:, None], target, len(x))


class Net(nn.Module):
    def __init__(self, how, kind=Convolution):
        super().__init__()
        self.first, self.second, self.head, self.how = kind(4, 6), kind(6, 6), nn.Linear(6, 3), how
        self.norm, self.edges, self.factor = nn.BatchNorm1d(6), nn.Linear(13, 1), 0.0
        self.table, self.mixture = nn.Embedding(64, 6), nn.Parameter(torch.tensor([1.0, 0.0]))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, *args, **kwargs):
        return self.how(self, *args, **kwargs)

    def nodes(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def trained(
    how, call=None, loss=None, kind=Convolution, epochs=3, batch_size=5, later=None, collated=collate, **kwargs
):
    """Train it to tell the class of each graph, and evaluate it."""
    model = Net(how, kind)
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    call = call or (lambda model, x, edge_index, batch, weight, u: model(x, edge_index, batch))
    loss = loss or (lambda out, y, batch: F.cross_entropy(out, y))
    loader = DataLoader(graphs(**kwargs), batch_size, collate_fn=collated, shuffle="alike" not in kwargs)
    said = []
    for epoch in range(epochs):
        if later is not None and epoch == 1:
            later(model)
        for x, edge_index, batch, weight, u, y in loader:
            out = call(model, x, edge_index, batch, weight, u)
            said.append(float(descend(loss(out, y, batch), optimizer)))
    model.eval()
    with torch.no_grad():
        for x, edge_index, batch, weight, u, _ in DataLoader(graphs(**kwargs), 3, collate_fn=collated):
            out = call(model, x, edge_index, batch, weight, u)
            said.append(float((out[0] if isinstance(out, tuple) else out).double().sum()))
    return said + everything(model, optimizer)


def of_graphs(net, x, edge_index, batch):
    h = net.nodes(x, edge_index)
    return net.head(averaged(h, batch, int(batch.max()) + 1))


def convolutions():
    return trained(of_graphs)


def attention_over_edges():
    return trained(of_graphs, kind=Attention)


def norms_of_nodes():
    def how(net, x, edge_index, batch):
        h = net.second(net.norm(net.first(x, edge_index)).relu(), edge_index)
        return net.head(summed(h, batch, int(batch[-1]) + 1))

    return trained(how)


def norms_of_each_graph():
    def how(net, x, edge_index, batch):
        h, count = net.first(x, edge_index), int(batch.max()) + 1
        h = h - averaged(h, batch, count)[batch]
        h = h / (averaged(h**2, batch, count)[batch] + 1e-5).sqrt()
        return net.head(averaged(net.second(h, edge_index), batch, count))

    return trained(how)


def a_class_for_each_node():
    return trained(
        lambda net, x, edge_index, batch: net.head(net.nodes(x, edge_index)),
        loss=lambda out, y, batch: F.cross_entropy(out, y[batch]),
    )


def a_number_for_each_edge():
    def how(net, x, edge_index, batch, weight):
        h = net.nodes(x, edge_index)
        return net.edges(torch.cat([h[edge_index[0]], h[edge_index[1]], weight[:, None]], 1)).squeeze(1)

    return trained(
        how,
        lambda model, x, edge_index, batch, weight, u: model(x, edge_index, batch, weight=weight),
        lambda out, y, batch: (out - 0.5).square().mean(),
    )


def weights_of_edges():
    def how(net, x, edge_index, batch, weight):
        h = net.second(net.first(x, edge_index, weight).relu(), edge_index, weight)
        return net.head(averaged(h, batch, int(batch.max()) + 1))

    return trained(how, lambda model, x, edge_index, batch, weight, u: model(x, edge_index, batch, weight))


def features_of_graphs():
    def how(net, x, edge_index, batch, u):
        h = net.nodes(torch.cat([x[:, :2], u[batch]], 1), edge_index)
        return net.head(averaged(h, batch, len(u)))

    return trained(how, lambda model, x, edge_index, batch, weight, u: model(x, edge_index, batch, u))


def the_best_nodes_of_each_graph():
    def how(net, x, edge_index, batch):
        h = net.first(x, edge_index)
        score = h.mean(1).tanh()
        order = torch.argsort(score + 4.0 * (int(batch.max()) - batch), descending=True)
        starts = F.pad(torch.bincount(batch).cumsum(0), (1, 0))[:-1]
        kept = order[(torch.arange(len(x)) - starts[batch]) < 2]  # two of each
        return net.head(averaged(h[kept] * score[kept, None], batch[kept], int(batch.max()) + 1))

    return trained(how)


def a_mean_of_all_nodes():
    def how(net, x, edge_index, batch):
        h = net.nodes(x, edge_index)
        return net.head(averaged(h - h.mean(0), batch, int(batch.max()) + 1))

    return trained(how)


def a_mean_of_nodes_that_begin_alike():
    def how(net, x, edge_index, batch):
        x = x - x.mean(0)
        return net.head(averaged(net.first(x, edge_index), batch, int(batch.max()) + 1))

    return trained(how, constant=True)


def a_penalty_beside():
    def how(net, x, edge_index, batch):
        h = net.nodes(x, edge_index)
        return net.head(averaged(h, batch, int(batch.max()) + 1)), h.square().mean()

    return trained(how, loss=lambda out, y, batch: F.cross_entropy(out[0], y) + 0.1 * out[1])


def a_penalty_that_is_raised():
    def how(net, x, edge_index, batch):
        h = net.nodes(x, edge_index)
        return net.head(averaged(h + net.factor * h.mean(0), batch, int(batch.max()) + 1))

    return trained(how, later=lambda model: setattr(model, "factor", 0.5))


def the_number_of_nodes_divides():
    def how(net, x, edge_index, batch):
        h = net.nodes(x, edge_index)
        return net.head(summed(h, batch, int(batch.max()) + 1) / x.size(0))

    return trained(how)


def nodes_are_numbered():
    def how(net, x, edge_index, batch):
        h = net.first(x, edge_index) + net.table(torch.arange(len(x)))
        return net.head(averaged(h, batch, int(batch.max()) + 1))

    return trained(how)


def more_graphs_than_some():
    def how(net, x, edge_index, batch):
        h, count = net.nodes(x, edge_index), int(batch.max()) + 1
        return net.head(averaged(h * (2.0 if count > 3 else 1.0), batch, count))

    return trained(how)


def features_written_to():
    def how(net, x, edge_index, batch):
        return net.head(averaged(net.nodes(x.mul_(0.5), edge_index), batch, int(batch.max()) + 1))

    def call(model, x, edge_index, batch, weight, u):
        return model(x, edge_index, batch) + x.sum()

    return trained(how, call)


def a_gradient_of_features():
    def call(model, x, edge_index, batch, weight, u):
        x.requires_grad_()
        out = model(x, edge_index, batch)
        (slope,) = (
            torch.autograd.grad(out.sum(), x, create_graph=torch.is_grad_enabled()) if out.requires_grad else (x,)
        )
        return out + 0.1 * averaged(slope[:, :3], batch, int(batch.max()) + 1)

    return trained(of_graphs, call)


def a_vector_comes_back():
    def how(net, x, edge_index, batch):
        return of_graphs(net, x, edge_index, batch), batch

    return trained(how, loss=lambda out, y, batch: F.cross_entropy(out[0], y) + out[1].double().mean() * 0)


def edges_in_any_order():
    def collated(some):
        x, edge_index, batch, weight, u, y = collate(some)
        order = torch.arange(edge_index.shape[1] - 1, -1, -1)
        return x, edge_index[:, order], batch, weight[order], u, y

    return trained(of_graphs, collated=collated)


def as_many_edges_as_nodes():
    """Of some batches, so that sizes do not tell which is which."""

    def how(net, x, edge_index, batch, weight):
        h = net.first(x, edge_index, weight)
        return net.head(averaged(h, batch, int(batch.max()) + 1))

    def call(model, x, edge_index, batch, weight, u):
        return model(x, edge_index, batch, weight)

    return trained(how, call, edges_each=1, count=12, batch_size=2)


def one_graph_alone():
    return trained(of_graphs, batch_size=1, count=4)


def a_loss_inside():
    def how(net, x, edge_index, batch, y=None):
        out = of_graphs(net, x, edge_index, batch)
        return out if y is None else F.cross_entropy(out, y)

    model = Net(how)
    optimizer, said = SGD(model.parameters(), 0.1), []
    for x, edge_index, batch, _, _, y in DataLoader(graphs(), 5, collate_fn=collate):
        said.append(float(descend(model(x, edge_index, batch, y), optimizer)))
    return said + everything(model)


def by_name_and_in_a_dict():
    def how(net, data, scale):
        return of_graphs(net, **data) * scale

    def call(model, x, edge_index, batch, weight, u):
        return model({"x": x, "edge_index": edge_index, "batch": batch}, scale=0.5)

    return trained(how, call)


def hooks_inside():
    seen = []

    def call(model, x, edge_index, batch, weight, u):
        handle = model.first.register_forward_hook(lambda layer, args, out: seen.append(float(out.detach().sum())))
        out = model(x, edge_index, batch)
        handle.remove()
        return out

    return trained(of_graphs, call) + seen


def pooled(net, h, batch):
    return net.head(averaged(h, batch, int(batch.max()) + 1))


def a_mixture_that_begins_at_one():
    def how(net, x, edge_index, batch):
        h = net.nodes(x, edge_index)
        return pooled(net, net.mixture[0] * h + net.mixture[1] * h.mean(0), batch)

    return trained(how)


def a_clip_by_all_nodes():
    def how(net, x, edge_index, batch):
        h = net.nodes(10 * x, edge_index)
        return pooled(net, h * 20 / h.norm().clamp(min=20), batch)

    return trained(how)


def what_steps_turn_on():
    def how(net, x, edge_index, batch):
        h = net.nodes(x, edge_index)
        return pooled(net, torch.where(net.steps > 1, h - h.mean(0), h) + (net.steps > 2) * h.amax(0), batch)

    def call(model, x, edge_index, batch, weight, u):
        model.steps += model.training
        return model(x, edge_index, batch)

    return trained(how, call)


def more_nodes_than_some():
    def how(net, x, edge_index, batch):
        h = net.nodes(x, edge_index)
        return pooled(net, h * (2.0 if x.size(0) > 21 else 1.0), batch)

    return trained(how, alike=10)


def padded_to_the_largest():
    def how(net, x, edge_index, batch):
        h, counts = net.nodes(x, edge_index), torch.bincount(batch)
        most, starts = int(counts.max()), counts.cumsum(0) - counts
        dense = h.new_zeros(len(counts) * most, 6)
        dense[torch.arange(len(x)) - starts[batch] + batch * most] = h
        return net.head(dense.view(len(counts), most, 6).mean(1))

    return trained(how, alike=10)


def divided_by_the_largest():
    def how(net, x, edge_index, batch):
        return pooled(net, net.nodes(x, edge_index) / int(torch.bincount(batch).max()), batch)

    return trained(how, alike=10)


def whole_numbers_beside_the_number_of_nodes():
    def how(net, x, edge_index, batch, kinds):
        h = net.nodes(x, edge_index) + net.table(kinds % x.size(0))
        return pooled(net, h * torch.where(kinds < x.size(0), 1.0, 2.0)[:, None], batch)

    def call(model, x, edge_index, batch, weight, u):
        return model(x, edge_index, batch, (x[:, 0].abs() * 10).long() + 12 * (len(x) != 20))

    return trained(how, call, alike=10)


def kinds_that_are_there():
    def how(net, x, edge_index, batch):
        _, kinds = torch.unique((x[:, 0] > 0).long() + 2 * (x[:, 1] > 2).long(), return_inverse=True)
        return pooled(net, net.nodes(x, edge_index) + net.table(kinds), batch)

    return trained(how)


def written_past_the_count_of_versions():
    def how(net, x, edge_index, batch):
        x.data.mul_(0.5)
        return pooled(net, net.nodes(x, edge_index), batch)

    return trained(how, lambda model, x, edge_index, batch, weight, u: model(x, edge_index, batch) + x.sum())


def whole_numbers_for_features():
    def how(net, kinds, edge_index, batch):
        return pooled(net, net.second(net.table(kinds), edge_index), batch)

    return trained(how, lambda model, x, edge_index, batch, weight, u: model(x[:, 0].abs().long(), edge_index, batch))


def evaluated_for_inference():
    def call(model, x, edge_index, batch, weight, u):
        with torch.inference_mode(not model.training):
            return model(x, edge_index, batch)

    return trained(of_graphs, call)


NUMBERS = itertools.count()


def a_schedule_outside():
    def how(net, x, edge_index, batch):
        return pooled(net, net.nodes(x, edge_index), batch) * (1 + 0.1 * (next(NUMBERS) - first))

    first = next(NUMBERS) + 1
    return trained(how)
