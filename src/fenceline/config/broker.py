"""Every broker config of Kafka 4.3.1 and Fenceline's own few, with their synonyms.

Owns the union of the tables. Never reads a file (see `config.node`).

Rules: controller.md C36, C37; since_4_0.md "Defaults"; docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

from fenceline.config import broker_coordinators, broker_node, broker_security
from fenceline.config.definitions import ConfigKey, ConfigType, Importance, OneOf, Range, UpdateMode, table
from fenceline.config.key_table import read_table
from fenceline.config.topic import VALIDATE_COMPRESSED

BROKER_CONFIGS: Final[Mapping[str, ConfigKey]] = table(
    chain.from_iterable(read_table(part.TABLE) for part in (broker_node, broker_coordinators, broker_security))
)
"""All keys of Kafka's own, internal ones too (`ConfigKey.internal`: not told by DescribeConfigs)."""

FENCING_GRACE: Final = "fenceline.broker.fencing.grace.ms"
SCHEDULING_POLICY: Final = "fenceline.scheduling.policy"
BATCH_POLICY: Final = "batch"

OWN_CONFIGS: Final[Mapping[str, ConfigKey]] = table(
    (
        ConfigKey(
            "fenceline.metrics.port",
            ConfigType.INT,
            "-1",
            "Port of the Prometheus metrics; -1 serves none, 0 lets the system choose.",
            Importance.LOW,
            Range(-1, 65535),
        ),
        ConfigKey(
            "fenceline.metrics.host",
            ConfigType.STRING,
            "127.0.0.1",
            "Address of the Prometheus metrics; empty means all interfaces.",
            Importance.LOW,
        ),
        ConfigKey(
            "fenceline.fetch.load.max.bytes",
            ConfigType.INT,
            "67108864",
            "Memory that all fetches may take for records read from the disk; those that find none wait.",
            Importance.LOW,
            Range(1),
        ),
        ConfigKey(
            "fenceline.fetch.load.min.byte.rate",
            ConfigType.LONG,
            "100000000",
            "Bytes a second that records from the disk may always leave with, all readers together. While producers or"
            " waiting consumers are served and cores are short, the rate falls to it; 0 holds nobody back.",
            Importance.LOW,
            Range(0),
        ),
        ConfigKey(
            "fenceline.lost.retention.ms",
            ConfigType.LONG,
            "604800000",
            "Milliseconds to keep the records that were cut off a log; -1 is for ever. The receipt says when they go.",
            Importance.LOW,
            Range(-1),
        ),
        ConfigKey(
            "fenceline.lost.retention.bytes",
            ConfigType.LONG,
            "10737418240",
            "Most bytes of such records to keep in a data directory; the oldest go first, -1 is no limit.",
            Importance.LOW,
            Range(-1),
        ),
        ConfigKey(
            "fenceline.lost.topic.replication.factor",
            ConfigType.INT,
            "3",
            "Replicas of __fenceline_losses when it is created; fewer where fewer brokers are there.",
            Importance.LOW,
            Range(1),
        ),
        ConfigKey(
            "fenceline.outbound.address",
            ConfigType.STRING,
            "",
            "Address of this machine that connections to other nodes come from; empty leaves it to the system.",
            Importance.LOW,
        ),
        ConfigKey(
            SCHEDULING_POLICY,
            ConfigType.STRING,
            BATCH_POLICY,
            "How the node shares cores: batch does not take the core of who wakes it, normal does as other processes.",
            Importance.LOW,
            OneOf((BATCH_POLICY, "normal")),
        ),
        ConfigKey(
            FENCING_GRACE,
            ConfigType.INT,
            "100",
            "For how long a broker that has lost its connection to the active controller must refuse new ones before it"
            " is fenced without waiting for its session; -1 always waits for the session, as Kafka does.",
            Importance.MEDIUM,
            Range(-1),
        ),
        ConfigKey(
            "leader.imbalance.per.broker.percentage",
            ConfigType.INT,
            "0",
            "How many percent of the partitions that a broker should lead may be led elsewhere before the controller"
            " gives them back. Kafka had this key until 4.0, with a default of 10; 0 gives all back, as Kafka does.",
            Importance.MEDIUM,
            Range(0, 100),
        ),
        ConfigKey(
            "metadata.snapshot.min.changed_records.ratio",
            ConfigType.DOUBLE,
            "0",
            "Part of the newest snapshot's records that must have been deleted or modified before bytes alone write"
            " another one; 0 is no such limit. KIP-630 names this key, with a default of 0.5; Kafka never had it.",
            Importance.LOW,
            Range(0, 1),
        ),
        ConfigKey(
            "metadata.start.offset.lag.time.max.ms",
            ConfigType.LONG,
            "604800000",
            "Longest time that a leader keeps the metadata log for live replicas that lack a part of it, and that a"
            " follower keeps what its leader keeps; 0 waits for none. KIP-630 names this key, Kafka never had it.",
            Importance.LOW,
            Range(0),
        ),
        ConfigKey(
            VALIDATE_COMPRESSED,
            ConfigType.BOOLEAN,
            "false",
            "Decompress what producers send and check every record; topics may say otherwise.",
            update_mode=UpdateMode.CLUSTER_WIDE,
        ),
    )
)
"""Keys that Kafka 4.3.1 does not have and only warns of. Their names start with `fenceline.`, except two of KIP-630 and
one that Kafka had until 4.0."""

ALL_CONFIGS: Final[Mapping[str, ConfigKey]] = MappingProxyType({**BROKER_CONFIGS, **OWN_CONFIGS})

_SYNONYM_GROUPS: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **{name: group for group in _SYNONYM_GROUPS for name in group},
        "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    }
)

DYNAMIC_ONLY_CONFIGS: Final[Mapping[str, ConfigKey]] = table(
    ConfigKey(name, ConfigType.LONG, str(2**63 - 1), doc, validator=Range(0), update_mode=UpdateMode.CLUSTER_WIDE)
    for name, doc in (
        ("leader.replication.throttled.rate", "Bytes a second that are sent to throttled followers."),
        ("follower.replication.throttled.rate", "Bytes a second that throttled replicas fetch."),
        ("replica.alter.log.dirs.io.max.bytes.per.second", "Bytes a second of moves between log directories."),
    )
)
"""Broker configs that exist in the metadata log only, never in a file. Kafka tells them without documentation, and only
where they are set."""


PER_LISTENER_CONFIGS: Final = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Keys that a running broker takes only as `listener.name.<listener>.<key>`."""


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The key and those that stand in for it when it is not set, the strongest first."""
    return _SYNONYMS.get(name, (name,))


def broker_key(name: str) -> ConfigKey | None:
    """The key of a broker config, in a file or in the metadata log only; None for what nobody knows."""
    return ALL_CONFIGS.get(name) or DYNAMIC_ONLY_CONFIGS.get(name)


def update_mode(name: str) -> UpdateMode:
    """How a running broker takes a new value of the key."""
    key = broker_key(name)
    return key.update_mode if key is not None else UpdateMode.READ_ONLY


def is_dynamic(name: str) -> bool:
    """Whether the key can be changed while the broker runs."""
    return update_mode(name) is not UpdateMode.READ_ONLY
