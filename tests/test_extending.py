"""Functions and objects that a script's author knows, and ddp_patch does not."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch
from ddp_patch.testing import RuleError, check_rule

sys.path.insert(0, str(Path(__file__).parent / "batch"))
from cases import CASES

torch_library = torch.library.Library("ddp_patch_tests", "DEF")
torch_library.define("twist(Tensor x, Tensor w) -> Tensor")


@torch.library.impl(torch_library, "twist", "CompositeImplicitAutograd")
def _twist(x, w):
    return torch.sin(x) @ w


class Clamped(torch.autograd.Function):
    """A backward that tells how large its gradient is."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.02, 0.02) * 2


@ddp_patch.register_rowwise
def by_rows(x, w, shift=0.0):
    """Sorts within each row: nothing that ddp_patch knows."""
    return torch.linalg.vander(x[:, 0], N=3) @ w + shift


@ddp_patch.register_rowwise(dims={"x": 1, "y": 0}, out_dims=(1, 0, None))
def time_first(x, y):
    return x * 2 + y[:, 0], y.flip(1), torch.ones(2)


@ddp_patch.register_reduction(kind="mean", dims={"z": 0, "y": 0})
def own_loss(z, y):
    return (torch.special.entr(z.softmax(1)).sum(1) + (z[:, 0] - y).abs()).mean()


@ddp_patch.register_reduction(kind="sum", dims={0: 0})
def histogram(x, edges):
    return (x[:, :1, None] > edges).double().sum((0, 1))


@ddp_patch.register_rowwise
def spread(x, axis=1, keepdims=False):
    return x.std(axis, keepdim=keepdims)


@ddp_patch.register_rowwise
def gated(mask, input):
    return mask * torch.special.entr(input.abs())


@ddp_patch.register_reduction(kind="mean")
def magnitude(z):
    return z.abs().mean()


@ddp_patch.register_reduction(kind="sum")
def column_sums(z):
    return z.float().sum(0).to(z.dtype)


clamped = ddp_patch.register_rowwise(Clamped.apply)
LOSSES = {"own": own_loss, "of torch": lambda z, y: F.mse_loss(z[:, 0], y)}


