"""The trained models: one DistributedDataParallel each, called where gradients are wanted and nowhere else."""

from __future__ import annotations

import ast

from ..bindings import Key
from ..plan import Plan
from ..tree import dotted, tail
from .wrapping import Wrapper

_WRAPPER_ATTRIBUTES = {  # what DistributedDataParallel does itself as the model would
    *(
        "train",
        "eval",
        "parameters",
        "named_parameters",
        "zero_grad",
        "module",
        "require_backward_grad_sync",
        "no_sync",
    ),
    *(
        "to",
        "cuda",
        "cpu",
        "float",
        "double",
        "half",
        "requires_grad_",
        "training",
        "modules",
        "named_modules",
        "children",
        "buffers",
        "apply",
        "__class__",
    ),
}
_NO_FORWARD = {
    *_WRAPPER_ATTRIBUTES,
    "state_dict",
    "load_state_dict",
    "to",
    "cuda",
    "cpu",
    "half",
    "float",
    "double",
    "forward",
    "named_buffers",
}


def apply(plan: Plan) -> None:
    """Wrap every trained model, and use the wrapper where it is trained."""
    for group, optimizer in plan.models.items():
        _Model(plan, group, optimizer).rewrite()
    for call in plan.script.calls():
        if tail(call) == "DataParallel" and call.args:
            _unwrap(plan, call)


