"""Run several habits in one job."""

import gc
import inspect
import io
import json
import random

import numpy as np
import torch
from parity import (
    branch_habits,
    compiled_habits,
    detection_habits,
    function_habits,
    given_habits,
    gradient_habits,
    graph_habits,
    habits,
    inside_habits,
    joined_habits,
    kept_habits,
    later_habits,
    listed_habits,
    loader_habits,
    loss_habits,
    model_habits,
    size_habits,
    sorted_habits,
    sum_habits,
    traced_habits,
    watched_habits,
)
from parity.placed import on

import ddp_patch

MODULES = {
    "habits": habits,
    "given_habits": given_habits,
    "gradient_habits": gradient_habits,
    "graph_habits": graph_habits,
    "model_habits": model_habits,
    "size_habits": size_habits,
    "sorted_habits": sorted_habits,
    "later_habits": later_habits,
    "inside_habits": inside_habits,
    "joined_habits": joined_habits,
    "kept_habits": kept_habits,
    "listed_habits": listed_habits,
    "branch_habits": branch_habits,
    "loader_habits": loader_habits,
    "compiled_habits": compiled_habits,
    "traced_habits": traced_habits,
    "detection_habits": detection_habits,
    "function_habits": function_habits,
    "watched_habits": watched_habits,
    "loss_habits": loss_habits,
    "sum_habits": sum_habits,
}
HELPERS = ("mlp", "model_of")


def habits_of(name):
    """The habits of a module: its functions that take nothing."""
    module = MODULES[name]
    return [
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and key not in HELPERS
        if not inspect.signature(value).parameters
    ]


def run(module, name):
    """Run one habit from known seeds."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    return getattr(MODULES[module], name)()


def try_all(device, module, names):
    """Give what habits do on a device on one process: numbers, or the error where they name another device."""
    on(device)
    given = {}
    for name in names:
        try:
            given[name] = run(module, name)
        except Exception as error:
            given[name] = f"{type(error).__name__}: {error}"
    return given


def run_all_on(device, module, names):
    """Run habits one after the other on a device, each in a session of its own, as run_all."""
    on(device)
    run_all(module, names)


def run_all(module, names):
    """Run habits one after the other, each in a session of its own, and note what each gave in a file per rank."""
    with io.FileIO(f"habits.{ddp_patch.rank()}", "w") as notes:  # below open(), of which rank 0's alone is real
        for name in names:
            ddp_patch.disable()
            gc.collect()
            ddp_patch.enable()
            notes.write((json.dumps([name, run(module, name)]) + "\n").encode())
