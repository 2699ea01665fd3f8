"""Broker settings for transactions. Owns names, defaults and units; reads no file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

DEFAULT_PARTITION_COUNT: Final = 50
NO_TIMEOUT_MS: Final = 2**31 - 1
"""Of a transaction that never times out (two-phase commit, `transactions.md X7`)."""
RETRY_MS: Final = 100
"""Pause before a rejected completion or marker is tried again; doubled each time."""
MAX_RETRY_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Kafka's broker properties of the same meaning, with Kafka's defaults (`transactions.md X7`, `X19`, `X20`)."""

    max_timeout_ms: int = 900_000
    two_phase_commit: bool = False
    abort_interval_ms: int = 10_000
    """Time-outs are carried out at multiples of it."""
    expiration_ms: int = 604_800_000
    expiry_interval_ms: int = 3_600_000

    @staticmethod
    def from_lookup(get: Callable[[str], object | None]) -> TransactionSettings:
        """Settings from a lookup of Kafka's property names; None is the default. Raises ValueError."""
        base = TransactionSettings()

        def number(name: str, default: int) -> int:
            value = get(name)
            return default if value is None else int(str(value))

        return TransactionSettings(
            max_timeout_ms=number("transaction.max.timeout.ms", base.max_timeout_ms),
            two_phase_commit=str(get("transaction.two.phase.commit.enable")).lower() == "true",
            abort_interval_ms=number(
                "transaction.abort.timed.out.transaction.cleanup.interval.ms", base.abort_interval_ms
            ),
            expiration_ms=number("transactional.id.expiration.ms", base.expiration_ms),
            expiry_interval_ms=number(
                "transaction.remove.expired.transaction.cleanup.interval.ms", base.expiry_interval_ms
            ),
        )
