"""Every rule gives what the whole batch gives: values and gradients, over random shapes and uneven rows."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from check import CASES, check
from conftest import THOROUGH

NAMES = list(CASES)
GROUPS = [NAMES[start::8] for start in range(8)]


RUNS = [(group, nproc) for group in range(len(GROUPS)) for nproc in ([2, 3] if THOROUGH else [2 + group % 2])]


@pytest.mark.thorough
@pytest.mark.parametrize(("group", "nproc"), RUNS)
def test_rules_agree_with_the_whole_batch(ranks, group, nproc):
    outcome = ranks.call(check, nproc, GROUPS[group], 1).ok()
    complaints = [f"rank {rank}: {text}" for rank, found in enumerate(outcome.results) for text in found]
    assert not complaints, "\n".join(complaints)
