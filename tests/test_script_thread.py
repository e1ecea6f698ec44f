"""A script whose thread is not Python's main thread, and a process that is its launcher's: without Ray, staged."""

import os
import queue
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from parity.test_scripts import alone, compare_text
from torch.utils.data import DataLoader, Dataset

import ddp_patch

SCRIPTS = Path(__file__).parent / "parity" / "scripts"
HABITS = """
import logging, os, random, threading
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(46, 5)
        self.draws = np.random.default_rng(5)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index] + 0.01 * index, int(self.x[index].sum() > 0)

torch.set_default_dtype(torch.float64)
torch.manual_seed(1); random.seed(2); np.random.seed(3)
logging.basicConfig(filename="train.log", level=logging.INFO, format="%(message)s")
os.makedirs("out", exist_ok=True)
data = Rows()
net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
best = float("inf")
for epoch in range(3):
    total = 0.0
    for x, y in DataLoader(data, batch_size=10, shuffle=True, num_workers=epoch):
        loss = torch.nn.functional.cross_entropy(net(x + random.random()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    logging.info("epoch %d: %.10f", epoch, total / len(data))
    print(f"{epoch} {total / len(data):.12f} {torch.rand(1).item():.10f}")
    if total < best:
        best = total
        torch.save(net.state_dict(), "out/best.pt")
    with open("out/losses.txt", "a") as stream:
        stream.write(f"{total:.8f}\\n")
beside = threading.Thread(target=lambda: print("beside"))
beside.start()
beside.join()
print(sorted(os.listdir("out")), open("out/losses.txt").read().split())
print(sum(value.double().abs().sum().item() for value in torch.load("out/best.pt").values()))
"""


def read(cwd, name):
    return (cwd / name).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
