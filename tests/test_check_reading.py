"""What is read, and what cannot be: said by name, while the other files go on."""

import json
import sys

import pytest

from ddp_patch.source import facts_of, find, read
from ddp_patch.source.notebooks import mask, unmask


def notebook(*cells):
    listed = [{"cell_type": "code", "source": text.splitlines(keepends=True), "metadata": {}} for text in cells]
    text = {"cell_type": "markdown", "source": ["# Title"], "metadata": {}}
    return json.dumps({"cells": [text, *listed], "nbformat": 4, "nbformat_minor": 5, "metadata": {}})


def problem(path):
    source = read(path)
    assert source.parts == []
    (found,) = source.problems
    return found


def test_a_folder_is_searched_without_what_is_hidden_installed_or_built(tmp_path):
    for name in (
        "b.py",
        "a.ipynb",
        "sub/c.py",
        "notes.txt",
        ".git/d.py",
        "venv/e.py",
        "build/f.py",
        "__pycache__/g.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "venv/pyvenv.cfg").write_text("")
    files, problems = find([str(tmp_path)])
    assert [path.relative_to(tmp_path).as_posix() for path in files] == ["a.ipynb", "b.py", "sub/c.py"]
    assert problems == []


def test_a_file_that_is_named_is_read_whatever_it_is_called_and_once(tmp_path):
    script = tmp_path / "train"
    script.write_text("import torch\n")
    files, problems = find([str(script), str(script)])
    assert (files, problems) == ([script], [])


@pytest.mark.parametrize("pattern", ["legacy", "legacy/", "legacy/*", "old_*.py", "*/old_a.py", "legacy/old_a.py"])
def test_files_are_left_out_by_patterns_of_names_and_paths(tmp_path, pattern):
    (tmp_path / "legacy").mkdir()
    (tmp_path / "legacy/old_a.py").write_text("")
    (tmp_path / "b.py").write_text("")
    files, _ = find([str(tmp_path)], [pattern])
    assert [path.name for path in files] == ["b.py"]


def test_a_missing_path_and_a_folder_without_scripts_are_named(tmp_path):
    (tmp_path / "x.txt").write_text("")
    _, problems = find([str(tmp_path / "none.py"), str(tmp_path)])
    assert [each.kind for each in problems] == ["missing", "empty"]
    assert str(problems[0]).endswith("none.py: there is no such file or folder")


@pytest.mark.parametrize(
    ("text", "kind", "line", "said"),
    [
        ("x = 1\ndef f(:\n", "syntax", 2, "syntax error"),
        ("import torch\nprint 'hello'\n", "python2", 2, "this is Python 2 (print 'hello')"),
        pytest.param(
            *("try:\n    pass\nexcept ValueError, e:\n    pass\n", "python2", 3, "this is Python 2"),
            marks=pytest.mark.skipif(sys.version_info >= (3, 14), reason="which catches both"),
        ),
        ("raise ValueError, 'x'\n", "python2", 1, "this is Python 2"),
        ("if x:\n\ty = 1\n        z = 2\n", "syntax", 3, "tabs and spaces are mixed"),
        ("if 1 <> 2: pass\n", "python2", 1, "this is Python 2"),
        ("x = y.cuda(async=True)\n", "syntax", 1, "Write non_blocking=True"),
        ("x = " + "(" * 300 + "1" + ")" * 300 + "\n", "syntax", 1, "too many nested"),
        ("x = " + " + ".join(["1"] * 500) + "\n", "too-large", 1, "nested more than 150 levels"),
    ],
)
def test_what_is_not_python_3_is_said_with_its_line(tmp_path, text, kind, line, said):
    path = tmp_path / "train.py"
    path.write_text(text)
    found = problem(path)
    assert (found.kind, found.line) == (kind, line)
    assert said in found.reason


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x7fELF\0\0\0", "zero bytes"),
        (b"x = '\xe9'\n", "Save the file as UTF-8"),
        (b"# -*- coding: nonsense -*-\n", "unknown encoding: nonsense"),
    ],
)
def test_what_is_not_text_is_said(tmp_path, data, said):
    path = tmp_path / "train.py"
    path.write_bytes(data)
    found = problem(path)
    assert found.kind == "not-text"
    assert said in found.reason


