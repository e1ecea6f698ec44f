"""
$ make demo

Trains digits_dataparallel.py in float64, once as one process and once as two, and puts the two runs side by side.
Everything on the CPU, one core per process, so that it runs anywhere. Exits 1 if anything differs by more than 1e-9.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from itertools import zip_longest
from pathlib import Path

import torch

SCRIPT = Path(__file__).with_name("digits_dataparallel.py")
LIMIT = 1e-9  # float64 leaves rounding of about 1e-13 after these steps
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")


def train(nproc, folder):
    """Run the script in a folder of its own. Returns what it printed, the checkpoint it saved, and seconds."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DDP_PATCH_")}
    env |= {
        "DDP_PATCH_NPROC": str(nproc),
        "DDP_PATCH_TIMEOUT": "120",  # a hang ends as an error
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(SCRIPT), "--double", "--save", "best.pt"]
    start = time.perf_counter()
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if run.returncode != 0:
        sys.exit(f"exit code {run.returncode}\n{run.stdout}{run.stderr}")
    return run.stdout.splitlines(), torch.load(Path(folder, "best.pt")), seconds


def leaves(value, name=""):
    """Every tensor and number of a checkpoint, by name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{name}[{index}]")
    else:
        yield name, value


def printed_difference(ours, theirs):
    """Largest difference between two texts' numbers; infinite if they differ in anything else."""
    ours, theirs = "\n".join(ours), "\n".join(theirs)
    if NUMBER.sub("#", ours) != NUMBER.sub("#", theirs):
        return float("inf"), 0
    pairs = list(zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True))
    return max(abs(float(a) - float(b)) for a, b in pairs), len(pairs)


def saved_difference(ours, theirs):
    """Largest difference between two checkpoints' tensors, whose it is, and how many were compared."""
    ours, theirs = dict(leaves(ours)), dict(leaves(theirs))
    if list(ours) != list(theirs):
        return float("inf"), "the names differ", 0
    worst, where, count = 0.0, "all of them", 0
    for name, wanted in theirs.items():
        if not isinstance(wanted, torch.Tensor):
            if ours[name] != wanted:
                return float("inf"), name, count
            continue
        count += 1
        if ours[name].dtype != wanted.dtype or ours[name].shape != wanted.shape:
            return float("inf"), name, count
        difference = (ours[name].double() - wanted.double()).abs().max().item()
        if difference != difference:  # nan
            return float("inf"), name, count
        if difference > worst:
            worst, where = difference, name
    return worst, where, count


def side_by_side(left, right):
    width = max(len(line) for line in left)
    for a, b in zip_longest(left, right, fillvalue=""):
        print(f"  {a:{width}}  │  {b}")


def main():
    print(f"\nTraining {SCRIPT.name} in float64: a CNN with BatchNorm on 1,797 handwritten digits, written")
    print("for nn.DataParallel. The one line added to it is:  import ddp_patch; ddp_patch.enable()\n")
    runs = []
    for nproc, title in ((1, "one process"), (2, "two processes")):
        print(f"  {title:14} ", end="", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            runs.append(train(nproc, folder))
        print(f"{runs[-1][2]:6.1f} s, start-up included")
    (alone, alone_saved, _), (together, together_saved, _) = runs

    print()
    rule = "─" * max(len(line) for line in alone)
    side_by_side(["one process", rule, *alone], ["two processes (DDP_PATCH_NPROC=2)", rule, *together])

    printed, numbers = printed_difference(together, alone)
    saved, where, tensors = saved_difference(together_saved, alone_saved)
    same = printed <= LIMIT and saved <= LIMIT
    print(f"\n  largest difference   {numbers:3d} printed numbers      {printed:.2g}")
    print(f"                       {tensors:3d} tensors in best.pt   {saved:.2g}   {where}")
    print(f"\n  {'The same' if same else 'NOT the same'}, to within {LIMIT:.0e}.")
    print("  (A network this small gains no time from a second process; this is about the numbers.)\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
