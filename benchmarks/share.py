"""How much of the work of a step does each rank do?

    python benchmarks/share.py [--nproc 2] [--kind "gpt with its loss"]

Floating-point operations of matrix products, convolutions and attention, forward and backward, by torch's own formulas
(``torch.utils.flop_counter``), per rank and step, against a rank's exact share of what one process computes: 1.00 is
the share, N means that every rank did all of it. Counts do not depend on the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from share_kinds import KINDS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

import ddp_patch

aten = torch.ops.aten


class Operations(TorchDispatchMode):
    """Counts them. ``FlopCounterMode`` itself puts hooks on modules, which would be noticed."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, and count."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet = func._overloadpacket
        if packet is aten._scaled_dot_product_flash_attention_for_cpu:  # without a formula of its own (torch 2.13)
            self.count += sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape)
        elif packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
            self.count += sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4]))
        elif packet in flop_registry:
            self.count += flop_registry[packet](*args, **kwargs, out_val=result)
        return result


def counted(name: str) -> tuple[list[int], list[float], dict[str, int]]:
    """Run a kind of script; count the operations of its steps, its losses, and the collectives of its last step."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    counts, losses, collectives = [0], [], [Counter[str]()]
    with Operations() as operations:
        for loss in KINDS[name]():
            counts.append(operations.count)
            losses.append(loss)
            collectives.append(Counter(ddp_patch.report().ledger.collectives))
    torch.set_default_dtype(before)
    return [now - then for then, now in itertools.pairwise(counts)], losses, dict(collectives[-1] - collectives[-2])


def counted_in_turn(names: Sequence[str]) -> Iterator[tuple[str, list[int], list[float], dict[str, int]]]:
    """Run kinds of scripts, each in a session of its own."""
    for name in names:
        ddp_patch.disable()
        ddp_patch.enable()
        yield (name, *counted(name))


def run_all(names: Sequence[str]) -> dict[str, tuple[list[int], list[float], dict[str, int]]]:
    """Give what was counted of kinds of scripts."""
    return {name: counted for name, *counted in counted_in_turn(names)}


def measured(names: Sequence[str], nproc: int) -> dict[str, list[int]]:
    """Count kinds of scripts on some ranks, of which the busiest counts. One that fails is left out."""
    found: dict[str, list[int]] = {}
    left = list(names)
    while left:
        command = [sys.executable, __file__, *(f"--count={name}" for name in left)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "DDP_PATCH_NPROC": str(nproc)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=1200, check=False)
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        ranks = {name: [steps for of, steps in told if of == name] for name in left}
        ended = [name for name in left if len(ranks[name]) == nproc]
        found |= {name: [max(step) for step in zip(*ranks[name], strict=True)] for name in ended}
        left = [name for name in left if name not in ended]
        if left:  # the job ends at the first error
            print(left.pop(0), "failed:", *done.stderr.strip().splitlines()[-3:], sep="\n", file=sys.stderr)
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--kind", action="append", choices=[*KINDS])
    parser.add_argument("--count", action="append", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.count:
        ddp_patch.enable()
        for name, steps, *_ in counted_in_turn(given.count):
            with ddp_patch.per_rank():
                sys.stdout.write(json.dumps([name, steps]) + "\n")
        return
    names = given.kind or [*KINDS]
    alone, ranks = measured(names, 1), measured(names, given.nproc)
    print(f"| {given.nproc} ranks | first step | second | third | steady |\n|---|---|---|---|---|")
    for name in names:
        columns = ["failed"] * 4
        if name in alone and name in ranks:
            shares = [given.nproc * own / whole for own, whole in zip(ranks[name], alone[name], strict=True)]
            columns = [f"{shares[step]:.2f}" for step in (0, 1, 2, -1)]
        print("|", " | ".join([name, *columns]), "|")


if __name__ == "__main__":
    main()
