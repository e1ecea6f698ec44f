"""Outward effects: the folder, the values and the errors of N ranks are those of one process."""

import gc
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PATIENCE, THOROUGH
from parity import outward
from parity.test_scripts import compare_text
from torch.utils.checkpoint import _StopRecomputationError as StopsEarly
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import ddp_patch
from ddp_patch.effects.descriptors import is_written_to

SLOW = ("tasks",)
NAMES = [habit.__name__ for habit in outward.HABITS if THOROUGH or habit.__name__ not in SLOW]


def tree(folder):
    """Every file's content, by its path; checkpoints by what they hold."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"(\.cometml-runs/)[0-9a-f]{32}", r"\1a key", str(path.relative_to(folder)))  # what Comet draws
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "folder"
        elif path.suffix == ".pt":
            found[name] = repr(torch.load(path)), path.read_bytes()
        elif path.suffix == ".npz":
            found[name] = {key: value.tolist() for key, value in np.load(path).items()}
        elif path.suffix == ".pkl":
            found[name] = repr(pickle.loads(path.read_bytes()))
        elif path.suffix in (".zip", ".gz"):
            found[name] = "archive"  # with the time in it
        else:
            found[name] = path.read_bytes(), oct(path.stat().st_mode)
    return found


@pytest.fixture(scope="module")
def alone(ranks):
    outcome = ranks.call(outward.run_all, 1, NAMES).ok()
    return outcome.results[0], tree(outcome.cwd)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("nproc", [2, 3] if THOROUGH else [3])
def test_habits_leave_and_see_what_one_process_does(ranks, alone, nproc):
    values, files = alone
    outcome = ranks.call(outward.run_all, nproc, NAMES).ok()
    for rank, given in enumerate(outcome.results):
        for name in NAMES:
            assert given[name] == values[name], f"rank {rank}: {name}"
    assert tree(outcome.cwd) == files


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
def test_runs_that_models_and_threads_log_to_are_those_of_one_process(ranks, nproc):
    """In processes of its own: wandb's service goes on in the folder where it was started."""
    wanted = ranks.call(outward.runs_that_models_and_threads_log_to, 1).ok().results[0]
    assert ranks.call(outward.runs_that_models_and_threads_log_to, nproc).ok().results == [wanted] * nproc


def what_a_summary_says():
    """To a script that goes on where it was."""
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
    import wandb

    own = ddp_patch.rank()
    (rows,) = next(iter(DataLoader(torch.utils.data.TensorDataset(torch.arange(8.0)), 8)))
    run = wandb.init(project="p")
    seen = [run.summary.get("epoch", -1), list(run.summary.keys())]
    run.summary["epoch"] = 5 + own
    run.summary.best = rows.sum()
    wandb.summary.update({"deep": {"a": 1 + own, "name": f"rank {own}"}})
    run.log({"loss": rows.mean()})
    seen += [run.summary["epoch"], run.summary.best, wandb.run.summary.get("epoch", -1), wandb.summary["loss"]]
    seen += [run.summary["deep"]["a"], run.summary.deep.name, sorted(wandb.summary["deep"].keys())]
    seen += [sorted(run.summary.keys()), dict(run.summary)["epoch"], isinstance(run.summary, type(wandb.summary))]
    del run.summary["epoch"]
    try:
        run.summary["epoch"]
    except KeyError as error:
        seen.append(str(error))
    thread = threading.Thread(target=lambda: run.summary.update({"by": 1 + run.summary.get("best", 0)}))
    thread.start()
    thread.join()
    seen.append(run.summary["by"])
    run.finish()
    with wandb.init(mode="disabled") as none:
        none.summary["a"] = 1
        seen += [none.summary["a"], none.summary.get("b")]
    return seen


@pytest.mark.slow
def test_the_summary_of_a_run_is_rank_0s(ranks):
    (wanted,) = ranks.call(what_a_summary_says, 1).ok().results
    assert wanted[:4] == [-1, [], 5, 28.0]
    assert ranks.call(what_a_summary_says, 3).ok().results == [wanted] * 3


def prints_in_forward():
    class Net(torch.nn.Linear):
        def forward(self, x):
            print("rows", tuple(x.shape))
            print("heard", len(x), file=sys.stderr)
            return super().forward(x)

    net = Net(2, 1)
    for x in DataLoader(torch.ones(12, 2), 4):
        net(x).sum().backward()


