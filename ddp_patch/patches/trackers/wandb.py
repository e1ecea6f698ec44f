"""wandb: one run per job. Rank 0 has it; the others have a disabled one, of the same id, configuration and step.

Every rank gives what is logged, so that batches are gathered by all; rank 0 logs it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import wrapt

from ...effects.shared import SharedObjects, plain
from ...errors import LaunchError
from ...patch import Args, Kwargs, Patch
from ...session import Session
from ...structure import map_leaves

_FACTS = (
    *("id", "name", "project", "entity", "group", "job_type", "dir", "url", "path", "start_time", "tags", "notes"),
    *("resumed", "disabled", "offline", "starting_step", "sweep_id", "sweep_url", "project_url"),
)
# What a run is asked for, or tells a server and comes back with.
_ASKED = (
    *("use_artifact", "use_model", "log_artifact", "upsert_artifact", "finish_artifact", "link_artifact", "log_model"),
    *("link_model", "restore", "status", "alert", "save"),
)


def _init(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if session.rank_zero.is_silent():  # rank 0's thread has the run
        with session.rank_zero.alone():
            return wrapped(*args, **{**kwargs, "mode": "disabled"})
    if not session.rank_zero.in_lockstep():
        return wrapped(*args, **kwargs)
    runs: list[Any] = []

    def act() -> dict[str, Any]:
        runs.append(wrapped(*args, **kwargs))
        # An offline run warns whoever asks where it can be seen.
        asked = [name for name in _FACTS if not (name.endswith("url") and getattr(runs[0], "offline", False))]
        values = {**dict.fromkeys(_FACTS), **{name: getattr(runs[0], name, None) for name in asked}}
        return {**values, "config": dict(runs[0].config), "has_summary": _has_summary(runs[0])}

    facts = session.rank_zero.barrier_call("wandb.init", act)
    has_summary = facts.pop("has_summary")
    if session.rank_zero.is_leader:
        run = runs[0]
        become(session, run, {})
    else:
        with session.rank_zero.alone():
            run = wrapped(*args, **{**kwargs, "mode": "disabled"})
        run.config.update(facts.pop("config"), allow_val_change=True)
        # A disabled run has methods of its own (wandb 0.31).
        vars(run)["log"] = wrapt.FunctionWrapper(run.log, functools.partial(_log, session))
        properties = {name: property(functools.partial(_fact, fact)) for name, fact in facts.items()}
        sdk: Any = sys.modules["wandb.sdk"]
        history: Any = importlib.import_module("wandb.integration.torch.wandb_torch")
        hooks = {"watch": sdk._watch, "unwatch": sdk._unwatch, "_torch": history.TorchHistory(), "_log": _nowhere}
        become(session, run, {**properties, **hooks})
        if has_summary:
            package: Any = sys.modules["wandb"]
            before, run.summary = run.summary, _summaries().Summary(dict)
            package.summary = run.summary if package.summary is before else package.summary
    if has_summary:
        _share(session, run.summary)
    for name in (*_ASKED, "log", "watch", "unwatch"):
        if hasattr(sys.modules["wandb"], name):
            setattr(sys.modules["wandb"], name, getattr(run, name))
    return run


def become(session: Session, run: Any, namespace: dict[str, Any]) -> None:
    """Give a run methods that all ranks come to."""
    kind = type(run)
    asked = {name: _asking(session.shared(), kind, name) for name in _ASKED if hasattr(kind, name)}
    step = property(lambda run: session.shared().made("Run.step", lambda: kind.step.fget(run), (), {}))
    run.__class__ = type(kind.__name__, (kind,), {**namespace, **asked, "step": step, "__module__": kind.__module__})


def _summaries() -> Any:
    return sys.modules["wandb.sdk.wandb_summary"]


def _has_summary(run: Any) -> bool:
    return isinstance(run.summary, _summaries().Summary)  # not one of a disabled run, which all ranks have alike


def _share(session: Session, summary: Any) -> None:
    """Have a summary say what rank 0's says, and take what it is told as rank 0's does."""
    kind, snapshots = type(summary), []

    def asking(name: str) -> Any:
        real = getattr(kind, name)

        @functools.wraps(real)
        def ask(summary: Any, *args: Any, **kwargs: Any) -> Any:
            whole = session.shared().made("Run.summary", functools.partial(kind._as_dict, summary), (), {})
            snapshots.append(whole or {})
            try:
                return real(summary, *args, **kwargs)
            finally:
                snapshots.pop()

        return ask

    def as_dict(summary: Any) -> Any:
        now = snapshots[-1:]
        return now[0] if now else kind._as_dict(summary)

    def update(summary: Any, d: Any) -> None:
        values = map_leaves(plain, d)
        if not session.rank_zero.mutes(values):
            kind.update(summary, values)

    asked = {name: asking(name) for name in ("get", "keys", "__getitem__", "__getattr__")}
    twin = type(kind.__name__, (kind,), {**asked, "_as_dict": as_dict, "update": update, "__module__": kind.__module__})
    object.__setattr__(summary, "__class__", twin)  # its own would be an entry


def _log(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    args, kwargs = map_leaves(plain, (args, kwargs))
    if session.rank_zero.mutes((args, kwargs)):
        return None
    return wrapped(*args, **kwargs)


def _agent(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if not session.rank_zero.in_lockstep():
        return wrapped(*args, **kwargs)
    raise LaunchError(
        "wandb.agent would give every rank hyperparameters of its own. Let the agent start the ranks: write "
        "`command: [accelerate, launch, ${program}, ${args}]` into the sweep's configuration, and run "
        "`wandb agent SWEEP_ID`."
    )


def _asking(shared: SharedObjects, kind: type, name: str) -> Any:
    real = getattr(kind, name)

    @functools.wraps(real)
    def ask(run: Any, *args: Any, **kwargs: Any) -> Any:
        return shared.made(f"Run.{name}", functools.partial(real, run), args, kwargs)

    return ask


def _fact(fact: Any, run: Any) -> Any:
    return fact


def _nowhere(*args: Any, **kwargs: Any) -> None:
    """Where what the hooks of ``watch`` find goes on the other ranks."""


_ONE_RUN = (
    "one run; the other ranks' has its `id`, `name`, `config`, `step`, `summary`, ...; what is asked of it, rank 0 asks"
)

PATCHES = (
    Patch("wandb.sdk.wandb_init", "init", _init, _ONE_RUN, also=("wandb:init",), when_imported="wandb"),
    Patch("wandb.sdk.wandb_run", "Run.log", _log, "rank 0 logs", when_imported="wandb"),
    Patch(
        "wandb.wandb_agent",
        "agent",
        _agent,
        "refused, with what to write into the sweep's configuration",
        also=("wandb:agent",),
        when_imported="wandb",
    ),
)
