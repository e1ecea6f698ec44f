"""vector-quantize-pytorch, pytorch-metric-learning, fvcore, mmengine, webdataset: a few habits of each."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def points(rows=23):
    return DataLoader(TensorDataset(torch.randn(rows, 6), torch.randint(0, 4, (rows,))), 8, shuffle=True)


def quantized_codes():
    from vector_quantize_pytorch import VectorQuantize

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(6, 4), nn.Linear(4, 6)
            self.codes = VectorQuantize(dim=4, codebook_size=8, decay=0.8, commitment_weight=1.0)

        def forward(self, x):
            quantized, indices, commit = self.codes(self.encode(x).unsqueeze(1))
            return self.decode(quantized.squeeze(1)), indices, commit

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    said = []
    for _ in range(2):
        for x, _ in points():
            out, indices, commit = model(x)
            loss = nn.functional.mse_loss(out, x) + commit.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said += [loss.item(), indices.flatten().tolist()]
    torch.save(model.state_dict(), "net.pt")
    return said


def quantized_with_kmeans():
    """A codebook that starts from the first batch, and replaces codes that nobody uses."""
    from vector_quantize_pytorch import VectorQuantize

    codes = VectorQuantize(dim=6, codebook_size=5, kmeans_init=True, kmeans_iters=3, threshold_ema_dead_code=2)
    layer = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    said = []
    for x, _ in points(31):
        quantized, _, commit = codes(layer(x).unsqueeze(1))
        loss = nn.functional.mse_loss(quantized.squeeze(1), x) + commit.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), codes.codebook.sum().item(), torch.rand(()).item()]
    return said


def other_quantizers():
    from vector_quantize_pytorch import FSQ, LFQ, ResidualVQ

    said = []
    for make in (
        lambda: FSQ([4, 3, 3]),
        lambda: LFQ(codebook_size=8, dim=3),
        lambda: ResidualVQ(dim=3, num_quantizers=2, codebook_size=6),
    ):
        torch.manual_seed(0)
        layer, quantizer = nn.Linear(6, 3), make()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for x, _ in points():
            quantized, indices, *rest = quantizer(layer(x).unsqueeze(1))
            loss = quantized.pow(2).mean() + sum(part.sum() for part in rest if part.is_floating_point())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said += [loss.item(), indices.sum().item()]
    return said


def metric_losses():
    """Losses over pairs of the batch, with miners and reducers: their documentation's loop."""
    from pytorch_metric_learning import distances, losses, miners, reducers

    choices = [
        (losses.TripletMarginLoss(margin=0.2, distance=distances.CosineSimilarity(), reducer=reducers.ThresholdReducer(low=0)),
         miners.TripletMarginMiner(margin=0.2, distance=distances.CosineSimilarity(), type_of_triplets="semihard")),
        (losses.ContrastiveLoss(), None),
        (losses.NTXentLoss(temperature=0.1), miners.MultiSimilarityMiner()),
        (losses.SupConLoss(), None),
        (losses.MultiSimilarityLoss(), miners.BatchHardMiner()),
    ]  # fmt: skip
    said = []
    for criterion, miner in choices:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(2):
            for x, y in points():
                embeddings = model(x)
                loss = criterion(embeddings, y, miner(embeddings, y)) if miner else criterion(embeddings, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                said.append(loss.item())
    return said


def losses_with_weights():
    from pytorch_metric_learning.losses import ArcFaceLoss, CrossBatchMemory, NTXentLoss, ProxyAnchorLoss

    said = []
    for criterion in (ArcFaceLoss(4, 5), ProxyAnchorLoss(4, 5), CrossBatchMemory(NTXentLoss(), 5, memory_size=16)):
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        parameters = [{"params": model.parameters()}]
        if list(criterion.parameters()):
            parameters.append({"params": criterion.parameters(), "lr": 0.1})
        optimizer = torch.optim.SGD(parameters, lr=0.01)
        for x, y in points():
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said


def samples_by_class():
    from pytorch_metric_learning import samplers
    from pytorch_metric_learning.distances import CosineSimilarity

    data = TensorDataset(torch.randn(24, 6), torch.arange(24) % 4)
    sampler = samplers.MPerClassSampler(data.tensors[1], m=2, batch_size=8, length_before_new_iter=24)
    model = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    said = []
    for x, y in DataLoader(data, batch_size=8, sampler=sampler):
        loss = (model(x) @ model(x).T)[y[:, None] == y[None]].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), y.tolist()]
    with torch.no_grad():
        embeddings = CosineSimilarity()(model(data.tensors[0]))
    return [*said, embeddings.sum().item()]


