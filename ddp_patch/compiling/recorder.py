"""Computes a graph on batches once, function by function, and notes what is done to rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from ..batch.aliases import ALIASED, holders_of
from ..batch.forms import full_tensor_if_gathered, to_local
from ..batch.nested import nested
from ..batch.pending_tensor import PendingTensor
from ..batch.tensor import BatchTensor
from ..structure import leaves, map_leaves
from .nodes import is_torchs, is_writer, writes
from .parts import Number, Part, Parts, is_plain, spelling
from .program import Argument, OfRows, OfSum, Place, Run, Template
from .tape import Tape, TapedSum

_MADE = {"_rows", "_rows_version", "_layout"}  # what a batch has that is made of rows
_Origin = tuple[int, tuple[int, ...]]  # which call gave a tensor, and where among its results


class Recorder:
    """Computes a graph on batches, function by function, and notes what it does."""

    def __init__(self, run: Run, nodes: list[fx.Node], parts: Parts) -> None:
        """Begin.

        Args:
            run: of a program that does nothing yet, with the graph's arguments.
            nodes: of the graph.
            parts: of the function.
        """
        self._run, self._nodes, self._parts = run, nodes, parts
        self.program = run.program
        self._part: Part | None = None
        self._count = 0
        # Numbers that are the same in every run of the program.
        self._fixed = {node for node in nodes if node.op == "placeholder" and type(run.value(node)) is int}
        self._numbers: dict[tuple[fx.Node, int, str], Number] = {}  # of tensors that come from elsewhere
        self._of_rows: dict[int, Number] = {}  # by the identity of rows that were computed in parts
        self._made: dict[int, Tensor] = {}  # what was computed in parts

    def recorded(self) -> Any:
        """Compute the graph; gives its outputs, and leaves the program."""
        for node in self._nodes:
            if node.op not in ("placeholder", "output"):
                self._record(node)
        outputs = self._run.of(self._nodes[-1].args[0])
        if any(writes(node, self._run) for node in self._nodes):
            self.program.steps = [node for node in self._nodes if node.op not in ("placeholder", "output")]
            self.program.results.clear()
            return outputs
        wanted = self._wanted()
        for step in self.program.steps:
            if isinstance(step, Part):
                step.finish(wanted, self._parts)
        self.program.steps = [step for step in self.program.steps if not isinstance(step, Part) or step.gives]
        self._run.tensors = self._made
        for step in self.program.steps:
            if isinstance(step, Part):  # it is compiled where it runs first, and now is when scripts wait for that
                with torch.set_grad_enabled(step.has_graph):
                    self._run.run_part(step)
        return outputs

    def _wanted(self) -> set[int]:
        wanted: set[int] = set()
        for step in self.program.steps:
            if isinstance(step, Part):
                wanted.update(step.takes)
        needed = {
            argument for node in self._nodes if node not in self.program.results for argument in node.all_input_nodes
        }
        needed.update(place.node for place in self.program.places.values())
        left, seen = [*needed], set(needed)
        while left:
            results = self.program.results.get(left.pop())
            for leaf in _flat(None if results is None else results.value):
                made = leaf.value if isinstance(leaf, Template) else None
                if isinstance(made, (OfRows, OfSum)):
                    wanted.update(item for item in made if isinstance(item, Number))
                elif isinstance(made, Argument) and made.node not in seen:
                    seen.add(made.node)
                    left.append(made.node)
        return wanted

    def _record(self, node: fx.Node) -> None:
        run = self._run
        inputs = _flat(run.of((node.args, node.kwargs)))
        batches = [leaf for leaf in inputs if isinstance(leaf, BatchTensor)]
        if node.all_input_nodes and self._fixed.issuperset(node.all_input_nodes):
            self._fixed.add(node)  # of sizes that the form names, and of nothing else
        is_fixed = all(other in self._fixed for other in node.all_input_nodes if _has_numbers(run.value(other)))
        may_tape = is_fixed and is_torchs(node) and not is_writer(node)
        if not batches or not may_tape or any(not is_simple(batch) for batch in batches):
            run.values[node] = run.called(node)
            self._step(
                node,
                is_free=not (is_writer(node) or any(isinstance(leaf, (BatchTensor, PendingTensor)) for leaf in inputs)),
            )
            return
        forms = [form for batch in batches for form in (to_local(batch), batch._whole) if form is not None]
        with Tape(run.world, [*forms, *(leaf for leaf in inputs if type(leaf) is Tensor)]) as tape:
            value = run.values[node] = run.called(node)
        sources = self._sources(node)
        template = self._template(node, value, tape, sources) if tape.is_whole else None
        if template is None:
            self._step(node, is_free=False)
            return
        self.program.results[node] = template

    def _step(self, node: fx.Node, is_free: bool) -> None:
        """Note a node that is called as it is.

        Args:
            node: of the graph.
            is_free: it may be called before what is on rows, if it is of nothing there.
        """
        needs = {other for other in node.all_input_nodes if other in self.program.results}
        result = self._run.values[node]
        if self._part is not None and is_free and not needs and isinstance(result, (Tensor, int, float)):
            self.program.steps.insert(-1, node)
            return
        self._part = None
        self.program.steps.append(node)

    def _sources(self, node: fx.Node) -> dict[int, Place | Number]:
        """Give the tensors that a rule may call functions on, by identity."""
        found: dict[int, Place | Number] = {}
        for other in node.all_input_nodes:
            for at, leaf in enumerate(_flat(self._run.value(other))):
                if isinstance(leaf, BatchTensor):
                    rows, whole = leaf._rows, leaf._whole
                    if rows is not None:
                        found[id(rows)] = self._of_rows.get(id(rows), Place(other, at, "rows"))
                    if whole is not None and other.op == "placeholder" and full_tensor_if_gathered(leaf) is whole:
                        found.setdefault(id(whole), Place(other, at, "whole"))
                elif type(leaf) is Tensor and not (leaf.requires_grad and torch.is_grad_enabled()):
                    found.setdefault(id(leaf), Place(other, at, "plain"))
        return found

    def _template(self, node: fx.Node, value: Any, tape: Tape, sources: dict[int, Place | Number]) -> Template | None:
        """Tell what a node's result is made of, if it is of what is on the tape; then that is a part of the program."""
        made = _made(tape, sources)
        taken = {
            id(leaf): Argument(other, at)
            for other in node.all_input_nodes
            for at, leaf in enumerate(_flat(self._run.value(other)))
        }
        sums = {id(its.value): its for its in tape.sums}
        if made is None or not all(id(leaf) in taken or _is_made(leaf, made, sources, sums) for leaf in _flat(value)):
            return None
        number = self._add(tape, sources, made)

        def template(leaf: Any) -> Any:
            if id(leaf) in taken and isinstance(leaf, Tensor):
                return Template(taken[id(leaf)])
            if isinstance(leaf, PendingTensor):
                its = sums[id(leaf)]
                divisor, count, rows = (number(of) if isinstance(of, Tensor) else of for of in its[2:5])
                return Template(OfSum(number(its.partial), divisor, count, rows, its.dtype, its.node))
            if isinstance(leaf, BatchTensor):
                assert leaf._rows is not None
                self._of_rows[id(leaf._rows)] = number(leaf._rows)
                return Template(OfRows(number(leaf._rows), leaf._layout))
            return leaf

        return Template(map_leaves(template, value))

    def _add(
        self, tape: Tape, sources: dict[int, Place | Number], made: dict[int, _Origin]
    ) -> Callable[[Tensor], Number]:
        if self._part is None:
            self._part = Part()
            self.program.steps.append(self._part)
        new_numbers: dict[int, Number] = {}

        def number(tensor: Tensor) -> Number:
            if id(tensor) in new_numbers:
                return new_numbers[id(tensor)]
            place = sources[id(tensor)]
            if isinstance(place, Number):
                return place
            if place not in self._numbers:
                self._numbers[place] = self._new()
                self.program.places[self._numbers[place]] = place
            return self._numbers[place]

        def numbered(value: Any) -> Any:
            return nested(lambda leaf: number(leaf) if isinstance(leaf, Tensor) else leaf, value)

        for at, call in enumerate(tape.calls):
            args, kwargs = numbered(call.args), numbered(call.kwargs)
            results = []
            for path, tensor in call.tensors:
                if made.get(id(tensor)) == (at, path):
                    new_numbers[id(tensor)] = self._new()
                    self._made[new_numbers[id(tensor)]] = tensor
                    results.append((path, new_numbers[id(tensor)]))
            self._part.call(call.func, args, kwargs, results)
        return number

    def _new(self) -> Number:
        self._count += 1
        return Number(self._count)


