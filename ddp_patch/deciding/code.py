"""What code mentions, and where it keeps what it uses."""

from __future__ import annotations

import dis
import functools
import importlib.util
import itertools
import operator
import re
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..calling.scripts_code import is_scripts_file
from .state_snapshot import MISSING

ANY = "*"  # among mentioned names: all attributes of the script's own objects


def content_of(cell: Any, *_: Any) -> Any:
    """What a cell of a closure holds, or ``MISSING``."""
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return MISSING


def slots_of(kind: type) -> Iterable[str]:
    """Names that a class gives its instances a slot for."""
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else [name for name in slots if name[:2] != "__"]


class Names(NamedTuple):
    """What a function and those inside it name."""

    looked_up: tuple[str, ...]  # in its module
    imported: tuple[str, ...]  # modules, relative ones with their dots
    mentioned: frozenset[str]  # of attributes, and any other


@functools.lru_cache(maxsize=32_768)  # more than a walk meets
def names_in(code: types.CodeType) -> Names:
    """Find the names in a function and those inside it.

    ``self.step`` mentions ``step``, and does not look it up: a script may well count in a variable of that name.
    """
    codes = [code]
    for inner in codes:
        codes += [constant for constant in inner.co_consts if isinstance(constant, types.CodeType)]
    steps = [step for inner in codes for step in dis.get_instructions(inner) if step.opname != "EXTENDED_ARG"]
    looked_up = dict.fromkeys(step.argval for step in steps if step.opname in _LOOKS_UP)
    # Two steps before stands the number of dots.
    imports = (i for i, step in enumerate(steps) if step.opname == "IMPORT_NAME")
    imported = dict.fromkeys("." * steps[i - 2].argval + steps[i].argval for i in imports)
    names = frozenset(itertools.chain.from_iterable(inner.co_names for inner in codes))
    texts = [text for inner in codes for constant in inner.co_consts for text in _texts_in(constant)]
    mentioned = names | {text for text in texts if text.isidentifier()}
    is_read_whole = not _WHOLE.isdisjoint(names.union(texts)) or not _RUNS_TEXT.isdisjoint(looked_up)
    formats = not _FORMATS.isdisjoint(names) and not any("{" in text for text in texts)  # by a text of elsewhere
    formats = formats or any(map(_NAMES_ATTRIBUTES.search, texts))
    if is_read_whole or formats or any(map(_is_put_together, codes)):
        mentioned |= {ANY}
    if not _BY_TEXT.isdisjoint(looked_up) or not _MODULES.isdisjoint(names) or {"sys", "modules"} <= names:
        looked_up |= dict.fromkeys(sorted(mentioned))  # any of them, as in globals()["flag"]
        imported |= dict.fromkeys(text for text in texts if all(map(str.isidentifier, text.split("."))))
    return Names(tuple(looked_up), tuple(imported), mentioned)


def _texts_in(constant: Any) -> Iterable[str]:
    """Give the strings in a constant: also in tuples, as of a loop over names, or of a match statement."""
    if isinstance(constant, (tuple, frozenset)):
        return itertools.chain.from_iterable(map(_texts_in, constant))
    return (constant,) if isinstance(constant, str) else ()


def _is_put_together(code: types.CodeType) -> bool:
    """Tell whether code asks for an attribute whose name it does not write: ``getattr(args, f"use_{kind}")``."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NOTHING]
    asks = (i for i, step in enumerate(steps) if step.argval == "getattr" and step.opname in _LOOKS_UP)
    matches = any(step.opname == "MATCH_CLASS" for step in steps)  # ``case Point(3)`` names none
    return matches or any(not _is_written(steps[i + 1 :]) for i in asks)


def _is_written(steps: list[dis.Instruction]) -> bool:
    """Tell whether what follows ``getattr`` calls it with a name that is written there, and a plain default if any."""
    depth = 0  # of the stack, from where the function lies
    before: list[dis.Instruction] = []
    for step in steps:
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            return False
        depth += dis.stack_effect(step.opcode, step.arg)
        if step.opname == "PRECALL":  # the first half of a call, in CPython 3.11
            continue
        if depth <= 0:
            if step.opname not in ("CALL", "CALL_FUNCTION") or step.argval not in (2, 3):
                return False
            name, *default = before[1 - step.argval :]  # if the default is one instruction
            is_plain = all(its.opname.startswith("LOAD_") and its.opname not in _OF_ANOTHER for its in default)
            return is_plain and name.opname == "LOAD_CONST" and isinstance(name.argval, str)
        before.append(step)
    return False


# Instructions of CPython 3.10 to 3.14: in functions and in bodies of classes.
_LOOKS_UP = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_NOTHING = ("EXTENDED_ARG", "CACHE", "NOP")
_OF_ANOTHER = ("LOAD_ATTR", "LOAD_METHOD")
_WHOLE = {  # see all attributes
    "vars", "asdict", "astuple", "__dict__", "attrgetter", "methodcaller", "__getattribute__", "getattr_static",
    "getmembers", "__getstate__", "__reduce__", "__reduce_ex__",
}  # fmt: skip
_RUNS_TEXT, _FORMATS = {"eval", "exec"}, {"format", "format_map"}
_NAMES_ATTRIBUTES = re.compile(r"\{\w*[.\[]")  # "{0.step}".format(self)
_READERS = (getattr, vars, eval, exec)
_READER_KINDS = (operator.attrgetter, operator.methodcaller)
_BY_TEXT, _MODULES = {"globals", "eval", "exec", "modules"}, {"__globals__", "import_module", "getmodule"}


def resolved(name: str, function: types.FunctionType) -> str:
    """The full name of a module that a function imports."""
    try:
        return importlib.util.resolve_name(name, function.__globals__.get("__package__"))
    except ImportError:  # which the function will say
        return name


def is_own_function(value: Any) -> bool:
    """Tell what the script has a decorator of an installed package on, such as ``torch.no_grad()``."""
    return isinstance(value, types.FunctionType) and is_scripts_file(value.__code__.co_filename)


def reads_any(thing: Any) -> bool:
    """Tell a function that reads whatever attribute it is told to, by whichever name code has it."""
    return any(thing is each for each in _READERS) or type(thing) in _READER_KINDS


def is_empty(content: Any) -> bool:
    """Tell functions of ours, which say nothing about the script."""
    return content is None or (isinstance(content, tuple) and len(content) == 2 and content[1] is None)


def difference(before: Any, after: Any, name: str = "") -> str:
    """Give the innermost name in front of what differs in two contents, which are tuples in tuples; "" for none.

    Args:
        before: one content.
        after: the other.
        name: that stands in front of these.
    """
    if type(before) is not tuple or type(after) is not tuple or len(before) != len(after):
        return name
    if len(before) == 2 and before[0] == after[0] and isinstance(before[0], str):
        name = before[0]
    pairs = zip(before, after, strict=True)
    return next((difference(one, other, name) for one, other in pairs if one != other), name)


def without_numbers(content: Any) -> Any:
    """Give a content without the numbers in it."""
    if type(content) is not tuple:
        return content
    if len(content) > 1 and (content[-2] is int or content[-2] is float):
        return content[:-1]
    return tuple(map(without_numbers, content))
