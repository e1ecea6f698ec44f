"""mlflow: one run per job; rank 0 talks to the store, all get what it got."""

from __future__ import annotations

from typing import Any

from ...effects.shared import Library, plain
from ...patch import Args, Kwargs, Patch
from ...session import Session
from ...structure import map_leaves
from ..shared import SHARED, shared

MLFLOW = Library(data=("mlflow.entities", "mlflow.store.entities"))
_FUNCTIONS = (
    *("set_experiment", "create_experiment", "start_run", "end_run", "active_run", "last_active_run"),
    *("get_artifact_uri", "log_metric", "log_metrics", "log_param", "log_params", "log_artifact", "log_artifacts"),
    *("log_dict", "log_text", "log_figure", "log_image", "log_table", "log_input", "set_tag", "set_tags", "delete_tag"),
)
_FLAVORS = ("mlflow.pytorch", "mlflow.pyfunc", "mlflow.transformers", "mlflow.sklearn")
_CLIENTS = ("mlflow:MlflowClient", "mlflow.tracking:MlflowClient", "mlflow.client:MlflowClient")


def _once(what: str) -> Any:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        args, kwargs = map_leaves(plain, (args, kwargs))
        if session.rank_zero.is_silent():
            return None
        if not session.rank_zero.in_lockstep() or not session.owners.caller(
            "mlflow"
        ):  # at exit, mlflow ends what rank 0 began
            return wrapped(*args, **kwargs)
        return session.rank_zero.barrier_call(what, lambda: wrapped(*args, **kwargs))

    return call


_FLUENT, _EFFECT = "mlflow.tracking.fluent", "rank 0 acts; all get what it got"

PATCHES = (
    *(
        Patch(
            _FLUENT, name, _once(f"mlflow.{name}"), _EFFECT, (f"mlflow:{name}",), when_imported="mlflow", optional=True
        )
        for name in _FUNCTIONS
    ),
    *(
        Patch(flavor, name, _once(f"{flavor}.{name}"), _EFFECT, when_imported=flavor, optional=True)
        for flavor in _FLAVORS
        for name in ("log_model", "save_model")
    ),
    # It ends only what it finds among the runs of its process (mlflow 3.17).
    Patch(_FLUENT, "ActiveRun.__exit__", _once("mlflow.ActiveRun.__exit__"), _EFFECT, when_imported="mlflow"),
    Patch(
        "mlflow.tracking.client",
        "MlflowClient",
        shared("MlflowClient", MLFLOW),
        SHARED,
        also=_CLIENTS,
        when_imported="mlflow",
    ),
)
