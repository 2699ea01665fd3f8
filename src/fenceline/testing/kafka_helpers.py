"""What every test suite with Kafka writes for itself: topics with new names, records in and out, and waits for groups.

Owns these for any cluster, of the laboratory or not. Injects no faults.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.testing.asynchronous import AsyncFace
from fenceline.testing.processing_checks import AcknowledgedRecord

if TYPE_CHECKING:
    from fenceline.client import Admin, ConsumerRecord

WAIT_S: Final = 30.0
_STEP_S: Final = 0.02
_CLIENT_ID: Final = "fenceline-lab"
_names: Final = itertools.count(1)


def unique_name(prefix: str = "t") -> str:
    """A name that no other topic or group has, in any process that shares a cluster."""
    return f"{prefix}-{os.getpid()}-{next(_names)}-{time.time_ns() & 0xFFFFFF:06x}"


class KafkaTopic(str):
    """The name of a topic that knows its cluster. Every client takes it as a name."""

    __slots__ = ("bootstrap_servers",)
    bootstrap_servers: str

    def __new__(cls, name: str, bootstrap_servers: str) -> KafkaTopic:
        topic = super().__new__(cls, name)
        topic.bootstrap_servers = bootstrap_servers
        return topic

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy is a plain name."""
        return str, (str(self),)


