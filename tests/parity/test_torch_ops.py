"""Torch's functions on batches, and its modules in training, as torch's own tests call them."""

import pytest
from parity.torch_modules import numbers_of, numbers_of_functions
from parity.torch_ops import differences

OPS, MODULES = 8, 6  # parts
PATIENCE = 300


@pytest.mark.slow
@pytest.mark.some("1", "6")
@pytest.mark.parametrize("part", range(OPS))
def test_functions_give_what_they_give_of_plain_tensors(ranks, part):
    for found, count in ranks.call(differences, 2 + part % 2, part, OPS, timeout=PATIENCE).ok().results:
        assert found == []
        assert count > 500


@pytest.mark.slow
@pytest.mark.some("2", "3")
@pytest.mark.parametrize("part", range(MODULES))
def test_modules_learn_what_they_learn_in_one_process(ranks, part):
    compare(ranks, numbers_of, part, MODULES)


@pytest.mark.long
@pytest.mark.parametrize("part", range(MODULES))
def test_functions_in_a_forward_teach_what_they_teach_in_one_process(ranks, part):
    compare(ranks, numbers_of_functions, part, MODULES)


def compare(ranks, numbers, part, parts):
    """Compare what is learned on ranks with what one process learns."""
    (wanted,) = ranks.call(numbers, 1, part, parts, timeout=PATIENCE).ok().results
    assert len(wanted) > 100
    for found in ranks.call(numbers, 2 + part % 2, part, parts, timeout=PATIENCE).ok().results:
        wrong = [
            (name, said, told)
            for (name, said), (_, told) in zip(found, wanted, strict=True)
            if said != told and said != pytest.approx(told, rel=1e-7, nan_ok=True)
        ]
        assert wrong == []
