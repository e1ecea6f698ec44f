"""Every code block of the documents runs, and says what the text says; what they name is there."""

import ast
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import PATIENCE
from parity.test_scripts import compare_text

from ddp_patch import errors, options

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
DOCUMENTS = ["README.md", "MIGRATION.md", *PAGES]
EVERYTHING = [*DOCUMENTS, "CHANGELOG.md", "CONTRIBUTING.md", "docs/rules/index.md", "benchmarks/matrix.md"]
WRITTEN = {"console", "diff", "python", "text"}  # what is marked text does not run here
DIFFS = {"README.md": 1, "MIGRATION.md": 5, "docs/index.md": 1}  # README's is the one line, run in every other block


def read(document):
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document, language):
    return [text for kind, text in BLOCK.findall(read(document)) if kind == language]


def shell(command, cwd):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, shell=True, cwd=cwd, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


# --- code blocks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_kind_of_block_is_run_here(document):
    assert {kind for kind, _ in BLOCK.findall(read(document))} <= WRITTEN
    assert len(blocks(document, "diff")) == DIFFS.get(document, 0)
    assert not blocks(document, "console") or document in ("README.md", "docs/launchers.md")
    outside = CODE.sub("", read(document))
    assert "```" not in outside
    assert not re.search(r"\n\n {4}\S", outside), "a block without a language"


def commands():
    found = "".join(blocks("README.md", "console") + blocks("docs/launchers.md", "console"))
    return re.findall(r"^\$ (.*)$", found, re.MULTILINE)


WAYS = commands()


@pytest.fixture(scope="module")
def readme_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    (folder / "train.py").write_text(blocks("README.md", "python")[0])
    first = shell(WAYS[0], folder)
    assert first.returncode == 0, first.stderr
    return folder, first.stdout, torch.load(folder / "model.pt")


def test_the_script_is_run_in_three_ways_and_two_more():
    assert len(WAYS) == 5
    assert len(re.findall(r"^\$ ", "".join(blocks("README.md", "console")), re.MULTILINE)) == 3


@pytest.mark.slow
@pytest.mark.some("1")
@pytest.mark.parametrize("index", range(1, 5))
def test_every_way_to_start_the_readmes_script_prints_the_same(readme_run, index, monkeypatch):
    folder, wanted, state = readme_run
    (folder / "model.pt").unlink(missing_ok=True)
    monkeypatch.setenv("DDP_PATCH_REPORT", "1")
    done = shell(WAYS[index], folder)
    assert done.returncode == 0, done.stderr
    compare_text(done.stdout, wanted)
    for name, value in torch.load(folder / "model.pt").items():
        torch.testing.assert_close(value, state[name], rtol=1e-9, atol=1e-9)
    report = done.stderr[done.stderr.index("ddp_patch report: ") :]
    shown = next(text for text in blocks("docs/report.md", "text") if text.startswith("ddp_patch report: "))
    assert torch.accelerator.is_available() or unclocked(report).startswith(unclocked(shown)), report  # as on a CPU


def unclocked(report):
    slower = r"    what ranks cost beside the work is more than they save; .*\n"
    return re.sub(r"by the clock .*|[\d.]+ ms", "some time", re.sub(slower, "", report))


PYTHON = [document for document in DOCUMENTS if document != "README.md" and blocks(document, "python")]
TELL_OF_RANKS = {"docs/effects.md", "docs/faq.md", "docs/report.md", "docs/what-is-patched.md"}
GO_ON = {"docs/extending.md", "docs/options.md", "MIGRATION.md"}  # their blocks begin where the one before ended


@pytest.mark.slow
@pytest.mark.parametrize("document", PYTHON)
def test_the_python_of_a_page_prints_on_ranks_what_it_prints_alone(ranks, tmp_path, document):
    script = tmp_path / "script.py"
    script.write_text(("" if document in GO_ON else "ddp_patch.disable()\n").join(blocks(document, "python")))
    together = ranks.script(script, 2).ok().stdout[0]
    if document not in TELL_OF_RANKS:
        compare_text(together, ranks.script(script, 1).ok().stdout[0])
    if document == "docs/extending.md":
        assert together == "a message to a chat: done\n"


