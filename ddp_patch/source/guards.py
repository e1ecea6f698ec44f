"""Which statements run on some ranks only: inside ``if rank == 0:``, after ``if rank != 0: return``, and so on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from functools import cached_property

import libcst as cst

from .inference import Inference
from .kinds import Kind
from .names import dotted
from .ranks import is_of_one_rank, is_same_on_all, mirrored, names_one_rank, names_rank
from .scopes import Scopes, Variable, called
from .tree import Tree

_OPERATORS = {
    cst.LessThan: "<",
    cst.LessThanEqual: "<=",
    cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=",
}  # of those that have a direction


class Guards:
    """Answers ``of(node)``: the tests on the rank that a node is under."""

    def __init__(
        self,
        tree: Tree,
        scopes: Scopes,
        imported: Mapping[str, str],
        inference: Inference,
        elsewhere: Container[str] = (),
    ) -> None:
        """Prepare.

        Args:
            tree: of the file.
            scopes: of it.
            imported: names of it.
            inference: of its kinds.
            elsewhere: functions and classes that other files call under a test on the rank only.
        """
        self._tree, self._scopes, self._imported, self._inference = tree, scopes, imported, inference
        self._elsewhere = elsewhere
        self._rank_tests: dict[cst.CSTNode, bool] = {}
        self._open: set[cst.CSTNode] = set()
        self._block_exits: dict[cst.CSTNode, list[cst.If]] = {}
        self._called_under: dict[cst.CSTNode, cst.CSTNode | None] = {}

    def of(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """List the rank tests, early exits and decorators that keep a node from running on every rank."""
        return list(self._guards(node))

    def is_rank_test(self, test: cst.CSTNode) -> bool:
        """Tell whether a condition differs between ranks: ``rank == 0``, ``is_main_process()``."""
        if test not in self._rank_tests:
            self._rank_tests[test] = self._differs(test)
        return self._rank_tests[test]

    def _differs(self, test: cst.CSTNode) -> bool:
        for part in self._tree.within(test, cst.Name, cst.Attribute, cst.Subscript, cst.Call):
            name = dotted(part) or _key(part)
            of_rank = (name is not None and names_rank(name)) or Kind.RANK in self._inference.kinds(part)
            if (of_rank and not self._is_check(part)) or self._holds_test(part):
                return True
        return False

    def _holds_test(self, node: cst.CSTNode) -> bool:
        """``first = rank == 0``, ``main = is_main_process()``: a variable that holds a test is one by itself."""
        name = dotted(node)
        if name is None or node in self._open:
            return False
        found = self._scopes.find(name, self._scopes.of(node))
        variables = self._attributes.get(name, []) if found is None else [found]
        self._open.add(node)  # ``ready = ready and other`` asks for itself
        holds = any(self._is_flag(value.node) for variable in variables for value in variable.values)
        self._open.discard(node)
        return holds

    def _is_flag(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.BooleanOperation):
            return self._is_flag(node.left) or self._is_flag(node.right)
        if isinstance(node, cst.UnaryOperation):
            return isinstance(node.operator, cst.Not) and self._is_flag(node.expression)
        if isinstance(node, cst.Comparison):
            return self.is_rank_test(node)
        name = dotted(node.func if isinstance(node, cst.Call) else node)
        return name is not None and (names_one_rank(name) or self._holds_test(node))

    @cached_property
    def _attributes(self) -> dict[str, list[Variable]]:
        """``args.first``, which other functions are given with args."""
        found = defaultdict(list)
        for variable in self._scopes.all():
            if "." in variable.name and not variable.name.startswith("self."):
                found[variable.name].append(variable)
        return found

    def _is_check(self, node: cst.CSTNode) -> bool:
        """``local_rank == -1`` and ``rank is None`` ask whether there are ranks, which is the same on all of them."""
        side, outer = node, self._tree.parents.get(node)
        while isinstance(outer, (cst.Call, cst.Arg, cst.Attribute)):
            side, outer = outer, self._tree.parents.get(outer)
        comparison = self._tree.parents.get(outer) if isinstance(outer, cst.ComparisonTarget) else outer
        if not isinstance(comparison, cst.Comparison):
            return False
        sides = [comparison.left, *(target.comparator for target in comparison.comparisons)]
        operators = [_OPERATORS.get(type(target.operator), "==") for target in comparison.comparisons]
        pairs = [
            *zip(sides, operators, sides[1:], strict=False),
            *zip(sides[1:], map(mirrored, operators), sides, strict=False),
        ]
        code = cst.Module([]).code_for_node
        return all(is_same_on_all(operator, code(other)) for one, operator, other in pairs if one is side)

    def _guards(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        inner = node
        for outer in self._tree.ancestors(node):
            if isinstance(outer, (cst.If, cst.IfExp)) and inner is not outer.test and self.is_rank_test(outer.test):
                yield outer.test
            if isinstance(outer, cst.BooleanOperation) and inner is outer.right and self.is_rank_test(outer.left):
                yield outer.left
            if isinstance(outer, (cst.IndentedBlock, cst.Module)):
                yield from self._exits(outer, inner)
            if isinstance(outer, (cst.FunctionDef, cst.ClassDef)) and inner is not node:
                for decorator in outer.decorators:
                    if is_of_one_rank(dotted(decorator.decorator) or ""):
                        yield decorator
            if isinstance(outer, cst.FunctionDef):
                test = self._callers(outer)
                if test is not None:
                    yield test
                return
            inner = outer

    def _exits(self, block: cst.IndentedBlock | cst.Module, before: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """``if rank != 0: return`` above the statement, in the same block."""
        if block not in self._block_exits:
            self._block_exits[block] = [node for node in block.body if isinstance(node, cst.If) and self._is_exit(node)]
        order = self._tree.order
        yield from (node.test for node in self._block_exits[block] if order[node] < order[before])

    def _is_exit(self, statement: cst.If) -> bool:
        if statement.orelse is not None or not self.is_rank_test(statement.test):
            return False
        last = statement.body.body[-1] if statement.body.body else None
        simple = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
        return isinstance(simple, (cst.Return, cst.Continue))

    def _is_of_others(self, call: cst.Call) -> bool:
        """``subprocess.run`` and ``super().run`` are no calls of the file's own ``run``."""
        receiver = call.func.value if isinstance(call.func, cst.Attribute) else None
        if isinstance(receiver, cst.Call) and dotted(receiver.func) == "super":
            return True
        name = dotted(call.func) or ""
        return "." in name and name.partition(".")[0] in self._imported

    def _callers(self, function: cst.FunctionDef) -> cst.CSTNode | None:
        """A function is guarded when all of its calls are. One that calls itself is not.

        A method is as well when all objects of its class are made under a test. What Python calls by itself,
        ``__iter__``, is not known by its calls.
        """
        if function not in self._called_under:
            self._called_under[function] = None
            name = function.name.value
            if not (name.startswith("__") and name.endswith("__")):
                self._called_under[function] = self._test_of_calls(function, name)
            made = self._tree.enclosing(function, cst.FunctionDef, cst.ClassDef)
            if self._called_under[function] is None and isinstance(made, cst.ClassDef):
                self._called_under[function] = self._test_of_calls(function, made.name.value)
        return self._called_under[function]

    def _test_of_calls(self, function: cst.FunctionDef, name: str) -> cst.CSTNode | None:
        calls = [call for call in self._scopes.calls.get(name, ()) if not self._is_of_others(call)]
        tests = [next(self._guards(call), None) for call in calls]
        if not tests:
            return function.name if name in self._elsewhere else None
        return tests[0] if all(test is not None for test in tests) else None


def _key(node: cst.CSTNode) -> str | None:
    """``config["rank"]``, ``os.environ.get("RANK")``: what a value is kept under."""
    text: cst.CSTNode | None = None
    if isinstance(node, cst.Subscript) and len(node.slice) == 1:
        index = node.slice[0].slice
        text = index.value if isinstance(index, cst.Index) else None
    elif isinstance(node, cst.Call) and node.args and called(node) in ("get", "getenv"):
        text = node.args[0].value
    key = text.evaluated_value if isinstance(text, cst.SimpleString) else None
    return key if isinstance(key, str) else None
