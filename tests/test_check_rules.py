"""Rules on short scripts: first what each must leave alone, then what it must find."""

import pytest

from ddp_patch.check.checking import check_source
from ddp_patch.check.table import table
from ddp_patch.source import facts_of_text

HEAD = """
import os, random, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
"""
DDP = HEAD + "import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
LOOP = """
def train(model, train_loader, criterion, optimizer):
    for i, (x, y) in enumerate(train_loader):
        output = model(x)
        loss = criterion(output, y)
        loss.backward()
        optimizer.step()
"""
LAYERS = (
    HEAD
    + LOOP
    + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.conv0 = nn.Conv2d(1, 1, 1)\n"
    + "        self.conv1 = nn.Conv2d(1, 1, 1)\n    def forward(self, x):\n"
)


def found(text, *codes):
    selected = set(codes) if codes else set(table())
    return [reported.rule.code for reported in check_source(facts_of_text(text).source, selected)]


LEFT_ALONE = {
    "an empty file": "",
    "a file without torch": "import os\nprint(1)\nos.remove('x')\nopen('y', 'w')\n",
    "a module of a model": HEAD + "class Net(nn.Module):\n    def forward(self, x):\n        return x\n",
    "a script that only evaluates": HEAD + "print(torch.load('x'))\ntorch.save(1, 'y')\n",
    "a test of a project": "import pytest\n" + HEAD + LOOP + "\nprint(1)\ntorch.manual_seed(0)\nF.dropout(x)\n",
    "a script of Accelerate": HEAD + LOOP + "\nimport accelerate\ntorch.save(1, 'x')\nprint(1)\n",
    "a script of Lightning": HEAD + LOOP + "\nimport pytorch_lightning as pl\ntorch.save(1, 'x')\n",
    "a script with ddp_patch": "import ddp_patch; ddp_patch.enable()\n"
    + HEAD
    + LOOP
    + "\ntorch.save(1, 'x')\nprint(1)\n",
}


@pytest.mark.parametrize("what", LEFT_ALONE)
def test_nothing_is_found_in(what):
    assert found(LEFT_ALONE[what]) == []


