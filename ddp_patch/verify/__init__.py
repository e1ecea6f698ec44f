"""``python -m ddp_patch verify script.py``: does a script give on several processes what it gives on one?"""

from .command import command

__all__ = ["command"]
