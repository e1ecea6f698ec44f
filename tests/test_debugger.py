"""A debugger is one debugger: on N ranks the terminal shows what it shows of one process."""

import difflib
import functools
import os
import re
import signal
import sys
import termios

import pexpect
import pytest

pytestmark = pytest.mark.slow

PATIENCE = 90  # seconds until a prompt; processes start within a few
PROMPT = r"\(+Pdb\)+ |\(com\) |Clear all breaks\? |>>> |ipdb> |\.\.\. "

# The commands of pdb are in the lists below, with what they need around them.
TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import ddp_patch
ddp_patch.enable()
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        nn.init.ones_(self.inner.weight)

    def forward(self, x):
        scale = 2.0
        h = self.inner(x)
        return h * scale


def step(net, opt, x):
    loss = net(x).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.25)
loader = DataLoader(TensorDataset(torch.arange(32.0, dtype=torch.float64).view(16, 2)), 4)
seen = []
for (batch,) in loader:
    STOP
    loss = step(net, opt, batch)
    seen.append(loss.item())
    print("loss", seen[-1])
print("done")
"""
STOPPING = TRAIN.replace("STOP", "breakpoint()")
RUNNING = TRAIN.replace("    STOP\n", "")
IN_FORWARD = RUNNING.replace("scale = 2.0", "scale = 2.0; breakpoint()")

LOOKING = """
h
help where
w
p batch.shape
p batch[0]
p batch.sum(), batch.mean().item()
pp {"batch": batch[:2]}
whatis step
l
l 30, 33
l .
ll
source step
a
!k = batch.max().item()
k + 1
p k ;; p seen
p 1/0
p unknown
display seen
display
batch[0, 1].item()

alias total p %1.sum().item()
alias
total batch
unalias total
total batch
interact
batch.sum().item()
for i in range(2):
    print(i, batch[i].sum().item())

^D
n
p loss.item()
n
undisplay seen
n
c
q
"""
WALKING = """
b step
b 17, x is not None
tbreak 26
b
c
a
u
p batch[1]
d
c
w
p h if "h" in dir() else scale
u
u
d
n
n
r
retval
rv
n
n
c
p loss.item()
unt
cl 1
disable 2
b
c
enable 2
ignore 2 1
b
c
condition 2
commands 2
silent
p x.shape
end
c
n
s
cl
y
unt 35
j 36
w
debug step(net, opt, batch)
s
a
c
q
"""
# Before enable(), at which the process is replaced by the ranks, and after.
UNDER_PDB = """
n
b 36
b 17
cl 1
n
alias total p %1.sum().item()
commands 2
total x
end
display 6 * 7
n
n

n
c
w
p x.shape
u
ll
c
cl 2
b
c
w
restart again
p __import__("sys").argv
c
q
"""
OTHERWISE = """
import code, pdb
import torch
from torch.utils.data import DataLoader, TensorDataset
import ddp_patch
ddp_patch.enable()


def fail(batch):
    total = batch.sum().item()
    raise ValueError(f"total {total}")


(batch,) = next(iter(DataLoader(TensorDataset(torch.arange(8.0).view(4, 2)), 4)))
try:
    fail(batch)
except ValueError as error:
    pdb.post_mortem(error.__traceback__)
