"""A thread that runs calls for the event loop, one after another, behind a port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from viewstamp.limits import DISK_STALL_MS

Result = TypeVar("Result")


class DiskHangsError(Exception):
    """A write does not return: the process ends without it, as after a crash."""


class WorkerThread(Protocol):
    """Runs calls one after another, in the order in which they were asked for."""

    def call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Return a future of the result, or of what the function raises."""
        ...

    def abandon(self) -> None:
        """End after the calls asked for, without waiting for them: they may never end."""
        ...

    def close(self) -> None:
        """Finish the calls asked for, and end. Raises DiskHangsError if that takes too long."""
        ...


class DaemonThread:
    """A thread of this process. The two kinds of futures of a pool would cost much more.

    It does not keep the process alive: unfinished calls are then as after a crash.
    """

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Return a future of the result, or of what the function raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def run() -> None:
            try:
                result = function()
            except BaseException as error:
                tell(_fail, future, error)
            else:
                tell(_succeed, future, result)

        def tell(how: Callable[..., None], *arguments: Any) -> None:
            try:
                loop.call_soon_threadsafe(how, *arguments)
            except RuntimeError:
                # The loop was closed meanwhile: nobody is left to tell.
                assert loop.is_closed()

        self._calls.put(run)
        return future

    def abandon(self) -> None:
        """End after the calls asked for, without waiting for them: they may never end."""
        self._calls.put(None)

    def close(self) -> None:
        """Finish the calls asked for, and end. Raises DiskHangsError if that takes too long."""
        self.abandon()
        self._thread.join(DISK_STALL_MS / 1000)
        if self._thread.is_alive():
            raise DiskHangsError(f"the disk has not finished a write for {DISK_STALL_MS} ms")

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _succeed(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():  # the waiter may have been cancelled
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
