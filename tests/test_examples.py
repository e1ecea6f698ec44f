"""The example scripts: one added line, and on two ranks they print what they print alone."""

import ast
import re
from pathlib import Path

import pytest
import torch

EXAMPLES = sorted(path for path in (Path(__file__).parents[1] / "examples").glob("*.py") if path.name != "demo.py")
LINE = "import ddp_patch; ddp_patch.enable()"
EPOCHS = {"diabetes_regression": 60}  # enough for its early stopping; the others need few
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


def in_double(example, folder):
    """The example in float64: in float32, training amplifies what another number of rows does to a kernel's rounding."""
    text = example.read_text()
    for ours, theirs in (
        ("import torch\n", "import torch\n\ntorch.set_default_dtype(torch.float64)\n"),
        ("float32", "float64"),
        (".float()", ".double()"),
    ):
        text = text.replace(ours, theirs)
    copied = folder / example.name
    copied.write_text(text)
    return copied


def one_unit(text):
    """Value of the last printed digit; 0 for an integer, which has to be equal."""
    mantissa, _, exponent = text.partition("e")
    _, point, decimals = mantissa.partition(".")
    return 10.0 ** (int(exponent or 0) - len(decimals)) if point else 0.0


def compare_text(ours, theirs):
    """Compare numbers to 1e-9 or one unit of the last printed digit, and everything else exactly."""
    ours, theirs = ours.splitlines(), theirs.splitlines()
    assert len(ours) == len(theirs), f"{len(ours)} lines instead of {len(theirs)}"
    for mine, wanted in zip(ours, theirs, strict=True):
        said = f"{mine!r} instead of {wanted!r}"
        assert NUMBER.sub("#", mine).split() == NUMBER.sub("#", wanted).split(), said
        for a, b in zip(NUMBER.findall(mine), NUMBER.findall(wanted), strict=True):
            rel = 1e-9 if one_unit(b) else 0
            assert float(a) == pytest.approx(float(b), rel=rel, abs=1.01 * one_unit(b)), said


def layout(value):
    """Names, shapes and types in a checkpoint. Its values are the parity scripts' business, in float64."""
    if isinstance(value, dict):
        return {key: layout(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [layout(item) for item in value]
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else type(value)


@each_example
def test_example_differs_from_a_legacy_script_by_one_line(example):
    lines = example.read_text().splitlines()
    added = [index for index, line in enumerate(lines) if line.startswith(LINE)]
    assert len(added) == 1
    docstring, *before = ast.parse("\n".join(lines[: added[0]])).body
    assert isinstance(docstring, ast.Expr)
    assert all(isinstance(statement, (ast.Import, ast.ImportFrom)) for statement in before)
    rest = ast.parse("\n".join(lines[: added[0]] + lines[added[0] + 1 :]))
    code = ast.unparse(rest.body[1:])  # without the docstring and comments, which may well mention it
    assert not re.search(r"ddp|distributed|accelerat|world_size|\brank\b", code, re.IGNORECASE)


@pytest.mark.slow
@pytest.mark.some("digits_gan")
@each_example
def test_example_prints_on_two_ranks_what_it_prints_alone(ranks, tmp_path, example):
    # Without accelerators: a plain run stays one process, and both runs round alike.
    args = ["--epochs", str(EPOCHS.get(example.stem, 2)), "--save", "saved.pt"]
    env = {"CUDA_VISIBLE_DEVICES": ""}
    script = in_double(example, tmp_path)
    wanted = ranks.script(script, 1, *args, env=env).ok()
    outcome = ranks.script(script, 2, *args, env=env).ok()
    compare_text(outcome.stdout[0], wanted.stdout[0])
    assert outcome.stdout[1] == ""
    assert outcome.files() == wanted.files() == ["saved.pt"]
    assert layout(torch.load(outcome.cwd / "saved.pt")) == layout(torch.load(wanted.cwd / "saved.pt"))
