"""How fast this replica gives snapshot files to its peers: so many bytes per second in all.

Peers that wait take turns, chunk by chunk, so each has the same share however many files it reads.
Nobody saves up: what was not sent in a quiet second is not sent on top of the next one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

from viewstamp.limits import KIB, MIB

CHUNK_BYTES: Final = 1 * MIB
CHUNK_BYTES_MIN: Final = 256
# A peer gives up a fetch of which nothing comes for long, so a chunk takes a fraction of a second.
CHUNKS_PER_S_MIN: Final = 4
SEND_BYTES_PER_S: Final = 32 * MIB
SEND_BYTES_PER_S_MIN: Final = 1 * KIB


class SendShares:
    """The bytes that peers are sent, in turns. It belongs to one event loop."""

    def __init__(self, bytes_per_s: int = SEND_BYTES_PER_S) -> None:
        """Send at most `bytes_per_s` in all; 0 sets no limit."""
        self._bytes_per_s = bytes_per_s
        self._sent: Counter[int] = Counter()
        # By replica, in the order of their turns; nobody without a waiting chunk is here.
        self._waiting: dict[int, deque[tuple[asyncio.Future[None], int]]] = {}
        # When the last chunk is paid for, by the clock of the loop.
        self._free_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def sent_bytes(self) -> Mapping[int, int]:
        """The bytes of layers sent since the start of the process, by replica."""
        return dict(self._sent)

    @property
    def chunk_bytes(self) -> int:
        """The size of one chunk: small where few bytes per second may be sent."""
        if not self._bytes_per_s:
            return CHUNK_BYTES
        return max(CHUNK_BYTES_MIN, min(CHUNK_BYTES, self._bytes_per_s // CHUNKS_PER_S_MIN))

    async def take(self, replica: int, size_bytes: int) -> None:
        """Return when a replica may be sent so many bytes, which count as sent from then on."""
        if self._bytes_per_s:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(replica, deque()).append((turn, size_bytes))
            self._next_turns()
            await turn
        self._sent[replica] += size_bytes

    def _next_turns(self) -> None:
        """Give turns until the next one has to wait for its time."""
        loop = asyncio.get_running_loop()
        while self._waiting and self._timer is None:
            if loop.time() < self._free_at_s:
                self._timer = loop.call_at(self._free_at_s, self._time_has_come)
                return
            replica, queue = next(iter(self._waiting.items()))
            turn, size_bytes = queue.popleft()
            del self._waiting[replica]
            if queue:
                self._waiting[replica] = queue  # behind the others
            if not turn.done():  # who was cancelled needs none
                turn.set_result(None)
                self._free_at_s = loop.time() + size_bytes / self._bytes_per_s

    def _time_has_come(self) -> None:
        self._timer = None
        self._next_turns()
