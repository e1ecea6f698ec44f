"""Numbers that a migrated script prints are those of one process, whatever the sizes are; or it says why not."""

import numpy as np
import pytest
import torch

pytest.importorskip("libcst")

from test_migrate import TRAIN, changed, ddp
from test_migrate_runs import Launcher

from ddp_patch.migrate.rewrite import left, rewrite


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    started = Launcher(tmp_path_factory.mktemp("numbers"))
    yield started
    started.end()


UNEVEN = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(101, 4).double()
y = (x[:, 0] > 0).long()
train_set, test_set = TensorDataset(x, y), TensorDataset(x[:50], y[:50])
loader = DataLoader(train_set, batch_size=12)
test_loader = DataLoader(test_set, batch_size=8)
model = nn.Linear(4, 2).double()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)


def train():
    seen, right, weight = 0, 0, 0.0
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (y == y).sum().item()
        weight += x.size(0) * 0.5
        seen += len(x)
    n = len(train_set)
    print("seen", seen / len(loader.dataset), right / seen, weight / n)
    return right


def test():
    model.eval()
    means, rows, hits, batches, kept, texts = 0.0, 0.0, 0, 0, [], []
    with torch.no_grad():
        for i, (x, y) in enumerate(test_loader):
            out = model(x)
            means = means + criterion(out, y).item()
            rows += criterion(out, y).item() * len(x)
            hits += (out.argmax(1) == y).sum()
            batches += 1
            kept.extend(out.argmax(1).tolist())
            texts.append(out[:, 0].sum().item())
    print(f"means {means / batches:.12f} {means / (i + 1):.12f} {means / len(test_loader):.12f}")
    print(f"numbered {mean_from_one(1):.12f} {mean_from_one(first=1):.12f}")
    print("rows", round(rows / len(test_set), 12), "hits", int(hits), hits / len(test_loader.dataset))
    print("kept", kept, [round(t, 10) for t in texts])
    return means


def mean_from_one(first):
    total, number = 0.0, 0
    with torch.no_grad():
        for number, (x, y) in enumerate(test_loader, 1):
            total += criterion(model(x), y).item()
    mean, total = total / number, 0.0
    with torch.no_grad():
        for k, (x, y) in enumerate(test_loader, start=first + 2):
            total += criterion(model(x), y).item()
    return mean + total / (k - 2)


print("right", train() / len(loader.dataset))
print("mean", round(test() / len(test_loader), 12))
"""


@pytest.mark.slow
@pytest.mark.some("ddp-3")
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_sizes_that_ranks_do_not_divide_change_no_number(launcher, target, nproc):
    after = rewrite(UNEVEN, target, "uneven.py")
    assert left(after) == []
    wanted, _ = launcher.run(UNEVEN, "uneven.py", 1)
    out, _ = launcher.run(after, "uneven.py", nproc)
    assert out[0] == wanted[0]
    assert out[1:] == [""] * (nproc - 1)


@pytest.mark.slow
def test_more_ranks_than_batches_evaluate_the_same(launcher):
    text = UNEVEN.replace("batch_size=8", "batch_size=40")
    wanted, _ = launcher.run(text, "few.py", 1)
    out, _ = launcher.run(rewrite(text, "ddp", "few.py"), "few.py", 3)
    assert out[0] == wanted[0]


@pytest.mark.slow
def test_a_batch_that_ranks_cannot_share_is_refused(launcher):
    with pytest.raises(AssertionError, match="a batch of 12 rows cannot be shared evenly by 5 ranks"):
        launcher.run(rewrite(UNEVEN, "ddp", "five.py"), "five.py", 5)


LOGGED = """\
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
x = torch.randn(40, 4).double()
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
model = nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(writer=None):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if writer:
            writer.add_scalar("loss", loss.item(), step)
            print(f"{loss.item():.10f}")


writer = None
if loader:
    writer = SummaryWriter("logs")
train(writer)
if writer is not None:
    torch.save(model.state_dict(), os.path.join(writer.log_dir, "model.pt"))
