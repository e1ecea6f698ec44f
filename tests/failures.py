"""Kinds of failures of one rank: what happens to it, where in a training script, and what the job must say."""

from __future__ import annotations

from dataclasses import dataclass

SCRIPT = '''
import ddp_patch
ddp_patch.enable(nproc=3)
import collections, ctypes, os, random, resource, signal, sys, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RANK, STEP = {rank}, {step}
steps = 0

def now():
    """Whether it is to happen here; notes when it did."""
    if ddp_patch.rank() != RANK or steps != STEP:
        return False
    with ddp_patch.per_rank():
        if os.path.exists("failed"):
            return False
        with open("failed", "w") as file:
            file.write(str(time.time()))
    return True

def listening():
    """The sockets of this rank, and of who started it, that wait for connections: their inodes."""
    listed = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{{name}}")]
    waiting = {{fields[9] for fields in listed if fields[3] == "0A"}}
    held = set()
    for pid in (os.getpid(), os.getppid()):
        for number in os.listdir(f"/proc/{{pid}}/fd"):
            try:
                held.add(os.readlink(f"/proc/{{pid}}/fd/{{number}}").removeprefix("socket:[").rstrip("]"))
            except OSError:
                continue
    return waiting & held

class Rows(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        row = torch.full((4,), float(index))
        {row}
        return row, row.sum(0, keepdim=True)

def collate(rows):
    {collate}
    return torch.utils.data.default_collate(rows)

class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(context, gradient):
        {function}
        return 2 * context.saved_tensors[0] * gradient

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    def forward(self, x):
        {forward}
        return Square.apply(self.layers(x))

class Slow:
    """Kills the process that pickles it."""
    def __reduce__(self):
        {pickled}
        return (collections.OrderedDict, ())

def save(path):
    {saved}
    torch.save({{"step": steps, "data": torch.full((20_000,), steps), "other": Slow()}}, path)

torch.manual_seed(0)
model = nn.DataParallel(Net())
optimizer = torch.optim.Adam(model.parameters(), 0.01)
loader = DataLoader(Rows(), 7, shuffle=True, collate_fn={collate_fn}, num_workers={workers})
with ddp_patch.per_rank(), open(f"listens.{{ddp_patch.rank()}}", "w") as file:
    file.write(" ".join(listening()))
{before}
for epoch in range(12):
    for x, y in loader:
        {loop}
        loss = (model(x) - y).square().mean()
        {hooked}
        optimizer.zero_grad()
        loss.backward()
        {stepped}
        optimizer.step()
        steps += 1
        if steps % 3 == 0:
            save("last.pt")
    with torch.no_grad():
        {evaluated}
        print(epoch, loss.item(), flush=True)
print("finished")
'''

SITES = (
    *("row", "collate", "function", "forward", "pickled", "saved"),
    *("before", "loop", "hooked", "stepped", "evaluated"),
)


_STEP = ("for x, y in loader", "loss = (model(x)", "return Square.apply", "loss.backward()")
# Where ranks meet after a site of the script, within a step: what a line of it begins with. A rank that is slower may be
# at the loader when it hears of one that was killed in its forward.
MEETINGS = {
    "forward": _STEP,
    "loop": (*_STEP, "with torch.no_grad", "print(epoch"),  # of an interrupt: the next line of all ranks
    "stepped": (*_STEP, "optimizer.step()", "save(", "torch.save("),
    "pickled": ("torch.save(", "save("),
    "before": (*_STEP, "optimizer.step()", "save(", "torch.save(", "print(epoch"),
}


@dataclass(frozen=True)
class Kind:
    """One way to fail.

    Attributes:
        name: says what happens, after "a rank".
        site: where it does, in the script.
        text: what is written there; ``now()`` says whether it happens.
        says: one of these is in what the job says.
        code: that the job ends with; None for any but 0.
        leaves_word: the job names the line where it happened. Else nothing is left of it but what the others see: one
            of the next lines at which ranks meet is named.
        names_rank: the job names the rank.
        at: the step, a multiple of this.
        workers: of the loader.
        rank: that it happens to; None for any.
    """

    name: str
    site: str
    text: str
    says: tuple[str, ...] = ()
    code: int | None = None
    leaves_word: bool = True
    names_rank: bool = True
    at: int = 1
    workers: int = 0
    rank: int | None = None

    def script(self, rank: int, step: int) -> str:
        """Write the script in which it happens."""
        texts = dict.fromkeys(SITES, "pass")
        texts[self.site] = f"{self.text}  # here"
        collate = "collate" if self.site == "collate" else None
        return SCRIPT.format(rank=rank, step=step, workers=self.workers, collate_fn=collate, **texts)


