"""Scripts that name accelerators run on this rank's device, whatever it is."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerator_habits import HABITS, KINDS_OF_SEQUENCES, TOLERANCES, what_is_not_split
from parity.test_habits import compare
from parity.test_scripts import compare_text
from parity.together import run_all_on, try_all

from ddp_patch.effects.device_map import DeviceMap
from ddp_patch.errors import BatchError
from ddp_patch.options import Options
from ddp_patch.patcher import Patcher
from ddp_patch.patches import device, on_accelerators, without_cuda

HARD_CODED = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
torch.cuda.set_device(0)
torch.backends.cudnn.benchmark = True
gpus = [int(i) for i in "0,1".split(",")]
device = torch.device("cuda:0")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8, device="cuda:0")
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        noise = torch.zeros(x.size(0), 8, device="cuda") + torch.ones(8).cuda()
        return self.head(torch.tanh(self.body(x)) * noise)


model = nn.DataParallel(Net().cuda(gpus[0]), device_ids=gpus, output_device=gpus[0]).to(device)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], device=device)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
data = TensorDataset(torch.randn(20, 4), torch.randint(0, 3, (20,)))
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
for epoch in range(2):
    for x, y in DataLoader(data, 6, pin_memory=True):
        x, y = x.cuda(non_blocking=True), y.to("cuda:1", non_blocking=True)
        with torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream()):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        print(loss.item(), x.shape, (x.new_ones(2, device=0) + torch.arange(2, device=device)).tolist())
    torch.cuda.empty_cache()
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0
state = {"model": model.state_dict(), "cuda": torch.cuda.get_rng_state_all(), "rng": torch.get_rng_state()}
torch.save(state, "model.pt")
model.load_state_dict(torch.load("model.pt", map_location=lambda storage, place: storage.cuda() if "cuda" in place else storage)["model"])
model.load_state_dict(torch.load("model.pt", map_location={"cuda:0": "cuda:1"})["model"])
torch.cuda.set_rng_state_all(state["cuda"])
assert torch.cuda.memory_allocated() >= 0 and torch.cuda.max_memory_allocated(0) >= 0 and torch.cuda.current_device() == 0
assert torch.zeros(2).pin_memory().shape == (2,)
torch.set_default_device("cuda:0")
print(torch.zeros(2).sum().item(), torch.cuda.is_available(), torch.cuda.device_count())
"""
PLAIN = (
    HARD_CODED.replace("torch.cuda.set_device(0)", "")
    .replace(".cuda(non_blocking=True)", "")
    .replace(".cuda(gpus[0])", "")
    .replace(".cuda()", "")
    .replace('"cuda:0"', '"cpu"')
    .replace('"cuda:1"', '"cpu"')
    .replace('"cuda"', '"cpu"')
    .replace("device=0", 'device="cpu"')
    .replace("with torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream()):", "if True:")
)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the script runs as it is: see the gpu tests")
@pytest.mark.parametrize("nproc", [2, 3])
def test_hard_coded_devices_end_on_the_host_without_cuda(ranks, tmp_path, nproc):
    cut = PLAIN.index("start, end = ")
    plain = PLAIN[:cut] + PLAIN[cut:].replace(PLAIN[cut : PLAIN.index("for epoch")], "")
    plain = "\n".join(
        line
        for line in plain.splitlines()
        if not any(word in line for word in ("end.record", "synchronize", "elapsed", "empty_cache"))
    )
    plain = plain.replace("torch.cuda.get_rng_state_all()", "[]").replace(
        'torch.cuda.set_rng_state_all(state["cpu"])', ""
    )
    plain = "\n".join(
        line for line in plain.splitlines() if "memory_allocated" not in line and "pin_memory()" not in line
    )
    (tmp_path / "plain.py").write_text(plain)
    (tmp_path / "hard_coded.py").write_text(HARD_CODED)
    alone = ranks.script(tmp_path / "plain.py", 1).ok().stdout[0]
    outcome = ranks.script(tmp_path / "hard_coded.py", nproc).ok()
    compare_text(outcome.stdout[0], alone, 1e-5)
    assert alone.splitlines()[-1] == "0.0 False 0"


