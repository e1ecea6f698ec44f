"""A rank that became another program would run it beside the others'; its children may become what they like."""

import pytest

CHILD = """
import os, sys
import torch

model = torch.nn.Linear(2, 1)
model(torch.ones(4, 2)).sum().backward()
pid = os.fork()
if pid == 0:
    os.execvp("true", ["true"])
print(os.waitpid(pid, 0)[1])
"""
BECOMES = """
import os, sys
import torch

model = torch.nn.Linear(2, 1)
model(torch.ones(4, 2)).sum().backward()
open("ran.txt", "a").write("ran")
if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    {call}
"""
CALLS = {
    "os.execv(sys.executable, [sys.executable] + sys.argv)": "Move the line above ddp_patch.enable()",
    "os.execvpe(sys.executable, [sys.executable, *sys.argv], os.environ)": "Move the line above ddp_patch.enable()",
    "os.execlp('true', 'true')": "Write subprocess.run",
}


def test_a_forked_child_may_become_another_program(ranks, tmp_path):
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    assert ranks.script(script, 2).ok().stdout == ["0\n", ""]


@pytest.mark.parametrize("call", CALLS)
def test_a_rank_does_not_become_another_program(ranks, tmp_path, call):
    script = tmp_path / "becomes.py"
    script.write_text(BECOMES.format(call=call))
    outcome = ranks.script(script, 2)
    assert outcome.codes == [1, 1]
    said = "".join(outcome.stderr)
    assert said.count("OrderError: becomes.py:10: os.exec* would turn rank ") == 1, said  # whichever comes first
    assert CALLS[call] in said
    assert (outcome.cwd / "ran.txt").read_text() == "ran"
