"""Pickles, arrays, and what torch saves: the objects in a file, read without running anything that it names."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

_TRUSTED = ("torch", "numpy", "collections", "builtins", "_codecs", "copyreg", "functools", "datetime", "pathlib")
_REFUSED = {"eval", "exec", "open", "__import__", "getattr", "setattr", "compile", "input", "load", "save", "system"}


def unpickled(path: Path, data: bytes) -> Any:
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
        if data[:2] == b"PK" and (scripted := _of_torchscript(data)):
            return scripted
        if data[:2] == b"PK" or path.suffix in (".pt", ".pth", ".ckpt", ".bin", ".tar"):
            return _loaded(io.BytesIO(data))
        if data[:1] == b"\x80":
            return _each(data, _Shells.load)
    except Exception:  # noqa: BLE001 — whatever comes of bytes that only begin as such a file
        return None
    return None


def kept_by_shell(value: Any) -> list[tuple[Any, Any]] | None:
    """Give all that a pickle keeps of an object of a class of the script's; None of other objects."""
    if not isinstance(value, _Shell):
        return None
    fields = {"class": type(value).__name__, **vars(value)}
    state = fields.pop("state", None)
    return [*fields.items(), *(state.items() if isinstance(state, dict) else [("state", state)])]


def _loaded(stream: Any) -> Any:
    return torch.load(stream, map_location="cpu", pickle_module=_Shells, weights_only=False)


def _of_torchscript(data: bytes) -> dict[str, Any]:
    """Read what ``torch.jit.save`` wrote, if it did: what its module holds, and its code, which is not run."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name.partition("/")[2]: name for name in archive.namelist()}
        if "constants.pkl" not in parts:
            return {}
        contents: dict[str, Any] = {}
        for pickled in ("data", "constants"):  # each as torch.save writes it, which knows of one
            stream = io.BytesIO()
            with zipfile.ZipFile(stream, "w") as repacked:
                for part, name in parts.items():
                    if part in ("version", "byteorder") or part.startswith((f"{pickled}.pkl", f"{pickled}/")):
                        repacked.writestr(f"archive/{part.replace(pickled, 'data', 1)}", archive.read(name))
            stream.seek(0)
            contents[pickled] = _loaded(stream)
        for part, name in parts.items():
            if part.startswith(("code/", "extra/")) and not part.endswith(".debug_pkl"):  # which has paths
                contents[part] = archive.read(name).decode("utf-8", "backslashreplace").splitlines()
        return contents


def _each(data: bytes, load: Callable[[Any], Any]) -> Any:
    """Load what a file holds one after the other, as several ``dump`` or ``save`` wrote it."""
    stream = io.BytesIO(data)
    objects = [load(stream)]
    while (begin := stream.tell()) < len(data):
        try:
            objects.append(load(stream))
        except Exception:  # noqa: BLE001 — it is something else
            return [*objects, data[begin:]]
    return objects if len(objects) > 1 else objects[0]


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
