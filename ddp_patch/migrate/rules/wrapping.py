"""How a model is wrapped, and when it is wrapped again."""

from __future__ import annotations

import ast
import re

from ..neighbours import texts_beside
from ..plan import whole
from ..tree import dotted, tail
from .placing import ReadyModel, is_main

_AGAIN = "build {name} again after this: DDP leaves out what was frozen when it was built"


class Wrapper(ReadyModel):
    """Writes the wrapper of a model."""

    def insert(self, after: ast.stmt, forwards: list[ast.Call]) -> None:
        """Write the wrapper behind a statement."""
        plan, lines = self.plan, [""]
        self.near = self.script.function(after)
        normed = "BatchNorm" in self.script.text or not self._is_local()
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
            return f"{self.name} = {wrapped}{self._if_it_learns()}"
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
            isinstance(n, (ast.If, ast.Try)) and not is_main(n) for n in self.script.above(target or self.script.tree)
        )
        near = target is not None and self.script.function(target) is self.near
        if name and alone and near and not under and target.value is self.optimizer:  # type: ignore[union-attr]
            return f"{self.name}, {name} = accelerator.prepare({self.code}, {name})"
        return f"{self.name} = accelerator.prepare({self.code}){self._if_it_learns()}"

    def _if_it_learns(self) -> str:
        """Most losses have nothing to learn, and DDP wraps nothing of the kind."""
        if not any(word in self.code.lower() for word in ("crit", "loss")):
            return ""
        return f" if any(p.requires_grad for p in {self.code}.parameters()) else {self.code}"

    def _is_local(self) -> bool:
        """Tell whether the whole model is made in this file, so that its text shows what layers it has."""
        made = [c for key, calls in self.bindings.made.items() if self.bindings.root(key) == self.group for c in calls]
        return bool(made) and all(
            tail(c) in self.bindings.classes or tail(c) in ("Sequential", "Linear") or (tail(c)[:1].islower() and
            tail(c) in self.bindings.functions) for c in made
        )  # fmt: skip

    def rebuild_bound(self, statement: ast.stmt) -> None:
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
        if "BatchNorm" in self.script.text:
            return False
        if not names and not self._is_local():
            return _are_constant(texts_beside(self.script.tree, self.plan.folder))
        if not names or len(names) < len(calls) or not self._is_local():
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

    def rebuild_unfrozen(self, statement: ast.stmt) -> None:
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
            if self.plan.trains(top) and not self._is_frozen_before(statement):
                continue
            if isinstance(top, ast.stmt) and top in block and not isinstance(top, (ast.FunctionDef, ast.ClassDef)):
                if self.plan.trains(top):
                    self.script.todo(node, _AGAIN.format(name=self.name))
                elif block.index(top) > block.index(statement):
                    self.script.after(top, "# DDP looks at requires_grad when it is built", self._wrap(False))
            elif self.plan.trains(self.script.function(node) or self.script.tree):
                self.script.todo(node, _AGAIN.format(name=self.name))

    def _is_frozen_before(self, statement: ast.stmt) -> bool:
        near = self.script.function(statement)
        return any(
            self._freezes(n)
            for n in self.script.all(ast.Assign, ast.Call)
            if n.lineno <= (statement.end_lineno or 0) and self.script.function(n) is near
        )

    def _freezes(self, node: ast.AST) -> bool | None:
        """Tell whether a statement freezes weights of this model, or lets them go; nothing for others."""
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if not isinstance(target, ast.Attribute) or target.attr != "requires_grad":
                return None
            loop = next((n for n in self.script.above(node) if isinstance(n, ast.For)), None)
            if not (self.mentions(target) or (loop is not None and self.mentions(loop.iter))):
                return None
            return isinstance(node.value, ast.Constant) and node.value.value is False
        if isinstance(node, ast.Call) and tail(node) == "requires_grad_" and self.mentions(node.func):
            return bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value is False
        return None


def _are_constant(texts: list[str]) -> bool:
    """Tell whether files have buffers, none of which changes."""
    names = {name for text in texts for name in re.findall(r"register_buffer\(\s*[\"'](\w+)", text)}
    changes = "|".join(rf"self\.{name}(\[[^\]]*\])?\s*[-+*/]?=[^=]|self\.{name}\.\w+_\(" for name in names)
    return bool(names) and not any("BatchNorm" in text or re.search(changes, text) for text in texts)
