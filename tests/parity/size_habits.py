"""Forwards that ask how large their batch is, and make tensors of that size, write into them, or calculate with it."""

import json
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint
from parity.gradient_habits import descend, everything
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset


def texts(batch_size=8, n=22):
    drawn = torch.Generator().manual_seed(3)
    x, y = torch.randn(n, 5, 4, generator=drawn), torch.randint(0, 3, (n, 5), generator=drawn)
    return DataLoader(TensorDataset(x, y), batch_size)


class Stepwise(nn.Module):
    """A cell that is called once for each time, and a forward of its own around it."""

    def __init__(self, how):
        super().__init__()
        self.cell, self.out, self.how = nn.GRUCell(4, 6), nn.Linear(6, 3), how
        self.words = nn.Embedding(5, 4)
        self.layers = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.register_buffer("memory", torch.zeros(1), persistent=False)

    def forward(self, x):
        return self.how(self, x)


def trained(how, epochs=3, loss=None):
    """Train it to tell a class for each time."""
    torch.manual_seed(0)
    random.seed(0)
    model = Stepwise(how)
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for _ in range(epochs):
        for x, y in texts():
            out = model(x)
            said.append(descend(F.cross_entropy(out.permute(0, 2, 1), y) if loss is None else out, optimizer).item())
            said.append(out.sum().item())
    return said + everything(model)


def writes_step_by_step():
    def how(self, x):
        h, out = torch.zeros(x.size(0), 6), torch.zeros(5, x.size(0), 3)
        for time in range(5):
            h = self.cell(x[:, time], h)
            out[time] = self.out(h)
        return out.transpose(0, 1)

    return trained(how)


def writes_along_the_second_dimension():
    def how(self, x):
        b, t, _ = x.shape
        h, out = x.new_zeros(b, 6), torch.empty((b, t, 3), dtype=x.dtype, device=x.device)
        for time in range(t):
            h = self.cell(x[:, time], h)
            out[:, time] = self.out(h)
        assert out.shape == (b, t, 3)
        return out

    return trained(how)


def states_by_the_old_constructor():
    def how(self, x):
        h, out = x.data.new(x.size(0), 6).zero_(), x.new(torch.Size([x.size(0), 5, 3])).fill_(1)
        for time in range(5):
            h = self.cell(x[:, time], h)
            out[:, time] = self.out(h) + x.new([2.0, 3.0, 4.0])
        return out

    return trained(how)


def feeds_back_what_it_said():
    def how(self, x):
        word, h = torch.ones(x.size(0), dtype=torch.long), torch.zeros(x.size(0), 6)
        out = torch.zeros(x.size(0), 5, 3)
        for time in range(5):
            h = self.cell(self.words(word) + x[:, time], h)
            out[:, time, :] = self.out(h)
            word = out[:, time].argmax(1)
        return out

    return trained(how)


def teacher_forcing_by_chance():
    def how(self, x):
        h, out, last = x.new_zeros((x.shape[0], 6)), torch.zeros(5, x.shape[0], 3), x[:, 0]
        for time in range(5):
            h = self.cell(last, h)
            out[time] = self.out(h)
            last = x[:, time] if random.random() < 0.5 else F.pad(out[time], (0, 1))
        return out.permute(1, 0, 2)

    return trained(how)


def states_of_layers():
    def how(self, x):
        state = torch.zeros(2, x.size(0), 6), torch.zeros(2, x.size(0), 6)
        out, _ = self.layers(x, state)
        return self.out(out)

    return trained(how)


def keeps_states_in_itself():
    def how(self, x):
        self.state = torch.zeros(2, x.size(0), 6), torch.ones(2, x.size(0), 6)
        out, self.state = self.layers(x, self.state)
        return self.out(out)

    return trained(how)


def keeps_a_buffer_of_its_size():
    def how(self, x):
        if len(self.memory) != x.size(0):
            self.memory = torch.zeros(x.size(0), 6)
        out = []
        for time in range(5):
            self.memory = 0.9 * self.memory.detach() + self.cell(x[:, time], self.memory.detach())
            out.append(self.out(self.memory))
        return torch.stack(out, 1)

    return trained(how)


