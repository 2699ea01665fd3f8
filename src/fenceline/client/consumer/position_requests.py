"""A consumer's requests about its positions: validation (OffsetForLeaderEpoch), resets (ListOffsets), and the leaders'
epochs if metadata does not have them.

Owns one task per leader and kind of request, so that an unresponsive leader delays only its own partitions. A task
sends its request once; the fetcher starts another one for partitions without a result. `positions.py` interprets the
responses.

Rules: `epochs.md` E46-E51, E55; `list_offsets.md` L29-L33.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final, Protocol

from fenceline.client.consumer.positions import Position, PositionPhase, Positions, ValidationResult
from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.epoch_history import EpochQuery
from fenceline.client.core.errors import RETRIABLE, STALE_METADATA, ConnectionLost, TimedOut, broker_error
from fenceline.client.core.leader_epochs import LeaderEpochs
from fenceline.client.core.offset_lookups import FENCED_LIST_OFFSETS, ask_epoch_ends, ask_offsets
from fenceline.client.core.offsets import LATEST, OffsetAndEpoch
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey

_log = logging.getLogger("fenceline.client")
_VALIDATING_VERSION: Final = 2
"""The first version of OffsetForLeaderEpoch with a current leader epoch."""
_OPEN_TO_CONSUMERS: Final = 3
"""Before this version brokers may require the ClusterAction permission (E22, E46)."""
_DENIED: Final = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class Delay(Protocol):
    """Retry these after a backoff, which grows while the node does not answer."""

    def __call__(self, partitions: Collection[TopicPartition], *, is_answered: bool = True) -> None: ...


class PositionRequests:
    """Runs on the consumer's loop. `on_answers(tps)`: requests about these were answered; `report(error, tp)`: an error
    for the caller of poll.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        config: ClientConfig,
        *,
        on_answers: Callable[[Collection[TopicPartition]], None],
        delay: Delay,
        report: Callable[[Exception, TopicPartition | None], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._requests_answered, self._delay, self._report = on_answers, delay, report
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._warned_nodes: set[int] = set()
        self.epochs = LeaderEpochs()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def validate(self, node_id: int, partitions: Collection[TopicPartition]) -> None:
        """Validate the positions of these with their leader, unless such a request is in flight."""
        self._start("validate", node_id, lambda: self._validate(node_id, partitions))

    def reset(self, node_id: int, partitions: Collection[TopicPartition]) -> None:
        """Look up the reset offsets of these from their leader."""
        self._start("reset", node_id, lambda: self._reset(node_id, partitions))

    def _start(self, kind: str, node_id: int, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if (kind, node_id) in self._tasks:
            return
        task = self._tasks[kind, node_id] = asyncio.ensure_future(make())
        task.add_done_callback(lambda _: self._ended(kind, node_id))

    def _ended(self, kind: str, node_id: int) -> None:
        del self._tasks[kind, node_id]
        self._requests_answered(())

    # -- validation

    async def _validate(self, node_id: int, partitions: Collection[TopicPartition]) -> None:
        asked: dict[TopicPartition, tuple[Position, EpochQuery]] = {}
        for tp in partitions:
            state, query = self._positions.get(tp), self._positions.validation_query(tp)
            if state is not None and state.fetch_position is not None and query is not None:
                asked[tp] = state.fetch_position, query
        if not asked:
            return
        try:
            deadline = Deadline(self._config["request.timeout.ms"])
            connection = await self._cluster.link(node_id).connection()
            version = connection.max_version(ApiKey.OFFSET_FOR_LEADER_EPOCH)
            if version < _VALIDATING_VERSION:
                self._warn_cannot_validate(node_id)
                for tp, (position, _) in asked.items():
                    self._positions.skip_validation(tp, position)
                self._requests_answered(asked)
                return
            wanted = {tp: (query.epoch, position.leader.epoch) for tp, (position, query) in asked.items()}
            ends = await ask_epoch_ends(self._cluster, node_id, wanted, deadline=deadline)
        except Exception as error:
            self._failed("validated", asked, error)
            return
        unresolved = set(asked)
        for tp, end in ends.items():
            if version < _OPEN_TO_CONSUMERS and end in _DENIED and tp in asked:
                self._warn_cannot_validate(node_id, "requires the ClusterAction permission for OffsetForLeaderEpoch")
                unresolved.discard(tp)
                self.epochs.mark_unavailable(tp, node_id)
                self._positions.skip_validation(tp, asked[tp][0])
            elif isinstance(end, ErrorCode):
                self.epochs.forget(tp)
                self._refused("OffsetForLeaderEpoch", tp, end)
            elif tp in asked:
                unresolved.discard(tp)
                position, query = asked[tp]
                if self._positions.complete_validation(tp, position, query, end) is ValidationResult.DIVERGED:
                    _log.warning(
                        "%s", self._positions.of(tp).truncation or f"{tp}: the log was truncated below the reset offset"
                    )
        if unresolved:
            self._delay(unresolved)
        self._requests_answered(asked.keys() - unresolved)

    def _warn_cannot_validate(self, node_id: int, why: str = "is too old to validate positions") -> None:
        """Log, once per broker, that it cannot validate positions."""
        if node_id not in self._warned_nodes:
            self._warned_nodes.add(node_id)
            _log.warning(
                "broker %d %s (Kafka 2.3 and newer answer every consumer, 2.1 and 2.2 users with the ClusterAction "
                "permission): a truncation of its logs is only detected by records of an older epoch",
                node_id,
                why,
            )

    # -- leader epochs that metadata does not have

    def learn_epochs(self, node_id: int, partitions: Collection[TopicPartition]) -> None:
        """Ask the leader of these for its epoch (`leader_epochs.py`)."""
        self._start("epochs", node_id, lambda: self._learn_epochs(node_id, partitions))

    async def _learn_epochs(self, node_id: int, partitions: Collection[TopicPartition]) -> None:
        try:
            deadline = Deadline(self._config["request.timeout.ms"])
            connection = await self._cluster.link(node_id).connection()
            found: Mapping[TopicPartition, OffsetAndEpoch | ErrorCode]
            if (
                connection.max_version(ApiKey.LIST_OFFSETS) < FENCED_LIST_OFFSETS
                or connection.max_version(ApiKey.OFFSET_FOR_LEADER_EPOCH) < _VALIDATING_VERSION
            ):
                found = dict.fromkeys(partitions, OffsetAndEpoch(-1))
            else:
                found = await ask_offsets(self._cluster, node_id, dict.fromkeys(partitions, LATEST), deadline=deadline)
        except Exception as error:
            self._failed("validated", dict.fromkeys(partitions), error)
            return
        for tp, answer in self._answered(partitions, found):
            self.epochs.learn(tp, node_id, answer.leader_epoch)
            if answer.leader_epoch < 0:
                self._warn_cannot_validate(node_id)

    # -- resets

    async def _reset(self, node_id: int, partitions: Collection[TopicPartition]) -> None:
        wanted: dict[TopicPartition, str | int] = {}
        serials: dict[TopicPartition, int] = {}
        for tp in partitions:
            state = self._positions.get(tp)
            if state is not None and state.phase is PositionPhase.AWAIT_RESET and state.reset_to is not None:
                wanted[tp], serials[tp] = state.reset_to, state.serial
        if not wanted:
            return
        try:
            deadline = Deadline(self._config["request.timeout.ms"])
            found = await ask_offsets(
                self._cluster, node_id, wanted, deadline=deadline, isolation_level=int(self._config.reads_committed)
            )
        except Exception as error:
            self._failed("looked up", wanted, error)
            return
        answered = self._answered(wanted, found)
        for tp, answer in answered:
            self._apply_offset(tp, serials.get(tp, -1), answer)
        self._requests_answered({tp for tp, _ in answered})

    def _apply_offset(self, tp: TopicPartition, serial: int, answer: OffsetAndEpoch) -> None:
        state = self._positions.get(tp)
        if answer.offset >= 0:
            self._positions.complete_reset(tp, serial, answer)
        elif state is not None and state.serial == serial:
            # The timestamp is later than the last record's: continue at the log end.
            state.reset_to = "latest"

    # -- inside

    def _answered(
        self, wanted: Collection[TopicPartition], found: Mapping[TopicPartition, OffsetAndEpoch | ErrorCode]
    ) -> list[tuple[TopicPartition, OffsetAndEpoch]]:
        """The results of ListOffsets; the others of `wanted` are retried later, or their error is reported."""
        answered: list[tuple[TopicPartition, OffsetAndEpoch]] = []
        for tp, answer in found.items():
            if isinstance(answer, ErrorCode):
                self._refused("ListOffsets", tp, answer)
            else:
                answered.append((tp, answer))
        if unresolved := set(wanted) - {tp for tp, _ in answered}:
            self._delay(unresolved)
        return answered

    def _failed(self, what: str, partitions: Mapping[TopicPartition, Any], error: Exception) -> None:
        is_answered = not isinstance(error, ConnectionLost | TimedOut)
        if not is_answered:
            _log.info("positions could not be %s, retrying: %s", what, error)
            self._cluster.request_refresh()
        elif not isinstance(error, PeerError) or error.code not in RETRIABLE:
            self._report(error, None)
        self._delay(partitions.keys(), is_answered=is_answered)

    def _refused(self, what: str, tp: TopicPartition, code: ErrorCode) -> None:
        if code in STALE_METADATA or code is ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._cluster.request_refresh()
        elif code not in RETRIABLE:
            self._report(broker_error(code, f"{what} of {tp}"), tp)
