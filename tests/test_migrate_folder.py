"""A script and the files that it leaves the training to are migrated by one plan."""

import pytest

pytest.importorskip("libcst")

from test_migrate_command import git
from test_migrate_runs import Launcher

from ddp_patch.migrate.command import command
from ddp_patch.migrate.rewrite import left, rewrite

RUN = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from engine import fit

torch.manual_seed(0)
x = torch.randn(40, 4).double()
y = (x[:, 0] > 0).long()
train_loader = DataLoader(TensorDataset(x, y), batch_size=8)
val_loader = DataLoader(TensorDataset(x[:20], y[:20]), batch_size=8)
net = nn.Linear(4, 2).double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
fit(net, train_loader, val_loader, nn.CrossEntropyLoss(), optimizer, epochs=3)
"""

ENGINE = '''\
"""The loop."""
import torch


def fit(model, train_loader, val_loader, criterion, optimizer, epochs):
    for epoch in range(epochs):
        loss = train_epoch(model, train_loader, criterion, optimizer)
        print(f"epoch {epoch} loss {loss:.10f} hits {evaluate(model, val_loader)}")


def train_epoch(model, loader, criterion, optimizer):
    total = 0.0  # of the batches
    for inputs, targets in loader:
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader):
    hits = 0
    for inputs, targets in loader:
        hits += (model(inputs).argmax(1) == targets).sum().item()
    return hits / len(loader.dataset)
'''

SOLVER = """\
import os
import torch
from torch import nn


