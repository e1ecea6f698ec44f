"""Names of ranks and of what is true on one rank only, and comparisons that are the same on all of them."""

from __future__ import annotations

import ast
import re

# What is true on one rank only. "main", "root" and "first" by themselves are names of many other things.
_MAIN = re.compile(
    r"(^|[._])((main|master|primary|chief|root|coordinator|first)_?(process|rank|worker|proc|node)|master|chief)$"
    r"|(^|[._])local_(main|master)(_?(process|rank|worker|proc|node))?$"
    r"|(^|[._])(is_(main|master|rank|primary|chief|local_main|local_master)|on_main|is_(root|coordinator|first)$)"
    r"|(^|[._])rank_?(zero|0)|main_process|is_log(ging|ger)?_(rank|process)",
    re.I,
)
# A number of the process. mean_rank, lora_rank and matrix_rank are of other things.
_OF_A_PROCESS = (
    "local|global|node|world|group|host|process|proc|worker|device|gpu|replica|shard|parallel|pipeline|tensor_parallel|"
    "dist|distributed|ddp|dp|tp|pp|mp|cp|ep|mpi|hvd|nccl|slurm|env|my|own|this|current|cur|zero"
)
_ANY_RANK = re.compile(rf"(^|\.)_*((get_)?(\w+_)?({_OF_A_PROCESS})_?|get_)?rank(_?id)?$|process_index$", re.I)
_DECORATORS = re.compile(r"(rank_zero_only|rank_?zero|main_process|master_only|one_rank_only|on_main_process)", re.I)


def names_rank(name: str) -> bool:
    """Tell whether a name is of a rank, or of what is true on one rank only."""
    return names_one_rank(name) or _ANY_RANK.search(name) is not None


def names_one_rank(name: str) -> bool:
    """Tell whether a name is of what is true on one rank only: ``is_main_process``."""
    return _MAIN.search(name) is not None


def is_of_one_rank(decorator: str) -> bool:
    """Tell whether a decorator has its function run on one rank only."""
    return _DECORATORS.search(decorator) is not None


def is_same_on_all(operator: str, other: str | ast.expr) -> bool:
    """Tell whether a rank compared with this asks if there are ranks at all: ``rank == -1``, ``rank >= 0``.

    Args:
        operator: as it is written between the rank and the other.
        other: what the rank is compared with.
    """
    try:
        value = ast.literal_eval(other)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    if value is None or not isinstance(value, int):
        return value is None
    return value < 0 or (value == 0 and operator in (">=", "<"))


def mirrored(operator: str) -> str:
    """Give the operator for the two sides changed over."""
    return operator.translate(str.maketrans("<>", "><"))