def is_simple(batch: BatchTensor) -> bool:
    """Tell whether nobody else looks at a batch's memory."""
    if batch._is_slice or batch._is_aliased or batch._whole_copy is not None:
        return False
    return not (ALIASED and holders_of(to_local(batch)))


def _has_numbers(value: Any) -> bool:
    return any(isinstance(leaf, (int, float, complex)) for leaf in _flat(value))


def _flat(value: Any) -> list[Any]:
    return [leaf for _, leaf in leaves(value)]


def _made(tape: Tape, sources: dict[int, Place | Number]) -> dict[int, _Origin] | None:
    """Name the tensors that are computed on a tape, by identity; None if there is something that nobody knows."""
    made: dict[int, _Origin] = {}
    for at, call in enumerate(tape.calls):
        if spelling(call.func) is None:
            return None
        for leaf in _flat((call.args, call.kwargs)):
            if not (id(leaf) in sources or id(leaf) in made if isinstance(leaf, Tensor) else is_plain(leaf)):
                return None
        for path, tensor in call.tensors:
            if id(tensor) not in sources:
                made.setdefault(id(tensor), (at, path))
    return made


def _is_made(leaf: Any, made: dict[int, _Origin], sources: dict[int, Any], sums: dict[int, TapedSum]) -> bool:
    """Tell whether a result can be made again from what is on a tape."""
    if isinstance(leaf, PendingTensor) and id(leaf) in sums:
        its = sums[id(leaf)]
        of = [item for item in (its.partial, its.divisor, its.counted) if isinstance(item, Tensor)]
        return all(id(item) in made for item in of) and (its.rows is None or id(its.rows) in {**made, **sources})
    if isinstance(leaf, BatchTensor):
        return id(leaf._rows) in made and vars(leaf).keys() <= _MADE
    return not isinstance(leaf, Tensor)
