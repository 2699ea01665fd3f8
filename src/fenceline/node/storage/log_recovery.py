"""Recovers the data directories of a broker between registration and service.

Owns the order: finish interrupted deletions, find partitions and interrupted moves, check logs after a crash. A failure
of one directory does not affect the others. Directories are checked in parallel, each by as many threads as
`num.recovery.threads.per.data.dir` allows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from fenceline.config.effective import effective_broker_config
from fenceline.ids import TopicPartition

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.log.directories.log_dir import ExistingPartition, LogDir
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.log.directories.partition_dir import RemovedPartition
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.replication.replicas import Replicas

THREADS: Final = "num.recovery.threads.per.data.dir"


async def recover_logs(
    config: NodeConfig,
    log_dirs: LogDirs,
    partitions: Replicas,
    image: Callable[[], MetadataImage],
    executor: Executor,
    *,
    suspect: Callable[[LogDir, OSError], None],
    delete_later: Callable[[RemovedPartition], None],
) -> list[tuple[LogDir, ExistingPartition]]:
    """Returns copies of replicas whose move was interrupted. First change of a data directory after the start: until
    then the clean-shutdown mark is valid. `suspect` is called for a directory with an I/O error; `delete_later` deletes
    a partition and keeps its receipts."""
    loop, directories = asyncio.get_running_loop(), partitions.directories

    @contextmanager
    def suspecting(log_dir: LogDir) -> Iterator[None]:
        """With several directories, an OSError affects only this one."""
        try:
            yield
        except OSError as error:
            if log_dirs.is_single:
                raise
            suspect(log_dir, error)

    for log_dir in log_dirs:
        with suspecting(log_dir):
            log_dir.begin()
    unclean = [log_dir for log_dir in log_dirs if not log_dir.clean]
    # With a single node no topic is deleted while it is down, and after a clean shutdown there is nothing to check.
    is_known = log_dirs.is_single and not unclean and not config.can_reach_others
    found: dict[LogDir, list[TopicPartition]] = {}
    copies: list[tuple[LogDir, ExistingPartition]] = []
    pending_deletions: list[RemovedPartition] = []
    for log_dir in log_dirs:
        with suspecting(log_dir):
            pending_deletions += log_dir.pending_deletions()
            if not is_known:
                found[log_dir] = await loop.run_in_executor(executor, directories.scan, log_dir)
    for log_dir in tuple(log_dirs):
        with suspecting(log_dir):
            settled = await loop.run_in_executor(executor, directories.resolve_copies, log_dir)
            copies += [(log_dir, copy) for copy in settled]
    for removed in pending_deletions:  # their names were needed to complete moves
        delete_later(removed)
    late: dict[LogDir, list[TopicPartition]] = {}
    for log_dir in log_dirs:
        with suspecting(log_dir):
            # Opened before anything is served: lost records get their note and receipt now.
            if gone := log_dir.missing_first_segments():
                late[log_dir] = gone
    checked = [found.get(log_dir, []) for log_dir in unclean]
    # Opened now, so that the reason why they are offline is logged and another replica is elected.
    unresolved = [where for where in directories.unresolved if not any(where in held for held in checked)]
    threads = int(effective_broker_config(image().configs, config, THREADS) or 1)
    held = [*checked, *late.values(), *([unresolved] if unresolved else [])]
    await _check(held, partitions.recover, threads, executor)
    return copies


async def _check(
    by_directory: Sequence[Sequence[TopicPartition]],
    recover: Callable[[Iterable[TopicPartition]], None],
    threads: int,
    executor: Executor,
) -> None:
    """Each directory has its own threads (`num.recovery.threads.per.data.dir`), which recover one log after another."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        # A simulation's executor is not a thread pool, and runs one thing at a time.
        if isinstance(executor, ThreadPoolExecutor) and by_directory:
            pool = ThreadPoolExecutor(threads * len(by_directory), thread_name_prefix="recovery")
            executor = stack.enter_context(pool)
        shared = [_Shared(held) for held in by_directory]
        await asyncio.gather(
            *(loop.run_in_executor(executor, recover, logs) for logs in shared for _ in range(threads))
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
