"""What compiles and records a script's functions finds torch's own under the patches, as in one process."""

import pytest
import torch
from torch import zeros

import ddp_patch

RANKS = (2, 3)


def same(ranks, tmp_path, source, nproc):
    script = tmp_path / "script.py"
    script.write_text(source)
    alone = ranks.script(script, 1).ok().stdout[0]
    assert alone
    assert ranks.script(script, nproc).ok().stdout[0] == alone


# --- what compiles without us compiles with us ------------------------------------------------------------------------

EVERY_NAME = """
import linecache
import sys
import torch
import torch.utils.checkpoint

METHODS = ("", "x", "2", "[2]", "[2], 1.0", "'cpu'", "torch.float64", "[2], [1]")
FUNCTIONS = ("", "x", "x, x", "[2]", "2", "[1.0]", "3, 4", "x, [2], 1.0")

lines, calls, functions = ["import torch"], [], {}
for i, name in enumerate(NAMES):
    if name.startswith("torch.Tensor."):
        written = [f"x.{name.removeprefix('torch.Tensor.')}({given})" for given in METHODS]
    else:
        try:
            functions[f"bound{i}"] = eval(name)  # as ``from ... import`` binds it
        except AttributeError:
            pass  # torch.nn.parallel.data_parallel is a function that hides its module
        written = [f"{called}({given})" for called in (name, f"bound{i}") for given in FUNCTIONS]
    for call in written:
        lines += [f"def call{len(calls)}(x: torch.Tensor):", f"    return {call}"]
        calls.append((name, call))
source = "\\n".join(lines) + "\\n"
linecache.cache["calls.py"] = (len(source), None, source.splitlines(keepends=True), "calls.py")
exec(compile(source, "calls.py", "exec"), functions)
for i, (name, call) in enumerate(calls):
    try:
        print(name, call, torch.jit.script(functions[f"call{i}"]).graph)
    except Exception as error:
        print(name, call, type(error).__name__)
"""

# Compiling a call of torch.cuda.device's methods kills the process, with or without us (torch 2.13).
FUNCTIONS = ("torch.cuda.device.", "torch.cuda.StreamContext.", "torch.cuda.streams.")


def patched_names():
    return [line.partition(":")[0] for line in ddp_patch.report().ledger.patched]


@pytest.mark.slow
def test_every_patched_name_of_torch_compiles_to_what_it_compiles_to_without_us(ranks, tmp_path):
    applied = ranks.call(patched_names, 2).ok().results[0]
    names = [name for name in applied if name.startswith("torch.") and not name.startswith(FUNCTIONS)]
    assert {"torch.tensor", "torch.zeros", "torch.Tensor.to", "torch.nn.functional.l1_loss"} <= set(names)
    same(ranks, tmp_path, f"NAMES = {names}\n{EVERY_NAME}", 2)


# --- modules, classes, traces -----------------------------------------------------------------------------------------

