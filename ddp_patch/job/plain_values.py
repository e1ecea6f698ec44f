"""Values as JSON and the raw bytes of tensors: whoever reads them runs nothing, whoever wrote them.

The classes that they may be of are in the tables below: a text cannot name another one.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .. import errors

_LENGTH = struct.Struct("<Q")
_AS_THEY_ARE = (bool, int, float, str, type(None))
_SEQUENCES: dict[str, type] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, torch.Size)}
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_ARRAYS = "biufcSUmM"  # kinds of NumPy's types that are bytes and no objects
_BESIDE = (
    *(shutil.Error, shutil.SameFileError, subprocess.CalledProcessError, subprocess.TimeoutExpired),
    pickle.PicklingError,
)
_ERRORS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (*vars(builtins).values(), *vars(errors).values(), *_BESIDE)
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
_MALFORMED = (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error, RuntimeError, OverflowError)


class NotPlainError(TypeError):
    """Says which class has no form of this kind."""


def dumps(value: Any) -> bytes:
    """Write a value down.

    Raises:
        NotPlainError: for a value that only pickles.
    """
    blocks: list[bytes] = []
    try:
        text = json.dumps(_written(value, blocks)).encode()
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; a list within itself
        raise NotPlainError(str(error)) from error
    return b"".join([_LENGTH.pack(len(text)), text, *blocks])


def loads(data: bytes) -> Any:
    """Read what ``dumps`` wrote.

    Raises:
        ValueError: for anything else.
    """
    try:
        start = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        blocks = memoryview(data)[start:]
        return _read(json.loads(data[_LENGTH.size : start]), blocks)
    except _MALFORMED as error:  # RecursionError is a RuntimeError
        raise ValueError(f"these {len(data)} bytes are no value: {error}") from error


# --- writing ----------------------------------------------------------------------------------------------------------


def _written(value: Any, blocks: list[bytes]) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if _SEQUENCES.get(kind.__name__) is kind:
        return [kind.__name__, *(_written(item, blocks) for item in value)]
    tag, *parts = _parts(value, kind)
    return [tag, *(_block(part, blocks) if type(part) is bytes else _written(part, blocks) for part in parts)]


def _parts(value: Any, kind: type) -> list[Any]:
    """Take a value apart into a tag, bytes and plainer values."""
    if kind is dict:
        return ["dict", *map(list, value.items())]
    if kind is bytes:
        return ["bytes", value]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is torch.Tensor and value.layout is torch.strided and not (value.requires_grad or value.is_quantized):
        flat = value.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
        return ["tensor", str(value.dtype), list(value.shape), str(value.device), flat.numpy().tobytes()]
    if kind is np.ndarray and value.dtype.kind in _ARRAYS:
        return ["array", value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, np.generic) and value.dtype.kind in _ARRAYS:
        return ["number", value.dtype.str, value.tobytes()]
    if kind is torch.dtype:
        return ["dtype", str(value)]
    if isinstance(value, pathlib.PurePath) and kind is type(pathlib.Path()):
        return ["path", str(value)]
    if kind is uuid.UUID:
        return ["uuid", value.hex]
    if kind is os.stat_result:
        return ["stat", *value.__reduce__()[1]]
    if kind is subprocess.CompletedProcess:
        return ["completed", value.args, value.returncode, value.stdout, value.stderr]
    if _ERRORS.get(kind.__name__) is kind:
        _, args, *state = value.__reduce__()
        return ["error", kind.__name__, list(args), *state]
    raise NotPlainError(f"{kind.__module__}.{kind.__qualname__}")


def _block(part: bytes, blocks: list[bytes]) -> list[int]:
    blocks.append(part)
    return [sum(map(len, blocks[:-1])), len(part)]


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(form: Any, blocks: memoryview) -> Any:
    if not isinstance(form, list):
        if isinstance(form, dict):
            raise TypeError("an object")
        return form
    tag, *parts = form
    if tag in _SEQUENCES:
        return _SEQUENCES[tag]([_read(part, blocks) for part in parts])
    if tag == "dict":
        return dict([_read(key, blocks), _read(item, blocks)] for _, key, item in parts)
    return _READERS[tag](blocks, *parts)


def _bytes(blocks: memoryview, where: list[int]) -> bytes:
    start, size = where
    if min(start, size) < 0 or start + size > len(blocks):
        raise ValueError("truncated")
    return bytes(blocks[start : start + size])


def _tensor(blocks: memoryview, dtype: str, shape: list[Any], device: str, where: list[int]) -> torch.Tensor:
    data, sizes = bytearray(_bytes(blocks, where)), _read(shape, blocks)
    if len(data) != math.prod(sizes) * _DTYPES[dtype].itemsize:
        raise ValueError("truncated")
    empty = torch.empty(0, dtype=_DTYPES[dtype], device="cpu")
    flat = torch.frombuffer(data, dtype=_DTYPES[dtype]) if data else empty
    return flat.reshape(sizes).to(device)


def _array(blocks: memoryview, dtype: str, shape: list[Any], where: list[int]) -> Any:
    kind = np.dtype(dtype)
    if kind.kind not in _ARRAYS:
        raise TypeError(dtype)
    return np.frombuffer(bytearray(_bytes(blocks, where)), kind).reshape(_read(shape, blocks))


def _error(blocks: memoryview, kind: str, args: list[Any], state: Any = None) -> BaseException:
    error = _ERRORS[kind](*_read(args, blocks))
    vars(error).update(_read(state, blocks) or {})
    return error


_READERS: dict[str, Callable[..., Any]] = {
    "bytes": _bytes,
    "complex": lambda blocks, real, imaginary: complex(real, imaginary),
    "tensor": _tensor,
    "array": _array,
    "number": lambda blocks, dtype, where: _array(blocks, dtype, ["list", 1], where)[0],
    "dtype": lambda blocks, name: _DTYPES[name],
    "path": lambda blocks, path: pathlib.Path(path),
    "uuid": lambda blocks, number: uuid.UUID(number),
    "stat": lambda blocks, numbers, named: os.stat_result(_read(numbers, blocks), _read(named, blocks)),
    "completed": lambda blocks, *parts: subprocess.CompletedProcess(*(_read(part, blocks) for part in parts)),
    "error": _error,
}
