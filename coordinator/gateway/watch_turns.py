"""Turns of the event loop for watches: some changes are worked through in each, and then others
have the loop.

A change may concern thousands of watches, and all are woken for it at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from coordinator.gateway.kept_changes import CHANGES_AT_ONCE

# What a watch costs beside its changes, mostly by the message that it sends.
WATCH_COST_CHANGES: Final = 32


class WatchTurns:
    """Gives each turn of the loop to the watches that have waited longest."""

    def __init__(self) -> None:
        self._spent = 0
        self._is_next_turn_due = False
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def take(self, changes: int) -> None:
        """Wait until it is the turn of somebody who has so many changes to work through."""
        cost = changes + WATCH_COST_CHANGES
        if self._waiting or not self._has_room(cost):
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((told, cost))
            await told
        else:
            self._spend(cost)

    def _has_room(self, cost: int) -> bool:
        """Return whether a turn has room for this, too; its first is always taken."""
        return not self._spent or self._spent + cost <= CHANGES_AT_ONCE

    def _spend(self, cost: int) -> None:
        self._spent += cost
        if not self._is_next_turn_due:
            self._is_next_turn_due = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._spent, self._is_next_turn_due = 0, False
        while self._waiting and self._has_room(self._waiting[0][1]):
            told, cost = self._waiting.popleft()
            if not told.done():  # a watch that ended while it waited
                told.set_result(None)
                self._spend(cost)
