"""A consumer on aiokafka, as its documentation shows it."""

import asyncio
import logging
import os
import signal

from aiokafka import AIOKafkaConsumer


async def main() -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    consumer = AIOKafkaConsumer(
        os.environ["KAFKA_TOPIC"],
        bootstrap_servers=os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        group_id=os.environ["KAFKA_GROUP"],
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        while not stopping.is_set():
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    print((record.value or b"").decode(errors="replace"), flush=True)
    finally:
        await consumer.stop()


logging.basicConfig(level=logging.WARNING)
asyncio.run(main())
