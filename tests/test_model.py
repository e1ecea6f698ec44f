"""The model under DDP: the same objects, the whole batch's statistics and gradients, and few collectives."""

import copy
import dataclasses
import gc
import itertools
import pickle
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn, ops
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch
from ddp_patch.batch.world import World

sys.path.insert(0, str(Path(__file__).parent))


def one_batch(*shape, seed=0):
    """The batch of a one-batch loader, a BatchTensor on ranks."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return next(iter(DataLoader(TensorDataset(values), batch_size=shape[0])))[0]


class Kernels:
    """What CUDA's kernels for SyncBatchNorm compute (``aten/src/ATen/native/cuda/Normalization.cuh``, torch 2.13)."""

    @staticmethod
    def batch_norm_stats(rows, eps):
        var, mean = torch.var_mean(rows, [0, *range(2, rows.dim())], correction=0)
        return mean, torch.rsqrt(var + eps)

    @staticmethod
    def batch_norm_gather_stats_with_counts(rows, means, invstds, running_mean, running_var, momentum, eps, counts):
        assert means.is_contiguous()
        assert counts.shape == (len(means),)
        count = counts.sum()
        mean = (means * counts[:, None]).sum(0) / count
        variances = invstds**-2 - eps
        var = ((variances + (means - mean) ** 2) * counts[:, None]).sum(0) / count
        if running_mean is not None:
            running_mean.data.lerp_(mean, momentum)
            running_var.data.lerp_(var * count / (count - 1), momentum)
        return mean, torch.rsqrt(var + eps)

    @staticmethod
    def batch_norm_elemt(rows, weight, bias, mean, invstd, eps):
        shape = [1, -1] + [1] * (rows.dim() - 2)
        out = (rows - mean.view(shape)) * invstd.view(shape)
        out = out if weight is None else out * weight.view(shape)
        return out if bias is None else out + bias.view(shape)

    @staticmethod
    def batch_norm_backward_reduce(grad, rows, mean, invstd, weight, input_g, weight_g, bias_g):
        shape, dims = [1, -1] + [1] * (rows.dim() - 2), [0, *range(2, rows.dim())]
        products = (grad * (rows - mean.view(shape))).sum(dims)
        return grad.sum(dims), products, products * invstd, grad.sum(dims)

    @staticmethod
    def batch_norm_backward_elemt(grad, rows, mean, invstd, weight, sums, products, counts):
        assert counts.dtype == torch.int32
        shape = [1, -1] + [1] * (rows.dim() - 2)
        scale = invstd if weight is None else invstd * weight
        count = counts.sum()
        centred = (rows - mean.view(shape)) * (invstd**2 * products / count).view(shape)
        return (grad - (sums / count).view(shape) - centred) * scale.view(shape)


def with_kernels(by_kernels):
    """Normalise as on CUDA, with functions that stand in for its kernels."""
    from ddp_patch.calling import batch_norm

    if by_kernels:
        for name in [name for name in vars(Kernels) if name.startswith("batch_norm_")]:
            setattr(torch, name, getattr(Kernels, name))
        by = batch_norm.batch_norm_by_kernels
        batch_norm.batch_norm = lambda x, mean, var, weight, bias, *rest: by(x, weight, bias, mean, var, *rest)


def norm_case(kind, mode, by_kernels=False):
    with_kernels(by_kernels)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    shapes = {1: (7, 4), 2: (7, 4, 3, 2), 3: (7, 4, 2, 2, 2)}
    options = {
        "plain": {},
        "cumulative": {"momentum": None},
        "stateless": {"track_running_stats": False},
        "no affine": {"affine": False},
    }[mode]
    layer = getattr(nn, f"BatchNorm{kind}d")(4, **options)
    model = nn.DataParallel(
        nn.Sequential(
            layer, nn.Flatten(), nn.Linear(shapes[kind][1:].__len__() and torch.Size(shapes[kind][1:]).numel(), 2)
        )
    )
    hooked = []
    layer.register_forward_hook(lambda module, inputs, output: hooked.append(module is layer))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        x = one_batch(*shapes[kind], seed=step) * 3 + 1
        loss = model(x).pow(3).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    losses.append(model(one_batch(*shapes[kind], seed=9)).sum().item())
    model.train()
    model(one_batch(*shapes[kind], seed=10))
    values = {name: value.double().flatten().tolist() for name, value in model.state_dict().items()}
    return {"losses": losses, "values": values, "hooked": all(hooked), "layer": model.module[0] is layer}


@pytest.mark.quick("False-1-plain", "False-2-plain")
@pytest.mark.parametrize("mode", ["plain", "cumulative", "stateless", "no affine"])
@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("by_kernels", [False, True])
def test_batch_norm_sees_the_whole_batch(ranks, kind, mode, by_kernels):
    wanted = ranks.call(norm_case, 1, kind, mode).ok().results[0]
    outcome = ranks.call(norm_case, 3, kind, mode, by_kernels).ok()
    for result in outcome.results:
        assert result["hooked"]
        assert result["layer"]
        assert result["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
        assert list(result["values"]) == list(wanted["values"])
        for name, values in wanted["values"].items():
            assert result["values"][name] == pytest.approx(values, rel=1e-9, abs=1e-12), name


def norm_in_half(name):
    dtype = getattr(torch, name)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 1)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(3):
        loss = model(one_batch(8, 2, 6, 6, seed=step).to(dtype)).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.grad.dtype == dtype for p in model.parameters()]


