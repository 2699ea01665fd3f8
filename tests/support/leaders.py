"""Leaders moved on purpose: orders of replicas and elections, asked of any broker, as an operator's tools ask.

Owns the two requests. Does not retry unavailable or rejecting brokers: callers do that with `eventually`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey
from tests.support.raw import RawConnection

PREFERRED = 0
UNCLEAN = 1
_TIMEOUT_MS = 20_000
_AS_WISHED = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


def order_replicas(port: int, topic: str, orders: Mapping[int, Sequence[int]]) -> None:
    """Partition -> its replicas, the preferred leader first. Raises AssertionError where it is refused."""
    partitions = [{"partition_index": index, "replicas": list(replicas)} for index, replicas in orders.items()]
    fields = {"timeout": _TIMEOUT_MS, "topics": [{"name": topic, "partitions": partitions}]}
    with RawConnection(port) as connection:
        answer = connection.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, fields)
    codes = [answer.error_code, *(each.error_code for found in answer.responses for each in found.partitions)]
    assert set(codes) == {ErrorCode.NONE}, codes


def elect(port: int, topic: str, partitions: Sequence[int], election_type: int = PREFERRED) -> None:
    """Raises AssertionError where it is refused; a leader that is the wanted one already is none."""
    wanted = [{"topic": topic, "partitions": list(partitions)}]
    fields = {"election_type": election_type, "topic_partitions": wanted, "timeout": _TIMEOUT_MS}
    with RawConnection(port) as connection:
        answer = connection.call(ApiKey.ELECT_LEADERS, 2, fields)
    results = [each for found in answer.replica_election_results for each in found.partition_result]
    assert answer.error_code == ErrorCode.NONE, answer
    assert all(each.error_code in _AS_WISHED for each in results), results