def test_a_forward_prints_what_it_prints_in_one_process(ranks):
    alone, spread = (ranks.call(prints_in_forward, nproc, enable={"quiet": True}).ok() for nproc in (1, 2))
    assert alone.stdout[0] == "rows (4, 2)\n" * 3
    assert spread.stdout == [*alone.stdout, ""]
    assert spread.stderr[0].count("heard 4\n") == 3


class Log:
    """Closes its file when it goes, which is when the garbage collector of its rank comes by."""

    def __init__(self, path):
        self.stream, self.own = open(path, "w"), self
        self.folder = tempfile.TemporaryDirectory(dir=".")

    def __del__(self):
        self.stream.write("the end")
        self.stream.close()
        print("closed")
        self.folder.cleanup()


def collected_at_another_point():
    gc.disable()
    Log("a.txt")
    if ddp_patch.rank() == 1:
        gc.collect()
    Path("b.txt").write_text("b")
    gc.collect()
    Path("c.txt").write_text("c")
    gc.enable()
    return sorted(os.listdir(".")), Path("a.txt").read_text()


def test_what_the_garbage_collector_finalizes_is_no_meeting(ranks):
    outcome = ranks.call(collected_at_another_point, 3).ok()
    assert outcome.results == [[["a.txt", "b.txt", "c.txt"], "the end"]] * 3
    assert outcome.stdout == ["closed\n", "", ""]


def read_back():
    answers = []
    count = ddp_patch.state.State.session.rank_zero
    json.dump({"a": 1}, open("a.json", "w"))
    Path("touched").touch()
    np.memmap("map.bin", np.uint8, "w+", shape=4)[:] = 7
    descriptor = os.open("held.txt", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"one")
    for _ in range(2):
        before = count._count
        answers.append((json.load(open("a.json")), os.path.getsize("touched"), np.memmap("map.bin", mode="r").tolist()))
        answers.append(count._count - before)
    answers.append(Path("held.txt").read_text())
    os.write(descriptor, b"two")
    os.close(descriptor)
    return [*answers, Path("held.txt").read_text()]


def mapped_by_default():
    """By ``np.memmap(path)``, which may write: once for every batch, as training data is."""
    from ddp_patch.effects import null_file

    np.arange(8, dtype=np.uint8).tofile("tokens.bin")
    os.utime("tokens.bin", (1e9, 1e9))
    with open("large.bin", "wb") as stream:
        stream.truncate(2**30 + 8)
    copied, copy = [], null_file.shutil.copyfileobj
    null_file.shutil.copyfileobj = lambda source, *rest: copied.append(source.name) or copy(source, *rest)
    seen = []
    for _ in range(3):
        seen.append(int(np.memmap("tokens.bin").sum()))
        large = np.memmap("large.bin")
        seen += [large.shape[0], int(large[:4].sum())]
    first, second = np.memmap("tokens.bin"), np.memmap("tokens.bin")
    first[0], large[5] = 9, 3
    seen += [int(second[0]), int(large[5]), large.mode]
    null_file.shutil.copyfileobj = copy
    del first, second, large
    seen += [int(np.fromfile("tokens.bin", np.uint8)[0]), int(np.memmap("large.bin", mode="r")[5])]
    said = [note for note in ddp_patch.report().ledger.notes if "large.bin" in note]
    return [seen, len(copied), len(said)]


def test_a_file_that_is_mapped_by_default_is_copied_once_and_a_large_one_not_at_all(ranks):
    alone = ranks.call(mapped_by_default, 1).ok().results[0]
    (first, none, said), (second, once, said_too) = ranks.call(mapped_by_default, 2).ok().results
    assert first == second == alone[0]
    assert (none, once) == (0, 1)
    assert said == said_too == 1


