"""``python -m ddp_patch verify``: cries no wolf, finds planted faults, and says by name what it cannot tell."""

import datetime
import difflib
import functools
import gc
import gzip
import io
import json
import os
import pathlib
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import PATIENCE, THOROUGH
from verify import collection
from verify.warm import Warm

from ddp_patch.verify import against as against_module
from ddp_patch.verify import files, inquiry, run_folder
from ddp_patch.verify.command import command
from ddp_patch.verify.compare import _files, _steps, varies
from ddp_patch.verify.files import read
from ddp_patch.verify.inside import patterns
from ddp_patch.verify.inside.gradients import with_gradients
from ddp_patch.verify.lines import lines
from ddp_patch.verify.observed import Loss, Observed
from ddp_patch.verify.order import Epoch, Order, judged
from ddp_patch.verify.printed import PrintedLine, Varying, paired
from ddp_patch.verify.process import MARK
from ddp_patch.verify.runs import Spec
from ddp_patch.verify.tensors import tensors
from ddp_patch.verify.tolerance import Tolerance

FEW_SOUND = ("dropout", "migrated_uneven")
FEW_FAULTY = ("no_average", "per_rank_state")
TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), 8):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.5f}")
"""


@pytest.fixture(scope="module")
def start():
    warm = Warm()
    yield warm
    warm.close()


@pytest.fixture
def verify(start, tmp_path, monkeypatch, capsys):
    """Verify a script given as text; gives the exit code and what was said."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")

    def run(text, *options, args=(), name="train.py"):
        with open(name, "w") as stream:
            stream.write(text)
        code = command([*options, name, *args], start)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def chosen(kind, few):
    return [path for path in collection.scripts(kind) if THOROUGH or path.stem in few]


@pytest.mark.slow
@pytest.mark.collection
@pytest.mark.parametrize("path", chosen("sound", FEW_SOUND), ids=lambda path: path.stem)
def test_a_sound_script_is_the_same(start, tmp_path, path):
    code, _, said = collection.verify(path, start, tmp_path)
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.collection
@pytest.mark.parametrize("path", chosen("faulty", FEW_FAULTY), ids=lambda path: path.stem)
def test_a_fault_is_found_and_its_line_named(start, tmp_path, path):
    code, result, said = collection.verify(path, start, tmp_path)
    assert code == 1, said
    assert set(collection.named_lines(result)) & collection.fault_lines(path), said


def test_a_progress_bar_is_the_same_however_fast_it_was():
    ends = ("12.31it/s, loss=0.5]", " 1.31s/it, loss=0.5]", "?it/s, loss=0.5]")
    bars = [PrintedLine(f"epoch 0: 100%|██████████| 7/7 [00:0{n}<00:00, {end}") for n, end in enumerate(ends)]
    assert len({bar.template for bar in bars}) == 1
    assert {bar.numbers for bar in bars} == {("0", "100", "7", "7", "0.5")}


def test_a_column_of_times_is_the_same_however_wide():
    """As language models print it."""
    slow = PrintedLine("| epoch   2 |   100/ 2983 batches | lr 20.00 | ms/batch 140.95 | loss  5.12 | ppl   167.3")
    fast = PrintedLine("| epoch   2 |   100/ 2983 batches | lr 20.00 | ms/batch  2.75 | loss 15.12 | ppl    67.3")
    assert slow.template == fast.template
    assert slow.numbers == ("2", "100", "2983", "20.00", "5.12", "167.3")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("theta = 1.25", ("1.25",)),
        ("beta: 0.9", ("0.9",)),
        ("meta loss 0.5231", ("0.5231",)),
        ("timestep 1000 reward 32.5", ("1000", "32.5")),
        ("eta: 0.1", ("0.1",)),
        ("time for epoch 3 loss 0.5", ("3", "0.5")),
        ("time for epoch 3: 12.5", ()),
        ("elapsed_time=12.3", ()),
        ("Time taken: 3.2, took 1", ()),
        ("ETA: 17", ()),
        ("mean 0.50 min 0.12 max 3.5", ("0.50", "0.12", "3.5")),
        ("mean 0.50 min -0.12", ("0.50", "-0.12")),
        ("mean 0.50 min .12", ("0.50", ".12")),
        ("mean 0.50 min/max 0.12/3.5", ("0.50", "0.12", "3.5")),
        ("mean 0.50 min=0.12 h: 3", ("0.50", "0.12", "3")),
        ("top1:93 top5:12", ("93", "12")),
        ("loss 2:75", ("2", "75")),
        ("took 3 min 12 s", ()),
        ("3min 12.5sec, 1 h 3 min 12 seconds, 0.5 min", ()),
        ("in 0.5 min: loss falls", ()),
        ("[00:01<01:03, at 12:30:45.5]", ()),
        ("Duration Loss: 0.1234", ("0.1234",)),
        ("time series mse 0.1", ("0.1",)),
        ("took best model with accuracy 0.4", ("0.4",)),
        ("took 3 steps, took 32 epochs", ("3", "32")),
        ("took 3, took 3.5 s, it took: 12.5 for 3", ("3",)),
        ("time spent per batch: 0.5, time in seconds 3", ()),
        ("epoch_time 0.5 time/epoch: 3.5 Time elapsed is 3", ()),
        ("epoch 3:20.50", ("3", "20.50")),
        ("epoch 3:20", ("3", "20")),
        ("12it [00:03, 3.5it/s], eta 1:20, time: 3:20.5, elapsed 0:03", ("12",)),
        ("1:02:03 left, 0:00:01.5", ()),
        ("kl 0.123 h 0.7", ("0.123", "0.7")),
        ("p 0.5 s 3 us 0.25 ms 4", ("0.5", "3", "0.25", "4")),
        ("kl 0.123 h 0.7 s 0.5", ("0.123", "0.7", "0.5")),
        ("s/n: 12.5 with s/it: 3", ("12.5",)),
        ("speed 0.53 m/s, 1.5 rad/s, 2.5 MB/s, 3 it/s, 4 samples/s", ("0.53", "1.5")),
    ],
)
def test_numbers_are_told_from_times(text, numbers):
    assert PrintedLine(text).numbers == numbers


