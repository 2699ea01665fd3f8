"""The order service with a mistake: it commits offsets before it has processed the orders.

After a crash between the two, these orders are never processed. Without faults, every test of the service passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service import GROUP, Database, process

from fenceline.client import AsyncConsumer, AsyncProducer


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
                await consumer.commit(records.next_offsets())
                await process(records, producer, database)