def test_names_of_accelerators_are_redirected_and_nothing_else():
    places = DeviceMap(torch.device("cuda", 3))
    mine = torch.device("cuda", 3)
    assert [places.of(name) for name in ("cuda", "cuda:0", "cuda:7")] == ["cuda:3"] * 3
    assert [places.of(device) for device in (torch.device("cuda"), torch.device("cuda:1"), 0, 5)] == [mine] * 4
    for left in ("cpu", torch.device("cpu"), torch.device("meta"), "meta", None, True, torch.float32, "cudart"):
        assert places.of(left) is left
    assert DeviceMap(torch.device("cpu", 0)).of("cuda:1") == "cpu"


def consumed(place):
    """Everything else that takes a device."""
    is_host = place == "cpu"
    device, seen = torch.device(place), []
    generator = torch.Generator(device=place).manual_seed(3)
    seen.append([torch.rand(2, generator=generator, device=place).tolist(), isinstance(generator, torch.Generator)])
    with device:
        seen.append([str(torch.zeros(2).device), torch.nn.Linear(2, 1).weight.shape])
    kinds = torch if is_host else torch.cuda
    seen.append([kinds.FloatTensor([1, 2]).tolist(), str(torch.ones(1).type(kinds.LongTensor).dtype)])
    seen.append(str(torch.ones(1).type("torch.DoubleTensor" if is_host else "torch.cuda.DoubleTensor").dtype))
    seen.append([torch.fft.fftfreq(4, device=device).tolist(), torch.signal.windows.hann(4, device=place).tolist()])
    seen.append([str(torch.ones(2).new([1.0], device=device).device), torch.empty(2, device="meta").device.type])
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    packed = packed.to(place) if is_host else packed.cuda(0).to(place)
    seen.append([str(packed.data.device), packed.data.shape])
    torch.jit.save(torch.jit.script(torch.nn.Identity()), "model.jit")
    seen.append(torch.jit.load("model.jit", map_location=device)(torch.ones(1)).item())
    module = torch.nn.Linear(2, 2).to_empty(device=device)
    module = module.to(torch.float64) if is_host else module.cuda(1).to(device, torch.float64)
    seen.append([str(p.device) + str(p.dtype) for p in module.parameters()])
    torch.set_default_tensor_type("torch.FloatTensor" if is_host else "torch.cuda.FloatTensor")
    seen.append(torch.zeros(1).type())
    if not is_host:
        with torch.cuda.nvtx.range("step"):
            torch.cuda.init()
        assert torch.cuda.get_device_properties(place).total_memory == torch.cuda.memory_stats(0).get("x", 0)
        assert torch.cuda.initial_seed() == torch.initial_seed()
        assert torch.cuda.get_device_capability(1) == (0, 0)
    return seen


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU these are on the GPU: see the gpu tests")
def test_whatever_takes_a_device_takes_the_hosts(ranks):
    alone = ranks.call(consumed, 1, "cpu").ok().results[0]
    assert ranks.call(consumed, 2, "cuda:1").ok().results == [alone] * 2


