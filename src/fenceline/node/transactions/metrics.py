"""The metrics of the transaction coordinator, computed when they are scraped.

Owns only the sums. Runs in the scraper's thread, so it takes snapshots and never changes anything. Names are documented
in `docs/metrics.md`. Rule: transactions.md X59.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fenceline.node.metric_families import gauge_by, gauges
from fenceline.transactions.states import TransactionState

if TYPE_CHECKING:
    from fenceline.node.transactions.driver import TransactionsDriver
    from fenceline.node.transactions.marker_sender import MarkerSender
    from fenceline.node.transactions.recovery import TransactionRecovery


class TransactionCollector:
    """Yields a broker's metrics of transactions to prometheus-client."""

    def __init__(self, driver: TransactionsDriver, sender: MarkerSender, recovery: TransactionRecovery) -> None:
        self._driver = driver
        self._sender = sender
        self._recovery = recovery

    def collect(self) -> Iterator[Any]:
        coordinator = self._driver.coordinator
        states = coordinator.states()
        yield gauge_by(
            "state",
            "fenceline_transactional_ids",
            "Transactional ids that this broker coordinates, by state",
            {state.title: states[state] for state in TransactionState},
        )
        yield from gauges(
            (
                "fenceline_transaction_markers_waiting",
                "Transactions whose end markers wait for a broker, once for each broker",
                self._sender.waiting_count,
            ),
            (
                "fenceline_transactions_delayed",
                "Decided transactions whose end markers or completion failed and are tried again",
                coordinator.delayed_count,
            ),
            (
                "fenceline_transaction_recovery_partitions",
                "Served after an unclean election although a coordinator has not answered about open transactions",
                self._recovery.late_count,
            ),
        )
        yield self._driver.load_durations.family(
            "fenceline_transaction_state_load_seconds",
            "Time until a partition of __transaction_state was loaded",
        )
