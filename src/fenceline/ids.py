"""Names for the identifiers that all packages share. Owns no behaviour."""

from __future__ import annotations

from random import SystemRandom
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.rng import Rng

ZERO_UUID: Final = UUID(int=0)
METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = UUID(int=1)
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
LOSSES_TOPIC: Final = "__fenceline_losses"
EVIDENCE_RESOURCE: Final = "__fenceline_evidence"
"""No topic: the name under which rules allow to read the evidence of losses over the network."""
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, LOSSES_TOPIC})

NO_EPOCH: Final = -1
NO_LEADER: Final = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_SYSTEM: Final = SystemRandom()
# The six bits that base64url encodes as a dash.
_DASH: Final = 62


def random_id(rng: Rng = _SYSTEM) -> UUID:
    """A random id for use in commands: its text never starts with a dash, which tools would parse as an option."""
    while True:
        made = UUID(int=rng.getrandbits(128), version=4)
        if made.bytes[0] >> 2 != _DASH:
            return made


def encode_uuid(value: UUID) -> str:
    """Kafka's text form: base64url of the 16 bytes, no padding (`formats.md F1`, `F3`)."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    """Inverse of `encode_uuid`. Raises ValueError on anything that is not 16 bytes."""
    from base64 import urlsafe_b64decode

    return UUID(bytes=urlsafe_b64decode(text + "=" * (-len(text) % 4)))
