"""Lightning on one device: its loggers by themselves, Fabric's and the Trainer's loops."""

import argparse
import logging
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def data(rows=22):
    return TensorDataset(torch.randn(rows, 4), torch.randint(0, 3, (rows,)))


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def csv_logger():
    from lightning.pytorch.loggers import CSVLogger

    model, logger = net(), CSVLogger("logs", name="net", flush_logs_every_n_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logger.log_hyperparams({"lr": 0.1, "layers": [4, 8, 3]})
    step = 0
    for epoch in range(2):
        for x, y in DataLoader(data(), 8):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            logger.log_metrics({"loss": loss.item()}, step)
            step += 1
        logger.log_metrics({"epoch": epoch, "norm": model[0].weight.norm().item()}, step)
        logger.save()
    logger.finalize("success")
    return [logger.log_dir, logger.version, sorted(os.listdir(logger.log_dir))]


def board_loggers():
    from lightning.fabric.loggers import CSVLogger, TensorBoardLogger

    board, table = TensorBoardLogger("board", name="run"), CSVLogger("table")
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    board.log_hyperparams(argparse.Namespace(lr=0.1))
    for step, (x, y) in enumerate(DataLoader(data(), 8)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for logger in (board, table):
            logger.log_metrics({"loss": loss.item()}, step=step)
    board.experiment.add_scalar("mine", 1.5, 3)
    for logger in (board, table):
        logger.finalize("success")
    return [board.log_dir, table.log_dir]


def older_names():
    """``pytorch_lightning`` and what it has for any script."""
    import pytorch_lightning as pl
    from pytorch_lightning.loggers import TensorBoardLogger
    from pytorch_lightning.utilities import rank_zero_info, rank_zero_only

    logging.getLogger("lightning_utilities.core.rank_zero").setLevel(logging.INFO)
    pl.seed_everything(5)
    first = torch.rand(()).item()
    logger = TensorBoardLogger("board", version="first")
    logger.log_hyperparams({"lr": 0.1}, {"score": 0.5})

    @rank_zero_only
    def note(text):
        with open("note.txt", "w") as file:
            file.write(text)
        return text

    rank_zero_info("said once")
    noted = note("written once")
    logger.save()
    logger.finalize("success")
    return [first, noted, rank_zero_only.rank, torch.rand(()).item()]


def fabric_on_one_device():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    fabric.seed_everything(3)
    said = [fabric.world_size, fabric.global_rank, fabric.is_global_zero, str(fabric.device)]
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(data(), batch_size=8, shuffle=True))
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
            said.append(loss.item())
        fabric.print(f"epoch {epoch} loss {loss.item():.6f}")
        fabric.save(f"epoch{epoch}.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})
    state = {"model": model, "optimizer": optimizer, "epoch": None}
    fabric.load("epoch0.ckpt", state)
    x, y = next(iter(loader))
    return [*said, state["epoch"], nn.functional.cross_entropy(model(x), y).item(), int(fabric.all_gather(1))]


def fabric_accumulates():
    from lightning.fabric import Fabric
    from lightning.fabric.loggers import CSVLogger

    fabric = Fabric(accelerator="cpu", devices=1, loggers=CSVLogger("logs"), callbacks=[Told()])
    with fabric.init_module():
        model = net()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(DataLoader(data(30), batch_size=7))
    said = []
    for step, (x, y) in enumerate(loader):
        with fabric.no_backward_sync(model, enabled=step % 2 == 0):
            loss = nn.functional.cross_entropy(model(x), y)
            fabric.backward(loss / 2)
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        fabric.log("loss", loss, step=step)
        fabric.log_dict({"a": step})
        fabric.call("told", loss)
        said.append(loss.item())
    return said


class Told:
    def told(self, loss):
        print(f"told {loss.item():.6f}")


def lit(**options):
    import lightning as L

    class LitNet(L.LightningModule):
        def __init__(self, width=8, lr=0.05):
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = nn.functional.cross_entropy(self(x), y)
            self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch, batch_idx):
            x, y = batch
            out = self(x)
            self.log("val_loss", nn.functional.cross_entropy(out, y))
            self.log("val_acc", (out.argmax(1) == y).double().mean(), sync_dist=True)

        def predict_step(self, batch, batch_idx):
            return self(batch[0]).argmax(1)

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    return LitNet(**options)


def trainer_on_one_device():
    import lightning as L
    from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    model = lit()
    best = ModelCheckpoint("best", monitor="val_loss", save_top_k=1, save_last=True)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=3, log_every_n_steps=1, logger=CSVLogger("logs"),
        callbacks=[best, EarlyStopping("val_loss", patience=2), LearningRateMonitor()], num_sanity_val_steps=1,
        gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(model, DataLoader(data(), 8, shuffle=True), DataLoader(data(9), 4))
    said = {name: value.item() for name, value in trainer.callback_metrics.items()}
    validated = trainer.validate(model, DataLoader(data(9), 4), verbose=False)
    predicted = [part.tolist() for part in trainer.predict(model, DataLoader(data(9), 4))]
    again = type(model).load_from_checkpoint(best.best_model_path, weights_only=False)
    print(os.path.basename(best.best_model_path), trainer.world_size, trainer.global_rank, trainer.global_step)
    return [said, validated, predicted, again.hparams.lr, again(torch.ones(2, 4)).sum().item()]


def trainer_with_every_default():
    """``Trainer(max_epochs=1)``: its own logger, bars, summary and checkpoint folder."""
    import pytorch_lightning as pl

    class Boring(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def training_step(self, batch, batch_idx):
            loss = nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def test_step(self, batch, batch_idx):
            self.log("test_loss", nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Boring()
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, log_every_n_steps=1)
    trainer.fit(model, DataLoader(data(), 8))
    tested = trainer.test(model, DataLoader(data(9), 4))
    trainer.save_checkpoint("mine.ckpt")
    return [tested, model.layer.weight.sum().item(), os.path.relpath(trainer.log_dir)]


HABITS = [
    csv_logger, board_loggers, older_names, fabric_on_one_device, fabric_accumulates, trainer_on_one_device,
    trainer_with_every_default,
]  # fmt: skip
