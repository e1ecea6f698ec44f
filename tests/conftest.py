"""Fixtures: ranks as real processes, forked warm."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PATIENCE = int(
    os.environ.get("PATIENCE", "240")
)  # seconds, far more than any case takes: what is not done by then hangs
os.environ.setdefault("DDP_PATCH_QUIET", "1")  # tests compare standard errors; test_first_contact.py sees to the line
# torch looks up the name of each peer's address; an answer that is lost costs five seconds (glibc's default).
os.environ.setdefault("RES_OPTIONS", "timeout:1")
# Output is buffered, as it is by default; and without a buffer, `print` writes a line's end by itself, so that lines of
# two ranks may run into each other.
os.environ.pop("PYTHONUNBUFFERED", None)
LAUNCHERS = ("DDP_PATCH_", "ACCELERATE_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "CUDA_VISIBLE")
PART = os.environ.get("PART")  # as 0/6: the first of six parts of the tests
THOROUGH = bool(os.environ.get("THOROUGH"))  # tests marked so try more


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark as long, or slow, those variants of a test that ``some``, or ``quick``, does not name; keep a part of all."""
    for item in items:
        for chosen, others in (("some", "long"), ("quick", "slow")):
            mark = item.get_closest_marker(chosen)
            if mark is not None and not any(part in item.callspec.id for part in mark.args):
                item.add_marker(others)
    if PART:
        part, parts = map(int, PART.split("/"))
        kept = [item for item in items if zlib.crc32(together(item).encode()) % parts == part % parts]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def together(item):
    """Name what stays together in a part: a test, or those of a file that look at one job."""
    return str(item.path.name) if "job" in item.fixturenames else item.nodeid


@dataclass
class Outcome:
    """What the ranks of one case left behind."""

    codes: list
    stdout: list
    stderr: list
    results: list
    late: bool
    ended: list  # ranks that went on after another one had failed, until they were ended from here
    cwd: Path

    def ok(self):
        """Fail with every rank's stderr unless all ranks ended well."""
        assert not self.late, "the ranks hung and were killed\n" + self.said()
        assert not any(self.codes), f"exit codes {self.codes}\n" + self.said()
        return self

    def said(self):
        return "\n".join(f"--- rank {rank}, {self._ending(rank)}\n{text}" for rank, text in enumerate(self.stderr))

    def _ending(self, rank):
        code = self.codes[rank]
        how = f"code {code}" if code >= 0 else signal.Signals(-code).name
        return f"{how} from the tests, as it did not end by itself" if rank in self.ended else how

    def files(self):
        return sorted(str(path.relative_to(self.cwd)) for path in self.cwd.rglob("*") if path.is_file())


class Ranks:
    """Runs scripts and functions on N warm ranks."""

    def __init__(self, zygote, tmp_path_factory):
        self._zygote = zygote
        self._tmp = tmp_path_factory

    def script(self, path, nproc, *args, **request):
        """Run a script alone (nproc=1) or under ddp_patch, down to the end of the interpreter."""
        return self._run({"script": str(path), "nproc": nproc, "args": list(args), "finalizes": True, **request})

    def call(self, function, nproc, *args, **request):
        """Run a test module's function on every rank inside ``ddp_patch.enable()``; its result must be JSON."""
        name = f"{function.__module__}:{function.__name__}"
        folder = str(Path(sys.modules[function.__module__].__file__).parent)
        return self._run({"function": name, "nproc": nproc, "args": list(args), "path": [folder], **request})

    def _run(self, request):
        cwd = Path(request.setdefault("cwd", str(self._tmp.mktemp("run"))))
        logs = self._tmp.mktemp("logs")
        request["logs"] = str(logs)
        request.setdefault("timeout", PATIENCE)
        self._zygote.stdin.write(json.dumps(request) + "\n")
        self._zygote.stdin.flush()
        answer = json.loads(self._zygote.stdout.readline())

        def read(name):
            paths = [logs / f"{name}.{rank}" for rank in range(request["nproc"])]
            return [path.read_text() if path.exists() else "" for path in paths]

        results = [json.loads(text) if text else None for text in read("result")]
        return Outcome(answer["codes"], read("stdout"), read("stderr"), results, answer["late"], answer["ended"], cwd)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """Fail a test that leaves variables, a folder, a type, threads or processes to the ones behind it."""
    before = around()
    yield
    left = around()
    gone = time.monotonic() + 5  # a process that was ended may take a moment
    while left["processes"] - before["processes"] and time.monotonic() < gone:
        gc.collect()  # a loader's workers go with its iterator, which an error's traceback may hold
        time.sleep(0.01)
        left = around()
    for name, value in before.pop("variables").items():
        assert left["variables"].get(name) == value, f"{name} is another one"
    for kind, was in before.items():
        if isinstance(was, set):
            assert not left[kind] - was, f"{kind} are left: {left[kind] - was}"
        else:
            assert was is None or left[kind] == was, f"{kind} is another one"


def around():
    """What tests of one process share."""
    torch = sys.modules.get("torch")
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {
        "variables": variables,
        "launchers' variables": {name for name in variables if name.startswith(LAUNCHERS)},  # libraries add others
        "folder": os.getcwd(),
        "default type": torch and torch.get_default_dtype(),
        "gradient mode": torch and torch.is_grad_enabled(),
        "threads": {thread.name for thread in threading.enumerate() if not thread.daemon},
        "processes": children(),
    }


def children():
    """Processes that this one started and that run; not those that have ended, nor multiprocessing's own servers."""
    found, started = set(), []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            started.append((task / "children").read_text())
    for some in started:
        for child in some.split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                has_ended = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
                if not has_ended and "from multiprocessing." not in Path(f"/proc/{child}/cmdline").read_text():
                    found.add(child)
    return found


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": str(TESTS)}
    for name in list(env):
        if name.startswith(("DDP_PATCH_", "ACCELERATE_")):
            del env[name]
    env["DDP_PATCH_QUIET"] = "1"
    zygote = subprocess.Popen(
        [sys.executable, str(TESTS / "zygote.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert zygote.stdout.readline() == "ready\n"
    yield Ranks(zygote, tmp_path_factory)
    zygote.stdin.close()
    zygote.wait(timeout=PATIENCE)
