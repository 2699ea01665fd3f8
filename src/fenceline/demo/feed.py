"""Sends the flights, month by month.

Owns the producers and the counts. All records are sent with acks=all and acknowledged before a method returns, except
those that `send_month_acks_one` sends to the busy partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fenceline.client.producer.producer import Producer

if TYPE_CHECKING:
    import pyarrow as pa

_ACKS_ALL: Final = {"compression.type": "lz4"}
_ACKS_ONE: Final = {**_ACKS_ALL, "acks": "1", "enable.idempotence": False}


class Feed:
    """`months`: tables of key, value and partition. `busy`: the partition that loses its leader."""

    def __init__(self, bootstrap: str, topic: str, months: Iterator[pa.Table], busy: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._months = months
        self._busy = busy
        self.produced = 0
        """Records acknowledged so far, including those that were lost later."""
        self.producing_s = 0.0

    def send_month(self) -> int | None:
        """Send the next month. Returns the number of records for the busy partition, None after the last month."""
        records = next(self._months, None)
        if records is None:
            return None
        self._send(_ACKS_ALL, records)
        return int(self._split(records)[0].num_rows)

    def send_month_acks_one(self) -> int:
        """Send the next month, the busy partition's records with acks=1. Returns the number of these."""
        records = next(self._months, None)
        if records is None:
            return 0
        busy, others = self._split(records)
        self._send(_ACKS_ONE, busy)
        self._send(_ACKS_ALL, others)
        return int(busy.num_rows)

    def resend(self, records: pa.Table) -> int:
        """Send lost records (key and value) again. Returns their number."""
        self._send(_ACKS_ALL, records, partition=self._busy)
        return int(records.num_rows)

    def _split(self, records: pa.Table) -> tuple[pa.Table, pa.Table]:
        import pyarrow.compute as pc

        is_busy: Any = pc.equal(records["partition"], self._busy)
        return records.filter(is_busy), records.filter(pc.invert(is_busy))

    def _send(self, settings: dict[str, Any], records: pa.Table, partition: str | int = "partition") -> None:
        """With a new producer, which fetches current metadata before it sends."""
        started = time.perf_counter()
        with Producer(self._bootstrap, **settings) as producer:
            producer.send_arrow(records, self._topic, key="key", value="value", partition=partition).result()
        self.producing_s += time.perf_counter() - started
        self.produced += records.num_rows
