"""Layouts say which rows a rank holds, against the rows themselves."""

import itertools
import random

import pytest
import torch

from ddp_patch.batch.layout import Layout
from ddp_patch.batch.rules.reshaped_rows import follow


def some(r, size):
    """A layout of batches that were joined, or of one, and which rows each rank holds, one after the other."""
    pieces = [Layout.evenly(r.randint(1, 7), 0, size) for _ in range(r.choice([1, 1, 2, 3, 5]))]
    if r.random() < 0.3:
        pieces = [Layout.evenly(r.randint(size, 7), 0, size)] * r.randint(2, 4)
    held, first = [[] for _ in range(size)], 0
    for piece in pieces:
        for rank in range(size):
            start, count = piece.span(rank)
            held[rank] += range(first + start, first + start + count)
        first += piece.total
    return Layout.joined(pieces, 0), held


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_those_that_each_rank_joined(seed):
    r = random.Random(seed)
    size = r.choice([2, 3, 4])
    layout, held = some(r, size)
    for shape, dim in (((layout.total, 2), 0), ((3, layout.total), 1), ((2, layout.total, 2), 1)):
        whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
        if r.random() < 0.5:
            whole = whole.transpose(0, -1).contiguous().transpose(0, -1)
        back = torch.full_like(whole, -1)
        for rank in range(size):
            rows = layout.rows(rank)
            own = rows.of(whole, dim)
            assert torch.equal(own, whole.index_select(dim, torch.tensor(held[rank], dtype=torch.long)))
            if own.numel() > 1 and 1 not in own.shape:
                assert (own.stride(0) > own.stride(-1)) == (whole.stride(0) > whole.stride(-1))
            assert rows.count == layout.counts[rank] == len(held[rank])
            rows.put(own, back, dim)
            before = [sum(row < edge for row in held[rank]) for edge in range(layout.total + 1)]
            assert [rows.before(edge) for edge in range(layout.total + 1)] == before
        assert torch.equal(back, whole)


@pytest.mark.parametrize("seed", range(60))
def test_a_part_is_given_where_it_was_joined(seed):
    r = random.Random(seed)
    size = r.choice([2, 3])
    layout, held = some(r, size)
    for start in range(layout.total):
        for stop in range(start + 1, layout.total + 1):
            found = layout.part(start, stop, 1)
            own = [row for row in held[1] if start <= row < stop]
            if found is None:
                continue
            part, first = found
            assert part.total == stop - start
            assert held[1][first : first + part.counts[1]] == own
            moved = torch.arange(part.total)
            assert part.rows(1).of(moved, 0).tolist() == [row - start for row in own]
    edges = [0, *torch.tensor([sum(piece) for piece in layout.pieces]).cumsum(0).tolist()]
    every = [layout.part(a, b, 0) for a, b in itertools.pairwise(edges)]
    assert [found is not None for found in every] == [min(piece) > 0 for piece in layout.pieces]


@pytest.mark.parametrize("seed", range(120))
def test_a_reshape_is_followed_where_rows_stay_with_their_ranks(seed):
    r = random.Random(seed)
    size = r.choice([2, 3])
    layout, _ = some(r, size)
    shape = [r.randint(1, 3) for _ in range(r.randint(0, 2))]
    dim = len(shape)
    shape += [layout.total, *(r.randint(1, 3) for _ in range(r.randint(0, 2)))]
    layout = layout.at(dim)
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    factors = [f for f in range(1, whole.numel() + 1) if whole.numel() % f == 0]
    for _ in range(30):
        first = r.choice(factors)
        second = r.choice([f for f in factors if (whole.numel() // first) % f == 0])
        new = [first, second, whole.numel() // first // second][: r.choice([2, 3])]
        if len(new) == 2:
            new = [first, whole.numel() // first]
        found = follow(shape, layout, new)
        if found is None:
            continue
        for rank in range(size):
            own = layout.rows(rank).of(whole, dim)
            wanted = found.rows(rank).of(whole.view(new), found.dim)
            local = [*new]
            local[found.dim] = found.counts[rank]
            assert torch.equal(own.reshape(local), wanted), (shape, layout, new, found)


def test_time_and_batch_flattened_are_followed_there_and_back():
    layout = Layout.evenly(7, 1, 3)
    flat = follow([5, 7, 4], layout, [35, 4])
    assert flat is not None
    assert flat.counts == (15, 10, 10)
    assert follow([35, 4], flat, [5, 7, 4]) == layout
    assert follow([35, 4], flat, [7, 5, 4]) is None
    assert Layout.evenly(35, 0, 3).unrepeated(5, 1) is None
