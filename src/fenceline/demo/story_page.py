"""The page that tells what happened: one self-contained HTML file, drawn as SVG, with no script, nothing from outside.

Owns the words and the order of the sections. Takes everything from a `Story`; looks at no cluster and no table. A part
of the story that is not there is said to be missing, never left out in silence.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from fenceline import __version__
from fenceline.demo.drawings import Bar, Line, Marker, bars, hatching, lines
from fenceline.demo.story import Connector, Lost, Reign, Rows, Span, Story, TableState

_STYLES: Final = 4
"""Colours of nodes that the page has."""
_STYLE: Final = (Path(__file__).parent / "story.css").read_text(encoding="utf-8")


def page(story: Story, *, more: str = "") -> str:
    """The whole page. `more` is HTML for further sections, in front of the checks."""
    title = f"{story.topic}: what the log lost, and who noticed"
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>{hatching()}
<h1>{_text(title)}</h1>
<p class="dim">Fenceline {__version__}: {_number_word(story.brokers)} brokers, a Structured Streaming job, a raw table
and an aggregate that is derived from it.</p>
{_verdict(story)}
<div class="tiles">{_tiles(story)}</div>
<h2>Who led when</h2>{_reigns(story)}
<h2>What the logs lost</h2>{_lost(story)}
<h2>The raw table, before and after the repair</h2>{_tables(story)}
<h2>Beside Spark's own Kafka connector</h2>{_connector(story)}
<h2>Rates</h2>{_rates(story)}
{more}<h2>Input, log and tables compared</h2>{_checks(story)}
</body></html>
"""


def write_page(path: Path, story: Story, *, more: str = "") -> None:
    """Write the page, replacing an older one."""
    path.write_text(page(story, more=more), encoding="utf-8")


# -- sections ---------------------------------------------------------------------------------------------------------


def _verdict(story: Story) -> str:
    if not story.checks:
        return '<p class="bad">Nothing was checked.</p>'
    if not story.passed:
        return '<p class="bad">The tables do not equal the log.</p>'
    told = [lost for lost in story.lost if lost.told_s is not None]
    words = "The tables equal the log."
    if story.lost:
        words += (
            f" {story.lost_records:,} records in {_ranges(len(story.lost))} were cut off; each range has a receipt,"
            f" the consumer reported {len(told)} of {len(story.lost)}, and no stale row is left."
        )
    return f'<p class="ok">{words}</p>'


def _tiles(story: Story) -> str:
    stale = story.before.rows(Rows.STALE) if story.before is not None else 0
    figures = (
        (f"{story.produced:,}", "records produced"),
        (f"{story.lost_records:,}", "records lost by an unclean election"),
        (f"{stale:,}", "rows that had to go again"),
        (_rate(story.produced, story.producing_s), "producer's rate while sending"),
        (_seconds(story.streaming_s), "for the streams, repair included"),
        (_seconds(story.total_s), "for everything"),
    )
    return "".join(f'<div class="tile"><b>{value}</b>{_text(label)}</div>' for value, label in figures)


def _reigns(story: Story) -> str:
    if not story.reigns:
        return "<p>No leader was seen.</p>"
    end = max(
        [reign.from_s if reign.to_s is None else reign.to_s for reign in story.reigns]
        + [moment.at_s for moment in story.moments]
        + [story.total_s]
    )
    partitions = sorted({reign.partition for reign in story.reigns})
    drawn = [_reign_bar(reign, partitions.index(reign.partition), end) for reign in story.reigns]
    moments = sorted(story.moments, key=lambda moment: moment.at_s)
    markers = [
        Marker(moment.at_s, str(number), f"{_seconds(moment.at_s)}: {moment.text}")
        for number, moment in enumerate(moments, start=1)
    ]
    leaders = sorted({reign.leader for reign in story.reigns})
    keys = [(_node(leader), f"node {leader} leads") for leader in leaders]
    if any(reign.unclean for reign in story.reigns):
        keys.append(("outline unclean", "elected uncleanly"))
    if story.isolated is not None:
        keys.append(("shade", "the leader is cut off"))
    told = "".join(f"<li><time>{_seconds(moment.at_s)}</time>{_text(moment.text)}</li>" for moment in moments)
    return (
        bars(
            _names(story, partitions), drawn, end,
            label="Leader epochs of each partition over time", unit=_seconds, markers=markers, shade=story.isolated,
        )
        + _keys(keys)
        + (f'<ol class="moments">{told}</ol>' if told else "")
    )  # fmt: skip


