"""What a script compiles: models run compiled on rows, also inside of compiled steps, with the numbers of one process."""

import collections
import gc
import os
import weakref

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.slow


def counted(runs, name, backend):
    """A backend that counts how often its graphs run, forward and backward."""

    def counting(kind):
        def compiler(graph, inputs):
            def run(*args):
                runs[f"{name} {kind}"] += 1
                return graph(*args)

            return run

        return compiler

    if backend == "eager":
        return counting("forward")
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def boxed(kind):
        return lambda graph, inputs: make_boxed_func(counting(kind)(graph, inputs))

    return aot_autograd(fw_compiler=boxed("forward"), bw_compiler=boxed("backward"))


def graph_runs(backend):
    """Train for some steps; how often each function's graphs ran in the last ones."""
    from torch.utils.data import DataLoader, TensorDataset

    torch.compiler.reset()
    torch.manual_seed(0)
    runs = collections.Counter()
    x, y = torch.randn(48, 4).double(), torch.arange(48) % 3
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    mean = x.mean(0)

    def compiled(name, function):
        return torch.compile(function, backend=counted(runs, name, backend))

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    loss_of = compiled("loss", lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1))
    normalised = compiled("inputs", lambda x: (x - mean) / 2)
    accuracy = compiled("metric", lambda out, y: (out.argmax(1) == y).float().mean())
    whole, forward = compiled("step", step), compiled("both", lambda x, y: F.cross_entropy(model(x), y))
    said = []
    for i, (a, b) in enumerate(DataLoader(TensorDataset(x, y), 8)):
        if i == 3:
            runs.clear()
        out = model(normalised(a))
        loss = loss_of(out, b)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said += [loss.item(), accuracy(out, b).item(), whole(a, b).item()]
        loss = forward(a, b)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said.append(loss.item())
    return said, dict(runs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_graphs_run_as_often_as_on_one_process(ranks, backend):
    """Of a step with a backward and an optimizer, those of the model and of the optimizer do."""
    wanted, alone = ranks.call(graph_runs, 1, backend).ok().results[0]
    assert alone["loss forward"] == 3
    for said, runs in ranks.call(graph_runs, 2, backend).ok().results:
        assert said == pytest.approx(wanted, rel=1e-9)
        assert runs == alone


def by_hand(out, y):
    p = out.softmax(-1)
    picked = p.gather(1, y[:, None]).squeeze(1)
    losses = -((1 - picked) ** 2) * (picked + 1e-9).log()
    with torch.no_grad():
        share = (p.argmax(1) == y).double().mean()
    return losses.mean() + 0.01 * out.pow(2).sum(1).sqrt().mean(), share


def in_parts(backend):
    """Train with a loss by hand, of two sizes of batches; what graphs ran, and how many functions each has."""
    from torch.utils.data import DataLoader, TensorDataset

    torch.compiler.reset()
    torch.manual_seed(0)
    runs, graphs = collections.Counter(), []
    x, y = torch.randn(40, 4).double(), torch.arange(40) % 3
    model = torch.nn.Linear(4, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    count = counted(runs, "loss", backend)

    def compiler(graph, inputs):
        graphs.append(len([node for node in graph.graph.nodes if node.op not in ("placeholder", "output")]))
        return count(graph, inputs)

    loss_of = torch.compile(by_hand, backend=compiler)
    said = []
    for _ in range(2):
        for a, b in DataLoader(TensorDataset(x, y), 12):
            loss, share = loss_of(model(a), b)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said += [loss.item(), share.item()]
    return said, dict(runs), graphs


def test_a_loss_by_hand_is_compiled_in_few_parts(ranks):
    """Rows are one graph, but for what no_grad() parts. A last, smaller batch has no graphs of its own for good."""
    wanted, *_ = ranks.call(in_parts, 1, "aot_eager").ok().results[0]
    for nproc in (2, 3):
        for said, runs, graphs in ranks.call(in_parts, nproc, "aot_eager").ok().results:
            assert said == pytest.approx(wanted, rel=1e-9)
            assert runs["loss forward"] <= 3 * 8
            assert runs["loss backward"] >= 6
            assert max(graphs) >= 8
            assert len(graphs) <= 6


def of_one_rank(folder):
    """Compile with what one rank has to import first: a library that seeds a generator as it is imported."""
    import importlib
    import sys

    from ddp_patch.batch.world import World

    sys.path.insert(0, folder)
    library = importlib.import_module("compiling_library")
    library.needs_more = World.get().rank == 1
    from torch.utils.data import DataLoader, TensorDataset

    torch.compiler.reset()
    model = torch.nn.Linear(4, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss_of = torch.compile(lambda out: out.pow(2).mean(), backend=library.backend)
    for (a,) in DataLoader(TensorDataset(torch.ones(16, 4).double()), 8):
        loss = loss_of(model(a))
        loss.backward()
        optimizer.step()
    return loss.item() > 0


def test_what_a_compiler_imports_draws_its_own_seeds(ranks, tmp_path):
    """Inductor's probe of the processor imports setuptools on the rank that has the lock; the others wait for it."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "compiling_library.py").write_text(
        "def backend(graph, inputs):\n    if needs_more:\n        import seeding_library\n    return graph\n"
    )
    (installed / "seeding_library.py").write_text("import random\nrandom_of_mine = random.Random()\n")
    assert ranks.call(of_one_rank, 2, str(installed)).ok().results == [True, True]


def by_inductor():
    from torch._inductor import metrics
    from torch.utils.data import DataLoader, TensorDataset

    # Ranks that share a new cache may load a library that the other one is writing (torch 2.13).
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath(f"cache-{os.getpid()}")
    torch.compiler.reset()
    torch.manual_seed(0)
    x, y = torch.randn(24, 4).double(), torch.arange(24) % 3
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    model = torch.compile(torch.nn.Sequential(*layers).double(), mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    metrics.reset()
    said = []
    for a, b in DataLoader(TensorDataset(x, y), 8):
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said.append(loss.item())
    return said, metrics.generated_kernel_count > 0


def test_inductor_compiles_a_model_that_learns_what_one_process_learns(ranks):
    wanted, _ = ranks.call(by_inductor, 1).ok().results[0]
    for said, is_compiled in ranks.call(by_inductor, 2).ok().results:
        assert said == pytest.approx(wanted, rel=1e-9)
        assert is_compiled


class Normed(torch.nn.Module):
    """With statistics of the whole batch in the middle."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


def normed(backend, fullgraph):
    """Batches of nine rows, and of three at the end; then all of them in evaluation."""
    from torch.utils.data import DataLoader, TensorDataset

    torch.compiler.reset()
    torch.manual_seed(0)
    runs = collections.Counter()
    x, y = torch.randn(48, 4).double(), torch.arange(48) % 3
    model = Normed().double()
    model.compile(backend=counted(runs, "model", backend), fullgraph=fullgraph)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for a, b in DataLoader(TensorDataset(x, y), 9):
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said.append(loss.item())
    model.eval()
    with torch.no_grad():
        said += [F.cross_entropy(model(a), b).item() for a, b in DataLoader(TensorDataset(x, y), 9)]
    return [*said, model.norm.running_var.sum().item()], runs["model forward"]


@pytest.mark.some("False-2")
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize(("backend", "fullgraph"), [("eager", False), ("aot_eager", False), ("aot_eager", True)])
def test_a_model_with_batch_norm_is_compiled_around_it(ranks, backend, fullgraph, nproc):
    """In one graph ranks cannot meet: it runs on batches then, right and not compiled while it trains."""
    wanted, _ = ranks.call(normed, 1, backend, fullgraph).ok().results[0]
    for said, runs in ranks.call(normed, nproc, backend, fullgraph).ok().results:
        assert said == pytest.approx(wanted, rel=1e-9)
        assert runs >= (3 if fullgraph else 2 * 5)


def models_of_trials(whole):
    """Train a few, one after the other, in one compiled step; how many of those that are over are still there."""
    from torch.utils.data import DataLoader, TensorDataset

    torch.compiler.reset()
    torch.manual_seed(0)
    x, y = torch.randn(24, 4), torch.arange(24) % 3
    runs = collections.Counter()

    def loss_of(model, x, y):
        return F.cross_entropy(model(x), y)

    def step(model, optimizer, x, y):
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = torch.compile(step if whole else loss_of, backend=counted(runs, "loss", "eager"))
    trials = []
    for _ in range(4):
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for a, b in DataLoader(TensorDataset(x, y), 8):
            if whole:
                compiled(model, optimizer, a, b)
            else:
                compiled(model, a, b).backward()
                optimizer.step()
                optimizer.zero_grad()
        trials.append(weakref.ref(model))
    del model, optimizer
    gc.collect()
    return sum(trial() is not None for trial in trials[:-1]), runs["loss forward"]


@pytest.mark.parametrize(("whole", "graphs"), [(False, 12), (True, 24)])
def test_models_of_trials_that_are_over_are_let_go_of(ranks, whole, graphs):
    ((left, runs),) = ranks.call(models_of_trials, 1, whole).ok().results
    assert (left, runs) == (0, graphs)
    for left, runs in ranks.call(models_of_trials, 2, whole).ok().results:
        assert left == 0
        assert runs >= graphs - 4  # each model's first call is observed