@pytest.mark.parametrize(
    ("alone", "ranks", "is_same"),
    [
        ("0.9", "0.8125", False),
        ("1.0", "0.9375", False),
        ("1e-05", "5e-06", False),
        ("0.9", "0.8", False),
        ("0.90", "0.91", False),
        ("0.5", "0.499", False),
        ("1", "0.999", False),
        ("0.12345679", "0.1234568", True),
        ("0.999995", "1", True),
    ],
)
def test_a_number_of_few_digits_is_no_rounding_of_another(alone, ranks, is_same):
    told = lines(
        [PrintedLine(f"accuracy {alone}")], [PrintedLine(f"accuracy {ranks}")], Tolerance("float32"), Varying()
    )
    assert (not list(told)) is is_same


@pytest.mark.parametrize(
    ("sampler", "ranks", "said"),
    [
        ("RandomSampler", [[[0, 2], [4]], [[1, 3], [0]]], "ranks evaluate 1 of 5 rows twice"),
        ("RandomSampler", [[[0, 2], [4]], [[1, 3]]], ""),
        ("RandomSampler", [[[0, 1], [1]]] * 2, ""),
        ("SequentialSampler", [[[0, 2], [4]], [[1, 3], [0]]], ""),  # its numbers tell
    ],
)
def test_rows_of_an_evaluation_that_ranks_take_twice_are_told(sampler, ranks, said):
    about = {"loader": 0, "sampler": sampler, "rows": 5, "batch": 2, "made": "new.py:3", "sampler_made": ""}
    epoch = Epoch(about, ranks, ranks, (4, 4), is_whole=True)
    found = list(judged(SimpleNamespace(notes={"epoch": [about]}), [], Order({0: [epoch]})))
    assert [said in difference.said for difference in found] == [True] * bool(said)


FEW_DIGITS = TRAIN.replace("loss {loss.item():.5f}", "acc {acc:.2f}")


@pytest.mark.slow
@pytest.mark.parametrize(("worse", "word"), [("0.01", "differs"), ("0.0", "same")])
def test_an_evaluation_that_is_wrong_by_a_row_is_told_by_few_digits(verify, worse, word):
    acc = f"acc = 0.9 - {worse} * (ddp_patch.world_size() > 1)"
    code, said = verify(
        "import ddp_patch; ddp_patch.enable()" + FEW_DIGITS.replace("    print", f"    {acc}\n    print")
    )
    assert code == (word == "differs"), said
    assert word in said


@functools.cache
def long_log():
    return [
        PrintedLine(f"epoch {n}" if n % 5 == 0 else f"step {n} loss 0.5" if n % 2 else f"batch {n}")
        for n in range(50_000)
    ]


@functools.cache
def other_lines():
    by_digit = {48 + digit: 97 + digit for digit in range(10)}
    return [PrintedLine(f"warning {n}".translate(by_digit)) for n in range(50_000)]


