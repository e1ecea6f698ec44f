"""Functions that mix what lies along a dimension, which may be that of a batch's rows."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from .library import WHOLE
from .tree import keyword
from .values import ALL_ROWS, COLS, IN_BATCH, ROWS, SORTED, STACKED, SUM, Kind, Value, other

# Where the dimension is said, after what they are given; with none said, they look along the last one, or at all.
_SORTING = {"sort", "argsort"}
_LAST = {"softmax": 0, "log_softmax": 0, "softmin": 0, "normalize": 1, "diff": 1}
_POSITIONS = {
    **dict.fromkeys((*WHOLE, *_SORTING, "mode", "prod", "logsumexp", "flip", "std_mean", "var_mean"), 0),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "nanmean", "nansum", "nanmedian"), 0),
    **dict.fromkeys(("norm", "vector_norm", "topk", "kthvalue", "quantile", "nanquantile", "percentile"), 1),
    **dict.fromkeys(("renorm", "roll"), 1),
    **_LAST,
}


def mixes_rows(call: ast.Call, name: str, value: Value, is_method: bool) -> bool:
    """Tell whether a function of one tensor, by its name, looks along the rows."""
    if name not in _POSITIONS or value.reason == STACKED or value.listed:
        return False
    said = keyword(call, "dim") or keyword(call, "axis") or keyword(call, "dims")
    said = said or keyword(call, "", _POSITIONS[name] + (not is_method))
    if said is None:
        best = name == "topk" and number(keyword(call, "k", int(not is_method))) == 1  # of each row, as scripts mean it
        return name not in _LAST and not best
    numbers = map(number, said.elts if isinstance(said, (ast.Tuple, ast.List)) else [said])
    return (1 if value.kind is Kind.COLS else 0) in [n for n in numbers if not isinstance(n, bool)]


def mixed(name: str) -> Value:
    """Tell what such a function gives."""
    return Value(Kind.ROWS, SORTED) if name in _SORTING else other(ALL_ROWS)


def einsum(call: ast.Call, values: Sequence[Value]) -> Value | None:
    """Tell what ``einsum("nd,md->nm", a, b)`` gives, torch's or einops'; nothing if that cannot be read."""
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    operands = [v for a, v in zip(call.args, values, strict=True) if not isinstance(a, ast.Constant)]
    left, arrow, right = "".join(texts).replace("...", "…").partition("->")
    terms = [_names(term) for term in left.split(",")]
    if (
        not arrow
        or len(terms) != len(operands)
        or any(v.kind not in (Kind.SAME, Kind.ROWS, Kind.COLS) for v in operands)
    ):
        return None
    if any(v.reason == STACKED for v in operands):
        return Value(Kind.ROWS, STACKED)
    rows = {term[v.kind is Kind.COLS] for term, v in zip(terms, operands, strict=True) if v.of_rows}
    if len(rows) != 1:
        return other(IN_BATCH) if rows else None
    (name,), out = rows, _names(right)
    if name not in out:
        return SUM
    return (ROWS, COLS)[out.index(name)] if out.index(name) < 2 else Value(Kind.ROWS, STACKED)


def _names(term: str) -> list[str]:
    return term.split() if " " in term.strip() else list(term.strip())


def number(node: ast.AST | None) -> Any:
    """Read a constant, with its sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) else None
