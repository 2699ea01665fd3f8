"""Quorums in one process on virtual time: lost, late, duplicated and reordered messages, partitions, crashes, restarts.

One seed is one history, the same each time. `Cluster.run` has a safety phase, in which anything may fail at any moment
and invariants are checked at every step, and a liveness phase, in which everything is repaired and the cluster must
agree and make progress.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from fenceline.errors import ErrorCode
from fenceline.quorum.control_records import KRaftVoters, LeaderChange
from fenceline.quorum.duties import (
    AdvanceHighWatermark,
    Answer,
    AppendControlBatch,
    AppendFetched,
    BeginDownload,
    DropDownload,
    Duty,
    Lead,
    LoadSnapshot,
    LogLine,
    Peer,
    PersistElection,
    Send,
    ServePiece,
    ServeRecords,
    StopLeading,
    Truncate,
    VerifyAndFreeze,
    WritePiece,
)
from fenceline.quorum.log_view import VotersAt
from fenceline.quorum.messages import (
    AddRaftVoterRequest,
    ApiVersionsRequest,
    ApiVersionsResponse,
    RemoveRaftVoterRequest,
    RequestMessage,
    ResponseMessage,
    VoteRequest,
    VoteResponse,
)
from fenceline.quorum.quorum import Quorum
from fenceline.quorum.roles import Leader
from fenceline.quorum.settings import Address, QuorumSettings
from tests.quorum.invariants import Broken, Checker, Node
from tests.quorum.memory_log import LEVELS, MemoryLog, Partial, chain, voter
from tests.quorum.options import Options


class _Crash(Exception):
    """The node crashes between two duties."""


CLUSTER_ID: Final = "c"


class Cluster:
    """See the module docstring."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rng = Random(options.seed * 7919 + 1)
        self.now_ms = 0
        self.checker = Checker()
        self.nodes: dict[int, Node] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._blocked: set[tuple[int, int]] = set()
        self._calm = False
        self._answers: dict[Any, Callable[[ResponseMessage], None]] = {}
        self._dropped: dict[Any, Callable[[], None]] = {}
        """Callbacks that report a lost connection to the sender, by token."""
        self._votes_asked: dict[Any, VoteRequest] = {}
        self._value = 0
        self.steps = 0
        first = tuple(voter(node_id) for node_id in range(1, options.voters + 1))
        for node_id in range(1, options.voters + options.observers + 1):
            is_first = node_id <= options.voters
            bootstrap = VotersAt(-1, 1, first) if options.dynamic and is_first else None
            self.nodes[node_id] = Node(node_id, voter(node_id), MemoryLog(bootstrap))
        self.settings = QuorumSettings(
            CLUSTER_ID,
            static_voters=() if options.dynamic else first,
            bootstrap_servers=tuple(Address(f"n{each.voter_id}", each.voter_id) for each in first),
            fetch_snapshot_max_bytes=40,
            max_parked_fetches=4,
            election_timeout_ms=options.election_timeout_ms,
            fetch_max_bytes=4096 * options.records_per_fetch,
        )

    # -- running -----------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, do: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._sequence, do))

    def run_until(self, end_ms: int, done: Callable[[], bool] | None = None) -> bool:
        """Whether `done` became true (checked every 10 ms)."""
        next_look = self.now_ms
        while self._events and self._events[0][0] <= end_ms:
            at_ms, _, do = heapq.heappop(self._events)
            self.now_ms = at_ms
            self.steps += 1
            do()
            if done is not None and self.now_ms >= next_look:
                next_look = self.now_ms + 10
                if done():
                    return True
        self.now_ms = end_ms
        return done is not None and done()

    def run(self) -> None:
        options = self.options
        for node in self.nodes.values():
            self.start(node)
        self.at(10, self._client)
        self.at(options.fault_every_ms, self._fault)
        if options.dynamic:
            self.at(1500, self._admin)
        self.run_until(options.safety_ms)
        self._repair()
        if not self.run_until(self.now_ms + options.liveness_ms, self._has_converged):
            roles = {node_id: str(node.quorum and node.quorum.role) for node_id, node in self.nodes.items()}
            raise Broken(f"no progress: {roles}, committed {len(self.checker.committed)}")

    def stop_faults(self) -> None:
        """Start all nodes and inject no faults."""
        self._calm = True
        for node in self.nodes.values():
            self.start(node)
        self.at(10, self._client)

    def leader(self) -> Node | None:
        """The node that has committed a record of the newest epoch."""
        leading = [node for node in self.nodes.values() if node.quorum is not None and node.leads == node.quorum.epoch]
        return max(leading, key=lambda node: node.leads, default=None)

    def _repair(self) -> None:
        self._calm = True
        self._blocked.clear()
        for node in self.nodes.values():
            if node.quorum is None:
                self.start(node)
        self._goal = len(self.checker.committed) + 5

    def _has_converged(self) -> bool:
        """All nodes agree, and new records are committed everywhere."""
        quorums = [node.quorum for node in self.nodes.values() if node.quorum is not None]
        epochs = {quorum.epoch for quorum in quorums}
        leaders = {quorum.leader_id for quorum in quorums}
        return (
            len(quorums) == len(self.nodes)
            and len(epochs) == len(leaders) == 1
            and leaders != {-1}
            and all(node.high_watermark >= self._goal for node in self.nodes.values())
        )

    # -- machines ----------------------------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        node.incarnation += 1
        node.leads = -1
        node.ticks_at = None
        node.flush_under_way = False
        latest = node.log.latest_snapshot
        if latest is not None and latest.is_beyond(node.log.end):
            node.log.load_snapshot(latest)
        node.high_watermark = 0 if latest is None else latest.end_offset
        node.quorum = Quorum(node.local, node.log, self.settings, Random(self.rng.getrandbits(32)))
        self.call(node, lambda quorum: quorum.start(self.now_ms, node.log.election))

    def crash(self, node: Node) -> None:
        if node.quorum is None:
            return
        node.quorum = None
        node.incarnation += 1
        tail = node.log.end_offset - node.log.flushed_offset
        node.log.crash(node.log.flushed_offset + (self.rng.randrange(tail + 1) if tail else 0))
        if self.rng.random() < 0.3:
            node.log.partial = None
        for token in [each for each in self._dropped if each[0] == node.node_id]:
            self._answers.pop(token)
            lost = self._dropped.pop(token)
            if self._calm or self.rng.random() < 0.8:
                lost()

    def call(self, node: Node, do: Callable[[Quorum], list[Duty]]) -> None:
        """One call, its duties, and the calls that report them."""
        quorum = node.quorum
        if quorum is None:
            return
        epoch = quorum.epoch
        try:
            reports = self._perform(node, do(quorum))
        except _Crash:
            self.crash(node)
            self.at(self._away_ms(), lambda: self.start(node) if node.quorum is None else None)
            return
        if quorum.epoch < epoch:
            raise Broken(f"node {node.node_id}: epoch {epoch} to {quorum.epoch}")
        for report in reports:
            self.call(node, report)
        if node.quorum is quorum:
            self._arm(node, quorum)

    def _arm(self, node: Node, quorum: Quorum) -> None:
        deadline = quorum.next_deadline_ms
        if deadline is None or (node.ticks_at is not None and self.now_ms < node.ticks_at <= deadline):
            return
        at_ms = node.ticks_at = max(deadline, self.now_ms + 1)

        def tick() -> None:
            if node.quorum is quorum and node.ticks_at == at_ms:
                node.ticks_at = None
                self.call(node, lambda running: running.tick(self.now_ms))
                deadline = None if node.quorum is None else node.quorum.next_deadline_ms
                node.spins = node.spins + 1 if deadline is not None and deadline <= self.now_ms else 0
                if node.spins > 3:
                    raise Broken(f"node {node.node_id} wants to be called all the time")

        self.at(at_ms - self.now_ms, tick)

    def later(self, node: Node, delay_ms: int, do: Callable[[Quorum], list[Duty]]) -> None:
        """A call of this incarnation."""
        incarnation = node.incarnation
        self.at(delay_ms, lambda: self.call(node, do) if node.incarnation == incarnation else None)

    # -- duties ------------------------------------------------------------------------------------------------------

    def _perform(self, node: Node, duties: list[Duty]) -> list[Callable[[Quorum], list[Duty]]]:
        reports: list[Callable[[Quorum], list[Duty]]] = []
        chance = 0.0 if self._calm else self.options.crash_in_duties
        for duty in duties:
            if chance and self.rng.random() < chance:
                raise _Crash
            self._do(node, duty, reports)
        return reports

    def _do(self, node: Node, duty: Duty, reports: list[Callable[[Quorum], list[Duty]]]) -> None:
        log = node.log
        match duty:
            case PersistElection(state):
                if log.election is not None and state.epoch < log.election.epoch:
                    raise Broken(f"node {node.node_id} persists {state} after {log.election}")
                log.election = state
            case AppendControlBatch(epoch, records):
                self._append_control(node, epoch, list(records))
                reports.append(lambda quorum: quorum.appended(self.now_ms))
                self._flush(node)
            case AppendFetched(fetched, base_offset, leader_epoch, _):
                if base_offset != log.end_offset:
                    raise Broken(f"node {node.node_id} appends at {base_offset}, its log ends at {log.end_offset}")
                for entry in fetched:  # type: ignore[attr-defined]
                    if entry.epoch > leader_epoch:
                        break
                    log.append_entry(entry)
                    self.checker.appended(entry)
                    if entry.chain != log.chain_at(entry.offset + 1):
                        raise Broken("a record does not follow on the one before")
                self._check_chain(node, base_offset)
                reports.append(lambda quorum: quorum.appended(self.now_ms))
                self._flush(node)
            case Truncate(end_offset):
                log.truncate(end_offset)
                reports.append(lambda quorum: quorum.truncated(self.now_ms))
            case Send(destination, request_id, message):
                self._send(node, destination, request_id, message)
            case Answer(token, message):
                self._answer(token, message)
            case ServeRecords(token, offset, max_bytes, end_offset, answer):
                found = tuple(log.at(at) for at in range(offset, min(end_offset, log.end_offset))[: max_bytes // 4096])
                self._answer(token, replace(answer, records=found))
            case ServePiece(token, snapshot_id, position, max_bytes, piece):
                content = log.snapshots.get(snapshot_id)
                if content is None:
                    self._answer(token, replace(piece, partition_error_code=ErrorCode.SNAPSHOT_NOT_FOUND))
                else:
                    self._answer(token, replace(piece, unaligned_records=content[position : position + max_bytes]))
            case AdvanceHighWatermark(offset):
                self.checker.advanced(node, offset)
                assert node.quorum is not None, "the node runs"
                if isinstance(node.quorum.role, Leader):
                    self.checker.majority(node, offset, self.nodes)
                node.high_watermark = offset
            case Lead(epoch, _):
                node.leads = epoch
            case StopLeading(_):
                node.leads = -1
            case LoadSnapshot(snapshot_id):
                if node.quorum is not None and isinstance(node.quorum.role, Leader):
                    raise Broken(f"leader {node.node_id} loads a snapshot (Q55)")
                log.load_snapshot(snapshot_id)
                reports.append(lambda quorum: quorum.snapshot_loaded(self.now_ms))
            case LogLine():
                node.said.append(duty)
            case BeginDownload() | WritePiece() | VerifyAndFreeze() | DropDownload():
                self._download(node, duty)

    def _check_chain(self, node: Node, offset: int) -> None:
        """The fetched entries continue this log."""
        log = node.log
        if offset < log.end_offset:
            entry = log.at(offset)
            if entry.chain != chain(log.chain_at(offset), entry.epoch, entry.payload):
                raise Broken(f"node {node.node_id}: the record at {offset} does not continue its log")

    def _append_control(self, node: Node, epoch: int, records: list[Any]) -> None:
        log = node.log
        if any(isinstance(record, LeaderChange) for record in records):
            self.checker.elected(node, epoch)
        for record in records:
            payload: object = record
            if isinstance(record, KRaftVoters):
                before = log.voters
                payload = VotersAt(log.end_offset, 1, record.voters)
                if before is not None:
                    committed = before.offset < len(self.checker.committed)
                    self.checker.voters_change(before.voters, committed, record.voters)
            log.append(epoch, [payload])
            self.checker.appended(log.entries[-1])

    def _flush(self, node: Node) -> None:
        if node.flush_under_way:
            return
        node.flush_under_way = True
        end = node.log.end
        incarnation = node.incarnation

        def done() -> None:
            if node.incarnation != incarnation:
                return
            node.flush_under_way = False
            log = node.log
            if log.start_offset <= end.offset <= log.end_offset and log._end_at(end.offset) == end:
                log.flushed_offset = max(log.flushed_offset, end.offset)
            self.call(node, lambda quorum: quorum.flushed(self.now_ms))
            if log.flushed_offset < log.end_offset and node.quorum is not None:
                self._flush(node)

        self.at(self.rng.randrange(self.options.flush_ms + 1), done)

    def _download(self, node: Node, duty: Duty) -> None:
        log = node.log
        delay = self.rng.randrange(5)
        match duty:
            case BeginDownload(snapshot_id, source):
                partial = log.partial
                if partial is None or (partial.snapshot_id, partial.source) != (snapshot_id, source):
                    partial = log.partial = Partial(snapshot_id, source)
                size = len(partial.content)
                self.later(node, delay, lambda quorum: quorum.download_begun(self.now_ms, snapshot_id, size))
            case WritePiece(snapshot_id, position, content):
                assert isinstance(content, bytes), "chunks are bytes here"
                if self.rng.random() < 0.02 and not self._calm:
                    content = b"?" * len(content)
                partial = log.partial
                if partial is None or len(partial.content) != position:
                    raise Broken(f"node {node.node_id} writes a piece at {position}")
                partial.content += content
                end = len(partial.content)
                self.later(node, delay, lambda quorum: quorum.piece_written(self.now_ms, snapshot_id, end))
            case VerifyAndFreeze(snapshot_id, size):
                partial = log.partial
                assert partial is not None, "it is being downloaded"
                content, log.partial = partial.content, None
                if b"?" in content or len(content) != size:
                    self.later(node, delay, lambda quorum: quorum.download_failed(self.now_ms, snapshot_id, "CRC"))
                else:
                    log.snapshots[snapshot_id] = content
                    self.later(node, delay, lambda quorum: quorum.snapshot_frozen(self.now_ms, snapshot_id))
            case DropDownload():
                log.partial = None

    # -- the network -------------------------------------------------------------------------------------------------

    def _delay(self) -> int:
        if not self._calm and self.rng.random() < self.options.slow:
            return self.rng.randrange(1, 1500)
        return self.rng.randrange(1, 6)

    def _lost(self, source: int, target: int) -> bool:
        return (source, target) in self._blocked or (not self._calm and self.rng.random() < self.options.loss)

    def _send(self, node: Node, destination: Peer, request_id: int, message: RequestMessage) -> None:
        target = self.nodes[destination.port]
        copies = 2 if not self._calm and self.rng.random() < self.options.doubling else 1
        for _ in range(copies):
            if not self._lost(node.node_id, target.node_id):
                self._deliver(node, target, request_id, message)

    def _deliver(self, node: Node, target: Node, request_id: int, message: RequestMessage) -> None:
        incarnation = node.incarnation

        def arrive() -> None:
            if target.quorum is None:
                self.later_of(node, incarnation, lambda quorum: quorum.no_response(self.now_ms, request_id, True))
                return
            if isinstance(message, ApiVersionsRequest):
                reply(ApiVersionsResponse(k_raft_version_feature=LEVELS))
                return
            self._sequence += 1
            token = (target.node_id, target.incarnation, self._sequence)
            self._answers[token] = reply
            self._dropped[token] = lost
            if isinstance(message, VoteRequest) and not message.pre_vote:
                self.checker.voted(message.replica_id, message.replica_epoch, message.replica_id)
                self._votes_asked[token] = message
            self.call(target, lambda quorum: quorum.request(self.now_ms, token, message))

        def lost() -> None:
            self.later_of(node, incarnation, lambda quorum: quorum.no_response(self.now_ms, request_id, False))

        def reply(response: ResponseMessage) -> None:
            if not self._lost(target.node_id, node.node_id):
                self.later_of(node, incarnation, lambda quorum: quorum.response(self.now_ms, request_id, response))

        self.at(self._delay(), arrive)

    def later_of(self, node: Node, incarnation: int, do: Callable[[Quorum], list[Duty]]) -> None:
        self.at(self._delay(), lambda: self.call(node, do) if node.incarnation == incarnation else None)

    def _answer(self, token: Any, message: ResponseMessage) -> None:
        reply = self._answers.pop(token, None)
        self._dropped.pop(token, None)
        asked = self._votes_asked.pop(token, None)
        if asked is not None and isinstance(message, VoteResponse) and message.vote_granted:
            self.checker.voted(token[0], asked.replica_epoch, asked.replica_id)
        if reply is None:
            raise Broken(f"request {token} is answered twice")
        reply(message)

    # -- events --------------------------------------------------------------------------------------------------------

    def _client(self) -> None:
        for node in self.nodes.values():
            if node.quorum is not None and node.leads == node.quorum.epoch and node.quorum.is_leader:
                self._value += 1
                node.log.append(node.quorum.epoch, [self._value])
                self.checker.appended(node.log.entries[-1])
                self._flush(node)
                self.call(node, lambda quorum: quorum.appended(self.now_ms))
        self.at(self.rng.randrange(20, 150), self._client)

    def _fault(self) -> None:
        if self._calm:
            return
        node = self.rng.choice(list(self.nodes.values()))
        kind = self.rng.randrange(9)
        if kind <= 1:
            self._stop_and_start(node)
        elif kind == 2:
            for leader in list(self.nodes.values()):
                if leader.quorum is not None and leader.quorum.is_leader:
                    self._stop_and_start(leader)
        elif kind == 3:
            others = [each for each in self.nodes if each != node.node_id]
            pairs = {(node.node_id, each) for each in others}
            if self.rng.random() < 0.6:
                pairs |= {(each, node.node_id) for each in others}
            self._block(pairs)
        elif kind == 4:
            side = {each for each in self.nodes if self.rng.random() < 0.5}
            self._block({(a, b) for a in self.nodes for b in self.nodes if (a in side) != (b in side)})
        elif kind == 5 and self.options.snapshots:
            for each in self.nodes.values():
                self._snapshot(each)
        elif kind == 6 and node.quorum is not None and node.quorum.is_leader:
            self.call(node, lambda quorum: quorum.resign(self.now_ms))
        elif kind == 7:
            for each in list(self.nodes.values()):
                self._stop_and_start(each)
        elif self.options.snapshots:
            self._snapshot(node)
        self.at(self.rng.randrange(self.options.fault_every_ms) + 1, self._fault)

    def _block(self, pairs: set[tuple[int, int]]) -> None:
        self._blocked |= pairs
        self.at(self.rng.choice((100, 700, 2500)), lambda: self._blocked.difference_update(pairs))

    def _stop_and_start(self, node: Node) -> None:
        self.crash(node)
        self.at(self._away_ms(), lambda: self.start(node) if node.quorum is None else None)

    def _away_ms(self) -> int:
        return self.rng.randrange(1, self.options.restart_ms)

    def _snapshot(self, node: Node) -> None:
        log = node.log
        if node.quorum is None or node.high_watermark <= log.start_offset:
            return
        if node.high_watermark > log.flushed_offset:
            return
        snapshot_id = log.write_snapshot(node.high_watermark)
        earliest = log.latest_snapshot
        if snapshot_id is not None and snapshot_id == earliest and self.rng.random() < 0.7:
            log.forget_before(snapshot_id)

    def _admin(self) -> None:
        """Adds or removes a voter, at a node that claims to lead."""
        leaders = [node for node in self.nodes.values() if node.quorum is not None and node.quorum.is_leader]
        if leaders:
            leader = self.rng.choice(leaders)
            assert leader.quorum is not None, "it leads"
            target = self.rng.choice(list(self.nodes.values()))
            message: RequestMessage
            if target.node_id in leader.quorum.voter_set.ids:
                message = RemoveRaftVoterRequest(CLUSTER_ID, target.node_id, target.local.voter_directory_id)
            else:
                message = AddRaftVoterRequest(
                    CLUSTER_ID, 1500, target.node_id, target.local.voter_directory_id, target.local.endpoints
                )
            self._sequence += 1
            token = ("admin", self._sequence)
            self._answers[token] = lambda response: None
            self.call(leader, lambda quorum: quorum.request(self.now_ms, token, message))
        if not self._calm:
            self.at(self.rng.randrange(100, 1500), self._admin)


def run_seed(seed: int) -> Cluster:
    """Raises Broken, with the options of the seed."""
    options = Options.of(seed)
    cluster = Cluster(options)
    try:
        cluster.run()
    except Broken as broken:
        raise Broken(f"{options} at {cluster.now_ms} ms: {broken}") from broken
    return cluster
