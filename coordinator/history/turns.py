"""What callers ask of the past, one after another: users take turns, and one state is held.

Whoever wants the revision that was just built is answered before the state moves on. So pages of a
list, and many callers with one question, cost one build. A question whose caller is gone is
dropped, and its build ends at the next piece; what was built by then stays, and the next one goes
on there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

from coordinator.history.builder import NobodyWaitsError, PastBuilder
from coordinator.replica.fair_queue import FairQueue, QueuePlace
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import (
    PAST_IDLE_MS,
    PAST_READS_WAITING_MAX,
    PAST_READS_WAITING_PER_USER_MAX,
    READ_RETRY_DELAY_MS,
)

IsWanted: TypeAlias = Callable[[], bool]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PastQuestion:
    """What to do at a revision, which entries up to `committed_op` hold.

    `ask` is called once the state is there; one without a revision, 0, leads the state itself, as
    long as the answer is wanted.
    """

    user_id: int
    revision: int
    committed_op: int
    ask: Callable[[PastBuilder, IsWanted], Awaitable[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    question: PastQuestion
    future: asyncio.Future[Any]


_Place: TypeAlias = QueuePlace[_Asked]


class PastTurns:
    """The questions that wait. `start` runs the work; its failure ends the process."""

    def __init__(
        self,
        builder: PastBuilder,
        start: Callable[[Coroutine[Any, Any, None]], None],
        idle_ms: int = PAST_IDLE_MS,
    ) -> None:
        self._builder = builder
        self._start = start
        self._idle_ms = idle_ms
        self._queue: FairQueue[_Asked] = FairQueue()
        # All that have no answer, by token, and how many each user has.
        self._places: dict[int, _Place] = {}
        self._counts: Counter[int] = Counter()
        self._last_token = 0
        self._is_working = False
        self._wake = asyncio.Event()

    def ask(self, question: PastQuestion) -> asyncio.Future[Any]:
        """Queue a question; the future may fail with Refusal, and is to be cancelled by whoever
        stops waiting. Raises Refusal OVERLOADED if too many wait."""
        self._check_room(question.user_id)
        self._last_token += 1
        asked = _Asked(question, asyncio.get_running_loop().create_future())
        place = QueuePlace(question.user_id, self._last_token, 1, asked)
        self._places[place.token] = place
        self._counts[question.user_id] += 1
        self._queue.add(place)
        asked.future.add_done_callback(lambda _: self._forget(place))
        self._wake.set()
        if not self._is_working:
            self._is_working = True
            self._start(self._work())
        return asked.future

    async def oldest_revision(self) -> int:
        """Return the revision of the first state from which on all can be built here."""
        return await self._builder.oldest_revision()

    def _check_room(self, user_id: int) -> None:
        for held, held_max, whose in (
            (self._counts[user_id], PAST_READS_WAITING_PER_USER_MAX, "of yours"),
            (len(self._places), PAST_READS_WAITING_MAX, "of all callers"),
        ):
            if held >= held_max:
                raise Refusal(
                    Reason.REASON_OVERLOADED,
                    f"{held} reads {whose} wait for earlier revisions already, and {held_max} are"
                    " allowed: try again, or ask another replica",
                    waiting=held,
                    waiting_max=held_max,
                    retry_delay_ms=READ_RETRY_DELAY_MS,
                )

    def _forget(self, place: _Place) -> None:
        self._queue.remove(place)
        del self._places[place.token]
        self._counts[place.caller] -= 1
        if not self._counts[place.caller]:
            del self._counts[place.caller]

    async def _work(self) -> None:
        try:
            while await self._some_wait():
                for place in self._queue.take(1):
                    await self._serve(place.item)
        finally:
            self._is_working = False
            self._builder.end()

    async def _some_wait(self) -> bool:
        """Wait for a question; False if none has come for long."""
        while not self._queue:
            self._wake.clear()
            try:
                async with asyncio.timeout(self._idle_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                return bool(self._queue)
        return True

    async def _serve(self, asked: _Asked) -> None:
        question = asked.question
        try:
            if question.revision:
                await self._builder.lead_to(
                    question.revision, question.committed_op, lambda: self._is_wanted(asked)
                )
        except NobodyWaitsError:
            return
        except Exception as error:
            self._failed(asked, error)
            return
        same = [each for each in self._places.values() if _is_same(each.item, asked)]
        for place in same:
            self._queue.remove(place)
            await self._answer(place.item)

    def _is_wanted(self, asked: _Asked) -> bool:
        return any(_is_same(place.item, asked) for place in self._places.values())

    async def _answer(self, asked: _Asked) -> None:
        if asked.future.done():
            return
        try:
            found = await asked.question.ask(self._builder, lambda: not asked.future.done())
        except NobodyWaitsError:
            return
        except Exception as error:
            self._failed(asked, error)
            return
        if not asked.future.done():
            asked.future.set_result(found)

    def _failed(self, asked: _Asked, error: Exception) -> None:
        """Tell the caller. A defect here ends the state, and nothing that serves the present."""
        if not isinstance(error, Refusal):
            _log.error("a read of the past failed", exc_info=error)
            self._builder.end()
            error = Refusal(
                Reason.REASON_INTERNAL,
                "the earlier state could not be read, by a defect or by a disk: please report it"
                " with the log of the coordinator",
            )
        if not asked.future.done():
            asked.future.set_exception(error)


def _is_same(one: _Asked, other: _Asked) -> bool:
    return one is other or 0 < one.question.revision == other.question.revision
