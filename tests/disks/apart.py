"""Reads what it wrote where the other rank does not see it, and goes into a folder that it made there."""

import os

import torch

import ddp_patch

ddp_patch.enable()
os.makedirs("made")
torch.save({"step": 1}, "made/shared.pt")
with open("made/log.txt", "w") as log:
    log.write("1\n")
    log.flush()
    seen = [int(line) for line in open("made/log.txt")]
    log.write("2\n")
with open("made/log.txt") as log:
    seen = [*seen, *[int(line) for line in log][1:]]
print(torch.load("made/shared.pt"), sorted(os.listdir("made")), seen)
os.chdir("made")