def views_expands_and_repeats():
    def how(self, x):
        b = x.size(0)
        flat = x.reshape(b * 5, 4).view(b, 5, 4).repeat(1, 1, 2).view(b, 5, 2, 4).mean(2)
        first = self.words.weight[0].expand(b, 5, 4)
        out, _ = self.layers(flat + first + self.words(torch.zeros(b, 5, dtype=torch.long)))
        return self.out(out.contiguous().view(b, -1).view(b, 5, 6))

    return trained(how)


def plain_python_with_a_size():
    def how(self, x):
        b = x.size(0)
        assert json.loads(json.dumps({"rows": b})) == {"rows": b}
        assert f"{b:02d}" == f"{len(x):02d}"
        weights = torch.tensor(np.ones(b))
        parts = [x[row : row + 1] * weights[row] for row in range(b)]
        out, _ = self.layers(torch.cat(parts))
        return self.out(out)

    return trained(how)


def divides_by_its_size():
    def how(self, x):
        out, _ = self.layers(x)
        return self.out(out).pow(2).sum() / x.size(0)

    return trained(how, loss=True)


def divides_by_all_its_sizes():
    def how(self, x):
        out, _ = self.layers(x)
        out = self.out(out)
        return out.pow(2).sum() / out.shape.numel() + out.mean() * out.size(0) ** 0.5

    return trained(how, loss=True)


def branches_on_its_size():
    def how(self, x):
        out, _ = self.layers(x)
        return self.out(out) * (2 if x.size(0) % 4 == 0 else 1)

    return trained(how)


def as_many_times_as_rows():
    def how(self, x):
        b, t, _ = x.shape
        mask = torch.triu(torch.full((t, t), -1e9), 1)
        weights = (x @ x.transpose(1, 2) + mask).softmax(-1)
        out, _ = self.layers(weights @ x + torch.zeros(b, 1, 1))
        return self.out(out)

    return trained(how)


def pairs_of_rows():
    def how(self, x):
        b = x.size(0)
        out, _ = self.layers(x)
        out = self.out(out)
        alike = out.flatten(1) @ out.flatten(1).t()
        other = torch.zeros(b, b)
        other[range(b), range(b)] = 1
        return out + (alike * (1 - other)).mean() * 0.1

    return trained(how)


def marks_classes():
    def how(self, x):
        b = x.size(0)
        out, _ = self.layers(x)
        out = self.out(out)
        best = out.mean(1).argmax(1)
        one = torch.zeros(b, 3).scatter_(1, best[:, None], 1.0)
        two = torch.zeros(b, 3)
        two[torch.arange(b), best] = 2.0
        return out + (one + two)[:, None]

    return trained(how)


def grows_by_joining():
    def how(self, x):
        out, h = torch.zeros(x.size(0), 0, 3), torch.zeros(x.size(0), 6)
        for time in range(5):
            h = self.cell(x[:, time], h)
            out = torch.cat([out, self.out(h)[:, None]], 1)
        return out

    return trained(how)


def moves_what_it_was_given():
    def how(self, x):
        delta = torch.zeros(x.size(0), 1, 4, requires_grad=True)
        out, _ = self.layers(x + delta)
        (grad,) = torch.autograd.grad(self.out(out).pow(2).sum(), delta)
        out, _ = self.layers(x + 0.1 * grad.sign())
        return self.out(out)

    return trained(how)


def writes_where_a_mask_says():
    def how(self, x):
        out, _ = self.layers(x)
        out, kept = self.out(out), torch.zeros(x.shape[:2])
        kept[x.sum(-1) > 0] = 1.0
        floor = torch.full(kept.shape, 0.1)
        floor[:, 1:] = kept[:, :-1]
        return out * (kept + floor)[..., None]

    return trained(how)


def remembers_its_size():
    sizes = []

    def how(self, x):
        self.rows = x.size(0)
        out, _ = self.layers(x)
        return self.out(out)

    def loop():
        torch.manual_seed(0)
        model = Stepwise(how)
        optimizer = SGD(model.parameters(), 0.1)
        for x, y in texts():
            descend(F.cross_entropy(model(x).permute(0, 2, 1), y), optimizer)
            sizes.append(float(model.rows))
        return everything(model)

    return loop() + sizes


def slices_up_to_its_size():
    def how(self, x):
        b = x.size(0)
        table = torch.arange(30.0)[:b]
        out, _ = self.layers(x[:b] + 0.01 * table[:b, None, None])
        return self.out(out)[:b, : min(b, 5)] if b > 4 else self.out(out)

    return trained(how)


