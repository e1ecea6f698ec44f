"""One page that needs no server and nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from ..measure.busy import said
from ..plan.units import shown_seconds
from .advice import advice, costliest
from .found import Found
from .text import buckets_table, headline, layers_table, ranks_table, whose

_STYLE = """\
body {font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222;
  background: #fff}
table {border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem} td, th {padding: 0.2rem 0.8rem; text-align: right}
td:first-child, th:first-child {text-align: left} tr:nth-child(even) {background: #f3f5f7}
img {max-width: 100%} code {background: #f3f5f7; padding: 0.1rem 0.3rem} .why {color: #555}
"""


def page(its: Found, pictures: Mapping[str, str], clocked: int, traced: int) -> str:
    """Write the page.

    Args:
        its: the profile.
        pictures: SVG by title.
        clocked: steps that were clocked.
        traced: steps in which torch's profiler ran.
    """
    parts = [
        f"<h1>{escape(its.name)}</h1>",
        f"<p>{escape(' '.join(filter(None, (headline(its), said(its.busy)))))}</p>",
        "<h2>What to change</h2>",
        *_advice(its),
    ]
    for title in pictures:
        parts += [f"<h2>{escape(title)}</h2>", _image(title, pictures[title])]
    parts += ["<h2>Numbers</h2>", "<h3>A step of each rank</h3>", _table(ranks_table(its))]
    if its.buckets:
        parts += ["<h3>Buckets of gradients</h3>", _table(buckets_table(its))]
    if its.layers:
        parts += ["<h3>Layers on rank 0</h3>", _table(layers_table(its))]
    parts += ["<h2>How it was measured</h2>", f"<p>{escape(' '.join((_how(clocked, traced), whose(its))))}</p>"]
    title = f"<title>{escape(its.name)}: profile</title>"
    head = f'<meta charset="utf-8">{title}<style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _advice(its: Found) -> list[str]:
    found = advice(its)
    if not found:
        return [f"<p>Nothing in how it is distributed. {escape(costliest(its))}</p>"]
    items = [
        f"<li><b>{escape(each.what)}.</b> <span class=why>{escape(each.why)}; at most {shown_seconds(each.costs)} of a "
        f"step.</span><br>Try {escape(each.write)}.</li>"
        for each in found
    ]
    return ["<ol>", *items, "</ol>"]


def _how(clocked: int, traced: int) -> str:
    return (
        f"The clock of each rank was read in {clocked} steps; what a step goes to is the mean of the middle half of "
        f"them. torch's profiler ran in {traced} more: layers, buckets and hidden communication are of it, and it "
        "makes steps longer. Hidden communication went on beside computing; what was not hidden is part of waiting for "
        "other ranks. The timeline of all ranks is trace.json beside this page: open it at ui.perfetto.dev or in "
        "chrome://tracing."
    )


def _image(title: str, svg: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}">'


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[1:])
    return f"<table><tr>{head}</tr>{body}</table>"
