"""ignite: its engines, metrics, handlers and loggers."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def loaders():
    train = TensorDataset(torch.randn(23, 4), torch.randint(0, 3, (23,)))
    held_out = TensorDataset(torch.randn(11, 4), torch.randint(0, 3, (11,)))
    return DataLoader(train, batch_size=8, shuffle=True), DataLoader(held_out, batch_size=4)


def quickstart():
    """The example of ignite's documentation, on a smaller model."""
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.handlers import ModelCheckpoint, global_step_from_engine
    from ignite.metrics import Accuracy, Loss

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = net().to(device)
    train_loader, val_loader = loaders()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005)
    criterion = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, optimizer, criterion, device)
    val_metrics = {"accuracy": Accuracy(), "loss": Loss(criterion)}
    train_evaluator = create_supervised_evaluator(model, metrics=val_metrics, device=device)
    val_evaluator = create_supervised_evaluator(model, metrics=val_metrics, device=device)

    @trainer.on(Events.ITERATION_COMPLETED(every=2))
    def log_training_loss(engine):
        print(f"Epoch[{engine.state.epoch}], Iter[{engine.state.iteration}] Loss: {engine.state.output:.6f}")

    @trainer.on(Events.EPOCH_COMPLETED)
    def log_results(engine):
        train_evaluator.run(train_loader)
        val_evaluator.run(val_loader)
        for name, evaluator in (("Training", train_evaluator), ("Validation", val_evaluator)):
            metrics = evaluator.state.metrics
            print(f"{name} Results - Epoch[{engine.state.epoch}] Avg accuracy: {metrics['accuracy']:.6f}")
            print(f"Avg loss: {metrics['loss']:.6f}")

    checkpoint = ModelCheckpoint(
        "checkpoint", n_saved=2, filename_prefix="best", score_name="accuracy", score_function=best_of,
        global_step_transform=global_step_from_engine(trainer),
    )  # fmt: skip
    val_evaluator.add_event_handler(Events.COMPLETED, checkpoint, {"model": model})
    state = trainer.run(train_loader, max_epochs=4)
    model.load_state_dict(torch.load(checkpoint.last_checkpoint))
    return [state.output, state.iteration, str(checkpoint.last_checkpoint), val_evaluator.run(val_loader).metrics]


def best_of(engine):
    return engine.state.metrics["accuracy"]


def checkpoints_and_goes_on():
    from ignite.engine import Engine, Events
    from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping, TerminateOnNan

    said = []
    for attempt in range(2):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        loader, _ = loaders()

        def step(engine, batch, model=model, optimizer=optimizer):
            model.train()
            x, y = batch
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()

        trainer = Engine(step)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine, scheduler=scheduler: scheduler.step())
        trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
        stopper = EarlyStopping(patience=3, score_function=lambda engine: -engine.state.output, trainer=trainer)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, stopper)
        objects = {"trainer": trainer, "model": model, "optimizer": optimizer, "scheduler": scheduler}
        saver = Checkpoint(objects, DiskSaver("models", create_dir=True, require_empty=False), n_saved=2)
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), saver)
        if attempt:
            Checkpoint.load_objects(objects, said[0])
        trainer.run(loader, max_epochs=2 + 2 * attempt)
        said += [str(saver.last_checkpoint)]
        said += [trainer.state.output, trainer.state.iteration, trainer.state.epoch]
    return said


def many_metrics():
    from ignite.engine import Engine
    from ignite.metrics import (
        Accuracy,
        Average,
        ConfusionMatrix,
        DiceCoefficient,
        EpochMetric,
        Fbeta,
        IoU,
        Loss,
        MeanAbsoluteError,
        MeanSquaredError,
        Precision,
        Recall,
        RunningAverage,
        TopKCategoricalAccuracy,
        VariableAccumulation,
    )

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader, _ = loaders()

    def step(engine, batch):
        x, y = batch
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item(), "y_pred": out.detach(), "y": y}

    trainer = Engine(step)
    pairs = {"output_transform": lambda output: (output["y_pred"], output["y"])}
    numbers = {"output_transform": lambda output: (output["y_pred"][:, 0], output["y"].double())}
    matrix = ConfusionMatrix(num_classes=3, **pairs)
    metrics = {
        "accuracy": Accuracy(**pairs), "precision": Precision(**pairs), "recall": Recall(average=True, **pairs),
        "f1": Fbeta(1, **pairs), "top2": TopKCategoricalAccuracy(2, **pairs), "matrix": matrix, "iou": IoU(matrix),
        "dice": DiceCoefficient(matrix), "loss": Loss(nn.functional.cross_entropy, **pairs),
        "mse": MeanSquaredError(**numbers), "mae": MeanAbsoluteError(**numbers),
        "running": RunningAverage(output_transform=lambda output: output["loss"]),
        "average": Average(lambda output: output["loss"]),
        "sum": VariableAccumulation(lambda a, b: a + b, lambda output: output["y_pred"].sum()),
        "epoch": EpochMetric(lambda y_pred, y: (y_pred.argmax(1) == y).double().mean().item(), **pairs),
    }  # fmt: skip
    for name, metric in metrics.items():
        metric.attach(trainer, name)
    said = []
    for epochs in (1, 2):
        state = trainer.run(loader, max_epochs=epochs)
        for name in sorted(metrics):
            value = state.metrics[name]
            value = value[0] if isinstance(value, tuple) else value
            said.append([name, value.tolist() if isinstance(value, torch.Tensor) else value])
    return said


