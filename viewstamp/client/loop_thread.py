"""The thread in which the event loop of a blocking client runs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from viewstamp.client.errors import ClientClosed

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in a thread of its own until it is stopped. Any thread may use it."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._is_stopped = False
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a program which forgets to close its client can end.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="viewstamp-client", daemon=True
        )
        self._thread.start()

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a step there, wait for it, and return its result. Raises what it raises.

        Ctrl-C ends the wait, and the step with it. Raises ClientClosed and RuntimeError as
        `submitted` does.
        """
        future = self.submitted(step)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submitted(self, step: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a step there, and return its result as a future.

        Raises ClientClosed once the loop is stopped, and in a child process; RuntimeError in the
        thread itself, which would wait for itself.
        """
        try:
            self._check()
        except BaseException:
            step.close()
            raise
        return asyncio.run_coroutine_threadsafe(step, self._loop)

    def stop(self) -> None:
        """End the loop and the thread; nothing happens in a child process, which has neither."""
        if self._is_stopped or os.getpid() != self._process_id:
            return
        self.run(self._loop.shutdown_default_executor())
        self._is_stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def is_usable(self) -> bool:
        """Whether steps can be run: it is not stopped, and this is its process."""
        return not self._is_stopped and os.getpid() == self._process_id

    def _check(self) -> None:
        if os.getpid() != self._process_id:
            raise ClientClosed("the client belongs to the parent process: connect behind the fork")
        if self._is_stopped:
            raise ClientClosed("the client was closed")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call in the client's own thread would wait for itself")
