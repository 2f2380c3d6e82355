"""A deadline for calls that know none of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def ended_within(timeout_s: float, call: Callable[[], Value]) -> Value:
    """Return what a call returns, or raise what it raises; TimeoutError if it takes longer.

    The thread of a call that takes longer stays; it does not keep the process from its end.
    """
    answers: queue.SimpleQueue[Callable[[], Value]] = queue.SimpleQueue()

    def run() -> None:
        try:
            value = call()
        except Exception as error:
            raised = error

            def again() -> Value:
                raise raised

            answers.put(again)
        else:
            answers.put(lambda: value)

    threading.Thread(target=run, daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"it gave no whole answer within {timeout_s:g} s") from None
    return answer()
