"""Fields that requests and responses of the quorum have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fenceline.ids import METADATA_TOPIC
from fenceline.quorum.codec.versions import VERSIONS as VERSIONS
from fenceline.quorum.control_records import VoterEndpoint

Fields = dict[str, Any]
FETCH_BY_ID: Final = 13
"""The first Fetch version with topic ids."""


def named(partition: Fields) -> list[Fields]:
    """The single topic with its single partition."""
    return [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0, **partition}]}]


def listener(endpoint: VoterEndpoint) -> Fields:
    """An endpoint."""
    return {"name": endpoint.name, "host": endpoint.host, "port": endpoint.port}


def voter_endpoints(listeners: Iterable[Any]) -> tuple[VoterEndpoint, ...]:
    """The endpoints of an entity's listeners."""
    return tuple(VoterEndpoint(each.name, each.host, each.port) for each in listeners)
