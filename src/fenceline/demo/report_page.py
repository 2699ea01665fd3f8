"""The demo's page: one self-contained HTML file with SVG charts, without scripts or external resources.

Owns the texts and the order of the sections. Reads a `DemoReport` only, no cluster and no table. A section without data
says so; it is never left out.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from fenceline import __version__
from fenceline.demo.drawings import Bar, Line, Marker, bars, hatching, lines
from fenceline.demo.report import (
    ConnectorResult,
    DemoReport,
    LeadershipPeriod,
    ReportedRange,
    ReportedSpan,
    ReportedTable,
    RowState,
)

_STYLES: Final = 4
"""Number of node colours in the style sheet."""
_STYLE: Final = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def page(report: DemoReport, *, more: str = "") -> str:
    """The complete page. `more` is HTML of further sections, before the checks."""
    title = f"Data loss in topic {report.topic}"
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>{hatching()}
<h1>{_text(title)}</h1>
<p class="dim">Fenceline {__version__}: {_number_word(report.brokers)} brokers, a Structured Streaming query, a raw
Delta table and an aggregate table that is derived from it.</p>
{_verdict(report)}
<div class="tiles">{_tiles(report)}</div>
<h2>Leaders over time</h2>{_leadership(report)}
<h2>Lost records</h2>{_lost(report)}
<h2>The raw table before and after the repair</h2>{_tables(report)}
<h2>Comparison with Spark's own Kafka connector</h2>{_connector(report)}
<h2>Throughput</h2>{_rates(report)}
{more}{_published(report)}<h2>Checks: input, log and tables</h2>{_checks(report)}
</body></html>
"""


def write_page(path: Path, report: DemoReport, *, more: str = "") -> None:
    """Write the page, replacing an older one."""
    path.write_text(page(report, more=more), encoding="utf-8")


# -- sections ---------------------------------------------------------------------------------------------------------


def _verdict(report: DemoReport) -> str:
    if not report.checks:
        return '<p class="bad">No checks were run.</p>'
    if not report.passed:
        return '<p class="bad">A check failed: the tables may not match the log.</p>'
    reported = [lost for lost in report.lost if lost.reported_s is not None]
    text = "The tables match the log."
    if report.lost:
        text += (
            f" {report.lost_records:,} records in {_ranges(len(report.lost))} were lost; each range has a receipt,"
            f" the consumer reported {len(reported)} of {len(report.lost)}, and no stale row is left."
        )
    return f'<p class="ok">{text}</p>'


def _tiles(report: DemoReport) -> str:
    stale = report.before.count(RowState.STALE) if report.before is not None else 0
    figures = (
        (f"{report.produced:,}", "records produced"),
        (f"{report.lost_records:,}", "records lost in the unclean election"),
        (f"{stale:,}", "stale rows before the repair"),
        (_rate(report.produced, report.producing_s), "producer throughput"),
        (_seconds(report.streaming_s), "streaming, including the repair"),
        (_seconds(report.total_s), "total"),
    )
    return "".join(f'<div class="tile"><b>{value}</b>{_text(label)}</div>' for value, label in figures)


def _leadership(report: DemoReport) -> str:
    if not report.leadership_periods:
        return "<p>No leader was observed.</p>"
    end = max(
        [period.from_s if period.to_s is None else period.to_s for period in report.leadership_periods]
        + [event.at_s for event in report.events]
        + [report.total_s]
    )
    partitions = sorted({period.partition for period in report.leadership_periods})
    drawn = [_period_bar(period, partitions.index(period.partition), end) for period in report.leadership_periods]
    events = sorted(report.events, key=lambda event: event.at_s)
    markers = [
        Marker(event.at_s, str(number), f"{_seconds(event.at_s)}: {event.text}")
        for number, event in enumerate(events, start=1)
    ]
    leaders = sorted({period.leader for period in report.leadership_periods})
    keys = [(_node(leader), f"node {leader} leads") for leader in leaders]
    if any(period.unclean for period in report.leadership_periods):
        keys.append(("outline unclean", "elected uncleanly"))
    if report.isolated is not None:
        keys.append(("shade", "the leader is isolated"))
    listed = "".join(f"<li><time>{_seconds(event.at_s)}</time>{_text(event.text)}</li>" for event in events)
    return (
        bars(
            _names(report, partitions), drawn, end,
            label="Leader epochs of each partition over time", unit=_seconds, markers=markers, shade=report.isolated,
        )
        + _keys(keys)
        + (f'<ol class="events">{listed}</ol>' if listed else "")
    )  # fmt: skip


