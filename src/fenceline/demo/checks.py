"""The demo's checks: the tables against the input and the log, and the loss against its receipts.

Owns the comparisons. Reads the tables with delta-rs, without Spark, so that the pipeline does not check itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fenceline.demo.flights import ExpectedFlights

if TYPE_CHECKING:
    import pyarrow as pa


class Check(NamedTuple):
    name: str
    expected: str
    found: str

    @property
    def passed(self) -> bool:
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class Tables:
    raw: pa.Table
    hourly: pa.Table


def row_count(path: Path) -> int:
    """Rows of a Delta table, from its transaction log, without reading data; 0 while the table does not exist."""
    import deltalake

    if not deltalake.DeltaTable.is_deltatable(str(path)):
        return 0
    actions = deltalake.DeltaTable(str(path)).get_add_actions(flatten=True)
    return sum(int(count) for count in actions.column("num_records").to_pylist())


def read_tables(raw: Path, hourly: Path) -> Tables:
    import deltalake

    return Tables(
        deltalake.DeltaTable(str(raw)).to_pyarrow_table(), deltalake.DeltaTable(str(hourly)).to_pyarrow_table()
    )


def check(tables: Tables, expected: ExpectedFlights, log_ends: Mapping[int, int]) -> list[Check]:
    """`log_ends`: end offset of each partition of the topic."""
    import pyarrow.compute as pc

    raw, hourly = tables.raw, tables.hourly
    found = [
        Check("flights in the raw table", f"{expected.flights:,}", f"{raw.num_rows:,}"),
        Check("miles flown", f"{expected.distance_miles:,}", f"{pc.sum(raw['distance']).as_py():,}"),
        Check(
            "minutes of departure delay",
            f"{expected.departure_delay_minutes:,.0f}",
            f"{pc.sum(raw['dep_delay']).as_py():,.0f}",
        ),
    ]
    counted = raw.group_by("carrier").aggregate([("carrier", "count")])
    carriers = dict(zip(counted["carrier"].to_pylist(), counted["carrier_count"].to_pylist(), strict=True))
    agreeing = sum(carriers.get(carrier) == count for carrier, count in expected.by_carrier.items())
    found.append(Check("carriers with the right count", str(len(expected.by_carrier)), str(agreeing)))
    distinct = raw.group_by(["partition", "offset"]).aggregate([]).num_rows
    found.append(Check("duplicate rows", "0", f"{raw.num_rows - distinct:,}"))
    by_partition = raw.group_by("partition").aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    gaps = 0
    seen = {}
    for row in by_partition.to_pylist():
        gaps += row["offset_max"] + 1 - row["offset_count"]
        seen[row["partition"]] = row["offset_max"] + 1
    found.append(Check("missing offsets", "0", f"{gaps:,}"))
    ends = {partition: end for partition, end in log_ends.items() if end}
    found.append(Check("end offsets of the partitions", _ends(ends), _ends(seen)))
    found += [
        Check("hours and airports in the aggregate", f"{expected.hours:,}", f"{hourly.num_rows:,}"),
        Check("flights in the aggregate", f"{expected.flights:,}", f"{pc.sum(hourly['flights']).as_py():,}"),
        Check(
            "delay minutes in the aggregate",
            f"{expected.departure_delay_minutes:,.0f}",
            f"{pc.sum(hourly['departure_delay_minutes']).as_py():,.0f}",
        ),
    ]
    return found


@dataclass(frozen=True, slots=True)
class LossCounts:
    """The loss as each part of the system counted it.

    `acknowledged`: records that the isolated leader acknowledged. `reported`: how many of the `ranges` with a receipt
    the consumer reported. `removed_rows`: stale rows that the sink deleted. `audit`: the audit's verdict. `log_errors`:
    errors that `fenceline verify` finds in the brokers' directories.
    """

    acknowledged: int
    with_receipt: int
    ranges: int
    reported: int
    removed_rows: int
    resent: int
    audit: str
    log_errors: int


def check_loss(counts: LossCounts) -> list[Check]:
    """Every lost record has a receipt, was reported by the consumer, deleted from the table and sent again."""
    lost = f"{counts.acknowledged:,}"
    return [
        Check("audit of the raw table", "equal", counts.audit),
        Check("lost records with a receipt", lost, f"{counts.with_receipt:,}"),
        Check("lost ranges reported by the consumer", str(counts.ranges), str(counts.reported)),
        Check("stale rows deleted from the raw table", lost, f"{counts.removed_rows:,}"),
        Check("lost records sent again", lost, f"{counts.resent:,}"),
        Check("errors in the logs of all replicas", "0", f"{counts.log_errors:,}"),
    ]


def log_errors(data_dirs: Sequence[Path]) -> int:
    """Errors that `fenceline verify` finds in the brokers' directories; replicas and evidence are checked too."""
    from fenceline.log.core.disk import OsDisk
    from fenceline.log.verify.verify import VerifySettings, find_places, verify_places

    disk = OsDisk()
    places = find_places(disk, [str(path) for path in data_dirs])
    return sum(report.findings.errors for report in verify_places(disk, places, VerifySettings()))


def _ends(ends: Mapping[int, int]) -> str:
    return " ".join(f"{partition}:{end:,}" for partition, end in sorted(ends.items()))
