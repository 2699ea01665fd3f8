"""Clients with quotas at a running node: what they are told, and whom it delays.

The arithmetic is compared with Kafka's in `tests/quotas`.

Rules: security.md A57 to A61.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka
import pytest

from fenceline.errors import ErrorCode
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request
from tests.support.data_session import DataSession
from tests.support.raw import RawConnection, plain

WINDOW_S: Final = 1
"""All windows; Kafka's default are ten seconds."""
RECORD_BYTES: Final = 100_000


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(overrides={"quota.window.num": str(WINDOW_S + 1)}) as running:
        yield running


@contextmanager
def quotas(node: EmbeddedNode, client_id: str, **values: float) -> Iterator[None]:
    """While the block runs, the node applies quotas to the client id."""
    with RawConnection(node.port, client_id="administrator") as connection:
        _change(connection, client_id, values, remove=False)
        try:
            yield
        finally:
            _change(connection, client_id, values, remove=True)


def _change(connection: RawConnection, client_id: str, values: dict[str, float], *, remove: bool) -> None:
    ops = [{"key": key, "value": value, "remove": remove} for key, value in values.items()]
    entry = {"entity": [{"entity_type": "client-id", "entity_name": client_id}], "ops": ops}
    answer = connection.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    assert [row.error_code for row in answer.entries] == [0]
    wanted = {"components": [{"entity_type": "client-id", "match_type": 0, "match": client_id}], "strict": True}
    for _ in DataSession.until(60):
        found = connection.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, wanted)
        if {pair.key for row in found.entries for pair in row.values} == (set() if remove else set(values)):
            return


@pytest.fixture
def session(node: EmbeddedNode) -> Iterator[DataSession]:
    with DataSession(node.port) as opened:
        opened.create("t")
        yield opened


def throttle_ms(answer: Any) -> int:
    return int(plain(answer.throttle_time))


def is_answered(connection: RawConnection) -> bool:
    return bool(select.select([connection.socket], [], [], 0)[0])


def test_a_client_above_its_quota_is_answered_at_once_and_not_read_then(
    node: EmbeddedNode, session: DataSession
) -> None:
    """Its next request waits for minutes; other clients are served."""
    request = session.produce("t", 0, session.batch(size_bytes=RECORD_BYTES))
    with (
        quotas(node, "greedy", producer_byte_rate=RECORD_BYTES / 400),
        RawConnection(node.port, client_id="greedy") as greedy,
        RawConnection(node.port, client_id="modest") as modest,
    ):
        answer = greedy.call(ApiKey.PRODUCE, 9, request)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert 380_000 < throttle_ms(answer) < 400_000
        greedy.send(ApiKey.API_VERSIONS, 0, {})
        for _ in range(50):
            assert throttle_ms(modest.call(ApiKey.PRODUCE, 9, request)) == 0
            assert throttle_ms(modest.call(ApiKey.METADATA, 9, {"topics": []})) == 0
        assert not is_answered(greedy)


def test_a_muted_connection_is_read_again_after_its_time(node: EmbeddedNode, session: DataSession) -> None:
    body = write_request(ApiKey.PRODUCE, 9, session.produce("t", 0, session.batch(size_bytes=RECORD_BYTES)))
    # A throttle of about 30 ms: the request is that much above what the quota allows.
    quota = len(body) / (WINDOW_S + 0.03)
    with (
        quotas(node, "greedy", producer_byte_rate=round(quota)),
        RawConnection(node.port, client_id="greedy") as greedy,
    ):
        greedy.exchange(ApiKey.PRODUCE, 9, body)
        assert greedy.call(ApiKey.API_VERSIONS, 0).error_code == 0


