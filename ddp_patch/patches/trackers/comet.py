"""Comet: every rank has an experiment, of one key; rank 0's is the script's, the others' go nowhere.

Comet logs by itself what goes through ``backward``, so the other ranks need an experiment that does as rank 0's does:
an offline one, in a temporary folder.
"""

from __future__ import annotations

import atexit
import shutil
import sys
from collections.abc import Callable
from typing import Any

import wrapt

from ...effects.ownership import Ownership
from ...effects.scratch import make_scratch
from ...effects.turns import Turns
from ...patcher import Patch

_MADE = ("Experiment", "ExistingExperiment", "OfflineExperiment", "ExistingOfflineExperiment")
# What an experiment logs by itself (comet_ml 3.58: options and attributes of the same name).
_OPTIONS = (
    *("log_graph", "auto_param_logging", "auto_metric_logging", "auto_metric_step_rate", "disabled"),
    *("auto_histogram_tensorboard_logging", "auto_histogram_epoch_rate", "auto_histogram_weight_logging"),
    *("auto_histogram_gradient_logging", "auto_histogram_activation_logging"),
)
_QUIET = (
    *("log_code", "log_env_details", "log_env_gpu", "log_env_cpu", "log_env_host", "log_env_network", "log_env_disk"),
    *("log_git_metadata", "log_git_patch", "auto_output_logging", "parse_args", "auto_log_co2"),
)


def patch_when_imported(turns: Turns, owners: Ownership, apply: Callable[[list[Patch]], None]) -> None:
    """Take Comet over as soon as the script imports it.

    Args:
        turns: of the ranks.
        owners: tells who is calling.
        apply: applies patches, unless the session has ended.
    """

    def begin(what: str) -> Any:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not turns.are_taken() or owners.caller() in ("own", ""):
                return wrapped(*args, **kwargs)
            made: list[Any] = []

            def act() -> dict[str, Any]:
                made.append(wrapped(*args, **kwargs))
                found = {name: getattr(made[0], name, None) for name in ("url", *_OPTIONS)}
                return {"experiment_key": made[0].get_key(), **found}

            facts = turns.take(what, act)
            if made:
                return made[0]
            with turns.alone():
                return _elsewhere(facts)

        return call

    def end(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = wrapped(*args, **kwargs)
        if turns.are_taken() and owners.caller() not in ("own", ""):
            turns.follow("Experiment.end", lambda: None)  # rank 0's archive is there
        return result

    has = "one experiment; the other ranks' go to a temporary folder"
    rows = [
        Patch("comet_ml", "start", begin("comet_ml.start"), has),
        *(Patch("comet_ml", name, begin(f"comet_ml.{name}"), has) for name in _MADE),
        Patch("comet_ml.experiment", "CometExperiment.end", end, "rank 0's has ended when it returns"),
    ]
    wrapt.register_post_import_hook(lambda module: apply(rows), "comet_ml")


def _elsewhere(facts: dict[str, Any]) -> Any:
    """Make an experiment that logs what rank 0's does, to nowhere."""
    url = facts.pop("url")
    scratch = make_scratch()
    kind = sys.modules["comet_ml.offline"].OfflineExperiment
    known = {"url": property(lambda experiment: url), "__module__": kind.__module__}
    twin = type(kind.__name__, (kind,), known)
    quiet = dict.fromkeys(_QUIET, False)
    experiment = twin(offline_directory=scratch, display_summary_level=0, **quiet, **facts)
    atexit.register(_end, experiment, scratch)
    return experiment


def _end(experiment: Any, scratch: str) -> None:
    experiment.end()
    shutil.rmtree(scratch, ignore_errors=True)
