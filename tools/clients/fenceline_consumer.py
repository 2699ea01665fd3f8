"""A consumer on `fenceline.client`, as its documentation shows it: prints each value, and says what it notices."""

import os
import signal
import sys
import time

from fenceline.client import Consumer, LogTruncationError, TopicReplacedError
from fenceline.client.core.errors import ClientError

stopping = False


def stop(*_: object) -> None:
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
settings = {
    "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
    "group.id": os.environ["KAFKA_GROUP"],
    "auto.offset.reset": "earliest",
}
with Consumer(settings) as consumer:
    consumer.subscribe([os.environ["KAFKA_TOPIC"]])
    while not stopping:
        try:
            records = consumer.poll(200)
        except LogTruncationError as error:
            print(f"noticed: {error}", file=sys.stderr, flush=True)
            for tp, offset in error.truncation_offsets.items():
                consumer.seek(tp, offset)
            continue
        except TopicReplacedError as error:
            print(f"noticed: {error}", file=sys.stderr, flush=True)
            consumer.seek_to_beginning()
            continue
        except ClientError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            time.sleep(0.2)
            continue
        for record in records:
            print((record.value or b"").decode(errors="replace"), flush=True)