other = SummaryWriter(log_dir="more") if loader else None
if other is not None:
    print(other.get_logdir())
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_a_writer_is_there_on_every_rank(launcher, target):
    after = rewrite(LOGGED, target, "logged.py")
    assert left(after) == []
    assert rewrite(after, "patch", "logged.py").count("Silent") == 0
    wanted, files = launcher.run(LOGGED, "logged.py", 1)
    out, written = launcher.run(after, "logged.py", 2)
    assert out == [wanted[0], ""]
    assert written == files == {"logs/model.pt"}


TRAINER = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.arange(400.0).double().reshape(100, 4) / 400
dataset = TensorDataset(x, x.sum(1, keepdim=True))


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 1).double()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        train, val = random_split(dataset, [80, 20])
        self.train_loader = DataLoader(train, 4, shuffle=True)
        self.val_loader = DataLoader(val, 4)

    def fit(self):
        \"""Train.\"""
        for epoch in range(2):
            self.epoch()
            total = 0.0
            with torch.no_grad():
                for x, y in self.val_loader:
                    total += x.sum().item()
            print(f"epoch {epoch}: {total:.8f}")

    def epoch(self):
        for x, y in self.train_loader:
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


Trainer().fit()
"""


@pytest.mark.slow
@pytest.mark.parametrize("begun", ["Trainer().fit()", "trainer = Trainer()\ntrainer.fit()"])
@pytest.mark.parametrize("seed", ["torch.manual_seed(0)\n", ""])
def test_a_class_that_trains_splits_alike_on_every_rank(launcher, seed, begun):
    text = TRAINER.replace("Trainer().fit()", begun)
    after = rewrite(text.replace("torch.manual_seed(0)\n", seed), "ddp", "trainer.py")
    assert left(after) == []
    own = "torch.manual_seed(torch.initial_seed() + 1 + ddp_rank)"
    where = after[: after.index(own)].rstrip().splitlines()[-1].strip()
    assert where == ('"""Train."""' if "().fit" in begun else "trainer = Trainer()")
    wanted, _ = launcher.run(text, "trainer.py", 1)
    out, _ = launcher.run(after, "trainer.py", 2)
    assert out == [wanted[0], ""]


def test_an_evaluation_that_goes_on_from_another_is_whole_on_every_rank():
    loop = "for x, y in test_loader:\n    hits += (model(x).argmax(1) == y).sum().item()\n"
    whole = "# every rank takes all of it: hits "
    assert whole in ddp(f"{TRAIN}hits = 0\n{loop}{loop}print(hits)\n")
    assert whole not in ddp(f"{TRAIN}hits = 0\n{loop}print(hits)\nhits = 0\n{loop}print(hits)\n")


EVALUATION = (
    "hits = 0\nfor x, y in test_loader:\n    hits += (model(x).argmax(1) == y).sum().item()\n    more\nprint(hits)\n"
)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("if hits > 10: break", "it may end early"),
        ("if model(x).sum() > 0: print('yes')", "its rows decide what is done"),
        ("evaluator.add_batch(y, model(x))", "evaluator is fed with its rows"),
        ("last = model(x).mean()\nprint(last)", "last is read after it"),
        ("preds[0:8] = model(x)", "preds is filled batch by batch"),
        ("words = ''\n    words += str(y)", ""),
    ],
)
def test_an_evaluation_that_cannot_be_dealt_is_whole_on_every_rank(more, reason):
    after = ddp(TRAIN + EVALUATION.replace("more", more))
    assert left(after) == []
    if reason:
        assert f"# every rank takes all of it: {reason}\ntest_loader = DataLoader(test_set, batch_size=64)\n" in after


