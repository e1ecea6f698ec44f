"""Each process starts a run of its own: N runs in wandb, N event files in TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule

_TRACKERS = (
    "torch.utils.tensorboard.SummaryWriter",
    "tensorboardX.SummaryWriter",
    "wandb.init",
    "mlflow.start_run",
    "visdom.Visdom",
    "comet_ml.Experiment",
    "clearml.Task.init",
    "neptune.init_run",
    "neptune.init",
    "tensorboard_logger.configure",
)


def find(facts: Facts) -> Iterator[Finding]:
    """Find trackers that are started under no test on the rank."""
    for call in facts.calls(*_TRACKERS):
        if facts.is_run(call) and not facts.on_some_ranks(call) and not _is_of_rank(facts, call):
            yield Finding(
                call,
                f"{brief(facts, call)} is under no test on the rank",
                "every process starts a run of its own and logs to it",
                "Write it, and what logs to it, under if dist.get_rank() == 0:",
            )


def _is_of_rank(facts: Facts, call: cst.Call) -> bool:
    """A folder for each: ``SummaryWriter(f"runs/{rank}")``."""
    names = [name.value for name in facts.tree.within(call, cst.Name)]
    variables = [facts.scopes.find(name, facts.scopes.of(call)) for name in names]
    made = [facts.code(value.node) for variable in variables if variable is not None for value in variable.values]
    return any("rank" in text.lower() for text in (*names, *made))


RULE = Rule(
    "DDP132", "tracker-on-every-rank", "A tracker is started under no test on the rank", find, of_plain_parts=True
)
