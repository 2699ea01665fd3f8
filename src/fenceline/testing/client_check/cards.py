"""The report card of a program: all verdicts, as text for a terminal, as Markdown and as JSON.

Owns the forms. Runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fenceline.testing.client_check.verdicts import CaseVerdict


@dataclass(frozen=True, slots=True)
class ReportCard:
    """`kind` is consumer or producer; `titles` are those of the cases, by name."""

    name: str
    kind: str
    verdicts: tuple[CaseVerdict, ...]
    titles: dict[str, str]

    @property
    def good(self) -> int:
        """How many cases went well."""
        return sum(verdict.is_good for verdict in self.verdicts)

    @property
    def ran(self) -> int:
        """How many cases could be made true."""
        return sum(not verdict.impossible for verdict in self.verdicts)

    def to_json(self) -> str:
        """Everything, the timelines as well."""
        rows = [
            {**asdict(verdict), "words": verdict.words, "is_good": verdict.is_good, "title": self.titles[verdict.case]}
            for verdict in self.verdicts
        ]
        return json.dumps({"name": self.name, "kind": self.kind, "verdicts": rows}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> ReportCard:
        """Raises ValueError, KeyError, TypeError."""
        read: dict[str, Any] = json.loads(text)
        verdicts, titles = [], {}
        for row in read["verdicts"]:
            titles[row["case"]] = row.pop("title")
            for derived in ("words", "is_good"):
                row.pop(derived)
            tuples = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
            verdicts.append(CaseVerdict(**{**row, **tuples}))
        return cls(read["name"], read["kind"], tuple(verdicts), titles)


def line_of(verdict: CaseVerdict, title: str) -> str:
    """One case on one line of a terminal."""
    mark = "-" if verdict.impossible else "ok" if verdict.is_good else "!!"
    return f"{mark:2}  {title:52}  {verdict.summary()}"


def text_of_verdict(verdict: CaseVerdict, title: str, *, with_timeline: bool) -> str:
    """The line of a case, and below it what a person needs to understand it."""
    lines = [line_of(verdict, title)]
    if not verdict.is_good or with_timeline:
        lines += [f"      {each}" for each in verdict.details()]
    if with_timeline and verdict.timeline:
        lines += [f"      {each}" for each in verdict.timeline.splitlines()]
    return "\n".join(lines)


def markdown_of(cards: Sequence[ReportCard]) -> str:
    """One table of cards of the same kind: a case a row, a client a column."""
    titles: dict[str, str] = {}
    for card in cards:
        titles.update(card.titles)
    by_case = [{verdict.case: verdict for verdict in card.verdicts} for card in cards]
    rows = [
        _row(["Case", *(card.name for card in cards)]),
        _row(["---"] * (len(cards) + 1)),
        *(_row([title, *(_cell(verdicts.get(case)) for verdicts in by_case)]) for case, title in titles.items()),
        _row(["**went well**", *(f"**{card.good} of {card.ran}**" for card in cards)]),
    ]
    return "\n".join(rows) + "\n"


def _cell(verdict: CaseVerdict | None) -> str:
    if verdict is None:
        return ""
    text = verdict.summary()
    return text if verdict.is_good or verdict.impossible else f"**{text}**"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
