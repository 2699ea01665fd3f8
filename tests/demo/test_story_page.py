"""The page of the demo: everything in the story is on it, and it needs nothing but itself."""

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
from fenceline.demo.drawings import LEFT, WIDTH, apart, steps
from fenceline.demo.story import Connector, Moment, Reign, Story
from fenceline.demo.story_page import page, write_page
from tests.demo.stories import END, LOST_FROM, LOST_TO, cut_off

_VOID = {"meta", "br", "hr", "img", "link", "input"}


class _Parsed(HTMLParser):
    """Tags in order, with attributes; complains of what is not closed."""

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
        """Marks of a class that lie in a drawing, not in a legend."""
        found = [attrs for tag, attrs in self.tags if tag == "rect"]
        return [attrs for attrs in found if style in attrs.get("class", "").split() and float(attrs["y"]) > 2]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def parsed(story: Story) -> _Parsed:
    return _Parsed(page(story))


def test_it_needs_nothing_from_outside(tmp_path: Path) -> None:
    write_page(tmp_path / "report.html", cut_off(), more="<h2>Delays</h2>")
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text
    assert "http" not in text
    assert re.findall(r"(?:src|href)=", text) == []
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#hatch"}
    assert text.count('id="hatch"') == 1
    assert text.index("<h2>Delays</h2>") < text.index("Input, log and tables compared")


def test_every_reign_is_drawn_where_and_how_long_it_was() -> None:
    found = parsed(cut_off())
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


def test_moments_are_numbered_in_the_order_of_time() -> None:
    text = page(cut_off())
    listed = re.findall(r"<li><time>([^<]*)</time>([^<]*)</li>", text)
    assert [when for when, _ in listed] == ["45 s", "47 s", "58 s", "61 s", "66 s", "68 s"]
    assert len(re.findall(r'<g class="marker">', text)) == 6


def test_what_was_lost_lies_at_its_offsets_and_has_its_receipt() -> None:
    found = parsed(cut_off())
    (lost,) = found.rects("lost")
    room = WIDTH - LEFT - 20
    assert float(lost["x"]) == pytest.approx(LEFT + room * LOST_FROM / END, abs=0.1)
    assert float(lost["width"]) == pytest.approx(room * (LOST_TO - LOST_FROM) / END, abs=0.2)
    for words in ("d106e4a2718a", "31,000 to 38,499", "7,500", "committed", "divergence", "at 61 s"):
        assert words in found.text, words
    assert "flights-1 was truncated: offset 38500 <read> in epoch 0" in found.text


def test_a_loss_of_which_the_consumer_said_nothing_is_a_bad_thing() -> None:
    story = cut_off()
    story.lost = [replace(story.lost[0], told_s=None, consumer_words="")]
    text = page(story)
    assert '<span class="bad">never</span>' in text
    assert "the consumer reported 0 of 1" in " ".join(text.split())


def test_the_table_before_and_after() -> None:
    found = parsed(cut_off())
    assert "91,000 right, 7,500 stale, 9,000 missing." in found.text
    assert "144,000 right, 0 stale, 0 missing." in found.text
    assert (len(found.rects("stale")), len(found.rects("missing"))) == (1, 1)
    assert "7,500 stale rows of flights-1 went with batch 12." in found.text


def test_the_verdict_is_that_of_the_checks() -> None:
    story = cut_off()
    text = " ".join(page(story).split())
    assert '<p class="ok">The tables equal the log. 7,500 records in 1 range were cut off; each range has' in text
    assert "the consumer reported 1 of 1" in text
    story.checks.append(Check("rows > 0", "1", "0"))
    text = page(story)
    assert '<p class="bad">The tables do not equal the log.</p>' in text
    assert '<td class="bad">wrong</td>' in text
    assert "rows &gt; 0" in text
    story.checks = []
    assert "Nothing was checked." in page(story)


@pytest.mark.parametrize(
    ("connector", "words"),
    [
        (Connector(100, 7, 9), "went on as if nothing had happened, and its table is wrong"),
        (Connector(100, 0, 0), "its table is right"),
        (Connector(100, 7, 0, "Some data <may> have been lost"), "ended with an error"),
    ],
)
def test_the_fate_of_the_connector(connector: Connector, words: str) -> None:
    story = cut_off()
    story.connector = connector
    found = parsed(story)
    assert words in found.text
    assert (connector.ended_with or "nothing") in found.text


def test_a_connector_that_did_not_run_has_a_reason() -> None:
    story = cut_off()
    story.connector, story.connector_skipped = None, "make jars was not run"
    assert "It did not run: make jars was not run." in parsed(story).text


def test_curves_have_a_point_for_every_sample() -> None:
    text = page(cut_off())
    curves = re.findall(r'<polyline class="curve-\d" points="([^"]*)"', text)
    assert [len(curve.split()) for curve in curves] == [6, 6, 6]
    assert "Into the raw table: 3,760/s on the whole, 4,000/s at best" in text


def test_a_story_of_which_nothing_is_known_says_so() -> None:
    found = parsed(Story(topic="<t>", brokers=7))
    for words in (
        "No leader was seen.",
        "Nothing was checked.",
        "The table was not looked at.",
        "Nothing was measured.",
    ):
        assert words in found.text
    assert "7 brokers" in found.text
    assert "<t>: what the log lost" in found.text


def test_nodes_beyond_the_colours_have_one_of_them() -> None:
    story = Story(topic="t", brokers=9, reigns=[Reign(0, 0, 9, 0.0, None, 0, 10)])
    assert parsed(story).rects("node-1")


def test_a_reign_that_wrote_nothing_says_so() -> None:
    story = Story(topic="t", brokers=3, reigns=[Reign(0, 4, 2, 0.0, 5.0, 10, 10)], moments=[Moment(2.5, "x")])
    assert "epoch 4, led by node 2, from 0 s on: nothing that is left" in parsed(story).text


@given(st.lists(st.floats(0, 880), max_size=30))
def test_numbers_of_markers_do_not_lie_on_each_other(places: list[float]) -> None:
    moved = apart(sorted(places), 20.0, 880.0)
    assert all(later - earlier >= 20.0 - 1e-6 for earlier, later in pairwise(moved))
    assert all(place <= 880.0 for place in moved)
    alone = apart(sorted(places), 0.0, 880.0)
    assert alone == sorted(places), "nothing moves where there is room"


@given(st.floats(0, 1e9), st.integers(2, 10))
def test_steps_of_an_axis_are_few_and_within(highest: float, about: int) -> None:
    found = steps(highest, about)
    assert found[0] == 0
    assert found[-1] <= highest
    assert len(found) <= about + 1
