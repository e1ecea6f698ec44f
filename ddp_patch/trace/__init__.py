"""``python -m ddp_patch trace``: what the ranks of a run recorded, side by side."""

from .command import command

__all__ = ["command"]
