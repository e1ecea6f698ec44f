"""From the script of one process to one that torchrun or ``accelerate launch`` starts: rule after rule."""

from __future__ import annotations

from pathlib import Path

from .dialects import DIALECTS
from .line import is_entry
from .plan import Plan
from .rules import (
    backward,
    checkpoints,
    devices,
    draws,
    effects,
    gathered,
    learning_rate,
    lengths,
    loaders,
    loose,
    models,
    orders,
    reads,
    seeds,
    setup,
    shares,
    tops,
    whole,
)
from .script import Script, Todo

_MASTER = 'master_process = os.environ.get("RANK", "0") == "0"  # this one prints, logs and saves'
ELSEWHERE = (
    "the training is in another file, so nothing is shared among ranks here: wrap the model, and give the loader a "
    "rank's rows"
)


def distribute(
    text: str, target: str, name: str, per_device: bool = False, folder: Path | None = None
) -> tuple[str, list[Todo]]:
    """Write out for DDP or Accelerate what one process does; gives the text, and what a person has to decide."""
    dialect = DIALECTS[target]
    plan = Plan(Script(text), dialect, per_device, folder)
    if not plan.backwards:
        return _elsewhere(plan)
    models.apply(plan)
    devices.apply(plan)
    loaders.apply(plan)
    learning_rate.apply(plan)
    loose.apply(plan)
    backward.apply(plan)
    early = gathered.apply(plan)
    whole.apply(plan)
    reads.apply(plan, early)
    lengths.apply(plan)
    checkpoints.apply(plan)
    seeds.apply(plan)
    draws.apply(plan)
    orders.apply(plan)
    if not plan.wraps and not any("nothing is wrapped" in todo.reason for todo in plan.script.todos):
        plan.script.todo(plan.backwards[0], "no model was found to wrap: wrap what this trains, where it is made")
    tops_of = setup.apply(plan, name)
    script = _again(plan.script)
    if not per_device:
        shares.apply(plan, script)
        script = _again(script)
    effects.apply(plan, script)
    script = _again(script)
    tops.apply(plan, script, tops_of)
    return script.result(), script.todos


def quiet(text: str, target: str, reads: bool, folder: Path) -> str:
    """Let one rank write what the functions of a module write, which a script calls that trains on several."""
    dialect = DIALECTS[target]
    plan = Plan(Script(text), dialect, folder=folder)
    checkpoints.apply(plan, reads, loads=False)
    script = _again(plan.script)
    effects.apply(plan, script)
    if script.result() == text:
        return text
    script = _again(script)
    top = [_MASTER] if dialect.name == "ddp" else list(dialect.start)
    tops.apply(plan, script, [top])
    return script.result()


def _again(script: Script) -> Script:
    """Read what was written, to change more of it."""
    again = Script(script.result(), script.todos)
    for part, before in zip(again.parts, script.parts, strict=True):
        part.unit = before.unit
    return again


def _elsewhere(plan: Plan) -> tuple[str, list[Todo]]:
    """Say of a script that makes an optimizer and leaves the training to others that nothing is shared."""
    script = plan.script
    alone = [c for c in plan.optimizers if not plan.bindings.class_of(c)]
    if not alone and script.tree.body and ELSEWHERE not in script.text and is_entry(script, plan.folder):
        script.todo(script.tree.body[-1], ELSEWHERE)
    if alone and is_entry(script, plan.folder) and ELSEWHERE not in script.text:
        script.todo(alone[0], ELSEWHERE)
    return script.result(), script.todos
