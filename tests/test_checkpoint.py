"""torch.save: once, whole, atomic, and the same outcome on every rank."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PATIENCE
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch

sys.path.insert(0, str(Path(__file__).parent))
from parity.test_scripts import compare_text


def saved_and_read_back():
    batch = next(iter(DataLoader(TensorDataset(torch.arange(7.0)), batch_size=7)))[0]
    torch.save({"batch": batch, "rank": ddp_patch.rank()}, "first.pt")
    read = torch.load("first.pt")
    buffer = io.BytesIO()
    torch.save(batch * 2, buffer)
    buffer.seek(0)
    with open("stream.pt", "wb") as stream:
        torch.save(batch + 1, stream)
    torch.save(nn.Linear(2, 1), Path("module.pt"), _use_new_zipfile_serialization=False)
    return [read["batch"].tolist(), type(read["batch"]).__name__, read["rank"], torch.load(buffer).tolist()]


def test_batches_are_saved_whole_by_rank_0_and_read_by_all(ranks):
    outcome = ranks.call(saved_and_read_back, 3).ok()
    whole = [float(i) for i in range(7)]
    assert outcome.results == [[whole, "Tensor", 0, [2 * i for i in whole]]] * 3
    assert outcome.files() == ["first.pt", "module.pt", "stream.pt"]
    assert torch.load(outcome.cwd / "stream.pt").tolist() == [i + 1 for i in whole]
    assert (outcome.cwd / "first.pt").stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def failures(reads=True):
    """Type and words of what a bad save raises, and what is left."""
    Path("folder").mkdir(exist_ok=True)
    torch.save([1, 2, 3], "kept.pt")
    told = []

    class Unpicklable:
        def __reduce__(self):
            raise TypeError("cannot be pickled")

    for thing, target in ((1, "missing/x.pt"), (1, "folder"), (Unpicklable(), "kept.pt"), (lambda: 0, "kept.pt")):
        try:
            torch.save(thing, target)
        except Exception as error:
            told.append(type(error).__name__)
        else:
            told.append("nothing")
    return [told, torch.load("kept.pt") if reads else None, sorted(os.listdir("."))]


def test_a_failing_save_fails_alike_on_every_rank_and_keeps_the_old_file(ranks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = failures(reads=False)  # alone, torch has torn kept.pt by now
    outcome = ranks.call(failures, 3).ok()
    for told, kept, left in outcome.results:
        assert kept == [1, 2, 3]
        assert left == ["folder", "kept.pt"]
        assert told == wanted[0]


@pytest.mark.quick("True")
@pytest.mark.parametrize("wrapped", [True, False])
def test_state_dict_keys_are_those_the_script_wrote(ranks, tmp_path, wrapped):
    script = tmp_path / "keys.py"
    script.write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        f"model = torch.nn.Sequential(torch.nn.Linear(3, 2))\nif {wrapped}: model = torch.nn.DataParallel(model)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for (x,) in DataLoader(TensorDataset(torch.randn(8, 3)), 4):\n"
        "    model(x).sum().backward(); optimizer.step()\n"
        "torch.save(model.state_dict(), 'm.pt')\n"
        "torch.save(model, 'whole.pt')\n"
        "print(list(torch.load('m.pt')))\n"
    )
    outcome = ranks.script(script, 2).ok()
    prefix = "module." if wrapped else ""
    assert outcome.stdout[0] == f"{[prefix + '0.weight', prefix + '0.bias']}\n"
    whole = torch.load(outcome.cwd / "whole.pt", weights_only=False)  # here, without a process group or ddp_patch
    assert type(whole) is (nn.DataParallel if wrapped else nn.Sequential)
    assert list(whole.state_dict()) == [prefix + "0.weight", prefix + "0.bias"]


# --- loading ----------------------------------------------------------------------------------------------------------


def save_as_if_on(place, path):
    """A checkpoint that was written on an accelerator that is not here."""
    tag = torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: place
    try:
        torch.save({"x": torch.arange(3.0), "on": place}, path)
    finally:
        torch.serialization.location_tag = tag


def load_from_elsewhere():
    save_as_if_on("cuda:0", "zero.pt")
    save_as_if_on("cuda:3", "three.pt")
    maps = [
        *(
            None,
            "cpu",
            "cuda",
            "cuda:0",
            torch.device("cuda:1"),
            torch.device("cpu"),
            {"cuda:0": "cuda:1"},
            {"cuda:3": "cpu"},
        ),
        *(lambda storage, place: storage, lambda storage, place: None),
    ]
    loaded = [torch.load(path, map_location=place) for path in ("zero.pt", "three.pt") for place in maps]
    loaded += [
        torch.load("zero.pt", "cuda:0"),
        torch.load("zero.pt", weights_only=False),
        torch.load(open("zero.pt", "rb")),
    ]
    return [[entry["x"].tolist(), entry["x"].device.type] for entry in loaded]


def test_tensors_are_loaded_to_this_ranks_device(ranks):
    for given in ranks.call(load_from_elsewhere, 2).ok().results:
        assert given == [[[0.0, 1.0, 2.0], "cpu"]] * 23


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def load_keys():
    plain, wrapped = Net(), nn.DataParallel(Net())
    told = []
    plain.load_state_dict(wrapped.state_dict())
    told.append(all(torch.equal(a, b) for a, b in zip(plain.parameters(), wrapped.parameters(), strict=True)))
    fresh = Net()
    wrapped.load_state_dict(fresh.state_dict())
    told.append(all(torch.equal(a, b) for a, b in zip(fresh.parameters(), wrapped.parameters(), strict=True)))
    torch.save(wrapped.state_dict(), "dp.pt")
    told.append(next(iter(torch.load("dp.pt"))))
    nn.DataParallel(Net()).load_state_dict(torch.load("dp.pt"))
    told.append(str(Net().load_state_dict(torch.load("dp.pt"))))
    for state in (
        {"other": torch.ones(1)},
        {"module.other": torch.ones(1)},
        {"module.body.0.weight": torch.ones(3, 3)},
        {},
    ):
        try:
            Net().load_state_dict(state)
        except RuntimeError as error:
            told.append(str(error).split("\n")[1].split(":")[0])
    return told


def test_either_style_of_keys_loads_into_either_model(ranks):
    for told in ranks.call(load_keys, 2).ok().results:
        assert told[:4] == [True, True, "module.body.0.weight", "<All keys matched successfully>"]
        assert [words.split("(s)")[0].strip() for words in told[4:]] == [
            "Missing key",
            "Missing key",
            "Missing key",
            "Missing key",
        ]


# --- going on ---------------------------------------------------------------------------------------------------------


def train(first, last):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    data = TensorDataset(torch.randn(23, 4), torch.randn(23, 1))
    # A bias before BatchNorm has no gradient but rounding, which Adam makes as large as any.
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    if first:
        state = torch.load("state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])
    losses = []
    for _ in range(first, last):
        for x, y in DataLoader(data, 6, shuffle=True):
            loss = nn.functional.mse_loss(model(x + 0.1 * torch.randn_like(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    torch.save({**{name: part.state_dict() for name, part in parts.items()}, "rng": torch.get_rng_state()}, "state.pt")
    return [losses, [value.double().sum().item() for value in model.state_dict().values()], torch.rand(2).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_going_on_is_as_never_having_stopped(ranks, tmp_path, before, after):
    ((losses, weights, drawn),) = ranks.call(train, 1, 0, 5).ok().results
    first = ranks.call(train, before, 0, 2, cwd=str(tmp_path)).ok().results
    second = ranks.call(train, after, 2, 5, cwd=str(tmp_path)).ok().results
    for rank in range(after):
        assert first[0][0] + second[rank][0] == pytest.approx(losses, rel=1e-9)
        assert second[rank][1] == pytest.approx(weights, rel=1e-9)
        assert second[rank][2] == drawn


SAVES = """
import copy, io, pickle, random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch

