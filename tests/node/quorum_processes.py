"""Names of `fenceline.testing.mixed_cluster` for the tests of the tools."""

from __future__ import annotations

from fenceline.testing.mixed_cluster import CLUSTER_ID as CLUSTER
from fenceline.testing.mixed_cluster import MixedCluster as Processes
from fenceline.testing.mixed_cluster import MixedNode as Process

__all__ = ["CLUSTER", "Process", "Processes"]
