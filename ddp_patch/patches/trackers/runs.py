"""wandb and mlflow: one run per job, which all ranks know by its name.

Every rank gives what is logged, so that batches are gathered by all; rank 0 logs it.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import wrapt

from ...effects.ownership import Ownership
from ...effects.shared import SharedObjects, plain
from ...effects.turns import Turns
from ...ledger import Ledger, script_line
from ...patcher import Patch
from ...structure import map_leaves

logger = logging.getLogger(__name__)

_FACTS = ("id", "name", "project", "entity", "group", "job_type", "dir", "url", "path", "start_time")
_MLFLOW = (
    *(
        "set_experiment",
        "create_experiment",
        "start_run",
        "end_run",
        "active_run",
        "last_active_run",
        "get_artifact_uri",
    ),
    *("log_metric", "log_metrics", "log_param", "log_params", "log_artifact", "log_artifacts", "log_dict", "log_text"),
    *("log_figure", "log_image", "log_table", "log_input", "set_tag", "set_tags", "delete_tag"),
)
_CLIENTS = ("mlflow:MlflowClient", "mlflow.tracking:MlflowClient", "mlflow.client:MlflowClient")
_HAS = "rank 0's; all get what its methods return"


def patch_when_imported(turns: Turns, owners: Ownership, ledger: Ledger, apply: Callable[[list[Patch]], None]) -> None:
    """Take over the trackers as soon as the script imports them.

    Args:
        turns: of the ranks.
        owners: tells who is calling.
        ledger: of the session.
        apply: applies patches, unless the session has ended.
    """

    def init(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not turns.are_taken():
            return wrapped(*args, **kwargs)
        runs: list[Any] = []

        def act() -> dict[str, Any]:
            runs.append(wrapped(*args, **kwargs))
            return {name: getattr(runs[0], name, None) for name in _FACTS}

        facts = turns.take("wandb.init", act)
        if turns.is_leader:
            return runs[0]
        with turns.alone():
            run = wrapped(*args, **{**kwargs, "mode": "disabled"})
        # A disabled run has a ``log`` of its own (wandb 0.31).
        quiet = wrapt.FunctionWrapper(run.log, log)
        vars(run)["log"] = sys.modules["wandb"].log = quiet  # type: ignore[attr-defined]
        known = {name: property(functools.partial(_fact, fact)) for name, fact in facts.items()}
        run.__class__ = type(type(run).__name__, (type(run),), {**known, "__module__": type(run).__module__})
        return run

    def log(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = map_leaves(plain, (args, kwargs))
        return wrapped(*args, **kwargs)

    def watch(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        said = f"{script_line()}: wandb.watch would put hooks on the model of rank 0 alone, so it is left out."
        ledger.note(said)
        if turns.is_leader:
            logger.warning(said)

    def once(what: str) -> Any:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            args, kwargs = map_leaves(plain, (args, kwargs))
            if turns.are_silent():
                return None
            if not turns.are_taken() or not owners.caller("mlflow"):  # at exit, mlflow ends what rank 0 began
                return wrapped(*args, **kwargs)
            return turns.take(what, lambda: wrapped(*args, **kwargs))

        return call

    shared = SharedObjects(turns, owners, data=("mlflow.entities", "mlflow.store.entities"))
    run = "wandb.sdk.wandb_run"
    wandb_rows = [
        Patch(
            "wandb.sdk.wandb_init", "init", init, "rank 0's run; the others have a disabled one", also=("wandb:init",)
        ),
        Patch(run, "Run.log", log, "rank 0 logs"),
        Patch(run, "Run.watch", watch, "left out"),
    ]
    wrapt.register_post_import_hook(lambda module: apply(wandb_rows), "wandb")

    def mlflow_rows(module: Any) -> None:
        fluent, effect = "mlflow.tracking.fluent", "rank 0 acts; all get what it got"
        names = [name for name in _MLFLOW if hasattr(sys.modules[fluent], name)]
        rows = [Patch(fluent, name, once(f"mlflow.{name}"), effect, also=(f"mlflow:{name}",)) for name in names]
        client = Patch("mlflow.tracking.client", "MlflowClient", shared.sharing("MlflowClient"), _HAS, also=_CLIENTS)
        # It ends only what it finds among the runs of its process (mlflow 3.17).
        apply([*rows, client, Patch(fluent, "ActiveRun.__exit__", once("mlflow.ActiveRun.__exit__"), effect)])

    wrapt.register_post_import_hook(mlflow_rows, "mlflow")


def _fact(fact: Any, run: Any) -> Any:
    return fact