def returns_its_size():
    def how(self, x):
        out, _ = self.layers(x)
        return self.out(out), {"rows": x.size(0), "sizes": [*x.shape]}

    torch.manual_seed(0)
    model, said = Stepwise(how), []
    optimizer = SGD(model.parameters(), 0.1)
    for x, y in texts():
        out, told = model(x)
        said.append(descend(F.cross_entropy(out.permute(0, 2, 1), y), optimizer).item())
        said += [float(told["rows"]), *map(float, told["sizes"]), float(type(told["rows"]) is int)]
    return said + everything(model)


def keeps_sizes_for_later():
    held = []

    def how(self, x):
        held.append(x.shape)
        h, out = torch.zeros(held[0][0], 6)[: x.size(0)], torch.zeros(held[-1][0], 5, 3)
        for time in range(5):
            h = self.cell(x[:, time], h)
            out[:, time] = self.out(h)
        return out.view(held[-1][0], held[0][1], 3)

    return trained(how)


def rows_in_chunks_of_which_one_is_all():
    """Slices and pieces of up to six rows: all of a batch's, or some."""

    def chunks(self, x):
        wide = x.repeat(1, 1, 2)[..., :6]
        first = torch.cat([self.out(wide[i : i + 6]) for i in range(0, len(x), 6)])
        return first + torch.cat([self.out(part).tanh() for part in wide.split(6)])

    torch.manual_seed(0)
    model = Stepwise(chunks)
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for size in (5, 8, 6, 7, 5, 8):
        for x, y in texts(size, 17):
            said.append(descend(F.cross_entropy(model(x).permute(0, 2, 1), y), optimizer).item())
    return said


def a_front_of_the_batch():
    said = []
    for size in (5, 8, 6):
        torch.manual_seed(0)
        model = Stepwise(lambda self, x: self.out(x[:6].repeat(1, 1, 2)[..., :6]).mean(1))
        optimizer = SGD(model.parameters(), 0.1)
        for _ in range(2):
            for x, y in texts(size, 17):
                said.append(descend(F.cross_entropy(model(x), y[:6, 0]), optimizer).item())
    return said


def networks_on_chunks():
    """Functions of a script that pass their batch on in chunks, as NeRF's do."""
    said = []
    for size in (5, 8, 6):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        optimizer = SGD(net.parameters(), 0.1)
        for x, y in texts(size, 17):
            flat = x.reshape(-1, 4)
            out = torch.cat([net(flat[i : i + 35]) for i in range(0, len(flat), 35)])
            whole = sum(net(part).sum() for part in x.chunk(1)) + sum(net(part).mean() for part in x.split(6))
            said.append(descend(F.cross_entropy(out, y.reshape(-1)) + 0.01 * whole, optimizer).item())
    return said


def writes_to_pieces_of_views():
    """Also through a view that is gone when its piece is written to, and pieces that count their writes apart."""
    said = []
    for size in (5, 8):
        torch.manual_seed(0)
        net = nn.Linear(4, 3)
        optimizer = SGD(net.parameters(), 0.1)
        for x, _ in texts(size, 17):
            rows = x[:, 0].clone()
            written = [
                lambda r: r.T.hsplit(1)[0].mul_(3),
                lambda r: r.T.vsplit(1)[0].mul_(3),
                lambda r: r[None].dsplit(1)[0].mul_(3),
                lambda r: r.T.hsplit(1)[0].T.vsplit(1)[0][:1].mul_(5),
                lambda r: r.unsafe_chunk(1)[0].mul_(2),
                lambda r: r.unsafe_chunk(2)[0].mul_(3),
                lambda r: r.unsafe_chunk(2, 1)[1].mul_(3),
                lambda r: r.T.unsafe_split(1, dim=0)[1].mul_(3),
                lambda r: torch.unsafe_split_with_sizes(r, [len(r)])[0].mul_(3),
                lambda r: r.T[:, :1].mul_(3),
                lambda r: r.T.split(1, 1)[0].split(1, 0)[0].mul_(3),
            ]
            for write in written:
                copy = rows.clone()
                write(copy)
                said += [copy.sum().item(), copy[0].tolist()[0], copy.std().item()]
            descend(net(copy).square().mean(), optimizer)
            said.append(copy.T.unsafe_chunk(2)[1].sum().item())
    return said


