"""Torch's modules in training, with the arguments that torch's own tests give them (``module_db``).

So are its functions (``op_db``), each as the forward of a module. Rows are along the first dimension of what a module
gets, or along its second one.
"""

import copy
import itertools
import warnings

import torch
from parity import torch_ops
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

INPUTS = 6  # of each module
STEPS = 3
# What takes no numbers beyond 0 and 1, where training moves some; what does not end with such numbers, or looks at no
# sizes; and what rounds more than is compared.
OTHERS = (
    *("nn.BCELoss", "nn.functional.binary_cross_entropy"),
    *(
        "polygamma",
        "special.polygamma",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "float",
        "half",
        "bfloat16",
        "chalf",
        "cfloat",
    ),
)
BY_STRIDES = ("as_strided", "view")  # one row along the second dimension has none


class Weighed(nn.Module):
    """A module whose input is trained as well."""

    def __init__(self, module, weights):
        super().__init__()
        self.module, self.weights = module, weights

    def forward(self, x, *others, **kwargs):
        return self.module(x if self.weights is None else x * self.weights, *others, **kwargs)


class Function(nn.Module):
    """Calls a function of torch's."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def numbers_of(part, parts):
    """Give what every ``parts``-th module learns, from number ``part`` on: names, each with numbers or an error."""
    from torch.testing._internal.common_modules import module_db

    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    found = []
    for info in [info for info in module_db if info.name not in OTHERS][part::parts]:
        for training in (True, False):
            torch.manual_seed(0)
            options = {"device": "cpu", "dtype": torch.float64, "requires_grad": False, "training": training}
            for number, made in enumerate(info.module_inputs_func(info, **options)[:INPUTS]):
                args, kwargs = made.forward_input.args, made.forward_input.kwargs
                if not args or not isinstance(args[0], Tensor):
                    continue
                torch.manual_seed(1)
                module = info.module_cls(*made.constructor_input.args, **made.constructor_input.kwargs)
                module.to(torch.float64).train(training)
                found += [
                    [f"{info.name} {training} {number} dim {dim}", learned(copy.deepcopy(module), args, kwargs, dim)]
                    for dim in range(min(2, args[0].dim()))
                    if args[0].shape[dim] > 1
                ]
    return found


def numbers_of_functions(part, parts):
    """Give what every ``parts``-th function has the weights of its input learn, from number ``part`` on."""
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    found = []
    for op in [op for op in torch_ops.ops() if op.name not in OTHERS and torch.float64 in op.dtypes][part::parts]:
        torch.manual_seed(0)
        for number, sample in enumerate(itertools.islice(op.sample_inputs("cpu", torch.float64), INPUTS)):
            first = sample.input
            if not isinstance(first, Tensor) or first.layout != torch.strided or not first.numel():
                continue
            if any(sample.kwargs.get(name) for name in ("dropout_p", "sparse")):
                continue
            dims = 1 if op.name.startswith(BY_STRIDES) else 2
            for dim in [dim for dim in range(min(dims, first.dim())) if first.shape[dim] > 1]:
                torch.manual_seed(1)
                numbers = learned(Function(op.op), (first.detach(), *sample.args), sample.kwargs, dim)
                found.append([f"{op.name} {op.variant_test_name} {number} dim {dim}", numbers])
    return found


def learned(module, args, kwargs, dim):
    """Train for some steps: losses, and what parameters and buffers sum up to."""
    first = args[0]
    count = first.shape[dim]
    places = [place for place, tensor in enumerate(args) if has_rows(tensor, dim, count)]
    shape = [1 if at == dim else size for at, size in enumerate(first.shape)]
    model = Weighed(module, nn.Parameter(torch.ones(shape)) if first.is_floating_point() else None)
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], 0.05)
    rows = [torch.cat([args[place].detach()] * STEPS, dim).transpose(0, dim) for place in places]
    said = []
    try:
        for batch in DataLoader(TensorDataset(*rows), count):
            given = list(args)
            for place, tensor in zip(places, batch, strict=True):
                given[place] = tensor.transpose(0, dim)
            out = tree_leaves(model(*given, **kwargs))
            loss = sum(leaf.square().mean() for leaf in out if isinstance(leaf, Tensor) and leaf.is_floating_point())
            if loss.requires_grad:
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            said.append(loss.item())
    except Exception as error:
        return [type(error).__name__]
    return [*said, *(tensor.detach().double().abs().sum().item() for tensor in model.state_dict().values())]


def has_rows(tensor, dim, count):
    """Tell whether a tensor has a row for each of the first one."""
    return isinstance(tensor, Tensor) and tensor.dim() > dim and tensor.shape[dim] == count
