"""Comet: every rank has an experiment, of one key; rank 0's is the script's, the others' go nowhere.

Comet logs by itself what goes through ``backward``, so the other ranks need an experiment that does as rank 0's does:
an offline one, in a temporary folder.
"""

from __future__ import annotations

import atexit
import shutil
import sys
from typing import Any

from ...effects.scratch import make_scratch
from ...patch import Args, Kwargs, Patch
from ...session import Session

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


def _begin(what: str) -> Any:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if session.owners.caller() in ("own", ""):
            return wrapped(*args, **kwargs)
        if session.rank_zero.is_silent():  # rank 0's thread has the experiment
            with session.rank_zero.alone():
                return _elsewhere({"url": None})
        if not session.rank_zero.in_lockstep():
            return wrapped(*args, **kwargs)
        made: list[Any] = []

        def act() -> dict[str, Any]:
            made.append(wrapped(*args, **kwargs))
            found = {name: getattr(made[0], name, None) for name in ("url", *_OPTIONS)}
            return {"experiment_key": made[0].get_key(), **found}

        facts = session.rank_zero.barrier_call(what, act)
        if made:
            return made[0]
        with session.rank_zero.alone():
            return _elsewhere(facts)

    return call


def _log(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if session.rank_zero.mutes((args, kwargs)):
        return None
    return wrapped(*args, **kwargs)


def _ended(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    result = wrapped(*args, **kwargs)
    if session.rank_zero.in_lockstep() and session.owners.caller() not in ("own", ""):
        session.rank_zero.call("Experiment.end", lambda: None)  # rank 0's archive is there
    return result


def _elsewhere(facts: dict[str, Any]) -> Any:
    """Make an experiment that logs what rank 0's does, to nowhere."""
    url = facts.pop("url")
    scratch = make_scratch()
    kind = sys.modules["comet_ml.offline"].OfflineExperiment
    namespace = {"url": property(lambda experiment: url), "__module__": kind.__module__}
    twin = type(kind.__name__, (kind,), namespace)
    quiet = dict.fromkeys(_QUIET, False)
    experiment = twin(offline_directory=scratch, display_summary_level=0, **quiet, **facts)
    atexit.register(_end, experiment, scratch)
    return experiment


def _end(experiment: Any, scratch: str) -> None:
    experiment.end()
    shutil.rmtree(scratch, ignore_errors=True)


_LOGS = (  # of an experiment (comet_ml 3.58)
    *("metric", "metrics", "parameter", "parameters", "other", "others", "text", "image", "figure", "video", "audio"),
    *("histogram_3d", "curve", "confusion_matrix", "table", "html", "points_3d", "embedding", "dataset_hash", "asset"),
)
_HAS = (
    "one experiment; those of other ranks have its key and its `url`, log by themselves what it logs, and go to a "
    "temporary folder"
)

PATCHES = (
    *(
        Patch("comet_ml", name, _begin(f"comet_ml.{name}"), _HAS, when_imported="comet_ml")
        for name in ("start", "Experiment", "ExistingExperiment", "OfflineExperiment", "ExistingOfflineExperiment")
    ),
    *(
        Patch(
            "comet_ml.experiment",
            f"CometExperiment.log_{name}",
            _log,
            "as written, but for what a trial of a model logs",
            when_imported="comet_ml",
            optional=True,
        )
        for name in _LOGS
    ),
    Patch(
        "comet_ml.experiment",
        "CometExperiment.end",
        _ended,
        "rank 0's has ended when it returns",
        when_imported="comet_ml",
    ),
)
