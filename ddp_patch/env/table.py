"""What was found, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

_WIDTH = 110


def written(found: dict[str, Any]) -> str:
    """Lay out what was found: who started the ranks, a row for each, what they share, and who set what."""
    ranks = found["ranks"]
    lines = [_headline(found), ""]
    rows = [["rank", "host", "local rank", "device", "interface", "process"]]
    for its in ranks:
        local = "?" if its["local_rank"] is None else f"{its['local_rank']} of {its['local_world_size']}"
        rows.append([str(its["rank"]), its["host"], local, its["device"], its["interface"], str(its["pid"])])
    lines += [f"  {line}" for line in _columns(rows)]
    lines += ["", f"backend    {found['backend']}"]
    if "rank_0_at" in found:
        lines.append(f"rank 0 at  {found['rank_0_at']} ({found['port_by']})")
    lines.append(f"versions   {', '.join(f'{name} {number}' for name, number in ranks[0]['versions'].items())}")
    lines.append(f"folder     {ranks[0]['folder']}")
    lines.append(f"key        DDP_PATCH_KEY is {', '.join(dict.fromkeys(its['key'] for its in ranks))}")
    for who in ranks[0]["set_by"]:
        values = ", ".join(f"{name}={value}" for name, value in _compared(ranks, who).items())
        lines.append(f"set by {who}:")
        lines += textwrap.wrap(values, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
    if found["problem"]:
        lines += ["", *textwrap.wrap(f"problem: {found['problem']}", _WIDTH, break_long_words=False)]
    return "\n".join(lines) + "\n"


def _headline(found: dict[str, Any]) -> str:
    size = found["world_size"]
    if size == 1 and found["problem"]:
        return f"Started by {found['launcher']}; these ranks cannot train together."
    if size == 1:
        count = found.get("would_start", 1)
        then = "is the script itself, on one process" if count == 1 else f"would start {count} ranks of the script"
        return f"Started by {found['launcher']}: one process. ddp_patch.enable() {then}."
    hosts = len({its["host"] for its in found["ranks"]})
    inside = f", inside of {' and '.join(found['inside_of'])}" if found["inside_of"] else ""
    return f"{found['launcher']} started {size} ranks on {hosts} host{'s' if hosts > 1 else ''}{inside}."


def _compared(ranks: Sequence[dict[str, Any]], who: str) -> dict[str, str]:
    """One value for all ranks, or theirs in their order."""
    values: dict[str, str] = {}
    for name, value in ranks[0]["set_by"][who].items():
        each = [its["set_by"].get(who, {}).get(name, "-") for its in ranks]
        values[name] = value if len(set(each)) == 1 else "|".join(each)
    return values


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
