"""Ranks that part raise within seconds, naming both sides' lines; ranks that are only slow are waited for."""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ddp_patch.job.divergence import Finding, compare
from ddp_patch.job.divergence_watch import DivergenceWatch
from ddp_patch.trail import SLOTS, Trail

WITHIN = 10  # seconds from the parting to the end of the last rank

TRAINS = """
import contextlib, os, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from ddp_patch.job.job import Job  # tells the rank, which scripts do not see

parts = Job.current.placement.rank == {rank}
here = parts  # the rank that parts runs lines that the others do not
saves = True
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
{loader}


def now():
    os.write(2, b"parted at %f\\n" % time.time())
    return True


def evaluate():
    with torch.no_grad():
        for (x,) in loader:  # begins
            model(x).mean().item()  # evaluates


for number, (x,) in enumerate(loader):  # draws
    if number == {step} and parts and now():
        {what}  # parts
    loss = model(x).pow(2).mean()  # calls
    optimizer.zero_grad()
    loss.backward()  # goes back
    optimizer.step()  # steps
    if saves:
        torch.save(model.state_dict(), "model.pt")  # saves
print("trained")
{after}
"""
LOADER = "loader = DataLoader(TensorDataset(torch.randn(4000, 4)), 8)"
READER = """
def collate(samples):
    return [torch.stack([x for x, in samples])]
loader = DataLoader(TensorDataset(torch.randn(4000, 4)), 8, collate_fn=collate)
"""
CAUGHT = """
        with contextlib.suppress(ValueError):
            raise ValueError("a bad row")
        continue"""
THREAD = """
        pass
    if number == 6:
        thread = threading.Thread(target=evaluate, name="evaluates")
        thread.start()"""

# way -> what the rank does, what follows the training, marks of the lines of either side, words of the message
WAYS = {
    "a clock ends the training": ("break", "", ["after"], ["calls", "goes back"], "rank-aware call"),
    "a clock starts the evaluation": (
        "break",
        "evaluate()",
        ["begins", "evaluates"],
        ["calls", "goes back"],
        "a clock",
    ),
    "a clock saves": ("torch.save(1, 'other.pt')", "", ["parts"], ["calls", "goes back"], "other.pt"),
    "a rank takes a value": ("x.mean().item()", "", ["parts"], ["calls", "goes back"], "a sum over the ranks"),
    "a rank makes a folder": ("os.makedirs('other')", "", ["parts"], ["calls", "goes back"], "os.makedirs"),
    "a rank draws another batch": (
        "next(iter(loader))",
        "",
        ["parts", "calls", "goes back"],
        ["calls", "goes back"],
        "an epoch of a loader",
    ),
    "a rank raises and catches": (CAUGHT, "", ["draws", "calls"], ["calls", "goes back"], "caught"),
    "a rank skips a save": ("saves = False", "", ["draws", "calls", "goes back"], ["saves"], "model.pt"),
    "a rank asks": ("input()", "", ["parts"], ["calls", "goes back"], "input"),
    "a rank exits": ("sys.exit(1)", "", ["parts"], ["calls", "goes back"], "sys.exit(1)"),
    "a rank exits as if all were well": ("sys.exit()", "", ["parts"], ["calls", "goes back"], "sys.exit()"),
    "a rank leaves at once": (
        "os._exit(1)",
        "",
        ["parts"],
        ["calls", "goes back"],
        "it called os._exit(1) in train.py:",
    ),
    "a rank is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "", [], ["calls", "goes back"], "is gone"),
    "a rank is stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "", [], ["calls", "goes back"], "is stopped"),
    "a thread computes beside": (THREAD, "", ["evaluates"], [], "thread 'evaluates'"),
}
GONE = ("a rank leaves at once", "a rank is killed", "a rank is stopped")


def write(tmp_path, way, rank, loader=LOADER):
    what, after, *_ = WAYS[way]
    text = TRAINS.format(rank=rank, loader=loader, what=what, after=after, step=100 if way in GONE else 6)
    if way in GONE:  # where it was last seen is known to a second
        text = text.replace("optimizer.step()", "optimizer.step(); time.sleep(0.015)")
    script = tmp_path / "train.py"
    script.write_text(text)
    return script


