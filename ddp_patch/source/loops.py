"""The loops of a script: over batches, training or evaluating, and over epochs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property

import libcst as cst

from .inference import Inference
from .kinds import Kind
from .names import dotted
from .scopes import Scopes, called, targets
from .tree import Tree

Loop = cst.For | cst.While
_EPOCH = re.compile(r"epoch|^ep$", re.I)


@dataclass(eq=False)
class BatchLoop:
    """A loop that takes one batch at a time."""

    node: Loop
    loader: cst.BaseExpression | None  # what is iterated; None where batches come in another way
    targets: list[str]  # the names bound in each round
    trains: bool  # somewhere in it, or in a function it calls, a backward runs or an optimizer steps
    _around: Callable[[Loop], list[Loop]] = field(repr=False)

    @cached_property
    def epochs(self) -> list[Loop]:
        """The loops around it, innermost first, here or where its function is called."""
        return self._around(self.node)


class Loops:
    """All batch and epoch loops of a file."""

    def __init__(self, tree: Tree, scopes: Scopes, inference: Inference, elsewhere: Collection[str] = ()) -> None:
        """Find the loops of a file.

        Args:
            tree: of the file.
            scopes: of it.
            inference: of its kinds.
            elsewhere: functions that it calls and that train in other files.
        """
        self._tree, self._scopes, self._inference = tree, scopes, inference
        self._training: set[str] = set()
        self._elsewhere = elsewhere
        self._training = self._training_functions()
        self.batches = [loop for node in tree.all(cst.For, cst.While) if (loop := self._batch_loop(node))]  # type: ignore[arg-type]
        self._by_node: dict[cst.CSTNode, BatchLoop] = {loop.node: loop for loop in self.batches}

    def around(self, node: cst.CSTNode) -> BatchLoop | None:
        """Find the innermost batch loop that a node stands in."""
        for outer in self._tree.ancestors(node):
            if isinstance(outer, cst.FunctionDef):
                return None
            if outer in self._by_node:
                return self._by_node[outer]
        return None

    def repeats(self, node: cst.CSTNode) -> list[Loop]:
        """List the loops around a node, innermost first, through the calls of the function it is in."""
        return self._around(node, set())

    def _epochs(self, node: Loop) -> list[Loop]:
        return [outer for outer in self._around(node, set()) if outer not in self._by_node]

    def trains(self, node: cst.CSTNode) -> bool:
        """Tell whether a backward or an optimizer's step runs in a node, or in a function of this file called there."""
        return any(self._is_training(call) for call in self._tree.within(node, cst.Call))

    def is_epoch_loop(self, node: Loop) -> bool:
        """Tell whether a loop counts epochs, by its variable or its bound."""
        if isinstance(node, cst.While):
            return False
        names = [name for name, _ in targets(node.target)]
        bounds = [dotted(part) or "" for part in self._tree.within(node.iter, cst.Name, cst.Attribute)]
        return any(_EPOCH.search(name) for name in [*names, *bounds])

    def _batch_loop(self, node: Loop) -> BatchLoop | None:
        if isinstance(node, cst.For):
            parts = self._tree.within(node.iter, cst.Name, cst.Attribute, cst.Call, cst.Subscript)
            taken = [
                part
                for part in parts
                if self._inference.kinds(part) & {Kind.LOADER, Kind.LOADER_ITERATOR}
                and not self._is_counted(part, node.iter)
            ]
            # enumerate(loader) and tqdm(loader) are loops over ``loader``.
            for part in taken:
                if not any(self._tree.inside(other, part) for other in taken if other is not part):
                    names = [name for name, _ in targets(node.target)]
                    return BatchLoop(node, part, names, self.trains(node), self._epochs)
        for call in self._tree.within(node, cst.Call):
            if (
                (dotted(call.func) or "").rpartition(".")[2] == "next"
                and call.args
                and self._tree.enclosing(call, cst.For, cst.While) is node
            ):
                source = call.args[0].value
                if self._inference.kinds(source) & {Kind.LOADER, Kind.LOADER_ITERATOR}:
                    return BatchLoop(node, source, [], self.trains(node), self._epochs)
        return None

    def _is_counted(self, part: cst.CSTNode, whole: cst.CSTNode) -> bool:
        """``range(len(loader))`` counts batches and takes none."""
        inner = part
        for outer in self._tree.ancestors(part):
            if isinstance(outer, cst.Call) and inner is not outer.func and dotted(outer.func) in ("len", "range"):
                return True
            if outer is whole:
                return False
            inner = outer
        return dotted(whole.func) in ("len", "range") if isinstance(whole, cst.Call) and part is not whole else False

    def _around(self, node: cst.CSTNode, seen: set[cst.CSTNode]) -> list[Loop]:
        found: list[Loop] = []
        for outer in self._tree.ancestors(node):
            if isinstance(outer, (cst.For, cst.While)):
                found.append(outer)
            if isinstance(outer, cst.FunctionDef):
                if outer not in seen:
                    seen.add(outer)
                    for call in self._scopes.calls[outer.name.value]:
                        found += [loop for loop in self._around(call, seen) if loop not in found]
                break
        return found

    def _is_training(self, call: cst.Call) -> bool:
        name = called(call)
        if name == "step" and isinstance(call.func, cst.Attribute):
            return Kind.OPTIMIZER in self._inference.kinds(call.func.value)
        if name in self._elsewhere:
            return isinstance(call.func, cst.Name) or Kind.MODULE not in self._inference.kinds(call.func.value)  # type: ignore[attr-defined]
        return name == "backward" or name in self._training

    def _training_functions(self) -> set[str]:
        """Name the functions of this file that train: by themselves, or by calling one that does."""
        training: set[str] = set()
        starts = ("backward", "step", *self._elsewhere)
        found = [call for name in starts for call in self._scopes.calls[name] if self._is_training(call)]
        while found:
            functions = (self._tree.enclosing(call, cst.FunctionDef) for call in found)
            names = {function.name.value for function in functions if function is not None} - training
            training |= names
            found = [call for name in names for call in self._scopes.calls[name]]
        return training
