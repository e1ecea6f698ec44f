"""Signals of N ranks are those of one process: handlers run on every rank at the same line, once."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddp_patch.job.peers import Peers
from ddp_patch.trail import Trail

LIMIT = 60.0  # seconds, for any one wait

START = """
import ddp_patch
ddp_patch.enable(%s)
import json, os, signal, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset

def here(text):  # said by every rank, whatever the others do
    with ddp_patch.per_rank():
        with open(f"rank{ddp_patch.rank()}.txt", "a") as file:
            file.write(text + "\\n")

here(str(os.getpid()))
torch.manual_seed(0)
"""

# Each step's loss is printed; the handler's effect on the loop must come at the same step on every rank.
TRAINING = """
model = torch.nn.DataParallel(torch.nn.Linear(8, 1, dtype=torch.float64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.randn(64, 8, dtype=torch.float64)
loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), 12)

def train(most=100_000):
    steps = 0
    for epoch in range(most):
        for x, y in loader:
            if stops():
                return steps
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps == 5:
                print("ready", flush=True)
            if steps > 5:
                time.sleep(0.002 * (1 + (ddp_patch.rank() or 0)))
    return steps
"""

FLAG = """
stopping = False
def stops():
    return stopping
def stop(number, frame):
    global stopping
    stopping = True
    here(f"handled {signal.Signals(number).name} in {frame.f_code.co_name if frame else None}")
"""

ENDING = """
total = sum(p.sum() for p in model.parameters()).item()
here(f"ended after {steps} with {total!r}")
torch.save(model.state_dict(), "model.pt")
print("saved")
"""


class Running:
    """A job of some ranks, started as a person does."""

    def __init__(self, process, folder):
        self.process, self.folder = process, folder
        self._seen = b""

    def wait_for(self, text):
        """Read its output until there is a line."""
        end = time.monotonic() + LIMIT
        while f"{text}\n".encode() not in self._seen:
            assert select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))[0], self._seen
            read = os.read(self.process.stdout.fileno(), 65536)
            assert read, (self._seen, self.process.stderr.read())
            self._seen += read

    def pid(self, rank):
        return int((self.folder / f"rank{rank}.txt").read_text().split("\n")[0])

    def end(self):
        """Give the exit code, standard output and standard error."""
        out, error = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, (self._seen + out).decode(), error.decode()

    def said(self, nproc):
        """What every rank noted by itself, without its process id."""
        return [(self.folder / f"rank{rank}.txt").read_text().splitlines()[1:] for rank in range(nproc)]


@contextmanager
def running(folder, text, nproc, launcher=(), script=None):
    if script is None:
        script = folder / "script.py"
        script.write_text(START % (f"nproc={nproc}" if not launcher else "") + text)
    env = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    command = [*launcher, str(script)] if launcher else [sys.executable, str(script)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # In a group of its own, as a shell starts it: nothing stops one that no shell could have go on (nohup, a container).
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**env, "OMP_NUM_THREADS": "1", "DDP_PATCH_QUIET": "1"},
        preexec_fn=os.setpgrp,
        **pipes,
    )
    try:
        yield Running(process, folder)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def torchrun(nproc):
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}")


@pytest.mark.slow
@pytest.mark.some("SIGTERM-3", "SIGINT-2")
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_handler_runs_on_every_rank_at_the_same_step_when_the_job_is_signalled(tmp_path, name, nproc):
    text = f"{FLAG}signal.signal(signal.{name}, stop)\n{TRAINING}steps = train()\n{ENDING}"
    with running(tmp_path, text, nproc) as job:
        job.wait_for("ready")
        job.process.send_signal(getattr(signal, name))
        code, out, error = job.end()
    assert (code, out.splitlines()[-1]) == (0, "saved"), error
    said = job.said(nproc)
    assert all(own == said[0] for own in said), said
    assert said[0][0].startswith(f"handled {name} in ")
    assert len(said[0]) == 2


@pytest.mark.slow
@pytest.mark.some("1")
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_signal_to_one_rank_alone_is_heeded_by_all(tmp_path, rank):
    named = "signal.signal(handler=stop, signalnum=signal.SIGUSR1)\nassert signal.getsignal(signalnum=signal.SIGUSR1) is stop\n"
    text = f"{FLAG}{named}{TRAINING}steps = train()\n{ENDING}"
    with running(tmp_path, text, 3) as job:
        job.wait_for("ready")
        os.kill(job.pid(rank), signal.SIGUSR1)
        code, _, error = job.end()
    said = job.said(3)
    assert code == 0, error
    assert all(own == said[0] for own in said), said
    assert len(said[0]) == 2


@pytest.mark.slow
@pytest.mark.some("SIGTERM")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_launcher_that_signals_every_rank_is_heeded_once(tmp_path, name):
    text = f"{FLAG}signal.signal(signal.{name}, stop)\n{TRAINING}steps = train()\n{ENDING}"
    with running(tmp_path, text, 3, torchrun(3)) as job:
        job.wait_for("ready")
        job.process.send_signal(getattr(signal, name))
        job.end()  # with torchrun's own code
    said = job.said(3)
    assert all(own == said[0] for own in said), said
    assert [line.split()[0] for line in said[0]] == ["handled", "ended"]
    assert (tmp_path / "model.pt").exists()


COUNTING = """
def stops():
    return False
