"""Recovers the data directories of a broker between registration and service.

Owns the order: finish interrupted deletions, find partitions and interrupted moves, check logs after a crash. A failure
of one directory does not affect the others. Directories are checked in parallel, each by as many threads as
`num.recovery.threads.per.data.dir` allows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.config.effective import effective_broker_config
from fenceline.ids import TopicPartition
from fenceline.log.core.errors import StorageError

if TYPE_CHECKING:
    from fenceline.log.directories.log_dir import ExistingPartition, LogDir
    from fenceline.log.directories.partition_dir import RemovedPartition
    from fenceline.node.broker import Broker

THREADS: Final = "num.recovery.threads.per.data.dir"


async def recover_logs(broker: Broker) -> list[tuple[LogDir, ExistingPartition]]:
    """Returns copies of replicas whose move was interrupted. First change of a data directory after the start: until
    then the clean-shutdown mark is valid."""
    for log_dir in broker.log_dirs:
        with _suspecting(broker, log_dir):
            log_dir.begin()
    unclean = [log_dir for log_dir in broker.log_dirs if not log_dir.clean]
    # With a single node no topic is deleted while it is down, and after a clean shutdown there is nothing to check.
    is_known = broker.log_dirs.is_single and not unclean and not broker.config.can_reach_others
    found: dict[LogDir, list[TopicPartition]] = {}
    copies: list[tuple[LogDir, ExistingPartition]] = []
    directories = broker.partitions.directories
    pending_deletions: list[RemovedPartition] = []
    for log_dir in broker.log_dirs:
        with _suspecting(broker, log_dir):
            pending_deletions += log_dir.pending_deletions()
            if not is_known:
                found[log_dir] = await broker.loop.run_in_executor(broker.disk_threads, directories.scan, log_dir)
    for log_dir in tuple(broker.log_dirs):
        with _suspecting(broker, log_dir):
            settled = await broker.loop.run_in_executor(broker.disk_threads, directories.resolve_copies, log_dir)
            copies += [(log_dir, copy) for copy in settled]
    for removed in pending_deletions:  # their names were needed to complete moves
        broker.delete_later(partial(broker.losses.delete_partition, removed), 0)
    late: dict[LogDir, list[TopicPartition]] = {}
    for log_dir in broker.log_dirs:
        with _suspecting(broker, log_dir):
            # Opened before anything is served: lost records get their note and receipt now.
            if gone := log_dir.missing_first_segments():
                late[log_dir] = gone
    checked = [found.get(log_dir, []) for log_dir in unclean]
    # Opened now, so that the reason why they are offline is logged and another replica is elected.
    unresolved = [where for where in directories.unresolved if not any(where in held for held in checked)]
    await _check(broker, [*checked, *late.values(), *([unresolved] if unresolved else [])])
    return copies


async def checkpoint_recovery_points(broker: Broker) -> None:
    """Checkpoint logs that end below their recovery point before they are served: records appended now are not flushed
    up to there.

    Runs after their losses have receipts, whose class depends on the old checkpoint's high watermark. If the disk has
    no room, the next checkpoint does it.
    """
    if any(log_dir.has_truncated_log() for log_dir in broker.log_dirs if not log_dir.clean):
        with suppress(StorageError):
            await broker.checkpoint()


async def _check(broker: Broker, by_directory: Sequence[Sequence[TopicPartition]]) -> None:
    """Each directory has its own threads (`num.recovery.threads.per.data.dir`), which recover one log after another."""
    threads = int(effective_broker_config(broker.image.configs, broker.config, THREADS) or 1)
    executor: Executor = broker.disk_threads
    with ExitStack() as stack:
        # A simulation's executor is not a thread pool, and runs one thing at a time.
        if isinstance(executor, ThreadPoolExecutor) and by_directory:
            pool = ThreadPoolExecutor(threads * len(by_directory), thread_name_prefix="recovery")
            executor = stack.enter_context(pool)
        shared = [_Shared(held) for held in by_directory]
        await asyncio.gather(
            *(
                broker.loop.run_in_executor(executor, broker.partitions.recover, logs)
                for logs in shared
                for _ in range(threads)
            )
        )


class _Shared(Iterator[TopicPartition]):
    """Hands out each element once, to any thread."""

    def __init__(self, held: Iterable[TopicPartition]) -> None:
        self._left = deque(held)

    def __next__(self) -> TopicPartition:
        try:
            return self._left.popleft()
        except IndexError:
            raise StopIteration from None


@contextmanager
def _suspecting(broker: Broker, log_dir: LogDir) -> Iterator[None]:
    """With several directories, an OSError affects only this one."""
    try:
        yield
    except OSError as error:
        if broker.log_dirs.is_single:
            raise
        broker.directory_failures.suspect(log_dir, error)
