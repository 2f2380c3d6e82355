"""The answers of one Submit stream: made one at a time, in order, when they are written.

An answer to thousands of commands takes tens of milliseconds to make, and then weighs megabytes. So
the stream's writer makes it just before writing it. The streams of one user take turns at that, and
between two slices of it the event loop turns. Waiting answers are weighed, since a client may leave
them unread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from coordinator.base.slices import TimeSlice
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.limits import KIB, MIB

Answer: TypeAlias = submit_pb2.CommandReply | submit_pb2.ReadReply
Make: TypeAlias = Callable[[], Answer]
# Answers that are ready together share a message up to this many bytes, for clients that take them:
# beyond that the cost of a message itself no longer matters.
PACKED_ANSWERS_BYTES_MAX: Final = 256 * KIB
# The weight of unread answers, of one stream and of all streams of one user, above which nothing
# more is read from a stream. Each stream may always have one answer due.
ANSWERS_DUE_BYTES_MAX: Final = 8 * MIB
ANSWERS_DUE_BYTES_PER_USER_MAX: Final = 64 * MIB
# The weight of an answer beside its results and refusals, roughly.
ANSWER_OVERHEAD_BYTES: Final = KIB


class UserAnswers:
    """Shared by the streams of one user: the turn to make answers, and the weight of all of
    them."""

    def __init__(self) -> None:
        """Begin with nothing due."""
        self.weight = 0
        self.turn = asyncio.Lock()
        self.slice = TimeSlice()


class AnswerQueue:
    """Answers to be written; `packs` says whether answers of commands may share a message."""

    def __init__(self, *, packs: bool, of_user: UserAnswers) -> None:
        self._packs = packs
        self._of_user = of_user
        self._waiting: deque[tuple[Answer | Make, int]] = deque()
        self._weight = 0  # including taken ones until they are written
        self._taken_weight = 0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether some answers must be read before there are more."""
        if self._weight > ANSWERS_DUE_BYTES_MAX:
            return True
        return self._weight > 0 and self._of_user.weight > ANSWERS_DUE_BYTES_PER_USER_MAX

    def add(self, answer: Answer | Make, weight: int = 0) -> None:
        """Queue an answer, or the function that makes it."""
        if self._is_closed:
            return
        weight += ANSWER_OVERHEAD_BYTES
        self._waiting.append((answer, weight))
        self._weight += weight
        self._of_user.weight += weight

    async def take(self) -> list[Answer]:
        """Return the answers of the next message: one, or several of commands.

        Raises any error of making the first one, and forgets that one.
        """
        async with self._of_user.turn:
            own = self._of_user.slice
            await own.give_way()
            answers = [self._taken()]
            size = answers[0].ByteSize()
            while self._packs and self._may_share(answers[0]):
                await own.give_way()
                answer = self._made()
                if not isinstance(answer, submit_pb2.CommandReply):
                    break
                size += answer.ByteSize()
                if size > PACKED_ANSWERS_BYTES_MAX:
                    break
                answers.append(self._taken())
            return answers

    def written(self) -> None:
        """Note that the taken answers were written to the client."""
        self._forget(self._taken_weight)
        self._taken_weight = 0

    def close(self) -> None:
        """Forget all answers, present and later: nobody is there for them."""
        self._is_closed = True
        self._waiting.clear()
        self._forget(self._weight)

    def _forget(self, weight: int) -> None:
        self._weight -= weight
        self._of_user.weight -= weight

    def _may_share(self, first: Answer) -> bool:
        """Return whether the next answer may join the first one; large answers are not made yet."""
        if not self._waiting or not isinstance(first, submit_pb2.CommandReply):
            return False
        return self._waiting[0][1] <= PACKED_ANSWERS_BYTES_MAX

    def _taken(self) -> Answer:
        waiting, weight = self._waiting.popleft()
        self._taken_weight += weight
        return waiting() if callable(waiting) else waiting

    def _made(self) -> Answer | None:
        """Return the next answer, which keeps its place; None if making it failed."""
        waiting, weight = self._waiting[0]
        if callable(waiting):
            try:
                waiting = waiting()
            except Exception:
                return None  # made again when it is the first, which raises
            self._waiting[0] = waiting, weight
        return waiting
