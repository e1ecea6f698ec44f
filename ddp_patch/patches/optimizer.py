"""torch.optim.Optimizer: what it trains tells where the model is.

Steps are counted by the global hook: wrapping ``Optimizer.step`` would run for none of torch's own optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..patch import Args, Kwargs, Patch
from ..session import Session


def _add_param_group(session: Session, wrapped: Any, instance: Optimizer, args: Args, kwargs: Kwargs) -> None:
    wrapped(*args, **kwargs)
    session.adopt(instance)


def count_steps(session: Session) -> list[Callable[[], None]]:
    """Register the step hooks; returns the functions that remove them."""

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        has_closure = any(value is not None for value in (*args[1:], *kwargs.values()))
        is_outermost = session.stepping.begins(optimizer)
        session.replicas.backwards.before_step(optimizer, has_closure)
        if session.parameter_check is not None:
            session.parameter_check.before_step(optimizer, session.stepping.around(optimizer))
        if session.rates.are_scaled:
            session.rates.before(optimizer, session.stepping.around(optimizer))
        if is_outermost and not has_closure:  # which runs forwards and backwards
            session.ledger.pace.steps()
        return session.rates.with_closure(optimizer, args, kwargs) if has_closure else None

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if session.rates.are_scaled:
            session.rates.after(optimizer, session.stepping.around(optimizer))
        session.stepped(optimizer, session.stepping.ended(optimizer))

    return [register_optimizer_step_pre_hook(before).remove, register_optimizer_step_post_hook(after).remove]


PATCHES = (
    Patch("torch.optim.optimizer", "Optimizer.add_param_group", _add_param_group, "tells which parameters are trained"),
)
