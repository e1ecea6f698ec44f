"""Files that a program writes and reads, by the calls that do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .dialects import Dialect
from .script import Script
from .tree import dotted, keyword, tail

_WRITERS = {  # where the path stands among the arguments
    **dict.fromkeys(("save", "savez", "savez_compressed", "savetxt", "savemat", "imwrite", "imsave"), 0),
    **dict.fromkeys(("to_csv", "to_json", "to_pickle", "to_parquet", "to_hdf", "save_to_disk"), 0),
    **dict.fromkeys(("copyfile", "copy", "copy2", "copytree", "move", "replace", "rename", "dump", "save_image"), 1),
    "save_once": 1,
}
_MODULES = {  # what gives a writer its meaning, where its name alone says too little
    "save": ("np", "numpy"),
    "dump": ("joblib",),
    "copy": ("shutil",),
    "replace": ("os",),
    "rename": ("os",),
    "move": ("shutil",),
}
READERS = {
    *("load", "loadtxt", "genfromtxt", "loadmat", "imread", "read_csv", "read_json", "read_pickle", "read_parquet"),
    *("read_hdf", "read_table", "load_from_disk", "read_text", "read_bytes", "File"),
}
FOLDERS = {"listdir", "scandir", "glob", "iglob", "iterdir", "rglob", "walk", "ImageFolder", "DatasetFolder"}


class Files:
    """Calls that write and read, in a migrated text."""

    def __init__(self, script: Script, dialect: Dialect) -> None:
        self._script, self._dialect = script, dialect

    def writes(self) -> Iterator[tuple[ast.Call, ast.expr]]:
        """Give the calls that write files, and the paths of these."""
        for call in self._script.calls():
            name, path = tail(call), None
            if name == "open":
                path = self._opened(call, "wax")
                if isinstance(path, ast.IfExp):  # on other ranks it is nothing
                    path = path.body
                if path is not None and (".tmp" in self._script.code(path) or self._stays_open(call)):
                    path = None  # it is renamed below, or goes on
            elif name in ("write_text", "write_bytes") and isinstance(call.func, ast.Attribute):
                path = call.func.value
            elif name in _WRITERS:
                owner = dotted(call.func).rpartition(".")[0]
                if name not in _MODULES or owner in _MODULES[name]:
                    path = call.args[_WRITERS[name]] if len(call.args) > _WRITERS[name] else None
            if path is not None:
                yield call, path

    def reads(self) -> Iterator[tuple[ast.expr, bool]]:
        """Give the paths of what is read, and whether they are folders."""
        for call in self._script.calls():
            name, path = tail(call), None
            if name == "open":
                path = self._opened(call, "r")
            elif name in ("read_text", "read_bytes", "iterdir", "rglob") and isinstance(call.func, ast.Attribute):
                path = call.func.value
            elif (name in READERS or name in FOLDERS) and call.args:
                path = call.args[0]
            if path is not None:
                yield path, name in FOLDERS

    def _opened(self, call: ast.Call, modes: str) -> ast.expr | None:
        """Find the path of ``open(path, mode)`` or ``path.open(mode)``, if the mode is one of these."""
        method = isinstance(call.func, ast.Attribute) and dotted(call.func.value) not in ("io", "os", "codecs", "gzip")
        path = call.func.value if method else call.args[0] if call.args else None  # type: ignore[attr-defined]
        mode = keyword(call, "mode", 0 if method else 1)
        text = mode.value if isinstance(mode, ast.Constant) else "r" if mode is None else ""
        return path if str(text)[:1] in (*modes,) else None

    def _stays_open(self, call: ast.Call) -> bool:
        """Tell whether a file is kept, to be written later: ``self.file = open(path, "w")``."""
        holder = self._script.parents[call]
        return isinstance(holder, ast.Assign) and self._closed(call) is None

    def _closed(self, call: ast.Call) -> ast.stmt | None:
        """Find the statement that closes a file: ``file = open(path, "w")``, ..., ``file.close()``."""
        holder = self._script.parents[call]
        if not isinstance(holder, ast.Assign):
            return None
        name, block = dotted(holder.targets[0]), self._script.block(holder)
        after = block[block.index(holder) :]
        return next((n for n in after if any(dotted(c.func) == f"{name}.close" for c in calls_in(n))), None)

    def statement(self, call: ast.Call) -> ast.stmt:
        """Find the statement that ends a write, with the test that leaves it to one rank."""
        found = self._script.statement(self._closed(call) or call)
        outer = self._script.parents[found]
        if isinstance(outer, ast.If) and self._dialect.master in self._script.code(outer.test):
            return outer
        return found


def calls_in(node: ast.AST) -> list[ast.Call]:
    """List the calls in a node."""
    return [n for n in ast.walk(node) if isinstance(n, ast.Call)]