def _reign_bar(reign: Reign, row: int, end: float) -> Bar:
    to_s = end if reign.to_s is None else reign.to_s
    wrote = _offsets(reign) if reign.end_offset > reign.start_offset else "nothing that is left"
    how = ", elected uncleanly" if reign.unclean else ""
    return Bar(
        row, reign.from_s, to_s, f"epoch {reign.epoch}",
        f"epoch {reign.epoch}, led by node {reign.leader}{how}, from {_seconds(reign.from_s)} on: {wrote}",
        _node(reign.leader) + (" unclean" if reign.unclean else ""),
    )  # fmt: skip


def _lost(story: Story) -> str:
    if not story.lost:
        return "<p>Nothing.</p>"
    partitions = sorted({lost.partition for lost in story.lost})
    reigns = [
        reign for reign in story.reigns if reign.partition in partitions and reign.end_offset > reign.start_offset
    ]
    end = max([lost.end_offset for lost in story.lost] + [reign.end_offset for reign in reigns])
    drawn = [
        Bar(
            partitions.index(reign.partition), reign.start_offset, reign.end_offset, f"epoch {reign.epoch}",
            f"{_offsets(reign)} of epoch {reign.epoch}, by node {reign.leader}", _node(reign.leader),
        )
        for reign in reigns
    ]  # fmt: skip
    drawn += [
        Bar(
            partitions.index(lost.partition), lost.start_offset, lost.end_offset, "",
            f"lost: {_offsets(lost)} of epoch {lost.epoch}", "lost", below=True,
        )
        for lost in story.lost
    ]  # fmt: skip
    rows = "".join(
        f"<tr><td>{_text(story.topic)}-{lost.partition}</td><td>{lost.start_offset:,} to {lost.end_offset - 1:,}</td>"
        f'<td class="number">{lost.records:,}</td><td>{lost.epoch}</td><td>{_text(lost.loss_class)}</td>'
        f"<td>{_text(lost.cause)}</td><td>{lost.replica}</td><td><code>{_text(lost.receipt)}</code></td>"
        f"<td>{_told(lost)}</td></tr>"
        for lost in story.lost
    )
    heads = ("partition", "offsets", "records", "epoch", "class", "cause", "cut by node", "receipt", "consumer told")
    quotes = "".join(
        f"<blockquote>{_text(lost.consumer_words)}</blockquote>" for lost in story.lost if lost.consumer_words
    )
    return (
        "<p>Along the offsets: what the log holds, and below it what was there before. Every cut has a receipt, and the"
        " records are kept beside the log of the replica that cut them.</p>"
        + bars(_names(story, partitions), drawn, end, label="The log and what was cut off it", unit=_offset)
        + _keys([("lost", "lost")])
        + f'<div class="scroll"><table><tr>{_heads(heads)}</tr>{rows}</table></div>'
        + (f"<p>What the consumer said:</p>{quotes}" if quotes else "")
    )


def _told(lost: Lost) -> str:
    return f"at {_seconds(lost.told_s)}" if lost.told_s is not None else '<span class="bad">never</span>'


def _tables(story: Story) -> str:
    if story.before is None or story.after is None:
        return "<p>The table was not looked at.</p>"
    end = max((span.end_offset for state in (story.before, story.after) for span in state.spans), default=0)
    leaders = {(reign.partition, reign.epoch): reign.leader for reign in story.reigns}
    drawn = "".join(_table(story, state, end, leaders) for state in (story.before, story.after))
    keys = [
        ("node-1", "rows that the log has, in the colour of who led"),
        ("stale", "stale: the log has others there"),
        ("missing", "missing"),
    ]
    words = f"<p>{_text(story.repair_words)}</p>" if story.repair_words else ""
    return words + drawn + _keys(keys)


def _table(story: Story, state: TableState, end: float, leaders: dict[tuple[int, int], int]) -> str:
    partitions = sorted({span.partition for span in state.spans})
    drawn = []
    for span in state.spans:
        style = _node(leaders.get((span.partition, span.epoch), 1)) if span.rows is Rows.RIGHT else span.rows.value
        drawn.append(
            Bar(
                partitions.index(span.partition), span.start_offset, span.end_offset,
                f"epoch {span.epoch}" if span.rows is Rows.RIGHT else "",
                f"{span.count:,} rows {span.rows.value}: {_offsets(span)} of epoch {span.epoch}",
                style, below=span.rows is Rows.STALE,
            )
        )  # fmt: skip
    counts = ", ".join(f"{state.rows(kind):,} {kind.value}" for kind in Rows)
    return f"<p><b>{_text(state.name)}</b>: {counts}.</p>" + bars(
        _names(story, partitions), drawn, end, label=f"Rows of the raw table, {state.name}", unit=_offset
    )


