"""Which parameters had a gradient on which rank, told to all ranks with DDP's last bucket of gradients.

The flags are the gradient of a parameter of ours that stands beside the module's. It gets one when every other
parameter was visited, so the bucket that it is in waits for it and DDP does the rest, without a hook in Python for its
buckets. A loss whose sum nobody has asked for travels with them. Where ranks wait for that is a point of the
script, named by how many numbers travel: a rank that sends others, or that waits for something else, has parted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.dealt_tensors import LENGTH as DEALT
from ..batch.pending import Derived, PendingReduction
from ..batch.world import World
from .grad_watch import grad_of, set_grad, with_grad

_ROOM = 16  # numbers of losses that travel with them
_POINT = "the last gradients"
_engine: Any = torch.autograd.Variable._execution_engine  # torch 2.13; below the door for the script's backwards


class Flags:
    """What a backward gives to all ranks beside gradients."""

    def __init__(self, parameters: list[nn.Parameter], world: World, with_buckets: bool = False) -> None:
        """Make the parameter.

        Args:
            parameters: that DDP reduces.
            world: the ranks.
            with_buckets: DDP reduces ``parameter`` too, as it is. If not, the flags are sent by themselves.
        """
        self.parameter: nn.Parameter | None = None
        self._parameters = parameters
        self._world = world
        self._lacks: list[bool] | None = None  # which parameters had a gradient on this rank, if some had none
        self._total: Tensor | None = None  # over all ranks
        self._loss: tuple[PendingReduction | Derived, Tensor] | None = None  # which travels with them, and its part
        self._point = _POINT  # where the ranks wait
        dtype, device = torch.float32, world.device
        if with_buckets:
            dtype, device = torch.promote_types(parameters[0].dtype, dtype), parameters[0].device
        self._sent = torch.ones(len(parameters) + _ROOM + DEALT, dtype=dtype, device=device)  # what is sent
        self._size = torch.tensor(world.size, dtype=dtype, device=device)
        self._used, self._room, self._dealt = self._sent.split([len(parameters), _ROOM, DEALT])
        if with_buckets:
            self.parameter = nn.Parameter(torch.zeros_like(self._sent))
            self.parameter.is_of_ddp_patch = True  # type: ignore[attr-defined]  # for who looks at all tensors

    def send(self, loss: PendingReduction | Derived | None) -> bool:
        """Tell the other ranks, at the end of a backward.

        Args:
            loss: that it began from, if that was not summed yet.

        Returns:
            whether DDP has reduced all of its buckets with that.
        """
        self._loss = None
        before = self._lacks
        self._lacks = None if all(with_grad(self._parameters)) else list(with_grad(self._parameters))
        if self._lacks is None and before is not None:
            self._used.fill_(1)
        elif self._lacks is not None and self._lacks != before:  # nearly always as in the last step
            self._used.copy_(self._used.new_tensor(self._lacks))
        sent, dealt = self._sent, self._world.dealt
        if dealt.has_any:
            dealt.write(self._dealt, self._world.size)
        if self.parameter is None:
            self._total = self._world.all_reduce(sent.clone())
            return False
        if loss is not None and loss.is_open:
            part = loss.part
            if part.numel() <= _ROOM and torch.promote_types(part.dtype, sent.dtype) == sent.dtype:
                self._loss = loss, part
                # A loss may be on another device than the parameters. DDP averages.
                place = self._room[: part.numel()]
                if part.dtype == sent.dtype and part.device == sent.device:
                    torch.mul(part, self._size, out=place)
                else:
                    place.copy_(part).mul_(self._world.size)
        self._point = _POINT if self._loss is None else f"{_POINT} and {self._loss[1].numel()} number(s) of losses"
        set_grad(self.parameter, None)
        # A device has a thread of its own, which comes here at any time.
        counts = not self._world.accelerated and self._world.reaches_point(self._point)
        try:
            # The engine copies what somebody still holds.
            _engine.run_backward(
                (self.parameter,), (sent,), False, False, (), allow_unreachable=True, accumulate_grad=True
            )
        finally:
            if counts:
                self._world.trail.leave()
        self._total = grad_of(self.parameter)
        return True

    def arrived(self) -> list[nn.Parameter]:
        """Take what the ranks told, and name the parameters that have a gradient on none."""
        total, riding, count = self._total, self._loss, len(self._parameters)
        self._total = self._loss = None
        assert total is not None
        if self._world.accelerated and self._world.reaches_point(self._point):
            self._world.trail.leave()
        if self._world.dealt.has_any:
            means = total[-DEALT:] if self.parameter is not None else total[-DEALT:] / self._world.size
            self._world.dealt.arrived(means)
        if riding is not None:
            loss, part = riding
            arrived = torch.narrow_copy(total, 0, count, part.numel())  # DDP may write there
            is_like = arrived.dtype == part.dtype and arrived.device == part.device
            loss.arrived(arrived if is_like else torch.empty_like(part).copy_(arrived))
        # What had a gradient here had one somewhere; looking at the flags waits for a device.
        if self._lacks is None:
            return []
        return [p for p, used in zip(self._parameters, total[:count].tolist(), strict=True) if not used]


def at_the_end(function: Callable[[], None]) -> None:
    """Call a function when the backward that is running has visited everything that it comes to."""
    _engine.queue_callback(function)