sys.path.insert(0, {folder!r})
from net import Net

torch.manual_seed(0)
model = nn.DataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randint(0, 3, (20,))), 6, shuffle=True)
for x, y in loader:
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
everything = {{
    "model": model, "module": model.module, "state": model.state_dict(), "copy": copy.deepcopy(model),
    "optimizer": optimizer, "optimizer state": optimizer.state_dict(), "scheduler": scheduler,
    "out": out, "loss": loss, "batch": x, "grads": [p.grad for p in model.parameters()], "shape": out.shape,
    "rng": [torch.get_rng_state(), np.random.get_state(), random.getstate()],
    "loader": loader, "criterion": nn.functional.cross_entropy,
}}
torch.save(everything, "path.pt")
torch.save(everything, "legacy.pt", _use_new_zipfile_serialization=False)
buffer = io.BytesIO()
torch.save(everything, buffer)
with open("bytes.pt", "wb") as stream:
    stream.write(buffer.getvalue())
with open("file.pt", "wb") as stream:
    torch.save(everything, stream)
with open("pickle.pt", "wb") as stream:
    pickle.dump(everything, stream)
"""
LOADS = """
import pickle, sys
import torch

sys.path.insert(0, {folder!r})
for name in ("path.pt", "legacy.pt", "bytes.pt", "file.pt", "pickle.pt"):
    with open(name, "rb") as stream:
        assert b"ddp_patch" not in stream.read(), name
    with open(name, "rb") as stream:
        found = pickle.load(stream) if name == "pickle.pt" else torch.load(stream, weights_only=False)
    kinds = [type(value).__module__ + "." + type(value).__qualname__ for value in found.values()]
    with torch.no_grad():
        again = found["copy"].eval()(found["batch"])
    print(name, kinds, list(found["state"]), found["out"].shape, found["loss"].item(), again.sum().item())
    print([grad.sum().item() for grad in found["grads"]], found["scheduler"].last_epoch)
