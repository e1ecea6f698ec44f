"""N progress bars share one terminal."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..rule import Finding, Rule

_BARS = (
    "tqdm.tqdm",
    "tqdm.trange",
    "tqdm.auto.tqdm",
    "tqdm.auto.trange",
    "tqdm.notebook.tqdm",
    "tqdm.std.tqdm",
    "tqdm.tqdm_notebook",
)


def find(facts: Facts) -> Iterator[Finding]:
    """Find the first progress bar of a file that no rank turns off."""
    calls = [
        call
        for call in facts.calls(*_BARS)
        if facts.argument(call, "disable") is None and not facts.has_stars(call) and not facts.on_some_ranks(call)
    ]
    if calls:
        more = f" (and {len(calls) - 1} more)" if len(calls) > 1 else ""
        yield Finding(
            calls[0],
            f"this progress bar{more} is drawn on every rank",
            "N bars overwrite each other in one terminal",
            "Write disable=dist.get_rank() != 0.",
        )


RULE = Rule("DDP133", "progress-on-every-rank", "A progress bar is drawn on every rank", find)
