"""Functions of a training script that only use a trained model: they are not what becomes distributed."""

from __future__ import annotations

import re

import libcst as cst

from ..source import Facts

_NAMES = re.compile(r"infer|predict|styli[sz]e|generate|sample|translate|demo|export|visuali[sz]e|plot", re.I)


def infers(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether a node stands in a function that uses a trained model, by the function's name."""
    function = facts.tree.enclosing(node, cst.FunctionDef)
    return (
        function is not None and _NAMES.search(function.name.value) is not None and not facts.trains_in(function.body)
    )
