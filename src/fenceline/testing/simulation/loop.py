"""An asyncio event loop on virtual time: one for each simulated process.

Owns the callbacks, timers, tasks and executor jobs of its process, so that all of them can be paused (SIGSTOP) or
dropped (SIGKILL) at once. asyncio binds every future and task to its loop, and so to its process. Never blocks, never
opens a socket: network calls of the loop raise.

A function given to an executor runs at a drawn later moment, between other callbacks, and its result is delivered at a
later moment still: its side effects and its result are apart, as with threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import warnings
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from typing import Any, Final, NoReturn, Protocol, TypeVar

from fenceline.testing.simulation.scheduler import (
    ENDED,
    PAUSED,
    RUNNING,
    ProcessEnded,
    ProcessLoop,
    Scheduler,
    SimHandle,
)
from fenceline.testing.simulation.scheduler import SimulationError as SimulationError

T = TypeVar("T")

JobTimes = Callable[[], tuple[float, float]]
"""(seconds until a job runs, seconds until its result is delivered)."""

_NO_TIMES: Final = (0.0, 0.0)
_NEVER: Final = (-1.0, -1.0)
_APART_S: Final = 1e-6
"""Between jobs of one thread: timers of the same instant have no order."""


class SimExecutor(Executor):
    """Represents a thread pool. Jobs of an executor with one worker run in the order of submission."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise SimulationError("jobs must be submitted with loop.run_in_executor")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """There is nothing to join."""


class SocketsOfNode(Protocol):
    """The simulated TCP of one node."""

    async def connect(
        self, loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[Any, Any]: ...

    async def listen(self, loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol], port: int) -> Any: ...


class SimLoop(ProcessLoop):
    """See the module. `rate` is the rate of this machine's monotonic clock, `base_s` its first value."""

    def __init__(
        self,
        scheduler: Scheduler,
        name: str = "",
        *,
        job_times: JobTimes | None = None,
        rate: float = 1.0,
        base_s: float = 0.0,
        owner: object = None,
    ) -> None:
        self.scheduler = scheduler
        self.name = name
        self.state = RUNNING
        self.owner = owner
        self.sockets: SocketsOfNode | None = None
        """Implements connections and listeners; None: there are none."""
        self._rate = rate
        self._base_s = base_s
        self._job_times = job_times
        self._stopped: list[SimHandle] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._lanes: dict[Executor | None, tuple[float, float]] = {}
        """By executor with one worker: when its last job runs, and when the result is delivered."""
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None

    def __repr__(self) -> str:
        return f"<SimLoop {self.name}>"

    # -- life of the process -------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Nothing of this process runs until `resume`; its timers become late."""
        if self.state == RUNNING:
            self.state = PAUSED

    def resume(self) -> None:
        """Callbacks that became due meanwhile run now."""
        if self.state == PAUSED:
            self.state = RUNNING
            for handle in self._stopped:
                self.scheduler.soon(handle)
            self._stopped.clear()

    def kill(self) -> None:
        """Drop every callback, timer and job. Coroutines stay suspended: not even their `finally` runs."""
        self.state = ENDED
        self._stopped.clear()

    def close_tasks(self) -> None:
        """Close the coroutines of an ended process, in order. Must not be called from one of them."""
        tasks, self._tasks = self._tasks, []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # some have not begun
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                if isinstance(coroutine, Coroutine):
                    with contextlib.suppress(
                        Exception, ProcessEnded
                    ):  # the process has ended; the error concerns no one
                        coroutine.close()

    def not_running(self, handle: SimHandle) -> None:
        if self.state == PAUSED:
            self._stopped.append(handle)

    # -- asyncio: callbacks and time -----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._base_s + self.scheduler.now_s * self._rate

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(self, callback, args, context or contextvars.copy_context(), -1.0)
        self.scheduler.soon(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        when_s = self.time() + max(delay, 0.0)
        handle = SimHandle(self, callback, args, context or contextvars.copy_context(), when_s)
        self.scheduler.at(self.scheduler.now_s + max(delay, 0.0) / self._rate, handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(self, callback, args, context or contextvars.copy_context(), max(when, 0.0))
        self.scheduler.at((when - self._base_s) / self._rate, handle)
        return handle

    # -- asyncio: futures, tasks, jobs ---------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        if self.state == ENDED:
            coro.close()
            raise SimulationError(f"{self.name} has ended and accepts no task")
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        if len(self._tasks) > 64 and self._tasks[0].done():
            self._tasks = [each for each in self._tasks if not each.done() or _has_unseen_error(each)]
        self._tasks.append(task)
        return task

    def report_unseen_errors(self) -> None:
        """Report errors of finished tasks that no caller has retrieved. asyncio does so when a task is collected, so
        never as long as a reference keeps it."""
        for task in self._tasks:
            if _has_unseen_error(task):
                self.call_exception_handler({"message": f"{task!r} was not awaited", "exception": task.exception()})

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        delay_s, delivery_s = self._job_times() if self._job_times is not None else _NO_TIMES
        at_s = self.scheduler.now_s + delay_s
        delivered_s = at_s + delivery_s
        if getattr(executor, "workers", getattr(executor, "_max_workers", 0)) == 1:
            ran_s, last_delivered_s = self._lanes.get(executor, _NEVER)
            at_s, delivered_s = (
                max(at_s, ran_s + _APART_S),
                max(delivered_s, last_delivered_s + _APART_S, ran_s + _APART_S),
            )
            self._lanes[executor] = (at_s, delivered_s)

        def deliver(result: T | None, error: BaseException | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            if future.cancelled():
                return
            result: T | None = None
            failure: BaseException | None = None
            asyncio._set_running_loop(None)  # a thread has none
            try:
                result = func(*args)
            except Exception as error:
                failure = error
            finally:
                asyncio._set_running_loop(self)
            self._timer(delivered_s, deliver, (result, failure)).is_inert = True

        self._timer(at_s, work, ())
        return future

    def _timer(self, when_s: float, callback: Callable[..., object], args: tuple[Any, ...]) -> SimHandle:
        handle = SimHandle(self, callback, args, contextvars.copy_context(), when_s)
        self.scheduler.at(when_s, handle)
        return handle

    # -- asyncio: the rest ---------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Run the complete world until this is done. Raises NothingLeft if it never can be."""
        if not asyncio.isfuture(future):
            future = self.create_task(future)
        self.scheduler.run(done=future.done)
        return future.result()

    def is_running(self) -> bool:
        return self.state == RUNNING

    def is_closed(self) -> bool:
        return self.state == ENDED

    def close(self) -> None:
        self.kill()
        self.close_tasks()

    get_debug = staticmethod(bool)  # always False; called for each task, so a builtin

    def set_debug(self, enabled: bool) -> None:
        """There is no debug mode."""

    async def shutdown_asyncgens(self) -> None:
        """Async generators are closed with their coroutines."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There are no threads."""

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        self._handler = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        return self._handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that a node would only log ends the simulation, unless the process has its own handler."""
        if self.state == ENDED or isinstance(context.get("exception"), ProcessEnded):
            return
        if self._handler is not None:
            self._handler(self, context)
        else:
            self.default_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        failure = SimulationError(f"{self.name or 'loop'}: {context.get('message')}: {error!r}")
        failure.__cause__ = error
        self.scheduler.fail(failure)

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> tuple[Any, Any]:
        if self.sockets is None:
            self._unsupported()
        return await self.sockets.connect(self, factory, host, port)

    async def create_server(  # type: ignore[override]
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int, **_: Any
    ) -> Any:
        if self.sockets is None:
            self._unsupported()
        return await self.sockets.listen(self, factory, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        if self.sockets is None:
            self._unsupported()
        return [(0, 0, 0, "", (host, port))]

    def _unsupported(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise SimulationError("a simulated process has no sockets, pipes or signals: use the simulated network")

    # Methods required by AbstractEventLoop.
    create_datagram_endpoint = create_unix_connection = _unsupported
    create_unix_server = connect_accepted_socket = sendfile = start_tls = _unsupported
    getnameinfo = sock_connect = sock_accept = sock_sendfile = _unsupported
    sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = sock_sendall = sock_sendto = _unsupported
    add_reader = add_writer = add_signal_handler = _unsupported  # type: ignore[assignment]
    remove_reader = remove_writer = remove_signal_handler = _unsupported
    connect_read_pipe = connect_write_pipe = subprocess_exec = subprocess_shell = _unsupported
    run_forever = stop = set_default_executor = set_task_factory = get_task_factory = _unsupported


def run(work: Coroutine[Any, Any, T], *, scheduler: Scheduler | None = None) -> T:
    """`asyncio.run` on virtual time."""
    loop = SimLoop(scheduler or Scheduler(), "main")
    try:
        result: T = loop.run_until_complete(work)
        return result
    finally:
        loop.close()


def _has_unseen_error(task: asyncio.Task[Any]) -> bool:
    return task.done() and bool(task._log_traceback)