class Net(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.w = nn.Parameter(torch.ones(3, 3))
        self.inside = inside

    def forward(self, x, y):
        z = clamped(by_rows(self.linear(x), self.w, shift=0.5))
        return LOSSES[self.inside](z, y) if self.inside else z


def trained(inside, loss):
    """What a script that uses them computes."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    ddp_patch.disable()
    ddp_patch.enable()
    ddp_patch.register_rowwise(torch.ops.ddp_patch_tests.twist)
    model = Net(inside)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    outside = nn.Parameter(torch.ones(3, 2))
    for x, y in DataLoader(TensorDataset(torch.randn(22, 4), torch.randn(22)), 8):
        value = model(x, y) if inside else LOSSES[loss](model(x, y), y)
        twisted = torch.ops.ddp_patch_tests.twist(x[:, :3], outside)
        value = value + by_rows(x, outside @ outside.t(), value.detach()).mean()  # a loss nobody has looked at yet
        value = value + twisted.pow(2).mean() + by_rows(x, outside @ outside.t()).mean()
        optimizer.zero_grad()
        outside.grad = None
        value.backward()
        optimizer.step()
        first, second, third = time_first(x.t(), x)
        found += [value.item(), outside.grad.tolist(), first.tolist(), second.tolist(), third.tolist()]
        found += [
            histogram(x, torch.linspace(-1, 1, 4)).tolist(),
            str(value),
            str(by_rows(x, outside))[-40:],
            str(own_loss(x[:, :3] @ outside @ torch.ones(2, 3), y)),
        ]
    found += [p.tolist() for p in model.parameters()]
    gathers = [str(place) for place, seen in ddp_patch.report().ledger.gathers.items() if seen.collectives > 0]
    return found, gathers


@pytest.mark.slow
@pytest.mark.parametrize(("inside", "loss"), [("", "own"), ("", "of torch"), ("own", ""), ("of torch", "")])
def test_registered_functions_are_those_of_the_whole_batch(ranks, inside, loss):
    ((wanted, _),) = ranks.call(trained, 1, inside, loss).ok().results
    for nproc in (2, 3):
        for found, gathers in ranks.call(trained, nproc, inside, loss).ok().results:
            assert _close(found, wanted)
            assert not [place for place in gathers if "tolist" not in place and "__repr__" not in place]


class Weighted(torch.autograd.Function):
    """Of numpy, with a weight that is trained."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.from_numpy(x.detach().numpy() * w.detach().numpy())

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


@ddp_patch.register_rowwise(dims={"x": 0})
def weighted(x, w):
    return Weighted.apply(x, w)


class Weighs(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.w, self.scale = nn.Linear(4, 3), nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(()))

    def forward(self, x):
        z = self.linear(x)
        return weighted(z, self.w) + weighted(z, self.w * self.scale)


def weighed():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    ddp_patch.disable()
    ddp_patch.enable()
    model = Weighs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(2):
        for (x,) in DataLoader(TensorDataset(torch.randn(22, 4)), 8):
            loss = model(x).tanh().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found + [p.tolist() for p in model.parameters()], dict(ddp_patch.report().ledger.on_batches)


def test_an_autograd_function_inside_a_registered_one_is_given_what_is_trained(ranks):
    ((wanted, _),) = ranks.call(weighed, 1).ok().results
    for nproc in (2, 3):
        for found, on_batches in ranks.call(weighed, nproc).ok().results:
            assert _close(found, wanted)
            assert on_batches == {}


def _close(one, other):
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_close, one, other))
    if isinstance(one, str):
        return one == other
    return one == pytest.approx(other, rel=1e-9, abs=1e-9)


def named_and_in_half_precision():
    (x,) = next(iter(DataLoader(TensorDataset(torch.arange(24.0).view(6, 4).sin()), 6)))
    large = (x.abs() + 1).half() * 2**15
    return [
        *(spread(x, axis=1).tolist(), spread(x, keepdims=True).shape, gated(mask=x > 0, input=x).tolist()),
        *(gated(input=x, mask=x > 0).tolist(), str(magnitude(z=large).dtype), magnitude(large).item()),
        column_sums(large / 8).tolist(),
    ]


@pytest.mark.slow
def test_arguments_keep_their_names_and_half_precision_adds_up_in_float(ranks):
    (wanted,) = ranks.call(named_and_in_half_precision, 1).ok().results
    for nproc in (2, 3):
        for found in ranks.call(named_and_in_half_precision, nproc).ok().results:
            assert found[:5] == wanted[:5]
            assert found[5:] == [pytest.approx(part, rel=1e-3) for part in wanted[5:]]


def mistaken():
    """Registrations that are not true, where that is seen."""
    ddp_patch.disable()
    ddp_patch.enable()
    (x,) = next(iter(DataLoader(TensorDataset(torch.randn(6, 4)), 6)))
    said = []
    for function in (
        ddp_patch.register_rowwise(lambda rows: rows.sum(0)),
        ddp_patch.register_reduction(lambda rows: 3.0, kind="sum"),
    ):
        try:
            function(x)
        except ddp_patch.BatchError as error:
            said.append(str(error))
    for function, *others in ((ddp_patch.register_rowwise(with_weight), weight), (by_rows_of(weight),)):
        try:
            said.append(function(x, *others).sum().item())
        except ddp_patch.BatchError as error:
            said.append(str(error))
    return said


NO_TENSORS = {
    "a list": (lambda x: x.sum(1).tolist(), 0),
    "an array": (lambda x: x.detach().numpy(), 0),
    "a number": (lambda x: {"rows": x * 2, "count": len(x)}, 0),
    "tensors in a list": (lambda x: (x, [x]), 0),
    "a word that is the same": (lambda x: (x * 2, "doubled", None), (0, None, 0)),
}


