"""One rank of three fails: nobody hangs, the right line is said once, nothing is left behind, no checkpoint is lost."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import THOROUGH
from failures import GONE, KINDS, MEETINGS

pytestmark = pytest.mark.slow

TIMES = int(os.environ.get("FAILURES", "0"))  # of each kind; make failures tries 10
WITHIN = 30.0  # seconds
SOME = KINDS if THOROUGH or TIMES else KINDS[::6]


def run(folder, text, command=(sys.executable, "train.py"), **own):
    """Run a script; give its exit code, what it said, how long after the failure it ended, and what is left."""
    (folder / "train.py").write_text(text)
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    env = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    env |= {"OMP_NUM_THREADS": "1", "FAILURE_OF": mark, **own}
    with (folder / "out").open("w") as out, (folder / "error").open("w") as error:
        process = subprocess.Popen([*command], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=error)
        try:
            code = process.wait(240)
        except subprocess.TimeoutExpired:
            for pid in processes_of(mark):
                os.kill(pid, signal.SIGKILL)
            process.wait()
            code = None
    ended = time.time()
    left = _until_none(lambda: processes_of(mark)) or _until_none(lambda: listening(folder))
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


def listening(folder):
    """Find the sockets of a job on which somebody listens still, by what its ranks noted of them."""
    noted = [path.read_text().split() for path in folder.glob("listens.*")]
    assert noted, "no rank came to its first step"
    assert any(noted), "no rank has found its own"
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    fields = [line.split() for table in tables for line in table]
    return {its[9] for its in fields if its[3] == "0A"} & set().union(*noted)


def lines_said(error):
    """Give the numbers of the script's lines that are named."""
    return {int(number) for number in re.findall(r'train\.py(?:", line |:)(\d+)', error)}


@pytest.mark.thorough
@pytest.mark.parametrize("time_of", range(max(TIMES, 1)))
@pytest.mark.parametrize("kind", SOME, ids=lambda kind: kind.name.replace(" ", "-"))
def test_a_rank_that_fails_ends_the_job_at_once_and_leaves_nothing(kind, time_of, tmp_path):
    fails(kind, time_of, tmp_path)


def fails(kind, time_of, tmp_path, at_once=None, **how):
    """Have a rank fail, and look at how the job ends.

    Args:
        kind: of the failure.
        time_of: draws the rank and the step.
        tmp_path: of the test.
        at_once: what a launcher prints that kills the others before they can say which rank went without a word.
        how: the job is started, for ``run``.
    """
    draw = random.Random(f"{kind.name} {time_of}")
    rank = draw.randrange(3) if kind.rank is None else kind.rank
    step = kind.at * draw.randrange(4 // kind.at + 1, 30 // kind.at)
    text = kind.script(rank, step)
    code, out, error, late, left = run(tmp_path, text, **how)
    assert code is not None, f"rank {rank}, step {step}: a hang"
    assert not left, f"processes or sockets are left: {left}"
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
    if at_once and kind.says is GONE and at_once in out:
        return
    assert not kind.says or any(words in error for words in kind.says), error
    if kind.names_rank:
        assert re.search(rf"\[?rank {rank}\b", error), error
    assert error.count("Traceback (most recent call last)") <= (2 if "ValueError" in error else 3), error
    if kind.says:
        lines = [line.strip() for line in text.splitlines()]
        right = {number for number, line in enumerate(lines, 1) if is_right(kind, line)}
        assert right & lines_said(error), (right, error)


def is_right(kind, line):
    """Tell the lines of which one is to be named."""
    return line.endswith("# here") or (not kind.leaves_word and line.startswith(MEETINGS[kind.site]))


BY_HAND = """
for rank in 0 1 2; do RANK=$rank {python} train.py & ranks="$ranks $!"; done
for rank in $ranks; do wait $rank || code=1; done
exit $code
"""


@pytest.mark.some("is-killed-in-forward")
@pytest.mark.parametrize(
    "kind",
    [
        replace(kind, rank=0)
        for kind in KINDS
        if kind.name in ("raises in forward", "is killed in forward", "is killed as it saves", "is stopped")
    ],
    ids=lambda kind: kind.name.replace(" ", "-"),
)
def test_rank_0_that_fails_with_the_store_of_the_job_ends_it_all_the_same(kind, tmp_path):
    """Where no launcher holds the store, and none ends the other ranks."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listening.getsockname()[1]), "WORLD_SIZE": "3"}
    fails(kind, 0, tmp_path, command=["bash", "-c", BY_HAND.format(python=sys.executable)], **where)
