"""A consumer on confluent-kafka (librdkafka), as its documentation shows it."""

import os
import signal
import sys

from confluent_kafka import Consumer, KafkaError

stopping = False


def stop(*_: object) -> None:
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        "group.id": os.environ["KAFKA_GROUP"],
        "auto.offset.reset": "earliest",
        "error_cb": lambda error: print(f"error: {error}", file=sys.stderr, flush=True),
    }
)
consumer.subscribe([os.environ["KAFKA_TOPIC"]])
while not stopping:
    message = consumer.poll(0.2)
    if message is None:
        continue
    if message.error():
        print(f"error: {message.error()}", file=sys.stderr, flush=True)
        if message.error().code() == KafkaError._FATAL:
            sys.exit(1)
        continue
    print((message.value() or b"").decode(errors="replace"), flush=True)
consumer.close()
