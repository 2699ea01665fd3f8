"""The log's state while a batch was written: the leaders' epochs, and the epochs of logs where they are needed.

Owns the requests that a writing task sends after its last row. Tasks send them in parallel over connections that they
have just read from, so that the driver's commit, for which the whole query waits, need not. Spark 4.2 runs commits in a
separate Python process, which it keeps while batches follow each other; that process caches epochs too, but never reads
a log. Never decides anything about rows.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fenceline.ids import TopicPartition
from pyspark_fenceline import connect
from pyspark_fenceline.delta_index import Span
from pyspark_fenceline.log_matching import UNKNOWN_EPOCH, LogView
from pyspark_fenceline.log_view import CAN_NOT_SEE, Views, ends_of, existing
from pyspark_fenceline.patience import USUAL, Patience, with_retries

_log = logging.getLogger("pyspark_fenceline")


@dataclass(frozen=True, slots=True)
class Evidence:
    """`leader_epochs`: of every requested partition that exists. `views`: epochs of the logs of those whose rows that
    epoch alone does not prove. `topic_ids`: None from brokers without ids. `log_ends`: first offset that was not
    readable yet.
    """

    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    views: Mapping[TopicPartition, LogView] = field(default_factory=dict)
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)


_kept: dict[tuple[Any, ...], Views] = {}
_has_said = False


def views_of(client: Mapping[str, str]) -> Views:
    """The process's cache for the cluster that these properties name."""
    key = (os.getpid(), *sorted(client.items()))
    if key not in _kept:
        _kept[key] = Views(connect.connect(client))
    return _kept[key]


def known_views(client: Mapping[str, str], partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogView]:
    """Cached epochs of those partitions that exist; bounds may be old. Raises the brokers' errors."""
    return views_of(client).of(existing(connect.connect(client), partitions))


def fresh_views(client: Mapping[str, str], partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogView]:
    """Epochs and current bounds of those partitions that exist. Raises the brokers' errors."""
    found = existing(connect.connect(client), partitions)
    return views_of(client).fresh(found) if found else {}


def gather(
    client: Mapping[str, str],
    spans: Iterable[Span],
    known: Mapping[TopicPartition, int],
    patience: Patience = USUAL,
) -> Evidence:
    """The evidence for the partitions of `spans`, and of `known` (partition -> leader epoch that the table was compared
    with). Raises the brokers' errors, or `BrokersUnreachable`.
    """
    written: dict[TopicPartition, set[int]] = {}
    for span in spans:
        written.setdefault(span.topic_partition, set()).add(span.epoch)
    if not written and not known:
        return Evidence()
    return with_retries(lambda: _ask(client, written, known), patience)


def _ask(
    client: Mapping[str, str], written: Mapping[TopicPartition, set[int]], known: Mapping[TopicPartition, int]
) -> Evidence:
    cluster = connect.connect(client)
    found = existing(cluster, {*written, *known})
    ends = ends_of(cluster, found)
    epochs = {tp: end.leader_epoch for tp, end in ends.items()}
    doubtful = {
        tp: topic_id
        for tp, topic_id in found.items()
        if epochs[tp] >= 0
        and (known.get(tp, epochs[tp]) != epochs[tp] or written.get(tp, {epochs[tp]}) != {epochs[tp]})
    }
    _say_once(epochs)
    return Evidence(
        epochs,
        views_of(client).of(doubtful, ends) if doubtful else {},
        {tp.topic: topic_id for tp, topic_id in found.items()},
        {tp: end.offset for tp, end in ends.items()},
    )


def _say_once(epochs: Mapping[TopicPartition, int]) -> None:
    global _has_said
    if not _has_said and UNKNOWN_EPOCH in epochs.values():
        _has_said = True
        _log.warning("%s", CAN_NOT_SEE)


def together(parts: Iterable[Evidence]) -> Evidence:
    """Merge the evidence of all tasks of a batch. Of two leaders the newer one counts."""
    epochs: dict[TopicPartition, int] = {}
    views: dict[TopicPartition, LogView] = {}
    ids: dict[str, str | None] = {}
    ends: dict[TopicPartition, int] = {}
    for part in parts:
        for tp, epoch in part.leader_epochs.items():
            if epoch >= epochs.get(tp, epoch):
                if tp in part.log_ends:
                    ends[tp] = max(part.log_ends[tp], ends.get(tp, 0) if epochs.get(tp) == epoch else 0)
                epochs[tp] = epoch
                ids[tp.topic] = part.topic_ids.get(tp.topic)
        for tp, view in part.views.items():
            if tp not in views or view.leader_epoch > views[tp].leader_epoch:
                views[tp] = view
    current = {tp: view for tp, view in views.items() if view.leader_epoch == epochs.get(tp)}
    return Evidence(epochs, current, ids, ends)
