"""Take hand-made distribution out: what is left is the script of one process, with the global batch."""

from __future__ import annotations

import ast
import re

from . import plain_notes
from .bindings import Key
from .dialects import DDP
from .leftovers import left, unused, without_written_lines
from .plain_expressions import Expressions
from .plain_pass import PassState
from .plain_statements import Statements
from .script import MARK, Script, Todo
from .taken import (
    WRAPPERS,
)  # fmt: skip
from .tree import dotted, tail

_ENDING = re.compile(
    r"^[ \t]*(del ddp_\w+(, ddp_\w+)*|gc\.collect\(\)  # the wrappers go .*|accelerator\.free_memory\(\)"
    r"|\w+(\.\w+)*\(0\)  # alike on every rank.*)\n",
    re.M,
)
_DISTRIBUTING = {"init_process_group", "DistributedDataParallel", "DistributedSampler", "Accelerator"}
_PASSES = 25  # each takes out a layer; a script has a handful


def is_distributed(text: str) -> bool:
    """Tell whether a script distributes itself by DDP or Accelerate."""
    return calls_one_of(text, _DISTRIBUTING) or re.search(r"^import ddp_patch", text, re.M) is not None


def calls_one_of(text: str, names: set[str]) -> bool:
    """Tell whether a script calls one of these, by whatever name, or gives it to a call; speaking of it is not enough.

    Raises:
        SyntaxError: for a text that is not Python.
    """
    if DDP.header[0] in text and "init_process_group" in names:
        return True  # a module that was migrated: the script that calls it starts the group
    if not any(name in text for name in names):
        return False
    nodes = list(ast.walk(ast.parse(text)))
    aliases = names | {a.asname for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names if a.name in names}
    aliases |= {dotted(t) for n in nodes if isinstance(n, ast.Assign) and tail(n.value) in names for t in n.targets}
    calls = [n for n in nodes if isinstance(n, ast.Call) and tail(n) not in ("isinstance", "issubclass")]
    return any(tail(inner) in aliases for call in calls for inner in (call.func, *call.args))


def plain(text: str) -> tuple[str, list[Todo]]:
    """Give the script that one process runs, and what a person has to decide."""
    text = _ENDING.sub("", text)
    text = re.sub(rf"^[ \t]*{re.escape(MARK)}.*\n", "", text, flags=re.MULTILINE)
    state = PassState()
    noted = _Pass(Script(text), state)
    plain_notes.apply(noted)
    text, todos = noted.script.result(), noted.script.todos
    for names in (_unwrapped, _renamed):
        first = _Pass(Script(text), state)
        first.script.substitute(names(first))
        text = first.script.result()
    for _ in range(_PASSES):
        script = Script(text)
        _Pass(script, state).run()
        todos += script.todos
        changed = script.result()
        if changed == text:
            break
        text = changed
    text = without_written_lines(text)
    text = re.sub(r"^ddp_device = .*\n", "", text, flags=re.MULTILINE) if text.count("ddp_device") == 1 else text
    script = Script(text)
    unused(script)
    left(script)
    todos += script.todos
    return re.sub(r"\n{4,}", "\n\n\n", script.result()), todos


class _Pass(Statements, Expressions):
    """One pass: every outermost thing that can be taken out, is."""

    def run(self) -> None:
        for node in list(self.script.nodes):
            if isinstance(node, ast.stmt):
                if not (hasattr(node, "lineno") and self.script.is_replaced(node)):
                    self.statement(node)
            elif isinstance(node, ast.expr) and not self.script.is_replaced(node) and not self._in_string(node):
                self.expression(node)

    def wraps(self, node: ast.AST) -> bool:
        """Tell whether a call puts a model into a wrapper."""
        return isinstance(node, ast.Call) and (
            tail(node) in WRAPPERS or (tail(node) == "prepare" and self.gives_back(node))
        )

    def _in_string(self, node: ast.AST) -> bool:
        return any(isinstance(n, ast.JoinedStr) for n in self.script.above(node))


def _unwrapped(scan: _Pass) -> dict[ast.AST, str]:
    """Find what is called ``.module`` of a wrapped model, or of what nobody here knows, and not of another thing."""
    script, bindings = scan.script, scan.bindings
    if any(tail(call) == "DataParallel" for call in script.calls()):
        return {}
    groups = [
        bindings.group(inner)
        for node in script.all(ast.Assign)
        if any(map(scan.wraps, ast.walk(node.value)))
        for target in node.targets
        for inner in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]
    others = {"self"} | {(a.asname or a.name).split(".")[0] for n in script.all(ast.Import) for a in n.names}
    others |= {a.asname or a.name for n in script.all(ast.ImportFrom) for a in n.names}
    found: dict[ast.AST, str] = {}
    for node in script.all(ast.Attribute):
        owner = node.value
        name = dotted(owner)
        if node.attr != "module" or not isinstance(node.ctx, ast.Load) or not name:
            continue
        if name in others or (name.split(".")[0] in others and not name.startswith("self.")):
            continue
        made = bindings.origins(owner)
        is_wrapped = any(group is not None and bindings.holds(owner, group) for group in groups)
        if is_wrapped or not made or any(map(scan.wraps, made)):
            found[node] = script.code(owner)
    return found


def _renamed(scan: _Pass) -> dict[ast.AST, str]:
    """Call a wrapped model by the model's name, ``ddp_model = DistributedDataParallel(model)``, if it is no other."""
    script, key = scan.script, scan.bindings.key
    models: dict[Key, ast.Name] = {}
    for node in script.all(ast.Assign):
        target, value = node.targets[0], node.value
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if isinstance(value, ast.Call) and scan.wraps(value):
            for inner, model in zip(targets, value.args, strict=False):
                of, to = key(inner), key(model)
                if isinstance(inner, ast.Name) and isinstance(model, ast.Name) and of and to and of[0] is to[0]:
                    models[of] = model
    found: dict[ast.AST, str] = {}
    for wrapped, model in models.items():
        names = [n for n in script.all(ast.Name) if n.id == wrapped[1] and key(n) == wrapped]
        if wrapped[1] != model.id and _is_alone(scan, wrapped, model, names):
            found |= dict.fromkeys(names, model.id)
    return found


def _is_alone(scan: _Pass, wrapped: Key, model: ast.Name, names: list[ast.Name]) -> bool:
    """Tell whether a name always holds the (wrapped) model, and the model's own name holds that too."""
    script, key = scan.script, scan.bindings.key
    hidden = {a.arg for n in script.all(ast.Lambda) for a in n.args.args}
    hidden |= {name for n in script.all(ast.Global, ast.Nonlocal) for name in n.names}
    of = key(model)
    if hidden & {wrapped[1], model.id} or any(key(n, model.id) != of for n in names):
        return False
    wraps = []
    for node in names:
        if isinstance(node.ctx, ast.Load):
            continue
        statement = script.parents[node]
        if isinstance(statement, ast.Tuple):
            statement = script.parents[statement]
        value = statement.value if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if value is not None and scan.wraps(value) and any(key(a) == of for a in value.args):  # type: ignore[attr-defined]
            wraps.append(node.lineno)
        elif value is None or key(value) != of:
            return False
    stored = [n.lineno for n in script.all(ast.Name) if not isinstance(n.ctx, ast.Load) and key(n) == of]
    stored = [row for row in stored if row > min(wraps) and row not in wraps]
    read = [n.lineno for n in names if isinstance(n.ctx, ast.Load)]
    ends = {row: min((wrap for wrap in wraps if wrap > row), default=None) for row in stored}  # wrapped again
    return all(end is not None and not any(row < r < end for r in read) for row, end in ends.items())
