"""What needs an accelerator: one rank on NCCL, and two ranks that share it and talk by gloo."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from accelerator_habits import HABITS, KINDS_OF_SEQUENCES, TOLERANCES, images, net, what_is_not_split
from conftest import PATIENCE, TESTS
from parity.test_habits import CASES, compare
from parity.test_scripts import SCRIPTS, compare_text, compare_values
from parity.together import run_all_on, try_all
from test_device import HARD_CODED

from ddp_patch.job.software import nccl_takes_several

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
# Written for a host of two: this one may have one.
ON_ONE = HARD_CODED.replace('"0,1"', '"0"').replace("cuda:1", "cuda:0").replace("device(1)", "device(0)")
HAS_SEVERAL = torch.cuda.device_count() > 1
MAY_SHARE = nccl_takes_several({"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
SHARED = {"share_devices": True}
WAYS = {
    "gloo": {"enable": SHARED, "env": {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}},
    "NCCL": {"enable": SHARED, "env": {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}},
    "a device each": {"enable": {"share_devices": False}},
}
WRAPPED = [path for path in SCRIPTS if "nn.DataParallel(" in path.read_text()]  # which moves a model to a device
ON_HOST = [path for path in SCRIPTS if path not in WRAPPED and "cuda" not in path.read_text()]
PLACED = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from parity.placed import on; on('cuda')\n"
WHERE = """
import torch
print(torch.cuda.current_device(), torch.cuda.device_count(), torch.zeros(1, device="cuda").device)
"""


@pytest.fixture(
    params=[
        "gloo",
        pytest.param("NCCL", marks=pytest.mark.skipif(not MAY_SHARE, reason="needs NCCL 2.30 to share a GPU")),
        pytest.param("a device each", marks=pytest.mark.skipif(not HAS_SEVERAL, reason="needs a GPU for each rank")),
    ]
)
def way(request):
    """How two ranks have devices, and talk."""
    return WAYS[request.param]


def run(command, folder, **environ):
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(script, folder, nproc, way=None):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)] if nproc else []
    command = [sys.executable, *launch, "-m", "ddp_patch", str(script)] if nproc else [sys.executable, script]
    options = way or {}
    sharing = {"DDP_PATCH_SHARE_DEVICES": str(int(options.get("enable", SHARED)["share_devices"]))}
    return run(command, folder, **sharing, **options.get("env", {}))


def test_hard_coded_devices_are_this_ranks(tmp_path, way):
    script = tmp_path / "hard_coded.py"
    script.write_text(ON_ONE)
    compare_text(started(script, tmp_path, 2, way), started(script, tmp_path, 0), 1e-4)


@pytest.mark.parametrize("script", WRAPPED, ids=lambda path: path.stem)
def test_scripts_print_and_save_what_one_process_does(tmp_path, script, way):
    folders = [tmp_path / "alone", tmp_path / "ranks"]
    for folder in folders:
        folder.mkdir()
    source = tmp_path / script.name
    source.write_text(PLACED + script.read_text())
    alone, ranks = started(source, folders[0], 0), started(source, folders[1], 2, way)
    compare_text(ranks, alone, 1e-6)
    for path in folders[0].rglob("*.pt"):
        theirs = torch.load(path, weights_only=False) if path.name != "model.pt" else None
        if theirs is not None:
            compare_values(torch.load(folders[1] / path.relative_to(folders[0]), weights_only=False), theirs)


@pytest.mark.parametrize("script", ON_HOST, ids=lambda path: path.stem)
def test_scripts_that_compute_on_the_host(tmp_path, script, way):
    """Though there is an accelerator: ``--no-cuda``."""
    alone, ranks = started(script, tmp_path, 0), started(script, tmp_path, 2, way)
    compare_text(ranks, alone, 1e-6)


def moved():
    """Pinned batches of every kind of loader, on the accelerator."""
    from torch.utils.data import DataLoader, TensorDataset

    data, seen = TensorDataset(torch.arange(20.0).view(10, 2)), []
    for options in ({}, {"num_workers": 2}, {"collate_fn": lambda rows: torch.stack([row[0] for row in rows]) * 2}):
        for batch in DataLoader(data, 4, pin_memory=True, **options):
            rows = batch if isinstance(batch, torch.Tensor) else batch[0]
            there = rows.cuda(non_blocking=True)
            seen.append([there.sum().item(), there.device.type, rows.is_pinned(), there.shape[0]])
    return seen


def test_loaders_pin_and_move(ranks, way):
    alone = ranks.call(moved, 1).ok().results[0]
    assert ranks.call(moved, 2, **way).ok().results == [alone] * 2


def test_ranks_see_the_devices_that_one_process_sees(tmp_path, way):
    script = tmp_path / "where.py"
    script.write_text(WHERE)
    assert started(script, tmp_path, 2, way) == started(script, tmp_path, 0)


def draws():
    """Draws on the accelerator: alike in the script, apart in the ranks."""
    torch.manual_seed(3)
    torch.cuda.manual_seed_all(4)
    state = torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    with torch.random.fork_rng():
        torch.rand(5, device="cuda")
    return [first, torch.rand(3, device="cuda").tolist(), torch.rand(2).tolist()]


def test_draws_on_the_accelerator_are_those_of_one_process(ranks, way):
    alone = ranks.call(draws, 1).ok().results[0]
    assert ranks.call(draws, 2, **way).ok().results == [alone] * 2


def checkpoint():
    model = torch.nn.Linear(3, 2).cuda()
    torch.save({"model": model, "state": model.state_dict(), "rng": torch.cuda.get_rng_state()}, "a.pt")
    found = torch.load("a.pt", weights_only=False)
    loaded = torch.load("a.pt", map_location="cuda:0", weights_only=False)
    on_host = torch.load("a.pt", map_location="cpu", weights_only=False)
    places = [str(f["state"]["weight"].device.type) for f in (found, loaded, on_host)]
    return [places, torch.equal(found["model"].weight, model.weight)]


def test_checkpoints_come_back_to_this_ranks_device(ranks, way):
    assert ranks.call(checkpoint, 2, **way).ok().results == [[["cuda", "cuda", "cpu"], True]] * 2


# --- habits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_habits_do_what_one_process_does(ranks, habit, way):
    alone = ranks.call(habit, 1).ok().results[0]
    for found in ranks.call(habit, 2, **way).ok().results:
        assert found == pytest.approx(alone, rel=max(TOLERANCES.get(habit, 0), 2e-3), abs=1e-5)  # TF32, other kernels


@pytest.mark.parametrize(("module", "names"), CASES, ids=lambda part: part[0] if isinstance(part, list) else part)
def test_habits_of_the_cpu_do_on_the_accelerator_what_one_process_does(ranks, module, names, way):
    """In float64, where tensors, modules and generators are made on the accelerator by default."""
    alone = ranks.call(try_all, 1, "cuda", module, names).ok().results[0]
    able = {name: alone[name] for name in names if not isinstance(alone[name], str)}
    refused = [alone[name] for name in names if name not in able]
    assert all("device" in said or "CUDA" in said for said in refused), refused  # they name the host, or are its own
    # Sums by atomics are added in any order there.
    compare(ranks.call(run_all_on, 2, "cuda", module, [*able], **way), 2, able, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS_OF_SEQUENCES)
def test_models_run_on_rows_on_the_accelerator(ranks, kind, way):
    assert ranks.call(what_is_not_split, 2, kind, **way).ok().results == [[[], [], 0, 5]] * 2


def compiled_by_inductor():
    model = net()
    step = torch.compile(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for x, y in images():
        loss = F.cross_entropy(step(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_compiled_model_learns_what_one_process_learns(ranks, way):
    alone = ranks.call(compiled_by_inductor, 1).ok().results[0]
    for found in ranks.call(compiled_by_inductor, 2, **way).ok().results:
        assert found == pytest.approx(alone, rel=2e-3)


def captured():
    import ddp_patch

    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.ones(2, device="cuda") * 2
    except ddp_patch.BatchError as error:
        return str(error)


def test_a_cuda_graph_is_refused(ranks, way):
    for said in ranks.call(captured, 2, **way).ok().results:
        assert "torch.compile" in said


def first_steps():
    """Bytes at most in each of three steps, of a model of 25 million parameters."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1600, 1600) for _ in range(10))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(6144, 1600))
    peaks = []
    for (x,) in torch.utils.data.DataLoader(data, 2048):
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        model(x.cuda()).pow(2).mean().backward()
        optimizer.step()
        peaks.append(torch.cuda.max_memory_allocated())
    return peaks