class Points(nn.Module):
    """A network for point clouds, which picks points by their numbers."""

    def __init__(self, picks):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.picks = picks

    def forward(self, x):
        return self.out(self.second(self.picks(self.first, x)).relu().amax(1))


def clouds(picks):
    torch.manual_seed(0)
    model = Points(picks)
    optimizer = SGD(model.parameters(), 0.1)
    drawn = torch.Generator().manual_seed(3)
    x, y = torch.randn(21, 9, 3, generator=drawn), torch.randint(0, 3, (21,), generator=drawn)
    said = []
    for _ in range(3):
        for points, labels in DataLoader(TensorDataset(x, y), 8):
            said.append(descend(F.cross_entropy(model(points), labels), optimizer).item())
    return said + everything(model)


def points_far_from_each_other():
    def picks(first, x):
        b, n, _ = x.shape
        found, far = torch.zeros(b, 4, dtype=torch.long), torch.zeros(b, dtype=torch.long)
        distance, numbers = torch.ones(b, n) * 1e10, torch.arange(b, dtype=torch.long)
        for i in range(4):
            found[:, i] = far
            near = ((x - x[numbers, far, :].view(b, 1, 3)) ** 2).sum(-1)
            mask = near < distance
            distance[mask] = near[mask]
            far = torch.max(distance, -1)[1]
        rows = torch.arange(b, dtype=torch.long).view([b, 1]).repeat([1, 4])
        return first(x[rows, found, :])

    return clouds(picks)


def points_near_each_other():
    def picks(first, x):
        b, n, _ = x.shape
        square = (x**2).sum(-1)
        near = (2 * x @ x.transpose(1, 2) - square[:, :, None] - square[:, None]).topk(3, -1)[1]
        numbers = (near + torch.arange(0, b).view(-1, 1, 1) * n).view(-1)
        features = first(x)
        return (features.view(b * n, -1)[numbers, :].view(b, n, 3, -1) - features[:, :, None]).amax(2) + features

    return clouds(picks)


def points_that_a_mask_picks():
    def picks(first, x):
        kept = x[..., 0] > x[..., 0].median(1, keepdim=True)[0] - 1e-9
        return first(x[kept].reshape(x.size(0), -1, 3)) + x[kept].mean()

    return clouds(picks)


class Beside(nn.Module):
    """A forward that is given something as large as the batch in two dimensions."""

    def __init__(self, how):
        super().__init__()
        self.first, self.last, self.how = nn.Linear(4, 6), nn.Linear(6, 3), how
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x, other=None):
        return self.last(self.how(self, self.first(x).tanh(), other))


def beside(how, other, batch_size=5, dims=2):
    """Texts of 5 words, 5 at a time, and a tensor of 5 x 5; the last batch has 2."""
    torch.manual_seed(0)
    model = Beside(how)
    optimizer, said = SGD(model.parameters(), 0.1), []
    for x, y in texts(batch_size):
        x, y = (x, y) if dims == 3 else (x[:, 0], y[:, 0])
        out = model(x, other(x))
        said.append(descend(F.cross_entropy(out.flatten(0, -2), y.flatten()), optimizer).item())
    model.eval()
    with torch.no_grad():
        said += [model(x if dims == 3 else x[:, 0], other(x)).sum().item() for x, _ in texts(batch_size)]
    return said + everything(model)


def square(x):
    return torch.arange(float(len(x) ** 2)).view(len(x), len(x)).sin()


def squares_of_codes_or_neighbours():
    codes = beside(lambda self, h, other: h * other[:, :1] + other.sum(), square)
    near = beside(lambda self, h, other: other.softmax(1) @ h, square)
    return codes + near + beside(lambda self, h, other: h.index_add(0, other.argmax(1), h), square)


def squares_of_words():
    def attends(self, h, other):
        return self.attention(h, h, h, attn_mask=other)[0]

    def added(self, h, other):
        return F.scaled_dot_product_attention(h, h, h, attn_mask=other > 0) + other[..., None]

    def words(x):
        return square(x[0])

    return beside(attends, words, dims=3) + beside(added, lambda x: words(x)[:1], dims=3)


def squares_computed_again_in_backward():
    def again(self, h, other):
        return torch.utils.checkpoint.checkpoint(
            lambda h, other: (h @ other[:6, :1].new_ones(6, 6)).tanh() * other[:, 1:2], h, other, use_reentrant=False
        )

    return beside(again, square)


