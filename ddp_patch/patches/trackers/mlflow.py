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
    *(
        "log_inputs",
        "log_stream",
        "load_table",
        "get_run",
        "get_parent_run",
        "delete_run",
        "restore_run",
        "search_runs",
    ),
    *("get_experiment", "get_experiment_by_name", "search_experiments", "delete_experiment", "restore_experiment"),
    *("set_experiment_tag", "set_experiment_tags", "delete_experiment_tag", "initialize_logged_model", "log_outputs"),
    *("create_external_model", "log_model_params", "finalize_logged_model", "get_logged_model", "last_logged_model"),
    *("search_logged_models", "set_logged_model_tags", "delete_logged_model_tag", "import_checkpoints"),
    *("flush_async_logging", "flush_artifact_async_logging"),
)
_OF_REGISTRY = ("register_model", "search_registered_models", "search_model_versions", "set_model_version_tag")
_UNDER_WAY = "mlflow.utils.async_logging.run_operations"  # what logs with synchronous=False gives
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
        results: list[Any] = []

        def act() -> tuple[bool, Any]:
            results.append(wrapped(*args, **kwargs))
            is_under_way = type(results[0]).__module__ == _UNDER_WAY
            return is_under_way, None if is_under_way else results[0]

        is_under_way, result = session.rank_zero.barrier_call(what, act)
        if is_under_way:  # which rank 0 alone can wait for
            return session.shared(MLFLOW).call(what, lambda: results[0], (), {})
        return result

    return call


_FLUENT, _REGISTRY = "mlflow.tracking.fluent", "mlflow.tracking._model_registry.fluent"
_EFFECT = "rank 0 acts; all get what it got"

PATCHES = (
    *(
        Patch(
            module, name, _once(f"mlflow.{name}"), _EFFECT, (f"mlflow:{name}",), when_imported="mlflow", optional=True
        )
        for module, names in ((_FLUENT, _FUNCTIONS), (_REGISTRY, _OF_REGISTRY))
        for name in names
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
