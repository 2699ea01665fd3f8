"""A producer that writes to the wrong broker gets the id and the address of the leader (KIP-951)."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.node.api.produce import producing
from fenceline.node.net.connection import PendingAnswer
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response, write_request
from tests.node.desk import RECOVERING, TOPIC, Desk, _body, run_story, turns

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture(params=["compiled", "python"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(producing, "_answer_plain", None)


def hint(answer: Any) -> tuple[int, int, int, list[tuple[int, str, int]]]:
    """Error, leader and epoch of the one partition, and all addresses."""
    (partition,) = answer.responses[0].partition_responses
    leader = partition.current_leader
    endpoints = [(each.node_id, each.host, each.port) for each in answer.node_endpoints]
    return partition.error_code, leader.leader_id, leader.leader_epoch, endpoints


@pytest.mark.parametrize("version", [10, 11, 12, 13])
@pytest.mark.parametrize(("listener", "host", "port"), [("PLAINTEXT", "host3", 9092), ("OUTSIDE", "public3", 9094)])
def test_a_follower_names_its_leader(version: int, listener: str, host: str, port: int) -> None:
    async def story(desk: Desk) -> None:
        desk.follow(5, leader=3)
        answer = desk.produced(version=version, listener=listener)
        assert hint(answer) == (NOT_LEADER, 3, 5, [(3, host, port)])

    run_story(story)


@pytest.mark.parametrize("version", [3, 8, 9])
def test_older_versions_have_no_field_for_the_leader(version: int) -> None:
    async def story(desk: Desk) -> None:
        desk.follow(5, leader=3)
        assert desk.produced(version=version).responses[0].partition_responses[0].error_code == NOT_LEADER

    run_story(story)


def test_known_leader_and_address_are_returned() -> None:
    """A recovering leader names itself; without a leader, or for an unregistered leader, there is no address."""

    async def story(desk: Desk) -> None:
        desk.tell(leader=-1, leader_epoch=6, isr=(2,))
        assert hint(desk.produced()) == (NOT_LEADER, -1, 6, [])
        desk.follow(7, leader=9)
        assert hint(desk.produced()) == (NOT_LEADER, 9, 7, [])
        desk.controller.answer = None
        desk.lead(8, leader_recovery_state=RECOVERING)
        assert hint(desk.produced()) == (NOT_LEADER, 1, 8, [(1, "host1", 9092)])

    run_story(story)


def test_other_errors_carry_no_leader() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(5)
        assert hint(desk.produced()) == (0, -1, -1, [])
        assert hint(desk.produced(acks=7)) == (ErrorCode.INVALID_REQUIRED_ACKS, -1, -1, [])

    run_story(story)


def test_leadership_lost_while_waiting_for_followers_names_the_new_leader() -> None:
    """acks=all: the request was waiting, and its records may be truncated; the producer turns to the new leader at
    once.
    """

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1, 2), index=0)
        desk.lead(5, isr=(1,), index=1)
        batch = bytes(build_batch([(0, b"k", b"v", ())]))
        data = [{"name": TOPIC, "partition_data": [{"index": index, "records": batch} for index in (0, 1)]}]
        fields = {"transactional_id": None, "acks": -1, "timeout": 60_000, "topic_data": data}
        pending = desk.producing.handle(
            desk.context(12, "OUTSIDE"), memoryview(bytearray(write_request(ApiKey.PRODUCE, 12, fields)))
        )
        assert isinstance(pending, PendingAnswer)
        connection = _Connection()
        pending.attach(connection)  # type: ignore[arg-type]
        desk.follow(6, leader=2, index=0)
        await turns()
        answer = read_response(ApiKey.PRODUCE, 12, _body(ApiKey.PRODUCE, 12, connection.parts))
        moved, stayed = answer.responses[0].partition_responses
        assert (moved.error_code, moved.current_leader.leader_id, moved.current_leader.leader_epoch) == (
            NOT_LEADER,
            2,
            6,
        )
        assert (stayed.error_code, stayed.base_offset, stayed.current_leader.leader_id) == (0, 0, -1)
        assert [(each.node_id, each.host) for each in answer.node_endpoints] == [(2, "public2")]

    run_story(story, partitions=2)


class _Connection:
    parts: Any = None

    def answer_pending(self, pending: Any, parts: Any, let_go: Any = None) -> None:
        self.parts = parts
