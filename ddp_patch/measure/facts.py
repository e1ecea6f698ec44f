"""What a plan asks of a script that has taken some steps: its parameters, gradients, optimizer and device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from ..plan.memory import OPTIMIZERS
from ..verify.inside.models import outermost

# What torch's schedulers go from, or up to, is beside the rate of the moment: in a warm-up that is a small one.
_RATES = ("lr", "initial_lr", "max_lr")
_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "pure-bf16"}


def facts(optimizers: Iterable[Optimizer]) -> dict[str, Any]:
    """Give them by the names that a profile has for them; what cannot be told is left out.

    Args:
        optimizers: that the script steps.
    """
    its = list(optimizers)
    groups = [group for optimizer in its for group in optimizer.param_groups]
    stepped = {id(p): p for group in groups for p in group["params"]}
    # DDP sums up what gets gradients, whether an optimizer steps it or not.
    others = [p for module in outermost(set(stepped)) for p in module.parameters() if p.grad is not None]
    sent = [p for p in {**stepped, **{id(p): p for p in others}}.values() if p.requires_grad] or [*stepped.values()]
    found: dict[str, Any] = {
        "parameters": sum(p.numel() for p in sent),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in sent),
    }
    name = type(its[0]).__name__.lower()
    if name == "sgd" and groups[0].get("momentum"):
        name = "momentum"
    if name in OPTIMIZERS:
        found["optimizer"] = name
    rate = _rate(groups[0])
    if rate > 0:
        found["learning_rate"] = rate
    dtypes = {p.dtype for p in sent}
    if len(dtypes) == 1 and dtypes <= _PRECISIONS.keys():
        found["precision"] = _PRECISIONS[dtypes.pop()]
    device = sent[0].device
    if device.type == "cuda":
        found["memory_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return found


def on_accelerator(its: dict[str, Any]) -> bool:
    """Say whether ranks computed on accelerators, whose kernels the host's clock does not wait for."""
    return "memory_bytes" in its


def _rate(group: dict[str, Any]) -> float:
    """Largest rate that a group names; 0 where it has none, as Adafactor(lr=None) of transformers."""
    named = [group[name] for name in _RATES if group.get(name) is not None]
    return max((float(rate) for rate in named), default=0.0)
