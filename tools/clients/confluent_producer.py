"""A producer on confluent-kafka (librdkafka): values from standard input; prints each that is acknowledged."""

import os
import sys
import threading

from confluent_kafka import KafkaException, Producer

producer = Producer(
    {
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        "enable.idempotence": True,
        "error_cb": lambda error: print(f"error: {error}", file=sys.stderr, flush=True),
    }
)


def report(error: object, message: object) -> None:
    if error is None:
        print(message.value().decode(), flush=True)  # type: ignore[attr-defined]
    else:
        print(f"error: {error}", file=sys.stderr, flush=True)


def serve_callbacks() -> None:
    try:
        while True:
            producer.poll(0.05)
    except KafkaException as error:
        # A fatal error: no record can be written any more, and its documentation says to end the program.
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(1)


threading.Thread(target=serve_callbacks, daemon=True).start()
for line in sys.stdin:
    producer.produce(os.environ["KAFKA_TOPIC"], line.rstrip("\n").encode(), on_delivery=report)
producer.flush()
