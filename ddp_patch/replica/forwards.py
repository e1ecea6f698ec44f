"""How one call of a module is carried out: on this rank's rows, on batches, or on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from ..batch.packed import PackedRows
from ..batch.reductions import Reductions
from ..batch.row_sums import noticed
from ..batch.sizes import without_batch_sizes
from ..batch.tensor import BatchTensor
from ..batch.wholes import whole_arguments
from ..batch.world import World
from ..calling import compiled
from ..calling.call_mode_replay import CallModeReplay
from ..calling.calls import Call, described
from ..calling.census import ModuleContents
from ..calling.compiled import Compiling
from ..calling.containers import Containers
from ..calling.given_back import GivenBack
from ..calling.kept_attributes import KeptAttributes, Noted
from ..calling.local_arguments import LocalArgs
from ..calling.per_rank_generators import PerRankGenerators
from ..calling.rows import as_batches, copying_writes_back, wrap_outputs
from ..deciding.trial_verdict import SplitDecision
from ..errors import BatchError, DdpPatchError
from ..gradients.graphs import comes_from
from ..ledger import raised
from ..structure import leaves
from .call_stack import CallStack
from .replica import Replica

REQUIRES_FULLGRAPH = object()
_MOST_NODES = 64  # of a graph that are looked at in every call


class Forwards(CallStack):
    """Carries out calls, and knows where among them this rank is."""

    def __init__(
        self,
        world: World,
        generators: PerRankGenerators,
        replay: CallModeReplay,
        noted: Noted,
        syncs_norms: bool,
    ) -> None:
        """Start outside of any call.

        Args:
            world: the ranks.
            generators: that rows draw from on this rank.
            replay: of how modules were computed.
            noted: is told what an attribute of a layer held and what it holds.
            syncs_norms: the ranks meet in each BatchNorm.
        """
        super().__init__(world)
        self.taken: frozenset[tuple[int, str]] = frozenset()  # attributes whose values are taken away from this call
        self.call_count = 0  # of model calls that may fail on some ranks only so far, the same number on every rank
        self.compiling: Compiling | None = None  # a compiled function runs on batches: what it calls is compiled
        self._generators, self._replay, self._noted = generators, replay, noted
        self._syncs_norms = syncs_norms

    def on_rows(
        self, call: Call, local: LocalArgs, decision: SplitDecision, contents: ModuleContents, replica: Replica | None
    ) -> Any:
        """Compute this rank's rows, and make batches of what comes out.

        Args:
            call: of the script, or of a forward that runs on batches.
            local: how its arguments are cut.
            decision: on it.
            contents: what the module holds.
            replica: of the outermost module; None inside.

        Returns:
            What the module returns, or ``REQUIRES_FULLGRAPH`` if ranks would meet in what is compiled as one graph.
        """
        self._world.ledger.rows[local.layout.counts[self._world.rank]] += 1
        losses = None
        if decision.losses:
            losses = Reductions(decision.losses, local.layout, self._world.rank, _plain_targets(call, local))
        graph_breaks = [] if losses is None else [*compiled.LOSS_FUNCTIONS]
        if self._syncs_norms and compiled.is_used() and compiled.meets_in_norms(contents.layers):
            graph_breaks += compiled.BATCH_NORM
        buffer_writes = compiled.count_buffer_writes(contents.layers) if graph_breaks else None
        containers, kept, given_back = _NOTHING_ASIDE
        if decision.kept or not local.is_of_batches_alone:
            containers = Containers((call.args, call.kwargs), (local.args, local.kwargs))
            kept, given_back = KeptAttributes(contents.layers, decision.kept), GivenBack(call.leaves, local.leaves)
        self.taken = kept.identities
        is_outermost = self._generators.enter_torch()
        self.computes_rows, self._bypass_depth, self.call_count = True, self._bypass_depth + 1, self.call_count + 1
        try:
            if graph_breaks or self.intercept_depth or self.compiling is not None:
                with self._around_rows(call.module, losses, graph_breaks):
                    outputs = _run(call, local, replica)
            else:
                outputs = _run(call, local, replica)
            if losses is not None:
                losses.check()
            is_plain = not (containers.entries or given_back.own or decision.kept)  # nothing comes out by another way
            if not is_plain:
                outputs = given_back.numbered(containers.with_writes(outputs), local, decision.dims)
                outputs = kept.with_values(outputs, given_back.copied)
        except DdpPatchError:
            raise
        except Exception as error:
            if self._replay.is_on:  # torch ends what is computed again once it has what it needs
                left = kept.with_values(None, given_back.copied)
                kept.write_back(wrap_outputs(call, left, local, decision.dims), self._noted)
            if graph_breaks and compiled.needs_full_graph(error):
                return self._report_fullgraph(call, contents, buffer_writes, error)
            self._world.check_all_failed(error, f"call {self.call_count} of {described(call.module)}")
            raise
        finally:
            if decision.kept:
                kept.put_back()
            self.taken = frozenset()
            self.computes_rows, self._bypass_depth = False, self._bypass_depth - 1
            if is_outermost:
                self._generators.leave()
        try:
            if replica is not None:  # before they are batches: a rank's own tensors are hooked at once
                given = local.leaves
                if min(local.layout.counts) == 1:  # one row may come out as a view of it where several are copied
                    wants = [leaf.requires_grad for _, leaf in given if isinstance(leaf, torch.Tensor)]
                    given = [("", torch.empty(0, requires_grad=any(wants)))]
                outputs = replica.hook_outputs(outputs, given)
            outputs = wrap_outputs(call, outputs, local, decision.dims)
            if is_plain:
                return outputs
            return containers.write_back(kept.write_back(given_back.put_back(outputs), self._noted))
        except Exception as error:  # the shapes of this rank's rows may tell what those of others do not
            self._world.check_all_failed(error, f"the outputs of call {self.call_count} of {described(call.module)}")
            raise

    def _around_rows(self, module: nn.Module, losses: Reductions | None, graph_breaks: list[str]) -> ExitStack:
        around = ExitStack()
        if self.intercept_depth and (graph_breaks or compiled.is_used()):
            around.enter_context(compiled.stance("default"))
        if losses is not None:
            around.enter_context(self._world.reducing(losses))
            around.enter_context(noticed(losses.have_sums))
        if graph_breaks:
            around.enter_context(compiled.breaking_graphs(graph_breaks))
        if self.compiling is not None:
            around.enter_context(self.compiling.forward_of(module))
        return around

    def _report_fullgraph(self, call: Call, contents: ModuleContents, writes: int | None, error: Exception) -> Any:
        if writes == compiled.count_buffer_writes(contents.layers):
            return REQUIRES_FULLGRAPH
        raise BatchError(
            f"{described(call.module)}: torch.compile(fullgraph=True) does not let ranks meet in forward, for a loss "
            "or BatchNorm, and this forward updated statistics before that was known. Write fullgraph=False."
        ) from error

    def on_batches_with_interception(self, call: Call, local: LocalArgs, decision: SplitDecision | None = None) -> Any:
        """Run a forward as written, on batches, and decide on each submodule that it calls."""
        with self.intercepting_submodules(local.items), compiled.stance("force_eager"):
            return self.on_batches(call, local, decision is not None and decision.tells_batch_sizes)

    def on_batches(self, call: Call, local: LocalArgs, tells_sizes: bool) -> Any:
        """Run a forward as written, on batches.

        Args:
            call: of the script, or of a forward that runs on batches.
            local: how its arguments are cut.
            tells_sizes: what it makes of the batch size is a batch as well.
        """
        batches = as_batches(call.args, call.kwargs, local)
        containers = Containers((call.args, call.kwargs), batches)
        given_back, wrote = GivenBack(call.leaves, leaves(batches)), list[torch.Tensor]()
        with copying_writes_back(call.args, call.kwargs, batches, wrote):
            with self._world.telling_batch_sizes(tells_sizes):
                result = call.with_arguments(*batches).as_written()
            result = containers.with_writes(without_batch_sizes(result))
        return containers.write_back(given_back.put_back(given_back.numbered(result, local, {}, wrote)))

    def on_whole(self, call: Call, is_first: bool = False) -> Any:
        """Run a forward as written, on plain tensors of all rows.

        Args:
            call: to carry out.
            is_first: of its form, and it was tried on batches and on rows before.
        """
        has_batches = any(isinstance(leaf, (BatchTensor, PackedRows)) for _, leaf in leaves((call.args, call.kwargs)))
        with ExitStack() as around:
            around.enter_context(self.without_interception())
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

    def has_averaged_gradient(self, is_trained: Callable[[torch.Tensor], bool], tensor: torch.Tensor) -> bool:
        """Tell whether a tensor's gradient reaches parameters of replicas alone, for which DDP averages it.

        Averaging is linear, so a rank's share may flow through what a forward computes from parameters alone, such as
        embeddings of positions, unless somebody looks at gradients there.

        Args:
            is_trained: tells whether a tensor is a parameter of a replica.
            tensor: that rows meet.
        """
        if is_trained(tensor):
            return True
        if tensor.grad_fn is None or self._world.looks_at_gradients or not self.is_in_call:
            return False
        return comes_from(tensor, is_trained, _MOST_NODES)


# Of what comes out of a forward beside its outputs, where it is given batches alone and keeps none.
_NOTHING_ASIDE = Containers(((), {}), ((), {})), KeptAttributes((), ()), GivenBack([], [])


def _run(call: Call, local: LocalArgs, replica: Replica | None) -> Any:
    if replica is None or replica.module is not call.module:
        return call.run(*local.args, **local.kwargs)
    return replica.run(call, local)


def _plain_targets(call: Call, local_args: LocalArgs) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Whole numbers among a call's plain arguments, each with this rank's rows of it."""
    return [
        (whole, rows)
        for (_, whole), (_, rows) in zip(call.leaves, local_args.leaves, strict=True)
        if type(whole) is torch.Tensor and rows is not whole and not whole.is_floating_point()
    ]
