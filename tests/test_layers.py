"""The house has floors: what a room imports lies below it."""

import ast
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ddp_patch"
# From the ground up; rooms of one floor do not know each other.
FLOORS = (
    {
        "installed",
        "pace",
        "script_thread",
    },  # whose files are installed; where the time goes; which thread is the script's
    {
        "errors",
        "generators",
        "ledger",
        "planted",
        "portable",
        "signature",
        "source",
        "state",
        "structure",
        "trail",
        "version",
    },
    {"option_forms"},  # which values options take
    {"check", "extending", "job", "migrate", "options", "patch", "plan"},  # job: its ranks
    {"starting"},  # of a session, in whatever process
    {
        "api",
        "batch",
        "bindings",
        "data",
        "earlier",
        "env",
        "rates",
        "stepping",
        "trace",
        "usage",
        "values",
    },  # batch: tensors that hold a rank's rows
    {"__init__", "__main__", "diagnosis", "effects", "patcher", "remote", "testing"},  # effects: files, once per job
    {"calling", "gradients", "verify"},  # of models: what one call is; gradients of all rows
    {"deciding"},  # which modules split
    {"replica"},  # models under DDP
    {"compiling", "loading"},  # compiling: functions that a script compiles; loading: which rank reads which rows
    {"session"},  # one enable(): all of these together
    {"local"},  # the local view: hand-written DDP
    {"measure", "patches"},  # patches: rows and wrappers, which get the session; measure: runs whose steps are clocked
    {"profile", "scale"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Imported in the middle of a call: a door to what is built above.
DOORS = {
    *(("__init__", "diagnosis"), ("__init__", "remote"), ("extending", "patches"), ("extending", "batch")),
    ("extending", "diagnosis"),
    *(
        ("api", "diagnosis"),
        ("api", "remote"),
        ("data", "batch"),
        ("data", "loading"),
        ("starting", "patches"),
        ("starting", "session"),
        ("starting", "local"),
        ("values", "local"),
    ),
    *(("state", "diagnosis"), ("state", "job"), ("state", "options"), ("state", "session")),  # for types
}


def imports():
    """Give what imports what: room, room, whether it happens when the file is imported."""
    for path in PACKAGE.rglob("*.py"):
        folder = path.relative_to(PACKAGE).parent.parts
        room = folder[0] if folder else path.stem
        for node, at_once in nodes(ast.parse(path.read_text()), at_once=True):
            if isinstance(node, ast.ImportFrom) and node.level:
                above = folder[: len(folder) - (node.level - 1)]
                names = [*above, *(node.module or "").split(".")] if above or node.module else []
                for other in names[:1] or [alias.name for alias in node.names]:
                    if other != room:
                        yield room, other, at_once


def nodes(node, at_once):
    for child in ast.iter_child_nodes(node):
        is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        later = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or is_for_types
        yield child, at_once
        yield from nodes(child, at_once and not later)


def test_every_room_has_a_floor():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms == set(FLOOR)


def test_no_file_is_long():
    lengths = {path.relative_to(PACKAGE): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > 250} == {}


@pytest.mark.slow
def test_no_import_runs_up():
    up = {(room, other) for room, other, at_once in imports() if at_once and FLOOR[other] >= FLOOR[room]}
    assert up == set()


@pytest.mark.slow
def test_doors_to_what_is_above_are_few():
    up = {(room, other) for room, other, at_once in imports() if not at_once and FLOOR[other] >= FLOOR[room]}
    assert up == DOORS


@pytest.mark.parametrize("path", sorted((PACKAGE.parent / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(path):
    """No test runs the benchmarks."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ddp_patch"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")
