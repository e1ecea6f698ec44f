"""Keys and values that a decoder keeps for the next token."""

import torch


class CacheLayerMixin:
    def __init__(self):
        self.keys = self.values = None
        self.is_initialized = False

    def update(self, keys, values):
        if not self.is_initialized:
            self.dtype = keys.dtype
            self.keys, self.values = torch.tensor([], dtype=self.dtype), torch.tensor([], dtype=self.dtype)
            self.is_initialized = True
        self.keys = torch.cat([self.keys, keys], dim=-2)
        self.values = torch.cat([self.values, values], dim=-2)
        return self.keys, self.values

    def get_seq_length(self):
        return 0 if not self.is_initialized or self.keys.numel() == 0 else self.keys.shape[-2]


class Cache:
    def __init__(self):
        self.layers = []

    def update(self, keys, values, layer):
        if len(self.layers) <= layer:
            self.layers.append(CacheLayerMixin())
        return self.layers[layer].update(keys, values)

    def get_seq_length(self):
        return self.layers[0].get_seq_length() if self.layers else 0
