"""A topic's configuration as one log uses it. Owns the typed view and its defaults (Kafka 4.3.1); validates nothing.

The configuration package validates names and values before they arrive here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fenceline.records.batch import Codec, TimestampType

MAX_INT64: Final = (1 << 63) - 1
DAY_MS: Final = 24 * 60 * 60 * 1000
PRODUCER_EXPIRATION: Final = "producer.id.expiration.ms"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Per-topic settings by their names (`segment.bytes` is `segment_bytes`). -1 means no limit."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    flush_messages: int = MAX_INT64
    flush_ms: int = MAX_INT64
    file_delete_delay_ms: int = 60_000
    max_message_bytes: int = 1_048_588
    compression_type: Codec | None = None
    """The codec to store batches with; None is `producer`: unchanged."""
    compression_level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = MAX_INT64
    timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_INT64
    min_insync_replicas: int = 1
    validate_compressed_records: bool = False
    """Whether the leader decompresses each batch and checks its records (`fenceline.validate.compressed.records`)."""
    producer_id_expiration_ms: int = DAY_MS

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @classmethod
    def from_mapping(cls, topic: Mapping[str, str | None]) -> LogConfig:
        """From a topic's effective settings (text by Kafka's topic names) and `PRODUCER_EXPIRATION`, which is a broker
        setting; absent names use Kafka's defaults."""
        found: dict[str, object] = {}
        for name, field in _INTEGERS.items():
            text = topic.get(name)
            if text is not None:
                found[field] = int(text)
        codec = topic.get("compression.type")
        if codec not in (None, "producer"):
            target = Codec.NONE if codec == "uncompressed" else Codec.from_name(str(codec))
            found["compression_type"] = target
            level = topic.get(f"compression.{codec}.level")
            if level is not None:
                found["compression_level"] = int(level)
        if topic.get("message.timestamp.type") == "LogAppendTime":
            found["timestamp_type"] = TimestampType.LOG_APPEND_TIME
        policy = topic.get("cleanup.policy")
        if policy is not None:
            found["cleanup_policy"] = frozenset(part.strip() for part in policy.split(",") if part.strip())
        ratio = topic.get("min.cleanable.dirty.ratio")
        if ratio is not None:
            found["min_cleanable_dirty_ratio"] = float(ratio)
        for name, field in _BOOLEANS.items():
            text = topic.get(name)
            if text is not None:
                found[field] = text.strip().lower() == "true"
        config = cls(**found)  # type: ignore[arg-type]
        if config.compacted and config.max_compaction_lag_ms < config.segment_ms:
            # Only sealed segments can be compacted, so a segment is rolled at the latest when its records must be
            # compacted.
            config = replace(config, segment_ms=config.max_compaction_lag_ms)
        return config


_BOOLEANS: Final = {
    "fenceline.validate.compressed.records": "validate_compressed_records",
}

_INTEGERS: Final = {
    "segment.bytes": "segment_bytes",
    "internal.segment.bytes": "segment_bytes",
    "segment.ms": "segment_ms",
    "segment.jitter.ms": "segment_jitter_ms",
    "segment.index.bytes": "segment_index_bytes",
    "index.interval.bytes": "index_interval_bytes",
    "retention.bytes": "retention_bytes",
    "retention.ms": "retention_ms",
    "flush.messages": "flush_messages",
    "flush.ms": "flush_ms",
    "file.delete.delay.ms": "file_delete_delay_ms",
    "max.message.bytes": "max_message_bytes",
    "message.timestamp.before.max.ms": "timestamp_before_max_ms",
    "message.timestamp.after.max.ms": "timestamp_after_max_ms",
    "delete.retention.ms": "delete_retention_ms",
    "min.compaction.lag.ms": "min_compaction_lag_ms",
    "max.compaction.lag.ms": "max_compaction_lag_ms",
    "min.insync.replicas": "min_insync_replicas",
    PRODUCER_EXPIRATION: "producer_id_expiration_ms",
}
