"""Virtual time: what happens next, in the whole world, is drawn from one seed."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any, Final

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
_TRANSCRIPT_LINES: Final = 20_000
_TIE_BITS: Final = 32


class Happening:
    """One thing that is due; it can be called off until then."""

    __slots__ = ("_action", "_arguments")

    def __init__(self, action: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._action: Callable[..., object] | None = action
        self._arguments = arguments

    def call_off(self) -> None:
        """Let it not happen."""
        self._action = None
        self._arguments = ()

    def happen(self) -> None:
        """Let it happen, unless it was called off."""
        action, arguments = self._action, self._arguments
        self.call_off()
        if action is not None:
            action(*arguments)


class WorldSchedule:
    """Everything that is due, by virtual time; what is due at the same time comes in drawn order.

    `digest` depends on every noted line, so two runs with the same digest were the same run.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._bits = self.random.getrandbits
        self.now_ns = 0
        self.steps = 0
        self.transcript: deque[str] = deque(maxlen=_TRANSCRIPT_LINES)
        self.watches: list[Callable[[str], None]] = []
        """Called with each line of the transcript."""
        self._due: list[tuple[int, int, int, Happening]] = []
        self._planned = 0
        self._digest = blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """The digest of everything that was noted so far."""
        return self._digest.hexdigest()

    def at(self, due_ns: int, action: Callable[..., object], *arguments: Any) -> Happening:
        """Plan an action for a virtual time; one that is past means now."""
        happening = Happening(action, arguments)
        self._planned += 1
        tie = self._bits(_TIE_BITS)
        heapq.heappush(self._due, (max(due_ns, self.now_ns), tie, self._planned, happening))
        return happening

    def after(self, delay_ns: int, action: Callable[..., object], *arguments: Any) -> Happening:
        """Plan an action for after a delay."""
        return self.at(self.now_ns + delay_ns, action, *arguments)

    def draw(self, least: int, most: int) -> int:
        """Return a drawn integer, both ends included.

        It is what `randint` returns, in a third of the time: a run draws hundreds of thousands.
        """
        size = most - least + 1
        bits = size.bit_length()
        drawn = self._bits(bits)
        while drawn >= size:
            drawn = self._bits(bits)
        return least + drawn

    def step(self) -> bool:
        """Let the next thing happen; return whether there was one."""
        if not self._due:
            return False
        self.now_ns, _, _, happening = heapq.heappop(self._due)
        self.steps += 1
        happening.happen()
        return True

    def count(self, *what: object) -> None:
        """Put into the digest what would be too much for the transcript."""
        self._digest.update(f"{self.now_ns} {what}\n".encode())

    def count_turn(self, name: bytes) -> None:
        """Put into the digest that a process had a turn."""
        self._digest.update(b"%d %b\n" % (self.now_ns, name))

    def note(self, who: str, text: str) -> None:
        """Write a line of the transcript, which is part of the digest."""
        line = f"{self.now_ns / NS_PER_MS:12.3f} {who:10} {text}"
        self._digest.update(line.encode())
        self.transcript.append(line)
        for watch in self.watches:
            watch(line)
