"""AlterPartition requests of this broker's leaders, on their way to the controller and back.

Owns the proposed changes and one request in flight (`epochs.md E35`, E39): proposals that arrive meanwhile are batched
into the next requests, which the controller decides without a long pause each. Decides nothing: a `Proposer` proposes,
and handles the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from fenceline.controller.partition_requests import AlteredPartition, AlterPartition, IsrChange, IsrMember
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.node.logs import Logger
from fenceline.replica.leader import IsrProposal, Rejection

if TYPE_CHECKING:
    from fenceline.controller.requests import Request
    from fenceline.ids import TopicPartition
    from fenceline.node.replication.replica import Replica

log = Logger("replication")

MAX_CHANGES: Final = 500
"""Partitions in one request to the controller, which decides it without a pause that others notice."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class Proposer(Protocol):
    """A partition that this broker leads. Compared by identity."""

    @property
    def topic_id(self) -> UUID: ...
    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def replica(self) -> Replica | None:
        """Its object, if it has one."""

    @property
    def proposal(self) -> IsrProposal | None:
        """The current one. Any other is void."""

    def on_rejected(self, proposal: IsrProposal, code: ErrorCode) -> Rejection:
        """The controller rejected the current proposal (E39)."""

    def wake(self) -> None:
        """The followers are checked again."""


class IsrChanges:
    """The ISR changes of one broker. All methods run on the event loop."""

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        submit: Callable[[Request], Awaitable[Any]],
        applied: Callable[[Replica, AlteredPartition], None],
    ) -> None:
        """`applied` is called for each replica object of which the controller changed the partition. The others are
        changed by the metadata log."""
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._submit = submit
        self._applied = applied
        self._wanted: dict[Proposer, IsrProposal] = {}
        self._task: asyncio.Task[None] | None = None
        self.expands = 0
        self.shrinks = 0
        self.failures = 0

    def ask(self, proposer: Proposer, proposal: IsrProposal) -> None:
        """Send a proposal with the next request."""
        self._wanted[proposer] = proposal
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
                asked = {proposer: self._wanted.pop(proposer) for proposer in some}
                asked = {proposer: each for proposer, each in asked.items() if proposer.proposal is each}
                again = await self._ask(asked) if asked else {}
                if again:
                    for proposer, proposal in again.items():
                        self._wanted.setdefault(proposer, proposal)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                else:
                    pause_s = _FIRST_PAUSE_S
        finally:
            self._task = None

    async def _ask(self, asked: dict[Proposer, IsrProposal]) -> dict[Proposer, IsrProposal]:
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
        by_id = {(each.topic_id, each.topic_partition.partition): each for each in asked}
        again: dict[Proposer, IsrProposal] = {}
        for topic_id, partitions in answer.topics:
            for altered in partitions:
                proposer = by_id.pop((topic_id, altered.index), None)
                if proposer is not None and self._is_to_ask_again(proposer, asked[proposer], altered):
                    again[proposer] = asked[proposer]
        again.update((each, asked[each]) for each in by_id.values())  # left out of the answer
        return again

    def _is_to_ask_again(self, proposer: Proposer, proposal: IsrProposal, altered: AlteredPartition) -> bool:
        if altered.code is ErrorCode.NONE:
            # Also counted if the metadata log showed the change before the response.
            self.expands += max(proposal.growth, 0)
            self.shrinks += max(-proposal.growth, 0)
        if proposer.proposal is not proposal:
            return False
        if altered.code is ErrorCode.NONE:
            if proposer.replica is not None and altered.leader_epoch == proposal.leader_epoch:
                self._applied(proposer.replica, altered)
            return False
        self.failures += 1
        refused = proposer.on_rejected(proposal, altered.code)
        log.info(
            "ISR change rejected",
            partition=str(proposer.topic_partition),
            reason=altered.code.name,
            wanted=[member.broker_id for member in proposal.members],
            proposal=refused.value,
        )
        if refused is Rejection.REVERTED:
            proposer.wake()
        return refused is Rejection.ASK_AGAIN


def _topics(asked: dict[Proposer, IsrProposal]) -> tuple[tuple[UUID, tuple[IsrChange, ...]], ...]:
    topics: dict[UUID, list[IsrChange]] = {}
    for proposer, proposal in asked.items():
        change = IsrChange(
            proposer.topic_partition.partition,
            proposal.leader_epoch,
            proposal.partition_epoch,
            tuple(IsrMember(*member) for member in proposal.members),
            LeaderRecoveryState.RECOVERED,
        )
        topics.setdefault(proposer.topic_id, []).append(change)
    return tuple((topic_id, tuple(changes)) for topic_id, changes in topics.items())
