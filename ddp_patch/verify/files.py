"""Files that a script wrote, by what is in them: tensors, text with numbers, or bytes."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import hashlib
import io
import pickle
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from .printed import Said

_TRUSTED = ("torch", "numpy", "collections", "builtins", "_codecs", "copyreg", "functools", "datetime", "pathlib")
_REFUSED = {"eval", "exec", "open", "__import__", "getattr", "setattr", "compile", "input", "load", "save", "system"}
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_LARGEST_TEXT = 8 << 20


@dataclass
class Content:
    """What a file holds."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    lines: list[Said] = field(default_factory=list)
    digest: str = ""  # of what is neither

    @property
    def kind(self) -> str:
        """In a word."""
        return "tensors" if self.tensors else "text" if self.lines else "bytes"


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
    content = Content()
    held = _unpickled(path, data)
    if held is not None:
        _collect(held, "", content, (step, age), {})
        if content.tensors or content.lines:
            return content
    text = _text(data)
    if text is not None:
        content.lines = [Said(line, "", step, age) for line in text.splitlines()]
    if text is None or not content.lines:
        content.digest = hashlib.sha256(data).hexdigest()
    return content


def _unpickled(path: Path, data: bytes) -> Any:
    """Load a file without running code of the script's: its classes become shells that keep what they are given."""
    try:
        if data[:6] == b"\x93NUMPY":
            return _each(data, lambda stream: numpy.load(stream, allow_pickle=False))
        if data[:2] == b"PK" and path.suffix == ".npz":
            with numpy.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return dict(arrays)
        if path.suffix == ".safetensors":
            from safetensors.torch import load  # noqa: PLC0415 — whoever wrote it has it

            return load(data)
        if data[:2] == b"PK" or path.suffix in (".pt", ".pth", ".ckpt", ".bin", ".tar"):
            return torch.load(io.BytesIO(data), map_location="cpu", pickle_module=_Shells, weights_only=False)
        if data[:1] == b"\x80":
            return _each(data, _Shells.load)
    except Exception:  # noqa: BLE001 — whatever comes of bytes that only begin as such a file
        return None
    return None


def _each(data: bytes, load: Callable[[Any], Any]) -> Any:
    """Load what a file holds one after the other, as several ``dump`` or ``save`` wrote it."""
    stream = io.BytesIO(data)
    held = [load(stream)]
    while (begin := stream.tell()) < len(data):
        try:
            held.append(load(stream))
        except Exception:  # noqa: BLE001 — it is something else
            return [*held, data[begin:]]
    return held if len(held) > 1 else held[0]


class _Shell:
    def __new__(cls, *args: Any, **kwargs: Any) -> _Shell:
        made = super().__new__(cls)
        made.__dict__["arguments"] = args
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> _Shell:
        return self

    def __setstate__(self, state: Any) -> None:
        self.__dict__["state"] = state

    def append(self, item: Any) -> None:
        self.__dict__.setdefault("items", []).append(item)

    def extend(self, items: Any) -> None:
        self.__dict__.setdefault("items", []).extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__.setdefault("entries", {})[key] = value

    def __repr__(self) -> str:  # as a key
        return f"{type(self).__name__}{self.__dict__.get('arguments', ())}"


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in _TRUSTED and name not in _REFUSED and not module.startswith("torch.nn.modules"):
            return super().find_class(module, name)
        return type(name, (_Shell,), {})


class _Shells:
    """What torch.load takes for the pickle module."""

    Unpickler = _Unpickler
    UnpicklingError = pickle.UnpicklingError

    @staticmethod
    def load(stream: Any, **options: Any) -> Any:
        return _Unpickler(stream, **options).load()


def _collect(value: Any, name: str, content: Content, when: tuple[int, int], seen: dict[int, Any]) -> None:
    """Find tensors, and print everything else that has a value, each under its name."""
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
        _collect(f"x{hashlib.sha256(value).hexdigest()}", name, content, when, seen)
    elif isinstance(value, (int, float, complex, str, numpy.generic)) or value is None:
        # A name of digits would be a number.
        content.lines.append(Said(f"{'item.' * name[:1].isdigit()}{name} = {value}", "", *when))
    elif id(value) not in seen:
        seen[id(value)] = value  # kept, so that no identity is used again
        for place, (key, item) in enumerate(_items(value)):
            own = str(place if isinstance(key, Tensor) else key)  # optimizers have parameters as keys
            _collect(item, f"{name}.{own}" if name else own, content, when, seen)


def _items(value: Any) -> list[tuple[Any, Any]]:
    """Take apart what is neither number nor text: all that pickle would keep of it."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if isinstance(value, _Shell):
        held = {"class": type(value).__name__, **vars(value)}
        state = held.pop("state", None)
        return [*held.items(), *(state.items() if isinstance(state, dict) else [("state", state)])]
    if isinstance(value, _NAMED):
        return [("name", value.__qualname__)]
    try:
        made = value.__reduce_ex__(4)
    except (TypeError, RuntimeError, pickle.PickleError):  # it came from no pickle
        made = ""
    if isinstance(made, str):
        return [("class", type(value).__name__), ("name", made)]
    parts = dict(zip(("arguments", "state", "items", "entries"), made[1:], strict=False))
    parts["items"], parts["entries"] = list(parts.get("items") or ()), dict(parts.get("entries") or ())
    return [("class", type(value).__name__), *parts.items()]


def _text(data: bytes) -> str | None:
    if len(data) > _LARGEST_TEXT or b"\0" in data:
        return None
    try:
        return codecs.decode(data, "utf-8")
    except UnicodeDecodeError:
        return None
