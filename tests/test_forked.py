"""A child that the script forks ends as it likes, and the job goes on as if there were none."""

import pytest

from ddp_patch.job.forked import children_may_hang

SCRIPT = """
import atexit, os, sys, tempfile, threading
import torch

model = torch.nn.Linear(2, 1)
log = open("log.txt", "w")

def step():
    model(torch.ones(4, 2)).sum().backward()
    torch.save(model.weight.grad, "grad.pt")

step()
sys.stdout.flush()
for ends in ("sys.exit(5)", "raise ValueError('of the child')", "pass", "ddp_patch.disable()"):
    pid = os.fork()
    if pid == 0:
        atexit.register(print, "the child's exit function")
        print("child", flush=True)
        open("child.txt", "w").write("child")
        if "disable" not in ends or "ddp_patch" in globals():
            exec(ends)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
step()
log.write("parent")
print(model.weight.grad.tolist())
"""


@pytest.fixture(scope="module")
def outcomes(ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    found = []
    for nproc in (1, 2):
        path = folder / f"{nproc}.py"
        path.write_text(("" if nproc == 1 else "import ddp_patch\n") + SCRIPT)
        found.append(ranks.script(path, nproc).ok())
    return found


@pytest.mark.slow
def test_children_end_as_in_one_process(outcomes):
    alone, spread = outcomes
    assert spread.stdout == [alone.stdout[0], ""]
    assert [line for line in alone.stdout[0].splitlines() if line.isdigit()] == ["5", "1", "0", "0"]
    assert "".join(spread.stderr).count("ValueError: of the child") == 1
    assert "the job ends" not in "".join(spread.stderr)


@pytest.mark.slow
def test_the_parent_goes_on_with_its_files(outcomes):
    alone, spread = outcomes
    assert spread.files() == alone.files()
    assert (spread.cwd / "log.txt").read_text() == "parent"


def test_forks_wait_for_threads_where_a_child_of_python_may_hang():
    hang = [(3, 10, 14), (3, 11, 7), (3, 11, 9)]
    mended = [(3, 10, 15), (3, 11, 10), (3, 12, 0), (3, 14, 1)]
    assert [children_may_hang(version) for version in hang + mended] == [True] * 3 + [False] * 4
