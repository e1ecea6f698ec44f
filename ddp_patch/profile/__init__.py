"""``python -m ddp_patch profile``: where the time of a script's steps goes on each rank, and what to change."""

from .command import command

__all__ = ["command"]
