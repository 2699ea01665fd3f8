"""The active controller: from a request to its response.

Owns the order of work while this node leads the quorum: decide, append, apply, wait for the commit, publish, respond.
Requests that arrive while an append is in progress share the next one (group commit), so one flush and one replication
round commit any number of them. A decision in steps does not wait for them: its next step is decided meanwhile. Makes
no decisions itself, and never exposes a response or an image that could be taken back (`gaps.md G35`).

How it works: `submit` queues a request. On the event loop, all queued requests are decided in order, each based on the
ones before it (C1); their records are appended in one write. When the quorum has committed them, listeners receive each
image in order, and the responses are sent. Requests without records are answered at the same point, since they may have
read uncommitted state.

If the disk refuses an append (full), these requests fail with error 56 and the controller reverts to the state before
them (C2); the next request tries again. When this node stops leading, pending requests fail with NOT_CONTROLLER (41):
their records may still be committed by the next leader, and a retry gets a response according to its log.

Rules: controller.md C1-C3, C6, C8, C15, C18, C30; raft.md Q31-Q36; since_4_0.md K20.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from fenceline.controller.controller import Controller
from fenceline.controller.partition_requests import ElectLeaderless
from fenceline.controller.requests import BrokerHeartbeat, Request, WriteBootstrapRecords, WriteNoOp
from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.log.core.errors import StorageError
from fenceline.metadata.records import AbortTransactionRecord
from fenceline.node.controller.group_commit import GroupCommit, PendingRequest, decide_all
from fenceline.node.controller.timers import ControllerTimers
from fenceline.node.metadata.batches import record_batch
from fenceline.node.metadata.metadata_log import METADATA_PARTITION
from fenceline.node.metric_families import Durations

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.controller.sessions import Sessions
    from fenceline.controller.state import ControllerSettings, ControllerState
    from fenceline.node.clock import Clock
    from fenceline.node.controller.ports import Decider
    from fenceline.node.controller.presence import BrokerPresence
    from fenceline.node.controller.silence_watch import SilenceWatch
    from fenceline.node.metadata.loader import MetadataLoader
    from fenceline.node.metadata.metadata_log import MetadataLog
    from fenceline.node.quorum.driver import QuorumDriver
    from fenceline.node.storage.storage_trouble import StorageTrouble
    from fenceline.rng import Rng


INDEXED_IN_A_TURN: Final = 1_000
"""Partitions, of which each may be on other brokers."""
_STEPS_AHEAD: Final = 2
"""Appends in progress with which the next step of a decision is not begun."""


class ControllerMetrics:
    """Counters of one node's controller since its start."""

    __slots__ = ("commits", "queued", "terms", "turns")

    def __init__(self) -> None:
        self.terms = 0
        """Number of times this node became the active controller."""
        self.queued = Durations()
        """Time from a request to its decision."""
        self.turns = Durations()
        """Time to decide and append the queued requests; it blocks the event loop."""
        self.commits = Durations()
        """Time from an append to its commit."""