def loggers_and_bars():
    from ignite.engine import Events, create_supervised_trainer
    from ignite.handlers import ProgressBar, TensorboardLogger, global_step_from_engine
    from ignite.metrics import RunningAverage

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader, _ = loaders()
    trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    ProgressBar(bar_format="{desc}[{n_fmt}/{total_fmt}]{postfix}", file=sys.stdout, ascii=True, mininterval=0).attach(
        trainer, ["loss"]
    )
    ProgressBar(persist=True).attach(trainer, output_transform=lambda loss: {"batch loss": loss})
    with TensorboardLogger(log_dir="board") as logger:
        logger.attach_output_handler(
            trainer, Events.ITERATION_COMPLETED(every=2), tag="train",
            output_transform=lambda loss: {"loss": loss}, global_step_transform=global_step_from_engine(trainer),
        )  # fmt: skip
        logger.attach_opt_params_handler(trainer, Events.EPOCH_STARTED, optimizer=optimizer)
        trainer.run(loader, max_epochs=2)
    return [trainer.state.output, trainer.state.metrics["loss"]]


def schedules_and_averages():
    from ignite.engine import Engine, Events
    from ignite.handlers import (
        CosineAnnealingScheduler,
        EMAHandler,
        LRScheduler,
        Timer,
        create_lr_scheduler_with_warmup,
    )

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader, _ = loaders()
    rates = []

    def step(engine, batch):
        x, y = batch
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        return loss.item()

    trainer = Engine(step)
    plain = LRScheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
    warm = create_lr_scheduler_with_warmup(plain, warmup_start_value=0.01, warmup_duration=3)
    trainer.add_event_handler(Events.ITERATION_STARTED, warm)
    cosine = CosineAnnealingScheduler(optimizer, "momentum", 0.5, 0.9, len(loader))
    trainer.add_event_handler(Events.ITERATION_STARTED, cosine)
    averaged = EMAHandler(model, momentum=0.1)
    averaged.attach(trainer, name="ema_momentum", event=Events.ITERATION_COMPLETED)
    Timer().attach(trainer)
    state = trainer.run(loader, max_epochs=2)
    averaged.ema_model.eval()
    return [*rates, state.output, averaged.ema_model(torch.ones(2, 4)).sum().item()]


def as_if_distributed():
    """``idist`` as scripts use it that run either way."""
    import ignite.distributed as idist
    from ignite.utils import manual_seed, setup_logger

    manual_seed(3)
    data = TensorDataset(torch.randn(23, 4), torch.randint(0, 3, (23,)))
    loader = idist.auto_dataloader(data, batch_size=8, shuffle=True)
    model = idist.auto_model(net())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    said = [idist.get_rank(), idist.get_world_size(), str(idist.backend()), str(idist.device()), len(loader)]
    logger = setup_logger("mine", filepath="out.txt", format="%(levelname)s %(message)s")
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(idist.all_reduce(loss.item()))
        if idist.get_rank() == 0:
            logger.info("loss %.6f", loss.item())
    idist.barrier()

    @idist.one_rank_only()
    def note():
        with open("note.txt", "w") as file:
            file.write("noted")

    note()
    with idist.Parallel() as parallel:
        parallel.run(lambda local_rank: said.append(local_rank))
    return said


HABITS = [
    quickstart, checkpoints_and_goes_on, many_metrics, loggers_and_bars, schedules_and_averages, as_if_distributed,
]  # fmt: skip
