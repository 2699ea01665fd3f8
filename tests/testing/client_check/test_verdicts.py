"""Verdicts and cards, from what a program printed."""

from __future__ import annotations

import re

import pytest

from fenceline.testing.client_check.cards import ReportCard, markdown_of, text_of_verdict
from fenceline.testing.client_check.program import PrintedLine
from fenceline.testing.client_check.verdicts import CaseVerdict, processed, remarks, shape


def verdict(**fields: object) -> CaseVerdict:
    given: dict[str, object] = {
        "case": "case",
        "recovered": True,
        "noticed": False,
        "must_notice": False,
        "hung": False,
        "exit_code": None,
    }
    return CaseVerdict(**{**given, **fields})  # type: ignore[arg-type]


def line(text: str, at_s: float = 1.0, *, is_error: bool = False) -> PrintedLine:
    return PrintedLine(at_s, text, is_error)


@pytest.mark.parametrize(
    ("fields", "words", "is_good"),
    [
        ({}, ["recovered"], True),
        ({"noticed": True}, ["recovered", "noticed"], True),
        ({"must_notice": True}, ["recovered", "silent"], False),
        ({"must_notice": True, "noticed": True}, ["recovered", "noticed"], True),
        ({"lost": ("r-1",)}, ["lost 1"], False),
        ({"duplicated": ("r-1", "r-2")}, ["duplicated 2"], True),
        ({"hung": True}, ["hung"], False),
        ({"exit_code": 1, "recovered_after_restart": True, "noticed": True}, ["crashed", "noticed"], True),
        ({"exit_code": 0, "recovered_after_restart": False}, ["crashed for good"], False),
        (
            {
                "exit_code": 1,
                "recovered_after_restart": False,
                "must_notice": True,
                "noticed": True,
                "remarks": ("out of range",),
            },
            ["stopped", "noticed"],
            True,
        ),
        (
            {"exit_code": 1, "recovered_after_restart": False, "must_notice": True, "noticed": True},
            ["crashed for good", "noticed"],
            False,
        ),
        ({"impossible": "the topic has one replica", "lost": ("r-1",)}, ["not run"], False),
    ],
)
def test_words(fields: dict[str, object], words: list[str], is_good: bool) -> None:
    made = verdict(**fields)
    assert made.words == words
    assert made.is_good is is_good


def test_values_are_found_in_what_is_printed() -> None:
    lines = [
        line("r-1"),
        line("offset=4 value=r-2"),
        line("r-1"),
        line("r-12"),
        line("r-3", is_error=True),
        line("hr-4x"),
    ]
    assert processed(lines) == {"r-1": 2, "r-2": 1, "r-12": 1}


def test_remarks_are_lines_about_the_case_since_it_began() -> None:
    lines = [line("reset before", 0.5), line("offset reset"), line("lost-1"), line("all is well"), line("offset reset")]
    assert remarks(lines, 1.0, re.compile("reset|lost")) == ("offset reset",)


def test_noise_is_no_remark() -> None:
    lines = [line("reset took 12 ms"), line("reset to 5")]
    assert remarks(lines, 1.0, re.compile("reset"), {shape("reset took 7 ms")}) == ("reset to 5",)


def test_details_are_for_persons() -> None:
    made = verdict(
        lost=tuple(f"r-{number}" for number in range(7)), exit_code=3, remarks=("error: x",), timeline="1 s  a"
    )
    text = text_of_verdict(made, "a title", with_timeline=True)
    assert text.startswith("!!  a title")
    assert "lost: r-0, r-1, r-2, r-3, r-4 and 2 more" in text
    assert "it ended with exit code 3" in text
    assert "it printed: error: x" in text
    assert text.endswith("1 s  a")


def test_a_card_survives_json_and_is_a_table() -> None:
    card = ReportCard(
        "mine",
        "consumer",
        (verdict(lost=("r-1",), timeline="t"), verdict(case="b", noticed=True)),
        {"case": "A", "b": "B"},
    )
    assert ReportCard.from_json(card.to_json()) == card
    not_run = verdict(impossible="there is no group")
    other = ReportCard("other", "consumer", (not_run, verdict(case="b")), {"case": "A", "b": "B"})
    assert markdown_of([card, other]) == (
        "| Case | mine | other |\n| --- | --- | --- |\n| A | **lost 1** | not run |\n"
        "| B | recovered, noticed | recovered |\n"
        "| **went well** | **1 of 2** | **1 of 1** |\n"
    )
