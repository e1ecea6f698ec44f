"""torchmetrics: metrics in a training loop, with forward, update, compute and reset."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def classified(rows=23, classes=3):
    return DataLoader(TensorDataset(torch.randn(rows, 4), torch.randint(0, classes, (rows,))), 8, shuffle=True)


def numbers(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: numbers(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers(each) for each in value]
    return value


def accuracy_in_a_loop():
    """The loop of torchmetrics' own documentation."""
    import torchmetrics

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    metric = torchmetrics.classification.Accuracy(task="multiclass", num_classes=3)
    said = []
    for epoch in range(2):
        for i, (x, y) in enumerate(classified()):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            acc = metric(logits.softmax(dim=-1), y)
            print(f"Accuracy on batch {i}: {acc}")
            said.append(acc.item())
        acc = metric.compute()
        print(f"Accuracy on all data: {acc:.6f} of epoch {epoch}")
        said.append(acc.item())
        metric.reset()
    return said


def of_classes():
    from torchmetrics.classification import (
        MulticlassAUROC,
        MulticlassAveragePrecision,
        MulticlassCalibrationError,
        MulticlassCohenKappa,
        MulticlassConfusionMatrix,
        MulticlassF1Score,
        MulticlassMatthewsCorrCoef,
        MulticlassPrecision,
        MulticlassRecall,
        MulticlassStatScores,
    )

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    metrics = [
        MulticlassF1Score(3), MulticlassPrecision(3, average=None), MulticlassRecall(3, average="micro", top_k=2),
        MulticlassConfusionMatrix(3), MulticlassConfusionMatrix(3, normalize="true"), MulticlassAUROC(3),
        MulticlassAUROC(3, thresholds=5), MulticlassAveragePrecision(3), MulticlassCohenKappa(3),
        MulticlassMatthewsCorrCoef(3), MulticlassCalibrationError(3), MulticlassStatScores(3, average=None),
    ]  # fmt: skip
    said = []
    for _ in range(2):
        for x, y in classified():
            logits = model(x)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, y).backward()
            optimizer.step()
            for metric in metrics[:6]:
                said.append(numbers(metric(logits, y)))
            for metric in metrics[6:]:
                metric.update(logits, y)
        for metric in metrics:
            said.append(numbers(metric.compute()))
            metric.reset()
    return said


def of_two_classes():
    from torchmetrics.classification import (
        BinaryAccuracy,
        BinaryAUROC,
        BinaryJaccardIndex,
        BinaryPrecisionRecallCurve,
        BinaryROC,
        MultilabelF1Score,
    )

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    metrics = [BinaryAccuracy(), BinaryAUROC(), BinaryJaccardIndex(), BinaryROC(), BinaryPrecisionRecallCurve()]
    many = MultilabelF1Score(num_labels=2)
    said = []
    for x, y in DataLoader(TensorDataset(torch.randn(23, 4), torch.randint(0, 2, (23, 2))), 8):
        logits = model(x)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(logits, y.double()).backward()
        optimizer.step()
        for metric in metrics:
            metric.update(logits[:, 0], y[:, 0])
        said.append(numbers(many(logits, y)))
    return said + [numbers(metric.compute()) for metric in (*metrics, many)]