def test_only_calls_that_are_given_a_device_are_intercepted():
    """An intercepted call costs 1 to 2 microseconds more; `benchmarks/devices.py` measures them."""
    calls = []

    def noted(patch):
        def call(session, wrapped, instance, args, kwargs):
            calls.append(patch.target)
            return patch.wrapper(session, wrapped, instance, args, kwargs)

        return replace(patch, wrapper=call)

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(5, 1, 8, 8), torch.randint(0, 3, (5,))

    def step():
        loss = torch.nn.functional.cross_entropy(model(x.to("cpu")), y.to("cpu"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    patcher = Patcher(SimpleNamespace(device_map=DeviceMap(torch.device("cpu"))))
    patcher.apply(noted(patch) for patch in (*device.PATCHES, *without_cuda.PATCHES))
    try:
        step()
    finally:
        patcher.undo()
    assert sorted(calls) == ["Tensor.to", "Tensor.to", "ones_like"]  # the last one is backward's


# --- on accelerators, with functions that stand in for CUDA's ---------------------------------------------------------


class Drawn:
    """The state of each device's generator."""

    def __init__(self, count):
        self.states = {index: torch.tensor([index], dtype=torch.uint8) for index in range(count)}
        self.caller = "script"

    def get(self, device="cuda"):
        return self.states[self._index(device)]

    def set(self, new_state, device="cuda"):
        self.states[self._index(device)] = new_state

    def _index(self, device):
        return torch.device(device).index if not isinstance(device, int) else device


@pytest.fixture
def on_second_of_three(monkeypatch):
    """What a rank whose device is the second of three does with the names in ``torch.cuda``."""
    drawn = Drawn(3)
    for where in (torch.cuda, torch.cuda.random):
        monkeypatch.setattr(where, "get_rng_state", drawn.get)
        monkeypatch.setattr(where, "set_rng_state", drawn.set)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda.random, "device_count", lambda: 3, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda place: drawn.notes.append(str(place)))
    drawn.notes = []
    ledger = SimpleNamespace(warn=drawn.notes.append)
    patcher = Patcher(
        SimpleNamespace(
            device_map=DeviceMap(torch.device("cuda", 1)),
            ledger=ledger,
            agreed=lambda own: [own],
            options=Options(),
            owners=SimpleNamespace(caller=lambda: drawn.caller),
        )
    )
    patcher.apply((*device.PATCHES, *on_accelerators.PATCHES))
    yield drawn
    patcher.undo()


def test_states_of_all_devices_are_those_of_this_ranks(on_second_of_three):
    """torch's own reads device 0, which this rank never draws on, and a resumed job's ranks part."""
    drawn = on_second_of_three
    drawn.states[1] = torch.tensor([7], dtype=torch.uint8)
    saved = torch.cuda.get_rng_state_all()
    assert [state.tolist() for state in saved] == [[7]] * 3
    drawn.states[1] = torch.tensor([9], dtype=torch.uint8)
    torch.cuda.set_rng_state_all(saved)
    assert drawn.states[1].tolist() == [7]
    # One process with three devices saved these, and drew on its first.
    torch.cuda.random.set_rng_state_all([torch.tensor([n], dtype=torch.uint8) for n in (5, 1, 2)])
    assert drawn.states[1].tolist() == [5]
    assert drawn.states[0].tolist() == [0]


def test_the_present_device_is_the_one_that_one_process_is_at(on_second_of_three):
    drawn = on_second_of_three
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(torch.device("cuda", 2))
    torch.cuda.set_device("cuda")  # which says nothing
    assert torch.cuda.current_device() == 2
    assert drawn.notes == ["cuda:1"] * 2
    drawn.caller = "library"
    assert torch.cuda.current_device() == 1


def test_a_choice_of_devices_that_comes_too_late_is_said(on_second_of_three, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    on_second_of_three.notes.clear()  # what was there before may have been none
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2"
    assert not on_second_of_three.notes
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    (note,) = on_second_of_three.notes
    assert "sets CUDA_VISIBLE_DEVICES to '0'" in note
    assert "Set it above ddp_patch.enable()" in note
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize("capture", [torch.cuda.graph.__enter__, torch.cuda.CUDAGraph.capture_begin])
def test_a_cuda_graph_of_the_scripts_is_refused(on_second_of_three, capture):
    with pytest.raises(BatchError, match=r'captures a CUDA graph.*torch\.compile\(model, mode="reduce-overhead"\)'):
        getattr(getattr(torch.cuda, capture.__qualname__.split(".")[0]), capture.__name__)(object())
    with pytest.raises(BatchError, match="captures a CUDA graph"):
        torch.cuda.make_graphed_callables(torch.nn.Linear(1, 1), (torch.ones(1, 1),))


def measured_by_a_stand_in():
    """What a script decides by, where each rank measures something else."""
    import ddp_patch
    from ddp_patch.batch.world import World

    own = World.get().rank
    session = SimpleNamespace(
        device_map=DeviceMap(torch.device("cuda", own)),
        agreed=lambda value: [given[0] for given in World.get().share([value])],
    )
    asked = []

    def measure(device=None):
        asked.append(str(device))
        return (100 + own, 200)

    free = on_accelerators.measured(min)(session, measure, None, (0,), {})
    used = on_accelerators.measured(max)(session, lambda device=None: measure(device)[0], None, (), {"device": "cuda"})
    stats = on_accelerators.measured(max)(session, lambda: {"peak": 7 - own, "now": own}, None, (), {})
    return [free, used, asked, stats, ddp_patch.rank()]


@pytest.mark.slow
def test_memory_is_measured_alike_on_all_ranks(ranks):
    for rank, result in enumerate(ranks.call(measured_by_a_stand_in, 3).ok().results):
        assert result == [[100, 200], 102, [f"cuda:{rank}"] * 2, {"peak": 7, "now": 2}, rank]


def recorded_on_a_stream():
    """An Apex-style prefetcher's ``record_stream``, on a batch."""
    from torch.utils.data import DataLoader, TensorDataset

    import ddp_patch
    from ddp_patch.batch.tensor import RULES

    (x,) = next(iter(DataLoader(TensorDataset(torch.arange(8.0)), 8)))
    x.record_stream(torch.cuda.current_stream())  # nothing on a host without CUDA
    seen = []
    RULES[torch.Tensor.record_stream](lambda form, stream: seen.append([form.tolist(), stream]), (x, "side"), {})
    return [seen, ddp_patch.report().ledger.collectives["all_gather"]]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="calls what stands for CUDA on a host without")
def test_a_stream_is_recorded_on_the_rows(ranks):
    rows = [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    assert ranks.call(recorded_on_a_stream, 2).ok().results == [[[[own, "side"]], 0] for own in rows]


class _OtherDigits(torch.autograd.Function):
    """A gradient that each rank rounds in another way, as an accelerator's atomic additions may."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        import ddp_patch

        return grad + 1e-7 * ddp_patch.rank()


def drifted(kind):
    """A script that is never dealt: what it trained, and how often rank 0's gradients were sent."""
    import ddp_patch
    from ddp_patch.batch.world import World

    torch.manual_seed(0)
    if ddp_patch.world_size() > 1:
        World.get().accelerated = True
    if kind in ("one row", "dealt"):
        model = torch.nn.Linear(4, 2).double()
        x = torch.randn(1 if kind == "one row" else 6, 4).double()
        trained = list(model.parameters())
        optimizer = torch.optim.Adam(trained, lr=0.1)

        def loss():
            return model(x).pow(2).mean() if kind == "dealt" else _OtherDigits.apply(model(x)).pow(2).mean()
    else:
        trained = [torch.randn(3, 5).double().requires_grad_()]
        make = {"image": torch.optim.SGD, "closure": torch.optim.LBFGS}[kind]
        optimizer = make(trained, lr=0.1)

        def loss():
            return _OtherDigits.apply(trained[0]).pow(4).mean()

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    for _ in range(3):
        if kind == "closure":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    sent = ddp_patch.report().ledger.collectives["broadcast"] if ddp_patch.world_size() > 1 else 0
    return [[parameter.tolist() for parameter in trained], sent]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["image", "closure", "one row"])
def test_what_every_rank_computes_does_not_drift_apart_on_accelerators(ranks, kind):
    (alone, _) = ranks.call(drifted, 1, kind).ok().results[0]
    for trained, sent in ranks.call(drifted, 3, kind).ok().results:
        assert trained == alone
        assert sent >= 3


@pytest.mark.slow
def test_gradients_that_are_averaged_are_not_sent_again(ranks):
    (alone, _) = ranks.call(drifted, 1, "dealt").ok().results[0]
    for trained, sent in ranks.call(drifted, 3, "dealt").ok().results:
        torch.testing.assert_close(torch.tensor(trained[0]), torch.tensor(alone[0]), rtol=0, atol=1e-12)
        assert sent == 0


@pytest.mark.quick("half_precision", "recomputation", "a_graph")
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/test_gpu.py tries them there")
@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_habits_of_accelerators_do_on_the_cpu_what_one_process_does(ranks, habit):
    alone = ranks.call(habit, 1).ok().results[0]
    for found in ranks.call(habit, 2).ok().results:
        assert found == pytest.approx(alone, rel=TOLERANCES.get(habit, 1e-5), abs=1e-6)


# --- torch.set_default_device -----------------------------------------------------------------------------------------

# Each looks at what torch's Python functions do, which call themselves by name under a function mode.
UNDER_A_MODE = {
    "gradient_habits": [
        "hooks_on_parameters",
        "optimizer_in_backward",
        "sparse_hooks_of_a_tied_weight",
        "gradient_penalty",
    ],
    "branch_habits": ["last_batches"],
}


@pytest.mark.slow
@pytest.mark.parametrize("module", UNDER_A_MODE)
def test_scripts_with_a_default_device_do_what_one_process_does(ranks, module):
    names = UNDER_A_MODE[module]
    alone = ranks.call(try_all, 1, "cpu", module, names).ok().results[0]
    compare(ranks.call(run_all_on, 2, "cpu", module, names), 2, alone, rel=1e-9, abs=1e-11)


def elsewhere():
    """Everything names the host, and what names nothing goes elsewhere: no tensor of ours may."""
    from torch.nn.utils.rnn import pack_padded_sequence
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    rows = [(torch.randn(3 + i % 2, 4), torch.tensor(i % 3)) for i in range(12)]

    def padded(samples):
        lengths = torch.tensor([len(x) for x, _ in samples], device="cpu")
        x = torch.nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
        return x, lengths, torch.stack([y for _, y in samples])

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(5, 4, sparse=True, device="cpu")
            self.rnn = torch.nn.GRU(4, 6, batch_first=True, device="cpu")
            self.drop, self.out = torch.nn.Dropout(0.0), torch.nn.Linear(6, 3, device="cpu")

        def forward(self, x, lengths, y):
            packed = pack_padded_sequence(x + self.words(y)[:, None], lengths, batch_first=True, enforce_sorted=False)
            return self.out(self.drop(self.rnn(packed)[1][-1]))

    model, said = Net(), []
    dense = [*model.rnn.parameters(), *model.out.parameters()]
    optimizers = torch.optim.SGD(dense, 0.1), torch.optim.SparseAdam([*model.words.parameters()], 0.1)
    for x, lengths, y in DataLoader(rows, 5, collate_fn=padded):
        with torch.device("meta"):
            loss = torch.nn.functional.cross_entropy(model(x, lengths, y), y)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            said.append(loss.item())
            torch.save(model.state_dict(), "model.pt")
    return [*said, *(p.double().sum().item() for p in model.parameters())]


@pytest.mark.slow
def test_tensors_of_ours_do_not_go_to_the_default_device(ranks):
    alone = ranks.call(elsewhere, 1).ok().results[0]
    for given in ranks.call(elsewhere, 3).ok().results:
        assert given == pytest.approx(alone, rel=1e-6, abs=1e-7)


ABOVE_THE_LINE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
model.weight.register_hook(torch.zeros_like)
import ddp_patch; ddp_patch.enable(nproc=2)
torch.set_default_device("cpu")
before = model.weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), 4):
    loss = model(x).pow(2).mean()
    torch.autograd.backward([torch.autograd.graph.get_gradient_edge(loss)], [torch.ones(())])
    optimizer.step()
    optimizer.zero_grad()
    with torch.device("meta"):
        print(torch.as_tensor(x).device, torch.tensor(x).device)
