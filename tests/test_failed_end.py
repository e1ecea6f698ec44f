"""A program that fails ends as one process does: what it has begun to write is whole, and its exit functions run."""

import gzip
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from conftest import PATIENCE

pytestmark = pytest.mark.slow

ENDS = """
import atexit, logging, logging.handlers, tempfile
temporary = tempfile.TemporaryDirectory(dir=".")
held = logging.handlers.MemoryHandler(1000, target=logging.FileHandler("log.txt"), flushLevel=logging.CRITICAL)
log = logging.getLogger("script")
log.addHandler(held)
atexit.register(lambda: (log.error("%s", model.weight.shape), print("an early exit function")))
LINE
import gzip, multiprocessing, sys, time, zipfile
import torch

class Deleted:
    def __del__(self):
        print("deleted")

def train():
    local = zipfile.ZipFile("local.zip", "w")
    local.writestr("name", "local")
    model(torch.ones(4, 2)).sum().backward()
    FAILS

deleted = Deleted()
model = torch.nn.Linear(2, 1)
archive = zipfile.ZipFile("whole.zip", "w")
archive.writestr("name", "whole")
lines = gzip.open("lines.gz", "wt")
lines.write("a line")
open("plain.txt", "a").write("once")
atexit.register(lambda: print("a late exit function"))
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
child.start()
print(child.pid, file=sys.stderr)
train()
"""
FAILS = {"raises": "raise RuntimeError('loss is nan')", "interrupted": "raise KeyboardInterrupt"}


def run(folder, script, nproc):
    """Run a real program, alone or under torchrun."""
    folder.mkdir()
    path = folder.with_suffix(".py")
    path.write_text(script.replace("LINE", "import ddp_patch; ddp_patch.enable()" if nproc > 1 else ""))
    command = [sys.executable, *(["-m", "torch.distributed.run", f"--nproc-per-node={nproc}"] if nproc > 1 else [])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}  # so that no rank is started again
    return subprocess.run(
        [*command, str(path)], cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def read(path):
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return archive.read("name")
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@pytest.mark.some("raises")
@pytest.mark.parametrize("fails", FAILS)
def test_a_program_that_fails_leaves_what_one_process_leaves(tmp_path, fails):
    script = ENDS.replace("FAILS", FAILS[fails])
    found = []
    for name, nproc in (("alone", 1), ("ranks", 2)):
        done = run(tmp_path / name, script, nproc)
        assert done.returncode != 0
        for line in done.stderr.splitlines():
            if line.isdigit():
                assert not Path(f"/proc/{line}").exists(), "a daemon is left"
        left = {path.name: read(path) for path in (tmp_path / name).iterdir() if path.name != "log.txt"}
        logged = set((tmp_path / name / "log.txt").read_text().splitlines())  # above the line, it is every rank's own
        found.append((done.stdout, left, logged))
    assert found[1] == found[0]
    assert found[0][1]["whole.zip"] == b"whole"


WRITES = """
LINE
import os, signal, threading, time
import torch

class Slow:
    def __getstate__(self):  # called on rank 0 alone, which saves
        WAITS
        return {"a": torch.ones(3)}

def save():
    torch.save(Slow(), "last.pt")

START
raise RuntimeError("loss is nan")
"""
STARTS = {"thread": "threading.Thread(target=save).start()", "exit function": "import atexit; atexit.register(save)"}


@pytest.mark.some("thread")
@pytest.mark.parametrize("start", STARTS)
def test_rank_0_writes_to_its_end_where_all_fail(tmp_path, start):
    done = run(tmp_path / "ranks", WRITES.replace("START", STARTS[start]).replace("WAITS", "time.sleep(4)"), 2)
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: loss is nan") == 1
    with zipfile.ZipFile(tmp_path / "ranks" / "last.pt") as whole:
        assert whole.testzip() is None


@pytest.mark.some("killed")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_nobody_waits_for_a_rank_0_that_is_no_more(tmp_path, number):
    """Started one by one, so that no launcher ends the others, and rank 0 holds the store."""
    ends = f"time.sleep(2); os.kill(os.getpid(), {number:d})"  # once its error is shown
    script = WRITES.replace("START", STARTS["thread"]).replace("WAITS", ends)
    path = tmp_path / "train.py"
    path.write_text(script.replace("LINE", "import ddp_patch; ddp_patch.enable()"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(path)],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        shown = processes[0].stderr.readline()  # it fails
        began = time.monotonic()
        assert [process.wait(timeout=PATIENCE) for process in processes[1:]] == [1, 1], shown
        assert time.monotonic() - began < 30
    finally:
        for process in processes:
            process.kill()
            process.communicate()