def lines_by_descriptor():
    """Appended by a descriptor each, to a file that is large, and many small files that are changed in place."""
    Path("log.bin").write_bytes(bytes(2**20))
    held = len(os.listdir("/proc/self/fd"))
    for i in range(40):
        descriptor = os.open("log.bin", os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, b"line")
        sizes = os.fstat(descriptor).st_size, os.path.getsize("log.bin")
        os.close(descriptor)
        Path(f"{i}.txt").write_text(f"{i}")
        os.utime(f"{i}.txt", (1e9, 1e9))
    for i in range(80):
        with open(f"{i % 40}.txt", "r+") as small:
            small.read()
    scratch = ddp_patch.state.State.session.files.scratch()
    taken = sum(entry.stat().st_blocks * 512 for entry in os.scandir(scratch))
    return [*sizes, len(os.listdir("/proc/self/fd")) - held < 10, taken < 2**20, len(os.listdir(scratch)) < 100]


def test_what_is_opened_often_leaves_neither_descriptors_nor_copies(ranks):
    for found in ranks.call(lines_by_descriptor, 2).ok().results:
        assert found == [2**20 + 160, 2**20 + 160, True, True, True]


def test_files_that_nobody_holds_any_more_are_read_as_they_are(ranks):
    first, turns, again, none, held, whole = ranks.call(read_back, 2).ok().results[0]
    assert first == again == [{"a": 1}, 0, [7] * 4]
    assert turns == 3  # each is asked for once
    assert none == 0
    assert (held, whole) == ("one", "onetwo")


def test_who_writes_to_a_file_is_found(tmp_path):
    path = str(tmp_path / "a.txt")
    assert not is_written_to(path)
    stream = open(path, "wb")
    assert is_written_to(path)
    stream.write(b"four")
    stream.close()
    assert not is_written_to(path)
    array = np.memmap(path, mode="r+")
    assert is_written_to(path)
    del array
    array = np.memmap(path, mode="r")
    assert bytes(array) == b"four"
    assert not is_written_to(path)
    child = subprocess.Popen(["sleep", "60"], stdout=open(path, "w"))
    assert is_written_to(path)
    child.kill()
    child.wait()
    assert not is_written_to(path)


def two_sessions():
    """The second one writes where the first one left the job's store."""
    seen = []
    for session in range(3):
        ddp_patch.disable()
        ddp_patch.enable()
        with open(f"{session}.txt", "w") as stream:
            stream.write("text")
        seen.append(subprocess.check_output(["echo", str(session)], text=True))
        for i in range(session):
            os.mkdir(f"{session}-{i}")
    return [seen, sorted(os.listdir("."))]


def test_a_session_after_another_has_effects_of_its_own(ranks):
    names = ["0.txt", "1-0", "1.txt", "2-0", "2-1", "2.txt"]
    assert ranks.call(two_sessions, 2).ok().results == [[["0\n", "1\n", "2\n"], names]] * 2


@pytest.mark.long
def test_comet_logs_by_itself_what_it_logs_on_one_process(tmp_path):
    script = Path(__file__).parent / "trackers" / "comet.py"  # which imports it first: its own rule
    said = []
    for starter in (["-m", "torch.distributed.run", "--nproc-per-node", "2"], []):
        folder = tmp_path / str(len(starter))
        folder.mkdir()
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PLAIN": "" if starter else "1"}
        command = [sys.executable, *starter, str(script)]
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert "'loss'" in said[0]
    compare_text(*said, precision=1e-5)  # float32


def agents():
    """Programs of trackers that would give every rank other hyperparameters."""
    import clearml
    import wandb

    said = []
    sys.modules["clearml.config"].running_remotely = lambda: True
    for start in (lambda: wandb.agent("a/b/c", function=print), lambda: clearml.Task.init("p", "t")):
        try:
            start()
        except ddp_patch.errors.LaunchError as error:
            said.append(str(error))
    return said


@pytest.mark.slow
def test_agents_that_would_part_the_ranks_are_refused(ranks):
    results = ranks.call(agents, 2).ok().results
    assert results[0] == results[1]
    assert "hyperparameters of its own" in results[0][0]
    assert "past the other ranks" in results[0][1]


# --- what the store is asked ------------------------------------------------------------------------------------------


class Asked:
    """A store, or the waits at it, that counts what the main thread asks of it."""

    def __init__(self, store):
        self.store, self.count, self.others = store, 0, 0

    def __getattr__(self, name):
        method = getattr(self.store, name)

        def call(*args):
            is_scripts = threading.current_thread() is threading.main_thread()
            self.count += is_scripts
            self.others += not is_scripts
            return method(*args)

        return call


