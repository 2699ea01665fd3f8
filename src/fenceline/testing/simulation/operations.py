"""The names of everything that strikes or uses a simulated cluster: operations and faults.

Owns two lists: what clients, operators and brokers do (`Operation`), and what goes wrong (`Fault`). Simulated clusters,
the chaos of real processes and the table of coverage speak of the same thing by the same name. Never does anything.

An operation is recorded when it begins (the request is sent, the broker starts the work), a fault when it strikes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Operation(StrEnum):
    """What changes or reads a cluster on purpose."""

    PRODUCE = "produce"
    FETCH = "fetch"
    LIST_OFFSETS = "list offsets"
    END_OF_EPOCH = "end of epoch"
    CREATE_TOPIC = "create topic"
    DELETE_TOPIC = "delete topic"
    RECREATE_TOPIC = "recreate topic"
    DELETE_RECORDS = "delete records"
    ADD_PARTITIONS = "add partitions"
    REASSIGN = "reassign"
    REASSIGN_BACK = "reassign back"
    CANCEL_REASSIGNMENT = "cancel reassignment"
    MOVE_DIRECTORY = "move directory"
    RETENTION = "retention"
    COMPACTION = "compaction"
    ALTER_CONFIG = "alter config"
    PREFERRED_ELECTION = "preferred election"
    UNCLEAN_ELECTION = "unclean election"
    COMMIT_OFFSETS = "commit offsets"
    FETCH_COMMITTED = "fetch committed"
    RESET_OFFSETS = "reset offsets"
    DELETE_OFFSETS = "delete offsets"
    DELETE_GROUP = "delete group"
    METADATA_SNAPSHOT = "metadata snapshot"
    UNREGISTER_BROKER = "unregister broker"


OPERATIONS: Final[Mapping[Operation, str]] = {
    Operation.PRODUCE: "a batch is appended, with acks=1 or acks=all",
    Operation.FETCH: "a consumer reads committed records",
    Operation.LIST_OFFSETS: "a client asks for the end of a log",
    Operation.END_OF_EPOCH: "a client asks where an epoch ends (OffsetForLeaderEpoch)",
    Operation.CREATE_TOPIC: "a topic with a name that was never used",
    Operation.DELETE_TOPIC: "a topic is deleted while clients use it",
    Operation.RECREATE_TOPIC: "a topic of the same name and another id",
    Operation.DELETE_RECORDS: "the log start moves by a request",
    Operation.ADD_PARTITIONS: "a topic has more partitions than before",
    Operation.REASSIGN: "a partition moves to other replicas",
    Operation.REASSIGN_BACK: "a replica comes back to a broker that it left",
    Operation.CANCEL_REASSIGNMENT: "a reassignment that is under way is taken back",
    Operation.MOVE_DIRECTORY: "a replica moves to another log directory of its broker",
    Operation.RETENTION: "old segments are deleted by size or by time",
    Operation.COMPACTION: "a segment is replaced by one with the newest record of each key",
    Operation.ALTER_CONFIG: "a config of a topic changes",
    Operation.PREFERRED_ELECTION: "the first replica leads again",
    Operation.UNCLEAN_ELECTION: "a replica that is not in sync may lead, by a request",
    Operation.COMMIT_OFFSETS: "a group commits an offset",
    Operation.FETCH_COMMITTED: "a group reads its committed offset",
    Operation.RESET_OFFSETS: "the committed offset of a group is set back",
    Operation.DELETE_OFFSETS: "the committed offsets of one topic are deleted",
    Operation.DELETE_GROUP: "a group is deleted with all its offsets",
    Operation.METADATA_SNAPSHOT: "a node writes or loads a snapshot of the metadata",
    Operation.UNREGISTER_BROKER: "a broker that is down is removed from the metadata",
}
"""What each of them means."""


class Fault(StrEnum):
    """What goes wrong."""

    KILL = "kill"
    POWER_LOSS = "power loss"
    TORN_WRITE = "torn write"
    STOP = "stop"
    PAUSE = "pause"
    PARTITION = "partition"
    ONE_WAY_PARTITION = "one-way partition"
    STRANDED = "stranded"
    DROPPED_CONNECTIONS = "dropped connections"
    LAG = "lag"
    QUICK_RETURN = "quick return"
    SLOW_DISK = "slow disk"
    FULL_DISK = "full disk"
    FAILING_DISK = "failing disk"
    WRONG_BITS = "wrong bits"
    WRONG_BYTES = "wrong bytes"
    DIRECTORY_LOST = "directory lost"
    CLOCK_JUMP = "clock jump"


FAULTS: Final[Mapping[Fault, str]] = {
    Fault.KILL: "a process ends at any moment; what it wrote stays",
    Fault.POWER_LOSS: "a machine loses power; what was not synced is torn or gone",
    Fault.TORN_WRITE: "a process or its power ends at one given call of the disk: before, after, or in the middle",
    Fault.STOP: "a clean stop (SIGTERM)",
    Fault.PAUSE: "a process is frozen (SIGSTOP) and continues later",
    Fault.PARTITION: "the nodes are cut into two groups",
    Fault.ONE_WAY_PARTITION: "links carry nothing in one direction",
    Fault.STRANDED: "a leader is cut off after it was the only one in sync",
    Fault.DROPPED_CONNECTIONS: "all connections of a node are reset",
    Fault.LAG: "some machines receive from others late",
    Fault.QUICK_RETURN: "a machine loses power and is back before others know it",
    Fault.SLOW_DISK: "jobs of the disk take a hundred times as long",
    Fault.FULL_DISK: "the disk has room for a few bytes, or for none",
    Fault.FAILING_DISK: "one kind of call fails with EIO or EMFILE",
    Fault.WRONG_BITS: "reads give wrong bits now and then",
    Fault.WRONG_BYTES: "a process ends, and a byte of a log that was not synced is changed when it starts again",
    Fault.DIRECTORY_LOST: "every call under one log directory fails",
    Fault.CLOCK_JUMP: "a wall clock steps forwards or backwards",
}
"""What each of them means."""
