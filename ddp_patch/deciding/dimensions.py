"""Along which dimension plain tensors of a script without a loader are dealt: the one that leaves a rank less to do."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..batch.tensor import BatchTensor
from ..batch.wholes import whole_arguments
from ..batch.world import World
from ..calling.call_mode import CallMode
from ..calling.calls import Call, described
from ..calling.items import row_count_of_tensors
from ..calling.local_arguments import LocalArgs
from ..calling.swap import original_class
from ..structure import leaves
from .trial_verdict import SplitDecision

_ENOUGH = 0.8  # of the work that the first dimension makes: less than that is better


class WorkCounter(TorchDispatchMode):
    """Counts what a call computes on this rank, without the bytes by which ranks tell each other things.

    The operations of products, convolutions and attention, as torch counts them, and a number each of anything else.
    """

    done = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, and count."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.done += formula(*args, **kwargs, out_val=result)
        elif not func.is_view:
            found = [leaf for _, leaf in leaves(result) if isinstance(leaf, Tensor)]
            self.done += sum(leaf.numel() for leaf in found if leaf.is_floating_point() or leaf.is_complex())
        return result


class DealtDimensions:
    """Tries dimension 0, and 1 if that does not keep rows apart: texts may be ``[T, B]``. Exact whichever it is."""

    def __init__(self, world: World, batch_dims: Mapping[str, int | None]) -> None:
        """Start with nothing tried.

        Args:
            world: the ranks.
            batch_dims: the option, by argument name.
        """
        self._world, self._batch_dims = world, batch_dims
        self._tries = False  # another than the first was tried, of some module: most programs have none
        self._chosen: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._work: weakref.WeakKeyDictionary[nn.Module, float] = weakref.WeakKeyDictionary()  # along the first
        self._settled: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # What stood in the way along the first, by the name of the module in question.
        self._reasons: weakref.WeakKeyDictionary[nn.Module, dict[str, str]] = weakref.WeakKeyDictionary()

    def of(self, module: nn.Module) -> int | None:
        """Give the dimension, unless it is the first."""
        return self._chosen.get(module) if self._tries else None

    def as_dealt(self, call: Call) -> Call:
        """Give a call whole what came out of one that was dealt along another dimension: a memory, say, carried on."""
        if not self._tries or call.module not in self._work or call.dim is not None:
            return call
        dim = self._chosen.get(call.module, 0)  # another one was tried as well
        found = [leaf._layout.total for _, leaf in call.leaves if isinstance(leaf, BatchTensor)]
        if not found or row_count_of_tensors(call, self._batch_dims, dim, is_scripts=True) in (None, *found):
            return call
        return call.with_arguments(*whole_arguments(call.args, call.kwargs))

    def note_work(
        self,
        module: nn.Module,
        local_args: LocalArgs,
        decision: SplitDecision,
        work: float,
        again: Callable[[], LocalArgs | None],
    ) -> None:
        """Take a call into account that was observed.

        Args:
            module: that was called.
            local_args: how its arguments were cut.
            decision: on the call, the same on every rank.
            work: of this rank for each number that the call was given; the next call may be of other sizes.
            again: enters the call with the dimension that is chosen then.
        """
        dim, name = local_args.layout.dim, original_class(module).__name__
        if decision.mode is CallMode.ROWS or module in self._settled:
            self._world.ledger.note(f"{name}: plain tensors of the script were dealt along dimension {dim}")
            return
        if dim == 0:
            self._tries, self._chosen[module], self._work[module] = True, 1, work
            entered = again()
            if entered is not None and entered.holds_dealt_tensors:  # to be seen in the next call
                inner, on_batches = {described(part) for part in module.modules()}, self._world.ledger.on_batches
                self._reasons[module] = {part: on_batches.pop(part) for part in list(on_batches) if part in inner}
                return
            better = False
        else:
            better = self._world.share([work < _ENOUGH * self._work[module]])[0][0]  # as rank 0 has it
        if not better:
            del self._chosen[module]
            self._world.ledger.on_batches.update(self._reasons.pop(module, {}))
        self._settled.add(module)
        self._world.ledger.note(
            f"{name}: plain tensors of the script were dealt along dimension {int(better)}, and not all of it keeps "
            "rows apart. If another dimension is the batch's, write ddp_patch.enable(batch_dims={argument: dimension})"
        )

    def close(self) -> None:
        """Let go of the modules."""
        self._chosen.clear()
        self._work.clear()
        self._settled.clear()
        self._reasons.clear()
