"""Parts of a function that run on rows: graphs of what was called on them, compiled as the script has it."""

from __future__ import annotations

import inspect
import operator
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """Compile a function that gets no batches, past what is made of the script's."""
    return getattr(torch.compile, "__wrapped__", torch.compile)(function, **how)


MOST = 8  # different parts of a function that are compiled: torch recompiles as often (torch 2.13)
_PLAIN = (int, float, bool, str, complex, type(None), type(...), torch.dtype, torch.device, torch.memory_format)


class Parts:
    """The parts of one function, each compiled once: those of other batch sizes read the same."""

    def __init__(self, how: dict[str, Any]) -> None:
        """Compile nothing yet.

        Args:
            how: arguments of ``torch.compile``.
        """
        self._how = how
        self._compiled: dict[str, Callable[..., Any]] = {}

    def of(self, graph: fx.Graph) -> Callable[..., Any]:
        """Compile a graph, or give what was compiled of one that reads the same; as it is, if there are too many."""
        code = graph.python_code("self").src
        if code not in self._compiled:
            module = fx.GraphModule(torch.nn.Module(), graph)
            if len(self._compiled) >= MOST:
                return module.forward
            self._compiled[code] = compiled(module.forward, **self._how)
        return self._compiled[code]


class Part:
    """A graph that is being made: of calls on rows that come one after the other."""

    def __init__(self) -> None:
        """Begin without any."""
        self.takes: list[int] = []  # numbers of tensors
        self.gives: list[int] = []
        self.run: Callable[..., Any] | None = None
        self.has_graph = torch.is_grad_enabled()  # while it is made
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}

    @property
    def made(self) -> set[int]:
        """Numbers of the tensors that are computed in it."""
        return self._nodes.keys() - set(self.takes)

    def take(self, number: int) -> fx.Node:
        """Give a tensor's node, which is an argument of the graph if it is not computed in it."""
        if number not in self._nodes:
            self.takes.append(number)
            first = next(iter(self._graph.nodes), None)
            with self._graph.inserting_before(first) if len(self.takes) == 1 else self._after_arguments():
                self._nodes[number] = self._graph.placeholder(f"rows_{len(self.takes)}")
        return self._nodes[number]

    def _after_arguments(self) -> Any:
        return self._graph.inserting_after(self._nodes[self.takes[-2]])

    def call(
        self, func: Any, args: Any, kwargs: dict[str, Any], results: Sequence[tuple[tuple[int, ...], int]]
    ) -> None:
        """Add a call.

        Args:
            func: a function of torch.
            args: for it, tensors as ``Number``.
            kwargs: likewise.
            results: numbers of the tensors that it gives, and where they are among its results.
        """
        args, kwargs = self._with_nodes(tuple(args)), self._with_nodes(kwargs)
        how, name = spelling(func) or ("", "")
        if how == "attribute":
            node = self._graph.call_function(getattr, (*args, name), kwargs)
        elif how == "method":
            node = self._graph.call_method(name, args, kwargs)
        else:
            node = self._graph.call_function(func, args, kwargs)
        for path, number in results:
            at = node
            for index in path:
                at = self._graph.call_function(operator.getitem, (at, index))
            self._nodes[number] = at

    def _with_nodes(self, value: Any) -> Any:
        if isinstance(value, Number):
            return self.take(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._with_nodes(item) for item in value])
        if isinstance(value, dict):
            return {name: self._with_nodes(item) for name, item in value.items()}
        return value

    def finish(self, wanted: set[int], parts: Parts) -> None:
        """Compile it.

        Args:
            wanted: numbers of tensors that are used outside.
            parts: of the function.
        """
        self.gives = sorted(self.made & wanted)
        self._graph.output(tuple(self._nodes[number] for number in self.gives))
        self._graph.eliminate_dead_code()
        self.run = parts.of(self._graph)


def spelling(func: Any) -> tuple[str, str] | None:
    """Tell how code calls a function of torch's: by "attribute", "method" or "function", and the name; or None."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return "attribute", func.__self__.__name__
    if hasattr(func, "__objclass__") or getattr(Tensor, name, None) is func:
        return "method", name
    there = getattr(sys.modules.get(func.__module__ or ""), name, None)
    if isinstance(func, types.BuiltinFunctionType) or (there and inspect.unwrap(there) is inspect.unwrap(func)):
        return "function", name
    # Tensor.__pow__, say, is a function around a method (torch 2.13).
    return ("method", name) if func.__module__ == "torch._tensor" and hasattr(Tensor, name) else None


class Number(int):
    """A tensor's, in its place."""


def is_plain(value: Any) -> bool:
    """Tell what can be written into a graph."""
    if isinstance(value, slice):
        return is_plain((value.start, value.stop, value.step))
    if type(value) in (list, tuple, torch.Size):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(map(is_plain, (*value, *value.values())))
    return type(value) in _PLAIN or type(value) is Number or isinstance(value, torch.layout)