@pytest.mark.slow
def test_the_file_that_checks_rules_is_whole_and_can_fail(tmp_path):
    (source,) = [block for block in blocks("docs/extending.md", "python") if "def test_" in block]
    (tmp_path / "test_rules.py").write_text(source)
    done = shell("python -m pytest -q -p no:cacheprovider test_rules.py", tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    (tmp_path / "test_rules.py").write_text(source.replace("[:, 0], N=3)", "[:, 0].cumsum(0), N=3)"))
    done = shell("python test_rules.py", tmp_path)
    assert "RuleError: powers is not rowwise: its results on 2 ranks differ" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("index", range(5))
def test_migrations_keep_what_is_printed(ranks, tmp_path, index):
    lines = blocks("MIGRATION.md", "diff")[index].splitlines()
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text("\n".join(line[1:] for line in lines if line[:1] != "+") + "\n")
    after.write_text("\n".join(line[1:] for line in lines if line[:1] != "-") + "\n")
    wanted = ranks.script(before, 1).ok().stdout[0]
    assert wanted
    compare_text(ranks.script(after, 3).ok().stdout[0], wanted)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_the_option_table_names_every_option():
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", read("docs/options.md"), re.MULTILINE)
    assert rows == [(name, options.variable(name)) for name in options.Options.__dataclass_fields__]


def test_the_function_table_names_every_public_name():
    import ddp_patch

    page = read("docs/options.md").partition("## Functions")[2]
    names = [name for name in ddp_patch.__all__ if not name.startswith("_") and not name.endswith("Error")]
    assert [name for name in names if f"`{name}`" not in page] == []


def classes():
    """Patched names that are classes themselves."""
    import importlib
    import inspect

    import ddp_patch

    found = []
    for name in [line.split(": ")[0] for line in ddp_patch.report().patched]:
        owner, _, attribute = name.rpartition(".")
        try:
            here = inspect.getattr_static(importlib.import_module(owner), attribute)
        except (ImportError, AttributeError):  # a method of a class
            continue
        if isinstance(getattr(here, "__wrapped__", None), type):
            found.append(name)
    return found


@pytest.mark.slow
def test_the_patch_table_is_what_the_rows_say():
    """Written anew: ``python -m ddp_patch patches --markdown`` below the heading."""
    table = shell(f"{sys.executable} -m ddp_patch patches --markdown", ROOT).stdout
    assert read("docs/what-is-patched.md").endswith("looks names up.\n\n" + table.rstrip() + "\n")


def test_names_that_are_no_longer_the_same_object_are_named(ranks):
    above = read("docs/what-is-patched.md").partition("## The table")[0]
    for name in ranks.call(classes, 2).ok().results[0]:
        assert name.startswith("torch.cuda.") or name.rsplit(".", 1)[1] in above, name


def test_the_readme_tells_of_the_loaders_what_the_matrix_tells():
    table = read("benchmarks/matrix.md")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    cases = [row[1:] for row in rows if row[1] == "exact"]
    counts = [sum(row[tool] == "exact" for row in cases) for tool in range(6)]
    assert len(cases) == 39
    assert f"| loaders that are exact, of 39 | {' | '.join(map(str, counts))} |" in read("README.md")
    section = read("README.md").partition("with the same loaders")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| .*$", section, re.MULTILINE):
        assert "of 39" in line or "--- |" in line or line in table, line


# --- troubleshooting --------------------------------------------------------------------------------------------------


COMMANDS = (
    "check",
    "measure",
    "migrate",
    "plan",
    "profile",
    "scale",
    "verify",
    "source",
)  # their messages say all by themselves


def nodes():
    for path in (ROOT / "ddp_patch").rglob("*.py"):
        if path.relative_to(ROOT / "ddp_patch").parts[0] not in COMMANDS:
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def text_of(node):
    """What a literal says, with a mark where a value is put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def headings():
    """A pattern for each of the words that a message begins with."""
    found = re.findall(r"^### (.*)$", read("docs/troubleshooting.md"), re.MULTILINE)
    said = [words for heading in found for words in re.findall(r"`([^`]+)`", heading)]
    return {words: ".*".join(re.escape(part.strip()) for part in words.split("...")) for words in said}


def test_the_headings_of_troubleshooting_are_words_of_messages():
    known = list(filter(None, map(text_of, nodes())))
    found = headings()
    assert len(found) > 80
    wrong = [words for words, pattern in found.items() if not any(re.search(pattern, text, re.S) for text in known)]
    assert wrong == []


def test_troubleshooting_has_every_message_that_the_package_raises():
    patterns, left = headings().values(), []
    for node in nodes():
        if isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).rpartition(".")[2]
            text = text_of(node.args[0]).replace("\0: \0, \0", "")  # put together elsewhere
            is_ours = name in vars(errors) or name in ("RuleError", "refuse", "leave", "warn", "note")
            if is_ours and text and not any(re.search(pattern, text, re.S) for pattern in patterns):
                left.append(text)
    assert left == []


def test_troubleshooting_names_every_class_of_error():
    page = read("docs/troubleshooting.md")
    classes = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert len(classes) > 5
    assert [name for name in [*classes, "RuleError"] if f"`{name}`" not in page] == []


# --- what is named is there -------------------------------------------------------------------------------------------


def anchors(document):
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", read(document)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", [*EVERYTHING, *(f"docs/rules/DDP{code}.md" for code in range(201, 221))])
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^()\s]+)\)", CODE.sub("", read(document))):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(document), path)) if path else document
        assert (ROOT / there).exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("document", EVERYTHING)
def test_commands_name_what_is_there(document):
    text = read(document)
    targets = re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE)
    assert set(re.findall(r"(?:`|^)make ([\w-]+)", text, re.MULTILINE)) <= set(targets)
    for path in re.findall(r"\b(?:benchmarks|examples|tests)/[\w/.-]*\w", text):
        assert (ROOT / path).exists(), path


def test_every_page_is_in_the_site_and_in_the_index():
    nav = read("mkdocs.yml")
    for page in PAGES:
        name = page.removeprefix("docs/")
        assert re.search(rf"[ -]{re.escape(name)}$", nav, re.MULTILINE), name
        assert name == "index.md" or f"({name})" in read("docs/index.md"), name
        assert name in ("index.md", "benchmarks.md") or f"(docs/{name})" in read("README.md"), name


def test_links_of_the_site_lead_to_its_pages():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import pages
    finally:
        sys.path.remove(str(ROOT / "docs"))
    for source, page in pages.ELSEWHERE.items():
        assert (ROOT / source).is_file()
        assert page in read("mkdocs.yml")
    assert pages.relinked("[a](../MIGRATION.md#b) [c](rules/index.md)", "faq.md") == (
        "[a](migrating.md#b) [c](rules/index.md)"
    )
    assert pages.relinked("![a](docs/picture.svg) [b](https://x.org/c)", "start.md") == (
        "![a](picture.svg) [b](https://x.org/c)"
    )
    assert pages.relinked("[a](../pitfalls.md)", "rules/DDP201.md") == "[a](../pitfalls.md)"


def test_every_launcher_that_was_tried_has_a_test():
    rows = read("docs/launchers.md").partition("## What was tried")[2].partition("\n## ")[0]
    how = [row.split("|")[3] for row in rows.splitlines() if row.startswith("|")][2:]
    assert len(how) >= 12
    for tried in how:
        files = re.findall(r"`(tests/\S+\.py)`", tried)
        assert files, tried
        assert all((ROOT / file).is_file() for file in files), tried


# --- form -------------------------------------------------------------------------------------------------------------


def test_the_readme_is_short():
    lines = read("README.md").splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 200


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md", "CONTRIBUTING.md"])
def test_lines_of_prose_are_short(document):
    lines = CODE.sub("", read(document)).splitlines()
    assert [line for line in lines if len(line) > 130 and line[:1] not in ("|", "#")] == []


def test_the_picture_is_what_its_script_draws(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import picture

    assert picture.picture() == picture.OUTPUT.read_text(encoding="utf-8")
