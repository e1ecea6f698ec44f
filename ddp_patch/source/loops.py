"""The loops of a script: over batches, training or evaluating, and over epochs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import libcst as cst

from .inference import Inference
from .kinds import Kind
from .names import dotted
from .scopes import Scopes, targets
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
    epochs: list[Loop] = field(default_factory=list)  # loops around it, innermost first, here or where it is called


class Loops:
    """All batch and epoch loops of a file."""

    def __init__(self, tree: Tree, scopes: Scopes, inference: Inference) -> None:
        self._tree, self._scopes, self._inference = tree, scopes, inference
        self.batches = [loop for node in tree.all(cst.For, cst.While) if (loop := self._batch_loop(node))]  # type: ignore[arg-type]
        inner = {loop.node for loop in self.batches}
        for loop in self.batches:
            loop.epochs = [outer for outer in self._around(loop.node, set()) if outer not in inner]

    def around(self, node: cst.CSTNode) -> BatchLoop | None:
        """Find the innermost batch loop that a node stands in."""
        for outer in self._tree.ancestors(node):
            if isinstance(outer, cst.FunctionDef):
                return None
            found = next((loop for loop in self.batches if loop.node is outer), None)
            if found is not None:
                return found
        return None

    def repeats(self, node: cst.CSTNode) -> list[Loop]:
        """List the loops around a node, innermost first, through the calls of the function it is in."""
        return self._around(node, set())

    def trains(self, node: cst.CSTNode) -> bool:
        """Tell whether a backward or an optimizer's step runs in a node, or in a function of this file called there."""
        return self._trains(node, set())

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
                    return BatchLoop(node, part, names, self.trains(node))
        for call in self._tree.within(node, cst.Call):
            if (
                (dotted(call.func) or "").rpartition(".")[2] == "next"
                and call.args
                and self._tree.enclosing(call, cst.For, cst.While) is node
            ):
                source = call.args[0].value
                if self._inference.kinds(source) & {Kind.LOADER, Kind.LOADER_ITERATOR}:
                    return BatchLoop(node, source, [], self.trains(node))
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
                    for call in self._calls(outer.name.value):
                        found += [loop for loop in self._around(call, seen) if loop not in found]
                break
        return found

    def _calls(self, name: str) -> list[cst.Call]:
        return [call for call in self._tree.all(cst.Call) if (dotted(call.func) or "").rpartition(".")[2] == name]

    def _trains(self, node: cst.CSTNode, seen: set[str]) -> bool:
        for call in self._tree.within(node, cst.Call):
            name = call.func.attr.value if isinstance(call.func, cst.Attribute) else (dotted(call.func) or "")
            if name == "backward":
                return True
            if name == "step" and isinstance(call.func, cst.Attribute):
                if Kind.OPTIMIZER in self._inference.kinds(call.func.value):
                    return True
            elif name in self._scopes.functions and name not in seen:
                seen.add(name)
                if any(self._trains(function.body, seen) for function in self._scopes.functions[name]):
                    return True
        return False
