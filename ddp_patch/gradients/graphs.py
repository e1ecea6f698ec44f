"""What a graph's gradients reach, as far as it matters whether they are a rank's share or the whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction


def comes_from(tensor: Tensor, is_own: Callable[[Any], bool], most: int, ends: Collection[Any] = ()) -> bool:
    """Tell whether a rank's share may flow back through the graph of a tensor that every rank has whole.

    Averaging is linear, so it may if all that it reaches are leaves whose gradients are averaged anyway, and nothing on
    the way counts on being the same on every rank: another crossing, or an autograd function of the script's own.

    Args:
        tensor: wants a gradient.
        is_own: tells such leaves.
        most: nodes to look at.
        ends: nodes at which what rows give is summed: nothing below them is looked at.
    """
    if tensor.grad_fn is None:
        return is_own(tensor)
    seen, stack = {tensor.grad_fn}, [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node in ends:
            continue
        if isinstance(node, BackwardCFunction):
            return False
        if hasattr(node, "variable") and not is_own(node.variable):
            return False
        children = {child for child, _ in node.next_functions if child is not None} - seen
        seen |= children
        stack += children
        if len(seen) > most:
            return False
    return True


def leaves_of(roots: Any) -> Iterator[Tensor]:
    """Give the tensors in whose ``.grad`` a backward accumulates, as it comes to them.

    Args:
        roots: a tensor, or several.
    """
    roots = roots if isinstance(roots, (list, tuple)) else [roots]
    stack = [node for node in (getattr(root, "grad_fn", None) for root in reversed(roots)) if node is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for child, _ in reversed(node.next_functions):
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
