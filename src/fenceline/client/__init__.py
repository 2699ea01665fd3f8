"""Producer, consumer, admin and range reader for Fenceline and Apache Kafka 2.1 and newer.

The public names; modules are loaded on first use, so that an executor that only reads ranges loads little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fenceline.client.admin import Admin as Admin
    from fenceline.client.async_admin import AsyncAdmin as AsyncAdmin
    from fenceline.client.async_admin import NewTopic as NewTopic
    from fenceline.client.async_consumer import AsyncConsumer as AsyncConsumer
    from fenceline.client.consumer import Consumer as Consumer
    from fenceline.client.errors import EpochMismatchError as EpochMismatchError
    from fenceline.client.errors import FencedLeaderEpochError as FencedLeaderEpochError
    from fenceline.client.errors import LogTruncationError as LogTruncationError
    from fenceline.client.errors import OffsetOutOfRangeError as OffsetOutOfRangeError
    from fenceline.client.errors import RetriableError as RetriableError
    from fenceline.client.errors import TopicReplacedError as TopicReplacedError
    from fenceline.client.errors import UnknownEpochError as UnknownEpochError
    from fenceline.client.errors import UnknownLeaderEpochError as UnknownLeaderEpochError
    from fenceline.client.fetched import ConsumerRecord as ConsumerRecord
    from fenceline.client.fetched import ConsumerRecords as ConsumerRecords
    from fenceline.client.loss_receipts import LossReceipt as LossReceipt
    from fenceline.client.offsets import CommittedOffset as CommittedOffset
    from fenceline.client.offsets import OffsetAndEpoch as OffsetAndEpoch
    from fenceline.client.producer import AsyncProducer as AsyncProducer
    from fenceline.client.producer import Producer as Producer
    from fenceline.client.ranges import OffsetRange as OffsetRange
    from fenceline.client.reader import AsyncRangeReader as AsyncRangeReader
    from fenceline.client.reader import RangeReader as RangeReader
    from fenceline.ids import TopicPartition as TopicPartition

_MODULES: Final = {
    "Admin": "admin",
    "AsyncAdmin": "async_admin",
    "AsyncConsumer": "async_consumer",
    "AsyncProducer": "producer",
    "AsyncRangeReader": "reader",
    "CommittedOffset": "offsets",
    "Consumer": "consumer",
    "ConsumerRecord": "fetched",
    "ConsumerRecords": "fetched",
    "EpochMismatchError": "errors",
    "FencedLeaderEpochError": "errors",
    "LogTruncationError": "errors",
    "LossReceipt": "loss_receipts",
    "NewTopic": "async_admin",
    "OffsetAndEpoch": "offsets",
    "OffsetOutOfRangeError": "errors",
    "OffsetRange": "ranges",
    "Producer": "producer",
    "RangeReader": "reader",
    "RetriableError": "errors",
    "TopicPartition": "offsets",
    "TopicReplacedError": "errors",
    "UnknownEpochError": "errors",
    "UnknownLeaderEpochError": "errors",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fenceline.client.{_MODULES[name]}"), name)
