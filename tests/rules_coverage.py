"""Which code and which tests cite the rules of docs/rules; generates `docs/rules/coverage.md`.

Owns the forms of a citation (docs/rules/README.md) and the table: `python -m tests.rules_coverage` writes it.
`test_rules_pages` holds the pages, the citations and the table against each other. Source is read token by token, so
that names and numbers of the code itself are no citations.
"""

from __future__ import annotations

import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
RULES: Final = ROOT / "docs" / "rules"
COVERAGE: Final = RULES / "coverage.md"
CODE: Final = ("src", "benchmarks")
TESTS: Final = ("tests",)

_RULE: Final = re.compile(r'^- <a id="(\w+)"></a>\*\*([A-Z]\d+[a-e]?)\*\* (.*(?:\n  .*)*)', re.MULTILINE)
_ID: Final = r"[{prefixes}]\d{{1,2}}[a-e]?"
_SUFFIXES: Final = (".py", ".pyx", ".pxd")
_NAMES_IN: Final = ("tests/kip/", "tests/simulation/")
"""Where names of functions begin with ids. Elsewhere `test_v2_...` is about a version."""
_INTRODUCTION: Final = """\
# Rules and who cites them

Made by `make rules` from docstrings, comments, messages and test names; do not edit. A file is listed if it cites the
rule, alone or in a range. A citation says where to look, not that the rule is kept in full.

## Rules that no test cites
"""
_ABOUT_CITATIONS: Final = ("tests/rules_coverage.py", "tests/test_rules_pages.py")
"""Not read: what they cite are examples."""


class Rule(NamedTuple):
    id: str
    page: str
    anchor: str
    text: str


