"""``torch.func`` transforms the whole of a batch on every rank: below torch's Python functions no rows cross."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World
from .ddp205_forward_reads_values import in_forward

_NAMES = ("vmap", "grad", "grad_and_value", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "linearize")
_TRANSFORMS = ("torch.vmap", *(f"{module}.{name}" for module in ("torch.func", "functorch") for name in _NAMES))


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``vmap``, ``grad`` and their kin in files that train, outside of a module's forward."""
    for call in facts.calls(*_TRANSFORMS):
        if in_forward(facts, call):  # where it works on rows
            continue
        yield Finding(
            call,
            f"{brief(facts, call)} transforms what works below torch's functions",
            "a batch in it is gathered, and every rank computes all of it",
            "Transform inside of the model's forward, or write the batched form of the function.",
        )


RULE = Rule("DDP216", "transforms", "torch.func computes the whole", find, (World.PLAIN, World.DDP_PATCH))
