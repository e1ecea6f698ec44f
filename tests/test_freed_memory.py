"""What a step frees stays with a rank's process: blocks that a step asks for come from the heap, which keeps them."""

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import torch
import ddp_patch; ddp_patch.enable()
asked = torch.empty(20 * 2**20, dtype=torch.uint8)  # by default glibc has such a block mapped, and unmaps it
heap = next(line for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]"))
first, last = (int(address, 16) for address in heap.split()[0].split("-"))
print("heap" if first <= asked.data_ptr() < last else "mapped")
"""


def where_a_large_block_is(folder, nproc, **variables):
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environ = {**os.environ, "DDP_PATCH_NPROC": str(nproc), "DDP_PATCH_QUIET": "1", **variables}
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's thresholds")
def test_a_rank_keeps_what_a_step_frees(tmp_path):
    assert where_a_large_block_is(tmp_path, 1) == "mapped"
    assert where_a_large_block_is(tmp_path, 2) == "heap"
    # Whoever says what he wants has that.
    assert where_a_large_block_is(tmp_path, 2, MALLOC_MMAP_THRESHOLD_=str(2**20)) == "mapped"
