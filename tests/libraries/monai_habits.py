"""MONAI: networks, losses, metrics, savers and its engines' parts."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def volumes(rows=9):
    return TensorDataset(torch.rand(rows, 1, 8, 8), (torch.rand(rows, 1, 8, 8) > 0.5).double())


def segments():
    """The loop of MONAI's tutorials: U-Net, Dice loss, sliding windows, the best model saved."""
    from monai.inferers import sliding_window_inference
    from monai.losses import DiceLoss
    from monai.metrics import DiceMetric
    from monai.networks.nets import UNet

    model = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8), strides=(2,), num_res_units=1).double()
    loss_function = DiceLoss(sigmoid=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    metric = DiceMetric(include_background=True, reduction="mean", get_not_nans=False)
    said, best = [], -1
    for epoch in range(2):
        model.train()
        for x, y in DataLoader(volumes(), batch_size=4, shuffle=True):
            optimizer.zero_grad()
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()
            said.append(loss.item())
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(volumes(5), batch_size=2):
                out = sliding_window_inference(x, (8, 8), 2, model)
                metric(y_pred=(out.sigmoid() > 0.5).double(), y=y)
            value = metric.aggregate().item()
            metric.reset()
        said.append(value)
        if value > best:
            best = value
            torch.save(model.state_dict(), "best_metric_model.pth")
        print(f"epoch {epoch + 1} loss {loss.item():.6f} dice {value:.6f} best {best:.6f}")
    return said


def losses():
    from monai.losses import DiceCELoss, DiceFocalLoss, FocalLoss, GeneralizedDiceLoss, SSIMLoss, TverskyLoss

    said = []
    for criterion in (
        DiceCELoss(sigmoid=True), DiceFocalLoss(sigmoid=True, batch=True), FocalLoss(), TverskyLoss(sigmoid=True),
        GeneralizedDiceLoss(sigmoid=True), SSIMLoss(spatial_dims=2, win_size=5),
    ):  # fmt: skip
        torch.manual_seed(0)
        model = torch.nn.Conv2d(1, 1, 3, padding=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(volumes(), batch_size=4):
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said


def metrics():
    from monai.metrics import (
        ConfusionMatrixMetric,
        CumulativeAverage,
        HausdorffDistanceMetric,
        MAEMetric,
        MeanIoU,
        MSEMetric,
        PSNRMetric,
        ROCAUCMetric,
    )
    from monai.networks import one_hot

    model = torch.nn.Conv2d(1, 1, 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counted = [
        MeanIoU(), HausdorffDistanceMetric(percentile=95), MSEMetric(), MAEMetric(), PSNRMetric(1.0),
        ConfusionMatrixMetric(metric_name=["sensitivity", "precision"]),
    ]  # fmt: skip
    area, average = ROCAUCMetric(), CumulativeAverage()
    said = []
    for x, y in DataLoader(volumes(), batch_size=4):
        out = model(x)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hard = (out.sigmoid() > 0.5).double()
        for metric in counted:
            metric(hard, y)
        area(out.detach().flatten(1).mean(1, keepdim=True), (y.flatten(1).mean(1, keepdim=True) > 0.5).double())
        average.append(loss.item(), count=len(x))
        said.append(one_hot(y, 2).sum().item())
    for metric in counted:
        value = metric.aggregate()
        said += [each.mean().item() for each in (value if isinstance(value, list) else [value])]
    return [*said, float(area.aggregate()), float(average.aggregate())]


def transformed_and_cached():
    from monai.data import CacheDataset, Dataset, decollate_batch, list_data_collate
    from monai.data import DataLoader as Loader
    from monai.transforms import Compose, EnsureChannelFirstd, EnsureTyped, RandFlipd, ScaleIntensityd
    from monai.utils import set_determinism

    set_determinism(seed=4)
    items = [{"image": torch.rand(8, 8).numpy(), "label": i % 2} for i in range(10)]
    steps = [EnsureChannelFirstd("image", channel_dim="no_channel"), ScaleIntensityd("image")]
    steps.append(EnsureTyped("image", dtype=torch.float64))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []
    for dataset in (Dataset(items, Compose(steps)), CacheDataset(items, Compose(steps), progress=False)):
        for batch in Loader(dataset, batch_size=4, shuffle=True, collate_fn=list_data_collate):
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said += [loss.item(), len(decollate_batch(batch)), type(batch["image"]).__name__]
    flipped = Compose([*steps, RandFlipd("image", prob=1.0, spatial_axis=0)])
    said.append(flipped(items[0])["image"].sum().item())
    set_determinism(seed=None)
    return said


def engines_and_savers():
    from monai.engines import SupervisedEvaluator, SupervisedTrainer
    from monai.handlers import CheckpointSaver, MeanDice, StatsHandler, ValidationHandler, from_engine
    from monai.losses import DiceLoss
    from monai.transforms import Activationsd, AsDiscreted, Compose

    def prepare(batch, device, non_blocking, **kwargs):
        return batch

    model = torch.nn.Conv2d(1, 1, 3, padding=1)
    after = Compose([Activationsd("pred", sigmoid=True), AsDiscreted("pred", threshold=0.5)])
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"), val_data_loader=DataLoader(volumes(5), 2), network=model, prepare_batch=prepare,
        postprocessing=after, key_val_metric={"dice": MeanDice(output_transform=from_engine(["pred", "label"]))},
        val_handlers=[CheckpointSaver("saved", {"net": model}, save_key_metric=True, key_metric_filename="best.pt")],
    )  # fmt: skip
    trainer = SupervisedTrainer(
        device=torch.device("cpu"), max_epochs=2, train_data_loader=DataLoader(volumes(), 4), network=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1), loss_function=DiceLoss(sigmoid=True), prepare_batch=prepare,
        train_handlers=[
            ValidationHandler(1, evaluator), StatsHandler(output_transform=from_engine(["loss"], first=True)),
            CheckpointSaver("saved", {"net": model}, save_final=True, final_filename="final.pt", save_interval=1),
        ],
    )  # fmt: skip
    trainer.run()
    return [evaluator.state.best_metric, evaluator.state.metrics["dice"], model.weight.sum().item()]


def quantized_and_read():
    """What asks torch.distributed by itself: the vector quantizer, CSV and metric savers."""
    from monai.data import CSVSaver
    from monai.handlers.utils import write_metrics_reports
    from monai.networks.layers import vector_quantizer as vq

    torch.set_default_dtype(torch.float32)  # it computes in float32
    codes = vq.EMAQuantizer(spatial_dims=2, num_embeddings=6, embedding_dim=1)
    layer = torch.nn.Conv2d(1, 1, 3, padding=1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    saver = CSVSaver("out", "predictions.csv", overwrite=True)
    said = []
    for x, _ in DataLoader(volumes(), 4):
        quantized, loss, indices = codes(layer(x))
        (quantized.mean() + loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        saver.save_batch(quantized.detach().flatten(1)[:, :3])
        said += [loss.item(), indices.sum().item(), codes.ema_cluster_size.sum().item()]
    saver.finalize()
    write_metrics_reports("out", ["a", "b"], {"loss": 0.5}, {"dice": torch.tensor([[0.1], [0.2]])}, summary_ops="*")
    return said


HABITS = [segments, losses, metrics, transformed_and_cached, engines_and_savers, quantized_and_read]
FLOAT32 = ["losses", "quantized_and_read"]  # FocalLoss and EMAQuantizer cast to it