def test_a_script_in_a_thread_prints_logs_and_saves_what_it_does_alone(ranks, tmp_path, nproc):
    (tmp_path / "habits.py").write_text(HABITS)
    wanted = ranks.script(tmp_path / "habits.py", 1).ok()
    got = ranks.script(tmp_path / "habits.py", nproc, thread=True).ok()
    compare_text(got.stdout[0], wanted.stdout[0])
    assert not any(got.stdout[1:])
    assert got.files() == wanted.files()
    for name in ("train.log", "out/losses.txt"):
        compare_text(read(got.cwd, name), read(wanted.cwd, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixup", "early_stopping", "gan"])
def test_scripts_of_the_suite_in_a_thread(ranks, name):
    script = SCRIPTS / f"{name}.py"
    got = ranks.script(script, 2, thread=True).ok()
    compare_text(got.stdout[0], alone(ranks, script).stdout[0])


def fails_in_a_thread():
    net, optimizer = model()
    for index, x in enumerate(DataLoader(torch.ones(16, 2, dtype=torch.float64), batch_size=4)):
        if index == 2 and ddp_patch.rank() == 1:
            raise ValueError("of one rank")
        step(net, optimizer, x)


@pytest.mark.slow
def test_an_error_of_one_rank_in_a_thread_ends_all(ranks):
    outcome = ranks.call(fails_in_a_thread, 2, thread=True)
    assert not outcome.late
    assert not outcome.ended
    assert all(outcome.codes)
    assert outcome.said().count("ValueError: of one rank") == 1


# --- a process group, and a process, of the launcher's ----------------------------------------------------------------


def model():
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1).double()
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def step(net, optimizer, x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


class Rows(Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        return torch.tensor([index / 10, 1.0], dtype=torch.float64)


def trained():
    net, optimizer = model()
    losses = [step(net, optimizer, x) for _ in range(2) for x in DataLoader(Rows(), batch_size=4, num_workers=1)]
    with open("losses.txt", "w") as stream:
        stream.write(f"{losses}\n")
    print("trained", dist.is_initialized(), "RANK" in os.environ)
    return losses


# As Ray's own of 2.60, as far as a worker shows it to who looks: who calls the function, and where it leaves errors.
RUNNER = """
class Told:
    def __init__(self, error):
        self._base_exc = error

def construct_user_exception_with_traceback(e, exclude_frames=0):
    return Told(e)

class ThreadRunner:
    def __init__(self, queue):
        self._exc_queue = queue

    def run(self, target, Thread):
        def _run_target():
            try:
                self.ret = target()
                self._exc_queue.put(None)
            except BaseException as error:
                self._exc_queue.put(construct_user_exception_with_traceback(error))

        thread = Thread(target=_run_target, daemon=True)
        thread.start()
        thread.join()
        return getattr(self._exc_queue.get(), "_base_exc", None)
"""


def worker(target, made_by_launcher=True):
    """Be a worker of Ray's; give what the function returned or raised."""
    os.environ.update(RAY_JOB_ID="01", NODE_RANK="0")
    if made_by_launcher and not dist.is_initialized():
        dist.init_process_group("gloo")
    module = types.ModuleType("ray.train.v2._internal.execution.worker_group.thread_runner")
    exec(RUNNER, vars(module))
    runner = module.ThreadRunner(queue.SimpleQueue())
    error = runner.run(target, threading.Thread)
    return f"{type(error).__name__}: {error}" if error else runner.ret


def around():
    names = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GLOO_SOCKET_IFNAME")}
    return (
        dist.GroupMember.WORLD,
        names,
        sys.stdout,
        open,
        os.listdir,
        sys.excepthook,
        len(dist.distributed_c10d._world.pg_map),
    )


def kept():
    found = []

    def plain():
        found.append(around())
        ddp_patch.enable()
        return trained()

    def context():
        with ddp_patch.enable():
            return trained()

    def twice():
        with ddp_patch.enable():
            first = trained()
        assert dist.is_initialized()  # as the launcher made it
        with ddp_patch.enable():
            return [first, trained()]

    def caught():
        try:
            with ddp_patch.enable():
                raise ValueError("of all ranks")
        except ValueError:
            return "caught"

    results = [worker(run) for run in (plain, ddp_patch.enable(trained), context, twice, caught)]
    is_as_it_was = around() == found[0]
    group_works = torch.ones(1)
    dist.all_reduce(group_works)
    dist.destroy_process_group()
    return [results, is_as_it_was, group_works.item(), ddp_patch.is_enabled(), ddp_patch.world_size()]


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
def test_a_group_of_the_launcher_is_adopted_and_left_as_it_was(ranks, nproc):
    wanted = pytest.approx(ranks.call(trained, 1).ok().results[0])
    outcome = ranks.call(kept, nproc, bare=True, timeout=100).ok()
    for results, is_as_it_was, summed, is_enabled, size in outcome.results:
        assert results[:3] == [wanted] * 3
        assert results[3] == [wanted] * 2
        assert results[4] == "caught"
        assert (is_as_it_was, summed, is_enabled, size) == (True, nproc, False, 1)
    assert outcome.stdout[0] == "trained False False\n" * 5
    assert outcome.stdout[1] == ""
    assert outcome.files() == ["losses.txt"]


def failed():
    def one():
        with ddp_patch.enable():
            fails_in_a_thread()

    def until(is_so):
        end = time.monotonic() + 50
        while not is_so() and time.monotonic() < end:
            time.sleep(0.05)

    if int(os.environ["RANK"]):  # a worker of Ray's outlives its function
        error = worker(one)
        Path("failed").touch()
        until(Path("seen").exists)
        return error
    waiting = threading.Thread(target=lambda: worker(one), daemon=True)
    waiting.start()
    until(lambda: Path("failed").exists() or not waiting.is_alive())
    waiting.join(3)
    Path("seen").touch()
    return "waits" if waiting.is_alive() else "went on"  # until Ray ends it


@pytest.mark.slow
def test_an_error_is_the_launchers_while_the_others_wait_to_be_ended(ranks):
    outcome = ranks.call(failed, 2, bare=True, env={"DDP_PATCH_TIMEOUT": "60"})
    assert outcome.results == ["waits", "ValueError: of one rank"]


def own_group():
    return worker(lambda: ddp_patch.enable(), made_by_launcher=False)


def test_a_worker_without_the_launchers_group_is_refused(ranks):
    outcome = ranks.call(own_group, 2, bare=True)
    for said in outcome.results:
        assert said.startswith("OrderError: test_script_thread.py")
        assert "there is no process group" in said


def elsewhere():
    os.environ.update(RAY_JOB_ID="01", NODE_RANK="0")
    dist.init_process_group("gloo")
    dist.barrier()  # who leaves now would not be found by the others
    try:
        ddp_patch.enable()
    except ddp_patch.LaunchError as error:
        return str(error)
    finally:
        dist.destroy_process_group()


def test_enable_outside_of_the_function_that_ray_calls_is_refused(ranks):
    for said in ranks.call(elsewhere, 2, bare=True).ok().results:
        assert "does not run in the function that it calls" in said
        assert "ddp_patch.launch(train, nproc=2)" in said


def by_itself():
    dist.init_process_group("gloo")
    dist.barrier()
    try:
        ddp_patch.enable()
    except ddp_patch.OrderError as error:
        return str(error)
    finally:
        dist.destroy_process_group()


def test_a_group_that_the_script_made_is_refused_as_ever(ranks):
    for said in ranks.call(by_itself, 2, bare=True, thread=True).ok().results:
        assert "a process group (gloo, 2 ranks) exists already" in said
