"""Cancellations that a library has lost.

A call of gRPC whose status has just arrived answers a cancellation with this status, and not with
CancelledError. A loop that begins again after every status would never end, and nor would the
process that waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Answer = TypeVar("Answer")


def end_if_cancelled() -> None:
    """Raise CancelledError in a task that was cancelled, and whose cancellation was lost.

    Call it at each turn of a loop that begins again after failures, outside of `asyncio.timeout`,
    and in tasks of this library's own alone: those of a program may go on after a cancellation, and
    a TaskGroup of Python 3.11 that has failed leaves one behind.
    """
    if _cancellations():
        raise asyncio.CancelledError


async def answer_of(call: Awaitable[Answer]) -> Answer:
    """Return the answer to a call, or raise its status; end if this task was cancelled meanwhile.

    Use it where a task goes on after the answer, and waits for something else. A task that was
    cancelled before may still call, as `finally` blocks do.
    """
    before = _cancellations()
    try:
        answer = await call
    except Exception:
        if _cancellations() > before:
            raise asyncio.CancelledError from None
        raise
    if _cancellations() > before:
        raise asyncio.CancelledError
    return answer


def _cancellations() -> int:
    """Return how often this task was cancelled, without timeouts that have passed."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