def squares_that_are_trained():
    torch.manual_seed(1)
    table = torch.randn(5, 5, requires_grad=True)
    said = beside(lambda self, h, other: other @ h, lambda x: table[: len(x), : len(x)])
    return said + table.grad.flatten().tolist()


def squares_of_a_script_that_turns_its_batches():
    """Sequence first, as torchtext gave them: some texts are as long as there are texts."""

    def batches():
        drawn = torch.Generator().manual_seed(5)
        rows = [torch.randint(0, 5, (2, size), generator=drawn) for size in (5, 5, 5, 5, 5, 3, 5, 5, 6, 5, 5)]
        pad = nn.utils.rnn.pad_sequence
        return DataLoader(rows, 5, collate_fn=lambda rows: (pad([r[0] for r in rows]), pad([r[1] for r in rows][::-1])))

    torch.manual_seed(0)
    model = Turned()
    optimizer, said = SGD(model.parameters(), 0.1), []
    for x, y in batches():
        said.append(descend(model(x.transpose(0, 1), y.transpose(0, 1)[:, :-1]).sin().mean(), optimizer).item())
    return said + everything(model)


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(5, 4), nn.Linear(4, 5)

    def forward(self, x, y):
        return self.last(self.words(x).mean(1, keepdim=True) + self.words(y))


