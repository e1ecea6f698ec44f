"""What hand-written DDP becomes: what a name, a call or a test means is told by what it holds, not by how it is called."""

import ast

import pytest

pytest.importorskip("libcst")

from test_migrate import TRAIN

from ddp_patch.migrate.rewrite import left, rewrite

LINE = "import ddp_patch; ddp_patch.enable()\n"
HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
START = "dist.init_process_group('gloo')\n"


def plain(code, head=HEAD + START):
    """Give what becomes of a script's own lines, without the imports."""
    after = rewrite(head + code, "patch", "train.py")
    ast.parse(after)
    assert rewrite(after, "patch", "train.py") == after
    for line in (LINE, "from torch.utils.data import DataLoader\n", "import torch\n"):
        after = after.removeprefix(line)
    return after.lstrip("\n")


def notes(code, head=HEAD + START):
    return [reason for _, reason in left(rewrite(head + code, "patch", "train.py"))]


# -- names of wrapped models --


@pytest.mark.parametrize(
    "code",
    [
        "net = Net()\nmodel = DDP(net)\nprint(f(lambda model: model(x)), [model for model in models])\n",
        "net = Net()\nmodel = DDP(net)\nmodel(x)\nmodel = other()\nmodel(x)\n",
        "net = Net()\nmodel = DDP(net)\nnet = other()\nmodel(x)\n",
        "net = Net()\nmodel = DDP(net)\n\n\ndef run(net):\n    return net(x) - model(x)\n",
        "def set_up():\n    global model\n    net = Net()\n    model = DDP(net)\n\n\nset_up()\nmodel(x)\n",
        "class Trainer:\n    def __init__(self, model):\n        self.model = DDP(model, device_ids=[0])\n\n"
        "    def run(self):\n        self.model(x)\n",
    ],
)
def test_a_wrapped_model_keeps_its_name_where_the_other_one_means_something_else(code):
    assert plain(code) == code.replace("DDP(net)", "net").replace("DDP(model, device_ids=[0])", "model")


def test_a_prepared_attribute_keeps_its_name():
    code = "class A:\n    def __init__(self, model):\n        self.model = {}\n\n    def run(self):\n        self.model(x)\n"
    head = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
    assert plain(code.format("accelerator.prepare(model)"), head) == code.format("model")


def test_a_wrapped_model_is_called_by_the_name_of_the_model():
    code = "def main():\n    net = Net()\n    model = DDP(net)\n    fit(model)\n\n    def inner():\n        return model(x)\n"
    without = "def main():\n    net = Net()\n    fit(net)\n\n    def inner():\n        return net(x)\n"
    assert plain(code) == without


def test_a_parameter_of_the_same_name_is_another_model():
    code = "net = Net()\nmodel = DDP(net)\n\n\ndef acc(model):\n    return model(x)\n\n\nacc(ema)\nacc(model)\n"
    assert plain(code) == code.replace("model = DDP(net)\n", "").replace("acc(model)\n", "acc(net)\n")


# -- numbers of processes --


@pytest.mark.parametrize(
    "code",
    [
        "def lora(dim, rank):\n    return nn.Linear(dim, rank).to(device)\n\n\nlora(8, 4)\n",
        "def lora(dim, rank):\n    return DDP2(nn.Linear(dim, rank), device_ids=[0]).cuda(0)\n\n\nlora(8, 4)\n",
        "envs = make_envs(args.num_processes)\nprint(cfg.world_size)\n",
        "def grid(world_size):\n    return torch.zeros(world_size, world_size)\n\n\ngrid(5)\n",
        "verbose = RANK == 0\nif args.quiet:\n    verbose = False\nif verbose:\n    evaluate()\n",
        "def main(verbose):\n    if args.loud:\n        verbose = RANK == 0\n    if verbose:\n        evaluate()\n",
        "seed = RANK\nseed = seed + args.seed\ntorch.manual_seed(seed)\n",
        "i = RANK\nfor i in range(3):\n    print(i)\n",
        "a, b = RANK, 1\na, b = f()\nprint(a, b)\n",
        "x = 7\nx %= WORLD\nprint(x)\n",
    ],
)
def test_what_is_no_number_of_processes_keeps_its_value(code):
    one = code.replace("RANK == 0", "True").replace("RANK", "0").replace("WORLD", "1")
    assert plain(code.replace("RANK", "dist.get_rank()").replace("WORLD", "dist.get_world_size()")) == one


