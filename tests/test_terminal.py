"""The terminal of N ranks is that of one process."""

import os
import subprocess
import sys

import pytest
from conftest import PATIENCE

TALKATIVE = """
import io, logging, sys, warnings
import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm
from rich.console import Console
from rich.progress import Progress, TextColumn

logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
(rows,) = next(iter(DataLoader(TensorDataset(torch.arange(14.0).view(7, 2)), 7)))
print("sum", rows.sum(), end="!\\n")
print("to stderr", rows.mean().item(), file=sys.stderr)
sys.stdout.write(f"{rows[:2]}\\n")
logging.info("root %s", rows.sum())
logging.getLogger("named").warning("%.2f", rows.std())
warnings.warn(f"careful: {rows.max()}")
form = "{desc}{n_fmt}/{total_fmt}{postfix}"
bar = tqdm(range(3), bar_format=form, mininterval=0)
for i in bar:
    bar.set_postfix(loss=rows[i].sum())
    bar.set_description(f"{rows[i].mean():.1f}")
tqdm.write("through tqdm")
for i in tqdm(range(3), disable=None):  # decided by isatty()
    pass
for i in range(3):
    sys.stdout.write(f"\\r{rows[i, 0].item()}")
    sys.stdout.flush()
print()
Console(width=60).print("[bold]rich[/bold]", rows.sum().item())
with Progress(TextColumn("{task.description} {task.completed} {task.fields[loss]}"), console=Console(width=60)) as progress:
    task = progress.add_task("train", total=3, loss=0)
    for i in range(3):
        progress.update(task, advance=1, loss=rows[i].sum().item())
print(sys.stdout.isatty(), sys.stderr.isatty(), sys.stdout.encoding, sys.stdout.name, sys.stderr.name)
sys.stdin = io.StringIO("an answer\\nanother\\n")
print(input("question? "), input())
try:
    input()
except EOFError as error:
    print("no more", error)
handler = logging.StreamHandler()
logging.getLogger("late").addHandler(handler)
logging.getLogger("late").error("with %d handlers", 2)
sys.stdout.writelines(["a\\n", "b\\n"])
"""


@pytest.mark.quick("3")
@pytest.mark.parametrize("nproc", [pytest.param(2, marks=pytest.mark.slow), 3])  # its batches live until the very end
def test_the_terminal_is_that_of_one_process(ranks, tmp_path, nproc):
    script = tmp_path / "talkative.py"
    script.write_text(TALKATIVE)
    alone = ranks.script(script, 1).ok()
    outcome = ranks.script(script, nproc).ok()
    assert outcome.stdout[0] == alone.stdout[0]
    assert outcome.stderr[0] == alone.stderr[0]
    assert outcome.stdout[1:] == [""] * (nproc - 1)
    assert outcome.stderr[1:] == [""] * (nproc - 1)
    assert "sum tensor(91.)!" in alone.stdout[0]
    assert "2/3, loss=tensor(9.)" in alone.stderr[0]


def failing_threads():
    import threading

    import ddp_patch

    def fail():
        if ddp_patch.rank() == 1:
            raise KeyError("in a thread")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


def test_what_a_failing_rank_says_is_heard_with_its_rank(ranks):
    outcome = ranks.call(failing_threads, 2).ok()
    assert outcome.stderr[0] == ""
    lines = outcome.stderr[1].splitlines()
    assert lines
    assert all(line.startswith("[rank 1] ") for line in lines)
    assert lines[-1] == "[rank 1] KeyError: 'in a thread'"


class Tee:
    """As in many a logger of old: no more than is needed."""

    def __init__(self, *streams):
        self.streams = streams

    def write(self, text):
        for stream in self.streams:
            stream.write(text)

    def flush(self):
        for stream in self.streams:
            stream.flush()


class Sink:
    """Takes what is written, and cannot even be flushed."""

    def __init__(self):
        self.said = []

    def write(self, text):
        self.said.append(text)