@pytest.mark.parametrize(
    ("early", "calls", "notes"),
    [
        ("if i == 2: break", "check(loader), check(test_loader)", 1),
        ("if i == 2: return hits", "check(loader), check(test_loader)", 1),
        ("if i == 2: continue", "check(loader), check(test_loader)", 0),
        ("if i == 2: break", "check(test_loader)", 0),
        ("if i == 2: break", "check(loader)", 0),
    ],
)
def test_a_loop_that_ends_early_over_two_kinds_of_loaders_is_said(early, calls, notes):
    check = (
        EVALUATION.replace("test_loader", "enumerate(data)").replace("x, y in", "i, (x, y) in").replace("more", early)
    )
    check = check.replace("print(hits)", "return hits").replace("\n", "\n    ").rstrip()
    found = left(ddp(f"{TRAIN}def check(data):\n    {check}\nprint({calls})\n"))
    assert ["may end early" in reason for _, reason in found] == [True] * notes


@pytest.mark.parametrize(
    "given", ["sampler=Subset(test_set)", "batch_sampler=mine", "**settings", "shuffle=True, **settings"]
)
def test_the_sampler_of_an_evaluation_stays(given):
    text = changed("DataLoader(test_set, batch_size=64)", f"DataLoader(test_set, {given})", TRAIN + EVALUATION)
    after = ddp(text.replace("more", "pass"))
    assert left(after) == []
    shuffled = ", generator=alike()" if "shuffle" in given else ""
    assert f"test_loader = DataLoader(test_set, {given}{shuffled})\n" in after


def test_a_sum_is_divided_by_the_rows_that_are_in_it():
    text = changed("loss.item()", "loss.item() * x.size(0)").replace("len(loader)", "len(train_set)")
    assert "print(total / rows_of(loader))" in ddp(text)
    counted = changed("loss.item()", "loss.item() * x.size(0)").replace(
        "total / len(loader)", "f'{total} of {len(loader.dataset)}'"
    )
    assert "print(f'{total} of {rows_of(loader)}')" in ddp(counted)


@pytest.mark.parametrize("shown", ["loss.item( )", "loss .item()", "(loss).item()"])
def test_two_rules_write_into_one_text_however_its_author_spaces_it(shown):
    text = changed("loss.item()", "loss.item() * x.size(0)")
    text = text.replace(
        "total / len(loader)", f"f'{{ {shown}:.3f}} é {{{{of}}}} {{total / len( loader.dataset):>{{width}}}}'"
    )
    after = ddp(text)
    assert left(after) == []
    assert "print(f'{ global_loss:.3f} é {{of}} {total / rows_of(loader):>{width}}')" in after


def test_no_row_is_taken_twice_where_the_last_batch_is_left_out():
    after = ddp(changed("shuffle=True", "shuffle=True, drop_last=True"))
    assert "DistributedSampler(train_set, shuffle=True, drop_last=True)" in after
    assert "rows_of" not in after


def test_a_sum_that_is_divided_by_a_number_of_ones_own_is_said():
    text = changed("loss.item()", "loss.item() * x.size(0)").replace("len(loader)", "50000")
    assert any("takes twice" in reason for _, reason in left(ddp(text)))


@pytest.mark.parametrize(
    ("value", "doubled"),
    [
        (5, 10),
        (0.1, 0.2),
        ([0.1, 1.5], [0.2, 3.0]),
        (np.float64(0.5), np.float64(1)),
        (np.array([1, 2]), np.array([2, 4])),
        (torch.tensor(3), torch.tensor(6)),
    ],
)
def test_what_is_summed_keeps_its_type(value, doubled):
    class TwoRanks:
        def all_reduce(total):
            total *= 2

    names = {"torch": torch, "dist": TwoRanks, "ddp_device": "cpu"}
    text = ddp(TRAIN)
    exec(text[text.index("def all_sum") : text.index("def all_mean")], names)
    found = names["all_sum"](value)
    assert type(found) is type(doubled)
    assert (found == doubled) if not hasattr(found, "all") else (found == doubled).all()
    assert str(names["all_sum"](value, parts=2)) == str(value)


PICKED = """\
losses, hits = [], []
for x, y in test_loader:
    losses.append(criterion(model(x), y).item())
    hits.extend(model(x).argmax(1).tolist())
print(sum(losses) / len(losses), hits)
"""