code.interact(local={"batch": batch}, banner="look", exitmsg="seen")
pdb.run("print(batch.mean().item())", globals())
pdb.runcall(fail, batch)
"""
OTHERWISE_TYPED = """
w
p total
u
p batch[3]
q
batch.max()
^C
batch.min().item()
^D
s
c
n
p batch.mean().item()
^C
n
s
^D
"""
INTO_FORWARD = """
s
s
s
s
w
a
n
n
p h.sum().item()
p self.inner.weight
r
u
p x.sum().item()
u
p batch.sum().item()
c
q
"""


class Terminal:
    """A person at a pseudo-terminal, who types a line at each prompt and reads until the next."""

    def __init__(self, command, folder, nproc, **variables):
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb", "HOME": str(folder), **variables}
        environ.pop("DDP_PATCH_NPROC", None)
        if nproc > 1:
            environ["DDP_PATCH_NPROC"] = str(nproc)
        self._said = []
        self._child = pexpect.spawn(
            sys.executable,
            command,
            env=environ,
            cwd=str(folder),
            timeout=PATIENCE,
            encoding="utf-8",
            dimensions=(50, 160),
            preexec_fn=_hears_interrupts,
        )
        # At an interrupt, a terminal forgets what was not read yet (tty_ioctl): also the prompt that answers it.
        modes = termios.tcgetattr(self._child.child_fd)
        modes[3] |= termios.NOFLSH
        termios.tcsetattr(self._child.child_fd, termios.TCSANOW, modes)

    def type(self, lines, prompt=PROMPT):
        for line in lines:
            self._read(prompt)
            if line.startswith("^"):
                self._child.sendcontrol(line[1].lower())
            else:
                self._child.sendline(line)

    def end(self):
        """What was said, and the exit code."""
        self._read(pexpect.EOF)
        self._child.close()
        return normal("".join(self._said)), self._child.exitstatus

    def _read(self, until):
        try:
            self._child.expect(until)
        except (pexpect.TIMEOUT, pexpect.EOF):
            self._child.close(force=True)
            pytest.fail(f"no prompt, and no end, after:\n{''.join(self._said)}{self._child.before}", pytrace=False)
        self._said.append(self._child.before + (self._child.after if isinstance(self._child.after, str) else ""))


def _hears_interrupts():
    """What a shell starts in the background ignores SIGINT, and so does all that it starts (POSIX, "Asynchronous Lists")."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def normal(text):
    """Leave out what is another in every process: addresses, and the names of gradient functions."""
    text = re.sub(r"grad_fn=<\w+>", "grad_fn", text.replace("\r\n", "\n"))
    text = re.sub(r"\.\.\.\w*Backward\d?>", "...", text)  # pdb shortens what is returned
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def talk(folder, script, lines, nproc, before=(), **variables):
    """Type lines at a script; ``before`` stands before its name."""
    (folder / "train.py").write_text(script)
    terminal = Terminal([*before, "train.py"], folder, nproc, **variables)
    terminal.type(lines.strip("\n").split("\n") if isinstance(lines, str) else lines)
    return terminal.end()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process says, and the folder in which it said so."""

    @functools.cache
    def run(script, lines, before=(), variables=()):
        folder = tmp_path_factory.mktemp("alone")
        return folder, talk(folder, script, lines, 1, before, **dict(variables))

    return run


def same(alone, nproc, script, lines, before=(), **variables):
    folder, expected = alone(script, lines, before, tuple(variables.items()))
    said, code = talk(folder, script, lines, nproc, before, **variables)
    difference = "\n".join(difflib.unified_diff(expected[0].split("\n"), said.split("\n"), lineterm=""))
    assert not difference, difference
    assert code == expected[1]
    return said, code


@pytest.mark.some("walking")
@pytest.mark.parametrize(("lines", "nproc"), [(LOOKING, 2), (WALKING, 3)], ids=["looking", "walking"])
def test_a_breakpoint_says_what_it_says_on_one_process(alone, lines, nproc):
    said, code = same(alone, nproc, STOPPING, lines)
    assert code == 1
    assert said.rstrip().endswith("bdb.BdbQuit")
    assert "ddp_patch:" not in said


@pytest.mark.long
@pytest.mark.parametrize("nproc", [3])
def test_a_debugger_steps_into_a_forward_as_on_one_process(alone, nproc):
    same(alone, nproc, STOPPING, INTO_FORWARD)


@pytest.mark.long
@pytest.mark.parametrize("nproc", [2])
def test_a_breakpoint_in_a_forward_stops_once_for_every_call(alone, nproc):
    lines = ["p x.shape", "p x.sum().item()", "w", "n", "n", "c", "p x[0]", "c", "c", "c"]
    assert same(alone, nproc, IN_FORWARD, tuple(lines))[1] == 0
    said, code = same(alone, nproc, IN_FORWARD, ("p x.sum().item()", "q"))
    assert code == 1
    assert "dataset" not in said


@pytest.mark.long
@pytest.mark.parametrize("nproc", [2])
def test_a_script_under_pdb_goes_on_where_it_becomes_ranks(alone, nproc):
    said, code = same(alone, nproc, RUNNING, UNDER_PDB, ("-m", "pdb"))
    assert code == 0
    assert re.search(r"Restarting \S*train.py with arguments:", said)


@pytest.mark.long
def test_pdb_runs_a_script_under_ddp_patch(alone, tmp_path):
    untouched = RUNNING.replace("import ddp_patch\nddp_patch.enable()\n", "pass\npass\n")
    lines = ("b 17", "c", "w", "p x.sum().item()", "cl 1", "c", "q")
    folder, expected = alone(untouched, lines, ("-m", "pdb"))
    assert talk(folder, untouched, lines, 2, ("-m", "ddp_patch", "-m", "pdb")) == expected
    launched = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "ddp_patch", "-m", "pdb")
    said, code = talk(folder, untouched, lines, 1, launched)
    assert said.endswith(expected[0])  # after what torchrun says itself
    assert code == expected[1]


@pytest.mark.some("2")
@pytest.mark.parametrize("nproc", [2])
def test_debuggers_that_a_script_calls_itself_are_one(alone, nproc):
    said, code = same(alone, nproc, OTHERWISE, OTHERWISE_TYPED)
    assert code == 0
    assert "KeyboardInterrupt" in said


@pytest.mark.long
def test_a_breakpoint_that_is_switched_off_does_not_stop(alone):
    assert same(alone, 2, STOPPING, (), PYTHONBREAKPOINT="0")[1] == 0


@pytest.mark.long
@pytest.mark.parametrize("program", ["IPython.core.debugger.set_trace", "code.interact"])
def test_a_breakpoint_may_be_another_debugger(alone, program):
    lines = ("p batch.shape", "n", "p loss.item()", "q") if "IPython" in program else ("1 + 1", "^D") * 4
    said, _ = same(alone, 2, STOPPING, lines, PYTHONBREAKPOINT=program)
    assert "Traceback" not in said or "BdbQuit" in said


EMBEDDED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import ddp_patch
ddp_patch.enable()
import IPython

(batch,) = next(iter(DataLoader(TensorDataset(torch.arange(8.0).view(4, 2)), 4)))
k = 1
IPython.embed(colors="nocolor", enable_tip=False)
print("k", k, batch.mean().item())
"""


