"""The terminal of N ranks is that of one process."""

import pytest

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


@pytest.mark.parametrize("nproc", [2, 3])
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
