"""One invariant: no optimizer step sees a gradient that is not the global one.

Fast gear: DDP's reducer, overlapped with backward. A parameter that gets no gradient on one rank would keep DDP
waiting, so every pass names every parameter (``_Anchor``), and the ranks' "I had a gradient" flags travel with the last
bucket. Safe gear: a backward that went past an armed DDP pass has its gradients averaged before it returns, so that
whoever looks at them next sees the global ones. Averaging equal gradients changes nothing, so the two can be mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..batch.world import World
from ..structure import leaves, map_leaves


class GradientSync:
    """Keeps the gradients of one replica's parameters global."""

    def __init__(self, ddp: DistributedDataParallel, world: World) -> None:
        """Take over how DDP communicates its buckets."""
        self.parameters = [parameter for parameter in ddp.module.parameters() if parameter.requires_grad]
        self.ids = {id(parameter) for parameter in self.parameters}
        self._world = world
        self._group = ddp.process_group
        self._flags: Tensor | None = None
        self._reduced = False  # DDP's buckets went out in the backward that is running
        self._seen: list[tuple[int, int]] = []
        # A lambda, since DDP compares the annotations of a hook with its own classes, not with their names.
        ddp.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))

    def anchored(self, output: Any) -> Any:
        """Tie every parameter to a forward's outputs, so that each backward reaches DDP's hook of each."""
        tensors = [leaf for _, leaf in leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not tensors:
            return output
        anchor = _anchor(*self.parameters)
        tied = dict(zip(map(id, tensors), _tie(anchor, *tensors), strict=True))
        return map_leaves(lambda leaf: tied.get(id(leaf), leaf), output)

    def after_backward(self) -> None:
        """Make gradients global if DDP did not. What it did is the same on every rank: they run the same script."""
        if not self._reduced:
            self._settle()
            return
        self._reduced = False
        flags, self._flags = self._flags, None
        if flags is not None and not bool(flags.all()):
            for parameter, used in zip(self.parameters, flags.tolist(), strict=True):
                if not used:  # on no rank: one process would have left it None
                    parameter.grad = None
        self._seen = self._signature()

    def _settle(self) -> None:
        """Average the gradients if this backward, outside DDP's pass, touched them on any rank."""
        touched = self._signature() != self._seen and any(p.grad is not None for p in self.parameters)
        changed = torch.tensor([float(touched)], device=self._world.device)
        if not bool(self._world.all_reduce(changed)):
            return
        for group in _by_kind(self.parameters):
            self._average(group)
        self._seen = self._signature()

    def _average(self, parameters: list[nn.Parameter]) -> None:
        used = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([*(part.reshape(-1) for part in parts), used.to(parts[0].dtype)])
        flat = self._world.all_reduce(flat)
        used = flat[-len(parameters) :]
        start = 0
        for parameter, part, anywhere in zip(parameters, parts, used.tolist(), strict=True):
            mean = flat[start : start + part.numel()].view_as(part) / self._world.size
            start += part.numel()
            if parameter.grad is not None:
                parameter.grad.copy_(mean)
            elif anywhere:
                parameter.grad = mean

    def _reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer().div_(self._world.size)
        tensors = [buffer]
        if bucket.is_last():
            # DDP writes gradients back only when all buckets are done: here None still means "none on this rank".
            self._flags = buffer.new_tensor([p.grad is not None for p in self.parameters])
            tensors.append(self._flags)
            self._reduced = True
        self._world.ledger.count("gradient bucket", buffer.numel() * buffer.element_size())
        if len(tensors) == 1:
            work: Any = dist.all_reduce(buffer, group=self._group, async_op=True)
            sent: torch.futures.Future[Tensor] = work.get_future()
            return sent.then(lambda _: buffer)
        options = torch._C._distributed_c10d.AllreduceCoalescedOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM)
        done: torch.futures.Future[Tensor] = self._group.allreduce_coalesced(tensors, options).get_future()
        return done.then(lambda _: buffer)

    def _signature(self) -> list[tuple[int, int]]:
        return [(id(p.grad), p.grad._version) if p.grad is not None else (0, 0) for p in self.parameters]


class _Anchor(torch.autograd.Function):
    """A value that depends on every parameter and passes no gradient on: each gets an undefined one."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.count = len(parameters)
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None,) * ctx.count


class _Tie(torch.autograd.Function):
    """Pass outputs through, with the anchor as one more input."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        # detach, not view_as: a view made by a custom function refuses in-place writes.
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, *grads)


_anchor: Callable[..., Tensor] = _Anchor.apply
_tie: Callable[..., tuple[Tensor, ...]] = _Tie.apply


def _by_kind(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return list(kinds.values())
