"""From the script of one process to one that torchrun or ``accelerate launch`` starts: rule after rule."""

from __future__ import annotations

from .dialects import DIALECTS
from .plan import Plan
from .rules import (
    backward,
    checkpoints,
    devices,
    effects,
    gathered,
    learning_rate,
    lengths,
    loaders,
    models,
    orders,
    reads,
    seeds,
    setup,
)
from .script import Script, Todo


def distribute(text: str, target: str, name: str, per_device: bool = False) -> tuple[str, list[Todo]]:
    """Write out for DDP or Accelerate what one process does; gives the text, and what a person has to decide."""
    dialect = DIALECTS[target]
    plan = Plan(Script(text), dialect, per_device)
    if not plan.backwards:
        return text, []
    models.apply(plan)
    devices.apply(plan)
    loaders.apply(plan)
    learning_rate.apply(plan)
    backward.apply(plan)
    early = gathered.apply(plan)
    reads.apply(plan, early)
    lengths.apply(plan)
    checkpoints.apply(plan)
    seeds.apply(plan)
    orders.apply(plan)
    setup.apply(plan, name)
    script = Script(plan.script.result(), plan.script.todos)
    script.unit = plan.script.unit
    effects.apply(script, dialect)
    return script.result(), script.todos
