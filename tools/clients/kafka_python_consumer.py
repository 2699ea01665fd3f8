"""A consumer on kafka-python, as its documentation shows it."""

import logging
import os
import signal

from kafka import KafkaConsumer

logging.basicConfig(level=logging.WARNING)
stopping = False


def stop(*_: object) -> None:
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
consumer = KafkaConsumer(
    os.environ["KAFKA_TOPIC"],
    bootstrap_servers=os.environ["KAFKA_BOOTSTRAP_SERVERS"].split(","),
    group_id=os.environ["KAFKA_GROUP"],
    auto_offset_reset="earliest",
)
while not stopping:
    for records in consumer.poll(timeout_ms=200).values():
        for record in records:
            print((record.value or b"").decode(errors="replace"), flush=True)
consumer.close()
