"""What a step frees stays with its process for the next step, up to 64 MiB of it.

glibc gives free memory at the end of its heap back to the system, and a step that asks for it again has each page of it
cleared once more: a fifth of the step of a small recurrent net. How much glibc keeps grows with the largest block that
a program frees, to twice as much, and is told by nothing else (mallopt(3), ``M_MMAP_THRESHOLD``). Whoever sets
``MALLOC_TRIM_THRESHOLD_`` or ``MALLOC_MMAP_THRESHOLD_`` has his values: glibc grows nothing then.
"""

from __future__ import annotations

import torch

_LARGEST = 32 * 2**20  # bytes, glibc's DEFAULT_MMAP_THRESHOLD_MAX on 64 bits
_ROUNDED = 2**16  # more than a block's header and the alignment that torch asks for


def keep() -> None:
    """Allocate and free a block that is as large as glibc takes notice of, of which no page is touched."""
    torch.empty(_LARGEST - _ROUNDED, dtype=torch.uint8, device="cpu")
