"""The package runs on the oldest Python that it promises: no syntax, module or name of a later one."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OLDEST = tuple(
    map(int, re.search(r'requires-python = ">=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text()).groups())
)
FILES = sorted((ROOT / "ddp_patch").rglob("*.py"))

# What the standard library has since 3.11, 3.12, 3.13 and 3.14.
MODULES = {"tomllib", "wsgiref.types", "dbm.sqlite3", "annotationlib", "compression", "string.templatelib"}
NAMES = {
    "asyncio": "TaskGroup Runner timeout timeout_at Barrier QueueShutDown",
    "builtins": "ExceptionGroup BaseExceptionGroup EncodingWarning PythonFinalizationError",
    "contextlib": "chdir",
    "copy": "replace",
    "datetime": "UTC",
    "enum": "StrEnum ReprEnum EnumCheck FlagBoundary verify member nonmember global_enum show_flag_values EnumType",
    "hashlib": "file_digest",
    "inspect": "getmembers_static markcoroutinefunction BufferFlags",
    "itertools": "batched",
    "logging": "getLevelNamesMapping getHandlerByName getHandlerNames",
    "math": "cbrt exp2 sumprod fma",
    "operator": "call is_none is_not_none",
    "os": "process_cpu_count listdrives unshare setns",
    "random": "binomialvariate",
    "re": "NOFLAG",
    "sys": "exception activate_stack_trampoline monitoring _is_gil_enabled",
    "threading": "setprofile_all_threads settrace_all_threads",
    "types": "get_original_bases CapsuleType",
    "typing": "Self Never assert_never assert_type reveal_type LiteralString TypeVarTuple Unpack Required NotRequired "
    "override dataclass_transform get_overloads clear_overloads TypeAliasType ReadOnly TypeIs NoDefault is_protocol",
    "warnings": "deprecated",
}
LATER = {f"{module}.{name}" for module, names in NAMES.items() for name in names.split()}
METHODS = {"add_note", "__notes__"}  # of exceptions


def later_names(text):
    """The names of a text that the oldest Python does not have."""
    tree = ast.parse(text)
    imported, found = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
            imported[node.module] = node.module
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{imported.get(node.value.id, node.value.id)}.{node.attr}")
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            found.add(node.attr)
        if isinstance(node, ast.Name) and node.id not in imported and node.id not in bound:
            found.add(f"builtins.{node.id}")
    return (found | {*imported.values()}) & (LATER | METHODS | MODULES)


@pytest.mark.parametrize(
    "text",
    [
        "import tomllib",
        "from datetime import UTC",
        "import datetime\ndatetime.UTC",
        "from typing import Self",
        "import enum\nclass A(enum.StrEnum): pass",
        "try:\n    pass\nexcept ValueError as e:\n    e.add_note('x')",
        "raise ExceptionGroup('x', [])",
    ],
)
def test_what_came_later_is_recognised(text):
    assert later_names(text)


@pytest.mark.parametrize("text", ["def f[T](x: T): pass", "try:\n    pass\nexcept* ValueError:\n    pass"])
def test_syntax_that_came_later_is_recognised(text):
    with pytest.raises(SyntaxError):
        ast.parse(text, feature_version=OLDEST)


@pytest.mark.slow
def test_there_is_nothing_of_a_later_python_in_the_package():
    assert OLDEST == (3, 10)
    assert len(FILES) > 300
    found = {}
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        ast.parse(text, str(file), feature_version=OLDEST)
        if names := later_names(text):
            found[str(file.relative_to(ROOT))] = names
    assert found == {}
