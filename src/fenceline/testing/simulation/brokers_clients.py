"""Clients of a simulated cluster: producers and consumers, each with one request at a time.

Owns what they ask, how they try again, and what they rely on. What they are told goes to the histories at once, which
know whether it may be so.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from random import Random
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import ErrorCode
from fenceline.node.peer_connection import NoSuchVersion
from fenceline.records.batch import iter_headers
from fenceline.records.build import build_batch
from fenceline.testing.simulation.brokers_wire import EARLIEST, LATEST, Place, Wire
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.clock import WALL_START_MS
from fenceline.testing.simulation.data_history import Place as BatchPlace
from fenceline.testing.simulation.operations import Operation
from fenceline.testing.simulation.sockets import Sockets
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.testing.simulation.data_checks import DataChecks
    from fenceline.testing.simulation.data_history import History
    from fenceline.testing.simulation.world import World

_TROUBLE: Final = (ConnectionError, MalformedRequest, NoSuchVersion)
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
ENOUGH_S: Final = 0.5
"""How long a client that has enough looks away."""
_PRODUCE_TIMEOUT_MS: Final = 1500
_FENCED_OUT: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    }
)
"""What a producer with sequence numbers can not go on from."""


class Client(ABC):
    """What all clients have in common: they know leaders, and ask again after a while."""

    name = "client"

    def __init__(self, world: World, sockets: Sockets, checks: DataChecks, number: int, nodes: tuple[int, ...]) -> None:
        self.done = 0
        self.must_rest = False
        self.is_waiting = False
        self.rng: Random = world.rng(f"{self.name} {number}")
        self.checks = checks
        self.wire = Wire(world, sockets, -1 - number)
        self.who = f"{self.name}{number}"
        self.places: list[Place] = []
        self.enough = -1
        """Once it has got so many requests done, it asks no more; -1: it never has enough."""
        self.world = world
        self.nodes = nodes
        self._misses = 0
        self._newest: dict[tuple[bytes, int], Place] = {}

    def tell(self, what: str) -> None:
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
                await self.one()
            except _TROUBLE as error:
                self.tell(f"is not answered: {type(error).__name__}")
                await self.missed()
            except InvariantBroken as error:
                self.world.scheduler.fail(error)
                return
            self.is_waiting = False
            await asyncio.sleep(self.rng.random() * 2 * think_s + 0.0001)

    def quiet_s(self) -> float:
        """Seconds until it may ask again; 0.0: now."""
        if 0 <= self.enough <= self.done:
            return ENOUGH_S
        world = self.world
        return world.tide.quiet_s(world.scheduler.now_s) if world.tide is not None and world.faults_strike else 0.0

    @abstractmethod
    async def one(self) -> None:
        """One request, or what belongs together."""

    async def missed(self) -> None:
        """What it knows may be old: ask anybody anew, after a pause that grows."""
        self._misses += 1
        await asyncio.sleep(min(_PAUSE_S * 1.5**self._misses, _LONGEST_PAUSE_S))
        self.places = []

    async def learn(self) -> None:
        """Leaders by the word of any broker, unless it knows less than another did (E57). Raises ConnectionError."""
        node_id = self.rng.choice(self.nodes)
        try:
            told = await self.wire.metadata(node_id)
        except _TROUBLE:
            self.wire.drop(node_id)
            raise
        seen = self._newest
        for place in told:
            if place.epoch >= seen.get(place.key, place).epoch:
                seen[place.key] = place
        self.places = [seen[place.key] for place in told]

    def served(self) -> None:
        self.done += 1
        self._misses = 0

    def begins(self, operation: Operation, place: Place) -> None:
        """A request of this partition is sent."""
        self.world.coverage.operation(operation, place.topic)

    def history(self, place: Place) -> History | None:
        """None: the topic is gone."""
        return self.checks.histories.get(place.key)

    def answered_by_leader(self, place: Place) -> None:
        """A leader has answered without an error: then it is not RECOVERING (V37)."""
        history = self.history(place)
        if history is not None and history.recovering_epoch == place.epoch >= 0:
            raise InvariantBroken(f"{self.who}: {history.name} was served in epoch {place.epoch}, RECOVERING (V37)")


class Producer(Client):
    """Writes one batch after the other, each until it is acknowledged: acks=all with sequence numbers, or acks=1."""

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

    async def one(self) -> None:
        if not self.places:
            await self.learn()
        led = [each for each in self.places if each.leader >= 0]
        if not led:
            await self.missed()
            return
        if self._is_idempotent and self._producer[0] < 0:
            self._producer = await self.wire.new_producer(self.rng.choice(self.nodes))
            self._sequences.clear()
            if self._producer[0] < 0:
                await self.missed()
                return
        await self._write(self.rng.choice(led))

    def _now_ms(self) -> int:
        return WALL_START_MS + int(self.world.scheduler.now_s * 1000)

    async def _write(self, place: Place) -> None:
        """One batch, until its fate is known or its partition is gone."""
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
                self._lost_its_sequence(place, ErrorCode(code))
                self._producer = (-1, -1)
                return
            if self.must_rest:
                return
            if not self._is_idempotent and self.rng.random() < 0.3:
                return  # whether it was written is not known, and nobody asks
            await self.missed()
            found = await self._look_up(place)
            if found is None:
                self._producer = (-1, -1)
                return
            place = found

    async def _look_up(self, place: Place) -> Place | None:
        """The same partition as it is led now; None: it is gone."""
        while not self.must_rest:
            try:
                await self.learn()
            except _TROUBLE:
                await self.missed()
                continue
            here = [each for each in self.places if each.key == place.key]
            if here and here[0].leader >= 0:
                return here[0]
            if not here and self.history(place) is not None and place.key not in self.checks.live_keys:
                return None
            await self.missed()
        return None

    async def _try(self, place: Place, batch: bytes, producer_id: int, sequence: int) -> int:
        """The error code; -1 where there was no answer."""
        self.begins(Operation.PRODUCE, place)
        try:
            result = await self.wire.produce(place, self._acks, batch, _PRODUCE_TIMEOUT_MS)
        except _TROUBLE as error:
            self.tell(f"{place.topic}-{place.index} is not answered: {type(error).__name__}")
            self.wire.drop(place.leader)
            return -1
        code = result.error_code
        self.tell(f"{place.topic}-{place.index} by n{place.leader}: {code} at {result.base_offset}")
        if code:
            return int(code)
        self.served()
        history = self.history(place)
        # What a topic's deletion committed a moment before is gone, and was never checked.
        if history is not None and place.key in self.checks.live_keys:
            if self._acks == -1 and sequence >= 0:
                history.acknowledged(result.base_offset, producer_id, sequence, self.who)
            history.told_written(result.base_offset, batch)
            if self._acks:
                self.checks.answered(place.key, place.leader, result.base_offset, batch)
        return 0

    def _lost_its_sequence(self, place: Place, code: ErrorCode) -> None:
        """Only what an unclean election has cost may be missed."""
        history = self.history(place)
        if history is not None and history.last_unclean < 0 and not history.log_start:
            raise InvariantBroken(f"{self.who}: {history.name} answers {code.name}, nothing was lost")


class Consumer(Client):
    """Reads partitions from their beginning, and notices truncations as KIP-320 has it; or knows no epochs."""

    name = "consumer"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # A fetch that names epochs names the topic's id, too; a name may be another topic's by now.
        self._with_epochs = self.rng.random() < 0.75 or self.world.options.deletes
        self._naps = self.rng.choice((0.0, 0.0, 0.05))
        self._asks_ends = self.rng.choice((0.1, 0.2, 0.5))
        self._read: dict[tuple[bytes, int], _Position] = {}
        self.noticed = 0

    async def one(self) -> None:
        if not self.places or self.rng.random() < 0.05:
            await self.learn()
        led = [each for each in self.places if each.leader >= 0]
        if not led:
            await self.missed()
            return
        if self._naps and self.rng.random() < self._naps:
            await asyncio.sleep(self.rng.uniform(0.5, 2.5))  # what it knows of leaders is as old as its position
        place = self.rng.choice(led)
        position = self._read.get(place.key)
        try:
            if self.rng.random() < self._asks_ends:
                code = await self._ask_end(place)
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
            self.tell(f"{place.topic}-{place.index} by n{place.leader} in epoch {place.epoch}: {code}")
            await self.missed()
        else:
            self.served()

    async def _ask_end(self, place: Place) -> int:
        """KIP-207."""
        self.begins(Operation.LIST_OFFSETS, place)
        history = self.history(place)
        least = history.least_end(place.epoch) if history is not None else 0
        is_known = self.checks.knows(place.leader, place.key)
        code, offset, epoch = await self.wire.list_offset(place, LATEST)
        if history is None or code:
            return code
        if not is_known or place.key not in self.checks.live_keys:
            return 0  # asked by its name, which was another topic's there, or is by now
        self.answered_by_leader(place)
        if place.epoch not in (-1, epoch):
            raise InvariantBroken(f"{self.who}: asked in epoch {place.epoch}, answered in {epoch} (E2)")
        if offset < least and epoch >= history.last_unclean:
            raise InvariantBroken(
                f"{self.who}: {history.name} ends at {offset} in epoch {epoch}, {least} was told before (KIP-207)"
            )
        history.tell_end(epoch, offset)
        return 0

    async def _begin(self, place: Place) -> int:
        is_known = self.checks.knows(place.leader, place.key)
        code, offset, _ = await self.wire.list_offset(place, EARLIEST)
        if not code and is_known:  # asked by name: else it is where another topic begins
            self.answered_by_leader(place)
            self._read[place.key] = _Position(offset)
        return code

    async def _validate(self, place: Place, position: _Position) -> int:
        """E46-E49, with G6: an older epoch is a truncation, too."""
        assert position.last is not None, "it has read something"
        self.begins(Operation.END_OF_EPOCH, place)
        code, epoch, end = await self.wire.end_of_epoch(place, position.last.epoch)
        if code:
            return code
        self.answered_by_leader(place)
        if epoch < position.last.epoch or end < position.offset:
            self._truncated(place, min(max(end, 0), position.offset))
        else:
            position.led = (place.leader, place.epoch)
        return 0

    def _truncated(self, place: Place, offset: int) -> None:
        self.tell(f"{place.topic}-{place.index} notices a truncation to {offset}")
        self.noticed += 1
        history, position = self.history(place), self._read[place.key]
        was_deleted = history is not None and position.offset < history.log_start
        if history is not None and history.last_unclean < 0 and place.key in self.checks.live_keys and not was_deleted:
            raise InvariantBroken(f"{self.who}: {history.name} was truncated to {offset}, no election was unclean")
        self._read[place.key] = _Position(offset)

    async def _fetch(self, place: Place, position: _Position) -> int:
        self.begins(Operation.FETCH, place)
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
            self.answered_by_leader(place)
        if fetched.diverging_epoch is not None:
            self._truncated(place, min(max(fetched.diverging_epoch[1], 0), position.offset))
            return 0
        position.led = (place.leader, place.epoch)
        self._take(place, position, bytes(fetched.records or b""))
        return 0

    @staticmethod
    def _last_epoch(position: _Position) -> int:
        """G5: what it has read goes with each fetch."""
        return position.last.epoch if position.last is not None else -1

    def _take(self, place: Place, position: _Position, content: bytes) -> None:
        history = self.history(place)
        for header in iter_headers(content, allow_partial_tail=True):
            if header.next_offset <= position.offset:
                continue
            read = BatchPlace(header.base_offset, header.leader_epoch)
            if self._with_epochs and header.leader_epoch > place.epoch:
                raise InvariantBroken(
                    f"{self.who}: {place.topic}-{place.index} was read in epoch {place.epoch}, and given a batch of"
                    f" epoch {header.leader_epoch} (E2, E7)"
                )
            is_next = header.base_offset == position.offset
            if history is not None:
                checks_order = is_next and (self._with_epochs or history.last_unclean < 0)
                batch = content[header.position : header.end_position]
                history.read(read, batch, position.last if checks_order else None, self.who)
            position.last, position.offset = read, header.next_offset


class _Position:
    """Where a consumer reads next, the last batch that it has read, and from whom."""

    __slots__ = ("last", "led", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.last: BatchPlace | None = None
        self.led = (-1, -1)
