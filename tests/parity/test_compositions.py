"""Forwards composed of random operations: what they teach is what they teach in one process."""

import pytest
from parity.compositions import learned, programs

PARTS, EACH = 8, 40
PATIENCE = 300


@pytest.mark.slow
@pytest.mark.some("model-0", "model-1", "script-2")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("where", ["model", "script"])
def test_a_composed_forward_teaches_what_it_teaches_in_one_process(ranks, where, part):
    sources, is_of_script = programs(1000 * part, EACH), where == "script"
    (wanted,) = ranks.call(learned, 1, sources, is_of_script, timeout=PATIENCE).ok().results
    for found in ranks.call(learned, 2 + part % 2, sources, is_of_script, timeout=PATIENCE).ok().results:
        wrong = [source for seed, source in sources.items() if not alike(found[str(seed)], wanted[str(seed)])]
        assert wrong == []


def alike(found, wanted):
    """Compare two lists of numbers, lists and texts, up to rounding, which training makes larger."""
    if not isinstance(wanted, list):
        return found == wanted or found == pytest.approx(wanted, rel=1e-6, abs=1e-9, nan_ok=True)
    return len(found) == len(wanted) and all(map(alike, found, wanted))
