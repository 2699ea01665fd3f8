"""What each case does, in one sentence for users.

Owns the sentences. A test compares their names with those of the cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXPLANATIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "consumer": {
        "baseline": "The program reads 20 records, and 20 more: what it prints here is not counted in other cases.",
        "lost-unread": "While the program is suspended, a replica that lacks records becomes leader; the program has"
        " not read them.",
        "truncated": "A replica that lacks the last 20 records becomes leader; the program has processed them, and its"
        " position is behind the end of the log.",
        "truncated-grown": "As before, and the new leader has 40 other records: the program's position exists, in"
        " another history (KIP-320).",
        "out-of-range": "While the program is suspended, all records are deleted with DeleteRecords.",
        "expired": "While the program is suspended, all records expire by `retention.ms`.",
        "topic-recreated": "The topic is deleted and created again, and has new records.",
        "leader-moved": "Leadership moves to another replica.",
        "leader-moving": "Leadership moves all the time while records are written: requests rarely reach the leader.",
        "leader-killed": "The leader's process is killed; another replica becomes leader.",
        "leader-frozen": "The leader's process is suspended (SIGSTOP), and resumed after another one leads.",
        "leader-isolated": "The leader reaches clients, and no other node; another replica becomes leader.",
        "lagging-broker": "A broker is elected and does not know it yet: requests with the new epoch get"
        " UNKNOWN_LEADER_EPOCH.",
        "coordinator-moved": "The coordinator of the program's group moves to another broker.",
        "lost-commit": "An OffsetCommit request is lost before the broker handles it.",
        "lost-commit-answer": "An OffsetCommit request is handled, and its answer is lost.",
        "rebalance-storm": "Two other members join the group and leave it, three times.",
        "zombie-member": "The broker removes the program's member from the group while the program runs.",
        "aborted-transaction": "A transaction with records is aborted.",
        "hanging-transaction": "A transaction stays open while other records are written, and is then aborted.",
        "poison-record": "A record's value is not valid UTF-8.",
        "damaged-batch": "A byte of the last batch in the leader's log is changed; it is restored after two seconds.",
        "full-disk": "The leader's disk is full for two seconds.",
        "cut": "Connections of clients to the leader are dropped for two seconds.",
        "half-open": "The leader forgets its connections: requests on them are never answered. New connections work.",
        "reset": "All connections of clients are reset.",
        "slow-network": "Each packet between clients and the leader takes 0.2 to 0.4 seconds.",
        "throttled": "Answers to Fetch ask the client to wait 500 ms, three times.",
    },
    "producer": {
        "baseline": "The program writes 20 values, and 20 more: what it prints here is not counted in other cases.",
        "leader-moved": "Leadership moves to another replica.",
        "leader-moving": "Leadership moves again and again: requests rarely reach the leader.",
        "leader-killed": "The leader's process is killed; another replica becomes leader.",
        "leader-frozen": "The leader's process is suspended for three seconds.",
        "leader-isolated": "The leader reaches clients, and no other node; another replica becomes leader.",
        "unclean-election": "A replica that lacks acknowledged records becomes leader. Records that the cluster lost,"
        " with a receipt, are not counted against the program.",
        "topic-recreated": "The topic is deleted and created again.",
        "full-disk": "The leader's disk is full for 1.5 seconds.",
        "lost-answers": "Five Produce requests are handled, and their answers are lost.",
        "lost-requests": "Five Produce requests are lost before the broker handles them.",
        "not-leader": "Five Produce requests are answered with this error.",
        "not-enough-replicas": "Five Produce requests are answered with this error.",
        "timed-out": "Five Produce requests are answered with this error.",
        "storage-error": "Five Produce requests are answered with this error.",
        "cut": "Connections of clients to the leader are dropped for 1.5 seconds.",
        "half-open": "The leader forgets its connections: requests on them are never answered. New connections work.",
        "reset": "The connections to the leader are reset five times.",
        "slow-network": "Each packet between clients and the leader takes 0.1 to 0.2 seconds.",
        "throttled": "Answers to Produce ask the client to wait 300 ms, three times.",
    },
}