def without_tensors():
    """Give what functions on rows say that give more than tensors."""
    ddp_patch.disable()
    ddp_patch.enable()
    (x,) = next(iter(DataLoader(TensorDataset(torch.randn(6, 4)), 6)))
    said = {}
    for kind, (function, out_dims) in NO_TENSORS.items():
        try:
            said[kind] = str(ddp_patch.register_rowwise(function, out_dims=out_dims)(x)[1:])
        except ddp_patch.BatchError as error:
            said[kind] = str(error)
    return said


@pytest.mark.parametrize("kind", NO_TENSORS)
def test_rows_that_are_no_tensors_are_told(kind):
    function, out_dims = NO_TENSORS[kind]
    if kind.endswith("same"):
        check_rule(function, torch.randn(6, 4), kind="rowwise", out_dims=out_dims)
        return
    with pytest.raises(RuleError, match="of which each rank has its rows' alone"):
        check_rule(function, torch.randn(6, 4), kind="rowwise", out_dims=out_dims)


def test_rows_that_are_no_tensors_are_an_error_on_every_rank(ranks):
    for said in ranks.call(without_tensors, 2).ok().results:
        *others, word = said.values()
        assert word == "('doubled', None)"
        assert all("of which each rank has its rows' alone" in text for text in others), said
        assert "gave int as result 1," in said["a number"]


weight = torch.nn.Parameter(torch.ones(3))


def with_weight(x, w):
    return torch.linalg.vander(x[:, 0], N=3) @ w


def by_rows_of(held):
    return ddp_patch.register_rowwise(lambda x: with_weight(x, held))


def test_a_registration_that_cannot_be_true_is_an_error_on_every_rank(ranks):
    for rowwise, reduction, number, closure in ranks.call(mistaken, 2).ok().results:
        assert isinstance(number, float)
        assert "uses a tensor of shape (3,) that needs a gradient and is none of its arguments" in closure
        assert "registered as rowwise, and gave a tensor of shape (4,) for 3 rows" in rowwise
        assert "registered as a reduction, and gave float" in reduction


def one_row_of_three():
    """Fits the rank that has three rows."""
    ddp_patch.disable()
    ddp_patch.enable()
    (x,) = next(iter(DataLoader(TensorDataset(torch.randn(7, 4)), 7)))
    try:
        ddp_patch.register_rowwise(lambda rows: rows[:3] * 1)(x)
    except ddp_patch.DdpPatchError as error:
        return str(error)
    return "nothing"


@pytest.mark.slow
def test_a_registration_that_is_not_true_on_one_rank_ends_them_all(ranks):
    outcome = ranks.call(one_row_of_three, 2)
    assert not outcome.late
    assert "registered as rowwise, and gave a tensor of shape (3, 4) for 4 rows" in "".join(outcome.stderr)


@ddp_patch.register_rowwise
def jittered(x):
    return x + torch.rand_like(x)


def noises():
    torch.manual_seed(0)
    found = []
    for _ in range(2):
        for (x,) in DataLoader(TensorDataset(torch.zeros(5, 2)), 5):
            rows = jittered(x)
            found += [len(set(rows.flatten().tolist())), torch.rand(()).item()]
    return found


def test_a_registered_function_draws_for_each_row_and_leaves_the_scripts_generators_alike(ranks):
    one, two = ranks.call(noises, 2).ok().results
    assert one == two
    assert one[::2] == [10, 10]


# --- check_rule -------------------------------------------------------------------------------------------------------