class Citation(NamedTuple):
    """`page` is "" where none is named with it."""

    path: str
    line: int
    page: str
    id: str


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in the order of the pages."""
    return tuple(
        Rule(match[2], page.name, match[1], match[3])
        for page in sorted(RULES.glob("*.md"))
        for match in _RULE.finditer(page.read_text())
    )


def pages() -> tuple[str, ...]:
    return tuple(dict.fromkeys(rule.page for rule in rules()))


class Section(NamedTuple):
    """A part of a page that is cited by its heading, or by the letter that the heading begins with."""

    path: str
    line: int
    page: str
    heading: str


class _Forms(NamedTuple):
    """What a citation looks like, by the prefixes and pages that there are."""

    any: re.Pattern[str]
    item: re.Pattern[str]
    section: re.Pattern[str]
    message: re.Pattern[str]
    name: re.Pattern[str]


@cache
def _forms() -> _Forms:
    prefixes = "".join(sorted({rule.id[0] for rule in rules()}))
    id_ = _ID.format(prefixes=prefixes)
    item = rf"(?<![\w.])({id_})(?:`?(?:-| to )`?({id_}))?(?!\w)"
    items = rf"{id_}(?:(?:, |-){id_})*"
    page = "|".join(re.escape(page.removesuffix(".md")) for page in pages())
    # A page, and the ids that follow it without a word between: `epochs.md E1, E4-E6` or `epochs.md` E1.
    named = rf"(?<![\w/])(?P<page>(?:{page})\.md)`*,? (?P<ids>`?{item}`?(?:(?:,| and) `?{item}`?)*)"
    return _Forms(
        re.compile(rf"{named}|{item}"),
        re.compile(item),
        re.compile(rf"(?<![\w/])((?:{page})\.md)`*,? (?:\"([^\"]+)\"|([A-Z])(?![\w'-]))"),
        re.compile(rf"(?:^[rbuRBU]?[\"']+(?:{page})?(?:\.md )?{items}[\"':])|(?:\({items}\))|(?:{page})\.md {items}"),
        re.compile(rf"(?:test)?_((?:{id_.lower()}_)+)"),
    )


def _expanded(first: str, last: str | None) -> list[str]:
    if not last or last[0] != first[0]:
        return [each for each in (first, last) if each]
    return [first, *(f"{first[0]}{number}" for number in range(_number(first) + 1, _number(last))), last]


def _number(id_: str) -> int:
    return int(re.sub(r"\D", "", id_))


def citations_in(text: str) -> Iterator[tuple[str, str, int]]:
    """Page (or ""), id and place of each rule that prose cites."""
    for match in _forms().any.finditer(text):
        page = match["page"] or ""
        for item in _forms().item.finditer(match[0]):
            for id_ in _expanded(item[1], item[2]):
                yield page, id_, match.start() + item.start()


def _prose(path: Path) -> Iterator[tuple[str, int]]:
    """Docstrings, blocks of comments, and what cites of other strings; each with its first line."""
    comment: list[str] = []
    comment_line = last_line = 0
    begins_statement = True
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            kind = tokenize.tok_name[token.type]
            if kind == "COMMENT":
                if comment and token.start[0] != last_line + 1:
                    yield "\n".join(comment), comment_line
                    comment = []
                comment_line = comment_line if comment else token.start[0]
                comment.append(re.sub(r"# noqa.*", "", token.string).removeprefix("#"))
                last_line = token.start[0]
            elif kind == "STRING" and begins_statement:
                yield token.string, token.start[0]
            elif kind in ("STRING", "FSTRING_MIDDLE"):
                for match in _forms().message.finditer(token.string):
                    yield match[0], token.start[0]
            elif kind == "NAME" and path.relative_to(ROOT).as_posix().startswith(_NAMES_IN):
                begins = _forms().name.match(token.string)
                if begins is not None:
                    yield begins[1].upper().rstrip("_").replace("_", ", "), token.start[0]
            if kind not in ("COMMENT", "NL"):
                begins_statement = kind in ("NEWLINE", "INDENT", "DEDENT", "ENCODING")
    if comment:
        yield "\n".join(comment), comment_line


@cache
def _all_prose() -> tuple[tuple[str, int, str], ...]:
    """Path, first line and text, of every file in which something may be cited."""
    found: list[tuple[str, int, str]] = []
    for path in sorted(path for folder in (*CODE, *TESTS) for path in (ROOT / folder).rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in _SUFFIXES and name not in _ABOUT_CITATIONS:
            text = path.read_text()
            if any(form.search(text) for form in (_forms().item, _forms().name, _forms().section)):
                found += ((name, line, re.sub(r"\n[ \t]*", "\n", prose)) for prose, line in _prose(path))
    return tuple(found)


@cache
def citations() -> tuple[Citation, ...]:
    """Of code and tests, in the order of files and lines."""
    return tuple(
        Citation(path, line + text.count("\n", 0, place), page, id_)
        for path, line, text in _all_prose()
        for page, id_, place in citations_in(text.replace("\n", " "))
    )


def sections() -> Iterator[Section]:
    """Those that code and tests cite: `raft.md "States"`, `epochs.md` C."""
    for path, line, text in _all_prose():
        for match in _forms().section.finditer(text.replace("\n", " ")):
            heading = match[2] or f"{match[3]}."
            yield Section(path, line + text.count("\n", 0, match.start()), match[1], heading)


def rule_of(id_: str) -> Rule | None:
    """The rule that an id cites: itself, or the rule of which it names a part (`E13d` is part (d) of E13)."""
    known = {rule.id: rule for rule in rules()}
    if id_ in known:
        return known[id_]
    whole = known.get(id_[:-1])
    return whole if whole is not None and f"({id_[-1]})" in whole.text else None


def _cited_by() -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
    """Files of the code and of the tests, by rule."""
    code: defaultdict[str, list[str]] = defaultdict(list)
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for citation in citations():
        rule = rule_of(citation.id)
        if rule is not None:
            files = (tests if citation.path.startswith(TESTS) else code)[rule.id]
            if citation.path not in files:
                files.append(citation.path)
    return code, tests


def _label(path: str) -> str:
    return f"[`{path.removeprefix('src/fenceline/').removeprefix('src/').removeprefix('tests/')}`]"


def _link(rule: Rule) -> str:
    return f"[{rule.id}]({rule.page}#{rule.anchor})"


def _uncited(cited: Mapping[str, list[str]], by_code: Mapping[str, list[str]]) -> Iterator[str]:
    """By page: what code cites and no test, and what neither cites."""
    for page in pages():
        missing = [rule for rule in rules() if rule.page == page and rule.id not in cited]
        for title, here in (
            ("cited by code", [rule for rule in missing if rule.id in by_code]),
            ("cited nowhere", [rule for rule in missing if rule.id not in by_code]),
        ):
            if here:
                yield f"| [{page}]({page}) | {title} | {', '.join(map(_link, here))} |"


def document() -> str:
    """coverage.md as it should be."""
    code, tests = _cited_by()
    lines = [
        _INTRODUCTION,
        "| Page | | Rules |",
        "|---|---|---|",
        *_uncited(tests, code),
        "",
        "## Counts",
        "",
        "| Page | Rules | Cited by code | Cited by tests | Cited by neither |",
        "|---|---|---|---|---|",
    ]
    for page in pages():
        ids = [rule.id for rule in rules() if rule.page == page]
        counts = (
            len(ids),
            sum(id_ in code for id_ in ids),
            sum(id_ in tests for id_ in ids),
            sum(id_ not in code and id_ not in tests for id_ in ids),
        )
        lines.append(f"| [{page}]({page}) | {' | '.join(map(str, counts))} |")
    for page in pages():
        cited = [rule for rule in rules() if rule.page == page and (rule.id in code or rule.id in tests)]
        if cited:
            lines += ["", f"## {page}", "", "| Rule | Code | Tests |", "|---|---|---|"]
        for rule in cited:
            cells = (" ".join(map(_label, files.get(rule.id, ()))) for files in (code, tests))
            lines.append(f"| {_link(rule)} | {' | '.join(cells)} |")
    paths = sorted({path for files in (code, tests) for each in files.values() for path in each})
    assert len({_label(path) for path in paths}) == len(paths), "two files would have one name here"
    return "\n".join([*lines, "", *(f"{_label(path)}: ../../{path}" for path in paths)]) + "\n"


def main() -> None:
    """See the module."""
    COVERAGE.write_text(document())


if __name__ == "__main__":
    main()
