"""How long the Spark side bears with a cluster that changes or can not be reached.

Owns the meaning of `fetchOffset.numRetries` and `fetchOffset.retryIntervalMs`, on the driver, in the tasks that read
and in the sink: so many attempts in a row, each of which may itself last `default.api.timeout.ms`, and a pause between.
Never swallows an error: the last one is raised, and one that another attempt can not mend is raised at once. The
client is imported when there is something to ask: options are read where it must not be yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from fenceline.errors import PeerError
from pyspark_fenceline.given_options import GivenOptions

if TYPE_CHECKING:
    from fenceline.client.errors import BrokersUnreachable

T = TypeVar("T")
_log = logging.getLogger("pyspark_fenceline")
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Patience:
    """`attempts` at most, at least 1; `interval_ms` between two of them."""

    attempts: int = 3
    interval_ms: int = 1000


USUAL: Final = Patience()


def patience_of(given: GivenOptions) -> Patience:
    """What the options say. Raises `OperatorError` with the option's name."""
    attempts = given.positive("fetchOffset.numRetries", _INT_MAX)
    interval_ms = given.positive("fetchOffset.retryIntervalMs", _INT_MAX, low=0)
    return Patience(
        USUAL.attempts if attempts is None else attempts, USUAL.interval_ms if interval_ms is None else interval_ms
    )


class Attempts:
    """Failures in a row of one piece of work."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._failed = 0

    def bear(self, error: BrokersUnreachable | PeerError) -> None:
        """Wait for another attempt. Raises `error` when this was the last one, or when no attempt would mend it."""
        from fenceline.client.errors import RETRIABLE, BrokersUnreachable

        if isinstance(error, PeerError) and error.code not in RETRIABLE:
            raise error
        self._failed += 1
        if self._failed >= self._patience.attempts:
            if isinstance(error, PeerError):
                raise error
            raise BrokersUnreachable(
                f"{error.message} (fetchOffset.numRetries: {self._patience.attempts})", error.advice
            ) from None
        _log.warning("the brokers did not answer (attempt %d of %d): %s", self._failed, self._patience.attempts, error)
        time.sleep(self._patience.interval_ms / 1000)

    def begin_anew(self) -> None:
        """Something was achieved since the last failure."""
        self._failed = 0


def with_retries(work: Callable[[], T], patience: Patience) -> T:
    """Run `work` again while the cluster changes under it or can not be reached. Raises the last attempt's error."""
    from fenceline.client.errors import BrokersUnreachable

    attempts = Attempts(patience)
    while True:
        try:
            return work()
        except (BrokersUnreachable, PeerError) as error:
            attempts.bear(error)