def test_what_is_true_passes():
    x, y = torch.randn(7, 4, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    check_rule(by_rows, x, torch.ones(3, 3, dtype=torch.float64), shift=0.25)
    check_rule(time_first, x.t().contiguous(), x)
    check_rule(own_loss, x, y)
    check_rule(histogram, x, torch.linspace(-1, 1, 4, dtype=torch.float64))
    check_rule(clamped, x)
    check_rule(lambda rows: rows.double().mean(1), torch.randn(5, 3))


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (lambda x: x - x.mean(0), "rowwise", "is not rowwise: its results on 2 ranks differ"),
        (lambda x: x.flip(0), "rowwise", "is not rowwise: its results on 2 ranks differ"),
        (lambda x: x.sum(0), "rowwise", "gives a result of shape (4,) for 7 rows"),
        (lambda x: x / len(x), "rowwise", "is not rowwise: its results"),
        (lambda x: x + (x - x.detach()).mean(0), "rowwise", "is not rowwise: its gradients on 2 ranks differ"),
        (lambda x: x.mean(), "sum", "is not a sum over rows: its results"),
        (lambda x: x.sum(), "mean", "is not a mean over rows: its results"),
        (lambda x: x.std(), "mean", "is not a mean over rows: its results"),
    ],
)
def test_what_is_not_true_is_told(function, kind, words):
    with pytest.raises(RuleError) as caught:
        check_rule(function, torch.randn(7, 4, dtype=torch.float64), kind=kind)
    assert words in str(caught.value)


def test_a_weight_that_is_no_argument_is_told():
    with pytest.raises(RuleError, match="none of its arguments"):
        check_rule(lambda x: x @ weight.double(), torch.randn(5, 3, dtype=torch.float64))


@pytest.mark.parametrize("other", [{"out_dims": 1}, {"dims": {"x": 1}}, {"dims": {0: 1}}, {"kind": "sum"}])
def test_what_is_checked_is_what_is_registered(other):
    turned = ddp_patch.register_rowwise(dims={"x": 0})(lambda x: x.t() * 2)
    x = torch.randn(7, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="Register it so, or check the function that you registered"):
        check_rule(turned, x, **other)
    check_rule(turned.__wrapped__, x, dims={0: 0}, out_dims=1)
    with pytest.raises(RuleError, match="gives a result of shape"):
        check_rule(turned, x, dims={0: 0})


def test_an_operator_is_checked_as_it_is_registered():
    twist = torch.ops.ddp_patch_tests.twist
    ddp_patch.register_rowwise(twist, dims={"x": 1}, out_dims=1)
    x, w = torch.randn(3, 7, dtype=torch.float64), torch.ones(7, 2, dtype=torch.float64)
    with pytest.raises(RuleError, match=r"^torch.ops.ddp_patch_tests.twist (gives|fails)"):
        check_rule(twist, x, w)
    ddp_patch.register_rowwise(twist)
    check_rule(twist, x, w)


def test_another_argument_with_as_many_rows_is_named():
    x = torch.randn(7, 4, dtype=torch.float64)
    with pytest.raises(RuleError, match=r"fails on . of 7 rows: .* register it with dims=\{'x': 0, 'y': 0\}"):
        check_rule(lambda x, y: x * y, x, x.clone(), dims={"x": 0})


def test_without_dims_every_argument_with_as_many_rows_is_a_batch():
    """As where it is called, each batch is cut."""
    x = torch.randn(7, 4, dtype=torch.float64)
    check_rule(ddp_patch.register_rowwise(lambda a, b: a * b), x, x.clone())
    mixes = ddp_patch.register_rowwise(lambda a, b: (a * b.sum(0)).cumsum(1))
    with pytest.raises(RuleError, match=r"(?s)is not rowwise: .*'b' was taken for a batch.*dims=\{'a': 0\}"):
        check_rule(mixes, x, x.clone())
    check_rule(ddp_patch.register_rowwise(dims={"a": 0})(lambda a, b: (a * b.sum(0)).cumsum(1)), x, x.clone())
    scaled = ddp_patch.register_rowwise(lambda a, scale: a * scale)
    with pytest.raises(RuleError, match=r"(?s)fails on 2 of 4 rows: .*'scale' was taken for a batch.*dims=\{'a': 0\}"):
        check_rule(scaled, x[:4].clone(), torch.ones(4, dtype=torch.float64))
    weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))  # whole where it is called
    check_rule(ddp_patch.register_rowwise(lambda a, weight: a @ weight), x[:4].clone(), weight)