FORMS = """
import typing
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(6, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer, self.loss = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.L1Loss()

    def forward(self, x):
        y = self.norm(self.layer(x)) + torch.tensor([1.0]) + x.new_zeros(4) + torch.zeros_like(x).to(torch.float32)
        return y, self.loss(y, torch.ones(y.shape))

    @torch.jit.export
    def exported(self, x: torch.Tensor):
        return torch.full([2], 1.0) + x.sum()

    @torch.jit.ignore
    def ignored(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.unused
    def unused(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Scripted(torch.jit.ScriptModule):
    @torch.jit.script_method
    def forward(self, x):
        return x + torch.ones(4) + torch.tensor(1.0)


@torch.jit.script
class Pair:
    def __init__(self, n: int):
        self.values = torch.zeros(n)

    def get(self):
        return self.values + torch.tensor(1)


def pair():
    return Pair(3).get()


@torch.jit.script_if_tracing
def when_tracing(x: torch.Tensor):
    return x + torch.zeros(x.shape[0], 1)


def drawn(n: int, generator: typing.Optional[torch.Generator] = None):
    return torch.rand([n], generator=generator)


net = Net()
scripted = torch.jit.script(net)
print(scripted.code, scripted(x), scripted.exported(x))
print(Scripted()(x), torch.jit.script(pair)(), torch.jit.script(drawn).graph)
print(torch.jit.CompilationUnit("def f(x):\\n  return torch.zeros([2]) + x\\n").f(x[0, :2]))
print(torch.jit.trace(when_tracing, x)(x), torch.jit.trace(net.eval(), x)(x))
for loss in (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.BCEWithLogitsLoss, nn.HuberLoss, nn.KLDivLoss):
    print(loss.__name__, torch.jit.script(loss())(x, x.sigmoid()))
for layer in (nn.LSTM(4, 3), nn.GRU(4, 3), nn.TransformerEncoderLayer(4, 2, 8), nn.BatchNorm2d(2)):
    print(len(torch.jit.script(layer).state_dict()))


def compiled(x):
    y = x + torch.tensor(1.0) + torch.zeros(4) + F.l1_loss(x, x + 1) + x.new_zeros(4) + torch.zeros_like(x)
    return F.batch_norm(y, None, None, None, None, True) + torch.full((4,), 2.0) + torch.arange(4) + torch.as_tensor(3)


def show(graph, example):
    print(graph.code)
    return graph.forward


torch.compile(compiled, backend=show, fullgraph=True)(x)
print(torch.fx.symbolic_trace(compiled).code, torch.fx.symbolic_trace(net).code)
for strict in (True, False):
    print(torch.export.export(net, (x,), strict=strict).graph_module.code)
"""


@pytest.mark.slow
@pytest.mark.some("2")
@pytest.mark.parametrize("nproc", RANKS)
def test_modules_classes_and_traces_compile_to_what_they_compile_to_without_us(ranks, tmp_path, nproc):
    # A trace names its values after the variables of the innermost Python frame, so graphs of traces are not compared.
    same(ranks, tmp_path, FORMS, nproc)


def scripted_before(x):
    return x + torch.zeros(2) + zeros(2)


def scripted_during(x):
    return x + torch.zeros(2) + zeros(2) + torch.tensor([1.0])


def scripted_after(x):
    return x + torch.zeros(2) + zeros(2) + torch.tensor([2.0])


before = torch.jit.script(scripted_before)
script = torch.jit.script


def compile_all_along():
    x = torch.arange(2.0)
    seen = [before(x), script(scripted_during)(x)]
    ddp_patch.disable()
    return [value.tolist() for value in (*seen, torch.jit.script(scripted_after)(x))]


def test_functions_compile_before_during_and_after_a_session(ranks):
    assert ranks.call(compile_all_along, 2).ok().results == [[[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]] * 2


# --- scripted code on batches -----------------------------------------------------------------------------------------

ON_BATCHES = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


@torch.jit.script
def centred(x, y):
    return (x - x.mean(0) + torch.tensor(1.0)).pow(2).sum() + y.to(x.dtype).mean()


@torch.jit.script
def by_row(x):
    return x.relu() + torch.zeros(3, dtype=x.dtype)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) + torch.tensor([1.0], dtype=x.dtype)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(3, 3), torch.jit.script(Head())

    def forward(self, x):
        return self.head(by_row(self.first(x)))


def value(x):
    return f"{float(x.detach()):.9f}"