@pytest.mark.parametrize("sampler", ["SubsetRandomSampler(rows)", "RandomSampler(test_set)"])
def test_an_evaluation_of_drawn_rows_is_alike_on_every_rank(sampler):
    drawn = sampler.replace(")", ", generator=alike())")
    for made, given in ((f"picks = {sampler}\n", "picks"), ("", sampler)):
        text = changed("test_loader =", f"{made}test_loader =")
        text = changed("test_set, batch_size=64)", f"test_set, batch_size=64, sampler={given})", text) + PICKED
        after = ddp(text)
        assert left(after) == []
        assert f"picks = {drawn}\n" in after if made else f"sampler={drawn})" in after
        assert "losses = all_mean(losses)\n" in after
        back = rewrite(after, "patch", "train.py").split()
        assert back == f"import ddp_patch; ddp_patch.enable()\n{text}".split()


def test_a_sampler_that_draws_by_itself_is_said():
    sampler = "class Mine(Sampler):\n    def __iter__(self):\n        return iter({})\n\n\n"
    text = changed("test_set, batch_size=64)", "test_set, batch_size=64, sampler=Mine())") + PICKED
    for drawn, said in (("torch.randperm(9).tolist()", 1), ("torch.randperm(9, generator=g)", 0), ("range(9)", 0)):
        found = left(ddp(text.replace("train_set,", f"{sampler.format(drawn)}train_set,", 1)))
        assert ["may decide differently" in reason for _, reason in found] == [True] * said


TAKEN = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 4).double()
y = (x[:, 0] > 0).long()
train_loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16)
test_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=10)
model = nn.Linear(4, 2).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in train_loader:
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    hits = sum((model(a).argmax(1) == b).sum().item() for a, b in test_loader)
    numbers = [step * 2 for step in range(len(train_loader))]
    rows = torch.cat([model(a) for i, (a, _) in enumerate(test_loader)])
    counts, kept = torch.zeros(2, 2, dtype=torch.long), {"p": [], "t": []}
    for a, b in test_loader:
        for t, p in zip(b, model(a).argmax(1)):
            counts[t, p] += 1
    for a, b in test_loader:
        kept["p"].extend(model(a)[:, 1].tolist())
        kept["t"].extend(b.tolist())