class Solver:
    def __init__(self, loader, steps):
        self.loader, self.steps = loader, steps
        self.build()

    def build(self):
        self.net = nn.Linear(4, 2).double()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def train(self):
        batches = iter(self.loader)
        for step in range(self.steps):
            try:
                inputs, targets = next(batches)
            except StopIteration:
                batches = iter(self.loader)
                inputs, targets = next(batches)
            losses = {}
            loss = nn.functional.cross_entropy(self.net(inputs), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses["loss"] = loss.item()
            line = f"step {step}"
            for name, value in losses.items():
                line += " {} {:.10f}".format(name, value)
            print(line)
        torch.save(self.net.state_dict(), "net.pt")
"""

DATA = """\
import torch
from torch.utils import data


def get_loader(batch_size):
    x = torch.randn(40, 4).double()
    dataset = data.TensorDataset(x, (x[:, 0] > 0).long())
    return data.DataLoader(dataset, batch_size=batch_size, shuffle=False)
"""

MAIN = """\
import torch
from data import get_loader
from solver import Solver


def main():
    torch.manual_seed(0)
    solver = Solver(get_loader(8), 12)
    solver.train()


if __name__ == "__main__":
    main()
"""

# What is written for a row is read again by the rank that has the row.
ROWS = """\
import os
from tempfile import NamedTemporaryFile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def louder(number):
    with NamedTemporaryFile(suffix=".txt") as file:
        os.system(f"echo {number} 3 2 > {file.name}")
        return [float(word) for word in open(file.name).read().split()]


class Sounds(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(louder(index)).double(), self.target(index)

    def target(self, index):
        if not os.path.exists(f"{index}.npy"):
            np.save(f"{index}.npy", np.array([index + 5]))
        with open(f"{index}.seen", "w") as seen:
            seen.write("x")
        assert open(f"{index}.seen").read() == "x"
        return torch.from_numpy(np.load(f"{index}.npy")).double()


def get_loader():
    return DataLoader(Sounds(), batch_size=4, shuffle=False)
"""

SOUNDS = """\
import torch
from torch import nn

from rows import get_loader


def main():
    torch.manual_seed(0)
    loader = get_loader()
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(2):
        total = 0.0
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.10f}")


if __name__ == "__main__":
    main()
"""

FOLDERS = {
    "sounds.py": {"sounds.py": SOUNDS, "rows.py": ROWS},
    "run.py": {"run.py": RUN, "engine.py": ENGINE},
    "main.py": {"main.py": MAIN, "solver.py": SOLVER, "data.py": DATA},
}


def migrated(folder, files, target="ddp", code=0):
    for name, text in files.items():
        (folder / name).write_text(text)
    assert command(["--to", target, "--write", str(folder)]) == code
    return {name: (folder / name).read_text() for name in files}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def test_files_that_train_nothing_stay(folder):
    files = {**FOLDERS["run.py"], "plots.py": "def plot(values):\n    return values\n"}
    assert migrated(folder, files)["plots.py"] == files["plots.py"]


def test_a_module_alone_is_left_to_the_script_that_calls_it(folder):
    after = migrated(folder, {"engine.py": ENGINE}, code=3)
    assert any("this is a module" in reason for _, reason in left(after["engine.py"]))


@pytest.mark.quick("imagenet_style", "trainer_class", "ddp_by_hand")
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
@pytest.mark.parametrize("script", FOLDERS)
def test_a_second_run_changes_nothing(folder, script, target):
    after = migrated(folder, FOLDERS[script], target)
    assert migrated(folder, after, target) == after


def test_the_script_builds_and_the_module_trains(folder):
    after = migrated(folder, FOLDERS["run.py"])
    assert "init_process_group" in after["run.py"]
    assert "fit(ddp_net, train_loader, val_loader, nn.CrossEntropyLoss(), optimizer, epochs=3)\n" in after["run.py"]
    assert "DistributedSampler(" in after["run.py"]
    assert "init_process_group" not in after["engine.py"]
    assert "    total = 0.0  # of the batches\n" in after["engine.py"]
    assert "    total = all_mean(total)\n    return total / len(loader)\n" in after["engine.py"]
    assert "def rank_share" not in after["engine.py"]
    assert "def all_mean" not in after["run.py"]


def test_a_script_that_is_named_takes_its_modules_along(folder):
    for name, text in FOLDERS["main.py"].items():
        (folder / name).write_text(text)
    assert command(["--to", "ddp", "--write", str(folder / "main.py")]) == 0
    assert "self.ddp_net = DistributedDataParallel(self.net)\n" in (folder / "solver.py").read_text()
    assert "rank_share(batch_size)" in (folder / "data.py").read_text()


def test_two_scripts_share_a_module(folder):
    other = (
        RUN.replace("net", "model")
        .replace("fit(model, train_loader", "fit(model, loader")
        .replace("train_loader =", "loader =")
    )
    after = migrated(folder, {"run.py": RUN, "second.py": other, "engine.py": ENGINE})
    assert "fit(ddp_net, train_loader" in after["run.py"]
    assert "fit(ddp_model, loader" in after["second.py"]
    assert left(after["engine.py"]) == []


def test_a_script_that_evaluates_with_the_same_files_starts_the_group_too(folder):
    evaluates = RUN.replace("import fit", "import evaluate")
    evaluates = evaluates[: evaluates.index("optimizer =")] + "print(evaluate(net, val_loader))\n"
    after = migrated(folder, {"run.py": RUN, "test.py": evaluates, "engine.py": ENGINE})
    assert "init_process_group" in after["test.py"]
    assert "destroy_process_group" in after["test.py"]
    assert "DistributedDataParallel" not in after["test.py"]


def test_nothing_is_written_where_one_file_cannot_be(folder, capsys):
    git(folder, "init", "-q")
    (folder / "engine.py").write_text(ENGINE)
    git(folder, "add", "engine.py")
    git(folder, "-c", "user.email=a@b.c", "-c", "user.name=a", "commit", "-qm", "a")
    assert migrated(folder, FOLDERS["run.py"], code=2) == FOLDERS["run.py"]
    said = capsys.readouterr().err
    assert "run.py: is not in git" in said
    assert "engine.py: left as it is, with the file that it is migrated with" in said


def test_each_file_keeps_its_ends_of_lines(folder):
    files = {"run.py": RUN, "engine.py": ENGINE.replace("\n", "\r\n")}
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    assert command(["--to", "ddp", "--write", str(folder)]) == 0
    assert b"\r\n    total = all_mean(total)\r\n" in (folder / "engine.py").read_bytes()
    assert b"\r" not in (folder / "run.py").read_bytes()


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    started = Launcher(tmp_path_factory.mktemp("folder"))
    yield started
    started.end()


@pytest.mark.slow
@pytest.mark.some("main.py-ddp")
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
@pytest.mark.parametrize("script", FOLDERS)
def test_two_ranks_print_what_one_process_prints(folder, launcher, script, target):
    wanted, _ = launcher.run_folder(FOLDERS[script], script, 1)
    out, _ = launcher.run_folder(migrated(folder, FOLDERS[script], target), script, 2)
    assert out == [*wanted, ""]


UTIL = """\
import os
import pickle
import torch


def save_model(model, path):
    torch.save(model.state_dict(), path)


def log(folder, row):
    if not os.path.exists(folder):
        os.makedirs(folder)
    with open(os.path.join(folder, "log"), "a") as f:
        f.write(row)


def words(path):
    if os.path.exists(path):
        return pickle.load(open(path, "rb"))
    found = ["a", "b"]
    pickle.dump(found, open(path, "wb"))
    return found
"""
SAVES = RUN.replace("from engine", "from util import log, save_model, words\nfrom engine") + (
    "save_model(net, 'net.pt')\nlog('logs', 'end')\nprint(words('words.pkl'))\n"
)


def test_what_a_dataset_writes_for_a_row_is_the_ranks_own(folder):
    after = migrated(folder, FOLDERS["sounds.py"])["rows.py"]
    kept = ROWS.partition("def get_loader")[0]
    assert kept.partition("def louder")[2] in after


def test_a_method_of_the_same_name_elsewhere_is_one_ranks():
    after = rewrite(
        """\
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __getitem__(self, i):
        row = torch.ones(2)
        np.save(f"row{i}.npy", row)
        return row

class Trainer:
    def save(self):
        torch.save(self.net.state_dict(), "net.pt")
        np.save("losses.npy", self.losses)

net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
trainer = Trainer()
for x in DataLoader(Rows(), 4):
    loss = net(x).mean()
    loss.backward()
    optimizer.step()
trainer.save()
""",
        "ddp",
        "train.py",
    )
    assert '        np.save(f"row{i}.npy", row)' in after
    assert '            np.save("losses.npy", self.losses)' in after  # below a test
    assert 'save_once(self.net.state_dict(), "net.pt")' in after


def test_what_no_training_calls_is_written_as_before(folder):
    files = {"plot.py": "import util\nutil.log('a', 'b')\n", "util.py": UTIL}
    assert migrated(folder, files) == files


def test_a_file_that_reads_and_writes_nothing_stays(folder):
    reads = "import torch\n\n\ndef best(path):\n    dist = torch.load(path)\n    return dist\n"
    run = RUN.replace("from engine", "from generate import best\nfrom engine")
    assert migrated(folder, {"run.py": run, "engine.py": ENGINE, "generate.py": reads})["generate.py"] == reads


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_one_rank_writes_what_another_file_saves(folder, launcher, target):
    files = {"run.py": SAVES, "engine.py": ENGINE, "util.py": UTIL}
    after = migrated(folder, files, target)
    assert "    save_once(model.state_dict(), path)\n" in after["util.py"]
    assert "os.makedirs(folder, exist_ok=True)" in after["util.py"]
    assert migrated(folder, after, target) == after
    wanted, written = launcher.run_folder(files, "run.py", 1)
    out, found = launcher.run_folder(after, "run.py", 2)
    assert out == [*wanted, ""]
    assert found == written
