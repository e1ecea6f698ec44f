"""Habits of public training scripts that went wrong once."""

import re

import pytest

pytest.importorskip("libcst")

from test_migrate import TRAIN, changed, ddp

from ddp_patch.migrate.command import command
from ddp_patch.migrate.functions import HELPERS
from ddp_patch.migrate.rewrite import left, rewrite


def reasons(text):
    return [reason for _, reason in left(text)]


def test_an_optimizer_that_is_made_under_a_condition_is_not_prepared():
    text = changed("optimizer = torch.optim", "if adam:\n    optimizer = torch.optim")
    after = rewrite(text, "accelerate", "train.py")
    assert "ddp_model = accelerator.prepare(model)\n" in after


@pytest.mark.parametrize(
    ("target", "barrier"), [("ddp", "dist.barrier()"), ("accelerate", "accelerator.wait_for_everyone()")]
)
def test_all_wait_for_a_file_that_one_writes_and_all_read(target, barrier):
    text = (
        TRAIN
        + "with open('a.pt', 'wb') as f:\n    torch.save(model, f)\nwith open('a.pt', 'rb') as f:\n    best = torch.load(f)\n"
    )
    after = rewrite(text, target, "train.py")
    assert f"    torch.save(model, f)\n{barrier}" in after


def test_a_model_that_is_loaded_anew_is_wrapped_anew():
    after = ddp(TRAIN + "model = torch.load('a.pt')\n")
    assert "model = torch.load('a.pt', map_location=ddp_device)\nddp_model = DistributedDataParallel(model)\n" in after


ENCODING = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pe", torch.zeros(3, 2).t())

    def forward(self, x):
        return x + self.pe


