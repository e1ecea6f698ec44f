"""Disks that are full, read only, or not shared: every rank gets what one process would get, or is told."""

import os
import pickle
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import PATIENCE

HERE = Path(__file__).parent / "disks"
LAUNCH = ["-m", "torch.distributed.run", "--nproc-per-node"]
# A disk of 512 KiB, and one that is read only, which only these processes see.
FULL = """
mount -t tmpfs -o size=512k tmpfs "$1" && cd "$1" && mkdir read_only && mount -t tmpfs tmpfs read_only &&
touch read_only/there.txt && mount -o remount,ro read_only && shift && exec "$@"
"""
SMALL = 'mount -t tmpfs -o size=4m tmpfs /dev/shm && exec "$@"'
APART = 'mount -t tmpfs tmpfs "$1" && cd "$1" && shift && exec "$@"'


def may_mount():
    try:
        return (
            subprocess.run(["unshare", "-Urm", "true"], capture_output=True, timeout=PATIENCE, check=False).returncode
            == 0
        )
    except FileNotFoundError:
        return False


needs_mounts = pytest.mark.skipif(not may_mount(), reason="needs mount namespaces (unshare -Urm)")


def environ(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


@pytest.mark.slow
@pytest.mark.some("3")
@needs_mounts
@pytest.mark.parametrize("nproc", [2, 3])
def test_a_full_disk_is_one_processs(tmp_path, nproc):
    script = str(HERE / "full.py")
    inside = ["unshare", "-Urm", "sh", "-c", FULL, "sh", str(tmp_path), sys.executable]
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": False}
    alone = subprocess.run([*inside, script], env=environ(), **options)
    assert alone.returncode == 0, alone.stderr
    assert "torch.save RuntimeError" in alone.stdout
    assert "text OSError 28" in alone.stdout
    assert "read only text OSError 30" in alone.stdout
    command = [*inside, *LAUNCH, str(nproc), "-m", "ddp_patch", script]
    ranks = subprocess.run(command, env=environ(DDP_PATCH="1"), **options)
    assert ranks.stdout == alone.stdout, ranks.stderr
    assert "RuntimeError True" in ranks.stderr  # the old checkpoint is whole


@pytest.mark.long
@needs_mounts
def test_batches_may_be_larger_than_shared_memory():
    """Docker gives a container 64 MB of it."""
    script = str(HERE / "large.py")
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": False}
    alone = subprocess.run([sys.executable, script], env=environ(), **options)
    inside = ["unshare", "-Urm", "sh", "-c", SMALL, "sh", sys.executable]
    ranks = subprocess.run([*inside, *LAUNCH, "2", "-m", "ddp_patch", script], env=environ(DDP_PATCH="1"), **options)
    assert ranks.returncode == 0, ranks.stderr
    assert ranks.stdout == alone.stdout


@pytest.mark.long
@needs_mounts
def test_a_batch_that_fits_nowhere_is_an_error_on_every_rank():
    """Shared memory and the temporary folder are small: the other ranks would wait for the batch."""
    script = str(HERE / "large.py")
    small = "mount -t tmpfs -o size=4m tmpfs /dev/shm && " + 'export TMPDIR=/dev/shm && exec "$@"'
    inside = ["unshare", "-Urm", "sh", "-c", small, "sh", sys.executable, *LAUNCH, "2", "-m", "ddp_patch", script]
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": False}
    ranks = subprocess.run(inside, env=environ(DDP_PATCH="1"), **options)
    assert ranks.returncode == 1
    assert "LockstepError: A batch of " in ranks.stderr
    assert "neither /dev/shm nor /dev/shm has room for it" in ranks.stderr


@pytest.mark.slow
@needs_mounts
def test_ranks_that_share_no_disk_read_what_rank_0_wrote(tmp_path):
    """As containers do that stand beside each other; `make launchers` has hosts."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
    script, processes = str(HERE / "apart.py"), []
    for rank in range(2):
        hosts = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        inside = ["unshare", "-Urm", "sh", "-c", APART, "sh", str(tmp_path), sys.executable, script]
        env = environ(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **hosts)
        processes.append(subprocess.Popen(inside, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=PATIENCE) for process in processes]
    assert processes[1].returncode == 1
    assert said[0][0] == "{'step': 1} ['log.txt', 'shared.pt'] [1, 2]\n(['1', '2'], ['1', '2', '3'], 2.0, 'held')\n", (
        said
    )
    assert "rank 0 made it, but this rank's host does not see it" in said[1][1]


def bad_checkpoints():
    """What loading something else raises."""
    torch.save(torch.nn.Linear(2, 2).state_dict(), "good.pt")
    whole = Path("good.pt").read_bytes()
    Path("garbage.pt").write_bytes(b"no checkpoint at all")
    Path("cut.pt").write_bytes(whole[: len(whole) // 2])
    Path("empty.pt").write_bytes(b"")
    Path("foreign.pt").write_bytes(pickle.dumps({"weight": Path("x")}))
    said = []
    for name in ("garbage.pt", "cut.pt", "empty.pt", "foreign.pt", "missing.pt", "."):
        try:
            torch.load(name)
        except Exception as error:
            said.append([name, type(error).__name__, str(error)[:40]])
    for module, strict in (
        (torch.nn.Linear(2, 3), True),
        (torch.nn.Conv2d(1, 1, 1), True),
        (torch.nn.Linear(3, 2), False),
    ):
        try:
            torch.nn.DataParallel(module).load_state_dict(torch.load("good.pt"), strict=strict)
        except RuntimeError as error:
            said.append(str(error).splitlines()[1:])
    return said


def test_bad_checkpoints_raise_what_they_raise_on_one_process(ranks):
    wanted = ranks.call(bad_checkpoints, 1).ok().results[0]
    outcome = ranks.call(bad_checkpoints, 2).ok()
    for given in outcome.results:
        assert given[:6] == wanted[:6]
        # Alone, DataParallel wants keys that begin with "module."; here it takes either, and the real mismatch is left.
        assert "size mismatch for module.weight" in given[6][0]
        assert given[7]
        assert "size mismatch for module.weight" in given[8][0]


FROZEN = """
import ddp_patch
ddp_patch.enable(nproc=2)
import os, sys
import torch

torch.save(torch.ones(9), "here.pt")
print("ready", flush=True)
sys.stdin.readline()
torch.save(torch.ones(9), sys.argv[1] + "/there.pt")
print("saved", flush=True)
"""


def may_freeze():
    return os.geteuid() == 0 and os.path.exists("/dev/loop-control") and shutil.which("fsfreeze") is not None


@pytest.mark.long
@pytest.mark.skipif(not may_freeze(), reason="needs root, a loop device and fsfreeze")
def test_a_disk_that_does_not_answer_is_named_and_waited_for(tmp_path):
    image, disk = tmp_path / "image", tmp_path / "disk"
    image.write_bytes(bytes(2**24))
    disk.mkdir()
    subprocess.run(["mkfs.ext4", "-q", image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    script = tmp_path / "train.py"
    script.write_text(FROZEN)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, str(script), str(disk)], cwd=tmp_path, env=environ(), **pipes)
    try:
        assert process.stdout.readline() == "ready\n"
        subprocess.run(["fsfreeze", "-f", disk], check=True)
        process.stdin.write("\n")
        process.stdin.flush()
        said = ""
        while "has waited" not in said:
            said = process.stderr.readline()
            assert said
        subprocess.run(["fsfreeze", "-u", disk], check=True)
        assert process.stdout.readline() == "saved\n"
        assert process.wait(60) == 0
    finally:
        subprocess.run(["fsfreeze", "-u", disk], check=False, capture_output=True)
        process.kill()
        process.communicate()
        subprocess.run(["umount", disk], check=True)
    line = 1 + FROZEN.splitlines().index('torch.save(torch.ones(9), sys.argv[1] + "/there.pt")')
    assert said.startswith("ddp_patch: rank 0 of 2 has waited 1")
    assert f"for a disk or a network file system in train.py:{line}." in said
    assert torch.load(tmp_path / "here.pt").sum() == 9
