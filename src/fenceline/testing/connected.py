"""A cluster that the test run has not started: Apache Kafka, or one cluster that several test processes share.

Owns the helpers' view of it. Has no faults and no situations: these would affect other users of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from fenceline.errors import OperatorError
from fenceline.testing.kafka_helpers import KafkaHelpers


class ConnectedCluster(KafkaHelpers):
    """The cluster at these addresses. `settings` are more settings of clients, such as a login."""

    def __init__(self, bootstrap_servers: str, settings: Mapping[str, Any] | None = None) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._settings = dict(settings or {})

    @property
    def bootstrap_servers(self) -> str:
        return self._bootstrap_servers

    @property
    def client_settings(self) -> dict[str, Any]:
        return {**self._settings, "bootstrap.servers": self._bootstrap_servers}

    @property
    def faults(self) -> NoReturn:
        """Raises OperatorError."""
        self._refuse("faults")

    @property
    def situations(self) -> NoReturn:
        """Raises OperatorError."""
        self._refuse("situations")

    def losses(self, topic: str | None = None) -> NoReturn:
        """Raises OperatorError."""
        self._refuse("loss receipts")

    def close(self) -> None:
        """Close the clients of the test kit; the cluster goes on."""
        self._close_clients()

    def _refuse(self, what: str) -> NoReturn:
        raise OperatorError(
            f"The cluster at {self.bootstrap_servers} is not this test run's own: it has no {what}",
            "Run the test without --kafka-shared and --kafka-bootstrap-servers, or with the fixture new_kafka_cluster.",
        )
