"""What a file says about itself: names, kinds, calls, loops and roles, worked out in one walk over its syntax trees."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from . import names
from .certain import CertainKeywords
from .guards import Guards
from .inference import Inference, Kinds
from .kinds import Kind, made_by
from .loops import BatchLoop, Loop, Loops
from .programs import Elsewhere
from .reading import Part, Source
from .roles import Role, roles
from .scopes import Scopes
from .tree import Tree, grow


@dataclass(frozen=True)
class SourceRange:
    """Where a node is, lines and columns from 1 (in the cell of a notebook). The end is behind the last character."""

    line: int
    column: int
    end_line: int
    end_column: int
    cell: int | None = None


class Facts:
    """All that is known about one file. Made by ``facts_of(source)``; asking is cheap, and changes nothing."""

    def __init__(self, source: Source, elsewhere: Elsewhere | None = None) -> None:
        """Walk over a file.

        Args:
            source: the file.
            elsewhere: what the other files of its programs say.
        """
        self.source = source
        self.elsewhere = elsewhere or Elsewhere()
        self.tree: Tree = grow([part.module for part in source.parts])
        self.imported = {**self.elsewhere.bound, **names.imports(self.tree)}  # local name to qualified name
        self.modules = names.modules(self.tree)  # every module that is imported, with its packages
        self.scopes = Scopes(self.tree)
        self._calls: dict[str, list[cst.Call]] = defaultdict(list)
        self._methods: dict[str, list[cst.Call]] = defaultdict(list)
        for call in self.tree.all(cst.Call):
            if isinstance(call.func, cst.Attribute):
                self._methods[call.func.attr.value].append(call)
            name = self.name(call.func)
            if name is not None:
                self._calls[name].append(call)

    @cached_property
    def inference(self) -> Inference:
        """Kinds of all expressions."""
        return Inference(self.tree, self.scopes, self.imported)

    @cached_property
    def guards(self) -> Guards:
        """Tests on the rank."""
        return Guards(self.tree, self.scopes, self.imported, self.inference, self.elsewhere.guarded)

    @cached_property
    def keywords(self) -> CertainKeywords:
        """What calls are given by dicts that they unpack."""
        return CertainKeywords(self.tree, self.scopes)

    @cached_property
    def _loops(self) -> Loops:
        return Loops(self.tree, self.scopes, self.inference, self.elsewhere.training)

    @cached_property
    def roles(self) -> frozenset[Role]:
        """How the file, or a program that it is part of, is distributed today; empty for a script of one process."""
        mentioned = [name for node in self.tree.all(cst.Attribute) if (name := names.dotted(node))]
        local_roles = roles(self.modules, self._calls, [*mentioned, *self._calls, *self.imported.values()])
        return local_roles | self.elsewhere.roles

    @property
    def uses_torch(self) -> bool:
        """The file imports torch, or a library that is built on it, or trains by files that do."""
        imported = {*self.modules, *self.elsewhere.bound.values()}
        imports_torch = any(name.partition(".")[0] in _TORCH for name in imported)
        return imports_torch or (self.trains and self.elsewhere.uses_torch)

    @cached_property
    def trains(self) -> bool:
        """A backward runs in the file, other than inside of an autograd function's own, or where it calls another."""
        has_backward = any(not self._in_backward(call) for call in self._methods.get("backward", ()))
        return has_backward or bool(self.elsewhere.training)

    @property
    def is_trained(self) -> bool:
        """A backward runs in the file, or in one that imports it."""
        return self.trains or self.elsewhere.trains

    @cached_property
    def reduces(self) -> bool:
        """Somewhere in the program a function is called that brings the values of all ranks together, by its name."""
        return any(_REDUCES.search(name) for name in (*self._calls, *self.elsewhere.words))

    def says(self, *words: str) -> bool:
        """Tell whether one of these names is used in the file or elsewhere in its programs."""
        return any(word in self._words or word in self.elsewhere.words for word in words)

    @cached_property
    def _words(self) -> set[str]:
        keywords = {node.keyword.value for node in self.tree.all(cst.Arg) if node.keyword is not None}
        return keywords | {node.value for node in self.tree.all(cst.Name)}

    @property
    def batch_loops(self) -> list[BatchLoop]:
        """Every loop over a loader."""
        return self._loops.batches

    def name(self, node: cst.CSTNode | None) -> str | None:
        """Write a name as torch's documentation does: ``torch.nn.Linear`` for ``nn.Linear``; else as it stands."""
        return names.qualified(node, self.imported)

    def calls(self, *qualified: str) -> list[cst.Call]:
        """List the calls of these functions, by qualified name (``torch.save``, ``print``), in the text's order."""
        return self._sorted([call for name in qualified for call in self._calls.get(name, ())])

    def methods(self, *called: str) -> list[cst.Call]:
        """List the calls of methods with these names, on whatever: ``x.backward()``."""
        return self._sorted([call for name in called for call in self._methods.get(name, ())])

    def making(self, *kinds: Kind) -> list[cst.Call]:
        """List the calls that make something of these kinds by a constructor that is known or of this file."""
        found = []
        for call in self.tree.all(cst.Call):
            name = self.name(call.func)
            if name is not None and self.made(name) & {*kinds}:
                found.append(call)
        return found

    def made(self, name: str) -> Kinds:
        """Tell what a class, by its qualified name, is a constructor of."""
        from_class = self.inference.class_kinds(name) if name in self.scopes.classes else frozenset()
        return from_class or made_by(name)

    def kinds(self, node: cst.CSTNode | None) -> Kinds:
        """Tell what an expression is: ``{Kind.LOADER}``; nothing where nothing is known."""
        return self.inference.kinds(node)

    def argument(self, call: cst.Call, keyword: str, position: int | None = None) -> cst.BaseExpression | None:
        """Find an argument of a call by its name or, from 0, its position; also in a dict that the call unpacks."""
        for index, argument in enumerate(call.args):
            if argument.keyword is not None and argument.keyword.value == keyword:
                return argument.value
            if argument.keyword is None and not argument.star and index == position:
                return argument.value
        return self.keywords.of(call).get(keyword) if any(argument.star for argument in call.args) else None

    def has_stars(self, call: cst.Call) -> bool:
        """Tell whether a call has ``*args`` or ``**kwargs`` that cannot be followed: it may be given more."""
        return any(argument.star for argument in call.args) and not self.keywords.are_known(call)

    def assigned(self, call: cst.CSTNode) -> str | None:
        """Name the variable that an expression, or what is made of it by methods and calls, is assigned to."""
        for outer in self.tree.ancestors(call):
            if isinstance(outer, cst.Assign):
                return names.dotted(outer.targets[0].target)
            if isinstance(outer, cst.AnnAssign):
                return names.dotted(outer.target)
            if isinstance(outer, cst.BaseSmallStatement):
                return None
        return None

    def repeats(self, node: cst.CSTNode) -> list[Loop]:
        """List the loops around a node, innermost first, through the calls of the function it is in."""
        return self._loops.repeats(node)

    def batch_loop(self, node: cst.CSTNode) -> BatchLoop | None:
        """Find the loop over a loader that a node stands in."""
        return self._loops.around(node)

    def is_epoch_loop(self, node: Loop) -> bool:
        """Tell whether a loop counts epochs."""
        return self._loops.is_epoch_loop(node)

    def trains_in(self, node: cst.CSTNode) -> bool:
        """Tell whether a backward or an optimizer's step runs in a node, or in a function of this file called there."""
        return self._loops.trains(node)

    def on_some_ranks(self, node: cst.CSTNode) -> bool:
        """Tell whether a node is under a test on the rank."""
        return bool(self.guards.of(node))

    def is_run(self, node: cst.CSTNode) -> bool:
        """Tell whether a node of a file that others import is in a function or class that one of them names."""
        if self.trains:
            return True
        around = [outer for outer in self.tree.ancestors(node) if isinstance(outer, (cst.FunctionDef, cst.ClassDef))]
        return any(outer.name.value in self.elsewhere.words for outer in around)

    def named_test(self, test: cst.CSTNode) -> str:
        """Write a test on the rank, or say that it is where the function is called in other files."""
        outer = self.tree.parents.get(test)
        if isinstance(outer, cst.FunctionDef) and test is outer.name:
            return f"a test on the rank where {outer.name.value}() is called"
        return self.code(test)

    def part(self, node: cst.CSTNode) -> Part:
        """Find the script or the cell that a node stands in."""
        module = node if isinstance(node, cst.Module) else list(self.tree.ancestors(node))[-1]
        return self.source.parts[self.tree.parts[module]]

    def place(self, node: cst.CSTNode) -> SourceRange:
        """Tell where a node is."""
        part = self.part(node)
        at = part.positions[node]
        return SourceRange(at.start.line, at.start.column + 1, at.end.line, at.end.column + 1, part.cell)

    def code(self, node: cst.CSTNode) -> str:
        """Write a node as it stands in the file, on one line."""
        return " ".join(self.part(node).module.code_for_node(node).split())

    def _in_backward(self, call: cst.Call) -> bool:
        function = self.tree.enclosing(call, cst.FunctionDef)
        return function is not None and function.name.value == "backward" and len(function.params.params) > 1

    def _sorted(self, calls: list[cst.Call]) -> list[cst.Call]:
        return sorted(calls, key=self.tree.order.__getitem__)


_REDUCES = re.compile(
    r"all_?reduce|all_?gather|reduce_(tensor|dict|mean|value)|synchronize_between|gather_for_metrics", re.I
)
_TORCH = {
    "torch",
    "torchvision",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "timm",
    "apex",
    "ddp_patch",
}
