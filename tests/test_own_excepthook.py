"""A script that shows errors by a hook of its own: it is called once, where one process or the failing rank calls it."""

import pytest
from test_failed_end import run

pytestmark = pytest.mark.slow

SCRIPT = """
LINE
import sys, time, traceback
import torch

previous = sys.excepthook

def hook(kind, error, where):
    print("shown by the script's hook:", file=sys.stderr)
    if WRITES:
        with open("crash.txt", "a") as stream:
            stream.write(f"{kind.__name__}: {error}")
    previous(kind, error, where)

sys.excepthook = hook
model = torch.nn.Linear(2, 1)
for step in range(100):
    model(torch.ones(4, 2)).sum().backward()
    if step == 2 and (FAILS):
        raise ValueError("a bad value")
    torch.save(step, "step.pt")
"""


@pytest.mark.some("True")
@pytest.mark.parametrize("writes", [False, True])
def test_an_error_of_all_is_shown_once_by_the_scripts_hook(tmp_path, writes):
    script = SCRIPT.replace("FAILS", "True").replace("WRITES", str(writes))
    for name, nproc in (("alone", 1), ("ranks", 2)):
        done = run(tmp_path / name, script, nproc)
        assert done.returncode == 1
        assert done.stderr.count("shown by the script's hook:") == 1, done.stderr
        assert done.stderr.count("ValueError: a bad value") == 1, done.stderr
        if writes:
            assert (tmp_path / name / "crash.txt").read_text() == "ValueError: a bad value"


@pytest.mark.some("False")
@pytest.mark.parametrize("writes", [False, True])
def test_an_error_of_one_rank_is_shown_by_the_scripts_hook(tmp_path, writes):
    script = SCRIPT.replace("FAILS", "ddp_patch.rank() == 1").replace("WRITES", str(writes))
    done = run(tmp_path / "ranks", script, 2)
    assert done.returncode != 0
    assert done.stderr.count("[rank 1] shown by the script's hook:") == 1, done.stderr
    assert done.stderr.count("[rank 1] ValueError: a bad value") == 1, done.stderr
    if not writes:  # to which rank 0 does not come
        assert done.stderr.count("shown by the script's hook:") == 1, done.stderr
        assert "rank 1 of 2 raised this ValueError; the job ends." in done.stderr


@pytest.mark.long
def test_a_hook_that_fails_hides_no_error(tmp_path):
    script = SCRIPT.replace("FAILS", "True").replace("WRITES", "1 / 0")
    done = run(tmp_path / "ranks", script, 2)
    assert done.returncode == 1
    assert done.stderr.count("ZeroDivisionError") == 1, done.stderr
    assert done.stderr.count("ValueError: a bad value") == 1, done.stderr
