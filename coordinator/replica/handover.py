"""Committed entries on their way to the mux: in op order, from the journal where need be.

The core holds the bodies of recent entries only. What an earlier process wrote, or what this one
was slow to take, is read back. An entry whose record turns out to be damaged is told to the core,
which has it from a peer and commits it once more; everything behind it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from coordinator import vsr
from coordinator.journal import CorruptRecord
from coordinator.replica.errors import HaltedError


@dataclass(frozen=True, slots=True)
class HandoverPorts:
    """What the handover acts through.

    `read` returns an entry of the journal, None if it is not there, and raises CorruptRecord.
    `faulty` is told of an op whose record is damaged, and why. `start` runs work in the background,
    whose failure ends the process, as does what `guard` is given.
    """

    read: Callable[[int], Awaitable[Any | None]]
    hand_over: Callable[[vsr.Prepare], None]
    faulty: Callable[[int, CorruptRecord], None]
    start: Callable[[Coroutine[Any, Any, None]], None]
    guard: Callable[[Callable[[], None]], None]


class Handover:
    """The queue of commits that the mux has not been given yet."""

    def __init__(self, ports: HandoverPorts) -> None:
        self._ports = ports
        self._commits: deque[vsr.Commit] = deque()
        self._is_blocked = False  # the first is being read, or is fetched from a peer
        self._last_op = 0  # handed over

    @property
    def next_op(self) -> int | None:
        """The first op that waits; None if none does."""
        return self._commits[0].op if self._commits else None

    def add(self, commit: vsr.Commit) -> None:
        """Take a commit: the next, or the damaged one once more.

        A read for a peer may find an entry damaged that waits here still, or was handed over.
        """
        if commit.op <= self._last_op:
            return
        position = 0 if self.next_op is None else commit.op - self.next_op
        if position == len(self._commits):
            self._commits.append(commit)
        else:
            self._commits[position] = commit  # ops have no gap
            self._is_blocked = self._is_blocked and position > 0
        self._advance()

    def _advance(self) -> None:
        while self._commits and not self._is_blocked:
            commit = self._commits[0]
            if commit.prepare is None:
                self._is_blocked = True
                self._ports.start(self._read(commit.op))
                return
            self._commits.popleft()
            self._last_op = commit.op
            self._ports.hand_over(commit.prepare)

    async def _read(self, op: int) -> None:
        try:
            prepare = await self._ports.read(op)
        except CorruptRecord as damage:
            self._ports.faulty(op, damage)
            return
        if prepare is None:
            raise HaltedError(f"committed op {op} is not in the journal")
        self._is_blocked = False
        self._commits[0] = vsr.Commit(op, prepare)
        self._ports.guard(self._advance)