class KafkaHelpers(ABC):
    """The base of clusters for tests."""

    _own_admin: Admin | None = None

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers, separated by commas."""

    @property
    @abstractmethod
    def client_settings(self) -> dict[str, Any]:
        """For clients that take librdkafka's names, such as confluent-kafka and `fenceline.client`."""

    @property
    def admin(self) -> Admin:
        """A client of the cluster, for any thread. Raises OperatorError once the cluster is closed."""
        self._check_open()
        if self._own_admin is None:
            from fenceline.client import Admin

            self._own_admin = Admin(self.client_settings, **{"client.id": _CLIENT_ID})
        return self._own_admin

    @property
    def aio(self) -> AsyncFace:
        """The same methods as coroutine functions, for tests that run in an event loop:
        `await cluster.aio.wait_for_group("g")`."""
        return AsyncFace(self)

    def _check_open(self) -> None:  # noqa: B027 - nothing to check, unless a class says so
        """Raises OperatorError once the cluster is closed, so that waits end then."""

    def _close_clients(self) -> None:
        if self._own_admin is not None:
            with contextlib.suppress(OperatorError, OSError):
                self._own_admin.close()
            self._own_admin = None

    # --- topics ---------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, Any] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
    ) -> str:
        """Create a topic; returns its name, which is new if none is given. `replication_factor` None: that of the
        brokers. Raises PeerError."""
        from fenceline.client import NewTopic

        name = unique_name() if name is None else name
        texts = {key: text_of(value) for key, value in (configs or {}).items()}
        if assignments is not None:
            wanted = NewTopic(name, assignments=dict(assignments), configs=texts)
        else:
            factor = self._replication_factor() if replication_factor is None else replication_factor
            wanted = NewTopic(name, num_partitions=partitions, replication_factor=factor, configs=texts)
        self.admin.create_topics([wanted])
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises PeerError."""
        self.admin.delete_topics([name])

    def _replication_factor(self) -> int:
        return -1

    # --- records --------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        values: Iterable[bytes | str | None] | int,
        *,
        key: Callable[[int], bytes | None] = lambda number: None,
        partition: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[AcknowledgedRecord]:
        """Write records with acks=all, and wait until all are acknowledged. A number means so many distinct values.

        `settings` are of the producer. Raises PeerError, OperatorError."""
        from fenceline.client import Producer

        listed = [f"value-{number}".encode() for number in range(values)] if isinstance(values, int) else list(values)
        contents = [value.encode() if isinstance(value, str) else value for value in listed]
        config = {**self.client_settings, "client.id": _CLIENT_ID, "acks": "all", **(settings or {})}
        with Producer(config) as producer:
            sent = [
                producer.send(topic, value, key=key(number), partition=partition)
                for number, value in enumerate(contents)
            ]
            producer.flush()
            acknowledged = [each.result(WAIT_S) for each in sent]
        return [
            AcknowledgedRecord(topic, each.partition, each.offset, key(number), value)
            for number, (each, value) in enumerate(zip(acknowledged, contents, strict=True))
        ]

    def read(
        self,
        topic: str,
        count: int | None = None,
        *,
        partition: int | None = None,
        start: int | str = "earliest",
        committed_only: bool = False,
        wait_s: float = WAIT_S,
    ) -> list[ConsumerRecord]:
        """The first `count` records of a topic or of a partition, from an offset (or "earliest", "latest") on, by
        partition and offset; None: all that are there now. Raises TimeoutError if there are fewer."""
        from fenceline.client import Consumer, TopicPartition

        isolation = "read_committed" if committed_only else "read_uncommitted"
        found = self.admin.metadata([topic]).topics[topic]
        wanted = [TopicPartition(topic, each) for each in sorted(found.partitions) if partition in (None, each)]
        ends = {
            tp: end.offset
            for tp, end in self.admin.list_offsets(dict.fromkeys(wanted, "latest"), isolation_level=isolation).items()
        }
        records: list[ConsumerRecord] = []
        reset = start if isinstance(start, str) else "earliest"
        config = {
            **self.client_settings,
            "client.id": _CLIENT_ID,
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
        with Consumer(config) as consumer:
            consumer.assign(wanted)
            if isinstance(start, int):
                for tp in wanted:
                    consumer.seek(tp, start)
            ends_s = time.monotonic() + wait_s
            while count is None or len(records) < count:
                self._check_open()
                left = None if count is None else count - len(records)
                records += consumer.poll(100) if left is None else consumer.poll(100, max_records=left)
                if count is None and all(consumer.position(tp) >= ends[tp] for tp in wanted):
                    break
                if time.monotonic() > ends_s:
                    raise TimeoutError(
                        f"{topic} has {len(records)} of {'all its' if count is None else count} records"
                        f" after {wait_s:g} s"
                    )
        return sorted(records, key=lambda record: (record.partition, record.offset))

    # --- groups ---------------------------------------------------------------------------------------------------

    def wait_for_group(self, group: str, *, members: int | None = None, wait_s: float = WAIT_S) -> None:
        """Wait until a group is stable, with so many members if that is given. Raises TimeoutError, which says in which
        state it is."""

        def look() -> tuple[bool, str]:
            try:
                found = self.admin.describe_groups([group])[group]
            except PeerError as error:
                if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
                return False, "there is no such group"
            is_stable = found.state == "Stable" and members in (None, len(found.members))
            return is_stable, f"its state is {found.state}, with {len(found.members)} members"

        _wait(look, f"group {group} is stable", wait_s)

    def lag(self, group: str, topic: str | None = None) -> int:
        """How many offsets a group is behind the ends of the partitions for which it has committed offsets, or of all
        partitions of a topic; uncommitted ones count from their start."""
        from fenceline.client import TopicPartition

        committed = {tp: each.offset for tp, each in self.admin.list_group_offsets(group).items()}
        if topic is not None:
            partitions = self.admin.metadata([topic]).topics[topic].partitions
            wanted = [TopicPartition(topic, each) for each in partitions]
        else:
            wanted = list(committed)
        if not wanted:
            return 0
        ends = self.admin.list_offsets(dict.fromkeys(wanted, "latest"))
        starts = self.admin.list_offsets(dict.fromkeys(wanted, "earliest"))
        return sum(max(0, ends[tp].offset - committed.get(tp, starts[tp].offset)) for tp in wanted)

    def wait_for_lag(self, group: str, topic: str | None = None, *, at_most: int = 0, wait_s: float = WAIT_S) -> None:
        """Wait until a group has committed everything, or all but so many offsets. Raises TimeoutError."""

        def look() -> tuple[bool, str]:
            try:
                found = self.lag(group, topic)
            except PeerError as error:
                return False, error.message
            known = topic is not None or bool(self.admin.list_group_offsets(group))
            return known and found <= at_most, f"its lag is {found}" if known else "it has committed nothing"

        _wait(look, f"group {group} has a lag of at most {at_most}", wait_s)

    def wait_for_commit(
        self, group: str, topic: str, offset: int, *, partition: int = 0, wait_s: float = WAIT_S
    ) -> None:
        """Wait until a group has committed an offset of a partition, or a later one. Raises TimeoutError."""
        from fenceline.client import TopicPartition

        tp = TopicPartition(topic, partition)

        def look() -> tuple[bool, str]:
            found = self.admin.list_group_offsets(group, [tp]).get(tp)
            committed = -1 if found is None else found.offset
            return committed >= offset, "nothing is committed" if committed < 0 else f"{committed} is committed"

        _wait(look, f"group {group} commits offset {offset} of {tp}", wait_s)


def text_of(value: Any) -> str:
    """As in Kafka's property files."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wait(look: Callable[[], tuple[bool, str]], what: str, wait_s: float) -> None:
    """Wait until the first value of `look` is true; the second describes the present state."""
    ends_s = time.monotonic() + wait_s
    while True:
        try:
            holds, state = look()
        except (PeerError, OSError) as error:
            holds, state = False, str(error)
        if holds:
            return
        if time.monotonic() > ends_s:
            raise TimeoutError(f"{what}: not within {wait_s:g} s; {state}")
        time.sleep(_STEP_S)
