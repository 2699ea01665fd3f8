"""What requests and answers of the quorum have in common on the wire. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fenceline.ids import METADATA_TOPIC
from fenceline.node.quorum_versions import VERSIONS as VERSIONS
from fenceline.quorum.control_records import VoterEndpoint

Fields = dict[str, Any]
FETCH_BY_ID: Final = 13
"""The version from which topics of Fetch have ids."""


def named(partition: Fields) -> list[Fields]:
    """The one topic with its one partition."""
    return [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0, **partition}]}]


def listener(endpoint: VoterEndpoint) -> Fields:
    """Where a node listens."""
    return {"name": endpoint.name, "host": endpoint.host, "port": endpoint.port}


def voter_endpoints(listeners: Iterable[Any]) -> tuple[VoterEndpoint, ...]:
    """Of the listeners that an entity names."""
    return tuple(VoterEndpoint(each.name, each.host, each.port) for each in listeners)
