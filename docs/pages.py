"""A hook of MkDocs: pages that stand outside of docs/ become pages of the site, and links follow them.

On GitHub a page links to ``../MIGRATION.md``; in the site that is ``migrating.md``.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {  # file of the repository -> page of the site
    "README.md": "start.md",
    "MIGRATION.md": "migrating.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/matrix.md": "measured/matrix.md",
    "benchmarks/share.md": "measured/share.md",
    "benchmarks/turns.md": "measured/turns.md",
}
LINK = re.compile(r"(\]\()([^()\s#:]+)((?:#[^()\s]*)?\))")  # a relative one


def source_of(page: str) -> str:
    """Give the file of the repository that a page of the site is made of."""
    return next((source for source, name in ELSEWHERE.items() if name == page), f"docs/{page}")


def page_of(source: str) -> str:
    """Give the page of the site, or the picture, that a file of the repository becomes."""
    return ELSEWHERE.get(source, source.removeprefix("docs/"))


def relinked(text: str, page: str) -> str:
    """Write a page's links as they are in the site."""
    here = posixpath.dirname(source_of(page))

    def link(found: re.Match[str]) -> str:
        target = page_of(posixpath.normpath(posixpath.join(here, found[2])))
        return found[1] + posixpath.relpath(target, posixpath.dirname(page) or ".") + found[3]

    return LINK.sub(link, text)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from elsewhere."""
    from mkdocs.structure.files import File  # noqa: PLC0415 — the tests read this file without MkDocs

    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=os.fspath(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Follow the links of one page."""
    return relinked(markdown, page.file.src_uri)