@pytest.mark.quick("bfloat16")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_batch_norm_whose_weights_are_of_half_precision(ranks, dtype):
    wanted, _ = ranks.call(norm_in_half, 1, dtype).ok().results[0]
    for losses, are_alike in ranks.call(norm_in_half, 2, dtype).ok().results:
        assert losses == pytest.approx(wanted, rel=0.03)  # bfloat16 has 8 bits
        assert all(are_alike)


def operations_on_rows():
    """What touches a tensor as large as this rank's rows, from a BatchNorm's input to its gradient."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.data import DataLoader, TensorDataset

    found = []

    class Notes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            given = [*args, *(out if isinstance(out, (tuple, list)) else (out,))]
            if any(isinstance(value, torch.Tensor) and value.numel() == 8 * 8 * 4 * 4 for value in given):
                found.append(function.overloadpacket.__name__)
            return out

    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))
    for (batch,) in DataLoader(TensorDataset(torch.randn(64, 8, 4, 4)), 16):
        with Notes():
            model(batch).mean().backward()
        noted = [name for name in found if name not in ("detach", "alias", "view")]
        found.clear()
    first = noted.index("convolution") + 1
    return noted[first : noted.index("convolution_backward")]


def test_batch_norm_passes_over_its_rows_in_torchs_own_kernels(ranks):
    for found in ranks.call(operations_on_rows, 2).ok().results:
        forward, backward = ["batch_norm_update_stats", "native_batch_norm"], ["native_batch_norm_backward"]
        assert found == [*forward, "sum", "expand", *backward, "native_batch_norm", "add_", "mul_"]


def double_backward_of_batch_norm(by_kernels=False):
    """A gradient penalty through BatchNorm: second derivatives over all ranks' rows."""
    with_kernels(by_kernels)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        x = one_batch(8, 3, seed=step).requires_grad_()
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = out.mean() + (grad.norm(2, dim=1) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses + [p.sum().item() for p in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("by_kernels", [False, True])
def test_gradient_penalty_through_batch_norm(ranks, by_kernels):
    """The kernels of SyncBatchNorm have no derivative: torch's own cannot do this."""
    wanted = ranks.call(double_backward_of_batch_norm, 1).ok().results[0]
    for result in ranks.call(double_backward_of_batch_norm, 3, by_kernels).ok().results:
        assert result == pytest.approx(wanted, rel=1e-9)


class Branchy(nn.Module):
    """Uses a layer now and then, and one layer never."""

    def __init__(self):
        super().__init__()
        self.always = nn.Linear(4, 4)
        self.sometimes = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)

    def forward(self, x, use):
        x = self.always(x)
        return self.sometimes(x) if use else x


def odd_gradients():
    """Unused layers, two backwards on one graph, freezing, a penalty, a head outside, retained gradients."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    model, head = Branchy(), nn.Linear(4, 2)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.05, weight_decay=0.1)
    said = []
    for step in range(8):
        x = one_batch(7, 4, seed=step)
        optimizer.zero_grad()
        if step == 4:
            model.always.requires_grad_(False)
        if step == 6:
            model.always.requires_grad_(True)
        z = model(x, step % 3 == 0)
        loss = F.mse_loss(head(z), torch.zeros(7, 2)) + 0.01 * sum(p.pow(2).sum() for p in model.always.parameters())
        if step % 2:
            loss.backward(retain_graph=True)
            (loss * 0.5).backward()
        else:
            loss.backward()
        none = [p.grad is None for p in model.parameters()]
        norm = (
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0) if not step % 2 else 0
        )
        optimizer.step()
        said.append([loss.item(), none, float(norm), [p.sum().item() for p in model.parameters()]])
    return said


def flat(value):
    if isinstance(value, list):
        return [number for item in value for number in flat(item)]
    return [float(value)]


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
def test_gradients_are_global_on_odd_paths(ranks, nproc):
    wanted = flat(ranks.call(odd_gradients, 1).ok().results[0])
    for result in ranks.call(odd_gradients, nproc).ok().results:
        assert flat(result) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


class Rowwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


class Mixing(Rowwise):
    """Looks at other rows of the batch inside forward: may not be split."""

    def forward(self, x):
        z = self.layer(x)
        return z - z.median(0, keepdim=True).values


class Centred(Rowwise):
    """Sums over the batch inside forward, which ranks do together."""

    def forward(self, x):
        z = self.layer(x)
        return z - z.mean(0, keepdim=True)


class LossInside(Rowwise):
    def forward(self, x):
        return self.layer(x).pow(2).mean()


class Mapped(Rowwise):
    def forward(self, x):
        return torch.func.vmap(self.layer)(x)


class Biased(nn.Module):
    """Adds entries of a table that its buffer picks, as relative positions do."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(4, 6), nn.Parameter(torch.randn(3, 2))
        self.register_buffer("index", torch.tensor([0, 2, 1]))

    def forward(self, x):
        return self.layer(x) * self.table[self.index].flatten()


def found(kind):
    import ddp_patch

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    kinds = {"rowwise": Rowwise, "mapped": Mapped, "mixing": Mixing, "centred": Centred, "loss inside": LossInside}
    model = {**kinds, "biased": Biased}[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        loss = model(one_batch(7, 4, seed=step)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ledger = ddp_patch.report().ledger if ddp_patch.is_enabled() and ddp_patch.report().world_size > 1 else None
    return losses, ledger and [list(ledger.replicas), list(ledger.on_batches), ledger.on_whole]


@pytest.mark.quick("loss inside", "mixing")
@pytest.mark.parametrize("kind", ["rowwise", "mapped", "biased", "centred", "loss inside", "mixing"])
def test_a_model_is_split_only_if_its_rows_are_independent(ranks, kind):
    ((wanted, _),) = ranks.call(found, 1, kind).ok().results
    for losses, (replicas, whole, _) in ranks.call(found, 3, kind).ok().results:
        assert losses == pytest.approx(wanted, rel=1e-9)
        # What needs the whole batch runs as written, on batches; the layer inside it is split.
        assert (len(replicas), len(whole)) == ((1, 1) if kind == "mixing" else (1, 0))


class Wrapper(nn.DataParallel):
    extra = 5


def identity():
    import ddp_patch

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    parameters = list(net.parameters())
    wrapped = Wrapper(net)
    twin = copy.deepcopy(wrapped)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    wrapped(one_batch(6, 4).float()).sum().backward()
    optimizer.step()
    again = pickle.loads(pickle.dumps(net))
    copied = copy.deepcopy(wrapped)
    return {
        "isinstance": isinstance(wrapped, nn.DataParallel) and type(wrapped) is Wrapper,
        "module": wrapped.module is net and isinstance(net[1], nn.BatchNorm1d),
        "class": net[1].__class__ is nn.BatchNorm1d and net.__class__ is nn.Sequential,
        "keys": next(iter(wrapped.state_dict())) == "module.0.weight",
        "parameters": all(a is b for a, b in zip(parameters, net.parameters(), strict=True)),
        "pickle": type(again) is nn.Sequential and type(again[1]) is nn.BatchNorm1d,
        "copies": type(copied.module[1]) is nn.BatchNorm1d and type(twin.module) is nn.Sequential,
        "repr": repr(net) == repr(again),
        "equal": torch.equal(again[0].weight, net[0].weight),
        "enabled": ddp_patch.is_enabled(),
    }


def test_modules_keep_their_identity(ranks):
    for result in ranks.call(identity, 2).ok().results:
        assert all(result.values()), result


def parameters_that_agree(kind):
    """Equal on every rank, or different on one, while each rank sums floats with as many threads as it has."""
    import ddp_patch
    from ddp_patch.batch.world import World
    from ddp_patch.diagnosis.first_batches import compare_parameters

    rank = World.get().rank
    torch.set_num_threads(1 + rank)
    torch.manual_seed(0)
    model = nn.Linear(300, 300, dtype=torch.float64 if kind != "complex" else torch.complex64)
    nn.init.normal_(model.weight)
    if kind == "nan":
        nn.init.constant_(model.bias, float("nan") if rank else 0.0)
    if kind == "sparse":
        entries = torch.tensor([[0, 1], [2 + rank, 3 - rank]])
        model.register_buffer("graph", torch.sparse_coo_tensor(entries, [1.0, 2.0], (4, 4)))
    if kind.startswith("buffer"):
        model.register_buffer("noise", torch.full((3, 4), rank, dtype=torch.int64 if "int" in kind else torch.float32))
    if kind == "bit":
        with torch.no_grad():
            model.weight[7, 7] += rank * 1e-16 * model.weight[7, 7].abs().ceil() * 4
    if kind == "far":
        with torch.no_grad():
            model.weight[7, 7] += rank * 1e-6
    try:
        compare_parameters(World.get(), model)
    except ddp_patch.LockstepError as error:
        return str(error)
    if kind == "bit":
        torch.manual_seed(0)
        other = nn.init.normal_(nn.Linear(300, 300, dtype=torch.float64).weight)
        assert torch.equal(other, model.weight)
    assert not kind.startswith("buffer") or model.noise.sum() == 0
    return "; ".join(ddp_patch.report().ledger.notes) or "agree"


@pytest.mark.quick("sparse", "bit", "buffer")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("same", "agree"),
        ("complex", "agree"),
        ("nan", "'bias' of Linear differs"),
        ("bit", "'weight' of Linear differed between ranks by rounding, so rank 0's was taken"),
        ("far", "'weight' of Linear differs"),
        ("sparse", "'graph' of Linear differs"),
        ("buffer", "the buffer 'noise' of Linear differed between ranks, so rank 0's was taken"),
        ("buffer of ints", "the buffer 'noise' of Linear differed between ranks, so rank 0's was taken"),
    ],
)
def test_ranks_compare_parameters_to_the_bit_however_they_sum(ranks, kind, said):
    for result in ranks.call(parameters_that_agree, 3, kind).ok().results:
        assert said in result


def collectives():
    """What a plain classification loop sends, after its first step."""
    import ddp_patch

    torch.manual_seed(0)
    model = nn.DataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(60, 8), torch.randint(0, 3, (60,))), batch_size=10)
    counts = []
    for epoch in range(2):
        if epoch == 1:
            counts.append(dict(ddp_patch.report().ledger.collectives))
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            (out.argmax(1) == y).sum().item()
    counts.append(dict(ddp_patch.report().ledger.collectives))
    before, after = counts
    return {kind: (after[kind] - before.get(kind, 0)) / 6 for kind in after}


