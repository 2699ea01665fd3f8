"""What the fork server loads before it forks, beyond what `lab_node` imports: what a node loads with its first
requests.

Owns that list only. A missing name costs each node some milliseconds, never more.
"""

from __future__ import annotations

import contextlib
from typing import Final

from fenceline.errors import FencelineError
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request, write_response

_APIS: Final = (
    ApiKey.METADATA,
    ApiKey.CREATE_TOPICS,
    ApiKey.LIST_OFFSETS,
    ApiKey.API_VERSIONS,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.ALTER_PARTITION,
    ApiKey.FETCH,
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
)


def load() -> None:
    """Import the schemas of frequent messages."""
    for api in _APIS:
        for read in (read_request, read_response):
            with contextlib.suppress(FencelineError, ValueError):
                read(api, 1, b"")
        for write in (write_request, write_response):
            with contextlib.suppress(FencelineError, ValueError):
                write(api, 1, {})
