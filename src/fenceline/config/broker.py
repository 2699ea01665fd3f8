"""Every broker config of Kafka 4.3.1 and Fenceline's own few, with their synonyms.

Owns the union of the tables, and the topic configs that result from it. Never reads a file (see `config.node`).

Rules: controller.md C36, C37; since_4_0.md "Defaults"; docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

from fenceline.config import authorizer, broker_coordinators, broker_node, broker_security
from fenceline.config.definitions import ConfigKey, ConfigType, Importance, OneOf, Range, UpdateMode, table
from fenceline.config.key_table import read_table
from fenceline.config.topic import TOPIC_CONFIGS, TOPIC_SYNONYMS, VALIDATE_COMPRESSED

BROKER_CONFIGS: Final[Mapping[str, ConfigKey]] = table(
    chain.from_iterable(read_table(part.TABLE) for part in (broker_node, broker_coordinators, broker_security))
)
"""All of Kafka's keys, including internal ones (`ConfigKey.internal`: not returned by DescribeConfigs)."""

EVIDENCE_FETCH: Final = "fenceline.evidence.fetch.enable"
FENCING_GRACE: Final = "fenceline.broker.fencing.grace.ms"
SILENCE_TIMEOUT: Final = "fenceline.silence.timeout.ms"
CONFIRMATION: Final = "fenceline.coordinator.confirmation.enable"
DISTINCT_RACKS: Final = "fenceline.placement.distinct.racks"
SCHEDULING_POLICY: Final = "fenceline.scheduling.policy"
BATCH_POLICY: Final = "batch"

