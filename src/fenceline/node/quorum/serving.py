"""Responses to requests of this node's quorum: pending ones, and those that need a disk read.

Owns the futures of requests by token. Reads that miss the page cache run in a thread. A record may complete the fetches
of a thousand brokers: they get their responses in several turns of the loop, in order.

Rules: raft.md Q14, Q26; snapshots.md N28-N30.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.disk import Disk
from fenceline.node.logs import Logger
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.quorum.duties import ServePiece, ServeRecords
from fenceline.quorum.messages import FetchSnapshotResponse, QuorumFetchResponse, ResponseMessage

log = Logger("quorum")

_RESPONSES_IN_A_TURN: Final = 50


class QuorumServing:
    """See the module. All methods belong to the loop."""

    def __init__(
        self,
        disk: Disk,
        metadata_log: MetadataLog,
        executor: Executor | None,
        failed: Callable[[BaseException], None],
    ) -> None:
        """`failed` is called if the log cannot be read."""
        self._disk = disk
        self._log = metadata_log
        self._executor = executor
        self._failed = failed
        self._waiting: dict[Hashable, asyncio.Future[ResponseMessage]] = {}
        self._next_token = 0
        self._completed_in_turn = 0
        self._postponed: deque[tuple[Hashable, ResponseMessage]] = deque()
        """Responses of later turns."""

    def expect(self) -> tuple[Hashable, asyncio.Future[ResponseMessage]]:
        """A token for the quorum, and the future of its response."""
        self._next_token += 1
        answer: asyncio.Future[ResponseMessage] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_token] = answer
        return self._next_token, answer

    def answer(self, token: Hashable, message: ResponseMessage) -> None:
        """In this turn of the loop; the response to a Fetch in a later one if this turn has had many."""
        if not self._completed_in_turn:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        is_full = self._postponed or self._completed_in_turn >= _RESPONSES_IN_A_TURN
        if is_full and isinstance(message, QuorumFetchResponse):
            self._postponed.append((token, message))
        else:
            self._complete(token, message)

    def _begin_turn(self) -> None:
        self._completed_in_turn = 0
        if self._postponed:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        while self._postponed and self._completed_in_turn < _RESPONSES_IN_A_TURN:
            self._complete(*self._postponed.popleft())

    def _complete(self, token: Hashable, message: ResponseMessage) -> None:
        self._completed_in_turn += 1
        waiting = self._waiting.pop(token)
        if not waiting.done():
            waiting.set_result(message)

    def close(self, error: PeerError) -> None:
        """Fail all pending requests with `error`."""
        waiting, self._waiting = self._waiting, {}
        self._postponed.clear()
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def records(self, duty: ServeRecords) -> None:
        """Respond with records of the log, at once if they are in the page cache."""
        if duty.offset >= duty.end_offset:
            self._answer_all(duty.tokens, duty.answer)
            return
        try:
            read = self._log.partition_log.read(duty.offset, duty.max_bytes, end_offset_exclusive=duty.end_offset)
        except PeerError as error:
            self._answer_all(duty.tokens, replace(duty.answer, partition_error_code=error.code))
            return
        if read.resident:
            self._answer_all(duty.tokens, replace(duty.answer, records=read.records))
            return

        def loaded(done: asyncio.Future[memoryview]) -> None:
            error = done.exception()
            tokens = [token for token in duty.tokens if token in self._waiting]
            if isinstance(error, PeerError):
                self._answer_all(tokens, replace(duty.answer, partition_error_code=error.code))
            elif error is None:
                self._answer_all(tokens, replace(duty.answer, records=done.result()))
            elif tokens:
                self._failed(error)

        asyncio.get_running_loop().run_in_executor(self._executor, read.load).add_done_callback(loaded)

    def _answer_all(self, tokens: Iterable[Hashable], message: ResponseMessage) -> None:
        for token in tokens:
            self.answer(token, message)

    def piece(self, duty: ServePiece) -> None:
        """Respond with a part of a snapshot file (N30); SNAPSHOT_NOT_FOUND if it no longer exists."""
        path = f"{self._log.directory}/{duty.snapshot_id.file_name}"
        disk = self._disk

        def read() -> bytes:
            fd = disk.open_read(path)
            try:
                return bytes(disk.pread(fd, duty.max_bytes, duty.position))
            finally:
                disk.close(fd)

        def found(done: asyncio.Future[bytes]) -> None:
            error = done.exception()
            if duty.token not in self._waiting:
                return
            answer: FetchSnapshotResponse
            if error is None:
                answer = replace(duty.answer, unaligned_records=done.result())
            else:
                gone = isinstance(error, FileNotFoundError)
                code = ErrorCode.SNAPSHOT_NOT_FOUND if gone else ErrorCode.UNKNOWN_SERVER_ERROR
                answer = replace(duty.answer, partition_error_code=code, size=0, position=0)
                if not gone:
                    log.warning("could not read a snapshot", path=path, reason=str(error), advice="Check the disk.")
            self.answer(duty.token, answer)

        asyncio.get_running_loop().run_in_executor(self._executor, read).add_done_callback(found)
