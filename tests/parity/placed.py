"""Scripts that name no device, on one."""

import torch


class _Generator(torch.Generator):
    """Draws on the default device, as tensors do."""

    def __new__(cls, device=None):
        return super().__new__(cls, torch.get_default_device() if device is None else device)


def on(device):
    """Make tensors, modules and generators on a device, as far as scripts name none."""
    torch.set_default_device(device)
    torch.Generator = _Generator