OWN_CONFIGS: Final[Mapping[str, ConfigKey]] = table(
    (
        ConfigKey(
            "fenceline.transaction.recovery.timeout.ms",
            ConfigType.INT,
            "10000",
            "How long a leader that was elected uncleanly asks coordinators of transactions before it serves without.",
            Importance.LOW,
            Range(0),
        ),
        ConfigKey(
            "fenceline.authentication.timeout.ms",
            ConfigType.INT,
            "10000",
            "Milliseconds that a TLS handshake and an authentication may take.",
            Importance.LOW,
            Range(1),
        ),
        ConfigKey(
            authorizer.SUPER_USERS,
            ConfigType.STRING,
            "",
            "Principals that may do everything, separated by semicolons: User:admin;User:broker. A key of Kafka's"
            " StandardAuthorizer.",
            Importance.HIGH,
            internal=True,
        ),
        ConfigKey(
            authorizer.WITHOUT_RULES,
            ConfigType.BOOLEAN,
            "false",
            "Whether everybody may use a resource that no rule matches. A key of Kafka's StandardAuthorizer.",
            Importance.HIGH,
            internal=True,
        ),
        ConfigKey(
            authorizer.MAX_LAG,
            ConfigType.INT,
            "10000",
            "Milliseconds that rights are in force at a node that does not hear from the quorum: afterwards only super"
            " users have any, since rights may have been removed; 0 keeps them, as Kafka does.",
            Importance.LOW,
            Range(0),
        ),
        ConfigKey(
            authorizer.AUDIT_FILE,
            ConfigType.STRING,
            "",
            "File for the lines about denied requests; empty writes them with the node's other lines.",
            Importance.LOW,
        ),
        ConfigKey(
            "fenceline.metrics.port",
            ConfigType.INT,
            "-1",
            "Port of the Prometheus metrics endpoint; -1 disables it, 0 lets the system choose.",
            Importance.LOW,
            Range(-1, 65535),
        ),
        ConfigKey(
            "fenceline.event.loop.sample.ms",
            ConfigType.INT,
            "100",
            "With a metrics endpoint: how often the delay of the event loop is measured.",
            Importance.LOW,
            Range(1),
        ),
        ConfigKey(
            "fenceline.metrics.host",
            ConfigType.STRING,
            "127.0.0.1",
            "Address of the Prometheus metrics endpoint; empty means all interfaces.",
            Importance.LOW,
        ),
        ConfigKey(
            "fenceline.metrics.token.file",
            ConfigType.STRING,
            "",
            "File with a token that the Prometheus metrics endpoint requires as bearer token; empty requires none.",
            Importance.LOW,
        ),
        ConfigKey(
            "fenceline.fetch.load.max.bytes",
            ConfigType.INT,
            "67108864",
            "Memory in bytes that all fetches together may use for records read from the disk; further fetches wait.",
            Importance.LOW,
            Range(1),
        ),
        ConfigKey(
            "fenceline.fetch.load.min.byte.rate",
            ConfigType.LONG,
            "100000000",
            "Bytes per second of records read from the disk that are always allowed, for all readers together. While"
            " producers or waiting consumers are served and CPU is short, the rate falls to it; 0 disables the limit.",
            Importance.LOW,
            Range(0),
        ),
        ConfigKey(
            "fenceline.lost.retention.ms",
            ConfigType.LONG,
            "604800000",
            "Milliseconds to keep records that were truncated from a log; -1 is no limit. Their receipts remain.",
            Importance.LOW,
            Range(-1),
        ),
        ConfigKey(
            "fenceline.lost.retention.bytes",
            ConfigType.LONG,
            "10737418240",
            "Maximum bytes of such records per data directory; the oldest are deleted first, -1 is no limit.",
            Importance.LOW,
            Range(-1),
        ),
        ConfigKey(
            EVIDENCE_FETCH,
            ConfigType.BOOLEAN,
            "true",
            "Whether clients may read such records over the network, with READ on the topic and on the name"
            " __fenceline_evidence.",
            Importance.LOW,
        ),
        ConfigKey(
            "fenceline.lost.topic.replication.factor",
            ConfigType.INT,
            "3",
            "Replication factor of __fenceline_losses when it is created; fewer if there are fewer brokers.",
            Importance.LOW,
            Range(1),
        ),
        ConfigKey(
            DISTINCT_RACKS,
            ConfigType.BOOLEAN,
            "false",
            "Whether a new partition is refused if there are fewer racks (broker.rack) than replicas. Without it, racks"
            " are used again. A controller's setting; fenceline start --nodes sets it, and the host as the rack.",
            Importance.MEDIUM,
        ),
        ConfigKey(
            "fenceline.outbound.address",
            ConfigType.STRING,
            "",
            "Local address of connections to other nodes; empty lets the system choose.",
            Importance.LOW,
        ),
        ConfigKey(
            SCHEDULING_POLICY,
            ConfigType.STRING,
            BATCH_POLICY,
            "CPU scheduling policy: batch does not preempt the process that woke it, normal is the system's default.",
            Importance.LOW,
            OneOf((BATCH_POLICY, "normal")),
        ),
        ConfigKey(
            FENCING_GRACE,
            ConfigType.INT,
            "100",
            "Milliseconds that a broker which lost its connection to the active controller must refuse new ones before"
            " it is fenced without waiting for its session; -1 always waits for the session, as Kafka does.",
            Importance.MEDIUM,
            Range(-1),
        ),
        ConfigKey(
            CONFIRMATION,
            ConfigType.BOOLEAN,
            "true",
            "Whether a coordinator returns stable offsets, and repeats the end of a transaction, only after the other"
            " replicas in the ISR and the ELR have confirmed that it was not replaced. Kafka does not ask.",
            Importance.MEDIUM,
        ),
        ConfigKey(
            SILENCE_TIMEOUT,
            ConfigType.INT,
            "300",
            "Milliseconds by which the answer of a leader may be overdue until its followers report it to the active"
            " controller, and until voters ask each other whether to elect another controller; and how long the"
            " controller then waits for an answer itself before it fences the broker. -1 waits for sessions, as Kafka"
            " does.",
            Importance.MEDIUM,
            Range(-1),
        ),
        ConfigKey(
            "leader.imbalance.per.broker.percentage",
            ConfigType.INT,
            "0",
            "Percentage of a broker's preferred partitions that may be led elsewhere before the controller moves them"
            " back. Kafka had this key until 4.0, with a default of 10; 0 moves all back, as Kafka does.",
            Importance.MEDIUM,
            Range(0, 100),
        ),
        ConfigKey(
            "metadata.snapshot.min.changed_records.ratio",
            ConfigType.DOUBLE,
            "0",
            "Fraction of the newest snapshot's records that must be deleted or modified before metadata bytes alone"
            " cause another one; 0 is no such limit. From KIP-630, with a default of 0.5; never in Kafka.",
            Importance.LOW,
            Range(0, 1),
        ),
        ConfigKey(
            "metadata.start.offset.lag.time.max.ms",
            ConfigType.LONG,
            "604800000",
            "Longest time that a leader keeps the metadata log for live replicas that lack a part of it, and that a"
            " follower keeps what its leader keeps; 0 waits for none. From KIP-630; never in Kafka.",
            Importance.LOW,
            Range(0),
        ),
        ConfigKey(
            VALIDATE_COMPRESSED,
            ConfigType.BOOLEAN,
            "false",
            "Decompress batches from producers and check every record; topics may override it.",
            update_mode=UpdateMode.CLUSTER_WIDE,
        ),
    )
)
"""Keys that Kafka 4.3.1 does not have and only warns about. Their names start with `fenceline.`, except two of KIP-630
and one that Kafka had until 4.0."""

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
        ("leader.replication.throttled.rate", "Bytes per second sent to throttled followers."),
        ("follower.replication.throttled.rate", "Bytes per second that throttled replicas fetch."),
        ("replica.alter.log.dirs.io.max.bytes.per.second", "Bytes per second of moves between log directories."),
    )
)
"""Broker configs that exist in the metadata log only, never in a file. Kafka returns them without documentation, and
only if they are set."""


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
"""Keys that a running broker accepts only as `listener.name.<listener>.<key>`."""