GONE = ("is gone", "was ended by", "connection to another rank was lost")
_SEGFAULT = "if now(): ctypes.string_at(0)"
_RAISE = 'if now(): raise ValueError("a bad value")'
_BAD = ("ValueError: a bad value",)


def _at_exit(what: str) -> str:
    return f"import atexit; atexit.register(lambda: {what})"


KINDS = (
    Kind("raises in forward", "forward", _RAISE, _BAD),
    Kind("is killed in forward", "forward", "if now(): os.kill(os.getpid(), signal.SIGKILL)", GONE, None, False),
    Kind("raises in a function's backward", "function", _RAISE, _BAD),
    Kind(
        "raises in a hook", "hooked", "loss.register_hook(lambda g: 1 / 0 if now() else None)", ("ZeroDivisionError",)
    ),
    Kind("raises before the step", "stepped", _RAISE, _BAD),
    Kind("raises in the dataset", "row", _RAISE, _BAD),
    Kind("raises in collate", "collate", _RAISE, _BAD, rank=0),  # which reads for all where the script collates
    Kind(
        "raises in a worker",
        "row",
        'if index == 11 and torch.utils.data.get_worker_info(): raise ValueError("a bad value")',
        _BAD,
        workers=1,
        names_rank=False,
    ),
    Kind(
        "loses a worker",
        "loop",
        "if now(): loader._iterator._workers[0].kill() if loader._iterator else os.kill(os.getpid(), 9)",
        ("is killed by signal", "exited unexpectedly", *GONE),
        None,
        False,
        False,
        workers=1,
    ),
    Kind(
        "raises in a thread",
        "loop",
        "t = threading.Thread(target=lambda: 1 / 0 if now() else None); t.start(); t.join()",
        ("ZeroDivisionError",),
        0,
        names_rank=False,
    ),
    Kind(
        "raises at exit",
        "before",
        _at_exit("1 / 0 if ddp_patch.rank() == RANK else None"),
        ("ZeroDivisionError",),
        0,
        names_rank=False,
    ),
    Kind("calls sys.exit", "loop", "if now(): sys.exit(3)", ("sys.exit(3)",)),
    Kind("calls os._exit", "loop", "if now(): os._exit(4)", GONE),
    Kind("ends with code 0 by os._exit", "stepped", "if now(): os._exit(0)", GONE),
    Kind("is killed between two steps", "loop", "if now(): os.kill(os.getpid(), signal.SIGKILL)", GONE, None, False),
    Kind("is stopped", "stepped", "if now(): os.kill(os.getpid(), signal.SIGSTOP)", ("is stopped",), None, False),
    Kind("crashes in C", "forward", _SEGFAULT, GONE),
    Kind("aborts", "loop", "if now(): os.abort()", GONE),
    Kind("has no memory left", "forward", "if now(): raise MemoryError('a bad size')", ("MemoryError",)),
    Kind(
        "asks for more memory than there is",
        "forward",
        "if now(): resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33)); torch.empty(2**40)",
        ("DefaultCPUAllocator", "MemoryError"),
    ),
    Kind("leaves the loop", "loop", "if now(): break", ("came to",), None, False),
    Kind("leaves out a step", "loop", "if now(): continue", ("came to",), None, False),
    Kind("looks at a batch alone", "loop", "if now(): print(x.mean().item())", ("came to",)),
    Kind("saves alone", "stepped", "if now(): torch.save(1, 'one.pt')", ("came to",)),
    Kind(
        "has no room on its disk",
        "saved",
        'if now(): torch.save(torch.ones(9), open("/dev/full", "wb"))',
        ("No space left", "came to"),
        at=3,
        rank=0,
        names_rank=False,
    ),
    Kind(
        "is interrupted",
        "loop",
        "if now(): os.kill(os.getpid(), signal.SIGINT)",
        ("KeyboardInterrupt",),
        130,
        False,
        False,
    ),
    Kind("is asked to end", "loop", "if now(): os.kill(os.getpid(), signal.SIGTERM)", GONE, None, False),
    Kind("loses its launcher", "loop", "if now(): os.kill(os.getppid(), signal.SIGKILL)", (), None, False, False),
    Kind("is killed as it saves", "pickled", "if now(): os.kill(os.getpid(), signal.SIGKILL)", GONE, None, False, at=3),
    Kind(
        "is killed by a thread",
        "before",
        "threading.Timer(0.8, lambda: os.kill(os.getpid(), signal.SIGKILL) if ddp_patch.rank() == RANK else None).start()",
        GONE,
        None,
        False,
    ),
    Kind("raises while it evaluates", "evaluated", _RAISE, _BAD, at=4),
)