@pytest.mark.parametrize(
    ("code", "left_over"),
    [
        ("acc = Accelerator()\nprint(acc.num_processes, acc.state.num_processes)\n", "print(1, 1)\n"),
        ("args.world_size = dist.get_world_size()\nprint(args.world_size)\n", "print(1)\n"),
        (
            "n = torch.cuda.device_count()\nmp.spawn(main, args=(n,), nprocs=n)\nprint(8 // n)\n",
            "n = torch.cuda.device_count()\nmain(0, 1)\nprint(8)\n",
        ),
        (
            "def setup(i, n):\n    dist.init_process_group('gloo', rank=i, world_size=n)\n\n\n"
            "def main(i, total):\n    setup(i, total)\n    print(8 // total)\n",
            "def main(i, total):\n    print(8)\n",
        ),
        ("rank = 0\nif ddp:\n    rank = dist.get_rank()\nprint(rank)\n", "rank = 0\nprint(0)\n"),
    ],
)
def test_a_number_of_processes_is_known_by_where_it_comes_from_and_goes(code, left_over):
    assert plain(code) == left_over


# -- samplers --


SAMPLED = "from torch.utils.data import DataLoader, DistributedSampler\n"


@pytest.mark.parametrize(
    ("code", "left_over"),
    [
        (
            "s = DistributedSampler(test, shuffle=False)\na = DataLoader(test, 8 // N, sampler=s)\n"
            "s = DistributedSampler(train)\nb = DataLoader(train, 8 // N, sampler=s)\n",
            "a = DataLoader(test, 8, shuffle=False)\nb = DataLoader(train, 8, shuffle=True)\n",
        ),
        (
            "s = None\nif train:\n    s = DistributedSampler(ds)\na = DataLoader(ds, 8 // N, sampler=s)\n",
            "s = None\na = DataLoader(ds, 8, shuffle=train)\n",
        ),
        (
            "s = DistributedSampler(ds, shuffle=False) if args.test else DistributedSampler(ds)\n"
            "a = DataLoader(ds, 8 // N, sampler=s)\n",
            "a = DataLoader(ds, 8, shuffle=not args.test)\n",
        ),
        (
            "s = DistributedSampler(ds) if args.distributed else None\n"
            "a = DataLoader(ds, 8 // N, shuffle=(s is None), sampler=s)\n",
            "a = DataLoader(ds, 8, shuffle=True)\n",
        ),
        (
            "if args.distributed:\n    s = DistributedSampler(ds)\nelse:\n    s = RandomSampler(ds)\n"
            "a = DataLoader(ds, 8 // N, sampler=s)\n",
            "if args.distributed:\n    pass\nelse:\n    s = RandomSampler(ds)\na = DataLoader(ds, 8, shuffle=True)\n",
        ),
        (
            "s = DistributedSampler(ds)\na = DataLoader(ds, 8 // N, sampler=s)\nfor epoch in range(3):\n"
            "    if s is not None:\n        s.set_epoch(epoch)\n    a.sampler.set_epoch(epoch)\n    step(a)\n",
            "a = DataLoader(ds, 8, shuffle=True)\nfor epoch in range(3):\n    step(a)\n",
        ),
        (
            "def train(loader, s=None):\n    for epoch in range(3):\n        if s:\n            s.set_epoch(epoch)\n"
            "        step(loader)\n\n\ns1 = DistributedSampler(ds)\na = DataLoader(ds, 8 // N, sampler=s1)\n"
            "train(a, s=s1)\n",
            "def train(loader, s=None):\n    for epoch in range(3):\n        step(loader)\n\n\ns1 = None\n"
            "a = DataLoader(ds, 8, shuffle=True)\ntrain(a, s=s1)\n",
        ),
        (
            "def make(ds):\n    return DataLoader(ds, 8 // N, sampler=DistributedSampler(ds))\n\n\n"
            "class Trainer:\n    def __init__(self, data):\n        self.data = data\n\n    def run(self, epoch):\n"
            "        self.data.sampler.set_epoch(epoch)\n        step(self.data)\n\n\nTrainer(make(ds)).run(0)\n",
            "def make(ds):\n    return DataLoader(ds, 8, shuffle=True)\n\n\n"
            "class Trainer:\n    def __init__(self, data):\n        self.data = data\n\n    def run(self, epoch):\n"
            "        step(self.data)\n\n\nTrainer(make(ds)).run(0)\n",
        ),
    ],
)
def test_a_loader_shuffles_as_the_sampler_did_that_it_has(code, left_over):
    after = plain(code.replace("// N", "// dist.get_world_size()"), SAMPLED + HEAD + START)
    assert after == left_over
    assert "TODO" not in after