def test_a_plain_loop_sends_one_bucket_with_the_loss_and_one_metric_per_step(ranks):
    for result in ranks.call(collectives, 2).ok().results:
        assert {kind: count for kind, count in result.items() if count} == {"gradient bucket": 1.0, "all_reduce": 1.0}


class ItsLoss(nn.Module):
    """Computes its loss, as a GPT does."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        out = self.head(x)
        return out, F.cross_entropy(out, x[:, 0].long().abs() % 3)


def collectives_of_steps():
    """What the steps send of a model that computes its loss."""
    batches = DataLoader(torch.randn(60, 8), batch_size=10)
    losses = steps(ItsLoss(), batches, lambda model, x, _: model(x)[1])
    counts = [(loss.item(), dict(ddp_patch.report().ledger.collectives))[1] for loss in losses]
    return [{kind: now[kind] - then.get(kind, 0) for kind in now} for then, now in itertools.pairwise(counts)]


def test_a_loss_in_forward_is_sent_with_the_gradients(ranks):
    for each in ranks.call(collectives_of_steps, 2).ok().results:
        assert [{kind: count for kind, count in step.items() if count} for step in each[2:]] == [
            {"gradient bucket": 1}
        ] * 3


def draws():
    """What rows draw and what the script draws."""
    torch.manual_seed(3)
    model = nn.DataParallel(nn.Sequential(nn.Linear(50, 50), nn.Dropout(0.5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    masks = []
    for step in range(2):
        out = model(one_batch(8, 50, seed=step).float())
        masks.append((out == 0).tolist())
        out.sum().backward()
        optimizer.step()
    return masks, torch.rand(3).tolist()


@pytest.mark.slow
def test_dropout_differs_between_ranks_and_the_script_generator_does_not(ranks):
    first, second = ranks.call(draws, 2).ok().results
    assert first == second
    mask = first[0][0]
    assert mask[:4] != mask[4:]
    assert first[0][0] != first[0][1]
    assert ranks.call(draws, 2).ok().results[0] == first, "not reproducible from the seed"


def entries_of_rows():
    """An entry of each row, by ``torch.arange``: as it is made, changed in place, and in inference mode."""
    x, last = one_batch(7, 4), torch.arange(7) % 4
    found = [x[torch.arange(7), last].tolist()]
    turned = torch.arange(7)
    turned.copy_(turned.flip(0))
    found.append(x[turned, last].tolist())
    with torch.inference_mode():
        found += [x[torch.arange(7), last].tolist(), x[torch.arange(len(x)), 1].tolist(), x[turned, last].tolist()]
    return found


@pytest.mark.slow
def test_an_entry_of_each_row_is_that_of_one_process(ranks):
    wanted = ranks.call(entries_of_rows, 1).ok().results[0]
    assert ranks.call(entries_of_rows, 3).ok().results == [wanted] * 3


def entries_of_rows_that_come_second():
    """Entries of ``[T, B, C]`` by ``torch.arange(B)``, as in conditional random fields, and what they cost."""
    x, y = one_batch(7, 3, 4), one_batch(7, 3).mul(100).long().abs() % 4
    w = torch.nn.Parameter(torch.linspace(-1, 1, 4, dtype=torch.float64))
    z, tags, rows = (x * w).transpose(0, 1), y.t(), torch.arange(7)
    ends = (x[:, :, 0] > 0).t().long().sum(0).clamp(max=2)
    written = (x * 1).transpose(0, 1)
    written[1, rows, tags[1]] = z[0, rows, 2].detach() * 2
    written[ends, rows] = -1.0
    picked = [
        *(z[0, rows, tags[0]], z[torch.tensor(2), rows, tags[1]], z[ends, rows, tags[2]], z[ends, rows]),
        *(tags[ends, rows], z[1, rows], z[1, rows, 1:3], z[1, rows[:, None], torch.tensor([[0, 3]])]),
        *(z[torch.arange(3)[:, None], rows, 1], z[(torch.arange(3)[:, None], rows, tags)], written.mul(w.detach())),
        *(z[0, rows.flip(0), 1], z[-1, rows, -1], z.unsqueeze(0)[0, 1, rows, 2]),
    ]
    sizes = [tuple(part.shape) for part in picked]
    loss = sum((part * (number + 1)).square().sum() for number, part in enumerate(picked[:-3]))
    gathers = ddp_patch.report().ledger.collectives["all_gather"] if ddp_patch.world_size() > 1 else 0
    loss.backward()
    return [sizes, [part.tolist() for part in picked], loss.item(), w.grad.tolist()], gathers


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3, 4])
def test_an_entry_of_each_row_that_comes_second_is_that_of_one_process(ranks, nproc):
    ((wanted, _),) = ranks.call(entries_of_rows_that_come_second, 1).ok().results
    for said, gathers in ranks.call(entries_of_rows_that_come_second, nproc).ok().results:
        assert (said[:2], gathers) == (wanted[:2], 1), "of rows that are turned around"
        assert said[2:] == [pytest.approx(told, rel=1e-12) for told in wanted[2:]]


def folds(is_local, is_wrapped=False):
    """A model for each fold, of which the first one is kept, evaluated and trained again."""
    drawn = torch.Generator().manual_seed(0)
    data = TensorDataset(
        torch.randn(48, 5, generator=drawn, dtype=torch.float64), torch.randint(2, (48,), generator=drawn)
    )
    models, losses, kept = [], [], None

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(2):
            for x, y in DataLoader(data, 12):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(float(ddp_patch.mean(loss)))
            scheduler.step()

    for fold in range(5):
        torch.manual_seed(fold)
        model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).double()
        models.append(weakref.ref(model))
        model = nn.DataParallel(model) if is_wrapped else model
        train(model)
        kept = model if fold == 0 else kept
        del model
        gc.collect()  # DDP is in cycles
    alive = [at for at, its in enumerate(models) if its() is not None]
    with torch.no_grad():
        kept.eval()
        right = sum(float(ddp_patch.sum((kept(x).argmax(1) == y).sum().item())) for x, y in DataLoader(data, 12))
    kept.train()
    train(kept)
    weights = nn.utils.parameters_to_vector(kept.parameters()).tolist()
    return {"losses": losses, "right": right if is_local else 0.0, "weights": weights}, alive


@pytest.mark.slow
@pytest.mark.parametrize(("view", "is_wrapped"), [("global", False), ("global", True), ("local", False)])
@pytest.mark.parametrize("nproc", [2, 3])
def test_models_of_folds_that_are_over_are_let_go(ranks, nproc, view, is_wrapped):
    ((wanted, _),) = ranks.call(folds, 1, view == "local", is_wrapped).ok().results
    for found, alive in ranks.call(folds, nproc, view == "local", is_wrapped, enable={"view": view}).ok().results:
        assert alive == [0, 4]  # the kept one, and the last one, which no other one has followed
        assert found["right"] == wanted["right"]
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
        assert found["weights"] == pytest.approx(wanted["weights"], rel=1e-9, abs=1e-12)


def ensemble(is_wrapped):
    """What models say that are evaluated by turns, and how often the ranks tell each other objects for a batch."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double() for _ in range(3)]
    models = [nn.DataParallel(model) if is_wrapped else model for model in models]
    x = torch.randn(16, 5, dtype=torch.float64)
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for (rows,) in DataLoader(TensorDataset(x), 8):
            model(rows).pow(2).mean().backward()
            optimizer.step()
        del optimizer
        gc.collect()
    said, sent = [], []
    for (rows,) in DataLoader(TensorDataset(x), 4):
        before = exchanged()
        with torch.no_grad():
            said.append(sum(model(rows) for model in models).sum().item())
        sent.append(exchanged() - before)
    return said, sent


