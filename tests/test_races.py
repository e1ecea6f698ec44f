"""However the ranks are delayed, they see one folder, in one order."""

import contextlib
import os
import random
import shutil
import time
from pathlib import Path

import pytest
import torch
from conftest import THOROUGH

import ddp_patch

SEQUENCES = 1000 if THOROUGH else 150


def sequences(count):
    """Save, look, load, remove, copy, ... in an order drawn alike, with waits drawn apart."""
    draw, waits = random.Random(7), random.Random(os.getpid())
    seen = []

    def note(action):
        if waits.random() < 0.2 and ddp_patch.world_size() > 1:
            time.sleep(waits.uniform(0, 0.004))
        try:
            seen.append(action())
        except OSError as error:
            seen.append(type(error).__name__)

    for i in range(count):
        a, b = (f"{draw.randrange(4)}.pt" for _ in range(2))
        folder = f"d{draw.randrange(2)}"
        steps = [
            lambda a=a, i=i: torch.save(i, a),
            lambda a=a: os.path.exists(a),
            lambda a=a: torch.load(a),
            lambda a=a: os.remove(a),
            lambda a=a, b=b: shutil.copyfile(a, b) if a != b else None,
            lambda a=a, b=b: os.replace(a, b),
            lambda: sorted(os.listdir(".")),
            lambda folder=folder: os.makedirs(folder),
            lambda folder=folder: shutil.rmtree(folder),
            lambda a=a, folder=folder: shutil.copy(a, folder) and None,
            lambda i=i: append("log.txt", f"{i}\n"),
            lambda: Path("log.txt").read_text()[-20:],
            lambda: os.path.getsize("log.txt"),
        ]
        note(steps[0])
        for step in draw.sample(steps[1:], 3):
            note(step)
    with contextlib.suppress(OSError):
        seen.append(sorted(os.listdir(".")))
    return seen


def append(path, text):
    with open(path, "a") as stream:
        return stream.write(text)


@pytest.mark.slow
@pytest.mark.thorough
def test_delayed_ranks_see_what_one_process_sees(ranks):
    (wanted,) = ranks.call(sequences, 1, SEQUENCES).ok().results
    outcome = ranks.call(sequences, 4, SEQUENCES).ok()
    for given in outcome.results:
        assert given == wanted
    assert sum(isinstance(value, str) and value.endswith("Error") for value in wanted) > SEQUENCES / 10


def paths_that_part():
    if ddp_patch.rank() == 1:
        os.makedirs("other")
    else:
        open("file.txt", "w").close()


def test_ranks_that_part_are_told_which_went_where(ranks):
    outcome = ranks.call(paths_that_part, 2)
    assert not outcome.late
    said = "".join(outcome.stderr)
    assert "rank 0 came to open(" in said
    assert "rank 1 to os.makedirs(" in said
    assert "test_races.py:" in said


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2])
def test_a_rank_that_does_not_write_ends_the_wait_of_the_others(ranks, nproc):
    outcome = ranks.call(one_rank_raises, nproc)
    assert not outcome.late
    assert "ZeroDivisionError" in "".join(outcome.stderr)


def one_rank_raises():
    if ddp_patch.rank() == 1:
        raise ZeroDivisionError
    torch.save(1, "a.pt")
