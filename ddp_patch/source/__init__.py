"""Read scripts and notebooks, and tell what is in them, without running them and without torch.

``find`` lists files, ``read`` reads one, ``facts_of`` tells what it says. Nothing here raises for what a file holds.
"""

from .facts import Facts, SourceRange
from .files import excluded, find
from .kinds import OF_ROWS, Kind
from .loops import BatchLoop, Loop
from .making import facts_of, facts_of_text
from .names import dotted
from .problems import Problem, place
from .programs import Elsewhere, Programs
from .reading import Part, Source, parse, read
from .roles import Role
from .scopes import Scope, Value, Variable

__all__ = [
    "OF_ROWS",
    "BatchLoop",
    "Elsewhere",
    "Facts",
    "Kind",
    "Loop",
    "Part",
    "Problem",
    "Programs",
    "Role",
    "Scope",
    "Source",
    "SourceRange",
    "Value",
    "Variable",
    "dotted",
    "excluded",
    "facts_of",
    "facts_of_text",
    "find",
    "parse",
    "place",
    "read",
]