def exchanged():
    """How often the ranks told each other objects."""
    return World.current.ledger.collectives["all_gather_object"] if World.current else 0


@pytest.mark.quick("True")
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_models_that_are_evaluated_by_turns_keep_what_is_known_of_them(ranks, is_wrapped):
    ((wanted, _),) = ranks.call(ensemble, 1, is_wrapped).ok().results
    for said, sent in ranks.call(ensemble, 2, is_wrapped).ok().results:
        assert said == pytest.approx(wanted, rel=1e-9)
        assert sent[1:] == [0, 0, 0]


PACKAGE = """
import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4))

    def forward(self, x):
        return x @ self.weight


class Middle(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Inner(), Inner()

    def forward(self, x):
        order = x[:, 0].round().long().argsort()
        return self.second(self.first(x)[order].tanh())[order.argsort()]


class Outer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.config = type("Config", (), {"sizes": sizes, "__hash__": None})()
        self.parts = nn.ModuleList(Middle() for _ in range(2))

    def forward(self, x):
        for part in self.parts:
            x = x + part(x) * len(self.config.sizes)
        return x
"""


def nested():
    """Models of a package, each of which runs function by function, and so finds those inside of it a step later."""
    Path("site-packages").mkdir(exist_ok=True)
    Path("site-packages", "a_package.py").write_text(PACKAGE)
    sys.path.insert(0, str(Path("site-packages").absolute()))
    import a_package

    torch.set_default_dtype(torch.float64)
    model = a_package.Outer([1, 2])
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    said, sent = [], []
    for (x,) in DataLoader(TensorDataset(torch.arange(160.0).view(40, 4).sin()), 4):
        before = exchanged()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
        sent.append(exchanged() - before)
    return said, sent


