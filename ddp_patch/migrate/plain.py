"""Take hand-made distribution out: what is left is the script of one process, with the global batch."""

from __future__ import annotations

import ast
import re
from typing import Any

from .bindings import Bindings
from .constants import UNKNOWN, Constants
from .script import MARK, Script, Todo, dotted, keyword, tail
from .taken import (
    ARGUMENTS,
    GIVEN,
    IDENTITIES,
    IMPORTED,
    OWN_FUNCTIONS,
    OWN_LINES,
    STATEMENTS,
    WRAPPERS,
)  # fmt: skip

_ENDING = re.compile(
    r"^[ \t]*(del ddp_\w+(, ddp_\w+)*|gc\.collect\(\)  # the wrappers go .*|accelerator\.free_memory\(\)"
    r"|\w+(\.\w+)*\(0\)  # alike on every rank.*)\n",
    re.M,
)
_PASSES = 25  # each takes out a layer; a script has a handful
_PER_RANK = (
    "under DDP every rank took a batch of this size: multiply it by their number to train on as many rows per step as "
    "before"
)


def is_distributed(text: str) -> bool:
    """Tell whether a script distributes itself by DDP or Accelerate."""
    return bool(
        re.search(
            r"\b(init_process_group|DistributedDataParallel|DistributedSampler|Accelerator\()|^import ddp_patch",
            text,
            re.M,
        )
    )


def plain(text: str) -> tuple[str, list[Todo]]:
    """Give the script that one process runs, and what a person has to decide."""
    todos: list[Todo] = []
    text = _ENDING.sub("", text)
    text = _rename(re.sub(rf"^[ \t]*{re.escape(MARK)}.*\n", "", text, flags=re.MULTILINE))
    known: dict[str, Any] = {}
    for number in range(_PASSES):
        script = Script(text)
        _Pass(script, known, first=number == 0).run()
        todos += script.todos
        changed = script.result()
        if changed == text:
            break
        text = changed
    text = _own_lines(text)
    text = re.sub(r"^ddp_device = .*\n", "", text, flags=re.MULTILINE) if text.count("ddp_device") == 1 else text
    script = Script(text)
    _unused(script)
    _left(script)
    todos += script.todos
    return re.sub(r"\n{4,}", "\n\n\n", script.result()), todos


def _rename(text: str) -> str:
    """Call a wrapped model by the model's name: ``ddp_model = DistributedDataParallel(model)``."""
    script = Script(text)
    names: dict[str, str] = {}
    for node in script.all(ast.Assign):
        target, value = node.targets[0], node.value
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if isinstance(value, ast.Call) and (tail(value) in WRAPPERS or tail(value) == "prepare"):
            for inner, given in zip(targets, value.args, strict=False):
                if dotted(inner) and dotted(given) and dotted(inner) != dotted(given):
                    names[dotted(inner)] = dotted(given)
    if not names:
        return text
    replaced = {n: names[dotted(n)] for n in script.all(ast.Name, ast.Attribute) if dotted(n) in names}
    script.substitute(replaced)
    return script.result()


