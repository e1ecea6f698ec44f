"""Experiment trackers: one run per job; rank 0 has it.

ddp_patch imports none of them; each is taken over as soon as the script imports it.
"""

from __future__ import annotations

from . import clearml, comet, mlflow, visdom, wandb

PATCHES = (*wandb.PATCHES, *mlflow.PATCHES, *comet.PATCHES, *clearml.PATCHES, *visdom.PATCHES)