"""


def test_buffers_that_never_change_are_not_sent():
    text = changed("train_set, test_set", ENCODING + "train_set, test_set").replace("nn.Linear(4, 2)", "Net()")
    assert "DistributedDataParallel(model, broadcast_buffers=False)" in ddp(text)
    assert "broadcast_buffers=False" in rewrite(text, "accelerate", "train.py")
    assert "broadcast_buffers" not in ddp(text.replace("return x + self.pe", "self.pe[0] = 1; return x + self.pe"))


def test_a_row_at_a_time_nothing_is_reduced_and_what_is_counted_is():
    loop = "        for p, t in zip(decode(model(x)), y):\n            if p == t.lower():\n                hits += 1\n        total +="
    text = changed("        total +=", loop).replace("total = 0.0", "total, hits = 0.0, 0")
    after = ddp(text.replace("total / len(loader)", "total / len(loader), hits / len(train_set)"))
    assert "            if p == t.lower():\n                hits += 1\n" in after
    assert "hits = all_sum(hits)" in after
    assert "hits / rows_of(loader)" in after


def test_a_loader_that_another_file_evaluates_is_whole():
    text = "from test import validation\n" + TRAIN + "print(validation(model, test_loader))\n"
    after = ddp(text)
    assert left(after) == []
    assert (
        "# every rank takes all of it: validation() of another file gets it\ntest_loader = DataLoader(test_set, batch_size=64)\n"
        in after
    )
    assert any(
        "sees this rank's rows" in reason
        for reason in reasons(ddp(text.replace("model, test_loader", "model, loader")))
    )


def test_a_sampler_is_drawn_from_as_it_goes():
    after = ddp(changed("shuffle=True", "sampler=torch.utils.data.RandomSampler(train_set, True, int(1e10))"))
    assert "sampler=RankSampler(torch.utils.data.RandomSampler(train_set, True, int(1e10))))" in after
    assert "list(self.sampler)" not in after


@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_a_loader_that_somebody_else_gives_is_said(target):
    body = TRAIN[TRAIN.index("for epoch") :].replace("\n", "\n    ").rstrip(" ")
    after = rewrite(f"import torch\n\n\ndef fit(model, criterion, loader, optimizer):\n    {body}", target, "fit.py")
    assert any("loader is made in another file" in reason for reason in reasons(after))


def test_a_mean_over_packed_tokens_is_said():
    packed = "criterion(model(x), nn.utils.rnn.pack_padded_sequence(y, n, batch_first=True)[0])"
    assert any("number of them" in reason for reason in reasons(ddp(changed("criterion(model(x), y)", packed))))
    named = changed(
        "loss = criterion(model(x), y)", "t = pack_padded_sequence(y, n).data\n        loss = criterion(model(x), t)"
    )
    assert any("number of them" in reason for reason in reasons(ddp(named)))


SLICES = changed("for x, y in loader:", "for x in data:").replace("criterion(model(x), y)", "model(x).mean()")


def test_what_no_loader_deals_is_drawn_alike():
    after = ddp("import toys\n" + SLICES)
    assert "numpy.random.seed(0)  # alike on every rank\nrandom.seed(0)  # alike on every rank\n" in after
    assert "import random\n" in after
    assert "manual_seed(0)  # alike on every rank" in after
    assert rewrite(after, "patch", "train.py").count("seed(") == 0


@pytest.mark.parametrize(
    ("head", "draw", "seeds"),
    [
        ("from sklearn.model_selection import train_test_split", "a, b = train_test_split(rows)", ["numpy"]),
        ("from sklearn import utils", "rows = utils.shuffle(rows)", ["numpy"]),
        ("import pandas as pd", "rows = pd.read_csv('a').sample(frac=1)", ["numpy"]),
        ("from random import shuffle", "shuffle(rows)", ["random"]),
        ("from random import random", "rows = random()", ["ddp_random"]),
        ("import random as rnd", "rnd.shuffle(rows)", ["rnd"]),
        ("from numpy import random", "random.shuffle(rows)", ["numpy"]),
        ("from numpy.random import permutation", "permutation(rows)", ["numpy"]),
        ("from sklearn.model_selection import train_test_split", "a = train_test_split(rows, random_state=1)", []),
        ("from sklearn.metrics import shuffle_score", "a = shuffle_score(rows)", []),
        ("from games import shuffle, sample", "shuffle(rows), sample(rows)", []),
        ("from random import seed, shuffle", "seed(3)\nshuffle(rows)", []),
        ("import numpy as np", "np.random.seed(3)\nrows = pd.read_csv('a').sample(frac=1)", []),
    ],
)
def test_what_is_drawn_by_any_name_is_drawn_alike(head, draw, seeds):
    after = ddp(
        f"{head}\nimport torch.nn\n{changed('train_set, test_set = ', f'{draw}{chr(10)}train_set, test_set = ')}"
    )
    assert re.findall(r"(\w+)(?:\.random)?\.seed\(0\)  # alike", after) == seeds
    for name in re.findall(r"(\w+)(?:\.random)?\.seed\(", after):  # what is written is imported
        assert re.search(rf"^import (\w+ as )?{name}$", after, re.MULTILINE)
    assert draw in rewrite(after, "patch", "train.py")


def test_an_order_that_is_drawn_in_every_epoch_stays_alike():
    text = "import pandas as pd\nimport torch\n\ndef main():\n    torch.manual_seed(0)\n    "
    text += changed("    total = 0.0\n", "    total = 0.0\n    table = table.sample(frac=1)\n").replace("\n", "\n    ")
    assert "initial_seed" not in ddp(text.rstrip() + "\n\nmain()\n")


def test_a_library_that_nobody_draws_from_is_not_seeded():
    assert "seed(" not in ddp("import numpy as np\n" + TRAIN)
    assert "np.random.seed(0)  # alike" in ddp("import numpy as np\norder = np.random.permutation(9)\n" + TRAIN)


@pytest.mark.parametrize(
    ("code", "sorted_"),
    [
        ("w = list(set(' '.join(lines).split()))", "w = sorted(set(' '.join(lines).split()))"),
        ("d = {c: i for i, c in enumerate(set(text))}", "d = {c: i for i, c in enumerate(sorted(set(text)))}"),
        (
            "w = set(words)\nd = {c: i for i, c in enumerate(w)}",
            "w = set(words)\nd = {c: i for i, c in enumerate(sorted(w))}",
        ),
        ("n = list(set(labels))", "n = list(in_order(set(labels)))"),
        ("n = [c for c in {k.label for k in data}]", "n = [c for c in in_order({k.label for k in data})]"),
        ("n = set()\nn.add(a)\nfor c in n:\n    ids[c] = len(ids)", "for c in in_order(n):\n    ids[c] = len(ids)"),
        ("for c in {'a', 'b'} - gone:\n    print(c)", "for c in in_order({'a', 'b'} - gone):\n    print(c)"),
        ("n = set(a) | set(b)\nm = tuple(n)", "m = tuple(in_order(n))"),
        ("n = len(list(set(labels)))", "n = len(list(set(labels)))"),
        ("n = sorted(c for c in set(labels))", "n = sorted(c for c in set(labels))"),
        ("n = list({3, 1})", "n = list({3, 1})"),
        ("n = {c for c in set(labels)}", "n = {c for c in set(labels)}"),
    ],
)
def test_words_are_numbered_alike(code, sorted_):
    after = ddp(changed("model = nn", f"{code}\nmodel = nn"))
    assert f"{sorted_}\n" in after
    if "in_order" in after:
        assert f"{code}\nmodel = nn" in rewrite(after, "patch", "train.py")


@pytest.mark.parametrize(
    ("items", "listed"),
    [({8, 1}, list({8, 1})), ({"b", "a"}, ["a", "b"]), ({("b", 1), ("a", 2)}, [("a", 2), ("b", 1)]), (set(), [])],
)
def test_a_set_is_listed_alike_whatever_it_holds(items, listed):
    names = {}
    exec(HELPERS["in_order"], names)
    assert names["in_order"](items) == listed


def test_a_model_is_wrapped_before_it_is_trained():
    loop = TRAIN[TRAIN.index("optimizer = ") :]
    text = TRAIN.replace(loop, "try:\n    if True:\n" + "".join(f"        {line}\n" for line in loop.splitlines()[:1]))
    text += (
        "".join(f"    {line}\n" for line in loop.splitlines()[1:])
        + "except KeyboardInterrupt:\n    pass\nmodel = torch.load('a.pt')\n"
    )
    after = ddp(text)
    assert after.index("ddp_model = Dist") < after.index("for epoch in range(3)")


def test_what_is_needed_at_the_top_is_imported_there():
    after = ddp(changed("model = nn", "import os\nmodel = nn"))
    assert after.index("import os") < after.index("os.environ")


def test_a_loss_without_weights_is_not_wrapped():
    text = changed("model.parameters()", "list(model.parameters()) + list(criterion.parameters())").replace(
        "nn.CrossEntropyLoss()", "Own()"
    )
    assert (
        "ddp_criterion = DistributedDataParallel(criterion) if any(p.requires_grad for p in criterion.parameters()) else criterion"
        in ddp(text)
    )


def test_nobody_waits_in_a_branch_that_a_file_decides():
    text = (
        "import os\n"
        + TRAIN
        + "if os.path.exists('a'):\n    d = torch.load('a')\nelse:\n    torch.save(d, 'a')\ntorch.save(d, 'b')\n"
    )
    after = ddp(text)
    assert "    save_once(d, 'a', wait=False)\nsave_once(d, 'b')\n" in after
    assert "    if wait:\n        dist.barrier()" in after


def test_a_module_with_a_trial_run_can_be_imported():
    head, body = TRAIN.split("train_set, test_set")
    text = (
        head
        + "if __name__ == '__main__':\n"
        + "".join(f"    {line}\n" for line in ("train_set, test_set" + body).splitlines())
    )
    after = ddp(text)
    assert after.index("__main__") < after.index('os.environ["RANK"]')


def test_weights_that_get_no_gradient_are_looked_for():
    part = changed("SGD(model.parameters()", "SGD(model.head.parameters()")
    assert "DistributedDataParallel(model, find_unused_parameters=True)" in ddp(part)
    assert "DistributedDataParallelKwargs(find_unused_parameters=True)" in rewrite(part, "accelerate", "train.py")
    frozen = part.replace("optimizer =", "for p in model.parameters():\n    p.requires_grad = False\noptimizer =")
    assert "find_unused" not in ddp(frozen)
    clipped = changed(
        "optimizer.step()", "nn.utils.clip_grad_norm_(model.head.parameters(), 1)\n        optimizer.step()"
    )
    assert "find_unused" not in ddp(clipped)
    net = "class Net(nn.Module):\n    def forward(self, x):\n        with torch.no_grad():\n            x = self.a(x)\n        return self.b(x)\n\n"
    text = changed("train_set, test_set", net + "train_set, test_set").replace("nn.Linear(4, 2)", "Net()")
    assert "find_unused_parameters=True" in ddp(text)


def test_what_stands_behind_a_semicolon_is_reduced_there():
    after = ddp(changed("total += loss.item()", "total += loss.item(); print(f'{loss.item()}')"))
    assert (
        "        total += loss.item()\n        global_loss = all_mean(loss.item())\n        print(f'{global_loss}')\n"
        in after
    )


HIDDEN = """\
loader_options = dict(settings)
sampler = DistributedSampler(train_set, shuffle=loader_options.pop("shuffle", False), drop_last=loader_options.get("drop_last", False))
loader_options["batch_size"] = rank_share(loader_options["batch_size"])
loader = DataLoader(train_set, sampler=sampler, **loader_options)
"""


def test_a_dictionary_that_hides_arguments_is_asked_for_them():
    text = "settings = {'batch_size': 8}\nif cuda:\n    settings.update(more)\n" + changed(
        "batch_size=64, shuffle=True", "**settings"
    )
    after = ddp(text)
    assert left(after) == []
    assert HIDDEN in after


def test_calls_in_a_dictionary_do_not_hide_its_keys():
    text = "settings = dict(batch_size=8, num_workers=os.cpu_count())\n" + changed(
        "batch_size=64, shuffle=True", "shuffle=True, **settings"
    )
    after = ddp(text)
    assert "settings = dict(batch_size=rank_share(8), num_workers=os.cpu_count())" in after
    assert "DataLoader(train_set, sampler=sampler, **settings)" in after


def test_a_sampler_that_is_none_is_none():
    text = "mine = None\n" + changed("shuffle=True", "shuffle=(mine is None), sampler=mine")
    after = ddp(text)
    assert left(after) == []
    assert "DistributedSampler(train_set, shuffle=mine is None)" in after or "shuffle=(mine is None)" in after
    assert "sampler=sampler)" in after


def test_what_is_set_under_a_condition_is_reduced_under_it():
    text = changed("    total = 0.0", "    total = 0.0\n    if plot:\n        kept = []").replace(
        "        total +=", "        if plot:\n            kept.append(y.numpy())\n        total +="
    )
    assert "    if plot:\n        (kept,) = all_rows(kept)\n" in ddp(text + "    if plot:\n        print(kept)\n")


def test_a_model_of_the_module_is_wrapped_there():
    loop = TRAIN[TRAIN.index("optimizer = ") :].replace("for epoch in range(3):\n", "").replace("\n    ", "\n")
    body = "".join(f"    {line}\n" for line in loop.splitlines())
    after = ddp(
        TRAIN[: TRAIN.index("optimizer = ")]
        + f"\ndef train(epoch):\n{body}\nfor epoch in range(3):\n    train(epoch)\n"
    )
    assert after.index("\nddp_model = DistributedDataParallel(model)\n") < after.index("def train")
    assert "global ddp_model" not in after


@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_noise_is_each_ranks_own_though_nothing_is_seeded(target):
    noise = "import numpy as np\n" + changed(
        "model(x), y)", "model(x + torch.tensor(np.random.normal(0, 1, x.shape))), y)"
    )
    after = rewrite("import numpy as np\nlot = torch.randn(3)\n" + noise, target, "train.py")
    assert "torch.manual_seed(0)  # alike" in after
    assert after.index("np.random.seed(0)") < after.index("np.random.seed(torch.initial_seed() % 2**32)")


def test_loggers_write_on_one_rank():
    text = (
        "from utils import Logger\n"
        + TRAIN
        + "sys.stdout = Logger('a')\nlog = Logger('b')\nlog.set_names(['x'])\nlog.close()\n"
    )
    after = ddp(text)
    assert "if master_process:\n    sys.stdout = Logger('a')\n" in after
    assert "log = Logger('b') if master_process else SilentWriter('b')\nif master_process:\n    log.set_names(" in after
    assert "    log.set_names(['x'])\n    log.close()\n" in after


@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_training_that_is_somewhere_else_is_said(target):
    head, loop = TRAIN.split("for epoch in range(3):\n")
    text = head + "fit(model, loader, optimizer)\n"
    after = rewrite(text, target, "run.py")
    assert [reason[:36] for reason in reasons(after)] == ["the training is in another file, so "]
    assert rewrite(after, target, "run.py") == after
    module = "def fit(model, loader, optimizer):\n" + "".join(
        f"    {line}\n" for line in loop.replace("\n    ", "\n").splitlines()
    ).replace("        total = 0", "    total = 0")
    assert any("no model was found to wrap" in r for r in reasons(rewrite("import torch\n" + module, target, "fit.py")))


def test_what_is_said_without_a_launcher_is_what_one_process_takes():
    text = (
        "import os\nddp = int(os.environ.get('RANK', -1)) != -1\nif ddp:\n    dist.init_process_group('gloo')\n    device = 'cuda:1'\nelse:\n    device = 'cpu'\n"
        + TRAIN
    )
    after = rewrite(text, "patch", "train.py")
    assert "device = 'cpu'\n" in after
    assert "cuda" not in after


BOTH = "from utils import get_loaders\n" + TRAIN.replace(
    "train_set, test_set = make(), make()\nloader = DataLoader(train_set, batch_size=64, shuffle=True)\ntest_loader = DataLoader(test_set, batch_size=64)\n",
    "loader, test_loader = get_loaders(shuffle=True)\n",
)


@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_loaders_of_another_file_are_dealt_here(target):
    after = rewrite(BOTH + "hits = 0\nfor x, y in test_loader:\n    hits += len(x)\nprint(hits)\n", target, "train.py")
    assert left(after) == []
    assert "loader, test_loader = get_loaders(shuffle=True)\nloader = rank_loader(loader)\n" in after
    assert "hits = all_mean(hits)\n" in after
    assert "rank_loader" not in rewrite(after, "patch", "train.py")


def test_each_rank_may_take_the_batch_of_another_files_loader():
    assert "batch_size=loader.batch_size, drop_last" in ddp(BOTH, per_device=True)


METER = """\
class AverageMeter:
    def __init__(self):
        self.sum = self.count = self.avg = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count
