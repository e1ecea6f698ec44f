"""A job that is killed at any moment leaves its last complete checkpoint, no litter, and no process."""

import os
import random
import tempfile
from pathlib import Path

import pytest
import torch

KILLS = int(os.environ.get("KILLS", "3"))  # make kills tries 200
CHUNK = min(KILLS, 10)


def save_for_ever(steps, scratch):
    """Save with the usual rotation; every checkpoint holds its step many times over."""
    tempfile.tempdir = scratch
    for step in range(steps):
        state = {"step": step, "data": torch.full((50_000,), step)}
        torch.save(state, "last.pt")
        torch.save(state, f"step{step % 3}.pt")
        if step % 5 == 4:
            os.remove(f"step{(step + 1) % 3}.pt")
        with open("log.txt", "a") as log:
            log.write(f"{step}\n")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, KILLS, CHUNK))
def test_a_killed_job_leaves_whole_checkpoints_and_nothing_else(ranks, first, tmp_path):
    draw = random.Random(first)
    newest = -1
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    tmp_path = tmp_path / "run"
    tmp_path.mkdir()
    for kill in range(first, first + CHUNK):
        (tmp_path / "log.txt").unlink(missing_ok=True)
        who = [0, 1, "launcher"][kill % 3]
        when = {"file": str(tmp_path / "log.txt"), "who": who, "after": draw.uniform(0, 0.3)}
        outcome = ranks.call(save_for_ever, 2, 10**6, str(scratch), cwd=str(tmp_path), kill=when)
        assert not outcome.late, f"kill {kill} of {who} left processes behind"
        found = {path.name: torch.load(path) for path in tmp_path.glob("*.pt")}  # every one loads
        assert "last.pt" in found
        for name, state in found.items():
            assert (state["data"] == state["step"]).all(), name
        newest = max(newest, found["last.pt"]["step"])
        logged = len((tmp_path / "log.txt").read_text().splitlines())
        assert found["last.pt"]["step"] >= logged - 1  # none was lost that had been finished
    assert newest > 0
    ranks.call(save_for_ever, 2, 5, str(scratch), cwd=str(tmp_path)).ok()
    left = sorted(path.name for path in Path(tmp_path).iterdir())
    assert left == ["last.pt", "log.txt", "step0.pt", "step1.pt"]
    assert not list(scratch.iterdir())