@pytest.mark.parametrize(
    "code",
    [
        'kw = {"batch_size": 32, "sampler": s}\na = DataLoader(ds, **kw)\n',
        "a = DataLoader(ds, batch_sampler=BatchSampler(s, 32, True))\n",
        "a = DataLoader(ds, 32, False, s)\n",
        "if a:\n    s = WeightedRandomSampler(w, 9)\na = DataLoader(ds, 32, sampler=s)\n",
    ],
)
def test_a_sampler_that_stays_goes_on_with_another_order_in_every_epoch_and_is_said(code):
    code = "s = DistributedSampler(ds)\n" + code + "for epoch in range(3):\n    s.set_epoch(epoch)\n    step(a)\n"
    after = plain(code, SAMPLED + HEAD + START)
    assert "    s.set_epoch(epoch)\n" in after
    assert [reason for _, reason in left(after)] == [notes(code, SAMPLED + HEAD + START)[0]]
    assert "gave each rank its rows" in left(after)[0][1]


def test_what_else_has_epochs_keeps_them():
    code = "dataset.set_epoch(epoch)\nloss_fn.set_epoch(epoch)\n"
    assert plain(code) == code
    assert (
        rewrite("import ddp_patch; ddp_patch.enable()\n" + TRAIN + code, "ddp", "train.py").count("n.set_epoch(epoch)")
        == 1
    )


def test_a_sampler_of_another_file_is_said():
    code = "def fit(data_loader, epoch):\n    data_loader.sampler.set_epoch(epoch)\n"
    assert ["another file says" in reason for reason in notes(code)] == [True]


# -- statements --


def test_what_tells_a_script_that_it_is_distributed_tells_it_that_it_is_not():
    code = (
        "def main(args):\n    utils.init_distributed_mode(args)\n    if args.distributed:\n"
        "        s = DistributedSampler(ds)\n    else:\n        s = RandomSampler(ds)\n"
        "    a = DataLoader(ds, 8 // utils.get_world_size(), sampler=s)\n    print(args.rank, args.world_size)\n    fit(a, args)\n"
    )
    assert plain(code, SAMPLED + HEAD) == (
        "def main(args):\n    args.distributed = False\n    s = RandomSampler(ds)\n"
        "    a = DataLoader(ds, 8, shuffle=True)\n    print(0, 1)\n    fit(a, args)\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        "game.broadcast(move)\nthreading.barrier()\nself.barrier()\nmesh.all_reduce(t)\n",
        "def init(i):\n    np.random.seed(torch.initial_seed() % 2**32)\n\n\nloader = L(ds, worker_init_fn=init)\n",
        "def cleanup():\n    GONE\n\n\natexit.register(cleanup)\n",
        "def update(t):\n    GONE\n\n\nx = update(t)\n",
        "def unused(t):\n    GONE\n",
        "def noop():\n    pass\n\n\nnoop()\n",
    ],
)
def test_what_only_has_the_name_of_a_collective_stays(code):
    assert plain(code.replace("GONE", "dist.barrier()")) == code.replace("GONE", "pass")