"""


@pytest.mark.parametrize("place", ["utils.py", "utils/misc.py"])
def test_meters_of_a_file_beside_are_reduced(tmp_path, place):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(METER)
    if place != "utils.py":
        (tmp_path / "utils" / "__init__.py").write_text("from .misc import *\n")
    text = "from utils import AverageMeter\n" + changed("total = 0.0", "losses = AverageMeter()").replace(
        "total += loss.item()", "losses.update(loss.item(), x.size(0))"
    ).replace("total / len(loader)", "losses.avg")
    assert any("a meter of another file" in reason for reason in reasons(ddp(text)))
    after = ddp(text, folder=tmp_path)
    assert left(after) == []
    assert "reduce_meters(losses)" in after


def test_batches_that_are_pulled_from_a_loader_of_somebody_are_said():
    text = TRAIN[: TRAIN.index("for epoch")] + (
        "def train(data_loader):\n    batches = iter(data_loader)\n    for i in range(9):\n        x, y = next(batches)\n"
        "        criterion(model(x), y).backward()\n        optimizer.step()\n"
    )
    found = reasons(rewrite(text.replace("\nloader = DataLoader", "\nother = DataLoader"), "accelerate", "train.py"))
    assert any("data_loader is made in another file" in reason for reason in found)


def test_the_line_is_given_to_what_starts_the_training_of_a_file_beside(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "projects").mkdir()
    (tmp_path / "lib" / "trainer.py").write_text("def run(loss):\n    loss.backward()\n")
    text = "from lib.trainer import run\n\nif __name__ == '__main__':\n    run(make())\n"
    assert (
        rewrite(text, "patch", "a.py", folder=tmp_path / "projects") == f"import ddp_patch; ddp_patch.enable()\n{text}"
    )
    assert rewrite(text, "patch", "a.py") == text


def test_a_module_alone_gets_no_line_and_that_is_said(tmp_path, capsys):
    (tmp_path / "trainer.py").write_text("def run(loss):\n    loss.backward()\n")
    assert command(["--to", "patch", str(tmp_path / "trainer.py")]) == 3
    assert "no script that starts a training was found: put 'import ddp_patch" in capsys.readouterr().err


def test_what_is_let_go_in_the_training_and_never_frozen_before_it_is_not_wrapped_again():
    text = changed(
        "for epoch in range(3):",
        "for epoch in range(3):\n    for p in model.parameters():\n        p.requires_grad = True",
    )
    frozen = text + "    for p in model.parameters():\n        p.requires_grad = False\n"
    assert ddp(frozen).count("= DistributedDataParallel(") == 1


EVALUATED = (
    "\n\ndef evaluate(data_loader):\n    loss, n = 0.0, 0\n    for x, y in data_loader:\n"
    "        loss += criterion(model(x), y).item()\n        n += 1\n    return loss / n\n\n\n"
)


def test_a_function_that_evaluates_what_is_trained_on_averages():
    both = "def make_loader(data, shuffle):\n    return DataLoader(data, batch_size=8, shuffle=shuffle)\n\n\n"
    text = (
        changed("loader = DataLoader(train_set, batch_size=64, shuffle=True)", "loader = make_loader(train_set, True)")
        .replace("test_loader = DataLoader(test_set, batch_size=64)", "test_loader = make_loader(test_set, False)")
        .replace("train_set, test_set =", both + "train_set, test_set =")
    )
    assert "loss, n = all_mean(loss, n)" in ddp(text + EVALUATED + "print(evaluate(test_loader))\n")


def test_a_function_that_evaluates_either_asks_the_loader():
    text = TRAIN + EVALUATED + "print(evaluate(loader), evaluate(test_loader))\n"
    after = ddp(text)
    assert "    loss, n = all_batches(data_loader, loss, n)\n    return loss / n\n" in after
    back = rewrite(after, "patch", "train.py")
    assert "all_batches" not in back
    assert "criterion(model(x), y).item()\n        n += 1\n    return loss / n\n" in back


def test_accelerate_loads_to_a_device_that_files_know():
    text = TRAIN + "print(torch.load('a.pt'))\n"
    assert "torch.load('a.pt', map_location=accelerator.device.type)" in rewrite(text, "accelerate", "train.py")


def test_a_function_that_freezes_for_its_evaluation_changes_no_wrapper():
    text = "def val():\n    for p in model.parameters():\n        p.requires_grad = False\n\n\n" + changed(
        "for epoch in range(3):",
        "for epoch in range(3):\n    for p in model.parameters():\n        p.requires_grad = True",
    )
    assert ddp(text).count("= DistributedDataParallel(") == 1


def test_folders_are_made_by_all_ranks():
    text = (
        "import os\n"
        + TRAIN
        + "os.makedirs('a')\nos.makedirs('b', exist_ok=True)\nos.mkdir('c')\ntry:\n    os.mkdir('d')\nexcept OSError:\n    pass\n"
    )
    after = ddp(text)
    assert (
        "\nos.makedirs('a', exist_ok=True)\nos.makedirs('b', exist_ok=True)\nos.makedirs('c', exist_ok=True)\n" in after
    )
    assert "    if master_process:\n        os.mkdir('d')\n" in after


def test_an_optimizer_of_each_epoch_is_not_prepared_where_the_model_is():
    loop = TRAIN[TRAIN.index("optimizer = ") :].replace("for epoch in range(3):\n", "").replace("\n    ", "\n")
    body = "".join(f"    {line}\n" for line in loop.splitlines())
    text = (
        TRAIN[: TRAIN.index("optimizer = ")]
        + f"\ndef train(epoch):\n{body}\nfor epoch in range(3):\n    train(epoch)\n"
    )
    assert "\nddp_model = accelerator.prepare(model)\n" in rewrite(text, "accelerate", "train.py")


def test_buffers_of_a_file_beside_are_not_sent_if_they_never_change(tmp_path):
    (tmp_path / "model.py").write_text(ENCODING)
    text = "from model import Net\n" + changed("nn.Linear(4, 2)", "Net()")
    assert "broadcast_buffers=False)" in ddp(text, folder=tmp_path)
    (tmp_path / "model.py").write_text(ENCODING.replace("return x", "self.pe.mul_(2); return x"))
    assert "broadcast_buffers" not in ddp(text, folder=tmp_path)


def test_a_loss_without_weights_is_not_prepared():
    text = changed("model.parameters()", "list(model.parameters()) + list(criterion.parameters())").replace(
        "nn.CrossEntropyLoss()", "Own()"
    )
    assert "accelerator.prepare(criterion) if any(p.requires_grad" in rewrite(text, "accelerate", "train.py")


def test_what_all_ranks_evaluate_is_made_alike():
    text = TRAIN + (
        "total, n = 0.0, 0\nfor x, y in test_loader:\n    total += nn.functional.cross_entropy(model(x), y, reduction='sum').item()\n"
        "    n += 1\n    evaluator.add(y)\nprint(total / n)\n"
    )
    assert "total, n = all_mean(total, n)\nprint(total / n)\n" in ddp(text)


def test_a_run_of_wandb_is_disabled_on_the_other_ranks():
    text = "import wandb\n" + TRAIN + "run = wandb.init(project='a')\nrun.config.update({})\nwandb.init()\n"
    after = ddp(text)
    assert (
        "run = wandb.init(project='a', mode=None if master_process else \"disabled\")\nrun.config.update({})\n" in after
    )
    assert '\nwandb.init(mode=None if master_process else "disabled")\n' in after


NESTED = (
    METER
    + """\


