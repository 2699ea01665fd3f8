"""An order service: takes orders from a topic, records them in the shop's database, and requests their payments.

It commits an order's offset only after both are done. After a crash it processes some orders again: the database has
one entry for each order, and payments carry the order's number, so that the next service can ignore a second request.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fenceline.client import AsyncConsumer, AsyncProducer, ConsumerRecord
from fenceline.errors import PeerError

log = logging.getLogger("orders")
GROUP = "order-service"


class Database(Protocol):
    """The part of the shop's database that the service needs."""

    async def write(self, changes: Mapping[str, bytes | None]) -> None:
        """Write all of these, or nothing."""
        ...


async def run(bootstrap: str, database: Database, settings: Mapping[str, Any]) -> None:
    """Process orders until cancelled. `settings`: of both clients."""
    async with (
        AsyncProducer(bootstrap, **settings.get("producer", {})) as producer,
        AsyncConsumer(
            bootstrap,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **settings.get("consumer", {}),
        ) as consumer,
    ):
        consumer.subscribe(["orders"])
        while True:
            records = await consumer.poll(1000, max_records=20)
            if records:
                await process(records, producer, database)
                try:
                    await consumer.commit(records.next_offsets())
                except PeerError as error:
                    log.info("the next owner of the partitions processes these orders again: %s", error)


async def process(records: Sequence[ConsumerRecord], producer: AsyncProducer, database: Database) -> None:
    """Record these orders, and request their payments."""
    requests = []
    for record in records:
        order = json.loads(record.value or b"{}")
        await database.write({f"order/{order['number']}": record.value})
        payment = {"order": order["number"], "amount": order["amount"]}
        requests.append(await producer.send("payments", json.dumps(payment).encode(), record.key))
    for request in requests:
        await request
