"""Masks of encoders, as transformers had them before version 5."""

import torch


def _prepare_4d_attention_mask(mask, dtype, tgt_len=None):
    return (1.0 - mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min


def _prepare_4d_attention_mask_for_sdpa(mask, dtype, tgt_len=None):
    return None if torch.all(mask == 1) else _prepare_4d_attention_mask(mask, dtype, tgt_len)