def _period_bar(period: LeadershipPeriod, row: int, end: float) -> Bar:
    to_s = end if period.to_s is None else period.to_s
    written = _offsets(period) if period.end_offset > period.start_offset else "no records in the log"
    how = ", elected uncleanly" if period.unclean else ""
    return Bar(
        row, period.from_s, to_s, f"epoch {period.epoch}",
        f"epoch {period.epoch}, led by node {period.leader}{how}, from {_seconds(period.from_s)} on: {written}",
        _node(period.leader) + (" unclean" if period.unclean else ""),
    )  # fmt: skip


def _lost(report: DemoReport) -> str:
    if not report.lost:
        return "<p>No records were lost.</p>"
    partitions = sorted({lost.partition for lost in report.lost})
    leadership_periods = [
        period
        for period in report.leadership_periods
        if period.partition in partitions and period.end_offset > period.start_offset
    ]
    end = max([lost.end_offset for lost in report.lost] + [period.end_offset for period in leadership_periods])
    drawn = [
        Bar(
            partitions.index(period.partition), period.start_offset, period.end_offset, f"epoch {period.epoch}",
            f"{_offsets(period)} of epoch {period.epoch}, by node {period.leader}", _node(period.leader),
        )
        for period in leadership_periods
    ]  # fmt: skip
    drawn += [
        Bar(
            partitions.index(lost.partition), lost.start_offset, lost.end_offset, "",
            f"lost: {_offsets(lost)} of epoch {lost.epoch}", "lost", below=True,
        )
        for lost in report.lost
    ]  # fmt: skip
    rows = "".join(
        f"<tr><td>{_text(report.topic)}-{lost.partition}</td><td>{lost.start_offset:,} to {lost.end_offset - 1:,}</td>"
        f'<td class="number">{lost.records:,}</td><td>{lost.epoch}</td><td>{_text(lost.loss_class)}</td>'
        f"<td>{_text(lost.cause)}</td><td>{lost.replica}</td><td><code>{_text(lost.receipt)}</code></td>"
        f"<td>{_reported(lost)}</td></tr>"
        for lost in report.lost
    )
    heads = (
        "partition",
        "offsets",
        "records",
        "epoch",
        "class",
        "cause",
        "truncated by node",
        "receipt",
        "reported by the consumer",
    )
    quotes = "".join(
        f"<blockquote>{_text(lost.consumer_message)}</blockquote>" for lost in report.lost if lost.consumer_message
    )
    return (
        "<p>By offset: the records in the log, and below them the lost records. Every truncation has a receipt, and the"
        " replica that truncated its log keeps the records as evidence.</p>"
        + bars(_names(report, partitions), drawn, end, label="Records in the log and lost records", unit=_offset)
        + _keys([("lost", "lost")])
        + f'<div class="scroll"><table><tr>{_heads(heads)}</tr>{rows}</table></div>'
        + (f"<p>Error message of the consumer:</p>{quotes}" if quotes else "")
    )


def _reported(lost: ReportedRange) -> str:
    return f"at {_seconds(lost.reported_s)}" if lost.reported_s is not None else '<span class="bad">never</span>'


def _tables(report: DemoReport) -> str:
    if report.before is None or report.after is None:
        return "<p>The table was not read.</p>"
    end = max((span.end_offset for state in (report.before, report.after) for span in state.spans), default=0)
    leaders = {(period.partition, period.epoch): period.leader for period in report.leadership_periods}
    drawn = "".join(_table(report, state, end, leaders) for state in (report.before, report.after))
    keys = [
        ("node-1", "matching: in the log (colour: the leader)"),
        ("stale", "stale: the log has other records at these offsets"),
        ("missing", "missing: records without a row"),
    ]
    text = f"<p>{_text(report.repair_text)}</p>" if report.repair_text else ""
    return text + drawn + _keys(keys)


