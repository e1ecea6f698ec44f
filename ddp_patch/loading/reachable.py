"""What the dataset and the collate function of a loader hold, as far as Python can be looked through."""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import Subset

from ..installed import is_installed

_MOST_THINGS = 4096  # that are looked at
_MOST = 64  # entries of a container that is looked into
_LEAVES = (str, bytes, int, float, complex, type(None), torch.Tensor, types.BuiltinFunctionType)
_IN_TURN = ("pop", "popleft", "get", "get_nowait")
_ROWS_APART = ("torch", "datasets")  # packages whose datasets are known
_SHARED = (  # by the processes that a process starts
    ("multiprocessing.synchronize", "SemLock"),
    ("multiprocessing.synchronize", "Condition"),
    ("multiprocessing.synchronize", "Event"),
    ("multiprocessing.sharedctypes", "SynchronizedBase"),
    ("multiprocessing.queues", "Queue"),
    ("multiprocessing.queues", "SimpleQueue"),
    ("multiprocessing.managers", "BaseProxy"),
)


def find_in_loader(loader: Any, kinds: tuple[type, ...], excluded: Iterable[Any] = ()) -> list[Any]:
    """Find objects of some kinds, in an order that is the same on every rank.

    Args:
        loader: whose dataset and collate function are looked through.
        kinds: classes.
        excluded: objects that are not meant.
    """
    return list(find_within([loader.dataset, loader.collate_fn], kinds, excluded))


def find_within(things: Iterable[Any], kinds: tuple[type, ...], excluded: Iterable[Any] = ()) -> Iterator[Any]:
    """Find objects of some kinds in what some things hold; see ``find_in_loader``."""
    seen = {id(thing): thing for thing in excluded}  # which stay alive: their places in memory are not taken again
    waiting = deque(things)  # those that are held nearer come first
    while waiting and len(seen) < _MOST_THINGS:
        thing = waiting.popleft()
        if id(thing) in seen:
            continue
        if isinstance(thing, kinds):
            yield thing
        if isinstance(thing, _LEAVES):
            continue
        seen[id(thing)] = thing
        waiting.extend(_directly_in(thing))


def _directly_in(thing: Any) -> Iterable[Any]:
    """What an object, a class or a function has at hand."""
    if isinstance(thing, (list, tuple)):
        return thing if len(thing) <= _MOST else ()
    if isinstance(thing, dict):
        return thing.values() if len(thing) <= _MOST else ()
    if isinstance(thing, types.MethodType):
        return thing.__self__, thing.__func__
    if isinstance(thing, functools.partial):
        return thing.func, *thing.args, *thing.keywords.values()
    if isinstance(thing, (staticmethod, classmethod)):
        return (thing.__func__,)
    if isinstance(thing, property):
        return thing.fget, thing.fset
    if isinstance(thing, types.FunctionType):
        return () if _is_librarys(thing.__module__) else _used_by(thing)
    if isinstance(thing, type):
        return () if _is_librarys(thing.__module__) else _defined_by(thing)
    if isinstance(thing, types.ModuleType):
        return ()
    attributes = vars(thing).values() if hasattr(thing, "__dict__") else ()
    slots = [getattr(thing, name, None) for kind in type(thing).__mro__ for name in _slots_of(kind)]
    return *attributes, *slots, *type(thing).__mro__


def _defined_by(class_: type) -> Iterator[Any]:
    of_package = _is_packages(class_.__module__)  # whose own objects are its own, as a lock that all bars share
    for value in vars(class_).values():
        if not of_package or isinstance(value, (types.FunctionType, staticmethod, classmethod, property)):
            yield value


def _used_by(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not bound yet
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    if _is_packages(function.__module__):
        return  # it works with what it is given
    names = list(_names_in(function.__code__))
    for name in names:
        found = function.__globals__.get(name)
        yield found
        if isinstance(found, types.ModuleType) and not _is_librarys(found.__name__):
            yield from (vars(found).get(attribute) for attribute in names)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # comprehensions and functions within
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _slots_of(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else [name for name in slots if name not in ("__dict__", "__weakref__")]


@functools.lru_cache(maxsize=4096)
def _is_packages(module: str | None) -> bool:
    """Tell modules of installed packages from those of a script."""
    return is_installed(getattr(sys.modules.get(module or ""), "__file__", None) or "")


@functools.lru_cache(maxsize=4096)
def _is_librarys(module: str | None) -> bool:
    """Tell modules whose functions hold nothing of a script's: Python's own, torch's and NumPy's."""
    root = (module or "").partition(".")[0]
    return root in ("torch", "numpy", "wrapt") or (root in sys.stdlib_module_names and root != "__main__")


def asks_for_its_worker(loader: Any) -> bool:
    """Tell whether what is loaded may depend on which worker of how many loads it."""
    begin = loader.worker_init_fn
    if isinstance(begin, types.MethodType) and begin.__self__ is loader.dataset:
        return True
    functions = find_within([loader.dataset, loader.collate_fn, begin], (types.FunctionType,))
    return any("get_worker_info" in _names_in(function.__code__) for function in functions)


def takes_in_turn(dataset: Any) -> bool:
    """Tell a dataset that gives what comes next out of something that it keeps, whichever row is asked for."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    kind, names, codes = type(dataset), ["__getitem__"], list[types.CodeType]()
    if kind.__module__.partition(".")[0] in _ROWS_APART:
        return False
    for name in names:  # which grows
        method = getattr(kind, name, None)
        if isinstance(method, types.FunctionType) and method.__code__ not in codes:
            codes.append(method.__code__)
            names += [other for other in _names_in(method.__code__) if other not in names]
    return any(map(_takes_from_own, codes))


def _takes_from_own(code: types.CodeType) -> bool:
    """Tell code that calls ``next(self.of)`` or ``self.of.pop()``."""
    passed = ("PUSH_NULL", "EXTENDED_ARG", "PRECALL")
    steps = [(step.opname, step.argval) for step in dis.get_instructions(code) if step.opname not in passed]
    around = zip([("", None), *steps], steps, steps[1:], steps[2:], steps[3:], strict=False)
    for before, step, of, taken, given in around:
        is_own = step[0].startswith("LOAD_FAST") and (step[1],) == code.co_varnames[:1] and of[0] == "LOAD_ATTR"
        # A place of a list, or none; a cache forgets what it has under a key.
        is_taken = taken[1] in _IN_TURN and (given[0].startswith("CALL") or isinstance(given[1], int))
        if is_own and (before == ("LOAD_GLOBAL", "next") or is_taken):
            return True
    return False


def shared_with_children(loader: Any) -> list[Any]:
    """Find locks, counters, queues, ... that tie the processes together that read a loader."""
    kinds = [getattr(sys.modules[module], name) for module, name in _SHARED if module in sys.modules]
    return find_in_loader(loader, tuple(kinds)) if kinds else []