NO = [
    ("DDP101", DDP + LOOP + "s = torch.utils.data.DistributedSampler(d)\nfor e in range(3):\n    s.set_epoch(e)\n"),
    ("DDP101", DDP + LOOP + "s = torch.utils.data.DistributedSampler(d, shuffle=False)\n"),
    ("DDP101", DDP + LOOP + "val_sampler = torch.utils.data.DistributedSampler(d)\n"),
    ("DDP101", DDP + "def make(d):\n    return torch.utils.data.DistributedSampler(d)\n"),
    ("DDP102", HEAD + LOOP + "    fraction = i / len(train_loader.dataset)\n"),
    ("DDP102", HEAD + LOOP + "n = 100 / len(names)\n"),
    ("DDP103", HEAD + LOOP + "        step += 1\n"),
    ("DDP103", HEAD + LOOP + "        seen[x.shape[0]] += x.sum()\n        parts['n'] += 1\n"),
    ("DDP103", HEAD + LOOP + "        rows[k : k + len(x)] = output\n        k += len(x)\n"),
    ("DDP103", HEAD + LOOP + "        text += f'{loss.item()}'\n"),
    ("DDP103", HEAD + LOOP.replace("loss = criterion(output, y)", "loss = 0\n        loss += criterion(output, y)")),
    (
        "DDP103",
        DDP + LOOP.replace("        optimizer.step()", "        total += loss.detach()\n    dist.all_reduce(total)"),
    ),
    ("DDP103", DDP + LOOP + "        total += reduce_tensor(loss).item()\n"),
    ("DDP103", HEAD + "def run(loss, xs):\n    for x in xs:\n        total += x\n    loss.backward()\n"),
    ("DDP104", HEAD + LOOP + "        names.append(i)\n"),
    ("DDP104", HEAD + LOOP + "        losses.append(reduce_tensor(loss).item())\n"),
    ("DDP104", "import torchmetrics\n" + HEAD + LOOP + "        metric.update(output, y)\n"),
    ("DDP105", DDP + "if dist.get_rank() == 0:\n    print(1)\n"),
    ("DDP105", DDP + "dist.init_process_group()\nloss.backward()\nprint(f'rank {rank}')\n"),
    ("DDP105", DDP + "dist.init_process_group()\nloss.backward()\nif os.getenv('RANK', '0') == '0':\n    print(1)\n"),
    ("DDP105", HEAD + LOOP + "def print(*a): pass\nprint(1)\n"),
    ("DDP106", DDP + LOOP + "if args.local_rank in (-1, 0):\n    torch.save(1, 'x')\n"),
    ("DDP106", DDP + LOOP + "if is_main_process():\n    torch.save(1, 'x')\n"),
    ("DDP106", DDP + LOOP + "def save():\n    if rank != 0:\n        return\n    torch.save(1, 'x')\n"),
    ("DDP106", DDP + LOOP + "def save():\n    torch.save(1, 'x')\nif rank == 0:\n    save()\n"),
    ("DDP106", DDP + LOOP + "@rank_zero_only\ndef save():\n    torch.save(1, 'x')\n"),
    (
        "DDP106",
        DDP + LOOP + "master_process = rank == 0\nif step % 10 == 0 and master_process:\n    torch.save(1, 'x')\n",
    ),
    ("DDP106", DDP + LOOP + "torch.save(1, f'x{rank}.pt')\n"),
    (
        "DDP106",
        DDP
        + LOOP
        + "def work(proc, a):\n    if proc == 0:\n        torch.save(1, 'x')\ntorch.multiprocessing.spawn(work, args=(a,))\n",
    ),
    *(
        ("DDP106", DDP + LOOP + text + "torch.save(sd, path)\n")
        for text in (
            "path = f'ck{dist.get_rank()}.pt'\n",
            "name = 'ck%d.pt' % rank\npath = os.path.join(args.out, name)\n",
            "path = 'ck.pt'\nif dist.is_initialized():\n    path = f'ck{rank}.pt'\n",
            "import io\npath = io.BytesIO()\n",
            "from pathlib import Path\nfolder = Path('out', str(local_rank))\npath = folder.joinpath('x')\n",
            "def named():\n    return f'ck{dist.get_rank()}.pt'\npath = named()\n",
            "import tempfile\nwith tempfile.TemporaryDirectory() as tmp:\n    path = os.path.join(tmp, 'x')\n",
            "import tempfile\ntmp = tempfile.NamedTemporaryFile()\npath = tmp.name\n",
        )
    ),
    ("DDP106", DDP + LOOP + "def save(sd, path):\n    torch.save(sd, path)\nsave(sd, f'ck{dist.get_rank()}.pt')\n"),
    (
        "DDP106",
        DDP + LOOP + "def work(gpu, a):\n    torch.save(1, f'x{gpu}')\ntorch.multiprocessing.spawn(work, args=(a,))\n",
    ),
    ("DDP107", DDP + LOOP + "path = f'log{dist.get_rank()}.txt'\nopen(path, 'w')\nnp.savetxt(path, x)\n"),
    ("DDP107", DDP + LOOP + "import logging\nlogging.basicConfig(filename=f'{dist.get_rank()}.log')\n"),
    ("DDP107", DDP + LOOP + "if config['rank'] == 0:\n    open('x', 'w')\n"),
    ("DDP107", HEAD + LOOP + "null = open(os.devnull, 'w')\n"),
    ("DDP107", HEAD + LOOP + "open('x').read()\nopen('y', 'rb')\n"),
    (
        "DDP107",
        HEAD + LOOP + "import io\nimport matplotlib.pyplot as plt\nbuffer = io.BytesIO()\nplt.savefig(buffer)\n",
    ),
    ("DDP108", HEAD + LOOP + "model.load_state_dict(torch.load('x', map_location=device))\n"),
    ("DDP108", HEAD + LOOP + "model.load_state_dict(torch.load('x', 'cpu'))\n"),
    ("DDP108", HEAD + LOOP + "data = torch.load('data.pt')\n"),
    ("DDP108", HEAD + LOOP + "def predict():\n    model.load_state_dict(torch.load('x'))\n"),
    ("DDP109", DDP + "m = DDP(n, device_ids=[local_rank])\n"),
    ("DDP109", HEAD + "m = nn.DataParallel(n, device_ids=range(4))\n"),
    ("DDP110", HEAD + LOOP + "torch.device('cuda')\nx.to(dtype=torch.float32)\nx.to('cuda')\nx.cuda()\n"),
    ("DDP110", DDP + LOOP + "if args.local_rank == -1:\n    d = torch.device('cuda:0')\n"),
    ("DDP111", DDP + "dist.init_process_group()\ntorch.cuda.set_device(r)\nm.cuda()\nloss.backward()\n"),
    ("DDP112", HEAD + LOOP + "os.environ['OMP_NUM_THREADS'] = '1'\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n"),
    ("DDP112", DDP + LOOP + "os.environ['CUDA_VISIBLE_DEVICES'] = str(rank)\n"),
    ("DDP112", DDP + LOOP + "gpu = dist.get_rank() % 8\nos.environ['CUDA_VISIBLE_DEVICES'] = f'{gpu}'\n"),
    ("DDP113", HEAD + LOOP + "m = nn.DataParallel(nn.BatchNorm2d(3))\n"),
    ("DDP113", DDP + LOOP + "m = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3))\n"),
    ("DDP113", HEAD + LOOP + "m = nn.LayerNorm(3)\n"),
    ("DDP114", HEAD + LOOP + "val_loader = DataLoader(d, batch_size=32)\n"),
    ("DDP114", DDP + LOOP + "l = DataLoader(d, batch_size=32)\ntrain(m, l, c, o)\n"),
    (
        "DDP114",
        HEAD
        + LOOP
        + "val = DataLoader(d, batch_size=8)\nbatches = iter(val)\nfor i in range(9):\n    show(next(batches))\n",
    ),
    (
        "DDP114",
        HEAD
        + LOOP
        + "l = {'train': make(d), 'val': DataLoader(d, batch_size=8)}\ntrain(m, l['train'], c, o)\nfor x in l:\n    pass\n",
    ),
    (
        "DDP114",
        HEAD
        + "l = {'train': make(d), 'val': DataLoader(d, batch_size=8)}\nfor x in l['train']:\n    model(x).sum().backward()\n",
    ),
    ("DDP114", HEAD + LOOP + "k = {'batch_size': 1}\nl = DataLoader(d, **k)\ntrain(m, l, c, o)\n"),
    ("DDP114", HEAD + LOOP + "l = DataLoader(d, **unknown())\ntrain(m, l, c, o)\n"),
    ("DDP133", HEAD + LOOP + "from tqdm import tqdm\noptions = dict(disable=rank != 0)\ntqdm(d, **options)\n"),
    ("DDP133", HEAD + LOOP + "from tqdm import tqdm\ndef bar(**options):\n    return tqdm(d, **options)\n"),
    (
        "DDP139",
        DDP
        + LOOP
        + "m = DDP(n)\nk = {}\nif many:\n    k['sampler'] = make(d)\nl = DataLoader(d, **k)\ntrain(m, l, c, o)\n",
    ),
    ("DDP115", DDP + "train_sampler = torch.utils.data.DistributedSampler(d)\n"),
    ("DDP116", HEAD + "def attention(q, k, v):\n    return q @ k.transpose(-2, -1)\nloss.backward()\n"),
    ("DDP116", HEAD + LOOP + "def gram(x):\n    f = x.view(c, h * w)\n    return torch.mm(f, f.t())\n"),
    ("DDP117", HEAD + LOOP + "l = F.nll_loss(a, b, reduction='sum').item()\n"),
    ("DDP117", HEAD + "loss = F.mse_loss(a, b, reduction='sum') / len(a)\nloss.backward()\n"),
    ("DDP117", HEAD + "loss = F.mse_loss(a, b, reduction='mean')\nloss.backward()\n"),
    ("DDP118", DDP + LOOP + "nn.Dropout()\ntorch.manual_seed(seed + dist.get_rank())\n"),
    ("DDP118", DDP + LOOP + "nn.Dropout()\nseed = args.seed + utils.get_rank()\ntorch.manual_seed(seed)\n"),
    ("DDP118", HEAD + LOOP + "torch.manual_seed(0)\n"),
    ("DDP118", HEAD + LOOP + "nn.Dropout()\nargs.seed = random.randint(1, 99)\ntorch.manual_seed(args.seed)\n"),
    ("DDP118", HEAD + LOOP + "net = Net(dropout=0)\ntorch.manual_seed(0)\n"),
    (
        "DDP118",
        HEAD
        + LOOP
        + "parser.add_argument('--dropout', type=float, default=0.0)\nargs = parser.parse_args()\n"
        + "dropout = args.dropout\nnet = Net(dropout=dropout)\ntorch.manual_seed(0)\n",
    ),
    ("DDP118", HEAD + LOOP + "m.weight.data.normal_(0, 1)\nnn.init.normal_(m.bias)\ntorch.manual_seed(0)\n"),
    ("DDP118", HEAD + LOOP + "DataLoader(d, sampler=randomSequentialSampler(d))\ntorch.manual_seed(0)\n"),
    (
        "DDP118",
        DDP
        + LOOP
        + "def work(i):\n    nn.Dropout()\ndef main():\n    torch.manual_seed(0)\n    torch.multiprocessing.spawn(work)\n",
    ),
    ("DDP119", HEAD + LOOP + "torch.manual_seed(0)\na, b = torch.utils.data.random_split(d, [1, 2])\n"),
    ("DDP119", HEAD + LOOP + "np.random.shuffle(names)\n"),
    ("DDP120", HEAD + LOOP + "if epoch > best_epoch:\n    pass\n"),
    ("DDP120", HEAD + "def f(loss):\n    if loss.item() < best:\n        pass\n    loss.backward()\n"),
    ("DDP120", HEAD + LOOP + "        prob = output.sigmoid()\n        pred = prob > threshold\n"),
    ("DDP120", HEAD + LOOP + "        pred = output > best_threshold\n        hits = pred if show else None\n"),
    ("DDP120", HEAD + LOOP + "        kept = [o for o in output if o.max() > args.conf_threshold and o.sum()]\n"),
    ("DDP121", HEAD + LOOP + "        if i > 100:\n            break\n"),
    ("DDP121", HEAD + LOOP + "        if torch.isnan(reduced_loss):\n            break\n"),
    ("DDP121", HEAD + LOOP + "        if x.size()[0] != args.batch_size:\n            continue\n"),
    ("DDP122", HEAD + LOOP + "scheduler.step()\nscheduler.step(epoch)\n"),
    ("DDP123", DDP + "if rank != 0:\n    dist.barrier()\nprepare()\nif rank == 0:\n    dist.barrier()\n"),
    ("DDP123", DDP + "if dist.is_initialized():\n    dist.barrier()\n"),
    (
        "DDP123",
        DDP
        + "class S(Base):\n    def __iter__(self):\n        if get_rank() == 0:\n            save(super().__iter__())\n"
        + "        dist.barrier()\n",
    ),
    ("DDP123", DDP + "def run(self):\n    if rank == 0:\n        super().run()\n    dist.barrier()\n"),
    ("DDP123", DDP + "if args.local_rank >= 0:\n    dist.barrier()\n"),
    ("DDP123", DDP + "if rank < 0:\n    sys.exit()\nif args.local_rank != -1:\n    dist.barrier()\n"),
    ("DDP124", DDP + "if -1 != rank:\n    dist.all_reduce(x)\nif rank > -1:\n    dist.broadcast(x)\n"),
    ("DDP124", DDP + "if world_size > 1:\n    dist.all_reduce(x)\n"),
    ("DDP124", DDP + "if rank == 0:\n    dist.send(x, 1)\n"),
    ("DDP125", DDP + "m = DDP(nn.BatchNorm1d(3))\nif rank == 0:\n    m.module(x)\n"),
    (
        "DDP126",
        DDP + "m = DDP(n)\nfor x in DataLoader(d):\n    m(x).backward()\nm.module.eval()\nm.module.state_dict()\n",
    ),
    ("DDP126", DDP + "m = DDP(n)\n@torch.no_grad()\ndef f(loader):\n    for x in loader:\n        m.module(x)\n"),
    (
        "DDP126",
        DDP
        + LOOP
        + "m = DDP(n)\n@torch.inference_mode()\ndef f(loader):\n    for x in loader:\n        m.module(x)\n"
        + "for x in DataLoader(d):\n    with torch.inference_mode():\n        m.module(x)\n",
    ),
    ("DDP127", HEAD + LOOP + "        if i % 10 == 0:\n            print(1)\n"),
    (
        "DDP127",
        DDP
        + LOOP.replace("        optimizer.step()", "        if i % 4 == 0:\n            optimizer.step()")
        + "model.no_sync()\n",
    ),
    *(
        ("DDP128", LAYERS + text)
        for text in (
            "        for i in range(2):\n            x = getattr(self, f'conv{i}')(x)\n        return x\n",
            "        for i in range(2):\n            x = getattr(self, 'conv%d' % i)(x)\n        return x\n",
            "        for i in range(2):\n            x = getattr(self, 'conv{}'.format(i))(x)\n        return x\n",
            "        for i in range(2):\n            x = getattr(self, 'conv' + str(i))(x)\n        return x\n",
            "        for name in self.order:\n            x = self.get_submodule(name)(x)\n        return x\n",
            "        for m in self.children():\n            x = m(x)\n        return x\n",
            "        for _, m in self.named_children():\n            x = m(x)\n        return x\n",
            "        for m in self._modules.values():\n            x = m(x)\n        return x\n",
            "        for m in list(self.modules())[1:]:\n            x = m(x)\n        return x\n",
            "        return x\nnet = Net()\nfor i in range(2):\n    x = getattr(net, f'conv{i}')(x)\n",
        )
    ),
    ("DDP129", DDP + "for p in n.parameters():\n    p.requires_grad = False\nm = DDP(n)\nloss.backward()\n"),
    *(
        ("DDP129", DDP + LOOP + text)
        for text in (
            "m = DDP(Net())\nfor p in teacher.parameters():\n    p.requires_grad = False\n",
            "m = DDP(n)\nteacher = copy.deepcopy(m.module)\nfor p in teacher.parameters():\n    p.requires_grad_(False)\n",
            "n.head.requires_grad_(False)\nm = DDP(n)\n",
            "m = DDP(n)\nx = x.requires_grad_()\nout = m(x)\nout.requires_grad_()\n",
            "m = DDP(n)\nfor p in m.parameters():\n    print(p)\nfor p in t.parameters():\n    p.requires_grad = False\n",
            "if dist.is_initialized():\n    m = DDP(m)\nelse:\n    m.head.requires_grad_(False)\n",
            "m = DDP(n)\nfor q in [p for p in t.parameters()]:\n    q.requires_grad = False\n",
        )
    ),
    *(
        ("DDP130", DDP + text + "if rank == 0:\n    torch.save(raw.state_dict(), 'x')\n")
        for text in (
            "raw = m\nm = DDP(m)\n",
            "raw = n\nm = DDP(n)\n",
            "torch.save(m.state_dict(), 'x')\nm = DDP(m)\nraw = m.module\n",
            "def bare(m):\n    return m.module if hasattr(m, 'module') else m\nm = DDP(n)\nraw = bare(m)\n",
            "def bare(m):\n    if hasattr(m, 'module'):\n        m = m.module\n    return m\nm = DDP(n)\nraw = bare(m)\n",
            "def save(m):\n    torch.save(m.state_dict(), 'x')\nraw = m\nm = DDP(m)\nsave(raw)\n",
        )
    ),
    ("DDP130", DDP + "m = DDP(n)\nraw = m.module if hasattr(m, 'module') else m\ntorch.save(raw.state_dict(), 'x')\n"),
    ("DDP130", HEAD + "m = nn.Linear(1, 1)\ntorch.save(m.state_dict(), 'x')\n"),
    (
        "DDP131",
        HEAD + "m = nn.Linear(1, 1)\nloss.backward()\ntorch.save({'model': m.state_dict(), 'step': {'m': m}}, 'x')\n",
    ),
    ("DDP131", HEAD + LOOP + "w = nn.Parameter(torch.zeros(3))\ntorch.save(w, 'x')\n"),
    ("DDP131", HEAD + LOOP + "torch.save(state, 'x')\ntorch.save({'a': 1}, 'x')\n"),
    ("DDP132", DDP + LOOP + "import wandb\nif rank == 0:\n    wandb.init()\n"),
    ("DDP132", DDP + LOOP + "from torch.utils.tensorboard import SummaryWriter\nSummaryWriter(f'runs/{rank}')\n"),
    (
        "DDP132",
        DDP
        + LOOP
        + "from torch.utils.tensorboard import SummaryWriter\nname = str(dist.get_rank())\n"
        + "path = os.path.join('runs', name)\nSummaryWriter(log_dir=path)\n",
    ),
    ("DDP133", HEAD + LOOP + "from tqdm import tqdm\ntqdm(x, disable=quiet)\ntqdm(x, **options)\n"),
    ("DDP134", HEAD + "DataLoader(d, sampler=None, shuffle=True)\nDataLoader(d, sampler=s, shuffle=s is None)\n"),
    *(
        ("DDP134", HEAD + text)
        for text in (
            "kw = {'sampler': s} if dist else {'shuffle': True}\nDataLoader(d, **kw)\n",
            "if dist:\n    kw = dict(sampler=s)\nelse:\n    kw = dict(shuffle=True)\nDataLoader(d, **kw)\n",
            "kw = dict(shuffle=True)\nif dist:\n    kw['shuffle'] = False\n    kw['sampler'] = s\nDataLoader(d, **kw)\n",
            "kw = dict(shuffle=True)\nif dist:\n    kw.update(shuffle=False, sampler=s)\nDataLoader(d, **kw)\n",
            "kw = {}\nif dist: kw['sampler'] = s\nelse: kw['shuffle'] = True\nDataLoader(d, **kw)\n",
            "kw = dict(shuffle=True)\nkw.pop('shuffle')\nDataLoader(d, sampler=s, **kw)\n",
            "kw = dict(shuffle=True)\nif dist:\n    del kw['shuffle']\nDataLoader(d, sampler=s, **kw)\n",
            "kw = dict(shuffle=True)\nkw.clear()\nDataLoader(d, sampler=s, **kw)\n",
            "kw = dict(shuffle=True)\nDataLoader(d, sampler=s, **{**kw, 'shuffle': False})\n",
            "kw = dict(shuffle=True)\nDataLoader(d, sampler=s, **{**kw, **options()})\n",
            "kw = dict(shuffle=True)\nkw = {'num_workers': 1}\nDataLoader(d, sampler=s, **kw)\n",
            "kw = dict(shuffle=True)\nfor s in ss:\n    DataLoader(d, sampler=s, **kw)\n    kw['shuffle'] = False\n",
            "kw = dict(shuffle=True)\ndef f():\n    return DataLoader(d, sampler=s, **kw)\nkw['shuffle'] = False\nf()\n",
            "def f(kw={'shuffle': True}):\n    return DataLoader(d, sampler=s, **kw)\n",
            "kw = {}\nfor i in x:\n    kw = {**kw, **other}\n    other = {**kw}\nDataLoader(d, sampler=s, **kw)\n",
        )
    ),
    ("DDP135", HEAD + "import torch.multiprocessing as mp\ndef main():\n    mp.spawn(f)\n"),
    ("DDP136", HEAD + LOOP + "os.makedirs('x', exist_ok=True)\ntry:\n    os.mkdir('y')\nexcept OSError:\n    pass\n"),
    ("DDP136", DDP + LOOP + "os.makedirs(f'out/rank{rank}')\nout = f'{dist.get_rank()}'\nos.mkdir(path=out)\n"),
    (
        "DDP136",
        DDP + LOOP + "from pathlib import Path\nout = Path(f'{dist.get_rank()}')\n(out / 'x').mkdir(parents=True)\n",
    ),
    ("DDP137", HEAD + LOOP + "import torchvision\ntorchvision.datasets.MNIST('x', download=False)\n"),
    ("DDP138", HEAD + LOOP + "DataLoader(d, sampler=torch.utils.data.SequentialSampler(d))\n"),
    (
        "DDP138",
        DDP
        + LOOP
        + "s = torch.utils.data.DistributedSampler(d)\nDataLoader(d, batch_sampler=torch.utils.data.BatchSampler(s, 2, True))\n",
    ),
    ("DDP139", DDP + LOOP + "m = DDP(n)\nl = DataLoader(d, sampler=s)\ntrain(m, l, c, o)\n"),
    ("DDP139", DDP + LOOP + "m = DDP(n)\nl = DataLoader(d, 32, False, s)\ntrain(m, l, c, o)\n"),
    (
        "DDP140",
        HEAD
        + "class S(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        yield from x[self.rank :: self.world_size]\n",
    ),
    ("DDP141", HEAD + LOOP + "DataLoader(d, num_workers=min(os.cpu_count(), 8))\nn = min([8, os.cpu_count()])\n"),
    ("DDP141", HEAD + LOOP + "n = min([8, os.cpu_count()])\nDataLoader(d, num_workers=n)\n"),
    ("DDP141", HEAD + LOOP + "DataLoader(d, num_workers=4)\nDataLoader(d, num_workers=os.cpu_count() // 8)\n"),
    ("DDP142", HEAD + "n = torch.cuda.device_count()\nnames = n * ['gpu']\n"),
    ("DDP143", DDP + "if single:\n    m = nn.DataParallel(n)\nelse:\n    m = DDP(n)\n"),
    ("DDP143", HEAD + "if torch.cuda.is_available():\n    m.cuda()\nelse:\n    m = nn.DataParallel(m)\n"),
    ("DDP144", DDP + "if a:\n    m = DDP(n)\nelse:\n    m.cuda()\n"),
    ("DDP145", DDP + "p.add_argument('--local_rank', default=os.environ['LOCAL_RANK'])\n"),
    (
        "DDP146",
        DDP + "os.environ['MASTER_PORT'] = str(port)\nif x:\n    dist.init_process_group(init_method='env://')\n",
    ),
    *(
        ("DDP147", DDP + "it = iter(train_loader)\n" + text)
        for text in (
            "while step < n:\n    try:\n        x = next(it)\n    except StopIteration:\n        epoch += 1\n"
            "        s.set_epoch(epoch)\n        it = iter(train_loader)\n        x = next(it)\n",
            "for i in range(n):\n    if i % k == 0:\n        s.set_epoch(i // k)\n        it = iter(train_loader)\n    x = next(it)\n",
            "while True:\n    s.set_epoch(e)\n    for x in train_loader:\n        pass\n    y = next(it)\n",
        )
    ),
    ("DDP148", DDP + "if x:\n    dist.init_process_group()\nloss.backward()\ncleanup()\ndef cleanup(): pass\n"),
    ("DDP149", HEAD + LOOP + "import shutil\nshutil.rmtree('x', ignore_errors=True)\nnames.remove('a')\n"),
    ("DDP149", HEAD + LOOP + "import shutil, tempfile\ntmp = tempfile.mkdtemp()\nshutil.rmtree(tmp)\n"),
    ("DDP149", DDP + LOOP + "tmp = f'x{dist.get_rank()}'\nos.rename(tmp, 'x')\nos.remove(path=tmp)\n"),
    ("DDP150", DDP + "if rank == 0:\n    torch.save(s, 'a')\ntorch.load('b')\n"),
    ("DDP201", "import ddp_patch\nddp_patch.enable()\n" + HEAD + "l = DataLoader(d)\n"),
    (
        "DDP202",
        DDP
        + "def setup():\n    if 'RANK' not in os.environ:\n        return\n    dist.init_process_group()\nsetup()\n",
    ),
    ("DDP202", DDP + "os.environ['RANK'] = '0'\nos.environ.get('RANK')\n"),
    ("DDP203", HEAD + "type(x) == torch.Tensor\ntype(x) is int\n"),
    ("DDP204", HEAD + LOOP + "        if time.time() - start > 10:\n            print(1)\n"),
    ("DDP205", HEAD + "class N(nn.Module):\n    def forward(self, x):\n        return x * self.scale.item()\n"),
    ("DDP206", HEAD + "class N(nn.Module):\n    def forward(self, x):\n        return x + torch.rand(3)\n"),
    ("DDP207", HEAD + "class N(nn.Module):\n    def forward(self, x):\n        print('here', self.scale)\n"),
    ("DDP207", HEAD + "class N(nn.Module):\n    def forward(self, x):\n        print(x.dtype, x.device, x.dim())\n"),
    (
        "DDP207",
        HEAD
        + "class N(nn.Module):\n    def forward(self, x):\n        print(x.shape)\n        return x * x.max().item()\n",
    ),
    (
        "DDP216",
        HEAD + LOOP + "class N(nn.Module):\n    def forward(self, x):\n        return torch.vmap(self.layer)(x)\n",
    ),
    ("DDP209", HEAD + "DataLoader(d, collate_fn=None)\n"),
    (
        "DDP209",
        HEAD
        + "from torch.utils.data.dataloader import default_collate\n"
        + "def load(d, collate=default_collate):\n    return DataLoader(d, collate_fn=collate)\n",
    ),
    (
        "DDP211",
        HEAD
        + "class S(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        torch.utils.data.get_worker_info()\n",
    ),
    ("DDP220", HEAD + LOOP + "breakpoint()\n"),
]


