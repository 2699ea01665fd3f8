"""The index of the decisions names each of them once, and what the decisions point at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DECISIONS = Path(__file__).parents[1] / "docs" / "decisions"
PAGES = sorted(DECISIONS.glob("*.md"))


def _links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)#:]+)\)", page.read_text())


def test_every_decision_is_in_the_index_under_its_number() -> None:
    rows = re.findall(r"^\| \[(\d{3})\]\((\S+)\) \| \S", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert [name for _, name in rows] == [page.name for page in PAGES if page.name != "README.md"]
    assert [number for number, _ in rows] == [name[:3] for _, name in rows]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_resolve(page: Path) -> None:
    assert [link for link in _links(page) if not (page.parent / link).exists()] == []
