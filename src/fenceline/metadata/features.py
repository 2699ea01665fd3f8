"""Feature levels: the supported ones, those of a new cluster, and the effects of a level.

Owns the table of features and the record versions that follow from `metadata.version`. The controller decides whether
an update is allowed (`controller.md C38`).

Rules: since_4_0.md K1 (ranges and levels of a new cluster), K2, K3 (record versions by level).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from fenceline.errors import OperatorError

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"
ELR_VERSION: Final = "eligible.leader.replicas.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"

MINIMUM_METADATA_VERSION: Final = 7
LATEST_METADATA_VERSION: Final = 30

MV_NO_EPOCH_ON_SHRINK: Final = 12
"""3.6-IV0: from here on a shrinking ISR does not start a leader epoch (C27)."""
MV_CONTROLLER_REGISTRATION: Final = 15
MV_DIRECTORIES: Final = 17
MV_ELR: Final = 23
MV_ELR_DEFAULT: Final = 26
MV_CORDONED_LOG_DIRS: Final = 30


class UnknownFeatureLevel(OperatorError):
    """A finalized level is unknown to this release, so later records may have another meaning."""

    def __init__(self, name: str, level: int) -> None:
        known = SUPPORTED.get(name)
        supported = (
            "does not support this feature" if known is None else f"supports levels {known.minimum} to {known.maximum}"
        )
        super().__init__(
            f"The finalized level of {name} is {level}; this release {supported}.",
            "Run a release that supports the level on this node. Upgrade features only after all nodes are upgraded."
            " `fenceline features downgrade` lowers a level if the cluster allows it.",
        )


class Levels(NamedTuple):
    """An inclusive range of levels. A feature that a node does not name counts as [0, 0] (`since_4_0.md K37`)."""

    minimum: int
    maximum: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.minimum <= level <= self.maximum


NO_LEVELS: Final = Levels(0, 0)

SUPPORTED: Final[Mapping[str, Levels]] = MappingProxyType(
    {
        METADATA_VERSION: Levels(MINIMUM_METADATA_VERSION, LATEST_METADATA_VERSION),
        KRAFT_VERSION: Levels(0, 1),
        TRANSACTION_VERSION: Levels(0, 2),
        GROUP_VERSION: Levels(0, 1),
        ELR_VERSION: Levels(0, 1),
        SHARE_VERSION: Levels(0, 1),
        STREAMS_VERSION: Levels(0, 1),
    }
)
"""The levels that a 4.3 node reports in registrations and ApiVersions (K1)."""


def check_known(name: str, level: int) -> None:
    """Check a finalized level of the metadata log. Raises UnknownFeatureLevel."""
    if level and level not in SUPPORTED.get(name, NO_LEVELS):
        raise UnknownFeatureLevel(name, level)


_DEFAULT_SINCE: Final = (
    (TRANSACTION_VERSION, 2, 24),
    (GROUP_VERSION, 1, 22),
    (ELR_VERSION, 1, MV_ELR_DEFAULT),
    (SHARE_VERSION, 1, 28),
    (STREAMS_VERSION, 1, 29),
)


def fresh_levels(metadata_version: int = LATEST_METADATA_VERSION) -> dict[str, int]:
    """Levels that formatting finalizes: metadata.version first, then the others by name, level 0 left out (K1, K20)."""
    others = {name: level for name, level, since in _DEFAULT_SINCE if metadata_version >= since}
    return {METADATA_VERSION: metadata_version, **dict(sorted(others.items()))}


METADATA_VERSION_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        7: "3.3-IV3",
        8: "3.4-IV0",
        9: "3.5-IV0",
        10: "3.5-IV1",
        11: "3.5-IV2",
        12: "3.6-IV0",
        13: "3.6-IV1",
        14: "3.6-IV2",
        15: "3.7-IV0",
        16: "3.7-IV1",
        17: "3.7-IV2",
        18: "3.7-IV3",
        19: "3.7-IV4",
        20: "3.8-IV0",
        21: "3.9-IV0",
        22: "4.0-IV0",
        23: "4.0-IV1",
        24: "4.0-IV2",
        25: "4.0-IV3",
        26: "4.1-IV0",
        27: "4.1-IV1",
        28: "4.2-IV0",
        29: "4.2-IV1",
        30: "4.3-IV0",
    }
)
"""Names of the metadata.version levels (C39 as corrected by K2)."""


def register_broker_record_version(metadata_version: int) -> int:
    """K3: 1, 2 from level 8, 3 from 17, 4 from 30."""
    return 4 if metadata_version >= 30 else 3 if metadata_version >= 17 else 2 if metadata_version >= 8 else 1


def partition_record_version(metadata_version: int) -> int:
    """K3: 0, 1 from level 17 (directories), 2 from 23 (eligible leader replicas); the same for changes."""
    return 2 if metadata_version >= MV_ELR else 1 if metadata_version >= MV_DIRECTORIES else 0