@pytest.mark.parametrize(("code", "text"), NO, ids=[f"{code}-{n}" for n, (code, _) in enumerate(NO)])
def test_a_rule_leaves_alone(code, text):
    assert found(text, code) == []


YES = [
    ("DDP101", DDP + LOOP + "s = torch.utils.data.distributed.DistributedSampler(d)\n"),
    (
        "DDP102",
        HEAD + LOOP + "    correct = output.eq(y).sum()\n    return 100.0 * correct / len(train_loader.dataset)\n",
    ),
    ("DDP103", HEAD + LOOP + "        correct += (output.argmax(1) == y).sum().item()\n"),
    ("DDP103", HEAD + LOOP + "        total += -output.log_softmax(1).gather(1, y).mean().item()\n"),
    ("DDP103", HEAD + "sums = {'loss': 0}\n" + LOOP + "        sums['loss'] += loss.item()\n"),
    (
        "DDP103",
        HEAD + LOOP.replace("enumerate(train_loader)", "enumerate(tqdm(train_loader))") + "        n += len(x)\n",
    ),
    (
        "DDP104",
        HEAD
        + LOOP
        + "        losses.update(loss.item(), x.size(0))\n".replace("losses", "meters")
        + "\nmeters = Meter()\n",
    ),
    ("DDP106", DDP + LOOP + "torch.save(1, 'x')\n"),
    ("DDP106", DDP + LOOP + "if rank is not None:\n    torch.save(1, 'x')\n"),
    ("DDP106", DDP + LOOP + "path = 'ck.pt'\ntorch.save({'rank': rank}, path)\n"),
    ("DDP106", DDP + LOOP + "args = setup(rank)\ntorch.save(1, args.out)\n"),
    (
        "DDP106",
        DDP + LOOP + "def save(path):\n    torch.save(1, path)\nsave('x')\nsave(f'ck{dist.get_rank()}.pt')\n",
    ),
    ("DDP107", DDP + LOOP + "np.save('x.npy', ranks)\n"),
    ("DDP149", DDP + LOOP + "import shutil, tempfile\nshutil.rmtree(os.path.join(tempfile.gettempdir(), 'x'))\n"),
    ("DDP106", DDP + LOOP + "if first:\n    torch.save(1, 'x')\n"),
    ("DDP106", DDP + LOOP + "if mean_rank < best:\n    torch.save(1, 'x')\n"),
    ("DDP108", HEAD + LOOP + "c = torch.load('x')\nmodel.load_state_dict(c['model'])\n"),
    ("DDP110", HEAD + LOOP + "d = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')\n"),
    ("DDP110", HEAD + LOOP + "m.cuda(0)\n"),
    ("DDP114", HEAD + LOOP + "l = DataLoader(d, batch_size=args.bs)\ntrain(m, l, c, o)\n"),
    (
        "DDP114",
        HEAD
        + "l = DataLoader(d, batch_size=8)\nbatches = iter(l)\nfor i in range(9):\n    model(next(batches)).sum().backward()\n",
    ),
    (
        "DDP114",
        HEAD
        + "def train(loader):\n    for i in range(9):\n        if i % len(loader) == 0:\n            batches = iter(loader)\n"
        + "        model(batches.next()).sum().backward()\nl = DataLoader(d, batch_size=8)\ntrain(l)\n",
    ),
    ("DDP131", HEAD + "m = nn.Linear(1, 1)\nloss.backward()\ntorch.save({'model': m, 'epoch': 1}, 'x')\n"),
    (
        "DDP114",
        HEAD + "l = {'train': DataLoader(d, batch_size=8)}\nfor x in l['train']:\n    model(x).sum().backward()\n",
    ),
    ("DDP209", HEAD + "def load(d, collate=None):\n    return DataLoader(d, collate_fn=collate)\nload(d, own)\n"),
    ("DDP114", HEAD + LOOP + "k = {'batch_size': args.bs}\nl = DataLoader(d, **k)\ntrain(m, l, c, o)\n"),
    ("DDP114", HEAD + LOOP + "k = dict(batch_size=32) if cuda else {}\nl = DataLoader(d, **k)\ntrain(m, l, c, o)\n"),
    (
        "DDP114",
        HEAD + LOOP + "k = {}\nk.update({'batch_size': 8, **more})\nl = DataLoader(d, **k)\ntrain(m, l, c, o)\n",
    ),
    (
        "DDP114",
        HEAD
        + LOOP
        + "base = {}\nbase['batch_size'] = 8\nl = DataLoader(d, **{**base, 'shuffle': True})\ntrain(m, l, c, o)\n",
    ),
    (
        "DDP114",
        HEAD
        + LOOP
        + "base = {'batch_size': 8}\nk = base.copy()\nk |= dict(num_workers=1)\nl = DataLoader(d, **k)\ntrain(m, l, c, o)\n",
    ),
    ("DDP133", HEAD + LOOP + "from tqdm import tqdm\noptions = dict(ncols=80)\ntqdm(d, **options)\n"),
    ("DDP134", DDP + "k = {'sampler': s}\nDataLoader(d, shuffle=True, **k)\n"),
    *(
        ("DDP134", HEAD + text)
        for text in (
            "kw = {}\nkw['sampler'] = s\nif many:\n    DataLoader(d, shuffle=True, **kw)\n",
            "kw = dict(shuffle=True)\nkw.update({'sampler': s})\nDataLoader(d, **kw)\n",
            "a = {'shuffle': True}\nb = dict(a, sampler=s)\nDataLoader(d, **b.copy())\n",
            "kw = {'shuffle': True}\nkw |= {'sampler': s}\nkw.pop('timeout')\nDataLoader(d, **{**kw, 'num_workers': 1})\n",
            "KW = dict(shuffle=True)\ndef f(s):\n    return DataLoader(d, sampler=s, **KW)\n",
            "DataLoader(d, **({'shuffle': True} | dict(sampler=s)))\n",
            "kw = dict(shuffle=True)\nif dist:\n    kw['sampler'] = s\n    DataLoader(d, **kw)\n",
        )
    ),
    (
        "DDP139",
        DDP + LOOP + "m = DDP(n)\nk = {'num_workers': 1}\nl = DataLoader(d, **k)\ntrain(m, l, c, o)\n",
    ),
    (
        "DDP139",
        DDP + LOOP + "m = DDP(n)\nl = DataLoader(d, batch_size=32, shuffle=True, num_workers=4)\ntrain(m, l, c, o)\n",
    ),
    ("DDP116", HEAD + "def contrastive(z):\n    return torch.matmul(z, z.T)\nloss.backward()\n"),
    ("DDP117", HEAD + "criterion = nn.CrossEntropyLoss(size_average=False)\nloss = criterion(a, b)\nloss.backward()\n"),
    ("DDP118", DDP + LOOP + "nn.Dropout()\ntorch.manual_seed(args.seed)\n"),
    (
        "DDP118",
        DDP
        + LOOP
        + "def work(i):\n    torch.manual_seed(0)\n    nn.Dropout()\ntorch.multiprocessing.spawn(work, args=(1,))\n",
    ),
    (
        "DDP138",
        HEAD
        + LOOP
        + "class Own(torch.utils.data.Sampler):\n    def __iter__(self):\n        return iter(torch.randperm(9))\n"
        + "s = Own()\nDataLoader(d, sampler=s)\n",
    ),
    ("DDP118", HEAD + LOOP + "net = Net(dropout=0.1)\ntorch.manual_seed(args.seed)\n"),
    (
        "DDP118",
        HEAD
        + LOOP
        + "parser.add_argument('--dropout', default=0.5)\nNet(dropout=args.dropout)\ntorch.manual_seed(0)\n",
    ),
    (
        "DDP118",
        HEAD + LOOP + "z.normal_(0, 1)\nif args.seed is None:\n    args.seed = 2809\ntorch.manual_seed(args.seed)\n",
    ),
    ("DDP120", HEAD + LOOP + "        is_best = loss.item() > best\n"),
    ("DDP120", HEAD + LOOP + "        if loss.item() < args.threshold:\n            save()\n"),
    ("DDP120", HEAD + LOOP + "        low = loss.item() < threshold\n        if not low and i:\n            save()\n"),
    ("DDP121", HEAD + LOOP + "        if len(y) == 0:\n            continue\n"),
    ("DDP121", HEAD + LOOP + "        if not torch.isfinite(loss):\n            sys.exit(1)\n"),
    ("DDP123", DDP + "if is_main_process():\n    dist.barrier()\n"),
    ("DDP124", DDP + "def f(x):\n    if dist.get_rank() == 0:\n        dist.all_gather(y, x)\n"),
    ("DDP123", DDP + "def run():\n    dist.barrier()\nif is_main_process():\n    run()\n"),
    *(
        ("DDP128", LAYERS + text)
        for text in (
            "        return x\n",
            "        return getattr(self, f'norm{i}')(x)\n",
            "        return x * getattr(args, name) * getattr(self, 'scale')\n",
            "        return x\n    def init_weights(self):\n        for m in self.modules():\n            m.bias.zero_()\n",
        )
    ),
    *(
        ("DDP129", DDP + LOOP + text)
        for text in (
            "m = DDP(n)\nfor p in m.parameters():\n    p.requires_grad = False\n",
            "m = DDP(n)\nfor p in n.parameters():\n    p.requires_grad_(False)\n",
            "m = DDP(n.cuda())\nn.head.requires_grad_(False)\n",
            "m = DDP(n)\nm.module.head.requires_grad_(False)\nm.module.fc.weight.requires_grad = False\n",
            "m = DDP(n)\nfor layer in m.module.layers[:3]:\n    for p in layer.parameters():\n        p.requires_grad = False\n",
            "m = DDP(n)\nfor i, (k, p) in enumerate(m.named_parameters()):\n    p.requires_grad_(False)\n",
            "a, b = DDP(n), DDP(o)\nparams = list(a.parameters())\nfor p in params:\n    p.requires_grad = False\n",
            "m = DDP(n)\n[p.requires_grad_(False) for p in m.module.parameters()]\n",
        )
    ),
    ("DDP130", DDP + "m = DDP(n)\nraw = m\nif rank == 0:\n    torch.save(raw.state_dict(), 'x')\n"),
    ("DDP130", DDP + "for i in r:\n    raw = m\n    m = DDP(m)\n    torch.save(raw.state_dict(), 'x')\n"),
    ("DDP130", DDP + "def save(m):\n    torch.save(m.state_dict(), 'x')\ndef f(n):\n    n = DDP(n)\n    save(n)\n"),
    ("DDP130", DDP + "m = DDP(n)\nif rank == 0:\n    torch.save({'model': m.state_dict()}, 'x')\n"),
    ("DDP136", HEAD + LOOP + "os.mkdir('x')\n"),
    ("DDP136", HEAD + LOOP + "if not os.path.exists(args.root):\n    os.makedirs(args.root)\n"),
    ("DDP202", HEAD + "local_rank = int(os.environ['LOCAL_RANK'])\nimport torch.distributed\n"),
    ("DDP204", HEAD + LOOP + "end = time.time() + 10\nwhile time.time() < end:\n    train(m, l, c, o)\n"),
    ("DDP147", DDP + "it = iter(train_loader)\nwhile True:\n    s.set_epoch(e)\n    x = next(it)\n"),
    ("DDP147", DDP + "for i in range(n):\n    it = iter(train_loader)\n    s.set_epoch(e)\n    x = next(it)\n"),
    ("DDP147", DDP + "for x in train_loader:\n    s.set_epoch(e)\n    for y in val_loader:\n        pass\n"),
    ("DDP141", HEAD + LOOP + "n = max(os.cpu_count(), 8)\nDataLoader(d, num_workers=n)\n"),
    ("DDP143", HEAD + "if torch.cuda.is_available():\n    m = nn.DataParallel(m)\n"),
    (
        "DDP207",
        HEAD + "class N(nn.Module):\n    def forward(self, x):\n        print(f'{x.mean()}')\n        return x\n",
    ),
    ("DDP209", "import ddp_patch; ddp_patch.enable()\n" + HEAD + "DataLoader(d, collate_fn=lambda x: x)\n"),
]