def test_a_function_of_data_is_checked_without_gradients():
    def centred(x):
        values = x.numpy()
        return torch.from_numpy(values - values.mean(1, keepdims=True))

    with pytest.raises(RuleError, match=r"write check_rule\(..., gradients=False\)"):
        check_rule(centred, torch.randn(7, 4, dtype=torch.float64))
    check_rule(centred, torch.randn(7, 4, dtype=torch.float64), gradients=False)
    with pytest.raises(RuleError, match="is not rowwise"):
        check_rule(lambda x: torch.from_numpy(x.numpy() - x.numpy().mean(0)), torch.randn(7, 4), gradients=False)


def test_a_call_without_a_tensor_is_told():
    with pytest.raises(ValueError, match="got no tensor"):
        check_rule(lambda x: x, [1, 2, 3])


def test_errors_on_parts_are_told_with_the_rows_that_they_come_of():
    x, scale = torch.randn(6, 4, dtype=torch.float64), np.ones((6, 4))
    with pytest.raises(RuleError, match=r"fails on 3 of 6 rows: operands could not be broadcast"):
        check_rule(lambda rows: torch.from_numpy(rows.numpy() * scale), x, gradients=False)
    with pytest.raises(RuleError, match=r"the backward of Kept\.apply fails on \[3, 3\] rows: operands"):
        check_rule(Kept.apply, x)
    with pytest.raises(ValueError, match=r"^operands could not be broadcast"):
        check_rule(lambda rows: torch.from_numpy(rows.numpy() * scale[1:]), x, gradients=False)


class Kept(torch.autograd.Function):
    """Its backward multiplies with what one process had."""

    @staticmethod
    def forward(ctx, rows):
        return rows.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.from_numpy(grad.numpy() * np.ones((6, 4)))


def test_a_reduction_gives_one_tensor():
    with pytest.raises(RuleError, match="gives tuple; a reduction gives one tensor"):
        check_rule(lambda x: (x.sum(), x.sum()), torch.randn(7, 4), kind="sum")


def a_plain_tensor_beside_a_batch():
    """Targets that do not come of the loader: is it a batch?"""
    ddp_patch.disable()
    ddp_patch.enable()
    unclear = ddp_patch.register_reduction(own_loss.__wrapped__, kind="mean")
    whole = ddp_patch.register_rowwise(lambda x, table: x @ table)
    x, found = torch.arange(24.0, dtype=torch.float64).view(6, 4).sin(), []
    for (rows,), targets in zip(DataLoader(TensorDataset(x), 2), x[:, 1].split(2), strict=True):
        try:
            unclear(rows, targets)
        except ddp_patch.BatchError as error:
            found.append(str(error))
        found += [own_loss(rows, targets).item(), own_loss(y=targets, z=rows).item()]
    for size in (6, 4):  # whole when it was first seen, and so when its size is the batch's
        for (rows,) in DataLoader(TensorDataset(x), size):
            found += whole(rows, torch.ones(4, 2, dtype=torch.float64)).flatten().tolist()
    return found


def test_a_plain_tensor_that_may_be_a_batch_is_an_error_with_the_line_to_write(ranks):
    (wanted,) = ranks.call(a_plain_tensor_beside_a_batch, 1).ok().results
    for found in ranks.call(a_plain_tensor_beside_a_batch, 2).ok().results:
        said = [text for text in found if isinstance(text, str)]
        assert _close([number for number in found if not isinstance(number, str)], wanted)
        assert len(said) == 3
        assert all("register it with dims={'z': 0, 'y': 0}, or with dims={'z': 0, 'y': None}" in text for text in said)


def positional(x, *others, scale=1.0):
    return x


