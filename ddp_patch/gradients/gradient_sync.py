"""One invariant: nobody ever sees a gradient of a replica's parameters that is not the global one.

Fast path: DDP's reducer, overlapped with backward. It is armed when a backward reaches a forward's outputs, so a
backward that does not cannot disturb it. A parameter that gets no gradient on one rank would keep DDP waiting, so every
pass touches every parameter (``output_hooks``), and the ranks' "I had a gradient" flags travel with the last bucket
(``flags``).

Safe path: the backward runs unsynchronised, and the gradients are averaged in flat buckets before anyone looks at them
(``backward_passes``). For backwards that another one follows, that go past the model's outputs, that stop at
``inputs=`` or are recorded by ``create_graph``. Averaging equal gradients changes nothing, so the two paths can be
mixed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..batch.pending import Derived, PendingReduction
from ..batch.sparse import noted_sparse
from ..batch.world import World
from ..structure import map_leaves
from .accumulation import AccumulationSchedule
from .autograd_functions import touch_parameters
from .averages import average, average_flat, average_sparse, in_buckets
from .flags import Flags, at_the_end
from .grad_watch import grad_of, set_grad, with_grad
from .output_hooks import OutputHooks, hook_alone, is_to_hook, outputs_to_hook

Loss = PendingReduction | Derived


class GradientSync:
    """Keeps the gradients of one replica's parameters global."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        sparse: list[nn.Parameter],
        ddp: DistributedDataParallel | None,
        world: World,
        schedule: AccumulationSchedule,
        flags: Flags | None = None,
    ) -> None:
        """Take over when DDP communicates its buckets.

        Args:
            parameters: that DDP reduces, in its order.
            sparse: further ones, whose gradients are sparse.
            ddp: None to stay on the safe path for good.
            world: the ranks that share the batch.
            schedule: predicts which backwards are looked at.
            flags: that DDP reduces as well; None to send them by themselves.
        """
        self.parameters = parameters
        self.sparse = sparse
        self.all = [*parameters, *sparse]
        self.ids = {id(parameter) for parameter in self.all}
        self.dtypes = [parameter.dtype for parameter in parameters]
        self.bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        self.schedule = schedule
        self.has_pending_gradients = False  # some are this rank's own (``end``) until ``make_global`` or until zeroed
        self.syncs_after_backward = ddp is None  # stays on the safe path: no DDP, or NestedBackwards found it so
        self.is_ddp_broken = False  # a backward failed half way (``end``), or a gradient is sparse: another DDP is made
        self.is_stale = False  # autograd has other nodes for parameters than those with DDP's hooks
        self.when_outlived: Callable[[GradientSync], None] | None = None  # told when a graph is reached that is older
        self._ddp = (lambda: None) if ddp is None else weakref.ref(ddp)  # alive at exit, it aborts the process
        self._world, self._flags = world, Flags(parameters, world) if flags is None else flags
        # Of the running backward: ``begin`` sets or clears all of them.
        self._may_arm = self._must_reduce = False  # DDP may take part; somebody looks at the gradients right away
        self._may_defer = True  # gradients may stay this rank's own until somebody looks: none was kept from before
        self.is_armed = False  # DDP's reducer takes part (``note_outputs_reached``)
        self._has_reached_outputs = False  # it came to a forward's outputs (``note_outputs_reached``)
        self._has_ddp_reduced = False  # the last bucket was sent (``note_bucket_sent``)
        self._parameter_link: Tensor | None = None  # saves nothing, so any number of backwards may come by
        self.in_backward = False  # a backward of the script is running
        self._grads_before: Any = None  # gradients when it began
        self._loss: Loss | None = None

    def hook_outputs(self, output: Any, inputs: Sequence[tuple[str, Any]]) -> Any:
        """Hook a forward's outputs, so that each backward reaches DDP's hook of each.

        Args:
            output: of the forward: batches, tensors that every rank has, losses that are not summed yet.
            inputs: what came in as arguments.
        """
        if not self.parameters:
            return output
        is_alone = type(output) is Tensor  # the rows of one output, in most steps
        forms = [output] if is_alone and is_to_hook(output, self) else [] if is_alone else outputs_to_hook(output, self)
        if not forms:
            return output
        if self._parameter_link is None:
            self._parameter_link = touch_parameters(self.parameters)
        if is_alone:
            return output if output.is_leaf else hook_alone(self, self._parameter_link, inputs, output)
        return map_leaves(OutputHooks(self, self._parameter_link, [leaf for _, leaf in inputs], forms).of, output)

    def note_converted_parameter(self) -> None:
        """Note that autograd has, or will have, another node for a parameter."""
        self._parameter_link = None  # it holds the old one
        self.is_stale = not self.syncs_after_backward

    def release_graph(self) -> None:
        """Let go of the parameters' graph, which keeps a process group alive: the script's last loss holds this."""
        self._parameter_link = None

    # --- one backward -----------------------------------------------------------------------------------------------

    def begin(self, may_arm: bool, must_reduce: bool, reduction: Loss | None, source: Any) -> None:
        """A backward of the script begins.

        Args:
            may_arm: it accumulates into every leaf it reaches, and is not recorded.
            must_reduce: it is known that somebody looks at the gradients right away.
            reduction: the loss that it starts from, if that was not summed yet.
            source: the node that it comes by then.
        """
        if encountered := noted_sparse():
            self._part_sparse(encountered)
        # Only if the backward is sure to come by this replica, on every rank.
        self._loss = reduction if reduction is not None and getattr(source, "sync", None) is self else None
        self._may_arm = may_arm and not (self.syncs_after_backward or self.is_ddp_broken or self.is_stale)
        self._must_reduce = must_reduce
        self.is_armed = self._has_reached_outputs = self._has_ddp_reduced = False
        self.in_backward, self._grads_before = True, self._grad_versions()
        # A script that kept gradients of an earlier step would see them change: it reads tensors, not ``.grad``.
        self._may_defer = self._grads_before is None or self.has_pending_gradients

    def _part_sparse(self, encountered: list[Tensor]) -> None:
        late = {id(p) for p in encountered if id(p) in self.ids} - {id(p) for p in self.sparse}
        if late:  # DDP expects a dense one; the next forward makes another
            self.sparse = [*self.sparse, *(p for p in self.parameters if id(p) in late)]
            self.parameters = [p for p in self.parameters if id(p) not in late]
            self._parameter_link, self.is_ddp_broken = None, not self.syncs_after_backward

    def rebuild(self) -> bool:
        """Have DDP order its buckets as its first backward did, once, before a second one adds to them; tell if so."""
        ddp = self._ddp()
        return ddp is not None and self._may_arm and ddp.reducer._rebuild_buckets()

    @property
    def was_reduced(self) -> bool:
        """Whether DDP reduced the gradients of the last backward."""
        return self.is_armed and self._has_ddp_reduced

    def note_outputs_reached(self, parameter_link: Tensor) -> None:
        """Note that the backward came to a forward's outputs: every parameter will be visited after this."""
        if not self.in_backward and self.when_outlived is not None:
            self.when_outlived(self)
        if self._has_reached_outputs or not self.in_backward:
            return  # torch.autograd.grad accumulates nowhere
        self._has_reached_outputs = True
        wanted = self.schedule.backward()
        ddp = self._ddp()
        if ddp is None or not self._may_arm:
            return
        if self._may_defer and not (wanted or self._must_reduce):
            self._world.ledger.deferred += 1
            return
        self.is_armed = True
        # What DDP's forward does outside no_sync (torch 2.13, DistributedDataParallel._pre_forward, _post_forward).
        ddp.reducer.prepare_for_forward()
        ddp.reducer.prepare_for_backward([parameter_link])
        at_the_end(self._reduce)

    def end(self, failed: bool, recorded: bool) -> None:
        """The backward ended. What it did is the same on every rank, since they run the same script."""
        if failed:
            self.is_ddp_broken = self.is_ddp_broken or self.is_armed
            self.has_pending_gradients = self.has_pending_gradients or self._has_reached_outputs
        elif self.was_reduced:
            self._finish_reduction()
        elif self._has_reached_outputs or self._grad_versions() != self._grads_before:
            self.has_pending_gradients = not recorded
            if recorded:
                self._average_recorded()
            elif not self._may_defer:
                self.make_global()
        self.in_backward, self._grads_before, self._loss = False, None, None
        self._may_arm = self.is_armed = False

    def _reduce(self) -> None:
        """Let DDP send its last bucket, and wait: every parameter was visited."""
        pace = self._world.ledger.pace
        began = pace.begin()
        try:
            has_reduced = self._flags.send(self._loss)
        finally:
            pace.end("waiting", began)
        if has_reduced:
            ddp = self._ddp()
            assert ddp is not None
            ddp.reducer._check_reducer_finalized()  # raises if some parameter was not visited after all (torch 2.13)
            self.note_bucket_sent(True)

    def note_bucket_sent(self, is_last: bool) -> None:
        """Note that DDP sends a bucket, or has sent the last one."""
        self._has_ddp_reduced = self._has_ddp_reduced or is_last

    def _finish_reduction(self) -> None:
        self.has_pending_gradients = False
        for parameter in self._flags.arrived():  # on no rank: one process would have left it None
            set_grad(parameter, None)
        if self.sparse:
            average_sparse(self.sparse, self._world)

    def _grad_versions(self) -> list[tuple[int, int]] | None:
        if not any(with_grad(self.all)):
            return None
        grads = [grad_of(parameter) for parameter in self.all]
        return [(id(grad), grad._version) if grad is not None else (0, 0) for grad in grads]

    def may_be_scaled(self, source: Any) -> bool:
        """Tell whether a backward that begins now at this node gives gradients to these parameters alone, anew."""
        its = getattr(source, "sync", None) is self and source.only_parameters
        return its and self.in_backward and self._grads_before is None

    def scale(self, factor: float) -> None:
        """Multiply the gradients of a backward that ``may_be_scaled``."""
        for parameter in self.all:
            grad = grad_of(parameter)
            if grad is not None:
                grad.mul_(factor)

    # --- the safe path ----------------------------------------------------------------------------------------------

    def make_global(self) -> None:
        """Average what is still this rank's own. Every rank comes here at the same point of the script."""
        if not self.has_pending_gradients:
            return
        self.has_pending_gradients = False
        self._world.ledger.late += 1
        for part in in_buckets(self.parameters):
            average_flat(part, self._world)
        average_sparse(self.sparse, self._world)

    def _average_recorded(self) -> None:
        """Average differentiably, for ``backward(create_graph=True)``."""
        for part in (*in_buckets(self.parameters), self.sparse):
            means = average(part, [grad_of(parameter) for parameter in part], self._world)
            for parameter, mean in zip(part, means, strict=True):
                if mean is not None:
                    set_grad(parameter, mean)
