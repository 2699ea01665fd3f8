"""Transactional clients of a simulated cluster: producers that share ids, copiers, readers of committed records.

Owns their requests, their retries, and the moments at which they die. What they sent and received goes into a
`ClientTransactions`, which is checked at the end of a run (`transaction_checks`).

Clients of one transactional id fence each other. A client that was fenced, that gets an error that ends its producer,
or that dies begins again with InitProducerId, and forgets what it had read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fenceline.errors import ErrorCode
from fenceline.node.net.peer_connection import NoSuchVersion
from fenceline.records.aborted import AbortedTransactions
from fenceline.records.batch import BatchHeader, iter_headers
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_batch
from fenceline.testing.history import ConsumerHistory, Partition
from fenceline.testing.simulation.brokers_clients import SimulatedClient
from fenceline.testing.simulation.brokers_wire import EARLIEST, PartitionInfo
from fenceline.testing.simulation.clock import WALL_START_MS
from fenceline.testing.simulation.operations import Operation
from fenceline.testing.simulation.transaction_wire import (
    TRANSACTION_V1,
    TRANSACTION_V2,
    ClientVersions,
    Identity,
    TransactionWire,
)
from fenceline.testing.transaction_history import (
    ClientOutcome,
    ClientTransaction,
    ClientTransactions,
    PolledValue,
    ReadPosition,
    SentPosition,
    SentValue,
    StableOffsetReport,
    partition_name,
)
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.fetch import FetchedPartition

_TROUBLE: Final = (ConnectionError, MalformedRequest, NoSuchVersion)
_PREFIX: Final = b"v"
IDS: Final = ("id-0", "id-1")
"""Of the transactors, which share them."""
COPY_ID: Final = "copy"
"""Of all copiers, and the name of their group."""
_PRODUCE_TIMEOUT_MS: Final = 1500
_TRIES: Final = 12
"""Requests until a client gives up what it was doing."""
_REPEAT_CHANCE: Final = 0.08
"""Chance that it ends a transaction once more, or the other way."""
_NO_RESPONSE: Final = -1
_RETRIABLE: Final = frozenset(
    {
        _NO_RESPONSE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)


class _Interrupted(Exception):
    """The client does not go on with its transaction. `restarts`: it must initialize its producer first."""

    def __init__(self, reason: str, *, restarts: bool) -> None:
        super().__init__(reason)
        self.restarts = restarts


def name_of(place: PartitionInfo) -> Partition:
    return partition_name(place.topic, place.topic_id.bytes, place.index)


def content_of(value: int) -> bytes:
    """The value of the record that carries this value of a history."""
    return _PREFIX + str(value).encode()


def values_of(content: bytes, header: BatchHeader) -> list[tuple[int, int]]:
    """(offset, value) of the records of a batch that belong to a history."""
    return [
        (record.offset, int(record.value[len(_PREFIX) :]))
        for record in decode_batch(content, header)
        if record.value is not None and record.value.startswith(_PREFIX)
    ]


class _Transactional(SimulatedClient):
    """What these clients have in common."""

    histories: ClientTransactions
    """Of all clients of the run; set before they live."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        world, sockets, _, number, _ = args
        self.wire: TransactionWire = TransactionWire(world, sockets, -1 - number)

    def any_node(self) -> int:
        return self.rng.choice(self.nodes)

    async def _fetch(self, place: PartitionInfo, offset: int, max_wait_ms: int) -> FetchedPartition | None:
        """None: no response that says something; the client knows no leaders any more then."""
        self.record_request(Operation.FETCH, place)
        try:
            fetched = await self.wire.fetch_committed(place, offset, max_wait_ms)
        except _TROUBLE:
            self.wire.drop(place.leader)
            await self.back_off()
            return None
        if fetched is None:
            return None
        if fetched.error_code:
            self.log_event(f"reads {place.topic}-{place.index} by n{place.leader}: {fetched.error_code}")
            await self.back_off()
            return None
        return fetched

    async def _start_of(self, place: PartitionInfo) -> int | None:
        try:
            code, offset, _ = await self.wire.list_offset(place, EARLIEST)
        except _TROUBLE:
            self.wire.drop(place.leader)
            await self.back_off()
            return None
        if code:
            await self.back_off()
            return None
        return offset


