"""What callers ask of the past, one after another: users take turns, and one state is held.

Whoever wants the revision that was just built is answered before the state moves on. So pages of a
list, and many callers with one question, cost one build. A question whose caller is gone is
dropped, and its build ends at the next piece; what was built by then stays, and the next one goes
on there.

A build may take longer than a caller may wait, and another user's build would begin where the first
one has to begin again. Two such users would destroy each other's states for ever. So a turn lasts
until it is answered: while its caller is away for a moment, between two attempts or two pages, the
build goes on and the state stays, as long as it was worked at for that caller, and
PAST_ABSENCE_MS_MAX at most. While others wait no turn takes longer than PAST_TURN_MS_MAX.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from coordinator.history.builder import PastBuilder
from coordinator.history.order import TurnOrder
from coordinator.history.tally import GIVEN_UP, NobodyWaitsError, PastTally
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import (
    READ_RETRY_DELAY_MS,
)
from viewstamp.past_limits import (
    PAST_IDLE_MS,
    PAST_READS_WAITING_MAX,
    PAST_READS_WAITING_PER_USER_MAX,
)
from viewstamp.telemetry.rpc import OK

# How long a turn waits for a caller that is away, in milliseconds: a program asks again at once.
PAST_ABSENCE_MS_MAX: Final = 10_000
# How long a turn may take while others wait, in milliseconds: as the longest step of a build may.
PAST_TURN_MS_MAX: Final = 600_000

IsWanted: TypeAlias = Callable[[], bool]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PastQuestion:
    """What to do at a revision, which entries up to `committed_op` hold.

    `ask` is called once the state is there; one without a revision, 0, leads the state itself, as
    long as the answer is wanted. Questions of a user with one `goal` go on where the one before it
    ended, as long as their answers say that this `goes_on`.
    """

    user_id: int
    revision: int
    committed_op: int
    ask: Callable[[PastBuilder, IsWanted], Awaitable[Any]]
    goal: bytes = b""
    goes_on: Callable[[Any], bool] = lambda answer: False


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    question: PastQuestion
    future: asyncio.Future[Any]


@dataclass(slots=True)
class _Turn:
    """What is worked at, since when, and since when its caller is away."""

    asked: _Asked
    begun_s: float
    left_s: float | None = None
    left_token: int = 0
    """The last question of all when a caller of this turn left or was answered."""

    def takes(self, other: _Asked) -> bool:
        """Return whether a question is part of this turn."""
        own, question = self.asked.question, other.question
        if other is self.asked or 0 < own.revision == question.revision:
            return True
        return own.user_id == question.user_id and bool(own.goal) and own.goal == question.goal


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
        # All that have no answer, oldest first, and how many each user has.
        self._waiting: dict[int, _Asked] = {}
        self._counts: Counter[int] = Counter()
        self._order = TurnOrder(PAST_ABSENCE_MS_MAX / 1000, PAST_READS_WAITING_MAX)
        self._last_token = 0
        self._turn: _Turn | None = None
        self._is_working = False
        self._wake = asyncio.Event()

    @property
    def tally(self) -> PastTally:
        """What was done so far."""
        return self._builder.tally

    def ask(self, question: PastQuestion) -> asyncio.Future[Any]:
        """Queue a question; the future may fail with Refusal, and is to be cancelled by whoever
        stops waiting. Raises Refusal OVERLOADED if too many wait."""
        self._check_room(question.user_id)
        self._last_token = token = self._last_token + 1
        asked = _Asked(question, asyncio.get_running_loop().create_future())
        self._order.asks(question.user_id, self.tally.now_s())
        self._waiting[token] = asked
        self._counts[question.user_id] += 1
        self.tally.waiting += 1
        asked.future.add_done_callback(lambda _: self._forget(token))
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
            (len(self._waiting), PAST_READS_WAITING_MAX, "of all callers"),
        ):
            if held >= held_max:
                refusal = Refusal(
                    Reason.REASON_OVERLOADED,
                    f"{held} reads {whose} wait for earlier revisions already, and {held_max} are"
                    " allowed: try again, or ask another replica",
                    waiting=held,
                    waiting_max=held_max,
                    retry_delay_ms=READ_RETRY_DELAY_MS,
                )
                self.tally.refused(refusal)
                raise refusal

    def _forget(self, token: int) -> None:
        asked = self._waiting.pop(token)
        if self._turn is not None and self._turn.takes(asked):
            self._turn.left_token = self._last_token
        user_id = asked.question.user_id
        self.tally.waiting -= 1
        if asked.future.cancelled():
            self.tally.questions[GIVEN_UP] += 1
        self._counts[user_id] -= 1
        if not self._counts[user_id]:
            del self._counts[user_id]
            self._order.leaves(user_id, self.tally.now_s())
        self._wake.set()

    # --- Turns ---

    async def _work(self) -> None:
        try:
            while await self._some_wait():
                self._turn = turn = _Turn(self._next(), self.tally.now_s())
                question = turn.asked.question
                await (self._read(turn) if question.revision else self._walk(turn))
                self._turn = None
                self._order.had_turn(question.user_id)
        finally:
            self._is_working = False
            self._builder.end()

    async def _some_wait(self) -> bool:
        """Wait for a question; False if none has come for long."""
        ends_s = asyncio.get_running_loop().time() + self._idle_ms / 1000
        while not self._open():
            if not await self._woken(ends_s - asyncio.get_running_loop().time()):
                return bool(self._open())
        return True

    def _next(self) -> _Asked:
        firsts: dict[int, _Asked] = {}
        for each in self._open():
            firsts.setdefault(each.question.user_id, each)
        return firsts[self._order.first(firsts)]

    def _open(self) -> list[_Asked]:
        """Return the questions that have no answer."""
        return [each for each in self._waiting.values() if not each.future.done()]

    async def _read(self, turn: _Turn) -> None:
        """Build the state of a revision, and answer all who wait for it."""
        question = turn.asked.question
        while True:
            try:
                await self._builder.lead_to(
                    question.revision, question.committed_op, lambda: self._goes_on(turn)
                )
            except NobodyWaitsError:
                if await self._is_wanted_again(turn, is_built=False):
                    continue
                return
            except Exception as error:
                self._failed(turn.asked, error)
                return
            if answerable := self._taken(turn):
                for asked in answerable:
                    # An answer that failed may have ended the state: the others have other turns.
                    if self._builder.is_at(question.revision):
                        await self._answer(asked)
                return
            if not await self._is_wanted_again(turn, is_built=True):
                return

    async def _walk(self, turn: _Turn) -> None:
        """Answer a question that leads the state itself, and those that go on where it ends."""
        while True:
            asked = turn.asked
            is_answered = await self._answer(asked)
            if is_answered:
                goes_on = asked.question.goes_on(asked.future.result())
            else:
                # The way to where it begins may take longer than its caller may wait.
                goes_on = bool(asked.question.goal) and asked.future.cancelled()
            if not goes_on:
                return
            if not await self._is_wanted_again(turn, is_built=True):
                return
            turn.asked = self._taken(turn)[0]

    # --- How long a turn lasts ---

    def _taken(self, turn: _Turn) -> list[_Asked]:
        return [each for each in self._open() if turn.takes(each)]

    def _others_wait(self, turn: _Turn) -> bool:
        return any(not turn.takes(each) for each in self._open())

    def _goes_on(self, turn: _Turn) -> bool:
        """Return whether to build the next piece. While nobody waits at all, nothing is built."""
        if self._is_overdue(turn):
            return False
        if self._taken(turn):
            turn.left_s = None
            return True
        return self._patience_s(turn) > 0 and self._others_wait(turn)

    def _is_overdue(self, turn: _Turn) -> bool:
        took_s = self.tally.now_s() - turn.begun_s
        return took_s * 1000 >= PAST_TURN_MS_MAX and self._others_wait(turn)

    def _patience_s(self, turn: _Turn) -> float:
        """Return how long to wait for a caller that is away, in seconds; 0 for no longer."""
        if self._is_given_up(turn):
            return 0
        now_s = self.tally.now_s()
        if turn.left_s is None:
            turn.left_s = now_s
        absence_s_max = min(PAST_ABSENCE_MS_MAX / 1000, turn.left_s - turn.begun_s)
        return max(0, turn.left_s + absence_s_max - now_s)

    def _is_given_up(self, turn: _Turn) -> bool:
        """Return whether the caller that left wants something else by now.

        What the user wanted before, too, may be of another program, which would destroy this state.
        """
        if any(map(turn.takes, self._waiting.values())):
            return False  # it leaves just now
        user_id = turn.asked.question.user_id
        return any(
            token > turn.left_token and asked.question.user_id == user_id
            for token, asked in self._waiting.items()
            if not asked.future.done()
        )

    async def _is_wanted_again(self, turn: _Turn, *, is_built: bool) -> bool:
        """Wait for a caller that is away; False once its turn is over.

        What is not built yet is built meanwhile, if others wait: they wait anyway.
        """
        while not self._is_overdue(turn):
            if self._taken(turn):
                turn.left_s = None
                return True
            patience_s = self._patience_s(turn)
            if patience_s > 0 and not is_built and self._others_wait(turn):
                return True
            if patience_s <= 0 or not await self._woken(patience_s):
                return False
        return False

    async def _woken(self, timeout_s: float) -> bool:
        """Wait until a question comes or goes; False if none does in time."""
        self._wake.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    # --- Answers ---

    async def _answer(self, asked: _Asked) -> bool:
        """Answer a question; return whether it has an answer, which is no refusal."""
        future = asked.future
        if future.done():
            return False
        try:
            found = await asked.question.ask(self._builder, lambda: not future.done())
        except NobodyWaitsError:
            return False
        except Exception as error:
            self._failed(asked, error)
            return False
        if future.done():
            return False
        future.set_result(found)
        self.tally.questions[OK] += 1
        return True

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
            self.tally.refused(error)