@pytest.mark.parametrize(
    ("function", "dims", "said"),
    [
        (own_loss.__wrapped__, {"z": 0, "w": 0}, "own_loss has no argument 'w'. It has z, y."),
        (own_loss.__wrapped__, {"z": 0, 2: 0}, "own_loss has no argument 2"),
        (own_loss.__wrapped__, {"z": -1}, "of dimensions counted from 0"),
        (
            torch.ops.ddp_patch_tests.twist,
            {"y": 0},
            "torch.ops.ddp_patch_tests.twist has no argument 'y'. It has x, w.",
        ),
        (Clamped.apply, {"rows": 0}, "has no argument 'rows'. It has x."),
        (torch.sin, {"input": 0}, "sin names its arguments is not known. Write positions: {0: 0}."),
    ],
)
def test_arguments_that_a_function_does_not_have_are_told(function, dims, said):
    with pytest.raises(ddp_patch.OptionError) as caught:
        ddp_patch.register_rowwise(function, dims=dims)
    assert said in str(caught.value)


@pytest.mark.parametrize("out_dims", ["a", -1, (0, "a"), True])
def test_dimensions_of_results_count_from_0(out_dims):
    with pytest.raises(ddp_patch.OptionError, match="counted from 0, or one for each result"):
        ddp_patch.register_rowwise(torch.sin, out_dims=out_dims)


def by_keyword():
    ddp_patch.disable()
    ddp_patch.enable()
    twist = torch.ops.ddp_patch_tests.twist
    ddp_patch.register_rowwise(twist, dims={"x": 0})
    doubled = ddp_patch.register_rowwise(Clamped.apply, dims={"x": 0})
    placed = ddp_patch.register_rowwise(with_weight, dims={0: 0, 1: None})
    more = ddp_patch.register_rowwise(positional, dims={"x": 0, 1: 0})
    (x,) = next(iter(DataLoader(TensorDataset(torch.ones(6, 4).double()), 6)))
    found = [twist(x, torch.ones(4, 2).double()), twist(x=x, w=torch.ones(4, 2).double()), doubled(x)]
    found += [placed(x=x, w=torch.ones(3).double()), more(x, x, scale=2.0)]
    gathers = [str(place) for place, seen in ddp_patch.report().ledger.gathers.items() if seen.collectives > 0]
    return [*gathers, *(result.sum().item() for result in found)]


def test_arguments_are_the_same_by_name_and_by_position(ranks):
    (wanted,) = ranks.call(by_keyword, 1).ok().results
    assert all(_close(found, wanted) for found in ranks.call(by_keyword, 2).ok().results)


def test_a_batch_has_rows():
    with pytest.raises(ValueError, match="2 or more"):
        check_rule(torch.sin, torch.randn(1, 4))
    with pytest.raises(ValueError, match="dims names no tensor"):
        check_rule(torch.add, torch.randn(3, 4), 2, kind="rowwise", dims={1: 0})


KNOWN = ("F.", "torch.", "binary ", "compare ", "operator ", "along ")


