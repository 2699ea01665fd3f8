"""Clusters of clients that may end at any time: each has a lease, and ends with it.

Owns the running clusters, their ids and their leases. A lease is renewed by each request about its cluster, and does
not end during one. A client may hold it with an open request, whose end ends the cluster at once. Knows no HTTP.
Thread-safe.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fenceline.errors import OperatorError
from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.lab.faults import ActiveFault

DEFAULT_LEASE_S: Final = 600.0
_REMEMBERED: Final = 200
"""Ended clusters whose end can be explained."""


class UnknownIdError(OperatorError):
    """There is nothing with this id, or no more; says why."""


class LeasedCluster:
    """A cluster and its lease. `faults`: those whose id a client has received, by id, ended ones included."""

    def __init__(self, cluster_id: str, cluster: LabCluster, lease_s: float, now_s: float) -> None:
        self.id = cluster_id
        self.cluster = cluster
        self.lease_s = lease_s
        self.faults: dict[int, ActiveFault] = {}
        self.uses = 0
        self.holders = 0
        self.renewed_s = now_s
        self.end_reason = ""
        """Why it has ended; empty while it runs."""
        self._at_end: list[Callable[[], None]] = []

    @property
    def is_held(self) -> bool:
        return self.holders > 0

    def expires_at_s(self) -> float | None:
        """When the lease ends; None while it is held or in use."""
        return None if self.uses or self.holders else self.renewed_s + self.lease_s

    def at_end(self, call: Callable[[], None]) -> None:
        """Call this when the cluster ends, in any thread."""
        self._at_end.append(call)

    def not_at_end(self, call: Callable[[], None]) -> None:
        """Take `at_end` back."""
        self._at_end.remove(call)

    def end(self) -> None:
        """Stop the cluster."""
        for call in list(self._at_end):
            call()
        self.cluster.close()


class LeasedClusters:
    """All clusters of one service. `make` and `clock` are for tests."""

    def __init__(
        self, make: Callable[..., LabCluster] = LabCluster, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._clock = clock
        self._changed = threading.Condition()
        self._running: dict[str, LeasedCluster] = {}
        self._ended: dict[str, str] = {}
        self._is_closed = False
        self._watcher: threading.Thread | None = None
        self._ends: set[threading.Thread] = set()

    def create(self, options: Mapping[str, Any], lease_s: float = DEFAULT_LEASE_S) -> LeasedCluster:
        """Start a cluster. Raises OperatorError; nothing runs then."""
        self._check_open()
        cluster = self._make(**options).start()
        with self._changed:
            if not self._is_closed:
                leased = LeasedCluster(f"c-{secrets.token_hex(6)}", cluster, lease_s, self._clock())
                self._running[leased.id] = leased
                if self._watcher is None:
                    self._watcher = threading.Thread(target=self._watch, name="leases", daemon=True)
                    self._watcher.start()
                self._changed.notify_all()
                return leased
        cluster.close()
        self._check_open()
        raise AssertionError("it was closed meanwhile")

    def all(self) -> list[LeasedCluster]:
        """The running clusters, oldest first. Renews no lease."""
        with self._changed:
            return list(self._running.values())

    @contextlib.contextmanager
    def use(self, cluster_id: str) -> Iterator[LeasedCluster]:
        """A request about a cluster: renews its lease, at the beginning and at the end. Raises UnknownIdError, also
        instead of any other error if the cluster ended meanwhile."""
        with self._changed:
            leased = self._find(cluster_id)
            leased.uses += 1
        try:
            yield leased
        except Exception as error:
            if leased.end_reason and not isinstance(error, UnknownIdError):
                raise _ended_error(cluster_id, leased.end_reason) from error
            raise
        finally:
            with self._changed:
                leased.uses -= 1
                leased.renewed_s = self._clock()
                self._changed.notify_all()

    def hold(self, cluster_id: str) -> LeasedCluster:
        """Keep the lease until `release`. Raises UnknownIdError."""
        with self._changed:
            leased = self._find(cluster_id)
            leased.holders += 1
            return leased

    def release(self, leased: LeasedCluster) -> None:
        """The end of a `hold`: ends the cluster at once, in a thread of its own."""
        # It stays held until then: otherwise the lease might end first, and give another reason.
        self._end_later(leased, "the request that held its lease has ended")

    @contextlib.contextmanager
    def when_ended(self, cluster_id: str, call: Callable[[], None]) -> Iterator[None]:
        """Call this if the cluster ends in this block, in any thread. Does nothing for one that does not run."""
        with self._changed:
            leased = self._running.get(cluster_id)
            if leased is not None:
                leased.at_end(call)
        try:
            yield
        finally:
            if leased is not None:
                leased.not_at_end(call)

    def end_reason(self, cluster_id: str) -> str:
        """Why a cluster has ended; empty if that is not known, or it runs."""
        with self._changed:
            return self._ended.get(cluster_id, "")

    def close(self, cluster_id: str) -> None:
        """End a cluster, and wait for it. Raises UnknownIdError."""
        with self._changed:
            leased = self._find(cluster_id)
        self._end(leased, "a client has deleted it")

    def close_all(self) -> None:
        """End all clusters, wait for it, and start no others."""
        with self._changed:
            self._is_closed = True
            running = list(self._running.values())
            self._changed.notify_all()
        for leased in running:
            self._end_later(leased, "the laboratory has ended")
        while True:
            with self._changed:
                ends = list(self._ends)
            if not ends:
                return
            for thread in ends:
                thread.join()

    def end_expired(self) -> float | None:
        """End the clusters whose lease has ended; the seconds until the next one ends, or None."""
        with self._changed:
            now_s = self._clock()
            ends = [(leased, leased.expires_at_s()) for leased in self._running.values()]
            expired = [leased for leased, at_s in ends if at_s is not None and at_s <= now_s]
            left = [at_s - now_s for leased, at_s in ends if at_s is not None and leased not in expired]
        for leased in expired:
            self._end_later(leased, f"its lease has ended: no request about it for {leased.lease_s:g} s")
        return min(left, default=None)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise OperatorError("The laboratory is ending", "Start it again: fenceline lab.")

    def _find(self, cluster_id: str) -> LeasedCluster:
        found = self._running.get(cluster_id)
        if found is None:
            raise _ended_error(cluster_id, self._ended.get(cluster_id, ""))
        return found

    def _watch(self) -> None:
        while True:
            wait_s = self.end_expired()
            with self._changed:
                if self._is_closed:
                    return
                # A change between the two is not missed for longer than this.
                self._changed.wait(1.0 if wait_s is None else min(wait_s, 1.0))

    def _end_later(self, leased: LeasedCluster, reason: str) -> None:
        thread = threading.Thread(target=self._end_in_thread, args=(leased, reason), name=f"end of {leased.id}")
        with self._changed:
            self._ends.add(thread)
        thread.start()

    def _end_in_thread(self, leased: LeasedCluster, reason: str) -> None:
        try:
            self._end(leased, reason)
        finally:
            with self._changed:
                self._ends.discard(threading.current_thread())

    def _end(self, leased: LeasedCluster, reason: str) -> None:
        """Only the first call ends it; the others return at once."""
        with self._changed:
            if self._running.pop(leased.id, None) is None:
                return
            leased.end_reason = self._ended[leased.id] = reason
            for old in list(self._ended)[:-_REMEMBERED]:
                del self._ended[old]
        leased.end()


def _ended_error(cluster_id: str, reason: str) -> UnknownIdError:
    if reason:
        return UnknownIdError(
            f"Cluster {cluster_id} has ended: {reason}", "Create a new one, and keep its lease: GET .../lease."
        )
    return UnknownIdError(f"There is no cluster {cluster_id}", "Create one: POST /v1/clusters.")
