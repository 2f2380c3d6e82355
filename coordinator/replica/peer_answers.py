"""Entries of the journal for replicas that lack them. They ask again, so few wait here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from coordinator import vsr
from coordinator.journal import CorruptRecord
from coordinator.replica.writer import Gone, Reading
from coordinator.vsr import messages
from viewstamp.format.prepare import SealedPrepare

# Reads for peers under way; a request beyond them is dropped, and its sender asks again.
READS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Position:
    """How far this replica is: its commit point, and its newest snapshot."""

    commit: int
    generation: int
    cut_op: int


class JournalEntries(Protocol):
    """The journal as seen from here."""

    async def read_held(self, op: int, checksum: bytes) -> SealedPrepare | None:
        """Return the intact entry of this op and checksum, or None."""
        ...

    async def read_committed(self, first_op: int, last_op: int) -> Reading:
        """Return entries in op order, as many as a message may carry."""
        ...


class PeerAnswers:
    """Answers one replica's requests for entries from the journal of this one."""

    def __init__(
        self,
        cluster_id: bytes,
        replica_id: int,
        entries: JournalEntries,
        send: Callable[[int, vsr.Message], None],
        position: Callable[[], Position],
        faulty: Callable[[int], None],
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._cluster_id = cluster_id
        self._replica_id = replica_id
        self._entries = entries
        self._send = send
        self._position = position
        self._faulty = faulty  # told of an op whose record is damaged
        self._start = start
        self._reads = 0

    def send_committed(self, effect: vsr.SendCommitted) -> None:
        """Send committed entries, or the op from which on this replica has them."""
        self._begin(self._committed(effect))

    def send_held(self, effect: vsr.SendHeld) -> None:
        """Send the one entry asked for, if it is here and intact."""
        self._begin(self._held(effect))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self._reads >= READS_MAX:
            work.close()
            return
        self._reads += 1
        self._start(self._counted(work))

    async def _counted(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._reads -= 1

    async def _committed(self, effect: vsr.SendCommitted) -> None:
        found = await self._entries.read_committed(effect.first_op, effect.last_op)
        here = self._position()
        if isinstance(found, Gone):
            gone = messages.CommittedGoneMessage(
                self._cluster_id,
                self._replica_id,
                found.first_held_op,
                here.generation,
                here.cut_op,
            )
            self._send(effect.to_replica, gone)
            return
        if found.damaged_op is not None:
            self._faulty(found.damaged_op)
        for prepare in found.prepares:
            message = messages.CommittedMessage(
                self._cluster_id, self._replica_id, prepare, here.commit
            )
            self._send(effect.to_replica, message)

    async def _held(self, effect: vsr.SendHeld) -> None:
        try:
            prepare = await self._entries.read_held(effect.op, effect.checksum)
        except CorruptRecord:
            self._faulty(effect.op)
            return
        if prepare is not None:
            message = messages.RepairMessage(self._cluster_id, self._replica_id, prepare)
            self._send(effect.to_replica, message)