def test_rules_of_our_own_pass():
    """Those of ``batch/cases.py`` that keep rows apart, in dimension 0 before and after."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    checked = set()
    try:
        for name in [name for name in CASES if name.startswith(KNOWN)]:
            for seed in range(4):
                call = CASES[name](random.Random(f"{name}{seed}"))
                tensors = [tensor for tensor, _ in call.inputs]
                result = call.function(*(tensor.clone() for tensor in tensors))
                rows = {tensor.shape[dim] for tensor, dim in call.inputs if dim is not None}
                dims = {place: dim for place, (_, dim) in enumerate(call.inputs)}
                if any(dim is None and tensor.dim() and {tensor.shape[0]} == rows for tensor, dim in call.inputs):
                    continue  # whole on every rank, and as long as a batch
                if not (
                    call.local and call.grads and isinstance(result, torch.Tensor) and {*dims.values()} <= {0, None}
                ):
                    continue
                if result.dim() and {result.shape[0]} == rows and result.shape.count(result.shape[0]) == 1:
                    check_rule(call.function, *tensors, dims=dims)
                    checked.add(name)
    finally:
        torch.set_default_dtype(before)
    assert len(checked) > 75


# --- what rank 0 has --------------------------------------------------------------------------------------------------

NOTIFIER = """
class Notifier:
    def __init__(self, path):
        self.path, self.count = path, 0

    def send(self, text):
        self.count += 1
        with open(self.path, "a") as file:
            file.write(text + "\\n")
        return self.count

    def fail(self):
        raise ConnectionError("nobody there")

    def __enter__(self):
        self.send("entered")
        return self

    def __exit__(self, kind, error, traceback):
        self.send("left")

    def __setitem__(self, name, value):
        setattr(self, "_" + name, value)
        self.send(f"{name} is {value}")

    def __getitem__(self, name):
        return getattr(self, "_" + name)

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(open(self.path).read().split())
"""
SCRIPT = """
import ddp_patch; ddp_patch.enable()
import os, tempfile
{register}
calls = []

@ddp_patch.rank_zero
def ask(question):
    calls.append(question)
    return len(calls), os.getpid()

def main():
    notifier = {made}("sent.txt")
    print(notifier.send("one"), notifier.send("two"))
    try:
        notifier.fail()
    except ConnectionError as error:
        print("failed:", error)
    with notifier as entered:
        entered["rate"] = 0.1
        print(entered is notifier, entered["rate"], len(notifier), [*notifier], bool(notifier))
    first, second = ask("a"), ask("b")
    print(first[0], second[0], first[1] == second[1])
    with ddp_patch.per_rank():
        open(f"calls.{{ddp_patch.rank()}}", "w").write(str(len(calls)))

main()
"""


@pytest.mark.some("register_tracker('notifying.Notifier')\nfrom")
@pytest.mark.parametrize(
    ("register", "made"),
    [
        ("from notifying import Notifier\nRun = ddp_patch.rank_zero(Notifier)", "Run"),
        ("ddp_patch.register_tracker('notifying.Notifier')\nfrom notifying import Notifier", "Notifier"),
        ("import notifying\nddp_patch.register_tracker('notifying.Notifier')", "notifying.Notifier"),
    ],
)
def test_rank_zero_acts_and_all_get_what_it_got(ranks, tmp_path, register, made):
    said = {}
    for nproc in (1, 3):
        folder = tmp_path / str(nproc)
        folder.mkdir()
        (folder / "notifying.py").write_text(NOTIFIER)
        (folder / "script.py").write_text(SCRIPT.format(register=register, made=made))
        command = [sys.executable, "-m", "ddp_patch", "--nproc", str(nproc), "script.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        said[nproc] = done.stdout, (folder / "sent.txt").read_text()
        assert [(folder / f"calls.{rank}").read_text() for rank in range(nproc)] == ["2"] + ["0"] * (nproc - 1)
    assert said[3] == said[1]
    shown = "True 0.1 4 ['one', 'two', 'entered', 'rate', 'is', '0.1'] True"
    sent = "one\ntwo\nentered\nrate is 0.1\nleft\n"
    assert said[1] == (f"1 2\nfailed: nobody there\n{shown}\n1 2 True\n", sent)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ddp_patch.register_rowwise(3), "ddp_patch.register_rowwise(3): pass a function."),
        (lambda: ddp_patch.register_rowwise(len, dims={"x": -1}), "a dict such as"),
        (lambda: ddp_patch.register_reduction(len, kind="max"), "kind is 'sum' or 'mean'"),
        (lambda: ddp_patch.rank_zero(3), "pass a function or a class"),
        (lambda: ddp_patch.register_tracker("Run"), "write module and name"),
    ],
)
def test_what_cannot_be_registered_is_refused(call, words):
    with pytest.raises(ddp_patch.OptionError) as caught:
        call()
    assert words in str(caught.value)
