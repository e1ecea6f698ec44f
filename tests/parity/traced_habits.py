"""Functions that a script compiles and that are traced whole: what runs on rows, what ranks meet in, and what is put away."""

import contextlib
import dataclasses
import math

import torch
import torch.nn.functional as F
from parity.compiled_habits import batches, compiled, learn, look, mean, model_of, spread, weights
from parity.gradient_habits import descend
from torch import nn
from torch.optim import SGD

state = {"factor": 1.0, "last": None}


class Holder:
    """Somebody who keeps things."""


# --- what is in a graph -----------------------------------------------------------------------------------------------


def numbers_of_the_batch():
    return look(lambda x, y: (x / x.shape[0], x.sum() / len(y), x.new_full((len(x),), 2.0) * y))


def sizes_by_hand():
    return look(lambda x, y: x.view(x.size(0) * 2, 2).sum(1) + x.reshape(-1, 2)[:, 0], sizes=(8, 6, 5))


def every_batch_of_another_size():
    function, _ = compiled(lambda x: (x.pow(2).sum(1) / x.shape[0]).view(-1, 1).expand(-1, 3))
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    said = []
    for size in (6, 8, 4, 7, 12, 9, 11, 3, 10, 5):
        for a, _ in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x), size):
            said += function(a).flatten().tolist()
    return said


def rows_that_are_normalised():
    return look(lambda x, y: ((x - x.mean(0)) / (x.std(0) + 1), (x - mean) / spread, F.normalize(x, dim=1)))


def a_contrast_between_rows():
    return learn(lambda out, x, y: F.cross_entropy(F.normalize(out) @ F.normalize(out).T / 0.5, torch.arange(len(out))))


def a_running_sum_of_rows():
    return look(lambda x, y: (x.cumsum(0).tanh() + x, x.flip(0) * 2, x.roll(1, 0) - x))


def ranks_of_entries():
    return look(lambda x, y: [x.topk(2, 1).values, x.sort(1).indices * 2, x.max(1).values, x.argmax(1) == y])


def numbers_over_all():
    return look(lambda x, y: (x.max(), x.min() * x, (x > 0).any().double(), x.abs().max() / 2 + x.sum(), x.norm()))


def without_gradients_in_the_middle():
    def loss(out, x, y):
        with torch.no_grad():
            scale = out.softmax(1).gather(1, y[:, None]).squeeze(1)
        kept = (1 - scale).pow(2)
        return (kept * F.cross_entropy(out, y, reduction="none")).mean() + out.detach().pow(2).mean() * 0

    return learn(loss)


