"""``python -m ddp_patch check``: options, configuration, comments, formats, exit codes."""

import json
import re

import pytest

from ddp_patch.check import command
from ddp_patch.check.checking import check_source
from ddp_patch.check.noqa import silenced

CLEAN = "import torch\n\nx = torch.zeros(3)\n"
DIRTY = """import torch

loss = model(x)
loss.backward()
torch.save(model.state_dict(), "model.pt")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clean.py").write_text(CLEAN)
    (tmp_path / "dirty.py").write_text(DIRTY)
    return tmp_path


def run(capsys, *argv):
    code = command(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def test_nothing_found_is_0_and_says_so(folder, capsys):
    assert run(capsys, "clean.py") == (0, "nothing found; 1 file, 3 lines checked.\n", "")


def test_something_found_is_1_with_its_place_and_a_summary(folder, capsys):
    code, out, err = run(capsys, ".")
    first, blank, summary = out.splitlines()
    assert (code, err, blank) == (1, "", "")
    assert first.startswith(
        "dirty.py:5:1: DDP106 torch.save(model.state_dict(), ...) is under no test on the rank: under DDP "
    )
    assert summary.startswith("1 finding in 1 file; 2 files, 8 lines checked.")


def test_what_cannot_be_checked_is_2_and_the_others_go_on(folder, capsys):
    (folder / "broken.py").write_text("def f(:\n")
    code, out, _ = run(capsys, ".", "nowhere.py")
    assert code == 2
    assert "dirty.py:5:1: DDP106" in out
    assert "broken.py:1:7: syntax error for Python 3." in out
    assert "nowhere.py: there is no such file or folder (not checked)" in out
    assert "; 2 problems kept files from being checked." in out


def test_a_fault_of_the_checker_is_said_of_its_file_and_the_others_go_on(folder, capsys, monkeypatch):
    def fails(source, *rest):
        if source.path.name == "clean.py":
            raise RecursionError("maximum recursion depth exceeded\n...")
        return check_source(source, *rest)

    monkeypatch.setattr("ddp_patch.check.checking.check_source", fails)
    code, out, err = run(capsys, ".")
    assert (code, err) == (2, "")
    assert (
        "clean.py: checking it failed (RecursionError: maximum recursion depth exceeded), a fault of ddp_patch" in out
    )
    assert "Write --exclude clean.py (not checked)" in out
    assert "dirty.py:5:1: DDP106" in out


@pytest.mark.parametrize("text", ["seed(" + "+".join(["1"] * 1800) + ")\n", "x = f" + "()" * 1500 + "\n"])
def test_a_file_that_is_nested_too_deeply_is_named_and_the_others_go_on(folder, capsys, text):
    (folder / "deep.py").write_text(text)
    code, out, err = run(capsys, ".")
    assert (code, err) == (2, "")
    assert "deep.py:1: this is nested more than 150 levels deep" in out
    assert "dirty.py:5:1: DDP106" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "name a script, a notebook or a folder"),
        (["--selct", "DDP1", "x.py"], "unrecognized arguments: --selct"),
        (["--select", "DDP999", "clean.py"], "'DDP999' names no rule"),
        (["--ignore", "X", "clean.py"], "'X' names no rule"),
        (["--format", "xml", "clean.py"], "invalid choice: 'xml'"),
        (["--explain", "DDP999"], "'DDP999' is no rule"),
    ],
)
def test_a_wrong_command_line_is_2_and_says_what_to_write(folder, capsys, argv, said):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("python -m ddp_patch check: ")
    assert said in err


def test_help_shows_every_option(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for option in ("--select", "--ignore", "--exclude", "--format", "--no-config", "--explain", "--list", "noqa"):
        assert option in out


def test_list_and_explain_show_the_rules(capsys):
    code, out, _ = run(capsys, "--list")
    assert code == 0
    assert len(out.splitlines()) >= 40
    code, out, _ = run(capsys, "--explain", "ddp106")
    assert code == 0
    assert "save-on-every-rank" in out


def test_an_installed_package_explains_in_the_rules_own_words(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("ddp_patch.check.explain._PAGES", tmp_path)
    _, out, _ = run(capsys, "--explain", "DDP101")
    assert out.startswith("# DDP101 no-set-epoch\n\nA DistributedSampler is never told the epoch.\n\n")
    assert "``epoch`` stays 0 until ``set_epoch`` is called" in out


@pytest.mark.parametrize(
    "argv",
    [
        ["--ignore", "DDP106"],
        ["--ignore", "DDP1"],
        ["--select", "DDP2"],
        ["--select", "DDP105,DDP107"],
        ["--exclude", "dirty.py"],
    ],
)
def test_rules_and_files_can_be_left_out(folder, capsys, argv):
    assert run(capsys, ".", *argv)[0] == 0


def test_select_takes_codes_and_how_they_begin(folder, capsys):
    assert run(capsys, "--select", "ddp106", "dirty.py")[0] == 1
    assert run(capsys, "--select", "DDP2", "--select", "DDP10", "dirty.py")[0] == 1


@pytest.mark.parametrize(
    ("line", "silences"),
    [
        ("torch.save(x)", False),
        ("torch.save(x)  # noqa: E501", False),
        ("torch.save(x)  # noqa:E501,W291", False),
        ("torch.save(x)  # no qa", False),
        ("torch.save(x)  # noqa", True),
        ("torch.save(x)  # NOQA", True),
        ("torch.save(x)  # noqa: DDP106", True),
        ("torch.save(x)  # noqa: E501, DDP106", True),
        ("torch.save(x)  # noqa: ddp106 — every rank has a file of its own", True),
        ("torch.save(x)  # why  # noqa: DDP106", True),
    ],
)
def test_comments_silence_the_rules_they_name(line, silences):
    assert silenced([line], 1, 1, "DDP106") is silences


def test_a_comment_counts_at_either_end_of_what_was_found(folder, capsys):
    text = DIRTY.replace(
        'torch.save(model.state_dict(), "model.pt")', 'torch.save(\n    model.state_dict(), "x"\n)  # noqa: DDP106'
    )
    (folder / "dirty.py").write_text(text)
    assert run(capsys, "dirty.py")[0] == 0


CONFIGS = [
    ('ignore = ["DDP106"]', 0),
    ('select = ["DDP2"]', 0),
    ('exclude = ["dirty.py"]', 0),
    ('[tool.ddp_patch.check.per-file-ignores]\n"dirty.py" = ["DDP1"]', 0),
    ('[tool.ddp_patch.check.per-file-ignores]\n"other/*" = ["DDP1"]', 1),
    ('ignore = ["DDP107"]', 1),
]


@pytest.mark.parametrize(("table", "code"), CONFIGS)
def test_the_nearest_pyproject_above_is_asked(folder, capsys, table, code):
    (folder / "pyproject.toml").write_text(f"[tool.ddp_patch.check]\n{table}\n")
    assert run(capsys, ".")[0] == code
    assert run(capsys, "--no-config", ".")[0] == 1


def test_the_command_line_has_the_last_word_on_what_is_selected(folder, capsys):
    (folder / "pyproject.toml").write_text('[tool.ddp_patch.check]\nselect = ["DDP2"]\n')
    assert run(capsys, "--select", "DDP1", ".")[0] == 1


@pytest.mark.parametrize("pattern", ["src/vendor", "src/vendor/", "src/vendor/*", "vendor", "src/*/a.py"])
def test_what_is_excluded_is_so_from_wherever_one_looks(folder, capsys, pattern):
    (folder / "src/vendor").mkdir(parents=True)
    (folder / "src/vendor/a.py").write_text(DIRTY)
    (folder / "src/b.py").write_text(CLEAN)
    (folder / "pyproject.toml").write_text(f'[tool.ddp_patch.check]\nexclude = ["{pattern}", "dirty.py"]\n')
    assert run(capsys, ".")[0] == 0
    assert run(capsys, "src")[0] == 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('selct = ["DDP1"]', "has no key 'selct'. Write one of exclude, ignore, per-file-ignores, select"),
        ('select = "DDP1"', "select = 'DDP1' is no list of strings. Write select = [\"DDP104\"]"),
        ('select = ["DDP9"]', "'DDP9' names no rule"),
        ("select = [", "pyproject.toml: "),
    ],
)
def test_a_wrong_configuration_is_2_and_says_where(folder, capsys, table, said):
    (folder / "pyproject.toml").write_text(f"[tool.ddp_patch.check]\n{table}\n")
    code, out, err = run(capsys, ".")
    assert (code, out) == (2, "")
    assert said in err


def test_a_pyproject_of_others_is_left_alone(folder, capsys):
    (folder / "pyproject.toml").write_text("[tool.ruff]\nline-length = 3\n")
    assert run(capsys, "clean.py")[0] == 0


def test_json_holds_findings_and_problems(folder, capsys):
    code, out, _ = run(capsys, "--format", "json", ".", "nowhere.py")
    whole = json.loads(out)
    (found,) = whole["findings"]
    assert code == 2
    assert {
        key: found[key] for key in ("path", "code", "name", "line", "column", "end_line", "end_column", "cell")
    } == {
        "path": "dirty.py",
        "code": "DDP106",
        "name": "save-on-every-rank",
        "line": 5,
        "column": 1,
        "end_line": 5,
        "end_column": 43,
        "cell": None,
    }
    assert [problem["kind"] for problem in whole["problems"]] == ["missing"]
    assert (whole["files"], whole["lines"]) == (2, 8)


def test_sarif_names_every_rule_and_places_every_result(folder, capsys):
    (folder / "a b.py").write_text(DIRTY)
    (folder / "broken.py").write_text("def f(:\n")
    code, out, _ = run(capsys, "--format", "sarif", ".")
    log = json.loads(out)
    (one,) = log["runs"]
    assert (code, log["version"]) == (2, "2.1.0")
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    rules = one["tool"]["driver"]["rules"]
    assert "informationUri" not in one["tool"]["driver"]  # the project has no public address to send anybody to
    for rule in rules:
        assert re.fullmatch(r"DDP\d{3}", rule["id"])
        assert "```python" in rule["help"]["markdown"]
        assert rule["help"]["text"]
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
    for result in one["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        region = result["locations"][0]["physicalLocation"]["region"]
        assert region == {"startLine": 5, "startColumn": 1, "endLine": 5, "endColumn": 43}
    uris = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in one["results"]]
    assert uris == ["a%20b.py", "dirty.py"]
    (invocation,) = one["invocations"]
    assert invocation["executionSuccessful"] is False
    (note,) = invocation["toolExecutionNotifications"]
    assert note["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}


def test_github_commands_are_escaped(folder, capsys):
    (folder / "50%,x:y.py").write_text(DIRTY.replace("model.state_dict()", "'100%'"))
    _, out, _ = run(capsys, "--format", "github", "50%,x:y.py")
    assert out.startswith(
        "::warning file=50%25%2Cx%3Ay.py,line=5,col=1,endLine=5,endColumn=31,title=DDP106 save-on-every-rank::torch.save('100%25'"
    )
    assert len(out.splitlines()) == 1


def test_github_shows_what_could_not_be_checked_as_errors(folder, capsys):
    (folder / "broken.py").write_text("def f(:\n")
    _, out, _ = run(capsys, "--format", "github", "broken.py")
    assert out.startswith("::error file=broken.py,line=1::not checked: syntax error")


@pytest.mark.parametrize("format_", ["text", "json", "sarif", "github"])
def test_a_broken_cell_of_a_notebook_is_named_in_every_format(folder, capsys, format_):
    cells = [{"cell_type": "code", "source": source} for source in ("import torch", "x = (", DIRTY)]
    (folder / "a.ipynb").write_text(json.dumps({"cells": cells}))
    code, out, _ = run(capsys, "--format", format_, "a.ipynb")
    assert code == 2
    assert "DDP106" in out
    if format_ == "json":
        assert json.loads(out)["problems"][0]["cell"] == 2
    else:
        assert re.search(r"cell 2(:|, line )1: ?", out), out


def test_a_finding_in_a_notebook_names_its_cell(folder, capsys):
    cells = [{"cell_type": "code", "source": ["%matplotlib inline\n"]}, {"cell_type": "code", "source": DIRTY}]
    (folder / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert run(capsys, "a.ipynb")[1].startswith("a.ipynb:cell 2:5:1: DDP106 ")
    assert "::cell 2, line 5: torch.save" in run(capsys, "--format", "github", "a.ipynb")[1]
    sarif = json.loads(run(capsys, "--format", "sarif", "a.ipynb")[1])
    (result,) = sarif["runs"][0]["results"]
    assert result["message"]["text"].startswith("cell 2, line 5: ")
    assert "region" not in result["locations"][0]["physicalLocation"]