def test_models_of_a_package_decide_once_for_each_form(ranks):
    """What one inside of another is found to be changes nothing of the other."""
    ((wanted, _),) = ranks.call(nested, 1).ok().results
    for said, sent in ranks.call(nested, 2).ok().results:
        assert said == pytest.approx(wanted, rel=1e-9)
        assert sum(map(bool, sent)) <= 3  # one step for each level
        assert sent[4:] == [0] * 6


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(5, 6), nn.Linear(6, 2), nn.Linear(6, 1)

    def forward(self, x):
        return self.actor(torch.tanh(self.body(x)))


def held_beside_models():
    """A temperature that no module owns, a net that is called first after some steps, a head that is added later."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    written, watched, found, losses = vars(nn.Module)["__call__"], [], [], []
    policy, late, head = Policy(), nn.Linear(2, 2), nn.Linear(2, 1)
    temperature, log_alpha = nn.Parameter(torch.ones(())), torch.zeros(1, requires_grad=True)
    nets = torch.optim.SGD([*policy.parameters(), *late.parameters(), temperature], 0.1)
    alphas = torch.optim.SGD([log_alpha], 0.1)
    for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(72, 5)), 8)):
        out = policy(x) * temperature
        out = late(out) if step > 2 else out
        if step == 6:
            nets.add_param_group({"params": [*head.parameters()]})
        out = head(out) if step > 6 else out
        loss = out.pow(2).mean() + (log_alpha.exp() * out.detach()).mean()
        for optimizer in (nets, alphas):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (nets, alphas):
            optimizer.step()
        losses.append(loss.item())
        watched.append(vars(nn.Module)["__call__"] is not written)
        found.append(len(World.current.ledger.replicas) if World.current else 0)
    torch.set_default_dtype(torch.float32)
    return losses, watched, found


@pytest.mark.slow
def test_calls_are_watched_until_everything_is_found_that_a_module_may_own(ranks):
    ((wanted, _, _),) = ranks.call(held_beside_models, 1).ok().results
    for losses, watched, found in ranks.call(held_beside_models, 2).ok().results:
        assert losses == pytest.approx(wanted, rel=1e-9)
        # `late` is sought in the first steps, found in the fourth; the head is sought from the seventh on.
        assert found == [1, 1, 1, 2, 2, 2, 2, 3, 3]
        assert watched == [True, True, True, True, False, False, True, True, False]


def watched_after_an_optimizer_has_gone():
    """It goes a step later on one rank, as what is in a cycle goes when the garbage collector comes by."""
    written, watched = vars(nn.Module)["__call__"], []
    gone = [torch.optim.SGD(nn.Linear(4, 4).parameters(), 0.1)]
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if ddp_patch.rank() == 0:
        gone.clear()
    for (x,) in DataLoader(TensorDataset(torch.ones(40, 4)), 8):
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        gone.clear()
        watched.append(vars(nn.Module)["__call__"] is not written)
    return watched


def test_an_optimizer_that_goes_late_on_a_rank_has_nobody_watched_there_alone(ranks):
    for watched in ranks.call(watched_after_an_optimizer_has_gone, 2).ok().results:
        assert watched[0] is True
        assert watched[-2:] == [False, False]


class Scales(nn.Module):
    """Without a product, whose operations torch counts."""

    def __init__(self):
        super().__init__()
        self.scales = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.scales


def steps_in_which_operations_are_counted():
    entered, enter = [], TorchDispatchMode.__enter__
    TorchDispatchMode.__enter__ = lambda mode: entered.append(1) or enter(mode)
    found = []
    for model in (Scales(), nn.Linear(4, 3)):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for (x,) in DataLoader(TensorDataset(torch.ones(64, 4)), 8):
            entered.clear()
            model(x).pow(2).mean().backward()
            optimizer.step()
            found.append(bool(entered))
    TorchDispatchMode.__enter__ = enter
    return found


def test_operations_are_counted_once_for_the_report(ranks):
    for found in ranks.call(steps_in_which_operations_are_counted, 2, enable={"report": True}).ok().results:
        assert all([found[1], found[9]])
        assert not any([*found[3:8], *found[11:]]), found


def by_hand(kind):
    """Train without an optimizer, in three ways; give how many models ddp_patch has found."""
    torch.manual_seed(0)
    first, last = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)), nn.Linear(4, 1)
    for x in torch.randn(4, 8, 4):
        if kind == "a part":
            last(first(x)).square().mean().backward()
            trained = [last]
        elif kind == "a bias that has no gradient":  # Wasserstein's
            (last(first(x)).mean() - last(x).mean()).backward()
            trained = [first, last]
        else:  # two forwards before the first backward
            made, judged = first(x), last(x)
            made.square().mean().backward()
            down(first)
            judged.square().mean().backward()
            trained = [last]
        for model in trained:
            down(model)
    return len(ddp_patch.report().ledger.replicas)


def down(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


@pytest.mark.quick("a part")
@pytest.mark.parametrize("kind", ["a part", "a bias that has no gradient", "two forwards first"])
def test_what_a_script_trains_by_hand_is_found(ranks, kind):
    assert ranks.call(by_hand, 2, kind).ok().results == [2, 2]


def calls_of_ours(layers=2):
    """Count the calls of Python in a steady step that are the package's."""
    model, counts = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers - 1)), nn.ReLU(), nn.Linear(4, 2)), []
    package, optimizer = str(Path(ddp_patch.__file__).parent), torch.optim.SGD(model.parameters(), 1e-3)
    for x, y in DataLoader(TensorDataset(torch.ones(240, 4), torch.ones(240, dtype=torch.long)), 8):
        called = []
        sys.setprofile(lambda frame, event, given, called=called: called.append((event, frame.f_code.co_filename)))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sys.setprofile(None)
        counts.append(sum(event == "call" and path.startswith(package) for event, path in called))
    return counts[-1]


