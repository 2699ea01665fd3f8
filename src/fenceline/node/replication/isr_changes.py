"""AlterPartition requests of this broker's leaders, on their way to the controller and back.

Owns the proposed changes and one request in flight (`epochs.md E35`, E39): proposals that arrive meanwhile are batched
into the next requests, which the controller decides without a long pause each. Decides nothing: `LeaderState` proposes,
and handles the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from fenceline.controller.partition_requests import AlteredPartition, AlterPartition, IsrChange, IsrMember
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.node.logs import Logger
from fenceline.replica.leader import IsrProposal, Rejection

if TYPE_CHECKING:
    from fenceline.controller.requests import Request
    from fenceline.node.replication.replica import Replica

log = Logger("replication")

MAX_CHANGES: Final = 500
"""Partitions in one request to the controller, which decides it without a pause that others notice."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class IsrChanges:
    """The ISR changes of one broker. All methods run on the event loop."""

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        submit: Callable[[Request], Awaitable[Any]],
        applied: Callable[[Replica, AlteredPartition], None],
    ) -> None:
        """`applied` is called for each partition that the controller changed."""
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._submit = submit
        self._applied = applied
        self._wanted: dict[Replica, IsrProposal] = {}
        self._task: asyncio.Task[None] | None = None
        self.expands = 0
        self.shrinks = 0
        self.failures = 0

    def ask(self, replica: Replica, proposal: IsrProposal) -> None:
        """Send a proposal with the next request."""
        self._wanted[replica] = proposal
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while self._wanted:
                # Wait one iteration of the event loop: changes with one cause are sent together.
                await asyncio.sleep(0)
                some = list(islice(self._wanted, MAX_CHANGES))
                asked = {replica: self._wanted.pop(replica) for replica in some}
                asked = {replica: each for replica, each in asked.items() if _stands(replica, each)}
                again = await self._ask(asked) if asked else {}
                if again:
                    for replica, proposal in again.items():
                        self._wanted.setdefault(replica, proposal)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                else:
                    pause_s = _FIRST_PAUSE_S
        finally:
            self._task = None

    async def _ask(self, asked: dict[Replica, IsrProposal]) -> dict[Replica, IsrProposal]:
        """The proposals to send again."""
        try:
            answer = await self._submit(AlterPartition(self._node_id, self._broker_epoch(), _topics(asked)))
        except PeerError as error:
            log.warning(
                "ISR changes failed",
                partitions=len(asked),
                reason=error.message or error.code.name,
                advice="The request is retried. A majority of the controllers must be running and reachable.",
            )
            return asked
        by_id = {(replica.topic_id, replica.topic_partition.partition): replica for replica in asked}
        again: dict[Replica, IsrProposal] = {}
        for topic_id, partitions in answer.topics:
            for altered in partitions:
                replica = by_id.pop((topic_id, altered.index), None)
                if replica is not None and self._is_to_ask_again(replica, asked[replica], altered):
                    again[replica] = asked[replica]
        again.update((replica, asked[replica]) for replica in by_id.values())  # left out of the answer
        return again

    def _is_to_ask_again(self, replica: Replica, proposal: IsrProposal, altered: AlteredPartition) -> bool:
        leader = replica.leader
        if altered.code is ErrorCode.NONE:
            # Also counted if the metadata log showed the change before the response.
            self.expands += max(proposal.growth, 0)
            self.shrinks += max(-proposal.growth, 0)
        if leader is None or not _stands(replica, proposal):
            return False
        if altered.code is ErrorCode.NONE:
            if altered.leader_epoch == leader.leader_epoch:
                self._applied(replica, altered)
            return False
        self.failures += 1
        refused = leader.on_rejected(proposal, altered.code)
        log.info(
            "ISR change rejected",
            partition=str(replica.topic_partition),
            reason=altered.code.name,
            wanted=[member.broker_id for member in proposal.members],
            proposal=refused.value,
        )
        if refused is Rejection.REVERTED:
            replica.wake()  # the follower is checked again
        return refused is Rejection.ASK_AGAIN


def _stands(replica: Replica, proposal: IsrProposal) -> bool:
    return replica.leader is not None and replica.leader.proposal is proposal


def _topics(asked: dict[Replica, IsrProposal]) -> tuple[tuple[UUID, tuple[IsrChange, ...]], ...]:
    topics: dict[UUID, list[IsrChange]] = {}
    for replica, proposal in asked.items():
        change = IsrChange(
            replica.topic_partition.partition,
            proposal.leader_epoch,
            proposal.partition_epoch,
            tuple(IsrMember(*member) for member in proposal.members),
            LeaderRecoveryState.RECOVERED,
        )
        topics.setdefault(replica.topic_id, []).append(change)
    return tuple((topic_id, tuple(changes)) for topic_id, changes in topics.items())
