"""Retries while the cluster changes or cannot be reached.

Owns the meaning of `fetchOffset.numRetries` and `fetchOffset.retryIntervalMs`, on the driver, in reading tasks and in
the sink: the number of consecutive attempts, each of which may itself last `default.api.timeout.ms`, and the pause
between them. Never swallows an error: the last one is raised, and a non-retriable one is raised at once. The client is
imported late, because options are parsed where it must not be imported yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from fenceline.errors import PeerError
from pyspark_fenceline.common.given_options import GivenOptions

if TYPE_CHECKING:
    from fenceline.client.core.errors import BrokersUnreachable

T = TypeVar("T")
_log = logging.getLogger("pyspark_fenceline")
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `attempts` (at least 1), with `interval_ms` between them."""

    attempts: int = 3
    interval_ms: int = 1000


DEFAULT_RETRIES: Final = RetryPolicy()


def retry_policy(given: GivenOptions) -> RetryPolicy:
    """Parse the options. Raises `OperatorError` with the option's name."""
    attempts = given.positive("fetchOffset.numRetries", _INT_MAX)
    interval_ms = given.positive("fetchOffset.retryIntervalMs", _INT_MAX, low=0)
    return RetryPolicy(
        DEFAULT_RETRIES.attempts if attempts is None else attempts,
        DEFAULT_RETRIES.interval_ms if interval_ms is None else interval_ms,
    )


class Attempts:
    """Counts consecutive failures of one operation."""

    def __init__(self, retries: RetryPolicy) -> None:
        self._retries = retries
        self._failed = 0

    def wait_or_raise(self, error: BrokersUnreachable | PeerError) -> None:
        """Wait before the next attempt. Raises `error` after the last one, and if it is not retriable."""
        from fenceline.client.core.errors import RETRIABLE, BrokersUnreachable

        if isinstance(error, PeerError) and error.code not in RETRIABLE:
            raise error
        self._failed += 1
        if self._failed >= self._retries.attempts:
            if isinstance(error, PeerError):
                raise error
            raise BrokersUnreachable(
                f"{error.message} (fetchOffset.numRetries: {self._retries.attempts})", error.advice
            ) from None
        _log.warning("the brokers did not answer (attempt %d of %d): %s", self._failed, self._retries.attempts, error)
        time.sleep(self._retries.interval_ms / 1000)

    def reset(self) -> None:
        """Reset the count after progress."""
        self._failed = 0


def with_retries(work: Callable[[], T], retries: RetryPolicy) -> T:
    """Repeat `work` while the cluster changes or cannot be reached. Raises the last attempt's error."""
    from fenceline.client.core.errors import BrokersUnreachable

    attempts = Attempts(retries)
    while True:
        try:
            return work()
        except (BrokersUnreachable, PeerError) as error:
            attempts.wait_or_raise(error)
