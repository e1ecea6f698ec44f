"""Whether a program that asks for a variable can do without it, read from its source."""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Iterator
from types import FrameType
from typing import Any

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def is_expected(error: type[Exception], frame: FrameType) -> bool:
    """Tell whether a program goes on after an error: it names it in a handler, or catches everything right there.

    What is around a whole program catches everything to report it, not because it can do without.

    Args:
        error: that would be raised.
        frame: where.
    """
    current: FrameType | None = frame
    while current is not None:
        for handler in _handlers(current):
            catching = [kind for kind in _named(handler, current) if issubclass(error, kind)]
            if any(kind not in (Exception, BaseException) for kind in catching):
                return True
            if current is frame and catching and not _raises(handler):
                return True
        current = current.f_back
    return False


def is_made_a_number(name: str, frame: FrameType) -> bool:
    """Tell whether a program passes ``os.environ.get(name)``, without a default, straight to ``int``.

    Args:
        name: of the variable.
        frame: that asks for it.
    """
    for node in _path(frame):
        match node:
            case ast.Call(func=ast.Name("int"), args=[ast.Call(args=[ast.Constant(value=asked)], keywords=[])]):
                if asked == name:
                    return True
    return False


def _handlers(frame: FrameType) -> Iterator[ast.ExceptHandler | ast.withitem]:
    """What surrounds the line that a frame is at, in its own scope."""
    for node in _path(frame):
        if isinstance(node, ast.Try) and _covers(node.body, frame.f_lineno):
            yield from node.handlers
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from node.items


def _named(handler: ast.ExceptHandler | ast.withitem, frame: FrameType) -> Iterator[type[BaseException]]:
    if isinstance(handler, ast.withitem):
        match handler.context_expr:
            case ast.Call(func=ast.Name("suppress") | ast.Attribute(attr="suppress"), args=caught):
                pass
            case _:
                return
    elif handler.type is None:
        yield BaseException
        return
    else:
        caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    for expression in caught:
        kind = _looked_up(expression, frame)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            yield kind


def _looked_up(expression: ast.expr, frame: FrameType) -> Any:
    if not isinstance(expression, ast.Name):
        return None
    for names in (frame.f_locals, frame.f_globals, vars(builtins)):
        if expression.id in names:
            return names[expression.id]
    return None


def _raises(handler: ast.ExceptHandler | ast.withitem) -> bool:
    return isinstance(handler, ast.ExceptHandler) and isinstance(handler.body[-1], ast.Raise)


def _path(frame: FrameType) -> list[ast.AST]:
    """Nodes around the line that a frame is at, outermost first, in its own scope."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # an expression typed at a prompt, a template
        return []
    found: list[ast.AST] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, _SCOPES) and _covers(node.body, frame.f_lineno):
            found.clear()
        found.append(node)
        for child in ast.iter_child_nodes(node):
            if _is_around(child, frame.f_lineno):
                visit(child)

    visit(tree)
    return found


def _is_around(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)  # arguments and the like have none
    return first is None or first <= line <= (getattr(node, "end_lineno", None) or first)


def _covers(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)
