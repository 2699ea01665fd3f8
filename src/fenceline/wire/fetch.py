"""Fetch (api key 1), versions 4 to 18, requests and responses, read and written by hand (`hot_path.md H3`, `H4`).

The public module; the codecs are in `fetch_request` and `fetch_response`, the values in `fetch_messages`.

Versions: 5 log start offset; 7 sessions (KIP-227); 9 leader epoch (KIP-320); 11 rack (KIP-392); 12 flexible, last
fetched epoch, divergence (KIP-595); 13 topic ids instead of names; 15 replica state in a tag; 16 node endpoints; 17
replica directory id; 18 the follower's high watermark (KIP-1166). Lists are grouped by runs of one topic.
"""

from __future__ import annotations

from fenceline.wire.fetch_messages import (
    FIRST_FLEXIBLE,
    FIRST_WITH_TOPIC_IDS,
    MAX_VERSION,
    MIN_VERSION,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from fenceline.wire.fetch_request import encode_request, parse_request
from fenceline.wire.fetch_response import encode_response, largest_partition, parse_response
from fenceline.wire.partitioned import LeaderEndpoint

__all__ = [
    "FIRST_FLEXIBLE",
    "FIRST_WITH_TOPIC_IDS",
    "MAX_VERSION",
    "MIN_VERSION",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchedPartition",
    "LeaderEndpoint",
    "encode_request",
    "encode_response",
    "largest_partition",
    "parse_request",
    "parse_response",
]