class _Pass:
    """One pass: every outermost thing that can be taken out, is."""

    def __init__(self, script: Script, known: dict[str, Any], first: bool) -> None:
        self.script, self.first = script, first
        self.constants = Constants(script, known)
        self.bindings = Bindings(script)

    def run(self) -> None:
        for node in list(self.script.nodes):
            if isinstance(node, ast.stmt):
                if not (hasattr(node, "lineno") and self.script.is_replaced(node)):
                    self._statement(node)
            elif isinstance(node, ast.expr) and not self.script.is_replaced(node) and not self._in_string(node):
                self._expression(node)

    def _in_string(self, node: ast.AST) -> bool:
        return any(isinstance(n, ast.JoinedStr) for n in self.script.above(node))

    def _delete(self, node: ast.stmt) -> None:
        block, parent = self.script.block(node), self.script.parents[node]
        if isinstance(parent, ast.FunctionDef) and len(block) == 1 and not self._is_method(parent):
            self._delete_function(parent)
            return
        self.script.delete(node)

    def _is_method(self, node: ast.AST) -> bool:
        return isinstance(self.script.parents[node], ast.ClassDef)

    def _delete_function(self, function: ast.FunctionDef) -> None:
        calls = [c for c in self.script.calls() if tail(c) == function.name]
        if all(isinstance(self.script.parents[c], ast.Expr) for c in calls):
            self.script.delete(function)
            for call in calls:
                statement = self.script.parents[call]
                if not self.script.is_replaced(statement):
                    self._delete(statement)  # type: ignore[arg-type]

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.If():
                self._if(node)
            case ast.Expr(value=ast.Call()) if self._is_taken(node.value):
                self._delete(node)
            case ast.Assign():
                self._assign(node)
            case ast.AugAssign() if self.constants.is_ranked(node.value):
                value = self.constants.value(node.value)
                if value == (0 if isinstance(node.op, (ast.Add, ast.Sub)) else 1):
                    self._delete(node)
            case ast.With():
                if any(tail(i.context_expr) == "no_sync" for i in node.items):
                    self._unindent(node, node.body)
            case ast.FunctionDef() if node.name in OWN_FUNCTIONS:
                if not [c for c in self.script.calls() if tail(c) == node.name and node not in self.script.above(c)]:
                    self.script.delete(node)
            case ast.ClassDef() if node.name in OWN_FUNCTIONS:
                if not [c for c in self.script.calls() if tail(c) == node.name]:
                    self.script.delete(node)
            case ast.FunctionDef(body=[ast.Pass()]) if not self._is_method(node):
                self._delete_function(node)
            case ast.Import() if any(a.name == "ddp_patch" for a in node.names):
                self.script.delete(node)

    def _is_taken(self, call: ast.expr) -> bool:
        assert isinstance(call, ast.Call)
        name = dotted(call.func)
        if name.startswith("ddp_patch.") or tail(call) in STATEMENTS:
            return name.split(".")[0] != "self" or tail(call) != "barrier"
        if name == "torch.cuda.set_device":
            return True
        if tail(call) == "add_argument" and call.args and isinstance(call.args[0], ast.Constant):
            return call.args[0].value in ARGUMENTS
        if tail(call) in ("manual_seed", "seed") and call.args:
            return "initial_seed" in ast.unparse(call.args[0])
        if tail(call) == "setdefault" and call.args and isinstance(call.args[0], ast.Constant):
            return str(call.args[0].value) in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        return False

    def _if(self, node: ast.If) -> None:
        if not self.constants.is_ranked(node.test):
            if (
                not any(isinstance(s, (ast.Expr, ast.Pass)) is False for s in node.body)
                and all(isinstance(s, ast.Pass) for s in node.body)
                and not node.orelse
            ):
                self._delete(node)
            return
        value = self.constants.value(node.test)
        if value is UNKNOWN:
            if isinstance(node.test, ast.BoolOp):
                self._simplify(node.test)
            return
        body = node.body if value else node.orelse
        if self._is_elif(node):
            return
        if not body:
            self._delete(node)
        elif len(body) == 1 and isinstance(body[0], ast.If) and body is node.orelse:
            start, _ = self.script.span(node)
            first, end = self.script.span(body[0])
            text = self.script.data[first:end].decode()
            self.script.put(start, end, text.replace("elif", "if", 1) if text.startswith("elif") else text)
        else:
            self._unindent(node, body)

    def _is_elif(self, node: ast.If) -> bool:
        parent = self.script.parents[node]
        return isinstance(parent, ast.If) and parent.orelse == [node] and self.script.code(node).startswith("elif")

    def _simplify(self, test: ast.BoolOp) -> None:
        """Leave out of ``master and epoch > 0`` what is true anyway."""
        left = [v for v in test.values if self.constants.value(v) is UNKNOWN]
        if len(left) < len(test.values):
            word = " and " if isinstance(test.op, ast.And) else " or "
            self.script.replace(test, word.join(self._bracketed(v, len(left) > 1) for v in left))

    def _bracketed(self, node: ast.expr, several: bool) -> str:
        code = self.script.code(node)
        return f"({code})" if several and isinstance(node, ast.BoolOp) else code

    def _unindent(self, node: ast.stmt, body: list[ast.stmt]) -> None:
        """Put the statements of a block in the place of what it hangs on, with their comments."""
        script = self.script
        first, last = body[0], body[-1]
        row = script.line_of(first)
        if row <= node.lineno - 1:  # `if rank == 0: print()`
            text = "; ".join(script.code(s) for s in body)
            script.put(*script.span(node), text)
            return
        while script.lines[row - 1].lstrip().startswith(b"#") and row - 1 > node.lineno - 1:
            row -= 1
        outer, inner = script.indent(node), script.indent(first)
        strings = script.rows_in_strings()
        lines = []
        for number in range(row, last.end_lineno):  # type: ignore[arg-type]
            line = script.lines[number].decode()
            if number not in strings and line.startswith(inner):
                line = outer + line[len(inner) :]
            lines.append(line)
        script.put_rows(node.lineno - 1, node.end_lineno, "".join(lines))  # type: ignore[arg-type]

    def _assign(self, node: ast.Assign) -> None:
        target, value = node.targets[0], node.value
        name = dotted(target)
        if name and name in self.constants.names and self.constants.is_ranked(value):
            self._delete(node)
        elif isinstance(target, ast.Tuple) and all(dotted(t) in self.constants.names for t in target.elts):
            if self.constants.is_ranked(value):
                self._delete(node)
        elif name.endswith("require_backward_grad_sync") or (
            isinstance(value, ast.Call) and tail(value) == "Accelerator"
        ):
            self._accelerator(value)
            self._delete(node)
        elif isinstance(value, ast.Call) and tail(value) == "DistributedSampler":
            if not self._uses_of(name):
                self._delete(node)
        elif self.script.code(target) == self.script.code(value) or (
            isinstance(value, ast.Call)
            and tail(value) in IDENTITIES | WRAPPERS
            and ast.unparse(target).strip("()")
            == ", ".join(map(ast.unparse, value.args[: 1 if tail(value) in WRAPPERS else None])).strip("()")
        ):
            self._delete(node)

    def _accelerator(self, value: ast.expr) -> None:
        if isinstance(value, ast.Call):
            for given in value.keywords:
                if given.arg in ("mixed_precision", "gradient_accumulation_steps"):
                    self.script.todo(
                        value, f"{given.arg} was Accelerate's to do: write it out, or start by accelerate launch"
                    )

    def _uses_of(self, name: str) -> int:
        return sum(isinstance(n.ctx, ast.Load) and dotted(n) == name for n in self.script.all(ast.Name, ast.Attribute))

    # -- expressions --

    def _expression(self, node: ast.expr) -> None:
        script = self.script
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return
        if isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.JoinedStr) and self.constants.is_ranked(node):
            first = node.values[0]
            if isinstance(first, ast.Constant) and str(first.value).startswith("cuda:"):
                script.replace(node, '"cuda"')
            else:
                script.substitute(self._told(node))
        elif isinstance(node, ast.IfExp) and self.constants.is_ranked(node.test):
            value = self.constants.value(node.test)
            if value is not UNKNOWN:
                script.replace(node, script.code(node.body if value else node.orelse))
        elif isinstance(node, ast.BinOp) and self.constants.is_ranked(node):
            self._operation(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            cut = node.slice
            if cut.step is not None and cut.upper is None and self.constants.is_ranked(cut.step):
                script.replace(node, script.code(node.value))
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Compare, ast.BoolOp, ast.Call, ast.Subscript, ast.UnaryOp)):
            self._constant(node)

    def _told(self, string: ast.JoinedStr) -> dict[ast.AST, str]:
        """Find what an f-string says of ranks, the largest expressions first."""
        told: dict[ast.AST, str] = {}
        for node in ast.walk(string):
            if isinstance(node, ast.BinOp) and self.constants.is_ranked(node.right):
                one = isinstance(node.op, (ast.Mult, ast.Div, ast.FloorDiv)) and self.constants.value(node.right) == 1
                none = isinstance(node.op, (ast.Add, ast.Sub)) and self.constants.value(node.right) == 0
                if one or none:
                    told[node] = ast.unparse(node.left)
        for node in ast.walk(string):
            value = self.constants.value(node)
            if (
                isinstance(node, (ast.Name, ast.Attribute, ast.Call))
                and value is not UNKNOWN
                and self.constants.is_ranked(node)
            ):
                told[node] = repr(value)
        return told

    def _constant(self, node: ast.expr) -> None:
        if self.script.is_replaced(node) or not self.constants.is_ranked(node):
            return
        value = self.constants.value(node)
        parent = self.script.parents[node]
        if (value is not UNKNOWN and not isinstance(parent, (ast.keyword,))) or (
            value is not UNKNOWN and isinstance(value, (int, bool))
        ):
            self.script.replace(node, repr(value))

    def _operation(self, node: ast.BinOp) -> None:
        script = self.script
        left, right = self.constants.value(node.left), self.constants.value(node.right)
        match node.op:
            case ast.Mult() | ast.FloorDiv() | ast.Div() if right == 1 and self.constants.is_ranked(node.right):
                script.replace(node, script.code(node.left))
            case ast.Mult() if left == 1 and self.constants.is_ranked(node.left):
                script.replace(node, script.code(node.right))
            case ast.Add() | ast.Sub() if right == 0 and self.constants.is_ranked(node.right):
                script.replace(node, script.code(node.left))

    def _attribute(self, node: ast.Attribute) -> None:
        script = self.script
        if (
            node.attr == "module"
            and isinstance(node.ctx, ast.Load)
            and "DataParallel(" not in script.text.replace("DistributedDataParallel(", "")
        ):
            if dotted(node.value) and not dotted(node).startswith(("torch", "nn.")):
                script.replace(node, script.code(node.value))
        elif node.attr == "device" and dotted(node.value) == "accelerator":
            script.replace(node, 'torch.device("cuda" if torch.cuda.is_available() else "cpu")')
        elif dotted(node) == "accelerator.print":
            script.replace(node, "print")
        elif dotted(node) == "accelerator.save":
            script.replace(node, "torch.save")
        elif dotted(node) == "accelerator.clip_grad_norm_":
            script.replace(node, "torch.nn.utils.clip_grad_norm_")

    def _call(self, node: ast.Call) -> None:
        script, name = self.script, tail(node)
        owner = dotted(node.func).rpartition(".")[0]
        if name in WRAPPERS and node.args:
            script.replace(node, script.code(node.args[0]))
        elif name in IDENTITIES and node.args and (owner in ("accelerator", "") or name == "prepare"):
            given = node.args[:1] if name in ("reduce", "unwrap_model") else node.args
            script.replace(node, ", ".join(script.code(a) for a in given))
        elif name == "backward" and owner == "accelerator" and node.args:
            loss = script.code(node.args[0])
            loss = f"({loss})" if isinstance(node.args[0], (ast.BinOp, ast.IfExp)) else loss
            more = ", ".join(script.code(a) for a in [*node.args[1:], *node.keywords])
            script.replace(node, f"{loss}.backward({more})")
        elif name in ("rows_of", "batches_of") and node.args:
            loader = script.code(node.args[0])
            script.replace(node, f"len({loader}.dataset)" if name == "rows_of" else f"len({loader})")
        elif own := [k for k in node.keywords if k.arg in GIVEN and tail(k.value) == GIVEN[k.arg]]:
            self._drop(node, own[0])
        elif name == "DataLoader":
            self._loader(node)
        elif name == "device" and len(node.args) == 2 and self.constants.is_ranked(node.args[1]):
            script.replace(node, f"{script.code(node.func)}({script.code(node.args[0])})")
        elif name == "cuda" and node.args and self.constants.is_ranked(node.args[0]):
            script.replace(node, f"{script.code(node.func)}()")
        elif (
            name == "to"
            and len(node.args) == 1
            and self.constants.value(node.args[0]) == 0
            and self.constants.is_ranked(node)
        ):
            script.replace(node.args[0], '"cuda"')
        elif name == "spawn" and node.args and dotted(node.args[0]):
            passed = keyword(node, "args", 1)
            codes = [script.code(e) for e in passed.elts] if isinstance(passed, ast.Tuple) else []
            script.replace(node, f"{script.code(node.args[0])}({', '.join(['0', *codes])})")

    def _loader(self, node: ast.Call) -> None:
        """Let the loader shuffle again, and take all rows."""
        script = self.script
        given = next((k for k in node.keywords if k.arg == "sampler"), None)
        if given is None:
            return
        value = given.value
        made = [value] if isinstance(value, ast.Call) else self.bindings.origins(value)
        shuffle = next((k for k in node.keywords if k.arg == "shuffle"), None)
        distributed = next((c for c in made if isinstance(c, ast.Call) and tail(c) == "DistributedSampler"), None)
        if distributed is not None:
            said = keyword(distributed, "shuffle", 3)
            code = script.code(said) if said is not None else "True"
            size = keyword(node, "batch_size", 1)
            if self.first and size is not None and not self._is_shared(size):
                script.todo(node, _PER_RANK)
            script.replace(given, f"shuffle={code}")
            if shuffle is not None:
                self._drop(node, shuffle)
        elif isinstance(value, ast.Call) and tail(value) == "range" and self.constants.is_ranked(value):
            self._drop(node, given)

    def _is_shared(self, size: ast.expr) -> bool:
        """Tell whether a batch size is divided among the ranks, here or where it was set."""
        if self.constants.is_ranked(size) or tail(size) == "rank_share":
            return True
        name = dotted(size)
        for node in self.script.all(ast.Assign, ast.AugAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if name and dotted(target) == name and self.constants.is_ranked(node.value):
                return True
        return False

    def _drop(self, call: ast.Call, given: ast.keyword) -> None:
        start, end = self.script.span(given)
        before = self.script.data[:start].rstrip()
        if before.endswith(b","):
            self.script.put(len(before) - 1, end, "")
        else:
            self.script.put(start, end, "")


def _own_lines(text: str) -> str:
    text = re.sub(r"\n\nLaunch: [^\n]*\n(\"\"\"|''')", r"\1", text, count=1)
    lines = []
    for line in text.splitlines(keepends=True):
        if not any(own in line for own in OWN_LINES):
            lines.append(line)
        elif not line.strip().startswith(("#", "Launch:", '"""Launch:')):
            lines.append(re.sub(r"  #.*", "", line))
    return "".join(lines)


def _unused(script: Script) -> None:
    """Take out imports that nothing needs any more."""
    used = {n.id for n in script.all(ast.Name)} | {
        n.value.id for n in script.all(ast.Attribute) if isinstance(n.value, ast.Name)
    }
    for node in [*script.all(ast.Import, ast.ImportFrom)]:
        names = node.names
        full = getattr(node, "module", None)
        unused = [
            a
            for a in names
            if (a.asname or a.name).split(".")[0] not in used
            and (a.name in IMPORTED or f"{full}.{a.name}" in IMPORTED or a.name.startswith("torch.distributed"))
        ]
        if "torch.distributed" in [a.name for a in names if a.asname is None]:
            unused += [a for a in names if a.name == "torch.distributed" and "torch.distributed." not in script.text]
        if len(unused) == len(names):
            script.delete(node)
        elif unused:
            kept = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in names if a not in unused)
            script.replace(node, f"from {full} import {kept}" if isinstance(node, ast.ImportFrom) else f"import {kept}")


def _left(script: Script) -> None:
    """Say what could not be taken out."""
    for call in script.calls():
        name = dotted(call.func)
        if name.startswith(("dist.", "torch.distributed.", "accelerator.")) or tail(call) == "Accelerator":
            script.todo(call, f"{name}() is for several processes, and this script is now that of one: take it out")
