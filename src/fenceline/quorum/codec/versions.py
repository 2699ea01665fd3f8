"""Supported versions of the quorum's APIs. Separate from `codec.wire`, so that a start need not import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fenceline.wire.apis import ApiKey

VERSIONS: Final[Mapping[ApiKey, tuple[int, int]]] = {
    ApiKey.FETCH: (4, 18),
    ApiKey.VOTE: (0, 2),
    ApiKey.BEGIN_QUORUM_EPOCH: (0, 1),
    ApiKey.END_QUORUM_EPOCH: (0, 1),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.FETCH_SNAPSHOT: (0, 1),
    ApiKey.ADD_RAFT_VOTER: (0, 1),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0),
    ApiKey.UPDATE_RAFT_VOTER: (0, 0),
}
"""Versions served, both ends inclusive (K4)."""
