"""A port that closes every connection and measures how long clients have been retrying."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType


class RefusedAttempts:
    """Takes the port of a broker that is stopped, and closes every connection at once. Use as a context manager."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self._socket.settimeout(0.05)
        self._seen_s: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._refuse, daemon=True)

    def __enter__(self) -> RefusedAttempts:
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()
        self._socket.close()

    @property
    def lasted_ms(self) -> float:
        """From the first attempt to the newest."""
        seen_s = list(self._seen_s)
        return (seen_s[-1] - seen_s[0]) * 1000 if seen_s else 0.0

    def _refuse(self) -> None:
        while not self._is_over.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            self._seen_s.append(time.monotonic())
            connection.close()
