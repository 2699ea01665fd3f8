"""Partitions that this broker leads and that have no records: their followers fetch from them without a replica object.

Owns the answers to followers of such partitions, the followers that wait for a first record, and the proposals to add
followers to in-sync sets. Everything that is not plain is left to the replica object, which is opened for it: a
follower with records, an earlier process of a broker, a client, a first record.

An empty log without files has nothing to fence, to compare or to commit, and a follower that fetches at offset 0 knows
everything: its place in its session is all that the partition costs. It is read again whenever something about the
partition changes. When the object is opened, it gets the progress that it would have recorded, and a proposal that is
not decided yet: a new member is waited for from the first record on (E37). If a member of the in-sync set does not come
while others do, the object is opened, to remove it (E38).

Rules: `epochs.md E1-E3`, `E30-E39`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator
from typing import TYPE_CHECKING, Final
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.replica.fencing import NO_EPOCH, check_leader_epoch
from fenceline.replica.fetch_session import SentState
from fenceline.replica.leader import IsrProposal, ProposedReplica, Rejection, rejection_of
from fenceline.replica.progress import UNKNOWN_OFFSET
from fenceline.wire.fetch import FetchedPartition

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage
    from fenceline.node.clock import Clock
    from fenceline.node.replication.isr_changes import Proposer
    from fenceline.node.replication.replica import Replica
    from fenceline.replica.fetch_session import PartitionKey, SessionPartition
    from fenceline.replica.leader import InSyncRules
    from fenceline.wire.fetch import FetchPartition, FetchRequest

_NOTHING: Final = SentState(high_watermark=0, log_start_offset=0)


class _Followers(list["SessionPartition"]):
    """Of one partition: its places in their sessions, also those that do not wait any more."""

    __slots__ = ("since_ms",)

    since_ms: int
    """Since when they wait for a member of the in-sync set, if they do."""

    def add(self, callback: Callable[[], None]) -> None:
        """Nothing to do: a session's partition knows whether it waits."""

    def discard(self, callback: Callable[[], None]) -> None:
        """As `add`."""


class _Expansion:
    """The proposal to add a follower (E35), until it is decided or void. See `isr_changes.Proposer`."""

    __slots__ = ("_open", "_proposal", "replica", "topic_id", "topic_partition")

    def __init__(
        self, topic: TopicImage, index: int, proposal: IsrProposal, open_it: Callable[[str, int], object]
    ) -> None:
        self.topic_id = topic.id
        self.topic_partition = TopicPartition(topic.name, index)
        self.replica: Replica | None = None
        self._proposal: IsrProposal | None = proposal
        self._open = open_it

    @property
    def proposal(self) -> IsrProposal | None:
        return self.replica.proposal if self.replica is not None else self._proposal

    def end(self, opened: Replica | None) -> None:
        """The partition has changed, or has been opened unchanged: then it waits for the decision."""
        proposal, self._proposal = self._proposal, None
        leader = opened.leader if opened is not None else None
        if proposal is None or leader is None or leader.proposal is not None:
            return
        if (leader.leader_epoch, leader.partition_epoch) == (proposal.leader_epoch, proposal.partition_epoch):
            leader.proposal, self.replica = proposal, opened

    def on_rejected(self, proposal: IsrProposal, code: ErrorCode) -> Rejection:
        if self.replica is not None:
            return self.replica.on_rejected(proposal, code)
        rejection = rejection_of(code)
        if rejection is Rejection.REVERTED:
            self._proposal = None
        return rejection

    def wake(self) -> None:
        """Only the object remembers when a rejected follower may be proposed again."""
        if self.replica is not None:
            self.replica.wake()
        else:
            self._open(*self.topic_partition)


