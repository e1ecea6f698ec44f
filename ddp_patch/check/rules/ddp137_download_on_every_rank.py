"""All processes download the same dataset into the same folder at once."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import is_true
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``torchvision.datasets.X(download=True)`` under no test on the rank, once for each file."""
    for call in facts.tree.all(cst.Call):
        name = facts.name(call.func) or ""
        is_dataset = name.startswith(("torchvision.datasets.", "torchaudio.datasets."))
        if (
            is_dataset
            and is_true(facts.argument(call, "download"))
            and facts.is_run(call)
            and not facts.on_some_ranks(call)
        ):
            yield Finding(
                call,
                f"{facts.code(call.func)}(download=True) is under no test on the rank",
                "every process downloads and unpacks into the same folder at once",
                "Write if local_rank == 0: ..., then dist.barrier(), then download=False on all ranks.",
            )
            return


RULE = Rule("DDP137", "download-on-every-rank", "A dataset is downloaded by every process", find, of_plain_parts=True)
