"""A producer on aiokafka: values from standard input; prints each that is acknowledged."""

import asyncio
import logging
import os
import sys

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError


async def main() -> None:
    producer = AIOKafkaProducer(bootstrap_servers=os.environ["KAFKA_BOOTSTRAP_SERVERS"], enable_idempotence=True)
    await producer.start()

    async def send(value: str) -> None:
        try:
            await producer.send_and_wait(os.environ["KAFKA_TOPIC"], value.encode())
            print(value, flush=True)
        except KafkaError as error:
            print(f"error: {value}: {error!r}", file=sys.stderr, flush=True)

    sending = set()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(send(line.rstrip("\n")))
        sending.add(task)
        task.add_done_callback(sending.discard)
    await asyncio.gather(*sending)
    await producer.stop()


logging.basicConfig(level=logging.WARNING)
asyncio.run(main())
