"""One rank of three fails: nobody hangs, the right line is said once, nothing is left behind, no checkpoint is lost."""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import THOROUGH
from failures import KINDS

TIMES = int(os.environ.get("FAILURES", "0"))  # of each kind; make failures tries 10
WITHIN = 30.0  # seconds
SOME = KINDS if THOROUGH or TIMES else KINDS[::3]


def run(folder, text):
    """Run a script; give its exit code, what it said, and how long after the failure it ended."""
    (folder / "train.py").write_text(text)
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    env = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    env |= {"OMP_NUM_THREADS": "1", "FAILURE_OF": mark}
    with (folder / "out").open("w") as out, (folder / "error").open("w") as error:
        process = subprocess.Popen([sys.executable, "train.py"], cwd=folder, env=env, stdout=out, stderr=error)
        try:
            code = process.wait(240)
        except subprocess.TimeoutExpired:
            process.kill()
            code = None
    ended = time.time()
    left = _until_none(lambda: processes_of(mark))
    failed = folder / "failed"
    late = ended - float(failed.read_text()) if failed.exists() else 0.0
    return code, (folder / "out").read_text(), (folder / "error").read_text(), late, left


def _until_none(look):
    end = time.monotonic() + WITHIN
    while (found := look()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def processes_of(mark):
    """Find the processes of a job, by what they were started with."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"FAILURE_OF={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def lines_said(error):
    """Give the numbers of the script's lines that are named."""
    return {int(number) for number in re.findall(r'train\.py(?:", line |:)(\d+)', error)}


@pytest.mark.parametrize("time_of", range(max(TIMES, 1)))
@pytest.mark.parametrize("kind", SOME, ids=lambda kind: kind.name.replace(" ", "-"))
def test_a_rank_that_fails_ends_the_job_at_once_and_leaves_nothing(kind, time_of, tmp_path):
    draw = random.Random(f"{kind.name} {time_of}")
    rank = draw.randrange(3) if kind.rank is None else kind.rank
    step = kind.at * draw.randrange(4 // kind.at + 1, 30 // kind.at)
    text = kind.script(rank, step)
    code, out, error, late, left = run(tmp_path, text)
    assert code is not None, f"rank {rank}, step {step}: a hang"
    assert not left, "processes are left"
    assert late < WITHIN
    assert (code != 0) if kind.code is None else (code == kind.code), (code, error)
    assert ("finished" in out) == (code == 0)
    if (tmp_path / "last.pt").exists():  # whole, whenever it was
        last = torch.load(tmp_path / "last.pt")
        assert (last["data"] == last["step"]).all()
        assert last["step"] % 3 == 0
    if (tmp_path / "failed").exists() and step > 4:
        done = (step - 1) // 3 * 3  # saves that had been finished
        assert torch.load(tmp_path / "last.pt")["step"] >= done
    assert not list(tmp_path.glob("*.tmp*"))
    assert not kind.says or any(words in error for words in kind.says), error
    if kind.names_rank:
        assert re.search(rf"\[?rank {rank}\b", error), error
    assert error.count("Traceback (most recent call last)") <= (2 if "ValueError" in error else 3), error
    if kind.says:
        here = text.splitlines().index(next(line for line in text.splitlines() if line.endswith("# here"))) + 1
        said = lines_said(error)
        assert here in said if kind.names_line else said or "was ended by" in error, (here, error)
