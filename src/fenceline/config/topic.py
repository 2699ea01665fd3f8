"""Every topic config of Kafka 4.3.1 and Fenceline's own, the broker keys that are their defaults, and their validation.

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
"""Fenceline's own, for topics and for brokers. Kafka accepts a topic that has it, and always checks."""

CODEC_WORDS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPE_WORDS: Final = ("CreateTime", "LogAppendTime")

TOPIC_CONFIGS: Final[Mapping[str, ConfigKey]] = table(
    (
        ConfigKey(
            "segment.bytes",
            ConfigType.INT,
            "1073741824",
            "Size in bytes at which a segment is rolled.",
            validator=Range(1048576),
        ),
        ConfigKey(
            "segment.ms",
            ConfigType.LONG,
            "604800000",
            "Age in milliseconds of a segment's first record at which the segment is rolled, whatever its size.",
            validator=Range(1),
        ),
        ConfigKey(
            "segment.jitter.ms",
            ConfigType.LONG,
            "0",
            "Maximum random milliseconds subtracted from segment.ms, so that segments do not roll at the same time.",
            validator=Range(0),
        ),
        ConfigKey(
            "segment.index.bytes",
            ConfigType.INT,
            "10485760",
            "Maximum size in bytes of a segment's offset index; a full index rolls the segment.",
            validator=Range(4),
        ),
        ConfigKey(
            "flush.messages",
            ConfigType.LONG,
            _LONG_MAX,
            "Flush the log to disk after this many records; by default the operating system does.",
            validator=Range(1),
        ),
        ConfigKey(
            "flush.ms",
            ConfigType.LONG,
            _LONG_MAX,
            "Flush the log to disk when records are unflushed for this many milliseconds; by default never.",
            validator=Range(0),
        ),
        ConfigKey(
            "retention.bytes",
            ConfigType.LONG,
            "-1",
            "Old segments of a partition are deleted when the log exceeds this size in bytes; -1 is no limit.",
        ),
        ConfigKey(
            "retention.ms",
            ConfigType.LONG,
            "604800000",
            "Segments whose newest record is older than this many milliseconds are deleted; -1 is no limit.",
            validator=Range(-1),
        ),
        ConfigKey(
            "max.message.bytes",
            ConfigType.INT,
            "1048588",
            "Maximum size in bytes of a record batch, after compression.",
            validator=Range(0),
        ),
        ConfigKey(
            "index.interval.bytes",
            ConfigType.INT,
            "4096",
            "Bytes of records between entries of the offset index.",
            validator=Range(0),
        ),
        ConfigKey(
            "delete.retention.ms",
            ConfigType.LONG,
            "86400000",
            "Milliseconds that compaction keeps delete markers, so that readers can see them.",
            validator=Range(0),
        ),
        ConfigKey(
            "min.compaction.lag.ms",
            ConfigType.LONG,
            "0",
            "Minimum milliseconds that a record remains uncompacted.",
            validator=Range(0),
        ),
        ConfigKey(
            "max.compaction.lag.ms",
            ConfigType.LONG,
            _LONG_MAX,
            "Maximum milliseconds that a record is not eligible for compaction.",
            validator=Range(1),
        ),
        ConfigKey(
            "file.delete.delay.ms",
            ConfigType.LONG,
            "60000",
            "Milliseconds that files of a removed segment stay on disk.",
            validator=Range(0),
        ),
        ConfigKey(
            "min.cleanable.dirty.ratio",
            ConfigType.DOUBLE,
            "0.5",
            "Minimum fraction of uncompacted log at which compaction starts.",
            validator=Range(0, 1),
        ),
        ConfigKey(
            "cleanup.policy",
            ConfigType.LIST,
            "delete",
            "Policy for old segments: delete, compact (keep the newest record of each key), both, or none.",
            validator=ListRules(("compact", "delete")),
        ),
        ConfigKey(
            "unclean.leader.election.enable",
            ConfigType.BOOLEAN,
            "false",
            "Whether an out-of-sync replica may become leader if no other can; records may be lost.",
        ),
        ConfigKey(
            "min.insync.replicas",
            ConfigType.INT,
            "1",
            "Minimum in-sync replicas for a write with acks=all.",
            validator=Range(1),
        ),
        ConfigKey(
            "compression.type",
            ConfigType.STRING,
            "producer",
            "Codec of the records on disk; `producer` keeps the producer's codec.",
            validator=OneOf(CODEC_WORDS),
        ),
        ConfigKey(
            "compression.gzip.level",
            ConfigType.INT,
            "-1",
            "Level of gzip if the broker compresses; -1 is the library's default.",
            validator=RangeOr(1, 9, -1),
        ),
        ConfigKey(
            "compression.lz4.level",
            ConfigType.INT,
            "9",
            "Level of lz4 if the broker compresses.",
            validator=Range(1, 17),
        ),
        ConfigKey(
            "compression.zstd.level",
            ConfigType.INT,
            "3",
            "Level of zstd if the broker compresses.",
            validator=Range(-131072, 22),
        ),
        ConfigKey(
            "preallocate",
            ConfigType.BOOLEAN,
            "false",
            "Preallocate the file of a new segment.",
        ),
        ConfigKey(
            "message.timestamp.type",
            ConfigType.STRING,
            "CreateTime",
            "Whether a record's timestamp is set by the producer or is the append time.",
            validator=OneOf(TIMESTAMP_TYPE_WORDS),
        ),
        ConfigKey(
            "message.timestamp.before.max.ms",
            ConfigType.LONG,
            _LONG_MAX,
            "Records with a timestamp further in the past than this many milliseconds are rejected.",
            validator=Range(0),
        ),
        ConfigKey(
            "message.timestamp.after.max.ms",
            ConfigType.LONG,
            "3600000",
            "Records with a timestamp further in the future than this many milliseconds are rejected.",
            validator=Range(0),
        ),
        ConfigKey(
            "leader.replication.throttled.replicas",
            ConfigType.LIST,
            "",
            "Replicas to which the leader throttles replication: partition:broker pairs, or * for all.",
            validator=_THROTTLED,
        ),
        ConfigKey(
            "follower.replication.throttled.replicas",
            ConfigType.LIST,
            "",
            "Replicas that throttle their fetching: partition:broker pairs, or * for all.",
            validator=_THROTTLED,
        ),
        ConfigKey(
            "remote.storage.enable",
            ConfigType.BOOLEAN,
            "false",
            "Tiered storage, which this broker does not support.",
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

    def converted(self, text: str) -> str:
        """The broker key's number in the topic config's unit; a negative time means "no limit" in any unit."""
        return text if self.factor == 1 else str(max(-1, int(text) * self.factor))


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
"""Topic config to the broker keys that are its defaults, in order of precedence."""


def validate_topic_configs(configs: Mapping[str, str | None], defaults: Mapping[str, str | None] | None = None) -> None:
    """Check the complete set of a topic's overrides.

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