class _Model(Wrapper):
    """One group of names that hold a model."""

    def rewrite(self) -> None:
        place = self.place()
        if place is None:
            return
        statement, node = place
        self.key, self.code = self.bindings.key(node), dotted(node)
        head, _, last = self.code.rpartition(".")
        self.name = f"{head}.ddp_{last}" if head else f"ddp_{last}"
        self.plan.wrappers[self.key] = self.name  # type: ignore[index]
        forwards = self._forwards()
        if not forwards:
            self.script.todo(
                statement, f"no call of {self.code} was found whose gradients it gets, so nothing is wrapped"
            )
            return
        self.insert(self.last_preparation(statement), forwards)
        self.rebuild_unfrozen(statement)
        self.rebuild_bound(statement)
        for call in forwards:
            self._use(call.func)
            same = self.bindings.key(call.func) == self.key
            loop = self.plan.loop_of(call)
            names = self.plan.used_in.setdefault(loop, [])
            if (name := self.name if same else dotted(call.func)) not in names:
                names.append(name)
        self._pass()
        self._other_uses({call.func for call in forwards})

    def _forwards(self) -> list[ast.Call]:
        """List the calls of the model that gradients come back through."""
        return [
            call
            for call in self.script.calls()
            if isinstance(call.func, (ast.Name, ast.Attribute))
            and self.bindings.holds(call.func, self.group)
            and self.plan.learns(call)
        ]

    def _use(self, node: ast.expr) -> None:
        """Write the wrapper's name, or see to it that a parameter holds the wrapper."""
        if self.bindings.key(node) == self.key:
            self.script.replace(node, self.name)
            return
        name = dotted(node)
        owner = self.bindings.class_of(node)
        if name.startswith("self.") and owner is not None:
            for assign in self.script.all(ast.Assign):
                if self.bindings.class_of(assign) is owner and dotted(assign.targets[0]) == name:
                    value = assign.value
                    while (
                        isinstance(value, ast.Call)
                        and isinstance(value.func, ast.Attribute)
                        and value.func.attr in ("to", "cuda")
                    ):
                        value = value.func.value
                    if isinstance(value, ast.Name) and (owner, name) not in self.wrapped_names:
                        self.wrapped_names.add((owner, name))
                        self._use(value)
            if (owner, name) in self.wrapped_names:
                return
        function = self.script.function(node)
        while function is not None and dotted(node) not in {
            a.arg for a in (*function.args.args, *function.args.kwonlyargs)
        }:
            function = self.script.function(function)
        if function is None:
            self.script.todo(
                node, f"call the wrapper of {self.code}, {self.name}, here: gradients are reduced by its forward"
            )
        else:
            self.wrapped_names.add((function, dotted(node)))

    def _pass(self) -> None:
        """Give the wrapper to every function that trains it."""
        done: set[Key] = set()
        while self.wrapped_names - done:
            function, name = key = (self.wrapped_names - done).pop()
            done.add(key)
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for call in self.bindings.callers.get(function, ()):
                argument = self.bindings.arguments(call, function).get(name)
                if argument is not None and self.bindings.holds(argument, self.group):
                    self._use(argument)
                elif argument is not None and not self.plan.is_model(argument):
                    self.script.todo(call, f"give {function.name}() the wrapper of the model")

    def _other_uses(self, forwards: set[ast.expr]) -> None:
        for node in list(self.script.all(ast.Name, ast.Attribute)):
            if not isinstance(node.ctx, ast.Load) or not self.bindings.holds(node, self.group):
                continue
            parent = self.script.parents[node]
            if isinstance(parent, ast.Attribute) and parent.attr == "module":
                outer = self.script.parents[parent]
                holds_wrapper = self._holds_wrapper(node)
                if holds_wrapper and self.plan.dialect.name == "accelerate":
                    self.script.replace(parent, f"accelerator.unwrap_model({dotted(node)})")
                elif not holds_wrapper:
                    self.script.replace(parent, self.script.code(node))
                self._check_bypass(parent, outer)
            elif node not in forwards:
                self._use_elsewhere(node, parent)

    def _use_elsewhere(self, node: ast.expr, parent: ast.AST) -> None:
        attribute = parent.attr if isinstance(parent, ast.Attribute) else ""
        if attribute == "state_dict" and self.plan.always_wrapped and self.bindings.key(node) == self.key:
            self.script.replace(node, self.name)  # keys begin with "module.", as they did
            return
        self._check_bypass(parent, self.script.parents.get(parent))
        if (
            not self._holds_wrapper(node)
            or attribute in _WRAPPER_ATTRIBUTES
            or (attribute == "state_dict" and self.plan.always_wrapped)
        ):
            return
        kept = isinstance(parent, (ast.Assign, ast.Compare)) or isinstance(self.script.parents.get(parent), ast.Assign)
        if kept and not attribute:
            return
        if isinstance(parent, (ast.Call, ast.keyword)) and not (isinstance(parent, ast.Call) and parent.func is node):
            call = parent if isinstance(parent, ast.Call) else self.script.parents[parent]
            function = self.bindings.callee(call) if isinstance(call, ast.Call) else None
            if (
                isinstance(call, ast.Call)
                and function is not None
                and any(
                    (function, name) in self.wrapped_names
                    for name, v in self.bindings.arguments(call, function).items()
                    if v is node
                )
            ):
                return
        unwrapped = (
            f"{dotted(node)}.module" if self.plan.dialect.name == "ddp" else f"accelerator.unwrap_model({dotted(node)})"
        )
        self.script.replace(node, unwrapped)

    def _holds_wrapper(self, node: ast.AST) -> bool:
        key = self.bindings.key(node)
        return key is not None and key in self.wrapped_names

    def _check_bypass(self, parent: ast.AST, outer: ast.AST | None) -> None:
        """Look for a part of the model that is called by itself: DDP reduces gradients of its own forward only."""
        while isinstance(outer, ast.Attribute):
            parent, outer = outer, self.script.parents[outer]
        if not (isinstance(outer, ast.Call) and outer.func is parent and isinstance(parent, ast.Attribute)):
            return
        fed = any(self.plan.flow.kind(a).of_rows for a in outer.args)
        if parent.attr not in _NO_FORWARD - {"forward"} and fed and self.plan.learns(outer):
            self.script.todo(
                outer,
                f"{self.script.code(parent)}() goes past DDP's forward, so its gradients stay local: use {self.name}()",
            )


def _unwrap(plan: Plan, call: ast.Call) -> None:
    script = plan.script
    parent = script.parents[call]
    inner = script.code(call.args[0])
    if isinstance(parent, ast.Assign) and [script.code(t) for t in parent.targets] == [inner]:
        script.delete(parent)
        return
    start, end = script.span(call)
    first, last = script.span(call.args[0])
    script.put(start, first, "")
    script.put(last, end, "")
