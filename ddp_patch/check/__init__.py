"""``python -m ddp_patch check``: what in a script breaks under DDP, and what ddp_patch cannot follow."""

from .command import command

__all__ = ["command"]
