"""The walk through all that code can reach: what it holds, for comparison, and what stands where."""

from __future__ import annotations

import builtins
import enum
import functools
import itertools
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .. import generators
from ..batch.tensor import BatchTensor
from ..calling.scripts_code import NAMESPACES, OURS, is_generated, is_own, is_scripts_code, is_torchs
from . import containers, referring
from .attribute_reads import ReachedCode
from .code import ANY, content_of, is_empty, is_own_function, names_in, reads_any, resolved, slots_of
from .containers import PLAIN
from .state_snapshot import MISSING, PYTHONS, StateSnapshot, put_attribute

OF_TORCH = frozenset(vars(nn.Module())) - {"training"}  # parameters, layers and hooks, told by other means
_MOST = 16_384  # things that are looked at
_FOLLOWED = (list, dict, functools.partial)  # in what is of installed packages
_WRITTEN_IN_C = (object, type, nn.Module)
_DEPTH = 40  # what lies deeper is walked afterwards: Python's stack is bounded


class Walk:
    """Goes once over each thing, and notes in ``standing`` what would tell that it changed."""

    def __init__(self, layers: list[nn.Module], number: Callable[[Any], Hashable], names: set[str]) -> None:
        """Begin.

        Args:
            layers: that are looked at by themselves.
            number: tells things apart, for as long as they live.
            names: of attributes that the code mentions; those that are met are added.
        """
        self.standing, self._layers, self.number, self.names = StateSnapshot(), layers, number, names
        self.reached = ReachedCode()
        self.generators, self.is_truncated = generators.kinds(), False  # there is more than is looked at
        self._found: dict[int, tuple[int, Any]] = {}  # what was walked, in which order, and stays alive
        self._deeper: list[Any] = []  # what is still to be walked

    def over(self, thing: Any, depth: int) -> Any:
        """Watch something, and give what it holds."""
        if type(thing) in PLAIN:
            return type(thing), thing  # 1, 1.0 and True are equal
        if isinstance(thing, enum.Enum):
            return type(thing).__qualname__, thing.name, thing.value if type(thing.value) in PLAIN else None
        if isinstance(thing, Tensor):  # of which its values do not count
            return self._tensor(thing)
        if type(thing) in (tuple, frozenset) and all(type(item) in PLAIN for item in thing):
            return type(thing), tuple((type(item), item) for item in thing)
        if isinstance(thing, type):
            self.reached.note_kind(thing)
        return self._over(thing, depth)

    def _over(self, thing: Any, depth: int) -> Any:
        if id(thing) in self._found:
            number = self.number(thing)  # its class's name, where it is in no table: then its place tells it
            return (number, self._found[id(thing)][0]) if isinstance(number, str) else number
        if len(self._found) > _MOST:
            self.is_truncated = True
            return self.number(thing)
        if depth > _DEPTH:
            self._deeper.append(thing)
            return self.number(thing)
        self._found[id(thing)] = len(self._found), thing
        if isinstance(thing, self.generators):
            self.standing.generators.append(thing)
            return self.number(thing)
        for kinds, walk in _WALKS:
            if isinstance(thing, kinds):
                return walk(self, thing, depth + 1)
        if isinstance(thing, Iterator) and type(thing).__module__ in ("builtins", "itertools"):
            return referring.used_up(self, thing)
        # Asked of its class: what is asked of a thing itself may run its ``__getattr__``.
        if hasattr(type(thing), "tobytes") and (numbers := self.standing.numbers_in(thing)) is not None:
            has_objects = getattr(getattr(thing, "dtype", None), "hasobject", False)
            items = itertools.islice(thing.flat, containers.MOST_ITEMS) if has_objects else ()
            return numbers, *(self.over(item, depth + 1) for item in items)
        return self.instance(thing, depth + 1)

    def _tensor(self, thing: Tensor) -> Any:
        if not isinstance(thing, nn.Parameter) and type(thing) is Tensor:
            self.standing.flag(thing)
            return Tensor, thing.requires_grad and thing.is_leaf, thing.dtype, thing.shape
        return BatchTensor if isinstance(thing, BatchTensor) else Tensor

    def _module(self, thing: nn.Module, depth: int) -> Any:
        if any(thing is layer for layer in self._layers):
            return self.number(thing)
        found = []
        for layer in thing.modules():
            found.append(self.number(layer))
            self.standing.size(vars(layer))
            if isinstance(layer._modules, dict):  # a ScriptModule's is torch's own
                self.standing.container(layer._modules)
            found += [(n, self.visit(vars(layer), n, depth)) for n in vars(layer) if n not in OF_TORCH]
            if not isinstance(layer, torch.jit.ScriptModule):  # which keeps its own
                found += [(n, self.visit(layer._buffers, n, depth)) for n in layer._buffers]  # weights given later, say
            found += self.kinds(layer, depth)
        return tuple(found)

    def kinds(self, layer: nn.Module, depth: int) -> list[Any]:
        """Walk the classes of a layer, as its author wrote them."""
        kinds = [kind for kind in type(layer).__mro__ if kind is not object and not is_torchs(kind)]
        return [self._over(kind, depth) for kind in kinds]

    def deeper(self) -> Iterator[Any]:
        """Walk what lay too deep, once the rest was walked."""
        while self._deeper:
            yield self.over(self._deeper.pop(0), 0)

    def _function(self, thing: types.FunctionType, depth: int) -> Any:
        compiled = vars(thing).get("_torchdynamo_orig_callable")  # torch 2.13, and what stands for it here
        if compiled is not None:
            return self.over(compiled, depth), self._own_attributes(thing, depth)
        code = thing.__code__
        if code.co_filename.startswith(OURS):
            return None
        names, is_scripts = names_in(code), is_scripts_code(code.co_filename)
        contents = [self.number(code)]
        if is_scripts:
            self.names |= names.mentioned
            self.reached.codes[code] = thing.__qualname__
        elif not str(thing.__module__).startswith("torch."):
            self.reached.others_names |= names.mentioned
        for name in names.looked_up:
            if name in thing.__globals__ or (is_scripts and not hasattr(builtins, name)):  # it may be there later
                contents.append((name, self.visit(thing.__globals__, name, depth, is_scripts)))
        for name in names.imported if is_scripts else ():
            contents.append((name, self.visit(sys.modules, resolved(name, thing), depth)))
        for name, cell in zip(code.co_freevars, thing.__closure__ or (), strict=True):
            value = content_of(cell)
            get = functools.partial(content_of, cell)
            self.standing.place(get, "cell_contents", value, functools.partial(put_attribute, cell))
            is_super = name == "__class__" and isinstance(value, type)  # for ``super()``
            contents.append((name, self._over(value, depth) if is_super else self._followed(value, depth, is_scripts)))
        if is_scripts:
            for name in ("__code__", "__defaults__", "__kwdefaults__"):
                get, put = functools.partial(getattr, thing), functools.partial(put_attribute, thing)
                self.standing.place(get, name, getattr(thing, name), put)
            contents.append(self.over(thing.__defaults__, depth))
            contents.append(self.over(thing.__kwdefaults__, depth))
            contents.append(self._own_attributes(thing, depth))
        else:
            forms = getattr(thing, "registry", None)  # of functools.singledispatch
            found = forms.values() if isinstance(forms, types.MappingProxyType) else ()
            contents += [self.over(form, depth) for form in found]
        return tuple(contents)

    def _own_attributes(self, thing: types.FunctionType, depth: int) -> Any:
        self.standing.size(vars(thing))
        return tuple((name, self.visit(vars(thing), name, depth)) for name in [*vars(thing)] if name in self.names)

    def visit(self, namespace: Any, name: str, depth: int, follow: bool = True, put: Any = None) -> Any:
        """Watch what stands under a name, and give what that holds; of what is not followed, if it is plain."""
        value = namespace.get(name, MISSING)
        self.standing.place(namespace.get, name, value, put)
        if follow and isinstance(value, type) and value.__name__ == name:
            return self._over(value, depth)  # code that makes one names it
        return self._followed(value, depth, follow)

    def _followed(self, value: Any, depth: int, follow: bool) -> Any:
        is_scripts = is_own_function(value.__func__ if type(value) is types.MethodType else value)
        if follow or type(value) in PLAIN or type(value) in _FOLLOWED or is_scripts:
            return self.over(value, depth)
        return None

    def _class(self, thing: type, depth: int) -> Any:
        if thing in _WRITTEN_IN_C or is_torchs(thing) or thing.__module__.startswith("builtins"):
            return self.number(thing)
        is_scripts, namespace = is_own(thing) or is_generated(thing), vars(thing)
        self.standing.size(namespace)
        contents: list[Any] = []
        for name, value in [*namespace.items()]:
            is_function = isinstance(value, types.FunctionType)
            is_ours = is_function and value.__code__.co_filename.startswith(OURS)
            if is_ours or name in PYTHONS or (name[:2] == "__" and not is_function):
                continue
            if is_function and not is_scripts:
                contents.append(self.over(value, depth))
            elif is_scripts or type(value) in PLAIN:
                contents.append((name, self.visit(namespace, name, depth, put=functools.partial(put_attribute, thing))))
                self.reached.note_method(thing, name, value)
            else:
                self.standing.place(namespace.get, name, value)
        bases = thing.__bases__ if is_scripts and not issubclass(thing, nn.Module) else ()
        above = [self.over(base, depth) for base in (*bases, *([type(thing)] if is_own(type(thing)) else ()))]
        return (*(content for content in contents if not is_empty(content)), *above)

    def instance(self, thing: Any, depth: int) -> Any:
        """Walk what a thing of some class holds."""
        kind = type(thing)
        if reads_any(thing):
            self.reached.others_names.add(ANY)
        if kind.__module__ == "builtins" or (kind.__module__ in sys.stdlib_module_names and kind not in NAMESPACES):
            return self.number(thing)
        is_scripts = is_own(kind)
        contents: list[Any] = [kind.__qualname__, repr(thing) if kind.__module__ == "numpy" else None]  # np.add, say
        if hasattr(thing, "__dict__"):
            namespace = vars(thing)
            self.standing.size(namespace)
            for name in [*namespace]:
                if is_scripts and (name in self.names or ANY in self.names):
                    contents.append((name, self.visit(namespace, name, depth)))
                elif not is_scripts and name[:2] != "__":
                    contents.append((name, self.visit(namespace, name, depth, follow=False)))
        for name in dict.fromkeys(name for base in kind.__mro__ for name in slots_of(base)) if is_scripts else ():
            get = functools.partial(getattr, thing)
            value = get(name, MISSING)
            self.standing.place(get, name, value, functools.partial(put_attribute, thing))
            contents.append((name, self.over(value, depth)))
        return tuple(contents), self.over(kind, depth) if is_scripts else None


_WALKS: list[tuple[Any, Callable[[Walk, Any, int], Any]]] = [
    (nn.Module, Walk._module),
    *containers.WALKS,
    (types.FunctionType, Walk._function),
    (type, Walk._class),
    *referring.WALKS,
]
