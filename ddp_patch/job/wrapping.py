"""A module under torch's DistributedDataParallel, as ddp_patch builds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


class _Called(torch.nn.Module):
    """What DDP may write attributes to in place of the script's module; hooks on every module are not for it."""

    def __init__(self, module: torch.nn.Module, class_: type, beside: torch.nn.Parameter | None) -> None:
        super().__init__()
        self.beside = beside  # before the module's, since DDP begins with the last one
        self.module = module
        self._class = class_

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._class.__call__(self._modules["module"], *args, **kwargs)


class Wrapping:
    """Puts modules under DDP, and tells while it does: the script may do so as well."""

    def __init__(self, group: Callable[[], Any]) -> None:
        """Begin.

        Args:
            group: gives the process group in which gradients travel, and which nothing else may keep alive.
        """
        self.is_under_way = False
        self._group = group

    def wrap(
        self,
        module: torch.nn.Module,
        class_: type,
        beside: torch.nn.Parameter | None = None,
        without: Sequence[torch.nn.Parameter] = (),
        *,
        with_broadcast: bool = False,
        sync_buffers: bool = False,
        **options: Any,
    ) -> DistributedDataParallel:
        """Put a module under DistributedDataParallel.

        Args:
            module: to be called through the result.
            class_: its own, by whose ``__call__`` it is called, wherever its calls are redirected to.
            beside: a parameter that is reduced with the module's.
            without: parameters that DDP leaves alone.
            with_broadcast: of rank 0's parameters and buffers, once.
            sync_buffers: before every forward, where they are not equal by construction.
            options: for DDP.
        """
        inner = _Called(module, class_, beside)
        ignored = [n for n, p in inner.named_parameters() if any(p is other for other in without)]
        # c10d broadcasts no sparse ones (torch 2.13).
        ignored += [n for n, b in inner.named_buffers() if b.layout is not torch.strided]
        if ignored:
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ignored)
        self.is_under_way = True
        try:
            return DistributedDataParallel(
                inner,
                process_group=self._group(),
                forward_sync_buffers=sync_buffers,
                # DDP's broadcast writes to the parameters, which invalidates graphs that hold them: they are compared
                # where they are to be equal.
                init_sync=with_broadcast,
                **options,
            )
        finally:
            self.is_under_way = False
