"""Every code block of the documents runs, and says what the text says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import PATIENCE
from parity.test_scripts import compare_text

from ddp_patch import options

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(document, language):
    return [text for kind, text in BLOCK.findall((ROOT / document).read_text()) if kind == language]


def shell(command, cwd):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, shell=True, cwd=cwd, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_every_kind_of_block_is_run_here():
    kinds = {kind for name in ("README.md", "MIGRATION.md") for kind, _ in BLOCK.findall((ROOT / name).read_text())}
    assert kinds == {"diff", "python", "console"}
    assert len(blocks("README.md", "diff")) == 1  # the one line, run in every other block


@pytest.fixture(scope="module")
def readme_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    (folder / "train.py").write_text(blocks("README.md", "python")[0])
    commands = [line[2:] for block in blocks("README.md", "console") for line in block.splitlines() if line[:1] == "$"]
    first = shell(commands[0], folder)
    assert first.returncode == 0, first.stderr
    return folder, commands, first.stdout, torch.load(folder / "model.pt")


@pytest.mark.parametrize("index", range(1, 5))
def test_every_way_to_start_the_readmes_script_prints_the_same(readme_run, index):
    folder, commands, wanted, state = readme_run
    assert len(commands) == 5
    (folder / "model.pt").unlink(missing_ok=True)
    done = shell(commands[index], folder)
    assert done.returncode == 0, done.stderr
    compare_text(done.stdout, wanted)
    for name, value in torch.load(folder / "model.pt").items():
        torch.testing.assert_close(value, state[name], rtol=1e-9, atol=1e-9)


def test_the_readmes_other_code_runs(tmp_path):
    for index, text in enumerate(blocks("README.md", "python")[1:] + blocks("MIGRATION.md", "python")):
        script = tmp_path / f"block{index}.py"
        script.write_text(text)
        done = shell(f"{sys.executable} {script}", tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("index", range(5))
def test_migrations_keep_what_is_printed(ranks, tmp_path, index):
    diffs = blocks("MIGRATION.md", "diff")
    assert len(diffs) == 5
    lines = diffs[index].splitlines()
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text("\n".join(line[1:] for line in lines if line[:1] != "+") + "\n")
    after.write_text("\n".join(line[1:] for line in lines if line[:1] != "-") + "\n")
    wanted = ranks.script(before, 1).ok().stdout[0]
    assert wanted
    compare_text(ranks.script(after, 3).ok().stdout[0], wanted)


def test_the_option_table_names_every_option():
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows == [(name, options.variable(name)) for name in options.Options.__dataclass_fields__]


def patched():
    import ddp_patch

    return [line.split(": ")[0] for line in ddp_patch.report().ledger.patched]


def test_the_patch_table_names_every_patched_name(ranks):
    text = (ROOT / "README.md").read_text().split("## What is patched")[1].split("\n## ")[0]
    for name in ranks.call(patched, 2).ok().results[0]:
        assert name.rsplit(".", 1)[1] in text, name
        owner = name.split(".")[-2]
        assert not owner[0].isupper() or owner in text, name


@pytest.mark.parametrize("nproc", [1, 2])
def test_the_page_on_extending_runs(tmp_path, nproc):
    (tmp_path / "script.py").write_text("\n".join(blocks("docs/extending.md", "python")))
    done = shell(f"python -m ddp_patch --nproc {nproc} script.py", tmp_path)
    assert (done.returncode, done.stdout) == (0, "a message to a chat: done\n"), done.stderr