def test_the_first_step_takes_little_more_memory_than_a_later_one(ranks, way):
    for first, *_, last in ranks.call(first_steps, 2, **way).ok().results:
        assert first <= 1.15 * last  # as was measured: docs/benchmarks.md


def steady_steps():
    """How often a steady step of a classifier waits for the device, by CUDA's own warnings."""
    import warnings

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    counts = []
    for x, y in images(rows=48, pin_memory=True):
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(warning.message) for warning in said))
    return counts[-1]


@pytest.mark.skipif(not (MAY_SHARE or HAS_SEVERAL), reason="gloo waits for the device with each collective")
def test_a_steady_step_waits_for_the_device_no_more_often_than_one_process(ranks):
    (alone,) = ranks.call(steady_steps, 1).ok().results
    assert max(ranks.call(steady_steps, 2, **WAYS["NCCL" if MAY_SHARE else "a device each"]).ok().results) <= alone


# --- one rank on NCCL -------------------------------------------------------------------------------------------------

ON_NCCL = """
import torch, torch.distributed as dist, torch.nn.functional as F
from ddp_patch.batch.layout import Layout
from ddp_patch.batch.world import World
from ddp_patch.gradients.averages import align
from ddp_patch.calling.batch_norm import batch_norm_by_kernels

dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore(), device_id=torch.device("cuda", 0))
world = World.current = World(0, 1, dist.group.WORLD, torch.device("cuda", 0), accelerated=True)
for world.gathers_flat in (False, True):
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64):
        whole = (torch.randn(6, 3, device="cuda") * 4).to(dtype)
        for dim in (0, 1):
            assert torch.equal(world.all_gather_rows(whole, Layout((whole.shape[dim],), dim, whole.shape[dim])), whole)
values = torch.randn(5, device="cuda")
assert torch.equal(world.all_reduce(values), values) and torch.equal(world.broadcast(values.clone()), values)
parameter = torch.nn.Parameter(torch.zeros(3, device="cuda"))
parameter.grad = torch.ones(3, device="cuda")
align([parameter], world)
for shape in ((7, 4), (7, 4, 3), (7, 4, 3, 2), (7, 4, 2, 2, 2)):
    for weighted in (True, False):
        for layout in (torch.contiguous_format, *([torch.channels_last] if len(shape) == 4 else [])):
            found = []
            for ours in (True, False):
                torch.manual_seed(0)
                x = torch.randn(shape, device="cuda").to(memory_format=layout).requires_grad_()
                weight = torch.rand(4, device="cuda").requires_grad_() if weighted else None
                bias = torch.rand(4, device="cuda").requires_grad_() if weighted else None
                mean, var = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
                if ours:
                    out = batch_norm_by_kernels(x, weight, bias, mean, var, 0.1, 1e-5)
                else:
                    out = F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5)
                (first,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
                (out.pow(2).sum() + first.pow(2).sum()).backward()
                given = [] if weight is None else [weight.grad, bias.grad]
                found.append([out, first, x.grad, mean, var, *given])
            for one, other in zip(*found):
                torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4)
print("same")
dist.destroy_process_group()
"""


def test_collectives_and_kernels_of_one_rank_on_nccl(tmp_path):
    script = tmp_path / "nccl.py"
    script.write_text(ON_NCCL)
    assert run([sys.executable, script], tmp_path) == "same\n"
