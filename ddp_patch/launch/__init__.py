"""Who started us, how to start workers if nobody did, and the job they form.

``ddp_patch.launch(function, ...)`` is this package called: importing a package binds its name in the one above it, so a
function of that name there would be lost.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Launch(ModuleType):
    def __call__(self, function: Any, /, *args: Any, nproc: int | None = None, **kwargs: Any) -> Any:
        """Run a function on several processes, and give what it returns: see ``ddp_patch.remote.launching.launch``."""
        from ..remote.launching import launch  # noqa: PLC0415 — imports torch, only now needed

        return launch(function, *args, nproc=nproc, **kwargs)

    def __reduce__(self) -> Any:
        # By its name, as cloudpickle does with what is a module and no more (3.1).
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Launch