def hear(number, frame):
    here("heard")
signal.signal(signal.SIGTERM, hear)
"""


@pytest.mark.slow
@pytest.mark.some("torchrun-the ranks")
@pytest.mark.parametrize("first", ["the ranks", "their launcher"])
@pytest.mark.parametrize("launcher", [(), torchrun(2)], ids=["ddp_patch", "torchrun"])
def test_a_signal_to_every_process_of_the_job_is_heeded_once(tmp_path, launcher, first):
    with running(tmp_path, f"{COUNTING}{TRAINING}train(60)\nhere('end')\n", 2, launcher) as job:
        job.wait_for("ready")
        pids = [job.pid(0), job.pid(1), job.process.pid]
        for pid in pids if first == "the ranks" else pids[::-1]:
            os.kill(pid, signal.SIGTERM)
            time.sleep(0.1)
        job.end()
    assert job.said(2) == [["heard", "end"]] * 2


class Alone:
    """What one rank posts."""

    def post(self, name, own):
        self.own = own

    def wait_until_all_posted(self, name):
        return [self.own]


def test_a_signal_that_comes_while_another_is_told_of_does_not_wait_for_it(monkeypatch):
    peers = Peers(Alone(), 0, Trail())
    real, written = os.write, []

    def write(descriptor, data):
        written.append(data)
        if len(written) == 1:
            peers.wake()  # as the handler of the second signal does, in the same thread
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    thread = threading.Thread(target=peers.wake, daemon=True)
    thread.start()
    thread.join(10)
    monkeypatch.undo()
    assert len(written) == 2
    peers.close()


@pytest.mark.long
def test_a_signal_that_comes_again_is_heeded_again(tmp_path):
    counting = """
heard = 0
def stops():
    return heard == 2
def hear(number, frame):
    global heard
    heard += 1
    print("heard", heard, flush=True)
signal.signal(signal.SIGUSR2, hear)
"""
    with running(tmp_path, f"{counting}{TRAINING}steps = train()\n{ENDING}", 2) as job:
        job.wait_for("ready")
        job.process.send_signal(signal.SIGUSR2)
        job.wait_for("heard 1")
        job.process.send_signal(signal.SIGUSR2)
        job.wait_for("heard 2")
        code, out, error = job.end()
    assert (code, out.count("heard")) == (0, 2), error
    assert job.said(2)[0] == job.said(2)[1]


@pytest.mark.slow
def test_an_exception_of_a_handler_is_raised_in_the_script_s_line_on_every_rank(tmp_path):
    text = f"""
