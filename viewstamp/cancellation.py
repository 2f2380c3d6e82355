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

    Call it at each turn of a loop that begins again after failures, outside of `asyncio.timeout`.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def answer_of(call: Awaitable[Answer]) -> Answer:
    """Return the answer to a call, or raise its status; end if this task was cancelled meanwhile.

    Use it where a task goes on after the answer, and waits for something else.
    """
    try:
        answer = await call
    except Exception:
        end_if_cancelled()
        raise
    end_if_cancelled()
    return answer
