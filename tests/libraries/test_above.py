"""Libraries that were imported above the line, when the launcher's variables were still there."""

SCRIPT = """
import ddp_patch
ddp_patch.disable()
import torch
import ignite.distributed as idist, lightning, mmengine.dist, monai, pytorch_lightning, torchmetrics, webdataset
from ignite.handlers import DiskSaver
from lightning.fabric.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, SumMetric
from transformers import BertModel
from libraries.transformers_habits import tiny_bert
ddp_patch.enable()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
logger, mean, count = CSVLogger("logs"), MeanMetric(), SumMetric()
for step, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(22, 4), torch.randint(0, 3, (22,))), 8)):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logger.log_metrics({"loss": loss.item()}, step)
    mean.update(loss.item(), len(x))
    count.update(len(x))
logger.save()
@rank_zero_only
def note():
    with open("note.txt", "w") as file:
        file.write("noted")
note()
DiskSaver("models")({"model": model.state_dict()}, "a.pt")
BertModel(tiny_bert()).save_pretrained("bert")
if mmengine.dist.is_main_process() and idist.get_rank() == 0:
    print(f"{mean.compute():.9f}", count.compute().item(), rank_zero_only.rank, idist.get_world_size())
"""


def test_libraries_imported_above_the_line_see_one_process(ranks, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    alone = ranks.script(script, 1, timeout=200).ok()
    said = alone.stdout[0].splitlines()[-1]  # deepspeed notes the time when Lightning looks for it
    assert said.split()[1:] == ["22.0", "0", "1"]
    for nproc in (2, 3):
        outcome = ranks.script(script, nproc, timeout=300).ok()
        assert outcome.stdout[0].splitlines()[-1] == said
        assert outcome.stdout[1:] == [""] * (nproc - 1)
        assert outcome.files() == alone.files()
        assert "logs/lightning_logs/version_0/metrics.csv" in alone.files()
