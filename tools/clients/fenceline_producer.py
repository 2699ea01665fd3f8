"""A producer on `fenceline.client`: values from standard input; prints each that is acknowledged."""

import os
import sys

from fenceline.client import Producer
from fenceline.errors import FencelineError

settings = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"], "linger.ms": 5}
with Producer(settings) as producer:
    pending = []

    def report(value: str, delivery: object) -> None:
        try:
            delivery.result(0)  # type: ignore[attr-defined]
            print(value, flush=True)
        except FencelineError as error:
            print(f"error: {value}: {error}", file=sys.stderr, flush=True)

    for line in sys.stdin:
        value = line.rstrip("\n")
        delivery = producer.send(os.environ["KAFKA_TOPIC"], value.encode())
        delivery.add_done_callback(lambda done, value=value: report(value, done))
    producer.flush()
