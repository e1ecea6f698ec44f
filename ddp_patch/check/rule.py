"""What a rule is: a code, a name, a line, the kinds of scripts it is about, and a function that finds."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from ..source import Facts, Role

_TESTS = {"pytest", "unittest"}  # a file of tests does not become a distributed script


class World(enum.Enum):
    """How a script is distributed: which of the rules mean anything for it."""

    PLAIN = "one process"  # with or without nn.DataParallel: DDP1xx say what would break
    DDP = "DistributedDataParallel"  # DDP1xx say what is broken
    MANAGED = "a framework"  # Accelerate, Lightning, ... do what most of DDP1xx ask for
    DDP_PATCH = "ddp_patch"  # DDP1xx are settled


@dataclass(frozen=True)
class Finding:
    """One thing found, in three parts."""

    node: cst.CSTNode
    found: str  # what is there, with its names
    why: str  # a clause: "every rank writes this file"
    write: str  # a sentence with the line to write


@dataclass(frozen=True)
class Rule:
    """A rule's declaration."""

    code: str
    name: str
    summary: str
    find: Callable[[Facts], Iterator[Finding]]
    worlds: tuple[World, ...] = (World.PLAIN, World.DDP)
    training: bool = True  # only in files where a backward runs
    of_parts: bool = False  # about what a training is made of: also where the backward runs in a file that imports it
    of_plain_parts: bool = False  # the same, where the program is of one process: else callers look after the ranks
    breaks_alone: bool = False  # also as one process, so that a message does not begin with "under DDP"

    @property
    def why(self) -> str:
        """The rule's own words: the docstring of its file."""
        return inspect.getdoc(inspect.getmodule(self.find)) or self.summary

    def applies(self, facts: Facts, world: World) -> bool:
        """Tell whether the rule means anything for this file."""
        with_parts = self.of_parts or (self.of_plain_parts and world is World.PLAIN)
        trains = facts.is_trained if with_parts else facts.trains
        if world not in self.worlds or (self.training and not trains):
            return False
        return not (self.code.startswith("DDP1") and _is_test(facts))

    def message(self, finding: Finding, world: World) -> str:
        """Write what to show: what was found, why it cannot be right, and the line to write."""
        supposed = self.code.startswith("DDP1") and world is World.PLAIN and not self.breaks_alone
        under = "under DDP " if supposed else ""
        return f"{finding.found}: {under}{finding.why}. {finding.write}"


def _is_test(facts: Facts) -> bool:
    """Tell whether a file tests something else: by what it imports, its name, or a folder of the project around it."""
    path = facts.source.path
    folders = {folder.name for folder in facts.elsewhere.folders} or {path.parent.name}
    return bool(facts.modules & _TESTS or path.name.startswith("test_") or folders & {"test", "tests"})


_MANAGED = {Role.ACCELERATE, Role.LIGHTNING, Role.TRAINER, Role.HOROVOD, Role.DEEPSPEED, Role.IGNITE, Role.RPC} | {
    Role.TENSOR_PARALLEL
}


def world(facts: Facts) -> World:
    """Tell how a file is distributed today."""
    if Role.DDP_PATCH in facts.roles:
        return World.DDP_PATCH
    if facts.roles & _MANAGED:
        return World.MANAGED
    return World.DDP if facts.roles & {Role.DDP, Role.FSDP} else World.PLAIN