class ActiveController:
    """See the module. Every controller has one; it is active on one of them. Event loop only."""

    def __init__(
        self,
        *,
        config: NodeConfig,
        settings: ControllerSettings,
        driver: QuorumDriver,
        log: MetadataLog,
        loader: MetadataLoader,
        clock: Clock,
        rng: Rng,
        trouble: StorageTrouble,
        failed: Callable[[BaseException], None],
        published: Callable[[int], None],
        presence: Callable[[Decider, ControllerState], BrokerPresence] | None,
        silence: Callable[[Decider, ControllerState], SilenceWatch] | None,
    ) -> None:
        """`failed` is called with an error that stops the node, `published` with the number of log bytes just
        committed. `presence` creates what fences brokers whose process has ended; None: brokers are fenced only when
        their sessions expire. `silence` creates what probes brokers that their followers miss; None: their reports are
        ignored."""
        self._controller = Controller(settings)
        self._driver = driver
        self._log = log
        self._loader = loader
        self._clock = clock
        self._rng = rng
        self._trouble = trouble
        self._failed = failed
        self._published = published
        self._node_id = settings.node_id
        self._queue: list[PendingRequest] = []
        self._commits: deque[GroupCommit] = deque()
        """In progress, oldest first."""
        self._committed_offset = 0
        """Everything below it is committed."""
        self._is_completing = False
        self._has_steps = False
        """Whether the queue begins with what an append in progress has left undecided."""
        self._is_scheduled = False
        self._checks_leaderless = False
        """With the next decisions, elections are completed that were begun by the controller before this one, or before
        an append failed."""
        self._landed: asyncio.Event | None = None
        self.epoch = -1
        """The epoch in which this node is the active controller; -1: it is not."""
        self.own_broker_epoch = -1
        """The epoch of this process's broker; -1 until it is registered with any controller."""
        self.presence = None if presence is None else presence(self, self._controller.state)
        self._silence = None if silence is None else silence(self, self._controller.state)
        self.timers = ControllerTimers(self, self._controller.state, config, clock)
        self.metrics = ControllerMetrics()

    @property
    def node_id(self) -> int:
        return self._node_id

    @property
    def broker_count(self) -> int:
        """Number of registered brokers in the committed image."""
        return len(self._loader.image.brokers)

    @property
    def is_active(self) -> bool:
        return self.epoch >= 0

    @property
    def waiting_count(self) -> int:
        """Number of requests without a response."""
        return len(self._queue) + sum(len(commit.futures) for commit in self._commits)

    @property
    def expired_session_count(self) -> int:
        """Number of broker sessions that timed out on this node since its start."""
        return self._controller.state.sessions.expired_count

    @property
    def silent_count(self) -> int:
        """Number of brokers that were fenced because they did not answer, since the start of this node."""
        return self._controller.state.silence.fenced_count

    @property
    def last_silent_id(self) -> int:
        """The broker that was last fenced because it did not answer; -1: none was."""
        return self._controller.state.silence.last_fenced_id

    @property
    def sessions(self) -> Sessions:
        """The sessions, for metrics."""
        return self._controller.state.sessions

    # -- lifecycle -----------------------------------------------------------------------------------------------------

    def activate(self, epoch: int, *, dead: frozenset[int], bootstrap: WriteBootstrapRecords) -> None:
        """Become active. The loader's image must contain everything committed.

        `dead` as in `brokers.begin_sessions`; `bootstrap`: the first records of a new cluster, written if the log
        has no feature levels (C6). Such records are appended before any request is decided. Raises StorageError.
        """
        loader = self._loader
        quorum, state = self._driver.quorum, self._controller.state
        state.kraft_version, state.can_finalize_kraft_version = quorum.kraft_version, True
        state.voter_ids = frozenset(voter.voter_id for voter in quorum.voters)
        self._controller.activate(loader.image, self._log.end_offset, self._clock.monotonic_ms(), dead=dead)
        self.epoch = epoch
        self.metrics.terms += 1
        self._checks_leaderless = True
        if loader.transaction_is_open:
            self._write(AbortTransactionRecord("The controller that began the transaction has stopped."))
        if not loader.image.metadata_version:
            self._queue.insert(0, self._internal(bootstrap))
        self._start_timers()
        self.schedule()

    def deactivate(self) -> None:
        """This node no longer leads: fail pending requests, and discard uncommitted decisions (C2)."""
        if not self.is_active:
            return
        self.epoch = -1
        self._stop_timers()
        self._controller.reset(self._loader.image, self._loader.applied_offset)
        self._fail_all(_not_active())
        self._wake()

    async def finish(self) -> None:
        """Complete the queued requests, then accept no more."""
        self._stop_timers()
        while self.is_active and (self._queue or self._commits):
            self._landed = asyncio.Event()
            self.schedule()
            await self._landed.wait()
        self.epoch = -1

    def give_up(self) -> None:
        """The node stops because of a failure."""
        self.epoch = -1
        self._stop_timers()
        self._fail_all(_not_active())
        self._wake()

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """The response, once its records are committed.

        Fails with PeerError: the controller's error of a request that fails as a whole, 41 if it is not or no longer
        active, 56 if the disk is full. Cancelling the future does not revert a decision.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        if not self.is_active:
            answer.set_exception(_not_active())
            return answer
        if isinstance(request, BrokerHeartbeat):
            self._heard_of(request)
        self._queue.append(PendingRequest(request, answer, loop.time()))
        self.schedule()
        return answer

    def _heard_of(self, heartbeat: BrokerHeartbeat) -> None:
        """What a heartbeat tells counts at once, before it is decided (C18, K24)."""
        state, now_ms = self._controller.state, self._clock.monotonic_ms()
        state.sessions.contact(heartbeat.broker_id, heartbeat.broker_epoch, now_ms)
        known = state.image.brokers.get(heartbeat.broker_id)
        if self._silence is None or known is None or known.epoch != heartbeat.broker_epoch:
            return
        state.silence.report(heartbeat.broker_id, heartbeat.silent_brokers, now_ms)
        if heartbeat.silent_brokers:
            self._silence.check()

    def _start_timers(self) -> None:
        self.timers.start()
        if self.presence is not None:
            self.presence.begin()

    def _stop_timers(self) -> None:
        self.timers.stop()
        if self.presence is not None:
            self.presence.end()
        if self._silence is not None:
            self._silence.end()

    # -- deciding ------------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        if not self._is_scheduled and self._queue and self._may_decide:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.turn)

    @property
    def _may_decide(self) -> bool:
        """Whether the queue need not wait for an append: requests do, to share the next one, but not further steps."""
        return len(self._commits) < (_STEPS_AHEAD if self._has_steps else 1)

    def turn(self) -> None:
        """Decide all queued requests and append their records; in the first turns of a term, index the partitions."""
        self._is_scheduled = False
        if not self._may_decide or not self.is_active:
            return
        if not self._controller.state.prepare(INDEXED_IN_A_TURN):
            self.schedule()
            return
        queue, self._queue = self._queue, []
        self._has_steps = False
        if self._checks_leaderless and queue:
            self._checks_leaderless = False
            if any(broker.is_active for broker in self._controller.image.brokers.values()):
                queue.append(self._internal(ElectLeaderless()))
        clock = asyncio.get_running_loop().time
        began_s = clock()
        for waiting in queue:
            self.metrics.queued.observe(began_s - waiting.asked_s)
        try:
            self._append(self._decide(queue))
            self.metrics.turns.observe(clock() - began_s)
        except StorageError as error:
            self._trouble.rejected(METADATA_PARTITION, self._log.end_offset, error)
            self._revert(queue, error)
            if not self._driver.quorum.is_only_voter:
                self._driver.resign()  # another voter may have disk space
        except PeerError as error:
            self._revert(queue, PeerError(ErrorCode.NOT_CONTROLLER, error.message))
        except Exception as error:
            for waiting in queue:
                _fail(waiting.answer, _not_active())
            self._break(error)

    def _decide(self, queue: Sequence[PendingRequest]) -> GroupCommit:
        self._controller.state.next_offset = self._log.end_offset  # the quorum also appends records
        return decide_all(
            self._controller,
            queue,
            epoch=self.epoch,
            now_ms=self._clock.now_ms(),
            monotonic_ms=self._clock.monotonic_ms(),
            rng=self._rng,
        )

    def _append(self, commit: GroupCommit) -> None:
        """Append all batches in one write. Raises StorageError with the log unchanged, PeerError(6)."""
        self._commits.append(commit)
        if commit.content:
            commit.sent_s = asyncio.get_running_loop().time()
            try:
                base_offset = self._driver.append(commit.content, self.epoch)
            except BaseException:
                self._commits.pop()
                raise
            self._check_position(commit, base_offset)
        if commit.undecided:
            self._queue[:0], commit.undecided = commit.undecided, []
            self._has_steps = True
            self.schedule()
        self._complete_commits()

    def _check_position(self, commit: GroupCommit, base_offset: int) -> None:
        if base_offset != commit.first_offset or self._log.end_offset < commit.end_offset:
            raise InternalError(
                f"the metadata log is at {base_offset}..{self._log.end_offset}, its controller at "
                f"{commit.first_offset}..{commit.end_offset}"
            )

    def _revert(self, queue: Sequence[PendingRequest], error: Exception) -> None:
        """C2: discard the decisions and fail their requests."""
        images = [image for commit in self._commits for image, _ in commit.images]
        self._controller.reset(images[-1] if images else self._loader.image, self._log.end_offset)
        self._checks_leaderless = True
        for waiting in queue:
            _fail(waiting.answer, error)
        self.schedule()
        self._wake()

    # -- committing ----------------------------------------------------------------------------------------------------

    def committed(self, offset: int) -> None:
        """Everything below `offset` is committed."""
        self._committed_offset = offset
        self._complete_commits()

    def _complete_commits(self) -> None:
        """Those that are committed and those without records, in order. What is published may lead to here again."""
        commits = self._commits
        while commits and not self._is_completing and commits[0].is_committed(self._committed_offset):
            commit = commits.popleft()
            self._is_completing = True
            try:
                self._commit(commit)
            except Exception as failure:
                for answer in commit.futures:
                    _fail(answer, _not_active())
                self._break(failure)
                return
            finally:
                self._is_completing = False
            self.schedule()
            self._wake()

    def _commit(self, commit: GroupCommit) -> None:
        """Publish the committed images, then complete the requests."""
        for image, delta in commit.images:
            self._loader.adopt(image, delta)
        for answer, value in commit.answers:
            if isinstance(value, Exception):
                _fail(answer, value)
            elif not answer.done():
                answer.set_result(value)
        for waiting in commit.kraft_versions:
            asyncio.get_running_loop().call_soon(self._finalize_kraft_version, *waiting)
        if commit.content:
            self.metrics.commits.observe(asyncio.get_running_loop().time() - commit.sent_s)
            self._published(len(commit.content))

    def _finalize_kraft_version(self, answer: asyncio.Future[Any], value: Any, version: int) -> None:
        """K15: the quorum appends the level; the request completes when the record after it is committed."""
        try:
            if not self.is_active:
                raise _not_active()
            self._driver.finalize_kraft_version(version)
        except PeerError as error:
            _fail(answer, error)
            return
        self._controller.state.kraft_version = version

        def committed(done: asyncio.Future[Any]) -> None:
            if done.cancelled() or done.exception() is not None:
                _fail(answer, _not_active())
            elif not answer.done():
                answer.set_result(value)

        self.submit(WriteNoOp()).add_done_callback(committed)

    def _break(self, error: BaseException) -> None:
        """The controller cannot continue: its own decisions are uncertain."""
        reason = error if isinstance(error, InternalError) else InternalError(f"the controller failed: {error!r}")
        if reason is not error:
            reason.__cause__ = error
        self._failed(reason)

    def _fail_all(self, error: PeerError) -> None:
        queue, self._queue = self._queue, []
        answers = [answer for commit in self._commits for answer in commit.futures]
        self._commits.clear()
        self._has_steps = False
        for answer in answers:
            _fail(answer, error)
        for waiting in queue:
            _fail(waiting.answer, error)

    def _wake(self) -> None:
        if self._landed is not None:
            self._landed.set()

    def _internal(self, request: Request) -> PendingRequest:
        """A request that nothing waits for."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return PendingRequest(request, answer, loop.time())

    # -- at the beginning of a term ------------------------------------------------------------------------------------

    def _write(self, *records: AbortTransactionRecord) -> None:
        """Append records outside of any request; no request completes before they are committed."""
        controller, now_ms = self._controller, self._clock.now_ms()
        first_offset = controller.next_offset
        content = record_batch(records, controller.image.metadata_version, now_ms)
        image, delta = controller.replay(records, first_offset + len(records) - 1, self.epoch)
        commit = GroupCommit(first_offset, controller.next_offset, content, [(image, delta)])
        self._append(commit)


def _not_active() -> PeerError:
    return PeerError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller.")


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
