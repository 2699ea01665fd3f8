"""Which rejections end a membership: those of the current generation, not those of an older one. A commit belongs to
the generation in which it was created, however late it is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fenceline.client.consumer import group as group_module
from fenceline.client.consumer.consumer import AsyncConsumer
from fenceline.client.consumer.group import GroupMember
from fenceline.client.core import group_requests
from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import CommitFailedError, broker_error
from fenceline.client.core.group_requests import CommitMembership
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition

SETTINGS = {"group.id": "g", "heartbeat.interval.ms": 1, "retry.backoff.ms": 1, "retry.backoff.max.ms": 1}
TP = TopicPartition("t", 0)
Sent = list[tuple[int, int, str]]
"""Offset, generation and member id of each attempt to commit."""


def refused(monkeypatch: pytest.MonkeyPatch, call: str, code: ErrorCode, meanwhile: int) -> tuple[int, bool]:
    """(generation, whether it was lost) after `call` of generation 3 was rejected while `meanwhile` happened."""

    async def run() -> tuple[int, bool]:
        config = ClientConfig.parse("consumer", "127.0.0.1:1", SETTINGS)
        async with AsyncConsumer("127.0.0.1:1", **SETTINGS) as consumer:
            cluster: Cluster = consumer.cluster
            subject = GroupMember(cluster, config, consumer, lambda: None)
            subject.generation_id, subject.member_id, subject._needs_join = 3, "m", False
            answered = asyncio.Event()

            async def refuse(*_: Any, **__: Any) -> None:
                subject.generation_id = meanwhile
                answered.set()
                raise broker_error(code, "a test")

            monkeypatch.setattr(group_module, "commit_once" if call == "commit" else "ask_coordinator", refuse)
            if call == "commit":
                with pytest.raises(CommitFailedError, match="rejected the commit of generation 3"):
                    await subject.commit({TP: CommittedOffset(1)}, Deadline(1000))
            else:
                subject._start_heartbeats()
                await answered.wait()
                await subject._stop_heartbeats()
            return subject.generation_id, subject._was_lost

    return asyncio.run(run())


@pytest.mark.parametrize("call", ["commit", "heartbeat"])
def test_rejection_of_an_old_generation_is_ignored(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    assert refused(monkeypatch, call, ErrorCode.ILLEGAL_GENERATION, meanwhile=4) == (4, False)


@pytest.mark.parametrize("call", ["commit", "heartbeat"])
@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_rejection_of_the_current_generation_ends_the_membership(
    monkeypatch: pytest.MonkeyPatch, call: str, code: ErrorCode
) -> None:
    assert refused(monkeypatch, call, code, meanwhile=3) == (-1, True)


def test_unknown_member_id_ends_the_membership_in_any_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch, "commit", ErrorCode.UNKNOWN_MEMBER_ID, meanwhile=4) == (-1, True)


class Coordinator:
    """Answers commits as scripted, None for success; the last answer repeats. Rejects any other partition."""

    def __init__(self, *script: ErrorCode | None) -> None:
        self.script = list(script)
        self.sent: Sent = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens to the membership while the first attempt waits for its answer."""

    async def commit(
        self,
        cluster: Cluster,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
        *,
        membership: CommitMembership | None = None,
        **_: Any,
    ) -> None:
        member = membership or CommitMembership()
        self.sent.append((offsets[TP].offset, member.generation_id, member.member_id))
        await asyncio.sleep(0)
        if len(self.sent) == 1:
            self.meanwhile()
        code = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if code is not None:
            raise broker_error(code, "a test")


def committing(
    monkeypatch: pytest.MonkeyPatch,
    coordinator: Coordinator,
    story: Callable[[AsyncConsumer, GroupMember], Any],
    **config: Any,
) -> None:
    """Run a story of a consumer that is the member "m" in generation 3 and holds one partition, read up to offset 5."""

    async def run() -> None:
        async with AsyncConsumer("127.0.0.1:1", **{**SETTINGS, "enable.auto.commit": False, **config}) as consumer:
            group = consumer._group
            assert group is not None
            monkeypatch.setattr(consumer.cluster, "request_refresh", lambda: None)
            consumer.positions.assign([TP])
            consumer.positions.seek(TP, 5)
            consumer._subscribed, group.assignment, group._needs_join = True, (TP,), False
            group.generation_id, group.member_id = 3, "m"
            try:
                await story(consumer, group)
            finally:
                consumer._subscribed = False
                consumer.positions.assign([])

    monkeypatch.setattr(group_module, "commit_once", coordinator.commit)
    monkeypatch.setattr(group_requests, "commit_once", coordinator.commit)
    asyncio.run(run())


LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("now", [(4, "m"), (4, "another"), (3, "another"), (-1, "m"), (-1, "")])
def test_commit_is_not_retried_under_another_membership(monkeypatch: pytest.MonkeyPatch, now: tuple[int, str]) -> None:
    """A loading coordinator answers after the rebalance, when another member may have committed."""
    coordinator = Coordinator(LOADING, None)

    async def story(consumer: AsyncConsumer, group: GroupMember) -> None:
        def rebalance() -> None:
            group.generation_id, group.member_id = now

        coordinator.meanwhile = rebalance
        with pytest.raises(CommitFailedError, match="generation 3, which has ended"):
            await consumer.commit()
        assert (group.generation_id, group.member_id, group._was_lost) == (*now, False)

    committing(monkeypatch, coordinator, story)
    assert coordinator.sent == [(5, 3, "m")]


def test_background_commit_is_not_retried_under_another_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(LOADING, None)

    async def story(consumer: AsyncConsumer, group: GroupMember) -> None:
        def rebalance() -> None:
            group.generation_id = 4

        consumer._auto_commit.commit_if_due()
        await asyncio.sleep(0.01)
        consumer._auto_commit.commit_if_due()
        rebalance()  # the task has not started yet
        (task,) = consumer._auto_commit._in_flight
        await task

    committing(monkeypatch, coordinator, story, **{"enable.auto.commit": True, "auto.commit.interval.ms": 1})
    assert coordinator.sent == []


def test_commit_is_retried_within_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(LOADING, ErrorCode.NOT_COORDINATOR, None)

    async def story(consumer: AsyncConsumer, group: GroupMember) -> None:
        await consumer.commit()

    committing(monkeypatch, coordinator, story)
    assert coordinator.sent == [(5, 3, "m")] * 3


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID])
def test_rejection_of_a_former_member_id_does_not_affect_the_current_one(
    monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    coordinator = Coordinator(code)

    async def story(consumer: AsyncConsumer, group: GroupMember) -> None:
        def rejoin() -> None:
            group.generation_id, group.member_id = 4, "another"

        coordinator.meanwhile = rejoin
        with pytest.raises(CommitFailedError) as caught:
            await consumer.commit()
        assert caught.value.code is code
        assert (group.generation_id, group.member_id, group._was_lost, group._fatal) == (4, "another", False, None)

    committing(monkeypatch, coordinator, story)


def test_completed_rebalance_is_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(ErrorCode.REBALANCE_IN_PROGRESS)

    async def story(consumer: AsyncConsumer, group: GroupMember) -> None:
        def rebalance() -> None:
            group.generation_id = 4

        coordinator.meanwhile = rebalance
        with pytest.raises(CommitFailedError):
            await consumer.commit()
        assert not group._needs_join

    committing(monkeypatch, coordinator, story)


def test_fenced_static_member_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it rejoined, the two members would fence each other forever."""

    async def story(consumer: AsyncConsumer, group: GroupMember) -> None:
        with pytest.raises(CommitFailedError, match="rejected the commit of generation 3"):
            await consumer.commit()
        for _ in range(2):
            with pytest.raises(PeerError) as caught:
                await consumer.poll()
            assert caught.value.code is ErrorCode.FENCED_INSTANCE_ID
        assert consumer.assignment() == []

    committing(monkeypatch, Coordinator(ErrorCode.FENCED_INSTANCE_ID), story, **{"group.instance.id": "i"})


@pytest.mark.parametrize("as_member", [(-1, ""), (-1, "m")])
def test_former_member_does_not_commit_without_a_generation(
    monkeypatch: pytest.MonkeyPatch, as_member: tuple[int, str]
) -> None:
    """A coordinator accepts commits without a generation while the group is empty, even over newer offsets."""
    coordinator = Coordinator(None)

    async def story(consumer: AsyncConsumer, group: GroupMember) -> None:
        group.generation_id, group.member_id = as_member
        with pytest.raises(CommitFailedError, match="is not a member"):
            await consumer.commit()

    committing(monkeypatch, coordinator, story)
    assert coordinator.sent == []


def test_revoked_partition_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(None)

    async def story(consumer: AsyncConsumer, group: GroupMember) -> None:
        consumer.positions.assign([])
        with pytest.raises(CommitFailedError, match="t-0 is not assigned to this member"):
            await consumer.commit({TP: 7})

    committing(monkeypatch, coordinator, story)
    assert coordinator.sent == []


def test_pending_commit_fails_on_unsubscribe(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(LOADING, None)

    async def story(consumer: AsyncConsumer, group: GroupMember) -> None:
        def unsubscribe() -> None:
            consumer._subscribed = False
            group._reset_identity()

        coordinator.meanwhile = unsubscribe
        first = asyncio.ensure_future(consumer.commit())
        second = asyncio.ensure_future(consumer.commit())
        for commit in (first, second):
            with pytest.raises(CommitFailedError):
                await commit

    committing(monkeypatch, coordinator, story)
    assert coordinator.sent == [(5, 3, "m")]


def test_commits_of_one_consumer_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The retry of an earlier commit would move the committed offset backward."""
    coordinator = Coordinator(LOADING, LOADING, None)

    async def story(consumer: AsyncConsumer, group: GroupMember) -> None:
        await asyncio.gather(consumer.commit({TP: 5}), consumer.commit({TP: 9}))

    committing(monkeypatch, coordinator, story)
    assert [offset for offset, _, _ in coordinator.sent] == [5, 5, 5, 9]
