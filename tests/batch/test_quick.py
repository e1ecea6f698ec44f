"""Functions that are computed with fewer questions than their rules ask give what these give."""

import sys

import pytest
import torch
import torch.nn.functional as F

import ddp_patch
from ddp_patch.batch.forms import to_local
from ddp_patch.batch.rules.table import ALONG_DIMENSIONS, ELEMENTWISE
from ddp_patch.batch.tensor import QUICK, RULES, BatchTensor, by_rule
from ddp_patch.structure import leaves

PARTS = 24


def batches():
    torch.manual_seed(0)
    wholes = [
        torch.rand(7, 5).add(0.1),
        torch.rand(7, 1).add(0.1),
        torch.randint(1, 4, (7, 5)),
        torch.rand(7, 5) > 0.5,
        torch.rand(7),
        torch.rand(3, 7, 5).requires_grad_(),
    ]
    dealt = [ddp_patch.shard_batch(whole, dim=whole.dim() == 3) for whole in wholes]
    return [BatchTensor.from_local(to_local(batch).clone(), batch._layout) for batch in dealt]


def calls():
    one, column, numbers, truths, line, later = batches()
    weight, scale = torch.rand(5), torch.tensor(2.0)
    first = one, numbers, truths, line, later
    for a in first:
        yield (a,), {}
        for b in (a, column, 2, 0.5, weight, scale, later, torch.rand(7, 1)):
            yield (a, b), {}
            yield (b, a), {}
        for c in ((0.1, 0.9), (0, 2), (a, a), (a, 0.5), (weight, weight)):
            yield (a, *c), {}
        for dim in (0, 1, -1, 2):
            yield (a, dim), {}
            yield (a,), {"dim": dim}
            yield (a, dim), {"keepdim": True}
            yield (a, 2, dim), {}
            yield (a,), {"p": 1, "dim": dim}
    yield (truths, one, one), {}
    yield (truths, one, 0.0), {}
    yield (one,), {"min": 0.3}
    yield (one, one), {"alpha": 2}
    yield (one, one), {"rounding_mode": "floor"}
    for dim in (0, 1):
        yield (one,), {"axis": dim}
        yield (one, 1), {"axis": dim}
        yield (one,), {"axis": dim, "keepdims": True}
    yield (one, 0.1, 1), {}
    yield (one,), {"inplace": 1}
    yield (one,), {"inplace": True}
    yield (one,), {"inplace": False}


def outcome(function, *given):
    try:
        result = function(*given)
    except Exception as error:
        return type(error).__name__
    return [
        (path, type(leaf), leaf._layout, leaf.dtype, leaf.requires_grad, leaf._rows.tolist())
        if isinstance(leaf, BatchTensor)
        else (path, repr(leaf))
        for path, leaf in leaves(result)
    ]


def compared(part):
    ddp_patch.enable()
    model = torch.nn.Linear(2, 2)  # batches are dealt only where something is trained
    torch.optim.SGD(model.parameters(), lr=0.1)
    wrong, count = [], 0
    for func, quick in [*QUICK.items()][part::PARTS]:
        for args, kwargs in calls():
            found = outcome(quick, func, args, kwargs)
            if found == [("", "None")]:
                continue
            wanted = outcome(by_rule, RULES[func], func, args, kwargs)
            count += 1
            if repr(found) != repr(wanted):  # NaN is not itself
                wrong.append((str(func), repr(args), repr(kwargs), repr(found), repr(wanted)))
    return wrong, count, len(QUICK)


@pytest.mark.quick("17")
@pytest.mark.parametrize("part", range(PARTS))
def test_quick_ways_give_what_rules_give(ranks, part):
    for wrong, count, functions in ranks.call(compared, 2, part).ok().results:
        assert wrong == []
        assert count > 10 * functions / PARTS
        assert functions > 100


def python_calls():
    ddp_patch.enable()
    model = torch.nn.Linear(2, 2)
    torch.optim.SGD(model.parameters(), lr=0.1)
    one = batches()[0]
    found = {}
    for name, function in {
        "product": lambda: one * one,
        "with a number": lambda: 1 - one,
        "exponential": lambda: one.exp(),
        "sum of columns": lambda: one.sum(1),
        "largest": lambda: one.max(1),
        "softmax": lambda: F.softmax(one, 1),
        "choice": lambda: torch.where(one > 0.5, one, 0.0),
    }.items():
        function()
        found[name] = count_of_calls(function)
    return found


def count_of_calls(function):
    names = []
    sys.setprofile(lambda frame, event, arg: event == "call" and names.append(frame.f_code.co_name))
    function()
    sys.setprofile(None)
    return len(names)


MOST = {
    "product": 11,
    "with a number": 15,
    "exponential": 10,
    "sum of columns": 14,
    "largest": 19,
    "softmax": 20,
    "choice": 24,
}


@pytest.mark.parametrize("name", MOST)
def test_a_function_of_elements_asks_little(ranks, name):
    for found in ranks.call(python_calls, 2).ok().results:
        assert found[name] <= MOST[name], found


def test_every_function_of_elements_has_a_quick_way():
    along = {name for _, _, names in ALONG_DIMENSIONS for name in names}
    functions = [getattr(torch.Tensor, name, None) for name in (*ELEMENTWISE, *along)]
    assert all(function in QUICK for function in functions if callable(function))
