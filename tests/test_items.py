"""Which lists of a call have an entry for each row, and how many rows a batch has that is made of lists."""

import pytest
import torch
from torch import ones

from ddp_patch.calling.items import row_count_of_lists
from ddp_patch.loading import batches

PICTURES, TARGETS = [ones(3, 8, 8 + i) for i in range(4)], [{"boxes": ones(i, 4)} for i in range(4)]

NONE = {  # arguments of a call, rows of the batch, whether there are batches beside
    "tensors": ([ones(4, 3), ones(4)], 4, False),
    "two inputs for a batch of two": ([ones(2, 3), ones(2)], 2, False),
    "inputs in a list": ([[ones(8, 3), ones(8, 5)]], 8, False),
    "states beside a batch of two": ([ones(2, 5), (ones(1, 2, 6), ones(1, 2, 6))], 2, True),
    "states of layers, without a loader": ([ones(8, 5), [(ones(6), ones(6)), (ones(6), ones(6))]], None, False),
    "dicts beside a tensor, without a loader": ([ones(8, 5), TARGETS], None, False),
    "numbers": ([ones(4, 3), [1, 2, 3, 4], "four"], 4, False),
    "nothing": ([], 4, False),
}
ROWS = {
    "pictures and targets": ([PICTURES, TARGETS], 4, False),
    "pictures": ([tuple(PICTURES)], 4, False),
    "pictures with as many channels": ([[ones(3, 8, 8)] * 3], 3, False),
    "targets beside a batch": ([ones(4, 3, 8, 8), TARGETS], 4, True),
    "in a dict": ([{"pictures": PICTURES, "targets": TARGETS}], 4, False),
    "samples": ([list(zip(PICTURES, TARGETS, strict=True))], 4, False),
    "fewer than were drawn": ([PICTURES[1:], TARGETS[1:]], 8, False),
    "without a loader": ([PICTURES, TARGETS], None, False),
}
COUNTS = {"pictures with as many channels": 3, "fewer than were drawn": 3}


@pytest.mark.parametrize("name", NONE)
def test_lists_that_are_of_no_rows(name):
    values, rows, beside = NONE[name]
    assert row_count_of_lists(values, rows, beside) is None


@pytest.mark.parametrize("name", ROWS)
def test_lists_of_rows(name):
    values, rows, beside = ROWS[name]
    assert row_count_of_lists(values, rows, beside) == COUNTS.get(name, 4)


COUNTED = {  # a batch, the samples that were drawn, and its rows
    "tensors": ((ones(4, 3), ones(4)), 4, 4),
    "two tensors of two samples": ((ones(2, 3), ones(2)), 2, 2),
    "two tensors of many rows of two samples": ((ones(7, 3), ones(7)), 2, 7),
    "tensors that do not agree": ((ones(4, 3), ones(5)), 8, None),
    "nothing is known of the samples": ((tuple(PICTURES), tuple(TARGETS)), None, None),
    "lists": ((tuple(PICTURES), tuple(TARGETS)), 4, 4),
    "as many boxes as channels": ((tuple(PICTURES), ({"boxes": ones(3, 4)},) * 4), 4, 4),
    "samples": (list(zip(PICTURES, TARGETS, strict=True)), 4, 4),
    "beside a tensor": ((torch.ones(4, 3), TARGETS), 4, 4),
    "numbers": ([1, 2, 3, 4], 4, None),
}


@pytest.mark.parametrize("name", COUNTED)
def test_rows_of_a_batch(name):
    data, drawn, rows = COUNTED[name]
    assert batches.batch_size_of(data, drawn) == rows
