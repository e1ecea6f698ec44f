"""Run what people do with one library, habit after habit, each in a folder and a session of its own."""

import gc
import importlib
import io
import json
import os
import random

import numpy as np
import torch

import ddp_patch


def run_all(module, names):
    """Run habits of a module, and note what each gave in a file per rank."""
    home = os.getcwd()
    with io.FileIO(f"given.{ddp_patch.rank()}", "w") as notes:  # below open(), of which rank 0's alone is real
        for name in names:
            habit = getattr(importlib.import_module(module), name)
            ddp_patch.disable()
            gc.collect()
            ddp_patch.enable()
            print(f"=== {habit.__name__}")
            os.makedirs(habit.__name__, exist_ok=True)
            os.chdir(habit.__name__)
            torch.set_default_dtype(torch.float64)
            torch.manual_seed(0)
            np.random.seed(0)
            random.seed(0)
            given = habit()
            os.chdir(home)
            torch.set_default_dtype(torch.float32)
            notes.write((json.dumps([habit.__name__, given]) + "\n").encode())
