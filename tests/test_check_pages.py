"""The pages of the rules: each says what its rule finds, and what it leaves alone."""

import re
from pathlib import Path

import pytest

from ddp_patch.check.checking import check_source
from ddp_patch.check.table import table
from ddp_patch.source import facts_of_text

PAGES = Path(__file__).parents[1] / "docs" / "rules"


def found(text):
    return [reported.rule.code for reported in check_source(facts_of_text(text).source, set(table()))]


def block(code, title):
    page = (PAGES / f"{code}.md").read_text(encoding="utf-8")
    return re.search(rf"## {title}\n\n```python\n(.*?)```", page, re.S)[1]


def test_there_is_a_page_for_every_rule_and_no_other():
    assert {path.stem for path in PAGES.glob("DDP*.md")} == set(table())


@pytest.mark.parametrize("code", table())
def test_a_page_names_its_rule_as_the_table_does(code):
    rule = table()[code]
    page = (PAGES / f"{code}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {code} {rule.name}\n\n{rule.summary}. ")


@pytest.mark.parametrize("code", table())
def test_the_good_block_of_a_page_is_left_alone(code):
    assert code not in found(block(code, "Good"))


@pytest.mark.parametrize("code", table())
def test_the_bad_block_of_a_page_is_found_and_nothing_else(code):
    assert set(found(block(code, "Bad"))) == {code}


def test_the_index_lists_every_rule():
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"\[(DDP\d+)\]\(\1\.md\)", index) == list(table())
