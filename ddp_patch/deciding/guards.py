"""Things that a forward may branch on and that change without an attribute of a module being set.

What the forward's code can reach is walked once: configuration objects, containers, global variables, closures, default
arguments, attributes of classes and modules, the functions that it calls. Of objects only those attributes count whose
names stand in the code. Afterwards a call compares what stands in each place with what stood there, by identity. The
script's own code is followed as far as it goes, that of installed packages one step.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import enum
import functools
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.tensor import BatchTensor
from ..calling.own import NAMESPACES, OURS, is_own, is_own_file
from ..calling.swap import MARK
from .code import content_of, names_in, resolved, slots_of
from .standing import MISSING, Standing

PLAIN = (bool, int, float, complex, str, bytes, type(None))
OF_TORCH = frozenset(vars(nn.Module())) - {"training"}  # parameters, layers and hooks, told by other means
_MOST = 4096  # things that are looked at
_DEPTH = 12
_PASSES = 4  # in which names are gathered: a function that is found may name further attributes
_ENDLESS = (types.GeneratorType, itertools.count, itertools.cycle, itertools.chain, itertools.islice)


class Guards:
    """Watches what some layers may branch on; ``content`` is what that is, for comparison."""

    def __init__(self, layers: list[nn.Module], number: Callable[[Any], Hashable]) -> None:
        """Find it.

        Args:
            layers: of a module.
            number: tells things apart, for as long as they live.
        """
        self._number = number
        self._layers = layers
        self._names: set[str] = set()  # of attributes and global variables that the code mentions
        self.content: Any = None
        for _ in range(_PASSES):
            before = len(self._names)
            self._read()
            if len(self._names) == before:
                break

    def changed(self, layers_did: bool = False) -> bool:
        """Tell whether some of it changed since it was last asked; ``content`` is new then.

        Args:
            layers_did: attributes of layers were set.
        """
        if not layers_did and self._standing.is_as_found():
            return False
        before = self.content
        self._read()
        return bool(before != self.content)

    def of_argument(self, value: Any) -> Any:
        """What an argument of a call holds, now."""
        held = vars(self).copy()
        try:
            self._begin()
            return self._walk(value, 0)
        finally:
            vars(self).update(held)

    def _begin(self) -> None:
        self._standing = Standing()
        self._found: dict[int, Any] = {}  # what was walked, and stays alive

    def _read(self) -> None:
        self._begin()
        content: list[Any] = []
        for layer in self._layers:
            for name, value in vars(layer).items():
                if name not in OF_TORCH and not isinstance(value, PLAIN):
                    content.append((name, self._walk(value, 0)))
            for buffer in layer._buffers.values():
                if buffer is not None:
                    self._standing.flag(buffer)
            content += self._kinds(layer, 0)
        self.content = tuple(filter(None, content))

    # --- the walk ---------------------------------------------------------------------------------------------------

    def _walk(self, thing: Any, depth: int) -> Any:
        """Watch something, and give what it holds."""
        if type(thing) in PLAIN:
            return type(thing), thing  # 1, 1.0 and True are equal
        if isinstance(thing, enum.Enum):
            return type(thing).__qualname__, thing.name
        if isinstance(thing, Tensor):  # which is compared by value
            return self._tensor(thing)
        if id(thing) in self._found:
            return self._number(thing)
        if depth > _DEPTH or len(self._found) > _MOST:
            return self._number(thing)
        self._found[id(thing)] = thing
        for kinds, walk in _WALKS:
            if isinstance(thing, kinds):
                return walk(self, thing, depth + 1)
        if hasattr(thing, "dtype") and hasattr(thing, "tobytes"):  # NumPy's
            self._standing.number(thing, thing.tobytes())
            return str(thing.dtype), getattr(thing, "shape", ()), thing.tobytes()
        return self._object(thing, depth + 1)

    def _tensor(self, thing: Tensor) -> Any:
        if not isinstance(thing, nn.Parameter) and type(thing) is Tensor:
            self._standing.flag(thing)
            return Tensor, thing.requires_grad and thing.is_leaf, thing.dtype, thing.dim()
        return BatchTensor if isinstance(thing, BatchTensor) else Tensor

    def _module(self, thing: nn.Module, depth: int) -> Any:
        if any(thing is layer for layer in self._layers):
            return self._number(thing)
        held = []
        for layer in thing.modules():
            held.append(self._number(layer))
            held += [(n, self._held(vars(layer), n, depth)) for n in vars(layer) if n not in OF_TORCH]
            if not isinstance(layer, torch.jit.ScriptModule):  # which keeps its own
                held += [(n, self._held(layer._buffers, n, depth)) for n in layer._buffers]  # weights given later, say
            held += self._kinds(layer, depth)
        return tuple(held)

    def _kinds(self, layer: nn.Module, depth: int) -> list[Any]:
        """Walk the classes of a layer, with the one that stands for the author's, which a script may write to."""
        kinds = (kind for kind in type(layer).__mro__ if kind is not object)
        return [self._walk(kind, depth) for kind in kinds if not kind.__module__.startswith("torch.")]

    def _sequence(self, thing: Iterable[Any], depth: int) -> Any:
        if not isinstance(thing, (tuple, frozenset)):
            self._standing.container(thing, type(thing)(thing) if isinstance(thing, (list, set)) else list(thing))
        items = sorted(thing, key=repr) if isinstance(thing, (set, frozenset)) else thing
        held = type(thing).__name__, tuple(self._walk(item, depth) for item in items)
        return (*held, self._object(thing, depth)) if is_own(type(thing)) else held

    def _mapping(self, thing: dict[Any, Any], depth: int) -> Any:
        self._standing.container(thing, dict(thing))
        held = tuple((self._walk(key, depth), self._walk(item, depth)) for key, item in thing.items())
        if isinstance(thing, collections.defaultdict):
            held = (*held, self._walk(thing.default_factory, depth))
        return (*held, self._object(thing, depth)) if is_own(type(thing)) else held

    def _endless(self, thing: Any, depth: int) -> Any:
        self._standing.is_endless = True
        return repr(thing) if isinstance(thing, itertools.count) else object()

    def _function(self, thing: types.FunctionType, depth: int) -> Any:
        compiled = vars(thing).get("_torchdynamo_orig_callable")  # torch 2.13, and what stands for it here
        if compiled is not None:
            return self._walk(compiled, depth), self._own_attributes(thing, depth)
        code = thing.__code__
        if code.co_filename.startswith(OURS):
            return None
        names = names_in(code)
        held = [self._number(code)]
        own = is_own_file(code.co_filename)
        if own:
            self._names |= names.mentioned
        for name in names.looked_up:
            if name in thing.__globals__ or (own and not hasattr(builtins, name)):  # it may be there later
                held.append((name, self._held(thing.__globals__, name, depth, own)))
        for name in names.imported if own else ():
            held.append((name, self._held(sys.modules, resolved(name, thing), depth)))
        for name, cell in zip(code.co_freevars, thing.__closure__ or (), strict=True):
            value = content_of(cell)
            self._standing.place(functools.partial(content_of, cell), name, value)
            held.append((name, self._followed(value, depth, own)))
        if own:
            for name in ("__code__", "__defaults__", "__kwdefaults__"):
                self._standing.place(functools.partial(getattr, thing), name, getattr(thing, name))
            held.append(self._walk(thing.__defaults__, depth))
            held.append(self._walk(thing.__kwdefaults__, depth))
            held.append(self._own_attributes(thing, depth))
        else:
            forms = getattr(thing, "registry", None)  # of functools.singledispatch
            held += [self._walk(form, depth) for form in (forms.values() if isinstance(forms, _FORMS) else ())]
        return tuple(held)

    def _own_attributes(self, thing: types.FunctionType, depth: int) -> Any:
        namespace = vars(thing)
        self._standing.size(namespace)
        return tuple((name, self._held(namespace, name, depth)) for name in [*namespace] if name in self._names)

    def _held(self, namespace: Any, name: str, depth: int, follow: bool = True) -> Any:
        value = namespace.get(name, MISSING)
        self._standing.place(namespace.get, name, value)
        return self._followed(value, depth, follow)

    def _followed(self, value: Any, depth: int, follow: bool) -> Any:
        if follow or type(value) in PLAIN or type(value) in (list, dict) or _is_own_function(value):
            return self._walk(value, depth)
        return None

    def _variable(self, thing: contextvars.ContextVar[Any], depth: int) -> Any:
        value = thing.get(MISSING)
        self._standing.place(lambda *_: thing.get(MISSING), thing.name, value)
        return self._walk(value, depth)

    def _referred(self, thing: weakref.ref[Any], depth: int) -> Any:
        return self._walk(thing(), depth)

    def _bound(self, thing: types.MethodType, depth: int) -> Any:
        return self._walk(thing.__func__, depth), self._walk(thing.__self__, depth)

    def _partial(self, thing: functools.partial[Any], depth: int) -> Any:
        return tuple(self._walk(part, depth) for part in (thing.func, thing.args, thing.keywords))

    def _wrapped(self, thing: Any, depth: int) -> Any:
        names = ("__func__", "fget", "func", "__wrapped__")
        return self._walk(next(getattr(thing, name) for name in names if hasattr(thing, name)), depth)

    def _class(self, thing: type, depth: int) -> Any:
        if thing in _WRITTEN_IN_C or thing.__module__.startswith(("torch.", "builtins")):
            return self._number(thing)
        own = is_own(thing)
        namespace = vars(thing)
        self._standing.size(namespace)
        held: list[Any] = []
        for name, value in [*namespace.items()]:
            if name == MARK or (name[:2] == "__" and not isinstance(value, types.FunctionType)):
                continue
            if isinstance(value, types.FunctionType) and not own:
                held.append(self._walk(value, depth))
            elif own or type(value) in PLAIN:
                held.append((name, self._held(namespace, name, depth)))
            else:
                self._standing.place(namespace.get, name, value)
        bases = thing.__bases__ if own and not issubclass(thing, nn.Module) else ()
        above = [self._walk(base, depth) for base in (*bases, *([type(thing)] if is_own(type(thing)) else ()))]
        return (*(content for content in held if not _is_empty(content)), *above)

    def _file(self, thing: types.ModuleType, depth: int) -> Any:
        if not is_own_file(getattr(thing, "__file__", None) or ""):
            return self._number(thing)
        return tuple((name, self._held(vars(thing), name, depth)) for name in vars(thing) if name in self._names)

    def _object(self, thing: Any, depth: int) -> Any:
        kind = type(thing)
        if kind.__module__ == "builtins" or (kind.__module__ in sys.stdlib_module_names and kind not in NAMESPACES):
            return self._number(thing)
        own = is_own(kind)
        held: list[Any] = [kind.__qualname__]
        if hasattr(thing, "__dict__"):
            namespace = vars(thing)
            self._standing.size(namespace)
            for name in [*namespace]:
                if own and name in self._names:
                    held.append((name, self._held(namespace, name, depth)))
                elif not own and name[:2] != "__":
                    held.append((name, self._held(namespace, name, depth, follow=False)))
        for name in {name for base in kind.__mro__ for name in slots_of(base)} if own else ():
            get = functools.partial(getattr, thing)
            value = get(name, MISSING)
            self._standing.place(get, name, value)
            held.append((name, self._walk(value, depth)))
        return tuple(held), self._walk(kind, depth) if own else None


_WALKS: list[tuple[Any, Callable[[Guards, Any, int], Any]]] = [
    (nn.Module, Guards._module),
    (dict, Guards._mapping),
    ((list, tuple, set, frozenset, collections.deque), Guards._sequence),
    (types.FunctionType, Guards._function),
    (types.MethodType, Guards._bound),
    (functools.partial, Guards._partial),
    ((staticmethod, classmethod, property, functools.cached_property, type(functools.lru_cache(int))), Guards._wrapped),
    (type, Guards._class),
    (types.ModuleType, Guards._file),
    (_ENDLESS, Guards._endless),
    (contextvars.ContextVar, Guards._variable),
    (weakref.ref, Guards._referred),
]
_FORMS = types.MappingProxyType
_WRITTEN_IN_C = (object, type, nn.Module)


def _is_own_function(value: Any) -> bool:
    """Tell what the script has a decorator of an installed package on, such as ``torch.no_grad()``."""
    return isinstance(value, types.FunctionType) and is_own_file(value.__code__.co_filename)


def _is_empty(content: Any) -> bool:
    """Tell functions of ours, which say nothing about the script."""
    return content is None or (isinstance(content, tuple) and len(content) == 2 and content[1] is None)
