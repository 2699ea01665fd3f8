"""What a broker does with its data directories between registration and service.

Owns the order: finish deletions that were interrupted, find what lies where and what was on its way elsewhere, check
what a crash left. One directory's trouble is its own. Directories are checked side by side, each by as many
threads as `num.recovery.threads.per.data.dir` says.
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
from fenceline.log.errors import StorageError

if TYPE_CHECKING:
    from fenceline.log.log_dir import ExistingPartition, LogDir
    from fenceline.log.partition_dir import RemovedPartition
    from fenceline.node.broker import Broker

THREADS: Final = "num.recovery.threads.per.data.dir"


async def recover_logs(broker: Broker) -> list[tuple[LogDir, ExistingPartition]]:
    """Copies of replicas that were on their way to a directory. The first to change a data directory: before, the last
    life's clean mark holds."""
    for log_dir in broker.log_dirs:
        with _suspecting(broker, log_dir):
            log_dir.begin()
    unclean = [log_dir for log_dir in broker.log_dirs if not log_dir.clean]
    # On a node that is alone nothing is deleted while it is down, and a clean stop left nothing to check.
    is_known = broker.log_dirs.is_single and not unclean and not broker.config.can_reach_others
    found: dict[LogDir, list[TopicPartition]] = {}
    copies: list[tuple[LogDir, ExistingPartition]] = []
    places = broker.partitions.places
    pending_deletions: list[RemovedPartition] = []
    for log_dir in broker.log_dirs:
        with _suspecting(broker, log_dir):
            pending_deletions += log_dir.pending_deletions()
            if not is_known:
                found[log_dir] = await broker.loop.run_in_executor(broker.disk_threads, places.settle, log_dir)
    for log_dir in tuple(broker.log_dirs):
        with _suspecting(broker, log_dir):
            settled = await broker.loop.run_in_executor(broker.disk_threads, places.settle_copies, log_dir)
            copies += [(log_dir, copy) for copy in settled]
    for removed in pending_deletions:  # they have told which copy took whose place
        broker.delete_later(partial(broker.losses.delete_partition, removed), 0)
    late: dict[LogDir, list[TopicPartition]] = {}
    for log_dir in broker.log_dirs:
        with _suspecting(broker, log_dir):
            # Opened before anything is served: what is gone has a note then, and its receipt.
            if gone := log_dir.missing_first_segments():
                late[log_dir] = gone
    checked = [found.get(log_dir, []) for log_dir in unclean]
    # Asked for now, so that the operator reads why they are offline, and another replica leads.
    unresolved = [where for where in places.unresolved if not any(where in held for held in checked)]
    await _check(broker, [*checked, *late.values(), *([unresolved] if unresolved else [])])
    return copies


async def take_back_recovery_points(broker: Broker) -> None:
    """Before a log is served that ends before its recovery point: what is appended now is not safe up to there.

    After its losses have their receipts, which are classed by the high watermark of the checkpoint that was found.
    Where there is no room the next checkpoint says so.
    """
    if any(log_dir.has_truncated_log() for log_dir in broker.log_dirs if not log_dir.clean):
        with suppress(StorageError):
            await broker.checkpoint()


async def _check(broker: Broker, by_directory: Sequence[Sequence[TopicPartition]]) -> None:
    """Each directory has its threads (`num.recovery.threads.per.data.dir`), which take one log after the other."""
    threads = int(effective_broker_config(broker.image.configs, broker.config, THREADS) or 1)
    executor: Executor = broker.disk_threads
    with ExitStack() as stack:
        # What was given instead of threads is a simulation's, and runs one thing at a time.
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
    """Each element for one of the threads that ask."""

    def __init__(self, held: Iterable[TopicPartition]) -> None:
        self._left = deque(held)

    def __next__(self) -> TopicPartition:
        try:
            return self._left.popleft()
        except IndexError:
            raise StopIteration from None


@contextmanager
def _suspecting(broker: Broker, log_dir: LogDir) -> Iterator[None]:
    """What one of several directories refuses is its own trouble."""
    try:
        yield
    except OSError as error:
        if broker.log_dirs.is_single:
            raise
        broker.directory_failures.suspect(log_dir, error)
