"""Training of detectors: a batch is a list of pictures and a list of their boxes, and a forward goes through both."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import ddp_patch


class Pictures(Dataset):
    """Picture i, of ``size(i)``, with ``boxes(i)`` boxes and a mask for each."""

    def __init__(self, n=17, size=lambda i: (8 + i % 3, 8 + 2 * (i % 2)), boxes=lambda i: i % 4):
        self.n, self.size, self.boxes = n, size, boxes

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        many, size = self.boxes(i), self.size(i)
        target = {
            "boxes": torch.rand(many, 4, generator=draw, dtype=torch.float64),
            "labels": torch.randint(1, 4, (many,), generator=draw),
            "masks": torch.rand(many, *size, generator=draw) > 0.5,
            "image_id": i,
        }
        return torch.randn(3, *size, generator=draw, dtype=torch.float64), target


class Detector(nn.Module):
    """Pads pictures to the largest, finds a box and scores at every place, and compares them picture by picture."""

    def __init__(self, body=None):
        super().__init__()
        self.body = body or nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, 2), nn.ReLU())
        self.boxes, self.scores = nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 1)

    def batched(self, pictures):
        height, width = (max(picture.shape[dim] for picture in pictures) for dim in (1, 2))
        batch = pictures[0].new_zeros(len(pictures), 3, height, width)
        for i, picture in enumerate(pictures):
            batch[i, :, : picture.shape[1], : picture.shape[2]].copy_(picture)
        return batch

    def forward(self, pictures, targets=None):
        pictures = [(picture - 0.1) / 0.9 for picture in pictures]
        features = self.body(self.batched(pictures))
        boxes, scores = (head(features).flatten(2).transpose(1, 2) for head in (self.boxes, self.scores))
        return self.compared(boxes, scores, targets) if self.training else self.detected(boxes, scores, pictures)

    def compared(self, boxes, scores, targets):
        of_boxes, of_scores, count = boxes.sum() * 0, [], 0
        for own, logits, target in zip(boxes, scores, targets, strict=True):
            wanted = torch.zeros(len(logits), dtype=torch.long)
            if target["boxes"].numel():
                nearest = torch.cdist(target["boxes"], own.detach()).argmin(1)
                wanted[nearest] = target["labels"]
                of_boxes = of_boxes + F.l1_loss(own[nearest], target["boxes"], reduction="sum")
                count += len(nearest)
            of_scores.append(F.cross_entropy(logits, wanted))
        return {"boxes": of_boxes / max(1, count), "scores": torch.stack(of_scores).mean()}

    def detected(self, boxes, scores, pictures):
        found = []
        for own, logits, picture in zip(boxes, scores, pictures, strict=True):
            best, label = logits.softmax(1)[:, 1:].max(1)
            kept = best > best.mean()
            found.append({"boxes": own[kept] * picture.shape[1], "labels": label[kept] + 1, "scores": best[kept]})
        return found


def tupled(samples):
    return tuple(zip(*samples, strict=True))


def moved(pictures, targets):
    """Scripts do that with ``.to(device)``."""
    targets = [{k: v.to("cpu") if torch.is_tensor(v) else v for k, v in target.items()} for target in targets]
    return [picture.to("cpu") for picture in pictures], targets


def detector(body=None, kind=Detector):
    torch.manual_seed(3)
    return kind(body).double()


def trained(model, loader, call=None, every=1, epochs=2):
    """The losses, and what the parameters are in the end."""
    call = call or (lambda batch: model(*moved(*batch)))
    optimizer, said = SGD(model.parameters(), 0.05, momentum=0.9), []
    for step, batch in enumerate(itertools.chain.from_iterable(itertools.repeat(loader, epochs))):
        losses = call(batch)
        (sum(losses.values()) / every).backward()
        if step % every == every - 1:
            optimizer.step()
            optimizer.zero_grad()
        said += [loss.item() for loss in losses.values()]
    return said + [parameter.sum().item() for parameter in model.parameters()]


def batches(n=17, size=None, boxes=None, batch_size=5, collate=tupled, **options):
    chosen = {key: value for key, value in (("size", size), ("boxes", boxes)) if value is not None}
    return DataLoader(Pictures(n, **chosen), batch_size, shuffle=True, collate_fn=collate, **options)


def one_size(i):
    return 8, 9


# --- sizes and numbers ------------------------------------------------------------------------------------------------


def pictures_of_several_sizes():
    return trained(detector(), batches())


def pictures_of_one_size_that_are_stacked():
    class Stacked(Detector):
        def batched(self, pictures):
            return torch.stack(pictures)

    return trained(detector(kind=Stacked), batches(size=one_size))


def no_boxes_in_whole_batches():
    return trained(detector(), batches(boxes=lambda i: int(i % 5 == 0), batch_size=4))


def fewer_pictures_than_ranks():
    return trained(detector(), batches(n=9, batch_size=8)) + trained(detector(), batches(n=3, batch_size=1))


def as_many_boxes_as_channels():
    return trained(detector(), batches(n=12, boxes=lambda i: 3, batch_size=4))


def as_many_pictures_as_channels_and_boxes():
    every = trained(detector(), batches(n=12, boxes=lambda i: 3, batch_size=3))
    return every + trained(detector(), batches(n=14, boxes=lambda i: 1 + i % 3, batch_size=3))


def as_many_pictures_as_rows_and_columns():
    return trained(detector(), batches(n=24, size=lambda i: (8, 8), boxes=lambda i: 1 + i % 8, batch_size=8))


# --- what a batch is made of ------------------------------------------------------------------------------------------


def samples_as_they_are():
    def call(batch):
        return model(*moved([picture for picture, _ in batch], [target for _, target in batch]))

    model = detector()
    return trained(model, batches(collate=lambda samples: samples), call)


def lists_in_a_dictionary():
    class OfOne(Detector):
        def forward(self, batch):
            return super().forward(batch["pictures"], batch["targets"])

    def collate(samples):
        return dict(zip(("pictures", "targets"), zip(*samples, strict=True), strict=False))

    model = detector(kind=OfOne)
    return trained(model, batches(collate=collate), lambda batch: model(batch))


class OfABatch(Detector):
    """Gets its pictures stacked."""

    def forward(self, pictures, targets):
        features = self.body(pictures)
        boxes, scores = (head(features).flatten(2).transpose(1, 2) for head in (self.boxes, self.scores))
        return self.compared(boxes, scores, targets)


def stacked(samples):
    pictures, targets = zip(*samples, strict=True)
    return torch.stack(pictures), targets


def stacked_pictures_beside_lists():
    model = detector(kind=OfABatch)
    loader = batches(n=24, size=lambda i: (8, 8), boxes=lambda i: i % 9, batch_size=8, collate=stacked)
    return trained(model, loader, lambda batch: model(batch[0].to("cpu"), list(batch[1])))


def numbers_beside_lists():
    class Numbered(Detector):
        def forward(self, pictures, targets, numbers):
            losses = super().forward(pictures, targets)
            return {**losses, "numbers": (self.scores.bias.sum() * numbers).mean()}

    def collate(samples):
        return *zip(*samples, strict=True), torch.tensor([target["image_id"] for _, target in samples]).double()

    model = detector(kind=Numbered)
    return trained(model, batches(collate=collate), lambda batch: model(*moved(*batch[:2]), batch[2]))


def read_by_workers():
    return trained(detector(), batches(num_workers=2))


def samples_that_ranks_exchange():
    return trained(detector(), ddp_patch.shard_batch(batches()))


# --- models -----------------------------------------------------------------------------------------------------------


def layers_that_forward_calls():
    class Flat(Detector):
        def __init__(self, body=None):
            super().__init__(nn.Identity())
            self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, 2)

        def batched(self, pictures):
            return self.second(self.first(super().batched(pictures)).relu()).relu()

    return trained(detector(kind=Flat), batches())


def batch_norm():
    body = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, 2))
    return trained(detector(body), batches(n=15))


def parameters_beside_the_modules():
    class Scaled(Detector):
        def __init__(self, body=None):
            super().__init__(body)
            self.scale = nn.Parameter(torch.ones(3, 1, 1))

        def batched(self, pictures):
            return super().batched([picture * self.scale for picture in pictures]) * self.scale.exp()

    return trained(detector(kind=Scaled), batches())


def places_that_are_drawn():
    class Sampling(Detector):
        def compared(self, boxes, scores, targets):
            chosen = [torch.randperm(scores.shape[1])[: 4 + len(target["boxes"])] for target in targets]
            losses = [F.cross_entropy(logits[own], own % 4) for logits, own in zip(scores, chosen, strict=True)]
            return {**super().compared(boxes, scores, targets), "drawn": sum(losses) / len(losses)}

    return [*trained(detector(kind=Sampling), batches()), torch.rand(()).item()]


def pictures_one_by_one():
    class OneByOne(Detector):
        def forward(self, pictures, targets):
            losses = [super(OneByOne, self).forward([p], [t]) for p, t in zip(pictures, targets, strict=True)]
            return {key: sum(loss[key] for loss in losses) / len(losses) for key in losses[0]}

    return trained(detector(kind=OneByOne), batches())


def a_body_that_is_computed_again():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, 2)

        def forward(self, x):
            return checkpoint(self.second, checkpoint(self.first, x, use_reentrant=False).relu(), use_reentrant=False)

    return trained(detector(Again()), batches())


class Proposing(nn.Module):
    """A part that is itself given lists."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 1, 3, padding=1)

    def forward(self, features, targets):
        places = self.conv(features).flatten(1)
        losses = [own.square().sum() * len(target["boxes"]) for own, target in zip(places, targets, strict=True)]
        return [own.topk(5 + i % 2)[1] for i, own in enumerate(places)], torch.stack(losses).mean()


