"""Run several habits in one job."""

import gc
import io
import json

from parity import gradient_habits, habits, inside_habits, later_habits, loader_habits, model_habits

import ddp_patch

MODULES = {
    "habits": habits,
    "gradient_habits": gradient_habits,
    "model_habits": model_habits,
    "later_habits": later_habits,
    "inside_habits": inside_habits,
    "loader_habits": loader_habits,
}


def run_all(module, names):
    """Run habits one after the other, each in a session of its own, and note what each gave in a file per rank."""
    with io.FileIO(f"habits.{ddp_patch.rank()}", "w") as notes:  # below open(), of which rank 0's alone is real
        for name in names:
            ddp_patch.disable()
            gc.collect()
            ddp_patch.enable()
            notes.write((json.dumps([name, MODULES[module].run(name)]) + "\n").encode())
