"""Runs that are measured: what one rank sees, and whose rows, backwards and seconds are counted."""

import pytest

from ddp_patch.measure import runs
from ddp_patch.measure.parts import as_run, backwards_of, by_device, full, kept, parts, rows_per_step
from ddp_patch.measure.runs import Spec, noted_of, perform
from ddp_patch.measure.session_facts import apart
from ddp_patch.pace import KINDS


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "project" / "train.py"
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)
    return path


def measured(script, text, root, ranks, **more):
    script.write_text(text)
    root.mkdir()
    return perform(Spec(script=script, ranks=ranks, warmup=3, steps=5, **more), root, script.parent, 120, 1)


# --- one rank has one device ------------------------------------------------------------------------------------------

CHOOSING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Started(Exception):
    """A run would begin."""


def devices_of(script, root, monkeypatch, ranks, visible, **environ):
    """Variables that choose devices, as a run on so many ranks gets them."""
    found = {}

    def start(command, folder, environ, logs, timeout):
        found.update({name: environ[name] for name in CHOOSING if name in environ})
        raise Started

    for name in CHOOSING:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(runs, "accelerator_count", lambda: visible)
    script.write_text("")
    root.mkdir()
    with pytest.raises(Started):
        perform(Spec(script=script, ranks=ranks, warmup=1, steps=2), root, script.parent, 9, 1, start=start)
    return found


