"""A call of a form that is new: it runs on batches, and what it does is seen."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.packed import PackedRows
from ..batch.sizes import without_batch_sizes
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..calling.call_mode import CallMode
from ..calling.calls import Call
from ..calling.census import ModuleContents
from ..calling.given_back import GivenBack
from ..calling.kept_attributes import LayerAttributes
from ..calling.local_arguments import LocalArgs
from ..calling.rows import as_batches, copying_writes_back, detached
from ..calling.scripts_code import is_own
from ..calling.swap import original_class
from ..structure import leaves
from .agreed import muted
from .arguments import SavedArguments
from .attribute_reads import may_be_read_first
from .call_forms import CallForm
from .containers import PLAIN
from .fingerprint import Fingerprints
from .guards import CHANGES_OUTSIDE, MORE_THAN_WATCHED
from .observing import observation, observed, restored_if_it_fails, untouched
from .trial_verdict import SplitDecision, decide_by_trial


class ObservedCall:
    """It, what was seen of it, and what a trial of its module says."""

    def __init__(
        self,
        world: World,
        fingerprints: Fingerprints,
        call: Call,
        local_args: LocalArgs,
        layers: list[nn.Module],
        is_to_be_tried: bool,
    ) -> None:
        """Note what stands before it.

        Args:
            world: the ranks.
            fingerprints: that of the module was asked for.
            call: to carry out.
            local_args: how its arguments are cut.
            layers: of the module.
            is_to_be_tried: the module, on copies, with these arguments.
        """
        self._world = world
        self._fingerprints = fingerprints
        self._call = call
        self._local_args = local_args
        self._layers = layers
        self._arguments = arguments = as_batches(call.args, call.kwargs, local_args)
        # Copied now, since forward may write to its arguments.
        self._copies = (detached(arguments), detached((local_args.args, local_args.kwargs))) if is_to_be_tried else None
        guards, self._generators = fingerprints.guards(call.module), fingerprints.generators(call)
        self.seen = observation(call, local_args.layout, lambda code: guards.noted([*leaves(arguments), ("", code)]))
        self._saved_arguments = SavedArguments(call, arguments)
        self._given_back = GivenBack(call.leaves, leaves(arguments))
        self.before = guards.noted(leaves(arguments))
        self._attributes = LayerAttributes(layers)
        self.outputs: Any = None  # what its forward returned, wrote to containers and left in attributes
        self._wrote: list[torch.Tensor] = []
        if guards.is_truncated:
            self.seen.forbid_split(*MORE_THAN_WATCHED)
        if any(isinstance(leaf, PackedRows) for _, leaf in leaves(arguments)):
            self.seen.forbid_split("it is given packed sequences", "Pack inside: give it the padded batch, and lengths")

    def run(self, counting: AbstractContextManager[Any]) -> Any:
        """Compute it on batches.

        Args:
            counting: surrounds its forward.
        """
        call, arguments = self._call, self._arguments
        args, kwargs = arguments
        held = [leaf for _, leaf in leaves(arguments) if isinstance(leaf, BatchTensor)]
        uses = [*map(sys.getrefcount, held)]
        with (
            copying_writes_back(call.args, call.kwargs, arguments, self._wrote),
            restored_if_it_fails(self._layers, self.seen, self._generators, self._saved_arguments),
            observed(self._world, self.seen),
            self._world.telling_batch_sizes(),
            counting,
        ):
            result = call.run(*args, **kwargs)
        outputs = self._saved_arguments.containers.with_writes(without_batch_sizes(result))
        given_back = self._given_back
        result = given_back.put_back(given_back.numbered(outputs, self._local_args, {}, self._wrote))
        result = self._saved_arguments.containers.write_back(result)
        codes = self._fingerprints.guards(call.module).codes
        self.seen.places = tuple(
            (number, name)
            for number, name in self._attributes.places_of(self.seen.kept.alive() | set(map(id, held)))
            if is_own(original_class(self._layers[number])) and not may_be_read_first(name, codes)
        )
        self.outputs = self._attributes.along_with(outputs, self.seen.places)
        if self.seen.kept.are_hidden(self.outputs, held, uses):
            kinds = (type(leaf) for _, leaf in leaves(self.outputs))
            holder = next((kind.__name__ for kind in kinds if kind not in PLAIN and not issubclass(kind, Tensor)), "")
            if holder:  # a distribution, say
                why = f"its forward returns a {holder}, which is handed on as it is, with the batches in it"
                self.seen.forbid_split(why, "Return the tensors, and make it in the script")
            self.seen.forbid_split("its forward keeps a batch for later", "Return it instead")
        if self._wrote:
            why = "its forward writes to an argument, which is no batch of a loader"
            self.seen.forbid_split(why, "Return a new tensor instead")
        return result

    def has_rebound(self, form: CallForm, contents: ModuleContents) -> bool:
        """Tell whether it bound anew what its forward may branch on, outside of the module's attributes, and alike.

        Args:
            form: of the call.
            contents: of the module.
        """
        with self._attributes.as_before(self.seen.places, self._fingerprints.noted):
            is_alike = self._fingerprints.of(self._call.module, contents).reached == form.state.reached
        changed = self.before.was_written_to()
        if changed or not is_alike:
            # A trial would do that again, and rows would do it with what they see.
            self.seen.forbid_split(*CHANGES_OUTSIDE)
        return changed and is_alike

    def as_given(self) -> AbstractContextManager[None]:
        """Surround what is to find the script's arguments as they were before the call."""
        return self._saved_arguments.containers.as_before()

    def as_tried(self, before: SplitDecision) -> SplitDecision:
        """Give the decision of a trial with other sizes, if this call left batches where that one did.

        Args:
            before: that decision.
        """
        if before.mode is CallMode.ROWS and before.kept != self.seen.places:
            return SplitDecision(CallMode.BATCHES, "its forward keeps a batch for some sizes. Return it instead")
        return before

    def tried(self) -> SplitDecision:
        """Try the module on copies."""
        assert self._copies is not None
        rows, seen = self._local_args.layout.rows(self._world.rank), self.seen
        with (
            muted(self._world),
            self._attributes.as_before(self.seen.places, self._fingerprints.noted),
            untouched(self._layers),
            self._saved_arguments.containers.as_before(),
        ):
            decision = decide_by_trial(self._call.module, *self._copies, rows, seen, generators=self._generators)
        if self.before.was_written_to():  # the trial did it, which the call did not: maybe on this rank alone
            self.before.put_back()
            return SplitDecision(CallMode.BATCHES, ". ".join(CHANGES_OUTSIDE))
        if decision.mode is CallMode.ROWS and seen.unknown_functions:
            why = f"{decision.reason}, though {', '.join(seen.unknown_functions)} ..."
            return dataclasses.replace(decision, reason=why)
        return decision
