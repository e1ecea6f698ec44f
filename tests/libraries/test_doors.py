"""Frameworks that distribute by themselves find the ranks that the launcher started, and torch as it was."""

import pytest
from libraries.transformers_habits import tiny_bert, tiny_gpt2  # noqa: F401 — named by the scripts

BEFORE = """
import builtins, io, os, subprocess, sys
import ddp_patch, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from libraries.transformers_habits import Texts, padded, tiny_bert, tiny_gpt2

OWNERS = [builtins, io, os, subprocess, torch, torch.Tensor, nn.Module, nn.functional, nn.DataParallel, DataLoader,
          torch.autograd, torch.cuda, torch.serialization, torch.random, dist, torch.distributed.distributed_c10d]
def names():
    return {(owner, name): value for owner in OWNERS for name, value in vars(owner).items()}
ddp_patch.disable()
torchs = names()
ddp_patch.enable()
patched = [place for place, value in names().items() if value is not torchs.get(place)]
assert len(patched) > 100, patched
torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4), torch.randint(0, 3, (24,)))
"""
AFTER = """
# Lightning itself puts a function on top of torch.compile.
now = {**names(), (torch, "compile"): torchs[torch, "compile"]}
assert [place for place in patched if now.get(place) is not torchs.get(place)] == []
assert not ddp_patch.state.State.session
count = torch.ones(1)
dist.all_reduce(count)
sys.stdout.write(f"{dist.get_rank()} of {count.item():.0f}, {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n")
dist.destroy_process_group()
"""
TRAINER = """
from transformers import BertForSequenceClassification, Trainer, TrainingArguments
arguments = TrainingArguments("out", use_cpu=True, num_train_epochs=1, per_device_train_batch_size=4, report_to="none",
                              logging_steps=1, save_steps=2, disable_tqdm=True, ddp_backend="gloo")
trainer = Trainer(BertForSequenceClassification(tiny_bert(num_labels=3)), arguments, data_collator=padded,
                  train_dataset=Texts(24), eval_dataset=Texts(8))
trainer.train()
trainer.evaluate()
trainer.save_model("final")
assert type(trainer.model_wrapped) is nn.parallel.DistributedDataParallel
assert (arguments.world_size, arguments.process_index) == (2, ddp_patch.rank())
assert trainer.state.global_step == 3  # of 8 rows each
"""
SFT = """
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
words = "<pad> <s> </s> the a cat dog sat ran on under mat tree".split()
tokens = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
texts = Dataset.from_dict({"text": ["the cat sat on the mat", "a dog ran under a tree"] * 8})
arguments = SFTConfig("out", use_cpu=True, max_steps=2, per_device_train_batch_size=4, report_to="none", bf16=False,
                      disable_tqdm=True, ddp_backend="gloo", max_length=16)
trainer = SFTTrainer(GPT2LMHeadModel(tiny_gpt2()), arguments, train_dataset=texts, processing_class=tokenizer)
trainer.train()
assert type(trainer.model_wrapped) is nn.parallel.DistributedDataParallel
assert arguments.world_size == 2
"""
LIGHTNING = """
import {name} as L
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
    def training_step(self, batch, index):
        assert type(self.trainer.strategy.model) is nn.parallel.DistributedDataParallel
        loss = nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
trainer = L.Trainer(accelerator="cpu", devices=2, max_epochs=1, enable_progress_bar=False, log_every_n_steps=1)
trainer.fit(Net(), DataLoader(data, 4))
assert (trainer.world_size, trainer.global_rank, trainer.global_step) == (2, ddp_patch.rank(), 3)
if not dist.is_initialized():  # Lightning destroys its group
    dist.init_process_group("gloo")
"""
FABRIC = """
from {name} import Fabric
fabric = Fabric(accelerator="cpu", devices=2)
fabric.launch()
model = nn.Linear(4, 3)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = fabric.setup_dataloaders(DataLoader(data, 4))
assert (fabric.world_size, fabric.global_rank, len(loader)) == (2, ddp_patch.rank(), 3)
for x, y in loader:
    fabric.backward(nn.functional.cross_entropy(model(x), y))
    optimizer.step()
    optimizer.zero_grad()
assert type(model._forward_module) is nn.parallel.DistributedDataParallel
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = nn.Linear(4, 3)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, 4))
assert type(model) is nn.parallel.DistributedDataParallel
assert (accelerator.num_processes, accelerator.process_index, len(loader)) == (2, ddp_patch.rank(), 3)
for x, y in loader:
    accelerator.backward(nn.functional.cross_entropy(model(x), y))
    optimizer.step()
    optimizer.zero_grad()
"""
FULLY_SHARD = """
from torch.distributed.fsdp import fully_shard
mesh = dist.init_device_mesh("cpu", (2,))
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
assert type(model[0].weight).__name__ == "DTensor"
"""
TENSOR_PARALLEL = """
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
model = parallelize_module(nn.Linear(4, 6), dist.init_device_mesh("cpu", (2,)), ColwiseParallel())
assert model.weight.to_local().shape == (3, 4)
model(torch.ones(2, 4)).sum().backward()
"""
DEEPSPEED = """
import deepspeed
deepspeed.ops.__compatible_ops__.clear()  # or it would compile a collective for minutes
model = nn.Linear(4, 3)
engine, optimizer, loader, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), training_data=data, dist_init_required=True,
    config={"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
)
assert len(loader) == 3
for x, y in loader:
    engine.backward(nn.functional.cross_entropy(engine(x), y))
    engine.step()
"""
DOORS = {
    "transformers.TrainingArguments": TRAINER,
    "trl.SFTConfig": SFT,
    "lightning.Trainer": LIGHTNING.format(name="lightning"),
    "pytorch_lightning.Trainer": LIGHTNING.format(name="pytorch_lightning"),
    "lightning.Fabric": FABRIC.format(name="lightning.fabric"),
    "lightning_fabric.Fabric": FABRIC.format(name="lightning_fabric"),
    "accelerate.Accelerator": ACCELERATE,
    "torch.distributed.fsdp.fully_shard": FULLY_SHARD,
    "torch.distributed.init_device_mesh": TENSOR_PARALLEL,
    "deepspeed.initialize": DEEPSPEED,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_framework_distributes_by_itself(ranks, tmp_path, door):
    script = tmp_path / "script.py"
    script.write_text(BEFORE + DOORS[door] + AFTER)
    launched = {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0", "ROLE_RANK": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}
    outcome = ranks.script(script, 2, env=launched, timeout=200).ok()
    for rank, said in enumerate(outcome.stdout):
        assert said.splitlines()[-1] == f"{rank} of 2, {rank} of 2"
    said = "".join(outcome.stderr)
    assert said.count("so it distributes itself: ddp_patch stands aside.") == 1
    assert f"script.py:{1 + script.read_text()[: script.read_text().index(line_of(door))].count(chr(10))}: " in said


def line_of(door):
    """The line that opens it."""
    return {
        "transformers.TrainingArguments": "arguments = TrainingArguments(",
        "trl.SFTConfig": "arguments = SFTConfig(",
        "torch.distributed.fsdp.fully_shard": "mesh = dist.init",
        "torch.distributed.init_device_mesh": "model = parallelize",
        "deepspeed.initialize": "engine, optimizer",
    }.get(door, f"= {door.rpartition('.')[2] if 'Trainer' not in door else 'L.Trainer'}(")