_LISTENER_PREFIX: Final = "listener.name."
_PER_MECHANISM: Final = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
"""Keys that can also be set as `listener.name.<listener>.<mechanism>.<key>` (security.md A2)."""


def listener_prefix(listener: str) -> str:
    """Of keys for one listener."""
    return f"{_LISTENER_PREFIX}{listener.lower()}."


def listener_of(name: str) -> tuple[str, str] | None:
    """The listener, as it is written, and the key of a name with a prefix; None for other names."""
    if not name.startswith(_LISTENER_PREFIX):
        return None
    listener, dot, key = name.removeprefix(_LISTENER_PREFIX).partition(".")
    return (listener, next((each for each in _PER_MECHANISM if key.endswith(each)), key)) if dot else None


def without_listener(name: str) -> str:
    """The key behind the prefix of a listener and a mechanism; other names unchanged."""
    found = listener_of(name)
    return name if found is None else found[1]


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The key and its fallbacks, in order of precedence."""
    without = without_listener(name)
    return _SYNONYMS.get(name, (name,)) if without == name else (name, without)


def broker_key(name: str) -> ConfigKey | None:
    """The key of a broker config, in a file or in the metadata log only; None for an unknown one."""
    return ALL_CONFIGS.get(name) or DYNAMIC_ONLY_CONFIGS.get(name)


def update_mode(name: str) -> UpdateMode:
    """How a running broker accepts a new value of the key."""
    key = broker_key(name)
    return key.update_mode if key is not None else UpdateMode.READ_ONLY


def is_dynamic(name: str) -> bool:
    """Whether the key can be changed while the broker runs."""
    return update_mode(name) is not UpdateMode.READ_ONLY


def topic_defaults(settings: Mapping[str, str]) -> dict[str, str]:
    """The topic configs that result from the given broker settings; keys without value are omitted."""
    found: dict[str, str] = {}
    for name, key in TOPIC_CONFIGS.items():
        value = key.default if isinstance(key.default, str) else None
        for synonym in TOPIC_SYNONYMS.get(name, ()):
            text = settings.get(synonym.name)
            if text is None:
                default = ALL_CONFIGS[synonym.name].default
                text = default if isinstance(default, str) else None
            if text is not None:
                value = synonym.converted(text)
                break
        if value is not None:
            found[name] = value.strip()
    return found