class Preempted(Exception):
    pass
def stops():
    return False
def preempt(number, frame):
    raise Preempted(signal.Signals(number).name)
signal.signal(signal.SIGTERM, preempt)
{TRAINING}
steps = 0
try:
    train()
except Preempted as error:
    trace = error.__traceback__
    lines = []
    while trace is not None:
        lines.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    here(f"caught {{error}} through {{lines}}")
for x, y in loader:  # training goes on
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
{ENDING}"""
    with running(tmp_path, text, 2) as job:
        job.wait_for("ready")
        job.process.send_signal(signal.SIGTERM)
        code, _, error = job.end()
    said = job.said(2)
    assert code == 0, error
    assert said[0] == said[1]
    assert "'<module>', 'train'" in said[0][0]
    assert "step" not in said[0][0].split("'train'")[1]  # no frame of torch's


@pytest.mark.slow
def test_ctrl_c_is_one_keyboard_interrupt_on_every_rank(tmp_path):
    text = f"""
def stops():
    return False
{TRAINING}
steps = 0
try:
    train()
except KeyboardInterrupt:
    print("interrupted")
{ENDING}"""
    with running(tmp_path, text, 2) as job:
        job.wait_for("ready")
        job.process.send_signal(signal.SIGINT)
        code, out, error = job.end()
    assert (code, out.splitlines()[-2:]) == (0, ["interrupted", "saved"]), error
    assert job.said(2)[0] == job.said(2)[1]


@pytest.mark.slow
def test_ctrl_c_that_nobody_catches_ends_with_one_traceback_and_its_code(tmp_path):
    with running(tmp_path, f"def stops():\n    return False\n{TRAINING}train()\n", 2) as job:
        job.wait_for("ready")
        job.process.send_signal(signal.SIGINT)
        code, _, error = job.end()
    assert code == 128 + signal.SIGINT
    assert error.count("KeyboardInterrupt") == 2  # the traceback, and our line below it
    assert error.count("Traceback") == 1
    assert "ddp_patch/" not in error.replace("ddp_patch: ", "")


@pytest.mark.slow
@pytest.mark.some("2")
@pytest.mark.parametrize("nproc", [2, 3])
def test_ranks_that_sleep_in_the_same_line_are_woken_there(tmp_path, nproc):
    text = """
def wake(number, frame):
    here("woken")
    raise InterruptedError
signal.signal(signal.SIGUSR1, wake)
print("ready", flush=True)
try:
    time.sleep(10_000)
except InterruptedError:
    here("awake")
"""
    with running(tmp_path, text, nproc) as job:
        job.wait_for("ready")
        job.process.send_signal(signal.SIGUSR1)
        code, _, error = job.end()
    assert code == 0, error
    assert job.said(nproc) == [["woken", "awake"]] * nproc


@pytest.mark.slow
def test_ctrl_c_ends_what_rank_0_does_for_all(tmp_path):
    text = """
import subprocess
print("ready", flush=True)
try:
    subprocess.run(["sleep", "10000"])
except KeyboardInterrupt:
    here("interrupted")
print("after", flush=True)
"""
    with running(tmp_path, text, 3) as job:
        job.wait_for("ready")
        time.sleep(1)
        job.process.send_signal(signal.SIGINT)
        code, out, error = job.end()
    assert (code, out.splitlines()[-1]) == (0, "after"), error
    assert job.said(3) == [["interrupted"]] * 3


@pytest.mark.slow
def test_a_script_that_does_not_listen_ends_when_ctrl_c_is_pressed_three_times(tmp_path):
    text = """
print("ready", flush=True)
while True:
    try:
        time.sleep(10_000)
    except KeyboardInterrupt:
        pass
