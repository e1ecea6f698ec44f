"""The flight recorder: where ranks came, point by point, and who waits for whom."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from ddp_patch.job.recorder import KEPT, Recorder, TracePoint, read
from ddp_patch.job.side_by_side import first_difference, table
from ddp_patch.trace.command import command

TRAIN = """
import ddp_patch
ddp_patch.enable(trace="traces")
import os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.DataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
rows = torch.randn(24, 4)
for epoch in range(3):
    for x, y in DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), 8):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "last.pt")
    {then}
print("done")
"""


def ran(folder, then, nproc=3):
    """Run the script, and give what the command says of it, with its exit code."""
    (folder / "train.py").write_text(TRAIN.format(then=then))
    env = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    env |= {"OMP_NUM_THREADS": "1", "DDP_PATCH_NPROC": str(nproc)}
    start = [sys.executable, "train.py"]
    run = subprocess.run(start, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    told = [sys.executable, "-m", "ddp_patch", "trace", "traces"]
    return run, subprocess.run(told, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.long
def test_a_run_in_which_ranks_stay_together_has_no_difference(tmp_path):
    run, told = ran(tmp_path, "time.sleep(2 if epoch == 1 and ddp_patch.rank() == 2 else 0)")
    assert run.returncode == 0, run.stderr
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("3 ranks on 1 host(s), ")
    assert "All came to the same points." in told.stdout
    assert "ranks 0, 1 and 2" in told.stdout  # one column
    assert "torch.save('last.pt')  train.py:" in told.stdout
    line = 1 + (tmp_path / "train.py").read_text().splitlines().index('    torch.save(model.state_dict(), "last.pt")')
    assert f"train.py:{line}" in told.stdout
    assert "where ranks 0 and 1 waited for rank 2" in told.stdout
    longest = float(told.stdout.split("Longest: ")[1].split(" ms")[0])
    assert longest > 1900  # starting takes some hundreds, on a busy machine


@pytest.mark.slow
def test_the_first_difference_is_pointed_at_and_told_when_ranks_part(tmp_path):
    run, told = ran(tmp_path, "if epoch == 1 and ddp_patch.rank() == 1: torch.save(epoch, 'mine.pt')")
    assert run.returncode != 0
    assert told.returncode == 1
    shown = [line for line in told.stdout.splitlines() if line.lstrip().startswith("> ")]
    assert len(shown) == 1
    assert "torch.save('mine.pt')" in shown[0]
    assert "train.py:20" in shown[0]
    heads = next(line for line in told.stdout.splitlines() if "point  " in line)
    assert "ranks 0 and 2" in heads
    assert "rank 1" in heads
    said = [line for line in run.stderr.splitlines() if "  > " in line]  # of the error itself
    assert len(said) == 1
    assert "torch.save" in said[0]


@pytest.mark.slow
def test_a_rank_that_is_killed_leaves_its_points(tmp_path):
    kill = "if epoch == 1 and ddp_patch.rank() == 0: os.kill(os.getpid(), signal.SIGKILL)"
    run, told = ran(tmp_path, kill)
    assert run.returncode != 0
    assert told.returncode == 1, told.stdout
    assert "rank 0 did not come to it" in told.stdout


def test_a_recorder_keeps_the_last_points_and_is_bounded(tmp_path):
    recorder = Recorder(str(tmp_path), 0, world_size=1, host="a", run="r", began=0.0)
    for count in range(1, KEPT + 101):
        recorder.enter(count, "gather", count, ())
        recorder.leave()
    recorder.enter(KEPT + 101, "open", 0, ("/a/very/long/way/to/file.txt", 3))
    trace = read(tmp_path / "rank0.trace")
    assert sorted(trace.points) == list(range(102, KEPT + 102))
    assert (trace.rank, trace.host, trace.run) == (0, "a", "r")
    last = trace.points[KEPT + 101]
    assert (last.what, last.left, last.line.split(":")[0]) == ("open('file.txt', '3')", 0, "test_trace.py")
    before = trace.points[KEPT + 100]
    assert (before.what, before.size) == ("gather", KEPT + 100)
    assert before.entered <= before.left
    assert (tmp_path / "rank0.trace").stat().st_size < 1 << 20


def test_points_within_points_end_in_their_order(tmp_path):
    recorder = Recorder(str(tmp_path), 0, world_size=1, host="a", run="r", began=0.0)
    recorder.enter(1, "outer", 0, ())
    recorder.enter(2, "inner", 0, ())
    recorder.leave()
    inner = read(tmp_path / "rank0.trace").points
    assert inner[1].left == 0
    assert inner[2].left > 0
    recorder.leave()
    assert read(tmp_path / "rank0.trace").points[1].left > inner[2].left


def test_a_point_costs_less_than_the_hundredth_part_of_a_step(tmp_path):
    """1 % of 10 ms are 100 µs; a step has some ten points. Compared with calls of Python, as machines differ."""
    recorder = Recorder(str(tmp_path), 0, world_size=1, host="a", run="r", began=0.0)

    def timed(call, times=2000):
        best = float("inf")
        for _ in range(5):
            begin = time.perf_counter()
            for count in range(times):
                call(count)
            best = min(best, (time.perf_counter() - begin) / times)
        return best

    plain = timed(lambda count: Counter("abcdefgh"))  # one microsecond on most machines
    recorded = timed(lambda count: (recorder.enter(count + 1, "gather", 8, ()), recorder.leave()))
    assert recorded < 10 * plain


SAME = {1: TracePoint("load"), 2: TracePoint("backward", size=8), 3: TracePoint("save('a')")}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (SAME, None),
        ({**SAME, 3: TracePoint("save('b')")}, None),  # names may differ by the clock: the turn itself compares them
        ({**SAME, 2: TracePoint("backward", size=9)}, 2),
        ({**SAME, 2: TracePoint("gather", size=8)}, 2),
        ({1: SAME[1]}, 2),
        ({**SAME, 3: TracePoint("save('a')", "train.py:9")}, 3),
        ({**SAME, 4: TracePoint("end")}, 4),
        ({2: SAME[2], 3: SAME[3]}, None),  # the oldest is forgotten
    ],
)
def test_the_first_difference(other, expected):
    assert first_difference({0: SAME, 1: SAME, 2: other}) == expected
    assert first_difference({0: other, 1: SAME}) == expected


def test_the_table_marks_the_point_and_joins_ranks():
    other = {**SAME, 3: TracePoint("gather", "train.py:9")}
    assert table({0: SAME, 1: other, 2: SAME, 3: other}, 3) == (
        "  point   ranks 0 and 2   ranks 1 and 3\n"
        "      1   load            load\n"
        "      2   backward        backward\n"
        "    > 3   save('a')       gather  train.py:9\n"
    )


def test_what_cannot_be_read_is_said(tmp_path, capsys):
    assert command([str(tmp_path)]) == 2
    assert "holds no rank*.trace. Run the script with DDP_PATCH_TRACE=" in capsys.readouterr().err
    (tmp_path / "rank0.trace").write_bytes(b"garbage")
    assert command([str(tmp_path)]) == 2
    assert "is not what a rank recorded" in capsys.readouterr().err
    for rank in range(2):
        Recorder(str(tmp_path), rank, world_size=2, host="a", run=f"run {rank}", began=float(rank))
    assert command([str(tmp_path)]) == 2
    assert "of another run than that of rank 1" in capsys.readouterr().err
    assert command([]) == 2
    assert command(["--help"]) == 0


def test_a_folder_that_cannot_be_written_is_an_error_with_its_option(tmp_path, ranks):
    (tmp_path / "file").write_text("")
    script = tmp_path / "script.py"
    script.write_text(
        f"import ddp_patch\nddp_patch.disable()\nddp_patch.enable(trace={str(tmp_path / 'file' / 'traces')!r})\n"
    )
    outcome = ranks.script(script, 2)
    assert "cannot be used" in "".join(outcome.stderr), outcome.stderr[0]
    assert "Name a folder that can be written to" in "".join(outcome.stderr)


@pytest.mark.long
def test_a_stopped_job_can_be_looked_at_from_outside(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.format(then="print('epoch', flush=True); time.sleep(1000)"))
    env = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    env |= {"OMP_NUM_THREADS": "1", "DDP_PATCH_NPROC": "2"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "train.py"], cwd=tmp_path, env=env, stdout=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "epoch\n"
            told = [sys.executable, "-m", "ddp_patch", "trace", "traces"]
            done = subprocess.run(told, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert done.returncode == 0, done.stdout
    assert "All came to the same points." in done.stdout
