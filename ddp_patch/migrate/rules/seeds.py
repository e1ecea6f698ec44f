"""Random numbers: alike on all ranks while the model and the data are made, each rank's own for its rows."""

from __future__ import annotations

from ..plan import Plan
from ..script import dotted, tail

_SHUFFLES = {"randperm", "permutation", "shuffle", "sample", "choice", "choices", "random_split"}
_MAKES_DATA = {
    "random_split",
    "randperm",
    "permutation",
    "shuffle",
    "train_test_split",
    "rand",
    "randn",
    "randint",
    "normal",
}


def apply(plan: Plan) -> None:
    """Give each rank draws of its own once the models are wrapped; ``unseeded`` scripts are seeded in the setup."""
    if not plan.wraps or not is_seeded(plan):
        return
    if not any(plan.trains(loop) for loop in plan.flow.loader_loops):
        return  # all ranks draw the same batches
    calls = [c for c in plan.script.calls() if tail(c) in _SHUFFLES and _is_random(dotted(c.func))]
    if any(plan.loop_of(c) is None and any(plan.trains(f) for f in [plan.script.function(c)] if f) for c in calls):
        return  # the script draws an order of its own while it trains, which must be alike
    _, lines = plan.wraps[-1]
    rank = plan.dialect.rank
    lines.append(f"torch.manual_seed(torch.initial_seed() + 1 + {rank})  # dropout and augmentation: each rank its own")
    for name, module in (("np.random.seed", "numpy"), ("random.seed", "random")):
        seeded = [c for c in plan.script.calls() if dotted(c.func) == name and c.args]
        if seeded and module:
            lines.append(f"{name}(torch.initial_seed() % 2**32)")


def is_seeded(plan: Plan) -> bool:
    """Tell whether the script seeds torch."""
    return any(
        tail(c) in ("manual_seed", "seed_everything", "set_seed", "manual_seed_all") for c in plan.script.calls()
    )


def needs_seed(plan: Plan) -> bool:
    """Tell whether a script that seeds nothing draws what must be alike on all ranks: a split, an order, its data."""
    if is_seeded(plan):
        return False
    return any(
        tail(c) in _MAKES_DATA
        and _is_random(dotted(c.func))
        and plan.loop_of(c) is None
        and not plan.bindings.class_of(c)
        for c in plan.script.calls()
    )


def _is_random(name: str) -> bool:
    return name.split(".")[0] in ("torch", "np", "numpy", "random") or name in _SHUFFLES | {"train_test_split"}
