"""Every rule gives what the whole batch gives: values and gradients, over random shapes and uneven rows."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from check import CASES, check

NAMES = list(CASES)
GROUPS = [NAMES[start::8] for start in range(8)]


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_rules_agree_with_the_whole_batch(ranks, group, nproc):
    outcome = ranks.call(check, nproc, GROUPS[group], 1, timeout=200).ok()
    complaints = [f"rank {rank}: {text}" for rank, found in enumerate(outcome.results) for text in found]
    assert not complaints, "\n".join(complaints)
