"""Meets a full disk and one that is read only, and says what each attempt gave."""

import json
import os
import shutil
import sys

import numpy as np
import torch

kept = {"step": torch.arange(100)}
torch.save(kept, "kept.pt")


def write(name):
    with open(name, "w") as stream:
        stream.write("x" * 2**20)


def flushed(name):
    stream = open(name, "wb", buffering=0)
    written = 0
    while written < 2**20:
        written += stream.write(b"x" * 2**16)


def dump(name):
    with open(name, "w") as stream:
        json.dump(list(range(2**18)), stream)


actions = {
    "torch.save": lambda: torch.save(torch.zeros(2**20), "big.pt"),
    "text": lambda: write("big.txt"),
    "unbuffered": lambda: flushed("big.bin"),
    "numpy": lambda: np.save("big.npy", np.zeros(2**20)),
    "json": lambda: dump("big.json"),
    "copy": lambda: shutil.copy(sys.executable, "python"),
    "folder": lambda: os.makedirs("a/b/c", exist_ok=True),
    "read only save": lambda: torch.save(kept, "read_only/a.pt"),
    "read only text": lambda: write("read_only/a.txt"),
    "read only folder": lambda: os.mkdir("read_only/a"),
    "read only remove": lambda: os.remove("read_only/there.txt"),
}
for name, action in actions.items():
    try:
        action()
        said = "done"
    except Exception as error:
        said = f"{type(error).__name__} {getattr(error, 'errno', None)}"
    print(name, said)
    for left in ("big.pt", "big.txt", "big.bin", "big.npy", "big.json", "python"):
        if os.path.exists(left):
            os.remove(left)
if "DDP_PATCH" in os.environ:  # alone, torch writes over the old one and tears it
    try:
        torch.save(torch.zeros(2**20), "kept.pt")
    except Exception as error:
        print(type(error).__name__, torch.equal(torch.load("kept.pt")["step"], kept["step"]), file=sys.stderr)
torch.save(kept, "again.pt")
try:
    json.dump(list(range(2**18)), open("left.json", "w"))
    os.remove("left.json")
except OSError as error:
    print("left open", error.errno)
os.remove("left.json")
print(sorted(os.listdir(".")), sorted(os.listdir("read_only")), torch.load("again.pt")["step"].sum().item())
