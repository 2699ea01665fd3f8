"""Clusters of processes under measurement, of Fenceline or Apache Kafka, with the same properties.

They are formatted but not started on entry: benchmarks start them, to measure from outside.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.harness import Side, source_of
from fenceline.client.admin.admin import Admin
from fenceline.client.admin.quorum import QuorumDescription
from fenceline.testing.mixed_cluster import COMBINED, MixedCluster
from fenceline.testing.waiting import eventually

PATIENCE_S: Final = 120.0
STEP_S: Final = 0.005
SHORT_SESSIONS: Final = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}
"""Broker properties with which the controller soon fences a silent broker."""
_VOTERS: Final = 3

wait_for = partial(eventually, wait_s=PATIENCE_S, step_s=STEP_S)


class ClusterUnderTest(MixedCluster):
    """Three nodes of `roles` that form a quorum; `joining` more nodes are formatted, and join when they are started."""

    def __init__(
        self,
        side: Side,
        root: Path,
        *,
        roles: str = COMBINED,
        joining: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        # Cache compiled files outside of the checkout, which may be read-only.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(root.parent / f"pycache-{side}")
        environment |= source_of(side)
        count = _VOTERS + joining
        super().__init__(
            root,
            [f"kafka:{roles}" if side == "kafka" else roles] * count,
            voters=_VOTERS,
            late=range(1, count + 1),
            settings=settings,
            heap="1g",
            options=("--log-level", "warning"),
            environment=environment,
        )
        self.side = side
        self.roles = roles

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.root, ignore_errors=True)

    def start_voters(self) -> float:
        """Seconds from the first spawn until all brokers know each other, or all controllers listen with a leader."""
        started = time.perf_counter()
        for node in self.voters:
            node.start()
        if self.roles == COMBINED:
            self.wait_complete()
        else:
            for node in self.voters:
                wait_for(node.listens, f"controller {node.node_id} of {self.side} listens")
            self.leader()
        return time.perf_counter() - started

    def wait_caught_up(self) -> None:
        """Wait until every voter has the complete log and has fetched within the last second."""

        def is_caught_up() -> bool:
            found = self._quorum()
            fetched = [v.last_fetch_ms or 0 for v in found.voters if v.replica_id != found.leader_id]
            return all(v.lag == 0 for v in found.voters) and min(fetched) > (time.time() - 1) * 1000

        eventually(is_caught_up, f"all voters of {self.side} caught up", wait_s=PATIENCE_S, step_s=0.1)

    def _quorum(self) -> QuorumDescription:
        """From the controllers. Raises FencelineError."""
        where = ",".join(each.controller for each in self.voters)
        with Admin({"bootstrap.controllers": where, "default.api.timeout.ms": 5000}) as admin:
            return admin.describe_quorum()