"""
    with running(tmp_path, text, 2) as job:
        job.wait_for("ready")
        for _ in range(3):
            job.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        code, _, error = job.end()
    assert code == 128 + signal.SIGINT
    assert "has not come to handle Ctrl-C" in error
    assert not Path(f"/proc/{job.pid(1)}").exists()


@pytest.mark.slow
def test_a_signal_that_the_script_does_not_handle_ends_the_job_without_a_word(tmp_path):
    with running(tmp_path, f"def stops():\n    return False\n{TRAINING}train()\n", 2) as job:
        job.wait_for("ready")
        job.process.send_signal(signal.SIGTERM)
        code, _, error = job.end()
    assert code == 128 + signal.SIGTERM
    assert "death signal" not in error  # torch's log, of its agent
    assert not Path(f"/proc/{job.pid(1)}").exists()


@pytest.mark.long
def test_a_loop_s_handler_is_called_on_every_rank(tmp_path):
    text = """
import asyncio
def stop(event, word):
    here(f"{word} {len(seen)}")
    event.set()
seen = []
async def train():
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, stop, event, "stopped")
    here("ready")
    for turn in range(100_000):
        if event.is_set():
            break
        seen.append(turn)
        torch.save(turn, "turn.pt")
        await asyncio.sleep(0)
    event.clear()
    print("waits", flush=True)
    await event.wait()
    here(repr([loop.remove_signal_handler(signal.SIGUSR1), loop.remove_signal_handler(signal.SIGUSR1)]))
    here(repr(signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL))
asyncio.run(train())
torch.save(1, "one.pt")
"""
    with running(tmp_path, text, 2) as job:
        files = [tmp_path / f"rank{rank}.txt" for rank in range(2)]
        wait_until(lambda: all(file.exists() and "ready\n" in file.read_text() for file in files))
        os.kill(job.pid(1), signal.SIGUSR1)
        job.wait_for("waits")
        time.sleep(1)
        os.kill(job.pid(1), signal.SIGUSR1)
        code, _, error = job.end()
    said = job.said(2)
    assert code == 0, error
    assert said[0] == said[1]
    assert [line.split()[0] for line in said[0]] == ["ready", "stopped", "stopped", "[True,", "True"]


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.long
def test_ctrl_z_stops_all_ranks_until_the_job_goes_on(tmp_path):
    text = f"""
import subprocess
sleeper = subprocess.Popen(["sleep", "1000"])
here(str(sleeper.pid))
def stops():
    return False
{TRAINING}
steps = train(20)
sleeper.kill()
{ENDING}"""
    with running(tmp_path, text, 2) as job:
        job.wait_for("ready")
        sleeper = int((tmp_path / "rank0.txt").read_text().split()[1])
        pids = [job.process.pid, job.pid(0), job.pid(1), sleeper]
        for _ in range(2):
            job.process.send_signal(signal.SIGTSTP)
            wait_until(lambda: all(state(pid) == "T" for pid in pids))
            job.process.send_signal(signal.SIGCONT)
            wait_until(lambda: not any(state(pid) == "T" for pid in pids))
        code, out, error = job.end()
    assert (code, out.splitlines()[-1]) == (0, "saved"), error
    assert job.said(2)[0] == job.said(2)[1]


@pytest.mark.long
def test_a_stopped_job_can_be_ended(tmp_path):
    with running(tmp_path, f"def stops():\n    return False\n{TRAINING}train()\n", 2) as job:
        job.wait_for("ready")
        job.process.send_signal(signal.SIGTSTP)
        wait_until(lambda: state(job.process.pid) == "T")
        job.process.send_signal(signal.SIGTERM)
        job.process.send_signal(signal.SIGCONT)
        code, _, _ = job.end()
    assert code == 128 + signal.SIGTERM
    assert not Path(f"/proc/{job.pid(1)}").exists()


def handlers_of_before():
    import signal

    import ddp_patch

    def first(number, frame):
        pass

    def second(number, frame):
        pass

    own = signal.getsignal(signal.SIGINT)
    given = [signal.signal(signal.SIGTERM, first), signal.getsignal(signal.SIGTERM)]
    given += [signal.signal(signal.SIGTERM, second), signal.signal(signal.SIGTERM, signal.SIG_IGN)]
    given += [signal.signal(signal.SIGTERM, signal.SIG_DFL), signal.signal(signal.SIGTERM, first)]
    ddp_patch.disable()
    given += [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    names = [handler.__name__ if callable(handler) else str(int(handler)) for handler in given]
    return own is signal.default_int_handler, names


def test_the_script_sees_its_own_handlers(ranks):
    outcome = ranks.call(handlers_of_before, 2).ok()
    names = ["0", "first", "first", "second", "1", "0", "first", "default_int_handler"]
    assert outcome.results == [[True, names]] * 2


@pytest.mark.long
def test_a_timer_breaks_all_ranks_out_at_the_same_line(tmp_path):
    text = f"""
