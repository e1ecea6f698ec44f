"""What is going on, while somebody looks: on a terminal only, with rich if it is there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def running(name: str) -> Iterator[None]:
    """Say that a run is going on, until it is done."""
    if not sys.stderr.isatty():
        yield
        return
    with _status(name):
        yield


def _status(name: str) -> contextlib.AbstractContextManager[Any]:
    try:
        from rich.console import Console  # noqa: PLC0415 — optional
    except ImportError:
        return _plainly(name)
    return Console(stderr=True).status(f"running {name} ...")


@contextlib.contextmanager
def _plainly(name: str) -> Iterator[None]:
    text = f"running {name} ..."
    sys.stderr.write(text)
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r" + " " * len(text) + "\r")
        sys.stderr.flush()