def test_a_step_takes_few_calls_of_python(ranks):
    assert max(ranks.call(calls_of_ours, 2).ok().results) <= 230


def test_a_step_takes_no_calls_of_python_for_each_parameter(ranks):
    """Hand-written DDP has a hook in C++ for each; 300 and 1,000 tensors."""
    few, many = (max(ranks.call(calls_of_ours, 2, layers).ok().results) for layers in (150, 500))
    assert many < few + 20  # a wait or a weak reference more or less, and none for each of 700


@dataclasses.dataclass
class Configuration:
    width: int = 6
    bias: bool = True


class Configured(nn.Module):
    def __init__(self, configuration):
        super().__init__()
        self.configuration = configuration
        self.first, self.last = nn.Linear(4, configuration.width), nn.Linear(configuration.width, 3)

    def forward(self, x, y):
        out = self.last(self.first(x).tanh()) if self.configuration.bias else x
        return out, F.cross_entropy(out, y)

    @classmethod
    def usual(cls):
        return cls(Configuration())


def configured():
    """Which of the modules run on batches; a trial copies the configuration, and Python notes that in its class."""
    if "__slotnames__" in vars(Configuration):
        del Configuration.__slotnames__
    model = Configured.usual()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(TensorDataset(torch.randn(16, 4), torch.arange(16) % 3), 8):
        optimizer.zero_grad()
        model(x, y)[1].backward()
        optimizer.step()
    return [*ddp_patch.report().ledger.on_batches]


