"""A producer on kafka-python: values from standard input; prints each that is acknowledged."""

import logging
import os
import sys

from kafka import KafkaProducer

logging.basicConfig(level=logging.WARNING)
producer = KafkaProducer(bootstrap_servers=os.environ["KAFKA_BOOTSTRAP_SERVERS"].split(","))


def acknowledged(value: str) -> None:
    print(value, flush=True)


def failed(value: str, error: Exception) -> None:
    print(f"error: {value}: {error}", file=sys.stderr, flush=True)


for line in sys.stdin:
    value = line.rstrip("\n")
    sent = producer.send(os.environ["KAFKA_TOPIC"], value.encode())
    sent.add_callback(lambda _, value=value: acknowledged(value))
    sent.add_errback(lambda error, value=value: failed(value, error))
producer.flush()
producer.close()
