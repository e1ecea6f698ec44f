"""Each process starts a run of its own: N runs in wandb, N event files in TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..own_files import is_of_rank
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
    """Find trackers that are started under no test on the rank, other than in a folder for each."""
    for call in facts.calls(*_TRACKERS):
        named = [argument.value for argument in call.args]
        if facts.is_run(call) and not facts.on_some_ranks(call) and not is_of_rank(facts, *named):
            yield Finding(
                call,
                f"{brief(facts, call)} is under no test on the rank",
                "every process starts a run of its own and logs to it",
                "Write it, and what logs to it, under if dist.get_rank() == 0:",
            )


RULE = Rule(
    "DDP132", "tracker-on-every-rank", "A tracker is started under no test on the rank", find, of_plain_parts=True
)