@pytest.mark.parametrize(("code", "text"), YES, ids=[f"{code}-{n}" for n, (code, _) in enumerate(YES)])
def test_a_rule_finds(code, text):
    assert set(found(text, code)) == {code}


def test_what_would_break_is_told_from_what_is_broken():
    plain, ddp = (
        check_source(facts_of_text(head + LOOP + "torch.save(1, 'x')\n").source, {"DDP106"})[0].message
        for head in (HEAD, DDP)
    )
    assert ": under DDP every rank writes" in plain
    assert ": every rank writes" in ddp


def test_a_model_that_nothing_wraps_yet_has_no_module_to_save():
    found = check_source(facts_of_text(HEAD + LOOP + "m = nn.Linear(1, 1)\ntorch.save(m, 'x')\n").source, {"DDP131"})
    assert "torch.save(m.state_dict(), ...), or m.module.state_dict() where DDP wraps it." in found[0].message


def test_a_message_names_what_was_found_and_the_line_to_write():
    (found_,) = check_source(facts_of_text(HEAD + LOOP + "torch.save(net.state_dict(), 'x')\n").source, {"DDP106"})
    assert found_.message.startswith("torch.save(net.state_dict(), ...) is under no test on the rank: ")
    assert found_.message.endswith("Write if dist.get_rank() == 0: torch.save(...)")
    assert (found_.place.line, found_.place.column) == (15, 1)


