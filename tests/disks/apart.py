"""Reads what it wrote where the other rank does not see it, and goes into a folder that it made there."""

import os

import numpy as np
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
with open("made/log.txt", "r+") as log, open("made/log.txt") as tail:
    lines = log.read()
    log.write("3\n")
    log.flush()
    more = tail.read()
bank = np.memmap("made/bank.dat", "f4", "w+", shape=2)
view = np.memmap("made/bank.dat", "f4", "r")
bank[:] = 1
held = os.open("made/held.txt", os.O_WRONLY | os.O_CREAT)
os.write(held, b"held")
again = os.open("made/held.txt", os.O_RDWR)
found = lines.split(), more.split(), float(view.sum()), os.read(again, 9).decode()
print(found)
assert found == (["1", "2"], ["1", "2", "3"], 2.0, "held")  # on both ranks
os.chdir("made")