OTHER_LOGS = {
    "one more": (lambda log: log[2:3] + log, 1),
    "every other in place": (
        lambda log: [said if n % 2 else PrintedLine("else") for n, said in enumerate(log)],
        60_000,
    ),
    "some missing": (lambda log: [said for n, said in enumerate(log) if n % 7], 70_000),
    "some more": (lambda log: [each for n, said in enumerate(log) for each in (said, *log[1 : n % 3])], 60_000),
    "many others between": (lambda log: log[:20_000] + other_lines()[:999] + log[20_000:], 999),
    "all others": (lambda log: other_lines(), 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", OTHER_LOGS)
def test_long_logs_are_laid_side_by_side_without_comparing_each_line_with_each(monkeypatch, how):
    sizes, matcher = [], difflib.SequenceMatcher

    def counted(junk, ones, others, autojunk):
        sizes.append(sum(map(Counter(others).__getitem__, ones)))  # pairs of lines that are alike
        return matcher(junk, ones, others, autojunk)

    monkeypatch.setattr(difflib, "SequenceMatcher", counted)
    other, single = OTHER_LOGS[how]
    log, others = long_log(), other(long_log())
    pairs = paired(log, others)
    kept = [one for one, _ in pairs if one is not None], [other for _, other in pairs if other is not None]
    is_whole = kept == (log, others)
    assert is_whole  # not compared here: pytest would show 50,000 lines
    assert sum(None in pair for pair in pairs) <= single
    assert max(sizes, default=0) <= 64**2
    assert sum(sizes) <= 64 * len(log)


def test_a_gradient_that_is_rounding_is_not_compared():
    """A bias before BatchNorm; the sum of all of its terms is 0, up to their last digits."""

    def seen(bias):
        step = SimpleNamespace(
            number=0, rates=[], norm=1.0, norms=[1.0, bias], age=0, step=0, line="train.py:9", evaluating=0
        )
        return SimpleNamespace(steps=[step], optimizers=[{"names": ["net.weight", "net.bias"]}])

    tolerance = Tolerance("float32")
    assert not list(_steps(seen(2e-7), seen(6e-7), tolerance))
    (found,) = _steps(seen(2e-5), seen(6e-5), tolerance)  # no longer rounding
    assert found.said.startswith("gradient of net.bias: norm 6e-05, alone 2e-05")
    (found,) = _steps(seen(2e-7), seen(6e-4), tolerance)  # on ranks no longer rounding
    assert found.said.startswith("gradient of net.bias: norm 0.0006, alone 2e-07")
    half = Tolerance("float16")
    assert not list(_steps(seen(5e-4), seen(8e-4), half))
    (found,) = _steps(seen(5e-3), seen(8e-3), half)
    assert found.said.startswith("gradient of net.bias: norm 0.008, alone 0.005")


def test_values_of_another_parameter_of_the_same_name_are_compared():
    """One of a generator is left out, and a discriminator has one of that name, without BatchNorm behind it."""
    step = SimpleNamespace(number=0, norm=1.0, norms=[1.0, 2e-7, 0.5])
    models = {"G.0.weight": torch.ones(3, 2), "G.0.bias": torch.ones(3), "D.0.weight": torch.ones(3, 9)}
    models["D.0.bias"] = torch.ones(3)
    names = ["G.0.weight", "G.0.bias", "D.0.bias"]
    alone = SimpleNamespace(steps=[step], optimizers=[{"names": names}], tensors=models, step_count=1, age=1)
    tolerance = Tolerance("float32")

    def found(what, ones):
        others = {name: each + 0.5 * name.endswith("bias") for name, each in ones.items()}
        return [apart.said.partition(" differs")[0] for apart in tensors(alone, ones, others, tolerance, what, "")]

    assert found("weights", models) == ["weights D.0.bias"]
    for root in ("", "module.", "model.net."):
        of = {label: {f"{root}{name[2:]}": each for name, each in models.items() if name[0] == label} for label in "GD"}
        assert found("file", of["G"]) == []
        assert found("file", of["D"]) == [f"weights {root}0.bias"]


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate


class Plain:
    def __init__(self, rate):
        self.rate = rate


def optimizer_of(rate):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0, momentum=0.9)
    optimizer.param_groups[0]["params"][0].grad = torch.full((2,), rate)
    optimizer.step()
    return optimizer


HOLDERS = {
    "a number": lambda rate: rate,
    "a set": lambda rate: {0.25, rate},
    "a frozen set": lambda rate: frozenset((0.25, rate)),
    "a deque": lambda rate: deque([0.25, rate], maxlen=9),
    "a range": lambda rate: range(int(8 * rate)),
    "a complex number": lambda rate: complex(0.25, rate),
    "bytes": lambda rate: bytes([int(8 * rate)]),
    "a moment": lambda rate: datetime.datetime(2026, 1, int(8 * rate)),
    "a path": lambda rate: pathlib.Path(f"runs/{rate}"),
    "a partial": lambda rate: functools.partial(print, rate),
    "a function": lambda rate: torch.relu if rate == 0.5 else torch.sigmoid,
    "a class": lambda rate: Plain if rate == 0.5 else Slotted,
    "of a class": lambda rate: (Plain if rate == 0.5 else Slotted)(1.0),
    "an object": Plain,
    "an object with slots": Slotted,
    "a namespace": lambda rate: SimpleNamespace(rate=rate),
    "an optimizer": optimizer_of,
    "a dtype": lambda rate: torch.float32 if rate == 0.5 else torch.float64,
    "NumPy's strings": lambda rate: np.array(["rate", str(rate)]),
    "NumPy's objects": lambda rate: np.array([{"rate": rate}, None]),
    "NumPy's records": lambda rate: np.array([(1, rate)], dtype=[("n", int), ("rate", float)]),
    "NumPy's generator": lambda rate: np.random.RandomState(int(8 * rate)),
    "another order of bytes": lambda rate: np.array([rate], dtype=">f8"),
    "one key": lambda rate: {1: torch.tensor(rate), "1": torch.tensor(0.25)},
    "keys of tensors": lambda rate: {torch.tensor(rate): rate},
}


@pytest.mark.parametrize("how", HOLDERS)
@pytest.mark.parametrize("save", ["pickle", "torch"])
def test_all_that_a_file_keeps_is_compared(tmp_path, save, how):
    def written(rate):
        path = tmp_path / {"pickle": "log.pkl", "torch": "log.pt"}[save]
        with open(path, "wb") as stream:
            {"pickle": pickle.dump, "torch": torch.save}[save]({"held": HOLDERS[how](rate)}, stream)
        return read(path, 0, 0)

    one, same, other = written(0.5), written(0.5), written(0.75)
    assert differ(one, same) == (False, False)
    assert differ(one, other) != (False, False)
    assert one.kind != "bytes"


def differ(one, other):
    """Whether lines and tensors differ."""
    told = lines(one.lines, other.lines, Tolerance("float64"), Varying())
    return bool(list(told)), not all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


def test_what_follows_a_first_pickle_or_array_is_compared(tmp_path):
    def written(name, *parts):
        (tmp_path / name).write_bytes(b"".join(parts))
        return read(tmp_path / name, 0, 0)

    def array(*values):
        stream = io.BytesIO()
        np.save(stream, np.array(values))
        return stream.getvalue()

    for one, other in ((pickle.dumps(0.5), pickle.dumps(0.75)), (b"0.5 and no pickle", b"0.75")):
        assert differ(written("a.pkl", pickle.dumps(1), one), written("b.pkl", pickle.dumps(1), other))[0]
    assert differ(written("a.npy", array(1), array(0.5)), written("b.npy", array(1), array(0.75)))[1]
    stamped = [gzip.compress(b"loss 0.5", mtime=time) for time in (1, 2)]
    assert differ(written("a.gz", stamped[0]), written("b.gz", stamped[1])) == (False, False)
    assert not written("a.gz", stamped[0]).digest
    assert written("broken.gz", stamped[0][:-9]).digest


class Scaled(torch.nn.Module):
    def __init__(self, weight, scale):
        super().__init__()
        self.scale = scale
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 1))
        for parameter in self.parameters():
            torch.nn.init.constant_(parameter, weight)

    def forward(self, x):
        return self.layers(x) * self.scale + torch.tensor([1.5])


class Doubled(Scaled):
    def forward(self, x):
        return self.layers(x) * self.scale + torch.tensor([2.5])


def test_all_that_torchscript_keeps_is_compared(tmp_path):
    def written(model, note="0.5"):
        torch.jit.save(torch.jit.script(model), tmp_path / "model.pt", _extra_files={"note.txt": note})
        return read(tmp_path / "model.pt", 0, 0)

    one = written(Scaled(1.0, 0.5))
    assert len(one.tensors) == 4
    assert not one.digest
    assert differ(one, written(Scaled(1.0, 0.5))) == (False, False)
    assert differ(one, written(Scaled(2.0, 0.5))) == (False, True)
    assert differ(one, written(Scaled(1.0, 0.75))) == (True, False)
    assert differ(one, written(Scaled(1.0, 0.5), note="0.75")) == (True, False)
    assert differ(one, written(Doubled(1.0, 0.5))) != (False, False)


def test_constants_of_a_trace_are_compared(tmp_path):
    shift = None

    class Shifted(torch.nn.Module):
        def forward(self, x):
            return x + shift

    def written(constant):
        nonlocal shift
        shift = torch.tensor([constant])
        torch.jit.save(torch.jit.trace(Shifted(), torch.ones(1)), tmp_path / "model.pt")
        return read(tmp_path / "model.pt", 0, 0)

    assert written(1.5).tensors == {"constants.0": torch.tensor([1.5])}
    assert differ(written(1.5), written(2.5))[1]


