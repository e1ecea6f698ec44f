"""The command: what it shows, writes, refuses, and tells by its exit code."""

import ast
import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from test_migrate import TRAIN

from ddp_patch.migrate import command
from ddp_patch.migrate.rules import backward

LINE = "import ddp_patch; ddp_patch.enable()\n"
IN_BATCH = TRAIN.replace("criterion(model(x), y)", "(model(x) @ model(x).T).mean()")


def git(folder, *arguments):
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "user.email", "a@b.c")
    git(tmp_path, "config", "user.name", "a")
    (tmp_path / "train.py").write_text(TRAIN)
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-qm", "a")
    return tmp_path


@pytest.fixture
def plain_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_it_shows_a_diff_and_writes_nothing(plain_folder, capsys):
    assert command(["--to", "patch", str(plain_folder)]) == 0
    said = capsys.readouterr()
    assert "+" + LINE in said.out
    assert "would change 1 of 1 files" in said.err
    assert (plain_folder / "train.py").read_text() == TRAIN


@pytest.mark.parametrize("odd", ["", "\f\n", "near = 'a\u2028b'  # \x0b \x1c \x85\n"])
def test_the_diff_can_be_applied(plain_folder, capsys, odd):
    script = plain_folder / "train.py"
    script.write_text(odd + IN_BATCH, encoding="utf-8")
    command(["--to", "ddp", str(script)])
    said = capsys.readouterr()
    (plain_folder / "a.diff").write_text(said.out, encoding="utf-8")
    subprocess.run(["patch", "-s", "train.py", "a.diff"], cwd=plain_folder, check=True)
    lines = script.read_bytes().split(b"\n")
    assert any(b"ddp_world_size" in line for line in lines)
    noted = next(number for number, line in enumerate(lines, 1) if b"TODO(ddp)" in line)
    assert f"train.py:{noted}: TODO" in said.err


def test_outside_of_a_repository_the_original_is_kept(plain_folder):
    script = plain_folder / "train.py"
    script.chmod(0o755)
    assert command(["--to", "patch", "--write", str(script)]) == 0
    assert script.read_text() == LINE + TRAIN
    assert (plain_folder / "train.py.orig").read_text() == TRAIN
    assert script.stat().st_mode & 0o777 == 0o755
    assert command(["--to", "ddp", "--write", str(script)]) == 0
    assert (plain_folder / "train.py.orig").read_text() == TRAIN  # not the one in between
    assert sorted(p.name for p in plain_folder.iterdir()) == ["train.py", "train.py.orig"]


def test_committed_files_are_changed_and_others_only_by_force(repository, capsys):
    script = repository / "train.py"
    assert command(["--to", "patch", "--write", str(script)]) == 0
    assert not (repository / "train.py.orig").exists()
    assert command(["--to", "ddp", "--write", str(script)]) == 2
    assert "has changes that are not committed" in capsys.readouterr().err
    assert script.read_text() == LINE + TRAIN
    assert command(["--to", "ddp", "--write", "--force", str(script)]) == 0
    assert "ddp_world_size" in script.read_text()


@pytest.mark.parametrize("ignored", [False, True])
def test_files_that_git_does_not_hold_are_not_written_over(repository, ignored, capsys):
    (repository / "new.py").write_text(TRAIN)
    if ignored:
        (repository / ".gitignore").write_text("new.py\n")
    assert command(["--to", "patch", "--write", str(repository / "new.py")]) == 2
    assert ("is ignored by git" if ignored else "is not in git") in capsys.readouterr().err
    assert (repository / "new.py").read_text() == TRAIN


