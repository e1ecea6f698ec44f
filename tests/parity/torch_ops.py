"""Torch's functions on batches, with the arguments that torch's own tests call them with (``op_db``).

Every argument of a sample that has as many rows as the first one is dealt, or the first one alone. What comes out, in
each form that a function has, and the gradient that it gives, has to be what plain tensors give.
"""

import itertools
import math
import warnings

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import ddp_patch

SAMPLES = 12  # of each function
RANDOM = (
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand", "uniform"),
    *("nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.feature_alpha_dropout"),
    *("nn.functional.fractional_max_pool", "nn.functional.gumbel_softmax", "nn.functional.rrelu"),
    *("nn.functional.multi_head_attention", "pca_lowrank", "svd_lowrank"),
)
NO_VALUES = ("empty", "new_empty", "resize_", "_segment", "_batch", "_chunk", "_upsample", "_unsafe", "_softmax")


def ops():
    """Those whose results have values, by torch's order."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if not op.name.startswith((*RANDOM, *NO_VALUES, "masked.", "sparse."))]


def differences(part, parts):
    """Compare every ``parts``-th function, from number ``part`` on.

    Returns:
        what differs, and how many calls were compared.
    """
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    found, count = [], 0
    for op in ops()[part::parts]:
        dtype = next((kind for kind in (torch.float64, torch.int64, torch.bool) if kind in op.dtypes), None)
        if dtype is None:
            continue
        for number, sample in enumerate(itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES)):
            for what, wanted, given in both(op, sample):
                count += 1
                if wanted != given and not is_close(wanted, given):
                    where = f"{op.name}.{op.variant_test_name} {number} {what}".replace(". ", " ")
                    found.append(f"{where}: {str(given)[:200]} instead of {str(wanted)[:200]}")
    return found, count


def both(op, sample):
    """Give what is compared of a sample: its name, and what plain tensors and batches give."""
    first = next((leaf for leaf in tree_leaves(sample.input) if isinstance(leaf, Tensor)), None)
    draws, is_sparse = sample.kwargs.get("dropout_p"), sample.kwargs.get("sparse")
    if first is None or first.layout != torch.strided or not first.numel() or draws or is_sparse:
        return
    others = [leaf for leaf in tree_leaves((sample.args, sample.kwargs)) if isinstance(leaf, Tensor)]
    forms = {"": op.op, " method": op.method_variant, " in place": op.inplace_variant}
    for dim in range(min(2, first.dim())):
        if first.shape[dim] < 2:
            continue
        are_rows = any(is_like(other, first, dim) for other in others)
        for form, function in forms.items():
            if function is None or (form == " in place" and op.name == "as_strided"):
                continue
            for deals_all in (False, True)[: 1 + are_rows]:
                wanted = outcome(function, sample, first, None, (), with_gradient=not form)
                if wanted is None:  # it does not take these
                    continue
                dealt = ("input", "others") if deals_all else ("input",)
                given = outcome(function, sample, first, dim, dealt, with_gradient=not form)
                yield f"dim {dim}{form}{' all' * deals_all}", wanted, given


def is_like(tensor, first, dim):
    """Tell whether a tensor has a row for each of the first one."""
    is_strided = tensor.layout == torch.strided and tensor.dim() == first.dim()
    return is_strided and tensor.shape[dim] == first.shape[dim]


def outcome(function, sample, first, dim, dealt, *, with_gradient):
    """Give the values of a call, and of the gradient of weights that its input was multiplied by.

    None where plain tensors raise.
    """
    weights = [torch.ones(first.shape[1:], requires_grad=True)]

    def made(leaf, role):
        if not isinstance(leaf, Tensor):
            return leaf
        tensor = leaf.detach().clone()
        if role in dealt and tensor.layout == torch.strided and is_like(tensor, first, dim):
            tensor = ddp_patch.shard_batch(tensor, dim=dim).clone()  # no part of what else has memory of
        if with_gradient and role == "input" and tensor.shape == first.shape and tensor.is_floating_point():
            tensor = tensor * weights[0]
        return tensor

    def those(tree, role):
        return tree_map(lambda leaf: made(leaf, role), tree)

    try:
        result = function(those(sample.input, "input"), *those(sample.args, "others"), **those(sample.kwargs, "others"))
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
        wanting = [leaf for leaf in leaves if leaf.dtype == torch.float64 and leaf.layout == torch.strided]
        if wanting:
            sum((leaf * torch.linspace(0.5, 1.5, leaf.numel()).view(leaf.shape)).sum() for leaf in wanting).backward()
        grad = weights[0].grad
        return [*map(said, tree_leaves(result)), said(torch.zeros_like(weights[0]) if grad is None else grad)]
    except Exception as error:
        if dim is None:
            return None
        return [type(error).__name__, str(error)[:300]]


def said(value):
    """Write a result as JSON has it: type, shape, and numbers."""
    if not isinstance(value, Tensor):
        return str(value)
    value = value.detach()
    if value.layout != torch.strided:
        value = value.to_dense()
    kind, shape = str(value.dtype), [*value.shape]
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return [kind, shape, value.to(torch.float64).flatten().tolist()]


def is_close(wanted, given):
    """Compare two outcomes, up to rounding."""
    if len(wanted) != len(given):
        return False
    for mine, theirs in zip(wanted, given, strict=True):
        if isinstance(mine, str) or isinstance(theirs, str) or mine[:2] != theirs[:2]:
            if mine != theirs:
                return False
            continue
        size = max((abs(number) for number in mine[2] if math.isfinite(number)), default=0.0)
        for one, other in zip(mine[2], theirs[2], strict=True):
            same = one == other or (math.isnan(one) and math.isnan(other))
            if not same and not abs(one - other) <= 1e-9 * size + 1e-14:
                return False
    return True