def lines_of(script, marks):
    lines = script.read_text().splitlines()
    found = [f"train.py:{n}" for n, line in enumerate(lines, 1) for mark in marks if line.endswith(f"# {mark}")]
    return found or [r"train.py:\d+"]


def check(script, way, nproc, said, rank, also=()):
    _, _, own, others, words = WAYS[way]
    own = [*own, *also] if own else own
    others = [*others, *also] if others else others
    message = next(line for line in said.splitlines() if "LockstepError: " in line)
    assert words in message, message
    own_side = r"its end \(" if "after" in own else rf"({'|'.join(lines_of(script, own))})\b"
    assert re.search(own_side, message), message
    assert re.search(rf"({'|'.join(lines_of(script, others))})\b", message), message
    assert re.search(rf"\brank {rank}\b|\branks ", message) or "thread" in message, message


@pytest.mark.slow
@pytest.mark.some("2")
@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_part_raise_soon_and_name_both_lines(ranks, tmp_path, way, nproc):
    rank = nproc - 1
    script = write(tmp_path, way, rank)
    outcome = ranks.script(script, nproc, timeout=60, grace=15)
    ended = time.time()
    said = "".join(outcome.stderr)
    assert not outcome.late, said
    assert all(outcome.codes), f"{outcome.codes}\n{said}"
    assert ended - float(re.search(r"parted at ([\d.]+)", said).group(1)) < WITHIN, said
    assert said.count("the job ends.") == 1, said
    assert "trained" not in outcome.stdout[0]
    check(script, way, nproc, said, rank)


@pytest.mark.slow
def test_rank_0_may_be_the_one_that_parts(ranks, tmp_path):
    for way in ("a rank exits", "a rank is killed", "a rank takes a value"):
        script = write(tmp_path, way, 0)
        outcome = ranks.script(script, 3, timeout=60, grace=15)
        assert not outcome.late
        assert all(outcome.codes)
        check(script, way, 3, "".join(outcome.stderr), 0)


SAVES = """
import os, torch
from ddp_patch.job.job import Job

for step in range(3):
    if step == 1 and Job.current.placement.rank == {rank}:
        torch.save(step, "other.pt")  # parts
    torch.save(step, "model.pt")  # saves
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_two_saves_in_different_lines_are_not_one(ranks, tmp_path, rank):
    """Though both are the ranks' second call of torch.save."""
    script = tmp_path / "train.py"
    script.write_text(SAVES.format(rank=rank))
    outcome = ranks.script(script, 2, timeout=60, grace=15)
    assert all(outcome.codes), outcome
    message = next(line for line in "".join(outcome.stderr).splitlines() if "LockstepError: " in line)
    for mark in ("parts", "saves"):
        assert lines_of(script, [mark])[0] in message, message
    assert not (tmp_path / "other.pt").exists()


