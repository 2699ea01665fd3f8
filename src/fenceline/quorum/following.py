"""Following: fetch from the leader, append, cut back what differs, take a snapshot where the log is out of reach; and
finding the leader where none is known.

Owns the loop of fetches of this node. The next fetch leaves only when everything appended is flushed (where this node
flushes), so its offset says what no crash can take from it (Q28).

Better than Kafka, on the same wire: a leader whose connection is lost and whose address refuses a new one is doubted at
once, without waiting for the fetch timeout; the pre-vote keeps that harmless. A wrong answer is told and asked for
again, never fatal; only a cut below the high watermark is (G36).

Rules: raft.md Q15, Q22, Q28-Q30; snapshots.md N22, N33; since_4_0.md K11, K12, K14; gaps.md G10, G11, G36.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fenceline.errors import InternalError
from fenceline.quorum.core import Core
from fenceline.quorum.download import Download
from fenceline.quorum.duties import AppendFetched, Level, Peer, Truncate
from fenceline.quorum.fetches import end_of_epoch
from fenceline.quorum.log_view import EpochEnd
from fenceline.quorum.messages import EndQuorumEpochRequest, FetchRequest, FetchResponse, FetchSnapshotRequest
from fenceline.quorum.roles import Follower, Unattached

_AGAIN_MS: Final = 100
"""After an answer that could not be used."""


class Following:
    """See the module. `ask` begins a pre-vote."""

    def __init__(self, core: Core, download: Download, ask: Callable[[], None]) -> None:
        self._core = core
        self._download = download
        self._ask = ask
        self._has_fetched = False
        self._doubted = False
        """The leader has said that it ends, or refuses connections, or is silent for too long."""
        self._doubts_in_a_row = 0
        self._next_doubt_ms = 0
        self._leader_high_watermark = -1
        self.leader_log_start_offset: int | None = None
        """As the leader said last; None: not yet."""
        self._next_fetch_ms = 0
        self._has_asked = False

    @property
    def in_touch(self) -> bool:
        """Whether this node has heard from the leader that it follows, and has no reason to doubt it (K8)."""
        return self._has_fetched and not self._doubted

    def begin(self, same_leader: bool) -> None:
        """A follower now, of a leader that may be the one before."""
        self._has_fetched = False
        self._has_asked = False
        self._doubted = False
        self._leader_high_watermark = -1
        self.leader_log_start_offset = None
        self._next_fetch_ms = self._core.now_ms
        if not same_leader:
            self._doubts_in_a_row = 0
            self._next_doubt_ms = self._core.now_ms

    # -- asking ------------------------------------------------------------------------------------------------------

    @property
    def _is_settled(self) -> bool:
        """Whether all that was appended is as durable as a fetch promises."""
        core = self._core
        return not core.log_is_changing and (not core.settings.flushes or core.log.flushed == core.log.end)

    def pump(self) -> None:
        core = self._core
        if not isinstance(core.role, Follower | Unattached) or core.now_ms < self._next_fetch_ms:
            return
        if core.outbox.has(FetchRequest) or core.outbox.has(FetchSnapshotRequest) or not self._is_settled:
            return
        if core.is_only_voter and not isinstance(core.role, Follower):  # one that follows must see its set committed
            return
        peer = self._whom_to_ask()
        if peer is None:
            return
        self._has_asked = True
        if isinstance(core.role, Follower) and peer.node_id == core.leader_id and self._download.is_wanted:
            request = self._download.next_request()
            if request is not None:
                core.send(peer, request)
            return
        end = core.log.end
        if end.epoch > core.epoch:
            raise InternalError(f"the log ends in epoch {end.epoch}, the quorum is in {core.epoch}")
        core.send(
            peer,
            FetchRequest(
                core.settings.cluster_id,
                core.me,
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

    def _whom_to_ask(self) -> Peer | None:
        """The leader; else anybody who may know it: bootstrap servers (Q30, K11), and the voters of the own log. None:
        nobody is known, or all rest."""
        core = self._core
        leader = core.leader_peer()
        if isinstance(core.role, Follower) and leader is not None and not (self._doubted and not core.may_stand):
            return None if core.outbox.rests(core.now_ms, leader) else leader
        own = {(endpoint.host, endpoint.port) for endpoint in core.local.endpoints}
        servers = [
            Peer(-2 - position, address.host, address.port)
            for position, address in enumerate(core.settings.bootstrap_servers)
            if address not in own
        ]
        servers += [peer for voter in core.others() if (peer := core.peer(voter)) is not None]
        if leader is not None:
            servers.append(leader)  # doubted, but it may be back before anybody knows another
        servers = [peer for peer in servers if not core.outbox.rests(core.now_ms, peer)]
        return servers[core.rng.randrange(len(servers))] if servers else None

    def back_off(self) -> None:
        self._next_fetch_ms = self._core.now_ms + _AGAIN_MS

    def unanswered(self) -> None:
        self._next_fetch_ms = self._core.now_ms + self._core.settings.retry_backoff_ms

    @property
    def is_fresh(self) -> bool:
        """Whether nobody has been asked yet in the role that this node has now."""
        return not self._has_asked

    def next_deadline_ms(self) -> int | None:
        if isinstance(self._core.role, Follower | Unattached) and self._next_fetch_ms > self._core.now_ms:
            return self._next_fetch_ms
        return None

    # -- hearing -----------------------------------------------------------------------------------------------------

    def heard_from_leader(self) -> None:
        """A successful Fetch or FetchSnapshot (Q28)."""
        core = self._core
        core.timeout_at_ms = core.now_ms + core.settings.fetch_timeout_ms
        self._has_fetched = True
        self._doubted = False
        self._doubts_in_a_row = 0

    def answered(self, asked: FetchRequest, response: FetchResponse) -> None:
        """A Fetch without error, from the leader of this epoch."""
        core = self._core
        same = asked.current_leader_epoch == core.epoch and asked.fetch_offset == core.log.end.offset
        if not isinstance(core.role, Follower) or not same:
            return
        self.heard_from_leader()
        if response.log_start_offset >= 0:
            self.leader_log_start_offset = response.log_start_offset
        if response.diverging_epoch is not None:
            self._cut_back(response.diverging_epoch)
        elif response.snapshot_id is not None:
            if not self._download.offered(response.snapshot_id, core.leader_id):
                self.back_off()
        else:
            self._download.drop()
            self._leader_high_watermark = max(self._leader_high_watermark, response.high_watermark)
            if len(response.records):
                core.log_is_changing = True
                core.duties.append(
                    AppendFetched(response.records, asked.fetch_offset, core.epoch, core.settings.flushes)
                )
            self.count()

    def _cut_back(self, diverging: EpochEnd) -> None:
        """Q29: to where both logs may agree; the next fetch goes on looking."""
        core = self._core
        end = core.log.end
        if diverging.epoch < 0 or diverging.end_offset < 0:
            core.say(Level.ERROR, f"The leader {core.leader_id} gave {diverging} as the place where logs differ.")
            self.back_off()
            return
        if diverging.epoch == 0:
            offset = min(diverging.end_offset, end.offset)
        else:
            own = end_of_epoch(core.log, diverging.epoch)
            offset = min(own.end_offset, diverging.end_offset) if own.epoch == diverging.epoch else own.end_offset
        if offset < (core.high_watermark or 0):
            raise InternalError(
                f"the leader {core.leader_id} of epoch {core.epoch} wants offsets {offset} to {core.high_watermark} cut"
                " off, which are committed: a majority of the voters has lost data"
            )
        if offset >= end.offset:
            core.say(Level.ERROR, f"The leader {core.leader_id} says that logs differ at {diverging}; they do not.")
            self.back_off()
            return
        core.say(Level.INFO, f"The metadata log is cut from {end.offset} to {offset}: the leader's differs from there.")
        core.log_is_changing = True
        core.duties.append(Truncate(offset))

    def count(self) -> None:
        """What the leader says is committed, as far as it is here (Q28)."""
        core = self._core
        if not isinstance(core.role, Follower) or self._leader_high_watermark < 0:
            return
        here = core.log.flushed.offset if core.settings.flushes else core.log.end.offset
        offset = min(self._leader_high_watermark, here)
        if offset > 0:
            core.advance_high_watermark(offset)

    def append_failed(self, reason: str) -> None:
        """Nothing of what was fetched could be appended: ask again (K14)."""
        self._core.say(
            Level.WARNING,
            f"Fetched metadata records could not be appended: {reason}",
            "They are fetched again. Check the disk and the network, if this goes on.",
        )
        self.back_off()

    # -- doubting ----------------------------------------------------------------------------------------------------

    def refused(self, node_id: int) -> None:
        """The leader's connection is gone and its address takes no new one: it has ended."""
        core = self._core
        if not isinstance(core.role, Follower) or node_id != core.leader_id:
            return
        self._doubted = True
        if core.may_stand and core.now_ms >= self._next_doubt_ms:
            limit = min(100 << min(self._doubts_in_a_row, 5), core.settings.election_timeout_ms)
            self._next_doubt_ms = core.now_ms + core.settings.retry_backoff_ms + core.rng.randrange(limit)
            self._doubts_in_a_row += 1
            self._ask()

    def silent(self) -> None:
        """The fetch timeout of an observer: look for another leader while this one may come back (K11)."""
        self._doubted = True
        self._core.timeout_at_ms = self._core.now_ms + self._core.settings.fetch_timeout_ms

    def leader_ends(self, request: EndQuorumEpochRequest) -> None:
        """Q22: the leader goes; the one with the longest log is to begin at once."""
        core = self._core
        if not isinstance(core.role, Follower) or core.leader_id != request.leader_id:
            return
        self._doubted = True
        if core.may_stand:
            candidates = [candidate.replica_id for candidate in request.preferred_candidates]
            limit = core.settings.election_backoff_max_ms
            if core.me not in candidates:
                wait = limit
            else:
                position = candidates.index(core.me)
                wait = 0 if position == 0 else min(limit, (limit >> (len(candidates) - 1)) << (position - 1))
            core.timeout_at_ms = core.now_ms + wait