def stops():
    return False
def late(number, frame):
    raise TimeoutError
signal.signal(signal.SIGALRM, late)
{TRAINING}
steps = 0
signal.setitimer(signal.ITIMER_REAL, 2.0 + 0.05 * ddp_patch.rank())
try:
    train()
except TimeoutError:
    here("late")
{ENDING}"""
    with running(tmp_path, text, 3) as job:
        code, _, error = job.end()
    said = job.said(3)
    assert code == 0, error
    assert said[0] == said[1] == said[2]
    assert said[0][0] == "late"


LATE = """
def late(number, frame):
    raise TimeoutError
old = signal.signal(signal.SIGALRM, late)
"""


@pytest.mark.long
def test_a_timer_that_fired_is_heeded_before_it_is_stopped(tmp_path):
    text = f"""
{LATE}
signal.alarm(1)
try:
    time.sleep(1.5)
    result = "done"
except TimeoutError:
    result = "late"
finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)
here(result)
print(result)
torch.save(result, "result.pt")
"""
    with running(tmp_path, text, 2) as job:
        code, out, error = job.end()
    assert (code, out) == (0, "late\n"), error
    assert job.said(2) == [["late"]] * 2


@pytest.mark.slow
@pytest.mark.some("alarm(0)")
@pytest.mark.parametrize("stop", ["alarm(0)", "setitimer(signal.ITIMER_REAL, 0)", "signal(signal.SIGALRM, old)"])
def test_a_timer_that_fires_on_one_rank_fires_on_all(tmp_path, stop):
    text = f"""
{LATE}
signal.alarm(1)
end = time.monotonic() + (1.5 if ddp_patch.rank() else 0.5)
try:
    while time.monotonic() < end:
        pass
        pass
    signal.{stop}
    here("in time")
except TimeoutError:
    here("late")
signal.alarm(0)
torch.save(1, "one.pt")
time.sleep(1)
torch.save(2, "two.pt")
"""
    with running(tmp_path, text, 2) as job:
        code, _, error = job.end()
    assert code == 0, error
    assert job.said(2) == [["late"]] * 2


@pytest.mark.long
def test_a_timer_that_is_stopped_in_time_is_none(tmp_path):
    text = f"""
{LATE}
given = [signal.alarm(100), signal.alarm(50), signal.alarm(0), signal.alarm(0)]
given += [signal.setitimer(signal.ITIMER_REAL, 1000, 7), *signal.setitimer(signal.ITIMER_REAL, 0)]
here(repr(given))
for turn in range(20):
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        time.sleep(0.05 * (turn % 3))
    except TimeoutError:
        here(f"late in {{turn}}")
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeoutError:
            here(f"late after {{turn}}")
