"""Replicas that a reassignment removes from this node: compared with the leader before their records are deleted.

Owns the directories that wait for the comparison, and the requests to the leader. After an unclean election a removed
replica may be the only one with records that were acknowledged, so records that the leader does not have are kept as
evidence with a receipt (`docs/losses.md`); the rest is deleted. Stray directories found at the start, of replicas that
were moved away while the node was down, are compared in the same way. Costs nothing while none is waiting.

Never deletes a record without asking the leader, except with its topic. Directories that still wait when the node stops
are marked as stray on disk, and compared after the next start.

Rules: `epochs.md E13`, `E25`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import NO_LEADER
from fenceline.log.core.agreement import AgreementSearch, EpochsOfLog
from fenceline.log.core.errors import CorruptLog
from fenceline.log.directories.duplicate_logs import inspect_log
from fenceline.log.directories.log_dir_offsets import UNKNOWN
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.node.logs import Logger
from fenceline.node.net.peer_connection import NoSuchVersion
from fenceline.node.replication.leader_queries import EARLIEST, LeaderQueries
from fenceline.node.replication.replicas import RemovedReplica
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage
    from fenceline.node.losses.keeper import LossKeeper
    from fenceline.node.replication.peers import Peers

T = TypeVar("T")

log = Logger("losses")

_CLIENT_ID: Final = "__removed_replicas"
_CONSUMER: Final = -1
"""Asked as a consumer: this node has no replica of the partition any more."""
_TIMEOUT_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 5.0
_LOG_INTERVAL_S: Final = 60.0
_DIVERGED: Final = "The replica was moved away, and its leader does not have these records."
_STARTS_LATER: Final = (
    "The replica was moved away, and its leader's log starts after these records, or after the beginning of them: they "
    "could not be compared."
)
_DAMAGED: Final = "The replica was moved away, and its log is damaged: it could not be compared with the leader's."


class RemovedReplicas:
    """The removed replicas of one broker. Methods run on the event loop unless they say otherwise."""

    def __init__(
        self,
        keeper: LossKeeper,
        log_dirs: LogDirs,
        image: Callable[[], MetadataImage],
        peers: Peers,
        executor: Executor,
    ) -> None:
        self._keeper = keeper
        self._log_dirs = log_dirs
        self._image = image
        self._peers = peers
        self._executor = executor
        self._waiting: list[RemovedReplica] = []
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> Sequence[RemovedReplica]:
        """Replicas that are not compared yet."""
        return self._waiting

    def add(self, replica: RemovedReplica) -> None:
        """Compare it and then delete it, as soon as its partition has a leader that responds."""
        self._keeper.compared_first.add(replica.removed.path)
        self._waiting.append(replica)
        self._wakeup.set()

    async def find_strays(self) -> None:
        """At start: add stray directories of existing partitions, which were moved away while the node was down."""
        for replica in await self._in_thread(lambda: list(self._found())):
            if self._topic_of(replica) is not None:
                self.add(replica)

    def _found(self) -> Iterator[RemovedReplica]:
        """In a thread."""
        for log_dir in self._log_dirs:
            try:
                for stray in log_dir.strays():
                    topic_id = log_dir.topic_id_of(stray.path)
                    names = log_dir.disk.listdir(stray.path)
                    if topic_id is not None and any(name.endswith(".log") for name in names):
                        yield RemovedReplica(log_dir, stray, topic_id, was_found=True)
            except OSError as error:
                log.error(
                    "reading stray directories failed",
                    path=log_dir.path,
                    reason=str(error),
                    advice="Check the disk, then restart the node.",
                )

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s, quiet_until_s = _FIRST_PAUSE_S, asyncio.get_running_loop().time() + _LOG_INTERVAL_S
        while True:
            if not self._waiting:
                self._wakeup.clear()
                await self._wakeup.wait()
                pause_s = _FIRST_PAUSE_S
            reason = ""
            for replica in list(self._waiting):
                why_not = await self._try(replica)
                if why_not is None:
                    self._waiting.remove(replica)
                    self._keeper.compared_first.discard(replica.removed.path)
                reason = why_not or reason
            now_s = asyncio.get_running_loop().time()
            if reason and now_s >= quiet_until_s:
                quiet_until_s = now_s + _LOG_INTERVAL_S
                log.warning(
                    "removed replicas are not compared with their leaders yet",
                    waiting=len(self._waiting),
                    reason=reason,
                    advice="Their -stray directories are kept until the leaders respond.",
                )
            if self._waiting:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LAST_PAUSE_S)

    async def _try(self, replica: RemovedReplica) -> str | None:
        """None when the replica is resolved; otherwise why it has to wait."""
        try:
            await self._resolve(replica)
        except FileNotFoundError:
            pass  # the directory has been deleted
        except (PeerError, ConnectionError, NoSuchVersion, MalformedRequest, TimeoutError, OSError) as error:
            return str(error) or type(error).__name__
        except Exception:
            # Our bug; the records must not be given up because of it.
            log.exception("comparing a removed replica with its leader failed", path=replica.removed.path)
            return "an internal error"
        return None

    async def _resolve(self, replica: RemovedReplica) -> None:
        """Raises PeerError, ConnectionError, NoSuchVersion, MalformedRequest, TimeoutError, OSError: retry later."""
        if not self._log_dirs.is_online(replica.log_dir):
            return  # compared after the next start with this directory
        topic = self._topic_of(replica)
        if topic is None:
            if not replica.was_found:
                await self._in_thread(partial(self._keeper.delete_partition, replica.removed))
            return
        try:
            if replica.log is None:
                replica.log = await self._in_thread(partial(_survey, replica))
        except CorruptLog as error:
            log.error("log of a removed replica is damaged", path=replica.removed.path, reason=error.message)
            await self._in_thread(partial(self._keep, replica, 0, _DAMAGED))
            return
        partition = topic.partitions[replica.removed.topic_partition.partition]
        known = replica.log
        lost_from, reason = known.log_end_offset, _DIVERGED
        if known.log_end_offset > known.log_start_offset:
            lost_from, reason = await self._compare(topic, partition, replica, known)
            replica.compared_in = partition.leader_epoch
        if lost_from >= known.log_end_offset:
            await self._in_thread(partial(self._delete, replica))
        else:
            await self._in_thread(partial(self._keep, replica, lost_from, reason))

    async def _compare(
        self, topic: TopicImage, partition: PartitionImage, replica: RemovedReplica, known: EpochsOfLog
    ) -> tuple[int, str]:
        """The offset from which on the leader lacks the replica's records, and the reason for the receipt."""
        if partition.leader == NO_LEADER or partition.leader_recovery_state is LeaderRecoveryState.RECOVERING:
            raise PeerError(ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no recovered leader")
        async with asyncio.timeout(_TIMEOUT_S):
            connection = await self._peers.open(partition.leader, _CLIENT_ID)
            try:
                index = replica.removed.topic_partition.partition
                leader = _Leader(
                    LeaderQueries(connection, _CONSUMER, topic.name, index, partition.leader_epoch, _TIMEOUT_S)
                )
                start = await leader.log_start()
                agreed = known.log_end_offset
                if start < known.log_end_offset:
                    agreed = max(await agreed_end_with(known, leader.epoch_end), known.log_start_offset)
                is_deleted = is_below_of_leader(known, start, agreed, replica.clean_since)
                return (agreed, _DIVERGED) if is_deleted else (known.log_start_offset, _STARTS_LATER)
            finally:
                connection.close()

    def _topic_of(self, replica: RemovedReplica) -> TopicImage | None:
        topic = self._image().topics_by_id.get(replica.topic_id)
        where = replica.removed.topic_partition
        # The name of a stray directory may be truncated if the topic name is very long.
        if topic is None or not topic.name.startswith(where.topic) or where.partition >= len(topic.partitions):
            return None
        return topic

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _delete(self, replica: RemovedReplica) -> None:
        """In a thread: delete a replica of which the leader has all records."""
        self._keeper.delete_contained(replica.removed, keeps_evidence=replica.was_found)
        log.info("removed replica deleted", path=replica.removed.path)

    def _keep(self, replica: RemovedReplica, lost_from: int, reason: str) -> None:
        """In a thread."""
        try:
            self._keeper.keep_rest(replica.log_dir, replica.removed, lost_from, reason)
        except CorruptLog as error:
            log.error(
                "no receipt written for records of a removed replica",
                path=replica.removed.path,
                reason=error.message,
                advice="Check the directory with `fenceline verify` before deleting it.",
            )


class _Leader:
    """Queries the leader of a partition in one leader epoch. Raises PeerError if the leader returns an error."""

    def __init__(self, queries: LeaderQueries) -> None:
        self._queries = queries

    async def log_start(self) -> int:
        found = await self._queries.offset(EARLIEST, first_version=4)
        if found is None:
            raise MalformedRequest("the ListOffsets response lacks the partition")
        _check(found.error_code)
        return found.offset

    async def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The leader's newest epoch not above the requested one, and its end offset; (-1, -1): there is none."""
        found = await self._queries.epoch_end(epoch)
        if found is None:
            raise MalformedRequest("the OffsetForLeaderEpoch response lacks the partition")
        _check(found.error_code)
        return found.epoch, found.end_offset


def _check(error_code: int) -> None:
    if error_code:
        raise PeerError(ErrorCode(error_code))


async def agreed_end_with(known: EpochsOfLog, ask: Callable[[int], Awaitable[tuple[int, int]]]) -> int:
    """The end of the records that a log has in common with the leader's, by epochs (E13, E25)."""
    search = AgreementSearch(known)
    while not search.is_done:
        search.on_answer(*await ask(search.asks))
    return search.end


def is_below_of_leader(known: EpochsOfLog, leader_start: int, agreed_end: int, clean_since: int) -> bool:
    """Whether the leader had all records of a log below its own start, and deleted them. `agreed_end`: by epochs, which
    says nothing about these records: a leader that has forgotten an epoch returns it with its own start (E13 d).
    `clean_since`: no leader with a later epoch was elected uncleanly."""
    has_none_below = leader_start <= known.log_start_offset
    has_common_record = leader_start < agreed_end
    return has_none_below or has_common_record or clean_since <= known.latest_epoch


def _survey(replica: RemovedReplica) -> EpochsOfLog:
    """In a thread: reads the complete log. Raises CorruptLog, OSError."""
    return inspect_log(replica.removed.disk, replica.removed.path, UNKNOWN, clean=False)
