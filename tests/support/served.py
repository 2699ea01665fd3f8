"""What the users of a broker do over its whole life: write, in transactions where it has them, and read on in a group.

Owns what was acknowledged. Real clients (librdkafka) do the work, so a broker that was away is waited for by them.
"""

from __future__ import annotations

from confluent_kafka import Consumer, Producer

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.waiting import eventually
from tests.support.mixed_stage import init_transactions

_PARTITIONS = 2


class Served:
    """One topic, all of it on the broker `node_id` at `bootstrap`."""

    def __init__(self, bootstrap: str, node_id: int, topic: str, *, transactions: bool) -> None:
        self._bootstrap = bootstrap
        self._transactions = transactions
        self.topic = topic
        self.written: list[set[bytes]] = []
        """Acknowledged, by round."""
        assignments = {partition: [node_id] for partition in range(_PARTITIONS)}

        def create() -> bool:
            with Admin(bootstrap) as admin:
                try:
                    admin.create_topics([NewTopic(topic, assignments=assignments)])
                except PeerError as error:
                    if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise
            return True

        eventually(create)

    def check_round(self) -> None:
        """Write, read on where the group has stopped, and read everything from the start."""
        number = len(self.written)
        values = {f"{number}-{index}".encode() for index in range(10)}
        self._write(values)
        if self._transactions:
            committed = {f"{number}-committed-{index}".encode() for index in range(10)}
            self._transact({f"{number}-aborted-{index}".encode() for index in range(10)}, commits=False)
            self._transact(committed, commits=True)
            values |= committed
        self.written.append(values)
        assert self._read("goes-on", len(values)) == sorted(values)
        everything = sorted(value for each in self.written for value in each)
        assert self._read(f"from-the-start-{number}", len(everything)) == everything

    def _write(self, values: set[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True})
        for index, value in enumerate(sorted(values)):
            producer.produce(self.topic, value, partition=index % _PARTITIONS)
        assert producer.flush(120) == 0

    def _transact(self, values: set[bytes], *, commits: bool) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "transactional.id": self.topic})
        init_transactions(producer)
        producer.begin_transaction()
        for index, value in enumerate(sorted(values)):
            producer.produce(self.topic, value, partition=index % _PARTITIONS)
        assert producer.flush(120) == 0
        if commits:
            producer.commit_transaction(120)
        else:
            producer.abort_transaction(120)

    def _read(self, group: str, count: int) -> list[bytes]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        found: list[bytes] = []
        try:
            consumer.subscribe([self.topic])

            def all_read() -> bool:
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    found.append(message.value() or b"")
                return len(found) >= count

            eventually(all_read, f"{count} records for {group}", wait_s=120)
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return sorted(found)
