"""Whether code may read an attribute that a forward writes, before it has written it: then it sees the last call's."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from ..calling.scripts_code import is_own
from .code import ANY, names_in

_READS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "DELETE_ATTR"}
_MAKERS = {"__init__", "__new__", "__post_init__"}
_QUIET = {"CACHE", "EXTENDED_ARG", "NOP", "RESUME", "PRECALL"}


def may_be_read_first(name: str, codes: Mapping[types.CodeType, str]) -> bool:
    """Tell whether some code may read an attribute before it was written in the same call.

    A function of a class counts if code that counts names it, or if Python or torch call it.

    Args:
        name: of the attribute, of whatever object.
        codes: of functions that a forward can reach, with their qualified names.
    """
    living, mentioned = _living(codes)
    return ANY in mentioned or any(_reads_first(name, code) for code in living)


class ReachedCode:
    """The script's functions that a forward can reach."""

    def __init__(self) -> None:
        """Start with none."""
        self.codes: dict[types.CodeType, str] = {}  # with their qualified names
        self.others_names: set[str] = set()  # that functions of installed packages mention
        self._makers: dict[types.CodeType, str] = {}  # of layers -> name of the class
        self._holds_kinds = False  # of layers, elsewhere than under their names

    def note_method(self, kind: type, name: str, value: Any) -> None:
        """Note what stands in a class of the script's."""
        code = getattr(getattr(value, "__func__", value), "__code__", None)
        if code not in self.codes:
            return
        if name in _MAKERS and issubclass(kind, nn.Module):
            self._makers[code] = kind.__name__
        elif code.co_name != name or _is_called_by_others(kind, name):  # it need not be named as it is
            self.codes[code] = name

    def note_kind(self, kind: Any) -> None:
        """Note that something holds a class, by which a forward may make an object."""
        self._holds_kinds = self._holds_kinds or issubclass(kind, nn.Module)

    @property
    def key(self) -> Any:
        """What ``names_read`` depends on."""
        return self.codes, self.others_names, self._makers, self._holds_kinds

    def names_read(self) -> frozenset[str]:
        """Give the names of attributes that a forward may read, with ``ANY`` where that may be any."""
        living, _ = _living(self.codes)  # of a method that ``__init__`` keeps in an attribute as well
        others = [code for code in living if code not in self._makers]
        read = self.others_names.union(*(names_in(code).mentioned for code in others))
        # What a model was made by is called no more, unless a forward makes another one.
        makes = self._holds_kinds or "__class__" in read or not read.isdisjoint(self._makers.values())
        if makes or any("type" in names_in(code).looked_up for code in others):
            read.update(*(names_in(code).mentioned for code in living))
        return frozenset(read)


def _is_called_by_others(kind: type, name: str) -> bool:
    """Tell whether code of installed packages knows a method, as torch does ``extra_repr`` and ``backward``."""
    if name[:2] == "__" or name == "forward":  # which count by their names
        return False
    return any(name in vars(base) for base in kind.__mro__ if base is not object and not is_own(base))


def _living(codes: Mapping[types.CodeType, str]) -> tuple[list[types.CodeType], set[str]]:
    """Give the functions that count, and what they mention."""
    left, mentioned = dict(codes), {"forward"}
    living: list[types.CodeType] = []
    while found := [code for code, qualified in left.items() if _may_be_called(qualified, mentioned)]:
        living += found
        for code in found:
            del left[code]
            mentioned |= names_in(code).mentioned
    return living, mentioned


def _may_be_called(qualified: str, mentioned: set[str]) -> bool:
    *outer, name = qualified.split(".")
    is_method = bool(outer) and outer[-1] != "<locals>"
    return not is_method or name in mentioned or name[:2] == "__"


def _reads_first(name: str, code: types.CodeType) -> bool:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    if any(_reads_first(name, each) for each in inner) or name in _texts(code.co_consts):
        return True
    if name not in code.co_names:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in _QUIET]
    written: set[str] = set()  # variables whose attribute was, on whatever way one comes here
    skips = 0  # up to where a jump may have passed over a write
    for before, step in zip([None, *steps], steps, strict=False):
        owner = "" if before is None else _variable(before)
        if step.opname in _READS and step.argval == name and owner not in written:
            return True
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            skips = max(skips, step.argval)
        is_certain = skips <= step.offset and not getattr(code, "co_exceptiontable", b"")
        if step.opname == "STORE_ATTR" and step.argval == name and owner and is_certain:
            written.add(owner)
        if step.opname.startswith(("STORE_FAST", "DELETE_FAST")):
            written.clear()  # it may be another object's from here on
    return False


def _variable(step: dis.Instruction) -> str:
    """Give the local variable that an instruction puts on top, if it does."""
    if not step.opname.startswith("LOAD_FAST"):
        return ""
    return str(step.argval[-1] if isinstance(step.argval, tuple) else step.argval)


def _texts(constants: tuple[object, ...]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts(tuple(constant))
