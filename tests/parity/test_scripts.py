"""Plain legacy scripts print, save and learn on N ranks what they do alone."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import THOROUGH

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")


@cache
def _noted():
    return {}


def alone(ranks, script):
    if script not in _noted():
        _noted()[script] = ranks.script(script, 1).ok()
    return _noted()[script]


def compare_text(ours, theirs, precision=1e-9):
    ours, theirs = ours.splitlines(), theirs.splitlines()
    assert len(ours) == len(theirs), f"{len(ours)} lines instead of {len(theirs)}"
    for mine, wanted in zip(ours, theirs, strict=True):
        assert NUMBER.sub("#", mine) == NUMBER.sub("#", wanted)
        for a, b in zip(NUMBER.findall(mine), NUMBER.findall(wanted), strict=True):
            assert float(a) == pytest.approx(float(b), rel=precision, abs=1e-9), f"{mine!r} instead of {wanted!r}"


def compare_values(ours, theirs, where=""):
    if isinstance(theirs, torch.nn.Module):
        ours, theirs = ours.state_dict(), theirs.state_dict()
    assert type(ours) is type(theirs), where
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=where)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key, value in theirs.items():
            compare_values(ours[key], value, f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            compare_values(*pair, f"{where}[{index}]")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-9), where
    else:
        assert ours == theirs, where


def compare_files(ours, theirs):
    assert ours.files() == theirs.files()
    for name in theirs.files():
        # Whole modules name classes of the script's __main__, which this process lacks: the script compares them.
        if name.endswith(".pt") and name != "model.pt":
            compare_values(torch.load(ours.cwd / name), torch.load(theirs.cwd / name), name)


RUNS = [(script, nproc) for i, script in enumerate(SCRIPTS) for nproc in ([2, 3, 4] if THOROUGH else [2 + i % 3])]


@pytest.mark.quick("tiny")
@pytest.mark.thorough
@pytest.mark.parametrize(("script", "nproc"), RUNS, ids=lambda part: getattr(part, "stem", str(part)))
def test_script_prints_and_saves_what_one_process_does(ranks, script, nproc):
    wanted = alone(ranks, script)
    outcome = ranks.script(script, nproc).ok()
    compare_text(outcome.stdout[0], wanted.stdout[0])
    assert all(text == "" for text in outcome.stdout[1:])
    compare_files(outcome, wanted)
