"""Threads that serve many callers in turn: no caller's work keeps others waiting for long.

Work belongs to a share: an address, a user. Shares take turns, one piece each, and each may have a
few pieces waiting. When all places are taken, the share with most of them gives one up for a share
with fewer. Trusted shares have their own places, and every second turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

Result = TypeVar("Result")

# When to come again.
RETRY_DELAY_MS: Final = 500


@dataclass(slots=True)
class _Piece:
    """One piece of work, and who waits for it since when (the loop's clock, seconds)."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]
    since_s: float


@dataclass(slots=True)
class _Lane:
    """The waiting work of one sort of shares; the next share is the first."""

    places: int
    places_per_share: int
    count: int = 0
    shares: dict[bytes, deque[_Piece]] = field(default_factory=dict)

    def add(self, share: bytes, piece: _Piece) -> None:
        """Let a piece wait. Raises Refusal if there is no place for it."""
        waiting = len(self.shares.get(share, ()))
        if waiting >= self.places_per_share:
            raise _no_place()
        if self.count >= self.places:
            self._take_place(waiting)
        self.shares.setdefault(share, deque()).append(piece)
        self.count += 1

    def take(self) -> _Piece | None:
        """Take the next piece, which is the first of the next share."""
        if not self.shares:
            return None
        share, pieces = next(iter(self.shares.items()))
        piece = pieces.popleft()
        del self.shares[share]
        if pieces:
            self.shares[share] = pieces  # behind all others
        self.count -= 1
        return piece

    def _take_place(self, waiting: int) -> None:
        """Take a place from the share with most of them, if that leaves it no worse off."""
        pieces = max(self.shares.values(), key=len)
        if len(pieces) <= waiting + 1:
            raise _no_place()
        last = pieces.pop()
        self.count -= 1
        if not last.future.done():
            last.future.set_exception(_no_place())


class FairThreads:
    """Runs work in threads, in turns of shares. For the event loop's thread alone."""

    def __init__(
        self,
        name: str,
        workers: int,
        *,
        places: int,
        places_per_share: int,
        trusted_places: int = 0,
        patience_s: float | None = None,
    ) -> None:
        """Run in `workers` threads. Work that waited for `patience_s` is refused, not done."""
        self._threads = ThreadPoolExecutor(workers, name)
        # Free work never waits for costly work.
        self._quick_thread = ThreadPoolExecutor(1, f"{name}-quick")
        self._idle = workers
        self._patience_s = patience_s
        self._open = _Lane(places, places_per_share)
        self._trusted = _Lane(trusted_places, places_per_share)
        self._is_trusted_turn = False

    @property
    def waiting(self) -> int:
        """The number of waiting pieces."""
        return self._open.count + self._trusted.count

    async def run(
        self, share: bytes | None, function: Callable[[], Result], *, is_trusted: bool = False
    ) -> Result:
        """Return the result of `function`; work without a share is quick.

        Raises Refusal QUOTA_EXCEEDED where there is no place to wait, or after too long a wait.
        """
        loop = asyncio.get_running_loop()
        if share is None:
            return await loop.run_in_executor(self._quick_thread, function)
        future: asyncio.Future[Result] = loop.create_future()
        lane = self._trusted if is_trusted else self._open
        lane.add(share, _Piece(function, future, loop.time()))
        self._start(loop)
        return await future

    def shutdown(self) -> None:
        """Begin no more work."""
        for threads in (self._threads, self._quick_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._idle and (piece := self._next(loop.time())) is not None:
            self._idle -= 1
            running = loop.run_in_executor(self._threads, piece.function)
            running.add_done_callback(partial(self._done, loop, piece))

    def _next(self, now_s: float) -> _Piece | None:
        """Return the next piece that somebody still waits for."""
        while (piece := self._take()) is not None:
            if piece.future.done():
                continue
            if self._patience_s is None or now_s - piece.since_s <= self._patience_s:
                return piece
            piece.future.set_exception(_no_place())
        return None

    def _take(self) -> _Piece | None:
        self._is_trusted_turn = not self._is_trusted_turn
        lanes = (
            (self._trusted, self._open) if self._is_trusted_turn else (self._open, self._trusted)
        )
        first = lanes[0].take()
        return first if first is not None else lanes[1].take()

    def _done(
        self, loop: asyncio.AbstractEventLoop, piece: _Piece, done: asyncio.Future[Any]
    ) -> None:
        self._idle += 1
        if done.cancelled():
            piece.future.cancel()
        elif piece.future.done():
            done.exception()  # nobody is left to hear of it
        elif (error := done.exception()) is not None:
            piece.future.set_exception(error)
        else:
            piece.future.set_result(done.result())
        if not loop.is_closed():
            self._start(loop)


def _no_place() -> Refusal:
    return Refusal.of(Reason.REASON_QUOTA_EXCEEDED, "waiting", retry_delay_ms=RETRY_DELAY_MS)
