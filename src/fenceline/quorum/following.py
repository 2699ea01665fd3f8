"""Following: fetch from the leader, append, truncate what diverges, download a snapshot if the log is out of reach; and
finding the leader.

Owns the fetch loop of this node. The next fetch is sent only when everything appended is flushed (on nodes that flush),
so no crash can lose records below its offset (Q28).

Differences from Kafka, on the same wire protocol: a leader whose connection is lost and whose address refuses a new one
is doubted at once, without waiting for the fetch timeout; so is a leader known to answer in time (`wire.extensions`)
whose answer is overdue. The pre-vote keeps that harmless: a majority must doubt the leader. An invalid response is
logged and the request repeated; only a truncation below the high watermark is fatal (G36).

Rules: raft.md Q15, Q22, Q28-Q30; snapshots.md N22, N33; since_4_0.md K11, K12, K14; gaps.md G10, G11, G36.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fenceline.answer_deadline import AnswerDeadline
from fenceline.errors import InternalError
from fenceline.quorum.core import Core
from fenceline.quorum.download import Download
from fenceline.quorum.duties import AppendFetched, Level, Peer, Truncate
from fenceline.quorum.fetches import end_of_epoch
from fenceline.quorum.log_view import QuorumEpochEnd
from fenceline.quorum.messages import (
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    QuorumFetchResponse,
)
from fenceline.quorum.outbox import Address
from fenceline.quorum.roles import Follower, Unattached

_BACKOFF_MS: Final = 100
"""Backoff after an unusable response."""


class Following:
    """See the module. `start_pre_vote` starts an election."""

    def __init__(self, core: Core, download: Download, start_pre_vote: Callable[[], None]) -> None:
        self._core = core
        self._download = download
        self._start_pre_vote = start_pre_vote
        self.caught_up_ms: int | None = None
        """Until when this log is known to have all that was committed, in monotonic time: when the Fetch was sent whose
        response showed it."""
        self._has_fetched = False
        self._doubted = False
        """The leader has resigned, refuses connections, or has not responded for too long."""
        self._consecutive_doubts = 0
        self._next_doubt_ms = 0
        self._leader_high_watermark = -1
        self.leader_log_start_offset: int | None = None
        """As in the leader's last response; None: no response yet."""
        self._next_fetch_ms = 0
        self._has_sent_fetch = False
        self._leader_is_prompt = False
        """The leader answers each fetch in time."""
        self._deadline = AnswerDeadline(core.settings.silence_timeout_ms or 0)
        """Of the response in flight."""
        self._asked: Peer | None = None
        """The receiver of the last request."""
        self._silent_until_ms: dict[Address, int] = {}
        """Nodes that did not answer in time: others are asked until then."""

    @property
    def in_touch(self) -> bool:
        """Whether this node has fetched from its leader and has no reason to doubt it (K8)."""
        return self._has_fetched and not self._doubted

    def begin(self, same_leader: bool) -> None:
        """This node became a follower, possibly of the same leader as before."""
        self._has_fetched = False
        self._has_sent_fetch = False
        self._doubted = False
        self._leader_high_watermark = -1
        self.leader_log_start_offset = None
        self._next_fetch_ms = self._core.now_ms
        self._deadline.clear()
        if not same_leader:
            self._leader_is_prompt = False
            self._consecutive_doubts = 0
            self._next_doubt_ms = self._core.now_ms

    # -- sending requests --------------------------------------------------------------------------------------------

    @property
    def _is_durable(self) -> bool:
        """Whether everything appended is as durable as a fetch promises."""
        core = self._core
        return not core.log_is_changing and (not core.settings.flushes or core.log.flushed == core.log.end)

    def pump(self) -> None:
        core = self._core
        if not isinstance(core.role, Follower | Unattached) or core.now_ms < self._next_fetch_ms:
            return
        if core.outbox.has(QuorumFetchRequest) or core.outbox.has(FetchSnapshotRequest) or not self._is_durable:
            return
        if core.is_only_voter and not isinstance(core.role, Follower):  # a follower must see its voter set committed
            return
        peer = self._fetch_target()
        if peer is None:
            return
        self._has_sent_fetch = True
        self._expect_answer(peer)
        if isinstance(core.role, Follower) and peer.node_id == core.leader_id and self._download.is_wanted:
            request = self._download.next_request()
            if request is not None:
                core.send(peer, request)
            return
        end = core.log.end
        core.send(
            peer,
            QuorumFetchRequest(
                core.settings.cluster_id,
                core.local_id,
                core.epoch,
                end.offset,
                end.epoch,
                core.local.voter_directory_id,
                core.settings.fetch_max_wait_ms,
                0,
                core.settings.fetch_max_bytes,
                -1 if core.high_watermark is None else core.high_watermark,
            ),
        )

    def _fetch_target(self) -> Peer | None:
        """The leader; otherwise a node that may know it: a bootstrap server (Q30, K11) or a voter of the local log.
        None: no node is known, or all are backing off."""
        core = self._core
        leader = core.leader_peer()
        if isinstance(core.role, Follower) and leader is not None and not (self._doubted and not core.is_electable):
            return None if core.outbox.is_backing_off(core.now_ms, leader) else leader
        own = {(endpoint.host, endpoint.port) for endpoint in core.local.endpoints}
        servers = [
            Peer(-2 - position, address.host, address.port)
            for position, address in enumerate(core.settings.bootstrap_servers)
            if address not in own
        ]
        servers += [peer for voter in core.others() if (peer := core.peer(voter)) is not None]
        if leader is not None:
            servers.append(leader)  # doubted, but it may return before another leader is elected
        servers = [peer for peer in servers if not core.outbox.is_backing_off(core.now_ms, peer)]
        if self._silent_until_ms:
            until_ms = self._silent_until_ms
            others = [peer for peer in servers if until_ms.get((peer.host, peer.port), 0) <= core.now_ms]
            servers = others or servers
        return servers[core.rng.randrange(len(servers))] if servers else None

    def back_off(self) -> None:
        self._next_fetch_ms = self._core.now_ms + _BACKOFF_MS

    def fetch_failed(self) -> None:
        self._next_fetch_ms = self._core.now_ms + self._core.settings.retry_backoff_ms

    @property
    def is_fresh(self) -> bool:
        """Whether no fetch was sent yet in the current role."""
        return not self._has_sent_fetch

    def next_deadline_ms(self) -> int | None:
        if not isinstance(self._core.role, Follower | Unattached):
            return None
        if self._next_fetch_ms > self._core.now_ms:
            return self._next_fetch_ms
        return self._deadline.check_at_ms

    def tick(self) -> None:
        """Handle the timer of the response in flight."""
        core = self._core
        check_at_ms = self._deadline.check_at_ms
        if check_at_ms is None or core.now_ms < check_at_ms:
            return
        is_pending = core.outbox.has(QuorumFetchRequest) or core.outbox.has(FetchSnapshotRequest)
        if not isinstance(core.role, Follower | Unattached) or not is_pending:
            self._deadline.clear()
        elif self._deadline.is_overdue(core.now_ms):
            self._no_answer_in_time()

    # -- responses ---------------------------------------------------------------------------------------------------

    def leader_contacted(self) -> None:
        """A Fetch or FetchSnapshot succeeded (Q28)."""
        core = self._core
        core.timeout_at_ms = core.now_ms + core.settings.fetch_timeout_ms
        self._has_fetched = True
        self._doubted = False
        self._consecutive_doubts = 0

    def answered(self, asked: QuorumFetchRequest, response: QuorumFetchResponse, sent_ms: int) -> None:
        """Handle a successful Fetch response from the leader of this epoch to a request that was sent at `sent_ms`."""
        core = self._core
        same = asked.current_leader_epoch == core.epoch and asked.fetch_offset == core.log.end.offset
        if not isinstance(core.role, Follower) or not same:
            return
        self.leader_contacted()
        self._leader_is_prompt = response.is_prompt
        if response.log_start_offset >= 0:
            self.leader_log_start_offset = response.log_start_offset
        if response.diverging_epoch is not None:
            self._truncate(response.diverging_epoch)
        elif response.snapshot_id is not None:
            if not self._download.offered(response.snapshot_id, core.leader_id):
                self.back_off()
        else:
            self._download.drop()
            self._leader_high_watermark = max(self._leader_high_watermark, response.high_watermark)
            if 0 <= response.high_watermark <= core.log.end.offset:
                self.caught_up_ms = sent_ms
            if len(response.records):
                core.log_is_changing = True
                core.duties.append(
                    AppendFetched(response.records, asked.fetch_offset, core.epoch, core.settings.flushes)
                )
            self.update_high_watermark()

    def _truncate(self, diverging: QuorumEpochEnd) -> None:
        """Q29: truncate to where both logs may agree; the next fetch continues the search."""
        core = self._core
        end = core.log.end
        if diverging.epoch < 0 or diverging.end_offset < 0:
            core.log_line(Level.ERROR, f"The leader {core.leader_id} returned the invalid diverging epoch {diverging}.")
            self.back_off()
            return
        if diverging.epoch == 0:
            offset = min(diverging.end_offset, end.offset)
        else:
            own = end_of_epoch(core.log, diverging.epoch)
            offset = min(own.end_offset, diverging.end_offset) if own.epoch == diverging.epoch else own.end_offset
        if offset < (core.high_watermark or 0):
            raise InternalError(
                f"the leader {core.leader_id} of epoch {core.epoch} requires truncation to offset {offset}, below the"
                f" high watermark {core.high_watermark}: a majority of the voters has lost committed records"
            )
        if offset >= end.offset:
            core.log_line(
                Level.ERROR, f"The leader {core.leader_id} returned {diverging}, but the logs do not diverge there."
            )
            self.back_off()
            return
        core.log_line(
            Level.INFO, f"Truncating the metadata log from offset {end.offset} to {offset}, where it diverges."
        )
        core.log_is_changing = True
        core.duties.append(Truncate(offset))

    def update_high_watermark(self) -> None:
        """Advance the high watermark to the leader's, limited to what is here (Q28)."""
        core = self._core
        if not isinstance(core.role, Follower) or self._leader_high_watermark < 0:
            return
        here = core.log.flushed.offset if core.settings.flushes else core.log.end.offset
        offset = min(self._leader_high_watermark, here)
        if offset > 0:
            core.advance_high_watermark(offset)

    def append_failed(self, reason: str) -> None:
        """No fetched record could be appended: fetch again (K14)."""
        self._core.log_line(
            Level.WARNING,
            f"Could not append fetched metadata records: {reason}",
            "They will be fetched again. If this repeats, check the disk and the network.",
        )
        self.back_off()

    # -- doubting the leader -----------------------------------------------------------------------------------------

    def connection_refused(self, node_id: int) -> None:
        """The leader's connection is lost and its address refuses a new one: the process has stopped."""
        core = self._core
        if not isinstance(core.role, Follower) or node_id != core.leader_id:
            return
        self._doubt()

    def _doubt(self) -> None:
        """Ask the other voters whether they also miss the leader, less often each time."""
        core = self._core
        self._doubted = True
        if core.is_electable and core.now_ms >= self._next_doubt_ms:
            limit = min(100 << min(self._consecutive_doubts, 5), core.settings.election_timeout_ms)
            self._next_doubt_ms = core.now_ms + core.settings.retry_backoff_ms + core.rng.randrange(limit)
            self._consecutive_doubts += 1
            self._start_pre_vote()

    @property
    def _is_searching(self) -> bool:
        """Whether this node asks any node for the leader: each answers at once, or within the wait if it leads."""
        return isinstance(self._core.role, Unattached) or (self._doubted and not self._core.is_electable)

    def _expect_answer(self, peer: Peer) -> None:
        """A request was sent: set the time by which a prompt leader, or any other node, answers it."""
        settings = self._core.settings
        self._asked = peer
        self._deadline.clear()
        is_watched = self._is_searching or (self._leader_is_prompt and not self._doubted)
        if settings.silence_timeout_ms is not None and is_watched:
            self._deadline.expect(self._core.now_ms + settings.fetch_max_wait_ms)

    def _no_answer_in_time(self) -> None:
        """The answer is overdue, while this node was running: doubt the leader, or ask another node."""
        core = self._core
        if not self._is_searching:
            core.log_line(
                Level.INFO,
                f"The leader {core.leader_id} does not answer a fetch in time; asking the other nodes.",
                "Another controller is elected only if a majority of the voters misses it.",
            )
        if self._asked is not None:
            limit_ms = core.now_ms + core.settings.fetch_timeout_ms
            live = {each: until_ms for each, until_ms in self._silent_until_ms.items() if until_ms > core.now_ms}
            self._silent_until_ms = {**live, (self._asked.host, self._asked.port): limit_ms}
        if core.is_electable and not self._is_searching:
            self._doubt()
            return
        self._doubted = True
        core.outbox.give_up(QuorumFetchRequest)
        core.outbox.give_up(FetchSnapshotRequest)

    def fetch_timed_out(self) -> None:
        """Fetch timeout of an observer: look for another leader while this one may come back (K11)."""
        self._doubted = True
        self._core.timeout_at_ms = self._core.now_ms + self._core.settings.fetch_timeout_ms

    def leader_resigned(self, request: EndQuorumEpochRequest) -> None:
        """Q22: the leader resigned; the candidate with the longest log starts an election at once."""
        core = self._core
        if not isinstance(core.role, Follower) or core.leader_id != request.leader_id:
            return
        self._doubted = True
        if core.is_electable:
            candidates = [candidate.replica_id for candidate in request.preferred_candidates]
            limit = core.settings.election_backoff_max_ms
            if core.local_id not in candidates:
                wait = limit
            else:
                position = candidates.index(core.local_id)
                wait = 0 if position == 0 else min(limit, (limit >> (len(candidates) - 1)) << (position - 1))
            core.timeout_at_ms = core.now_ms + wait