@pytest.mark.long
def test_ipythons_embed_is_one_shell(tmp_path):
    lines = (
        *("batch.shape", "batch[1]", "k = 5", "batch.sum().item() + k", "%timeit -r 2 batch.sum()"),
        *("!echo once >> told.txt", "_exit_code", "1/0", "exit"),
    )
    (tmp_path / "train.py").write_text(EMBEDDED)
    # Where a terminal cannot tell its cursor, prompt_toolkit asks for nothing and draws no less.
    quiet = {"IPYTHONDIR": str(tmp_path / "ipython"), "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
    shown = []
    for nproc in (1, 2):
        terminal = Terminal(["train.py"], tmp_path, nproc, **quiet)
        for number, line in enumerate(lines, 1):
            terminal.type([line], prompt=rf"In \[{number}\]:")
        said, code = terminal.end()
        assert code == 0
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|\r", "", said)
        # A line that is typed is drawn again for every key.
        shown.append(
            [text for text in plain.split("\n") if text.strip() and "In [" not in text and "per loop" not in text]
        )
    assert shown[0] == shown[1]
    assert "Out[4]: 33.0" in shown[0]
    assert (tmp_path / "told.txt").read_text() == "once\n" * 2


def answered_late():
    import os
    import threading

    reads, writes = os.pipe()
    os.dup2(reads, 0)
    late = threading.Timer(12, os.write, (writes, b"at last\n"))
    late.start()
    answer = input()
    late.cancel()
    return answer


def test_ranks_wait_for_a_person_longer_than_for_a_collective(ranks):
    outcome = ranks.call(answered_late, 2, enable={"timeout": 8})
    assert outcome.ok().results == ["at last"] * 2


IN_DATASET = """
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 3:
            breakpoint()
        return torch.tensor([float(index)])


for batch in DataLoader(Rows(), 4):
    print(batch.sum())
"""


def test_a_breakpoint_in_a_dataset_says_where_it_can_stop(ranks, tmp_path):
    (tmp_path / "rows.py").write_text(IN_DATASET)
    outcome = ranks.script(tmp_path / "rows.py", 2)
    assert not outcome.late
    assert all(outcome.codes)
    assert "ddp_patch.enable(nproc=1)" in outcome.said()
    assert "Leave such rows out" not in outcome.said()


ABOVE = """
import torch
x = 3
breakpoint()
import ddp_patch
ddp_patch.enable()
t = torch.arange(4.0)
STOP
print("end", t.sum().item())
"""


@pytest.mark.long
def test_a_breakpoint_above_enable_stops_once(alone):
    same(alone, 2, ABOVE.replace("STOP", "pass"), ("p x", "n", "n", "n", "p t", "n", "p t.sum()", "c"))
    same(alone, 2, ABOVE.replace("STOP", "breakpoint()"), ("p x", "c", "p t.sum()", "q"))
