"""The pages of rules: each rule is there once, every citation exists, and coverage.md is up to date."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.rules_coverage import COVERAGE, ROOT, RULES, citations, citations_in, rule_of, rules, sections

from . import rules_coverage

pytestmark = pytest.mark.together("rules pages")

DOCS = [
    page for page in (*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))) if RULES not in page.parents
]


def _cited_in(page: Path) -> list[tuple[str, str]]:
    """Page (or "") and id."""
    return [(named, id_) for named, id_, _ in citations_in(" ".join(page.read_text().split()))]


def _headings(page: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", (RULES / page).read_text(), re.MULTILINE)


def test_every_rule_is_defined_once_and_linked_by_its_own_name() -> None:
    assert [id_ for id_, count in Counter(rule.id for rule in rules()).items() if count > 1] == []
    assert [rule.id for rule in rules() if rule.anchor != rule.id.lower()] == []
    assert len(rules()) > 590


def test_a_page_has_one_prefix_and_the_index_names_it() -> None:
    index = re.findall(r"^\| \[(\w+\.md)\]\(\1\) \| ([A-Z]) \|", (RULES / "README.md").read_text(), re.MULTILINE)
    assert sorted(index) == sorted({(rule.page, rule.id[0]) for rule in rules()})
    assert len({prefix for _, prefix in index}) == len(index)


def test_every_cited_rule_exists() -> None:
    wrong = [f"{each.path}:{each.line} cites {each.id}" for each in citations() if rule_of(each.id) is None]
    for page in DOCS:
        wrong += [f"{page.name} cites {id_}" for _, id_ in _cited_in(page) if rule_of(id_) is None]
    assert wrong == [], "no such rule in docs/rules"


def test_a_citation_names_the_page_of_its_rule() -> None:
    found = [(f"{each.path}:{each.line}", each.page, each.id) for each in citations()]
    for page in DOCS:
        found += [(page.name, *each) for each in _cited_in(page)]
    wrong = []
    for place, page_name, id_ in found:
        rule = rule_of(id_)
        if page_name and rule is not None and rule.page != page_name:
            wrong.append(f"{place} cites {page_name} {id_}, which is in {rule.page}")
    assert wrong == []


def test_a_cited_section_exists() -> None:
    cited = list(sections())
    assert {each.page for each in cited} >= {"epochs.md", "raft.md", "since_4_0.md"}
    assert [each for each in cited if not any(head.startswith(each.heading) for head in _headings(each.page))] == []


def test_coverage_is_up_to_date() -> None:
    assert COVERAGE.read_text() == rules_coverage.document(), "run `make rules`"


@pytest.mark.parametrize("page", sorted(RULES.glob("*.md")), ids=lambda page: page.stem)
def test_links_resolve(page: Path) -> None:
    text = page.read_text()
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            wrong.append(target)
    assert wrong == []


@cache
def _anchors(page: Path) -> set[str]:
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="(\w+)">', text))


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("Rules: `epochs.md E1, E3-E5`; KIP-320.", [("epochs.md", "E1"), *(("epochs.md", f"E{n}") for n in (3, 4, 5))]),
        ("`formats.md F1`-`F3` and (V37)", [*(("formats.md", f"F{n}") for n in (1, 2, 3)), ("", "V37")]),
        ("recovery.md V4, V16 (C35)", [("recovery.md", "V4"), ("recovery.md", "V16"), ("", "C35")]),
        ("E13d, L13b, G14a; E64-iv", [("", "E13d"), ("", "L13b"), ("", "G14a"), ("", "E64")]),
        ("KAFKA-123 at E501, x.E1, E2E, E123, FE1", []),
    ],
)
def test_citation_forms(text: str, cited: list[tuple[str, str]]) -> None:
    assert [(page, id_) for page, id_, _ in citations_in(text)] == cited


def test_rule_part_must_exist() -> None:
    there = {id_: rule_of(id_) is not None for id_ in ("E13d", "E13", "G14b", "E12d", "G14", "E99")}
    assert [id_ for id_, is_there in there.items() if is_there] == ["E13d", "E13", "G14b"]
