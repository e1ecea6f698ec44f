"""Torch's modules in training, with the arguments that torch's own tests give them (``module_db``).

Rows are along the first dimension of what a module gets, or along its second one.
"""

import copy
import warnings

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

INPUTS = 6  # of each module
STEPS = 3
OF_OTHER_VALUES = ("nn.BCELoss",)  # which takes no numbers that training moves beyond 0 and 1
CHAOTIC = ("nn.CTCLoss",)  # of what are no logarithms of probabilities


class Weighed(nn.Module):
    """A module whose input is trained as well."""

    def __init__(self, module, weights):
        super().__init__()
        self.module, self.weights = module, weights

    def forward(self, x, *others, **kwargs):
        return self.module(x if self.weights is None else x * self.weights, *others, **kwargs)


def infos():
    """Those that have numbers to compare."""
    from torch.testing._internal.common_modules import module_db

    return [info for info in module_db if info.name not in (*OF_OTHER_VALUES, *CHAOTIC)]


def numbers_of(part, parts):
    """Give what every ``parts``-th module learns, from number ``part`` on: names, each with numbers or an error."""
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    found = []
    for info in infos()[part::parts]:
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
                optimizer.step()
            said.append(loss.item())
    except Exception as error:
        return [type(error).__name__]
    return [*said, *(tensor.detach().double().abs().sum().item() for tensor in model.state_dict().values())]


def has_rows(tensor, dim, count):
    """Tell whether a tensor has a row for each of the first one."""
    return isinstance(tensor, Tensor) and tensor.dim() > dim and tensor.shape[dim] == count