def test_what_is_left_is_listed_and_told_by_the_exit_code(plain_folder, capsys):
    (plain_folder / "train.py").write_text(IN_BATCH)
    for _ in range(2):  # a second run, which changes nothing, says so too
        assert command(["--to", "ddp", "--write", str(plain_folder)]) == 3
        said = capsys.readouterr().err
        assert "TODO this loss compares the rows" in said
        assert "1 places are left to you" in said
    number = next(
        n for n, line in enumerate((plain_folder / "train.py").read_text().splitlines(), 1) if "TODO(ddp)" in line
    )
    assert f"train.py:{number}: TODO" in said


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("old.py", b"print 'a'\n", "Python 2"),
        ("broken.py", b"def f(:\n    pass\n", "syntax error"),
        ("image.py", b"\x89PNG\0\0", "not text"),
        ("latin.py", b"# \xe9\n", "line 1 is not utf-8"),
        ("note.ipynb", b"{}", "not a Jupyter notebook"),
        ("missing.py", None, "no such file"),
        ("empty", "folder", "no .py or .ipynb"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_others_go_on(plain_folder, capsys, name, content, words):
    bad = plain_folder / name
    if content == "folder":
        bad.mkdir()
    elif content is not None:
        bad.write_bytes(content)
    assert command(["--to", "patch", "--write", str(bad), str(plain_folder / "train.py")]) == 2
    said = capsys.readouterr().err
    assert name in said
    assert words in said
    assert (plain_folder / "train.py").read_text() == LINE + TRAIN
    assert content in (None, "folder") or bad.read_bytes() == content


@pytest.mark.parametrize("target", ["ddp", "accelerate"])
@pytest.mark.parametrize("split", [False, True], ids=["alone", "with another file"])
def test_a_file_of_which_no_python_can_be_made_is_named_and_the_others_go_on(
    plain_folder, capsys, monkeypatch, target, split
):
    bad = plain_folder / "bad.py"
    bad.write_text("from engine import train\ntrain()\n" if split else TRAIN.replace("epoch", "bad"))
    (plain_folder / "engine.py").write_text(
        f"def train(bad=1):\n    {TRAIN.replace(chr(10), chr(10) + '    ')}\n" * split
    )
    apply = backward.apply
    monkeypatch.setattr(
        backward, "apply", lambda plan: apply(plan) or plan.script.put(0, 0, "(" * ("bad" in plan.script.text))
    )
    assert command(["--to", target, "--write", str(plain_folder)]) == 2
    assert f"{bad}: left as it is: line 1 would not be Python any more" in capsys.readouterr().err
    assert "Launch" not in bad.read_text()
    assert "Launch" in (plain_folder / "train.py").read_text()


def test_encodings_and_line_ends_stay(plain_folder):
    text = "# -*- coding: latin-1 -*-\r\n# caf\xe9\r\n" + TRAIN.replace("\n", "\r\n")
    (plain_folder / "train.py").write_bytes(text.encode("latin-1"))
    assert command(["--to", "patch", "--write", str(plain_folder / "train.py")]) == 0
    after = (plain_folder / "train.py").read_bytes()
    assert b"# caf\xe9\r\n" in after
    assert after.count(b"\n") == after.count(b"\r\n")


@pytest.mark.parametrize("library", ["horovod.torch", "deepspeed", "pytorch_lightning"])
def test_what_another_library_distributes_is_left_alone(plain_folder, capsys, library):
    text = f"import {library}\n{TRAIN}"
    (plain_folder / "train.py").write_text(text)
    assert command(["--to", "ddp", "--write", str(plain_folder)]) == 3
    assert "is left alone" in capsys.readouterr().err
    assert (plain_folder / "train.py").read_text() == text


def notebook(*cells):
    listed = [{"cell_type": "markdown", "metadata": {}, "source": ["# Title\n"]}]
    for text in cells:
        cell = {"cell_type": "code", "execution_count": 3, "metadata": {"a": 1}, "outputs": [{"b": "c"}]}
        listed.append({**cell, "source": text.splitlines(keepends=True)})
    return {"cells": listed, "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}


def test_a_notebook_is_migrated_cell_by_cell(plain_folder):
    head, tail = TRAIN.split("model = ", 1)
    before = notebook("%matplotlib inline\n" + head, "!pip list\nmodel = " + tail)
    path = plain_folder / "train.ipynb"
    path.write_text(json.dumps(before, indent=1) + "\n")
    assert command(["--to", "ddp", "--write", str(path)]) == 0
    after = json.loads(path.read_text())
    assert after["metadata"] == before["metadata"]
    assert [{**c, "source": 0} for c in after["cells"]] == [{**c, "source": 0} for c in before["cells"]]
    first, second = ("".join(c["source"]) for c in after["cells"][1:])
    assert "%matplotlib inline\n" in first
    assert "sampler = DistributedSampler(train_set, shuffle=True)" in first
    assert second.startswith("!pip list\nmodel = ")
    assert "loss = criterion(ddp_model(x), y)" in second
    assert command(["--to", "ddp", "--write", str(path)]) == 0
    assert json.loads(path.read_text()) == after


@pytest.mark.parametrize(
    ("head", "cell", "above"),
    [
        ([], "%%capture\n!pip install x\n", "%%capture\n"),
        (["%%bash\npip install x\nls\n"], "", ""),
        (["%%html\n<b>\n", "%%bash\nls\n"], "%%time\n", "%%time\n"),
        ([], "%matplotlib inline\n", ""),
    ],
)
def test_the_line_stands_in_the_first_cell_that_is_python_below_its_magic(plain_folder, head, cell, above):
    path = plain_folder / "train.ipynb"
    path.write_text(json.dumps(notebook(*head, cell + TRAIN)))
    assert command(["--to", "patch", "--write", str(path)]) == 0
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"][1:]]
    assert cells[:-1] == head
    assert cells[-1] == above + LINE + (cell + TRAIN).removeprefix(above).rstrip()


def test_a_notebook_keeps_what_it_asks_of_ipython(plain_folder):
    path = plain_folder / "train.ipynb"
    code = "import torch.distributed as dist\nif IN_COLAB:\n    !pip install x\ndist.init_process_group('gloo')\n"
    path.write_text(json.dumps(notebook(code + TRAIN)))
    assert command(["--to", "patch", "--write", str(path)]) == 0
    (source,) = ("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"][1:])
    assert source == LINE + "if IN_COLAB:\n    !pip install x\n" + TRAIN.rstrip()


def test_no_module_of_it_imports_torch():
    for path in (Path(__file__).parent.parent / "ddp_patch" / "migrate").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            assert not any(name.split(".")[0] in ("torch", "accelerate") for name in names), path


def test_usage_errors_are_said(capsys):
    with pytest.raises(SystemExit) as ended:
        command(["train.py"])
    assert ended.value.code == 2
    assert "--to" in capsys.readouterr().err
