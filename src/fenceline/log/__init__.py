"""One partition on disk: segments, sparse indexes, leader-epoch cache, producer state, retention, compaction, recovery.

Knows offsets, epochs and bytes; never who leads. Everything here reaches the disk through `fenceline.log.disk.Disk`,
runs on one thread of control (the node's loop) and hands out what may wait for a disk as objects to be run in a thread.
"""