def streams_of_the_script():
    """In place before a session, and put there in one."""
    import codecs
    import io
    import sys

    import ddp_patch

    ddp_patch.disable()
    before, errors = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Tee(before), Sink()
    sink = sys.stderr
    ddp_patch.enable()
    print("by a tee")
    print("to a sink", file=sys.stderr)
    with ddp_patch.per_rank():
        print("of", ddp_patch.rank())
    print("again")
    ddp_patch.disable()
    kept = [type(sys.stdout).__name__, sys.stderr is sink]
    sys.stdout, sys.stderr = before, errors
    for wrap in (codecs.getwriter("utf-8"), io.TextIOWrapper):
        ddp_patch.enable()
        sys.stdout = wrap(sys.stdout.detach())
        print("wrapped")
        with ddp_patch.per_rank():
            print("each")
        print("wrapped again")
        sys.stdout.flush()
        ddp_patch.disable()
        sys.stdout.flush()
        sys.stdout = before = open(1, "w", closefd=False)
    ddp_patch.enable()
    return kept, ("to a sink" in sink.said) == (ddp_patch.rank() == 0)


@pytest.mark.slow
def test_streams_that_the_script_put_in_place_need_only_write(ranks):
    outcome = ranks.call(streams_of_the_script, 2).ok()
    assert outcome.results == [[["Tee", True], True]] * 2
    wrapped = ["wrapped", "each", "wrapped again"]
    assert outcome.stdout[0].splitlines() == ["by a tee", "of 0", "again", *wrapped, *wrapped]
    assert outcome.stdout[1].splitlines() == ["of 1"]


def imported_above():
    """Loguru takes ``sys.stderr`` at its import."""
    import sys

    import ddp_patch

    ddp_patch.disable()
    from loguru import logger

    kept = sys.stderr
    assert any(handler._sink._stream is kept for handler in logger._core.handlers.values())
    ddp_patch.enable()
    logger.add(sys.stderr, format="second {message}")
    logger.info("by all")
    with ddp_patch.per_rank():
        logger.info("of {}", ddp_patch.rank())
    logger.info("by all again")
    ddp_patch.disable()
    is_back = all(handler._sink._stream is kept for handler in logger._core.handlers.values())
    ddp_patch.enable()
    return is_back


def test_what_loguru_says_is_said_once(ranks):
    pytest.importorskip("loguru")
    outcome = ranks.call(imported_above, 2).ok()
    assert outcome.results == [True, True]
    said = [[line.partition(" - ")[2] or line for line in text.splitlines()] for text in outcome.stderr]
    assert said[0] == ["by all", "second by all", "of 0", "second of 0", "by all again", "second by all again"]
    assert said[1] == ["of 1", "second of 1"]


PIECES = """
import ddp_patch; ddp_patch.enable()
import sys
with ddp_patch.per_rank():
    for stream in (sys.stdout, sys.stderr):
        for _ in range(100):
            print(*[ddp_patch.rank()] * 50, file=stream)
print("once")
print(sys.stdout.write_through, sys.stderr.write_through)

class Own:
    write_through = True

    def write(self, text):
        return len(text)

kept, sys.stdout = sys.stdout, Own()
with ddp_patch.per_rank():
    print("nowhere")
sys.stdout = kept
kept.flush()
kept.close()
with ddp_patch.per_rank():
    print("closed", ddp_patch.rank(), file=sys.stderr)
"""


@pytest.mark.slow
def test_lines_of_ranks_that_share_a_stream_do_not_mix(tmp_path):
    """Torchrun's ranks are ``python -u``, whose ``print`` writes each argument by itself."""
    (tmp_path / "script.py").write_text(PIECES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DDP_PATCH_QUIET": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE, check=True)
    lines = [" ".join([rank] * 50) for rank in "01" for _ in range(100)]
    assert sorted(done.stdout.splitlines()) == sorted([*lines, "once", "True True"])
    assert [line for line in sorted(done.stderr.splitlines()) if line in [*lines, "closed 0", "closed 1"]] == [
        *lines,
        "closed 0",
        "closed 1",
    ]
