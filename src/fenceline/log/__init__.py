"""One partition on disk: segments, sparse indexes, leader-epoch cache, producer state, retention, compaction, recovery.

Knows offsets, epochs and bytes; never which replica leads. Every disk access goes through `log.core.disk.Disk`. The
code runs on the node's event loop; work that may wait for a disk is returned as an object to be run in a thread.
"""