def squares_that_a_packed_sequence_came_to():
    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.arange(6.0))

        def forward(self, e, y):
            return (e * self.weight).gather(2, y.unsqueeze(2)).mean()

    torch.manual_seed(0)
    model, scores = Stepwise(None), Scores()
    optimizer, said = SGD([*model.parameters(), *scores.parameters()], 0.1), []
    for x, y in texts(5):
        packed = nn.utils.rnn.pack_padded_sequence(x, [5] * len(x), batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(model.layers(packed)[0], batch_first=True)
        said.append(descend(scores(out, y), optimizer).item())
    return said + everything(model) + everything(scores)


class Speaks(nn.Module):
    """Is given one token of each text, and states that the script makes and carries on."""

    def __init__(self, kind):
        super().__init__()
        self.words, self.last = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.cells = (nn.LSTM if kind == "lstm" else nn.GRU)(4, 4, 2)
        self.offset = nn.Parameter(torch.zeros(4))

    def forward(self, token, state, other=None):
        word = self.words(token).view(1, token.size(0), -1)
        out, state = self.cells(word, state)
        out = out.view(token.size(0), -1) + self.offset
        if other is not None and other.is_floating_point():  # columns as many as texts
            out = out @ other[:4] @ other[:4].t() / 9
        elif other is not None:  # a table of as many tokens as texts
            out = out + self.words(other[token % len(other)]) + self.words(other).mean(0)
        return self.last(out), state


def speaks(kind, other=None, carries=False, rows=6):
    """Texts of six tokens, without a loader, one token after the other."""
    torch.manual_seed(0)
    drawn = torch.Generator().manual_seed(1)
    model = Speaks(kind)
    optimizer, said, state = SGD(model.parameters(), 0.2), [], None
    for step in range(5):
        count = rows - (step == 3)
        texts = torch.randint(0, 7, (count, 6), generator=drawn)
        if state is None or not carries or step in (3, 4):
            zeros = torch.zeros(2, count, 4)
            state = (zeros, zeros + 0.1) if kind == "lstm" else zeros
        else:
            state = tuple(part.detach() for part in state) if kind == "lstm" else state.detach()
        loss = 0
        for at in range(5):
            logits, state = model(texts[:, at], state, *([] if other is None else [other(count)]))
            loss = loss + F.cross_entropy(logits, texts[:, at + 1])
        said.append(descend(loss, optimizer).item())
    with torch.no_grad():
        state, token = (torch.zeros(2, 1, 4),) * 2 if kind == "lstm" else torch.zeros(2, 1, 4), torch.tensor([2])
        for _ in range(4):
            logits, state = model(token, state)
            token = logits.argmax(1)
            said.append(logits.sum().item())
    return said + everything(model)


def states_of_a_script_beside_tokens():
    return speaks("gru") + speaks("lstm") + speaks("lstm", carries=True) + speaks("gru", carries=True, rows=7)


def states_of_a_script_beside_tokens_and_a_matrix():
    return speaks("gru", lambda count: torch.arange(5.0 * count).view(5, count).sin())


def states_of_a_script_beside_tokens_and_a_table():
    tables = [lambda count: torch.arange(count).flip(0) % 7, lambda count: (torch.arange(6) * 3) % 7]
    return [number for table in tables for number in speaks("lstm", table)]


class Remembers(nn.Module):
    """Words ``[T, B]``, that attend to those before them too: a memory that the script carries on, as Transformer-XL's."""

    def __init__(self):
        super().__init__()
        self.words, self.parts, self.last = nn.Embedding(9, 6), nn.Linear(6, 18), nn.Linear(6, 9)

    def forward(self, x, *memory):
        words = self.words(x)
        known = torch.cat([*memory, words])
        query, key, value = self.parts(known).chunk(3, -1)
        scores = torch.einsum("ibd,jbd->ijb", query[-len(words) :], key).softmax(1)
        return self.last(words + torch.einsum("ijb,jbd->ibd", scores, value)), known[-7:].detach()


def a_memory_that_is_carried_on():
    said = []
    for rows in (6, 7, 4):
        torch.manual_seed(0)
        model, memory = Remembers(), ()
        optimizer = SGD(model.parameters(), 0.3)
        texts = torch.randint(0, 9, (43, rows), generator=torch.Generator().manual_seed(2))
        for at in range(0, 42, 7):
            out, *memory = model(texts[at : at + 7], *memory)
            loss = F.cross_entropy(out.flatten(0, 1), texts[at + 1 : at + 8].flatten())
            said += [descend(loss, optimizer).item(), memory[0].sum().item()]
        said += everything(model)
    return said


class Hidden(nn.Module):
    """Calculates with the size of its batch what the first batch does not show."""

    def __init__(self, how):
        super().__init__()
        self.first, self.last, self.how = nn.Linear(5, 8), nn.Linear(8, 3), how
        self.register_buffer("weights", torch.tensor([1.0, 0.0]))
        self.register_buffer("seen", torch.tensor(50_000_000))
        self.register_buffer("var", torch.zeros(5))
        with torch.no_grad():
            self.last.weight.mul_(0.1)
            self.last.weight[0].zero_()
            self.last.bias.zero_()

    def forward(self, *batch):
        return self.how(self, *batch)

    def logits(self, x):
        return self.last(torch.tanh(self.first(x)))


def shown_later(how):
    """Train it; what it hides is shown from the second epoch on."""
    torch.manual_seed(0)
    x = torch.randn(24, 5)
    rows = TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long(), (torch.arange(24) >= 8).double())
    model = Hidden(how)
    optimizer, said = SGD(model.parameters(), 0.5), []
    for epoch in range(3):
        if epoch:
            model.weights[1] = 0.5
        said += [descend(model(*batch), optimizer).item() for batch in DataLoader(rows, 8)]
    return said + everything(model)


def pseudo_labels_that_become_sure():
    def how(self, x, y, _):
        sure, target = self.logits(x).detach().softmax(1).max(1)
        unlabelled = F.cross_entropy(self.logits(x * 1.1), target, reduction="none")
        return F.cross_entropy(self.logits(x), y) + (unlabelled * (sure > 0.5)).sum() / x.size(0)

    return shown_later(how)


def a_weight_of_a_loss_that_is_raised():
    def how(self, x, y, _):
        h = self.logits(x)
        return (self.weights * torch.stack([F.cross_entropy(h, y), h.square().sum() * (1 / len(x))])).sum()

    return shown_later(how)


def a_mask_that_is_empty_at_first():
    def how(self, x, y, mask):
        out = self.logits(x)
        return F.cross_entropy(out, y) + (out.square().mean(1) * mask).sum() / len(mask)

    return shown_later(how)


def a_mask_that_is_empty_at_first_in_a_loop():
    def how(self, x, y, mask):
        out, sums = self.logits(x), []
        for row, its in zip(out, mask, strict=True):
            sums.append(row.square().mean() * its / x.shape[0])
        return F.cross_entropy(out, y) + sum(sums)

    return shown_later(how)


def a_counter_that_is_resumed():
    def how(self, x, y, _):
        self.seen += x.size(0)
        return F.cross_entropy(self.logits(x), y)

    return shown_later(how)


