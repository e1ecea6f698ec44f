"""``cuda:0`` is one device: all processes compute on it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import number, string
from ..rule import Finding, Rule

_ASKS = re.compile(r"rank|distributed", re.I)  # the branch of one process
_NUMBERED = re.compile(r"cuda:\d+$")


def find(facts: Facts) -> Iterator[Finding]:
    """Find devices with a number: ``torch.device("cuda:0")``, ``.to("cuda:0")``, ``.cuda(0)``, ``set_device(0)``."""
    for call in (
        *facts.calls("torch.device", "torch.cuda.set_device", "torch.cuda.device"),
        *facts.methods("to", "cuda"),
    ):
        name = facts.name(call.func) or ""
        literals = [argument.value for argument in call.args]
        if name == "torch.device":
            literals += [branch for literal in literals for branch in _branches(literal)]
        texts = [text for literal in literals if (text := string(literal)) is not None and _NUMBERED.match(text)]
        numbered = [str(index) for literal in literals if (index := number(literal)) is not None]
        takes_numbers = name in ("torch.cuda.set_device", "torch.cuda.device", "torch.device") or name.endswith(".cuda")
        if any(
            isinstance(outer, cst.If) and _ASKS.search(facts.code(outer.test)) for outer in facts.tree.ancestors(call)
        ):
            continue
        if texts or (numbered and takes_numbers) or (numbered and _is_cuda(call)):
            device = texts[0] if texts else f"cuda:{numbered[0]}"
            yield Finding(
                call,
                f"{facts.code(call)} names a device by its number",
                f"all ranks of a host compute on {device}",
                'Write torch.device("cuda", local_rank), with local_rank = int(os.environ["LOCAL_RANK"]).',
            )


def _branches(node: object) -> list:  # type: ignore[type-arg]
    return [getattr(node, "body", None), getattr(node, "orelse", None)]


def _is_cuda(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "cuda"


RULE = Rule("DDP110", "hard-coded-device", "A device is named by its number", find)
