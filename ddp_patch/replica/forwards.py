"""How one call of a module is carried out: on rows, on batches, or on the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from ..batch.packed import PackedRows
from ..batch.reductions import Reductions
from ..batch.row_sums import noticed
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..calling import compiled
from ..calling.call_mode import CallMode
from ..calling.calls import Call, described
from ..calling.census import ModuleContents
from ..calling.compiled import Compiling
from ..calling.containers import Containers
from ..calling.entry import Entry, plain_targets
from ..calling.per_rank_generators import PerRankGenerators
from ..calling.recall import Recall
from ..calling.rows import as_batches, leave, whole_arguments, writing_back
from ..deciding.trial_verdict import SplitDecision
from ..errors import BatchError, DdpPatchError
from ..gradients.graphs import comes_from
from ..ledger import raised
from ..structure import leaves
from .replica import Replica

REFUSED = object()
CallPosition = tuple[int, int, bool]
ON_WHOLE: CallPosition = (1, 0, False)  # inside a module that computes the whole batch
_MOST_NODES = 64  # of a graph that are looked at in every call


class Forwards:
    """Carries out calls, and knows where among them this rank is."""

    def __init__(self, world: World, generators: PerRankGenerators, recall: Recall, syncs_norms: bool) -> None:
        """Start outside of any call.

        Args:
            world: the ranks.
            generators: that rows draw from on this rank.
            recall: of how modules were computed.
            syncs_norms: the ranks meet in each BatchNorm.
        """
        self.computes_rows = False  # a module is computing this rank's rows
        self.opened = 0  # > 0 while a forward runs on batches, and the modules that it calls are looked at
        self.items: int | None = None  # how many entries its lists have, if it is given some with one for each row
        self.count = 0  # of model calls that may fail on some ranks only so far, the same number on every rank
        self._depth = 0  # > 0 while what a module calls is not looked at: it computes rows, say
        self.compiling: Compiling | None = None  # a compiled function runs on batches: what it calls is compiled
        self._world = world
        self._generators = generators
        self._recall = recall
        self._syncs_norms = syncs_norms

    @property
    def inside(self) -> bool:
        """Whether a module is running that was already decided on."""
        return self._depth > 0

    @property
    def running(self) -> bool:
        """Whether a module is running that calls are known of."""
        return self._depth > 0 or self.opened > 0

    def on_rows(
        self, call: Call, entry: Entry, decision: SplitDecision, contents: ModuleContents, replica: Replica | None
    ) -> Any:
        """Compute this rank's rows, and make batches of what comes out.

        Args:
            call: of the script, or of a forward that runs on batches.
            entry: how its arguments are cut.
            decision: on it.
            contents: what the module holds.
            replica: of the outermost module; None inside.

        Returns:
            What the module returns, or ``REFUSED`` if it can only be compiled as one graph, in which ranks would meet.
        """
        self._world.ledger.rows[entry.layout.counts[self._world.rank]] += 1
        losses = None
        if decision.losses:
            losses = Reductions(decision.losses, entry.layout, self._world.rank, plain_targets(call, entry))
        breaks = [] if losses is None else [*compiled.LOSS_FUNCTIONS]
        if self._syncs_norms and compiled.meets_in_norms(contents.layers):
            breaks += compiled.BATCH_NORM
        written = compiled.writings(contents.layers) if breaks else None
        containers = Containers((call.args, call.kwargs), (entry.args, entry.kwargs))
        is_outermost = self._generators.enter_torch()
        self.computes_rows, self._depth, self.count = True, self._depth + 1, self.count + 1
        try:
            if breaks or self.opened or self.compiling is not None:
                with self._around_rows(call.module, losses, breaks):
                    outputs = _run(call, entry, replica)
            else:
                outputs = _run(call, entry, replica)
            if losses is not None:
                losses.check()
            outputs = containers.with_writes(outputs)
        except DdpPatchError:
            raise
        except Exception as error:
            if breaks and compiled.needs_one_graph(error):
                return self._refused(call, contents, written, error)
            self._world.check_all_failed(error, f"call {self.count} of {described(call.module)}")
            raise
        finally:
            self.computes_rows, self._depth = False, self._depth - 1
            if is_outermost:
                self._generators.leave()
        try:
            if replica is not None:  # before they are batches: a rank's own tensors are hooked at once
                outputs = replica.hook_outputs(outputs, entry.leaves)
            return containers.write_back(leave(call.module, outputs, entry, decision.dims, call.vector))
        except Exception as error:  # the shapes of this rank's rows may tell what those of others do not
            self._world.check_all_failed(error, f"the outputs of call {self.count} of {described(call.module)}")
            raise

    def _around_rows(self, module: nn.Module, losses: Reductions | None, breaks: list[str]) -> ExitStack:
        around = ExitStack()
        if self.opened and (breaks or compiled.is_used()):
            around.enter_context(compiled.stance("default"))
        if losses is not None:
            around.enter_context(self._world.reducing(losses))
            around.enter_context(noticed(losses.have_sums))
        if breaks:
            around.enter_context(compiled.breaking_graphs(breaks))
        if self.compiling is not None:
            around.enter_context(self.compiling.forward_of(module))
        return around

    def _refused(self, call: Call, contents: ModuleContents, written: int | None, error: Exception) -> Any:
        if written == compiled.writings(contents.layers):
            return REFUSED
        raise BatchError(
            f"{described(call.module)}: torch.compile(fullgraph=True) does not let ranks meet in forward, for a loss "
            "or BatchNorm, and this forward updated statistics before that was known. Write fullgraph=False."
        ) from error

    def opened_up(self, call: Call, entry: Entry) -> Any:
        """Run a forward as written, on batches, and look at the modules that it calls."""
        with self.opening(entry.items), compiled.stance("force_eager"):
            return self.on_batches(call, entry)

    @contextmanager
    def opening(self, items: int | None = None) -> Iterator[None]:
        """Look at the modules that are called inside, where lists may have so many entries, one for each row."""
        self.opened += 1
        before, self.items = self.items, items or self.items
        try:
            yield
        finally:
            self.opened -= 1
            self.items = before

    def on_batches(self, call: Call, entry: Entry) -> Any:
        """Run a forward as written, on batches."""
        batches = as_batches(call.args, call.kwargs, entry)
        containers = Containers((call.args, call.kwargs), batches)
        with writing_back(call.args, call.kwargs, batches, []):
            return containers.write_back(containers.with_writes(call.of(*batches).as_written()))

    def on_whole(self, call: Call, is_first: bool = False) -> Any:
        """Run a forward as written, on plain tensors of all rows.

        Args:
            call: to carry out.
            is_first: of its form, and it was tried on batches and on rows before.
        """
        has_batches = any(isinstance(leaf, (BatchTensor, PackedRows)) for _, leaf in leaves((call.args, call.kwargs)))
        with ExitStack() as around:
            around.enter_context(self.closed())
            if has_batches:
                around.enter_context(self._world.working_on_whole(f"the arguments of {described(call.module)}"))
            args, kwargs = whole_arguments(call.args, call.kwargs)
            containers = Containers((call.args, call.kwargs), (args, kwargs))
            try:
                return containers.write_back(containers.with_writes(call.run(*args, **kwargs)))
            except Exception as error:
                if is_first:  # which is why neither batches nor rows would do
                    self._world.ledger.on_whole[described(call.module)] = f"its forward raises {raised(error)}"
                raise

    def unclear(self, call: Call, why: str) -> Any:
        """Run a call on batches, if a model makes it: attention masks, say, of texts as long as there are texts.

        Raises:
            BatchError: if the script makes it, which can say what it means.
        """
        if not self.opened and not self._recall.is_on:
            raise BatchError(why)
        if self._recall.is_on:
            self._recall.of(call.module)
        self._recall.note(call.module, CallMode.OBSERVED)
        with self.closed():
            return call.as_written()

    def keeps_global(self, trains: Callable[[torch.Tensor], bool], tensor: torch.Tensor) -> bool:
        """Tell whether all that a tensor's gradient reaches is averaged over the ranks anyway: parameters of replicas.

        Averaging is linear, so a rank's share may flow through what a forward computes from parameters alone, such as
        embeddings of positions, unless somebody looks at gradients there.

        Args:
            trains: tells the parameters of replicas.
            tensor: that rows meet.
        """
        if trains(tensor):
            return True
        if tensor.grad_fn is None or not (self.running and self._world.may_assume):
            return False
        return comes_from(tensor, trains, _MOST_NODES)

    @property
    def place(self) -> CallPosition:
        """Where this rank is among the calls of modules."""
        return self._depth, self.opened, self.computes_rows

    @contextmanager
    def back_at(self, place: CallPosition) -> Iterator[None]:
        """Be where a forward was, while backward computes a part of it again."""
        before = self.place
        self._depth, self.opened, self.computes_rows = place
        try:
            yield
        finally:
            self._depth, self.opened, self.computes_rows = before

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Look at nothing that is called inside."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


def _run(call: Call, entry: Entry, replica: Replica | None) -> Any:
    if replica is None or replica.module is not call.module:
        return call.run(*entry.args, **entry.kwargs)
    return replica.run(call, entry)
