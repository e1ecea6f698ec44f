"""What hand-written DDP becomes: what a name, a call or a test means is told by what it holds, not by how it is called."""

import ast

import pytest

pytest.importorskip("libcst")

from ddp_patch.migrate.rewrite import rewrite

LINE = "import ddp_patch; ddp_patch.enable()\n"
HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
START = "dist.init_process_group('gloo')\n"


def plain(code, head=HEAD + START):
    """Give what becomes of a script's own lines, without the imports."""
    after = rewrite(head + code, "patch", "train.py")
    ast.parse(after)
    assert rewrite(after, "patch", "train.py") == after
    return after.removeprefix(LINE).removeprefix("import torch\n")


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