print(torch.equal(before, model.weight), round(model.bias.item(), 6))
"""


@pytest.mark.long
def test_hooks_and_graphs_that_no_mode_hears_of(tmp_path):
    script, alone = tmp_path / "script.py", tmp_path / "alone.py"
    script.write_text(ABOVE_THE_LINE)
    alone.write_text(ABOVE_THE_LINE.replace("import ddp_patch; ddp_patch.enable(nproc=2)", ""))
    said = [
        subprocess.run(
            [sys.executable, path],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ).stdout
        for path in (alone, script)
    ]
    assert said[1] == said[0]
    assert "meta meta" in said[0]
    assert "True" in said[0]


def test_a_thread_draws_on_this_ranks_device(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device="cuda": asked.append(device))
    patcher = Patcher(SimpleNamespace(device_map=DeviceMap(torch.device("cuda", 1))))
    patcher.apply([row for row in on_accelerators.PATCHES if row.target == "get_rng_state"])
    torch.cuda.get_rng_state()
    torch.cuda.get_rng_state(0)
    patcher.undo()
    assert list(map(str, asked)) == ["cuda:1", "cuda:1"]


@pytest.mark.parametrize(("saved", "wanted"), [("cpu", []), ("meta", ["cuda:1"])])
def test_a_scripted_module_of_the_host_stays_there(saved, wanted):
    moved = []

    class Module(torch.nn.Linear):
        def to(self, place):
            moved.append(str(place))
            return self

    session = SimpleNamespace(device_map=DeviceMap(torch.device("cuda", 1)))
    device._load(session, lambda f, place: Module(2, 2, device=saved), None, ("a.pt",), {})
    assert moved == wanted


def wrapped_by_ddp():
    """What torch's DDP is given for a model, and whether it would move arguments to a device."""
    from ddp_patch.job import wrapping

    given, build = [], wrapping.DistributedDataParallel

    class Recorded(build):
        def __init__(self, *args, **kwargs):
            given.append(sorted(kwargs))
            super().__init__(*args, **kwargs)

    wrapping.DistributedDataParallel = Recorded
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in torch.utils.data.DataLoader(torch.randn(8, 3), 4):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    wrapping.DistributedDataParallel = build
    return given


