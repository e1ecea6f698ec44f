"""How often does a step look at a value? On an accelerator, the host waits for it there.

    python benchmarks/looks.py [--nproc 2]

Counted on any machine: numbers read (``item``, ``tolist``, ``bool``), sizes that depend on values (``nonzero``, an
index that is a mask), tensors made of Python's numbers (a copy that the host waits for), and ``cpu()``. What ``to`` and
``copy_`` bring to the host is not seen where all is there. Sessions of ddp_patch are told that they are on
accelerators, whose ways through the code differ from the CPU's in this.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from share_kinds import KINDS
from torch.utils._python_dispatch import TorchDispatchMode

import ddp_patch
from ddp_patch.batch.world import World

aten = torch.ops.aten
_LOOKS = {
    *(aten._local_scalar_dense, aten.is_nonzero, aten.nonzero, aten.masked_select, aten.equal),
    *(aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.lift_fresh, aten.allclose, aten.bincount),
    *(aten.repeat_interleave, aten._linalg_check_errors),
}
_BY_INDEX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
_READ_AT_ONCE = ("tolist", "numpy", "cpu")  # by C, which no mode sees, and what is no copy on this machine


class Looks(TorchDispatchMode):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, and count."""
        packet = func._overloadpacket
        indices = args[1] if packet in _BY_INDEX else ()
        by_mask = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
        self.count += packet in _LOOKS or by_mask
        return func(*args, **(kwargs or {}))


@contextmanager
def counting() -> Iterator[Looks]:
    """Count what happens inside."""
    looks = Looks()

    def counted(name: str) -> Any:
        method = getattr(torch.Tensor, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            looks.count += 1
            return method(*args, **kwargs)

        return call

    for name in _READ_AT_ONCE:
        setattr(torch.Tensor, name, counted(name))
    try:
        with looks:
            yield looks
    finally:
        for name in _READ_AT_ONCE:
            delattr(torch.Tensor, name)


def looked(names: Sequence[str]) -> dict[str, tuple[list[int], list[float]]]:
    """Run kinds of scripts, each in a session of its own: the looks of each step, and the losses."""
    before, found = torch.get_default_dtype(), {}
    torch.set_default_dtype(torch.float64)
    for name in names:
        ddp_patch.disable()
        ddp_patch.enable()
        if World.current is not None:
            World.current.accelerated = True
        torch.manual_seed(0)
        counts, losses, seen = [], [], 0
        with counting() as looks:
            for loss in KINDS[name]():
                counts.append(looks.count - seen)
                losses.append(loss)
                seen = looks.count
        found[name] = counts, losses
    torch.set_default_dtype(before)
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=int, default=2)
    nproc = parser.parse_args().nproc
    tables = []
    for count in (1, nproc):
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "DDP_PATCH_NPROC": str(count), "LOOKS_RANK": "1"}
        done = subprocess.run([sys.executable, __file__], env=environ, stdout=subprocess.PIPE, text=True, check=True)
        tables.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"| looks at values | one process: first step, steady | {nproc} ranks |\n|---|---|---|")
    for name in KINDS:
        print("|", " | ".join([name, *(f"{table[name][0][0]}, {table[name][0][-1]}" for table in tables)]), "|")


if __name__ == "__main__":
    if os.environ.get("LOOKS_RANK"):
        ddp_patch.enable()
        print(json.dumps(looked([*KINDS])))
    else:
        main()