class RestingLeaders:
    """Of one broker. Event loop only."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        broker_epoch: Callable[[], int],
        rules: InSyncRules,
        clock: Clock,
        *,
        offline: Container[tuple[str, int]],
        is_unused: Callable[[TopicImage, int], bool],
        open_it: Callable[[str, int], Replica | None],
        propose: Callable[[Proposer, IsrProposal], None],
    ) -> None:
        """`offline`: partitions that cannot be served. `is_unused`: whether the partition has neither files nor a
        replica object; `open_it` makes the object. `propose` sends a proposal to the controller."""
        self._node_id = node_id
        self._image = image
        self._broker_epoch = broker_epoch
        self._rules = rules
        self._clock = clock
        self._offline = offline
        self._is_unused = is_unused
        self._open = open_it
        self._propose = propose
        self._followers: dict[PartitionKey, _Followers] = {}
        self._expansions: dict[PartitionKey, _Expansion] = {}
        self._incomplete: dict[PartitionKey, _Followers] = {}
        """Those that a member of the in-sync set has not fetched yet, while others do."""
        self._last_topic: tuple[bytes, UUID] | None = None

    def __len__(self) -> int:
        return len(self._followers)

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._followers)

    def epochs(self, key: PartitionKey) -> Collection[int]:
        """The leader epochs in which followers of a partition wait; none of any other partition."""
        return {each.asked.current_leader_epoch for each in self._followers.get(key, ()) if each.is_idle}

    def read(
        self, request: FetchRequest, wanted: SessionPartition, *, has_just_arrived: bool
    ) -> FetchedPartition | None:
        """The answer to a follower; None: this fetch of the partition needs a replica object. If the partition is not
        idle afterwards, the follower must not wait. Raises PeerError."""
        asked = wanted.asked
        topic = self._topic(asked.topic_id) if asked.topic_id is not None else None
        if topic is None or not 0 <= asked.index < len(topic.partitions):
            return None
        partition = topic.partitions[asked.index]
        self._check_epoch(topic, partition, asked)
        if (
            wanted.session is None
            or asked.current_leader_epoch == NO_EPOCH
            or asked.fetch_offset
            or asked.last_fetched_epoch >= 0
            or not self._may_join(request, partition)
            or not (wanted.key in self._followers or self._is_unused(topic, asked.index))
        ):
            return None
        may_wait = request.replica_id in partition.isr or self._joins(request, wanted.key, topic, has_just_arrived)
        if may_wait and (wanted.sent == _NOTHING or request.max_wait_ms <= 0):
            # A follower is first told that the partition exists, and waits for changes of it after that.
            self._wait(wanted, len(partition.isr))
        return FetchedPartition(asked.topic, asked.topic_id, asked.index, 0, 0, 0, 0, records=b"")

    def _topic(self, topic_id: bytes) -> TopicImage | None:
        """The partitions of one request mostly belong to few topics."""
        if self._last_topic is None or self._last_topic[0] != topic_id:
            self._last_topic = topic_id, UUID(bytes=topic_id)
        return self._image().topics_by_id.get(self._last_topic[1])

    def _check_epoch(self, topic: TopicImage, partition: PartitionImage, asked: FetchPartition) -> None:
        """A leader that has lost the partition does not open it to say so (E1-E3)."""
        if self._node_id not in partition.replicas or (topic.name, asked.index) in self._offline:
            return
        code = check_leader_epoch(max(asked.current_leader_epoch, NO_EPOCH), partition.leader_epoch)
        if code is ErrorCode.NONE and partition.leader != self._node_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if code is not ErrorCode.NONE:
            raise PeerError(code)

    def _may_join(self, request: FetchRequest, partition: PartitionImage) -> bool:
        """Whether followers are served, and this one is assigned (E30) and eligible by its current process (E36)."""
        return (
            partition.leader_recovery_state is LeaderRecoveryState.RECOVERED
            and request.replica_id in partition.replicas
            and NO_EPOCH != request.replica_epoch == self._rules.eligible(request.replica_id)
        )

    def _joins(self, request: FetchRequest, key: PartitionKey, topic: TopicImage, has_just_arrived: bool) -> bool:
        """Whether a follower that is not in sync waits for a decision: it is proposed, or another one is (E35). If not,
        it has to fetch again: only a fetch that has just arrived shows that it still follows."""
        if key in self._expansions or not has_just_arrived:
            return key in self._expansions
        partition = topic.partitions[key[1]]
        epochs = {self._node_id: self._broker_epoch(), request.replica_id: request.replica_epoch}
        isr = frozenset((*partition.isr, request.replica_id))
        members = tuple(ProposedReplica(each, epochs.get(each, NO_EPOCH)) for each in sorted(isr))
        proposal = IsrProposal(partition.leader_epoch, partition.partition_epoch, members, isr, growth=1)
        self._expansions[key] = expansion = _Expansion(topic, key[1], proposal, self._open)
        self._propose(expansion, proposal)
        return True

    def _wait(self, wanted: SessionPartition, in_sync: int) -> None:
        followers = self._followers.get(wanted.key)
        if followers is None:
            followers = self._followers[wanted.key] = _Followers()
        followers[:] = [each for each in followers if each.is_idle and each is not wanted]
        followers.append(wanted)
        wanted.mark_idle(followers)
        if len(followers) + 1 < in_sync:
            if wanted.key not in self._incomplete:
                followers.since_ms = self._clock.monotonic_ms()
                self._incomplete[wanted.key] = followers
        elif self._incomplete:
            self._incomplete.pop(wanted.key, None)

    def open_incomplete(self) -> Iterator[None]:
        """Open those that a member has not fetched for `replica.lag.time.max.ms`: the check of in-sync sets, which
        follows, removes it. In steps of one partition."""
        now_ms = self._clock.monotonic_ms()
        for key, followers in list(self._incomplete.items()):
            yield
            since_ms = followers.since_ms
            if now_ms - since_ms <= self._rules.max_lag_ms or self._incomplete.pop(key, None) is None:
                continue
            topic = self._topic(key[0]) if isinstance(key[0], bytes) else None
            opened = self._open(topic.name, key[1]) if topic is not None else None
            if opened is None or opened.leader is None:
                continue
            for progress in opened.leader.followers.values():
                if progress.log_end_offset == UNKNOWN_OFFSET and progress.last_caught_up_ms is not None:
                    progress.last_caught_up_ms = since_ms

    def end(self, key: PartitionKey, opened: Replica | None = None) -> None:
        """Something about the partition has changed: its followers are read again. `opened`: nothing has, but it has
        this object from now on."""
        leader = opened.leader if opened is not None else None
        self._incomplete.pop(key, None)
        if (expansion := self._expansions.pop(key, None)) is not None:
            expansion.end(opened)
        for each in self._followers.pop(key, ()):
            if not each.is_idle or (session := each.session) is None:
                continue
            if leader is not None and leader.leader_epoch == each.asked.current_leader_epoch:
                progress = leader.followers.get(session.replica_id)
                if progress is not None:
                    progress.fetched(0, 0, session.replica_epoch, 0, session.last_used_ms)
            each.mark_changed()

    def end_all(self) -> None:
        """As `end`, of all of them."""
        for key in [*self._followers, *self._expansions]:
            self.end(key)
