"""Bytes that autograd keeps for a backward: counted by hand, and what must not be hurt by counting."""

import gc

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from ddp_patch.measure.saved_tensors import SavedTensors, _SavedTensor

ROWS, WIDTH = 16, 64


@pytest.fixture(autouse=True)
def single_precision():
    """Other tests of this process may have left another default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


def stack(blocks=2):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(blocks)])


def batch():
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def counted(model, step):
    kept = SavedTensors()
    kept.begin([torch.optim.SGD(model.parameters(), lr=0.1)])
    try:
        step()
    finally:
        found = kept.end()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    return found


ONE = ROWS * WIDTH * 4  # bytes of one activation


def test_hooks_of_the_scripts_own_are_left_in_place():
    model, packed = stack(), []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.detach()

    kept = SavedTensors()
    with saved_tensors_hooks(pack, lambda held: held):
        kept.begin([])
        model(batch()).sum().backward()
        assert kept.end() is None
    assert packed
    pop = torch._C._autograd._pop_saved_tensors_default_hooks
    kept.begin([])  # theirs are on ours when the step is over
    theirs = saved_tensors_hooks(pack, lambda held: held)
    theirs.__enter__()
    assert kept.end() is None
    theirs.__exit__()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert pop is torch._C._autograd._pop_saved_tensors_default_hooks
    assert counted(model, lambda: model(batch()).sum().backward()) == 3 * ONE


def test_functions_that_refuse_hooks_work():
    found = counted(stack(), lambda: torch.func.grad(lambda w: (w**2).sum())(torch.ones(3)))
    assert found is None


def test_a_stack_keeps_its_input_and_what_each_relu_gives():
    model, x = stack(3), batch()
    assert counted(model, lambda: model(x).sum().backward()) == 4 * ONE
    with torch.no_grad():
        assert counted(model, lambda: model(x)) == 0


def test_weights_and_buffers_and_views_of_them_are_left_out():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH))
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    table = nn.Parameter(torch.randn(WIDTH, WIDTH))
    optimizer = torch.optim.SGD([*model.parameters(), table], lr=0.1)
    x, kept = batch(), SavedTensors()
    kept.begin([optimizer])
    (frozen(model(x)) @ table[:, 1:].t().contiguous().t()).sum().backward()
    # x, the first layer's and the frozen one's output, a copy of the table but for one column, and 64 means and scales.
    assert kept.end() == 3 * ONE + WIDTH * (WIDTH - 1) * 4 + 2 * WIDTH * 4


def test_backwards_one_after_another_keep_as_much_as_one():
    model, x = stack(), batch()

    def accumulated():
        for _ in range(3):
            model(x).sum().backward()

    assert counted(model, accumulated) == 3 * ONE
    assert counted(model, lambda: (model(x) + model(x + 1)).sum().backward()) == 6 * ONE


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_what_is_computed_again_is_not_kept(is_reentrant):
    model = stack(4)
    x = batch().requires_grad_()

    def step():
        out = x
        for block in model:
            out = checkpoint(block, out, use_reentrant=is_reentrant)
        out.sum().backward()

    # The input of each block; the reentrant kind keeps what ReLU gives as well, while it goes through its block.
    assert counted(model, step) == (4 + is_reentrant) * ONE


def test_what_is_kept_elsewhere_is_not_counted():
    model, x = stack(), batch()

    def step():
        with save_on_cpu():
            model(x).sum().backward()

    assert counted(model, step) == 0


def test_compiled_models_keep_what_plain_ones_do_and_are_not_compiled_again():
    model, x, compiled = stack(), batch(), []

    def backend(graph, inputs):
        compiled.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    fast = torch.compile(model, backend=backend)
    fast(x).sum().backward()
    assert counted(model, lambda: fast(x).sum().backward()) == 3 * ONE
    assert len(compiled) == 1


def test_gradients_are_the_same_and_nothing_is_held_afterwards():
    model, x = stack(), batch()

    def gradients(step):
        model.zero_grad()
        step()
        return [p.grad.clone() for p in model.parameters()]

    def step():
        model(x).pow(2).sum().backward()

    def twice():
        (first,) = torch.autograd.grad(model(x).pow(3).sum(), [model[0][0].weight], create_graph=True)
        first.pow(2).sum().backward()

    for each in (step, twice):
        wanted = gradients(each)
        assert all(map(torch.equal, gradients(lambda each=each: counted(model, each)), wanted))
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, _SavedTensor)]