def visible(fetched: FetchedPartition, offset: int) -> tuple[list[tuple[int, int]], int]:
    """((offset, value) of the committed records from `offset` on, the next offset)."""
    content = bytes(fetched.records or b"")
    aborted = AbortedTransactions(fetched.aborted_transactions or ())
    found: list[tuple[int, int]] = []
    next_offset = offset
    for header in iter_headers(content, allow_partial_tail=True):
        hidden = aborted.hides(content, header)
        next_offset = max(next_offset, header.next_offset)
        if not hidden and not header.is_control:
            found += [each for each in values_of(content, header) if each[0] >= offset]
    return found, next_offset


class CommittedReader(_Transactional):
    """Reads the committed records of all partitions, and sometimes again from the start."""

    name = "reader"
    log_end: Callable[[PartitionInfo], int]
    """The end of the longest copy of a log now; set before it lives."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._position: dict[Partition, int] = {}
        self._history: ConsumerHistory | None = None
        self._at_end: dict[Partition, int] = {}

    async def one_request(self) -> None:
        if not self.places or self.rng.random() < 0.05:
            await self.fetch_metadata()
        led = [each for each in self.places if each.leader >= 0]
        if not led:
            await self.back_off()
            return
        history = self._history = self._history or self.histories.reader(self.who)
        place = self.rng.choice(led)
        where = name_of(place)
        is_moved = self.world.faults_active and self.rng.random() < 0.02
        if where not in self._position or is_moved:
            start = await self._start_of(place)
            if start is None:
                return
            self._position[where] = start
            history.positioned(where, start)
        offset = self._position[where]
        fetched = await self._fetch(place, offset, self.rng.choice((0, 100, 500)))
        if fetched is None:
            return
        self.histories.was_told(
            self.who, StableOffsetReport(where, place.epoch, fetched.last_stable_offset, self.log_end(place))
        )
        found, self._position[where] = visible(fetched, offset)
        for at, value in found:
            history.polled(where, at, value)
        if found:
            self.log_event(f"reads {place.topic}-{place.index} {', '.join(f'{value}@{at}' for at, value in found)}")
        self.request_completed()

    def begin_again(self) -> None:
        """Read all partitions from the start."""
        self._position.clear()

    def has_read(self, where: Partition, end: int) -> bool:
        return self._position.get(where, -1) >= end


class Transactor(_Transactional):
    """Reads and writes in transactions, which it commits, aborts, or leaves open."""

    name = "transactor"
    transactional_id: str

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        number = args[3]
        self.transactional_id = IDS[number % len(IDS)]
        options = self.world.options
        # An older client names topics: what it sends to a deleted one lands in the next one of the name.
        is_new = options.deletes or (options.transaction_version > 1 and self.rng.random() < 0.7)
        self._versions: ClientVersions = TRANSACTION_V2 if is_new else TRANSACTION_V1
        self._identity: Identity | None = None
        self._is_stale = False
        """Whether its epoch must be raised: a request of it may be under way."""
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition] = set()
        self._position: dict[Partition, int] = {}
        world, sockets, _, _, _ = args
        self._late = TransactionWire(world, sockets, -1 - number)
        """Connections of their own for requests that others may overtake."""
        self._under_way: set[asyncio.Future[None]] = set()
        self._death_chance = self.rng.choice((0.0, 0.02, 0.1))
        self._pause_chance = self.rng.choice((0.0, 0.05, 0.2))
        self._timeout_ms = self.rng.choice((500, 1000, 3000))

    async def one_request(self) -> None:
        """One transaction."""
        if not self.places:
            await self.fetch_metadata()
        if not [each for each in self.places if each.leader >= 0]:
            await self.back_off()
            return
        try:
            if self._identity is None or self._is_stale:
                await self._init()
            transaction = self.histories.begin(self.who, self.transactional_id)
            self._added.clear()
            await self.transact(transaction)
            self.request_completed()
        except _Interrupted as reason:
            self.log_event(f"is interrupted: {reason}")
            if reason.restarts:
                self._identity = None
                self._position.clear()
                self.restarted()
            self.request_completed()
            await asyncio.sleep(self.rng.random() * 0.3)

    def restarted(self) -> None:
        """It has forgotten everything."""

    async def transact(self, transaction: ClientTransaction) -> None:
        """The steps of one transaction, to its end."""
        for _ in range(self.rng.randint(1, 4)):
            if self.rng.random() < 0.35:
                await self._poll(transaction)
            else:
                await self.send(transaction, self.rng.choice(self._led()))
            await asyncio.sleep(self.rng.random() * 2 * self.world.options.think_ms / 1000)
            await self._may_pause()
        kind = self.rng.random()
        if kind < 0.07:
            raise _Interrupted("it leaves its transaction open", restarts=True)
        if kind < 0.17:
            await self._abort_while_sending(transaction, self.rng.choice(self._led()))
            return
        await self.end(transaction, commit=kind < 0.8)

    async def _may_pause(self) -> None:
        """Meanwhile another client takes over, or the time is out."""
        if self.rng.random() < self._pause_chance:
            await asyncio.sleep(self.rng.uniform(0.2, 1.5))

    async def _abort_while_sending(self, transaction: ClientTransaction, place: PartitionInfo) -> None:
        """The batch may reach its leader before the abort, after it, or after the next producer has begun."""
        if self._versions.adds_partitions and name_of(place) not in self._added:
            return await self.end(transaction, commit=False)
        identity = self._current()
        sequence, batch, _ = self._batch(transaction, place)
        self._sequences[name_of(place)] = sequence + 1
        sending = asyncio.ensure_future(
            self._late.produce_in_transaction(self._versions, identity, place, batch, _PRODUCE_TIMEOUT_MS)
        )
        try:
            await asyncio.sleep(self.rng.random() * 0.01)
            await self.end(transaction, commit=False)
        finally:
            found = await asyncio.gather(sending, return_exceptions=True)
            error = found[0]
            if isinstance(error, BaseException):
                if not isinstance(error, _TROUBLE):
                    raise error
                self._late.drop(place.leader)
                self._is_stale = True

    def _led(self) -> list[PartitionInfo]:
        led = [each for each in self.places if each.leader >= 0]
        if not led:
            raise _Interrupted("it knows no leader", restarts=True)
        return led

    def _may_die(self) -> None:
        if self.world.faults_active and self.rng.random() < self._death_chance:
            raise _Interrupted("it dies", restarts=True)

    # --- requests ----------------------------------------

    async def _until_decided(self, what: str, ask: Callable[[], Awaitable[int]], *, at_most: int = _TRIES) -> int:
        """The error code that is not to be retried. Raises _Interrupted after so many tries."""
        for _ in range(at_most):
            self._may_die()
            try:
                code = await ask()
            except _TROUBLE as error:
                self.log_event(f"{what} is not answered: {type(error).__name__}")
                code = _NO_RESPONSE
                self._is_stale = True
            else:
                self.log_event(f"{what}: {code}")
            if code not in _RETRIABLE:
                return code
            if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                self.wire.forget_coordinators()
            if self.must_rest:
                break
            await self.back_off()
        raise _Interrupted(f"{what} fails", restarts=True)

    async def _init(self) -> None:
        before = self._identity
        self._sequences.clear()
        asked = self.transactional_id, self._timeout_ms
        new: list[Identity] = []

        async def ask() -> int:
            code, identity = await self.wire.init_producer(self.any_node(), self._versions, *asked, before)
            new[:] = [identity]
            return code

        # Its epoch is raised whatever the answers were, so an older request of it is too late.
        code = await self._until_decided(f"init {self.transactional_id}", ask)
        if code:
            raise _Interrupted(f"init gets {code}", restarts=True)
        self._identity, self._is_stale = new[0], False
        self.log_event(f"is producer {new[0].producer_id} epoch {new[0].epoch}")

    def _current(self) -> Identity:
        assert self._identity is not None, "it is initialized"
        return self._identity

    def _rejected(self, what: str, code: int) -> _Interrupted:
        return _Interrupted(f"{what} gets {ErrorCode(code).name}", restarts=True)

    async def _find(self, place: PartitionInfo) -> PartitionInfo:
        """The partition with its current leader. Raises _Interrupted if it is not found."""
        for _ in range(_TRIES):
            if not self.places:
                try:
                    await self.fetch_metadata()
                except _TROUBLE:
                    await self.back_off()
                    continue
            here = [each for each in self.places if each.key == place.key]
            if here and here[0].leader >= 0:
                return here[0]
            if self.must_rest:
                break
            await self.back_off()
        raise _Interrupted(f"{place.topic}-{place.index} has no leader", restarts=True)

    async def send(self, transaction: ClientTransaction, place: PartitionInfo) -> None:
        """One batch, until it is acknowledged."""
        where, identity = name_of(place), self._current()
        if self._versions.adds_partitions and where not in self._added:
            code = await self._until_decided(
                f"add {place.topic}-{place.index}", lambda: self.wire.add_partition(self.any_node(), identity, place)
            )
            if code:
                await self._give_up(transaction, "add", code)
            self._added.add(where)
        sequence, batch, sent = self._batch(transaction, place)
        offset = -1

        async def ask() -> int:
            nonlocal offset
            current = await self._find(place)
            self.record_request(Operation.PRODUCE, current)
            try:
                result = await self.wire.produce_in_transaction(
                    self._versions, identity, current, batch, _PRODUCE_TIMEOUT_MS
                )
            except ConnectionError:
                self.wire.drop(current.leader)
                raise
            offset = result.base_offset
            return int(result.error_code)

        values = ", ".join(str(each.value) for each in sent)
        code = await self._until_decided(f"send {values} to {place.topic}-{place.index}", ask)
        if code:
            await self._give_up(transaction, "send", code)
        self._sequences[where] = sequence + len(sent)
        for at, each in enumerate(sent, offset):
            each.offset = at if offset >= 0 else each.offset

    def _batch(self, transaction: ClientTransaction, place: PartitionInfo) -> tuple[int, bytes, list[SentValue]]:
        """(base sequence, batch, what it has) of new values."""
        where, identity = name_of(place), self._current()
        sent = [transaction.sends(where, self.histories.next_value()) for _ in range(self.rng.randint(1, 2))]
        now_ms = WALL_START_MS + int(self.world.scheduler.now_s * 1000)
        sequence = self._sequences.get(where, 0)
        contents = [content_of(each.value) for each in sent]
        has_keys = self.world.options.compaction
        rows = [(now_ms, content if has_keys else None, content, ()) for content in contents]
        batch = build_batch(
            rows,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        return sequence, bytes(batch), sent

    async def _give_up(self, transaction: ClientTransaction, what: str, code: int) -> None:
        """An abortable error: abort. Any other: the producer has ended. Always raises _Interrupted."""
        if code == ErrorCode.TRANSACTION_ABORTABLE:
            await self.end(transaction, commit=False)
            raise _Interrupted(f"{what} gets TRANSACTION_ABORTABLE", restarts=False)
        raise self._rejected(what, code)

    async def end(self, transaction: ClientTransaction, *, commit: bool) -> None:
        identity = self._current()
        transaction.asks(commit=commit)
        what = "commit" if commit else "abort"
        following = identity
        has_work = bool(transaction.sent or transaction.positions)
        if not has_work:
            return

        async def ask() -> int:
            nonlocal following
            code, following = await self.wire.end(self.any_node(), self._versions, identity, commit=commit)
            return code

        if self.rng.random() < _REPEAT_CHANCE:
            self._end_later(identity, commit=commit)
        code = await self._until_decided(what, ask, at_most=2 * _TRIES)
        if code:
            raise self._rejected(what, code)
        transaction.outcome = ClientOutcome.COMMITTED if commit else ClientOutcome.ABORTED
        transaction.decided_at = self.histories.now()
        if self.rng.random() < _REPEAT_CHANCE:
            await self._end_again(identity, commit=self.rng.choice((commit, not commit)))
        if following != identity:
            self._sequences.clear()
            self._is_stale = False
        self._identity = following

    def _end_later(self, identity: Identity, *, commit: bool) -> None:
        """The request takes another way, and arrives when the one that was sent again has been answered."""
        node_id = self.any_node()
        self._is_stale = True

        async def ask() -> None:
            await asyncio.sleep(self.rng.random() * 0.2)
            try:
                await self._late.end(node_id, self._versions, identity, commit=commit)
            except _TROUBLE:
                self._late.drop(node_id)

        task = asyncio.ensure_future(ask())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _end_again(self, identity: Identity, *, commit: bool) -> None:
        """The same request again, or the opposite one: it must have no effect on what is decided."""
        try:
            code, _ = await self.wire.end(self.any_node(), self._versions, identity, commit=commit)
        except _TROUBLE:
            self._is_stale = True
        else:
            self.log_event(f"{'commit' if commit else 'abort'} again: {code}")

    async def _poll(self, transaction: ClientTransaction) -> None:
        place = self.rng.choice(self._led())
        where = name_of(place)
        if where not in self._position:
            start = await self._start_of(place)
            if start is None:
                return
            self._position[where] = start
        found = await self.poll_from(place, self._position[where])
        if found is not None:
            values, self._position[where] = found
            transaction.polled += [PolledValue(where, at, value) for at, value in values]

    async def poll_from(self, place: PartitionInfo, offset: int) -> tuple[list[tuple[int, int]], int] | None:
        """((offset, value) of committed records, next offset); None: no response."""
        fetched = await self._fetch(place, offset, self.rng.choice((0, 100)))
        if fetched is None:
            return None
        found, next_offset = visible(fetched, offset)
        if found:
            self.log_event(f"polls {place.topic}-{place.index} {', '.join(f'{value}@{at}' for at, value in found)}")
        return found, next_offset


class Copier(Transactor):
    """Copies the partitions of the first topic into the others: records and the group's position in one transaction."""

    name = "copier"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.transactional_id = self._group = COPY_ID

    async def transact(self, transaction: ClientTransaction) -> None:
        sources = [each for each in self._led() if each.topic == "t0"]
        targets = [each for each in self._led() if each.topic != "t0"]
        if not sources or not targets:
            await asyncio.sleep(0.1)
            return
        source = self.rng.choice(sources)
        offset = await self._stable_position(source)
        found = await self.poll_from(source, offset)
        if found is None or not found[0]:
            await asyncio.sleep(0.1)
            return
        values = found[0][: self.rng.randint(1, 5)]
        next_offset = values[-1][0] + 1 if len(values) < len(found[0]) else found[1]
        transaction.polled += [PolledValue(name_of(source), at, value) for at, value in values]
        for _ in values:
            await self.send(transaction, self.rng.choice(targets))
        await self._may_pause()
        await self._move(transaction, source, next_offset)
        await self.end(transaction, commit=self.rng.random() < 0.9)

    async def _stable_position(self, place: PartitionInfo) -> int:
        order = self.histories.now()
        offset = -1

        async def ask() -> int:
            nonlocal offset
            code, offset = await self.wire.stable_position(self.any_node(), self._group, place)
            return code

        code = await self._until_decided(f"position of {self._group} in {place.topic}-{place.index}", ask)
        if code:
            raise self._rejected("position", code)
        self.histories.read_positions.append(ReadPosition(self._group, name_of(place), max(offset, 0), order))
        return max(offset, 0)

    async def _move(self, transaction: ClientTransaction, place: PartitionInfo, offset: int) -> None:
        identity = self._current()
        if self._versions.adds_partitions:
            code = await self._until_decided(
                "add offsets", lambda: self.wire.add_offsets(self.any_node(), identity, self._group)
            )
            if code:
                await self._give_up(transaction, "add offsets", code)
        transaction.positions.append(SentPosition(self._group, name_of(place), offset))
        code = await self._until_decided(
            f"move {self._group} in {place.topic}-{place.index} to {offset}",
            lambda: self.wire.commit_position(self.any_node(), self._versions, identity, self._group, place, offset),
        )
        if code:
            await self._give_up(transaction, "move", code)
        transaction.positions[-1] = transaction.positions[-1]._replace(answered_at=self.histories.now())
