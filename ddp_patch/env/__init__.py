"""``python -m ddp_patch env``: who started this process, as which rank, where, and what was set by whom."""

from .command import command

__all__ = ["command"]
