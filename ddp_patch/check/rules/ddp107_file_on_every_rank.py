"""Logs, tables and pictures are written by all processes at once, into one file."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief, string
from ..rule import Finding, Rule

_WRITERS = (
    "numpy.save",
    "numpy.savez",
    "numpy.savetxt",
    "numpy.savez_compressed",
    "torchvision.utils.save_image",
    "matplotlib.pyplot.savefig",
    "imageio.imwrite",
    "cv2.imwrite",
    "logging.FileHandler",
    "scipy.io.savemat",
)
_NOWHERE = ("os.devnull", "'/dev/null'", '"/dev/null"')
_MODE = re.compile(r"[wax]")


def find(facts: Facts) -> Iterator[Finding]:
    """Find calls that open a file for writing, or write one, under no test on the rank."""
    for call in facts.calls(*_WRITERS):
        if facts.is_run(call) and not facts.on_some_ranks(call) and not _in_memory(facts, call):
            yield _finding(facts, call)
    for call in facts.calls("open", "io.open", "codecs.open"):
        mode = string(facts.argument(call, "mode", 1))
        if not facts.is_run(call) or "rank" in facts.code(call).lower():
            continue  # or a file for each
        if call.args and facts.code(call.args[0].value) in _NOWHERE:
            continue
        if mode is not None and _MODE.search(mode) and not facts.on_some_ranks(call):
            yield _finding(facts, call)
    for call in facts.calls("logging.basicConfig"):
        if facts.argument(call, "filename") is not None and not facts.on_some_ranks(call):
            yield _finding(facts, call)


def _in_memory(facts: Facts, call: cst.Call) -> bool:
    """``savefig(buffer)`` of a BytesIO writes no file."""
    variables = [facts.scopes.find(name.value, facts.scopes.of(call)) for name in facts.tree.within(call, cst.Name)]
    values = [value.node for variable in variables if variable is not None for value in variable.values]
    return any(isinstance(value, cst.Call) and facts.name(value.func) in ("io.BytesIO", "BytesIO") for value in values)


def _finding(facts: Facts, call: cst.Call) -> Finding:
    return Finding(
        call,
        f"{brief(facts, call)} is under no test on the rank",
        "every rank writes this file at once: lines are mixed, doubled or lost",
        "Write it under if dist.get_rank() == 0:",
    )


RULE = Rule("DDP107", "file-on-every-rank", "A file is written under no test on the rank", find, of_plain_parts=True)