net, whole, wrapped = Net(), torch.jit.script(Head()), nn.DataParallel(torch.jit.script(Head()))
measure = torch.jit.script(nn.CrossEntropyLoss())
optimizer = torch.optim.SGD([*net.parameters(), *whole.parameters(), *wrapped.parameters()], 0.1)
for x, y in DataLoader(TensorDataset(torch.randn(10, 3), torch.arange(10) % 2), 4):
    out = net(x)
    loss = measure(out, y) + 0.01 * centred(out, y) + F.cross_entropy(whole(x), y) + F.cross_entropy(wrapped(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(value(loss), value(centred(x, y)), by_row(x).shape, value(by_row(x).sum()))

# What is recorded of a model that computes rows is the author's code, for batches of any size.
for example in (x, torch.ones(4, 3), torch.ones(2, 3)):
    recorded = [torch.jit.trace(net, example), torch.jit.trace(wrapped, example)]
    recorded += [torch.jit.trace_module(Head(), {"forward": example}), torch.jit.script(net)]
    print([value(made(torch.ones(5, 3)).sum()) for made in recorded])
plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(plain.parameters(), 0.1)
for x, y in DataLoader(TensorDataset(torch.randn(8, 3), torch.arange(8) % 2), 4):
    F.cross_entropy(plain(x), y).backward()
    optimizer.step()
for example in (x, torch.ones(4, 3)):
    program = torch.export.export(plain, (example,))
    print(program.graph_module.code, value(program.module()(torch.ones(4, 3)).sum()))
"""


@pytest.mark.slow
@pytest.mark.some("3")
@pytest.mark.parametrize("nproc", RANKS)
def test_scripted_and_recorded_code_computes_what_one_process_computes(ranks, tmp_path, nproc):
    same(ranks, tmp_path, ON_BATCHES, nproc)


# --- libraries, and those who look ------------------------------------------------------------------------------------

LIBRARIES = """
import importlib

for name in (
    "torch.distributed.optim", "torch.distributed.rpc", "torch.distributed.fsdp", "torch.distributed.checkpoint",
    "torch.distributed.tensor", "torch.distributed.pipelining", "torch.onnx", "torch.ao.quantization", "torch.masked",
    "torch.distributions", "torch.testing", "torch.nn.utils.prune", "torch.utils.mobile_optimizer", "torch.package",
):
    print(importlib.import_module(name).__name__)
"""


@pytest.mark.slow
def test_libraries_that_compile_at_import_are_imported(ranks, tmp_path):
    same(ranks, tmp_path, LIBRARIES, 2)


LOOKED_AT = """
import inspect
import io
import pickle
import pydoc
import re
import typing
import torch
import torch.package
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F


def show(look, function):
    try:
        seen = str(look(function))
    except Exception as error:
        seen = type(error).__name__
    print(re.sub("0x[0-9a-f]+", "0x", seen))


LOOKS = (
    inspect.signature, typing.get_type_hints, inspect.getfullargspec, inspect.getsourcefile, inspect.isfunction,
    inspect.isbuiltin, inspect.isclass, repr, lambda f: (f.__name__, f.__qualname__, f.__module__, f.__doc__),
)
for function in (
    torch.save, torch.load, torch.tensor, torch.zeros, F.l1_loss, F.batch_norm, nn.parallel.data_parallel,
    torch.utils.checkpoint.checkpoint, nn.DataParallel.__init__, nn.Module.load_state_dict, torch.autograd.backward,
    torch.autograd.grad, torch.Tensor.to, torch.Tensor.register_hook, torch.jit.load, torch.jit.trace, torch.Generator,
    open,
):
    for look in LOOKS:
        show(look, function)
for function in (torch.save, torch.zeros, F.l1_loss, torch.Generator):
    show(pydoc.render_doc, function)
print([torch.overrides.resolve_name(function) for function in (torch.tensor, F.l1_loss, torch.Tensor.to)])
print(torch.Generator is type(torch.Generator()), torch.Generator | None, isinstance(torch.Generator(), torch.Generator))
packed = io.BytesIO()
with torch.package.PackageExporter(packed) as exporter:
    exporter.extern("**")
    exporter.save_pickle("held", "held.pkl", [torch.zeros, F.l1_loss, torch.ones(2)])
packed.seek(0)
print(torch.package.PackageImporter(packed).load_pickle("held", "held.pkl")[2])
"""


@pytest.mark.slow
def test_who_looks_at_a_patched_function_sees_the_function(ranks, tmp_path):
    same(ranks, tmp_path, LOOKED_AT, 2)
