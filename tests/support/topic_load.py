"""Topics that are created and deleted while the quorum changes hands, and what of it was acknowledged.

Owns the one thread that asks. Every answer counts: what was acknowledged must hold for ever, whoever leads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.errors import ErrorCode, FencelineError, PeerError
from fenceline.testing.waiting import eventually

_PACE_S = 0.03
"""Between two requests, so that the logs stay small."""
_DELETED_OF = 7
"""One topic of so many is deleted again."""


class TopicLoad:
    """Use as a context manager; leaving it waits for the request that is on its way."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.created: set[str] = set()
        """Acknowledged, and no deletion was asked for."""
        self.deleted: set[str] = set()
        """Deletions that were acknowledged."""
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="topic-load", daemon=True)

    def __enter__(self) -> TopicLoad:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    @property
    def acknowledged(self) -> int:
        return len(self.created) + 2 * len(self.deleted)

    def await_more(self, count: int) -> None:
        """Until `count` more answers have come."""
        wanted = self.acknowledged + count

        def look() -> bool:
            if self._failure is not None:
                raise self._failure
            return self.acknowledged >= wanted

        eventually(look, f"{count} more topics are acknowledged", wait_s=120)

    def _run(self) -> None:
        try:
            with Admin(self._bootstrap) as admin:
                number = 0
                while not self._is_over.wait(_PACE_S):
                    self._one(admin, number)
                    number += 1
        except BaseException as failure:
            self._failure = failure

    def _one(self, admin: Admin, number: int) -> None:
        name = f"load-{number}"
        deletes = number % _DELETED_OF == 0
        # Kafka 4.3.1 forgets to drop the configs of a topic that it sees created and deleted in one go.
        configs = {"retention.ms": str(1000 * number + 1)} if number % 2 and not deletes else {}
        topic = NewTopic(name, 1 + number % 3, 1, configs=configs)
        # A request whose connection broke may have been done: then the next one says so.
        if self._ask(lambda: admin.create_topics([topic], timeout_ms=20_000), ErrorCode.TOPIC_ALREADY_EXISTS):
            if not deletes:
                self.created.add(name)
            elif self._ask(lambda: admin.delete_topics([name], timeout_ms=20_000), None):
                self.deleted.add(name)

    def _ask(self, request: Callable[[], object], done_before: ErrorCode | None) -> bool:
        """Whether it was acknowledged in the end; not where this is over before, and not where the topic is unknown: it
        may be gone by a request whose connection broke, and a controller of Kafka's that is about to lead looks names
        up in what it has applied so far."""
        while not self._is_over.is_set():
            try:
                request()
            except PeerError as error:
                if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    return False
                if error.code is done_before:
                    return True
            except FencelineError:
                pass
            else:
                return True
            self._is_over.wait(_PACE_S)
        return False
