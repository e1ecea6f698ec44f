"""``# noqa`` and ``# noqa: DDP104`` at the end of a line: what the script's author knows about and means."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NOQA = re.compile(r"#\s*noqa(?P<codes>:\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?(?!\S*:)", re.I)
_CODE = re.compile(r"[A-Z]+[0-9]+", re.I)


def silenced(lines: Sequence[str], first: int, last: int, code: str) -> bool:
    """Tell whether a comment on the first or last line of what was found silences a code.

    Args:
        lines: of the file or cell.
        first: line, from 1.
        last: line, from 1.
        code: of the rule.
    """
    return any(_silences(lines[number - 1], code) for number in {first, last} if 0 < number <= len(lines))


def _silences(line: str, code: str) -> bool:
    match = _NOQA.search(line) if "noqa" in line.lower() else None
    if match is None:
        return False
    codes = match["codes"]
    return codes is None or code in (found.upper() for found in _CODE.findall(codes))
