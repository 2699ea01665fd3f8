"""Situations that a careful application must survive, each as one function that makes it true.

Owns the one object that has all of them. A function returns when the situation is there, with what was made true; it
raises `SituationImpossible` when the topic, the group or the cluster rules it out, and says which setting does. What
lasts (an open transaction, a full disk, a leader that keeps moving) ends with the faults of the test.

| Module | Situations |
|---|---|
| `elections` | unclean election, truncation and growth, isolated leader, leader that moves, lagging metadata |
| `topics` | offsets out of range, expiry in the middle of a read, a topic deleted and made anew |
| `groups` | a coordinator that moves, a lost commit, a rebalance storm, a zombie member |
| `transactions` | a zombie producer, an aborted and a hanging transaction |
| `records` | a poison record, a damaged batch, a full disk |
"""

from __future__ import annotations

from fenceline.testing.lab.situations.common import SituationImpossible
from fenceline.testing.lab.situations.elections import ElectionSituations
from fenceline.testing.lab.situations.groups import GroupSituations
from fenceline.testing.lab.situations.records import RecordSituations
from fenceline.testing.lab.situations.topics import TopicSituations
from fenceline.testing.lab.situations.transactions import TransactionSituations

__all__ = ["SituationImpossible", "Situations"]


class Situations(ElectionSituations, TopicSituations, GroupSituations, TransactionSituations, RecordSituations):
    """The situations of one cluster."""
