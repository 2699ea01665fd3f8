"""Tagged fields that Fenceline's nodes add to Kafka's messages among themselves (KIP-482).

Owns their tags, and the level by which nodes agree on them. Kafka's nodes skip a tag that they do not know; still, a
node sends an extension only to a peer that has announced it: a node that introduces itself as `fenceline` in
ApiVersions gets `fenceline_level` in the response, no other client does. A missing level is 0.

| level | what a node that announces it does                                                              |
|-------|-------------------------------------------------------------------------------------------------|
| 1     | as controller it reads `silent_brokers` in BrokerHeartbeat; as leader of the metadata quorum it |
|       | answers each Fetch within its `max_wait_ms`, so followers may doubt it when an answer is overdue |

The tags begin far above Kafka's, which number the tagged fields of each message from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from fenceline.wire.apis import ApiKey

SOFTWARE_NAME: Final = "fenceline"
"""The `client_software_name` of Fenceline's nodes."""
LEVEL_TAG: Final = 10_000
"""The first of the tags, which number the fields of each message; `fenceline_level` in ApiVersions responses has it."""
WATCHES_SILENCE: Final = 1
"""The first level of a node that takes part in noticing silent leaders."""

_SILENT_BROKERS: Final = "silent_brokers"

REQUESTS: Final[Mapping[int, str]] = MappingProxyType(
    {
        ApiKey.BROKER_HEARTBEAT: f"""
  {_SILENT_BROKERS}: []SilentBroker 0+ tag{LEVEL_TAG}@0+
    broker_id: int32 0+
    broker_epoch: int64 0+
""",
    }
)
"""Fields of requests besides those of the schemas, by API key, in their text form."""

RESPONSES: Final[Mapping[int, str]] = MappingProxyType(
    {
        ApiKey.API_VERSIONS: f"""
  fenceline_level: int16 3+ tag{LEVEL_TAG}@3+
""",
    }
)
"""Fields of responses, as `REQUESTS`."""


def without_extensions(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a request to a peer that has not announced that it reads extensions."""
    return {name: value for name, value in fields.items() if name != _SILENT_BROKERS}