def test_what_cannot_be_taken_apart_is_compared_by_its_bytes(tmp_path, monkeypatch):
    def written(rate):
        (tmp_path / "log.pkl").write_bytes(pickle.dumps({"epoch": 3, "of": datetime.timedelta(rate)}))
        return read(tmp_path / "log.pkl", 0, 0)

    def refuse(value):
        if isinstance(value, datetime.timedelta):
            raise TypeError("cannot be pickled")
        return taken_apart(value)

    taken_apart = files._items
    monkeypatch.setattr(files, "_items", refuse)
    assert [said.text for said in written(1).lines] == ["epoch = 3"]
    assert written(1).digest == written(1).digest != written(2).digest


LONG = "".join(f"step {n} loss {{loss:.6f}}\n" for n in range(900)) + "last {last}\n"


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({}, 0),
        ({"loss": 0.500001}, 0),
        ({"loss": 0.75}, 900),
        ({"last": 2}, 1),
        ({"last": "1\nand one more"}, 1),
        ({"last": "1 of another kind"}, 1),
    ],
)
def test_a_long_text_is_compared_number_by_number(tmp_path, monkeypatch, other, found):
    monkeypatch.setattr(files, "_LONG", 99)
    monkeypatch.setattr(files, "_PART", 7)

    def written(name, given):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.txt").write_text(LONG.format(**given))
        return Observed("", 0, False, 0.0, "", "", folder=tmp_path / name, files=["log.txt"])

    given = {"loss": 0.5, "last": 1}
    one, two = written("one", given), written("two", given | other)
    assert len(list(_files(one, two, Tolerance("float32"), Varying()))) == found
    if other.get("last", 1) == 1:
        its = varies(one, two, Tolerance("float32"))
        assert not list(_files(one, two, Tolerance("float32"), its))


def test_there_are_enough_scripts():
    assert len(collection.scripts("sound")) >= 40
    assert len(collection.scripts("faulty")) >= 20


# --- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_first_difference_is_named_with_its_step_and_line(verify):
    text = TRAIN.replace("lr=0.1", "lr=0.1 * (1 + ddp_patch.rank())").replace("import torch", "import torch, ddp_patch")
    code, said = verify(text, "--report", "out", "--json", "result.json")
    assert code == 1
    assert "train.py on 2 ranks: differs" in said
    assert "first difference: train.py:9, after 1 step: backward 2, loss" in said
    assert "no rounding" in said
    report = open("out/verify.md").read()
    assert "## 2 ranks: differs" in report
    assert "64 times its epsilon" in report
    (found,) = json.load(open("result.json"))["results"]
    assert found["verdict"] == "differs"
    assert found["differences"][0]["what"] == "loss"
    assert json.load(open("out/verify.json"))["exit_code"] == 1


@pytest.mark.slow
def test_the_script_is_not_changed_and_nothing_is_left_in_its_folder(verify):
    code, _ = verify(TRAIN + "torch.save(model.state_dict(), 'model.pt')\nopen('log.txt', 'a').write('x')\n")
    assert code == 0
    assert os.listdir(".") == ["train.py"]


@pytest.mark.slow
def test_a_run_ends_after_the_steps_that_are_asked_for(verify):
    code, said = verify(TRAIN + "open('done', 'w')\n", "--steps", "3")
    assert code == 0
    assert "3 optimizer steps" in said
    assert "0 files" in said