@pytest.mark.parametrize("letter", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_lines_are_those_that_python_counts(tmp_path, letter):
    path = tmp_path / "train.py"
    path.write_text(f"x = '{letter}'\r\n# {letter}\ntorch.save(1, 'x')  # noqa\n", encoding="utf-8", newline="")
    (part,) = read(path).parts
    assert part.lines[2] == "torch.save(1, 'x')  # noqa"
    assert len(part.lines) == 3
    path.write_text(f"# {letter}\nprint 'hello'\n", encoding="utf-8")
    assert (problem(path).kind, problem(path).line) == ("python2", 2)


def test_a_file_larger_than_any_script_is_not_parsed(tmp_path):
    path = tmp_path / "table.py"
    path.write_text("x = 1\n" * 1_000_000)
    assert problem(path).kind == "too-large"


@pytest.mark.parametrize(
    "data",
    [
        b"x = 1\r\nif x:\r\n    y = 2\r\n",
        b"\xef\xbb\xbfx = '\xc3\xa9'\n",
        b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
        b"x = 1\n\ty = 2\n"[:6],
        b"x = 1",
        b"",
        b"x = 1\ny = 2\r\n",
    ],
    ids=["crlf", "mark", "latin-1", "one line", "no newline at the end", "empty", "mixed line ends"],
)
def test_bytes_come_back_as_they_were(tmp_path, data):
    path = tmp_path / "train.py"
    path.write_bytes(data)
    source = read(path)
    assert source.problems == []
    assert source.text.encode(source.parts[0].module.code) == data


def test_a_notebook_is_read_cell_by_cell_with_one_scope(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(notebook("import torch\nmodel = torch.nn.Linear(2, 2)\n", "torch.save(model, 'x')\n"))
    source = read(path)
    facts = facts_of(source)
    (call,) = facts.calls("torch.save")
    assert [part.cell for part in source.parts] == [1, 2]
    assert (facts.place(call).cell, facts.place(call).line) == (2, 1)
    assert "MODULE" in {kind.name for kind in facts.kinds(call.args[0].value)}


def test_magics_of_a_notebook_are_put_aside_and_lines_hold(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(
        notebook(
            "%matplotlib inline\n!pip install x \\\n   y\nimport torch\n",
            "! pip install x\nfiles = ! ls\ny = (x\n  != 2)\n",
            "files = !ls\nfor f in files:\n    %time torch.load(f)\n    torch.save(f, f)\ntorch.load?\n",
            "%%bash\necho 'no python' | wc\n",
            "%%time\ntorch.save(1, 'x')\n",
            "x = 7\ny = (x\n  % 2)\n",
        )
    )
    source = read(path)
    facts = facts_of(source)
    assert source.problems == []
    assert [(facts.place(call).cell, facts.place(call).line) for call in facts.calls("torch.save")] == [(3, 4), (5, 2)]
    assert source.parts[1].text.endswith("\ny = (x\n  != 2)\n")
    assert source.parts[5].text == "x = 7\ny = (x\n  % 2)\n"


@pytest.mark.parametrize(
    "text", ["%time x\n  !ls -l\ny = !ls\nz?\n", "! ls\ny =  ! ls\n", "%%bash\nls\n\n", "x = 1\n", ""]
)
def test_magics_come_back_as_they_were(text):
    assert unmask(mask(text)) == text


def test_a_broken_cell_is_named_and_the_others_are_read(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(notebook("x = 1\n", "def f(:\n", "y = 2\n"))
    source = read(path)
    assert [part.cell for part in source.parts] == [1, 3]
    assert str(source.problems[0]).startswith(f"{path}:cell 2:1:")


def test_a_cell_with_letters_that_are_none_is_named(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(notebook("x = '\ud800'\n", "y = 1\n"))
    source = read(path)
    assert [part.cell for part in source.parts] == [2]
    assert source.problems[0].cell == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": 3}', "not json", '{"cells": [{}]}'])
def test_what_is_no_notebook_is_named(tmp_path, text):
    path = tmp_path / "a.ipynb"
    path.write_text(text)
    assert problem(path).kind == "notebook"


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    path = tmp_path / "gone.py"
    path.symlink_to(tmp_path / "nowhere.py")
    assert problem(path).kind == "unreadable"


@pytest.mark.parametrize(
    "text", ["y = " + " + ".join(["x"] * 140), "y = " + "f(" * 140 + "x" + ")" * 140, "y = x" + ".f(1)" * 70]
)
def test_deep_expressions_are_followed(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(f"import torch\nfor x in train_loader:\n    x.backward()\n{text}\ntorch.save(y, 'a')\n")
    facts = facts_of(read(path))
    (call,) = facts.calls("torch.save")
    assert facts.place(call).line == 5
    assert "LOCAL" in {kind.name for kind in facts.kinds(call.args[0].value)}