def test_a_configuration_that_is_copied_leaves_a_model_on_rows(ranks):
    assert ranks.call(configured, 2).ok().results == [[], []]


class CalledByParts(nn.Module):
    """Acts by its forward, and learns by a method."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.scores(x).argmax(1)

    def scores(self, x):
        return self.head(self.body(x).tanh())


def rows_of_parts():
    """How often four rows were computed, once a model was called and a method of it calls its parts."""
    torch.manual_seed(0)
    model = CalledByParts()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.randn(48, 6)
    with torch.no_grad():
        for _ in range(4):
            model(data[:8])
    before = ddp_patch.report().ledger.rows[4]
    for x in data.split(8):
        loss = model.scores(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return ddp_patch.report().ledger.rows[4] - before, loss.item()


def test_parts_that_a_method_calls_are_computed_on_rows(ranks):
    ((_, loss),) = ranks.call(rows_of_parts, 1).ok().results
    for calls, ours in ranks.call(rows_of_parts, 2).ok().results:
        assert calls == 12  # two parts, six steps
        assert ours == pytest.approx(loss, rel=1e-6)


def steps(model, batches, call=lambda model, x, step: model(x).square().mean()):
    """Train a model; gives the loss after each step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step, x in enumerate(batches):
        optimizer.zero_grad()
        loss = call(model, x, step)
        loss.backward()
        optimizer.step()
        yield loss


def losses_of(*args):
    """Give the losses of all steps."""
    return [loss.item() for loss in steps(*args)]


class LooksAtItsBatch(nn.Module):
    """Runs as written, on batches: the module that it calls is found while calls are watched."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.Tanh())

    def forward(self, x):
        y = self.inner(x)
        self.seen = y.median().item()
        return y


def rows_of_inner_modules():
    """How many of six steps computed the inner module on this rank's four rows."""
    losses_of(LooksAtItsBatch(), DataLoader(torch.randn(48, 6), batch_size=8))
    return ddp_patch.report().ledger.rows[4]


def test_a_module_in_a_forward_on_batches_is_found_after_the_first_step(ranks):
    assert ranks.call(rows_of_inner_modules, 2).ok().results == [4, 4]  # it is observed once as well


def dealt_along():
    """What the report says of a model that looks at its batch, of a script without a loader."""
    losses_of(LooksAtItsBatch(), torch.randn(48, 6).split(8))
    return [str(note) for note in ddp_patch.report().ledger.notes]


def test_a_model_that_looks_at_its_batch_is_not_dealt_along_features(ranks):
    """Few numbers are gathered, but along dimension 1 every rank would compute all products."""
    for notes in ranks.call(dealt_along, 2).ok().results:
        assert any("dealt along dimension 0" in note for note in notes), notes
        assert not any("dealt along dimension 1" in note for note in notes), notes


class RowsOfParameters(nn.Module):
    """Computes a row per sample from parameters alone, as tables do that are looked up at offsets; on batches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.EmbeddingBag(10, 6, mode="sum"), nn.Linear(6, 2)

    def forward(self, x, at, offsets):
        rows = self.table(at, offsets).tanh()
        self.seen = x.max().item()
        return self.head(torch.cat([x, rows], 1)[:, 3:9] * (x - rows))


def gathered_by_rows_of_parameters():
    """How often a step gathers, and the last loss."""

    def call(model, x, step):
        at, offsets = (torch.arange(20) * 7 + step) % 10, torch.tensor([0, 2, 3, 5, 8, 13, 15, 18])
        return model(x, at, offsets).square().mean()

    batches = DataLoader(torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), batch_size=8)
    told = [
        (ddp_patch.report().ledger.collectives["all_gather"], loss.item())
        for loss in steps(RowsOfParameters(), batches, call)
    ]
    return (told[7][0] - told[4][0]) / 3, told[7][1]


def test_gradients_of_what_a_forward_computes_from_parameters_gather_nothing(ranks):
    ((_, loss),) = ranks.call(gathered_by_rows_of_parameters, 1).ok().results
    for gathers, ours in ranks.call(gathered_by_rows_of_parameters, 2).ok().results:
        assert (gathers, ours) == (0, pytest.approx(loss, rel=1e-6))


class NamesOperators(nn.Module):
    """Reaches ``torch.ops``, which has one name more whenever a library is asked for."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        assert ops.of_a_library_that_nobody_has is not None
        return self.head(x)


def on_batches_by_names_of_operators():
    losses_of(NamesOperators(), DataLoader(torch.ones(32, 6), batch_size=8))
    return sorted(ddp_patch.report().ledger.on_batches)


def test_operators_that_torch_looks_up_leave_a_model_on_rows(ranks):
    assert ranks.call(on_batches_by_names_of_operators, 2).ok().results == [[], []]