@pytest.mark.slow
def test_data_beside_the_folder_are_found(verify, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rate.txt").write_text("0.05")
    code, said = verify(TRAIN.replace("lr=0.1", "lr=float(open('../data/rate.txt').read())"))
    assert code == 0, said


@pytest.mark.slow
def test_a_large_file_that_is_written_to_stays_as_it_is(verify):
    with open("large.bin", "wb") as stream:
        stream.write(bytes(17 << 20))
    code, said = verify(TRAIN + "f = open('large.bin', 'r+b'); f.write(b'x'); f.close()\n")
    assert code == 0, said
    assert open("large.bin", "rb").read(1) == b"\0"


SAVES = {
    "TorchScript": "m = torch.nn.Linear(2, 1); torch.nn.init.constant_(m.weight, float(w)); "
    "torch.jit.save(torch.jit.script(m), 'ema.pt')",
    "a trace": "m = torch.nn.Linear(4, 1, False); torch.nn.init.constant_(m.weight, float(w)); "
    "torch.jit.save(torch.jit.trace(m, torch.ones(2, 4)), 'ema.pt')",
    "a dotted name": "torch.save({'w': torch.tensor(float(w))}, '.ckpt.pt')",
    "a dotted folder": "import os; os.mkdir('.runs'); torch.save({'w': torch.tensor(float(w))}, '.runs/ckpt.pt')",
    "a lock that holds something": "open('rate.lock', 'w').write(str(float(w)))",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", SAVES)
def test_a_file_is_compared_whatever_it_is_called(verify, how):
    text = f"import ddp_patch\n{TRAIN}w = W\n{SAVES[how]}\n"
    code, said = verify(text.replace("W\n", "2\n", 1))
    assert code == 0, said
    assert "1 file" in said
    code, said = verify(text.replace("W\n", "ddp_patch.world_size()\n", 1))
    assert code == 1, said
    assert "first difference: after 5 steps: file" in said


@pytest.mark.slow
def test_what_is_left_out_is_named(verify):
    code, said = verify(
        "import os, ddp_patch\n"
        + TRAIN
        + "for name in ('.cache', 'wandb', 'node_modules'):\n    os.makedirs(f'{name}/x')\n"
        "    open(f'{name}/x/{name}', 'w').write(f'{ddp_patch.world_size()}')\nopen('.lock', 'w')\n"
    )
    assert code == 0, said
    assert "0 files" in said
    assert "left out, not compared: .cache/, .lock, node_modules/, wandb/" in said


IN_C = "import ctypes; c = ctypes.CDLL(None); f = c.open(b'large.bin', 1); c.write(f, b'x', 1); c.close(f)\n"
CHANGES = {
    "truncated": "import os; os.truncate('large.bin', 9)\n",
    "touched": "import os; os.utime('large.bin', (1, 1))\n",
    "a database": "import sqlite3; c = sqlite3.connect('large.bin'); c.execute('create table t(n)'); c.commit()\n",
}


def large(size=17 << 20):
    with open("large.bin", "wb") as stream:
        stream.truncate(size)
    return os.stat("large.bin").st_mtime_ns


@pytest.mark.slow
def test_a_large_file_that_code_in_c_writes_to_stays_as_it_is(verify):
    before = large()
    code, said = verify(TRAIN + IN_C)
    assert code == 0, said
    assert "1 file" in said
    assert os.stat("large.bin").st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.parametrize("how", CHANGES)
def test_a_file_too_large_to_copy_is_copied_before_python_changes_it(verify, monkeypatch, how):
    monkeypatch.setattr(run_folder, "_COPIED_IN_ALL", 1 << 20)
    with sqlite3.connect("large.bin") as database:
        database.execute("create table u(n)")
        database.execute("insert into u values (zeroblob(2000000))")
    database.close()
    before = os.stat("large.bin").st_mtime_ns
    code, said = verify(TRAIN + CHANGES[how])
    assert code == 0, said
    assert os.stat("large.bin").st_mtime_ns == before


@pytest.mark.slow
def test_a_file_too_large_to_copy_that_was_changed_is_named(verify, monkeypatch):
    monkeypatch.setattr(run_folder, "_COPIED_IN_ALL", 1 << 20)
    large(2 << 20)
    code, said = verify(TRAIN + IN_C)
    assert code == 2, said
    assert "large.bin was changed during the run" in said
    assert "more than 1 MiB" in said


RESUMED = f"""
import os
import torch
start = torch.load("ckpt/last.pt")["epoch"] if os.path.exists("ckpt/last.pt") else 0
{TRAIN}
torch.save(dict(epoch=start + 1), "ckpt/last.pt")
print("epoch", start)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("room", [1 << 30, 0])
def test_nothing_is_written_through_a_link_to_a_folder(verify, tmp_path, monkeypatch, where, room):
    monkeypatch.setattr(run_folder, "_COPIED_IN_ALL", room)
    real = tmp_path / "scratch" / "ckpt" if where == "outside" else tmp_path / "project" / "real"
    real.mkdir(parents=True)
    (real / "again").symlink_to(real)
    torch.save({"epoch": 3}, real / "last.pt")
    os.symlink(real, "ckpt")
    before = os.stat("ckpt/last.pt").st_mtime_ns
    code, said = verify(RESUMED.replace("ckpt/last.pt", "ckpt/again/last.pt", 1))
    assert code == 0, said
    assert "1 file" in said
    assert os.stat("ckpt/last.pt").st_mtime_ns == before
    assert sorted(os.listdir(real)) == ["again", "last.pt"]


CHANGING = {
    "a file": "open('data/1', 'a')",
    "torch.save": "torch.save({}, 'data/1')",
    "a new folder": "os.makedirs('data/new/er')",
    "a file less": "os.remove('data/1')",
    "another name": "os.replace('train.py', 'data/1')",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", CHANGING)
def test_a_folder_too_large_to_copy_is_read_through_its_link_and_not_changed(verify, tmp_path, monkeypatch, how):
    monkeypatch.setattr(run_folder, "_MOST_BEHIND", 2)
    (tmp_path / "data").mkdir()
    for name in "123":
        (tmp_path / "data" / name).write_text("0.05")
    os.symlink(tmp_path / "data", "data")
    text = "import os\n" + TRAIN.replace("lr=0.1", "lr=float(open('data/1').read())")
    code, said = verify(text)
    assert code == 0, said
    code, said = verify(text + CHANGING[how])
    assert code == 2, said
    assert "was about to be changed, and is your own" in said
    assert sorted(os.listdir("data")) == ["1", "2", "3"]


@pytest.mark.slow
def test_a_link_to_a_folder_above_stays_one(verify):
    os.symlink("..", "up")
    code, said = verify(TRAIN.replace("lr=0.1", "lr=0.1 * len(open('up/project/train.py').read()) / 1000"))
    assert code == 0, said


@pytest.mark.slow
def test_what_a_script_writes_outside_is_said(verify):
    target = os.path.expanduser("~/.ddp-patch-verify-test")
    try:
        code, said = verify(TRAIN + f"open({target!r}, 'w').write('x')\n")
    finally:
        os.unlink(target)
    assert code == 0
    assert f"train.py:12 writes {target}, outside of its folder" in said


@pytest.mark.slow
def test_arguments_reach_the_script(verify):
    code, said = verify("import sys\n" + TRAIN + "print(*sys.argv[1:])\nsys.exit(len(sys.argv))\n", args=("--lr", "1"))
    assert code == 0, said


@pytest.mark.slow
def test_several_numbers_of_ranks_are_told_apart(verify):
    code, said = verify(TRAIN, "--nproc", "2,3")
    assert code == 0
    assert "on 2 ranks: same" in said
    assert "on 3 ranks: same" in said


DRAWS = """
        rates = x.abs() + 0.5
        seen = [torch.randn_like(x), torch.normal(x, rates), torch.poisson(rates), rates.div(9).bernoulli()]
        seen += [torch.randint(0, 9, x.shape), torch.randint_like(x, 9), torch.multinomial(rates, 4)]
        seen += [torch.multinomial(rates, 4, replacement=True), rates.multinomial(4)]
"""
NOISY = TRAIN.replace(
    "model = ",
    f"""
class Noisy(torch.nn.Linear):
    def forward(self, x):{DRAWS}
        return super().forward(x + sum(each.to(x.dtype).tanh() for each in seen))

model = """,
).replace("torch.nn.Linear(4, 1)", "Noisy(4, 1)")


@pytest.mark.slow
def test_what_a_forward_draws_is_held_still_whatever_it_is(verify):
    code, said = verify(NOISY)
    assert code == 0, said
    assert "same up to draws" in said
    for name in ("randn_like", "normal", "poisson", "bernoulli", "randint", "randint_like", "multinomial"):
        assert f"held still: {name} in a forward gives a fixed pattern" in said


@pytest.mark.parametrize(
    ("draw", "args", "wanted"),
    [
        ("randint", (5, (3, 999)), {0, 1, 2, 3, 4}),
        ("randint", (2, 5, (3, 999)), {2, 3, 4}),
        ("randint_like", (torch.zeros(3, 999), 2, 5), {2, 3, 4}),
        ("random_", (3,), {0, 1, 2}),
        ("random_", (2, 5), {2, 3, 4}),
        ("multinomial", (torch.tensor([[0.1, 0.0, 0.3]] * 3), 999, True), {0, 2}),
        ("poisson", (torch.full((3, 999), 0.5),), {0, 1, 2, 3}),
        ("bernoulli", (torch.full((3, 999), 0.5),), {0, 1}),
    ],
)
def test_a_pattern_has_the_values_that_are_drawn(draw, args, wanted):
    if draw in patterns.IN_PLACE:
        pattern = patterns.IN_PLACE[draw](torch.zeros(3, 999), *args)
    else:
        pattern = patterns.FACTORIES[draw](getattr(torch, draw)(*args), *args)
    assert set(pattern.flatten().tolist()) == wanted
    assert pattern.eq(pattern[:1]).all()  # in all rows alike


def test_a_pattern_without_putting_back_has_each_once():
    weights = torch.rand(3, 9)
    pattern = patterns.FACTORIES["multinomial"](torch.multinomial(weights, 9), weights, 9)
    assert pattern.sort(-1).values.tolist() == [list(range(9))] * 3


# --- what cannot be told ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_script_that_varies_by_itself_is_not_blamed_on_ranks(verify):
    code, said = verify(
        TRAIN.replace("manual_seed(0)", "manual_seed(time.time_ns())").replace("torch\n", "torch, time\n", 1)
    )
    assert code == 2
    assert "not reproducible" in said
    assert "train.py:9" in said


WRITES_THE_TIME = {
    "a line": "open('log.json', 'w').write(json.dumps({'at': time.time() % 1, 'given': given}))",
    "a pickle": "pickle.dump([time.time() % 1, given], open('log.pkl', 'wb'))",
    "tensors": "torch.save({'at': torch.tensor(time.time() % 1), 'given': torch.tensor(given)}, 'log.pt')",
    "printed": "print(time.time() % 1, 'given', given)",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", WRITES_THE_TIME)
def test_what_stands_beside_a_number_that_varies_by_itself_is_compared(verify, how):
    text = f"import json, pickle, time, ddp_patch\n{TRAIN}given = GIVEN\n{WRITES_THE_TIME[how]}\n"
    code, said = verify(text.replace("GIVEN", "0.5"))
    assert code == 0, said
    assert "varies by itself, not compared: " in said
    code, said = verify(text.replace("GIVEN", "float(ddp_patch.world_size())"))
    assert code == 1, said
    assert "no rounding" in said


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a pickle", "tensors"])
def test_what_varies_by_itself_is_left_out_in_float64_as_well(verify, how):
    amplified = "print(f'{sum(p.sum().item() for p in model.parameters()) * 1e8 % 100:.1f}')\n"
    text = f"import json, pickle, time\n{TRAIN}given = 0.5\n{amplified}{WRITES_THE_TIME[how]}\n"
    code, said = verify(text)
    assert code == 0, said
    assert "same up to rounding" in said


@pytest.mark.slow
def test_a_script_that_fails_alone_shows_its_traceback(verify):
    code, said = verify(TRAIN + "raise ValueError('no such luck')\n")
    assert code == 2
    assert "ValueError: no such luck" in said
    assert "line 12" in said
    assert "recorded.py" not in said


@pytest.mark.slow
def test_a_script_that_fails_on_ranks_only_differs(verify):
    text = TRAIN + "import ddp_patch\nif ddp_patch.world_size() > 1:\n    raise ValueError('alone it works')\n"
    code, said = verify(text)
    assert code == 1
    assert "alone it works" in said


@pytest.mark.skipif(not THOROUGH, reason="waits for a time limit")
def test_a_script_that_is_slow_on_ranks_only_is_not_judged(verify):
    text = TRAIN + "import ddp_patch, time\nif ddp_patch.world_size() > 1:\n    time.sleep(1000)\n"
    code, said = verify(text, "--timeout", "20")
    assert code == 2
    assert "was not done after" in said
    assert "alone it took" in said


HOW = [(1, ""), (2, ""), (1, "still"), (2, "still"), (1, "float64"), (2, "float64"), (1, "again")]


@pytest.mark.parametrize("late", HOW)
@pytest.mark.parametrize("loss", [None, 0.5, 0.75])
def test_what_was_not_done_in_time_is_held_against_nobody(monkeypatch, late, loss):
    """But for numbers that ranks came to, and then only if neither draws nor rounding explain them."""
    monkeypatch.setattr(inquiry, "observe", lambda done: done)
    done = Counter()

    def perform(spec):
        how = "float64" if spec.float64 else "still" if spec.still else ""
        done[spec] += 1
        how = "again" if done[spec] > 1 else how
        if (spec.nproc, how) == late:
            return observed(loss, is_late=True)
        draws = {"still": [{"what": "dropout is off", "line": ""}]} if late[1] == "still" and how == "still" else {}
        return observed(0.75 if spec.nproc == 2 else 0.5, notes=draws)

    spec = Spec(script=pathlib.Path(__file__), launcher="ddp_patch")
    verdict = inquiry.Inquiry(spec, perform).ask(2)
    differs = late[0] == 2 and loss == 0.75
    assert verdict.word == ("differs" if differs else "could not tell"), verdict
    assert differs or "was not done after" in verdict.why


def observed(*losses, line="train.py:9", is_late=False, notes=None):
    """One run, as a record tells of it."""
    kept = [Loss(0, line, loss, 0) for loss in losses if loss is not None]
    how = "" if is_late else "end"
    return Observed("", 0, is_late, 9.0, "", "", how=how, losses=kept, notes=notes or {}, dtypes={"float32"})


@pytest.mark.parametrize("loss", [0.5, 0.75])
def test_late_ranks_whose_numbers_are_draws_or_rounding_are_not_told(monkeypatch, loss):
    monkeypatch.setattr(inquiry, "observe", lambda done: done)
    spec = Spec(script=pathlib.Path(__file__), launcher="ddp_patch")

    def perform(spec):
        return observed(0.5 if spec.float64 or spec.nproc == 1 else loss, is_late=spec.nproc == 2)

    assert inquiry.Inquiry(spec, perform).ask(2).word == "could not tell"


def against_of(monkeypatch, olds, news):
    """Ask about runs of an old script, each time the next one, and of ranks of a new one, each in float64 as well."""
    monkeypatch.setattr(against_module, "observe", lambda done, rank=0: done.seen)
    request = SimpleNamespace(
        against=pathlib.Path("old.py"), script=pathlib.Path(__file__), module="", args=(), steps=None, float64=False
    )
    olds, news = iter(olds), iter(news)

    def run(spec):
        return SimpleNamespace(seen=next(olds if spec.nproc == 1 else news), ended=SimpleNamespace(seconds=9.0))

    return against_module.Against(request, "torchrun", run).ask(2)


def test_a_migrated_script_that_was_not_done_in_time_is_not_judged(monkeypatch):
    old, late = observed(0.5, line="old.py:9"), observed(0.5, is_late=True, line="new.py:11")
    verdict = against_of(monkeypatch, [old], [late])
    assert (verdict.word, "was not done after" in verdict.why) == ("could not tell", True)
    other = observed(0.75, line="new.py:11")
    for olds, news in (([old, old, old], [other, late]), ([old, old, late], [other, other])):
        verdict = against_of(monkeypatch, olds, news)
        assert (verdict.word, "was not done after" in verdict.why) == ("could not tell", True)


def test_a_migrated_script_whose_original_varies_by_itself_is_not_judged(monkeypatch):
    olds = [observed(loss, line="old.py:9") for loss in (0.5, 0.625)]
    verdict = against_of(monkeypatch, olds, [observed(0.75, line="new.py:11")])
    assert verdict.word == "could not tell"
    assert "two runs alone differ in old.py:9" in verdict.why


def test_a_script_that_asks_is_told_apart(verify):
    code, said = verify("name = input('who? ')\nprint(name)\n")
    assert code == 2
    assert "reads from standard input" in said


def test_a_script_that_refuses_its_arguments_is_told_apart(verify):
    code, said = verify("import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.parse_args()\n")
    assert code == 2
    assert "ended with exit code 2 before it trained or wrote anything: " in said
    assert "the following arguments are required: data" in said


def test_a_script_that_does_nothing_is_told_apart(verify):
    code, said = verify("x = 1\n")
    assert code == 2
    assert "nothing to compare" in said


@pytest.mark.slow
def test_a_script_that_needs_an_accelerator_is_told_apart(verify):
    if torch.cuda.is_available():
        pytest.skip("this host has an accelerator, which the scripts would use")
    for text in (TRAIN.replace("Linear(4, 1)", "Linear(4, 1).cuda()"), "raise RuntimeError('No GPU found')\n"):
        code, said = verify(text)
        assert code == 2
        assert "it needs a GPU" in said


BY_HAND = """
import torch
torch.manual_seed(0)

def train():
    model = torch.nn.Linear(4, 1)
    for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), 8):
        loss = model(x).pow(2).mean()
        gradients = STEP
        for weight, gradient in zip(model.parameters(), gradients):
            weight.data -= 0.1 * gradient

