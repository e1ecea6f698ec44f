"""``python -m ddp_patch plan``: what more ranks will bring, from a description or a profile. Imports no torch."""

from .command import command

__all__ = ["command"]
