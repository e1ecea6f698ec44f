"""Files that one rank writes and all of them read: nobody looks for them before they are whole."""

import json
import re

import pytest

pytest.importorskip("libcst")

from test_migrate_folder import ENGINE, RUN
from test_migrate_runs import Launcher

from ddp_patch.migrate.bindings import Bindings
from ddp_patch.migrate.command import command
from ddp_patch.migrate.dialects import DDP
from ddp_patch.migrate.rewrite import left
from ddp_patch.migrate.rules import written
from ddp_patch.migrate.script import Script

# Each gives `made`, of a file that the program writes. `work()` takes a while on the rank that DELAYED names.
FORMS = {
    "found_or_made": """
def rows(path):
    if os.path.exists(path):
        return np.load(path)
    made = work()
    np.save(path, made)
    return np.load(path)

made = rows("rows.npy")
""",
    "made_once_and_read": """
cache = os.path.join("data", "rows.json")
os.makedirs("data", exist_ok=True)
if not os.path.isfile(cache):
    with open(cache, "w") as file:
        json.dump(work().tolist(), file)
with open(cache) as file:
    made = np.array(json.load(file))
""",
    "written_and_read": """
np.savetxt("rows.txt", work())
made = np.loadtxt("rows.txt")
""",
    "tried": """
try:
    made = pickle.load(open("rows.pkl", "rb"))
except FileNotFoundError:
    made = work()
    pickle.dump(made, open("rows.pkl", "wb"))
""",
    "saved_tensor": """
def rows(path="rows.pt"):
    if not Path(path).exists():
        torch.save(torch.from_numpy(work()), path)
    return torch.load(path).numpy()

made = rows()
""",
    "dataset": """
class Rows(Dataset):
    def __init__(self, root):
        self.root = root
        if not self._complete():
            self.process()
        self.rows = np.load(os.path.join(self.root, self.name))

    name = "rows.npy"

    def _complete(self):
        return os.path.exists(os.path.join(self.root, self.name))

    def process(self):
        made = work()
        np.save(os.path.join(self.root, self.name), made)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]

made = Rows(".").rows
""",
    "folder": """
def prepare(folder):
    os.makedirs(folder, exist_ok=True)
    if len(os.listdir(folder)) == 3:
        return
    work()
    for i in range(3):
        np.save(f"{folder}/part{i}.npy", np.arange(4.0))

prepare("parts")
made = np.concatenate([np.load(file) for file in sorted(glob.glob("parts/*.npy"))])
""",
    "closed": """
out = open("rows.tsv", "w")
for value in work():
    out.write(f"{value}\\n")
out.close()
made = np.array([float(line) for line in open("rows.tsv")])
""",
    "found_by_a_name": """
cached = os.path.exists("rows.csv")
if not cached:
    with open("rows.csv", "w") as out:
        for value in work():
            out.write(f"{value}\\n")
made = np.array([float(line) for line in open("rows.csv")])
""",
}
HEAD = """\
import glob
import json
import os
import pickle
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
"""
WORK = """
def work():
    if os.environ.get("RANK") == "0" == os.environ.get("DELAYED", "0"):
        time.sleep(0.4)
    return np.arange(12.0)

if os.environ.get("RANK") == "1" == "LATE":
    time.sleep(0.4)
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    started = Launcher(tmp_path_factory.mktemp("written"))
    yield started
    started.end()


def migrated(folder, to, **files):
    """Write files, migrate the folder, and give the texts."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    assert command([str(folder), "--to", to, "--write", "--force"]) in (0, 3)
    return {f"{name}.py": (folder / f"{name}.py").read_text() for name in files}


def script(form):
    return HEAD + WORK + FORMS[form] + RUN.replace("from engine import fit\n", ENGINE)


@pytest.mark.slow
@pytest.mark.parametrize("late", ["0", "1"])
def test_all_ranks_find_what_one_of_them_writes(late, launcher, tmp_path):
    text = HEAD + WORK.replace("LATE", late)
    for form, lines in FORMS.items():
        text += (
            re.sub(r"\b(made|rows|Rows|cache|prepare|parts)\b", rf"\1_{form}", lines) + f"print(made_{form}.sum())\n"
        )
    text += RUN.replace("from engine import fit\n", ENGINE)
    alone, _ = launcher.run(text, "train.py", 1)
    texts = migrated(tmp_path, "ddp", train=text)
    assert left(texts["train.py"]) == []
    out, _ = launcher.run_folder(texts, "train.py", 2)
    assert out[0] == alone[0]


@pytest.mark.parametrize("form", FORMS)
def test_accelerate_waits_at_the_same_places(form, tmp_path):
    waits = re.compile(r".*(dist\.barrier|accelerator\.wait_for_everyone)\(\).*\n")
    (tmp_path / "a").mkdir()
    texts = [
        migrated(folder, to, train=script(form))["train.py"]
        for folder, to in ((tmp_path, "ddp"), (tmp_path / "a", "accelerate"))
    ]
    assert len(waits.findall(texts[0])) == len(waits.findall(texts[1])) > 0


@pytest.mark.parametrize("form", FORMS)
def test_the_way_back_leaves_nothing(form, tmp_path):
    after = migrated(tmp_path, "ddp", train=script(form))["train.py"]
    assert migrated(tmp_path, "ddp", train=after)["train.py"] == after
    back = migrated(tmp_path, "patch", train=after)["train.py"]
    assert "barrier" not in back
    assert "until it is" not in back