train()
"""
STEPS = {
    "backward": "(model.zero_grad(), loss.backward(), [p.grad for p in model.parameters()])[-1]",
    "autograd.grad": "torch.autograd.grad(loss, list(model.parameters()))",
    "no gradient": "[torch.full_like(p, loss.item()) for p in model.parameters()]",
}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["range(3, 39)", "[*range(39)]"])
def test_a_sampler_may_be_a_range_or_a_list(verify, sampler):
    """As ``migrate`` writes it."""
    code, said = verify(TRAIN.replace(", 8):", f", 8, sampler={sampler}):"))
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("how", STEPS)
def test_weights_of_a_script_without_an_optimizer_are_compared(verify, how):
    code, said = verify(BY_HAND.replace("STEP", STEPS[how]))
    assert code == 0, said
    assert "5 weight and buffer values" in said
    assert ("0 losses" if how == "no gradient" else "5 losses") in said


KEEPS = {
    "the last batch": ("x.requires_grad_()", "kept[:] = [x]"),
    "a copy": ("x = x.clone().requires_grad_()", "kept[:] = [x]"),
    "all of them": ("x.requires_grad_()", "kept.append(x)"),
    "two of a batch": ("x.requires_grad_(); y = x.detach()[:, :2].clone().requires_grad_()", "kept.append([x, y])"),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", KEEPS)
def test_a_batch_with_a_gradient_is_the_same_without_an_optimizer(verify, how):
    before, after = KEEPS[how]
    text = BY_HAND.replace("STEP", STEPS["backward"]).replace("        loss =", f"        {before}\n        loss =")
    text = text.replace(".mean()", ".mean() + y.pow(2).mean()" if "y" in before else ".mean()")
    text = text.replace("gradients):\n", f"gradients):\n            {after}\n").replace(
        "def train", "kept = []\ndef train"
    )
    code, said = verify(text)
    assert code == 0, said


def test_what_is_trained_is_found_in_the_order_of_the_variables_however_often_garbage_was_collected():
    """Another order on ranks than alone would compare one batch with another."""
    seeds, known = [], set()
    for seed in range(3):
        draws = random.Random(seed)
        kept = [[]]
        for place in range(12):
            kept[0].append(torch.full((3, 4), float(place)).requires_grad_())
            if draws.random() < 0.3:
                gc.collect(draws.randrange(3))
            kept[0][-1].grad = torch.ones(3, 4)
        found = [int(each[0, 0]) for each in with_gradients(known) if each.shape == (3, 4)]
        assert found == [*range(12)]
        known.update(map(id, kept[0]))
        seeds.append(kept)


@pytest.mark.slow
@pytest.mark.parametrize("how", STEPS)
def test_the_step_by_hand_that_differs_is_named(verify, how):
    text = BY_HAND.replace("STEP", STEPS[how]).replace("0.1 * gradient", "(0.1 if alone else 0.2) * gradient")
    text = text.replace("import torch", "import torch, ddp_patch; alone = ddp_patch.world_size() == 1", 1)
    code, said = verify(text)
    assert code == 1, said
    assert "weights Linear.weight" in said
    if how != "no gradient":
        assert "after 1 step: backward 2, loss" in said
        assert "after 1 step: weights Linear." in said


@pytest.mark.slow
def test_a_run_without_an_optimizer_ends_after_as_many_backwards(verify):
    code, said = verify(BY_HAND.replace("STEP", STEPS["autograd.grad"]) + "open('done', 'w')\n", "--steps", "2")
    assert code == 0, said
    assert "2 losses" in said
    assert "0 files" in said


SAYS = TRAIN.replace(
    "model = torch.nn.Linear(4, 1)",
    """