@pytest.mark.parametrize("shown", ["x.size(), len(x)", "'%.3f' % x.mean()"])
def test_a_forward_that_prints_is_said_to_run_on_whole_batches_whatever_it_shows(shown):
    text = HEAD + f"class N(nn.Module):\n    def forward(self, x):\n        print({shown})\n        return x\n"
    (found_,) = check_source(facts_of_text(text).source, {"DDP207"})
    assert "runs on whole batches, on every rank" in found_.message


def test_the_lines_to_write_let_no_rank_wait_and_tell_means_from_counts():
    def said(code, text):
        return check_source(facts_of_text(text).source, {code})[0].message

    sums = said("DDP103", HEAD + LOOP + "        total += loss.item()\n")
    assert "op=dist.ReduceOp.AVG for means, SUM for counts" in sums
    padded = said("DDP115", DDP + "val_sampler = torch.utils.data.DistributedSampler(d)\n")
    assert "evaluate with model.module(x)" in padded
    stream = said(
        "DDP140", HEAD + "class S(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        yield 1\n"
    )
    assert "by rank and worker" in stream
    assert "as many to each" in stream


def test_one_dict_of_two_loaders_is_found_once():
    text = HEAD + LOOP + "k = dict(collate_fn=own)\na = DataLoader(d, **k)\nb = DataLoader(e, **k)\n"
    assert found(text, "DDP209") == ["DDP209"]


def test_every_rule_has_one_code_one_name_and_a_file_named_after_it():
    rules = list(table().values())
    assert len(rules) == len({rule.name for rule in rules}) >= 40
    for rule in rules:
        assert rule.find.__module__.rpartition(".")[2].startswith(rule.code.lower())
