"""What people do with real libraries prints, gives and leaves on N ranks what it does on one process."""

import functools
import importlib
import json
import pickle
import re

import pytest
import torch
from conftest import TESTS
from libraries.together import run_all
from parity.test_scripts import compare_text
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

MODULES = sorted(path.stem for path in (TESTS / "libraries").glob("*_habits.py"))
HABITS = {
    module: [habit.__name__ for habit in importlib.import_module(f"libraries.{module}").HABITS] for module in MODULES
}
TIMES = re.compile(r"[━╸╺]+|\d\d:\d\d:\d\d,\d+|\d+:\d\d:\d\d|[\d.]+(it/s|s/it)")
RUN = re.compile(r"/\S*/run\d+/")
CLOCK = re.compile(r"(?<=events\.out\.tfevents)\.[^/]*|\d{8}_\d{6}")
pytestmark = pytest.mark.timeout(900)  # the first test of a library waits for all of its habits


@pytest.fixture(scope="module")
def job(ranks, request):
    """Give what the chosen habits of a library did: they are run once per number of ranks."""
    chosen = {item.callspec.params["habit"] for item in request.session.items if "habit" in item.fixturenames}

    @functools.cache
    def run(module, nproc):
        left = [habit for habit in HABITS[module] if habit in chosen]
        done = {}
        while left:
            outcome = ranks.call(run_all, nproc, f"libraries.{module}", left, timeout=400)
            notes = [read(outcome.cwd / f"given.{rank}") for rank in range(nproc)]
            ended = [name for name in left if all(name in note for note in notes)]
            done |= {name: (outcome, [note[name] for note in notes]) for name in ended}
            left = left[len(ended) :]
            if left:  # the job ends at the first error
                done[left.pop(0)] = outcome, None
        return done

    return run


def read(path):
    return dict(map(json.loads, path.read_text().splitlines())) if path.exists() else {}


def tree(folder):
    """Every file and folder by its name, without the time in it."""
    return {CLOCK.sub("", str(path.relative_to(folder))): path for path in sorted(folder.rglob("*"))}


def part(outcome, habit):
    """What a habit printed, without the times that bars show."""
    said = outcome.stdout[0].partition(f"=== {habit}\n")[2].partition("=== ")[0]
    return "\n".join(TIMES.sub("", line).rstrip() for line in said.splitlines())


def read_file(path):
    """Give what a file holds, as far as one process would write it a second time."""
    if path.is_dir():
        return "folder"
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        return torch.load(path, weights_only=False)
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.name.startswith("events.out"):
        events = EventAccumulator(str(path)).Reload()
        return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    if path.name == ".metadata":
        return repr(pickle.loads(path.read_bytes()).state_dict_metadata)  # beside a random name
    if path.suffix == ".distcp":
        return path.stat().st_size  # torch_habits reads them back
    if path.suffix in (".csv", ".txt", ".log", ".json", ".jsonl", ".yaml"):
        return path.read_text().splitlines()
    return path.read_bytes()


def named(text):
    """A path, from the folder in which the habits ran."""
    return RUN.sub("", text) if isinstance(text, str) else text


def compare(ours, theirs, precision, where=""):
    """Compare what was given, printed or saved; numbers to a precision."""
    if isinstance(theirs, torch.nn.Module):
        ours, theirs = ours.state_dict(), theirs.state_dict()
    assert type(ours) is type(theirs), where
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=precision, atol=precision, equal_nan=True)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=precision, abs=precision, nan_ok=True), where
    elif isinstance(theirs, dict):
        assert [named(key) for key in ours] == [named(key) for key in theirs], where
        for key, pair in zip(theirs, zip(ours.values(), theirs.values(), strict=True), strict=True):
            compare(*pair, precision, f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            compare(*pair, precision, f"{where}[{index}]")
    elif isinstance(theirs, str):
        compare_text(named(ours), named(theirs), precision)
    else:
        assert ours == theirs, where


@pytest.mark.parametrize("nproc", [2, 3], ids=["on2", "on3"])
@pytest.mark.parametrize(("module", "habit"), [(module, habit) for module in MODULES for habit in HABITS[module]])
def test_a_library_sees_one_process(job, module, habit, nproc):
    alone, wanted = job(module, 1)[habit]
    assert wanted is not None, alone.said()
    outcome, given = job(module, nproc)[habit]
    assert given is not None, ("hung\n" if outcome.late else "") + outcome.said()
    assert outcome.stdout[1:] == [""] * (nproc - 1)
    here, there = tree(outcome.cwd / habit), tree(alone.cwd / habit)
    assert list(here) == list(there)
    if habit in getattr(importlib.import_module(f"libraries.{module}"), "DRAWN", ()):
        assert all(values == given[0] for values in given)
        return
    precision = 1e-5 if habit in getattr(importlib.import_module(f"libraries.{module}"), "FLOAT32", ()) else 1e-9
    for rank, values in enumerate(given):
        compare(values, wanted[0], precision, f"rank {rank}: ")
    compare(part(outcome, habit), part(alone, habit), precision)
    for name in there:
        compare(read_file(here[name]), read_file(there[name]), precision, name)
