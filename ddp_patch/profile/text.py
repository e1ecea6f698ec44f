"""A profile, for people: sentences and tables that the terminal and the page share."""

from __future__ import annotations

from ..measure.busy import said
from ..measure.facts import on_accelerator
from ..measure.session_facts import apart
from ..plan.text import columns, wrapped
from ..plan.units import shown_bytes, shown_count, shown_seconds
from .advice import advice, costliest
from .found import Found

PARTS = {
    "computing": "forward, backward, script",
    "waiting": "waiting for other ranks",
    "loading": "loader",
    "effects": "effects",
    "optimizer": "optimizer",
    "python": "ddp_patch's Python",
}
_ON_DEVICE = (
    "Ranks compute on accelerators, for which the host's clock does not wait: loader, effects, optimizer and Python "
    "are the host's seconds. Waiting for other ranks is communication that no kernel hid, in the steps that torch's "
    "profiler saw, and forward, backward, script is what is left."
)
_LAYERS = 10  # that are shown


def written(its: Found) -> str:
    """Lay out a profile: where a step goes on each rank, and what to change."""
    lines = ["", *wrapped(headline(its)), ""]
    lines += [f"  {line}" for line in columns(ranks_table(its))]
    if whose(its):
        lines += ["", *wrapped(whose(its))]
    if its.buckets:
        lines += ["", "Buckets of gradients, in their order"]
        lines += [f"  {line}" for line in columns(buckets_table(its))]
    if its.layers:
        lines += ["", "Layers on rank 0, with torch's profiler on"]
        lines += [f"  {line}" for line in columns(layers_table(its))]
    lines += ["", *to_change(its)]
    if said(its.busy):
        lines += ["", *wrapped(said(its.busy))]
    return "\n".join(lines) + "\n"


def headline(its: Found) -> str:
    """Give the first sentence."""
    ranks = f"{len(its.ranks)} rank{'s' if len(its.ranks) > 1 else ''}"
    several = f" in {its.backwards} batches" if its.backwards > 1 else ""
    kept = ""
    if its.kept is not None:
        size, rows = its.kept
        kept = f" A rank keeps {shown_bytes(size)} for the backward of its {shown_count(rows)} rows."
    return (
        f"{its.name} on {ranks}: a step of {shown_count(its.rows)} rows{several} takes {shown_seconds(its.step)}. "
        f"{its.facts['parameters']:,} parameters, {shown_bytes(its.facts['gradient_bytes'])} of gradients.{kept}"
    )


def whose(its: Found) -> str:
    """Say whose seconds these are, on accelerators and of a script that distributes itself; else nothing."""
    return " ".join(filter(None, (apart(its.ledger, len(its.ranks)), _ON_DEVICE if on_accelerator(its.facts) else "")))


def to_change(its: Found) -> list[str]:
    """Give the lines that say what to change."""
    found = advice(its)
    if not found:
        return ["Nothing to change in how it is distributed.", *wrapped(costliest(its))]
    lines = ["What to change, the costliest first"]
    for number, each in enumerate(found, 1):
        lines += wrapped(f"{number}. {each.what}: {each.why}. At most {shown_seconds(each.costs)} of a step.", "  ")
        lines += wrapped(f"Try {each.write}.", "     ")
    return lines


def ranks_table(its: Found) -> list[list[str]]:
    """Give where a step goes, a row for each rank."""
    rows = [["rank", "step", *PARTS.values(), "hidden communication"]]
    for number, rank in enumerate(its.ranks):
        seconds = [rank.step, *(rank.parts[name] for name in PARTS), rank.hidden]
        rows.append([str(number), *map(shown_seconds, seconds)])
    return rows


def buckets_table(its: Found) -> list[list[str]]:
    """Give a row for each bucket."""
    rows = [["bucket", "bytes", "begins", "takes", "hidden"]]
    for number, each in enumerate(its.buckets):
        hidden = f"{each.hidden / each.seconds:.0%}" if each.seconds else "-"
        rows.append(
            [str(number), shown_bytes(each.bytes), shown_seconds(each.begin), shown_seconds(each.seconds), hidden]
        )
    return rows


def layers_table(its: Found) -> list[list[str]]:
    """Give a row for each of the costliest layers."""
    rows = [["layer", "forward", "backward"]]
    shown = [(name, *seconds) for name, seconds in its.layers.items()][:_LAYERS]
    return rows + [[name, shown_seconds(max(a, 0.0)), shown_seconds(b)] for name, a, b in shown]