def a_tiny_running_variance():
    def how(self, x, y, _):
        with torch.no_grad():
            d = x * 1e-5
            self.var = (d - d.mean(0)).square().sum(0) / (len(x) - 1)
        return F.cross_entropy(self.logits(x / self.var.sqrt() * 1e-5), y)

    return shown_later(how)


class AddsItsRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + (x > 0.9) * float(x.shape[0])

    @staticmethod
    def backward(ctx, grad):
        return grad


class DividesByItsRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() > 0.9, grad / len(grad), grad)


def through(function):
    """Train with a function between two layers, whose values grow past what it looks for."""

    def how(self, x, y, _):
        h = function.apply(torch.tanh(self.first(x) * (0.2 + 5 * self.weights[1])))
        return F.cross_entropy(self.last(h), y)

    return shown_later(how)


def a_function_that_adds_its_rows_later():
    return through(AddsItsRows)


def a_function_whose_backward_divides_by_its_rows_later():
    return through(DividesByItsRows)


class NormBySums(nn.BatchNorm1d):
    """As forums have it."""

    def forward(self, x):
        mean, var, n = self.running_mean, self.running_var, x.size(0)
        if self.training:
            mean = x.sum(0) / n
            var = (x - mean).square().sum(0) / n
            with torch.no_grad():
                self.running_mean.mul_(0.9).add_(0.1 * mean)
                self.running_var.mul_(0.9).add_(0.1 * var * n / (n - 1))
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias


class NormAndSize(nn.BatchNorm1d):
    def forward(self, x):
        out = super().forward(x)
        return out * (1 + 1 / x.size(0)) if self.training else out


def normed(norm):
    """Train with a norm between two layers, and evaluate."""
    torch.manual_seed(0)
    x = torch.randn(24, 5)
    model = nn.Sequential(nn.Linear(5, 8), norm, nn.Tanh(), nn.Linear(8, 3))
    optimizer, said = SGD(model.parameters(), 0.1), []
    for rows, y in DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 8):
        said.append(descend(F.cross_entropy(model(rows), y), optimizer).item())
    return said + everything(model) + [model.eval()(x).sum().item()]


def a_batchnorm_by_sums():
    return normed(NormBySums(8))


def a_batchnorm_and_the_size_of_its_batch():
    return normed(NormAndSize(8))


class AsksItsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(x) * (8 / x.shape[0]) if self.norm.training else self.norm(x)


def a_size_where_a_norm_trains():
    return normed(AsksItsNorm())


def a_term_that_is_small_beside_its_loss():
    """What only that term trains tells whether it is right: no tolerance of outputs does."""

    def how(self, x, y, _):
        out = self.logits(x)
        return F.cross_entropy(out, y) + 1e-17 * torch.sum(self.weights[0] * self.first(x).square()) / out.shape[0]

    torch.manual_seed(0)
    x = torch.randn(24, 5)
    model = Hidden(how)
    model.last.weight.requires_grad_(False).zero_()
    for batch in DataLoader(TensorDataset(x, (x[:, 0] > 0).long(), x), 8):
        model.zero_grad()
        model(*batch).backward()
    return (model.first.weight.grad * 1e17).flatten().tolist()


def a_mask_that_is_drawn():
    def how(self, x, y, _):
        return F.cross_entropy(self.logits(x), y) + (self.logits(x) * (torch.rand(len(x), 1) < 0.3)).sum() / len(x)

    return shown_later(how)


def a_branch_on_the_size_that_shows_later():
    def how(self, x, y, _):
        h = self.logits(x)
        penalty = h.square().mean() if x.numel() > 20 else h.abs().mean()
        return (self.weights * torch.stack([F.cross_entropy(h, y), penalty])).sum()

    return shown_later(how)


def confident(way):
    """Train with a penalty of confident rows, which are none in the first batch; the way tells how much it counts."""

    def how(self, x, y, _):
        out = self.logits(x * (0.3 + 8 * self.weights[1]))
        return F.cross_entropy(out, y) + way(self, x, out.square() * (out > 0.4))

    return shown_later(how)


def arrays_of_the_size():
    return confident(lambda self, x, p: p.sum() * torch.from_numpy(np.array(0.2 / len(x))))


def legacy_tensors_of_the_size():
    return confident(lambda self, x, p: 0.2 * p.sum() / torch.DoubleTensor([len(x)])[0])


