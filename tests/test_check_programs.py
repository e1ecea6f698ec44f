"""Rules on programs of several files: the other half of what one file says may stand in another."""

import textwrap

import pytest

from ddp_patch.check.checking import Result, check
from ddp_patch.check.table import table
from ddp_patch.source import Programs

TRAIN = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
import torch.distributed as dist

def train_one_epoch(model, loader, criterion, optimizer):
    total = 0.0
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)
"""
MODEL = """
import torch.nn as nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.spare = nn.Linear(4, 4)
    def forward(self, x):
        return self.norm(x)
"""
TRAINER = "import torch, part\nmodel = part.Net()\nmodel(x).sum().backward()\n"
DDP = "import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel\n"


@pytest.fixture
def found(tmp_path):
    """Check files given as texts; gives the codes by file."""

    def run(files, *codes):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(textwrap.dedent(text))
        paths = [tmp_path / name for name in files]
        programs, result = Programs(paths), Result()
        for path in paths:
            check(path, codes or [*table()], result, programs.elsewhere(path))
        assert not result.problems
        reported = [(each.path.removeprefix(f"{tmp_path}/"), each.rule.code) for each in result.findings]
        return [name_and_code for name_and_code in reported if not codes or name_and_code[1] in codes]

    return run


def test_files_that_do_not_import_each_other_are_judged_by_themselves(found):
    other = "import ddp_patch; ddp_patch.enable()\nimport torch\n"
    assert found({"engine.py": TRAIN, "other.py": other}, "DDP103") == [("engine.py", "DDP103")]


@pytest.mark.parametrize(
    ("code", "part", "main"),
    [
        (
            "DDP101",
            DDP
            + TRAIN
            + "def load(d):\n    s = torch.utils.data.DistributedSampler(d)\n    return DataLoader(d, sampler=s)\n",
            "import part\nfor epoch in range(3):\n    loader.sampler.set_epoch(epoch)\n    part.train_one_epoch()\n",
        ),
        ("DDP103", TRAIN, "from part import train_one_epoch\nloss = all_reduce_mean(train_one_epoch())\n"),
        ("DDP103", TRAIN, "import ddp_patch; ddp_patch.enable()\nfrom part import train_one_epoch\n"),
        ("DDP103", TRAIN, "from accelerate import Accelerator\nfrom part import *\n"),
        (
            "DDP106",
            TRAIN + "def save(model):\n    torch.save(model, 'x')\n",
            "import part\nif dist.get_rank() == 0:\n    part.save(model)\n",
        ),
        (
            "DDP106",
            TRAIN + "def save(model):\n    torch.save(model, 'x')\n",
            "from part import save\ndef main(rank):\n    if rank != 0:\n        return\n    save(model)\n",
        ),
        (
            "DDP106",
            TRAIN + "def save(model):\n    torch.save(model, 'x')\n",
            "import os, part\nif int(os.environ.get('RANK', 0)) == 0:\n    part.save(model)\n",
        ),
        (
            "DDP106",
            TRAIN + "def save(model):\n    torch.save(model, 'x')\n",
            "import part\nfirst = args.rank == 0 or not dist.is_initialized()\nif first:\n    part.save(model)\n",
        ),
        (
            "DDP106",
            TRAIN + "def save(model):\n    torch.save(model, 'x')\n",
            "import part\nimport torch.multiprocessing as mp\ndef work(gpu, args):\n    args.gpu = gpu\n"
            "    if args.gpu == 0:\n        part.save(1)\nmp.spawn(work, args=(args,))\n",
        ),
        (
            "DDP107",
            TRAIN + "class Log:\n    def __init__(self):\n        self.file = open('log.txt', 'w')\n",
            "from part import Log\nlog = Log() if is_main_process() else None\n",
        ),
        (
            "DDP111",
            DDP + TRAIN + "dist.init_process_group('nccl')\nmodel.cuda()\n",
            "import torch, part\ntorch.cuda.set_device(0)\n",
        ),
        (
            "DDP113",
            MODEL,
            "import torch\nfrom part import Net\n"
            "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(Net())\nloss.backward()\n",
        ),
        (
            "DDP118",
            TRAIN + "def seed_all(seed):\n    torch.manual_seed(seed)\nnn.Dropout()\n",
            "from part import seed_all\nseed_all(1 + dist.get_rank())\n",
        ),
        (
            "DDP119",
            TRAIN + "a, b = torch.utils.data.random_split(d, [1, 2])\n",
            "from lightly import seed_everything\nimport part\nseed_everything(1)\n",
        ),
        ("DDP128", MODEL, "import torch, part\nnet = part.Net()\nnet.norm(net.spare(x)).sum().backward()\n"),
        (
            "DDP139",
            DDP + TRAIN + "model = DistributedDataParallel(m)\nl = DataLoader(d)\ntrain_one_epoch(model, l, c, o)\n",
            "import part\nfrom torch.utils.data import DistributedSampler\n",
        ),
        ("DDP145", DDP + "p.add_argument('--local_rank')\n", "import os, part\nrank = os.environ['LOCAL_RANK']\n"),
        (
            "DDP148",
            DDP + TRAIN + "dist.init_process_group('gloo')\n",
            "import part\ndist.destroy_process_group()\n",
        ),
        (
            "DDP150",
            DDP + "import torch\nif rank == 0:\n    torch.save(1, 'x')\nwait()\ntorch.load('x')\n",
            "import part\ndef wait():\n    dist.barrier()\n",
        ),
    ],
)
def test_the_other_half_may_stand_in_another_file(found, code, part, main):
    trainer = {"train.py": TRAINER} if part is MODEL else {}
    assert ("part.py", code) in found({"part.py": part, **trainer}, code)
    assert found({"part.py": part, "main.py": main}, code) == []


def test_a_model_in_a_file_of_its_own_is_checked_where_the_training_is_known(found):
    main = "import torch\nfrom models.net import Net\nNet()(x).sum().backward()\n"
    files = {"models/__init__.py": "", "models/net.py": MODEL, "main.py": main}
    assert found(files, "DDP113", "DDP128") == [("models/net.py", "DDP113"), ("models/net.py", "DDP128")]
    assert found({"models/net.py": MODEL}, "DDP113", "DDP128") == []


def test_imports_are_followed_over_packages_and_relatively(found):
    files = {
        "project/__init__.py": "",
        "project/engine.py": TRAIN,
        "project/middle.py": "from . import engine\nfrom .deep import thing\n",
        "project/deep/__init__.py": "",
        "project/deep/thing.py": TRAIN.replace("train_one_epoch", "other"),
        "main.py": "import ddp_patch; ddp_patch.enable()\nfrom project.middle import engine\n",
    }
    assert found(files, "DDP103") == []


def test_a_function_that_every_rank_calls_somewhere_is_not_taken_for_guarded(found):
    part = TRAIN + "def save(model):\n    torch.save(model, 'x')\n"
    main = "import part\nif rank == 0:\n    part.save(model)\npart.save(model)\n"
    assert found({"part.py": part, "main.py": main}, "DDP106") == [("part.py", "DDP106")]


@pytest.mark.parametrize(
    "test", ["late", "rank != -1", "0 <= args.local_rank", "rank is not None", "os.path.exists(args.root)"]
)
def test_what_every_rank_calls_under_a_test_is_not_taken_for_guarded(found, test):
    part = TRAIN + "def save(model):\n    torch.save(model, 'x')\n"
    start = "def work():\n    pass\nspawn(work)\na, late = rank == 0, 1\nlate = epoch + 1\n"
    main = f"import os, part\n{start}if {test}:\n    part.save(model)\n"
    assert found({"part.py": part, "main.py": main}, "DDP106") == [("part.py", "DDP106")]


def test_a_file_that_cannot_be_read_tells_the_others_nothing(tmp_path):
    (tmp_path / "a.py").write_text("import b\ndef f(:\n")
    (tmp_path / "b.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "c.ipynb").write_text("{")
    programs = Programs([tmp_path / "a.py", tmp_path / "b.py", tmp_path / "c.ipynb"])
    assert not programs.elsewhere(tmp_path / "b.py").words


SAVES = "    torch.save(1, 'x')\n"


@pytest.mark.parametrize(
    "files",
    [
        {
            "engine.py": TRAIN,
            "main.py": "import torch\nfrom engine import train_one_epoch\ntrain_one_epoch(m, l, c, o)\n",
        },
        {"engine.py": TRAIN, "main.py": "import torch, engine\nengine.train_one_epoch(m, l, c, o)\n"},
        {
            "solver.py": "import torch\nclass Solver:\n    def train(self):\n        self.loss().backward()\n",
            "main.py": "import torch\nfrom solver import Solver\nsolver = Solver()\nsolver.train()\n",
        },
        {
            "base.py": "class Base:\n    def run(self):\n        self.one_batch()\n",
            "soft.py": "import base\nclass Soft(base.Base):\n    def one_batch(self):\n        self.loss().backward()\n",
            "main.py": "import torch\nfrom soft import Soft\nengine = build(Soft)\nengine.run()\n",
        },
        {"model.py": MODEL + "import torch\n", "main.py": "from model import *\ntorch.tensor(1.0).backward()\n"},
    ],
    ids=["function", "module", "object", "base", "star"],
)
def test_a_script_that_trains_by_another_file_is_one_that_trains(found, files):
    files["main.py"] += "if True:\n" + SAVES
    assert ("main.py", "DDP106") in found(files, "DDP106")


@pytest.mark.parametrize(
    "main",
    [
        "import torch\nfrom part import Net\nnet = Net()\nnet.train()\n",
        "import torch, subprocess, part\nsubprocess.fit()\n",
        "import torch, part\nfrom sklearn import Encoder\nencoder = Encoder()\nencoder.fit(x)\n",
        "import torch\nfrom part import fit\ndef fit(x):\n    pass\nfit(1)\n",
    ],
    ids=["module's own train", "another package", "another package's object", "own function"],
)
def test_a_script_that_only_evaluates_is_not_taken_for_training(found, main):
    part = MODEL + "def fit(x):\n    x.backward()\nclass Solver:\n    def train(self):\n        fit(1)\n"
    assert found({"part.py": part, "main.py": main + "if True:\n" + SAVES}, "DDP106") == []


def test_what_a_star_brings_along_is_known_by_its_name(found):
    files = {
        "model.py": MODEL + "import torch\n",
        "main.py": "from model import *\nmodel = nn.DataParallel(Net())\ntorch.tensor(1.0).backward()\n",
    }
    assert ("main.py", "DDP143") in found(files)


def test_files_in_a_folder_of_tests_are_tests_at_any_depth(found):
    files = {"main.py": TRAIN, "tests/distributed/sums.py": TRAIN, "tools/sums.py": TRAIN}
    assert found(files, "DDP103") == [("main.py", "DDP103"), ("tools/sums.py", "DDP103")]


def test_a_rank_that_is_kept_under_its_name_is_a_rank_in_other_files_as_well(found):
    part = TRAIN + "def save(model):\n    torch.save(model, 'x')\n"
    main = "import part\nif config['rank'] == 0:\n    part.save(model)\n"
    assert found({"part.py": part, "main.py": main}, "DDP106") == []


def test_augmentation_in_another_file_is_drawn_alike_with_one_seed(found):
    main = "import torch\nfrom data import load\ntorch.manual_seed(0)\nloss.backward()\n"
    data = "from torchvision.transforms import RandomCrop\ndef load():\n    return RandomCrop(32)\n"
    assert found({"data.py": data, "main.py": main}, "DDP118") == [("main.py", "DDP118")]
    assert found({"data.py": "def load():\n    pass\n", "main.py": main}, "DDP118") == []


PARTS = {
    "DDP106": "def save(state):\n    torch.save(state, 'x')\n",
    "DDP107": "class Log:\n    def __init__(self):\n        self.file = open('log.txt', 'w')\n",
    "DDP108": "def load(model):\n    model.load_state_dict(torch.load('x'))\n",
    "DDP132": "from tensorboardX import SummaryWriter\nclass Log:\n    def start(self):\n        return SummaryWriter('x')\n",
    "DDP136": "def make(path):\n    if not os.path.exists(path):\n        os.makedirs(path)\n",
    "DDP137": "from torchvision import datasets\ndef data():\n    return datasets.MNIST('x', download=True)\n",
    "DDP138": "from torch.utils.data import DataLoader, WeightedRandomSampler\n"
    "def data(d):\n    s = WeightedRandomSampler(w, 9)\n    return DataLoader(d, sampler=s)\n",
}


@pytest.mark.parametrize("code", PARTS)
def test_what_a_training_calls_in_another_file_is_checked_there(found, code):
    part = "import os\nimport torch\n" + PARTS[code]
    main = "import torch, part\nfor thing in (part.save, part.load, part.Log, part.make, part.data):\n    thing()\n"
    trained = "loss.backward()\n"
    assert found({"part.py": part, "main.py": main + trained}, code) == [("part.py", code)]
    assert found({"part.py": part, "main.py": main}, code) == []  # nothing trains
    assert found({"part.py": part, "main.py": "import torch, part\n" + trained}, code) == []  # nobody calls it
    assert (
        found({"part.py": part, "main.py": DDP + "dist.init_process_group('gloo')\n" + main + trained}, code) == []
    )  # on one rank, perhaps
    assert found({"part.py": part}, code) == []
