"""Copies of a module that are tried: they share its parameters, and nothing of theirs is noticed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ..batch.tensor import BatchTensor
from ..calling import module_hooks
from ..generators import same_draws
from ..structure import leaves, map_leaves
from .memory import tensors_of
from .tried_forward import TriedForward
from .walk import OF_TORCH


def trial_copy(module: nn.Module) -> nn.Module:
    """Copy a module for a trial call: without the script's hooks, dropout at rest, parameters shared.

    Args:
        module: to be tried.
    """
    # A weight that a hook computes anew in every call (weight_norm, spectral_norm) has a graph, which is not copied.
    held = (value for layer in module.modules() for name, value in vars(layer).items() if name not in OF_TORCH)
    computed = {id(leaf): leaf for value in held for _, leaf in leaves(value) if _is_computed(leaf)}
    memo = {key: leaf if isinstance(leaf, BatchTensor) else leaf.detach().clone() for key, leaf in computed.items()}
    memo |= {id(parameter): _varied(parameter) for parameter in module.parameters()}
    plain = (leaf for layer in module.modules() for leaf in vars(layer).values() if _is_zero(leaf))
    memo |= {id(leaf): _varied(leaf.detach().clone()).requires_grad_(leaf.requires_grad) for leaf in plain}
    memo |= {id(buffer): _varied(buffer.detach().clone()) for buffer in module.buffers()}
    with same_draws() as draw_again:  # its class may draw for a copy, as the layers of Keras do
        try:
            twin = copy.deepcopy(module, memo)
        finally:
            draw_again()
    for layer in twin.modules():
        if isinstance(layer, torch.jit.ScriptModule):
            _vary_scripted(layer, module)
        module_hooks.drop_own(layer)  # the author's hooks are for real calls
        if isinstance(layer, _DropoutNd) and _is_torchs(layer):
            rate = layer.p if layer.training else 0.0
            layer.eval()  # a forward of the script's own is seen to drop by itself
        elif isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and _is_torchs(layer):
            rate = layer.dropout if layer.training else 0.0
            layer.dropout = 0.0  # inside kernels
        else:
            continue
        if rate > 0:  # what it is given may be of the batch, or what all rows share
            vars(layer)["forward"] = functools.partial(_noted, type(layer).__name__, layer.forward)
    return twin


def _noted(name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if TriedForward.running is not None:
        TriedForward.running.note_dropping(name, list(tensors_of((args, kwargs))))
    return forward(*args, **kwargs)


def _vary_scripted(layer: nn.Module, original: nn.Module) -> None:
    """Vary the tensors of a copy of scripted code: C++ has copied them, whatever the memo has for them."""
    shared = {tensor.data_ptr() for tensor in (*original.parameters(), *original.buffers())}
    with torch.no_grad():
        for tensor in (*layer.parameters(recurse=False), *layer.buffers(recurse=False)):
            if tensor.data_ptr() not in shared:
                tensor.copy_(_varied(tensor))


def _is_torchs(layer: nn.Module) -> bool:
    return "forward" not in vars(layer) and type(layer).forward.__module__.startswith("torch.nn.")


def _is_computed(leaf: Any) -> bool:
    return isinstance(leaf, BatchTensor) or (isinstance(leaf, Tensor) and leaf.grad_fn is not None)


def _is_zero(leaf: Any) -> bool:
    """Tell a tensor of zeros, as of a weight that is raised later. A BatchTensor is not looked into."""
    return type(leaf) is Tensor and leaf.layout is torch.strided and leaf.is_floating_point() and not bool(leaf.any())


def varied_alike(whole: Any, rows: Any) -> tuple[Any, Any]:
    """Vary the arguments of a trial that begin at zero and are no batches: behind them all rows look alike.

    Args:
        whole: arguments, as batches, or of some rows.
        rows: the same for fewer rows.
    """
    theirs = dict(leaves(rows))
    zero = {
        id(leaf): _varied(leaf.detach()).requires_grad_(leaf.requires_grad)
        for path, leaf in leaves(whole)
        if _is_zero(leaf) and isinstance(theirs.get(path), Tensor) and theirs[path].shape == leaf.shape
    }
    zero |= {id(theirs[path]): zero[id(leaf)] for path, leaf in leaves(whole) if id(leaf) in zero}
    return map_leaves(lambda leaf: zero.get(id(leaf), leaf), whole), map_leaves(
        lambda leaf: zero.get(id(leaf), leaf), rows
    )


def _varied(tensor: Any) -> Any:
    """A tensor as it is, or, if it starts constant, with different entries: behind zeros all rows look alike."""
    with torch.no_grad():
        if not tensor.is_floating_point() or not tensor.numel() or tensor.layout is not torch.strided:
            return tensor
        if bool(tensor.min() != tensor.max()) or not bool(tensor.isfinite().all()):
            return tensor
        step = torch.arange(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        varied = tensor + 0.05 * torch.cos(step).view_as(tensor)
        return nn.Parameter(varied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else varied
