"""A file that one rank writes and all ranks read is there, whole, before they look for it."""

from __future__ import annotations

import ast
import re

from ..bindings import Bindings
from ..dialects import Dialect
from ..files import FOLDERS, READERS, Files, calls_in
from ..for_rows import for_rows
from ..paths import Paths
from ..script import Script
from ..taken import WRITTEN_FUNCTIONS
from ..tree import Function, dotted, keyword, tail

_LOOKS = {*("exists", "isfile", "isdir", "is_file", "is_dir", "getmtime", "getsize", "stat"), *FOLDERS}
_TOGETHER = {"backward", "DistributedDataParallel", "DDP", "broadcast_object_list", "gather_object"}
_GROUPS = ("dist.", "torch.distributed.", "accelerator.")  # what all ranks have to reach
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)
LEFT = "one rank writes this file, and others may read it before it is whole: let all wait where each of them comes by"


def apply(script: Script, dialect: Dialect, bindings: Bindings) -> None:
    """Let all ranks wait for what one of them writes, where the program reads it."""
    _Written(script, dialect, bindings).rewrite()


class _Written:
    """Files that a program writes and reads."""

    def __init__(self, script: Script, dialect: Dialect, bindings: Bindings) -> None:
        self.script, self.dialect, self.bindings = script, dialect, bindings
        self.paths, self.files = Paths(script, bindings), Files(script, dialect)
        self.barrier = dialect.barrier.split("  #")[0]
        self._together: dict[ast.AST, bool] = {}

    def rewrite(self) -> None:
        rows = for_rows(self.script)
        reads = list(self.files.reads())
        places: dict[ast.stmt, bool] = {}
        for call, path in self.files.writes():
            if tail(call) == "save_once" and self._collective(call):
                continue
            node = self.files.statement(call)
            around = [*self.script.above(call)]
            if not rows.isdisjoint(around) or self._waits(node) or any(map(_is_ours, around)):
                continue
            if not any(self.paths.same(path, read, folder) for read, folder in reads):
                continue
            found = self._places(node, frozenset())
            if found is None and LEFT.encode() not in self.script.lines[max(node.lineno - 2, 0)]:
                self.script.todo(node, LEFT)
            elif found is not None:
                places.update(found)
        for place, looks in places.items():
            if not any(outer in places for outer in self.script.above(place)) and not self._waits(place):
                self._wait(place, looks)

    def _wait(self, place: ast.stmt, looks: bool) -> None:
        master, unit = self.dialect.master, self.script.part(place).unit
        if looks:
            self.script.before(place, f"if not {master}:", f"{unit}{self.barrier}  # until it is written")
            self.script.after(place, f"if {master}:", f"{unit}{self.barrier}")
        else:
            self.script.after(place, self.dialect.barrier)

    def _waits(self, place: ast.stmt) -> bool:
        """Tell whether ranks wait around a statement already."""
        block = self.script.block(place)
        at = block.index(place)
        near = block[max(at - 1, 0) : at] + block[at + 1 : at + 2]
        return any(self.barrier in self.script.code(n) and len(self.script.code(n)) < 200 for n in near)

    def _places(self, node: ast.stmt, seen: frozenset[Function]) -> dict[ast.stmt, bool] | None:
        """List the statements that a rank begins once the one that writes is through, or nothing if there are none."""
        function = self.script.function(node)
        if function in seen:
            return None
        place, around = node, [n for n in self.script.above(node) if isinstance(n, ast.stmt)]
        around = around[: around.index(function)] if function is not None else around
        if any(self._repeats_apart(n) and self._meets(n) for n in around):
            return {}  # within the training, where ranks meet in every step
        for outer in around:
            if self._parts(outer) and not _is_main(outer):
                place = outer
        leaves = any(self._leaves(n) for n in (place, *self._earlier(place)))
        if function is not None and (leaves or self._looked_for(function, seen) or not self._knows(place)):
            calls = self.bindings.callers.get(function, [])
            found: dict[ast.stmt, bool] = {}
            for call in calls:
                more = self._places(self.script.statement(call), seen | {function})
                if more is None:
                    return None
                found |= dict.fromkeys(more, True)
            return found if calls else None
        part = self.script.part(place)
        if not part.is_script and any(map(_is_main, around)):
            return {}  # of another program
        if leaves or self._meets(place) or not self._knows(place):
            return None
        return {place: place is not node or self._reads_inside(place)}

    def _looked_for(self, function: Function, seen: frozenset[Function]) -> bool:
        """Tell whether some ranks may find a file, and not call a function; or who calls it is not known."""
        if function in seen:
            return True
        calls = self.bindings.callers.get(function, [])
        for call in calls:
            around = [n for n in self.script.above(call) if isinstance(n, ast.stmt)]
            caller = self.script.function(call)
            around = around[: around.index(caller)] if caller is not None else around
            if any(self._parts(n) for n in around) or any(self._leaves(n) for n in self._earlier(call)):
                return True
            if caller is not None and self._looked_for(caller, seen | {function}):
                return True
        return not calls

    def _earlier(self, node: ast.AST) -> list[ast.stmt]:
        """List the statements before a node that may have left its function, for what they find in files."""
        found = []
        for inner in (self.script.statement(node), *self.script.above(node)):
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
                break
            if isinstance(inner, ast.stmt):
                block = self.script.block(inner)
                found += [n for n in block[: block.index(inner)] if self._decides(n)]
        return found

    def _decides(self, node: ast.AST) -> bool:
        """Tell whether what is done depends on the files that are there."""
        if isinstance(node, ast.Try):
            return any(tail(call) in (*READERS, "open") for n in node.body for call in calls_in(n))
        return isinstance(node, (ast.If, ast.While)) and self._looks(node.test, 0)

    def _parts(self, node: ast.AST) -> bool:
        """Tell whether some ranks may come by inside of a statement, and others not, or less often."""
        ranked = isinstance(node, ast.If) and self.dialect.master in self.script.code(node.test)
        caught = isinstance(node, ast.Try) and bool(node.handlers)  # what one rank alone gets, a full disk for one
        return ranked or caught or self._repeats_apart(node) or self._decides(node)

    def _repeats_apart(self, node: ast.AST) -> bool:
        """Tell whether a loop may go on longer on some ranks: one over rows, or for as long as something holds."""
        if isinstance(node, (ast.For, ast.AsyncFor)):
            iterated = node.iter
            plain = isinstance(iterated, (ast.List, ast.Tuple, ast.Constant))
            counted = tail(iterated) == "range" and not any(isinstance(n, ast.Call) for n in ast.walk(iterated)
                                                            if n is not iterated)  # fmt: skip
            return not (plain or counted)
        return isinstance(node, ast.While)

    def _looks(self, test: ast.AST, depth: int) -> bool:
        for inner in ast.walk(test):
            if isinstance(inner, ast.Call):
                function = self.bindings.callee(inner)
                if tail(inner) in _LOOKS or (function is not None and depth < 3 and self._looks(function, depth + 1)):
                    return True
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load) and not depth:
                assigned = self.paths.assigned(inner)
                if any(tail(call) in _LOOKS for value in assigned for call in calls_in(value)):
                    return True
        return False

    def _leaves(self, node: ast.AST) -> bool:
        """Tell whether a statement may leave the function that it stands in."""
        leaving = [n for n in ast.walk(node) if isinstance(n, _LEAVES)]
        inner = [n for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.Lambda))]
        return any(
            not any(outer in inner or self._repeats(outer, n, node) for outer in self.script.above(n)) for n in leaving
        )

    def _repeats(self, outer: ast.AST, leave: ast.AST, node: ast.AST) -> bool:
        """Tell whether a loop inside of a statement is all that ``break`` leaves."""
        loop = isinstance(outer, (ast.For, ast.While)) and isinstance(leave, (ast.Break, ast.Continue))
        return (loop and (outer is node or node in self.script.above(outer))) or isinstance(leave, ast.Raise)

    def _reads_inside(self, node: ast.stmt) -> bool:
        names = {tail(call) for call in calls_in(node)}
        return bool(names & {*READERS, *FOLDERS})

    def _meets(self, node: ast.AST) -> bool:
        """Tell whether ranks meet in what a node does."""
        if node not in self._together:
            self._together[node] = False
            self._together[node] = any(map(self._collective, calls_in(node)))
        return self._together[node]

    def _collective(self, call: ast.Call) -> bool:
        if tail(call) == "save_once":
            waits = keyword(call, "wait")
            return "wait=True" in self.script.text and not (isinstance(waits, ast.Constant) and not waits.value)
        function = self.bindings.callee(call)
        if function is not None:
            return self._meets(function)
        return tail(call) in _TOGETHER or dotted(call.func).startswith(_GROUPS)

    def _knows(self, place: ast.stmt) -> bool:
        """Tell whether the file of a statement knows which rank writes, and can wait."""
        part = self.script.part(place)
        words = {self.dialect.master.split(".")[0], self.barrier.split(".")[0]}
        text = self.script.text if part.path is None else "\n".join(map(self.script.code, part.body))
        return all(re.search(rf"^(?:import .* as )?{word}\b|^import .* as {word}$", text, re.M) for word in words)


def _is_ours(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name in {*WRITTEN_FUNCTIONS, "save_once"}


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
