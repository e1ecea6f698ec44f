"""One walk over the syntax trees of a file: the parent of each node, and the nodes of each kind in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst

Node = TypeVar("Node", bound=cst.CSTNode)

# Fields that hold formatting. Not entering them halves the walk.
_FORMAT = (
    "whitespace",
    "leading_lines",
    "trailing_",
    "lines_after",
    "lpar",
    "rpar",
    "header",
    "footer",
    "lbracket",
    "rbracket",
)
_FORMAT_NAMES = {"comma", "semicolon", "equal", "dot", "lbrace", "rbrace", "indent", "colon", "asynchronous"}
_fields: dict[type, tuple[str, ...]] = {}
_nodes: dict[type, bool] = {}  # isinstance(node, CSTNode) goes through ABCMeta, which takes half of the walk


@dataclass(eq=False)
class Tree:
    """The nodes of one or several modules, without their formatting."""

    parents: dict[cst.CSTNode, cst.CSTNode] = field(default_factory=dict)
    parts: dict[cst.CSTNode, int] = field(default_factory=dict)  # modules to their position among the file's parts
    kinds: dict[type, list[cst.CSTNode]] = field(default_factory=lambda: defaultdict(list))
    order: dict[cst.CSTNode, int] = field(default_factory=dict)  # in which nodes come in the text
    visits: int = 0

    def all(self, *kinds: type[Node]) -> Sequence[Node]:
        """List the nodes of these very classes, in the order of the text."""
        if len(kinds) == 1:
            return self.kinds.get(kinds[0], [])  # type: ignore[return-value]
        found = [node for kind in kinds for node in self.kinds.get(kind, ())]
        return sorted(found, key=self.order.__getitem__)  # type: ignore[arg-type]

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Go outwards from a node's parent to its module."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def enclosing(self, node: cst.CSTNode, *kinds: type[Node]) -> Node | None:
        """Find the innermost node of these classes around a node."""
        return next((outer for outer in self.ancestors(node) if isinstance(outer, kinds)), None)

    def inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Tell whether a node is within another, or that other itself."""
        return node is outer or any(ancestor is outer for ancestor in self.ancestors(node))

    def within(self, outer: cst.CSTNode, *kinds: type[Node]) -> list[Node]:
        """List the nodes of these very classes within one, or it itself, in the order of the text."""
        found: list[Node] = []
        stack = [outer]
        while stack:
            node = stack.pop()
            if type(node) in kinds:
                found.append(node)  # type: ignore[arg-type]
            stack.extend(reversed(list(children(node))))
        return found


def grow(modules: Sequence[cst.Module]) -> Tree:
    """Walk over modules once."""
    tree = Tree()
    for number, module in enumerate(modules):
        tree.parts[module] = number
        stack: list[cst.CSTNode] = [module]
        while stack:
            node = stack.pop()
            tree.order[node] = tree.visits
            tree.visits += 1
            tree.kinds[type(node)].append(node)
            inner = list(children(node))
            for child in inner:
                tree.parents[child] = node
            stack.extend(reversed(inner))
    return tree


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Go through the nodes right inside one that are code."""
    kind = type(node)
    names = _fields.get(kind)
    if names is None:
        names = _fields[kind] = tuple(
            name for name in kind.__dataclass_fields__ if not name.startswith(_FORMAT) and name not in _FORMAT_NAMES
        )
    for name in names:
        value = getattr(node, name)
        value_type = type(value)
        if value_type is str or value is None:
            continue
        if value_type is list or value_type is tuple:
            yield from (item for item in value if _is_node(type(item)))
        elif _is_node(value_type):
            yield value


def _is_node(kind: type) -> bool:
    is_node = _nodes.get(kind)
    if is_node is None:
        is_node = _nodes[kind] = issubclass(kind, cst.CSTNode)
    return is_node