class KeepsStatistics(nn.Module):
    """Sets an attribute in its first call, which is another one in each later call: as BatchNorm of flows by hand."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        y = self.head(x)
        self.batch_mean = y.mean(0)
        return y - self.batch_mean


def on_batches_by_statistics():
    losses_of(KeepsStatistics(), DataLoader(torch.randn(64, 6), batch_size=8))
    ledger = ddp_patch.report().ledger
    return sorted(ledger.on_batches), ledger.rows[4]


def test_what_a_first_call_alone_does_is_not_reported(ranks):
    assert ranks.call(on_batches_by_statistics, 2).ok().results == [[[], 7]] * 2


class SpeaksByTokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cells, self.last = nn.Embedding(7, 4), nn.GRU(4, 4, 2), nn.Linear(4, 7)

    def forward(self, token, state):
        out, state = self.cells(self.words(token).view(1, token.size(0), -1), state)
        return self.last(out.view(token.size(0), -1)), state


def on_batches_by_states_of_the_script():
    """A script without a loader, which makes states ``[L, B, H]`` and calls a model with tokens ``[B]``."""
    model = SpeaksByTokens()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    texts = torch.arange(40).view(8, 5) % 7
    for _ in range(2):
        state, loss = torch.zeros(2, 8, 4), 0
        for at in range(4):
            logits, state = model(texts[:, at], state)
            loss += F.cross_entropy(logits, texts[:, at + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ledger = ddp_patch.report().ledger
    return sorted(ledger.on_batches), ledger.rows[4], ledger.collectives["all_gather"]


def test_states_of_a_script_are_dealt_beside_tokens(ranks):
    assert ranks.call(on_batches_by_states_of_the_script, 2).ok().results == [[[], 8, 0]] * 2


class Annealed(nn.Module):
    """Is given a temperature that changes in every step, and sums into zeros of its batch's size."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x, temperature):
        z = torch.zeros(x.size(0), 2)
        for _ in range(2):
            z += self.head(x) / temperature
        return z


def gathered_while_annealed():
    def call(model, x, step):
        return model(x, 1.0 + 0.1 * step).square().sum()

    batches = DataLoader(torch.randn(64, 6), batch_size=8)
    gathers = [ddp_patch.report().ledger.collectives["all_gather"] for _ in steps(Annealed(), batches, call)]
    return gathers[-1] - gathers[1]


def test_zeros_of_a_batchs_size_are_a_batch_while_a_number_is_annealed(ranks):
    assert ranks.call(gathered_while_annealed, 2).ok().results == [0, 0]


class AddsNumbersOfRows(nn.Module):
    """Gives rank 0, whose rows are the first, what one process does, and other ranks something else."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(x + torch.arange(x.size(0))[:, None])


def operations_of_a_first_call():
    from ddp_patch.batch.world import World

    batches = DataLoader(torch.randn(24, 6), batch_size=6)
    return [World.get().operations for _ in steps(AddsNumbersOfRows(), batches)]


def test_trials_that_end_otherwise_count_functions_alike(ranks):
    """Errors of later functions are told apart by their numbers."""
    first, *others = ranks.call(operations_of_a_first_call, 3).ok().results
    assert others == [first, first]


def dealt_with_a_memory():
    """What the report says of a model of words ``[T, B]``, whose first call is dealt along T, and of its memory."""
    from parity.size_habits import Remembers

    model, memory, texts = Remembers(), (), torch.arange(43 * 6).view(43, 6) % 9
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for at in range(0, 42, 7):
        out, *memory = model(texts[at : at + 7], *memory)
        optimizer.zero_grad()
        F.cross_entropy(out.flatten(0, 1), texts[at + 1 : at + 8].flatten()).backward()
        optimizer.step()
    return [str(note) for note in ddp_patch.report().ledger.notes], ddp_patch.report().ledger.rows[3]


def test_a_memory_goes_along_with_the_dimension_that_is_found_better(ranks):
    for notes, rows in ranks.call(dealt_with_a_memory, 2).ok().results:
        assert any("dealt along dimension 1" in note for note in notes), notes
        assert rows >= 3


def by_hand_beside(kind):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    critic, policy = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    optimizer, said = torch.optim.SGD(critic.parameters(), 0.1), []

    def criticise(x):
        loss = critic(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())

    for step, x in enumerate(torch.randn(24, 8, 4)):
        if kind == "afterwards":
            if step < 8:
                criticise(x)
                continue
            loss = policy(x).square().mean()
            loss.backward()
            down(policy)
        else:  # a policy's natural gradient, as TRPO has it, by several products with a Hessian
            criticise(x)
            for _ in range(3):
                loss = policy(x).square().sum(1).mean()
                first = torch.autograd.grad(loss, policy.parameters(), create_graph=True)
                flat = torch.cat([grad.flatten() for grad in first])
                second = torch.autograd.grad((flat * flat.detach()).sum(), policy.parameters())
            with torch.no_grad():
                for parameter, grad in zip(policy.parameters(), second, strict=True):
                    parameter -= 0.01 * grad
        said.append(loss.item())
    torch.set_default_dtype(torch.float32)
    return said, len(World.current.ledger.replicas) if World.current else 0


@pytest.mark.quick("afterwards")
@pytest.mark.parametrize("kind", ["afterwards", "between steps"])
def test_what_a_script_trains_by_hand_beside_an_optimizer_is_found(ranks, kind):
    ((wanted, _),) = ranks.call(by_hand_beside, 1, kind).ok().results
    for said, found in ranks.call(by_hand_beside, 3, kind).ok().results:
        assert said == pytest.approx(wanted, rel=1e-9)
        assert found == 2


def asks_for_names():
    x = ddp_patch.shard_batch(torch.zeros(4, 2))
    before = dict(World.current.ledger.collectives)
    has = "reshape" in dir(x)
    return has and before == World.current.ledger.collectives


def test_names_of_a_batch_are_asked_for_on_one_rank_alone(ranks):
    """As Python's traceback does, to name what a misspelt attribute is like."""
    assert all(ranks.call(asks_for_names, 2).ok().results)