print(hits / 32, len(numbers), len(rows), round(rows.sum().item(), 10), counts.tolist(), round(sum(kept["p"]), 10), sum(kept["t"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_batches_that_comprehensions_and_tables_take_are_those_of_one_process(launcher, target):
    after = rewrite(TAKEN, target, "taken.py")
    assert left(after) == []
    wanted, _ = launcher.run(TAKEN, "taken.py", 1)
    out, _ = launcher.run(after, "taken.py", 2)
    assert out[0] == wanted[0]


def test_a_comprehension_over_a_loader_that_is_trained_on_is_told():
    after = rewrite(TAKEN.replace("for a, b in test_loader)", "for a, b in train_loader)"), "ddp", "taken.py")
    (said,) = left(after)
    assert "these are this rank's rows only, since a training takes them of the same loader" in str(said)


HELD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.randn(48, 5)
y = (x.sum(1) > 0).long()
def data(a, b):
    return TensorDataset(x[a:b], y[a:b])
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loss_fn = nn.CrossEntropyLoss()
def evaluate(model, loader):
    hits, total = 0, 0.0
    with torch.no_grad():
        for a, b in loader:
            out = model(a)
            total += loss_fn(out, b).item() * len(b)
            hits += (out.argmax(1) == b).sum().item()
    return hits, round(total, 9)
"""
MADE = "DataLoader(data(0, 30), batch_size=6), DataLoader(data(30, 40), batch_size=4), DataLoader(data(40, 48), batch_size=3)"
BY_KEY = f"""\
train, val, test = {MADE}
loaders = {{"train": train, "val": val}}
loaders["test"] = test
for epoch in range(3):
    for a, b in loaders["train"]:
        optimizer.zero_grad()
        loss_fn(model(a), b).backward()
        optimizer.step()
    for phase in ("val", "test"):
        seen = 0.0
        for a, b in loaders[phase]:
            seen += model(a).sum().item()
        print(phase, round(seen, 9), len(loaders[phase]), len(loaders[phase].dataset))
        print(round(seen / len(loaders["val"].dataset), 8), evaluate(model, loaders[phase]))
    print(evaluate(model, loaders["val"]), len(loaders["test"]))
"""
BY_NAME = f"""\
train, val, test = {MADE}
for epoch in range(3):
    for a, b in train:
        optimizer.zero_grad()
        loss_fn(model(a), b).backward()
        optimizer.step()
    for name, each in (("val", val), ("test", test)):
        hits = 0
        for a, b in each:
            hits += (model(a).argmax(1) == b).sum().item()
        print(name, hits / len(each.dataset), len(each))
    for number, each in enumerate([val, test]):
        print(number, evaluate(model, each))
    for each in [val, test]:
        summed = 0
        for number, (a, b) in enumerate(each):
            summed += b.sum().item()
        print(summed, number)
"""
OF_AN_OBJECT = f"""\
def make():
    first, second, third = {MADE}
    return dict(train=first, val=second, test=third)
class Trainer:
    def __init__(self):
        self.loaders = make()
    def run(self):
        for epoch in range(3):
            for a, b in self.loaders["train"]:
                optimizer.zero_grad()
                loss_fn(model(a), b).backward()
                optimizer.step()
            for split in ["val", "test"]:
                print(split, self.check(split))
    def check(self, split):
        total = 0.0
        for a, b in self.loaders[split]:
            total += (model(a).argmax(1) == b).sum().item()
        return total / len(self.loaders[split].dataset)
Trainer().run()
"""
PHASED = f"""\
train, val, test = {MADE}
def fit(dataloaders):
    for epoch in range(3):
        for phase in ["train", "val"]:
            running, n = 0.0, 0
            for a, b in dataloaders[phase]:
                with torch.set_grad_enabled(phase == "train"):
                    loss = loss_fn(model(a), b)
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                running += loss.item() * a.size(0)
                n += a.size(0)
            print(phase, round(running / n, 9))
loaders = {{"train": train, "val": val, "test": test}}
fit(loaders)
for key, loader in loaders.items():
    if key != "train":
        print(key, evaluate(model, loader))
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
@pytest.mark.parametrize("script", [BY_KEY, BY_NAME, OF_AN_OBJECT, PHASED], ids=["key", "name", "object", "phase"])
def test_loaders_that_are_taken_out_of_containers_give_the_numbers_of_one_process(launcher, script, target):
    after = rewrite(HELD + script, target, "held.py")
    told = [str(said) for said in left(after) if "loader is made in another file" not in str(said)]  # evaluate, unused
    assert all("write a loop for each of the two" in said for said in told)
    assert len(told) == (script is PHASED)
    wanted, _ = launcher.run(HELD + script, "held.py", 1)
    out, _ = launcher.run(after, "held.py", 2)
    assert out[0] == wanted[0]


def test_a_key_that_is_not_known_may_be_that_of_any_loader():
    after = rewrite(HELD + PHASED.replace("""["train", "val"]""", "sys.argv[1:]"), "ddp", "held.py")
    assert after.count("batch_size=rank_share(") == 3
    after = rewrite(HELD + PHASED, "ddp", "held.py")
    assert after.count("batch_size=rank_share(") == 2


def test_loaders_that_a_comprehension_makes_are_told():
    made = """loaders = {{x: DataLoader(data(0, 30), batch_size=6) for x in ("train", "val", "test")}}"""
    script = PHASED.replace("""loaders = {"train": train, "val": val, "test": test}""", made.format())
    (said,) = [str(said) for said in left(rewrite(HELD + script, "ddp", "held.py")) if "at once" in str(said)]
    assert "several DataLoaders are made at once" in said


def test_a_loader_whose_container_is_not_followed_is_told():
    script = (
        BY_KEY.partition("    for phase")[0].replace('loaders["train"]', "train") + "train_on(**{'loaders': loaders})\n"
    )
    after = rewrite(HELD + script, "ddp", "held.py")
    assert (
        sum("loop over it by name, then migrate again" in str(said) for said in left(after)) == 1
    )  # they are made in one line
