"""Where a model is ready to be wrapped."""

from __future__ import annotations

import ast

from ..bindings import Key
from ..plan import Plan
from ..tree import Function, dotted


class ReadyModel:
    """One group of names that hold a model, and where it is ready."""

    key: Key | None
    code: str  # the model's name
    name: str  # the wrapper's
    near: Function | None = None  # where the wrapper is made

    def __init__(self, plan: Plan, group: Key, optimizer: ast.Call | None) -> None:
        self.plan, self.script, self.bindings, self.group = plan, plan.script, plan.bindings, group
        self.optimizer = optimizer
        self.wrapped_names: set[Key] = set()  # parameters that get the wrapper

    def place(self) -> tuple[ast.stmt, ast.expr] | None:
        """Find where the model is ready: its optimizer's statement, or the call of the function that makes that."""
        node: ast.AST
        if self.optimizer is not None:
            inside = [
                n for n in ast.walk(self.script.statement(self.optimizer)) if isinstance(n, (ast.Name, ast.Attribute))
            ]
            found = [n for n in inside if self.bindings.group(n) == self.group]
            if not found:
                found = [
                    n
                    for n in self.script.all(ast.Name, ast.Attribute)
                    if self.bindings.group(n) == self.group
                    and self.script.function(n) is self.script.function(self.optimizer)
                ]
            if not found:
                return None
            node = self.optimizer
            name: ast.expr = found[0]
        else:
            stores = [
                n
                for n in self.script.all(ast.Name)
                if isinstance(n.ctx, ast.Store) and self.bindings.group(n) == self.group
            ]
            if not stores:
                return None
            node = name = next((n for n in stores if not self._is_loaded(n)), stores[-1])
        function = self.script.function(node)
        while function is not None and function.name != "__init__" and not self._runs_training(function):
            calls = self.bindings.callers.get(function, [])
            if not calls:
                break
            if dotted(name) not in {a.arg for a in function.args.args}:
                received = self._received(calls[0])
                if received is None:
                    break
                node, name = calls[0], received
                function = self.script.function(node)
                continue
            name = self.bindings.arguments(calls[0], function)[dotted(name)]
            node, function = calls[0], self.script.function(calls[0])
        if function is not None and self.bindings.key(name) == (self.script.part(name).scope, dotted(name)):
            node = self._bound_at_the_top(name) or node
        statement = self.script.statement(node)
        while isinstance(parent := self.script.parents[statement], (ast.If, ast.With, ast.Try)):
            if is_main(parent) or self.plan.trains(parent):
                break
            statement = parent
        return statement, name

    def _is_loaded(self, name: ast.Name) -> bool:
        value = getattr(self.script.parents[name], "value", None)
        return isinstance(value, ast.Call) and dotted(value.func) == "torch.load"

    def _bound_at_the_top(self, name: ast.expr) -> ast.AST | None:
        """Find where the module binds a name last before it trains."""
        found: ast.AST | None = None
        for statement in self.script.part(name).body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                continue
            if self.plan.trains(statement):
                break
            inside = (n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            found = next((n for n in inside if n.id == dotted(name)), found)
        return found

    def _received(self, call: ast.Call) -> ast.expr | None:
        """Find the name that the caller of a function gives to the model which that returns."""
        parent = self.script.parents[call]
        if not isinstance(parent, ast.Assign):
            return None
        names = (n for n in ast.walk(parent.targets[0]) if isinstance(n, (ast.Name, ast.Attribute)))
        return next((n for n in names if self.bindings.group(n) == self.group), None)

    def _runs_training(self, function: Function) -> bool:
        return self.plan.trains(function)

    def last_preparation(self, statement: ast.stmt) -> ast.stmt:
        """Find the last statement that prepares the model, before it is trained."""
        block = self.script.block(statement)
        last = statement
        for later in block[block.index(statement) + 1 :]:
            if self.plan.trains(later) or isinstance(later, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While)):
                break
            if any(self._prepares(n) for n in ast.walk(later)):
                last = later
        return last

    def _prepares(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            return self.bindings.group(node) == self.group
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("to", "cuda", "apply", "half", "double")
            and self.bindings.group(node.func.value) == self.group
        )

    def mentions(self, node: ast.AST) -> bool:
        """Tell whether the model is named in a node."""
        names = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)))
        return any(self.bindings.holds(n, self.group) for n in names)


def is_main(node: ast.AST) -> bool:
    """Tell whether a statement is ``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