def validate(val_loader):
    def run(loader):
        for x, y in loader:
            losses.update(criterion(model(x), y).item(), len(x))

    losses = AverageMeter()
    run(val_loader)
    return losses.avg


"""
)


def test_an_evaluation_for_the_function_around_is_whole():
    after = ddp(changed("for epoch in", NESTED + "for epoch in") + "print(validate(test_loader))\n")
    assert left(after) == []
    assert (
        "# every rank takes all of it: losses is of the function around\ntest_loader = DataLoader(test_set, batch_size=64)\n"
        in after
    )


def test_a_loader_that_only_an_evaluation_pulls_from_is_whole():
    val = "def val(data):\n    data_loader = DataLoader(data, shuffle=True, batch_size=8)\n    it = iter(data_loader)\n    for i in range(3):\n        x, y = next(it)\n        print(criterion(model(x), y).item())\n\n\n"
    after = ddp(changed("for epoch in", val + "for epoch in") + "val(test_set)\n")
    assert "data_loader = DataLoader(data, shuffle=True, batch_size=8, generator=alike())" in after


TWICE = """\
class Net(nn.Module):
    def once(self, x):
        return x.view(x.size()[0], -1)

    def forward(self, x):
        return torch.cat((self.once(x), self.once(x)), 1)


"""


def test_what_a_model_gives_of_rows_that_all_ranks_have_is_alike():
    text = changed("train_set, test_set", TWICE + "train_set, test_set").replace("nn.Linear(4, 2)", "Net()")
    text += "n, m = 0, 0.0\nfor x, y in test_loader:\n    n += (model(x) > 0).sum().item()\n    m += criterion(model(x), y).item()\n    evaluator.add(y)\nm /= 7\nprint(n, m)\n"
    after = ddp(text)
    assert "n, m = all_mean(n, m)\nm /= 7\nprint(n, m)\n" in after


def test_what_is_made_before_the_training_is_made_alike():
    text = "torch.manual_seed(0)\n" + changed("for epoch in", "target = nn.Linear(2, 2)\nfor epoch in")
    after = ddp("import torch\n" + text)
    assert (
        after.index("target = nn.Linear(2, 2)") < after.index("torch.initial_seed() + 1") < after.index("for epoch in")
    )


BY_ARGUMENTS = """\
import torch.distributed as dist