def asked_for_files():
    """Requests of this rank for each of ten files that are opened, appended to and closed; and what is left behind."""
    from ddp_patch.job.job import Job

    rank_status = Job.current.rank_status
    store = rank_status._store

    def append():
        for _ in range(10):
            with open("log.txt", "a") as file:
                file.write("line\n")

    append()
    left, asked, awaited = store.num_keys(), Asked(store), Asked(rank_status._waiting)
    rank_status._store, rank_status._waiting = asked, awaited
    append()
    rank_status._store, rank_status._waiting = store, awaited.store
    return [(asked.count + awaited.count) / 10, store.num_keys() - left]


@pytest.mark.slow
def test_a_file_costs_a_rank_as_many_requests_however_many_ranks_there_are(ranks):
    few, many = ranks.call(asked_for_files, 2).ok().results, ranks.call(asked_for_files, 6).ok().results
    assert many[0][0] == few[0][0] <= 10
    assert max(asked for asked, _ in many[1:]) <= few[1][0]
    assert abs(many[0][1]) <= 8  # of the last effect


def asked_for_steps():
    """Requests of this rank's script, and of its other threads in a second, while it trains."""
    from ddp_patch.job.job import Job

    rank_status = Job.current.rank_status
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(steps):
        for x in DataLoader(torch.ones(4 * steps, 4), 4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    train(5)
    store, waiting = rank_status._store, rank_status._waiting
    found = []
    for steps in (50, 300):
        asked, awaited = Asked(store), Asked(waiting)
        rank_status._store, rank_status._waiting = asked, awaited
        began = time.monotonic()
        train(steps)
        took = time.monotonic() - began
        rank_status._store, rank_status._waiting = store, waiting
        found.append([asked.count + awaited.count, (asked.others + awaited.others) / max(took, 1)])
    return found


@pytest.mark.slow
def test_steps_ask_the_store_for_nothing_and_the_watch_asks_once_a_second(ranks):
    results = ranks.call(asked_for_steps, 3).ok().results
    for few, many in results:
        assert max(few[0], many[0]) <= 40, results  # where an epoch begins; there are 300 steps
        assert max(few[1], many[1]) <= 3, results


def seeded_often():
    """Seeds from entropy: nothing makes all ranks come."""
    from ddp_patch.job.job import Job

    most = 0
    for _ in range(400):
        torch.seed()
        most = max(most, Job.current.rank_status._store.num_keys())
    return [most, torch.initial_seed()]


@pytest.mark.slow
def test_little_is_left_behind_where_ranks_are_not_waited_for(ranks):
    results = ranks.call(seeded_often, 3).ok().results
    assert max(most for most, _ in results) < 400
    assert len({seed for _, seed in results}) == 1


def fails_often(where):
    """How many entries are left behind by errors that all ranks meet: torch ends what it computes again with one."""
    from ddp_patch.job.job import Job

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(steps):
        for x in DataLoader(torch.ones(4 * steps, 4), 4):
            out = checkpoint(model, x, use_reentrant=False)
            if where == "on batches":
                out = checkpoint(torch.tanh, x * out.sum(), use_reentrant=False)
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
            if where == "of the script's own":
                with pytest.raises(IndexError):
                    torch.nn.functional.cross_entropy(out, torch.full_like(x[:, 0], 2, dtype=torch.long))

    train(3)
    asked = Asked(Job.current.rank_status._store)
    Job.current.rank_status._store, before = asked, asked.store.num_keys()
    train(40)
    Job.current.rank_status._store = asked.store
    return [asked.count, asked.store.num_keys() - before]


@pytest.mark.parametrize("where", ["on rows", "on batches"])
def test_what_is_computed_again_asks_the_store_for_nothing(ranks, where):
    assert StopsEarly.__name__ == "_StopRecomputationError"
    results = ranks.call(fails_often, 2, where).ok().results
    assert max(asked for asked, _ in results) <= 40, results  # where an epoch begins


def test_little_is_left_behind_by_errors_that_all_ranks_meet(ranks):
    results = ranks.call(fails_often, 2, "of the script's own").ok().results
    assert max(left for _, left in results) <= 40, results