import logging, sys, warnings
logging.basicConfig()
class Says(torch.nn.Linear):
    def forward(self, x):
        print("forward", file=sys.stderr)
        logging.warning("logged")
        warnings.warn("not compared")
        return super().forward(x)

model = Says(4, 1)""",
)


@pytest.mark.slow
def test_what_a_forward_writes_to_standard_error_is_compared(verify):
    code, said = verify(SAYS)
    assert code == 0, said
    text = SAYS.replace('"logged"', 'f"{float(ddp_patch.world_size())}"').replace(
        "import torch", "import torch, ddp_patch", 1
    )
    code, said = verify(text)
    assert code == 1, said
    assert "WARNING:root:2.0" in said


# --- against its original ---------------------------------------------------------------------------------------------

MIGRATED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(40, 4))
sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
for (x,) in torch.utils.data.DataLoader(data, 8 // size, sampler=sampler):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= size
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"loss {total.item() / size:.5f}")
"""


@pytest.fixture
def against(verify):
    """Verify a script given as text against its original."""

    def run(old, new, *options):
        with open("old.py", "w") as stream:
            stream.write(old)
        return verify(new, "--against", "old.py", *options)

    return run


SCHEDULED = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)\nfor (x,)"
SAVED = "torch.save([scheduler.state_dict(), optimizer.state_dict()], 'state.pt')\n"