CLOSES = """
from ddp_patch.job.job import Job

first, second = open("first.txt", "w"), open("second.txt", "w")
if Job.current.placement.rank == {rank}:
    second.close()  # parts
else:
    first.close()  # closes
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_two_closes_in_different_lines_are_not_one(ranks, tmp_path, rank):
    """Rank 0 does them as it comes."""
    script = tmp_path / "train.py"
    script.write_text(CLOSES.format(rank=rank))
    outcome = ranks.script(script, 2, timeout=60, grace=15)
    assert all(outcome.codes), outcome
    message = next(line for line in "".join(outcome.stderr).splitlines() if "LockstepError: " in line)
    for mark in ("parts", "closes"):
        assert lines_of(script, [mark])[0] in message, message


@pytest.mark.parametrize("way", ["a rank raises and catches", "a rank skips a save", "a rank exits"])
def test_ranks_part_where_one_of_them_reads_for_the_others(ranks, tmp_path, way):
    script = write(tmp_path, way, 1, READER)
    outcome = ranks.script(script, 2, timeout=60, grace=15)
    assert not outcome.late
    assert all(outcome.codes)
    check(script, way, 2, "".join(outcome.stderr), 1)


# --- what proves it -----------------------------------------------------------------------------------------------------


def walked(*points, end=False):
    trail = Trail()
    for what in points:
        trail.enter(what)
        trail.leave()
    if end:
        trail.end()
    return trail.words.tolist()


STEPS = ["a batch", "a backward"] * 100


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (walked(), walked()),
        (walked(*STEPS), walked(*STEPS)),
        (walked(*STEPS), walked(*STEPS[:-1])),  # the other is late
        (walked(*STEPS), walked()),  # ... however late
        (walked(*STEPS, end=True), walked(*STEPS)),  # the other comes to its end as well
        (walked(*STEPS, end=True), walked(*STEPS[:3])),
        (walked(*STEPS[:3]), walked(*STEPS, end=True)),
    ],
)
def test_a_rank_that_is_late_proves_nothing(own, other):
    assert compare(own, other, 1, 0) is None
    assert compare(other, own, 0, 1) is None


def test_another_point_and_a_point_after_the_end_prove_it():
    own, other = walked(*STEPS, "a save", "a batch"), walked(*STEPS, "a batch")
    assert compare(own, other, 1, 0) == Finding("elsewhere", 1, len(STEPS) + 1)
    ended = walked(*STEPS, end=True)
    assert compare(own, ended, 1, 0) == Finding("ended", 1, len(STEPS) + 2)
    assert compare(ended, own, 1, 0) == Finding("ended", 0, len(STEPS) + 2)


def test_a_child_of_a_rank_writes_to_no_trail_of_the_rank():
    trail = Trail()
    words = trail.words
    pid = os.fork()
    if pid == 0:
        trail.enter("a point of the child")
        os._exit(0 if trail.words is not words and not any(words) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- launchers ----------------------------------------------------------------------------------------------------------

LAUNCHES = {
    "torchrun": (["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], {}),
    "nproc": ([], {"DDP_PATCH_NPROC": "2"}),
}


def running(word):
    """Processes that have a word in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word in (folder / "cmdline").read_text():
                found.append(folder.name)
    return found


@pytest.mark.slow
@pytest.mark.some("a rank exits")
@pytest.mark.parametrize(
    ("way", "launch"),
    [
        ("a rank takes a value", "torchrun"),
        ("a rank takes a value", "nproc"),
        ("a rank exits", "torchrun"),
        ("a rank is stopped", "nproc"),
    ],
)
def test_a_launcher_whose_ranks_part_fails_and_leaves_no_process(tmp_path, way, launch):
    script, said, code = launched(tmp_path, way, launch)
    text = "".join(line for _, line in said)
    assert code != 0, text
    assert text.count("the job ends.") == 1, text
    found = next(moment for moment, line in said if "the job ends." in line)
    assert found - float(re.search(r"parted at ([\d.]+)", text).group(1)) < WITHIN, text
    check(script, way, 2, text, 1)
    assert not running(str(script))


@pytest.mark.slow
@pytest.mark.some("torchrun")
@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_launcher_says_which_rank_was_killed(tmp_path, launch):
    """It ends the other ranks a tenth of a second later: whether these come to say where they were is a race."""
    script, said, code = launched(tmp_path, "a rank is killed", launch)
    text = "".join(line for _, line in said)
    assert code != 0, text
    moment = next(moment for moment, line in said if re.search("rank 1 is gone|SIGKILL", line))
    assert moment - float(re.search(r"parted at ([\d.]+)", text).group(1)) < WITHIN, text
    assert not running(str(script))


def launched(tmp_path, way, launch):
    """The script, what was said on standard error and when, and the exit code of the launcher."""
    script = write(tmp_path, way, 1)
    script.write_text("import ddp_patch; ddp_patch.enable()\n" + script.read_text())
    options, variables = LAUNCHES[launch]
    env = {**os.environ, **variables, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, *options, str(script)]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = [(time.time(), line) for line in process.stderr]
            return script, said, process.wait(timeout=60)
        finally:
            process.kill()


# --- hosts that do not see each other's processes -------------------------------------------------------------------------

HOSTS = ("a clock ends the training", "a rank makes a folder", "a rank raises and catches", "a rank exits")