def _connector(story: Story) -> str:
    found = story.connector
    if found is None:
        return f"<p>It did not run: {_text(story.connector_skipped or 'its jars are not there')}.</p>"
    after = story.after
    ours = (
        (f"{after.rows(Rows.RIGHT) + after.rows(Rows.STALE):,}", after.rows(Rows.STALE), after.rows(Rows.MISSING))
        if after is not None
        else ("-", 0, 0)
    )
    said = sorted((lost for lost in story.lost if lost.told_s is not None), key=lambda lost: lost.told_s or 0)
    rows = (
        ("rows in its table", f"{found.rows:,}", ours[0]),
        ("rows that the log does not hold", _count(found.stale_rows), _count(ours[1])),
        ("records of the log without a row", _count(found.missing_rows), _count(ours[2])),
        (
            "ranges that it said were truncated",
            _text(found.ended_with) or "nothing",
            _ranges(len(said)) if said else "nothing",
        ),
    )
    body = "".join(f"<tr><td>{name}</td><td>{theirs}</td><td>{mine}</td></tr>" for name, theirs, mine in rows)
    return (
        f'<p>{_fate(found)}</p><table><tr><th></th><th>format("kafka") into Parquet</th>'
        f'<th>format("fenceline") into format("fenceline_delta")</th></tr>{body}</table>'
    )


def _fate(found: Connector) -> str:
    differs = found.stale_rows or found.missing_rows
    if found.ended_with:
        return "It read the same topic in the same session, and ended with an error."
    if differs:
        return "It read the same topic in the same session, went on as if nothing had happened, and its table is wrong."
    return "It read the same topic in the same session, and its table is right."


def _rates(story: Story) -> str:
    samples = story.samples
    if len(samples) < 2:
        return "<p>Nothing was measured.</p>"
    drawn = [
        Line([(sample.at_s, sample.in_log) for sample in samples], "curve-1", "records in the log"),
        Line([(sample.at_s, sample.in_table) for sample in samples], "curve-2", "rows in the raw table"),
        Line([(sample.at_s, sample.in_aggregate) for sample in samples], "curve-3", "counted in the aggregate"),
    ]
    first, last = samples[0], samples[-1]
    busiest = max(
        (later.in_table - earlier.in_table) / max(later.at_s - earlier.at_s, 1e-9)
        for earlier, later in pairwise(samples)
    )
    mean = _rate(last.in_table - first.in_table, last.at_s - first.at_s)
    return (
        lines(
            drawn,
            last.at_s,
            label="Records in the log, rows and aggregated flights over time",
            unit=_seconds,
            shade=story.isolated,
        )
        + f"<p>Into the raw table: {mean} on the whole, {busiest:,.0f}/s at best between two looks. Where a"
        " curve goes down, records were lost, and rows were taken out.</p>"
    )


def _checks(story: Story) -> str:
    rows = "".join(
        f"<tr><td>{_text(check.name)}</td><td>{_text(check.expected)}</td><td>{_text(check.found)}</td>"
        f'<td class="{"ok" if check.passed else "bad"}">{"ok" if check.passed else "wrong"}</td></tr>'
        for check in story.checks
    )
    return f"<table><tr>{_heads(('check', 'expected', 'found', ''))}</tr>{rows}</table>"


# -- words ------------------------------------------------------------------------------------------------------------


def _names(story: Story, partitions: Sequence[int]) -> list[str]:
    return [f"{story.topic}-{partition}" for partition in partitions]


def _node(leader: int) -> str:
    return f"node-{(leader - 1) % _STYLES + 1}"


def _keys(keys: Sequence[tuple[str, str]]) -> str:
    shown = "".join(
        f'<li><svg viewBox="0 0 26 14" aria-hidden="true"><rect class="{style}" x="1.5" y="1.5" width="23" height="11"'
        f' rx="2"/></svg>{_text(label)}</li>'
        for style, label in keys
    )
    return f'<ul class="keys">{shown}</ul>'


def _heads(names: Sequence[str]) -> str:
    return "".join(f"<th>{name}</th>" for name in names)


def _ranges(count: int) -> str:
    return f"{count} {'range' if count == 1 else 'ranges'}"


def _count(value: int) -> str:
    return f'<span class="{"bad" if value else "ok"}">{value:,}</span>'


def _rate(count: float, seconds: float) -> str:
    return f"{count / seconds:,.0f}/s" if seconds > 0 else "-"


def _seconds(value: float) -> str:
    if value and value < 10:
        return f"{value:.1f} s"
    return f"{value:.0f} s"


def _offsets(of: Reign | Lost | Span) -> str:
    return f"offsets {of.start_offset:,} to {of.end_offset - 1:,}"


def _offset(value: float) -> str:
    return f"{value:,.0f}"


def _number_word(count: int) -> str:
    return {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}.get(count, str(count))


def _text(value: str) -> str:
    return html.escape(value, quote=True)