def test_a_scheduler_that_is_saved_is_the_same_as_its_originals(against):
    old, new = (text.replace("for (x,)", SCHEDULED) for text in (TRAIN, MIGRATED))
    code, said = against(old + SAVED, f"{new}if rank == 0:\n    {SAVED}")
    assert code == 0, said
    assert "1 file" in said


PACKAGE = TRAIN.replace("torch.nn.Linear(4, 1)", "net()").replace(
    "import torch", "import torch\nfrom .models import net"
)


@pytest.mark.slow
def test_a_module_is_run_by_its_name(verify, tmp_path):
    folder = tmp_path / "project" / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "models.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(4, 1)\n")
    (folder / "train.py").write_text(PACKAGE + "import sys; print(__spec__.name, sys.argv[1:])\n")
    code, said = verify("", "-m", "package.train", name="--rate", args=("3",))
    assert code == 0, said
    assert "train.py on 2 ranks: same" in said
    assert "5 optimizer steps" in said
    (folder / "__main__.py").write_text("raise ValueError('in the package')\n")
    code, said = verify("", "-m", "package", name="-x")
    assert code == 2
    assert "ValueError: in the package" in said


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["--nproc", "1", "x.py"], "on 1 rank"),
        (["--nproc", "x", "x.py"], "'x' is no number of ranks"),
        (["--nproc", "2,", "x.py"], "'' is no number of ranks"),
        (["--steps", "0", "x.py"], "--steps 0 is not a number of optimizer steps"),
        (["--timeout", "soon", "x.py"], "--timeout soon is not a number of seconds"),
        (["--wrong", "x.py"], "unknown option --wrong"),
        (["--report"], "--report needs a value"),
        ([], "no script to verify"),
        (["missing.py"], "there is no such script"),
        (["folder"], "is a folder"),
        (["a.ipynb"], "is a notebook"),
        (["bytes.py"], "is not text"),
        (["-m"], "-m needs the name of a module"),
        (["-m", "folder.x"], "there is no such module"),
        (["-m", "package"], "a package without __main__.py"),
        (["broken.py"], "broken.py:2"),
        (["--report", "x.py/out", "x.py"], "cannot be written to"),
        (["--against", "missing.py", "x.py"], "there is no such script"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(tmp_path, monkeypatch, capsys, argv, wanted):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text(TRAIN)
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.py").write_text("x = 1\nif x\n")
    (tmp_path / "a.ipynb").write_text("{}")
    (tmp_path / "bytes.py").write_bytes(bytes(9))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise AssertionError('imported')")
    before = sorted(os.listdir())

    def never(*_):
        raise AssertionError("a run was started")

    assert command(argv, never) == 2
    assert wanted in capsys.readouterr().err
    assert sorted(os.listdir()) == before


# --- real processes ---------------------------------------------------------------------------------------------------


def running(folder):
    """Processes that a run of verify in this folder has started; other tests run beside this one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as stream:
                    environ = stream.read()
            except OSError:
                continue
            if f"{MARK}=".encode() in environ and f"VERIFY_TEST={folder}\0".encode() in environ:
                found.append(int(name))
    return found


def cold(folder, *argv, **more):
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "VERIFY_TEST": str(folder), "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "ddp_patch", "verify", *argv],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell in the background ignores Ctrl-C
        **more,
    )


@pytest.mark.slow
def test_a_script_is_started_as_its_users_would(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    process = cold(tmp_path, "train.py")
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert "train.py on 2 ranks: same" in said
    assert not os.listdir(tmp_path / "tmp")
    assert not running(tmp_path)


@pytest.mark.slow
def test_no_module_of_pythons_is_looked_for_in_the_working_folder(tmp_path, monkeypatch, capsys):
    """Which a script in another folder never meets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "argparse.py").write_text("raise SystemExit('not of the script')\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(TRAIN + "import sys; print(sys.path[0][-4:])\n")
    code = command(["src/train.py"])
    assert code == 0, capsys.readouterr()


@pytest.mark.slow
def test_a_script_that_never_ends_is_ended_with_what_it_started(tmp_path):
    (tmp_path / "train.py").write_text(
        "import subprocess, time\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\ntime.sleep(1000)\n"
    )
    process = cold(tmp_path, "--timeout", "5", "train.py")
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "was not done after" in said
    assert not running(tmp_path)
    assert not os.listdir(tmp_path / "tmp")


@pytest.mark.slow
def test_ctrl_c_ends_everything(tmp_path):
    (tmp_path / "train.py").write_text("import time\nopen('/proc/self/fd/1', 'w')\ntime.sleep(1000)\n")
    process = cold(tmp_path, "train.py", start_new_session=True)
    end = time.monotonic() + PATIENCE
    while not running(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(2)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "stopped; what it had started is ended" in said
    assert "Traceback" not in said
    assert not running(tmp_path)
    assert not os.listdir(tmp_path / "tmp")
