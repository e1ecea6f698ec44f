"""A notebook's code cells as one text, and back."""

from __future__ import annotations

import json
import re
from typing import Any

from ..source.notebooks import cells, mask, unmask

CELL = "# %% cell "


def joined(content: str) -> str:
    """Join the code cells, with a comment above each and IPython's own lines put aside."""
    return "".join(f"{CELL}{cell.index}\n{mask(cell.text.rstrip())}\n\n" for cell in cells(content))


def taken_apart(content: str, text: str) -> str:
    """Put the text's cells back into the notebook; all else in it stays."""
    notebook: dict[str, Any] = json.loads(content)
    listed = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]
    parts = re.split(rf"^{CELL}(\d+)\n", text, flags=re.MULTILINE)
    heads = [parts[0], *parts[2::2]]
    for number, (index, body) in enumerate(zip(parts[1::2], heads[1:], strict=True)):
        source = unmask(body.strip("\n"))
        if number == 0 and heads[0].strip():
            source = heads[0].strip("\n") + "\n" + source
        cell = listed[int(index)]
        key = "source" if "source" in cell else "input"
        old = "".join(cell[key])
        if source == old.rstrip().strip("\n"):
            continue
        cell[key] = source.splitlines(keepends=True) if isinstance(cell.get(key), list) else source
    indent = 1 if "\n " in content else None
    return json.dumps(notebook, indent=indent, ensure_ascii=False) + ("\n" if content.endswith("\n") else "")
