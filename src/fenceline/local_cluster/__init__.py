"""Nodes of Fenceline as child processes, with cut networks: for the command, for tests, for the test kit.

`LocalCluster` is loaded on first use: the other modules, such as `reaper`, load without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fenceline.local_cluster.cluster import LocalCluster as LocalCluster
    from fenceline.local_cluster.cluster import NodeEnded as NodeEnded

__all__ = ["LocalCluster", "NodeEnded"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fenceline.local_cluster import cluster

    return getattr(cluster, name)
