"""Files that a script wrote, by what is in them: tensors, text with numbers, or bytes."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import hashlib
import pickle
import types
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from .pickles import kept_by_shell, unpickled
from .printed import PrintedLine

_LONG = 8 << 20  # bytes of text
_PART = 100_000  # lines of such that are compared at once
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)


@dataclass
class Content:
    """What a file holds."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    lines: list[PrintedLine] = field(default_factory=list)
    long: list[str] = field(default_factory=list)  # of a long text: its lines, with no numbers taken out of them yet
    when: tuple[int, int] = (0, 0)  # optimizer steps taken when its numbers may have been written; these, or backwards
    digest: str = ""  # of what is neither, or holds what cannot be taken apart

    @property
    def kind(self) -> str:
        """In a word."""
        return "tensors" if self.tensors else "text" if self.lines or self.long else "bytes"


def read(path: Path, step: int, age: int) -> Content:
    """Read a file.

    Args:
        path: of the file.
        step: optimizer steps taken when its numbers may have been written.
        age: these, or backwards.
    """
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":  # whose header holds the time
        with contextlib.suppress(OSError, EOFError, zlib.error):
            data = gzip.decompress(data)
    content = Content(when=(step, age))
    loaded = unpickled(path, data)
    if loaded is not None:
        if not _collect(loaded, "", content, content.when, {}):
            content.digest = hashlib.sha256(data).hexdigest()
        if content.tensors or content.lines:
            return content
    text = _text(data)
    if text is not None and len(data) > _LONG:
        content.long = text.splitlines()
    elif text is not None:
        content.lines = _said(text.splitlines(), content)
    if content.kind == "bytes":
        content.digest = hashlib.sha256(data).hexdigest()
    return content


def laid_out(one: Content, other: Content) -> Iterator[tuple[list[PrintedLine], list[PrintedLine]]]:
    """Give the lines to compare: of long texts that have as many, those that are not alike, some at a time."""
    if not (one.long or other.long):
        yield one.lines, other.lines
        return
    ones, others = (content.long or [said.text for said in content.lines] for content in (one, other))
    part = max(len(ones), len(others), 1)
    if len(ones) == len(others):
        apart = [(a, b) for a, b in zip(ones, others, strict=True) if a != b]
        ones, others, part = [a for a, _ in apart], [b for _, b in apart], _PART
    for begin in range(0, max(len(ones), len(others)), part):
        yield _said(ones[begin : begin + part], one), _said(others[begin : begin + part], other)


def _said(texts: list[str], content: Content) -> list[PrintedLine]:
    return [PrintedLine(text, "", *content.when) for text in texts]


def _collect(value: Any, name: str, content: Content, when: tuple[int, int], seen: dict[int, Any]) -> bool:
    """Find tensors, and print everything else that has a value, each under its name; False if something has none."""
    if isinstance(value, numpy.ndarray):
        try:
            value = torch.from_numpy(numpy.ascontiguousarray(value).copy())
        except (TypeError, ValueError):  # of strings, objects, records; of another order of bytes
            value = value.tolist()
    if isinstance(value, Tensor):
        while name in content.tensors:  # of a key 1 beside a key "1"
            name += "'"
        content.tensors[name] = value.detach()
    elif isinstance(value, (bytes, bytearray)):
        return _collect(f"x{hashlib.sha256(value).hexdigest()}", name, content, when, seen)
    elif isinstance(value, (int, float, complex, str, numpy.generic)) or value is None:
        # A name of digits would be a number.
        content.lines.append(PrintedLine(f"{'item.' * name[:1].isdigit()}{name} = {value}", "", *when))
    elif id(value) not in seen:
        seen[id(value)] = value  # kept, so that no identity is used again
        try:
            items = _items(value)
        except (TypeError, RuntimeError, pickle.PickleError):  # it came from no pickle
            return False
        is_whole = True
        for place, (key, item) in enumerate(items):
            label = str(place if isinstance(key, Tensor) else key)  # optimizers have parameters as keys
            is_whole &= _collect(item, f"{name}.{label}" if name else label, content, when, seen)
        return is_whole
    return True


def _items(value: Any) -> list[tuple[Any, Any]]:
    """Take apart what is neither number nor text: all that pickle would keep of it."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    kept = kept_by_shell(value)
    if kept is not None:
        return kept
    if isinstance(value, _NAMED):
        return [("name", value.__qualname__)]
    made = value.__reduce_ex__(4)
    if isinstance(made, str):
        return [("class", type(value).__name__), ("name", made)]
    parts = dict(zip(("arguments", "state", "items", "entries"), made[1:], strict=False))
    parts["items"], parts["entries"] = list(parts.get("items") or ()), dict(parts.get("entries") or ())
    return [("class", type(value).__name__), *parts.items()]


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return codecs.decode(data, "utf-8")
    except UnicodeDecodeError:
        return None
