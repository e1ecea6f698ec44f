"""What a rank that is gone has left for the others."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import PATIENCE

from ddp_patch.job import last_words

PYTHON = """Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "{own}/wait.py", line 3 in run
  File "/home/me/train.py", line 90 in watch

Current thread 0x00007f0000000002 (most recent call first):
  File "{own}/module.py", line 9 in call
  File "/home/me/model.py", line 12 in forward
  File "/home/me/train.py", line 40 in <module>

Extension modules: numpy (total: 1)
"""


def read(tmp_path, text):
    path = tmp_path / "0.words"
    path.write_text(text)
    with path.open("rb") as file:
        return last_words.read(file.fileno())


def test_the_line_of_the_script_in_which_a_thread_crashed_is_told(tmp_path):
    found = read(tmp_path, PYTHON.format(own=os.path.dirname(os.__file__)))
    assert found.what == "Segmentation fault in model.py:12"
    assert found.frames.startswith("Current thread")
    assert "train.py" in found.frames
    assert "Extension" not in found.frames


def test_a_crash_in_a_thread_of_c_names_the_line_of_the_scripts_thread(tmp_path):
    text = PYTHON.format(own=os.path.dirname(os.__file__)).replace("Current thread", "Thread")
    text = text.replace('"/home/me/train.py", line 90', '"<frozen runpy>", line 90')
    assert read(tmp_path, text).what == "Segmentation fault in model.py:12"


def test_nothing_is_left_where_the_system_kills(tmp_path):
    assert read(tmp_path, "") is None


HELD = """
import os, signal, sys, time
from ddp_patch.job.held_back import HeldBack
held = HeldBack()
{handler}
held.begin()
os.kill(os.getpid(), signal.SIGTERM)
print("said", flush=True)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    held.look()
    time.sleep(0.01)
{last}
print("goes on", flush=True)
"""


@pytest.mark.slow
@pytest.mark.some("sys.exit(3)")
@pytest.mark.parametrize(
    ("handler", "seconds", "last", "said", "code"),
    [
        ("", 20, "", "said\n", -signal.SIGTERM),
        ("", 0, "held.end()", "said\n", -signal.SIGTERM),
        ("signal.signal(signal.SIGTERM, lambda *given: sys.exit(3))", 1, "", "", 3),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 1.5, "held.end()", "said\ngoes on\n", 0),
    ],
)
def test_the_signal_of_a_launcher_waits_for_what_is_said_and_is_not_lost(handler, seconds, last, said, code):
    text = HELD.format(handler=handler, seconds=seconds, last=last)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.returncode) == (said, code), done.stderr


CRASHES = """
import ddp_patch
ddp_patch.enable(nproc=2)
import ctypes, torch
from torch.utils.data import DataLoader, TensorDataset

def forward(x, number):
    if ddp_patch.rank() == 1 and number == 3:
        ctypes.string_at(0)  # here
    return model(x)

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
for number, (x,) in enumerate(DataLoader(TensorDataset(torch.arange(80.0)[:, None]), 8)):
    loss = forward(x, number).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_crash_in_c_names_the_line_of_the_script(tmp_path):
    (tmp_path / "train.py").write_text(CRASHES)
    here = next(number for number, line in enumerate(CRASHES.splitlines(), 1) if line.endswith("# here"))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 128 + signal.SIGSEGV
    assert f"the process of rank 1 is gone: Segmentation fault in train.py:{here} (last seen at" in done.stderr
    assert f'train.py", line {here} in forward' in done.stderr
    assert f"ddp_patch: rank 1 was ended by SIGSEGV: Segmentation fault in train.py:{here}." in done.stderr


LISTENS = """
import ddp_patch
ddp_patch.enable(nproc=2)
import ctypes, faulthandler, multiprocessing

print(faulthandler.is_enabled())
faulthandler.enable()
child = multiprocessing.get_context("fork").Process(target=ctypes.string_at, args=(0,))
child.start()
child.join()
print(faulthandler.is_enabled(), child.exitcode)
"""


@pytest.mark.long
def test_what_a_script_has_faulthandler_do_is_done(tmp_path):
    (tmp_path / "train.py").write_text(LISTENS)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == f"False\nTrue {-signal.SIGSEGV}\n", done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr


# All but what gloo and the store's server have, whose threads abort the process that closes it before it ends.
CLOSES = """
import contextlib, os, socket

for number in range(3, 256):
    with contextlib.suppress(OSError):
        kind = os.readlink(f"/proc/self/fd/{number}")
        if kind.startswith("socket"):
            with socket.socket(fileno=os.dup(number)) as twin:
                closes = twin.getpeername()[1] == int(os.environ["MASTER_PORT"])
        else:
            closes = "eventpoll" not in kind and "eventfd" not in kind
        if closes:
            os.close(number)
"""


@pytest.mark.long
def test_an_exit_at_once_is_one_where_nothing_can_be_said(tmp_path):
    text = LISTENS[: LISTENS.index("import ctypes")] + CLOSES + "os._exit(0)\n"
    (tmp_path / "train.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_rank_with_children_is_ended_with_them():
    text = HELD.format(handler="import subprocess; child = subprocess.Popen(['sleep', '9'])", seconds=20, last="")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.returncode) == ("", -signal.SIGTERM), done.stderr
