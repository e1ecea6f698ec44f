"""Every run ends: cleanly if the script does, soon and with one traceback if it does not."""

import time
from pathlib import Path

import pytest
from conftest import THOROUGH

TINY = Path(__file__).parent / "parity" / "scripts" / "tiny.py"


@pytest.mark.thorough
def test_every_run_at_three_ranks_ends_without_an_abort(ranks):
    for _ in range(50 if THOROUGH else 10):
        outcome = ranks.script(TINY, 3).ok()
        assert outcome.stderr == ["", "", ""]


def test_exit_code_of_the_script_is_kept(ranks):
    outcome = ranks.script(TINY, 2, "fail")
    assert outcome.codes == [3, 3]
    assert outcome.stdout[0].endswith("fail\n")


RAISING = """
import sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def explode(where):
    if {condition}:
        raise ZeroDivisionError("over " + where)
for (x,) in DataLoader(TensorDataset(torch.randn(40, 4)), 5):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    explode("there")
    optimizer.step()
    print(loss.item())
"""


@pytest.mark.parametrize("condition", ["True", "dist.get_rank() == 1", "dist.get_rank() == 0"])
def test_a_raise_is_shown_once_and_ends_the_job_soon(ranks, tmp_path, condition):
    script = tmp_path / "raising.py"
    script.write_text(RAISING.format(condition=condition))
    start = time.monotonic()
    outcome = ranks.script(script, 3)
    assert time.monotonic() - start < 15
    assert not outcome.late
    assert all(outcome.codes)
    said = "".join(outcome.stderr)
    assert said.count("ZeroDivisionError: over there") == 1, said
    assert said.count("Traceback (most recent call last)") == 1, said
    assert " of 3 raised this ZeroDivisionError; the job ends." in said
    if condition != "True":
        rank = int(condition[-1])
        assert f"rank {rank} of 3 raised" in outcome.stderr[rank]


def test_a_model_that_fails_on_one_rank_only_ends_the_job(ranks, tmp_path):
    script = tmp_path / "model_fails.py"
    script.write_text(
        RAISING.format(condition="False").replace(
            "model = torch.nn.Linear(4, 1)",
            "class Net(torch.nn.Linear):\n"
            "    def forward(self, x):\n"
            "        if torch.is_grad_enabled() and dist.get_rank() == 2:\n"
            "            raise KeyError('row')\n"
            "        return super().forward(x)\n"
            "model = Net(4, 1)",
        )
    )
    outcome = ranks.script(script, 3)
    assert not outcome.late
    assert all(outcome.codes)
    assert "".join(outcome.stderr).count("KeyError: 'row'") == 1
