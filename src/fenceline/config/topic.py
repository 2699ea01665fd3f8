"""Every topic config of Kafka 4.3.1 and Fenceline's own, the broker keys that stand in for them, and their check.

Owns names, types, defaults and bounds. Never stores or merges values (see `config.effective`).

Rules: controller.md C21 (null values), C36, C37; since_4_0.md "Defaults".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from fenceline.config.definitions import (
    ConfigKey,
    ConfigType,
    InvalidConfig,
    ListRules,
    OneOf,
    Pattern,
    Range,
    RangeOr,
    table,
)

_LONG_MAX: Final = "9223372036854775807"
_THROTTLED: Final = Pattern(re.compile(r"([0-9]+:[0-9]+)?"), "[partitionId]:[brokerId],[partitionId]:[brokerId],...")

VALIDATE_COMPRESSED: Final = "fenceline.validate.compressed.records"
"""Fenceline's own, for topics and for brokers. Kafka takes a topic that has it, and does what it does anyway."""

CODEC_WORDS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPE_WORDS: Final = ("CreateTime", "LogAppendTime")

TOPIC_CONFIGS: Final[Mapping[str, ConfigKey]] = table(
    (
        ConfigKey(
            "segment.bytes",
            ConfigType.INT,
            "1073741824",
            "A segment that has reached this size in bytes is closed and the next one begins.",
            validator=Range(1048576),
        ),
        ConfigKey(
            "segment.ms",
            ConfigType.LONG,
            "604800000",
            "A segment whose first record is this many milliseconds old is closed even when it is small.",
            validator=Range(1),
        ),
        ConfigKey(
            "segment.jitter.ms",
            ConfigType.LONG,
            "0",
            "Up to this many milliseconds are taken off segment.ms at random, so that segments do not roll together.",
            validator=Range(0),
        ),
        ConfigKey(
            "segment.index.bytes",
            ConfigType.INT,
            "10485760",
            "Largest size in bytes of a segment's offset index; a full index closes the segment.",
            validator=Range(4),
        ),
        ConfigKey(
            "flush.messages",
            ConfigType.LONG,
            _LONG_MAX,
            "Flush the log to disk after this many records; by default the operating system decides.",
            validator=Range(1),
        ),
        ConfigKey(
            "flush.ms",
            ConfigType.LONG,
            _LONG_MAX,
            "Flush the log to disk when records have waited this many milliseconds; by default never by time.",
            validator=Range(0),
        ),
        ConfigKey(
            "retention.bytes",
            ConfigType.LONG,
            "-1",
            "Old segments of a partition go when the log is larger than this many bytes; -1 is no limit.",
        ),
        ConfigKey(
            "retention.ms",
            ConfigType.LONG,
            "604800000",
            "Segments whose newest record is older than this many milliseconds go; -1 keeps them.",
            validator=Range(-1),
        ),
        ConfigKey(
            "max.message.bytes",
            ConfigType.INT,
            "1048588",
            "Largest record batch in bytes that is taken, after compression.",
            validator=Range(0),
        ),
        ConfigKey(
            "index.interval.bytes",
            ConfigType.INT,
            "4096",
            "An entry goes into the offset index after this many bytes of records.",
            validator=Range(0),
        ),
        ConfigKey(
            "delete.retention.ms",
            ConfigType.LONG,
            "86400000",
            "Compaction keeps delete markers for this many milliseconds, so that readers can see them.",
            validator=Range(0),
        ),
        ConfigKey(
            "min.compaction.lag.ms",
            ConfigType.LONG,
            "0",
            "A record is safe from compaction for this many milliseconds.",
            validator=Range(0),
        ),
        ConfigKey(
            "max.compaction.lag.ms",
            ConfigType.LONG,
            _LONG_MAX,
            "A record is open to compaction after this many milliseconds at the latest.",
            validator=Range(1),
        ),
        ConfigKey(
            "file.delete.delay.ms",
            ConfigType.LONG,
            "60000",
            "Files of a removed segment stay on disk for this many milliseconds.",
            validator=Range(0),
        ),
        ConfigKey(
            "min.cleanable.dirty.ratio",
            ConfigType.DOUBLE,
            "0.5",
            "Compaction starts when this share of the log has not been compacted yet.",
            validator=Range(0, 1),
        ),
        ConfigKey(
            "cleanup.policy",
            ConfigType.LIST,
            "delete",
            "What happens to old segments: delete, compact (keep the newest record of each key), both, or nothing.",
            validator=ListRules(("compact", "delete")),
        ),
        ConfigKey(
            "unclean.leader.election.enable",
            ConfigType.BOOLEAN,
            "false",
            "Whether a replica that is not in sync may lead when nobody else can; records may be lost then.",
        ),
        ConfigKey(
            "min.insync.replicas",
            ConfigType.INT,
            "1",
            "How many replicas must be in sync for a record with acks=all to be taken.",
            validator=Range(1),
        ),
        ConfigKey(
            "compression.type",
            ConfigType.STRING,
            "producer",
            "Codec of the records on disk; `producer` keeps what the producer chose.",
            validator=OneOf(CODEC_WORDS),
        ),
        ConfigKey(
            "compression.gzip.level",
            ConfigType.INT,
            "-1",
            "Level of gzip where the broker compresses; -1 is the library's own.",
            validator=RangeOr(1, 9, -1),
        ),
        ConfigKey(
            "compression.lz4.level",
            ConfigType.INT,
            "9",
            "Level of lz4 where the broker compresses.",
            validator=Range(1, 17),
        ),
        ConfigKey(
            "compression.zstd.level",
            ConfigType.INT,
            "3",
            "Level of zstd where the broker compresses.",
            validator=Range(-131072, 22),
        ),
        ConfigKey(
            "preallocate",
            ConfigType.BOOLEAN,
            "false",
            "Reserve the whole file on disk when a segment begins.",
        ),
        ConfigKey(
            "message.timestamp.type",
            ConfigType.STRING,
            "CreateTime",
            "Whether a record's timestamp is the producer's or the time of its append.",
            validator=OneOf(TIMESTAMP_TYPE_WORDS),
        ),
        ConfigKey(
            "message.timestamp.before.max.ms",
            ConfigType.LONG,
            _LONG_MAX,
            "Records whose timestamp lies further back than this many milliseconds are refused.",
            validator=Range(0),
        ),
        ConfigKey(
            "message.timestamp.after.max.ms",
            ConfigType.LONG,
            "3600000",
            "Records whose timestamp lies further ahead than this many milliseconds are refused.",
            validator=Range(0),
        ),
        ConfigKey(
            "leader.replication.throttled.replicas",
            ConfigType.LIST,
            "",
            "Replicas whose leader throttles replication: partition:broker pairs, or * for all.",
            validator=_THROTTLED,
        ),
        ConfigKey(
            "follower.replication.throttled.replicas",
            ConfigType.LIST,
            "",
            "Replicas that throttle their own fetching: partition:broker pairs, or * for all.",
            validator=_THROTTLED,
        ),
        ConfigKey(
            "remote.storage.enable",
            ConfigType.BOOLEAN,
            "false",
            "Tiered storage, which this broker does not have.",
        ),
        ConfigKey(
            "local.retention.ms",
            ConfigType.LONG,
            "-2",
            "With tiered storage: milliseconds to keep segments locally; -2 follows retention.ms.",
            validator=Range(-2),
        ),
        ConfigKey(
            "local.retention.bytes",
            ConfigType.LONG,
            "-2",
            "With tiered storage: bytes to keep locally; -2 follows retention.bytes.",
            validator=Range(-2),
        ),
        ConfigKey(
            "remote.log.copy.disable",
            ConfigType.BOOLEAN,
            "false",
            "With tiered storage: stop copying segments there.",
        ),
        ConfigKey(
            "remote.log.delete.on.disable",
            ConfigType.BOOLEAN,
            "false",
            "With tiered storage: delete what is there when it is turned off.",
        ),
        ConfigKey(
            "internal.segment.bytes",
            ConfigType.INT,
            None,
            "Segment size in bytes without the lower bound of segment.bytes, for tests.",
            internal=True,
        ),
        ConfigKey(
            VALIDATE_COMPRESSED,
            ConfigType.BOOLEAN,
            "false",
            "Decompress what producers send and check every record, as Kafka does; otherwise the batch's header and"
            " checksum are checked.",
        ),
    )
)


