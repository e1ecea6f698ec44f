"""What needs an accelerator: one rank on NCCL, and two ranks that share it and talk by gloo."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import PATIENCE
from parity.test_scripts import SCRIPTS, compare_text, compare_values
from test_device import HARD_CODED

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
# Written for a host of two: this one may have one.
ON_ONE = HARD_CODED.replace('"0,1"', '"0"').replace("cuda:1", "cuda:0").replace("device(1)", "device(0)")
SHARED = {"share_devices": True}
WHERE = """
import torch
print(torch.cuda.current_device(), torch.cuda.device_count(), torch.zeros(1, device="cuda").device)
"""


def run(command, folder, **environ):
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(script, folder, nproc):
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(nproc)] if nproc else []
    command = [sys.executable, *launch, "-m", "ddp_patch", str(script)] if nproc else [sys.executable, script]
    return run(command, folder, DDP_PATCH_SHARE_DEVICES="1")


@pytest.mark.parametrize("nproc", [1, 2])
def test_hard_coded_devices_are_this_ranks(tmp_path, nproc):
    script = tmp_path / "hard_coded.py"
    script.write_text(ON_ONE)
    compare_text(started(script, tmp_path, nproc), started(script, tmp_path, 0), 1e-4)


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_print_and_save_what_one_process_does(tmp_path, script, nproc):
    folders = [tmp_path / "alone", tmp_path / "ranks"]
    for folder in folders:
        folder.mkdir()
    source = tmp_path / script.name
    source.write_text(script.read_text())
    alone, ranks = started(source, folders[0], 0), started(source, folders[1], nproc)
    compare_text(ranks, alone, 1e-6)
    for path in folders[0].rglob("*.pt"):
        theirs = torch.load(path, weights_only=False) if path.name != "model.pt" else None
        if theirs is not None:
            compare_values(torch.load(folders[1] / path.relative_to(folders[0]), weights_only=False), theirs)


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


def test_loaders_pin_and_move(ranks):
    alone = ranks.call(moved, 1).ok().results[0]
    assert ranks.call(moved, 2, enable=SHARED).ok().results == [alone] * 2


def test_ranks_see_the_devices_that_one_process_sees(tmp_path):
    script = tmp_path / "where.py"
    script.write_text(WHERE)
    assert started(script, tmp_path, 2) == started(script, tmp_path, 0)


def streams():
    """Draws on the accelerator: alike in the script, apart in the ranks."""
    torch.manual_seed(3)
    torch.cuda.manual_seed_all(4)
    state = torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    with torch.random.fork_rng():
        torch.rand(5, device="cuda")
    return [first, torch.rand(3, device="cuda").tolist(), torch.rand(2).tolist()]


def test_draws_on_the_accelerator_are_those_of_one_process(ranks):
    alone = ranks.call(streams, 1).ok().results[0]
    assert ranks.call(streams, 2, enable=SHARED).ok().results == [alone] * 2


def checkpoint():
    model = torch.nn.Linear(3, 2).cuda()
    torch.save({"model": model, "state": model.state_dict(), "rng": torch.cuda.get_rng_state()}, "a.pt")
    found = torch.load("a.pt", weights_only=False)
    loaded = torch.load("a.pt", map_location="cuda:0", weights_only=False)
    on_host = torch.load("a.pt", map_location="cpu", weights_only=False)
    places = [str(f["state"]["weight"].device.type) for f in (found, loaded, on_host)]
    return [places, torch.equal(found["model"].weight, model.weight)]


def test_checkpoints_come_back_to_this_ranks_device(ranks):
    assert ranks.call(checkpoint, 2, enable=SHARED).ok().results == [[["cuda", "cuda", "cpu"], True]] * 2