assert "ddp_patch" not in sys.modules and not torch.distributed.is_initialized()
"""


@pytest.mark.slow
def test_what_is_saved_loads_without_this_package(ranks, tmp_path):
    folder = str(Path(__file__).parent / "whole")
    saves, loads = tmp_path / "saves.py", tmp_path / "loads.py"
    saves.write_text("import torch\n\ntorch.set_default_dtype(torch.float64)\n" + SAVES.format(folder=folder))
    loads.write_text(LOADS.format(folder=folder))
    outcomes = [ranks.script(saves, nproc).ok() for nproc in (1, 2)]
    said = []
    for outcome in outcomes:
        command = [sys.executable, str(loads)]
        done = subprocess.run(command, cwd=outcome.cwd, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    compare_text(said[1], said[0])


def saved_as_a_folder():
    import torch.distributed.checkpoint as dcp

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    (x,) = next(iter(DataLoader(TensorDataset(torch.arange(14.0).view(7, 2)), 7)))
    model(x).sum().backward()
    optimizer.step()
    for name in ("first", "first", "second"):
        told = dcp.save({"model": model, "optimizer": optimizer.state_dict(), "x": x}, checkpoint_id=name)
    dcp.async_save(model.state_dict(), checkpoint_id="later").result()
    dcp.save(model.state_dict(), storage_writer=dcp.FileSystemWriter("written"))
    read = {"x": torch.zeros(7, 2), "model": nn.Linear(2, 1).state_dict()}
    dcp.load(read, checkpoint_id="first")
    try:
        dcp.save({"x": x}, checkpoint_id="first/.metadata/none")
    except dcp.CheckpointException as error:
        failed = type(error).__name__
    return [" ".join(sorted(told.state_dict_metadata)), read["x"].tolist(), read["model"]["weight"].tolist(), failed]


@pytest.mark.slow
def test_a_checkpoint_of_several_files_is_written_by_rank_0_and_read_by_all(ranks):
    alone = ranks.call(saved_as_a_folder, 1).ok()
    for nproc in (2, 3):
        outcome = ranks.call(saved_as_a_folder, nproc).ok()
        for given in outcome.results:
            for own, wanted in zip(given, alone.results[0], strict=True):
                assert own == wanted if isinstance(wanted, str) else np.array(own) == pytest.approx(np.array(wanted))
        assert outcome.files() == alone.files()
        assert {"first/.metadata", "first/__0_0.distcp"} < set(outcome.files())
