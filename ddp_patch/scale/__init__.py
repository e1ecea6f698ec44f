"""``python -m ddp_patch scale``: what a script's step takes on several numbers of ranks, measured here."""

from .command import command

__all__ = ["command"]