def in_half_precision():
    def loss(out, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            both = out.detach().float() @ torch.ones(3, 2).float()
        return F.cross_entropy(out, y) + 0.001 * both.double().mean()

    return learn(loss)


def noise_that_is_drawn():
    """What is drawn is the same with a backend that runs what it is given."""
    return learn(lambda out, x, y: F.cross_entropy(F.dropout(out, 0.3) + torch.randn_like(out) * torch.rand(3), y))


def a_loss_by_hand():
    def loss(out, x, y):
        p = out.softmax(-1)
        hot = F.one_hot(y, 3).to(p.dtype)
        dice = 1 - (2 * (p * hot).sum(0) + 1) / (p.sum(0) + hot.sum(0) + 1)
        return dice.mean() - (hot * (p + 1e-9).log()).sum(1).mean() + torch.logsumexp(out, 1).pow(2).mean() * 1e-3

    return learn(loss)


def losses_that_meet():
    def loss(out, x, y):
        a, b = F.cross_entropy(out, y, weight=weights), F.mse_loss(out, x[:, :3])
        total = a + 0.1 * b
        total += (a.detach() * b).sqrt()
        return total / (1 + a.detach())

    return learn(loss)


def a_loss_that_goes_in():
    scaled, runs = compiled(lambda loss, out: loss * 2 + out.pow(2).sum(1).mean())
    model = model_of()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for x, y in batches(8):
        out = model(x)
        said.append(descend(scaled(F.cross_entropy(out, y), out), optimizer).item())
    return [*said, runs["graphs"] > 0]


def a_loss_whose_value_is_read():
    scaled, _ = compiled(lambda loss, out: out * float(loss) + loss.item())
    said = []
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for x, y in batches(8):
            out = model_of()(x)
            said += scaled(F.cross_entropy(out, y), out).flatten().tolist()
    return said


def labels_of_which_some_do_not_count():
    return learn(lambda out, x, y: F.cross_entropy(out, y.where(x[:, 0] > 0, -100)))


def a_temperature_that_learns():
    temperature = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    said = learn(lambda out, x, y: F.cross_entropy(out / temperature, y))
    return [*said, temperature.grad.item()]


def masks_and_positions():
    def masked(x, y):
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        at = torch.arange(x.shape[1], device=x.device)
        return (x[:, None] * mask).masked_fill(~mask, -1.0).sum(-1), x + at, x.where(y[:, None] > 0, x.new_zeros(()))

    return look(masked)


def branches_on_how_a_batch_lies():
    """Of batches of which a rank may have one row, which does not tell."""

    def lies(x):
        x = x * 1.0
        return x.sum() * (2.0 if x.is_contiguous() else 3.0) + x.stride()[0]

    lies, _ = compiled(lies)
    said = []
    for x, _ in batches(8):
        for some in (x, x.T.contiguous().T, x[:5].T.contiguous().T):
            said.append(lies(some).item())
    return said


def a_function_that_is_called_as_it_is():
    """Whose Python runs in every call."""
    held = {}

    def scaled(x):
        return x * held["factor"]

    torch.compiler.allow_in_graph(scaled)
    function, _ = compiled(lambda x: scaled(x * 2).sum(1))
    said = []
    for at, (x, _) in enumerate(batches(8)):
        held["factor"] = 1.0 + at
        said += function(x).tolist()
    return said


def several_tensors_in_place():
    def scaled(x, y):
        a, b = x * 1.0, x + 1.0
        torch._foreach_mul_([a, b], 3.0)
        return a + b

    return look(scaled)


def transforms_inside():
    return look(lambda x, y: torch.func.vmap(lambda row: row.pow(2).sum())(x) + torch.func.vmap(torch.sum)(x * 2))


def one_batch_as_two_arguments():
    function, _ = compiled(lambda a, b, c: (a * b if a is b else a - b, a * 2 if b is c["x"] else c["x"]))
    return [
        value
        for x, _ in batches(8)
        for given in ((x, x, {"x": x}), (x, x.clone(), {"x": x}), (x, x + 1, {"x": x + 2}))
        for part in function(*given)
        for value in part.flatten().tolist()
    ]


def time_first():
    """A batch whose rows are in dimension 1, and one whose memory lies across."""
    return look(lambda x, y: (x.T.tanh(), (x.T[None] * x.T.sum(0)).transpose(1, 2), x.T.reshape(2, 2, -1).mean(0)))


# --- what is handed over, and put away --------------------------------------------------------------------------------


@dataclasses.dataclass
class Outputs:
    out: torch.Tensor
    extra: dict


def containers_in_and_out():
    def both(given, extra=None):
        extra["seen"] = given.out.detach() * 2
        extra["same"] = given.out
        given.extra["loss"] = F.cross_entropy(given.out, given.extra["y"])
        return {"loss": given.extra["loss"], "in": given.out, "list": [given.extra["y"]]}

    both, _ = compiled(both)
    model = model_of()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for x, y in batches(8):
        out, extra = model(x), {}
        given = Outputs(out, {"y": y})
        told = both(given, extra=extra)
        said += [told["in"] is out, told["list"][0] is y, extra["same"] is out, extra["seen"].sum().item()]
        said += [given.extra["loss"].item(), descend(told["loss"], optimizer).item()]
    return said


def what_is_kept_elsewhere():
    kept, holder = [], Holder()

    def loss(out, x, y):
        state["last"] = out
        holder.labels, holder.twice = y, out * 2
        kept.append((out, y))
        return F.cross_entropy(out, y)

    said = learn(loss)
    said += [state["last"].sum().item(), (state["last"][1] + 1).sum().item(), holder.labels.sum().item()]
    said += [out.pow(2).sum().item() + y.sum().item() for out, y in kept]
    return [*said, holder.twice.sum().item(), state["last"].requires_grad, state["last"].shape[0]]


def views_that_are_handed_on():
    """Attributes of arguments, which no function of torch's gives."""
    kept = []

    def views(x, y):
        kept.append(x.mT)
        return x.T, x.data * 2, x.mT, x.T.T, (x.H, [y]), x.sum()

    views, _ = compiled(views)
    said = []
    for x, y in batches(8):
        *some, (other, (same,)), total = views(x, y)
        said += [value for view in (*some, other) for value in (view * 2).flatten().tolist()]
        said += [total.item(), same is y, *x.flatten().tolist(), *(kept[-1] + 1).flatten().tolist()]
        kept.clear()
    return said


def gradients_of_what_comes_in():
    def look_at(x):
        return x.grad, x.pow(2).sum(), x.is_leaf

    look_at, _ = compiled(look_at)
    said = []
    for x, _ in batches(8):
        x = x.clone().requires_grad_()
        x.pow(3).sum().backward()
        grad, total, is_leaf = look_at(x)
        said += [*grad.flatten().tolist(), total.item(), is_leaf]
    return said


def what_is_kept_trains():
    kept = {}

    def remember(out, y):
        kept["out"] = out
        return F.cross_entropy(out, y)

    remember, _ = compiled(remember)
    model = model_of()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for x, y in batches(5):
        loss = remember(model(x), y) + 0.1 * kept["out"].pow(2).mean()
        said.append(descend(loss, optimizer).item())
    return said


def a_loss_that_is_kept():
    kept = {}

    def keep(loss, out):
        kept["loss"] = loss
        return loss * 2 + out.pow(2).mean()

    keep, _ = compiled(keep)
    model = model_of()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for x, y in batches(8):
        out = model(x)
        other = keep(F.cross_entropy(out, y), out)
        said.append(descend(kept["loss"] + 0.1 * other, optimizer).item())
        said.append(kept["loss"].item())
    return said


def a_factor_that_changes():
    said = []
    function, _ = compiled(lambda x: (x * state["factor"]).sum(1) + state["factor"])
    for at, (x, _) in enumerate(batches(8)):
        state["factor"] = 1.0 if at < 3 else 0.5 ** (at // 2)
        said += function(x).tolist()
    state["factor"] = 1.0
    return said


def factors_that_are_read():
    """A number of a tensor's own, another one in each call."""
    function, _ = compiled(lambda x, rate: x * math.exp(-rate) + rate)
    return [value for at, (x, _) in enumerate(batches(8)) for value in function(x, 0.1 * at).flatten().tolist()]


def a_table_that_grows():
    table = torch.zeros(3, dtype=torch.float64)
    function, _ = compiled(lambda x, y: x.sum(1) + table[y])
    said = []
    for x, y in batches(8):
        said += function(x, y).tolist()
        table += 1
    return said


def statistics_that_are_written():
    seen = torch.zeros(4, dtype=torch.float64)

    def track(x, y):
        seen.mul_(0.9).add_(0.1 * x.mean(0))
        return x - seen

    said = look(track)
    return [*said, *seen.tolist()]


def rows_that_are_written():
    def write(x, y):
        x = x.clone()
        x[:, 0] = 1.0
        x[y == 1] = 0.5
        view = x.view(-1)
        x.mul_(2)
        return x, view.sum()

    return look(write)


def batches_that_are_written():
    function, _ = compiled(lambda x: x.mul_(2).sum())
    said = []
    for x, _ in batches(8):
        above = x[1]
        said += [function(x).item(), x.sum().item(), above.sum().item()]
    return said


def modes_that_change():
    function, _ = compiled(lambda x, y: F.cross_entropy(x[:, :3] * 2, y) + x.mean())
    said = []
    for at, (x, y) in enumerate(batches(8)):
        with torch.no_grad() if at % 2 else contextlib.nullcontext():
            said.append(function(x.requires_grad_(at % 3 == 0), y).item())
    with torch.inference_mode():
        said += [function(x, y).item() for x, y in batches(5)]
    return said


# --- whose function it is ---------------------------------------------------------------------------------------------


class Focal(nn.Module):
    """A loss without anything that learns."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", weights.clone())
        self.gamma = 2.0
        self.inner = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)

    def forward(self, out, y):
        losses = self.inner(out, y) * self.weight[y]
        return ((1 - torch.exp(-losses)) ** self.gamma * losses).mean()


def a_module_for_a_loss():
    criterion = Focal()
    said = learn(lambda out, x, y: criterion(out, y))
    loss_of, runs = compiled(criterion)
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    for at, (x, y) in enumerate(batches(8)):
        if at == 4:
            criterion.gamma = 1.0
        said.append(descend(loss_of(model(x), y), optimizer).item())
    return [*said, runs["graphs"] > 0]


def a_module_with_a_hook():
    criterion, seen = Focal(), []
    criterion.register_forward_hook(lambda module, args, out: seen.append(out.detach() * 2))
    loss_of, _ = compiled(criterion)
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    said = [descend(loss_of(model(x), y), optimizer).item() for x, y in batches(8)]
    return [*said, *(value.item() for value in seen)]


def a_method_of_an_object():
    class Task:
        def __init__(self, model):
            self.model, self.scale, self.count = model, 0.5, 0

        def loss(self, out, y):
            self.count += 1
            return F.cross_entropy(out * self.scale, y)

    task = Task(model_of())
    task.loss, _ = compiled(task.loss)
    optimizer = SGD(task.model.parameters(), 0.3)
    said = []
    for x, y in batches(8, epochs=1):
        said.append(descend(task.loss(task.model(x), y), optimizer).item())
        task.scale += 0.5
    return [*said, task.count]


def functions_in_another_mode():
    """Switches under which nothing is compiled."""
    function, _ = compiled(lambda x: (x * 2).sum())
    said = []
    for x, _ in batches(8):
        with torch.compiler.set_stance("force_eager"):
            said.append(function(x).item())
        said.append(function(x).item())
    return said


def gradients_inside():
    def penalty(x, y):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad((x.pow(3) * y[:, None]).sum(), x)
        return slope.pow(2).mean()

    return look(penalty)


def an_error_that_all_have():
    function, _ = compiled(lambda x: x @ torch.ones(3, 2, dtype=torch.float64))
    said = []
    for x, _ in batches(8, epochs=1):
        try:
            function(x)
        except RuntimeError as error:
            said.append(float("shapes" in str(error) or "size" in str(error)))
    return said
