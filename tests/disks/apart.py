"""Saves where the other host does not see it, and reads it."""

import sys

import torch

import ddp_patch
from ddp_patch.effects import files

files._PATIENCE = 2.0
ddp_patch.enable()
torch.save({"step": 1}, "shared.pt")
try:
    print(torch.load("shared.pt"))
except FileNotFoundError as error:
    print(f"{error.strerror}: {error.filename}", file=sys.__stderr__)
    raise
