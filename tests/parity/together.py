"""Run several habits in one job."""

import gc
import json
import os

from parity import gradient_habits, habits, later_habits, loader_habits, model_habits

import ddp_patch

MODULES = {
    "habits": habits,
    "gradient_habits": gradient_habits,
    "model_habits": model_habits,
    "later_habits": later_habits,
    "loader_habits": loader_habits,
}


def run_all(module, names):
    """Run habits one after the other, each in a session of its own, and note what each gave in a file per rank."""
    with open(f"habits.{os.environ['RANK']}", "w", buffering=1) as notes:
        for name in names:
            ddp_patch.disable()
            gc.collect()
            ddp_patch.enable()
            notes.write(json.dumps([name, MODULES[module].run(name)]) + "\n")