torch.save(1, "one.pt")
"""
    with running(tmp_path, text, 3) as job:
        code, _, error = job.end()
    said = job.said(3)
    assert code == 0, error
    assert said[0] == said[1] == said[2]
    given = json.loads(said[0][0].replace("(", "[").replace(")", "]"))
    assert given[:5] == [0, 100, 50, 0, [0, 0]]
    assert 990 < given[5] < 1000
    assert given[6] == 7
    assert sum(f"late in {turn}" in said[0] for turn in range(2, 20, 3)) == 6
    assert not any(f"in {turn}" in line for turn in range(0, 20, 3) for line in said[0])


@pytest.mark.long
def test_a_debugger_s_trace_goes_on(tmp_path):
    text = """
lines = 0
def count(frame, event, argument):
    global lines
    if frame.f_code.co_name == "work":
        lines += event == "line"
        return count
def work():
    for turn in range(400):
        torch.save(turn, "turn.pt")
        if turn == 5:
            print("ready", flush=True)
signal.signal(signal.SIGUSR1, lambda number, frame: here(f"handled in {frame.f_code.co_name}"))
sys.settrace(count)
work()
sys.settrace(None)
here(json.dumps(lines >= 1200))
"""
    with running(tmp_path, text, 2) as job:
        job.wait_for("ready")
        job.process.send_signal(signal.SIGUSR1)
        code, _, error = job.end()
    assert code == 0, error
    assert job.said(2) == [["handled in work", json.dumps(True)]] * 2


@pytest.mark.slow
@pytest.mark.some("nohup")
@pytest.mark.parametrize("way", ["nohup", "the script", "above the line"])
def test_a_signal_that_one_process_ignores_does_not_end_the_job(tmp_path, way):
    name = "SIGHUP" if way == "nohup" else "SIGUSR1"
    ignores = "" if way == "nohup" else f"import signal\nsignal.signal(signal.{name}, signal.SIG_IGN)\n"
    text = f"{FLAG if way == 'the script' else ''}{ignores if way == 'the script' else ''}"
    text += f"def stops():\n    return False\n{TRAINING}steps = train(30)\n{ENDING}"  # some seconds
    script = tmp_path / "script.py"
    script.write_text((ignores if way == "above the line" else "") + START % "nproc=2" + text)
    launcher = ["nohup", sys.executable] if way == "nohup" else [sys.executable]
    with running(tmp_path, text, 2, launcher, script=script) as job:
        job.wait_for("ready")
        for _ in range(2):
            job.process.send_signal(getattr(signal, name))
            time.sleep(0.5)
        code, out, error = job.end()
    assert (code, out.splitlines()[-1]) == (0, "saved"), error


@pytest.mark.long
def test_a_signal_that_is_handled_in_c_comes_to_rank_0(tmp_path):
    text = "import faulthandler\nfaulthandler.register(signal.SIGUSR1)\n"
    text = f"import signal\n{text}def stops():\n    return False\n{TRAINING}steps = train(30)\n{ENDING}"
    with running(tmp_path, text, 2) as job:
        job.wait_for("ready")
        job.process.send_signal(signal.SIGUSR1)
        code, out, error = job.end()
    assert (code, out.splitlines()[-1]) == (0, "saved"), error
    assert error.count("most recent call first") >= 1, error


@pytest.mark.long
def test_a_script_that_a_rank_starts_takes_no_word_of_its_agent(tmp_path):
    text = f"""
import subprocess
{FLAG}
signal.signal(signal.SIGUSR1, stop)
names = "[name for name in __import__('os').environ if name.startswith('DDP_PATCH_') and name != 'DDP_PATCH_QUIET']"
print(subprocess.run([sys.executable, "-c", f"print({{names}})"], capture_output=True, text=True).stdout, end="")
{TRAINING}steps = train()
{ENDING}"""
    with running(tmp_path, text, 2) as job:
        job.wait_for("ready")
        job.process.send_signal(signal.SIGUSR1)
        code, out, error = job.end()
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (0, "[]", "saved"), (out, error)