class TwoStages(Detector):
    """A second head looks at some places of each picture: as many rows as there are places in all pictures."""

    def __init__(self, body=None):
        super().__init__(body)
        self.proposing = Proposing()
        self.regions = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, pictures, targets):
        features = self.body(self.batched(pictures))
        proposals, loss = self.proposing(features, targets)
        pooled = torch.cat([own.flatten(1)[:, chosen].t() for own, chosen in zip(features, proposals, strict=True)])
        wanted = torch.cat([chosen % 4 for chosen in proposals])
        return {"proposals": loss, "regions": F.cross_entropy(self.regions(pooled), wanted)}


def two_stages():
    return trained(detector(kind=TwoStages), batches())


class PictureByPicture(Detector):
    """Gives its heads the places of one picture, its boxes, and its features as they are."""

    def __init__(self, body=None):
        super().__init__(body)
        self.places, self.regions = nn.Sequential(nn.Linear(6, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.whole = nn.Sequential(nn.Conv2d(6, 6, 1), nn.Softmax(0))

    def forward(self, pictures, targets):
        losses = []
        for own, target in zip(self.body(self.batched(pictures)), targets, strict=True):
            places = self.places((own * self.whole(own)).flatten(1).t())
            losses.append(places.square().mean() + self.regions(target["boxes"]).sum())
        return {"all": torch.stack(losses).mean()}


def heads_for_each_picture():
    return trained(detector(kind=PictureByPicture), batches())


# --- scripts ----------------------------------------------------------------------------------------------------------


def accumulated():
    return trained(detector(), batches(), every=2, epochs=3)


def evaluated(model, loader):
    """How many boxes of the right kind there are, and what is found; as a script counts it."""
    right, said = 0, []
    model.eval()
    with torch.no_grad():
        for pictures, targets in loader:
            found = model([picture.to("cpu") for picture in pictures])
            assert len(found) == len(pictures)
            for own, target in zip(found, targets, strict=True):
                right += sum(label in own["labels"].tolist() for label in target["labels"].tolist())
                said += [len(own["boxes"]), own["scores"].sum().item(), own["boxes"].sum().item()]
    model.train()
    return [right, *said]


def evaluated_after_every_epoch():
    model, said = detector(), []
    for _ in range(2):
        said += trained(model, batches(), epochs=1) + evaluated(model, batches(n=7, batch_size=3))
    return said + evaluated(model, batches(n=3, batch_size=1))


def a_part_of_the_pictures():
    model = detector()

    def call(batch):
        pictures, targets = moved(*batch)
        return model(pictures[1:], targets[1:]) if len(pictures) > 1 else model(pictures, targets)

    return trained(model, batches(n=20), call)


def clipped_with_a_frozen_part():
    model = detector()
    model.body[0].requires_grad_(False)
    optimizer, said = SGD([p for p in model.parameters() if p.requires_grad], 0.1), []
    for batch in batches():
        losses = model(*moved(*batch))
        optimizer.zero_grad()
        sum(losses.values()).backward()
        said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    return said


def without_a_loader():
    model, data = detector(), Pictures(16)
    return trained(model, [tupled([data[i] for i in range(start, start + 4)]) for start in range(0, 16, 4)])
