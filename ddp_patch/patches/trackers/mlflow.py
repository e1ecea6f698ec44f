"""mlflow: one run per job; rank 0 talks to the store, all get what it got."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import wrapt

from ...effects.ownership import Ownership
from ...effects.shared import SharedObjects, plain
from ...effects.turns import Turns
from ...patcher import Patch
from ...structure import map_leaves

_FUNCTIONS = (
    *("set_experiment", "create_experiment", "start_run", "end_run", "active_run", "last_active_run"),
    *("get_artifact_uri", "log_metric", "log_metrics", "log_param", "log_params", "log_artifact", "log_artifacts"),
    *("log_dict", "log_text", "log_figure", "log_image", "log_table", "log_input", "set_tag", "set_tags", "delete_tag"),
)
_CLIENTS = ("mlflow:MlflowClient", "mlflow.tracking:MlflowClient", "mlflow.client:MlflowClient")


def patch_when_imported(turns: Turns, owners: Ownership, apply: Callable[[list[Patch]], None]) -> None:
    """Take mlflow over as soon as the script imports it.

    Args:
        turns: of the ranks.
        owners: tells who is calling.
        apply: applies patches, unless the session has ended.
    """
    shared = SharedObjects(turns, owners, data=("mlflow.entities", "mlflow.store.entities"))

    def once(what: str) -> Any:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            args, kwargs = map_leaves(plain, (args, kwargs))
            if turns.are_silent():
                return None
            if not turns.are_taken() or not owners.caller("mlflow"):  # at exit, mlflow ends what rank 0 began
                return wrapped(*args, **kwargs)
            return turns.take(what, lambda: wrapped(*args, **kwargs))

        return call

    def rows(module: Any) -> list[Patch]:
        fluent, effect = "mlflow.tracking.fluent", "rank 0 acts; all get what it got"
        names = [name for name in _FUNCTIONS if hasattr(sys.modules[fluent], name)]
        has = "rank 0's; all get what its methods return"
        return [
            *(Patch(fluent, name, once(f"mlflow.{name}"), effect, also=(f"mlflow:{name}",)) for name in names),
            # It ends only what it finds among the runs of its process (mlflow 3.17).
            Patch(fluent, "ActiveRun.__exit__", once("mlflow.ActiveRun.__exit__"), effect),
            Patch("mlflow.tracking.client", "MlflowClient", shared.sharing("MlflowClient"), has, also=_CLIENTS),
        ]

    wrapt.register_post_import_hook(lambda module: apply(rows(module)), "mlflow")
