"""The pages of the rules: each says what its rule finds, and what it leaves alone."""

import re
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader

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


@pytest.mark.parametrize(("ranks", "workers"), [(2, 0), (2, 2), (3, 2), (1, 0)])
def test_the_lines_of_a_stream_are_dealt_once_and_as_many_to_each_rank(tmp_path, monkeypatch, ranks, workers):
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text("".join(f"{number}\n" for number in range(65)))
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    dealt = []
    for rank in range(ranks):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        names = {}
        exec(block("DDP140", "Good"), names)
        how = "fork" if workers else None  # the page is no module that another way could import
        loader = DataLoader(names["Lines"](), batch_size=None, num_workers=workers, multiprocessing_context=how)
        dealt.append([*loader])
    shares = ranks * max(workers, 1)
    assert {len(lines) for lines in dealt} == {65 // shares * max(workers, 1)}
    assert sorted(int(line) for lines in dealt for line in lines) == [*range(65 // shares * shares)]


def test_the_index_lists_every_rule():
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"\[(DDP\d+)\]\(\1\.md\)", index) == list(table())