@pytest.mark.slow
def test_a_module_beside_writes_and_the_script_waits(launcher, tmp_path):
    module = HEAD + WORK + FORMS["found_or_made"].replace('\nmade = rows("rows.npy")\n', "")
    train = (
        "from store import rows\n\nmade = rows('rows.npy')\nprint(made.sum())\n"
        + RUN.replace("from engine import fit\n", ENGINE)
    )  # fmt: skip
    alone, _ = launcher.run_folder({"store.py": module, "train.py": train}, "train.py", 1)
    texts = migrated(tmp_path, "ddp", store=module, train=train)
    out, _ = launcher.run_folder(texts, "train.py", 2)
    assert out[0] == alone[0]
    assert "until it is written" in texts["train.py"]


PREDICTED = """
os.makedirs("predicted", exist_ok=True)
WRITE
print(sorted(os.listdir("predicted")) != [] if os.environ.get("RANK") else True)
"""
ONE_BY_ONE = """
def keep(i, values):
    np.save(f"predicted/{i}.npy", values.numpy())

with torch.no_grad():
    for i, (inputs, targets) in enumerate(DataLoader(TensorDataset(x[:24], y[:24]), batch_size=8)):
        KEEP
"""


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["keep(i, net(inputs))", 'np.save(f"predicted/{i}.npy", net(inputs).numpy())'])
def test_ranks_that_write_less_often_than_others_wait_for_nobody_in_between(keep, launcher, tmp_path):
    """Three batches for two ranks; a rank that waited for its third batch's write would wait for ever."""
    text = HEAD + RUN.replace("from engine import fit\n", ENGINE)
    text += PREDICTED.replace("WRITE", ONE_BY_ONE.replace("KEEP", keep))
    texts = migrated(tmp_path, "ddp", train=text)
    out, _ = launcher.run_folder(texts, "train.py", 2)
    assert out[0].endswith("True\n")
    function, loop = texts["train.py"].split("def keep")[1].split("enumerate(")
    loop = loop.split("\n    if master_process:\n        dist.barrier()")[0]
    assert "barrier" not in loop
    assert "barrier" not in function.split("with torch")[0]


def test_an_error_of_the_rank_that_writes_keeps_nobody_waiting(tmp_path):
    more = 'try:\n    np.savetxt("rows.txt", np.zeros(3))\nexcept OSError:\n    print("full")\nrows = np.loadtxt("rows.txt")\n'
    after = migrated(tmp_path, "ddp", train=HEAD + more + RUN.replace("from engine import fit\n", ENGINE))["train.py"]
    assert "if not master_process:\n    dist.barrier()  # until it is written\ntry:\n" in after
    assert 'print("full")\nif master_process:\n    dist.barrier()\n' in after


def test_what_stands_under_a_test_of_the_rank_is_waited_for_outside_of_it(tmp_path):
    head = HEAD + 'is_first = os.environ.get("RANK", "0") == "0"\n'
    text = head + RUN.replace("from engine import fit\n", ENGINE)
    after = migrated(tmp_path, "ddp", train=text)["train.py"]
    more = 'if master_process:\n    for i in range(2):\n        np.save("rows.npy", np.zeros(3))\nrows = np.load("rows.npy")\n'
    script = Script(after.replace("torch.manual_seed(0)\n", more + "torch.manual_seed(0)\n", 1))
    written.apply(script, DDP, Bindings(script))
    assert "np.zeros(3))\nif master_process:\n    dist.barrier()" in script.result()


@pytest.mark.parametrize(
    "more",
    [
        'with open("args.json", "w") as file:\n    json.dump({"lr": 0.1}, file)\n',  # nobody reads it
        'np.save("a.npy", np.zeros(3))\nother = np.load("b.npy") if os.path.exists("b.npy") else None\n',
        'os.makedirs("runs", exist_ok=True)\n',
        'class Log:\n    def __init__(self, path):\n        self.old = open(path).read() if os.path.exists(path) else ""\n'
        '        self.file = open(path, "a")\n\nlog = Log("log.txt")\n',  # goes on for as long as it runs
        'text = open("train.py").read() if os.path.exists("train.py") else ""\nopen("copy.txt", "w").write(text)\n',
    ],
)
def test_files_that_are_not_read_again_are_waited_for_by_nobody(more, tmp_path):
    text = HEAD + more + RUN.replace("from engine import fit\n", ENGINE)
    assert "barrier" not in migrated(tmp_path, "ddp", train=text)["train.py"]


def test_who_calls_a_function_that_nobody_is_seen_to_call_is_asked(tmp_path):
    text = HEAD + 'class Store:\n    def process(self):\n        np.save("rows.npy", np.zeros(3))\n\n'
    text += '    def read(self):\n        return np.load("rows.npy")\n' + RUN.replace(
        "from engine import fit\n", ENGINE
    )
    after = migrated(tmp_path, "ddp", train=text)["train.py"]
    assert "barrier" not in after
    assert any("before it is whole" in reason for _, reason in left(after))


def test_notebooks_wait_as_scripts_do(tmp_path):
    cells = [HEAD + WORK, FORMS["made_once_and_read"], RUN.replace("from engine import fit\n", ENGINE)]
    book = {"cells": [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": []} for cell in cells]}
    (tmp_path / "book.ipynb").write_text(json.dumps(book | {"metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    assert command([str(tmp_path), "--to", "ddp", "--write", "--force"]) == 0
    assert "until it is written" in (tmp_path / "book.ipynb").read_text()
