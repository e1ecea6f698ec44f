"""Follow values through a script, and note what each expression is to a rank."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from .bindings import Bindings
from .mixing import Mixing
from .script import Script
from .statements import bodies, is_any, is_sum_onto, is_text
from .tree import Function, dotted, tail
from .values import (
    COUNT,
    MEAN,
    ROWS,
    SAME,
    Kind,
    Value,
    add,
    divide,
    join,
    multiply,
    other,
)  # fmt: skip

Env = dict[str, Value]
_DEPTH = 8  # calls in calls; a chain in a script is shorter


@dataclass(eq=False)
class Accumulation:
    """A name that gathers something over the batches of a loop."""

    loop: ast.For
    name: str
    value: Value
    statements: list[ast.stmt] = field(default_factory=list)


class Flow(Mixing):
    """Runs over the statements; ``kinds`` then tells what each expression is."""

    def __init__(
        self,
        script: Script,
        bindings: Bindings,
        trains: Callable[[ast.AST], bool],
        whole: Collection[ast.expr] = (),  # loaders that every rank takes all of
    ) -> None:
        super().__init__(script, bindings, trains, whole)
        self.accumulated: dict[tuple[ast.For, str], Accumulation] = {}
        self.repeated: dict[tuple[ast.For, str], None] = {}  # what every rank gathers of the same rows
        self._alone: list[ast.For] = []
        self.samples: set[ast.For] = set()  # loops over the rows of a batch
        self.globals: Env = {}
        self._calls: list[Function] = []
        for function in script.all(ast.FunctionDef, ast.AsyncFunctionDef):
            self._run(function, {})
        self.block(script.tree.body, self.globals)

    def call_function(self, function: Function, values: dict[str, Value]) -> Value:
        """Run a function of the script on these values; gives what it returns."""
        if function in self._calls or len(self._calls) > _DEPTH:
            return join_all(values.values())
        loops, self._loops = self._loops, []
        alone, self._alone = self._alone, []
        try:
            return self._run(function, dict(values))
        finally:
            self._loops, self._alone = loops, alone

    def _run(self, function: Function, env: Env) -> Value:
        self._calls.append(function)
        outer, self.returned = self.returned, None
        self.block(function.body, env)
        found, self.returned = self.returned, outer
        self._calls.pop()
        return found or SAME

    def block(self, body: list[ast.stmt], env: Env) -> None:
        """Run statements."""
        for statement in body:
            self._statement(statement, env)

    def _statement(self, node: ast.stmt, env: Env) -> None:
        match node:
            case ast.Assign() if is_sum_onto(node):
                assert isinstance(node.value, ast.BinOp)
                self.value(node.value, env)
                added = ast.AugAssign(node.targets[0], node.value.op, node.value.right)  # type: ignore[arg-type]
                self._augment(ast.copy_location(added, node), env, node)
            case ast.Assign():
                value = self.value(node.value, env)
                for target in node.targets:
                    self.bind(target, value, env)
            case ast.AnnAssign() if node.value is not None:
                self.bind(node.target, self.value(node.value, env), env)
            case ast.AugAssign():
                self._augment(node, env)
            case ast.Expr():
                self.value(node.value, env)
                self._note_call(node, env)
            case ast.Return():
                value = self.value(node.value, env) if node.value is not None else SAME
                self.returned = value if self.returned is None else join(self.returned, value)
            case ast.If():
                self.value(node.test, env)
                other = dict(env)
                self.block(node.body, env)
                self.block(node.orelse, other)
                for name, value in other.items():
                    env[name] = join(env.get(name, SAME), value)
            case ast.For():
                self._for(node, env)
            case ast.While():
                self.value(node.test, env)
                self.block(node.body, env)
            case ast.Match():
                self._match(node, env)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self.value(item.context_expr, env)
                self.block(node.body, env)
            case ast.FunctionDef():
                self.closures[node.name] = (node, env)
                if node not in self._calls and self._calls:
                    self._run(node, dict(env))
            case ast.Assert():
                self.value(node.test, env)
            case _ if not isinstance(node, (ast.ClassDef, ast.AsyncFunctionDef)):
                for body in bodies(node):
                    self.block(body, env)

    def _match(self, node: ast.Match, env: Env) -> None:
        self.value(node.subject, env)
        found = [] if any(is_any(case) for case in node.cases) else [dict(env)]
        for case in node.cases:
            found.append(dict(env))
            self.value(case.guard, found[-1])
            self.block(case.body, found[-1])
        for name in {name for branch in found for name in branch}:
            env[name] = join_all(branch.get(name, SAME) for branch in found)

    def _augment(self, node: ast.AugAssign, env: Env, written: ast.Assign | None = None) -> None:
        name = dotted(node.target)
        old, new = self.value(node.target, env), self.value(node.value, env)
        if isinstance(node.op, ast.Div):
            self.note_division(node, old, node.value)
        match node.op:
            case ast.Add() | ast.Sub():
                value = add(old, new, zero=not old.of_rows)
            case ast.Mult():
                value = multiply(old, new)
            case ast.Div():
                value = divide(old, new)
            case _:
                value = join(old, new)
        if name:
            env[name] = value
            statement = written or node
            if new.of_rows and isinstance(node.op, (ast.Add, ast.Sub)):
                self._accumulate(statement, name, value)
            elif self._alone and isinstance(node.op, (ast.Add, ast.Sub)) and not is_text(node.value):
                self.repeated[self._alone[-1], name] = None
            elif (
                isinstance(node.op, ast.Add) and self._loops and (self._inside or not self._trains(self._loops[-1]))
            ):  # of rows, or of batches: ranks train on as many each, and evaluate one more or less
                kind = other("is a text of its batches") if is_text(node.value) else COUNT if self._inside else MEAN
                self._accumulate(statement, name, kind)

    def _accumulate(self, statement: ast.stmt, name: str, value: Value) -> None:
        if not self._loops:
            return
        found = self.accumulated.setdefault((self._loops[-1], name), Accumulation(self._loops[-1], name, value))
        found.value = value
        if statement not in found.statements:
            found.statements.append(statement)

    def _note_call(self, node: ast.Expr, env: Env) -> None:
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return
        name = dotted(call.func.value)
        if not name or call.func.attr not in ("append", "extend", "add_", "mul_", "div_", "update"):
            return
        added = join_all([self.value(a, env) for a in call.args])
        if not added.of_rows:
            return
        if call.func.attr in ("append", "extend"):
            value = Value(join(env.get(name, SAME), added).kind, added.reason, listed=True)
            env[name] = value
            self._accumulate(node, name, value)
        elif call.func.attr == "update":
            self._accumulate(node, name, added)
        elif call.func.attr == "add_":
            env[name] = add(env.get(name, SAME), added, zero=True)

    def _for(self, node: ast.For, env: Env) -> None:
        iterated = self.value(node.iter, env)
        over = self.loader(node.iter)
        before = dict(env)
        self._bind_target(node, iterated, over is not None, env)
        dealt = over is not None and not self.is_whole(over)
        rows = over is None and iterated.kind in (Kind.ROWS, Kind.COLS, Kind.OTHER)
        if over is not None:
            self.loader_loops[node] = over
        if dealt:
            self._loops.append(node)
            self.block(node.body, env)  # twice: a round sees what the one before it left
        elif over is not None:
            self._alone.append(node)
        elif rows:
            self.samples.add(node)
            self._inside += 1
        self.block(node.body, env)
        self._inside -= rows
        if over is not None and not dealt:
            self._alone.pop()
        if dealt:
            self._loops.pop()
            for (loop, name), found in self.accumulated.items():
                if loop is node:
                    summed = found.value.kind in (Kind.SUM, Kind.COUNT) and not found.value.listed
                    env[name] = Value(Kind.SAME, over=node) if summed else before.get(name, SAME)
        self.block(node.orelse, env)

    def _bind_target(self, node: ast.For, iterated: Value, over: bool, env: Env) -> None:
        counted = isinstance(node.iter, ast.Call) and tail(node.iter) == "enumerate"
        dealt = over and not self.is_whole(self.loader(node.iter))
        element = ROWS if dealt else SAME if over else Value(iterated.kind, iterated.reason)
        pair = isinstance(node.target, ast.Tuple) and len(node.target.elts) == 2
        counted = counted or (isinstance(node.iter, ast.Call) and tail(node.iter) == "items")  # of a dictionary
        if pair and (counted or (over and self.is_counted(node.iter))):
            assert isinstance(node.target, ast.Tuple)
            self.bind(node.target.elts[0], SAME, env)
            self.bind(node.target.elts[1], element, env)
            return
        self.bind(node.target, element, env)


def join_all(values: object) -> Value:
    """Tell what one of these may be."""
    found = SAME
    for value in values:  # type: ignore[attr-defined]
        found = join(found, value)
    return found