def test_arguments_and_models_stay_on_the_host_where_the_script_has_them(ranks):
    """``device_ids`` has DDP move every argument, also lengths of ``pack_padded_sequence``, and refuse CPU models."""
    for given in ranks.call(wrapped_by_ddp, 2).ok().results:
        assert len(given) == 1
        assert not {"device_ids", "output_device"} & set(given[0])
        assert {"process_group", "init_sync"} <= set(given[0])


def seen_by_a_checkpoint():
    """On which devices torch's checkpoint sees tensors, by whose generators it draws again."""
    from torch.utils import checkpoint

    import ddp_patch

    seen, infer = [], checkpoint._infer_device_type  # torch 2.13
    for place in ("cpu", "meta"):
        x = ddp_patch.shard_batch(torch.ones(4, 2)).to(place)

        def record(*inputs):
            seen.append([str(value.device) for value in inputs if isinstance(value, torch.Tensor)])
            return infer(*inputs)

        checkpoint._infer_device_type = record
        checkpoint.checkpoint(torch.tanh, x, use_reentrant=False)
    checkpoint._infer_device_type = infer
    return seen


def test_checkpoints_keep_the_generators_of_the_device_that_a_batch_is_on(ranks):
    """Batches are hidden from torch, which would find no device; "meta" stands in for an accelerator."""
    assert ranks.call(seen_by_a_checkpoint, 2).ok().results == [[[], ["meta"]]] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU: see the gpu tests")
@pytest.mark.parametrize("kind", KINDS_OF_SEQUENCES)
def test_models_run_on_rows(ranks, kind):
    assert ranks.call(what_is_not_split, 2, kind).ok().results == [[[], [], 0, 5]] * 2
