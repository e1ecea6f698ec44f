"""Write a migrated file over the old one, without losing anything: git keeps the old one, or ``.orig`` does."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def refusal(path: Path) -> str | None:
    """Tell why a file must not be written over: changes that nobody committed would be lost."""
    if not in_repository(path):
        return None
    status = _git(path, "status", "--porcelain", "--ignored", "--", path.name)
    if status is None or not status.strip():
        return None
    kind = {"??": "is not in git", "!!": "is ignored by git"}.get(status[:2], "has changes that are not committed")
    return f"{kind}, so the old version would be lost. Commit it first, or write --force"


def write(path: Path, data: bytes) -> Path | None:
    """Replace a file in one step; gives the copy of the old one that was made outside of a repository."""
    kept = None
    if not in_repository(path):
        kept = path.with_name(f"{path.name}.orig")
        if not kept.exists():  # the first original is the one to keep
            shutil.copy2(path, kept)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        shutil.copymode(path, temporary)
        os.replace(temporary, os.path.realpath(path))
    except BaseException:
        os.unlink(temporary)
        raise
    return kept


def in_repository(path: Path) -> bool:
    """Tell whether a file lies in a git repository."""
    return _git(path, "rev-parse", "--is-inside-work-tree") == "true\n"


def _git(path: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(path.resolve().parent), *command], capture_output=True, text=True, check=False, timeout=60
        )
    except OSError:  # there is no git
        return None
    return done.stdout if done.returncode == 0 else None