def ones_of_the_size():
    return confident(lambda self, x, p: 0.2 * p.sum() / torch.ones(len(x) + 1).sum())


def tables_at_the_size():
    return confident(lambda self, x, p: p.sum() * torch.linspace(0, 0.1, 40)[len(x)])


def parameters_by_the_size():
    return confident(lambda self, x, p: p.mean() * (self.first.bias if len(x) > 4 else self.last.bias).mean().tanh())


def flags_of_the_size():
    return confident(lambda self, x, p: 0.01 * p.sum() * (len(x) == 8))


def a_reduction_by_the_size():
    return confident(lambda self, x, p: F.smooth_l1_loss(p, p * 0.5, reduction="mean" if len(x) > 4 else "sum"))


def places_of_rows_as_weights():
    def weigh(self, x, p):
        by_lists = torch.tensor([place / 99 for place in range(len(x))])
        by_size = by_lists + torch.linspace(0, 0.1, len(x))
        return 0.01 * ((p.sum(1) * by_size).sum() + (p.sum(1) * torch.arange(len(x))).mean())

    return confident(weigh)


class NormWithQueue(nn.Module):
    """A norm of the rows and of a queue, whose rows all ranks have."""

    def __init__(self, by_size):
        super().__init__()
        self.register_buffer("queue", torch.randn(40, 8))
        self.norm, self.by_size = nn.BatchNorm1d(8), by_size

    def forward(self, x):
        queue = self.queue[: len(x)] if self.by_size else self.queue
        return self.norm(torch.cat([x, queue]))[: len(x)]


def a_norm_of_rows_and_a_queue():
    return normed(NormWithQueue(by_size=False))


def a_norm_of_rows_and_a_part_of_a_queue():
    return normed(NormWithQueue(by_size=True))


class NormWithinRows(nn.Module):
    """As MUNIT has it: each row's channels side by side."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("var", torch.ones(2))

    def forward(self, x):
        rows = x.size(0)
        mean, var = self.mean.repeat(rows), self.var.repeat(rows)
        return F.batch_norm(x.reshape(1, rows * 2, 4), mean, var, training=True).view(rows, 8)


def a_norm_within_rows():
    return normed(NormWithinRows())


def constants_for_each_row():
    """Repeated and then written to, as poses and homographies are."""

    def how(self, x):
        h = self.cell(x[:, 0])
        pose = torch.eye(3)[None].repeat(x.size(0), 1, 1)
        pose[:, :2, 2] = h[:, :2]
        turned = torch.eye(3).expand(len(x), 3, 3).clone()
        turned[:, 0] += h[:, 3:]
        tiled, wide = torch.eye(3).tile((len(x), 1, 1)), torch.arange(3.0).broadcast_to(len(x), 3)
        tiled[:, 1] = pose[:, 0] * wide
        twice = torch.ones(2, 3).repeat(x.size(0), 1)  # no row of the batch is one of these
        twice[: len(x)] *= h[:, :3]
        return (pose @ turned + tiled)[:, :, None].sum(2).repeat(1, 2, 1)[:, :5] + twice.view(len(x), 2, 3)[:, :1]

    return trained(how)


def constants_that_change_after_they_are_expanded():
    def how(self, x):
        base = torch.zeros(3)
        seen = base.expand(x.size(0), 3)
        base += 1
        return self.out(self.cell(x[:, 0]) * seen[:, :1])[:, None].repeat(1, 5, 1)

    return trained(how)


class CentresSeveral(nn.Module):
    """What many write for BatchNorm: nothing is centred where there is one row, as some ranks have of a batch."""

    def __init__(self, least):
        super().__init__()
        self.layer, self.last, self.least = nn.Linear(4, 8), nn.Linear(8, 3), least

    def forward(self, x):
        h = self.layer(x)
        if h.size(0) > self.least:
            h = h - h.mean(0)
        return self.last(h)


def rows_are_centred_where_there_are_several():
    said = []
    for least, size in ((1, 3), (1, 5), (2, 8)):
        torch.manual_seed(1)
        model = CentresSeveral(least)
        optimizer = SGD(model.parameters(), 0.1)
        rows = TensorDataset(torch.randn(22, 4), torch.randint(0, 3, (22,)))
        for x, y in DataLoader(rows, size):
            said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
        said += everything(model)
    return said