def test_a_throttled_fetch_is_empty_and_loses_no_record(node: EmbeddedNode, session: DataSession) -> None:
    """One record fits into a window. On a busy machine a window may pass between two requests, but not each time."""
    most = 30
    for _ in range(most):
        session.produced("t", records=session.batch(size_bytes=RECORD_BYTES))
    with (
        quotas(node, "reader", consumer_byte_rate=RECORD_BYTES * 1.9 // WINDOW_S),
        RawConnection(node.port, client_id="reader") as reader,
    ):
        told, answered_s = [], []
        offset, began_s = 0, time.monotonic()
        while offset < 3 or (offset < most and (False, True) not in told):
            asked = session.fetch([("t", 0, offset, {"partition_max_bytes": 1})])
            answer = reader.call(ApiKey.FETCH, 11, asked)
            records = [each.records for topic in answer.responses for each in topic.partitions]
            told.append((bool(records), throttle_ms(answer) > 0))
            answered_s.append(time.monotonic() - began_s)
            offset += bool(records)
    assert {(True, False), (False, True)} == set(told), "all of it or nothing"
    assert told[0] == (True, False)
    if answered_s[1] < WINDOW_S:
        assert told[1] == (False, True), "one record fits into a window"


def test_a_fetch_answers_at_most_what_its_quota_allows_in_all_windows(node: EmbeddedNode, session: DataSession) -> None:
    for _ in range(6):
        session.produced("t", records=session.batch(size_bytes=RECORD_BYTES))
    with (
        quotas(node, "bounded", consumer_byte_rate=RECORD_BYTES * 3 // WINDOW_S),
        RawConnection(node.port, client_id="bounded") as reader,
    ):
        answer = reader.call(ApiKey.FETCH, 11, session.fetch([("t", 0, 0)]))
    assert throttle_ms(answer) == 0
    assert 0 < len(answer.responses[0].partitions[0].records) <= RECORD_BYTES * 3


def test_time_of_requests_throttles_the_next_one(node: EmbeddedNode, session: DataSession) -> None:
    with (
        quotas(node, "busy", request_percentage=0.000001),
        RawConnection(node.port, client_id="busy") as busy,
    ):
        told = [throttle_ms(busy.call(ApiKey.METADATA, 9, {"topics": []})) for _ in range(3)]
    assert told[1:] == [1000, 1000], "at most a window"


def test_asking_for_versions_takes_time_as_well(node: EmbeddedNode) -> None:
    """As at Kafka; it has a handler of its own."""
    with (
        quotas(node, "curious", request_percentage=0.000001),
        RawConnection(node.port, client_id="curious") as curious,
    ):
        fields = {"client_software_name": "a", "client_software_version": "1"}
        assert throttle_ms(curious.call(ApiKey.API_VERSIONS, 3, fields)) == 0
        assert throttle_ms(curious.call(ApiKey.API_VERSIONS, 1)) == 1000
        curious.send(ApiKey.API_VERSIONS, 4, fields)
        with RawConnection(node.port, client_id="modest") as modest:
            assert throttle_ms(modest.call(ApiKey.API_VERSIONS, 4, fields)) == 0
        assert not is_answered(curious)


@pytest.mark.parametrize("version", [3, 9])
def test_a_throttle_time_has_an_upper_limit(node: EmbeddedNode, session: DataSession, version: int) -> None:
    """Kafka's overflows, and the client is not throttled. The records are appended once."""
    request = session.produce("t", 0, session.batch(size_bytes=900_000))
    with quotas(node, "slow", producer_byte_rate=1, request_percentage=1e-300):
        for attempt in range(3):
            with RawConnection(node.port, client_id="slow") as slow:
                answer = slow.call(ApiKey.PRODUCE, version, request)
            row = answer.responses[0].partition_responses[0]
            assert (row.error_code, row.base_offset) == (0, attempt)
    assert throttle_ms(answer) == 2**31 - 1


def test_changes_of_the_metadata_beyond_the_quota_are_refused_each(node: EmbeddedNode) -> None:
    def create(connection: RawConnection, *names: str, version: int = 7) -> Any:
        rows = [{"name": name, "num_partitions": 60, "replication_factor": 1} for name in names]
        return connection.call(ApiKey.CREATE_TOPICS, version, {"topics": rows, "timeout": 30_000})

    with (
        quotas(node, "maker", controller_mutation_rate=10),
        RawConnection(node.port, client_id="maker") as maker,
        RawConnection(node.port, client_id="other") as other,
    ):
        answer = create(maker, "made-1", "made-2", "made-3")
        codes = {row.name: row.error_code for row in answer.topics}
        assert codes == {"made-1": 0, "made-2": 0, "made-3": ErrorCode.THROTTLING_QUOTA_EXCEEDED}
        assert throttle_ms(answer) > 0
        assert [row.error_code for row in create(other, "made-4").topics] == [0]
    with RawConnection(node.port) as connection:
        names = ["made-1", "made-2", "made-4"]
        connection.call(ApiKey.DELETE_TOPICS, 5, {"topic_names": names, "timeout": 30_000})


def test_librdkafka_is_told_and_delivers_everything(node: EmbeddedNode, session: DataSession) -> None:
    told: list[float] = []
    with quotas(node, "rd", producer_byte_rate=RECORD_BYTES * 1.5 // WINDOW_S):
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": node.bootstrap,
                "client.id": "rd",
                "linger.ms": 0,
                "throttle_cb": lambda event: told.append(event.throttle_time),
            }
        )
        for _ in range(5):
            producer.produce(session.name("t"), b"x" * RECORD_BYTES)
            producer.flush(60)
        assert len(producer) == 0
    assert any(told)
    with RawConnection(node.port) as connection:
        answer = connection.call(ApiKey.FETCH, 11, session.fetch([("t", 0, 0, {"partition_max_bytes": 1})]))
    assert answer.responses[0].partitions[0].high_watermark == 5


def test_a_client_that_exceeds_its_quota_of_changes_is_not_read(node: EmbeddedNode) -> None:
    """It has no other quota."""
    topic = {"name": "many", "num_partitions": 60, "replication_factor": 1}
    with (
        quotas(node, "builder", controller_mutation_rate=1),
        RawConnection(node.port, client_id="builder") as maker,
        RawConnection(node.port, client_id="other") as other,
    ):
        answer = maker.call(ApiKey.CREATE_TOPICS, 5, {"topics": [topic], "timeout": 30_000})
        assert [row.error_code for row in answer.topics] == [0]
        assert 40_000 < throttle_ms(answer) < 60_000
        maker.send(ApiKey.API_VERSIONS, 0, {})
        other.call(ApiKey.DELETE_TOPICS, 5, {"topic_names": ["many"], "timeout": 30_000})
        assert not is_answered(maker)
