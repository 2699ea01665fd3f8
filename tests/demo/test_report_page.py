"""The demo's page shows everything in the report and needs no external resources."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.demo.checks import Check
from fenceline.demo.drawings import LEFT, WIDTH, spread_apart, steps
from fenceline.demo.report import ConnectorResult, DemoReport, Event, LeadershipPeriod
from fenceline.demo.report_page import page, write_page
from tests.demo.reports import END, LOST_FROM, LOST_TO, unclean_election_report

_VOID = {"meta", "br", "hr", "img", "link", "input"}


class _Parsed(HTMLParser):
    """Tags in order, with attributes; asserts that all are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def rects(self, style: str) -> list[dict[str, str]]:
        """Marks of a class in a chart, not in a legend."""
        found = [attrs for tag, attrs in self.tags if tag == "rect"]
        return [attrs for attrs in found if style in attrs.get("class", "").split() and float(attrs["y"]) > 2]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def parsed(report: DemoReport) -> _Parsed:
    return _Parsed(page(report))


def test_the_page_has_no_external_resources(tmp_path: Path) -> None:
    write_page(tmp_path / "report.html", unclean_election_report(), more="<h2>Delays</h2>")
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text
    assert "http" not in text
    assert re.findall(r"(?:src|href)=", text) == []
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#hatch"}
    assert text.count('id="hatch"') == 1
    assert text.index("<h2>Delays</h2>") < text.index("Checks: input, log and tables")


def test_every_leadership_period_is_drawn_at_its_time() -> None:
    found = parsed(unclean_election_report())
    titles = [
        text for text in found.texts if text.startswith("epoch 1, led by node 3, elected uncleanly, from 58 s on")
    ]
    assert len(titles) == 1
    assert "offsets 31,000 to 69,999" in titles[0]
    (unclean,) = found.rects("unclean")
    room = WIDTH - LEFT - 20
    assert float(unclean["x"]) == pytest.approx(LEFT + room * 58.5 / 131, abs=0.1)
    assert float(unclean["width"]) == pytest.approx(room * (90 - 58.5) / 131, abs=0.2)
    (shade,) = {(rect["x"], rect["width"]) for rect in found.rects("shade") if rect["y"] == "6"}
    assert float(shade[1]) == pytest.approx(room * 21 / 131, abs=0.2)


def test_events_are_numbered_in_the_order_of_time() -> None:
    text = page(unclean_election_report())
    listed = re.findall(r"<li><time>([^<]*)</time>([^<]*)</li>", text)
    assert [when for when, _ in listed] == ["45 s", "47 s", "58 s", "61 s", "66 s", "68 s"]
    assert len(re.findall(r'<g class="marker">', text)) == 6


def test_a_lost_range_is_drawn_at_its_offsets_with_its_receipt() -> None:
    found = parsed(unclean_election_report())
    (lost,) = found.rects("lost")
    room = WIDTH - LEFT - 20
    assert float(lost["x"]) == pytest.approx(LEFT + room * LOST_FROM / END, abs=0.1)
    assert float(lost["width"]) == pytest.approx(room * (LOST_TO - LOST_FROM) / END, abs=0.2)
    for words in ("d106e4a2718a", "31,000 to 38,499", "7,500", "committed", "divergence", "at 61 s"):
        assert words in found.text, words
    assert "flights-1 was truncated: offset 38500 <read> in epoch 0" in found.text


def test_an_unreported_loss_is_marked() -> None:
    report = unclean_election_report()
    report.lost = [replace(report.lost[0], reported_s=None, consumer_message="")]
    text = page(report)
    assert '<span class="bad">never</span>' in text
    assert "the consumer reported 0 of 1" in " ".join(text.split())


def test_the_table_before_and_after() -> None:
    found = parsed(unclean_election_report())
    assert "91,000 matching, 7,500 stale, 9,000 missing." in found.text
    assert "144,000 matching, 0 stale, 0 missing." in found.text
    assert (len(found.rects("stale")), len(found.rects("missing"))) == (1, 1)
    assert "7,500 stale rows of flights-1 were deleted with batch 12." in found.text


def test_the_verdict_follows_the_checks() -> None:
    report = unclean_election_report()
    text = " ".join(page(report).split())
    assert '<p class="ok">The tables match the log. 7,500 records in 1 range were lost; each range has' in text
    assert "the consumer reported 1 of 1" in text
    report.checks.append(Check("rows > 0", "1", "0"))
    text = page(report)
    assert '<p class="bad">A check failed: the tables may not match the log.</p>' in text
    assert '<td class="bad">wrong</td>' in text
    assert "rows &gt; 0" in text
    report.checks = []
    assert "No checks were run." in page(report)


@pytest.mark.parametrize(
    ("connector", "words"),
    [
        (ConnectorResult(100, 7, 9), "reported nothing, and its table does not match the log"),
        (ConnectorResult(100, 0, 0), "its table matches the log"),
        (ConnectorResult(100, 7, 0, "Some data <may> have been lost"), "failed with an error"),
    ],
)
def test_the_result_of_the_connector(connector: ConnectorResult, words: str) -> None:
    report = unclean_election_report()
    report.connector = connector
    found = parsed(report)
    assert words in found.text
    assert (connector.error or "none") in found.text


def test_a_skipped_connector_has_a_reason() -> None:
    report = unclean_election_report()
    report.connector, report.connector_skipped = None, "make jars was not run"
    assert "It did not run: make jars was not run." in parsed(report).text


def test_curves_have_a_point_for_every_sample() -> None:
    text = page(unclean_election_report())
    curves = re.findall(r'<polyline class="curve-\d" points="([^"]*)"', text)
    assert [len(curve.split()) for curve in curves] == [6, 6, 6]
    assert "Rows written to the raw table: 3,760/s on average, 4,000/s at most" in text


def test_sections_without_data_say_so() -> None:
    found = parsed(DemoReport(topic="<t>", brokers=7))
    for words in (
        "No leader was observed.",
        "No checks were run.",
        "The table was not read.",
        "No samples were taken.",
    ):
        assert words in found.text
    assert "7 brokers" in found.text
    assert "Data loss in topic <t>" in found.text


def test_more_nodes_than_colours() -> None:
    report = DemoReport(topic="t", brokers=9, leadership_periods=[LeadershipPeriod(0, 0, 9, 0.0, None, 0, 10)])
    assert parsed(report).rects("node-1")


def test_a_leadership_period_without_records() -> None:
    report = DemoReport(
        topic="t", brokers=3, leadership_periods=[LeadershipPeriod(0, 4, 2, 0.0, 5.0, 10, 10)], events=[Event(2.5, "x")]
    )
    assert "epoch 4, led by node 2, from 0 s on: no records in the log" in parsed(report).text


@given(st.lists(st.floats(0, 880), max_size=30))
def test_marker_numbers_do_not_overlap(places: list[float]) -> None:
    moved = spread_apart(sorted(places), 20.0, 880.0)
    assert all(later - earlier >= 20.0 - 1e-6 for earlier, later in pairwise(moved))
    assert all(place <= 880.0 for place in moved)
    alone = spread_apart(sorted(places), 0.0, 880.0)
    assert alone == sorted(places), "nothing moves where there is room"


@given(st.floats(0, 1e9), st.integers(2, 10))
def test_axis_steps_are_few_and_in_range(highest: float, about: int) -> None:
    found = steps(highest, about)
    assert found[0] == 0
    assert found[-1] <= highest
    assert len(found) <= about + 1
