"""The options of ``python -m ddp_patch plan``."""

from __future__ import annotations

import argparse
from typing import NoReturn

from .memory import OPTIMIZERS, PRECISIONS
from .network import ALGORITHMS

EXAMPLE = (
    "python -m ddp_patch plan --parameters 124e6 --step 0.18 --batch 32 --devices 8 --bandwidth-within 300e9 "
    "--bandwidth 25e9"
)


class Parser(argparse.ArgumentParser):
    """An error is one line, and says where to look."""

    def error(self, message: str) -> NoReturn:  # noqa: D102 — argparse's
        self.exit(2, f"{self.prog}: {message}. {self.prog} --help shows what there is\n")


def parser() -> Parser:
    """Make the parser of ``python -m ddp_patch plan``."""
    its = Parser(
        prog="python -m ddp_patch plan",
        description="Say what 2 to 1,024 ranks will bring: step, throughput, efficiency, memory, learning rate. "
        "Nothing is run. Numbers may have units: 25GB/s, 200Gbit/s, 180ms, 80GiB, 124M.",
        epilog=f"For example: {EXAMPLE}",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=110),
    )
    for title, options in _OPTIONS.items():
        group = its.add_argument_group(title)
        for flag, metavar, text in options:
            group.add_argument(flag, metavar=metavar, help=text)
    its.add_argument("--json", action="store_true", help="print the plan as JSON")
    its.add_argument("--plot", metavar="FILE.png", help="draw it as well; needs matplotlib")
    return its


_OPTIONS = {
    "the script": (
        ("--profile", "FILE.json", "what was measured; options win over it"),
        ("--parameters", "N", "of the model"),
        ("--step", "SECONDS", "of one step on one rank that is alone"),
        ("--batch", "ROWS", "of that step"),
        ("--accumulate", "N", "batches of that step, each with a backward (default: 1)"),
        ("--fixed", "SECONDS", "of that step, however few rows it has (default: 0)"),
        ("--backward", "SHARE", "of the step that is the backward (default: 0.67)"),
        ("--optimizer", "NAME", f"{', '.join(OPTIMIZERS)} (default: adamw)"),
        ("--precision", "NAME", f"{', '.join(PRECISIONS)} (default: fp32)"),
        ("--gradient-bytes", "BYTES", "that each step sums up (default: from parameters and precision)"),
        ("--activations", "BYTES", "of that step's rows, at the peak"),
        ("--blocks", "N", "that FSDP would shard one by one (default: 12)"),
        ("--lr", "RATE", "learning rate at that batch"),
        ("--critical-batch", "ROWS", "critical batch size, if you know it"),
    ),
    "the machines": (
        ("--devices", "N", "of each host (default: 1)"),
        ("--hosts", "N..M", "doubling from N to M; or 1,2,3"),
        ("--ranks", "N..M", "in place of --hosts (default: 2..1024)"),
        ("--bandwidth", "BYTES/S", "that a host reaches to others, all its devices together"),
        ("--bandwidth-within", "BYTES/S", "between devices of a host (default: as --bandwidth)"),
        ("--latency", "SECONDS", "of a message between hosts (default: 10us)"),
        ("--latency-within", "SECONDS", "within a host (default: as --latency)"),
        ("--memory", "BYTES", "of a device"),
    ),
    "the plan": (
        ("--scaling", "NAME", "strong (the batch stays), weak (it grows) or both (default: both)"),
        ("--global-batch", "ROWS", "the batch that strong scaling deals (default: as --batch)"),
        ("--algorithm", "NAME", f"{', '.join(ALGORITHMS)} (default: the fastest of the first three)"),
        ("--bucket-cap-mb", "MIB", "size of DDP's gradient buckets (default: 25)"),
    ),
}
