"""Threads of clients in tests: how they fail and how they end, and how quiet they are.

Owns no client. A thread that fails ends, and its failure is raised where it is awaited.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_clients() -> Iterator[None]:
    """Suppresses the clients' messages about broken connections."""
    loggers = [logging.getLogger(name) for name in ("kafka", "aiokafka", "fenceline.client")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)


class ClientThread(threading.Thread, ABC):
    """Named after its class. `_servers` are the brokers' addresses, separated by commas."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self._servers = bootstrap
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._live()
        except BaseException as failure:
            self.failure = failure

    def end(self, wait_s: float) -> None:
        """Raises what it failed with."""
        self.join(wait_s)
        assert not self.is_alive(), f"{self} does not end"
        if self.failure is not None:
            raise self.failure

    @abstractmethod
    def _live(self) -> None: ...
