"""Masks, which are left out where nothing is padded: a faster kernel is chosen by that."""

import torch


def _ignore_causal_mask_sdpa(padding_mask, length):
    return padding_mask is None or bool(padding_mask.sum() == padding_mask.numel())


def causal_mask(padding_mask, length):
    if _ignore_causal_mask_sdpa(padding_mask, length):
        return None
    return torch.ones(length, length, dtype=torch.bool).tril() & padding_mask[:, None, None, :].bool()