@pytest.mark.slow
@pytest.mark.parametrize("way", HOSTS)
def test_ranks_of_different_hosts_that_part_are_found_as_well(ranks, tmp_path, way):
    import several_hosts

    script = write(tmp_path, way, 2)
    outcome = ranks.call(several_hosts.run, 3, str(script), timeout=60, grace=15)
    ended = time.time()
    said = "".join(outcome.stderr)
    assert not outcome.late, said
    assert all(outcome.codes), said
    assert ended - float(re.search(r"parted at ([\d.]+)", said).group(1)) < WITHIN, said
    # A collective that meets another one is found out at the next effect.
    check(script, way, 3, said, 2, also=["saves"])


# --- slow, but together -----------------------------------------------------------------------------------------------------

SLOW = """
import os, re, sys, threading, time
import numpy, torch
from concurrent.futures import ThreadPoolExecutor
from torch.utils.data import DataLoader, Dataset, TensorDataset

try:
    from ddp_patch.job.job import Job
    rank = Job.current.placement.rank
except AttributeError:
    rank = None  # alone
LONG = 4.5  # seconds: ranks look at each other once a second


class Rows(Dataset):
    def __len__(self):
        return 26

    def __getitem__(self, i):
        if {slow!r} == "dataset" and i == 13 and rank is not None:
            time.sleep(LONG)
        return torch.full((4,), float(i), dtype=torch.float64)


class Slow:
    def __reduce__(self):
        time.sleep(LONG)
        return str, ("slow",)


def collate(samples):
    return torch.stack(samples)


def hold():
    "Keep the interpreter to itself: one call in C, which no other thread interrupts."
    end = time.monotonic() + LONG
    numbers = list(range(3_000_000))
    while time.monotonic() < end:
        sys.setswitchinterval(1000)
        numbers.sort(key=abs)
    sys.setswitchinterval(0.005)


torch.manual_seed(0)
model = torch.nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(model.parameters(), 0.001)
rows = Rows()
loader = DataLoader(rows, 8, **({{"collate_fn": collate}} if {slow!r} == "reader" else {{}}))
for epoch in range(2):
    for number, x in enumerate(loader):
        if number == 1 and epoch == 1:
            if {slow!r} == "computing" and rank == 1:
                time.sleep(LONG)
            if {slow!r} == "interpreter" and rank == 1:
                hold()
            if {slow!r} == "effect":
                torch.save(Slow() if rank == 0 else "slow", "slow.pt")
            if {slow!r} == "person":
                print(input())
            if {slow!r} == "reader":
                rows.__class__.__getitem__ = lambda self, i: (time.sleep(0.2 if rank is not None else 0), torch.ones(4).double())[1]
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(round(loss.item(), 5))
if {slow!r} == "end" and rank == 1:
    time.sleep(LONG)
"""


@pytest.mark.slow
@pytest.mark.some("effect", "reader")
@pytest.mark.parametrize("slow", ["dataset", "computing", "interpreter", "effect", "reader", "end"])
def test_ranks_that_are_slow_are_waited_for(ranks, tmp_path, slow):
    script = tmp_path / "slow.py"
    script.write_text(SLOW.format(slow=slow))
    alone = ranks.script(script, 1).ok().stdout[0]
    outcome = ranks.script(script, 3, timeout=80).ok()
    assert outcome.stdout == [alone, "", ""]
    assert outcome.stderr == ["", "", ""]


