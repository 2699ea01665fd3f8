"""What sends the flights, month by month.

Owns the producers and the counts. Everything is acknowledged by all replicas in sync before `send` returns, but for
what `send_to_one` gives to the leader of the busy partition alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fenceline.client.producer import Producer

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
        """Records that were acknowledged so far, whatever became of them."""
        self.producing_s = 0.0

    def month(self) -> int | None:
        """Send the next month; how many records went to the busy partition, None where there is no month left."""
        records = next(self._months, None)
        if records is None:
            return None
        self._send(_ACKS_ALL, records)
        return int(self._split(records)[0].num_rows)

    def month_to_one(self) -> int:
        """Send the next month, the busy partition's records with acks=1; how many these are."""
        records = next(self._months, None)
        if records is None:
            return 0
        ours, others = self._split(records)
        self._send(_ACKS_ONE, ours)
        self._send(_ACKS_ALL, others)
        return int(ours.num_rows)

    def again(self, records: pa.Table) -> int:
        """Send records (key and value) that were lost; how many."""
        self._send(_ACKS_ALL, records, partition=self._busy)
        return int(records.num_rows)

    def _split(self, records: pa.Table) -> tuple[pa.Table, pa.Table]:
        import pyarrow.compute as pc

        is_ours: Any = pc.equal(records["partition"], self._busy)
        return records.filter(is_ours), records.filter(pc.invert(is_ours))

    def _send(self, settings: dict[str, Any], records: pa.Table, partition: str | int = "partition") -> None:
        """By a producer of its own, which asks who leads before it sends."""
        started = time.perf_counter()
        with Producer(self._bootstrap, **settings) as producer:
            producer.send_arrow(records, self._topic, key="key", value="value", partition=partition).result()
        self.producing_s += time.perf_counter() - started
        self.produced += records.num_rows
