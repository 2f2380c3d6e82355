"""Ctrl-C while processes run and files lie about: the way out goes through every cleanup."""

from __future__ import annotations

import asyncio
import signal


def cancel_on_signals() -> None:
    """Have SIGINT and SIGTERM cancel the current task, once: a second one must not cut it short.

    Stopping a cluster is limited by its grace period, so nobody waits for ever.
    """
    task = asyncio.current_task()
    assert task is not None, "called from within a task"

    def cancel() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, cancel)
