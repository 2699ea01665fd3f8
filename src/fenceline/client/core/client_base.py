"""Base classes of the asynchronous and blocking clients: closing, and calls from threads into the asyncio core.

Owns the thread and event loop of a blocking client, and how its methods are derived from those of its core
(`blocking`). A client belongs to the process that created it: after a fork (a PySpark worker) the thread does not
exist, so calls raise an error with advice instead of hanging.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from types import FunctionType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from fenceline.errors import OperatorError

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient(ABC):
    """An asynchronous client: `async with` closes it."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


Core = TypeVar("Core", bound=AsyncClient)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop event loop if uvloop is installed, else one of the standard library."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class CallerThreadCalls:
    """Calls that a coroutine runs in the thread that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._loop = loop

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the waiting thread; returns its result or raises its exception."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self.queue.put((function, answer))
        return await answer

    def perform(self, function: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        try:
            result = function()
        except Exception as error:
            self._loop.call_soon_threadsafe(_set_outcome, answer, None, error)
        except BaseException as error:
            self._loop.call_soon_threadsafe(_set_outcome, answer, None, RuntimeError(f"interrupted: {error!r}"))
            raise
        else:
            self._loop.call_soon_threadsafe(_set_outcome, answer, result, None)


def _set_outcome(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


class LoopThread:
    """A thread with an event loop that runs coroutines for other threads.

    `close` is idempotent and may be called from any thread but this one.
    """

    def __init__(self, name: str) -> None:
        self._owner_pid = os.getpid()
        self._closed = False
        self.loop = new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.wait()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start the work. Raises OperatorError if the client cannot be used here."""
        try:
            self.check_usable()
        except OperatorError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to completion and return the result; an interrupt of the caller cancels the work."""
        with self._running(work) as future:
            return future.result()

    def run_with_calls(self, make: Callable[[CallerThreadCalls], Coroutine[Any, Any, T]]) -> T:
        """`run` for work that calls functions in the caller's thread, where blocking calls are allowed.

        `make` receives the `CallerThreadCalls` object through which the work makes these calls.
        """
        calls = CallerThreadCalls(self.loop)
        with self._running(make(calls)) as future:
            future.add_done_callback(lambda _: calls.queue.put(None))
            while (call := calls.queue.get()) is not None:
                calls.perform(*call)
            return future.result()

    @contextlib.contextmanager
    def _running(self, work: Coroutine[Any, Any, T]) -> Iterator[concurrent.futures.Future[T]]:
        """The work while the caller waits for it."""
        future = self.submit(work)
        try:
            yield future
        except concurrent.futures.CancelledError:
            raise OperatorError("The client was closed during the call", "Create a new client.") from None
        except BaseException:
            future.cancel()
            raise

    @property
    def is_closed(self) -> bool:
        """Also True in a process that was forked from the owner: there is nothing to close."""
        return self._closed or os.getpid() != self._owner_pid

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Schedule a callback on the loop; ignored after `close`."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args)

    def check_usable(self) -> None:
        if os.getpid() != self._owner_pid:
            raise OperatorError(
                "The client was created in another process",
                "A client does not survive a fork: create one in each process.",
            )
        if self._closed:
            raise OperatorError("The client is closed", "Create a new one.")
        if threading.current_thread() is self._thread:
            raise OperatorError(
                "A blocking call was made from the client's own thread, for example in a callback",
                "Make the call from another thread, or use the Async client.",
            )

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner_pid:
            return
        self._closed = True
        self.call_soon(self.loop.stop)
        self._thread.join(timeout=10)

    def _main(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.set)
        try:
            self.loop.run_forever()
        finally:
            self._cancel_tasks()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            # Work that was submitted while the loop stopped: its caller must not wait for ever.
            self._cancel_tasks()
            self.loop.close()

    def _cancel_tasks(self) -> None:
        leftovers = asyncio.all_tasks(self.loop)
        for task in leftovers:
            task.cancel()
        if leftovers:
            self.loop.run_until_complete(asyncio.gather(*leftovers, return_exceptions=True))


class BlockingClient(Generic[Core]):
    """A blocking client: an asynchronous core on its own thread, which is closed with it.

    `make` creates the core, on that thread. A method of the core is `name = blocking(Core.name)` in the class body.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in vars(cls).items():
            if isinstance(value, FunctionType) and hasattr(value, "__wrapped__"):
                value.__module__, value.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"

    def __init__(self, name: str, make: Callable[[], Core]) -> None:
        self._loop_thread = LoopThread(name)

        async def construct() -> Core:
            return make()

        try:
            self._async = self._loop_thread.run(construct())
        except BaseException:
            self._loop_thread.close()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop_thread.run(work)

    def _on_loop(self, function: Callable[[], T]) -> T:
        """Run a function that does not wait, on the loop."""

        async def call() -> T:
            return function()

        return self._run(call())

    def close(self) -> None:
        """Close the core, then its thread. Idempotent."""
        self._close_with(lambda: self._run(self._async.close()))

    def _close_with(self, close_core: Callable[[], None]) -> None:
        if not self._loop_thread.is_closed:
            try:
                close_core()
            finally:
                self._loop_thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@overload
def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient[Any], P], T]: ...
@overload
def blocking(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[BlockingClient[Any], P], T]: ...
def blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the core as a blocking one, with its parameters, result and docstring; runs on the core's loop."""
    name = method.__name__
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        def wait(self: BlockingClient[Any], *args: Any, **options: Any) -> Any:
            return self._run(getattr(self._async, name)(*args, **options))

        return wait

    @functools.wraps(method)
    def call(self: BlockingClient[Any], *args: Any, **options: Any) -> Any:
        return self._on_loop(lambda: getattr(self._async, name)(*args, **options))

    return call