class Synonym(NamedTuple):
    """A broker key that gives a topic config its default; its number times `factor` is the topic's value."""

    name: str
    factor: int = 1


_HOURS: Final = 3_600_000
_MINUTES: Final = 60_000

TOPIC_SYNONYMS: Final[Mapping[str, tuple[Synonym, ...]]] = MappingProxyType(
    {
        "segment.bytes": (Synonym("log.segment.bytes"),),
        "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOURS)),
        "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOURS)),
        "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
        "flush.messages": (Synonym("log.flush.interval.messages"),),
        "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
        "retention.bytes": (Synonym("log.retention.bytes"),),
        "retention.ms": (
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", _MINUTES),
            Synonym("log.retention.hours", _HOURS),
        ),
        "max.message.bytes": (Synonym("message.max.bytes"),),
        "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
        "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
        "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
        "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
        "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
        "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
        "cleanup.policy": (Synonym("log.cleanup.policy"),),
        "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
        "min.insync.replicas": (Synonym("min.insync.replicas"),),
        "compression.type": (Synonym("compression.type"),),
        "compression.gzip.level": (Synonym("compression.gzip.level"),),
        "compression.lz4.level": (Synonym("compression.lz4.level"),),
        "compression.zstd.level": (Synonym("compression.zstd.level"),),
        "preallocate": (Synonym("log.preallocate"),),
        "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
        "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
        "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
        "local.retention.ms": (Synonym("log.local.retention.ms"),),
        "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
        VALIDATE_COMPRESSED: (Synonym(VALIDATE_COMPRESSED),),
    }
)
"""Topic config to the broker keys that stand in for it, the strongest first."""


def validate_topic_configs(configs: Mapping[str, str | None], defaults: Mapping[str, str | None] | None = None) -> None:
    """Check the whole set of a topic's overrides.

    `defaults` are the values that the broker level gives to topics (text, by topic config name); Kafka's own where
    left out. Raises InvalidConfig with Kafka's message: null values, unknown names, bad values, and combinations that
    contradict each other.
    """
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        raise InvalidConfig(f"Null value not supported for topic configs: {','.join(nulls)}")
    for name in configs:
        if name not in TOPIC_CONFIGS:
            raise InvalidConfig(f"Unknown topic config name: {name}")
    values = {
        name: key.parse(configs[name]) if name in configs else key.default_value for name, key in TOPIC_CONFIGS.items()
    }
    for name, text in (defaults or {}).items():
        if name not in configs and text is not None:
            values[name] = TOPIC_CONFIGS[name].parse(text)
    shortest, longest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(shortest, int), "a LONG"
    assert isinstance(longest, int), "a LONG"
    if shortest > longest:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})"
        )
    if values["remote.storage.enable"]:
        raise InvalidConfig(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )


def is_list_config(name: str) -> bool:
    """Whether APPEND and SUBTRACT are allowed for it (C36)."""
    key = TOPIC_CONFIGS.get(name)
    return key is not None and key.type is ConfigType.LIST
