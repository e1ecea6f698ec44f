"""zero_grad: gradients that nobody looked at are thrown away; watched from the first time that some wait."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from ..patch import Args, Kwargs, Patch


def _zero_grad(session: Any, wrapped: Any, instance: Optimizer, args: Args, kwargs: Kwargs) -> None:
    session.pending_gradients.before_zeroing(p for group in instance.param_groups for p in group["params"])
    wrapped(*args, **kwargs)


def _zero_module(session: Any, wrapped: Any, instance: nn.Module, args: Args, kwargs: Kwargs) -> None:
    session.pending_gradients.before_zeroing(instance.parameters())
    wrapped(*args, **kwargs)


_UNREAD = "gradients that nobody looked at are not averaged any more"

PATCHES = (
    Patch("torch.optim.optimizer", "Optimizer.zero_grad", _zero_grad, _UNREAD),
    Patch("torch.nn.modules.module", "Module.zero_grad", _zero_module, _UNREAD),
)