def _table(report: DemoReport, state: ReportedTable, end: float, leaders: dict[tuple[int, int], int]) -> str:
    partitions = sorted({span.partition for span in state.spans})
    drawn = []
    for span in state.spans:
        style = (
            _node(leaders.get((span.partition, span.epoch), 1)) if span.state is RowState.MATCHING else span.state.value
        )
        drawn.append(
            Bar(
                partitions.index(span.partition), span.start_offset, span.end_offset,
                f"epoch {span.epoch}" if span.state is RowState.MATCHING else "",
                f"{span.count:,} rows {span.state.value}: {_offsets(span)} of epoch {span.epoch}",
                style, below=span.state is RowState.STALE,
            )
        )  # fmt: skip
    counts = ", ".join(f"{state.count(kind):,} {kind.value}" for kind in RowState)
    return f"<p><b>{_text(state.name)}</b>: {counts}.</p>" + bars(
        _names(report, partitions), drawn, end, label=f"Rows of the raw table, {state.name}", unit=_offset
    )


def _connector(report: DemoReport) -> str:
    found = report.connector
    if found is None:
        return f"<p>It did not run: {_text(report.connector_skipped or 'its jars are not installed')}.</p>"
    after = report.after
    ours = (
        (
            f"{after.count(RowState.MATCHING) + after.count(RowState.STALE):,}",
            after.count(RowState.STALE),
            after.count(RowState.MISSING),
        )
        if after is not None
        else ("-", 0, 0)
    )
    reported = sorted(
        (lost for lost in report.lost if lost.reported_s is not None), key=lambda lost: lost.reported_s or 0
    )
    rows = (
        ("rows in its table", f"{found.rows:,}", ours[0]),
        ("rows that are not in the log", _count(found.stale_rows), _count(ours[1])),
        ("records of the log without a row", _count(found.missing_rows), _count(ours[2])),
        (
            "truncations reported",
            _text(found.error) or "none",
            _ranges(len(reported)) if reported else "none",
        ),
    )
    body = "".join(f"<tr><td>{name}</td><td>{theirs}</td><td>{mine}</td></tr>" for name, theirs, mine in rows)
    return (
        f'<p>{_connector_summary(found)}</p><table><tr><th></th><th>format("kafka") into Parquet</th>'
        f'<th>format("fenceline") into format("fenceline_delta")</th></tr>{body}</table>'
    )


def _connector_summary(found: ConnectorResult) -> str:
    differs = found.stale_rows or found.missing_rows
    if found.error:
        return "It read the same topic in the same session, and failed with an error."
    if differs:
        return "It read the same topic in the same session, reported nothing, and its table does not match the log."
    return "It read the same topic in the same session, and its table matches the log."


def _rates(report: DemoReport) -> str:
    samples = report.samples
    if len(samples) < 2:
        return "<p>No samples were taken.</p>"
    drawn = [
        Line([(sample.at_s, sample.in_log) for sample in samples], "curve-1", "records in the log"),
        Line([(sample.at_s, sample.in_table) for sample in samples], "curve-2", "rows in the raw table"),
        Line([(sample.at_s, sample.in_aggregate) for sample in samples], "curve-3", "flights in the aggregate"),
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
            label="Records in the log, rows in the raw table and flights in the aggregate over time",
            unit=_seconds,
            shade=report.isolated,
        )
        + f"<p>Rows written to the raw table: {mean} on average, {busiest:,.0f}/s at most between two samples. A"
        " falling curve shows lost records and deleted rows.</p>"
    )


def _published(report: DemoReport) -> str:
    if not report.published_text:
        return ""
    return f"<h2>The aggregate in a topic, exactly once</h2><p>{_text(report.published_text)}</p>"


def _checks(report: DemoReport) -> str:
    rows = "".join(
        f"<tr><td>{_text(check.name)}</td><td>{_text(check.expected)}</td><td>{_text(check.found)}</td>"
        f'<td class="{"ok" if check.passed else "bad"}">{"ok" if check.passed else "wrong"}</td></tr>'
        for check in report.checks
    )
    return f"<table><tr>{_heads(('check', 'expected', 'found', ''))}</tr>{rows}</table>"


# -- formatting -------------------------------------------------------------------------------------------------------


def _names(report: DemoReport, partitions: Sequence[int]) -> list[str]:
    return [f"{report.topic}-{partition}" for partition in partitions]


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


def _offsets(of: LeadershipPeriod | ReportedRange | ReportedSpan) -> str:
    return f"offsets {of.start_offset:,} to {of.end_offset - 1:,}"


def _offset(value: float) -> str:
    return f"{value:,.0f}"


def _number_word(count: int) -> str:
    return {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}.get(count, str(count))


def _text(value: str) -> str:
    return html.escape(value, quote=True)
