"""Files that a script wrote, by what is in them: tensors, text with numbers, or bytes."""

from __future__ import annotations

import codecs
import hashlib
import io
import pickle
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from .printed import Said

_TRUSTED = ("torch", "numpy", "collections", "builtins", "_codecs", "copyreg", "functools", "datetime", "pathlib")
_REFUSED = {"eval", "exec", "open", "__import__", "getattr", "setattr", "compile", "input", "load", "save", "system"}
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
    content = Content()
    held = _unpickled(path, data)
    if held is not None:
        _collect(held, "", content, (step, age), set())
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
            return {"": numpy.load(io.BytesIO(data), allow_pickle=False)}
        if data[:2] == b"PK" and path.suffix == ".npz":
            with numpy.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return dict(arrays)
        if path.suffix == ".safetensors":
            from safetensors.torch import load  # noqa: PLC0415 — whoever wrote it has it

            return load(data)
        if data[:2] == b"PK" or path.suffix in (".pt", ".pth", ".ckpt", ".bin", ".tar"):
            return torch.load(io.BytesIO(data), map_location="cpu", pickle_module=_Shells, weights_only=False)
        if data[:1] == b"\x80":
            return _Shells.load(io.BytesIO(data))
    except (pickle.PickleError, RuntimeError, ValueError, EOFError, KeyError, ImportError, TypeError, AttributeError):
        return None
    except (OSError, IndexError, zipfile.BadZipFile):
        return None
    return None


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


def _collect(value: Any, name: str, content: Content, when: tuple[int, int], seen: set[int]) -> None:
    """Find tensors, and print everything else that has a value, each under its name."""
    if isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(numpy.ascontiguousarray(value).copy())
    if isinstance(value, Tensor):
        content.tensors[name] = value.detach()
        return
    if id(value) in seen:
        return
    if isinstance(value, (dict, list, tuple, _Shell)):
        seen.add(id(value))
        for key, item in _items(value):
            _collect(item, f"{name}.{key}" if name else str(key), content, when, seen)
    elif isinstance(value, (int, float, str, bool, numpy.generic)) or value is None:
        content.lines.append(Said(f"{name} = {value}", "", *when))


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, _Shell):
        held = {key: item for key, item in vars(value).items() if not str(key).startswith("_backward")}
        state = held.pop("state", None)
        return [*held.items(), *(state.items() if isinstance(state, dict) else [("state", state)])]
    return list(enumerate(value))


def _text(data: bytes) -> str | None:
    if len(data) > _LARGEST_TEXT or b"\0" in data:
        return None
    try:
        return codecs.decode(data, "utf-8")
    except UnicodeDecodeError:
        return None
