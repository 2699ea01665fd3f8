"""The names of all operations and faults of a simulated cluster.

Owns two lists: the actions of clients, operators and brokers (`Operation`), and the faults (`Fault`). Simulated
clusters, the chaos tests of real processes and the coverage table use the same names. Has no behaviour.

An operation is recorded when it begins (the request is sent, the broker starts the work), a fault when it is injected.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Operation(StrEnum):
    """An intended change or read of a cluster."""

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
    Operation.LIST_OFFSETS: "a client requests the end offset of a log",
    Operation.END_OF_EPOCH: "a client requests the end offset of an epoch (OffsetForLeaderEpoch)",
    Operation.CREATE_TOPIC: "a topic with a new name is created",
    Operation.DELETE_TOPIC: "a topic is deleted while clients use it",
    Operation.RECREATE_TOPIC: "a topic is created again with the same name and another id",
    Operation.DELETE_RECORDS: "a request moves the log start",
    Operation.ADD_PARTITIONS: "partitions are added to a topic",
    Operation.REASSIGN: "a partition moves to other replicas",
    Operation.REASSIGN_BACK: "a replica returns to a broker that it left",
    Operation.CANCEL_REASSIGNMENT: "a reassignment in progress is cancelled",
    Operation.MOVE_DIRECTORY: "a replica moves to another log directory of its broker",
    Operation.RETENTION: "old segments are deleted by size or by time",
    Operation.COMPACTION: "a segment is replaced by one with the newest record of each key",
    Operation.ALTER_CONFIG: "a config of a topic changes",
    Operation.PREFERRED_ELECTION: "the preferred replica is elected leader",
    Operation.UNCLEAN_ELECTION: "a request elects a replica that is not in sync",
    Operation.COMMIT_OFFSETS: "a group commits an offset",
    Operation.FETCH_COMMITTED: "a group reads its committed offset",
    Operation.RESET_OFFSETS: "the committed offset of a group is reset",
    Operation.DELETE_OFFSETS: "the committed offsets of one topic are deleted",
    Operation.DELETE_GROUP: "a group is deleted with all its offsets",
    Operation.METADATA_SNAPSHOT: "a node writes or loads a snapshot of the metadata",
    Operation.UNREGISTER_BROKER: "a broker that is down is removed from the metadata",
}
"""The meaning of each."""


class Fault(StrEnum):
    """A fault."""

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
    Fault.KILL: "a process is killed at any moment; written data stays",
    Fault.POWER_LOSS: "a machine loses power; unsynced data is torn or lost",
    Fault.TORN_WRITE: "a process or machine fails at a given disk call: before it, after it, or in the middle",
    Fault.STOP: "a clean stop (SIGTERM)",
    Fault.PAUSE: "a process is frozen (SIGSTOP) and continues later",
    Fault.PARTITION: "the nodes are cut into two groups",
    Fault.ONE_WAY_PARTITION: "links lose everything in one direction",
    Fault.STRANDED: "a leader is cut off while it is the only replica in sync",
    Fault.DROPPED_CONNECTIONS: "all connections of a node are reset",
    Fault.LAG: "some machines receive messages of others late",
    Fault.QUICK_RETURN: "a machine loses power and is back before the others notice",
    Fault.SLOW_DISK: "disk jobs take a hundred times as long",
    Fault.FULL_DISK: "the disk has room for few bytes or none",
    Fault.FAILING_DISK: "one kind of call fails with EIO or EMFILE",
    Fault.WRONG_BITS: "some reads return wrong bits",
    Fault.WRONG_BYTES: "a process is killed, and an unsynced byte of a log is changed when it restarts",
    Fault.DIRECTORY_LOST: "every call under one log directory fails",
    Fault.CLOCK_JUMP: "a wall clock steps forwards or backwards",
}
"""The meaning of each."""