if args.world_size > 1:
    dist.init_process_group(backend=args.backend, init_method=args.url,
                            world_size=args.world_size, rank=args.rank)
train(args)
"""


def test_a_script_that_is_ddp_by_its_own_arguments_is_left_and_said():
    after = ddp(BY_ARGUMENTS)
    ((line, reason),) = left(after)
    assert line == 4
    assert reason.startswith("this script distributes itself, by arguments of its own: torchrun tells each process")
    assert "".join(row for row in after.splitlines(keepends=True) if "TODO" not in row) == BY_ARGUMENTS
    assert ddp(after) == after
    for reads in ("rank=int(os.environ['RANK'])", "timeout=minutes"):
        text = BY_ARGUMENTS.replace("rank=args.rank", reads)
        assert ddp(text) == text


BY_NAME = """\
import torch
from torch import nn, optim

model = nn.Linear(4, 1)
optimizer = getattr(optim, "SGD")(model.parameters(), lr=0.1)


def train():
    for x in slices:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()
    model = torch.load("best.pt")
    print(model(x))
"""


@pytest.mark.parametrize("optimizer", ['getattr(optim, "SGD")(model.parameters(), lr=0.1)', "Own(model.parameters())"])
def test_a_model_that_is_made_at_the_top_is_wrapped_there_and_the_group_starts_above(optimizer):
    after = ddp(BY_NAME.replace('getattr(optim, "SGD")(model.parameters(), lr=0.1)', optimizer))
    start, wrapped, trains = (after.index(w) for w in ("init_process_group", "\nddp_model = Dist", "def train"))
    assert start < wrapped < trains
    assert "map_location=ddp_device)\n    ddp_model = DistributedDataParallel(model)\n" in after
    assert "\ndel ddp_model\n" in after


def test_a_batch_sampler_of_ones_own_draws_on_one_rank_for_all():
    after = ddp(changed("batch_size=64, shuffle=True", "batch_sampler=Balanced(train_set, 8)"))
    assert "loader = DataLoader(train_set, batch_sampler=RankBatches(Balanced(train_set, 8)))\n" in after
    assert left(after) == []
    assert "set_epoch" not in after
    assert "batch_sampler=Balanced(train_set, 8))" in rewrite(after, "patch", "train.py")


def test_files_of_more_batches_than_the_first_are_written_of_all():
    loop = "for i, (x, y) in enumerate(test_loader):\n    save_image(model(x), f'{i}.png')\n"
    assert "all of it: its rows are written to files" in ddp(TRAIN + loop)
    first = loop.replace("    save", "    if i == 0:\n        save")
    assert "sampler=rank_rows(" in ddp(TRAIN + first)
    shared = ddp(TRAIN + loop.replace("test_loader", "loader"))
    assert any("this rank's rows only" in reason for reason in reasons(shared))


def test_what_a_dictionary_holds_is_reduced_where_it_is_printed():
    lines = "        log = {}\n        log['loss'] = loss.item()\n        for k, v in log.items():\n            text += f'{k} {v}'\n        total +="
    after = ddp(changed("        total +=", lines).replace("total = 0.0", "total, text = 0.0, ''"))
    assert "            global_v = all_mean(v)\n            text += f'{k} {global_v}'\n" in after


def test_a_function_that_is_called_train_gives_no_loader():
    text = "from logs import Logger\n" + TRAIN + "loss = train(loader)\nLogger().log_value('loss', loss)\n"
    assert reasons(ddp(text.replace("Logger().log", "logger.log"))) == reasons(ddp(TRAIN + "train(loader)\n"))


def test_sizes_beside_rows_are_no_rows():
    text = changed(
        "loss = criterion(model(x), y)", "a, b = torch.split(model(x), [len(x), 0], 0)\n        loss = criterion(a, y)"
    )
    assert left(ddp(text)) == []


def test_two_statements_on_one_line_are_followed_by_the_wrapper():
    text = changed("model = nn.Linear(4, 2)\n", "").replace("optimizer =", "model = nn.Linear(4, 2); optimizer =")
    line = "model = nn.Linear(4, 2); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    for source in (text, f"def main():\n{text[text.index('train_set') :]}\nmain()\n".replace("\n", "\n    ")):
        after = ddp(
            "import torch\nfrom torch import nn\n" * (source is not text)
            + source.replace("\n    main()\n    ", "\nmain()\n")
        )
        assert line in after
        assert after.index(line) < after.index("ddp_model = DistributedDataParallel(model)")


def test_a_dictionary_of_two_loaders_keeps_the_batch_of_the_one_that_is_whole():
    text = changed("batch_size=64, shuffle=True", "shuffle=True, **options").replace(
        "DataLoader(test_set, batch_size=64)", "DataLoader(test_set, **options)"
    )
    after = ddp(text.replace("train_set, test_set =", "options = dict(batch_size=64)\ntrain_set, test_set ="))
    assert "options = dict(batch_size=64)\n" in after
    assert 'sampler=sampler, **{**options, "batch_size": rank_share(64)})' in after


TRAINER = """\
import torch


class Trainer:
    def run(self, model, loader, optimizer, callback):
        for x, y in loader:
            self.loss = torch.nn.functional.mse_loss(model(x), y)
            self.loss.backward()
            optimizer.step()
            callback(self)


def show(trainer):
    print(trainer.loss.item())
"""


def test_what_an_object_keeps_of_its_rows_and_others_show_is_said():
    assert any("trainer.loss is of this rank's rows" in reason for reason in reasons(ddp(TRAINER)))


def test_ranks_draw_alike_where_a_sampler_is_left_to_a_person():
    after = rewrite(
        """\
import random
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

class Runs(Sampler):
    def __iter__(self):
        for _ in range(4):
            start = random.randint(0, 24)
            yield from range(start, start + 8)

random.seed(1)
torch.manual_seed(1)
data = TensorDataset(torch.rand(32, 2), torch.rand(32, 1))
loader = DataLoader(data, batch_size=8, sampler=Runs(data))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        "ddp",
        "train.py",
    )
    assert "# TODO(ddp): a sampler of one's own" in after
    assert "initial_seed" not in after
