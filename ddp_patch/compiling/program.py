"""What a traced function does on batches, step by step: parts on rows, and between them what ranks meet in."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from ..batch.forms import to_local
from ..batch.layout import Layout
from ..batch.pending_tensor import pending_reduction
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..structure import leaves, map_leaves
from .parts import Number, Part


class OfRows(NamedTuple):
    """A result that is made of rows."""

    rows: Number
    layout: Layout


class OfSum(NamedTuple):
    """A result that is a sum over all rows."""

    partial: Number
    divisor: Any
    count: Any
    rows: Any
    dtype: torch.dtype | None
    node: str | None


class Argument(NamedTuple):
    """A result that an argument is."""

    node: fx.Node
    leaf: int


class Place(NamedTuple):
    """Where a tensor comes from: a leaf of a value."""

    node: fx.Node
    leaf: int
    form: str  # "rows" or "whole", of a batch; "plain"


class Template:
    """A leaf of what a node gives, or all of it; it is one thing to who looks into containers."""

    def __init__(self, value: Any) -> None:
        """Hold what is to be made, or containers with templates in them."""
        self.value = value


@dataclass
class Program:
    """Steps in their order, and what is made of their results."""

    steps: list[Part | fx.Node] = field(default_factory=list)
    results: dict[fx.Node, Template] = field(default_factory=dict)  # of nodes in parts
    places: dict[int, Place] = field(default_factory=dict)  # of tensors that come from elsewhere


class Run:
    """One run of a program."""

    def __init__(self, module: fx.GraphModule, world: World, program: Program, inputs: list[Any]) -> None:
        """Begin.

        Args:
            module: the traced graph.
            world: the ranks.
            program: what the graph does.
            inputs: what its placeholders stand for.
        """
        self.module, self.world, self.program = module, world, program
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.values: dict[fx.Node, Any] = dict(zip(placeholders, inputs, strict=True))
        self.tensors: dict[int, Tensor] = {}

    def outputs(self, last: fx.Node) -> Any:
        """Run the program; gives what the graph does.

        Args:
            last: node of the graph, its output.
        """
        for step in self.program.steps:
            if isinstance(step, Part):
                self.run_part(step)
            else:
                self.values[step] = self.called(step)
        return self.of(last.args[0])

    def as_nodes(self, nodes: list[fx.Node]) -> Any:
        """Compute the graph on batches, node by node."""
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                self.values[node] = self.called(node)
        return self.of(nodes[-1].args[0])

    def run_part(self, part: Part) -> None:
        """Compute what a part gives."""
        world, taken = self.world, [self._tensor(number) for number in part.takes]
        operation = world.operations = world.operations + 1
        assert part.run is not None
        try:
            made = part.run(*taken)
        except Exception as error:  # a target out of range in one rank's rows, say
            world.check_all_failed(error, f"a part of a compiled function (operation {operation} on batches)")
            raise
        self.tensors.update(zip(part.gives, made, strict=True))

    def called(self, node: fx.Node) -> Any:
        """Compute one node on batches."""
        args, kwargs = self.of(node.args), self.of(node.kwargs)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.module)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def of(self, argument: Any) -> Any:
        """Give a node's arguments, with values in the place of nodes."""
        return fx.map_arg(argument, self.value)

    def value(self, node: fx.Node) -> Any:
        """Give what a node gave; of one in a part, it is made when somebody asks."""
        if node not in self.values:
            self.values[node] = map_leaves(self._made, self.program.results[node].value)
        return self.values[node]

    def _made(self, template: Any) -> Any:
        if isinstance(template, Template):
            template = template.value
        if isinstance(template, OfRows):
            return BatchTensor.from_local(self._tensor(template.rows), template.layout)
        if isinstance(template, Argument):
            return leaves(self.value(template.node))[template.leaf][1]
        if isinstance(template, OfSum):
            operands = [self._tensor(item) if isinstance(item, Number) else item for item in template[:4]]
            return pending_reduction(operands[0], operands[1], operands[2], operands[3], template.dtype, template.node)
        return template

    def _tensor(self, number: int) -> Tensor:
        if number not in self.tensors:
            node, leaf, form = self.program.places[number]
            value = leaves(self.value(node))[leaf][1]
            self.tensors[number] = value if form == "plain" else to_local(value) if form == "rows" else value._whole
        return self.tensors[number]
