"""Rewrite training scripts: ``python -m ddp_patch migrate``.

Rules find with ``ast`` and edit by position, as pyupgrade and django-upgrade do: what is not changed keeps every byte.
"""

from .command import command
from .rewrite import rewrite

__all__ = ["command", "rewrite"]
