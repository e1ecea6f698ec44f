"""Batches of quantized numbers, which travel as whole numbers."""

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.utils.data import DataLoader


def data(seed=0):
    drawn = torch.Generator().manual_seed(seed)
    return DataLoader(torch.randn(10, 3, 6, 6, generator=drawn, dtype=torch.float32), 10)


def quantized():
    torch.backends.quantized.engine = next(e for e in torch.backends.quantized.supported_engines if e != "none")
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 4, 3, dtype=torch.float32)
    model = nn.Sequential(
        quantization.QuantStub(), convolution, nn.ReLU(), nn.Flatten(), quantization.DeQuantStub()
    ).eval()
    model.qconfig = quantization.default_qconfig
    quantization.fuse_modules(model, ["1", "2"], inplace=True)
    quantization.prepare(model, inplace=True)
    with torch.no_grad():
        for x in data():
            model(x)
        converted = quantization.convert(model)
        return [converted(x).double().sum().item() for seed in range(4) for x in data(seed)]


def seen_whole():
    said = []
    for seed in range(5):  # the function that quantizes is on rows from the second call on
        (x,) = data(seed)
        numbers = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
        said += [str(numbers[::3, 0, 0]), numbers.sort(0)[0].int_repr().sum().item(), numbers.int_repr()[-1].tolist()]
    return said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("work", ["quantized", "seen_whole"])
@pytest.mark.parametrize("nproc", [2, 3])
def test_a_quantized_batch_is_that_of_one_process(ranks, nproc, work):
    wanted = globals()[work]()
    for result in ranks.call(globals()[work], nproc).ok().results:
        assert result == wanted
