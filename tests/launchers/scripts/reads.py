"""Writes, and looks at what it wrote in every way that people have."""

import csv
import glob
import json
import logging
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import torch

import ddp_patch

ddp_patch.enable()

print(Path("data/names.txt").read_text().split(), sorted(os.listdir("data")))  # of each host
os.makedirs("run/deep", exist_ok=True)
print(os.path.isdir("run"), os.access("run", os.W_OK), sorted(os.listdir(".")) == sorted(glob.glob("*")))

torch.save({"step": 1}, "run/last.pt")
print(torch.load("run/last.pt"), os.path.getsize("run/last.pt") == Path("run/last.pt").stat().st_size)

Path("run/old.txt").write_text("new")  # there is an older one, another on each host
print(Path("run/old.txt").read_text())
with open("run/counts.txt", "a") as counts:  # of the run before
    print(counts.tell())
    counts.write("4\n")
print(open("run/counts.txt").read().split())
with open("run/counts.txt", "r+") as counts:
    first = counts.readline()
    counts.seek(0)
    counts.write("7")
    print(first.strip(), open("run/counts.txt").read()[:1] != "")

with open("run/log.json", "w") as log:
    json.dump({"loss": [1.5, 0.5]}, log)
print(json.load(open("run/log.json"))["loss"])
logger = logging.getLogger("trial")
logger.addHandler(logging.FileHandler("run/train.log"))
logger.warning("one")
print(open("run/train.log").read())  # which is still written to
with open("run/table.csv", "w", newline="") as table:
    csv.writer(table).writerows([["a", "b"], [1, 2]])
print(list(csv.reader(open("run/table.csv"))))

large = np.arange(3_000_000)  # more than the store takes at once
np.save("run/large.npy", large)
print(np.load("run/large.npy").sum(), np.load("run/large.npy", mmap_mode="r")[-1])
with open("run/unfinished.bin", "wb") as unfinished:
    unfinished.write(large.tobytes())
    unfinished.flush()
    print(len(open("run/unfinished.bin", "rb").read()))

shutil.copy("run/log.json", "run/deep/copied.json")
os.rename("run/table.csv", "run/deep/table.csv")
print(os.path.exists("run/table.csv"), sorted(glob.glob("run/**/*.*", recursive=True)))
print(sorted((folder, sorted(names)) for folder, _, names in os.walk("run")))
print(sorted(entry.name for entry in os.scandir("run") if entry.is_file() and entry.stat().st_size > 1000))
print(sorted(path.name for path in Path("run").iterdir()), sorted(path.name for path in Path("run").rglob("*.json")))
shutil.rmtree("run/deep")
os.makedirs("other/deep/down")
print(os.path.exists("other"), sorted(os.listdir("other")), "other" in os.listdir("."))
os.remove("run/last.pt")
print(os.path.exists("run/deep"), os.path.exists("run/last.pt"), sorted(os.listdir("run")))
try:
    open("run/last.pt")
except FileNotFoundError as error:
    print(error)
scratch = tempfile.mkdtemp(dir="other")
print(os.path.exists(scratch))
shutil.rmtree(scratch)
with sqlite3.connect("run/new.db") as database:
    database.execute("create table seen (step integer)")
    database.execute("insert into seen values (3)")
    print(database.execute("select step from seen").fetchall())
for step in range(5):
    torch.save(step, "run/last.pt")
    print(torch.load("run/last.pt"))