def fvcore_helpers():
    from fvcore.common.checkpoint import Checkpointer, PeriodicCheckpointer
    from fvcore.common.param_scheduler import CosineParamScheduler
    from fvcore.nn import FlopCountAnalysis, parameter_count, parameter_count_table, sigmoid_focal_loss_jit
    from iopath.common.file_io import g_pathmgr

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checkpointer = Checkpointer(model, save_dir=".", optimizer=optimizer)
    periodic = PeriodicCheckpointer(checkpointer, period=2, max_iter=6, max_to_keep=2)
    schedule = CosineParamScheduler(0.1, 0.01)
    said = [parameter_count(model)[""], FlopCountAnalysis(model, torch.ones(1, 6)).total()]
    print(parameter_count_table(model))
    step = 0
    for _ in range(2):
        for x, y in points():
            for group in optimizer.param_groups:
                group["lr"] = schedule(step / 6)
            out = model(x).squeeze(1)
            loss = sigmoid_focal_loss_jit(out, (y > 1).double(), 0.25, 2.0, "mean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            periodic.step(step, loss=loss.item())
            said.append(loss.item())
            step += 1
    rest = checkpointer.resume_or_load("", resume=True)
    with g_pathmgr.open("note.txt", "w") as file:
        file.write(f"{rest['iteration']}")
    return [*said, rest["iteration"], checkpointer.get_checkpoint_file(), checkpointer.has_checkpoint()]


def mmengine_helpers():
    from mmengine import Config, MessageHub, ProgressBar, mkdir_or_exist
    from mmengine.dataset import DefaultSampler
    from mmengine.dist import get_dist_info, is_main_process, master_only
    from mmengine.logging import HistoryBuffer
    from mmengine.runner import load_checkpoint, save_checkpoint

    config = Config({"model": {"width": 8}, "rate": 0.1})
    config.dump("config.json")
    data = TensorDataset(torch.randn(23, 6), torch.randint(0, 3, (23,)))
    model = nn.Sequential(nn.Linear(6, config.model.width), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.rate)
    loader = DataLoader(data, batch_size=8, sampler=DefaultSampler(data, shuffle=True, seed=3))
    history, hub = HistoryBuffer(), MessageHub.get_instance("mine")
    said = [*get_dist_info(), is_main_process(), len(loader)]
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.update(loss.item())
        hub.update_scalar("loss", loss.item())
        said.append(loss.item())

    @master_only
    def save():
        mkdir_or_exist("work/deep")
        save_checkpoint({"state_dict": model.state_dict(), "meta": {"epoch": 1}}, "work/deep/epoch_1.pth")

    save()
    loaded = load_checkpoint(model, "work/deep/epoch_1.pth", map_location="cpu")
    bar = ProgressBar(3, bar_width=10, file=io.StringIO())
    bar.update()
    return [*said, float(history.mean()), float(hub.get_scalar("loss").current()), loaded["meta"]["epoch"]]


def mmengine_runner():
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Net(BaseModel):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, inputs, labels, mode="tensor"):
            out = self.layer(inputs)
            if mode == "loss":
                return {"loss": nn.functional.cross_entropy(out, labels)}
            return out

    data = TensorDataset(torch.randn(24, 6), torch.randint(0, 4, (24,)))
    model = Net()
    runner = Runner(
        model=model, work_dir="work", train_dataloader=DataLoader(data, batch_size=8),
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}}, train_cfg={"by_epoch": True, "max_epochs": 2},
        log_level="ERROR", experiment_name="mine", default_scope=None,
        default_hooks={"logger": None, "checkpoint": {"type": "CheckpointHook", "interval": 1}},
        custom_hooks=[], visualizer={"type": "Visualizer", "name": "none"},
    )  # fmt: skip
    runner.train()
    saved = torch.load("work/epoch_2.pth", weights_only=False)
    left = sorted(path.name for path in Path("work").glob("*.pth"))
    shutil.rmtree("work")  # the time is in everything
    return [saved["state_dict"]["layer.weight"].tolist(), left, runner.rank, runner.world_size, runner.iter]


def write_shards(count=2, rows=11):
    generator = torch.Generator().manual_seed(0)
    for shard in range(count):
        with tarfile.open(f"shard-{shard:03d}.tar", "w") as archive:
            for row in range(rows):
                values = torch.randn(6, generator=generator).tolist()
                for suffix, text in (("json", json.dumps(values)), ("cls", str(row % 4))):
                    content = text.encode()
                    info = tarfile.TarInfo(f"{shard}{row:04d}.{suffix}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))


def as_tensors(sample):
    values, label = sample
    return torch.tensor(values), label


def webdataset_stream():
    import webdataset as wds

    write_shards()
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []
    for epoch in range(2):
        dataset = (
            wds.WebDataset("shard-{000..001}.tar", shardshuffle=False).decode().to_tuple("json", "cls").map(as_tensors)
        )
        for x, y in DataLoader(dataset.batched(8), batch_size=None, num_workers=epoch):
            loss = nn.functional.cross_entropy(model(x), torch.as_tensor(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said


def webdataset_loader():
    import webdataset as wds

    write_shards(3)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = wds.DataPipeline(
        wds.SimpleShardList("shard-{000..002}.tar"), wds.split_by_node, wds.split_by_worker, wds.tarfile_to_samples(),
        wds.shuffle(10, rng=__import__("random").Random(3)), wds.decode(), wds.to_tuple("json", "cls"), wds.map(as_tensors), wds.batched(5),
    )  # fmt: skip
    said = []
    for x, y in wds.WebLoader(dataset, batch_size=None, num_workers=0).unbatched().batched(8):
        loss = nn.functional.cross_entropy(model(x), torch.as_tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    with wds.TarWriter("out.tar", mtime=0) as sink:
        for index in range(3):
            sink.write({"__key__": f"{index:03d}", "json": {"index": index}, "cls": index})
    with wds.ShardWriter("part-%02d.tar", maxcount=2, verbose=0, mtime=0) as sink:
        for index in range(3):
            sink.write({"__key__": f"{index:03d}", "txt": str(index)})
    return said


HABITS = [
    quantized_codes, quantized_with_kmeans, other_quantizers, metric_losses, losses_with_weights,
    samples_by_class, fvcore_helpers, mmengine_helpers, mmengine_runner, webdataset_stream, webdataset_loader,
]  # fmt: skip
FLOAT32 = ["quantized_with_kmeans", "other_quantizers"]  # VectorQuantize casts to it (1.32)
