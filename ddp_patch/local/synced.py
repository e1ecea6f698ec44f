"""One module under torch's DDP, whose forward arms it, and what its reducer did not average.

DDP's reducer averages ``.grad`` as it stands after a backward that its forward was armed for. What else reaches a
parameter (a backward that goes past DDP's forward, a second one on a retained graph, accumulation that ends earlier
than was learned) is averaged once, before somebody looks: averaging is linear, so what is averaged already stays.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..batch.world import World
from ..calling import compiled
from ..errors import GradientError
from ..gradients.accumulation import AccumulationSchedule
from ..gradients.averages import average_flat, average_sparse, in_buckets
from ..gradients.grad_watch import grad_of
from ..gradients.option_trial import Built
from ..options import Options
from ..replica.replica import sparse_parameters
from .buffers import Buffers, buffers_of

_NOT_FINISHED = "Expected to have finished reduction"  # torch's words (2.13)


class Synced:
    """A module, its DDP, and whether its gradients are those of all ranks."""

    def __init__(self, module: nn.Module, world: World, options: Options) -> None:
        """Start with nothing to average.

        Args:
            module: of the script.
            world: the ranks.
            options: of the session.
        """
        self.module = module
        self.ddp: DistributedDataParallel | None = None  # see ``put_under``; none where all gradients are sparse
        self.sparse = sparse_parameters(module)
        apart = {id(parameter) for parameter in self.sparse}
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.dense = [parameter for parameter in trainable if id(parameter) not in apart]
        self.ids = {id(parameter) for parameter in trainable}
        self.schedule = AccumulationSchedule(options.accumulate)
        self.built: Built | None = None  # what DDP was built with
        self.is_stale = False  # autograd has other nodes of its parameters than those that DDP's hooks are on
        self.conversions = 0  # of them, to another type or device and back
        self.has_pending_gradients = False  # some gradient is this rank's own
        self.sends_buffers = not options.sync_batchnorm  # rank 0's, with each forward
        looks = options.sync_batchnorm and bool(buffers_of(module))
        self.buffers = Buffers(module, world) if looks else None  # until it is known that they have to be sent
        self._world = world
        self._armed = self._to_check = False
        self._is_plain = not (options.find_unused_parameters or options.static_graph)
        self._needs_all = True  # of DDP's own forward: in its first one, it gets ready
        # DDP reaches all of them in every backward, or says so; unless it looks for those that it does not.
        self._watched = self.dense if options.find_unused_parameters else [*self.dense[:1], *self.dense[-1:]]
        self._grads_before: list[Any] | None = None  # ``_gradients()`` when the backward began; None if there were none
        self._kept_grads: list[Any] = []

    def put_under(self, ddp: DistributedDataParallel) -> None:
        """Have another DDP average the gradients."""
        self.ddp, self._needs_all = ddp, True

    def fits(self) -> bool:
        """Tell whether these are the parameters that the module trains."""
        return self.ids == {id(parameter) for parameter in self.module.parameters() if parameter.requires_grad}

    @property
    def is_between_steps(self) -> bool:
        """Whether no gradient is on its way, DDP does not wait for one, and another would have the same parameters."""
        return self.schedule.is_at_start and not self.has_pending_gradients and not self._armed and self.fits()

    def forward(self, args: Any, kwargs: Any) -> Any:
        """Carry out a forward that a backward may follow, under DDP."""
        ddp = self.ddp
        assert ddp is not None
        is_last = not self.schedule.accumulates or self.schedule.is_next_wanted()
        if self.buffers is not None:
            self.buffers.begin()
        if is_last and not self._armed:
            self._armed = self.dense[0].requires_grad or self._is_trained()
        if self._needs_all or self.sends_buffers or compiled.is_used():
            self._needs_all = not self._is_plain
            if ddp.require_backward_grad_sync is not is_last:
                ddp.require_backward_grad_sync = is_last
            return ddp(*args, **kwargs)
        # What is left of DDP's own forward, whose statistics, labels for profiles and guards for TorchDynamo take
        # a third of a small model's time (torch 2.13, DistributedDataParallel._pre_forward, _post_forward).
        if is_last:
            ddp.reducer.prepare_for_forward()
        ddp.reducer._rebuild_buckets()
        outputs = ddp.module(*args, **kwargs)
        if is_last:
            ddp.reducer.prepare_for_backward([])
        return outputs

    def _is_trained(self) -> bool:
        """Tell whether a backward may reach something: GANs freeze what only judges."""
        return any(parameter.requires_grad for parameter in (*self.dense, *self.sparse))

    def begin(self) -> None:
        """A backward of the script begins."""
        for parameter in self._watched:
            if grad_of(parameter) is not None:
                self._grads_before = self._gradients()
                return
        self._grads_before = None

    def _gradients(self) -> list[Any]:
        """Tell gradients that a backward reaches from those before it, in less time than hooks on the parameters."""
        found: list[Any] = []
        # Kept: no other one gets the identity of one that is let go meanwhile.
        self._kept_grads = list(map(grad_of, self._watched))
        for grad in self._kept_grads:
            found.append(grad if grad is None else (id(grad), grad._version))
        return found

    def ended(self) -> None:
        """A backward of the script has ended."""
        is_reached = False
        if self._grads_before is not None:
            is_reached = self._gradients() != self._grads_before
            self._kept_grads = []
        else:
            for parameter in self._watched:
                is_reached = is_reached or grad_of(parameter) is not None
        if is_reached and not self.schedule.backward():
            self._world.ledger.deferred += 1
        if self._armed and is_reached:
            self._armed, self.has_pending_gradients, self._to_check = False, False, True
            if self.sparse:
                average_sparse(self.sparse, self._world)
        elif self._is_trained():
            self.has_pending_gradients = True  # it may have gone past DDP
        if self.buffers is not None and self.buffers.are_written():
            self.sends_buffers, self.buffers = True, None
            if self.ddp is not None:
                self.ddp.forward_sync_buffers = self.ddp.require_forward_param_sync = True

    def make_global(self) -> None:
        """Average what is still this rank's own. Every rank comes here at the same point of the script."""
        if not self.has_pending_gradients:
            return
        self.has_pending_gradients = False
        self._world.ledger.late += 1
        for part in in_buckets(self.dense):
            average_flat(part, self._world)
        average_sparse(self.sparse, self._world)

    def check(self) -> None:
        """See that DDP came to its end, before gradients are used.

        Raises:
            GradientError: when a parameter got no gradient on this rank, so that the others wait for its bucket.
        """
        if self._to_check and self.ddp is not None:
            self._to_check = False
            try:
                self.ddp.reducer._check_reducer_finalized()
            except RuntimeError as error:
                explain(error)
                raise


def ids_of(optimizer: Any) -> set[int]:
    """Identities of the parameters that an optimizer reads."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def explain(error: Exception) -> None:
    """Say of an error of DDP's what to write.

    Args:
        error: that DDP raised, or what it called.

    Raises:
        GradientError: if it is DDP's own, about gradients that did not come.
    """
    if isinstance(error, RuntimeError) and str(error).startswith(_NOT_FINISHED):
        raise GradientError(
            "A backward gave some parameters of the model no gradient on this rank, so DDP cannot average them. Write "
            "ddp_patch.enable(view='local', find_unused_parameters=True), or requires_grad_(False) for parameters that "
            "no loss depends on."
        ) from error


def refuse_step(optimizer: Any) -> None:
    """Say of an optimizer that steps inside a backward what to write.

    Args:
        optimizer: whose gradients are averaged only when the backward ends.

    Raises:
        GradientError: always.
    """
    raise GradientError(
        f"{type(optimizer).__name__} steps inside a backward (a hook of register_post_accumulate_grad_hook), when "
        "gradients are still this rank's own, so ranks would train apart. In the local view, step when the backward "
        "has ended; or write ddp_patch.enable(view='global'), where hooks see the global gradient."
    )