def test_a_function_that_does_nothing_any_more_goes_with_its_own_calls():
    code = "def cleanup():\n    dist.destroy_process_group()\n\n\ndef update(t):\n    dist.all_reduce(t)\n\n\n"
    calls = "update(t)\nif dist.get_rank() == 0:\n    ema.update()\n    update(t)\ntmpdir.cleanup()\ncleanup()\n"
    assert plain(code + calls) == "ema.update()\ntmpdir.cleanup()\n"


def test_an_argument_that_is_read_stays():
    code = "parser.add_argument('--world-size', type=int)\nprint(parser.parse_args().world_size)\n"
    assert plain(code) == code


def test_a_batch_of_each_rank_is_said_wherever_the_loader_stands():
    code = "if dist.is_initialized() or dist.get_rank() == 0:\n    B\n    s = DistributedSampler(ds)\n    a = DataLoader(ds, n, sampler=s)\n"
    assert ["multiply it" in note for note in notes(code.replace("B", "n = 8"), SAMPLED + HEAD + START)] == [True]
    assert notes(code.replace("B", "n = 8 // dist.get_world_size()"), SAMPLED + HEAD + START) == []


# -- rates and divisors --


@pytest.mark.parametrize(
    ("code", "left_over"),
    [
        ("o = SGD(p, lr=0.1 * N)\n", "o = SGD(p, lr=0.1)\n"),
        ("o = SGD(p, 0.1 * N)\n", "o = SGD(p, 0.1)\n"),
        ("n = N\nargs.lr *= n\n", ""),
        ("if N > 1:\n    lr = lr * N\n", ""),
        ("g = [{'params': p, 'lr': 0.1 * N}]\n", "g = [{'params': p, 'lr': 0.1}]\n"),
        ("s = OneCycleLR(o, max_lr=0.1 * math.sqrt(N))\n", "s = OneCycleLR(o, max_lr=0.1 * math.sqrt(1))\n"),
    ],
)
def test_a_rate_that_loses_the_number_of_ranks_is_said(code, left_over):
    code = code.replace("N", "dist.get_world_size()")
    first, _, rest = plain(code).partition("\n")
    assert ["multiply this by that number too" in note for note in notes(code)] == [True]
    assert "TODO" in first
    assert rest == left_over


REDUCED = """\
def reduce_mean(t, nprocs):
    t = t.clone()
    dist.all_reduce(t)
    t /= nprocs
    return t


"""


@pytest.mark.parametrize(
    "code",
    [
        REDUCED + "reduce_mean(loss, torch.cuda.device_count())\n",
        REDUCED + "reduce_mean(loss, args.gpus)\n",
        REDUCED,
        "count = torch.cuda.device_count()\ndist.all_reduce(total)\nprint(total.item() / count / len(loader))\n",
        "dist.all_reduce(total)\ntotal.div_(args.n_gpus)\n",
    ],
)
def test_what_divides_a_sum_over_ranks_by_what_may_be_their_number_is_said(code):
    assert ["it has to be 1" in note for note in notes(code)] == [True]


@pytest.mark.parametrize(
    "code",
    [
        REDUCED + "reduce_mean(loss, dist.get_world_size())\n",
        "n = torch.cuda.device_count()\n" + REDUCED + "reduce_mean(loss, n)\nmp.spawn(main, nprocs=n)\n",
        "dist.all_reduce(right)\ndist.all_reduce(seen)\nprint(right / seen, right / len(test_set))\n",
        "print(total / args.n_gpus)\n",
        "o = SGD(p, lr=0.1 if dist.get_rank() == 0 else 0.2)\n",
    ],
)
def test_what_needs_no_number_of_ranks_is_not_said(code):
    assert notes(code) == []
