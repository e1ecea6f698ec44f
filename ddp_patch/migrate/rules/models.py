"""The trained models: one DistributedDataParallel each, called where gradients are wanted and nowhere else."""

from __future__ import annotations

import ast

from ..bindings import Key
from ..plan import Plan, whole
from ..tree import Function, dotted, tail

_OWN = {  # what DistributedDataParallel does itself as the model would
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
    *_OWN,
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


class _Model:
    """One group of names that hold a model."""

    def __init__(self, plan: Plan, group: Key, optimizer: ast.Call | None) -> None:
        self.plan, self.script, self.bindings, self.group = plan, plan.script, plan.bindings, group
        self.optimizer = optimizer
        self.given: set[Key] = set()  # parameters that get the wrapper

    def rewrite(self) -> None:
        place = self._place()
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
        self._insert(self._last_preparation(statement), forwards)
        self._unfrozen(statement)
        self._bound_anew(statement)
        for call in forwards:
            self._use(call.func)
            same = self.bindings.key(call.func) == self.key
            loop = self.plan.loop_of(call)
            names = self.plan.used_in.setdefault(loop, [])
            if (name := self.name if same else dotted(call.func)) not in names:
                names.append(name)
        self._pass()
        self._other_uses({call.func for call in forwards})

    def _place(self) -> tuple[ast.stmt, ast.expr] | None:
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
            node, name = stores[-1], stores[-1]
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
        if function is not None and self.bindings.key(name) == (None, dotted(name)):
            node = self._bound_at_the_top(dotted(name)) or node
        statement = self.script.statement(node)
        while isinstance(parent := self.script.parents[statement], (ast.If, ast.With, ast.Try)):
            if _is_main(parent) or self.plan.trains(parent):
                break
            statement = parent
        return statement, name

    def _bound_at_the_top(self, name: str) -> ast.AST | None:
        """Find where the module binds a name last before it trains."""
        found: ast.AST | None = None
        for statement in self.script.tree.body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                continue
            if self.plan.trains(statement):
                break
            inside = (n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            found = next((n for n in inside if n.id == name), found)
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

    def _last_preparation(self, statement: ast.stmt) -> ast.stmt:
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

    def _forwards(self) -> list[ast.Call]:
        """List the calls of the model that gradients come back through."""
        return [
            call
            for call in self.script.calls()
            if isinstance(call.func, (ast.Name, ast.Attribute))
            and self.bindings.holds(call.func, self.group)
            and self.plan.learns(call)
        ]

    def _insert(self, after: ast.stmt, forwards: list[ast.Call]) -> None:
        plan, lines = self.plan, [""]
        normed = "BatchNorm" in self.script.text or not self._is_own()
        if normed:
            lines += [
                "if torch.cuda.is_available():  # without one BatchNorm keeps to each rank's rows",
                f"    {self.code} = torch.nn.SyncBatchNorm.convert_sync_batchnorm({self.code})",
            ]
        often = normed and any(
            len([c for c in forwards if plan.loop_of(c) is loop]) > 1 for loop in plan.flow.loader_loops
        )
        lines.append(self._wrap(often))
        plan.wraps.append((after, lines))

    def _wrap(self, often: bool) -> str:
        if self.plan.dialect.name == "ddp":
            options = ""
            if self.plan.was_wrapped:
                options += ", device_ids=[ddp_local_rank] if torch.cuda.is_available() else None"
            if often:
                options += ", forward_sync_buffers=False"
            elif self._constant_buffers():
                options += ", broadcast_buffers=False"
            if self._is_trained_in_part():
                options += ", find_unused_parameters=True"
            wrapped = f"DistributedDataParallel({self.code}{options})"
            if any(word in self.code.lower() for word in ("crit", "loss")):  # most have nothing to learn
                learns = f"any(p.requires_grad for p in {self.code}.parameters())"
                wrapped += f" if {learns} else {self.code}"
            return f"{self.name} = {wrapped}"
        self.plan.keeps_buffers = self.plan.keeps_buffers or often or self._constant_buffers()
        self.plan.has_unused = self.plan.has_unused or self._is_trained_in_part()
        target = self.optimizer and next(
            (n for n in self.script.above(self.optimizer) if isinstance(n, ast.Assign)), None
        )
        closure = any(tail(c) == "step" and c.args and isinstance(c.args[0], ast.Name) and c.args[0].id in
                      self.bindings.functions for c in self.script.calls())  # fmt: skip
        alone = not closure and sum(o is self.optimizer for o in self.plan.models.values()) == 1
        name = dotted(target.targets[0]) if target else ""
        under = any(
            isinstance(n, (ast.If, ast.Try)) and not _is_main(n) for n in self.script.above(target or self.script.tree)
        )
        if name and alone and not under and target.value is self.optimizer:  # type: ignore[union-attr]
            return f"{self.name}, {name} = accelerator.prepare({self.code}, {name})"
        return f"{self.name} = accelerator.prepare({self.code})"

    def _is_own(self) -> bool:
        """Tell whether the whole model is made in this file, so that its text shows what layers it has."""
        made = [c for key, calls in self.bindings.made.items() if self.bindings.root(key) == self.group for c in calls]
        return bool(made) and all(
            tail(c) in self.bindings.classes or tail(c) in ("Sequential", "Linear") or (tail(c)[:1].islower() and
            tail(c) in self.bindings.functions) for c in made
        )  # fmt: skip

    def _bound_anew(self, statement: ast.stmt) -> None:
        """Wrap what the name holds later: ``model = torch.load(path)``."""
        for node in self.script.all(ast.Assign):
            if node.lineno > (statement.end_lineno or 0) and self.bindings.key(node.targets[0]) == self.key:
                value = node.value
                if isinstance(value, ast.Call) and (dotted(value.func) == "torch.load" or tail(value) in ("deepcopy",)):
                    self.script.after(node, self._wrap(False))

    def _constant_buffers(self) -> bool:
        """Tell whether no buffer of the model changes: DDP need not send any, and torch 2.13 cannot send all."""
        calls = [c for c in self.script.calls() if tail(c) == "register_buffer" and c.args]
        names = {f"self.{c.args[0].value!s}" for c in calls if isinstance(c.args[0], ast.Constant)}
        if not names or len(names) < len(calls) or "BatchNorm" in self.script.text or not self._is_own():
            return False
        for node in self.script.all(ast.Name, ast.Attribute):
            if dotted(node) in names:
                outer = self.script.parents[node]
                stored = not isinstance(node.ctx, ast.Load) or (
                    isinstance(outer, ast.Subscript) and not isinstance(outer.ctx, ast.Load)
                )
                if stored or (isinstance(outer, ast.Attribute) and outer.attr.endswith("_")):
                    return False
        return True

    def _is_trained_in_part(self) -> bool:
        """Tell whether some weights get no gradient, though nothing freezes them."""
        if any(self._freezes(n) for n in self.script.all(ast.Assign, ast.Call)):
            return False
        for call in self.script.calls():
            if tail(call) == "parameters" and isinstance(call.func, ast.Attribute):
                owner = call.func.value
                part = whole(owner)
                named = dotted(owner).removesuffix(".module")
                if self.bindings.holds(part, self.group) and named != dotted(part) and self._is_optimized(call):
                    return True
        made = [c for key, calls in self.bindings.made.items() if self.bindings.root(key) == self.group for c in calls]
        classes = [self.bindings.classes[tail(c)] for c in made if tail(c) in self.bindings.classes]
        forwards = [self.bindings.method(c, "forward") for c in classes]
        return any("no_grad" in ast.unparse(f) for f in forwards if f is not None)

    def _is_optimized(self, call: ast.Call) -> bool:
        """Tell whether parameters are asked for to be trained, and not to be clipped, counted or shown."""
        return call in self.plan.asked

    def _unfrozen(self, statement: ast.stmt) -> None:
        """DDP leaves out what is frozen when it is built, so it is built again after a change."""
        block = self.script.block(statement)
        changes = [n for n in self.script.all(ast.Assign, ast.Call) if self._freezes(n) is not None]
        if not any(self._freezes(n) for n in changes):
            return
        for node in changes:
            if self._freezes(node):
                continue
            top: ast.AST = self.script.statement(node)
            while top not in block and top in self.script.parents:
                top = self.script.parents[top]
            if isinstance(top, ast.stmt) and top in block and not isinstance(top, (ast.FunctionDef, ast.ClassDef)):
                if block.index(top) > block.index(statement):
                    self.script.after(top, "# DDP looks at requires_grad when it is built", self._wrap(False))
            elif self.plan.trains(self.script.function(node) or self.script.tree):
                self.script.todo(
                    node, f"build {self.name} again after this: DDP leaves out what was frozen when it was built"
                )

    def _freezes(self, node: ast.AST) -> bool | None:
        """Tell whether a statement freezes weights of this model, or lets them go; nothing for others."""
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if not isinstance(target, ast.Attribute) or target.attr != "requires_grad":
                return None
            loop = next((n for n in self.script.above(node) if isinstance(n, ast.For)), None)
            if not (self._mentions(target) or (loop is not None and self._mentions(loop.iter))):
                return None
            return isinstance(node.value, ast.Constant) and node.value.value is False
        if isinstance(node, ast.Call) and tail(node) == "requires_grad_" and self._mentions(node.func):
            return bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value is False
        return None

    def _mentions(self, node: ast.AST) -> bool:
        names = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)))
        return any(self.bindings.holds(n, self.group) for n in names)

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
                    if isinstance(value, ast.Name) and (owner, name) not in self.given:
                        self.given.add((owner, name))
                        self._use(value)
            if (owner, name) in self.given:
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
            self.given.add((function, dotted(node)))

    def _pass(self) -> None:
        """Give the wrapper to every function that trains it."""
        done: set[Key] = set()
        while self.given - done:
            function, name = key = (self.given - done).pop()
            done.add(key)
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for call in self.bindings.callers.get(function, ()):
                given = self.bindings.arguments(call, function).get(name)
                if given is not None and self.bindings.holds(given, self.group):
                    self._use(given)
                elif given is not None and not self.plan.is_model(given):
                    self.script.todo(call, f"give {function.name}() the wrapper of the model")

    def _other_uses(self, forwards: set[ast.expr]) -> None:
        for node in list(self.script.all(ast.Name, ast.Attribute)):
            if not isinstance(node.ctx, ast.Load) or not self.bindings.holds(node, self.group):
                continue
            parent = self.script.parents[node]
            if isinstance(parent, ast.Attribute) and parent.attr == "module":
                outer = self.script.parents[parent]
                held = self._is_given(node)
                if held and self.plan.dialect.name == "accelerate":
                    self.script.replace(parent, f"accelerator.unwrap_model({dotted(node)})")
                elif not held:
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
        if not self._is_given(node) or attribute in _OWN or (attribute == "state_dict" and self.plan.always_wrapped):
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
                    (function, name) in self.given
                    for name, v in self.bindings.arguments(call, function).items()
                    if v is node
                )
            ):
                return
        unwrapped = (
            f"{dotted(node)}.module" if self.plan.dialect.name == "ddp" else f"accelerator.unwrap_model({dotted(node)})"
        )
        self.script.replace(node, unwrapped)

    def _is_given(self, node: ast.AST) -> bool:
        key = self.bindings.key(node)
        return key is not None and key in self.given

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


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


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
