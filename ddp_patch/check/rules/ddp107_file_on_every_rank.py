"""Logs, tables and pictures are written by all processes at once, into one file."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief, string
from ..own_files import is_of_rank
from ..rule import Finding, Rule

_WRITERS = {  # to the position of the file among their arguments
    "numpy.save": 0,
    "numpy.savez": 0,
    "numpy.savetxt": 0,
    "numpy.savez_compressed": 0,
    "torchvision.utils.save_image": 1,
    "matplotlib.pyplot.savefig": 0,
    "imageio.imwrite": 0,
    "cv2.imwrite": 0,
    "logging.FileHandler": 0,
    "scipy.io.savemat": 0,
}
_KEYWORDS = ("file", "fp", "fname", "filename", "uri", "file_name")
_NOWHERE = ("os.devnull", "'/dev/null'", '"/dev/null"')
_MODE = re.compile(r"[wax]")


def find(facts: Facts) -> Iterator[Finding]:
    """Find calls that open a file for writing, or write one, under no test on the rank."""
    for call in facts.calls(*_WRITERS):
        if facts.is_run(call) and _is_shared(facts, call, _WRITERS[facts.name(call.func) or ""]):
            yield _finding(facts, call)
    for call in facts.calls("open", "io.open", "codecs.open"):
        mode = string(facts.argument(call, "mode", 1))
        if call.args and facts.code(call.args[0].value) in _NOWHERE:
            continue
        if mode is not None and _MODE.search(mode) and facts.is_run(call) and _is_shared(facts, call, 0):
            yield _finding(facts, call)
    for call in facts.calls("logging.basicConfig"):
        if facts.argument(call, "filename") is not None and _is_shared(facts, call, None):
            yield _finding(facts, call)


def _is_shared(facts: Facts, call: cst.Call, position: int | None) -> bool:
    """All ranks come by, and write the same file."""
    files = [facts.argument(call, keyword, position) for keyword in _KEYWORDS]
    return not facts.on_some_ranks(call) and not is_of_rank(facts, *files)


def _finding(facts: Facts, call: cst.Call) -> Finding:
    return Finding(
        call,
        f"{brief(facts, call)} is under no test on the rank",
        "every rank writes this file at once: lines are mixed, doubled or lost",
        "Write it under if dist.get_rank() == 0:",
    )


RULE = Rule("DDP107", "file-on-every-rank", "A file is written under no test on the rank", find, of_plain_parts=True)