def of_numbers():
    from torchmetrics import (
        ExplainedVariance,
        MeanAbsoluteError,
        MeanAbsolutePercentageError,
        MeanSquaredError,
        PearsonCorrCoef,
        R2Score,
        SpearmanCorrCoef,
    )

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    metrics = [
        MeanSquaredError(), MeanSquaredError(squared=False), MeanAbsoluteError(), R2Score(), PearsonCorrCoef(),
        SpearmanCorrCoef(), ExplainedVariance(), MeanAbsolutePercentageError(),
    ]  # fmt: skip
    said = []
    for epoch in range(2):
        for x, y in DataLoader(TensorDataset(torch.randn(23, 4), torch.randn(23, 1)), 8, shuffle=True):
            out = model(x)
            loss = nn.functional.mse_loss(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for metric in metrics:
                said.append(metric(out.squeeze(1), y.squeeze(1)).item())
        for metric in metrics:
            said.append(metric.compute().item())
            metric.reset()
        print(f"epoch {epoch}: " + " ".join(f"{value:.6f}" for value in said[-8:]))
    return said


def of_directions():
    from torchmetrics import CosineSimilarity

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alike = CosineSimilarity(reduction="mean")
    said = []
    for x, y in classified():
        out = model(x)
        wanted = nn.functional.one_hot(y, 3).double()
        optimizer.zero_grad()
        nn.functional.mse_loss(out, wanted).backward()
        optimizer.step()
        said.append(alike(out, wanted).item())
    return [*said, alike.compute().item()]


def sums_and_means():
    from torchmetrics import CatMetric, MaxMetric, MeanMetric, MinMetric, RunningMean, SumMetric

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mean, total, most, least = MeanMetric(), SumMetric(), MaxMetric(), MinMetric()
    every, running = CatMetric(), RunningMean(window=2)
    said = []
    for x, y in classified():
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean.update(loss, weight=len(x))
        running.update(loss.detach())
        said.append(mean(loss.item()).item())
        total.update((x > 0).sum())
        total(losses.detach())
        most(losses.detach())
        least.update(losses.detach())
        every.update(losses.detach())
    return (
        said
        + [numbers(metric.compute()) for metric in (mean, total, most, least, running)]
        + [sorted(numbers(every.compute()))]
    )


def a_collection():
    """Train and validation metrics with prefixes, kept in the model, saved with it."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision, MulticlassRecall

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            metrics = MetricCollection(
                {"acc": MulticlassAccuracy(3), "f1": MulticlassF1Score(3), "p": MulticlassPrecision(3)}
            )
            self.train_metrics = metrics.clone(prefix="train_")
            self.val_metrics = metrics.clone(prefix="val_", postfix="_all")

        def forward(self, x):
            return self.layer(x)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    said = []
    for _ in range(2):
        for x, y in classified():
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(numbers(model.train_metrics(out, y)))
        model.eval()
        with torch.no_grad():
            for x, y in classified(11):
                model.val_metrics.update(model(x), y)
        model.train()
        said += [numbers(model.train_metrics.compute()), numbers(model.val_metrics.compute())]
        print(model.val_metrics.compute())
        model.train_metrics.reset()
        model.val_metrics.reset()
    both = MetricCollection([MulticlassRecall(3), MulticlassAccuracy(3, average="none")])
    both(torch.tensor([[0.2, 0.7, 0.1]]), torch.tensor([1]))
    said.append(numbers(both.compute()))
    torch.save(model.state_dict(), "net.pt")
    return said


def tracked_and_resampled():
    from torchmetrics import BootStrapper, MetricTracker, MinMaxMetric
    from torchmetrics.classification import MulticlassAccuracy
    from torchmetrics.wrappers import ClasswiseWrapper, MultioutputWrapper

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tracker = MetricTracker(MulticlassAccuracy(3), maximize=True)
    boot = BootStrapper(MulticlassAccuracy(3, average="micro"), num_bootstraps=4)
    range_of = MinMaxMetric(MulticlassAccuracy(3))
    by_class = ClasswiseWrapper(MulticlassAccuracy(3, average=None), labels=["a", "b", "c"])
    from torchmetrics import MeanSquaredError

    outputs = MultioutputWrapper(MeanSquaredError(), num_outputs=3)
    said = []
    for _ in range(3):
        tracker.increment()
        for x, y in classified():
            out = model(x)
            optimizer.zero_grad()
            nn.functional.cross_entropy(out, y).backward()
            optimizer.step()
            for metric in (tracker, boot, range_of, by_class):
                metric.update(out, y)
            outputs.update(out, torch.nn.functional.one_hot(y, 3).double())
        said += [numbers(metric.compute()) for metric in (tracker, boot, range_of, by_class, outputs)]
    best, step = tracker.best_metric(return_step=True)
    return [*said, numbers(best), step]


def metrics_are_saved_and_pickled():
    import pickle

    from torchmetrics import Metric
    from torchmetrics.classification import MulticlassAccuracy

    class Hits(Metric):
        """One's own, as the documentation writes it."""

        full_state_update = False

        def __init__(self):
            super().__init__()
            self.add_state("correct", default=torch.tensor(0), dist_reduce_fx="sum")
            self.add_state("total", default=torch.tensor(0), dist_reduce_fx="sum")
            self.add_state("seen", default=[], dist_reduce_fx="cat")

        def update(self, preds, target):
            preds = preds.argmax(dim=-1)
            self.correct += torch.sum(preds == target)
            self.total += target.numel()
            self.seen.append(target)

        def compute(self):
            return self.correct.float() / self.total + torch.cat(self.seen).sum()

    model = nn.Linear(4, 3)
    metric, own = MulticlassAccuracy(3, average="micro"), Hits()
    metric.persistent(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    said = []
    for x, y in classified():
        out = model(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
        metric.update(out, y)
        said.append(own(out, y).item())
    torch.save({"model": model.state_dict(), "metric": metric.state_dict()}, "both.pt")
    again = MulticlassAccuracy(3, average="micro")
    again.load_state_dict(torch.load("both.pt")["metric"])
    return [*said, metric.compute().item(), own.compute().item(), pickle.loads(pickle.dumps(metric)).compute().item()]


def of_pictures_and_texts():
    from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure
    from torchmetrics.text import Perplexity

    net = nn.Conv2d(3, 3, 3, padding=1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    psnr, ssim = PeakSignalNoiseRatio(data_range=1.0), StructuralSimilarityIndexMeasure(data_range=1.0)
    words = Perplexity(ignore_index=-100)
    said = []
    for (x,) in DataLoader(TensorDataset(torch.rand(9, 3, 16, 16)), 4):
        out = net(x)
        loss = nn.functional.mse_loss(out, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [psnr(out, x).item(), ssim(out, x).item()]
        words.update(out.flatten(2).detach()[..., :5], torch.randint(0, 5, (len(x), 3)))
    return [*said, psnr.compute().item(), ssim.compute().item(), words.compute().item()]


def functional_metrics():
    from torchmetrics.functional import accuracy, mean_squared_error, pairwise_cosine_similarity
    from torchmetrics.functional.classification import binary_auroc

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    said = []
    for x, y in classified():
        out = model(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
        said.append(accuracy(out, y, task="multiclass", num_classes=3).item())
        said.append(mean_squared_error(out[:, 0].contiguous(), y.double()).item())
        said.append(binary_auroc(out[:, 0].sigmoid(), y > 0).item())
        said.append(pairwise_cosine_similarity(x, out @ torch.ones(3, 4)).sum().item())
    return said


HABITS = [
    accuracy_in_a_loop, of_classes, of_two_classes, of_numbers, of_directions, sums_and_means, a_collection, tracked_and_resampled,
    metrics_are_saved_and_pickled, of_pictures_and_texts, functional_metrics,
]  # fmt: skip
FLOAT32 = ["of_directions"]  # CosineSimilarity casts to it