@pytest.mark.long
def test_a_person_may_think(tmp_path):
    script = tmp_path / "slow.py"
    script.write_text("import ddp_patch; ddp_patch.enable()\n" + SLOW.format(slow="person"))
    env = {**os.environ, "DDP_PATCH_NPROC": "2", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        first = [process.stdout.readline() for _ in range(5)]
        time.sleep(8)  # what is tested
        said, _ = process.communicate("an answer\n", timeout=60)
    assert process.returncode == 0
    assert len(first) == 5
    assert said.splitlines()[0] == "an answer"
    assert len(said.splitlines()) == 4


THREADS = """
import threading, torch
from concurrent.futures import ThreadPoolExecutor
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def train(rows):
    said = []
    for (x,) in DataLoader(TensorDataset(torch.arange(rows * 4.0).reshape(rows, 4).double() / rows), 5):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(round(loss.item(), 5))
    return said


print(train(16))
with ThreadPoolExecutor(1) as pool:
    for _ in range(3):
        print(pool.submit(train, 16).result())
        print(train(16))
said = []
thread = threading.Thread(target=lambda: said.append(train(16)))
thread.start()
thread.join()
print(said, train(16))
"""


@pytest.mark.slow
def test_a_thread_trains_while_the_main_thread_waits_for_it(ranks, tmp_path):
    script = tmp_path / "threads.py"
    script.write_text(THREADS)
    alone = ranks.script(script, 1).ok().stdout[0]
    assert ranks.script(script, 2).ok().stdout == [alone, ""]


@pytest.mark.slow
def test_programs_that_all_leave_at_once_are_not_taken_for_killed(ranks, tmp_path):
    script = tmp_path / "leaves.py"
    script.write_text(TRAINS.format(rank=-1, loader=LOADER, what="", after="sys.stdout.flush(); os._exit(0)", step=0))
    script.write_text(
        script.read_text()
        .replace("number == 0 and parts and now()", "number == 3")
        .replace("          # parts", "        break")
    )
    for _ in range(5):
        outcome = ranks.script(script, 3).ok()
        assert outcome.stdout == ["trained\n", "", ""]
        assert outcome.stderr == ["", "", ""]


# --- what it costs ----------------------------------------------------------------------------------------------------------


def costs():
    """Points of a training step, and microseconds that each takes."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from ddp_patch.batch.world import World
    from ddp_patch.job.job import Job

    trail, world = Job.current.watch.trail, World.get()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    points = []
    for (x,) in DataLoader(TensorDataset(torch.randn(100, 4)), 4):
        points.append(trail.count)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    each = []
    for _ in range(20):
        begun = time.thread_time_ns()
        for _ in range(1000):
            world.one_thread.begins()
            if world.reaches_point("what is measured"):
                trail.leave()
        each.append((time.thread_time_ns() - begun) / 1000 / 1000)
    return [points[-1] - points[-2], min(each)]


@pytest.mark.slow
def test_finding_parted_ranks_costs_a_step_less_than_ten_microseconds(ranks):
    for points, microseconds in ranks.call(costs, 4).ok().results:
        assert 2 <= points <= 6
        assert 0 < points * microseconds < 10, (points, microseconds)


def asks():
    """Requests that this rank's watch makes in some seconds of training, and of a wait."""
    import torch

    from ddp_patch.job.job import Job

    rank_status = Job.current.watch._rank_status
    counted = []
    for name in ("move", "refresh"):
        real = getattr(rank_status, name)
        setattr(rank_status, name, lambda *args, real=real: (counted.append(1), real(*args))[1])
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    import ddp_patch

    end = 4
    begun = time.monotonic()
    for _ in range(100):
        loss = model(ddp_patch.shard_batch(torch.ones(4, 4))).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(end / 100)
    time.sleep(3)
    return [len(counted), time.monotonic() - begun]


@pytest.mark.slow
def test_the_store_is_asked_about_once_a_second_however_many_steps_are_done(ranks):
    for asked, seconds in ranks.call(asks, 2).ok().results:
        assert seconds / 2 - 2 <= asked <= seconds * 1.1 + 1


@pytest.mark.parametrize(("has_queue", "wanted"), [(True, Finding("gone", 1, 3)), (False, None)])
def test_a_rank_that_waits_for_its_accelerator_hears_of_one_that_is_gone(monkeypatch, has_queue, wanted):
    """``loss.item()`` behind a collective that was begun: the script is at no point, and at as many as the other."""
    words = [0] * (SLOTS + 8)
    monkeypatch.setattr("ddp_patch.job.divergence_watch.compare", lambda *_: None)
    monkeypatch.setattr("ddp_patch.job.divergence_watch.count_of", lambda _: 3)
    watch = object.__new__(DivergenceWatch)
    watch.trail = SimpleNamespace(words=torch.tensor(words), others={1: torch.tensor(words)}, depth=0)
    watch._peers = SimpleNamespace(gone=[1], stopped=list, last_words=lambda rank: None)
    watch._rank_status = SimpleNamespace(lost=False)
    watch._rank, watch._has_queue, watch._stopped_looks = 0, has_queue, {}
    watch._since = time.monotonic() - 5
    assert watch._among_peers() is None
    watch._since -= 6
    assert watch._among_peers() == wanted
