"""The answers of one Submit stream on their way out: made one at a time, in order.

An answer to thousands of commands takes tens of milliseconds to make. So it is made when it is
about to be written, by the one who writes it, and the event loop turns between two of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from coordinator.slices import Slice
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.limits import KIB

Answer: TypeAlias = submit_pb2.CommandReply | submit_pb2.ReadReply
Make: TypeAlias = Callable[[], Answer]
# Answers that are ready together share a message up to so many bytes, for clients that take them:
# what a message costs by itself no longer counts then.
PACKED_ANSWERS_BYTES_MAX: Final = 256 * KIB


class AnswerQueue:
    """What waits to be written; `packs` says whether answers of commands may share a message."""

    def __init__(self, *, packs: bool) -> None:
        self._packs = packs
        self._waiting: deque[Answer | Make] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, answer: Answer | Make) -> None:
        """Let an answer, or what makes it, wait behind the others."""
        self._waiting.append(answer)

    async def take(self) -> list[Answer]:
        """Return what goes into the next message: one answer, or several of commands.

        Raises what the first one raises when it is made, and forgets that one.
        """
        own = Slice()
        answers = [self._taken()]
        size = answers[0].ByteSize()
        while self._packs and self._waiting and isinstance(answers[0], submit_pb2.CommandReply):
            await own.give_way()
            answer = self._made()
            if not isinstance(answer, submit_pb2.CommandReply):
                break
            size += answer.ByteSize()
            if size > PACKED_ANSWERS_BYTES_MAX:
                break
            answers.append(self._taken())
        return answers

    def _taken(self) -> Answer:
        waiting = self._waiting.popleft()
        return waiting() if callable(waiting) else waiting

    def _made(self) -> Answer | None:
        """Return the next answer, which keeps its place; None if it cannot be made."""
        waiting = self._waiting[0]
        if callable(waiting):
            try:
                waiting = self._waiting[0] = waiting()
            except Exception:
                return None  # it is made once more when it is the first, and raises there
        return waiting
