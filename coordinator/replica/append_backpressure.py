"""Entries from other replicas on their way into the core, which has each of them journaled at once.

The replica admits entries while the journal has room, as a primary admits commands of clients. So a
replica whose disk is full takes and acknowledges no entry and loses nothing that it had. It still
hears its primary and votes. The sender of a refused entry sends the entry again.

A replica with a full disk also requests entries only now and then. It asks each replica for each
run of entries, so that it does not forget a damaged entry far below the next ones. It only has to
learn whether the others still have these entries: if they do not, the replica needs a snapshot, and
a restart from a snapshot frees its journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from coordinator import vsr
from coordinator.base.clock import now_ticks
from coordinator.replica.ports import JournalRoom
from coordinator.vsr.messages import (
    CommittedMessage,
    Message,
    PrepareMessage,
    RepairMessage,
    RequestCommittedMessage,
    RequestPrepareMessage,
)
from viewstamp.limits import CATCH_UP_OPS, PIPELINE_PREPARES_MAX, TICK_MS

EntryMessage: TypeAlias = PrepareMessage | RepairMessage | CommittedMessage
ENTRIES: Final = (PrepareMessage, RepairMessage, CommittedMessage)
QUESTIONS: Final = (RequestPrepareMessage, RequestCommittedMessage)
# What may arrive at once: a pipeline, and the entries asked for.
WAITING_MAX: Final = PIPELINE_PREPARES_MAX + CATCH_UP_OPS
# How often a replica without room asks each peer for the same committed entries.
FULL_QUESTION_MS: Final = 2_000


class AppendCore(Protocol):
    """The core as seen from here."""

    @property
    def marks(self) -> vsr.Marks:
        """Return how far the log is."""
        ...

    def holds(self, op: int, checksum: bytes) -> bool:
        """Return whether the log has exactly this entry intact, so it is not journaled again."""
        ...


class AppendBackpressure:
    """Lets entries into the core, by `step`.

    `may_use_reserve` says whether an entry may use the space reserved for snapshots, and `room`
    whether the journal has room for another one.
    """

    def __init__(
        self,
        core: AppendCore,
        step: Callable[[vsr.Event], None],
        may_use_reserve: Callable[[vsr.Prepare], bool],
        room: Callable[[], JournalRoom],
        clock_ticks: Callable[[], int] = now_ticks,
    ) -> None:
        self._core = core
        self._step = step
        self._may_use_reserve = may_use_reserve
        self._room = room
        self._clock_ticks = clock_ticks
        # When each replica was last asked for the entries from an op on, without room.
        self._asked_ticks: dict[tuple[int, int], int] = {}
        self._waiting: deque[EntryMessage] = deque()
        self.refused = 0

    def received(self, message: Message) -> None:
        """Take a message of another replica; an entry may have to wait, or be refused."""
        if isinstance(message, ENTRIES) and (self._waiting or not self._has_place(message)):
            self._waiting.append(message)
            self.look()
        else:
            self._step(vsr.Received(message))

    def look(self) -> None:
        """Let waiting entries in while there is room; on a full disk none waits."""
        while self._waiting and self._has_place(self._waiting[0]):
            self._step(vsr.Received(self._waiting.popleft()))
        if self._waiting and (
            self._room() is not JournalRoom.SOON or len(self._waiting) > WAITING_MAX
        ):
            self.refused += len(self._waiting)
            self._waiting.clear()

    def may_send(self, effect: vsr.Send) -> bool:
        """Return whether to send a message now. Without room, entries are not asked for, except
        committed ones, from each replica once in a while."""
        if not isinstance(effect.message, QUESTIONS):
            return True
        if self._room() not in (JournalRoom.FULL, JournalRoom.EXHAUSTED):
            self._asked_ticks.clear()
            return True
        if isinstance(effect.message, RequestCommittedMessage):
            return self._is_due(effect.to_replica, effect.message.first_op)
        return False

    def _is_due(self, replica: int, first_op: int) -> bool:
        """Return whether a replica was not asked for these entries recently, and count it as
        asked."""
        oldest = self._clock_ticks() - FULL_QUESTION_MS // TICK_MS
        self._asked_ticks = {
            question: asked for question, asked in self._asked_ticks.items() if asked > oldest
        }
        if (replica, first_op) in self._asked_ticks:
            return False
        self._asked_ticks[replica, first_op] = self._clock_ticks()
        return True

    def _has_place(self, message: EntryMessage) -> bool:
        prepare = message.prepare
        if isinstance(message, PrepareMessage) and prepare.op <= self._core.marks.op:
            return True  # the entry is here, and is only acknowledged again
        if self._core.holds(prepare.op, prepare.checksum):
            return True  # the entry is here too: its primary read it back from its journal
        return self._room() is JournalRoom.FREE or self._may_use_reserve(prepare)
