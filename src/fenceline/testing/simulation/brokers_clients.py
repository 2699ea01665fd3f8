"""Clients of a simulated cluster: producers and consumers, each with one request at a time.

Owns their requests, their retries, and the guarantees that they check. Responses go to the histories at once, which
know whether they are allowed.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from random import Random
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import ErrorCode
from fenceline.node.net.peer_connection import NoSuchVersion
from fenceline.records.batch import iter_headers
from fenceline.records.build import build_batch
from fenceline.testing.simulation.brokers_wire import EARLIEST, LATEST, PartitionInfo, Wire
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.clock import WALL_START_MS
from fenceline.testing.simulation.data_history import BatchId
from fenceline.testing.simulation.operations import Operation
from fenceline.testing.simulation.sockets import Sockets
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.testing.simulation.data_checks import DataChecks
    from fenceline.testing.simulation.data_history import PartitionHistory
    from fenceline.testing.simulation.world import World

_TROUBLE: Final = (ConnectionError, MalformedRequest, NoSuchVersion)
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
ENOUGH_S: Final = 0.5
"""How long a client that has reached its request limit sleeps between checks."""
_PRODUCE_TIMEOUT_MS: Final = 1500
_FENCED_OUT: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    }
)
"""Errors after which an idempotent producer cannot continue."""


class SimulatedClient(ABC):
    """What all clients have in common: they cache leaders, and retry after a back-off."""

    name = "client"

    def __init__(self, world: World, sockets: Sockets, checks: DataChecks, number: int, nodes: tuple[int, ...]) -> None:
        self.done = 0
        self.must_rest = False
        self.is_waiting = False
        self.rng: Random = world.rng(f"{self.name} {number}")
        self.checks = checks
        self.number = -1 - number
        """In the network."""
        self.wire = Wire(world, sockets, self.number)
        self.who = f"{self.name}{number}"
        self.places: list[PartitionInfo] = []
        self.request_limit = -1
        """After this many completed requests it sends no more; -1: no limit."""
        self.world = world
        self.nodes = nodes
        self._misses = 0
        self._newest: dict[tuple[bytes, int], PartitionInfo] = {}

    def log_event(self, what: str) -> None:
        self.world.trace.add(self.world.scheduler.now_s, self.who, what)

    async def live(self) -> None:
        think_s = self.world.options.think_ms / 1000
        while not self.must_rest:
            quiet_s = self.quiet_s()
            if quiet_s:
                await asyncio.sleep(quiet_s)
                continue
            self.is_waiting = True
            try:
                await self.one_request()
            except _TROUBLE as error:
                self.log_event(f"is not answered: {type(error).__name__}")
                await self.back_off()
            except InvariantBroken as error:
                self.world.scheduler.fail(error)
                return
            self.is_waiting = False
            await asyncio.sleep(self.rng.random() * 2 * think_s + 0.0001)

    def quiet_s(self) -> float:
        """Seconds until it may send again; 0.0: now."""
        if 0 <= self.request_limit <= self.done:
            return ENOUGH_S
        world = self.world
        return (
            world.load_cycle.quiet_s(world.scheduler.now_s)
            if world.load_cycle is not None and world.faults_active
            else 0.0
        )

    @abstractmethod
    async def one_request(self) -> None:
        """One request, or several that belong together."""

    async def back_off(self) -> None:
        """Its metadata may be stale: fetch it again from any broker, after a growing back-off."""
        self._misses += 1
        await asyncio.sleep(min(_PAUSE_S * 1.5**self._misses, _LONGEST_PAUSE_S))
        self.places = []

    async def fetch_metadata(self) -> None:
        """Fetch the leaders from any broker; a broker with older leader epochs does not replace newer ones (E57).
        Raises ConnectionError."""
        node_id = self.rng.choice(self.nodes)
        try:
            fetched = await self.wire.metadata(node_id)
        except _TROUBLE:
            self.wire.drop(node_id)
            raise
        seen = self._newest
        for place in fetched:
            if place.epoch >= seen.get(place.key, place).epoch:
                seen[place.key] = place
        self.places = [seen[place.key] for place in fetched]

    def request_completed(self) -> None:
        self.done += 1
        self._misses = 0

    def record_request(self, operation: Operation, place: PartitionInfo) -> None:
        """A request to this partition is about to be sent."""
        self.world.coverage.operation(operation, place.topic)

    def history(self, place: PartitionInfo) -> PartitionHistory | None:
        """None: the topic was deleted."""
        return self.checks.histories.get(place.key)

    def leader_responded(self, place: PartitionInfo) -> None:
        """A leader responded without an error: it must not be RECOVERING (V37)."""
        history = self.history(place)
        if history is not None and history.recovering_epoch == place.epoch >= 0:
            raise InvariantBroken(
                f"{self.who}: {history.name} was served in epoch {place.epoch}, which is RECOVERING (V37)"
            )


class SimulatedProducer(SimulatedClient):
    """Writes one batch after another, each until it is acknowledged: acks=all, idempotent or not, or acks=1."""

    name = "producer"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._acks = self.rng.choice((-1, -1, 1))
        self._is_idempotent = self._acks == -1 and self.rng.random() < 0.8
        self._producer = (-1, -1)
        self._sequences: dict[tuple[bytes, int], int] = {}
        self._written = 0
        options = self.world.options
        self._names_topic, self._has_keys = options.operate_s > 0, options.compaction

    async def one_request(self) -> None:
        if not self.places:
            await self.fetch_metadata()
        led = [each for each in self.places if each.leader >= 0]
        if not led:
            await self.back_off()
            return
        if self._is_idempotent and self._producer[0] < 0:
            self._producer = await self.wire.new_producer(self.rng.choice(self.nodes))
            self._sequences.clear()
            if self._producer[0] < 0:
                await self.back_off()
                return
        await self._write(self.rng.choice(led))

    def _now_ms(self) -> int:
        return WALL_START_MS + int(self.world.scheduler.now_s * 1000)

    async def _write(self, place: PartitionInfo) -> None:
        """Write one batch, until its outcome is known or its partition is deleted."""
        key, count = place.key, self.rng.randint(1, 3)
        rows = []
        for _ in range(count):
            self._written += 1
            value = f"{self.who}/{self._written}".encode().ljust(40, b".")
            if self._names_topic:
                value += place.topic_id.hex.encode()
            key_bytes = f"k{self.rng.randrange(4)}".encode() if self._has_keys else None
            rows.append((self._now_ms(), key_bytes, value, ()))
        sequence = self._sequences.get(key, 0) if self._is_idempotent else -1
        producer_id, producer_epoch = self._producer
        while True:
            batch = build_batch(rows, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence)
            code = await self._try(place, bytes(batch), producer_id, sequence)
            if code == 0:
                self._sequences[key] = sequence + count
                return
            if code in _FENCED_OUT:
                self._sequence_rejected(place, ErrorCode(code))
                self._producer = (-1, -1)
                return
            if self.must_rest:
                return
            if not self._is_idempotent and self.rng.random() < 0.3:
                return  # the outcome stays unknown
            await self.back_off()
            found = await self._find_leader(place)
            if found is None:
                self._producer = (-1, -1)
                return
            place = found

    async def _find_leader(self, place: PartitionInfo) -> PartitionInfo | None:
        """The partition with its current leader; None: it was deleted."""
        while not self.must_rest:
            try:
                await self.fetch_metadata()
            except _TROUBLE:
                await self.back_off()
                continue
            here = [each for each in self.places if each.key == place.key]
            if here and here[0].leader >= 0:
                return here[0]
            if not here and self.history(place) is not None and place.key not in self.checks.live_keys:
                return None
            await self.back_off()
        return None

    async def _try(self, place: PartitionInfo, batch: bytes, producer_id: int, sequence: int) -> int:
        """The error code; -1 if there was no response."""
        self.record_request(Operation.PRODUCE, place)
        try:
            result = await self.wire.produce(place, self._acks, batch, _PRODUCE_TIMEOUT_MS)
        except _TROUBLE as error:
            self.log_event(f"{place.topic}-{place.index} is not answered: {type(error).__name__}")
            self.wire.drop(place.leader)
            return -1
        code = result.error_code
        self.log_event(f"{place.topic}-{place.index} by n{place.leader}: {code} at {result.base_offset}")
        if code:
            return int(code)
        self.request_completed()
        history = self.history(place)
        # A batch that was committed just before its topic was deleted was never checked.
        if history is not None and place.key in self.checks.live_keys:
            if self._acks == -1 and sequence >= 0:
                history.acknowledged(result.base_offset, producer_id, sequence, self.who)
            history.record_acknowledged(result.base_offset, batch)
            if self._acks:
                self.checks.producer_acknowledged(place.key, place.leader, result.base_offset, batch)
        return 0

    def _sequence_rejected(self, place: PartitionInfo, code: ErrorCode) -> None:
        """Only an unclean election may lose producer state."""
        history = self.history(place)
        if history is not None and history.last_unclean < 0 and not history.log_start:
            raise InvariantBroken(f"{self.who}: {history.name} answered {code.name}, but nothing was lost")


class SimulatedConsumer(SimulatedClient):
    """Reads partitions from their start, and detects truncations as in KIP-320; or knows no epochs."""

    name = "consumer"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # A fetch with epochs also has the topic id; a name may belong to another topic by now.
        self._with_epochs = self.rng.random() < 0.75 or self.world.options.deletes
        self._sleep_chance = self.rng.choice((0.0, 0.0, 0.05))
        self._end_chance = self.rng.choice((0.1, 0.2, 0.5))
        self._read: dict[tuple[bytes, int], _Position] = {}
        self.truncations = 0

    async def one_request(self) -> None:
        if not self.places or self.rng.random() < 0.05:
            await self.fetch_metadata()
        led = [each for each in self.places if each.leader >= 0]
        if not led:
            await self.back_off()
            return
        if self._sleep_chance and self.rng.random() < self._sleep_chance:
            await asyncio.sleep(self.rng.uniform(0.5, 2.5))  # its leaders are then as old as its position
        place = self.rng.choice(led)
        position = self._read.get(place.key)
        try:
            if self.rng.random() < self._end_chance:
                code = await self._list_end_offset(place)
            elif position is None:
                code = await self._begin(place)
            elif self._with_epochs and position.led != (place.leader, place.epoch) and position.last is not None:
                code = await self._validate(place, position)
            else:
                code = await self._fetch(place, position)
        except _TROUBLE:
            self.wire.drop(place.leader)
            raise
        if code:
            self.log_event(f"{place.topic}-{place.index} by n{place.leader} in epoch {place.epoch}: {code}")
            await self.back_off()
        else:
            self.request_completed()

    async def _list_end_offset(self, place: PartitionInfo) -> int:
        """KIP-207."""
        self.record_request(Operation.LIST_OFFSETS, place)
        history = self.history(place)
        least = history.least_end(place.epoch) if history is not None else 0
        is_known = self.checks.knows(place.leader, place.key)
        code, offset, epoch = await self.wire.list_offset(place, LATEST)
        if history is None or code:
            return code
        if not is_known or place.key not in self.checks.live_keys:
            return 0  # the request has a name, which may belong to another topic there
        self.leader_responded(place)
        if place.epoch not in (-1, epoch):
            raise InvariantBroken(f"{self.who}: requested in epoch {place.epoch}, answered in {epoch} (E2)")
        if offset < least and epoch >= history.last_unclean:
            raise InvariantBroken(
                f"{self.who}: {history.name} ends at {offset} in epoch {epoch}, {least} was returned before (KIP-207)"
            )
        history.record_end(epoch, offset)
        return 0

    async def _begin(self, place: PartitionInfo) -> int:
        is_known = self.checks.knows(place.leader, place.key)
        code, offset, _ = await self.wire.list_offset(place, EARLIEST)
        if not code and is_known:  # the request has a name: otherwise this may be the start of another topic
            self.leader_responded(place)
            self._read[place.key] = _Position(offset)
        return code

    async def _validate(self, place: PartitionInfo, position: _Position) -> int:
        """E46-E49; with G6 an older epoch is a truncation, too."""
        assert position.last is not None, "it has read something"
        self.record_request(Operation.END_OF_EPOCH, place)
        code, epoch, end = await self.wire.end_of_epoch(place, position.last.epoch)
        if code:
            return code
        self.leader_responded(place)
        if epoch < position.last.epoch or end < position.offset:
            self._truncated(place, min(max(end, 0), position.offset))
        else:
            position.led = (place.leader, place.epoch)
        return 0

    def _truncated(self, place: PartitionInfo, offset: int) -> None:
        self.log_event(f"{place.topic}-{place.index} notices a truncation to {offset}")
        self.truncations += 1
        history, position = self.history(place), self._read[place.key]
        was_deleted = history is not None and position.offset < history.log_start
        if history is not None and history.last_unclean < 0 and place.key in self.checks.live_keys and not was_deleted:
            raise InvariantBroken(f"{self.who}: {history.name} was truncated to {offset} without an unclean election")
        self._read[place.key] = _Position(offset)

    async def _fetch(self, place: PartitionInfo, position: _Position) -> int:
        self.record_request(Operation.FETCH, place)
        fetched = await self.wire.fetch(
            place,
            position.offset,
            last_epoch=self._last_epoch(position),
            max_wait_ms=self.rng.choice((0, 100, 500, 1500)),
            with_epochs=self._with_epochs,
        )
        if fetched is None:
            return 0
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._truncated(place, 0)
            del self._read[place.key]
            return 0
        if fetched.error_code:
            return int(fetched.error_code)
        if self._with_epochs:
            self.leader_responded(place)
        if fetched.diverging_epoch is not None:
            self._truncated(place, min(max(fetched.diverging_epoch[1], 0), position.offset))
            return 0
        position.led = (place.leader, place.epoch)
        self._accept(place, position, bytes(fetched.records or b""))
        return 0

    @staticmethod
    def _last_epoch(position: _Position) -> int:
        """G5: each fetch has the epoch of the last record read."""
        return position.last.epoch if position.last is not None else -1

    def _accept(self, place: PartitionInfo, position: _Position, content: bytes) -> None:
        history = self.history(place)
        for header in iter_headers(content, allow_partial_tail=True):
            if header.next_offset <= position.offset:
                continue
            read = BatchId(header.base_offset, header.leader_epoch)
            if self._with_epochs and header.leader_epoch > place.epoch:
                raise InvariantBroken(
                    f"{self.who}: {place.topic}-{place.index} was read in epoch {place.epoch}, and returned a batch of"
                    f" epoch {header.leader_epoch} (E2, E7)"
                )
            is_next = header.base_offset == position.offset
            if history is not None:
                checks_order = is_next and (self._with_epochs or history.last_unclean < 0)
                batch = content[header.position : header.end_position]
                history.read(read, batch, position.last if checks_order else None, self.who)
            position.last, position.offset = read, header.next_offset


class _Position:
    """The position of a consumer, the last batch that it has read, and its leader."""

    __slots__ = ("last", "led", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.last: BatchId | None = None
        self.led = (-1, -1)
