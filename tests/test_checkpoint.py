"""torch.save: once, whole, atomic, and the same outcome on every rank."""

import io
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))


def saved_and_read_back():
    batch = next(iter(DataLoader(TensorDataset(torch.arange(7.0)), batch_size=7)))[0]
    torch.save({"batch": batch, "rank": os.environ["RANK"]}, "first.pt")
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
    assert outcome.results == [[whole, "Tensor", "0", [2 * i for i in whole]]] * 3
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
