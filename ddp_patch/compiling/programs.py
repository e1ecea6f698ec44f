"""What one graph of a traced function does, for each form of its arguments.

TorchDynamo traces a function as one process would run it, for tensors of the whole batch's shape, and watches all that
it depends on. The graph is computed on batches once, function by function; what its rules call on rows then makes up
parts, which are compiled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..batch.forms import full_tensor_if_gathered
from ..batch.pending_tensor import PendingTensor
from ..batch.tensor import BatchTensor
from ..batch.world import World
from .parts import Parts
from .program import Program, Run
from .recorder import Recorder, is_simple

_MOST = 64  # forms of one graph that are remembered


class Programs:
    """What one graph does, for each form of its arguments."""

    def __init__(self, graph: fx.GraphModule, parts: Parts) -> None:
        """Know none.

        Args:
            graph: of torch functions.
            parts: of the function that the graph was traced of.
        """
        self._module = graph
        self._nodes = list(graph.graph.nodes)
        self._parts = parts
        self._programs: dict[Any, Program] = {}

    def run(self, world: World, inputs: list[Any]) -> Any:
        """Compute what the graph gives.

        Args:
            world: the ranks.
            inputs: what its placeholders stand for: batches, sums that wait, plain tensors and sizes.
        """
        count = world.operations + len(self._nodes)  # whatever parts a rank has
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()):  # a graph may change it, and fail
                return self._run(world, inputs)
        finally:
            world.operations = count

    def _run(self, world: World, inputs: list[Any]) -> Any:
        form = _form(inputs)
        if form is None:
            return Run(self._module, world, Program(), inputs).as_nodes(self._nodes)
        if form in self._programs:
            return Run(self._module, world, self._programs[form], inputs).outputs(self._nodes[-1])
        if len(self._programs) >= _MOST:
            self._programs.clear()
        recorder = Recorder(Run(self._module, world, Program(), inputs), self._nodes, self._parts)
        outputs = recorder.recorded()
        self._programs[form] = recorder.program
        return outputs


def _form(inputs: list[Any]) -> Any:
    """Tell what a program depends on; None where batches share memory in ways that only rules know."""
    found: list[Any] = []
    for value in inputs:
        if isinstance(value, BatchTensor):
            if not is_simple(value):
                return None
            has_whole = full_tensor_if_gathered(value) is not None
            form = value.forms[0]
            found.append((value._layout, form.shape, form.stride(), value.requires_grad, has_whole))
        elif isinstance(value, PendingTensor):
            found.append("sum")
        elif isinstance(value, Tensor):
            found.append((value.shape, value.stride(), value.requires_grad))
        else:
            found.append((type(value), value))
    return (torch.is_grad_enabled(), *found)
