"""visdom: rank 0 is connected to the server; all ranks plot, and get the names of the windows."""

from __future__ import annotations

from ...patch import Patch
from ..shared import SHARED, shared

PATCHES = (Patch("visdom", "Visdom", shared("visdom.Visdom"), SHARED, when_imported="visdom"),)