@pytest.mark.parametrize(
    ("ranks", "visible", "environ", "wanted"),
    [
        (2, 4, {}, {}),
        (2, 2, {"CUDA_VISIBLE_DEVICES": "2,3"}, {"CUDA_VISIBLE_DEVICES": "2,3"}),
        (1, 0, {}, {}),
        (1, 0, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": ""}),
        (1, 1, {"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "3"}),
        (1, 4, {}, {"CUDA_VISIBLE_DEVICES": "0"}),
        (1, 2, {"CUDA_VISIBLE_DEVICES": " 2, 3"}, {"CUDA_VISIBLE_DEVICES": "2"}),
        (1, 2, {"CUDA_VISIBLE_DEVICES": "GPU-8f,GPU-9a"}, {"CUDA_VISIBLE_DEVICES": "GPU-8f"}),
        (1, 2, {"HIP_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "2"}),
        (1, 2, {"ROCR_VISIBLE_DEVICES": "1,2"}, {"ROCR_VISIBLE_DEVICES": "1"}),
        (
            1,
            2,
            {"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1"},  # as SLURM sets them
            {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"},
        ),
    ],
)
def test_one_rank_sees_one_device_so_that_data_parallel_takes_no_others(
    script, tmp_path, monkeypatch, ranks, visible, environ, wanted
):
    assert devices_of(script, tmp_path / "run", monkeypatch, ranks, visible, **environ) == wanted


def test_a_script_that_makes_several_devices_visible_itself_is_said_to_be_measured_with_all_of_them():
    assert apart({"devices": 1}, 1) == ""
    assert apart({"devices": 0}, 1) == ""
    assert "One rank had 4 accelerators" in apart({"devices": 4}, 1)
    assert apart({"device": "cpu", "replicas": []}, 2) == ""


# --- scripts that distribute themselves -------------------------------------------------------------------------------

ACCELERATED = """\
import accelerate
import torch
from torch.utils.data import DataLoader, TensorDataset

accelerator = accelerate.Accelerator(cpu=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(480, 8), torch.randn(480, 1)), batch_size=6)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.step()
"""


@pytest.mark.slow
def test_rows_of_a_script_that_distributes_itself_are_those_of_all_its_ranks(script, tmp_path):
    alone = measured(script, ACCELERATED, tmp_path / "one", 1)
    both = measured(script, ACCELERATED, tmp_path / "two", 2)
    assert [step["rows"] for step in alone.steps] == [6] * 5
    assert [step["rows"] for step in both.steps] == [12] * 5
    assert all(step["waiting"] > 0 for step in both.steps)  # at the end of its DDP's backward
    (told,) = noted_of(both.by_rank[0], "told")
    assert "train.py" not in apart(noted_of(alone.by_rank[0], "told")[0], 1)
    assert "distributes itself" in apart(told, 2)


# --- rows -------------------------------------------------------------------------------------------------------------

PICTURES = """\
import torch
from torch.utils.data import DataLoader

class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, i):
        return torch.randn(3, 4 + i % 2, 4), {target}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def forward(self, pictures):
        return torch.stack([self.layer(each.mean((1, 2))) for each in pictures]).mean()

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for pictures, targets in DataLoader(Pictures(), 8, collate_fn=lambda b: tuple(zip(*b)), num_workers={workers}):
    optimizer.zero_grad()
    model(pictures).backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("target", "workers"), [("i % 5", 0), ("{'boxes': torch.ones(2, 4)}", 2)])
def test_a_list_of_pictures_has_as_many_rows_as_pictures(script, tmp_path, ranks, target, workers):
    text = PICTURES.replace("{target}", target).replace("{workers}", str(workers))
    far_down = tmp_path / "where_no_path_to_a_socket_reaches" / "since_107_characters_are_all_it_may_have"
    far_down.mkdir(parents=True)  # workers send their tensors through sockets in the temporary folder
    found = measured(script, text, far_down / "run", ranks)
    assert [step["rows"] for step in found.steps] == [8] * 5


# --- several backwards ------------------------------------------------------------------------------------------------

ACCUMULATED = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(480, 8), torch.randn(480, 1)), batch_size=6)
for count, (x, y) in enumerate(loader):
    (torch.nn.functional.mse_loss(model(x), y) / 4).backward()
    if count % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
WITHOUT_LOADER = """\
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    for _ in range(4):
        (model(torch.randn(6, 8)).square().mean() / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TWO_LOSSES = """\
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    output = model(torch.randn(6, 8))
    output.mean().backward(retain_graph=True)
    output.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (ACCUMULATED, (24, 4)),
        (WITHOUT_LOADER, (24, 4)),
        (TWO_LOSSES, (6, 1)),
        (
            ACCUMULATED.replace(
                "(torch.nn.functional.mse_loss(model(x), y) / 4).backward()",
                "output = model(x)\n    output.mean().backward(retain_graph=True)\n    output.square().mean().backward()",
            ),
            (24, 4),
        ),
    ],
    ids=["a loader", "no loader", "two losses of a call", "two losses of a batch"],
)
def test_a_step_has_the_rows_and_the_number_of_all_batches_that_it_went_backwards_from(
    script, tmp_path, ranks, text, wanted
):
    found = measured(script, text, tmp_path / "run", ranks)
    assert {(step["rows"], step["backwards"]) for step in found.steps} == {wanted}
    held = kept(found)
    assert held is not None
    assert held[1] == 6 / ranks  # the backward of one batch at a time
    its = as_run(ranks, rows_per_step(found.steps), parts(found.steps, 0.0, 1.0, ranks), backwards_of(found.steps))
    assert (its["rows"], its["backwards"]) == wanted


# --- accelerators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "usual", "count"),
    [
        ([413, 1024] * 5, 1024, 5),  # epochs of two batches, beginning anywhere
        ([1024, 413] * 5, 1024, 5),
        ([512, 512, 413] * 4, 512, 8),
        ([0] * 7, 1, 7),  # nobody knows
        ([30, 50, 41, 39], 40, 4),  # as many as there is room for
        ([7], 7, 1),
    ],
)
def test_the_last_batch_of_an_epoch_is_no_full_step(rows, usual, count):
    steps = [{"rows": float(each)} for each in rows]
    assert (rows_per_step(steps), len(full(steps))) == (usual, count)


def test_on_accelerators_nobody_knows_what_a_backward_takes_as_the_host_only_queues_its_kernels():
    steps = [{**dict.fromkeys(KINDS, 0.0), "total": 1.0, "backward": 0.05}] * 4
    its = parts(steps, 0.0, 1.0, 1)
    assert its["backward"] == 0.05
    assert "backward" not in by_device(its, 0.0)
    assert by_device(its, 0.0)["computing"] == 1.0
